"""
A conversation's changes on disk: one row a change, and each text once.

Rows, all in the session's one store:

* ``conversations/<name>``: how the conversation began (`StartRecord`);
* ``refs/<name>/<number>/<handle>``: its changes, numbered from 1; a fork begins with those of its parent, up to the
  number at which it was made;
* ``texts/<hash>``: texts in UTF-8, shared by all conversations;
* ``deleted``: there while texts may have become unreachable.

The handle stands in the key, so that a damaged row still says what it was about.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final
from urllib.parse import quote

import attrs
import msgspec

from mama_structs.descriptors.content import Content
from mama_structs.descriptors.records import (
    DECODER,
    ENCODER,
    START_DECODER,
    DeleteRecord,
    FdRecord,
    Record,
    RefRecord,
    StartRecord,
    entry_of,
)
from mama_structs.descriptors.shelf import Shelf
from mama_structs.errors import InvalidArgument, StoreDamaged
from mama_structs.settings import DescriptorSettings
from mama_structs.storage import Change, New, Rows, Storage
from mama_structs.storage import Damaged as DamagedRow

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


def check_conversation(name: object) -> str:
    """
    Return a conversation's name.

    Raises:
        InvalidArgument: It is no text, empty, too long or has surrogates.

    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise InvalidArgument(f"conversation must be a name of 1 to {MAX_NAME} characters, got {name!r:.80}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("conversation must be text that UTF-8 can hold, and has a lone surrogate") from None
    return name


def start_key(conversation: str) -> str:
    """Return the key of a conversation's first row."""
    return f"{_STARTS}{_quoted(conversation)}"


class ConversationJournal:
    """
    Hands the changes of one conversation to the store, which writes them behind.

    Args:
        storage: The store.
        conversation: The name.
        last: The number of its last change.
        started: Whether its first row is there.

    """

    def __init__(self, storage: Storage, conversation: str, *, last: int = 0, started: bool = False) -> None:
        self._storage = storage
        self._conversation = conversation
        self._last = last
        self._started = started

    def record(self, record: Record, content: Content | None) -> None:
        """
        Take a change, with the text that it names; both are written in one transaction.

        Raises:
            SessionClosed: The store was closed; nothing was taken.

        """
        rows: list[tuple[str, Change]] = []
        if not self._started:
            at = record.at if isinstance(record, DeleteRecord) else record.created_at
            rows.append(_start_row(self._conversation, at, parent=None, parent_at=0))
        number = self._last + 1
        key = f"{_CHANGES}{_quoted(self._conversation)}/{number:010}/{_handle_of(record)}"
        rows.append((key, ENCODER.encode(record)))
        if content is not None:
            rows.append((f"{_TEXTS}{content.hash}", New(content.text.encode())))
        if isinstance(record, DeleteRecord):
            rows.append((_DEBT, b""))
        self._storage.enqueue(rows)
        self._last, self._started = number, True

    def fork(self, conversation: str, at: datetime) -> ConversationJournal:
        """Return the journal of a conversation that begins with everything this one has recorded."""
        if not self._started:
            return type(self)(self._storage, conversation)
        self._storage.enqueue([_start_row(conversation, at, parent=self._conversation, parent_at=self._last)])
        # The child's own numbers go on from here, so that the order of all changes that it sees is one.
        return type(self)(self._storage, conversation, last=self._last, started=True)


async def load(storage: Storage, conversation: str, settings: DescriptorSettings) -> tuple[Shelf, ConversationJournal]:
    """
    Return what a conversation holds, and the journal that goes on with it.

    What is damaged is on the shelf as such, and everything else is there.

    Args:
        storage: The store.
        conversation: The name; one that is new holds nothing.
        settings: For the shelf.

    Raises:
        StoreDamaged: It cannot be told whether it is a fork, and of what.
        StoreError: The store cannot be read.

    """
    changes: dict[int, _Change] = {}
    name: str | None = conversation
    until: int | None = None
    started = False
    seen: set[str] = set()
    while name is not None and name not in seen:
        seen.add(name)
        key = start_key(name)
        row = (await storage.read([key])).get(key)
        own = await _changes_of(storage, name, until=until)
        changes |= {change.number: change for change in own}
        started = started or row is not None or bool(own)
        start = _start_of(row)
        if isinstance(start, DamagedRow):
            raise StoreDamaged(
                f"the beginning of the conversation {conversation!r:.80} is damaged: {start.reason}",
                file=str(storage.directory),
                findings=(key,),
                hint="open another conversation; check() lists what is damaged",
            )
        if start is None or start.parent is None:
            break
        name, until = start.parent, start.parent_at if until is None else min(until, start.parent_at)
    ordered = [changes[number] for number in sorted(changes)]
    shelf = Shelf(settings)
    _replay(shelf, ordered, await _texts(storage, ordered))
    last = ordered[-1].number if ordered else 0
    return shelf, ConversationJournal(storage, conversation, last=last, started=started)


async def missing_texts(storage: Storage) -> list[tuple[str, str]]:
    """Return the keys of texts that are gone, each with that of a change by which it can be reached."""
    known = await _Known.read(storage)
    texts = set(await storage.keys(_TEXTS))
    return [(text, change) for text, change in known.reachable().items() if text not in texts]


async def reclaim(storage: Storage) -> int:
    """
    Delete the texts that no conversation can reach any more, if anything was deleted, and return how many.

    Where a row cannot be read, nothing is deleted: it may name any text.

    Raises:
        StoreError: The store cannot be read or written.

    """
    if _DEBT not in await storage.read([_DEBT]):
        return 0
    # Reading all of it takes a while, in which others may write: what they add is looked at in the end.
    known = await _Known.read(storage)
    texts = set(await storage.keys(_TEXTS))
    if known.unreadable:
        return 0
    unreachable = texts - known.reachable().keys()

    def delete(rows: Rows) -> int:
        added = [_read(key, rows.get(key)) for key in rows.keys(_CHANGES) if key not in known.keys]
        if any(change is None or isinstance(change.record, DamagedRow) for change in added):
            return 0
        named = {f"{_TEXTS}{digest}" for change in added if change and (digest := change.hash) is not None}
        doomed = unreachable - named
        for key in doomed:
            rows.delete(key)
        rows.delete(_DEBT)
        return len(doomed)

    return await storage.transact(delete)


@attrs.frozen
class _Change:
    """
    A row of changes.

    Args:
        conversation: Its name, as it is in keys.
        number: Its place in the order.
        handle: What it is about.
        record: What it says, or what is wrong with it.

    """

    conversation: str
    number: int
    handle: str
    record: Record | DamagedRow

    @property
    def hash(self) -> str | None:
        """The text that it names, None where it names none."""
        return self.record.hash if isinstance(self.record, RefRecord | FdRecord) else None


@attrs.frozen
class _Known:
    """
    All conversations and changes of a store at one moment.

    Args:
        keys: The keys of all changes.
        changes: The changes that can be read, by key.
        forks: By a conversation's name in keys, its forks and at which number each was made.
        unreadable: Whether a row cannot be read.

    """

    keys: frozenset[str]
    changes: Mapping[str, _Change]
    forks: Mapping[str, list[tuple[str, int]]]
    unreadable: bool

    @classmethod
    async def read(cls, storage: Storage) -> _Known:
        starts = await storage.keys(_STARTS)
        keys = await storage.keys(_CHANGES)
        rows = await storage.read([*starts, *keys])
        forks: dict[str, list[tuple[str, int]]] = {}
        unreadable = False
        for key in starts:
            start = _start_of(rows.get(key))
            if isinstance(start, DamagedRow):
                unreadable = True
            elif start is not None and start.parent is not None:
                forks.setdefault(_quoted(start.parent), []).append((key.removeprefix(_STARTS), start.parent_at))
        changes: dict[str, _Change] = {}
        for key in keys:
            change = _read(key, rows.get(key))
            if change is None or isinstance(change.record, DamagedRow):
                unreadable = True
            else:
                changes[key] = change
        return cls(frozenset(keys), changes, forks, unreadable)

    def reachable(self) -> dict[str, str]:
        """Return the keys of all texts that a conversation still holds, each with that of a change that names it."""
        deleted = {
            (change.conversation, change.handle): change.number
            for change in self.changes.values()
            if isinstance(change.record, DeleteRecord)
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
    record = StartRecord(name=conversation, created_at=at, parent=parent, parent_at=parent_at, version=1)
    return start_key(conversation), ENCODER.encode(record)


def _start_of(row: bytes | DamagedRow | None) -> StartRecord | DamagedRow | None:
    if not isinstance(row, bytes):
        return row
    try:
        return START_DECODER.decode(row)
    except msgspec.MsgspecError as error:
        return DamagedRow(f"no record of this version: {error}")


def _handle_of(record: Record) -> str:
    if isinstance(record, RefRecord):
        return f"ref:{record.id}@{record.version}"
    return f"fd:{record.number}" if isinstance(record, FdRecord) else record.handle


async def _changes_of(storage: Storage, conversation: str, *, until: int | None) -> list[_Change]:
    keys = await storage.keys(f"{_CHANGES}{_quoted(conversation)}/")
    changes = [_read(key, row) for key, row in (await storage.read(keys)).items()]
    return [change for change in changes if change is not None and (until is None or change.number <= until)]


def _read(key: str, row: bytes | DamagedRow | None) -> _Change | None:
    """Return a row as a change, None where even its key is none of ours; `Storage.check` reports such rows."""
    parts = _CHANGE_KEY.fullmatch(key)
    if parts is None:
        return None
    record: Record | DamagedRow
    if isinstance(row, bytes):
        try:
            record = DECODER.decode(row)
        except msgspec.MsgspecError as error:
            record = DamagedRow(f"no record of this version: {error}")
    else:
        record = DamagedRow("it is gone") if row is None else row
    return _Change(parts["conversation"], int(parts["number"]), parts["handle"], record)


async def _texts(storage: Storage, changes: Iterable[_Change]) -> Mapping[str, bytes | DamagedRow]:
    """Read the texts of what was not deleted."""
    changes = list(changes)
    gone = _deleted(changes)
    hashes = {change.hash: None for change in changes if change.hash is not None and change.handle not in gone}
    rows = await storage.read([f"{_TEXTS}{digest}" for digest in hashes])
    return {key.removeprefix(_TEXTS): row for key, row in rows.items()}


def _deleted(changes: Iterable[_Change]) -> set[str]:
    return {change.handle for change in changes if isinstance(change.record, DeleteRecord)}


def _replay(shelf: Shelf, changes: Iterable[_Change], texts: Mapping[str, bytes | DamagedRow]) -> None:
    contents: dict[str, Content | str] = {}
    changes = list(changes)
    gone = _deleted(changes)
    for change in changes:
        record = change.record
        if isinstance(record, DamagedRow):
            shelf.put_damaged(change.handle, record.reason)
        elif isinstance(record, DeleteRecord):
            shelf.delete(record.handle, record.at)
        elif change.handle not in gone:
            content = contents.get(record.hash)
            if content is None:
                content = contents[record.hash] = _content(texts.get(record.hash), record.hash)
            if isinstance(content, str):
                shelf.put_damaged(change.handle, content)
            else:
                shelf.put(entry_of(record, content))


def _content(row: bytes | DamagedRow | None, digest: str) -> Content | str:
    """Return a text, or what is wrong with it."""
    if not isinstance(row, bytes):
        return "its text is missing" if row is None else row.reason
    try:
        content = Content.of(row.decode())
    except ValueError:
        return "its text is no UTF-8"
    return content if content.hash == digest else "its text is another"
