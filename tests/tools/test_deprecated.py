"""The seven tools of v1.0: their parameters, results and corrected errors."""

# ASYNC240: the path of the in-memory file system is only checked. RUF001: v1.0 uses this information sign.
# ruff: noqa: ASYNC240, RUF001

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import warnings
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from memory_helpers import OpenedDirectory, plain_link, plain_memory

import mama_structs
from mama_structs import HashEmbedder, Session, Settings
from mama_structs._internal.jsonable import to_json_text
from mama_structs.adapters import openai
from mama_structs.adapters.anthropic import messages as anthropic
from mama_structs.adapters.shared.tool_results import answer_tool_call, list_wire_tools
from mama_structs.errors import InvalidArgument, MamaStructsError, MemoryNotFound, SessionClosed
from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.types.model import LinkType, MemoryType, Outcome
from mama_structs.settings import ToolSettings
from mama_structs.testing.plain_engine import PlainReader
from mama_structs.tools.deprecated import Recency, drop_superseded, make_deprecated_tools, rank_hits, reset_warnings
from mama_structs.tools.wire_names import DEPRECATED_SUCCESSORS, MEMORY_TOOLS, WireNames, get_deprecation_note

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = [
    "save_decision", "recall_decision", "suggest_decision", "list_decisions",
    "update_outcome", "save_checkpoint", "load_checkpoint",
]  # fmt: skip
V1_0 = Path(__file__).parents[2].parent / "shared" / "data" / "mama" / "v1_0_real_writes.db"


class Clock:
    def __init__(self):
        self.now = START.timestamp()

    def __call__(self):
        return self.now

    def pass_days(self, days):
        self.now += days * 86400


@attrs.frozen
class Old:
    """The v1.0 tools of a store, called as a model calls them, and the store's memories."""

    tools: dict
    memories: object

    async def __call__(self, tool_name, /, **arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return await self.tools[tool_name].run(arguments)

    async def saved(self, topic, decision, reasoning="because", **others):
        return await self("save_decision", topic=topic, decision=decision, reasoning=reasoning, **others)

    async def predecessor(self, decision_id):
        links = await self.memories.links(decision_id)
        found = [one.to_id for one in links if one.link_type is LinkType.EVOLUTION and one.from_id == decision_id]
        assert len(found) <= 1
        return found[0] if found else None


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def old(clock):
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home:
        opened = OpenedDirectory.open(Path(home), embedder=HashEmbedder(), clock=clock)
        memories = await opened.memories()
        yield Old({tool.name: tool for tool in make_deprecated_tools(memories, clock=clock)}, memories)
        assert [] == await opened.findings()
        await opened.close()


# Tool definitions


def test_deprecated_tools_are_the_seven_of_v1_0(old):
    """There are seven tools in v1.0's order, with valid schemas and their successors' names."""
    assert NAMES == list(old.tools)
    for name, tool in old.tools.items():
        Draft202012Validator.check_schema(tool.input_schema)
        assert tool.description.startswith(f"Deprecated, use {DEPRECATED_SUCCESSORS[name]}.")
        assert "deprecated" in tool.title
        assert not tool.annotations.open_world
        assert not tool.annotations.destructive


def test_deprecated_tools_declare_read_only_tools(old):
    """Only the tools that do not write are marked as read-only."""
    assert ["recall_decision", "suggest_decision", "list_decisions", "load_checkpoint"] == [
        name for name, tool in old.tools.items() if tool.annotations.read_only
    ]


def test_parameters_have_the_names_of_v1_0(old):
    """Parameters have v1.0's spelling, and are required if v1.0 and its checks agree."""
    schemas = {name: tool.input_schema for name, tool in old.tools.items()}

    assert {
        "save_decision": [
            "topic", "decision", "reasoning", "confidence", "type", "outcome", "failure_reason", "limitation",
            "trust_context",
        ],
        "recall_decision": ["topic"],
        "suggest_decision": ["userQuestion", "recencyWeight", "recencyScale", "recencyDecay", "disableRecency"],
        "list_decisions": ["limit"],
        "update_outcome": ["outcome", "decisionId", "topic", "failure_reason", "limitation"],
        "save_checkpoint": ["summary", "open_files", "next_steps"],
        "load_checkpoint": [],
    } == {name: list(schema["properties"]) for name, schema in schemas.items()}  # fmt: skip
    assert {
        "save_decision": ["topic", "decision", "reasoning"],
        "recall_decision": ["topic"],
        "suggest_decision": ["userQuestion"],
        "list_decisions": [],
        "update_outcome": ["outcome"],
        "save_checkpoint": ["summary"],
        "load_checkpoint": [],
    } == {name: schema.get("required", []) for name, schema in schemas.items()}
    words = ["pending", "success", "failure", "partial", "superseded", "SUCCESS", "FAILED", "PARTIAL"]
    assert words == schemas["update_outcome"]["properties"]["outcome"]["enum"]
    assert 0.5 == schemas["save_decision"]["properties"]["confidence"]["default"]
    assert (20, 1, 100) == tuple(
        schemas["list_decisions"]["properties"]["limit"][key] for key in ("default", "minimum", "maximum")
    )


def test_old_and_new_tool_names_do_not_clash_on_the_wire():
    """The old names are used unchanged on the wire, and do not collide with the new names."""
    names = WireNames._from_names([*MEMORY_TOOLS, *NAMES])

    assert NAMES == [names.by_tool[name] for name in NAMES]
    assert len(names.by_wire) == len(MEMORY_TOOLS) + len(NAMES)


# Results of the tools


async def test_save_decision_returns_the_id(old):
    """The result has the keys of v1.0, with the id that v1.0 left undefined."""
    result = await old.saved("auth", "Use JWT", "stateless")
    (memory,) = await old.memories.list()

    assert {
        "success": True,
        "decision_id": memory.id,
        "topic": "auth",
        "message": f"✅ Decision saved successfully (ID: {memory.id})",
        "recall_command": 'To recall: recall_decision with topic "auth"',
        "deprecated": "use save/decision; removed in 2.0",
    } == result
    assert ("Use JWT", "auth", "stateless", 0.5, None, "user") == (
        memory.content, memory.topic, memory.metadata.reasoning, memory.metadata.confidence, memory.metadata.outcome,
        memory.metadata.created_by,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "created_by"), [("user_decision", "user"), ("assistant_insight", "llm"), (None, "user")]
)
async def test_save_decision_type_determines_the_creator(old, kind, created_by):
    """
    An assistant insight has the creator "llm".

    A user decision, which is the default, has "user".
    """
    result = await old.saved("auth", "Use JWT", **({"type": kind} if kind else {}))

    assert created_by == (await old.memories.get(result["decision_id"])).metadata.created_by


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("pending", None), ("superseded", None), ("success", Outcome.SUCCESS), ("failure", Outcome.FAILED),
        ("partial", Outcome.PARTIAL), ("SUCCESS", Outcome.SUCCESS), ("FAILED", Outcome.FAILED),
        ("PARTIAL", Outcome.PARTIAL),
    ],
)  # fmt: skip
async def test_save_decision_accepts_outcomes(old, word, outcome):
    """Both vocabularies are accepted; pending and superseded set no outcome, as in v1.0."""
    result = await old.saved("auth", "Use JWT", outcome=word)

    assert result["success"]
    assert outcome is (await old.memories.get(result["decision_id"])).metadata.outcome


