"""
Plans that read and write records.

Records with text are stored as memories, all others as notes. A place is the labels and the key of a record.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal.json_conditions import UNINDEXED_NAME, JsonCondition
from mama_structs.errors import InvalidArgument, StoreDamaged, VersionConflict
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.records.record_notes import (
    HistoryLimits,
    find_entries_of,
    find_expired_names,
    find_index_names,
    find_names_below,
    find_names_with,
    find_stale_entries,
    index_names,
    is_indexed,
    iter_readable_or_error,
    load_versions,
    log_damaged,
    note_changes,
    path_below,
)
from mama_structs.memory.search import search_plan as search
from mama_structs.memory.search.search_request import SearchRequest
from mama_structs.memory.types.engine import (
    EngineFilter,
    NewMemory,
    Nodes,
    Reader,
    Vectors,
    Writer,
)
from mama_structs.memory.types.model import (
    KEY_PREFIX,
    MAX_KEY_CHARS_IN_PATH,
    Link,
    Memory,
    MemoryType,
    PreviousText,
    PreviousValue,
    RecordMetadata,
    has_complete_key,
    parse_labels,
    parse_path,
    record_path,
    short_path,
)
from mama_structs.memory.types.record import (
    INDEX_NOTE,
    NOTE_PREFIX,
    PreparedRecord,
    Record,
    RecordHit,
    RecordPlace,
    RecordPredicate,
    StoredRecord,
    note_name,
    record_from_memory,
    record_from_note,
    record_memory_id,
)
from mama_structs.provenance import least_trusted
from mama_structs.storage.sqlite_errors import Issue

KEY_DIGITS: Final = 12
PAGE_ROWS: Final = 256
MIN_PAGE_ROWS: Final = 16
CANDIDATE_GROWTH_FACTOR: Final = 4
# Paths with longer keys may contain a hash of the key.
MIN_LONG_KEY_CHARS: Final = MAX_KEY_CHARS_IN_PATH // 2
MAX_PAGED_CHARS: Final = 512
RECORD_TYPES: Final = frozenset({MemoryType.RECORD})


# Reading


def find_stored(reader: Reader, places: Iterable[RecordPlace]) -> dict[RecordPlace, StoredRecord]:
    """Return the stored records at the given places, including expired ones."""
    return _find_stored(reader, places)[0]


def _find_latest(reader: Reader, places: Iterable[RecordPlace]) -> dict[RecordPlace, StoredRecord]:
    """Return the stored records as `find_stored` does, but without older former versions."""
    return _find_stored(reader, places, needs_history=False)[0]


def _find_stored(
    reader: Reader, places: Iterable[RecordPlace], other_notes: Sequence[str] = (), *, needs_history: bool = True
) -> tuple[dict[RecordPlace, StoredRecord], Mapping[str, str]]:
    """Return the stored records at the given places, and other notes that are read in the same query."""
    unique = list(dict.fromkeys(places))
    nodes = reader.find_many([record_memory_id(place) for place in unique]) if unique else []
    having = {place: node for place, node in zip(unique, nodes, strict=True) if node is not None}
    get = reader.get if needs_history else reader.get_stored
    memories = get(list(having.values())) if having else []
    stored = {place: record_from_memory(memory) for place, memory in zip(having, memories, strict=True)}
    names = {note_name(place): place for place in unique if place not in stored}
    notes = reader.notes_by_name([*names, *other_notes]) if names or other_notes else {}
    return stored | {names[name]: record_from_note(text) for name, text in notes.items() if name in names}, notes


def get_records(reader: Reader, places: Sequence[RecordPlace], *, now: datetime) -> list[Record | None]:
    """Return the records at the given places, with None for each missing or expired record."""
    found = _find_latest(reader, places)
    return [None if (one := found.get(place)) is None or one.is_over(now) else one.record for place in places]


def get_versions(reader: Reader, place: RecordPlace, limits: HistoryLimits) -> list[Record]:
    """Return a record and its former versions, newest first."""
    stored = find_stored(reader, [place]).get(place)
    if stored is None or stored.is_over(limits.now):
        return []
    stored = load_versions(reader, limits.apply(stored))
    return [
        stored.record,
        *(
            attrs.evolve(stored.record, value=one.value, version=one.version, updated_at=one.at, text=one.text)
            for one in reversed(stored.history)
        ),
    ]


def filter_below(labels: tuple[str, ...], *, nested: bool, now: datetime | None = None) -> EngineFilter:
    """
    Return the filter for records with text whose labels start with *labels*.

    If *nested* is False, the labels must be equal. If *now* is given, records that expired by then are excluded.
    """
    # Without labels every record matches, so no label filter is needed.
    return EngineFilter(
        types=RECORD_TYPES, labels=labels if labels or not nested else None, nested=nested, valid_at=now
    )


def _filter_matching(
    reader: Reader, listing: RecordListing, *, now: datetime | None
) -> tuple[EngineFilter, EngineFilter | None]:
    """
    Return the filter for the indexed values of a listing, and one for the records that are not indexed.

    The second is None if there are none.
    """
    where = filter_below(listing.labels, nested=listing.nested, now=now)
    names = () if listing.condition is None else listing.condition.names
    if not names:
        return where, None
    unindexed = attrs.evolve(where, values=(UNINDEXED_NAME,))
    return attrs.evolve(where, values=names), unindexed if reader.count(unindexed) else None


def _read_memories(reader: Reader, nodes: Nodes) -> list[Memory]:
    """Return the readable memories among *nodes*, without older former versions."""
    try:
        return reader.get_stored(nodes) if len(nodes) else []
    except StoreDamaged:
        if len(nodes) == 1:
            log_damaged()
            return []
        return [memory for node in nodes for memory in _read_memories(reader, np.array([node], np.int64))]


def _read_memories_below(reader: Reader, where: EngineFilter) -> list[Memory]:
    return _read_memories(reader, reader.window(where))


@attrs.frozen(kw_only=True)
class RecordListing:
    """
    Arguments of a record listing. The records are ordered by place: encoded labels, then key.

    *after* is a place, as `record_path` returns it.
    """

    labels: tuple[str, ...] = ()
    nested: bool = True
    prefix: str = ""
    after: str | None = None
    limit: int | None = None
    last_first: bool = False
    condition: JsonCondition | None = None
    predicate: RecordPredicate | None = None

    def matches(self, record: Record) -> bool:
        """Return True if a record satisfies the condition and the predicate."""
        return (self.condition is None or self.condition.matches(record.value)) and (
            self.predicate is None or self.predicate(record)
        )

    def find_page_prefix(self, reader: Reader) -> str | None:
        """
        Return the prefix of the paths that can be read page by page.

        Return None without a limit, or if paths may have another order than places: with long keys or further labels.
        """
        begin, after = record_path(self.labels), self.after or ""
        keys = record_path((), self.prefix), after.rpartition("/")[2]
        # Short paths are compared with the complete paths of the bounds, so the key of a bound must not be long.
        if self.limit is None or max(map(len, keys)) >= MIN_LONG_KEY_CHARS or len(after) > MAX_PAGED_CHARS:
            return None
        own = f"{begin}{KEY_PREFIX}"
        if not self.nested:
            return record_path(self.labels, self.prefix)
        for read in (partial(_note_paths, reader), reader.record_paths):
            ends = (read(begin, limit=1, last_first=last) for last in (False, True))
            if not all(path.startswith(own) for paths in ends for path in paths):
                return None
        # With a cursor of other labels, only records with further labels may follow.
        return own if self.after is None or self.after.startswith(own) else None

    def iter_paths(self, read: Callable[..., list[str]], prefix: str) -> Iterator[str]:
        """Yield the paths of records under the labels in order, page by page."""
        after, size = self.after, min(max(self.limit or 0, MIN_PAGE_ROWS), PAGE_ROWS)
        while paths := read(prefix, after=after, limit=size, last_first=self.last_first):
            if any(len(path.rpartition("/")[2]) >= MIN_LONG_KEY_CHARS for path in paths):
                raise _LongKeyError
            yield from paths
            after = paths[-1]
            if len(paths) < size:
                break
            size = min(2 * size, PAGE_ROWS)

    def select_paths(self, paths: Mapping[str, str]) -> list[str]:
        """Return the short paths whose complete paths match the listing, ordered by place. Ignores the limit."""
        found = sorted(paths, key=lambda path: _path_sort_key(paths[path]), reverse=self.last_first)
        if self.prefix:
            begin = record_path(self.labels, self.prefix)
            found = [path for path in found if paths[path].startswith(begin)]
        if self.after is not None:
            bound = _path_sort_key(self.after)
            keys = {path: _path_sort_key(paths[path]) for path in found}
            found = [path for path in found if (keys[path] < bound if self.last_first else keys[path] > bound)]
        return found


def _note_paths(reader: Reader, prefix: str, *, after: str | None = None, **page: Any) -> list[str]:
    """Return the paths of records without text, in the order of `Reader.record_paths`."""
    names = reader.note_names(f"{NOTE_PREFIX}{prefix}", after=after and f"{NOTE_PREFIX}{after}", **page)
    return [name.removeprefix(NOTE_PREFIX) for name in names]


class _LongKeyError(Exception):
    """Raised by a listing by pages for a path that may not have the complete key, and so another order."""


def _path_sort_key(path: str) -> tuple[list[str], str]:
    """
    Return the sort key of a path.

    Paths are compared label by label, because a label may contain characters that sort before the separator.
    """
    above, _, key = path.rpartition("/")
    return above.split("/") if above else [], key


@attrs.define
class _ListedRecords:
    """
    The records that a listing may return, by short path.

    *paths* has their complete paths, *known* the records that are read, and *texts* the unread ones with text.
    """

    reader: Reader
    skip_damaged: bool
    paths: dict[str, str] = attrs.field(factory=dict)
    known: dict[str, StoredRecord] = attrs.field(factory=dict)
    texts: set[str] = attrs.field(factory=set)

    def add_memories(self, nodes: Nodes) -> None:
        """Read records with text."""
        for one in map(record_from_memory, _read_memories(self.reader, nodes)):
            path = short_path(*one.place)
            self.known[path], self.paths[path] = one, record_path(*one.place)

    def iter_texts(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield the paths of unread records with text, and add them."""
        for path in paths:
            self.texts.add(path)
            self.paths[path] = path
            yield path

    def add_notes(self, names: Sequence[str]) -> None:
        """Add records without text. Only those are read whose names do not contain the whole key."""
        paths = [name.removeprefix(NOTE_PREFIX) for name in names]
        self.paths |= {path: path for path in paths if has_complete_key(path)}
        for path, one in self._read_notes([path for path in paths if not has_complete_key(path)]):
            self.known[path], self.paths[path] = one, record_path(*one.place)

    def iter_stored(self, paths: Iterable[str], limit: int | None) -> Iterator[StoredRecord]:
        """Yield the records with the given short paths. They are loaded page by page, as needed."""
        size, left = PAGE_ROWS if limit is None else min(max(limit, 1), PAGE_ROWS), iter(paths)
        while page := list(itertools.islice(left, size)):
            found = {path: self.known[path] for path in page if path in self.known}
            places = [place for path in page if path in self.texts and (place := parse_path(path)) is not None]
            nodes = self.reader.find_many([record_memory_id(place) for place in places]) if places else []
            existing = np.array([node for node in nodes if node is not None], np.int64)
            found |= {
                short_path(*one.place): one for one in map(record_from_memory, _read_memories(self.reader, existing))
            }
            found |= dict(self._read_notes([path for path in page if path not in found]))
            yield from (found[path] for path in page if path in found)
            # Some of the records are expired or do not match. Double the page, so that few reads suffice.
            size = min(2 * size, PAGE_ROWS)

    def _read_notes(self, paths: Sequence[str]) -> Iterator[tuple[str, StoredRecord]]:
        for name, one in iter_readable_or_error(self.reader, [f"{NOTE_PREFIX}{path}" for path in paths]):
            if isinstance(one, StoredRecord):
                yield name.removeprefix(NOTE_PREFIX), one
            elif self.skip_damaged:
                log_damaged()
            else:
                raise one


