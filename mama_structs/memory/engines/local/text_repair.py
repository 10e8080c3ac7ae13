"""Repair of the rows that record which memories use which stored texts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from mama_structs.errors import StoreDamaged
from mama_structs.memory.engines.local.journal_rows import RowKeys, number_key, parse_number
from mama_structs.memory.types.codec import content_digests
from mama_structs.memory.types.model import is_digest
from mama_structs.storage.sealed_rows import DamagedValue, RowChange, Snapshot

FindRepairs: TypeAlias = Callable[[Snapshot, RowKeys, Sequence[str]], dict[str, RowChange]]
"""Function that returns the row changes that repair the rows under some keys."""


def find_missing_uses(rows: Snapshot, row_keys: RowKeys, memories: Sequence[str]) -> dict[str, RowChange]:
    """Return the uses to add for some memories. Without them, texts that the memories name would be deleted."""
    found: dict[str, RowChange] = {}
    values = rows.get_many(list(memories))
    for key in memories:
        number = parse_number(row_keys.memories, key)
        if number is not None:
            uses = (
                number_key(row_keys.uses_prefix(digest), number)
                for digest in _find_digests(row_keys, key, values) or ()
            )
            found |= {use: b"" for use in uses if rows.get(use) is None}
    return found


def find_orphaned_uses(rows: Snapshot, row_keys: RowKeys, uses: Sequence[str]) -> dict[str, RowChange]:
    """Return the deletions of those uses whose memory does not name the text."""
    found: dict[str, RowChange] = {}
    for key in uses:
        folder, _, _ = key.rpartition("/")
        digest, number = folder.removeprefix(row_keys.all_uses), parse_number(f"{folder}/", key)
        # Leave foreign keys, which check() reports.
        if number is not None and is_digest(digest):
            memory = number_key(row_keys.memories, number)
            named = _find_digests(row_keys, memory, rows.get_many([memory]))
            if named is not None and digest not in named:
                found[key] = None
    return found


def find_orphaned_texts(rows: Snapshot, row_keys: RowKeys, texts: Sequence[str]) -> dict[str, RowChange]:
    """Return the deletions of those texts that have no uses."""
    digests = {key: key.removeprefix(row_keys.contents) for key in texts}
    return {
        key: None
        for key, digest in digests.items()
        if is_digest(digest) and rows.last_key(row_keys.uses_prefix(digest)) is None
    }


def _find_digests(row_keys: RowKeys, key: str, values: Mapping[str, bytes | DamagedValue]) -> Sequence[str] | None:
    """Return the hashes of the texts that a memory names: none if it is missing, None if it is damaged."""
    if key not in values:
        return ()
    with contextlib.suppress(StoreDamaged):
        return content_digests(row_keys.memory(key, values[key]))
    return None
