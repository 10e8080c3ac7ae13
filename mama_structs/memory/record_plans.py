"""The plans that read and write records: those with text are memories, all others notes of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._provenance import least_trusted
from mama_structs.errors import InvalidArgument, StoreDamaged, VersionConflict
from mama_structs.memory import search
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.engine import KEY, Filter, NewMemory, Reader, Vectors, Writer, place_of
from mama_structs.memory.model import FormerText, FormerValue, Link, Memory, MemoryType, RecordMetadata
from mama_structs.memory.records import (
    NOTES,
    HostRecord,
    Place,
    PreparedRecord,
    RecordHit,
    StoredRecord,
    Where,
    as_note,
    is_whole,
    labels_in,
    memory_id_of,
    name_of,
    of_memory,
    of_note,
    place_in,
    unlike_what_was_written,
)
from mama_structs.memory.search import SearchRequest
from mama_structs.storage.failures import Finding

_NUMBER: Final = 12
_PAGE: Final = 256
_MORE: Final = 4
_RECORDS: Final = frozenset({MemoryType.RECORD})


# What is read


def look(reader: Reader, places: Iterable[Place]) -> dict[Place, StoredRecord]:
    """Return those of some records that are there, ended ones too."""
    unique = list(dict.fromkeys(places))
    if not unique:
        return {}
    nodes = reader.find_many([memory_id_of(place) for place in unique])
    having = {place: node for place, node in zip(unique, nodes, strict=True) if node is not None}
    memories = reader.get(list(having.values())) if having else []
    stored = {place: of_memory(memory) for place, memory in zip(having, memories, strict=True)}
    names = {name_of(place): place for place in unique if place not in stored}
    notes = reader.notes_named(list(names)) if names else {}
    return stored | {names[name]: of_note(text) for name, text in notes.items()}


def get(reader: Reader, places: Sequence[Place], *, now: datetime) -> list[HostRecord | None]:
    """Return records, None for what is not there."""
    found = look(reader, places)
    return [None if (one := found.get(place)) is None or one.is_over(now) else one.record for place in places]


def history(reader: Reader, place: Place, *, now: datetime) -> list[HostRecord]:
    """Return a record and what it was before, newest first."""
    stored = look(reader, [place]).get(place)
    if stored is None or stored.is_over(now):
        return []
    return [
        stored.record,
        *(
            attrs.evolve(stored.record, value=one.value, version=one.version, updated_at=one.at, text=one.text)
            for one in reversed(stored.history)
        ),
    ]


def below(labels: tuple[str, ...], *, nested: bool, now: datetime | None = None) -> Filter:
    """Return what lets the records with text below labels pass that have not ended."""
    # Below no labels are all, without a look at what each one names.
    return Filter(types=_RECORDS, labels=labels if labels or not nested else None, nested=nested, valid_at=now)


def _names_below(reader: Reader, labels: tuple[str, ...], *, nested: bool) -> list[str]:
    return reader.note_names(f"{NOTES}{place_of(labels)}{'' if nested else KEY}")


def _memories_below(reader: Reader, where: Filter) -> list[Memory]:
    nodes = reader.window(where)
    return reader.get(nodes) if len(nodes) else []


@attrs.frozen(kw_only=True)
class RecordListing:
    """Which records are listed, in the order of their places: labels and key as they are written there."""

    labels: tuple[str, ...] = ()
    nested: bool = True
    prefix: str = ""
    after: str | None = None
    limit: int | None = None
    last_first: bool = False
    where: Where | None = None

    def names(self, places: Mapping[str, str]) -> list[str]:
        """Return those of some names that are listed, in the order of the places by them, however many there are."""
        found = sorted(places, key=lambda name: _parts(places[name]), reverse=self.last_first)
        if self.prefix:
            begin = place_of(self.labels, self.prefix)
            found = [name for name in found if places[name].startswith(begin)]
        if self.after is not None:
            bound = place_of(self.labels, self.after)
            found = [name for name in found if (places[name] < bound if self.last_first else places[name] > bound)]
        return found


def _parts(place: str) -> tuple[list[str], str]:
    """Return what orders places: label by label, for a sign in one label may stand before what parts labels."""
    above, _, key = place.rpartition("/")
    return above.split("/") if above else [], key


def listed(reader: Reader, asked: RecordListing, *, now: datetime) -> list[StoredRecord]:
    """Return records in the order of their places."""
    where = below(asked.labels, nested=asked.nested, now=now)
    known = {name_of(one.place): one for one in map(of_memory, _memories_below(reader, where))}
    names = _names_below(reader, asked.labels, nested=asked.nested)
    long = [name for name in names if not is_whole(name)]
    known |= dict(zip(long, _each(reader, long, {}, None), strict=True))
    places = {name: name.removeprefix(NOTES) for name in names}
    places |= {name: place_of(*one.place) for name, one in known.items()}
    names = asked.names(places)
    passing = (
        one
        for one in _each(reader, names, known, asked.limit)
        if not one.is_over(now) and (asked.where is None or asked.where(one.record))
    )
    return list(itertools.islice(passing, asked.limit))


def _each(
    reader: Reader, names: Sequence[str], known: Mapping[str, StoredRecord], limit: int | None
) -> Iterator[StoredRecord]:
    """Give records of some names, reading notes as they are wanted."""
    size = _PAGE if limit is None else min(max(limit, 1), _PAGE)
    for start in range(0, len(names), size):
        page = names[start : start + size]
        notes = reader.notes_named([name for name in page if name not in known])
        for name in page:
            yield known[name] if name in known else of_note(notes[name])


def _tried(reader: Reader, names: Sequence[str]) -> Iterator[tuple[str, StoredRecord | StoreDamaged]]:
    """Give the records of some notes by their names, and in place of those that nobody can read why not."""
    for start in range(0, len(names), _PAGE):
        page = names[start : start + _PAGE]
        try:
            notes = reader.notes_named(page)
        except StoreDamaged as error:
            notes = {}
            if len(page) == 1:
                yield page[0], error
            else:
                for name in page:
                    yield from _tried(reader, [name])
        for name, text in notes.items():
            try:
                stored = of_note(text)
                yield name, stored if name_of(stored.place) == name else unlike_what_was_written()
            except StoreDamaged as error:
                yield name, error


def labels_below(reader: Reader, labels: tuple[str, ...], *, now: datetime) -> list[tuple[str, ...]]:
    """Return all labels in use that begin with some, sorted."""
    found = {labels_in(name) for name in _names_below(reader, labels, nested=True)}
    memories = _memories_below(reader, below(labels, nested=True, now=now))
    return sorted(found.union(of_memory(one).record.labels for one in memories))


def places_below(reader: Reader, labels: tuple[str, ...], *, nested: bool) -> tuple[list[Place], list[str]]:
    """Return the places of all records below labels, ended ones too, and the names of those that nobody can read."""
    memories = _memories_below(reader, below(labels, nested=nested, now=None))
    places = [of_memory(one).place for one in memories]
    names = _names_below(reader, labels, nested=nested)
    places += [place for name in names if (place := place_in(name)) is not None]
    lost = []
    for name, one in _tried(reader, [name for name in names if place_in(name) is None]):
        if isinstance(one, StoredRecord):
            places.append(one.place)
        else:
            lost.append(name)
    return places, lost


def ids_of(reader: Reader, places: Sequence[Place]) -> list[str]:
    """Return the ids of those records at some places that have a text."""
    ids = [memory_id_of(place) for place in places]
    return [one for one, node in zip(ids, reader.find_many(ids), strict=True) if node is not None]


def ended(reader: Reader, *, now: datetime) -> list[Place]:
    """Return the places of all records that have ended."""
    every, holding = (reader.window(Filter(types=_RECORDS, valid_at=at)) for at in (None, now))
    over = np.setdiff1d(every, holding)
    memories = map(of_memory, reader.get(over) if len(over) else [])
    tried = _tried(reader, _names_below(reader, (), nested=True))
    notes = (one for _, one in tried if isinstance(one, StoredRecord))
    return [one.place for one in itertools.chain(memories, notes) if one.is_over(now)]


def unreadable(reader: Reader) -> list[Finding]:
    """Return which records without text are not what was written; a row that is damaged itself is the engine's."""
    return [
        Finding("error", "damaged", f"{name}: {one.findings[0]}", name)
        for name, one in _tried(reader, _names_below(reader, (), nested=True))
        if isinstance(one, StoreDamaged) and not one.file
    ]