def list_records(
    reader: Reader, listing: RecordListing, *, now: datetime, skip_damaged: bool = True, needs_index: bool = False
) -> list[StoredRecord]:
    """Return the matching records, ordered by place."""

    def take(listed: _ListedRecords, ordered: Iterable[str]) -> list[StoredRecord]:
        stored = listed.iter_stored(ordered, listing.limit)
        passing = (one for one in stored if not one.is_over(now) and listing.matches(one.record))
        return list(itertools.islice(passing, listing.limit))

    names = None
    if listing.condition is not None:
        names = find_names_with(
            reader, listing.condition, listing.labels, nested=listing.nested, needs_index=needs_index
        )
    elif (prefix := listing.find_page_prefix(reader)) is not None:
        with contextlib.suppress(_LongKeyError):
            listed = _ListedRecords(reader, skip_damaged)
            texts = listed.iter_texts(listing.iter_paths(reader.record_paths, prefix))
            notes = listing.iter_paths(partial(_note_paths, reader), prefix)
            return take(listed, heapq.merge(texts, notes, reverse=listing.last_first))
    listed = _ListedRecords(reader, skip_damaged)
    paths = [] if listing.limit is None else reader.record_paths(path_below(listing.labels, nested=listing.nested))
    if listing.condition is None and paths and all(map(has_complete_key, paths)):
        collections.deque(listed.iter_texts(paths), 0)
    else:
        where, unindexed = _filter_matching(reader, listing, now=now)
        nodes = reader.window(where)
        listed.add_memories(nodes if unindexed is None else np.union1d(nodes, reader.window(unindexed)))
    listed.add_notes(find_names_below(reader, listing.labels, nested=listing.nested) if names is None else names)
    return take(listed, listing.select_paths(listed.paths))


