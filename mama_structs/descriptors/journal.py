"""
A conversation's changes on disk: one row a change, and each text once.

Rows, all in the session's one store:

* ``conversations/<name>``: how the conversation began (`StartRecord`);
* ``refs/<name>/<number>/<handle>``: its changes, numbered from 1; a fork begins with those of its parent, up to the
  number at which it was made;
* ``texts/<hash>``: texts in UTF-8, shared by all conversations.

The handle stands in the key, so that a damaged row still says what it was about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final
from urllib.parse import quote

import attrs
import msgspec

from mama_structs.descriptors.content import Content
from mama_structs.descriptors.entries import Descriptor, Ref
from mama_structs.descriptors.records import (
    DECODER,
    ENCODER,
    START_DECODER,
    DeleteRecord,
    FdRecord,
    Record,
    RefRecord,
    StartRecord,
)
from mama_structs.descriptors.shelf import Shelf
from mama_structs.errors import InvalidArgument
from mama_structs.settings import DescriptorSettings
from mama_structs.storage import Change, New, Rows, Storage
from mama_structs.storage import Damaged as DamagedRow

MAX_NAME: Final = 200
STARTS: Final = "conversations/"
TEXTS: Final = "texts/"
CHANGES: Final = "refs/"


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
    except UnicodeEncodeError as error:
        raise InvalidArgument("conversation must be text that UTF-8 can hold, and has a lone surrogate") from error
    return name


def start_key(conversation: str) -> str:
    """Return the key of a conversation's first row."""
    return f"{STARTS}{_quoted(conversation)}"


def _changes_prefix(conversation: str) -> str:
    return f"{CHANGES}{_quoted(conversation)}/"


def _quoted(conversation: str) -> str:
    return quote(conversation, safe="")


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
        # Whether texts may have become unreachable since the store was opened.
        self.deleted = False

    @property
    def conversation(self) -> str:
        """The conversation's name."""
        return self._conversation

    def record(self, record: Record, content: Content | None) -> None:
        """Take a change, with the text that it names; both are written in one transaction."""
        rows: list[tuple[str, Change]] = []
        if not self._started:
            at = record.at if isinstance(record, DeleteRecord) else record.created_at
            rows.append(_start_row(self._conversation, at, parent=None, parent_at=0))
            self._started = True
        self._last += 1
        key = f"{_changes_prefix(self._conversation)}{self._last:010}/{_handle_of(record)}"
        rows.append((key, ENCODER.encode(record)))
        if content is not None:
            rows.append((f"{TEXTS}{content.hash}", New(content.text.encode())))
        self.deleted = self.deleted or isinstance(record, DeleteRecord)
        self._storage.enqueue(rows)

    def fork(self, conversation: str, at: datetime) -> ConversationJournal:
        """Return the journal of a conversation that begins with everything this one has recorded."""
        if not self._started:
            return type(self)(self._storage, conversation)
        self._storage.enqueue([_start_row(conversation, at, parent=self._conversation, parent_at=self._last)])
        # The child's own numbers go on from here, so that the order of all changes that it sees is one.
        return type(self)(self._storage, conversation, last=self._last, started=True)


def _start_row(conversation: str, at: datetime, *, parent: str | None, parent_at: int) -> tuple[str, bytes]:
    record = StartRecord(name=conversation, created_at=at, parent=parent, parent_at=parent_at, version=1)
    return start_key(conversation), ENCODER.encode(record)


def _handle_of(record: Record) -> str:
    if isinstance(record, RefRecord):
        return f"ref:{record.id}@{record.version}"
    return f"fd:{record.number}" if isinstance(record, FdRecord) else record.handle


@attrs.frozen
class _Change:
    """A row of changes: its number, the handle in its key, and the record or what is wrong with the row."""

    number: int
    handle: str
    record: Record | DamagedRow


async def load(storage: Storage, conversation: str, settings: DescriptorSettings) -> tuple[Shelf, ConversationJournal]:
    """
    Return what a conversation holds, and the journal that goes on with it.

    What is damaged is on the shelf as such, and everything else is there.

    Args:
        storage: The store.
        conversation: The name; one that is new holds nothing.
        settings: For the shelf.

    """
    changes: dict[int, _Change] = {}
    name: str | None = conversation
    until = None
    started = False
    seen: set[str] = set()
    while name is not None and name not in seen:
        seen.add(name)
        rows = await storage.read([start_key(name)])
        for change in await _changes(storage, name, until=until):
            changes[change.number] = change
        started = started or bool(rows)
        name, until = _parent(rows.get(start_key(name)), until)
    ordered = [changes[number] for number in sorted(changes)]
    shelf = Shelf(settings)
    _replay(shelf, ordered, await _texts(storage, ordered))
    last = ordered[-1].number if ordered else 0
    return shelf, ConversationJournal(storage, conversation, last=last, started=started)


