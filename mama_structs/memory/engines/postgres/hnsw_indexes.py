"""
HNSW indexes on a server: one per large namespace and embedder, built in the background.

An index contains the vectors of one namespace and one embedder only. So the size of one namespace does not slow down
searches in others, and the filter by namespace cannot reduce the number of results. Each transaction learns from its
first answer whether a usable index exists. Without one, the same query is answered exactly.
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

from mama_structs.errors import InvalidArgument, MamaStructsError, StoreBusy
from mama_structs.memory.embedding.protocol import are_unit
from mama_structs.memory.engines.postgres.queries import HnswIndex, index_name, index_prefix, key_of
from mama_structs.memory.engines.postgres.reader import NamespaceHead, PostgresReader
from mama_structs.memory.types.engine import EmbedderRecord
from mama_structs.settings import MemorySettings
from mama_structs.storage.postgres.pool import Server
from mama_structs.storage.postgres.schema_migrations import SCHEMA
from mama_structs.storage.sqlite_errors import Finding

# Maximum dimensions that pgvector can store, and can index: https://github.com/pgvector/pgvector#hnsw
_STORED: Final = 16_000
_INDEXED: Final = {"vector": 2_000, "halfvec": 4_000}
# A session that always searches exactly does not drop the index, because other sessions may use it.
_ALWAYS_EXACT: Final = 2**31
# Minimum seconds between attempts.
_AGAIN: Final = 60.0
_LONGEST: Final = 7 * 86_400.0
_LOCK_SECONDS: Final = 2
_PROBED: Final = 64
# If a search for stored vectors finds a smaller ratio of them, the index is rebuilt.
_RECALL: Final = 0.95
# Minimum cosine of a vector with itself, which half precision reduces.
_ITSELF: Final = 0.999
_LEASE: Final = "index of vectors"

_OURS: Final = f"""
    SELECT c.relname AS name, i.indisvalid AS is_valid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relnamespace = '{SCHEMA}'::regnamespace
    AND c.relname ~ '^hnsw_[0-9a-f]{{24}}_[0-9a-f]{{16}}$' AND (starts_with(c.relname, $1)
        -- Include indexes of deleted namespaces, unless row-level security hides other namespaces.
        OR (NOT row_security_active('{SCHEMA}.memory_heads') AND NOT EXISTS (
            SELECT FROM {SCHEMA}.memory_heads h WHERE h.next_node > 0 AND starts_with(c.relname,
                'hnsw_' || left(encode(sha256(convert_to(h.namespace, 'UTF8')), 'hex'), 24)))))
"""
_MAY: Final = f"""
    SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE')
    FROM pg_class WHERE oid = '{SCHEMA}.pieces'::regclass
