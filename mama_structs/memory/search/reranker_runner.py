"""Calls the reranker for the best hits of a search, with a timeout and off the event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import attrs
import numpy as np

from mama_structs._internal.event_loop import LoopGuard, SerialThread, call_maybe_sync, run_to_completion
from mama_structs.errors import RerankingFailed, SessionClosed
from mama_structs.memory.embedding.chunks import replace_surrogates
from mama_structs.memory.embedding.protocol import require_numeric_array
from mama_structs.memory.graph.results import Hit, with_place_term
from mama_structs.memory.search.reorder_rules import ReorderRules
from mama_structs.memory.search.scores import FloatArray
from mama_structs.memory.types.reranker import Reranker, check_reranker, get_batch_size, get_max_chars
from mama_structs.memory.types.text_analysis import embedded_text

_logger: Final = logging.getLogger("mama_structs")

_CLOSE_TIMEOUT_SECONDS: Final = 5.0  # Seconds to wait for a running call when closing.


@attrs.define
class RerankerStats:
    """Statistics of a reranker: searches, texts, seconds, failures and timeouts."""

    searches: int = 0
    texts: int = 0
    seconds: float = 0.0
    failed: int = 0
    late: int = 0


class RerankerRunner:
    """
    Calls a reranker for the searches of one event loop, one after the other.

    If the reranker fails or exceeds the timeout, a search continues without it. The timeout includes the time in which
    the search waits for other searches.
    """

    def __init__(self, reranker: Reranker, *, loop: LoopGuard, seconds: float, at_most: int) -> None:
        check_reranker(reranker)
        self.reranker: Final = reranker
        self.max_hits: Final = at_most
        self.stats: Final = RerankerStats()
        self._seconds = seconds
        self._bound = loop
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[FloatArray]] = set()
        self._thread = SerialThread("mama-structs-reranking")
        self._is_closed = False

    async def rerank_hits(self, query: str, hits: list[Hit], rules: ReorderRules | None) -> list[Hit]:
        """Return *hits* with the best ones reordered by the reranker's scores, and then by the reorder rules."""
        best = hits[: self.max_hits]
        if rules is None or not best:
            return hits
        chars = get_max_chars(self.reranker)
        given = await self._score_with_timeout(
            replace_surrogates(query)[:chars], [replace_surrogates(embedded_text(hit.memory))[:chars] for hit in best]
        )
        return hits if given is None else [*apply_scores(best, rules, given), *hits[len(best) :]]

    async def close(self) -> None:
        """
        Cancel running calls and wait some seconds for the thread.

        Searches that wait for a cancelled call raise `SessionClosed`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if not self._bound.is_unusable:
            await run_to_completion(self._close())
        elif not self._bound.is_forked_child:
            self._thread.abandon()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT_SECONDS)
        await self._thread.close(wait=_CLOSE_TIMEOUT_SECONDS)

    async def _score_with_timeout(self, query: str, texts: list[str]) -> FloatArray | None:
        """Return a score for each text, or None if the reranker fails or takes too long."""
        if self._is_closed:
            raise SessionClosed("the reranker was closed with its session")
        task = asyncio.get_running_loop().create_task(self._score(query, texts), name="mama-structs-reranking")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        self.stats.searches += 1
        try:
            done, _ = await asyncio.wait([task], timeout=self._seconds)
        finally:
            task.cancel()
        if self._is_closed:
            raise SessionClosed("the reranker was closed with its session")
        name = f"{self.reranker.name:.80}"
        if not done:
            self.stats.late += 1
            _logger.warning("the reranker %s took longer than %g s: a search goes on without", name, self._seconds)
            return None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None and np.isfinite(task.result()).all():
            return task.result()
        self.stats.failed += 1
        if isinstance(error, RerankingFailed) or not isinstance(error, Exception | asyncio.CancelledError | None):
            raise error
        # Report only the type of the error, because its text may contain content of memories.
        why = "gave what is not finite" if error is None else f"raised {type(error).__name__}"
        _logger.warning("the reranker %s %s: a search goes on without", name, why)
        return None

    def _ended(self, task: asyncio.Task[FloatArray]) -> None:
        self._tasks.discard(task)
        # Retrieve the exception of a late task, because otherwise asyncio would log that it was never retrieved.
        if not task.cancelled():
            task.exception()

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        """Score texts in batches of the reranker's size. Concurrent searches take turns."""
        reranker, size = self.reranker, get_batch_size(self.reranker)
        is_async = getattr(reranker, "is_async", False) or inspect.iscoroutinefunction(reranker.rerank)
        # Group texts of similar length, because rerankers pad each text to the longest of its batch.
        order = sorted(range(len(texts)), key=lambda row: len(texts[row])) if size < len(texts) else range(len(texts))
        scores = np.empty(len(texts))
        async with self._turn:
            started = time.perf_counter()
            try:
                for start in range(0, len(texts), size):
                    rows = order[start : start + size]
                    some = [texts[row] for row in rows]
                    scores[list(rows)] = await call_maybe_sync(
                        partial(reranker.rerank, query, some),
                        partial(_check_scores, count=len(some)),
                        is_async=is_async,
                        run_in_thread=self._thread.run,
                    )
                    self.stats.texts += len(some)
            finally:
                self.stats.seconds += time.perf_counter() - started
        return scores


def _check_scores(given: Any, count: int) -> FloatArray:
    """Validate the scores that a reranker returned, and convert them to an array."""
    hint = f"rerank() must return {count} numbers for {count} texts, the higher the better a text answers"
    raw = require_numeric_array(given, (count,), source="reranker", error_type=RerankingFailed, hint=hint)
    return raw.astype(np.float64)


def apply_scores(hits: Sequence[Hit], precedence: ReorderRules, given: FloatArray) -> list[Hit]:
    """
    Return hits in the order of the reranker's scores, with ties in their previous order.

    The reorder rules still apply, because a text does not contain the memory's time, outcome and successors. The n-th
    hit gets the score of the previous n-th hit.
    """
    order = precedence.restrict_to(np.arange(len(hits))).reorder(np.argsort(-given, kind="stable"))
    return [
        attrs.evolve(
            hits[one],
            score=place.score,
            signals={**hits[one].signals, "reranker": float(given[one])},
            terms=with_place_term(hits[one].terms, place.score),
        )
        for one, place in zip(order.tolist(), hits, strict=True)
    ]
