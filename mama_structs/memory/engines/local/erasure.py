"""Removal of erased data from disk: from the journal file, and from snapshots of views."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from mama_structs.errors import StoreFull
from mama_structs.memory.engines.local.journal_rows import read_head
from mama_structs.memory.engines.local.views.snapshots import SnapshotStore
from mama_structs.storage.sealed_rows import ERASING_KEY_PREFIX, Rows
from mama_structs.storage.sqlite_store import SqliteStorage

JOURNAL_HELD_MESSAGE: Final = (
    "another process reads the journal as it was: its free pages and its log still hold what was there"
)
JOURNAL_FULL_MESSAGE: Final = (
    "the disk has no room to rewrite the journal: its free pages and its log still hold what was there"
)
VIEWS_HELD_MESSAGE: Final = "another process writes views of the memories just now, as they were"

_decode_change: Final = msgspec.json.Decoder(int).decode


def erasure_marker_key(namespace: str) -> str:
    """Return the key of the row that stores the number of the last change that erased data."""
    return f"{ERASING_KEY_PREFIX}{quote(namespace, safe='')}"


def view_folder(views: Path, namespace: str) -> Path:
    """
    Return the folder of a namespace's views.

    Its name is a hash, because a namespace may contain characters that are unsafe in paths.
    """
    return views / blake2b(namespace.encode(), digest_size=8).hexdigest()


async def erase_from_disk(storage: SqliteStorage, views: Path | None, *, wait: float) -> tuple[str, ...]:
    """
    Remove erased data of all namespaces from disk.

    Args:
        storage: The journal.
        views: The folder with the views of all namespaces, or None if they are not stored.
        wait: Maximum seconds to wait for other processes that read the journal.

    Returns:
        A message for each copy that could not be removed, empty if there is none.

    """
    marks = dict(await storage.run_read(lambda rows: rows.items(ERASING_KEY_PREFIX)))
    if not marks:
        return ()
    try:
        if not await storage.erase_deleted_data(wait=wait):
            return (JOURNAL_HELD_MESSAGE,)
    except StoreFull:
        return (JOURNAL_FULL_MESSAGE,)
    # From now on every process sees the erasing change when it builds views, so none reads older snapshots.
    directory = str(storage.directory)
    for key, value in marks.items():
        namespace = unquote(key.removeprefix(ERASING_KEY_PREFIX))
        head = await storage.run_read(lambda rows: read_head(rows, namespace, directory))  # noqa: B023 - awaited
        if views is not None:
            # A deleted namespace has no head row, so no snapshot of it is valid.
            identity = "" if head is None else head.identity
            snapshots = SnapshotStore(view_folder(views, namespace), identity=identity)
            # The change number in a damaged marker is unknown, so delete all snapshots.
            if not snapshots.clear(before=_read_change(value)):
                return (VIEWS_HELD_MESSAGE,)

    def done(rows: Rows) -> None:
        for key, value in marks.items():
            # Keep the marker if another process erased data again in the meantime.
            if rows.get(key) == value:
                rows.delete(key)

    await storage.transact(done)
    return ()


def _read_change(value: object) -> int | None:
    """Return the change number in a marker, or None if the marker is damaged."""
    try:
        return _decode_change(value) if isinstance(value, bytes) else None
    except msgspec.DecodeError:
        return None
