"""SQL statements of the server engine: their number, their cost, and the visibility of rows."""

from __future__ import annotations

import asyncio
import re
import weakref
from pathlib import Path

import pytest
from memory_helpers import SMALL, OpenedDirectory
from postgres_helpers import administer, in_database

from mama_structs import Filter, Session, admin
from mama_structs.errors import StoreError
from mama_structs.memory.engines.postgres import queries, writer
from mama_structs.memory.engines.postgres.engine import PostgresEngines
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.types import codec
from mama_structs.memory.types.duplicates import duplicate_fingerprint
from mama_structs.memory.types.text_analysis import ANALYSIS_VERSION
from mama_structs.memory.upkeep.maintenance import embedder_record
from mama_structs.settings import MemorySettings
from mama_structs.storage.postgres.pool import Connection, PostgresPool
from mama_structs.types import NewRecord

_RECORDS = weakref.WeakKeyDictionary()


def records_of(store):
    """Return the records of a store, which is the same object for all calls, as in a session."""
    if store not in _RECORDS:
        _RECORDS[store] = RecordStore(store._shared)
    return _RECORDS[store]


SAVES = {
    "save_decision": (
        3,
        lambda store, ids: store.save_decision("shield planet 2-1 first", topic="raids", reasoning="raids doubled"),
    ),
    "save_decision, linked": (
        3,
        lambda store, ids: store.save_decision(
            "x",
            topic="auth",
            reasoning="y",
            supersedes=ids[0],
            implements=[ids[2]],
            links=[{"to_id": ids[3], "relationship": "refines"}],
            evidence=[ids[4], "said so"],
        ),
    ),
    "save_insight": (3, lambda store, ids: store.save_insight("raids come at night")),
    "save_checkpoint": (3, lambda store, ids: store.save_checkpoint("shields are up")),
    "supersede": (4, lambda store, ids: store.supersede(ids[0], "use sessions", reasoning="revocable")),
    "set_outcome": (3, lambda store, ids: store.set_outcome(ids[0], "SUCCESS")),
    "set_outcome, with a reason": (4, lambda store, ids: store.set_outcome(ids[0], "FAILED", reason="2-1 was slow")),
    "update": (3, lambda store, ids: store.update(ids[0], "another text")),
    "link": (2, lambda store, ids: store.link(ids[1], ids[2], "refines")),
    "delete": (5, lambda store, ids: store.delete(ids[1])),
}
RECORDS = {
    "records.put": (4, lambda store, ids: records_of(store).put(("a",), "new", 1, text="shields")),
    "records.put, without text": (3, lambda store, ids: records_of(store).put(("a",), "new", 1)),
    "records.put, again": (4, lambda store, ids: records_of(store).put(("a",), "text", 2, text="other")),
    "records.put_many of 50": (
        4,
        lambda store, ids: records_of(store).put_many(
            [NewRecord(("b",), f"{at}", at, text=f"shield {at}" if at % 2 else None) for at in range(50)]
        ),
    ),
    # Two statements find the last key: among records with text, and among the others.
    "records.append of 50": (5, lambda store, ids: records_of(store).append(("c",), range(50))),
    "records.get": (3, lambda store, ids: records_of(store).get(("a",), "text")),
    # For records with text and for those without: whether there are further labels (2 statements), and a page.
    "records.list": (8, lambda store, ids: records_of(store).list(("a",), limit=10)),
    # The store has changed since its sample of vectors was cached, so one statement reads the sample.
    "records.search": (4, lambda store, ids: records_of(store).search("shield", ("a",))),
    "records.nearest": (3, lambda store, ids: records_of(store).nearest("shield", ("a",))),
}
READS = {
    "search": (2, lambda store, ids: store.search("shield the planet")),
    # The store has changed since its sample of vectors was cached, so one statement reads the candidates again.
    "search of a topic": (3, lambda store, ids: store.search("shield the planet", topic="raids", limit=3)),
    "search of a period": (2, lambda store, ids: store.search("what did we decide today?")),
    "list": (1, lambda store, ids: store.list()),
    "get": (1, lambda store, ids: store.get(ids[0])),
    "list of mentions": (1, lambda store, ids: store.list(where=Filter(mentions="2-1"))),
    "traverse": (1, lambda store, ids: store.traverse(ids[0], max_depth=5)),
    "history of a topic": (2, lambda store, ids: store.history(topic="raids")),
    "history": (1, lambda store, ids: store.history(ids[0])),
    "links": (2, lambda store, ids: store.links(ids[0])),
    "details": (2, lambda store, ids: store.details(ids[0])),
    "count": (1, lambda store, ids: store.count()),
}


