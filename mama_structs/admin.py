"""
Administration of stores: checks, backups, copies, maintenance, namespaces and conversations.

A *store* is a location (a directory or the URL of a server) or an open `Session`. A location is opened for the duration
of the call, with the namespace *namespace*; None means ``"default"`` if the store has it, else its only namespace.
A session uses its own namespace. Functions that concern only memories also accept a `MemoryStore`. None of them needs
the embedder that the store was written with.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

from mama_structs._internal.event_loop import LoopGuard, run_in_own_thread, run_to_completion
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import make_module_getattr
from mama_structs._internal.sync_proxy import SyncProxy
from mama_structs._internal.validation import TimeInput
from mama_structs.errors import InvalidArgument, UnknownNamespace
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.graph.results import JsonlImport
from mama_structs.memory.store import maintenance
from mama_structs.memory.store.factory import UnavailableEmbedder, open_memories
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import MaintenanceReport
from mama_structs.memory.types.namespace_erasure import NamespaceErasure
from mama_structs.memory.types.reports import CopyReport
from mama_structs.memory.types.requests import check_file, check_namespace, check_progress
from mama_structs.memory.upkeep.jsonl_transfer import read_export_embedder
from mama_structs.refs.conversations.conversation_info import ConversationInfo
from mama_structs.session import upkeep
from mama_structs.session.backend import Backend, open_backend
from mama_structs.session.location import check_location, check_store
from mama_structs.session.session import Session
from mama_structs.session.store_copy import copy_store
from mama_structs.session.wiring import make_text_eraser
from mama_structs.settings import MemorySettings, Settings
from mama_structs.storage.sqlite_errors import CheckReport
from mama_structs.tools.wire_names import make_name_hint

__all__ = [
    "backup",
    "check",
    "copy",
    "delete_conversation",
    "delete_namespace",
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
P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_NAMESPACE: Final = "default"
_LOCATION_TYPES: Final = (str, os.PathLike)


def _rejects_sync_sessions(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate an async function so that a call with an object of `mama_structs.sync` raises immediately."""

    # Without this check the call would return a coroutine, which code without ``await`` never runs.
    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> Coroutine[Any, Any, T]:
        for one in (*arguments, *keywords.values()):
            if isinstance(one, SyncProxy):
                raise _not_a_store_error(one)
        return function(*arguments, **keywords)

    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(call)
    return call


@contextlib.asynccontextmanager
async def _opened_backend(store: Store) -> AsyncIterator[Backend]:
    """Yield the backend of an open session, or open an existing store for the duration of the block."""
    if isinstance(store, Session):
        store._check()
        yield store._shared.home
    elif isinstance(store, _LOCATION_TYPES):
        async with open_backend(await check_store(store)) as home:
            yield home
    else:
        raise _not_a_store_error(store)


@contextlib.asynccontextmanager
async def _opened_memories(
    store: Store | MemoryStore, namespace: str | None, *, export: Path | None = None
) -> AsyncIterator[tuple[MemoryStore, Backend | None]]:
    """
    Yield the memories of an open session with its backend, or open a location for the duration of the block.

    A `MemoryStore` has no backend. An *export* is to be imported: the location may be missing, and the embedder that
    computed the vectors in the export becomes that of a new namespace.
    """
    if isinstance(store, Session | MemoryStore):
        _check_own_namespace(store, namespace)
        if isinstance(store, MemoryStore):
            yield store, None
        else:
            store._check()
            yield store.memories, store._shared.home
        return
    if not isinstance(store, _LOCATION_TYPES):
        raise _not_a_store_error(store)
    if namespace is not None:
        check_namespace(namespace)
    record = None if export is None else await run_in_own_thread(lambda: read_export_embedder(export))
    location = check_location(store) if export is not None else await check_store(store)
    async with open_backend(location) as home:
        known = await home.namespaces()
        name = _select_namespace(known) if namespace is None else namespace
        # In an empty store, the default namespace is valid.
        if export is None and name not in (known or (DEFAULT_NAMESPACE,)):
            raise UnknownNamespace(name, hint=make_name_hint(name, known))
        memories, close = await open_memories(
            home.engines,
            namespace=name,
            embedder=UnavailableEmbedder(record),
            settings=MemorySettings(),
            loop=LoopGuard("store"),
            find_mentions=lambda _text: (),
            erase_texts=make_text_eraser(functools.partial(home.erase_texts, namespace=name)),
        )
        try:
            yield memories, home
        finally:
            await run_to_completion(close())


def _check_own_namespace(store: Session | MemoryStore, namespace: str | None) -> None:
    """Raise `InvalidArgument` if *namespace* differs from the namespace of the open session."""
    if namespace is not None and check_namespace(namespace) != store.namespace:
        hint = "pass the location of the store, or omit namespace"
        raise InvalidArgument(f"namespace must be {store.namespace!r:.80}, that of the session", hint=hint)


