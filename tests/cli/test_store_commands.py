"""The commands that administer a session's directory."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import mama_structs
from mama_structs import admin
from mama_structs.cli import output as parts
from mama_structs.cli.main import main
from mama_structs.memory.embedding.factory import as_embedder
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.session.session import Session

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mama_structs.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
COMMANDS = ["check", "rebuild", "backup", "export", "import", "maintain", "reembed", "stats"]


def arguments(command, store, other):
    """Return a complete command line for the given command."""
    extra = {"backup": [other], "export": [other], "import": [other], "reembed": ["--embedder", "hash"]}
    return [str(part) for part in [command, store, *extra.get(command, [])]]


def make(path, count=5, *, embedder=None, namespace="default"):
    """Create a directory that contains some decisions on one topic."""

    async def fill():
        async with Session.open(path, embedder=embedder or HashEmbedder(), namespace=namespace) as session:
            await session.memories.save_many(
                {"type": "decision", "topic": "defence", "content": f"shield {number}", "reasoning": "raids"}
                for number in range(count)
            )

    asyncio.run(fill())
    return path


def ask(path, question, *, embedder=None, namespace="default"):
    """Open a directory, pass its memories to *question*, and return the result."""

    async def asked():
        async with Session.open(path, embedder=embedder or HashEmbedder(), namespace=namespace) as session:
            return await question(session.memories)

    return asyncio.run(asked())


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "a.mama")


def said(capsys, *command):
    """Run a command, assert that it succeeds, and return its output."""
    code = main([str(part) for part in command])
    captured = capsys.readouterr()

    assert (0, "") == (code, captured.err)
    return captured.out


def complaint(capsys, *command):
    """Run a command, assert that it fails, and return its only line on stderr."""
    code = main([str(part) for part in command])
    captured = capsys.readouterr()

    assert (1, "", 1) == (code, captured.out, captured.err.count("\n"))
    return captured.err.removeprefix("mama-structs: ")


def test_export_import_and_backup_copy_memories(store, tmp_path, capsys):
    file, copy = tmp_path / "x.jsonl", tmp_path / "copy.mama"

    assert f"5 memories were written to {file}\n" == said(capsys, "export", store, file)
    assert f"{store} was copied to {copy}\n" == said(capsys, "backup", store, copy)
    assert "0 memories added, 5 existed already\n" == said(capsys, "import", copy, file)


def test_import_reports_memories_that_were_embedded_again(store, tmp_path, capsys):
    other = make(tmp_path / "b", 1, embedder=as_embedder(embed, name="mine", dimensions=4))
    said(capsys, "export", other, tmp_path / "x.jsonl")

    assert "1 memories added, 0 existed already, 1 embedded again\n" == said(
        capsys, "import", store, tmp_path / "x.jsonl"
    )


def embed(texts):
    return [[1.0, 0.0, 0.0, 0.0] for _ in texts]


def test_commands_use_given_namespace(store, tmp_path, capsys):
    make(store, 2, namespace="other")
    file = tmp_path / "x.jsonl"

    assert f"2 memories were written to {file}\n" == said(capsys, "export", store, file, "--namespace", "other")
    assert 2 == json.loads(said(capsys, "stats", store, "--namespace", "other", "--json"))["memories"]
    assert 5 == json.loads(said(capsys, "stats", store, "--json"))["memories"]


@pytest.mark.parametrize("command", ["stats", "list", "check", "export", "conversations list"])
def test_unknown_namespace_error_lists_existing_ones(store, tmp_path, capsys, command):
    """Nothing is created."""
    make(store, 1, namespace="user:ada/1")
    more = [tmp_path / "x.jsonl"] if command == "export" else []

    for name, hint in (("other", "there are: default, user:ada/1"), ("user:ada", "did you mean user:ada/1?")):
        said = complaint(capsys, *command.split(), store, *more, "--namespace", name)
        assert f"the store has no namespace '{name}' ({hint}" in said
    assert ("default", "user:ada/1") == asyncio.run(admin.list_namespaces(store))


def test_check_lists_warnings_and_succeeds(store, capsys):
    lines = said(capsys, "check", store).splitlines()
    report = json.loads(said(capsys, "check", store, "--json"))

    assert report["ok"]
    assert ([f"warning: {one['message']}" for one in report["issues"]] or ["no damage found"]) == lines


def test_check_reports_damage_and_repairs_nothing(store, capsys):
    with sqlite3.connect(store / "journal" / "cache.db") as connection:
        connection.execute("UPDATE Cache SET value = x'00' WHERE key LIKE 'memories/%/m/%3'")
    connection.close()

    for _ in range(2):
        assert 1 == main(["check", str(store)])
        assert [] != [line for line in capsys.readouterr().out.splitlines() if line.startswith("error: ")]
    assert 1 == main(["check", str(store), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert {"severity", "kind", "message", "key"} == set(report["issues"][0])


def test_check_reports_damage_that_prevents_opening(store, capsys):
    with sqlite3.connect(store / "journal" / "cache.db") as connection:
        connection.execute("UPDATE Cache SET value = x'00' WHERE key LIKE 'memories/%/head'")
    connection.close()

    assert 1 == main(["check", str(store), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (False, ["damaged"]) == (report["ok"], [one["kind"] for one in report["issues"]])
    assert 1 == main(["check", str(store)])
    assert capsys.readouterr().out.startswith("error: ")


def test_rebuild_reports_damaged_rows(store, capsys):
    """The rows are skipped, and the exit code is 1."""
    assert "5 memories indexed\n" == said(capsys, "rebuild", store)
    with sqlite3.connect(store / "journal" / "cache.db") as connection:
        connection.execute("UPDATE Cache SET value = x'00' WHERE key LIKE 'memories/%/m/%3'")
    connection.close()

    assert 1 == main(["rebuild", str(store)])
    left_out, indexed = capsys.readouterr().out.splitlines()
    assert left_out.startswith("skipped: memories/")
    assert "4 memories indexed" == indexed


def test_stats_prints_table_or_json(store, capsys):
    table = said(capsys, "stats", store)
    figures = json.loads(said(capsys, "stats", store, "--json"))

    assert ("default", 5) == (figures["namespace"], figures["types"]["decision"])
    rows = dict(line.split(maxsplit=1) for line in table.splitlines())
    assert ("hash-384", "5") == (rows["embedder"], rows["types.decision"])
    assert 1 == len({len(line) - len(line.split(maxsplit=1)[1]) for line in table.splitlines()})


def test_maintain_does_nothing_within_a_week(store, capsys):
    """Opening a session counts as maintenance."""
    assert "maintenance was not due\n" == said(capsys, "maintain", store)


def test_reembed_replaces_missing_embedder(tmp_path, capsys):
    store = make(tmp_path / "a", embedder=as_embedder(embed, name="gone", dimensions=4))

    assert "5 memories embedded with hash-384\n" == said(capsys, "reembed", store, "--embedder", "hash")
    assert "hash-384" == json.loads(said(capsys, "stats", store, "--json"))["embedder"]
    assert 5 == len(ask(store, lambda memories: memories.search("shield")))


def test_commands_work_without_the_stores_embedder(tmp_path, capsys):
    store = make(tmp_path / "a", embedder=as_embedder(embed, name="gone", dimensions=4))
    said(capsys, "export", store, tmp_path / "x")
    for command in ("check", "rebuild", "maintain", "stats"):
        said(capsys, command, store)

    assert "0 memories added, 5 existed already\n" == said(capsys, "import", store, tmp_path / "x")


ADDRESS = "postgresql://me:open-sesame@127.0.0.1:1/none"


@pytest.mark.parametrize(
    "given",
    [
        ["conversations", ADDRESS],
        ["demo", ADDRESS],
        ["migrate", ADDRESS, "old.db"],
        ["list", ADDRESS.replace("postgresql", "postgresql+asyncpg")],
        ["list", f" {ADDRESS}"],
        ["backup", ADDRESS, "copy"],
    ],
)
def test_errors_do_not_show_password_of_url(given, tmp_path, capsys, monkeypatch):
    """Nothing is created."""
    monkeypatch.chdir(tmp_path)
    code: object = 0
    try:
        code = main(given)
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()

    assert code in {1, 2}
    assert err
    assert "open-sesame" not in (out + err).lower()
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_reject_directory_without_store(command, tmp_path, capsys):
    """Nothing is created."""
    (tmp_path / "empty").mkdir()
    for store in (tmp_path / "none", tmp_path / "empty", tmp_path / ("x" * 300), "\0"):
        assert "is not the directory of a store (nothing was created; check the path)" in complaint(
            capsys, *arguments(command, store, tmp_path / "other")
        )

    assert ["empty"] == [path.name for path in tmp_path.iterdir()]
    assert [] == list((tmp_path / "empty").iterdir())


def test_errors_are_one_line_with_hint(store, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "no-export").write_text("hello\n")

    assert "name one that does not exist yet" in complaint(capsys, "backup", store, tmp_path / "full")
    assert "No such file" in complaint(capsys, "export", store, tmp_path / "none" / "x")
    assert "session's own data" in complaint(capsys, "export", store, store / "journal" / "cache.db")
    assert "No such file" in complaint(capsys, "import", store, tmp_path / "none")
    assert "line 1: it is not the first line of an export" in complaint(capsys, "import", store, tmp_path / "no-export")
    assert "namespace" in complaint(capsys, "stats", store, "--namespace", "")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["reembed", "x"], "the following arguments are required: --embedder"),
        (["reembed", "x", "--embedder", "best"], "invalid choice: 'best'"),
        (["backup", "x"], "the following arguments are required: TARGET"),
        (["export"], "the following arguments are required: STORE, FILE"),
    ],
)
def test_wrong_usage_exits_with_2(wrong, message, capsys):
    with pytest.raises(SystemExit) as exited:
        main(wrong)

    assert 2 == exited.value.code
    assert message in capsys.readouterr().err


INTERRUPTED = """
import os, signal, sys
from mama_structs.cli.main import main
from mama_structs.memory.upkeep import jsonl_transfer as transfer

