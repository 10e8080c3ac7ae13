"""HNSW indexes of large namespaces: search, building, replacing and dropping."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import timedelta

import asyncpg
import attrs
import numpy as np
import pytest
from memory_helpers import plain_memory
from postgres_helpers import administer, block, in_database

from mama_structs.errors import InvalidArgument, StoreBusy, StoreError
from mama_structs.memory.engines.postgres import hnsw_indexes as indexing
from mama_structs.memory.engines.postgres import queries as questions
from mama_structs.memory.engines.postgres.engine import PostgresEngines
from mama_structs.memory.engines.postgres.hnsw_indexes import NamespaceIndex, choose_index_type
from mama_structs.memory.engines.postgres.queries import NearestQuery, Statement, embedder_key, index_name
from mama_structs.memory.types.engine import EmbedderRecord, EngineFilter, NewMemory
from mama_structs.memory.types.model import MemoryType
from mama_structs.settings import MemorySettings, ServerSettings
from mama_structs.storage.postgres.pool import PostgresPool

RECORD = EmbedderRecord("drawn", "drawn", 8)
OTHER_RECORD = EmbedderRecord("other", "other", 4)
SETTINGS = MemorySettings(exact_up_to=100)
NAMES = (
    "SELECT relname, indisvalid FROM pg_index JOIN pg_class c ON c.oid = indexrelid "
    "WHERE indrelid = 'mama_structs.pieces'::regclass AND relname LIKE 'hnsw%' ORDER BY relname"
)
MADE = "SELECT indexrelid FROM pg_index JOIN pg_class c ON c.oid = indexrelid WHERE relname LIKE 'hnsw%'"
BUILDERS = (
    "SELECT pid FROM pg_stat_activity "
    "WHERE datname = current_database() AND query LIKE 'CREATE INDEX%' AND state = 'active'"
)


def units(*shape):
    drawn = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


VECTORS = units(300, 2, 8)
QUERY = units(8)


def memories(namespace="default", vectors=VECTORS, start=0):
    """
    Return memories with two chunks.

    Every tenth memory is an insight, and every thirtieth has the topic ``rare``.
    """
    kinds = MemoryType.INSIGHT, MemoryType.DECISION
    return [
        NewMemory(
            memory=attrs.evolve(
                plain_memory(
                    f"m_{number}",
                    "raid",
                    type=kinds[number % 10 > 0],
                    topic="often" if number % 30 else "rare",
                    mentions=["1-1"] if number % 3 else [],
                    at=number,
                ),
                namespace=namespace,
            ),
            vectors=own,
        )
        for number, own in enumerate(vectors, start)
    ]


async def fill(engine, new=None):
    new = memories(engine.namespace) if new is None else new
    await engine.write(lambda writer: writer.put_new(new, lambda _nodes: [()] * len(new)))


async def look(engine):
    """Wait for the running index build, and return the current search mode."""
    await engine.index.wait_until_idle()
    await engine.read(lambda reader: reader.change)
    return engine.figures()["vectors"]["mode"]


@contextlib.contextmanager
def at(url, **options):
    server = PostgresPool.open(url, options=ServerSettings(**options))
    try:
        yield server
    finally:
        server.close()


@contextlib.asynccontextmanager
async def held_up(url, mode="ROW EXCLUSIVE"):
    """Hold a table lock for which an index build must wait."""
    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(f"LOCK TABLE mama_structs.pieces IN {mode} MODE")
        yield
        await transaction.rollback()
    finally:
        connection.terminate()


async def until(url, sql):
    for _ in range(500):
        if found := administer(url, sql):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(sql)


def explained(server, engine, where):
    """Return the server's query plan for a nearest-neighbour search."""
    graph = engine.index.usable_index(engine._head)
    statement = Statement(engine.namespace)
    asked = NearestQuery(QUERY.tobytes(), 5, where, embedder_key(RECORD), graph).select_sql(statement, "q")
    sql = f"EXPLAIN WITH {', '.join(statement._tables)} {asked}"
    ask = server.run(
        lambda connection: connection.fetch(sql, *statement.arguments),
        write=False,
        namespace=engine.namespace,
        settings=NamespaceIndex.search_settings(graph),
    )
    return "\n".join(row[0] for row in ask.result())


