"""Crash test: killed processes and a crashing server lose no acknowledged change."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

import mama_structs

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(mama_structs.__file__).parents[1]), str(Path(__file__).parents[1])]),
    "OMP_NUM_THREADS": "1",
}
ROUNDS = 20 if settings.default.max_examples > 1000 else 1

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def test_acknowledged_changes_survive_crashes_of_hosts_and_server(own_postgres, tmp_path):
    """Each process sees the others' saves at its next call, links are unique, and all errors are typed."""
    command = [sys.executable, "-W", "ignore", "-m", "crash.runner", "--directory", str(tmp_path)]
    command += ["--server", own_postgres.url, "--restart", shlex.join(own_postgres.restart)]
    done = subprocess.run(
        [*command, "--rounds", str(ROUNDS), "--seed", "8"],
        capture_output=True, text=True, check=False, timeout=1200, env=ENVIRONMENT,
    )  # fmt: skip
    table = {name: int(count) for name, count in re.findall(r"^(\S.*?) {2,}([\d,]+)$", done.stdout, re.MULTILINE)}

    assert ("", 0) == (done.stderr, done.returncode), done.stdout
    assert ROUNDS == table["restarts of the server"]
    assert 0 < table["acknowledged changes"]
    again = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert 2 == again.returncode
    assert "name an empty one" in again.stdout
