"""
Plans that read and write records.

Records with text are stored as memories, all others as notes. A place is the labels and the key of a record.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import InvalidArgument, StoreDamaged, VersionConflict
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.search import search_plan as search
from mama_structs.memory.search.search_request import SearchRequest
from mama_structs.memory.types.engine import KEY_PREFIX, EngineFilter, NewMemory, Reader, Vectors, Writer, record_path
from mama_structs.memory.types.model import Link, Memory, MemoryType, PreviousText, PreviousValue, RecordMetadata
from mama_structs.memory.types.record import (
    NOTE_PREFIX,
    PreparedRecord,
    Record,
    RecordHit,
    RecordPlace,
    RecordPredicate,
    StoredRecord,
    has_complete_key,
    note_name,
    parse_note_labels,
    parse_note_place,
    record_from_memory,
    record_from_note,
    record_memory_id,
    record_to_note,
    unreadable_record,
)
from mama_structs.provenance import least_trusted
from mama_structs.storage.sqlite_errors import Issue

KEY_DIGITS: Final = 12
PAGE_ROWS: Final = 256
CANDIDATE_GROWTH_FACTOR: Final = 4
RECORD_TYPES: Final = frozenset({MemoryType.RECORD})


# Reading


def find_stored(reader: Reader, places: Iterable[RecordPlace]) -> dict[RecordPlace, StoredRecord]:
    """Return the stored records at the given places, including expired ones."""
    unique = list(dict.fromkeys(places))
    if not unique:
        return {}
    nodes = reader.find_many([record_memory_id(place) for place in unique])
    having = {place: node for place, node in zip(unique, nodes, strict=True) if node is not None}
    memories = reader.get(list(having.values())) if having else []
    stored = {place: record_from_memory(memory) for place, memory in zip(having, memories, strict=True)}
    names = {note_name(place): place for place in unique if place not in stored}
    notes = reader.notes_by_name(list(names)) if names else {}
    return stored | {names[name]: record_from_note(text) for name, text in notes.items()}


def get_records(reader: Reader, places: Sequence[RecordPlace], *, now: datetime) -> list[Record | None]:
    """Return the records at the given places, with None for each missing or expired record."""
    found = find_stored(reader, places)
    return [None if (one := found.get(place)) is None or one.is_over(now) else one.record for place in places]


def get_versions(reader: Reader, place: RecordPlace, *, now: datetime) -> list[Record]:
    """Return a record and its former versions, newest first."""
    stored = find_stored(reader, [place]).get(place)
    if stored is None or stored.is_over(now):
        return []
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


def _find_names_below(reader: Reader, labels: tuple[str, ...], *, nested: bool) -> list[str]:
    return reader.note_names(f"{NOTE_PREFIX}{record_path(labels)}{'' if nested else KEY_PREFIX}")


def _get_memories_below(reader: Reader, where: EngineFilter) -> list[Memory]:
    nodes = reader.window(where)
    return reader.get(nodes) if len(nodes) else []


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
    where: RecordPredicate | None = None

    def select_names(self, places: Mapping[str, str]) -> list[str]:
        """Return the names whose places match the listing, ordered by place. Ignores the limit of the listing."""
        found = sorted(places, key=lambda name: _place_sort_key(places[name]), reverse=self.last_first)
        if self.prefix:
            begin = record_path(self.labels, self.prefix)
            found = [name for name in found if places[name].startswith(begin)]
        if self.after is not None:
            bound = _place_sort_key(self.after)
            keys = {name: _place_sort_key(places[name]) for name in found}
            found = [name for name in found if (keys[name] < bound if self.last_first else keys[name] > bound)]
        return found


def _place_sort_key(place: str) -> tuple[list[str], str]:
    """
    Return the sort key of a place.

    Places are compared label by label, because a label may contain characters that sort before the separator.
    """
    above, _, key = place.rpartition("/")
    return above.split("/") if above else [], key


def list_records(reader: Reader, listing: RecordListing, *, now: datetime) -> list[StoredRecord]:
    """Return the matching records, ordered by place."""
    where = filter_below(listing.labels, nested=listing.nested, now=now)
    known = {note_name(one.place): one for one in map(record_from_memory, _get_memories_below(reader, where))}
    names = _find_names_below(reader, listing.labels, nested=listing.nested)
    long = [name for name in names if not has_complete_key(name)]
    known |= dict(zip(long, _iter_stored(reader, long, {}, None), strict=True))
    places = {name: name.removeprefix(NOTE_PREFIX) for name in names}
    places |= {name: record_path(*one.place) for name, one in known.items()}
    names = listing.select_names(places)
    passing = (
        one
        for one in _iter_stored(reader, names, known, listing.limit)
        if not one.is_over(now) and (listing.where is None or listing.where(one.record))
    )
    return list(itertools.islice(passing, listing.limit))


def _iter_stored(
    reader: Reader, names: Sequence[str], known: Mapping[str, StoredRecord], limit: int | None
) -> Iterator[StoredRecord]:
    """Yield the records with the given names. Notes are loaded page by page, as needed."""
    size = PAGE_ROWS if limit is None else min(max(limit, 1), PAGE_ROWS)
    for start in range(0, len(names), size):
        page = names[start : start + size]
        notes = reader.notes_by_name([name for name in page if name not in known])
        for name in page:
            yield known[name] if name in known else record_from_note(notes[name])


def _iter_readable_or_error(reader: Reader, names: Sequence[str]) -> Iterator[tuple[str, StoredRecord | StoreDamaged]]:
    """Yield each note's name with its record, or with the error if the note is unreadable."""
    for start in range(0, len(names), PAGE_ROWS):
        page = names[start : start + PAGE_ROWS]
        try:
            notes = reader.notes_by_name(page)
        except StoreDamaged as error:
            notes = {}
            if len(page) == 1:
                yield page[0], error
            else:
                for name in page:
                    yield from _iter_readable_or_error(reader, [name])
        for name, text in notes.items():
            try:
                stored = record_from_note(text)
                yield name, stored if note_name(stored.place) == name else unreadable_record()
            except StoreDamaged as error:
                yield name, error


