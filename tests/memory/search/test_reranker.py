"""Reranking of the best hits: the resulting order, its constraints, and failures of rerankers."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL, plain_link, plain_memory

from mama_structs import MemorySettings, Session, Settings
from mama_structs._internal.event_loop import LoopGuard
from mama_structs.errors import InvalidArgument, InvalidSetting, RerankingFailed, SessionClosed
from mama_structs.memory.embedding.protocol import Calibration, unadjusted_query
from mama_structs.memory.search.reranker_runner import RerankerRunner, apply_scores
from mama_structs.memory.search.search_plan import find_hits
from mama_structs.memory.search.search_request import SearchRequest
from mama_structs.memory.search.time_expressions import find_period
from mama_structs.memory.types.model import OUTCOME_OF_WORD, LinkType, MemoryType
from mama_structs.memory.types.reranker import Reranker, as_reranker
from mama_structs.testing.plain_engine import PlainEngine

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400.0
NOTES = [
    "the red door is locked",
    "the blue door is open",
    "a door of glass",
    "the key is under the mat",
    "lunch at noon",
]


class Preferring:
    """A reranker that gives a higher score to texts with *word*, and records the texts that it scored."""

    name = "preferring"

    def __init__(self, word, **hints):
        self.word = word
        self.calls = []
        self.threads = set()
        vars(self).update(hints)

    def rerank(self, query, texts):
        self.calls.append((query, list(texts)))
        self.threads.add(threading.current_thread().name)
        return [float(self.word in text) for text in texts]


class Waiting:
    """An async reranker that waits until the test releases it."""

    name = "waiting"

    def __init__(self):
        self.open = asyncio.Event()
        self.begun = asyncio.Event()
        self.left = 0
        self.at_once = self.most_at_once = 0

    async def rerank(self, query, texts):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.at_once -= 1
        return [float("key" in text) for text in texts]


def opening(reranker, **options):
    return Session.open(embedder=SMALL, reranker=reranker, settings=Settings(memory=MemorySettings(**options)))


async def noted(session):
    for note in NOTES:
        await session.memories.save_insight(note)
    return session.memories


def contents(hits):
    return [hit.memory.content for hit in hits]


# The order


async def test_reranker_determines_order_of_hits():
    """Its score is in `parts`, and relevance is unchanged."""
    async with opening(None) as session:
        memories = await noted(session)
        plain = await memories.search("the door", limit=5)
    reranker = Preferring("key")
    async with opening(reranker) as session:
        memories = await noted(session)
        hits = await memories.search("the door", limit=5)

        assert memories.reranker is reranker
    assert "the key is under the mat" != plain[0].memory.content
    assert [
        "the key is under the mat",
        *(one for one in contents(plain) if one != "the key is under the mat"),
    ] == contents(hits)
    assert [1, 0, 0, 0, 0] == [hit.signals["reranker"] for hit in hits]
    assert [hit.score for hit in plain] == pytest.approx([hit.score for hit in hits])
    assert {hit.memory.content: hit.relevance for hit in plain} == pytest.approx(
        {hit.memory.content: hit.relevance for hit in hits}
    )


async def test_reranking_is_off_by_default():
    """Without a reranker, the statistics contain none."""
    async with opening(None) as session:
        memories = await noted(session)
        hits = await memories.search("the door")

        assert memories.reranker is None
        assert "reranking" not in await memories.stats()
    assert all("reranker" not in hit.signals for hit in hits)


async def test_reranker_reads_more_hits_than_requested():
    """It reads the best fifty, so a hit with a low first score can become the best one."""
    reranker = Preferring("n° 17.")
    async with opening(reranker) as session:
        await session.memories.save_many({"type": "insight", "content": f"door n° {n}."} for n in range(60))
        (hit,) = await session.memories.search("door n° 17", limit=1)
        everything = await session.memories.search("door", limit=60)

        assert 120 == len(reranker.calls[0][1]) + len(reranker.calls[1][1]) + 20
    assert "door n° 17." == hit.memory.content
    assert 60 == len(everything) == len({one.memory.id for one in everything})
    assert [True] * 50 + [False] * 10 == ["reranker" in one.signals for one in everything]
    assert sorted((one.score for one in everything), reverse=True) == [one.score for one in everything]


async def test_number_of_reranked_hits_is_a_setting():
    """Further hits keep their original order."""
    reranker = Preferring("lunch")
    async with opening(reranker, rerank_limit=2) as session:
        memories = await noted(session)
        hits = await memories.search("the door", limit=5)

    assert [2] == [len(texts) for _, texts in reranker.calls]
    assert [2, 3] == [len(hits[:2]), len([hit for hit in hits if "reranker" not in hit.signals])]


async def test_reranker_gets_topic_and_reasons_within_its_limits():
    """
    Texts are the embedded ones, truncated to *max_chars*, in calls of *batch_size*.

    Texts of similar length are in the same call.
    """
    reranker = Preferring("x", max_chars=30, batch_size=2)
    async with opening(reranker) as session:
        await session.memories.save_decision(
            "Keep doors shut", topic="doors", reasoning="It is cold in winter, and long"
        )
        await session.memories.save_insight("door")
        await session.memories.save_insight("another door than that one, which is long")
        await session.memories.search("door?")

    assert [2, 1] == [len(texts) for _, texts in reranker.calls]
    assert {"door?"} == {query for query, _ in reranker.calls}
    assert "door" == reranker.calls[0][1][0]
    assert {"doors: Keep doors shut\nIt is c", "another door than that one, wh"} == {
        text for _, texts in reranker.calls for text in texts
    } - {"door"}


async def test_reranked_search_respects_filters_and_as_of():
    """Texts that a filter or `as_of` excludes are not passed to the reranker."""
    reranker = Preferring("door")
    async with opening(reranker) as session:
        memories = session.memories
        await memories.save_insight("old door", created_at=START)
        await memories.save_insight("new door", created_at=START + timedelta(days=9))
        await memories.save_context("door of another kind", created_at=START)
        hits = await memories.search("door", type="insight", as_of=START + timedelta(days=1))

    assert ["old door"] == contents(hits)
    assert [["old door"]] == [texts for _, texts in reranker.calls]


async def test_successor_stays_before_superseded_memory_when_reranked():
    """A reranker sees only texts, and may prefer the superseded decision."""
    async with opening(Preferring("JWT")) as session:
        memories = session.memories
        jwt = await memories.save_decision("Use JWT for logins", topic="auth", reasoning="stateless")
        redis = await memories.supersede(jwt.id, "Keep logins in Redis", reasoning="can be ended at once")
        for note in NOTES:
            await memories.save_insight(note)
        hits = await memories.search("logins")
        before = await memories.search("logins", superseded="keep")

    assert [redis.id, jwt.id] == [hit.memory.id for hit in hits[:2]]
    assert redis.id == hits[1].superseded_by
    assert jwt.id == before[0].memory.id


async def test_decision_stays_before_reason_of_outcome_when_reranked():
    """The decision gets the reranker's score of its reason."""
    async with opening(Preferring("stolen")) as session:
        memories = session.memories
        jwt = await memories.save_decision("Use JWT for logins", topic="auth", reasoning="stateless")
        for note in NOTES:
            await memories.save_insight(note)
        await memories.set_outcome(jwt.id, "FAILED", reason="A stolen token could not be revoked.")
        hits = await memories.search("stolen tokens and the door")

    assert jwt.id == hits[0].memory.id
    assert "A stolen token could not be revoked." in contents(hits[1:])


