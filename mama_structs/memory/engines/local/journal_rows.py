"""Journal rows of a namespace: key layout, encoding, decoding and validation."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import attrs
import msgspec

from mama_structs.errors import StoreDamaged, StoreError
from mama_structs.memory.types.codec import (
    Entry,
    are_unit_vectors,
    decode_entry,
    decode_memory,
    find_invalid_field,
    vectors_from_bytes,
)
from mama_structs.memory.types.engine import EmbedderRecord, Vectors
from mama_structs.memory.types.model import Memory, MemoryType, text_digest
from mama_structs.storage.sealed_rows import DamagedValue, Snapshot

T = TypeVar("T")

NAMESPACE_FORMAT: Final = 1
SPLIT_HISTORY_FORMAT: Final = 2
"""Format of a namespace with `SplitRecordMetadata`. Earlier versions of this package would lose its history."""
SPLIT_HISTORY_MARK: Final = b'"digests":['
"""Key of `SplitRecordMetadata.digests` in a row. In a text, its quotation marks would be escaped."""
MEMORIES_PREFIX: Final = "memories/"
NUMBER_DIGITS: Final = 16
HEX_DIGITS_DESCENDING: Final = "fedcba9876543210"
# A journal number has 16 hex digits. It stays far below 2**48, so the first four are always zero.
NUMBER_PATTERN: Final = re.compile(r"0{4}[0-9a-f]{12}")


class NamespaceHead(msgspec.Struct, kw_only=True):
    """Metadata of a namespace, from its head row."""

    format: int = NAMESPACE_FORMAT
    identity: str
    # Identity before the first change of the embedder. It identifies the history. Empty if the embedder never changed.
    began_as: str = ""
    embedder: EmbedderRecord
    maintained_at: int = 0

    @property
    def history(self) -> str:
        """Identity of the namespace's history of changes. A change of the embedder does not change it."""
        return self.began_as or self.identity


class ChangeRow(msgspec.Struct, kw_only=True):
    """A change of the journal, except the creation of a memory."""

    salt: str
    changed: list[int] = []
    deleted: list[int] = []
    # True if deleted or replaced data must be removed from disk. Older versions ignore this field.
    erased: bool = False


class CleanupRow(msgspec.Struct, kw_only=True):
    """A deleted memory, and the numbers of the memories that may still contain links to it."""

    id: str
    sources: list[int]


def number_key(prefix: str, number: int) -> str:
    """Return the key with a prefix and a number. The order of keys is the order of numbers."""
    return f"{prefix}{number:0{NUMBER_DIGITS}x}"


def parse_number(prefix: str, key: str) -> int | None:
    """Return the number in a key with this prefix, or None if the key is malformed."""
    digits = key[len(prefix) :]
    return int(digits, 16) if key.startswith(prefix) and NUMBER_PATTERN.fullmatch(digits) else None


def find_numbers(rows: Snapshot, prefix: str) -> list[int]:
    """Return the numbers in all valid keys with this prefix, ascending."""
    found = (parse_number(prefix, key) for key in rows.keys(prefix))
    return [number for number in found if number is not None]


def find_last_number(rows: Snapshot, prefix: str) -> int:
    """Return the highest number in a valid key with this prefix, or 0 if no key is valid."""
    return _find_last_number(rows, prefix, "") or 0


def _find_last_number(rows: Snapshot, prefix: str, digits: str) -> int | None:
    last = rows.last_key(prefix + digits)
    found = None if last is None else parse_number(prefix, last)
    if last is None or found is not None:
        return found
    # The last key is malformed, but valid keys may precede it. Search below each possible next digit, highest first.
    if len(digits) == NUMBER_DIGITS:
        own = parse_number(prefix, prefix + digits)
        return None if own is None or rows.get(prefix + digits) is None else own
    hidden = (_find_last_number(rows, prefix, digits + digit) for digit in HEX_DIGITS_DESCENDING)
    return next((number for number in hidden if number is not None), None)


def require_intact(value: bytes | DamagedValue) -> bytes:
    """Return the value of a row. Raise ValueError if it is damaged."""
    if isinstance(value, DamagedValue):
        raise ValueError(value.reason)  # noqa: TRY004 - the data is invalid, not the type
    return value


