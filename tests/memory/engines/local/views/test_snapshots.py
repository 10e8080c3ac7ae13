"""Snapshots are written atomically, and damaged ones are never used."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import mama_structs
from mama_structs.errors import InvalidArgument
from mama_structs.memory.engines.local.views import snapshots as module
from mama_structs.memory.engines.local.views.snapshots import SnapshotPart, SnapshotStore, StoredArray
from mama_structs.storage.locks import LockFile

# Child processes must import the package under test.
SRC = str(Path(mama_structs.__file__).parents[1])

WRITER = """
import sys
from pathlib import Path
import numpy as np
from mama_structs.memory.engines.local.views.snapshots import SnapshotPart, StoredArray, SnapshotStore
store = SnapshotStore(Path(sys.argv[1]), identity="a")
first, step, last = map(int, sys.argv[2:])
kept = ()
print("begins", flush=True)
for change in range(first, last, step):
    if Path(sys.argv[1] + "-stop").exists():
        break
    parts = {
        "one": SnapshotPart({"change": change}, {"numbers": np.full(20_000, change)}, kept or [StoredArray((np.arange(50_000),))]),
        "two": SnapshotPart({"change": change}, {"numbers": np.full(10, change)}, files={"f": lambda path: bool(path.write_bytes(b"x" * 9000))}),
    }
    generation = store.write(change, parts)
    if generation is not None:
        kept = generation.parts["one"].segments
        print(change, flush=True)