async def test_memories_of_requested_period_stay_first_when_reranked():
    """The text of a memory does not contain its time."""
    async with opening(Preferring("red")) as session:
        memories = session.memories
        await memories.save_insight("the red door is locked", created_at=START)
        await memories.save_insight("the blue door is open", created_at=START + timedelta(days=60))
        hits = await memories.search("doors in March", as_of=START + timedelta(days=100))

    assert ["the blue door is open", "the red door is locked"] == contents(hits)


async def test_search_tool_uses_reranker():
    """Searches by a model use the same path."""
    for word in ("red", "blue"):
        async with opening(Preferring(word)) as session:
            await session.memories.save_insight("the red door is locked")
            await session.memories.save_insight("a blue gate of iron")
            answer = await session.call("search/by_context", {"query": "red doors or blue gates"})

        assert 2 == len(answer["found"])
        assert word in answer["found"][0]["content"]


class Store:
    """A plain engine with decisions that replace one another, their outcomes, and notes, each one day apart."""

    def __init__(self, replaced, outcomes):
        self.engine = PlainEngine(embedder=None)
        self.reader = self.engine.memories
        self.replaced = replaced
        self.outcomes = outcomes
        for n in range(6):
            self._add(f"d{n}", MemoryType.DECISION, n)
        for n in range(3):
            self._add(f"n{n}", MemoryType.INSIGHT, 6 + n)
        for new, old in replaced:
            self._link(f"d{new}", f"d{old}", "supersedes", LinkType.EVOLUTION)
        for n in outcomes:
            self._add(f"o{n}", MemoryType.CONTEXT, 9 + n, source=OUTCOME_OF_WORD)
            self._link(f"o{n}", f"d{n}", OUTCOME_OF_WORD, LinkType.IMPLEMENTATION)

    def _add(self, name, kind, day, **metadata):
        vector = np.array([[np.cos(day), np.sin(day)]], np.float32)
        self.reader.put(plain_memory(name, f"door {name}", type=kind, at=day * DAY, **metadata), vectors=vector)

    def _link(self, new, old, relationship, link_type):
        self.reader.put_link(plain_link(new, old, relationship, type=link_type, created_by="user"))

    def hits(self, text, *, superseded="demote"):
        request = SearchRequest(
            text=text,
            content=text,
            vectors=unadjusted_query(np.array([1, 0], np.float32)),
            period=find_period(text, START + timedelta(days=30)),
            now=START + timedelta(days=30),
            limit=20,
            superseded=superseded,
            calibration=Calibration(0.3, 12.0),
        )
        return find_hits(self.reader, request)