def find_labels_below(
    reader: Reader, labels: tuple[str, ...], *, now: datetime, needs_index: bool
) -> list[tuple[str, ...]]:
    """Return the labels of all records that have not expired and whose labels begin with the given ones, sorted."""
    names = find_names_below(reader, labels, nested=True)
    over = find_expired_names(reader, names, labels, now=now, needs_index=needs_index)
    found = {parse_labels(name.removeprefix(NOTE_PREFIX)) for name in names if name not in over}
    memories = _read_memories_below(reader, filter_below(labels, nested=True, now=now))
    return sorted(found.union(record_from_memory(one).record.labels for one in memories))


def find_places_below(reader: Reader, labels: tuple[str, ...], *, nested: bool) -> tuple[list[RecordPlace], list[str]]:
    """
    Return the places of all records below labels, and the names of unreadable notes.

    Expired records are included.
    """
    memories = _read_memories_below(reader, filter_below(labels, nested=nested, now=None))
    places = [record_from_memory(one).place for one in memories]
    names = find_names_below(reader, labels, nested=nested)
    parsed = {name: parse_path(name.removeprefix(NOTE_PREFIX)) for name in names}
    places += [place for place in parsed.values() if place is not None]
    lost = []
    for name, one in iter_readable_or_error(reader, [name for name, place in parsed.items() if place is None]):
        if isinstance(one, StoredRecord):
            places.append(one.place)
        else:
            lost.append(name)
    return places, lost


