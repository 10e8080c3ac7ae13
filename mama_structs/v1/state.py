"""
What a store says of its migrations: a mark on each memory and link that one made, and a note of each.

Memories may be deleted one by one, and the note may not. It says when the migration was begun, which one came last,
and, once it is complete, what was settled by then.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Literal, Self, TypeVar

import attrs
import msgspec

from mama_structs.errors import MigrationError
from mama_structs.memory.codec import Entry, read_memory, write_entry
from mama_structs.memory.engine import Reader, Writer
from mama_structs.memory.model import ContextMetadata, DecisionMetadata, Link, Memory, milliseconds
from mama_structs.v1.plan import OLD, MigrationPlan, PlannedMemory
from mama_structs.v1.read import DECISIONS, EDGES
from mama_structs.v1.report import OddRow

T = TypeVar("T")
MARK: Final = "migrated"
BACKFILLED: Final = "backfilled"
PREFIX: Final = "migration/"
_SIZE: Final = 12
_LINKS: Final = frozenset({"supersedes", "superseded_by", "refined_from", "updated_at"})
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TAKEN: Final = "left out: a memory of that id is there that no migration made"
_DELETED: Final = "left out: it was migrated before, and deleted since"
_UNLINKED: Final = "left out: it was migrated before, and taken away since"
_ROW_CHANGED: Final = "its row was changed since it was migrated: the memory is left as it is"
_CHANGED: Final = "it was migrated before, and changed since: it is left as it is"
_LINK_CHANGED: Final = "its row was changed since it was migrated, and the link is left as it is"


# Marks


@attrs.frozen(kw_only=True)
class Mark:
    """Which migration made a memory, when that was begun, and digests of the memory and of its row (may be empty)."""

    migration: str
    at: datetime
    digest: str
    row: str = ""

    @classmethod
    def of(cls, memory: Memory) -> Self | None:
        """Return a memory's mark, None where it has none."""
        found = memory.metadata.extra.get(MARK)
        if not isinstance(found, Mapping):
            return None
        try:
            at = datetime.fromisoformat(found["at"]).astimezone(UTC)
            name, digest, row = str(found["migration"]), str(found["digest"]), str(found.get("row", ""))
        except (KeyError, TypeError, ValueError):
            return None
        return cls(migration=name, at=at, digest=digest, row=row)


def marked(memory: Memory, migration: str, at: datetime) -> Memory:
    """Return a memory with the mark of a migration."""
    digests = {"digest": digest_of(memory), "row": row_digest_of(memory)}
    extra = {**memory.metadata.extra, MARK: {"migration": migration, "at": at.isoformat(), **digests}}
    return attrs.evolve(memory, metadata=attrs.evolve(memory.metadata, extra=extra))


def digest_of(memory: Memory) -> str:
    """Return what tells whether a memory was changed: the same for the same content, mark and namespace aside."""
    extra = {name: value for name, value in memory.metadata.extra.items() if name != MARK}
    plain = attrs.evolve(memory, namespace="", metadata=attrs.evolve(memory.metadata, extra=extra))
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]


def row_digest_of(memory: Memory) -> str:
    """
    Return what tells whether a memory's row was changed: the same where it says the same.

    When it was updated does not count, nor which rows it names: v1.0 changes that in a row that is superseded, and
    these become links. Nor do mentions, which depend on the host.
    """
    old = memory.metadata.extra.get(OLD)
    said = {name: value for name, value in old.items() if name not in _LINKS} if isinstance(old, Mapping) else {}
    metadata = attrs.evolve(memory.metadata, extra={**memory.metadata.extra, OLD: said})
    if isinstance(metadata, DecisionMetadata):
        metadata = attrs.evolve(metadata, outcome_at=None, history=())
    # Why a decision came out as it did has the time of its row's update.
    created = _NO_TIME if isinstance(metadata, ContextMetadata) else memory.created_at
    return digest_of(attrs.evolve(memory, metadata=metadata, mentions=(), created_at=created, updated_at=created))


