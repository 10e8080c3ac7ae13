"""
How a diskcache `Cache` is opened so that it loses nothing, what is looked at before, and what `check` looks at.

The library makes the database and puts it right, which takes the lock of writers; one that is complete is opened
without either.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sqlite3
import stat
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import attrs
import diskcache  # type: ignore[import-untyped]  # it ships no types

from mama_structs.errors import StoreDamaged, StoreError
from mama_structs.storage.files import DATABASE, MARK_FILE, TemporaryDirectory, make_directory, sync_directory
from mama_structs.storage.sealed_rows import Damaged, foreign_value, is_own_key, unseal
from mama_structs.storage.sqlite_errors import Finding, damaged, damaged_file
from mama_structs.storage.wal import crashed

_MARK: Final = b"mama-structs journal 1\n"
# One byte more than our mark has, so that a longer one differs.
_MARK_BYTES: Final = len(_MARK) + 1
# In the file's header: says whose it is before a single statement changes it.
_APPLICATION: Final = 0x6D616D61
_TABLES: Final = frozenset({"Settings", "Cache"})
# Of all that diskcache 5.6.3 makes; of another version's it is found out by having it made.
_SCHEMA: Final = "874ea3ad57f4369b4980aaa901a2be9c"

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
# Less than the settings say, which earlier versions go by: beside the system's own cache a large one takes only memory.
_CACHE_PAGES: Final = 2**11
_KNOWN: Final = frozenset(SETTINGS) | frozenset(diskcache.core.METADATA)
# The first is the file's, the others are each connection's.
_PRAGMAS: Final = ("journal_mode", "synchronous", "mmap_size", "temp_store")

# Every file that belongs in the directory; the journal is there for an instant when the database is made.
FILES: Final = frozenset({MARK_FILE, DATABASE, *(f"{DATABASE}-{end}" for end in ("wal", "shm", "journal"))})

# From here on, two connections that commit and checkpoint at once can no longer damage a database in WAL mode.
_SOUND_SQLITE: Final = (3, 51, 3)
_NOT_OURS: Final = "was not made by this package"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

# Type, name, table, SQL.
_Item = tuple[object, object, object, object]


@attrs.frozen
class Opened:
    """
    A database that was opened.

    Args:
        connection: To be used by one thread at a time.
        findings: What a crash lost, as far as it can be known.
        schema_version: What SQLite's number was; when it changes, `check_schema` is to be asked again.

    """

    connection: sqlite3.Connection
    findings: tuple[Finding, ...]
    schema_version: int


def open_database(directory: Path) -> Opened:
    """Open the database in the calling thread, made where there is none; at "locked" it can be called again."""
    make_directory(directory)
    _check_kinds(directory)
    marked = check_format(directory)
    _make_file(directory, marked=marked)
    with contextlib.ExitStack() as stack:
        with crashed(directory) as crash:
            # Before a fork another thread closes it, while none uses it.
            connection = sqlite3.connect(directory / DATABASE, timeout=0, isolation_level=None, check_same_thread=False)
            stack.callback(connection.close)
            # All that is looked at is of one moment: another process may be making the store.
            connection.execute("BEGIN")
            version = _schema_version(connection)
            findings = crash.findings() if crash else ()
        is_complete = _is_complete(connection, directory, marked=marked)
        connection.execute("COMMIT")
        if not is_complete:
            _make(connection, directory)
            version = check_schema(connection, directory)
        for name in _PRAGMAS[1:]:
            connection.execute(f"PRAGMA {name} = {SETTINGS[f'sqlite_{name}']}").fetchall()
        connection.execute(f"PRAGMA cache_size = {_CACHE_PAGES}").fetchall()
        wrong = wrong_settings(connection)
        if wrong:
            raise StoreError(f"{directory} cannot be used safely: {'; '.join(wrong)}", hint="use a local file system")
        if not marked:
            _write_mark(directory)
        stack.pop_all()
    return Opened(connection, findings, version)


def check_schema(connection: sqlite3.Connection, directory: Path) -> int:
    """Return the schema's version; StoreDamaged unless its tables, indexes and triggers are those the library makes."""
    version = _schema_version(connection)
    foreign, missing = _compare(_schema(connection))
    if foreign:
        raise _foreign(directory, foreign)
    if missing:
        raise damaged(directory, *(_said(item, "is missing") for item in missing))
    return version


