"""`export`: file contents, and rejected paths."""

import itertools
import os
import re
import socket
import stat
import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from mama_structs.errors import (
    ExportError,
    ExportExists,
    ExportMissing,
    InvalidParameter,
    InvalidRange,
    PathDenied,
)
from mama_structs.refs.store import export as export_module
from mama_structs.refs.store.export import ExportRequest, FileResult, export

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there it is refused as a whole")

HANDLE = "ref:notes"


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
    (outside / "secret.txt").write_bytes(b"secret")
    return outside


def put(root, path, text="new", *, kept=None, **options):
    """Export a text with default options."""
    return export(ExportRequest(text, path, handle=HANDLE, **options), root=root, kept=kept)


def snapshot(folder):
    """Return mode, inode, time, content and link target of everything below a directory."""
    seen = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        link = str(path.readlink()) if path.is_symlink() else None
        seen[str(path.relative_to(folder))] = (status.st_mode, status.st_ino, status.st_mtime_ns, content, link)
    return seen


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def temporaries(folder):
    """Return the names of temporary files. Directories are ignored, because a user may give them such a name."""
    return [path.name for path in folder.rglob(".mama-structs-*") if path.is_file()]


# --- contents --------------------------------------------------------------------------------------------------------


def test_export_writes_utf8_and_returns_measures(root):
    """Line breaks are unchanged, and the measures match the file."""
    result = put(root, "notes.md", "é\r\nb\n한")

    assert "é\r\nb\n한".encode() == (root / "notes.md").read_bytes()
    assert result == FileResult(
        handle=HANDLE,
        path="notes.md",
        absolute_path=str(root / "notes.md"),
        mode="write",
        chars_written=6,
        bytes_written=9,
        size=9,
        lines=3,
        created=True,
    )


def test_export_replaces_existing_file(root):
    """No part of a longer old content remains."""
    (root / "a").write_bytes(b"long old content\n")

    result = put(root, "a", "x\n")

    assert b"x\n" == (root / "a").read_bytes()
    assert (False, 2, 2, 1) == (result.created, result.size, result.bytes_written, result.lines)


def test_export_append_adds_only_the_bytes(root):
    """No line break is added between the old and the new text."""
    (root / "a").write_bytes(b"one")

    result = put(root, "a", "two\r\n", mode="append")

    assert b"onetwo\r\n" == (root / "a").read_bytes()
    assert (8, 5, 1, False) == (result.size, result.bytes_written, result.lines, result.created)


def test_export_keeps_bytes_that_are_not_utf8(root):
    """Append and insert copy old bytes without decoding them."""
    (root / "a").write_bytes(b"\xff\xfe\n\x80")

    put(root, "a", "é", mode="append")
    put(root, "a", "x", mode="insert", insert_at=2)

    assert b"\xff\xfe\nx\n\x80\xc3\xa9" == (root / "a").read_bytes()


@pytest.mark.parametrize(
    ("old", "line", "text", "new", "added"),
    [
        (b"a\nb\n", 1, "x\n", b"x\na\nb\n", 0),
        (b"a\nb\n", 1, "x", b"x\na\nb\n", 1),
        (b"a\nb\n", 2, "x", b"a\nx\nb\n", 1),
        (b"a\nb\n", 3, "x", b"a\nb\nx", 0),
        (b"a\nb", 2, "x", b"a\nx\nb", 1),
        (b"a\nb", 3, "x", b"a\nb\nx", 1),
        (b"a\nb", 3, "x\n", b"a\nb\nx\n", 1),
        (b"a\r\nb\r\n", 2, "x", b"a\r\nx\r\nb\r\n", 1),
        (b"a\r\nb", 3, "x", b"a\r\nb\r\nx", 1),
        (b"a\nb\r\n", 1, "x", b"x\na\nb\r\n", 1),
        (b"a\r\nb\n", 1, "x\n", b"x\na\r\nb\n", 0),
        (b"\r\n", 1, "x", b"x\r\n\r\n", 1),
        (b"\n\n", 2, "x", b"\nx\n\n", 1),
        (b"a", 2, "x", b"a\nx", 1),
        (b"a\r", 2, "x", b"a\r\nx", 1),
        (b"", 1, "x", b"x", 0),
        (b"a\n", 1, "x\ny", b"x\ny\na\n", 1),
        (b"a\nb", 1, "", b"a\nb", 0),
        (b"a\nb", 3, "", b"a\nb", 0),
    ],
)
def test_export_insert_adds_complete_lines(*, root, old, line, text, new, added):
    """A line break in the file's style is added only if the text would join another line."""
    (root / "a").write_bytes(old)

    result = put(root, "a", text, mode="insert", insert_at=line)

    assert new == (root / "a").read_bytes()
    assert (added, line) == (result.line_breaks_added, result.insert_at)
    assert len(new) - len(old) == result.bytes_written


