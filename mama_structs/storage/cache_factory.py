"""
Opening of a diskcache `Cache` with durable settings, its validation, and checks of the store.

diskcache initializes or repairs a database under the write lock. A complete database is opened without either.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import sqlite3
import stat
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import attrs
import diskcache  # type: ignore[import-untyped]  # it ships no types

from mama_structs.errors import StoreDamaged, StoreError, StoreFull, StoreReadOnly
from mama_structs.storage.files import DATABASE_FILE, MARK_FILE, TemporaryDirectory, create_directory, sync_directory
from mama_structs.storage.reserve import MAX_RESERVE_BYTES, RESERVE_FILE
from mama_structs.storage.sealed_rows import DamagedValue, describe_foreign_value, is_package_key, unseal
from mama_structs.storage.sqlite_errors import READ_ONLY_HINT, Issue, damaged_database_error, damaged_file_error
from mama_structs.storage.wal import crashed

FORMAT_MARK: Final = b"mama-structs journal 1\n"
# Maximum bytes to read from the mark file: one more than the mark has, so that longer content does not match.
MAX_MARK_BYTES: Final = len(FORMAT_MARK) + 1
# SQLite's application id. It identifies this package's database files before any statement changes them.
APPLICATION_ID: Final = 0x6D616D61
REQUIRED_TABLES: Final = frozenset({"Settings", "Cache"})
# Hash of the schema of diskcache 5.6.3. The schema of other versions is read from a newly created database.
SCHEMA_HASH: Final = "874ea3ad57f4369b4980aaa901a2be9c"

SETTINGS: Final[dict[str, Any]] = {
    # Disable eviction and culling: by default diskcache deletes the oldest rows at 1 GiB.
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
    # No memory map, because truncating a mapped file would kill the process.
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": 2,
    # Keep temporary data in memory. Otherwise writing it to a temporary directory may fail.
    "sqlite_temp_store": 2,
}
# Number of pages in SQLite's cache. A small value saves memory, because the operating system also caches pages.
# The stored setting is larger and must not change, because earlier versions compare it.
PAGE_CACHE_SIZE: Final = 2**11
# A transaction writes more changed pages than this to the log before its commit. Fewer stay in memory, so that a full
# disk is found at the commit, which can be repeated. Log and reserve cannot hold a larger transaction.
SPILL_PAGES: Final = 2 * MAX_RESERVE_BYTES // 2**12
KNOWN_SETTINGS: Final = frozenset(SETTINGS) | frozenset(diskcache.core.METADATA)
# The database file stores the journal mode. The other settings belong to each connection.
CHECKED_PRAGMAS: Final = ("journal_mode", "synchronous", "mmap_size", "temp_store")

# All files that belong in the directory. The journal file exists only while the database is created.
FILES: Final = frozenset(
    {MARK_FILE, RESERVE_FILE, DATABASE_FILE, *(f"{DATABASE_FILE}-{end}" for end in ("wal", "shm", "journal"))}
)

# Minimum SQLite version in which concurrent commits and checkpoints cannot corrupt a database in WAL mode.
MIN_SAFE_SQLITE_VERSION: Final = (3, 51, 3)
FOREIGN_ITEM_MESSAGE: Final = "was not made by this package"
OTHER_USERS_MODE_MASK: Final = stat.S_IRWXG | stat.S_IRWXO

# Type, name, table and SQL of a schema item.
_SchemaItem = tuple[object, object, object, object]


@attrs.frozen
class OpenedDatabase:
    """
    An opened database.

    Args:
        connection: For use by one thread at a time.
        findings: Data lost by a crash, as far as it is detectable.
        schema_version: SQLite's schema version. Call `check_schema` again when it changes.
        is_read_only: True if the directory or the database file cannot be written to.
        copied: The temporary directory with a copy, if the log cannot be read in place. The caller removes it.
        is_fixed: True if the connection does not see later changes of other processes.

    """

    connection: sqlite3.Connection
    findings: tuple[Issue, ...]
    schema_version: int
    is_read_only: bool = False
    copied: TemporaryDirectory | None = None
    is_fixed: bool = False


def open_database(directory: Path) -> OpenedDatabase:
    """
    Open the database in the calling thread. Create it if it does not exist.

    If the database is locked, the call may be repeated.
    """
    create_directory(directory)
    _check_file_types(directory)
    marked = check_format(directory)
    if marked and _is_read_only(directory):
        return _open_read_only(directory)
    _create_file(directory, has_mark=marked)
    with contextlib.ExitStack() as stack:
        with crashed(directory) as crash:
            # Disable sqlite3's thread check, because another thread closes the connection before a fork.
            connection = sqlite3.connect(
                directory / DATABASE_FILE, timeout=0, isolation_level=None, check_same_thread=False
            )
            stack.callback(connection.close)
            # Read everything from one snapshot, because another process may be creating the store.
            connection.execute("BEGIN")
            version = _read_schema_version(connection)
            findings = crash.findings() if crash else ()
        is_complete = _is_complete(connection, directory, has_mark=marked)
        connection.execute("COMMIT")
        if not is_complete:
            _initialize(connection, directory)
            version = check_schema(connection, directory)
        _set_pragmas(connection)
        wrong = find_wrong_settings(connection)
        if wrong:
            raise StoreError(f"{directory} cannot be used safely: {'; '.join(wrong)}", hint="use a local file system")
        if not marked:
            _write_mark(directory)
        stack.pop_all()
    return OpenedDatabase(connection, findings, version)


def _is_read_only(directory: Path) -> bool:
    """Return True if the directory or the existing database file cannot be written to, as on read-only media."""
    effective = os.access in os.supports_effective_ids
    path = directory / DATABASE_FILE
    return path.exists() and not all(os.access(one, os.W_OK, effective_ids=effective) for one in (directory, path))


def find_readable_database(directory: Path) -> tuple[str, TemporaryDirectory | None]:
    """
    Return the URI with which SQLite opens a database for reading, and None or a temporary copy.

    The caller removes the copy.

    In a place that cannot be written to, SQLite reads a file without a log as immutable, and a log only together with
    its index. Without the index, both files are copied. Such a connection does not see later changes:
    `Database.is_outdated` detects them.
    """
    log, index = (directory / f"{DATABASE_FILE}-{end}" for end in ("wal", "shm"))
    has_log = log.exists() and log.stat().st_size > 0
    if not _is_read_only(directory) or (has_log and index.exists()):
        return _uri(directory, "ro"), None
    if not has_log:
        return _uri(directory, "ro&immutable=1"), None
    copied = TemporaryDirectory()
    copied.create()
    try:
        originals = [directory / DATABASE_FILE, log]
        needed, free = sum(one.stat().st_size for one in originals), shutil.disk_usage(copied.path).free
        if needed > free:
            raise StoreFull(
                f"{directory} cannot be written to, so reading it needs a copy of {needed:,} bytes, but "
                f"{copied.path.parent} has only {free:,} bytes of free space",
                hint="free space there, set TMPDIR to another directory, or copy the store to a writable place",
            )
        for one in originals:
            shutil.copyfile(one, copied.path / one.name)
    except BaseException:
        copied.remove()
        raise
    return _uri(copied.path, "rw"), copied


def _uri(directory: Path, mode: str) -> str:
    return f"file:{quote(os.fspath(directory.absolute() / DATABASE_FILE))}?mode={mode}"


def _open_read_only(directory: Path) -> OpenedDatabase:
    """Open a complete database for reading. Nothing is written to its directory."""
    with contextlib.ExitStack() as stack:
        uri, copied = find_readable_database(directory)
        if copied is not None:
            stack.callback(copied.remove)
        connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        stack.callback(connection.close)
        connection.execute("PRAGMA query_only = 1").fetchall()
        connection.execute("BEGIN")
        version = _read_schema_version(connection)
        if not _is_complete(connection, directory, has_mark=True):
            raise StoreReadOnly(f"{directory} must be repaired, but it cannot be written to", hint=READ_ONLY_HINT)
        connection.execute("COMMIT")
        _set_pragmas(connection)
        stack.pop_all()
    is_fixed = copied is not None or "immutable" in uri
    return OpenedDatabase(connection, (), version, is_read_only=True, copied=copied, is_fixed=is_fixed)


def _set_pragmas(connection: sqlite3.Connection) -> None:
    for name in CHECKED_PRAGMAS[1:]:
        connection.execute(f"PRAGMA {name} = {SETTINGS[f'sqlite_{name}']}").fetchall()
    for name, pages in (("cache_size", PAGE_CACHE_SIZE), ("cache_spill", SPILL_PAGES)):
        connection.execute(f"PRAGMA {name} = {pages}").fetchall()


def check_schema(connection: sqlite3.Connection, directory: Path) -> int:
    """
    Return the version number of the database's schema.

    Raise StoreDamaged if the schema differs from that of diskcache.
    """
    version = _read_schema_version(connection)
    foreign, missing = _compare_schema(_read_schema(connection))
    if foreign:
        raise _foreign_items_error(directory, foreign)
    if missing:
        raise damaged_database_error(directory, *(_describe_item(item, "is missing") for item in missing))
    return version


def find_wrong_settings(connection: sqlite3.Connection) -> list[str]:
    """Return a message for each setting that has a wrong value in the connection or in the database."""
    wrong = []
    for name in CHECKED_PRAGMAS[1 if _is_query_only(connection) else 0 :]:
        row = connection.execute(f"PRAGMA {name}").fetchone()
        # SQLite returns no row if it was built without memory mapping.
        if row is not None and row[0] != SETTINGS[f"sqlite_{name}"]:
            wrong.append(f"{name} is {row[0]!r:.20}")
    stored = _read_stored_settings(connection)
    wrong += [
        f"{name} is stored as {stored.get(name)!r:.20}" for name in SETTINGS if stored.get(name) != SETTINGS[name]
    ]
    return wrong


def _read_stored_settings(connection: sqlite3.Connection) -> dict[str, object]:
    return dict(connection.execute("SELECT key, value FROM Settings").fetchall())


def _is_complete(connection: sqlite3.Connection, directory: Path, *, has_mark: bool) -> bool:
    """
    Return True if the database needs no creation or repair.

    Databases of other programs are rejected before anything is written to them.
    """
    found = _read_schema(connection)
    if not found and has_mark:
        raise damaged_database_error(directory, "the file is empty")
    foreign, missing = _compare_schema(found) if found else ([], [])
    tables = {name for kind, name, _, _ in found if kind == "table"}
    is_ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    # Accept a partial schema without rows: it remains if a process is killed while it creates a store.
    if not is_ours and (
        foreign or ("Cache" in tables and connection.execute("SELECT 1 FROM Cache LIMIT 1").fetchone())
    ):
        raise StoreError(f"{directory} belongs to another program", hint="give a session a directory of its own")
    if foreign:
        raise _foreign_items_error(directory, foreign)
    if is_ours and not tables >= REQUIRED_TABLES:
        raise damaged_database_error(directory, "a table is missing")
    if not (has_mark and is_ours) or missing:
        return False
    stored = _read_stored_settings(connection)
    return (
        _is_in_wal_mode(connection)
        and stored.keys() == KNOWN_SETTINGS
        and all(stored[name] == SETTINGS[name] for name in SETTINGS)
    )


def _is_in_wal_mode(connection: sqlite3.Connection) -> bool:
    """Return True if the file is in WAL mode, or cannot be changed: an immutable file reports another mode."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    return bool(mode == SETTINGS["sqlite_journal_mode"]) or _is_query_only(connection)


