"""Judges, which a host passes to the session, classify the relation of a new memory to older memories."""

import asyncio
import threading

import attrs
import pytest
from memory_helpers import SMALL

from mama_structs import Session, Settings
from mama_structs.errors import InvalidArgument
from mama_structs.settings import MemorySettings


class Judge:
    """A judge that returns the same verdict for all memories, or the result of *answer* if that is a function."""

    def __init__(self, answer="none"):
        self.answer, self.asked = answer, []

    def __call__(self, new, candidates):
        self.asked.append((new, candidates))
        if callable(self.answer):
            return self.answer(new, candidates)
        return {one.id: self.answer for one in candidates}


def opened(judge, **memory):
    return Session.open(embedder=SMALL, judge=judge, settings=Settings(memory=MemorySettings(**memory)))


async def decided(session, decision="Use sessions", **more):
    return await session.memories.save_decision(decision, topic="login", reasoning="so it is", **more)


def ids(named):
    return [one.id for one in named]


@pytest.mark.parametrize("is_async", [False, True])
async def test_verdict_replace_supersedes_memory(is_async):
    """The result equals that of `supersede`, and the link records the judge."""
    threads = []

    def answer(_new, candidates):
        threads.append(threading.current_thread())
        return {one.id: "replace" for one in candidates}

    async def awaited(new, candidates):
        return answer(new, candidates)

    async with opened(awaited if is_async else answer) as session:
        first = await decided(session, "Use JWT")
        second = await decided(session)
        (link,) = [one for one in await session.memories.links(first.id) if one.link_type == "evolution"]
        chain = await session.memories.history(first.id)

    assert (second.id, first.id, 1.0) == (link.from_id, link.to_id, link.confidence)
    assert ("supersedes", ("judge",)) == (link.metadata.original_relationship, link.metadata.tags)
    assert [second.id, first.id] == [memory.id for memory in chain.memories]
    assert [(first.id, 1.0)] == [(one.id, one.probability) for one in second.warnings.possible_replacements]
    assert is_async == (threads[0] is threading.main_thread())


@pytest.mark.parametrize(
    ("word", "field"), [("copy", "duplicate_of"), ("contradict", "possible_conflicts"), ("none", None)]
)
async def test_other_verdicts_only_set_noticed(word, field):
    """The verdict overrides the detected conflict, and nothing is superseded."""
    async with opened(Judge(word)) as session:
        first = await decided(session, "Use JWT")
        second = await decided(session, "Do not use JWT")
        links = await session.memories.links(first.id)

    assert ({field: [first.id]} if field else {}) == {
        name: ids(some) for name, some in attrs.asdict(second.warnings, recurse=False).items() if some
    }
    assert [] == [one for one in links if one.link_type == "evolution"]


async def test_memory_without_verdict_uses_detected_conflicts():
    """None means that the judge has no verdicts."""
    async with opened(Judge(lambda _new, _candidates: None)) as session:
        first = await decided(session, "Use JWT")
        second = await decided(session, "Do not use JWT")

    assert [first.id] == ids(second.warnings.possible_conflicts)
    assert second.warnings.note is None


async def test_judge_is_called_only_for_memories_on_same_subject():
    """It is not called for a new subject, a checkpoint, a merged duplicate, or a save with `supersedes`."""
    judge = Judge()
    async with opened(judge) as session:
        first = await decided(session, "Use JWT")
        await session.memories.save_checkpoint("Use JWT at the login")
        await decided(session, "use JWT!", on_duplicate="merge")
        await session.memories.supersede(first.id, "Use sessions", reasoning="revocable")

        assert [] == judge.asked
        await decided(session, "Use passkeys")

    ((new, candidates),) = judge.asked
    assert ("Use passkeys", ["Use sessions"]) == (new.content, [one.content for one in candidates])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda _new, _candidates: 1 // 0, "it raised ZeroDivisionError"),
        (lambda _new, _candidates: "replace", "it raised TypeError"),
        (lambda _new, _candidates: {"decision_of_another": "replace"}, "it raised TypeError"),
        (lambda _new, candidates: {candidates[0].id: "delete"}, "it raised TypeError"),
        (lambda _new, candidates: {candidates[0].id: ["replace"]}, "it raised TypeError"),
    ],
)
async def test_failing_judge_leaves_note_without_content(answer, why, caplog):
    """The memory is saved, and nothing is superseded."""
    async with opened(Judge(answer)) as session:
        first = await decided(session, "Use JWT")
        second = await decided(session, "Do not use JWT")
        stats = (await session.memories.stats())["judging"]

    assert f"the judge was not heard: {why}" == second.warnings.note
    assert [first.id] == ids(second.warnings.possible_conflicts)
    assert (1, 1) == (stats["asked"], stats["failed"])
    assert "JWT" not in caplog.text


