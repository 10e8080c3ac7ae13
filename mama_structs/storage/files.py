"""
Files and directories that appear under their names when they are whole, and temporary ones that a later process sweeps.

* `NewFile`: written under a name of its own, by path or below a directory's descriptor; `close` has it on the disk,
  `publish` gives it its name, with or without replacing what is there. Its errors are the system's.
* `DraftFile`, `DraftDirectory`: the same at a path that a user named, with errors of ours.
* `TemporaryDirectory`: lives as long as its owner.
* `make_directory`, `sync_directory`, `sync_tree`: names that outlast a loss of power.
* `sweep`: removes what killed processes left of the last three. Who owns one holds a lock on it, which nothing else can
  tell: not a process id, not an age.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from mama_structs.errors import InvalidArgument, MamaStructsError, StoreError, StoreFull, StoreReadOnly
from mama_structs.storage.locks import FILE_NAME as LOCKS
from mama_structs.storage.locks import LockFile, unforked

DATABASE: Final = "cache.db"
MARK_FILE: Final = "FORMAT"
JOURNAL: Final = "journal"
"""The name of the database's directory in a session's."""

_OURS: Final = re.compile(r"mama-structs-[0-9a-f]{16}|\.mama-structs-(?:file|copy)-[0-9a-f]{16}\.tmp")
_ALIVE: Final = "alive"
_MARK: Final = b"mama-structs temporary store\n"
_CHUNK: Final = 2**20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# Of file systems without hard links: FAT, some network ones.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK})


def from_os(error: OSError, place: Path) -> StoreError:
    """Return the error of ours that a failure of the operating system is."""
    if error.errno in _NO_ROOM:
        return full(place)
    if error.errno in _DENIED:
        return StoreReadOnly(f"{place} cannot be written to")
    return StoreError(f"{place} cannot be used: {error.strerror or type(error).__name__}")


def full(place: Path) -> StoreFull:
    """Return the error for a place without room."""
    return StoreFull(f"there is no room for {place}", hint="what was stored can be read; make room and try again")


@contextlib.contextmanager
def explained(place: Path) -> Iterator[None]:
    """Raise errors of ours for what the operating system says of a path."""
    try:
        yield
    except MamaStructsError:
        raise
    except OSError as error:
        raise from_os(error, place) from error
    except ValueError as error:
        raise StoreError(f"the path cannot be used: {error}") from error


class NewFile:
    """A file that is written under a temporary *name*, a path or relative to *dir_fd*, which stays the caller's."""

    def __init__(
        self, name: str | Path, *, dir_fd: int | None = None, mode: int = 0o600, is_locked: bool = False
    ) -> None:
        self.name: str | Path = name
        self.size: int = 0
        self._dir_fd = dir_fd
        self._lock = LockFile.open(name) if is_locked else None
        if self._lock is None:
            self.fd: int = os.open(name, _NEW, mode, dir_fd=dir_fd)
            return
        self.fd = self._lock.fd
        with contextlib.suppress(OSError):
            self._lock.try_lock(0)

    def write(self, data: bytes | memoryview) -> None:
        """Write all of *data* at the end, in as many steps as the system wants."""
        left = memoryview(data)
        self.size += left.nbytes
        while left:
            left = left[os.write(self.fd, left[:_CHUNK]) :]

    def close(self) -> None:
        """Have all on the disk, and close; only now is it known that there was room for everything."""
        if self.fd < 0:
            return
        os.fsync(self.fd)
        fd, self.fd = self.fd, -1
        if self._lock is None:
            os.close(fd)

    def publish(self, target: str | Path, *, replace: bool = True) -> None:
        """Close the file and give it its name, for ever after `sync_directory`; FileExistsError unless *replace*."""
        self.close()
        if not replace:
            try:
                os.link(self.name, target, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # Looking leaves a moment in which another one may come.
                with contextlib.suppress(FileNotFoundError):
                    os.stat(target, dir_fd=self._dir_fd, follow_symlinks=False)
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target)) from error
            else:
                return
        os.replace(self.name, target, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)

    def discard(self) -> None:
        """Remove the temporary name, if it is still there, and close; again is no error."""
        with contextlib.suppress(OSError):
            if self.fd >= 0 and self._lock is None:
                os.close(self.fd)
        self.fd = -1
        with contextlib.suppress(OSError):
            os.unlink(self.name, dir_fd=self._dir_fd)
        if self._lock is not None:
            self._lock.close()


class DraftFile(NewFile):
    """A file, for this user alone, beside the place where a user wants it; its errors are ours, links are followed."""

    def __init__(self, target: Path) -> None:
        with explained(target):
            self._target = _resolved(target)
            if self._target.exists() and not stat.S_ISREG(self._target.stat().st_mode):
                raise StoreError(f"{target} is no regular file", hint="choose another name")
            sweep(self._target.parent)
            super().__init__(_temporary_name(self._target, "file"), is_locked=True)

    def write(self, data: bytes | memoryview) -> None:
        """Write at the end."""
        with explained(self._target):
            super().write(data)

    def publish(self, target: str | Path | None = None, *, replace: bool = True) -> None:
        """Give the file its name; it is durable when this returns."""
        try:
            with explained(self._target):
                super().publish(target or self._target, replace=replace)
                sync_directory(self._target.parent)
        finally:
            self.discard()


