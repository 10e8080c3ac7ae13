"""The `Embedder` protocol, the calibration of cosines, and calls of embedders from async code."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar, overload, runtime_checkable

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import call_maybe_sync, run_in_own_thread
from mama_structs._internal.jsonable import JsonMixin
from mama_structs.errors import EmbeddingFailed, InvalidArgument, MemoryStoreError
from mama_structs.memory.embedding.chunks import MIN_TOKENS

Kind = Literal["document", "query"]
"""The role of a text: a document that can be found, or a query that finds documents."""

Vectors = NDArray[np.float32]
FloatT = TypeVar("FloatT", bound=np.floating)


MAX_ROUNDED_COSINE: Final = 1.001
"""Maximum cosine of two unit vectors, with rounding errors."""


@attrs.frozen
class Calibration(JsonMixin):
    """
    Converts an embedder's cosines to similarities that are comparable between embedders.

    A similarity is the probability, 0 to 1, that two texts are about the same subject,
    if both cases were equally likely before the cosine was known: ``1 / (1 + exp(-slope * (cosine - midpoint)))``
    (Platt, "Probabilistic outputs for support vector machines", 1999; both classes have equal weight).
    The values for the embedders in this package come from ``benchmarks/calibration.py``.

    Args:
        midpoint: The cosine at which the same subject and another subject are equally likely.
        slope: The change of the log-odds (natural logarithm) per 1 of cosine.
        threshold: The default similarity from which two texts count as similar.

    Raises:
        InvalidArgument: A value is not finite, the slope is not positive, or the threshold is not between 0 and 1.

    """

    midpoint: float = 0.5
    slope: float = 12.0
    threshold: float = attrs.field(default=0.85, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check.check_number("midpoint", self.midpoint)
        if _check.check_number("slope", self.slope) <= 0:
            raise InvalidArgument(f"slope must be more than 0, got {self.slope!r}")
        if not 0 < _check.check_number("threshold", self.threshold) < 1:
            raise InvalidArgument(f"threshold must lie between 0 and 1, got {self.threshold!r}")

    @overload
    def __call__(self, cosine: float) -> float: ...
    @overload
    def __call__(self, cosine: NDArray[np.floating]) -> NDArray[np.floating]: ...

    def __call__(self, cosine: float | NDArray[np.floating]) -> float | NDArray[np.floating]:
        """
        Return the similarity for a cosine, or for an array of cosines.

        An array gives an array of the same shape and type.

        Args:
            cosine: -1 to 1. Values slightly outside, from rounding, are accepted.

        """
        # Write the logistic function as a hyperbolic tangent, which cannot overflow.
        if isinstance(cosine, np.ndarray):
            similarity: NDArray[np.floating] = 0.5 + 0.5 * np.tanh(0.5 * self.slope * (cosine - self.midpoint))
            return similarity
        return 0.5 + 0.5 * math.tanh(0.5 * self.slope * (float(cosine) - self.midpoint))

    def cosine(self, similarity: float) -> float:
        """
        Return the cosine for a similarity: the inverse of calling the calibration.

        Args:
            similarity: 0 to 1. 0 returns minus infinity (every cosine is above it) and 1 returns infinity.

        Raises:
            InvalidArgument: It is not a number from 0 to 1.

        """
        _check.check_ratio("similarity", similarity)
        if similarity in (0, 1):
            return math.inf if similarity else -math.inf
        return self.midpoint + math.log(similarity / (1 - similarity)) / self.slope


def check_calibration(name: str, value: object) -> None:
    """Raise `InvalidArgument` unless *value* is a `Calibration` whose midpoint is a cosine."""
    if not isinstance(value, Calibration):
        raise _check.invalid_argument(
            name,
            "must be a Calibration",
            value,
            hint="Calibration(midpoint, slope, threshold=...); as_embedder(fn, name=..., dimensions=...) measures it",
        )
    if abs(value.midpoint) > MAX_ROUNDED_COSINE:
        raise InvalidArgument(
            f"the midpoint of {name} must be a cosine from -1 to 1, got {value.midpoint!r}",
            hint="the order is Calibration(midpoint, slope)",
        )


@runtime_checkable
class Embedder(Protocol):
    """
    Converts texts to vectors.

    An embedder may also have a ``fingerprint``, a text that changes whenever its vectors change.
    It may have a ``batch_size``, its preferred number of texts per call.
    It may have a synchronous method ``load_model()``: a session calls it in a thread, soon after opening.
    It may have ``shared_dimensions`` and ``adjust_query(text, vector)``, see `QueryVectors`.
    """

    @property
    def name(self) -> str:
        """The name in messages and in the store."""

    @property
    def dimensions(self) -> int:
        """The length of a vector."""

    @property
    def max_tokens(self) -> int:
        """The maximum length of a text in tokens. Longer texts are split into chunks."""

    @property
    def calibration(self) -> Calibration:
        """The calibration of the embedder's cosines."""

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> ArrayLike | Awaitable[ArrayLike]:
        """
        Return one vector per text. May be async.

        Args:
            texts: Any texts, also empty ones.
            kind: Their role: documents or queries.

        Returns:
            Float32, of shape (texts, dimensions).

        """