"""


def store_in(folder, identity="a"):
    return SnapshotStore(Path(folder) / "views", identity=identity)


def parts(number=1):
    return {
        "words": SnapshotPart(
            {"n": number, "text": "가\ud800"}, {"a": np.arange(5) + number, "b": np.zeros((0, 3), np.float32)}
        ),
        "vectors": SnapshotPart(
            {}, {"alive": np.array([True])}, [StoredArray((np.ones((3, 2), np.float32), np.zeros((1, 2), np.float32)))]
        ),
        "graph": SnapshotPart({}, files={"graph": lambda path: bool(path.write_bytes(b"graph"))}),
    }


def files_of(folder):
    return sorted(path for path in (Path(folder) / "views").iterdir() if path.suffix in {".npy", ".view", ".tmp"})


def content(segment):
    return np.concatenate([*segment.pieces(2)]).tolist()


def check_whole(generation, number):
    assert [] == generation.damaged
    assert number == generation.change
    words, vectors, graph = (generation.parts[name] for name in ("words", "vectors", "graph"))
    assert {"n": number, "text": "가\ud800"} == words.meta
    assert (np.arange(5) + number).tolist() == words.arrays["a"].tolist()
    assert (0, 3) == words.arrays["b"].shape
    assert [[1, 1], [1, 1], [1, 1], [0, 0]] == content(vectors.segments[0])
    assert graph.files["graph"].is_intact()


def test_written_snapshot_is_read_back(tmp_path):
    """The generation returned by the write equals the loaded one."""
    written = store_in(tmp_path).write(1, parts())

    check_whole(written, 1)
    check_whole(store_in(tmp_path).load(), 1)


def test_load_returns_none_without_snapshot(tmp_path):
    """The folder may be empty or missing."""
    assert store_in(tmp_path).load() is None
    assert store_in(tmp_path).clear()


@given(
    array=hnp.arrays(
        st.sampled_from([np.bool_, np.int8, np.int32, np.int64, np.uint64, np.float32, np.float64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    ),
    meta=st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)),
)
def test_arrays_keep_bytes_type_and_shape(array, meta):
    """Loaded arrays are equal, aligned and read-only, for all numeric types and shapes."""
    with tempfile.TemporaryDirectory() as folder:
        store = store_in(folder)
        store.write(1, {"a": SnapshotPart(meta, {"x": array, "": array})})
        loaded = store.load().parts["a"]
        again = loaded.arrays["x"]

        assert meta == loaded.meta
        assert (array.dtype, array.shape, array.tobytes()) == (again.dtype, again.shape, again.tobytes())
        assert again.flags.aligned
        assert not again.flags.writeable


def test_loaded_arrays_survive_truncation_of_files(tmp_path):
    """They are copies in memory, because truncating a mapped file crashes the process."""
    store_in(tmp_path).write(1, {"a": SnapshotPart({}, {"x": np.arange(10)})})
    loaded = store_in(tmp_path).load().parts["a"]
    for path in files_of(tmp_path):
        os.truncate(path, 0)

    assert list(range(10)) == loaded.arrays["x"].tolist()
    assert not loaded.arrays["x"].flags.writeable


def _rows_in_file(folder):
    segment = StoredArray((np.arange(12).reshape(4, 3),))
    loaded = store_in(folder).write(1, {"a": SnapshotPart({}, {}, [segment])}).parts["a"].segments[0]
    return loaded.blocks[0], folder / "views" / loaded.stored.name


def test_rows_of_segment_are_read_on_demand(tmp_path):
    """Rows can be read in any order, repeatedly, and as slices."""
    rows, _ = _rows_in_file(tmp_path)

    assert [[9, 10, 11], [0, 1, 2], [9, 10, 11]] == rows.take(np.array([3, 0, 3])).tolist()
    assert [[3, 4, 5], [6, 7, 8]] == rows.slice(1, 3).tolist()
    assert (0, 3) == rows.take(np.array([], np.int64)).shape


@pytest.mark.parametrize("damage", ["_truncate", "_flip", "_page", "_empty"])
def test_reading_modified_segment_raises(tmp_path, damage):
    """A file that changes while it is open raises an error, and never gives wrong numbers."""
    rows, path = _rows_in_file(tmp_path)
    globals()[damage](path)

    with pytest.raises(module.SnapshotInvalid):
        rows.take(np.array([0]))
    with pytest.raises(module.SnapshotInvalid):
        rows.slice(0, 4)


def test_deleted_segment_remains_readable_while_open(tmp_path):
    """Another process may delete an open file. A touched file is verified again."""
    rows, path = _rows_in_file(tmp_path)
    os.utime(path)
    path.unlink()

    assert [[0, 1, 2]] == rows.slice(0, 1).tolist()


_AT_EXIT = """
import atexit, sys
from pathlib import Path
import numpy as np
from mama_structs.memory.engines.local.views.snapshots import SnapshotPart, SnapshotStore, StoredArray
read = []
atexit.register(lambda: print(read[0].slice(0, 1).tolist()))
segment = StoredArray((np.arange(6).reshape(2, 3),))
read += SnapshotStore(Path(sys.argv[1]), identity="x").write(1, {"a": SnapshotPart({}, {}, [segment])}).parts["a"].segments[0].blocks
"""


def test_segment_file_stays_open_while_referenced(tmp_path):
    """At interpreter exit too, since a thread that builds a graph may be stopped late."""
    done = subprocess.run(
        [sys.executable, "-c", _AT_EXIT, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )

    assert ("[[0, 1, 2]]\n", "") == (done.stdout, done.stderr)


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), np.array(["2020"], "M8[s]")])
def test_arrays_of_objects_are_rejected(tmp_path, array):
    """Arrays of objects could only be stored as pickles."""
    with pytest.raises(InvalidArgument, match=r"a\.x must hold numbers"):
        store_in(tmp_path).write(1, {"a": SnapshotPart({}, {"x": array})})


@pytest.mark.parametrize("name", ["", "../a", "A", "manifest-x", "a" * 40])
def test_invalid_part_name_is_rejected(tmp_path, name):
    """A part name cannot lead out of the folder."""
    with pytest.raises(InvalidArgument):
        store_in(tmp_path).write(1, {name: SnapshotPart({})})


def test_segment_file_is_reused(tmp_path):
    """Later generations use the same file, and it is deleted when none does."""
    store = store_in(tmp_path)
    segments = store.write(1, {"a": SnapshotPart({}, {}, [StoredArray((np.arange(9),))])}).parts["a"].segments
    name = segments[0].stored.name
    again = store.write(2, {"a": SnapshotPart({}, {}, segments)}).parts["a"].segments

    assert name == again[0].stored.name
    store.write(3, {"a": SnapshotPart({})})
    assert name in [path.name for path in files_of(tmp_path)]
    store.write(4, {"a": SnapshotPart({})})
    assert name not in [path.name for path in files_of(tmp_path)]


def test_missing_segment_file_is_written_again(tmp_path):
    """Another process may have deleted it."""
    store = store_in(tmp_path)
    segments = store.write(1, {"a": SnapshotPart({}, {}, [StoredArray((np.arange(9),))])}).parts["a"].segments
    (tmp_path / "views" / segments[0].stored.name).unlink()
    store.write(2, {"a": SnapshotPart({}, {}, segments)})

    assert list(range(9)) == content(store.load().parts["a"].segments[0])


def test_missing_file_of_other_library_is_left_out(tmp_path):
    """It cannot be written again, but the rest of the next generation is complete."""
    store = store_in(tmp_path)
    file = store.write(1, parts()).parts["graph"].files["graph"]
    file.path.unlink()
    store.write(2, {"graph": SnapshotPart({}, files={"graph": file, "none": lambda path: False})})

    assert {} == store.load().parts["graph"].files


def test_previous_generation_is_kept(tmp_path):
    """If the newest manifest is lost, the previous generation is loaded."""
    store = store_in(tmp_path)
    for number in (1, 2, 3):
        store.write(number, parts(number))
    (tmp_path / "views" / module.MANIFEST_FILE).write_bytes(b"")

    check_whole(store.load(), 2)
    assert store.write(4, parts(4))
    check_whole(store.load(), 4)


def test_snapshot_of_other_journal_is_ignored(tmp_path):
    """The next snapshot overwrites it."""
    store_in(tmp_path, "b").write(9, parts(9))
    store = store_in(tmp_path)

    assert store.load() is None
    assert store.write(1, parts())
    check_whole(store.load(), 1)


def test_snapshot_newer_than_journal_is_ignored(tmp_path):
    """Such a snapshot belongs to another history of the journal."""
    store = store_in(tmp_path)
    store.write(1, parts())
    store.write(5, parts(5))

    check_whole(store.load(max_change=4), 1)
    assert store.load(max_change=0) is None


def test_older_snapshot_does_not_replace_newer_one(tmp_path):
    """A snapshot of the same change replaces the existing one."""
    store = store_in(tmp_path)
    store.write(5, parts(5))

    assert store.write(4, parts(4)) is None
    assert store.write(5, parts(5))
    check_whole(store.load(), 5)


def test_clear_deletes_all_view_files(tmp_path):
    """Other files in the folder are kept."""
    store = store_in(tmp_path)
    store.write(1, parts())
    (tmp_path / "views" / "notes.txt").write_text("mine")

    assert store.clear()
    assert store.load() is None
    assert [] == files_of(tmp_path)
    assert (tmp_path / "views" / "notes.txt").exists()


def _truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def _page(path):
    content = bytearray(path.read_bytes())
    content[: min(4096, len(content))] = b"\x55" * min(4096, len(content))
    path.write_bytes(content)


def _empty(path):
    path.write_bytes(b"")


def _swap(path):
    other = next(each for each in sorted(path.parent.glob("*.npy")) if each != path)
    path.write_bytes(other.read_bytes())


DAMAGES = [_truncate, _flip, _page, _empty, _swap, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["words", "vectors"])
def test_damaged_part_is_left_out(tmp_path, name, damage, caplog):
    """The damaged part is reported, and the other parts are loaded."""
    store = store_in(tmp_path)
    store.write(1, parts())
    damage(next(path for path in files_of(tmp_path) if path.name.startswith(name) and path.stat().st_size > 60))
    generation = store.load()

    assert [name] == generation.damaged
    assert {"words", "vectors", "graph"} - {name} == generation.parts.keys()
    assert name in caplog.text


def test_files_of_other_libraries_are_verified_on_use(tmp_path):
    """A damaged one does not damage its part, and is detected by is_intact()."""
    store = store_in(tmp_path)
    store.write(1, parts())
    file = store.load().parts["graph"].files["graph"]
    file.path.write_bytes(b"grapH")

    assert not store.load().parts["graph"].files["graph"].is_intact()


@pytest.mark.parametrize("damage", [_truncate, _flip, _page, _empty, Path.unlink])
def test_previous_generation_is_loaded_when_manifest_is_damaged(tmp_path, damage):
    store = store_in(tmp_path)
    store.write(1, parts())
    assert store.write(2, parts(2))
    damage(tmp_path / "views" / module.MANIFEST_FILE)

    check_whole(store.load(), 1)


def _resealed(folder, change):
    """Change the manifest, and write it with a valid checksum."""
    path = folder / "views" / module.MANIFEST_FILE
    manifest = json.loads(path.read_bytes().partition(b"\n")[2])
    change(manifest)
    body = json.dumps(manifest).encode()
    path.write_bytes(module.hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def test_manifest_of_other_format_is_ignored(tmp_path):
    store = store_in(tmp_path)
    store.write(1, parts())
    _resealed(tmp_path, lambda manifest: manifest.update(format=0))

    assert store.load() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part.update(names=["a", "b", "c"]),
        lambda part: part.update(names=None),
        lambda part: part.update(names=[["a"]]),
        lambda part: part.update(meta=[0, 3]),
        lambda part: part["arrays"].update(name="../../outside"),
        lambda part: part["arrays"].update(size=-1),
        lambda part: part["arrays"].update(size="60"),
        lambda part: part["arrays"].update(sha256=None),
    ],
)
def test_inconsistent_manifest_entry_damages_its_part_only(tmp_path, change):
    """Entries with a valid checksum and impossible values raise no error."""
    store = store_in(tmp_path)
    store.write(1, parts())
    _resealed(tmp_path, lambda manifest: change(manifest["parts"]["words"]))

    assert ["words"] == store.load().damaged


def test_arrays_are_in_npy_format(tmp_path):
    """NumPy reads the files without this package."""
    store_in(tmp_path).write(1, parts())
    (words,) = (path for path in files_of(tmp_path) if path.name.startswith("words"))
    (segment,) = (path for path in files_of(tmp_path) if path.name.startswith("vectors") and path.stat().st_size > 140)
    with words.open("rb") as file:
        a, b = (np.load(file, allow_pickle=False) for _ in range(2))

    assert (np.arange(5) + 1).tolist() == a.tolist()
    assert (0, 3) == b.shape
    assert [[1, 1], [1, 1], [1, 1], [0, 0]] == np.load(segment, allow_pickle=False).tolist()


class Unpickled:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def _header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def _npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _described(shape, descr="'<i8'", is_fortran=False):
    return _header(f"{{'descr': {descr}, 'fortran_order': {is_fortran}, 'shape': {shape}}}".encode()) + bytes(24)


@pytest.mark.parametrize("part", ["words", "vectors"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04" + bytes(60),
        b"\x80\x04N.",
        _header(b"("),
        _header(b"{'descr': '<i8'"),
        _header(b"[" * 5_000),
        _header(b"{}"),
        _described("(4,)"),
        _described("(-3,)"),
        _described("(-1, -3)"),
        _described("(1, 1, 3)"),
        _header(b"{'descr': '<i8', 'fortran_order': False, 'shape': ()}") + bytes(8),
        _described("(10**12,)"),
        _described("(1000000000000,)"),
        _described("(3.5,)"),
        _described("(1, 3)", "'O'"),
        _described("(1, 3)", "'V8'"),
        _described("(1, 3)", "'M8[s]'"),
        _described("(1, 6)", "'U1'"),
        _described("(1, 3)", "[('a', 'O')]"),
        _described("(1, 3)", "'no such type'"),
        pytest.param(None, id="pickled"),
    ],
)
def test_hostile_array_damages_its_part_only(tmp_path, part, content):
    """A file with a valid checksum that is not a valid array raises no error, and is never unpickled."""
    store = store_in(tmp_path)
    store.write(1, parts())
    if content is None:
        content = _npy(np.array([Unpickled(tmp_path / "touched")], object))

    def change(manifest):
        entry = manifest["parts"][part]
        stored = entry["segments"][0] if part == "vectors" else entry["arrays"]
        (tmp_path / "views" / stored["name"]).write_bytes(content)
        stored.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())

    _resealed(tmp_path, change)

    assert [part] == store.load().damaged
    assert not (tmp_path / "touched").exists()


def test_snapshot_of_earlier_format_is_deleted(tmp_path):
    """Its manifest is ignored, and the next snapshot replaces all its files."""
    store = store_in(tmp_path)
    store.write(1, parts())
    _resealed(tmp_path, lambda manifest: manifest.update(format=1))
    old = tmp_path / "views" / f"words-{'0' * 32}.view"
    old.write_bytes(b"mama-structs view 1")
    before = files_of(tmp_path)

    assert store.write(2, parts(2))
    assert not set(before) & set(files_of(tmp_path))
    check_whole(store.load(), 2)


@pytest.mark.parametrize("change", [-1, 2**48, 2**64, 10**30])
def test_manifest_with_impossible_change_is_ignored(tmp_path, change):
    """It neither counts as a generation nor as proof that the journal lost changes."""
    store = store_in(tmp_path)
    store.write(1, parts())
    _resealed(tmp_path, lambda manifest: manifest.update(change=change))

    assert store.load() is None
    assert 0 == store.last()


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff\n\xff", b"x" * 100, b"[" * 10_000])
def test_manifest_of_arbitrary_bytes_raises_no_error(tmp_path, text):
    store = store_in(tmp_path)
    store.write(1, parts())
    path = tmp_path / "views" / module.MANIFEST_FILE
    path.write_bytes(text)
    assert store.load() is None

    path.write_bytes(module.hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    assert store.load() is None


@given(data=st.data())
def test_no_modified_byte_is_loaded(data):
    """Whichever byte of any file changes, the affected part is not loaded."""
    with tempfile.TemporaryDirectory() as folder:
        store = store_in(folder)
        store.write(1, parts())
        # Sort by kind and size, because the random part of a file name would make examples irreproducible.
        files = [path for path in files_of(folder) if path.stat().st_size]
        files.sort(key=lambda path: (path.name.split("-")[0], path.stat().st_size))
        path = [Path(folder) / "views" / module.MANIFEST_FILE, *files][data.draw(st.integers(0, len(files)))]
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        generation = store.load()

        if generation is None:
            assert module.MANIFEST_FILE == path.name
        elif generation.damaged:
            assert [path.name.split("-")[0]] == generation.damaged
        else:
            assert not generation.parts["graph"].files["graph"].is_intact()


class Fails:
    """Makes the N-th call of the wrapped functions fail."""

    def __init__(self, number, code):
        self.left, self.code, self.has_failed = number, code, False

    def wrap(self, function):
        def wrapped(*arguments, **keywords):
            self.left -= 1
            if self.left == 0:
                self.has_failed = True
                raise OSError(self.code, os.strerror(self.code))
            return function(*arguments, **keywords)

        return wrapped


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_failed_system_call_keeps_old_generation(tmp_path, code, caplog):
    """Nothing is raised, no temporary file remains, and a complete generation exists."""
    store = store_in(tmp_path)
    store.write(1, parts())
    for number in range(1, 200):
        fails = Fails(number, code)
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in ((os, "open"), (os, "fsync"), (os, "fstat"), (Path, "replace"), (Path, "chmod")):
                patch.setattr(owner, name, fails.wrap(getattr(owner, name)))
            patch.setattr(module.hashlib, "file_digest", fails.wrap(module.hashlib.file_digest))
            written = store.write(number + 1, parts(number + 1))
        generation = store.load()

        check_whole(generation, generation.change)
        if written is None:
            assert f"no snapshot at change {number + 1}" in caplog.text
            assert generation.change <= number
        else:
            assert number + 1 == generation.change
        if not fails.has_failed:
            break
        # A generation has five files. There are two generations, or three if the deletion of the oldest failed.
        assert len(files_of(tmp_path)) <= (10 if written is None else 15)
    else:
        pytest.fail("it never came through")
    assert number > 15
    assert 10 == len(files_of(tmp_path))


def test_full_disk_keeps_old_generation(tmp_path):
    """The incomplete file is deleted."""
    store_in(tmp_path).write(1, parts())
    before = files_of(tmp_path)
    code = f"""