async def test_save_decision_failure_keeps_its_reason(old):
    """
    A failure without a reason states that none was given.

    The reasoning is not used as the reason.
    """
    with_reason = await old.saved("auth", "Use JWT", outcome="failure", failure_reason="no revocation", limitation="x")
    without = await old.saved("cache", "Use Memcached", "simple", outcome="failure")

    assert "no revocation\nLimitation: x" == (
        await old.memories.get(with_reason["decision_id"])
    ).metadata.outcome_reason  # fmt: skip
    assert "No reason was given why this failed: Use Memcached" == (
        await old.memories.get(without["decision_id"])
    ).metadata.outcome_reason  # fmt: skip


@pytest.mark.parametrize("given", [{"source": {"line": 1}}, '{"source": {"line": 1}}', {}])
async def test_save_decision_accepts_and_drops_trust_context(old, given):
    """
    A trust context is accepted as an object or JSON text.

    The result says that it was not stored.
    """
    result = await old.saved("auth", "Use JWT", trust_context=given)

    assert result["success"]
    assert result["note"].startswith("trust_context was not kept")
    assert {} == (await old.memories.get(result["decision_id"])).metadata.extra
    assert "note" not in await old.saved("auth", "Use sessions", trust_context=None)


async def test_recall_decision_shows_the_whole_chain_newest_first(old, clock):
    """The history is Markdown with each decision once, with its reasoning and its outcome."""
    first = await old.saved("auth", "Use JWT", "stateless", confidence=0.95)
    clock.pass_days(2)
    second = await old.saved("auth", "Use sessions", "JWT cannot be revoked", type="assistant_insight")
    await old(
        "update_outcome", decisionId=first["decision_id"], outcome="FAILED", failure_reason="stolen tokens stayed valid"
    )
    result = await old("recall_decision", topic="auth")

    assert ["success", "history", "message", "deprecated"] == list(result)
    assert "✅ 2 decisions found for topic: auth" == result["message"]
    assert f"""# Decisions: auth

## 1. {second["decision_id"]} (holds)

🤖 Assistant · ⏳ Pending · 50% confidence · just now

Decision: Use sessions

Reasoning: JWT cannot be revoked

## 2. {first["decision_id"]} (superseded)

👤 User · ❌ FAILED · 95% confidence · 2 days ago

Decision: Use JWT

Reasoning: stateless

Outcome: stolen tokens stayed valid""" == result["history"]


async def test_recall_decision_succeeds_for_an_unknown_topic(old):
    """An unknown topic is a success with a message, as in v1.0."""
    await old.saved("auth", "Use JWT")
    result = await old("recall_decision", topic="payments")

    assert result["success"]
    assert "❌ No decisions found for topic: payments" == result["message"] == result["history"]


async def test_recall_decision_offers_topics_with_the_same_first_word(old):
    """
    As in v1.0, topics with the same first word are offered.

    The message says that the topic itself is unknown.
    """
    await old.saved("auth_strategy", "Use JWT")
    await old.saved("authors", "Keep them sorted")
    await old.saved("_private", "Hide it")
    near = await old("recall_decision", topic="auth_flow")
    nothing = await old("recall_decision", topic="_")

    assert (
        "❌ No decisions found for topic: auth_flow; these topics begin with the same word: auth_strategy"
        == (near["message"])
    )
    assert near["history"].startswith("# Decisions: auth_strategy\n")
    assert "authors" not in near["history"]
    assert "❌ No decisions found for topic: _" == nothing["history"]


