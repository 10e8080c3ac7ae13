"""
A private copy of a database that somebody else's program owns.

Not even reading it in place leaves such a file alone: SQLite makes ``-wal`` and ``-shm`` beside a database in WAL mode.
So it is copied with what belongs to it, and only the copy is ever opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import sys
import time
from pathlib import Path
from typing import BinaryIO, Final

import attrs

from mama_structs.errors import InvalidArgument, MigrationError

if sys.platform != "win32":
    import fcntl

MAGIC: Final = b"SQLite format 3\x00"
HEADER: Final = 100
# As long as a program that only saves something now may take.
PATIENCE: Final = 1.0
_PAUSE: Final = 0.05
_BLOCK: Final = 2**20
# https://www.sqlite.org/fileformat2.html, 1.3: the database header, with its places.
_PAGE_SIZE: Final = 16
_WRITE_VERSION: Final = 18
_WAL: Final = 2
_CHANGES: Final = 24
_PAGES: Final = 28
_VALID_FOR: Final = 92
# Its source, os.h and wal.c: the bytes that it locks; a reader locks only the last ones, and only against writers.
_PENDING: Final = 0x40000000
_SHARED_END: Final = _PENDING + 512
_WAL_WRITE: Final = 120
_WAL_RECOVER: Final = 123


@attrs.frozen
class Copied:
    """
    A copy.

    Args:
        path: The copy's database file.
        checksum: SHA-256 of the original, in hexadecimal digits.

    """

    path: Path
    checksum: str


def copy_database(path: Path, directory: Path) -> Copied:
    """
    Copy a database into a directory with what its program has not yet moved into it; blocks.

    Args:
        path: The database.
        directory: An empty one, which nobody else may read.

    Raises:
        InvalidArgument: There is no such file, or it is none.
        MigrationError: It is no database, locked, changed meanwhile, or cut off.

    """
    with contextlib.ExitStack() as stack:
        # A file's locks are the process's: closing it drops them, so that is done last.
        file = stack.enter_context(_opened(path))
        # Its program keeps what belongs to it beside the file itself, not beside a link to it.
        real = Path(os.path.realpath(path))
        head = file.read(HEADER)
        if len(head) < HEADER or not head.startswith(MAGIC):
            what = "is empty" if not head else "is no SQLite database"
            raise MigrationError(f"{str(path)!r:.200} {what}", path=str(path), hint="nothing was made or written")
        _wait_for_writers(path, real, file, stack)
        copy = directory / "old.db"
        besides = [suffix for suffix in ("-wal", "-journal") if _has_content(real, suffix)]
        checksum = _copied(file, copy)
        sums = {suffix: _copied_beside(real, copy, suffix) for suffix in besides}
        now = [suffix for suffix in ("-wal", "-journal") if _has_content(real, suffix)]
        again = {suffix: _sum_beside(real, suffix) for suffix in besides}
        is_other = _is_other(path, file) or _is_other(real, file)
        if _sum(file) != checksum or again != sums or now != besides or is_other:
            raise _busy(path, "was changed while it was read")
        if not besides:
            _check_size(path, head, file.seek(0, os.SEEK_END))
        return Copied(copy, checksum)


def _opened(path: Path) -> BinaryIO:
    try:
        file = _regular(path)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"path must be a database of MAMA v1.0, {str(path)!r:.200}: {said}") from error
    if file is None:
        raise InvalidArgument(f"path must be a file, and {str(path)!r:.200} is none")
    return file


def _regular(path: Path) -> BinaryIO | None:
    """Open a file, None for what is none, such as a FIFO."""
    # Without O_NONBLOCK the opening of a FIFO waits for its other end.
    fd = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        is_file = False
    if not is_file:
        os.close(fd)
        return None
    return os.fdopen(fd, "rb", buffering=0)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _has_content(path: Path, suffix: str) -> bool:
    try:
        found = _beside(path, suffix).stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0


def _copied(source: BinaryIO, target: Path) -> str:
    digest = hashlib.sha256()
    source.seek(0)
    with target.open("xb") as copy:
        while block := source.read(_BLOCK):
            digest.update(block)
            copy.write(block)
    return digest.hexdigest()


def _sum(source: BinaryIO) -> str:
    digest = hashlib.sha256()
    source.seek(0)
    while block := source.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()


def _copied_beside(path: Path, copy: Path, suffix: str) -> str | None:
    try:
        file = _regular(_beside(path, suffix))
    except FileNotFoundError:
        return None
    if file is None:
        return None
    with file:
        return _copied(file, _beside(copy, suffix))


def _sum_beside(path: Path, suffix: str) -> str | None:
    try:
        file = _regular(_beside(path, suffix))
    except FileNotFoundError:
        return None
    if file is None:
        return None
    with file:
        return _sum(file)


def _is_other(path: Path, file: BinaryIO) -> bool:
    """Tell whether another file has come to stand in the place of the one that was read."""
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return True


def _check_size(path: Path, head: bytes, size: int) -> None:
    (page,) = struct.unpack_from(">H", head, _PAGE_SIZE)
    page = 65536 if page == 1 else page
    (pages,) = struct.unpack_from(">I", head, _PAGES)
    # An old SQLite does not keep the number of pages up to date; then the two counters differ.
    is_kept = head[_CHANGES : _CHANGES + 4] == head[_VALID_FOR : _VALID_FOR + 4] and pages
    if is_kept and size < page * pages:
        raise MigrationError(
            f"{str(path)!r:.200} has {size:,} bytes of the {page * pages:,} that its first page names: it was cut off",
            path=str(path),
            hint="copy it again, as a whole",
        )


def _wait_for_writers(path: Path, real: Path, file: BinaryIO, stack: contextlib.ExitStack) -> None:
    """Wait a moment for whoever is writing."""
    shared = None
    with contextlib.suppress(OSError):
        shared = _regular(_beside(real, "-shm"))
    if shared is not None:
        stack.enter_context(shared)
    until = time.monotonic() + PATIENCE
    while _is_locked(file.fileno(), _PENDING, _SHARED_END) or (
        shared is not None and _is_locked(shared.fileno(), _WAL_WRITE, _WAL_RECOVER)
    ):
        if time.monotonic() >= until:
            raise _busy(path, "is locked: another program is writing to it")
        time.sleep(_PAUSE)


def _is_locked(fd: int, start: int, end: int) -> bool:
    """Tell whether somebody has a lock on some bytes that keeps readers out."""
    if sys.platform == "win32":
        # There such a file cannot be read at all.
        return False
    # The locks of open files see those of this process, too, as others do not.
    ask = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK)
    # As the C library of each has it.
    is_darwin = sys.platform == "darwin"
    form = "qqihh" if is_darwin else "hhqqi4x"
    lock = (fcntl.F_RDLCK, os.SEEK_SET)
    span = (start, end - start, 0)
    try:
        found = struct.unpack(
            form, fcntl.fcntl(fd, ask, struct.pack(form, *(span + lock if is_darwin else lock + span)))
        )
    except (OSError, struct.error):
        return False
    return bool(found[3 if is_darwin else 0] != fcntl.F_UNLCK)


def _busy(path: Path, what: str) -> MigrationError:
    return MigrationError(
        f"{str(path)!r:.200} {what}", path=str(path), hint="stop MAMA, or copy the file, and try again"
    )