@pytest.mark.parametrize(
    ("old", "line", "valid"),
    [
        (b"a\nb\n", 4, (1, 3)),
        (b"a\nb", 4, (1, 3)),
        (b"a\nb", 0, (1, 3)),
        (b"a\nb", -1, (1, 3)),
        (b"", 2, (1, 1)),
        (None, 2, (1, 1)),
        (None, 0, (1, 1)),
        pytest.param(b"a", 10**5000, (1, 2), id="a number of thousands of digits"),
    ],
)
def test_export_insert_raises_for_missing_line(root, old, line, valid):
    """The error contains the valid range, and the file is unchanged."""
    if old is not None:
        (root / "a").write_bytes(old)
    before = snapshot(root)

    with pytest.raises(InvalidRange, match="insert_at must be 1 to") as caught:
        put(root, "a", mode="insert", insert_at=line)

    assert valid == caught.value.valid
    assert HANDLE == caught.value.handle
    assert before == snapshot(root)


def oracle(old, mode, text, line):
    """Compute the expected content with a simple algorithm. Return None if the line does not exist."""
    data = text.encode()
    if mode == "write":
        return data
    if mode == "append":
        return old + data
    lines = re.findall(rb"[^\n]*\n|[^\n]+", old)
    if not 1 <= line <= len(lines) + 1:
        return None
    ending = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
    head, tail = lines[: line - 1], lines[line - 1 :]
    if data and head and not tail and not head[-1].endswith(b"\n"):
        data = ending + data
    if data and tail and not data.endswith(b"\n"):
        data += ending
    return b"".join([*head, data, *tail])


steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "append", "insert"]),
        st.text(st.sampled_from("a\r\né한"), max_size=12),
        st.integers(min_value=-1, max_value=8),
    ),
    max_size=6,
)


