"""
Named locks between processes. The kernel releases them when their process dies.

Each name is hashed to one byte far beyond the end of a lock file, so that a thousand locks need one descriptor.
A process opens the file once and counts its users; a set prevents double locking within the process.
Linux open-file-description locks belong to this descriptor, and only closing it releases them. POSIX locks belong to
the process, and closing *any* descriptor of the file releases them all, even one of a program that copies the file.
They are used only if the kernel has no open-file-description locks. Without either (Windows), names are locked within
the process only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
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

# Layout of `struct flock` on 64-bit systems: type, whence, start, length, process id.
FLOCK_STRUCT: Final = struct.Struct("hhqqi4x")
HAS_OFD_LOCKS: Final = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK") and struct.calcsize("P") == 8  # noqa: PLR2004 - bytes


@attrs.define(eq=False)
class _OpenLockFile:
    """A lock file that this process has open, with its locks."""

    identity: tuple[int, int]
    fd: int
    user_count: int = 0
    locked_offsets: set[int] = attrs.field(factory=set)
    # Number of users in this process per byte with a shared lock.
    shared_counts: dict[int, int] = attrs.field(factory=dict)
    # True if locks belong to this descriptor, False if they belong to the process. Does not change while locks exist.
    uses_ofd_locks: bool = HAS_OFD_LOCKS
    # More descriptors of the same file. They stay open, because closing one would release all POSIX locks on the file.
    extra_descriptors: list[int] = attrs.field(factory=list)

    def lock(self, offset: int) -> bool:
        """
        Lock a byte. Return False if it is locked.

        Raise OSError if the file system does not support locks.
        """
        if offset in self.locked_offsets or offset in self.shared_counts or not self._try_lock(offset):
            return False
        self.locked_offsets.add(offset)
        return True

    def lock_shared(self, offset: int) -> bool:
        """Add a shared lock of a byte. Return False if the byte is locked exclusively."""
        if offset in self.locked_offsets:
            return False
        if offset not in self.shared_counts and not self._try_lock(offset, is_shared=True):
            return False
        self.shared_counts[offset] = self.shared_counts.get(offset, 0) + 1
        return True

    def unlock(self, offset: int) -> None:
        self.locked_offsets.discard(offset)
        self._set_lock(offset, is_locked=False)

    def unlock_shared(self, offset: int) -> None:
        self.shared_counts[offset] -= 1
        if not self.shared_counts[offset]:
            del self.shared_counts[offset]
            self._set_lock(offset, is_locked=False)

    def _try_lock(self, offset: int, *, is_shared: bool = False) -> bool:
        try:
            self._set_lock(offset, is_locked=True, is_shared=is_shared)
        except OSError as error:
            if error.errno in LOCKED_ERRNOS:
                return False
            has_locks = self.locked_offsets or self.shared_counts
            if error.errno == errno.EINVAL and self.uses_ofd_locks and not has_locks:
                # The kernel does not support open-file-description locks, so use POSIX locks.
                self.uses_ofd_locks = False
                return self._try_lock(offset, is_shared=is_shared)
            raise
        return True

    def close(self) -> None:
        for fd in (self.fd, *self.extra_descriptors):
            os.close(fd)

    def _set_lock(self, offset: int, *, is_locked: bool, is_shared: bool = False) -> None:
        if sys.platform == "linux" and self.uses_ofd_locks:
            held = fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK
            kind = held if is_locked else fcntl.F_UNLCK
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, FLOCK_STRUCT.pack(kind, os.SEEK_SET, offset, 1, 0))
        elif sys.platform != "win32":
            held = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
            fcntl.lockf(self.fd, held | fcntl.LOCK_NB if is_locked else fcntl.LOCK_UN, 1, offset)


class _ProcessFiles:
    """All lock files that this process has open."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.files: dict[tuple[int, int], _OpenLockFile] = {}
        self.watched_files: list[tuple[tuple[int, int], int]] = []

    def reset_after_fork(self) -> None:
        """
        Reset the state in a forked child, and close the inherited descriptors.

        They would hold the parent's locks after the parent's death.
        """
        for identity, fd in self.watched_files:
            with contextlib.suppress(OSError):
                if _file_identity(os.fstat(fd)) == identity:
                    os.close(fd)
        for opened in self.files.values():
            # Compare the identity: if the program closed the descriptor, its number may belong to another file.
            with contextlib.suppress(OSError):
                if _file_identity(os.fstat(opened.fd)) == opened.identity:
                    opened.close()
        self.__init__()  # type: ignore[misc]  # in place, because the module's functions reference this object


_process_files: Final = _ProcessFiles()
if hasattr(os, "register_at_fork"):
    # Hold the guard during a fork. Otherwise a child could inherit a file that is not yet registered for closing.
    os.register_at_fork(
        before=lambda: _process_files.guard.acquire(),  # noqa: PLW0108 - a child has another guard
        after_in_parent=lambda: _process_files.guard.release(),  # noqa: PLW0108 - as above
        after_in_child=_process_files.reset_after_fork,
    )


@contextlib.contextmanager
def block_forks() -> Iterator[None]:
    """
    Block forks while the block runs.

    If a thread holds a lock of another library during a fork, the child waits forever for this lock.
    """
    with _process_files.guard:
        yield


