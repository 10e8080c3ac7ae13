"""How a diskcache `Cache` is opened so that it loses nothing, what is looked at before, and what `check` looks at."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import diskcache  # type: ignore[import-untyped]  # it ships no types

from mama_structs.errors import InvalidArgument, StoreError
from mama_structs.storage.failures import Finding, damaged, damaged_file
from mama_structs.storage.files import DATABASE, MARK_FILE, make_directory, sync_directory
from mama_structs.storage.rows import Damaged, check_key, foreign_value, is_own_key, unseal

_MARK: Final = b"mama-structs journal 1\n"
# In the file's header: says whose it is before a single statement changes it.
_APPLICATION: Final = 0x6D616D61
_TABLES: Final = frozenset({"Settings", "Cache"})

SETTINGS: Final[dict[str, Any]] = {
    # Nothing is ever evicted or culled: by default the library drops the oldest rows at 1 GiB.
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 2**62,
    "statistics": 0,
    "tag_index": 0,
    "disk_min_file_size": 2**62,
    "disk_pickle_protocol": 0,
    "sqlite_auto_vacuum": 0,
    "sqlite_cache_size": 2**13,
    "sqlite_journal_mode": "wal",
    # A file that shrinks under a memory map kills the process.
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": 2,
    # Else a statement's own journal is a temporary file elsewhere, which can fail for reasons of its own.
    "sqlite_temp_store": 2,
}
_KNOWN: Final = frozenset(SETTINGS) | frozenset(diskcache.core.METADATA)
_PRAGMAS: Final = ("journal_mode", "synchronous", "mmap_size", "temp_store")

# Every file that belongs in the directory; the journal is there for an instant when the database is made.
FILES: Final = frozenset({MARK_FILE, DATABASE, *(f"{DATABASE}-{end}" for end in ("wal", "shm", "journal"))})

# From here on, two connections that commit and checkpoint at once can no longer damage a database in WAL mode.
_SOUND_SQLITE: Final = (3, 51, 3)
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class ForeignRow(Exception):
    """A row that this package did not write; it was not decoded."""


class _BytesDisk(diskcache.Disk):  # type: ignore[misc]  # the base class has no types
    """Bytes under ASCII keys, inline: the library itself would unpickle what was planted, and obey names of files."""

    def __init__(self, directory: str, **_settings: object) -> None:
        super().__init__(directory, min_file_size=2**62, pickle_protocol=0)

    def put(self, key: object) -> tuple[str, bool]:
        """Return the columns of a key."""
        return check_key(key), True

    def get(self, key: Any, raw: object) -> str:
        """Return the key in a row."""
        if not is_own_key(key, raw):
            raise ForeignRow("a key that this package did not write")
        return str(key)

    def store(self, value: object, read: object, key: object = None) -> tuple[int, int, None, bytes]:  # noqa: ARG002 - the base class's signature
        """Return the columns of a value."""
        if type(value) is not bytes:
            raise InvalidArgument(f"only bytes are stored, got {type(value).__name__}")
        return 0, diskcache.core.MODE_RAW, None, value

    def fetch(self, mode: object, filename: object, value: Any, read: object) -> bytes:
        """Return the bytes in a row, and nothing else: no number, text, file or pickle."""
        foreign = "it was asked for as a file" if read else foreign_value(mode, filename, value)
        if foreign:
            raise ForeignRow(foreign)
        return bytes(value)

    def filename(self, key: object = None, value: object = None) -> NoReturn:  # noqa: ARG002 - as above
        """Refuse: no row of ours has a file."""
        raise ForeignRow("a value in a file of its own")

    def remove(self, file_path: object) -> None:
        """Leave a file alone that a foreign row names: its name is not to be trusted."""


def open_database(directory: Path) -> sqlite3.Connection:
    """Open the database in the calling thread, made where there is none; at "locked" it can be called again."""
    make_directory(directory)
    _check_kinds(directory)
    marked = _read_mark(directory)
    _make_file(directory, marked=marked)
    with contextlib.closing(sqlite3.connect(directory / DATABASE, timeout=0, isolation_level=None)) as before:
        _look_before(before, directory, marked=marked)
    cache = diskcache.Cache.__new__(diskcache.Cache)
    try:
        # In two steps, so that a connection is closed that a failing constructor leaves behind.
        cache.__init__(str(directory), timeout=0, disk=_BytesDisk, **SETTINGS)
        # Rows are such as the library writes; we read many at once, in transactions that tell why they fail.
        connection: sqlite3.Connection = cache._con  # noqa: SLF001 - there is no public way to it
        # The library sets what the file's table says, which another process may be writing for the first time.
        for name in _PRAGMAS:
            connection.execute(f"PRAGMA {name} = {SETTINGS[f'sqlite_{name}']}").fetchall()
        wrong = wrong_settings(connection)
        if wrong:
            raise StoreError(f"{directory} cannot be used safely: {'; '.join(wrong)}", hint="use a local file system")
        if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        if not marked:
            _write_mark(directory)
    except BaseException:
        cache.close()
        raise
    return connection


def wrong_settings(connection: sqlite3.Connection) -> list[str]:
    """Return a line for each setting, in force or in the file, that is not ours."""
    wrong = []
    for name in _PRAGMAS:
        row = connection.execute(f"PRAGMA {name}").fetchone()
        # A build without memory maps answers with no row.
        if row is not None and row[0] != SETTINGS[f"sqlite_{name}"]:
            wrong.append(f"{name} is {row[0]!r:.20}")
    stored = dict(connection.execute("SELECT key, value FROM Settings").fetchall())
    wrong += [
        f"{name} is stored as {stored.get(name)!r:.20}" for name in SETTINGS if stored.get(name) != SETTINGS[name]
    ]
    return wrong


def _look_before(connection: sqlite3.Connection, directory: Path, *, marked: bool) -> None:
    """Refuse what is not ours before the library writes to it, and take settings out that it would obey."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables and marked:
        raise damaged(directory, "the file is empty")
    is_ours = connection.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION
    if not is_ours and not _is_unused(connection, tables):
        raise StoreError(f"{directory} belongs to another program", hint="give a session a directory of its own")
    if is_ours and not tables >= _TABLES:
        raise damaged(directory, "a table is missing")
    # The library waits a minute for each lock while it opens: whether it can write is found out first.
    connection.execute("BEGIN IMMEDIATE")
    try:
        if "Settings" in tables:
            marks = ", ".join("?" * len(_KNOWN))
            connection.execute(f"DELETE FROM Settings WHERE key NOT IN ({marks})", tuple(_KNOWN))  # noqa: S608 - marks only
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _check_kinds(directory: Path) -> None:
    """Refuse what is no regular file where one belongs: the opening of a FIFO may wait for its other end for ever."""
    for name in sorted(FILES):
        path = directory / name
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.stat().st_mode):
                message = "is no regular file"
                hint = "find out what put it there, and delete it"
                raise damaged_file(path, message, f"{name} {message}", hint=hint)


