"""The five tools of v1.0 for decisions."""

# ruff: noqa: D417, N803
# These docstrings and names are for models: they never see the place, and v1.0 spelt some parameters in camelCase.

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.memory.model import CreatedBy, Memory, MemoryType, Outcome
from mama_structs.memory.requests import check_topic
from mama_structs.memory.results import shortened
from mama_structs.tools.deprecated.arguments import named
from mama_structs.tools.deprecated.choosing import Recency, decisions_on, ranked, similar_topics
from mama_structs.tools.deprecated.notes import as_object
from mama_structs.tools.deprecated.place import Place
from mama_structs.tools.deprecated.views import decision_list, decision_of, history, suggestions

_OUTCOMES: Final[Mapping[str, Outcome | None]] = {
    "pending": None,
    "success": Outcome.SUCCESS,
    "failure": Outcome.FAILED,
    "partial": Outcome.PARTIAL,
    "superseded": None,
    "SUCCESS": Outcome.SUCCESS,
    "FAILED": Outcome.FAILED,
    "PARTIAL": Outcome.PARTIAL,
}
# Both vocabularies of v1.0, as its schemas said it and as it was checked. They overlap but for the case, in which
# models are not careful: so any text is taken here, and looked up in any case.
OutcomeWord = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [*_OUTCOMES]})]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Days = Annotated[float, msgspec.Meta(gt=0)]

_SUGGESTED: Final = 5
_CANDIDATES: Final = 20
_SIMILAR_TOPICS: Final = 3
_SHORT_QUESTION: Final = 3
_NOT_KEPT: Final = "trust_context was not kept: say in the reasoning what the decision rests on"


@as_object
async def save_decision(
    topic: str,
    decision: str,
    reasoning: str,
    *,
    confidence: Share = 0.5,
    type: Literal["user_decision", "assistant_insight"] = "user_decision",  # noqa: A002 - as v1.0 called it
    outcome: OutcomeWord | None = None,
    failure_reason: str | None = None,
    limitation: str | None = None,
    trust_context: dict[str, Any] | None = None,
    place: Place,
) -> dict[str, Any]:
    """
    Deprecated, use save/decision. Save a decision; it takes the place of the newest one with the same topic.

    Args:
        topic: What it is about, always the same word or two for one matter
        decision: What was decided
        reasoning: Why
        confidence: How sure that is
        type: Who decided: the user, or the assistant
        outcome: What became of it; pending and superseded say nothing yet
        failure_reason: Why it failed, if it did
        limitation: What it does not do, for a partial success
        trust_context: Accepted as in v1.0, and not kept

    """
    result = None if outcome is None else _outcome(outcome)[1]
    reason = _reason(failure_reason, limitation)
    if result is None and reason is not None:
        raise InvalidArgument("failure_reason and limitation need an outcome", hint="give failure or partial")
    if result is Outcome.FAILED and reason is None:
        # v1.0 took a failure without a reason here. Its reasoning would be a wrong one: it says why it was chosen.
        reason = f"No reason was given why this failed: {shortened(decision)}"
    created_by: CreatedBy = "llm" if type == "assistant_insight" else "user"
    about = check_topic(topic)
    async with place.chaining:
        before = await place.newest_on(about)
        memory = await place.memories.save_decision(
            about,
            decision,
            reasoning,
            confidence=confidence,
            supersedes=before.id if before else None,
            created_by=created_by,
        )
    message = f"✅ Decision saved successfully (ID: {memory.id})"
    if result is not None:
        try:
            with named(reason=_reason_names(failure_reason, limitation)):
                await place.memories.set_outcome(memory.id, result, reason=reason, created_by=created_by)
        except MamaStructsError as error:
            # Saving it again would make it supersede itself: the model must learn that it is there.
            message = f"{message}, but not its outcome: {error}"
    return {
        "success": True,
        "decision_id": memory.id,
        "topic": about,
        "message": message,
        "recall_command": f"To recall: recall_decision with topic {json.dumps(about, ensure_ascii=False)}",
        **({} if trust_context is None else {"note": _NOT_KEPT}),
    }


@as_object
async def recall_decision(topic: str, *, place: Place) -> dict[str, Any]:
    """
    Deprecated, use search/by_topic. Show how a topic's decisions evolved, newest first.

    Args:
        topic: As it was saved; where nothing has it, topics that begin with the same word are shown

    """
    about = check_topic(topic)
    chain = await place.memories.by_topic(about)
    if decisions_on(chain, about):
        count = sum(memory.type is MemoryType.DECISION for memory in chain)
        return {
            "success": True,
            "history": history(about, chain, now=place.now),
            "message": f"✅ {count} decision{'' if count == 1 else 's'} found for topic: {about}",
        }
    hits = await place.memories.search(about, types=[MemoryType.DECISION], limit=_CANDIDATES)
    near = similar_topics(about, hits)[:_SIMILAR_TOPICS]
    nothing = f"❌ No decisions found for topic: {about}"
    if not near:
        return {"success": True, "history": nothing, "message": nothing}
    chains = [(one, await place.memories.by_topic(one)) for one in near]
    return {
        "success": True,
        "history": "\n\n".join(history(one, chain, now=place.now) for one, chain in chains),
        "message": f"{nothing}; these topics begin with the same word: {', '.join(near)}",
    }


