"""
Selection of the passage of a long memory that answers a query.

A sentence is rated by the query terms in it, by those in its neighbours, and by the cosine of its chunk.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import numpy as np

from mama_structs.memory.embedding.chunks import CLOSING_MARKS, UNSPACED_SENTENCE_ENDS
from mama_structs.memory.embedding.protocol import QueryVectors
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import Memory
from mama_structs.memory.types.text_analysis import analyse_text, embedded_text, query_terms

MAX_WHOLE_CHARS: Final = 280
"""A text of at most this many characters has no passage, because it is shown as a whole."""
# Longer sentences, for example in tables without full stops, are divided at spaces.
MAX_SENTENCE_CHARS: Final = 300
# Shorter sentences, such as headings, are extended by the next one.
MIN_PASSAGE_CHARS: Final = 60
# Weight of the terms in the adjacent sentences, relative to those in the sentence itself.
NEIGHBOUR_WEIGHT: Final = 0.25
# Maximum contribution of the chunk's cosine, relative to a sentence with all terms of the query.
COSINE_WEIGHT: Final = 0.4
# A difference of this size between the cosines of two chunks has the full weight.
FULL_COSINE_RANGE: Final = 0.2
# An adjacent sentence belongs to the passage if it adds at least this share of the terms' weight.
MIN_ADDED_SHARE: Final = 0.15
# Share of the room around a passage that is used for the text before it.
SHARE_BEFORE: Final = 0.35
# A shown text is cut at a sentence border if the border is in this last part of the room, else at a space.
BORDER_RATIO: Final = 0.3
ELLIPSIS: Final = "…"

SENTENCE_MARK_PATTERN: Final = re.compile(rf"[.!?;\u061f{UNSPACED_SENTENCE_ENDS}\n]")
# A shorter term must be a whole word of the text.
MIN_STEM_CHARS: Final = 4


@attrs.frozen
class Passage:
    """A range of characters of a memory's content: from *start* up to, but not including, *end*."""

    start: int
    end: int

    def contains(self, start: int, end: int) -> bool:
        """Return True if a range of characters is part of the passage."""
        return self.start <= start and end <= self.end


def best_passage(
    text: str,
    *,
    terms: Mapping[str, float],
    spans: Sequence[tuple[float, float]] = (),
    cosines: Sequence[float] = (),
) -> Passage | None:
    """
    Return the sentence or two of a text that best answer a query, or None for a short text.

    Args:
        text: Content of a memory.
        terms: Weights of the query's terms, such as inverse document frequencies.
        spans: Start and end of each embedded chunk of the text, in order.
        cosines: Cosine between the query and each chunk.

    """
    if len(text) <= MAX_WHOLE_CHARS:
        return None
    sentences = split_sentences(text)
    found = _find_terms(text, sentences, terms)
    total = sum(terms.values()) or 1.0
    own = [sum(terms[term] for term in some) / total for some in found]
    bonus = _rate_chunks(sentences, spans, cosines)
    values = [
        share
        + NEIGHBOUR_WEIGHT * max(own[at - 1] if at else 0.0, own[at + 1] if at + 1 < len(own) else 0.0)
        + bonus[at]
        for at, share in enumerate(own)
    ]
    best = max(range(len(values)), key=values.__getitem__)
    first = last = best
    near = [at for at in (best + 1, best - 1) if 0 <= at < len(sentences)]
    added = {at: sum(terms[term] for term in found[at] - found[best]) / total for at in near}
    if added and max(added.values()) >= MIN_ADDED_SHARE:
        other = max(added, key=added.__getitem__)
        first, last = min(best, other), max(best, other)
    elif sentences[best][1] - sentences[best][0] < MIN_PASSAGE_CHARS and best + 1 < len(sentences):
        last = best + 1
    return Passage(sentences[first][0], sentences[last][1])


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Return the ranges of a text's sentences, without surrounding spaces. Long sentences are divided at spaces."""
    sentences: list[tuple[int, int]] = []
    start = 0
    for end in [*_find_sentence_ends(text), len(text)]:
        while end - start > MAX_SENTENCE_CHARS:
            middle = text.rfind(" ", start + 1, start + MAX_SENTENCE_CHARS)
            middle = start + MAX_SENTENCE_CHARS if middle < 0 else middle + 1
            _append_range(sentences, text, start, middle)
            start = middle
        _append_range(sentences, text, start, end)
        start = end
    return sentences or [(0, len(text))]


