"""
HNSW indexes on a server: one for each large namespace and embedder, made behind and used as soon as it is valid.

An index belongs to the vectors of one namespace and one embedder, and to no others: what one namespace searches costs
nothing to others, and a filter by namespace cannot make its results fewer. Whether there is a usable one, each
transaction learns with its first answer. Without one the same question is answered exactly.
"""

# ruff: noqa: S608 - what is put into a statement is written here, or quoted by the server

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
from mama_structs.storage.postgres.pool import SCHEMA, Server
from mama_structs.storage.sqlite_errors import Finding

# What pgvector can keep, and what it can index: https://github.com/pgvector/pgvector#hnsw
_STORED: Final = 16_000
_INDEXED: Final = {"vector": 2_000, "halfvec": 4_000}
# Who compares all in any case looks after no index: it is others' that they search by it.
_ALWAYS_EXACT: Final = 2**31
# Another try is worth it no sooner, in seconds.
_AGAIN: Final = 60.0
_LONGEST: Final = 7 * 86_400.0
_LOCK_SECONDS: Final = 2
_PROBED: Final = 64
# Of vectors that are asked for themselves so many are found, or the index is to be made anew.
_RECALL: Final = 0.95
# How near a vector is to itself at the least, of halves, too.
_ITSELF: Final = 0.999
_LEASE: Final = "index of vectors"

_OURS: Final = f"""
    SELECT c.relname AS name, i.indisvalid AS is_valid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relnamespace = '{SCHEMA}'::regnamespace
    AND c.relname ~ '^hnsw_[0-9a-f]{{24}}_[0-9a-f]{{16}}$' AND (starts_with(c.relname, $1)
        -- Of namespaces that are gone, unless other namespaces than the own one cannot be seen.
        OR (NOT row_security_active('{SCHEMA}.memory_heads') AND NOT EXISTS (
            SELECT FROM {SCHEMA}.memory_heads h WHERE h.next_node > 0 AND starts_with(c.relname,
                'hnsw_' || left(encode(sha256(convert_to(h.namespace, 'UTF8')), 'hex'), 24)))))
"""
_MAY: Final = f"""
    SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE')
    FROM pg_class WHERE oid = '{SCHEMA}.pieces'::regclass
"""
# The lease is a row of the namespace, and the namespaces exclude each other: concurrent index builds on one table can
# deadlock. Claims are serialized by the lock on the table that each of them is made under.
_CLAIM: Final = f"""
    INSERT INTO {SCHEMA}.leases (namespace, name, holder, expires)
    SELECT $1, '{_LEASE}', $2, clock_timestamp() + interval '1 minute'
    WHERE NOT EXISTS (SELECT FROM {SCHEMA}.leases WHERE name = '{_LEASE}' AND expires >= clock_timestamp())
    ON CONFLICT (namespace, name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
    RETURNING true
"""
_RELEASE: Final = f"DELETE FROM {SCHEMA}.leases WHERE namespace = $1 AND name = '{_LEASE}' AND holder = $2"
_SETTINGS: Final = {
    # Candidates come in batches that overlap in order, and the best of them are taken in the end: strict order would
    # throw those away that come late, and find less.
    "hnsw.iterative_scan": "relaxed_order",
    "hnsw.ef_search": "1000",
    "hnsw.max_scan_tuples": "20000",
    # An index of one namespace is of no use to a plan for any namespace.
    "plan_cache_mode": "force_custom_plan",
    # Workers would be started for a way of answering that is then not taken.
    "max_parallel_workers_per_gather": "0",
}
_ANALYSE: Final = f"ANALYZE {SCHEMA}.pieces, {SCHEMA}.memories, {SCHEMA}.mentions"
# The server quotes what others have said.
_CREATE: Final = """
    SELECT format('CREATE INDEX CONCURRENTLY IF NOT EXISTS %I ON %s USING hnsw '
        '(({column}::{types}.{kind}({dimensions})) {types}.{kind}_ip_ops) '
        'WITH (m = 16, ef_construction = 400) WHERE namespace = %L AND embedder = %L',
        $1::text, tableoid::regclass, namespace, embedder)
    -- If the table is divided, the namespace is in one part of it.
    FROM {schema}.pieces WHERE namespace = $2 AND embedder = $3 LIMIT 1
"""

_log: Final = logging.getLogger("mama_structs")


def check_dimensions(record: EmbedderRecord) -> None:
    """Refuse vectors that no server can keep."""
    if record.dimensions > _STORED:
        raise InvalidArgument(
            f"{record.name:.80} has {record.dimensions} dimensions, and a server keeps {_STORED} at the most",
            hint="take an embedder of fewer dimensions, or keep the memories in a directory",
        )


