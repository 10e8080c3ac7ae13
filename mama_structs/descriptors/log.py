"""
A conversation's changes on disk: one row a change, JSON told apart by ``op``, and each text once.

Rows, all in the session's one store:

* ``conversations/<name>``: how the conversation began (`_StartRecord`);
* ``refs/<name>/<number>/<handle>``: its changes, numbered from 1; a fork begins with those of its parent, up to the
  number at which it was made;
* ``texts/<hash>``: texts in UTF-8, shared by all conversations;
* ``deleted``: there while texts may have become unreachable.

The handle stands in the key, so that a damaged row still says what it was about.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, Self, TypeVar, Union, cast, get_type_hints
from urllib.parse import quote

import attrs
import msgspec

from mama_structs import _check
from mama_structs.descriptors.entries import DamagedEntry, DeletedEntry, Descriptor, Entries, Entry, Ref
from mama_structs.descriptors.text import Content
from mama_structs.errors import InvalidArgument, StoreDamaged
from mama_structs.settings import DescriptorSettings
from mama_structs.storage.rows import Change, New, Rows
from mama_structs.storage.rows import Damaged as DamagedRow
from mama_structs.storage.store import Storage

R = TypeVar("R")

MAX_NAME: Final = 200
_STARTS: Final = "conversations/"
_TEXTS: Final = "texts/"
_CHANGES: Final = "refs/"
_DEBT: Final = "deleted"
# A name's part of a key: longer ones are hashed, as the store bounds its keys.
_MAX_QUOTED: Final = 600
_CHANGE_KEY: Final = re.compile(
    r"refs/(?P<conversation>[^/]+)/(?P<number>\d{10,18})"
    r"/(?P<handle>fd:[1-9]\d{0,17}|ref:[A-Za-z0-9][A-Za-z0-9_.-]{0,63}@[1-9]\d{0,17})"
)


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """A row of a conversation."""


class _DeleteRecord(_Record, frozen=True, kw_only=True, tag="delete"):
    """What had this handle was deleted."""

    handle: str
    at: datetime


class _StartRecord(_Record, frozen=True, kw_only=True, tag="start"):
    """A conversation began; a fork holds what *parent* held when its change number *parent_at* was written."""

    name: str
    created_at: datetime
    parent: str | None
    parent_at: int
    version: Literal[1]


def _record_type(entry: type[Entry], op: str) -> type[_Record]:
    """Make the record of an entry: its fields, but for its content, of which it names the hash."""
    hints = get_type_hints(entry)
    fields = [(field.name, hints[field.name]) for field in attrs.fields(entry) if field.name != "content"]
    return cast(
        "type[_Record]",
        msgspec.defstruct(
            f"{entry.__name__}Record", [*fields, ("hash", str)], bases=(_Record,), tag=op, frozen=True, kw_only=True
        ),
    )


_RECORDS: Final = {Ref: _record_type(Ref, "ref"), Descriptor: _record_type(Descriptor, "fd")}
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Union[*_RECORDS.values(), _DeleteRecord])
_START_DECODER: Final = msgspec.json.Decoder(_StartRecord)


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
        raise InvalidArgument(f"conversation must be a name of 1 to {MAX_NAME} characters, got {name!r:.80}")
    _check.encodable("conversation", name)
    return name


def start_key(conversation: str) -> str:
    """Return the key of a conversation's first row."""
    return f"{_STARTS}{_quoted(conversation)}"


