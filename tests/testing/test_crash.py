"""The crash test as a command: it finds no fault in the store, and it finds faults that are planted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crash.damage import FILES, Case
from crash.power import build
from hypothesis import settings

import mama_structs

SRC = os.pathsep.join([str(Path(mama_structs.__file__).parents[1]), str(Path(__file__).parents[1])])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"), pytest.mark.once]

ROUNDS, DAMAGED = (20, 100) if settings.default.max_examples > 1000 else (2, 10)


def command(*arguments):
    return [sys.executable, "-W", "ignore", "-m", "crash.runner", *map(str, arguments)]


def figures(said):
    """The numbers of a table."""
    return {
        name: int(value.replace(",", "")) for name, value in re.findall(r"^(\S.*?) {2,}([\d,]+)$", said, re.MULTILINE)
    }


def crash(*arguments, place):
    """Run the tool; gives its exit status, what it said, and its table."""
    # A real disk: the place of a test may be one of memory, which has other calls.
    done = subprocess.run(
        command(*arguments, "--directory", place),
        check=False,
        capture_output=True,
        text=True,
        timeout=1200,
        env=ENVIRONMENT,
    )
    assert "" == done.stderr
    return done.returncode, done.stdout, figures(done.stdout)


# Several tests, so that workers can run them in parallel.
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_run_finds_no_fault(tmp_path, seed):
    """After kills, forks, stops, full disks, failing statements and power failures the store is exact."""
    status, said, table = crash("--rounds", ROUNDS, "--seed", seed, place=tmp_path)

    assert 0 == status, said
    assert ROUNDS == table["rounds"]
    assert 0 < table["acknowledged changes"]
    assert [] == list(tmp_path.iterdir())


def test_no_damage_is_silent_or_deadly(tmp_path):
    """Whatever file is damaged, before an opening or below a process: right data, an error, a finding or a warning."""
    status, said, table = crash("--damage", "--sample", DAMAGED, "--seed", 8, place=tmp_path)

    assert 0 == status, said
    assert 0 < table["damaged files"]


def test_every_kind_of_file_is_damaged_in_every_way():
    """There are more than 240 cases, and the same seed takes the same."""
    cases = Case.all()

    assert 240 < len(cases) == len(set(cases))
    assert set(FILES) == {case.file for case in cases}


@pytest.mark.parametrize(
    ("sabotage", "rounds", "kind"),
    [("row", 2, "lost"), ("early", 1, "lost"), ("memory-duplicated", 1, "duplicated"), ("memory-invented", 1, "wrong")],
)
def test_fault_is_reported(tmp_path, sabotage, rounds, kind):
    """A removed row, a change acknowledged too early, and planted faults are counted by their kind."""
    status, said, table = crash("--rounds", rounds, "--seed", 5, "--sabotage", sabotage, place=tmp_path)

    assert 1 == status, said
    assert 0 < table[kind]
    (kept,) = tmp_path.iterdir()
    assert f"kept: {kept}" in said


def test_unsynced_log_is_reported(tmp_path):
    """Where syncs of the log do nothing, a power failure loses acknowledged changes."""
    if isinstance(reason := build(tmp_path), str):
        pytest.skip(reason)
    status, said, table = crash("--rounds", 3, "--seed", 5, "--sabotage", "unsynced", place=tmp_path / "run")

    assert 1 == status, said
    assert 0 < table["power failures"]
    assert 0 < table["lost"] + table["wrong"]


def test_silence_is_reported(tmp_path):
    """Where damage takes a memory away and nothing says so, that counts as silent."""
    status, said, table = crash("--damage", "--sample", 3, "--seed", 1, "--sabotage", "old", place=tmp_path)

    assert 1 == status, said
    assert 0 < table["silent"]


def test_ctrl_c_ends_it_with_the_table_so_far(tmp_path):
    """No process and no file is left, and what was done until then is told."""
    process = subprocess.Popen(
        command("--minutes", 60, "--seed", 3, "--directory", tmp_path),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    # One round is done, and another was begun.
    while not list(tmp_path.glob("*/round-1.jsonl")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=600)

    assert 0 == process.returncode, rest
    assert 0 < figures(rest)["rounds"]
    assert [] == list(tmp_path.iterdir())


INTERRUPTED = """
import os, signal, sys
from crash import runner as crash

started, pids = crash._Round._started, []

def interrupted(one, task, *, spawned):
    pids.append(started(one, task, spawned=spawned))
    os.kill(os.getpid(), signal.SIGINT)
    return pids[-1]

crash._Round._started = interrupted
status = crash.main(sys.argv[1:])
for pid in pids:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        print("ended")
sys.exit(status)
"""


def test_ctrl_c_while_a_process_is_started_leaves_none(tmp_path):
    """A process that was started at that very moment is known and ended, too."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERRUPTED, "--rounds", "1", "--seed", "3", "--directory", str(tmp_path)],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=600, check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "interrupted" in done.stdout
    assert "ended" == done.stdout.splitlines()[-1]
    assert [] == list(tmp_path.iterdir())
