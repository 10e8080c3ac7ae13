"""The seven tools of v1.0, with their parameters and results, on top of today's memories; removed in 2.0."""

# These docstrings and names are for models: they never see where the tools work, v1.0 spelt some parameters in
# camelCase, and the sign for information is v1.0's.
# ruff: noqa: D417, N803, RUF001

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import re
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import attrs
import msgspec

from mama_structs._provenance import least_trusted, mark_of
from mama_structs._quoting import cut, plainly
from mama_structs._showing import counted
from mama_structs.errors import (
    InvalidArgument,
    MamaStructsError,
    MemoryNotFound,
    NoSession,
    SessionClosed,
    WrongLoop,
    shown,
)
from mama_structs.memory.graph import holding
from mama_structs.memory.model import CheckpointMetadata, CreatedBy, DecisionMetadata, Link, Memory, MemoryType, Outcome
from mama_structs.memory.requests import check_topic
from mama_structs.memory.results import Chain, Hit, shortened
from mama_structs.memory.store import MemoryStore
from mama_structs.tools.memories import age
from mama_structs.tools.names import last_line, note_on
from mama_structs.tools.tool import Tool, ToolAnnotations, bound

Function = Callable[..., Coroutine[Any, Any, Any]]

# What each word of v1.0 means, as its schemas said it and as it was checked; two say nothing yet.
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
_SHOWN_OUTCOMES: Final[Mapping[Outcome | None, str]] = {
    None: "⏳ Pending",
    Outcome.SUCCESS: "✅ SUCCESS",
    Outcome.FAILED: "❌ FAILED",
    Outcome.PARTIAL: "⚠️ PARTIAL",
}
# The words overlap but for the case, in which models are not careful: so any text is taken, and looked up in any case.
OutcomeWord = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [*_OUTCOMES]})]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Days = Annotated[float, msgspec.Meta(gt=0)]
Decay = Annotated[float, msgspec.Meta(gt=0, lt=1)]

_SUGGESTED: Final = 5
_CANDIDATES: Final = 20
_SIMILAR_TOPICS: Final = 3
_SHORT_QUESTION: Final = 3
# Below this a search has found nothing, see `Hit`.
_MIN_RELEVANCE: Final = 0.3
# v1.0 cut what it listed after as many characters.
_PREVIEW: Final = 60
_REASONING: Final = 300
_NOT_KEPT: Final = "trust_context was not kept: say in the reasoning what the decision rests on"
_WORD: Final = re.compile(r"[^\W_]+")
_DAY: Final = 86400
# As many scales away nothing is left of recency.
_FAR: Final = 1e6
# Between the tool and the host's code that asked for it stand these.
_PASSED_OVER: Final = frozenset({"mama_structs", "asyncio"})

_READS: Final = ToolAnnotations(read_only=True, open_world=False)
# What was there before is kept.
_ADDS: Final = ToolAnnotations(destructive=False, open_world=False)

_TEMPLATES: Final[list[Tool]] = []
_warned: set[str] = set()


@attrs.frozen(kw_only=True, eq=False)
class OldTools:
    """Where the tools work, and the clock that gives the seconds since 1970, for ages."""

    memories: MemoryStore
    clock: Callable[[], float] = time.time

    @property
    def now(self) -> datetime:
        """The present (UTC)."""
        return datetime.fromtimestamp(self.clock(), UTC)

    async def newest_on(self, topic: str) -> Memory | None:
        """Return the newest decision of a topic that still holds and can be changed, None where there is none."""
        chain = await self.memories.by_topic(topic)
        found = [one for one in standing(chain.memories, chain.links) if one.namespace == self.memories.namespace]
        return next((one for one in found if one.type is MemoryType.DECISION and one.topic == topic), None)

    async def newest_holding(self, limit: int) -> list[Memory]:
        """Return the newest decisions that still hold, newest first."""
        asked = 2 * limit
        while True:
            newest = await self.memories.recent(limit=asked, types=[MemoryType.DECISION])
            beside = await self.memories._beside(memory.id for memory in newest)  # noqa: SLF001 - what all tools show
            # One may be deleted meanwhile.
            found = [one for one in newest if one.id in beside and beside[one.id].superseded_by is None]
            if len(found) >= limit or len(newest) < asked:
                return found[:limit]
            asked *= 4