# Queries


def found(reader: Reader, request: SearchRequest, where: Where | None, *, offset: int) -> list[RecordHit]:
    """Return the records that answer a question best, as the search of memories has them."""

    def ask(most: int) -> list[RecordHit]:
        hits, _ = search.hits(reader, attrs.evolve(request, limit=most))
        return [
            RecordHit(record=of_memory(hit.memory).record, score=hit.score, relevance=hit.relevance) for hit in hits
        ]

    return _passing(ask, where, request.limit, offset)


def nearest(
    reader: Reader,
    vector: NDArray[np.float32],
    asked: RecordListing,
    calibration: Calibration,
    *,
    now: datetime,
    limit: int,
) -> list[RecordHit]:
    """Return the records whose best text is nearest to a vector, by cosine alone."""
    where = below(asked.labels, nested=asked.nested, now=now)

    def ask(most: int) -> list[RecordHit]:
        matches = reader.nearest(vector, most, where)
        likeness = calibration(matches.scores.astype(float))
        hits = [
            RecordHit(record=of_memory(memory).record, score=float(score), relevance=float(alike), cosine=float(score))
            for memory, score, alike in zip(reader.get(matches.nodes), matches.scores, likeness, strict=True)
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.record.labels, hit.record.key))

    return _passing(ask, asked.where, limit, 0)