def _is_query_only(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA query_only").fetchone()[0])


def _initialize(connection: sqlite3.Connection, directory: Path) -> None:
    """Store the settings, then let diskcache create the missing parts of the database."""
    # diskcache waits a minute for each lock, so check first whether the write lock is free.
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _read_schema(connection)
        if found and (foreign := _compare_schema(found)[0]):
            raise _foreign_items_error(directory, foreign)
        if any(name == "Settings" for _, name, _, _ in found):
            marks = ", ".join("?" * len(KNOWN_SETTINGS))
            connection.execute(f"DELETE FROM Settings WHERE key NOT IN ({marks})", tuple(KNOWN_SETTINGS))  # noqa: S608 - marks only
            # Overwrite the stored values, because diskcache formats them into PRAGMA statements without quoting.
            connection.executemany("INSERT OR REPLACE INTO Settings (key, value) VALUES (?, ?)", SETTINGS.items())
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    _initialize_with_diskcache(directory)
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _initialize_with_diskcache(directory: Path) -> None:
    cache = diskcache.Cache.__new__(diskcache.Cache)
    try:
        # Call __new__ and __init__ separately, so that the connection is closed if __init__ fails.
        # diskcache reads and writes no rows in these calls, so it never unpickles data.
        cache.__init__(str(directory), timeout=0, **SETTINGS)
    finally:
        cache.close()


def _read_schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA schema_version").fetchone()[0])


def _read_schema(connection: sqlite3.Connection) -> list[_SchemaItem]:
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    # Ignore these tables, because only ANALYZE can create them.
    return sorted((item for item in found if item[1] not in {"sqlite_stat1", "sqlite_stat4"}), key=repr)


def _compare_schema(found: list[_SchemaItem]) -> tuple[list[_SchemaItem], list[_SchemaItem]]:
    """Return the unexpected and the missing items of a schema."""
    if blake2b(repr(found).encode(), digest_size=16).hexdigest() == SCHEMA_HASH:
        return [], []
    have, wanted = Counter(found), Counter(_expected_schema())
    return list(have - wanted), list(wanted - have)


@functools.cache
def _expected_schema() -> tuple[_SchemaItem, ...]:
    temporary = TemporaryDirectory()
    temporary.create()
    try:
        _initialize_with_diskcache(temporary.path)
        with contextlib.closing(sqlite3.connect(temporary.path / DATABASE_FILE)) as connection:
            return tuple(_read_schema(connection))
    finally:
        temporary.remove()


def _describe_item(item: _SchemaItem, problem: str) -> str:
    kind, name, table, _ = item
    on = "" if kind in {"table", "view"} else f" on {table!r:.60}"
    return f"the {kind!s:.10} {name!r:.60}{on} {problem}"


def _foreign_items_error(directory: Path, foreign: list[_SchemaItem]) -> StoreDamaged:
    findings = [_describe_item(item, FOREIGN_ITEM_MESSAGE) for item in foreign]
    remove = f"DROP {foreign[0][0]!s:.10} {foreign[0][1]!s:.60}"
    hint = f"find out what made it; restore a backup, or remove it ({remove}) with the program sqlite3"
    return damaged_file_error(directory / DATABASE_FILE, f"was changed: {'; '.join(findings)}", *findings, hint=hint)


def _check_file_types(directory: Path) -> None:
    """Raise an error for files that are not regular. For example, opening a FIFO could block forever."""
    for name in sorted(FILES):
        path = directory / name
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.stat().st_mode):
                message = "is no regular file"
                hint = "find out what put it there, and delete it"
                raise damaged_file_error(path, message, f"{name} {message}", hint=hint)


