"""Selection of the conversation rows that are copied to another store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import attrs

from mama_structs.errors import StoreDamaged
from mama_structs.refs.conversations.conversation_log import (
    CHANGE_PREFIX,
    ENCODER,
    START_PREFIX,
    TEXT_PREFIX,
    StartRecord,
    decode_start_row,
    find_text_keys,
    parse_change,
    read_lineage,
)
from mama_structs.refs.conversations.conversations import read_start_rows
from mama_structs.storage.sealed_rows import DamagedValue, Snapshot

VOLATILE_PREFIXES: Final = ("used/", "told/")
"""Key prefixes of rows that may differ in a copy that was used after the transfer."""


@attrs.frozen(eq=False)
class TransferRows:
    """
    Rows and texts of the conversations that are transferred.

    Args:
        rows: All rows except texts, in write order: the start rows come last.
        texts: The sizes in bytes of the referenced texts, by namespace and key.
        namespaces: The namespace of each row.
        damaged: One line for each unreadable row. These rows are not in *rows*.

    """

    rows: Mapping[str, bytes]
    texts: Mapping[tuple[str, str], int]
    namespaces: Mapping[str, str]
    damaged: tuple[str, ...]


def select_transfer_rows(rows: Snapshot, namespaces: Collection[str], *, report_orphans: bool) -> TransferRows:
    """
    Return the rows of all conversations in the namespaces.

    With *report_orphans*, rows without a readable start row are reported as damaged.
    """
    taken = _RowCollector()
    begun = []
    for start in read_start_rows(rows):
        if start.namespace in namespaces:
            own = rows.in_namespace(start.namespace)
            # On a server, a fork cannot depend on a parent in another namespace, so copy its history with it.
            stays_fork = start.parent_key is None or start.parent_key.namespace == start.namespace
            first = taken.add_conversation(own, start, as_it_is=stays_fork)
            begun.append((start, first))
    for start, first in begun:
        taken.add([(start.key.start, first)], start.namespace)
    if report_orphans:
        taken.damaged += _find_orphans(rows)
    texts = {}
    for name, held in _rows_by_namespace(taken).items():
        sizes = rows.in_namespace(name).sizes(TEXT_PREFIX)
        for text, change in find_text_keys(held).items():
            if text in sizes:
                texts[name, text] = sizes[text]
            else:
                taken.damaged.append(f"{text}: it is gone, and {change} names it")
    return TransferRows(taken.rows, texts, taken.namespaces, tuple(dict.fromkeys(taken.damaged)))


def _rows_by_namespace(taken: _RowCollector) -> dict[str, dict[str, bytes]]:
    """Group the collected rows by namespace, because each namespace has its own texts."""
    found: dict[str, dict[str, bytes]] = {}
    for key, row in taken.rows.items():
        found.setdefault(taken.namespaces[key], {})[key] = row
    return found


@attrs.define(eq=False)
class _RowCollector:
    rows: dict[str, bytes] = attrs.field(factory=dict)
    namespaces: dict[str, str] = attrs.field(factory=dict)
    damaged: list[str] = attrs.field(factory=list)

    def add(self, some: Iterable[tuple[str, bytes | DamagedValue | None]], namespace: str) -> None:
        for key, row in some:
            if isinstance(row, DamagedValue):
                self.damaged.append(f"{key}: {row.reason}")
            elif row is not None:
                self.rows[key], self.namespaces[key] = row, namespace

    def add_conversation(self, rows: Snapshot, start: StartRecord, *, as_it_is: bool) -> bytes | DamagedValue | None:
        """Collect all rows of a conversation except its start row, and return the start row."""
        key, first = start.key, rows.get(start.key.start)
        if not as_it_is:
            # The parent is in another namespace, so store the inherited changes in the fork itself.
            try:
                inherited = read_lineage(rows, key, "")[1][1:]
            except StoreDamaged as error:
                return DamagedValue(str(error))
            for changes, until in inherited:
                own = [(name, row) for name, row in changes if parse_change(name, row).number <= until]
                self.add([(f"{key.changes}{name.split('/', 2)[2]}", row) for name, row in own], key.namespace)
            first = ENCODER.encode(start.with_key(key, None, parent_at=0))
        self.add(
            [*rows.items(key.changes), *rows.items(key.recall_log_prefix), (key.used_key, rows.get(key.used_key))],
            key.namespace,
        )
        return first


def _find_orphans(rows: Snapshot) -> list[str]:
    """Return one line for each damaged start row, and for each conversation without a start row."""
    starts = {key: decode_start_row(row) for key, row in rows.items(START_PREFIX)}
    bad = {key: start.reason for key, start in starts.items() if isinstance(start, DamagedValue)}
    lost = [f"{key}: {reason}; all that the conversation holds is left out" for key, reason in bad.items()]
    parts = {key.split("/")[1]: None for key in rows.keys(CHANGE_PREFIX)}
    return lost + [
        f"{CHANGE_PREFIX}{part}/: how the conversation began is missing"
        for part in parts
        if f"{START_PREFIX}{part}" not in starts
    ]
