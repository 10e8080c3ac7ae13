"""Sessions on a server: memories, refs and conversations of several hosts."""

import asyncio
import contextlib
import re
import struct
import threading
import time
import uuid
from pathlib import Path

import pytest
from memory_helpers import SMALL
from postgres_helpers import administer, in_database, wait_until

from mama_structs import Filter, Session, Settings, admin
from mama_structs.cli.main import main
from mama_structs.errors import InvalidArgument, StoreBusy, StoreReadOnly, StoreUnreachable
from mama_structs.session.recall_history import read_recall_history
from mama_structs.settings import ServerSettings
from mama_structs.storage.postgres.pool import PostgresPool, open_pools
from mama_structs.testing.fakes import FakeClock

BOUNDED = Settings(server=ServerSettings(pool_timeout=5.0, statement_timeout=5.0))
WRITING = "BEGIN; SELECT pg_current_xact_id()"
REPLAYED = "SELECT 1 FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"
SLEEPS = """
CREATE FUNCTION sleeps() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$
"""
EXPIRE = "UPDATE mama_structs.leases SET expires = clock_timestamp() - interval '1 s'"


def opened(url, conversation=None, **options):
    return Session.open(url, conversation=conversation, embedder=SMALL, **options)


def as_another(url):
    """Return another URL of the same database. The two URLs have separate connection pools."""
    return f"{url}?application_name=another"


async def test_read_only_calls_create_nothing_in_empty_database(empty_database, capsys):
    """A wrong URL must not look like an empty store, so it is rejected and no table is created."""
    for looking in (admin.list_conversations, admin.list_namespaces):
        with pytest.raises(InvalidArgument, match="the database contains no session yet"):
            await looking(empty_database)
    assert 1 == await asyncio.to_thread(main, ["list", empty_database])
    assert "no session yet" in capsys.readouterr().err

    assert [] == administer(empty_database, "SELECT 1 FROM pg_namespace WHERE nspname = 'mama_structs'")


async def test_session_finds_what_earlier_session_stored(database):
    """Memories, refs and the log of recalled facts are stored as in a directory."""
    async with opened(database, "talk") as session:
        saved = await session.memories.save_decision("shields go first", topic="shield", reasoning="raids doubled")
        await session.observe('<ref id="plan">shields, then fleets</ref>')
        assert "shields go first" in (await session.recall("what of the shields?")).text
        assert (await admin.check(session)).ok
        assert 1 == session.stats()["memories"]["memories"]
        await admin.maintain(session)
        await session.flush()
    async with opened(database, "talk") as session:
        assert saved.id == (await session.memories.search("shields"))[0].memory.id
        assert "shields, then fleets" == session.refs.get("ref:plan").content.text
        assert "" == (await session.recall("what of the shields?")).text
        async with session.fork("branch") as fork:
            await fork.observe('<ref id="own">mine</ref>')
    assert {"talk", "branch"} == {one.name for one in await admin.list_conversations(database)}
    assert ("default",) == await admin.list_namespaces(database)
    await admin.delete_conversation(database, "talk")
    async with opened(database, "branch") as session:
        assert "shields, then fleets" == session.refs.get("ref:plan").content.text
    assert (await session_check(database)).ok


async def session_check(url):
    async with opened(url) as session:
        return await admin.check(session)


async def test_conversation_is_open_on_one_host_at_a_time(database):
    """Other hosts are rejected until it is closed or its lease has expired; a host that lost it gets an error."""
    here = await opened(database, "talk")
    await here.observe('<ref id="a">1</ref>')
    with pytest.raises(StoreBusy, match="open in another"):
        await opened(as_another(database), "talk")
    there = await opened(as_another(database))
    assert {"talk": True} == {
        one.name: one.is_open for one in await admin.list_conversations(database) if one.name == "talk"
    }
    administer(database, EXPIRE)
    taken = await opened(as_another(database), "talk")
    assert "1" == taken.refs.get("ref:a").content.text
    with pytest.raises(StoreBusy, match="taken a conversation over"):
        await here.observe('<ref id="a">2</ref>')
    await taken.observe('<ref id="b">3</ref>')
    await taken.close()
    await here.close()
    await there.close()

    async with opened(database, "talk") as session:
        assert {"ref:a": "1", "ref:b": "3"} == {
            handle: session.refs.get(handle).content.text for handle in ("ref:a", "ref:b")
        }


