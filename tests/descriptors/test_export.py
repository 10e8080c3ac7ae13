"""Files that are written below a root: what is in them afterwards, and which paths are refused."""

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
from mama_structs.refs.store.export import FileOrder, FileResult, export

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there it is refused as a whole")

HANDLE = "ref:notes"


@pytest.fixture
def root(tmp_path):
    """An empty root."""
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def outside(tmp_path):
    """A directory beside the root, with a file in it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_bytes(b"secret")
    return outside


def put(root, path, text="new", *, kept=None, **options):
    """Export with the arguments that most tests do not care for."""
    return export(FileOrder(text, path, handle=HANDLE, **options), root=root, kept=kept)


def snapshot(folder):
    """Everything below a folder that an export could change."""
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
    """Files only: directories may be called as the user likes."""
    return [path.name for path in folder.rglob(".mama-structs-*") if path.is_file()]


# --- what is written -------------------------------------------------------------------------------------------------


def test_a_new_file_holds_the_text_as_utf_8_and_the_result_says_what_was_done(root):
    """Line breaks stay as they are, and everything is counted as it is on the disk."""
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


def test_a_file_that_exists_is_replaced_as_a_whole(root):
    """A shorter text leaves nothing of a longer one."""
    (root / "a").write_bytes(b"long old content\n")

    result = put(root, "a", "x\n")

    assert b"x\n" == (root / "a").read_bytes()
    assert (False, 2, 2, 1) == (result.created, result.size, result.bytes_written, result.lines)


def test_append_adds_the_bytes_and_nothing_else(root):
    """Not even a line break between the old end and the new text."""
    (root / "a").write_bytes(b"one")

    result = put(root, "a", "two\r\n", mode="append")

    assert b"onetwo\r\n" == (root / "a").read_bytes()
    assert (8, 5, 1, False) == (result.size, result.bytes_written, result.lines, result.created)


def test_a_file_that_is_no_utf_8_survives_append_and_insert(root):
    """Old bytes are copied and never decoded."""
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
def test_insert_puts_whole_lines_before_a_line(*, root, old, line, text, new, added):
    """A line break of the file's own style is added only where the text would run into a neighbour."""
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
def test_insert_at_a_line_that_is_not_there_names_the_lines_that_are(root, old, line, valid):
    """The file, or its absence, stays as it is."""
    if old is not None:
        (root / "a").write_bytes(old)
    before = snapshot(root)

    with pytest.raises(InvalidRange, match="insert_at must be 1 to") as caught:
        put(root, "a", mode="insert", insert_at=line)

    assert valid == caught.value.valid
    assert HANDLE == caught.value.handle
    assert before == snapshot(root)


def oracle(old, mode, text, line):
    """The new content, made the slow and simple way; None where the line is not there."""
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
@example(steps=[("write", "ab\r\nc", 0), ("insert", "x", 2)], chunk=3)  # the line break lies across two chunks
@example(steps=[("write", "\n\n\n\n\n\n", 0), ("insert", "x", 6)], chunk=4)
def test_any_sequence_of_exports_gives_what_a_simple_model_gives(steps, chunk):
    """However the old bytes are cut into chunks: content, sizes and line counts are right at every step."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr(export_module, "_CHUNK", chunk)
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


def test_an_append_or_insert_does_not_read_the_old_file_into_memory(root, monkeypatch):
    """A file of one long line costs a few chunks, not its size."""
    monkeypatch.setattr(export_module, "_CHUNK", 2**16)
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


# --- whether the file may be new, or may exist ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["write", "append", "insert"])
@pytest.mark.parametrize(("create", "exist_ok", "exists"), list(itertools.product([True, False], repeat=3)))
def test_create_and_exist_ok_hold_in_every_mode(root, mode, create, exist_ok, exists):
    """exist_ok=False refuses a file that exists, appends included; create=False refuses one that does not."""
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
def test_missing_directories_are_made_only_when_asked_for(root, path):
    """Without parents=True the first missing one is named."""
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
def test_no_directory_is_made_for_a_file_that_cannot_be(root, options, error):
    """What is known to fail leaves no empty directories."""
    with pytest.raises(error):
        put(root, "d/e/a", parents=True, **options)

    assert [] == listed(root)


# --- which paths are refused -----------------------------------------------------------------------------------------


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
def test_a_path_that_breaks_a_rule_is_refused_and_nothing_changes(
    *, root, outside, path, error, rule, mode, parents, monkeypatch
):
    """Neither inside nor outside the root, in no mode; the message names the rule."""
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
    """Fill the root with everything that could lead astray."""
    (root / "d").mkdir()
    (root / "file").write_bytes(b"old\n")
    (root / "d" / "inner").write_bytes(b"inner\n")
    os.mkfifo(root / "fifo")
    with monkeypatch.context() as patch, socket.socket(socket.AF_UNIX) as unix:
        patch.chdir(root)  # the path of a socket must be short
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
def test_a_device_is_refused(name):
    """Whoever has the right to open it: a root of a careless host."""
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
def test_a_path_that_stays_below_the_root_is_followed(*, root, outside, path, real, mode, monkeypatch):
    """The file that a link stands for is written, the link stays, and the result names the file."""
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


def test_an_absolute_path_below_the_root_is_accepted(root, tmp_path):
    """Also through a symlink above the root, on either side."""
    (tmp_path / "alias").symlink_to(root)

    assert "a" == put(root, str(root / "a")).path
    assert "b" == put(root, root / "b").path
    assert "c" == put(root, tmp_path / "alias" / "c").path
    assert "d" == put(tmp_path / "alias", root / "d").path
    assert "e" == put(tmp_path / "alias", "e").path
    assert ["a", "b", "c", "d", "e"] == listed(root)


@pytest.fixture
def kept(root):
    """A session's directory below the root, with a file in it, and ways that lead there."""
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
def test_a_sessions_own_directory_is_never_written_to(*, root, kept, tmp_path, path, spelling, mode):
    """By whichever name and link it is reached, and however it was given: nothing in it changes."""
    (tmp_path / "above").symlink_to(root)
    given_as = {"real": kept, "link": root / "link", "above": tmp_path / "above" / "session"}[spelling]
    before = snapshot(root)

    for asked in (path, str(root / path)):
        with pytest.raises(PathDenied, match="this directory holds the session's own data") as caught:
            put(root, asked, kept=given_as, parents=True, mode=mode, insert_at=1 if mode == "insert" else None)

    assert before == snapshot(root)
    assert (HANDLE, str(root / path)) == (caught.value.handle, caught.value.path)


