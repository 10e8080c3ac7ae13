"""The rows of a namespace in the journal: their keys, what they hold, and what is wrong with them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import msgspec

from mama_structs.errors import StoreDamaged, StoreError
from mama_structs.memory.embedding.protocol import are_unit
from mama_structs.memory.types.codec import Entry, read_entry, read_memory, vectors_from_bytes, wrong_with
from mama_structs.memory.types.engine import EmbedderRecord, Vectors
from mama_structs.memory.types.model import Memory, digest_of
from mama_structs.storage.sealed_rows import Damaged, Snapshot

T = TypeVar("T")

FORMAT: Final = 1
_ALL: Final = "memories/"
_DIGITS: Final = 16
_HEXADECIMAL: Final = "fedcba9876543210"
# The first digits are zeros for as long as anyone writes.
_NUMBER: Final = re.compile(r"0{4}[0-9a-f]{12}")


class Head(msgspec.Struct, kw_only=True):
    """What holds for a whole namespace."""

    format: int = FORMAT
    identity: str
    # What it was before the embedder was changed for the first time: the changes are those of one history.
    began_as: str = ""
    embedder: EmbedderRecord
    maintained_at: int = 0

    @property
    def history(self) -> str:
        """The name of the history that its changes are of."""
        return self.began_as or self.identity


class ChangeRow(msgspec.Struct, kw_only=True):
    """One change that is more than a new memory."""

    salt: str
    changed: list[int] = []
    deleted: list[int] = []
    # Whether what it deleted or replaced is to leave no trace: a version that does not know this keeps traces.
    erased: bool = False


class DeadRow(msgspec.Struct, kw_only=True):
    """A memory that was deleted, and the numbers of some memories whose rows may still have links to it."""

    id: str
    sources: list[int]


def numbered(prefix: str, number: int) -> str:
    """Return the key of a row with a number; keys sort as numbers do."""
    return f"{prefix}{number:0{_DIGITS}x}"


def own_number(prefix: str, key: str) -> int | None:
    """Return the number in a key of ours that begins with *prefix*, None where nobody of ours made the key."""
    digits = key[len(prefix) :]
    return int(digits, 16) if key.startswith(prefix) and _NUMBER.fullmatch(digits) else None


def own_numbers(rows: Snapshot, prefix: str) -> list[int]:
    """Return the numbers in our keys that begin with *prefix*, in their order."""
    found = (own_number(prefix, key) for key in rows.keys(prefix))
    return [number for number in found if number is not None]


def last_number(rows: Snapshot, prefix: str) -> int:
    """Return the highest number in a key of ours that begins with *prefix*, 0 where there is none."""
    return _last_number(rows, prefix, "") or 0


def _last_number(rows: Snapshot, prefix: str, digits: str) -> int | None:
    last = rows.last(prefix + digits)
    found = None if last is None else own_number(prefix, last)
    if last is None or found is not None:
        return found
    # The last key is none of ours: it hides what comes before it.
    if len(digits) == _DIGITS:
        own = own_number(prefix, prefix + digits)
        return None if own is None or rows.get(prefix + digits) is None else own
    hidden = (_last_number(rows, prefix, digits + digit) for digit in _HEXADECIMAL)
    return next((number for number in hidden if number is not None), None)


def whole(value: bytes | Damaged) -> bytes:
    """Return a row's value."""
    if isinstance(value, Damaged):
        raise ValueError(value.reason)  # noqa: TRY004 - it is the data that is wrong
    return value


def encode(value: Any) -> bytes:
    """Return a head, a change or what is to be cleaned up as its row holds it."""
    return msgspec.json.encode(value)


_read_head: Final = msgspec.json.Decoder(Head).decode
read_dead: Final = msgspec.json.Decoder(DeadRow).decode
read_change: Final = msgspec.json.Decoder(ChangeRow).decode


def read_head(rows: Snapshot, namespace: str, directory: str) -> Head | None:
    """Return a namespace's first row, None where there is nothing yet."""
    key = f"{_prefix(namespace)}head"
    stored = rows.get(key)
    if stored is None:
        return None
    try:
        head = _read_head(whole(stored))
    except ValueError as error:
        raise StoreDamaged(
            f"the memories of {namespace!r:.80} cannot be read",
            file=directory,
            findings=(f"{key}: {error}",),
            hint="restore a backup",
        ) from error
    if head.format > FORMAT:
        raise StoreError(
            f"the memories of {namespace!r:.80} were written by a later version", hint="upgrade mama-structs"
        )
    return head


def _prefix(namespace: str) -> str:
    return f"{_ALL}{quote(namespace, safe='')}/"


def namespaces_in(rows: Snapshot) -> list[str]:
    """Return whose memories there are, with one look for each."""
    found: list[str] = []
    after = ""
    while row := rows.items(_ALL, after=after, limit=1):
        part = row[0][0].split("/")[1]
        found.append(unquote(part))
        # What comes right behind all that begins with the part and a slash.
        after = f"{_ALL}{part}{chr(ord('/') + 1)}"
    return found