def _not_a_store_error(store: object) -> InvalidArgument:
    name = type(store).__name__
    if isinstance(store, SyncProxy):
        hint = "for this session: from mama_structs.sync import admin"
        return InvalidArgument(f"store must be a location or an async session, got mama_structs.sync.{name}", hint=hint)
    hint = "pass a directory, the URL of a server, or an open session"
    return InvalidArgument(f"store must be a location or an open Session, got {name}", hint=hint)


def _select_namespace(known: Sequence[str]) -> str:
    """
    Return the namespace that a call without one means, in a store with the *known* namespaces.

    Raises:
        UnknownNamespace: The store has several namespaces, and none of them is ``"default"``.

    """
    if DEFAULT_NAMESPACE in known or not known:
        return DEFAULT_NAMESPACE
    if len(known) > 1:
        # Similarity to "default" says nothing about which namespace the caller means, so list the names.
        raise UnknownNamespace(DEFAULT_NAMESPACE, hint=f"pass namespace=...; {make_name_hint('', known)}")
    return known[0]


async def _namespace_of(store: Store, namespace: str | None, home: Backend) -> str:
    """Return the given namespace, else the namespace of the open session, else the default one."""
    if namespace is not None:
        return check_namespace(namespace)
    return store.namespace if isinstance(store, Session) else _select_namespace(await home.namespaces())


@_rejects_sync_sessions
async def check(
    store: Store | MemoryStore, *, namespace: str | None = None, progress: Progress | None = None
) -> CheckReport:
    """
    Check a store for damage, without changing anything.

    Every view is compared with the journal, and all links are checked.

    Args:
        store: A location, or an open session.
        namespace: The namespace whose memories are checked; None for the default one, or that of the session.
        progress: Called with the number of checked memories and their total number.

    Raises:
        InvalidArgument: *store* is not the directory of a store.
        StoreError: The store cannot be read at all.

    """
    check_progress(progress)
    async with _opened_memories(store, namespace) as (memories, home):
        files = [] if home is None else await home.check()
        return CheckReport((*files, *await maintenance.check(memories._shared, progress)))


@_rejects_sync_sessions
async def maintain(store: Store | MemoryStore, *, namespace: str | None = None) -> MaintenanceReport:
    """
    Prune weak and old automatic links, at most once a week. Calls in between cost little.

    Ages are computed from the time of the previous maintenance, so that one wrong clock reading removes nothing.
    A store that is opened once in three months therefore prunes an old link one opening later.
    Also deletes conversations that were not used for ``settings.descriptors.conversation_ttl`` seconds.
    Runs automatically when a session opens.

    Args:
        store: A location, or an open session.
        namespace: The namespace to maintain; None for the default one, or that of the session.

    Raises:
        StoreError: The store cannot be written to.

    """
    async with _opened_memories(store, namespace) as (memories, home):
        if isinstance(store, Session):
            await upkeep.expire_conversations(
                store._shared.home, store.namespace, store.settings, now=store.refs._now()
            )
        elif home is not None:
            await upkeep.expire_conversations(home, memories.namespace, Settings(), now=memories._shared.now)
        return await maintenance.maintain(memories._shared)


@_rejects_sync_sessions
async def prune(store: Store | MemoryStore, *, namespace: str | None = None, now: TimeInput | None = None) -> int:
    """
    Remove weak automatic links and old temporal ones, and return their number. Explicit links stay.

    Args:
        store: A location, or an open session.
        namespace: The namespace to prune; None for the default one, or that of the session.
        now: The time from which ages are computed; None for the present.

    """
    async with _opened_memories(store, namespace) as (memories, _):
        return await maintenance.prune(memories._shared, memories._shared.resolve_time("now", now))


@_rejects_sync_sessions
async def rebuild(
    store: Store | MemoryStore, *, namespace: str | None = None, progress: Progress | None = None
) -> list[str]:
    """
    Rebuild all indexes from the journal; meanwhile searches use the old ones.

    The current journal is accepted as complete: `check` no longer reports that it lost changes. Stored texts that no
    memory uses are erased.

    Args:
        store: A location, or an open session.
        namespace: The namespace to rebuild; None for the default one, or that of the session.
        progress: Called with the number of indexed memories and their total number.

    Returns:
        A line for each damaged row. Damaged rows are excluded from now on.

    """
    check_progress(progress)
    async with _opened_memories(store, namespace) as (memories, _):
        return await maintenance.rebuild(memories._shared, progress)


