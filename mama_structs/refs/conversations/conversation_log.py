"""
Stored rows of a conversation: one JSON row per change, and one row per distinct text.

Rows, all in the session's store:

* ``conversations/<part>``: the start row (`StartRecord`); for the part see `ConversationKey`;
* ``refs/<part>/<number>/<handle>``: a change, tagged by ``op`` and numbered from 1. A fork inherits the changes of its
  parent, up to the number at which it was made;
* ``texts/<hash>``: a text in UTF-8, or binary content. Conversations share texts: in a directory all conversations, on
  a server those in the same namespace;
* ``told/<part>/<hash>``: the recall log, see `recall_log`;
* ``deleted``: exists while texts may be unreferenced; one row per directory, or one per namespace on a server.

The key contains the handle, so that the subject of a damaged row is still known. Keys are ASCII: ids with other
characters are encoded in Punycode (``ref:xn--…@1``), so that versions that support only ASCII ids can read the keys.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final, Literal, Self, TypeVar, Union, cast, get_type_hints
from urllib.parse import quote

import attrs
import msgspec

from mama_structs._internal import validation as _check
from mama_structs._internal.offload import Load, run_inline_or_in_thread
from mama_structs.errors import InvalidArgument, StoreDamaged, shown
from mama_structs.provenance import UNKNOWN_ORIGIN
from mama_structs.refs.store.entries import DamagedEntry, DeletedEntry, Descriptor, Entries, Entry, Ref
from mama_structs.refs.store.text import TEXT, Content
from mama_structs.settings import DescriptorSettings
from mama_structs.storage.sealed_rows import Change, New, PreparedChanges, Rows, Snapshot
from mama_structs.storage.sealed_rows import Damaged as DamagedRow
from mama_structs.storage.sqlite_store import RowStorage

R = TypeVar("R")

MAX_NAME: Final = 200
# Conversations of the default namespace keep keys without a namespace, as stores from before namespaces have them.
_DEFAULT: Final = "default"
STARTS: Final = "conversations/"
TEXTS: Final = "texts/"
CHANGES: Final = "refs/"
DEBT: Final = "deleted"
# The store limits the length of keys: a longer part of a key is replaced by its hash.
_MAX_QUOTED: Final = 600
_NEAREST: Final = 5
_CHANGE_KEY: Final = re.compile(
    r"refs/(?P<conversation>[^/]+)/(?P<number>\d{10,18})"
    r"/(?P<handle>fd:[1-9]\d{0,17}|ref:[A-Za-z0-9][A-Za-z0-9_.-]{0,400}@[1-9]\d{0,17})"
)
_OWN_ROW: Final = re.compile(r"(?:conversations|used|refs|told)/(?P<part>[^/]+)")
_SPELT: Final = "xn--"


@attrs.frozen
class ConversationKey:
    """The identity of a conversation: its name, which is unique within its namespace."""

    namespace: str
    name: str

    @property
    def part(self) -> str:
        """The conversation's part of its row keys, in ASCII and unique."""
        # `quote` emits "%" only before two hex digits, so the markers "%%" and "%." cannot collide with a name.
        name = quote(self.name, safe="")
        if self.namespace == _DEFAULT:
            return _bounded(name, "%%", self.name)
        whole = f"{quote(self.namespace, safe='')}%.{name}"
        return _bounded(whole, "%.", whole)

    @property
    def lock(self) -> str:
        """The unique name of the lock that is held while the conversation is open."""
        # Neither part may contain a surrogate, so the separator is unambiguous.
        return self.name if self.namespace == _DEFAULT else f"{self.namespace}\ud800{self.name}"

    @property
    def start(self) -> str:
        """The key of the start row."""
        return f"{STARTS}{self.part}"

    @property
    def used(self) -> str:
        """The key of the row with the time of the last use."""
        return f"used/{self.part}"

    @property
    def told(self) -> str:
        """The key prefix of the recall log rows."""
        return f"told/{self.part}/"

    @property
    def changes(self) -> str:
        """The key prefix of the changes."""
        return f"{CHANGES}{self.part}/"


