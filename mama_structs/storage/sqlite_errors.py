"""Issues that a store check reports, and conversion of SQLite errors to typed errors."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Final, Literal

import attrs

from mama_structs._internal.reprs import FieldReprMixin
from mama_structs.errors import StoreDamaged, StoreError, StoreReadOnly
from mama_structs.storage.files import DATABASE_FILE, disk_full_error, from_os

BUSY_CODES: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
DAMAGED_CODES: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
READ_ONLY_CODES: Final = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
# SQLite does not report the cause of these errors. Writing a probe file reveals it.
AMBIGUOUS_CODES: Final = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})

READ_ONLY_HINT: Final = "copy it to a writable place with mama_structs.admin.copy, or make its files writable"

PROBE_DATA: Final = b"\0" * 65536


@attrs.frozen(repr=False)
class Issue(FieldReprMixin):
    """
    An issue found by `mama_structs.admin.check`.

    Args:
        severity: ``"error"`` if data is lost or in danger, else ``"warning"``.
        kind: A machine-readable word: integrity, damaged, foreign, lost, settings, files, pending,
            sqlite or server.
        message: A message for people, without stored content.
        key: The row's key, if the issue concerns one row.

    """

    severity: Literal["error", "warning"]
    kind: str
    message: str
    key: str | None = None


@attrs.frozen(repr=False)
class CheckReport(FieldReprMixin):
    """
    Result of `admin.check`. Its ``str()`` has one line for each issue.

    Args:
        issues: All issues. Those with severity "warning" are not damage.

    """

    _json_properties = ("ok",)

    issues: tuple[Issue, ...]

    @property
    def ok(self) -> bool:
        """True if no issue has the severity "error"."""
        return not any(issue.severity == "error" for issue in self.issues)

    def __str__(self) -> str:
        return "\n".join(f"{one.severity}: {one.message}" for one in self.issues) or "no damage found"


def is_busy(error: BaseException) -> bool:
    """Return True if another connection held a lock, so that a retry may succeed."""
    cause = _find_sqlite_error(error)
    return cause is not None and _primary_code(cause) in BUSY_CODES


def store_error(error: BaseException, directory: Path) -> StoreError:
    """Return the typed error for *error*. If SQLite hides the cause, probe *directory* to find it."""
    if isinstance(error, StoreError):
        return error
    cause = _find_sqlite_error(error)
    if cause is not None:
        return _from_sqlite(cause, directory)
    if isinstance(error, OSError):
        return from_os(error, directory)
    return StoreError(f"{directory} failed: {type(error).__name__}")


def damaged_database_error(directory: Path, *findings: str) -> StoreDamaged:
    """Return the error for a corrupt database."""
    hint = "restore a backup, or move the directory away and start with an empty store"
    return damaged_file_error(directory / DATABASE_FILE, f"is damaged: {'; '.join(findings)}", *findings, hint=hint)


def damaged_file_error(path: Path, message: str, *findings: str, hint: str) -> StoreDamaged:
    """Return the error for a corrupt file."""
    return StoreDamaged(f"{path} {message}", file=str(path), findings=findings, hint=hint)


def read_only_error(directory: Path) -> StoreReadOnly:
    """Return the error for a write to a store that can only be read."""
    return StoreReadOnly(f"{directory} cannot be written to", hint=READ_ONLY_HINT)


def _from_sqlite(error: sqlite3.Error, directory: Path) -> StoreError:
    primary = _primary_code(error)
    hidden = _probe_write(directory) if primary in AMBIGUOUS_CODES else None
    if hidden is not None:
        return from_os(hidden, directory)
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DBMOVED:
        return damaged_database_error(directory, "the file was moved or deleted while it was open")
    if primary in DAMAGED_CODES:
        return damaged_database_error(directory, str(error))
    if primary == sqlite3.SQLITE_FULL:
        return disk_full_error(directory)
    if primary in READ_ONLY_CODES:
        return read_only_error(directory)
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    return StoreError(f"{directory / DATABASE_FILE} failed: {name}: {error}")


def _find_sqlite_error(error: BaseException | None) -> sqlite3.Error | None:
    """Return the innermost SQLite error in the chain of causes."""
    # The SQLite error may be hidden in the chain by diskcache's `Timeout`, or by an error of the cleanup.
    found = None
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        found = error if isinstance(error, sqlite3.Error) else found
        error = error.__cause__ or error.__context__
    return found


def _primary_code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _probe_write(directory: Path) -> OSError | None:
    """
    Write and delete a probe file of the size of the largest file in the directory.

    Return the error, or None if there was none.
    """
    try:
        with os.scandir(directory) as entries:
            reach = max((entry.stat().st_size for entry in entries if entry.is_file()), default=0)
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            file.seek(reach)
            file.write(PROBE_DATA)
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None
