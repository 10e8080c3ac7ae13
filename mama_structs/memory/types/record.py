"""Host records: values, argument checks, and their stored form as memories or notes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, ClassVar, Final, TypeAlias

import attrs
import msgspec

from mama_structs._internal import validation as _check
from mama_structs._internal.reprs import Columns, FieldReprMixin, ReprContent, ReprMixin, order_columns
from mama_structs._internal.validation import TimeInput
from mama_structs.errors import InvalidArgument, StoreDamaged
from mama_structs.memory.types.engine import Vectors
from mama_structs.memory.types.model import (
    CREATORS,
    ORIGINS,
    TEXT_SEPARATOR,
    CreatedBy,
    Memory,
    MemoryType,
    Origin,
    PreviousValue,
    RecordMetadata,
    make_slug,
    record_path,
    short_path,
)
from mama_structs.provenance import get_inserted_provenance, least_trusted

RecordPlace = tuple[tuple[str, ...], str]
"""Labels and key that identify a record."""
Labels: TypeAlias = str | Sequence[str]
"""One label or several, the outermost first."""
RecordPredicate = Callable[["Record"], bool]
"""Predicate that selects records."""

MAX_VALUE_BYTES: Final = 2**24
"""Maximum size in bytes of a value's JSON, and of all texts of a record together."""
MAX_LABELS: Final = 32
MAX_LABEL_CHARS: Final = 512
MAX_KEY_CHARS: Final = 1024
_MAX_PATH_CHARS: Final = 512

NOTE_PREFIX: Final = "record/"
"""Prefix of the names of notes that store records without text."""
INDEX_NOTE: Final = "record-index"
"""Name of the note that exists if all records of the namespace are in the index."""
VALUE_PREFIX: Final = "record-value/"
EXPIRY_PREFIX: Final = "record-expiry/"
_MAX_SLUG_CHARS: Final = 24


@attrs.frozen(kw_only=True, repr=False)
class Record(ReprMixin):
    """
    A JSON value that a host stores under labels and a key.

    Args:
        labels: Labels under which it is stored.
        key: Its key under these labels.
        value: Its value as JSON data. The containers are copies.
        version: Number of writes, starting at 1.
        created_at: When it was first written (UTC).
        updated_at: When it was last written (UTC).
        expires_at: When it expires (UTC), or None for never.
        text: Its searchable text, or None if it is not searchable.
        origin: Author of the record.
        memory_id: Memory as which searches find it, or None if it is not searchable.

    """

    _table_columns: ClassVar[Columns] = {
        "key": "text",
        "labels": "object",
        "value": "object",
        "text": "text",
        "version": "int",
        "created_at": "time",
        "updated_at": "time",
        "expires_at": "time",
        "origin": "text",
        "memory_id": "text",
    }

    labels: tuple[str, ...]
    key: str
    value: Any = attrs.field(hash=False)
    version: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    text: str | None = None
    origin: Origin = "user"
    memory_id: str | None = None

    def _repr_content(self) -> ReprContent:
        return ReprContent(
            text=self.text if self.text is not None else json.dumps(self.value, ensure_ascii=False),
            facts=(f"{self.updated_at:%Y-%m-%d}", f"version {self.version}"),
            id="/".join((*self.labels, self.key)),
            html_facts=(None if self.expires_at is None else f"until {self.expires_at:%Y-%m-%d %H:%M}",),
        )

    def _table_row(self) -> dict[str, Any]:
        return attrs.asdict(self, recurse=False)


@attrs.frozen(kw_only=True, repr=False)
class RecordHit(ReprMixin):
    """
    A record found by a search.

    Args:
        record: The record.
        score: Sort key of this result list.
        relevance: Absolute relevance, 0 to 1.
        cosine: Cosine of its best text and the query, or None if the search did not use the vector alone.

    """

    _table_columns: ClassVar[Columns] = order_columns(
        "key labels value text relevance score version updated_at expires_at origin",
        {**Record._table_columns, "score": "float", "relevance": "float", "cosine": "float"},
    )

    record: Record
    score: float
    relevance: float
    cosine: float | None = None

    def _repr_content(self) -> ReprContent:
        seen = self.record._repr_content()
        return seen._replace(facts=(f"relevance {self.relevance:.2f}", *seen.facts))

    def _table_row(self) -> dict[str, Any]:
        own = {"score": self.score, "relevance": self.relevance, "cosine": self.cosine}
        return self.record._table_row() | own


