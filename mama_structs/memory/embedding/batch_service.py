"""Batch embedding for concurrent callers: deduplicated, cached, and off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import LoopBound, OneThread, in_own_thread, to_its_end
from mama_structs._internal.telemetry import observed
from mama_structs.errors import EmbeddingFailed, InvalidArgument, SessionClosed
from mama_structs.memory.embedding.chunks import LEAST_TOKENS, clean, cut
from mama_structs.memory.embedding.protocol import Calibration, Embedder, Kind, Vectors, calibrated, embedded

_logger: Final = logging.getLogger("mama_structs")

_BATCH: Final = 64  # Used if the embedder has no batch_size.
_GATHERING: Final = 3  # Turns of the event loop to wait for more texts before the first batch is sent.
_TRIES: Final = 3  # Consecutive failures of retries for single callers before the remaining callers fail too.
_OPPOSITE: Final = 1e-6  # Maximum length of the mean of pieces that cancel each other out.
_ASKED: Final = 256  # Pieces processed before other tasks get a turn.
_LONG: Final = 20_000  # Characters above which texts are split in a thread.
_CLOSING: Final = 5.0  # Seconds that close() waits for a working thread.


@attrs.define(eq=False)
class _Text:
    """A piece of text that waits for its vector."""

    key: bytes
    kind: Kind
    text: str
    caller: int
    # Failures are results, not exceptions: asyncio logs exceptions that are never retrieved.
    done: asyncio.Future[NDArray[np.float32] | EmbeddingFailed | None]
    waiting: int = 0


@attrs.define
class EmbeddingStats:
    """
    Counters of an `EmbeddingService`.

    They count embedder calls, embedded pieces, reused pieces, and seconds in the embedder.
    """

    calls: int = 0
    texts: int = 0
    reused: int = 0
    seconds: float = 0.0


class EmbeddingService:
    """
    Embeds texts for any number of concurrent callers.

    Concurrent callers share batches: 64 concurrent saves need one or two calls of the embedder.
    Queries take precedence over waiting documents.
    Equal texts are embedded once, also for concurrent callers, and cached.
    The embedder is called once at a time: in the event loop if it is async, otherwise in a thread of the service.
    A service belongs to one event loop.
    """

    def __init__(self, embedder: Embedder, *, cache_entries: int = 2048, batch_size: int | None = None) -> None:
        if not isinstance(embedder, Embedder):
            message = (
                f"embedder must have name, dimensions, max_tokens, calibration and embed(), got a {type(embedder)}"
            )
            raise InvalidArgument(message, hint="as_embedder(fn, name=..., dimensions=...) makes one of a function")
        if batch_size is None:
            batch_size = getattr(embedder, "batch_size", _BATCH)
        _check.whole("cache_entries", cache_entries, 0, mark=",")
        _check.whole("batch_size", batch_size, 1, mark=",")
        _check.whole("the embedder's dimensions", embedder.dimensions, 1, mark=",")
        _check.whole("the embedder's max_tokens", embedder.max_tokens, LEAST_TOKENS, mark=",")
        self.embedder: Final = embedder
        self.stats: Final = EmbeddingStats()
        self._name: Final = embedder.name
        self._batch_size = batch_size
        self._bound = LoopBound("embedding service")
        self._cache: LRUCache[bytes, NDArray[np.float32]] = LRUCache(cache_entries)
        self._texts: dict[bytes, _Text] = {}
        self._queues: dict[Kind, deque[_Text]] = {"query": deque(), "document": deque()}
        self._task: asyncio.Task[None] | None = None
        self._thread = OneThread("mama-structs-embedding")
        self._callers = 0
        self._calibrating = asyncio.Lock()
        self._is_closed = False

    async def calibration(self) -> Calibration:
        """Return the calibration of the embedder, fitting it first if it is unknown."""
        self._check()
        async with self._calibrating:
            self._check()
            return await calibrated(self.embedder, in_thread=self._thread.run)

    async def documents(self, texts: Sequence[str]) -> list[Vectors]:
        """
        Return normalised vectors of shape (pieces, dimensions) per text.

        Long texts are split into pieces.
        """
        return await self._vectors(texts, "document")

    async def query(self, text: str) -> NDArray[np.float32]:
        """
        Return the normalised vector of a query text.

        For a long text it is the mean of its pieces.
        """
        (pieces,) = await self._vectors([text], "query")
        if len(pieces) == 1:
            first: NDArray[np.float32] = pieces[0]
            return first
        mean = pieces.mean(axis=0, dtype=np.float64)
        length = float(np.linalg.norm(mean))
        # Pieces that point in opposite directions have no usable mean.
        middle: NDArray[np.float32] = (mean / length if length > _OPPOSITE else pieces[0]).astype(np.float32)
        return middle

    async def close(self) -> None:
        """Cancel pending work with `SessionClosed`, and wait some seconds for the thread to end."""
        if self._is_closed:
            return
        if not self._bound.is_over:
            self._bound.check()
        self._is_closed = True
        if not self._bound.is_over:
            await to_its_end(self._close())
        elif not self._bound.is_elsewhere:
            self._thread.abandon()

    async def _close(self) -> None:
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asyncio.wait([task])
        self._give_up()
        await self._thread.close(wait=_CLOSING)

    async def _prepared(self, texts: Sequence[str]) -> tuple[list[str], list[int]]:
        """Return the pieces of all texts and the number per text, once the embedder is calibrated."""
        self._check()
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InvalidArgument("texts must be a sequence of str")
        if not getattr(self.embedder, "is_calibrated", True):
            await self.calibration()
        if sum(map(len, texts)) <= _LONG:
            return self._pieces(texts)
        found = await in_own_thread(lambda: self._pieces(texts))
        self._check()
        return found

    async def _vectors(self, texts: Sequence[str], kind: Kind) -> list[Vectors]:
        pieces, counts = await self._prepared(texts)
        self._callers += 1
        asked: list[_Text | NDArray[np.float32]] = []
        vectors = np.empty((len(pieces), self.embedder.dimensions), dtype=np.float32)
        try:
            for start in range(0, len(pieces), _ASKED):
                if start:
                    await asyncio.sleep(0)
                    self._check()
                asked.extend(self._ask(piece, kind, self._callers) for piece in pieces[start : start + _ASKED])
                self._start()
            for row, one in enumerate(asked):
                if isinstance(one, _Text) and not one.done.done():
                    # asyncio.wait does not cancel the future with this caller, since others may wait for it too.
                    await asyncio.wait([one.done])
                elif row % _ASKED == _ASKED - 1:
                    await asyncio.sleep(0)
                vectors[row] = self._taken(one)
        finally:
            for one in asked:
                if isinstance(one, _Text):
                    one.waiting -= 1
        ends = itertools.accumulate(counts)
        return [vectors[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def _pieces(self, texts: Sequence[str]) -> tuple[list[str], list[int]]:
        pieces: list[str] = []
        counts: list[int] = []
        for given in texts:
            text = clean(given)
            found = cut(text, self.embedder.max_tokens)
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

    def _ask(self, text: str, kind: Kind, caller: int) -> _Text | NDArray[np.float32]:
        """Return the cached vector of a piece, or queue the piece."""
        key = hashlib.blake2b(text.encode("utf-8"), digest_size=16, person=kind.encode()).digest()
        known = self._cache.get(key)
        if known is not None:
            self.stats.reused += 1
            return known
        one = self._texts.get(key)
        if one is None:
            one = self._texts[key] = _Text(key, kind, text, caller, asyncio.get_running_loop().create_future())
            self._queues[kind].append(one)
        else:
            self.stats.reused += 1
        one.waiting += 1
        return one

    def _taken(self, one: _Text | NDArray[np.float32]) -> NDArray[np.float32]:
        outcome = one.done.result() if isinstance(one, _Text) else one
        if outcome is None:
            raise SessionClosed("the embedding service was closed")
        if isinstance(outcome, EmbeddingFailed):
            # Raise a new error per caller: a shared one would collect the tracebacks of all callers.
            raise EmbeddingFailed(*outcome.args, hint=outcome.hint) from outcome.__cause__
        return outcome

    def _start(self) -> None:
        if self._texts and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work(), name="mama-structs-embedding")
            # Waiting callers receive the error, so retrieve it here to prevent a log message of asyncio.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _work(self) -> None:
        """Embed waiting pieces, batch by batch, until the queues are empty."""
        try:
            for _ in range(_GATHERING):
                await asyncio.sleep(0)
            while batch := self._next():
                await self._embed(batch)
        finally:
            # After Ctrl-C or a closed loop too, so that no caller waits forever.
            self._give_up()

    def _next(self) -> list[_Text]:
        """Return the next batch, queries first. Pieces without waiting callers are dropped."""
        batch: list[_Text] = []
        for queue in self._queues.values():
            while queue and len(batch) < self._batch_size:
                one = queue.popleft()
                if one.waiting:
                    batch.append(one)
                else:
                    self._end(one, None)
            if batch:
                break
        return batch

    async def _embed(self, batch: list[_Text]) -> None:
        """Embed a batch. If it fails, retry per caller, until several callers in a row failed."""
        failure = await self._call(batch)
        if failure is None:
            return
        groups: dict[int, list[_Text]] = {}
        for one in batch:
            groups.setdefault(one.caller, []).append(one)
        failed = 0 if len(groups) > 1 else _TRIES
        for group in groups.values():
            if failed < _TRIES:
                failure = await self._call(group)
                failed = 0 if failure is None else failed + 1
            if failure is not None:
                for one in group:
                    self._end(one, failure)

    async def _call(self, batch: list[_Text]) -> EmbeddingFailed | None:
        """Call the embedder once, and return the error if it fails."""
        started = time.perf_counter()
        self.stats.calls += 1
        try:
            with observed("embeddings", self._name, request__model=self._name):
                texts = [one.text for one in batch]
                done = await embedded(self.embedder, texts, batch[0].kind, in_thread=self._thread.run)
        except EmbeddingFailed as error:
            return error
        finally:
            self.stats.seconds += time.perf_counter() - started
        self.stats.texts += len(batch)
        for row, one in enumerate(batch):
            if row in done.faults:
                self._end(one, EmbeddingFailed(f"the embedder's vector of a text {done.faults[row]}"))
            else:
                # Copy the row, because a view would keep the whole batch in memory.
                vector = done.vectors[row].copy()
                if self._cache.maxsize:
                    self._cache[one.key] = vector
                self._end(one, vector)
        return None

    def _end(self, one: _Text, outcome: NDArray[np.float32] | EmbeddingFailed | None) -> None:
        self._texts.pop(one.key, None)
        if not one.done.done():
            # Setting a result fails after the loop was closed, when no caller can be waiting.
            with contextlib.suppress(RuntimeError):
                one.done.set_result(outcome)

    def _give_up(self) -> None:
        for queue in self._queues.values():
            queue.clear()
        for one in list(self._texts.values()):
            is_over = self._is_closed
            self._end(one, None if is_over else EmbeddingFailed("embedding was interrupted", hint="try again"))

    def _check(self) -> None:
        self._bound.check()
        if self._is_closed:
            raise SessionClosed("the embedding service was closed")