def part_of(key: str) -> str | None:
    """Return the conversation part of a row key, or None for a row without one."""
    found = _OWN_ROW.match(key)
    return found["part"] if found else None


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """A stored record of a conversation."""


class DeleteRecord(_Record, frozen=True, kw_only=True, tag="delete"):
    """Record of the deletion of a ref version or descriptor."""

    handle: str
    at: datetime


class StartRecord(_Record, frozen=True, kw_only=True, tag="start", omit_defaults=True):
    """Start of a conversation. A fork inherits *parent*'s changes up to number *parent_at*."""

    name: str
    created_at: datetime
    parent: str | None
    parent_at: int
    version: Literal[1]
    # Omitted for the default namespace, so that earlier versions can read the row. They reject rows with a namespace,
    # because they would resolve the parent in the wrong namespace.
    namespace: str = _DEFAULT
    parent_namespace: str | None = None  # Set only if it differs from *namespace*: the parent or the fork was moved.

    @property
    def key(self) -> ConversationKey:
        """The key of the conversation that was started."""
        return ConversationKey(self.namespace, self.name)

    @property
    def parent_key(self) -> ConversationKey | None:
        """The key of the parent, or None if the conversation is not a fork."""
        return None if self.parent is None else ConversationKey(self.parent_namespace or self.namespace, self.parent)

    def moved(self, own: ConversationKey, parent: ConversationKey | None, *, until: int | None = None) -> StartRecord:
        """Return the record with another key and parent; *until* replaces *parent_at* if given."""
        return StartRecord(
            name=own.name,
            created_at=self.created_at,
            parent=parent.name if parent else None,
            parent_at=self.parent_at if until is None else until,
            version=self.version,
            namespace=own.namespace,
            parent_namespace=parent.namespace if parent and parent.namespace != own.namespace else None,
        )


# Fields that earlier versions did not store, with the value to assume if a row lacks them.
_LATER: Final = {"mime_type": TEXT, "origin": UNKNOWN_ORIGIN, "trust": UNKNOWN_ORIGIN}


def _record_type(entry: type[Entry], op: str) -> type[_Record]:
    """Create the record class of an entry class: its fields, with *hash* for *content*."""
    hints = get_type_hints(entry)
    names = [field.name for field in attrs.fields(entry) if field.name not in {"content", *_LATER}]
    # Omit fields that have their default value, so that an earlier version can read the row.
    later = [(name, hints[name], default) for name, default in _LATER.items() if name in hints]
    fields = [*((name, hints[name]) for name in names), ("hash", str), *later]
    made = msgspec.defstruct(
        f"{entry.__name__}Record", fields, bases=(_Record,), tag=op, frozen=True, kw_only=True, omit_defaults=True
    )
    return cast("type[_Record]", made)


_RECORDS: Final = {Ref: _record_type(Ref, "ref"), Descriptor: _record_type(Descriptor, "fd")}
ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Union[*_RECORDS.values(), DeleteRecord])
_START_DECODER: Final = msgspec.json.Decoder(StartRecord)


def _record_of(entry: Entry) -> _Record:
    kind = type(entry)
    fields = {field.name: getattr(entry, field.name) for field in attrs.fields(kind) if field.name != "content"}
    return _RECORDS[kind](**fields, hash=entry.content.hash)


def _entry_of(record: _Record, content: Content) -> Entry:
    kind: type[Entry] = next(kind for kind, record_type in _RECORDS.items() if type(record) is record_type)
    fields = {name: value for name, value in msgspec.structs.asdict(record).items() if name != "hash"}
    return kind(**fields, content=content)


