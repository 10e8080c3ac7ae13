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
from mama_structs._internal.offload import InputSize, run_inline_or_in_thread
from mama_structs.errors import InvalidArgument, StoreDamaged, repr_short
from mama_structs.provenance import UNKNOWN_ORIGIN
from mama_structs.refs.store.entries import DamagedEntry, DeletedEntry, Descriptor, Entries, Entry, Ref
from mama_structs.refs.store.text import TEXT_MIME_TYPE, Content
from mama_structs.settings import DescriptorSettings
from mama_structs.storage.sealed_rows import DamagedValue as DamagedRow
from mama_structs.storage.sealed_rows import NewValue, PreparedChanges, RowChange, Rows, Snapshot
from mama_structs.storage.sqlite_store import RowStorage

R = TypeVar("R")

MAX_NAME_CHARS: Final = 200
# Keys in the default namespace omit the namespace, so that stores from before namespaces remain readable.
_DEFAULT_NAMESPACE: Final = "default"
START_PREFIX: Final = "conversations/"
TEXT_PREFIX: Final = "texts/"
CHANGE_PREFIX: Final = "refs/"
USED_PREFIX: Final = "used/"
RECALL_LOG_PREFIX: Final = "told/"
ROW_PREFIXES: Final = (START_PREFIX, USED_PREFIX, CHANGE_PREFIX, RECALL_LOG_PREFIX)
"""Key prefixes of the rows of conversations. A key part follows each of them."""
RECLAIM_PENDING_KEY: Final = "deleted"
# The store limits the length of keys, so a longer part is replaced with its hash.
_MAX_KEY_PART_CHARS: Final = 600
_MAX_SUGGESTIONS: Final = 5
_CHANGE_KEY: Final = re.compile(
    r"refs/(?P<conversation>[^/]+)/(?P<number>\d{10,18})"
    r"/(?P<handle>fd:[1-9]\d{0,17}|ref:[A-Za-z0-9][A-Za-z0-9_.-]{0,400}@[1-9]\d{0,17})"
)
_CONVERSATION_ROW_KEY: Final = re.compile(r"(?:conversations|used|refs|told)/(?P<part>[^/]+)")
_PUNYCODE_MARKER: Final = "xn--"


@attrs.frozen
class ConversationKey:
    """Identity of a conversation: a namespace, and a name that is unique in this namespace."""

    namespace: str
    name: str

    @property
    def key_part(self) -> str:
        """The part of row keys that identifies this conversation. Unique, and ASCII only."""
        # `quote` emits "%" only before two hex digits, so no quoted name contains the markers "%%" and "%.".
        name = quote(self.name, safe="")
        if self.namespace == _DEFAULT_NAMESPACE:
            return _bound_key_part(name, "%%", self.name)
        whole = f"{quote(self.namespace, safe='')}%.{name}"
        return _bound_key_part(whole, "%.", whole)

    @property
    def lock_name(self) -> str:
        """Unique name of the lock that a session holds while the conversation is open."""
        # Names and namespaces cannot contain surrogates, so a surrogate is an unambiguous separator.
        return self.name if self.namespace == _DEFAULT_NAMESPACE else f"{self.namespace}\ud800{self.name}"

    @property
    def start(self) -> str:
        """The key of the start row."""
        return f"{START_PREFIX}{self.key_part}"

    @property
    def used_key(self) -> str:
        """The key of the row with the time of the last use."""
        return f"{USED_PREFIX}{self.key_part}"

    @property
    def recall_log_prefix(self) -> str:
        """The key prefix of the recall log rows."""
        return f"{RECALL_LOG_PREFIX}{self.key_part}/"

    @property
    def changes(self) -> str:
        """The key prefix of the changes."""
        return f"{CHANGE_PREFIX}{self.key_part}/"


