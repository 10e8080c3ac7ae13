"""
Snapshot files with the state of the views (DESIGN section 6, "The embedded engine").

The arrays of a part are in one file, one after another in NumPy's ``.npy`` format. Large arrays ("segments") have files
of their own, which later generations reuse, and so have graphs, in the format of their library (``.view``). The
manifest is JSON, preceded by its own SHA-256: it has the metadata of the parts, and the sizes and SHA-256 of the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import re
import stat
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final, Self

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import InvalidArgument
from mama_structs.storage.files import NewFile, sync_directory
from mama_structs.storage.locks import LockFile

FORMAT: Final = 2
MANIFEST: Final = "manifest"
PREVIOUS: Final = "manifest-before"
LOCK: Final = "lock"

_CHUNK: Final = 2**20
_LARGEST_MANIFEST: Final = 2**24
# Exclusive upper bound of change numbers in journal keys.
_MOST_CHANGES: Final = 16**12
_TRIES: Final = 20
_PART: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
_FILE: Final = re.compile(r"[a-z][a-z0-9_]{0,30}-[0-9a-f]{32}\.(?:npy|view)")
_TEMPORARY: Final = re.compile(r"manifest-[0-9a-f]{32}\.tmp")
# NumPy kinds that are plain bytes: booleans, integers and floats. Others could contain pickled objects.
_KINDS: Final = "biuf"
# Exceptions raised when damaged, foreign or hostile files are parsed.
_DAMAGED: Final = (
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError),
    *(EOFError, SyntaxError, TokenError),  # raised for the headers of arrays
)
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

    def __init__(self, directory: Path, stored: Stored) -> None:
        self.stored: Stored = stored
        with _opened_file(directory / stored.name) as file:
            self._file = os.dup(file.fileno())
            # Do not close at exit: a thread that builds a graph may still read.
            weakref.finalize(self, os.close, self._file).atexit = False
            self._seen = self._looked_at()
            self.dtype, self.shape, self._start = _header(file)
        self._width = self.dtype.itemsize * math.prod(self.shape[1:])
        if self._start + len(self) * self._width != stored.size:
            raise ValueError("the file has more or fewer rows than its header says")

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the given rows, in their order."""
        # A search reads hundreds of rows. This is the fastest way without a memory map.
        file, width, read = self._file, self._width, os.pread
        whole = b"".join([read(file, width, place) for place in (self._start + rows * width).tolist()])
        if len(whole) != len(rows) * width:
            raise ViewLost("a file of vectors was cut")
        self._check()
        return np.ndarray((len(rows), *self.shape[1:]), self.dtype, whole)

    def slice(self, first: int, stop: int) -> NDArray[Any]:
        """Return the rows from *first* to *stop*."""
        taken = np.empty((stop - first, *self.shape[1:]), self.dtype)
        left, place = _bytes(taken), self._start + first * self._width
        while left:
            count = os.preadv(self._file, [left], place)
            if not count:
                raise ViewLost("a file of vectors was cut")
            left, place = left[count:], place + count
        self._check()
        return taken

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
                is_as_long = os.fstat(file.fileno()).st_size == self.stored.size
                return is_as_long and hashlib.file_digest(file, "sha256").hexdigest() == self.stored.sha256
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
        return max((manifest["change"] for _, manifest, _ in self._manifests()), default=0)

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
                    kept = [
                        name for name, one, _ in self._manifests() if before is not None and one["change"] >= before
                    ]
                    for name in {MANIFEST, PREVIOUS}.difference(kept):
                        (self._directory / name).unlink(missing_ok=True)
                    self._sweep(self._named())
                return alone
        except OSError as error:
            _log.warning("snapshots cannot be deleted: %s", error)
            return False

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        lock = LockFile.open(self._directory / LOCK)
        try:
            yield lock.try_lock(0)
        finally:
            lock.close()

    def _manifests(self) -> Iterator[tuple[str, dict[str, Any], bytes]]:
        """Yield the name, content and text of each readable manifest of this history, newest first."""
        for name in (MANIFEST, PREVIOUS):
            try:
                text = _text(self._directory / name)
                manifest = _manifest(text)
                is_own = manifest["identity"] == self._identity
            except _UNREADABLE:
                continue
            if is_own:
                yield name, manifest, text

    def _newest(self, at_most: int | None) -> tuple[dict[str, Any] | None, bytes | None]:
        for _, manifest, text in self._manifests():
            if at_most is None or manifest["change"] <= at_most:
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
            written = {name: self._write_part(name, part) for name, part in parts.items()}
            entries = {name: entry for name, (entry, _) in written.items()}
            generation = Generation(change, {name: part for name, (_, part) in written.items()}, [])
            manifest = {"format": FORMAT, "identity": self._identity, "change": change, "parts": entries}
            body = json.dumps(manifest, separators=(",", ":")).encode()
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

    def _write_part(self, name: str, part: Part) -> tuple[dict[str, Any], LoadedPart]:
        """Write the files of a part, and return its entry in the manifest, and the part with these files."""
        with _HashedFile(self._fresh(name, "npy")) as file:
            for array in part.arrays.values():
                np.save(file, np.asarray(array, order="C"), allow_pickle=False)
            arrays = file.finish()
        segments = tuple(self._write_segment(name, segment) for segment in part.segments)
        files = {}
        for key, other in part.files.items():
            stored = self._kept(other.stored) if isinstance(other, StoredFile) else self._write_other(name, other)
            if stored is not None:
                files[key] = StoredFile(self._directory / stored.name, stored)
        entry = {
            "meta": dict(part.meta),
            "names": list(part.arrays),
            "arrays": attrs.asdict(arrays),
            "segments": [attrs.asdict(segment.stored) for segment in segments if segment.stored is not None],
            "files": {key: attrs.asdict(one.stored) for key, one in files.items()},
        }
        return entry, LoadedPart(dict(part.meta), dict(part.arrays), segments, files)

    def _write_segment(self, name: str, segment: StoredArray) -> StoredArray:
        """Return a segment in a file, which is written unless it exists."""
        stored = None if segment.stored is None else self._kept(segment.stored)
        if stored is None:
            first = segment.blocks[0]
            shape = (len(segment), *first.shape[1:])
            with _HashedFile(self._fresh(name, "npy")) as file:
                header = {"descr": first.dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for piece in segment.pieces(_COPIED):
                    file.write(_bytes(piece))
                stored = file.finish()
        if all(isinstance(block, FileRows) and block.stored == stored for block in segment.blocks):
            return segment
        return _segment(self._directory, stored)

    def _write_other(self, name: str, save: Callable[[Path], bool]) -> Stored | None:
        """
        Write a file with a callback of another library.

        Size and hash are computed from the file as read back.
        """
        path = self._fresh(name, "view")
        if not save(path):
            path.unlink(missing_ok=True)
            return None
        path.chmod(0o600)
        with open(path, "r+b", buffering=0) as file:  # noqa: PTH123 - unbuffered, for fsync
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            return Stored(path.name, size, hashlib.file_digest(file, "sha256").hexdigest())

    def _fresh(self, name: str, suffix: str) -> Path:
        return self._directory / f"{name}-{uuid.uuid4().hex}.{suffix}"

    def _kept(self, stored: Stored) -> Stored | None:
        try:
            return stored if (self._directory / stored.name).stat().st_size == stored.size else None
        except OSError:
            return None

    def _replace(self, name: str, text: bytes) -> None:
        with _HashedFile(self._directory / f"manifest-{uuid.uuid4().hex}.tmp") as file:
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


class _HashedFile(NewFile):
    """A file whose SHA-256 is computed while it is written, and that is deleted if writing fails."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path, self._digest = path, hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self.discard()

    def write(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        super().write(data)

    def finish(self) -> Stored:
        """Sync the file, close it, and return its size and hash."""
        self.close()
        return Stored(self._path.name, self.size, self._digest.hexdigest())


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
    return {
        stored["name"]
        for entry in entries.values()
        for stored in (entry["arrays"], *entry["segments"], *entry["files"].values())
    }


def _opened(directory: Path, entry: Mapping[str, Any]) -> LoadedPart:
    """Read the arrays of a part into memory, and open its other files."""
    meta = entry["meta"]
    if not isinstance(meta, dict):
        raise TypeError("the part's meta is no object")
    content = io.BytesIO(_content(directory, _stored(entry["arrays"])))
    arrays = {key: _array(content) for key in entry["names"]}
    # Hashing releases the GIL, so segments are verified concurrently.
    with ThreadPoolExecutor(_READERS) as readers:
        segments = tuple(readers.map(partial(_segment, directory), map(_stored, entry["segments"])))
    files = {key: _stored(file) for key, file in entry["files"].items()}
    opened = {key: StoredFile(directory / stored.name, stored) for key, stored in files.items()}
    return LoadedPart(meta, arrays, segments, opened)


def _segment(directory: Path, stored: Stored) -> StoredArray:
    if hasattr(os, "preadv"):
        return StoredArray((FileRows(directory, stored),), stored)
    return StoredArray((_array(io.BytesIO(_content(directory, stored))),), stored)


def _stored(entry: Mapping[str, Any]) -> Stored:
    stored = Stored(entry["name"], entry["size"], entry["sha256"])
    if not _FILE.fullmatch(stored.name) or type(stored.size) is not int:
        raise ValueError("the manifest names a file that is none of ours")
    return stored


def _content(directory: Path, stored: Stored) -> bytes:
    """
    Return the verified content of a file.

    Not mapped, because truncating a mapped file crashes the process.
    """
    with _opened_file(directory / stored.name) as file:
        if os.fstat(file.fileno()).st_size != stored.size:
            raise ValueError("the file is not as long as it was written")
        content = file.read()
    if len(content) != stored.size or hashlib.sha256(content).hexdigest() != stored.sha256:
        raise ValueError("the file does not match its checksum")
    return content


def _array(content: io.BytesIO) -> NDArray[Any]:
    """Return the next array of a file, read-only."""
    # Not numpy.load, which also opens zip files.
    array: NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
    if array.dtype.kind not in _KINDS:
        raise ValueError("the array's type is none that we write")
    array.flags.writeable = False
    return array


def _header(file: io.FileIO) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return the type and shape of the array in an ``.npy`` file, and the offset of its content."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("the file is of another version of the npy format")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if is_fortran or dtype.kind not in _KINDS:
        raise ValueError("the array's type or order is none that we write")
    return dtype, shape, file.tell()
