"""Simulated power failures: unsynced data is lost, acknowledged data is not."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from crash.oracle import EMBEDDERS
from crash.power import build, environment, lose_unsynced, record

import mama_structs
from mama_structs import Session
from mama_structs.errors import StoreDamaged

SOURCE = os.pathsep.join([str(Path(mama_structs.__file__).parents[1]), str(Path(__file__).parents[1])])
WAL = "cache.db-wal"

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Build the library to preload. Skip the test if it cannot be built."""
    built = build(tmp_path_factory.mktemp("library"))
    if isinstance(built, str):
        pytest.skip(built)
    return built


def run(code, library, store, shadow, *, unsynced=""):
    """Run *code* in a process that then exits without cleanup, and discard its unsynced writes."""
    record(store, shadow)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{code}\nimport os; os._exit(7)", str(store)],
        env=environment(library, store, shadow, unsynced=unsynced) | {"PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (7, "") == (done.returncode, done.stderr)
    lose_unsynced(store, shadow, random.Random(1), kept=0.0)
    return done.stdout


FILES = """
import os, sys
os.chdir(sys.argv[1])

def write(name, text, sync=True):
    with open(name, "a") as file:
        file.write(text)
        file.flush()
        if sync:
            os.fdatasync(file.fileno())

def sync_directory():
    fd = os.open(".", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)

write("synced", "a")
write("unsynced", "a", sync=False)
write("half", "a")
write("half", "b", sync=False)
write("old", "changed", sync=False)
for name in ("renamed", "linked", "renamed-unsynced"):
    write(f"{name}.new", name, sync=name != "renamed-unsynced")
os.rename("renamed.new", "renamed")
os.link("linked.new", "linked")
os.rename("renamed-unsynced.new", "renamed-unsynced")
os.unlink("removed")
sync_directory()
write("late.new", "late")
os.rename("late.new", "late")
os.unlink("kept")
os.truncate("cut", 0)
"""


def test_only_synced_content_and_names_survive(tmp_path, library):
    """Content is durable after a sync of its file, names after a sync of their directory."""
    store = tmp_path / "store"
    store.mkdir()
    for name in ("old", "removed", "kept", "cut"):
        (store / name).write_text(name)
    run(FILES, library, store, tmp_path / "shadow")

    assert {
        "synced": "a",
        "unsynced": "",
        "half": "a",
        "old": "old",
        "renamed": "renamed",
        "linked": "linked",
        "linked.new": "linked",
        "renamed-unsynced": "",
        "late.new": "late",
        "kept": "kept",
        "cut": "cut",
    } == {path.name: path.read_text() for path in store.iterdir()}


SAVING = """
import asyncio, sys
from mama_structs import Session
from mama_structs.storage import cache_factory as opening
from crash.oracle import EMBEDDERS

opening.SETTINGS["sqlite_synchronous"] = {synchronous}

async def main():
    session = await Session.open(sys.argv[1], embedder=EMBEDDERS[0], conversation="c")
    for number in range(3):
        memory = await session.memories.save_decision(f"decision {{number}}", topic="topic", reasoning="why")
        print(memory.id, flush=True)

asyncio.run(main())
"""


async def ids_in(store):
    """Return the ids of all memories, or None if the database is damaged."""
    try:
        async with Session.open(store, embedder=EMBEDDERS[0]) as session:
            return [memory.id async for memory in session.memories.iter_all()]
    except StoreDamaged:
        return None


@pytest.mark.parametrize(
    ("synchronous", "unsynced", "kept"), [(2, "", True), (1, "", False), (0, "", False), (2, WAL, False)]
)
def test_acknowledged_save_survives_power_failure_only_if_synced(tmp_path, library, synchronous, unsynced, kept):
    """It survives with the package's settings, but not with weaker ones or without log syncs."""
    store = tmp_path / "store"
    said = run(SAVING.format(synchronous=synchronous), library, store, tmp_path / "shadow", unsynced=unsynced).split()

    there = asyncio.run(ids_in(store))

    assert 3 == len(said)
    assert kept is (said == there)