def parse_conversation_part(key: str) -> str | None:
    """Return the conversation part of a row key, or None for a row without one."""
    found = _CONVERSATION_ROW_KEY.match(key)
    return found["part"] if found else None


def key_part_prefix(namespace: str) -> str:
    """Return the text with which the key parts of a namespace begin, empty for the default namespace."""
    return "" if namespace == _DEFAULT_NAMESPACE else f"{quote(namespace, safe='')}%."


def is_key_part_of(part: str, namespace: str) -> bool:
    """Return True if a key part shows that its conversation belongs to a namespace. A hashed part does not."""
    if namespace == _DEFAULT_NAMESPACE:
        return "%." not in part
    return part.startswith(key_part_prefix(namespace))


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """Base class of the stored records of a conversation's changes."""


class DeleteRecord(_Record, frozen=True, kw_only=True, tag="delete"):
    """Records that a version of a ref, or a descriptor, was deleted."""

    handle: str
    at: datetime


class StartRecord(_Record, frozen=True, kw_only=True, tag="start", omit_defaults=True):
    """Start of a conversation. A fork inherits *parent*'s changes up to number *parent_at*."""

    name: str
    created_at: datetime
    parent: str | None
    parent_at: int
    version: Literal[1]
    # Omitted for the default namespace, so that earlier versions can read the row.
    # Earlier versions reject other namespaces, because they would look for the parent in the wrong one.
    namespace: str = _DEFAULT_NAMESPACE
    # Set only if it differs from *namespace*, because the parent or the fork was moved.
    parent_namespace: str | None = None

    @property
    def key(self) -> ConversationKey:
        """The key of the conversation that was started."""
        return ConversationKey(self.namespace, self.name)

    @property
    def parent_key(self) -> ConversationKey | None:
        """The key of the parent, or None if the conversation is not a fork."""
        return None if self.parent is None else ConversationKey(self.parent_namespace or self.namespace, self.parent)

    def with_key(
        self, key: ConversationKey, parent: ConversationKey | None, *, parent_at: int | None = None
    ) -> StartRecord:
        """Return a copy of the record with another key and parent. *parent_at* is replaced only if given."""
        return StartRecord(
            name=key.name,
            created_at=self.created_at,
            parent=parent.name if parent else None,
            parent_at=self.parent_at if parent_at is None else parent_at,
            version=self.version,
            namespace=key.namespace,
            parent_namespace=parent.namespace if parent and parent.namespace != key.namespace else None,
        )


# Defaults of fields that rows of earlier versions lack.
_ADDED_FIELD_DEFAULTS: Final = {"mime_type": TEXT_MIME_TYPE, "origin": UNKNOWN_ORIGIN, "trust": UNKNOWN_ORIGIN}
# Stored keys that differ from their attribute names, by attribute name.
_STORED_NAMES: Final = {"is_complete": "complete"}


def _make_record_class(entry: type[Entry], op: str) -> type[_Record]:
    """Create the record class for an entry class. It has the same fields, but *hash* replaces *content*."""
    hints = get_type_hints(entry)
    names = [field.name for field in attrs.fields(entry) if field.name not in {"content", *_ADDED_FIELD_DEFAULTS}]
    # Omit fields that have their default value, so that an earlier version can read the row.
    later = [(name, hints[name], default) for name, default in _ADDED_FIELD_DEFAULTS.items() if name in hints]
    fields = [*((name, hints[name]) for name in names), ("hash", str), *later]
    made = msgspec.defstruct(
        f"{entry.__name__}Record",
        fields,
        bases=(_Record,),
        tag=op,
        rename=_STORED_NAMES,
        frozen=True,
        kw_only=True,
        omit_defaults=True,
    )
    return cast("type[_Record]", made)


_RECORD_CLASSES: Final = {Ref: _make_record_class(Ref, "ref"), Descriptor: _make_record_class(Descriptor, "fd")}
ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Union[*_RECORD_CLASSES.values(), DeleteRecord])
_START_DECODER: Final = msgspec.json.Decoder(StartRecord)


