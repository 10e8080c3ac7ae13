"""Deletion of a whole namespace from the tables of a server."""

# ruff: noqa: S608 - statements are built from constants

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from mama_structs._internal.event_loop import run_to_completion
from mama_structs.errors import MamaStructsError, StoreError
from mama_structs.memory.engines.postgres.hnsw_indexes import LEASE_NAME, NamespaceIndex
from mama_structs.memory.engines.postgres.namespace_rows import PostgresNamespaceHead
from mama_structs.memory.types.engine import EmbedderRecord, ProgressCallback
from mama_structs.memory.types.model import MemoryType
from mama_structs.memory.types.namespace_erasure import NamespaceErasure, namespace_open_error
from mama_structs.memory.types.record import NOTE_PREFIX
from mama_structs.settings import MemorySettings
from mama_structs.storage.postgres.pool import Connection, PostgresPool
from mama_structs.storage.postgres.store import PostgresRows
from mama_structs.storage.sealed_rows import Rows

T = TypeVar("T")

# Tables that contain texts of memories or refs.
VACUUMED_TABLES: Final = ("memories", "pieces", "terms", "mentions", "links", "texts", "text_uses", "notes", "rows")
# Nodes whose rows one statement deletes, so that no statement reaches its timeout.
BATCH_NODES: Final = 5_000
BATCH_ROWS: Final = 100_000
# Tables without an index that begins with the node, each with the column that divides their rows into batches.
KEYED_TABLES: Final = {
    "terms": "term",
    "mentions": "mention",
    "links": "id",
    "texts": "digest",
    "text_uses": "digest",
    "notes": "name",
}

# Leases show the sessions of all hosts. An index build does not prevent the deletion of its rows.
OPEN_SQL: Final = f"""
SELECT FROM leases WHERE namespace = $1 AND expires >= clock_timestamp() AND name <> '{LEASE_NAME}' LIMIT 1
"""
# Records without text are notes.
COUNT_SQL: Final = """
SELECT coalesce(next_node, 0) AS next_node, coalesce(types, '{}') AS types, coalesce(links, 0) AS links,
    (SELECT count(*) FROM texts WHERE namespace = $1) AS texts,
    (SELECT count(*) FROM notes WHERE namespace = $1 AND starts_with(name, $2)) AS notes
FROM (SELECT $1::text AS namespace) AS one LEFT JOIN memory_heads USING (namespace)
"""
DELETE_NODES_SQL: Final = "DELETE FROM {table} WHERE namespace = $1 AND node >= $2 AND node < $3"
BATCH_END_SQL: Final = """
SELECT {column} AS last FROM {table} WHERE namespace = $1 AND {column} >= $2 ORDER BY {column} OFFSET {rows} LIMIT 1
"""
DELETE_BATCH_SQL: Final = "DELETE FROM {table} WHERE namespace = $1 AND {column} >= $2 AND {column} <= $3"
# Sessions that read the namespace look for the token of the last change that they know.
# Without it they discard their caches. The number of the last change remains, so that no number is reused.
TABLES: Final = ("memories", "pieces", *KEYED_TABLES, "changes", "memory_heads")


async def delete_namespace(
    server: PostgresPool, namespace: str, delete_rows: Callable[[Rows], T], progress: ProgressCallback | None
) -> tuple[NamespaceErasure, T]:
    """Delete the rows of a namespace in one transaction; see `Engines.delete_namespace`."""
    loop = asyncio.get_running_loop()

    def report(done: int, total: int) -> None:
        if progress is not None:
            loop.call_soon_threadsafe(progress, done, total)

    def work(connection: Connection) -> tuple[NamespaceErasure, T]:
        # Read the leases after the lock of the namespace, so that no session of another host writes in between.
        if connection.fetch(OPEN_SQL, namespace):
            raise namespace_open_error(namespace)
        result = delete_rows(PostgresRows(connection, namespace))
        (head,) = connection.fetch(COUNT_SQL, namespace, NOTE_PREFIX)
        types = {kind: count for kind, count in zip(MemoryType, head["types"], strict=False) if count}
        erased = NamespaceErasure(
            namespace=namespace,
            memories={kind.value: count for kind, count in types.items() if kind is not MemoryType.RECORD},
            records=types.get(MemoryType.RECORD, 0) + head["notes"],
            links=head["links"],
            evidence_texts=head["texts"],
        )
        _delete_memories(connection, namespace, head["next_node"], report)
        for table in TABLES:
            connection.execute(f"DELETE FROM {table} WHERE namespace = $1", namespace)
        connection.note_change()
        return erased, result

    running = asyncio.wrap_future(server.run(work, write=True, namespace=namespace))

    async def finish() -> tuple[NamespaceErasure, T]:
        return await running

    return await run_to_completion(finish())


async def drop_index(server: PostgresPool, namespace: str) -> None:
    """Drop the vector indexes of a deleted namespace. Best effort: the next change of an index tries again."""
    # The namespace is empty, so the embedder and the settings have no effect.
    nobody = EmbedderRecord(name="none", dimensions=1, fingerprint="none")
    index = NamespaceIndex(server, namespace, nobody, MemorySettings())
    with contextlib.suppress(MamaStructsError):
        index.maintain(PostgresNamespaceHead())
        await index.wait_until_idle()


async def vacuum(server: PostgresPool, *, wait: float) -> tuple[str, ...]:
    """Remove deleted rows from the files of the server, or return a description of the tables that contain them."""
    try:
        await asyncio.shield(asyncio.wrap_future(server.vacuum(*VACUUMED_TABLES, wait=wait)))
    except StoreError as error:
        # The data is removed later, by autovacuum or by a role with sufficient rights.
        return (f"tables of the server, until it vacuums them: {error}",)
    return ()


def _delete_memories(
    connection: Connection, namespace: str, node_count: int, report: Callable[[int, int], object]
) -> None:
    """Delete most rows of the memories in batches. Report the number of nodes, and one step per keyed table."""
    total = node_count + len(KEYED_TABLES)
    for done, (table, column) in enumerate(KEYED_TABLES.items(), 1):
        _delete_by_key(connection, namespace, table, column)
        report(done, total)
    for start in range(0, node_count, BATCH_NODES):
        end = min(start + BATCH_NODES, node_count)
        for table in ("pieces", "memories"):
            connection.execute(DELETE_NODES_SQL.format(table=table), namespace, start, end)
        report(len(KEYED_TABLES) + end, total)


def _delete_by_key(connection: Connection, namespace: str, table: str, column: str) -> None:
    first = ""
    while found := connection.fetch(
        BATCH_END_SQL.format(table=table, column=column, rows=BATCH_ROWS), namespace, first
    ):
        last = found[0]["last"]
        connection.execute(DELETE_BATCH_SQL.format(table=table, column=column), namespace, first, last)
        first = last