def find_labels_below(reader: Reader, labels: tuple[str, ...], *, now: datetime) -> list[tuple[str, ...]]:
    """Return all labels in use that begin with the given labels, sorted."""
    found = {parse_note_labels(name) for name in _find_names_below(reader, labels, nested=True)}
    memories = _get_memories_below(reader, filter_below(labels, nested=True, now=now))
    return sorted(found.union(record_from_memory(one).record.labels for one in memories))


def find_places_below(reader: Reader, labels: tuple[str, ...], *, nested: bool) -> tuple[list[RecordPlace], list[str]]:
    """
    Return the places of all records below labels, and the names of unreadable notes.

    Expired records are included.
    """
    memories = _get_memories_below(reader, filter_below(labels, nested=nested, now=None))
    places = [record_from_memory(one).place for one in memories]
    names = _find_names_below(reader, labels, nested=nested)
    places += [place for name in names if (place := parse_note_place(name)) is not None]
    lost = []
    for name, one in _iter_readable_or_error(reader, [name for name in names if parse_note_place(name) is None]):
        if isinstance(one, StoredRecord):
            places.append(one.place)
        else:
            lost.append(name)
    return places, lost


def find_memory_ids(reader: Reader, places: Sequence[RecordPlace]) -> list[str]:
    """Return the memory ids of the records with text at the given places."""
    ids = [record_memory_id(place) for place in places]
    return [one for one, node in zip(ids, reader.find_many(ids), strict=True) if node is not None]


def find_expired(reader: Reader, *, now: datetime) -> list[RecordPlace]:
    """Return the places of all expired records."""
    every, holding = (reader.window(EngineFilter(types=RECORD_TYPES, valid_at=at)) for at in (None, now))
    over = np.setdiff1d(every, holding)
    memories = map(record_from_memory, reader.get(over) if len(over) else [])
    tried = _iter_readable_or_error(reader, _find_names_below(reader, (), nested=True))
    notes = (one for _, one in tried if isinstance(one, StoredRecord))
    return [one.place for one in itertools.chain(memories, notes) if one.is_over(now)]


def find_unreadable(reader: Reader) -> list[Issue]:
    """Return a finding for each note with invalid content. The engine reports damaged rows itself."""
    return [
        Issue("error", "damaged", f"{name}: {one.findings[0]}", name)
        for name, one in _iter_readable_or_error(reader, _find_names_below(reader, (), nested=True))
        if isinstance(one, StoreDamaged) and not one.file
    ]


# Searching


