"""How a ref becomes another version: written again, appended to, edited, put, adopted, and streamed."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import RefStore, Session
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidHandle, InvalidParameter
from mama_structs.testing.strategies import chunkings, ref_documents

TEXTS = st.text(st.sampled_from("ab \n`~"), max_size=12)
FENCE = "```"


def kinds(ingested):
    return [one.kind for one in ingested.diagnostics]


# Written again


def test_the_same_content_again_is_no_new_version():
    """Who repeats a ref gets the one that is there, and nothing is reported."""
    store = RefStore()
    (first,) = store.ingest('<ref id="x" type="code" title="t">\n1\n</ref>').refs
    for again in (
        '<ref id="x">1</ref>',
        f'<ref id="x">\n{FENCE}\n1\n{FENCE}\n</ref>',
        '<ref id="x" type="code">1</ref>',
    ):
        ingested = store.ingest(again)

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
def test_whatever_says_more_is_a_new_version(again):
    """Another text, a title, a language, or that the text is not whole."""
    store = RefStore()
    store.ingest('<ref id="x">1</ref>')
    store.ingest(again)

    assert 2 == store.get("x").version


def test_an_earlier_content_is_a_new_version_again():
    """Only the newest counts: what was undone is said once more."""
    store = RefStore()
    for text in "121":
        store.ingest(f'<ref id="x">{text}</ref>')

    assert 3 == store.get("x").version


# Streams


@given(data=st.data(), before=st.lists(ref_documents(max_size=3), max_size=2), document=ref_documents())
def test_a_stream_and_its_message_make_one_version(data, before, document):
    """However it is cut, whatever was there before, and with appending and repeated ids in it."""
    text = document.text.replace(" flag", " append")
    once, twice = RefStore(), RefStore()
    for store in (once, twice):
        for earlier in before:
            store.ingest(earlier.text)
        stream = store.stream()
        for chunk in data.draw(chunkings(text)):
            stream.feed(chunk)
        streamed = stream.close()
    again = twice.ingest(text)

    assert list(once) == list(twice)
    assert streamed.refs == again.refs
    assert streamed.diagnostics == again.diagnostics


def test_the_message_after_the_next_stream_is_known_too():
    """A message may come late, and stands for one stream only."""
    store = RefStore()
    texts = ['<ref id="x" append>1</ref>', '<ref id="x" append>2</ref>']
    for text in texts:
        stream = store.stream()
        stream.feed(text)
        stream.close()
    for text in texts:
        store.ingest(text)
    assert "1\n2" == store.get("x").text

    store.ingest(texts[0])
    assert "1\n2\n1" == store.get("x").text


def test_the_message_before_the_end_of_its_stream_is_known_too():
    """An adapter takes it while the host's stream is still open; the next stream with these words is another one."""
    store, text = RefStore(), '<ref id="x" append>1</ref>'
    for _ in range(2):
        stream = store.stream()
        stream.feed(text)
        whole = store.ingest(text)
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
def test_what_is_appended_begins_on_a_line_of_its_own(first, more, body):
    """Fences around either part are markup, as ever."""
    store = RefStore()
    store.ingest(f'<ref id="x" title="t">\n{first}\n</ref>')
    ingested = store.ingest(f'<ref id="x" append>\n{more}\n</ref>')
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
def test_an_answer_that_was_cut_is_continued(cut, rest):
    """It joins where it ended, whether or not the rest repeats the fence, and is whole then."""
    store = RefStore()
    store.ingest(f'<ref id="x">{cut}')
    store.ingest(f'<ref id="x" append>{rest}</ref>')
    ref = store.get("x")

    assert "def f():\n    return 1" == ref.body.text
    assert ref.complete


@given(texts=st.lists(st.text(st.sampled_from("ab \n"), max_size=5), min_size=1, max_size=5))
def test_what_was_cut_anywhere_comes_together(texts):
    """Parts that are each cut, and continued, are the text."""
    store = RefStore()
    *cut, last = texts
    for text in cut:
        store.ingest(f'<ref id="x" append>\n{text}')
    store.ingest(f'<ref id="x" append>\n{last}\n</ref>')

    assert "".join(texts) == store.get("x").text


def test_without_an_earlier_one_it_is_made():
    """The model is told that there was nothing to append to."""
    ingested = RefStore().ingest('<ref id="x" append="append">1</ref>')

    assert ["nothing_to_append"] == kinds(ingested)
    assert ("1", 1, {}) == (ingested.refs[0].text, ingested.refs[0].version, ingested.refs[0].attributes)


