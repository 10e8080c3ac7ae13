"""
HNSW indexes on a server: one per large namespace and embedder, built in the background.

An index contains the vectors of one namespace and one embedder only. So the size of one namespace does not slow down
searches in others, and the filter by namespace cannot reduce the number of results. The first answer within a
transaction tells whether a usable index exists. Without one, the same query compares all vectors.
"""

# ruff: noqa: S608 - statements are built from constants or quoted by the server

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

import attrs
import numpy as np

from mama_structs.errors import InvalidArgument, MamaStructsError, StoreBusy
from mama_structs.memory.engines.postgres.namespace_rows import PostgresNamespaceHead
from mama_structs.memory.engines.postgres.queries import HnswIndex, embedder_key, index_name, index_prefix
from mama_structs.memory.engines.postgres.reader import PostgresReader
from mama_structs.memory.types.codec import are_unit_vectors, mix_queries
from mama_structs.memory.types.engine import EmbedderRecord
from mama_structs.settings import MemorySettings
from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.postgres.schema_migrations import SCHEMA
from mama_structs.storage.sqlite_errors import Issue

# Maximum dimensions that pgvector can store, see https://github.com/pgvector/pgvector#hnsw
MAX_STORED_DIMENSIONS: Final = 16_000
# Maximum dimensions that pgvector can index, by vector type.
MAX_INDEXED_DIMENSIONS: Final = {"vector": 2_000, "halfvec": 4_000}
# If `exact_up_to` is at least this, all searches of the session are exact.
# The session does not drop the index, because other sessions may use it.
ALWAYS_EXACT_THRESHOLD: Final = 2**31
# Minimum seconds between two attempts to maintain an index.
RETRY_INTERVAL_SECONDS: Final = 60.0
# A build waits until this session adds no vectors for this time, or until there are twice as many as exact searches
# compare. During a bulk load, inserting a vector into an index takes ten times as long as a build. A batch that takes
# longer counts as the end of a load, and other processes are ignored, because counting their vectors needs queries.
# A session that has added none, such as the next one after a load that closed within this time, builds immediately.
QUIET_SECONDS: Final = 1.0
BUILD_TIMEOUT_SECONDS: Final = 7 * 86_400.0
LOCK_TIMEOUT_SECONDS: Final = 2
MAX_PROBE_QUERIES: Final = 32
# An index is rebuilt if its recall is lower.
MIN_RECALL: Final = 0.95
LEASE_NAME: Final = "index of vectors"

