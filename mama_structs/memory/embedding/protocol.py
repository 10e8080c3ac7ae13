"""What an embedder is, what its cosines mean, and how it is called from async code."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, overload, runtime_checkable

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mama_structs import _check
from mama_structs._introspect import is_async_callable
from mama_structs.errors import EmbeddingFailed, InvalidArgument
from mama_structs.memory.unit_vectors import unit_vectors

Kind = Literal["document", "query"]
"""What a text is: something to be found, or something to find it by."""

Vectors = NDArray[np.float32]


@attrs.frozen
class Calibration:
    """
    Turns the cosines of one embedder into similarities that mean the same for all.

    A similarity is the probability, 0 to 1, that two texts are about the same matter,
    if that was as likely as not before their cosine was known: ``1 / (1 + exp(-slope * (cosine - midpoint)))``
    (Platt, "Probabilistic outputs for support vector machines", 1999; both classes weigh the same).
    The figures of the embedders in this package come from ``benchmarks/calibration.py``.

    Args:
        midpoint: The cosine at which the same matter is as likely as another.
        slope: How fast the odds change, in natural logarithms for each 1 of cosine.
        threshold: The similarity from which on two texts are called similar where nobody says otherwise.

    Raises:
        InvalidArgument: A figure is not finite, the slope is not positive, or the threshold is not between 0 and 1.

    """

    midpoint: float = 0.5
    slope: float = 12.0
    threshold: float = attrs.field(default=0.85, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check.number("midpoint", self.midpoint)
        if _check.number("slope", self.slope) <= 0:
            raise InvalidArgument(f"slope must be more than 0, got {self.slope!r}")
        if not 0 < _check.number("threshold", self.threshold) < 1:
            raise InvalidArgument(f"threshold must lie between 0 and 1, got {self.threshold!r}")

    @overload
    def __call__(self, cosine: float) -> float: ...
    @overload
    def __call__(self, cosine: NDArray[np.floating]) -> NDArray[np.floating]: ...

    def __call__(self, cosine: float | NDArray[np.floating]) -> float | NDArray[np.floating]:
        """
        Return the similarity for a cosine, or for an array of cosines one of the same shape and type.

        Args:
            cosine: -1 to 1; what rounding put outside is taken as it is.

        """
        # Half a hyperbolic tangent is the logistic function, without its overflow.
        if isinstance(cosine, np.ndarray):
            similarity: NDArray[np.floating] = 0.5 + 0.5 * np.tanh(0.5 * self.slope * (cosine - self.midpoint))
            return similarity
        return 0.5 + 0.5 * math.tanh(0.5 * self.slope * (float(cosine) - self.midpoint))

    def cosine(self, similarity: float) -> float:
        """
        Return the cosine that has a similarity: the inverse of the call.

        Args:
            similarity: 0 to 1; 0 gives minus infinity (every cosine is above) and 1 infinity.

        Raises:
            InvalidArgument: It is no number from 0 to 1.

        """
        _check.share("similarity", similarity)
        if similarity in (0, 1):
            return math.inf if similarity else -math.inf
        return self.midpoint + math.log(similarity / (1 - similarity)) / self.slope


@runtime_checkable
class Embedder(Protocol):
    """
    Turns texts into vectors.

    It may also have a ``fingerprint``: a text that changes whenever its vectors do (see `fingerprint_of`);
    and a ``batch_size``: how many texts it takes well at once.
    """

    @property
    def name(self) -> str:
        """What it is called, in messages and in the store."""

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""

    @property
    def max_tokens(self) -> int:
        """How long a text may be; a longer one is embedded in pieces."""

    @property
    def calibration(self) -> Calibration:
        """What its cosines mean."""

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> ArrayLike | Awaitable[ArrayLike]:
        """
        Return a vector for each text, or something to await that gives them.

        Args:
            texts: Any texts; they may be empty.
            kind: What they are.

        Returns:
            Float32, of shape (texts, dimensions).

        """


def fingerprint_of(embedder: Embedder) -> str:
    """
    Return what tells an embedder's vectors from those of any other.

    That is its own ``fingerprint``, and a hash of its class, name and dimensions where it has none.
    """
    own = getattr(embedder, "fingerprint", None)
    if isinstance(own, str) and own:
        return own
    kind = type(embedder)
    said = "\0".join((kind.__module__, kind.__qualname__, embedder.name, str(embedder.dimensions)))
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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