def find_memory_ids(reader: Reader, places: Sequence[RecordPlace]) -> list[str]:
    """Return the memory ids of the records with text at the given places."""
    ids = [record_memory_id(place) for place in places]
    return [one for one, node in zip(ids, reader.find_many(ids), strict=True) if node is not None]


def find_expired(reader: Reader, *, now: datetime, needs_index: bool) -> list[RecordPlace]:
    """Return the places of all expired records."""
    every, holding = (reader.window(EngineFilter(types=RECORD_TYPES, valid_at=at)) for at in (None, now))
    over = np.setdiff1d(every, holding)
    memories = map(record_from_memory, _read_memories(reader, over))
    below = find_names_below(reader, (), nested=True)
    names = find_expired_names(reader, below, (), now=now, needs_index=needs_index)
    tried = iter_readable_or_error(reader, sorted(names))
    notes = (one for _, one in tried if isinstance(one, StoredRecord))
    return [one.place for one in itertools.chain(memories, notes) if one.is_over(now)]


def find_unreadable(reader: Reader) -> list[Issue]:
    """
    Return a finding for each note with invalid content, and for each missing or stale entry of the index.

    The engine reports damaged rows itself.
    """
    is_complete, indexed = is_indexed(reader), find_index_names(reader)
    issues = []
    for name, one in iter_readable_or_error(reader, find_names_below(reader, (), nested=True)):
        if isinstance(one, StoredRecord):
            entries = index_names(one)
            if is_complete and not entries <= indexed:
                issues.append(Issue("error", "integrity", f"{name}: the index does not find this record", name))
            indexed -= entries
        elif not one.file:
            issues.append(Issue("error", "damaged", f"{name}: {one.findings[0]}", name))
    stale = find_stale_entries(reader, sorted(indexed))
    return issues + [Issue("error", "integrity", f"{name}: no record has this index entry", name) for name in stale]


