"""The tool that searches by topic."""
# ruff: noqa: D417 - these docstrings are for models, who never see the store

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final, TypedDict

from mama_structs.errors import MamaStructsError
from mama_structs.memory.model import DecisionMetadata, Memory, MemoryType
from mama_structs.memory.results import Chain
from mama_structs.memory.store import MemoryStore
from mama_structs.tools.memory_answers import (
    LOW,
    LinkLine,
    MemoryLine,
    line,
    link_line,
    memory_line,
    outcome_of,
    share,
    tells_outcome,
    written,
)
from mama_structs.tools.memory_arguments import Topic
from mama_structs.tools.memory_successors import direct_successors, standing

_VERSIONS: Final = 20
_AROUND: Final = 5
_NEAR: Final = 5
_TOPICS_LOOKED_AT: Final = 500


class Version(TypedDict):
    """One version of what was decided on a topic."""

    id: str
    type: str
    content: str
    reasoning: str | None
    confidence: float | None
    outcome: str | None
    outcome_reason: str | None
    created_at: str
    superseded_by: str | None
    successors: list[str]


class ByTopic(TypedDict):
    """What search/by_topic answers."""

    topic: str
    versions: list[Version]
    older_versions: int
    links: list[LinkLine]
    forks: list[str]
    around: list[MemoryLine]
    near_topics: list[str]
    note: str | None


async def by_topic(topic: Topic, *, memories: MemoryStore) -> ByTopic:
    """
    Show how what was decided on one topic evolved: every version, newest first, with outcomes and their reasons.

    Use it when you know the topic: what holds now, what was tried before, and why it was left.
    Don't use it for a question in words (search/by_context), or for one memory whose id you have (load/context).

    Args:
        topic: The topic exactly as it was saved, such as auth_strategy

    """
    chain = await memories.by_topic(topic)
    if not chain:
        near = await _near_topics(memories, topic)
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "Ask search/by_context in words."
        note = f"Nothing was saved on this topic. {hint}"
        return _chain_answer(topic, chain, near=near, note=note)
    return _chain_answer(topic, chain)


async def _near_topics(memories: MemoryStore, topic: str) -> list[str]:
    """Return topics that exist and look or mean nearly the same."""
    # Most are found by how they look; words of another language or another word for it, by what they mean.
    try:
        recent = await memories.recent(limit=_TOPICS_LOOKED_AT, types=[MemoryType.DECISION])
        hits = await memories.search(topic, types=[MemoryType.DECISION], limit=_NEAR)
    except MamaStructsError:
        return []
    by_look: dict[str, str] = {}
    for memory in (*recent, *(hit.memory for hit in hits)):
        if memory.topic is not None:
            by_look.setdefault(_look(memory.topic), memory.topic)
    near = [by_look[look] for look in difflib.get_close_matches(_look(topic), by_look, n=_NEAR)]
    meant = [hit.memory.topic for hit in hits if hit.relevance >= LOW and hit.memory.topic is not None]
    return list(dict.fromkeys([*near, *meant]))[:_NEAR]


def _look(topic: str) -> str:
    return " ".join("".join(letter if letter.isalnum() else " " for letter in topic.casefold()).split())


def _chain_answer(topic: str, chain: Chain, *, near: Sequence[str] = (), note: str | None = None) -> ByTopic:
    # The reason of an outcome stands beside the outcome.
    versions = [memory for memory in chain.memories if not tells_outcome(memory)]
    shown = versions[:_VERSIONS]
    most = share(len(shown))
    ids = {memory.id for memory in shown}
    if note is None and len(versions) > len(shown):
        note = (
            f"{len(versions) - len(shown)} older versions are left out: load/context with the last id here shows more."
        )
    return {
        "topic": topic,
        "versions": [_version(memory, chain, most) for memory in shown],
        "older_versions": len(versions) - len(shown),
        "links": [link_line(link) for link in chain.links if link.from_id in ids][:_VERSIONS],
        "forks": [memory.id for memory in chain.forks][:_VERSIONS],
        "around": [memory_line(reached.memory) for reached in chain.around[:_AROUND]],
        "near_topics": list(near),
        "note": note,
    }


def _version(memory: Memory, chain: Chain, most: int) -> Version:
    outcome, reason = outcome_of(memory)
    metadata = memory.metadata
    decision = metadata if isinstance(metadata, DecisionMetadata) else None
    return {
        "id": memory.id,
        "type": memory.type.value,
        "content": line(memory.content, most),
        "reasoning": line(decision.reasoning, most) if decision and decision.reasoning else None,
        "confidence": round(decision.confidence, 2) if decision else None,
        "outcome": outcome,
        "outcome_reason": None if reason is None else line(reason, most),
        "created_at": written(memory.created_at),
        "superseded_by": standing(chain, memory.id),
        "successors": direct_successors(chain.links, memory.id)[:_AROUND],
    }