def check_conversation(name: object) -> str:
    """Return a valid conversation name, or raise `InvalidArgument`."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise InvalidArgument(f"conversation must be a name of 1 to {MAX_NAME} characters, got {shown(name)}")
    _check.encodable("conversation", name)
    return name


# The change rows of one ancestor, and the highest change number that counts.
Generation = tuple[Sequence[tuple[str, bytes | DamagedRow]], float]


@attrs.frozen
class PreparedPut:
    """Serialized rows of some changes, and the log state from which they are numbered."""

    changes: PreparedChanges
    last: int
    is_started: bool
    count: int


class ConversationLog:
    """
    Numbers the changes of one conversation and enqueues them in the store's write queue.

    Numbers continue after *last*.
    """

    def __init__(self, storage: RowStorage, key: ConversationKey, *, last: int = 0, started: bool = False) -> None:
        self._storage = storage
        self._key = key
        self._last = last
        self.is_started: bool = started

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Enqueue an entry with its text, or a deletion, in one transaction, or nothing on error."""
        self.put_prepared(self.prepare([(handle, slot)]))

    def prepare(self, changes: Sequence[tuple[str, Entry | DeletedEntry]]) -> PreparedPut:
        """Return the rows of changes, numbered from the last one on. May run in any thread."""
        last, is_started = self._last, self.is_started
        rows: list[tuple[str, Change]] = []
        for number, (handle, slot) in enumerate(changes, last + 1):
            record: _Record
            beside: tuple[str, Change]
            if isinstance(slot, DeletedEntry):
                at, record, beside = slot.at, DeleteRecord(handle=handle, at=slot.at), (DEBT, b"")
            else:
                at, record = slot.created_at, _record_of(slot)
                beside = f"{TEXTS}{slot.content.hash}", New(slot.content.data)
            if not rows and not is_started:
                rows.append(_start_row(self._key, at))
            rows += (f"{self._key.changes}{number:010}/{_spelt(handle)}", ENCODER.encode(record)), beside
        return PreparedPut(PreparedChanges.of(rows), last, is_started, len(changes))

    def follows(self, prepared: PreparedPut) -> bool:
        """Return True if no change was enqueued since *prepared* was made."""
        return (self._last, self.is_started) == (prepared.last, prepared.is_started)

    def put_prepared(self, prepared: PreparedPut) -> None:
        """Enqueue prepared changes in one transaction; on an error nothing changes."""
        if prepared.count:
            self._storage.enqueue(prepared.changes, namespace=self._key.namespace)
            self._last, self.is_started = prepared.last + prepared.count, True

    def tell(self, rows: Mapping[str, Change], at: datetime) -> None:
        """Enqueue recall log rows, keyed by subject hash, unless the store is read-only."""
        # Recall is a read: rows that cannot be written must not fail the next flush or close.
        if self._storage.is_read_only:
            return
        begun = [] if self.is_started else [_start_row(self._key, at)]
        told = [(f"{self._key.told}{name}", row) for name, row in rows.items()]
        self._storage.enqueue([*begun, *told], namespace=self._key.namespace)
        self.is_started = True

    def fork(self, name: str, at: datetime) -> Self:
        """Return the log of a new conversation that inherits all changes recorded so far."""
        key = attrs.evolve(self._key, name=name)
        if not self.is_started:
            return type(self)(self._storage, key)
        start = _start_row(key, at, parent=self._key.name, parent_at=self._last)
        self._storage.enqueue([start], namespace=key.namespace)
        # The child continues the parent's numbers, so that all changes it sees have one order.
        return type(self)(self._storage, key, last=self._last, started=True)


async def load(
    storage: RowStorage, key: ConversationKey, settings: DescriptorSettings
) -> tuple[Entries, ConversationLog]:
    """
    Return the entries of a locked conversation, and the log that continues it.

    A new conversation has no entries. Damaged entries are returned as `DamagedEntry`.

    Raises:
        StoreDamaged: The start row of the conversation or of an ancestor cannot be read.

    """
    # All rows are on disk: the previous holder flushed before it released the lock. One transaction reads them, because
    # a parent may be moved concurrently.
    started, generations = await storage.look(
        lambda rows: lineage(rows, key, storage.location), namespace=key.namespace
    )
    load = Load(items=sum(len(rows) for rows, _ in generations))
    changes = await run_inline_or_in_thread(load, changes_of, generations)
    log = ConversationLog(storage, key, last=changes[-1].number if changes else 0, started=started or bool(changes))
    return await _replayed(storage, key.namespace, changes, settings), log


def told_rows(rows: Snapshot, key: ConversationKey) -> dict[str, bytes | DamagedRow]:
    """Return the recall log rows of a conversation, keyed by the hash of their subject."""
    return {name.removeprefix(key.told): row for name, row in rows.items(key.told)}


