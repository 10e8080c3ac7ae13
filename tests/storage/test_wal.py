"""Detection of a write-ahead log that was damaged, deleted or replaced after a crash."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import mama_structs
from mama_structs.errors import StoreDamaged
from mama_structs.storage.backup import copy_store
from mama_structs.storage.sqlite_store import SqliteStorage
from mama_structs.storage.wal import Position, count_lost, read_position

SRC = str(Path(mama_structs.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SRC}
FRAME = 24 + 4096

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not known who has a file open")

# Writes rows, checkpoints, restarts the log or rolls back at random, and prints the number of each durable row.
WRITER = """
import itertools, random, sqlite3, sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage

directory, seed, first = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
storage = SqliteStorage.open(directory)
reader = None
for number in itertools.count(first):
    size = chance.choice([1, 100, 9000])
    storage.submit_job(lambda: storage.transact_in_job(lambda rows: rows.put(f"k{number:05}", bytes(size)))).result()
    print(number, flush=True)
    turn = chance.random()
    connection = sqlite3.connect(directory / "cache.db", isolation_level=None)
    if turn < 0.1:
        connection.execute(f"PRAGMA wal_checkpoint({chance.choice(['PASSIVE', 'FULL', 'RESTART', 'TRUNCATE'])})").fetchall()
    elif turn < 0.15:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM Cache")
        connection.execute("ROLLBACK")
    elif turn < 0.25 and reader is None:
        # Keeps what comes after it from being copied.
        reader = connection
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM Cache").fetchall()
        continue
    elif turn < 0.4 and reader is not None:
        reader.close()
        reader = None
    connection.close()
"""


def crash(directory, seed, *, first=1, rows=20):
    """Kill a process while it writes rows, and return the number of its last durable row."""
    command = [sys.executable, "-c", WRITER, str(directory), str(seed), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as writer:
        for _ in itertools.islice(writer.stdout, rows):
            pass
        writer.kill()
        told = writer.stdout.read().split("\n")[:-1]
    return int(told[-1]) if told else first + rows - 1


def look(directory, saved):
    """
    Open a store after a crash, and return its losses and the issues that `check` reports.

    Returns:
        True if a row is lost, the issues of kind "lost", and True if there are no other issues.

    """

    async def inspect():
        storage = SqliteStorage.open(directory)
        keys = set(await storage.keys())
        findings = [finding for finding in await storage.check() if finding.severity == "error"]
        await storage.close()
        lost = [finding for finding in findings if finding.kind == "lost"]
        return any(f"k{number:05}" not in keys for number in range(1, saved + 1)), lost, lost == findings

    return asyncio.run(inspect())


def flip(data):
    changed = bytearray(data)
    changed[32 + (len(data) - 32) // 2] ^= 1
    return bytes(changed)


DAMAGE = {
    "cut at a frame": lambda data: data[: 32 + FRAME * ((len(data) - 32) // FRAME // 2)],
    "cut": lambda data: data[: len(data) // 2],
    "a flipped bit": flip,
    "head": lambda data: bytes(32) + data[32:],
    "zeros": lambda data: bytes(len(data)),
    "empty": lambda data: b"",
    "rubbish": lambda data: random.Random(1).randbytes(len(data)),
    "deleted": lambda data: None,
}

KILLED = """
import os, signal, sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage
storage = SqliteStorage.open(Path(sys.argv[1]))
for number in range(1, 41):
    storage.submit_job(lambda: storage.transact_in_job(lambda rows: rows.put(f"k{number:05}", bytes(100)))).result()
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill(directory):
    """
    Run a process that saves forty rows and kills itself, so that all rows are in the log.

    Return the path of the log.
    """
    assert -9 == subprocess.run([sys.executable, "-c", KILLED, directory], check=False, env=ENVIRONMENT).returncode
    return directory / "cache.db-wal"


@linux
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_log_is_reported_after_crash(tmp_path, caplog, damage):
    """SQLite ignores the damage silently; the loss is logged at opening and reported by `check`."""
    log = kill(tmp_path / "journal")
    changed = DAMAGE[damage](log.read_bytes())
    if changed is None:
        log.unlink()
    else:
        log.write_bytes(changed)

    is_lost, (finding,), _ = look(tmp_path / "journal", 40)

    assert is_lost
    assert "cache.db-wal" in finding.message
    assert finding.message in caplog.text
    assert (False, []) == look(tmp_path / "journal", 0)[:2]


@linux
@pytest.mark.parametrize("is_damaged", [True, False])
def test_backup_reports_rows_lost_by_its_original(tmp_path, caplog, is_damaged):
    """A backup may be the first to open the database after a crash, and later the loss is undetectable."""
    log = kill(tmp_path / "a.mama" / "journal")
    if is_damaged:
        log.write_bytes(b"")
    copy_store(tmp_path / "a.mama", tmp_path / "copy", lambda _done, _all: None)

    assert int(is_damaged) == caplog.text.count("are gone")
    assert (is_damaged, []) == look(tmp_path / "copy" / "journal", 40)[:2]


@linux
def test_older_log_put_back_is_reported(tmp_path):
    """An older copy of the log does not belong to the current database."""
    log = kill(tmp_path / "journal")
    older = log.read_bytes()
    assert (False, [], True) == look(tmp_path / "journal", 40)
    crash(tmp_path / "journal", 1, first=41)
    log.write_bytes(older)

    try:
        found = look(tmp_path / "journal", 0)[1]
    except StoreDamaged:
        found = [True]
    assert found