# Searching


def search_records(reader: Reader, request: SearchRequest, listing: RecordListing, *, offset: int) -> list[RecordHit]:
    """Return the records that match a query best, ranked by the memory search."""
    where, is_exact = _filter_for_search(reader, listing, now=None)

    def find_page(most: int) -> list[RecordHit]:
        hits, _ = search.find_hits(reader, attrs.evolve(request, limit=most, where=where, needs_history=False))
        return [
            RecordHit(record=record_from_memory(hit.memory).record, score=hit.score, relevance=hit.relevance)
            for hit in hits
        ]

    return _filter_hits(find_page, None if is_exact else listing.matches, request.limit, offset)


def _filter_for_search(reader: Reader, listing: RecordListing, *, now: datetime | None) -> tuple[EngineFilter, bool]:
    """Return the engine's filter for a listing, and True if every record that passes it matches the listing."""
    where, unindexed = _filter_matching(reader, listing, now=now)
    if unindexed is not None:
        return filter_below(listing.labels, nested=listing.nested, now=now), False
    is_indexed = listing.condition is None or len(listing.condition.names) == len(listing.condition.values)
    return where, is_indexed and listing.predicate is None


def find_nearest(
    reader: Reader,
    vector: NDArray[np.float32],
    listing: RecordListing,
    calibration: Calibration,
    *,
    now: datetime,
    limit: int,
) -> list[RecordHit]:
    """Return the records with the text nearest to a vector, by cosine similarity only."""
    where, is_exact = _filter_for_search(reader, listing, now=now)

    def find_page(most: int) -> list[RecordHit]:
        matches = reader.nearest(vector, most, where)
        likeness = calibration(matches.scores.astype(float))
        hits = [
            RecordHit(
                record=record_from_memory(memory).record,
                score=float(score),
                relevance=float(alike),
                cosine=float(score),
            )
            for memory, score, alike in zip(reader.get_stored(matches.nodes), matches.scores, likeness, strict=True)
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.record.labels, hit.record.key))

    return _filter_hits(find_page, None if is_exact else listing.matches, limit, 0)


def _filter_hits(
    fetch: Callable[[int], list[RecordHit]], where: RecordPredicate | None, limit: int, offset: int
) -> list[RecordHit]:
    """Return the best hits that pass the filter. Fetch more and more candidates until enough of them pass."""
    most = wanted = limit + offset
    while True:
        hits = fetch(most)
        counted = [hit for hit in hits if where is None or where(hit.record)]
        if len(counted) >= wanted or len(hits) < most:
            return counted[offset:wanted]
        most *= CANDIDATE_GROWTH_FACTOR


# Writing


def put_records(
    writer: Writer,
    records: Sequence[PreparedRecord],
    deletions: Sequence[tuple[RecordPlace, int | None]],
    *,
    namespace: str,
    limits: HistoryLimits,
) -> list[Record]:
    """Delete some records, then put others in order, and return the records that were put."""
    now = limits.now
    named = [(one.labels, one.key) for one in records if one.key is not None]
    needed = [] if all(one.texts for one in records) else [INDEX_NOTE]
    stored_by_place, notes = _find_stored(writer, [*(place for place, _ in deletions), *named], needed)
    if needed and INDEX_NOTE not in notes and not writer.note_names(NOTE_PREFIX, limit=1):
        # Without records of an earlier commit, the index is complete.
        writer.set_note(INDEX_NOTE, "1")
    records = [*_assign_keys(writer, records)]
    places = [(one.labels, str(one.key)) for one in records]
    deleted_records = []
    for place, version in deletions:
        stored = stored_by_place.pop(place, None)
        check_version(place, None if stored is None or stored.is_over(now) else stored, version)
        deleted_records += [] if stored is None else [stored]
    _delete_stored(writer, deleted_records)
    known = {place: one for place, one in stored_by_place.items() if not one.is_over(now)}
    for one, place in zip(records, places, strict=True):
        if one.texts and place in known:
            # The memory of a record contains its former versions, because a search with ``as_of`` shows them.
            known[place] = load_versions(writer, known[place])
    latest: dict[RecordPlace, tuple[PreparedRecord, StoredRecord]] = {}
    written = []
    for one, place in zip(records, places, strict=True):
        check_version(place, known.get(place), one.if_version)
        known[place] = _next_version(one, place, known.get(place), namespace=namespace, limits=limits)
        latest[place] = one, known[place]
        written.append(known[place].record)
    _write_records(writer, latest, stored_by_place, now=now)
    return written