OWN_INDEXES_SQL: Final = f"""
    SELECT c.relname AS name, i.indisvalid AS is_valid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relnamespace = '{SCHEMA}'::regnamespace
    AND c.relname ~ '^hnsw_[0-9a-f]{{24}}_[0-9a-f]{{16}}$' AND (starts_with(c.relname, $1)
        -- Include indexes of deleted namespaces, unless row-level security hides other namespaces.
        OR (NOT row_security_active('{SCHEMA}.memory_heads') AND NOT EXISTS (
            SELECT FROM {SCHEMA}.memory_heads h WHERE h.next_node > 0 AND starts_with(c.relname,
                'hnsw_' || left(encode(sha256(convert_to(h.namespace, 'UTF8')), 'hex'), 24)))))
"""
HAS_PRIVILEGE_SQL: Final = f"""
    SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE')
    FROM pg_class WHERE oid = '{SCHEMA}.pieces'::regclass
"""
# Concurrent index builds on one table can deadlock, so this lease excludes builds in all namespaces.
# Each lease row belongs to one namespace, so claims are serialized by a table lock.
CLAIM_SQL: Final = f"""
    INSERT INTO {SCHEMA}.leases (namespace, name, holder, expires)
    SELECT $1, '{LEASE_NAME}', $2, clock_timestamp() + interval '1 minute'
    WHERE NOT EXISTS (SELECT FROM {SCHEMA}.leases WHERE name = '{LEASE_NAME}' AND expires >= clock_timestamp())
    ON CONFLICT (namespace, name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
    RETURNING true
"""
RELEASE_SQL: Final = f"DELETE FROM {SCHEMA}.leases WHERE namespace = $1 AND name = '{LEASE_NAME}' AND holder = $2"
# Generic plans, because planning the large statements takes longer than executing them. A generic plan may be older
# than the statistics, so it must not contain sequential scans, which would be slow once the tables have grown. Without
# bitmap scans, it reads the first rows of a page of results in the order of an index, instead of sorting all rows.
PLAN_SETTINGS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_memoize": "off",
}
SEARCH_SETTINGS: Final = {
    # Iterative scans return batches whose scores may overlap. The query sorts all candidates at the end.
    # Strict order would discard candidates that arrive late, so fewer results would be found.
    "hnsw.iterative_scan": "relaxed_order",
    "hnsw.max_scan_tuples": "20000",
    # Disable parallel workers, because they would also be started for the branch of the query that is not executed.
    "max_parallel_workers_per_gather": "0",
}
# A search in the index compares one candidate for this many vectors, within these limits. With 1,000 candidates, a
# search among 10,000 vectors takes three times as long and finds nothing more, and the planner would not use the index.
# Among 10,000 and 20,000 sentence embeddings, the recall@10 was 1.00 for other sentences and for mixed queries.
VECTORS_PER_CANDIDATE: Final = 50
MIN_SEARCH_WIDTH, MAX_SEARCH_WIDTH = 200, 1_000
ANALYZE_SQL: Final = "ANALYZE " + ", ".join(
    f"{SCHEMA}.{table}" for table in ("pieces", "memories", "mentions", "terms", "links")
)
# The server quotes the values with format().
CREATE_INDEX_SQL: Final = """
    SELECT format('CREATE INDEX CONCURRENTLY IF NOT EXISTS %I ON %s USING hnsw '
        '(({column}::{types}.{kind}({dimensions})) {types}.{kind}_ip_ops) '
        'WITH (m = 16, ef_construction = 150) WHERE namespace = %L AND embedder = %L',
        $1::text, tableoid::regclass, namespace, embedder)
    -- If the table is partitioned, the namespace is in one partition.
    FROM {schema}.pieces WHERE namespace = $2 AND embedder = $3 LIMIT 1
"""

_log: Final = logging.getLogger("mama_structs")


def check_dimensions(record: EmbedderRecord) -> None:
    """Raise an error if a server cannot store vectors of this many dimensions."""
    if record.dimensions > MAX_STORED_DIMENSIONS:
        raise InvalidArgument(
            f"{record.name:.80} has {record.dimensions} dimensions, "
            f"but a server stores at most {MAX_STORED_DIMENSIONS}",
            hint="use an embedder with fewer dimensions, or store the memories in a directory",
        )


def choose_index_type(dimensions: int, *, half_precision: bool) -> str | None:
    """Return the vector type of the index, or None if vectors of these dimensions cannot be indexed."""
    kinds = ("halfvec",) if half_precision else ("vector", "halfvec")
    return next((kind for kind in kinds if dimensions <= MAX_INDEXED_DIMENSIONS[kind]), None)


@attrs.frozen
class _IndexTask:
    """A vector index to build, or to drop if *is_wanted* is False."""

    name: str
    is_wanted: bool
    has_low_recall: bool
    key: tuple[str, str]
    sql_parts: Mapping[str, Any]


