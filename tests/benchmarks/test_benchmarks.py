import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("[!_]*.py")))
def test_every_benchmark_runs(name, tmp_path):
    """A short run prints a table, writes its results, and emits no warnings."""
    done = subprocess.run(
        [sys.executable, "-W", "error", FOLDER / f"{name}.py", "--quick", "--results", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert 5 < len(done.stdout.splitlines())
    written = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert name == written["benchmark"]
    assert written["figures"]
    assert {"python", "system", "cores"} == written["machine"].keys()


def test_forks_share_inherited_data(monkeypatch):
    """A thousand forks of 10 MB use less than 50 MB, and a tenth of the memory of dict copies."""
    monkeypatch.syspath_prepend(FOLDER)
    rows = {row["case"]: row for row in importlib.import_module("refs").forking(10_000, 1_000)}

    assert 50 > rows["forks"]["megabytes"]
    assert rows["forks"]["megabytes"] < rows["dict copies"]["megabytes"] / 10
