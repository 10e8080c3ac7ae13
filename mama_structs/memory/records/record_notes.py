"""
Notes of records without text, their former versions, and the index of their values and expiries.

An index entry is a note whose name contains the path of the record. It is written in the same transaction as the
record. Earlier commits wrote no entries: `add_index_entries` adds those of their records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Final

import attrs
import msgspec

from mama_structs._internal.caches import cache_by_text
from mama_structs._internal.json_conditions import (
    MAX_CACHED_NAMES,
    UNINDEXED_NAME,
    JsonCondition,
    value_filter_names,
)
from mama_structs.errors import StoreDamaged
from mama_structs.memory.types.engine import Reader, Writer
from mama_structs.memory.types.model import KEY_PREFIX, PreviousValue, from_milliseconds, record_path, to_milliseconds
from mama_structs.memory.types.record import (
    EXPIRY_PREFIX,
    INDEX_NOTE,
    NOTE_PREFIX,
    VALUE_PREFIX,
    StoredRecord,
    note_name,
    record_from_note,
    record_to_note,
    unreadable_record,
)
from mama_structs.memory.upkeep.namespace_services import NamespaceServices

PAGE_ROWS: Final = 256
VERSION_PREFIX: Final = "record-version/"
NAME_DIGEST_CHARS: Final = 16
VERSION_DIGITS: Final = 12
# A row key has at most 1,024 characters, and an entry must fit wherever its record fits.
MAX_ENTRY_PATH_CHARS: Final = 300
# Separates a shortened path from its hash. No path contains this character.
SHORT_PATH_MARKER: Final = "*"
# Text of former versions that are stored already. Their notes are not written again.
STORED: Final = ""

_log: Final = logging.getLogger("mama_structs")
_encode: Final = msgspec.json.encode
_decode_version: Final = msgspec.json.Decoder(PreviousValue).decode


@attrs.frozen
class HistoryLimits:
    """Limits of the former versions of a record: their number, and the seconds since they were replaced."""

    count: int
    seconds: float | None
    now: datetime

    def includes(self, replaced_at: datetime) -> bool:
        """Return True if a version that was replaced at this time is not too old."""
        return self.seconds is None or replaced_at >= self.now - timedelta(seconds=self.seconds)

    def apply(self, stored: StoredRecord) -> StoredRecord:
        """Return a record without the former versions beyond the limits."""
        if not (stored.history or stored.versions):
            return stored
        end = stored.record.updated_at
        kept: set[int] = set()
        times = {number: from_milliseconds(at) for number, at in stored.versions}
        times |= {one.version: one.at for one in stored.history}
        for number in sorted(times, reverse=True)[: self.count]:
            if not self.includes(end):
                break
            kept.add(number)
            end = times[number]
        return attrs.evolve(
            stored,
            history=tuple(one for one in stored.history if one.version in kept),
            versions=tuple(one for one in stored.versions if one[0] in kept),
        )


# Names of entries


def _entry_path(name: str) -> tuple[str, str]:
    """
    Return the path of a note in the names of its entries, and the text of the entries.

    The text is the complete path if the names contain a shortened one, else empty.
    """
    path = name.removeprefix(NOTE_PREFIX)
    if len(path) <= MAX_ENTRY_PATH_CHARS:
        return path, ""
    return f"{path[:MAX_ENTRY_PATH_CHARS]}{SHORT_PATH_MARKER}{sha256(path.encode()).hexdigest()[:32]}", path


# Many records have the same values.
@cache_by_text(MAX_CACHED_NAMES)
def _value_prefix(name: str) -> str:
    return f"{VALUE_PREFIX}{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:NAME_DIGEST_CHARS]}/"


def _version_name(note: str, version: int) -> str:
    return f"{VERSION_PREFIX}{_entry_path(note)[0]}/{version:0{VERSION_DIGITS}d}"


def _entries(stored: StoredRecord | None) -> dict[str, str]:
    """Return the notes of a record by name, except its own: index entries and former versions."""
    if stored is None or stored.memory is not None:
        return {}
    note = note_name(stored.place)
    path, text = _entry_path(note)
    found = {f"{_value_prefix(name)}{path}": text for name in value_filter_names(stored.record.value)}
    if stored.record.expires_at is not None:
        found[f"{EXPIRY_PREFIX}{path}"] = f"{to_milliseconds(stored.record.expires_at)} {text}"
    found |= {_version_name(note, number): STORED for number, _ in stored.versions}
    return found


def note_changes(before: StoredRecord | None, after: StoredRecord | None) -> dict[str, str | None]:
    """Return the changes of notes that replace the record *before*, or None, with *after*, or with none."""
    old, new = _entries(before), _entries(after)
    changes: dict[str, str | None] = {}
    if before is not None and before.memory is None:
        changes[note_name(before.place)] = None
    if after is not None and after.memory is None:
        note = note_name(after.place)
        new |= {_version_name(note, one.version): _encode(one).decode() for one in after.history}
        versions = {*after.versions, *((one.version, to_milliseconds(one.at)) for one in after.history)}
        kept = attrs.evolve(after, history=(), versions=tuple(sorted(versions))) if after.history else after
        changes[note] = record_to_note(kept)
    changes |= dict.fromkeys(old.keys() - new.keys())
    return changes | {name: text for name, text in new.items() if old.get(name) != text}


# Former versions


def load_versions(reader: Reader, stored: StoredRecord) -> StoredRecord:
    """Return a record with the values of its former versions. Unreadable ones are left out."""
    if not stored.versions:
        return stored
    note = note_name(stored.place)
    found = read_notes(reader, [_version_name(note, number) for number, _ in stored.versions])
    history = {one.version: one for one in stored.history}
    for name, text in found.items():
        try:
            if isinstance(text, StoreDamaged):
                raise text
            one = _decode_version(text)
        except (StoreDamaged, msgspec.MsgspecError, ValueError):
            log_damaged()
        else:
            if _version_name(note, one.version) == name:
                history[one.version] = one
    return attrs.evolve(stored, history=tuple(history[number] for number in sorted(history)), versions=())


def find_entries_of(reader: Reader, notes: Sequence[str]) -> list[str]:
    """Return the names of all entries and former versions of notes that cannot be read. Reads all names of entries."""
    paths = {_entry_path(note)[0] for note in notes}
    if not paths:
        return []
    names = [name for prefix in (VALUE_PREFIX, EXPIRY_PREFIX, VERSION_PREFIX) for name in reader.note_names(prefix)]
    return [name for name in names if _parse_path(name) in paths]


def _parse_path(name: str) -> str:
    """Return the path in the name of an entry."""
    prefix, _, path = name.partition("/")
    if prefix == VALUE_PREFIX[:-1]:
        return path.partition("/")[2]
    return path.rpartition("/")[0] if prefix == VERSION_PREFIX[:-1] else path


# Reading


def log_damaged() -> None:
    """Log that a damaged record is left out of a result."""
    _log.warning("a damaged record is skipped: see admin.check()")


def read_notes(reader: Reader, names: Sequence[str]) -> dict[str, str | StoreDamaged]:
    """Return the notes with the given names, or the error of each unreadable one."""
    found: dict[str, str | StoreDamaged] = {}
    for start in range(0, len(names), PAGE_ROWS):
        page = names[start : start + PAGE_ROWS]
        try:
            found |= reader.notes_by_name(page)
        except StoreDamaged:
            for name in page:
                try:
                    found |= reader.notes_by_name([name])
                except StoreDamaged as error:
                    found[name] = error
    return found


def iter_readable_or_error(reader: Reader, names: Sequence[str]) -> Iterator[tuple[str, StoredRecord | StoreDamaged]]:
    """Yield each note's name with its record, or with the error if the note is unreadable."""
    for start in range(0, len(names), PAGE_ROWS):
        for name, text in read_notes(reader, names[start : start + PAGE_ROWS]).items():
            try:
                if isinstance(text, StoreDamaged):
                    raise text
                stored = record_from_note(text)
                yield name, stored if note_name(stored.place) == name else unreadable_record()
            except StoreDamaged as error:
                yield name, error