async def test_recall_decision_lists_each_decision_once_in_forks_and_circles(old, clock):
    """Each decision is listed once, also if several decisions or a circle supersede it."""
    ids = []
    for text in ("one", "two", "three"):
        clock.pass_days(1)
        ids.append((await old.memories.save_decision(text, topic="t", reasoning="")).id)
    for source, target in ((1, 0), (2, 0), (0, 2)):
        await old.memories.link(ids[source], ids[target], "supersedes")
    result = await old("recall_decision", topic="t")
    # The first and the third decision supersede each other, so only the second decision is current.
    listed = await old("list_decisions")
    after = await old.saved("t", "four")

    assert [1, 1, 1] == [result["history"].count(f"{memory_id} (") for memory_id in ids]
    assert listed["list"].count("\n") == 0
    assert ids[1] in listed["list"]
    assert ids[1] == await old.predecessor(after["decision_id"])


async def test_save_decision_supersedes_the_newest_of_a_circle(old, clock):
    """In a circle of decisions the newest is current, and a new one supersedes it."""
    ids = []
    for text in ("one", "two"):
        clock.pass_days(1)
        ids.append((await old.memories.save_decision(text, topic="t", reasoning="")).id)
    await old.memories.link(ids[0], ids[1], "supersedes")
    await old.memories.link(ids[1], ids[0], "supersedes")
    listed = await old("list_decisions")
    after = await old.saved("t", "three")

    assert ids[1] in listed["list"]
    assert ids[0] not in listed["list"]
    assert ids[1] == await old.predecessor(after["decision_id"])


async def test_suggest_decision_returns_matching_decisions(old):
    """A question finds the decision that answers it, with its id and its reasoning."""
    saved = await old.saved("database", "Use PostgreSQL for orders", "transactions matter for orders")
    await old.saved("lunch", "Eat at noon", "hungry")
    result = await old("suggest_decision", userQuestion="which database keeps the orders?")

    assert ["success", "suggestions", "message", "deprecated"] == list(result)
    assert "💡 1 past decision found" == result["message"]
    assert saved["decision_id"] in result["suggestions"]
    assert "Reasoning: transactions matter for orders" in result["suggestions"]


@pytest.mark.parametrize(
    ("question", "hint"), [("what about giraffes in the zoo?", ""), ("giraffes?", " Ask in more words.")]
)
async def test_suggest_decision_succeeds_without_a_match(old, question, hint):
    """Without a match there is only a message, which asks for more words for a short query."""
    await old.saved("database", "Use PostgreSQL", "transactions")

    assert {
        "success": True,
        "message": f"💡 No relevant past decisions found for this question.{hint}",
        "deprecated": "use search/by_context; removed in 2.0",
    } == await old("suggest_decision", userQuestion=question)


async def test_suggest_decision_weighs_recency_as_requested(old, clock):
    """
    With full recency weight the newer decision comes first.

    Without recency the better match does.
    """
    await old.saved("cache a", "Use Redis for the product cache", "Redis is known for a product cache")
    clock.pass_days(30)
    await old.saved("cache b", "Redis caches pages of products", "speed")
    question = "Redis for the product cache"
    newest = await old("suggest_decision", userQuestion=question, recencyWeight=1.0, recencyScale=3, recencyDecay=0.1)
    best = await old("suggest_decision", userQuestion=question, disableRecency=True)

    assert newest["suggestions"].startswith("1. **cache b**")
    assert best["suggestions"].startswith("1. **cache a**")


async def test_list_decisions_omits_superseded_decisions(old, clock):
    """
    Superseded decisions are not listed.

    The others have one line each, newest first, up to the limit.
    """
    for number in range(25):
        clock.pass_days(1)
        await old.saved(f"topic {number}", f"decision {number}")
    for number in range(42):
        await old.saved("topic 3", f"again {number}", confidence=1)
    result = await old("list_decisions")
    lines = result["list"].splitlines()

    assert ["success", "list", "message", "deprecated"] == list(result)
    assert "✅ 20 decisions, newest first" == result["message"]
    assert 20 == len(lines)
    assert lines[0].startswith(
        "1. **topic 3**: again 41 · 👤 User · ⏳ Pending · 100% confidence · just now · decision_topic_3_"
    )
    assert lines[1].startswith(
        "2. **topic 24**: decision 24 · 👤 User · ⏳ Pending · 50% confidence · just now · decision_topic_24_"
    )
    assert "1 day ago" in lines[2]
    assert 25 == len((await old("list_decisions", limit=100))["list"].splitlines())
    assert 2 == len((await old("list_decisions", limit=2))["list"].splitlines())


async def test_reading_tools_succeed_on_an_empty_store(old):
    """Without memories every reading tool succeeds with a message."""
    assert "❌ No decisions found" == (await old("list_decisions"))["list"]
    assert (await old("recall_decision", topic="auth"))["success"]
    assert (await old("suggest_decision", userQuestion="what did we decide?"))["success"]
    assert (await old("load_checkpoint")).startswith("ℹ️ No active checkpoint found.")