transfer.CHUNK_LINES = 2
take = transfer._Import._store_batch
calls = 0

def interrupted(*arguments):
    global calls
    calls += 1
    if calls == 2:
        os.kill(os.getpid(), signal.SIGINT)
    return take(*arguments)

transfer._Import._store_batch = interrupted
sys.exit(main(sys.argv[1:]))
"""


def test_interrupted_import_keeps_complete_memories_and_exits_with_130(store, tmp_path, capsys):
    target, file = make(tmp_path / "b", 0), tmp_path / "x"
    said(capsys, "export", store, file)
    make_head(target)
    command = [sys.executable, "-c", INTERRUPTED, "import", str(target), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=600, check=False)
    between = ask(target, lambda memories: memories.count())

    assert (130, "", "mama-structs: interrupted; run it again to go on\n") == (
        done.returncode,
        done.stdout,
        done.stderr,
    )
    assert 1 < between < 6
    assert f"{6 - between} memories added, {between - 1} existed already\n" == said(capsys, "import", target, file)
    assert json.loads(said(capsys, "check", target, "--json"))["ok"]


def make_head(store):
    """Save a memory, because an empty store has no embedder yet and would get the default one."""
    ask(store, lambda memories: memories.save_context("first"))


def test_failed_backup_on_full_disk_leaves_nothing(store, tmp_path):
    code = (
        "import resource, signal, sys\n"
        "from mama_structs.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        # While the file-size limit is set, an import would write truncated bytecode.
        "sys.dont_write_bytecode = True\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "backup", str(store), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=600, check=False)

    assert (1, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert "there is no room for" in done.stderr
    assert ["a.mama"] == [path.name for path in tmp_path.iterdir()]


# Progress output


def test_progress_prints_at_most_one_line_per_second_without_terminal(monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr(parts.time, "monotonic", lambda: now)
    with parts.report_progress("imported", "memories") as tell:
        for step in range(30):
            now = 100.0 + step / 10
            tell(step * 100, 3000)

    assert "imported 1,000 of 3,000 memories\nimported 2,000 of 3,000 memories\n" == capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_shows_bar_on_terminal(monkeypatch):
    pytest.importorskip("tqdm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with parts.report_progress("imported", "memories") as tell:
        tell(1, 3)
        tell(3, 3)

    assert "imported: " in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")


def test_progress_prints_lines_without_tqdm(monkeypatch):
    terminal = Terminal()
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(parts, "_PROGRESS_INTERVAL_SECONDS", 0)
    with parts.report_progress("imported", "memories") as tell:
        tell(3, 3)

    assert "imported 3 of 3 memories\n" == terminal.getvalue()


def test_progress_is_silent_without_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(parts, "_PROGRESS_INTERVAL_SECONDS", 0)
    with parts.report_progress("imported", "memories") as tell:
        tell(3, 3)


def test_output_escapes_control_characters_of_paths(store, tmp_path, capsys):
    assert "\\x1b[2J" in said(capsys, "export", store, tmp_path / "\x1b[2J")