def deprecated_tools(memories: MemoryStore, *, clock: Callable[[], float] = time.time) -> list[Tool]:
    """Return the seven tools of v1.0, in its order, on some memories."""
    place = OldTools(memories=memories, clock=clock)
    return [bound(template, place=place) for template in _TEMPLATES]


# What is offered: with warnings, to the host's developer once, to a model each time


def forget_warnings() -> None:
    """Let each tool warn again, as in a new process; for tests."""
    _warned.clear()


def _warn(name: str) -> None:
    """Say to the host's developer, once a process, what the model is told each time."""
    if name in _warned:
        return
    # At the host's own line, since by default Python shows a script's own ones only. An awaiting coroutine's frame is
    # on the stack like any caller's.
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
        level, frame = level + 1, frame.f_back
    # Where the host turned warnings into errors, the tool has done nothing yet, and each of its calls ends so.
    warnings.warn(f"the tool {name} is deprecated: {note_on(name)}", DeprecationWarning, stacklevel=level)
    _warned.add(name)


def _old_tool(title: str, annotations: ToolAnnotations) -> Callable[[Function], Function]:
    """Offer a function as a tool that warns, and says in its result, an object or a text, that it is deprecated."""

    def offered(function: Function) -> Function:
        name = function.__name__
        # v1.0 raised what went wrong with checkpoints, and answered everything else with an object.
        on_error = None if name.endswith("_checkpoint") else functools.partial(_answer, name)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            _warn(name)
            found = await function(*args, **kwargs)
            if isinstance(found, dict):
                return {**found, "deprecated": note_on(name)}
            return f"{found}\n\n{last_line(name)}"

        tool = Tool.from_function(
            functools.partial(call, place=None), title=f"{title} (deprecated)", annotations=annotations
        )
        _TEMPLATES.append(attrs.evolve(tool, on_error=on_error, resolve=False, deprecated=True))
        return call

    return offered