class TemporaryDirectory:
    """A directory (mode 0700), `make` makes it, that lives as long as its owner or until a later `sweep`."""

    def __init__(self, parent: Path | None = None, *, path: Path | None = None) -> None:
        self.path: Path = path or (parent or _temporary_folder()) / f"mama-structs-{secrets.token_hex(8)}"
        self._lock: LockFile | None = None

    def make(self) -> None:
        """Make the directory, unless that was done."""
        if self._lock is not None:
            return
        self.path.mkdir(mode=0o700)
        try:
            # Under its own name the mark is never seen unlocked, so that nobody sweeps what is being made.
            draft = self.path / f"{_ALIVE}.new"
            self._lock = LockFile.open(draft)
            with contextlib.suppress(OSError):
                self._lock.try_lock(0)
            os.write(self._lock.fd, _MARK)
            draft.rename(self.path / _ALIVE)
        except BaseException:
            self.remove()
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Remove the directory if it was made."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                _remove_tree(self.path)
            lock.close()


class DraftDirectory:
    """A directory that is filled beside its place, at which nothing or an empty directory is; its errors are ours."""

    def __init__(self, target: Path) -> None:
        with explained(target):
            self._target = _resolved(target)
            try:
                is_used = any(self._target.iterdir())
            except FileNotFoundError:
                is_used = False
            except NotADirectoryError:
                is_used = True
            if is_used:
                hint = "name one that does not exist yet"
                raise InvalidArgument(f"{target} exists and is no empty directory", hint=hint)
            make_directory(self._target.parent)
            sweep(self._target.parent)
            self._filled = TemporaryDirectory(path=_temporary_name(self._target, "copy"))
            self._filled.make()
        self.path: Path = self._filled.path

    def publish(self) -> None:
        """Give the directory its name; it and what is in it are durable when this returns."""
        try:
            with explained(self._target):
                sync_tree(self.path)
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    # What is not empty any more stays, and the renaming fails. Only POSIX would let one be there.
                    self._target.rmdir()
                self.path.rename(self._target)
                # Last: what a killed process leaves without the mark could never be told from what is under way.
                with contextlib.suppress(OSError):
                    (self._target / _ALIVE).unlink()
                sync_directory(self._target)
                sync_directory(self._target.parent)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove what was not published; again is no error."""
        self._filled.remove()


def check_path(directory: Path) -> Path:
    """Return *directory* as an absolute path, unless the library would take it for another one."""
    path = Path(os.path.abspath(os.fspath(directory)))  # noqa: PTH100 - resolve() would follow symbolic links
    if os.path.expandvars(path) != str(path):
        raise InvalidArgument(f"a store's directory must not hold the name of a variable, got {path}")
    return path


def is_store(location: Path) -> bool:
    """Tell whether a session has kept something in a directory."""
    try:
        return any((location / JOURNAL / name).exists() for name in (MARK_FILE, DATABASE))
    except (OSError, ValueError):
        return False


def make_directory(directory: Path) -> None:
    """Make *directory* and what is missing above it, for this user alone, so that it outlasts a loss of power."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in *directory* durable, where the system has a way to."""
    if os.name != "nt":  # Windows opens no directories
        _sync(directory, os.O_RDONLY)


def sync_tree(directory: Path) -> None:
    """Make a directory and all that is in it durable."""
    for parent, _, names in os.walk(directory):
        for name in names:
            _sync(Path(parent, name), os.O_RDWR)
        sync_directory(Path(parent))


def sweep(directory: Path | None = None) -> int:
    """Remove what killed processes left in *directory* (by default the system's temporary one); return how many."""
    base = directory or _temporary_folder()
    try:
        names = os.listdir(base)  # noqa: PTH208 - names are enough, of many
    except OSError:
        return 0
    return sum(_sweep(base / name) for name in names if _OURS.fullmatch(name))


def _temporary_folder() -> Path:
    """Return the system's folder for temporary files, which `tempfile` looks for under a lock at the first call."""
    with unforked():
        return Path(tempfile.gettempdir())


def _sweep(path: Path) -> bool:
    """Remove one file or directory if it is ours and dead; what keeps it from being removed is left for later."""
    with contextlib.suppress(OSError):
        is_directory = not path.name.startswith(".mama-structs-file")
        held = path / _ALIVE if is_directory else path
        if not (_is_own(held, stat.S_ISREG) and (not is_directory or _is_own(path, stat.S_ISDIR))):
            return False
        lock = LockFile.open(held, create=False)
        try:
            if not lock.try_lock(0):
                return False
            if not is_directory:
                path.unlink()
                return True
            os.lseek(lock.fd, 0, os.SEEK_SET)
            if os.read(lock.fd, len(_MARK) + 1) == _MARK:
                _remove_tree(path)
                return True
        finally:
            lock.close()
    return False


def _is_own(path: Path, kind: Callable[[int], bool]) -> bool:
    status = path.lstat()
    return kind(status.st_mode) and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid())


def _remove_tree(path: Path) -> None:
    """Remove what is in *path*, the mark last: a sweep that is killed half-way is taken up by the next one."""
    for name in os.listdir(path):  # noqa: PTH208 - iterdir would read lazily while we delete
        inner = path / name
        if name == _ALIVE:
            continue
        if stat.S_ISDIR(inner.lstat().st_mode):
            shutil.rmtree(inner)
        else:
            inner.unlink()
    (path / _ALIVE).unlink()
    path.rmdir()


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _resolved(target: Path) -> Path:
    """Return a user's path without symbolic links, where writing there would not damage a session's own data."""
    path = Path(os.path.realpath(target))
    in_database = any((parent / MARK_FILE).exists() and (parent / DATABASE).exists() for parent in path.parents)
    if in_database or (path.name == LOCKS and (path.parent / JOURNAL / MARK_FILE).exists()):
        raise StoreError(f"{path} belongs to a session's own data", hint="choose another name")
    return path


def _temporary_name(target: Path, kind: str) -> Path:
    return target.parent / f".mama-structs-{kind}-{secrets.token_hex(8)}.tmp"