@given(steps=steps, chunk=st.integers(min_value=1, max_value=9))
@example(steps=[("write", "ab\r\nc", 0), ("insert", "x", 2)], chunk=3)  # the line break is split between two chunks
@example(steps=[("write", "\n\n\n\n\n\n", 0), ("insert", "x", 6)], chunk=4)
def test_export_sequence_matches_model(steps, chunk):
    """Content, sizes and line counts are correct after each step, for any chunk size."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr(export_module, "_CHUNK_BYTES", chunk)
        root, old = Path(name), b""
        (root / "a").touch()
        for mode, text, line in steps:
            expected = oracle(old, mode, text, line)
            options = {"insert_at": line} if mode == "insert" else {}
            if expected is None:
                event("refused")
                with pytest.raises(InvalidRange):
                    put(root, "a", text, mode=mode, **options)
                assert old == (root / "a").read_bytes()
                continue
            result = put(root, "a", text, mode=mode, **options)

            assert expected == (root / "a").read_bytes()
            assert len(expected) == result.size
            assert len(re.findall(rb"[^\n]*\n|[^\n]+", expected)) == result.lines
            assert len(expected) - (0 if mode == "write" else len(old)) == result.bytes_written
            old = expected
        assert ["a"] == listed(root)


def test_export_copies_old_file_in_chunks(root, monkeypatch):
    """Appending to a large file with one line needs only memory for a few chunks."""
    monkeypatch.setattr(export_module, "_CHUNK_BYTES", 2**16)
    with (root / "big").open("wb") as file:
        file.truncate(2**23)
    tracemalloc.start()
    try:
        put(root, "big", mode="append")
        put(root, "big", mode="insert", insert_at=2)
        put(root, "big", mode="insert", insert_at=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert 2**23 + 3 + 4 + 4 == (root / "big").stat().st_size
    assert 2**20 > peak


# --- new and existing files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["write", "append", "insert"])
@pytest.mark.parametrize(("create", "exist_ok", "exists"), list(itertools.product([True, False], repeat=3)))
def test_export_enforces_create_and_exist_ok(root, mode, create, exist_ok, exists):
    """exist_ok=False rejects existing files, create=False missing ones, in every mode."""
    if exists:
        (root / "a").write_bytes(b"old\n")
    options = {"mode": mode, "create": create, "exist_ok": exist_ok, "insert_at": 1 if mode == "insert" else None}
    refused = None
    if exists and not exist_ok:
        refused = ExportExists
    elif not exists and not create:
        refused = ExportMissing

    if refused:
        before = snapshot(root)
        with pytest.raises(refused, match="'a'") as caught:
            put(root, "a", "new\n", **options)

        assert ("a", HANDLE) == (caught.value.path, caught.value.handle)
        assert caught.value.hint
        assert before == snapshot(root)
    else:
        result = put(root, "a", "new\n", **options)
        kept = b"old\n" if exists else b""

        assert exists != result.created
        assert {"write": b"new\n", "append": kept + b"new\n", "insert": b"new\n" + kept}[mode] == (
            root / "a"
        ).read_bytes()


@pytest.mark.parametrize("path", ["d/a", "d/e/a"])
def test_export_creates_directories_only_with_parents(root, path):
    """Without parents=True, the error names the first missing directory."""
    with pytest.raises(ExportMissing, match="the directory 'd' does not exist"):
        put(root, path)

    assert [] == listed(root)

    result = put(root, path, parents=True)

    assert path == result.path
    assert b"new" == (root / path).read_bytes()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"create": False}, ExportMissing),
        ({"mode": "insert", "insert_at": 2}, InvalidRange),
        ({"mode": "append", "create": False}, ExportMissing),
    ],
)
def test_export_creates_no_directory_when_file_cannot_be_written(root, options, error):
    """Predictable failures leave no empty directories."""
    with pytest.raises(error):
        put(root, "d/e/a", parents=True, **options)

    assert [] == listed(root)


# --- rejected paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "error", "rule"),
    [
        ("", InvalidParameter, "must not be empty"),
        ("a\0b", InvalidParameter, "NUL"),
        ("a\ud800", InvalidParameter, "lone surrogate"),
        ("x" * 300, InvalidParameter, "a name of 300 bytes, 255 are allowed"),
        ("é" * 128, InvalidParameter, "a name of 256 bytes"),
        ("d/" + "x" * 256 + "/a", InvalidParameter, "a name of 256 bytes"),
        ("a/" * 2100 + "b", InvalidParameter, "4201 bytes long, 4095 are allowed"),
        (b"a", InvalidParameter, "must be text, got bytes"),
        (None, InvalidParameter, "must be text, got NoneType"),
        (7, InvalidParameter, "must be text, got int"),
        ("..", PathDenied, "a part .., which is not allowed"),
        ("../a", PathDenied, "a part .."),
        ("d/../a", PathDenied, "a part .."),
        ("d/..", PathDenied, "a part .."),
        ("~", PathDenied, "~ is not expanded"),
        ("~/a", PathDenied, "~ is not expanded"),
        ("~root/a", PathDenied, "~ is not expanded"),
        ("d/", PathDenied, "ends like a directory"),
        ("d/.", PathDenied, "ends like a directory"),
        (".", PathDenied, "ends like a directory"),
        ("/", PathDenied, "ends like a directory"),
        ("d", PathDenied, "is a directory, no regular file"),
        ("file/a", PathDenied, "'file' is a file, no directory"),
        ("file/e/a", PathDenied, "'file' is a file, no directory"),
        ("fifo", PathDenied, "is a FIFO, no regular file"),
        ("fifo/a", PathDenied, "'fifo' is a FIFO, no directory"),
        ("socket", PathDenied, "is a socket, no regular file"),
        ("loop", PathDenied, "is a symlink that leads in a circle"),
        ("loop/a", PathDenied, "'loop' is a symlink that leads in a circle"),
        ("ring-a", PathDenied, "is a symlink that leads in a circle"),
        ("out/a", PathDenied, "leads out of the root through a symlink"),
        ("out/secret.txt", PathDenied, "leads out of the root through a symlink"),
        ("out", PathDenied, "leads out of the root through a symlink"),
        ("secret", PathDenied, "leads out of the root through a symlink"),
        ("dangling-out", PathDenied, "leads out of the root through a symlink"),
        ("dangling-out/a", PathDenied, "leads out of the root through a symlink"),
        ("absolute-out", PathDenied, "leads out of the root through a symlink"),
        ("d/up/a", PathDenied, "leads out of the root through a symlink"),
        ("self", PathDenied, "is the root itself"),
        ("/etc/passwd", PathDenied, "is outside the root"),
        ("/no/such/file", PathDenied, "is outside the root"),
        ("//no/such/file", PathDenied, "is outside the root"),
        (".mama-structs-0123456789abcdef.tmp", PathDenied, "kept for temporary files"),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, str | bytes) else None,
)
@pytest.mark.parametrize("mode", ["write", "append", "insert"])
@pytest.mark.parametrize("parents", [False, True])
def test_export_rejects_invalid_path(*, root, outside, path, error, rule, mode, parents, monkeypatch):
    """Nothing changes inside or outside the root, and the message states the rule."""
    hostile(root, outside, monkeypatch)
    before = snapshot(root.parent)

    with pytest.raises(error, match=re.escape(rule)) as caught:
        put(root, path, mode=mode, parents=parents, insert_at=1 if mode == "insert" else None)

    assert error is type(caught.value)
    assert HANDLE == caught.value.handle
    assert (path if error is PathDenied else "file_path") == getattr(
        caught.value, "path" if error is PathDenied else "parameter"
    )
    assert 700 > len(str(caught.value))
    assert before == snapshot(root.parent)


def hostile(root, outside, monkeypatch):
    """Create links, special files and directories below the root that an attacker might use."""
    (root / "d").mkdir()
    (root / "file").write_bytes(b"old\n")
    (root / "d" / "inner").write_bytes(b"inner\n")
    os.mkfifo(root / "fifo")
    with monkeypatch.context() as patch, socket.socket(socket.AF_UNIX) as unix:
        patch.chdir(root)  # the path of a Unix socket must be short
        unix.bind("socket")
    links = {
        "loop": "loop",
        "ring-a": "ring-b",
        "ring-b": "ring-a",
        "out": "../outside",
        "secret": "../outside/secret.txt",
        "dangling-out": "../outside/new.txt",
        "absolute-out": str(outside / "secret.txt"),
        "d/up": "../..",
        "self": ".",
        "in": "d",
        "to-file": "file",
        "absolute-in": str(root / "file"),
        "dangling-in": "d/new.txt",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)


@pytest.mark.parametrize("name", ["null", "zero"])
def test_export_rejects_device(name):
    """A device is rejected even if the process may open it."""
    with pytest.raises(PathDenied, match="is a device, no regular file"):
        put("/dev", name)


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("in/inner", "d/inner"),
        ("to-file", "file"),
        ("absolute-in", "file"),
        ("dangling-in", "d/new.txt"),
        ("self/file", "file"),
        ("./file", "file"),
        ("d//inner", "d/inner"),
        ("d/./inner", "d/inner"),
        ("self/in/new", "d/new"),
        ("./~x", "~x"),
        ("..a", "..a"),
        ("x" * 255, "x" * 255),
        ("a\nb", "a\nb"),
    ],
)
@pytest.mark.parametrize("mode", ["write", "append"])
def test_export_follows_symlink_below_root(*, root, outside, path, real, mode, monkeypatch):
    """The target is written, the symlink remains, and the result names the target."""
    hostile(root, outside, monkeypatch)
    before = snapshot(root)
    kept = before[real][3] if real in before and mode == "append" else b""

    result = put(root, path, mode=mode)

    after = snapshot(root)
    assert (real, str(root / real)) == (result.path, result.absolute_path)
    assert kept + b"new" == after[real][3]
    assert {name: value for name, value in before.items() if name not in (real, "d")} == {
        name: value for name, value in after.items() if name not in (real, "d")
    }


def test_export_accepts_absolute_path_below_root(root, tmp_path):
    """The root and the path may contain a symlink above the root."""
    (tmp_path / "alias").symlink_to(root)

    assert "a" == put(root, str(root / "a")).path
    assert "b" == put(root, root / "b").path
    assert "c" == put(root, tmp_path / "alias" / "c").path
    assert "d" == put(tmp_path / "alias", root / "d").path
    assert "e" == put(tmp_path / "alias", "e").path
    assert ["a", "b", "c", "d", "e"] == listed(root)


@pytest.fixture
def kept(root):
    """A session's directory below the root. Symlinks in the root point to it, its subdirectory and its file."""
    kept = root / "session"
    (kept / "journal").mkdir(parents=True)
    (kept / "journal" / "FORMAT").write_bytes(b"own")
    (root / "link").symlink_to(kept)
    (root / "deep").symlink_to(kept / "journal")
    (root / "file").symlink_to(kept / "journal" / "FORMAT")
    return kept


