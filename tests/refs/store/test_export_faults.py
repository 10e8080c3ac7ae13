"""`export` under faults: swapped paths, killed processes, full disks and concurrent writers."""

import asyncio
import contextlib
import contextvars
import errno
import fcntl
import functools
import gc
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mama_structs
from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.errors import (
    DescriptorError,
    ExportDenied,
    ExportDiskFull,
    ExportError,
    ExportExists,
    ExportMissing,
    InvalidParameter,
    PathDenied,
)
from mama_structs.refs.store import export as export_module
from mama_structs.refs.store.export import ExportRequest, export

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there it is refused as a whole")

HANDLE = "fd:1"


async def exported(text, path, *, root, handle, kept=None, **options):
    """Export a text in a separate thread, as `RefStore.to_file` does."""
    order = ExportRequest(text, path, handle=handle, **options)
    return await run_in_own_thread(functools.partial(export, order, root=root, kept=kept))


IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
PACKAGE = str(Path(mama_structs.__file__).parents[1])


@pytest.fixture
def root(tmp_path):
    """An empty directory below which a test may export."""
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def outside(tmp_path):
    """A directory outside the root. It contains a file that an export must not change."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"secret")
    return outside


def put(root, path, text="new\n", *, kept=None, **options):
    """Export a text with default options."""
    return export(ExportRequest(text, path, handle=HANDLE, **options), root=root, kept=kept)


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def temporaries(folder):
    return [path.name for path in folder.rglob(".mama-structs-*")]


def run(script, *arguments, before=(), timeout=600):
    """Run a script in another process, and return its output."""
    done = subprocess.run(
        [*before, sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


# --- paths that change between check and open -------------------------------------------------------------------------


def to_outside(root, outside):
    (root / "d").rename(root / "moved")
    (root / "d").symlink_to(outside)


def to_inside(root, outside):
    (root / "d").rename(root / "moved")
    (root / "d").symlink_to("moved")


def to_file(root, outside):
    shutil.rmtree(root / "d")
    (root / "d").write_bytes(b"kept")


def to_nothing(root, outside):
    shutil.rmtree(root / "d")


def file_to_outside(root, outside):
    (root / "d" / "a").unlink()
    (root / "d" / "a").symlink_to(outside / "a")


def file_to_fifo(root, outside):
    (root / "d" / "a").unlink()
    os.mkfifo(root / "d" / "a")


def file_to_directory(root, outside):
    (root / "d" / "a").unlink()
    (root / "d" / "a").mkdir()


@pytest.mark.parametrize("mode", ["write", "append", "insert"])
@pytest.mark.parametrize("path", ["d/a", "d/new"])
@pytest.mark.parametrize(
    ("swap", "error", "rule"),
    [
        (to_outside, PathDenied, "'d' became a symlink after it was checked"),
        (to_inside, PathDenied, "'d' became a symlink after it was checked"),
        (to_file, PathDenied, "'d' is a file, no directory"),
        (to_nothing, ExportMissing, "the directory 'd' does not exist"),
    ],
)
def test_export_fails_when_directory_is_swapped_after_check(
    *, root, outside, monkeypatch, mode, path, swap, error, rule
):
    """Nothing is written through the new directory, even if it is below the root."""
    (root / "d").mkdir()
    (root / "d" / "a").write_bytes(b"old\n")
    resolve = export_module.resolve_path

    def swapped(*arguments, **options):
        place = resolve(*arguments, **options)
        swap(root, outside)
        return place

    monkeypatch.setattr(export_module, "resolve_path", swapped)

    with pytest.raises(error, match=rule):
        put(root, path, mode=mode, insert_at=1 if mode == "insert" else None)

    assert b"secret" == (outside / "a").read_bytes()
    assert ["a"] == listed(outside)
    assert [] == temporaries(root)
    assert not (root / "moved").exists() or b"old\n" == (root / "moved" / "a").read_bytes()


@pytest.mark.parametrize("mode", ["write", "append", "insert"])
@pytest.mark.parametrize(
    ("swap", "rule"),
    [
        (file_to_outside, "became a symlink after it was checked"),
        (file_to_fifo, "is a FIFO, no regular file"),
        (file_to_directory, "is a directory, no regular file"),
    ],
)
@pytest.mark.parametrize("seam", ["resolve_path", "read_status"])
def test_export_does_not_follow_file_swapped_after_check(*, root, outside, monkeypatch, mode, swap, rule, seam):
    """The swap precedes opening the path or the file; opening neither follows nor blocks."""
    (root / "d").mkdir()
    (root / "d" / "a").write_bytes(b"old\n")
    checked, swaps = getattr(export_module, seam), iter([swap])

    def swapped(*arguments, **options):
        result = checked(*arguments, **options)
        next(swaps, lambda *_: None)(root, outside)
        return result

    monkeypatch.setattr(export_module, seam, swapped)
    if seam == "read_status":
        rule = "became something else|is a FIFO"

    with pytest.raises(PathDenied, match=rule):
        put(root, "d/a", mode=mode, insert_at=1 if mode == "insert" else None)

    assert b"secret" == (outside / "a").read_bytes()
    assert [] == temporaries(root)


def test_export_writes_to_opened_directory_when_it_is_renamed(root, outside, monkeypatch):
    """The export uses the open directory, regardless of its new name."""
    (root / "d").mkdir()
    splice = export_module._plan_insertion

    def swapped(order, old):
        to_outside(root, outside)
        return splice(order, old)

    monkeypatch.setattr(export_module, "_plan_insertion", swapped)

    put(root, "d/new")

    assert ["a"] == listed(outside)
    assert b"new\n" == (root / "moved" / "new").read_bytes()


def test_export_stays_below_root_while_paths_are_swapped(root, outside):
    """A thread swaps a directory and a file with symlinks while exports run."""
    real, end = root / "real", threading.Event()
    (root / "d").mkdir()
    outcomes = set()

    def swap():
        while not end.is_set():
            (root / "d").rename(real)
            (root / "d").symlink_to(outside)
            (root / "d").unlink()
            real.rename(root / "d")
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                (root / "d" / "a").unlink()
                (root / "d" / "a").symlink_to(outside / "a")
                (root / "d" / "a").unlink()

    before = (outside / "a").stat()
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for rounds in range(50_000):
            if rounds > 100 and {None, PathDenied} <= outcomes:
                break
            for mode, path in (("write", "d/a"), ("append", "d/a"), ("write", "d/b")):
                try:
                    put(root, path, mode=mode)
                except ExportError as error:
                    outcomes.add(type(error))
                else:
                    outcomes.add(None)
    finally:
        end.set()
        thread.join()
    after = (outside / "a").stat()

    assert ["a"] == listed(outside)
    assert b"secret" == (outside / "a").read_bytes()
    assert (before.st_ino, before.st_mtime_ns, before.st_nlink) == (after.st_ino, after.st_mtime_ns, after.st_nlink)
    assert {None, PathDenied} <= outcomes <= {None, PathDenied, ExportMissing, ExportError}
    assert [] == temporaries(root)


# --- failure of the N-th system call ----------------------------------------------------------------------------------

CALLS = [
    "open",
    "close",
    "stat",
    "lstat",
    "fstat",
    "readlink",
    "pread",
    "write",
    "fsync",
    "fchmod",
    "fchown",
    "link",
    "replace",
    "unlink",
    "mkdir",
    "scandir",
]


class Wrapped:
    """Intercepts the system calls of a thread, records their names, and makes call *number* fail."""

    def __init__(self, number=None, *, fault=None, late=False, thread=None):
        self.number, self.fault, self.late = number, fault, late
        self.names, self.opened = [], set()
        self.thread = thread or threading.get_ident()

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        for name in CALLS:
            # Skip fsync, because it takes most of the time and these tests do not check durability.
            real = getattr(os, name) if name != "fsync" else lambda _: None
            self.patch.setattr(os, name, self.wrapped(name, real))
        self.patch.setattr(fcntl, "flock", self.wrapped("flock", fcntl.flock))
        return self

    def __exit__(self, *_):
        self.patch.undo()

    @property
    def was_met(self):
        return self.number is not None and len(self.names) >= self.number

    def wrapped(self, name, real):
        def call(*arguments, **options):
            if threading.get_ident() != self.thread:
                return real(*arguments, **options)
            self.names.append(name)
            if len(self.names) != self.number:
                return real(*arguments, **options)
            # close() releases the descriptor even if it fails. If `late` is set, any call fails after its work is done.
            if name == "close" or self.late:
                result = real(*arguments, **options)
                if name in ("open", "scandir"):  # the caller never gets the descriptor, so close it here
                    (os.close if name == "open" else type(result).close)(result)
            raise self.fault()

        return call


def descriptors():
    folder = Path("/proc/self/fd")
    return len(listed(folder)) if folder.is_dir() else 0


OLD = b"one\r\ntwo\r\n"
SCENARIOS = {
    "replace": (OLD, {}, b"new\n"),
    "make": (None, {}, b"new\n"),
    "make, not replace": (None, {"exist_ok": False}, b"new\n"),
    "append": (OLD, {"mode": "append"}, OLD + b"new\n"),
    "append to nothing": (None, {"mode": "append"}, b"new\n"),
    "insert": (OLD, {"mode": "insert", "insert_at": 2}, b"one\r\nnew\ntwo\r\n"),
    "insert at the end": (OLD, {"mode": "insert", "insert_at": 3}, OLD + b"new\n"),
    "insert into nothing": (None, {"mode": "insert", "insert_at": 1}, b"new\n"),
    "make with directories": (None, {"parents": True}, b"new\n"),
}


def prepared(root, old, options):
    """Create a root with an orphaned temporary file, a symlink in the path, and the file to replace."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "real").mkdir(parents=True)
    (root / "link").symlink_to("real")
    directory = root / "real" if not options.get("parents") else root / "real" / "d"
    path = "link/a" if not options.get("parents") else "link/d/a"
    stale = root / "real" / f".mama-structs-{'0' * 16}.tmp"
    stale.touch()
    os.utime(stale, (0, 0))
    if old is not None:
        (directory / "a").write_bytes(old)
        (directory / "a").chmod(0o640)
    return path, directory / "a", stale


