"""The tools that load: the last checkpoint, and one memory with all that belongs to it."""
# ruff: noqa: D417 - these docstrings are for models, who never see the store

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from mama_structs.descriptors.store import RefStore
from mama_structs.memory.model import (
    CheckpointMetadata,
    DecisionMetadata,
    InsightMetadata,
    LinkType,
    Memory,
)
from mama_structs.memory.results import Surroundings
from mama_structs.memory.store import MemoryStore
from mama_structs.tools.memory_answers import (
    Cutter,
    LinkLine,
    MemoryLine,
    More,
    age,
    memory_line,
    outcome_of,
    tells_outcome,
    written,
)
from mama_structs.tools.memory_arguments import Id
from mama_structs.tools.memory_parts import EvidenceLine, OutcomeLine, evidence_lines, link_lines, outcome_lines
from mama_structs.tools.memory_saving import links_if_any
from mama_structs.tools.memory_successors import decision_told_of, direct_successors, standing, successor

_VERSIONS: Final = 10
_AROUND: Final = 15
_LINKS: Final = 20


class LastCheckpoint(TypedDict):
    """What load/checkpoint answers."""

    found: bool
    id: str | None
    summary: str | None
    open_files: list[str]
    next_steps: list[str]
    implements: list[str]
    created_at: str | None
    age: str | None
    more: list[More]
    note: str | None


class Whole(TypedDict):
    """One memory, whole."""

    id: str
    type: str
    topic: str | None
    content: str
    reasoning: str | None
    confidence: float | None
    outcome: str | None
    outcome_reason: str | None
    outcomes: list[OutcomeLine]
    category: str | None
    tags: list[str]
    source: str | None
    open_files: list[str]
    next_steps: list[str]
    mentions: list[str]
    created_by: str
    created_at: str
    age: str
    superseded_by: str | None
    successors: list[str]
    tells_outcome_of: str | None


class WithContext(TypedDict):
    """What load/context answers."""

    memory: Whole
    evolution: list[MemoryLine]
    more_versions: int
    around: list[AroundLine]
    more_around: int
    links: list[LinkLine]
    more_links: int
    evidence: list[EvidenceLine]
    more_evidence: int
    more: list[More]
    note: str | None


class AroundLine(MemoryLine):
    """A memory near another one."""

    depth: int


async def load_checkpoint(*, memories: MemoryStore, refs: RefStore) -> LastCheckpoint:
    """
    Load where the work stood last: summary, open files, next steps.

    Use it first when the user wants to go on with earlier work ("continue", "where were we?").
    Don't use it to find out why something is as it is (search/by_context).
    """
    memory = await memories.latest_checkpoint()
    if memory is None:
        return {
            "found": False,
            "id": None,
            "summary": None,
            "open_files": [],
            "next_steps": [],
            "implements": [],
            "created_at": None,
            "age": None,
            "more": [],
            "note": "There is no checkpoint yet: search/recent shows what else was saved, save/checkpoint saves one.",
        }
    metadata = memory.metadata
    assert isinstance(metadata, CheckpointMetadata)  # noqa: S101 - a checkpoint has no other
    cutter = Cutter(refs, f"load/checkpoint {memory.id}")
    links = await links_if_any(memories, memory.id)
    carried_out = [
        link.to_id for link in links if link.from_id == memory.id and link.link_type is LinkType.IMPLEMENTATION
    ]
    return {
        "found": True,
        "id": memory.id,
        "summary": cutter.cut("summary", memory.content),
        "open_files": cutter.cut_items("open_files", metadata.open_files),
        "next_steps": cutter.cut_items("next_steps", metadata.next_steps),
        "implements": cutter.cut_items("implements", list(dict.fromkeys(carried_out)), most=_LINKS),
        "created_at": written(memory.created_at),
        "age": age(memory.created_at, refs.now()),
        "more": cutter.more,
        "note": None,
    }