def fingerprint_of(embedder: Embedder) -> str:
    """Return the embedder's ``fingerprint``, or else a hash of its class, name and dimensions."""
    own = getattr(embedder, "fingerprint", None)
    if isinstance(own, str) and own:
        return own
    kind = type(embedder)
    stored_class = vars(kind).get("STORED_CLASS", (kind.__module__, kind.__qualname__))
    identity = "\0".join((*stored_class, embedder.name, str(embedder.dimensions)))
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@attrs.frozen(eq=False)
class QueryVectors:
    """
    The vectors that give the similarities of a query to stored vectors.

    An embedder may have a part of the vector for one language only, the rest after ``shared_dimensions``. The rest of
    a text in any other language is 0. The vectors of texts with and without a rest are two groups.

    An adjusted similarity is the similarity of the query to a text, minus the mean similarity of unrelated messages in
    the query's language to the same text. The scale of both groups is the same.

    Args:
        plain: The unit vector of the query, float32 of shape (dimensions,).
        same: Its scalar product with a stored vector of the query's group is the adjusted similarity.
        other: Its scalar product with a stored vector of the other group is the adjusted similarity.
        has_rest: True if the query has a rest.
        shared_dimensions: The number of leading dimensions that all texts have in common.
        unrelated: Similarity of the query to the nearest of typical messages that no memory answers, such as greetings
            and questions about general knowledge, minus the usual similarity of such messages. The default, 0, is that
            of a typical unrelated message; a question about memories has about -0.1.

    """

    plain: Vectors
    same: Vectors
    other: Vectors
    has_rest: bool
    shared_dimensions: int
    unrelated: float = 0.0

    @property
    def is_adjusted(self) -> bool:
        """True if similarities are differences from the similarity of unrelated messages, False for cosines."""
        return self.same is not self.plain

    def similarities(self, vectors: Vectors) -> Vectors:
        """
        Return the adjusted similarities to stored unit vectors.

        Args:
            vectors: Float32, of shape (texts, dimensions). An array without rows may have any number of dimensions.

        """
        if not len(vectors):
            return np.zeros(0, np.float32)
        same: Vectors = vectors @ self.same
        is_other = self.is_other(vectors)
        if is_other.any():
            same[is_other] = vectors[is_other] @ self.other
        return same

    def is_other(self, vectors: Vectors) -> NDArray[np.bool_]:
        """Return a mask of the stored vectors that are not of the query's group."""
        is_other: NDArray[np.bool_] = has_rest(vectors, self.shared_dimensions) != self.has_rest
        return is_other


