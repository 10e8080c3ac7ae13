"""Read-only access to the files of other programs, with size limits."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Final, NamedTuple

from mama_structs.errors import InvalidArgument, MigrationError

MAX_FILE_BYTES: Final = 2**28
"""The maximum size of a JSON or JSON Lines file."""
MAX_NOTE_BYTES: Final = 2**24
"""The maximum size of a note."""
MAX_FOLDER_BYTES: Final = 2**28
"""The maximum total size of the notes in one folder."""
MAX_DATABASE_BYTES: Final = 2**32
"""The maximum size of a SQLite database, including its write-ahead log."""
MAX_FOLDER_ENTRIES: Final = 200_000
"""The maximum number of files and folders below one folder."""
MAX_FOLDER_DEPTH: Final = 64
"""The maximum depth of nested folders."""
_BLOCK_BYTES: Final = 2**20


class FolderEntry(NamedTuple):
    """A file below a folder, or an unreadable entry with the reason in *problem*."""

    path: Path
    problem: str | None = None


def import_error(path: Path, what: str, hint: str) -> MigrationError:
    """Return the error for a source that cannot be imported."""
    return MigrationError(f"{str(path)!r:.200} {what}", path=str(path), hint=hint)


def check_size(path: Path, size: int, limit: int) -> None:
    """Raise MigrationError if a file has more bytes than the limit."""
    if size > limit:
        raise import_error(path, f"must have at most {limit:,} bytes, got {size:,}", "split the file, or take it out")


def open_file(path: Path, kind: str, *, follow: bool = True) -> FileIO:
    """
    Open a file for reading.

    Args:
        path: The file.
        kind: What the file should be, for the error message.
        follow: Whether a symbolic link is followed.

    Raises:
        InvalidArgument: The path does not exist, cannot be opened, or is not a regular file.

    """
    try:
        file = open_regular_file(path, follow=follow)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"path must be {kind}, {str(path)!r:.200}: {said}") from error
    if file is None:
        raise InvalidArgument(f"path must be a file, and {str(path)!r:.200} is none")
    return file


def open_regular_file(path: Path, *, follow: bool = True) -> FileIO | None:
    """Open a regular file; return None for a FIFO, a device or another kind of file."""
    # Without O_NONBLOCK, opening a FIFO blocks until another process opens its other end.
    wanted = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", *(() if follow else ("O_NOFOLLOW",)))
    fd = os.open(path, sum((getattr(os, name, 0) for name in wanted), os.O_RDONLY))
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb", buffering=0)
    os.close(fd)
    return None


def read_bytes(path: Path, kind: str, *, limit: int, follow: bool = True) -> bytes:
    """
    Return the content of a file. Its size is checked before it is read.

    Raises:
        InvalidArgument: The file does not exist or cannot be read.
        MigrationError: The file has more than *limit* bytes.

    """
    try:
        with open_file(path, kind, follow=follow) as file:
            check_size(path, os.fstat(file.fileno()).st_size, limit)
            data = bytearray()
            # Limit the reads as well, because a growing file or a file in /proc can exceed its reported size.
            while block := file.read(min(_BLOCK_BYTES, limit + 1 - len(data))):
                data += block
                check_size(path, len(data), limit)
            return bytes(data)
    except OSError as error:
        raise InvalidArgument(f"path cannot be read: {error.strerror or type(error).__name__}") from error


def iter_lines(path: Path, kind: str, *, limit: int, max_line: int, follow: bool = True) -> Iterator[bytes | None]:
    """
    Yield the lines of a file with their line ends. Yield None for a line with more than *max_line* bytes.

    Raises:
        InvalidArgument: The file does not exist or cannot be read.
        MigrationError: The file has more than *limit* bytes.

    """
    try:
        with BufferedReader(open_file(path, kind, follow=follow), _BLOCK_BYTES) as file:
            check_size(path, os.fstat(file.fileno()).st_size, limit)
            size, is_rest = 0, False
            while line := file.readline(max_line + 1):
                size += len(line)
                check_size(path, size, limit)
                is_end = line.endswith(b"\n")
                if not is_rest:
                    yield line if len(line) <= max_line else None
                is_rest = not is_end
    except OSError as error:
        raise InvalidArgument(f"path cannot be read: {error.strerror or type(error).__name__}") from error


def read_start(path: Path, kind: str, size: int) -> bytes:
    """Return the first bytes of a file."""
    try:
        with open_file(path, kind) as file:
            return file.read(size)
    except OSError as error:
        raise InvalidArgument(f"path cannot be read: {error.strerror or type(error).__name__}") from error


def list_files(folder: Path, *, hidden: bool = True, depth: int | None = None) -> Iterator[FolderEntry]:
    """
    Yield the entries below a folder: in each folder the files by name, then the subfolders.

    Symbolic links are not followed.

    Args:
        folder: The folder.
        hidden: Whether to include names that begin with a dot.
        depth: The maximum number of folder levels to descend; None for no limit.

    Raises:
        InvalidArgument: The folder cannot be listed.
        MigrationError: There are more entries or levels than the limits.

    """
    count = 0
    # Use a stack, because the recursive `os.walk` would raise RecursionError for a thousand nested folders.
    waiting = [(folder, 0)]
    while waiting:
        current, level = waiting.pop()
        files: list[FolderEntry] = []
        folders: list[Path] = []
        try:
            with os.scandir(current) as entries:
                for entry in entries:
                    count += 1
                    if count > MAX_FOLDER_ENTRIES:
                        what = f"must have at most {MAX_FOLDER_ENTRIES:,} files and folders in it"
                        raise import_error(folder, what, "import its folders one by one")
                    if not hidden and entry.name.startswith("."):
                        continue
                    path = Path(current, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    else:
                        files.append(FolderEntry(path, _find_problem(entry)))
        except OSError as error:
            said = f"it cannot be listed: {error.strerror or type(error).__name__}"
            if not level:
                raise InvalidArgument(f"path must be a folder, {str(folder)!r:.200}: {said}") from error
            files.append(FolderEntry(current, said))
        yield from sorted(files, key=lambda one: one.path)
        if depth is not None and level >= depth:
            continue
        if folders and level >= MAX_FOLDER_DEPTH:
            what = f"must have folders nested at most {MAX_FOLDER_DEPTH} deep"
            raise import_error(folder, what, "import the inner folders one by one")
        waiting.extend((path, level + 1) for path in sorted(folders, reverse=True))


def _find_problem(entry: os.DirEntry[str]) -> str | None:
    if entry.is_symlink():
        return "it is a symbolic link"
    return None if entry.is_file(follow_symlinks=False) else "it is not a regular file"