def _assign_keys(reader: Reader, records: Sequence[PreparedRecord]) -> Iterator[PreparedRecord]:
    """Set the key of each record without one to the next number under its labels."""
    last: dict[tuple[str, ...], int] = {}
    for one in records:
        if one.key is not None:
            yield one
            continue
        if one.labels not in last:
            last[one.labels] = _find_last_number(reader, one.labels)
        last[one.labels] += 1
        if last[one.labels] >= 10**KEY_DIGITS:
            raise InvalidArgument(
                "there is no number behind the last key under these labels", hint="delete it, or append elsewhere"
            )
        yield attrs.evolve(one, key=f"{last[one.labels]:0{KEY_DIGITS}d}")


def _find_last_number(reader: Reader, labels: tuple[str, ...]) -> int:
    names = find_names_below(reader, labels, nested=False)
    names += reader.record_paths(path_below(labels, nested=False))
    keys = [name.rpartition(f"/{KEY_PREFIX}")[2] for name in names]
    return max((int(key) for key in keys if len(key) == KEY_DIGITS and key.isdecimal() and key.isascii()), default=0)


def check_version(place: RecordPlace, present: StoredRecord | None, expected: int | None) -> None:
    """Raise `VersionConflict` if the stored version is not the expected version."""
    version = 0 if present is None else present.record.version
    if expected is not None and version != expected:
        labels, key = place
        raise VersionConflict(
            f"the record is at version {version}, and not at {expected}" if version else "the record is not there",
            labels=labels,
            key=key,
            version=version,
            hint="read it again, and put what follows from what it is now",
        )


def _next_version(
    new: PreparedRecord, place: RecordPlace, present: StoredRecord | None, *, namespace: str, limits: HistoryLimits
) -> StoredRecord:
    """Build the stored record that results from a put."""
    now = limits.now
    # Apply the limits before the put, because afterwards it is unknown when a version was replaced.
    present = None if present is None else limits.apply(present)
    created_at = present.record.created_at if present else new.created_at or now
    former = () if present is None else present.history
    if present is not None and new.history:
        was = present.record
        former = (*former, PreviousValue(value=was.value, version=was.version, at=was.updated_at, text=was.text))
    record = Record(
        labels=place[0],
        key=place[1],
        value=new.value,
        version=1 if present is None else present.record.version + 1,
        created_at=created_at,
        updated_at=max(now, created_at) if present else created_at,
        expires_at=new.expires_at,
        text=new.text,
        origin=new.origin,
        memory_id=record_memory_id(place) if new.texts else None,
    )
    memory = None
    trust = record.origin
    versions = () if present is None else present.versions
    limited = limits.apply(StoredRecord(record, former, new.created_by, versions=versions))
    former = limited.history
    if present is not None and (former or limited.versions):
        # A search with ``as_of`` also shows former values, so the trust must not exceed theirs.
        was_trusted = present.record.origin if present.memory is None else present.memory.trust
        trust = least_trusted([trust, was_trusted])
    if record.text is not None and record.memory_id is not None:
        memory = Memory(
            id=record.memory_id,
            type=MemoryType.RECORD,
            content=record.text,
            metadata=RecordMetadata(
                labels=record.labels,
                key=record.key,
                value=record.value,
                version=record.version,
                text_lengths=tuple(map(len, new.texts)) if len(new.texts) > 1 else (),
                history=former,
                created_by=new.created_by,
            ),
            mentions=new.mentions,
            created_at=record.created_at,
            updated_at=record.updated_at,
            namespace=namespace,
            origin=record.origin,
            trust=trust,
            valid_until=record.expires_at,
            previous_texts=_former_texts(present, record, limits, keep=new.history),
        )
    return attrs.evolve(limited, memory=memory)


