"""Copies of a store from a directory to a server and back."""

import asyncio
from itertools import count

import pytest
from copying_helpers import ADA, exported, filled, opened
from killing_helpers import killed_commands
from postgres_helpers import administer

from mama_structs import admin
from mama_structs.errors import InvalidArgument, StoreFull, StoreMismatch
from mama_structs.settings import ServerSettings
from mama_structs.storage.postgres.pool import PostgresPool

FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION USING ERRCODE = '53100'; END $$
"""


async def test_copy_to_server_and_back_is_identical(tmp_path, database):
    """Exports are byte-equal, conversations are complete, and a repeated copy adds nothing."""
    await filled(tmp_path / "a")
    copies = [(tmp_path / "a", database), (database, tmp_path / "b")]
    found = [await admin.copy(*places) for places in copies for _ in range(2)]

    assert all(one.ok for one in found)
    assert 1 == len({str([(own.counts, own.digests) for own in one.namespaces]) for one in found})
    assert [6, 0, 6, 0] == [one.namespaces[0].added for one in found]
    assert await exported(tmp_path / "a") == await exported(tmp_path / "b")


async def test_killed_copy_to_server_continues_on_next_run(tmp_path, database):
    """After a kill at any statement, the next run continues and gives the same result."""
    await filled(tmp_path / "a")
    with killed_commands("copy", tmp_path / "a", database) as is_killed:
        for steps in count(2, 19):
            if not await asyncio.to_thread(is_killed, steps):
                break
    assert steps > 30
    assert (await admin.copy(database, tmp_path / "b")).ok
    assert await exported(tmp_path / "a") == await exported(tmp_path / "b")


@pytest.mark.parametrize("table", ["memories", "rows"])
async def test_copy_to_full_server_continues_on_next_run(tmp_path, own_database, table):
    """A full disk raises a typed error, and the next run completes the copy."""
    await filled(tmp_path / "a")
    administer(
        own_database,
        FULL,
        f"CREATE TRIGGER full_disk BEFORE INSERT ON mama_structs.{table} EXECUTE FUNCTION full_disk()",
    )
    with pytest.raises(StoreFull, match="no room") as caught:
        await admin.copy(tmp_path / "a", own_database)
    assert caught.value.hint
    administer(own_database, f"DROP TRIGGER full_disk ON mama_structs.{table}")

    assert (await admin.copy(tmp_path / "a", own_database)).ok
    async with opened(own_database) as session:
        assert (await admin.check(session)).ok


async def test_copy_to_server_rejects_different_content(tmp_path, database):
    """Existing memories of the namespace stay unchanged; another namespace can be copied separately."""
    await filled(tmp_path / "a")
    async with opened(database) as session:
        saved = await session.memories.save_context("of somebody else")
    with pytest.raises(StoreMismatch, match="'default'"):
        await admin.copy(tmp_path / "a", database)
    with pytest.raises(InvalidArgument):
        await admin.copy(database, database)
    assert (await admin.copy(tmp_path / "a", database, namespace=ADA)).ok

    async with opened(database) as session:
        assert [saved.id] == [memory.id for memory in await session.memories.list()]


async def test_copy_to_halfvec_server_compares_rounded_vectors(tmp_path, database):
    """The server rounds the vectors, and a repeated copy adds nothing."""
    await filled(tmp_path / "a")
    server = PostgresPool.open(database, options=ServerSettings(half_precision=True))
    try:
        found = [await admin.copy(tmp_path / "a", database) for _ in range(2)]
    finally:
        server.close()

    assert all(one.ok for one in found)
    assert [6, 0] == [one.namespaces[0].added for one in found]