def _to_record(entry: Entry) -> _Record:
    kind = type(entry)
    fields = {field.name: getattr(entry, field.name) for field in attrs.fields(kind) if field.name != "content"}
    return _RECORD_CLASSES[kind](**fields, hash=entry.content.hash)


def _to_entry(record: _Record, content: Content) -> Entry:
    kind: type[Entry] = next(kind for kind, record_type in _RECORD_CLASSES.items() if type(record) is record_type)
    fields = {name: value for name, value in msgspec.structs.asdict(record).items() if name != "hash"}
    return kind(**fields, content=content)


def check_conversation_name(name: object) -> str:
    """Return a valid conversation name, or raise `InvalidArgument`."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidArgument(
            f"conversation must be a name of 1 to {MAX_NAME_CHARS} characters, got {repr_short(name)}"
        )
    _check.check_encodable("conversation", name)
    return name


# The change rows of one ancestor, and the highest change number that a fork inherits from it.
AncestorRows = tuple[Sequence[tuple[str, bytes | DamagedRow]], float]


@attrs.frozen
class PreparedChangeRows:
    """Serialized rows of some changes, and the state of the log for which they were numbered."""

    changes: PreparedChanges
    last: int
    is_started: bool
    count: int


class ConversationLog:
    """
    Numbers the changes of one conversation, and adds them to the store's write queue.

    Numbers continue after *last*.
    """

    def __init__(self, storage: RowStorage, key: ConversationKey, *, last: int = 0, started: bool = False) -> None:
        self._storage = storage
        self._key = key
        self._last = last
        self.is_started: bool = started

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Enqueue an entry with its text, or a deletion, in one transaction. Enqueue nothing on an error."""
        self.put_prepared(self.prepare([(handle, slot)]))

    def prepare(self, changes: Sequence[tuple[str, Entry | DeletedEntry]]) -> PreparedChangeRows:
        """Serialize changes as rows, and number them after the last enqueued change. May run in any thread."""
        last, is_started = self._last, self.is_started
        rows: list[tuple[str, RowChange]] = []
        for number, (handle, slot) in enumerate(changes, last + 1):
            record: _Record
            beside: tuple[str, RowChange]
            if isinstance(slot, DeletedEntry):
                at, record, beside = slot.at, DeleteRecord(handle=handle, at=slot.at), (RECLAIM_PENDING_KEY, b"")
            else:
                at, record = slot.created_at, _to_record(slot)
                beside = f"{TEXT_PREFIX}{slot.content.hash}", NewValue(slot.content.data)
            if not rows and not is_started:
                rows.append(_start_row(self._key, at))
            rows += (f"{self._key.changes}{number:010}/{_encode_handle(handle)}", ENCODER.encode(record)), beside
        return PreparedChangeRows(PreparedChanges.from_rows(rows), last, is_started, len(changes))

    def follows(self, prepared: PreparedChangeRows) -> bool:
        """Return True if no change was enqueued after *prepared* was numbered, so that its numbers are valid."""
        return (self._last, self.is_started) == (prepared.last, prepared.is_started)

    def put_prepared(self, prepared: PreparedChangeRows) -> None:
        """Enqueue prepared changes in one transaction. Enqueue nothing on an error."""
        if prepared.count:
            self._storage.enqueue(prepared.changes, namespace=self._key.namespace)
            self._last, self.is_started = prepared.last + prepared.count, True

    def write_recall_rows(self, rows: Mapping[str, RowChange], at: datetime) -> None:
        """Enqueue recall log rows, keyed by subject hash, unless the store is read-only."""
        # Recall only reads, so on a read-only store it must not enqueue rows that would fail the next flush or close.
        if self._storage.is_read_only:
            return
        begun = [] if self.is_started else [_start_row(self._key, at)]
        told = [(f"{self._key.recall_log_prefix}{name}", row) for name, row in rows.items()]
        self._storage.enqueue([*begun, *told], namespace=self._key.namespace)
        self.is_started = True

    def fork(self, name: str, at: datetime) -> Self:
        """Start a conversation that inherits all changes recorded so far, and return its log."""
        key = attrs.evolve(self._key, name=name)
        if not self.is_started:
            return type(self)(self._storage, key)
        start = _start_row(key, at, parent=self._key.name, parent_at=self._last)
        self._storage.enqueue([start], namespace=key.namespace)
        # The fork continues the numbers of its parent, so inherited and own changes form one sequence.
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
    # All rows are on disk, because the previous holder flushed before it released the lock.
    # Read them in one transaction, because a parent may be moved concurrently.
    started, generations = await storage.run_read(
        lambda rows: read_lineage(rows, key, storage.location), namespace=key.namespace
    )
    load = InputSize(items=sum(len(rows) for rows, _ in generations))
    changes = await run_inline_or_in_thread(load, parse_changes, generations)
    log = ConversationLog(storage, key, last=changes[-1].number if changes else 0, started=started or bool(changes))
    return await _replay(storage, key.namespace, changes, settings), log