def search_records(
    reader: Reader, request: SearchRequest, where: RecordPredicate | None, *, offset: int
) -> list[RecordHit]:
    """Return the records that match a query best, ranked by the memory search."""

    def find_page(most: int) -> list[RecordHit]:
        hits, _ = search.find_hits(reader, attrs.evolve(request, limit=most))
        return [
            RecordHit(record=record_from_memory(hit.memory).record, score=hit.score, relevance=hit.relevance)
            for hit in hits
        ]

    return _filter_hits(find_page, where, request.limit, offset)


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
    where = filter_below(listing.labels, nested=listing.nested, now=now)

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
            for memory, score, alike in zip(reader.get(matches.nodes), matches.scores, likeness, strict=True)
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.record.labels, hit.record.key))

    return _filter_hits(find_page, listing.where, limit, 0)


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
    now: datetime,
) -> list[Record]:
    """Delete some records, then put others in order, and return the records that were put."""
    named = [(one.labels, one.key) for one in records if one.key is not None]
    stored_by_place = find_stored(writer, [*(place for place, _ in deletions), *named])
    records = [*_assign_keys(writer, records)]
    places = [(one.labels, str(one.key)) for one in records]
    deleted_records = []
    for place, version in deletions:
        stored = stored_by_place.pop(place, None)
        check_version(place, None if stored is None or stored.is_over(now) else stored, version)
        deleted_records += [] if stored is None else [stored]
    _delete_stored(writer, deleted_records)
    known = {place: one for place, one in stored_by_place.items() if not one.is_over(now)}
    latest: dict[RecordPlace, tuple[PreparedRecord, StoredRecord]] = {}
    written = []
    for one, place in zip(records, places, strict=True):
        check_version(place, known.get(place), one.if_version)
        known[place] = _next_version(one, place, known.get(place), namespace=namespace, now=now)
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
    names = _find_names_below(reader, labels, nested=False)
    keys = [name.rpartition(f"/{KEY_PREFIX}")[2] for name in names]
    keys += [
        record_from_memory(one).record.key
        for one in _get_memories_below(reader, filter_below(labels, nested=False, now=None))
    ]
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
    new: PreparedRecord, place: RecordPlace, present: StoredRecord | None, *, namespace: str, now: datetime
) -> StoredRecord:
    """Build the stored record that results from a put."""
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
    if present is not None and former:
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
            previous_texts=_former_texts(present, record, keep=new.history),
        )
    return StoredRecord(record, former, new.created_by, memory)


def _former_texts(present: StoredRecord | None, record: Record, *, keep: bool) -> tuple[PreviousText, ...]:
    """Return the former texts of a record's memory, including the replaced text if *keep* is true."""
    if present is None or present.memory is None:
        return ()
    before = present.memory
    if not keep or before.content == record.text:
        return before.previous_texts
    return (*before.previous_texts, PreviousText(content=before.content, until=record.updated_at))


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
        if stored.memory is None:
            notes[note_name(place)] = record_to_note(stored)
            continue
        if before is not None and before.memory is None:
            notes[note_name(place)] = None
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
        if stored.memory is None:
            notes[note_name(stored.place)] = None
        else:
            writer.delete(stored.memory.id)
    if notes:
        writer.set_notes(notes)


def delete_record(writer: Writer, place: RecordPlace, *, if_version: int | None, now: datetime) -> bool:
    """Delete a record, and return True if it existed."""
    found, lost = (find_stored(writer, [place]), 0) if if_version is not None else _find_readable(writer, [place])
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
    there, lost = (find_stored(writer, places), 0) if expired_by is not None else _find_readable(writer, places)
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
        return find_stored(writer, places), 0
    except StoreDamaged:
        # `admin.rebuild` repairs damaged memories, so only notes are deleted here.
        kept = zip(places, writer.find_many([record_memory_id(place) for place in places]), strict=True)
        lost = delete_unreadable(writer, [note_name(place) for place, node in kept if node is None], erase=False)
        return find_stored(writer, places), lost


def delete_unreadable(writer: Writer, names: Sequence[str], *, erase: bool) -> int:
    """Delete the notes that are still unreadable, and return their number."""
    if erase:
        writer.mark_for_erasure()
    # Read the notes again, because a damaged note may have been replaced or deleted in the meantime.
    lost = [name for name, one in _iter_readable_or_error(writer, names) if isinstance(one, StoreDamaged)]
    writer.set_notes(dict.fromkeys(lost))
    return len(lost)


def pop_last(writer: Writer, labels: tuple[str, ...], *, now: datetime) -> Record | None:
    """Delete and return the last record under exactly these labels. Return None if there is no record."""
    last = list_records(writer, RecordListing(labels=labels, nested=False, last_first=True, limit=1), now=now)
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
            notes[note_name(stored.place)] = record_to_note(attrs.evolve(stored, record=record))
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
    kept = [(stored, new, *_get_vectors_and_links(writer, stored)) for stored, new in found]
    _delete_stored(writer, [stored for stored, _ in found])
    made = [(_with_place(stored, new), vectors) for stored, new, vectors, _ in kept]
    if notes := {note_name(one.place): record_to_note(one) for one, _ in made if one.memory is None}:
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
