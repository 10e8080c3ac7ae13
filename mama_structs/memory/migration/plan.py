"""What a v1.0 database becomes: its rows as memories and links, in the order in which they are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs

from mama_structs.memory.ids import milliseconds
from mama_structs.memory.migration.explicit import Explicit, circles
from mama_structs.memory.migration.marks import OLD
from mama_structs.memory.migration.naming import Ids
from mama_structs.memory.migration.report import OddRow, TableCount
from mama_structs.memory.migration.rows import Planned, checkpoint, decision
from mama_structs.memory.migration.source import (
    CHECKPOINTS,
    DECISIONS,
    EDGES,
    VECTORS,
    VERSIONS,
    OldDatabase,
    OldRow,
    OtherTable,
)
from mama_structs.memory.migration.times import read_time
from mama_structs.memory.migration.values import read_text
from mama_structs.memory.model import Link, MemoryType

_DAY: Final = timedelta(days=1)
_REASONS: Final[Mapping[str, str]] = {
    "sessions": "v1.0 never wrote or read sessions; they are no memories",
    "error_patterns": "no tool of v1.0 wrote or read error patterns; they are no memories",
    VERSIONS: "it says only which form the tables have",
    VECTORS: "vectors of another embedder; every memory is embedded anew",
}
_UNKNOWN: Final = "MAMA v1.0 has no such table"


@attrs.frozen(kw_only=True)
class MigrationPlan:
    """
    What an old database becomes.

    Args:
        planned: The memories, oldest first: they are written in this order.
        links: The links that the old file says.
        odd: What is odd about its rows.
        edges: What the report calls the rows of the edges' table that are links now, with the link's id.
        latest: The id of the checkpoint that v1.0 loads, None where there is none.

    """

    planned: tuple[Planned, ...]
    links: tuple[Link, ...]
    odd: tuple[OddRow, ...]
    edges: tuple[tuple[str, str], ...]
    latest: str | None

    @property
    def types(self) -> dict[str, int]:
        """How many memories there are of each type."""
        counts = Counter(one.memory.type.value for one in self.planned)
        return {kind.value: counts[kind.value] for kind in MemoryType if counts[kind.value]}

    @property
    def words(self) -> dict[str, int]:
        """How many links there are with each word."""
        return dict(sorted(Counter(link.metadata.original_relationship for link in self.links).items()))


def plan_of(old: OldDatabase, *, namespace: str, max_content: int) -> MigrationPlan:
    """
    Return what an old database becomes; the same rows give the same.

    Args:
        old: The database.
        namespace: Where the memories will be.
        max_content: Characters that the text of a new memory may have.

    """
    planned: list[tuple[tuple[int, int, int], Planned]] = []
    odd: list[OddRow] = []
    ids = Ids()
    names = _names(old, ids)
    of_row: dict[int, Planned] = {}
    known: dict[str, str] = {}
    around = _around(old.decisions, "created_at")
    for position, row in enumerate(old.decisions):
        own = read_text(row.get("id")).text
        some, found = decision(
            row,
            memory_id=names[position],
            key=own or f"row {row.number}",
            beside=around[position],
            most=max_content,
            namespace=namespace,
            ids=ids,
        )
        odd += found
        of_row[position] = some[0]
        known.setdefault(own or "", some[0].memory.id)
        planned += [((milliseconds(one.memory.created_at), rank, position), one) for rank, one in enumerate(some)]
    latest: Planned | None = None
    around = _around(old.checkpoints, "timestamp")
    for position, row in enumerate(old.checkpoints):
        key = read_text(row.get("id")).text or f"row {row.number}"
        one, found = checkpoint(row, key=key, beside=around[position], most=max_content, namespace=namespace, ids=ids)
        odd += found
        # Of several at one time v1.0 loads the first one, and this store the last one that was written.
        planned.append(((milliseconds(one.memory.created_at), len(_REASONS), -row.number), one))
        if row.get("status") == "active" and (latest is None or one.memory.created_at > latest.memory.created_at):
            latest = one
    planned.sort(key=lambda pair: pair[0])
    memories = tuple(one for _, one in planned)
    odd += _latest(memories, latest)
    explicit = Explicit(namespace=namespace, ids=known, memories={one.memory.id: one.memory for one in memories})
    for position, row in enumerate(old.decisions):
        memory = of_row[position].memory
        explicit.of_decision(row, memory, memory.metadata.extra.get(OLD, {}).get("refined_from"))
    for row in old.edges:
        explicit.of_edge(row)
    explicit.of_outcomes(memories)
    links = tuple(explicit.links.values())
    return MigrationPlan(
        planned=memories,
        links=links,
        odd=(*odd, *explicit.odd, *_circular(links, of_row)),
        edges=tuple(explicit.edges),
        latest=None if latest is None else latest.memory.id,
    )


def future(plan: MigrationPlan, now: datetime) -> list[OddRow]:
    """Return the rows whose time lies ahead."""
    return [
        OddRow(
            table=one.table,
            id=one.key,
            kind="future_time",
            what=f"its time lies ahead, {one.memory.created_at.isoformat()}, and is kept",
            topic=one.memory.topic,
        )
        for one in plan.planned
        if one.outcome_of is None and one.is_dated and one.memory.created_at > now + _DAY
    ]


def tables_of(old: OldDatabase, plan: MigrationPlan, missing: Mapping[str, int]) -> tuple[TableCount, ...]:
    """
    Return what becomes of each table.

    Args:
        old: The database.
        plan: What it becomes.
        missing: How many rows of a table could not be migrated, by table.

    """
    counts = []
    for name, rows in ((DECISIONS, old.decisions), (CHECKPOINTS, old.checkpoints)):
        gone = missing.get(name, 0)
        counts.append(TableCount(table=name, rows=len(rows), migrated=len(rows) - gone, left_out=gone))
    edges = len(plan.edges) - missing.get(EDGES, 0)
    counts.append(TableCount(table=EDGES, rows=len(old.edges), migrated=edges, left_out=len(old.edges) - edges))
    return (
        *counts,
        *(
            TableCount(
                table=one.name,
                rows=one.rows,
                migrated=0,
                left_out=one.rows,
                reason=_REASONS.get(one.name, _UNKNOWN),
            )
            for one in old.others
        ),
    )


def rows_left_out(others: tuple[OtherTable, ...]) -> list[OddRow]:
    """Return the rows of the tables that hold no memories."""
    found = []
    for one in others:
        reason = _REASONS.get(one.name, _UNKNOWN)
        what = f"left out: {reason}"
        found += [OddRow(table=one.name, id=key, kind="no_memory", what=what) for key in one.keys]
        if one.keys and one.rows > len(one.keys):
            more = f"and {one.rows - len(one.keys):,} more"
            found.append(OddRow(table=one.name, id=more, kind="no_memory", what=what))
    return found


def _names(old: OldDatabase, ids: Ids) -> list[str | None]:
    """Return the id that each decision keeps; all are asked first, so that no new one takes another's."""
    return [ids.keep(read_text(row.get("id")).text) for row in old.decisions]