class LockFile:
    """Lock file as used by one caller in this process. Create it with `open`."""

    def __init__(self, opened: _OpenLockFile) -> None:
        self._opened: _OpenLockFile | None = opened
        self._own_offsets: set[int] = set()
        # Number of shared locks of this user, by offset.
        self._own_shared_counts: Counter[int] = Counter()
        self._bound = LoopGuard("lock")

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True) -> LockFile:
        """Open a lock file, or share its descriptor if this process has opened it. Raise for a symbolic link."""
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
        """The shared descriptor, for reading and writing. Users must not close it."""
        return self._require_open().fd

    def try_lock(self, offset: int) -> bool:
        """
        Lock the byte at *offset* without waiting. Return False if it is locked.

        Raise OSError if the file system does not support locks.
        """
        with _process_files.guard:
            opened = self._require_open()
            if not opened.lock(offset):
                return False
            self._own_offsets.add(offset)
            return True

    def try_lock_shared(self, offset: int) -> bool:
        """
        Add a shared lock of the byte at *offset* without waiting. Return False if it is locked exclusively.

        Each call needs one `unlock_shared`. Raise OSError if the file system does not support locks.
        """
        with _process_files.guard:
            opened = self._require_open()
            if not opened.lock_shared(offset):
                return False
            self._own_shared_counts[offset] += 1
            return True

    def unlock_shared(self, offset: int) -> None:
        """Remove one shared lock of this user. Does nothing if it has no shared lock."""
        with _process_files.guard:
            opened = self._require_open()
            if self._own_shared_counts[offset]:
                self._own_shared_counts[offset] -= 1
                opened.unlock_shared(offset)

    def is_locked(self, offset: int) -> bool:
        """Return True if this process or another one has locked the byte at *offset*."""
        with _process_files.guard:
            opened = self._require_open()
            known = is_range_locked(opened.fd, offset, ignore_own=False) if opened.uses_ofd_locks else None
            if known is None and offset not in opened.locked_offsets:
                # The only way to test for a POSIX lock is to acquire it.
                known = not self.try_lock(offset)
                self.unlock(offset)
            return bool(known) or offset in opened.locked_offsets or offset in opened.shared_counts

    def unlock(self, offset: int) -> None:
        """Unlock the byte at *offset*. Does nothing if this user has not locked it."""
        with _process_files.guard:
            opened = self._require_open()
            if offset not in self._own_offsets:
                return
            self._own_offsets.discard(offset)
            opened.unlock(offset)

    def close(self) -> None:
        """Release all locks of this user. If it is the last user, close the file."""
        if self._bound.is_forked_child or self._opened is None:
            return
        with _process_files.guard:
            opened = self._opened
            for offset in list(self._own_offsets):
                self.unlock(offset)
            for offset in list(self._own_shared_counts.elements()):
                self.unlock_shared(offset)
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
    Return a descriptor of a file that another library locks, or None if the file cannot be opened.

    The descriptor can be read and passed to `is_range_locked`.

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
    """Close the descriptors of `watch_locks` whose files were deleted."""
    with _process_files.guard:
        _process_files.watched_files = [one for one in _process_files.watched_files if _is_watch_valid(*one)]


def _is_watch_valid(identity: tuple[int, int], fd: int) -> bool:
    with contextlib.suppress(OSError):
        status = os.fstat(fd)
        # If the program closed the descriptor, its number may belong to another file.
        if _file_identity(status) == identity:
            if status.st_nlink:
                return True
            os.close(fd)
    return False


def is_range_locked(
    fd: int, offset: int, *, ignore_own: bool, length: int = 1, ignore_shared: bool = False
) -> bool | None:
    """
    Return True if a process has locked any of *length* bytes from *offset*, None if unknown.

    With *ignore_own*, ignore the locks of this process.

    With *ignore_shared*, ignore shared locks, which do not conflict with readers.
    """
    if sys.platform != "linux" or not HAS_OFD_LOCKS:
        return None
    # F_OFD_GETLK also reports the POSIX locks of this process, F_GETLK does not.
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
    """Locks on names, such as the names of conversations, in the lock file of a session directory."""

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

        Raise StoreBusy if *name* is locked.
        """
        self._claim(name, self._file.try_lock)

    def is_claimed(self, name: str) -> bool:
        """Return True if this process or another one has locked *name*."""
        return self._file.is_locked(_offset_of_name(name))

    def claim_shared(self, name: str) -> None:
        """
        Add a shared lock of *name*, which other users may share. Each call needs one `release_shared`.

        Raise StoreBusy if *name* is locked exclusively.
        """
        self._claim(name, self._file.try_lock_shared)

    def release(self, name: str) -> None:
        """Unlock *name*. Does nothing if this object has not locked it."""
        self._file.unlock(_offset_of_name(name))

    def release_shared(self, name: str) -> None:
        """Remove one shared lock of *name*. Does nothing if this object has none."""
        self._file.unlock_shared(_offset_of_name(name))

    def close(self) -> None:
        """Unlock all names that this object has locked. Does nothing in a forked child."""
        self._file.close()

    def _claim(self, name: str, try_lock: Callable[[int], bool]) -> None:
        try:
            taken = try_lock(_offset_of_name(name))
        except OSError as error:
            raise StoreError(f"{self._directory} cannot be locked: {error.strerror}") from error
        if not taken:
            raise StoreBusy(f"another session uses this part of {self._directory}", waited=0.0)


def _offset_of_name(name: str) -> int:
    """
    Return the byte offset for *name*: a 62-bit hash.

    Collisions are too improbable to matter, and every offset is valid.
    """
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, person=b"mama-locks").digest()
    return int.from_bytes(digest, "big") >> 2