# Methods of the session: the maximum number of their SQL statements, and a call.
ANSWERS = {
    "observe": (3, lambda session: session.observe('<ref id="plan">shields first</ref>')),
    # A search, then the hits with their links, the neighbours of the hits, and the texts of these.
    "recall": (4, lambda session: session.recall("shall we shield the planet?")),
}


VISITED = r'"Actual Rows": ([\d.]+),\s*"Actual Loops": ([\d.]+)'


@pytest.fixture
async def place(database, tmp_path):
    """A directory whose memories are stored on a server."""
    server = PostgresPool.open(database)
    opened = OpenedDirectory.open(
        tmp_path,
        engines=PostgresEngines(server),
        embedder=SMALL,
        find_mentions=lambda text: re.findall(r"\b\d-\d\b", text),
    )
    yield opened
    await opened.close()
    server.close()


async def filled(place, count=40):
    """Fill a namespace, and return its store and the ids of the saved memories."""
    store = await place.memories()
    said = [
        {
            "type": "decision",
            "topic": ["raids", "auth"][at % 2],
            "content": f"raid {at} near 2-{at % 7}",
            "reasoning": "y",
        }
        for at in range(count)
    ]
    saved = await store.save_many(said)
    return store, [memory.id for memory in saved]


@pytest.mark.parametrize("name", [*SAVES, *READS])
async def test_method_sends_few_statements(place, monkeypatch, name):
    """The number of statements per transaction does not depend on the number of results."""
    most, method = {**SAVES, **READS}[name]
    store, ids = await filled(place)
    asked = heard(monkeypatch)
    await method(store, ids)

    assert most >= len(asked), [sql[:300] for sql in asked]


@pytest.mark.parametrize("name", RECORDS)
async def test_record_method_sends_few_statements(place, monkeypatch, name):
    """The number of statements does not depend on the number of records."""
    most, method = RECORDS[name]
    store, ids = await filled(place)
    await records_of(store).put(("a",), "text", 1, text="the shield is up")
    await records_of(store).append(("a",), range(20))
    # The first listing of a store adds the records of an earlier commit to the index.
    await records_of(store).list(("a",))
    asked = heard(monkeypatch)
    await method(store, ids)

    assert most >= len(asked), [sql[:300] for sql in asked]


@pytest.mark.parametrize("name", ANSWERS)
async def test_message_method_sends_few_statements(database, monkeypatch, name):
    """Observing a message and recalling memories need at most this number of statements."""
    most, method = ANSWERS[name]
    async with Session.open(database, embedder=SMALL, conversation="talk") as session:
        await session.memories.save_many([{"type": "insight", "content": f"shield planet 2-{at}"} for at in range(10)])
        asked = heard(monkeypatch)
        await method(session)

        assert most >= len(asked), [sql[:300] for sql in asked]


async def test_save_many_shares_statements(place, monkeypatch):
    """A hundred memories in one call need a tenth of the statements of a hundred calls, and get the same links."""
    store, ids = await filled(place, count=1)
    monkeypatch.setattr(writer, "MAX_TRANSACTION_SECONDS", 3600)
    records = [
        {
            "type": "decision",
            "topic": ["trade", "auth"][at % 2],
            "content": f"sell ore of 2-{at}",
            "reasoning": "y",
            "implements": ids,
        }
        for at in range(100)
    ]
    asked = heard(monkeypatch)
    await store.save_many(records)

    # One statement checks all memories, two serve each group (1, 2, 4, 8, 16, 32, 32 and 5), and one writes all.
    assert len(asked) <= 1 + 2 * 8 + 1, [sql[:100] for sql in asked]
    assert {ids[0]} == {link.to_id for link in await store.links(ids[0])}
    assert 100 == len(await store.links(ids[0]))