def _around(rows: Sequence[OldRow], column: str) -> list[datetime | None]:
    """Return the time that each row must have at the latest: that of the row before it, or after it if earlier."""
    times = [read_time(row.get(column)).at for row in rows]
    before = _last(times)
    after = _last(times[::-1])[::-1]
    pairs = zip(before, after, strict=True)
    return [min((one for one in pair if one is not None), default=None) for pair in pairs]


def _last(times: Sequence[datetime | None]) -> list[datetime | None]:
    """Return the last time before each of some times."""
    found: list[datetime | None] = []
    last: datetime | None = None
    for one in times:
        found.append(last)
        last = one or last
    return found


def _latest(memories: tuple[Planned, ...], latest: Planned | None) -> list[OddRow]:
    newest = next((one for one in reversed(memories) if one.memory.type is MemoryType.CHECKPOINT), None)
    if newest is None or newest is latest:
        return []
    loads = "loads none" if latest is None else f"loads {latest.key}"
    what = f"it is the newest, so that it is what load/checkpoint gives; v1.0 {loads}, since this one is not active"
    return [OddRow(table=CHECKPOINTS, id=newest.key, kind="newest_not_active", what=what)]


def _circular(links: tuple[Link, ...], of_row: Mapping[int, Planned]) -> list[OddRow]:
    topics = {one.memory.id: one.memory.topic for one in of_row.values()}
    created = {one.memory.id: one.memory.created_at for one in of_row.values()}
    odd, inside = [], set()
    for members in circles(links):
        inside |= set(members)
        others = "they supersede each other in a circle of " + f"{len(members)}: all links are kept"
        odd += [OddRow(table=DECISIONS, id=one, kind="circular", what=others, topic=topics.get(one)) for one in members]
    for link in links:
        ends = (link.from_id, link.to_id)
        if (
            link.metadata.original_relationship == "supersedes"
            and not inside.issuperset(ends)
            and created[link.from_id] < created[link.to_id]
        ):
            what = f"it supersedes {link.to_id}, which is newer: the link is kept"
            odd.append(
                OddRow(table=DECISIONS, id=link.from_id, kind="backwards", what=what, topic=topics.get(link.from_id))
            )
    return odd