def as_stored(memory: Memory) -> Memory:
    """Return a memory as it comes back from the store; ValueError where it cannot be written."""
    return read_memory(write_entry(Entry(memory)))


def migration_of(link: Link) -> str | None:
    """Return the migration that made a link, None for another link."""
    found = link.metadata.extra.get(MARK)
    return found if isinstance(found, str) else None


def is_backfilled(link: Link) -> bool:
    """Tell whether a migration added a link to those that the old file says."""
    return migration_of(link) is not None and bool(link.metadata.extra.get(BACKFILLED))


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield so many items at a time."""
    ahead = iter(items)
    while some := list(islice(ahead, size)):
        yield some


# Notes


class MigrationNote(msgspec.Struct, frozen=True, kw_only=True):
    """
    One migration: later ones have a higher *order*, whatever the clock says.

    *settled* holds the keys (`key_of`) of the memories and links of the old file that were there when it was complete,
    or deleted before; what is not there any more was deleted, and does not come back.
    """

    migration: str
    order: int
    begun: datetime
    checksum: str
    state: Literal["begun", "complete", "undone"] = "begun"
    settled: bytes = b""

    @property
    def is_complete(self) -> bool:
        """Whether it was brought to its end."""
        return self.state == "complete"

    @property
    def keys(self) -> frozenset[bytes]:
        """The keys of what was settled."""
        return frozenset(self.settled[at : at + _SIZE] for at in range(0, len(self.settled), _SIZE))


_decode: Final = msgspec.json.Decoder(MigrationNote).decode


def key_of(one: str) -> bytes:
    """Return what stands for a memory's or link's id."""
    return hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest()[:_SIZE]


def joined(ids: Iterable[str]) -> bytes:
    """Return the keys of some ids as `MigrationNote.settled` holds them."""
    return b"".join(sorted({key_of(one) for one in ids}))


def records_of(reader: Reader) -> dict[str, MigrationNote]:
    """Return the migrations that the store notes, by name."""
    found = {}
    for name, text in reader.notes(PREFIX).items():
        try:
            found[name.removeprefix(PREFIX)] = _decode(text)
        except (ValueError, RecursionError) as error:
            what = f"what the store notes of {name!r:.100} cannot be read: {error}"
            raise MigrationError(what, path="", hint="restore a backup") from error
    return found


def keep(writer: Writer, note: MigrationNote) -> MigrationNote:
    """Note a migration, and return the note."""
    writer.set_note(f"{PREFIX}{note.migration}", msgspec.json.encode(note).decode())
    return note


def changed_note(
    writer: Writer, note: MigrationNote, state: Literal["begun", "complete", "undone"], settled: bytes = b""
) -> MigrationNote:
    """Note that a migration is in another state, and return the note."""
    return keep(writer, msgspec.structs.replace(note, state=state, settled=settled))


def begin(writer: Writer, migration: str, *, checksum: str, at: datetime) -> MigrationNote:
    """Return the note of a migration that goes on from now; it is written, unless it is complete."""
    known = records_of(writer)
    own = known.get(migration)
    if own is None:
        order = 1 + max((one.order for one in known.values()), default=0)
        return keep(writer, MigrationNote(migration=migration, order=order, begun=at, checksum=checksum))
    return own if own.state != "undone" else changed_note(writer, own, "begun")


def still(reader: Reader, note: MigrationNote) -> MigrationNote:
    """Return a note as it is now; MigrationError where somebody took the migration back, or has begun it anew."""
    now = records_of(reader).get(note.migration)
    if now is None or now.state == "undone" or (now.order, now.begun) != (note.order, note.begun):
        raise MigrationError(
            "the migration was taken back by somebody else while it ran", path="", hint="run it again if it is wanted"
        )
    return now


# What of an old file is in a store, what is to be written, and what is left out: decided before any of it is.


@attrs.frozen(eq=False, kw_only=True)
class StoreState:
    """
    What of a plan is in the store: memories, and the links that begin at these, by id.

    *complete* names the migrations that were brought to their end (*is_over*: this one, too), *settled* holds the keys
    of what these found or made.
    """

    present: Mapping[str, Memory]
    links: Mapping[str, Link]
    complete: Collection[str]
    settled: Collection[bytes]
    is_over: bool

    def was_there(self, one: str) -> bool:
        """Tell whether a memory or link that is not there was there once."""
        return self.is_over or key_of(one) in self.settled


@attrs.frozen(eq=False, kw_only=True)
class Standing:
    """
    What becomes of a plan: memories and links that are there or are to be written, *new_links* of these to be written.

    *settled* are the ids that need not be looked for again once all is written, *left_out* the rows of each table that
    are not in the store then as they are in the old file, and *odd* says why.
    """

    ours: tuple[PlannedMemory, ...]
    links: tuple[Link, ...]
    new_links: tuple[Link, ...]
    settled: tuple[str, ...]
    left_out: Mapping[str, int]
    odd: tuple[OddRow, ...]


def standing_of(plan: MigrationPlan, planned: Sequence[PlannedMemory], state: StoreState) -> Standing:
    """Return what becomes of a plan, whose memories with what they mention are *planned*."""
    odd: list[OddRow] = []
    left_out: Counter[str] = Counter()
    without: dict[str, str] = {}
    for one in planned:
        found = _of_memory(one, state)
        if found is not None:
            kind, what = found
            if kind in {"id_taken", "deleted_since"}:
                without[one.memory.id] = kind
            left_out[one.table] += kind != "changed_since" and one.outcome_of is None
            odd.append(OddRow(table=one.table, id=one.key, kind=kind, what=what, topic=one.memory.topic))
    rows: dict[str, list[str]] = {}
    for key, link_id in plan.edges:
        rows.setdefault(link_id, []).append(key)
    links, settled = [], [one.memory.id for one in planned if without.get(one.memory.id) != "id_taken"]
    for link in plan.links:
        names = rows.get(link.id, [])
        found = _of_link(link, state, without, is_edge=bool(names))
        if found is None or found[0] == "row_changed":
            links.append(link)
        if found is None or found[0] != "id_taken":
            settled.append(link.id)
        if found is not None:
            left_out[EDGES] += len(names)
            table, (kind, what) = EDGES if names else DECISIONS, found
            odd += [OddRow(table=table, id=name, kind=kind, what=what) for name in names or [link.from_id]]
    return Standing(
        ours=tuple(one for one in planned if one.memory.id not in without),
        links=tuple(links),
        new_links=tuple(link for link in links if link.id not in state.links),
        settled=tuple(settled),
        left_out=left_out,
        odd=tuple(odd),
    )


def _of_memory(one: PlannedMemory, state: StoreState) -> tuple[str, str] | None:
    """Return how a memory of the store is other than the one that its row says, None where it is not."""
    present = state.present.get(one.memory.id)
    if present is None:
        return ("deleted_since", _DELETED) if state.was_there(one.memory.id) else None
    mark = Mark.of(present)
    if mark is None:
        return "id_taken", _TAKEN
    if row_digest_of(one.memory) != (mark.row or row_digest_of(present)):
        return "row_changed", _ROW_CHANGED
    return ("changed_since", _CHANGED) if digest_of(present) != mark.digest else None


def _of_link(link: Link, state: StoreState, without: Mapping[str, str], *, is_edge: bool) -> tuple[str, str] | None:
    """Return why the store has not the link that a row says, None where it has, or will have."""
    said = f"its link to {link.to_id}"
    for end in (link.from_id, link.to_id):
        if end in without:
            why = "has an id that was taken" if without[end] == "id_taken" else "was deleted since"
            return without[end], f"{said} is left out: {end} {why}"
    present = state.links.get(link.id)
    if present is None:
        return ("unlinked_since", f"{said}: {_UNLINKED}") if state.was_there(link.id) else None
    return ("row_changed", f"{said}: {_LINK_CHANGED}") if is_edge and _said_by(present) != _said_by(link) else None


def _said_by(link: Link) -> tuple[object, ...]:
    return link.link_type, link.confidence, link.metadata.reason, milliseconds(link.created_at)