class RowPlaces:
    """
    How the keys of a namespace's rows begin, and what is in the rows; what was not written so raises `StoreDamaged`.

    What follows in a key is a number, a text's hash or a note's name.
    Memories and changes share one sequence of numbers: a new memory's number is that of the change that made it.
    """

    def __init__(self, namespace: str, embedder: EmbedderRecord, directory: str) -> None:
        self.namespace = namespace
        self.embedder: EmbedderRecord = embedder
        self.directory: str = directory
        prefix = _prefix(namespace)
        self.head: str = f"{prefix}head"
        self.memories: str = f"{prefix}m/"
        self.changes: str = f"{prefix}c/"
        self.all_vectors: str = f"{prefix}v/"
        self.vectors: str = self.vectors_of(embedder)
        self.contents: str = f"{prefix}e/"
        self.all_uses: str = f"{prefix}u/"
        self.notes: str = f"{prefix}n/"
        self.all_dead: str = f"{prefix}d/"

    def dead(self, number: int) -> str:
        """Return how the keys begin of what is still to be cleaned up after a deleted memory; a number follows."""
        return f"{numbered(self.all_dead, number)}/"

    def dead_rows(self, rows: Snapshot) -> Iterator[tuple[str, DeadRow]]:
        """Give what is still to be cleaned up after deleted memories, as far as it can be read."""
        for key, value in rows.items(self.all_dead):
            with contextlib.suppress(ValueError, RecursionError):
                yield key, read_dead(whole(value))

    def uses(self, digest: str) -> str:
        """Return how the keys begin that say which memories name one text; a memory's number follows."""
        return f"{self.all_uses}{digest}/"

    def vectors_of(self, embedder: EmbedderRecord) -> str:
        """Return how the keys of vectors begin that an embedder made."""
        text = f"{embedder.name}\0{embedder.fingerprint}\0{embedder.dimensions}"
        return f"{self.all_vectors}{blake2b(text.encode(), digest_size=8).hexdigest()}/"

    def entry(self, key: str, value: bytes | Damaged | None) -> Entry:
        """Return the entry in a row."""
        entry = self._read(key, value, read_entry)
        self._check(key, entry.memory)
        for link in entry.links:
            if link.from_id != entry.memory.id or link.to_id == link.from_id:
                raise self.damaged(key, f"the link {link.id!r:.100} begins at another memory, or leads to its own")
            if not 0 <= link.confidence <= 1 or link.created_at.tzinfo is None:
                raise self.damaged(key, f"the link {link.id!r:.100} has a confidence or time that none can have")
        return entry

    def memory(self, key: str, value: bytes | Damaged | None) -> Memory:
        """Return the memory in a row, without reading its links."""
        memory = self._read(key, value, read_memory)
        self._check(key, memory)
        return memory

    def _check(self, key: str, memory: Memory) -> None:
        # A good seal says that a row is whole, not who wrote it.
        reason = wrong_with(memory, self.namespace)
        if reason is not None:
            raise self.damaged(key, reason)

    def _read(self, key: str, value: bytes | Damaged | None, read: Callable[[bytes], T]) -> T:
        row = self._row(key, value, self.damaged)
        try:
            return read(row)
        except (ValueError, RecursionError) as error:
            raise self.damaged(key, "it does not have the form of a memory") from error

    def read_vectors(self, key: str, value: bytes | Damaged | None) -> Vectors:
        """Return the vectors in a row."""
        row = self._row(key, value, self.damaged, missing="the vectors are missing")
        try:
            vectors = vectors_from_bytes(row, self.embedder.dimensions)
        except ValueError as error:
            raise self.damaged(key, str(error)) from error
        if not are_unit(vectors):
            raise self.damaged(key, "its vectors are not of length 1")
        return vectors

    def content(self, key: str, value: bytes | Damaged | None) -> str:
        """Return the kept text in a row."""
        row = self._row(key, value, self.lost)
        try:
            text = row.decode()
        except UnicodeDecodeError as error:
            raise self.lost(key, "it is not UTF-8") from error
        if digest_of(text) != key.removeprefix(self.contents):
            raise self.lost(key, "its text has another hash")
        return text

    def note(self, key: str, value: bytes | Damaged) -> str:
        """Return the note in a row."""
        try:
            return whole(value).decode()
        except ValueError as error:
            raise self._error("a note about the memories", key, str(error), "restore a backup") from error

    def damaged(self, key: str, reason: str) -> StoreDamaged:
        """Return the error for a row that is not what was written."""
        return self._error("a memory", key, reason, "rebuild() goes on without the damaged rows, or restore a backup")

    def lost(self, key: str, reason: str) -> StoreDamaged:
        """Return the error for a kept text that is not what was kept."""
        return self._error("kept evidence", key, reason, "restore a backup, or save the memory again with its evidence")

    def _row(
        self,
        key: str,
        value: bytes | Damaged | None,
        error: Callable[[str, str], StoreDamaged],
        *,
        missing: str = "the row is missing",
    ) -> bytes:
        if value is None:
            raise error(key, missing)
        if isinstance(value, Damaged):
            raise error(key, value.reason)
        return value

    def _error(self, what: str, key: str, reason: str, remedy: str) -> StoreDamaged:
        return StoreDamaged(
            f"{what} cannot be read: the row {key}: {reason}",
            file=self.directory,
            findings=(f"{key}: {reason}",),
            hint=f"check() lists all damage; {remedy}",
        )
