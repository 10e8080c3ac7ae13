"""Embedding for concurrent callers: batches, cache, failures, cancellation, closing."""

import asyncio
import logging
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import Session
from mama_structs.errors import EmbeddingFailed, InvalidArgument, SessionClosed, WrongLoop
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.chunks import replace_surrogates, split_text
from mama_structs.memory.embedding.factory import as_embedder
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import Calibration

HASH = HashEmbedder(dimensions=32)


class Recorder:
    """An embedder that records its calls, and fails for texts that the test chooses."""

    name = "recorder"
    dimensions = 32
    max_tokens = 64
    batch_size = 64
    calibration = Calibration()

    def __init__(self, *, poison=None, error=ValueError):
        self.calls = []
        self.threads = set()
        self.poison = poison
        self.error = error

    def embed(self, texts, *, kind="document"):
        self.calls.append((kind, list(texts)))
        self.threads.add(threading.current_thread().name)
        if self.poison is not None and any(self.poison in text for text in texts):
            raise self.error("no vector for " + " ".join(texts))
        return HASH.embed(texts)


class Direct:
    """An async embedder that returns vectors without starting a thread."""

    name = "direct"
    dimensions = 32
    max_tokens = 16
    calibration = Calibration()

    async def embed(self, texts, *, kind="document"):
        return HASH.embed(texts)


class Gate:
    """An async embedder that blocks until the test releases it."""

    name = "gate"
    dimensions = 32
    max_tokens = 64
    calibration = Calibration()

    def __init__(self):
        self.calls = []
        self.open = asyncio.Event()

    async def embed(self, texts, *, kind="document"):
        self.calls.append((kind, list(texts)))
        await self.open.wait()
        return HASH.embed(texts)


async def until(condition):
    while not condition():  # noqa: ASYNC110 - the condition has no event
        await asyncio.sleep(0.001)


@pytest.fixture
async def recorder():
    return Recorder()


@pytest.fixture
async def service(recorder):
    service = EmbeddingService(recorder)
    yield service
    await service.close()


async def test_concurrent_callers_share_one_call(service, recorder):
    """Concurrent requests are one call of the embedder, outside of the event loop."""
    found = await asyncio.gather(*(service.embed_documents([f"text {n}"]) for n in range(64)))

    assert 1 == len(recorder.calls)
    assert threading.current_thread().name not in recorder.threads
    for n, (vectors,) in enumerate(found):
        assert np.array_equal(HASH.embed([f"text {n}"]), vectors)


@given(
    groups=st.lists(st.lists(st.text(st.characters(), max_size=80), max_size=3), max_size=5),
    batch_size=st.integers(1, 8),
    cache=st.sampled_from([0, 2, 100]),
)
def test_batched_vectors_equal_single_vectors(groups, batch_size, cache):
    """Batches, sharing and the cache do not change vectors."""

    async def together():
        service = EmbeddingService(Direct(), cache_entries=cache, batch_size=batch_size)
        found = await asyncio.gather(*(service.embed_documents(texts) for texts in groups))
        again = await asyncio.gather(*(service.embed_documents(texts) for texts in groups))
        await service.close()
        return found, again

    def alone(text):
        return np.concatenate(
            [HASH.embed([text[start:end]]) for start, end in split_text(text, Direct.max_tokens).spans]
        )

    for texts, one, two in zip(groups, *asyncio.run(together()), strict=True):
        assert len(texts) == len(one) == len(two)
        for text, first, second in zip(texts, one, two, strict=True):
            assert np.array_equal(first, second)
            assert np.array_equal(alone(replace_surrogates(text)), first)


async def test_equal_texts_are_embedded_once(service, recorder):
    """Covers texts within a call, of concurrent callers, and in the cache."""
    await asyncio.gather(service.embed_documents(["same", "same"]), service.embed_documents(["same"]))
    await service.embed_documents(["same"])

    assert [("document", ["same"])] == recorder.calls
    assert (1, 1, 3) == (service.stats.calls, service.stats.texts, service.stats.reused)


