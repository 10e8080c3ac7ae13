"""Results of a search as a page shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs.memory.graph.results import Explanation
from mama_structs.memory.graph.score_parts import ScorePart, describe_score_parts
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import Memory
from mama_structs.ui.search_form import SearchForm

_MAX_SHOWN_CHARS: Final = 600
# Characters before and after the matching passage of a long text.
_MARGIN_CHARS: Final = 160
_EXCLUSIONS: Final[Mapping[str, str]] = {
    "limit": "Other memories match better. It comes after the last one of this page.",
    "duplicates": "Another result says the same, and is shown in its place.",
    "valid_until": "It has expired.",
    "superseded": "A newer memory replaces it, and outdated memories are left out.",
    "type": "It has another type.",
    "topic": "It has another topic.",
    "since": "It is older than the first day of the period.",
    "until": "It is newer than the last day of the period.",
    "origin": "It has another origin.",
    "tags": "It does not have this tag.",
    "source": "It has another source.",
    "outcome": "It does not have this outcome.",
    "namespace": "It is in another namespace.",
}


@attrs.frozen
class HighlightedText:
    """The part of a text that a list shows: the matching passage, and the text before and after it."""

    before: str
    passage: str = ""
    after: str = ""


@attrs.frozen(kw_only=True)
class ShownMemory:
    """
    A memory in a list, with what leads to it.

    Args:
        memory: The memory.
        excerpt: The part of its text that is shown.
        replaced_by: The current memory that replaces it.
        reason_of: The decision whose outcome it explains.
        relevance: Its relevance in percent, or None without a query.
        parts: The parts of its score.
        reached_through: The match from which links lead to it.
        duplicates: Memories that say the same.

    """

    memory: Memory
    excerpt: HighlightedText
    replaced_by: Memory | None = None
    reason_of: Memory | None = None
    relevance: int | None = None
    parts: tuple[ScorePart, ...] = ()
    reached_through: Memory | None = None
    duplicates: tuple[Memory, ...] = ()


@attrs.frozen(kw_only=True)
class ShownExplanation:
    """Why a memory is or is not among the results, in words."""

    memory: Memory
    reason: str
    relevance: int | None
    parts: tuple[ScorePart, ...]
    related: Memory | None
    """The memory that is shown in its place, or that replaces it."""


async def describe_hits(memories: mama_structs.MemoryStore, hits: Iterable[mama_structs.Hit]) -> list[ShownMemory]:
    """Return the hits of a search for a page."""
    found = list(hits)
    shown = await describe_memories(memories, [hit.memory for hit in found])
    by_id = await load_memories(memories, (name for hit in found for name in (*hit.path[-1:], *hit.duplicates)))
    return [
        attrs.evolve(
            one,
            excerpt=_make_excerpt(hit.content, hit.passage),
            relevance=round(100 * hit.relevance),
            parts=tuple(describe_score_parts(hit)),
            reached_through=by_id.get(hit.path[-1]) if hit.path else None,
            duplicates=tuple(by_id[name] for name in hit.duplicates if name in by_id),
        )
        for one, hit in zip(shown, found, strict=True)
    ]


async def describe_memories(memories: mama_structs.MemoryStore, found: Iterable[Memory]) -> list[ShownMemory]:
    """Return the memories of a list for a page."""
    listed = list(found)
    extras = await memories._get_annotations(memory.id for memory in listed)
    decisions = await load_memories(memories, (one.outcome_of for one in extras.values() if one.outcome_of))
    return [
        ShownMemory(
            memory=memory,
            excerpt=_make_excerpt(memory.content),
            replaced_by=own.superseded_by if own else None,
            reason_of=decisions.get(own.outcome_of or "") if own else None,
        )
        for memory in listed
        for own in [extras.get(memory.id)]
    ]


async def describe_explanation(
    memories: mama_structs.MemoryStore, explanation: Explanation, form: SearchForm
) -> ShownExplanation:
    """Return the explanation of a memory's place in words."""
    related = explanation.duplicate_of or explanation.superseded_by
    by_id = await load_memories(memories, filter(None, (explanation.memory_id, related)))
    if explanation.rank is not None:
        reason = f"It is result number {explanation.rank}."
    else:
        excluded_by = explanation.excluded_by or ""
        reason = _EXCLUSIONS.get(excluded_by, f"The condition {excluded_by} leaves it out.")
    return ShownExplanation(
        memory=by_id[explanation.memory_id],
        reason=reason if form.q else f"{reason} There is no query, so the newest memories are listed.",
        relevance=None if explanation.relevance is None else round(100 * explanation.relevance),
        parts=tuple(describe_score_parts(explanation)),
        related=by_id.get(related or ""),
    )


async def load_memories(memories: mama_structs.MemoryStore, ids: Iterable[str]) -> dict[str, Memory]:
    """Return those memories that exist, by their ids."""
    names = sorted(set(ids))
    if not names:
        return {}

    def plan(reader: Reader) -> list[Memory]:
        return reader.get([node for node in reader.find_many(names) if node is not None])

    return {memory.id: memory for memory in await memories._shared.read(plan)}


def _make_excerpt(content: str, passage: tuple[int, int] | None = None) -> HighlightedText:
    if passage is None:
        return HighlightedText(_truncate(content, _MAX_SHOWN_CHARS))
    start, end = passage
    first = max(start - _MARGIN_CHARS, 0)
    return HighlightedText(
        f"{'…' if first else ''}{content[first:start]}",
        _truncate(content[start:end], _MAX_SHOWN_CHARS),
        _truncate(content[end:], _MARGIN_CHARS),
    )


def _truncate(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
