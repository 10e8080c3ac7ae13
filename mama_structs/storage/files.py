"""
Atomic creation of files and directories, and deletion of temporary ones.

* `NewFile`: written under a temporary name, by path or relative to a directory descriptor. `close` syncs it to disk,
  `publish` renames it to its target, optionally replacing an existing file. Raises the system's errors.
* `DraftFile`, `DraftDirectory`: the same for a path given by a user, with typed errors.
* `TemporaryDirectory`: exists as long as its owner.
* `create_directory`, `sync_directory`, `sync_tree`: durable creation of directories and names.
* `delete_leftovers`: deletes files and directories of the last three classes that killed processes left. The owner
  holds a lock on each, because neither a process id nor an age proves that the owner is dead.
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
from mama_structs.storage.locks import LOCK_FILE_NAME as LOCKS
from mama_structs.storage.locks import LockFile, block_forks

DATABASE_FILE: Final = "cache.db"
MARK_FILE: Final = "FORMAT"
JOURNAL_DIRECTORY: Final = "journal"
"""Name of the database's directory inside a session's directory."""

TEMPORARY_NAME_PATTERN: Final = re.compile(r"mama-structs-[0-9a-f]{16}|\.mama-structs-(?:file|copy)-[0-9a-f]{16}\.tmp")
OWNER_LOCK_FILE: Final = "alive"
OWNER_MARK: Final = b"mama-structs temporary store\n"
WRITE_CHUNK_BYTES: Final = 2**20
NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
ACCESS_DENIED_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# Errors of file systems without hard links, such as FAT and some network file systems.
NO_HARD_LINK_ERRNOS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK})


def from_os(error: OSError, path: Path) -> StoreError:
    """Return the typed error for an OSError."""
    if error.errno in DISK_FULL_ERRNOS:
        return disk_full_error(path)
    if error.errno in ACCESS_DENIED_ERRNOS:
        return StoreReadOnly(f"{path} cannot be written to")
    return StoreError(f"{path} cannot be used: {error.strerror or type(error).__name__}")


def disk_full_error(path: Path) -> StoreFull:
    """Return the error for a full disk."""
    return StoreFull(f"there is no room for {path}", hint="what was stored can be read; make room and try again")


@contextlib.contextmanager
def convert_os_errors(path: Path) -> Iterator[None]:
    """Convert each OSError of the block to a typed error that names *path*."""
    try:
        yield
    except MamaStructsError:
        raise
    except OSError as error:
        raise from_os(error, path) from error
    except ValueError as error:
        raise StoreError(f"the path cannot be used: {error}") from error


class NewFile:
    """
    A file that is written under a temporary *name* and then renamed to its target.

    *name* is a path, or relative to *dir_fd*. The caller closes *dir_fd*.
    """

    def __init__(
        self, name: str | Path, *, dir_fd: int | None = None, mode: int = 0o600, is_locked: bool = False
    ) -> None:
        self.name: str | Path = name
        self.size: int = 0
        self._dir_fd = dir_fd
        self._lock = LockFile.open(name) if is_locked else None
        if self._lock is None:
            self.fd: int = os.open(name, NEW_FILE_FLAGS, mode, dir_fd=dir_fd)
            return
        self.fd = self._lock.fd
        with contextlib.suppress(OSError):
            self._lock.try_lock(0)

    def write(self, data: bytes | memoryview) -> None:
        """Append all of *data*, with several system calls if necessary."""
        left = memoryview(data)
        self.size += left.nbytes
        while left:
            left = left[os.write(self.fd, left[:WRITE_CHUNK_BYTES]) :]

    def close(self) -> None:
        """
        Sync the file to disk and close it.

        Until then, an error such as a full disk may still occur.
        """
        if self.fd < 0:
            return
        os.fsync(self.fd)
        fd, self.fd = self.fd, -1
        if self._lock is None:
            os.close(fd)

    def publish(self, target: str | Path, *, replace: bool = True) -> None:
        """
        Close the file and rename it to *target*. Call `sync_directory` to make the new name durable.

        Raises:
            FileExistsError: *target* exists and *replace* is False.

        """
        self.close()
        if not replace:
            try:
                os.link(self.name, target, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd, follow_symlinks=False)
            except OSError as error:
                if error.errno not in NO_HARD_LINK_ERRNOS:
                    raise
                # Without hard links, another process may create the target between this check and the rename.
                with contextlib.suppress(FileNotFoundError):
                    os.stat(target, dir_fd=self._dir_fd, follow_symlinks=False)
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target)) from error
            else:
                return
        os.replace(self.name, target, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)

    def discard(self) -> None:
        """Delete the temporary file if it still exists, and close it. Idempotent."""
        with contextlib.suppress(OSError):
            if self.fd >= 0 and self._lock is None:
                os.close(self.fd)
        self.fd = -1
        with contextlib.suppress(OSError):
            os.unlink(self.name, dir_fd=self._dir_fd)
        if self._lock is not None:
            self._lock.close()


class DraftFile(NewFile):
    """
    A file (mode 0600) that is written next to a target path given by a user, and then renamed to it.

    Follows symbolic links and raises typed errors.
    """

    def __init__(self, target: Path) -> None:
        with convert_os_errors(target):
            self._target = _resolve_target(target)
            if self._target.exists() and not stat.S_ISREG(self._target.stat().st_mode):
                raise StoreError(f"{target} is no regular file", hint="choose another name")
            delete_leftovers(self._target.parent)
            super().__init__(_temporary_name(self._target, "file"), is_locked=True)

    def write(self, data: bytes | memoryview) -> None:
        """Append *data*."""
        with convert_os_errors(self._target):
            super().write(data)

    def publish(self, target: str | Path | None = None, *, replace: bool = True) -> None:
        """Rename the file to its target, durably."""
        try:
            with convert_os_errors(self._target):
                super().publish(target or self._target, replace=replace)
                sync_directory(self._target.parent)
        finally:
            self.discard()


class TemporaryDirectory:
    """
    A directory (mode 0700) that exists from `create` to `remove`.

    If the owner is killed, a later `delete_leftovers` deletes it.
    """

    def __init__(self, parent: Path | None = None, *, path: Path | None = None) -> None:
        self.path: Path = path or (parent or _temporary_root()) / f"mama-structs-{secrets.token_hex(8)}"
        self._lock: LockFile | None = None

    def create(self) -> None:
        """Create the directory, unless this object has created it already."""
        if self._lock is not None:
            return
        self.path.mkdir(mode=0o700)
        try:
            # Lock the owner file before it gets its final name, so that no other process deletes the new directory.
            draft = self.path / f"{OWNER_LOCK_FILE}.new"
            self._lock = LockFile.open(draft)
            with contextlib.suppress(OSError):
                self._lock.try_lock(0)
            os.write(self._lock.fd, OWNER_MARK)
            draft.rename(self.path / OWNER_LOCK_FILE)
        except BaseException:
            self.remove()
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Delete the directory if it was created."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                _remove_tree(self.path)
            lock.close()


class DraftDirectory:
    """
    A directory that is filled next to its target. The target must be missing or empty.

    Raises typed errors.
    """

    def __init__(self, target: Path) -> None:
        with convert_os_errors(target):
            self._target = _resolve_target(target)
            try:
                is_used = any(self._target.iterdir())
            except FileNotFoundError:
                is_used = False
            except NotADirectoryError:
                is_used = True
            if is_used:
                hint = "name one that does not exist yet"
                raise InvalidArgument(f"{target} exists and is not an empty directory", hint=hint)
            create_directory(self._target.parent)
            delete_leftovers(self._target.parent)
            self._temporary = TemporaryDirectory(path=_temporary_name(self._target, "copy"))
            self._temporary.create()
        self.path: Path = self._temporary.path

    def publish(self) -> None:
        """Rename the directory to its target, durably with its content."""
        try:
            with convert_os_errors(self._target):
                sync_tree(self.path)
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    # Delete an empty target, because only POSIX renames onto it. If it is not empty, the rename fails.
                    self._target.rmdir()
                self.path.rename(self._target)
                # Delete the owner file last: until then, a directory of a killed process counts as a leftover.
                with contextlib.suppress(OSError):
                    (self._target / OWNER_LOCK_FILE).unlink()
                sync_directory(self._target)
                sync_directory(self._target.parent)
        finally:
            self.discard()

    def discard(self) -> None:
        """Delete the directory, unless it was published. Idempotent."""
        self._temporary.remove()


def absolute_path(directory: Path) -> Path:
    """
    Return *directory* as an absolute path.

    Raise for a path with names of environment variables, because diskcache would expand them.
    """
    path = Path(os.path.abspath(os.fspath(directory)))  # noqa: PTH100 - resolve() would follow symbolic links
    if os.path.expandvars(path) != str(path):
        raise InvalidArgument(f"a store's directory must not hold the name of a variable, got {path}")
    return path


def is_store(location: Path) -> bool:
    """Return True if a directory contains the store of a session."""
    try:
        return any((location / JOURNAL_DIRECTORY / name).exists() for name in (MARK_FILE, DATABASE_FILE))
    except (OSError, ValueError):
        return False


def create_directory(directory: Path) -> None:
    """Durably create *directory* and its missing parents with mode 0700."""
    if directory.is_dir():
        return
    create_directory(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in *directory* durable, if the operating system supports that."""
    if os.name != "nt":  # Windows cannot open a directory as a file.
        _sync(directory, os.O_RDONLY)


