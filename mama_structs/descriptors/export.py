"""
Write text to a file below a root, so that the file is the old one or the new one and never anything between.

The new content is written to a temporary file in the same directory, flushed, and given the file's name.
That holds for append and insert too: what was there is copied first.
Exports to one directory take turns, those of other processes included, or one of two appends at once would be lost.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import attrs

from mama_structs.descriptors.confined import (
    Asked,
    Place,
    close_quietly,
    not_usable,
    open_directory,
    open_file,
    read_path,
    resolve_below,
    status_of,
    sync_directory,
)
from mama_structs.errors import DescriptorError, ExportError, ExportExists, InvalidRange

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows, where `open_directory` refuses before a lock is needed
    fcntl = None  # type: ignore[assignment]  # the name stands for a module, or for its absence

ExportMode = Literal["write", "append", "insert"]
_MODES: Final = ("write", "append", "insert")

_CHUNK: Final = 2**20
# How often a file that others change at the same time is tried.
_ATTEMPTS: Final = 10
# Seconds to wait for other exports to the same directory.
_PATIENCE: Final = 30.0
_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.05

_TEMPORARY: Final = re.compile(r"\.mama-structs-[0-9a-f]{16}\.tmp")
# Seconds after which a temporary file is taken for left behind, and how many names of a directory are looked at.
_STALE: Final = 3600.0
_LOOKED_AT: Final = 1000

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK})
_PERMISSIONS: Final = 0o777
_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o666  # less the umask
# Larger numbers are not repeated in messages: Python refuses to write those of thousands of digits.
_LONG_NUMBER: Final = 10**18


@attrs.frozen(kw_only=True)
class FileResult:
    """
    What an export did.

    Args:
        handle: What was written.
        path: The file, relative to the root, with slashes; symlinks followed.
        absolute_path: The same from the top.
        mode: ``"write"``, ``"append"`` or ``"insert"``.
        chars_written: Characters that were put into the file, added line breaks included.
        bytes_written: The same in bytes; what was there before is not counted.
        size: Bytes of the file now.
        lines: Lines of the file now; what follows the last line break counts, if there is anything.
        created: Whether there was no such file before.
        insert_at: The line that the text begins at, for ``"insert"``.
        line_breaks_added: Line breaks that were put beside the text to make it whole lines, for ``"insert"``.

    """

    handle: str
    path: str
    absolute_path: str
    mode: ExportMode
    chars_written: int
    bytes_written: int
    size: int
    lines: int
    created: bool
    insert_at: int | None = None
    line_breaks_added: int = 0


@attrs.frozen(kw_only=True)
class _Order:
    """What is to be written, and under which conditions."""

    asked: Asked
    text: bytes
    chars: int
    mode: ExportMode
    insert_at: int | None
    create: bool
    exist_ok: bool
    parents: bool

    def refuse_absent(self) -> None:
        """Raise if the order cannot be carried out where there is no file."""
        if not self.create:
            hint = "create=True makes it"
            raise self.asked.missing("does not exist, and create is False", hint=hint)
        if self.insert_at not in (None, 1):
            raise self.out_of_range(lines=0)

    def refuse_existing(self) -> None:
        """Raise if the order is for a new file only."""
        if not self.exist_ok:
            message, hint = f"{self.asked.shown} exists, and exist_ok is False", "choose another name, or exist_ok=True"
            raise ExportExists(message, path=self.asked.path, handle=self.asked.handle, hint=hint)

    def out_of_range(self, *, lines: int) -> InvalidRange:
        """Make the error for a line that the file does not have."""
        wanted = self.insert_at or 0
        shown = str(wanted) if abs(wanted) < _LONG_NUMBER else "a number of more than 18 digits"
        message = f"insert_at must be 1 to {lines + 1} for {self.asked.shown}, which has {lines} lines, got {shown}"
        return InvalidRange(message, valid=(1, lines + 1), handle=self.asked.handle)


@attrs.frozen
class _Old:
    """The file that is there: an open descriptor, and what the file was when it was opened."""

    descriptor: int
    status: os.stat_result

    @property
    def size(self) -> int:
        return self.status.st_size

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """Read the bytes from *start* up to *end*."""
        while start < end:
            chunk = os.pread(self.descriptor, min(_CHUNK, end - start), start)
            if not chunk:
                raise _Changed
            yield chunk
            start += len(chunk)


@attrs.frozen
class _Splice:
    """
    The new content: so many old bytes, the piece, and the old bytes that are left.

    Args:
        keep: Old bytes before the piece.
        before: A line break to put before the text, or nothing.
        after: A line break to put behind it, or nothing.

    """

    keep: int
    before: bytes = b""
    after: bytes = b""


class _Changed(Exception):
    """Somebody else changed the file since it was opened; nothing was written, and it can be tried again."""


@attrs.define(eq=False)
class _Draft:
    """The temporary file, and what was written to it."""

    directory: int
    name: str = attrs.field(factory=lambda: f".mama-structs-{secrets.token_hex(8)}.tmp")
    descriptor: int = -1
    size: int = 0
    line_breaks: int = 0
    last: bytes = b""

    @property
    def lines(self) -> int:
        return self.line_breaks + (self.last not in (b"", b"\n"))

    def open(self, *, private: bool) -> None:
        """
        Make the file.

        Args:
            private: True where the old file's permissions are set at the end, and nobody may read it before;
                a new file has those that the umask gives, which only the kernel can read without a race.

        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self.descriptor = open_file(self.name, self.directory, flags=flags, mode=_PRIVATE if private else _PUBLIC)

    def write(self, data: bytes) -> None:
        """Write all of it, in as many steps as the system wants."""
        left = memoryview(data)
        while left:
            left = left[os.write(self.descriptor, left[:_CHUNK]) :]
        self.size += len(data)
        self.line_breaks += data.count(b"\n")
        self.last = data[-1:] or self.last

    def close(self) -> None:
        """Flush and close; only now is it known that there was room for everything."""
        os.fsync(self.descriptor)
        descriptor, self.descriptor = self.descriptor, -1
        os.close(descriptor)

    def discard(self) -> None:
        """Remove what is left of it."""
        if self.descriptor >= 0:
            close_quietly(self.descriptor)
        self.unlink()

    def unlink(self) -> None:
        """Remove its name, which it may not have any more."""
        with contextlib.suppress(OSError):
            os.unlink(self.name, dir_fd=self.directory)


