"""The commands ``migrate`` and ``rollback`` for memories of v1.0."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from mama_v1_0 import OldStore
from memory_helpers import count

import mama_structs
from mama_structs.cli import command_table as table
from mama_structs.cli import output as printing
from mama_structs.errors import InvalidArgument, MigrationError
from mama_structs.session.session import Session

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mama_structs.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.db"
    with OldStore.made(path) as store:
        store.history(10)
        store.decision("odd", confidence=None)
    return path


def run(*command):
    """Run a command, and return its exit code and output."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = table.run(table.parse([str(part) for part in command]))
    return code, said.getvalue()


def test_migrate_and_rollback_fill_and_empty_the_store(old, tmp_path):
    """A second migration adds nothing."""
    store = tmp_path / "new.mama"
    code, text = run("migrate", old, store, "--embedder", "hash", "--namespace", "mine")
    again = json.loads(run("migrate", old, store, "--namespace", "mine", "--json")[1])
    memories = count(store, "mine")
    undone = json.loads(run("rollback", store, "--namespace", "mine", "--json")[1])

    assert (0, True) == (code, "no_confidence" in text)
    assert f"{memories} memories added" in text
    assert (0, memories) == (again["added"], again["existing"])
    assert (memories, 0) == (undone["memories"], count(store, "mine"))
    assert "nothing to roll back" in run("rollback", store, "--namespace", "mine")[1]


def test_progress_without_terminal_is_one_line(old, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(printing, "_PROGRESS_INTERVAL_SECONDS", 0)
    run("migrate", old, tmp_path / "new.mama", "--embedder", "hash")
    told = capsys.readouterr().err

    assert 1 == told.count("\n")
    assert told.startswith("migrated ")
    assert told.endswith(" steps\n")


def test_dry_run_creates_nothing(old, tmp_path):
    code, text = run("migrate", old, tmp_path / "new.mama", "--dry-run", "--embedder", "hash")

    assert (0, True) == (code, "would be added" in text)
    assert ["old.db"] == [path.name for path in tmp_path.iterdir()]


def test_migrate_and_rollback_of_bad_file_create_nothing(tmp_path):
    (tmp_path / "bad.db").write_bytes(b"hello")

    with pytest.raises(MigrationError, match="no SQLite database"):
        run("migrate", tmp_path / "bad.db", tmp_path / "new.mama")
    with pytest.raises(InvalidArgument, match="not the directory of a store"):
        run("rollback", tmp_path / "new.mama")

    assert ["bad.db"] == [path.name for path in tmp_path.iterdir()]


def test_rollback_with_force_deletes_linked_memories(old, tmp_path):
    store = tmp_path / "new.mama"
    run("migrate", old, store, "--embedder", "hash")

    async def change():
        async with Session.open(store) as session:
            (decision,) = await session.memories.list(limit=1, type="decision")
            await session.memories.set_outcome(decision.id, "SUCCESS")

    asyncio.run(change())

    with pytest.raises(MigrationError, match="were changed since"):
        run("rollback", store)

    assert "1 of them had been changed since" in run("rollback", store, "--force")[1]


INTERRUPTED = """
    import sys
    from mama_structs.cli import command_table as table
    from mama_structs.memory.embedding.hash_embedder import HashEmbedder

    def slow(self, texts, **_):
        print("embedding", flush=True)
        import time; time.sleep(0.5); raise SystemError

    HashEmbedder.embed = slow
    table.run(table.parse(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_interrupted_migration_explains_how_to_continue(old, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), "migrate", old, tmp_path / "new", "--embedder", "hash"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    with process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()

    assert "interrupted; run it again to go on" in said
