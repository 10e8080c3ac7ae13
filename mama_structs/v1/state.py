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
from typing import Any, Final, Literal, Self, TypeVar

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
NoteState = Literal["begun", "complete", "undone"]
_SIZE: Final = 12
_LINKS: Final = frozenset({"supersedes", "superseded_by", "refined_from", "updated_at"})
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
# What becomes of a memory whose row is read again, and why.
_FATES: Final = {
    "id_taken": "left out: a memory of that id is there that no migration made",
    "deleted_since": "left out: it was migrated before, and deleted since",
    "row_changed": "its row was changed since it was migrated: the memory is left as it is",
    "changed_since": "it was migrated before, and changed since: it is left as it is",
}
# Of these no memory is in the store, and why a link to one is left out.
_MISSING: Final = {"id_taken": "has an id that was taken", "deleted_since": "was deleted since"}
_UNLINKED: Final = "left out: it was migrated before, and taken away since"
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
        found: Any = memory.metadata.extra.get(MARK)
        try:
            return cls(
                migration=str(found["migration"]),
                at=datetime.fromisoformat(found["at"]).astimezone(UTC),
                digest=str(found["digest"]),
                row=str(found.get("row", "")),
            )
        except (KeyError, TypeError, ValueError):
            return None


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
    """Return what tells whether a memory's row was changed: the same where it says the same."""
    # When it was updated does not count, nor which rows it names: v1.0 changes that in a row that is superseded, and
    # these become links. Nor do mentions, which depend on the host.
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
    return iter(lambda: list(islice(ahead, size)), [])


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
    state: NoteState = "begun"
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
            raise refused(
                f"what the store notes of {name!r:.100} cannot be read: {error}", "restore a backup"
            ) from error
    return found


def refused(what: str, hint: str) -> MigrationError:
    """Return the error of a migration or rollback that the store, and not the old file, stands in the way of."""
    return MigrationError(what, path="", hint=hint)


def changed_note(writer: Writer, note: MigrationNote, state: NoteState, settled: bytes = b"") -> MigrationNote:
    """Note that a migration is in a state, and return the note."""
    changed = msgspec.structs.replace(note, state=state, settled=settled)
    writer.set_note(f"{PREFIX}{note.migration}", msgspec.json.encode(changed).decode())
    return changed


def begin(writer: Writer, migration: str, *, checksum: str, at: datetime) -> MigrationNote:
    """Return the note of a migration that goes on from now; it is written, unless it is under way or complete."""
    known = records_of(writer)
    own = known.get(migration)
    if own is not None and own.state != "undone":
        return own
    order = 1 + max((one.order for one in known.values()), default=0)
    note = own or MigrationNote(migration=migration, order=order, begun=at, checksum=checksum)
    return changed_note(writer, note, "begun")


def still(reader: Reader, note: MigrationNote) -> MigrationNote:
    """Return a note as it is now; MigrationError where somebody took the migration back, or has begun it anew."""
    now = records_of(reader).get(note.migration)
    if now is None or now.state == "undone" or (now.order, now.begun) != (note.order, note.begun):
        raise refused("the migration was taken back by somebody else while it ran", "run it again if it is wanted")
    return now


# What of an old file is in a store, what is to be written, and what is left out: decided before any of it is.


@attrs.frozen(eq=False, kw_only=True)
class StoreState:
    """What of a plan is in the store: memories, and the links that begin at these, by id."""

    present: Mapping[str, Memory]
    links: Mapping[str, Link]
    # The migrations that were brought to their end, the keys of what these found or made, and whether this is one.
    complete: Collection[str]
    settled: Collection[bytes]
    is_over: bool

    def was_there(self, one: str) -> bool:
        """Tell whether a memory or link that is not there was there once."""
        return self.is_over or key_of(one) in self.settled


@attrs.frozen(eq=False, kw_only=True)
class Standing:
    """What becomes of a plan: memories and links that are there or are to be written, *new_links* the latter only."""

    ours: tuple[PlannedMemory, ...]
    links: tuple[Link, ...]
    new_links: tuple[Link, ...]
    # The ids that need not be looked for again once all is written.
    settled: tuple[str, ...]
    # How many rows of each table are not in the store then as they are in the old file, and why.
    left_out: Mapping[str, int]
    odd: tuple[OddRow, ...]


def standing_of(plan: MigrationPlan, planned: Sequence[PlannedMemory], state: StoreState) -> Standing:
    """Return what becomes of a plan, whose memories with what they mention are *planned*."""
    odd: list[OddRow] = []
    left_out: Counter[str] = Counter()
    fates = {one.memory.id: fate for one in planned if (fate := _fate_of(one.memory, state)) is not None}
    for one in planned:
        if kind := fates.get(one.memory.id):
            left_out[one.table] += kind != "changed_since" and one.outcome_of is None
            odd.append(OddRow(table=one.table, id=one.key, kind=kind, what=_FATES[kind], topic=one.memory.topic))
    rows: dict[str, list[str]] = {}
    for key, link_id in plan.edges:
        rows.setdefault(link_id, []).append(key)
    links, settled = [], [one for one in (each.memory.id for each in planned) if fates.get(one) != "id_taken"]
    for link in plan.links:
        names = rows.get(link.id, [])
        kind, why = _fate_of_link(link, state, fates, is_edge=bool(names)) or (None, "")
        if kind in {None, "row_changed"}:
            links.append(link)
        if kind != "id_taken":
            settled.append(link.id)
        if kind is not None:
            left_out[EDGES] += len(names)
            table, what = EDGES if names else DECISIONS, f"its link to {link.to_id}{why}"
            odd += [OddRow(table=table, id=name, kind=kind, what=what) for name in names or [link.from_id]]
    return Standing(
        ours=tuple(one for one in planned if fates.get(one.memory.id) not in _MISSING),
        links=tuple(links),
        new_links=tuple(link for link in links if link.id not in state.links),
        settled=tuple(settled),
        left_out=left_out,
        odd=tuple(odd),
    )


def _fate_of(memory: Memory, state: StoreState) -> str | None:
    """Return how a memory of the store is other than the one that its row says, None where it is not."""
    present = state.present.get(memory.id)
    if present is None:
        return "deleted_since" if state.was_there(memory.id) else None
    mark = Mark.of(present)
    if mark is None:
        return "id_taken"
    if row_digest_of(memory) != (mark.row or row_digest_of(present)):
        return "row_changed"
    return "changed_since" if digest_of(present) != mark.digest else None


def _fate_of_link(link: Link, state: StoreState, fates: Mapping[str, str], *, is_edge: bool) -> tuple[str, str] | None:
    """Return why the store has not the link that a row says, None where it has, or will have."""
    for end in (link.from_id, link.to_id):
        if (fate := fates.get(end, "")) in _MISSING:
            return fate, f" is left out: {end} {_MISSING[fate]}"
    present = state.links.get(link.id)
    if present is None:
        return ("unlinked_since", f": {_UNLINKED}") if state.was_there(link.id) else None
    return ("row_changed", f": {_LINK_CHANGED}") if is_edge and _said_by(present) != _said_by(link) else None


def _said_by(link: Link) -> tuple[object, ...]:
    return link.link_type, link.confidence, link.metadata.reason, milliseconds(link.created_at)
