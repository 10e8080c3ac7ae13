"""Named locks, and temporary directories whose lifetime depends on a lock."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mama_structs
from mama_structs.errors import StoreBusy, StoreError
from mama_structs.storage import locks as locks_module
from mama_structs.storage.files import TemporaryDirectory
from mama_structs.storage.files import delete_leftovers as sweep_temporary
from mama_structs.storage.locks import DirectoryLocks, LockFile, _offset_of_name
from mama_structs.storage.sqlite_store import SqliteStorage

# Child processes must import the package under test.
SRC = str(Path(mama_structs.__file__).parents[1])
fcntl = pytest.importorskip("fcntl", reason="there are no record locks")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no record locks")

CLAIM = """
import sys, time
from pathlib import Path
from mama_structs.errors import StoreBusy
from mama_structs.storage.locks import DirectoryLocks
locks = DirectoryLocks(Path(sys.argv[1]))
for name in sys.argv[2:]:
    try:
        locks.claim(name)
    except StoreBusy as error:
        assert 0 == error.waited
        print("busy", flush=True)
    else:
        print("claimed", flush=True)
sys.stdin.readline()
"""

TEMPORARY = """
import asyncio, sys
from mama_structs.storage.sqlite_store import SqliteStorage
storage = SqliteStorage.temporary()
storage.enqueue([("k", b"1")])
asyncio.run(storage.flush())
print(storage.directory.parent, flush=True)
sys.stdin.readline()
"""


def start(code, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC, **environment},
    )


def end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def claimed_elsewhere(directory, *names):
    """Return, for each of *names*, True if another process can claim the name."""
    process = start(CLAIM, directory, *names)
    answers = [process.stdout.readline().strip() for _ in names]
    end(process)
    return [answer == "claimed" for answer in answers]


@pytest.fixture(params=["of the opening", "of the process"])
def kind(request, monkeypatch):
    """The kind of locks to test. The test is skipped if the platform does not have it."""
    if request.param == "of the process":
        monkeypatch.setattr(locks_module, "fcntl", WithoutOwnLocks())
    elif not locks_module.HAS_OFD_LOCKS:
        pytest.skip("there are no such locks here")
    return request.param


class WithoutOwnLocks:
    """A fake `fcntl` module of a kernel without open-file-description locks."""

    def __getattr__(self, name):
        return getattr(fcntl, name)

    def fcntl(self, fd, command, argument=0):
        assert command == fcntl.F_OFD_SETLK
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


@pytest.fixture
def locks(tmp_path):
    locks = DirectoryLocks(tmp_path)
    yield locks
    locks.close()


def test_claimed_name_is_busy_until_released(tmp_path, kind, locks):
    """A claimed name is busy for other holders in this process and in other processes."""
    other = DirectoryLocks(tmp_path)
    locks.claim("a")
    with pytest.raises(StoreBusy) as caught:
        other.claim("a")
    assert 0 == caught.value.waited
    with pytest.raises(StoreBusy):
        locks.claim("a")
    assert [False, True] == claimed_elsewhere(tmp_path, "a", "b")
    other.release("a")
    assert [False] == claimed_elsewhere(tmp_path, "a")
    locks.release("a")
    locks.release("a")
    assert [True] == claimed_elsewhere(tmp_path, "a")
    other.claim("a")
    other.close()


def test_close_releases_only_own_names(tmp_path, kind, locks):
    """The other holder's names stay locked, although all holders of a process share one descriptor."""
    other = DirectoryLocks(tmp_path)
    locks.claim("a")
    other.claim("b")
    other.close()
    other.close()

    assert [False, True] == claimed_elsewhere(tmp_path, "a", "b")


def test_claim_succeeds_after_holding_process_was_killed(tmp_path, kind, locks):
    """The kernel releases the locks of a killed process."""
    process = start(CLAIM, tmp_path, "a")
    assert "claimed" == process.stdout.readline().strip()
    with pytest.raises(StoreBusy):
        locks.claim("a")
    end(process)

    locks.claim("a")


def test_lock_file_uses_one_descriptor_for_many_locks(tmp_path, locks):
    """Names are offsets in one file, which a process opens once, even through different paths."""
    (tmp_path / "link").symlink_to(tmp_path)
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("descriptors cannot be counted here")
    before = len(list(descriptors.iterdir()))
    other = DirectoryLocks(tmp_path / "link")
    for number in range(1000):
        (locks if number % 2 else other).claim(f"conversation {number}")

    assert before == len(list(descriptors.iterdir()))
    assert 0 == (tmp_path / "locks").stat().st_size
    with pytest.raises(StoreBusy):
        other.claim("conversation 999")
    other.close()
    locks.close()
    assert before - 1 == len(list(descriptors.iterdir()))


