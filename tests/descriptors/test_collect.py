"""From events to refs: what a ref's content is, and where pieces end."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs.refs.store.ref_collector import Collector, trimmed

TEXTS = st.text(st.sampled_from("a \r\n"))


def collected(*pieces):
    collector = Collector()
    for piece in pieces:
        collector.feed(piece)
        collector.end_piece()
    return collector.finish()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("x", "x"),
        ("\nx\n", "x"),
        ("\r\nx\r\n", "x"),
        ("x\n", "x"),
        ("x\r\n", "x"),
        ("\nx", "x"),
        ("\n\nx\n\n", "\nx\n"),
        (" \nx\n ", " \nx\n "),
        ("\n", ""),
        ("\r\n", ""),
        ("\n\n", ""),
        ("\rx\r", "\rx\r"),
        ("\nx\r\n", "x\r"),
        ("\r\nx\n", "x"),
        ("x\r", "x\r"),
    ],
)
def test_one_line_break_at_each_end_is_dropped_and_nothing_else(text, expected):
    """Two kinds of line breaks count; after a line feed at the beginning a carriage return at the end is content."""
    assert expected == trimmed(text)


def test_what_was_never_closed_keeps_its_end():
    """Everything up to the end is kept, a line break there too: no closing tag follows it."""
    found = collected('<ref id="a">\none\n')

    assert "one\n" == found.content(found.marked[0])


@given(content=TEXTS, wrapping=st.sampled_from(["\n", "\r\n"]))
@example(content="\r", wrapping="\n")
@example(content="\n", wrapping="\r\n")
def test_what_is_wrapped_in_line_breaks_comes_back_exactly(content, wrapping):
    """Any content on lines of its own is what is stored, whatever it begins and ends with."""
    assert content == trimmed(f"{wrapping}{content}{wrapping}")


@given(content=st.text().filter(lambda text: "<" not in text), wrapping=st.sampled_from(["\n", "\r\n"]))
def test_arbitrary_content_in_a_ref_comes_back_exactly(content, wrapping):
    """Between tags on lines of their own every text without tags is stored as it is."""
    found = collected(f'before <ref id="x">{wrapping}{content}{wrapping}</ref> after')

    assert [content] == [found.content(one) for one in found.marked]
    assert f"before {wrapping}{content}{wrapping} after" == found.visible


def test_the_outer_ref_holds_the_text_of_the_inner_one_without_its_tags():
    """Each loses its own line breaks only."""
    found = collected('<ref id="a">\none\n<ref id="b">\ntwo\n</ref>\nthree\n</ref>')

    assert [("a", "one\n\ntwo\n\nthree"), ("b", "two")] == [(one.id, found.content(one)) for one in found.marked]


def test_refs_come_in_the_order_of_their_opening_tags():
    """The outer one comes first, though it ends last."""
    found = collected('<ref id="a"><ref id="b"/></ref><ref id="c"/>')

    assert ["a", "b", "c"] == [one.id for one in found.marked]
    assert [1, 13, 32] == [one.position for one in found.marked]


def test_a_ref_ends_with_its_piece():
    """What follows a tool call is no part of a ref that was open before it, and positions count through all pieces."""
    found = collected('x <ref id="a">one', 'two</ref> <ref id="b">y</ref>')

    assert [("a", "one", False), ("b", "y", True)] == [
        (one.id, found.content(one), one.complete) for one in found.marked
    ]
    assert [("unclosed", 3), ("stray_close", 21)] == [(said.kind, said.position) for said in found.diagnostics]
    assert [3, 28] == [one.position for one in found.marked]
    assert "x onetwo</ref> y" == found.visible
    assert 'x <ref id="a">onetwo</ref> <ref id="b">y</ref>' == found.text


def test_without_marks_a_tag_is_text():
    """When references are switched off, everything is visible as it came."""
    collector = Collector(marks=False)
    events = collector.feed('<ref id="a">x</ref>')
    collector.feed("")
    collector.end_piece()
    found = collector.finish()

    assert ['<ref id="a">x</ref>'] == [event.text for event in events]
    assert ((), (), '<ref id="a">x</ref>') == (found.marked, found.diagnostics, found.visible)
