"""
What a crash left of SQLite's write-ahead log, `cache.db-wal`, and whether all of it is still there.

A frame is a page that was written. SQLite takes the log as ended at the first one that does not fit, in silence.
That is right for what a crash cut off, but what was damaged, deleted or replaced after a crash looks the same.
The log's index, `cache.db-shm`, outlives its processes and says how many frames were committed.
It is never ahead of the log, which is synced first, and SQLite empties it when the next process opens the database:
so it is read before, and compared with what SQLite then found. Where the system does not tell, nothing is known.
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

from mama_structs.storage.files import DATABASE, MARK_FILE
from mama_structs.storage.locks import LockFile, is_locked, watch
from mama_structs.storage.sqlite_errors import Finding

# The index begins with two copies of a header, in the machine's byte order; after them how many frames were copied.
_HEADER: Final = struct.Struct("=10I")
_FIELDS: Final = struct.Struct("=3I2BH8I")
_COPIED: Final = struct.Struct("=I")
_VERSION: Final = 3007000
_LENGTH: Final = 2 * _FIELDS.size + _COPIED.size
# Whoever has the database open holds this byte of the index.
_OPEN_BYTE: Final = 128

# In the mark's file: whoever has it looks at what a crash left, and the others wait, so that nobody mends it meanwhile.
_CLAIM: Final = 2
_TRIES: Final = 200
_PAUSE: Final = 0.01
# SQLite counts up one of the salts whenever it begins the log anew; a log of another origin has any.
_NEAR: Final = 2**16

_log: Final = logging.getLogger("mama_structs")


@attrs.frozen
class Position:
    """How far a log went: its *salts*, how many *frames* were committed, and how many of them the database has."""

    salts: tuple[int, int]
    frames: int
    copied: int


def read_position(index: bytes) -> Position | None:
    """Return what the beginning of an index says, None where it is none or was not completed."""
    if len(index) < _LENGTH:
        return None
    # The second copy is written first: the first one is the older, where both are whole.
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
    """Return how many frames are gone, 0 if it is not certain; *alone*: nobody else can have written since."""
    if after is not None and after.salts == before.salts:
        # Where none is left, the copied ones are all in the database; some that are left hide what is newer there.
        return max(0, before.frames - (after.frames or before.copied))
    if after is not None and 0 < (after.salts[0] - before.salts[0]) % 2**32 <= _NEAR:
        # Begun anew, which is done when all is in the database: an index that a loss of power made old.
        return 0
    if not alone or before.frames == 0:
        return 0
    is_replaced = after is not None and after.frames > 0
    return before.frames if is_replaced else max(0, before.frames - before.copied)


@attrs.frozen
class Crash:
    """What a process left that did not close the database in *directory*."""

    directory: Path
    fd: int
    before: Position

    def findings(self) -> tuple[Finding, ...]:
        """Return what is lost, and log it, when the first statement has been run: nobody can find it out again."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self.fd), _index(self.directory).stat()):
                after = read_position(os.pread(self.fd, _LENGTH, 0))
                lost = count_lost(self.before, after, alone=is_locked(self.fd, _OPEN_BYTE, by_others=True) is False)
                if lost:
                    message = _message(lost, self.before.frames)
                    _log.warning("%s: %s", self.directory, message)
                    return (Finding("error", "lost", message),)
        return ()


@contextlib.contextmanager
def crashed(directory: Path) -> Iterator[Crash | None]:
    """Look at what a crash left, before the block opens the database and reads; None where there was no crash."""
    claim = _claim(directory) if _left(directory) else None
    try:
        yield _left(directory) if claim else None
    finally:
        if claim is not None:
            claim.close()


def others(directory: Path) -> bool:
    """Tell whether another process has the database open, which this one has too; True where it cannot be known."""
    fd = watch(_index(directory))
    return fd is None or is_locked(fd, _OPEN_BYTE, by_others=True) is not False


def _index(directory: Path) -> Path:
    return directory / f"{DATABASE}-shm"


def _left(directory: Path) -> Crash | None:
    with contextlib.suppress(OSError):
        fd = watch(_index(directory))
        if fd is not None and is_locked(fd, _OPEN_BYTE, by_others=False) is False:
            before = read_position(os.pread(fd, _LENGTH, 0))
            return None if before is None else Crash(directory, fd, before)
    return None


def _claim(directory: Path) -> LockFile | None:
    """Wait until nobody else looks at what the crash left, or it is gone; in vain, if one was stopped while it did."""
    try:
        file = LockFile.open(directory / MARK_FILE, create=False)
    except OSError:
        return None
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        stack.callback(file.close)
        for _ in range(_TRIES):
            if file.try_lock(_CLAIM):
                stack.pop_all()
                return file
            if _left(directory) is None:
                break
            time.sleep(_PAUSE)
    return None


def _message(lost: int, frames: int) -> str:
    return (
        f"{lost} of the {frames} pages that were written to {DATABASE}-wal before a process was killed are gone, and "
        "the newest saves with them: the file was damaged or deleted since, or an older one was put in its place; "
        "put a newer backup back, or save again what is missing"
    )