def test_lock_file_is_private(tmp_path, locks):
    """No other user can open the file and lock a name."""
    assert 0o600 == stat.S_IMODE((tmp_path / "locks").stat().st_mode)


def test_lock_file_that_is_a_symbolic_link_is_rejected(tmp_path):
    """A planted link does not make this process open another file."""
    (tmp_path / "target").touch()
    (tmp_path / "locks").symlink_to(tmp_path / "target")

    with pytest.raises(StoreError):
        DirectoryLocks(tmp_path)


def test_missing_directory_raises_store_error(tmp_path):
    """Locks do not create the directory."""
    with pytest.raises(StoreError):
        DirectoryLocks(tmp_path / "missing")


@given(st.text(), st.text())
def test_offset_is_valid_and_unique_for_each_name(name, other):
    """Different names have different offsets, all in the valid range."""
    assert (name == other) == (_offset_of_name(name) == _offset_of_name(other))
    assert 0 <= _offset_of_name(name) < 2**62


def test_claim_accepts_any_text_as_name(locks):
    """A name may be any text."""
    for name in ("", "\0", "대화", "\ud800", "x" * 10_000):
        locks.claim(name)


def test_racing_threads_claim_name_once(tmp_path):
    """If threads race for a name, exactly one claims it."""
    won = []
    barrier = threading.Barrier(8)
    holders = [DirectoryLocks(tmp_path) for _ in range(8)]

    def race(holder):
        barrier.wait()
        try:
            holder.claim("a")
        except StoreBusy:
            return
        won.append(holder)

    workers = [threading.Thread(target=race, args=[holder]) for holder in holders]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert 1 == len(won)
    for holder in holders:
        holder.close()


def test_claim_raises_after_close(tmp_path):
    """A claim on a closed holder raises, instead of creating a lock without owner."""
    locks = DirectoryLocks(tmp_path)
    locks.close()

    with pytest.raises(ValueError, match="closed"):
        locks.claim("a")


@pytest.mark.skipif(not locks_module.HAS_OFD_LOCKS, reason="closing any descriptor drops the locks of a process")
def test_copying_the_directory_releases_no_lock(tmp_path):
    """A program may copy or read the files of its session's directory without losing locks."""
    (tmp_path / "session").mkdir()
    locks = DirectoryLocks(tmp_path / "session")
    locks.claim("a")
    shutil.copytree(tmp_path / "session", tmp_path / "copy")
    (tmp_path / "session" / "locks").read_bytes()

    assert [False, True] == claimed_elsewhere(tmp_path / "session", "a", "b")
    locks.claim("b")
    assert [False, False, True] == claimed_elsewhere(tmp_path / "session", "a", "b", "c")
    locks.close()
    assert [True] == claimed_elsewhere(tmp_path / "session", "a")


@pytest.mark.skipif(not locks_module.HAS_OFD_LOCKS, reason="there is one kind of locks")
def test_both_kinds_of_locks_exclude_each_other(tmp_path, monkeypatch):
    """Processes with and without open-file-description locks exclude each other at every offset."""
    for offset in (0, 1, 2**31, 2**32 + 5, 2**62 - 1):
        with monkeypatch.context() as patch:
            patch.setattr(locks_module, "_offset_of_name", lambda _, offset=offset: offset)
            locks = DirectoryLocks(tmp_path)
            locks.claim("")
        code = f"""
import fcntl
file = open({str(tmp_path / "locks")!r}, "r+b")
for place in {[max(0, offset - 1), offset, offset + 1]}:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        print("free", place)
    except OSError:
        print("held", place)
"""
        process = start(code)
        said = set(process.stdout.read().split("\n"))
        end(process)
        locks.close()

        assert {f"held {offset}", f"free {offset + 1}", ""} | ({f"free {offset - 1}"} if offset else set()) == said


def test_second_descriptor_of_lock_file_is_not_closed(tmp_path, kind, monkeypatch):
    """If a path turns out to be a file already open, closing its descriptor would release the locks on it."""
    locks = DirectoryLocks(tmp_path)
    locks.claim("a")

    def late(*args, **kwargs):
        raise FileNotFoundError

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", late)
        other = LockFile.open(tmp_path / "locks")
    other.close()

    assert [False] == claimed_elsewhere(tmp_path, "a")
    locks.close()
    assert [True] == claimed_elsewhere(tmp_path, "a")