async def test_hosts_see_each_others_memories(database):
    """Acknowledged memories are visible to other hosts at the next call, and namespaces are separate."""
    here = await opened(database)
    there = await opened(as_another(database))
    apart = await opened(as_another(database), namespace="apart")
    saved = await here.memories.save_insight("the reactor at 2-1 is cold")

    assert saved.id == (await there.memories.list())[0].id
    assert [] == await apart.memories.list()
    await asyncio.gather(here.close(), there.close(), apart.close())


@pytest.mark.parametrize("is_heard", [True, False], ids=["answer lost", "question lost"])
async def test_save_is_atomic_when_connection_breaks_at_any_message(database, proxy, is_heard):
    """Links, evidence and vectors included: a failed save can be repeated, and nothing is stored twice."""
    proxy.is_heard = is_heard
    cut, outcomes = [], []
    async with opened(proxy.url, settings=BOUNDED) as session, opened(as_another(database)) as there:
        first = await session.memories.save_decision("use tokens", topic="auth", reasoning="stateless")
        for at in range(1, 100):
            proxy.at = proxy.seen + at
            text = f"use tokens {at}"
            try:
                await session.memories.save_decision(
                    text, topic="auth", reasoning="why", supersedes=first.id, evidence=["x" * at]
                )
            except StoreUnreachable as error:
                cut.append(error)
            is_over, proxy.at = proxy.at is not None, None
            found = [one for one in await there.memories.list(limit=200) if one.content == text]
            outcomes.append(len(found))
            assert outcomes[-1] == at - len(cut) - sum(outcomes[:-1])
            for one in found:
                assert [first.id] == [
                    link.to_id for link in await there.memories.links(one.id)
                    if link.from_id == one.id and link.link_type == "evolution"
                ]  # fmt: skip
            if is_over:
                break
        assert (await admin.check(there)).ok
        assert (await admin.check(session)).ok
    assert cut
    assert not [error for error in cut if "may be stored" in str(error)]
    assert outcomes[-1] == 1
    assert at > 4