def read_recall_rows(rows: Snapshot, key: ConversationKey) -> dict[str, bytes | DamagedRow]:
    """Return the recall log rows of a conversation, keyed by the hash of their subject."""
    return {name.removeprefix(key.recall_log_prefix): row for name, row in rows.items(key.recall_log_prefix)}


def find_ancestors(rows: Snapshot, key: ConversationKey) -> list[ConversationKey]:
    """Return the conversations from which a fork was made, the parent first, up to another namespace."""
    found = [key]
    while isinstance(start := decode_start_row(rows.get(found[-1].start)), StartRecord):
        parent = start.parent_key
        if parent is None or parent.namespace != key.namespace or parent in found:
            break
        found.append(parent)
    return found[1:]


def parse_changes(generations: Sequence[AncestorRows]) -> list[_Change]:
    """Parse the rows of a conversation and its ancestors into one list of changes, ordered by number."""
    changes: dict[int, _Change] = {}
    for rows, until in generations:
        read = itertools.starmap(parse_change, rows)
        changes |= {change.number: change for change in read if 0 < change.number <= until}
    return [changes[number] for number in sorted(changes)]


def read_lineage(rows: Snapshot, key: ConversationKey, directory: str) -> tuple[bool, list[AncestorRows]]:
    """
    Return the change rows of a conversation and its ancestors.

    Returns:
        True if the conversation has a start row, and the rows: its own first, then those of each ancestor.

    """
    found: list[AncestorRows] = []
    until = math.inf
    seen: set[ConversationKey] = set()
    one: ConversationKey | None = key
    while one is not None and one not in seen:
        seen.add(one)
        found.append((rows.items(one.changes), until))
        row = rows.get(one.start)
        if row is None:
            break
        start = require_start_row(row, one, directory)
        one, until = start.parent_key, min(until, start.parent_at)
    return rows.get(key.start) is not None, found


def require_start_row(row: bytes | DamagedRow, key: ConversationKey, directory: str) -> StartRecord:
    """Parse and return the start row of a conversation. Raise `StoreDamaged` if it is unreadable."""
    start = decode_start_row(row)
    if isinstance(start, DamagedRow):
        raise StoreDamaged(
            f"the beginning of the conversation {key.name!r:.80} is damaged: {start.reason}",
            file=directory,
            findings=(key.start,),
            hint="open another conversation; admin.check() lists the damage",
        )
    return start


def find_text_keys(rows: Mapping[str, bytes]) -> dict[str, str]:
    """Return the keys of all texts that the rows refer to, each with the key of a change that refers to it."""
    return _ChangeIndex.from_rows(rows).find_reachable_texts()