def _former_texts(
    present: StoredRecord | None, record: Record, limits: HistoryLimits, *, keep: bool
) -> tuple[PreviousText, ...]:
    """Return the former texts of a record's memory, including the replaced text if *keep* is true."""
    if present is None or present.memory is None:
        return ()
    before = present.memory
    texts = before.previous_texts
    if keep and before.content != record.text:
        texts = (*texts, PreviousText(content=before.content, until=record.updated_at))
    return tuple(one for one in texts[max(len(texts) - limits.count, 0) :] if limits.includes(one.until))


def _write_records(
    writer: Writer,
    latest: Mapping[RecordPlace, tuple[PreparedRecord, StoredRecord]],
    stored_by_place: Mapping[RecordPlace, StoredRecord],
    *,
    now: datetime,
) -> None:
    new: list[NewMemory] = []
    notes: dict[str, str | None] = {}
    for place, (asked, stored) in latest.items():
        before = stored_by_place.get(place)
        if before is not None and before.memory is not None and (stored.memory is None or before.is_over(now)):
            writer.delete(before.memory.id)
            before = None
        notes |= note_changes(before, stored)
        if stored.memory is None:
            continue
        vectors = asked.vectors
        if vectors is None:
            raise ValueError("a record with text needs vectors")
        if before is not None and before.memory is not None:
            is_same = before.memory.content == stored.memory.content and _text_lengths(before.memory) == _text_lengths(
                stored.memory
            )
            writer.put(stored.memory, vectors=None if is_same else vectors)
        else:
            new.append(NewMemory(memory=stored.memory, vectors=vectors))
    if notes:
        writer.set_notes(notes)
    if new:
        writer.put_new(new, lambda nodes: [()] * len(nodes))


def _text_lengths(memory: Memory) -> tuple[int, ...]:
    return memory.metadata.text_lengths if isinstance(memory.metadata, RecordMetadata) else ()


def _delete_stored(writer: Writer, records: Iterable[StoredRecord]) -> None:
    notes: dict[str, str | None] = {}
    for stored in records:
        notes |= note_changes(stored, None)
        if stored.memory is not None:
            writer.delete(stored.memory.id)
    if notes:
        writer.set_notes(notes)


def delete_record(writer: Writer, place: RecordPlace, *, if_version: int | None, now: datetime) -> bool:
    """Delete a record, and return True if it existed."""
    found, lost = (_find_latest(writer, [place]), 0) if if_version is not None else _find_readable(writer, [place])
    stored = found.get(place)
    present = None if stored is None or stored.is_over(now) else stored
    check_version(place, present, if_version)
    if stored is not None:
        _delete_stored(writer, [stored])
    return present is not None or lost > 0


def delete_records(writer: Writer, places: Sequence[RecordPlace], *, erase: bool, expired_by: datetime | None) -> int:
    """
    Delete records, and return the number of deleted records.

    With *expired_by*, only records that expired by that time are deleted. *erase* erases all their data from the disk.
    """
    if erase:
        writer.mark_for_erasure()
    there, lost = (_find_latest(writer, places), 0) if expired_by is not None else _find_readable(writer, places)
    # Check the expiry again, because an expired record may have been replaced since it was read.
    found = [one for one in there.values() if expired_by is None or one.is_over(expired_by)]
    _delete_stored(writer, found)
    return len(found) + lost


def _find_readable(writer: Writer, places: Sequence[RecordPlace]) -> tuple[dict[RecordPlace, StoredRecord], int]:
    """
    Return the readable records at the given places, and the number of unreadable notes.

    Unreadable notes are deleted.
    """
    try:
        return _find_latest(writer, places), 0
    except StoreDamaged:
        # `admin.rebuild` repairs damaged memories, so only notes are deleted here.
        kept = zip(places, writer.find_many([record_memory_id(place) for place in places]), strict=True)
        lost = delete_unreadable(writer, [note_name(place) for place, node in kept if node is None], erase=False)
        return _find_latest(writer, places), lost