def export(
    text: str,
    path: str | os.PathLike[str],
    *,
    root: Path,
    handle: str,
    mode: ExportMode = "write",
    insert_at: int | None = None,
    create: bool = True,
    exist_ok: bool = True,
    parents: bool = False,
    kept: Path | None = None,
) -> FileResult:
    r"""
    Write text to a file below a root: UTF-8, line breaks as they are, all or nothing.

    It blocks, and may wait for other exports: from a loop it is run in a thread of its own.
    Symlinks that stay below the root are followed.
    A file that exists keeps its permissions, and is not replaced if it may not be written.

    Args:
        text: What to write.
        path: Relative to the root, or absolute and below it.
        root: The directory that nothing is written outside of.
        handle: Where the text comes from, for the result and for errors.
        mode: ``"write"`` replaces the content, ``"append"`` adds at its end and nothing else,
            ``"insert"`` puts whole lines before line *insert_at*: a line break (``\r\n`` where the file's first
            line ends so) is added behind the text if it has none and a line follows, and before it if it comes
            after a last line without one. An empty text inserts nothing.
        insert_at: A line, counted from 1; one more than there are lines for the end.
        create: Whether the file may be new.
        exist_ok: Whether it may exist.
        parents: Whether missing directories are made; they stay if the export fails.
        kept: A directory in which nothing is ever written, wherever the root is; it need not exist.

    Raises:
        InvalidParameter: A parameter, or the form of the path, breaks its rule.
        InvalidRange: The file has no line *insert_at*.
        ExportExists: The file exists, and *exist_ok* is False.
        ExportMissing: It does not exist and *create* is False, or its directory does not and *parents* is False.
        PathDenied: The path leads out of the root, into *kept*, or to something that is no regular file.
        ExportDenied: The operating system does not allow it.
        DiskFull: There is no room.
        ExportError: Anything else that went wrong; as with all others, the file is as it was.

    """
    order = _read_order(
        text,
        read_path(path, handle=handle),
        mode=mode,
        insert_at=insert_at,
        create=create,
        exist_ok=exist_ok,
        parents=parents,
    )
    try:
        return _carry_out(order, resolve_below(order.asked, root, kept=kept))
    except DescriptorError:
        raise  # some of them are OSErrors themselves
    except OSError as error:
        raise order.asked.failed(error) from error