def _passing(ask: Callable[[int], list[RecordHit]], where: Where | None, limit: int, offset: int) -> list[RecordHit]:
    """Return the best that count, asking for more and more where some do not."""
    most = wanted = limit + offset
    while True:
        hits = ask(most)
        counted = [hit for hit in hits if where is None or where(hit.record)]
        if len(counted) >= wanted or len(hits) < most:
            return counted[offset:wanted]
        most *= _MORE


# What is written


def put(
    writer: Writer,
    asked: Sequence[PreparedRecord],
    gone: Sequence[tuple[Place, int | None]],
    *,
    namespace: str,
    now: datetime,
) -> list[HostRecord]:
    """Delete some records and then put others, in their order, and return these."""
    named = [(one.labels, one.key) for one in asked if one.key is not None]
    there = look(writer, [*(place for place, _ in gone), *named])
    asked = [*_numbered(writer, asked)]
    places = [(one.labels, str(one.key)) for one in asked]
    leaving = []
    for place, version in gone:
        stored = there.pop(place, None)
        check_version(place, None if stored is None or stored.is_over(now) else stored, version)
        leaving += [] if stored is None else [stored]
    _remove(writer, leaving)
    known = {place: one for place, one in there.items() if not one.is_over(now)}
    latest: dict[Place, tuple[PreparedRecord, StoredRecord]] = {}
    written = []
    for one, place in zip(asked, places, strict=True):
        check_version(place, known.get(place), one.if_version)
        known[place] = _next(one, place, known.get(place), namespace=namespace, now=now)
        latest[place] = one, known[place]
        written.append(known[place].record)
    _write(writer, latest, there, now=now)
    return written


def _numbered(reader: Reader, asked: Sequence[PreparedRecord]) -> Iterator[PreparedRecord]:
    """Give records that have a key each: those that have none get the numbers behind the last one there."""
    last: dict[tuple[str, ...], int] = {}
    for one in asked:
        if one.key is not None:
            yield one
            continue
        if one.labels not in last:
            last[one.labels] = _last_number(reader, one.labels)
        last[one.labels] += 1
        if last[one.labels] >= 10**_NUMBER:
            raise InvalidArgument(
                "there is no number behind the last key under these labels", hint="delete it, or append elsewhere"
            )
        yield attrs.evolve(one, key=f"{last[one.labels]:0{_NUMBER}d}")


def _last_number(reader: Reader, labels: tuple[str, ...]) -> int:
    names = _names_below(reader, labels, nested=False)
    keys = [name.rpartition(f"/{KEY}")[2] for name in names]
    keys += [of_memory(one).record.key for one in _memories_below(reader, below(labels, nested=False, now=None))]
    return max((int(key) for key in keys if len(key) == _NUMBER and key.isdecimal() and key.isascii()), default=0)


def check_version(place: Place, present: StoredRecord | None, wanted: int | None) -> None:
    """Refuse a write that was meant for another version."""
    version = 0 if present is None else present.record.version
    if wanted is not None and version != wanted:
        labels, key = place
        raise VersionConflict(
            f"the record is at version {version}, and not at {wanted}" if version else "the record is not there",
            labels=labels,
            key=key,
            version=version,
            hint="read it again, and put what follows from what it is now",
        )


