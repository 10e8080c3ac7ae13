"""How a memory and the links that begin at it are written as one JSON object, in the journal and in exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import attrs
import msgspec
import numpy as np

from mama_structs.memory.engine import Vectors
from mama_structs.memory.model import METADATA, Link, Memory, MemoryType

FORMAT: Final = 1


# Without a part in garbage collection, which else takes longer than the decoding: they are gone in a moment.
class MemoryRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A memory in JSON, its metadata not looked at."""

    id: str
    type: MemoryType
    content: str
    metadata: msgspec.Raw
    created_at: datetime
    updated_at: datetime
    namespace: str
    topic: str | None = None
    mentions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


class _EntryRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    format: int
    version: int
    memory: MemoryRecord
    links: tuple[Link, ...] = ()


class _EntryWithoutLinks(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    format: int
    version: int
    memory: MemoryRecord
    links: msgspec.Raw = msgspec.Raw(b"[]")


@attrs.frozen
class Entry:
    """A memory as it is kept."""

    memory: Memory
    links: tuple[Link, ...] = ()
    version: int = 0


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_EntryRecord).decode
_decode_without_links: Final = msgspec.json.Decoder(_EntryWithoutLinks).decode
_metadata: Final[Mapping[MemoryType, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(form) for kind, form in METADATA.items()
}


def write_entry(entry: Entry) -> bytes:
    """Return an entry's JSON."""
    return _encode({"format": FORMAT, "version": entry.version, "memory": entry.memory, "links": entry.links})


def read_entry(data: bytes) -> Entry:
    """Return the entry that some JSON says."""
    record = _decode(data)
    _check_format(record.format)
    return Entry(memory_of(record.memory), record.links, record.version)


def read_memory(data: bytes) -> Memory:
    """Return the memory of an entry, in half the time of all of it."""
    record = _decode_without_links(data)
    _check_format(record.format)
    return memory_of(record.memory)


def vectors_to_bytes(vectors: Vectors) -> bytes:
    """Return vectors of shape (pieces, dimensions) as they are kept: little-endian, one after the other."""
    return np.ascontiguousarray(vectors, dtype="<f4").tobytes()


def vectors_from_bytes(data: bytes, dimensions: int) -> Vectors:
    """Return the vectors that some bytes hold, of shape (pieces, dimensions); anything else raises `ValueError`."""
    if not data or len(data) % (4 * dimensions):
        raise ValueError(f"{len(data)} bytes are no vectors of {dimensions} dimensions")
    return np.frombuffer(data, dtype="<f4").reshape(-1, dimensions)


def _check_format(form: int) -> None:
    if form != FORMAT:
        raise ValueError(f"the form {form} is not known")


def _decoded(decoder: msgspec.json.Decoder[Any], data: msgspec.Raw) -> Any:
    return decoder.decode(data)


def memory_of(
    record: MemoryRecord, decoded: Callable[[msgspec.json.Decoder[Any], msgspec.Raw], Any] = _decoded
) -> Memory:
    """Return the memory that a record holds."""
    return Memory(
        id=record.id,
        type=record.type,
        content=record.content,
        topic=record.topic,
        metadata=decoded(_metadata[record.type], record.metadata),
        mentions=record.mentions,
        evidence=record.evidence,
        created_at=record.created_at,
        updated_at=record.updated_at,
        namespace=record.namespace,
    )
