"""What an embedder gave: are these vectors."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import EmbeddingFailed
from mama_structs.memory.embedding.protocol import Vectors


@attrs.frozen
class Checked:
    """
    Vectors of length 1, and what is wrong with those that could not be made so.

    Args:
        vectors: Float32, of shape (texts, dimensions); a faulty row means nothing.
        faults: For each faulty row what is wrong with it.

    """

    vectors: Vectors
    faults: dict[int, str]


def checked(given: Any, *, count: int, dimensions: int) -> Checked:
    """
    Check and normalise what an embedder gave.

    Args:
        given: An array, or what numpy makes one of.
        count: How many texts it was given.
        dimensions: How many numbers it says that a vector has.

    Raises:
        EmbeddingFailed: It is no array of real numbers, or has another shape.

    """
    if count == 0:
        return Checked(np.empty((0, dimensions), dtype=np.float32), {})
    try:
        raw = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"the embedder gave a {type(given).__name__} that is no array of numbers"
        raise EmbeddingFailed(message, hint=_expected(count, dimensions)) from error
    if raw.dtype.kind not in "fiu":
        message = f"the embedder gave a {type(given).__name__} of {raw.dtype.name}, expected numbers"
        raise EmbeddingFailed(message, hint=_expected(count, dimensions))
    if raw.shape != (count, dimensions):
        message = f"the embedder gave an array of shape {raw.shape} for {count} texts"
        raise EmbeddingFailed(message, hint=_expected(count, dimensions))
    wide = raw.astype(np.float64)
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(wide).all(axis=1))
    # Scaled first: the squares of very large or small numbers are neither finite nor more than zero.
    wide[~finite] = 0
    largest = np.abs(wide).max(axis=1)
    usable = largest > 0
    wide[~usable] = largest[~usable] = 1
    wide /= largest[:, None]
    vectors: Vectors = (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)
    faults = {
        int(row): "is zero" if finite[row] else "holds a number that is not finite" for row in np.flatnonzero(~usable)
    }
    return Checked(vectors, faults)


def _expected(count: int, dimensions: int) -> str:
    return f"embed() must return a float32 array of shape ({count}, {dimensions}) for {count} texts"
