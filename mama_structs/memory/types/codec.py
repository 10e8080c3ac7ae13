"""JSON codec of stored memories and links, and derived values that all engines share."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import StoreDamaged
from mama_structs.memory.types.duplicates import duplicate_fingerprint
from mama_structs.memory.types.engine import Vectors, expiry_milliseconds
from mama_structs.memory.types.model import (
    METADATA_TYPES,
    ORIGINS,
    CheckpointMetadata,
    ContextMetadata,
    CreatedBy,
    DecisionMetadata,
    Link,
    Memory,
    MemoryType,
    Metadata,
    Origin,
    PreviousText,
    PreviousValue,
    RecordMetadata,
    evidence_digests,
    text_digest,
)
from mama_structs.memory.types.text_analysis import detect_scripts, indexed_text, question_percentage, weighted_terms

LinksT = TypeVar("LinksT")
MetadataT = TypeVar("MetadataT")

LENGTH_TOLERANCE: Final = 1e-3
"""Maximum deviation from 1 of the length of a vector that was normalised in float32."""
# Share of another vector that makes a query of a stored vector. With 0.25, the recall of such queries was close to that
# of real questions, in stores of English, of other and of mixed texts. Sums of equal shares lie between clusters, where
# no question lies, and need three times as many candidates.
ADDED_SHARE: Final = 0.25
MIN_QUERY_NORM: Final = 1e-3

ENTRY_FORMAT_VERSION: Final = 1
VERSIONS_PER_TEXT: Final = 4
"""Number of former versions of a record that share a stored text."""

STORED_NAMES: Final[Mapping[str, str]] = {
    "repeated_at": "repeats",
    "previous_texts": "former",
    "text_lengths": "lengths",
}
"""Stored keys that differ from their attribute names, by attribute name."""


@attrs.frozen(kw_only=True)
class SplitRecordMetadata(RecordMetadata):
    """Metadata of a record whose older former versions are stored as texts, with the hashes of these texts."""

    digests: tuple[str, ...]


_LATER_FIELDS: Final[Mapping[type, frozenset[str]]] = {
    DecisionMetadata: frozenset({"tags", "source"}),
    CheckpointMetadata: frozenset({"tags", "source"}),
    ContextMetadata: frozenset({"tags"}),
}
"""Fields that older stores lack. They are omitted if they are empty, so that unchanged memories have equal rows."""
_METADATA_KEYS: Final[Mapping[type, Sequence[tuple[str, str]]]] = {
    form: sorted((STORED_NAMES.get(field.name, field.name), field.name) for field in attrs.fields(form))
    for form in (*METADATA_TYPES.values(), SplitRecordMetadata)
}
"""Stored keys with the names of their attributes, in the order in which they are written."""


# gc=False: the garbage collector would need more time to track these short-lived objects than decoding takes.
class MemoryRecord(msgspec.Struct, Generic[MetadataT], forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """
    JSON form of a memory. Its metadata may still be undecoded.

    Fields with default values are omitted, so that earlier versions without these fields can read it.
    """

    id: str
    type: MemoryType
    content: str
    metadata: MetadataT
    created_at: datetime
    updated_at: datetime
    namespace: str
    topic: str | None = None
    mentions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    origin: Origin = "user"
    trust: Origin = "user"
    valid_until: datetime | None = None
    repeated_at: tuple[datetime, ...] = msgspec.field(default=(), name=STORED_NAMES["repeated_at"])
    previous_texts: tuple[PreviousText, ...] = msgspec.field(default=(), name=STORED_NAMES["previous_texts"])


class _StoredRecordMetadata(msgspec.Struct, gc=False):
    """JSON form of `RecordMetadata`, whose attribute `text_lengths` is stored as ``lengths``."""

    labels: tuple[str, ...] = ()
    key: str = ""
    value: Any = None
    version: int = 1
    text_lengths: tuple[int, ...] = msgspec.field(default=(), name=STORED_NAMES["text_lengths"])
    history: tuple[PreviousValue, ...] = ()
    created_by: CreatedBy = "user"
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    schema_version: int = 1
    digests: tuple[str, ...] = ()


class _FormerVersions(msgspec.Struct, omit_defaults=True):
    """Former versions of a record, as a stored text contains them."""

    history: tuple[PreviousValue, ...] = ()
    previous_texts: tuple[PreviousText, ...] = ()


class _EntryRecord(msgspec.Struct, Generic[LinksT], forbid_unknown_fields=True, gc=False):
    format: int
    version: int
    memory: MemoryRecord[msgspec.Raw]
    links: LinksT = ()  # type: ignore[assignment]  # optional in JSON


@attrs.frozen
class Entry:
    """A stored memory with its outgoing links and its version."""

    memory: Memory
    links: tuple[Link, ...] = ()
    version: int = 0


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_EntryRecord[tuple[Link, ...]]).decode
_decode_versions: Final = msgspec.json.Decoder(_FormerVersions).decode
_decode_without_links: Final = msgspec.json.Decoder(_EntryRecord[msgspec.Raw]).decode
_METADATA_DECODERS: Final[Mapping[MemoryType, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(_StoredRecordMetadata if form is RecordMetadata else form)
    for kind, form in METADATA_TYPES.items()
}


def encode_entry(entry: Entry) -> bytes:
    """Serialize an entry to JSON."""
    return _encode(
        {
            "format": ENTRY_FORMAT_VERSION,
            "version": entry.version,
            "memory": to_memory_record(entry.memory),
            "links": entry.links,
        }
    )


def decode_entry(data: bytes) -> Entry:
    """Parse an entry from JSON."""
    record = _check_format(_decode(data))
    return Entry(from_memory_record(record.memory), record.links, record.version)


def decode_memory(data: bytes) -> Memory:
    """Parse only the memory of an entry. This takes half the time of `decode_entry`."""
    return from_memory_record(_check_format(_decode_without_links(data)).memory)


def _check_format(record: _EntryRecord[LinksT]) -> _EntryRecord[LinksT]:
    if record.format != ENTRY_FORMAT_VERSION:
        raise ValueError(f"the form {record.format} is not known")
    return record


def to_memory_record(memory: Memory) -> MemoryRecord[dict[str, Any]]:
    """Convert a memory to its JSON struct."""
    fields = {name: getattr(memory, name) for name in MemoryRecord.__struct_fields__}
    fields["metadata"] = _to_stored_metadata(memory.metadata)
    return MemoryRecord(**fields)


def _to_stored_metadata(metadata: Metadata) -> dict[str, Any]:
    """Return metadata by stored key, in the order of the keys, without later fields that have their default value."""
    stored, later = {}, _LATER_FIELDS.get(type(metadata), ())
    for key, name in _METADATA_KEYS[type(metadata)]:
        value = getattr(metadata, name)
        if value or name not in later:
            stored[key] = value
    return stored


def from_memory_record(
    record: MemoryRecord[msgspec.Raw], decode_metadata: Callable[[Any, msgspec.Raw], Any] = msgspec.json.Decoder.decode
) -> Memory:
    """
    Convert a JSON struct to a memory.

    *decode_metadata* is called with the decoder of the memory's type and the undecoded metadata.
    """
    metadata = decode_metadata(_METADATA_DECODERS[record.type], record.metadata)
    if isinstance(metadata, _StoredRecordMetadata):
        fields = {name: getattr(metadata, name) for name in _StoredRecordMetadata.__struct_fields__}
        digests = fields.pop("digests")
        metadata = SplitRecordMetadata(**fields, digests=digests) if digests else RecordMetadata(**fields)
    return Memory(
        id=record.id,
        type=record.type,
        content=record.content,
        topic=record.topic,
        metadata=metadata,
        mentions=record.mentions,
        evidence=record.evidence,
        created_at=record.created_at,
        updated_at=record.updated_at,
        namespace=record.namespace,
        origin=record.origin,
        trust=record.trust,
        valid_until=record.valid_until,
        repeated_at=record.repeated_at,
        previous_texts=record.previous_texts,
    )


def split_history(memory: Memory, before: Memory | None = None) -> tuple[Memory, dict[str, str]]:
    """
    Return a record without its older former versions, and the texts with these versions by hash.

    A text does not change when later versions follow, so that a put does not write the complete history again: texts
    of *before*, the stored memory, are left out. Memories without such versions are returned unchanged.
    """
    own = memory.metadata
    if not isinstance(own, RecordMetadata) or len(own.history) <= VERSIONS_PER_TEXT:
        return memory, {}
    numbers = [one.version // VERSIONS_PER_TEXT for one in own.history]
    times = [one.at for one in own.history]
    text_numbers = [numbers[max(bisect_left(times, one.until) - 1, 0)] for one in memory.previous_texts]
    if numbers != sorted(numbers) or text_numbers != sorted(text_numbers):
        return memory, {}
    parts = {
        number: _FormerVersions(
            own.history[bisect_left(numbers, number) : bisect_right(numbers, number)],
            memory.previous_texts[bisect_left(text_numbers, number) : bisect_right(text_numbers, number)],
        )
        for number in dict.fromkeys(numbers)
    }
    latest = parts.pop(numbers[-1])
    texts = [_encode(one).decode() for one in parts.values()]
    if not texts:
        return memory, {}
    contents = {text_digest(text): text for text in texts}
    fields = {field.name: getattr(own, field.name) for field in attrs.fields(RecordMetadata)}
    metadata = SplitRecordMetadata(**fields | {"history": latest.history}, digests=tuple(contents))
    stored = () if before is None else content_digests(before)
    new = {digest: text for digest, text in contents.items() if digest not in stored}
    return attrs.evolve(memory, metadata=metadata, previous_texts=latest.previous_texts), new


def join_histories(memories: Sequence[Memory], read: Callable[[Sequence[str]], Mapping[str, str]]) -> list[Memory]:
    """
    Return memories with the former versions that `split_history` removed. Unreadable ones are left out.

    *read* returns stored texts by hash, or raises `StoreDamaged`.
    """
    digests = [
        one
        for memory in memories
        if isinstance(memory.metadata, SplitRecordMetadata)
        for one in memory.metadata.digests
    ]
    if not digests:
        return list(memories)
    try:
        texts = dict(read(digests))
    except StoreDamaged:
        texts = {}
        for one in digests:
            with contextlib.suppress(StoreDamaged):
                texts |= read([one])
    return [_join_history(one, texts) for one in memories]


def _join_history(memory: Memory, texts: Mapping[str, str]) -> Memory:
    own = memory.metadata
    if not isinstance(own, SplitRecordMetadata):
        return memory
    history, previous = list[PreviousValue](), list[PreviousText]()
    for digest in own.digests:
        with contextlib.suppress(KeyError, ValueError):
            part = _decode_versions(texts[digest])
            times = [*(one.at for one in part.history), *(one.until for one in part.previous_texts)]
            if all(at.tzinfo is not None for at in times):
                history += part.history
                previous += part.previous_texts
    fields = {field.name: getattr(own, field.name) for field in attrs.fields(RecordMetadata)}
    metadata = RecordMetadata(**fields | {"history": (*history, *own.history)})
    return attrs.evolve(memory, metadata=metadata, previous_texts=(*previous, *memory.previous_texts))


def content_digests(memory: Memory) -> tuple[str, ...]:
    """Return the hashes of the stored texts of a memory: of its evidence and of its former versions."""
    own = memory.metadata
    return (*evidence_digests(memory.evidence), *(own.digests if isinstance(own, SplitRecordMetadata) else ()))


def vectors_to_bytes(vectors: NDArray[np.float32]) -> bytes:
    """Serialize vectors of shape (chunks, dimensions) as little-endian float32 values."""
    return np.ascontiguousarray(vectors, dtype="<f4").tobytes()


def vectors_from_bytes(data: bytes, dimensions: int) -> NDArray[np.float32]:
    """Deserialize vectors of shape (chunks, dimensions). An invalid size raises `ValueError`."""
    if not data or len(data) % (4 * dimensions):
        raise ValueError(f"{len(data)} bytes are no vectors of {dimensions} dimensions")
    return np.frombuffer(data, dtype="<f4").reshape(-1, dimensions)


# Functions and constants for values that all engines derive identically: terms, filter columns and term weights.

TERM_COUNT_STEP: Final = 1 / 10
"""Step to which term counts are quantized."""
BM25_K1: Final = 1.2
"""BM25 k1: controls how quickly repeated occurrences of a term saturate."""
EXTRA_LENGTH_TERMS: Final = 30.0
"""Terms added to every text length. Without them, one word more or less would decide in a store of short texts."""
MAX_LENGTH_TERMS: Final = 200.0
"""Maximum text length in terms that BM25 uses. Without it, a rare word in a long text would count almost nothing."""
MAX_TERM_COUNT_STEPS: Final = 255
"""Maximum term count in units of `TERM_COUNT_STEP`. BM25 hardly increases beyond it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def indexed_terms(memory: Memory) -> dict[str, float]:
    """Return the index terms of a memory with their weighted counts."""
    return weighted_terms(indexed_text(memory))