@_rejects_sync_sessions
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
        namespace: The namespace; None for the default one, or that of the session.
        progress: Called with the number of embedded memories and their total number.

    Returns:
        The number of memories that this call embedded.

    Raises:
        InvalidArgument: The session also reads other namespaces, which would retain their old vectors.
        EmbeddingFailed: The embedder failed; the old embedder and its vectors stay in use.

    """
    check_progress(progress)
    async with _opened_memories(store, namespace) as (memories, _):
        if memories.read_namespaces:
            raise InvalidArgument(
                "a session that reads other namespaces cannot change its embedder",
                hint="pass the location, and call reembed for each namespace",
            )
        return await maintenance.reembed(memories._shared, embedder, progress)


@_rejects_sync_sessions
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
        namespace: The namespace; None for the default one, or that of the session.
        progress: Called with the number of written memories and their total number.

    """
    async with _opened_memories(store, namespace) as (memories, _):
        return await maintenance.export_jsonl(memories._shared, path, progress)


@_rejects_sync_sessions
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
        namespace: The namespace; None for the default one, or that of the session.
        progress: Called with the number of imported lines and their total number.

    Raises:
        InvalidArgument: A line does not have the export format, or a memory with its id exists with other content;
            the message names the line. Nothing was imported.
        StoreError: The store cannot be written; lines that were already imported stay.

    """
    check_progress(progress)
    async with _opened_memories(store, namespace, export=check_file(path)) as (memories, _):
        return await maintenance.import_jsonl(memories._shared, path, progress)


@_rejects_sync_sessions
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
    check_progress(progress)
    async with _opened_backend(store) as home:
        return await upkeep.back_up(home, path, progress)


@_rejects_sync_sessions
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


@_rejects_sync_sessions
async def list_namespaces(store: Store) -> tuple[str, ...]:
    """
    Return the sorted namespaces of a store that have memories or conversations.

    Args:
        store: A location, or an open session.

    Raises:
        InvalidArgument: *store* is not the directory of a store.
        StoreError: The store cannot be read.

    """
    async with _opened_backend(store) as home:
        return await home.namespaces()


@_rejects_sync_sessions
async def delete_namespace(store: Store, name: str, *, progress: Progress | None = None) -> NamespaceErasure:
    """
    Erase all memories, records, conversations and texts of one namespace.

    The deletion is atomic: a crash leaves either the whole namespace or nothing of it. Then the deleted data is removed
    from disk. If that was interrupted, the next session that opens the store continues it, and so does another call.
    Forks in other namespaces keep their contents. Backups and exports are not changed. A server retains only the name
    and the number of the last change, so that sessions of other hosts notice the deletion.

    Args:
        store: A location, or an open session of another namespace.
        name: The namespace to erase. It must not be open anywhere. A server of pages keeps a namespace
            open that it has shown.
        progress: Called with the number of finished steps and the total.

    Returns:
        The numbers of erased items, without any text. `NamespaceErasure.pending` names places that still contain data.

    Raises:
        InvalidArgument: *store* is not the directory of a store, or *name* is invalid.
        UnknownNamespace: The store has no such namespace. The hint lists similar ones.
        StoreBusy: A session of this or another process has the namespace open, or reads it. Nothing was erased.
        StoreDamaged: A conversation of another namespace needs a row that cannot be read. Nothing was erased.
        StoreError: The store cannot be written.

    """
    check_namespace(name)
    check_progress(progress)
    async with _opened_backend(store) as home:
        return await home.delete_namespace(name, progress)


@_rejects_sync_sessions
async def list_conversations(store: Store, *, namespace: str | None = None) -> tuple[ConversationInfo, ...]:
    """
    Return the conversations of a namespace, most recently used first.

    Args:
        store: A location, or an open session.
        namespace: The namespace; None for the default one, or that of the session.

    Raises:
        InvalidArgument: *store* is not the directory of a store, or *namespace* is invalid.
        StoreError: The store cannot be read.

    """
    async with _opened_backend(store) as home:
        return await home.conversations(await _namespace_of(store, namespace, home))


@_rejects_sync_sessions
async def delete_conversation(store: Store, name: str, *, namespace: str | None = None) -> None:
    """
    Delete a conversation that is not open anywhere. The deletion is atomic.

    Its texts are deleted from the store, except those that another conversation uses or a memory keeps as evidence.
    Forks of it keep their contents.

    Args:
        store: A location, or an open session.
        name: The name of the conversation.
        namespace: The namespace; None for the default one, or that of the session.

    Raises:
        InvalidArgument: No conversation has this name.
        StoreBusy: A session of this or another process has it open.
        StoreDamaged: A row that one of its forks needs cannot be read.

    """
    async with _opened_backend(store) as home:
        await home.delete(name, namespace=await _namespace_of(store, namespace, home))


# Type checkers must not see this function, or they would accept every name.
if not TYPE_CHECKING:
    __getattr__ = make_module_getattr(__name__, peer_names.ADMIN, __all__)
