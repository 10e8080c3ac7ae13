"""Pages of memories and names on a server: each page is read from an index, beginning at its position."""

import asyncio
import itertools
import json

import attrs
import numpy as np
import pytest
from memory_helpers import plain_memory
from postgres_helpers import administer

from mama_structs.memory.engines.postgres.engine import PostgresEngines
from mama_structs.memory.types.engine import EmbedderRecord, EngineFilter, NewMemory, select_names
from mama_structs.settings import MemorySettings
from mama_structs.storage.postgres.pool import Connection, PostgresPool

EMBEDDER = EmbedderRecord("drawn", "drawn", 3)
COUNT, LIMIT = 2_000, 10
VECTOR = np.array([[1, 0, 0]], np.float32)
FILTERS = {"all": None, "topic": EngineFilter(topic="raids"), "tags": EngineFilter(tags=("raid",))}


@pytest.fixture
def engine(database):
    """A namespace with 2,000 memories, three per second. Every second one has the topic, and every third the tag."""
    pool = PostgresPool.open(database)
    memories = [
        attrs.evolve(
            plain_memory(f"m_{number}", topic="raids" if number % 2 else None, at=number // 3),
            metadata=attrs.evolve(plain_memory("x").metadata, tags=("raid",) if number % 3 == 0 else ()),
        )
        for number in range(COUNT)
    ]
    new = [NewMemory(memory=memory, vectors=VECTOR) for memory in memories]

    async def fill():
        opened = await PostgresEngines(pool).open("default", EMBEDDER, MemorySettings())
        await opened.write(lambda writer: writer.put_new(new, lambda nodes: [()] * len(nodes)))
        return opened

    yield asyncio.run(fill())
    pool.close()


def nodes_of(plan):
    """Yield a node of a query plan and all nodes below it."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes_of(inner)


@pytest.mark.parametrize("has_statistics", [True, False])
@pytest.mark.parametrize("name", FILTERS)
def test_page_is_read_from_an_index(engine, database, monkeypatch, name, has_statistics):
    """A page in the middle visits about as many memories as it returns, with and without statistics of the server."""
    if has_statistics:
        administer(database, "ANALYZE mama_structs.memories, mama_structs.mentions")
    ask = Connection.fetch

    def explained(connection, sql, *given):
        plan = json.loads(ask(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *given)[0][0])[0]["Plan"]
        scans.extend(node for node in nodes_of(plan) if "(created, node)" in str(node.get("Index Cond", "")).lower())
        seen = [node for node in nodes_of(plan) if node.get("Relation Name") in {"memories", "mentions"}]
        visits.append(max(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in seen))
        return ask(connection, sql, *given)

    def page(reader, newest_first):
        middle = reader.find(f"m_{COUNT // 2}")
        after = int(reader.facts(np.array([middle])).created[0]), middle
        whole = reader.window(FILTERS[name], newest_first=newest_first)
        places = zip(reader.facts(whole).created.tolist(), whole.tolist(), strict=True)
        later = [
            node for created, node in places if (created, node) != after and ((created, node) < after) == newest_first
        ]
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "fetch", explained)
            found = reader.window(FILTERS[name], newest_first=newest_first, after=after, limit=LIMIT)
        return later[:LIMIT], found.tolist()

    for newest_first in (True, False):
        scans, visits = [], []
        expected, found = asyncio.run(engine.read(lambda reader: page(reader, newest_first)))  # noqa: B023 - run here

        assert expected == found
        assert LIMIT == len(found)
        assert scans
        assert max(visits) <= 5 * LIMIT


def test_prefetched_page_needs_no_further_statement(engine, monkeypatch):
    ask, asked = Connection.fetch, []

    def counted(connection, sql, *given):
        asked.append(sql)
        return ask(connection, sql, *given)

    def plan(reader):
        page = {"where": FILTERS["tags"], "after": (2**62, 0), "limit": LIMIT}
        reader.expect(lambda ahead: ahead.window(**page))
        return reader.ids(reader.window(**page)), reader.ids(reader.window(FILTERS["tags"], limit=LIMIT))

    monkeypatch.setattr(Connection, "fetch", counted)
    found, first = asyncio.run(engine.read(plan))

    assert first == found
    assert 2 == len(asked), "one for the page, one for the comparison"


def test_page_of_record_paths_reads_no_other_filter_names(engine, database, monkeypatch):
    """Filter names of other kinds, which sort before and after those of paths, are not read."""
    paths = [f"{labels}={key}" for labels in ("", "users/", "users%2F/", "users/x/") for key in "ajkz"]
    names = [f"\\0\\0{kind}={number}" for kind in ("extra", "source", "value") for number in range(200)]
    names += [f"\\0{number}/" for number in range(200)] + [f"\\0\\0path={path}" for path in paths]
    rows = ", ".join(f"('default', '{name}', {node})" for node, name in enumerate(names))
    administer(database, f"INSERT INTO mama_structs.mentions (namespace, mention, node) VALUES {rows}")
    ask = Connection.fetch

    def explained(connection, sql, *given):
        if "mentions" in sql:
            plan = json.loads(ask(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *given)[0][0])[0]["Plan"]
            seen = [node for node in nodes_of(plan) if node.get("Relation Name") == "mentions"]
            visits.extend(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in seen)
        return ask(connection, sql, *given)

    monkeypatch.setattr(Connection, "fetch", explained)
    for prefix, after, last_first in itertools.product(("", "users/"), (None, "users/=j"), (False, True)):
        visits, page = [], {"after": after, "limit": 3, "last_first": last_first}
        found = asyncio.run(engine.read(lambda reader: reader.record_paths(prefix, **page)))  # noqa: B023 - run here
        below = [path for path in paths if path.startswith(prefix)]

        assert select_names(below, **page) == found
        assert [len(found)] == visits
