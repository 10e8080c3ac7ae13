"""The ``import-from`` command."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from importing_helpers import entity, graph, listing, mem0_home, relation
from memory_helpers import count

import mama_structs
from mama_structs.cli import command_table as table
from mama_structs.errors import InvalidArgument, MigrationError
from mama_structs.importers.dispatch import READERS

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mama_structs.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}


def run(*command):
    """Run a command, and return its exit code and output."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = table.run(table.parse(["import-from", *map(str, command)]))
    return code, said.getvalue()


@pytest.fixture
def source(tmp_path):
    return graph(tmp_path / "memory.jsonl", entity("Ada", "person", "prefers tabs"), relation("Ada", "knows", "Eve"))


def test_command_supports_every_source():
    assert table._IMPORT_SOURCES == tuple(READERS)


def test_import_creates_store_and_second_run_adds_nothing(source, tmp_path):
    """The report names skipped items."""
    before = listing(source.parent)
    code, text = run("mcp-memory", source, tmp_path / "new.mama", "--embedder", "hash", "--namespace", "mine")
    again = json.loads(run("mcp-memory", source, tmp_path / "new.mama", "--namespace", "mine", "--json")[1])

    assert 0 == code
    assert "relations Ada knows Eve: no_such_end: left out: Eve is not there" in text
    assert (0, 2, 2) == (again["added"], again["existing"], count(tmp_path / "new.mama", "mine"))
    assert before == {name: one for name, one in listing(source.parent).items() if "new.mama" not in name}


def test_dry_run_creates_nothing(source, tmp_path, capsys):
    code, text = run("mcp-memory", source, tmp_path / "new.mama", "--dry-run", "--embedder", "hash")

    assert (0, True) == (code, "\n2 of 3 items would be added, 0 there already, 1 left out\n" in text)
    assert not (tmp_path / "new.mama").exists()
    assert "processed 3 of 3 items\n" == capsys.readouterr().err


def test_import_of_unreadable_source_creates_nothing(source, tmp_path):
    for kind, problem in (("mem0", MigrationError), ("basic-memory", InvalidArgument), ("langgraph", MigrationError)):
        with pytest.raises(problem):
            run(kind, tmp_path if kind == "basic-memory" else source, tmp_path / "new.mama")

    assert not (tmp_path / "new.mama").exists()


def test_import_of_one_mem0_user_uses_given_namespace(tmp_path):
    home = mem0_home(tmp_path / "mem0")
    run("mem0", home, tmp_path / "new.mama", "--user", "ada", "--namespace", "user:ada", "--embedder", "hash")

    assert (2, 0) == (count(tmp_path / "new.mama", "user:ada"), count(tmp_path / "new.mama"))


def test_interrupted_import_can_be_continued(tmp_path):
    source = graph(tmp_path / "memory.jsonl", *(entity(f"Name{n}", "thing", f"fact {n}") for n in range(150)))
    command = [sys.executable, "-m", "mama_structs", "import-from", "mcp-memory", str(source), "new.mama"]
    command += ["--embedder", "hash"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "new.mama" / "journal").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=600)[1]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True)

    assert 130 == process.returncode
    assert "Traceback" not in said
    assert "processed 300 of 300 items" in done.stderr
    assert 300 == count(tmp_path / "new.mama")
