"""
A conversation's changes on disk: one row a change, JSON told apart by ``op``, and each text once.

Rows, all in the session's one store:

* ``conversations/<part>``: how the conversation began (`StartRecord`); for the part see `ConversationKey`;
* ``refs/<part>/<number>/<handle>``: its changes, numbered from 1; a fork begins with those of its parent, up to the
  number at which it was made;
* ``texts/<hash>``: texts in UTF-8, and bytes as they are. Conversations share them: in a directory all conversations,
  on a server those of one namespace;
* ``told/<part>/<hash>``: what it was told out of the memories, see `told`;
* ``deleted``: exists while texts may be unreachable; one for a directory, or one for each namespace on a server.

The handle stands in the key, so that a damaged row still says what it was about. Keys are ASCII: other ids are written
as in domain names (``ref:xn--…@1``), which a version that knows no such ids can read, too.
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
# Its conversations have the keys, locks and records of the time when names counted in a whole directory.
_DEFAULT: Final = "default"
STARTS: Final = "conversations/"
TEXTS: Final = "texts/"
CHANGES: Final = "refs/"
DEBT: Final = "deleted"
# A conversation's part of a key: longer ones are hashed, as the store bounds its keys.
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
    """Which conversation is meant: names count within a namespace."""

    namespace: str
    name: str

    @property
    def part(self) -> str:
        """What stands for it in the keys of rows: ASCII, and no other's."""
        # In quoted text two hex digits follow each percent sign, so that no name can spell the marks.
        name = quote(self.name, safe="")
        if self.namespace == _DEFAULT:
            return _bounded(name, "%%", self.name)
        whole = f"{quote(self.namespace, safe='')}%.{name}"
        return _bounded(whole, "%.", whole)

    @property
    def lock(self) -> str:
        """What is locked while it is open, which is no other's."""
        # A surrogate, which neither may contain, parts them.
        return self.name if self.namespace == _DEFAULT else f"{self.namespace}\ud800{self.name}"

    @property
    def start(self) -> str:
        """The key of its first row."""
        return f"{STARTS}{self.part}"

    @property
    def used(self) -> str:
        """The key of the row that says when it was last used."""
        return f"used/{self.part}"

    @property
    def told(self) -> str:
        """How the keys of the rows begin that say what it was told."""
        return f"told/{self.part}/"

    @property
    def changes(self) -> str:
        """How the keys of its changes begin."""
        return f"{CHANGES}{self.part}/"


def part_of(key: str) -> str | None:
    """Return which conversation's part a row's key holds, None for a row of no conversation or of several."""
    found = _OWN_ROW.match(key)
    return found["part"] if found else None


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """A row of a conversation."""


class DeleteRecord(_Record, frozen=True, kw_only=True, tag="delete"):
    """What had this handle was deleted."""

    handle: str
    at: datetime


class StartRecord(_Record, frozen=True, kw_only=True, tag="start", omit_defaults=True):
    """A conversation began; a fork holds what *parent* held when its change number *parent_at* was written."""

    name: str
    created_at: datetime
    parent: str | None
    parent_at: int
    version: Literal[1]
    # Written where they say something: a version that does not know them reads those of the default namespace, and of
    # the others, whose parents it would take for others, that it cannot tell what they hold.
    namespace: str = _DEFAULT
    parent_namespace: str | None = None  # Where it is another one, of which either was moved.

    @property
    def key(self) -> ConversationKey:
        """Which conversation began."""
        return ConversationKey(self.namespace, self.name)

    @property
    def parent_key(self) -> ConversationKey | None:
        """Of which it is a fork."""
        return None if self.parent is None else ConversationKey(self.parent_namespace or self.namespace, self.parent)

    def moved(self, own: ConversationKey, parent: ConversationKey | None, *, until: int | None = None) -> StartRecord:
        """Return it as that of another place, or of a fork of another one, made there *until* a change."""
        return StartRecord(
            name=own.name,
            created_at=self.created_at,
            parent=parent.name if parent else None,
            parent_at=self.parent_at if until is None else until,
            version=self.version,
            namespace=own.namespace,
            parent_namespace=parent.namespace if parent and parent.namespace != own.namespace else None,
        )


# Fields that earlier versions did not store, with the value that a row without them has.
_LATER: Final = {"mime_type": TEXT, "origin": UNKNOWN_ORIGIN, "trust": UNKNOWN_ORIGIN}


