"""Cutting texts that are too long."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding.chunks import MAX_PIECES, clean, cut, tokens

WORDS = st.sampled_from(
    ["shield", "raid", "a", "결정을", "会议", "🙂", "0-1", "e3b0c44298fc1c149afbf4c8996fb924", "it's"]
)
ENDS = st.sampled_from([" ", " ", " ", ". ", "! ", ".\n", "\n\n", "\n \n", "。", "", "\r\n", "\t"])
PROSE = st.lists(st.tuples(WORDS, ENDS), max_size=120).map(lambda parts: "".join(map("".join, parts)))
TEXTS = st.one_of(PROSE, st.text(max_size=300))


@given(text=TEXTS, limit=st.integers(8, 64))
def test_pieces_cover_the_text_and_stay_within_the_limit(text, limit):
    """Each piece is short enough, they go on from one another, and nothing is left out."""
    found = cut(text, limit)
    spans = found.spans

    assert all(tokens(text[start:end]) <= limit + 1 for start, end in spans)
    assert 1 <= len(spans) <= MAX_PIECES
    assert (0, len(text)) == (spans[0][0], spans[-1][1])
    for (start, end), (following, last) in itertools.pairwise(spans):
        assert start < following
        assert end < last
        if not found.omitted:
            assert following <= end


@given(text=TEXTS, limit=st.integers(8, 1000))
def test_a_short_text_is_one_piece(text, limit):
    """What is within the limit is not cut, and what is beyond it is."""
    assert (tokens(text) <= limit) == (((0, len(text)),) == cut(text, limit).spans)


@given(text=TEXTS)
@example(text="\x85")
@example(text="\u3000")
def test_the_estimate_lies_between_a_quarter_of_the_bytes_and_all_of_them(text):
    """No model sees more tokens than bytes, and none of ours is sent four times the limit."""
    size = len(clean(text).encode())

    assert size / 4 - 0.01 <= tokens(text) <= size


def test_the_estimate_is_a_little_more_than_models_see():
    """For English some tokens a word, for Korean one or two a syllable."""
    english = "We keep user sessions in Redis so that a restart logs nobody out."
    korean = "세션을 레디스에 저장해서 재시작해도 로그아웃되지 않게 했다."

    assert 14 <= tokens(english) <= 28
    assert 25 <= tokens(korean) <= 50


def test_the_best_border_is_taken():
    """A paragraph before a line, a line before a sentence, a sentence before a word."""
    filler = "some words of the text that go on "
    for border in ("\n\n", "\n", ". "):
        head = filler * 2 + "end" + border
        text = head + filler * 6
        start, end = cut(text, int(tokens(head)) + 12).spans[0]

        assert head == text[start:end]


def test_a_closing_quote_stays_with_its_sentence():
    """The cut comes behind it."""
    head = 'He said: "we raid the northern planet tomorrow morning, all of us together." '

    assert head == head[: cut(head + "Then they went home. And slept for a day. Or for two.", 34).spans[0][1]]


def test_words_stay_whole_where_they_can():
    """A cut within a word happens only where no other place is in reach."""
    text = "planet " * 200
    spans = cut(text, 32).spans

    assert all(text[start:end].split() == ["planet"] * len(text[start:end].split()) for start, end in spans)
    assert 1 < len(cut("x" * 1000, 32).spans)


@given(words=st.integers(2, 300), limit=st.integers(100, 200))
def test_no_piece_is_much_shorter_than_the_others(words, limit):
    """A text is shared out among its pieces: there is no rest of a few words."""
    text = "planet " * words
    lengths = [tokens(text[start:end]) for start, end in cut(text, limit).spans]

    assert min(lengths) >= max(lengths) / 2


def test_neighbours_overlap_a_little():
    """A thought on the border is whole in one of both."""
    text = "planet " * 200
    spans = cut(text, 64).spans
    overlaps = [end - start for (_, end), (start, _) in itertools.pairwise(spans)]

    assert 0 < min(overlaps)
    assert max(overlaps) < 64


def test_a_huge_text_is_sampled_evenly():
    """Its pieces are spread from the first to the last, and it is said how many are left out."""
    text = "One sentence of many. " * 5_000
    found = cut(text, 32)
    starts = [start for start, _ in found.spans]
    gaps = [two - one for one, two in itertools.pairwise(starts)]

    assert MAX_PIECES == len(found.spans)
    assert found.omitted > 100
    assert (0, len(text)) == (starts[0], found.spans[-1][1])
    assert max(gaps) < 2 * min(gaps)


def test_a_limit_below_any_character_is_refused():
    """Eight tokens are the least."""
    with pytest.raises(InvalidArgument, match="max_tokens must be a whole number, 8 or more, got 7"):
        cut("x", 7)


@given(text=st.text(st.characters()))
def test_a_clean_text_is_one_that_files_can_hold(text):
    """Halves of surrogate pairs are replaced, and nothing else changes."""
    found = clean(text)

    assert found == found.encode("utf-8").decode("utf-8")
    if not any("\ud800" <= one <= "\udfff" for one in text):
        assert text == found


def test_halves_that_meet_are_the_character_that_they_stand_for():
    """Text from JavaScript may come in halves."""
    assert "🙂" == clean("\ud83d\ude42")
    assert "a\ufffdb" == clean("a\ud83db")
