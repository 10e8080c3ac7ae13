"""The seven deprecated tools of v1.0, on the current memory store; removed in 2.0."""

# Models read these docstrings and names, so the docstrings omit `place`.
# v1.0 defined the camelCase parameters and the information sign.
# ruff: noqa: D417, N803, RUF001

from __future__ import annotations

import functools
import inspect
import json
import math
import re
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import attrs
import msgspec

from mama_structs._internal.prompt_quoting import neutralize, neutralize_and_truncate
from mama_structs._internal.reprs import format_count
from mama_structs.errors import (
    InvalidArgument,
    MamaStructsError,
    MemoryNotFound,
    NoSession,
    SessionClosed,
    WrongLoop,
    repr_short,
)
from mama_structs.memory.graph.results import Chain, Hit, shorten_to_line
from mama_structs.memory.graph.traversal import find_superseded
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import (
    CheckpointMetadata,
    CreatedBy,
    DecisionMetadata,
    Link,
    Memory,
    MemoryType,
    Outcome,
)
from mama_structs.memory.types.requests import check_topic
from mama_structs.provenance import get_mark, least_trusted
from mama_structs.tools.memory_results import format_age
from mama_structs.tools.tool import Tool, ToolAnnotations, bind_template, rename_arguments_in_errors
from mama_structs.tools.wire_names import get_deprecation_line, get_deprecation_note

AsyncFunction = Callable[..., Coroutine[Any, Any, Any]]

# Maps the outcome words of v1.0 to outcomes. Two of the words set no outcome.
OUTCOMES_BY_WORD: Final[Mapping[str, Outcome | None]] = {
    "pending": None,
    "success": Outcome.SUCCESS,
    "failure": Outcome.FAILED,
    "partial": Outcome.PARTIAL,
    "superseded": None,
    "SUCCESS": Outcome.SUCCESS,
    "FAILED": Outcome.FAILED,
    "PARTIAL": Outcome.PARTIAL,
}
OUTCOME_LABELS: Final[Mapping[Outcome | None, str]] = {
    None: "⏳ Pending",
    Outcome.SUCCESS: "✅ SUCCESS",
    Outcome.FAILED: "❌ FAILED",
    Outcome.PARTIAL: "⚠️ PARTIAL",
}
# Accept any text and ignore case, because models often confuse the upper and lower case of these words.
OutcomeWord = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [*OUTCOMES_BY_WORD]})]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
Days = Annotated[float, msgspec.Meta(gt=0)]
Decay = Annotated[float, msgspec.Meta(gt=0, lt=1)]

MAX_SUGGESTIONS: Final = 5
MAX_CANDIDATES: Final = 20
MAX_SIMILAR_TOPICS: Final = 3
MIN_QUESTION_WORDS: Final = 3
# Hits with a lower relevance count as not found, see `Hit`.
MIN_RELEVANCE: Final = 0.3
# Maximum length of texts in lists, as in v1.0.
MAX_PREVIEW_CHARS: Final = 60
MAX_REASONING_CHARS: Final = 300
TRUST_CONTEXT_NOTE: Final = "trust_context was not kept: say in the reasoning what the decision rests on"
WORD_PATTERN: Final = re.compile(r"[^\W_]+")
DAY_SECONDS: Final = 86400
# Upper bound for the squared ratio of age and scale. Beyond it, the recency is practically 0.
MAX_SQUARED_SCALES: Final = 1e6
# Stack frames of these packages are skipped to find the host's calling code.
SKIPPED_PACKAGES: Final = frozenset({"mama_structs", "asyncio"})

READ_ONLY_ANNOTATIONS: Final = ToolAnnotations(read_only=True, open_world=False)
# Annotations of tools that add data and retain earlier data.
ADDING_ANNOTATIONS: Final = ToolAnnotations(destructive=False, open_world=False)

_TEMPLATES: Final[list[Tool]] = []
_warned_names: set[str] = set()