@pytest.mark.parametrize(
    "path",
    [
        "session/a",
        "session",
        "session/journal/FORMAT",
        "session/journal/new/a",
        "session/new/a",
        "link/a",
        "deep/FORMAT",
        "file",
        "./session//a",
    ],
)
@pytest.mark.parametrize("spelling", ["real", "link", "above"])
@pytest.mark.parametrize("mode", ["write", "append", "insert"])
def test_export_rejects_session_directory(*, root, kept, tmp_path, path, spelling, mode):
    """The directory is recognized under any name or symlink, and remains unchanged."""
    (tmp_path / "above").symlink_to(root)
    given_as = {"real": kept, "link": root / "link", "above": tmp_path / "above" / "session"}[spelling]
    before = snapshot(root)

    for asked in (path, str(root / path)):
        with pytest.raises(PathDenied, match="this directory holds the session's own data") as caught:
            put(root, asked, kept=given_as, parents=True, mode=mode, insert_at=1 if mode == "insert" else None)

    assert before == snapshot(root)
    assert (HANDLE, str(root / path)) == (caught.value.handle, caught.value.path)


@pytest.mark.parametrize("path", ["a", "session.md", "session2/a", "new/session/a", "Session2/a"])
def test_export_accepts_paths_next_to_session_directory(root, kept, path):
    """Only the same directory is rejected, not one with a similar name."""
    assert put(root, path, kept=kept, parents=True).created
    assert path == put(root, path, kept=kept).path


