"""`RefCollector` turns parser events into refs. The end of a piece of a message also ends its open refs."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs.refs.store.ref_collector import RefCollector, trim_line_breaks

TEXTS = st.text(st.sampled_from("a \r\n"))


def collected(*pieces):
    collector = RefCollector()
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
        ("\rx\r", "x"),
        ("\nx\r\n", "x\r"),
        ("\r\nx\n", "x"),
        ("x\r", "x"),
    ],
)
def test_trimmed_removes_one_line_break_at_each_end(text, expected):
    """After an opening line feed, a final carriage return is content."""
    assert expected == trim_line_breaks(text)


def test_content_keeps_last_line_break_when_ref_is_unclosed():
    """Without a closing tag, the last line break is content."""
    found = collected('<ref id="a">\none\n')

    assert "one\n" == found.content(found.marked[0])


@given(content=TEXTS, wrapping=st.sampled_from(["\n", "\r\n"]))
@example(content="\r", wrapping="\n")
@example(content="\n", wrapping="\r\n")
def test_trimmed_restores_text_wrapped_in_line_breaks(content, wrapping):
    """Any text between two line breaks is restored exactly."""
    assert content == trim_line_breaks(f"{wrapping}{content}{wrapping}")


@given(content=st.text().filter(lambda text: "<" not in text), wrapping=st.sampled_from(["\n", "\r\n"]))
def test_content_equals_text_between_tags(content, wrapping):
    """Any text without tags, on lines of its own, is the content."""
    found = collected(f'before <ref id="x">{wrapping}{content}{wrapping}</ref> after')

    assert [content] == [found.content(one) for one in found.marked]
    assert f"before {wrapping}{content}{wrapping} after" == found.visible


def test_content_of_outer_ref_excludes_inner_tags():
    """Each ref loses only its own line breaks."""
    found = collected('<ref id="a">\none\n<ref id="b">\ntwo\n</ref>\nthree\n</ref>')

    assert [("a", "one\n\ntwo\n\nthree"), ("b", "two")] == [(one.id, found.content(one)) for one in found.marked]


def test_marked_is_ordered_by_opening_tags():
    """An outer ref precedes an inner one."""
    found = collected('<ref id="a"><ref id="b"/></ref><ref id="c"/>')

    assert ["a", "b", "c"] == [one.id for one in found.marked]
    assert [1, 13, 32] == [one.position for one in found.marked]


def test_ref_ends_at_end_of_piece():
    """Text after a tool call is not part of an open ref; positions count across all pieces."""
    found = collected('x <ref id="a">one', 'two</ref> <ref id="b">y</ref>')

    assert [("a", "one", False), ("b", "y", True)] == [
        (one.id, found.content(one), one.complete) for one in found.marked
    ]
    assert [("unclosed", 3), ("stray_close", 21)] == [(said.kind, said.position) for said in found.diagnostics]
    assert [3, 28] == [one.position for one in found.marked]
    assert "x onetwo</ref> y" == found.visible
    assert 'x <ref id="a">onetwo</ref> <ref id="b">y</ref>' == found.text


def test_collector_treats_tags_as_text_without_marks():
    """If references are disabled, the complete text is visible."""
    collector = RefCollector(marks=False)
    events = collector.feed('<ref id="a">x</ref>')
    collector.feed("")
    collector.end_piece()
    found = collector.finish()

    assert ['<ref id="a">x</ref>'] == [event.text for event in events]
    assert ((), (), '<ref id="a">x</ref>') == (found.marked, found.diagnostics, found.visible)
