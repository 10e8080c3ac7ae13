"""Calls an embedder from async code, whatever it is."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from mama_structs._introspect import is_async_callable
from mama_structs.errors import EmbeddingFailed
from mama_structs.memory.embedding.checking import Checked, checked
from mama_structs.memory.embedding.protocol import Embedder, Kind

T = TypeVar("T")

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function outside the event loop."""


def is_async(embedder: Embedder) -> bool:
    """Tell whether an embedder's ``embed`` is to be called in the event loop; it may say so by ``is_async``."""
    return bool(getattr(embedder, "is_async", False)) or is_async_callable(embedder.embed)


async def embedded(embedder: Embedder, texts: Sequence[str], kind: Kind, *, in_thread: InThread) -> Checked:
    """
    Call an embedder once, and check what it gives.

    Args:
        embedder: A synchronous one runs in a thread.
        texts: Any texts.
        kind: What they are.
        in_thread: Runs a synchronous embedder.

    Raises:
        EmbeddingFailed: It raised, or what it gave are no vectors.

    """
    dimensions = embedder.dimensions

    def run() -> tuple[Checked | None, Any]:
        given = embedder.embed(texts, kind=kind)
        # A plain function may return a coroutine; only the loop can wait for that.
        return (None, given) if inspect.isawaitable(given) else (_checked(given), None)

    def _checked(given: Any) -> Checked:
        return checked(given, count=len(texts), dimensions=dimensions)

    try:
        if is_async(embedder):
            awaited: Any = embedder.embed(texts, kind=kind)
            return _checked(await awaited)
        done, awaited = await in_thread(run)
        return _checked(await awaited) if done is None else done
    except EmbeddingFailed:
        raise
    except Exception as error:
        # The error's own text may repeat what was embedded: only its kind is told.
        message = f"the embedder {embedder.name!r:.80} raised {type(error).__name__} for {len(texts)} texts"
        raise EmbeddingFailed(message) from error
