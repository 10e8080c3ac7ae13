"""Watermark file that shows whether a journal lost changes or was replaced."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Final

from mama_structs.memory.engines.local.views.snapshots import create_view_folder
from mama_structs.storage.sqlite_errors import Issue

FILE_NAME: Final = "last"

# Layout of a record: magic bytes, hash of the history's identity, and two change numbers. A checksum follows.
RECORD_FORMAT: Final = struct.Struct("<8s16sQQ")
RECORD_MAGIC: Final = b"mama-st1"
RECORD_BYTES: Final = 64
# File offset of the record with the last change.
LAST_OFFSET: Final = 0
# File offset of the record with the range of lost changes.
LOST_OFFSET: Final = 4096
OPEN_FLAGS: Final = os.O_RDWR | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY"))

_log: Final = logging.getLogger("mama_structs")


class ChangeWatermark:
    """
    Records the highest change number of one history in a file next to the views.

    Not thread-safe.

    Only changes that are durable in the journal are recorded. The file is never flushed. After the process was killed,
    the operating system still writes it. After a power loss it may be older than the journal, but never newer.
    If the file cannot be written, no loss can be detected later.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE_NAME
        self._history: bytes | None = None
        self._fd = -1
        # Records that could not be written to the file, by file offset: the two change numbers of each record.
        self._unwritten_records: dict[int, tuple[int, int]] = {}
        # The highest change seen in this history. Set by `read_last_seen`.
        self._seen = 0
        # Hash and last change of another history, if the file belongs to one. Set by `read_last_seen`.
        self._other_history: tuple[bytes | None, int] = (None, 0)
        # The last changes of the current and of the previous journal. Set if the journal was replaced.
        self._replaced_range: tuple[int, int] | None = None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def use(self, history: str | None) -> None:
        """Set the history that the journal belongs to, or None if the journal is empty."""
        self._history = None if history is None else blake2b(history.encode(), digest_size=16).digest()
        if self._replaced_range is not None and self._history is not None and self.lost is None:
            # The journal was empty when the loss was detected, so the loss could not be recorded until now.
            self.mark_lost(*self._replaced_range)

    @property
    def last(self) -> int:
        """The last recorded change number, or 0 if unknown."""
        return self._read(LAST_OFFSET)[1]

    @property
    def lost(self) -> tuple[int, int] | None:
        """The journal's last change and the last change seen, or None if the journal never lost changes."""
        lost = self._read(LOST_OFFSET)
        return lost if lost[1] else self._replaced_range

    def record(self, change: int) -> None:
        """Record a durable change. Numbers below the recorded one are ignored."""
        # Another process may have recorded a higher number meanwhile, which this write replaces.
        # That is harmless, because a number that is too low never reports a loss.
        if change > self.last:
            self._write(LAST_OFFSET, 0, change)

    def mark_lost(self, first: int, last: int) -> None:
        """Record that the changes after *first*, up to *last*, are lost. The record remains until `reset`."""
        before = self._read(LOST_OFFSET)
        if before[1]:
            first, last = min(first, before[0]), max(last, before[1])
        self._write(LOST_OFFSET, first, last)
        self._write(LAST_OFFSET, 0, first)

    def reset(self, change: int) -> None:
        """Reset the watermark, so that *change* is the last change and no changes count as lost."""
        self._replaced_range = None
        if self._history is None:
            if self._path is not None:
                with contextlib.suppress(OSError):
                    self._path.unlink()
            return
        self._write(LOST_OFFSET, 0, 0)
        self._write(LAST_OFFSET, 0, change)

    def read_last_seen(self, known: int) -> None:
        """
        Read the highest change number that any process recorded. Use *known* if it is higher.

        This change and all earlier ones were durable.
        """
        history, _, last = self._record(LAST_OFFSET)
        self._other_history = (None, 0) if history == self._history else (history, last)
        self._seen = max(known, self.last)

    def may_have_lost_changes(self, last: int) -> bool:
        """
        Return True if a journal that ends at *last* may lack changes.

        `compare` confirms or refutes it with a later read of the journal.
        """
        return self.lost is not None or self._seen > last or self._other_history[0] is not None

    def compare(self, last: int) -> None:
        """Record lost changes, if any. *last* is the journal's last change, read after `read_last_seen`."""
        history, others_last = self._other_history
        if history not in {None, self._history}:
            self._replaced_range = last, others_last
        if self._replaced_range is not None:
            self.mark_lost(*self._replaced_range)
        elif self._seen > last:
            self.mark_lost(last, self._seen)

    def findings(self) -> list[Issue]:
        """Return the issue that describes the lost changes, or an empty list."""
        if self.lost is None:
            return []
        ended, seen = self.lost
        message = (
            f"changes up to number {seen} were stored, but the journal ended at number {ended}: cache.db-wal was "
            "damaged or deleted after a crash, or a backup of the journal was restored; restore the files with the "
            "changes, or accept the journal with admin.rebuild()"
        )
        if seen <= ended:
            message = (
                f"the known changes up to number {seen} and the journal, which ended at number {ended}, belong to "
                "different stores, because one replaced the other; restore the previous store, or accept the journal "
                "with admin.rebuild()"
            )
        return [Issue("error", "lost", message)]

    def _read(self, place: int) -> tuple[int, int]:
        history, first, last = self._record(place)
        if history is not None and history == self._history:
            return first, last
        return self._unwritten_records.get(place, (0, 0))

    def _record(self, place: int) -> tuple[bytes | None, int, int]:
        """
        Return the history hash and the two numbers of the record at a file offset.

        The hash is None if the record is invalid.
        """
        with contextlib.suppress(OSError):
            if self._fd < 0 and self._path is not None:
                self._fd = os.open(self._path, OPEN_FLAGS)
            os.lseek(self._fd, place, os.SEEK_SET)
            record = os.read(self._fd, RECORD_BYTES)
            body = record[: RECORD_FORMAT.size]
            if (
                len(record) == RECORD_BYTES
                and blake2b(body, digest_size=RECORD_BYTES - RECORD_FORMAT.size).digest() == record[len(body) :]
            ):
                mark, history, first, last = RECORD_FORMAT.unpack(body)
                if mark == RECORD_MAGIC:
                    return history, first, last
        return None, 0, 0

    def _write(self, place: int, first: int, last: int) -> None:
        if self._history is None or self._path is None:
            return
        body = RECORD_FORMAT.pack(RECORD_MAGIC, self._history, first, last)
        record = body + blake2b(body, digest_size=RECORD_BYTES - len(body)).digest()
        try:
            if self._fd < 0:
                create_view_folder(self._path.parent)
                self._fd = os.open(self._path, OPEN_FLAGS | os.O_CREAT, 0o600)
            os.lseek(self._fd, place, os.SEEK_SET)
            # One write within a page is atomic for a killed process, so the file contains the old or the new record.
            os.write(self._fd, record)
        except OSError as error:
            self._unwritten_records[place] = first, last
            _log.debug("the last change cannot be noted: %s", type(error).__name__)
