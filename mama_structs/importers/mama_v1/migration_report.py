"""Reports of a migration and a rollback: ids, topics and counts, no memory content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs._internal.validation import to_printable
from mama_structs.importers.shared.import_report import MAX_ID_CHARS, count_table, format_warnings

MAX_SHOWN_IDS: Final = 3


@attrs.frozen(kw_only=True)
class MigrationWarning(JsonMixin):
    """
    A row that is malformed or was left out.

    Args:
        table: The row's table.
        id: The row's key.
        kind: The type of problem, such as ``no_topic``.
        what: How the migration handled the row.
        topic: The row's topic, if it has one.

    """

    table: str
    id: str
    kind: str
    what: str
    topic: str | None = None


@attrs.frozen(kw_only=True)
class TableCount(JsonMixin):
    """
    The migration result for one table.

    Args:
        table: The table's name.
        rows: The number of rows in the table.
        migrated: The number of rows that are now in the store, as memories or links with the row's content.
        skipped: The number of rows that are not in the store; the warnings give the reasons.
        reason: The reason why the whole table was left out; None if each row is listed individually.

    """

    table: str
    rows: int
    migrated: int
    skipped: int
    reason: str | None = None


@attrs.frozen(kw_only=True)
class MigrationReport(JsonMixin):
    """
    The result of a migration or of its dry run.

    ``str()`` returns a readable table with some of the warnings; `to_dict` returns everything.

    Args:
        source: The path of the old file.
        checksum: SHA-256 of that file, the same before and after the migration.
        namespace: The namespace of the memories.
        migration: The migration's name, a digest of the old file's content.
        at: The time at which the migration began; the back-filled links age from then.
        dry_run: Whether nothing was written.
        tables: The result for each table.
        memories: The number of memories in the old file, by type.
        added: The number of memories that were added now.
        existing: The number of memories that already existed.
        links: The number of links in the old file, by relationship.
        backfilled: The number of links added to those, by type; a dry run cannot determine the associations.
        backfilled_average: The average number of back-filled links that start at a memory.
        backfilled_most: The maximum number of back-filled links at one memory, in both directions.
        warnings: All malformed or skipped rows, with their handling.
        seconds: The duration.

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
    existing: int = 0
    links: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    backfilled: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    backfilled_average: float = 0.0
    backfilled_most: int = 0
    warnings: tuple[MigrationWarning, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        would = "would be " if self.dry_run else ""
        dry = " (associations need the vectors, which a dry run does not make)" if self.dry_run else ""
        average = f"{self.backfilled_average:.1f} a memory on average, {self.backfilled_most} at the most"
        tables = ((one.table, one.rows, one.migrated, one.skipped) for one in self.tables)
        reasons = [
            f"left out: {to_printable(one.table)} ({one.rows:,}): {one.reason}" for one in self.tables if one.reason
        ]
        counts = f"{self.added:,} memories {would}added, {self.existing:,} were there already"
        lines = [
            f"{to_printable(self.source)} -> namespace {to_printable(self.namespace)}",
            f"{counts} ({_format_counts(self.memories)})",
            "",
            *count_table(("table", "rows", "migrated", "left out"), tables),
            "",
            f"links of the old file: {_format_counts(self.links)}",
            f"links back-filled: {_format_counts(self.backfilled)}{dry}; {average}",
            f"time: {self.seconds:.1f} s",
            *(["", *reasons] if reasons else []),
            *format_warnings(self.warnings),
        ]
        return "\n".join(lines)


@attrs.frozen(kw_only=True)
class RollbackReport(JsonMixin):
    """
    The result of a rollback.

    Args:
        namespace: The namespace.
        migration: The migration that was undone, or None if there was none.
        memories: The number of deleted memories.
        links: The number of deleted links: all links of the migration, and other links at its memories.
        changed: Ids of deleted memories that had been changed since the migration.
        linked: Ids of remaining memories that had links to deleted memories; these links were deleted.
        migrations_left: The number of earlier migrations that are still in the store.

    """

    namespace: str
    migration: str | None = None
    memories: int = 0
    links: int = 0
    changed: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    migrations_left: int = 0

    def __str__(self) -> str:
        if self.migration is None:
            return f"nothing to roll back: no memory of {to_printable(self.namespace)} came from a migration"
        lines = [f"{self.memories:,} memories and {self.links:,} links deleted"]
        if self.changed:
            lines.append(f"{len(self.changed):,} of them had been changed since: {format_ids(self.changed)}")
        if self.linked:
            lines.append(f"{len(self.linked):,} memories lost their links with them: {format_ids(self.linked)}")
        if self.migrations_left:
            lines.append(f"{self.migrations_left:,} earlier migrations are still there: run it again to undo the next")
        return "\n".join(lines)


def format_ids(ids: Sequence[str]) -> str:
    """Return the first ids as printable text, followed by an ellipsis if there are more."""
    return ", ".join(to_printable(one)[:MAX_ID_CHARS] for one in ids[:MAX_SHOWN_IDS]) + (
        ", ..." if len(ids) > MAX_SHOWN_IDS else ""
    )


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {to_printable(name)}" for name, count in counts.items()) or "none"
