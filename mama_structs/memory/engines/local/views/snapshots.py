"""
Snapshot files with the state of the views (DESIGN section 6, "The embedded engine").

The arrays of a part are in one file, one after another in NumPy's ``.npy`` format. Large arrays ("segments") have files
of their own, which later generations reuse, and so have graphs, in the format of their library (``.view``). The
manifest is JSON, preceded by its own SHA-256: it has the metadata of the parts, and the sizes and SHA-256 of the files.
"""

from __future__ import annotations

import contextlib
import functools
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

MANIFEST_FORMAT: Final = 2
MANIFEST_FILE: Final = "manifest"
PREVIOUS_MANIFEST_FILE: Final = "manifest-before"
LOCK_FILE: Final = "lock"

CHUNK_BYTES: Final = 2**20
MAX_MANIFEST_BYTES: Final = 2**24
# Exclusive upper bound of change numbers in journal keys.
CHANGE_NUMBER_LIMIT: Final = 16**12
MAX_LOAD_ATTEMPTS: Final = 20
# Maximum number of parts of other processes in a generation, so that files of replaced versions do not accumulate.
MAX_RETAINED_PARTS: Final = 2
PART_NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
VIEW_FILE_PATTERN: Final = re.compile(r"[a-z][a-z0-9_]{0,30}-[0-9a-f]{32}\.(?:npy|view)")
TEMPORARY_FILE_PATTERN: Final = re.compile(r"manifest-[0-9a-f]{32}\.tmp")
# NumPy kinds that are plain bytes: booleans, integers and floats. Arrays of other kinds could contain pickled objects.
PLAIN_DTYPE_KINDS: Final = "biuf"
# Exceptions that parsing a damaged, foreign or hostile file can raise.
PARSE_ERRORS: Final = (
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError),
    # NumPy raises the errors for malformed array headers, and the warning for headers written by Python 2.
    *(EOFError, SyntaxError, TokenError, Warning),
)
# Number of segment rows to copy per step.
COPY_ROWS: Final = 1024
# Number of segments to verify concurrently.
MAX_READERS: Final = 2

_log: Final = logging.getLogger(__name__)


class SnapshotInvalid(Exception):
    """
    Raised if a snapshot file was changed after it was loaded.

    Views that use the file must be discarded.
    """


READ_ERRORS: Final = (OSError, SnapshotInvalid, *PARSE_ERRORS)


@attrs.frozen
class ManifestEntry:
    """Name, size and hash of a file, as listed in the manifest."""

    name: str
    size: int
    sha256: str