def _read_order(
    text: object,
    asked: Asked,
    *,
    mode: ExportMode,
    insert_at: object,
    create: object,
    exist_ok: object,
    parents: object,
) -> _Order:
    if not isinstance(text, str):
        raise asked.invalid(f"must be text, got {type(text).__name__}", parameter="text")
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        message = f"cannot be written as UTF-8: character {error.start + 1} is a lone surrogate"
        # The cause would show the text.
        raise asked.invalid(message, parameter="text") from None
    if mode not in _MODES:
        raise asked.invalid(f"must be one of {', '.join(_MODES)}, got {mode!r:.80}", parameter="mode")
    flags = {"create": create, "exist_ok": exist_ok, "parents": parents}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise asked.invalid(f"must be True or False, got {flag!r:.80}", parameter=name)
    if insert_at is not None and (not isinstance(insert_at, int) or isinstance(insert_at, bool)):
        raise asked.invalid(f"must be a line number, got {insert_at!r:.80}", parameter="insert_at")
    if mode == "insert" and insert_at is None:
        raise asked.invalid("is needed with mode insert", parameter="insert_at", hint="give a line, from 1")
    if mode != "insert" and insert_at is not None:
        hint = "leave it out, or use mode insert"
        raise asked.invalid(f"is only for mode insert, not {mode}", parameter="insert_at", hint=hint)
    return _Order(
        asked=asked,
        text=data,
        chars=len(text),
        mode=mode,
        insert_at=insert_at,
        **{k: bool(v) for k, v in flags.items()},
    )


def _carry_out(order: _Order, place: Place) -> FileResult:
    if _TEMPORARY.fullmatch(place.name):
        raise order.asked.denied("has a name that is kept for temporary files", hint="choose another name")
    directory = open_directory(place, before_making=order.refuse_absent if order.parents else None)
    try:
        with _turn(directory, order.asked) as is_alone:
            if is_alone:
                _sweep(directory)
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(_Changed):
                    return _attempt(order, place, directory)
        message = f"{order.asked.shown} was not written: others keep changing it"
        raise ExportError(message, path=order.asked.path, handle=order.asked.handle, hint="try again later")
    finally:
        close_quietly(directory)


def _attempt(order: _Order, place: Place, directory: int) -> FileResult:
    """Carry out the order once; raise `_Changed` where somebody else was faster."""
    with contextlib.ExitStack() as stack:
        old = _open_old(order, place, directory)
        if old is None:
            order.refuse_absent()
        else:
            stack.callback(close_quietly, old.descriptor)
        splice = _splice(order, old)
        draft = _Draft(directory)
        stack.callback(draft.discard)
        try:
            draft.open(private=old is not None)
        except FileExistsError as error:
            draft.name = ""  # it is not ours to discard
            raise _Changed from error
        _fill(draft, order, old, splice)
        _publish(draft, order, place, old)
        return FileResult(
            handle=order.asked.handle,
            path=place.relative,
            absolute_path=place.absolute,
            mode=order.mode,
            chars_written=len(splice.before) + order.chars + len(splice.after),
            bytes_written=len(splice.before) + len(order.text) + len(splice.after),
            size=draft.size,
            lines=draft.lines,
            created=old is None,
            insert_at=order.insert_at,
            line_breaks_added=bool(splice.before) + bool(splice.after),
        )


def _open_old(order: _Order, place: Place, directory: int) -> _Old | None:
    """
    Open the file that is there, or return None.

    It is opened for writing although nothing is written to it: a file that may not be written is not replaced.
    """
    found = status_of(place.name, directory)
    if found is None:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise not_usable(place, len(place.directories), found)
    order.refuse_existing()
    try:
        descriptor = open_file(place.name, directory, flags=os.O_WRONLY if order.mode == "write" else os.O_RDWR)
    except FileNotFoundError as error:
        raise _Changed from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise not_usable(place, len(place.directories), status)
    except BaseException:
        close_quietly(descriptor)
        raise
    return _Old(descriptor, status)


def _splice(order: _Order, old: _Old | None) -> _Splice:
    """Say where the text goes and which line breaks it needs."""
    if old is None or order.mode == "write":
        return _Splice(0)
    if order.mode == "append":
        return _Splice(old.size)
    return _inserted(order, old)


def _inserted(order: _Order, old: _Old) -> _Splice:
    wanted = (order.insert_at or 0) - 1  # line breaks before the text
    seen = position = 0
    keep = 0 if wanted == 0 else None
    line_break, last = b"\n", b""
    for chunk in old.chunks(0, old.size):
        found = chunk.count(b"\n")
        if not seen and found:
            at = chunk.index(b"\n")
            if (chunk[at - 1 : at] if at else last) == b"\r":
                line_break = b"\r\n"
        if keep is None and 0 < wanted - seen <= found:
            keep = position + _after_line_break(chunk, wanted - seen)
        seen += found
        position += len(chunk)
        last = chunk[-1:]
    lines = seen + (last not in (b"", b"\n"))
    if not 0 <= wanted <= lines:
        raise order.out_of_range(lines=lines)
    if keep is None:  # at the end, behind a last line without a line break
        return _Splice(old.size, before=line_break if order.text else b"")
    needs_one = order.text and not order.text.endswith(b"\n") and keep < old.size
    return _Splice(keep, after=line_break if needs_one else b"")


