"""Additions to files of coding agents: merge with existing content, and exact removal."""

import copy
import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.cli.coding_agents.json_text import get_value, parse_json
from mama_structs.cli.coding_agents.targets import JsonTarget, TextTarget, TomlTarget
from mama_structs.errors import InvalidArgument

SERVER = {"command": "/bin/mama-structs", "args": ["serve-mcp", "/a b/agent.mama"]}
HOOK = {"hooks": [{"type": "command", "command": "/bin/mama-structs hook '/a b/agent.mama'"}]}
JSON = JsonTarget(
    "x.json",
    members={("mcpServers", "mama"): SERVER},
    items={("hooks", "SessionStart"): HOOK, ("hooks", "UserPromptSubmit"): HOOK},
    skeleton={"version": 1},
)
TOML = TomlTarget("config.toml", ("mcp_servers", "mama"), SERVER)

words = st.text(max_size=4) | st.sampled_from(["hooks", "mcpServers", "SessionStart", "version", "other"])
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=8
)
BLANKS = {"{}": "{ }", "[]": "[\n\n]"}
layouts = st.sampled_from([{"indent": 2}, {"indent": "\t"}, {"indent": 4}, {}, {"separators": (",", ":")}])
endings = st.sampled_from(["", "\n", "\r\n"])


@st.composite
def json_texts(draw):
    """JSON documents in different layouts, with hooks of others."""
    parts = {
        "mcpServers": st.dictionaries(words, values, max_size=2),
        "hooks": st.dictionaries(words, st.lists(values, max_size=2), max_size=3),
    }
    document = draw(st.dictionaries(words, values, max_size=3))
    document = {name: draw(parts[name]) if name in parts else value for name, value in document.items()}
    text = json.dumps(document, ensure_ascii=draw(st.booleans()), **draw(layouts)) + draw(endings)
    for empty, blank in BLANKS.items():
        # Strings can contain brackets, too.
        text = text.replace(empty, blank) if draw(st.booleans()) and f'"{empty}' not in text else text
    return text.replace("\n", "\r\n") if draw(st.booleans()) and "\r" not in text else text


@given(text=json_texts())
def test_json_merge_then_undo_returns_original_text(text):
    """The additions are in the merged document, a second merge changes nothing, and the undo restores all bytes."""
    merged = JSON.merge(text, None)
    again = JSON.merge(merged.text, merged.record)
    document, original = parse_json(merged.text), parse_json(text)

    assert SERVER == document["mcpServers"]["mama"]
    assert HOOK == document["hooks"]["SessionStart"][-1]
    assert document["version"] == original.get("version", 1)
    assert all(document[name] == value for name, value in original.items() if name not in ("hooks", "mcpServers"))
    assert merged == again
    assert text == JSON.undo(merged.text, merged.record).text


keys = st.text("abc-_1", min_size=1, max_size=3)
toml_scalars = st.booleans() | st.integers(-9, 9) | st.text("ab#[]'é\\\"\n", max_size=5)


@st.composite
def toml_texts(draw):
    """TOML documents with comments, tables and arrays of tables."""
    parts = []
    names = draw(st.lists(st.sampled_from(["x", "y.z", "mcp_servers.x", "mcp_servers"]), unique=True, max_size=3))
    for name in ["", *names]:
        is_array = draw(st.booleans()) and name != "mcp_servers"
        head = "" if not name else f"[[{name}]]\n" if is_array else f"[{name}] # [mcp_servers.mama]\n"
        lines = draw(st.dictionaries(keys, toml_scalars | st.lists(toml_scalars, max_size=2), max_size=2))
        body = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in lines.items()]
        parts += [head, *body, draw(st.sampled_from(["", "# a comment\n", "\n"]))]
    text = "".join(parts)
    return text.rstrip("\n") if draw(st.booleans()) else text


@given(text=toml_texts())
def test_toml_merge_then_undo_returns_original_text(text):
    merged = TOML.merge(text, None)
    expected = copy.deepcopy(tomllib.loads(text))
    expected.setdefault("mcp_servers", {})["mama"] = SERVER

    assert expected == tomllib.loads(merged.text)
    assert merged.text.startswith(text)
    assert merged == TOML.merge(merged.text, merged.record)
    assert text == TOML.undo(merged.text, merged.record).text


@pytest.mark.parametrize("target", [JSON, TOML, TextTarget("a.md", "text")], ids=lambda target: target.name)
def test_new_file_is_deleted_by_undo(target):
    merged = target.merge(None, None)

    assert merged == target.merge(merged.text, merged.record)
    assert target.undo(merged.text, merged.record).text is None
    assert target.undo(None, merged.record).text is None


