"""Failures between a host and its server: typed errors, timeouts, no partial writes."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from postgres_helpers import Proxy, administer, in_database, wait_until

import mama_structs
from mama_structs.errors import MamaStructsError, StoreBusy, StoreError, StoreReadOnly, StoreUnreachable
from mama_structs.settings import ServerSettings
from mama_structs.storage.postgres import pool as _server
from mama_structs.storage.postgres import schema_migrations as migrating
from mama_structs.storage.postgres.pool import PostgresPool

SRC = str(Path(mama_structs.__file__).parents[1])
SECRET = "open-sesame"
ADDRESSES = 18


@contextlib.contextmanager
def opened(url, **options):
    server = PostgresPool.open(
        url, options=ServerSettings(**{"max_connections": 2, "pool_timeout": 5, "statement_timeout": 5, **options})
    )
    try:
        yield server
    finally:
        server.close()


def add(connection):
    """Write one row, and count the change."""
    connection.execute("INSERT INTO rows VALUES ('n', gen_random_uuid()::text, '')")
    connection.note_change()
    return connection.statement_count


def rows_of(url):
    return administer(url, "SELECT count(*) FROM mama_structs.rows")[0][0]


# Opening.


def test_open_names_missing_package_when_asyncpg_is_not_installed(monkeypatch):
    """Only the PostgreSQL engine requires asyncpg."""
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    with pytest.raises(StoreError, match=r"mama-structs\[postgres\]"):
        PostgresPool.open("postgresql://nowhere")


OPENERS = """
import os, sys
from mama_structs import settings
from mama_structs.storage.postgres import errors, pool, schema_migrations
url, count = sys.argv[1], int(sys.argv[2])
children = []
for number in range(count):
    if not (child := os.fork()):
        code = 1
        try:
            opened = pool.PostgresPool.open(url, options=settings.ServerSettings(max_connections=1))
            opened.run(lambda one: (one.fetch("SELECT 1"), one.note_change()), write=True, namespace="n").result()
            opened.close()
            code = 0
        finally:
            os._exit(code)
    children.append(child)