def changes_of(generations: Sequence[Generation]) -> list[_Change]:
    """Parse the rows returned by `lineage` into one list of changes, ordered by number."""
    changes: dict[int, _Change] = {}
    for rows, until in generations:
        read = itertools.starmap(change_of, rows)
        changes |= {change.number: change for change in read if 0 < change.number <= until}
    return [changes[number] for number in sorted(changes)]


def lineage(rows: Snapshot, key: ConversationKey, directory: str) -> tuple[bool, list[Generation]]:
    """
    Return the change rows of a conversation and its ancestors.

    Returns:
        True if the conversation has a start row, and the rows: its own first, then those of each ancestor.

    """
    found: list[Generation] = []
    until = math.inf
    seen: set[ConversationKey] = set()
    one: ConversationKey | None = key
    while one is not None and one not in seen:
        seen.add(one)
        found.append((rows.items(one.changes), until))
        row = rows.get(one.start)
        if row is None:
            break
        start = begun(row, one, directory)
        one, until = start.parent_key, min(until, start.parent_at)
    return rows.get(key.start) is not None, found


def begun(row: bytes | DamagedRow, key: ConversationKey, directory: str) -> StartRecord:
    """Return the parsed start row, or raise `StoreDamaged`."""
    start = start_of(row)
    if isinstance(start, DamagedRow):
        raise StoreDamaged(
            f"the beginning of the conversation {key.name!r:.80} is damaged: {start.reason}",
            file=directory,
            findings=(key.start,),
            hint="open another conversation; check() lists what is damaged",
        )
    return start


def texts_of(rows: Mapping[str, bytes]) -> dict[str, str]:
    """Return the keys of all texts that the rows refer to, each with the key of a change."""
    return _KnownChanges.of(rows).reachable()


async def missing_texts(storage: RowStorage) -> list[tuple[str, str]]:
    """Return the keys of missing texts, each with the key of a change that refers to it."""
    found: list[tuple[str, str]] = []
    for space in await storage.spaces():
        known = await _KnownChanges.read(storage, space)
        texts = set(await storage.keys(TEXTS, namespace=space))
        load = Load(items=len(known.changes))
        found += await run_inline_or_in_thread(load, _find_missing, known, texts)
    return found


def _find_missing(known: _KnownChanges, texts: AbstractSet[str]) -> list[tuple[str, str]]:
    return [(text, change) for text, change in known.reachable().items() if text not in texts]


async def reclaim(storage: RowStorage, namespace: str) -> int:
    """
    Delete the texts of a namespace that are proved unreachable, and return their number.

    In a directory, which shares texts between namespaces, the rows of all namespaces are checked. Nothing is deleted
    if no deletion is recorded, if a conversation row is unreadable, if the parent of a fork is missing, or if the
    server may hide rows from this role.
    """
    if DEBT not in await storage.read([DEBT], namespace=namespace):
        return 0
    # Other writers may add changes during this read. The transaction below checks the added changes.
    known = await _KnownChanges.read(storage, namespace)
    texts = set(await storage.keys(TEXTS, namespace=namespace))
    if known.unreadable:
        return 0
    load = Load(items=len(known.changes))
    unreachable = await run_inline_or_in_thread(load, lambda: texts - known.reachable().keys())

    def delete(rows: Rows) -> int:
        if not rows.is_complete:
            return 0
        added = [change_of(key, rows.get(key)) for key in rows.keys(CHANGES) if key not in known.changes]
        if any(isinstance(change.record, DamagedRow) for change in added):
            return 0
        doomed = unreachable - {f"{TEXTS}{change.hash}" for change in added}
        for key in doomed:
            rows.delete(key)
        rows.delete(DEBT)
        return len(doomed)

    return await storage.transact(delete, namespaces=[namespace])


