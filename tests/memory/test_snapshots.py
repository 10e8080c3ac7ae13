"""Snapshots are written whole or not at all, and never read wrongly."""

from __future__ import annotations

import errno
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
from mama_structs.memory.engines.local.views.snapshots import Part, SnapshotStore, StoredArray
from mama_structs.storage.locks import LockFile

# Children import the package that is under test here.
SRC = str(Path(mama_structs.__file__).parents[1])

WRITER = """
import sys
from pathlib import Path
import numpy as np
from mama_structs.memory.engines.local.views.snapshots import Part, StoredArray, SnapshotStore
store = SnapshotStore(Path(sys.argv[1]), identity="a")
first, step, last = map(int, sys.argv[2:])
kept = ()
print("begins", flush=True)
for change in range(first, last, step):
    if Path(sys.argv[1] + "-stop").exists():
        break
    parts = {
        "one": Part({"change": change}, {"numbers": np.full(20_000, change)}, kept or [StoredArray((np.arange(50_000),))]),
        "two": Part({"change": change}, {"numbers": np.full(10, change)}, files={"f": lambda path: bool(path.write_bytes(b"x" * 9000))}),
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
        "words": Part(
            {"n": number, "text": "가\ud800"}, {"a": np.arange(5) + number, "b": np.zeros((0, 3), np.float32)}
        ),
        "vectors": Part(
            {}, {"alive": np.array([True])}, [StoredArray((np.ones((3, 2), np.float32), np.zeros((1, 2), np.float32)))]
        ),
        "graph": Part({}, files={"graph": lambda path: bool(path.write_bytes(b"graph"))}),
    }


def files_of(folder):
    return sorted(path for path in (Path(folder) / "views").iterdir() if path.suffix in {".view", ".tmp"})


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
    assert graph.files["graph"].is_whole()


def test_what_was_written_is_read_back(tmp_path):
    """A generation comes back as it was written, from the call that wrote it and from any later one."""
    written = store_in(tmp_path).write(1, parts())

    check_whole(written, 1)
    check_whole(store_in(tmp_path).load(), 1)


def test_nothing_is_there_before_the_first(tmp_path):
    """An empty or missing folder has no generation."""
    assert store_in(tmp_path).load() is None
    assert store_in(tmp_path).clear()


@given(
    array=hnp.arrays(
        st.sampled_from([np.bool_, np.int8, np.int32, np.int64, np.uint64, np.float32, np.float64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    ),
    meta=st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)),
)
def test_every_array_keeps_its_bytes_type_and_shape(array, meta):
    """Arrays of any numbers and any shape come back equal, aligned and read-only."""
    with tempfile.TemporaryDirectory() as folder:
        store = store_in(folder)
        store.write(1, {"a": Part(meta, {"x": array, "": array})})
        loaded = store.load().parts["a"]
        again = loaded.arrays["x"]

        assert meta == loaded.meta
        assert (array.dtype, array.shape, array.tobytes()) == (again.dtype, again.shape, again.tobytes())
        assert not again.size or (again.ctypes.data % 64 == 0 and not again.flags.writeable)


def test_loaded_arrays_stay_what_they_were_when_their_files_are_cut(tmp_path):
    """They are in memory: a map of a file that shrinks would end the process."""
    store_in(tmp_path).write(1, {"a": Part({}, {"x": np.arange(10)})})
    loaded = store_in(tmp_path).load().parts["a"]
    for path in files_of(tmp_path):
        os.truncate(path, 0)

    assert list(range(10)) == loaded.arrays["x"].tolist()
    assert not loaded.arrays["x"].flags.writeable


def _rows_in_file(folder):
    segment = StoredArray((np.arange(12).reshape(4, 3),))
    loaded = store_in(folder).write(1, {"a": Part({}, {}, [segment])}).parts["a"].segments[0]
    return loaded.blocks[0], folder / "views" / loaded.stored.name


def test_rows_of_a_segment_are_read_where_they_are_asked_for(tmp_path):
    """In any order and more than once, and as a run."""
    rows, _ = _rows_in_file(tmp_path)

    assert [[9, 10, 11], [0, 1, 2], [9, 10, 11]] == rows.take(np.array([3, 0, 3])).tolist()
    assert [[3, 4, 5], [6, 7, 8]] == rows.slice(1, 3).tolist()
    assert (0, 3) == rows.take(np.array([], np.int64)).shape


@pytest.mark.parametrize("damage", ["_truncate", "_flip", "_page", "_empty"])
def test_no_row_is_read_of_a_segment_that_was_changed_meanwhile(tmp_path, damage):
    """A file that is cut or overwritten while it is open gives an error and never a wrong number."""
    rows, path = _rows_in_file(tmp_path)
    globals()[damage](path)

    with pytest.raises(module.ViewLost):
        rows.take(np.array([0]))
    with pytest.raises(module.ViewLost):
        rows.slice(0, 4)


def test_a_segment_that_others_deleted_is_read_on(tmp_path):
    """Another process may sweep a file that this one reads; what was touched is compared once more."""
    rows, path = _rows_in_file(tmp_path)
    os.utime(path)
    path.unlink()

    assert [[0, 1, 2]] == rows.slice(0, 1).tolist()


_AT_EXIT = """
import atexit, sys
from pathlib import Path
import numpy as np
from mama_structs.memory.engines.local.views.snapshots import Part, SnapshotStore, StoredArray
read = []
atexit.register(lambda: print(read[0].slice(0, 1).tolist()))
segment = StoredArray((np.arange(6).reshape(2, 3),))
read += SnapshotStore(Path(sys.argv[1]), identity="x").write(1, {"a": Part({}, {}, [segment])}).parts["a"].segments[0].blocks
"""


def test_rows_are_read_as_long_as_somebody_has_them(tmp_path):
    """Also while the interpreter ends: the thread that builds a graph is stopped then, perhaps after other things."""
    done = subprocess.run(
        [sys.executable, "-c", _AT_EXIT, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )

    assert ("[[0, 1, 2]]\n", "") == (done.stdout, done.stderr)


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), np.array(["2020"], "M8[s]")])
def test_only_numbers_are_kept(tmp_path, array):
    """Objects, which would have to be pickled, are refused at once."""
    with pytest.raises(InvalidArgument, match=r"a\.x must hold numbers"):
        store_in(tmp_path).write(1, {"a": Part({}, {"x": array})})


@pytest.mark.parametrize("name", ["", "../a", "A", "manifest-x", "a" * 40])
def test_a_part_is_named_so_that_its_file_can_be(tmp_path, name):
    """A part's name never leads out of the folder."""
    with pytest.raises(InvalidArgument):
        store_in(tmp_path).write(1, {name: Part({})})


