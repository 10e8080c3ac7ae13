"""Every tool of a session, given arguments that are right, a little wrong, and hostile."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mama_structs import HashEmbedder, Session
from mama_structs.errors import MamaStructsError
from mama_structs.memory.linking import normalised
from mama_structs.settings import DescriptorSettings, Settings
from mama_structs.testing.fake_node import FakeNode

HANDLES = ["ref:plan", "ref:plan@1", "ref:plam", "fd:1", "fd:99", "plan"]
ENTITY_ID = re.compile(r"\A[0-9]{1,2}-[0-9]{1,3}\Z")
CONTROL = "".join(map(chr, range(32))) + "\x7f\x85\u2028\ufeff\u202e"
BAD_TEXTS = [
    "",
    " \n",
    "\0",
    CONTROL,
    "\ud800",
    "a\udfffb",
    "null",
    "[]",
    "{}",
    '{"$ref": "ref:plan"}',
    "x" * 200_000,
    "9" * 5000,
]


class World:
    """One session for all examples of a module, on an event loop of its own."""

    def __init__(self, runner, session, node):
        self.runner = runner
        self.session = session
        self.node = node
        self.ids = []
        self.validators = {
            name: Draft202012Validator(tool.output_schema)
            for name, tool in session.tools.items()
            if tool.output_schema is not None
        }

    def call(self, name, arguments):
        return self.runner.run(self.session.call(name, arguments))

    def stored(self):
        """Everything that a refused call must leave as it was."""
        figures = self.runner.run(self.session.memories.stats())
        return figures["memories"], figures["links"], len(self.session.refs)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    chosen = Settings(descriptors=DescriptorSettings(root=str(tmp_path_factory.mktemp("exports"))))
    with asyncio.Runner() as runner:

        async def opened(stack):
            node = await stack.enter_async_context(FakeNode.world(seed=1, players=12))
            session = await stack.enter_async_context(
                Session.open(structs=node.url, embedder=HashEmbedder(), settings=chosen)
            )
            await session.observe('<ref id="plan">Step one\nStep two</ref>')
            session.refs.add("a long text\n" * 50)
            return World(runner, session, node)

        stack = contextlib.AsyncExitStack()
        made = runner.run(opened(stack))
        first = made.call("save/decision", {"topic": "auth", "decision": "Use JWT", "reasoning": "simple"})
        made.ids = [
            first["id"],
            made.call("evolve/supersede", {"decision_id": first["id"], "decision": "Use sessions", "reasoning": "x"})[
                "id"
            ],
            made.call("save/insight", {"content": "Tokens cannot be revoked"})["id"],
            made.call("save/checkpoint", {"summary": "Sessions work"})["id"],
            "decision_nothing_1700000000000_00000000",
        ]
        yield made
        findings = runner.run(made.session.memories.check())
        runner.run(stack.aclose())
    assert [] == findings


def from_schema(schema, ids, name=""):
    """Return a strategy for what a JSON Schema accepts, with ids and handles that exist where one is wanted."""
    inner = functools.partial(from_schema, ids=ids)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*(inner(one, name=name) for one in schema["anyOf"]))
    makers = {
        "object": lambda: objects_for(schema, ids),
        "array": lambda: st.lists(
            inner(schema.get("items", {}), name=name), min_size=schema.get("minItems", 0), max_size=4
        ),
        "string": lambda: texts_for(schema, name, ids),
        "integer": lambda: st.integers(schema.get("minimum", -3), schema.get("maximum", 60)),
        "number": lambda: st.floats(schema.get("minimum", -1e9), schema.get("maximum", 1e9)),
        "boolean": st.booleans,
        "null": st.none,
    }
    return makers.get(schema.get("type"), lambda: st.none() | st.booleans() | st.text(max_size=5))()


def objects_for(schema, ids):
    properties = {key: from_schema(one, ids, key) for key, one in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {key: one for key, one in properties.items() if key in required},
        optional={key: one for key, one in properties.items() if key not in required},
    )


def texts_for(schema, name, ids):
    texts = st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 60), 60))
    known = {
        **dict.fromkeys(["id", "to_id", "decision_id", "supersedes", "implements"], st.sampled_from(ids)),
        **dict.fromkeys(["fd", "ref_id", "evidence"], st.sampled_from(HANDLES)),
        "since": st.datetimes().map(lambda moment: moment.isoformat()) | st.dates().map(str),
        "relationship": st.sampled_from(["refines", "depends on", "모순"]),
        "query": st.sampled_from(["why did we leave JWT?", "지난주에 뭘 정했지?", "last week", "Step"]),
    }
    if name in known:
        return known[name] | texts
    return st.from_regex(ENTITY_ID) | texts if name.endswith("_id") else texts


def nested(depth, leaf):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


junk = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, 10**400, -1, 0, 1.5, 0.7, "0.7", "3", "true", "high"])
    | st.sampled_from(BAD_TEXTS)
    | st.text(alphabet=st.characters(), max_size=10)
    | st.lists(st.none() | st.text(max_size=5) | st.integers(), max_size=3)
    | st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3)
    | st.sampled_from([5, 150, 5000]).map(lambda depth: nested(depth, "deep"))
    | st.sampled_from([{"$ref": "ref:plan"}, {"$ref": "ref:none"}, [{"$ref": "fd:1"}], {"to_id": None}, "[" * 10_000])
)
wrong_names = st.sampled_from(
    ["decisionId", "Topic", "memories", "refs", "store", "ctx", "self", "", "\ud800", "__class__", "extra"]
)


@st.composite
def broken(draw, right):
    """Return arguments of which some were replaced, renamed, added or left out."""
    given = dict(draw(right))
    for _ in range(draw(st.integers(1, 3))):
        what = draw(st.sampled_from(["replace", "replace", "inside", "text", "leave out", "add", "rename"]))
        name = draw(st.sampled_from(sorted(given))) if given else None
        if name is None or what == "add":
            given[draw(wrong_names)] = draw(junk)
        elif what == "replace":
            given[name] = draw(junk)
        elif what == "inside":
            given[name] = _changed_inside(given[name], draw(junk))
        elif what == "text":
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                given[name] = json.dumps(given[name])
        elif what == "leave out":
            del given[name]
        else:
            given[name.title().replace("_", "")] = given.pop(name)
    return given


def _changed_inside(value, other):
    if isinstance(value, list):
        return [*value, other]
    if isinstance(value, dict) and value:
        return {**value, next(iter(value)): other}
    return [other]


def check_call(world, name, arguments):
    """Call a tool, and see that it answers as it promised, or refuses and leaves everything as it was."""
    before = world.stored()
    try:
        answer = world.call(name, arguments)
    except MamaStructsError as error:
        str(error).encode()
        assert before == world.stored(), f"{name} was refused and stored something"
        return None
    json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()
    if name in world.validators and not (isinstance(answer, str) and answer.startswith("<fd_result")):
        world.validators[name].validate(answer)
    if world.session.tools[name].annotations.read_only:
        assert before[:2] == world.stored()[:2]
    return answer


def calls_of(world, *, wrong):
    """Return a strategy for a tool's name and its arguments."""
    tools = {name: from_schema(tool.input_schema, world.ids) for name, tool in world.session.tools.items()}
    return st.one_of(*(st.tuples(st.just(name), broken(right) if wrong else right) for name, right in tools.items()))