@attrs.frozen
class _Change:
    """A parsed change row. *conversation* is its key part; *record* may be its damage."""

    conversation: str
    number: int
    handle: str
    record: _Record | DamagedRow

    @property
    def hash(self) -> str | None:
        """The hash of the text that the change refers to, or None."""
        return getattr(self.record, "hash", None)

    @property
    def mime_type(self) -> str:
        """The MIME type of that text."""
        return getattr(self.record, "mime_type", TEXT)

    @property
    def source(self) -> str:
        """The source of the text, or an empty string if it is unknown."""
        return getattr(self.record, "source", "")

    @property
    def bare(self) -> _Record | None:
        """The record without its source and attributes, or None if it has neither."""
        words = {"attributes": {}, "source": ""}
        said = {name: none for name, none in words.items() if getattr(self.record, name, none) != none}
        return msgspec.structs.replace(self.record, **said) if said and isinstance(self.record, _Record) else None

    @property
    def at(self) -> datetime | None:
        """When the change was made, or None if the row is unreadable."""
        return getattr(self.record, "created_at", None) or getattr(self.record, "at", None)


@attrs.frozen
class _KnownChanges:
    """
    All changes of a namespace or directory, by key, and the forks of each conversation.

    Forks are pairs: the key part of the fork, and the number of the last inherited change.
    """

    changes: Mapping[str, _Change]
    forks: Mapping[str, list[tuple[str, int]]]
    unreadable: bool  # A row is unreadable, or the parent of a fork is missing.

    @classmethod
    async def read(cls, storage: RowStorage, namespace: str) -> _KnownChanges:
        keys = [key for prefix in (STARTS, CHANGES) for key in await storage.keys(prefix, namespace=namespace)]
        rows = await storage.read(keys, namespace=namespace)
        load = Load(items=len(keys))
        return await run_inline_or_in_thread(load, cls.of, {key: rows.get(key) for key in keys})

    @classmethod
    def of(cls, rows: Mapping[str, bytes | DamagedRow | None]) -> _KnownChanges:
        """Parse the start rows and changes of conversations."""
        begun = {key: start_of(row) for key, row in rows.items() if key.startswith(STARTS)}
        changes = {key: change_of(key, row) for key, row in rows.items() if key.startswith(CHANGES)}
        forks: dict[str, list[tuple[str, int]]] = {}
        has_orphan = False
        for key, start in begun.items():
            if isinstance(start, StartRecord) and start.parent_key is not None:
                forks.setdefault(start.parent_key.part, []).append((key.removeprefix(STARTS), start.parent_at))
                has_orphan |= start.parent_key.start not in begun
        records = [*begun.values(), *(change.record for change in changes.values())]
        return cls(changes, forks, has_orphan or any(isinstance(record, DamagedRow) for record in records))

    def reachable(self) -> dict[str, str]:
        """Return the keys of all texts in use by a conversation, each with the key of a change."""
        deleted = {
            (change.conversation, change.handle): change.number
            for change in self.changes.values()
            if isinstance(change.record, DeleteRecord)
        }
        found: dict[str, str] = {}
        for key, change in self.changes.items():
            text = f"{TEXTS}{change.hash}"
            if change.hash is not None and text not in found and self._is_held(change, deleted):
                found[text] = key
        return found

    def _is_held(self, change: _Change, deleted: Mapping[tuple[str, str], int]) -> bool:
        """Return True if the conversation, or a fork made before a deletion, contains the entry."""
        waiting = [change.conversation]
        while waiting:
            conversation = waiting.pop()
            gone = deleted.get((conversation, change.handle))
            if gone is None:
                return True
            waiting += [fork for fork, at in self.forks.get(conversation, ()) if change.number <= at < gone]
        return False


def _bounded(part: str, mark: str, hashed: str) -> str:
    return part if len(part) <= _MAX_QUOTED else f"{mark}{hashlib.sha256(hashed.encode()).hexdigest()}"


def _start_row(
    key: ConversationKey, at: datetime, *, parent: str | None = None, parent_at: int = 0
) -> tuple[str, bytes]:
    record = StartRecord(
        name=key.name, created_at=at, parent=parent, parent_at=parent_at, version=1, namespace=key.namespace
    )
    return key.start, ENCODER.encode(record)