def _answer(name: str, error: MamaStructsError, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Show an error as v1.0 did; what no model can mend is raised."""
    if isinstance(error, SessionClosed | WrongLoop | NoSession):
        raise error
    _warn(name)
    what = "Validation error" if isinstance(error, InvalidArgument) else f"Failed to {name.replace('_', ' ')}"
    return {"success": False, "message": f"❌ {what}: {error}", "deprecated": note_on(name)}


# Which decisions are shown, and in which order


@attrs.frozen(kw_only=True)
class Recency:
    """How much newer ones are preferred: recency has a share of *weight*, and falls to *decay* after *scale* days."""

    weight: float = 0.3
    scale: float = 7.0
    decay: float = 0.5

    def score(self, relevance: float, age_days: float) -> float:
        """Return what orders the suggestions."""
        # This is the formula of the v1.0 documentation: `decay ** ((age / scale) ** 2)`.
        # The code of v1.0 differed slightly: it returned 0.486 instead of 0.5 at `scale` days.
        scales = max(age_days, 0.0) / self.scale
        # Multiplied, since a power that is too large raises. What is newer than now is as new as can be.
        recency = math.pow(self.decay, min(scales * scales, _FAR))
        return (1 - self.weight) * relevance + self.weight * recency


def standing(memories: Sequence[Memory], links: Iterable[Link]) -> list[Memory]:
    """Return those of some memories, newest first, that none of the others supersedes, directly or not."""
    replaced = holding(((link.from_id, link.to_id) for link in links), (memory.id for memory in memories))
    return [memory for memory in memories if memory.id not in replaced]


def ranked(hits: Iterable[Hit], recency: Recency | None, *, now: datetime) -> list[Hit]:
    """Return the hits that answer, best first: as a search orders them, or with their age weighed."""
    found = [hit for hit in hits if hit.relevance >= _MIN_RELEVANCE]
    if recency is None:
        return found
    scores = {
        hit.memory.id: recency.score(hit.relevance, (now - hit.memory.created_at).total_seconds() / _DAY)
        for hit in found
    }

    def key(hit: Hit) -> tuple[float, bool]:
        # As in every search, what was superseded stands behind what took its place.
        return min(scores[hit.memory.id], scores.get(hit.superseded_by or "", 1.0)), hit.superseded_by is None

    return sorted(found, key=key, reverse=True)


def _first_word(topic: str) -> str:
    found = _WORD.search(topic)
    return found[0].casefold() if found else ""


# Arguments


@contextlib.contextmanager
def _named(**names: str) -> Iterator[None]:
    """Let errors name an argument as the tool does, and not as what the tool calls."""
    try:
        yield
    except InvalidArgument as error:
        message = str(error.args[0])
        for own, shown in names.items():
            # Each message begins with the argument that it is about.
            if re.match(rf"{own}\b", message):
                raise InvalidArgument(f"{shown}{message.removeprefix(own)}", hint=error.hint) from error
        raise


def _outcome(word: str) -> tuple[str, Outcome | None]:
    """Return a word in lower case and what it means, None for the two that say nothing yet."""
    meanings = {known.lower(): outcome for known, outcome in _OUTCOMES.items()}
    if (given := word.strip().lower()) in meanings:
        return given, meanings[given]
    raise InvalidArgument(f"outcome must be one of {', '.join(_OUTCOMES)}, got {shown(word)}")


def _reason(failure_reason: str | None, limitation: str | None) -> tuple[str | None, str]:
    """Join both texts of v1.0, and return the result with the names of the fields that it contains."""
    why, but = (failure_reason or "").strip(), (limitation or "").strip()
    names = " and ".join(name for name, text in (("failure_reason", why), ("limitation", but)) if text)
    return f"{why}\nLimitation: {but}" if why and but else why or but or None, names or "outcome"


# The tools


@_old_tool("Save a decision", _ADDS)
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
    place: OldTools,
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
    reason, names = _reason(failure_reason, limitation)
    if result is None and reason is not None:
        raise InvalidArgument("failure_reason and limitation need an outcome", hint="give failure or partial")
    if result is Outcome.FAILED and reason is None:
        # v1.0 took a failure without a reason here. Its reasoning would be a wrong one: it says why it was chosen.
        reason = f"No reason was given why this failed: {shortened(decision)}"
    created_by: CreatedBy = "llm" if type == "assistant_insight" else "user"
    about = check_topic(topic)
    # A session and its forks hold the same one, so that two at once make one chain. Sessions that were opened apart do
    # not wait for each other: where both save at once, a chain may fork, which recalling and listing cope with.
    async with place.memories._shared.chaining:  # noqa: SLF001 - what all views of these memories have in common
        before = await place.newest_on(about)
        memory = await place.memories.save_decision(
            about,
            decision,
            reasoning,
            confidence=confidence,
            supersedes=before.id if before else None,
            created_by=created_by,
            # A model calls the tool, whoever it says has decided.
            origin="model",
        )
    message = f"✅ Decision saved successfully (ID: {memory.id})"
    if result is not None:
        try:
            with _named(reason=names):
                await place.memories.set_outcome(
                    memory.id, result, reason=reason, created_by=created_by, origin="model"
                )
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


@_old_tool("Recall a topic's decisions", _READS)
async def recall_decision(topic: str, *, place: OldTools) -> dict[str, Any]:
    """
    Deprecated, use search/by_topic. Show how a topic's decisions evolved, newest first.

    Args:
        topic: As it was saved; where nothing has it, topics that begin with the same word are shown

    """
    about = check_topic(topic)
    chain = await place.memories.by_topic(about)
    topics = [memory.topic for memory in chain if memory.type is MemoryType.DECISION]
    if about in topics:
        message = f"✅ {counted(len(topics), 'decision')} found for topic: {plainly(about)}"
        return {"success": True, "history": _history(about, chain, place.now), "message": message}
    hits = await place.memories.search(about, types=[MemoryType.DECISION], limit=_CANDIDATES)
    others = dict.fromkeys(hit.memory.topic for hit in hits if hit.memory.topic)
    first = _first_word(about)
    near = [one for one in others if first and one != about and _first_word(one) == first][:_SIMILAR_TOPICS]
    nothing = f"❌ No decisions found for topic: {plainly(about)}"
    histories = [_history(one, await place.memories.by_topic(one), place.now) for one in near]
    message = f"{nothing}; these topics begin with the same word: {', '.join(map(plainly, near))}" if near else nothing
    return {"success": True, "history": "\n\n".join(histories) or nothing, "message": message}


@_old_tool("Suggest past decisions", _READS)
async def suggest_decision(
    userQuestion: str,
    *,
    recencyWeight: Share | None = None,
    recencyScale: Days | None = None,
    recencyDecay: Decay | None = None,
    disableRecency: bool = False,
    place: OldTools,
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
    with _named(query="userQuestion"):
        hits = await place.memories.search(userQuestion, types=[MemoryType.DECISION], limit=_CANDIDATES)
    best = ranked(hits, recency, now=place.now)[:_SUGGESTED]
    if best:
        shown = "\n".join(_suggestion(number, hit, place.now) for number, hit in enumerate(best, 1))
        return {"success": True, "suggestions": shown, "message": f"💡 {counted(len(best), 'past decision')} found"}
    hint = " Ask in more words." if len(userQuestion.split()) < _SHORT_QUESTION else ""
    return {"success": True, "message": f"💡 No relevant past decisions found for this question.{hint}"}


@_old_tool("List decisions", _READS)
async def list_decisions(*, limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20, place: OldTools) -> dict[str, Any]:
    """
    Deprecated, use search/recent. List the newest decisions that still hold.

    Args:
        limit: Decisions at most

    """
    found = await place.newest_holding(limit)
    lines = [
        f"{number}. **{cut(memory.topic or '', _PREVIEW)}**: {cut(memory.content, _PREVIEW)} "
        f"· {_facts_in_line(memory, place.now)} · {memory.id}"
        for number, memory in enumerate(found, 1)
    ]
    nothing = "❌ No decisions found"
    message = f"✅ {counted(len(found), 'decision')}, newest first" if found else nothing
    return {"success": True, "list": "\n".join(lines) or nothing, "message": message}


@_old_tool("Update an outcome", _ADDS)
async def update_outcome(
    outcome: OutcomeWord,
    *,
    decisionId: str | None = None,
    topic: str | None = None,
    failure_reason: str | None = None,
    limitation: str | None = None,
    place: OldTools,
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
    reason, names = _reason(failure_reason, limitation)
    if result is not None:
        if result is Outcome.FAILED and reason is None:
            raise InvalidArgument("failure_reason is required when outcome is failure", hint="say why it failed")
        with _named(reason=names):
            await place.memories.set_outcome(before.id, result, reason=reason, created_by="llm")
    elif word == "superseded":
        beside = await place.memories._beside([before.id])  # noqa: SLF001 - what all tools show
        if before.id not in beside:
            raise MemoryNotFound(before.id)
        if beside[before.id].superseded_by is None:
            raise InvalidArgument(
                "outcome cannot say superseded before something took the decision's place",
                hint="save_decision with the same topic does that",
            )
    elif _facts(before).outcome is not None:
        raise InvalidArgument(
            "outcome cannot become pending again", hint="give success, failure or partial: the history is kept"
        )
    said = result.value if result else word
    return {"success": True, "decision_id": before.id, "outcome": said, "message": f"✅ Outcome of {before.id}: {said}"}


async def _decision_for(place: OldTools, decision_id: str, topic: str) -> Memory:
    if decision_id:
        with _named(id="decisionId"):
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


@_old_tool("Save a checkpoint", _ADDS)
async def save_checkpoint(
    summary: str, *, open_files: Sequence[str] = (), next_steps: str | list[str] = "", place: OldTools
) -> str:
    """
    Deprecated, use save/checkpoint. Save where the work stands.

    Args:
        summary: What was done and what holds
        open_files: Paths that are being worked on
        next_steps: What is to be done next, a step a line

    """
    steps = next_steps.splitlines() if isinstance(next_steps, str) else next_steps
    memory = await place.memories.save_checkpoint(
        summary, open_files=open_files, next_steps=[step.rstrip() for step in steps if step.strip()], created_by="llm"
    )
    return f"✅ Checkpoint saved (ID: {memory.id})\nSummary: {_told(memory.content)}"


@_old_tool("Load the checkpoint", _READS)
async def load_checkpoint(*, place: OldTools) -> str:
    """Deprecated, use load/checkpoint. Show where the work stood at the newest checkpoint."""
    memory = await place.memories.latest_checkpoint()
    if memory is None:
        return "ℹ️ No active checkpoint found."
    facts = memory.metadata if isinstance(memory.metadata, CheckpointMetadata) else CheckpointMetadata()
    lines = "\n".join(map(plainly, facts.next_steps))
    title = f"📍 Checkpoint of {memory.created_at:%Y-%m-%d %H:%M:%S} UTC (ID: {memory.id})"
    mark = _mark(memory)
    parts = [
        title if mark is None else f"{title} · {mark}",
        f"Summary: {_told(memory.content)}",
        f"Open files: {json.dumps([*map(plainly, facts.open_files)], ensure_ascii=False)}",
        f"Next steps:\n{lines}" if len(facts.next_steps) > 1 else f"Next steps: {lines or 'None'}",
    ]
    return "\n\n".join(parts)


# Markdown


def _told(text: str) -> str:
    """Return a memory's text, several lines as a quotation of which each line begins as one."""
    lines = text.strip().splitlines()
    return plainly(text) if len(lines) < 2 else "".join(f"\n> {plainly(one)}" for one in lines)  # noqa: PLR2004


def _facts(memory: Memory) -> DecisionMetadata:
    return memory.metadata if isinstance(memory.metadata, DecisionMetadata) else DecisionMetadata()


def _facts_in_line(memory: Memory, now: datetime) -> str:
    facts = _facts(memory)
    author = "👤 User" if facts.created_by == "user" else "🤖 Assistant"
    outcome = _SHOWN_OUTCOMES[facts.outcome]
    said = f"{author} · {outcome} · {facts.confidence:.0%} confidence · {age(memory.created_at, now)}"
    mark = _mark(memory)
    return said if mark is None else f"{said} · {mark}"


def _mark(memory: Memory) -> str | None:
    """Return the mark of a memory from a tool or an outside source, or None for others."""
    return mark_of(least_trusted([memory.origin, memory.trust]))


def _history(topic: str, chain: Chain, now: datetime) -> str:
    """Return a topic's decisions newest first, each once with reasoning and outcome."""
    ends = {memory.id for memory in standing(chain.memories, chain.links)}
    decisions = [memory for memory in chain if memory.type is MemoryType.DECISION]
    parts = [f"# Decisions: {cut(topic, _PREVIEW)}"]
    for number, memory in enumerate(decisions, 1):
        facts = _facts(memory)
        other = "" if memory.topic == topic else f" · topic {cut(memory.topic or '', _PREVIEW)}"
        parts += [
            f"## {number}. {memory.id} ({'holds' if memory.id in ends else 'superseded'})",
            f"{_facts_in_line(memory, now)}{other}",
            f"Decision: {_told(memory.content)}",
            f"Reasoning: {_told(facts.reasoning) or 'none was given'}",
            *([f"Outcome: {_told(facts.outcome_reason)}"] if facts.outcome_reason else []),
        ]
    return "\n\n".join(parts)


def _suggestion(number: int, hit: Hit, now: datetime) -> str:
    memory, facts = hit.memory, _facts(hit.memory)
    topic, decision = cut(memory.topic or "", _PREVIEW), cut(memory.content, _REASONING)
    replaced = f" · superseded by {hit.superseded_by}" if hit.superseded_by else ""
    lines = [
        f"{number}. **{topic}** (relevance {hit.relevance:.2f}): {decision}",
        f"   {_facts_in_line(memory, now)} · {memory.id}{replaced}",
        *([f"   Reasoning: {cut(facts.reasoning, _REASONING)}"] if facts.reasoning else []),
        *([f"   Outcome: {cut(facts.outcome_reason, _REASONING)}"] if facts.outcome_reason else []),
    ]
    return "\n".join(lines)
