"""
Detection of data that SQLite's write-ahead log, `cache.db-wal`, lost in a crash.

A frame is one written page. SQLite silently treats the first invalid frame as the end of the log. That is correct for
an interrupted write, but a log that was damaged, deleted or replaced after a crash looks the same.
The log's index, `cache.db-shm`, survives its processes and contains the number of committed frames. It is never ahead
of the log, which is synced first. The next process that opens the database resets it, so it is read before that and
compared with the frames that SQLite found. On platforms without the necessary locks no loss is reported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from mama_structs.storage.files import DATABASE_FILE, MARK_FILE
from mama_structs.storage.locks import LockFile, is_range_locked, watch_locks
from mama_structs.storage.sqlite_errors import Issue

# The index (`cache.db-shm`): two copies of a header in native byte order, then the number of checkpointed frames.
_HEADER: Final = struct.Struct("=10I")
_FIELDS: Final = struct.Struct("=3I2BH8I")
_COPIED: Final = struct.Struct("=I")
_VERSION: Final = 3007000
_LENGTH: Final = 2 * _FIELDS.size + _COPIED.size
# Offset of a byte in the index. Each process that has the database open holds a lock on this byte.
_OPEN_BYTE: Final = 128

# Offset of a byte in the mark file. The process that inspects a crash locks this byte.
# Other processes wait, because opening the database resets the index.
_CLAIM: Final = 2
_MAX_ATTEMPTS: Final = 200
_RETRY_SECONDS: Final = 0.01
# SQLite increments a salt whenever it restarts the log. A larger difference means that the log has another origin.
_MAX_SALT_DISTANCE: Final = 2**16

_log: Final = logging.getLogger("mama_structs")


@attrs.frozen
class Position:
    """State of a log: its salts, and its numbers of committed and of checkpointed frames."""

    salts: tuple[int, int]
    frames: int
    copied: int


def read_position(index: bytes) -> Position | None:
    """Return the state of the log from the header of its index, or None if the index is incomplete."""
    if len(index) < _LENGTH:
        return None
    # SQLite writes the second copy first. If both copies are valid, the first may be older.
    for start in (0, _FIELDS.size):
        version, _, _, is_made, _, _, frames, _, _, _, _, _, *check = _FIELDS.unpack_from(index, start)
        if version == _VERSION and is_made and check == _checksum(index, start):
            first, second = struct.unpack_from(">2I", index, start + 32)
            return Position((first, second), frames, *_COPIED.unpack_from(index, 2 * _FIELDS.size))
    return None


def _checksum(index: bytes, start: int) -> list[int]:
    first = second = 0
    words = _HEADER.unpack_from(index, start)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return [first, second]


def count_lost(before: Position, after: Position | None, *, alone: bool) -> int:
    """
    Return the number of lost frames, 0 if unknown.

    *alone* means that no other process can have written since *before* was read.
    """
    if after is not None and after.salts == before.salts:
        # If the log is empty, the database has all checkpointed frames. If not, only the log's frames are visible.
        return max(0, before.frames - (after.frames or before.copied))
    if after is not None and 0 < (after.salts[0] - before.salts[0]) % 2**32 <= _MAX_SALT_DISTANCE:
        # Nothing is lost: SQLite restarts the log only after a full checkpoint. A power loss left an outdated index.
        return 0
    if not alone or before.frames == 0:
        return 0
    is_replaced = after is not None and after.frames > 0
    return before.frames if is_replaced else max(0, before.frames - before.copied)


@attrs.frozen
class Crash:
    """State that a process left when it ended without closing the database in *directory*."""

    directory: Path
    fd: int
    before: Position

    def findings(self) -> tuple[Issue, ...]:
        """
        Return findings about the lost data, and log them. Call this after the first statement on the database.

        A second call cannot determine the lost data again.
        """
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self.fd), _index(self.directory).stat()):
                after = read_position(os.pread(self.fd, _LENGTH, 0))
                lost = count_lost(
                    self.before, after, alone=is_range_locked(self.fd, _OPEN_BYTE, ignore_own=True) is False
                )
                if lost:
                    message = _message(lost, self.before.frames)
                    _log.warning("%s: %s", self.directory, message)
                    return (Issue("error", "lost", message),)
        return ()


@contextlib.contextmanager
def crashed(directory: Path) -> Iterator[Crash | None]:
    """
    Inspect the state after a crash, before the block opens the database.

    Yield None if there was no crash.
    """
    claim = _claim(directory) if _left(directory) else None
    try:
        yield _left(directory) if claim else None
    finally:
        if claim is not None:
            claim.close()


def others(directory: Path) -> bool:
    """Return True if another process has the database open, or if this is unknown."""
    fd = watch_locks(_index(directory))
    return fd is None or is_range_locked(fd, _OPEN_BYTE, ignore_own=True) is not False


def _index(directory: Path) -> Path:
    return directory / f"{DATABASE_FILE}-shm"


def _left(directory: Path) -> Crash | None:
    with contextlib.suppress(OSError):
        fd = watch_locks(_index(directory))
        if fd is not None and is_range_locked(fd, _OPEN_BYTE, ignore_own=False) is False:
            before = read_position(os.pread(fd, _LENGTH, 0))
            return None if before is None else Crash(directory, fd, before)
    return None


def _claim(directory: Path) -> LockFile | None:
    """
    Lock the inspection of a crash, after waiting for other processes that inspect it.

    Return None if another process has handled the crash, or on timeout.
    """
    try:
        file = LockFile.open(directory / MARK_FILE, create=False)
    except OSError:
        return None
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        stack.callback(file.close)
        for _ in range(_MAX_ATTEMPTS):
            if file.try_lock(_CLAIM):
                stack.pop_all()
                return file
            if _left(directory) is None:
                break
            time.sleep(_RETRY_SECONDS)
    return None


def _message(lost: int, frames: int) -> str:
    return (
        f"{lost} of the {frames} pages that were written to {DATABASE_FILE}-wal before a process was killed are gone, "
        "and the newest saves with them: the file was damaged or deleted since, or an older one was put in its place; "
        "put a newer backup back, or save again what is missing"
    )