@attrs.frozen(repr=False)
class NewRecord(FieldReprMixin):
    """
    A record to write.

    Args:
        labels: Labels under which it is stored: one, or at most 32 as a sequence, each of 1 to 512 characters.
        key: Its key under these labels, of 1 to 1,024 characters.
        value: Its value as JSON data: dicts with text keys, lists, text, finite numbers, booleans, None.
        text: Searchable text. Several texts are embedded separately, and the best match counts. None for a record that
            no search finds.
        created_at: When it was created, None for now. An existing record keeps its own time.
        expires_at: When it expires; a timedelta counts from now, None means never.
        origin: Author of the record, as for `MemoryStore.save_decision`; None for the user.
        created_by: ``"user"``, ``"llm"`` or ``"system"``.
        keep_history: Whether to store the replaced value, see `RecordStore.history`.
        if_version: Write only if this is the present version, 0 for no record; None to write unconditionally.

    Raises:
        InvalidArgument: An argument is invalid.

    """

    labels: Labels
    key: str
    value: Any
    text: str | Sequence[str] | None = attrs.field(default=None, kw_only=True)
    created_at: TimeInput | None = attrs.field(default=None, kw_only=True)
    expires_at: TimeInput | None = attrs.field(default=None, kw_only=True)
    origin: Origin | None = attrs.field(default=None, kw_only=True)
    created_by: CreatedBy = attrs.field(default="user", kw_only=True)
    keep_history: bool = attrs.field(default=False, kw_only=True)
    if_version: int | None = attrs.field(default=None, kw_only=True)


@attrs.frozen(eq=False)
class PreparedRecord:
    """
    A validated record to write, with vectors if it has texts.

    If *key* is None, the record gets the next number as its key.
    """

    labels: tuple[str, ...]
    key: str | None
    value: Any
    texts: tuple[str, ...]
    created_at: datetime | None
    expires_at: datetime | None
    origin: Origin
    created_by: CreatedBy
    history: bool
    if_version: int | None
    vectors: Vectors | None = None
    mentions: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        """All searchable texts as one text, or None if there are none."""
        return TEXT_SEPARATOR.join(self.texts) if self.texts else None


# Argument checks


def check_labels(value: object, name: str = "labels") -> tuple[str, ...]:
    """Validate labels and return them. A single text is one label."""
    several = (value,) if isinstance(value, str) else value
    labels = _check.check_texts(name, several, max_items=MAX_LABELS, max_chars=MAX_LABEL_CHARS)
    size = len(record_path(labels))
    if size > _MAX_PATH_CHARS:
        raise InvalidArgument(
            f"{name} must have at most {_MAX_PATH_CHARS} characters together, percent-encoded, got {size}",
            hint="shorten them, or keep what tells them apart in the key",
        )
    return labels


def check_key(value: object, name: str = "key") -> str:
    """Validate a key and return it."""
    return _check.check_text(name, value, max_chars=MAX_KEY_CHARS)


def check_place(value: object, name: str = "place") -> RecordPlace:
    """Validate a place, which is a pair of labels and key, and return it."""
    pair = _check.check_items(name, value, item_kind="labels and a key")
    if len(pair) != 2:  # noqa: PLR2004 - a pair
        raise InvalidArgument(f"{name} must be a pair of labels and a key, got {len(pair)} items")
    return check_labels(pair[0], f"{name}[0]"), check_key(pair[1], f"{name}[1]")


def check_new_record(
    record: object, *, max_text: int, name: str = "record", now: datetime | None = None
) -> PreparedRecord:
    """
    Validate a `NewRecord`, except for checks that need the store.

    *now* is the time to which a timedelta is relative; None for the system's clock.
    """
    if not isinstance(record, NewRecord):
        raise InvalidArgument(f"{name} must be a NewRecord, got {type(record).__name__}")
    size = len(msgspec.json.encode(value := _check.check_json(f"{name}.value", record.value)))
    if size > MAX_VALUE_BYTES:
        hint = "keep a large text as a ref, and its handle here"
        raise InvalidArgument(f"{name}.value must be at most {MAX_VALUE_BYTES} bytes of JSON, got {size}", hint=hint)
    origin: Origin = "user" if record.origin is None else _check.check_choice(f"{name}.origin", record.origin, ORIGINS)
    # A tool may store texts that were inserted for handles. The provenance of these texts limits the record's origin.
    inserted = get_inserted_provenance()
    return PreparedRecord(
        labels=check_labels(record.labels, f"{name}.labels"),
        key=check_key(record.key, f"{name}.key"),
        value=value,
        texts=_check_texts(f"{name}.text", record.text, max_text),
        created_at=_check_optional_time(f"{name}.created_at", record.created_at, now=now),
        expires_at=_check_optional_time(f"{name}.expires_at", record.expires_at, now=now, in_future=True),
        origin=least_trusted([origin, *([] if inserted is None else [inserted.origin, inserted.trust])]),
        created_by=_check.check_choice(f"{name}.created_by", record.created_by, CREATORS),
        history=_check.check_bool(f"{name}.keep_history", record.keep_history),
        if_version=None if record.if_version is None else _check.check_integer(f"{name}.if_version", record.if_version),
    )


def _check_optional_time(name: str, value: object, *, now: datetime | None, in_future: bool = False) -> datetime | None:
    return None if value is None else _check.check_time(name, value, now=now, in_future=in_future)


