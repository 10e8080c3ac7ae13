"""A store on a read-only file system, opened for reading by sessions and by the command line."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mama_structs import HashEmbedder, Session, admin, sync
from mama_structs.cli.main import main
from mama_structs.errors import MemoryNotFound, StoreFull, StoreReadOnly
from mama_structs.storage import cache_factory

ROOT = Path(__file__).parents[2]
COUNT = 250
WRITER = f"""
import os, signal, sys
from mama_structs import HashEmbedder
from mama_structs.sync import Session

session = Session.open(sys.argv[1], embedder=HashEmbedder(), conversation="talk")
session.memories.save_many([{{"type": "insight", "content": f"deploy note {{at}}"}} for at in range({COUNT})])
session.records.put("all", "k", {{"n": 1}}, keep_history=True)
session.observe('<ref id="plan">shields first</ref>')
session.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed_store(tmp_path_factory):
    """Return the path of a store whose writer was killed, so that the log contains all of its data."""
    path = tmp_path_factory.mktemp("killed") / "agent.mama"
    done = subprocess.run([sys.executable, "-c", WRITER, path], check=False, cwd=ROOT)
    assert -signal.SIGKILL == done.returncode
    return path


@pytest.fixture(params=["closed", "killed", "killed, without index"])
def store(request, tmp_path, killed_store):
    """Return the path of a store on a read-only mount."""
    source, mounted = tmp_path / "source", tmp_path / "mounted"
    mounted.mkdir()
    shutil.copytree(killed_store, source / "agent.mama")
    if request.param == "closed":
        sync.Session.open(source / "agent.mama", embedder=HashEmbedder()).close()
        assert not (source / "agent.mama" / "journal" / "cache.db-wal").exists()
    if request.param == "killed, without index":
        (source / "agent.mama" / "journal" / "cache.db-shm").unlink()
    try:
        subprocess.run(["mount", "--bind", source, mounted], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user cannot mount a file system")
    subprocess.run(["mount", "-o", "remount,ro,bind", mounted], check=True, capture_output=True)
    yield mounted / "agent.mama"
    subprocess.run(["umount", "--lazy", mounted], check=True)


async def test_session_reads_and_rejects_writes(store):
    """Every read works, and every write raises StoreReadOnly with a hint. Nothing is left in the log of warnings."""
    async with Session.open(store, embedder=HashEmbedder()) as session:
        memories, records = session.memories, session.records
        hits = await memories.search("deploy note")
        (memory,) = await memories.list(limit=1)
        for call in (
            lambda: memories.save("more"),
            lambda: memories.delete(memory),
            lambda: memories.erase(memory),
            lambda: records.put("all", "k", 2),
            lambda: records.delete_all("all"),
            lambda: admin.delete_conversation(session, "talk"),
        ):
            with pytest.raises(StoreReadOnly, match=r"admin\.copy"):
                await call()
        recalled = await session.recall("deploy note 7")
        report = await admin.check(session)

        assert COUNT == await memories.count()
        assert "deploy note" in hits[0].content
        assert {"n": 1} == (await records.get("all", "k")).value
        assert ["k"] == [one.key for one in await records.list("all", where={"n": 1})]
        assert [("all",)] == await records.labels()
        assert "deploy note 7" in str(recalled)
        assert report.ok
    async with Session.open(store, embedder=HashEmbedder(), conversation="talk") as session:
        assert "shields first" == session.refs.read("ref:plan").text


def test_command_line_reads(store, tmp_path, capsys):
    """List, search, check, stats, export and view work."""
    for arguments in (
        ["list", store],
        ["search", store, "deploy note"],
        ["check", store],
        ["stats", store],
        ["export", store, tmp_path / "out.jsonl"],
        ["view", store, "-o", tmp_path / "out.html"],
    ):
        assert 0 == main([*map(str, arguments)]), (arguments, capsys.readouterr())

    printed = capsys.readouterr().out
    assert "deploy note" in printed
    assert COUNT < len((tmp_path / "out.jsonl").read_text().splitlines())
    assert "deploy note" in (tmp_path / "out.html").read_text()


async def test_copy_of_read_only_store_is_writable(store, tmp_path):
    """The hint of the error works."""
    await admin.copy(store, tmp_path / "copy.mama")
    async with Session.open(tmp_path / "copy.mama", embedder=HashEmbedder()) as session:
        await session.memories.save("more")

        assert COUNT + 1 == await session.memories.count()


CHANGER = """
import sys
from mama_structs import HashEmbedder
from mama_structs.sync import Session

session = Session.open(sys.argv[1], embedder=HashEmbedder())
session.memories.save_many([{"type": "insight", "content": f"new {at}"} for at in range(200)])
session.memories.delete(sys.argv[2])
if sys.argv[3] == "close":
    session.close()
print("ready", flush=True)
sys.stdin.read()
session.close()
"""


@pytest.mark.parametrize("then", ["close", "stay"])
async def test_changes_of_writer_are_visible_without_write_permission(tmp_path, monkeypatch, then):
    """Also those of a writer that has closed the store, so that its log is gone again."""
    async with Session.open(tmp_path / "a", embedder=HashEmbedder()) as session:
        old = await session.memories.save("a")
    monkeypatch.setattr(cache_factory, "_is_read_only", lambda _directory: True)
    reader = await Session.open(tmp_path / "a", embedder=HashEmbedder())
    assert 1 == await reader.memories.count()
    command = [sys.executable, "-c", CHANGER, str(tmp_path / "a"), old.id, then]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:  # noqa: ASYNC220
        assert "ready\n" == writer.stdout.readline()

        assert 200 == await reader.memories.count()
        with pytest.raises(MemoryNotFound):
            await reader.memories.get(old.id)
        writer.communicate()
    assert 200 == await reader.memories.count()
    assert (await admin.check(reader)).ok
    await reader.close()


async def test_log_is_not_copied_without_space(tmp_path, monkeypatch):
    """The error states the sizes and what to do, and nothing is copied."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    async with Session.open(tmp_path / "a", embedder=HashEmbedder()) as session:
        await session.memories.save("a")
    (tmp_path / "a" / "journal" / "cache.db-wal").write_bytes(bytes(5_000))
    monkeypatch.setattr(cache_factory, "_is_read_only", lambda _directory: True)
    monkeypatch.setattr(cache_factory.shutil, "disk_usage", lambda _path: SimpleNamespace(free=10_000))
    with pytest.raises(StoreFull, match=r"a copy of [\d,]+ bytes, but .* only 10,000 bytes.*TMPDIR"):
        await Session.open(tmp_path / "a", embedder=HashEmbedder())

    assert [] == [*temporary.iterdir()]


async def test_no_copy_remains_after_close(store, tmp_path, monkeypatch):
    """The copy of a log without its index is deleted when the session closes."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    async with Session.open(store, embedder=HashEmbedder()):
        copies = [*temporary.iterdir()]
    is_copied = not (store / "journal" / "cache.db-shm").exists() and (store / "journal" / "cache.db-wal").exists()

    assert is_copied == bool(copies)
    assert [] == [*temporary.iterdir()]
