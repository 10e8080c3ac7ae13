"""The tools by which decisions evolve: an outcome, a successor."""
# ruff: noqa: D417 - these docstrings are for models, who never see the store

from __future__ import annotations

from typing import TypedDict

from mama_structs.memory.requests import check_id
from mama_structs.memory.store import MemoryStore
from mama_structs.tools.memory_answers import MemoryLine, line, memory_line, outcome_of
from mama_structs.tools.memory_arguments import Id, Result, Share, Text
from mama_structs.tools.memory_saving import Saved, links_if_any, memory_if_any, naming_the_decision, saved
from mama_structs.tools.memory_successors import direct_successors, successor


class Evolved(TypedDict):
    """What holds after a decision was given an outcome."""

    id: str
    topic: str | None
    decision: str
    outcome: str
    outcome_reason: str | None
    outcomes_before: list[str]
    superseded_by: str | None
    note: str | None


class Superseding(Saved):
    """What holds after a decision took the place of another one."""

    decision: str
    replaced: MemoryLine | None


async def set_outcome(
    decision_id: Id, outcome: Result, *, reason: Text | None = None, memories: MemoryStore
) -> Evolved:
    """
    Say how a decision turned out; its reason is found later by whoever asks why.

    Use it when it has become clear that a decision worked, failed, or worked in part. Say it again when that changes.
    Don't use it to put another decision in its place (evolve/supersede, after the outcome if it failed), or for what
    was learnt beyond this decision (save/insight).

    Args:
        decision_id: The decision's id, as a search or save gave it
        outcome: How it turned out
        reason: What showed it and why it came so; a FAILED outcome needs one

    """
    decision_id = check_id("decision_id", decision_id)
    async with naming_the_decision(memories, "decision_id", decision_id):
        decision = await memories.set_outcome(decision_id, outcome, reason=reason, created_by="llm")
    now, why = outcome_of(decision)
    history = getattr(decision.metadata, "history", ())
    today = await successor(memories, decision.id, await links_if_any(memories, decision.id))
    note = None
    if outcome == "FAILED" and today is None:
        note = "This decision still stands: evolve/supersede says what takes its place."
    return {
        "id": decision.id,
        "topic": decision.topic,
        "decision": line(decision.content),
        "outcome": now or outcome,
        "outcome_reason": None if why is None else line(why),
        "outcomes_before": [change.outcome.value for change in history[:-1]][-5:],
        "superseded_by": today,
        "note": note,
    }


async def supersede(
    decision_id: Id, decision: Text, reasoning: str, *, confidence: Share = 0.7, memories: MemoryStore
) -> Superseding:
    """
    Put a new decision in the place of an earlier one, under the same topic; the earlier one stays in the history.

    Use it when a decision changes: find its id with search/by_topic or search/by_context first.
    Don't use it for a new matter (save/decision), or only to say that a decision failed (evolve/outcome).

    Args:
        decision_id: The id of the decision that is replaced
        decision: What was decided instead, in a sentence or two that stand alone
        reasoning: Why the change
        confidence: How sure it is

    """
    decision_id = check_id("decision_id", decision_id)
    async with naming_the_decision(memories, "decision_id", decision_id):
        new = await memories.supersede(decision_id, decision, reasoning, confidence=confidence, created_by="llm")
    before = await memory_if_any(memories, decision_id)
    links = await links_if_any(memories, decision_id)
    others = [one for one in direct_successors(links, decision_id) if one != new.id]
    note = None
    if others:
        today = await successor(memories, others[0], await links_if_any(memories, others[0]))
        whose = "" if today is None else f" (in whose place {today} stands)"
        note = (
            f"{decision_id} was superseded before, by {others[0]}{whose}: there are {len(others) + 1} successors now, "
            "see search/by_topic."
        )
    answer = await saved(memories, new, supersedes=decision_id, note=note)
    return {**answer, "decision": line(new.content), "replaced": None if before is None else memory_line(before)}