async def test_cache_separates_queries_from_documents(service, recorder):
    """A text may have different vectors as query and document."""
    await service.embed_documents(["same"])
    await service.embed_query("same")
    await service.embed_query("same")

    assert ["document", "query"] == [kind for kind, _ in recorder.calls]


async def test_cache_evicts_least_recently_used_vectors():
    """The cache never exceeds its maximum number of chunks."""
    recorder = Recorder()
    service = EmbeddingService(recorder, cache_entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        await service.embed_documents([text])
    await service.close()

    assert ["a", "b", "c", "b"] == [texts[0] for _, texts in recorder.calls]


async def test_batches_do_not_exceed_batch_size(recorder):
    """A hundred texts in batches of ten are ten calls, with each text in one of them."""
    service = EmbeddingService(recorder, batch_size=10)
    await service.embed_documents([f"text {n}" for n in range(100)])
    await service.close()

    assert [10] * 10 == [len(texts) for _, texts in recorder.calls]
    assert 100 == len({text for _, texts in recorder.calls for text in texts})


async def test_query_is_embedded_before_waiting_documents():
    """The query becomes part of the next call of the embedder."""
    gate = Gate()
    service = EmbeddingService(gate, batch_size=2)
    saving = asyncio.create_task(service.embed_documents([f"text {n}" for n in range(6)]))
    await until(lambda: gate.calls)
    asking = asyncio.create_task(service.embed_query("where?"))
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(saving, asking)
    await service.close()

    assert ["document", "query", "document", "document"] == [kind for kind, _ in gate.calls]


async def test_long_text_has_one_vector_per_chunk(service, recorder):
    """
    The chunks are returned together, even in a mixed batch.

    The vector of a long query is their mean.
    """
    long = " ".join(f"Shield {n} of the planet stands." for n in range(40))
    short, pieces, empty = await service.embed_documents(["short", long, ""])
    query = await service.embed_query(long)

    assert (1, 32) == short.shape == empty.shape
    assert 1 < len(pieces) == len(recorder.calls[-1][1])
    assert np.float32 == query.dtype
    assert (32,) == query.shape
    assert 1 == pytest.approx(float(np.linalg.norm(query)), abs=1e-5)
    assert 0.5 < float(pieces.mean(axis=0) @ query)


async def test_omitted_chunks_are_logged_without_text(service, caplog):
    """The log contains only counts."""
    with caplog.at_level(logging.WARNING, logger="mama_structs"):
        (pieces,) = await service.embed_documents(["One secret of many. " * 3_000])

    assert 64 == len(pieces)
    assert "64 pieces spread over it" in caplog.text
    assert "secret" not in caplog.text


async def test_embedder_failure_is_reported_without_text(recorder):
    """The error contains the embedder's name and the error type, and keeps the cause."""
    recorder.poison = "secret"
    service = EmbeddingService(recorder)
    with pytest.raises(EmbeddingFailed) as caught:
        await service.embed_documents(["my secret"])
    await service.close()

    assert "the embedder 'recorder' raised ValueError for 1 texts" == str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "secret" not in str(caught.value)


async def test_failing_text_does_not_affect_other_callers():
    """If a shared call fails, the texts of each caller are retried separately."""
    recorder = Recorder(poison="poison")
    service = EmbeddingService(recorder)
    found = await asyncio.gather(
        *(service.embed_documents([text]) for text in ("one", "poison", "two")), return_exceptions=True
    )
    await service.close()

    assert [False, True, False] == [isinstance(one, EmbeddingFailed) for one in found]


async def test_failing_embedder_is_not_retried_for_every_caller():
    """After some separate retries have failed, the remaining callers fail immediately."""
    recorder = Recorder(poison="", error=OSError)
    service = EmbeddingService(recorder)
    found = await asyncio.gather(*(service.embed_documents([f"text {n}"]) for n in range(50)), return_exceptions=True)
    await service.close()

    assert all(isinstance(one, EmbeddingFailed) for one in found)
    assert 50 == len({id(one) for one in found})
    assert len(recorder.calls) <= 4


async def test_invalid_vector_fails_only_its_text():
    """NaN for one text does not affect the other texts of the batch."""

    def some(texts):
        vectors = HASH.embed(texts)
        vectors[[text == "odd" for text in texts]] = np.nan
        return vectors

    service = EmbeddingService(as_embedder(some, name="x", dimensions=32, calibration=Calibration()))
    good, bad = await asyncio.gather(
        service.embed_documents(["good"]), service.embed_documents(["odd"]), return_exceptions=True
    )
    await service.close()

    assert (1, 32) == good[0].shape
    assert "the embedder's vector of a text holds a number that is not finite" == str(bad)


@pytest.mark.parametrize("wrong", [[[1.0, 2.0]], "text", None, [["a"] * 32]])
async def test_invalid_vectors_are_rejected(wrong):
    """Wrong shapes and types raise an error."""
    service = EmbeddingService(as_embedder(lambda texts: wrong, name="x", dimensions=32, calibration=Calibration()))
    with pytest.raises(EmbeddingFailed, match="the embedder gave"):
        await service.embed_documents(["one"])
    await service.close()


async def test_vectors_of_any_length_are_normalized():
    """Lists of numbers are accepted."""
    service = EmbeddingService(
        as_embedder(lambda texts: [[3, 4] for _ in texts], name="x", dimensions=2, calibration=Calibration())
    )
    (vectors,) = await service.embed_documents(["one"])
    await service.close()

    assert [[pytest.approx(0.6), pytest.approx(0.8)]] == vectors.tolist()


async def test_async_embedder_runs_in_event_loop():
    """Covers async functions, and plain functions that return a coroutine."""
    threads = []

    async def fn(texts):
        threads.append(threading.current_thread())
        return HASH.embed(texts)

    for embedder in (
        as_embedder(fn, name="x", dimensions=32, calibration=Calibration()),
        as_embedder(lambda texts, /: fn(texts), name="x", dimensions=32, calibration=Calibration()),
    ):
        service = EmbeddingService(embedder)
        await service.embed_documents(["one"])
        await service.close()

    assert [threading.current_thread()] * 2 == threads


async def test_cancelled_caller_does_not_affect_shared_batch():
    """The remaining caller gets its vectors, even for a text that both requested."""
    gate = Gate()
    service = EmbeddingService(gate)
    leaving = asyncio.create_task(service.embed_documents(["shared", "mine"]))
    staying = asyncio.create_task(service.embed_documents(["shared"]))
    await until(lambda: gate.calls)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gate.open.set()
    found = await staying
    await service.close()

    assert np.array_equal(HASH.embed(["shared"]), found[0])


async def test_text_of_cancelled_caller_is_not_embedded():
    """A caller that is cancelled before its batch starts costs nothing."""
    gate = Gate()
    service = EmbeddingService(gate)
    first = asyncio.create_task(service.embed_documents(["first"]))
    await until(lambda: gate.calls)
    leaving = asyncio.create_task(service.embed_documents(["second"]))
    await asyncio.sleep(0)
    leaving.cancel()
    gate.open.set()
    await asyncio.gather(first, leaving, return_exceptions=True)
    await service.embed_documents(["third"])
    await service.close()

    assert [["first"], ["third"]] == [texts for _, texts in gate.calls]


@pytest.mark.parametrize("turns", range(8))
async def test_cancelled_call_leaves_no_text_or_task(turns):
    """After a cancellation at any point, the service still works."""
    gate = Gate()
    gate.open.set()
    service = EmbeddingService(gate)
    task = asyncio.create_task(service.embed_documents(["a", "b"]))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    found = await service.embed_documents(["a"])
    await service.close()

    assert np.array_equal(HASH.embed(["a"]), found[0])
    assert ({}, 0) == (service._texts, sum(map(len, service._queues.values())))
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_close_fails_waiting_callers():
    """They get a typed error, the thread ends, and a second close does nothing."""
    gate = Gate()
    service = EmbeddingService(gate)
    waiting = asyncio.create_task(service.embed_documents(["one"]))
    await until(lambda: gate.calls)
    await service.close()
    await service.close()

    with pytest.raises(SessionClosed):
        await waiting
    with pytest.raises(SessionClosed):
        await service.embed_query("more")
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_close_fails_caller_that_still_adds_texts():
    """No caller waits forever."""
    gate = Gate()
    service = EmbeddingService(gate)
    waiting = asyncio.create_task(service.embed_documents([f"{n}" for n in range(1_000)]))
    await asyncio.sleep(0)
    await service.close()

    with pytest.raises(SessionClosed):
        await asyncio.wait_for(waiting, 600)


async def test_close_waits_for_embedder_thread(service):
    """A running synchronous embedder does not outlive the session."""
    started, ended = threading.Event(), threading.Event()

    def slow(texts):
        started.set()
        ended.wait(600)
        return HASH.embed(texts)

    slow_service = EmbeddingService(as_embedder(slow, name="x", dimensions=32, calibration=Calibration()))
    waiting = asyncio.create_task(slow_service.embed_documents(["one"]))
    await until(started.is_set)
    closing = asyncio.create_task(slow_service.close())
    await asyncio.sleep(0.02)

    assert not closing.done()
    ended.set()
    await closing
    with pytest.raises(SessionClosed):
        await waiting


def test_service_works_after_keyboard_interrupt():
    """Waiting callers fail, and the next call in the same loop is served."""
    calls = []

    async def fn(texts):
        calls.append(texts)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return HASH.embed(texts)

    loop = asyncio.new_event_loop()
    service = EmbeddingService(as_embedder(fn, name="x", dimensions=32, calibration=Calibration()))
    waiting = loop.create_task(service.embed_documents(["one"]))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(waiting)
    with pytest.raises(EmbeddingFailed, match="embedding was interrupted"):
        loop.run_until_complete(waiting)
    found = loop.run_until_complete(service.embed_documents(["one"]))
    loop.run_until_complete(service.close())
    loop.close()

    assert (1, 32) == found[0].shape


async def test_call_from_other_loop_raises(service):
    """Without an error, the call would wait forever."""
    await service.embed_documents(["one"])

    with pytest.raises(WrongLoop):
        await asyncio.to_thread(lambda: asyncio.run(service.embed_documents(["one"])))


def test_close_after_loop_has_ended_succeeds():
    """A forgotten service can still be closed."""
    service = EmbeddingService(Recorder())
    asyncio.run(service.embed_documents(["one"]))
    asyncio.run(service.close())

    assert service._is_closed


async def test_unknown_embedder_is_calibrated_once_before_first_use():
    """Concurrent first callers share the calibration."""
    calls = []

    def fn(texts):
        calls.append(len(texts))
        return HASH.embed(texts)

    embedder = as_embedder(fn, name="x", dimensions=32)
    service = EmbeddingService(embedder)
    await asyncio.gather(*(service.embed_documents([f"text {n}"]) for n in range(10)))

    assert embedder.is_calibrated
    assert embedder.calibration is await service.calibration()
    assert 10 == sum(calls[1:])
    assert calls[0] > 50
    await service.close()


async def test_long_texts_do_not_block_event_loop(service):
    """Other tasks run while ten thousand texts and one huge text are prepared."""
    turns = 0

    async def watch():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    watching = asyncio.create_task(watch())
    await service.embed_documents(["planet and shield " * 5_000])
    after_one = turns
    await service.embed_documents([f"text {n}" for n in range(2_000)])
    watching.cancel()

    assert after_one > 5
    assert turns - after_one > 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embedder": len}, "embedder must have name, dimensions"),
        ({"cache_entries": -1}, "cache_entries must be a whole number, 0 or more, got -1"),
        ({"batch_size": 0}, "batch_size must be"),
    ],
)
def test_service_rejects_invalid_arguments(arguments, message):
    """The error contains argument, value and rule."""
    with pytest.raises(InvalidArgument, match=message):
        EmbeddingService(**({"embedder": Recorder()} | arguments))


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        ((0.5, 12.0), "the embedder's calibration must be a Calibration, got a tuple of length 2"),
        (None, "the embedder's calibration must be a Calibration, got None"),
        (Calibration(12.0, 0.5), "the midpoint of the embedder's calibration must be a cosine from -1 to 1, got 12.0"),
    ],
)
async def test_wrong_calibration_is_rejected_when_a_session_opens(calibration, message):
    """The error names the type, or the range that a wrong order of the numbers exceeds, before any search."""
    embedder = Recorder()
    embedder.calibration = calibration
    with pytest.raises(InvalidArgument, match=message):
        await Session.open(embedder=embedder)
    if calibration is not None:
        with pytest.raises(InvalidArgument, match="calibration must be"):
            as_embedder(embedder.embed, name="x", dimensions=32, calibration=calibration)