@pytest.mark.parametrize("inside", ["session", "session/journal", "link", "deep"])
def test_export_rejects_root_inside_session_directory(root, kept, inside):
    """Deeper paths are rejected, too."""
    before = snapshot(root)
    for path in ("a", "new/a"):
        with pytest.raises(PathDenied, match="the session's own data"):
            put(root / inside, path, kept=kept, parents=True)

    assert before == snapshot(root)


def test_export_accepts_missing_or_distant_session_directory(root, outside):
    """A missing one is still protected; one elsewhere has no effect and is not revealed."""
    with pytest.raises(PathDenied, match="the session's own data"):
        put(root, "later/a", kept=root / "later", parents=True)
    assert [] == listed(root)
    with pytest.raises(PathDenied, match="outside the root"):
        put(root, str(outside / "secret.txt"), kept=outside)

    assert put(root, "a", kept=outside).created
    assert put(root, "b", kept=outside / "nowhere").created


def test_export_rejects_directory_with_root_as_name_prefix(root, tmp_path):
    """A directory whose name starts with the name of the root is outside."""
    (tmp_path / "root-2").mkdir()

    with pytest.raises(PathDenied, match="is outside the root"):
        put(root, tmp_path / "root-2" / "a")

    assert [] == listed(tmp_path / "root-2")


def test_export_accepts_file_system_root(tmp_path):
    """The root "/" accepts absolute and relative paths."""
    first = put("/", tmp_path / "a")
    second = put("/", str(tmp_path / "b").lstrip("/"))

    assert str(tmp_path / "a") == first.absolute_path
    assert str(tmp_path / "b") == second.absolute_path
    assert ["a", "b"] == listed(tmp_path)


def test_export_handles_long_symlink_chain(root):
    """The export either writes the file or raises PathDenied, without a RecursionError."""
    (root / "0").write_bytes(b"old")
    for number in range(1, 3000):
        (root / str(number)).symlink_to(str(number - 1))
    try:
        put(root, "2999")
    except PathDenied:
        expected = b"old"
    else:
        expected = b"new"

    assert expected == (root / "0").read_bytes()


def test_export_creates_missing_root_with_first_file(tmp_path):
    """A failed export does not create the root."""
    for path, options in (("a", {"create": False}), ("../a", {}), ("d/a", {"mode": "insert", "insert_at": 2})):
        with pytest.raises((ExportError, InvalidRange)):
            put(tmp_path / "out" / "deep", path, **options)
    assert [] == listed(tmp_path)

    put(tmp_path / "out" / "deep", "a")

    assert b"new" == (tmp_path / "out" / "deep" / "a").read_bytes()


def test_export_reports_root_that_is_not_a_directory(tmp_path):
    """The error refers to the root, not to the path."""
    (tmp_path / "file").touch()

    with pytest.raises(PathDenied, match="the root for files is no directory"):
        put(tmp_path / "file", "a", parents=True)

    assert ["file"] == listed(tmp_path)


