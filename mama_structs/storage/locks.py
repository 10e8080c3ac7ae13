"""
Named locks between processes, released by the kernel when their process dies.

Each name is hashed to one byte far beyond the end of a lock file, so that a thousand locks need one descriptor.
A process opens the file once and counts its users; a set prevents double locking within the process.
Linux open-file-description locks belong to this descriptor, and only closing it releases them. POSIX locks belong to
the process, and closing *any* descriptor of the file releases them all, even one of a program that copies the file.
They are used only if the former do not exist. Without either (Windows), names are locked within the process only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
import threading
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

import attrs

from mama_structs._internal.event_loop import LoopGuard
from mama_structs.errors import StoreBusy, StoreError, StoreReadOnly

if sys.platform != "win32":
    import fcntl

LOCK_FILE_NAME: Final = "locks"
LOCKED_ERRNOS: Final = frozenset({errno.EACCES, errno.EAGAIN})
ACCESS_DENIED_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

# Type, whence, start, length, process id: the layout of `struct flock` on 64-bit systems.
FLOCK_STRUCT: Final = struct.Struct("hhqqi4x")
HAS_OFD_LOCKS: Final = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK") and struct.calcsize("P") == 8  # noqa: PLR2004 - bytes


@attrs.define(eq=False)
class _OpenLockFile:
    """A lock file that this process has open."""

    identity: tuple[int, int]
    fd: int
    user_count: int = 0
    locked_offsets: set[int] = attrs.field(factory=set)
    # True if locks belong to this descriptor, False if they belong to the process. Constant once a lock is held.
    uses_ofd_locks: bool = HAS_OFD_LOCKS
    # Further descriptors of the same file. Closing one would release all POSIX locks of the process on it.
    extra_descriptors: list[int] = attrs.field(factory=list)

    def lock(self, offset: int) -> bool:
        """
        Lock a byte unless it is locked.

        Raise OSError if the file system does not support locks.
        """
        try:
            self._set_lock(offset, is_locked=True)
        except OSError as error:
            if error.errno in LOCKED_ERRNOS:
                return False
            if error.errno == errno.EINVAL and self.uses_ofd_locks and not self.locked_offsets:
                # The kernel does not support open-file-description locks.
                self.uses_ofd_locks = False
                return self.lock(offset)
            raise
        self.locked_offsets.add(offset)
        return True

    def unlock(self, offset: int) -> None:
        self.locked_offsets.discard(offset)
        self._set_lock(offset, is_locked=False)

    def close(self) -> None:
        for fd in (self.fd, *self.extra_descriptors):
            os.close(fd)

    def _set_lock(self, offset: int, *, is_locked: bool) -> None:
        if sys.platform == "linux" and self.uses_ofd_locks:
            kind = fcntl.F_WRLCK if is_locked else fcntl.F_UNLCK
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, FLOCK_STRUCT.pack(kind, os.SEEK_SET, offset, 1, 0))
        elif sys.platform != "win32":
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB if is_locked else fcntl.LOCK_UN, 1, offset)


class _ProcessFiles:
    """The lock files that this process has open."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.files: dict[tuple[int, int], _OpenLockFile] = {}
        self.watched_files: list[tuple[tuple[int, int], int]] = []

    def reset_after_fork(self) -> None:
        """
        Reset the state in a forked child.

        Inherited descriptors would keep the parent's locks after its death.
        """
        for identity, fd in self.watched_files:
            with contextlib.suppress(OSError):
                if _file_identity(os.fstat(fd)) == identity:
                    os.close(fd)
        for opened in self.files.values():
            # The number may belong to another file if the program closed all its descriptors.
            with contextlib.suppress(OSError):
                if _file_identity(os.fstat(opened.fd)) == opened.identity:
                    opened.close()
        self.__init__()  # type: ignore[misc]  # in place, because the module's functions reference this object


_process_files: Final = _ProcessFiles()
if hasattr(os, "register_at_fork"):
    # Hold the guard during a fork, so that the child inherits no half-opened file that it could not close.
    os.register_at_fork(
        before=lambda: _process_files.guard.acquire(),  # noqa: PLW0108 - a child has another guard
        after_in_parent=lambda: _process_files.guard.release(),  # noqa: PLW0108 - as above
        after_in_child=_process_files.reset_after_fork,
    )


@contextlib.contextmanager
def block_forks() -> Iterator[None]:
    """
    Block forks during the block.

    A child would wait forever for a lock that a thread holds in another library.
    """
    with _process_files.guard:
        yield


