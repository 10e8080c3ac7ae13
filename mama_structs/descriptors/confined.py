"""
Files below a root: which one a path means, and its directory opened so that no symlink leads out.

A path is first resolved, symlinks included, and must then be below the root.
What was resolved is opened from the root downwards, one name at a time, and no symlink is followed on that way:
one that was put there after the check makes the opening fail, wherever it points to.
Everything later goes through the directory's descriptor, never through a path again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from mama_structs.errors import (
    DescriptorError,
    DiskFull,
    ExportDenied,
    ExportError,
    ExportMissing,
    InvalidParameter,
    PathDenied,
)

_log = logging.getLogger("mama_structs")

# What Linux and macOS take; a file system that takes less says so itself.
_NAME_BYTES: Final = 255
_PATH_BYTES: Final = 4095
_SHOWN: Final = 200

# Windows has none of these: names could only be looked up by path, again and again.
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_ONLY_DIRECTORIES: Final = getattr(os, "O_DIRECTORY", 0)
# Looked up once: what is called later may be a test's wrapper.
_CONFINABLE: Final = bool(_NO_FOLLOW and _ONLY_DIRECTORIES) and (
    {os.open, os.stat, os.mkdir, os.link, os.rename, os.unlink} <= os.supports_dir_fd
)

# Without O_NONBLOCK the opening of a FIFO waits for its other end.
_COMMON: Final = _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_DIRECTORY: Final = os.O_RDONLY | _ONLY_DIRECTORIES | _COMMON

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NOT_A_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EMLINK})
_MOVED: Final = frozenset({errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})

_KINDS: Final = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symlink",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_BELOW: Final = "give a path relative to the root, without .. and ~"


@attrs.frozen
class Asked:
    """
    What an export was asked for, as its errors say it.

    Args:
        path: As it was given.
        handle: What is to be written.

    """

    path: str
    handle: str

    @property
    def shown(self) -> str:
        """The path in messages: control characters escaped, and short."""
        path = self.path
        return repr(path) if len(path) <= _SHOWN else f"{path[:_SHOWN]!r}… ({len(path)} characters)"

    def denied(self, rule: str, *, hint: str = _BELOW) -> PathDenied:
        """Make the error for a path that may not be written."""
        return PathDenied(f"{self.shown} {rule}", path=self.path, handle=self.handle, hint=hint)

    def missing(self, rule: str, *, hint: str) -> ExportMissing:
        """Make the error for a file or directory that is not there."""
        return ExportMissing(f"{self.shown} {rule}", path=self.path, handle=self.handle, hint=hint)

    def invalid(self, rule: str, *, parameter: str = "file_path", hint: str | None = None) -> InvalidParameter:
        """Make the error for a parameter that breaks its rule."""
        return InvalidParameter(f"{parameter} {rule}", parameter=parameter, handle=self.handle, hint=hint)

    def failed(self, error: OSError) -> DescriptorError:
        """Make the error for what the operating system said."""
        said = error.strerror or type(error).__name__
        if error.errno in _FULL:
            message, hint = f"there is no room for {self.shown}: {said}", "the file is as it was; free some space first"
            return DiskFull(message, path=self.path, handle=self.handle, hint=hint)
        if error.errno in _REFUSED:
            message, hint = f"{self.shown} may not be written: {said}", "choose another file or directory"
            return ExportDenied(message, path=self.path, handle=self.handle, hint=hint)
        if error.errno in _MOVED:
            return self.denied(f"became something else while it was written: {said}", hint="nothing was written")
        if error.errno == errno.ENAMETOOLONG:
            return self.invalid(f"{self.shown} is too long for this file system", hint="use shorter names")
        if error.errno == errno.ENOENT:
            return self.missing(f"cannot be written, its directory was removed: {said}", hint="nothing was written")
        return ExportError(f"{self.shown} was not written: {said}", path=self.path, handle=self.handle)


@attrs.frozen
class Kept:
    """
    A directory that nothing may be written in.

    Args:
        path: Absolute, all symlinks followed.
        identity: Its device and inode, by which it is known under any other name; None where there is none yet.

    """

    path: str
    identity: tuple[int, int] | None

    @classmethod
    def of(cls, directory: str | os.PathLike[str]) -> Kept:
        """Look the directory up."""
        path = os.path.realpath(directory)
        try:
            return cls(path, _identity(Path(path).stat()))
        except OSError:
            return cls(path, None)

    def is_at_or_above(self, path: str) -> bool:
        """Tell whether a path without symlinks is the directory's or leads into it, by names."""
        return path == self.path or path.startswith(f"{self.path.rstrip('/')}/")

    def is_met_above(self, path: str) -> bool:
        """Tell whether a path without symlinks is, or leads through, the directory under whatever name."""
        for directory in (Path(path), *Path(path).parents):
            with contextlib.suppress(OSError):
                if _identity(directory.stat()) == self.identity:
                    return True
        return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


