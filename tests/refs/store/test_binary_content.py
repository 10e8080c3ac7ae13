"""Binary content: stored and returned unchanged, and never read as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import DescriptorSettings, RefStore, Session, admin
from mama_structs.errors import InvalidArgument, InvalidParameter, QuotaExceeded
from mama_structs.refs.conversations.conversation_log import ENCODER, _to_record

PIXEL = b"\x89PNG\r\n\x1a\n\x00\xff"


@given(data=st.binary(max_size=20))
def test_add_stores_bytes_unchanged(data):
    """The descriptor has their MIME type and size, and no characters, lines or pages."""
    store = RefStore()
    made = store.add(data, mime_type="image/PNG", source="camera")

    assert (data, "image/png", "camera") == (made.data, made.mime_type, store.get("fd:1").source)
    assert (0, 0, 0, len(data), "data") == (made.chars, made.lines, made.pages, made.size, made.category)
    assert len(data) == store.usage.bytes


async def test_bytes_are_restored_when_session_is_reopened(tmp_path):
    """A text with the same bytes remains a text."""
    async with Session.open(tmp_path / "a.mama", conversation="c") as session:
        session.refs.add(PIXEL, mime_type="image/png")
        session.refs.add(b"text", mime_type="audio/wav; rate=8000")
        session.refs.add("text")
        assert (await admin.check(session)).ok
    async with Session.open(tmp_path / "a.mama", conversation="c") as session:
        found = session.refs.list_descriptors()
        assert [PIXEL, b"text", b"text"] == [one.data for one in found]
        assert ["image/png", "audio/wav; rate=8000", "text/plain"] == [one.mime_type for one in found]
        assert "text" == found[2].text
        assert len(PIXEL) + 4 == session.refs.usage.bytes
        assert 'mime_type="image/png" bytes="10"' in session.system_prompt(handles=True)


async def test_read_raises_for_binary_content(tmp_path):
    """Reading, searching and extracting raise an error with the MIME type; so does the tool."""
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


async def test_to_file_writes_bytes_unchanged(tmp_path):
    """Bytes are written and appended unchanged."""
    store = RefStore(settings=DescriptorSettings(files_root=str(tmp_path)))
    store.add(PIXEL, mime_type="image/png")
    first = await store.to_file("fd:1", "a.png")
    await store.to_file("fd:1", "a.png", mode="append")

    assert PIXEL * 2 == (tmp_path / "a.png").read_bytes()
    assert (0, len(PIXEL)) == (first.chars_written, first.bytes_written)


def test_record_of_text_omits_mime_type():
    """Earlier versions, which do not support binary content, can read the record of a text."""
    store = RefStore()
    written = [ENCODER.encode(_to_record(one)) for one in (store.add("text"), store.add(b"1", mime_type="audio/wav"))]

    assert [False, True] == [b"mime_type" in one for one in written]


@pytest.mark.parametrize("mime_type", [None, "", "png", "image/", "image/png\n", "a/" + "b" * 200, 1, 'image/"png"'])
def test_add_rejects_bytes_without_valid_mime_type(mime_type):
    """Nothing is stored."""
    store = RefStore()
    with pytest.raises(InvalidArgument):
        store.add(PIXEL, mime_type=mime_type)
    assert 0 == len(store)


def test_add_rejects_mime_type_for_text():
    """A text is always text/plain; other types of data are rejected."""
    store = RefStore()
    with pytest.raises(InvalidArgument):
        store.add("text", mime_type="text/csv")
    with pytest.raises(InvalidArgument):
        store.add(bytearray(PIXEL), mime_type="image/png")
    assert "text/plain" == store.add("text").mime_type


def test_add_counts_bytes_once_when_contents_are_equal():
    """The quota counts equal bytes once."""
    store = RefStore(settings=DescriptorSettings(max_bytes=15))
    store.add(PIXEL, mime_type="image/png")
    store.add(PIXEL, mime_type="image/x-png")
    with pytest.raises(QuotaExceeded):
        store.add(b"another", mime_type="image/png")
