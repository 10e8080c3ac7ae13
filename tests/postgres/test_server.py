"""A PostgreSQL server as plain functions use it: transactions, their locks, and what a failure becomes."""

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mama_structs.errors import InvalidArgument, SessionClosed, StoreBusy, StoreError, StoreReadOnly, WrongLoop
from mama_structs.settings import ServerSettings
from mama_structs.storage.postgres.pool import Server


@pytest.fixture
def server(database):
    server = Server.open(database, options=ServerSettings(connections=4, wait=5, statement_timeout=5))
    yield server
    server.close()


def test_a_plan_asks_and_is_answered(server):
    """What a plan returns is the result, and its questions are counted."""

    def plan(connection):
        rows = connection.ask("SELECT $1::int + 1 AS sum", 41)
        return rows[0]["sum"], connection.questions

    assert (42, 1) == server.run(plan, write=False).result()


def test_a_change_is_counted_when_it_is_committed(server):
    """A writing plan sees the number before its own, and the next one sees one more."""

    def plan(connection):
        connection.note_change()
        return connection.change

    assert [0, 1, 2] == [server.run(plan, write=True, namespace="n").result() for _ in range(3)]
    assert 3 == server.run(lambda connection: connection.change, write=False, namespace="n").result()
    assert 0 == server.run(lambda connection: connection.change, write=False, namespace="other").result()


def test_what_a_plan_wrote_is_undone_when_it_raises(server):
    """A plan that raises leaves nothing, and its own error comes out."""

    def plan(connection):
        connection.note_change()
        connection.tell("INSERT INTO namespaces (namespace) VALUES ('x')")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        server.run(plan, write=True, namespace="n").result()

    assert [] == server.run(lambda connection: connection.ask("SELECT * FROM namespaces"), write=False).result()


def test_a_reading_plan_cannot_write(server):
    """The server itself refuses what a reading plan writes."""
    with pytest.raises(StoreReadOnly):
        server.run(lambda connection: connection.tell("DELETE FROM namespaces"), write=False).result()


def test_a_closed_server_refuses(server, database):
    """After the last close nothing is run, and a connection outlives no transaction."""
    kept = server.run(lambda connection: connection, write=False).result()
    other = Server.open(database)
    assert other is server
    other.close()
    assert 1 == server.run(lambda connection: connection.ask("SELECT 1")[0][0], write=False).result()
    server.close()

    with pytest.raises(SessionClosed):
        kept.ask("SELECT 1")
    with pytest.raises(SessionClosed):
        server.run(lambda connection: connection, write=False)


def test_what_an_attempt_wrote_is_taken_back_where_it_raises(server):
    """The rest of the transaction stays, and what the server refused spoils the whole of it."""

    def plan(connection):
        put = "INSERT INTO rows VALUES ('n', $1, '')"
        connection.tell(put, "a")
        with contextlib.suppress(KeyError), connection.attempt():
            connection.tell(put, "b")
            raise KeyError
        with connection.attempt():
            connection.tell(put, "c")

    def spoilt(connection):
        with pytest.raises(StoreError), connection.attempt():
            connection.ask("SELECT no_such_column")

    server.run(plan, write=True).result()
    with pytest.raises(StoreError, match="42703"):
        server.run(spoilt, write=True).result()

    found = server.run(lambda connection: connection.ask("SELECT key FROM rows ORDER BY key"), write=False).result()
    assert ["a", "c"] == [row["key"] for row in found]


def test_reads_see_one_moment(server):
    """What is committed meanwhile is seen by the next plan; a writing plan sees what was committed before its lock."""

    def add(connection):
        connection.tell("INSERT INTO rows VALUES ('n', gen_random_uuid()::text, '')")

    def plan(connection):
        before = connection.ask("SELECT count(*) FROM rows")[0][0]
        server.run(add, write=True, namespace="n").result()
        return before, connection.ask("SELECT count(*) FROM rows")[0][0]

    assert (0, 0) == server.run(plan, write=False, namespace="n").result()
    assert [(1,)] == server.run(lambda one: one.ask("SELECT count(*) FROM rows"), write=False).result()


