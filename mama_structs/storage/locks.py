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

from mama_structs._internal.event_loop import LoopBound
from mama_structs.errors import StoreBusy, StoreError, StoreReadOnly

if sys.platform != "win32":
    import fcntl

FILE_NAME: Final = "locks"
_TAKEN: Final = frozenset({errno.EACCES, errno.EAGAIN})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

# Type, whence, start, length, process id: the layout of `struct flock` on 64-bit systems.
_LOCK: Final = struct.Struct("hhqqi4x")
_HAS_OWN_LOCKS: Final = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK") and struct.calcsize("P") == 8  # noqa: PLR2004 - bytes


@attrs.define(eq=False)
class _Opened:
    """A lock file that this process has open."""

    identity: tuple[int, int]
    fd: int
    users: int = 0
    held: set[int] = attrs.field(factory=set)
    # True if locks belong to this descriptor, False if they belong to the process. Constant once a lock is held.
    is_owner: bool = _HAS_OWN_LOCKS
    # Further descriptors of the same file. Closing one would release all POSIX locks of the process on it.
    extra: list[int] = attrs.field(factory=list)

    def lock(self, offset: int) -> bool:
        """
        Lock a byte unless it is locked.

        Raise OSError if the file system does not support locks.
        """
        try:
            self._set(offset, taken=True)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            if error.errno == errno.EINVAL and self.is_owner and not self.held:
                # The kernel does not support open-file-description locks.
                self.is_owner = False
                return self.lock(offset)
            raise
        self.held.add(offset)
        return True

    def unlock(self, offset: int) -> None:
        self.held.discard(offset)
        self._set(offset, taken=False)

    def close(self) -> None:
        for fd in (self.fd, *self.extra):
            os.close(fd)

    def _set(self, offset: int, *, taken: bool) -> None:
        if sys.platform == "linux" and self.is_owner:
            kind = fcntl.F_WRLCK if taken else fcntl.F_UNLCK
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, offset, 1, 0))
        elif sys.platform != "win32":
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB if taken else fcntl.LOCK_UN, 1, offset)


class _Process:
    """The lock files that this process has open."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.files: dict[tuple[int, int], _Opened] = {}
        self.watched: list[tuple[tuple[int, int], int]] = []

    def forget(self) -> None:
        """
        Reset the state in a forked child.

        Inherited descriptors would keep the parent's locks after its death.
        """
        for identity, fd in self.watched:
            with contextlib.suppress(OSError):
                if _identity(os.fstat(fd)) == identity:
                    os.close(fd)
        for opened in self.files.values():
            # The number may belong to another file if the program closed all its descriptors.
            with contextlib.suppress(OSError):
                if _identity(os.fstat(opened.fd)) == opened.identity:
                    opened.close()
        self.__init__()  # type: ignore[misc]  # in place, because the module's functions reference this object


_process: Final = _Process()
if hasattr(os, "register_at_fork"):
    # Hold the guard during a fork, so that the child inherits no half-opened file that it could not close.
    os.register_at_fork(
        before=lambda: _process.guard.acquire(),  # noqa: PLW0108 - a child has another guard
        after_in_parent=lambda: _process.guard.release(),  # noqa: PLW0108 - as above
        after_in_child=_process.forget,
    )


@contextlib.contextmanager
def unforked() -> Iterator[None]:
    """
    Block forks during the block.

    A child would wait forever for a lock that a thread holds in another library.
    """
    with _process.guard:
        yield


class LockFile:
    """One user's access to a lock file. Create it with `open`."""

    def __init__(self, opened: _Opened) -> None:
        self._opened: _Opened | None = opened
        self._own: set[int] = set()
        self._bound = LoopBound("lock")

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True) -> LockFile:
        """Open a lock file, or share this process's descriptor of it. Symbolic links are rejected."""
        with _process.guard:
            with contextlib.suppress(FileNotFoundError):
                opened = _process.files.get(_identity(os.lstat(path)))
                if opened is not None:
                    opened.users += 1
                    return cls(opened)
            flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
            fd = os.open(path, flags | (os.O_CREAT if create else 0), 0o600)
            identity = _identity(os.fstat(fd))
            opened = _process.files.get(identity)
            if opened is None:
                opened = _process.files[identity] = _Opened(identity, fd)
            else:
                opened.extra.append(fd)
            opened.users += 1
            return cls(opened)

    @property
    def fd(self) -> int:
        """The shared descriptor, for reading and writing. Do not close it."""
        return self._alive().fd

    def try_lock(self, offset: int) -> bool:
        """
        Lock the byte at *offset* without waiting.

        Raise OSError if the file system does not support locks.
        """
        with _process.guard:
            opened = self._alive()
            if offset in opened.held or not opened.lock(offset):
                return False
            self._own.add(offset)
            return True

    def is_locked(self, offset: int) -> bool:
        """Return True if the byte at *offset* is locked by this process or another."""
        with _process.guard:
            opened = self._alive()
            known = is_locked(opened.fd, offset, by_others=False) if opened.is_owner else None
            if known is None and offset not in opened.held:
                # POSIX locks can only be tested by trying to acquire them.
                known = not self.try_lock(offset)
                self.unlock(offset)
            return bool(known) or offset in opened.held

    def unlock(self, offset: int) -> None:
        """Unlock the byte at *offset* if this user has locked it."""
        with _process.guard:
            opened = self._alive()
            if offset not in self._own:
                return
            self._own.discard(offset)
            opened.unlock(offset)

    def close(self) -> None:
        """Release all locks of this user. The last user closes the file."""
        if self._bound.is_elsewhere or self._opened is None:
            return
        with _process.guard:
            opened = self._opened
            for offset in list(self._own):
                self.unlock(offset)
            self._opened = None
            opened.users -= 1
            if opened.users == 0:
                del _process.files[opened.identity]
                opened.close()

    def _alive(self) -> _Opened:
        self._bound.check_thread()
        if self._opened is None:
            raise ValueError("the lock file is closed")
        return self._opened