def sync_tree(directory: Path) -> None:
    """Make a directory and all its content durable."""
    for parent, _, names in os.walk(directory):
        for name in names:
            _sync(Path(parent, name), os.O_RDWR)
        sync_directory(Path(parent))


def delete_leftovers(directory: Path | None = None) -> int:
    """
    Delete files and directories that killed processes left in *directory* (default: the temporary directory).

    Return the number of deleted items.
    """
    base = directory or _temporary_root()
    try:
        names = os.listdir(base)  # noqa: PTH208 - faster, and only names are needed
    except OSError:
        return 0
    return sum(_delete_leftover(base / name) for name in names if TEMPORARY_NAME_PATTERN.fullmatch(name))


def _temporary_root() -> Path:
    """
    Return the system's temporary directory.

    Forks are blocked, because the first call of `gettempdir` holds a lock.
    """
    with block_forks():
        return Path(tempfile.gettempdir())


def _delete_leftover(path: Path) -> bool:
    """
    Delete a leftover if its owner is dead.

    Errors are ignored, because a later call tries again.
    """
    with contextlib.suppress(OSError):
        is_directory = not path.name.startswith(".mama-structs-file")
        held = path / OWNER_LOCK_FILE if is_directory else path
        if not (_is_owned_by_user(held, stat.S_ISREG) and (not is_directory or _is_owned_by_user(path, stat.S_ISDIR))):
            return False
        lock = LockFile.open(held, create=False)
        try:
            if not lock.try_lock(0):
                return False
            if not is_directory:
                path.unlink()
                return True
            os.lseek(lock.fd, 0, os.SEEK_SET)
            if os.read(lock.fd, len(OWNER_MARK) + 1) == OWNER_MARK:
                _remove_tree(path)
                return True
        finally:
            lock.close()
    return False