def interrupted():
    return KeyboardInterrupt()


FAULTS = {
    **{name: (functools.partial(OSError, getattr(errno, name), name)) for name in
       ("EIO", "ENOSPC", "EACCES", "ENOENT", "ELOOP", "EPERM")},
    "KeyboardInterrupt": interrupted,
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_export_is_atomic_when_any_system_call_fails(root, scenario, fault):
    """After an error the file is old, else new; no temporary file or descriptor remains."""
    old, options, new = SCENARIOS[scenario]
    number = 0
    while True:
        number += 1
        path, file, stale = prepared(root, old, options)
        before = descriptors()
        outcome = None
        with Wrapped(number, fault=FAULTS[fault]) as calls:
            try:
                put(root, path, **options)
            except (DescriptorError, KeyboardInterrupt) as error:
                outcome = error
        content = file.read_bytes() if file.exists() else None
        where = f"call {number}: {calls.names[-1] if calls.was_met else 'none'}, {outcome!r}"

        assert before == descriptors(), where
        assert [] == [name for name in temporaries(root) if name != stale.name], where
        if isinstance(outcome, ExportError | InvalidParameter):
            assert old == content, where
            assert isinstance(outcome, InvalidParameter) or (path, HANDLE) == (outcome.path, outcome.handle), where
        elif outcome is None:
            assert new == content, where
            # If the fault reports the old file as missing, the export creates a new file, with another mode.
            is_same = old is not None and not (
                fault == "ENOENT" and "stat" == calls.names[min(number, len(calls.names)) - 1]
            )
            assert not is_same or 0o640 == stat.S_IMODE(file.stat().st_mode), where
        else:
            assert content in (old, new), where
        if not calls.was_met:
            break

    assert 12 < number


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_export_is_atomic_when_any_system_call_is_interrupted(root, scenario):
    """The interrupt may come after the call has done its work, also during the copy."""
    old, options, new = SCENARIOS[scenario]
    number, was_met = 0, True
    while was_met:
        number += 1
        path, file, stale = prepared(root, old, options)
        with Wrapped(number, fault=KeyboardInterrupt, late=True) as calls, contextlib.suppress(KeyboardInterrupt):
            put(root, path, **options)
        was_met = calls.was_met

        assert (file.read_bytes() if file.exists() else None) in (old, new)
        assert [] == [name for name in temporaries(root) if name != stale.name]


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, ExportDiskFull),
        (errno.EDQUOT, ExportDiskFull),
        (errno.EFBIG, ExportDiskFull),
        (errno.EACCES, ExportDenied),
        (errno.EPERM, ExportDenied),
        (errno.EROFS, ExportDenied),
        (errno.ELOOP, PathDenied),
        (errno.EISDIR, PathDenied),
        (errno.ENXIO, PathDenied),
        (errno.ENOENT, ExportMissing),
        (errno.EIO, ExportError),
        (errno.ESTALE, ExportError),
        (errno.ENAMETOOLONG, InvalidParameter),
    ],
)
def test_export_maps_os_error_to_specific_error(root, monkeypatch, number, error):
    """The error contains the path, the handle and the system's message."""

    def refused(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refused)

    with pytest.raises(error, match="'a'") as caught:
        put(root, "a")

    assert error is type(caught.value)
    assert HANDLE == caught.value.handle
    assert number == caught.value.__cause__.errno
    assert number == errno.ENAMETOOLONG or os.strerror(number) in str(caught.value)
    assert [] == listed(root)