async def missing_texts(storage: RowStorage) -> list[tuple[str, str]]:
    """Return the keys of texts that the store lacks, each with the key of a change that refers to it."""
    found: list[tuple[str, str]] = []
    for space in await storage.storage_namespaces():
        known = await _ChangeIndex.read(storage, space)
        texts = set(await storage.keys(TEXT_PREFIX, namespace=space))
        load = InputSize(items=len(known.changes))
        found += await run_inline_or_in_thread(load, _find_missing, known, texts)
    return found


def _find_missing(known: _ChangeIndex, texts: AbstractSet[str]) -> list[tuple[str, str]]:
    return [(text, change) for text, change in known.find_reachable_texts().items() if text not in texts]


async def reclaim(storage: RowStorage, namespace: str) -> int:
    """
    Delete the texts of a namespace that no conversation can reach, and return their number.

    In a directory, which shares texts between namespaces, the rows of all namespaces are checked. Nothing is deleted
    if no deletion is recorded, if a conversation row is unreadable, if the parent of a fork is missing, or if the
    server may hide rows from this role.
    """
    if RECLAIM_PENDING_KEY not in await storage.read([RECLAIM_PENDING_KEY], namespace=namespace):
        return 0
    # Other writers may add changes during this read, so the transaction below checks the new changes.
    known = await _ChangeIndex.read(storage, namespace)
    texts = set(await storage.keys(TEXT_PREFIX, namespace=namespace))
    if known.has_unreadable_rows:
        return 0
    load = InputSize(items=len(known.changes))
    unreachable = await run_inline_or_in_thread(load, lambda: texts - known.find_reachable_texts().keys())

    def delete(rows: Rows) -> int:
        if not rows.is_complete:
            return 0
        added = [parse_change(key, rows.get(key)) for key in rows.keys(CHANGE_PREFIX) if key not in known.changes]
        if any(isinstance(change.record, DamagedRow) for change in added):
            return 0
        doomed = unreachable - {f"{TEXT_PREFIX}{change.hash}" for change in added}
        for key in doomed:
            rows.delete(key)
        rows.delete(RECLAIM_PENDING_KEY)
        return len(doomed)

    return await storage.transact(delete, namespaces=[namespace])


@attrs.frozen
class _Change:
    """
    A parsed change row.

    *conversation* is the key part of the conversation. *record* is a `DamagedRow` if the row is unreadable.
    """

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
        """The MIME type of the text that the change refers to."""
        return getattr(self.record, "mime_type", TEXT_MIME_TYPE)

    @property
    def source(self) -> str:
        """The source of the text, or an empty string if the row has none."""
        return getattr(self.record, "source", "")

    @property
    def record_without_source(self) -> _Record | None:
        """The record with source and attributes removed, or None if it has neither."""
        words = {"attributes": {}, "source": ""}
        said = {name: none for name, none in words.items() if getattr(self.record, name, none) != none}
        return msgspec.structs.replace(self.record, **said) if said and isinstance(self.record, _Record) else None

    @property
    def at(self) -> datetime | None:
        """The time of the change, or None if the row is unreadable."""
        return getattr(self.record, "created_at", None) or getattr(self.record, "at", None)