@attrs.frozen(kw_only=True, eq=False)
class DeprecatedTools:
    """The memory store of the deprecated tools, and a clock in seconds since 1970, which they need for ages."""

    memories: MemoryStore
    clock: Callable[[], float] = time.time

    @property
    def now(self) -> datetime:
        """The current time in UTC."""
        return datetime.fromtimestamp(self.clock(), UTC)

    async def find_current_decision(self, topic: str) -> Memory | None:
        """Return the newest decision of a topic that is current and can be changed, or None."""
        chain = await self.memories.history(topic=topic)
        found = [
            one for one in drop_superseded(chain.memories, chain.links) if one.namespace == self.memories.namespace
        ]
        return next((one for one in found if one.type is MemoryType.DECISION and one.topic == topic), None)

    async def list_current_decisions(self, limit: int) -> list[Memory]:
        """Return the newest decisions that were not superseded, newest first."""
        requested = 2 * limit
        while True:
            newest = await self.memories.list(limit=requested, type=[MemoryType.DECISION])
            # Use this internal method, as all memory tools of the package do.
            extras = await self.memories._get_annotations(memory.id for memory in newest)
            # A memory may have been deleted between the two reads.
            found = [one for one in newest if one.id in extras and extras[one.id].superseded_by is None]
            if len(found) >= limit or len(newest) < requested:
                return found[:limit]
            requested *= 4


def make_deprecated_tools(memories: MemoryStore, *, clock: Callable[[], float] = time.time) -> list[Tool]:
    """Return the seven tools of v1.0, in its order, for a store."""
    deprecated = DeprecatedTools(memories=memories, clock=clock)
    return [bind_template(template, place=deprecated) for template in _TEMPLATES]


# Creation of tools with a deprecation warning: for developers once per process, for models in each result


def reset_warnings() -> None:
    """Forget which warnings were shown, as in a new process. For tests."""
    _warned_names.clear()


def _warn_once(name: str) -> None:
    """Warn the developer once per process. Models get the deprecation note in each result."""
    if name in _warned_names:
        return
    # Report the warning at the host's line: by default, Python only shows warnings of the main script.
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in SKIPPED_PACKAGES:
        level, frame = level + 1, frame.f_back
    # If the host turns warnings into errors, raise before the tool runs, in each call.
    warnings.warn(f"the tool {name} is deprecated: {get_deprecation_note(name)}", DeprecationWarning, stacklevel=level)
    _warned_names.add(name)


def _register_tool(title: str, annotations: ToolAnnotations) -> Callable[[AsyncFunction], AsyncFunction]:
    """Return a decorator that registers a tool with deprecation warning and note."""

    def offered(function: AsyncFunction) -> AsyncFunction:
        name = function.__name__
        # As in v1.0, checkpoint tools raise errors and all other tools return them as an object.
        on_error = None if name.endswith("_checkpoint") else functools.partial(_render_error, name)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            _warn_once(name)
            found = await function(*args, **kwargs)
            if isinstance(found, dict):
                return {**found, "deprecated": get_deprecation_note(name)}
            return f"{found}\n\n{get_deprecation_line(name)}"

        tool = Tool.from_function(
            functools.partial(call, place=None), title=f"{title} (deprecated)", annotations=annotations
        )
        _TEMPLATES.append(attrs.evolve(tool, on_error=on_error, resolves_handles=False, deprecated=True))
        return call

    return offered


