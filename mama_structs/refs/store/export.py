"""
Atomic export of text to files below a root directory.

A path is first resolved, including symlinks, and must be below the root. Then its directories are opened from the root
downwards, one name at a time, without following symlinks: a symlink that is created after the check makes opening fail,
regardless of its target. All further operations use the directory's file descriptor, never a path.

The new content is written to a temporary file in the same directory, flushed, and renamed to the file's name. The same
applies to append and insert: the old content is copied first. A lock per directory, shared by all processes,
serializes exports; otherwise, one of two concurrent appends would be lost.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs.errors import (
    DescriptorError,
    ExportDenied,
    ExportDiskFull,
    ExportError,
    ExportExists,
    ExportMissing,
    InvalidArgument,
    InvalidParameter,
    InvalidRange,
    PathDenied,
    repr_short,
)
from mama_structs.refs.store.text import format_number
from mama_structs.settings import DescriptorSettings
from mama_structs.storage.files import NewFile

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no fcntl; `_open_directory` raises there before a lock is needed
    fcntl = None  # type: ignore[assignment]  # a module, or None if it is missing

_log = logging.getLogger("mama_structs")

ExportMode = Literal["write", "append", "insert"]
_MODES: Final = ("write", "append", "insert")

_CHUNK_BYTES: Final = 2**20
# Maximum number of attempts to write a file that other programs change during the export.
_MAX_ATTEMPTS: Final = 10
# Seconds to wait for other exports to the same directory.
_LOCK_TIMEOUT_SECONDS: Final = 30.0
_MIN_LOCK_PAUSE_SECONDS: Final = 0.002
_MAX_LOCK_PAUSE_SECONDS: Final = 0.05

_TEMPORARY_NAME: Final = re.compile(r"\.mama-structs-[0-9a-f]{16}\.tmp")
# Age in seconds from which a temporary file counts as orphaned.
_ORPHAN_AGE_SECONDS: Final = 3600.0
# Maximum number of directory entries to examine for orphaned files.
_MAX_SWEPT_NAMES: Final = 1000

_PRIVATE_MODE: Final = 0o600
_DEFAULT_MODE: Final = 0o666  # permissions before the umask is applied

# Limits of Linux and macOS; a file system with lower limits raises its own errors.
_MAX_NAME_BYTES: Final = 255
_MAX_PATH_BYTES: Final = 4095
_MAX_DISPLAYED_CHARS: Final = 200

# Windows lacks these flags, so each lookup uses a path, which may lead to a different file each time.
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY_ONLY: Final = getattr(os, "O_DIRECTORY", 0)
# Evaluate at import time, because tests may replace these functions later.
_SUPPORTS_DIR_FD: Final = bool(_NO_FOLLOW and _DIRECTORY_ONLY) and (
    {os.open, os.stat, os.mkdir, os.link, os.rename, os.unlink} <= os.supports_dir_fd
)
# Without O_NONBLOCK, opening a FIFO blocks until its other end is opened.
_OPEN_FLAGS: Final = _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_DIRECTORY_OPEN_FLAGS: Final = os.O_RDONLY | _DIRECTORY_ONLY | _OPEN_FLAGS

_NO_SPACE_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PERMISSION_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NOT_A_DIRECTORY_ERRNOS: Final = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EMLINK})
_REPLACED_ERRNOS: Final = frozenset({errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})

# Control characters, line separators, and characters that change the display order of a name.
_INVISIBLE_CHARS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

# File kinds, keyed by the first character of `stat.filemode`.
_FILE_KIND_NAMES: Final = dict(
    zip("-dlpscb", ("a file", "a directory", "a symlink", "a FIFO", "a socket", "a device", "a device"), strict=True)
)
_RELATIVE_PATH_HINT: Final = "give a path relative to the root, without .. and ~"
_NOTHING_WRITTEN_HINT: Final = "nothing was written"
_RETRY_HINT: Final = "nothing was written; try again"
_OTHER_NAME_HINT: Final = "choose another name"


@attrs.frozen(kw_only=True)
class FileResult(JsonMixin):
    """
    The result of an export.

    Characters and bytes written include added line breaks; size and lines are those of the file afterwards.
    """

    handle: str
    path: str  # relative to the root, with slashes; symlinks resolved
    absolute_path: str
    mode: ExportMode
    chars_written: int
    bytes_written: int
    size: int
    lines: int
    created: bool
    insert_at: int | None = None  # the line at which the text begins
    line_breaks_added: int = 0


# Sets of operating system error numbers, each with the error class to raise, its message and its hint.
_ERRNO_ERRORS: Final = (
    (_NO_SPACE_ERRNOS, ExportDiskFull, "there is no room for {}: {}", "the file is as it was; free some space first"),
    (_PERMISSION_ERRNOS, ExportDenied, "{} may not be written: {}", "choose another file or directory"),
    (_REPLACED_ERRNOS, PathDenied, "{} became something else while it was written: {}", _NOTHING_WRITTEN_HINT),
    ({errno.ENOENT}, ExportMissing, "{} cannot be written, its directory was removed: {}", _NOTHING_WRITTEN_HINT),
)


def _to_str(path: str | os.PathLike[str]) -> str:
    return path.__fspath__() if isinstance(path, os.PathLike) else path


@attrs.define
class ExportRequest:
    """The text to write, the export options (see `RefStore.to_file`), and methods that create the errors."""

    text: str | bytes
    path: str = attrs.field(converter=_to_str)
    handle: str = attrs.field(kw_only=True)
    mode: ExportMode = attrs.field(default="write", kw_only=True)
    insert_at: int | None = attrs.field(default=None, kw_only=True)
    create: bool = attrs.field(default=True, kw_only=True)
    exist_ok: bool = attrs.field(default=True, kw_only=True)
    parents: bool = attrs.field(default=False, kw_only=True)
    # True if the text consists of complete lines, including the last one
    lines: bool = attrs.field(default=False, kw_only=True)
    by_model: bool = attrs.field(default=False, kw_only=True)
    allow_hidden: bool = attrs.field(default=False, kw_only=True)
    data: bytes = attrs.field(default=b"", init=False)  # the text in UTF-8, set after validation
    root: str | None = attrs.field(default=None, init=False)  # the directory for files, set when the export begins

    @property
    def displayed_path(self) -> str:
        """The path for messages, with control characters escaped, and truncated."""
        path = self.path
        return (
            repr(path)
            if len(path) <= _MAX_DISPLAYED_CHARS
            else f"{path[:_MAX_DISPLAYED_CHARS]!r}… ({len(path)} characters)"
        )

    def error(self, kind: type[ExportError], rule: str, hint: str | None = None) -> ExportError:
        """Return an error about the file's path."""
        return self._make_error(kind, f"{self.displayed_path} {rule}", hint)

    def _make_error(self, kind: type[ExportError], message: str, hint: str | None) -> ExportError:
        place = {"root": self.root} if issubclass(kind, PathDenied) else {}
        return kind(message, path=self.path, handle=self.handle, hint=hint, **place)

    def path_denied_error(self, rule: str, hint: str = _RELATIVE_PATH_HINT) -> ExportError:
        """Return the error for a path that must not be written."""
        return self.error(PathDenied, rule, hint)

    def invalid_parameter_error(
        self, rule: str, parameter: str = "file_path", hint: str | None = None
    ) -> InvalidParameter:
        """Return the error for an invalid parameter."""
        return InvalidParameter(f"{parameter} {rule}", parameter=parameter, handle=self.handle, hint=hint)

    def os_failure_error(self, error: OSError) -> DescriptorError:
        """Return the error for an operating system error."""
        said = error.strerror or type(error).__name__
        if error.errno == errno.ENAMETOOLONG:
            return self.invalid_parameter_error(
                f"{self.displayed_path} is too long for this file system", hint="use shorter names"
            )
        for numbers, kind, message, hint in _ERRNO_ERRORS:
            if error.errno in numbers:
                return self._make_error(kind, message.format(self.displayed_path, said), hint)
        return self.error(ExportError, f"was not written: {said}")

    def check_may_create(self) -> None:
        """Raise if the file does not exist and the request does not allow creating it."""
        if not self.create:
            raise self.error(ExportMissing, "does not exist, and create is False", "create=True makes it")
        if self.insert_at not in (None, 1):
            raise self.out_of_range_error(lines=0)

    def check_may_overwrite(self) -> None:
        """Raise if the file exists and the request does not allow overwriting it."""
        if not self.exist_ok:
            hint = "choose another name, or exist_ok=True"
            raise self.error(ExportExists, "exists, and exist_ok is False", hint)

    def check_visible_names(self, parts: Iterable[str]) -> None:
        """Raise if a model chose a name with invisible characters, or a forbidden hidden name."""
        if self.by_model and _INVISIBLE_CHARS.search(self.path):
            raise self.path_denied_error(
                "holds a control or bidirectional character", "use letters, digits and punctuation"
            )
        hidden = [part for part in parts if part.startswith(".") and part != "."]
        if hidden and self.by_model and not self.allow_hidden:
            name = hidden[0][:_MAX_DISPLAYED_CHARS]
            rule = f"cannot be written: {name!r} begins with a dot, and hidden names are not allowed"
            raise self.path_denied_error(rule, "choose a name without a dot at its beginning")

    def check_not_protected(self, status: os.stat_result) -> None:
        """Raise if a model would change an executable or read-only file."""
        is_program = status.st_mode & 0o111
        if self.by_model and (is_program or not status.st_mode & stat.S_IWUSR):
            raise self.path_denied_error(
                f"is {'executable' if is_program else 'read-only'}, and is not changed", _OTHER_NAME_HINT
            )

    def out_of_range_error(self, *, lines: int) -> InvalidRange:
        """Return the error for a line number that is out of range."""
        got = format_number(self.insert_at or 0)
        message = f"insert_at must be 1 to {lines + 1} for {self.displayed_path}, which has {lines} lines, got {got}"
        return InvalidRange(message, valid=(1, lines + 1), handle=self.handle)


