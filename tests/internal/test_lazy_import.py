"""Lazy loading of public names, and thread-safe imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mama_structs

SRC = str(Path(mama_structs.__file__).parents[1])

FORK = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
from mama_structs._internal.lazy_import import load_module

sys.started, sys.go = threading.Event(), threading.Event()
thread = threading.Thread(target=load_module, args=["slow"])
thread.start()
sys.started.wait()
child = os.fork()
if child == 0:
    signal.alarm(600)
    os._exit(load_module("slow").DONE)
sys.go.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_waits_for_import_in_another_thread(tmp_path):
    """Otherwise the child process would wait forever for the import lock."""
    (tmp_path / "slow.py").write_text("import sys\nsys.started.set()\nsys.go.wait(1)\nDONE = 7\n")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, tmp_path],
        check=False, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": SRC},
    )  # fmt: skip

    assert ("7\n", "") == (done.stdout, done.stderr)


def test_package_in_zip_archive_is_imported(tmp_path):
    """A zip application contains no files that a stub could be opened from."""
    source = Path(mama_structs.__file__).parent
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        for path in sorted(source.rglob("*.py*")):
            if path.suffix in {".py", ".pyi"}:
                archive.write(path, Path("mama_structs") / path.relative_to(source))
    code = "import mama_structs, mama_structs.structs as s; print(mama_structs.Memory.__name__, mama_structs.__file__)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        check=False, capture_output=True, text=True, timeout=600, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "app.zip")},
    )  # fmt: skip

    assert (f"Memory {tmp_path / 'app.zip' / 'mama_structs' / '__init__.py'}\n", "") == (done.stdout, done.stderr)


def test_package_without_stub_raises_import_error(tmp_path):
    """Some tools that shrink an installation delete stubs."""
    source = Path(mama_structs.__file__).parent
    shutil.copytree(source, tmp_path / "mama_structs", ignore=shutil.ignore_patterns("*.pyi", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import mama_structs"],
        check=False, capture_output=True, text=True, timeout=600, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip

    assert 1 == done.returncode
    assert "ImportError: mama_structs was installed without its file __init__.pyi" in done.stderr
