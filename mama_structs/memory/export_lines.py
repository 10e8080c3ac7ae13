"""
The lines of an export: a header, a memory or kept text each, and an end.

An export is UTF-8 text with one JSON object a line.
The header says whose memories they are and which embedder made their vectors.
A memory's line is what the journal keeps of it (see `mama_structs.memory.codec`), and its vectors: base64 of
little-endian float32, one piece after the other.
A text that is kept as evidence has a line of its own with its hash, once, before the memories that name it.
The end says how many memories and texts there are, so that a file of which the end is missing is noticed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.contents import LARGEST, digest_of
from mama_structs.memory.engine import EmbedderRecord
from mama_structs.memory.model import METADATA, DecisionMetadata, Link, LinkMetadata, Memory, MemoryType
from mama_structs.memory.requests import check_id
from mama_structs.memory.unit_vectors import are_unit, unit_vectors

T = TypeVar("T")

FORMAT: Final = "mama-structs memories"
VERSION: Final = 2
"""Since 2 there may be kept texts; that is all in which 1 differs."""

LONGEST_LINE: Final = 2**28
"""Bytes of a line at the most: above any kept text, and a memory of the largest content with thousands of links."""

_VERSIONS: Final = range(1, VERSION + 1)
_MAX_DIMENSIONS: Final = 65_536
_MAX_DEPTH: Final = 100
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)


class Header(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first line; of two exports of one state it is the same, so nothing in it says when they were made."""

    format: str
    version: int
    namespace: str
    embedder: EmbedderRecord
    # Version 1 had it.
    exported_at: datetime | None = None


class End(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The last line."""

    end: bool
    memories: int
    contents: int = 0


class _Content(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    content: str
    text: str


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    memory: _Memory
    links: list[msgspec.Raw]
    vectors: str


class _Memory(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    type: MemoryType
    content: str
    topic: str | None = None
    metadata: msgspec.Raw
    mentions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    created_at: datetime
    updated_at: datetime
    namespace: str


@attrs.frozen(eq=False)
class Record:
    """
    A memory's line.

    Args:
        memory: The memory, in the namespace that it was exported from.
        links: Those that begin at it.
        vectors: Of shape (pieces, dimensions), normalised.

    """

    memory: Memory
    links: tuple[Link, ...]
    vectors: NDArray[np.float32]


@attrs.frozen
class KeptText:
    """
    The line of a text that is kept as evidence.

    Args:
        digest: Its hash.
        text: The text.

    """

    digest: str
    text: str = attrs.field(repr=False)


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind)


_encode: Final = msgspec.json.Encoder().encode
_header: Final = _decoder(Header)
_end: Final = _decoder(End)
_line: Final = _decoder(_Line)
_content: Final = _decoder(_Content)
_link: Final = _decoder(Link)
_keys: Final = _decoder(dict[str, msgspec.Raw])
_fields: Final = {
    form: frozenset(field.name for field in attrs.fields(form)) for form in (Link, LinkMetadata, *METADATA.values())
}
_metadata: Final[Mapping[MemoryType, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(form) for kind, form in METADATA.items()
}


def write_header(namespace: str, embedder: EmbedderRecord) -> bytes:
    """Return the first line."""
    header = Header(format=FORMAT, version=VERSION, namespace=namespace, embedder=embedder)
    return _encode(header) + b"\n"


def write_memory(memory: Memory, links: Iterable[Link], vectors: bytes) -> bytes:
    """
    Return a memory's line, the same whenever the memory is the same.

    Args:
        memory: The memory.
        links: Those that begin at it, in any order.
        vectors: Little-endian float32, one piece after the other.

    """
    ordered = sorted(links, key=lambda link: (link.created_at, link.id))
    return _encode({"memory": memory, "links": ordered, "vectors": base64.b64encode(vectors).decode()}) + b"\n"


def write_content(digest: str, text: str) -> bytes:
    """Return the line of a text that is kept as evidence."""
    return _encode(_Content(content=digest, text=text)) + b"\n"


def write_end(memories: int, contents: int = 0) -> bytes:
    """Return the last line."""
    return _encode(End(end=True, memories=memories, contents=contents)) + b"\n"


def is_end(line: bytes) -> bool:
    """Tell whether a line says that it is the last one."""
    return line.startswith(b'{"end":')


def is_content(line: bytes) -> bool:
    """Tell whether a line is a kept text's."""
    return line.startswith(b'{"content":')


def read_header(line: bytes) -> Header:
    """
    Return what the first line says.

    Raises:
        ValueError: It is not the first line of an export; the message says in which way, without content.

    """
    try:
        known = _read(_keys, line)
    except ValueError:
        known = {}
    if bytes(known.get("format", b"")) != _encode(FORMAT):
        raise ValueError("it is not the first line of an export of memories")
    if bytes(known.get("version", b"")) not in {_encode(version) for version in _VERSIONS}:
        raise ValueError("it was written by a version that this one does not know: upgrade mama-structs")
    header = _read(_header, line)
    if not 0 < header.embedder.dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"`$.embedder.dimensions` must be 1 to {_MAX_DIMENSIONS}, got {header.embedder.dimensions}")
    return header


def read_end(line: bytes) -> End:
    """
    Return how many memories and kept texts the last line says that there are.

    Raises:
        ValueError: It is not the last line of an export.

    """
    said = _read(_end, line)
    if not said.end or said.memories < 0 or said.contents < 0:
        raise ValueError("it is not the last line of an export")
    return said


def read_content(line: bytes) -> KeptText:
    """
    Return the kept text that a line has.

    Raises:
        ValueError: The line breaks a rule, or the text has another hash.

    """
    raw = _read(_content, line)
    if len(raw.text.encode()) > LARGEST:
        raise ValueError(f"`$.text` must have at most {LARGEST} bytes")
    if digest_of(raw.text) != raw.content:
        raise ValueError("`$.text` does not have the hash that `$.content` says")
    return KeptText(raw.content, raw.text)


