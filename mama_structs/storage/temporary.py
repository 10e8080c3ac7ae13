"""Directories of temporary stores: removed at close, and what a crash left is swept by a later store."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from mama_structs.storage.locks import LockFile

_PREFIX: Final = "mama-structs-"
_NAME: Final = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}")
# Its owner holds a lock on it as long as it lives, which nothing else can tell: not a process id, not an age.
_MARK_FILE: Final = "alive"
_MARK: Final = b"mama-structs temporary store\n"


class TemporaryDirectory:
    """
    A directory that lives as long as its owner; it is made by `make`.

    Args:
        parent: Where; the system's directory for temporary files by default.

    """

    def __init__(self, parent: Path | None = None) -> None:
        base = Path(tempfile.gettempdir()) if parent is None else parent
        self.path: Path = base / f"{_PREFIX}{secrets.token_hex(8)}"
        self._lock: LockFile | None = None

    def make(self) -> None:
        """
        Make the directory, for this user alone.

        Raises:
            OSError: It cannot be made.

        """
        if self._lock is not None:
            return
        self.path.mkdir(mode=0o700)
        try:
            # Under its own name the mark is never seen unlocked, so that nobody sweeps what is being made.
            draft = self.path / f"{_MARK_FILE}.new"
            self._lock = LockFile.open(draft)
            self._lock.try_lock(0)
            os.write(self._lock.fd, _MARK)
            draft.rename(self.path / _MARK_FILE)
        except BaseException:
            self.remove()
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Remove the directory if it was made."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        with contextlib.suppress(OSError):
            _remove(self.path)
        lock.close()


def sweep_temporary(parent: Path | None = None) -> int:
    """
    Remove the temporary stores whose processes are gone, and return how many.

    Args:
        parent: Where to look; the system's directory for temporary files by default.

    """
    base = Path(tempfile.gettempdir()) if parent is None else parent
    try:
        with os.scandir(base) as entries:
            found = [Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name)]
    except OSError:
        return 0
    return sum(_sweep(path) for path in found)


def _sweep(path: Path) -> bool:
    """Remove one directory if it is ours and dead; whatever keeps it from being removed is left for later."""
    try:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or not _is_own(status):
            return False
        mark = path / _MARK_FILE
        status = mark.lstat()
        if not stat.S_ISREG(status.st_mode) or not _is_own(status):
            return False
        lock = LockFile.open(mark, create=False)
    except OSError:
        return False
    try:
        if not lock.try_lock(0) or _read_mark(lock.fd) != _MARK:
            return False
        _remove(path)
    except OSError:
        return False
    finally:
        lock.close()
    return True


def _remove(path: Path) -> None:
    """Remove what is in *path*, the mark last: a sweep that is killed half-way is taken up by the next one."""
    for name in os.listdir(path):  # noqa: PTH208 - names are enough, and iterdir would read lazily while we delete
        inner = path / name
        if name == _MARK_FILE:
            continue
        if stat.S_ISDIR(inner.lstat().st_mode):
            shutil.rmtree(inner)
        else:
            inner.unlink()
    (path / _MARK_FILE).unlink()
    path.rmdir()


def _read_mark(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    return os.read(fd, len(_MARK) + 1)


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