def export(order: ExportRequest, *, root: Path, kept: Path | None = None) -> FileResult:
    """
    Write a text as UTF-8 to a file below *root*, atomically. The directory *kept* must not be written.

    Blocks, and may wait for other exports: run it in a separate thread of an event loop. A file keeps its permissions.
    Created parent directories remain if the export fails. With insert, or if the text is complete lines, a line break
    of the file's own kind is added where the text would share a line with existing content. Complete lines also end
    with one.
    """
    order.root = os.fspath(root)
    _check_path(order)
    _check_parameters(order)
    try:
        return _run_export(resolve_path(order, root, kept))
    except DescriptorError:
        raise  # some of these errors are also an OSError, which the next handler would wrap
    except OSError as error:
        raise order.os_failure_error(error) from error


def _check_parameters(order: ExportRequest) -> None:
    mode, insert_at = order.mode, order.insert_at
    if not isinstance(order.text, str | bytes):
        raise order.invalid_parameter_error(f"must be text, got {type(order.text).__name__}", "text")
    if mode not in _MODES:
        raise order.invalid_parameter_error(f"must be one of {', '.join(_MODES)}, got {repr_short(mode)}", "mode")
    for name in ("create", "exist_ok", "parents", "lines"):
        if not isinstance(flag := getattr(order, name), bool):
            raise order.invalid_parameter_error(f"must be True or False, got {repr_short(flag)}", name)
    if insert_at is not None and (not isinstance(insert_at, int) or isinstance(insert_at, bool)):
        raise order.invalid_parameter_error(f"must be a line number, got {repr_short(insert_at)}", "insert_at")
    if mode == "insert" and insert_at is None:
        raise order.invalid_parameter_error("is needed with mode insert", "insert_at", "give a line, from 1")
    if mode != "insert" and insert_at is not None:
        raise order.invalid_parameter_error(
            f"is only for mode insert, not {mode}", "insert_at", "leave it out, or use mode insert"
        )
    try:
        order.data = order.text if isinstance(order.text, bytes) else order.text.encode()
    except UnicodeEncodeError as error:
        # Suppress the cause, because it contains the text, which must not appear in logs.
        message = f"cannot be written as UTF-8: character {error.start + 1} is a lone surrogate"
        raise order.invalid_parameter_error(message, "text") from None