def exactly(where, limit, query=QUERY):
    """Return the highest scores, computed by exact comparison."""
    best = [float((new.vectors @ query).max()) for new in memories() if where is None or where.matches(new.memory)]
    return sorted(best, reverse=True)[:limit]


WHERE = {
    "all": None,
    "most": EngineFilter(types=frozenset({MemoryType.DECISION})),
    "some": EngineFilter(mentions=frozenset({"1-1"})),
    "few": EngineFilter(topic="rare"),
    "old": EngineFilter(until=plain_memory("x", at=0).created_at + timedelta(seconds=40)),
    "none": EngineFilter(topic="nowhere"),
}


@pytest.fixture
def own(own_database):
    """A database whose planner prefers the index even for few rows."""
    administer(own_database, f"ALTER DATABASE {own_database.rpartition('/')[2]} SET enable_sort = off")
    return own_database


@pytest.fixture
async def engine(own):
    with at(own) as server:
        engine = await PostgresEngines(server).open("default", RECORD, SETTINGS)
        await fill(engine)
        assert "hnsw" == await look(engine)
        yield engine


async def test_large_namespace_gets_its_own_index(own):
    """Up to the limit searches are exact; above, an index of this namespace and embedder is built and used."""
    with at(own) as server:
        engine = await PostgresEngines(server).open("default", RECORD, SETTINGS)
        await fill(engine, memories(vectors=VECTORS[:50]))
        small = await look(engine), administer(own, NAMES)
        await fill(engine, memories(vectors=VECTORS[50:], start=50))
        large = await look(engine)
        name = index_name("default", embedder_key(RECORD))

        assert ("exact", []) == small
        assert "hnsw" == large
        assert [(name, True)] == [tuple(row) for row in administer(own, NAMES)]
        assert name in explained(server, engine, None)
        again = await PostgresEngines(server).open("default", RECORD, MemorySettings())
        assert "exact" == await look(again)


async def test_index_serves_namespace_with_special_characters(own):
    """A search names the namespace of its index as a literal, which is quoted."""
    namespace = "raids' \\ \u7d2b 'x"
    with at(own) as server:
        engine = await PostgresEngines(server).open(namespace, RECORD, SETTINGS)
        await fill(engine)

        assert "hnsw" == await look(engine)
        assert index_name(namespace, embedder_key(RECORD)) in explained(server, engine, None)
        found = await engine.read(lambda reader: reader.nearest(QUERY, 3))
        assert exactly(None, 3) == pytest.approx(found.scores.tolist(), abs=1e-5)


async def test_index_is_built_on_partition_of_namespace(own):
    """An index is also built and used on tables that are partitioned by namespace."""
    administer(own, script=block("Partition or distribute the tables"))
    with at(own) as server:
        engine = await PostgresEngines(server).open("default", RECORD, SETTINGS)
        await fill(engine)

        assert "hnsw" == await look(engine)
        assert index_name("default", embedder_key(RECORD)) in explained(server, engine, None)


@pytest.mark.parametrize("scanned", ["enough", "too little"])
async def test_filtered_search_returns_all_nearest_memories(engine, monkeypatch, scanned):
    """With the index or by exact comparison, the number of results is complete and they are the nearest ones."""
    # Filtered searches with few matches are exact. Lower this limit, so that these searches use the index.
    monkeypatch.setattr(questions, "MAX_EXACT_FILTERED_MEMORIES", 12)
    if scanned == "too little":
        monkeypatch.setitem(indexing.SEARCH_SETTINGS, "hnsw.iterative_scan", "off")
        monkeypatch.setattr(indexing, "MIN_SEARCH_WIDTH", 1)
        engine._client_state.hnsw_index = engine.index.usable_index(engine._head)
    for name, where in WHERE.items():
        found = await engine.read(lambda reader: reader.nearest(QUERY, 7, where))  # noqa: B023 - awaited
        wanted = exactly(where, 7)
        assert len(wanted) == len(set(found.nodes.tolist())), name
        near = [score for score in found.scores.tolist() if score >= wanted[-1] - 1e-6]
        assert len(near) >= 0.95 * len(wanted), name


async def test_search_width_grows_with_index(engine):
    """A search compares more candidates in a larger index, within limits."""
    widths = [
        NamespaceIndex.search_settings(engine.index.usable_index(attrs.evolve(engine._head, chunk_count=count)))
        for count in (10_000, 20_000, 10_000_000)
    ]

    assert ["200", "400", "1000"] == [one["hnsw.ef_search"] for one in widths]


