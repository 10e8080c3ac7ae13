"""Batch embedding for concurrent callers: deduplicated, cached, and off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import LoopGuard, SerialThread, run_in_own_thread, run_to_completion
from mama_structs._internal.introspection import is_async_callable
from mama_structs._internal.telemetry import instrument
from mama_structs.errors import EmbeddingFailed, InvalidArgument, SessionClosed
from mama_structs.memory.embedding.chunks import MIN_TOKENS, replace_surrogates, split_text
from mama_structs.memory.embedding.protocol import (
    Calibration,
    Embedder,
    Kind,
    QueryVectors,
    Vectors,
    adjust_query,
    calibrate_embedder,
    check_calibration,
    embed_texts,
)

_logger: Final = logging.getLogger("mama_structs")

DEFAULT_BATCH_SIZE: Final = 64  # Used if the embedder has no attribute batch_size.
GATHER_TURNS: Final = 3  # Number of event loop iterations to wait for more texts before a batch is sent.
MAX_CONSECUTIVE_FAILURES: Final = (
    3  # If a failed batch is retried caller by caller, this many failures in a row fail all remaining callers.
)
MIN_MEAN_LENGTH: Final = 1e-6  # If the mean of several unit vectors is shorter, the vectors cancel each other out.
PIECES_PER_TURN: Final = 256  # Number of chunks to process before other tasks of the event loop may run.
MIN_CHARS_FOR_THREAD: Final = 20_000  # Longer texts are split in a thread.
LOADING_DELAY_SECONDS: Final = 0.5
CLOSE_TIMEOUT_SECONDS: Final = 5.0  # Maximum time that close() waits for the embedding thread.


@attrs.define(eq=False)
class _PendingPiece:
    """A chunk of text that is queued for embedding."""

    key: bytes
    kind: Kind
    text: str
    caller: int
    # A failure is stored as a result, because asyncio logs exceptions that are never retrieved.
    done: asyncio.Future[NDArray[np.float32] | EmbeddingFailed | None]
    waiting: int = 0


@attrs.define
class EmbeddingStats:
    """
    Counters of an `EmbeddingService`.

    They count embedder calls, embedded chunks, chunks reused from the cache, and seconds spent in the embedder.
    """

    calls: int = 0
    texts: int = 0
    reused: int = 0
    seconds: float = 0.0


class EmbeddingService:
    """
    Embeds texts for any number of concurrent callers.

    Concurrent callers share batches: 64 concurrent saves need one or two calls of the embedder.
    Queries take precedence over queued documents.
    Equal texts are embedded once, also for concurrent callers, and cached.
    Calls of the embedder never overlap. An async embedder runs in the event loop, others in a thread of the service.
    A service belongs to one event loop.
    """

    def __init__(self, embedder: Embedder, *, cache_entries: int = 2048, batch_size: int | None = None) -> None:
        if not isinstance(embedder, Embedder):
            message = (
                f"embedder must have name, dimensions, max_tokens, calibration and embed(), got a {type(embedder)}"
            )
            raise InvalidArgument(message, hint="as_embedder(fn, name=..., dimensions=...) makes one of a function")
        if batch_size is None:
            batch_size = getattr(embedder, "batch_size", DEFAULT_BATCH_SIZE)
        _check.check_integer("cache_entries", cache_entries, 0, separator=",")
        _check.check_integer("batch_size", batch_size, 1, separator=",")
        _check.check_integer("the embedder's dimensions", embedder.dimensions, 1, separator=",")
        _check.check_integer("the embedder's max_tokens", embedder.max_tokens, MIN_TOKENS, separator=",")
        # A wrong calibration would only fail in the first search.
        check_calibration("the embedder's calibration", embedder.calibration)
        self.embedder: Final = embedder
        self.stats: Final = EmbeddingStats()
        self._name: Final = embedder.name
        self._batch_size = batch_size
        self._bound = LoopGuard("embedding service")
        self._cache: LRUCache[bytes, NDArray[np.float32]] = LRUCache(cache_entries)
        self._texts: dict[bytes, _PendingPiece] = {}
        self._queues: dict[Kind, deque[_PendingPiece]] = {"query": deque(), "document": deque()}
        self._task: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._thread = SerialThread("mama-structs-embedding")
        self._caller_count = 0
        self._calibration_lock = asyncio.Lock()
        self._is_closed = False

    async def calibration(self) -> Calibration:
        """Return the calibration of the embedder, fitting it first if it is unknown."""
        self._check()
        async with self._calibration_lock:
            self._check()
            return await calibrate_embedder(self.embedder, in_thread=self._thread.run)

    def start_loading(self) -> None:
        """
        Load the embedder's model in the thread of this service, if the embedder has a method ``load_model``.

        Meanwhile, calls for vectors wait. If the model cannot be loaded, they raise the error.
        """
        load = getattr(self.embedder, "load_model", None)
        if callable(load) and not is_async_callable(load) and self._loading is None:
            self._loading = asyncio.create_task(self._load(load), name="mama-structs-embedder-loading")

    async def _load(self, load: Callable[[], object]) -> None:
        # Closing waits for a model that is being loaded, so do not begin in sessions that are closed at once.
        await asyncio.sleep(LOADING_DELAY_SECONDS)
        # The first call for vectors loads the model again, and raises the error.
        with contextlib.suppress(Exception):
            await self._thread.run(load)

    async def embed_documents(self, texts: Sequence[str]) -> list[Vectors]:
        """
        Return normalised vectors of shape (chunks, dimensions) per text.

        Long texts are split into chunks.
        """
        return await self._vectors(texts, "document")

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        """
        Return the normalised vector of a query text.

        The vector of a text with several chunks is the mean of the chunks' vectors.
        """
        (pieces,) = await self._vectors([text], "query")
        if len(pieces) == 1:
            first: NDArray[np.float32] = pieces[0]
            return first
        mean = pieces.mean(axis=0, dtype=np.float64)
        length = float(np.linalg.norm(mean))
        # Vectors that cancel each other out have no usable mean, so use the first chunk.
        middle: NDArray[np.float32] = (mean / length if length > MIN_MEAN_LENGTH else pieces[0]).astype(np.float32)
        return middle

    async def embed_query_vectors(self, text: str) -> QueryVectors:
        """Return the vectors of a query text that make similarities comparable (`adjust_query`)."""
        return adjust_query(self.embedder, text, await self.embed_query(text))

    async def close(self) -> None:
        """Fail pending calls with `SessionClosed`, and wait a few seconds for the embedding thread to end."""
        if self._is_closed:
            return
        if not self._bound.is_unusable:
            self._bound.check()
        self._is_closed = True
        if not self._bound.is_unusable:
            await run_to_completion(self._close())
        elif not self._bound.is_forked_child:
            self._thread.abandon()

    async def _close(self) -> None:
        running = [task for task in (self._task, self._loading) if task is not None and not task.done()]
        for task in running:
            task.cancel()
        if running:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asyncio.wait(running)
        self._fail_pending()
        await self._thread.close(wait=CLOSE_TIMEOUT_SECONDS)

    async def _prepare_pieces(self, texts: Sequence[str]) -> tuple[list[str], list[int]]:
        """
        Split all texts, and return their chunks and the number of chunks per text.

        Calibrate the embedder first if necessary.
        """
        self._check()
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InvalidArgument("texts must be a sequence of str")
        if not getattr(self.embedder, "is_calibrated", True):
            await self.calibration()
        if sum(map(len, texts)) <= MIN_CHARS_FOR_THREAD:
            return self._split_texts(texts)
        found = await run_in_own_thread(lambda: self._split_texts(texts))
        self._check()
        return found

    async def _vectors(self, texts: Sequence[str], kind: Kind) -> list[Vectors]:
        pieces, counts = await self._prepare_pieces(texts)
        self._caller_count += 1
        asked: list[_PendingPiece | NDArray[np.float32]] = []
        vectors = np.empty((len(pieces), self.embedder.dimensions), dtype=np.float32)
        try:
            for start in range(0, len(pieces), PIECES_PER_TURN):
                if start:
                    await asyncio.sleep(0)
                    self._check()
                asked.extend(
                    self._request_vector(piece, kind, self._caller_count)
                    for piece in pieces[start : start + PIECES_PER_TURN]
                )
                self._start()
            for row, one in enumerate(asked):
                if isinstance(one, _PendingPiece) and not one.done.done():
                    # asyncio.wait leaves the future running if this caller is cancelled. Other callers may wait for it.
                    await asyncio.wait([one.done])
                elif row % PIECES_PER_TURN == PIECES_PER_TURN - 1:
                    await asyncio.sleep(0)
                vectors[row] = self._unwrap(one)
        finally:
            for one in asked:
                if isinstance(one, _PendingPiece):
                    one.waiting -= 1
        ends = itertools.accumulate(counts)
        return [vectors[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def _split_texts(self, texts: Sequence[str]) -> tuple[list[str], list[int]]:
        pieces: list[str] = []
        counts: list[int] = []
        for given in texts:
            text = replace_surrogates(given)
            found = split_text(text, self.embedder.max_tokens)
            if found.omitted:
                _logger.warning(
                    "a text of %d characters is embedded in %d pieces spread over it, and %d are left out",
                    len(text),
                    len(found.spans),
                    found.omitted,
                )
            pieces.extend(text[start:end] for start, end in found.spans)
            counts.append(len(found.spans))
        return pieces, counts

    def _request_vector(self, text: str, kind: Kind, caller: int) -> _PendingPiece | NDArray[np.float32]:
        """Return the cached vector of a chunk, or queue the chunk."""
        key = hashlib.blake2b(text.encode("utf-8"), digest_size=16, person=kind.encode()).digest()
        known = self._cache.get(key)
        if known is not None:
            self.stats.reused += 1
            return known
        one = self._texts.get(key)
        if one is None:
            one = self._texts[key] = _PendingPiece(key, kind, text, caller, asyncio.get_running_loop().create_future())
            self._queues[kind].append(one)
        else:
            self.stats.reused += 1
        one.waiting += 1
        return one

    def _unwrap(self, one: _PendingPiece | NDArray[np.float32]) -> NDArray[np.float32]:
        outcome = one.done.result() if isinstance(one, _PendingPiece) else one
        if outcome is None:
            raise SessionClosed("the embedding service was closed")
        if isinstance(outcome, EmbeddingFailed):
            # Raise a new error per caller, because a shared error would accumulate the tracebacks of all callers.
            raise EmbeddingFailed(*outcome.args, hint=outcome.hint) from outcome.__cause__
        return outcome

    def _start(self) -> None:
        if self._texts and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work(), name="mama-structs-embedding")
            # Retrieve the exception, so that asyncio does not log it. The waiting callers receive the error anyway.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _work(self) -> None:
        """Embed waiting chunks, batch by batch, until the queues are empty."""
        try:
            for _ in range(GATHER_TURNS):
                await asyncio.sleep(0)
            while batch := self._next_batch():
                await self._embed(batch)
        finally:
            # Run this even after Ctrl-C or if the loop was closed, so that no caller waits forever.
            self._fail_pending()

    def _next_batch(self) -> list[_PendingPiece]:
        """Return the next batch, queries first. Pieces whose callers are all cancelled are dropped."""
        batch: list[_PendingPiece] = []
        for queue in self._queues.values():
            while queue and len(batch) < self._batch_size:
                one = queue.popleft()
                if one.waiting:
                    batch.append(one)
                else:
                    self._resolve(one, None)
            if batch:
                break
        return batch

    async def _embed(self, batch: list[_PendingPiece]) -> None:
        """Embed a batch. If that fails, retry caller by caller, until several callers in a row have failed."""
        failure = await self._call_embedder(batch)
        if failure is None:
            return
        groups: dict[int, list[_PendingPiece]] = {}
        for one in batch:
            groups.setdefault(one.caller, []).append(one)
        failed = 0 if len(groups) > 1 else MAX_CONSECUTIVE_FAILURES
        for group in groups.values():
            if failed < MAX_CONSECUTIVE_FAILURES:
                failure = await self._call_embedder(group)
                failed = 0 if failure is None else failed + 1
            if failure is not None:
                for one in group:
                    self._resolve(one, failure)

    async def _call_embedder(self, batch: list[_PendingPiece]) -> EmbeddingFailed | None:
        """Call the embedder once, and resolve the batch. If the call fails, return the error instead."""
        started = time.perf_counter()
        self.stats.calls += 1
        try:
            with instrument("embeddings", self._name, request__model=self._name):
                texts = [one.text for one in batch]
                done = await embed_texts(self.embedder, texts, batch[0].kind, in_thread=self._thread.run)
        except EmbeddingFailed as error:
            return error
        finally:
            self.stats.seconds += time.perf_counter() - started
        self.stats.texts += len(batch)
        for row, one in enumerate(batch):
            if row in done.faults:
                self._resolve(one, EmbeddingFailed(f"the embedder's vector of a text {done.faults[row]}"))
            else:
                # Copy the row, because a view would retain the whole batch in memory.
                vector = done.vectors[row].copy()
                if self._cache.maxsize:
                    self._cache[one.key] = vector
                self._resolve(one, vector)
        return None

    def _resolve(self, one: _PendingPiece, outcome: NDArray[np.float32] | EmbeddingFailed | None) -> None:
        self._texts.pop(one.key, None)
        if not one.done.done():
            # Setting a result fails if the loop was closed. In this case no caller is waiting.
            with contextlib.suppress(RuntimeError):
                one.done.set_result(outcome)

    def _fail_pending(self) -> None:
        for queue in self._queues.values():
            queue.clear()
        for one in list(self._texts.values()):
            is_over = self._is_closed
            self._resolve(one, None if is_over else EmbeddingFailed("embedding was interrupted", hint="try again"))

    def _check(self) -> None:
        self._bound.check()
        if self._is_closed:
            raise SessionClosed("the embedding service was closed")