# Path resolution


def resolve_files_root(files: str | os.PathLike[str] | None, settings: DescriptorSettings) -> Path | None:
    """Return the directory below which models may write files, or None if not configured."""
    given = os.fspath(files) if isinstance(files, str | os.PathLike) else files
    if given is None and not settings.files_root:
        return None
    if given is not None and (not isinstance(given, str) or not given or "\0" in given):
        raise InvalidArgument(f"files_root must be a directory or None, got {repr_short(files)}")
    path = Path(given or settings.files_root).absolute()
    try:
        is_other = path.exists() and not path.is_dir()
    except OSError as error:
        raise InvalidArgument(f"files_root cannot be a directory: {error.strerror}") from error
    if is_other:
        raise InvalidArgument(f"files_root must be a directory, and {os.fspath(path)!r:.200} is a file")
    return path


@attrs.frozen
class _ResolvedPath:
    """
    A file below a root, with resolved symlinks.

    *kept* identifies, by device and inode, the directory that must not be written.
    """

    order: ExportRequest
    root: str
    directories: tuple[str, ...]
    name: str
    kept: tuple[int, int] | None = None

    def check_outside_kept(self, status: os.stat_result) -> None:
        """Raise if *status* is that of the directory that must not be written, even if its path differs."""
        if (status.st_dev, status.st_ino) == self.kept:
            raise self.inside_kept_error()

    def refuse_irregular(self, status: os.stat_result) -> None:
        """Raise if the file is not a regular file."""
        if not stat.S_ISREG(status.st_mode):
            raise _unusable_path_error(self, len(self.directories), status)

    def inside_kept_error(self) -> ExportError:
        rule = "cannot be written: this directory holds the session's own data"
        return self.order.path_denied_error(rule, "choose another directory")