@pytest.mark.parametrize(("counts", "built_at"), [((110, 120, 130), 130), ((110, 200, 300), 200)])
async def test_index_build_waits_for_end_of_bulk_load(monkeypatch, counts, built_at):
    """An index is built when no more vectors arrive, or when there are twice as many as the limit of exact search."""
    monkeypatch.setattr(indexing, "QUIET_SECONDS", 0)
    index = NamespaceIndex(None, "default", RECORD, MemorySettings(exact_up_to=100))
    index._chunk_count = counts[0]

    async def build():
        await index._wait_until_quiet(is_growing=True)
        return index._chunk_count

    task = asyncio.create_task(build())
    for count in counts[1:]:
        await asyncio.sleep(0)
        index._chunk_count = count

    assert built_at == await task


async def test_next_session_builds_index_of_load_that_ended_early(own, monkeypatch):
    """Closing a session cancels a build that waits for the end of a load. The next one builds without waiting."""
    monkeypatch.setattr(indexing, "QUIET_SECONDS", 3600)
    with at(own) as server:
        loading = await PostgresEngines(server).open("default", RECORD, SETTINGS)
        await fill(loading, memories(vectors=VECTORS[:60]))
        task = loading.index._task
    closed = task.cancelled(), administer(own, NAMES)
    with at(own) as server:
        engine = await PostgresEngines(server).open("default", RECORD, SETTINGS)

        assert (True, []) == closed
        assert "hnsw" == await asyncio.wait_for(look(engine), 60)


async def test_equal_vectors_do_not_hide_other_results(own):
    """Hundreds of equal vectors are linked only to each other in the index, so an exact search is used."""
    with at(own) as server:
        engine = await PostgresEngines(server).open("default", RECORD, SETTINGS)
        await fill(engine, memories(vectors=VECTORS[:4]))
        await fill(engine, memories(vectors=np.repeat(VECTORS[:1], 2_000, axis=0), start=4))
        await fill(engine, memories(vectors=VECTORS[4:16], start=2_004))
        assert "hnsw" == await look(engine)
        for number in (*range(1, 4), *range(2_004, 2_016)):
            query = VECTORS[number if number < 4 else number - 2_000, 0]
            best = await engine.read(lambda reader, query=query: reader.ids(reader.nearest(query, 3).nodes[:1]))
            assert [f"m_{number}"] == best


async def test_search_finds_memories_of_same_plan(engine):
    """An uncommitted memory is among the nearest, before and after it was sent to the server."""
    own = memories(vectors=np.stack([[QUERY, -QUERY]]), start=300)

    def plan(writer):
        (node,) = writer.put_new(own, lambda nodes: [writer.nearest(QUERY, 3).nodes.tolist() and ()])
        before = writer.nearest(QUERY, 3).nodes.tolist()
        writer.notes()
        return node, before, writer.nearest(QUERY, 3).nodes.tolist()

    node, unsent, sent = await engine.write(plan)

    assert node == unsent[0] == sent[0]


async def test_save_neither_builds_index_nor_waits_for_it(own):
    """While a build waits for another transaction, saves and searches continue, and no other host starts a build."""
    with at(own) as server, at(f"{own}?application_name=two") as second:
        one = await PostgresEngines(server).open("default", RECORD, SETTINGS)
        async with held_up(own):
            await fill(one)
            await until(own, BUILDERS)
            await fill(one, memories(vectors=VECTORS[:1], start=300))
            found = await one.read(lambda reader: len(reader.nearest(QUERY, 400)))
            two = await PostgresEngines(second).open("default", RECORD, SETTINGS)
            with pytest.raises(StoreError):
                await two.index.wait_until_idle()
            builders = administer(own, BUILDERS)
            modes = [each.figures()["vectors"]["mode"] for each in (one, two)]
        await until(own, f"{NAMES.partition(' ORDER')[0]} AND indisvalid")

        assert 301 == found
        assert 1 == len(builders)
        assert ["exact"] * 2 == modes
        assert ["hnsw"] * 2 == [await look(one), await look(one)]