def _check_texts(name: str, value: object, max_chars: int) -> tuple[str, ...]:
    several = () if value is None else (value,) if isinstance(value, str) else _check.check_items(name, value)
    found = tuple(_check.check_text(name, one, max_chars=max_chars, allow_empty=True) for one in several)
    if sum(map(len, found)) > MAX_VALUE_BYTES:
        raise InvalidArgument(f"{name} must have at most {MAX_VALUE_BYTES} characters together")
    return tuple(one for one in found if one.strip())


# Location of records


def record_memory_id(place: RecordPlace) -> str:
    """Return the memory id of a record with text, which is derived from labels and key only."""
    labels, key = place
    digest = sha256("\0".join(map(_length_prefixed, (*labels, key))).encode()).digest()
    number = int.from_bytes(digest[:8])
    return f"{MemoryType.RECORD.value}_{make_slug(key, max_chars=_MAX_SLUG_CHARS)}_{number:020d}_{digest[8:12].hex()}"


def _length_prefixed(part: str) -> str:
    """Return a part with a length prefix, so that the concatenation of parts is unambiguous."""
    return f"{len(part)}:{part}"


def note_name(place: RecordPlace) -> str:
    """Return the name of the note that stores a record without text."""
    return f"{NOTE_PREFIX}{short_path(*place)}"


def is_index_note(name: str) -> bool:
    """Return True if a note belongs to the index of records, which is derived from their notes."""
    return name == INDEX_NOTE or name.startswith((VALUE_PREFIX, EXPIRY_PREFIX))


class _NoteRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A record without text, as stored in its note."""

    labels: tuple[str, ...]
    key: str
    value: Any
    version: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    origin: Origin = "user"
    created_by: CreatedBy = "user"
    # Former versions that earlier commits stored in the note.
    history: tuple[PreviousValue, ...] = ()
    versions: tuple[tuple[int, int], ...] = ()


_NOTE_FIELDS: Final = [field.name for field in attrs.fields(Record) if field.name in _NoteRecord.__struct_fields__]


@attrs.frozen(eq=False)
class StoredRecord:
    """
    A stored record with its history, whether it is stored as a memory or as a note.

    *versions* has the number and the time in milliseconds of each former version that has a note of its own.
    """

    record: Record
    history: tuple[PreviousValue, ...] = ()
    created_by: CreatedBy = "user"
    memory: Memory | None = None
    versions: tuple[tuple[int, int], ...] = ()

    @property
    def place(self) -> RecordPlace:
        """Labels and key of the record."""
        return self.record.labels, self.record.key

    def is_over(self, now: datetime) -> bool:
        """Return True if the record has expired."""
        return self.record.expires_at is not None and self.record.expires_at <= now


def record_from_memory(memory: Memory) -> StoredRecord:
    """Return the record that a memory stores."""
    own = memory.metadata
    if not isinstance(own, RecordMetadata):
        raise TypeError(f"{memory.id} is no record")
    record = Record(
        labels=own.labels,
        key=own.key,
        value=own.value,
        version=own.version,
        created_at=memory.created_at,
        updated_at=memory.updated_at,
        expires_at=memory.valid_until,
        text=memory.content,
        origin=memory.origin,
        memory_id=memory.id,
    )
    return StoredRecord(record, own.history, own.created_by, memory)


def check_imported_record(memory: Memory, path: str) -> None:
    """Raise `ValueError` for an imported memory with record data that `put` never writes."""
    own = memory.metadata
    if not isinstance(own, RecordMetadata):
        return
    try:
        place = check_labels(own.labels), check_key(own.key)
    except InvalidArgument as error:
        raise ValueError(f"`{path}.metadata` has invalid labels or an invalid key") from error
    if memory.id != record_memory_id(place):
        raise ValueError(f"`{path}.id` must follow from the record's labels and key")
    if own.version < 1:
        raise ValueError(f"`{path}.metadata.version` must be at least 1")
    whole = sum(own.text_lengths) + len(TEXT_SEPARATOR) * (len(own.text_lengths) - 1)
    if own.text_lengths and (min(own.text_lengths) < 1 or whole != len(memory.content)):
        raise ValueError(f"`{path}.metadata.lengths` must equal the lengths of the texts in its content")


def record_from_note(text: str) -> StoredRecord:
    """Parse the record that a note stores."""
    try:
        kept = msgspec.json.decode(text, type=_NoteRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise unreadable_record() from error
    own = {name: getattr(kept, name) for name in _NOTE_FIELDS}
    return StoredRecord(Record(**own), kept.history, kept.created_by, versions=kept.versions)


def unreadable_record() -> StoreDamaged:
    """Return the error for a note that contains no readable record."""
    what = "a record that a host keeps is not what was written"
    return StoreDamaged(what, file="", findings=(what,), hint="restore a backup, or delete the record")


def record_to_note(stored: StoredRecord) -> str:
    """Serialize a record without text as a note."""
    own: dict[str, Any] = {name: getattr(stored.record, name) for name in _NOTE_FIELDS}
    own |= {"history": stored.history, "created_by": stored.created_by, "versions": stored.versions}
    kept = _NoteRecord(**own)
    return msgspec.json.encode(kept).decode()
