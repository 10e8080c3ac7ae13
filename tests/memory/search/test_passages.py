"""The passage of a long memory that answers a query, and the text that is shown around it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session
from mama_structs.memory.search.passages import (
    MAX_SENTENCE_CHARS,
    MAX_WHOLE_CHARS,
    Passage,
    best_passage,
    find_window,
    show_passage,
    split_sentences,
)
from mama_structs.memory.types.text_analysis import query_terms

FILLER = "Nothing of interest was said about the weather or about the lunch. "
ANSWER = "The boiler in the cellar needs a pressure of 1.4 bar, and somebody has to look at it."
NOTE = FILLER * 5 + ANSWER + " " + FILLER * 5

texts = st.text(st.sampled_from("ab. \n!?。가나…,;"), min_size=1, max_size=600)
ranges = st.tuples(st.integers(0, 600), st.integers(0, 600)).map(sorted)


def _find(text, query, **more):
    passage = best_passage(text, terms=query_terms(query), **more)
    return text[passage.start : passage.end]


def test_passage_is_sentence_with_terms_of_query():
    assert ANSWER == _find(NOTE, "What pressure does the boiler need?")


def test_passage_is_none_for_short_text():
    assert best_passage("x" * MAX_WHOLE_CHARS, terms={"x": 1.0}) is None


def test_passage_contains_adjacent_sentence_that_adds_terms():
    text = FILLER * 4 + "The boiler is in the cellar. Its pressure has to be 1.4 bar. " + FILLER * 4

    found = _find(text, "boiler pressure")

    assert found.startswith("The boiler is in the cellar. Its pressure has to be 1.4 bar.")


def test_passage_uses_cosines_if_no_term_matches():
    text = FILLER * 4 + "Keys are with Ada. " + FILLER * 4
    third = len(text) / 3
    spans = [(at * third, (at + 1) * third) for at in range(3)]

    found = best_passage(text, terms={}, spans=spans, cosines=[0.1, 0.6, 0.1])

    assert third < found.start < 2 * third


def test_passage_extends_heading_by_next_sentence():
    text = FILLER * 4 + "Boiler!\nFill it up to 1.4 bar and close the tap again. " + FILLER * 4

    assert "1.4 bar" in _find(text, "boiler")


@given(texts)
def test_sentences_are_disjoint_and_cover_all_words(text):
    sentences = split_sentences(text)

    assert all(one[1] <= other[0] for one, other in itertools.pairwise(sentences))
    if text.strip():
        assert "".join(text.split()) == "".join("".join(text[start:end].split()) for start, end in sentences)


@given(texts, st.sampled_from(["a", "b a", "가나", ""]))
def test_passage_is_range_of_text(text, query):
    passage = best_passage(text * 3, terms=query_terms(query))

    if passage is None:
        assert len(text * 3) <= MAX_WHOLE_CHARS
    else:
        assert 0 <= passage.start < passage.end <= len(text * 3)


@given(texts, ranges, st.integers(10, 400))
def test_shown_text_contains_passage_within_max_chars(text, found, max_chars):
    passage = Passage(min(found[0], len(text)), min(found[1], len(text)))

    shown, window = show_passage(text, passage, max_chars), find_window(text, passage, max_chars)

    assert len(shown) <= max_chars
    assert text[window.start : window.end] == shown.removeprefix("…").removesuffix("…") or "…" in text
    inside = text[passage.start : passage.end].strip()
    if inside and len(inside) == passage.end - passage.start <= max_chars - 2:
        assert inside in shown


@pytest.mark.parametrize("max_chars", [60, 120, 280, 400])
def test_shown_text_fills_max_chars_with_whole_words(max_chars):
    passage = best_passage(NOTE, terms=query_terms("boiler pressure"))

    shown = show_passage(NOTE, passage, max_chars)

    assert "pressure of 1.4 bar" in shown
    assert 0.6 * max_chars <= len(shown) <= max_chars
    assert set(shown.strip("…").split()) <= set(NOTE.split())


def test_shown_text_is_whole_if_it_fits():
    assert show_passage("Short.", Passage(0, 3), 6) == "Short."
    assert show_passage("one two three", None, 9) == "one two…"


async def test_hits_have_passages_of_long_memories_only():
    async with Session.open(embedder=HashEmbedder()) as session:
        await session.memories.save_insight("The boiler is old")
        await session.memories.save_context(NOTE, topic="cellar")

        hits = await session.memories.search("boiler pressure in bar", limit=2)

    long, short = sorted(hits, key=lambda hit: -len(hit.content))
    start, end = long.passage
    assert ANSWER == long.content[start:end]
    assert [start, end] == long.to_dict()["passage"]
    assert short.passage is None
    assert "passage" not in short.to_dict() or short.to_dict()["passage"] is None


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        (
            "평범한 문장이 여기에 있다. " * 12 + "보일러의 압력은 1.4 bar이다. " + "다른 내용은 없다. " * 12,
            "보일러 압력",
            "보일러의 압력은",
        ),
        (FILLER * 4 + 'He said "the café\u2019s boiler leaks." ' + FILLER * 4, "café boiler", "boiler leaks"),
        (FILLER * 4 + "The ox stands in the outbox with a fox. " + FILLER * 4, "ox", "The ox stands"),
        ("no end of it " * 40 + "the policies of the harbour " + "no end of it " * 40, "harbour policy", "harbour"),
        ("x" * 700 + " boiler " + "y" * 700, "boiler", "boiler"),
    ],
)
def test_passage_contains_terms_in_other_texts(text, query, expected):
    """Covers other scripts, quotation marks, short words, inflected words, and text without sentences or spaces."""
    found = _find(text, query)

    assert expected in found
    assert len(found) <= 2 * MAX_SENTENCE_CHARS


def test_short_term_matches_whole_words_only():
    """The word "outbox" does not contain the word "ox"."""
    text = FILLER * 4 + "The outbox is oxidized and empty, as it was before. " + FILLER * 4 + "An ox. " + FILLER

    assert "An ox." in _find(text, "ox")


def test_passage_contains_ranges():
    passage = Passage(3, 9)

    assert passage.contains(3, 9)
    assert not passage.contains(2, 9)
    assert not passage.contains(3, 10)


def test_shown_text_is_cut_at_sentences():
    """The text around the passage begins and ends with a sentence where the room allows it."""
    text = " ".join(f"Sentence number {number:02} is short." for number in range(40))
    start = text.index("Sentence number 20")
    shown = show_passage(text, Passage(start, start + 29), 200)

    assert shown.startswith("…Sentence number ")
    assert shown.endswith("is short.…")
    assert "Sentence number 20 is short." in shown


def test_shown_end_of_text_uses_the_room_after_it():
    """A passage at the end has more text before it, and no ellipsis after it."""
    shown = show_passage(NOTE, Passage(len(NOTE) - 40, len(NOTE)), 200)

    assert shown.startswith("…")
    assert shown.rstrip().endswith("the lunch.")
    assert len(shown) > 130
