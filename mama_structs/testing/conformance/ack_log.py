"""
Log of a crash test.

A file outside of the store records the started and the acknowledged changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.errors import MamaStructsError

# Seconds after which a process counts as hung. Even a busy machine must not reach it.
HANG_TIMEOUT_SECONDS: Final = 300.0


@attrs.frozen
class AckLog:
    """
    A log file to which several processes append lines of JSON.

    Written lines survive a killed writer.

    Args:
        fd: The open file.
        store: The directory or address of the store that it belongs to, empty if no change needs it.

    """

    fd: int
    store: str = ""

    @classmethod
    def open(cls, path: Path, *, store: str = "") -> AckLog:
        """Open a log, creating it if it is missing."""
        return cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), store)

    def append(self, *what: Any) -> None:
        """Append a line."""
        line = json.dumps(what, separators=(",", ":")).encode() + b"\n"
        with _without_file_size_limit():
            if os.write(self.fd, line) != len(line):
                raise OSError("the acknowledgement log is full")

    @staticmethod
    def read(path: Path) -> list[list[Any]]:
        """Return the complete lines of a file."""
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    def read_last(self, max_bytes: int = 2**14, *, kind: str, namespace: str) -> list[list[Any]]:
        """Return the lines of one kind and namespace in the last *max_bytes* bytes, from all writers."""
        begin = max(os.fstat(self.fd).st_size - max_bytes, 0)
        # Incomplete lines at either end are skipped.
        lines = os.pread(self.fd, max_bytes, begin).split(b"\n")[begin > 0 : -1]
        found = [json.loads(line) for line in lines]
        return [one for one in found if one[:2] == [kind, namespace]]


@contextlib.contextmanager
def log_errors(log: AckLog) -> Iterator[None]:
    """Log the error of a change, typed or not, and continue with the next change."""
    try:
        yield
    except MamaStructsError as error:
        log.append("refused", error.type, str(error))
    except Exception as error:  # noqa: BLE001 - reported as a result of the run
        where = traceback.extract_tb(error.__traceback__)[-1]
        log.append("untyped", f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}"[:500])


@contextlib.contextmanager
def _without_file_size_limit() -> Iterator[None]:
    """Lift the file size limit, so that a process with a full disk can still write its log."""
    import resource  # noqa: PLC0415 - not available on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
