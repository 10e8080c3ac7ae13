"""Connection pool of a PostgreSQL server: transactions, locks and conversion of failures."""

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mama_structs.errors import InvalidArgument, SessionClosed, StoreBusy, StoreError, StoreReadOnly, WrongLoop
from mama_structs.settings import ServerSettings
from mama_structs.storage.postgres.pool import PostgresPool


@pytest.fixture
def server(database):
    server = PostgresPool.open(database, options=ServerSettings(max_connections=4, pool_timeout=5, statement_timeout=5))
    yield server
    server.close()


def test_run_returns_result_of_function(server):
    """The result of the function is returned, and its statements are counted."""

    def plan(connection):
        rows = connection.fetch("SELECT $1::int + 1 AS sum", 41)
        return rows[0]["sum"], connection.statement_count

    assert (42, 1) == server.run(plan, write=False).result()


def test_commit_counts_change_of_namespace(server):
    """A write sees the number of the previous change, and the next one a number higher by one."""

    def plan(connection):
        connection.note_change()
        return connection.change

    assert [0, 1, 2] == [server.run(plan, write=True, namespace="n").result() for _ in range(3)]
    assert 3 == server.run(lambda connection: connection.change, write=False, namespace="n").result()
    assert 0 == server.run(lambda connection: connection.change, write=False, namespace="other").result()


def test_run_rolls_back_when_function_raises(server):
    """The error of the function is raised and nothing is stored."""

    def plan(connection):
        connection.note_change()
        connection.execute("INSERT INTO namespaces (namespace) VALUES ('x')")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        server.run(plan, write=True, namespace="n").result()

    assert [] == server.run(lambda connection: connection.fetch("SELECT * FROM namespaces"), write=False).result()


def test_read_transaction_rejects_writes(server):
    """The server itself rejects writes in a read transaction."""
    with pytest.raises(StoreReadOnly):
        server.run(lambda connection: connection.execute("DELETE FROM namespaces"), write=False).result()


def test_closed_server_raises_session_closed(server, database):
    """After the last close nothing runs, and a connection is unusable after its transaction."""
    kept = server.run(lambda connection: connection, write=False).result()
    other = PostgresPool.open(database)
    assert other is server
    other.close()
    assert 1 == server.run(lambda connection: connection.fetch("SELECT 1")[0][0], write=False).result()
    server.close()

    with pytest.raises(SessionClosed):
        kept.fetch("SELECT 1")
    with pytest.raises(SessionClosed):
        server.run(lambda connection: connection, write=False)


def test_attempt_rolls_back_to_savepoint_when_block_raises(server):
    """The rest of the transaction is kept, but an error of the server fails the whole transaction."""

    def plan(connection):
        put = "INSERT INTO rows VALUES ('n', $1, '')"
        connection.execute(put, "a")
        with contextlib.suppress(KeyError), connection.savepoint():
            connection.execute(put, "b")
            raise KeyError
        with connection.savepoint():
            connection.execute(put, "c")

    def spoilt(connection):
        with pytest.raises(StoreError), connection.savepoint():
            connection.fetch("SELECT no_such_column")

    server.run(plan, write=True).result()
    with pytest.raises(StoreError, match="42703"):
        server.run(spoilt, write=True).result()

    found = server.run(lambda connection: connection.fetch("SELECT key FROM rows ORDER BY key"), write=False).result()
    assert ["a", "c"] == [row["key"] for row in found]


def test_read_transaction_sees_one_snapshot(server):
    """Concurrent commits are visible in the next transaction only."""

    def add(connection):
        connection.execute("INSERT INTO rows VALUES ('n', gen_random_uuid()::text, '')")

    def plan(connection):
        before = connection.fetch("SELECT count(*) FROM rows")[0][0]
        server.run(add, write=True, namespace="n").result()
        return before, connection.fetch("SELECT count(*) FROM rows")[0][0]

    assert (0, 0) == server.run(plan, write=False, namespace="n").result()
    assert [(1,)] == server.run(lambda one: one.fetch("SELECT count(*) FROM rows"), write=False).result()