def shared_dimensions(embedder: Embedder) -> int:
    """Return the number of leading dimensions that texts in all languages have in common."""
    return int(getattr(embedder, "shared_dimensions", embedder.dimensions))


def has_rest(vectors: NDArray[np.floating], shared_dimensions: int) -> NDArray[np.bool_]:
    """
    Return a mask of the vectors with a part after the shared dimensions.

    Only the last component is read, because the mask of many vectors must be fast. Embedders with a rest must return
    a last component that is not 0 in 16 bits.

    Args:
        vectors: Float32, of shape (texts, dimensions).
        shared_dimensions: The number of leading dimensions that all texts have in common.

    """
    if not len(vectors) or shared_dimensions >= vectors.shape[1]:
        return np.zeros(len(vectors), np.bool_)
    mask: NDArray[np.bool_] = vectors[:, -1] != 0
    return mask


def adjust_query(embedder: Embedder, text: str, vector: Vectors) -> QueryVectors:
    """
    Return the vectors that give the similarities of a query.

    An embedder may have a method ``adjust_query(text, vector)`` with this result. Similarities of any other embedder
    are cosines.

    Args:
        embedder: The embedder of the query and of the stored vectors.
        text: The query.
        vector: Its unit vector, float32 of shape (dimensions,).

    Raises:
        EmbeddingFailed: The method raised an error, or returned something else than usable `QueryVectors`.

    """
    adjust = getattr(embedder, "adjust_query", None)
    if adjust is None:
        return unadjusted_query(vector)
    try:
        adjusted = adjust(text, vector)
    except MemoryStoreError:
        raise
    except Exception as error:
        raise EmbeddingFailed(
            f"adjust_query() of the embedder {embedder.name} raised {type(error).__name__}"
        ) from error
    fault = _find_fault(adjusted, len(vector), shared_dimensions(embedder))
    if fault is not None:
        raise EmbeddingFailed(
            f"adjust_query() of the embedder {embedder.name} {fault}",
            hint="return a mama_structs.spi.QueryVectors, or remove the method to compare by cosines",
        )
    return _convert_types(adjusted)


# Unit vectors minus mean vectors are much shorter. Products of larger numbers could overflow.
_MAX_COMPONENT: Final = 1_000.0


def _find_fault(adjusted: object, dimensions: int, shared: int) -> str | None:
    """Return why the result of an embedder's ``adjust_query`` cannot be used, or None."""
    if not isinstance(adjusted, QueryVectors):
        return f"must return QueryVectors, got {type(adjusted).__name__}"
    for name in ("plain", "same", "other"):
        value = getattr(adjusted, name)
        if not isinstance(value, np.ndarray) or value.shape != (dimensions,) or value.dtype.kind != "f":
            return f"must return {name} as an array of {dimensions} floating-point numbers"
        if not np.isfinite(value).all() or np.abs(value).max(initial=0.0) > _MAX_COMPONENT:
            return f"returned a number that is not finite or too large in {name}"
    has_rest, unrelated, found = adjusted.has_rest, adjusted.unrelated, adjusted.shared_dimensions
    is_number = isinstance(unrelated, int | float | np.floating) and math.isfinite(unrelated)
    faults = {
        f"must return shared_dimensions={shared} as the embedder, got {found!r:.40}": type(found) is not int
        or found != shared,
        f"must return has_rest as a bool, got {type(has_rest).__name__}": not isinstance(has_rest, bool | np.bool_),
        f"must return unrelated as a finite number, got {unrelated!r:.40}": not is_number,
    }
    return next((fault for fault, is_wrong in faults.items() if is_wrong), None)


def _convert_types(adjusted: QueryVectors) -> QueryVectors:
    """Return query vectors with float32 arrays and built-in types."""
    plain = adjusted.plain.astype(np.float32, copy=False)
    return QueryVectors(
        plain=plain,
        # `QueryVectors.is_adjusted` depends on the identity of the arrays.
        same=plain if adjusted.same is adjusted.plain else adjusted.same.astype(np.float32, copy=False),
        other=adjusted.other.astype(np.float32, copy=False),
        has_rest=bool(adjusted.has_rest),
        shared_dimensions=adjusted.shared_dimensions,
        unrelated=float(adjusted.unrelated),
    )