def _render_error(name: str, error: MamaStructsError, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error in the format of v1.0. Errors that a model cannot fix are raised."""
    if isinstance(error, SessionClosed | WrongLoop | NoSession):
        raise error
    _warn_once(name)
    what = "Validation error" if isinstance(error, InvalidArgument) else f"Failed to {name.replace('_', ' ')}"
    return {"success": False, "message": f"❌ {what}: {error}", "deprecated": get_deprecation_note(name)}


# Selection and order of decisions


@attrs.frozen(kw_only=True)
class Recency:
    """Preference for newer decisions: *weight* is the share of recency in a score, *scale* its decay time in days."""

    weight: float = 0.3
    scale: float = 7.0
    decay: float = 0.5

    def score(self, relevance: float, age_days: float) -> float:
        """Return the score by which suggestions are sorted: a mix of relevance and recency."""
        # This is the formula in the documentation of v1.0. The code of v1.0 returned 0.486 instead of 0.5 at the scale.
        scales = max(age_days, 0.0) / self.scale
        # Square by multiplication, because a large power would raise OverflowError. Future times count as now.
        recency = math.pow(self.decay, min(scales * scales, MAX_SQUARED_SCALES))
        return (1 - self.weight) * relevance + self.weight * recency


def drop_superseded(memories: Sequence[Memory], links: Iterable[Link]) -> list[Memory]:
    """
    Return the memories that are not superseded, directly or indirectly.

    The order is unchanged.
    """
    replaced = find_superseded(((link.from_id, link.to_id) for link in links), (memory.id for memory in memories))
    return [memory for memory in memories if memory.id not in replaced]


def rank_hits(hits: Iterable[Hit], recency: Recency | None, *, now: datetime) -> list[Hit]:
    """
    Return hits above the minimum relevance, best first.

    With *recency*, newer ones rank higher.
    """
    found = [hit for hit in hits if hit.relevance >= MIN_RELEVANCE]
    if recency is None:
        return found
    scores = {
        hit.memory.id: recency.score(hit.relevance, (now - hit.memory.created_at).total_seconds() / DAY_SECONDS)
        for hit in found
    }

    def key(hit: Hit) -> tuple[float, bool]:
        # Rank a superseded decision below its successor, as every search does.
        return min(scores[hit.memory.id], scores.get(hit.superseded_by or "", 1.0)), hit.superseded_by is None

    return sorted(found, key=key, reverse=True)


def _get_first_word(topic: str) -> str:
    found = WORD_PATTERN.search(topic)
    return found[0].casefold() if found else ""


# Arguments


def _parse_outcome(word: str) -> tuple[str, Outcome | None]:
    """Return an outcome word in lower case, and its outcome or None. Raise for unknown words."""
    meanings = {known.lower(): outcome for known, outcome in OUTCOMES_BY_WORD.items()}
    if (word_key := word.strip().lower()) in meanings:
        return word_key, meanings[word_key]
    raise InvalidArgument(f"outcome must be one of {', '.join(OUTCOMES_BY_WORD)}, got {repr_short(word)}")


def _merge_reasons(failure_reason: str | None, limitation: str | None) -> tuple[str | None, str]:
    """
    Merge the two reasons of v1.0 into one text.

    Also return the names of the passed arguments.
    """
    why, but = (failure_reason or "").strip(), (limitation or "").strip()
    names = " and ".join(name for name, text in (("failure_reason", why), ("limitation", but)) if text)
    return f"{why}\nLimitation: {but}" if why and but else why or but or None, names or "outcome"


# The tools


@_register_tool("Save a decision", ADDING_ANNOTATIONS)
async def save_decision(
    topic: str,
    decision: str,
    reasoning: str,
    *,
    confidence: Ratio = 0.5,
    type: Literal["user_decision", "assistant_insight"] = "user_decision",  # noqa: A002 - as v1.0 called it
    outcome: OutcomeWord | None = None,
    failure_reason: str | None = None,
    limitation: str | None = None,
    trust_context: dict[str, Any] | None = None,
    place: DeprecatedTools,
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
    result = None if outcome is None else _parse_outcome(outcome)[1]
    reason, names = _merge_reasons(failure_reason, limitation)
    if result is None and reason is not None:
        raise InvalidArgument("failure_reason and limitation need an outcome", hint="give failure or partial")
    if result is Outcome.FAILED and reason is None:
        # v1.0 accepts failures without a reason. The reasoning is no substitute, because it explains the choice.
        reason = f"No reason was given why this failed: {shorten_to_line(decision)}"
    created_by: CreatedBy = "llm" if type == "assistant_insight" else "user"
    about = check_topic(topic)
    # A session and its forks share this lock, so that concurrent saves extend one chain.
    # Other sessions have their own lock, so their saves may fork the chain, which all reading tools support.
    async with place.memories._shared.chain_lock:
        before = await place.find_current_decision(about)
        with rename_arguments_in_errors(content="decision"):
            memory = await place.memories.save_decision(
                decision,
                topic=about,
                reasoning=reasoning,
                confidence=confidence,
                supersedes=before,
                created_by=created_by,
                # A model wrote the text, even if it names the user as the author.
                origin="model",
            )
    message = f"✅ Decision saved successfully (ID: {memory.id})"
    if result is not None:
        try:
            with rename_arguments_in_errors(reason=names):
                await place.memories.set_outcome(
                    memory.id, result, reason=reason, created_by=created_by, origin="model"
                )
        except MamaStructsError as error:
            # Report success anyway: if the model saved the decision again, the new one would supersede this one.
            message = f"{message}, but not its outcome: {error}"
    return {
        "success": True,
        "decision_id": memory.id,
        "topic": about,
        "message": message,
        "recall_command": f"To recall: recall_decision with topic {json.dumps(about, ensure_ascii=False)}",
        **({} if trust_context is None else {"note": TRUST_CONTEXT_NOTE}),
    }


@_register_tool("Recall a topic's decisions", READ_ONLY_ANNOTATIONS)
async def recall_decision(topic: str, *, place: DeprecatedTools) -> dict[str, Any]:
    """
    Deprecated, use search/by_topic. Show how a topic's decisions evolved, newest first.

    Args:
        topic: As it was saved; where nothing has it, topics that begin with the same word are shown

    """
    about = check_topic(topic)
    chain = await place.memories.history(topic=about)
    topics = [memory.topic for memory in chain if memory.type is MemoryType.DECISION]
    if about in topics:
        message = f"✅ {format_count(len(topics), 'decision')} found for topic: {neutralize(about)}"
        return {"success": True, "history": _render_history(about, chain, place.now), "message": message}
    hits = await place.memories.search(about, type=[MemoryType.DECISION], limit=MAX_CANDIDATES)
    others = dict.fromkeys(hit.memory.topic for hit in hits if hit.memory.topic)
    first = _get_first_word(about)
    similar_topics = [one for one in others if first and one != about and _get_first_word(one) == first][
        :MAX_SIMILAR_TOPICS
    ]
    nothing = f"❌ No decisions found for topic: {neutralize(about)}"
    histories = [_render_history(one, await place.memories.history(topic=one), place.now) for one in similar_topics]
    message = (
        f"{nothing}; these topics begin with the same word: {', '.join(map(neutralize, similar_topics))}"
        if similar_topics
        else nothing
    )
    return {"success": True, "history": "\n\n".join(histories) or nothing, "message": message}


@_register_tool("Suggest past decisions", READ_ONLY_ANNOTATIONS)
async def suggest_decision(
    userQuestion: str,
    *,
    recencyWeight: Ratio | None = None,
    recencyScale: Days | None = None,
    recencyDecay: Decay | None = None,
    disableRecency: bool = False,
    place: DeprecatedTools,
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
    recency_options = {"weight": recencyWeight, "scale": recencyScale, "decay": recencyDecay}
    given_options = {name: value for name, value in recency_options.items() if value is not None}
    recency = Recency(weight=0.0) if disableRecency else Recency(**given_options) if given_options else None
    with rename_arguments_in_errors(query="userQuestion"):
        hits = await place.memories.search(userQuestion, type=[MemoryType.DECISION], limit=MAX_CANDIDATES)
    best = rank_hits(hits, recency, now=place.now)[:MAX_SUGGESTIONS]
    if best:
        suggestions = "\n".join(_render_suggestion(number, hit, place.now) for number, hit in enumerate(best, 1))
        return {
            "success": True,
            "suggestions": suggestions,
            "message": f"💡 {format_count(len(best), 'past decision')} found",
        }
    hint = " Ask in more words." if len(userQuestion.split()) < MIN_QUESTION_WORDS else ""
    return {"success": True, "message": f"💡 No relevant past decisions found for this question.{hint}"}


@_register_tool("List decisions", READ_ONLY_ANNOTATIONS)
async def list_decisions(
    *, limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20, place: DeprecatedTools
) -> dict[str, Any]:
    """
    Deprecated, use search/recent. List the newest decisions that still hold.

    Args:
        limit: Decisions at most

    """
    found = await place.list_current_decisions(limit)
    lines = [
        f"{number}. **{neutralize_and_truncate(memory.topic or '', MAX_PREVIEW_CHARS)}**: "
        f"{neutralize_and_truncate(memory.content, MAX_PREVIEW_CHARS)} "
        f"· {_render_metadata(memory, place.now)} · {memory.id}"
        for number, memory in enumerate(found, 1)
    ]
    nothing = "❌ No decisions found"
    message = f"✅ {format_count(len(found), 'decision')}, newest first" if found else nothing
    return {"success": True, "list": "\n".join(lines) or nothing, "message": message}


@_register_tool("Update an outcome", ADDING_ANNOTATIONS)
async def update_outcome(
    outcome: OutcomeWord,
    *,
    decisionId: str | None = None,
    topic: str | None = None,
    failure_reason: str | None = None,
    limitation: str | None = None,
    place: DeprecatedTools,
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
    word, result = _parse_outcome(outcome)
    before = await _find_decision(place, (decisionId or "").strip(), (topic or "").strip())
    reason, names = _merge_reasons(failure_reason, limitation)
    if result is not None:
        if result is Outcome.FAILED and reason is None:
            raise InvalidArgument("failure_reason is required when outcome is failure", hint="say why it failed")
        with rename_arguments_in_errors(reason=names):
            await place.memories.set_outcome(before.id, result, reason=reason, created_by="llm")
    elif word == "superseded":
        extras = await place.memories._get_annotations([before.id])
        if before.id not in extras:
            raise MemoryNotFound(before.id)
        if extras[before.id].superseded_by is None:
            raise InvalidArgument(
                "outcome cannot say superseded before something took the decision's place",
                hint="save_decision with the same topic does that",
            )
    elif _get_metadata(before).outcome is not None:
        raise InvalidArgument(
            "outcome cannot become pending again", hint="give success, failure or partial: the history is kept"
        )
    outcome_word = result.value if result else word
    return {
        "success": True,
        "decision_id": before.id,
        "outcome": outcome_word,
        "message": f"✅ Outcome of {before.id}: {outcome_word}",
    }


async def _find_decision(place: DeprecatedTools, decision_id: str, topic: str) -> Memory:
    if decision_id:
        with rename_arguments_in_errors(memory="decisionId"):
            memory = await place.memories.get(decision_id)
        if memory.type is not MemoryType.DECISION:
            raise InvalidArgument(f"decisionId must be a decision's, and is that of a memory of type {memory.type}")
        if topic and check_topic(topic) != memory.topic:
            raise InvalidArgument("topic is not that of the decision", hint="give decisionId or topic, not both")
        return memory
    if not topic:
        raise InvalidArgument("decisionId or topic is required", hint="list_decisions shows the ids")
    found = await place.find_current_decision(check_topic(topic))
    if found is None:
        raise InvalidArgument("no decision that still holds has this topic", hint="list_decisions shows the topics")
    return found


@_register_tool("Save a checkpoint", ADDING_ANNOTATIONS)
async def save_checkpoint(
    summary: str, *, open_files: Sequence[str] = (), next_steps: str | list[str] = "", place: DeprecatedTools
) -> str:
    """
    Deprecated, use save/checkpoint. Save where the work stands.

    Args:
        summary: What was done and what holds
        open_files: Paths that are being worked on
        next_steps: What is to be done next, a step a line

    """
    steps = next_steps.splitlines() if isinstance(next_steps, str) else next_steps
    steps = [step.rstrip() for step in steps if step.strip()]
    with rename_arguments_in_errors(content="summary"):
        memory = await place.memories.save_checkpoint(
            summary, open_files=open_files, next_steps=steps, created_by="llm"
        )
    return f"✅ Checkpoint saved (ID: {memory.id})\nSummary: {_render_text(memory.content)}"


@_register_tool("Load the checkpoint", READ_ONLY_ANNOTATIONS)
async def load_checkpoint(*, place: DeprecatedTools) -> str:
    """Deprecated, use load/checkpoint. Show where the work stood at the newest checkpoint."""
    memory = await place.memories.latest_checkpoint()
    if memory is None:
        return "ℹ️ No active checkpoint found."
    facts = memory.metadata if isinstance(memory.metadata, CheckpointMetadata) else CheckpointMetadata()
    lines = "\n".join(map(neutralize, facts.next_steps))
    title = f"📍 Checkpoint of {memory.created_at:%Y-%m-%d %H:%M:%S} UTC (ID: {memory.id})"
    mark = _get_mark(memory)
    parts = [
        title if mark is None else f"{title} · {mark}",
        f"Summary: {_render_text(memory.content)}",
        f"Open files: {json.dumps([*map(neutralize, facts.open_files)], ensure_ascii=False)}",
        f"Next steps:\n{lines}" if len(facts.next_steps) > 1 else f"Next steps: {lines or 'None'}",
    ]
    return "\n\n".join(parts)


# Markdown


def _render_text(text: str) -> str:
    """Render a memory's text. Several lines become a Markdown quotation."""
    lines = text.strip().splitlines()
    return neutralize(text) if len(lines) < 2 else "".join(f"\n> {neutralize(one)}" for one in lines)  # noqa: PLR2004


def _get_metadata(memory: Memory) -> DecisionMetadata:
    return memory.metadata if isinstance(memory.metadata, DecisionMetadata) else DecisionMetadata()


def _render_metadata(memory: Memory, now: datetime) -> str:
    facts = _get_metadata(memory)
    author = "👤 User" if facts.created_by == "user" else "🤖 Assistant"
    outcome = OUTCOME_LABELS[facts.outcome]
    line = f"{author} · {outcome} · {facts.confidence:.0%} confidence · {format_age(memory.created_at, now)}"
    mark = _get_mark(memory)
    return line if mark is None else f"{line} · {mark}"


def _get_mark(memory: Memory) -> str | None:
    """Return a mark for memories from a tool or an outside source, or None for others."""
    return get_mark(least_trusted([memory.origin, memory.trust]))


def _render_history(topic: str, chain: Chain, now: datetime) -> str:
    """Render all decisions of a topic, newest first, with reasoning and outcome."""
    ends = {memory.id for memory in drop_superseded(chain.memories, chain.links)}
    decisions = [memory for memory in chain if memory.type is MemoryType.DECISION]
    parts = [f"# Decisions: {neutralize_and_truncate(topic, MAX_PREVIEW_CHARS)}"]
    for number, memory in enumerate(decisions, 1):
        facts = _get_metadata(memory)
        other = (
            ""
            if memory.topic == topic
            else f" · topic {neutralize_and_truncate(memory.topic or '', MAX_PREVIEW_CHARS)}"
        )
        parts += [
            f"## {number}. {memory.id} ({'holds' if memory.id in ends else 'superseded'})",
            f"{_render_metadata(memory, now)}{other}",
            f"Decision: {_render_text(memory.content)}",
            f"Reasoning: {_render_text(facts.reasoning) or 'none was given'}",
            *([f"Outcome: {_render_text(facts.outcome_reason)}"] if facts.outcome_reason else []),
        ]
    return "\n\n".join(parts)


def _render_suggestion(number: int, hit: Hit, now: datetime) -> str:
    memory, facts = hit.memory, _get_metadata(hit.memory)
    topic, decision = (
        neutralize_and_truncate(memory.topic or "", MAX_PREVIEW_CHARS),
        neutralize_and_truncate(memory.content, MAX_REASONING_CHARS),
    )
    replaced = f" · superseded by {hit.superseded_by}" if hit.superseded_by else ""
    lines = [
        f"{number}. **{topic}** (relevance {hit.relevance:.2f}): {decision}",
        f"   {_render_metadata(memory, now)} · {memory.id}{replaced}",
        *(
            [f"   Reasoning: {neutralize_and_truncate(facts.reasoning, MAX_REASONING_CHARS)}"]
            if facts.reasoning
            else []
        ),
        *(
            [f"   Outcome: {neutralize_and_truncate(facts.outcome_reason, MAX_REASONING_CHARS)}"]
            if facts.outcome_reason
            else []
        ),
    ]
    return "\n".join(lines)