def test_json_undo_keeps_later_changes():
    """Other servers, hooks and fields stay, as does the required version of a file that has hooks of the user now."""
    merged = JSON.merge(None, None)
    document = parse_json(merged.text)
    document["mcpServers"]["other"] = {"command": "x"}
    document["hooks"]["SessionStart"].insert(0, {"hooks": []})
    document["theme"] = "dark"
    left = JSON.undo(json.dumps(document), merged.record)

    assert {
        "version": 1,
        "mcpServers": {"other": {"command": "x"}},
        "hooks": {"SessionStart": [{"hooks": []}]},
        "theme": "dark",
    } == parse_json(left.text)
    assert () == left.notes


def test_entry_changed_by_hand_is_updated_and_not_removed():
    """A new setting replaces only the own fields of the server; an undo reports what it leaves."""
    merged = JSON.merge(None, None)
    text = merged.text.replace('"args"', '"env": {"A": "1"}, "args"')
    server = {**SERVER, "args": ["serve-mcp", "/new"]}
    updated = JsonTarget("x.json", {("mcpServers", "mama"): server}, JSON.items, JSON.skeleton).merge(
        text, merged.record
    )
    left = JSON.undo(updated.text, updated.record)

    assert {**server, "env": {"A": "1"}} == get_value(parse_json(updated.text), ("mcpServers", "mama"))
    assert {"mcpServers": {"mama": {**server, "env": {"A": "1"}}}, "version": 1} == parse_json(left.text)
    assert ("x.json: mcpServers.mama was changed by hand and is left as it is",) == left.notes


def test_hook_with_other_options_is_not_repeated():
    """The user gave the hook a time limit: a further merge adds no second one."""
    merged = JSON.merge(None, None)
    text = merged.text.replace('"type": "command"', '"type": "command", "timeout": 5')

    assert text == JSON.merge(text, merged.record).text
    assert "x.json: hooks.SessionStart was changed by hand and is left as it is" in JSON.undo(text, merged.record).notes


def test_toml_table_is_replaced_in_place():
    """Tables and fields that were added below stay."""
    merged = TOML.merge("a = 1 # first\n", None)
    text = merged.text + 'env = {A = "1"}\n\n[later]\nb = 2\n'
    server = {**SERVER, "args": ["/new"]}
    updated = TomlTarget("config.toml", TOML.path, server).merge(text, merged.record)

    assert text.replace(TOML.get_fragment(), "") == updated.text.replace(
        TomlTarget("", TOML.path, server).get_fragment(), ""
    )
    assert {**server, "env": {"A": "1"}} == tomllib.loads(updated.text)["mcp_servers"]["mama"]
    assert TOML.undo(updated.text, updated.record).notes


@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        (JSON, '{"a": 1,}', "x.json has comments or trailing commas"),
        (JSON, '{// why\n"a": "//"}', "x.json has comments or trailing commas"),
        (JSON, "{", "x.json is not valid JSON"),
        (JSON, "", "x.json is not valid JSON"),
        (JSON, '{"a": 1, "a": 2}', "the same key twice"),
        (JSON, "[" * 100_000, "nested too deeply"),
        (JSON, "[]", "must contain a JSON object"),
        (JSON, '{"mcpServers": []}', "mcpServers must be an object"),
        (JSON, '{"hooks": {"SessionStart": {}}}', "hooks.SessionStart must be a list"),
        (JSON, '{"mcpServers": {"mama": {"command": "x"}}}', "mcpServers.mama exists with other values"),
        (TOML, "a = ", "config.toml is not valid TOML"),
        (TOML, 'mcp_servers = {x = {command = "x"}}', "mcp_servers.mama cannot be added at the end"),
        (TOML, "mcp_servers = 1", "a key above it is not a table"),
        (TOML, "[[mcp_servers]]\na = 1", "a key above it is not a table"),
        (TOML, "[mcp_servers.mama]\ncommand = 'x'", "mcp_servers.mama exists with other values"),
        (TextTarget("a.md", "text"), "other", "a.md exists with another text"),
    ],
)
def test_file_that_cannot_be_merged_is_rejected(target, text, message):
    """The error says what to add, or what to do."""
    with pytest.raises(InvalidArgument, match=message) as caught:
        target.merge(text, None)

    assert "nothing was changed" in str(caught.value)
    assert caught.value.hint


def test_json_file_with_comments_is_accepted_when_it_has_the_additions():
    """After the user added them by hand, the other files can be written. An undo says what to remove."""
    text = f"// mine\n{JSON.get_fragment()}"

    assert text == JSON.merge(text, None).text
    assert JSON.merge(text, None).record is None
    left = JSON.undo(text, JSON.merge(None, None).record)
    assert text == left.text
    assert "x.json has comments or trailing commas: remove this yourself" in left.notes[0]


def test_toml_merge_accepts_nan():
    """NaN is not equal to itself."""
    assert TOML.merge("rate = nan\n", None).text.startswith("rate = nan\n\n[mcp_servers.mama]")