def unadjusted_query(vector: Vectors) -> QueryVectors:
    """Return the vectors of a query with which similarities are cosines."""
    return QueryVectors(plain=vector, same=vector, other=vector, has_rest=False, shared_dimensions=len(vector))


def pair_cosines(first: NDArray[FloatT], second: NDArray[FloatT], shared_dimensions: int) -> NDArray[FloatT]:
    """
    Return the cosines of pairs of unit vectors.

    A pair of vectors with and without a rest is compared by the shared dimensions only.

    Args:
        first: Floating-point numbers, of shape (pairs, dimensions).
        second: Vectors of the same shape and type.
        shared_dimensions: The number of leading dimensions that all texts have in common.

    Returns:
        An array of the same type, of shape (pairs,), -1 to 1 except for rounding.

    """
    is_mixed = has_rest(first, shared_dimensions) != has_rest(second, shared_dimensions)
    cosines: NDArray[FloatT] = np.einsum("ij,ij->i", first, second)
    if is_mixed.any():
        norms = [shared_norms(side[is_mixed], shared_dimensions) for side in (first, second)]
        cosines[is_mixed] /= norms[0] * norms[1]
    return cosines


def cosine_table(
    first: NDArray[FloatT],
    second: NDArray[FloatT],
    shared_dimensions: int,
    *,
    norms: tuple[NDArray[FloatT] | None, NDArray[FloatT] | None] = (None, None),
) -> NDArray[FloatT]:
    """
    Return the cosines of all pairs of unit vectors, as `pair_cosines` does.

    Args:
        first: Floating-point numbers, of shape (n, dimensions).
        second: Vectors of the same type, of shape (m, dimensions).
        shared_dimensions: The number of leading dimensions that all texts have in common.
        norms: The `shared_norms` of both, or None where they are not known.

    Returns:
        An array of the same type, of shape (n, m). A vector of zeros has the cosine 0 to any other.

    """
    cosines: NDArray[FloatT] = first @ second.T
    is_mixed = has_rest(first, shared_dimensions)[:, np.newaxis] != has_rest(second, shared_dimensions)
    if is_mixed.any():
        both = [
            shared_norms(side, shared_dimensions) if known is None else known
            for side, known in zip((first, second), norms, strict=True)
        ]
        np.divide(cosines, np.multiply.outer(*both), out=cosines, where=is_mixed)
    return cosines


def shared_norms(vectors: NDArray[FloatT], shared_dimensions: int) -> NDArray[FloatT]:
    """
    Return the norm of each vector in the shared dimensions.

    It is 1 for a vector without a rest, also for a vector of zeros.
    """
    norms, rest = np.ones(len(vectors), vectors.dtype), has_rest(vectors, shared_dimensions)
    # Slicing all vectors avoids the copy that selecting those with a rest makes.
    shared = (vectors if rest.all() else vectors[rest])[:, :shared_dimensions]
    norms[rest] = np.maximum(np.sqrt(np.einsum("ij,ij->i", shared, shared)), np.finfo(vectors.dtype).tiny)
    return norms


def project_to_shared(vectors: NDArray[FloatT], shared_dimensions: int) -> NDArray[FloatT]:
    """Return the vectors without their rest, with the length 1. A vector of zeros remains unchanged."""
    projected = np.zeros_like(vectors)
    shared = vectors[..., :shared_dimensions]
    norms = np.linalg.norm(shared, axis=-1, keepdims=True)
    projected[..., :shared_dimensions] = shared / np.where(norms > 0, norms, 1)
    return projected


