"""Forks while a store is open, with and without children that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mama_structs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mama_structs.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

SCRIPT_PROLOGUE = """
import asyncio, gc, multiprocessing, os, signal, sys, threading, time
from contextlib import suppress
from pathlib import Path
from mama_structs.errors import StoreError
from mama_structs.storage import connection
from mama_structs.storage.sqlite_store import SqliteStorage
from mama_structs.storage.backup import copy_store

directory = Path(sys.argv[1])

def write(storage, prefix, count, told=None):
    for number in range(count):
        storage.enqueue([(f"{prefix}{number:04}", b"x" * 500)])
        asyncio.run(storage.flush())
        if told is not None:
            os.write(told, b".")

def child_of(work):
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    return child

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def wait_for(fd, count):
    while count:
        got = len(os.read(fd, count))
        assert got, "the writer died"
        count -= got
"""

CHECK = """
import asyncio, collections, sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage
storage = SqliteStorage.open(Path(sys.argv[1]))
keys = asyncio.run(storage.keys())
assert not [finding for finding in asyncio.run(storage.check()) if finding.severity == "error"]
print(dict(collections.Counter(key[0] for key in keys)))
storage.close_now()
"""


def run(code, *arguments):
    """Run *code* in a child process and return its output."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=ENVIRONMENT)
    assert 0 == done.returncode, done.stderr
    return done.stdout


PARENT_GOES = """
reading, told = os.pipe()
parent = child_of(lambda: begin())

def begin():
    storage = SqliteStorage.open(directory)
    write(storage, "p", 3)

    def worker():
        own = SqliteStorage.open(directory)
        write(own, "w", 80, told)
        own.close_now()

    child = child_of(worker)
    wait_for(reading, 10)
    if sys.argv[2] == "closes":
        storage.close_now()
    elif sys.argv[2] == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    assert ended(child) == 0

"""
# Start the child at the end of the script, because its function must be defined before.
PARENT_GOES = (
    PARENT_GOES.replace("parent = child_of(lambda: begin())\n", "")
    + """
outer = child_of(begin)
assert ended(outer) == (-signal.SIGKILL if sys.argv[2] == "is killed" else 0)
os.close(told)
while os.read(reading, 4096):
    pass
print("done")
"""
)


@pytest.mark.parametrize("how", ["closes", "is killed", "stays"])
def test_forked_worker_rows_survive_exit_of_parent(tmp_path, how):
    """The worker's connection takes its own locks, so that neither process deletes the log of the other."""
    assert "done\n" == run(SCRIPT_PROLOGUE + PARENT_GOES, tmp_path / "journal", how)

    assert "{'p': 3, 'w': 80}\n" == run(CHECK, tmp_path / "journal")


IN_A_TRANSACTION = """
storage = SqliteStorage.open(directory)
write(storage, "p", 3)
begun, go_on = threading.Event(), threading.Event()

def work(rows):
    begun.set()
    go_on.wait(0.3)
    rows.put("p0003", b"")

transaction = storage.submit_job(lambda: storage.transact_in_job(work))
begun.wait()

def worker():
    own = SqliteStorage.open(directory, wait=60)
    write(own, "w", 5)
    own.close_now()

child = child_of(worker)
go_on.set()
transaction.result()
assert ended(child) == 0
storage.close_now()
print("done")
"""


def test_fork_waits_for_running_transaction(tmp_path):
    """Otherwise the child would inherit a lock that is never released."""
    assert "done\n" == run(SCRIPT_PROLOGUE + IN_A_TRANSACTION, tmp_path / "journal")

    assert "{'p': 4, 'w': 5}\n" == run(CHECK, tmp_path / "journal")


TOO_LONG = """
connection.FORK_TIMEOUT_SECONDS = 0.05
storage = SqliteStorage.open(directory)
write(storage, "p", 3)

def worker():
    for attempt in (lambda: SqliteStorage.open(directory), lambda: copy_store(directory.parent, directory.parent / "copy", print)):
        try:
            attempt()
        except StoreError as error:
            print(error)
        else:
            raise SystemExit("not refused")
    SqliteStorage.open(directory.parent / "other").close_now()
    grandchild = child_of(lambda: SqliteStorage.open(directory))
    assert ended(grandchild) == 1
    gc.collect()

if sys.argv[2] == "in a look":
    begun, go_on = threading.Event(), threading.Event()

    def work(_rows):
        begun.set()
        go_on.wait()

    look = storage.submit_job(lambda: storage.run_read_in_job(work))
    begun.wait()
    child = child_of(worker)
    go_on.set()
    look.result()
else:
    child = storage.submit_job(lambda: storage.transact_in_job(lambda rows: child_of(worker))).result()
assert ended(child) == 0
write(storage, "q", 5)
child = child_of(lambda: SqliteStorage.open(directory).close_now())
assert ended(child) == 0
storage.close_now()
"""


@pytest.mark.parametrize("where", ["in a look", "in its own thread"])
def test_child_is_rejected_when_connection_was_in_use_during_fork(tmp_path, where):
    """The error recommends spawn and applies to grandchildren; other directories and the parent are not affected."""
    said = run(SCRIPT_PROLOGUE + TOO_LONG, tmp_path / "journal", where).splitlines()

    assert 2 == len(said)
    assert all("was in use when this process was forked" in line and "spawn" in line for line in said)
    assert "{'p': 3, 'q': 5}\n" == run(CHECK, tmp_path / "journal")