def wrong_settings(connection: sqlite3.Connection) -> list[str]:
    """Return a line for each setting, in force or in the file, that is not ours."""
    wrong = []
    for name in _PRAGMAS:
        row = connection.execute(f"PRAGMA {name}").fetchone()
        # A build without memory maps answers with no row.
        if row is not None and row[0] != SETTINGS[f"sqlite_{name}"]:
            wrong.append(f"{name} is {row[0]!r:.20}")
    stored = _stored(connection)
    wrong += [
        f"{name} is stored as {stored.get(name)!r:.20}" for name in SETTINGS if stored.get(name) != SETTINGS[name]
    ]
    return wrong


def _stored(connection: sqlite3.Connection) -> dict[str, object]:
    return dict(connection.execute("SELECT key, value FROM Settings").fetchall())


def _is_complete(connection: sqlite3.Connection, directory: Path, *, marked: bool) -> bool:
    """Tell whether nothing has to be made or put right; refuse what is not ours before anything is written to it."""
    found = _schema(connection)
    if not found and marked:
        raise damaged(directory, "the file is empty")
    foreign, missing = _compare(found) if found else ([], [])
    tables = {name for kind, name, _, _ in found if kind == "table"}
    is_ours = connection.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION
    # What a process leaves that was killed while it made a store is part of one, and has no rows.
    if not is_ours and (
        foreign or ("Cache" in tables and connection.execute("SELECT 1 FROM Cache LIMIT 1").fetchone())
    ):
        raise StoreError(f"{directory} belongs to another program", hint="give a session a directory of its own")
    if foreign:
        raise _foreign(directory, foreign)
    if is_ours and not tables >= _TABLES:
        raise damaged(directory, "a table is missing")
    if not (marked and is_ours) or missing:
        return False
    stored = _stored(connection)
    is_wal = connection.execute("PRAGMA journal_mode").fetchone()[0] == SETTINGS["sqlite_journal_mode"]
    return is_wal and stored.keys() == _KNOWN and all(stored[name] == SETTINGS[name] for name in SETTINGS)


def _make(connection: sqlite3.Connection, directory: Path) -> None:
    """Let the library make what is missing, after its stored settings were replaced by ours."""
    # It waits a minute for each lock while it opens: whether it can write is found out first.
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _schema(connection)
        if found and (foreign := _compare(found)[0]):
            raise _foreign(directory, foreign)
        if any(name == "Settings" for _, name, _, _ in found):
            marks = ", ".join("?" * len(_KNOWN))
            connection.execute(f"DELETE FROM Settings WHERE key NOT IN ({marks})", tuple(_KNOWN))  # noqa: S608 - marks only
            # The library puts stored values into PRAGMA statements as they are when it connects.
            connection.executemany("INSERT OR REPLACE INTO Settings (key, value) VALUES (?, ?)", SETTINGS.items())
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    _have_made(directory)
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")


def _have_made(directory: Path) -> None:
    cache = diskcache.Cache.__new__(diskcache.Cache)
    try:
        # In two steps, so that a connection is closed that a failing constructor leaves behind. It reads and writes no
        # row: what the library would make of one, such as to unpickle it, is never done.
        cache.__init__(str(directory), timeout=0, **SETTINGS)
    finally:
        cache.close()


def _schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA schema_version").fetchone()[0])


def _schema(connection: sqlite3.Connection) -> list[_Item]:
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    # ANALYZE makes these, and nobody else can.
    return sorted((item for item in found if item[1] not in {"sqlite_stat1", "sqlite_stat4"}), key=repr)


