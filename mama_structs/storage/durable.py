"""Files and directories that appear under their name when they are whole, and outlast a loss of power from then on."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import Final, Self

from mama_structs.errors import InvalidArgument, StoreError
from mama_structs.storage.failures import DATABASE, from_os
from mama_structs.storage.locks import FILE_NAME as LOCKS
from mama_structs.storage.locks import LockFile
from mama_structs.storage.opening import MARK_FILE, make_directory, sync_directory

JOURNAL: Final = "journal"
"""The name of the database's directory in a session's."""

_TEMPORARY: Final = re.compile(r"\.mama-structs-(file|copy)-[0-9a-f]{16}\.tmp")
_ALIVE: Final = ".alive"


class DraftFile:
    """
    A file that is being written beside the place where it is to be; made by `open`.

    All calls block.

    Args:
        target: Where it is to be.
        path: Where it is written.
        lock: Held as long as its writer lives, so that nobody takes it for left behind.

    """

    def __init__(self, target: Path, path: Path, lock: LockFile) -> None:
        self._target = target
        self._path = path
        self._lock = lock

    @classmethod
    def open(cls, target: Path) -> Self:
        """
        Begin a file, which nobody but this user may read.

        Args:
            target: Where it is to be; a symbolic link is followed, and a file that is there is replaced at the end.

        Raises:
            StoreError: It cannot be written there, or something is there that is no file.

        """
        try:
            resolved = Path(os.path.realpath(target))
            refuse_kept(resolved)
            if resolved.exists() and not stat.S_ISREG(resolved.stat().st_mode):
                raise StoreError(f"{target} is no regular file", hint="choose another name")
            sweep(resolved.parent)
            path = temporary_name(resolved, "file")
            lock = LockFile.open(path)
            with contextlib.suppress(OSError):
                lock.try_lock(0)
        except InvalidArgument:
            raise
        except (OSError, ValueError) as error:
            raise unwritable(error, target) from error
        return cls(resolved, path, lock)

    def write(self, data: bytes) -> None:
        """
        Write at the end.

        Raises:
            StoreFull: There is no room.
            StoreError: It cannot be written for another reason.

        """
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._lock.fd, left) :]
        except OSError as error:
            raise unwritable(error, self._target) from error

    def publish(self) -> None:
        """
        Give the file its name; it is durable when this returns.

        Raises:
            StoreFull: There is no room.
            StoreError: It cannot be written for another reason.

        """
        try:
            os.fsync(self._lock.fd)
            self._path.replace(self._target)
            sync_directory(self._target.parent)
        except OSError as error:
            raise unwritable(error, self._target) from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove what was not published; again is no error."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._lock.close()


class DraftDirectory:
    """
    A directory that is being filled beside the place where it is to be; made by `make`.

    All calls block.

    Args:
        target: Where it is to be.
        path: Where it is filled.
        lock: See `DraftFile`.

    """

    def __init__(self, target: Path, path: Path, lock: LockFile) -> None:
        self.path = path
        self._target = target
        self._lock = lock

    @classmethod
    def make(cls, target: Path) -> Self:
        """
        Begin a directory (mode 0700), making what is missing above it.

        Args:
            target: Where it is to be: nothing, or an empty directory.

        Raises:
            InvalidArgument: Something is there.
            StoreError: It cannot be made there.

        """
        try:
            resolved = Path(os.path.realpath(target))
            refuse_kept(resolved)
            refuse_used(resolved, target)
            make_directory(resolved.parent)
            sweep(resolved.parent)
            path = temporary_name(resolved, "copy")
            path.mkdir(mode=0o700)
            try:
                lock = LockFile.open(path / _ALIVE)
                with contextlib.suppress(OSError):
                    lock.try_lock(0)
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise
        except InvalidArgument:
            raise
        except (OSError, ValueError) as error:
            raise unwritable(error, target) from error
        return cls(resolved, path, lock)

    def publish(self) -> None:
        """
        Give the directory its name; it and what is in it are durable when this returns.

        Raises:
            StoreError: It cannot be written, or something has come to be under its name; nothing is left.

        """
        try:
            sync_tree(self.path)
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                # What is not empty any more stays, and the renaming fails. Elsewhere than on POSIX none may be there.
                self._target.rmdir()
            self.path.rename(self._target)
            # Last: what a killed process leaves without the mark could never be told from what is under way.
            with contextlib.suppress(OSError):
                (self._target / _ALIVE).unlink()
            sync_directory(self._target)
            sync_directory(self._target.parent)
        except OSError as error:
            raise unwritable(error, self._target) from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove what was not published; again is no error."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def refuse_used(path: Path, target: Path) -> None:
    """
    Raise where a new directory cannot be.

    Args:
        path: The place.
        target: The same as it was asked for.

    Raises:
        InvalidArgument: Something is there that is no empty directory.

    """
    try:
        with os.scandir(path) as entries:
            is_used = next(entries, None) is not None
    except FileNotFoundError:
        return
    except NotADirectoryError:
        is_used = True
    if is_used:
        raise InvalidArgument(f"{target} exists and is no empty directory", hint="name one that does not exist yet")


def refuse_kept(path: Path) -> None:
    """
    Raise where a file would damage a session's directory.

    Args:
        path: Where it is to be, without symbolic links.

    Raises:
        StoreError: It would be in the directory of a database, or in place of the locks.

    """
    in_database = any((parent / MARK_FILE).exists() and (parent / DATABASE).exists() for parent in path.parents)
    if in_database or (path.name == LOCKS and (path.parent / JOURNAL / MARK_FILE).exists()):
        raise StoreError(f"{path} belongs to a session's own data", hint="choose another name")


def temporary_name(target: Path, kind: str) -> Path:
    """Return a name beside *target* that nothing has."""
    return target.parent / f".mama-structs-{kind}-{secrets.token_hex(8)}.tmp"


def sweep(directory: Path) -> None:
    """Remove what killed processes left in *directory*: nobody holds the lock on it any more."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):  # noqa: PTH208 - names are enough
            if _TEMPORARY.fullmatch(name):
                _sweep(directory / name)


def _sweep(path: Path) -> None:
    with contextlib.suppress(OSError):
        status = path.lstat()
        if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            return
        is_directory = stat.S_ISDIR(status.st_mode)
        lock = LockFile.open(path / _ALIVE if is_directory else path, create=False)
        try:
            if not lock.try_lock(0):
                return
            if is_directory:
                shutil.rmtree(path)
            else:
                path.unlink()
        finally:
            lock.close()


def sync_tree(directory: Path) -> None:
    """Make a directory and all that is in it durable."""
    for parent, _, names in os.walk(directory):
        for name in names:
            fd = os.open(os.path.join(parent, name), os.O_RDWR)  # noqa: PTH118 - os.walk gives texts
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_directory(Path(parent))


def unwritable(error: OSError | ValueError, target: Path) -> StoreError:
    """Return the error of ours for a place that cannot be written."""
    if isinstance(error, OSError):
        return from_os(error, target)
    return StoreError(f"the path cannot be used: {error}")
