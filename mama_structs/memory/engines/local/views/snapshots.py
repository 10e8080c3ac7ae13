"""Snapshot files with the state of the views (DESIGN section 6, "The embedded engine")."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import logging
import math
import os
import re
import stat
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import InvalidArgument
from mama_structs.storage.files import NewFile, sync_directory
from mama_structs.storage.locks import LockFile

FORMAT: Final = 1
MANIFEST: Final = "manifest"
PREVIOUS: Final = "manifest-before"
LOCK: Final = "lock"

_ALIGNMENT: Final = 64
_CHUNK: Final = 2**20
_HEADER: Final = b"mama-structs view 1\n".ljust(_ALIGNMENT, b"\0")
_LARGEST_MANIFEST: Final = 2**24
# Exclusive upper bound of change numbers in journal keys.
_MOST_CHANGES: Final = 16**12
_TRIES: Final = 20
_PART: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
_FILE: Final = re.compile(r"[a-z][a-z0-9_]{0,30}-[0-9a-f]{32}\.view")
_TEMPORARY: Final = re.compile(r"manifest-[0-9a-f]{32}\.tmp")
# NumPy kinds that are plain bytes: booleans, integers and floats. Others could contain pickled objects.
_KINDS: Final = "biuf"
# Exceptions raised when damaged, foreign or hostile files are parsed.
_DAMAGED: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError)
# Rows of a segment copied at once.
_COPIED: Final = 1024
# Number of segments verified concurrently.
_READERS: Final = 2

_log: Final = logging.getLogger(__name__)


class ViewLost(Exception):
    """
    Raised if a snapshot file changed after it was loaded.

    Views loaded from it must be discarded.
    """


_UNREADABLE: Final = (OSError, ViewLost, *_DAMAGED)


@attrs.frozen
class Stored:
    """Name, size and hash of a file, as listed in the manifest."""

    name: str
    size: int
    sha256: str


class FileRows:
    """
    Rows of a verified file, read on demand through the page cache of the operating system.

    Rows are read, not memory-mapped, because truncating a mapped file crashes the process. If the file changed in
    any way, its hash is verified again before rows are returned.
    """

    def __init__(self, directory: Path, stored: Stored, *, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.stored: Stored = stored
        self.dtype: np.dtype[Any] = dtype
        self.shape: tuple[int, ...] = shape
        self._width = dtype.itemsize * math.prod(shape[1:])
        with _opened_file(directory / stored.name) as file:
            self._file = os.dup(file.fileno())
        # Do not close at exit: a thread that builds a graph may still read.
        weakref.finalize(self, os.close, self._file).atexit = False
        self._seen = self._looked_at()

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the given rows, in their order."""
        # A search reads hundreds of rows. This is the fastest way without a memory map.
        file, width, read = self._file, self._width, os.pread
        whole = b"".join([read(file, width, place) for place in (len(_HEADER) + rows * width).tolist()])
        if len(whole) != len(rows) * width:
            raise ViewLost("a file of vectors was cut")
        self._check()
        return np.ndarray((len(rows), *self.shape[1:]), self.dtype, whole)

    def slice(self, first: int, stop: int) -> NDArray[Any]:
        """Return the rows from *first* to *stop*."""
        taken = np.empty((stop - first, *self.shape[1:]), self.dtype)
        self._read(_bytes(taken), len(_HEADER) + first * self._width)
        self._check()
        return taken

    def _read(self, room: memoryview, place: int) -> None:
        done = 0
        while done < len(room):
            count = os.preadv(self._file, [room[done:]], place + done)
            if not count:
                raise ViewLost("a file of vectors was cut")
            done += count

    def _check(self) -> None:
        if self._state() != self._seen:
            self._seen = self._looked_at()

    def _looked_at(self) -> tuple[int, ...]:
        """Verify the hash of the file, and return its state (size and times)."""
        before, digest, place = self._state(), hashlib.sha256(), 0
        room = memoryview(bytearray(_CHUNK))
        while count := os.preadv(self._file, [room], place):
            digest.update(room[:count])
            place += count
        if place != self.stored.size or digest.hexdigest() != self.stored.sha256 or before != self._state():
            raise ViewLost("a vector file does not match its checksum")
        return before

    def _state(self) -> tuple[int, ...]:
        return _state(os.fstat(self._file))