def _check_path(order: ExportRequest) -> None:
    """Validate the parts of a path that can be checked without access to the disk."""
    text = order.path
    if not isinstance(text, str):
        raise order.invalid_parameter_error(f"must be text, got {type(text).__name__}")
    shown = order.displayed_path
    if not text:
        raise order.invalid_parameter_error("must not be empty", hint="name a file, such as notes.md")
    if "\0" in text:
        raise order.invalid_parameter_error(f"must not hold a NUL character, got {shown}")
    parts = text.split("/")
    try:
        longest, whole = max(len(part.encode()) for part in parts), len(text.encode())
    except UnicodeEncodeError as error:
        raise order.invalid_parameter_error(f"must not hold a lone surrogate, got {shown}") from error
    if longest > _MAX_NAME_BYTES:
        message = f"has a name of {longest} bytes, {_MAX_NAME_BYTES} are allowed: {shown}"
        raise order.invalid_parameter_error(message, hint="use shorter names")
    if whole > _MAX_PATH_BYTES:
        raise order.invalid_parameter_error(
            f"is {whole} bytes long, {_MAX_PATH_BYTES} are allowed", hint="use a shorter path"
        )
    if text.startswith("~"):
        raise order.path_denied_error(
            "begins with ~, and ~ is not expanded", "for a file of that name put ./ before it"
        )
    if ".." in parts:
        raise order.path_denied_error("has a part .., which is not allowed")
    if parts[-1] in ("", "."):
        raise order.path_denied_error("ends like a directory", "name a file in it")


