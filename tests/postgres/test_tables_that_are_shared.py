"""Row-level security of the shared tables, and their partitioning by namespace."""

import re
from pathlib import Path

import pytest
from memory_helpers import SMALL
from postgres_helpers import administer, block, in_database

from mama_structs import Session, admin
from mama_structs.errors import StoreError
from mama_structs.storage.postgres.pool import Connection, PostgresPool

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'mama_structs' AND tablename <> 'migrations' ORDER BY 1"
# Statements that access several namespaces, because they list namespaces or manage the leases of a host.
ACROSS = [
    r"SELECT namespace FROM memory_heads ORDER BY namespace",
    r"SELECT name FROM leases WHERE expires >= ",
    r"UPDATE leases SET .* WHERE holder = ",
    r"DELETE FROM leases WHERE holder = ",
    r"SELECT name FROM leases WHERE holder = ",
]
LISTED = {"conversations/"}
"""Key prefixes of rows that are listed across all namespaces."""


def opened(url, **options):
    return Session.open(url, embedder=SMALL, **options)


async def used(url, namespace="default"):
    """Use all features of a session in one namespace, and return the number of its memories."""
    async with opened(url, namespace=namespace, conversation="talk") as session:
        one = await session.memories.save_decision(
            f"use tokens in {namespace}", topic="auth", reasoning="stateless", evidence=["said"]
        )
        two = await session.memories.save_decision(
            "use sessions of 2-1", topic="auth", reasoning="y", supersedes=one.id
        )
        await session.memories.set_outcome(two.id, "FAILED", reason="it was slow")
        link = await session.memories.link(two.id, one.id, "refines")
        await session.memories.unlink(link.id)
        await session.memories.update(one.id, "use JWT")
        await session.observe(f'<ref id="plan">shields first in {namespace}</ref>')
        kept = await session.memories.save_decision("keep the plan", topic="auth", reasoning="y", evidence=["ref:plan"])
        assert kept.id in {hit.memory.id for hit in await session.memories.search("keep the plan")}
        assert await session.memories.traverse(two.id)
        assert await session.memories.history(topic="auth")
        await session.memories.details(one.id)
        await session.recall("which tokens?")
        await session.memories.delete(one.id)
        said = await session.memories.save_context("said in passing")
        await session.memories.erase([said.id])
        assert (await admin.check(session)).ok
        await admin.maintain(session)
        async with session.fork("branch") as fork:
            await fork.observe('<ref id="own">mine</ref>')
    async with opened(url, namespace=namespace, conversation="talk") as session:
        assert f"shields first in {namespace}" == session.refs.get("ref:plan").content.text
        return await session.memories.count()


async def test_other_role_sees_one_namespace_in_every_table(database):
    """A role that does not own the tables can only access one namespace at a time, in every table."""
    await used(database)
    await used(database, "other")
    role = f"reader_{Path(database).name}"
    tables = [row["tablename"] for row in administer(database, TABLES)]
    granted = f"GRANT ALL ON ALL TABLES IN SCHEMA mama_structs TO {role}"
    administer(database, f"CREATE ROLE {role} LOGIN", f"GRANT USAGE ON SCHEMA mama_structs TO {role}", granted)
    server = PostgresPool.open(in_database(database, Path(database).name, user=role))
    try:
        seen = {}
        for table in tables:
            sql = f"SELECT DISTINCT namespace FROM {table}"
            for space in ("default", "none"):
                rows = server.run(lambda one: one.fetch(sql), write=False, namespace=space).result()  # noqa: B023
                seen[table, space] = {row["namespace"] for row in rows}

        assert set() == set().union(*(found for (_, space), found in seen.items() if space == "none"))
        assert {"default"} == set().union(*seen.values())
        assert {"memories", "rows", "links", "pieces"} <= {table for (table, _), found in seen.items() if found}
        for sql in ("INSERT INTO notes VALUES ('other', 'a', 'b')", "INSERT INTO rows VALUES ('other', 'a', '')"):
            with pytest.raises(StoreError):
                server.run(lambda one: one.execute(sql), write=True, namespace="default").result()  # noqa: B023
    finally:
        server.close()
        administer(database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_role_of_the_guide_uses_only_its_namespace(own_database):
    """After the block of the guide was executed verbatim, a role can use its namespace and sees no other rows."""
    await used(own_database)
    administer(own_database, script=block("Give each team its own namespaces"))
    url = in_database(own_database, Path(own_database).name, user="raiders")
    try:
        assert 3 == await used(url, "raids")
        assert ("raids",) == await admin.list_namespaces(url)
        server = PostgresPool.open(url)
        for table in [row["tablename"] for row in administer(own_database, TABLES)]:
            sql = f"SELECT DISTINCT namespace FROM {table}"
            rows = server.run(lambda one: one.fetch(sql), write=False, settings={"app.across": "on"}).result()  # noqa: B023
            assert {row["namespace"] for row in rows} <= {"raids"}
        server.close()
    finally:
        administer(own_database, "DROP OWNED BY raiders", "DROP ROLE raiders")


def parts_of(sql):
    """Yield the parts of an SQL statement: each subquery in parentheses, innermost first, and then the rest."""
    while inner := re.search(r"\([^()]*\)", sql):
        part = inner[0]
        asks = re.search(r"\b(?:SELECT|INSERT|UPDATE|DELETE)\b", part)
        if asks:
            yield from re.split(r"\bUNION\b", part)
        sql = sql.replace(part, " " if asks or "namespace" not in part else " namespace ", 1)
    yield from re.split(r"\bUNION\b|(?=\bSELECT\b)", sql)


async def test_statements_filter_by_namespace(database, monkeypatch):
    """Except for statements about several namespaces, every statement restricts each table to a namespace."""
    tables = "|".join(row["tablename"] for row in administer(database, TABLES))
    asked = []

    def heard(run):
        def ask(connection, sql, *given):
            asked.append((" ".join(sql.split()), given))
            return run(connection, sql, *given)

        return ask

    for how in ("fetch", "execute"):
        monkeypatch.setattr(Connection, how, heard(getattr(Connection, how)))
    await used(database)
    await admin.list_conversations(database)

    assert len(asked) > 50

    def is_loose(part):
        named = re.findall(rf"\b(?:FROM|JOIN|INTO|UPDATE|USING) ({tables})\b", part)
        return len(re.findall(r"\bnamespace\b", part)) < len(named)

    missing = []
    for sql, given in asked:
        listed = sql.startswith("SELECT key") and "namespace" not in sql
        if any(re.match(one, sql) for one in ACROSS) or (listed and given[0] in LISTED):
            continue
        missing += [(part, given) for part in parts_of(sql) if is_loose(part)]
    assert [] == missing


async def test_tables_can_be_partitioned_by_the_namespace(own_database):
    """Sessions work on tables that are partitioned by a hash of the namespace, as the guide describes."""
    administer(own_database, script=block("Partition or distribute the tables"))
    left = [await used(own_database, name) for name in ("raids", "trade", "auth")]

    assert [3, 3, 3] == left
    sql = "SELECT count(DISTINCT tableoid) AS parts, count(DISTINCT namespace) AS spaces FROM mama_structs.memories"
    assert (2, 3) <= tuple(administer(own_database, sql)[0])