def test_export_error_does_not_reveal_files_outside_root(root, tmp_path):
    """The message is the same for existing and missing files."""
    (tmp_path / "real").touch()
    (tmp_path / "real-dir").mkdir()
    (root / "l-1").symlink_to(tmp_path / "real" / "x")
    (root / "l-2").symlink_to(tmp_path / "nothing" / "x")
    messages = set()
    for path in ("real", "real-dir", "real/x", "nothing", "nothing/x"):
        with pytest.raises(PathDenied) as caught:
            put(root, tmp_path / path, parents=True)
        messages.add(str(caught.value).replace(repr(str(tmp_path / path)), ""))
    for path in ("l-1", "l-2"):
        with pytest.raises(PathDenied) as caught:
            put(root, path)
        messages.add(str(caught.value).replace(repr(path), ""))

    assert 2 == len(messages)


def test_export_raises_on_platform_without_directory_descriptors(root, monkeypatch):
    """Nothing is written if the root cannot be enforced."""
    monkeypatch.setattr(export_module, "_SUPPORTS_DIR_FD", False)

    with pytest.raises(ExportError, match="this platform cannot open files relative to a directory"):
        put(root, "a", parents=True)

    assert [] == listed(root)


@pytest.mark.parametrize(
    ("text", "options", "parameter"),
    [
        (7, {}, "text"),
        ("x\ud800", {}, "text"),
        ("x", {"mode": "overwrite"}, "mode"),
        ("x", {"mode": None}, "mode"),
        ("x", {"mode": ["write"]}, "mode"),
        ("x", {"create": 1}, "create"),
        ("x", {"exist_ok": None}, "exist_ok"),
        ("x", {"parents": "yes"}, "parents"),
        ("x", {"mode": "insert"}, "insert_at"),
        ("x", {"mode": "insert", "insert_at": True}, "insert_at"),
        ("x", {"mode": "insert", "insert_at": "1"}, "insert_at"),
        ("x", {"mode": "insert", "insert_at": 1.0}, "insert_at"),
        ("x", {"insert_at": 1}, "insert_at"),
        ("x", {"mode": "append", "insert_at": 1}, "insert_at"),
    ],
)
def test_export_names_invalid_parameter(root, text, options, parameter):
    """The check precedes all changes, and the error does not contain the text."""
    with pytest.raises(InvalidParameter) as caught:
        put(root / "missing", "a", text, **options)

    assert parameter == caught.value.parameter
    assert HANDLE == caught.value.handle
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (stat.S_IFREG, "a file"),
        (stat.S_IFDIR, "a directory"),
        (stat.S_IFLNK, "a symlink"),
        (stat.S_IFIFO, "a FIFO"),
        (stat.S_IFSOCK, "a socket"),
        (stat.S_IFCHR, "a device"),
        (stat.S_IFBLK, "a device"),
        (0, "something special"),
    ],
)
def test_kind_of_names_each_file_type(kind, name):
    """Includes types that only a superuser can create."""
    assert name == export_module.describe_file_kind(kind | 0o644)


COMPONENTS = [
    *("..", ".", "", "~", "~root", "root", "outside", "file", "d", "inner", "fifo", "socket", "loop", "ring-a", "out"),
    *("secret", "secret.txt", "dangling-out", "absolute-out", "up", "self", "in", "to-file", "absolute-in"),
    *("dangling-in", "new", "x" * 255, "x" * 256, "a\0b", "\ud800", "é", " ", "\\..\\", "...", "-rf", "a\nb"),
    ".mama-structs-0123456789abcdef.tmp",
]