POOL = """
def untouched(number):
    files = "/proc/self/fd"
    names = [os.readlink(f"{files}/{fd}") for fd in os.listdir(files) if os.path.lexists(f"{files}/{fd}")] if os.path.isdir(files) else []
    return [name for name in names if "journal/cache.db" in name]

storage = SqliteStorage.open(directory)
write(storage, "p", 5)
with multiprocessing.get_context("fork").Pool(3) as pool:
    for round in range(5):
        storage.enqueue([(f"q{round}", b"")])
        assert pool.map(untouched, range(6)) == [[]] * 6
        asyncio.run(storage.flush())
write(storage, "r", 5)
storage.close_now()
"""


def test_pool_workers_without_store_access_do_not_affect_parent(tmp_path):
    """Workers of a pool hold no database file open, and the parent continues to write."""
    run(SCRIPT_PROLOGUE + POOL, tmp_path / "journal")

    assert "{'p': 5, 'q': 5, 'r': 5}\n" == run(CHECK, tmp_path / "journal")


THREADS = """
storage = SqliteStorage.open(directory, wait=60)
children, guard, stop = [], threading.Lock(), threading.Event()

def worker(name):
    own = SqliteStorage.open(directory, wait=60)
    write(own, name, 3)
    own.close_now()

def forking(names):
    for name in names:
        child = child_of(lambda: worker(name))
        with guard:
            children.append(child)

threads = [threading.Thread(target=forking, args=(names,)) for names in ("abc", "def")]
for thread in threads:
    thread.start()
write(storage, "p", 30)
for thread in threads:
    thread.join()
assert [0] * 6 == [ended(child) for child in children]
storage.close_now()
"""


def test_concurrent_forks_from_threads_lose_no_rows(tmp_path):
    """The parent writes meanwhile, and each child opens the directory itself."""
    run(SCRIPT_PROLOGUE + THREADS, tmp_path / "journal")

    assert f"{dict.fromkeys('abcdef', 3) | {'p': 30}}\n" == run(CHECK, tmp_path / "journal")


PRELOAD = """
import asyncio, os, sys
from mama_structs import HashEmbedder, Session, admin

async def saving(name, count):
    async with Session.open(sys.argv[1], embedder=HashEmbedder()) as session:
        for number in range(count):
            await session.memories.save_context(f"{name} saved {number}")

# As a server that loads the application before it forks its workers.
loop = asyncio.new_event_loop()
session = loop.run_until_complete(Session.open(sys.argv[1], embedder=HashEmbedder()))
loop.run_until_complete(session.memories.save_context("the master saved"))
children = []
for name in ("one", "two", "three"):
    child = os.fork()
    if child == 0:
        asyncio.run(saving(name, 20))
        os._exit(0)
    children.append(child)
loop.run_until_complete(session.memories.save_context("the master saved again"))
loop.run_until_complete(session.close())
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]

async def count():
    async with Session.open(sys.argv[1], embedder=HashEmbedder()) as session:
        assert (await admin.check(session)).ok
        print(await session.memories.count())

asyncio.run(count())
"""


def test_preloaded_server_workers_lose_no_memories(tmp_path):
    """A parent with an open session forks workers with their own sessions, and closes its session while they save."""
    assert "62\n" == run(PRELOAD, tmp_path / "agent.mama")


CLOSED_BY_FORK_SCRIPT = """
storage = SqliteStorage.open(directory)
assert ended(child_of(int)) == 0
print([finding.kind for finding in asyncio.run(storage.check())])
storage.close_now()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell who has a file open")
def test_store_closed_by_fork_detects_no_other_process(tmp_path):
    """A connection that a fork closed is not taken for another process's connection."""
    assert "[]\n" == run(SCRIPT_PROLOGUE + CLOSED_BY_FORK_SCRIPT, tmp_path / "journal")


INTERRUPTED = """
storage = SqliteStorage.open(directory)
held, go_on = threading.Event(), threading.Event()

def hold():
    with connection._database_registry._changed:
        held.set()
        go_on.wait()

def interrupt(*_):
    go_on.set()
    raise KeyboardInterrupt

holder = threading.Thread(target=hold)
holder.start()
held.wait()
signal.signal(signal.SIGALRM, interrupt)
sys.unraisablehook = lambda unraisable: print(unraisable.exc_type.__name__)
signal.setitimer(signal.ITIMER_REAL, 0.2)
child = os.fork()
if child == 0:
    os._exit(0)
holder.join()
assert ended(child) == 0
opening = threading.Thread(target=lambda: SqliteStorage.open(directory.parent / "other").close_now(), daemon=True)
opening.start()
opening.join(60)
print("hangs" if opening.is_alive() else "opens", flush=True)
os._exit(0)
"""


def test_ctrl_c_before_fork_does_not_block_opening(tmp_path):
    """Python forks despite the interrupted hook, so the after-fork hook runs without its counterpart."""
    assert "KeyboardInterrupt\nopens\n" == run(SCRIPT_PROLOGUE + INTERRUPTED, tmp_path / "journal")


LOOKING_FOR_A_FOLDER = """
import tempfile
from mama_structs.storage.files import delete_leftovers

looked, begun, go_on = tempfile._get_default_tempdir, threading.Event(), threading.Event()

def looking():
    begun.set()
    go_on.wait(0.3)
    return looked()

tempfile.tempdir, tempfile._get_default_tempdir = None, looking
thread = threading.Thread(target=delete_leftovers)
thread.start()
begun.wait()

def worker():
    signal.alarm(60)
    delete_leftovers()

child = child_of(worker)
go_on.set()
thread.join()
assert ended(child) == 0
"""


def test_fork_during_temporary_directory_lookup_does_not_block_child(tmp_path):
    """The child would inherit Python's lock from a thread that does not exist in it."""
    run(SCRIPT_PROLOGUE + LOOKING_FOR_A_FOLDER, tmp_path)
