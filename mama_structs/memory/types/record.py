"""What hosts keep: what a record is, what may be asked for, and how it is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final
from urllib.parse import unquote

import attrs
import msgspec

from mama_structs._internal import validation as _check
from mama_structs._internal.reprs import Seen, Showing, briefly
from mama_structs.errors import InvalidArgument, StoreDamaged
from mama_structs.memory.types.engine import KEY, Vectors, place_of
from mama_structs.memory.types.model import (
    BETWEEN_TEXTS,
    CREATORS,
    ORIGINS,
    CreatedBy,
    FormerValue,
    Memory,
    MemoryType,
    Origin,
    RecordMetadata,
    slug,
)
from mama_structs.provenance import inserted_texts, least_trusted

Place = tuple[tuple[str, ...], str]
"""Labels and key of a record."""
Where = Callable[["HostRecord"], bool]
"""Tells whether a record counts."""

MAX_VALUE: Final = 2**24
"""Bytes of a value's JSON at the most, and of all texts of a record."""
MAX_LABELS: Final = 32
MAX_LABEL: Final = 512
MAX_KEY: Final = 1024
_MAX_PLACE: Final = 512
_MAX_DEPTH: Final = 99
# Behind the namespace a row's key has room for so much.
_LONG_KEY: Final = 256
# No percent-encoded text has it.
_SHORTENED: Final = "+"
NOTES: Final = "record/"
"""Begins the names of the notes that records without text are."""
_SLUG: Final = 24


@attrs.frozen(kw_only=True, repr=False)
class HostRecord(Showing):
    """
    Something that a host keeps: JSON under a key, below labels.

    Args:
        labels: The namespace of labels.
        key: Its name there.
        value: What is kept, as JSON has it; nobody else's containers.
        version: How often it was written, from 1 on.
        created_at: When it was first written (UTC).
        updated_at: When it was last written (UTC).
        expires_at: When it ends (UTC), None for never.
        text: What it is found by, None where it is only kept.
        origin: Who it comes from.
        memory_id: The memory under which searches find it, None where it is only kept.

    """

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

    def _seen(self) -> Seen:
        return Seen(
            text=self.text if self.text is not None else json.dumps(self.value, ensure_ascii=False),
            facts=(f"{self.updated_at:%Y-%m-%d}", f"version {self.version}"),
            id="/".join((*self.labels, self.key)),
            more=(None if self.expires_at is None else f"until {self.expires_at:%Y-%m-%d %H:%M}",),
        )

    def _record(self) -> dict[str, Any]:
        return attrs.asdict(self, recurse=False)


@attrs.frozen(kw_only=True, repr=False)
class RecordHit(Showing):
    """
    A record that was found.

    Args:
        record: The record.
        score: What orders this list.
        relevance: How well it answers, 0 to 1, absolutely.
        cosine: The cosine of its best text and the question, None where it was not looked for by that alone.

    """

    record: HostRecord
    score: float
    relevance: float
    cosine: float | None = None

    def _seen(self) -> Seen:
        seen = self.record._seen()  # noqa: SLF001 - one of ours
        return seen._replace(facts=(f"relevance {self.relevance:.2f}", *seen.facts))

    def _record(self) -> dict[str, Any]:
        own = {"score": self.score, "relevance": self.relevance, "cosine": self.cosine}
        return self.record._record() | own  # noqa: SLF001 - one of ours


@attrs.frozen(field_transformer=briefly)
class NewRecord:
    """
    A record as it is to be put.

    Args:
        labels: The namespace of labels: at most 32, each of 1 to 512 characters.
        key: Its name there, of 1 to 1,024 characters.
        value: What is to be kept: JSON (dicts with text as keys, lists, text, finite numbers, booleans, None).
        text: What it is to be found by; several texts are embedded each by itself, and the best one counts. None to
            keep it only: no search sees it.
        created_at: When it was made (with a time zone); None for now. One that is there keeps its own.
        expires_at: When it ends (with a time zone); None for never.
        origin: Who it comes from, as for `MemoryStore.save_decision`; None for the user.
        created_by: ``"user"``, ``"llm"`` or ``"system"``.
        history: Whether the value that it replaces is kept, see `RecordStore.history`.
        if_version: Put it only where the present version is this one, 0 for none; None for whatever is there.

    Raises:
        InvalidArgument: An argument breaks its rule.

    """

    labels: Sequence[str]
    key: str
    value: Any
    text: str | Sequence[str] | None = attrs.field(default=None, kw_only=True)
    created_at: datetime | None = attrs.field(default=None, kw_only=True)
    expires_at: datetime | None = attrs.field(default=None, kw_only=True)
    origin: Origin | None = attrs.field(default=None, kw_only=True)
    created_by: CreatedBy = attrs.field(default="user", kw_only=True)
    history: bool = attrs.field(default=False, kw_only=True)
    if_version: int | None = attrs.field(default=None, kw_only=True)