def stores():
    # A decision can only replace an older one, so there are chains and forks but no cycles.
    pairs = st.tuples(st.integers(1, 5), st.integers(0, 4)).filter(lambda pair: pair[0] > pair[1])
    return st.builds(Store, st.sets(pairs, max_size=4), st.sets(st.integers(0, 5), max_size=3))


SCORES = st.lists(st.floats(-5, 5).map(lambda one: round(one, 1)), min_size=12, max_size=12)


@given(store=stores(), scores=SCORES, period=st.booleans(), superseded=st.sampled_from(["demote", "keep"]))
@settings(max_examples=60)
def test_reranking_with_any_scores_keeps_rules(store, scores, period, superseded):
    """
    No hit is lost or repeated, scores decrease, and successors stay first.

    Unlinked hits are sorted by the reranker's score.
    """
    hits, precedence = store.hits("door of January 3 to January 8" if period else "door", superseded=superseded)
    given = np.array(scores[: len(hits)])
    found = apply_scores(hits, precedence, given)
    place = {hit.memory.id: at for at, hit in enumerate(found)}
    score_of = {hit.memory.id: score for hit, score in zip(hits, given.tolist(), strict=True)}

    assert sorted(place) == sorted(hit.memory.id for hit in hits)
    assert [hit.score for hit in hits] == [hit.score for hit in found]
    assert score_of == {hit.memory.id: hit.signals["reranker"] for hit in found}
    if superseded != "keep" and not period:
        assert all(place[f"d{new}"] < place[f"d{old}"] for new, old in store.replaced)
    if not period:
        assert all(place[f"d{n}"] < place[f"o{n}"] for n in store.outcomes)
        free = [hit.memory.id for hit in hits if hit.memory.id[0] == "n"]
        assert sorted(free, key=place.get) == sorted(free, key=lambda one: -score_of[one])


@given(store=stores(), scores=SCORES)
@settings(max_examples=30)
def test_reranking_depends_on_score_order_only(store, scores):
    """Equal scores keep a valid order, and the scale of the scores is irrelevant."""
    hits, precedence = store.hits("door")
    same = apply_scores(hits, precedence, np.zeros(len(hits)))
    given = np.array(scores[: len(hits)])

    # Equal scores keep the order, unless borrowed scores moved an outcome before its decision or forks are ambiguous.
    forks = any(len(store.replaced) != len(set(side)) for side in zip(*store.replaced, strict=True))
    assert store.outcomes or forks or [hit.memory.id for hit in hits] == [hit.memory.id for hit in same]
    assert [hit.memory.id for hit in apply_scores(hits, precedence, given)] == [
        hit.memory.id for hit in apply_scores(hits, precedence, given * 2 + 1)
    ]


# Failures


async def test_search_succeeds_when_reranker_raises(caplog):
    """The order is the original one, and the log contains the error but no text."""

    def broken(query, texts):
        raise OSError("no route to the door")

    async with opening(None) as session:
        plain = contents(await (await noted(session)).search("the door"))
    async with opening(as_reranker(broken, name="far")) as session:
        memories = await noted(session)
        with caplog.at_level(logging.WARNING, logger="mama_structs"):
            hits = await memories.search("the door")

        assert {"searches": 1, "failed": 1, "late": 0, "texts": 0} == {
            name: count for name, count in (await memories.stats())["reranking"].items() if name != "seconds"
        }
    assert plain == contents(hits)
    assert all("reranker" not in hit.signals for hit in hits)
    assert "the reranker far raised OSError: a search goes on without" in caplog.text
    assert "door" not in caplog.text


