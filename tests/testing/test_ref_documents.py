"""The documents with planted refs are what they say they are, without a parser's word for it."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from mama_structs.refs.markup.parser import is_ref_id
from mama_structs.testing import strategies
from mama_structs.testing.strategies import PlantedRef, chunkings, ref_documents, ref_ids


@given(ref_id=ref_ids())
def test_ids_are_those_that_a_ref_may_have(ref_id):
    """Every id is valid."""
    assert is_ref_id(ref_id)


@given(document=ref_documents())
def test_tags_are_all_that_is_not_visible(document):
    """The text has two tags more than the visible text for each ref: one when it closes itself or is not closed."""
    left_out, at = [], 0
    tag = re.compile(r"""</?ref(?:"[^"]*"|'[^']*'|[^"'<>])*>""", re.IGNORECASE)
    shown = 0
    while at < len(document.text):
        match = tag.match(document.text, at)
        # Decoys are visible, so a tag is left out exactly where the visible text does not show it.
        if match and not document.visible.startswith(match.group(), shown):
            left_out.append(match.group())
            at = match.end()
        else:
            assert document.visible[shown] == document.text[at]
            at, shown = at + 1, shown + 1

    assert len(document.visible) == shown
    openings = [one for one in left_out if not one.startswith("</")]
    closings = [one for one in left_out if one.startswith("</")]
    assert len(document.refs) == len(openings)
    closed = [ref for ref, one in zip(document.refs, openings, strict=True) if ref.complete and not one.endswith("/>")]
    assert len(closed) == len(closings)
    assert all(ref.id in one for ref, one in zip(document.refs, openings, strict=True))


@given(document=ref_documents())
def test_contents_are_visible(document):
    """What a ref holds can be read in the document, and decoys hold nothing."""
    assert all(ref.content in document.visible for ref in document.refs)
    assert all(name == name.lower() and "id" != name for ref in document.refs for name in ref.attributes)


@given(document=ref_documents(unclosed=False))
def test_refs_can_all_be_closed(document):
    """Without unclosed refs every ref is complete."""
    assert all(ref.complete for ref in document.refs)


@given(document=ref_documents(max_depth=0, max_size=3))
def test_there_can_be_no_refs_at_all(document):
    """Without depth a document has only prose and decoys."""
    assert () == document.refs
    assert document.text == document.visible


@given(document=ref_documents(max_depth=1, unclosed=False))
def test_depth_is_limited(document):
    """With depth 1 no ref is inside another: the contents follow one after the other."""
    at = 0
    for ref in document.refs:
        at = document.visible.index(ref.content, at) + len(ref.content)


@given(document=ref_documents())
def test_documents_can_be_written_as_utf_8(document):
    """A store can keep every one: there are no lone surrogates."""
    assert document.text == document.text.encode().decode()


FEATURES = {
    "nested": lambda one: re.search(r"(?i)<ref\s[^<>]*><ref\s", one.text),
    "adjacent": lambda one: re.search(r"(?i)</ref><ref\s", one.text),
    "unclosed": lambda one: any(not ref.complete for ref in one.refs),
    "two unclosed": lambda one: 2 <= sum(not ref.complete for ref in one.refs),
    "self-closing": lambda one: re.search(r"""(?<!decoy['"])/>""", one.text),
    "single quotes": lambda one: re.search(r"(?i)\bid\s*=\s*'(?!decoy|no)", one.text),
    "capitals": lambda one: "<REF" in one.text,
    "id last": lambda one: re.search(r"""(?i)\w=["']\w*["']\s+id\s*=""", one.text),
    "repeated id": lambda one: re.search(r"""(?i)\bid\s*=\s*["'][\w.-]+["'][^<>]*\sid\b""", one.text),
    "> in a value": lambda one: any(">" in value for ref in one.refs for value in ref.attributes.values()),
    "a decoy in a fence": lambda one: re.search('```\n<ref id="decoy">', one.visible),
    "a decoy in a span": lambda one: '`<ref id="decoy">' in one.visible,
    "a fence in a ref": lambda one: any("```" in ref.content for ref in one.refs),
    "CRLF around content": lambda one: re.search(r"(?i)[^`]>\r\n[^`]*\r\n</ref", one.text),
    "equal ids": lambda one: len(one.refs) > len({ref.id for ref in one.refs}),
}  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("name", FEATURES)
def test_each_kind_of_document_occurs(name):
    """What makes a parser stumble is drawn, and not only once in a million."""
    wanted = settings(
        max_examples=2_000, phases=[Phase.generate], database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    assert find(ref_documents(), lambda document: bool(FEATURES[name](document)), settings=wanted)


@given(cut=st.text().flatmap(lambda text: st.tuples(st.just(text), chunkings(text))))
def test_chunks_make_up_the_text(cut):
    """However a text is cut, nothing is lost or added."""
    text, chunks = cut

    assert text == "".join(chunks)


@pytest.mark.parametrize("sizes", [[6], [1] * 6, [2, 4], [0, 6], [3, 0, 3]])
def test_each_kind_of_cut_occurs(sizes):
    """A text comes whole, one character at a time, cut anywhere, and with empty chunks."""
    assert find(chunkings("abcdef"), lambda chunks: sizes == [len(chunk) for chunk in chunks])


def test_planted_refs_compare_by_value():
    """Tests can write down what they expect."""
    assert PlantedRef("a", {"type": "x"}, "y", complete=True) == PlantedRef("a", {"type": "x"}, "y", complete=True)


def test_the_strategies_are_public():
    """They are found where all strategies are."""
    assert {"PlantedRef", "RefDocument", "chunkings", "ref_documents", "ref_ids"} <= set(strategies.__all__)