CHANGES = {
    "save_many": lambda m, ids: m.save_many(
        [{"type": "context", "content": text} for text in ("one more", "two more")]
    ),
    "set_outcome": lambda m, ids: m.set_outcome(ids[0], "FAILED", reason="it did not hold"),
    "supersede": lambda m, ids: m.supersede(ids[0], "use sessions", reasoning="can be ended", implements=[ids[1]]),
    "link": lambda m, ids: m.link(ids[0], ids[1], "contradicts"),
    "erase": lambda m, ids: m.erase(ids[1]),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_change_is_atomic_when_connection_breaks_at_any_message(database, proxy, tmp_path, monkeypatch, what):
    """After a failure the state is unchanged, and the change can be repeated."""
    # Raise the time limit of transactions, so that all saves share one.
    monkeypatch.setattr("mama_structs.memory.engines.postgres.writer.MAX_TRANSACTION_SECONDS", 3600)

    async def state():
        await admin.export_jsonl(there.memories, tmp_path / "export")
        return (tmp_path / "export").read_text()

    failed = []
    async with opened(proxy.url, settings=BOUNDED) as session, opened(as_another(database)) as there:
        # `erase` sends many messages. A break fails the call at few of them, so sample enough to hit several.
        for at in range(1, 200, 3 if what == "erase" else 1):
            ids = [
                (await session.memories.save_decision("use tokens", topic="auth", reasoning="stateless")).id,
                (await session.memories.save_insight("tea is served at four")).id,
            ]
            before = await state()
            proxy.at = proxy.seen + at
            try:
                await CHANGES[what](session.memories, ids)
            except StoreUnreachable as error:
                failed.append(str(error))
                # `erase` also raises if it has deleted the memories but could not reclaim their space.
                is_right = before == await state() or what == "erase"
            else:
                is_right = before != await state()
            assert is_right, (at, failed)
            is_over, proxy.at = proxy.at is not None, None
            if is_over:
                break
        assert (await admin.check(there)).ok
    assert 1 < len(failed) < at
    assert not [error for error in failed if "may be stored" in error]


async def test_refs_are_written_once_when_connection_breaks_at_any_message(database, proxy):
    """Refs that could not be written stay pending, and the next flush writes them."""
    cut = 0
    async with opened(proxy.url, "talk", settings=BOUNDED) as session:
        for at in range(1, 100):
            proxy.at, proxy.is_heard = proxy.seen + at, at % 2 == 0
            try:
                await session.observe(f'<ref id="a">{at}</ref>')
            except StoreUnreachable:
                cut += 1
            is_over, proxy.at = proxy.at is not None, None
            await session.flush()
            if is_over:
                break
    async with opened(database, "talk") as session:
        assert [str(number + 1) for number in range(at)] == [
            session.refs.get(handle).text for handle in session.refs.versions("a")
        ]
        assert (await admin.check(session)).ok
    assert cut
    assert at > 3


async def test_opening_cancelled_at_any_message_releases_everything(database, proxy):
    """Neither a claim nor a connection remains, so that another host can open the conversation."""

    async def freed():
        for _ in range(500):
            with contextlib.suppress(StoreBusy):
                async with opened(as_another(database), "talk"):
                    return
            await asyncio.sleep(0.02)
        raise AssertionError("it stays claimed")

    loop = asyncio.get_running_loop()
    async with opened(proxy.url, settings=BOUNDED):
        for at in range(1, 100):
            opening = asyncio.ensure_future(opened(proxy.url, "talk", settings=BOUNDED))
            proxy.at = proxy.seen + at
            proxy.instead = lambda opening=opening: loop.call_soon_threadsafe(opening.cancel)
            await asyncio.wait([opening])
            if is_over := proxy.at is not None or not opening.cancelled():
                proxy.at = None
                await opening.result().close()
            await freed()
            if is_over:
                break
    assert at > 3
    assert [] == administer(database, "SELECT name FROM mama_structs.leases")


async def test_user_with_rights_on_own_schema_uses_all_features(empty_database, plain_database):
    """Row-level security applies to this user: namespaces are separate, and `read_namespaces` works."""
    administer(empty_database, "CREATE EXTENSION vector")
    async with opened(plain_database, namespace="a") as session:
        saved = await session.memories.save_insight("the reactor is cold")
        await session.observe('<ref id="plan">warm it</ref>')
    async with opened(plain_database, namespace="b", read_namespaces=["a"]) as session:
        own = await session.memories.save_insight("the reactor is far")
        assert {saved.id, own.id} == {hit.memory.id for hit in await session.memories.search("reactor")}
        assert (await admin.check(session)).ok
    async with opened(plain_database, namespace="b") as session:
        assert [own.id] == [hit.memory.id for hit in await session.memories.search("reactor")]
        erased = await session.memories.erase([own.id])
        assert 1 == erased.count
        assert any("write-ahead log" in place for place in erased.out_of_scope)
    assert ("a",) == tuple(one for one in await admin.list_namespaces(plain_database) if one == "a")


@pytest.mark.parametrize("held", ["BEGIN ISOLATION LEVEL REPEATABLE READ; TABLE memories", WRITING])
async def test_forget_reclaims_space_when_no_older_transaction_is_open(own_database, held):
    """The receipt names an older transaction, whether it reads or may write; a later call finishes the erasure."""
    asyncpg = pytest.importorskip("asyncpg")

    def sizes():
        names = ("memories", "terms", "pieces", "texts", "rows")
        asked = "SELECT pg_relation_size('mama_structs.{}')"
        return {name: administer(own_database, asked.format(name))[0][0] for name in names}

    async with opened(own_database) as session:
        await session.memories.save_decision("cold", topic="reactor", reasoning="a mail", evidence=["x" * 5000])
        other = await asyncpg.connect(own_database)
        await other.execute("SET search_path TO mama_structs")
        await other.execute(held)
        receipt = await session.memories.erase(where=Filter(topic="reactor"))
        assert 1 == receipt.count
        assert ["a transaction", True] == [receipt.pending[0].partition("a transaction")[1], sizes()["memories"] > 0]
        await other.close()
        await admin.maintain(session)
        assert {0} == set(sizes().values())


async def test_forgotten_text_is_in_no_row_or_index_on_disk(own_database):
    """No page item of a table, TOAST table or index contains it; only free space of pages and the log may."""
    database = own_database
    # Fill the tables, because VACUUM skips indexes by default if the ratio of deleted rows is small.
    administer(database, *(OTHERS.format(*one) for one in OTHER_ROWS), "VACUUM")
    word = f"word{uuid.uuid4().hex[:12]}"
    long = " ".join(f"{at * at * 7919 % 100_003}" for at in range(1_200))
    async with opened(database) as session:
        await session.memories.save_context("what stays")
        saved = await session.memories.save_decision(
            f"{word} {long}", topic=word, reasoning=word, evidence=[f"{word} {long}"]
        )
        more = await session.memories.save_many([{"type": "context", "content": f"{word} {at}"} for at in range(30)])
        assert word in (await session.recall(f"what is known of {word}?")).text
        await session.flush()
        # Collect statistics, as autovacuum may do at any time. Statistics also contain words and ids.
        administer(database, "ANALYZE", "CHECKPOINT")
        before, planned = items_with(word, database), administer(database, STATISTICS.format(word))
        receipt = await session.memories.erase([saved.id, *(memory.id for memory in more)])
        administer(database, "CHECKPOINT")

    names = {row["attname"] for row in planned}
    assert 30 < len(before)
    assert "term" in names
    assert not {"entry", "terms", "text", "topic_terms", "value"} & names
    assert () == receipt.pending
    assert [] == administer(database, STATISTICS.format(word))
    # The server vacuums its catalog only when no transaction sees the old rows, so retry.
    for _ in range(60):
        administer(database, "VACUUM pg_statistic", "CHECKPOINT")
        if not items_with(word, database):
            break
        await asyncio.sleep(0.5)
    assert [] == items_with(word, database)
    administer(database, "VACUUM FULL", "CHECKPOINT")
    assert [] == [path.name for path in files_of(database) if word.encode() in bytes_of(path)]


OTHERS = "INSERT INTO mama_structs.{} SELECT 'another', {} FROM generate_series(1, 20000) AS i"
OTHER_ROWS = (
    ("terms", "'t' || i, i, 1, 1"),
    ("memories", "i, 'id' || i, 'x', i, 0, 'top', 0, 0, i, 0, 0, 0, 1, '{}', '{}', '{}'"),
    ("links", "'id' || i, i, i, 0, 0, 1, i, '', 'x'"),
)
STATISTICS = (
    "SELECT DISTINCT attname FROM pg_stats WHERE schemaname = 'mama_structs' "
    "AND concat(most_common_vals, histogram_bounds, most_common_elems) LIKE '%{}%'"
)


def files_of(database):
    """Return the files of a database's tables and indexes, or skip the test."""
    settings = "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()"
    ((folder, place),) = administer(database, settings)
    tables = Path(folder, "base", str(place))
    if not tables.is_dir():
        pytest.skip("the server's files are on another machine")
    return [*tables.iterdir()]


def bytes_of(path):
    """Return the content of a file, or nothing if the server deletes it before the read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def items_with(word, database):
    """Return a file name for each occurrence of a text in a page, except in the page's free space."""
    found = []
    for path in files_of(database):
        data = path.read_bytes()
        for place in (one.start() for one in re.finditer(word.encode(), data)):
            # Bytes 12 to 15 of a page contain the start and the end of its free space (PostgreSQL's bufpage.h).
            lower, upper = struct.unpack_from("<HH", data, place // 8192 * 8192 + 12)
            found += [] if lower <= place % 8192 < upper else [path.name]
    return found


async def test_session_does_not_show_password(database):
    """Representations of a session contain only user, host and database."""
    url = in_database(database, database.rpartition("/")[2], user="postgres", password="open-sesame")
    async with opened(url) as session:
        shown = f"{session!r} {session.location} {session._repr_html_()} {await admin.list_conversations(url)!r}"
        assert "postgresql://postgres@127.0.0.1" in shown
        assert "open-sesame" not in shown
        with pytest.raises(InvalidArgument, match="pg_dump -n mama_structs"):
            await admin.backup(session, "somewhere")


async def test_namespace_with_nul_is_rejected(database):
    """A directory accepts NUL in the name of a namespace, but a server cannot store it."""
    with pytest.raises(InvalidArgument, match="namespace whose name has a NUL"):
        await opened(database, namespace="a\0b")


async def test_command_line_works_on_server(database, capsys, tmp_path, monkeypatch):
    """Backups are refused with a hint at pg_dump, and no command shows the password."""
    url = in_database(database, database.rpartition("/")[2], user="postgres", password="open-sesame")
    async with opened(url) as session:
        await session.memories.save_insight("the reactor is cold")
    commands = (
        ["check", url], ["list", url], ["erase", "--about", "1-1", "--yes", url], ["stats", url],
        ["conversations", "assign", "none", url, "--namespace", "b"],
        ["backup", url, str(tmp_path / "copy")], ["copy", url, "other.mama"], ["view", url],
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    codes = [await asyncio.to_thread(main, command) for command in commands]
    said = "".join(capsys.readouterr())

    assert [0, 0, 0, 0, 1, 1, 0, 0] == codes, said
    assert "reactor is cold" in said
    assert "pg_dump" in said
    assert (tmp_path / "memories.html").exists()
    assert "open-sesame" not in said


async def test_session_survives_server_restart(own_postgres):
    """Rows enqueued while the server is down are written once afterwards."""
    async with opened(own_postgres.url, "talk") as session:
        await session.observe('<ref id="a">1</ref>')
        own_postgres.stop("immediate")
        with pytest.raises(StoreUnreachable):
            await session.observe('<ref id="b">2</ref>')
        with pytest.raises(StoreUnreachable):
            await session.memories.save_insight("lost")
        with pytest.raises(StoreUnreachable):
            await session.memories.list()
        own_postgres.start()
        await session.flush()
        assert [] == await session.memories.list()
    async with opened(own_postgres.url, "talk") as session:
        assert {"1", "2"} == {session.refs.get(handle).content.text for handle in ("ref:a", "ref:b")}


@pytest.mark.parametrize("hangs", ["lock", "trigger", "pool"])
async def test_call_raises_busy_when_server_hangs(own_database, hangs):
    """Locked tables, sleeping triggers and busy connections raise StoreBusy, and nothing is stored."""
    longest = 2 if hangs == "trigger" else 60
    settings = Settings(server=ServerSettings(max_connections=1, pool_timeout=0.1, statement_timeout=longest))
    begun, go = threading.Event(), threading.Event()
    async with opened(own_database, "talk", settings=settings) as session:
        saved = await session.memories.save_insight("the reactor is cold")
        other = PostgresPool.open(own_database if hangs == "pool" else as_another(own_database))
        administer(own_database, SLEEPS)
        if hangs == "trigger":
            administer(
                own_database, "CREATE TRIGGER sleeps BEFORE INSERT ON mama_structs.terms EXECUTE FUNCTION sleeps()"
            )
        else:
            lock = "SELECT 1" if hangs == "pool" else "LOCK TABLE mama_structs.memories"
            holding = other.run(lambda one: (one.execute(lock), begun.set(), go.wait(30)), write=True)
            assert begun.wait(30)
        for _ in range(2):
            with pytest.raises(StoreBusy) as caught:
                await session.memories.save_insight("the yard is warm")
            assert caught.value.hint
        if hangs == "trigger":
            administer(own_database, "DROP TRIGGER sleeps ON mama_structs.terms")
        else:
            with pytest.raises(StoreBusy):
                await session.memories.search("reactor")
            go.set()
            holding.result()
        other.close()
        assert [saved.id] == [memory.id for memory in await session.memories.list()]
        await session.memories.save_insight("the yard is warm")
        assert (await admin.check(session)).ok


async def test_host_clock_may_be_an_hour_off(database):
    """Each host sees all memories, none is pruned too early, and conversations stay claimed."""
    hosts = []
    for number, off in enumerate((3_600, -3_600)):
        session = await opened(f"{database}?application_name=host{number}", f"talk{number}", settings=BOUNDED)
        FakeClock(start=time.time() + off).drive(session)
        hosts.append(session)
    ahead, behind = hosts
    first = await ahead.memories.save_decision("use tokens", topic="auth", reasoning="stateless")
    second = await behind.memories.supersede(first.id, "use sessions", reasoning="can be ended")
    third = await ahead.memories.save_context("auth: the sessions are kept for a day")
    for session in hosts:
        await admin.maintain(session)
        assert {first.id, second.id, third.id} == {one.id for one in await session.memories.list()}
        assert [second.id, first.id] == [one.id for one in (await session.memories.history(first.id)).memories]
        assert {second.id, third.id} <= {hit.memory.id for hit in await session.memories.search("auth sessions")}
        assert (await admin.check(session)).ok
        for number in range(2):
            with pytest.raises(StoreBusy, match="open in another"):
                await opened(as_another(database), f"talk{number}")
    for session in hosts:
        await session.close()


def of_both(primary, replica):
    """Return a URL that names both servers and connects to the primary."""
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
    return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=primary"


@contextlib.contextmanager
def replicated(primary):
    """Run a replica of a server."""
    replica = primary.replica().start()
    try:
        yield replica
    finally:
        replica.stop("immediate")


async def test_session_continues_after_failover_to_replica(own_postgres):
    """Sessions on the replica and sessions whose URL names both servers continue after its promotion."""
    async with opened(own_postgres.url) as session:
        saved = await session.memories.save_insight("the reactor is cold")
    with replicated(own_postgres) as replica:
        here = await opened(of_both(own_postgres, replica), "talk", settings=BOUNDED)
        await here.observe('<ref id="a">1</ref>')
        async with opened(replica.url) as session:
            assert [saved.id] == [memory.id for memory in await session.memories.list()]
            assert "the reactor is cold" in (await session.recall("is the reactor cold?")).text
            with pytest.raises(StoreReadOnly, match="name the primary"):
                await session.memories.save_insight("lost")
            wait_until(lambda: administer(own_postgres.url, REPLAYED))
            own_postgres.stop("immediate")
            with pytest.raises(StoreUnreachable):
                await here.memories.save_insight("lost")
            replica.promote()
            kept = await session.memories.save_insight("kept")
        also = await here.memories.save_insight("also kept")
        await here.observe('<ref id="a">2</ref>')
        assert {saved.id, kept.id, also.id} == {memory.id for memory in await here.memories.list()}
        assert (await admin.check(here)).ok
        await here.close()
        async with opened(replica.url, "talk") as session:
            assert "2" == session.refs.get("ref:a").content.text


async def test_failover_to_lagging_replica_invalidates_caches(own_postgres):
    """A synchronous replica has all acknowledged changes; after a failover to a lagging one caches are reset."""
    with replicated(own_postgres) as replica:
        here = await opened(of_both(own_postgres, replica), settings=BOUNDED)
        first = await here.memories.save_decision("use tokens", topic="auth", reasoning="stateless")
        administer(own_postgres.url, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        wait_until(lambda: administer(own_postgres.url, "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
        kept = await here.memories.supersede(first.id, "use sessions", reasoning="can be ended")
        administer(own_postgres.url, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        wait_until(lambda: not administer(own_postgres.url, "SHOW synchronous_standby_names")[0][0])
        administer(replica.url, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        wait_until(lambda: not administer(own_postgres.url, "SELECT 1 FROM pg_stat_replication"))
        lost = await here.memories.save_context("nobody else has this")
        await here.memories.link(first.id, lost.id, "refines")
        # This query fills the client's cache of links.
        assert {kept.id, lost.id} == {one.memory.id for one in await here.memories.traverse(first.id, max_depth=1)}
        own_postgres.stop("immediate")
        replica.promote()
        async with opened(replica.url) as there:
            # Make as many changes as were lost. Then the change numbers are equal, although the contents differ.
            new = await there.memories.save_context("after it")
            await there.memories.link(first.id, new.id, "refines")
            assert {kept.id, new.id} == {one.memory.id for one in await here.memories.traverse(first.id, max_depth=1)}
            assert (await admin.check(there)).ok
        await here.close()


async def test_unreachable_database_raises_typed_error(database):
    """The error is raised immediately, and no connection stays open."""
    before = len(open_pools._slots)
    with pytest.raises(StoreUnreachable):
        await opened("postgresql://postgres@127.0.0.1:1/none")
    with pytest.raises(InvalidArgument):
        Session.open("postgresql://a\0b")

    assert before == len(open_pools._slots)
    assert PostgresPool.open(database).close() is None


async def test_unnamed_fork_does_not_wait_for_server(database, monkeypatch):
    """The fork is usable immediately; other hosts see it and cannot open it once something is stored in it."""
    async with opened(database, "talk") as session:
        await session.observe('<ref id="plan">shields first</ref>')
        asking = []
        run = PostgresPool.run

        def noted(server, *given, **how):
            asking.append(threading.current_thread().name)
            return run(server, *given, **how)

        monkeypatch.setattr(PostgresPool, "run", noted)
        fork = session.fork()
        # A background thread renews the claims periodically. Ignore the calls of this thread.
        assert set() == {*asking} - {"mama-structs leases"}
        await fork.observe('<ref id="own">mine</ref>')
        with pytest.raises(StoreBusy, match="open in another"):
            await opened(as_another(database), fork.conversation)
        await fork.close()
        async with opened(as_another(database), fork.conversation) as there:
            assert "mine" == there.refs.get("ref:own").content.text
            assert "shields first" == there.refs.get("ref:plan").content.text


async def test_conversation_of_another_host_is_read_while_it_is_open(database):
    """A reader needs no lease. It sees the texts, and what was recalled."""
    async with opened(database, "monday") as writer, opened(as_another(database)) as reader:
        kept = await writer.memories.save("Logins are kept in Redis")
        recalled = await writer.recall("Where are logins kept?")
        await writer.observe('<ref id="plan">first</ref>')
        await writer.flush()

        stored = await reader._shared.home.read_conversation("monday", namespace="default")
        history = await read_recall_history(reader.memories, stored.recall_log)

        assert recalled
        assert stored.info.is_open
        assert ["first"] == [one.text for one in stored.entries.iter_entries()]
        assert [((kept.id,), "unchanged")] == [
            (tuple(one.id for one in item.memories), item.state) for item in history.items
        ]