def delete_unreadable(writer: Writer, names: Sequence[str], *, erase: bool) -> int:
    """Delete the notes that are still unreadable, and return their number."""
    if erase:
        writer.mark_for_erasure()
    # Read the notes again, because a damaged note may have been replaced or deleted in the meantime.
    lost = [name for name, one in iter_readable_or_error(writer, names) if isinstance(one, StoreDamaged)]
    writer.set_notes(dict.fromkeys(lost) | dict.fromkeys(find_entries_of(writer, lost)))
    return len(lost)


def pop_last(writer: Writer, labels: tuple[str, ...], *, now: datetime) -> Record | None:
    """Delete and return the last record under exactly these labels. Return None if there is no record."""
    last = list_records(
        writer, RecordListing(labels=labels, nested=False, last_first=True, limit=1), now=now, skip_damaged=False
    )
    _delete_stored(writer, last)
    return last[0].record if last else None


def set_expiry(
    writer: Writer, places: Sequence[tuple[RecordPlace, int | None]], expires_at: datetime | None, *, now: datetime
) -> int:
    """Set the expiry of records that have the expected versions, and return their number."""
    wanted = dict(places)
    there = [one for one in find_stored(writer, wanted).values() if not one.is_over(now)]
    found = [one for one in there if wanted[one.place] in (None, one.record.version)]
    notes: dict[str, str | None] = {}
    for stored in found:
        if stored.memory is None:
            record = attrs.evolve(stored.record, expires_at=expires_at)
            notes |= note_changes(stored, attrs.evolve(stored, record=record))
        else:
            writer.put(attrs.evolve(stored.memory, valid_until=expires_at))
    if notes:
        writer.set_notes(notes)
    return len(found)


def move_records(
    writer: Writer, moves: Sequence[tuple[RecordPlace, RecordPlace]], *, overwrite: bool, now: datetime
) -> int:
    """Move records to other places, with their history and links, and return their number."""
    there = find_stored(writer, [place for pair in moves for place in pair])
    found = [(there[old], new) for old, new in moves if old in there and old != new and not there[old].is_over(now)]
    leaving = {stored.place for stored, _ in found}
    for _, new in found:
        if new in there and new not in leaving:
            if not overwrite and not there[new].is_over(now):
                check_version(new, there[new], 0)
            _delete_stored(writer, [there[new]])
    ids = {stored.memory.id: record_memory_id(new) for stored, new in found if stored.memory is not None}
    kept = [(load_versions(writer, stored), new, *_get_vectors_and_links(writer, stored)) for stored, new in found]
    _delete_stored(writer, [stored for stored, _ in found])
    made = [(_with_place(stored, new), vectors) for stored, new, vectors, _ in kept]
    notes: dict[str, str | None] = {}
    for one, _ in made:
        notes |= note_changes(None, one)
    if notes:
        writer.set_notes(notes)
    new_memories = [NewMemory(memory=one.memory, vectors=vectors) for one, vectors in made if one.memory is not None]
    if new_memories:
        writer.put_new(new_memories, lambda nodes: [()] * len(nodes))
    for link in {link.id: link for _, _, _, links in kept for link in links}.values():
        from_id, to_id = ids.get(link.from_id, link.from_id), ids.get(link.to_id, link.to_id)
        writer.put_link(attrs.evolve(link, from_id=from_id, to_id=to_id))
    return len(found)


def _get_vectors_and_links(reader: Reader, stored: StoredRecord) -> tuple[Vectors, list[Link]]:
    """Return the vectors and links of a record. A record without text has none."""
    node = None if stored.memory is None else reader.find(stored.memory.id)
    if node is None:
        return np.empty((0, 0), np.float32), []
    return reader.vectors(node), reader.read_links(node)


def _with_place(stored: StoredRecord, place: RecordPlace) -> StoredRecord:
    labels, key = place
    if stored.memory is None:
        return attrs.evolve(stored, record=attrs.evolve(stored.record, labels=labels, key=key))
    own = stored.memory.metadata
    metadata = attrs.evolve(own, labels=labels, key=key) if isinstance(own, RecordMetadata) else own
    return record_from_memory(attrs.evolve(stored.memory, id=record_memory_id(place), metadata=metadata))