def _find_sentence_ends(text: str, start: int = 0, end: int | None = None) -> list[int]:
    """Return the ends of the sentences that end in a part of a text, by default in the whole text."""
    ends = []
    for mark in SENTENCE_MARK_PATTERN.finditer(text, start, len(text) if end is None else end):
        after = mark.end()
        if mark[0] == "\n" or mark[0] in UNSPACED_SENTENCE_ENDS or not text[after : after + 1].strip():
            ends.append(after)
        elif text[after] in CLOSING_MARKS and not text[after + 1 : after + 2].strip():
            ends.append(after + 1)
    return ends


def _append_range(ranges: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    piece = text[start:end]
    if words := piece.strip():
        begin = start + len(piece) - len(piece.lstrip())
        ranges.append((begin, begin + len(words)))


def _find_terms(text: str, sentences: Sequence[tuple[int, int]], terms: Mapping[str, float]) -> list[set[str]]:
    """Return the query terms that occur in each sentence."""
    if text.isascii():
        return _find_ascii_terms(text.lower(), [start for start, _ in sentences], terms)
    # Analyse each distinct word of the sentences once.
    pieces = [text[start:end].split() for start, end in sentences]
    matching = {}
    for word, known in analyse_text(" ".join(map(" ".join, pieces))).words.items():
        if own := {term for term, _ in known.indexed if term in terms}:
            matching[word] = own
    return [set().union(*[matching[word] for word in words if word in matching]) for words in pieces]


def _find_ascii_terms(lower: str, starts: Sequence[int], terms: Mapping[str, float]) -> list[set[str]]:
    """Find terms as prefixes of words, which is several times faster than analysing each word of the text."""
    found: list[set[str]] = [set() for _ in starts]
    for term in terms:
        # A stem is a prefix of its words, except for a last "e" or "i": "polici" for "policy", "dure" for "during".
        stem = term.rstrip("ei") if len(term) > MIN_STEM_CHARS else term
        at = lower.find(stem) if stem.isascii() and stem else -1
        while at >= 0:
            end = at + len(stem)
            if not lower[at - 1 : at].isalnum() and (len(stem) >= MIN_STEM_CHARS or not lower[end : end + 1].isalpha()):
                found[max(bisect_right(starts, at) - 1, 0)].add(term)
            at = lower.find(stem, end)
    return found


def _rate_chunks(
    sentences: Sequence[tuple[int, int]], spans: Sequence[tuple[float, float]], cosines: Sequence[float]
) -> list[float]:
    """Return the contribution of the cosines to each sentence, from 0 to `COSINE_WEIGHT`."""
    if len(cosines) < 2 or len(spans) != len(cosines):  # noqa: PLR2004 - a single chunk tells no passage apart
        return [0.0] * len(sentences)
    least, greatest = min(cosines), max(cosines)
    weight = COSINE_WEIGHT / max(greatest - least, FULL_COSINE_RANGE)
    middles = [(start + end) / 2 for start, end in spans]
    places = [(start + end) / 2 for start, end in sentences]
    # Interpolate between the middles of the chunks, because a sentence near a border belongs to both chunks.
    rated = np.interp(places, middles, [weight * (cosine - least) for cosine in cosines])
    return [float(one) for one in rated]


def with_passages(
    reader: Reader, hits: Sequence[Hit], nodes: Sequence[int], *, query: str, vectors: QueryVectors
) -> list[Hit]:
    """
    Return the hits with the passages that answer a query.

    Args:
        reader: Reads the chunks' vectors of the long memories, in one query.
        hits: Hits of a search.
        nodes: Node of each hit.
        query: Text of the query.
        vectors: Vectors of the query.

    """
    long = [at for at, hit in enumerate(hits) if len(hit.memory.content) > MAX_WHOLE_CHARS]
    if not long:
        return [*hits]
    weights = query_terms(query)
    rarities = reader.rarity(weights)
    terms = {term: weight * rarities.get(term, 1.0) for term, weight in weights.items()}
    pieces, counts = reader.pieces([nodes[at] for at in long])
    ends = np.cumsum(counts).tolist()
    cosines = vectors.similarities(pieces).tolist()
    shown = [*hits]
    for at, count, end in zip(long, counts.tolist(), ends, strict=True):
        memory = hits[at].memory
        spans = estimate_spans(memory, count)
        passage = best_passage(memory.content, terms=terms, spans=spans, cosines=cosines[end - count : end])
        if passage is not None:
            shown[at] = attrs.evolve(hits[at], passage=(passage.start, passage.end))
    return shown


def estimate_spans(memory: Memory, count: int) -> list[tuple[float, float]]:
    """
    Return the approximate ranges of a memory's chunks in its content.

    The chunks have balanced lengths, so an even division is close. Splitting the text again would take longer than
    the rest of the selection.
    """
    text = embedded_text(memory)
    # The embedded text starts with the topic.
    offset = max(text.find(memory.content[:MAX_WHOLE_CHARS]), 0)
    length = len(text) / max(count, 1)
    return [(at * length - offset, (at + 1) * length - offset) for at in range(count)]


def show_passage(text: str, passage: Passage | None, max_chars: int) -> str:
    """
    Return the text around a passage, with at most *max_chars* characters.

    It is cut at sentence or word borders, and has an ellipsis at each cut end. None stands for the beginning.
    """
    shown = find_window(text, passage, max_chars)
    prefix = ELLIPSIS if text[: shown.start].strip() else ""
    suffix = ELLIPSIS if text[shown.end :].strip() else ""
    return f"{prefix}{text[shown.start : shown.end]}{suffix}"


def find_window(text: str, passage: Passage | None, max_chars: int) -> Passage:
    """Return the range of a text that `show_passage` shows."""
    if len(text) <= max_chars:
        return Passage(0, len(text))
    found = Passage(0, 0) if passage is None else passage
    start, end = min(found.start, len(text)), min(found.end, len(text))
    room = max(max_chars - 2 * len(ELLIPSIS), 1)
    if end - start >= room:
        return Passage(start, _cut_end(text, start, start + room, start))
    free = room - (end - start)
    room_before = min(start, max(int(free * SHARE_BEFORE), free - (len(text) - end)))
    begin = _cut_start(text, start - room_before, start)
    # The end gets the room that the start does not use.
    return Passage(begin, _cut_end(text, end, min(begin + room, len(text)), begin))


def _cut_start(text: str, low: int, start: int) -> int:
    """Return the best border between *low* and *start*: the first of a sentence, else the first of a word."""
    if low <= 0:
        return 0
    latest = low + int((start - low) * BORDER_RATIO)
    # A space before the part marks the border as well.
    begin = next(iter(_find_sentence_ends(text, low, latest)), None)
    if begin is None:
        space = text.find(" ", low - 1, start)
        begin = low if space < 0 else space + 1
    return start - len(text[begin:start].lstrip())


def _cut_end(text: str, end: int, high: int, begin: int) -> int:
    """Return the best border between *end* and *high*: the last of a sentence, else the last of a word."""
    if high >= len(text):
        return len(text)
    ends = [one for one in _find_sentence_ends(text, high - int((high - end) * BORDER_RATIO), high) if one <= high]
    if ends:
        high = ends[-1]
    elif not text[high].isspace():
        space = text.rfind(" ", max(end, begin + 1), high)
        high = space if space > 0 else high
    return begin + len(text[begin:high].rstrip())