def _state(found: os.stat_result) -> tuple[int, ...]:
    # The change time (ctime) of a file cannot be set by a program that modifies it.
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


@attrs.frozen(eq=False)
class StoredArray:
    """A large immutable array in a separate file, which later generations reuse."""

    blocks: tuple[NDArray[Any] | FileRows, ...]
    stored: Stored | None = None

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def pieces(self, most: int) -> Iterator[NDArray[Any]]:
        """Yield the rows in pieces. Pieces from files have at most *most* rows."""
        for block in self.blocks:
            if isinstance(block, FileRows):
                yield from (block.slice(at, min(at + most, len(block))) for at in range(0, len(block), most))
            else:
                yield np.ascontiguousarray(block)


@attrs.frozen(eq=False)
class StoredFile:
    """A file written by another library, not verified yet."""

    path: Path
    stored: Stored

    def state(self) -> tuple[int, ...] | None:
        """Return a value that changes whenever the file changes, or None if it does not exist."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, *_state(found)

    def is_whole(self) -> bool:
        """
        Verify the hash of the file (about 0.6 s per GB).

        Return True if it matches. Thread-safe.
        """
        try:
            with _opened_file(self.path) as file:
                return _is_as_written(file, self.stored.size, self.stored.sha256)
        except _UNREADABLE:
            return False


@attrs.frozen(eq=False)
class Part:
    """The state of one view, to be written to a snapshot."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = attrs.field(factory=dict)
    segments: Sequence[StoredArray] = ()
    files: Mapping[str, Callable[[Path], bool] | StoredFile] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class LoadedPart:
    """
    The state of one view, loaded from a snapshot.

    Arrays are read-only copies, segments stay in files.
    """

    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    segments: tuple[StoredArray, ...]
    files: dict[str, StoredFile]


@attrs.frozen(eq=False)
class Generation:
    """The state of all views at one change of the journal."""

    change: int
    parts: dict[str, LoadedPart]
    damaged: list[str]


