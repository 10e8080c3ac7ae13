"""Export to files: a ref is written as complete lines, a descriptor as its exact bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import DescriptorSettings, RefStore

TEXTS = st.text(st.sampled_from("ab \n"), max_size=6)


@pytest.fixture
def store(tmp_path):
    """A store that exports into the test's directory."""
    return RefStore(settings=DescriptorSettings(files_root=str(tmp_path)))


def put(store, ref_id, text):
    """Store a text as a ref whose tags are on separate lines."""
    store.observe(f'<ref id="{ref_id}">\n{text}\n</ref>')


async def test_to_file_ends_ref_with_line_break(store, tmp_path):
    """A ref is written as complete lines."""
    put(store, "x", "a\nb")
    put(store, "y", "a\nb\n")
    put(store, "z", "a\r\nb")
    for one in "xyz":
        await store.to_file(f"ref:{one}", one)

    assert ["a\nb\n", "a\nb\n", "a\r\nb\r\n"] == [(tmp_path / one).read_bytes().decode() for one in "xyz"]


async def test_to_file_writes_empty_file_for_empty_ref(store, tmp_path):
    """Without a line, no line break is added."""
    put(store, "x", "")
    await store.to_file("ref:x", "x")

    assert b"" == (tmp_path / "x").read_bytes()


async def test_to_file_writes_exact_bytes(store, tmp_path):
    """Descriptors, and refs with exact=True, are written unchanged in every mode."""
    put(store, "x", "a")
    store.add("a")
    for handle, exact in (("ref:x", True), ("fd:1", False)):
        for mode in ("write", "append"):
            await store.to_file(handle, handle[:2], mode=mode, exact=exact)

    assert b"aa" == (tmp_path / "re").read_bytes() == (tmp_path / "fd").read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"", b"b\n"), (b"a", b"a\nb\n"), (b"a\n", b"a\nb\n"), (b"a\r\nb", b"a\r\nb\r\nb\r\n"), (b"a\r\n", b"a\r\nb\r\n")],
)
async def test_to_file_appends_ref_on_new_line(store, tmp_path, old, new):
    """Refs in one file are separated, and the file keeps its kind of line breaks."""
    put(store, "x", "b")
    (tmp_path / "f").write_bytes(old)
    result = await store.to_file("ref:x", "f", mode="append")

    assert new == (tmp_path / "f").read_bytes()
    assert len(new) - len(old) == result.bytes_written == result.chars_written


async def test_to_file_ends_inserted_ref_with_line_break(store, tmp_path):
    """An insert after the last line behaves the same."""
    put(store, "x", "b")
    (tmp_path / "f").write_bytes(b"a")
    await store.to_file("ref:x", "f", mode="insert", insert_at=2)

    assert b"a\nb\n" == (tmp_path / "f").read_bytes()


@given(texts=st.lists(TEXTS, max_size=5))
async def test_to_file_keeps_lines_of_appended_refs(tmp_path_factory, texts):
    """After any number of appends, the file has the lines of all refs in order."""
    root = tmp_path_factory.mktemp("root")
    store = RefStore(settings=DescriptorSettings(files_root=str(root)))
    (root / "f").touch()
    for text in texts:
        put(store, "x", text)
        await store.to_file("ref:x", "f", mode="append")
    bodies = [text if text.endswith("\n") or not text else f"{text}\n" for text in texts]

    assert "".join(bodies) == (root / "f").read_bytes().decode()