class FileRows:
    """
    Rows of a verified file, read on demand through the page cache of the operating system.

    Rows are not memory-mapped, because truncating a mapped file crashes the process. If the file changed in any way,
    its hash is verified again before rows are returned.
    """

    def __init__(self, directory: Path, stored: ManifestEntry) -> None:
        self.stored: ManifestEntry = stored
        with _open_file(directory / stored.name) as file:
            self._file = os.dup(file.fileno())
            # Do not close the file at exit, because a thread that builds a graph may still read from it.
            weakref.finalize(self, os.close, self._file).atexit = False
            self._seen = self._verify_file()
            self.dtype: np.dtype[Any]
            self.shape: tuple[int, ...]
            self.dtype, self.shape = _read_header(file)
            if len(self.shape) not in {1, 2}:
                raise ValueError("the rows of the file are neither numbers nor vectors")
            self._start = file.tell()
        self._width = self.dtype.itemsize * math.prod(self.shape[1:])
        if self._start + len(self) * self._width != stored.size:
            raise ValueError("the file has more or fewer rows than its header says")

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows with the given numbers, in the order of *rows*."""
        # Call pread for each row, which is the fastest way without a memory map. A search reads hundreds of rows.
        file, width, read = self._file, self._width, os.pread
        whole = b"".join([read(file, width, place) for place in (self._start + rows * width).tolist()])
        if len(whole) != len(rows) * width:
            raise SnapshotInvalid("a file of vectors was cut")
        self._check()
        return np.ndarray((len(rows), *self.shape[1:]), self.dtype, whole)

    def slice(self, first: int, stop: int) -> NDArray[Any]:
        """Return the rows from *first* up to, but not including, *stop*."""
        taken = np.empty((stop - first, *self.shape[1:]), self.dtype)
        left, place = _as_bytes(taken), self._start + first * self._width
        while left:
            count = os.preadv(self._file, [left], place)
            if not count:
                raise SnapshotInvalid("a file of vectors was cut")
            left, place = left[count:], place + count
        self._check()
        return taken

    def _check(self) -> None:
        if self._state() != self._seen:
            self._seen = self._verify_file()

    def _verify_file(self) -> tuple[int, ...]:
        """Verify the hash of the file, and return its state: size and times."""
        before, digest, place = self._state(), hashlib.sha256(), 0
        room = memoryview(bytearray(CHUNK_BYTES))
        while count := os.preadv(self._file, [room], place):
            digest.update(room[:count])
            place += count
        if place != self.stored.size or digest.hexdigest() != self.stored.sha256 or before != self._state():
            raise SnapshotInvalid("a vector file does not match its checksum")
        return before

    def _state(self) -> tuple[int, ...]:
        return _state(os.fstat(self._file))


def _state(found: os.stat_result) -> tuple[int, ...]:
    # Include the change time (ctime), because a program that modifies a file cannot reset it.
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


@attrs.frozen(eq=False)
class StoredArray:
    """A large immutable array in a separate file, which later snapshots reuse."""

    blocks: tuple[NDArray[Any] | FileRows, ...]
    stored: ManifestEntry | None = None

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def pieces(self, max_rows: int) -> Iterator[NDArray[Any]]:
        """Yield the rows in parts. A part that is read from a file has at most *max_rows* rows."""
        for block in self.blocks:
            if isinstance(block, FileRows):
                yield from (block.slice(at, min(at + max_rows, len(block))) for at in range(0, len(block), max_rows))
            else:
                yield np.ascontiguousarray(block)


@attrs.frozen(eq=False)
class StoredFile:
    """A file that another library wrote, not verified yet."""

    path: Path
    stored: ManifestEntry

    def state(self) -> tuple[int, ...] | None:
        """Return a value that differs after every change of the file, or None if the file does not exist."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, *_state(found)

    def is_intact(self) -> bool:
        """Return True if the file has the expected size and hash (about 0.6 s per GB). Thread-safe."""
        try:
            with _open_file(self.path) as file:
                is_as_long = os.fstat(file.fileno()).st_size == self.stored.size
                return is_as_long and hashlib.file_digest(file, "sha256").hexdigest() == self.stored.sha256
        except READ_ERRORS:
            return False