class SnapshotStore:
    """Stores the newest generation, and the previous one, in a folder."""

    def __init__(self, directory: Path, *, identity: str) -> None:
        self._directory = directory
        self._identity = identity

    def write(self, change: int, parts: Mapping[str, Part], *, last: int | None = None) -> Generation | None:
        """
        Write a generation, durably, as the newest one.

        Args:
            change: The change number of the views.
            parts: The state of each view.
            last: The last change of the journal. Generations with a later change are ignored.

        Returns:
            The generation with the given arrays, or None if it was not written: writing failed, another process is
            writing, or a newer generation exists.

        """
        _check(parts)
        try:
            make_folder(self._directory)
            with self._alone() as alone:
                return self._write(change, parts, last) if alone else None
        except (OSError, RuntimeError, ViewLost) as error:
            # Messages of the operating system or another library may contain paths, but no user content.
            _log.warning("no snapshot at change %d: %s: %s", change, type(error).__name__, error)
            return None

    def load(self, *, at_most: int | None = None) -> Generation | None:
        """
        Return the newest readable generation without its damaged parts, or None.

        Args:
            at_most: The highest acceptable change number.

        """
        seen: bytes | None = None
        generation = None
        for _ in range(_TRIES):
            manifest, text = self._newest(at_most)
            # Another process may have deleted files of this generation while they were opened, so try again.
            if generation is not None and text == seen:
                break
            if manifest is None:
                return None
            generation, seen = self._read(manifest), text
            if not generation.damaged:
                break
        if generation is not None and generation.damaged:
            _log.warning(
                "of the snapshot at change %d %s cannot be used", generation.change, ", ".join(generation.damaged)
            )
        return generation

    def last(self) -> int:
        """
        Return the highest change number of any generation, or 0.

        The journal may not have this change.
        """
        changes = [0]
        for name in (MANIFEST, PREVIOUS):
            with contextlib.suppress(*_UNREADABLE):
                manifest = _manifest(_text(self._directory / name))
                changes += [manifest["change"]] if manifest["identity"] == self._identity else []
        return max(changes)

    def clear(self, *, before: int | None = None) -> bool:
        """
        Delete all generations. Return False if that was not possible.

        With *before*, generations of this history with this change number or a later one are kept.
        """
        try:
            if not self._directory.is_dir():
                return True
            with self._alone() as alone:
                if alone:
                    for name in (MANIFEST, PREVIOUS):
                        if before is None or not self._is_of(name, before):
                            (self._directory / name).unlink(missing_ok=True)
                    self._sweep(set() if before is None else self._named())
                return alone
        except OSError as error:
            _log.warning("snapshots cannot be deleted: %s", error)
            return False

    def _is_of(self, name: str, change: int) -> bool:
        """Return True if a manifest has this history and at least this change number."""
        with contextlib.suppress(*_UNREADABLE):
            manifest = _manifest(_text(self._directory / name))
            return bool(manifest["identity"] == self._identity and manifest["change"] >= change)
        return False

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        lock = LockFile.open(self._directory / LOCK)
        try:
            yield lock.try_lock(0)
        finally:
            lock.close()

    def _newest(self, at_most: int | None) -> tuple[dict[str, Any] | None, bytes | None]:
        for name in (MANIFEST, PREVIOUS):
            with contextlib.suppress(*_UNREADABLE):
                text = _text(self._directory / name)
                manifest = _manifest(text)
                if manifest["identity"] == self._identity and (at_most is None or manifest["change"] <= at_most):
                    return manifest, text
        return None, None

    def _read(self, manifest: dict[str, Any]) -> Generation:
        generation = Generation(manifest["change"], {}, [])
        for name, entry in manifest["parts"].items():
            try:
                generation.parts[name] = _opened(self._directory, entry)
            except _UNREADABLE:
                generation.damaged.append(name)
        return generation

    def _write(self, change: int, parts: Mapping[str, Part], last: int | None) -> Generation | None:
        newest, text = self._newest(last)
        if newest is not None and newest["change"] > change:
            return None
        try:
            entries = {name: self._write_part(name, part) for name, part in parts.items()}
            manifest = {"format": FORMAT, "identity": self._identity, "change": change, "parts": entries}
            body = json.dumps(manifest, separators=(",", ":")).encode()
            generation = Generation(
                change, {name: _written(self._directory, entries[name], part) for name, part in parts.items()}, []
            )
            sync_directory(self._directory)
            if text is not None:
                self._replace(PREVIOUS, text)
            self._replace(MANIFEST, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except BaseException:
            # Ctrl-C may arrive right after the rename, so let the manifests decide which files are in use.
            with contextlib.suppress(OSError):
                self._sweep(self._named())
            raise
        # The new generation is durable from here on, so failures of the clean-up are ignored.
        with contextlib.suppress(OSError):
            sync_directory(self._directory)
            self._sweep(_files(entries) | (set() if newest is None else _files(newest["parts"])))
        return generation

    def _write_part(self, name: str, part: Part) -> dict[str, Any]:
        meta = json.dumps(dict(part.meta), separators=(",", ":")).encode("utf-8", "surrogatepass")
        arrays: dict[str, Any] = {}
        pieces: list[bytes | memoryview] = []
        place = len(_HEADER)
        for key, value in part.arrays.items():
            array = np.ascontiguousarray(value)
            arrays[key] = {"dtype": array.dtype.str, "shape": list(value.shape), "offset": place}
            padding = -array.nbytes % _ALIGNMENT
            pieces += [_bytes(array), bytes(padding)]
            place += array.nbytes + padding
        entry: dict[str, Any] = {
            "file": attrs.asdict(self._write_file(name, [*pieces, meta])),
            "meta": [place, len(meta)],
            "arrays": arrays,
        }
        entry["segments"] = [self._write_segment(name, segment) for segment in part.segments]
        entry["files"] = {}
        for key, file in part.files.items():
            stored = self._kept(file.stored) if isinstance(file, StoredFile) else self._write_other(name, file)
            if stored is not None:
                entry["files"][key] = attrs.asdict(stored)
        return entry

    def _write_segment(self, name: str, segment: StoredArray) -> dict[str, Any]:
        stored = None if segment.stored is None else self._kept(segment.stored)
        if stored is None:
            stored = self._write_file(name, map(_bytes, segment.pieces(_COPIED)))
        first = segment.blocks[0]
        return {
            "file": attrs.asdict(stored),
            "dtype": first.dtype.str,
            "shape": [len(segment), *first.shape[1:]],
            "offset": len(_HEADER),
        }

    def _write_file(self, name: str, pieces: Iterable[bytes | memoryview]) -> Stored:
        path, digest = self._fresh(name), hashlib.sha256()
        with _discarded(NewFile(path)) as file:
            for piece in itertools.chain([_HEADER], pieces):
                digest.update(piece)
                file.write(piece)
            file.close()
        return Stored(path.name, file.size, digest.hexdigest())

    def _write_other(self, name: str, save: Callable[[Path], bool]) -> Stored | None:
        """
        Write a file with a callback of another library.

        Size and hash are computed from the file as read back.
        """
        path = self._fresh(name)
        if not save(path):
            path.unlink(missing_ok=True)
            return None
        path.chmod(0o600)
        with open(path, "r+b", buffering=0) as file:  # noqa: PTH123 - unbuffered, for fsync
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            return Stored(path.name, size, hashlib.file_digest(file, "sha256").hexdigest())

    def _fresh(self, name: str) -> Path:
        return self._directory / f"{name}-{uuid.uuid4().hex}.view"

    def _kept(self, stored: Stored) -> Stored | None:
        try:
            return stored if (self._directory / stored.name).stat().st_size == stored.size else None
        except OSError:
            return None

    def _replace(self, name: str, text: bytes) -> None:
        with _discarded(NewFile(self._directory / f"manifest-{uuid.uuid4().hex}.tmp")) as file:
            file.write(text)
            file.publish(self._directory / name)

    def _named(self) -> set[str]:
        """
        Return the files listed in the manifests.

        Raise OSError if an existing manifest cannot be opened.
        """
        named: set[str] = set()
        for name in (MANIFEST, PREVIOUS):
            with contextlib.suppress(FileNotFoundError, *_DAMAGED):
                named |= _files(_manifest(_text(self._directory / name))["parts"])
        return named

    def _sweep(self, named: set[str]) -> None:
        """
        Delete view files that are not in *named*.

        The caller holds the lock, so no other process writes one.
        """
        for path in list(self._directory.iterdir()):
            if path.name not in named and (_FILE.fullmatch(path.name) or _TEMPORARY.fullmatch(path.name)):
                with contextlib.suppress(OSError):
                    path.unlink()


def make_folder(folder: Path) -> None:
    """
    Create the folder of a namespace and its parent.

    Never recreate the session directory above them.
    """
    for each in (folder.parent, folder):
        if not each.is_dir():
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700)
            sync_directory(each.parent)


