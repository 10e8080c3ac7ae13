"""
Locks on names, held by processes and let go by the kernel when one dies.

Each name is one byte's place in a lock file, far beyond its end: a thousand locks cost one descriptor.
The file is opened once a process, counted, and a set guards what is held here.
Linux gives the locks to that opening, so that only its own end drops them.
POSIX gives them to the process, where closing *any* descriptor of the file drops them all, that of a program's own
copying too: such locks are used only where there are no others.
Where there are neither (Windows), names are only guarded within the process.
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

# Type, whence, start, length, process: how 64-bit systems lay the structure out.
_LOCK: Final = struct.Struct("hhqqi4x")
_HAS_OWN_LOCKS: Final = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK") and struct.calcsize("P") == 8  # noqa: PLR2004 - bytes


@attrs.define(eq=False)
class _Opened:
    """A lock file as this process has it open."""

    identity: tuple[int, int]
    fd: int
    users: int = 0
    held: set[int] = attrs.field(factory=set)
    # Whether locks belong to this opening and not to the process; never changes once one is held.
    is_owner: bool = _HAS_OWN_LOCKS
    # Descriptors that turned out to be of a file already open: closing one would drop every lock of the process on it.
    extra: list[int] = attrs.field(factory=list)

    def lock(self, offset: int) -> bool:
        """Take the place if nobody has it; OSError where the file system does not do locks."""
        try:
            self._set(offset, taken=True)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            if error.errno == errno.EINVAL and self.is_owner and not self.held:
                # A kernel that does not know these locks.
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
        """Start anew in a forked child: a copy of a descriptor would keep its parent's locks when that is dead."""
        for identity, fd in self.watched:
            with contextlib.suppress(OSError):
                if _identity(os.fstat(fd)) == identity:
                    os.close(fd)
        for opened in self.files.values():
            # A program that closed all it had open may have something else under the number.
            with contextlib.suppress(OSError):
                if _identity(os.fstat(opened.fd)) == opened.identity:
                    opened.close()
        self.__init__()  # type: ignore[misc]  # anew, in place: the module's functions hold this object


_process: Final = _Process()
if hasattr(os, "register_at_fork"):
    # With the guard held no file is half-way opened while the child is made: the child could not close it.
    os.register_at_fork(
        before=lambda: _process.guard.acquire(),  # noqa: PLW0108 - a child has another guard
        after_in_parent=lambda: _process.guard.release(),  # noqa: PLW0108 - as above
        after_in_child=_process.forget,
    )


@contextlib.contextmanager
def unforked() -> Iterator[None]:
    """Have forks wait: their children would wait for ever for a lock of another library that a thread holds here."""
    with _process.guard:
        yield


class LockFile:
    """One holder's use of a lock file; made by `open`."""

    def __init__(self, opened: _Opened) -> None:
        self._opened: _Opened | None = opened
        self._own: set[int] = set()
        self._bound = LoopBound("lock")

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True) -> LockFile:
        """Open a lock file (no symbolic link), or share the descriptor that this process has of it."""
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
        """The shared descriptor: to be read and written with it, never closed."""
        return self._alive().fd

    def try_lock(self, offset: int) -> bool:
        """Take the lock at *offset*, at once or not at all; OSError where the file system does not do locks."""
        with _process.guard:
            opened = self._alive()
            if offset in opened.held or not opened.lock(offset):
                return False
            self._own.add(offset)
            return True

    def is_locked(self, offset: int) -> bool:
        """Tell whether the lock at *offset* is taken, by this process or another."""
        with _process.guard:
            opened = self._alive()
            known = is_locked(opened.fd, offset, by_others=False) if opened.is_owner else None
            if known is None and offset not in opened.held:
                # Nobody tells but by whether it can be had.
                known = not self.try_lock(offset)
                self.unlock(offset)
            return bool(known) or offset in opened.held

    def unlock(self, offset: int) -> None:
        """Let go of the lock at *offset*, if this holder has it."""
        with _process.guard:
            opened = self._alive()
            if offset not in self._own:
                return
            self._own.discard(offset)
            opened.unlock(offset)

    def close(self) -> None:
        """Let go of everything that this holder has; the last holder closes the file."""
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
    Return a descriptor of a file that another library locks, to read it and to ask `is_locked`; None where neither is.

    It is kept as long as the file has a name: closing it would drop the locks that the library has in this process.
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
    """Close the descriptors of `watch` whose files are gone."""
    with _process.guard:
        _process.watched = [one for one in _process.watched if _is_kept(*one)]


def _is_kept(identity: tuple[int, int], fd: int) -> bool:
    with contextlib.suppress(OSError):
        status = os.fstat(fd)
        # Else a program that closed all it had open has something else under the number.
        if _identity(status) == identity:
            if status.st_nlink:
                return True
            os.close(fd)
    return False


def is_locked(fd: int, offset: int, *, by_others: bool, length: int = 1, to_read: bool = False) -> bool | None:
    """
    Tell whether any process holds a lock on bytes from *offset*, or one *by_others* than this; None: it is not known.

    Locks that only readers have do not count for who wants *to_read*.
    """
    if sys.platform != "linux" or not _HAS_OWN_LOCKS:
        return None
    # What belongs to an opening conflicts with all that belong to processes, this one included.
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
    """Locks on names, such as conversations, of one session directory, in which the lock file is."""

    def __init__(self, directory: Path) -> None:
        try:
            self._file = LockFile.open(directory / FILE_NAME)
        except OSError as error:
            kind = StoreReadOnly if error.errno in _DENIED else StoreError
            raise kind(f"the locks of {directory} cannot be opened: {error.strerror}") from error
        self._directory = directory

    def claim(self, name: str) -> None:
        """Take the lock on *name* until `release`, `close` or the end of the process; StoreBusy where it is taken."""
        try:
            taken = self._file.try_lock(_offset(name))
        except OSError as error:
            raise StoreError(f"{self._directory} cannot be locked: {error.strerror}") from error
        if not taken:
            raise StoreBusy(f"another session uses this part of {self._directory}", waited=0.0)

    def is_claimed(self, name: str) -> bool:
        """Tell whether anybody has the lock on *name*, this process included."""
        return self._file.is_locked(_offset(name))

    def release(self, name: str) -> None:
        """Let go of the lock on *name*; nothing happens if this holder does not have it."""
        self._file.unlock(_offset(name))

    def close(self) -> None:
        """Let go of all names that were claimed here; in a forked child nothing happens."""
        self._file.close()


def _offset(name: str) -> int:
    """Return the place of *name*: 62 bits of a hash, so that two names never meet and every place can be addressed."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, person=b"mama-locks").digest()
    return int.from_bytes(digest, "big") >> 2