@pytest.mark.parametrize("scenario", ["replace", "append", "make, not replace"])
def test_export_flushes_content_before_rename_and_directory_after(root, scenario):
    """Otherwise, a power failure could leave an empty file under the name."""
    old, options, _ = SCENARIOS[scenario]
    path, _, _ = prepared(root, old, options)
    with Wrapped() as calls:
        put(root, path, **options)
    named = calls.names.index("link" if "link" in calls.names else "replace")
    last_write = max(index for index, name in enumerate(calls.names) if name == "write")
    flushes = [index for index, name in enumerate(calls.names) if name == "fsync"]

    assert last_write < flushes[0] < named < flushes[1]


def test_export_logs_directory_flush_failure(root, monkeypatch, caplog):
    """The file is visible already, so an error would cause a repeated append."""
    fsync = os.fsync

    def refused(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refused)

    assert put(root, "a", mode="append").created
    assert ["a directory of exported files could not be flushed: Invalid argument"] == caplog.messages


def test_export_continues_partial_writes(root, monkeypatch):
    """The system may write fewer bytes than requested."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))

    put(root, "a", "0123456789")
    put(root, "a", "abcdefgh", mode="append")

    assert b"0123456789abcdefgh" == (root / "a").read_bytes()


# --- kill -9 ---------------------------------------------------------------------------------------------------------

NURSERY = """
    import contextlib, fcntl, os, random, signal, sys, time
    from pathlib import Path
    from mama_structs.refs.store.export import ExportRequest, export

    def put(root, path, text, **options):
        return export(ExportRequest(text, path, handle="fd:1", **options), root=root)

    def in_child(work):
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                work()
            os._exit(0)
        return child