@attrs.frozen(eq=False)
class SnapshotPart:
    """The state of one view, to be written to a snapshot."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = attrs.field(factory=dict)
    segments: Sequence[StoredArray] = ()
    files: Mapping[str, Callable[[Path], bool] | StoredFile] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class LoadedPart:
    """
    The state of one view, loaded from a snapshot.

    Arrays are read-only and in memory. Segments stay in files.
    """

    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    segments: tuple[StoredArray, ...]
    files: dict[str, StoredFile]


PartFilter = Callable[[str, LoadedPart], bool]


@attrs.frozen(eq=False)
class Generation:
    """Content of a snapshot: the state of all views at one change number of the journal."""

    change: int
    parts: dict[str, LoadedPart]
    damaged: list[str]


class SnapshotStore:
    """Stores the newest and the previous generation in a folder."""

    def __init__(self, directory: Path, *, identity: str) -> None:
        self._directory = directory
        self._identity = identity

    def write(
        self,
        change: int,
        parts: Mapping[str, SnapshotPart],
        *,
        last: int | None = None,
        should_retain: PartFilter | None = None,
    ) -> Generation | None:
        """
        Write a generation durably, as the newest one.

        Args:
            change: The change number of the views.
            parts: The state of each view.
            last: The last change of the journal. Generations with a later change are ignored.
            should_retain: Called with the name and state of each part of the newest generation that *parts* lacks.
                At most `MAX_RETAINED_PARTS` of the parts for which it returns True are retained.

        Returns:
            The generation with the given arrays, or None if it was not written: writing failed, another process is
            writing, or a newer generation exists.

        """
        _check_parts(parts)
        try:
            create_view_folder(self._directory)
            with self._exclusive_lock() as alone:
                return self._write(change, parts, last, should_retain) if alone else None
        except (OSError, RuntimeError, SnapshotInvalid) as error:
            # The message is safe to log, because it may contain paths but no texts of memories.
            _log.warning("no snapshot at change %d: %s: %s", change, type(error).__name__, error)
            return None

    def load(self, *, max_change: int | None = None) -> Generation | None:
        """
        Return the newest readable generation without its damaged parts, or None if no generation is readable.

        Args:
            max_change: The highest acceptable change number.

        """
        seen: bytes | None = None
        generation = None
        for _ in range(MAX_LOAD_ATTEMPTS):
            manifest, text = self._find_newest_manifest(max_change)
            # If the manifest changed meanwhile, another process may have deleted files of this generation. Try again.
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

        A journal that lost changes may end before this change.
        """
        return max((manifest["change"] for _, manifest, _ in self._manifests()), default=0)

    def clear(self, *, before: int | None = None) -> bool:
        """
        Delete all generations. Return False if that was not possible.

        With *before*, keep generations of this history with this change number or a later one.
        """
        try:
            if not self._directory.is_dir():
                return True
            with self._exclusive_lock() as alone:
                if alone:
                    kept = [
                        name for name, one, _ in self._manifests() if before is not None and one["change"] >= before
                    ]
                    for name in {MANIFEST_FILE, PREVIOUS_MANIFEST_FILE}.difference(kept):
                        (self._directory / name).unlink(missing_ok=True)
                    self._delete_unlisted_files(self._find_listed_files())
                return alone
        except OSError as error:
            _log.warning("snapshots cannot be deleted: %s", error)
            return False

    @contextlib.contextmanager
    def _exclusive_lock(self) -> Iterator[bool]:
        lock = LockFile.open(self._directory / LOCK_FILE)
        try:
            yield lock.try_lock(0)
        finally:
            lock.close()

    def _manifests(self) -> Iterator[tuple[str, dict[str, Any], bytes]]:
        """Yield the file name, the content and the raw text of each readable manifest of this history, newest first."""
        for name in (MANIFEST_FILE, PREVIOUS_MANIFEST_FILE):
            try:
                text = _read_manifest_text(self._directory / name)
                manifest = _parse_manifest(text)
                is_own = manifest["identity"] == self._identity
            except READ_ERRORS:
                continue
            if is_own:
                yield name, manifest, text

    def _find_newest_manifest(self, max_change: int | None) -> tuple[dict[str, Any] | None, bytes | None]:
        for _, manifest, text in self._manifests():
            if max_change is None or manifest["change"] <= max_change:
                return manifest, text
        return None, None

    def _read(self, manifest: dict[str, Any]) -> Generation:
        generation = Generation(manifest["change"], {}, [])
        for name, entry in manifest["parts"].items():
            try:
                generation.parts[name] = _load_part(self._directory, entry)
            except READ_ERRORS:
                generation.damaged.append(name)
        return generation

    def _write(
        self,
        change: int,
        parts: Mapping[str, SnapshotPart],
        last: int | None,
        should_retain: PartFilter | None,
    ) -> Generation | None:
        newest, text = self._find_newest_manifest(last)
        if newest is not None and newest["change"] > change:
            return None
        retained = {} if newest is None or should_retain is None else self._retained(newest, parts, should_retain)
        try:
            written = {name: self._write_part(name, part) for name, part in {**retained, **parts}.items()}
            entries = {name: entry for name, (entry, _) in written.items()}
            generation = Generation(change, {name: written[name][1] for name in parts}, [])
            manifest = {"format": MANIFEST_FORMAT, "identity": self._identity, "change": change, "parts": entries}
            body = json.dumps(manifest, separators=(",", ":")).encode()
            sync_directory(self._directory)
            if text is not None:
                self._replace(PREVIOUS_MANIFEST_FILE, text)
            self._replace(MANIFEST_FILE, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except BaseException:
            # An interrupt may arrive just after the rename, so read the manifests to find the files in use.
            with contextlib.suppress(OSError):
                self._delete_unlisted_files(self._find_listed_files())
            raise
        # Ignore failures of the clean-up, because the new generation is already durable.
        with contextlib.suppress(OSError):
            sync_directory(self._directory)
            self._delete_unlisted_files(
                _listed_files(entries) | (set() if newest is None else _listed_files(newest["parts"]))
            )
        return generation

    def _retained(
        self,
        newest: dict[str, Any],
        parts: Mapping[str, SnapshotPart],
        should_retain: Callable[[str, LoadedPart], bool],
    ) -> dict[str, SnapshotPart]:
        found = {}
        for name, entry in newest["parts"].items():
            with contextlib.suppress(*READ_ERRORS):
                if name not in parts and should_retain(name, part := _load_part(self._directory, entry)):
                    found[name] = SnapshotPart(part.meta, part.arrays, part.segments, part.files)
        return dict(list(found.items())[-MAX_RETAINED_PARTS:])

    def _write_part(self, name: str, part: SnapshotPart) -> tuple[dict[str, Any], LoadedPart]:
        """Write the files of a part. Return its entry in the manifest, and the part with these files."""
        with _HashedFile(self._new_path(name, "npy")) as file:
            for array in part.arrays.values():
                np.save(file, np.asarray(array, order="C"), allow_pickle=False)
            arrays = file.finish()
        segments = tuple(self._write_segment(name, segment) for segment in part.segments)
        files = {}
        for key, other in part.files.items():
            stored = self._reuse_file(other.stored) if isinstance(other, StoredFile) else self._write_other(name, other)
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
        """Return a segment that is stored in a file. Write the file unless it exists."""
        stored = None if segment.stored is None else self._reuse_file(segment.stored)
        if stored is None:
            first = segment.blocks[0]
            shape = (len(segment), *first.shape[1:])
            with _HashedFile(self._new_path(name, "npy")) as file:
                header = {"descr": first.dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for piece in segment.pieces(COPY_ROWS):
                    file.write(_as_bytes(piece))
                stored = file.finish()
        if all(isinstance(block, FileRows) and block.stored == stored for block in segment.blocks):
            return segment
        return _load_segment(self._directory, stored)

    def _write_other(self, name: str, save: Callable[[Path], bool]) -> ManifestEntry | None:
        """
        Write a file by calling *save*, which uses another library.

        Size and hash are computed from the written file.
        """
        path = self._new_path(name, "view")
        if not save(path):
            path.unlink(missing_ok=True)
            return None
        path.chmod(0o600)
        with open(path, "r+b", buffering=0) as file:  # noqa: PTH123 - unbuffered, for fsync
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            return ManifestEntry(path.name, size, hashlib.file_digest(file, "sha256").hexdigest())

    def _new_path(self, name: str, suffix: str) -> Path:
        return self._directory / f"{name}-{uuid.uuid4().hex}.{suffix}"

    def _reuse_file(self, stored: ManifestEntry) -> ManifestEntry | None:
        try:
            return stored if (self._directory / stored.name).stat().st_size == stored.size else None
        except OSError:
            return None

    def _replace(self, name: str, text: bytes) -> None:
        with _HashedFile(self._directory / f"manifest-{uuid.uuid4().hex}.tmp") as file:
            file.write(text)
            file.publish(self._directory / name)

    def _find_listed_files(self) -> set[str]:
        """
        Return the names of the files that the manifests list.

        Raise OSError if a manifest exists but cannot be opened.
        """
        named: set[str] = set()
        for name in (MANIFEST_FILE, PREVIOUS_MANIFEST_FILE):
            with contextlib.suppress(FileNotFoundError, *PARSE_ERRORS):
                named |= _listed_files(_parse_manifest(_read_manifest_text(self._directory / name))["parts"])
        return named

    def _delete_unlisted_files(self, listed: set[str]) -> None:
        """
        Delete view files that are not in *listed*.

        The caller must hold the lock, so that no other process is writing files.
        """
        for path in list(self._directory.iterdir()):
            if path.name not in listed and (
                VIEW_FILE_PATTERN.fullmatch(path.name) or TEMPORARY_FILE_PATTERN.fullmatch(path.name)
            ):
                with contextlib.suppress(OSError):
                    path.unlink()


class _HashedFile(NewFile):
    """A new file whose SHA-256 is computed while it is written. The file is deleted if writing fails."""

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

    def finish(self) -> ManifestEntry:
        """Sync and close the file, and return its size and hash."""
        self.close()
        return ManifestEntry(self._path.name, self.size, self._digest.hexdigest())


def create_view_folder(folder: Path) -> None:
    """
    Create the folder of a namespace's views and its parent.

    The session directory above them is never created again.
    """
    for each in (folder.parent, folder):
        if not each.is_dir():
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700)
            sync_directory(each.parent)


READ_FLAGS: Final = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
)