@as_object
async def suggest_decision(
    userQuestion: str,
    *,
    recencyWeight: Share | None = None,
    recencyScale: Days | None = None,
    recencyDecay: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None,
    disableRecency: bool = False,
    place: Place,
) -> dict[str, Any]:
    """
    Deprecated, use search/by_context. Find earlier decisions that answer a question.

    Args:
        userQuestion: The question, in any words
        recencyWeight: How much newer decisions are preferred; by default a little
        recencyScale: Days after which a decision's recency has fallen to recencyDecay; 7 with any other recency option
        recencyDecay: See recencyScale; 0.5 with any other recency option
        disableRecency: Whether age does not count at all

    """
    given = {"weight": recencyWeight, "scale": recencyScale, "decay": recencyDecay}
    asked = {name: value for name, value in given.items() if value is not None}
    recency = Recency(weight=0.0) if disableRecency else Recency(**asked) if asked else None
    with named(query="userQuestion"):
        hits = await place.memories.search(userQuestion, types=[MemoryType.DECISION], limit=_CANDIDATES)
    best = ranked(hits, recency, now=place.now)[:_SUGGESTED]
    if best:
        count = f"{len(best)} past decision{'' if len(best) == 1 else 's'}"
        return {"success": True, "suggestions": suggestions(best, now=place.now), "message": f"💡 {count} found"}
    hint = " Ask in more words." if len(userQuestion.split()) < _SHORT_QUESTION else ""
    return {"success": True, "message": f"💡 No relevant past decisions found for this question.{hint}"}


@as_object
async def list_decisions(*, limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20, place: Place) -> dict[str, Any]:
    """
    Deprecated, use search/recent. List the newest decisions that still hold.

    Args:
        limit: Decisions at most

    """
    found = await place.newest_holding(limit)
    if not found:
        nothing = "❌ No decisions found"
        return {"success": True, "list": nothing, "message": nothing}
    count = f"{len(found)} decision{'' if len(found) == 1 else 's'}"
    return {"success": True, "list": decision_list(found, now=place.now), "message": f"✅ {count}, newest first"}


@as_object
async def update_outcome(
    outcome: OutcomeWord,
    *,
    decisionId: str | None = None,
    topic: str | None = None,
    failure_reason: str | None = None,
    limitation: str | None = None,
    place: Place,
) -> dict[str, Any]:
    """
    Deprecated, use evolve/outcome. Say what became of a decision. Give decisionId or topic.

    Args:
        outcome: What became of it
        decisionId: The decision's id
        topic: In place of decisionId: the newest decision with this topic that still holds
        failure_reason: Why it failed; a failure needs one
        limitation: What it does not do, for a partial success

    """
    word, result = _outcome(outcome)
    before = await _decision_for(place, (decisionId or "").strip(), (topic or "").strip())
    if result is None:
        await _refuse_unless_so(place, before, word)
    else:
        reason = _reason(failure_reason, limitation)
        if result is Outcome.FAILED and reason is None:
            raise InvalidArgument("failure_reason is required when outcome is failure", hint="say why it failed")
        with named(reason=_reason_names(failure_reason, limitation)):
            await place.memories.set_outcome(before.id, result, reason=reason, created_by="llm")
    return {
        "success": True,
        "decision_id": before.id,
        "outcome": result.value if result else word,
        "message": f"✅ Outcome of {before.id}: {result.value if result else word}",
    }


async def _decision_for(place: Place, decision_id: str, topic: str) -> Memory:
    if decision_id:
        with named(id="decisionId"):
            memory = await place.memories.get(decision_id)
        if memory.type is not MemoryType.DECISION:
            raise InvalidArgument(f"decisionId must be a decision's, and is that of a memory of type {memory.type}")
        if topic and check_topic(topic) != memory.topic:
            raise InvalidArgument("topic is not that of the decision", hint="give decisionId or topic, not both")
        return memory
    if not topic:
        raise InvalidArgument("decisionId or topic is required", hint="list_decisions shows the ids")
    found = await place.newest_on(check_topic(topic))
    if found is None:
        raise InvalidArgument("no decision that still holds has this topic", hint="list_decisions shows the topics")
    return found


async def _refuse_unless_so(place: Place, before: Memory, word: str) -> None:
    """Refuse to say of a decision that it is pending or superseded, unless it is so already."""
    if word == "pending":
        if decision_of(before).outcome is not None:
            raise InvalidArgument(
                "outcome cannot become pending again", hint="give success, failure or partial: the history is kept"
            )
        return
    if await place.holds(before):
        raise InvalidArgument(
            "outcome cannot say superseded before something took the decision's place",
            hint="save_decision with the same topic does that",
        )


def _outcome(word: str) -> tuple[str, Outcome | None]:
    """Return a word in lower case and what it means, None for the two that say nothing yet."""
    given = word.strip().lower()
    for known, outcome in _OUTCOMES.items():
        if known.lower() == given:
            return given, outcome
    raise InvalidArgument(f"outcome must be one of {', '.join(_OUTCOMES)}, got {shortened(word)!r}")


def _reason(failure_reason: str | None, limitation: str | None) -> str | None:
    """Return both texts of v1.0 as one."""
    why = (failure_reason or "").strip()
    but = (limitation or "").strip()
    return f"{why}\nLimitation: {but}" if why and but else why or but or None


def _reason_names(failure_reason: str | None, limitation: str | None) -> str:
    """Return the names of those texts that `_reason` takes."""
    given = {"failure_reason": failure_reason, "limitation": limitation}
    return " and ".join(name for name, text in given.items() if text and text.strip()) or "outcome"
