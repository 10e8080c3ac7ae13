"""Conversion and filtering of LangChain's documents, and a wrapper for its embedders."""

from __future__ import annotations

import base64
import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np

from mama_structs._internal import validation as _check
from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding.protocol import Kind, Vectors
from mama_structs.memory.types.model import Origin
from mama_structs.memory.types.record import NewRecord, Record

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
except ImportError as _missing:
    raise ImportError("the LangChain adapters need LangChain: pip install 'mama-structs[langchain]'") from _missing

DocumentFilter: TypeAlias = Mapping[str, Any] | Callable[[Document], bool]
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
    "$in": lambda value, several: value in several,
    "$nin": lambda value, several: value not in several,
}
_LIST_OPERATORS: Final = frozenset({"$in", "$nin"})
# Minimum norm of a vector. It prevents division by zero if the summed chunk vectors cancel each other out.
_MIN_NORM: Final = 1e-12
# The key of a stored mapping identifies its encoding.
_JSON, _BYTES, _DOCUMENT = "json", "base64", "document"


def encode_value(value: object) -> dict[str, Any]:
    """Return a value of a key-value store as JSON."""
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode("ascii")}
    if isinstance(value, Document):
        return {_DOCUMENT: {"id": value.id, "page_content": value.page_content, "metadata": value.metadata}}
    return {_JSON: value}


def decode_value(kept: Mapping[str, Any]) -> Any:
    """Return the original value from the JSON that `encode_value` returned."""
    if _BYTES in kept:
        return base64.b64decode(kept[_BYTES])
    return Document(**kept[_DOCUMENT]) if _DOCUMENT in kept else kept[_JSON]


def create_labels(collection: object) -> tuple[str, ...]:
    """Return the labels of a vector store's collection."""
    return ("langchain", "documents", _check.check_text("collection", collection))


def create_records(
    labels: tuple[str, ...],
    texts: object,
    metadatas: Sequence[object] | None,
    ids: Sequence[str | None] | None,
    *,
    origin: Origin,
) -> list[NewRecord]:
    """Create the records of texts, each with its passed id or a new one."""
    contents = _check.check_items("texts", texts, item_kind="texts")
    for name, several in (("metadatas", metadatas), ("ids", ids)):
        if several and len(several) != len(contents):
            raise InvalidArgument(f"{name} must have one item for each of {len(contents)} texts, got {len(several)}")
    rows = zip(contents, metadatas or [None] * len(contents), ids or [None] * len(contents), strict=True)
    return [
        NewRecord(
            labels, own_id or str(uuid.uuid4()), _create_value(position, text, metadata), text=text, origin=origin
        )
        for position, (text, metadata, own_id) in enumerate(rows)
    ]


def _create_value(position: int, text: object, metadata: object) -> dict[str, Any]:
    fields = {} if metadata is None else metadata
    if not isinstance(fields, Mapping):
        raise InvalidArgument(f"metadatas[{position}] must be a mapping, got {type(fields).__name__}")
    return {"text": _check.check_text(f"texts[{position}]", text, allow_empty=True), "metadata": dict(fields)}


def create_document(record: Record, **metadata: Any) -> Document:
    """Return the document of a vector store's record."""
    kept = record.value
    return Document(id=record.key, page_content=kept["text"], metadata={**kept["metadata"], **metadata})


def compile_filter(filter_: DocumentFilter | None) -> Callable[[Record], bool] | None:
    """Return a predicate for records that match a filter, or None without a filter."""
    if filter_ is None:
        return None
    if callable(filter_):
        return lambda record: bool(filter_(create_document(record)))
    if not isinstance(filter_, Mapping):
        raise InvalidArgument(f"filter must be a mapping or a function of a document, got {type(filter_).__name__}")
    tests = [test for field, wanted in filter_.items() for test in _compile_field(field, wanted)]
    return lambda record: all(test(record.value["metadata"]) for test in tests)


def _compile_field(field: object, wanted: object) -> list[Callable[[Mapping[str, Any]], bool]]:
    name = _check.check_text("a field of filter", field)
    if name.startswith("$"):
        raise InvalidArgument("filter does not support operators at the top level", hint="give a function")
    is_compared = isinstance(wanted, Mapping) and any(str(key).startswith("$") for key in wanted)
    given: Mapping[Any, Any] = wanted if is_compared else {"$eq": wanted}  # type: ignore[assignment]
    return [_compile_condition(name, sign, value) for sign, value in given.items()]


def _compile_condition(field: str, sign: object, wanted: Any) -> Callable[[Mapping[str, Any]], bool]:
    compare = _COMPARISONS[_check.check_choice(f"an operator of filter[{field!r:.80}]", sign, _COMPARISONS)]
    value = (
        _check.check_items(f"filter[{field!r:.80}]", wanted, item_kind="values") if sign in _LIST_OPERATORS else wanted
    )

    def test(metadata: Mapping[str, Any]) -> bool:
        try:
            return bool(compare(metadata.get(field), value))
        except TypeError:
            # Values of different types cannot be compared, so the condition is false.
            return False

    return test


@attrs.frozen
class EmbeddingsFunction:
    """Adapts LangChain's ``Embeddings`` to the function of an embedder."""

    embeddings: Embeddings

    async def __call__(self, texts: Sequence[str], *, kind: Kind) -> list[list[float]]:
        """Return a vector for each text."""
        if kind == "query":
            return [await self.embeddings.aembed_query(text) for text in texts]
        return await self.embeddings.aembed_documents(list(texts))


def select_diverse(cosines: Sequence[float], pieces: Sequence[Vectors], count: int, relevance: float) -> list[int]:
    """Return indexes of relevant, mutually dissimilar texts (maximal marginal relevance)."""
    # Algorithm: Carbonell and Goldstein, "The use of MMR, diversity-based reranking", 1998.
    # A long text has one vector per chunk. The sum of its chunk vectors represents the text in comparisons.
    near = np.asarray(cosines, dtype=np.float64)
    vectors = np.array([several.sum(axis=0) for several in pieces], dtype=np.float64)
    chosen: list[int] = []
    nearest_chosen = np.zeros(len(near))
    while len(chosen) < min(count, len(near)):
        worth = relevance * near - (1 - relevance) * nearest_chosen if chosen else near.copy()
        worth[chosen] = -np.inf
        best = int(np.argmax(worth))
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(vectors[best])
        to_best = vectors @ vectors[best] / np.maximum(lengths, _MIN_NORM)
        nearest_chosen = np.maximum(nearest_chosen, to_best) if chosen else to_best
        chosen.append(best)
    return chosen