async def test_texts_must_be_a_sequence_of_str(service):
    """A single text would be embedded character by character."""
    for wrong in ("text", [b"bytes"], [None]):
        with pytest.raises(InvalidArgument, match="texts must be a sequence of str"):
            await service.embed_documents(wrong)
    assert [] == await service.embed_documents([])


class Loaded(Recorder):
    """An embedder whose model is loaded when the test releases it."""

    def __init__(self, *, error=None):
        super().__init__()
        self.loading_error = error
        self.begun, self.hold = threading.Event(), threading.Event()
        self.loads = 0

    def load_model(self):
        self.begun.set()
        self.hold.wait(600)
        self.loads += 1
        if self.loading_error is not None:
            raise self.loading_error


async def test_call_waits_for_the_model_that_is_being_loaded():
    """The model is loaded once, in the thread that embeds."""
    embedder = Loaded()
    service = EmbeddingService(embedder)
    service.start_loading()
    service.start_loading()
    await asyncio.to_thread(embedder.begun.wait, 600)
    call = asyncio.ensure_future(service.embed_documents(["a text"]))
    await asyncio.sleep(0)
    assert embedder.calls == []
    embedder.hold.set()
    await call
    assert (1, 1) == (embedder.loads, len(embedder.calls))
    await service.close()