"""


def test_export_is_atomic_when_killed_at_any_system_call(tmp_path):
    """Kills occur before and after each call; leftovers have recognizable names."""
    script = textwrap.dedent(NURSERY) + textwrap.dedent("""
        import ast
        CALLS, SCENARIOS = ast.literal_eval(sys.argv[2]), ast.literal_eval(sys.argv[3])

        def kill_at(number, late):
            seen = 0
            def wrapped(real):
                def call(*arguments, **options):
                    nonlocal seen
                    seen += 1
                    if seen == number and not late:
                        os.kill(os.getpid(), signal.SIGKILL)
                    result = real(*arguments, **options)
                    if seen == number:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return result
                return call
            for name in CALLS:
                setattr(os, name, wrapped(getattr(os, name)))

        kills = seen_new = seen_old = 0
        for name, (old, options, new) in SCENARIOS.items():
            for late in (False, True):
                number, killed = 0, True
                while killed:
                    number += 1
                    root = Path(sys.argv[1]) / f"{name} {late} {number}"
                    root.mkdir()
                    file = root / "d" / "a" if options.get("parents") else root / "a"
                    if old is not None:
                        file.write_bytes(old)
                    def work():
                        kill_at(number, late)
                        put(root, str(file.relative_to(root)), "new\\n", **options)
                    _, status = os.waitpid(in_child(work), 0)
                    killed = os.WIFSIGNALED(status)
                    content = file.read_bytes() if file.exists() else None
                    assert content in (old, new), (name, late, number, content)
                    assert killed or content == new, (name, late, number)
                    left = {path.name for path in root.rglob("*") if path.is_file()} - {"a"}
                    assert all(path.startswith(".mama-structs-") and path.endswith(".tmp") for path in left), left
                    assert len(left) <= killed
                    again = put(root, str(file.relative_to(root)), "again", parents=True)
                    assert file.read_bytes() == b"again"
                    kills += killed
                    seen_old += killed and content == old
                    seen_new += killed and content == new
        print(kills, seen_old, seen_new)
    """)
    kills, seen_old, seen_new = map(int, run(script, tmp_path, repr(CALLS), repr(SCENARIOS)).split())

    assert 200 < kills
    assert 0 < seen_old
    assert 0 < seen_new


@pytest.mark.parametrize("mode", ["write", "append", "insert"])
def test_export_keeps_acknowledged_writes_when_killed_at_random_time(tmp_path, mode):
    """The file contains all acknowledged exports, and at most one more."""
    seed = random.randrange(2**32)
    script = textwrap.dedent(NURSERY) + textwrap.dedent("""
        root, mode = Path(sys.argv[1]), sys.argv[2]
        chance = random.Random(int(sys.argv[3]))
        base = b"base " * 20_000 + b"\\n"

        def record(number):
            return f"{number} " + "x" * (number * 7919 % 50_000) + "\\n"

        def expected(count):
            records = [record(number).encode() for number in range(count)]
            if mode == "write":
                return records[-1] if records else base
            return base + b"".join(records) if mode == "append" else b"".join(records[::-1]) + base

        for _ in range(12):
            (root / "a").write_bytes(base)
            reader, writer = os.pipe()
            def work():
                for number in range(10**6):
                    put(root, "a", record(number), mode=mode, insert_at=1 if mode == "insert" else None)
                    os.write(writer, b".")
            child = in_child(work)
            os.read(reader, 1)
            time.sleep(chance.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(writer)
            acknowledged = 1
            while chunk := os.read(reader, 65536):
                acknowledged += len(chunk)
            os.close(reader)
            content = (root / "a").read_bytes()
            assert content in (expected(acknowledged), expected(acknowledged + 1)), (sys.argv[3], acknowledged)
            assert len(os.listdir(root)) <= 2 + _
        print("done")
    """)

    assert "done\n" == run(script, tmp_path, mode, seed), f"seed {seed}"


# --- full disks and missing permissions -------------------------------------------------------------------------------

FULL = """
    import os, resource, sys
    from pathlib import Path
    from mama_structs.refs.store.export import ExportRequest, export
    from mama_structs.errors import ExportDiskFull

    def check(root):
        root = Path(root)
        (root / "a").write_bytes(b"old\\n" * 1000)
        for name, options in (
            ("a", {}), ("a", {"mode": "append"}), ("a", {"mode": "insert", "insert_at": 7}), ("new", {}),
            ("new", {"exist_ok": False}), ("d/new", {"parents": True}),
        ):
            try:
                export(ExportRequest("x" * 200_000, name, handle="fd:1", **options), root=root)
            except ExportDiskFull as error:
                print(error.type, error.path)
            assert b"old\\n" * 1000 == (root / "a").read_bytes()
            assert {path.name for path in root.rglob("*")} <= {"a", "d"}, os.listdir(root)
        export(ExportRequest("fits", "a", handle="fd:1", mode="append"), root=root)
        assert b"old\\n" * 1000 + b"fits" == (root / "a").read_bytes()
"""
ALL_FULL = "".join(f"disk_full {name}\n" for name in ("a", "a", "a", "new", "new", "d/new"))


def test_export_reports_file_size_limit_as_disk_full(tmp_path):
    """The old file is complete, no partial file remains, and smaller exports succeed."""
    script = textwrap.dedent(FULL) + textwrap.dedent("""
        sys.dont_write_bytecode = True  # as in test_backup.py
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        check(sys.argv[1])
    """)

    assert ALL_FULL == run(script, tmp_path)


def own_mounts():
    """Return the command prefix that runs a process with private mounts. Skip the test if this is not permitted."""
    command = ["unshare", "--map-root-user", "--mount"] if not IS_ROOT else ["unshare", "--mount"]
    with tempfile.TemporaryDirectory() as folder:
        script = "import subprocess, sys; subprocess.run(['mount', '-t', 'tmpfs', 'tmpfs', sys.argv[1]], check=True)"
        mount = [*command, sys.executable, "-c", script, folder]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if subprocess.run(mount, capture_output=True, timeout=600, check=False).returncode == 0:
                return command
    pytest.skip("mounting a small file system is not permitted here")


def test_export_keeps_old_file_when_disk_is_full(tmp_path):
    """Uses a file system of 100 kB in private mounts."""
    script = textwrap.dedent(FULL) + textwrap.dedent("""
        import subprocess
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", sys.argv[1]], check=True)
        check(sys.argv[1])
    """)

    assert ALL_FULL == run(script, tmp_path, before=own_mounts())
    assert [] == listed(tmp_path)


KEPT = """
    import os, subprocess, sys
    from pathlib import Path
    from mama_structs.refs.store.export import ExportRequest, export
    from mama_structs.errors import PathDenied

    home = Path(sys.argv[1])
    root, kept = home / "root", home / "root" / "session"
    (kept / "journal").mkdir(parents=True)
    for name in ("other", "other/deep", "another"):
        (root / name).mkdir()
    subprocess.run(["mount", "--bind", kept, root / "other" / "deep"], check=True)
    subprocess.run(["mount", "--bind", kept, root / "another"], check=True)
    for path in ("other/deep/a", "other/deep/journal/a", "another/new/a", "another/journal/FORMAT"):
        try:
            export(ExportRequest("x", path, handle="fd:1", parents=True), root=root, kept=kept)
        except PathDenied as error:
            assert "the session's own data" in str(error)
        else:
            raise SystemExit(path)
    for inside in (root / "another", root / "another" / "journal"):
        try:
            export(ExportRequest("x", "a", handle="fd:1"), root=inside, kept=kept)
        except PathDenied as error:
            assert "the session's own data" in str(error)
        else:
            raise SystemExit(inside)
    assert ["journal"] == os.listdir(kept) and [] == os.listdir(kept / "journal")
    export(ExportRequest("x", "other/a", handle="fd:1"), root=root, kept=kept)
    print("kept")
"""


@pytest.mark.skipif(not own_mounts(), reason="needs mounts of its own")
def test_export_rejects_session_directory_under_bind_mount(tmp_path):
    """The directory is identified by device and inode, not by its path."""
    assert "kept\n" == run(KEPT, tmp_path, before=own_mounts())


@pytest.mark.parametrize(("path", "place"), [("d/a", "d"), ("d/e/a", "d/e"), ("a", ".")])
def test_export_rejects_session_directory_moved_to_path_after_check(root, tmp_path, monkeypatch, path, place):
    """The opened directory is checked, not only the path."""
    (root / place).mkdir(parents=True, exist_ok=True)
    kept = tmp_path / "session"
    kept.mkdir()
    resolve = export_module.resolve_path

    def swapped(*arguments, **options):
        resolved = resolve(*arguments, **options)
        (root / place).resolve().rmdir()
        kept.rename((root / place).resolve())
        return resolved

    monkeypatch.setattr(export_module, "resolve_path", swapped)
    before = descriptors()

    with pytest.raises(PathDenied, match="the session's own data"):
        put(root, path, kept=kept)

    assert [] == listed(root / place)
    assert before == descriptors()


@pytest.mark.skipif(not own_mounts(), reason="needs mounts of its own")
def test_export_fails_on_read_only_file_system(tmp_path):
    """A superuser also gets this error."""
    script = """
        import subprocess, sys
        from pathlib import Path
        from mama_structs.refs.store.export import ExportRequest, export
        from mama_structs.errors import ExportDenied
        root = Path(sys.argv[1])
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root], check=True)
        (root / "a").write_bytes(b"old")
        subprocess.run(["mount", "-o", "remount,ro", root], check=True)
        for name in ("a", "new", "d/new"):
            try:
                export(ExportRequest("new", name, handle="fd:1", parents=True), root=root)
            except ExportDenied as error:
                print(error.type, error.path)
        assert b"old" == (root / "a").read_bytes()
    """
    expected = "".join(f"permission_denied {name}\n" for name in ("a", "new", "d/new"))

    assert expected == run(script, tmp_path, before=own_mounts())


def test_export_respects_permissions(tmp_path):
    """Covers read-only directories, read-only files, and directories that cannot be entered."""
    script = """
        import os, sys
        from pathlib import Path
        from mama_structs.refs.store.export import ExportRequest, export
        from mama_structs.errors import ExportDenied
        root = Path(sys.argv[1])
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        def attempt(name, **options):
            try:
                print(name, export(ExportRequest("new", name, handle="fd:1", **options), root=root).created)
            except ExportDenied as error:
                print(name, error.type, error.handle)
        attempt("folder/a")
        attempt("folder/a", mode="append")
        attempt("folder/new")
        attempt("folder/new", exist_ok=False)
        attempt("folder/d/new", parents=True)
        attempt("locked/a")
        attempt("locked/d/new", parents=True)
        attempt("open/read-only")
        attempt("open/read-only", mode="append")
        attempt("open/unreadable", mode="append")
        attempt("open/new")
    """
    # Use /tmp, because the test runs as a user that cannot access tmp_path.
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for folder in ("folder", "locked", "open"):
            (root / folder).mkdir()
        for file, mode in (("folder/a", 0o666), ("locked/a", 0o666), ("open/read-only", 0o444), ("open/unreadable", 0)):
            (root / file).write_bytes(b"old")
            (root / file).chmod(mode)
        for folder, mode in (("folder", 0o555), ("locked", 0o000), ("open", 0o777)):
            (root / folder).chmod(mode)
        try:
            said = run(script, root)
        finally:
            for folder in ("folder", "locked", "open"):
                (root / folder).chmod(0o755)
            (root / "open" / "unreadable").chmod(0o600)
        names = ["folder/a", "folder/a", "folder/new", "folder/new", "folder/d/new", "locked/a", "locked/d/new"]
        names += ["open/read-only", "open/read-only", "open/unreadable"]

        assert [*(f"{name} permission_denied fd:1" for name in names), "open/new True"] == said.splitlines()
        for file in ("folder/a", "locked/a", "open/read-only", "open/unreadable"):
            assert b"old" == (root / file).read_bytes()
        assert [] == temporaries(root)
        assert ["new", "read-only", "unreadable"] == listed(root / "open")


# --- concurrent writers -----------------------------------------------------------------------------------------------


def test_export_keeps_all_concurrent_appends(root):
    """Eight threads of this process and two other processes append."""
    script = """
        import sys
        from mama_structs.refs.store.export import ExportRequest, export
        for number in range(25):
            export(ExportRequest(f"{sys.argv[2]} {number}\\n", "a", handle="fd:1", mode="append"), root=sys.argv[1])
    """

    def append(writer):
        for number in range(25):
            put(root, "a", f"{writer} {number}\n", mode="append")

    with ThreadPoolExecutor(10) as pool:
        jobs = [pool.submit(append, writer) for writer in range(8)]
        jobs += [pool.submit(run, script, root, writer) for writer in (8, 9)]
        for job in jobs:
            job.result()
    lines = (root / "a").read_text().splitlines()

    assert sorted(f"{writer} {number}" for writer in range(10) for number in range(25)) == sorted(lines)
    assert ["a"] == listed(root)


def test_export_creates_new_file_once_when_called_concurrently(root):
    """With exist_ok=False only one of many exports succeeds."""

    def make(writer):
        try:
            put(root, "a", f"{writer}", exist_ok=False)
        except ExportExists:
            return None
        return f"{writer}"

    with ThreadPoolExecutor(8) as pool:
        winners = [winner for winner in pool.map(make, range(40)) if winner]

    assert [(root / "a").read_text()] == winners


@pytest.mark.parametrize("mode", ["append", "insert"])
def test_export_keeps_data_written_by_other_program_during_copy(root, monkeypatch, mode):
    """The file is checked before it is replaced, and copied again if it changed."""
    (root / "a").write_bytes(b"old\n")
    fill, others = export_module._write_draft, iter([b"theirs\n"])

    def filled(*arguments):
        fill(*arguments)
        with (root / "a").open("ab") as file:
            file.write(next(others, b""))

    monkeypatch.setattr(export_module, "_write_draft", filled)

    put(root, "a", mode=mode, insert_at=1 if mode == "insert" else None)

    assert (b"old\ntheirs\nnew\n" if mode == "append" else b"new\nold\ntheirs\n") == (root / "a").read_bytes()
    assert ["a"] == listed(root)


def test_export_fails_when_file_keeps_changing(root, monkeypatch):
    """After ten attempts an error is raised, and the file is unchanged."""
    (root / "a").write_bytes(b"")
    fill = export_module._write_draft

    def filled(*arguments):
        fill(*arguments)
        with (root / "a").open("ab") as file:
            file.write(b"x")

    monkeypatch.setattr(export_module, "_write_draft", filled)

    with pytest.raises(ExportError, match="others keep changing it"):
        put(root, "a", mode="append")

    assert b"x" * 10 == (root / "a").read_bytes()
    assert ["a"] == listed(root)


def test_export_copies_again_when_file_shrinks_during_copy(root, monkeypatch):
    """Missing bytes are not filled in."""
    (root / "a").write_bytes(b"a longer old content\n")
    splice, others = export_module._plan_insertion, iter([b"short\n"])

    def shrunk(order, old):
        result = splice(order, old)
        for content in others:
            (root / "a").write_bytes(content)
        return result

    monkeypatch.setattr(export_module, "_plan_insertion", shrunk)

    put(root, "a", mode="append")

    assert b"short\nnew\n" == (root / "a").read_bytes()


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "none"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "append"}, b"theirs\nnew\n"),
        ({"mode": "insert", "insert_at": 1}, b"new\ntheirs\n"),
        ({"exist_ok": False}, ExportExists),
        ({"mode": "append", "exist_ok": False}, ExportExists),
    ],
)
def test_export_does_not_replace_file_created_before_rename(root, monkeypatch, links, options, expected):
    """The export appends or raises, also on file systems without hard links."""
    fill, others = export_module._write_draft, iter([b"theirs\n"])

    def filled(*arguments):
        fill(*arguments)
        for content in others:
            (root / "a").write_bytes(content)

    monkeypatch.setattr(export_module, "_write_draft", filled)
    if not links:
        monkeypatch.setattr(os, "link", refusing(errno.EPERM))

    if expected is ExportExists:
        with pytest.raises(ExportExists):
            put(root, "a", **options)
        assert b"theirs\n" == (root / "a").read_bytes()
    else:
        assert not put(root, "a", **options).created
        assert expected == (root / "a").read_bytes()
    assert ["a"] == listed(root)


def refusing(number):
    def refused(*_, **__):
        raise OSError(number, os.strerror(number))

    return refused


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_export_creates_file_on_file_system_without_hard_links(root, monkeypatch, number):
    """The file is checked again and renamed."""
    monkeypatch.setattr(os, "link", refusing(number))

    assert put(root, "a", exist_ok=False).created
    with pytest.raises(ExportExists):
        put(root, "a", exist_ok=False)

    assert b"new\n" == (root / "a").read_bytes()
    assert ["a"] == listed(root)


def test_export_without_locks_keeps_temporary_files(root, monkeypatch):
    """Without a lock, a temporary file may still be in use."""
    stale = root / f".mama-structs-{'0' * 16}.tmp"
    stale.touch()
    os.utime(stale, (0, 0))
    monkeypatch.setattr(fcntl, "flock", refusing(errno.ENOLCK))

    put(root, "a", mode="append")

    assert ["a"] == [name for name in listed(root) if name != stale.name]
    assert stale.exists()


def test_export_fails_when_directory_lock_times_out(root, monkeypatch):
    """A stopped process cannot block others forever; later exports get the lock."""
    monkeypatch.setattr(export_module, "_LOCK_TIMEOUT_SECONDS", 0.05)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ExportError, match=r"its directory was in use for 0\.05 s"):
            put(root, "a")
        assert [] == listed(root)
    finally:
        os.close(descriptor)

    put(root, "a")

    assert ["a"] == listed(root)


def test_export_retries_when_temporary_name_exists(root, monkeypatch):
    """The existing file is neither changed nor deleted."""
    taken = root / f".mama-structs-{'7' * 16}.tmp"
    taken.write_bytes(b"theirs")
    names = iter(["7" * 16, "8" * 16])
    monkeypatch.setattr(export_module.secrets, "token_hex", lambda _: next(names))

    put(root, "a")

    assert b"theirs" == taken.read_bytes()
    assert {"a", taken.name} == set(listed(root))


# --- cancellation ----------------------------------------------------------------------------------------------------


class BlockedExport:
    """An export that blocks in its thread until it is released."""

    def __init__(self, monkeypatch):
        self.started, self.go = threading.Event(), threading.Event()
        fill = export_module._write_draft

        def filled(*arguments):
            self.started.set()
            assert self.go.wait(600)
            fill(*arguments)

        monkeypatch.setattr(export_module, "_write_draft", filled)

    async def has_started(self):
        assert await asyncio.to_thread(self.started.wait, 600)


async def test_in_own_thread_returns_result_without_blocking_loop(root, monkeypatch):
    """Errors are also passed on."""
    held = BlockedExport(monkeypatch)
    task = asyncio.create_task(exported("new", "a", root=root, handle=HANDLE))
    await held.has_started()
    held.go.set()

    assert "a" == (await task).path
    with pytest.raises(PathDenied):
        await exported("new", "../a", root=root, handle=HANDLE)
    with pytest.raises(ExportExists):
        await exported("new", "a", root=root, handle=HANDLE, exist_ok=False)
    with pytest.raises(PathDenied, match="the session's own data"):
        await exported("new", "a", root=root, handle=HANDLE, kept=root)


@pytest.mark.parametrize("times", [1, 3])
async def test_in_own_thread_waits_for_thread_when_cancelled(root, monkeypatch, times):
    """Even if cancelled repeatedly, it returns only after the thread has ended."""
    held = BlockedExport(monkeypatch)
    task = asyncio.create_task(exported("new", "a", root=root, handle=HANDLE))
    await held.has_started()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)

    assert not task.done()

    held.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert b"new" == (root / "a").read_bytes()
    assert ["a"] == listed(root)


async def test_in_own_thread_discards_error_when_cancelled(root, monkeypatch):
    """The caller is cancelled, and the error is not reported as unretrieved."""
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    held = BlockedExport(monkeypatch)
    monkeypatch.setattr(os, "replace", refusing(errno.EIO))
    task = asyncio.create_task(exported("new", "a", root=root, handle=HANDLE))
    await held.has_started()
    task.cancel()
    held.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    gc.collect()
    await asyncio.sleep(0)

    assert [] == reports
    assert [] == listed(root)


async def test_in_own_thread_timeout_waits_for_thread(root, monkeypatch):
    """`asyncio.timeout` raises its own error after the thread ends, and the file is complete."""
    held = BlockedExport(monkeypatch)
    threading.Timer(0.1, held.go.set).start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await exported("new", "a", root=root, handle=HANDLE)

    assert b"new" == (root / "a").read_bytes()


def test_closing_loop_waits_for_thread(root, monkeypatch):
    """A program that ends during an export does not leave a partial file."""
    held = BlockedExport(monkeypatch)

    async def main():
        task = asyncio.create_task(exported("new", "a", root=root, handle=HANDLE))
        await held.has_started()
        threading.Timer(0.05, held.go.set).start()
        return task

    task = asyncio.run(main())

    assert task.cancelled()
    assert ["a"] == listed(root)


async def test_waiting_exports_do_not_block_shared_threads(root, monkeypatch):
    """Work in the loop's thread pool starts immediately while exports wait for the lock."""
    count = 2 * (os.cpu_count() or 1) + 8
    waiting = threading.Semaphore(0)
    lock = export_module._lock_directory

    def noted(*arguments):
        waiting.release()
        return lock(*arguments)

    monkeypatch.setattr(export_module, "_lock_directory", noted)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        exports = [
            asyncio.create_task(exported("x\n", "a", root=root, handle=HANDLE, mode="append")) for _ in range(count)
        ]
        seen = 0
        while seen < count:
            seen += waiting.acquire(blocking=False)
            await asyncio.sleep(0.001)
        await asyncio.to_thread(time.time)
    finally:
        os.close(descriptor)
    await asyncio.gather(*exports)

    assert b"x\n" * count == (root / "a").read_bytes()
    assert count == seen


