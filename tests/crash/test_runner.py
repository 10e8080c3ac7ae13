"""The crash test command finds no fault in the store, and finds planted faults."""

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

ROUNDS, DAMAGED, SEEDS = (20, 100, (1, 2, 3)) if settings.default.max_examples > 1000 else (2, 10, (1, 2))


def command(*arguments):
    return [sys.executable, "-W", "ignore", "-m", "crash.runner", *map(str, arguments)]


def figures(said):
    """Parse a printed table of names and numbers, and return the numbers by name."""
    return {
        name: int(value.replace(",", "")) for name, value in re.findall(r"^(\S.*?) {2,}([\d,]+)$", said, re.MULTILINE)
    }


def crash(*arguments, place):
    """Run the crash test, and return its exit status, its output and the numbers of its table."""
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


# One test per seed, so that pytest workers can run the seeds in parallel.
@pytest.mark.parametrize("seed", SEEDS)
def test_run_finds_no_fault(tmp_path, seed):
    """The run includes kills, forks, stops, full disks, failing statements and power failures."""
    status, said, table = crash("--rounds", ROUNDS, "--seed", seed, place=tmp_path)

    assert 0 == status, said
    assert ROUNDS == table["rounds"]
    assert 0 < table["acknowledged changes"]
    assert [] == list(tmp_path.iterdir())


def test_damage_is_never_silent_or_fatal(tmp_path):
    """
    Damage leads to correct data, an error, a finding or a warning.

    Files are damaged before opening and during use.
    """
    status, said, table = crash("--damage", "--sample", DAMAGED, "--seed", 8, place=tmp_path)

    assert 0 == status, said
    assert 0 < table["damaged files"]


def test_every_kind_of_file_is_damaged_in_every_way():
    cases = Case.all()

    assert 240 < len(cases) == len(set(cases))
    assert set(FILES) == {case.file for case in cases}


@pytest.mark.parametrize(
    ("sabotage", "rounds", "kind"),
    [("row", 2, "lost"), ("early", 1, "lost"), ("memory-duplicated", 1, "duplicated"), ("memory-invented", 1, "wrong")],
)
def test_planted_fault_is_reported_by_kind(tmp_path, sabotage, rounds, kind):
    """Faults are a removed row, an early acknowledgement, and planted memories."""
    status, said, table = crash("--rounds", rounds, "--seed", 5, "--sabotage", sabotage, place=tmp_path)

    assert 1 == status, said
    assert 0 < table[kind]
    (kept,) = tmp_path.iterdir()
    assert f"kept: {kept}" in said


def test_unsynced_log_is_reported(tmp_path):
    """If syncs of the log do nothing, a power failure loses acknowledged changes."""
    if isinstance(reason := build(tmp_path), str):
        pytest.skip(reason)
    status, said, table = crash("--rounds", 3, "--seed", 5, "--sabotage", "unsynced", place=tmp_path / "run")

    assert 1 == status, said
    assert 0 < table["power failures"]
    assert 0 < table["lost"] + table["wrong"]


def test_silent_damage_is_reported(tmp_path):
    status, said, table = crash("--damage", "--sample", 3, "--seed", 1, "--sabotage", "old", place=tmp_path)

    assert 1 == status, said
    assert 0 < table["silent"]


def test_interrupt_ends_run_with_table_of_finished_rounds(tmp_path):
    """No process or file remains."""
    process = subprocess.Popen(
        command("--minutes", 60, "--seed", 3, "--directory", tmp_path),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    # Wait until one round is finished and another has begun.
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


def test_interrupt_while_process_starts_leaves_no_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERRUPTED, "--rounds", "1", "--seed", "3", "--directory", str(tmp_path)],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=600, check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "interrupted" in done.stdout
    assert "ended" == done.stdout.splitlines()[-1]
    assert [] == list(tmp_path.iterdir())
