"""
Leaving nothing of what was deleted: old bytes outlive their row in free pages, gaps of pages, and the write-ahead log.

SQLite's `secure_delete` overwrites what it frees, and misses copies that stay in the gaps of pages which were divided.
So the database is written anew, without any gap, and the log emptied; neither can be done as long as somebody reads
what was there before.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Final

from mama_structs.storage.connection import in_use
from mama_structs.storage.failures import is_busy, store_error
from mama_structs.storage.files import DATABASE

ERASING: Final = "erasing/"
"""How the keys of rows begin that say what is still to be done, by whoever has the store open next."""

_PAUSE: Final = 0.01


def scrub(directory: Path, *, wait: float) -> bool:
    """
    Write a database anew and empty its log, and tell whether it is done; False where others were in the way.

    Others go on reading meanwhile, and wait to write. *wait* says how many seconds to wait for them, blocking.
    """
    until = time.monotonic() + wait
    with in_use(directory):
        connection = sqlite3.connect(directory / DATABASE, timeout=0, isolation_level=None)
        with contextlib.closing(connection):
            try:
                # A temporary file would be elsewhere, where it may stay.
                connection.execute("PRAGMA temp_store = 2").fetchall()
                connection.execute("PRAGMA synchronous = 2").fetchall()
                # First, as it is little work: whoever reads what was there before is in the way of both.
                return _emptied(connection, until) and _rewritten(connection, until) and _emptied(connection, until)
            except sqlite3.Error as error:
                raise store_error(error, directory) from error


def _emptied(connection: sqlite3.Connection, until: float) -> bool:
    """Empty the log, and tell whether that was possible."""
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() >= until:
            return False
        # Without SQLite's own waiting, which would keep everybody from writing meanwhile.
        time.sleep(_PAUSE)
    return True


def _rewritten(connection: sqlite3.Connection, until: float) -> bool:
    while True:
        try:
            connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() >= until:
                return False
            time.sleep(_PAUSE)
        else:
            return True