def test_a_segment_is_written_once(tmp_path):
    """Later generations use a segment's file again, and it is swept when none does any more."""
    store = store_in(tmp_path)
    segments = store.write(1, {"a": Part({}, {}, [StoredArray((np.arange(9),))])}).parts["a"].segments
    name = segments[0].stored.name
    again = store.write(2, {"a": Part({}, {}, segments)}).parts["a"].segments

    assert name == again[0].stored.name
    store.write(3, {"a": Part({})})
    assert name in [path.name for path in files_of(tmp_path)]
    store.write(4, {"a": Part({})})
    assert name not in [path.name for path in files_of(tmp_path)]


def test_a_segment_whose_file_is_gone_is_written_again(tmp_path):
    """Another process may have swept a file that this one was to use again."""
    store = store_in(tmp_path)
    segments = store.write(1, {"a": Part({}, {}, [StoredArray((np.arange(9),))])}).parts["a"].segments
    (tmp_path / "views" / segments[0].stored.name).unlink()
    store.write(2, {"a": Part({}, {}, segments)})

    assert list(range(9)) == content(store.load().parts["a"].segments[0])


def test_another_librarys_file_that_is_gone_is_left_out(tmp_path):
    """What cannot be written again is missing from the next generation, which is otherwise whole."""
    store = store_in(tmp_path)
    file = store.write(1, parts()).parts["graph"].files["graph"]
    file.path.unlink()
    store.write(2, {"graph": Part({}, files={"graph": file, "none": lambda path: False})})

    assert {} == store.load().parts["graph"].files


def test_the_one_before_is_kept(tmp_path):
    """When the newest manifest is lost, the generation before it is read, whole."""
    store = store_in(tmp_path)
    for number in (1, 2, 3):
        store.write(number, parts(number))
    (tmp_path / "views" / module.MANIFEST).write_bytes(b"")

    check_whole(store.load(), 2)
    assert store.write(4, parts(4))
    check_whole(store.load(), 4)


def test_a_snapshot_of_another_journal_is_ignored(tmp_path):
    """A foreign folder gives nothing, and is written over."""
    store_in(tmp_path, "b").write(9, parts(9))
    store = store_in(tmp_path)

    assert store.load() is None
    assert store.write(1, parts())
    check_whole(store.load(), 1)