def find_names_below(reader: Reader, labels: tuple[str, ...], *, nested: bool) -> list[str]:
    """Return the names of the notes of records whose labels start with *labels*, or equal them."""
    return reader.note_names(f"{NOTE_PREFIX}{path_below(labels, nested=nested)}")


def path_below(labels: tuple[str, ...], *, nested: bool) -> str:
    """Return the prefix of the paths of records whose labels start with *labels*, or equal them."""
    return f"{record_path(labels)}{'' if nested else KEY_PREFIX}"


# The index


class IncompleteIndexError(Exception):
    """Raised by a plan that needs the index if it does not contain the records of an earlier commit."""


def is_indexed(reader: Reader) -> bool:
    """Return True if all records without text are in the index."""
    return bool(read_notes(reader, [INDEX_NOTE]))


def require_index(reader: Reader) -> None:
    """Raise `IncompleteIndexError` unless all records without text are in the index."""
    if not is_indexed(reader):
        raise IncompleteIndexError


def index_names(stored: StoredRecord) -> set[str]:
    """Return the names of the index entries of a record."""
    return {name for name in _entries(stored) if not name.startswith(VERSION_PREFIX)}


def find_index_names(reader: Reader) -> set[str]:
    """Return the names of all index entries."""
    return {name for prefix in (VALUE_PREFIX, EXPIRY_PREFIX) for name in reader.note_names(prefix)}