FORK = """
import os, sys
from pathlib import Path
from mama_structs.errors import StoreBusy, WrongLoop
from mama_structs.storage.locks import DirectoryLocks
locks = DirectoryLocks(Path(sys.argv[1]))
locks.claim("a")
child = os.fork()
if child == 0:
    for call in (lambda: locks.claim("b"), lambda: locks.release("a")):
        try:
            call()
        except WrongLoop:
            continue
        os._exit(1)
    locks.close()
    own = DirectoryLocks(Path(sys.argv[1]))
    own.claim("b")
    try:
        own.claim("a")
    except StoreBusy:
        own.close()
        os._exit(0)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
locks.claim("b")
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_child_holds_no_locks(tmp_path, locks):
    """A child does not hold its parent's locks, cannot release them, and can claim others with its own holder."""
    process = start(FORK, tmp_path)
    assert "held" == process.stdout.readline().strip()
    with pytest.raises(StoreBusy):
        locks.claim("a")
    end(process)


ORPHAN = """
import os, sys
from pathlib import Path
from mama_structs.storage.locks import DirectoryLocks
locks = DirectoryLocks(Path(sys.argv[1]))
locks.claim("a")
if os.fork() == 0:
    sys.stdin.readline()
    print("alive", flush=True)
    sys.stdin.readline()
    os._exit(0)
print("forked", flush=True)
os.waitpid(-1, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_child_does_not_keep_locks_of_killed_parent(tmp_path, locks):
    """After the parent was killed its names are free, although the child is still alive."""
    process = start(ORPHAN, tmp_path)
    assert "forked" == process.stdout.readline().strip()
    process.stdin.write("\n")
    process.stdin.flush()
    assert "alive" == process.stdout.readline().strip()
    with pytest.raises(StoreBusy):
        locks.claim("a")
    process.kill()
    process.wait()

    locks.claim("a")
    end(process)


REUSED = """
import os, sys
from pathlib import Path
from mama_structs.storage.locks import DirectoryLocks
locks = DirectoryLocks(Path(sys.argv[1]))
number = locks._file.fd
other = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
os.dup2(other, number)
child = os.fork()
if child == 0:
    os.write(number, b"theirs")
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_child_does_not_close_reused_descriptor(tmp_path):
    """If the program reused the descriptor's number for its own file, the child keeps that file open."""
    process = start(REUSED, tmp_path, tmp_path / "own")
    assert "0" == process.stdout.readline().strip()
    end(process)

    assert b"theirs" == (tmp_path / "own").read_bytes()


def test_sweep_deletes_temporary_store_of_killed_process(tmp_path, monkeypatch):
    """The store exists as long as its process, regardless of its age; a later store deletes it after a kill."""
    process = start(TEMPORARY, TMPDIR=str(tmp_path))
    directory = Path(process.stdout.readline().strip())
    os.utime(directory, (0, 0))
    os.utime(directory / "alive", (0, 0))
    assert 0 == sweep_temporary(tmp_path)
    assert (directory / "journal" / "cache.db").exists()
    end(process)
    assert directory.exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def use():
        storage = SqliteStorage.temporary()
        storage.enqueue([("k", b"1")])
        await storage.flush()
        assert not await asyncio.to_thread(directory.exists)
        await storage.close()

    asyncio.run(use())
    assert [] == list(tmp_path.iterdir())


def test_opening_permanent_store_sweeps_leftovers(tmp_path, monkeypatch):
    """Leftovers are deleted even if the host never uses temporary stores again."""
    process = start(TEMPORARY, TMPDIR=str(tmp_path))
    directory = Path(process.stdout.readline().strip())
    end(process)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    asyncio.run(SqliteStorage.open(tmp_path / "own" / "journal").close())

    assert not directory.exists()


def test_sweep_keeps_own_temporary_directories(tmp_path):
    """A sweep in the owning process neither deletes the directory nor releases its lock."""
    own = TemporaryDirectory(tmp_path)
    own.create()
    own.create()
    assert 0 == sweep_temporary(tmp_path)
    sweep = f"from mama_structs.storage.files import delete_leftovers as sweep_temporary; from pathlib import Path; print(sweep_temporary(Path({str(tmp_path)!r})))"
    process = start(sweep)
    assert "0" == process.stdout.readline().strip()
    end(process)

    assert own.path.exists()
    own.remove()
    own.remove()
    assert [] == list(tmp_path.iterdir())


