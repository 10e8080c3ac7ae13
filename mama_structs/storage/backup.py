"""Online backup: a consistent copy of a session's directory while sessions use it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.errors import StoreBusy, StoreDamaged, StoreError
from mama_structs.storage.cache_factory import find_readable_database
from mama_structs.storage.connection import register_use
from mama_structs.storage.files import DATABASE_FILE, JOURNAL_DIRECTORY, MARK_FILE, DraftDirectory, NewFile, from_os
from mama_structs.storage.sealed_rows import ERASING_KEY_PREFIX
from mama_structs.storage.sqlite_errors import damaged_database_error, is_busy, store_error
from mama_structs.storage.wal import crashed

MAX_MARK_BYTES: Final = 4096
PAGES_PER_STEP: Final = 1024
LOCK_TIMEOUT_SECONDS: Final = 10.0
PROGRESS_INTERVAL_SECONDS: Final = 0.05


class _BackupCancelled(Exception):
    """Raised inside a backup whose caller was cancelled."""


async def backup(directory: Path, target: Path, *, progress: Callable[[int, int], object] | None = None) -> None:
    """
    Copy a session's directory, without derived data, to a path where it can be opened.

    See `admin.backup`.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task else 0
    last_report = 0.0

    def report_progress(done: int, total: int) -> None:
        nonlocal last_report
        if task is not None and task.cancelling() > cancelled_before:
            raise _BackupCancelled
        now = time.monotonic()
        if progress is not None and (done == total or now - last_report >= PROGRESS_INTERVAL_SECONDS):
            last_report = now
            with contextlib.suppress(RuntimeError):  # Ignore the RuntimeError that is raised if the loop is closed.
                loop.call_soon_threadsafe(progress, done, total)

    await run_in_own_thread(lambda: copy_store(Path(directory), Path(target), report_progress))


def copy_store(directory: Path, target: Path, report_progress: Callable[[int, int], object]) -> None:
    """
    Run `backup` synchronously.

    *report_progress* receives the copied and the total number of pages. If it raises, the copy is aborted.
    """
    source = directory / JOURNAL_DIRECTORY
    mark = _read_mark(source, directory)
    draft = DraftDirectory(target)
    try:
        journal = draft.path / JOURNAL_DIRECTORY
        try:
            journal.mkdir(mode=0o700)
            rows = _copy_database(source, journal, report_progress)
            _check_copy(journal, source, rows)
            file = NewFile(journal / MARK_FILE)
            file.write(mark)
            file.close()
        except StoreError:
            raise
        except OSError as error:
            raise from_os(error, target) from error
        draft.publish()
    finally:
        draft.discard()


def _read_mark(source: Path, directory: Path) -> bytes:
    """Return the content of the mark file. Raise if the store is not complete."""
    try:
        if not stat.S_ISREG((source / DATABASE_FILE).stat().st_mode):
            raise StoreError(f"{source / DATABASE_FILE} is no regular file")
        with (source / MARK_FILE).open("rb") as file:
            return file.read(MAX_MARK_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"{directory} is not the directory of a store"
        raise StoreError(message, hint="name the directory of a session") from error
    except OSError as error:
        raise store_error(error, source) from error


def _copy_database(source: Path, journal: Path, report_progress: Callable[[int, int], object]) -> int:
    """Copy the database and return its number of rows."""
    path = journal / DATABASE_FILE
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with register_use(source), crashed(source) as crash, _open_origin(source) as origin:
        try:
            # Pin a snapshot. Otherwise each write of another process would restart the copy.
            origin.execute("BEGIN")
            pages: int = origin.execute("PRAGMA page_count").fetchone()[0]
            if crash is not None:
                crash.findings()
            size = pages * int(origin.execute("PRAGMA page_size").fetchone()[0])
            rows: int = origin.execute("SELECT COUNT(*) FROM Cache").fetchone()[0]
            erasing = origin.execute(
                "SELECT 1 FROM Cache WHERE key GLOB ? LIMIT 1", (f"{ERASING_KEY_PREFIX}*",)
            ).fetchone()
        except sqlite3.Error as error:
            raise _to_store_error(error, source, source) from error
        with _connect(path) as copied:
            try:
                # Syncing each write is unnecessary, because the whole file is synced before it gets its final name.
                copied.execute("PRAGMA synchronous = OFF")
                origin.backup(
                    copied,
                    pages=PAGES_PER_STEP,
                    progress=lambda _status, left, total: report_progress(total - left, total),
                )
                if erasing:
                    # Erased data may still be in free pages of the original, so remove it from the copy.
                    copied.execute("PRAGMA temp_store = 2").fetchall()
                    copied.execute("VACUUM")
            except (sqlite3.Error, OSError) as error:
                # After an error SQLite truncates the file. Extend it again, to find out whether the disk is full.
                os.truncate(path, size)
                raise _to_store_error(error, source, journal) from error
    return rows


def _check_copy(journal: Path, source: Path, rows: int) -> None:
    """Check the copy for damage, and report any as damage of the original."""
    with _connect(journal / DATABASE_FILE) as copied:
        try:
            found = [line for (line,) in copied.execute("PRAGMA quick_check(10)") if line != "ok"]
            count = copied.execute("SELECT COUNT(*) FROM Cache").fetchone()[0]
        except sqlite3.Error as error:
            raise _to_store_error(error, source, journal) from error
    if not found and count != rows:
        found = [f"{count} of {rows} rows could be copied"]
    if found:
        raise damaged_database_error(source, *found)


@contextlib.contextmanager
def _open_origin(source: Path) -> Iterator[sqlite3.Connection]:
    try:
        uri, copied = find_readable_database(source)
    except OSError as error:
        raise store_error(error, source) from error
    try:
        with _connect(source / DATABASE_FILE, uri) as origin:
            yield origin
    finally:
        if copied is not None:
            copied.remove()


@contextlib.contextmanager
def _connect(path: Path, uri: str | None = None) -> Iterator[sqlite3.Connection]:
    uri = uri or f"file:{quote(str(path.absolute()))}?mode=rw"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
    except sqlite3.Error as error:
        raise store_error(error, path.parent) from error
    try:
        yield connection
    finally:
        connection.close()


def _to_store_error(error: Exception, source: Path, place: Path) -> StoreError:
    if not is_busy(error):
        made = store_error(error, place)
        # The copy is new, so a malformed page was already in the original.
        return damaged_database_error(source, str(error)) if isinstance(made, StoreDamaged) else made
    return StoreBusy(
        f"another process kept {source} from being read for {LOCK_TIMEOUT_SECONDS:.0f} s",
        waited=LOCK_TIMEOUT_SECONDS,
        hint="try again later",
    )