def _record_type(entry: type[Entry], op: str) -> type[_Record]:
    """Return the record class of an entry class: its fields, with the hash of the content in place of the content."""
    hints = get_type_hints(entry)
    names = [field.name for field in attrs.fields(entry) if field.name not in {"content", *_LATER}]
    # Fields with their default are omitted, so that an earlier version can read the row.
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
    """Return a conversation's name, or raise `InvalidArgument`."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise InvalidArgument(f"conversation must be a name of 1 to {MAX_NAME} characters, got {shown(name)}")
    _check.encodable("conversation", name)
    return name


# The rows of one conversation's changes, and the number up to which they count.
Generation = tuple[Sequence[tuple[str, bytes | DamagedRow]], float]


@attrs.frozen
class PreparedPut:
    """The rows of some changes, and the state of the log that their numbers follow."""

    changes: PreparedChanges
    last: int
    is_started: bool
    count: int


class ConversationLog:
    """Hands the changes of one conversation, of which *last* is the number, to the store, which writes them behind."""

    def __init__(self, storage: RowStorage, key: ConversationKey, *, last: int = 0, started: bool = False) -> None:
        self._storage = storage
        self._key = key
        self._last = last
        self.is_started: bool = started

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Take what was stored, with its text, or deleted, in one transaction; nothing of it where the store raises."""
        self.put_prepared(self.prepare([(handle, slot)]))

    def prepare(self, changes: Sequence[tuple[str, Entry | DeletedEntry]]) -> PreparedPut:
        """Return the rows of changes, numbered from the last one on; may run in any thread."""
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
        """Return True if nothing was recorded since *prepared* was made."""
        return (self._last, self.is_started) == (prepared.last, prepared.is_started)

    def put_prepared(self, prepared: PreparedPut) -> None:
        """Enqueue prepared changes in one transaction; nothing changes if the store raises."""
        if prepared.count:
            self._storage.enqueue(prepared.changes, namespace=self._key.namespace)
            self._last, self.is_started = prepared.last + prepared.count, True

    def tell(self, rows: Mapping[str, Change], at: datetime) -> None:
        """Store rows of the recall log, keyed by the end of their keys; a store that can only be read gets none."""
        # A recall is a read: rows that cannot be written must not fail the next flush or close.
        if self._storage.is_read_only:
            return
        begun = [] if self.is_started else [_start_row(self._key, at)]
        told = [(f"{self._key.told}{name}", row) for name, row in rows.items()]
        self._storage.enqueue([*begun, *told], namespace=self._key.namespace)
        self.is_started = True

    def fork(self, name: str, at: datetime) -> Self:
        """Return the log of a conversation of this namespace that begins with everything this one has recorded."""
        key = attrs.evolve(self._key, name=name)
        if not self.is_started:
            return type(self)(self._storage, key)
        start = _start_row(key, at, parent=self._key.name, parent_at=self._last)
        self._storage.enqueue([start], namespace=key.namespace)
        # The child's own numbers go on from here, so that the order of all changes that it sees is one.
        return type(self)(self._storage, key, last=self._last, started=True)


async def load(
    storage: RowStorage, key: ConversationKey, settings: DescriptorSettings
) -> tuple[Entries, ConversationLog]:
    """
    Return what a conversation that is locked holds, nothing if it is new, and the log that goes on with it.

    What is damaged is among the entries as such; `StoreDamaged` where it cannot be told of what it is a fork.
    """
    # On the disk is all of it: a lock is let go after that. And it is of one moment: a parent may move meanwhile.
    started, generations = await storage.look(
        lambda rows: lineage(rows, key, storage.location), namespace=key.namespace
    )
    load = Load(items=sum(len(rows) for rows, _ in generations))
    changes = await run_inline_or_in_thread(load, changes_of, generations)
    log = ConversationLog(storage, key, last=changes[-1].number if changes else 0, started=started or bool(changes))
    return await _replayed(storage, key.namespace, changes, settings), log


def told_rows(rows: Snapshot, key: ConversationKey) -> dict[str, bytes | DamagedRow]:
    """Return the rows of what a conversation was told, by what their keys end with."""
    return {name.removeprefix(key.told): row for name, row in rows.items(key.told)}


def changes_of(generations: Sequence[Generation]) -> list[_Change]:
    """Return what happened to a conversation, in order, of what `lineage` gives."""
    changes: dict[int, _Change] = {}
    for rows, until in generations:
        read = itertools.starmap(change_of, rows)
        changes |= {change.number: change for change in read if 0 < change.number <= until}
    return [changes[number] for number in sorted(changes)]