async def test_lists_shorten_texts_to_one_line(old):
    """A preview has at most 60 characters and no line breaks."""
    await old.saved("long", "word\n" * 5000, "why\n" * 5000)
    result = await old("list_decisions")

    assert 1 == len(result["list"].splitlines())
    assert f"**long**: {('word ' * 12)[:59]}… ·" in result["list"]


# Tools for outcomes


@pytest.mark.parametrize(
    ("word", "reasons", "outcome", "reason"),
    [
        ("SUCCESS", {}, "SUCCESS", None),
        ("success", {"failure_reason": " ", "limitation": None}, "SUCCESS", None),
        (" Success", {}, "SUCCESS", None),
        ("FAILED", {"failure_reason": "slow"}, "FAILED", "slow"),
        ("failure", {"failure_reason": "slow", "limitation": "small"}, "FAILED", "slow\nLimitation: small"),
        ("PARTIAL", {"limitation": "small only"}, "PARTIAL", "small only"),
        ("partial", {}, "PARTIAL", None),
    ],
)
async def test_update_outcome_accepts_id_and_topic(old, word, reasons, outcome, reason):
    """The advertised topic and the validated id both work, with both vocabularies."""
    decision_id = (await old.saved("auth", "Use JWT"))["decision_id"]
    other_id = (await old.saved("cache", "Use Redis"))["decision_id"]
    by_id = await old("update_outcome", decisionId=decision_id, outcome=word, **reasons)
    by_topic = await old("update_outcome", topic="cache", outcome=word, **reasons)

    assert {
        "success": True,
        "decision_id": decision_id,
        "outcome": outcome,
        "message": f"✅ Outcome of {decision_id}: {outcome}",
        "deprecated": "use evolve/outcome; removed in 2.0",
    } == by_id
    assert by_id == {**by_topic, "decision_id": decision_id, "message": by_id["message"]}
    for memory in (await old.memories.get(decision_id), await old.memories.get(other_id)):
        assert (Outcome(outcome), reason) == (memory.metadata.outcome, memory.metadata.outcome_reason)


async def test_update_outcome_by_topic_uses_the_newest_decision(old):
    """An outcome for a topic is set on the current decision, not on superseded ones."""
    before = await old.saved("auth", "Use JWT")
    after = await old.saved("auth", "Use sessions")
    result = await old("update_outcome", topic="auth", outcome="success")

    assert after["decision_id"] == result["decision_id"]
    assert (await old.memories.get(before["decision_id"])).metadata.outcome is None


async def test_update_outcome_fails_for_an_unknown_decision(old):
    """
    v1.0 reported success for an id that does not exist.

    Here it is a failure with a message.
    """
    result = await old("update_outcome", decisionId="decision_x_1700000000000_abcd", outcome="SUCCESS")

    assert {
        "success": False,
        "message": "❌ Failed to update outcome: there is no memory with the id 'decision_x_1700000000000_abcd'",
        "deprecated": "use evolve/outcome; removed in 2.0",
    } == result


async def test_update_outcome_rejects_pending_and_superseded_as_changes(old):
    """Both succeed if they are already true, and fail if they would have to change something."""
    before = (await old.saved("auth", "Use JWT"))["decision_id"]
    pending = await old("update_outcome", decisionId=before, outcome="pending")
    not_yet = await old("update_outcome", decisionId=before, outcome="superseded")
    await old.saved("auth", "Use sessions")
    so = await old("update_outcome", decisionId=before, outcome="superseded")
    await old("update_outcome", decisionId=before, outcome="success")
    again = await old("update_outcome", decisionId=before, outcome="pending")

    assert [True, False, True, False] == [one["success"] for one in (pending, not_yet, so, again)]
    assert ("pending", "superseded") == (pending["outcome"], so["outcome"])
    assert "save_decision with the same topic" in not_yet["message"]
    assert Outcome.SUCCESS is (await old.memories.get(before)).metadata.outcome


# Tools for checkpoints


async def test_load_checkpoint_returns_the_text_of_v1_0(old, clock):
    """The texts are those of v1.0, with steps line by line and the deprecation note last."""
    saved = await old(
        "save_checkpoint", summary="half done", open_files=["a.py", "b.py"], next_steps="1. test\n\n2. ship\n"
    )
    clock.pass_days(1)
    memory = await old.memories.latest_checkpoint()

    assert (
        f"✅ Checkpoint saved (ID: {memory.id})\nSummary: half done\n\nDeprecated: use save/checkpoint; removed in 2.0"
    ) == saved
    assert ("1. test", "2. ship") == memory.metadata.next_steps
    assert (
        f"📍 Checkpoint of 2026-01-01 00:00:00 UTC (ID: {memory.id})\n\nSummary: half done\n\n"
        'Open files: ["a.py", "b.py"]\n\nNext steps:\n1. test\n2. ship\n\n'
        "Deprecated: use load/checkpoint; removed in 2.0"
    ) == await old("load_checkpoint")


async def test_save_checkpoint_requires_only_a_summary(old):
    """Files and steps are empty by default; steps may also be a list."""
    await old("save_checkpoint", summary="begun")
    bare = await old("load_checkpoint")
    await old("save_checkpoint", summary="begun", next_steps=["test", "ship"])

    assert "Open files: []\n\nNext steps: None\n" in bare
    assert "Next steps:\ntest\nship\n" in await old("load_checkpoint")


# Chains of decisions on a topic


