"""What files get from refs, which are whole lines, and from descriptors, which are bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import DescriptorSettings, RefStore

TEXTS = st.text(st.sampled_from("ab \n"), max_size=6)


@pytest.fixture
def store(tmp_path):
    """A store that writes below the test's own directory."""
    return RefStore(settings=DescriptorSettings(root=str(tmp_path)))


def put(store, ref_id, text):
    """Mark a text, on lines of its own."""
    store.ingest(f'<ref id="{ref_id}">\n{text}\n</ref>')


async def test_a_file_of_a_ref_ends_with_a_line_break(store, tmp_path):
    """What a model marks is lines, and a file's last line ends, too."""
    put(store, "x", "a\nb")
    put(store, "y", "a\nb\n")
    put(store, "z", "a\r\nb")
    for one in "xyz":
        await store.to_file(f"ref:{one}", one)

    assert ["a\nb\n", "a\nb\n", "a\r\nb\r\n"] == [(tmp_path / one).read_bytes().decode() for one in "xyz"]


async def test_an_empty_ref_makes_an_empty_file(store, tmp_path):
    """Where there is no line, none ends."""
    put(store, "x", "")
    await store.to_file("ref:x", "x")

    assert b"" == (tmp_path / "x").read_bytes()


async def test_exact_bytes_are_to_be_had(store, tmp_path):
    """A descriptor, and a ref if asked so, is written byte for byte, in every mode."""
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
async def test_what_is_appended_begins_on_a_line_of_its_own(store, tmp_path, old, new):
    """Two refs in one file are never glued together, and the file keeps its kind of line breaks."""
    put(store, "x", "b")
    (tmp_path / "f").write_bytes(old)
    result = await store.to_file("ref:x", "f", mode="append")

    assert new == (tmp_path / "f").read_bytes()
    assert len(new) - len(old) == result.bytes_written == result.chars_written


async def test_what_is_inserted_at_the_end_ends_its_line(store, tmp_path):
    """An insert behind the last line is whole lines, too."""
    put(store, "x", "b")
    (tmp_path / "f").write_bytes(b"a")
    await store.to_file("ref:x", "f", mode="insert", insert_at=2)

    assert b"a\nb\n" == (tmp_path / "f").read_bytes()


@given(texts=st.lists(TEXTS, max_size=5))
async def test_the_lines_of_refs_stay_lines(tmp_path_factory, texts):
    """However many are appended, the file has the lines of all of them, one after the other."""
    root = tmp_path_factory.mktemp("root")
    store = RefStore(settings=DescriptorSettings(root=str(root)))
    (root / "f").touch()
    for text in texts:
        put(store, "x", text)
        await store.to_file("ref:x", "f", mode="append")
    bodies = [text if text.endswith("\n") or not text else f"{text}\n" for text in texts]

    assert "".join(bodies) == (root / "f").read_bytes().decode()
