"""What of an old file is in a store, what is to be written, and what is left out: decided before any of it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs

from mama_structs.memory.ids import milliseconds
from mama_structs.memory.migration.marks import Mark, digest_of, row_digest_of
from mama_structs.memory.migration.plan import MigrationPlan
from mama_structs.memory.migration.record import key_of
from mama_structs.memory.migration.report import OddRow
from mama_structs.memory.migration.rows import Planned
from mama_structs.memory.migration.source import DECISIONS, EDGES
from mama_structs.memory.model import Link, Memory

_TAKEN: Final = "left out: a memory of that id is there that no migration made"
_DELETED: Final = "left out: it was migrated before, and deleted since"
_UNLINKED: Final = "left out: it was migrated before, and taken away since"
_CHANGED: Final = "its row was changed since it was migrated: the memory is left as it is"


@attrs.frozen
class Present:
    """A memory of the store that has the id of one that is to be migrated."""

    memory: Memory
    mark: Mark | None


@attrs.frozen(eq=False, kw_only=True)
class State:
    """
    What of a plan is there already.

    Args:
        present: The memories, by id.
        links: The links that begin at these, by id.
        complete: The migrations that were brought to their end.
        settled: The keys of what these found or made.
        is_over: Whether this migration is one of them.

    """

    present: Mapping[str, Present]
    links: Mapping[str, Link]
    complete: Collection[str]
    settled: Collection[bytes]
    is_over: bool

    def of(self, memory_id: str) -> Mark | None:
        """Return the mark of a memory, None where it is not there, or came in another way."""
        found = self.present.get(memory_id)
        return None if found is None else found.mark

    @property
    def marks(self) -> list[Mark]:
        """All marks."""
        return [one.mark for one in self.present.values() if one.mark is not None]

    def was_there(self, one: str) -> bool:
        """Tell whether a memory or link that is not there was there once."""
        return self.is_over or key_of(one) in self.settled


@attrs.frozen(eq=False, kw_only=True)
class Standing:
    """
    What becomes of a plan.

    Args:
        ours: The memories that are there, or are to be written, oldest first.
        links: The links of the old file likewise.
        new_links: Those of them that are to be written.
        settled: The ids of memories and links that need not be looked for again, once all of it is written.
        left_out: How many rows of each table are not in the store then, as they are in the old file.
        odd: Why.

    """

    ours: tuple[Planned, ...]
    links: tuple[Link, ...]
    new_links: tuple[Link, ...]
    settled: tuple[str, ...]
    left_out: Mapping[str, int]
    odd: tuple[OddRow, ...]


def standing_of(plan: MigrationPlan, planned: Sequence[Planned], state: State) -> Standing:
    """
    Return what becomes of a plan.

    Args:
        plan: The plan.
        planned: Its memories, with what they mention.
        state: What is there already.

    """
    odd: list[OddRow] = []
    left_out: Counter[str] = Counter()
    without: dict[str, str] = {}
    for one in planned:
        other = _of_memory(one, state)
        if other is None:
            continue
        kind, what = other
        if kind in {"id_taken", "deleted_since"}:
            without[one.memory.id] = kind
        left_out[one.table] += kind != "changed_since" and one.outcome_of is None
        odd.append(OddRow(table=one.table, id=one.key, kind=kind, what=what, topic=one.memory.topic))
    rows: dict[str, list[str]] = {}
    for key, link_id in plan.edges:
        rows.setdefault(link_id, []).append(key)
    links, new, settled = [], [], [one.memory.id for one in planned if without.get(one.memory.id) != "id_taken"]
    for link in plan.links:
        found = _of_link(link, state, without, is_edge=link.id in rows)
        why = None if found is None else found[0]
        if why in {None, "row_changed"}:
            links.append(link)
            if link.id not in state.links:
                new.append(link)
        if why != "id_taken":
            settled.append(link.id)
        if found is None:
            continue
        names = rows.get(link.id)
        left_out[EDGES] += len(names or ())
        odd += [
            OddRow(table=EDGES if names else DECISIONS, id=name, kind=found[0], what=found[1])
            for name in names or [link.from_id]
        ]
    return Standing(
        ours=tuple(one for one in planned if one.memory.id not in without),
        links=tuple(links),
        new_links=tuple(new),
        settled=tuple(settled),
        left_out=left_out,
        odd=tuple(odd),
    )


def _of_memory(one: Planned, state: State) -> tuple[str, str] | None:
    """Return how a memory of the store is other than the one that its row says, None where it is not."""
    present = state.present.get(one.memory.id)
    if present is None:
        return ("deleted_since", _DELETED) if state.was_there(one.memory.id) else None
    if present.mark is None:
        return "id_taken", _TAKEN
    said = present.mark.row or row_digest_of(present.memory)
    if row_digest_of(one.memory) != said:
        return "row_changed", _CHANGED
    if digest_of(present.memory) != present.mark.digest:
        return "changed_since", "it was migrated before, and changed since: it is left as it is"
    return None


def _of_link(link: Link, state: State, without: Mapping[str, str], *, is_edge: bool) -> tuple[str, str] | None:
    """Return why the store has not the link that a row says, None where it has, or will have."""
    end = next((end for end in (link.from_id, link.to_id) if end in without), None)
    said = f"its link to {link.to_id}"
    if end is not None:
        why = "has an id that was taken" if without[end] == "id_taken" else "was deleted since"
        return without[end], f"{said} is left out: {end} {why}"
    present = state.links.get(link.id)
    if present is None:
        return ("unlinked_since", f"{said}: {_UNLINKED}") if state.was_there(link.id) else None
    if is_edge and _said_by(present) != _said_by(link):
        return "row_changed", f"{said}: its row was changed since it was migrated, and the link is left as it is"
    return None


def _said_by(link: Link) -> tuple[object, ...]:
    return link.link_type, link.confidence, link.metadata.reason, milliseconds(link.created_at)