def resolve_path(
    order: ExportRequest, root: str | os.PathLike[str], kept: str | os.PathLike[str] | None
) -> _ResolvedPath:
    """Resolve all symlinks, and return the file. Raise unless it is below the root and outside the directory *kept*."""
    base = os.path.realpath(root)
    is_absolute = order.path.startswith("/")
    prefix = f"{base.rstrip('/')}/"
    asked = order.path if is_absolute else f"{prefix}{order.path}"
    # Do not resolve the last name for a model, so that opening the file fails if it is a symlink.
    followed, _, last = asked.rpartition("/") if order.by_model else (asked, "", "")
    try:
        resolved = f"{os.path.realpath(followed or '/').rstrip('/')}/{last}".rstrip("/")
    except RecursionError as error:
        raise order.path_denied_error("leads through too many symlinks") from error
    except OSError as error:
        # The error means that a symlink was replaced after it was detected and before it was read.
        raise order.path_denied_error("changed while it was checked", _RETRY_HINT) from error
    if resolved == base:
        raise order.path_denied_error("is the root itself, a directory", "name a file in it")
    if not resolved.startswith(prefix):
        # Do not report whether the path exists, because a model could use it to discover files elsewhere.
        raise order.path_denied_error(
            "is outside the root" if is_absolute else "leads out of the root through a symlink"
        )
    if len(os.fsencode(resolved)) > _MAX_PATH_BYTES:
        raise order.invalid_parameter_error(
            f"is longer than {_MAX_PATH_BYTES} bytes with the root before it", hint="use a shorter path"
        )
    *directories, name = resolved[len(prefix) :].split("/")
    order.check_visible_names((*directories, name, *(() if is_absolute else order.path.split("/"))))
    path = None if kept is None else os.path.realpath(kept)
    place = _ResolvedPath(order, base, tuple(directories), name, None if path is None else _directory_id(path))
    # Check the directories above the root here, because they are never opened, so no later check covers them.
    is_above = place.kept is not None and place.kept in map(_directory_id, (Path(base), *Path(base).parents))
    if is_above or (path is not None and f"{resolved}/".startswith(f"{path.rstrip('/')}/")):
        raise place.inside_kept_error()
    return place


def _directory_id(directory: str | Path) -> tuple[int, int] | None:
    """Return the device and inode that identify a directory, or None if it does not exist."""
    try:
        status = Path(directory).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Opening the directory


def _open_directory(place: _ResolvedPath) -> int:
    """Open the directory of a file without following symlinks. The caller must close it."""
    order = place.order
    if not _SUPPORTS_DIR_FD:
        rule = "was not written: this platform cannot open files relative to a directory"
        hint = "without that nothing could be kept below the root; export on Linux or macOS"
        raise order.error(ExportError, rule, hint)
    try:
        if not Path(place.root).exists():
            order.check_may_create()
            Path(place.root).mkdir(parents=True, exist_ok=True)
        directory = os.open(place.root, _DIRECTORY_OPEN_FLAGS)
    except OSError as error:
        if error.errno not in _NOT_A_DIRECTORY_ERRNOS:
            raise
        raise order.path_denied_error(
            "cannot be written: the root for files is no directory", "give a directory"
        ) from error
    try:
        place.check_outside_kept(os.fstat(directory))
        for depth in range(len(place.directories)):
            directory, left = _open_subdirectory(place, depth, directory), directory
            _ignore_os_errors(os.close, left)
            place.check_outside_kept(os.fstat(directory))
    except BaseException:
        _ignore_os_errors(os.close, directory)
        raise
    return directory