def test_writers_of_one_namespace_do_not_interleave(server):
    """Each of forty concurrent writes sees all earlier ones."""

    def add(connection):
        number = connection.fetch("SELECT count(*) FROM rows")[0][0]
        connection.execute("INSERT INTO rows VALUES ('n', $1, '')", str(number))
        connection.note_change()
        return number

    def several():
        return [server.run(add, write=True, namespace="n").result() for _ in range(10)]

    with ThreadPoolExecutor(4) as threads:
        found = [number for done in [threads.submit(several) for _ in range(4)] for number in done.result()]

    assert list(range(40)) == sorted(found)
    assert 40 == server.run(lambda connection: connection.change, write=False, namespace="n").result()


def test_vectors_are_converted_to_and_from_arrays(server):
    """Both precisions of pgvector are supported."""
    given = np.array([0.25, -1.5, 3.0], np.float32)

    def plan(connection):
        sql = "SELECT $1::vector AS one, $2::halfvec AS half, $1::vector <=> $1 AS far"
        return connection.fetch(sql, given, given)[0]

    found = server.run(plan, write=False, settings={"hnsw.ef_search": "40"}).result()
    for array in (found["one"], found["half"]):
        assert np.float32 == array.dtype
        assert given.tolist() == array.tolist()
    assert 0 == found["far"]


def test_connection_keeps_no_state_without_prepared_statements(database):
    """With `prepared_statements=False`, neither statements nor settings remain on a connection, so a pooler may be used."""
    server = PostgresPool.open(database, options=ServerSettings(max_connections=1, prepared_statements=False))

    def plan(connection):
        connection.fetch("SELECT $1::vector", np.ones(3, np.float32))
        connection.execute("INSERT INTO rows VALUES ('n', $1, '')", "k")

    def left(connection):
        kept = connection.fetch("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE '__asyncpg%'")[0][0]
        return kept, connection.fetch("SELECT current_setting('app.namespace')")[0][0]

    server.run(plan, write=True, namespace="n").result()

    assert (0, "") == server.run(left, write=False).result()
    server.close()


def test_vacuum_removes_deleted_rows(server):
    """VACUUM waits for transactions that can still read the deleted rows, and raises if they do not end."""

    def count(connection):
        return connection.fetch("SELECT pg_relation_size('rows') AS size")[0]["size"]

    server.run(
        lambda one: one.execute("INSERT INTO rows VALUES ('n', 'k', repeat('x', 1000)::bytea)"), write=True
    ).result()
    begun, go = threading.Event(), threading.Event()
    looking = server.run(
        lambda one: (one.fetch("SELECT * FROM rows"), begun.set(), go.wait(30)), write=False, namespace="n"
    )
    assert begun.wait(30)
    server.run(lambda one: one.execute("DELETE FROM rows"), write=True).result()
    with pytest.raises(StoreBusy, match="can still read"):
        server.vacuum("rows", wait=0).result()
    go.set()
    looking.result()
    server.vacuum("rows", "leases", wait=5).result()

    assert 0 == server.run(count, write=False).result()
    with pytest.raises(InvalidArgument):
        server.vacuum("rows; DROP TABLE rows", wait=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_forked_child_raises_wrong_loop(server):
    """The connections belong to the parent, which continues to use them."""
    child = os.fork()
    if not child:
        code = 1
        try:
            server.run(len, write=False)
        except WrongLoop:
            code = 0
        finally:
            os._exit(code)

    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert 1 == server.run(lambda connection: connection.fetch("SELECT 1")[0][0], write=False).result()


@pytest.mark.parametrize("url", ["mysql://x", "", 3, "postgresql://a\0b", "postgresql+asyncpg://x"])
def test_open_rejects_invalid_url(url):
    """A URL of another kind raises an error immediately."""
    with pytest.raises(InvalidArgument, match="postgresql://"):
        PostgresPool.open(url)
