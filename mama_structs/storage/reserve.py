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

from mama_structs.storage.files import DATABASE_FILE

RESERVE_FILE: Final = "reserve"
MIN_RESERVE_BYTES: Final = 2**16
# SQLite copies the log to the database at 4 MB. Only a larger transaction makes a larger log.
MAX_RESERVE_BYTES: Final = 2**23
# Size of the log's index, which SQLite creates when the database is opened.
INDEX_BYTES: Final = 2**15
# A deletion changes some dozens of pages of 4 KiB.
MAX_DELETION_BYTES: Final = 2**19
# The part of the reserve that new values may use. The rest is for the other pages that a transaction changes.
MAX_VALUES_RATIO: Final = 1 / 4
MAX_FREEING_BYTES: Final = int(MAX_DELETION_BYTES * MAX_VALUES_RATIO)
"""Maximum bytes of new values in a transaction that is repeated on a full disk."""
# The reserve doubles up to this size, and then grows by it, so that few transactions allocate space.
MAX_STEP_BYTES: Final = 2**19


def reserve_size(database_bytes: int, log_bytes: int) -> int:
    """
    Return the size of the reserve for a database and a log of these sizes.

    A deletion creates the log's index, and writes each page of the database at most once to the log. Then a full disk
    must be able to copy the log to the database.
    """
    needed = min(INDEX_BYTES + database_bytes + log_bytes, MAX_DELETION_BYTES) + log_bytes
    size = MIN_RESERVE_BYTES
    while size < min(needed, MAX_RESERVE_BYTES):
        size += min(size, MAX_STEP_BYTES)
    return size


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
    """Reduce the reserve to the size for an empty log, when no process has the database open. Best effort."""
    path = directory / RESERVE_FILE
    with contextlib.suppress(OSError):
        size = reserve_size((directory / DATABASE_FILE).stat().st_size, 0)
        if path.stat().st_size > size:
            os.truncate(path, size)


def release_reserve(directory: Path, *, values_bytes: int = 0) -> bool:
    """Delete the reserve. Return False if it does not exist or is too small for new values of this size."""
    path = directory / RESERVE_FILE
    try:
        if values_bytes > path.stat().st_size * MAX_VALUES_RATIO:
            return False
        path.unlink()
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