async def test_index_build_continues_after_close(own):
    """The server completes the build although the host that started it has closed."""
    async with held_up(own):
        with at(own) as server:
            await fill(await PostgresEngines(server).open("default", RECORD, SETTINGS))
            await until(own, BUILDERS)
        left = administer(own, BUILDERS)
    await until(own, f"{NAMES.partition(' ORDER')[0]} AND indisvalid")

    assert 1 == len(left)


async def test_invalid_index_of_killed_build_is_rebuilt(own):
    """An invalid index is never used, and the next maintenance rebuilds it."""
    with at(own) as server:
        engine = await PostgresEngines(server).open("default", RECORD, SETTINGS)
        async with held_up(own):
            await fill(engine)
            ((pid,),) = await until(own, BUILDERS)
            administer(own, f"SELECT pg_terminate_backend({pid})")
            with pytest.raises(StoreError):
                await engine.index.wait_until_idle()
        await engine.read(lambda reader: reader.change)
        left = [row["indisvalid"] for row in administer(own, NAMES)], engine.figures()["vectors"]["mode"]
        # Delete the lease of the killed build, which would expire only after a minute.
        administer(own, "DELETE FROM mama_structs.leases")
        await asyncio.wrap_future(engine.index.maintain(engine._head))

        assert ([False], "exact") == left
        assert "hnsw" == await look(engine)
        assert [True] == [row["indisvalid"] for row in administer(own, NAMES)]


async def test_index_build_waits_for_build_of_another_namespace(own):
    """Concurrent builds on one table can deadlock, so a lease of any namespace excludes all others."""
    with at(own) as server:
        engine = await PostgresEngines(server).open("default", RECORD, SETTINGS)
        administer(
            own,
            "INSERT INTO mama_structs.leases (namespace, name, holder, expires) "
            "VALUES ('other', 'index of vectors', gen_random_uuid(), clock_timestamp() + interval '1 hour')",
        )
        await fill(engine)
        with pytest.raises(StoreBusy):
            await engine.index.wait_until_idle()
        during = administer(own, NAMES)
        administer(own, "UPDATE mama_structs.leases SET expires = clock_timestamp() - interval '1 second'")
        await asyncio.wrap_future(engine.index.maintain(engine._head))

        assert [] == during
        assert "hnsw" == await look(engine)
        assert ["other"] == [row["namespace"] for row in administer(own, "SELECT namespace FROM mama_structs.leases")]


async def test_index_build_waits_briefly_for_autovacuum(engine, own):
    """Autovacuum occasionally holds the same lock, so a build waits for it."""
    other = await PostgresEngines(engine._pool).open("other", RECORD, SETTINGS)
    async with held_up(own, "SHARE UPDATE EXCLUSIVE"):
        await fill(other)
        await until(own, "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'ShareUpdateExclusiveLock'")

    assert "hnsw" == await look(other)


async def test_unused_index_is_dropped(engine, own):
    """An index is dropped when another embedder is adopted, few vectors remain, or its namespace is deleted."""
    vectors = {f"m_{number}": own for number, own in enumerate(units(300, 1, 4))}
    await engine.write(lambda writer: writer.put_vectors(OTHER_RECORD, vectors))
    assert await engine.adopt(OTHER_RECORD)
    changed = await look(engine), [row["relname"] for row in administer(own, NAMES)]
    await engine.write(lambda writer: [writer.delete(f"m_{number}") for number in range(260)])
    fewer = await look(engine), administer(own, NAMES)
    other = await PostgresEngines(engine._pool).open("gone", RECORD, SETTINGS)
    await fill(other)
    await look(other)
    there = len(administer(own, NAMES))
    administer(own, "DELETE FROM mama_structs.memory_heads WHERE namespace = 'gone'")
    await asyncio.wrap_future(engine.index.maintain(engine._head))

    assert ("hnsw", [index_name("default", embedder_key(OTHER_RECORD))]) == changed
    assert ("exact", []) == fewer
    assert 1 == there
    assert [] == administer(own, NAMES)