def test_writers_of_one_namespace_never_interleave(server):
    """Of forty at once, from several threads, each sees all that the ones before it wrote."""

    def add(connection):
        number = connection.ask("SELECT count(*) FROM rows")[0][0]
        connection.tell("INSERT INTO rows VALUES ('n', $1, '')", str(number))
        connection.note_change()
        return number

    def several():
        return [server.run(add, write=True, namespace="n").result() for _ in range(10)]

    with ThreadPoolExecutor(4) as threads:
        found = [number for done in [threads.submit(several) for _ in range(4)] for number in done.result()]

    assert list(range(40)) == sorted(found)
    assert 40 == server.run(lambda connection: connection.change, write=False, namespace="n").result()


def test_vectors_are_arrays(server):
    """Those of pgvector come and go as such, in both precisions."""
    given = np.array([0.25, -1.5, 3.0], np.float32)

    def plan(connection):
        sql = "SELECT $1::vector AS one, $2::halfvec AS half, $1::vector <=> $1 AS far"
        return connection.ask(sql, given, given)[0]

    found = server.run(plan, write=False, settings={"hnsw.ef_search": "40"}).result()
    for array in (found["one"], found["half"]):
        assert np.float32 == array.dtype
        assert given.tolist() == array.tolist()
    assert 0 == found["far"]


def test_a_pooler_that_keeps_no_statements_can_stand_between(database):
    """Where none is to be prepared, none is kept on a connection, and nothing else is."""
    server = Server.open(database, options=ServerSettings(connections=1, prepared=False))

    def plan(connection):
        connection.ask("SELECT $1::vector", np.ones(3, np.float32))
        connection.tell("INSERT INTO rows VALUES ('n', $1, '')", "k")
        connection.tell_many("INSERT INTO rows VALUES ('n', $1, '')", [["l"], ["m"]])

    def left(connection):
        kept = connection.ask("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE '__asyncpg%'")[0][0]
        return kept, connection.ask("SELECT current_setting('app.namespace')")[0][0]

    server.run(plan, write=True, namespace="n").result()

    assert (0, "") == server.run(left, write=False).result()
    server.close()


def test_what_is_deleted_leaves_the_tables(server):
    """A vacuum waits for those who still see it, and says so when they do not end."""

    def count(connection):
        return connection.ask("SELECT pg_relation_size('rows') AS size")[0]["size"]

    server.run(
        lambda one: one.tell("INSERT INTO rows VALUES ('n', 'k', repeat('x', 1000)::bytea)"), write=True
    ).result()
    begun, go = threading.Event(), threading.Event()
    looking = server.run(
        lambda one: (one.ask("SELECT * FROM rows"), begun.set(), go.wait(30)), write=False, namespace="n"
    )
    assert begun.wait(30)
    server.run(lambda one: one.tell("DELETE FROM rows"), write=True).result()
    with pytest.raises(StoreBusy, match="still sees"):
        server.vacuum("rows", wait=0).result()
    go.set()
    looking.result()
    server.vacuum("rows", "leases", wait=5).result()

    assert 0 == server.run(count, write=False).result()
    with pytest.raises(InvalidArgument):
        server.vacuum("rows; DROP TABLE rows", wait=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_is_refused(server):
    """Connections are its parent's, which goes on with them."""
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
    assert 1 == server.run(lambda connection: connection.ask("SELECT 1")[0][0], write=False).result()


@pytest.mark.parametrize("url", ["mysql://x", "", 3, "postgresql://a\0b", "postgresql+asyncpg://x"])
def test_what_is_no_address_is_refused_without_being_repeated(url):
    """An address of another kind is an error at once."""
    with pytest.raises(InvalidArgument, match="postgresql://"):
        Server.open(url)
