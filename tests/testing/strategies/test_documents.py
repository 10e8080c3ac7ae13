"""Generated documents are consistent with their planted refs. The tests do not use the parser."""

from __future__ import annotations

import re

import pytest
from case_helpers import find_missing_cases
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from mama_structs.refs.markup.parser import is_ref_id
from mama_structs.testing import strategies
from mama_structs.testing.strategies import PlantedRef, chunkings, ref_documents, ref_ids


@given(ref_id=ref_ids())
def test_ref_ids_are_valid(ref_id):
    assert is_ref_id(ref_id)


@given(document=ref_documents())
def test_text_differs_from_visible_text_by_tags_only(document):
    """Each ref has two tags, or one if it is self-closing or not closed."""
    left_out, at = [], 0
    tag = re.compile(r"""</?ref(?:"[^"]*"|'[^']*'|[^"'<>])*>""", re.IGNORECASE)
    shown = 0
    while at < len(document.text):
        match = tag.match(document.text, at)
        # Decoy tags remain visible, so a tag that is missing from the visible text is the tag of a planted ref.
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
def test_contents_of_refs_are_visible(document):
    assert all(ref.content in document.visible for ref in document.refs)
    assert all(name == name.lower() and "id" != name for ref in document.refs for name in ref.attributes)


@given(document=ref_documents(unclosed=False))
def test_refs_are_complete_without_unclosed_option(document):
    assert all(ref.complete for ref in document.refs)


@given(document=ref_documents(max_depth=0, max_size=3))
def test_document_with_depth_zero_has_no_refs(document):
    """It has only prose and decoys."""
    assert () == document.refs
    assert document.text == document.visible


@given(document=ref_documents(max_depth=1, unclosed=False))
def test_document_with_depth_one_has_no_nested_refs(document):
    at = 0
    for ref in document.refs:
        at = document.visible.index(ref.content, at) + len(ref.content)


@given(document=ref_documents())
def test_documents_can_be_encoded_as_utf_8(document):
    """A store can save all of them, because they have no lone surrogates."""
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
def test_ref_documents_cover_every_feature():
    generated = settings(
        max_examples=2_000, phases=[Phase.generate], database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    assert set() == find_missing_cases(ref_documents(), FEATURES, generated)


@given(cut=st.text().flatmap(lambda text: st.tuples(st.just(text), chunkings(text))))
def test_joined_chunks_are_the_text(cut):
    text, chunks = cut

    assert text == "".join(chunks)


@pytest.mark.parametrize("sizes", [[6], [1] * 6, [2, 4], [0, 6], [3, 0, 3]])
def test_chunkings_cover_every_kind_of_split(sizes):
    assert find(chunkings("abcdef"), lambda chunks: sizes == [len(chunk) for chunk in chunks])


def test_planted_refs_compare_by_value():
    assert PlantedRef("a", {"type": "x"}, "y", complete=True) == PlantedRef("a", {"type": "x"}, "y", complete=True)


def test_ref_strategies_are_public():
    assert {"PlantedRef", "RefDocument", "chunkings", "ref_documents", "ref_ids"} <= set(strategies.__all__)