def _next(
    asked: PreparedRecord, place: Place, present: StoredRecord | None, *, namespace: str, now: datetime
) -> StoredRecord:
    """Return a record as it is after it was put."""
    created_at = present.record.created_at if present else asked.created_at or now
    former = () if present is None else present.history
    if present is not None and asked.history:
        was = present.record
        former = (*former, FormerValue(value=was.value, version=was.version, at=was.updated_at, text=was.text))
    record = HostRecord(
        labels=place[0],
        key=place[1],
        value=asked.value,
        version=1 if present is None else present.record.version + 1,
        created_at=created_at,
        updated_at=max(now, created_at) if present else created_at,
        expires_at=asked.expires_at,
        text=asked.text,
        origin=asked.origin,
        memory_id=memory_id_of(place) if asked.texts else None,
    )
    memory = None
    trust = record.origin
    if present is not None and former:
        # A search in the past shows the former values, too.
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
                lengths=tuple(map(len, asked.texts)) if len(asked.texts) > 1 else (),
                history=former,
                created_by=asked.created_by,
            ),
            mentions=asked.mentions,
            created_at=record.created_at,
            updated_at=record.updated_at,
            namespace=namespace,
            origin=record.origin,
            trust=trust,
            valid_until=record.expires_at,
            former=_former(present, record, keep=asked.history),
        )
    return StoredRecord(record, former, asked.created_by, memory)


def _former(present: StoredRecord | None, record: HostRecord, *, keep: bool) -> tuple[FormerText, ...]:
    """Return what the memory of a record said before."""
    if present is None or present.memory is None:
        return ()
    before = present.memory
    if not keep or before.content == record.text:
        return before.former
    return (*before.former, FormerText(content=before.content, until=record.updated_at))


def _write(
    writer: Writer,
    latest: Mapping[Place, tuple[PreparedRecord, StoredRecord]],
    there: Mapping[Place, StoredRecord],
    *,
    now: datetime,
) -> None:
    new: list[NewMemory] = []
    notes: dict[str, str | None] = {}
    for place, (asked, stored) in latest.items():
        before = there.get(place)
        if before is not None and before.memory is not None and (stored.memory is None or before.is_over(now)):
            writer.delete(before.memory.id)
            before = None
        if stored.memory is None:
            notes[name_of(place)] = as_note(stored)
            continue
        if before is not None and before.memory is None:
            notes[name_of(place)] = None
        vectors = asked.vectors
        if vectors is None:
            raise ValueError("a record with text needs vectors")
        if before is not None and before.memory is not None:
            is_same = before.memory.content == stored.memory.content and _lengths(before.memory) == _lengths(
                stored.memory
            )
            writer.put(stored.memory, vectors=None if is_same else vectors)
        else:
            new.append(NewMemory(memory=stored.memory, vectors=vectors))
    if notes:
        writer.set_notes(notes)
    if new:
        writer.put_new(new, lambda nodes: [()] * len(nodes))


def _lengths(memory: Memory) -> tuple[int, ...]:
    return memory.metadata.lengths if isinstance(memory.metadata, RecordMetadata) else ()


def _remove(writer: Writer, several: Iterable[StoredRecord]) -> None:
    notes: dict[str, str | None] = {}
    for stored in several:
        if stored.memory is None:
            notes[name_of(stored.place)] = None
        else:
            writer.delete(stored.memory.id)
    if notes:
        writer.set_notes(notes)


def delete(writer: Writer, place: Place, *, if_version: int | None, now: datetime) -> bool:
    """Delete a record, and tell whether it was there."""
    found, lost = (look(writer, [place]), 0) if if_version is not None else _readable(writer, [place])
    stored = found.get(place)
    present = None if stored is None or stored.is_over(now) else stored
    check_version(place, present, if_version)
    if stored is not None:
        _remove(writer, [stored])
    return present is not None or lost > 0


def delete_many(writer: Writer, places: Sequence[Place], *, forget: bool, ended: datetime | None) -> int:
    """
    Delete records, of them only those that have ended where it is said by when, and return how many there were.

    *forget* has nothing of them stay on the disk.
    """
    if forget:
        writer.leave_no_trace()
    there, lost = (look(writer, places), 0) if ended is not None else _readable(writer, places)
    # A place that was read to have ended may have been put anew since.
    found = [one for one in there.values() if ended is None or one.is_over(ended)]
    _remove(writer, found)
    return len(found) + lost