def _check_parts(parts: Mapping[str, SnapshotPart]) -> None:
    for name, part in parts.items():
        if not PART_NAME_PATTERN.fullmatch(name):
            raise InvalidArgument(f"a part's name must be lower-case letters, digits and _, got {name!r:.80}")
        blocks = [*part.arrays.items(), *(("segments", block) for segment in part.segments for block in segment.blocks)]
        for key, array in blocks:
            if array.dtype.kind not in PLAIN_DTYPE_KINDS:
                raise InvalidArgument(f"{name}.{key} must hold numbers or booleans, got {array.dtype}")


def _as_bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _read_manifest_text(path: Path) -> bytes:
    with _open_file(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_MANIFEST_BYTES:
            raise ValueError("it is too long for a manifest")
        return file.read()


def _open_file(path: Path) -> io.FileIO:
    """Open a regular file for reading. Reject others, because opening a pipe or device could block forever."""
    file = io.FileIO(os.open(path, READ_FLAGS))
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
    except BaseException:
        file.close()
        raise
    return file


def _parse_manifest(text: bytes) -> dict[str, Any]:
    digest, _, body = text.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("the manifest is damaged")
    manifest = json.loads(body)
    if manifest["format"] != MANIFEST_FORMAT:
        raise ValueError("the manifest is of another format")
    if type(manifest["change"]) is not int or not 0 <= manifest["change"] < CHANGE_NUMBER_LIMIT:
        raise ValueError("the manifest has no change that a journal can have")
    if not isinstance(manifest["parts"], dict):
        raise TypeError("the manifest has no parts")
    _listed_files(manifest["parts"])
    result: dict[str, Any] = manifest
    return result


def _listed_files(entries: Mapping[str, Any]) -> set[str]:
    return {
        stored["name"]
        for entry in entries.values()
        for stored in (entry["arrays"], *entry["segments"], *entry["files"].values())
    }


def _load_part(directory: Path, entry: Mapping[str, Any]) -> LoadedPart:
    """Read the arrays of a part into memory, and open its other files."""
    meta = entry["meta"]
    if not isinstance(meta, dict):
        raise TypeError("the part's meta is no object")
    content = io.BytesIO(_read_verified(directory, _parse_manifest_entry(entry["arrays"])))
    arrays = {key: _parse_array(content) for key in entry["names"]}
    # Verify segments concurrently, because hashing releases the GIL.
    with ThreadPoolExecutor(MAX_READERS) as readers:
        segments = tuple(readers.map(partial(_load_segment, directory), map(_parse_manifest_entry, entry["segments"])))
    files = {key: _parse_manifest_entry(file) for key, file in entry["files"].items()}
    opened = {key: StoredFile(directory / stored.name, stored) for key, stored in files.items()}
    return LoadedPart(meta, arrays, segments, opened)


def _load_segment(directory: Path, stored: ManifestEntry) -> StoredArray:
    if hasattr(os, "preadv"):
        return StoredArray((FileRows(directory, stored),), stored)
    return StoredArray((_parse_array(io.BytesIO(_read_verified(directory, stored))),), stored)


def _parse_manifest_entry(entry: Mapping[str, Any]) -> ManifestEntry:
    stored = ManifestEntry(entry["name"], entry["size"], entry["sha256"])
    if not VIEW_FILE_PATTERN.fullmatch(stored.name) or type(stored.size) is not int:
        raise ValueError("the manifest names a file that is none of ours")
    return stored


def _read_verified(directory: Path, stored: ManifestEntry) -> bytes:
    """
    Return the verified content of a file.

    The file is not memory-mapped, because truncating a mapped file crashes the process.
    """
    with _open_file(directory / stored.name) as file:
        if os.fstat(file.fileno()).st_size != stored.size:
            raise ValueError("the file is not as long as it was written")
        content = file.read()
    if len(content) != stored.size or hashlib.sha256(content).hexdigest() != stored.sha256:
        raise ValueError("the file does not match its checksum")
    return content


def _parse_array(content: io.BytesIO) -> NDArray[Any]:
    """Return the next array of the content, read-only."""
    # Do not use numpy.load, because it also opens zip files.
    dtype, shape = _read_header(content)
    size = math.prod(shape) * dtype.itemsize
    data = content.read(size)
    if len(data) != size:
        raise ValueError("the file ends before the array that its header describes")
    return np.ndarray(shape, dtype, data)


def _read_header(file: io.BytesIO | io.FileIO) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the type and shape of the array that follows in an ``.npy`` file."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("the file is of another version of the npy format")
    size = file.read(2)
    shape, is_fortran, dtype = _parse_header(size + file.read(int.from_bytes(size, "little")))
    if is_fortran or dtype.kind not in PLAIN_DTYPE_KINDS or min(shape, default=0) < 0:
        raise ValueError("the type, order or shape of the array is none that we write")
    return dtype, shape


@functools.lru_cache(maxsize=64)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Parse a header. Cached, because numpy takes 0.2 ms and many arrays of a snapshot have equal headers."""
    parsed: tuple[tuple[int, ...], bool, np.dtype[Any]] = np.lib.format.read_array_header_1_0(io.BytesIO(header))
    return parsed