async def test_reranker_that_raises_stop_iteration_is_handled():
    """StopIteration cannot pass through a future, so searches would wait for the timeout."""
    async with opening(as_reranker(lambda query, texts: next(iter(())), name="dry")) as session:
        memories = await noted(session)
        for _ in range(2):
            assert 5 == len(await memories.search("the door"))

        assert {"failed": 2, "late": 0} == {
            name: count for name, count in (await memories.stats())["reranking"].items() if name in ("failed", "late")
        }


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
async def test_search_ignores_scores_that_are_not_finite(caplog, odd):
    """If a model overflows for one text, none of its scores are used."""
    async with opening(as_reranker(lambda query, texts: [odd] + [1.0] * (len(texts) - 1), name="odd")) as session:
        hits = await (await noted(session)).search("the door")

    assert 5 == len(hits)
    assert "the reranker odd gave what is not finite" in caplog.text


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda texts: [1.0], r"array of shape \(1,\) for 5 texts"),
        (lambda texts: [[1.0]] * len(texts), r"array of shape \(5, 1\) for 5 texts"),
        (lambda texts: ["good"] * len(texts), "expected numbers"),
        (lambda texts: None, "expected numbers"),
        (lambda texts: [[1.0], [1.0, 2.0]], "no array of numbers"),
    ],
)
async def test_reranker_with_wrong_result_type_raises(answer, message):
    """It can never work, so the first search raises an error."""
    async with opening(as_reranker(lambda query, texts: answer(texts), name="odd")) as session:
        memories = await noted(session)
        with pytest.raises(RerankingFailed, match=message) as caught:
            await memories.search("the door")

    assert "rerank() must return 5 numbers for 5 texts" in caught.value.hint


async def test_search_raises_when_reranker_reports_permanent_error():
    """A missing file must not be ignored silently in every search."""

    async def missing(query, texts):
        raise RerankingFailed("there is no file model.onnx")

    async with opening(as_reranker(missing, name="missing")) as session:
        memories = await noted(session)
        with pytest.raises(RerankingFailed, match=r"no file model\.onnx"):
            await memories.search("the door")


async def test_search_succeeds_when_reranker_times_out(caplog):
    """After the timeout the search returns the original order, and the call is cancelled."""
    reranker = Waiting()
    async with opening(reranker, rerank_timeout=0.01) as session:
        memories = await noted(session)
        hits = await memories.search("the door")
        late = (await memories.stats())["reranking"]["late"]
        reranker.open.set()

        assert 1 == late == reranker.left
    assert 5 == len(hits)
    assert all("reranker" not in hit.signals for hit in hits)
    assert "the reranker waiting took longer than 0.01 s" in caplog.text


async def test_hanging_reranker_thread_blocks_no_search():
    """
    Other searches time out.

    When the call ends, the next search is reranked, and no old one is.
    """
    gate = threading.Event()
    calls = []

    def hanging(query, texts):
        calls.append(query)
        gate.wait()
        return [float("key" in text) for text in texts]

    async with opening(as_reranker(hanging, name="hanging"), rerank_timeout=0.01) as session:
        memories = await noted(session)
        for query in ("first door", "second door", "third door"):
            assert 5 == len(await memories.search(query))
        only = list(calls)
        gate.set()
        hits = await _until_reranked(memories)

    assert ["first door"] == only
    assert {"first door", "door"} == set(calls)
    assert "the key is under the mat" == hits[0].memory.content


async def _until_reranked(memories):
    while True:
        hits = await memories.search("door")
        if "reranker" in hits[0].signals:
            return hits


# Concurrency


async def test_sync_reranker_runs_in_one_thread():
    """Concurrent searches take turns, outside of the event loop."""
    reranker = Preferring("key")
    async with opening(reranker) as session:
        memories = await noted(session)
        found = await asyncio.gather(*(memories.search(f"door {n}") for n in range(8)))

    assert 8 == len(reranker.calls)
    assert ["mama-structs-reranking_0"] == sorted(reranker.threads)
    assert {"the key is under the mat"} == {hits[0].memory.content for hits in found}


async def test_async_reranker_calls_are_serialized():
    """It runs in the event loop, one call at a time."""
    reranker = Waiting()
    reranker.open.set()
    async with opening(reranker, rerank_timeout=600) as session:
        memories = await noted(session)
        found = await asyncio.gather(*(memories.search(f"door {n}") for n in range(8)))

    assert 1 == reranker.most_at_once
    assert {"the key is under the mat"} == {hits[0].memory.content for hits in found}