@contextlib.contextmanager
def _discarded(file: NewFile) -> Iterator[NewFile]:
    """Delete a file if it was not completely written."""
    try:
        yield file
    except BaseException:
        file.discard()
        raise


_READ: Final = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def _check(parts: Mapping[str, Part]) -> None:
    for name, part in parts.items():
        if not _PART.fullmatch(name):
            raise InvalidArgument(f"a part's name must be lower-case letters, digits and _, got {name!r:.80}")
        blocks = [*part.arrays.items(), *(("segments", block) for segment in part.segments for block in segment.blocks)]
        for key, array in blocks:
            if array.dtype.kind not in _KINDS:
                raise InvalidArgument(f"{name}.{key} must hold numbers or booleans, got {array.dtype}")


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _text(path: Path) -> bytes:
    with _opened_file(path) as file:
        if os.fstat(file.fileno()).st_size > _LARGEST_MANIFEST:
            raise ValueError("it is too long for a manifest")
        return file.read()


def _opened_file(path: Path) -> io.FileIO:
    """Open a regular file for reading. Opening a pipe or device could block forever."""
    file = io.FileIO(os.open(path, _READ))
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
    except BaseException:
        file.close()
        raise
    return file


def _manifest(text: bytes) -> dict[str, Any]:
    digest, _, body = text.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("the manifest is damaged")
    manifest = json.loads(body)
    if manifest["format"] != FORMAT:
        raise ValueError("the manifest is of another format")
    if type(manifest["change"]) is not int or not 0 <= manifest["change"] < _MOST_CHANGES:
        raise ValueError("the manifest has no change that a journal can have")
    if not isinstance(manifest["parts"], dict):
        raise TypeError("the manifest has no parts")
    _files(manifest["parts"])
    result: dict[str, Any] = manifest
    return result


