"""What models are shown is XML that a parser reads back exactly."""

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs import DescriptorSettings, RefStore
from mama_structs.descriptors.render import element, fd_content, fd_error, handle_list, ref_content, ref_list, start_tag
from mama_structs.errors import HandleNotFound

# What XML 1.0 says a document may hold; the rest becomes U+FFFD.
XML = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\r\n\t<>&\"']\x00\x0b\x1f\ufffe\uffff"))


def held(text):
    return "".join(character if XML.match(character) else "\ufffd" for character in text)


@given(text=TEXTS)
@example(text="</fd_content>")
@example(text="]]>")
@example(text="a\r\nb\rc\n")
def test_a_parser_gives_the_content_back_exactly(text):
    """The text of the element is the content, with U+FFFD for what XML cannot hold, and the number of those."""
    store = RefStore()
    handle = store.add(text).handle
    shown = fd_content(store.read(handle, read_all=True))
    root = ET.fromstring(shown)
    lost = sum(1 for character in text if not XML.match(character))

    assert held(text) == (root.text or "")
    assert (str(lost) if lost else None) == root.get("replaced")
    assert text == store.read(handle, read_all=True).text


@given(value=TEXTS)
def test_attributes_come_back_exactly(value):
    """Line breaks, tabs and quotes in an attribute survive, which a parser would otherwise make blanks."""
    assert held(value) == ET.fromstring(start_tag("a", {"b": value}, empty=True)).get("b")


@given(text=TEXTS, size=st.integers(1, 9))
def test_pages_as_a_model_sees_them_join_to_the_content(text, size):
    """Reading the XML of one page after the other gives everything, in order and once."""
    store = RefStore(settings=DescriptorSettings(page_size=size))
    handle = store.add(text).handle
    start, pages = 1, []
    while start is not None:
        excerpt = store.read(handle, start=start)
        pages.append(ET.fromstring(fd_content(excerpt)).text or "")
        start = excerpt.next_start

    assert held(text) == "".join(pages)


@given(text=TEXTS.filter(bool), head=st.integers(0, 20), tail=st.integers(0, 20))
def test_a_preview_says_what_it_leaves_out(text, head, tail):
    """Head, what is said to be omitted, and tail add up to the whole, in characters."""
    store = RefStore(settings=DescriptorSettings(preview_head=head, preview_tail=tail, wrap_over=0))
    root = ET.fromstring(store.wrap(text))
    shown = {part.tag: part.text or "" for part in root}
    omitted = root.find("omitted")
    first, last = map(int, omitted.get("chars").split("-")) if omitted is not None else (1, 0)

    assert len(text) == len(shown.get("head", "")) + len(shown.get("tail", "")) + last - first + 1
    assert held(text).startswith(shown.get("head", ""))
    assert held(text).endswith(shown.get("tail", ""))
    assert (f"left out: {last - first + 1:,} character" in shown["message"]) == (omitted is not None)
    assert ("all of which are shown" in shown["message"]) == (omitted is None)


def test_a_preview_says_how_to_read_on():
    """The call in it begins with the first character that is left out."""
    store = RefStore(settings=DescriptorSettings(preview_head=4, preview_tail=2, wrap_over=5, page_size=3))
    message = ET.fromstring(store.wrap("0123456789")).find("message").text

    assert 'read_fd(fd="fd:1", mode="char", start=5, count=3)' in message
    assert "4 pages in all" in message
    assert "456" == store.read("fd:1", mode="char", start=5, count=3).text


def test_a_list_has_an_element_for_each_ref():
    """Id, time, lines, characters and version are there, and what the tag said of itself."""
    store = RefStore()
    store.ingest('<ref id="a" title="1 &lt; 2 &quot;x">one\ntwo</ref><ref id="a">new</ref><ref id="b">x')
    root = ET.fromstring(ref_list(store.list()))

    assert "2" == root.get("count")
    assert [("a", "2", "1", "3", None), ("b", "1", "1", "1", "false")] == [
        (ref.get("id"), ref.get("version"), ref.get("lines"), ref.get("chars"), ref.get("complete")) for ref in root
    ]
    assert "ref_list" == ET.fromstring(ref_list(())).tag


def test_attributes_of_the_tag_are_shown_as_they_were_written():
    """An entity in an attribute is text for us, and comes back as the same text."""
    store = RefStore()
    store.ingest('<ref id="a" title="1 &lt; 2" lang="py" id="b" onclick="x">c</ref>')
    root = ET.fromstring(ref_content(store.get("a")))

    assert ("1 &lt; 2", "py", None) == (root.get("title"), root.get("lang"), root.get("onclick"))
    assert "c" == root.text


def test_an_error_names_type_and_handle():
    """A model reads the same word as a program."""
    root = ET.fromstring(fd_error(HandleNotFound("no <such> & so", handle="fd:1", hint="nearest: fd:2")))

    assert ("not_found", "fd:1") == (root.get("type"), root.get("fd"))
    assert "no <such> & so (nearest: fd:2)" == root.find("message").text


def test_a_list_for_the_prompt_holds_both_kinds():
    """Descriptors and refs share one list."""
    store = RefStore()
    store.add("text")
    store.ingest('<ref id="a">x</ref>')
    root = ET.fromstring(handle_list([*store.descriptors(), *store.list()]))

    assert ["fd", "ref"] == [part.tag for part in root]


@pytest.mark.parametrize("value", [True, 3, "x"])
def test_attributes_are_written_as_models_know_them(value):
    """Booleans are true and false, as in JSON."""
    assert f'<a b="{str(value).lower()}"/>' == start_tag("a", {"b": value, "c": None}, empty=True)


def test_an_element_without_text_is_well_formed():
    """An empty content is an empty element."""
    assert "<a></a>" == element("a", {}, "")


def test_the_whole_of_a_short_text_is_shown():
    """A preview of what fits says that it is all there."""
    store = RefStore(settings=DescriptorSettings(wrap_over=3))
    root = ET.fromstring(store.wrap("short"))

    assert ["message", "head"] == [part.tag for part in root]
