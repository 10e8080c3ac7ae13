"""Embeds for many callers at once: in batches, off the event loop, each text once."""

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
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import LoopBound, OneThread, in_own_thread, to_its_end
from mama_structs._internal.lru import Lru
from mama_structs._internal.telemetry import observed
from mama_structs.errors import EmbeddingFailed, InvalidArgument, SessionClosed
from mama_structs.memory.embedding.chunks import LEAST_TOKENS, clean, cut
from mama_structs.memory.embedding.protocol import Calibration, Embedder, Kind, Vectors, calibrated, embedded

_logger: Final = logging.getLogger("mama_structs")

_BATCH: Final = 64  # Where the embedder does not say it itself.
_GATHERING: Final = 3  # Turns of the loop in which others may join a batch before it goes.
_TRIES: Final = (
    3  # Callers of a failed batch that fail again by themselves, one after the other, before all are given up.
)
_OPPOSITE: Final = 1e-6  # The mean of pieces that point in opposite directions is no longer than this.
_ASKED: Final = 256  # Pieces asked for before others have their turn in the loop.
_LONG: Final = 20_000  # Characters that take so long to cut that it is done in a thread.
_CLOSING: Final = 5.0  # Seconds for which closing waits for a thread that is at work.


@attrs.define(eq=False)
class _Text:
    """A piece of text that waits for its vector."""

    key: bytes
    kind: Kind
    text: str
    caller: int
    # A failure is a result, too: of an exception asyncio would complain where nobody waits any more.
    done: asyncio.Future[NDArray[np.float32] | EmbeddingFailed | None]
    waiting: int = 0


@attrs.define
class EmbeddingStats:
    """What an `EmbeddingService` has done: calls of the embedder, pieces embedded, reused and the seconds it took."""

    calls: int = 0
    texts: int = 0
    reused: int = 0
    seconds: float = 0.0


class EmbeddingService:
    """
    Embeds texts for any number of callers.

    Callers at the same time share batches: 64 saves at once are one or two calls of the embedder.
    A query goes before documents that wait.
    Equal texts are embedded once, also by callers at the same time, and kept in a cache.
    One call of the embedder runs at a time: in the loop if it is async, else in the service's own thread.
    It belongs to one event loop.
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
        self._cache: Lru[bytes, NDArray[np.float32]] = Lru(cache_entries)
        self._texts: dict[bytes, _Text] = {}
        self._queues: dict[Kind, deque[_Text]] = {"query": deque(), "document": deque()}
        self._task: asyncio.Task[None] | None = None
        self._thread = OneThread("mama-structs-embedding")
        self._callers = 0
        self._calibrating = asyncio.Lock()
        self._is_closed = False

    async def calibration(self) -> Calibration:
        """Return what the embedder's cosines mean, finding it out where that is not known."""
        self._check()
        async with self._calibrating:
            self._check()
            return await calibrated(self.embedder, in_thread=self._thread.run)

    async def documents(self, texts: Sequence[str]) -> list[Vectors]:
        """Return the vectors of each text, of shape (pieces, dimensions), normalised; a long one is cut into pieces."""
        return await self._vectors(texts, "document")

    async def query(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a text to find others by, normalised; of a long one it is the mean of its pieces."""
        (pieces,) = await self._vectors([text], "query")
        if len(pieces) == 1:
            first: NDArray[np.float32] = pieces[0]
            return first
        mean = pieces.mean(axis=0, dtype=np.float64)
        length = float(np.linalg.norm(mean))
        # Pieces that point in opposite directions have no middle.
        middle: NDArray[np.float32] = (mean / length if length > _OPPOSITE else pieces[0]).astype(np.float32)
        return middle

    async def close(self) -> None:
        """Give up what is under way, so that who waits gets `SessionClosed`, and wait some seconds for the thread."""
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
        """Return the pieces of all texts, and how many each has, when the embedder is ready for them."""
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
                    # It leaves the future alone when this caller is cancelled: others may wait for it, too.
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
        """Return the vector of a piece, or its place among those that wait."""
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
            # Each caller gets an error of its own: a shared one would collect the tracebacks of all.
            raise EmbeddingFailed(*outcome.args, hint=outcome.hint) from outcome.__cause__
        return outcome

    def _start(self) -> None:
        if self._texts and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work(), name="mama-structs-embedding")
            # What stopped it is told to those who wait; asyncio is not to complain that nobody asked the task.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _work(self) -> None:
        """Embed what waits, batch by batch, until nothing does."""
        try:
            for _ in range(_GATHERING):
                await asyncio.sleep(0)
            while batch := self._next():
                await self._embed(batch)
        finally:
            # Also when Ctrl-C or the loop's end stopped it: nobody may wait for ever.
            self._give_up()

    def _next(self) -> list[_Text]:
        """Return the next batch, queries first, without what nobody waits for any more."""
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
        """Embed a batch; where it fails, for each caller by itself, until it is clear that all fail."""
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
        """Call the embedder once, and return why that failed."""
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
                # A copy: a row would keep all of its batch in memory.
                vector = done.vectors[row].copy()
                self._cache.put(one.key, vector)
                self._end(one, vector)
        return None

    def _end(self, one: _Text, outcome: NDArray[np.float32] | EmbeddingFailed | None) -> None:
        self._texts.pop(one.key, None)
        if not one.done.done():
            # The loop may have been closed without closing the service: then nobody waits.
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
