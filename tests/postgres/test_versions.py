"""Migration during an open session, and server settings that lose acknowledged saves."""

import asyncio
import contextlib
import threading
from urllib.parse import urlsplit

import asyncpg
import pytest
from memory_helpers import SMALL
from postgres_helpers import administer, wait_until
from version_helpers import accepted_writes, fill

from mama_structs import Session, admin
from mama_structs.errors import StoreBusy, StoreError
from mama_structs.settings import ServerSettings
from mama_structs.storage.postgres import schema_migrations as migrating
from mama_structs.storage.postgres.leases import Leases
from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.postgres.store import PostgresStorage

NEWER = "written by a newer version"
MIGRATED = "INSERT INTO mama_structs.migrations (version, name) VALUES (9999, 'later')"
SETTING = "SELECT current_setting('synchronous_commit') AS found"
ROWS = (
    "SELECT 'rows', key, value FROM mama_structs.rows UNION ALL SELECT 'memories', id, entry FROM mama_structs.memories"
)
WAITING = """
SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = database
    WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()
"""


@contextlib.contextmanager
def opened(url, **options):
    server = PostgresPool.open(url, options=ServerSettings(**options))
    try:
        yield server
    finally:
        server.close()


def rows_of(url):
    """Return all stored rows of memories and refs."""
    return administer(url, f"{ROWS} ORDER BY 1, 2")


def put(connection, key="a"):
    """Write a row."""
    connection.execute("INSERT INTO rows (namespace, key, value) VALUES ('n', $1, '')", key)


async def test_session_writes_raise_when_database_was_migrated(own_database):
    """An open session of an older version can read a migrated database but not write to it."""
    session = await Session.open(own_database, conversation="talk", embedder=SMALL)
    known = await fill(session)
    before, count = rows_of(own_database), await session.memories.count()
    administer(own_database, MIGRATED)

    assert [] == await accepted_writes(session, known, StoreError, NEWER)
    assert count == await session.memories.count()
    with pytest.raises(StoreError, match=NEWER):
        await session.close()
    assert before == rows_of(own_database)
    administer(own_database, "DELETE FROM mama_structs.migrations WHERE version = 9999")
    await session.close()


def test_claim_raises_when_database_was_migrated(own_database):
    """An older version neither claims nor renews a name."""
    with opened(own_database) as server:
        leases = Leases(PostgresPool.open(own_database), seconds=30)
        leases.claim("kept", "n")
        held = administer(own_database, "SELECT * FROM mama_structs.leases")
        administer(own_database, MIGRATED)

        for call in (lambda: leases.claim("another", "n"), leases.renew):
            with pytest.raises(StoreError, match=NEWER):
                call()
        assert held == administer(own_database, "SELECT * FROM mama_structs.leases")
        administer(own_database, "DELETE FROM mama_structs.migrations WHERE version = 9999")
        leases.close()
        assert not server.is_read_only


def test_write_raises_when_the_database_was_replaced_by_an_older_one(own_database):
    """An older backup in place of the database is not written to."""
    with opened(own_database) as server:
        newest = administer(own_database, "SELECT max(version) FROM mama_structs.migrations")[0][0]
        administer(own_database, f"DELETE FROM mama_structs.migrations WHERE version = {newest}")

        with pytest.raises(StoreError, match=r"older version.*open a new one"):
            server.run(put, write=True, namespace="n").result()
    assert [] == rows_of(own_database)


def test_write_that_waits_for_a_migration_raises_when_it_is_committed(own_database):
    """A write that begins during a migration waits for it, and then writes nothing."""

    async def migrate(begun, go_on):
        connection = await asyncpg.connect(own_database)
        async with connection.transaction():
            await connection.execute(f"SELECT pg_advisory_xact_lock({migrating.MIGRATION_LOCK_ID})")
            await connection.execute(MIGRATED)
            begun.set()
            await asyncio.to_thread(go_on.wait, 60)
        await connection.close()

    begun, go_on = threading.Event(), threading.Event()
    migration = threading.Thread(target=lambda: asyncio.run(migrate(begun, go_on)))
    with opened(own_database) as server:
        migration.start()
        assert begun.wait(60)
        writing = [server.run(put, write=True, namespace=name) for name in ("n", None)]
        wait_until(lambda: len(administer(own_database, WAITING)) == len(writing))
        go_on.set()
        migration.join()

        for one in writing:
            with pytest.raises(StoreError, match=NEWER):
                one.result()
    assert [] == rows_of(own_database)


def test_migration_waits_for_the_transactions_of_an_older_version(own_database, monkeypatch):
    """A migration cannot begin between the check of a write transaction and its commit."""
    files = migrating.load_migrations()
    later = [
        *files,
        (files[-1][0] + 1, "later", "CREATE TABLE later (rows bigint); INSERT INTO later SELECT count(*) FROM rows"),
    ]
    begun, go_on = threading.Event(), threading.Event()

    def plan(connection):
        begun.set()
        assert go_on.wait(60)
        put(connection)

    with opened(own_database) as server:
        writing = server.run(plan, write=True, namespace="n")
        assert begun.wait(60)
        monkeypatch.setattr(migrating, "load_migrations", lambda: later)
        newer = threading.Thread(target=lambda: PostgresPool.open(f"{own_database}?application_name=newer").close())
        newer.start()
        wait_until(lambda: administer(own_database, WAITING))
        go_on.set()
        writing.result()
        newer.join()

        with pytest.raises(StoreError, match=NEWER):
            server.run(lambda connection: put(connection, "b"), write=True, namespace="n").result()
    assert [(1,)] == [tuple(row) for row in administer(own_database, "SELECT rows FROM mama_structs.later")]