async def test_slow_judge_times_out():
    """After the timeout, the save continues without it."""
    never = asyncio.Event()

    async def judge(_new, _candidates):
        await never.wait()

    async with opened(judge, judge_timeout=0.01) as session:
        await decided(session, "Use JWT")
        second = await decided(session)
        stats = (await session.memories.stats())["judging"]

    assert "the judge was not heard: it took longer than 0.01 s" == second.warnings.note
    assert 1 == stats["late"]


@pytest.mark.parametrize("times", [1, 2])
async def test_judge_is_called_again_if_candidates_changed(times):
    """After a second change, its verdicts are ignored."""
    asked = []

    async def judge(new, candidates):
        asked.append([one.content for one in candidates])
        if len(asked) <= times and new.content == "Use sessions":
            # Save about another subject, because otherwise these saves would call the judge, too.
            await other.memories.save_many(
                [{"type": "decision", "topic": "login", "content": f"Use keys {len(asked)}", "reasoning": ""}]
            )
        return {one.id: "replace" for one in candidates}

    async with opened(judge) as session:
        other = session
        await decided(session, "Use JWT")
        saved = await decided(session)
        links = [one for one in await session.memories.links(saved.id) if one.link_type == "evolution"]
        stats = (await session.memories.stats())["judging"]

    assert [["Use JWT"], ["Use keys 1", "Use JWT"]] == asked
    if times == 1:
        assert 2 == len(links)
        assert saved.warnings.note is None
    else:
        assert [] == links
        assert "the judge was not heard, for what stands on the matter changed meanwhile" == saved.warnings.note
    assert times - 1 == stats["outrun"]


async def test_verdict_replace_supersedes_only_decisions():
    """For other types it is only reported."""
    async with opened(Judge("replace")) as session:
        first = await session.memories.save_context("The cat sleeps on the sofa", topic="cat")
        second = await session.memories.save_context("The cat sleeps on the bed", topic="cat")
        links = await session.memories.links(first.id)

    assert [first.id] == ids(second.warnings.possible_replacements)
    assert [] == [one for one in links if one.link_type == "evolution"]


def test_judge_must_be_callable():
    """Other values are rejected before anything is opened."""
    with pytest.raises(InvalidArgument, match="judge must be a function of a memory and a list of memories, got str"):
        Session.open(judge="me")


async def test_remember_calls_judge_and_save_many_does_not():
    """The judge is called for each extracted record, including several of one answer."""
    judge = Judge("replace")
    records = [
        {"type": "decision", "topic": "login", "content": content, "messages": [1]}
        for content in ("Use sessions", "Use keys")
    ]
    async with opened(judge) as session:
        (first,) = await session.memories.save_many(
            [{"type": "decision", "topic": "login", "content": "Use JWT", "reasoning": "so it is"}]
        )
        learned = await session.remember("Use sessions, no: use keys", extract=lambda *_: {"records": records})
        chain = await session.memories.history(first.id)
        await session.memories.save_many(
            [{"type": "decision", "topic": "login", "content": "Use passes", "reasoning": "so it is"}]
        )

    assert [*ids(learned.saved)[::-1], first.id] == ids(chain.memories)
    assert ["Use sessions", "Use keys"] == [new.content for new, _ in judge.asked]
