"""Deletion of a whole namespace from the journal and the views of a directory."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from mama_structs._internal.event_loop import run_in_own_thread, run_to_completion
from mama_structs.errors import StoreDamaged
from mama_structs.memory.engines.local.erasure import erasure_marker_key, view_folder
from mama_structs.memory.engines.local.journal_rows import (
    NamespaceCounter,
    encode_row,
    find_last_number,
    namespace_prefix,
    read_head,
)
from mama_structs.memory.types.engine import ProgressCallback
from mama_structs.memory.types.model import MemoryType
from mama_structs.memory.types.namespace_erasure import NamespaceErasure
from mama_structs.memory.types.record import NOTE_PREFIX
from mama_structs.storage.sealed_rows import Rows, Snapshot
from mama_structs.storage.sqlite_store import SqliteStorage

T = TypeVar("T")

PAGE_ROWS: Final = 500


async def delete_namespace(
    storage: SqliteStorage,
    views: Path | None,
    namespace: str,
    delete_rows: Callable[[Rows], T],
    progress: ProgressCallback | None,
) -> tuple[NamespaceErasure, T]:
    """
    Delete the rows and views of a namespace without open sessions; see `Engines.delete_namespace`.

    One transaction deletes all rows, so that a crash leaves either the whole namespace or nothing of it.
    The transaction also marks the data for removal from disk, which another process can finish after a crash.
    """
    await storage.run_read(lambda rows: _check_format(rows, namespace, str(storage.directory)))
    prefix = namespace_prefix(namespace)
    memories, texts, records = f"{prefix}m/", f"{prefix}e/", f"{prefix}n/{NOTE_PREFIX}"
    keys, text_count, note_count = await storage.run_read(
        lambda rows: (rows.keys(memories), len(rows.keys(texts)), len(rows.keys(records)))
    )
    counter = NamespaceCounter()
    for start in range(0, len(keys), PAGE_ROWS):
        page = keys[start : start + PAGE_ROWS]
        found = await storage.run_read(lambda rows: rows.get_many(page))  # noqa: B023 - awaited
        for value in found.values():
            counter.add(value)
        # Progress: the deletion counts as the last step.
        if progress is not None:
            progress(start + len(page), len(keys) + 1)

    def delete(rows: Rows) -> T:
        result = delete_rows(rows)
        last = max(find_last_number(rows, memories), find_last_number(rows, f"{prefix}c/"))
        rows.delete_prefix(prefix)
        rows.put(erasure_marker_key(namespace), encode_row(last))
        return result

    async def commit() -> T:
        if views is not None:
            # Delete the views before the rows. Otherwise their watermark would report the missing rows as lost changes.
            folder = view_folder(views, namespace)
            await run_in_own_thread(lambda: shutil.rmtree(folder, ignore_errors=True))
        return await storage.transact(delete)

    # Run to completion even if the caller is cancelled, because the namespace is locked until the commit.
    result = await run_to_completion(commit())
    if progress is not None:
        progress(len(keys) + 1, len(keys) + 1)
    types = counter.types
    counts = {one.value: types[one] for one in MemoryType if types[one] and one is not MemoryType.RECORD}
    erased = NamespaceErasure(
        namespace=namespace,
        memories=counts,
        # Records without text are notes.
        records=types[MemoryType.RECORD] + note_count,
        unreadable=counter.unreadable,
        links=counter.links,
        evidence_texts=text_count,
    )
    return erased, result


def _check_format(rows: Snapshot, namespace: str, directory: str) -> None:
    """Raise if a later version wrote the namespace. A damaged namespace can be deleted."""
    with contextlib.suppress(StoreDamaged):
        read_head(rows, namespace, directory)