def _readable(writer: Writer, places: Sequence[Place]) -> tuple[dict[Place, StoredRecord], int]:
    """Return those of some records that are there, and how many without text were deleted as they cannot be read."""
    try:
        return look(writer, places), 0
    except StoreDamaged:
        # A memory is mended by `MemoryStore.rebuild`.
        kept = zip(places, writer.find_many([memory_id_of(place) for place in places]), strict=True)
        lost = delete_unreadable(writer, [name_of(place) for place, node in kept if node is None], forget=False)
        return look(writer, places), lost


def delete_unreadable(writer: Writer, names: Sequence[str], *, forget: bool) -> int:
    """Delete those of some notes that are no record which anybody can read, and return how many there were."""
    if forget:
        writer.leave_no_trace()
    # One that was read to be damaged may have been put anew since, or deleted.
    lost = [name for name, one in _tried(writer, names) if isinstance(one, StoreDamaged)]
    writer.set_notes(dict.fromkeys(lost))
    return len(lost)


def pop(writer: Writer, labels: tuple[str, ...], *, now: datetime) -> HostRecord | None:
    """Take away the last record under just these labels, and return it."""
    last = listed(writer, RecordListing(labels=labels, nested=False, last_first=True, limit=1), now=now)
    _remove(writer, last)
    return last[0].record if last else None


def expire(
    writer: Writer, places: Sequence[tuple[Place, int | None]], expires_at: datetime | None, *, now: datetime
) -> int:
    """Let records end at another time where they are at their versions, and return how many of them there are."""
    wanted = dict(places)
    there = [one for one in look(writer, wanted).values() if not one.is_over(now)]
    found = [one for one in there if wanted[one.place] in (None, one.record.version)]
    notes: dict[str, str | None] = {}
    for stored in found:
        if stored.memory is None:
            record = attrs.evolve(stored.record, expires_at=expires_at)
            notes[name_of(stored.place)] = as_note(attrs.evolve(stored, record=record))
        else:
            writer.put(attrs.evolve(stored.memory, valid_until=expires_at))
    if notes:
        writer.set_notes(notes)
    return len(found)


def move(writer: Writer, moves: Sequence[tuple[Place, Place]], *, overwrite: bool, now: datetime) -> int:
    """Have records at other places, with their history and links, and return how many of them there were."""
    there = look(writer, [place for pair in moves for place in pair])
    found = [(there[old], new) for old, new in moves if old in there and old != new and not there[old].is_over(now)]
    leaving = {stored.place for stored, _ in found}
    for _, new in found:
        if new in there and new not in leaving:
            if not overwrite and not there[new].is_over(now):
                check_version(new, there[new], 0)
            _remove(writer, [there[new]])
    ids = {stored.memory.id: memory_id_of(new) for stored, new in found if stored.memory is not None}
    kept = [(stored, new, *_with_all(writer, stored)) for stored, new in found]
    _remove(writer, [stored for stored, _ in found])
    made = [(_moved(stored, new), vectors) for stored, new, vectors, _ in kept]
    if notes := {name_of(one.place): as_note(one) for one, _ in made if one.memory is None}:
        writer.set_notes(notes)
    new_memories = [NewMemory(memory=one.memory, vectors=vectors) for one, vectors in made if one.memory is not None]
    if new_memories:
        writer.put_new(new_memories, lambda nodes: [()] * len(nodes))
    for link in {link.id: link for _, _, _, links in kept for link in links}.values():
        from_id, to_id = ids.get(link.from_id, link.from_id), ids.get(link.to_id, link.to_id)
        writer.put_link(attrs.evolve(link, from_id=from_id, to_id=to_id))
    return len(found)


def _with_all(reader: Reader, stored: StoredRecord) -> tuple[Vectors, list[Link]]:
    """Return a record's vectors and links, none where it has no text."""
    node = None if stored.memory is None else reader.find(stored.memory.id)
    if node is None:
        return np.empty((0, 0), np.float32), []
    return reader.vectors(node), reader.read_links(node)


def _moved(stored: StoredRecord, place: Place) -> StoredRecord:
    labels, key = place
    if stored.memory is None:
        return attrs.evolve(stored, record=attrs.evolve(stored.record, labels=labels, key=key))
    own = stored.memory.metadata
    metadata = attrs.evolve(own, labels=labels, key=key) if isinstance(own, RecordMetadata) else own
    return of_memory(attrs.evolve(stored.memory, id=memory_id_of(place), metadata=metadata))