async def test_plans_are_reused_until_the_store_has_grown(place):
    """A repeated search is not planned again, and a search of a larger store does not use the plan of a small one."""
    plans = "SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements WHERE statement ~ 'neighbours'"
    store, _ = await filled(place)
    for _ in range(4):
        await store.search("shield the planet")
    small = await store._engine.read(lambda reader: reader._connection.fetch(plans))
    await store.save_many([{"type": "context", "content": f"ore of 2-{at}"} for at in range(200)])
    for _ in range(2):
        await store.search("shield the planet")
    large = await store._engine.read(lambda reader: reader._connection.fetch(plans))

    assert max(plan["generic_plans"] for plan in small) >= 3
    assert {plan["statement"] for plan in small} < {plan["statement"] for plan in large}
    assert not sum(plan["custom_plans"] for plan in large)


async def test_walk_over_many_links_fetches_only_its_results(place, monkeypatch):
    """A walk that reaches more memories than it returns stops there, and reads the rest of its results once."""
    monkeypatch.setattr(queries, "MAX_NEAR_NODES", 20)
    place.settings = MemorySettings(linking="off")
    store = await place.memories()
    hub = await store.save_insight("shield every planet")
    links = [{"to_id": hub.id, "relationship": "refines"}]
    near = [{"type": "insight", "content": f"shield 2-{at}", "links": links} for at in range(60)]
    ids = [memory.id for memory in await store.save_many(near)]
    far = await store.save_insight("raids", links=[{"to_id": ids[0], "relationship": "refines"}])
    asked = heard(monkeypatch)
    reached = await store.traverse(hub.id, max_depth=3)
    complete = len(asked)
    some = await store.traverse(hub.id, max_depth=3, limit=25)

    assert {*ids, far.id} == {one.memory.id for one in reached}
    assert [1] * 60 + [2] == [one.depth for one in reached]
    assert {one.memory.id for one in some} <= {*ids}
    assert 25 == len(some)
    # The first statement ends at the memories near the hub. Others read the links of each further level, and the texts.
    assert complete <= 5
    assert len(asked) - complete <= 2


async def test_statements_look_rows_up_by_key_without_statistics(place, monkeypatch):
    """Without statistics of the server, rows found by key are not joined with the whole namespace."""
    store, ids = await filled(place, count=120)
    ask, removed = Connection.fetch, []

    def explained(connection, sql, *given):
        if sql.startswith("WITH RECURSIVE"):
            plan = ask(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *given)[0][0]
            removed.append(sum(map(int, re.findall(r'"Rows Removed by Join Filter": (\d+)', plan))))
        return ask(connection, sql, *given)

    monkeypatch.setattr(Connection, "fetch", explained)
    await store.save_decision("raid the yard near planet 9-1", topic="raids", reasoning="y")
    await store.search("raid near 2-1")
    await store.details(ids[0])

    assert len(removed) > 3
    # Statements may discard only rows with words of memories, which they compare with the requested words.
    assert max(removed) <= 100 * 120, removed


async def test_words_of_long_texts_are_looked_up_by_key(place, monkeypatch):
    """Without statistics of the server, changes and checks do not compare all words with all others."""
    store = await place.memories()
    texts = [" ".join(f"word{at}of{number}" for at in range(300)) for number in range(12)]
    ids = [memory.id for memory in await store.save_many([{"type": "insight", "content": text} for text in texts])]
    ask, compared = Connection.fetch, []

    def explained(connection, sql, *given):
        if re.search("drop_terms|words AS|indexed", sql):
            ask(connection, "SAVEPOINT before")
            plan = ask(connection, f"EXPLAIN (FORMAT JSON) {sql}", *given)[0][0]
            ask(connection, "ROLLBACK TO before")
            compared.append(re.findall(r'"Join Filter": "(.*?term.*?)"', plan))
        return ask(connection, sql, *given)

    monkeypatch.setattr(Connection, "fetch", explained)
    await store.update(ids[0], "another text")
    await store.delete(ids[1])
    report = (await admin.check(store)).issues
    await admin.rebuild(store)

    assert not report
    assert len(compared) > 3
    assert not any(compared), compared