def _is_owned_by_user(path: Path, is_kind: Callable[[int], bool]) -> bool:
    status = path.lstat()
    return is_kind(status.st_mode) and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid())


def _remove_tree(path: Path) -> None:
    """
    Delete a directory with its content.

    The owner mark is deleted last, so that a later call can finish an interrupted deletion.
    """
    for name in os.listdir(path):  # noqa: PTH208 - iterdir would read lazily during the deletion
        inner = path / name
        if name == OWNER_LOCK_FILE:
            continue
        if stat.S_ISDIR(inner.lstat().st_mode):
            shutil.rmtree(inner)
        else:
            inner.unlink()
    (path / OWNER_LOCK_FILE).unlink()
    path.rmdir()


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _resolve_target(target: Path) -> Path:
    """
    Return a target path with symbolic links resolved.

    Raise an error if writing to it would damage the data of a session.
    """
    path = Path(os.path.realpath(target))
    in_database = any((parent / MARK_FILE).exists() and (parent / DATABASE_FILE).exists() for parent in path.parents)
    if in_database or (path.name == LOCKS and (path.parent / JOURNAL_DIRECTORY / MARK_FILE).exists()):
        raise StoreError(f"{path} belongs to a session's own data", hint="choose another name")
    return path


def _temporary_name(target: Path, kind: str) -> Path:
    return target.parent / f".mama-structs-{kind}-{secrets.token_hex(8)}.tmp"