def _is_unused(connection: sqlite3.Connection, tables: set[str]) -> bool:
    """Tell whether the file is what a process leaves that was killed while it made a store."""
    if not tables <= _TABLES:
        return False
    return "Cache" not in tables or connection.execute("SELECT 1 FROM Cache LIMIT 1").fetchone() is None


def _read_mark(directory: Path) -> bool:
    """Tell whether a store was completed here once."""
    try:
        mark = (directory / MARK_FILE).read_bytes()
    except FileNotFoundError:
        return False
    if mark != _MARK and not _MARK.startswith(mark):
        raise StoreError(
            f"{directory} was written by a version that this one does not know", hint="upgrade mama-structs"
        )
    return mark == _MARK


def _write_mark(directory: Path) -> None:
    """Say that the store is complete, so that an empty one is known to have lost its rows from now on."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(directory / MARK_FILE, flags, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(_MARK)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(directory)


def _make_file(directory: Path, *, marked: bool) -> None:
    """Make the database's file, which no other user may read."""
    path = directory / DATABASE
    if marked and not path.exists():
        hint = f"put a backup in its place, or delete {MARK_FILE} beside it to begin anew"
        raise damaged_file(path, "is missing", "the file is missing", hint=hint)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def inspect_store(connection: sqlite3.Connection, directory: Path) -> list[Finding]:
    """Return what is wrong with the store; *connection* is in a transaction."""
    findings = []
    try:
        found = [line for (line,) in connection.execute("PRAGMA quick_check") if line != "ok"]
        findings += [Finding("error", "integrity", f"{DATABASE}: {line}") for line in found]
        findings += list(_rows(connection))
        findings += [Finding("error", "settings", line) for line in wrong_settings(connection)]
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        # Malformed: the search for damage has come upon it, and cannot go on.
        findings.append(Finding("error", "integrity", f"{DATABASE}: {error}"))
    return [*findings, *_files(directory), *_version()]


def _rows(connection: sqlite3.Connection) -> Iterator[Finding]:
    columns = "rowid, key, raw, expire_time, tag, mode, filename, value"
    for rowid, key, raw, expires, tag, mode, filename, value in connection.execute(f"SELECT {columns} FROM Cache"):  # noqa: S608 - a constant
        if not is_own_key(key, raw):
            yield Finding("error", "foreign", f"row {rowid} has a key that this package did not write")
        elif foreign := foreign_value(mode, filename, value):
            yield Finding("error", "foreign", f"row {rowid}: {foreign}", key)
        elif expires is not None or tag is not None:
            yield Finding("error", "foreign", f"row {rowid} expires or has a tag", key)
        else:
            content = unseal(key, value)
            if isinstance(content, Damaged):
                yield Finding("error", "damaged", f"row {rowid}: {content.reason}", key)


def _files(directory: Path) -> Iterator[Finding]:
    for name in sorted(os.listdir(directory)):  # noqa: PTH208 - names are what is compared
        if name not in FILES:
            yield Finding("warning", "files", f"{name!r} does not belong in {directory}")
    mode = stat.S_IMODE(directory.stat().st_mode)
    if os.name == "posix" and mode & _OTHERS:
        yield Finding("warning", "files", f"{directory} is open to other users (mode {mode:o})")


def _version() -> Iterator[Finding]:
    if sqlite3.sqlite_version_info < _SOUND_SQLITE:
        wanted = ".".join(map(str, _SOUND_SQLITE))
        risk = "several processes that write one store at once can damage it, rarely"
        yield Finding("warning", "sqlite", f"SQLite {sqlite3.sqlite_version} is older than {wanted}: {risk}")