def check_format(directory: Path, *, fd: int | None = None) -> bool:
    """
    Return True if the store was once completely created. Raise `StoreError` for an unknown format.

    A version that changes the format must write the new mark while it holds SQLite's write lock, before it commits.
    Then every later write transaction of an older version that is still running reads the new mark and fails.

    Args:
        directory: The directory of the database.
        fd: Descriptor of the open mark file, so that no further descriptor is needed.

    """
    try:
        if fd is not None:
            mark = os.pread(fd, MAX_MARK_BYTES, 0)
        else:
            with (directory / MARK_FILE).open("rb") as file:
                mark = file.read(MAX_MARK_BYTES)
    except FileNotFoundError:
        return False
    if mark != FORMAT_MARK and not FORMAT_MARK.startswith(mark):
        raise StoreError(
            f"{directory} was written by a newer version of this package: its file {MARK_FILE} names a format that is "
            "not known here",
            hint="upgrade mama-structs on this host (pip install -U mama-structs), then open a new session",
        )
    return mark == FORMAT_MARK


def _write_mark(directory: Path) -> None:
    """Write the file that marks the store as complete. With this file, an empty database means that rows were lost."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(directory / MARK_FILE, flags, 0o600), "wb") as file:  # noqa: PTH123 - opens a descriptor
        file.write(FORMAT_MARK)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(directory)


def _create_file(directory: Path, *, has_mark: bool) -> None:
    """Create the database file with mode 0600."""
    path = directory / DATABASE_FILE
    if has_mark and not path.exists():
        hint = f"restore a backup, or delete {MARK_FILE} in its directory to start with an empty store"
        raise damaged_file_error(path, "is missing", "the file is missing", hint=hint)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    # Check this here, because SQLite would open the file read-only without an error.
    if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def inspect_store(connection: sqlite3.Connection, directory: Path, *, is_shared: bool) -> list[Issue]:
    """
    Return the issues of the store. The connection must be in a transaction.

    *is_shared* means that other processes may have the store open.
    """
    findings = []
    try:
        foreign, missing = _compare_schema(_read_schema(connection))
        findings += [
            Issue("error", "foreign", f"{DATABASE_FILE}: {_describe_item(item, FOREIGN_ITEM_MESSAGE)}")
            for item in foreign
        ]
        findings += [
            Issue("error", "integrity", f"{DATABASE_FILE}: {_describe_item(item, 'is missing')}") for item in missing
        ]
        found = [line for (line,) in connection.execute("PRAGMA quick_check") if line != "ok"]
        findings += [Issue("error", "integrity", f"{DATABASE_FILE}: {line}") for line in found]
        findings += list(_check_rows(connection))
        findings += [Issue("error", "settings", line) for line in find_wrong_settings(connection)]
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        # The database is malformed, and the check ended at the malformed page.
        findings.append(Issue("error", "integrity", f"{DATABASE_FILE}: {error}"))
    return [*findings, *_check_files(directory), *(_check_sqlite_version() if is_shared else ())]


def _check_rows(connection: sqlite3.Connection) -> Iterator[Issue]:
    columns = "rowid, key, raw, expire_time, tag, mode, filename, value"
    for rowid, key, raw, expires, tag, mode, filename, value in connection.execute(f"SELECT {columns} FROM Cache"):  # noqa: S608 - a constant
        if not is_package_key(key, raw):
            yield Issue("error", "foreign", f"row {rowid} has a key that this package did not write")
        elif foreign := describe_foreign_value(mode, filename, value):
            yield Issue("error", "foreign", f"row {rowid}: {foreign}", key)
        elif expires is not None or tag is not None:
            yield Issue("error", "foreign", f"row {rowid} expires or has a tag", key)
        else:
            content = unseal(key, value)
            if isinstance(content, DamagedValue):
                yield Issue("error", "damaged", f"row {rowid}: {content.reason}", key)


def _check_files(directory: Path) -> Iterator[Issue]:
    for name in sorted(os.listdir(directory)):  # noqa: PTH208 - only names are needed
        if name not in FILES:
            yield Issue("warning", "files", f"{name!r} does not belong in {directory}")
    mode = stat.S_IMODE(directory.stat().st_mode)
    if os.name == "posix" and mode & OTHER_USERS_MODE_MASK:
        yield Issue("warning", "files", f"{directory} is open to other users (mode {mode:o})")


def _check_sqlite_version() -> Iterator[Issue]:
    if sqlite3.sqlite_version_info < MIN_SAFE_SQLITE_VERSION:
        wanted = ".".join(map(str, MIN_SAFE_SQLITE_VERSION))
        risk = "several processes that write one store at once can damage it, rarely"
        seen = "a second one has or had this one open, or the system does not tell"
        yield Issue("warning", "sqlite", f"SQLite {sqlite3.sqlite_version} is older than {wanted}: {risk}; {seen}")
