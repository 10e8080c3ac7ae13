"""
Administration of stores: checks, backups, copies, maintenance, namespaces and conversations.

A *store* is a location (a directory or the URL of a server) or an open `Session`. Functions that need the memories of
one namespace open a location for the duration of the call, with the namespace of *namespace*; a session uses its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

from mama_structs._internal.validation import TimeInput
from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.graph.results import JsonlImport
from mama_structs.memory.store import maintenance
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.copy_report import CopyReport
from mama_structs.memory.types.model import MaintenanceReport
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.refs.conversations.conversation_info import ConversationInfo
from mama_structs.session import upkeep
from mama_structs.session.location import check_store
from mama_structs.session.session import Session
from mama_structs.session.store_copy import copy_store
from mama_structs.storage.sqlite_errors import CheckReport

__all__ = [
    "backup",
    "check",
    "copy",
    "delete_conversation",
    "export_jsonl",
    "import_jsonl",
    "list_conversations",
    "list_namespaces",
    "maintain",
    "prune",
    "rebuild",
    "reembed",
]

Store: TypeAlias = str | os.PathLike[str] | Session
"""A location or an open session."""
Progress: TypeAlias = Callable[[int, int], object]
"""Called with the amount of finished work and the total."""


@contextlib.asynccontextmanager
async def _opened(store: Store | MemoryStore, namespace: str | None) -> AsyncIterator[Session | MemoryStore]:
    """Yield an open session unchanged, or open a location for the duration of the block."""
    if isinstance(store, Session | MemoryStore):
        own = store.namespace
        if namespace is not None and namespace != own:
            hint = "pass the location of the store, or leave namespace out"
            raise InvalidArgument(f"namespace must be that of the session, {own!r:.80}", hint=hint)
        yield store
        return
    if not isinstance(store, str | os.PathLike):
        hint = "pass a directory, the URL of a server, or an open session"
        raise InvalidArgument(f"store must be a location or a session, got {type(store).__name__}", hint=hint)
    await check_store(store)
    async with Session.open(store, namespace="default" if namespace is None else namespace) as session:
        yield session


@contextlib.asynccontextmanager
async def _services(store: Store | MemoryStore, namespace: str | None) -> AsyncIterator[NamespaceServices]:
    """Yield the services of the memories of a store."""
    async with _opened(store, namespace) as opened:
        memories = opened.memories if isinstance(opened, Session) else opened
        yield memories._shared


async def check(
    store: Store | MemoryStore, *, namespace: str | None = None, progress: Progress | None = None
) -> CheckReport:
    """
    Check a store for damage, without changing anything.

    Every view is compared with the journal, and all links are checked.

    Args:
        store: A location, or an open session.
        namespace: The namespace whose memories are checked; None for ``"default"``, or that of the session.
        progress: Called with the number of checked memories and their total number.

    Raises:
        InvalidArgument: *store* is no session's directory.
        StoreError: The store cannot be read at all.

    """
    async with _opened(store, namespace) as opened:
        if isinstance(opened, MemoryStore):
            return CheckReport(tuple(await maintenance.check(opened._shared, progress)))
        files = await opened._shared.home.check()
        memories = await maintenance.check(opened.memories._shared, progress)
        return CheckReport((*files, *memories))


async def maintain(store: Store | MemoryStore, *, namespace: str | None = None) -> MaintenanceReport:
    """
    Prune weak and old automatic links, at most once a week. Calls in between cost little.

    Ages are computed from the time of the previous maintenance, so that one wrong clock reading removes nothing.
    A store that is opened once in three months therefore prunes an old link one opening later.
    Also deletes conversations that were not used for ``settings.descriptors.conversation_ttl`` seconds.
    Runs automatically when a session opens.

    Args:
        store: A location, or an open session.
        namespace: The namespace to maintain; None for ``"default"``, or that of the session.

    Raises:
        StoreError: The store cannot be written to.

    """
    async with _opened(store, namespace) as opened:
        if isinstance(opened, MemoryStore):
            return await maintenance.maintain(opened._shared)
        opened._check()
        home, conversation = opened._shared.home, opened._conversation
        await upkeep.expire_conversations(home, conversation, opened.settings)
        return await maintenance.maintain(opened.memories._shared)


async def prune(store: Store | MemoryStore, *, namespace: str | None = None, now: TimeInput | None = None) -> int:
    """
    Remove weak automatic links and old temporal ones, and return their number. Explicit links stay.

    Args:
        store: A location, or an open session.
        namespace: The namespace to prune; None for ``"default"``, or that of the session.
        now: The time from which ages are computed; None for the present.

    """
    async with _services(store, namespace) as shared:
        return await maintenance.prune(shared, shared.resolve_time("now", now))


async def rebuild(
    store: Store | MemoryStore, *, namespace: str | None = None, progress: Progress | None = None
) -> list[str]:
    """
    Rebuild all indexes from the journal; meanwhile searches use the old ones.

    The current journal is accepted as complete: `check` no longer reports that it lost changes.

    Args:
        store: A location, or an open session.
        namespace: The namespace to rebuild; None for ``"default"``, or that of the session.
        progress: Called with the number of indexed memories and their total number.

    Returns:
        A line for each damaged row. Damaged rows are excluded from now on.

    """
    async with _services(store, namespace) as shared:
        return await maintenance.rebuild(shared, progress)


async def reembed(
    store: Store | MemoryStore,
    embedder: Embedder,
    *,
    namespace: str | None = None,
    progress: Progress | None = None,
) -> int:
    """
    Change to another embedder: compute new vectors for every memory of one namespace.

    A call resumes where an earlier one was interrupted.
    The old vectors remain in use until the last memory has new ones.
    From then on, other processes that have the store open get an error until they open it with the new embedder.

    Args:
        store: A location, or an open session.
        embedder: The new embedder.
        namespace: The namespace; None for ``"default"``, or that of the session.
        progress: Called with the number of embedded memories and their total number.

    Returns:
        The number of memories that this call embedded.

    Raises:
        InvalidArgument: The session also reads other namespaces, which would retain their old vectors.
        EmbeddingFailed: The embedder failed; the old embedder and its vectors stay in use.

    """
    async with _services(store, namespace) as shared:
        return await maintenance.reembed(shared, embedder, progress)


async def export_jsonl(
    store: Store | MemoryStore,
    path: str | os.PathLike[str],
    *,
    namespace: str | None = None,
    progress: Progress | None = None,
) -> int:
    """
    Export all memories of one namespace with links and vectors to a file, and return their number.

    The format is JSON Lines: one JSON object per line.
    The file appears under its name only when it is complete; memories that are saved meanwhile may or may not be in it.

    Args:
        store: A location, or an open session.
        path: The file; an existing file is replaced.
        namespace: The namespace; None for ``"default"``, or that of the session.
        progress: Called with the number of written memories and their total number.

    """
    async with _services(store, namespace) as shared:
        return await maintenance.export_jsonl(shared, path, progress)


async def import_jsonl(
    store: Store | MemoryStore,
    path: str | os.PathLike[str],
    *,
    namespace: str | None = None,
    progress: Progress | None = None,
) -> JsonlImport:
    """
    Import the memories of an `export_jsonl` file, with their ids, times and links.

    Memories that already exist unchanged are skipped, so an interrupted import can simply be repeated.

    Args:
        store: A location, which is created if it is missing, or an open session.
        path: The file.
        namespace: The namespace; None for ``"default"``, or that of the session.
        progress: Called with the number of imported lines and their total number.

    Raises:
        InvalidArgument: A line does not have the export format, or a memory with its id exists with other content;
            the message names the line. Nothing was imported.
        StoreError: The store cannot be written; lines that were already imported stay.

    """
    async with _services(store, namespace) as shared:
        return await maintenance.import_jsonl(shared, path, progress)


async def backup(store: Store, path: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """
    Copy a store's whole directory as a consistent snapshot. Other processes may keep writing.

    Args:
        store: A session's directory, or an open session.
        path: A directory that is missing or empty; a session can be opened in the copy.
        progress: Called with the number of copied pages of the database, and the total number.

    Returns:
        The copy's path.

    Raises:
        InvalidArgument: The store has no directory, or *path* is not empty.
        StoreError: The copy failed; its files were removed.

    """
    if isinstance(store, Session):
        store._check()
        return await upkeep.back_up(store._shared.home, path, progress)
    async with upkeep.opened_backend(store) as home:
        return await upkeep.back_up(home, path, progress)


async def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    namespace: str | None = None,
    progress: Progress | None = None,
) -> CopyReport:
    """
    Copy the content of a store to another one, and compare the two.

    Repeating the call, such as after a crash, adds only missing data. Data in *target* is never replaced or
    deleted, and *source* is not written to. A directory is copied from a consistent snapshot.

    Args:
        source: A session's directory, or the URL of a server, which should not be written to during the copy.
        target: The directory or URL to copy to: empty, or from an earlier run.
        namespace: Copy only the memories and conversations of this namespace; None for all.
        progress: Called with the number of finished steps and the number of known steps.

    Raises:
        InvalidArgument: *source* is not a session's directory, or *target* contains other files.
        UnknownNamespace: The source has no such *namespace*.
        StoreMismatch: The target has other data in a namespace, or could not be made equal.
        EmbedderMismatch: The target has vectors of another embedder.
        StoreError: One of the two cannot be read or written.

    """
    return await copy_store(source, target, namespace=namespace, progress=progress)


async def list_namespaces(store: Store) -> tuple[str, ...]:
    """
    Return the sorted namespaces of a store that have memories or conversations.

    Args:
        store: A location, or an open session.

    Raises:
        InvalidArgument: *store* is no session's directory.
        StoreError: The store cannot be read.

    """
    async with upkeep.opened_backend(store) as home:
        return await home.namespaces()


async def list_conversations(store: Store, *, namespace: str | None = None) -> tuple[ConversationInfo, ...]:
    """
    Return the conversations of a namespace, most recently used first.

    Args:
        store: A location, or an open session.
        namespace: The namespace; None for ``"default"``, or that of the session.

    Raises:
        InvalidArgument: *store* is no session's directory, or *namespace* is invalid.
        StoreError: The store cannot be read.

    """
    async with upkeep.opened_backend(store) as home:
        return await home.conversations(upkeep.namespace_of(store, namespace))


async def delete_conversation(store: Store, name: str, *, namespace: str | None = None) -> None:
    """
    Delete a conversation that is not open anywhere. The deletion is atomic.

    Its texts are deleted from the store, except those that another conversation uses or a memory keeps as evidence.
    Forks of it keep their contents.

    Args:
        store: A location, or an open session.
        name: The name of the conversation.
        namespace: The namespace; None for ``"default"``, or that of the session.

    Raises:
        InvalidArgument: No conversation has this name.
        StoreBusy: A session of this or another process has it open.
        StoreDamaged: A row that one of its forks needs cannot be read.

    """
    async with upkeep.opened_backend(store) as home:
        await home.delete(name, namespace=upkeep.namespace_of(store, namespace))