def test_write_gives_up_when_a_migration_takes_longer_than_it_waits(own_database):
    """A write waits for a migration no longer than for another writer."""
    held = f"BEGIN; SELECT pg_advisory_xact_lock({migrating.MIGRATION_LOCK_ID})"

    async def hold(server):
        connection = await asyncpg.connect(own_database)
        await connection.execute(held)
        try:
            with pytest.raises(StoreBusy, match="another host held the lock"):
                await asyncio.wrap_future(server.run(put, write=True, wait=0.05))
        finally:
            await connection.close()

    with opened(own_database) as server:
        asyncio.run(hold(server))
    assert [] == rows_of(own_database)


@pytest.mark.parametrize("level", ["role", "database", "address"])
def test_write_transactions_are_durable_when_synchronous_commit_is_off(own_database, level):
    """At any level of synchronous_commit=off, writes of memories, refs and claims wait for the disk."""
    name = urlsplit(own_database).path[1:]
    url, setting = own_database, "SET synchronous_commit = off"
    if level == "address":
        url = f"{own_database}?options=-c%20synchronous_commit%3Doff"
    elif level == "database":
        administer(own_database, f"ALTER DATABASE {name} {setting}")
    else:
        # Change the setting for this database only, because all tests share the role.
        administer(own_database, f"ALTER ROLE postgres IN DATABASE {name} {setting}")
    with opened(url) as server:
        storage = PostgresStorage(PostgresPool.open(url), namespace="n")
        found = [
            server.run(lambda one: one.fetch(SETTING)[0]["found"], write=True, namespace=space, exclusive=exclusive)
            for space in ("n", None)
            for exclusive in (True, False)
        ]
        of_rows = asyncio.run(storage.transact(lambda rows: rows.connection.fetch(SETTING)[0]["found"]))
        storage.close_now()

        assert ["on"] * 5 == [*(one.result() for one in found), of_rows]
        # A read transaction keeps the configured setting.
        assert "off" == server.run(lambda one: one.fetch(SETTING)[0]["found"], write=False).result()


@pytest.mark.parametrize(("given", "used"), [("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")])
def test_stronger_synchronous_commit_is_kept(own_database, given, used):
    """A configuration that waits for replicas to apply a change is not weakened."""
    name = urlsplit(own_database).path[1:]
    administer(own_database, f"ALTER DATABASE {name} SET synchronous_commit = {given}")
    with opened(own_database) as server:
        assert used == server.run(lambda one: one.fetch(SETTING)[0]["found"], write=True, namespace="n").result()


async def test_acknowledged_saves_survive_server_kill_when_synchronous_commit_is_off(own_postgres):
    """Acknowledged memories, records and refs exist after the server was killed."""
    administer(
        own_postgres.url,
        # Delay the background writer. Otherwise it would flush commits that were not durable when they returned.
        "ALTER SYSTEM SET wal_writer_delay = '10s'",
        "ALTER ROLE postgres SET synchronous_commit = off",
        "SELECT pg_reload_conf()",
    )
    async with Session.open(own_postgres.url, conversation="talk", embedder=SMALL) as session:
        saved = [(await session.memories.save_insight(f"insight {number}")).id for number in range(5)]
        await session.observe('<ref id="plan">shields first</ref>')
        await session.records.put(("raid",), "plan", {"step": 1})
        own_postgres.stop("immediate")
        own_postgres.start()
        assert set(saved) <= {memory.id for memory in await session.memories.list(limit=20)}
        assert {"step": 1} == (await session.records.get(("raid",), "plan")).value
    async with Session.open(own_postgres.url, conversation="talk", embedder=SMALL) as session:
        assert "shields first" == session.refs.get("ref:plan").text


async def test_check_reports_settings_of_the_server_that_lose_data(own_postgres):
    """fsync=off and an unlogged table are errors, other settings are warnings, and a durable server has no finding."""

    async def found():
        async with Session.open(own_postgres.url, embedder=SMALL) as session:
            report = await admin.check(session)
        return report.ok, [(one.severity, one.message.split(":")[0]) for one in report.issues if one.kind == "server"]

    assert (True, []) == await found()
    own_postgres.stop()
    own_postgres.start("fsync=off", "full_page_writes=off")
    administer(
        own_postgres.url,
        "ALTER ROLE postgres SET synchronous_commit = off",
        "ALTER TABLE mama_structs.notes SET UNLOGGED",
    )

    expected = [
        ("error", "the server has fsync=off"),
        ("warning", "the server has full_page_writes=off"),
        ("error", "the table notes is unlogged"),
        ("warning", "this user, database or server has synchronous_commit=off"),
    ]
    assert (False, expected) == await found()
