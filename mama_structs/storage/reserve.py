"""
A file whose space is used by deletions when the disk is full.

A deletion writes to the log, so it needs space before it can free any. The file holds that space. It is deleted when a
deletion or an opening fails because the disk is full, and created again when there is space.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

RESERVE_FILE: Final = "reserve"
# A deletion changes some dozens of pages of 4 KiB.
RESERVE_BYTES: Final = 2**19
MAX_FREEING_BYTES: Final = RESERVE_BYTES // 4
"""Maximum bytes that a transaction may write if it uses the reserve."""
# SQLite copies the log to the database at 4 MB. Only a larger transaction makes a larger log.
MAX_RESERVE_BYTES: Final = 2**23
# The reserve grows in steps, so that few transactions allocate space.
STEP_BYTES: Final = 2**20


def reserve_size(log_bytes: int) -> int:
    """Return the size of the reserve for a log of this size, which a full disk must be able to copy to the database."""
    steps = -(-log_bytes // STEP_BYTES)
    return min(RESERVE_BYTES + steps * STEP_BYTES, MAX_RESERVE_BYTES)


def create_reserve(directory: Path, size: int) -> bool:
    """
    Create or enlarge the reserve if the disk has more than twice the space for it. Best effort.

    Return True if it has this size.
    """
    with contextlib.suppress(OSError):
        path = directory / RESERVE_FILE
        try:
            # Another process may have enlarged or released it.
            missing = size - path.stat().st_size
        except FileNotFoundError:
            missing = size
        if missing <= 0:
            return True
        if hasattr(os, "statvfs"):
            disk = os.statvfs(directory)
            if disk.f_bavail * disk.f_frsize < 2 * missing:
                return False
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            _allocate(fd, size)
        except OSError:
            os.ftruncate(fd, size - missing)
            raise
        finally:
            os.close(fd)
        return True
    return False


def shrink_reserve(directory: Path) -> None:
    """Reduce the reserve to its smallest size, when no process has the database open. Best effort."""
    path = directory / RESERVE_FILE
    with contextlib.suppress(OSError):
        if path.stat().st_size > RESERVE_BYTES:
            os.truncate(path, RESERVE_BYTES)


def release_reserve(directory: Path) -> bool:
    """Delete the reserve. Return True if it existed."""
    try:
        (directory / RESERVE_FILE).unlink()
    except OSError:
        return False
    return True


def _allocate(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    data = memoryview(bytes(size))
    while data:
        data = data[os.write(fd, data) :]