def test_a_session_has_all_kinds_of_tools(world):
    """Memory tools, tools for refs, and tools of the Structs chain are called below."""
    assert {"save/decision", "search/recent", "read_fd", "fd_to_file"} <= set(world.session.tools)
    assert any(name.startswith("structs_") for name in world.session.tools)


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_no_arguments_do_harm(world, wrong):
    """A call is answered in the form that was promised, or refused with one of our errors and nothing stored."""

    @settings(max_examples=settings().max_examples * 3 // 5)
    @given(calls=st.lists(calls_of(world, wrong=wrong), min_size=1, max_size=4))
    def hold(calls):
        for name, arguments in calls:
            check_call(world, name, arguments)

    hold()

    assert [] == world.runner.run(world.session.memories.check())


@pytest.mark.parametrize("arguments", [[], "text", 5, [["topic", "a"]], {5: "x"}, {None: None}, {"topic": object()}])
def test_arguments_that_are_no_object_of_json_do_no_harm(world, arguments):
    """What no JSON can be is refused like any other."""
    for name in world.session.tools:
        check_call(world, name, arguments)


DECISIONS = st.fixed_dictionaries(
    {
        "topic": st.text(min_size=1, max_size=30).filter(str.strip),
        "decision": st.text(min_size=1, max_size=80).filter(str.strip),
        "reasoning": st.text(max_size=80),
    },
    optional={
        "confidence": st.floats(0, 1),
        "implements": st.lists(st.integers(0, 3), max_size=3),
        "links": st.lists(
            st.fixed_dictionaries(
                {
                    "to_id": st.integers(0, 3),
                    "relationship": st.sampled_from(["Refines", "refines", "depends on", "모순 "]),
                },
                optional={
                    "confidence": st.floats(0, 1),
                    "reason": st.none() | st.text(min_size=1, max_size=20).filter(str.strip),
                    "tags": st.lists(st.text(min_size=1, max_size=5).filter(str.strip), max_size=2),
                },
            ),
            max_size=3,
        ),
        "evidence": st.lists(st.text(min_size=1, max_size=20).filter(str.strip), max_size=3),
    },
)


@settings(max_examples=settings().max_examples * 2 // 5)
@given(data=st.data())
def test_a_decision_is_stored_exactly_as_it_was_given(world, data):
    """Texts to the letter, topics and words in their normal form, and of equal links the surest."""
    given_ = data.draw(DECISIONS)
    arguments = json.loads(json.dumps(given_))
    arguments["implements"] = [world.ids[place] for place in given_.get("implements", [])]
    arguments["links"] = [{**one, "to_id": world.ids[one["to_id"]]} for one in given_.get("links", [])]
    answer = world.call("save/decision", arguments)
    memory = world.runner.run(world.session.memories.get(answer["id"]))
    links = [one for one in world.runner.run(world.session.memories.links_of(memory.id)) if one.created_by == "llm"]
    wanted = {(one, "implements"): 1.0 for one in arguments["implements"]}
    for one in arguments["links"]:
        key = (one["to_id"], normalised(one["relationship"].strip()))
        wanted[key] = max(one.get("confidence", 0.8), wanted.get(key, 0.0))

    assert unicodedata.normalize("NFC", given_["topic"]).strip() == memory.topic
    assert given_["decision"] == memory.content
    assert given_["reasoning"] == memory.metadata.reasoning
    assert given_.get("confidence", 0.7) == memory.metadata.confidence
    assert tuple(given_.get("evidence", ())) == memory.evidence
    assert wanted == {(one.to_id, normalised(one.metadata.original_relationship)): one.confidence for one in links}


@settings(max_examples=settings().max_examples * 2 // 5)
@given(
    summary=st.text(min_size=1, max_size=80).filter(str.strip),
    open_files=st.lists(st.text(min_size=1, max_size=20).filter(str.strip), max_size=4),
    next_steps=st.lists(st.text(min_size=1, max_size=20).filter(str.strip), max_size=4),
)
def test_a_checkpoint_comes_back_exactly_as_it_was_given(world, summary, open_files, next_steps):
    """What save/checkpoint is given, load/checkpoint gives back."""
    saved = world.call("save/checkpoint", {"summary": summary, "open_files": open_files, "next_steps": next_steps})
    loaded = world.call("load/checkpoint", {})

    assert (saved["id"], summary, open_files, next_steps) == (
        loaded["id"],
        loaded["summary"],
        loaded.get("open_files", []),
        loaded.get("next_steps", []),
    )