@linux
def test_crash_without_damage_is_not_reported(tmp_path):
    """After several kills, checkpoints and restarts of the log all rows exist, and nothing is reported."""
    seed = random.randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    saved = 0
    # Each run of this test has its own seed, so that many runs cover many crashes.
    for _ in range(6):
        rows = chance.choice([1, 5, 30])
        saved = crash(tmp_path / "journal", chance.randrange(2**32), first=saved + 1, rows=rows)
        if chance.random() < 0.5:
            assert (False, [], True) == look(tmp_path / "journal", saved)


@linux
def test_lost_rows_are_always_reported(tmp_path):
    """After any damage to the log, all rows exist or an error or finding reports the loss."""
    seed = random.randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    for turn in range(6):
        directory = tmp_path / str(turn)
        saved = crash(directory, chance.randrange(2**32), rows=chance.choice([2, 10, 40]))
        log = directory / "cache.db-wal"
        changed = DAMAGE[chance.choice(list(DAMAGE))](log.read_bytes())
        log.unlink() if changed is None else log.write_bytes(changed)
        try:
            is_lost, findings, is_sound = look(directory, saved)
        except StoreDamaged:
            continue
        assert not is_lost or findings or not is_sound


OPENER = """
import sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage
sys.stdin.readline()
storage = SqliteStorage.open(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
storage.close_now()
"""


@linux
@pytest.mark.parametrize("is_damaged", [True, False])
def test_concurrent_openers_report_loss_once_after_crash(tmp_path, is_damaged):
    """One process inspects the crash while the others wait; it reports a loss only if there is one."""
    log = kill(tmp_path / "journal")
    if is_damaged:
        log.write_bytes(b"")
    command = [sys.executable, "-c", OPENER, tmp_path / "journal"]
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT) for _ in range(4)
    ]
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    for worker in workers:
        assert "open\n" == worker.stdout.readline()
    said = "".join(worker.communicate("\n", timeout=600)[1] for worker in workers)

    assert int(is_damaged) == said.count("are gone")


@linux
def test_log_in_use_by_other_process_is_not_inspected(tmp_path):
    """While another process has the database open, its index does not show the state after a crash."""
    kill(tmp_path / "journal")
    storage = SqliteStorage.open(tmp_path / "journal")
    storage.submit_job(lambda: storage.transact_in_job(lambda rows: rows.put("k00041", b""))).result()
    assert (False, [], True) == look(tmp_path / "journal", 41)
    code = OPENER.replace("sys.stdin.readline()", "")
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "journal"], capture_output=True, check=True, env=ENVIRONMENT
    )
    assert b"" == done.stderr
    storage.close_now()


AT = Position((2**32 - 1, 7), 250, 100)


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        (AT, 0),
        (Position(AT.salts, 260, 0), 0),
        (Position(AT.salts, 190, 0), 60),
        (Position(AT.salts, 50, 0), 200),
        (Position(AT.salts, 0, 0), 150),
        (Position((0, 9), 5, 0), 0),
        (Position((3, 9), 0, 0), 0),
        (Position((2**31, 9), 5, 0), 250),
        (Position((2**32 - 2, 9), 5, 0), 250),
        (Position((0, 0), 0, 0), 0),
        (Position((2**31, 0), 0, 0), 150),
        (None, 150),
    ],
)
def test_count_lost_compares_two_positions(after, lost):
    """The same log must not be shorter, a restarted log is intact, and any other log has lost the committed frames."""
    assert lost == count_lost(AT, after, alone=True)


def test_count_lost_returns_zero_when_loss_is_uncertain():
    """Only a shorter log proves a loss if nothing was pending or other processes may have written."""
    all_copied = Position((5, 7), 250, 250)

    assert 0 == count_lost(all_copied, None, alone=True)
    assert 0 == count_lost(all_copied, Position((5, 7), 0, 0), alone=True)
    assert 240 == count_lost(all_copied, Position((5, 7), 10, 0), alone=True)
    assert 0 == count_lost(Position((5, 7), 0, 0), Position((4, 1), 9, 0), alone=True)
    assert 0 == count_lost(AT, None, alone=False)
    assert 0 == count_lost(AT, Position((2**31, 9), 5, 0), alone=False)
    assert 60 == count_lost(AT, Position(AT.salts, 190, 0), alone=False)


@linux
def test_read_position_requires_one_valid_header(tmp_path):
    """An index without a valid copy of the header gives no position."""
    index = (kill(tmp_path / "journal").parent / "cache.db-shm").read_bytes()
    position = read_position(index)
    size = (tmp_path / "journal" / "cache.db-wal").stat().st_size

    assert (size - 32) // FRAME == position.frames > 40
    assert position == read_position(bytes(48) + index[48:])
    assert position == read_position(index[:48] + bytes(48) + index[96:])
    flipped = bytes([*index[:20], index[20] ^ 1, *index[21:68], index[68] ^ 1, *index[69:]])
    for other in (b"", b"\0\0\0", bytes(136), index[:99], flipped, struct.pack("=34I", *range(34))):
        assert read_position(other) is None