def _files(entries: Mapping[str, Any]) -> set[str]:
    names = set()
    for entry in entries.values():
        names.add(entry["file"]["name"])
        names.update(segment["file"]["name"] for segment in entry["segments"])
        names.update(file["name"] for file in entry["files"].values())
    return names


def _written(directory: Path, entry: Mapping[str, Any], part: Part) -> LoadedPart:
    """Return a written part with the files that now contain it."""
    segments = tuple(
        segment if _is_open(segment, _stored(written["file"])) else _segment(directory, written)
        for segment, written in zip(part.segments, entry["segments"], strict=True)
    )
    return LoadedPart(dict(part.meta), dict(part.arrays), segments, _other_files(directory, entry))


def _opened(directory: Path, entry: Mapping[str, Any]) -> LoadedPart:
    """Read the files of a part into memory."""
    content = _content(directory, entry["file"])
    start, length = entry["meta"]
    meta = json.loads(bytes(content[start : start + length]).decode("utf-8", "surrogatepass"))
    if not isinstance(meta, dict):
        raise TypeError("the part's meta is no object")
    arrays = {key: _array(content, place) for key, place in entry["arrays"].items()}
    # Hashing releases the GIL, so segments are verified concurrently.
    with ThreadPoolExecutor(_READERS) as readers:
        segments = tuple(readers.map(partial(_segment, directory), entry["segments"]))
    return LoadedPart(meta, arrays, segments, _other_files(directory, entry))


def _is_open(segment: StoredArray, stored: Stored) -> bool:
    return all(isinstance(block, FileRows) and block.stored == stored for block in segment.blocks)


def _segment(directory: Path, entry: Mapping[str, Any]) -> StoredArray:
    stored = _stored(entry["file"])
    dtype, shape = _form(entry)
    if entry["offset"] != len(_HEADER) or dtype.itemsize * math.prod(shape) != stored.size - len(_HEADER):
        raise ValueError("the segment is not as long as is said")
    if hasattr(os, "preadv"):
        return StoredArray((FileRows(directory, stored, dtype=dtype, shape=shape),), stored)
    return StoredArray((_array(_content(directory, entry["file"]), entry),), stored)


def _other_files(directory: Path, entry: Mapping[str, Any]) -> dict[str, StoredFile]:
    found = {key: _stored(file) for key, file in entry["files"].items()}
    return {key: StoredFile(directory / stored.name, stored) for key, stored in found.items()}


def _stored(entry: Mapping[str, Any]) -> Stored:
    stored = Stored(entry["name"], entry["size"], entry["sha256"])
    if not _FILE.fullmatch(stored.name) or type(stored.size) is not int:
        raise ValueError("the manifest names a file that is none of ours")
    return stored


def _content(directory: Path, entry: Mapping[str, Any]) -> memoryview:
    """
    Return the verified content of a file.

    Not mapped, because truncating a mapped file crashes the process.
    """
    stored = _stored(entry)
    with _opened_file(directory / stored.name) as file:
        if os.fstat(file.fileno()).st_size != stored.size:
            raise ValueError("the file is not as long as it was written")
        room = np.empty(stored.size + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        content = room[start : start + stored.size].data
        digest, at = hashlib.sha256(), 0
        while count := file.readinto(content[at : at + _CHUNK]):
            digest.update(content[at : at + count])
            at += count
    if at != stored.size or digest.hexdigest() != stored.sha256:
        raise ValueError("the file does not match its checksum")
    return content.toreadonly()


def _is_as_written(file: io.FileIO, size: int, sha256: str) -> bool:
    return os.fstat(file.fileno()).st_size == size and hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _array(content: memoryview, place: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape = _form(place)
    count = math.prod(shape)
    if count == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(content, dtype, count, place["offset"]).reshape(shape)


def _form(place: Mapping[str, Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    dtype = np.dtype(str(place["dtype"]))
    shape = tuple(place["shape"])
    if dtype.kind not in _KINDS or any(type(side) is not int or side < 0 for side in shape):
        raise ValueError("the array's type or shape is none that we write")
    return dtype, shape
