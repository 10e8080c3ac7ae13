"""What an import says that it did: counts, and where what is odd stands; no memory's content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs

from mama_structs._internal.validation import printable
from mama_structs.importers.shared.import_model import OddItem

_SHOWN: Final = 40
_WIDEST: Final = 200


@attrs.frozen(kw_only=True)
class ItemCount:
    """
    What became of a source's items of one sort.

    Args:
        what: What the source calls them.
        found: How many it has.
        added: How many were added now.
        known: How many were there already.
        left_out: How many are not there: the odd items say why.

    """

    what: str
    found: int
    added: int = 0
    known: int = 0
    left_out: int = 0


@attrs.frozen(kw_only=True)
class ImportReport:
    """
    What an import did, or would do.

    ``str()`` gives a table for people, with some of the odd items; `to_json` gives everything.

    Args:
        kind: Which program's memories they are.
        source: Where they were read.
        namespace: Where they are now.
        dry_run: Whether nothing was written.
        items: What became of each sort of items.
        odd: Every item that is not as it should be, or was left out, and what was done about it.
        seconds: How long it took.

    """

    kind: str
    source: str
    namespace: str
    dry_run: bool = False
    items: tuple[ItemCount, ...] = ()
    odd: tuple[OddItem, ...] = ()
    seconds: float = 0.0

    @property
    def added(self) -> int:
        """How many items were added."""
        return sum(one.added for one in self.items)

    @property
    def known(self) -> int:
        """How many items were there already."""
        return sum(one.known for one in self.items)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        return {**attrs.asdict(self), "added": self.added, "known": self.known}

    def __str__(self) -> str:
        would = "would be added" if self.dry_run else "added"
        odd = [printable(f"{one.what} {one.id}: {one.kind}: {one.note}") for one in self.odd[:_SHOWN]]
        more = len(self.odd) - _SHOWN
        lines = [
            f"{printable(self.kind)} {printable(self.source)} -> namespace {printable(self.namespace)}",
            "",
            *aligned(_rows(would, self.items)),
            "",
            f"time: {self.seconds:.1f} s",
            *(["", f"odd items: {len(self.odd):,}"] if odd else []),
            *(line if len(line) <= _WIDEST else f"{line[:_WIDEST]}..." for line in odd),
            *([f"... and {more:,} more, see the JSON form"] if more > 0 else []),
        ]
        return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of a name and numbers as lines, each column as wide as its widest cell."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    ]


def _rows(added: str, items: Sequence[ItemCount]) -> list[tuple[str, ...]]:
    head = ("", "found", added, "there already", "left out")
    counts = ((one.what, one.found, one.added, one.known, one.left_out) for one in items)
    return [head, *((printable(what), *(f"{count:,}" for count in numbers)) for what, *numbers in counts)]