def read_memory(line: bytes, header: Header) -> Record:
    """
    Return what a memory's line says.

    Args:
        line: The line.
        header: The export's first line.

    Raises:
        ValueError: The line breaks a rule; the message says which, without content.

    """
    raw = _read(_line, line)
    memory = _memory(raw.memory)
    if memory.namespace != header.namespace:
        raise ValueError("`$.memory.namespace` must be that of the first line")
    links = tuple(_checked_link(data, position, memory.id) for position, data in enumerate(raw.links))
    if len({link.id for link in links}) != len(links):
        raise ValueError("`$.links` has two links of one id")
    record = Record(memory, links, _vectors(raw.vectors, header.embedder.dimensions))
    try:
        write_memory(memory, links, b"")
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError("it has a value that cannot be written again") from error
    return record


def _memory(raw: _Memory) -> Memory:
    form = METADATA[raw.type]
    _check_known(raw.metadata, form, "$.memory.metadata")
    metadata = _read(_metadata[raw.type], raw.metadata, "$.memory.metadata")
    _check_depth(metadata.extra, "$.memory.metadata.extra")
    if isinstance(metadata, DecisionMetadata):
        metadata = _decision(metadata)
    _check_id(raw.id, "$.memory.id")
    return Memory(
        id=raw.id,
        type=raw.type,
        content=raw.content,
        topic=raw.topic,
        metadata=metadata,
        mentions=raw.mentions,
        evidence=raw.evidence,
        created_at=_time(raw.created_at, "$.memory.created_at"),
        updated_at=_time(raw.updated_at, "$.memory.updated_at"),
        namespace=raw.namespace,
    )


def _decision(metadata: DecisionMetadata) -> DecisionMetadata:
    path = "$.memory.metadata"
    _check_share(metadata.confidence, f"{path}.confidence")
    decided = metadata.outcome_at
    return attrs.evolve(
        metadata,
        outcome_at=None if decided is None else _time(decided, f"{path}.outcome_at"),
        history=tuple(
            attrs.evolve(change, at=_time(change.at, f"{path}.history[{position}].at"))
            for position, change in enumerate(metadata.history)
        ),
    )


def _checked_link(data: msgspec.Raw, position: int, memory_id: str) -> Link:
    path = f"$.links[{position}]"
    known = _check_known(data, Link, path)
    if "metadata" in known:
        _check_known(known["metadata"], LinkMetadata, f"{path}.metadata")
    link = _read(_link, data, path)
    _check_depth(link.metadata.extra, f"{path}.metadata.extra")
    _check_id(link.id, f"{path}.id")
    _check_id(link.to_id, f"{path}.to_id")
    _check_share(link.confidence, f"{path}.confidence")
    if link.from_id != memory_id:
        raise ValueError(f"`{path}.from_id` must be the id of the line's memory")
    if link.to_id == memory_id:
        raise ValueError(f"`{path}.to_id` must be another memory's id")
    created = _time(link.created_at, f"{path}.created_at")
    return link if created is link.created_at else attrs.evolve(link, created_at=created)


def _vectors(text: str, dimensions: int) -> NDArray[np.float32]:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("`$.vectors` is no base64") from error
    if not data or len(data) % (4 * dimensions):
        raise ValueError(f"`$.vectors` must hold vectors of {dimensions} dimensions, got {len(data)} bytes")
    found = np.frombuffer(data, dtype="<f4").reshape(-1, dimensions).astype(np.float32)
    if are_unit(found):
        return found
    if not np.isfinite(found).all():
        raise ValueError("`$.vectors` has a number that is not finite")
    vectors, usable = unit_vectors(found)
    if not usable.all():
        raise ValueError("`$.vectors` has a vector of length 0")
    return vectors


def _read(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw, path: str = "$") -> T:
    """Decode; the error's message names a place and a rule, and no content."""
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except msgspec.ValidationError as error:
        said = str(error)
        if said.startswith(("Invalid enum value", "Object contains unknown field")):
            # These repeat what stands there.
            rule, _, place = said.rpartition(" - at ")
            said = f"{rule.split(' `')[0].split(' ' + chr(39))[0]} - at {place}" if place else rule.split(" `")[0]
        raise ValueError(said.replace("`$", f"`{path}")) from error
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no JSON object: {error}") from error


def _check_known(data: msgspec.Raw, form: type, path: str) -> dict[str, msgspec.Raw]:
    """Refuse what the form has no place for: it would be lost."""
    found = _read(_keys, data, path)
    if not found.keys() <= _fields[form]:
        raise ValueError(f"`{path}` has an unknown field")
    return found


def _check_depth(value: Any, path: str) -> None:
    if not value:
        return
    level: Sequence[Any] = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for one in level
            if isinstance(one, Mapping | list)
            for item in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not level:
            return
    raise ValueError(f"`{path}` is nested more than {_MAX_DEPTH} deep")


def _check_id(value: str, path: str) -> None:
    # What no call would find again is refused.
    try:
        is_id = check_id("id", value) == value
    except ValueError as error:
        raise ValueError(f"`{path}` is no id") from error
    if not is_id:
        raise ValueError(f"`{path}` is not in Unicode's form NFC")


def _check_share(value: float, path: str) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"`{path}` must be a number from 0 to 1")


def _time(moment: datetime, path: str) -> datetime:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(f"`{path}` has no time zone")
    if not _FIRST <= moment < _LAST:
        raise ValueError(f"`{path}` must lie between 1970 and 9000")
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)