@attrs.frozen
class Place:
    """
    Where a file is, or is to be: below a root, all symlinks followed.

    Args:
        asked: What was asked for.
        root: The root, absolute and without symlinks.
        directories: The names between root and file.
        name: The file's own name.
        kept: The directory that the file must not be in, if there is one.

    """

    asked: Asked
    root: str
    directories: tuple[str, ...]
    name: str
    kept: Kept | None = None

    @property
    def relative(self) -> str:
        """The path below the root, with slashes."""
        return "/".join((*self.directories, self.name))

    @property
    def absolute(self) -> str:
        """The path from the top."""
        return f"{self.root.rstrip('/')}/{self.relative}"

    def refuse_kept(self, status: os.stat_result) -> None:
        """Raise if this is the directory that nothing may be written in."""
        if self.kept is not None and _identity(status) == self.kept.identity:
            raise self.in_kept()

    def in_kept(self) -> PathDenied:
        """Make the error for a file in the directory that nothing may be written in."""
        rule = "cannot be written: this directory holds the session's own data"
        return self.asked.denied(rule, hint="choose another directory")


def read_path(path: object, *, handle: str) -> Asked:
    """
    Check everything about a path that can be said without looking at the disk.

    Raises:
        InvalidParameter: It is no text, empty, has a NUL or a lone surrogate, or is too long.
        PathDenied: It has a part ``..``, begins with ``~``, or ends as only a directory's path does.

    """
    text = path.__fspath__() if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        message = f"file_path must be text, got {type(text).__name__}"
        raise InvalidParameter(message, parameter="file_path", handle=handle)
    asked = Asked(text, handle)
    if not text:
        raise asked.invalid("must not be empty", hint="name a file, such as notes.md")
    if "\0" in text:
        raise asked.invalid(f"must not hold a NUL character, got {asked.shown}")
    parts = text.split("/")
    try:
        longest, whole = max(len(part.encode()) for part in parts), len(text.encode())
    except UnicodeEncodeError as error:
        raise asked.invalid(f"must not hold a lone surrogate, got {asked.shown}") from error
    if longest > _NAME_BYTES:
        message = f"has a name of {longest} bytes, {_NAME_BYTES} are allowed: {asked.shown}"
        raise asked.invalid(message, hint="use shorter names")
    if whole > _PATH_BYTES:
        raise asked.invalid(f"is {whole} bytes long, {_PATH_BYTES} are allowed", hint="use a shorter path")
    if text.startswith("~"):
        raise asked.denied("begins with ~, and ~ is not expanded", hint="for a file of that name put ./ before it")
    if ".." in parts:
        raise asked.denied("has a part .., which is not allowed")
    if parts[-1] in ("", "."):
        raise asked.denied("ends like a directory", hint="name a file in it")
    return asked


def resolve_below(asked: Asked, root: str | os.PathLike[str], *, kept: str | os.PathLike[str] | None = None) -> Place:
    """
    Follow all symlinks, and say which file below the root is meant.

    Args:
        asked: A path that `read_path` let through, relative to the root or absolute.
        root: The directory that nothing may lead out of; there may be symlinks above it.
        kept: A directory that the file must not be in, wherever it is.

    Raises:
        PathDenied: The file is not below the root, or in *kept*.
        ExportMissing: There is no root.

    """
    try:
        base = os.path.realpath(root, strict=True)
    except FileNotFoundError as error:
        hint = "make it, or set settings.descriptors.root"
        raise asked.missing("cannot be written: the root for files does not exist", hint=hint) from error
    is_absolute = asked.path.startswith("/")
    try:
        resolved = os.path.realpath(asked.path if is_absolute else f"{base.rstrip('/')}/{asked.path}")
    except RecursionError as error:
        raise asked.denied("leads through too many symlinks") from error
    except OSError as error:
        # A link was there, and was none any more when it was to be read.
        raise asked.denied("changed while it was checked", hint="nothing was written; try again") from error
    prefix = f"{base.rstrip('/')}/"
    if resolved == base:
        raise asked.denied("is the root itself, a directory", hint="name a file in it")
    if not resolved.startswith(prefix):
        # Nothing is said of what is there: a path could be used to find out which files exist elsewhere.
        raise asked.denied("is outside the root" if is_absolute else "leads out of the root through a symlink")
    if len(os.fsencode(resolved)) > _PATH_BYTES:
        raise asked.invalid(f"is longer than {_PATH_BYTES} bytes with the root before it", hint="use a shorter path")
    *directories, name = resolved[len(prefix) :].split("/")
    place = Place(asked, base, tuple(directories), name, None if kept is None else Kept.of(kept))
    # What is below the root is looked at once more when it is opened; what is above is never opened.
    if place.kept is not None and (place.kept.is_at_or_above(resolved) or place.kept.is_met_above(base)):
        raise place.in_kept()
    return place