async def test_sync_reranker_may_return_awaitable():
    """The awaitable is awaited in the event loop."""

    async def later(texts):
        await asyncio.sleep(0)
        return np.array([float("key" in text) for text in texts], np.float16)

    async with opening(as_reranker(lambda query, texts: later(texts), name="later")) as session:
        hits = await (await noted(session)).search("the door")

    assert "the key is under the mat" == hits[0].memory.content


async def test_cancelled_search_cancels_reranker_call():
    """The next search starts immediately."""
    reranker = Waiting()
    async with opening(reranker, rerank_timeout=600) as session:
        memories = await noted(session)
        leaving = asyncio.create_task(memories.search("the door"))
        await reranker.begun.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        reranker.open.set()
        hits = await memories.search("the door")

    assert 1 == reranker.left
    assert "the key is under the mat" == hits[0].memory.content


@pytest.mark.parametrize("turns", range(12))
async def test_search_cancelled_at_any_point_leaves_no_task(turns):
    """After the cancellation, the next search is reranked."""
    async with opening(Preferring("key"), rerank_timeout=600) as session:
        memories = await noted(session)
        before = asyncio.all_tasks()
        task = asyncio.create_task(memories.search("the door"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        hits = await memories.search("the door")
        await asyncio.sleep(0)

        assert "the key is under the mat" == hits[0].memory.content
        assert before == asyncio.all_tasks() - {task}


async def test_close_raises_session_closed_in_waiting_search():
    """The close leaves no thread."""
    reranker = Waiting()
    session = await opening(reranker, rerank_timeout=600)
    memories = await noted(session)
    waiting = asyncio.create_task(memories.search("the door"))
    await reranker.begun.wait()
    await session.close()

    with pytest.raises(SessionClosed):
        await waiting
    assert 1 == reranker.left


async def test_close_ends_reranker_thread():
    session = await opening(Preferring("key"))
    await (await noted(session)).search("the door")
    threads = [one for one in threading.enumerate() if one.name.startswith("mama-structs-reranking")]
    await session.close()

    assert 1 == len(threads)
    threads[0].join()


async def test_forked_session_shares_reranker():
    """A fork searches like its parent session."""
    async with opening(Preferring("key")) as session:
        await noted(session)
        async with session.fork() as fork:
            hits = await fork.memories.search("the door")

    assert "the key is under the mat" == hits[0].memory.content


# Validation


def test_open_rejects_invalid_reranker():
    """The error is raised before anything is opened."""
    with pytest.raises(InvalidArgument, match=r"reranker must have name and rerank\(\), got int") as caught:
        Session.open(reranker=3)
    assert "as_reranker(fn, name=...)" in caught.value.hint
    with pytest.raises(InvalidArgument, match="fn must be callable, got a str"):
        as_reranker("fn", name="x")
    with pytest.raises(InvalidArgument, match="name must be text that is not empty"):
        as_reranker(len, name="")
    with pytest.raises(InvalidArgument, match="max_chars must"):
        as_reranker(len, name="x", max_chars=0)
    with pytest.raises(InvalidArgument, match="batch_size must"):
        Session.open(reranker=Preferring("x", batch_size=1.5))
    assert isinstance(as_reranker(len, name="x"), Reranker)


@pytest.mark.parametrize("wrong", [{"rerank_timeout": 0}, {"rerank_timeout": "2"}, {"rerank_limit": 0}])
def test_reranker_settings_are_validated(wrong):
    """The timeout must be a number of seconds, and the number of hits an integer."""
    with pytest.raises(InvalidSetting, match=next(iter(wrong))):
        MemorySettings(**wrong)


async def test_closed_runner_reranks_nothing():
    """Hits without rules are returned as they are, and scoring raises after closing, which is idempotent."""
    runner = RerankerRunner(Preferring("key"), loop=LoopGuard("rerankers"), seconds=5, at_most=3)
    assert [] == await runner.rerank_hits("key", [], None)
    await runner.close()
    await runner.close()

    with pytest.raises(SessionClosed):
        await runner._score_with_timeout("key", ["the key"])


def test_runner_of_closed_loop_can_be_closed_in_another_loop():
    """A session that was left open when its loop ended must not block."""
    guard = LoopGuard("rerankers")
    runner = RerankerRunner(Preferring("key"), loop=guard, seconds=5, at_most=3)

    async def score():
        guard.check()
        return await runner._score_with_timeout("key", ["the key", "a door"])

    assert [1.0, 0.0] == asyncio.run(score()).tolist()
    asyncio.run(runner.close())

    with pytest.raises(SessionClosed):
        asyncio.run(runner._score_with_timeout("key", ["the key"]))
