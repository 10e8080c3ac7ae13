from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs import Session
from mama_structs.adapters.shared.tool_results import list_wire_tools
from mama_structs.errors import UnknownTool
from mama_structs.tools.wire_names import MAX_WIRE_NAME_CHARS, WireNames, make_wire_name

RULES = {
    "openai": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    "anthropic": re.compile(r"[a-zA-Z0-9_-]{1,128}"),
    "mcp": re.compile(r"[A-Za-z0-9_.-]{1,128}"),
    "gemini": re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}"),
}
# The strictest rule for tool names, including the prefix that hosts with several servers add.
PREFIXED = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}")

parts = st.text("abzAZ019_-", min_size=1, max_size=34)
tool_names = st.one_of(parts, st.tuples(parts, parts).map("/".join)).filter(lambda name: len(name) <= 64)
# Names whose wire names are equal, so that they often collide.
clashing = st.lists(st.sampled_from(["a/b", "a__b", "a-b", "a_b", "a__b_2", "a__b_3", "a/b_2", "a_b_2", "-", "_", "0"]))
long_names = st.integers(30, 60).flatmap(
    lambda size: st.sampled_from(["x" * size, "x" * size + "/y", "x-" * (size // 2)])
)
name_lists = st.one_of(st.lists(tool_names, max_size=12), clashing, st.lists(long_names, max_size=8)).map(
    lambda names: list(dict.fromkeys(names))
)


@given(name_lists)
@example(["save/decision", "save__decision", "save-_decision"])
@example(["x" * 64, "x" * 40, "x" * 63 + "/"])
def test_every_wire_name_follows_rules_of_all_providers(names):
    """All providers accept the names of any tools, including a host's prefix."""
    wired = WireNames._from_names(names)

    assert set(names) == set(wired.by_tool)
    for wire in wired.by_wire:
        assert len(wire) <= MAX_WIRE_NAME_CHARS
        assert PREFIXED.fullmatch(f"mcp__mama_structs__{wire}")
        assert all(rule.fullmatch(wire) for rule in RULES.values())


@given(name_lists)
def test_wire_names_are_unique_in_both_directions(names):
    """Each tool has one wire name, and each wire name belongs to one tool."""
    wired = WireNames._from_names(names)

    assert names == [wired._tool(wired.by_tool[name]) for name in names]
    assert len(names) == len(set(wired.by_tool.values())) == len(wired.by_wire)


@given(name_lists, st.integers(0, 12))
def test_added_tools_do_not_change_wire_names(names, number):
    """A conversation continues with the names that the model has seen."""
    earlier, later = WireNames._from_names(names[:number]), WireNames._from_names(names)

    assert dict(earlier.by_tool) == {name: later.by_tool[name] for name in names[:number]}


@given(st.text(max_size=80))
def test_wire_name_is_valid_for_any_text(text):
    """Even texts that are not valid tool names become valid wire names."""
    wire = make_wire_name(text)

    assert len(wire) <= MAX_WIRE_NAME_CHARS
    assert all(rule.fullmatch(wire) for rule in RULES.values())


def test_wire_name_replaces_slash_by_two_underscores():
    """Other characters are unchanged if every provider accepts them."""
    assert "save__decision" == make_wire_name("save/decision")
    assert "structs_query_player" == make_wire_name("structs_query_player")
    assert "tool_2fast" == make_wire_name("2fast")


def test_truncated_wire_names_are_distinct():
    """Two long names with the same prefix have different wire names."""
    names = [f"{'very_long_name_of_a_tool_' * 2}{end}" for end in ("one", "two")]

    assert 2 == len({make_wire_name(name) for name in names})


def test_tool_lookup_accepts_own_name():
    """A model that has read save/decision in an answer may use that name."""
    wired = WireNames._from_names(["save/decision", "load/context"])

    assert "save/decision" == wired._tool("save/decision") == wired._tool("save__decision")


def test_tool_lookup_prefers_wire_name_to_own_name():
    """A name that was offered to the model takes precedence."""
    wired = WireNames._from_names(["a/b", "a__b"])

    assert "a/b" == wired._tool("a__b")
    assert "a__b" == wired._tool("a__b_2")


def test_unknown_wire_name_is_rejected_with_suggestions():
    """The hint contains wire names."""
    wired = WireNames._from_names(["save/decision", "load/context"])

    with pytest.raises(UnknownTool) as misspelt:
        wired._tool("save__decison")
    with pytest.raises(UnknownTool) as other:
        wired._tool("delete_everything")
    with pytest.raises(UnknownTool) as none:
        WireNames._from_names([])._tool("x")

    assert "did you mean save__decision?" == misspelt.value.hint
    assert "there are: save__decision, load__context" == other.value.hint
    assert "there are: none" == none.value.hint


async def test_hidden_tool_has_unique_wire_name():
    """Wire names do not depend on which tools a message exposes."""
    async with Session.open() as session:

        async def decide() -> None:
            """Save a decision."""

        session.tools.add(decide, name="save__decision")
        everything = {tool.name: wire for wire, tool in list_wire_tools(session)}
        some = {tool.name: wire for wire, tool in list_wire_tools(session, "What did we decide about logins?")}

        assert set(session.tools) == everything.keys()
        assert "save__decision" == everything["save/decision"]
        assert "save__decision_2" == everything["save__decision"]
        assert everything == everything | some
        assert everything.items() <= session.tools.wire_names.by_tool.items()


def test_hidden_tools_are_callable_but_not_suggested():
    """They take no name from a visible tool, and can be called by a client that knows their name."""
    wired = WireNames._from_names(["save/decision", "save-decision"], hidden=["save_decision"])

    assert "save-decision" == wired._tool("save_decision")
    assert "save_decision" == wired._tool("save_decision_2")
    with pytest.raises(UnknownTool) as misspelt:
        wired._tool("save_decision_3")
    assert "did you mean save_decision or save__decision?" == misspelt.value.hint
