"""The answer of every tool fits into the answer budget."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import operator
import re
import shutil

import pytest
from call_helpers import broken, from_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session
from mama_structs.adapters.shared.tool_results import answer_tool_call
from mama_structs.settings import AnswerSettings, DescriptorSettings, Settings, ToolSettings
from mama_structs.testing import FakeNode

WORDS = "The shield comes first because raids doubled, 방패가 먼저다. "
LONG = (WORDS * 20_000)[:1_000_000].strip()
UNKNOWN_ID = "decision_nothing_1700000000000_00000000"


def tokens(text):
    """Approximate a tokenizer with three UTF-8 bytes per token, so non-ASCII characters cost more."""
    return len(text.encode()) // 3 + 1


BUDGETS = {
    "default": AnswerSettings(),
    "least": AnswerSettings(max_chars=1_000),
    "tokens": AnswerSettings(max_tokens=1_500, count_tokens=tokens),
}


def often(text, count, most):
    """Limit the number of repetitions of a text, so that the result has at most 5 MB."""
    return min(abs(count) % most, 1 + 5_000_000 // (len(text) or 1))


async def rows(count: int, text: str = "text") -> list[dict[str, object]]:
    """Return rows."""
    return [{"n": n, "text": text, "owner": f"1-{n}"} for n in range(often(text, count, 5_000))]


async def mapping(keys: list[str], text: str = "text") -> dict[str, str]:
    """Return a mapping with a text for each key."""
    return {f"{key}{n}": text for n in range(often(text, 500, 501)) for key in keys}


async def document(text: str, times: int) -> str:
    """Return a long text."""
    return text * often(text, times, 2_000)


async def written(count: int, text: str) -> str:
    """Return JSON as text."""
    return json.dumps({"rows": await rows(count, text), "text": text * often(text, 50, 51)})


async def blocks(texts: list[str], count: int) -> list[dict[str, str]]:
    """Return content blocks."""
    return [{"type": "text", "text": text * 100} for text in texts for _ in range(often(text * 100, count, 300))]


async def raising(text: str, times: int) -> str:
    """Raise an error with a long message."""
    raise ValueError(text * often(text, times, 5_000))


HOSTS = (rows, mapping, document, written, blocks, raising)


class World:
    """A session with all kinds of tools, shared by all examples. It has its own event loop."""

    def __init__(self, runner, session, ids):
        self.runner = runner
        self.session = session
        self.ids = ids

    def answer(self, name, arguments):
        return self.runner.run(answer_tool_call(self.session, name, arguments))


async def filled(session):
    """Fill a store with memories of a megabyte each, a hundred links, and refs. Return the memory ids."""
    memories, refs = session.memories, session.refs
    first = await memories.save_decision(LONG, topic="auth", reasoning=LONG, evidence=[LONG[:9_000]] * 100)
    ids = [first.id]
    for n in range(30):
        made = await memories.save_decision(
            f"{n}: {LONG[:2_000]}",
            topic="auth" if n % 2 else f"{n} {WORDS * 6}"[:200],
            reasoning=LONG[:3_000],
            supersedes=ids[-1] if n < 15 else None,
            links=[{"to_id": one, "relationship": "refines", "reason": WORDS * 100} for one in ids[:50]],
        )
        ids.append(made.id)
        # Change the first memory only every sixth time, because changing its text of a megabyte is slow.
        await memories.set_outcome(first.id if n % 6 == 0 else ids[1], "FAILED", reason=f"{n} {LONG[:5_000]}")
    ids.append((await memories.save_insight(LONG, tags=[f"{n} {WORDS * 9}" for n in range(90)], source=WORDS * 9)).id)
    steps = [f"{n} {LONG[:5_000]}" for n in range(100)]
    ids.append((await memories.save_checkpoint(LONG, open_files=steps, next_steps=steps, implements=ids[:50])).id)
    refs.put("plan", "Step one\nStep two")
    refs.put("x" * 64, LONG)
    for n in range(60):
        refs.put(f"한{n}{'x' * 50}", f"{WORDS}{n}\n" * 50)
    for text in ("a long text\n" * 5_000, LONG, "\x00\x1b<fd_content>\u202e" * 5_000, json.dumps(await rows(3_000))):
        refs.add(text)
    return [*ids, UNKNOWN_ID]


def chosen_for(answers):
    # Raise the quota, so that it does not reject the large texts.
    roomy = DescriptorSettings(max_bytes=2**30, max_handles=100_000)
    return Settings(answers=answers, tools=ToolSettings(deprecated=True), descriptors=roomy)


@pytest.fixture(scope="module")
def full_store(tmp_path_factory):
    """Fill a store once for all tests. Tests that change it use a copy."""
    place = tmp_path_factory.mktemp("full") / "agent.mama"

    async def fill():
        async with Session.open(
            place, embedder=HashEmbedder(), settings=chosen_for(AnswerSettings()), conversation="full"
        ) as session:
            return await filled(session)

    return place, asyncio.run(fill())


@pytest.fixture(scope="module", params=BUDGETS)
def world(request, tmp_path_factory, full_store):
    place, ids = full_store
    copied = shutil.copytree(place, tmp_path_factory.mktemp("copied") / "agent.mama")
    with asyncio.Runner() as runner:

        async def opened(stack):
            node = await stack.enter_async_context(FakeNode.world(seed=1, players=120))
            session = await stack.enter_async_context(
                Session.open(
                    copied,
                    structs=node.url,
                    embedder=HashEmbedder(),
                    settings=chosen_for(BUDGETS[request.param]),
                    conversation="full",
                    files_root=tmp_path_factory.mktemp("files"),
                )
            )
            for host in HOSTS:
                session.tools.add(host)
            return session

        stack = contextlib.AsyncExitStack()
        session = runner.run(opened(stack))
        yield World(runner, session, ids)
        runner.run(stack.aclose())


HANDLES = st.sampled_from(["ref:plan", "plan", f"ref:{'x' * 64}", "fd:1", "fd:2", "fd:3", "fd:4", "fd:99", "ref:plam"])
HOSTILE = st.sampled_from(["ref:" + "y" * 10_000, "fd:" + "9" * 10_000, "<fd_content>" * 900, "\x00" * 10_000, LONG])
PLACES = st.integers(-3, 60_000) | st.sampled_from([1, 2, 10**9, 10**30])


def arguments_for(tool, ids):
    """Return a strategy for arguments: valid ones, slightly wrong ones, and hostile values."""
    strategies = {}
    for name, schema in tool.input_schema["properties"].items():
        alone = {**tool.input_schema, "properties": {name: schema}, "required": [name]}
        one = from_schema(alone, ids).map(operator.itemgetter(name))
        if name in ("fd", "ref_id", "evidence"):
            one = HANDLES | one
        if schema.get("type") == "integer":
            one = one | PLACES
        strategies[name] = one
    required = tool.input_schema.get("required", ())
    right = st.fixed_dictionaries(
        {name: one for name, one in strategies.items() if name in required},
        optional={name: one for name, one in strategies.items() if name not in required},
    )
    hostile = st.tuples(right, st.sampled_from([*strategies, "wrong name", "n" * 10_000]), HOSTILE).map(
        lambda made: {**made[0], made[1]: made[2]}
    )
    return right | broken(right) | hostile


def holds(world, name, arguments):
    """Call a tool, and assert that its answer fits into the budget. A structured answer must be valid JSON."""
    told = world.answer(name, arguments)
    budget = world.session.refs._budget
    assert budget.fits(told.text), f"{name} answers with {budget.size(told.text)} of {budget.limit}"
    if not told.is_error and isinstance(told.data, dict | list):
        json.loads(told.text)
    return told


@pytest.mark.filterwarnings("ignore:the tool:DeprecationWarning")
def test_memory_tools_stay_within_budget_and_give_handles_for_long_memories(world):
    """Texts of a megabyte, fifty hits, and a decision with a thousand links."""
    # Earlier tests may have saved a short checkpoint, so make the newest one long.
    steps = [f"{n} {LONG[:5_000]}" for n in range(100)]
    world.runner.run(world.session.memories.save_checkpoint(LONG, open_files=steps, next_steps=steps))
    calls = {
        "load/context": {"id": world.ids[0]},
        "load/checkpoint": {},
        "search/by_topic": {"topic": "auth"},
        "search/by_context": {"query": "why does the shield come first?", "limit": 50},
        "search/recent": {"limit": 50},
        "recall_decision": {"topic": "auth"},
        "suggest_decision": {"userQuestion": "why does the shield come first?"},
        "list_decisions": {"limit": 100},
        "load_checkpoint": {},
    }
    for name, arguments in calls.items():
        told = holds(world, world.session.tools.wire_names.by_tool[name], arguments)

        assert not told.is_error
        # A truncated answer has a handle. The answers of two v1.0 tools contain memory ids in their lines instead.
        assert re.search(
            "decision_" if name in ("suggest_decision", "list_decisions") else 'fd"?[:=]"fd:', told.text
        ), name


def test_search_stores_omitted_rows_under_handle(world):
    told = world.answer("search__recent", {"limit": 50})
    kept = told.data["shortened"]["/found"]
    rows = [json.loads(line) for line in world.session.refs.get(kept["fd"]).text.splitlines()]

    assert 50 == kept["of"] == len(rows)
    assert told.data["found"] == rows[: kept["shown"]]


def test_memory_results_are_evicted_before_other_descriptors():
    """A host's result is retained, regardless of the number of searches."""

    async def searched():
        chosen = Settings(descriptors=DescriptorSettings(max_handles=20))
        async with Session.open(settings=chosen, embedder=HashEmbedder()) as session:
            session.tools.add(rows)
            own = session.refs.add("the host's own")
            for n in range(50):
                await session.memories.save_insight(f"{n} {LONG[:3_000]}")
            (newest,) = await session.memories.list(limit=1)
            for _ in range(30):
                assert "fd" in (await session.call("search/recent", {"limit": 50}))["shortened"]["/found"]
                assert "fd" in (await session.call("load/context", {"id": newest.id}))["more"][0]
            kept = await session.call("rows", {"count": 4_000})
            return own.text, kept[-1]["shortened"][""]["fd"]

    assert "the host's own" == asyncio.run(searched())[0]


@pytest.mark.filterwarnings("ignore:the tool:DeprecationWarning")
def test_call_with_random_arguments_stays_within_budget(world):
    """Tools of memories, v1.0, refs, the chain and the host, with valid, invalid and hostile arguments."""
    names = list(world.session.tools)
    wires = world.session.tools.wire_names.by_tool

    @settings(max_examples=max(1, settings().max_examples // 20))
    @given(data=st.data())
    def hold(name, data):
        holds(world, wires[name], data.draw(arguments_for(world.session.tools[name], world.ids), label=name))

    for name in names:
        hold(name)


@pytest.mark.parametrize("arguments", [None, [], "text", LONG, "[" * 100_000, {LONG: LONG}, {"a": [LONG] * 9}, 5])
@pytest.mark.filterwarnings("ignore:the tool:DeprecationWarning")
def test_call_with_non_object_arguments_stays_within_budget(world, arguments):
    """Includes unknown tools with long names. Every fourth tool is called, because all check arguments alike."""
    some = itertools.islice(world.session.tools.wire_names.by_wire, None, None, 4)
    for name in itertools.chain(some, ["nothing", LONG, "", "\ud800"]):
        holds(world, name, arguments)
