"""The report of an import: counts and locations of warnings, no memory content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs._internal.validation import to_printable
from mama_structs.importers.shared.import_model import ItemWarning

MAX_SHOWN_ITEMS: Final = 40
MAX_LINE_CHARS: Final = 200
MAX_ID_CHARS: Final = 100


@attrs.frozen(kw_only=True)
class ItemCount(JsonMixin):
    """
    The import result for one type of items of a source.

    Args:
        item: The source's name for these items.
        total: The number of items in the source.
        added: The number of items that this import added.
        existing: The number of items that already existed.
        skipped: The number of items that were not imported; the warnings give the reasons.

    """

    item: str
    total: int
    added: int = 0
    existing: int = 0
    skipped: int = 0


@attrs.frozen(kw_only=True, repr=False)
class ImportReport(JsonMixin):
    """
    The result of an import or of its dry run.

    ``repr()`` returns the totals in one line, ``str()`` a table with some of the warnings, and `to_dict` everything.

    Args:
        kind: The program that wrote the source.
        source: The path or type of the source.
        namespace: The namespace of the imported memories.
        dry_run: Whether nothing was written.
        items: The result for each type of items.
        warnings: All malformed or skipped items, with their handling. Their `ItemWarning.skipped` add up to *skipped*.
        seconds: The duration.

    """

    _json_properties = ("total", "added", "existing", "skipped")

    kind: str
    source: str
    namespace: str
    dry_run: bool = False
    items: tuple[ItemCount, ...] = ()
    warnings: tuple[ItemWarning, ...] = ()
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """Number of items in the source: added, existing and skipped ones."""
        return sum(one.total for one in self.items)

    @property
    def added(self) -> int:
        """The number of items that were added."""
        return sum(one.added for one in self.items)

    @property
    def existing(self) -> int:
        """The number of items that already existed."""
        return sum(one.existing for one in self.items)

    @property
    def skipped(self) -> int:
        """The number of items that were left out."""
        return sum(one.skipped for one in self.items)

    @property
    def _added_label(self) -> str:
        return "would be added" if self.dry_run else "added"

    def _format_totals(self) -> str:
        added = f"{self.added:,} of {self.total:,} items {self._added_label}"
        return f"{added}, {self.existing:,} there already, {self.skipped:,} left out"

    def __repr__(self) -> str:
        return f"<ImportReport: {to_printable(self.kind)}, {self._format_totals()}>"

    def __str__(self) -> str:
        head = ("", "found", self._added_label, "there already", "left out")
        counts = ((one.item, one.total, one.added, one.existing, one.skipped) for one in self.items)
        lines = [
            f"{to_printable(self.kind)} {to_printable(self.source)} -> namespace {to_printable(self.namespace)}",
            self._format_totals(),
            "",
            *count_table(head, counts),
            "",
            f"time: {self.seconds:.1f} s",
            *format_warnings(self.warnings),
        ]
        return "\n".join(lines)


def count_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of an aligned table. Each row has a name and counts."""
    cells = [head, *((to_printable(name), *(f"{count:,}" for count in counts)) for name, *counts in rows)]
    first, *others = (max(map(len, column)) for column in zip(*cells, strict=True))
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in cells
    ]


def format_warnings(warnings: Sequence[attrs.AttrsInstance]) -> list[str]:
    """Return lines for the first warnings. The first four fields of a warning are printed in order."""
    lines = []
    for item, name, kind, note, *_ in map(attrs.astuple, warnings[:MAX_SHOWN_ITEMS]):
        # Otherwise a long id would hide the reason.
        shown = name if len(name) <= MAX_ID_CHARS else f"{name[:MAX_ID_CHARS]}..."
        lines.append(to_printable(f"{item} {shown}: {kind}: {note}"))
    more = len(warnings) - MAX_SHOWN_ITEMS
    return [
        *(["", f"warnings: {len(warnings):,}"] if warnings else []),
        *(line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}..." for line in lines),
        *([f"... and {more:,} more, see the JSON form"] if more > 0 else []),
    ]