def open_directory(place: Place, *, before_making: Callable[[], None] | None) -> int:
    """
    Open the directory of a file without following any symlink.

    Args:
        place: The file.
        before_making: Called before a missing directory is made, to refuse by raising;
            None where missing directories are not to be made.

    Returns:
        A descriptor; the caller closes it.

    Raises:
        ExportMissing: A directory is missing and not to be made.
        PathDenied: A part of the path is no directory, not the one it was when it was checked, or the one that
            nothing may be written in.

    """
    if not _CONFINABLE:
        message = f"{place.asked.shown} was not written: this platform cannot open files relative to a directory"
        hint = "without that nothing could be kept below the root; export on Linux or macOS"
        raise ExportError(message, path=place.asked.path, handle=place.asked.handle, hint=hint)
    directory = _opened_root(place)
    try:
        place.refuse_kept(os.fstat(directory))
        for depth in range(len(place.directories)):
            deeper = _enter(place, depth, directory, before_making)
            directory, left = deeper, directory
            close_quietly(left)
            place.refuse_kept(os.fstat(directory))
    except BaseException:
        close_quietly(directory)
        raise
    return directory


def _opened_root(place: Place) -> int:
    try:
        return os.open(place.root, _DIRECTORY)
    except OSError as error:
        if error.errno not in _NOT_A_DIRECTORY:
            raise
        hint = "set settings.descriptors.root to a directory"
        raise place.asked.denied("cannot be written: the root for files is no directory", hint=hint) from error


def _enter(place: Place, depth: int, directory: int, before_making: Callable[[], None] | None) -> int:
    """Open one directory further down; make it if that is wanted."""
    try:
        return _opened(place, depth, directory)
    except FileNotFoundError as error:
        if before_making is None:
            where = "/".join(place.directories[: depth + 1])
            rule = f"cannot be written: the directory {where[:_SHOWN]!r} does not exist"
            raise place.asked.missing(rule, hint="make it first, or choose a directory that exists") from error
    before_making()
    with contextlib.suppress(FileExistsError):
        os.mkdir(place.directories[depth], dir_fd=directory)  # 0o777 less the umask
        sync_directory(directory)
    return _opened(place, depth, directory)


def _opened(place: Place, depth: int, directory: int) -> int:
    name = place.directories[depth]
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except OSError as error:
        if error.errno not in _NOT_A_DIRECTORY:
            raise
        found = status_of(name, directory)
        raise not_usable(place, depth, found) from error


def status_of(name: str, directory: int) -> os.stat_result | None:
    """Look at what has this name in the directory, itself even if it is a symlink; None if there is nothing."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def kind_of(mode: int) -> str:
    """Name the kind of a file, such as "a FIFO"."""
    return _KINDS.get(stat.S_IFMT(mode), "something special")


def not_usable(place: Place, depth: int, found: os.stat_result | None) -> PathDenied:
    """
    Say why a part of a path cannot be used.

    Args:
        place: The file.
        depth: Which part: an index into its directories, or their number for the file itself.
        found: What is there.

    """
    parts = (*place.directories, place.name)[: depth + 1]
    is_last = depth == len(place.directories)
    part = "" if is_last else f"cannot be written: {'/'.join(parts)[:_SHOWN]!r} "
    if found is None or (not is_last and stat.S_ISDIR(found.st_mode)):
        return place.asked.denied(f"{part}changed while it was opened", hint="nothing was written; try again")
    if not stat.S_ISLNK(found.st_mode):
        kind = kind_of(found.st_mode)
        rule = f"{part}is {kind}, no regular file" if is_last else f"{part}is {kind}, no directory"
        return place.asked.denied(rule, hint="choose another path")
    if _leads_in_circle("/".join((place.root, *parts))):
        return place.asked.denied(f"{part}is a symlink that leads in a circle", hint="choose another path")
    # It was followed when it was checked, so it came later.
    return place.asked.denied(f"{part}became a symlink after it was checked", hint="nothing was written")


def _leads_in_circle(path: str) -> bool:
    try:
        os.path.realpath(path, strict=True)
    except OSError as error:
        return error.errno == errno.ELOOP
    except RecursionError:
        return True
    return False


def open_file(name: str, directory: int, *, flags: int, mode: int = 0o666) -> int:
    """Open a file of the directory: no symlink, without waiting, not inherited by programs that are started."""
    return os.open(name, flags | _COMMON, mode, dir_fd=directory)


def close_quietly(descriptor: int) -> None:
    """Close what was only read: nothing can be lost, whatever the system says."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def sync_directory(directory: int) -> None:
    """
    Make the names of a directory durable, as far as the file system can.

    A failure is logged and no error: the change is already there for all to see,
    and who took it for not done would do it twice.
    """
    try:
        os.fsync(directory)
    except OSError as error:
        _log.warning("a directory of exported files could not be flushed: %s", error.strerror)
