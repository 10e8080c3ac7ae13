"""
Simulated power failures: writes that were not followed by a sync are lost.

A preloaded library, built from `unsynced.c`, copies each file to a shadow directory when the file is synced. After all
writers were killed, `lose_unsynced` restores these copies.

* Modelled: unsynced writes, truncations, renames, links and deletions of files, lost or kept per file at random.
* Not modelled: torn writes within a file, new directories (they stay), and files synced by `sync` or `syncfs`.
* The index of SQLite's log (``cache.db-shm``) is mapped memory that is never synced: it stays unchanged or is missing.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("unsynced.c")
_COPYING: Final = ".copying"
KEPT: Final = 0.3


@functools.cache
def build(directory: Path) -> Path | str:
    """Build the library in a directory, and return its path, or the reason why it cannot be built."""
    if not sys.platform.startswith("linux"):
        return "unsynced writes are lost on Linux only"
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return "there is no C compiler"
    library = directory / "unsynced.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return library if done.returncode == 0 else f"the C compiler failed: {done.stderr[:200]}"


def environment(library: Path, store: Path, shadow: Path, *, unsynced: str = "") -> dict[str, str]:
    """
    Return the environment variables that make a process record its syncs.

    Args:
        library: The preloaded library.
        store: The directory with the recorded files.
        shadow: The directory for synced content.
        unsynced: The name of a file whose syncs are ignored, to verify that the test detects this.

    """
    own = {"LD_PRELOAD": str(library), "MAMA_CRASH_STORE": os.path.realpath(store), "MAMA_CRASH_SHADOW": str(shadow)}
    return {**os.environ, **own, "MAMA_CRASH_UNSYNCED": unsynced}


def record(store: Path, shadow: Path) -> None:
    """Record the present files of a store as synced. No process may have the store open."""
    shutil.rmtree(shadow, ignore_errors=True)
    (shadow / "pending").mkdir(parents=True)
    if store.exists():
        shutil.copytree(store, shadow / "durable")
    else:
        (shadow / "durable").mkdir()


def lose_unsynced(store: Path, shadow: Path, chance: random.Random, *, kept: float = KEPT) -> int:
    """
    Restore the synced content and names of files, and return the number of changed files.

    Args:
        store: The store's directory. No process may have it open.
        shadow: The directory with the synced content.
        chance: The random number generator.
        kept: The share of files that keep unsynced writes, because a system may write them at any time.

    """
    durable = _files(shadow / "durable")
    present = _files(store)
    changed = 0
    for name in sorted({*durable, *present}):
        synced, path = durable.get(name), store / name
        if _is_same(synced, present.get(name)) or chance.random() < kept:
            continue
        changed += 1
        if synced is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(synced, path)
    return changed


def _files(directory: Path) -> Mapping[str, Path]:
    found = (path for path in directory.rglob("*") if path.is_file() and not path.name.endswith(_COPYING))
    return {str(path.relative_to(directory)): path for path in found}


def _is_same(one: Path | None, other: Path | None) -> bool:
    return one is not None and other is not None and one.read_bytes() == other.read_bytes()