def lineage(rows: Snapshot, key: ConversationKey, directory: str) -> tuple[bool, list[Generation]]:
    """Return whether a conversation has a first row, and its changes and those of what it was forked from."""
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
    """Return what a first row says, or raise `StoreDamaged`."""
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
    """Return the keys of all texts that the conversations of these rows hold, each with the key of a change."""
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

    In a directory, which shares texts between namespaces, all namespaces count. Nothing is deleted if nothing was
    deleted before, if a row of the conversations cannot be read, if the parent of a fork is missing, or if the
    server may hide rows from this role.
    """
    if DEBT not in await storage.read([DEBT], namespace=namespace):
        return 0
    # Others may write while this reads. The transaction below looks at the changes that they added.
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
    """A row of changes: its conversation as keys have it, its place, what it is about, and what it says or is wrong."""

    conversation: str
    number: int
    handle: str
    record: _Record | DamagedRow

    @property
    def hash(self) -> str | None:
        """The text that it names, None where it names none."""
        return getattr(self.record, "hash", None)

    @property
    def mime_type(self) -> str:
        """What the text that it names is."""
        return getattr(self.record, "mime_type", TEXT)

    @property
    def source(self) -> str:
        """Where the text came from, as far as it says so."""
        return getattr(self.record, "source", "")

    @property
    def bare(self) -> _Record | None:
        """What it says without a word on where the text came from and what its tag said, None where it has none."""
        words = {"attributes": {}, "source": ""}
        said = {name: none for name, none in words.items() if getattr(self.record, name, none) != none}
        return msgspec.structs.replace(self.record, **said) if said and isinstance(self.record, _Record) else None

    @property
    def at(self) -> datetime | None:
        """When it was made, None where that cannot be read."""
        return getattr(self.record, "created_at", None) or getattr(self.record, "at", None)


@attrs.frozen
class _KnownChanges:
    """All changes of a namespace, or of a directory, by key, and the forks of each conversation with their origin."""

    changes: Mapping[str, _Change]
    forks: Mapping[str, list[tuple[str, int]]]
    unreadable: bool  # A row cannot be read, or the parent of a fork is missing.

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
        """Return the keys of all texts that a conversation still holds, each with that of a change that names it."""
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
        """Tell whether the conversation of a change, or a fork made before it was deleted there, still holds it."""
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
    """Return a first row as what it says."""
    return _decoded(_START_DECODER.decode, row)


def change_of(key: str, row: bytes | DamagedRow | None) -> _Change:
    """Return a row as a change; one whose key is none of ours, which `RowStorage.check` reports, has the number 0."""
    parts = _CHANGE_KEY.fullmatch(key)
    if parts is None:
        return _Change("", 0, "", DamagedRow("its key is none of ours"))
    handle = _read_handle(parts["handle"])
    return _Change(parts["conversation"], int(parts["number"]), handle, _decoded(_DECODER.decode, row))


def _spelt(handle: str) -> str:
    """Write a handle in ASCII."""
    kind, _, name = handle.partition(":")
    ref_id, at, version = name.partition("@")
    if handle.isascii() and not ref_id.startswith(_SPELT):
        return handle
    return f"{kind}:{_SPELT}{ref_id.encode('punycode').decode()}{at}{version}"


def _read_handle(text: str) -> str:
    """Read a handle as `_spelt` writes it; what it would not write is taken as it is."""
    kind, _, name = text.partition(":")
    ref_id, at, version = name.partition("@")
    if not ref_id.startswith(_SPELT):
        return text
    try:
        handle = f"{kind}:{ref_id.removeprefix(_SPELT).encode().decode('punycode')}{at}{version}"
    except UnicodeError:
        return text
    # Before ids were of any script, one could begin like this and be meant.
    return handle if _spelt(handle) == text else text


async def _replayed(
    storage: RowStorage, namespace: str, changes: Sequence[_Change], settings: DescriptorSettings
) -> Entries:
    """Return the entries that a conversation's changes come to."""

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
    """Return a text or bytes, or what is wrong with them."""
    if not isinstance(row, bytes):
        return "its text is missing" if row is None else row.reason
    try:
        content = Content.of(row.decode()) if mime_type == TEXT else Content.of_bytes(row, mime_type)
    except ValueError:
        return "its text is no UTF-8"
    return content if content.hash == digest else "its text is another"
