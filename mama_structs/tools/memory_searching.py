"""The tools that search by what is asked, and by time."""
# ruff: noqa: D417 - these docstrings are for models, who never see the store

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from mama_structs.errors import MamaStructsError
from mama_structs.memory.model import DecisionMetadata, Memory
from mama_structs.memory.results import Hit
from mama_structs.memory.store import MemoryStore
from mama_structs.tools.memory_answers import (
    LOW,
    line,
    outcome_of,
    share,
    tells_outcome,
    written,
)
from mama_structs.tools.memory_arguments import Kinds, Limit, Question, Time, moment
from mama_structs.tools.memory_saving import links_if_any
from mama_structs.tools.memory_successors import decision_told_of, successor


class Found(TypedDict):
    """A memory that a search found."""

    id: str
    type: str
    topic: str | None
    content: str
    reasoning: str | None
    outcome: str | None
    outcome_reason: str | None
    created_at: str
    superseded_by: str | None
    in_its_place: str | None
    tells_outcome_of: str | None


class Answering(Found):
    """A memory with how well it answers, 0 to 1."""

    relevance: float


class ByContext(TypedDict):
    """What search/by_context answers."""

    found: list[Answering]
    note: str | None


class Recent(TypedDict):
    """What search/recent answers."""

    found: list[Found]
    note: str | None


async def by_context(
    query: Question, *, types: Kinds | None = None, limit: Limit = 5, memories: MemoryStore
) -> ByContext:
    """
    Find what was decided, learnt or done, by meaning, words, links and time; English and Korean.

    Use it for any question about the past, such as "why did we leave JWT?" or "what did we decide last week?".
    The answer names outcomes with their reasons, and what superseded what.
    Don't use it when you know the exact topic (search/by_topic), have an id (load/context), or only want the newest
    (search/recent).

    Args:
        query: The question, in whole words
        types: Only memories of these types; leave it out for all
        limit: How many to find at most

    """
    hits = await memories.search(query, types=types, limit=limit)
    most = share(len(hits))
    found: list[Answering] = []
    for hit in hits:
        shown = await _found(memories, hit.memory, most, hit=hit)
        found.append({**shown, "relevance": round(hit.relevance, 2)})
    return {"found": found, "note": _note(hits)}


async def recent(
    *, limit: Limit = 10, types: Kinds | None = None, since: Time | None = None, memories: MemoryStore
) -> Recent:
    """
    List the newest memories, newest first.

    Use it to see what happened lately, as when the user comes back after a while.
    Don't use it to find something in particular (search/by_context), or to go on with the last work (load/checkpoint).

    Args:
        limit: How many at most
        types: Only memories of these types; leave it out for all
        since: Only from this date or time on, in ISO 8601, such as 2026-03-01 or 2026-03-01T09:30:00Z; without a
            time zone it is UTC

    """
    found = await memories.recent(limit=limit, types=types, since=None if since is None else moment("since", since))
    most = share(len(found))
    shown = [await _found(memories, memory, most) for memory in found]
    note = None
    if not shown:
        narrowed = types is not None or since is not None
        note = f"There is nothing{' like this: leave out types or since' if narrowed else ' saved yet'}."
    return {"found": shown, "note": note}


async def _found(memories: MemoryStore, memory: Memory, most: int, *, hit: Hit | None = None) -> Found:
    metadata = memory.metadata
    outcome, reason = outcome_of(memory)
    reasoning = metadata.reasoning if isinstance(metadata, DecisionMetadata) else None
    told = None
    if tells_outcome(memory):
        told = decision_told_of(await links_if_any(memories, memory.id), memory.id)
    if told is None and hit is not None:
        superseded_by = hit.superseded_by
    else:
        about = told or memory.id
        superseded_by = await successor(memories, about, await links_if_any(memories, about))
    return {
        "id": memory.id,
        "type": memory.type.value,
        "topic": memory.topic,
        "content": line(memory.content, most),
        "reasoning": line(reasoning, most) if reasoning else None,
        "outcome": outcome,
        "outcome_reason": None if reason is None else line(reason, most),
        "created_at": written(memory.created_at),
        "superseded_by": superseded_by,
        "in_its_place": None if superseded_by is None else await _content(memories, superseded_by, most),
        "tells_outcome_of": told,
    }


async def _content(memories: MemoryStore, memory_id: str, most: int) -> str | None:
    try:
        return line((await memories.get(memory_id)).content, most)
    except MamaStructsError:
        return None


def _note(hits: Sequence[Hit]) -> str | None:
    if not hits:
        return "Nothing was found: ask in other words, leave out types, or see search/recent."
    best = max(hit.relevance for hit in hits)
    if best < LOW:
        return (
            f"Nothing answers this well (the best relevance is {best:.2f}; below {LOW} it is likely about something "
            "else): ask in other words, or see search/recent. Don't take these for an answer."
        )
    return "load/context with an id gives the whole of a memory, and what belongs to it."