LOCAL = contextvars.ContextVar("LOCAL", default="outside")


async def test_in_own_thread_copies_context():
    """Context variables have the caller's values, and the thread ends before the result."""
    LOCAL.set("inside")
    before = set(threading.enumerate())

    def work():
        assert threading.current_thread() not in before
        assert not threading.current_thread().daemon
        return LOCAL.get()

    assert "inside" == await run_in_own_thread(work)
    assert before == set(threading.enumerate())


@pytest.mark.parametrize("kind", [StopIteration, asyncio.CancelledError, KeyError, KeyboardInterrupt])
async def test_in_own_thread_raises_any_exception(kind):
    """Includes exceptions that a future rejects."""

    def work():
        raise kind("own")

    async def call():
        # Python replaces a StopIteration that leaves a coroutine with a RuntimeError.
        with pytest.raises(RuntimeError if kind is StopIteration else kind):
            await run_in_own_thread(work)

    await asyncio.wait_for(call(), 600)


async def test_in_own_thread_returns_immediately_when_cancelled_with_is_left():
    """The thread continues and ends silently."""
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    go, ended = threading.Event(), threading.Event()

    def work():
        go.wait(600)
        ended.set()
        raise KeyError

    task = asyncio.create_task(run_in_own_thread(work, abandon_on_cancel=True))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended.is_set()

    go.set()
    assert await asyncio.to_thread(ended.wait, 600)
    gc.collect()
    await asyncio.sleep(0.01)
    assert [] == reports