async def load_context(id: Id, *, memories: MemoryStore, refs: RefStore) -> WithContext:  # noqa: A002 - DESIGN's name
    """
    Load one memory whole: how it evolved, what is linked to it up to two links away, and what it rests on.

    Use it when a search gave an id and its few lines do not say enough.
    Don't use it to search (search/by_context), or for the last checkpoint (load/checkpoint).

    Args:
        id: The memory's id, as another tool gave it

    """
    found = await memories.load_context(id)
    memory = found.memory
    cutter = Cutter(refs, f"load/context {memory.id}")
    told = decision_told_of(found.links, memory.id) if tells_outcome(memory) else None
    if told is None:
        today = standing(found.chain, memory.id)
    else:
        today = await successor(memories, told, await links_if_any(memories, told))
    whole = _whole(found, cutter, today=today, told=told, how_old=age(memory.created_at, refs.now()))
    evidence = evidence_lines(await memories.evidence_of(memory.id), cutter)
    links = link_lines(found.links, cutter)
    return {
        "memory": whole,
        "evolution": [memory_line(one) for one in _near(found.chain.memories, memory)],
        "more_versions": max(0, len(found.chain) - _VERSIONS),
        "around": [{**memory_line(one.memory), "depth": one.depth} for one in found.around[:_AROUND]],
        "more_around": max(0, len(found.around) - _AROUND),
        "links": links,
        "more_links": max(0, len(found.links) - len(links)),
        "evidence": evidence,
        "more_evidence": max(0, len(memory.evidence) - len(evidence)),
        "more": cutter.more,
        "note": _note(memory, told, today),
    }


def _note(memory: Memory, told: str | None, today: str | None) -> str | None:
    if today is None:
        return None
    if told is not None:
        return f"The decision that this is about, {told}, no longer holds: {today} took its place."
    return f"This {memory.type.value} no longer holds: {today} took its place."


def _whole(found: Surroundings, cutter: Cutter, *, today: str | None, told: str | None, how_old: str) -> Whole:
    memory = found.memory
    metadata = memory.metadata
    decision = metadata if isinstance(metadata, DecisionMetadata) else None
    checkpoint = metadata if isinstance(metadata, CheckpointMetadata) else None
    insight = metadata if isinstance(metadata, InsightMetadata) else None
    outcome, reason = outcome_of(memory)
    source = getattr(metadata, "source", None)
    return {
        "id": memory.id,
        "type": memory.type.value,
        "topic": memory.topic,
        "content": cutter.cut("content", memory.content),
        "reasoning": cutter.cut("reasoning", decision.reasoning) if decision else None,
        "confidence": decision.confidence if decision else None,
        "outcome": outcome,
        "outcome_reason": None if reason is None else cutter.cut("outcome_reason", reason),
        "outcomes": outcome_lines(decision, cutter),
        "category": None if insight is None or insight.category is None else cutter.cut("category", insight.category),
        "tags": cutter.cut_items("tags", insight.tags if insight else ()),
        "source": None if source is None else cutter.cut("source", source),
        "open_files": cutter.cut_items("open_files", checkpoint.open_files if checkpoint else ()),
        "next_steps": cutter.cut_items("next_steps", checkpoint.next_steps if checkpoint else ()),
        "mentions": cutter.cut_items("mentions", memory.mentions, most=_LINKS),
        "created_by": metadata.created_by,
        "created_at": written(memory.created_at),
        "age": how_old,
        "superseded_by": today,
        "successors": cutter.cut_items("successors", direct_successors(found.links, memory.id), most=_LINKS),
        "tells_outcome_of": told,
    }


def _near(versions: Sequence[Memory], memory: Memory) -> Sequence[Memory]:
    """Return a few newer versions, this one and older ones, so that a long chain can be walked from one to the next."""
    place = next((place for place, one in enumerate(versions) if one.id == memory.id), 0)
    first = max(0, min(place - _VERSIONS // 4, len(versions) - _VERSIONS))
    return versions[first : first + _VERSIONS]