def test_sweep_ignores_foreign_directories(tmp_path):
    """Other names, missing or foreign marks, files and links are ignored, and links are not followed."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "alive").write_bytes(b"mama-structs temporary store\n")
    name = "mama-structs-" + "0" * 15
    for number, mark in enumerate([None, b"", b"mama-structs temporary store\nx", b"other"]):
        (tmp_path / f"{name}{number}").mkdir()
        if mark is not None:
            (tmp_path / f"{name}{number}" / "alive").write_bytes(mark)
    (tmp_path / f"{name}4").write_text("a file")
    (tmp_path / f"{name}5").symlink_to(precious)
    (tmp_path / f"{name}6").mkdir()
    (tmp_path / f"{name}6" / "alive").symlink_to(precious / "alive")
    (tmp_path / f"{name}7").mkdir()
    (tmp_path / f"{name}7" / "alive").mkdir()
    (tmp_path / f"{name}8x").mkdir()
    (tmp_path / f"{name}8x" / "alive").write_bytes(b"mama-structs temporary store\n")
    before = sorted(tmp_path.rglob("*"))

    assert 0 == sweep_temporary(tmp_path)
    assert before == sorted(tmp_path.rglob("*"))
    assert 0 == sweep_temporary(tmp_path / "missing")


def test_sweep_deletes_links_without_following_them(tmp_path):
    """Links inside a leftover are deleted; their targets remain."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    dead = tmp_path / ("mama-structs-" + "f" * 16)
    (dead / "journal").mkdir(parents=True)
    (dead / "alive").write_bytes(b"mama-structs temporary store\n")
    (dead / "link").symlink_to(tmp_path / "precious")
    (dead / "journal" / "link").symlink_to(tmp_path / "precious")

    assert 1 == sweep_temporary(tmp_path)
    assert [tmp_path / "precious", tmp_path / "precious" / "file"] == sorted(tmp_path.rglob("*"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make another user's files")
def test_sweep_ignores_directories_of_other_users(tmp_path):
    """Even root sweeps only its own directories."""
    dead = tmp_path / ("mama-structs-" + "f" * 16)
    dead.mkdir()
    (dead / "alive").write_bytes(b"mama-structs temporary store\n")
    os.chown(dead / "alive", 65534, 65534)
    assert 0 == sweep_temporary(tmp_path)
    os.chown(dead / "alive", 0, 0)
    os.chown(dead, 65534, 65534)
    assert 0 == sweep_temporary(tmp_path)
    os.chown(dead, 0, 0)

    assert 1 == sweep_temporary(tmp_path)


def test_sweep_resumes_after_interrupted_sweep(tmp_path, monkeypatch):
    """The mark is deleted last, so that the next sweep finishes an interrupted one."""
    dead = tmp_path / ("mama-structs-" + "f" * 16)
    (dead / "journal").mkdir(parents=True)
    (dead / "alive").write_bytes(b"mama-structs temporary store\n")

    def fail(path):
        raise OSError("planned")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", fail)
        assert 0 == sweep_temporary(tmp_path)
    assert (dead / "alive").exists()

    assert 1 == sweep_temporary(tmp_path)
    assert [] == list(tmp_path.iterdir())


def test_failed_creation_of_temporary_directory_leaves_nothing(tmp_path, monkeypatch):
    """After a failure nothing remains, and the creation can be repeated."""
    directory = TemporaryDirectory(tmp_path)

    def fail(*args):
        raise OSError("planned")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="planned"):
            directory.create()
    assert [] == list(tmp_path.iterdir())
    directory.create()
    directory.remove()


def test_shared_locks_exclude_only_exclusive_ones(tmp_path, kind):
    """A name is shared by any number of users until the last one releases it."""
    locks, other = DirectoryLocks(tmp_path), DirectoryLocks(tmp_path)
    locks.claim_shared("a")
    other.claim_shared("a")
    locks.claim_shared("a")
    for _ in range(2):
        with pytest.raises(StoreBusy):
            other.claim("a")
        locks.release_shared("a")
    locks.release_shared("a")
    with pytest.raises(StoreBusy):
        locks.claim("a")
    assert locks.is_claimed("a")
    other.release_shared("a")
    locks.claim("a")
    with pytest.raises(StoreBusy):
        other.claim_shared("a")
    locks.release("a")
    other.claim_shared("a")
    other.close()
    locks.claim("a")
    locks.close()


SHARE = """
import sys
from pathlib import Path
from mama_structs.errors import StoreBusy
from mama_structs.storage.locks import DirectoryLocks

locks = DirectoryLocks(Path(sys.argv[1]))
for claim, release in ((locks.claim_shared, locks.release_shared), (locks.claim, locks.release)):
    try:
        claim("a")
    except StoreBusy:
        print("busy")
    else:
        print("claimed")
        release("a")
"""


def test_shared_locks_hold_between_processes(tmp_path, kind):
    def answers():
        process = start(SHARE, tmp_path)
        said = process.stdout.read().split()
        end(process)
        return said

    locks = DirectoryLocks(tmp_path)
    locks.claim_shared("a")
    locks.claim_shared("a")
    shared = answers()
    locks.release_shared("a")
    assert shared == answers()
    locks.release_shared("a")
    free = answers()
    locks.claim("a")
    exclusive = answers()
    locks.close()

    assert (["claimed", "busy"], ["claimed", "claimed"], ["busy", "busy"]) == (shared, free, exclusive)
