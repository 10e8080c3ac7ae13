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
from mama_structs.records import HostRecord, NewRecord

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
except ImportError as _missing:
    raise ImportError("the LangChain adapters need LangChain: pip install 'mama-structs[langchain]'") from _missing

DocumentFilter: TypeAlias = Mapping[str, Any] | Callable[[Document], bool]
_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
    "$in": lambda value, several: value in several,
    "$nin": lambda value, several: value not in several,
}
_OF_SEVERAL: Final = frozenset({"$in", "$nin"})
# Lower bound of vector lengths: the vectors of a text's chunks may cancel out to zero.
_LEAST: Final = 1e-12
# Keys of stored values: the key names the encoding.
_JSON, _BYTES, _DOCUMENT = "json", "base64", "document"


def packed(value: object) -> dict[str, Any]:
    """Return a value of a key-value store as JSON."""
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode("ascii")}
    if isinstance(value, Document):
        return {_DOCUMENT: {"id": value.id, "page_content": value.page_content, "metadata": value.metadata}}
    return {_JSON: value}


def unpacked(kept: Mapping[str, Any]) -> Any:
    """Return the original value from the JSON of `packed`."""
    if _BYTES in kept:
        return base64.b64decode(kept[_BYTES])
    return Document(**kept[_DOCUMENT]) if _DOCUMENT in kept else kept[_JSON]


def labels_of(collection: object) -> tuple[str, ...]:
    """Return the labels of a vector store's collection."""
    return ("langchain", "documents", _check.text("collection", collection))


def records_of(
    labels: tuple[str, ...],
    texts: object,
    metadatas: Sequence[object] | None,
    ids: Sequence[str | None] | None,
    *,
    origin: Origin,
) -> list[NewRecord]:
    """Return the records of texts, each under its id or a new one."""
    contents = _check.items("texts", texts, of="texts")
    for name, several in (("metadatas", metadatas), ("ids", ids)):
        if several and len(several) != len(contents):
            raise InvalidArgument(f"{name} must have one item for each of {len(contents)} texts, got {len(several)}")
    rows = zip(contents, metadatas or [None] * len(contents), ids or [None] * len(contents), strict=True)
    return [
        NewRecord(labels, own_id or str(uuid.uuid4()), _value(position, text, metadata), text=text, origin=origin)
        for position, (text, metadata, own_id) in enumerate(rows)
    ]


def _value(position: int, text: object, metadata: object) -> dict[str, Any]:
    told = {} if metadata is None else metadata
    if not isinstance(told, Mapping):
        raise InvalidArgument(f"metadatas[{position}] must be a mapping, got {type(told).__name__}")
    return {"text": _check.text(f"texts[{position}]", text, empty=True), "metadata": dict(told)}


def document_of(record: HostRecord, **metadata: Any) -> Document:
    """Return the document of a vector store's record."""
    kept = record.value
    return Document(id=record.key, page_content=kept["text"], metadata={**kept["metadata"], **metadata})


def where(chosen: DocumentFilter | None) -> Callable[[HostRecord], bool] | None:
    """Return a predicate for records that match a filter, or None without a filter."""
    if chosen is None:
        return None
    if callable(chosen):
        return lambda record: bool(chosen(document_of(record)))
    if not isinstance(chosen, Mapping):
        raise InvalidArgument(f"filter must be a mapping or a function of a document, got {type(chosen).__name__}")
    tests = [test for field, wanted in chosen.items() for test in _tests(field, wanted)]
    return lambda record: all(test(record.value["metadata"]) for test in tests)


def _tests(field: object, wanted: object) -> list[Callable[[Mapping[str, Any]], bool]]:
    name = _check.text("a field of filter", field)
    if name.startswith("$"):
        raise InvalidArgument("filter does not support operators at the top level", hint="give a function")
    is_compared = isinstance(wanted, Mapping) and any(str(key).startswith("$") for key in wanted)
    given: Mapping[Any, Any] = wanted if is_compared else {"$eq": wanted}  # type: ignore[assignment]
    return [_test(name, sign, value) for sign, value in given.items()]


def _test(field: str, sign: object, wanted: Any) -> Callable[[Mapping[str, Any]], bool]:
    compare = _COMPARED[_check.choice(f"an operator of filter[{field!r:.80}]", sign, _COMPARED)]
    value = _check.items(f"filter[{field!r:.80}]", wanted, of="values") if sign in _OF_SEVERAL else wanted

    def test(metadata: Mapping[str, Any]) -> bool:
        try:
            return bool(compare(metadata.get(field), value))
        except TypeError:
            # Values of different types cannot be ordered, so the condition is false.
            return False

    return test


@attrs.frozen
class Embedding:
    """Adapts LangChain's ``Embeddings`` to the function of an embedder."""

    embeddings: Embeddings

    async def __call__(self, texts: Sequence[str], *, kind: Kind) -> list[list[float]]:
        """Return a vector for each text."""
        if kind == "query":
            return [await self.embeddings.aembed_query(text) for text in texts]
        return await self.embeddings.aembed_documents(list(texts))


def varied(cosines: Sequence[float], pieces: Sequence[Vectors], count: int, relevance: float) -> list[int]:
    """Return indexes of relevant, mutually dissimilar texts (maximal marginal relevance)."""
    # Carbonell and Goldstein, "The use of MMR, diversity-based reranking", 1998. A long text has several vectors: their
    # sum represents it in comparisons.
    near = np.asarray(cosines, dtype=np.float64)
    vectors = np.array([several.sum(axis=0) for several in pieces], dtype=np.float64)
    chosen: list[int] = []
    nearest_chosen = np.zeros(len(near))
    while len(chosen) < min(count, len(near)):
        worth = relevance * near - (1 - relevance) * nearest_chosen if chosen else near.copy()
        worth[chosen] = -np.inf
        best = int(np.argmax(worth))
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(vectors[best])
        to_best = vectors @ vectors[best] / np.maximum(lengths, _LEAST)
        nearest_chosen = np.maximum(nearest_chosen, to_best) if chosen else to_best
        chosen.append(best)
    return chosen