def watch(path: Path) -> int | None:
    """
    Return a descriptor of a file that another library locks, or None if that fails.

    The descriptor can be read and passed to `is_locked`.

    It stays open until the file is deleted, because closing it would release that library's locks in this process.
    """
    if not _HAS_OWN_LOCKS:
        return None
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with _process.guard:
        unwatch()
        with contextlib.suppress(OSError):
            wanted = _identity(os.lstat(path))
            for identity, fd in _process.watched:
                if identity == wanted:
                    return fd
            fd = os.open(path, flags)
            _process.watched.append((_identity(os.fstat(fd)), fd))
            return fd
    return None


def unwatch() -> None:
    """Close the descriptors of `watch` whose files were deleted."""
    with _process.guard:
        _process.watched = [one for one in _process.watched if _is_kept(*one)]


def _is_kept(identity: tuple[int, int], fd: int) -> bool:
    with contextlib.suppress(OSError):
        status = os.fstat(fd)
        # Otherwise the number belongs to another file, because the program closed all its descriptors.
        if _identity(status) == identity:
            if status.st_nlink:
                return True
            os.close(fd)
    return False


def is_locked(fd: int, offset: int, *, by_others: bool, length: int = 1, to_read: bool = False) -> bool | None:
    """
    Return True if a process has locked bytes from *offset*, None if unknown.

    With *by_others*, ignore the locks of this process.

    With *to_read*, ignore shared locks, which do not conflict with readers.
    """
    if sys.platform != "linux" or not _HAS_OWN_LOCKS:
        return None
    # A query for a descriptor's lock conflicts with all process locks, including this process's own.
    command = fcntl.F_GETLK if by_others else fcntl.F_OFD_GETLK
    try:
        wanted = fcntl.F_RDLCK if to_read else fcntl.F_WRLCK
        answer = fcntl.fcntl(fd, command, _LOCK.pack(wanted, os.SEEK_SET, offset, length, 0))
    except OSError:
        return None
    return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class DirectoryLocks:
    """Locks on names, such as conversation names, in the lock file of one session directory."""

    def __init__(self, directory: Path) -> None:
        try:
            self._file = LockFile.open(directory / FILE_NAME)
        except OSError as error:
            kind = StoreReadOnly if error.errno in _DENIED else StoreError
            raise kind(f"the locks of {directory} cannot be opened: {error.strerror}") from error
        self._directory = directory

    def claim(self, name: str) -> None:
        """
        Lock *name* until `release`, `close` or the end of the process.

        Raise StoreBusy if it is locked.
        """
        try:
            taken = self._file.try_lock(_offset(name))
        except OSError as error:
            raise StoreError(f"{self._directory} cannot be locked: {error.strerror}") from error
        if not taken:
            raise StoreBusy(f"another session uses this part of {self._directory}", waited=0.0)

    def is_claimed(self, name: str) -> bool:
        """Return True if *name* is locked by any process, including this one."""
        return self._file.is_locked(_offset(name))

    def release(self, name: str) -> None:
        """Unlock *name* if this object has locked it."""
        self._file.unlock(_offset(name))

    def close(self) -> None:
        """Unlock all names that were claimed here. Does nothing in a forked child."""
        self._file.close()


def _offset(name: str) -> int:
    """
    Return the byte offset that represents *name*: a 62-bit hash.

    Collisions are negligible, and every offset is valid.
    """
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, person=b"mama-locks").digest()
    return int.from_bytes(digest, "big") >> 2