@pytest.mark.parametrize("path", ["a", "session.md", "session2/a", "new/session/a", "Session2/a"])
def test_what_is_beside_a_sessions_directory_can_be_written(root, kept, path):
    """A name that only begins like it, or is the same elsewhere, is another one."""
    assert put(root, path, kept=kept, parents=True).created
    assert path == put(root, path, kept=kept).path


@pytest.mark.parametrize("inside", ["session", "session/journal", "link", "deep"])
def test_a_root_in_a_sessions_directory_takes_no_file(root, kept, inside):
    """Not even one that would lie far below."""
    before = snapshot(root)
    for path in ("a", "new/a"):
        with pytest.raises(PathDenied, match="the session's own data"):
            put(root / inside, path, kept=kept, parents=True)

    assert before == snapshot(root)


def test_a_sessions_directory_need_not_exist_or_be_near(root, outside):
    """One that is still to be made is kept free; one elsewhere changes nothing, and tells nothing of what is there."""
    with pytest.raises(PathDenied, match="the session's own data"):
        put(root, "later/a", kept=root / "later", parents=True)
    assert [] == listed(root)
    with pytest.raises(PathDenied, match="outside the root"):
        put(root, str(outside / "secret.txt"), kept=outside)

    assert put(root, "a", kept=outside).created
    assert put(root, "b", kept=outside / "nowhere").created


def test_a_directory_whose_name_begins_like_the_root_is_outside(root, tmp_path):
    """The root's name with something behind it is another directory."""
    (tmp_path / "root-2").mkdir()

    with pytest.raises(PathDenied, match="is outside the root"):
        put(root, tmp_path / "root-2" / "a")

    assert [] == listed(tmp_path / "root-2")


def test_the_top_may_be_the_root(tmp_path):
    """A host that confines nothing is served, by absolute and by relative paths."""
    first = put("/", tmp_path / "a")
    second = put("/", str(tmp_path / "b").lstrip("/"))

    assert str(tmp_path / "a") == first.absolute_path
    assert str(tmp_path / "b") == second.absolute_path
    assert ["a", "b"] == listed(tmp_path)


def test_a_very_long_chain_of_symlinks_ends_in_a_file_or_an_error(root):
    """No recursion limit shows through."""
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


def test_a_root_that_is_missing_is_made_with_the_first_file(tmp_path):
    """And not for a file that is not written."""
    for path, options in (("a", {"create": False}), ("../a", {}), ("d/a", {"mode": "insert", "insert_at": 2})):
        with pytest.raises((ExportError, InvalidRange)):
            put(tmp_path / "out" / "deep", path, **options)
    assert [] == listed(tmp_path)

    put(tmp_path / "out" / "deep", "a")

    assert b"new" == (tmp_path / "out" / "deep" / "a").read_bytes()


def test_a_root_that_is_no_directory_is_said(tmp_path):
    """The host's mistake is not taken for the path's."""
    (tmp_path / "file").touch()

    with pytest.raises(PathDenied, match="the root for files is no directory"):
        put(tmp_path / "file", "a", parents=True)

    assert ["file"] == listed(tmp_path)


def test_what_is_outside_the_root_is_not_told_apart(root, tmp_path):
    """No message says whether a file exists elsewhere."""
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