def test_a_snapshot_of_the_future_is_ignored(tmp_path):
    """A generation of a later change than the journal has is of another history."""
    store = store_in(tmp_path)
    store.write(1, parts())
    store.write(5, parts(5))

    check_whole(store.load(at_most=4), 1)
    assert store.load(at_most=0) is None


def test_a_process_that_lags_does_not_undo_a_later_snapshot(tmp_path):
    """An earlier change is not written over a later one, an equal one is."""
    store = store_in(tmp_path)
    store.write(5, parts(5))

    assert store.write(4, parts(4)) is None
    assert store.write(5, parts(5))
    check_whole(store.load(), 5)


def test_clear_deletes_everything_of_ours(tmp_path):
    """After clear no generation and no file of one is left, and what is not ours is."""
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
    other = next(each for each in sorted(path.parent.glob("*.view")) if each != path)
    path.write_bytes(other.read_bytes())


DAMAGES = [_truncate, _flip, _page, _empty, _swap, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["words", "vectors", "graph"])
def test_a_damaged_part_is_left_out_by_itself(tmp_path, name, damage, caplog):
    """Whatever happens to one part's file, the part is named as damaged and the others come back."""
    store = store_in(tmp_path)
    store.write(1, parts())
    damage(next(path for path in files_of(tmp_path) if path.name.startswith(name) and path.stat().st_size > 60))
    generation = store.load()

    assert [name] == generation.damaged
    assert {"words", "vectors", "graph"} - {name} == generation.parts.keys()
    assert name in caplog.text


def test_files_of_other_libraries_are_looked_at_when_they_are_used(tmp_path):
    """A damaged file of another library does not damage its part, and says so itself."""
    store = store_in(tmp_path)
    store.write(1, parts())
    file = store.load().parts["graph"].files["graph"]
    file.path.write_bytes(b"grapH")

    assert not store.load().parts["graph"].files["graph"].is_whole()


@pytest.mark.parametrize("damage", [_truncate, _flip, _page, _empty, Path.unlink])
def test_a_damaged_manifest_gives_the_generation_before(tmp_path, damage):
    """A manifest is whole or not there."""
    store = store_in(tmp_path)
    store.write(1, parts())
    assert store.write(2, parts(2))
    damage(tmp_path / "views" / module.MANIFEST)

    check_whole(store.load(), 1)


def _resealed(folder, change):
    """Change the manifest as somebody would who knows its checksum."""
    path = folder / "views" / module.MANIFEST
    manifest = json.loads(path.read_bytes().partition(b"\n")[2])
    change(manifest)
    body = json.dumps(manifest).encode()
    path.write_bytes(module.hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def test_an_older_format_is_ignored(tmp_path):
    """A manifest of another format is not read at all."""
    store = store_in(tmp_path)
    store.write(1, parts())
    _resealed(tmp_path, lambda manifest: manifest.update(format=0))

    assert store.load() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part["arrays"]["a"].update(dtype="O"),
        lambda part: part["arrays"]["a"].update(dtype="V8"),
        lambda part: part["arrays"]["a"].update(dtype="no such type"),
        lambda part: part["arrays"]["a"].update(shape=[-1]),
        lambda part: part["arrays"]["a"].update(shape=[10**12]),
        lambda part: part["arrays"]["a"].update(shape="ab"),
        lambda part: part["arrays"]["a"].update(offset=10**12),
        lambda part: part["arrays"]["a"].update(offset=None),
        lambda part: part.update(meta=[0, 3]),
        lambda part: part["file"].update(name="../../outside"),
        lambda part: part["file"].update(size=-1),
    ],
)
def test_a_manifest_that_lies_crashes_nothing(tmp_path, change):
    """A part whose description is not possible is damaged."""
    store = store_in(tmp_path)
    store.write(1, parts())
    _resealed(tmp_path, lambda manifest: change(manifest["parts"]["words"]))

    assert ["words"] == store.load().damaged


