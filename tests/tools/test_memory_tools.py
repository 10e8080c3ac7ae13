"""The memory tools: their schemas, the data that they store, and their answers."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from memory_helpers import plain_link, plain_memory

from mama_structs import HashEmbedder, Session
from mama_structs.adapters.shared.tool_schemas import to_strict_schema
from mama_structs.errors import InvalidArgument, MemoryNotFound, StoreError
from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.graph.results import build_chain
from mama_structs.memory.types.model import LinkType, RelatedMemory, SaveWarnings
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.settings import DescriptorSettings, Settings, ToolSettings
from mama_structs.testing.plain_engine import PlainReader
from mama_structs.tools.memory_results import (
    MIN_SEARCH_TEXT_CHARS,
    _find_current_successors,
    _render_warnings,
    divide_chars,
    format_age,
    truncate,
    truncate_line,
)
from mama_structs.tools.memory_tools import make_memory_tools

NAMES = [
    "save/decision",
    "save/checkpoint",
    "save/insight",
    "load/checkpoint",
    "load/context",
    "search/by_topic",
    "search/by_context",
    "search/recent",
    "evolve/outcome",
    "evolve/supersede",
    "evolve/correct",
]
READING = {name for name in NAMES if name.startswith(("load/", "search/"))}
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as opened:
        yield opened


@pytest.fixture
def memories(session):
    return session.memories


@pytest.fixture
def call(session):
    return caller(session.memories, session.refs)


def caller(memories, refs):
    tools = {tool.name: tool for tool in make_memory_tools(memories, refs)}

    async def call(name, **arguments):
        answer = await tools[name].run(arguments)
        Draft202012Validator(tools[name].output_schema).validate(answer)

        assert answer == json.loads(json.dumps(answer))
        return answer

    return call


@pytest.fixture
def tools(session):
    return make_memory_tools(session.memories, session.refs)


@pytest.fixture
async def jwt(call):
    """A failed decision to use JWT, and its successor: a decision to use server sessions."""
    first = await call("save/decision", topic="auth", decision="Use JWT for logins", reasoning="No state on the server")
    await call(
        "evolve/outcome", decision_id=first["id"], outcome="FAILED", reason="A stolen token could not be revoked"
    )
    second = await call(
        "evolve/supersede", decision_id=first["id"], decision="Keep sessions in Redis", reasoning="They can be ended"
    )
    return first["id"], second["id"]


# ---- schemas


def objects_in(schema):
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for inner in schema.values():
            yield from objects_in(inner)
    if isinstance(schema, list):
        for inner in schema:
            yield from objects_in(inner)


async def test_tools_are_in_design_order(tools):
    assert NAMES == [tool.name for tool in tools]


async def test_descriptions_say_when_to_use_and_not_to_use_each_tool(tools):
    for tool in tools:
        assert "Use it" in tool.description
        unfit = tool.description[tool.description.index(", not ") :]

        assert any(name in unfit for name in NAMES if name != tool.name), tool.name


# Arguments that the name and the description of the tool explain.
CLEAR_NAMES = {
    *("decision", "confidence", "links", "open_files", "next_steps", "content", "tags", "topic", "query", "types"),
    *("limit", "id", "decision_id", "outcome", "reasoning", "reason"),
}


async def test_schemas_are_strict_and_describe_other_arguments(tools):
    for tool in tools:
        Draft202012Validator.check_schema(tool.input_schema)
        Draft202012Validator.check_schema(tool.output_schema)
        for found in objects_in(tool.input_schema):
            assert found["additionalProperties"] is False
            described = {name for name, one in found["properties"].items() if one.get("description")}
            assert found["properties"].keys() - described <= CLEAR_NAMES, tool.name


async def test_links_schema_has_id_and_relationship(tools):
    """Other forms of a link are omitted from the schema, which is part of every request."""
    for tool in (tools[0], tools[2]):
        an_object = tool.input_schema["properties"]["links"]["items"]

        assert ["id", "relationship"] == list(an_object["properties"])
        assert ["id"] == an_object["required"]


async def test_schemas_contain_defaults_and_bounds(tools):
    by_name = {tool.name: tool.input_schema["properties"] for tool in tools}

    assert (0, 1, 0.7) == tuple(
        by_name["save/decision"]["confidence"][key] for key in ("minimum", "maximum", "default")
    )
    assert (5, 50) == tuple(by_name["search/by_context"]["limit"][key] for key in ("default", "maximum"))
    assert (10, 50) == tuple(by_name["search/recent"]["limit"][key] for key in ("default", "maximum"))
    assert {"SUCCESS", "FAILED", "PARTIAL"} == set(by_name["evolve/outcome"]["outcome"]["enum"])


async def test_arguments_missing_in_schema_are_accepted(call, memories, jwt):
    first = await call("save/decision", topic="auth", decision="d", reasoning="", supersedes=jwt[1], implements=jwt[:1])
    fact = await call("save/insight", content="a fact", category="speed")
    second = await call("evolve/supersede", decision_id=first["id"], decision="e", reasoning="", confidence=0.2)

    assert [first["id"], jwt[1]] == [
        one.id for one in (await memories.history(jwt[1])).memories if one.id in (first["id"], jwt[1])
    ]
    assert "speed" == (await memories.get(fact["id"])).metadata.category
    assert 0.2 == (await memories.get(second["id"])).metadata.confidence


async def test_descriptions_do_not_repeat_bounds_of_schema(tools):
    """The strict schema describes bounds in words."""
    sure = to_strict_schema(tools[0].input_schema)["properties"]["confidence"]["description"]

    assert "0 to 1; default 0.7" == sure


async def test_invalid_argument_error_names_only_wrong_arguments(call):
    with pytest.raises(InvalidArgument) as refused:
        await call("save/decision", topic="", decision="d", reasoning="r", links=[{"to": "x"}])

    assert (
        "save/decision: topic must be a string of 1 to 200 characters, got ''; "
        "links must be an array of at most 100 items (each a string of 1 to 512 characters or an object "
        "{id?, relationship?, to_id?, confidence?, reason?, tags?}), got a list of length 1"
        ": at [0], object contains unknown field 'to'; did you mean to_id by 'to'?"
    ) == refused.value.args[0]
    assert refused.value.hint.startswith("topic (required): Such as auth_strategy")
    assert "reasoning" not in str(refused.value)
    assert 500 > len(str(refused.value))


async def test_annotations_distinguish_reading_from_adding(tools):
    for tool in tools:
        assert tool.annotations.read_only is (tool.name in READING)
        assert not tool.annotations.destructive
        assert not tool.annotations.open_world


async def test_tools_of_several_stores_share_schemas(tools, memories):
    others = make_memory_tools(memories, RefStore())

    assert all(one.input_schema is other.input_schema for one, other in zip(tools, others, strict=True))
    assert all(one.output_schema is other.output_schema for one, other in zip(tools, others, strict=True))


async def test_model_cannot_set_bound_stores(call):
    with pytest.raises(InvalidArgument, match="'memories' is no argument of this tool"):
        await call("load/checkpoint", memories=None)


# ---- saving


async def test_saved_memories_and_links_have_model_as_author(call, memories, jwt):
    await call("save/checkpoint", summary="Sessions work", implements=[jwt[1]])
    await call(
        "save/insight", content="Redis loses sessions at restart", links=[{"to_id": jwt[1], "relationship": "limits"}]
    )
    saved = await memories.list(limit=10)
    links = [link for memory in saved for link in await memories.links(memory.id) if link.created_by != "system"]

    assert 5 == len(saved)
    assert {"llm"} == {memory.metadata.created_by for memory in saved}
    assert {"llm"} == {link.created_by for link in links}


async def test_save_decision_stores_all_arguments(call, memories, jwt):
    answer = await call(
        "save/decision",
        topic="cache",
        decision="Cache sessions for a minute",
        reasoning="Redis is asked too often",
        confidence=0.4,
        implements=[jwt[1]],
        links=[
            {"to_id": jwt[0], "relationship": "learns from", "confidence": 0.6, "reason": "same mistake", "tags": ["t"]}
        ],
        evidence=["https://example.org/graph", jwt[0]],
    )
    memory = await memories.get(answer["id"])
    mine = [link for link in await memories.links(memory.id) if link.created_by == "llm"]
    asked = next(link for link in mine if link.to_id == jwt[0])

    assert ("cache", "Cache sessions for a minute", "Redis is asked too often", 0.4) == (
        memory.topic,
        memory.content,
        memory.metadata.reasoning,
        memory.metadata.confidence,
    )
    assert ("https://example.org/graph", jwt[0]) == memory.evidence
    assert ("learns from", 0.6, "same mistake", ("t",)) == (
        asked.metadata.original_relationship,
        asked.confidence,
        asked.metadata.reason,
        asked.metadata.tags,
    )
    assert {(jwt[1], "implements"), (jwt[0], "learns from")} == {
        (link.to_id, link.metadata.original_relationship) for link in mine
    }


async def test_links_accept_id_and_id_with_relationship(call, memories, jwt):
    """An object without an id is rejected, and nothing is saved."""
    links = [jwt[0], {"id": jwt[1], "relationship": "depends on"}, {"to_id": jwt[1], "relationship": "explains"}]
    saved = await call("save/insight", content="a fact", links=links)
    made = {
        (link.to_id, link.metadata.original_relationship)
        for link in await memories.links(saved["id"])
        if link.created_by == "llm"
    }

    assert {(jwt[0], "related to"), (jwt[1], "depends on"), (jwt[1], "explains")} == made
    for wrong in ({"relationship": "explains"}, {"id": jwt[0], "to_id": jwt[1]}):
        with pytest.raises(InvalidArgument, match=r"links\[0\] must have one id"):
            await call("save/insight", content="another", links=[wrong])
    with pytest.raises(InvalidArgument, match="did you mean relationship"):
        await call("save/insight", content="another", links=[{"id": jwt[0], "relation": "explains"}])


async def test_save_returns_only_id_when_nothing_was_noticed(call, jwt):
    saved = await call("save/decision", topic="auth", decision="d", reasoning="r", links=[jwt[0]], implements=[jwt[1]])

    assert ["id"] == list(saved)


async def test_supersede_accepts_id_of_saved_decision(call, memories, jwt):
    saved = await call("save/decision", topic="login", decision="Use passkeys", reasoning="No passwords")
    before = await memories.count()
    answer = await call("evolve/supersede", decision_id=jwt[1], decision=saved["id"], reasoning="They are safer")

    assert (saved["id"], "Keep sessions in Redis") == (answer["id"], answer["replaced"])
    assert before == await memories.count()
    assert saved["id"] == (await call("load/context", id=jwt[1]))["memory"]["superseded_by"]
    old = await call("save/insight", content="The export runs at night")
    new = await call("save/insight", content="The invoices leave at noon")
    await call("evolve/supersede", decision_id=old["id"], decision=new["id"], reasoning="")

    assert new["id"] == (await call("load/context", id=old["id"]))["memory"]["superseded_by"]
    with pytest.raises(InvalidArgument, match="decision must be the id of a decision, as decision_id is"):
        await call("evolve/supersede", decision_id=jwt[1], decision=new["id"], reasoning="")


async def test_save_note_names_conflicting_or_duplicate_memory(call, memories):
    """A duplicate returns the id of the first memory."""
    first = await call("save/decision", topic="logins", decision="Use JWT for logins", reasoning="No state")
    again = await call("save/decision", topic="logins", decision="use JWT for logins.", reasoning="No state")
    against = await call("save/decision", topic="logins", decision="Do not use JWT for logins", reasoning="No state")

    assert first["id"] == again["id"]
    assert again["note"].startswith("This was saved before")
    assert f"May contradict {first['id']}: if that no longer holds, evolve/supersede it by this id." == against["note"]
    assert 2 == await memories.count()
    back = await call("save/decision", topic="logins", decision="Use JWT for logins", reasoning="No state")

    assert back["note"].startswith(f"Said before, and may contradict {against['id']}: if that no longer holds")
    assert {first["id"], against["id"], back["id"]} == {one.id for one in await memories.list()}
    await memories.delete(back["id"])
    await call("evolve/supersede", decision_id=first["id"], decision=against["id"], reasoning="Tokens were stolen")

    assert against["id"] == (await memories.search("JWT"))[0].memory.id
    assert 2 == await memories.count()


@given(
    kinds=st.fixed_dictionaries(
        {
            name: st.lists(
                st.builds(RelatedMemory, st.sampled_from(["decision_" + 50 * "x", "insight_y"]), st.just(0.9)),
                max_size=9,
            )
            for name in ("duplicate_of", "possible_conflicts", "possible_replacements")
        }
    )
)
def test_save_note_is_one_line_with_most_important_id(kinds):
    seen = SaveWarnings(**{name: tuple(found) for name, found in kinds.items()})
    note = _render_warnings("decision_z", seen)
    first = [*kinds["possible_replacements"], *kinds["possible_conflicts"], *kinds["duplicate_of"]]

    assert (note is None) is (not first)
    if note is not None:
        assert first[0].id in note
        assert (1, True) == (note.count("_") - note.count("evolve_"), len(note) <= 160)
        assert bool(seen.duplicate_of and first[0] is not seen.duplicate_of[0]) is note.startswith("Said before, and ")


async def test_correct_changes_text_and_keeps_history(call, memories):
    saved = await call("save/insight", content="The fort has 12 towers")
    answer = await call("evolve/correct", id=saved["id"], content="The fort has 21 towers", reason="swapped digits")
    memory = await memories.get(saved["id"])

    assert {"id": saved["id"], "content": "The fort has 21 towers"} == answer
    assert ["The fort has 12 towers"] == [one.content for one in memory.previous_texts]
    with pytest.raises(MemoryNotFound):
        await call("evolve/correct", id="insight_nothing", content="x")


async def test_forget_erases_by_id_source_and_topic_when_host_allows_it():
    """A dry run counts only. A call without arguments erases nothing."""
    async with Session.open(embedder=HashEmbedder(), settings=Settings(tools=ToolSettings(forget=True))) as session:
        tool = session.tools["evolve/forget"]
        one = await session.memories.save_insight("Ada lives in Ghent", source="ref:mail")
        await session.memories.save_decision("Write to Ada", topic="ada", reasoning="she asked")
        for arguments in ({}, {"about": None}, {"ids": [], "source": ""}):
            with pytest.raises(InvalidArgument, match="forget needs ids"):
                await session.call("evolve__forget", arguments)
        nothing = await session.call("evolve/forget", {"ids": [], "before": "2020-01-01"})
        planned = await session.call("evolve/forget", {"source": "ref:mail", "dry_run": True})
        before = await session.memories.count()
        gone = [
            await session.call("evolve/forget", {"about": "ada"}),
            await session.call("evolve/forget", {"ids": [one.id]}),
        ]

        assert "There is nothing like this." == nothing["note"]
        assert ({"insight": 1}, 2) == (planned["forgotten"], before)
        assert [{"decision": 1}, {"insight": 1}] == [answer["forgotten"] for answer in gone]
        assert 0 == await session.memories.count()
        assert tool.annotations.destructive
        assert "evolve__forget" in session.system_prompt()
        for answer in (nothing, planned, *gone):
            Draft202012Validator(tool.output_schema).validate(answer)


async def test_save_succeeds_when_memory_cannot_be_read_back(call, memories, monkeypatch):
    """An error would make a model save a second time."""

    async def fail(_ids):
        raise StoreError("the disk is gone")

    monkeypatch.setattr(memories, "_get_annotations", fail)
    first = await call("save/decision", topic="disks", decision="Buy disks", reasoning="They break")
    outcome = await call("evolve/outcome", decision_id=first["id"], outcome="SUCCESS")
    second = await call(
        "evolve/supersede", decision_id=first["id"], decision="Rent disks", reasoning="They still break"
    )

    assert "SUCCESS" == outcome["outcome"]
    assert ["id", "topic"] == list(second)
    assert 2 == await memories.count()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("save/decision", {"topic": " ", "decision": "x", "reasoning": ""}, "topic must not be empty"),
        (
            "save/decision",
            {"topic": "a", "decision": "x", "reasoning": "", "confidence": 1.5},
            "confidence must be a number",
        ),
        ("save/decision", {"topic": "a", "decision": "", "reasoning": ""}, "decision must be a string of at least 1"),
        ("save/insight", {"content": "a", "links": [{"to_id": "x", "relation": "y"}]}, "did you mean relationship"),
        ("save/insight", {"content": "\ud800"}, "content: character 1 is a lone surrogate"),
        ("evolve/outcome", {"decision_id": " ", "outcome": "FAILED", "reason": "x"}, "decision_id must not be empty"),
        ("search/recent", {"since": "yesterday"}, "since must be a date or time in ISO 8601"),
        ("search/recent", {"since": "2026"}, "since must be a date or time in ISO 8601, such as 2026-03-01"),
        ("search/recent", {"since": "0001-01-01T00:00+23:59"}, "since must lie between"),
        ("search/recent", {"limit": 51}, "limit must be an integer from 1 to 50, got 51"),
        ("search/by_context", {"query": "x", "types": ["", "decision"]}, "types must be"),
    ],
)
async def test_invalid_argument_is_named_and_nothing_is_stored(call, memories, name, arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        await call(name, **arguments)

    assert 0 == await memories.count()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("save/decision", {"topic": "a", "decision": "b", "reasoning": "c", "supersedes": "?"}),
        (
            "save/decision",
            {"topic": "a", "decision": "b", "reasoning": "c", "links": [{"to_id": "?", "relationship": "r"}]},
        ),
        ("save/checkpoint", {"summary": "s", "implements": ["?"]}),
        ("load/context", {"id": "?"}),
        ("evolve/outcome", {"decision_id": "?", "outcome": "SUCCESS"}),
        ("evolve/supersede", {"decision_id": "?", "decision": "b", "reasoning": "c"}),
    ],
)
async def test_unknown_id_error_names_similar_id(call, memories, jwt, name, arguments):
    """Nothing is stored."""
    before = await memories.count()
    wrong = json.loads(json.dumps(arguments).replace("?", jwt[0][:-1]))
    with pytest.raises(MemoryNotFound) as refused:
        await call(name, **wrong)

    assert jwt[0] in refused.value.hint
    assert before == await memories.count()


@pytest.mark.parametrize("wrong", ["auth", "인증", "decision"])
async def test_unknown_id_error_names_tools_that_return_ids(call, jwt, wrong):
    with pytest.raises(MemoryNotFound, match="search/by_context, search/by_topic and search/recent give ids"):
        await call("evolve/outcome", decision_id=wrong, outcome="SUCCESS")


# ---- searching


@pytest.mark.parametrize("query", ["why did we leave JWT?", "왜 JWT를 버렸지?"])
@pytest.mark.parametrize(("limit", "types"), [(1, None), (2, None), (5, None), (5, ["decision"])])
async def test_search_by_context_returns_failure_reason_and_successor(call, jwt, query, limit, types):
    answer = await call("search/by_context", query=query, limit=limit, types=types)
    told = json.dumps(answer["found"])

    assert "A stolen token could not be revoked" in told
    assert "Keep sessions in Redis" in told
    assert jwt[0] in told
    assert jwt[1] in told


async def test_search_by_context_links_outcome_reason_to_decision_and_successor(call, jwt):
    (found,) = (await call("search/by_context", query="Which stolen token?", types=["context"]))["found"]

    assert "A stolen token could not be revoked" == found["content"]
    assert (jwt[0], jwt[1], "Keep sessions in Redis") == (
        found["tells_outcome_of"],
        found["superseded_by"],
        found["in_its_place"],
    )


async def test_search_by_context_returns_outcome_of_decision(call, jwt):
    answer = await call("search/by_context", query="JWT for logins", types=["decision"])
    hit = next(one for one in answer["found"] if one["id"] == jwt[0])

    assert ("FAILED", "A stolen token could not be revoked") == (hit["outcome"], hit["outcome_reason"])
    assert (jwt[1], "Keep sessions in Redis") == (hit["superseded_by"], hit["in_its_place"])
    assert 0.3 < hit["relevance"] <= 1


async def test_recent_links_outcome_reason_to_decision(call, jwt):
    answer = await call("search/recent", types=["context"])

    assert [(jwt[0], jwt[1])] == [(one["tells_outcome_of"], one["superseded_by"]) for one in answer["found"]]


async def test_recent_names_current_successor_of_chain(call, jwt):
    third = await call("evolve/supersede", decision_id=jwt[1], decision="Use passkeys", reasoning="No passwords")
    answer = await call("search/recent", types=["decision"])

    assert {third["id"]: None, jwt[1]: third["id"], jwt[0]: third["id"]} == {
        one["id"]: one.get("superseded_by") for one in answer["found"]
    }


async def test_memory_tools_name_same_current_successor(call, session):
    """Along a chain and at a fork, ``superseded_by`` is equal in every answer."""
    ids = [(await call("save/decision", topic="auth", decision="Version 0", reasoning="r"))["id"]]
    for number in range(1, 4):
        ids.append(
            (await call("evolve/supersede", decision_id=ids[-1], decision=f"Version {number}", reasoning="r"))["id"]
        )
    await call("evolve/outcome", decision_id=ids[0], outcome="FAILED", reason="it broke")
    first = await call("load/context", id=ids[0])
    outcome = await call("evolve/outcome", decision_id=ids[1], outcome="PARTIAL")
    why = (await call("search/recent", types=["context"]))["found"][0]
    told = await call("load/context", id=why["id"])
    versions = (await call("search/by_topic", topic="auth"))["versions"]
    hits = (await call("search/by_context", query="Version", types=["decision"]))["found"]

    assert (ids[3], [ids[1]]) == (first["memory"]["superseded_by"], first["memory"]["successors"])
    assert f"This decision no longer holds: {ids[3]} took its place." == first["note"]
    assert ids[3] == outcome["superseded_by"]
    assert (ids[3], ids[0]) == (why["superseded_by"], why["tells_outcome_of"])
    assert (ids[3], ids[0]) == (told["memory"]["superseded_by"], told["memory"]["tells_outcome_of"])
    assert f"{ids[0]}, no longer holds: {ids[3]} took its place" in told["note"]
    expected = {ids[0]: ids[3], ids[1]: ids[3], ids[2]: ids[3], ids[3]: None}
    assert expected == {one["id"]: one.get("superseded_by") for one in versions}
    assert expected == {one["id"]: one.get("superseded_by") for one in hits}

    fork = await call("evolve/supersede", decision_id=ids[0], decision="Version 4", reasoning="r")
    again = await call("load/context", id=ids[0])

    assert f"by {ids[1]} (in whose place {ids[3]} stands): there are 2 successors now" in fork["note"]
    assert (fork["id"], {fork["id"], ids[1]}) == (
        again["memory"]["superseded_by"],
        {*again["memory"]["successors"]},
    )


@given(
    pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda pair: pair[0] > pair[1]), max_size=10),
    circle=st.booleans(),
)
def test_current_successor_matches_plain_search(pairs, circle):
    """Covers forks, joins and a cycle."""
    reader = PlainReader()
    memories = [plain_memory(f"m{number}", at=number * 60.0) for number in range(7)]
    for memory in memories:
        reader.put(memory)
    for place, (newer, older) in enumerate([*pairs, *([(0, 6)] if circle else [])]):
        reader.put_link(
            plain_link(
                f"m{newer}", f"m{older}", "supersedes", link_id=f"l{place}", type=LinkType.EVOLUTION, created_by="user"
            )
        )
    for node in range(7):
        chain = build_chain(reader, graph.find_evolution(reader, node))
        searched = graph.Successors(reader).newest([node]).get(node)

        assert (None if searched is None else f"m{searched}") == _find_current_successors(chain).get(f"m{node}")


async def test_search_skips_memory_that_was_deleted_between_reads(call, memories, jwt, monkeypatch):
    """Another process may delete a memory between the two reads of one search."""
    first, second = jwt
    beside = memories._get_annotations

    async def without_the_first(ids):
        return await beside([one for one in ids if one != first])

    async def gone(*_, **__):
        raise MemoryNotFound("gone")

    monkeypatch.setattr(memories, "_get_annotations", without_the_first)
    deleted = await call("search/recent", types=["decision"])
    monkeypatch.setattr(memories, "_get_annotations", gone)
    unread = await call("search/recent", types=["decision"])
    whole = await call("load/context", id=first)
    monkeypatch.setattr(memories, "search", gone)
    topic = await call("search/by_topic", topic="Auth")

    # The first read already returns the id of the successor, so the answer contains it although the second read fails.
    assert second == whole["memory"]["superseded_by"]
    assert "no longer holds" in whole["note"]
    for answer in (deleted, unread):
        assert [(second, None), (first, None)] == [(one["id"], one.get("superseded_by")) for one in answer["found"]]
        assert [None, None] == [one.get("in_its_place") for one in answer["found"]]
    assert "near_topics" not in topic


class CountingReader:
    """Wraps a reader and records the names of the called methods."""

    def __init__(self, reader, asked):
        self._reader, self._asked = reader, asked

    def __getattr__(self, name):
        found = getattr(self._reader, name)
        if not callable(found):
            return found

        def answered(*arguments, **keywords):
            self._asked.append(name)
            return found(*arguments, **keywords)

        return answered


async def test_number_of_reads_is_independent_of_number_of_memories(call, memories, monkeypatch):
    engine = memories._shared.engine
    read, plans, asked = engine.read, [], []

    async def counted(plan):
        plans.append(plan)
        return await read(lambda reader: plan(CountingReader(reader, asked)))

    async def questions(name, **arguments):
        plans.clear()
        asked.clear()
        answer = await call(name, **arguments)
        return answer, len(plans), len(asked)

    first = {}
    for count in (3, 30):
        for number in range(count):
            decision = await call(
                "save/decision",
                topic=f"forts {count}",
                decision=f"walls of the northern fort {number}",
                reasoning="raids",
            )
            await call("evolve/outcome", decision_id=decision["id"], outcome="FAILED", reason=f"breach {number}")
            first.setdefault(count, decision["id"])
            await call("evolve/supersede", decision_id=first[count], decision=f"towers {number}", reasoning="raids")
    monkeypatch.setattr(engine, "read", counted)
    for name, few, many, shown in (
        ("search/by_context", {"query": "walls", "limit": 3}, {"query": "walls", "limit": 30}, "found"),
        ("search/recent", {"limit": 3}, {"limit": 30}, "found"),
        ("search/by_topic", {"topic": "forts 3"}, {"topic": "forts 30"}, "versions"),
        ("load/context", {"id": first[3]}, {"id": first[30]}, "evolution"),
    ):
        less, plans_of_few, asked_of_few = await questions(name, **few)
        more, plans_of_many, asked_of_many = await questions(name, **many)

        assert 1.9 * len(less[shown]) < len(more[shown]), name
        assert plans_of_few == plans_of_many <= 3, name
        # A traversal that finds enough memories in its first round makes fewer calls, and so does a search whose
        # candidates all have known successors.
        assert asked_of_many <= asked_of_few + 2, (name, asked)


async def test_search_note_suggests_alternatives_when_nothing_matches(call, jwt):
    answer = await call("search/by_context", query="Quetzalcoatl", limit=1)
    none = await call("search/by_context", query="JWT", types=["insight"])
    recent = await call("search/recent", since="2100-01-01")

    assert ([], True) == (answer["found"], answer["note"].startswith("No clear match, and 1 weak matches"))
    assert ([], True) == (none["found"], none["note"].startswith("Nothing was found"))
    assert ([], True) == (recent["found"], "leave out types or since" in recent["note"])


async def test_searches_return_note_for_empty_store(call):
    assert "nothing saved yet" in (await call("search/recent"))["note"]
    assert [] == (await call("search/by_context", query="anything?"))["found"]
    assert "Ask search/by_context" in (await call("search/by_topic", topic="auth"))["note"]


async def test_search_by_topic_returns_versions_newest_first(call, jwt):
    answer = await call("search/by_topic", topic="auth")
    versions = {one["id"]: one for one in answer["versions"]}

    assert [jwt[1], jwt[0]] == list(versions)
    assert "A stolen token could not be revoked" == versions[jwt[0]]["outcome_reason"]
    assert (jwt[1], None) == (versions[jwt[0]]["superseded_by"], versions[jwt[0]].get("successors"))
    assert (None, None) == (versions[jwt[1]].get("superseded_by"), versions[jwt[1]].get("successors"))
    assert "forks" not in answer


async def test_supersede_note_and_search_by_topic_report_fork(call, jwt):
    other = await call("evolve/supersede", decision_id=jwt[0], decision="Use passkeys", reasoning="No passwords")
    answer = await call("search/by_topic", topic="auth")

    assert f"was superseded before, by {jwt[1]}" in other["note"]
    assert [jwt[0]] == answer["forks"]


@pytest.mark.parametrize(
    ("asked", "meant"), [("Auth Strategy", "auth_strategy"), ("auth-strategi", "auth_strategy"), ("인증", "인증 방식")]
)
async def test_search_by_topic_suggests_similar_topics(call, asked, meant):
    for topic in ("auth_strategy", "deployment", "인증 방식"):
        await call("save/decision", topic=topic, decision=f"Something about {topic}", reasoning="because")
    answer = await call("search/by_topic", topic=asked)

    assert [] == answer["versions"]
    assert meant == answer["near_topics"][0]
    assert meant in answer["note"]


async def test_long_history_is_readable_over_several_answers(call):
    """Of 25 versions, 20 are shown; the context of the last one contains the others."""
    ids = [(await call("save/decision", topic="colour", decision="Colour 0", reasoning=""))["id"]]
    for number in range(1, 25):
        answer = await call("evolve/supersede", decision_id=ids[-1], decision=f"Colour {number}", reasoning="taste")
        ids.append(answer["id"])
    shown = await call("search/by_topic", topic="colour")
    last = shown["versions"][-1]["id"]
    around = await call("load/context", id=last)
    middle = await call("load/context", id=ids[12])

    assert (20, 5) == (len(shown["versions"]), shown["older_versions"])
    assert last == ids[5]
    assert ids[0] == around["evolution"][-1]["id"]
    assert (9, 15) == (len(around["evolution"]), around["more_versions"])
    assert {ids[11], ids[13]} < {one["id"] for one in middle["evolution"]}


async def test_recent_filters_by_time_and_type(call, memories):
    """A date without a time zone is UTC."""
    for days in range(3):
        await memories.save_insight(f"fact {days}", created_at=NOON + dt.timedelta(days=days))
    await memories.save_checkpoint("stop", created_at=NOON)

    async def contents(**arguments):
        return [one["content"] for one in (await call("search/recent", **arguments))["found"]]

    assert ["fact 2", "fact 1"] == await contents(limit=2)
    assert ["fact 2", "fact 1"] == await contents(since="2026-03-02")
    assert ["fact 2"] == await contents(since="2026-03-03T14:00:00+02:00")
    assert [] == await contents(since="2026-03-03T12:00:01Z")
    assert ["stop"] == await contents(types=["checkpoint"])


async def test_search_answers_are_short_for_long_memories(call, memories):
    await memories.save_many(
        {
            "type": "decision",
            "topic": f"topic {number}",
            "content": f"{number} " + "long " * 200,
            "reasoning": "why " * 250,
        }
        for number in range(50)
    )
    answer = await call("search/by_context", query="long", limit=50)
    recent = await call("search/recent", limit=50)

    assert 50 == len(answer["found"]) == len(recent["found"])
    assert 40_000 > len(json.dumps(answer))
    assert 40_000 > len(json.dumps(recent))


async def test_searching_and_loading_change_nothing(call, memories, jwt):
    before = await memories.stats()
    await call("search/by_context", query="JWT")
    await call("search/by_topic", topic="auth")
    await call("search/recent")
    await call("load/checkpoint")
    await call("load/context", id=jwt[0])
    after = await memories.stats()

    assert before["memories"] == after["memories"]
    assert before["links"] == after["links"]


# ---- loading


async def test_load_checkpoint_returns_note_when_there_is_none(call):
    answer = await call("load/checkpoint")

    assert ["note"] == list(answer)
    assert "There is no checkpoint yet" in answer["note"]


async def test_load_checkpoint_returns_newest_checkpoint(call, jwt):
    await call("save/checkpoint", summary="older")
    await call(
        "save/checkpoint", summary="newer", open_files=["a.py", "b.py"], next_steps=["test it"], implements=[jwt[1]]
    )
    answer = await call("load/checkpoint")

    assert "newer" == answer["summary"]
    assert (["a.py", "b.py"], ["test it"], [jwt[1]]) == (
        answer["open_files"],
        answer["next_steps"],
        answer["implements"],
    )
    assert "just now" == answer["at"]
    assert "more" not in answer


async def test_load_checkpoint_stores_long_texts_under_handles_once(call, session):
    summary = "가나다 " * 500
    files = [f"directory/file_{number}.py" for number in range(200)]
    await call("save/checkpoint", summary=summary, open_files=files)
    answer = await call("load/checkpoint")
    again = await call("load/checkpoint")
    more = {one["field"]: one for one in answer["more"]}

    assert 1000 == len(answer["summary"])
    assert files[:30] == answer["open_files"]
    assert {"summary", "open_files"} == more.keys()
    assert summary == session.refs.get(more["summary"]["fd"]).text
    assert files == session.refs.get(more["open_files"]["fd"]).text.splitlines()
    assert answer["more"] == again["more"]
    assert 2 == len(session.refs)


async def test_load_context_shows_longer_beginning_when_quota_is_exhausted(memories):
    call = caller(memories, RefStore(settings=DescriptorSettings(max_bytes=10)))
    saved = await call("save/decision", topic="a", decision="x" * 9000, reasoning="y" * 2000)
    answer = await call("load/context", id=saved["id"])
    more = {one["field"]: one for one in answer["more"]}

    assert 4000 == len(answer["memory"]["content"])
    assert 2000 == len(answer["memory"]["reasoning"])
    assert "reasoning" not in more
    assert (None, 9000) == (more["content"].get("fd"), more["content"]["characters"])
    assert "no room" in more["content"]["note"]


async def test_load_checkpoint_counts_items_when_quota_is_exhausted(memories):
    call = caller(memories, RefStore(settings=DescriptorSettings(max_bytes=10)))
    await call("save/checkpoint", summary="many files", open_files=[f"f{number}" for number in range(31)])
    answer = await call("load/checkpoint")

    assert [f"f{number}" for number in range(30)] == answer["open_files"]
    assert [(None, "31 items, of which the first 30 are shown")] == [
        (one.get("fd"), one["note"]) for one in answer["more"]
    ]


async def test_load_checkpoint_truncates_long_items(memories, call, session):
    """The full texts are under a handle, or reported as missing."""
    steps = [f"{number}: {'test it well, ' * 30}" for number in range(3)]
    await call("save/checkpoint", summary="to do", next_steps=steps)
    answer = await call("load/checkpoint")
    full = await caller(memories, RefStore(settings=DescriptorSettings(max_bytes=10)))("load/checkpoint")
    (more,) = answer["more"]

    assert [160] * 3 == [len(one) for one in answer["next_steps"]]
    assert f"3 items, of which the first 3 are shown, shortened; read_fd with fd={more['fd']}" in more["note"]
    assert "\n".join(one.strip() for one in steps) == session.refs.get(more["fd"]).text.replace(" \n", "\n").strip()
    assert [(None, "3 items, of which the first 3 are shown, shortened")] == [
        (one.get("fd"), one["note"]) for one in full["more"]
    ]


async def test_load_context_returns_memory_with_outcomes_links_and_neighbours(call, jwt):
    saved = await call(
        "save/insight", content="Tokens live long", links=[{"to_id": jwt[0], "relationship": "explains"}]
    )
    answer = await call("load/context", id=jwt[0])
    memory = answer["memory"]

    assert ("Use JWT for logins", "No state on the server") == (memory["content"], memory["reasoning"])
    assert ("FAILED", "A stolen token could not be revoked") == (memory["outcome"], memory["outcome_reason"])
    assert (jwt[1], None) == (memory["superseded_by"], memory.get("successors"))
    assert f"{jwt[1]} took its place" in answer["note"]
    assert [jwt[1]] == [one["id"] for one in answer["evolution"]]
    assert [(saved["id"], "explains")] == [(link["from_id"], link["relationship"]) for link in answer["links"]]
    assert ["Tokens live long"] == [one["content"] for one in answer["around"]]


@pytest.mark.parametrize("kind", ["insight", "checkpoint", "context"])
async def test_load_context_supports_every_memory_type(call, memories, kind):
    if kind == "insight":
        saved = await memories.save_insight("a fact", category="speed", tags=["t"], source="a page")
    elif kind == "checkpoint":
        saved = await memories.save_checkpoint("a fact", open_files=["f"], next_steps=["s"])
    else:
        saved = await memories.save_context("a fact", source="a page", topic="a topic")
    memory = (await call("load/context", id=saved.id))["memory"]

    assert ("a fact", None, None) == (memory["content"], memory.get("reasoning"), memory.get("outcome"))
    assert ("speed" if kind == "insight" else None) == memory.get("category")
    assert (["f"] if kind == "checkpoint" else None) == memory.get("open_files")
    assert (None if kind == "checkpoint" else "a page") == memory.get("source")


async def test_load_context_returns_stored_evidence_text(call, memories, session):
    """A long text is under a handle."""
    resolving = memories._resolving(
        lambda source: (
            (f"{source}@1", {"ref:s": "short", "ref:l": "long " * 900}[source]) if source.startswith("ref:") else None
        )
    )
    saved = await caller(resolving, session.refs)(
        "save/decision", topic="t", decision="d", reasoning="r", evidence=["ref:s", "ref:l", "https://example.org"]
    )
    answer = await call("load/context", id=saved["id"])

    assert [("ref:s@1", "short"), ("https://example.org", None)] == [
        (one["source"], one.get("content")) for one in answer["evidence"] if one["source"] != "ref:l@1"
    ]
    assert "long " * 900 == session.refs.get(answer["more"][0]["fd"]).text


async def test_load_context_stores_long_and_further_evidence_under_handles(call, session):
    long = "the minutes of the meeting\n" * 60
    pieces = [long, *(f"https://example.org/{number}" for number in range(1, 10)), "the eleventh " * 40, "the last"]
    saved = await call("save/decision", topic="t", decision="d", reasoning="r", evidence=pieces)
    answer = await call("load/context", id=saved["id"])
    more = {one["field"]: one for one in answer["more"]}
    sources = [one["source"] for one in answer["evidence"]]

    assert (400, "…") == (len(sources[0]), sources[0][-1])
    assert pieces[1:10] == sources[1:]
    assert 2 == answer["more_evidence"]
    assert {"evidence[0].source", "evidence"} == more.keys()
    assert long.strip() == session.refs.get(more["evidence[0].source"]["fd"]).text.strip()
    assert "2 more than the 10 that are shown" in more["evidence"]["note"]
    rest = session.refs.get(more["evidence"]["fd"]).text

    assert all(piece.strip() in rest for piece in pieces[10:])


async def test_load_context_stores_texts_of_omitted_evidence_under_handle(memories, session):
    resolving = memories._resolving(lambda source: (f"{source}@1", f"text of {source}") if "ref:" in source else None)
    call = caller(resolving, session.refs)
    saved = await call(
        "save/decision", topic="t", decision="d", reasoning="r", evidence=[f"ref:r{number}" for number in range(12)]
    )
    answer = await call("load/context", id=saved["id"])
    rest = session.refs.get(answer["more"][0]["fd"]).text

    assert "evidence[10] ref:r10@1:\ntext of ref:r10\nevidence[11] ref:r11@1:\ntext of ref:r11" == rest


async def test_load_context_counts_omitted_evidence_when_quota_is_exhausted(memories):
    call = caller(memories, RefStore(settings=DescriptorSettings(max_bytes=10)))
    saved = await call(
        "save/decision", topic="t", decision="d", reasoning="r", evidence=[f"page {number}" for number in range(12)]
    )
    answer = await call("load/context", id=saved["id"])

    assert [(None, "2 more than the 10 that are shown: there is no room left for another fd")] == [
        (one.get("fd"), one["note"]) for one in answer["more"]
    ]


async def test_load_context_gives_handles_for_long_fields_of_insight(call, session):
    other = (await call("save/insight", content="another fact"))["id"]
    texts = {"category": "kind " * 300, "source": "a page " * 300, "links[0].reason": "because " * 100}
    saved = await call(
        "save/insight",
        content=f"a fact about {' '.join(f'1-{number}' for number in range(1, 200))}",
        category=texts["category"],
        source=texts["source"],
        links=[{"to_id": other, "relationship": "explains", "reason": texts["links[0].reason"]}],
    )
    answer = await call("load/context", id=saved["id"])
    more = {one["field"]: one["fd"] for one in answer["more"]}

    for field, text in texts.items():
        assert text.strip() == session.refs.get(more[field]).text.strip()
    assert (1000, 1000, 160) == (
        len(answer["memory"]["category"]),
        len(answer["memory"]["source"]),
        len(answer["links"][0]["reason"]),
    )


async def test_load_context_stores_omitted_links_under_handle(call, session):
    middle = (await call("save/insight", content="the middle"))["id"]
    ids = {
        (
            await call(
                "save/insight", content=f"fact {number}", links=[{"to_id": middle, "relationship": f"likes {number}"}]
            )
        )["id"]
        for number in range(30)
    }
    answer = await call("load/context", id=middle)
    (rest,) = (one for one in answer["more"] if one["field"] == "links")
    text = session.refs.get(rest["fd"]).text

    assert 20 == len(answer["links"])
    assert answer["more_links"] == len(text.splitlines())
    assert ids <= {link["from_id"] for link in answer["links"]} | {one.split()[0] for one in text.splitlines()}


async def test_load_context_gives_handles_for_long_and_early_outcomes(call, session):
    saved = (await call("save/decision", topic="t", decision="d", reasoning="r"))["id"]
    for number in range(12):
        await call("evolve/outcome", decision_id=saved, outcome="PARTIAL", reason=f"{number}: " + "so it came " * 60)
    answer = await call("load/context", id=saved)
    more = {one["field"]: one["fd"] for one in answer["more"]}

    assert 10 == len(answer["memory"]["outcomes"])
    assert {"outcomes", *(f"outcomes[{number}].reason" for number in range(2, 11))} <= more.keys()
    assert 2 == session.refs.get(more["outcomes"]).text.count("PARTIAL: ")
    assert session.refs.get(more["outcomes[5].reason"]).text.startswith("5: so it came")


async def test_save_decision_replaces_handles_in_text_and_keeps_them_in_evidence(session):
    await session.observe('<ref id="plan">Shield first</ref>')
    saved = await session.call(
        "save/decision",
        {
            "topic": "defence",
            "decision": {"$ref": "ref:plan"},
            "reasoning": "raids",
            "confidence": "0.9",
            "evidence": [{"$ref": "ref:plan"}],
        },
    )
    answer = await session.call("load/context", {"id": saved["id"]})

    assert ("Shield first", 0.9) == (answer["memory"]["content"], answer["memory"]["confidence"])
    assert [{"source": "ref:plan@1", "content": "Shield first"}] == answer["evidence"]


# ---- evolving


async def test_set_outcome_keeps_earlier_outcomes(call, memories):
    saved = await call("save/decision", topic="t", decision="Deploy on Friday", reasoning="We are brave")
    await call("evolve/outcome", decision_id=saved["id"], outcome="SUCCESS")
    answer = await call("evolve/outcome", decision_id=saved["id"], outcome="FAILED", reason="It broke on Saturday")

    assert ("FAILED", ["SUCCESS"]) == (answer["outcome"], answer["outcomes_before"])
    assert "still stands" in answer["note"]
    assert "FAILED" == (await memories.get(saved["id"])).metadata.outcome


async def test_set_outcome_requires_reason_for_failure(call, memories, jwt):
    with pytest.raises(InvalidArgument, match="a FAILED outcome needs a reason"):
        await call("evolve/outcome", decision_id=jwt[1], outcome="FAILED")

    assert (await memories.get(jwt[1])).metadata.outcome is None


async def test_set_outcome_and_supersede_reject_id_of_other_memory_type(call):
    """The error names the argument and the tools that return decisions."""
    saved = (await call("save/checkpoint", summary="halfway"))["id"]
    refused = " must be the id of a decision, and 'checkpoint_.*' is of the type checkpoint .*search/by_topic gives"
    with pytest.raises(InvalidArgument, match=f"^decision_id{refused}"):
        await call("evolve/outcome", decision_id=saved, outcome="SUCCESS")
    with pytest.raises(InvalidArgument, match=f"^decision_id{refused}"):
        await call("evolve/supersede", decision_id=saved, decision="b", reasoning="c")
    with pytest.raises(InvalidArgument, match=f"^supersedes{refused}"):
        await call("save/decision", topic="a", decision="b", reasoning="c", supersedes=saved)


async def test_supersede_keeps_topic_and_returns_replaced_text(call, memories, jwt):
    answer = await call("evolve/supersede", decision_id=jwt[1], decision="Use passkeys", reasoning="", confidence=0.9)
    memory = await memories.get(answer["id"])

    assert ("auth", 0.9) == (memory.topic, memory.metadata.confidence)
    assert ("auth", "Keep sessions in Redis") == (answer["topic"], answer["replaced"])


# ---- formatting


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "just now"),
        (59, "just now"),
        (60, "1 minute ago"),
        (7199, "1 hour ago"),
        (3 * 86400, "3 days ago"),
        (20 * 86400, "2 weeks ago"),
        (400 * 86400, "1 year ago"),
    ],
)
def test_age_uses_largest_unit(seconds, words):
    assert words == format_age(NOON, NOON + dt.timedelta(seconds=seconds))


def test_beginning_and_line_mark_truncated_text():
    assert "abc" == truncate("abc", 3)
    assert "ab…" == truncate("abcd", 3)
    assert "a b" == truncate_line("a\n\n   b", 3)
    assert "a b…" == truncate_line("a\nb c", 4)


@given(st.lists(st.integers(0, 4000), max_size=60), st.integers(0, 8000))
def test_divided_characters_fill_the_budget(lengths, max_chars):
    """Texts are only cut if the budget is used, except for the rest that is too small to be divided."""
    most = divide_chars(lengths, max_chars)
    used = sum(min(length, most) for length in lengths)

    assert most >= MIN_SEARCH_TEXT_CHARS
    assert used <= max(max_chars, MIN_SEARCH_TEXT_CHARS * len(lengths))
    if any(length > most for length in lengths):
        assert used > max_chars - len(lengths)


async def test_search_by_context_shows_newer_memory_before_outdated_one(call, session):
    """The filter and the limit of the call hold for the newer memory, too."""
    day = dt.timedelta(days=1)
    old = await session.memories.save_insight("The gateway listens on port 7080", created_at=NOON - 2 * day)
    new = await session.memories.save_insight("We moved the gateway to port 7443", created_at=NOON - day)

    query = "Which port does the gateway listen on?"
    both = await call("search/by_context", query=query)
    one = await call("search/by_context", query=query, limit=1)

    assert [new.id, old.id] == [found["id"] for found in both["found"]]
    assert [new.id] == [found["id"] for found in one["found"]]
    assert [] == (await call("search/by_context", query=query, types=["decision"]))["found"]


async def test_search_by_context_shows_passage_and_fills_budget(call, session):
    filler = "Nothing of interest was said about the weather or about the lunch. "
    answer = "The boiler in the cellar needs a pressure of 1.4 bar, and somebody has to look at it."
    await session.memories.save_context(filler * 60 + answer + " " + filler * 60, topic="cellar")
    await session.memories.save_context(filler * 20 + answer, topic="attic")

    found = (await call("search/by_context", query="What pressure does the boiler need?"))["found"]

    assert 2 == len(found)
    for one in found:
        assert answer in one["content"]
        assert len(one["content"]) > 1_000


def says_nothing(value):
    """Return True if the value contains an empty value at any depth."""
    if isinstance(value, dict):
        return any(map(says_nothing, value.values()))
    if isinstance(value, list):
        return any(one in (None, "", []) or says_nothing(one) for one in value)
    return value in (None, "")


async def test_answers_omit_empty_fields_except_search_results(call, jwt):
    answers = [
        await call("save/decision", topic="x", decision="d", reasoning=""),
        await call("save/insight", content="a fact"),
        await call("load/checkpoint"),
        await call("save/checkpoint", summary="s"),
        await call("load/checkpoint"),
        await call("load/context", id=jwt[0]),
        await call("search/by_topic", topic="auth"),
        await call("search/by_context", query="tokens"),
        await call("search/recent"),
        await call("evolve/outcome", decision_id=jwt[1], outcome="SUCCESS"),
        await call("evolve/supersede", decision_id=jwt[1], decision="d", reasoning=""),
    ]

    assert [] == [answer for answer in answers if says_nothing(answer)]
    assert [] == [answer for answer in answers if [] in answer.values()]
    assert [] == (await call("search/by_topic", topic="nowhere"))["versions"]
    assert [] == (await call("search/recent", since="2999-01-01"))["found"]