def test_a_language_outlives_what_is_appended_and_edited():
    """The fence is gone then, and what it said is not."""
    store = RefStore()
    store.ingest(f'<ref id="x">\n{FENCE}python\na = 1\n{FENCE}\n</ref>')

    assert "python" == store.put("x", "b = 2", append=True).language == store.edit("x", "1", "3").language
    assert "a = 3\nb = 2" == store.get("x").text


# Editing


@given(body=TEXTS, data=st.data(), new=TEXTS)
def test_an_edit_changes_one_place_and_nothing_else(body, data, new):
    """Where the old text stands once, the body is as `str.replace` makes it; the text keeps no other fence."""
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


def test_an_edit_that_may_mean_several_places_shows_them():
    """Each with the number of its line, for a model to choose."""
    store = RefStore()
    store.put("x", "a = 1\nb = 1\nc = 1")
    with pytest.raises(InvalidParameter) as caught:
        store.edit("x", "= 1", "= 2")

    assert ("line 1: a = 1", "line 2: b = 1", "line 3: c = 1") == caught.value.candidates
    assert "a = 1" not in str(caught.value)
    assert ("old", "ref:x@1") == (caught.value.parameter, caught.value.handle)


def test_an_edit_that_finds_nothing_shows_what_looks_like_it():
    """Blanks are what models get wrong."""
    store = RefStore()
    store.put("x", "def f():\n\treturn load\n")
    with pytest.raises(InvalidParameter, match="old does not stand") as caught:
        store.edit("x", "    return load", "x")

    assert ("line 2: \treturn load",) == caught.value.candidates


def test_the_line_that_an_edit_meant_is_found_far_down():
    """One that differs in its indentation only is shown wherever it stands."""
    store = RefStore()
    store.put("x", "".join(f"row {n}\n" for n in range(5_000)) + "    last = 1")
    with pytest.raises(InvalidParameter, match="character for character") as meant:
        store.edit("x", "\tlast = 1", "x")
    with pytest.raises(InvalidParameter, match="character for character") as blank:
        store.edit("x", " \n \n", "x")

    assert (("line 5001:     last = 1",), ()) == (meant.value.candidates, blank.value.candidates)


def test_line_numbers_are_no_part_of_what_is_edited():
    """What line mode writes before each line is refused, unless it is there."""
    store = RefStore()
    store.put("x", "a\nb")
    store.put("t", "1\ta\n2\tb")
    with pytest.raises(InvalidParameter, match="line number"):
        store.edit("x", "2\tb", "2\tc")

    assert "1\ta\n3\tb" == store.edit("t", "2\tb", "3\tb").text


def test_an_edit_matches_line_breaks_that_nobody_sees():
    """In a content with carriage returns, old and new get them."""
    store = RefStore()
    store.put("x", "a\r\nb\r\nc")

    assert "a\r\nB\r\nB\r\nc" == store.edit("x", "a\nb", "a\nB\nB").text


def test_an_earlier_version_can_be_edited():
    """What it makes is the newest."""
    store = RefStore()
    store.put("x", "1")
    store.put("x", "2")

    assert ("1!", 3) == (store.edit("x@1", "1", "1!").text, store.get("x").version)
    assert 3 == store.edit("x", "1", "1").version


def test_what_is_no_ref_is_not_edited():
    """A descriptor never changes."""
    store = RefStore()
    store.add("text")
    with pytest.raises(InvalidHandle):
        store.edit("fd:1", "text", "x")
    with pytest.raises(HandleNotFound):
        store.edit("x", "text", "x")
    store.put("x", "text")
    with pytest.raises(InvalidParameter):
        store.edit("x", "text", None)


# Put, diff, adopt


def test_anything_can_be_put():
    """Tags in it are text."""
    store = RefStore()
    ref = store.put("x", 'a</ref> <ref id="y">b', title="t")

    assert ('a</ref> <ref id="y">b', {"title": "t"}, True) == (ref.text, ref.attributes, ref.complete)
    assert ["ref:x@1"] == list(store)
    assert ref is store.put("x", ref.text)


@pytest.mark.parametrize(
    ("ref_id", "text", "attributes"),
    [("-", "a", {}), (1, "a", {}), ("x", b"a", {}), ("x", "\ud800", {}), ("x", "a", {"title": 1})],
)
def test_what_cannot_be_put_is_refused(ref_id, text, attributes):
    """Nothing is stored."""
    store = RefStore()
    with pytest.raises(InvalidArgument):
        store.put(ref_id, text, **attributes)
    assert 0 == len(store)


@given(old=TEXTS, new=TEXTS)
def test_a_diff_is_empty_where_nothing_changed(old, new):
    """And only there; it names what it compares."""
    store = RefStore()
    store.put("a", old)
    store.put("b", new)
    found = store.diff("a", "ref:b@1")

    assert (store.get("a").body == store.get("b").body) == (found == "")
    assert found == "" or found.startswith("--- ref:a@1\n+++ ref:b@1\n@@")