def test_a_platform_without_directory_descriptors_is_refused(root, monkeypatch):
    """What cannot be kept below the root is not written at all."""
    monkeypatch.setattr(export_module, "_CONFINABLE", False)

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
def test_a_wrong_parameter_is_named_before_anything_happens(root, text, options, parameter):
    """No text of the content is in the message, nor in its cause."""
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
def test_every_kind_of_file_has_a_name(kind, name):
    """Also those that only a superuser can make."""
    assert name == export_module.kind_of(kind | 0o644)


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
def test_no_path_at_all_changes_anything_outside_the_root(*, start, components, mode, line, create, exist_ok, parents):
    """Whatever it is made of: it names a file below the root, or an error that says so, and no file is lost."""
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


# --- what models may not write ----------------------------------------------------------------------------------------


@pytest.fixture
def guarded(root):
    """What a model must leave alone, and what leads there."""
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
def test_a_model_may_not_write_there(*, guarded, path, rule, mode, absolute):
    """Nothing changes, and the message says which rule it is."""
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
def test_a_model_may_write_everywhere_else(guarded, path):
    """Also where a directory on the way is a symlink that stays below the root."""
    for mode in ("write", "append"):
        put(guarded, path, mode=mode, parents=True, by_model=True)

    assert b"newnew" == (guarded / path).read_bytes()


@pytest.mark.parametrize("path", [".env", ".new", ".git/hooks", "git/hooks"])
def test_a_host_may_let_models_write_hidden_files(guarded, path):
    """All other rules hold."""
    put(guarded, path, by_model=True, allow_hidden=True)

    assert b"new" == (guarded / path).read_bytes()
    with pytest.raises(PathDenied, match="is executable"):
        put(guarded, "run.sh", by_model=True, allow_hidden=True)


@pytest.mark.parametrize("path", [".env", ".new", "run.sh", "link", "a\nb"])
def test_the_hosts_own_code_may_write_what_models_may_not(guarded, path):
    """These rules are for what a model chose."""
    put(guarded, path)

    assert b"new" == (guarded / path).read_bytes()


def test_a_hidden_directory_above_the_root_is_the_hosts_choice(tmp_path):
    """Only names below the root count, also of an absolute path."""
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
def test_what_is_put_in_its_place_meanwhile_is_refused(*, root, monkeypatch, mode, swap, rule, existed):
    """Whatever it becomes between the check and the moment in which the file gets its name."""
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

    filled = export_module._fill
    monkeypatch.setattr(export_module, "_fill", fill)
    with pytest.raises(PathDenied, match=rule):
        put(root, "a", mode=mode, by_model=True)

    assert swapped == [snapshot(root)["precious"]]
    assert [] == temporaries(root)


# --- permissions and links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["write", "append"])
@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o666, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(root, mode, permissions):
    """Whatever the umask is."""
    (root / "a").touch()
    (root / "a").chmod(permissions)

    put(root, "a", mode=mode)

    assert permissions == stat.S_IMODE((root / "a").stat().st_mode)


def test_rights_to_run_as_the_owner_are_dropped(root):
    """New content does not inherit the trust in the old one, as with any write by somebody else."""
    (root / "a").touch()
    (root / "a").chmod(0o6755)

    put(root, "a")

    assert 0o755 == stat.S_IMODE((root / "a").stat().st_mode)


@pytest.mark.parametrize("options", [{}, {"exist_ok": False}, {"mode": "append"}])
def test_a_new_file_and_new_directories_have_the_permissions_of_the_umask(root, options):
    """As if any program had made them."""
    old = os.umask(0o027)
    try:
        put(root, "d/a", parents=True, **options)
    finally:
        os.umask(old)

    assert 0o750 == stat.S_IMODE((root / "d").stat().st_mode)
    assert 0o640 == stat.S_IMODE((root / "d" / "a").stat().st_mode)


def test_the_copy_of_a_private_file_is_never_readable_by_others(root, monkeypatch):
    """The temporary file is private from the moment it is made."""
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
def test_a_superuser_leaves_a_file_to_its_owner(root, mode):
    """An agent that runs as root does not take its user's files away."""
    (root / "a").touch()
    os.chown(root / "a", 12345, 23456)

    put(root, "a", mode=mode)
    status = (root / "a").stat()

    assert (12345, 23456) == (status.st_uid, status.st_gid)


@pytest.mark.parametrize("mode", ["write", "append"])
def test_a_hard_link_outside_keeps_the_old_content(root, outside, mode):
    """Two names of one file are parted, so that nothing outside changes."""
    os.link(outside / "secret.txt", root / "a")

    put(root, "a", mode=mode)

    assert b"secret" == (outside / "secret.txt").read_bytes()
    assert (b"new" if mode == "write" else b"secretnew") == (root / "a").read_bytes()


# --- what killed processes leave --------------------------------------------------------------------------------------


def test_temporary_files_that_were_left_long_ago_are_swept(root):
    """Only those, only after an hour, and nothing that merely looks like one."""
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
