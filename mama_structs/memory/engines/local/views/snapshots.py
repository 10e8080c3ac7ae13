"""Generations of files that hold what was derived from the journal (DESIGN section 6, "The embedded engine")."""

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
# As many as the keys of rows have digits for.
_MOST_CHANGES: Final = 16**12
_TRIES: Final = 20
_PART: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
_FILE: Final = re.compile(r"[a-z][a-z0-9_]{0,30}-[0-9a-f]{32}\.view")
_TEMPORARY: Final = re.compile(r"manifest-[0-9a-f]{32}\.tmp")
# Booleans, whole numbers and floats: what is only bytes.
_KINDS: Final = "biuf"
# What reading damaged, foreign or hostile files can raise.
_DAMAGED: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError)
# Rows of a segment that are copied at once.
_COPIED: Final = 1024
# Segments that are compared with their hashes at once.
_READERS: Final = 2

_log: Final = logging.getLogger(__name__)


class ViewLost(Exception):
    """A file that rows are read from is not what was written any more: what was loaded from it is of no use."""


_UNREADABLE: Final = (OSError, ViewLost, *_DAMAGED)


@attrs.frozen
class Stored:
    """A file as a manifest vouches for it."""

    name: str
    size: int
    sha256: str


class FileRows:
    """
    Rows of a file that is what was written, read where they are asked for: the system keeps them, and may drop them.

    They are read and not mapped, since a mapped file that is cut ends the process. A file that anything has happened
    to is compared with its hash again before what was read is given.
    """

    def __init__(self, directory: Path, stored: Stored, *, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.stored: Stored = stored
        self.dtype: np.dtype[Any] = dtype
        self.shape: tuple[int, ...] = shape
        self._width = dtype.itemsize * math.prod(shape[1:])
        with _opened_file(directory / stored.name) as file:
            self._file = os.dup(file.fileno())
        # Not when the interpreter ends: a thread that builds a graph may still read.
        weakref.finalize(self, os.close, self._file).atexit = False
        self._seen = self._looked_at()

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return some rows, in their order."""
        # A search reads hundreds: this is the quickest way that is no map.
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
        """Compare the file with its hash, and return when it was changed last."""
        before, digest, place = self._state(), hashlib.sha256(), 0
        room = memoryview(bytearray(_CHUNK))
        while count := os.preadv(self._file, [room], place):
            digest.update(room[:count])
            place += count
        if place != self.stored.size or digest.hexdigest() != self.stored.sha256 or before != self._state():
            raise ViewLost("a file of vectors is not what was written")
        return before

    def _state(self) -> tuple[int, ...]:
        return _state(os.fstat(self._file))


def _state(found: os.stat_result) -> tuple[int, ...]:
    # The time of a file's last change cannot be set by whoever changes it.
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


@attrs.frozen(eq=False)
class StoredArray:
    """A large array that never changes, in a file of its own that later generations use again."""

    blocks: tuple[NDArray[Any] | FileRows, ...]
    stored: Stored | None = None

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def pieces(self, most: int) -> Iterator[NDArray[Any]]:
        """Give its rows, of those in files at most *most* at once."""
        for block in self.blocks:
            if isinstance(block, FileRows):
                yield from (block.slice(at, min(at + most, len(block))) for at in range(0, len(block), most))
            else:
                yield np.ascontiguousarray(block)


@attrs.frozen(eq=False)
class StoredFile:
    """A file that another library wrote, not looked at yet."""

    path: Path
    stored: Stored

    def state(self) -> tuple[int, ...] | None:
        """Return what becomes another value whenever anything happens to the file, None where there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, *_state(found)

    def is_whole(self) -> bool:
        """Read all of it (some 0.6 s a GB), and tell whether it is what was written; may run in any thread."""
        try:
            with _opened_file(self.path) as file:
                return _is_as_written(file, self.stored.size, self.stored.sha256)
        except _UNREADABLE:
            return False


@attrs.frozen(eq=False)
class Part:
    """What one view gives for a snapshot."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = attrs.field(factory=dict)
    segments: Sequence[StoredArray] = ()
    files: Mapping[str, Callable[[Path], bool] | StoredFile] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class LoadedPart:
    """What one view gets back; its arrays are read-only, no file can change them any more; segments are in files."""

    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    segments: tuple[StoredArray, ...]
    files: dict[str, StoredFile]


@attrs.frozen(eq=False)
class Generation:
    """The views at one change of the journal."""

    change: int
    parts: dict[str, LoadedPart]
    damaged: list[str]


class SnapshotStore:
    """Keeps the newest generation, and the one before it, in a folder of their own."""

    def __init__(self, directory: Path, *, identity: str) -> None:
        self._directory = directory
        self._identity = identity

    def write(self, change: int, parts: Mapping[str, Part], *, last: int | None = None) -> Generation | None:
        """Write a generation, which becomes the newest when all of it is on the disk; its arrays are those given."""
        _check(parts)
        try:
            make_folder(self._directory)
            with self._alone() as alone:
                return self._write(change, parts, last) if alone else None
        except (OSError, RuntimeError, ViewLost) as error:
            # Text that the operating system or another library gave may hold paths, but no content.
            _log.warning("no snapshot at change %d: %s: %s", change, type(error).__name__, error)
            return None

    def load(self, *, at_most: int | None = None) -> Generation | None:
        """Return the newest generation that can be read, without its damaged parts."""
        seen: bytes | None = None
        generation = None
        for _ in range(_TRIES):
            manifest, text = self._newest(at_most)
            # Another process may have swept this generation's files while they were being opened.
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
        """Return the highest change of a generation, though the journal may not have it; 0 where there is none."""
        changes = [0]
        for name in (MANIFEST, PREVIOUS):
            with contextlib.suppress(*_UNREADABLE):
                manifest = _manifest(_text(self._directory / name))
                changes += [manifest["change"]] if manifest["identity"] == self._identity else []
        return max(changes)

    def clear(self, *, before: int | None = None) -> bool:
        """
        Delete every generation, and tell whether that was possible.

        With *before* those of that change and of later ones in the same history stay.
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
        """Tell whether a manifest is of a change in this history, or of a later one."""
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
            # Whether the new generation stands, the manifest says: a Ctrl-C can come right after it got its name.
            with contextlib.suppress(OSError):
                self._sweep(self._named())
            raise
        # From here on the new generation stands, whatever becomes of the rest.
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
        """Let another library write a file; what is vouched for is what can be read back."""
        path = self._fresh(name)
        if not save(path):
            path.unlink(missing_ok=True)
            return None
        path.chmod(0o600)
        with open(path, "r+b", buffering=0) as file:  # noqa: PTH123 - what NewFile did not write
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
        """Return which files the manifests name; one that is there and cannot be opened just now is an error."""
        named: set[str] = set()
        for name in (MANIFEST, PREVIOUS):
            with contextlib.suppress(FileNotFoundError, *_DAMAGED):
                named |= _files(_manifest(_text(self._directory / name))["parts"])
        return named

    def _sweep(self, named: set[str]) -> None:
        """Delete our files that are not *named*; the caller has the lock, so that nobody is writing one."""
        for path in list(self._directory.iterdir()):
            if path.name not in named and (_FILE.fullmatch(path.name) or _TEMPORARY.fullmatch(path.name)):
                with contextlib.suppress(OSError):
                    path.unlink()


def make_folder(folder: Path) -> None:
    """Make a namespace's folder and the one around it, and nothing above: a removed session stays removed."""
    for each in (folder.parent, folder):
        if not each.is_dir():
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700)
            sync_directory(each.parent)


@contextlib.contextmanager
def _discarded(file: NewFile) -> Iterator[NewFile]:
    """Remove a file that was not written to its end."""
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
    """Open a regular file for reading; the opening of anything else could wait for its other end for ever."""
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
    """Return a part as it was given, with the files that hold it now."""
    segments = tuple(
        segment if _is_open(segment, _stored(written["file"])) else _segment(directory, written)
        for segment, written in zip(part.segments, entry["segments"], strict=True)
    )
    return LoadedPart(dict(part.meta), dict(part.arrays), segments, _other_files(directory, entry))


def _opened(directory: Path, entry: Mapping[str, Any]) -> LoadedPart:
    """Read a part's files into memory."""
    content = _content(directory, entry["file"])
    start, length = entry["meta"]
    meta = json.loads(bytes(content[start : start + length]).decode("utf-8", "surrogatepass"))
    if not isinstance(meta, dict):
        raise TypeError("the part's meta is no object")
    arrays = {key: _array(content, place) for key, place in entry["arrays"].items()}
    # They are compared with their hashes, for which the interpreter lets the others go on.
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
    """Return what is in a file, read: a map of it would end the process when the file is cut."""
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
        raise ValueError("the file is not what was written")
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
