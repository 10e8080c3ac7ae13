"""What is known of a namespace's last change outside of its journal, so that a journal that went back is noticed."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Final

from mama_structs.memory.embedded.snapshots import make_folder

FILE_NAME: Final = "last"

# A mark, of which history (a hash of its name), two numbers, and a checksum of all that.
_RECORD: Final = struct.Struct("<8s16sQQ")
_MARK: Final = b"mama-st1"
_SIZE: Final = 64
# Where the last change is, and where the first and the last number are between which changes were lost.
_LAST: Final = 0
_LOST: Final = 4096
_FLAGS: Final = os.O_RDWR | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY"))

_log: Final = logging.getLogger("mama_structs")


class Witness:
    """
    A file beside a namespace's views; all calls come from one thread.

    What is told to it is durable in the journal already. It is never flushed: a killed process leaves it to the system,
    and after a loss of power it may be behind the journal but not ahead. Where it cannot be kept, nothing is known.
    """

    def __init__(self, folder: Path, history: str) -> None:
        self.history: bytes = hashed(history)
        self._path = folder / FILE_NAME
        self._fd = -1
        # What there was no way to write.
        self._unwritten: dict[int, tuple[int, int]] = {}

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def last(self) -> int:
        """The last change that was told, 0 where none is known."""
        return self._read(_LAST)[1]

    @property
    def lost(self) -> tuple[int, int] | None:
        """Where the journal ended, and up to which number changes had been seen, if it ever went back."""
        lost = self._read(_LOST)
        return lost if lost[1] else None

    def saw(self, change: int) -> None:
        """Note a change that is durable; who comes later with a lower one says nothing new."""
        # Two processes may still cross: then it is behind, which does no harm.
        if change > self.last:
            self._write(_LAST, 0, change)

    def lose(self, first: int, last: int) -> None:
        """Note that changes after *first*, and up to *last*, were seen and are gone, until `accept`."""
        before = self.lost
        if before is not None:
            first, last = min(first, before[0]), max(last, before[1])
        self._write(_LOST, first, last)
        self._write(_LAST, 0, first)

    def accept(self, change: int) -> None:
        """Begin again with *change* as the last one, and with nothing lost."""
        self._write(_LOST, 0, 0)
        self._write(_LAST, 0, change)

    def _read(self, place: int) -> tuple[int, int]:
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._path, _FLAGS)
            history, first, last = _record(self._fd, place)
            if history == self.history:
                return first, last
        return self._unwritten.get(place, (0, 0))

    def _write(self, place: int, first: int, last: int) -> None:
        body = _RECORD.pack(_MARK, self.history, first, last)
        record = body + blake2b(body, digest_size=_SIZE - len(body)).digest()
        try:
            if self._fd < 0:
                make_folder(self._path.parent)
                self._fd = os.open(self._path, _FLAGS | os.O_CREAT, 0o600)
            os.lseek(self._fd, place, os.SEEK_SET)
            # In one piece, within a page: a kill leaves the one or the other.
            os.write(self._fd, record)
        except OSError as error:
            self._unwritten[place] = first, last
            _log.debug("the last change cannot be noted: %s", type(error).__name__)


def hashed(history: str) -> bytes:
    """Return how a witness names a history."""
    return blake2b(history.encode(), digest_size=16).digest()


def history_in(folder: Path) -> tuple[bytes | None, int]:
    """Return of which history the witness in a folder is, None where there is none, and its last change."""
    with contextlib.suppress(OSError):
        fd = os.open(folder / FILE_NAME, _FLAGS)
        try:
            history, _, last = _record(fd, _LAST)
        finally:
            os.close(fd)
        return history, last
    return None, 0


def forget(folder: Path) -> None:
    """Remove the witness in a folder."""
    with contextlib.suppress(OSError):
        (folder / FILE_NAME).unlink()


def _record(fd: int, place: int) -> tuple[bytes | None, int, int]:
    os.lseek(fd, place, os.SEEK_SET)
    record = os.read(fd, _SIZE)
    body = record[: _RECORD.size]
    if len(record) == _SIZE and blake2b(body, digest_size=_SIZE - _RECORD.size).digest() == record[len(body) :]:
        mark, history, first, last = _RECORD.unpack(body)
        if mark == _MARK:
            return history, first, last
    return None, 0, 0
