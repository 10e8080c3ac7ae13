"""Calls an embedder from async code, whatever it is, and checks what it gives."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import numpy as np

from mama_structs._introspect import is_async_callable
from mama_structs.errors import EmbeddingFailed
from mama_structs.memory.embedding.protocol import Embedder, Kind, Vectors
from mama_structs.memory.unit_vectors import unit_vectors

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function outside the event loop."""


@attrs.frozen
class EmbeddedTexts:
    """Vectors of length 1, of shape (texts, dimensions), and what is wrong with the rows that could not be made so."""

    vectors: Vectors
    faults: dict[int, str]


async def embedded(embedder: Embedder, texts: Sequence[str], kind: Kind, *, in_thread: InThread) -> EmbeddedTexts:
    """Call an embedder once, in a thread if it is synchronous; whatever it raises becomes `EmbeddingFailed`."""
    dimensions = embedder.dimensions

    def run() -> tuple[EmbeddedTexts | None, Any]:
        given = embedder.embed(texts, kind=kind)
        # A plain function may return a coroutine; only the loop can wait for that.
        return (None, given) if inspect.isawaitable(given) else (checked(given, len(texts), dimensions), None)

    try:
        if getattr(embedder, "is_async", False) or is_async_callable(embedder.embed):
            done, awaited = None, embedder.embed(texts, kind=kind)
        else:
            done, awaited = await in_thread(run)
        return checked(await awaited, len(texts), dimensions) if done is None else done  # type: ignore[misc]  # async
    except EmbeddingFailed:
        raise
    except Exception as error:
        # The error's own text may repeat what was embedded: only its kind is told.
        message = f"the embedder {embedder.name!r:.80} raised {type(error).__name__} for {len(texts)} texts"
        raise EmbeddingFailed(message) from error


def checked(given: Any, count: int, dimensions: int) -> EmbeddedTexts:
    """Check what an embedder gave for so many texts, and give it the length 1."""
    if count == 0:
        return EmbeddedTexts(np.empty((0, dimensions), dtype=np.float32), {})
    hint = f"embed() must return a float32 array of shape ({count}, {dimensions}) for {count} texts"
    kind = type(given).__name__
    try:
        raw = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise EmbeddingFailed(f"the embedder gave a {kind} that is no array of numbers", hint=hint) from error
    if raw.dtype.kind not in "fiu":
        raise EmbeddingFailed(f"the embedder gave a {kind} of {raw.dtype.name}, expected numbers", hint=hint)
    if raw.shape != (count, dimensions):
        raise EmbeddingFailed(f"the embedder gave an array of shape {raw.shape} for {count} texts", hint=hint)
    vectors, usable = unit_vectors(raw)
    return EmbeddedTexts(
        vectors,
        {
            int(row): "is zero" if np.isfinite(raw[row]).all() else "holds a number that is not finite"
            for row in np.flatnonzero(~usable)
        },
    )