@pytest.mark.parametrize("change", [-1, 2**48, 2**64, 10**30])
def test_a_manifest_of_a_change_that_no_journal_can_have_tells_nothing(tmp_path, change):
    """Neither is it a generation, nor does it say that the journal went back."""
    store = store_in(tmp_path)
    store.write(1, parts())
    _resealed(tmp_path, lambda manifest: manifest.update(change=change))

    assert store.load() is None
    assert 0 == store.last()


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff\n\xff", b"x" * 100, b"[" * 10_000])
def test_a_manifest_that_is_none_crashes_nothing(tmp_path, text):
    """Any bytes can stand where the manifest is expected."""
    store = store_in(tmp_path)
    store.write(1, parts())
    path = tmp_path / "views" / module.MANIFEST
    path.write_bytes(text)
    assert store.load() is None

    path.write_bytes(module.hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    assert store.load() is None


@given(data=st.data())
def test_no_changed_byte_gets_through(data):
    """Whichever byte of whichever file changes, what is loaded is what was written, or is not loaded."""
    with tempfile.TemporaryDirectory() as folder:
        store = store_in(folder)
        store.write(1, parts())
        # Their names are random, but not their order by kind and size.
        files = sorted(files_of(folder), key=lambda path: (path.name.split("-")[0], path.stat().st_size))
        path = [Path(folder) / "views" / module.MANIFEST, *files][data.draw(st.integers(0, len(files)))]
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        generation = store.load()

        if generation is None:
            assert module.MANIFEST == path.name
        elif generation.damaged:
            assert [path.name.split("-")[0]] == generation.damaged
        else:
            assert not generation.parts["graph"].files["graph"].is_whole()


class Fails:
    """Lets the N-th of all calls of some functions fail."""

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
def test_whichever_call_fails_the_old_generation_stands(tmp_path, code, caplog):
    """The N-th call of the operating system fails: nothing is raised, no rubbish is left, and a generation is whole."""
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
        # Five files a generation: two generations, and a third where the sweep itself failed.
        assert len(files_of(tmp_path)) <= (10 if written is None else 15)
    else:
        pytest.fail("it never came through")
    assert number > 15
    assert 10 == len(files_of(tmp_path))


def test_a_full_disk_leaves_the_old_generation(tmp_path):
    """A file that cannot grow beyond a limit is no snapshot, and is deleted."""
    store_in(tmp_path).write(1, parts())
    before = files_of(tmp_path)
    code = f"""
import resource, sys
from pathlib import Path
import numpy as np
from mama_structs.memory.engines.local.views.snapshots import Part, SnapshotStore
sys.dont_write_bytecode = True  # as in test_backup.py
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
store = SnapshotStore(Path({str(tmp_path / "views")!r}), identity="a")
print(store.write(2, {{"a": Part({{}}, {{"x": np.zeros(100_000)}})}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SRC}, check=False, capture_output=True, text=True
    )

    assert "None\n" == done.stdout, done.stderr
    assert before == files_of(tmp_path)
    check_whole(store_in(tmp_path).load(), 1)


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, caplog):
    """Snapshots are optional: where they cannot be kept, that is logged and all else works."""
    (tmp_path / "views").write_text("a file")
    store = store_in(tmp_path)

    assert store.write(1, parts()) is None
    assert "no snapshot" in caplog.text
    assert store.load() is None


def test_files_are_for_this_user_alone(tmp_path):
    """The folder and its files hold what memories say."""
    store_in(tmp_path).write(1, parts())

    assert 0o700 == (tmp_path / "views").stat().st_mode & 0o777
    assert {0o600} == {path.stat().st_mode & 0o777 for path in (tmp_path / "views").iterdir()}


def test_while_another_writes_nothing_is_written(tmp_path):
    """Who does not get the lock leaves it, and never waits."""
    store = store_in(tmp_path)
    store.write(1, parts())
    lock = LockFile.open(tmp_path / "views" / module.LOCK)
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


def test_two_processes_write_at_once(tmp_path):
    """Whatever two processes write and sweep at once, a third always reads one whole generation."""
    children = [_start(tmp_path / "views", first, 2, 1_000_000) for first in (0, 1)]
    store = store_in(tmp_path)
    seen, looks = set(), 0
    # Not for so many writes: however the machine shares its time, they go on until enough was read.
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
    assert store.write(1_000_000, {"one": Part({})})
    assert store.write(1_000_001, {"one": Part({})})
    assert 2 == len(files_of(tmp_path))


@pytest.mark.parametrize("wait", [0.0, 0.01, 0.02, 0.035, 0.05])
def test_a_kill_while_writing_leaves_a_whole_generation(tmp_path, wait):
    """After kill -9 at any moment the newest generation acknowledged, or one after it, is whole; rubbish goes later."""
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
        store.write(number, {"one": Part({})})
    assert 2 == len(files_of(tmp_path))
