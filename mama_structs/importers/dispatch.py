"""Readers of the supported import sources, and `import_from`, which imports a source."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs._internal.sync_proxy import await_or_run
from mama_structs.errors import InvalidArgument
from mama_structs.importers.basic_memory import reader as basic_memory
from mama_structs.importers.claude_code import reader as claude_code
from mama_structs.importers.claude_mem import reader as claude_mem
from mama_structs.importers.langgraph import reader as langgraph
from mama_structs.importers.mcp_memory import reader as mcp_memory
from mama_structs.importers.mem0 import reader as mem0
from mama_structs.importers.shared.import_model import ImportedData
from mama_structs.importers.shared.import_report import ImportReport
from mama_structs.importers.shared.import_writer import ImportWriter
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.engine import ProgressCallback
from mama_structs.memory.types.requests import check_file, check_progress

if TYPE_CHECKING:
    from mama_structs import sync

SourceKind = Literal["mem0", "langgraph", "mcp-memory", "basic-memory", "claude-code", "claude-mem"]
"""The program that wrote a source."""

READERS: Final[Mapping[SourceKind, Callable[..., ImportedData]]] = {
    "mem0": mem0.read,
    "langgraph": langgraph.read,
    "mcp-memory": mcp_memory.read,
    "basic-memory": basic_memory.read,
    "claude-code": claude_code.read,
    "claude-mem": claude_mem.read,
}
"""The reader of each kind of source."""


@overload
def import_from(
    memories: MemoryStore,
    kind: SourceKind,
    source: Any,
    *,
    user: str | None = ...,
    dry_run: bool = ...,
    again: bool = ...,
    progress: ProgressCallback | None = ...,
) -> Coroutine[Any, Any, ImportReport]: ...
@overload
def import_from(
    memories: sync.MemoryStore,
    kind: SourceKind,
    source: Any,
    *,
    user: str | None = ...,
    dry_run: bool = ...,
    again: bool = ...,
    progress: ProgressCallback | None = ...,
) -> ImportReport: ...


def import_from(
    memories: Any,
    kind: SourceKind,
    source: Any,
    *,
    user: str | None = None,
    dry_run: bool = False,
    again: bool = False,
    progress: ProgressCallback | None = None,
) -> Coroutine[Any, Any, ImportReport] | ImportReport:
    """
    Import the memories of another program. Its files are not changed.

    All imported memories have the origin ``"outside"``. A repeated import only adds what is new in the source, and an
    interrupted import continues when it is repeated. Memories that were deleted after an import are not imported again.

    Args:
        memories: The store to import into. Only its own namespace is written. With one of an async session the call is
            awaited; with one of `mama_structs.sync` it returns the report.
        kind: The source program: ``"mem0"`` (its Qdrant folder, its history, or the result of ``get_all`` as JSON),
            ``"langgraph"`` (the file of a SqliteStore), ``"mcp-memory"`` (the JSON lines of MCP's memory server),
            ``"basic-memory"`` (a folder of notes), ``"claude-code"`` (a transcript, or a folder of transcripts),
            ``"claude-mem"`` (its database, or the folder with it).
        source: The file or folder; for ``"langgraph"`` also a ``BaseStore``.
        user: For mem0, import only the memories of this user id; None for all.
        dry_run: If true, only report what an import would do.
        again: Whether to also import items that were imported before and deleted since.
        progress: Called with the number of processed items and their total number.

    Raises:
        InvalidArgument: The file does not exist, contains nothing of that kind, or needs a library that is not
            installed; nothing was written.
        MigrationError: A file is damaged, truncated, being written to, of another kind, or exceeds a limit of
            docs/memory/import-and-migrate.md; nothing was written.
        EmbeddingFailed: The embedder failed; items that were already imported stay.
        StoreError: The store cannot be read or written; items that were already imported stay.

    """
    report: Coroutine[Any, Any, ImportReport] | ImportReport = await_or_run(
        memories,
        lambda own: _import_from(own, kind, source, user=user, dry_run=dry_run, again=again, progress=progress),
    )
    return report


async def _import_from(
    memories: MemoryStore, kind: SourceKind, source: Any, *, user: str | None, **options: Any
) -> ImportReport:
    return await import_data(memories, await read_source(kind, source, user=user), **options)


async def import_data(
    memories: MemoryStore,
    data: ImportedData,
    *,
    dry_run: bool = False,
    again: bool = False,
    progress: ProgressCallback | None = None,
) -> ImportReport:
    """Import data that `read_source` has returned; see `import_from`."""
    check_progress(progress)
    shared = memories._shared
    shared.check()
    run = ImportWriter(
        shared=shared,
        records=RecordStore(shared),
        outside=data,
        dry_run=_check.check_bool("dry_run", dry_run),
        again=_check.check_bool("again", again),
        progress=progress,
    )
    return await run.run()


async def read_source(kind: SourceKind, source: Any, *, user: str | None = None) -> ImportedData:
    """Read a source without importing it; see `import_from`."""
    reader = READERS[_check.check_choice("kind", kind, READERS)]
    if user is not None:
        if kind != "mem0":
            raise InvalidArgument(f"user is for memories of mem0, and these are of {kind}")
        reader = partial(reader, user=_check.check_text("user", user))
    if kind == "langgraph" and not isinstance(source, str | os.PathLike):
        return await langgraph.read_store(source)
    path = check_file(source)
    return await run_in_own_thread(lambda: reader(path.expanduser()))
