"""Splits texts that are too long for an embedder into overlapping chunks."""

from __future__ import annotations

import re
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check

MAX_PIECES: Final = 64
"""Maximum number of chunks per text. Of a longer text, evenly spaced chunks are embedded."""

MIN_TOKENS: Final = 8
"""Minimum token limit of a chunk. It is larger than the estimated tokens of any single character."""

# Overlap of consecutive chunks, relative to the token limit. Without overlap, both chunks would split a sentence.
OVERLAP_RATIO: Final = 0.1
MAX_BALANCE_ATTEMPTS: Final = 8  # Number of lower token limits to try when balancing the chunk lengths.
MIN_CUT_RATIO: Final = 0.5  # A chunk ends at the best border in its second half.

MAX_ONE_BYTE_CODEPOINT: Final = 0x7F
MAX_TWO_BYTE_CODEPOINT: Final = 0x7FF
MAX_BMP_CHARACTER: Final = "\uffff"
MAX_WORD_LETTERS: Final = (
    8  # A longer run of letters is rarely a word. Keys, hashes and paths have more tokens per letter than words.
)

# Quality of a border between two chunks, from worst to best.
_WITHIN, _AT_WORD, _SENTENCE, _LINE, _PARAGRAPH = range(5)

SPACE_CHARACTERS: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
# Sentence ends that need no space after them: Chinese, Japanese, Indic, and the ellipsis.
UNSPACED_SENTENCE_ENDS: Final = "\u3002\uff01\uff1f\u0964\u2026"
SENTENCE_ENDS: Final = f".!?;:\u061f{UNSPACED_SENTENCE_ENDS}"
# Closing quotes and brackets.
CLOSING_MARKS: Final = "\"')\\]}\xbb\u201d\u2019\u300d\u300f\uff09"
# A sentence end with an optional closing quote or bracket, or a line end, and the spaces after it.
BORDER_PATTERN: Final = re.compile(
    rf"[{SENTENCE_ENDS}\n](?:(?<!\n)[{CLOSING_MARKS}]?[{SPACE_CHARACTERS}]+|(?<=\n)[{SPACE_CHARACTERS}]*)"
)