async def missing_texts(storage: Storage) -> list[tuple[str, str]]:
    """Return the keys of changes whose text is gone, each with the key of the text."""
    keys = await storage.keys(CHANGES)
    texts = set(await storage.keys(TEXTS))
    changes = [_read(key, row) for key, row in (await storage.read(keys)).items()]
    dead = {change.handle for change in changes if isinstance(change.record, DeleteRecord)}
    return [
        (key, f"{TEXTS}{change.record.hash}")
        for key, change in zip(keys, changes, strict=True)
        if isinstance(change.record, RefRecord | FdRecord)
        and change.handle not in dead
        and f"{TEXTS}{change.record.hash}" not in texts
    ]


async def reclaim(storage: Storage) -> int:
    """
    Delete the texts that no conversation can reach any more, and return how many.

    Where a change cannot be read, nothing is deleted: it may name any text.

    Raises:
        StoreError: The store cannot be written.

    """
    return await storage.transact(_delete_unreachable)


def _delete_unreachable(rows: Rows) -> int:
    parents: dict[str, list[tuple[str, int]]] = {}
    for key in rows.keys(STARTS):
        row = rows.get(key)
        name, at = _parent(row if isinstance(row, bytes) else None, None)
        if name is not None and at is not None:
            parents.setdefault(_quoted(name), []).append((key.removeprefix(STARTS), at))
    named: list[tuple[str, int, str, str]] = []
    deletes: dict[tuple[str, str], int] = {}
    for key in rows.keys(CHANGES):
        change = _read(key, rows.get(key) or b"")
        conversation = key.split("/", 2)[1]
        if isinstance(change.record, DamagedRow):
            return 0
        if isinstance(change.record, DeleteRecord):
            deletes[conversation, change.handle] = change.number
        else:
            named.append((conversation, change.number, change.handle, change.record.hash))

    def alive(conversation: str, number: int, handle: str) -> bool:
        gone = deletes.get((conversation, handle))
        if gone is None:
            return True
        return any(alive(child, number, handle) for child, at in parents.get(conversation, ()) if number <= at < gone)

    reachable = {
        f"{TEXTS}{digest}" for conversation, number, handle, digest in named if alive(conversation, number, handle)
    }
    unreachable = [key for key in rows.keys(TEXTS) if key not in reachable]
    for key in unreachable:
        rows.delete(key)
    return len(unreachable)


def _parent(row: bytes | DamagedRow | None, until: int | None) -> tuple[str | None, int | None]:
    if not isinstance(row, bytes):
        return None, None
    try:
        start = START_DECODER.decode(row)
    except msgspec.MsgspecError:
        return None, None
    return start.parent, start.parent_at if until is None else min(until, start.parent_at)


async def _changes(storage: Storage, conversation: str, *, until: int | None) -> list[_Change]:
    keys = await storage.keys(_changes_prefix(conversation))
    changes = [_read(key, row) for key, row in (await storage.read(keys)).items()]
    return [change for change in changes if until is None or change.number <= until]


def _read(key: str, row: bytes | DamagedRow) -> _Change:
    _, _, number, handle = key.split("/", 3)
    record: Record | DamagedRow
    if isinstance(row, bytes):
        try:
            record = DECODER.decode(row)
        except msgspec.MsgspecError as error:
            record = DamagedRow(f"no record of this version: {error}")
    else:
        record = row
    return _Change(int(number), handle, record)


async def _texts(storage: Storage, changes: Iterable[_Change]) -> Mapping[str, bytes | DamagedRow]:
    """Read the texts of what was not deleted."""
    changes = list(changes)
    gone = {change.handle for change in changes if isinstance(change.record, DeleteRecord)}
    hashes = {
        change.record.hash: None
        for change in changes
        if isinstance(change.record, RefRecord | FdRecord) and change.handle not in gone
    }
    rows = await storage.read([f"{TEXTS}{digest}" for digest in hashes])
    return {key.removeprefix(TEXTS): row for key, row in rows.items()}


def _replay(shelf: Shelf, changes: Iterable[_Change], texts: Mapping[str, bytes | DamagedRow]) -> None:
    contents: dict[str, Content | str] = {}
    changes = list(changes)
    gone = {change.handle for change in changes if isinstance(change.record, DeleteRecord)}
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
                shelf.put(_entry(record, content))


def _content(row: bytes | DamagedRow | None, digest: str) -> Content | str:
    """Return a text, or what is wrong with it."""
    if not isinstance(row, bytes):
        return "its text is missing" if row is None else row.reason
    try:
        content = Content.of(row.decode())
    except ValueError:
        return "its text is no UTF-8"
    return content if content.hash == digest else "its text is another"


def _entry(record: RefRecord | FdRecord, content: Content) -> Ref | Descriptor:
    if isinstance(record, FdRecord):
        return Descriptor(
            number=record.number,
            source=record.source,
            category=record.category,
            created_at=record.created_at,
            page_size=record.page_size,
            content=content,
        )
    return Ref(
        id=record.id,
        version=record.version,
        category=record.category,
        attributes=record.attributes,
        complete=record.complete,
        created_at=record.created_at,
        page_size=record.page_size,
        content=content,
    )