@attrs.frozen
class _ChangeIndex:
    """
    All changes of a namespace or directory, by key, and the forks of each conversation.

    Forks are pairs: the key part of the fork, and the number of the last inherited change.
    """

    changes: Mapping[str, _Change]
    forks: Mapping[str, list[tuple[str, int]]]
    has_unreadable_rows: bool  # True if a row is unreadable, or if the parent of a fork is missing.

    @classmethod
    async def read(cls, storage: RowStorage, namespace: str) -> _ChangeIndex:
        keys = [
            key for prefix in (START_PREFIX, CHANGE_PREFIX) for key in await storage.keys(prefix, namespace=namespace)
        ]
        rows = await storage.read(keys, namespace=namespace)
        load = InputSize(items=len(keys))
        return await run_inline_or_in_thread(load, cls.from_rows, {key: rows.get(key) for key in keys})

    @classmethod
    def from_rows(cls, rows: Mapping[str, bytes | DamagedRow | None]) -> _ChangeIndex:
        """Parse the start rows and changes of conversations."""
        begun = {key: decode_start_row(row) for key, row in rows.items() if key.startswith(START_PREFIX)}
        changes = {key: parse_change(key, row) for key, row in rows.items() if key.startswith(CHANGE_PREFIX)}
        forks: dict[str, list[tuple[str, int]]] = {}
        has_orphan = False
        for key, start in begun.items():
            if isinstance(start, StartRecord) and start.parent_key is not None:
                forks.setdefault(start.parent_key.key_part, []).append(
                    (key.removeprefix(START_PREFIX), start.parent_at)
                )
                has_orphan |= start.parent_key.start not in begun
        records = [*begun.values(), *(change.record for change in changes.values())]
        return cls(changes, forks, has_orphan or any(isinstance(record, DamagedRow) for record in records))

    def find_reachable_texts(self) -> dict[str, str]:
        """Return the keys of all texts in use by a conversation, each with the key of a change."""
        deleted = {
            (change.conversation, change.handle): change.number
            for change in self.changes.values()
            if isinstance(change.record, DeleteRecord)
        }
        found: dict[str, str] = {}
        for key, change in self.changes.items():
            text = f"{TEXT_PREFIX}{change.hash}"
            if change.hash is not None and text not in found and self._is_in_use(change, deleted):
                found[text] = key
        return found

    def _is_in_use(self, change: _Change, deleted: Mapping[tuple[str, str], int]) -> bool:
        """Return True if the entry was not deleted, or is still in a fork that was made before the deletion."""
        waiting = [change.conversation]
        while waiting:
            conversation = waiting.pop()
            gone = deleted.get((conversation, change.handle))
            if gone is None:
                return True
            waiting += [fork for fork, at in self.forks.get(conversation, ()) if change.number <= at < gone]
        return False


def _bound_key_part(part: str, mark: str, hashed: str) -> str:
    return part if len(part) <= _MAX_KEY_PART_CHARS else f"{mark}{hashlib.sha256(hashed.encode()).hexdigest()}"


def _start_row(
    key: ConversationKey, at: datetime, *, parent: str | None = None, parent_at: int = 0
) -> tuple[str, bytes]:
    record = StartRecord(
        name=key.name, created_at=at, parent=parent, parent_at=parent_at, version=1, namespace=key.namespace
    )
    return key.start, ENCODER.encode(record)


def _decode_row(decode: Callable[[bytes], R], row: bytes | DamagedRow | None) -> R | DamagedRow:
    if not isinstance(row, bytes):
        return DamagedRow("it is gone") if row is None else row
    try:
        return decode(row)
    except msgspec.MsgspecError as error:
        return DamagedRow(f"no record of this version: {error}")


def decode_start_row(row: bytes | DamagedRow | None) -> StartRecord | DamagedRow:
    """Parse a start row."""
    return _decode_row(_START_DECODER.decode, row)


def parse_change(key: str, row: bytes | DamagedRow | None) -> _Change:
    """
    Parse a change row. If the key is invalid, the number is 0.

    `RowStorage.check` reports such rows.
    """
    parts = _CHANGE_KEY.fullmatch(key)
    if parts is None:
        return _Change("", 0, "", DamagedRow("its key is none of ours"))
    handle = _decode_handle(parts["handle"])
    return _Change(parts["conversation"], int(parts["number"]), handle, _decode_row(_DECODER.decode, row))