def replace_surrogates(text: str) -> str:
    """
    Return a text that UTF-8 can encode.

    Surrogate pairs are combined, lone surrogates become U+FFFD.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@attrs.frozen
class SplitText:
    """Spans of the chunks of a text, and the number of chunks that are not embedded."""

    spans: tuple[tuple[int, int], ...]
    omitted: int = 0


def estimate_tokens(text: str) -> float:
    """Return a conservative estimate of the number of tokens in a text."""
    return float(_estimate_weights(_codepoints(text)).sum()) if text else 0.0


def split_text(text: str, max_tokens: int) -> SplitText:
    """
    Split a text at its best borders into overlapping chunks.

    If there are too many chunks, return an evenly spaced selection of them.
    """
    _check.check_integer("max_tokens", max_tokens, MIN_TOKENS, separator=",")
    if len(text) * _max_weight(text) <= max_tokens:
        return SplitText(((0, len(text)),))
    points = _codepoints(text)
    summed = np.concatenate(([0.0], np.cumsum(_estimate_weights(points))))
    if summed[-1] <= max_tokens:
        return SplitText(((0, len(text)),))
    ranks = _rank_borders(text, points)
    spans = _find_spans(ranks, summed, max_tokens)
    if len(spans) > MAX_PIECES:
        chosen = np.linspace(0, len(spans) - 1, MAX_PIECES).round().astype(int)
        return SplitText(tuple(spans[i] for i in chosen), len(spans) - MAX_PIECES)
    # Balance the lengths, because a short last chunk matches some queries by chance.
    # With n chunks, a limit that is lower by more than max_tokens / n would need more than n chunks.
    for limit in max_tokens - max_tokens / len(spans) * np.arange(1, MAX_BALANCE_ATTEMPTS + 1) / MAX_BALANCE_ATTEMPTS:
        others = _find_spans(ranks, summed, limit) if limit >= MIN_TOKENS else []
        if len(others) != len(spans):
            break
        spans = max(spans, others, key=lambda found: min(float(summed[end] - summed[start]) for start, end in found))
    return SplitText(tuple(spans))


def _find_spans(ranks: NDArray[np.int8], summed: NDArray[np.float64], limit: float) -> list[tuple[int, int]]:
    """Return the spans of overlapping chunks of at most *limit* tokens, each as long as the borders allow."""
    spans: list[tuple[int, int]] = []
    start, length = 0, len(summed) - 1
    while True:
        # Subtract a thousandth of a token, so that rounding errors cannot exceed the limit.
        furthest = int(np.searchsorted(summed, summed[start] + limit - 1e-3, side="right")) - 1
        if furthest >= length:
            return [*spans, (start, length)]
        end = _best_border(ranks, start + max(1, int((furthest - start) * MIN_CUT_RATIO)), furthest)
        spans.append((start, end))
        start = _next_start(ranks, summed, start, end, limit * OVERLAP_RATIO)


def _max_weight(text: str) -> float:
    """Return an upper bound of the tokens per character, to recognize short texts without counting their tokens."""
    if text.isascii():
        return 1.0
    return 1.5 if max(text) <= MAX_BMP_CHARACTER else 4.0


def _codepoints(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _estimate_weights(points: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return the estimated number of tokens of each character. No model needs more than four times the estimate."""
    weights = np.full(len(points), 1.5)  # default for three-byte characters such as Hangul, Han and Kana
    weights[points <= MAX_TWO_BYTE_CODEPOINT] = 1.0
    weights[points > ord(MAX_BMP_CHARACTER)] = 4.0
    lower = points | (ord("a") ^ ord("A"))
    letter = (lower >= ord("a")) & (lower <= ord("z"))
    digit = (points >= ord("0")) & (points <= ord("9"))
    weights[digit] = 0.5
    weights[letter] = 0.25
    # Only ASCII spaces are this cheap. Others have several bytes in UTF-8, and possibly as many tokens.
    weights[_is_any_of(points, SPACE_CHARACTERS) & (points <= MAX_ONE_BYTE_CODEPOINT)] = 0.25
    first = letter.copy()
    first[1:] &= ~letter[:-1]
    weights[first] = 0.75
    # Select the letters after the eighth of a run: their distance to the last non-letter exceeds MAX_WORD_LETTERS.
    place = np.arange(len(points))
    before = np.maximum.accumulate(np.where(letter, -1, place))
    weights[letter & (place - before > MAX_WORD_LETTERS)] = 0.5
    return weights


def _rank_borders(text: str, points: NDArray[np.uint32]) -> NDArray[np.int8]:
    """Return the quality of a border before each character and at the end of the text."""
    ranks = np.full(len(text) + 1, _WITHIN, dtype=np.int8)
    space = _is_any_of(points, SPACE_CHARACTERS)
    # Put the border after the last space, so that spaces belong to the chunk before them.
    ranks[1:-1][space[:-1] & ~space[1:]] = _AT_WORD
    ranks[1:-1][_is_any_of(points[:-1], UNSPACED_SENTENCE_ENDS) & ~space[1:]] = _SENTENCE
    # Skip spaces and line breaks at the start of the text, because they end no sentence.
    for found in BORDER_PATTERN.finditer(text, len(text) - len(text.lstrip(SPACE_CHARACTERS))):
        lines = found[0].count("\n")
        ranks[found.end()] = _PARAGRAPH if lines > 1 else _LINE if lines else _SENTENCE
    ranks[0] = ranks[-1] = _PARAGRAPH
    return ranks


def _is_any_of(points: NDArray[np.uint32], letters: str) -> NDArray[np.bool_]:
    return np.isin(points, _codepoints(letters))


def _best_border(ranks: NDArray[np.int8], low: int, high: int) -> int:
    """Return the last border of the best quality between *low* and *high*."""
    window = ranks[low : high + 1]
    best = int(window.max())
    return low + int(np.flatnonzero(window == best)[-1])


def _next_start(ranks: NDArray[np.int8], summed: NDArray[np.float64], start: int, end: int, overlap: float) -> int:
    """Return the start of the next chunk: the first word that begins in the overlap before *end*."""
    low = int(np.searchsorted(summed, summed[end] - overlap, side="left"))
    # Start in the second half of the previous chunk, so that each chunk starts later than the previous one.
    low = max(low, (start + end + 1) // 2)
    words = np.flatnonzero(ranks[low:end])
    return low + int(words[0]) if len(words) else end
