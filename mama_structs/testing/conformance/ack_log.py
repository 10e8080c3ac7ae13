"""
Log of a crash test.

The log is a file outside the store. Writers record each change before it starts and after it is acknowledged.
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

# Seconds after which a process counts as hung. The limit is high, so that a slow machine does not exceed it.
HANG_TIMEOUT_SECONDS: Final = 300.0


@attrs.frozen
class AckLog:
    """
    A log file to which several processes append lines of JSON.

    Lines that are already written survive if their writer is killed.

    Args:
        fd: The open file.
        store: The directory or address of the store under test; empty if no change needs it.

    """

    fd: int
    store: str = ""

    @classmethod
    def open(cls, path: Path, *, store: str = "") -> AckLog:
        """Open a log. The file is created if it does not exist."""
        return cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), store)

    def append(self, *what: Any) -> None:
        """Append *what* as one line of JSON."""
        line = json.dumps(what, separators=(",", ":")).encode() + b"\n"
        with _without_file_size_limit():
            if os.write(self.fd, line) != len(line):
                raise OSError("the acknowledgement log is full")

    @staticmethod
    def read(path: Path) -> list[list[Any]]:
        """Return the parsed lines of a file, without an incomplete last line."""
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    def read_last(self, max_bytes: int = 2**14, *, kind: str, namespace: str) -> list[list[Any]]:
        """Return the lines of one kind and namespace, by any writer, from the last *max_bytes* bytes of the log."""
        begin = max(os.fstat(self.fd).st_size - max_bytes, 0)
        # Skip the first line if the read may have begun inside it, and the last line if it is incomplete.
        lines = os.pread(self.fd, max_bytes, begin).split(b"\n")[begin > 0 : -1]
        found = [json.loads(line) for line in lines]
        return [one for one in found if one[:2] == [kind, namespace]]


@contextlib.contextmanager
def log_errors(log: AckLog) -> Iterator[None]:
    """Log any error that the block raises, and suppress it, so that the next change can follow."""
    try:
        yield
    except MamaStructsError as error:
        log.append("refused", error.type, str(error))
    except Exception as error:  # noqa: BLE001 - reported as a result of the run
        where = traceback.extract_tb(error.__traceback__)[-1]
        log.append("untyped", f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}"[:500])


@contextlib.contextmanager
def _without_file_size_limit() -> Iterator[None]:
    """Lift the file-size limit in the block, so that a process can write its log while its disk is full."""
    import resource  # noqa: PLC0415 - not available on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