def _decoded(decode: Callable[[bytes], R], row: bytes | DamagedRow | None) -> R | DamagedRow:
    if not isinstance(row, bytes):
        return DamagedRow("it is gone") if row is None else row
    try:
        return decode(row)
    except msgspec.MsgspecError as error:
        return DamagedRow(f"no record of this version: {error}")


def start_of(row: bytes | DamagedRow | None) -> StartRecord | DamagedRow:
    """Parse a start row."""
    return _decoded(_START_DECODER.decode, row)


def change_of(key: str, row: bytes | DamagedRow | None) -> _Change:
    """
    Parse a change row. A row with an invalid key gets the number 0.

    `RowStorage.check` reports such rows.
    """
    parts = _CHANGE_KEY.fullmatch(key)
    if parts is None:
        return _Change("", 0, "", DamagedRow("its key is none of ours"))
    handle = _read_handle(parts["handle"])
    return _Change(parts["conversation"], int(parts["number"]), handle, _decoded(_DECODER.decode, row))


def _spelt(handle: str) -> str:
    """Encode a handle in ASCII: an id with other characters in Punycode, marked with ``xn--``."""
    kind, _, name = handle.partition(":")
    ref_id, at, version = name.partition("@")
    if handle.isascii() and not ref_id.startswith(_SPELT):
        return handle
    return f"{kind}:{_SPELT}{ref_id.encode('punycode').decode()}{at}{version}"


def _read_handle(text: str) -> str:
    """Decode a handle that `_spelt` encoded; return any other handle unchanged."""
    kind, _, name = text.partition(":")
    ref_id, at, version = name.partition("@")
    if not ref_id.startswith(_SPELT):
        return text
    try:
        handle = f"{kind}:{ref_id.removeprefix(_SPELT).encode().decode('punycode')}{at}{version}"
    except UnicodeError:
        return text
    # An id from before Unicode ids may start with "xn--" without being Punycode: decode only if it round-trips.
    return handle if _spelt(handle) == text else text


async def _replayed(
    storage: RowStorage, namespace: str, changes: Sequence[_Change], settings: DescriptorSettings
) -> Entries:
    """Load the texts of a conversation's changes, and return the resulting entries."""

    def find() -> tuple[set[str], set[tuple[str, str]], list[str]]:
        gone = {change.handle for change in changes if isinstance(change.record, DeleteRecord)}
        held = (change for change in changes if change.hash is not None and change.handle not in gone)
        kept = {(change.hash or "", change.mime_type) for change in held}
        return gone, kept, list({f"{TEXTS}{digest}" for digest, _ in kept})

    gone, kept, keys = await run_inline_or_in_thread(Load(items=len(changes)), find)
    rows = await storage.read(keys, namespace=namespace)
    load = Load(sum(len(row) for row in rows.values() if isinstance(row, bytes)), len(changes))
    return await run_inline_or_in_thread(load, _build_entries, changes, rows, gone, kept, settings)


def _build_entries(
    changes: Sequence[_Change],
    rows: Mapping[str, bytes | DamagedRow],
    gone: AbstractSet[str],
    kept: AbstractSet[tuple[str, str]],
    settings: DescriptorSettings,
) -> Entries:
    entries = Entries(settings)
    contents = {one: _content(rows.get(f"{TEXTS}{one[0]}"), *one) for one in kept}
    for change in changes:
        record = change.record
        if isinstance(record, DamagedRow):
            entries.put(change.handle, DamagedEntry(record.reason))
        elif isinstance(record, DeleteRecord):
            entries.put(record.handle, DeletedEntry(record.at))
        elif change.hash is not None and change.handle not in gone:
            content = contents[change.hash, change.mime_type]
            slot = DamagedEntry(content) if isinstance(content, str) else _entry_of(record, content)
            entries.put(change.handle, slot)
    return entries


def _content(row: bytes | DamagedRow | None, digest: str, mime_type: str) -> Content | str:
    """Return the content of a text row, or a description of its damage."""
    if not isinstance(row, bytes):
        return "its text is missing" if row is None else row.reason
    try:
        content = Content.of(row.decode()) if mime_type == TEXT else Content.of_bytes(row, mime_type)
    except ValueError:
        return "its text is no UTF-8"
    return content if content.hash == digest else "its text is another"