async def complete_index(shared: NamespaceServices) -> None:
    """Add all records to the index."""
    names = await shared.read(lambda reader: find_names_below(reader, (), nested=True))
    for start in range(0, max(len(names), 1), PAGE_ROWS):
        page, is_last = names[start : start + PAGE_ROWS], start + PAGE_ROWS >= len(names)
        await shared.write(partial(add_index_entries, names=page, is_last=is_last))


async def remove_stale_entries(shared: NamespaceServices) -> None:
    """Remove the index entries that do not follow from a record."""
    names = sorted(await shared.read(find_index_names))
    for start in range(0, len(names), PAGE_ROWS):
        await shared.write(partial(_remove_stale_entries, names=names[start : start + PAGE_ROWS]))


def _remove_stale_entries(writer: Writer, names: Sequence[str]) -> None:
    writer.set_notes(dict.fromkeys(find_stale_entries(writer, names)))


def find_stale_entries(reader: Reader, names: Sequence[str]) -> list[str]:
    """Return the index entries that do not follow from a record. Entries of unreadable records are left out."""
    texts = read_notes(reader, [name for name in names if SHORT_PATH_MARKER in name])
    notes = {}
    for name in names:
        text = texts.get(name, "")
        path = "" if isinstance(text, StoreDamaged) else text.rpartition(" ")[2]
        notes[name] = f"{NOTE_PREFIX}{path or _parse_path(name)}"
    records = dict(iter_readable_or_error(reader, list(dict.fromkeys(notes.values()))))
    entries = {note: index_names(one) for note, one in records.items() if isinstance(one, StoredRecord)}
    return [
        name
        for name, note in notes.items()
        if name not in entries.get(note, ()) and (note in entries or note not in records)
    ]


def add_index_entries(writer: Writer, names: Sequence[str], *, is_last: bool) -> None:
    """Add the index entries of the records in these notes. If *is_last*, mark the index as complete."""
    changes: dict[str, str | None] = {}
    for _, one in iter_readable_or_error(writer, names):
        if isinstance(one, StoredRecord):
            entries = _entries(one)
            changes |= {name: entries[name] for name in index_names(one)}
    writer.set_notes(changes | ({INDEX_NOTE: "1"} if is_last else {}))


def find_names_with(
    reader: Reader, condition: JsonCondition, labels: tuple[str, ...], *, nested: bool, needs_index: bool
) -> list[str] | None:
    """
    Return the names of notes that may satisfy a condition, or None if the index does not know.

    The caller compares the values.
    """
    if not condition.names:
        return None
    if needs_index:
        require_index(reader)
    elif not is_indexed(reader):
        return None
    below = path_below(labels, nested=nested)
    matching: set[str] | None = None
    for name in condition.names:
        found = set(_find_entries(reader, _value_prefix(name), below))
        matching = found if matching is None else matching & found
        if not matching:
            break
    return [*(matching or ()), *_find_entries(reader, _value_prefix(UNINDEXED_NAME), below)]


def find_expired_names(
    reader: Reader, names: Sequence[str], labels: tuple[str, ...], *, now: datetime, needs_index: bool
) -> set[str]:
    """Return the expired notes among those below labels, whose names are given."""
    if not names:
        return set()
    if needs_index:
        require_index(reader)
    elif not is_indexed(reader):
        tried = iter_readable_or_error(reader, names)
        return {name for name, one in tried if isinstance(one, StoredRecord) and one.is_over(now)}
    texts = _read_entries(reader, EXPIRY_PREFIX, path_below(labels, nested=True))
    over = to_milliseconds(now)
    found = set()
    for name, text in texts.items():
        at, _, path = text.partition(" ")
        if at.isdecimal() and int(at) <= over:
            found.add(f"{NOTE_PREFIX}{path or name.removeprefix(EXPIRY_PREFIX)}")
    return found.intersection(names)


def _find_entries(reader: Reader, prefix: str, below: str) -> Iterable[str]:
    """Return the names of the notes that have an index entry with this prefix."""
    names = reader.note_names(f"{prefix}{below[:MAX_ENTRY_PATH_CHARS]}")
    short = [name for name in names if SHORT_PATH_MARKER in name]
    texts = read_notes(reader, short)
    paths = [name.removeprefix(prefix) for name in names if SHORT_PATH_MARKER not in name]
    paths += [text for text in texts.values() if isinstance(text, str)]
    return [f"{NOTE_PREFIX}{path}" for path in paths if path.startswith(below)]


def _read_entries(reader: Reader, prefix: str, below: str) -> Mapping[str, str]:
    texts = read_notes(reader, reader.note_names(f"{prefix}{below[:MAX_ENTRY_PATH_CHARS]}"))
    return {name: text for name, text in texts.items() if isinstance(text, str)}