@attrs.frozen(eq=False)
class PreparedRecord:
    """A record that was asked for and checked, with its vectors where it has texts; *key* None for the next number."""

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
        """What it is to be found by."""
        return BETWEEN_TEXTS.join(self.texts) if self.texts else None


# What may be given


def check_labels(value: object, name: str = "labels") -> tuple[str, ...]:
    """Return labels."""
    labels = _check.texts(name, value, most=MAX_LABELS, longest=MAX_LABEL)
    size = len(place_of(labels))
    if size > _MAX_PLACE:
        raise InvalidArgument(
            f"{name} must have at most {_MAX_PLACE} characters together, percent-encoded, got {size}",
            hint="shorten them, or keep what tells them apart in the key",
        )
    return labels


def check_key(value: object, name: str = "key") -> str:
    """Return a key."""
    return _check.text(name, value, most=MAX_KEY)


def check_place(value: object, name: str = "place") -> Place:
    """Return the labels and the key of a pair."""
    pair = _check.items(name, value, of="labels and a key")
    if len(pair) != 2:  # noqa: PLR2004 - a pair
        raise InvalidArgument(f"{name} must be a pair of labels and a key, got {len(pair)} items")
    return check_labels(pair[0], f"{name}[0]"), check_key(pair[1], f"{name}[1]")


def check_new(asked: object, *, max_text: int, name: str = "record") -> PreparedRecord:
    """Return what a `NewRecord` asks for, as far as that can be said without looking at what there is."""
    if not isinstance(asked, NewRecord):
        raise InvalidArgument(f"{name} must be a NewRecord, got {type(asked).__name__}")
    size = len(msgspec.json.encode(value := _plain(f"{name}.value", asked.value)))
    if size > MAX_VALUE:
        hint = "keep a large text as a ref, and its handle here"
        raise InvalidArgument(f"{name}.value must be at most {MAX_VALUE} bytes of JSON, got {size}", hint=hint)
    origin: Origin = "user" if asked.origin is None else _check.choice(f"{name}.origin", asked.origin, ORIGINS)
    # A tool that stores its arguments as records may store texts of handles.
    inserted = inserted_texts()
    return PreparedRecord(
        labels=check_labels(asked.labels, f"{name}.labels"),
        key=check_key(asked.key, f"{name}.key"),
        value=value,
        texts=_check_texts(f"{name}.text", asked.text, max_text),
        created_at=None if asked.created_at is None else _check.moment(f"{name}.created_at", asked.created_at),
        expires_at=None if asked.expires_at is None else _check.moment(f"{name}.expires_at", asked.expires_at),
        origin=least_trusted([origin, *([] if inserted is None else [inserted.origin, inserted.trust])]),
        created_by=_check.choice(f"{name}.created_by", asked.created_by, CREATORS),
        history=_check.flag(f"{name}.history", asked.history),
        if_version=None if asked.if_version is None else _check.whole(f"{name}.if_version", asked.if_version),
    )


def _check_texts(name: str, value: object, most: int) -> tuple[str, ...]:
    several = () if value is None else (value,) if isinstance(value, str) else _check.items(name, value)
    found = tuple(_check.text(name, one, most=most, empty=True) for one in several)
    if sum(map(len, found)) > MAX_VALUE:
        raise InvalidArgument(f"{name} must have at most {MAX_VALUE} characters together")
    return tuple(one for one in found if one.strip())


def _plain(name: str, value: object, depth: int = 0) -> Any:
    """Return a copy of what JSON can hold exactly, and refuse all else."""
    if depth > _MAX_DEPTH:
        raise InvalidArgument(f"{name} must be nested at most {_MAX_DEPTH} deep")
    if isinstance(value, str):
        _check.encodable(name, value)
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgument(f"{name} must hold finite numbers alone, got {value}")
        return float(value)
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            raise InvalidArgument(f"{name} must be JSON, whose keys are texts")
        return {_plain(f"{name}: a key", key): _plain(name, item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, item, depth + 1) for item in value]
    hint = "give plain data; bytes as base64"
    raise InvalidArgument(f"{name} must be JSON, and holds a {type(value).__name__}", hint=hint)


