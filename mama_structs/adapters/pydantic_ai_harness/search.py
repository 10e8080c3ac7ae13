"""Ranking and snippets of the harness's ``search_memory``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mama_structs.records import RecordHit

# Hits with a lower relevance, or a lower similarity for hits by meaning only, are noise.
_RELEVANT: Final = 0.35
_SIMILAR: Final = 0.6
# Weight of a hit by meaning only, and of literal occurrences, which the harness also counts within words.
_NEAR: Final = 0.5
_LITERAL: Final = 0.1
_CUT: Final = "..."


def scores_of(query: str, texts: Mapping[str, str], hits: Iterable[RecordHit]) -> dict[str, float]:
    """Return scores of matching files by name."""
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
    """Yield file names with a snippet each, within *room* characters that are shared evenly."""
    for at, (name, text) in enumerate(texts.items()):
        # Each file gets its share plus what the files before it did not use.
        share = max(room // (len(texts) - at) - len(name), min(room - len(name), 1))
        if share <= 0:
            return
        snippet = _snippet(text, query.casefold().split(), share)
        yield name, snippet
        room -= len(name) + len(snippet)


def _snippet(text: str, words: list[str], room: int) -> str:
    """Return the part of a text around the first matching word, with ellipses at the cuts."""
    found = [at for word in words if (at := text.casefold().find(word)) >= 0]
    end = min(len(text), max(0, min(found, default=0) - room // 3) + room)
    start = max(0, end - room)
    part = text[start:end]
    if start:
        part = (_CUT + part[len(_CUT) :])[:room]
    if end < len(text):
        part = (part[: -len(_CUT)] + _CUT)[:room]
    return part
