"""Whose memories can be taken over, and the call that does it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import in_own_thread
from mama_structs.errors import InvalidArgument
from mama_structs.importers.basic_memory import reader as basic_memory
from mama_structs.importers.langgraph import reader as langgraph
from mama_structs.importers.mcp_memory import reader as mcp_memory
from mama_structs.importers.mem0 import reader as mem0
from mama_structs.importers.shared.import_model import Outside
from mama_structs.importers.shared.import_report import ImportReport
from mama_structs.importers.shared.import_writer import Import
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.engine import Progress
from mama_structs.memory.types.requests import check_file, check_progress

Kind = Literal["mem0", "langgraph", "mcp-memory", "basic-memory"]
"""Which program's memories a source holds."""

KINDS: Final[Mapping[Kind, Callable[..., Outside]]] = {
    "mem0": mem0.read,
    "langgraph": langgraph.read,
    "mcp-memory": mcp_memory.read,
    "basic-memory": basic_memory.read,
}
"""What reads the files of each."""


async def import_from(
    memories: MemoryStore,
    kind: Kind,
    source: Any,
    *,
    user: str | None = None,
    dry_run: bool = False,
    again: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """
    Take over the memories of another program, whose files are not changed.

    All of it has the origin ``"outside"``. Running it again changes nothing, and adds what has come to the source
    since; interrupted, it goes on when it is run again. What was deleted here after an import does not come back.

    Args:
        memories: Where to: a session's, of which only its own namespace is written.
        kind: Whose they are: ``"mem0"`` (its Qdrant folder, its history, or what ``get_all`` gives as JSON),
            ``"langgraph"`` (the file of a SqliteStore), ``"mcp-memory"`` (the JSON lines of MCP's memory server),
            ``"basic-memory"`` (a folder of notes).
        source: The file or folder; for ``"langgraph"`` also a ``BaseStore``.
        user: Of mem0's memories, only those of this user id; None for all.
        dry_run: Whether only to say what would be done.
        again: Whether to add also what was taken over before, and deleted here since.
        progress: Called with how many items are done, and of how many.

    Raises:
        InvalidArgument: There is no such file, or nothing of that kind in it; nothing was written. Or a library that
            reads it is not installed.
        MigrationError: A file is damaged, cut off, being written to, of another kind, or exceeds a limit of
            docs/how-to/import-from-others.md; nothing was written.
        EmbeddingFailed: The embedder failed; what was written before stays.
        StoreError: The store cannot be read or written; what was written before stays.

    """
    outside = await read_from(kind, source, user=user)
    return await take_over(memories, outside, dry_run=dry_run, again=again, progress=progress)


async def take_over(
    memories: MemoryStore,
    outside: Outside,
    *,
    dry_run: bool = False,
    again: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Do what `import_from` does with a source that was read."""
    check_progress(progress)
    shared = memories._shared  # noqa: SLF001 - this package's
    shared.check()
    run = Import(
        shared=shared,
        records=memories.records,
        outside=outside,
        dry_run=_check.flag("dry_run", dry_run),
        again=_check.flag("again", again),
        progress=progress,
    )
    return await run.run()


async def read_from(kind: Kind, source: Any, *, user: str | None = None) -> Outside:
    """Read a source; see `import_from`."""
    reader = KINDS[_check.choice("kind", kind, KINDS)]
    if user is not None:
        if kind != "mem0":
            raise InvalidArgument(f"user is for memories of mem0, and these are of {kind}")
        reader = partial(reader, user=_check.text("user", user))
    if kind == "langgraph" and not isinstance(source, str | os.PathLike):
        return await langgraph.read_store(source)
    path = check_file(source)
    return await in_own_thread(lambda: reader(path.expanduser()))