# Where they are


def memory_id_of(place: Place) -> str:
    """Return the id of the memory that a record with text is: it follows from labels and key alone."""
    labels, key = place
    digest = sha256("\0".join(map(_whole, (*labels, key))).encode()).digest()
    number = int.from_bytes(digest[:8])
    return f"{MemoryType.RECORD.value}_{slug(key, most=_SLUG)}_{number:020d}_{digest[8:12].hex()}"


def _whole(part: str) -> str:
    """Return a part so that no other parts look like it with the next one."""
    return f"{len(part)}:{part}"


def name_of(place: Place) -> str:
    """Return the name of the note that a record without text is."""
    labels, key = place
    whole = place_of(labels, key)
    begin = len(place_of(labels)) + len(KEY)
    if len(whole) - begin > _LONG_KEY:
        whole = f"{whole[: begin + _LONG_KEY // 2]}{_SHORTENED}{sha256(key.encode()).hexdigest()}"
    return f"{NOTES}{whole}"


def labels_in(name: str) -> tuple[str, ...]:
    """Return the labels in the name of a note."""
    above = name.removeprefix(NOTES).rpartition("/")[0]
    return tuple(map(unquote, above.split("/"))) if above else ()


def is_whole(name: str) -> bool:
    """Tell whether all of the key stands in the name of a note: one that is too long does not."""
    return _SHORTENED not in name


def place_in(name: str) -> Place | None:
    """Return the place in the name of a note, None where its key is too long to stand there."""
    key = name.rpartition("/")[2].removeprefix(KEY)
    return (labels_in(name), unquote(key)) if is_whole(name) else None


class _KeptRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A record without text, as its note has it."""

    labels: tuple[str, ...]
    key: str
    value: Any
    version: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    origin: Origin = "user"
    created_by: CreatedBy = "user"
    history: tuple[FormerValue, ...] = ()


@attrs.frozen(eq=False)
class StoredRecord:
    """A record that is there, as a memory or as a note of its own, with what it held before."""

    record: HostRecord
    history: tuple[FormerValue, ...] = ()
    created_by: CreatedBy = "user"
    memory: Memory | None = None

    @property
    def place(self) -> Place:
        """Where it is."""
        return self.record.labels, self.record.key

    def is_over(self, now: datetime) -> bool:
        """Tell whether it has ended."""
        return self.record.expires_at is not None and self.record.expires_at <= now


def of_memory(memory: Memory) -> StoredRecord:
    """Return the record that a memory is."""
    own = memory.metadata
    if not isinstance(own, RecordMetadata):
        raise TypeError(f"{memory.id} is no record")
    record = HostRecord(
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


def check_kept(memory: Memory, path: str) -> None:
    """Refuse a memory from elsewhere that is a record which no call would find, or none that was ever put."""
    own = memory.metadata
    if not isinstance(own, RecordMetadata):
        return
    try:
        place = check_labels(own.labels), check_key(own.key)
    except InvalidArgument as error:
        raise ValueError(f"`{path}.metadata` has labels or a key as no record has") from error
    if memory.id != memory_id_of(place):
        raise ValueError(f"`{path}.id` must follow from the record's labels and key")
    if own.version < 1:
        raise ValueError(f"`{path}.metadata.version` must be at least 1")
    whole = sum(own.lengths) + len(BETWEEN_TEXTS) * (len(own.lengths) - 1)
    if own.lengths and (min(own.lengths) < 1 or whole != len(memory.content)):
        raise ValueError(f"`{path}.metadata.lengths` must be those of the texts in its content")


def of_note(text: str) -> StoredRecord:
    """Return the record that a note is."""
    try:
        kept = msgspec.json.decode(text, type=_KeptRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise unlike_what_was_written() from error
    own = {field.name: getattr(kept, field.name) for field in attrs.fields(HostRecord) if hasattr(kept, field.name)}
    return StoredRecord(HostRecord(**own), kept.history, kept.created_by)


def unlike_what_was_written() -> StoreDamaged:
    """Return the error for a record without text that nobody can read."""
    what = "a record that a host keeps is not what was written"
    return StoreDamaged(what, file="", findings=(what,), hint="restore a backup, or delete the record")


def as_note(stored: StoredRecord) -> str:
    """Return the note that a record without text is."""
    own: dict[str, Any] = {name: getattr(stored.record, name, None) for name in _KeptRecord.__struct_fields__}
    kept = _KeptRecord(**own | {"history": stored.history, "created_by": stored.created_by})
    return msgspec.json.encode(kept).decode()