def _compare(found: list[_Item]) -> tuple[list[_Item], list[_Item]]:
    """Return what is in the database and not ours, and what is missing."""
    if blake2b(repr(found).encode(), digest_size=16).hexdigest() == _SCHEMA:
        return [], []
    have, wanted = Counter(found), Counter(_made_by_library())
    return list(have - wanted), list(wanted - have)


@functools.cache
def _made_by_library() -> tuple[_Item, ...]:
    temporary = TemporaryDirectory()
    temporary.make()
    try:
        _have_made(temporary.path)
        with contextlib.closing(sqlite3.connect(temporary.path / DATABASE)) as connection:
            return tuple(_schema(connection))
    finally:
        temporary.remove()


def _said(item: _Item, what: str) -> str:
    kind, name, table, _ = item
    on = "" if kind in {"table", "view"} else f" on {table!r:.60}"
    return f"the {kind!s:.10} {name!r:.60}{on} {what}"


def _foreign(directory: Path, foreign: list[_Item]) -> StoreDamaged:
    findings = [_said(item, _NOT_OURS) for item in foreign]
    remove = f"DROP {foreign[0][0]!s:.10} {foreign[0][1]!s:.60}"
    hint = f"find out what made it; put a backup in its place, or remove it ({remove}) with the program sqlite3"
    return damaged_file(directory / DATABASE, f"was changed: {'; '.join(findings)}", *findings, hint=hint)


def _check_kinds(directory: Path) -> None:
    """Refuse what is no regular file where one belongs: the opening of a FIFO may wait for its other end for ever."""
    for name in sorted(FILES):
        path = directory / name
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.stat().st_mode):
                message = "is no regular file"
                hint = "find out what put it there, and delete it"
                raise damaged_file(path, message, f"{name} {message}", hint=hint)


def check_format(directory: Path, *, fd: int | None = None) -> bool:
    """
    Return True if the store was completed once; raise `StoreError` if its format is not known.

    A version that changes the format must write the new mark while it holds SQLite's write lock, before it commits.
    Every write transaction of an older version that is still open then reads the new mark, or came before the change.

    Args:
        directory: Of the database.
        fd: The mark's descriptor, if it is open. Reading through it needs no further descriptor.

    """
    try:
        if fd is not None:
            mark = os.pread(fd, _MARK_BYTES, 0)
        else:
            with (directory / MARK_FILE).open("rb") as file:
                mark = file.read(_MARK_BYTES)
    except FileNotFoundError:
        return False
    if mark != _MARK and not _MARK.startswith(mark):
        raise StoreError(
            f"{directory} was written by a newer version of this package: its file {MARK_FILE} names a format that is "
            "not known here",
            hint="upgrade mama-structs on this host (pip install -U mama-structs), then open a new session",
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
    # SQLite would open it for reading alone, and an opening that writes nothing would not notice.
    if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def inspect_store(connection: sqlite3.Connection, directory: Path, *, shared: bool) -> list[Finding]:
    """Return what is wrong with the store; *connection* is in a transaction, *shared*: others may have it open, too."""
    findings = []
    try:
        foreign, missing = _compare(_schema(connection))
        findings += [Finding("error", "foreign", f"{DATABASE}: {_said(item, _NOT_OURS)}") for item in foreign]
        findings += [Finding("error", "integrity", f"{DATABASE}: {_said(item, 'is missing')}") for item in missing]
        found = [line for (line,) in connection.execute("PRAGMA quick_check") if line != "ok"]
        findings += [Finding("error", "integrity", f"{DATABASE}: {line}") for line in found]
        findings += list(_rows(connection))
        findings += [Finding("error", "settings", line) for line in wrong_settings(connection)]
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        # Malformed: the search for damage has come upon it, and cannot go on.
        findings.append(Finding("error", "integrity", f"{DATABASE}: {error}"))
    return [*findings, *_files(directory), *(_version() if shared else ())]


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
        seen = "a second one has or had this one open, or the system does not tell"
        yield Finding("warning", "sqlite", f"SQLite {sqlite3.sqlite_version} is older than {wanted}: {risk}; {seen}")