def test_a_child_s_ref_is_taken_home():
    """As the next version here, with what its tag said; taken twice it is one."""
    home = RefStore()
    home.put("x", "1")
    child = home.fork()
    child.ingest('<ref id="x" title="t">2')
    ref = home.adopt(child, "x")

    assert ("2", 2, "t", False) == (ref.text, ref.version, ref.attributes["title"], ref.complete)
    assert ref is home.adopt(child, "ref:x")
    assert 3 == home.adopt(child, "x@1").version
    with pytest.raises(HandleNotFound):
        home.adopt(child, "y")
    with pytest.raises(InvalidArgument):
        home.adopt(None, "x")


async def test_a_fork_of_a_session_gives_its_refs_home(tmp_path):
    """And they are there when the conversation is opened again."""
    async with Session.open(tmp_path / "a.mama", conversation="c") as session:
        async with session.fork() as child:
            await child.observe('<ref id="한글-1">\n1\n</ref>')
            session.refs.adopt(child, "한글-1")
        await session.flush()
    async with Session.open(tmp_path / "a.mama", conversation="c") as session:
        assert "1" == session.refs.get("ref:한글-1").text


# For the history


@given(document=ref_documents())
def test_a_compact_message_stores_nothing_when_it_is_read_again(document):
    """What is in the refs is gone from it, everything else is as it was, and it is its own compact form."""
    store = RefStore()
    first = store.ingest(document.text)
    held = list(store)
    again = store.ingest(first.compact)

    assert held == list(store)
    assert () == again.refs
    assert first.compact == again.compact == again.visible
    assert set(kinds(again)) <= set(kinds(first))


def test_a_compact_message_names_its_refs():
    """Where each stood, with the lines of its body; what was not stored stays."""
    seen = RefStore().ingest(
        f'a <ref id="x" lang="py">\n{FENCE}\n1\n2\n{FENCE}\n</ref> b <ref id="y">c <ref id="z">d</ref></ref> <ref id="w">e'
    )

    expected = 'a <ref id="x" lines="2"/> b <ref id="y" lines="1"/> <ref id="w" lines="1" complete="false"/>'
    assert expected == seen.compact


# Ids of any script, and why something is not there


def test_a_ref_that_was_only_named_is_explained():
    """A model may write a new ref as its history shows the old ones, and learns why it is not there."""
    store = RefStore()
    store.ingest(
        '<ref id="old">text</ref> <ref id="old" lines="1"/> <ref id="new" lines="30"/> <ref id="-" lines="1"/>'
    )

    assert "text" == store.get("ref:old").text
    with pytest.raises(HandleNotFound, match="only named, as a history names"):
        store.get("ref:new")
    store.ingest('<ref id="new">now</ref>')
    assert "now" == store.get("ref:new").text


@pytest.mark.parametrize("ref_id", ["한글-1", "план", "é", "ß" * 64, "xn--a", "xn--한글", "計画.md", "हिन्दी", "𐐀" * 64])
async def test_ids_of_any_script_outlive_the_session(tmp_path, ref_id):
    """However they are spelt they are one, on disk as well."""
    async with Session.open(tmp_path / "a.mama", conversation="c" * 200) as session:
        await session.observe(f'<ref id="{unicodedata.normalize("NFD", ref_id)}">1</ref><ref id="{ref_id}">2</ref>')
        session.refs.delete(f"ref:{ref_id}@1")
        await session.flush()
        assert (await session.check()).ok
    async with Session.open(tmp_path / "a.mama", conversation="c" * 200) as session:
        assert [f"ref:{ref_id}@2"] == list(session.refs)
        assert "2" == session.refs.get(unicodedata.normalize("NFD", ref_id)).text
        assert f'id="{ref_id}"' in await session.call("list_refs", {})


def test_a_ref_that_was_marked_in_code_is_explained():
    """Whoever asks for it learns why it is not there, until it is."""
    store = RefStore()
    store.ingest(f'{FENCE}\n<ref id="x">1</ref>\n{FENCE}')
    with pytest.raises(HandleNotFound, match="marked inside a code fence"):
        store.get("ref:x")
    with pytest.raises(HandleNotFound, match="marked inside a code fence"):
        store.fork().get("x")
    store.ingest('<ref id="x">1</ref>')

    assert "1" == store.get("x").text


def test_only_the_last_reasons_are_remembered():
    """A hostile answer fills nothing."""
    store = RefStore()
    store.ingest("".join(f'`<ref id="x{n}">` ' for n in range(100)))

    assert 64 == len(store._entries._missed)
    with pytest.raises(HandleNotFound, match="marked inside"):
        store.get("x99")
