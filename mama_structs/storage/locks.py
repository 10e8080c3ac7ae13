"""
Locks on names, held by processes and let go by the kernel when one dies.

Each name is one byte's place in a lock file, far beyond its end: a thousand locks cost one descriptor.
POSIX gives such a lock to a process, not to a descriptor.
So it does not keep two holders in one process apart, and closing *any* descriptor of the file drops them all:
the file is opened once a process, counted, and a set guards what is held here.
Where there are no such locks (Windows), names are only guarded within the process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from hashlib import blake2b
from pathlib import Path
from typing import Final

import attrs

from mama_structs.errors import StoreBusy, StoreError, StoreReadOnly
from mama_structs.loops import LoopBound

if sys.platform != "win32":
    import fcntl

FILE_NAME: Final = "locks"
_TAKEN: Final = frozenset({errno.EACCES, errno.EAGAIN})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@attrs.define(eq=False)
class _Opened:
    """A lock file as this process has it open."""

    identity: tuple[int, int]
    fd: int
    users: int = 0
    held: set[int] = attrs.field(factory=set)
    # Descriptors that turned out to be of a file already open: closing one would drop every lock on it.
    extra: list[int] = attrs.field(factory=list)


class _Process:
    """The lock files that this process has open."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.files: dict[tuple[int, int], _Opened] = {}

    def forget(self) -> None:
        """Start anew in a forked child: it owns none of the locks, and the guard may be held by a thread it lacks."""
        self.__init__()  # type: ignore[misc]  # anew, in place: the module's functions hold this object


_process: Final = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forget)


class LockFile:
    """
    One holder's use of a lock file; make it with `open`.

    Args:
        opened: The file, counted.

    """

    def __init__(self, opened: _Opened) -> None:
        self._opened: _Opened | None = opened
        self._own: set[int] = set()
        self._bound = LoopBound("lock")

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True) -> LockFile:
        """
        Open a lock file, or share the descriptor that this process has of it.

        Args:
            path: The file; a symbolic link is refused.
            create: Whether it is made when it is missing.

        Raises:
            OSError: It cannot be opened.

        """
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
        """
        Take the lock at *offset*, at once or not at all.

        Raises:
            OSError: The file system does not do locks.
            WrongLoop: This is a forked child.

        """
        with _process.guard:
            opened = self._alive()
            if offset in opened.held:
                return False
            if sys.platform != "win32":
                try:
                    fcntl.lockf(opened.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
                except OSError as error:
                    if error.errno in _TAKEN:
                        return False
                    raise
            opened.held.add(offset)
            self._own.add(offset)
            return True

    def unlock(self, offset: int) -> None:
        """Let go of the lock at *offset*, if this holder has it."""
        with _process.guard:
            opened = self._alive()
            if offset not in self._own:
                return
            self._own.discard(offset)
            opened.held.discard(offset)
            if sys.platform != "win32":
                fcntl.lockf(opened.fd, fcntl.LOCK_UN, 1, offset)

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
                for fd in (opened.fd, *opened.extra):
                    os.close(fd)

    def _alive(self) -> _Opened:
        self._bound.check_thread()
        if self._opened is None:
            raise ValueError("the lock file is closed")
        return self._opened


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class DirectoryLocks:
    """
    Locks on names, such as conversations, of one session directory.

    Args:
        directory: The directory; the lock file is in it.

    Raises:
        StoreReadOnly: The lock file cannot be written.
        StoreError: It cannot be opened.

    """

    def __init__(self, directory: Path) -> None:
        try:
            self._file = LockFile.open(directory / FILE_NAME)
        except OSError as error:
            kind = StoreReadOnly if error.errno in _DENIED else StoreError
            raise kind(f"the locks of {directory} cannot be opened: {error.strerror}") from error
        self._directory = directory

    def claim(self, name: str) -> None:
        """
        Take the lock on *name* until `release`, `close` or the end of the process.

        Args:
            name: Any text.

        Raises:
            StoreBusy: Another holder in this process, or another process, has it.
            StoreError: The file system does not do locks.
            WrongLoop: This is a forked child.

        """
        try:
            taken = self._file.try_lock(_offset(name))
        except OSError as error:
            raise StoreError(f"{self._directory} cannot be locked: {error.strerror}") from error
        if not taken:
            raise StoreBusy(f"another session uses this part of {self._directory}", waited=0.0)

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