"""
# The lease is a row of one namespace, but excludes index builds in all namespaces.
# Concurrent builds on one table can deadlock.
# The table lock held during a claim serializes the claims.
_CLAIM: Final = f"""
    INSERT INTO {SCHEMA}.leases (namespace, name, holder, expires)
    SELECT $1, '{_LEASE}', $2, clock_timestamp() + interval '1 minute'
    WHERE NOT EXISTS (SELECT FROM {SCHEMA}.leases WHERE name = '{_LEASE}' AND expires >= clock_timestamp())
    ON CONFLICT (namespace, name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
    RETURNING true
"""
_RELEASE: Final = f"DELETE FROM {SCHEMA}.leases WHERE namespace = $1 AND name = '{_LEASE}' AND holder = $2"
_SETTINGS: Final = {
    # Candidates come in batches that overlap in order, and the best are selected at the end.
    # Strict order would discard late candidates and find fewer.
    "hnsw.iterative_scan": "relaxed_order",
    "hnsw.ef_search": "1000",
    "hnsw.max_scan_tuples": "20000",
    # A generic plan for any namespace cannot use the index of one namespace.
    "plan_cache_mode": "force_custom_plan",
    # Workers would be started for the alternative of the query that is then not executed.
    "max_parallel_workers_per_gather": "0",
}
_ANALYSE: Final = f"ANALYZE {SCHEMA}.pieces, {SCHEMA}.memories, {SCHEMA}.mentions"
# The server quotes the values.
_CREATE: Final = """
    SELECT format('CREATE INDEX CONCURRENTLY IF NOT EXISTS %I ON %s USING hnsw '
        '(({column}::{types}.{kind}({dimensions})) {types}.{kind}_ip_ops) '
        'WITH (m = 16, ef_construction = 400) WHERE namespace = %L AND embedder = %L',
        $1::text, tableoid::regclass, namespace, embedder)
    -- If the table is partitioned, the namespace is in one partition.
    FROM {schema}.pieces WHERE namespace = $2 AND embedder = $3 LIMIT 1
"""

_log: Final = logging.getLogger("mama_structs")


def check_dimensions(record: EmbedderRecord) -> None:
    """Raise if a server cannot store vectors of this many dimensions."""
    if record.dimensions > _STORED:
        raise InvalidArgument(
            f"{record.name:.80} has {record.dimensions} dimensions, but a server stores at most {_STORED}",
            hint="use an embedder with fewer dimensions, or store the memories in a directory",
        )


def indexed_as(dimensions: int, *, half: bool) -> str | None:
    """Return the type to index vectors of these dimensions, or None if that is impossible."""
    kinds = ("halfvec",) if half else ("vector", "halfvec")
    return next((kind for kind in kinds if dimensions <= _INDEXED[kind]), None)


@attrs.frozen
class _Work:
    """An index to build, or to drop if it is not wanted."""

    name: str
    is_wanted: bool
    is_bad: bool
    values: tuple[str, str]
    parts: Mapping[str, Any]


class NamespaceIndex:
    """State and maintenance of one namespace's vector index. Thread-safe."""

    def __init__(self, server: Server, namespace: str, embedder: EmbedderRecord, settings: MemorySettings) -> None:
        self.recall: float | None = None
        self._server = server
        self._namespace = namespace
        self._embedder = embedder
        self._exact_up_to = settings.exact_up_to
        self._guard = threading.Lock()
        self._work: Future[bool] | None = None
        self._not_before = 0.0
        self._is_refused = False

    def change_to(self, embedder: EmbedderRecord) -> None:
        """Maintain the index for another embedder from now on."""
        self._embedder, self.recall, self._not_before = embedder, None, 0.0

    def graph(self, head: NamespaceHead) -> HnswIndex | None:
        """Return the index that searches use, or None if they compare all vectors."""
        kind = indexed_as(self._embedder.dimensions, half=head.half)
        if kind is None or not head.index or head.pieces <= self._exact_up_to:
            return None
        column = "half" if head.half else "vector"
        return HnswIndex(column, kind, self._embedder.dimensions, several=head.pieces > head.live)

    @staticmethod
    def settings(graph: HnswIndex | None) -> Mapping[str, str]:
        """Return the settings of a transaction whose searches use an index."""
        return {} if graph is None else _SETTINGS

    def look_after(self, head: NamespaceHead) -> Future[bool] | None:
        """
        Start to build or drop the index if that is due.

        Return the running task, which need not be awaited.
        """
        is_left = head.index is not None and 2 * head.pieces <= self._exact_up_to < _ALWAYS_EXACT
        is_due = is_left or (self._is_wanted(head) and not head.index)
        return self.tidy(head) if is_due and self._may_try(head) else None

    def tidy(self, head: NamespaceHead) -> Future[bool] | None:
        """Start to build or drop indexes as necessary, without checking whether that is due."""
        with self._guard:
            # The server may be closed by now. That must not fail the write that triggered this.
            with contextlib.suppress(MamaStructsError):
                if self._work is None or self._work.done():
                    self._begin(head)
            return self._work

    async def made(self) -> None:
        """Wait until the running task has ended. Raise its error."""
        if self._work is not None:
            await asyncio.shield(asyncio.wrap_future(self._work))

    def findings(self, head: NamespaceHead) -> list[Finding]:
        """Return warnings about how vectors are stored and searched."""
        name, said = f"{self._namespace!r:.80}", []
        kept, chosen = ("halfvec" if half else "vector" for half in (head.half, self._server.options.halfvec))
        if head.embedder is not None and kept != chosen:
            said.append(f"the vectors of {name} are kept as {kept}, as when it was made; the setting says {chosen}")
        if head.pieces > self._exact_up_to:
            dimensions = self._embedder.dimensions
            if indexed_as(dimensions, half=head.half) is None:
                said.append(
                    f"no index holds vectors of {dimensions} dimensions: those of {name} are compared one by one"
                )
            elif self._is_refused and not head.index:
                said.append(
                    f"the server's user may make no index: the {head.pieces} vectors of {name} are compared one by "
                    "one; open a session once as the owner of the tables"
                )
        if self.recall is not None and self.recall < _RECALL:
            said.append(
                f"the index of {name} finds only {self.recall:.0%} of the stored vectors that are searched for; "
                "rebuild() recreates it"
            )
        return [Finding("warning", "vectors", one) for one in said]

    def probe(self, reader: PostgresReader, graph: HnswIndex) -> None:
        """Measure the recall of the index by searching for some stored vectors."""
        sample = reader.sample()
        some = sample[:: max(1, len(sample) // _PROBED)][:_PROBED]
        if len(some) and are_unit(some):
            self.recall = reader.share_found(some, graph, _ITSELF)

    def _is_wanted(self, head: NamespaceHead) -> bool:
        is_possible = indexed_as(self._embedder.dimensions, half=head.half) is not None
        return is_possible and head.pieces > self._exact_up_to

    def _may_try(self, head: NamespaceHead) -> bool:
        is_foreign = head.embedder not in (None, self._embedder)
        may_not = self._is_refused or self._server.is_read_only or is_foreign
        return not may_not and time.monotonic() >= self._not_before

    def _begin(self, head: NamespaceHead) -> None:
        key = key_of(self._embedder)
        work = _Work(
            index_name(self._namespace, key),
            self._is_wanted(head),
            # Rebuild an index that misses too many vectors.
            self.recall is not None and self.recall < _RECALL,
            (self._namespace, key),
            {
                "schema": SCHEMA,
                "types": self._server.vector_schema,
                "column": "half" if head.half else "vector",
                "kind": indexed_as(self._embedder.dimensions, half=head.half),
                "dimensions": self._embedder.dimensions,
            },
        )
        self._not_before = time.monotonic() + _AGAIN
        self._work = self._server.apart(lambda held: _carried_out(held, work))
        self._work.add_done_callback(self._ended)

    def _ended(self, work: Future[bool]) -> None:
        error = None if work.cancelled() else work.exception()
        if error is not None:
            _log.debug("an index of vectors was not made or dropped: %s", error)
            return
        self._not_before, self.recall = 0.0, None
        if not work.cancelled() and not work.result() and not self._is_refused:
            self._is_refused = True
            _log.warning("the user of %s may make no index: all vectors are compared one by one", self._server.location)


async def _carried_out(held: Any, work: _Work) -> bool:
    """
    Drop unwanted and unfinished indexes, and build the wanted one.

    Return False if the user lacks the privilege.
    """
    holder = uuid.uuid4()
    # Read committed: the claim must see a lease that was committed while this transaction waited for the table lock.
    async with held.transaction(isolation="read_committed"):
        await held.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        if not await held.fetchval(_MAY):
            return False
        # An index build holds this lock even after its host has died.
        # So its holder knows that no build is running and that an invalid index is a leftover.
        # Autovacuum takes the lock too, but yields to waiters.
        await held.execute(f"LOCK TABLE {SCHEMA}.pieces IN SHARE UPDATE EXCLUSIVE MODE")
        found = await held.fetch(_OURS, index_prefix(work.values[0]))
        names = {work.name} if work.is_wanted and not work.is_bad else set()
        kept = {one["name"] for one in found if one["is_valid"]} & names
        for name in sorted({one["name"] for one in found} - kept):
            await held.execute(f'DROP INDEX {SCHEMA}."{name}"')
        if kept or not work.is_wanted:
            return True
        # Concurrent builds on one table would deadlock. From here on other hosts wait for their turn.
        if not await held.fetchval(_CLAIM, work.values[0], holder):
            raise StoreBusy("another host makes an index", waited=0.0)
    sql = await held.fetchval(_CREATE.format(**work.parts), work.name, *work.values)
    try:
        if sql is not None:
            await held.execute(sql, timeout=_LONGEST)
        # Without statistics on the new vectors, the planner would compare all of them instead of using the index.
        await held.execute(_ANALYSE, timeout=_LONGEST)
    finally:
        if not held.is_closed():
            await held.execute(_RELEASE, work.values[0], holder)
    return True