def nearest_queries(vector: Vectors, sample: Vectors, shared_dimensions: int) -> list[Vectors]:
    """
    Return the vectors whose nearest neighbours in a store are the most similar memories.

    The neighbours of a vector with a rest are almost always vectors with a rest, so a second vector finds the others.

    Args:
        vector: A unit vector, of shape (dimensions,).
        sample: Vectors of the store, of shape (n, dimensions).
        shared_dimensions: The number of leading dimensions that all texts have in common.

    """
    groups = has_rest(sample, shared_dimensions)
    if groups.all() or not has_rest(vector[np.newaxis], shared_dimensions)[0]:
        return [vector]
    projected = project_to_shared(vector, shared_dimensions)
    return [vector, projected] if groups.any() else [projected]


RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function outside the event loop."""


@attrs.frozen
class EmbeddingResult:
    """Unit vectors of shape (texts, dimensions), and a message for each row that is invalid."""

    vectors: Vectors
    faults: dict[int, str]


async def embed_texts(
    embedder: Embedder, texts: Sequence[str], kind: Kind, *, in_thread: RunInThread
) -> EmbeddingResult:
    """
    Call an embedder once, in a thread if it is synchronous.

    Convert any error of the embedder to `EmbeddingFailed`.
    """
    is_async = getattr(embedder, "is_async", False) or inspect.iscoroutinefunction(embedder.embed)
    take = functools.partial(validate_vectors, count=len(texts), dimensions=embedder.dimensions)
    try:
        return await call_maybe_sync(
            lambda: embedder.embed(texts, kind=kind), take, is_async=is_async, run_in_thread=in_thread
        )
    except EmbeddingFailed:
        raise
    except Exception as error:
        # The message of the error may contain the embedded text, so report only its type.
        message = f"the embedder {embedder.name!r:.80} raised {type(error).__name__} for {len(texts)} texts"
        raise EmbeddingFailed(message) from error


def validate_vectors(values: Any, count: int, dimensions: int) -> EmbeddingResult:
    """Normalise an embedder's result for *count* texts, and return it with a message for each invalid row."""
    if count == 0:
        return EmbeddingResult(np.empty((0, dimensions), dtype=np.float32), {})
    hint = f"embed() must return a float32 array of shape ({count}, {dimensions}) for {count} texts"
    raw = require_numeric_array(values, (count, dimensions), source="embedder", error_type=EmbeddingFailed, hint=hint)
    vectors, usable = normalize_rows(raw)
    return EmbeddingResult(
        vectors,
        {
            int(row): "is zero" if np.isfinite(raw[row]).all() else "holds a number that is not finite"
            for row in np.flatnonzero(~usable)
        },
    )


def require_numeric_array(
    values: Any, shape: tuple[int, ...], *, source: str, error_type: type[MemoryStoreError], hint: str
) -> NDArray[Any]:
    """Return the result of a model as a numeric array of the given shape, or raise *error_type*."""
    kind = type(values).__name__
    try:
        raw = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise error_type(f"the {source} gave a {kind} that is no array of numbers", hint=hint) from error
    if raw.dtype.kind not in "fiu":
        raise error_type(f"the {source} gave a {kind} of {raw.dtype.name}, expected numbers", hint=hint)
    if raw.shape != shape:
        raise error_type(f"the {source} gave an array of shape {raw.shape} for {shape[0]} texts", hint=hint)
    return raw


