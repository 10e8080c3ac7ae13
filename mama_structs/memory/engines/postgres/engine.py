"""
Memory engine for one namespace on a PostgreSQL server.

Each plan runs in a transaction of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar, cast

from mama_structs._internal.caches import RefCountedRegistry
from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.memory.engines.postgres.client_state import ClientState
from mama_structs.memory.engines.postgres.consistency_check import PostgresConsistencyCheck
from mama_structs.memory.engines.postgres.hnsw_indexes import NamespaceIndex, check_dimensions
from mama_structs.memory.engines.postgres.namespace_deletion import delete_namespace, drop_index, vacuum
from mama_structs.memory.engines.postgres.namespace_rows import PostgresNamespaceHead, decode_embedder
from mama_structs.memory.engines.postgres.reader import PostgresReader
from mama_structs.memory.engines.postgres.writer import PostgresWriter
from mama_structs.memory.types.engine import (
    EmbedderRecord,
    ProgressCallback,
    Reader,
    Writer,
    embedder_mismatch,
)
from mama_structs.memory.types.model import MemoryType
from mama_structs.memory.types.namespace_erasure import NamespaceErasure, namespace_open_error
from mama_structs.memory.types.text_analysis import ANALYSIS_VERSION
from mama_structs.settings import MemorySettings
from mama_structs.storage.postgres.pool import ALL_NAMESPACES_SETTINGS, Connection, PostgresPool
from mama_structs.storage.sealed_rows import Rows
from mama_structs.storage.sqlite_errors import Issue

T = TypeVar("T")

UNERASABLE_PLACES: Final = (
    "the write-ahead log of the server with its archives, backups of replicas, and free space between rows",
    "words, topics and ids in the statistics of the query planner, until the next vacuum",
    "words, topics and ids in inner pages of indexes, until the next reindex",
)
"""Places of a server that an erasure does not reach."""


class PostgresEngine:
    """The memories of one namespace on a server. Call `open` before the first use."""

    def __init__(
        self, server: PostgresPool, namespace: str, embedder: EmbedderRecord, settings: MemorySettings
    ) -> None:
        self.namespace: str = namespace
        self.settings: MemorySettings = settings
        self._pool = server
        self._embedder = embedder
        self._client_state = ClientState(half=server.options.half_precision)
        self._head = PostgresNamespaceHead(half_precision=server.options.half_precision)
        self.index: NamespaceIndex = NamespaceIndex(server, namespace, embedder, settings)
        self._closed = False
        # Operations that still run although their caller was cancelled.
        self._unawaited: set[Future[Any]] = set()
        self._needs_vacuum = False

    @property
    def embedder(self) -> EmbedderRecord:
        """The embedder whose vectors are used for searches."""
        return self._embedder

    async def open(self) -> None:
        """Check the embedder of the namespace. Recompute terms that an older version of the text analysis produced."""
        await self.read(lambda reader: reader.change)
        # Terms from a newer version of the text analysis are left unchanged.
        if self._head.analysis < ANALYSIS_VERSION:
            await self.rebuild()
        self.index.maintain_if_due(self._head)

    async def read(self, plan: Callable[[Reader], T]) -> T:
        """Run *plan* on a snapshot of the current state."""

        def work(connection: Connection) -> tuple[T, PostgresNamespaceHead]:
            reader = PostgresReader(connection, self.namespace, self._embedder, self._client_state, self._pool.location)
            return plan(reader), reader.head

        return await self._run(work, write=False)

    async def write(self, plan: Callable[[Writer], T]) -> T:
        """Run *plan* in a write transaction, and return its result when all writes are durable."""

        def work(connection: Connection) -> tuple[T, PostgresNamespaceHead]:
            writer = PostgresWriter(connection, self.namespace, self._embedder, self._client_state, self._pool.location)
            result = plan(writer)
            writer.finish()
            self._needs_vacuum |= writer.needs_vacuum
            return result, writer.head

        result = await self._run(work, write=True)
        self.index.maintain_if_due(self._head)
        return result

    async def check(self, progress: ProgressCallback | None = None) -> list[Issue]:
        """Compare the derived data with the stored memories, and return the differences. Changes nothing."""
        inspection = PostgresConsistencyCheck()
        total = await self.read(lambda reader: reader.count())
        while await self.read(inspection.check_page):
            if progress is not None:
                progress(min(inspection.checked_count, total), total)
        if progress is not None:
            progress(total, total)
        graph = self._client_state.hnsw_index
        if graph is not None:
            await self.read(lambda reader: self.index.measure_recall(cast("PostgresReader", reader), graph))
        return inspection.findings + self.index.findings(self._head)

    async def rebuild(self, progress: ProgressCallback | None = None) -> list[str]:
        """
        Recompute all derived columns and terms.

        Return a line for each damaged row. Damaged rows are left unchanged.
        """
        inspection = PostgresConsistencyCheck()
        total = await self.read(lambda reader: reader.count())
        while await self.write(inspection.repair_page):
            if progress is not None:
                progress(min(inspection.checked_count, total), total)
        if progress is not None:
            progress(total, total)
        if self._head.index is not None:
            self.index.maintain(self._head)
        return [finding.message for finding in inspection.findings]

    async def wait_until_idle(self) -> None:
        """Return immediately, because words are indexed when a memory is saved."""

    async def begin_maintenance(self, now_ms: int, every_ms: int) -> int | None:
        """
        Record the start of maintenance.

        Return the time from which ages are computed, or None if maintenance is not due.
        """
        self._check_open()
        if not self._head.next_node or 0 <= now_ms - self._head.maintained_at < every_ms:
            return None

        def work(connection: Connection) -> int | None:
            found = connection.fetch("SELECT maintained_at FROM memory_heads WHERE namespace = $1", self.namespace)
            if not found or 0 <= now_ms - found[0]["maintained_at"] < every_ms:
                return None
            connection.execute(
                "UPDATE memory_heads SET maintained_at = $2 WHERE namespace = $1", self.namespace, now_ms
            )
            before: int = found[0]["maintained_at"]
            return min(now_ms, before) if before else None

        as_of = await self._await_result(self._pool.run(work, write=True, namespace=self.namespace))
        await self.read(lambda reader: reader.change)
        self.index.maintain_if_due(self._head)
        return as_of

    async def adopt(self, embedder: EmbedderRecord) -> bool:
        """
        Switch to another embedder, and delete the vectors of all others.

        Return False, without a change, if some memories have no vectors of the new embedder.
        """
        self._check_open()

        def work(connection: Connection) -> bool:
            writer = PostgresWriter(connection, self.namespace, self._embedder, self._client_state, self._pool.location)
            if writer.without_vectors(embedder):
                return False
            writer.adopt(embedder)
            return True

        is_done = await self._await_result(self._pool.run(work, write=True, namespace=self.namespace))
        if is_done:
            self._embedder, self._client_state = embedder, ClientState(half=self._pool.options.half_precision)
            self.index.switch_embedder(embedder)
            await self.read(lambda reader: reader.change)
            self.index.maintain(self._head)
        return is_done

    async def erase(self, *, wait: float) -> tuple[str, ...]:
        """
        Make the server remove deleted rows from its files.

        Return a description of each place that still contains erased data.
        """
        self._check_open()
        if self._needs_vacuum:
            pending = await vacuum(self._pool, wait=wait)
            self._needs_vacuum = bool(pending)
            return pending
        return ()

    @property
    def unerasable_places(self) -> tuple[str, ...]:
        """Descriptions of the places of the server that `erase` does not reach."""
        return UNERASABLE_PLACES

    def figures(self) -> dict[str, Any]:
        """Return statistics about the stored data. The statistics may lack the last changes."""
        head = self._head
        return {
            "memories": head.memory_count,
            "types": {kind.value: count for kind, count in zip(MemoryType, head.types, strict=True)},
            "links": head.link_count,
            "vectors": {
                "mode": "exact" if self._client_state.hnsw_index is None else "hnsw",
                "vectors": head.chunk_count,
                "kept_as": "halfvec" if head.half_precision else "vector",
                "recall": self.index.recall,
            },
            "words_to_index": 0,
            "maintained_at": head.maintained_at,
        }

    async def close(self) -> None:
        """Reject further calls. Idempotent."""
        self._closed = True

    async def _run(self, work: Callable[[Connection], tuple[T, PostgresNamespaceHead]], *, write: bool) -> T:
        self._check_open()
        if self._unawaited:
            # Wait for operations of cancelled callers, so that their writes are visible afterwards.
            await asyncio.gather(*map(asyncio.wrap_future, [*self._unawaited]), return_exceptions=True)
        settings = NamespaceIndex.search_settings(self._client_state.hnsw_index)
        running = self._pool.run(work, write=write, namespace=self.namespace, settings=settings)
        result, self._head = await self._await_result(running)
        self._client_state.hnsw_index = self.index.usable_index(self._head)
        return result

    async def _await_result(self, done: Future[T]) -> T:
        try:
            return await asyncio.shield(asyncio.wrap_future(done))
        except asyncio.CancelledError:
            # The caller was cancelled, but the operation continues.
            self._unawaited.add(done)
            done.add_done_callback(self._unawaited.discard)
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"the memories of {self.namespace!r:.80} were closed")


class PostgresEngines:
    """The open engines of a server, one per namespace, shared by their users."""

    def __init__(self, server: PostgresPool) -> None:
        self._pool = server
        self._engines: RefCountedRegistry[str, PostgresEngine] = RefCountedRegistry()

    async def namespaces(self) -> list[str]:
        """Return the namespaces that contain memories."""
        sql = "SELECT namespace FROM memory_heads ORDER BY namespace"
        found = self._pool.run(lambda connection: connection.fetch(sql), write=False, settings=ALL_NAMESPACES_SETTINGS)
        return [row["namespace"] for row in await asyncio.wrap_future(found)]

    async def stored_embedder(self, namespace: str) -> EmbedderRecord | None:
        """Return the embedder of a namespace's vectors, or None if the namespace is empty."""
        sql = "SELECT embedder FROM memory_heads WHERE namespace = $1"
        found = self._pool.run(lambda connection: connection.fetch(sql, namespace), write=False, namespace=namespace)
        rows = await asyncio.wrap_future(found)
        return decode_embedder(rows[0]["embedder"]) if rows else None

    async def open(self, namespace: str, embedder: EmbedderRecord, settings: MemorySettings) -> PostgresEngine:
        """Return the engine of a namespace, and open it if necessary. Each call must be matched by `release`."""
        engine = self._engines.acquire(namespace, lambda: PostgresEngine(self._pool, namespace, embedder, settings))
        try:
            check_dimensions(embedder)
            if engine.embedder != embedder:
                raise embedder_mismatch(namespace, engine.embedder, embedder)
            if engine.settings.exact_up_to != settings.exact_up_to:
                raise InvalidArgument(
                    f"the memories of {namespace!r:.80} are open with another exact_up_to",
                    hint="open them with the same settings.memory, or close the other session first",
                )
            await engine.open()
        except BaseException:
            await self.release(namespace)
            raise
        return engine

    async def release(self, namespace: str) -> None:
        """Release one use of an engine. The last release closes the engine."""
        last = self._engines.release(namespace)
        if last is not None:
            await last.close()

    async def delete_namespace(
        self, namespace: str, delete_rows: Callable[[Rows], T], progress: ProgressCallback | None = None
    ) -> tuple[NamespaceErasure, T]:
        """Delete all memories of a namespace without open sessions; see `Engines.delete_namespace`."""
        if self._engines.count_users(namespace):
            raise namespace_open_error(namespace)
        return await delete_namespace(self._pool, namespace, delete_rows, progress)

    async def has_deleted_data(self, namespace: str) -> bool:  # noqa: ARG002 - required by the protocol
        """Return False, because the server removes deleted rows itself."""
        return False

    async def erase_deleted_data(self, namespace: str, *, wait: float) -> tuple[str, ...]:
        """Drop the vector index of a deleted namespace, and make the server remove deleted rows from its files."""
        await drop_index(self._pool, namespace)
        return await vacuum(self._pool, wait=wait)
