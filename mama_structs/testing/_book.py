"""A file outside of a store in which processes say what was acknowledged: what a crash is judged by."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

# Seconds after which a process counts as hung; a busy machine must never reach it.
PATIENCE: Final = 300.0


@attrs.frozen
class Book:
    """A file of what was done, a line each, to which many processes append; a killed writer takes nothing back."""

    fd: int

    @classmethod
    def open(cls, path: Path) -> Book:
        return cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))

    def say(self, *what: Any) -> None:
        line = json.dumps(what, separators=(",", ":")).encode() + b"\n"
        with _unlimited():
            if os.write(self.fd, line) != len(line):
                raise OSError("the file of what was acknowledged is full")

    @staticmethod
    def read(path: Path) -> list[list[Any]]:
        """Return all that was said in a file; a line that is still being written is none yet."""
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    def last(self, length: int = 2**14, *, of: str, space: str) -> list[list[Any]]:
        """Return what was said in the last bytes of a kind and in a namespace, whoever said it."""
        begin = max(os.fstat(self.fd).st_size - length, 0)
        # A line that was cut at either end is none.
        lines = os.pread(self.fd, length, begin).split(b"\n")[begin > 0 : -1]
        found = [json.loads(line) for line in lines]
        return [one for one in found if one[:2] == [of, space]]


@contextlib.contextmanager
def _unlimited() -> Iterator[None]:
    """Let a process whose disk is made full go on saying what it does."""
    import resource  # noqa: PLC0415 - not everywhere

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