def _encode_handle(handle: str) -> str:
    """Encode a handle in ASCII: an id with other characters in Punycode, marked with ``xn--``."""
    kind, _, name = handle.partition(":")
    ref_id, at, version = name.partition("@")
    if handle.isascii() and not ref_id.startswith(_PUNYCODE_MARKER):
        return handle
    return f"{kind}:{_PUNYCODE_MARKER}{ref_id.encode('punycode').decode()}{at}{version}"


def _decode_handle(text: str) -> str:
    """Decode a handle that `_encode_handle` encoded; return any other handle unchanged."""
    kind, _, name = text.partition(":")
    ref_id, at, version = name.partition("@")
    if not ref_id.startswith(_PUNYCODE_MARKER):
        return text
    try:
        handle = f"{kind}:{ref_id.removeprefix(_PUNYCODE_MARKER).encode().decode('punycode')}{at}{version}"
    except UnicodeError:
        return text
    # Ids from before Unicode ids may start with "xn--" without being Punycode, so verify the decoded id by encoding it.
    return handle if _encode_handle(handle) == text else text


async def _replay(
    storage: RowStorage, namespace: str, changes: Sequence[_Change], settings: DescriptorSettings
) -> Entries:
    """Load the texts of the changes, apply the changes in order, and return the resulting entries."""
    gone, kept = await run_inline_or_in_thread(InputSize(items=len(changes)), _find_kept, changes)
    rows = await storage.read(list({f"{TEXT_PREFIX}{digest}" for digest, _ in kept}), namespace=namespace)
    load = InputSize(sum(len(row) for row in rows.values() if isinstance(row, bytes)), len(changes))
    return await run_inline_or_in_thread(load, _build_entries, changes, rows, gone, kept, settings)


def _find_kept(changes: Sequence[_Change]) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the deleted handles, and the hashes and MIME types of the texts of the other ones."""
    gone = {change.handle for change in changes if isinstance(change.record, DeleteRecord)}
    held = (change for change in changes if change.hash is not None and change.handle not in gone)
    return gone, {(change.hash or "", change.mime_type) for change in held}


def read_entries(rows: Snapshot, key: ConversationKey, directory: str) -> Callable[[DescriptorSettings], Entries]:
    """
    Read the changes and texts of a conversation in one snapshot.

    Return a function that builds the entries, which takes longer and needs no snapshot.
    """
    changes = parse_changes(read_lineage(rows, key, directory)[1])
    gone, kept = _find_kept(changes)
    texts = rows.get_many(list({f"{TEXT_PREFIX}{digest}" for digest, _ in kept}))
    return lambda settings: _build_entries(changes, texts, gone, kept, settings)


def _build_entries(
    changes: Sequence[_Change],
    rows: Mapping[str, bytes | DamagedRow],
    gone: AbstractSet[str],
    kept: AbstractSet[tuple[str, str]],
    settings: DescriptorSettings,
) -> Entries:
    entries = Entries(settings)
    contents = {one: _parse_content(rows.get(f"{TEXT_PREFIX}{one[0]}"), *one) for one in kept}
    for change in changes:
        record = change.record
        if isinstance(record, DamagedRow):
            entries.put(change.handle, DamagedEntry(record.reason))
        elif isinstance(record, DeleteRecord):
            entries.put(record.handle, DeletedEntry(record.at))
        elif change.hash is not None and change.handle not in gone:
            content = contents[change.hash, change.mime_type]
            slot = DamagedEntry(content) if isinstance(content, str) else _to_entry(record, content)
            entries.put(change.handle, slot)
    return entries


def _parse_content(row: bytes | DamagedRow | None, digest: str, mime_type: str) -> Content | str:
    """Return the content of a text row, or a description of the damage if the row is missing or damaged."""
    if not isinstance(row, bytes):
        return "its text is missing" if row is None else row.reason
    try:
        content = Content.from_text(row.decode()) if mime_type == TEXT_MIME_TYPE else Content.from_bytes(row, mime_type)
    except ValueError:
        return "its text is no UTF-8"
    return content if content.hash == digest else "its text is another"
