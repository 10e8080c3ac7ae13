"""What a migration and a rollback say that they did; ids, topics and counts, and no memory's content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import attrs

from mama_structs._internal.validation import printable
from mama_structs.importers.shared.import_report import aligned

_SHOWN: Final = 40
_NAMED: Final = 3
_WIDEST: Final = 100


@attrs.frozen(kw_only=True)
class OddRow:
    """
    A row that is not as MAMA writes them, or that was left out.

    Args:
        table: Where it is.
        id: Its key there.
        kind: What is odd about it, in a word, such as ``no_topic``.
        what: What was done about it.
        topic: Its topic, where it has one.

    """

    table: str
    id: str
    kind: str
    what: str
    topic: str | None = None


@attrs.frozen(kw_only=True)
class TableCount:
    """
    What became of a table's rows.

    Args:
        table: Its name.
        rows: How many it has.
        migrated: How many are in the store now, as memories or links that say what the row says.
        left_out: How many are not: the odd rows say why.
        reason: Why the table as a whole is left out; None where each row is listed by itself.

    """

    table: str
    rows: int
    migrated: int
    left_out: int
    reason: str | None = None


@attrs.frozen(kw_only=True)
class MigrationReport:
    """
    What a migration did, or would do.

    ``str()`` gives a table for people, with some of the odd rows; `to_json` gives everything.

    Args:
        source: The old file.
        checksum: SHA-256 of that file, before and after.
        namespace: Where the memories are.
        migration: The migration's name, made of what the old file says.
        at: When it was begun; the back-filled links age from then.
        dry_run: Whether nothing was written.
        tables: What became of each table.
        memories: How many memories the old file gives, by type.
        added: How many memories were added now.
        known: How many were there already.
        links: How many links the old file says, by word.
        backfilled: How many were added to those, by type; a dry run cannot tell the associations.
        backfilled_average: Back-filled links for each memory, counted where they begin.
        backfilled_most: Back-filled links that begin or end at one memory, at the most.
        odd_rows: Every row that is not as it should be, or was left out, and what was done about it.
        seconds: How long it took.

    """

    source: str
    checksum: str
    namespace: str
    migration: str
    at: datetime
    dry_run: bool = False
    tables: tuple[TableCount, ...] = ()
    memories: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    added: int = 0
    known: int = 0
    links: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    backfilled: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    backfilled_average: float = 0.0
    backfilled_most: int = 0
    odd_rows: tuple[OddRow, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        return {**attrs.asdict(self), "at": self.at.isoformat()}

    def __str__(self) -> str:
        would = "would be " if self.dry_run else ""
        dry = " (associations need the vectors, which a dry run does not make)" if self.dry_run else ""
        average = f"{self.backfilled_average:.1f} a memory on average, {self.backfilled_most} at the most"
        odd = [printable(f"{row.table} {row.id}: {row.kind}: {row.what}") for row in self.odd_rows[:_SHOWN]]
        more = len(self.odd_rows) - _SHOWN
        reasons = [
            f"left out: {printable(one.table)} ({one.rows:,}): {one.reason}" for one in self.tables if one.reason
        ]
        lines = [
            f"{printable(self.source)} -> namespace {printable(self.namespace)}",
            f"{self.added:,} memories {would}added, {self.known:,} were there already ({_counts(self.memories)})",
            "",
            *_table(self.tables),
            "",
            f"links of the old file: {_counts(self.links)}",
            f"links back-filled: {_counts(self.backfilled)}{dry}; {average}",
            f"time: {self.seconds:.1f} s",
            *(["", *reasons] if reasons else []),
            *(["", f"odd rows: {len(self.odd_rows):,}"] if odd else []),
            *(line if len(line) <= 2 * _WIDEST else f"{line[: 2 * _WIDEST]}..." for line in odd),
            *([f"... and {more:,} more, see the JSON form"] if more > 0 else []),
        ]
        return "\n".join(lines)


@attrs.frozen(kw_only=True)
class RollbackReport:
    """
    What a rollback took away.

    Args:
        namespace: Where.
        migration: The migration that was undone, None where there was none.
        memories: How many memories were deleted.
        links: How many links went, all that the migration made and those of others that ended at its memories.
        changed: Ids of deleted memories that had been changed since.
        linked: Ids of memories that are kept, and had links with deleted ones; these links are gone.
        migrations_left: How many earlier migrations are still in the store.

    """

    namespace: str
    migration: str | None = None
    memories: int = 0
    links: int = 0
    changed: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    migrations_left: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        return attrs.asdict(self)

    def __str__(self) -> str:
        if self.migration is None:
            return f"nothing to roll back: no memory of {printable(self.namespace)} came from a migration"
        lines = [f"{self.memories:,} memories and {self.links:,} links deleted"]
        if self.changed:
            lines.append(f"{len(self.changed):,} of them had been changed since: {some(self.changed)}")
        if self.linked:
            lines.append(f"{len(self.linked):,} memories lost their links with them: {some(self.linked)}")
        if self.migrations_left:
            lines.append(f"{self.migrations_left:,} earlier migrations are still there: run it again to undo the next")
        return "\n".join(lines)


def some(ids: Sequence[str]) -> str:
    """Return the first of some ids as a terminal may show them."""
    return ", ".join(printable(one)[:_WIDEST] for one in ids[:_NAMED]) + (", ..." if len(ids) > _NAMED else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {printable(name)}" for name, count in counts.items()) or "none"


def _table(tables: Sequence[TableCount]) -> list[str]:
    rows = [("table", "rows", "migrated", "left out")]
    rows += [(printable(one.table), f"{one.rows:,}", f"{one.migrated:,}", f"{one.left_out:,}") for one in tables]
    return aligned(rows)