def normalize_rows(rows: NDArray[np.floating]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """
    Return normalised rows, and a mask of the valid rows.

    Rows that are zero or not finite are invalid.
    """
    wide = rows.astype(np.float64)
    wide[~np.isfinite(wide).all(axis=1)] = 0
    # Divide by the largest value first, because squares of very large or small numbers overflow or underflow.
    largest = np.abs(wide).max(axis=1, initial=0)
    usable: NDArray[np.bool_] = largest > 0
    wide[~usable] = largest[~usable] = 1
    wide /= largest[:, None]
    return (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32), usable


PROVISIONAL_CALIBRATION: Final = Calibration()
"""Placeholder for the calibration of an embedder until it is fitted."""

_logger: Final = logging.getLogger("mama_structs")
MIN_AUC: Final = 0.6  # If the AUC on the built-in sentences is lower, the embedder is hardly better than chance.
MAX_NEWTON_STEPS: Final = 100
NEWTON_TOLERANCE: Final = 1e-10
MIN_SLOPE: Final = 0.5  # Similarity must increase with the cosine, even if the fitted relation is flat or inverse.
MAX_SLOPE: Final = 200.0


@functools.cache
def load_sentence_triples() -> tuple[tuple[str, str, str], ...]:
    """
    Return the built-in sentence triples.

    Each contains a sentence, a second one on the same subject, and a third one on another subject of the same domain.
    """
    text = Path(__file__).with_name("pairs.json").read_text(encoding="utf-8")
    return tuple((first, same, other) for first, same, other in json.loads(text))


def fit_calibration(same: Sequence[NDArray[np.floating]], other: Sequence[NDArray[np.floating]]) -> Calibration:
    """
    Fit a calibration to the cosines of pairs on the same subject and of pairs on different subjects.

    Args:
        same: Groups of cosines of pairs on the same subject.
        other: Groups of cosines of pairs on different subjects.

    Raises:
        InvalidArgument: A group is empty or contains a cosine that is not finite, or there is no group.

    """
    # Logistic regression with Platt's targets. They lie slightly inside 0 and 1, so that the slope stays finite.
    # Both classes have equal total weight, and so do all groups within a class.
    # Both classes use the targets of the smaller class, so that the midpoint stays within the range of the cosines.
    parts: list[tuple[NDArray[np.float64], float, float]] = []
    count = min(sum(map(len, same)), sum(map(len, other)))
    for name, groups, target in (("same", same, (count + 1) / (count + 2)), ("other", other, 1 / (count + 2))):
        if not groups or not all(len(group) and np.isfinite(group).all() for group in groups):
            raise InvalidArgument(f"{name} must be groups of finite cosines, none of them empty")
        parts.extend((np.asarray(group, np.float64), target, 0.5 / len(groups) / len(group)) for group in groups)
    x = np.concatenate([group for group, _, _ in parts])
    y = np.concatenate([np.full(len(group), target) for group, target, _ in parts])
    w = np.concatenate([np.full(len(group), weight) for group, _, weight in parts])
    centre = float(w @ x)
    scale = max(float(np.sqrt(w @ (x - centre) ** 2)), 1e-6)
    slope, intercept = _fit_logistic((x - centre) / scale, y, w)
    if slope / scale <= MIN_SLOPE:
        return Calibration(centre, MIN_SLOPE)
    midpoint = float(np.clip(centre - intercept / slope * scale, x.min(), x.max()))
    return Calibration(midpoint, min(slope / scale, MAX_SLOPE))


def sentence_cosines(
    vectors: NDArray[np.floating], shared_dimensions: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """
    Return the cosines of pairs of built-in sentences: same subject, other subject of the same domain, unrelated.

    The third array contains the cosines between the first sentences of different triples.

    Args:
        vectors: Unit vectors of the sentences, in the order of `load_sentence_triples`.
        shared_dimensions: The number of leading dimensions that all texts have in common.

    """
    table = vectors.reshape(len(load_sentence_triples()), 3, -1).astype(np.float64)
    first, same, other = table[:, 0], table[:, 1], table[:, 2]
    rows, columns = np.triu_indices(len(first), 1)
    pairs = ((first, same), (first, other), (first[rows], first[columns]))
    near, far, across = (pair_cosines(one, two, shared_dimensions) for one, two in pairs)
    return near, far, across


def compute_auc(same: ArrayLike, other: ArrayLike) -> float:
    """
    Return the AUC: how often a cosine of *same* is higher than a cosine of *other*.

    1 means always, 0.5 means chance.
    """
    positive, negative = np.ravel(same).astype(np.float64), np.sort(np.ravel(other).astype(np.float64))
    below = np.searchsorted(negative, positive, side="left") + np.searchsorted(negative, positive, side="right")
    return float(below.mean() / 2 / len(negative))


@attrs.define(kw_only=True)
class CalibratingEmbedder:
    """
    Base class of embedders whose calibration may be unknown at first.

    In this case `calibrate_embedder` or an `EmbeddingService` fits it before the first use.
    """

    # Type checkers reject a field with a converter as a member of `Embedder`, so a property returns it.
    _calibration: Calibration | None = attrs.field(default=None, alias="calibration")
    # This is a field, so that a copy of an uncalibrated embedder is uncalibrated too.
    is_calibrated: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self.is_calibrated = self._calibration is not None
        if self._calibration is not None:
            check_calibration("calibration", self._calibration)
        embedder: Any = self
        if not isinstance(embedder.name, str) or not embedder.name:
            raise _check.invalid_argument("name", "must be text that is not empty", embedder.name)
        _check.check_integer("dimensions", embedder.dimensions, 1, separator=",")
        _check.check_integer("max_tokens", embedder.max_tokens, MIN_TOKENS, separator=",")
        _check.check_integer("batch_size", embedder.batch_size, 1, separator=",")

    @property
    def calibration(self) -> Calibration:
        """The calibration of the embedder's cosines; a provisional one until `calibrate` is called."""
        return PROVISIONAL_CALIBRATION if self._calibration is None else self._calibration

    def calibrate(self, calibration: Calibration) -> None:
        """Set a known calibration, such as the calibration stored with the vectors."""
        self._calibration = calibration
        self.is_calibrated = True


async def calibrate_embedder(embedder: Embedder, *, in_thread: RunInThread = run_in_own_thread) -> Calibration:
    """
    Return an embedder's calibration. If it is unknown, fit it on the built-in sentences first.

    Args:
        embedder: The embedder. A fitted calibration is stored in it.
        in_thread: Runs the calls of an embedder that is not async.

    Raises:
        EmbeddingFailed: The embedder failed, or returned no usable vectors.

    """
    if not isinstance(embedder, CalibratingEmbedder) or embedder.is_calibrated:
        return embedder.calibration
    done = await embed_texts(
        embedder, [text for triple in load_sentence_triples() for text in triple], "document", in_thread=in_thread
    )
    if done.faults:
        raise EmbeddingFailed(f"the embedder's vector of a built-in sentence {next(iter(done.faults.values()))}")
    same, near, far = sentence_cosines(done.vectors, shared_dimensions(embedder))
    apart = compute_auc(same, far)
    if apart < MIN_AUC:
        _logger.warning(
            "the embedder %s separates sentences on the same subject from others in %.0f %% of the cases (chance: 50)",
            embedder.name,
            apart * 100,
        )
    embedder.calibrate(fit_calibration([same], [near, far]))
    return embedder.calibration


def _fit_logistic(x: NDArray[np.float64], y: NDArray[np.float64], w: NDArray[np.float64]) -> tuple[float, float]:
    """Return slope and intercept of a weighted logistic regression (Newton's method)."""
    table = np.stack((x, np.ones_like(x)), axis=1)
    found = np.zeros(2)
    for _ in range(MAX_NEWTON_STEPS):
        predicted = 0.5 + 0.5 * np.tanh(0.5 * (table @ found))
        spread = w * predicted * (1 - predicted) + 1e-12
        hessian = (table.T * spread) @ table + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, table.T @ (w * (predicted - y)))
        # Limit the step, because Newton steps far from the solution can overshoot.
        step *= min(1.0, 2.0 / float(np.abs(step).max() + 1e-300))
        found -= step
        if np.abs(step).max() < NEWTON_TOLERANCE:
            break
    return float(found[0]), float(found[1])