print(sorted({os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}))
"""


def test_concurrent_hosts_open_empty_database(empty_database):
    """Twenty processes that start together create the schema once, and every change is counted."""
    command = [sys.executable, "-c", OPENERS, empty_database, "20"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": SRC})

    assert "[0]\n" == ended.stdout, ended.stderr
    found = administer(empty_database, "SELECT version FROM mama_structs.migrations ORDER BY version")
    assert [number for number, _, _ in migrating.load_migrations()] == [row["version"] for row in found]
    assert 20 == administer(empty_database, "SELECT change FROM mama_structs.namespaces")[0]["change"]


def test_failed_migration_leaves_nothing(empty_database, monkeypatch):
    """Either all migrations are applied or none, and the next host starts from the beginning."""
    files = migrating.load_migrations()
    monkeypatch.setattr(migrating, "load_migrations", lambda: [*files, (9000, "9000_bad", "SELECT no_such_column")])
    with pytest.raises(StoreError, match="42703"):
        PostgresPool.open(empty_database)
    found = administer(empty_database, "SELECT nspname FROM pg_namespace WHERE nspname = 'mama_structs'")
    assert [] == found
    monkeypatch.undo()

    with opened(empty_database) as server:
        assert 1 == server.run(add, write=True, namespace="n").result()


def test_open_rejects_database_of_newer_version(own_database):
    """An unknown schema version is not modified."""
    administer(own_database, "INSERT INTO mama_structs.migrations (version, name) VALUES (9999, 'later')")

    with pytest.raises(StoreError, match=r"newer version.*pip install"):
        PostgresPool.open(own_database)


@pytest.mark.parametrize(
    ("installed", "available", "message"),
    [
        (None, None, "has no pgvector .*install pgvector 0.8.4 or newer"),
        ("0.8.3", "0.8.3", "pgvector 0.8.3, and 0.8.4 .*install"),
        ("0.5.1", "0.8.5", "pgvector 0.5.1, .*ALTER EXTENSION vector UPDATE"),
        (None, "0.8.0", "pgvector 0.8.0"),
        ("0.8.next", None, "pgvector 0.8.next"),
    ],
)
def test_check_vector_rejects_missing_or_old_pgvector(installed, available, message):
    """The hint says what to install or to execute."""
    with pytest.raises(StoreError, match=message):
        migrating.check_pgvector(installed, available, "there")


def test_check_vector_accepts_new_pgvector():
    """An installed version is used, and an available one can be added to the database."""
    assert migrating.check_pgvector("0.8.4", "0.8.5", "there")
    assert migrating.check_pgvector("1.0", None, "there")
    assert not migrating.check_pgvector(None, "0.8.10", "there")


def test_open_names_statement_when_user_may_not_create_extension(empty_database, plain_database):
    """After an administrator has created the extension, the same user can open the database."""
    with pytest.raises(StoreError, match="CREATE EXTENSION vector"):
        PostgresPool.open(plain_database)
    administer(empty_database, "CREATE EXTENSION vector")

    with opened(plain_database) as server:
        assert 1 == server.run(add, write=True, namespace="n").result()


def test_read_only_database_opens_for_reading(own_database):
    """Reads succeed and writes raise StoreReadOnly; a database of an older version is rejected."""
    name = urlsplit(own_database).path[1:]
    administer(own_database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with opened(own_database) as server:
        assert server.is_read_only
        assert [] == server.run(lambda one: one.fetch("SELECT * FROM rows"), write=False, namespace="n").result()
        with pytest.raises(StoreReadOnly, match="name the primary"):
            server.run(add, write=True, namespace="n").result()
    administer(own_database, "SET default_transaction_read_only = off", "DELETE FROM mama_structs.migrations")

    with pytest.raises(StoreReadOnly, match="older version"):
        PostgresPool.open(own_database)


# Broken connections.


@pytest.mark.parametrize("is_heard", [True, False], ids=["answer lost", "question lost"])
def test_write_is_atomic_when_connection_breaks_at_any_message(database, proxy, is_heard):
    """An acknowledged write is stored once, and a failed one is not stored."""
    proxy.is_heard = is_heard
    outcomes = []
    for at in itertools.count(1):
        administer(database, "DELETE FROM mama_structs.rows")
        with opened(proxy.url) as server:
            server.run(lambda one: one.fetch("SELECT 1"), write=False).result()
            proxy.at = proxy.seen + at
            error = server.run(add, write=True, namespace="n").exception()
            is_over, proxy.at = proxy.at is not None, None
            # The broken connection must not affect later calls.
            found = server.run(lambda one: one.fetch("SELECT * FROM rows"), write=False).result()
        assert error is None or type(error) is StoreUnreachable
        assert "may be stored" not in str(error)
        assert len(found) == rows_of(database) == (error is None)
        outcomes.append(len(found))
        if is_over:
            break
    # The connection breaks at least at begin, query and commit. Some of these runs fail, and others succeed.
    assert len(outcomes) >= 4
    assert {0, 1} == set(outcomes)


@pytest.mark.parametrize("is_heard", [True, False], ids=["answer lost", "question lost"])
def test_first_opening_is_atomic_when_connection_breaks_at_any_message(empty_database, is_heard):
    """Either all tables are created or none, and the next host can continue."""
    found = set()
    with Proxy(empty_database) as proxy:
        proxy.is_heard = is_heard
        for at in itertools.count(1):
            proxy.at = proxy.seen + at
            with contextlib.suppress(StoreUnreachable):
                PostgresPool.open(proxy.url).close()
            is_over, proxy.at = proxy.at is not None, None
            if is_over:
                break
            tables = administer(empty_database, "SELECT count(*) FROM pg_tables WHERE schemaname = 'mama_structs'")
            found.add(tables[0][0])
            administer(empty_database, "DROP SCHEMA IF EXISTS mama_structs CASCADE")
        with opened(empty_database) as server:
            assert 1 == server.run(add, write=True, namespace="n").result()
        tables = administer(empty_database, "SELECT count(*) FROM pg_tables WHERE schemaname = 'mama_structs'")
    assert {0, tables[0][0]} >= found
    assert at > 8


def test_commit_without_answer_is_looked_up(database, proxy):
    """If the server has committed, the write succeeds and the function runs once."""
    runs = []

    def plan(connection):
        runs.append(add(connection))
        proxy.at = proxy.seen + 1

    with opened(proxy.url, max_connections=1) as server:
        server.run(plan, write=True, namespace="n").result()

    assert 1 == len(runs) == rows_of(database)
    assert 1 == administer(database, "SELECT change FROM mama_structs.namespaces")[0]["change"]


def test_commit_without_answer_raises_when_lookup_is_impossible(database, proxy):
    """Without a counted change the outcome is unknown, and the error says that the rows may be stored."""

    def plan(connection):
        connection.execute("INSERT INTO rows VALUES ('n', 'k', '')")
        proxy.at = proxy.seen + 1

    with opened(proxy.url) as server, pytest.raises(StoreUnreachable, match="may be stored, or not"):
        server.run(plan, write=True).result()
    # The server may still be executing the commit, so wait for the row.
    wait_until(lambda: rows_of(database) == 1)


def test_commit_lookup_times_out(database, proxy):
    """If the server stays unreachable, the error is raised after a timeout and says that the rows may be stored."""

    def plan(connection):
        add(connection)
        proxy.at, proxy.stays = proxy.seen + 1, True

    with opened(proxy.url, pool_timeout=0.2, connect_timeout=0.2) as server:
        with pytest.raises(StoreUnreachable, match="may be stored, or not"):
            server.run(plan, write=True, namespace="n").result()
        proxy.at = None
    # The server may still be executing the commit, so wait for the row.
    wait_until(lambda: rows_of(database) == 1)


def test_interrupted_read_is_retried_once(proxy):
    """The retry uses a new connection, and fails if it is interrupted again."""
    runs = []

    def plan(connection):
        runs.append(1)
        if len(runs) <= cuts:
            proxy.at = proxy.seen + 1
        return connection.fetch("SELECT 42 AS n")[0]["n"]

    with opened(proxy.url) as server:
        cuts = 1
        assert 42 == server.run(plan, write=False).result()
        assert 2 == len(runs)
        runs.clear()
        cuts = 2
        with pytest.raises(StoreUnreachable):
            server.run(plan, write=False).result()
        assert 2 == len(runs)


# Waiting.


def test_unresponsive_server_raises_after_timeout(proxy, monkeypatch):
    """An answer that never arrives raises an error, and the next call uses a new connection."""
    monkeypatch.setattr(_server, "CLIENT_GRACE_SECONDS", 0.05)
    with opened(proxy.url, statement_timeout=0.2, connect_timeout=0.3, pool_timeout=0.3) as server:
        server.run(lambda one: one.fetch("SELECT 1"), write=False).result()
        proxy.at, proxy.holds = proxy.seen + 1, True
        for write in (False, True):
            with pytest.raises(StoreUnreachable):
                server.run(add, write=write, namespace="n").result()
        proxy.at = None
        assert 1 == server.run(add, write=True, namespace="n").result()
    proxy.at = 1
    with pytest.raises(StoreUnreachable, match="gave no answer"):
        PostgresPool.open(proxy.url, options=ServerSettings(connect_timeout=0.2))


def test_long_statement_is_cancelled_by_server(database):
    """The transaction is rolled back and the connection stays usable."""
    # Idle transactions have the same timeout, so it must exceed the pause between statements on a slow machine.
    with opened(database, statement_timeout=3) as server:

        def plan(connection):
            add(connection)
            connection.fetch("SELECT pg_sleep(60)")

        with pytest.raises(StoreBusy, match="a statement took too long"):
            server.run(plan, write=True, namespace="n").result()
        assert 1 == server.run(add, write=True, namespace="n").result()
    assert 1 == rows_of(database)


def test_writer_raises_busy_when_other_writer_holds_namespace(database):
    """Writers of other namespaces and readers do not wait."""
    begun, go = threading.Event(), threading.Event()

    def hold(connection):
        add(connection)
        begun.set()
        return go.wait(30)

    with opened(database, max_connections=3, pool_timeout=0.2) as server:
        holding = server.run(hold, write=True, namespace="n")
        assert begun.wait(30)
        with (
            opened(f"{database}?application_name=another", pool_timeout=0.2) as other,
            pytest.raises(StoreBusy, match="another host held the lock") as caught,
        ):
            other.run(add, write=True, namespace="n").result()
        assert caught.value.waited > 0
        with pytest.raises(StoreBusy, match="earlier writes in the queue were not finished"):
            server.run(add, write=True, namespace="n").result()
        with pytest.raises(StoreBusy):
            server.run(add, write=True, namespace="n", wait=0).result()
        assert 1 == server.run(add, write=True, namespace="other").result()
        assert 1 == len(server.run(lambda one: one.fetch("SELECT * FROM rows"), write=False, namespace="n").result())
        go.set()
        assert holding.result()


def test_waiting_writers_occupy_no_connections(database):
    """All queued writes are stored, and reads do not wait for them."""
    begun, go = threading.Event(), threading.Event()
    with opened(database, max_connections=2) as server:
        holding = server.run(lambda _one: (begun.set(), go.wait(30)), write=True, namespace="n")
        assert begun.wait(30)
        saving = [server.run(add, write=True, namespace="n") for _ in range(20)]
        assert [] == server.run(lambda one: one.fetch("SELECT * FROM rows"), write=False, namespace="n").result()
        go.set()
        holding.result()
        assert [1] * 20 == [one.result() for one in saving]
    assert 20 == rows_of(database)


def test_shared_writers_run_concurrently(database):
    """Shared writers do not exclude each other, but an exclusive writer waits for them."""
    both = threading.Barrier(2, timeout=30)
    with opened(database, max_connections=3, pool_timeout=0.2) as server:
        shared = [
            server.run(lambda _one: both.wait() >= 0, write=True, namespace="n", exclusive=False) for _ in range(2)
        ]
        assert [True, True] == [one.result() for one in shared]
        begun, go = threading.Event(), threading.Event()
        sharing = server.run(lambda _one: (begun.set(), go.wait(30)), write=True, namespace="n", exclusive=False)
        assert begun.wait(30)
        with pytest.raises(StoreBusy):
            server.run(add, write=True, namespace="n").result()
        go.set()
        sharing.result()


def test_run_raises_busy_when_all_connections_are_in_use(database):
    """The error names the number of connections."""
    begun, go = threading.Event(), threading.Event()
    with opened(database, max_connections=1, pool_timeout=0.1) as server:
        holding = server.run(lambda _one: (begun.set(), go.wait(30)), write=False)
        assert begun.wait(30)
        with pytest.raises(StoreBusy, match="all 1 connections"):
            server.run(add, write=True, namespace="n").result()
        go.set()
        holding.result()
        assert 1 == server.run(add, write=True, namespace="n").result()


def test_pool_reconnects_after_server_restart(own_postgres):
    """While the server is down every call raises a typed error; then the same object works again."""
    with opened(own_postgres.url) as server:
        kept = [server.run(lambda one: one.fetch("SELECT pg_sleep(0.05)"), write=False) for _ in range(2)]
        assert 2 == len([one.result() for one in kept])

        def plan(connection):
            add(connection)
            own_postgres.stop("immediate")
            add(connection)

        with pytest.raises(StoreUnreachable):
            server.run(plan, write=True, namespace="n").result()
        for write in (False, True):
            with pytest.raises(StoreUnreachable, match="cannot be reached"):
                server.run(lambda one: one.fetch("SELECT 1"), write=write).result()
        own_postgres.start()
        assert 0 == server.run(lambda one: one.fetch("SELECT count(*) FROM rows"), write=False).result()[0][0]
        assert 1 == server.run(add, write=True, namespace="n").result()
        # The next transaction must detect dead idle connections when it begins.
        own_postgres.stop("immediate")
        own_postgres.start()
        assert 1 == server.run(add, write=True, namespace="n").result()


# Secrets.


def failures(database, own_port):
    """Yield calls that fail in different ways, with a password in the URL."""
    parts = urlsplit(database)
    name = parts.path[1:]
    there = f"{parts.hostname}:{parts.port}"

    def run(plan, **how):
        with opened(in_database(database, name, user="postgres", password=SECRET)) as server:
            assert SECRET not in repr(server)
            server.run(plan, **{"write": True, **how}).result()

    yield lambda: PostgresPool.open(f"postgresql://needs_password:{SECRET}@{there}/{name}")
    yield lambda: PostgresPool.open(f"postgresql://postgres:{SECRET}@{there}/no_such_database")
    yield lambda: PostgresPool.open(f"postgresql://postgres:{SECRET}@127.0.0.1:{own_port}/{name}")
    yield lambda: PostgresPool.open(f"postgresql://postgres:{SECRET}@127.0.0.1:port/{name}")
    for url in (
        f"postgres@{there}/{name}?password={SECRET}&sslmode=nonsense",
        f"postgres:{SECRET}@[::bad/{name}",
        f"postgres:{SECRET}@127.0.0.1:99999/{name}",
        # These characters must be percent-encoded in a URL.
        f"postgres:{SECRET}/a@{there}/{name}",
        f"postgres:a?{SECRET}@{there}/{name}",
        f"postgres:{SECRET}#a@{there}/{name}",
        f"postgres:{SECRET}",
        f"postgres:{SECRET}@{there}/{name}\udc80",
        f"postgres:{SECRET}@{there}/{name}?sslmode=require",
        f"postgres:{SECRET}@{there}/{name}?no_such_option={SECRET}",
        f"postgres:{SECRET}@{there}/{name}?target_session_attrs=standby",
        f"postgres:{SECRET}@{there}/{name}?target_session_attrs=nonsense",
        f"postgres:{SECRET}@127.0.0.1:{own_port},127.0.0.1:{own_port}/{name}",
        f"postgres:{SECRET}@unknown.invalid/{name}",
    ):
        yield lambda url=url: PostgresPool.open(f"postgresql://{url}")
    for sql in (f"SELECT '{SECRET}' +", f"SELECT '{SECRET}'::int", f"SELECT 1 / (length('{SECRET}') - 11)"):
        yield lambda sql=sql: run(lambda one: one.fetch(sql))
    yield lambda: run(lambda one: one.fetch("SELECT $1::int", SECRET))
    yield lambda: run(lambda one: one.fetch("SELECT $1::text::int", SECRET))
    yield lambda: run(lambda one: [one.execute("INSERT INTO rows VALUES ('', $1, '')", SECRET) for _ in range(2)])
    several = "INSERT INTO rows SELECT '', unnest($1::text[]), ''"
    yield lambda: run(lambda one: one.execute(several, [SECRET, SECRET]))


def unknown_host(host, *arguments, known=socket.getaddrinfo, **keywords):
    """Simulate a resolver that does not know this host, without a network query."""
    if host == "unknown.invalid":
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return known(host, *arguments, **keywords)


def test_errors_contain_no_password_statement_or_value(database, unused_tcp_port, monkeypatch):
    """Neither an error nor its causes contain one of these; all errors are typed, and connection errors have a hint."""
    monkeypatch.setattr(socket, "getaddrinfo", unknown_host)
    fails = list(failures(database, unused_tcp_port))
    for number, fail in enumerate(fails):
        with pytest.raises(MamaStructsError) as caught:
            fail()
        error = caught.value
        assert error.hint or number >= ADDRESSES
        told = "".join(traceback.format_exception_only(error)) + repr(error) + repr(vars(error))
        while error is not None:
            told += f"{error!r} {error}"
            error = error.__cause__ or error.__context__
        assert SECRET not in told
        assert "SELECT" not in told
        assert "INSERT" not in told
    assert ADDRESSES + 7 == len(fails)
