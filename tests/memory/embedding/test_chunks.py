"""Splitting of long texts into chunks."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding.chunks import MAX_PIECES, estimate_tokens, replace_surrogates, split_text

WORDS = st.sampled_from(
    ["shield", "raid", "a", "결정을", "会议", "🙂", "0-1", "e3b0c44298fc1c149afbf4c8996fb924", "it's"]
)
ENDS = st.sampled_from([" ", " ", " ", ". ", "! ", ".\n", "\n\n", "\n \n", "。", "", "\r\n", "\t"])
PROSE = st.lists(st.tuples(WORDS, ENDS), max_size=120).map(lambda parts: "".join(map("".join, parts)))
TEXTS = st.one_of(PROSE, st.text(max_size=300))


@given(text=TEXTS, limit=st.integers(8, 64))
def test_chunks_cover_text_within_limit(text, limit):
    """Each chunk is short enough, chunks are contiguous, and no text is left out."""
    found = split_text(text, limit)
    spans = found.spans

    assert all(estimate_tokens(text[start:end]) <= limit + 1 for start, end in spans)
    assert 1 <= len(spans) <= MAX_PIECES
    assert (0, len(text)) == (spans[0][0], spans[-1][1])
    for (start, end), (following, last) in itertools.pairwise(spans):
        assert start < following
        assert end < last
        if not found.omitted:
            assert following <= end


@given(text=TEXTS, limit=st.integers(8, 1000))
def test_short_text_is_one_chunk(text, limit):
    """Text within the limit is not split, and longer text is."""
    assert (estimate_tokens(text) <= limit) == (((0, len(text)),) == split_text(text, limit).spans)


@given(text=TEXTS)
@example(text="\x85")
@example(text="\u3000")
def test_token_estimate_is_between_quarter_and_all_of_bytes(text):
    """No model sees more tokens than bytes, and no model of this package gets four times its limit."""
    size = len(replace_surrogates(text).encode())

    assert size / 4 - 0.01 <= estimate_tokens(text) <= size


def test_token_estimate_is_slightly_above_real_tokens():
    """English has some tokens per word, Korean one or two per syllable."""
    english = "We keep user sessions in Redis so that a restart logs nobody out."
    korean = "세션을 레디스에 저장해서 재시작해도 로그아웃되지 않게 했다."

    assert 14 <= estimate_tokens(english) <= 28
    assert 25 <= estimate_tokens(korean) <= 50


def test_split_prefers_strongest_boundary():
    """The order is paragraph, line, sentence, word."""
    filler = "some words of the text that go on "
    for border in ("\n\n", "\n", ". "):
        head = filler * 2 + "end" + border
        text = head + filler * 6
        start, end = split_text(text, int(estimate_tokens(head)) + 12).spans[0]

        assert head == text[start:end]


def test_split_keeps_closing_quote_with_sentence():
    """The text is split after the quote."""
    head = 'He said: "we raid the northern planet tomorrow morning, all of us together." '

    assert head == head[: split_text(head + "Then they went home. And slept for a day. Or for two.", 34).spans[0][1]]


def test_split_avoids_breaking_words():
    """A word is split only if no boundary is within reach."""
    text = "planet " * 200
    spans = split_text(text, 32).spans

    assert all(text[start:end].split() == ["planet"] * len(text[start:end].split()) for start, end in spans)
    assert 1 < len(split_text("x" * 1000, 32).spans)


@given(words=st.integers(2, 300), limit=st.integers(100, 200))
def test_chunks_have_similar_lengths(words, limit):
    """The text is divided evenly, without a short remainder."""
    text = "planet " * words
    lengths = [estimate_tokens(text[start:end]) for start, end in split_text(text, limit).spans]

    assert min(lengths) >= max(lengths) / 2


def test_adjacent_chunks_overlap():
    """A phrase at the boundary is complete in one of both chunks."""
    text = "planet " * 200
    spans = split_text(text, 64).spans
    overlaps = [end - start for (_, end), (start, _) in itertools.pairwise(spans)]

    assert 0 < min(overlaps)
    assert max(overlaps) < 64


def test_huge_text_is_sampled_evenly():
    """The chunks are spread over the whole text, and the number of omitted ones is reported."""
    text = "One sentence of many. " * 5_000
    found = split_text(text, 32)
    starts = [start for start, _ in found.spans]
    gaps = [two - one for one, two in itertools.pairwise(starts)]

    assert MAX_PIECES == len(found.spans)
    assert found.omitted > 100
    assert (0, len(text)) == (starts[0], found.spans[-1][1])
    assert max(gaps) < 2 * min(gaps)


def test_limit_below_minimum_is_rejected():
    """The minimum is eight tokens."""
    with pytest.raises(InvalidArgument, match="max_tokens must be a whole number, 8 or more, got 7"):
        split_text("x", 7)


@given(text=st.text(st.characters()))
def test_clean_replaces_lone_surrogates_only(text):
    """The result can be encoded as UTF-8, and everything else is unchanged."""
    found = replace_surrogates(text)

    assert found == found.encode("utf-8").decode("utf-8")
    if not any("\ud800" <= one <= "\udfff" for one in text):
        assert text == found


def test_clean_joins_surrogate_pairs():
    """Text from JavaScript may contain both halves as separate characters."""
    assert "🙂" == replace_surrogates("\ud83d\ude42")
    assert "a\ufffdb" == replace_surrogates("a\ud83db")