def heard(monkeypatch):
    """Return a list that records all statements from now on."""
    asked = []
    for how in ("fetch", "execute"):
        run = getattr(Connection, how)
        monkeypatch.setattr(
            Connection,
            how,
            lambda connection, sql, *given, run=run: (asked.append(sql), run(connection, sql, *given))[1],
        )
    return asked


async def test_duplicates_are_not_all_read_or_counted(place, database, monkeypatch):
    """Only the first and last duplicates are read, and the value of a word is computed once even without statistics."""
    place.settings = MemorySettings(linking="off")
    store = await place.memories()
    said = {"type": "context", "content": "nothing new on the login"}
    await store.save_many([said] * 800)
    visits = []
    ask = Connection.fetch

    def explained(connection, sql, *given):
        if "_worth" in sql:
            plan = ask(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *given)[0][0]
            visits.extend(float(rows) * float(loops) for rows, loops in re.findall(VISITED, plan))
        return ask(connection, sql, *given)

    administer(
        database,
        "DELETE FROM pg_statistic",
        "UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relkind IN ('r', 'i')",
    )
    monkeypatch.setattr(Connection, "fetch", explained)
    assert await store.search("nothing new on the login", type=["context"])
    number = duplicate_fingerprint((await store.list(limit=1))[0])
    (nodes,) = await store._engine.read(lambda reader: reader.duplicates([number]))

    assert [*range(64), *range(736, 800)] == nodes.tolist()
    assert 800 < sum(visits) < 800 * 800


