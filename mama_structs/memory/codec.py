"""How a memory and the links that begin at it are written as one JSON object, in the journal and in exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.model import METADATA, FormerText, Link, Memory, MemoryType, Metadata, Origin

LinksT = TypeVar("LinksT")
MetadataT = TypeVar("MetadataT")

FORMAT: Final = 1


# Without a part in garbage collection, which else takes longer than the decoding: they are gone in a moment.
class MemoryRecord(msgspec.Struct, Generic[MetadataT], forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A memory in JSON, its metadata not looked at; what is not said is left out, and so read by earlier versions."""

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
    repeats: tuple[datetime, ...] = ()
    former: tuple[FormerText, ...] = ()


class _EntryRecord(msgspec.Struct, Generic[LinksT], forbid_unknown_fields=True, gc=False):
    format: int
    version: int
    memory: MemoryRecord[msgspec.Raw]
    links: LinksT = ()  # type: ignore[assignment]  # what may be left out


@attrs.frozen
class Entry:
    """A memory as it is kept."""

    memory: Memory
    links: tuple[Link, ...] = ()
    version: int = 0


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_EntryRecord[tuple[Link, ...]]).decode
_decode_without_links: Final = msgspec.json.Decoder(_EntryRecord[msgspec.Raw]).decode
_METADATA_DECODERS: Final[Mapping[MemoryType, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(form) for kind, form in METADATA.items()
}


def write_entry(entry: Entry) -> bytes:
    """Return an entry's JSON."""
    return _encode(
        {"format": FORMAT, "version": entry.version, "memory": record_of(entry.memory), "links": entry.links}
    )


def read_entry(data: bytes) -> Entry:
    """Return the entry that some JSON says."""
    record = _known(_decode(data))
    return Entry(memory_of(record.memory), record.links, record.version)


def read_memory(data: bytes) -> Memory:
    """Return the memory of an entry, in half the time of all of it."""
    return memory_of(_known(_decode_without_links(data)).memory)


def _known(record: _EntryRecord[LinksT]) -> _EntryRecord[LinksT]:
    if record.format != FORMAT:
        raise ValueError(f"the form {record.format} is not known")
    return record


def record_of(memory: Memory) -> MemoryRecord[Metadata]:
    """Return a memory as it is written."""
    return MemoryRecord(**{name: getattr(memory, name) for name in MemoryRecord.__struct_fields__})


def memory_of(
    record: MemoryRecord[msgspec.Raw], read: Callable[[Any, msgspec.Raw], Any] = msgspec.json.Decoder.decode
) -> Memory:
    """Return the memory that a record holds; *read* is told how its metadata is to be decoded."""
    return Memory(
        id=record.id,
        type=record.type,
        content=record.content,
        topic=record.topic,
        metadata=read(_METADATA_DECODERS[record.type], record.metadata),
        mentions=record.mentions,
        evidence=record.evidence,
        created_at=record.created_at,
        updated_at=record.updated_at,
        namespace=record.namespace,
        origin=record.origin,
        trust=record.trust,
        valid_until=record.valid_until,
        repeats=record.repeats,
        former=record.former,
    )


def vectors_to_bytes(vectors: NDArray[np.float32]) -> bytes:
    """Return vectors of shape (pieces, dimensions) as they are kept: little-endian, one after the other."""
    return np.ascontiguousarray(vectors, dtype="<f4").tobytes()


def vectors_from_bytes(data: bytes, dimensions: int) -> NDArray[np.float32]:
    """Return the vectors that some bytes hold, of shape (pieces, dimensions); anything else raises `ValueError`."""
    if not data or len(data) % (4 * dimensions):
        raise ValueError(f"{len(data)} bytes are no vectors of {dimensions} dimensions")
    return np.frombuffer(data, dtype="<f4").reshape(-1, dimensions)