def encode_row(value: Any) -> bytes:
    """Return the JSON encoding of a row object."""
    return msgspec.json.encode(value)


_read_head: Final = msgspec.json.Decoder(NamespaceHead).decode
read_cleanup: Final = msgspec.json.Decoder(CleanupRow).decode
read_change: Final = msgspec.json.Decoder(ChangeRow).decode


def read_head(rows: Snapshot, namespace: str, directory: str) -> NamespaceHead | None:
    """Return the head row of a namespace, or None if the namespace does not exist."""
    key = f"{namespace_prefix(namespace)}head"
    stored = rows.get(key)
    if stored is None:
        return None
    try:
        head = _read_head(require_intact(stored))
    except ValueError as error:
        raise StoreDamaged(
            f"the memories of {namespace!r:.80} cannot be read",
            file=directory,
            findings=(f"{key}: {error}",),
            hint="restore a backup",
        ) from error
    if head.format > SPLIT_HISTORY_FORMAT:
        raise StoreError(
            f"the memories of {namespace!r:.80} were written by a later version", hint="upgrade mama-structs"
        )
    return head


def namespace_prefix(namespace: str) -> str:
    """Return the key prefix of all rows of a namespace's memories."""
    return f"{MEMORIES_PREFIX}{quote(namespace, safe='')}/"


class _CountedMemory(msgspec.Struct):
    type: MemoryType


class _CountedEntry(msgspec.Struct):
    """The parts of an entry that are counted."""

    memory: _CountedMemory
    links: tuple[msgspec.Raw, ...] = ()


_read_counted: Final = msgspec.json.Decoder(_CountedEntry).decode


@attrs.define
class NamespaceCounter:
    """Counts the memories and links in the rows of a namespace."""

    types: Counter[MemoryType] = attrs.field(factory=Counter)
    links: int = 0
    unreadable: int = 0

    def add(self, value: bytes | DamagedValue) -> None:
        """Count the memory in a row."""
        try:
            entry = _read_counted(require_intact(value))
        except (ValueError, RecursionError):
            self.unreadable += 1
        else:
            self.types[entry.memory.type] += 1
            self.links += len(entry.links)


def list_namespaces(rows: Snapshot) -> list[str]:
    """Return the names of all namespaces. Each namespace takes one lookup."""
    found: list[str] = []
    after = ""
    while row := rows.items(MEMORIES_PREFIX, after=after, limit=1):
        part = row[0][0].split("/")[1]
        found.append(unquote(part))
        # Continue after all keys of this namespace: the next character after "/" sorts after them.
        after = f"{MEMORIES_PREFIX}{part}{chr(ord('/') + 1)}"
    return found