def indexed_as(dimensions: int, *, half: bool) -> str | None:
    """Return the type of number by which vectors can be indexed, None where there are too many for any."""
    kinds = ("halfvec",) if half else ("vector", "halfvec")
    return next((kind for kind in kinds if dimensions <= _INDEXED[kind]), None)


@attrs.frozen
class _Work:
    """What is to be done: the index that is to be there, or that there is to be none."""

    name: str
    is_wanted: bool
    is_bad: bool
    values: tuple[str, str]
    parts: Mapping[str, Any]


class NamespaceIndex:
    """What one host knows of a namespace's index, and does for it; used from any thread."""

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
        """Look after the vectors of another embedder from now on, and after the index of the one before."""
        self._embedder, self.recall, self._not_before = embedder, None, 0.0

    def graph(self, head: NamespaceHead) -> HnswIndex | None:
        """Return the index by which a search goes, None where it compares all."""
        kind = indexed_as(self._embedder.dimensions, half=head.half)
        if kind is None or not head.index or head.pieces <= self._exact_up_to:
            return None
        column = "half" if head.half else "vector"
        return HnswIndex(column, kind, self._embedder.dimensions, several=head.pieces > head.live)

    @staticmethod
    def settings(graph: HnswIndex | None) -> Mapping[str, str]:
        """Return the settings of a transaction whose searches go by an index."""
        return {} if graph is None else _SETTINGS

    def look_after(self, head: NamespaceHead) -> Future[bool] | None:
        """Begin to make or to drop the index where that is due, and return what goes on of it; nobody need wait."""
        is_left = head.index is not None and 2 * head.pieces <= self._exact_up_to < _ALWAYS_EXACT
        is_due = is_left or (self._is_wanted(head) and not head.index)
        return self.tidy(head) if is_due and self._may_try(head) else None

    def tidy(self, head: NamespaceHead) -> Future[bool] | None:
        """Bring the namespace's indexes to what they are to be, whether anything seems to be due or not."""
        with self._guard:
            # Where the server is closed meanwhile, what was written is written all the same.
            with contextlib.suppress(MamaStructsError):
                if self._work is None or self._work.done():
                    self._begin(head)
            return self._work

    async def made(self) -> None:
        """Wait until nothing goes on of it; raises what it failed with."""
        if self._work is not None:
            await asyncio.shield(asyncio.wrap_future(self._work))

    def findings(self, head: NamespaceHead) -> list[Finding]:
        """Return what people should know of how vectors are kept and searched."""
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
                f"the index of {name} finds only {self.recall:.0%} of vectors that are asked for themselves; "
                "rebuild() makes it anew"
            )
        return [Finding("warning", "vectors", one) for one in said]

    def probe(self, reader: PostgresReader, graph: HnswIndex) -> None:
        """Ask the index for some vectors that are there, and keep how many of them it finds."""
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
            # One that misses too much is made anew.
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
    """Drop unwanted and unfinished indexes, and build the wanted one. Return False if the user lacks the privilege."""
    holder = uuid.uuid4()
    # Read committed: the claim must see a lease that was committed while this transaction waited for the table lock.
    async with held.transaction(isolation="read_committed"):
        await held.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        if not await held.fetchval(_MAY):
            return False
        # While an index is made its maker holds this lock, also where that one's host is gone: who gets it knows that
        # nobody is at it, and that an invalid one is what was left. Autovacuum takes it too, and gives way when asked.
        await held.execute(f"LOCK TABLE {SCHEMA}.pieces IN SHARE UPDATE EXCLUSIVE MODE")
        found = await held.fetch(_OURS, index_prefix(work.values[0]))
        names = {work.name} if work.is_wanted and not work.is_bad else set()
        kept = {one["name"] for one in found if one["is_valid"]} & names
        for name in sorted({one["name"] for one in found} - kept):
            await held.execute(f'DROP INDEX {SCHEMA}."{name}"')
        if kept or not work.is_wanted:
            return True
        # Two that made indexes of one table would wait for each other; from here on another host waits for its turn.
        if not await held.fetchval(_CLAIM, work.values[0], holder):
            raise StoreBusy("another host makes an index", waited=0.0)
    sql = await held.fetchval(_CREATE.format(**work.parts), work.name, *work.values)
    try:
        if sql is not None:
            await held.execute(sql, timeout=_LONGEST)
        # Until the server knows how many vectors the namespace has, it would compare all rather than use the index.
        await held.execute(_ANALYSE, timeout=_LONGEST)
    finally:
        if not held.is_closed():
            await held.execute(_RELEASE, work.values[0], holder)
    return True