class NamespaceIndex:
    """State and maintenance of one namespace's vector index. Thread-safe."""

    def __init__(
        self, server: PostgresPool, namespace: str, embedder: EmbedderRecord, settings: MemorySettings
    ) -> None:
        self.recall: float | None = None
        self._pool = server
        self._namespace = namespace
        self._embedder = embedder
        self._exact_up_to = settings.exact_up_to
        self._guard = threading.Lock()
        self._task: Future[bool] | None = None
        self._next_attempt_at = 0.0
        self._lacks_privilege = False
        # Number of vectors at the last call of `maintain_if_due`, -1 before the first call.
        self._chunk_count = -1

    def switch_embedder(self, embedder: EmbedderRecord) -> None:
        """Switch to the index of another embedder."""
        self._embedder, self.recall, self._next_attempt_at = embedder, None, 0.0

    def usable_index(self, head: PostgresNamespaceHead) -> HnswIndex | None:
        """Return the index that searches use, or None if they scan all vectors."""
        kind = choose_index_type(self._embedder.dimensions, half_precision=head.half_precision)
        if kind is None or not head.index or head.chunk_count <= self._exact_up_to:
            return None
        column = "half" if head.half_precision else "vector"
        width = min(max(head.chunk_count // VECTORS_PER_CANDIDATE, MIN_SEARCH_WIDTH), MAX_SEARCH_WIDTH)
        return HnswIndex(
            column, kind, self._embedder.dimensions, width, has_several_vectors=head.chunk_count > head.memory_count
        )

    @staticmethod
    def search_settings(index: HnswIndex | None) -> Mapping[str, str]:
        """Return the settings of transactions that search with *index*, or without an index."""
        if index is None:
            return PLAN_SETTINGS
        return PLAN_SETTINGS | SEARCH_SETTINGS | {"hnsw.ef_search": str(index.search_width)}

    def maintain_if_due(self, head: PostgresNamespaceHead) -> Future[bool] | None:
        """
        Start a task that builds or drops the index, if one is due.

        Return the running task. It need not be awaited.
        """
        is_growing = self._is_wanted(head) and self._chunk_count not in {-1, head.chunk_count}
        self._chunk_count = head.chunk_count
        is_left = head.index is not None and 2 * head.chunk_count <= self._exact_up_to < ALWAYS_EXACT_THRESHOLD
        is_due = is_left or (self._is_wanted(head) and not head.index)
        return self.maintain(head, is_growing=is_growing) if is_due and self._is_attempt_allowed(head) else None

    def maintain(self, head: PostgresNamespaceHead, *, is_growing: bool = False) -> Future[bool] | None:
        """
        Start a task that builds or drops the index if necessary, without a delay after a failed task.

        If the namespace *is_growing*, a build waits for the end of the bulk load.
        """
        with self._guard:
            # Ignore the error of a closed server, because the write that triggered the maintenance has succeeded.
            with contextlib.suppress(MamaStructsError):
                if self._task is None or self._task.done():
                    self._start_task(head, is_growing=is_growing)
            return self._task

    async def wait_until_idle(self) -> None:
        """Wait until the running task has ended. Raise its error."""
        if self._task is not None:
            await asyncio.shield(asyncio.wrap_future(self._task))

    def findings(self, head: PostgresNamespaceHead) -> list[Issue]:
        """Return warnings about vectors that are not indexed, or whose index has a low recall."""
        name, messages = f"{self._namespace!r:.80}", []
        kept, chosen = (
            "halfvec" if half else "vector" for half in (head.half_precision, self._pool.options.half_precision)
        )
        if head.embedder is not None and kept != chosen:
            messages.append(f"the vectors of {name} are kept as {kept}, as when it was made; the setting says {chosen}")
        if head.chunk_count > self._exact_up_to:
            dimensions = self._embedder.dimensions
            if choose_index_type(dimensions, half_precision=head.half_precision) is None:
                messages.append(
                    f"no index holds vectors of {dimensions} dimensions: those of {name} are compared one by one"
                )
            elif self._lacks_privilege and not head.index:
                messages.append(
                    f"the server's user may make no index: the {head.chunk_count} vectors of {name} are compared "
                    "one by one; open a session once as the owner of the tables"
                )
        if self.recall is not None and self.recall < MIN_RECALL:
            messages.append(
                f"the index of {name} finds only {self.recall:.0%} of the nearest vectors; admin.rebuild() recreates it"
            )
        return [Issue("warning", "vectors", one) for one in messages]

    def measure_recall(self, reader: PostgresReader, index: HnswIndex) -> None:
        """Measure the recall of the index with queries that are mixed from stored vectors."""
        sample = reader.sample()
        some = sample[:: max(1, len(sample) // (2 * MAX_PROBE_QUERIES))][: 2 * MAX_PROBE_QUERIES]
        half = len(some) // 2
        if half and are_unit_vectors(some):
            queries = mix_queries(some[:half], some[half : 2 * half])
            self.recall = float(np.mean([reader.measure_recall(query, index) for query in queries]))

    def _is_wanted(self, head: PostgresNamespaceHead) -> bool:
        is_possible = choose_index_type(self._embedder.dimensions, half_precision=head.half_precision) is not None
        return is_possible and head.chunk_count > self._exact_up_to

    def _is_attempt_allowed(self, head: PostgresNamespaceHead) -> bool:
        is_foreign = head.embedder not in (None, self._embedder)
        may_not = self._lacks_privilege or self._pool.is_read_only or is_foreign
        return not may_not and time.monotonic() >= self._next_attempt_at

    def _start_task(self, head: PostgresNamespaceHead, *, is_growing: bool) -> None:
        key = embedder_key(self._embedder)
        work = _IndexTask(
            index_name(self._namespace, key),
            self._is_wanted(head),
            # Rebuild an index with a low recall.
            self.recall is not None and self.recall < MIN_RECALL,
            (self._namespace, key),
            {
                "schema": SCHEMA,
                "types": self._pool.vector_schema,
                "column": "half" if head.half_precision else "vector",
                "kind": choose_index_type(self._embedder.dimensions, half_precision=head.half_precision),
                "dimensions": self._embedder.dimensions,
            },
        )
        self._next_attempt_at = time.monotonic() + RETRY_INTERVAL_SECONDS
        self._task = self._pool.run_on_dedicated_connection(
            lambda connection: _run_task(connection, work),
            lambda: self._wait_until_quiet(is_growing=is_growing),
        )
        self._task.add_done_callback(self._finish_task)

    async def _wait_until_quiet(self, *, is_growing: bool) -> None:
        while is_growing and self._chunk_count < 2 * self._exact_up_to:
            last_count = self._chunk_count
            await asyncio.sleep(QUIET_SECONDS)
            is_growing = last_count != self._chunk_count

    def _finish_task(self, task: Future[bool]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.debug("an index of vectors was not made or dropped: %s", error)
            return
        self._next_attempt_at, self.recall = 0.0, None
        if not task.cancelled() and not task.result() and not self._lacks_privilege:
            self._lacks_privilege = True
            _log.warning("the user of %s may make no index: all vectors are compared one by one", self._pool.location)


async def _run_task(connection: Any, task: _IndexTask) -> bool:
    """
    Drop unwanted and unfinished indexes, and build the wanted index.

    Return False if the role lacks the privilege.
    """
    holder = uuid.uuid4()
    # Isolation must be read committed: a lease committed while this transaction waits for the lock must be visible.
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
        if not await connection.fetchval(HAS_PRIVILEGE_SQL):
            return False
        # An index build holds this lock even after its host has died. While we hold it, no build runs.
        # An invalid index therefore belongs to an interrupted build and can be dropped.
        # Autovacuum also takes this lock, but yields to waiters.
        await connection.execute(f"LOCK TABLE {SCHEMA}.pieces IN SHARE UPDATE EXCLUSIVE MODE")
        found = await connection.fetch(OWN_INDEXES_SQL, index_prefix(task.key[0]))
        names = {task.name} if task.is_wanted and not task.has_low_recall else set()
        kept = {one["name"] for one in found if one["is_valid"]} & names
        for name in sorted({one["name"] for one in found} - kept):
            await connection.execute(f'DROP INDEX {SCHEMA}."{name}"')
        if kept or not task.is_wanted:
            return True
        # Claim the lease, so that other hosts wait. Concurrent builds on one table would deadlock.
        if not await connection.fetchval(CLAIM_SQL, task.key[0], holder):
            raise StoreBusy("another host makes an index", waited=0.0)
    sql = await connection.fetchval(CREATE_INDEX_SQL.format(**task.sql_parts), task.name, *task.key)
    try:
        if sql is not None:
            await connection.execute(sql, timeout=BUILD_TIMEOUT_SECONDS)
        # Update the statistics. Otherwise the planner would compare all new vectors instead of using the index.
        await connection.execute(ANALYZE_SQL, timeout=BUILD_TIMEOUT_SECONDS)
    finally:
        if not connection.is_closed():
            await connection.execute(RELEASE_SQL, task.key[0], holder)
    return True