def test_in_own_thread_ignores_closed_loop(caplog):
    """The thread ends silently."""
    go = threading.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(run_in_own_thread(lambda: go.wait(600), abandon_on_cancel=True))
    loop.run_until_complete(asyncio.sleep(0.01))
    own = [thread for thread in threading.enumerate() if thread.name == "mama-structs"]
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()
    go.set()
    for thread in own:
        thread.join(600)

    assert 1 == len(own)
    assert task.cancelled()
    assert [] == caplog.records


def test_export_is_atomic_when_interrupted_by_signal(root, monkeypatch):
    """A signal may arrive at any point, as from a notebook's interrupt."""
    (root / "a").write_bytes(b"old\n" * 1000)
    monkeypatch.setattr(export_module, "_CHUNK_BYTES", 100)
    write, writes = os.write, []

    def counted(descriptor, data):
        writes.append(len(data))
        if len(writes) == 20:
            signal.raise_signal(signal.SIGINT)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", counted)
    before = descriptors()

    with pytest.raises(KeyboardInterrupt):
        put(root, "a", mode="append")

    assert 20 == len(writes)
    assert b"old\n" * 1000 == (root / "a").read_bytes()
    assert ["a"] == listed(root)
    assert before == descriptors()


def test_export_descriptors_are_not_inherited(root):
    """A descriptor in a child process would keep the lock, and give access below the root."""
    inheritable = []
    real = os.open

    def watched(*arguments, **options):
        descriptor = real(*arguments, **options)
        inheritable.append(os.get_inheritable(descriptor))
        return descriptor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        put(root, "d/a", parents=True)

    assert 2 < len(inheritable)
    assert not any(inheritable)
