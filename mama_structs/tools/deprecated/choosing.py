"""Which decisions the tools of v1.0 show, and in which order: decisions about values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import attrs

from mama_structs.memory.graph import holding
from mama_structs.memory.model import Link, Memory, MemoryType
from mama_structs.memory.results import Chain, Hit

# Below this a search has found nothing, see `Hit`.
MIN_RELEVANCE: Final = 0.3
_WORD: Final = re.compile(r"[^\W_]+")
_DAY: Final = 86400
# As many scales away nothing is left of recency.
_FAR: Final = 1e6


@attrs.frozen(kw_only=True)
class Recency:
    """
    How much newer decisions are preferred, as v1.0's ``suggest_decision`` was told it.

    Args:
        weight: The share of recency in the score, 0 to 1.
        scale: Days after which recency has fallen to *decay*.
        decay: See *scale*; between 0 and 1.

    """

    weight: float = 0.3
    scale: float = 7.0
    decay: float = 0.5

    def score(self, relevance: float, age_days: float) -> float:
        """
        Return what orders the suggestions.

        The formula is the one that v1.0 described, ``decay ** ((age / scale) ** 2)``; the one that it computed gave
        0.486 in place of 0.5 at the scale.
        """
        scales = max(age_days, 0.0) / self.scale
        # Multiplied, since a power that is too large raises. What is newer than now is as new as can be.
        recency = math.pow(self.decay, min(scales * scales, _FAR))
        return (1 - self.weight) * relevance + self.weight * recency


def standing(memories: Sequence[Memory], links: Iterable[Link]) -> list[Memory]:
    """
    Return those of some memories that none of the others supersedes, directly or not, in the same order.

    Args:
        memories: Newest first.
        links: The evolution links between them.

    """
    replaced = holding(((link.from_id, link.to_id) for link in links), (memory.id for memory in memories))
    return [memory for memory in memories if memory.id not in replaced]


def decisions_on(chain: Chain, topic: str) -> list[Memory]:
    """Return the decisions of a topic's own among its memories and their versions, newest first."""
    return [memory for memory in chain if memory.type is MemoryType.DECISION and memory.topic == topic]


def similar_topics(topic: str, hits: Iterable[Hit]) -> list[str]:
    """
    Return the topics of some hits that begin with the same word, in order; v1.0 fell back on these.

    Args:
        topic: The one that nothing was found for.
        hits: What a search for its words found.

    """
    first = _first_word(topic)
    found = [hit.memory.topic for hit in hits if hit.memory.topic]
    return list(dict.fromkeys(one for one in found if first and one != topic and _first_word(one) == first))


def ranked(hits: Iterable[Hit], recency: Recency | None, *, now: datetime) -> list[Hit]:
    """
    Return the hits that answer, best first.

    Args:
        hits: As a search orders them.
        recency: How to weigh their age; None for the search's own order.
        now: What ages are counted from.

    """
    found = [hit for hit in hits if hit.relevance >= MIN_RELEVANCE]
    if recency is None:
        return found
    scores = {hit.memory.id: recency.score(hit.relevance, _days(hit.memory, now)) for hit in found}
    # As in every search, what was superseded stands behind what took its place.
    keys = {
        hit.memory.id: (min(scores[hit.memory.id], scores.get(hit.superseded_by or "", 1.0)), hit.superseded_by is None)
        for hit in found
    }
    return sorted(found, key=lambda hit: keys[hit.memory.id], reverse=True)


def _days(memory: Memory, now: datetime) -> float:
    return (now - memory.created_at).total_seconds() / _DAY


def _first_word(topic: str) -> str:
    found = _WORD.search(topic)
    return found[0].casefold() if found else ""
