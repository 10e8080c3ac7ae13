"""What is known of a namespace's last change outside of its journal, so that a journal that went back is noticed."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Final

from mama_structs.memory.engines.local.views.snapshots import make_folder
from mama_structs.storage.sqlite_errors import Finding

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
    A file beside a namespace's views, of the changes in one history; all calls come from one thread.

    What is told to it is durable in the journal already. It is never flushed: a killed process leaves it to the system,
    and after a loss of power it may be behind the journal but not ahead. Where it cannot be kept, nothing is known.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE_NAME
        self._history: bytes | None = None
        self._fd = -1
        # What there was no way to write.
        self._unwritten: dict[int, tuple[int, int]] = {}
        # Up to which number changes were seen when it was asked, or those of which other history.
        self._seen = 0
        self._others: tuple[bytes | None, int] = (None, 0)
        # Where a journal ended that has none of the changes that were seen, and up to which number these are.
        self._replaced: tuple[int, int] | None = None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def use(self, history: str | None) -> None:
        """Be of the journal's history from here on; None while that has none."""
        self._history = None if history is None else blake2b(history.encode(), digest_size=16).digest()
        if self._replaced is not None and self._history is not None and self.lost is None:
            # There was none yet when it was seen.
            self.lose(*self._replaced)

    @property
    def last(self) -> int:
        """The last change that was told, 0 where none is known."""
        return self._read(_LAST)[1]

    @property
    def lost(self) -> tuple[int, int] | None:
        """Where the journal ended, and up to which number changes had been seen, if it ever went back."""
        lost = self._read(_LOST)
        return lost if lost[1] else self._replaced

    def saw(self, change: int) -> None:
        """Note a change that is durable; who comes later with a lower one says nothing new."""
        # Two processes may still cross: then it is behind, which does no harm.
        if change > self.last:
            self._write(_LAST, 0, change)

    def lose(self, first: int, last: int) -> None:
        """Note that changes after *first*, and up to *last*, were seen and are gone, until `accept`."""
        before = self._read(_LOST)
        if before[1]:
            first, last = min(first, before[0]), max(last, before[1])
        self._write(_LOST, first, last)
        self._write(_LAST, 0, first)

    def accept(self, change: int) -> None:
        """Begin again with *change* as the last one, and with nothing lost."""
        self._replaced = None
        if self._history is None:
            if self._path is not None:
                with contextlib.suppress(OSError):
                    self._path.unlink()
            return
        self._write(_LOST, 0, 0)
        self._write(_LAST, 0, change)

    def ask(self, known: int) -> None:
        """Look up to which number changes were seen, at least *known*; all of them were durable by then."""
        history, _, last = self._record(_LAST)
        self._others = (None, 0) if history == self._history else (history, last)
        self._seen = max(known, self.last)

    def doubts(self, last: int) -> bool:
        """Tell whether a journal that ends with *last* may lack what was seen: `compare` knows, in a later look."""
        return self.lost is not None or self._seen > last or self._others[0] is not None

    def compare(self, last: int) -> None:
        """Say that the journal, of which *last* is the last change, is looked at after it was asked."""
        history, others_last = self._others
        if history not in {None, self._history}:
            self._replaced = last, others_last
        if self._replaced is not None:
            self.lose(*self._replaced)
        elif self._seen > last:
            self.lose(last, self._seen)

    def findings(self) -> list[Finding]:
        """Return what is to be said of changes that were seen and are gone."""
        if self.lost is None:
            return []
        ended, seen = self.lost
        message = (
            f"changes up to number {seen} were stored, but the journal ended at number {ended}: cache.db-wal was "
            "damaged or deleted after a crash, or a backup of the journal was put back; put back what has the "
            "changes, or let rebuild() take the journal as it is"
        )
        if seen <= ended:
            message = (
                f"the known changes up to number {seen} and the journal, which ended at number {ended}, are of "
                "different stores: one was put in the place of the one that was here; put that back, or let rebuild() "
                "take the journal as it is"
            )
        return [Finding("error", "lost", message)]

    def _read(self, place: int) -> tuple[int, int]:
        history, first, last = self._record(place)
        if history is not None and history == self._history:
            return first, last
        return self._unwritten.get(place, (0, 0))

    def _record(self, place: int) -> tuple[bytes | None, int, int]:
        """Return of which history the record at a place is, None where there is none, and its numbers."""
        with contextlib.suppress(OSError):
            if self._fd < 0 and self._path is not None:
                self._fd = os.open(self._path, _FLAGS)
            os.lseek(self._fd, place, os.SEEK_SET)
            record = os.read(self._fd, _SIZE)
            body = record[: _RECORD.size]
            if len(record) == _SIZE and blake2b(body, digest_size=_SIZE - _RECORD.size).digest() == record[len(body) :]:
                mark, history, first, last = _RECORD.unpack(body)
                if mark == _MARK:
                    return history, first, last
        return None, 0, 0

    def _write(self, place: int, first: int, last: int) -> None:
        if self._history is None or self._path is None:
            return
        body = _RECORD.pack(_MARK, self._history, first, last)
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