class LockFile:
    """One user's access to a lock file. Create it with `open`."""

    def __init__(self, opened: _OpenLockFile) -> None:
        self._opened: _OpenLockFile | None = opened
        self._own_offsets: set[int] = set()
        self._bound = LoopGuard("lock")

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True) -> LockFile:
        """Open a lock file, or share this process's descriptor of it. Symbolic links are rejected."""
        with _process_files.guard:
            with contextlib.suppress(FileNotFoundError):
                opened = _process_files.files.get(_file_identity(os.lstat(path)))
                if opened is not None:
                    opened.user_count += 1
                    return cls(opened)
            flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
            fd = os.open(path, flags | (os.O_CREAT if create else 0), 0o600)
            identity = _file_identity(os.fstat(fd))
            opened = _process_files.files.get(identity)
            if opened is None:
                opened = _process_files.files[identity] = _OpenLockFile(identity, fd)
            else:
                opened.extra_descriptors.append(fd)
            opened.user_count += 1
            return cls(opened)

    @property
    def fd(self) -> int:
        """The shared descriptor, for reading and writing. Do not close it."""
        return self._require_open().fd

    def try_lock(self, offset: int) -> bool:
        """
        Lock the byte at *offset* without waiting.

        Raise OSError if the file system does not support locks.
        """
        with _process_files.guard:
            opened = self._require_open()
            if offset in opened.locked_offsets or not opened.lock(offset):
                return False
            self._own_offsets.add(offset)
            return True

    def is_locked(self, offset: int) -> bool:
        """Return True if the byte at *offset* is locked by this process or another."""
        with _process_files.guard:
            opened = self._require_open()
            known = is_range_locked(opened.fd, offset, ignore_own=False) if opened.uses_ofd_locks else None
            if known is None and offset not in opened.locked_offsets:
                # POSIX locks can only be tested by trying to acquire them.
                known = not self.try_lock(offset)
                self.unlock(offset)
            return bool(known) or offset in opened.locked_offsets

    def unlock(self, offset: int) -> None:
        """Unlock the byte at *offset* if this user has locked it."""
        with _process_files.guard:
            opened = self._require_open()
            if offset not in self._own_offsets:
                return
            self._own_offsets.discard(offset)
            opened.unlock(offset)

    def close(self) -> None:
        """Release all locks of this user. The last user closes the file."""
        if self._bound.is_forked_child or self._opened is None:
            return
        with _process_files.guard:
            opened = self._opened
            for offset in list(self._own_offsets):
                self.unlock(offset)
            self._opened = None
            opened.user_count -= 1
            if opened.user_count == 0:
                del _process_files.files[opened.identity]
                opened.close()

    def _require_open(self) -> _OpenLockFile:
        self._bound.check_thread()
        if self._opened is None:
            raise ValueError("the lock file is closed")
        return self._opened


def watch_locks(path: Path) -> int | None:
    """
    Return a descriptor of a file that another library locks, or None if that fails.

    The descriptor can be read and passed to `is_locked`.

    It stays open until the file is deleted, because closing it would release that library's locks in this process.
    """
    if not HAS_OFD_LOCKS:
        return None
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with _process_files.guard:
        close_deleted_watches()
        with contextlib.suppress(OSError):
            wanted = _file_identity(os.lstat(path))
            for identity, fd in _process_files.watched_files:
                if identity == wanted:
                    return fd
            fd = os.open(path, flags)
            _process_files.watched_files.append((_file_identity(os.fstat(fd)), fd))
            return fd
    return None


def close_deleted_watches() -> None:
    """Close the descriptors of `watch` whose files were deleted."""
    with _process_files.guard:
        _process_files.watched_files = [one for one in _process_files.watched_files if _is_watch_valid(*one)]


def _is_watch_valid(identity: tuple[int, int], fd: int) -> bool:
    with contextlib.suppress(OSError):
        status = os.fstat(fd)
        # Otherwise the number belongs to another file, because the program closed all its descriptors.
        if _file_identity(status) == identity:
            if status.st_nlink:
                return True
            os.close(fd)
    return False


def is_range_locked(
    fd: int, offset: int, *, ignore_own: bool, length: int = 1, ignore_shared: bool = False
) -> bool | None:
    """
    Return True if a process has locked bytes from *offset*, None if unknown.

    With *ignore_own*, ignore the locks of this process.

    With *ignore_shared*, ignore shared locks, which do not conflict with readers.
    """
    if sys.platform != "linux" or not HAS_OFD_LOCKS:
        return None
    # A query for a descriptor's lock conflicts with all process locks, including this process's own.
    command = fcntl.F_GETLK if ignore_own else fcntl.F_OFD_GETLK
    try:
        wanted = fcntl.F_RDLCK if ignore_shared else fcntl.F_WRLCK
        answer = fcntl.fcntl(fd, command, FLOCK_STRUCT.pack(wanted, os.SEEK_SET, offset, length, 0))
    except OSError:
        return None
    return bool(FLOCK_STRUCT.unpack(answer)[0] != fcntl.F_UNLCK)


def _file_identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class DirectoryLocks:
    """Locks on names, such as conversation names, in the lock file of one session directory."""

    def __init__(self, directory: Path) -> None:
        try:
            self._file = LockFile.open(directory / LOCK_FILE_NAME)
        except OSError as error:
            kind = StoreReadOnly if error.errno in ACCESS_DENIED_ERRNOS else StoreError
            raise kind(f"the locks of {directory} cannot be opened: {error.strerror}") from error
        self._directory = directory

    def claim(self, name: str) -> None:
        """
        Lock *name* until `release`, `close` or the end of the process.

        Raise StoreBusy if it is locked.
        """
        try:
            taken = self._file.try_lock(_offset_of_name(name))
        except OSError as error:
            raise StoreError(f"{self._directory} cannot be locked: {error.strerror}") from error
        if not taken:
            raise StoreBusy(f"another session uses this part of {self._directory}", waited=0.0)

    def is_claimed(self, name: str) -> bool:
        """Return True if *name* is locked by any process, including this one."""
        return self._file.is_locked(_offset_of_name(name))

    def release(self, name: str) -> None:
        """Unlock *name* if this object has locked it."""
        self._file.unlock(_offset_of_name(name))

    def close(self) -> None:
        """Unlock all names that were claimed here. Does nothing in a forked child."""
        self._file.close()


def _offset_of_name(name: str) -> int:
    """
    Return the byte offset that represents *name*: a 62-bit hash.

    Collisions are negligible, and every offset is valid.
    """
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, person=b"mama-locks").digest()
    return int.from_bytes(digest, "big") >> 2