@given(
    start=st.sampled_from(["", "", "", "", "/", "<root>/", "<root>/", "<outside>/", "/proc/self/cwd/", "//", "./"]),
    components=st.lists(st.sampled_from(COMPONENTS), min_size=1, max_size=5),
    mode=st.sampled_from(["write", "append", "insert"]),
    line=st.integers(min_value=0, max_value=3),
    create=st.booleans(),
    exist_ok=st.booleans(),
    parents=st.booleans(),
)
def test_export_changes_nothing_outside_root_for_any_path(*, start, components, mode, line, create, exist_ok, parents):
    """Any path is either written below the root or raises, and no other file changes."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        top = Path(os.path.realpath(name))
        root, outside = top / "root", top / "outside"
        root.mkdir()
        outside.mkdir()
        (outside / "secret.txt").write_bytes(b"secret")
        hostile(root, outside, patch)
        path = start.replace("<root>", str(root)).replace("<outside>", str(outside)) + "/".join(components)
        kept_outside, kept = snapshot(outside), snapshot(root)
        options = {"mode": mode, "create": create, "exist_ok": exist_ok, "parents": parents}
        if mode == "insert":
            options["insert_at"] = line
        result = None
        try:
            result = put(root, path, "new\n", **options)
        except (ExportError, InvalidParameter, InvalidRange) as error:
            event(type(error).__name__)
        after = snapshot(root)

        assert kept_outside == snapshot(outside)
        assert ["outside", "root"] == listed(top)
        assert [] == temporaries(root)
        if result is not None:
            event("written")
            before = kept[result.path][3] if result.path in kept else b""
            assert result.created == (result.path not in kept)
            assert oracle(before, mode, "new\n", line) == after[result.path][3]
            assert Path(result.absolute_path) == (root / result.path).resolve()
        for file, found in kept.items():
            if not stat.S_ISDIR(found[0]) and (result is None or file != result.path):
                assert found == after[file]


# --- rules for models -------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(root):
    """Create files that a model must not change, and symlinks."""
    (root / "d").mkdir()
    for name, mode in (("run.sh", 0o755), ("others-run", 0o645), ("locked", 0o444), ("plain", 0o644), (".env", 0o600)):
        (root / name).write_bytes(b"old")
        (root / name).chmod(mode)
    (root / ".git").mkdir()
    (root / "link").symlink_to("plain")
    (root / "d" / "link").symlink_to("../plain")
    (root / "dangling").symlink_to("nothing")
    (root / "git").symlink_to(".git")
    (root / "same").symlink_to("d")
    return root


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        (".env", "'.env' begins with a dot"),
        (".new", "'.new' begins with a dot"),
        (".git/hooks", "'.git' begins with a dot"),
        ("d/.e/a", "'.e' begins with a dot"),
        ("./d/...", "'...' begins with a dot"),
        ("git/hooks", "'.git' begins with a dot"),
        ("a\nb", "control or bidirectional character"),
        ("a\x7f", "control or bidirectional character"),
        ("a\x85", "control or bidirectional character"),
        ("a\u202etxt.exe", "control or bidirectional character"),
        ("d\u2067/a", "control or bidirectional character"),
        ("a\u200f", "control or bidirectional character"),
        ("a\u2028", "control or bidirectional character"),
        ("run.sh", "is executable"),
        ("others-run", "is executable"),
        ("locked", "is read-only"),
        ("link", "is a symlink"),
        ("d/link", "is a symlink"),
        ("same/link", "is a symlink"),
        ("dangling", "is a symlink"),
        ("git", "is a symlink"),
        ("d", "is a directory, no regular file"),
    ],
)
@pytest.mark.parametrize("mode", ["write", "append", "insert"])
@pytest.mark.parametrize("absolute", [False, True])
def test_export_rejects_protected_path_for_model(*, guarded, path, rule, mode, absolute):
    """Nothing changes, and the message states the rule."""
    before = snapshot(guarded)

    with pytest.raises(PathDenied, match=re.escape(rule)) as caught:
        put(
            guarded,
            f"{guarded}/{path}" if absolute else path,
            mode=mode,
            insert_at=1 if mode == "insert" else None,
            parents=True,
            by_model=True,
        )

    assert caught.value.hint
    assert before == snapshot(guarded)


@pytest.mark.parametrize("path", ["plain", "new", "./d//new", "same/new", "d/e/new", "a-\u200d-한글.md", "x.y"])
def test_export_accepts_ordinary_path_for_model(guarded, path):
    """A directory symlink that stays below the root is allowed."""
    for mode in ("write", "append"):
        put(guarded, path, mode=mode, parents=True, by_model=True)

    assert b"newnew" == (guarded / path).read_bytes()


@pytest.mark.parametrize("path", [".env", ".new", ".git/hooks", "git/hooks"])
def test_export_accepts_hidden_file_for_model_with_allow_hidden(guarded, path):
    """All other rules still apply."""
    put(guarded, path, by_model=True, allow_hidden=True)

    assert b"new" == (guarded / path).read_bytes()
    with pytest.raises(PathDenied, match="is executable"):
        put(guarded, "run.sh", by_model=True, allow_hidden=True)


@pytest.mark.parametrize("path", [".env", ".new", "run.sh", "link", "a\nb"])
def test_export_accepts_protected_path_for_host(guarded, path):
    """The rules apply only to paths that a model chose."""
    put(guarded, path)

    assert b"new" == (guarded / path).read_bytes()


def test_export_ignores_hidden_directory_above_root(tmp_path):
    """Only names below the root are checked."""
    root = tmp_path / ".cache" / "out"

    put(root, "a", by_model=True)
    put(root, root / "b", by_model=True)

    assert ["a", "b"] == listed(root)


@pytest.mark.parametrize("mode", ["write", "append"])
@pytest.mark.parametrize(
    ("swap", "rule"),
    [
        (lambda path: path.symlink_to("precious"), "is a symlink"),
        (lambda path: os.link(path.parent / "precious", path), "is executable"),
        (lambda path: path.mkdir(), "is a directory"),
    ],
)
@pytest.mark.parametrize("existed", [False, True])
def test_export_by_model_rejects_file_replaced_during_export(*, root, monkeypatch, mode, swap, rule, existed):
    """A replacement between check and rename is detected."""
    (root / "precious").write_bytes(b"old")
    (root / "precious").chmod(0o755)
    if existed:
        (root / "a").write_bytes(b"old")
    swapped = []

    def fill(*arguments):
        if not swapped:
            (root / "a").unlink(missing_ok=True)
            swap(root / "a")
            swapped.append(snapshot(root)["precious"])
        return filled(*arguments)

    filled = export_module._write_draft
    monkeypatch.setattr(export_module, "_write_draft", fill)
    with pytest.raises(PathDenied, match=rule):
        put(root, "a", mode=mode, by_model=True)

    assert swapped == [snapshot(root)["precious"]]
    assert [] == temporaries(root)


# --- permissions and links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["write", "append"])
@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o666, 0o755])
def test_export_keeps_permissions_of_replaced_file(root, mode, permissions):
    """The result does not depend on the umask."""
    (root / "a").touch()
    (root / "a").chmod(permissions)

    put(root, "a", mode=mode)

    assert permissions == stat.S_IMODE((root / "a").stat().st_mode)


def test_export_drops_setuid_and_setgid_bits(root):
    """New content must not inherit the privileges of the old one."""
    (root / "a").touch()
    (root / "a").chmod(0o6755)

    put(root, "a")

    assert 0o755 == stat.S_IMODE((root / "a").stat().st_mode)


@pytest.mark.parametrize("options", [{}, {"exist_ok": False}, {"mode": "append"}])
def test_export_applies_umask_to_new_file_and_directories(root, options):
    """The permissions are the same as those of other programs."""
    old = os.umask(0o027)
    try:
        put(root, "d/a", parents=True, **options)
    finally:
        os.umask(old)

    assert 0o750 == stat.S_IMODE((root / "d").stat().st_mode)
    assert 0o640 == stat.S_IMODE((root / "d" / "a").stat().st_mode)


def test_export_temporary_file_is_private(root, monkeypatch):
    """The copy of a private file is never readable by others."""
    (root / "a").write_bytes(b"old")
    (root / "a").chmod(0o666)
    modes = []

    opened = os.open

    def watched(name, flags, *arguments, **options):
        descriptor = opened(name, flags, *arguments, **options)
        if flags & os.O_CREAT:
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", watched)

    put(root, "a", mode="append")

    assert [0o600] == modes
    assert 0o666 == stat.S_IMODE((root / "a").stat().st_mode)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only a superuser can give files away")
@pytest.mark.parametrize("mode", ["write", "append"])
def test_export_keeps_owner_when_run_as_superuser(root, mode):
    """A root process does not take over the files of other users."""
    (root / "a").touch()
    os.chown(root / "a", 12345, 23456)

    put(root, "a", mode=mode)
    status = (root / "a").stat()

    assert (12345, 23456) == (status.st_uid, status.st_gid)


@pytest.mark.parametrize("mode", ["write", "append"])
def test_export_does_not_change_hard_link_outside_root(root, outside, mode):
    """The export replaces the name, so the other name keeps the old content."""
    os.link(outside / "secret.txt", root / "a")

    put(root, "a", mode=mode)

    assert b"secret" == (outside / "secret.txt").read_bytes()
    assert (b"new" if mode == "write" else b"secretnew") == (root / "a").read_bytes()


# --- orphaned files ---------------------------------------------------------------------------------------------------


def test_export_deletes_orphaned_temporary_files(root):
    """Only regular files with a matching name, older than an hour, are deleted."""
    stale, young, directory = (root / f".mama-structs-{digit * 16}.tmp" for digit in "123")
    link, other = root / f".mama-structs-{'4' * 16}.tmp", root / ".mama-structs-xyz.tmp"
    for path in (stale, young, other):
        path.touch()
    directory.mkdir()
    link.symlink_to("nowhere")
    for path in (stale, other, directory):
        os.utime(path, (time.time() - 3700,) * 2)
    os.utime(link, (time.time() - 3700,) * 2, follow_symlinks=False)

    put(root, "a")

    assert sorted(path.name for path in (young, directory, link, other, root / "a")) == listed(root)
