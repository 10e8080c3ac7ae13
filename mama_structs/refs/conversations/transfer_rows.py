"""Selection of the conversation rows that are copied to another store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import attrs

from mama_structs.errors import StoreDamaged
from mama_structs.refs.conversations.conversation_log import (
    CHANGES,
    ENCODER,
    STARTS,
    TEXTS,
    StartRecord,
    change_of,
    lineage,
    start_of,
    texts_of,
)
from mama_structs.refs.conversations.conversations import starts_in
from mama_structs.storage.sealed_rows import Damaged, Snapshot

LAX: Final = ("used/", "told/")
"""Key prefixes of rows that may differ in a copy that was used after the transfer."""


@attrs.frozen(eq=False)
class CarriedRows:
    """
    Rows and texts of the conversations that are transferred.

    Args:
        rows: All rows except texts, in write order: the start rows come last.
        texts: The sizes in bytes of the referenced texts, by namespace and key.
        spaces: The namespace of each row.
        damaged: One line for each unreadable row. These rows are not in *rows*.

    """

    rows: Mapping[str, bytes]
    texts: Mapping[tuple[str, str], int]
    spaces: Mapping[str, str]
    damaged: tuple[str, ...]


def carried(rows: Snapshot, namespaces: Collection[str], *, strays: bool) -> CarriedRows:
    """
    Return the rows of all conversations of the namespaces.

    With *strays*, rows without a readable start row are reported as damaged.
    """
    taken = _RowsTaken()
    begun = []
    for start in starts_in(rows):
        if start.namespace in namespaces:
            own = rows.within(start.namespace)
            # On a server, a conversation cannot depend on rows of another namespace, so such a fork is copied with its
            # history.
            stays_fork = start.parent_key is None or start.parent_key.namespace == start.namespace
            first = taken.take_all(own, start, as_it_is=stays_fork)
            begun.append((start, first))
    for start, first in begun:
        taken.take([(start.key.start, first)], start.namespace)
    if strays:
        taken.damaged += _strays(rows)
    texts = {}
    for name, held in _rows_by_namespace(taken).items():
        sizes = rows.within(name).sizes(TEXTS)
        for text, change in texts_of(held).items():
            if text in sizes:
                texts[name, text] = sizes[text]
            else:
                taken.damaged.append(f"{text}: it is gone, and {change} names it")
    return CarriedRows(taken.rows, texts, taken.spaces, tuple(dict.fromkeys(taken.damaged)))


def _rows_by_namespace(taken: _RowsTaken) -> dict[str, dict[str, bytes]]:
    """Group the collected rows by namespace, because texts are looked up per namespace."""
    found: dict[str, dict[str, bytes]] = {}
    for key, row in taken.rows.items():
        found.setdefault(taken.spaces[key], {})[key] = row
    return found


@attrs.define(eq=False)
class _RowsTaken:
    rows: dict[str, bytes] = attrs.field(factory=dict)
    spaces: dict[str, str] = attrs.field(factory=dict)
    damaged: list[str] = attrs.field(factory=list)

    def take(self, some: Iterable[tuple[str, bytes | Damaged | None]], namespace: str) -> None:
        for key, row in some:
            if isinstance(row, Damaged):
                self.damaged.append(f"{key}: {row.reason}")
            elif row is not None:
                self.rows[key], self.spaces[key] = row, namespace

    def take_all(self, rows: Snapshot, start: StartRecord, *, as_it_is: bool) -> bytes | Damaged | None:
        """Collect all rows of a conversation except its start row, and return the start row."""
        key, first = start.key, rows.get(start.key.start)
        if not as_it_is:
            # The parent is in another namespace: inline the inherited changes, as if the parent were deleted.
            try:
                inherited = lineage(rows, key, "")[1][1:]
            except StoreDamaged as error:
                return Damaged(str(error))
            for changes, until in inherited:
                own = [(name, row) for name, row in changes if change_of(name, row).number <= until]
                self.take([(f"{key.changes}{name.split('/', 2)[2]}", row) for name, row in own], key.namespace)
            first = ENCODER.encode(start.moved(key, None, until=0))
        self.take([*rows.items(key.changes), *rows.items(key.told), (key.used, rows.get(key.used))], key.namespace)
        return first


def _strays(rows: Snapshot) -> list[str]:
    """Return one line per damaged start row, and per conversation without a start row."""
    starts = {key: start_of(row) for key, row in rows.items(STARTS)}
    bad = {key: start.reason for key, start in starts.items() if isinstance(start, Damaged)}
    lost = [f"{key}: {reason}; all that the conversation holds is left out" for key, reason in bad.items()]
    parts = {key.split("/")[1]: None for key in rows.keys(CHANGES)}
    return lost + [
        f"{CHANGES}{part}/: how the conversation began is missing" for part in parts if f"{STARTS}{part}" not in starts
    ]
