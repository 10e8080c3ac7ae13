"""The open engines of a directory, one per namespace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mama_structs._internal.caches import RefCountedRegistry
from mama_structs.errors import InvalidArgument, StoreBusy
from mama_structs.memory.engines.local.engine import LocalEngine
from mama_structs.memory.engines.local.erasure import erase_from_disk, erasure_marker_key
from mama_structs.memory.engines.local.journal_rows import list_namespaces, read_head
from mama_structs.memory.engines.local.namespace_deletion import delete_namespace
from mama_structs.memory.types.engine import (
    EmbedderRecord,
    ProgressCallback,
    embedder_mismatch,
)
from mama_structs.memory.types.namespace_erasure import NamespaceErasure, namespace_deleted_error, namespace_open_error
from mama_structs.settings import MemorySettings
from mama_structs.storage.locks import DirectoryLocks
from mama_structs.storage.sealed_rows import Rows
from mama_structs.storage.sqlite_store import SqliteStorage

T = TypeVar("T")


class LocalEngines:
    """The open engines of a store, one per namespace, shared by their users."""

    def __init__(self, storage: SqliteStorage, *, views: Path | None, locks: DirectoryLocks | None = None) -> None:
        self._storage = storage
        self._views = views
        # An open namespace has a shared lock, so that no process can delete it.
        self._locks = locks
        self._open: RefCountedRegistry[str, LocalEngine] = RefCountedRegistry()

    async def namespaces(self) -> list[str]:
        """Return the names of all namespaces in the store."""
        return await self._storage.run_read(list_namespaces)

    async def stored_embedder(self, namespace: str) -> EmbedderRecord | None:
        """Return the embedder of a namespace's vectors, or None if the namespace does not exist."""
        head = await self._storage.run_read(lambda rows: read_head(rows, namespace, str(self._storage.directory)))
        return None if head is None else head.embedder

    async def open(self, namespace: str, embedder: EmbedderRecord, settings: MemorySettings) -> LocalEngine:
        """Return the engine of a namespace, and open it if necessary. Each call must be matched by `release`."""
        engine = self._open.acquire(namespace, lambda: self._make_engine(namespace, embedder, settings))
        known = engine.settings
        try:
            if engine.embedder != embedder:
                raise embedder_mismatch(namespace, engine.embedder, embedder)
            if (known.exact_up_to, known.snapshot_every) != (settings.exact_up_to, settings.snapshot_every):
                raise InvalidArgument(
                    f"the memories of {namespace!r:.80} are open with another exact_up_to or snapshot_every",
                    hint="open them with the same settings.memory, or close the other session first",
                )
            await engine.open()
        except BaseException:
            await self.release(namespace)
            raise
        return engine

    async def release(self, namespace: str) -> None:
        """Release one use of an engine. The last release closes the engine."""
        last = self._open.release(namespace)
        if last is not None:
            try:
                await last.close()
            finally:
                if self._locks is not None:
                    self._locks.release_shared(_lock_name(namespace))

    async def delete_namespace(
        self, namespace: str, delete_rows: Callable[[Rows], T], progress: ProgressCallback | None = None
    ) -> tuple[NamespaceErasure, T]:
        """Delete all memories of a namespace without open sessions; see `Engines.delete_namespace`."""
        if self._open.count_users(namespace):
            raise namespace_open_error(namespace)
        name = _lock_name(namespace)
        try:
            if self._locks is not None:
                self._locks.claim(name)
        except StoreBusy:
            raise namespace_open_error(namespace) from None
        try:
            return await delete_namespace(self._storage, self._views, namespace, delete_rows, progress)
        finally:
            if self._locks is not None:
                self._locks.release(name)

    async def has_deleted_data(self, namespace: str) -> bool:
        """Return True if a marker shows that deleted data of a namespace may still be on disk."""
        key = erasure_marker_key(namespace)
        return await self._storage.run_read(lambda rows: rows.get(key) is not None)

    async def erase_deleted_data(self, namespace: str, *, wait: float) -> tuple[str, ...]:  # noqa: ARG002 - rewrites all
        """Remove deleted data of all namespaces from disk; see `Engines.erase_deleted_data`."""
        return await erase_from_disk(self._storage, self._views, wait=wait)

    def _make_engine(self, namespace: str, embedder: EmbedderRecord, settings: MemorySettings) -> LocalEngine:
        try:
            if self._locks is not None:
                self._locks.claim_shared(_lock_name(namespace))
        except StoreBusy:
            raise namespace_deleted_error(namespace) from None
        return LocalEngine(self._storage, namespace, embedder, settings, views=self._views)


def _lock_name(namespace: str) -> str:
    """Return the name of the lock of a namespace. It differs from that of any conversation."""
    # The surrogate prevents collisions: namespaces and the lock names of conversations do not begin with one.
    return f"\ud800{namespace}"
