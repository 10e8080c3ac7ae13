"""Migration of the rows of an earlier version, which have no filter names of metadata."""

import contextlib
import json

import attrs
import msgspec
import pytest
from filter_name_helpers import EMBEDDER, EXPECTED, answers, extract
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_memory
from postgres_helpers import administer, schema_script

from mama_structs.memory.engines.postgres.engine import PostgresEngines
from mama_structs.memory.engines.postgres.queries import escape_text
from mama_structs.memory.types.codec import Entry, encode_entry
from mama_structs.memory.types.engine import filter_names
from mama_structs.memory.types.model import METADATA_TYPES, MemoryType, Outcome
from mama_structs.settings import MemorySettings
from mama_structs.storage.postgres import filter_name_rows
from mama_structs.storage.postgres.pool import PostgresPool

NAMES = "SELECT node, mention FROM mama_structs.mentions ORDER BY namespace, node, mention"
TEXTS = st.text(max_size=3) | st.sampled_from(["caf\u00e9", "cafe\u0301", "\\0", "\0", "x" * 201, "\u0958" * 101])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)

NESTED = {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}}


@pytest.fixture
def earlier_database(empty_database, tmp_path):
    """The URL of a database of version 5 with the rows that commit fb7eb6f2 wrote."""
    tables = json.loads((extract(tmp_path) / "server.json").read_text("utf-8"))
    script = [schema_script(5)]
    for table, rows in tables.items():
        written = json.dumps(rows).replace("'", "''")
        script.append(f"INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, '{written}')")
    administer(empty_database, script=";".join(script))
    return empty_database


@contextlib.asynccontextmanager
async def opened(url):
    pool = PostgresPool.open(url)
    try:
        yield await PostgresEngines(pool).open("default", EMBEDDER, MemorySettings())
    finally:
        pool.close()


async def test_migration_adds_the_names_of_all_memories(earlier_database, monkeypatch):
    """Filters find the memories of an earlier version, and check() finds no difference. The batches are small."""
    monkeypatch.setattr(filter_name_rows, "BATCH_ROWS", 2)
    async with opened(earlier_database) as engine:
        assert EXPECTED == await answers(engine)
        assert [] == await engine.check()


async def test_migration_tolerates_unreadable_rows(earlier_database):
    """A memory that cannot be decoded gets no names, and the others get theirs."""
    damage = "UPDATE mama_structs.memories SET entry = '{\"memory\": 1}' WHERE id LIKE '%raid%' OR id LIKE '%plain%'"
    administer(earlier_database, damage)
    async with opened(earlier_database) as engine:
        found = await answers(engine)
        findings = await engine.check()

    def without_damaged(ids):
        return " ".join(name for name in ids.split() if name not in {"raid", "plain"})

    # The names of mentions were stored before.
    (first, every), *others = EXPECTED
    assert [(first, every), *((where, without_damaged(ids)) for where, ids in others)] == found
    assert ["2", "5"] == [one.key for one in findings]


async def test_rebuild_replaces_missing_and_surplus_names(earlier_database):
    async with opened(earlier_database) as engine:
        before = administer(earlier_database, NAMES)
        administer(
            earlier_database,
            "DELETE FROM mama_structs.mentions WHERE mention LIKE '%outcome%' OR node = 2",
            "INSERT INTO mama_structs.mentions VALUES ('default', '\\0\\0tag=wrong', 3)",
        )
        found = await engine.check()
        await engine.rebuild()

        assert 4 == len(found)
        assert [] == await engine.check()
        assert before == administer(earlier_database, NAMES)


@st.composite
def drawn_memories(draw):
    kind = draw(st.sampled_from(MemoryType))
    drawn = {
        "tags": st.lists(TEXTS, max_size=2).map(tuple),
        "source": st.none() | TEXTS,
        "outcome": st.none() | st.sampled_from(Outcome),
        "created_by": st.sampled_from(["user", "llm", "system"]),
        "extra": st.dictionaries(TEXTS, JSON, max_size=3),
        "labels": st.lists(TEXTS.filter(bool), max_size=2).map(tuple),
        "key": TEXTS.filter(bool) | st.just("\u0958" * 101),
        "value": JSON | st.sampled_from([[*range(33)], [1] * 1025, {"a": ["x" * 128, "x" * 129]}, NESTED]),
    }
    known = attrs.fields_dict(METADATA_TYPES[kind])
    return plain_memory("m", "x", type=kind, **{name: draw(some) for name, some in drawn.items() if name in known})


@given(memory=drawn_memories())
def test_migrated_names_equal_those_of_new_rows(memory):
    """The migration computes from stored JSON the same names as a save computes from a memory."""
    steps = (filter_name_rows._names, filter_name_rows._value_names, filter_name_rows._path_names)
    migrated = {name for step in steps for name in filter_name_rows._read_names(encode_entry(Entry(memory)), step)}
    saved = {name for name in filter_names(memory) if name.startswith("\0\0")}

    assert {escape_text(name) for name in saved} == migrated


@pytest.mark.parametrize("entry", [b"", b"{", b"[]", b'{"memory":{"type":"insight","metadata":{"tags":[1]}}}', b"\xff"])
def test_unreadable_entry_has_no_names(entry):
    assert [] == filter_name_rows._read_names(entry, filter_name_rows._names)


def test_entry_without_optional_fields_has_the_default_creator():
    entry = msgspec.json.encode({"memory": {"type": "insight", "metadata": {}}})

    assert ["\\0\\0created_by=user"] == filter_name_rows._read_names(entry, filter_name_rows._names)
