"""How the tools of v1.0 show decisions and checkpoints: Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from mama_structs.memory.model import CheckpointMetadata, DecisionMetadata, Memory, MemoryType, Outcome
from mama_structs.memory.results import Chain, Hit
from mama_structs.tools.deprecated.choosing import standing
from mama_structs.tools.memories import age, line

# v1.0 cut what it listed after as many characters.
_PREVIEW: Final = 60
_REASONING: Final = 300
_OUTCOMES: Final = {Outcome.SUCCESS: "✅ SUCCESS", Outcome.FAILED: "❌ FAILED", Outcome.PARTIAL: "⚠️ PARTIAL"}


def history(topic: str, chain: Chain, *, now: datetime) -> str:
    """
    Return a topic's decisions as Markdown, newest first, each with reasoning and outcome, each once.

    Args:
        topic: The heading.
        chain: The topic's memories with their versions.
        now: What ages are counted from.

    """
    decisions = [memory for memory in chain if memory.type is MemoryType.DECISION]
    holding = {memory.id for memory in standing(chain.memories, chain.links)}
    parts = [f"# Decisions: {line(topic, _PREVIEW)}"]
    for number, memory in enumerate(decisions, 1):
        facts = decision_of(memory)
        state = "holds" if memory.id in holding else "superseded"
        other = "" if memory.topic == topic else f" · topic {line(memory.topic or '', _PREVIEW)}"
        parts.append(f"## {number}. {memory.id} ({state})")
        parts.append(f"{_facts_in_line(memory, now)}{other}")
        parts.append(f"Decision: {memory.content}")
        parts.append(f"Reasoning: {facts.reasoning or 'none was given'}")
        if facts.outcome_reason:
            parts.append(f"Outcome: {facts.outcome_reason}")
    return "\n\n".join(parts)


def decision_list(decisions: Sequence[Memory], *, now: datetime) -> str:
    """Return decisions as a Markdown list, a line each."""
    return "\n".join(
        f"{number}. **{line(memory.topic or '', _PREVIEW)}**: {line(memory.content, _PREVIEW)} "
        f"· {_facts_in_line(memory, now)} · {memory.id}"
        for number, memory in enumerate(decisions, 1)
    )


def suggestions(hits: Sequence[Hit], *, now: datetime) -> str:
    """Return what a search found as a Markdown list."""
    return "\n".join(_suggestion(number, hit, now) for number, hit in enumerate(hits, 1))


def checkpoint_text(memory: Memory) -> str:
    """Return a checkpoint as v1.0 wrote it: time, summary, files as JSON, next steps."""
    facts = memory.metadata
    files: Sequence[str] = ()
    steps: Sequence[str] = ()
    if isinstance(facts, CheckpointMetadata):
        files, steps = facts.open_files, facts.next_steps
    lines = "\n".join(steps)
    return "\n\n".join(
        [
            f"📍 Checkpoint of {memory.created_at:%Y-%m-%d %H:%M:%S} UTC (ID: {memory.id})",
            f"Summary: {memory.content}",
            f"Open files: {json.dumps(list(files), ensure_ascii=False)}",
            f"Next steps:\n{lines}" if len(steps) > 1 else f"Next steps: {lines or 'None'}",
        ]
    )


def decision_of(memory: Memory) -> DecisionMetadata:
    """Return what belongs to a decision beside its content."""
    return memory.metadata if isinstance(memory.metadata, DecisionMetadata) else DecisionMetadata()


def _suggestion(number: int, hit: Hit, now: datetime) -> str:
    memory, facts = hit.memory, decision_of(hit.memory)
    replaced = f" · superseded by {hit.superseded_by}" if hit.superseded_by else ""
    decision = line(memory.content, _REASONING)
    lines = [
        f"{number}. **{line(memory.topic or '', _PREVIEW)}** (relevance {hit.relevance:.2f}): {decision}",
        f"   {_facts_in_line(memory, now)} · {memory.id}{replaced}",
    ]
    if facts.reasoning:
        lines.append(f"   Reasoning: {line(facts.reasoning, _REASONING)}")
    if facts.outcome_reason:
        lines.append(f"   Outcome: {line(facts.outcome_reason, _REASONING)}")
    return "\n".join(lines)


def _facts_in_line(memory: Memory, now: datetime) -> str:
    facts = decision_of(memory)
    outcome = "⏳ Pending" if facts.outcome is None else _OUTCOMES[facts.outcome]
    author = "👤 User" if facts.created_by == "user" else "🤖 Assistant"
    return f"{author} · {outcome} · {facts.confidence:.0%} confidence · {age(memory.created_at, now)}"
