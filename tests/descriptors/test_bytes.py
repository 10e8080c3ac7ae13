"""Bytes of another type than text: kept, given back as they came, and never read as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import DescriptorSettings, RefStore, Session
from mama_structs.errors import InvalidArgument, InvalidParameter, QuotaExceeded
from mama_structs.refs.conversations.conversation_log import ENCODER, _record_of

PIXEL = b"\x89PNG\r\n\x1a\n\x00\xff"


@given(data=st.binary(max_size=20))
def test_bytes_come_back_as_they_came(data):
    """With their type, and counted as bytes."""
    store = RefStore()
    made = store.add(data, mime_type="image/PNG", source="camera")

    assert (data, "image/png", "camera") == (made.data, made.mime_type, store.get("fd:1").source)
    assert (0, 0, 0, len(data), "data") == (made.chars, made.lines, made.pages, made.size, made.category)
    assert len(data) == store.usage.bytes


async def test_bytes_outlive_the_session(tmp_path):
    """A text of the same bytes is a text."""
    async with Session.open(tmp_path / "a.mama", conversation="c") as session:
        session.refs.add(PIXEL, mime_type="image/png")
        session.refs.add(b"text", mime_type="audio/wav; rate=8000")
        session.refs.add("text")
        assert (await session.check()).ok
    async with Session.open(tmp_path / "a.mama", conversation="c") as session:
        found = session.refs.descriptors()
        assert [PIXEL, b"text", b"text"] == [one.data for one in found]
        assert ["image/png", "audio/wav; rate=8000", "text/plain"] == [one.mime_type for one in found]
        assert "text" == found[2].text
        assert len(PIXEL) + 4 == session.refs.usage.bytes
        assert 'mime_type="image/png" bytes="10"' in session.system_prompt(handles=True)


async def test_bytes_are_not_read_as_text(tmp_path):
    """Whoever reads, searches, extracts or passes them on is told what they are, a model too."""
    async with Session.open(tmp_path / "a.mama") as session:
        refs = session.refs
        made = refs.add(PIXEL, mime_type="image/png")
        for read in (refs.read, refs.extract, lambda handle: refs.diff(handle, handle), lambda _: made.text):
            with pytest.raises(InvalidParameter, match="fd:1 is image/png of 10 bytes, and no text"):
                read("fd:1")
        with pytest.raises(InvalidParameter):
            await refs.search("fd:1", "x")
        assert "image/png of 10 bytes" in await session.call("read_fd", {"fd": "fd:1"})
        assert "<Descriptor 'image/png of 10 bytes' host, fd:1>" == repr(made)


async def test_bytes_are_written_to_a_file_as_they_are(tmp_path):
    """In every mode, and appended to what is there."""
    store = RefStore(settings=DescriptorSettings(root=str(tmp_path)))
    store.add(PIXEL, mime_type="image/png")
    first = await store.to_file("fd:1", "a.png")
    await store.to_file("fd:1", "a.png", mode="append")

    assert PIXEL * 2 == (tmp_path / "a.png").read_bytes()
    assert (0, len(PIXEL)) == (first.chars_written, first.bytes_written)


def test_texts_are_recorded_as_before():
    """A version that knows of no bytes reads what is no bytes: nothing is said of the type of a text."""
    store = RefStore()
    written = [ENCODER.encode(_record_of(one)) for one in (store.add("text"), store.add(b"1", mime_type="audio/wav"))]

    assert [False, True] == [b"mime_type" in one for one in written]


@pytest.mark.parametrize("mime_type", [None, "", "png", "image/", "image/png\n", "a/" + "b" * 200, 1, 'image/"png"'])
def test_bytes_say_what_they_are(mime_type):
    """Without a type, or with none that is one, nothing is stored."""
    store = RefStore()
    with pytest.raises(InvalidArgument):
        store.add(PIXEL, mime_type=mime_type)
    assert 0 == len(store)


def test_a_text_has_no_other_type():
    """It is text/plain; and what is neither is refused."""
    store = RefStore()
    with pytest.raises(InvalidArgument):
        store.add("text", mime_type="text/csv")
    with pytest.raises(InvalidArgument):
        store.add(bytearray(PIXEL), mime_type="image/png")
    assert "text/plain" == store.add("text").mime_type


def test_bytes_count_against_the_quota():
    """In bytes, once for equal ones."""
    store = RefStore(settings=DescriptorSettings(max_bytes=15))
    store.add(PIXEL, mime_type="image/png")
    store.add(PIXEL, mime_type="image/x-png")
    with pytest.raises(QuotaExceeded):
        store.add(b"another", mime_type="image/png")