class RowKeys:
    """
    Key prefixes of a namespace's rows, and decoders of these rows.

    Each prefix is followed by a number, the hash of a text or the name of a note.
    Memories and changes share one sequence of numbers: the number of a new memory is that of its change.
    Decoders raise `StoreDamaged` if a row is missing or invalid.
    """

    def __init__(self, namespace: str, embedder: EmbedderRecord, directory: str) -> None:
        self.namespace = namespace
        self.embedder: EmbedderRecord = embedder
        self.directory: str = directory
        prefix = namespace_prefix(namespace)
        self.head: str = f"{prefix}head"
        self.memories: str = f"{prefix}m/"
        self.changes: str = f"{prefix}c/"
        self.all_vectors: str = f"{prefix}v/"
        self.vectors: str = self.vectors_prefix(embedder)
        self.contents: str = f"{prefix}e/"
        self.all_uses: str = f"{prefix}u/"
        self.notes: str = f"{prefix}n/"
        self.all_cleanups: str = f"{prefix}d/"

    def cleanup_prefix(self, number: int) -> str:
        """
        Return the key prefix of the clean-up rows of a deleted memory.

        In a key, the prefix is followed by the number of the row.
        """
        return f"{number_key(self.all_cleanups, number)}/"

    def read_cleanups(self, rows: Snapshot) -> Iterator[tuple[str, CleanupRow]]:
        """Yield the key and the content of each clean-up row. Unreadable rows are skipped."""
        for key, value in rows.items(self.all_cleanups):
            with contextlib.suppress(ValueError, RecursionError):
                yield key, read_cleanup(require_intact(value))

    def uses_prefix(self, digest: str) -> str:
        """
        Return the key prefix of the uses of an evidence text.

        In a key, the prefix is followed by the number of the memory that uses the text.
        """
        return f"{self.all_uses}{digest}/"

    def vectors_prefix(self, embedder: EmbedderRecord) -> str:
        """Return the key prefix of the vectors of one embedder."""
        text = f"{embedder.name}\0{embedder.fingerprint}\0{embedder.dimensions}"
        return f"{self.all_vectors}{blake2b(text.encode(), digest_size=8).hexdigest()}/"

    def entry(self, key: str, value: bytes | DamagedValue | None) -> Entry:
        """Decode and validate the entry (memory and links) in a row."""
        entry = self._read(key, value, decode_entry)
        self._check(key, entry.memory)
        for link in entry.links:
            if link.from_id != entry.memory.id or link.to_id == link.from_id:
                raise self.damaged(key, f"the link {link.id!r:.100} begins at another memory, or leads to its own")
            if not 0 <= link.confidence <= 1 or link.created_at.tzinfo is None:
                raise self.damaged(key, f"the link {link.id!r:.100} has a confidence or time that none can have")
        return entry

    def memory(self, key: str, value: bytes | DamagedValue | None) -> Memory:
        """Decode and validate the memory in a row, without its links."""
        memory = self._read(key, value, decode_memory)
        self._check(key, memory)
        return memory

    def _check(self, key: str, memory: Memory) -> None:
        # The checksum detects corruption, not tampering, so the content is validated too.
        reason = find_invalid_field(memory, self.namespace)
        if reason is not None:
            raise self.damaged(key, reason)

    def _read(self, key: str, value: bytes | DamagedValue | None, read: Callable[[bytes], T]) -> T:
        row = self._row(key, value, self.damaged)
        try:
            return read(row)
        except (ValueError, RecursionError) as error:
            raise self.damaged(key, "it does not have the form of a memory") from error

    def read_vectors(self, key: str, value: bytes | DamagedValue | None) -> Vectors:
        """Decode and validate the vectors in a row."""
        row = self._row(key, value, self.damaged, missing="the vectors are missing")
        try:
            vectors = vectors_from_bytes(row, self.embedder.dimensions)
        except ValueError as error:
            raise self.damaged(key, str(error)) from error
        if not are_unit_vectors(vectors):
            raise self.damaged(key, "its vectors are not of length 1")
        return vectors

    def content(self, key: str, value: bytes | DamagedValue | None) -> str:
        """Decode an evidence text and verify its hash."""
        row = self._row(key, value, self.lost)
        try:
            text = row.decode()
        except UnicodeDecodeError as error:
            raise self.lost(key, "it is not UTF-8") from error
        if text_digest(text) != key.removeprefix(self.contents):
            raise self.lost(key, "its text has another hash")
        return text

    def note(self, key: str, value: bytes | DamagedValue) -> str:
        """Decode the note in a row."""
        try:
            return require_intact(value).decode()
        except ValueError as error:
            raise self._error("a note about the memories", key, str(error), "restore a backup") from error

    def damaged(self, key: str, reason: str) -> StoreDamaged:
        """Return the error for a damaged memory row."""
        return self._error("a memory", key, reason, "admin.rebuild() skips the damaged rows, or restore a backup")

    def lost(self, key: str, reason: str) -> StoreDamaged:
        """Return the error for a damaged evidence row."""
        return self._error("kept evidence", key, reason, "restore a backup, or save the memory again with its evidence")

    def _row(
        self,
        key: str,
        value: bytes | DamagedValue | None,
        error: Callable[[str, str], StoreDamaged],
        *,
        missing: str = "the row is missing",
    ) -> bytes:
        if value is None:
            raise error(key, missing)
        if isinstance(value, DamagedValue):
            raise error(key, value.reason)
        return value

    def _error(self, what: str, key: str, reason: str, remedy: str) -> StoreDamaged:
        return StoreDamaged(
            f"{what} cannot be read: the row {key}: {reason}",
            file=self.directory,
            findings=(f"{key}: {reason}",),
            hint=f"admin.check() lists all damage; {remedy}",
        )
