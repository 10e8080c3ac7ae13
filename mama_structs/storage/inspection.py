"""What `check` looks at: the database's pages, every row, the settings and the files."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import attrs

from mama_structs.storage._disk import Damaged, foreign_value, is_own, unseal
from mama_structs.storage.files import DATABASE
from mama_structs.storage.opening import FILES, wrong_settings

# From here on, two connections that commit and checkpoint at once can no longer damage a database in WAL mode.
_SOUND_SQLITE: Final = (3, 51, 3)
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@attrs.frozen
class Finding:
    """
    Something that `check` found.

    Args:
        severity: ``"error"`` where data is lost or in danger, else ``"warning"``.
        kind: A word for programs: integrity, damaged, foreign, settings, files, pending or sqlite.
        message: For people; without content.
        key: The row's key, where it is about one.

    """

    severity: Literal["error", "warning"]
    kind: str
    message: str
    key: str | None = None


def inspect_store(connection: sqlite3.Connection, directory: Path) -> list[Finding]:
    """Return what is wrong with the store; *connection* is in a transaction."""
    findings = []
    try:
        findings += list(_pages(connection))
        findings += list(_rows(connection))
        findings += [Finding("error", "settings", line) for line in wrong_settings(connection)]
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        # Malformed: the search for damage has come upon it, and cannot go on.
        findings.append(Finding("error", "integrity", f"{DATABASE}: {error}"))
    return [*findings, *_files(directory), *_version()]


def pending_finding(calls: int, failure: Exception) -> Finding:
    """Return what is to be said of rows that could not be written."""
    return Finding("error", "pending", f"the rows of {calls} calls are not written yet: {failure}")


def _pages(connection: sqlite3.Connection) -> Iterator[Finding]:
    for (line,) in connection.execute("PRAGMA quick_check"):
        if line != "ok":
            yield Finding("error", "integrity", f"{DATABASE}: {line}")


def _rows(connection: sqlite3.Connection) -> Iterator[Finding]:
    columns = "rowid, key, raw, expire_time, tag, mode, filename, value"
    for rowid, key, raw, expires, tag, mode, filename, value in connection.execute(f"SELECT {columns} FROM Cache"):  # noqa: S608 - a constant
        if raw != 1 or type(key) is not str or not key.isascii():
            yield Finding("error", "foreign", f"row {rowid} has a key that this package did not write")
        elif not is_own(mode, filename, value):
            yield Finding("error", "foreign", f"row {rowid}: {foreign_value(mode, filename, value)}", key)
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