class ConversationLog:
    """Hands the changes of one conversation, of which *last* is the number, to the store, which writes them behind."""

    def __init__(self, storage: Storage, conversation: str, *, last: int = 0, started: bool = False) -> None:
        self._storage = storage
        self._conversation = conversation
        self._last = last
        self._started = started

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Take what was stored, with its text, or deleted, in one transaction; nothing of it where the store raises."""
        record: _Record
        beside: tuple[str, Change]
        if isinstance(slot, DeletedEntry):
            at, record, beside = slot.at, _DeleteRecord(handle=handle, at=slot.at), (_DEBT, b"")
        else:
            at, record = slot.created_at, _record_of(slot)
            beside = f"{_TEXTS}{slot.content.hash}", New(slot.content.text.encode())
        rows = [] if self._started else [_start_row(self._conversation, at, parent=None, parent_at=0)]
        number = self._last + 1
        change = f"{_CHANGES}{_quoted(self._conversation)}/{number:010}/{handle}", _ENCODER.encode(record)
        self._storage.enqueue([*rows, change, beside])
        self._last, self._started = number, True

    def fork(self, conversation: str, at: datetime) -> Self:
        """Return the log of a conversation that begins with everything this one has recorded."""
        if not self._started:
            return type(self)(self._storage, conversation)
        self._storage.enqueue([_start_row(conversation, at, parent=self._conversation, parent_at=self._last)])
        # The child's own numbers go on from here, so that the order of all changes that it sees is one.
        return type(self)(self._storage, conversation, last=self._last, started=True)


async def load(storage: Storage, conversation: str, settings: DescriptorSettings) -> tuple[Entries, ConversationLog]:
    """
    Return what a conversation holds, nothing if it is new, and the log that goes on with it.

    What is damaged is among the entries as such; `StoreDamaged` where it cannot be told of what it is a fork.
    """
    changes: dict[int, _Change] = {}
    name: str | None = conversation
    until = math.inf
    started = False
    seen: set[str] = set()
    while name is not None and name not in seen:
        seen.add(name)
        key = start_key(name)
        row = (await storage.read([key])).get(key)
        rows = await storage.read(await storage.keys(f"{_CHANGES}{_quoted(name)}/"))
        read = itertools.starmap(_read, rows.items())
        own = {change.number: change for change in read if 0 < change.number <= until}
        changes |= own
        started = started or row is not None or bool(own)
        if row is None:
            break
        start = _decoded(_START_DECODER.decode, row)
        if isinstance(start, DamagedRow):
            raise StoreDamaged(
                f"the beginning of the conversation {conversation!r:.80} is damaged: {start.reason}",
                file=str(storage.directory),
                findings=(key,),
                hint="open another conversation; check() lists what is damaged",
            )
        if start.parent is None:
            break
        name, until = start.parent, min(until, start.parent_at)
    log = ConversationLog(storage, conversation, last=max(changes, default=0), started=started)
    return await _replayed(storage, [changes[number] for number in sorted(changes)], settings), log


async def missing_texts(storage: Storage) -> list[tuple[str, str]]:
    """Return the keys of texts that are gone, each with that of a change by which it can be reached."""
    known = await _KnownChanges.read(storage)
    texts = set(await storage.keys(_TEXTS))
    return [(text, change) for text, change in known.reachable().items() if text not in texts]


async def reclaim(storage: Storage) -> int:
    """
    Delete the texts that no conversation can reach any more, if anything was deleted, and return how many.

    Where a row cannot be read, nothing is deleted: it may name any text.
    """
    if _DEBT not in await storage.read([_DEBT]):
        return 0
    # Reading all of it takes a while, in which others may write: what they add is looked at in the end.
    known = await _KnownChanges.read(storage)
    texts = set(await storage.keys(_TEXTS))
    if known.unreadable:
        return 0
    unreachable = texts - known.reachable().keys()

    def delete(rows: Rows) -> int:
        added = [_read(key, rows.get(key)) for key in rows.keys(_CHANGES) if key not in known.changes]
        if any(isinstance(change.record, DamagedRow) for change in added):
            return 0
        doomed = unreachable - {f"{_TEXTS}{change.hash}" for change in added}
        for key in doomed:
            rows.delete(key)
        rows.delete(_DEBT)
        return len(doomed)

    return await storage.transact(delete)


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


@attrs.frozen
class _KnownChanges:
    """All changes of a store at one moment, by key, and of each conversation its forks and where they began."""

    changes: Mapping[str, _Change]
    forks: Mapping[str, list[tuple[str, int]]]
    unreadable: bool  # Whether a row cannot be read.

    @classmethod
    async def read(cls, storage: Storage) -> _KnownChanges:
        starts = await storage.keys(_STARTS)
        keys = await storage.keys(_CHANGES)
        rows = await storage.read([*starts, *keys])
        begun = {key: _decoded(_START_DECODER.decode, rows.get(key)) for key in starts}
        changes = {key: _read(key, rows.get(key)) for key in keys}
        forks: dict[str, list[tuple[str, int]]] = {}
        for key, start in begun.items():
            if isinstance(start, _StartRecord) and start.parent is not None:
                forks.setdefault(_quoted(start.parent), []).append((key.removeprefix(_STARTS), start.parent_at))
        records = [*begun.values(), *(change.record for change in changes.values())]
        return cls(changes, forks, any(isinstance(record, DamagedRow) for record in records))

    def reachable(self) -> dict[str, str]:
        """Return the keys of all texts that a conversation still holds, each with that of a change that names it."""
        deleted = {
            (change.conversation, change.handle): change.number
            for change in self.changes.values()
            if isinstance(change.record, _DeleteRecord)
        }
        found: dict[str, str] = {}
        for key, change in self.changes.items():
            text = f"{_TEXTS}{change.hash}"
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


def _quoted(conversation: str) -> str:
    quoted = quote(conversation, safe="")
    # No quoted text has two percent signs side by side.
    return quoted if len(quoted) <= _MAX_QUOTED else f"%%{hashlib.sha256(conversation.encode()).hexdigest()}"


def _start_row(conversation: str, at: datetime, *, parent: str | None, parent_at: int) -> tuple[str, bytes]:
    record = _StartRecord(name=conversation, created_at=at, parent=parent, parent_at=parent_at, version=1)
    return start_key(conversation), _ENCODER.encode(record)


def _decoded(decode: Callable[[bytes], R], row: bytes | DamagedRow | None) -> R | DamagedRow:
    if not isinstance(row, bytes):
        return DamagedRow("it is gone") if row is None else row
    try:
        return decode(row)
    except msgspec.MsgspecError as error:
        return DamagedRow(f"no record of this version: {error}")


def _read(key: str, row: bytes | DamagedRow | None) -> _Change:
    """Return a row as a change; one whose key is none of ours, which `Storage.check` reports, has the number 0."""
    parts = _CHANGE_KEY.fullmatch(key)
    if parts is None:
        return _Change("", 0, "", DamagedRow("its key is none of ours"))
    return _Change(parts["conversation"], int(parts["number"]), parts["handle"], _decoded(_DECODER.decode, row))


async def _replayed(storage: Storage, changes: Sequence[_Change], settings: DescriptorSettings) -> Entries:
    entries = Entries(settings)
    gone = {change.handle for change in changes if isinstance(change.record, _DeleteRecord)}
    hashes = {change.hash for change in changes if change.hash is not None and change.handle not in gone}
    rows = await storage.read([f"{_TEXTS}{digest}" for digest in hashes])
    contents = {digest: _content(rows.get(f"{_TEXTS}{digest}"), digest) for digest in hashes}
    for change in changes:
        record = change.record
        if isinstance(record, DamagedRow):
            entries.put(change.handle, DamagedEntry(record.reason))
        elif isinstance(record, _DeleteRecord):
            entries.put(record.handle, DeletedEntry(record.at))
        elif change.hash is not None and change.handle not in gone:
            content = contents[change.hash]
            slot = DamagedEntry(content) if isinstance(content, str) else _entry_of(record, content)
            entries.put(change.handle, slot)
    return entries


def _content(row: bytes | DamagedRow | None, digest: str) -> Content | str:
    """Return a text, or what is wrong with it."""
    if not isinstance(row, bytes):
        return "its text is missing" if row is None else row.reason
    try:
        content = Content.of(row.decode())
    except ValueError:
        return "its text is no UTF-8"
    return content if content.hash == digest else "its text is another"