def _after_line_break(chunk: bytes, number: int) -> int:
    """Find the position behind the *number*-th line break by halving: linear, and without a step for each line."""
    low, high = 0, len(chunk)
    while high - low > 1:
        middle = (low + high) // 2
        found = chunk.count(b"\n", low, middle)
        if found >= number:
            high = middle
        else:
            number -= found
            low = middle
    return high


def _fill(draft: _Draft, order: _Order, old: _Old | None, splice: _Splice) -> None:
    if old is not None and order.mode != "write":
        for chunk in old.chunks(0, splice.keep):
            draft.write(chunk)
    draft.write(splice.before)
    draft.write(order.text)
    draft.write(splice.after)
    if old is not None and order.mode != "write":
        for chunk in old.chunks(splice.keep, old.size):
            draft.write(chunk)
    if old is not None:
        mine = os.fstat(draft.descriptor)
        if (mine.st_uid, mine.st_gid) != (old.status.st_uid, old.status.st_gid):
            # Only a superuser may give files away; for all others the new file is their own.
            with contextlib.suppress(OSError):
                os.fchown(draft.descriptor, old.status.st_uid, old.status.st_gid)
        os.fchmod(draft.descriptor, stat.S_IMODE(old.status.st_mode) & _PERMISSIONS)
    draft.close()


def _publish(draft: _Draft, order: _Order, place: Place, old: _Old | None) -> None:
    """Give the temporary file its name; up to here nothing has changed."""
    if old is None and (not order.exist_ok or order.mode != "write"):
        _link(draft, order, place)
    else:
        if old is not None and order.mode != "write":
            _refuse_changed(old, status_of(place.name, draft.directory))
        _rename(draft, place)
    sync_directory(draft.directory)


def _link(draft: _Draft, order: _Order, place: Place) -> None:
    """Publish a new file without ever replacing one that came there in the meantime."""
    try:
        os.link(draft.name, place.name, src_dir_fd=draft.directory, dst_dir_fd=draft.directory, follow_symlinks=False)
    except FileExistsError as error:
        if order.exist_ok:
            raise _Changed from error
        order.refuse_existing()
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # This file system has no hard links (FAT, some network ones): look again, which leaves a moment.
        if status_of(place.name, draft.directory) is not None:
            raise _Changed from error
        _rename(draft, place)
    else:
        draft.unlink()


def _rename(draft: _Draft, place: Place) -> None:
    os.rename(draft.name, place.name, src_dir_fd=draft.directory, dst_dir_fd=draft.directory)


def _refuse_changed(old: _Old, now: os.stat_result | None) -> None:
    """Raise if what was copied is not what is there: a program that does not take turns wrote to it."""
    if now is None or _version(now) != _version(old.status):
        raise _Changed


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _turn(directory: int, asked: Asked) -> Iterator[bool]:
    """Wait for other exports to this directory; tell whether it is now certain that there are none."""
    if not _lock(directory, asked):
        yield False
        return
    try:
        yield True
    finally:
        # Not left to the closing: a child forked meanwhile has the descriptor too.
        with contextlib.suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_UN)


def _lock(directory: int, asked: Asked) -> bool:
    give_up, pause = time.monotonic() + _PATIENCE, _PAUSE
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > give_up:
                message = f"{asked.shown} was not written: its directory was in use for {_PATIENCE:g} s"
                hint = "another export is under way there; try again later"
                raise ExportError(message, path=asked.path, handle=asked.handle, hint=hint) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        except OSError:
            return False  # a file system without locks
        else:
            return True


def _sweep(directory: int) -> None:
    """
    Remove temporary files that killed processes left behind long ago.

    Safe while this export has its turn: whoever would still write to one has not.
    """
    before = time.time() - _STALE
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in itertools.islice(entries, _LOOKED_AT):
            if not _TEMPORARY.fullmatch(entry.name):
                continue
            status = status_of(entry.name, directory)
            if status is None or not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                continue
            if status.st_mtime < before:
                os.unlink(entry.name, dir_fd=directory)
