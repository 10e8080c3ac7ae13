"""Reading, comparing and replacing the configuration files of coding agents."""

from __future__ import annotations

import contextlib
import difflib
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from mama_structs._internal.validation import to_printable
from mama_structs.errors import InvalidArgument, MamaStructsError

_MAX_BYTES: Final = 2**26
_BYTE_ORDER_MARK: Final = "\ufeff"


@attrs.frozen
class FileChange:
    """
    A file's bytes before and after a change; None if it does not exist.

    Args:
        name: The name to show.
        path: The file, with links resolved.

    """

    name: str
    path: Path
    before: bytes | None
    after: bytes | None


def read_text(name: str, path: Path) -> tuple[Path, bytes | None, str | None]:
    """
    Return a file's resolved path, its bytes and its text without a byte order mark, or None if it does not exist.

    Raises:
        InvalidArgument: It is not a regular file, too large, not UTF-8, or a link to a missing file.

    """
    try:
        if path.is_symlink() and not path.exists():
            raise InvalidArgument(f"{name} is a link to a missing file; nothing was changed", hint="remove the link")
        path = path.resolve()
        if not path.exists():
            return path, None, None
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            raise InvalidArgument(f"{name} must be a file of at most {_MAX_BYTES:,} bytes; nothing was changed")
        content = path.read_bytes()
        return path, content, content.decode().removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{name} is not UTF-8; nothing was changed", hint="save it as UTF-8") from error
    except OSError as error:
        raise MamaStructsError(f"{name} cannot be read: {error.strerror or error}; nothing was changed") from error


def encode_text(text: str | None, before: bytes | None) -> bytes | None:
    """Return the bytes of a text, with the byte order mark of the previous bytes."""
    if text is None:
        return None
    has_mark = before is not None and before.startswith(_BYTE_ORDER_MARK.encode())
    return ((_BYTE_ORDER_MARK if has_mark else "") + text).encode()


def format_diff(change: FileChange) -> str:
    """Return a unified diff, with control characters escaped, because a terminal would interpret them."""
    before, after = (
        (content or b"").decode(errors="replace").splitlines() for content in (change.before, change.after)
    )
    old = "/dev/null" if change.before is None else change.name
    new = "/dev/null" if change.after is None else change.name
    lines = difflib.unified_diff(before, after, old, new, lineterm="")
    return "\n".join(to_printable(line.expandtabs(4)) for line in lines)


def write_changes(changes: Sequence[FileChange]) -> list[Path]:
    """
    Replace or delete files, and return the created directories.

    Nothing is changed if a file changed since it was read, or if two names are links to one file. After a failed
    write, the earlier files are restored.
    """
    names: dict[Path, str] = {}
    for change in changes:
        if (other := names.setdefault(change.path, change.name)) != change.name:
            raise InvalidArgument(
                f"{other} and {change.name} are the same file; nothing was changed", hint="replace the link with a file"
            )
    created: list[Path] = []
    staged: dict[Path, str] = {}
    done: list[FileChange] = []
    try:
        for change in changes:
            if _read_bytes(change.path) != change.before:
                raise MamaStructsError(f"{change.name} changed meanwhile; nothing was written", hint="run this again")
            if change.after is not None:
                created += _create_directories(change.path.parent)
                staged[change.path] = _stage(change.path, change.after)
        for change in changes:
            # Before the replacement, because an interrupt can follow it immediately.
            done.append(change)
            _replace(change.path, staged.get(change.path))
            staged.pop(change.path, None)
    except BaseException as error:
        unrestored = _restore(done, staged, created)
        if isinstance(error, OSError):
            result = f"could not restore {', '.join(unrestored)}" if unrestored else "nothing was changed"
            raise MamaStructsError(f"the files cannot be written: {error.strerror or error}; {result}") from error
        raise
    return created


def remove_directories(paths: Sequence[Path]) -> None:
    """Remove directories that are empty, the deepest first."""
    for path in sorted(paths, key=lambda one: len(one.parts), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()


def _read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _create_directories(path: Path) -> Iterator[Path]:
    for one in (*reversed(path.parents), path):
        if not one.exists():
            one.mkdir()
            yield one


def _stage(path: Path, content: bytes) -> str:
    """Write a temporary file next to a file, with its permissions."""
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(number)
        if path.exists():
            mode = stat.S_IMODE(path.stat().st_mode)
        else:
            umask = os.umask(0)
            os.umask(umask)
            mode = 0o666 & ~umask
        os.chmod(name, mode)  # noqa: PTH101 - it is the name of a temporary file
    except BaseException:
        _unlink(name)
        raise
    return name


def _unlink(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)  # noqa: PTH108 - it is the name of a temporary file


def _replace(path: Path, staged: str | None) -> None:
    if staged is None:
        path.unlink(missing_ok=True)
    else:
        os.replace(staged, path)  # noqa: PTH105 - it is the name of a temporary file


def _restore(done: Sequence[FileChange], staged: dict[Path, str], created: Sequence[Path]) -> list[str]:
    """Restore files, remove temporary files and created directories, and return the names of unrestored files."""
    for name in staged.values():
        _unlink(name)
    unrestored = []
    for change in done:
        try:
            if _read_bytes(change.path) != change.before:
                _replace(change.path, None if change.before is None else _stage(change.path, change.before))
        except OSError:
            unrestored.append(change.name)
    remove_directories(created)
    return unrestored