async def test_model_that_cannot_be_loaded_fails_the_calls_for_vectors_only():
    """The error of loading is not logged as an unhandled exception, and a call raises its own error."""
    embedder = Loaded(error=OSError("no file"))
    embedder.poison = "text"
    embedder.hold.set()
    service = EmbeddingService(embedder)
    service.start_loading()
    with pytest.raises(EmbeddingFailed, match="recorder"):
        await service.embed_documents(["a text"])
    await service.close()


async def test_close_waits_for_the_loading_thread():
    embedder = Loaded()
    service = EmbeddingService(embedder)
    service.start_loading()
    await asyncio.to_thread(embedder.begun.wait, 600)
    closing = asyncio.ensure_future(service.close())
    await asyncio.sleep(0)
    embedder.hold.set()
    await closing
    assert 1 == embedder.loads


async def test_embedder_without_model_starts_no_loading(service):
    service.start_loading()
    assert service._loading is None


async def test_session_that_is_closed_at_once_loads_no_model():
    embedder = Loaded()
    service = EmbeddingService(embedder)
    service.start_loading()
    await asyncio.sleep(0)
    await service.close()
    assert not embedder.begun.is_set()


async def test_async_load_model_is_not_called():
    """It belongs to another interface, because only a synchronous method can run in a thread."""

    class Other(Recorder):
        async def load_model(self):
            raise AssertionError

    service = EmbeddingService(Other())
    service.start_loading()
    await service.embed_documents(["a text"])
    assert service._loading is None
    await service.close()
