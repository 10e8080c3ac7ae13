"""Files of other programs, opened for reading only."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

from mama_structs.errors import InvalidArgument


def opened(path: Path, kind: str) -> FileIO:
    """Open a file for reading, or say that it is none; *kind* is what it should be."""
    try:
        file = regular(path)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"path must be {kind}, {str(path)!r:.200}: {said}") from error
    if file is None:
        raise InvalidArgument(f"path must be a file, and {str(path)!r:.200} is none")
    return file


def regular(path: Path) -> FileIO | None:
    """Open a file, None for what is none, such as a FIFO."""
    # Without O_NONBLOCK the opening of a FIFO waits for its other end.
    wanted = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
    fd = os.open(path, sum((getattr(os, name, 0) for name in wanted), os.O_RDONLY))
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb", buffering=0)
    os.close(fd)
    return None


def read_bytes(path: Path, kind: str, *, most: int = -1) -> bytes:
    """Return what a file holds, or its first bytes; *kind* is what it should be."""
    try:
        with opened(path, kind) as file:
            return file.read(most)
    except OSError as error:
        raise InvalidArgument(f"path cannot be read: {error.strerror or type(error).__name__}") from error
