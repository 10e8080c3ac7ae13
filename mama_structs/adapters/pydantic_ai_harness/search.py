"""Ranking and snippets of the harness's ``search_memory``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mama_structs.memory.types.record import RecordHit

# Hits with a lower relevance are dropped as noise.
_MIN_RELEVANCE: Final = 0.35
# Higher minimum relevance for hits that only vector search found.
_MIN_SIMILARITY: Final = 0.6
# Score weight of hits that only vector search found.
_SIMILARITY_WEIGHT: Final = 0.5
# Score weight of literal matches, which include matches inside words, as in the harness's own search.
_LITERAL_WEIGHT: Final = 0.1
_ELLIPSIS: Final = "..."


def score_files(query: str, texts: Mapping[str, str], hits: Iterable[RecordHit]) -> dict[str, float]:
    """Return the scores of matching files, keyed by file name."""
    scores: dict[str, float] = {}
    for hit in hits:
        is_near = hit.cosine is not None
        if hit.relevance >= (_MIN_SIMILARITY if is_near else _MIN_RELEVANCE):
            score = hit.relevance * (_SIMILARITY_WEIGHT if is_near else 1)
            scores[hit.record.key] = max(score, scores.get(hit.record.key, 0.0))
    words = query.casefold().split()
    for name, text in texts.items():
        counts = [text.casefold().count(word) + 2 * name.casefold().count(word) for word in words]
        if any(counts):
            scores[name] = scores.get(name, 0.0) + _LITERAL_WEIGHT * sum(map(math.log1p, counts)) / len(words)
    return scores


def create_snippets(query: str, texts: Mapping[str, str], max_chars: int) -> Iterator[tuple[str, str]]:
    """Yield file names and snippets, dividing *max_chars* characters evenly among files."""
    for at, (name, text) in enumerate(texts.items()):
        # Distribute the characters that earlier files did not use over the remaining files.
        share = max(max_chars // (len(texts) - at) - len(name), min(max_chars - len(name), 1))
        if share <= 0:
            return
        snippet = _create_snippet(text, query.casefold().split(), share)
        yield name, snippet
        max_chars -= len(name) + len(snippet)


def _create_snippet(text: str, words: list[str], max_chars: int) -> str:
    """Return the part of a text around the first matching word, with ellipses at the cuts."""
    found = [at for word in words if (at := text.casefold().find(word)) >= 0]
    end = min(len(text), max(0, min(found, default=0) - max_chars // 3) + max_chars)
    start = max(0, end - max_chars)
    part = text[start:end]
    if start:
        part = (_ELLIPSIS + part[len(_ELLIPSIS) :])[:max_chars]
    if end < len(text):
        part = (part[: -len(_ELLIPSIS)] + _ELLIPSIS)[:max_chars]
    return part