def _open_subdirectory(place: _ResolvedPath, depth: int, directory: int, *, is_made: bool = False) -> int:
    """Open a subdirectory of the path. Create it first if it is missing and the request allows that."""
    order, name = place.order, place.directories[depth]
    try:
        return os.open(name, _DIRECTORY_OPEN_FLAGS, dir_fd=directory)
    except FileNotFoundError as error:
        if is_made:
            raise
        if not order.parents:
            where = "/".join(place.directories[: depth + 1])
            rule = f"cannot be written: the directory {where[:_MAX_DISPLAYED_CHARS]!r} does not exist"
            raise order.error(
                ExportMissing, rule, "pass parents=true to create it, or choose a directory that exists"
            ) from error
    except OSError as error:
        if error.errno not in _NOT_A_DIRECTORY_ERRNOS:
            raise
        raise _unusable_path_error(place, depth, read_status(name, directory)) from error
    order.check_may_create()
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)  # default permissions: 0o777 before the umask is applied
        _flush_directory(directory)
    return _open_subdirectory(place, depth, directory, is_made=True)


def read_status(name: str, directory: int) -> os.stat_result | None:
    """Return the status of a name in the directory, without following a symlink, or None."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def describe_file_kind(mode: int) -> str:
    """Return the kind of a file, such as "a FIFO"."""
    return _FILE_KIND_NAMES.get(stat.filemode(mode)[0], "something special")


def _unusable_path_error(place: _ResolvedPath, depth: int, found: os.stat_result | None) -> ExportError:
    """
    Return the error for a part of a path that cannot be used.

    *depth* is its index in the directories, or their number for the file itself.
    """
    order, parts = place.order, (*place.directories, place.name)[: depth + 1]
    is_last = depth == len(place.directories)
    part = "" if is_last else f"cannot be written: {'/'.join(parts)[:_MAX_DISPLAYED_CHARS]!r} "
    if found is None or (not is_last and stat.S_ISDIR(found.st_mode)):
        return order.path_denied_error(f"{part}changed while it was opened", _RETRY_HINT)
    if not stat.S_ISLNK(found.st_mode):
        rule = f"{part}is {describe_file_kind(found.st_mode)}, no {'regular file' if is_last else 'directory'}"
        return order.path_denied_error(rule, "choose another path")
    if is_last and order.by_model:
        return order.path_denied_error("is a symlink, and is not followed", _OTHER_NAME_HINT)
    try:
        os.path.realpath("/".join((place.root, *parts)), strict=True)
    except (OSError, RecursionError) as error:
        if isinstance(error, RecursionError) or error.errno == errno.ELOOP:
            return order.path_denied_error(f"{part}is a symlink that leads in a circle", "choose another path")
    # The check resolved all existing symlinks, so this one was created later.
    return order.path_denied_error(f"{part}became a symlink after it was checked", _NOTHING_WRITTEN_HINT)


def _ignore_os_errors(function: Callable[..., object], *arguments: int) -> None:
    """Call a function that closes or unlocks. Its errors are ignored, because they cannot lose data."""
    with contextlib.suppress(OSError):
        function(*arguments)


def _flush_directory(directory: int) -> None:
    """Flush the directory, so that new names survive a crash. Not every file system supports this."""
    try:
        os.fsync(directory)
    except OSError as error:
        # Only log the error. The change is already visible, and an exception would make the caller repeat it.
        _log.warning("a directory of exported files could not be flushed: %s", error.strerror)


# Writing


class _FileChanged(Exception):
    """Signals that another program changed the file after it was opened. Nothing was written, so retry."""


@attrs.frozen
class _ExistingFile:
    """The file that existed before the export: an open descriptor, and the status when it was opened."""

    descriptor: int
    status: os.stat_result
    size: int  # number of old bytes to retain, 0 to overwrite the file

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            chunk = os.pread(self.descriptor, min(_CHUNK_BYTES, end - start), start)
            if not chunk:
                raise _FileChanged
            yield chunk
            start += len(chunk)

    def line_starts(self) -> Iterator[int]:
        """Yield the offset of each line start. The end of the last line break counts as a line start."""
        position = 0
        yield position
        for chunk in self.chunks(0, self.size):
            yield from (position + found.end() for found in re.finditer(b"\n", chunk))
            position += len(chunk)


class _ExportDraft(NewFile):
    """Temporary file of an export. Counts the line breaks that are written to it."""

    line_breaks = 0
    last = b""

    def write(self, data: bytes | memoryview) -> None:
        super().write(data)
        self.line_breaks += bytes(data).count(b"\n")
        self.last = bytes(data[-1:]) or self.last


def _run_export(place: _ResolvedPath) -> FileResult:
    order = place.order
    if _TEMPORARY_NAME.fullmatch(place.name):
        raise order.path_denied_error("has a name that is kept for temporary files", _OTHER_NAME_HINT)
    with contextlib.ExitStack() as stack:
        directory = _open_directory(place)
        stack.callback(_ignore_os_errors, os.close, directory)
        if _lock_directory(directory, order):
            # Unlock explicitly. After a concurrent fork, the child's copy of the descriptor would hold the lock.
            stack.callback(_ignore_os_errors, fcntl.flock, directory, fcntl.LOCK_UN)
            _delete_orphans(directory)
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(_FileChanged):
                return _try_export(place, directory)
        raise order.error(ExportError, "was not written: others keep changing it", "try again later")


def _try_export(place: _ResolvedPath, directory: int) -> FileResult:
    """Attempt the export once. Raise `_FileChanged` if another program interfered."""
    order = place.order
    with contextlib.ExitStack() as stack:
        old = _open_existing(place, directory, stack)
        if old is None:
            order.check_may_create()
        keep, before, after = _plan_insertion(order, old)
        name = f".mama-structs-{secrets.token_hex(8)}.tmp"
        try:
            # If an old file exists, its permissions are applied at the end, so the draft is private until then.
            # Without an old file, the kernel applies the umask, which a process cannot read without a race.
            draft = _ExportDraft(name, dir_fd=directory, mode=_DEFAULT_MODE if old is None else _PRIVATE_MODE)
        except FileExistsError as error:
            raise _FileChanged from error
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)
            raise
        stack.callback(draft.discard)
        _write_draft(draft, [before, order.data, after], keep, old)
        if old is not None and (order.mode != "write" or order.by_model):
            now = read_status(place.name, directory)
            if now is None or _file_version(now) != _file_version(old.status):
                # A program that ignores the lock changed the file after it was copied.
                raise _FileChanged
        try:
            may_replace = order.exist_ok and order.mode == "write" and not order.by_model
            draft.publish(place.name, replace=old is not None or may_replace)
        except FileExistsError as error:
            order.check_may_overwrite()
            raise _FileChanged from error
        draft.discard()
        _flush_directory(directory)
        path = "/".join((*place.directories, place.name))
        return FileResult(
            handle=order.handle,
            path=path,
            absolute_path=f"{place.root.rstrip('/')}/{path}",
            mode=order.mode,
            chars_written=len(before) + (len(order.text) if isinstance(order.text, str) else 0) + len(after),
            bytes_written=len(before) + len(order.data) + len(after),
            size=draft.size,
            lines=draft.line_breaks + (draft.last not in (b"", b"\n")),
            created=old is None,
            insert_at=order.insert_at,
            line_breaks_added=bool(before) + bool(after),
        )


def _open_existing(place: _ResolvedPath, directory: int, stack: contextlib.ExitStack) -> _ExistingFile | None:
    """
    Open the existing file with write access until *stack* is closed, or return None.

    Write access is required even to replace it, so that a read-only file is never replaced.
    """
    order, found = place.order, read_status(place.name, directory)
    if found is None:
        return None
    place.refuse_irregular(found)
    order.check_may_overwrite()
    order.check_not_protected(found)
    try:
        access = os.O_WRONLY if order.mode == "write" else os.O_RDWR
        descriptor = os.open(place.name, access | _OPEN_FLAGS, dir_fd=directory)
    except FileNotFoundError as error:
        raise _FileChanged from error
    stack.callback(_ignore_os_errors, os.close, descriptor)
    status = os.fstat(descriptor)
    place.refuse_irregular(status)
    order.check_not_protected(status)
    return _ExistingFile(descriptor, status, 0 if order.mode == "write" else status.st_size)


def _plan_insertion(order: ExportRequest, old: _ExistingFile | None) -> tuple[int, bytes, bytes]:
    """Return the number of old bytes before the text, and the line breaks to insert before and after it."""
    is_cut = bool(order.data) and not order.data.endswith(b"\n")
    if old is None or not old.size:
        if order.insert_at not in (None, 1):
            raise order.out_of_range_error(lines=0)
        own = b"\r\n" if b"\r\n" in order.data else b"\n"
        return 0, b"", own if order.lines and is_cut else b""
    first = next(itertools.islice(old.line_starts(), 1, None), 0)
    line_break = b"\r\n" if b"".join(old.chunks(max(first - 2, 0), first)) == b"\r\n" else b"\n"
    after = line_break if order.lines and is_cut else b""
    ends_in_line = b"".join(old.chunks(old.size - 1, old.size)) != b"\n"
    before = line_break if order.data and ends_in_line else b""
    if order.mode == "append":
        return old.size, before if order.lines else b"", after
    line = 0
    for line, start in enumerate(old.line_starts(), 1):
        if line == order.insert_at and start < old.size:
            return start, b"", line_break if is_cut else b""
    lines = line - 1 + ends_in_line
    if order.insert_at != lines + 1:
        raise order.out_of_range_error(lines=lines)
    return old.size, before, after


def _write_draft(draft: _ExportDraft, parts: list[bytes], keep: int, old: _ExistingFile | None) -> None:
    """Write the first *keep* old bytes, the parts and the remaining old bytes, and flush the file."""
    before, after = ((), ()) if old is None else (old.chunks(0, keep), old.chunks(keep, old.size))
    for chunk in itertools.chain(before, parts, after):
        draft.write(chunk)
    if old is not None:
        mine = os.fstat(draft.fd)
        if (mine.st_uid, mine.st_gid) != (old.status.st_uid, old.status.st_gid):
            # Only the superuser may change the owner. Otherwise the new file belongs to the current user.
            with contextlib.suppress(OSError):
                os.fchown(draft.fd, old.status.st_uid, old.status.st_gid)
        os.fchmod(draft.fd, stat.S_IMODE(old.status.st_mode) & 0o777)
    draft.close()


def _file_version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _lock_directory(directory: int, order: ExportRequest) -> bool:
    """Lock the directory against other exports. Return False if the file system has no locks."""
    give_up, pause = time.monotonic() + _LOCK_TIMEOUT_SECONDS, _MIN_LOCK_PAUSE_SECONDS
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > give_up:
                rule = f"was not written: its directory was in use for {_LOCK_TIMEOUT_SECONDS:g} s"
                hint = "another export is under way there; try again later"
                raise order.error(ExportError, rule, hint) from error
            time.sleep(pause)
            pause = min(2 * pause, _MAX_LOCK_PAUSE_SECONDS)
        except OSError:
            return False  # the file system has no locks
        else:
            return True


def _delete_orphans(directory: int) -> None:
    """Delete temporary files of killed processes. The lock prevents deleting one in use."""
    before = time.time() - _ORPHAN_AGE_SECONDS
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in itertools.islice(entries, _MAX_SWEPT_NAMES):
            status = read_status(entry.name, directory) if _TEMPORARY_NAME.fullmatch(entry.name) else None
            is_own = status is not None and stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if status is not None and is_own and status.st_mtime < before:
                os.unlink(entry.name, dir_fd=directory)