import resource, sys
from pathlib import Path
import numpy as np
from mama_structs.memory.engines.local.views.snapshots import SnapshotPart, SnapshotStore
sys.dont_write_bytecode = True  # as in test_backup.py
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
store = SnapshotStore(Path({str(tmp_path / "views")!r}), identity="a")
print(store.write(2, {{"a": SnapshotPart({{}}, {{"x": np.zeros(100_000)}})}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SRC}, check=False, capture_output=True, text=True
    )

    assert "None\n" == done.stdout, done.stderr
    assert before == files_of(tmp_path)
    check_whole(store_in(tmp_path).load(), 1)


def test_unwritable_folder_is_logged_only(tmp_path, caplog):
    """Snapshots are optional, so everything else works."""
    (tmp_path / "views").write_text("a file")
    store = store_in(tmp_path)

    assert store.write(1, parts()) is None
    assert "no snapshot" in caplog.text
    assert store.load() is None


def test_snapshot_files_are_private(tmp_path):
    """The files contain texts of memories."""
    store_in(tmp_path).write(1, parts())

    assert 0o700 == (tmp_path / "views").stat().st_mode & 0o777
    assert {0o600} == {path.stat().st_mode & 0o777 for path in (tmp_path / "views").iterdir()}


def test_write_is_skipped_while_another_process_writes(tmp_path):
    """The writer does not wait for the lock."""
    store = store_in(tmp_path)
    store.write(1, parts())
    lock = LockFile.open(tmp_path / "views" / module.LOCK_FILE)
    assert lock.try_lock(0)

    assert store.write(2, parts(2)) is None
    assert not store.clear()
    lock.close()
    assert store.write(2, parts(2))


def _start(*arguments):
    command = [sys.executable, "-c", WRITER, *map(str, arguments)]
    child = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": SRC}, stdout=subprocess.PIPE, text=True)
    assert "begins\n" == child.stdout.readline()
    return child


def _check_written(generation):
    assert [] == generation.damaged
    for part in generation.parts.values():
        assert generation.change == part.meta["change"]
        assert {generation.change} == set(part.arrays["numbers"].tolist())
    assert 50_000 == len(generation.parts["one"].segments[0])


def test_concurrent_writers_leave_complete_generations(tmp_path):
    """While two processes write, a third one always reads a complete generation."""
    children = [_start(tmp_path / "views", first, 2, 1_000_000) for first in (0, 1)]
    store = store_in(tmp_path)
    seen, looks = set(), 0
    # Loop until enough was read, since a busy machine may schedule the reader rarely.
    while looks < 60 or len(seen) < 10:
        assert [None, None] == [child.poll() for child in children]
        generation = store.load()
        looks += 1
        if generation is not None:
            _check_written(generation)
            seen.add(generation.change)
    Path(f"{tmp_path / 'views'}-stop").touch()
    written = sum(child.stdout.read().count("\n") for child in children)
    for child in children:
        child.stdout.close()

    assert [0, 0] == [child.wait() for child in children]
    assert written >= 10
    assert store.write(1_000_000, {"one": SnapshotPart({})})
    assert store.write(1_000_001, {"one": SnapshotPart({})})
    assert 2 == len(files_of(tmp_path))


@pytest.mark.parametrize("wait", [0.0, 0.01, 0.02, 0.035, 0.05])
def test_killed_writer_leaves_complete_generation(tmp_path, wait):
    """
    After SIGKILL at any time, the last acknowledged generation or a newer one is complete.

    Temporary files are deleted later.
    """
    child = _start(tmp_path / "views", 0, 1, 10_000)
    first = child.stdout.readline()
    time.sleep(wait)
    child.send_signal(signal.SIGKILL)
    acknowledged = [int(line) for line in [first, *child.stdout] if line.endswith("\n")]
    child.wait()
    child.stdout.close()
    generation = store_in(tmp_path).load()

    _check_written(generation)
    assert generation.change >= acknowledged[-1]
    store = store_in(tmp_path)
    for number in (20_000, 20_001):
        store.write(number, {"one": SnapshotPart({})})
    assert 2 == len(files_of(tmp_path))
