"""Vectors of length 1: how they are made of what an embedder gave, and how they are told from others."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_TOLERANCE: Final = 1e-3
"""How far the length of a vector that was normalised as float32 can be from 1."""


def unit_vectors(rows: NDArray[np.floating]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return rows as vectors of length 1, and which could be made so: zeros and what is not finite mean nothing."""
    wide = rows.astype(np.float64)
    wide[~np.isfinite(wide).all(axis=1)] = 0
    # Scaled first: the squares of very large or small numbers are neither finite nor more than zero.
    largest = np.abs(wide).max(axis=1, initial=0)
    usable: NDArray[np.bool_] = largest > 0
    wide[~usable] = largest[~usable] = 1
    wide /= largest[:, None]
    return (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32), usable


def are_unit(vectors: NDArray[np.float32]) -> bool:
    """Tell whether all rows have the length 1, but for rounding."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    # So said that a NaN does not pass.
    return bool((np.abs(lengths - 1) <= _TOLERANCE).all())
