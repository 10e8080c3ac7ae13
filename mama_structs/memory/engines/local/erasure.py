"""What is still on the disk of memories that plans erased, in the journal and in snapshots of views."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from mama_structs.memory.engines.local.journal_rows import read_head
from mama_structs.memory.engines.local.views.snapshots import SnapshotStore
from mama_structs.storage.connection import ERASING
from mama_structs.storage.sealed_rows import Rows
from mama_structs.storage.sqlite_store import Storage

JOURNAL_HELD: Final = (
    "another process reads the journal as it was: its free pages and its log still hold what was there"
)
VIEWS_HELD: Final = "another process writes views of the memories just now, as they were"

_decode: Final = msgspec.json.Decoder(int).decode


def erasing_key(namespace: str) -> str:
    """Return the key of the row that says at which change a namespace's plans erased something last."""
    return f"{ERASING}{quote(namespace, safe='')}"


def folder_of(views: Path, namespace: str) -> Path:
    """Return where a namespace's views are: a namespace may have characters that file systems refuse or confuse."""
    return views / blake2b(namespace.encode(), digest_size=8).hexdigest()


async def finish_erasing(storage: Storage, views: Path | None, *, wait: float) -> tuple[str, ...]:
    """Have what was erased leave the disk, for all namespaces, and return what still holds some of it, for people."""
    marks = dict(await storage.look(lambda rows: rows.items(ERASING)))
    if not marks:
        return ()
    if not await storage.scrub(wait=wait):
        return (JOURNAL_HELD,)
    # From here on whoever derives a view knows of the change: nobody reads what was before it any more.
    directory = str(storage.directory)
    for key, value in marks.items():
        namespace = unquote(key.removeprefix(ERASING))
        head = await storage.look(lambda rows: read_head(rows, namespace, directory))  # noqa: B023 - awaited
        if views is not None and head is not None:
            snapshots = SnapshotStore(folder_of(views, namespace), identity=head.identity)
            # A mark that is damaged may be of any change.
            if not snapshots.clear(before=_decode(value) if isinstance(value, bytes) else None):
                return (VIEWS_HELD,)

    def done(rows: Rows) -> None:
        for key, value in marks.items():
            # Something else may have been erased meanwhile.
            if rows.get(key) == value:
                rows.delete(key)

    await storage.transact(done)
    return ()