async def test_other_role_sees_one_namespace(place, database):
    """A role that does not own the tables can only access the rows of one namespace at a time."""
    await filled(place, count=3)
    other = await place.memories("other")
    await other.save_context("what the others know")
    role = f"reader_{Path(database).name}"
    administer(
        database,
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA mama_structs TO {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA mama_structs TO {role}",
    )
    try:
        url = in_database(database, Path(database).name, user=role)
        server = PostgresPool.open(url)
        sql = "SELECT DISTINCT namespace FROM {} ORDER BY 1"
        tables = ("memories", "pieces", "terms", "memory_heads")
        for table in tables:
            ask = sql.format(table)
            for namespace, seen in (("default", ["default"]), ("other", ["other"]), ("none", [])):
                rows = server.run(lambda connection: connection.fetch(ask), write=False, namespace=namespace).result()  # noqa: B023
                assert seen == [row["namespace"] for row in rows]
        with pytest.raises(StoreError):
            server.run(
                lambda connection: connection.execute("INSERT INTO notes VALUES ('other', 'a', 'b')"),
                write=True,
                namespace="default",
            ).result()
        server.close()
    finally:
        administer(database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_open_recomputes_words_of_older_analysis(place, database, monkeypatch):
    """Opening memories with words of an older version recomputes them once."""
    store = await place.memories()
    monkeypatch.setattr(codec, "weighted_terms", lambda text: {text.lower(): 1.0})
    saved = await store.save_context("A lighthouse keeper.")
    await store.save_context("A shield wall.")
    monkeypatch.undo()
    administer(database, "UPDATE mama_structs.memory_heads SET analysis = 1")
    other = PostgresEngines(place.engines._pool)
    engine = await other.open("default", embedder_record(SMALL), MemorySettings())

    found = await engine.read(lambda reader: reader.ids(reader.words("lighthouse", 5).nodes))

    assert [saved.id] == found
    assert [] == await engine.check()
    assert engine._head.analysis == ANALYSIS_VERSION
    await other.release("default")


async def test_concurrent_saves_are_all_stored_and_visible(place):
    """Concurrent saves are stored once each, and every save sees all earlier ones."""
    store = await place.memories()

    async def save(number):
        memory = await store.save_decision(f"raid {number} near 2-1", topic="raids", reasoning="because")
        seen = {one.id for one in await store.list(limit=100)}
        reached = await store.traverse(memory.id)
        return memory.id, seen, reached

    done = await asyncio.gather(*map(save, range(24)))

    ids = [memory_id for memory_id, _, _ in done]
    assert 24 == len(set(ids)) == await store.count()
    assert all(memory_id in seen for memory_id, seen, _ in done)
    links = [link for memory_id in ids for link in await store.links(memory_id) if link.from_id == memory_id]
    pairs = [(link.from_id, link.to_id) for link in links]
    assert len(pairs) == len(set(pairs))
    assert [] == await place.findings()


# Adds enough rows that the planner considers sequential scans if it assumes that no pages are cached.
_FILLED = """
    INSERT INTO mama_structs.memories (namespace, node, id, entry, created, type, scripts, asking, ends, origin, trust,
                                       wording, length, terms, counts, topic_terms)
    SELECT namespace, 1000 + n, new, convert_to(replace(convert_from(entry, 'UTF8'), id, new), 'UTF8'), created - n * 3600000::bigint,
        type, scripts, asking, ends, origin, trust, n, length, ARRAY['t' || n % 500], ARRAY[10], '{}'
    FROM (SELECT * FROM mama_structs.memories LIMIT 1) m, generate_series(1, 6000) n,
        LATERAL (SELECT left(id, -8) || lpad(to_hex(n), 8, '0') AS new) i;
    INSERT INTO mama_structs.terms (namespace, term, node, count, length)
    SELECT namespace, terms[1], node, 10, 100 FROM mama_structs.memories WHERE node > 1000;
    INSERT INTO mama_structs.pieces (namespace, embedder, node, place, vector)
    SELECT p.namespace, p.embedder, 1000 + n, 0, p.vector * array_fill(-1, ARRAY[vector_dims(p.vector)])::vector
    FROM (SELECT * FROM mama_structs.pieces LIMIT 1) p, generate_series(1, 6000) n;
    INSERT INTO mama_structs.links (namespace, id, source, target, type, creator, confidence, created, word, entry)
    SELECT 'default', 'l' || n, 1001 + n % 6000, 1001 + (n * 7 + 1) % 6000, n % 4, 0, 0.5, 1700000000000, 'related_to',
        repeat('x', 200)::bytea FROM generate_series(1, 30000) n;
    INSERT INTO mama_structs.mentions (namespace, mention, node)
    SELECT namespace, 'x-' || node, node FROM mama_structs.memories WHERE node > 1000;
    ANALYZE mama_structs.memories, mama_structs.terms, mama_structs.pieces, mama_structs.links, mama_structs.mentions
"""


async def test_statements_use_indexes_instead_of_table_scans(place, database, monkeypatch):
    """Only the vectors of an exact search are read sequentially."""
    store, ids = await filled(place)
    administer(database, *_FILLED.split(";\n"))
    ask, read = Connection.fetch, {}

    def explained(connection, sql, *given):
        if sql.split()[0] in {"SELECT", "WITH"}:
            plan = "\n".join(row[0] for row in ask(connection, f"EXPLAIN {sql}", *given))
            read[name] |= set(
                re.findall(r"Seq Scan on (memories|terms|links|mentions|pieces \w+(?=\n.*\n.*embedder))", plan)
            )
        return ask(connection, sql, *given)

    monkeypatch.setattr(Connection, "fetch", explained)
    for name, (_, method) in {**READS, **SAVES}.items():
        read[name] = set()
        await method(store, ids)

    assert {} == {name: tables for name, tables in read.items() if tables}


async def test_word_value_is_computed_once_per_query(place, monkeypatch):
    """The number of memories is counted at most once for each word of a query."""
    store, _ = await filled(place)
    ask, loops = Connection.fetch, []

    def explained(connection, sql, *given):
        plan = "\n".join(row[0] for row in ask(connection, f"EXPLAIN (ANALYZE, TIMING OFF) {sql}", *given))
        loops.extend(map(int, re.findall(r"Function Scan on unnest one .*loops=(\d+)\)", plan)))
        return ask(connection, sql, *given)

    monkeypatch.setattr(Connection, "fetch", explained)
    await store.search("raid near")

    assert 2 >= max(loops)
