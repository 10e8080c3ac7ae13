"""New versions of refs, created by repeated ids, appending, editing, put, adopt and streams."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import RefStore, Session, admin
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidHandle, InvalidParameter
from mama_structs.testing.strategies import chunkings, ref_documents

TEXTS = st.text(st.sampled_from("ab \n`~"), max_size=12)
FENCE = "```"


def kinds(ingested):
    return [one.kind for one in ingested.diagnostics]


# Repeated ids


def test_observe_returns_existing_version_when_content_is_equal():
    """No new version is created, and nothing is reported."""
    store = RefStore()
    (first,) = store.observe('<ref id="x" type="code" title="t">\n1\n</ref>').refs
    for again in (
        '<ref id="x">1</ref>',
        f'<ref id="x">\n{FENCE}\n1\n{FENCE}\n</ref>',
        '<ref id="x" type="code">1</ref>',
    ):
        ingested = store.observe(again)

        assert (first,) == ingested.refs
        assert [] == kinds(ingested)
    assert ("ref:x@1",) == store.versions("x")


@pytest.mark.parametrize(
    "again",
    [
        '<ref id="x">2</ref>',
        '<ref id="x" title="new">1</ref>',
        '<ref id="x">1',
        f'<ref id="x">{FENCE}js\n1\n{FENCE}</ref>',
    ],
)
def test_observe_creates_new_version_when_ref_differs(again):
    """Differences are the text, a title, a language or an incomplete text."""
    store = RefStore()
    store.observe('<ref id="x">1</ref>')
    store.observe(again)

    assert 2 == store.get("x").version


def test_observe_creates_new_version_for_earlier_content():
    """Only the newest version is compared."""
    store = RefStore()
    for text in "121":
        store.observe(f'<ref id="x">{text}</ref>')

    assert 3 == store.get("x").version


# Refs in streams


@given(data=st.data(), before=st.lists(ref_documents(max_size=3), max_size=2), document=ref_documents())
def test_stream_and_its_message_create_one_version(data, before, document):
    """Covers any chunks, earlier versions, appending and repeated ids."""
    text = document.text.replace(" flag", " append")
    once, twice = RefStore(), RefStore()
    for store in (once, twice):
        for earlier in before:
            store.observe(earlier.text)
        stream = store.stream()
        for chunk in data.draw(chunkings(text)):
            stream.feed(chunk)
        streamed = stream.close()
    again = twice.observe(text)

    assert list(once) == list(twice)
    assert streamed.refs == again.refs
    assert streamed.diagnostics == again.diagnostics


def test_observe_recognizes_message_after_next_stream():
    """A message may arrive late, and corresponds to one stream only."""
    store = RefStore()
    texts = ['<ref id="x" append>1</ref>', '<ref id="x" append>2</ref>']
    for text in texts:
        stream = store.stream()
        stream.feed(text)
        stream.close()
    for text in texts:
        store.observe(text)
    assert "1\n2" == store.get("x").text

    store.observe(texts[0])
    assert "1\n2\n1" == store.get("x").text


def test_stream_close_recognizes_message_ingested_before():
    """An adapter may pass the message while the stream is open; a later stream is separate."""
    store, text = RefStore(), '<ref id="x" append>1</ref>'
    for _ in range(2):
        stream = store.stream()
        stream.feed(text)
        whole = store.observe(text)
        assert whole.refs == stream.close().refs
    assert "1\n1" == store.get("x").text

    stream = store.stream()
    stream.feed(text)
    stream.close()
    assert "1\n1\n1" == store.get("x").text


# Appending


@pytest.mark.parametrize(
    ("first", "more", "body"),
    [
        ("1", "2", "1\n2"),
        ("1\n", "2", "1\n2"),
        ("1\r\n1", "2", "1\r\n1\r\n2"),
        ("", "2", "2"),
        (f"{FENCE}py\n1\n{FENCE}", f"{FENCE}py\n2\n{FENCE}", "1\n2"),
        (f"{FENCE}py\n1\n{FENCE}", "2", "1\n2"),
        ("1", f"{FENCE}py\n2\n{FENCE}", "1\n2"),
    ],
)
def test_observe_appends_on_new_line(first, more, body):
    """Enclosing fences of both parts are removed."""
    store = RefStore()
    store.observe(f'<ref id="x" title="t">\n{first}\n</ref>')
    ingested = store.observe(f'<ref id="x" append>\n{more}\n</ref>')
    ref = store.get("x")

    assert (body, 2, {"title": "t"}) == (ref.body.text, ref.version, {"title": ref.attributes["title"]})
    assert "append" not in ref.attributes
    assert ["new_version"] == kinds(ingested)


@pytest.mark.parametrize(
    ("cut", "rest"),
    [
        ("def f():\n    ret", "urn 1"),
        (f"{FENCE}python\ndef f():\n    ret", f"urn 1\n{FENCE}"),
        (f"{FENCE}python\ndef f():\n    ret", f"{FENCE}python\nurn 1\n{FENCE}"),
        (f"{FENCE}python\ndef f():\n    ret", "urn 1"),
        (f"{FENCE}python\ndef f():\n", f"\n{FENCE}python\n    return 1\n{FENCE}"),
        (f"{FENCE}pyt", f"hon\ndef f():\n    return 1\n{FENCE}"),
    ],
)
def test_observe_continues_incomplete_ref(cut, rest):
    """The parts are joined without a line break, with or without a repeated fence."""
    store = RefStore()
    store.observe(f'<ref id="x">{cut}')
    store.observe(f'<ref id="x" append>{rest}</ref>')
    ref = store.get("x")

    assert "def f():\n    return 1" == ref.body.text
    assert ref.is_complete


@given(texts=st.lists(st.text(st.sampled_from("ab \n"), max_size=5), min_size=1, max_size=5))
def test_observe_joins_parts_of_incomplete_ref(texts):
    """Parts that are cut anywhere and continued give the complete text."""
    store = RefStore()
    *cut, last = texts
    for text in cut:
        store.observe(f'<ref id="x" append>\n{text}')
    store.observe(f'<ref id="x" append>\n{last}\n</ref>')

    assert "".join(texts) == store.get("x").text


def test_observe_creates_ref_when_there_is_none_to_append_to():
    """A diagnostic reports this."""
    ingested = RefStore().observe('<ref id="x" append="append">1</ref>')

    assert ["nothing_to_append"] == kinds(ingested)
    assert ("1", 1, {}) == (ingested.refs[0].text, ingested.refs[0].version, ingested.refs[0].attributes)


def test_put_and_edit_keep_language():
    """The fence is removed, but its language is kept."""
    store = RefStore()
    store.observe(f'<ref id="x">\n{FENCE}python\na = 1\n{FENCE}\n</ref>')

    assert "python" == store.put("x", "b = 2", append=True).language == store.edit("x", "1", "3").language
    assert "a = 3\nb = 2" == store.get("x").text


# Editing


@given(body=TEXTS, data=st.data(), new=TEXTS)
def test_edit_replaces_only_occurrence(body, data, new):
    """If the old text occurs once, the body equals the result of `str.replace`."""
    store = RefStore()
    store.put("x", body, fence="keep")
    start = data.draw(st.integers(0, len(body)))
    old = body[start : data.draw(st.integers(start, len(body)))]
    once = sum(body.startswith(old, at) for at in range(len(body))) == 1
    if not old or not once:
        with pytest.raises(InvalidParameter):
            store.edit("x", old, new)
        assert 1 == store.get("x").version
    else:
        assert body.replace(old, new) == store.edit("ref:x", old, new).body.text


def test_edit_error_lists_lines_when_text_is_ambiguous():
    """The error lists each line with its number."""
    store = RefStore()
    store.put("x", "a = 1\nb = 1\nc = 1")
    with pytest.raises(InvalidParameter) as caught:
        store.edit("x", "= 1", "= 2")

    assert ("line 1: a = 1", "line 2: b = 1", "line 3: c = 1") == caught.value.candidates
    assert "a = 1" not in str(caught.value)
    assert ("old", "ref:x@1") == (caught.value.parameter, caught.value.handle)


def test_edit_error_lists_similar_lines_when_text_is_missing():
    """Models often copy white space incorrectly."""
    store = RefStore()
    store.put("x", "def f():\n\treturn load\n")
    with pytest.raises(InvalidParameter, match="old does not stand") as caught:
        store.edit("x", "    return load", "x")

    assert ("line 2: \treturn load",) == caught.value.candidates


def test_edit_error_lists_similar_line_in_long_text():
    """A line that differs only in indentation is found anywhere."""
    store = RefStore()
    store.put("x", "".join(f"row {n}\n" for n in range(5_000)) + "    last = 1")
    with pytest.raises(InvalidParameter, match="character for character") as meant:
        store.edit("x", "\tlast = 1", "x")
    with pytest.raises(InvalidParameter, match="character for character") as blank:
        store.edit("x", " \n \n", "x")

    assert (("line 5001:     last = 1",), ()) == (meant.value.candidates, blank.value.candidates)


def test_edit_rejects_line_numbers_in_old_text():
    """A number and a tab from line mode are rejected, unless the text contains them."""
    store = RefStore()
    store.put("x", "a\nb")
    store.put("t", "1\ta\n2\tb")
    with pytest.raises(InvalidParameter, match="line number"):
        store.edit("x", "2\tb", "2\tc")

    assert "1\ta\n3\tb" == store.edit("t", "2\tb", "3\tb").text


def test_edit_matches_crlf():
    """In a content with carriage returns, they are added to the old and new text."""
    store = RefStore()
    store.put("x", "a\r\nb\r\nc")

    assert "a\r\nB\r\nB\r\nc" == store.edit("x", "a\nb", "a\nB\nB").text


def test_edit_accepts_earlier_version():
    """The result is the newest version."""
    store = RefStore()
    store.put("x", "1")
    store.put("x", "2")

    assert ("1!", 3) == (store.edit("x@1", "1", "1!").text, store.get("x").version)
    assert 3 == store.edit("x", "1", "1").version


def test_edit_rejects_handles_other_than_refs():
    """Descriptors, missing refs and invalid arguments raise errors."""
    store = RefStore()
    store.add("text")
    with pytest.raises(InvalidHandle):
        store.edit("fd:1", "text", "x")
    with pytest.raises(HandleNotFound):
        store.edit("x", "text", "x")
    store.put("x", "text")
    with pytest.raises(InvalidParameter):
        store.edit("x", "text", None)


# put, diff, adopt


def test_put_stores_any_text():
    """Tags in the text are ordinary text."""
    store = RefStore()
    ref = store.put("x", 'a</ref> <ref id="y">b', title="t")

    assert ('a</ref> <ref id="y">b', {"title": "t"}, True) == (ref.text, ref.attributes, ref.is_complete)
    assert ["ref:x@1"] == list(store)
    assert ref is store.put("x", ref.text)


@pytest.mark.parametrize(
    ("ref_id", "text", "attributes"),
    [("-", "a", {}), (1, "a", {}), ("x", b"a", {}), ("x", "\ud800", {}), ("x", "a", {"title": 1})],
)
def test_put_rejects_invalid_arguments(ref_id, text, attributes):
    """Nothing is stored."""
    store = RefStore()
    with pytest.raises(InvalidArgument):
        store.put(ref_id, text, **attributes)
    assert 0 == len(store)


@given(old=TEXTS, new=TEXTS)
def test_diff_is_empty_only_when_bodies_are_equal(old, new):
    """Otherwise, its header names both handles."""
    store = RefStore()
    store.put("a", old)
    store.put("b", new)
    found = store.diff("a", "ref:b@1")

    assert (store.get("a").body == store.get("b").body) == (found == "")
    assert found == "" or found.startswith("--- ref:a@1\n+++ ref:b@1\n@@")


def test_adopt_copies_ref_of_fork():
    """It becomes the next version with its attributes; adopting it again changes nothing."""
    home = RefStore()
    home.put("x", "1")
    child = home.fork()
    child.observe('<ref id="x" title="t">2')
    ref = home.copy_from(child, "x")

    assert ("2", 2, "t", False) == (ref.text, ref.version, ref.attributes["title"], ref.is_complete)
    assert ref is home.copy_from(child, "ref:x")
    assert 3 == home.copy_from(child, "x@1").version
    with pytest.raises(HandleNotFound):
        home.copy_from(child, "y")
    with pytest.raises(InvalidArgument):
        home.copy_from(None, "x")


async def test_adopt_copies_ref_of_forked_session(tmp_path):
    """The ref is present when the conversation is reopened."""
    async with Session.open(tmp_path / "a.mama", conversation="c") as session:
        async with session.fork() as child:
            await child.observe('<ref id="한글-1">\n1\n</ref>')
            session.refs.copy_from(child, "한글-1")
        await session.flush()
    async with Session.open(tmp_path / "a.mama", conversation="c") as session:
        assert "1" == session.refs.get("ref:한글-1").text


# Compact messages


@given(document=ref_documents())
def test_compact_message_stores_nothing_when_ingested_again(document):
    """The text outside of refs is unchanged, and its compact form is itself."""
    store = RefStore()
    first = store.observe(document.text)
    held = list(store)
    again = store.observe(first.compact_text)

    assert held == list(store)
    assert () == again.refs
    assert first.compact_text == again.compact_text == again.visible_text
    assert set(kinds(again)) <= set(kinds(first))


def test_compact_message_mentions_its_refs():
    """Each mention has the number of lines of the body; refs that were not stored remain."""
    seen = RefStore().observe(
        f'a <ref id="x" lang="py">\n{FENCE}\n1\n2\n{FENCE}\n</ref> b <ref id="y">c <ref id="z">d</ref></ref> <ref id="w">e'
    )

    expected = 'a <ref id="x" lines="2"/> b <ref id="y" lines="1"/> <ref id="w" lines="1" complete="false"/>'
    assert expected == seen.compact_text


# Ids in any script, and error messages for missing refs


def test_get_explains_ref_that_was_only_mentioned():
    """A model may write a new ref in the form of the mentions in its history."""
    store = RefStore()
    store.observe(
        '<ref id="old">text</ref> <ref id="old" lines="1"/> <ref id="new" lines="30"/> <ref id="-" lines="1"/>'
    )

    assert "text" == store.get("ref:old").text
    with pytest.raises(HandleNotFound, match="only named, as a history names"):
        store.get("ref:new")
    store.observe('<ref id="new">now</ref>')
    assert "now" == store.get("ref:new").text


@pytest.mark.parametrize("ref_id", ["한글-1", "план", "é", "ß" * 64, "xn--a", "xn--한글", "計画.md", "हिन्दी", "𐐀" * 64])
async def test_ids_of_any_script_are_restored_when_session_is_reopened(tmp_path, ref_id):
    """Equal spellings of an id are the same handle, also on disk."""
    async with Session.open(tmp_path / "a.mama", conversation="c" * 200) as session:
        await session.observe(f'<ref id="{unicodedata.normalize("NFD", ref_id)}">1</ref><ref id="{ref_id}">2</ref>')
        session.refs.delete(f"ref:{ref_id}@1")
        await session.flush()
        assert (await admin.check(session)).ok
    async with Session.open(tmp_path / "a.mama", conversation="c" * 200) as session:
        assert [f"ref:{ref_id}@2"] == list(session.refs)
        assert "2" == session.refs.get(unicodedata.normalize("NFD", ref_id)).text
        assert f'id="{ref_id}"' in await session.call("list_refs", {})


def test_get_explains_ref_that_was_marked_in_code():
    """The error states the reason until the ref exists."""
    store = RefStore()
    store.observe(f'{FENCE}\n<ref id="x">1</ref>\n{FENCE}')
    with pytest.raises(HandleNotFound, match="marked inside a code fence"):
        store.get("ref:x")
    with pytest.raises(HandleNotFound, match="marked inside a code fence"):
        store.fork().get("x")
    store.observe('<ref id="x">1</ref>')

    assert "1" == store.get("x").text


def test_missing_reasons_are_bounded():
    """A hostile answer cannot exhaust the memory."""
    store = RefStore()
    store.observe("".join(f'`<ref id="x{n}">` ' for n in range(100)))

    assert 64 == len(store._entries._missing_reasons)
    with pytest.raises(HandleNotFound, match="marked inside"):
        store.get("x99")
