"""What ``search_memory`` of the harness finds, in which order, and how much of it is shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mama_structs.records import RecordHit

# With less relevance, or with less of a similarity where words say nothing, it is rather noise.
_RELEVANT: Final = 0.35
_SIMILAR: Final = 0.6
# So much counts what is near in meaning alone, and what only stands in a text, be it within a word, as the host has it.
_NEAR: Final = 0.5
_LITERAL: Final = 0.1
_CUT: Final = "..."


def scores_of(query: str, texts: Mapping[str, str], hits: Iterable[RecordHit]) -> dict[str, float]:
    """Return how well files answer a query, by their names; those that do not are left out."""
    scores: dict[str, float] = {}
    for hit in hits:
        is_near = hit.cosine is not None
        if hit.relevance >= (_SIMILAR if is_near else _RELEVANT):
            score = hit.relevance * (_NEAR if is_near else 1)
            scores[hit.record.key] = max(score, scores.get(hit.record.key, 0.0))
    words = query.casefold().split()
    for name, text in texts.items():
        counts = [text.casefold().count(word) + 2 * name.casefold().count(word) for word in words]
        if any(counts):
            scores[name] = scores.get(name, 0.0) + _LITERAL * sum(map(math.log1p, counts)) / len(words)
    return scores


def snippets(query: str, texts: Mapping[str, str], room: int) -> Iterator[tuple[str, str]]:
    """Give the names of files with a part of each, as far as there is room for both, shared evenly."""
    for at, (name, text) in enumerate(texts.items()):
        # Each gets its share, and what those before it left.
        share = max(room // (len(texts) - at) - len(name), min(room - len(name), 1))
        if share <= 0:
            return
        snippet = _snippet(text, query.casefold().split(), share)
        yield name, snippet
        room -= len(name) + len(snippet)


def _snippet(text: str, words: list[str], room: int) -> str:
    """Return a part of a text with the first of some words in it, marked where it is cut."""
    found = [at for word in words if (at := text.casefold().find(word)) >= 0]
    end = min(len(text), max(0, min(found, default=0) - room // 3) + room)
    start = max(0, end - room)
    part = text[start:end]
    if start:
        part = (_CUT + part[len(_CUT) :])[:room]
    if end < len(text):
        part = (part[: -len(_CUT)] + _CUT)[:room]
    return part