def mutable_columns(memory: Memory) -> dict[str, int]:
    """Return a memory's values of the mutable columns, by column name. Topic and filter names are not included."""
    return {
        "scripts": detect_scripts(memory.content),
        "asking": question_percentage(memory.content),
        "ends_ms": expiry_milliseconds(memory),
        "origin": ORIGINS.index(memory.origin),
        "trust": ORIGINS.index(memory.trust),
        "wording": duplicate_fingerprint(memory),
    }


def ceil_milliseconds(moment: datetime) -> int:
    """Return a time as milliseconds since 1970, rounded up."""
    return -((_EPOCH - moment) // _MILLISECOND)


def find_invalid_field(memory: Memory, namespace: str) -> str | None:
    """
    Return the reason why a decoded memory is invalid, or None if it is valid.

    Uses comparisons only, because it runs for thousands of memories.
    """
    if memory.namespace != namespace:
        return "the memory is of another namespace"
    if (
        memory.created_at.tzinfo is None
        or memory.updated_at.tzinfo is None
        or (memory.valid_until is not None and memory.valid_until.tzinfo is None)
        or (memory.previous_texts and any(former.until.tzinfo is None for former in memory.previous_texts))
    ):
        return "a time of the memory has no time zone"
    metadata = memory.metadata
    if type(metadata) is DecisionMetadata:
        if not 0 <= metadata.confidence <= 1:
            return "the decision's confidence is not from 0 to 1"
        if (metadata.history and any(change.at.tzinfo is None for change in metadata.history)) or (
            metadata.outcome_at is not None and metadata.outcome_at.tzinfo is None
        ):
            return "a time of the decision has no time zone"
    if isinstance(metadata, RecordMetadata) and any(one.at.tzinfo is None for one in metadata.history):
        return "a time of the record has no time zone"
    return None


def check_vectors(vectors: Vectors, dimensions: int) -> None:
    """Raise `ValueError` unless the vectors have a valid shape and are finite and normalized."""
    if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != dimensions:  # noqa: PLR2004 - rows
        raise ValueError(f"vectors must be of shape (pieces, {dimensions}), got {vectors.shape}")
    if not are_unit_vectors(vectors):
        raise ValueError("vectors must be finite and of length 1")


def are_unit_vectors(vectors: NDArray[np.float32]) -> bool:
    """Return True if all rows have length 1, within a rounding tolerance."""
    squares = np.einsum("ij,ij->i", vectors, vectors)
    if len(squares) == 1:
        # Handle a single row, the usual case, without NumPy calls, because each has a fixed cost.
        return abs(math.sqrt(squares[0]) - 1) <= LENGTH_TOLERANCE
    lengths = np.sqrt(squares)
    # Compare with <=, so that the result is False for NaN.
    return bool((np.abs(lengths - 1) <= LENGTH_TOLERANCE).all())


def mix_queries(nearest: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the normalized sums of *nearest* and a share of *others*, which resemble queries."""
    mixed = nearest + ADDED_SHARE * others
    norms = np.linalg.norm(mixed, axis=1, keepdims=True)
    usable = norms[:, 0] > MIN_QUERY_NORM
    return np.ascontiguousarray(mixed[usable] / norms[usable], np.float32)