async def test_save_decision_chains_decisions_of_one_topic(old):
    """A decision supersedes the newest one with exactly the same topic, and no other."""
    ids = {}
    for topic, decision in [
        ("auth", "a"),
        ("Auth", "b"),
        ("auth", "c"),
        ("auth_x", "d"),
        ("auth", "e"),
        (" auth ", "f"),
    ]:
        ids[decision] = (await old.saved(topic, decision))["decision_id"]
    names = {memory_id: decision for decision, memory_id in ids.items()}
    before = {decision: names.get(await old.predecessor(memory_id)) for decision, memory_id in ids.items()}

    # Surrounding spaces are removed from topics. In v1.0, " auth " and "auth" were different topics.
    assert {"a": None, "b": None, "c": "a", "d": None, "e": "c", "f": "e"} == before


async def test_concurrent_saves_form_one_chain(old):
    """Concurrently saved decisions of one topic supersede each other in one chain."""
    await asyncio.gather(*(old.saved("auth", f"decision {number}") for number in range(8)))
    chain = await old.memories.history(topic="auth")

    assert (8, 7, ()) == (len(chain), len(chain.links), chain.forks)
    assert 1 == len((await old("list_decisions"))["list"].splitlines())


async def test_session_and_its_fork_form_one_chain():
    """Decisions of one topic saved concurrently by a session and its fork form one chain."""
    async with Session.open(embedder=HashEmbedder()) as session:
        fork = session.fork()
        arguments = {"topic": "auth", "reasoning": "because"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            await asyncio.gather(
                *(
                    one.call("save_decision", {**arguments, "decision": f"decision {number}"})
                    for number, one in zip(range(12), itertools.cycle([session, fork]))
                )
            )
        chain = await session.memories.history(topic="auth")
        await fork.close()

    assert (12, 11, ()) == (len(chain), len(chain.links), chain.forks)


async def test_saves_recorded_from_v1_0_form_the_same_chains(old, clock):
    """Recorded inputs of v1.0's handlers form the same chains as in v1.0."""
    if not V1_0.exists():
        pytest.skip("the sample data of v1.0 is not there")
    with sqlite3.connect(f"file:{V1_0}?mode=ro&immutable=1", uri=True) as connection:
        rows = connection.execute(
            "SELECT id, topic, decision, reasoning, confidence, outcome, limitation, supersedes "
            "FROM decisions ORDER BY created_at"
        ).fetchall()
        (checkpoint,) = connection.execute("SELECT summary FROM checkpoints ORDER BY timestamp DESC LIMIT 1").fetchone()
        checkpoints = connection.execute("SELECT summary, next_steps FROM checkpoints ORDER BY timestamp").fetchall()
    connection.close()
    ids = {}
    for old_id, topic, decision, reasoning, confidence, outcome, limitation, _ in rows:
        clock.pass_days(1)
        given = {"outcome": outcome, "limitation": limitation}
        result = await old.saved(
            topic, decision, reasoning, confidence=confidence,
            **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
        ids[old_id] = result["decision_id"]
    for summary, next_steps in checkpoints:
        clock.pass_days(1)
        await old("save_checkpoint", summary=summary, next_steps=next_steps)
    old_ids = {new: before for before, new in ids.items()}
    chained = {old_id: old_ids.get(await old.predecessor(new)) for old_id, new in ids.items()}

    assert 4 == sum(before is not None for before in chained.values())
    assert {row[0]: row[7] for row in rows} == chained
    assert f"Summary: {checkpoint}\n" in await old("load_checkpoint")


# Use in a session


async def test_deprecated_tools_are_hidden_but_callable():
    """A session offers none of the seven tools by default, but a model can still call them."""
    async with Session.open(embedder=HashEmbedder()) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            arguments = {"topic": "auth", "decision": "Use JWT", "reasoning": "stateless"}
            saved = await answer_tool_call(session, "save_decision", arguments)
            failed = await answer_tool_call(session, "update_outcome", {"topic": "cache", "outcome": "success"})
            call = {"type": "function_call", "call_id": "c", "name": "list_decisions", "arguments": "{}"}
            (over_openai,) = await openai.handle(session, [call], finish_reason="completed")
            block = {"type": "tool_use", "id": "c", "name": "list_decisions", "input": {}}
            over_anthropic = await anthropic.handle(session, [block], stop_reason="tool_use")
            listed = await session.call("list_decisions", {})
        offered_names = {wire for wire, _ in list_wire_tools(session)}
    async with Session.open(embedder=HashEmbedder(), settings=Settings(tools=ToolSettings(deprecated=True))) as session:
        shown = {wire for wire, _ in list_wire_tools(session)}

    assert set() == offered_names & set(NAMES)
    assert offered_names | set(NAMES) == shown
    assert saved.data["decision_id"] in listed["list"]
    assert (False, False) == (saved.is_error, failed.is_error)
    assert "no decision that still holds has this topic" in failed.data["message"]
    assert saved.data["decision_id"] in over_openai["output"]
    assert saved.data["decision_id"] in over_anthropic["content"][0]["content"]


async def test_texts_name_tools_as_on_the_wire():
    """No tool name in descriptions, results and errors of the seven tools has a slash."""
    saves = {"topic": "auth", "decision": "Use JWT", "reasoning": "r", "trust_context": {}}
    calls = [
        ("save_decision", saves),
        ("save_decision", {**saves, "topic": ""}),
        ("recall_decision", {"topic": "auth"}),
        ("recall_decision", {"topic": "unknown"}),
        ("suggest_decision", {"userQuestion": "Use JWT?"}),
        ("suggest_decision", {"userQuestion": ""}),
        ("list_decisions", {}),
        ("list_decisions", {"limit": 0}),
        ("update_outcome", {"topic": "auth", "outcome": "superseded"}),
        ("update_outcome", {"topic": "auth", "outcome": "success"}),
        ("update_outcome", {"topic": "auth", "outcome": "pending"}),
        ("load_checkpoint", {}),
        ("save_checkpoint", {"summary": ""}),
        ("save_checkpoint", {"summary": "half done"}),
        ("load_checkpoint", {}),
    ]
    blocks = [
        {"type": "tool_use", "id": f"c{number}", "name": name, "input": given}
        for number, (name, given) in enumerate(calls)
    ]
    async with Session.open(embedder=HashEmbedder(), settings=Settings(tools=ToolSettings(deprecated=True))) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            told = await anthropic.handle(session, blocks, stop_reason="tool_use")
        described = [one for one in anthropic.tools(session) if one["name"] in NAMES]
    texts = [one["content"] for one in told["content"]]
    with_slash = re.compile("|".join(MEMORY_TOOLS))

    assert set(NAMES) == {name for name, _ in calls}
    assert len(NAMES) == len(described)
    assert [] == with_slash.findall(json.dumps(described))
    assert [] == with_slash.findall("\n".join(texts))
    assert texts[-2].endswith("\n\nDeprecated: use save__checkpoint; removed in 2.0")
    assert texts[-1].endswith("\n\nDeprecated: use load__checkpoint; removed in 2.0")
    assert "use search__recent; removed in 2.0" in texts[6]


async def test_load_checkpoint_quotes_stored_text_unchanged():
    """A checkpoint is quoted unchanged, even if it looks like the deprecation note."""
    summary = "save/checkpoint is a tool\nDeprecated: use save/checkpoint; removed in 2.0"
    async with Session.open(embedder=HashEmbedder()) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            saved = await answer_tool_call(session, "save_checkpoint", {"summary": summary})

    quoted = summary.replace("\n", "\n> ")
    assert saved.text.endswith(f"\nSummary: \n> {quoted}\n\nDeprecated: use save__checkpoint; removed in 2.0")


async def test_list_decisions_keeps_its_result_shape_for_long_lists():
    """A long list has the result shape of v1.0; excess lines are stored as a descriptor."""
    async with Session.open(embedder=HashEmbedder()) as session:
        await session.memories.save_many(
            {"type": "decision", "topic": f"topic {number}", "content": "long " * 30, "reasoning": ""}
            for number in range(60)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            result = await session.call("list_decisions", {"limit": 100})

    assert len(to_json_text(result)) <= session.settings.answers.max_chars
    assert result["shortened"]["/list"]["of"] == 60 > result["shortened"]["/list"]["shown"] > 20


# Errors of the tools


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("save_decision", {"topic": "t", "decision": "d"}, "reasoning is required"),
        ("save_decision", {"topic": " ", "decision": "d", "reasoning": "r"}, "topic must not be empty"),
        ("save_decision", {"topic": "t" * 201, "decision": "d", "reasoning": "r"}, "at most 200 characters"),
        ("save_decision", {"topic": "t", "decision": "", "reasoning": "r"}, "decision must not be empty"),
        ("save_decision", {"topic": "t", "decision": "d", "reasoning": "r", "confidence": 2}, "from 0 to 1, got 2"),
        (
            "save_decision",
            {"topic": "t", "decision": "d", "reasoning": "r", "outcome": "great"},
            "partial, superseded, SUCC",
        ),
        ("save_decision", {"topic": "t", "decision": "d", "reasoning": "r", "limitation": "l"}, "need an outcome"),
        ("recall_decision", {"topic": ""}, "topic must not be empty"),
        ("recall_decision", {}, "topic is required"),
        ("suggest_decision", {"userQuestion": " "}, "userQuestion must not be empty"),
        ("suggest_decision", {"userQuestion": "why" * 5000}, "userQuestion must have at most"),
        ("suggest_decision", {"userQuestion": "why\ud800"}, "userQuestion: character 4 is a lone surrogate"),
        ("suggest_decision", {"question": "why?"}, "userQuestion is required"),
        ("suggest_decision", {"userQuestion": "why?", "recencyScale": 0}, "above 0"),
        ("list_decisions", {"limit": 0}, "from 1 to 100"),
        ("list_decisions", {"limit": 101}, "from 1 to 100"),
        ("update_outcome", {"outcome": "SUCCESS"}, "decisionId or topic is required"),
        ("update_outcome", {"outcome": "SUCCESS", "decisionId": "", "topic": " "}, "decisionId or topic is required"),
        ("update_outcome", {"outcome": "SUCCESS", "topic": "unknown"}, "no decision that still holds"),
        ("update_outcome", {"outcome": "FAILED", "topic": "there"}, "failure_reason is required"),
        ("update_outcome", {"outcome": "FAILED", "topic": "there", "failure_reason": " "}, "failure_reason"),
        ("update_outcome", {"topic": "there"}, "outcome is required"),
        ("update_outcome", {"outcome": "SUCCESS", "decisionId": "d" * 600}, "decisionId must have at most"),
        ("update_outcome", {"outcome": "FAILED", "topic": "there", "failure_reason": "\ud800"}, "failure_reason: char"),
        ("update_outcome", {"outcome": "PARTIAL", "topic": "there", "limitation": "\ud800"}, "limitation: character 1"),
        (
            "update_outcome",
            {"outcome": "FAILED", "topic": "there", "failure_reason": "a\ud800", "limitation": "b"},
            "failure_reason and limitation: character 2",
        ),
        (
            "save_decision",
            {"topic": "t", "decision": "d", "reasoning": "r", "trust_context": "x"},
            "trust_context must",
        ),
        ("save_decision", {"topic": "t", "decision": "d", "reasoning": "r", "trust_context": "[1]"}, "trust_context"),
    ],
)
async def test_wrong_arguments_return_errors_as_in_v1_0(old, name, arguments, said):
    """
    An error is a result with success false and a message; nothing is saved.

    The message names the argument and the rule.
    ~
    """
    await old.saved("there", "is one")
    result = await old(name, **arguments)

    assert ["success", "message", "deprecated"] == list(result)
    assert result["success"] is False
    assert result["message"].startswith("❌ Validation error: ")
    assert said in result["message"]
    assert get_deprecation_note(name) == result["deprecated"]
    assert 1 == await old.memories.count()


async def test_update_outcome_rejects_other_types_and_topics(old):
    """Another type of memory is rejected, and so is a decision of another topic."""
    insight = await old.memories.save_insight("raids come at night")
    decision = (await old.saved("auth", "Use JWT"))["decision_id"]
    of_insight = await old("update_outcome", decisionId=insight.id, outcome="SUCCESS")
    contradiction = await old("update_outcome", decisionId=decision, topic="cache", outcome="SUCCESS")

    assert "is that of a memory of type insight" in of_insight["message"]
    assert "topic is not that of the decision" in contradiction["message"]
    assert (await old.memories.get(decision)).metadata.outcome is None


async def test_checkpoint_tools_raise_errors_as_in_v1_0(old):
    """Errors of the checkpoint tools are raised, because their result has no success field."""
    with pytest.raises(InvalidArgument, match="summary must not be empty"):
        await old("save_checkpoint", summary="")


async def test_save_decision_reports_the_saved_decision_when_its_outcome_fails(old, monkeypatch):
    """If only the outcome fails, the result says that the decision is saved."""

    async def fail(*_, **__):
        raise MemoryNotFound("decision_x")

    monkeypatch.setattr(type(old.memories), "set_outcome", fail)
    result = await old.saved("auth", "Use JWT", outcome="success")

    assert result["success"]
    assert f"(ID: {result['decision_id']}), but not its outcome: " in result["message"]


def test_tool_raises_session_closed_on_closed_session(old):
    """An error that the model cannot fix is raised to the host."""
    with pytest.raises(SessionClosed):
        old.tools["list_decisions"]._on_error(SessionClosed("the memories were closed"), {})


# Deprecation warnings


async def test_deprecation_warning_is_emitted_once_per_tool(old):
    """
    The first use of a tool in a process emits a DeprecationWarning.

    It names the tool, the successor and the removal version.
    """
    reset_warnings()
    calls = {"save_decision": {"topic": "t", "decision": "d", "reasoning": "r"}, "list_decisions": {}}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for name, arguments in [*calls.items(), *calls.items()]:
            await old.tools[name].run(arguments)
        # Calls with wrong arguments emit the warning, too.
        await old.tools["recall_decision"].run({})
        await old.tools["recall_decision"].run({"topic": "t"})

    assert [DeprecationWarning] * 3 == [one.category for one in seen]
    assert [
        f"the tool {name} is deprecated: use {DEPRECATED_SUCCESSORS[name]}; removed in 2.0"
        for name in (*calls, "recall_decision")
    ] == [str(one.message) for one in seen]


async def test_tool_does_nothing_when_its_warning_is_an_error(old):
    """If warnings are errors, every call raises one, and nothing is saved."""
    reset_warnings()
    for _ in range(2):
        # pytest is configured to raise warnings as errors.
        with pytest.raises(DeprecationWarning, match="use save/decision"):
            await old.tools["save_decision"].run({"topic": "t", "decision": "d", "reasoning": "r"})

    assert 0 == await old.memories.count()


def test_warning_points_to_the_line_of_the_caller(tmp_path):
    """With Python's default filters a script gets one warning that names its own line."""
    script = tmp_path / "agent.py"
    script.write_text(
        textwrap.dedent(
            """\
            import asyncio
            from mama_structs import HashEmbedder, Session
            from mama_structs.adapters import anthropic

            async def main():
                async with Session.open(embedder=HashEmbedder()) as session:
                    for _ in range(2):
                        await session.call("list_decisions")
                    block = {"type": "tool_use", "id": "c", "name": "recall_decision", "input": {}}
                    await anthropic.handle(session, [block], stop_reason="tool_use")
                    await asyncio.create_task(session.call("load_checkpoint"))

            asyncio.run(main())
            """
        )
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONWARNINGS", "PYTHONDEVMODE")}
    done = subprocess.run(
        [sys.executable, script],
        env={**kept, "PYTHONPATH": str(Path(mama_structs.__file__).parents[1])},
        capture_output=True,
        check=True,
        text=True,
    )
    told = [line for line in done.stderr.splitlines() if "Warning" in line]

    assert [
        f"{script}:{line}: DeprecationWarning: the tool {name} is deprecated: {get_deprecation_note(name)}"
        for line, name in ((8, "list_decisions"), (10, "recall_decision"), (13, "load_checkpoint"))
    ] == told


# Properties for any input


@given(
    count=st.integers(1, 8),
    pairs=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20),
    data=st.data(),
)
def test_tools_and_search_agree_on_superseded_decisions(count, pairs, data):
    """For every graph, the tools and the search agree on which decisions are superseded."""
    reader = PlainReader()
    for node in range(count):
        reader.put(plain_memory(f"m{node}", at=data.draw(st.integers(0, 3))))
    links = []
    for number, (source, target) in enumerate(pairs):
        if source != target and max(source, target) < count:
            link = plain_link(f"m{source}", f"m{target}", link_id=str(number), type=LinkType.EVOLUTION)
            links.append(link)
            reader.put_link(link)
    nodes = reader.window().tolist()
    memories = reader.get(nodes)
    replaced = graph.Successors(reader).newest(nodes)

    assert [memory for node, memory in zip(nodes, memories, strict=True) if node not in replaced] == (
        drop_superseded(memories, links)
    )


@given(
    weight=st.floats(0, 1),
    scale=st.floats(5e-324, 1e300),
    decay=st.floats(0.01, 0.99),
    ages=st.lists(st.floats(-10, 1e6), min_size=2, max_size=2),
    relevance=st.floats(0, 1),
)
def test_recency_score_is_between_0_and_1_and_decays(weight, scale, decay, ages, relevance):
    """Scores are from 0 to 1, the newer of two equal hits is not behind, and decay applies."""
    recency = Recency(weight=weight, scale=scale, decay=decay)
    newer, older = sorted(ages)

    assert 0 <= recency.score(relevance, older) <= recency.score(relevance, newer) <= 1 + 1e-9
    assert pytest.approx(decay) == Recency(weight=1, scale=scale, decay=decay).score(relevance, scale)


def test_superseded_decision_ranks_behind_its_successor():
    """For any recency weight, a superseded decision is not suggested before its successor."""
    before, after = plain_memory("m0", at=100), plain_memory("m1", at=0)
    hits = [
        Hit(memory=before, score=1, relevance=0.9, signals={}, superseded_by="m1"),
        Hit(memory=after, score=1, relevance=0.4, signals={}),
        Hit(memory=plain_memory("m2"), score=1, relevance=0.29, signals={}),
    ]

    assert ["m1", "m0"] == [hit.memory.id for hit in rank_hits(hits, Recency(weight=0.9), now=START)]
    assert ["m0", "m1"] == [hit.memory.id for hit in rank_hits(hits, None, now=START)]


TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from(["t", "auth_x", "auth_y", "_", "인증 방식", "a\x00b", "\ud800", "d" * 300])
)
OUTCOMES = st.sampled_from(
    ["pending", "success", "failure", "partial", "superseded", "SUCCESS", "FAILED", "PARTIAL", "so so"]
)
ARGUMENTS = {
    "save_decision": st.fixed_dictionaries(
        {"topic": TEXTS, "decision": TEXTS, "reasoning": TEXTS},
        optional={
            "confidence": st.one_of(st.floats(), st.integers(-1, 2), st.none()),
            "type": st.sampled_from(["user_decision", "assistant_insight", "x"]),
            "outcome": OUTCOMES,
            "failure_reason": TEXTS,
            "limitation": TEXTS,
            "trust_context": st.one_of(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2)),
        },
    ),
    "recall_decision": st.fixed_dictionaries({"topic": TEXTS}),
    "suggest_decision": st.fixed_dictionaries(
        {"userQuestion": TEXTS},
        optional={name: st.one_of(st.floats(), st.none()) for name in ("recencyWeight", "recencyScale", "recencyDecay")},
    ),
    "list_decisions": st.fixed_dictionaries({}, optional={"limit": st.one_of(st.integers(), TEXTS)}),
    "update_outcome": st.fixed_dictionaries(
        {"outcome": OUTCOMES},
        optional=dict.fromkeys(("decisionId", "topic", "failure_reason", "limitation"), TEXTS),
    ),
    "save_checkpoint": st.fixed_dictionaries(
        {"summary": TEXTS}, optional={"open_files": st.one_of(TEXTS, st.lists(TEXTS, max_size=2)), "next_steps": TEXTS}
    ),
    "load_checkpoint": st.fixed_dictionaries({}, optional={"extra": TEXTS}),
}  # fmt: skip
CALLS = st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), ARGUMENTS[name]))


async def test_tools_raise_only_typed_errors(old):
    """
    For any input the result has the tool's shape, or a typed error is raised.

    The store stays sound.
    """
    loop = asyncio.get_running_loop()

    @settings(max_examples=max(20, settings.default.max_examples // 2))
    @given(calls=st.lists(CALLS, min_size=1, max_size=4))
    def fuzz(calls):
        for name, arguments in calls:
            try:
                result = asyncio.run_coroutine_threadsafe(old(name, **arguments), loop).result()
            except MamaStructsError:
                assert name in ("save_checkpoint", "load_checkpoint")
                continue
            assert get_deprecation_note(name) in (result if isinstance(result, str) else result["deprecated"])

    await asyncio.to_thread(fuzz)

    assert [] == [one for one in await old.memories.list(limit=10_000) if one.type is MemoryType.INSIGHT]
