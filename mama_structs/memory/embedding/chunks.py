"""Splits texts that are too long for an embedder into overlapping pieces."""

from __future__ import annotations

import re
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check

MAX_PIECES: Final = 64
"""Maximum number of pieces per text. Of a longer text, evenly spaced pieces are embedded."""

LEAST_TOKENS: Final = 8
"""Smallest limit for splitting: room for any character and one more."""

_OVERLAP: Final = 0.1  # Ratio of a piece that is repeated in the next one, to keep sentences at borders complete.
_TRIES: Final = 8  # Number of lower limits to try.
_REACH: Final = 0.5  # A piece ends at the best border within its last half.

_LAST_OF_ONE_BYTE: Final = 0x7F
_LAST_OF_TWO_BYTES: Final = 0x7FF
_LAST_OF_PLANE_0: Final = "\uffff"
_LONG_WORD: Final = 8  # Longer runs of letters are rarely words. Keys, hashes and paths have more tokens per letter.

# Quality of a border, ascending.
_WITHIN, _AT_WORD, _SENTENCE, _LINE, _PARAGRAPH = range(5)

_SPACES: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
# Sentence ends. Chinese, Japanese and Indic ones and the ellipsis need no space after them. Then the Arabic one.
_WIDE_ENDS: Final = "\u3002\uff01\uff1f\u0964\u2026"
_ENDS: Final = f".!?;:\u061f{_WIDE_ENDS}"
# Closing quotes and brackets.
_MARKS: Final = "\"')\\]}\xbb\u201d\u2019\u300d\u300f\uff09"
# The end of a sentence, optionally with a closing quote or bracket, or of a line, and the spaces after it.
_BORDERS: Final = re.compile(rf"[{_ENDS}\n](?:(?<!\n)[{_MARKS}]?[{_SPACES}]+|(?<=\n)[{_SPACES}]*)")


def clean(text: str) -> str:
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
class Pieces:
    """Spans of the pieces of a text, and the number of omitted pieces."""

    spans: tuple[tuple[int, int], ...]
    omitted: int = 0


def tokens(text: str) -> float:
    """Return a conservative estimate of the number of tokens in a text."""
    return float(_weights(_points(text)).sum()) if text else 0.0


def cut(text: str, max_tokens: int) -> Pieces:
    """
    Split a text at its best borders into overlapping pieces.

    If there are too many, sample them evenly.
    """
    _check.whole("max_tokens", max_tokens, LEAST_TOKENS, mark=",")
    if len(text) * _most(text) <= max_tokens:
        return Pieces(((0, len(text)),))
    points = _points(text)
    summed = np.concatenate(([0.0], np.cumsum(_weights(points))))
    if summed[-1] <= max_tokens:
        return Pieces(((0, len(text)),))
    ranks = _borders(text, points)
    spans = _spans(ranks, summed, max_tokens)
    if len(spans) > MAX_PIECES:
        chosen = np.linspace(0, len(spans) - 1, MAX_PIECES).round().astype(int)
        return Pieces(tuple(spans[i] for i in chosen), len(spans) - MAX_PIECES)
    # A short last piece has little content and matches some queries by chance, so balance the lengths. With the same
    # number of pieces, the limit can decrease by at most one piece's share.
    for limit in max_tokens - max_tokens / len(spans) * np.arange(1, _TRIES + 1) / _TRIES:
        others = _spans(ranks, summed, limit) if limit >= LEAST_TOKENS else []
        if len(others) != len(spans):
            break
        spans = max(spans, others, key=lambda found: min(float(summed[end] - summed[start]) for start, end in found))
    return Pieces(tuple(spans))


def _spans(ranks: NDArray[np.int8], summed: NDArray[np.float64], limit: float) -> list[tuple[int, int]]:
    """Return spans of at most *limit* tokens, each as long as the borders allow."""
    spans: list[tuple[int, int]] = []
    start, length = 0, len(summed) - 1
    while True:
        # Subtract a thousandth of a token, so that rounding cannot exceed the limit.
        furthest = int(np.searchsorted(summed, summed[start] + limit - 1e-3, side="right")) - 1
        if furthest >= length:
            return [*spans, (start, length)]
        end = _best(ranks, start + max(1, int((furthest - start) * _REACH)), furthest)
        spans.append((start, end))
        start = _back(ranks, summed, start, end, limit * _OVERLAP)


def _most(text: str) -> float:
    """Return an upper bound of the tokens per character, which suffices to detect short texts."""
    if text.isascii():
        return 1.0
    return 1.5 if max(text) <= _LAST_OF_PLANE_0 else 4.0


def _points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _weights(points: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return estimated tokens per character, never less than a quarter of the worst model's."""
    weights = np.full(len(points), 1.5)  # Hangul, Han, Kana: three bytes in UTF-8.
    weights[points <= _LAST_OF_TWO_BYTES] = 1.0
    weights[points > ord(_LAST_OF_PLANE_0)] = 4.0
    lower = points | (ord("a") ^ ord("A"))
    letter = (lower >= ord("a")) & (lower <= ord("z"))
    digit = (points >= ord("0")) & (points <= ord("9"))
    weights[digit] = 0.5
    weights[letter] = 0.25
    # Other spaces have more bytes, and possibly as many tokens.
    weights[_among(points, _SPACES) & (points <= _LAST_OF_ONE_BYTE)] = 0.25
    first = letter.copy()
    first[1:] &= ~letter[:-1]
    weights[first] = 0.75
    # Number of preceding letters in the same run: the position minus that of the last other character.
    place = np.arange(len(points))
    before = np.maximum.accumulate(np.where(letter, -1, place))
    weights[letter & (place - before > _LONG_WORD)] = 0.5
    return weights


def _borders(text: str, points: NDArray[np.uint32]) -> NDArray[np.int8]:
    """Return the quality of a cut before each character and at the end."""
    ranks = np.full(len(text) + 1, _WITHIN, dtype=np.int8)
    space = _among(points, _SPACES)
    # Spaces belong to the piece before them.
    ranks[1:-1][space[:-1] & ~space[1:]] = _AT_WORD
    ranks[1:-1][_among(points[:-1], _WIDE_ENDS) & ~space[1:]] = _SENTENCE
    # Skip blank characters at the start of the text, which end no sentence.
    for found in _BORDERS.finditer(text, len(text) - len(text.lstrip(_SPACES))):
        lines = found[0].count("\n")
        ranks[found.end()] = _PARAGRAPH if lines > 1 else _LINE if lines else _SENTENCE
    ranks[0] = ranks[-1] = _PARAGRAPH
    return ranks


def _among(points: NDArray[np.uint32], letters: str) -> NDArray[np.bool_]:
    return np.isin(points, _points(letters))


def _best(ranks: NDArray[np.int8], low: int, high: int) -> int:
    """Return the last of the best borders from *low* to *high*."""
    window = ranks[low : high + 1]
    best = int(window.max())
    return low + int(np.flatnonzero(window == best)[-1])


def _back(ranks: NDArray[np.int8], summed: NDArray[np.float64], start: int, end: int, overlap: float) -> int:
    """Return the start of the next piece: the first word in the overlap before *end*."""
    low = int(np.searchsorted(summed, summed[end] - overlap, side="left"))
    # Start after the middle of the last piece, so that every step makes progress.
    low = max(low, (start + end + 1) // 2)
    words = np.flatnonzero(ranks[low:end])
    return low + int(words[0]) if len(words) else end