async def test_missing_index_privilege_is_reported_once(own, caplog):
    """Searches are exact, `check` names the reason, and one warning is logged."""
    role = f"reader_{own[-8:]}"
    administer(
        own,
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA mama_structs TO {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA mama_structs TO {role}",
    )
    try:
        with at(in_database(own, own.rpartition("/")[2], user=role)) as server:
            with caplog.at_level(logging.WARNING, "mama_structs"):
                engine = await PostgresEngines(server).open("default", RECORD, SETTINGS)
                await fill(engine)
                mode = await look(engine)
                await fill(engine, memories(vectors=VECTORS[:1], start=300))
                await engine.index.wait_until_idle()
            (finding,) = await engine.check()

            assert "exact" == mode
            assert ("warning", "vectors") == (finding.severity, finding.kind)
            assert 1 == len(caplog.messages)
            assert 7 == len(await engine.read(lambda reader: reader.nearest(QUERY, 7)))
    finally:
        administer(own, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_check_measures_recall_of_index(engine, own):
    """If the index finds too few of the stored vectors, `check` warns and `rebuild` recreates it."""
    findings = await engine.check()
    good = engine.figures()["vectors"]["recall"]
    engine.index.recall = 0.5
    told = engine.index.findings(engine._head)
    before = administer(own, MADE)
    await engine.rebuild()

    assert [] == findings
    assert 1.0 == good
    assert ["warning"] == [one.severity for one in told]
    assert "hnsw" == await look(engine)
    assert before != administer(own, MADE)
    assert [] == engine.index.findings(engine._head)


async def test_check_reports_narrow_search(engine, own, monkeypatch):
    """A search that compares one candidate finds stored vectors, but not their neighbours, which `check` measures."""
    monkeypatch.setitem(indexing.SEARCH_SETTINGS, "hnsw.iterative_scan", "off")
    monkeypatch.setattr(indexing, "MIN_SEARCH_WIDTH", 1)
    monkeypatch.setattr(indexing, "VECTORS_PER_CANDIDATE", 1_000)
    await engine.read(lambda reader: reader.change)
    before = administer(own, MADE)
    (finding,) = await engine.check()

    assert ("warning", "vectors") == (finding.severity, finding.kind)
    assert engine.figures()["vectors"]["recall"] <= 0.1
    assert before == administer(own, MADE)


async def test_namespace_keeps_its_vector_precision(own):
    """After a change of the setting, `check` reports the different precision, and an index of halves is used."""
    with at(own, half_precision=True) as server:
        engine = await PostgresEngines(server).open("default", RECORD, SETTINGS)

        def plan(writer):
            nodes = writer.put_new(memories(), lambda _nodes: [()] * 300)
            return writer.pieces(nodes)[0]

        written = await engine.write(plan)
        assert "hnsw" == await look(engine)
        assert "halfvec" == engine.figures()["vectors"]["kept_as"]
        assert [] == await engine.check()
    with at(own) as server:
        engine = await PostgresEngines(server).open("default", RECORD, SETTINGS)
        vectors, found = await engine.read(
            lambda reader: (reader.pieces(range(300))[0], reader.nearest(QUERY, 7).scores)
        )
        await fill(engine, memories(vectors=VECTORS[:1], start=300))
        (finding,) = await engine.check()

        assert "hnsw" == await look(engine)
        assert [(0, 602)] == [
            tuple(row) for row in administer(own, "SELECT count(vector), count(half) FROM mama_structs.pieces")
        ]
        assert np.array_equal(written, vectors)
        assert 0 < np.abs(vectors - VECTORS.reshape(-1, 8)).max() < 2**-11
        assert np.abs(found - exactly(None, 7)).max() < 1e-3
        assert "halfvec" in finding.message


async def test_vectors_with_too_many_dimensions_are_searched_exactly(own):
    """`check` reports it, and dimensions that the server cannot store are rejected when opening."""
    wide = EmbedderRecord("wide", "wide", 4_001)
    with at(own) as server:
        engines = PostgresEngines(server)
        engine = await engines.open("default", wide, MemorySettings(exact_up_to=1))
        await fill(engine, memories(vectors=units(3, 1, 4_001)))
        mode = await look(engine)
        (finding,) = await engine.check()
        with pytest.raises(InvalidArgument, match="16000"):
            await engines.open("other", EmbedderRecord("w", "w", 16_001), SETTINGS)

    assert "exact" == mode
    assert "4001 dimensions" in finding.message
    assert ["vector", "halfvec", None] == [
        choose_index_type(most, half_precision=False) for most in (2_000, 4_000, 4_001)
    ]
    assert ["halfvec", None] == [choose_index_type(most, half_precision=True) for most in (4_000, 4_001)]
