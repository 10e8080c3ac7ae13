"""
The tools with which a model uses memories, in the order of DESIGN section 7.

The number of store reads per answer is constant, independent of the number of memories.
"""
# ruff: noqa: D417 - these docstrings are for models, which never see the store

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar

import attrs
import msgspec
from msgspec import Meta

from mama_structs.errors import InvalidArgument, MamaStructsError, MemoryNotFound, shown
from mama_structs.memory.graph.traversal import Beside
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import SUPERSEDES, LinkType, Memory, MemoryType, is_id, parse_kept
from mama_structs.memory.types.relationships import MAX_RELATIONSHIP
from mama_structs.memory.types.requests import MAX_ID, MAX_ITEM, MAX_ITEMS, MAX_LINKS, MAX_TOPIC, check_id
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.tools import memory_results as results
from mama_structs.tools.tool import Tool, ToolAnnotations, bound
from mama_structs.tools.wire_names import MEMORY_TOOLS

# Parameter types with bounds and descriptions for models

_MAX_LIMIT: Final = 50
_MAX_QUERY: Final = 10_000
_MAX_TIME: Final = 64
# Length of "2026-03-01". A model that writes words instead gets an error that explains the format.
_MIN_TIME: Final = 10
Text = Annotated[str, Meta(min_length=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Topic = Annotated[str, Meta(min_length=1, max_length=MAX_TOPIC)]
Question = Annotated[str, Meta(min_length=1, max_length=_MAX_QUERY)]
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
Ids = Annotated[Sequence[Id], Meta(max_length=MAX_LINKS)]
Item = Annotated[str, Meta(min_length=1, max_length=MAX_ITEM)]
Items = Annotated[Sequence[Item], Meta(max_length=MAX_ITEMS)]
Limit = Annotated[int, Meta(ge=1, le=_MAX_LIMIT)]
Kinds = Annotated[Sequence[Literal["decision", "checkpoint", "insight", "context"]], Meta(min_length=1)]
Time = Annotated[str, Meta(max_length=_MAX_TIME, extra_json_schema={"minLength": _MIN_TIME})]
Result = Literal["SUCCESS", "FAILED", "PARTIAL"]


class LinkTo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A link that a model requests, from the new memory to an existing one.

    *to_id* is an alias of *id*.
    """

    id: Id | None = None
    relationship: Annotated[str, Meta(min_length=1, max_length=MAX_RELATIONSHIP)] = "related to"
    to_id: Id | None = None
    confidence: Share = 0.8
    reason: Item | None = None
    tags: Items = ()


Links = Annotated[Sequence[Id | LinkTo], Meta(max_length=MAX_LINKS)]
# The schema for models. Other fields of `LinkTo` are accepted, too.
_NOTHING: Final[tuple[str, Any]] = ("default", [])
_LINKS_SHOWN: Final[Mapping[str, Any]] = {
    "type": "array",
    "items": {
        "anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "relationship": {"type": "string", "description": "Such as implements, depends on, contradicts"},
                },
                "required": ["id"],
                "additionalProperties": False,
            },
        ]
    },
}
# Constraints that are omitted from the schema to save tokens. Models rarely violate them, and the error explains them.
_UNSAID: Final = frozenset({"minLength", "maxLength", "minItems", "maxItems"})


def _links_asked(links: Sequence[str | LinkTo]) -> list[dict[str, Any]]:
    """Return a model's links as the *links* of a `MemoryStore` method."""
    return [_link_asked(place, link) for place, link in enumerate(links)]


def _link_asked(place: int, link: str | LinkTo) -> dict[str, Any]:
    asked = msgspec.structs.asdict(LinkTo(id=link) if isinstance(link, str) else link)
    known = {asked.pop("id"), asked["to_id"]} - {None}
    if len(known) != 1:
        raise InvalidArgument(f"links[{place}] must have one id", hint="such as {id, relationship}, or the id alone")
    return {**asked, "to_id": known.pop()}


def _moment(name: str, text: str) -> datetime:
    """Parse a time from a model; without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(
            f"{name} must be a date or time in ISO 8601, such as 2026-03-01 or 2026-03-01T09:30:00Z, got {shown(text)}",
            hint="work out the date; for words such as 'last week' use search/by_context, which understands them",
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# A lower relevance counts as not found (DESIGN section 6).
_LOW: Final = 0.3
_NEAR_TOPICS: Final = 5
_TOPICS_LOOKED_AT: Final = 500

# Temporal links are omitted: a similar time of saving is not informative.
_TELLING: Final = frozenset(LinkType) - {LinkType.TEMPORAL}

_T = TypeVar("_T")


async def _beside(memories: MemoryStore, *ids: str) -> Mapping[str, Beside]:
    """
    Return successors and links of memories by id.

    Best effort: empty if they cannot be read.
    """
    try:
        return await memories._beside(ids)  # noqa: SLF001 - internal API for these answers
    except MamaStructsError:
        return {}


async def _beside_one(memories: MemoryStore, memory: Memory) -> Beside:
    nothing = Beside(memory=memory, links=(), superseded_by=None, outcome_of=None)
    return (await _beside(memories, memory.id)).get(memory.id, nothing)


# Saving


async def save_decision(
    topic: Topic,
    decision: Text,
    reasoning: str,
    *,
    confidence: Share = 0.7,
    supersedes: Id | None = None,
    implements: Ids = (),
    links: Links = (),
    evidence: Items = (),
    memories: MemoryStore,
) -> results.Saved:
    """
    Save a decision with its reasons, for later conversations.

    Use it when later work has to respect a choice, rule or design; search before.
    Don't use it for what was learnt (save/insight), where the work stands (save/checkpoint), or to replace a decision
    (evolve/supersede).

    Args:
        topic: A word or two, such as auth_strategy; the same for what belongs together
        decision: What was decided, in a sentence that stands alone
        reasoning: Why, and what was turned down
        confidence: How sure it is
        links: Memories that it belongs to
        evidence: What it rests on: ref:<id>, fd:<number>, ids or addresses

    """
    asked = _links_asked(links)
    for position, item in enumerate(evidence):
        # The store's internal format of evidence. No model has seen it, so its hash is made up.
        if parse_kept(item.strip()) is not None:
            raise InvalidArgument(
                f"evidence[{position}] must not name a text by its hash",
                hint="give the handle alone, such as ref:name or fd:1, or the id of the memory that rests on it",
            )
    async with _naming_the_decision(memories, "supersedes", supersedes):
        memory = await memories.save_decision(
            topic,
            decision,
            reasoning,
            confidence=confidence,
            supersedes=supersedes,
            implements=implements,
            links=asked,
            evidence=evidence,
            on_duplicate="merge",
            created_by="llm",
        )
    return results.render_saved(memory)


async def save_checkpoint(
    summary: Text, *, open_files: Items = (), next_steps: Items = (), implements: Ids = (), memories: MemoryStore
) -> results.Saved:
    """
    Save where the work stands, for load/checkpoint.

    Use it at the end of a piece of work, before a break, or when the user will go on later.
    Don't use it for a choice (save/decision) or what was learnt (save/insight).

    Args:
        summary: What was done, what holds, what is open
        open_files: Paths that are being worked on
        next_steps: What to do next, a step an item
        implements: Ids of decisions that this carries out

    """
    memory = await memories.save_checkpoint(
        summary, open_files=open_files, next_steps=next_steps, implements=implements, created_by="llm"
    )
    return results.render_saved(memory)


async def save_insight(
    content: Text,
    *,
    category: Item | None = None,
    tags: Items = (),
    source: Item | None = None,
    links: Links = (),
    memories: MemoryStore,
) -> results.Saved:
    """
    Save what was learnt and is worth knowing later.

    Use it for a fact, cause, pattern or preference that was found out.
    Don't use it for a choice (save/decision), or how one turned out (evolve/outcome).

    Args:
        content: What was learnt, in a sentence that stands alone
        tags: Words to group by
        source: Where it comes from: a file, address, person
        links: Memories that it belongs to

    """
    memory = await memories.save_insight(
        content,
        category=category,
        tags=tags,
        source=source,
        links=_links_asked(links),
        on_duplicate="merge",
        created_by="llm",
    )
    return results.render_saved(memory)


@contextlib.asynccontextmanager
async def _naming_the_decision(memories: MemoryStore, name: str, memory_id: str | None) -> AsyncIterator[None]:
    """Explain in an error that the id is not a decision's, and which tools return decisions."""
    try:
        yield
    except InvalidArgument:
        known = {} if memory_id is None else await _beside(memories, memory_id)
        found = next(iter(known.values()), None)
        if found is None or found.memory.type is MemoryType.DECISION:
            raise
        raise InvalidArgument(
            f"{name} must be the id of a decision, and {memory_id!r:.200} is of the type {found.memory.type.value}",
            hint="search/by_topic gives the decisions of a topic, search/by_context with types=['decision'] any others",
        ) from None


# Loading


async def load_checkpoint(*, memories: MemoryStore, refs: RefStore) -> results.LastCheckpoint:
    """
    Load where the work stood last: summary, open files, next steps.

    Use it first when the user goes on with earlier work ("continue", "where were we?").
    Don't use it for why something is as it is (search/by_context).
    """
    memory = await memories.latest_checkpoint()
    if memory is None:
        return {"note": "There is no checkpoint yet: search/recent shows what else was saved."}
    return results.render_checkpoint(memory, (await _beside_one(memories, memory)).links, refs)


async def load_context(id: Id, *, memories: MemoryStore, refs: RefStore) -> results.WithContext:  # noqa: A002 - name in DESIGN
    """
    Load one memory whole: how it evolved, what is linked to it, what it rests on.

    Use it when a search gave an id and too little.
    Don't use it to search (search/by_context), or for the last checkpoint (load/checkpoint).

    Args:
        id: As another tool gave it

    """
    found = await memories.load_context(id, link_types=_TELLING)
    known = await _beside_one(memories, found.memory)
    evidence = await memories.evidence_of(found.memory.id)
    return results.render_context(found, known, evidence, memories=memories, refs=refs)


# Searching


async def by_topic(topic: Topic, *, memories: MemoryStore) -> results.ByTopic:
    """
    Show how what was decided on one topic evolved, newest first, with outcomes and why.

    Use it when you know the topic: what holds, what was tried before, why it was left.
    Don't use it for a question in words (search/by_context), or an id (load/context).

    Args:
        topic: Exactly as it was saved

    """
    chain = await memories.by_topic(topic, link_types=_TELLING)
    near = [] if chain else await _near_topics(memories, topic)
    return results.render_topic(topic, chain, near, memories)


async def _near_topics(memories: MemoryStore, topic: str) -> list[str]:
    """Return existing topics with a similar spelling or meaning."""
    # Spelling finds most of them. Semantic search finds other languages and synonyms.
    try:
        recent = await memories.recent(limit=_TOPICS_LOOKED_AT, types=[MemoryType.DECISION])
        hits = await memories.search(topic, types=[MemoryType.DECISION], limit=_NEAR_TOPICS)
    except MamaStructsError:
        return []
    by_look: dict[str, str] = {}
    for memory in (*recent, *(hit.memory for hit in hits)):
        if memory.topic is not None:
            by_look.setdefault(_look(memory.topic), memory.topic)
    near = [by_look[look] for look in difflib.get_close_matches(_look(topic), by_look, n=_NEAR_TOPICS)]
    meant = [hit.memory.topic for hit in hits if hit.relevance >= _LOW and hit.memory.topic is not None]
    return list(dict.fromkeys([*near, *meant]))[:_NEAR_TOPICS]


def _look(topic: str) -> str:
    return " ".join("".join(letter if letter.isalnum() else " " for letter in topic.casefold()).split())


async def by_context(
    query: Question, *, types: Kinds | None = None, limit: Limit = 5, memories: MemoryStore
) -> results.ByContext:
    """
    Find what was decided, learnt or done, by meaning, words, links and time.

    Use it for any question about the past, such as "why did we leave JWT last week?".
    Don't use it for an exact topic (search/by_topic), an id (load/context), or just the newest (search/recent).

    Args:
        query: The question, in whole words
        types: Only these
        limit: At most

    """
    # Internal API for these tools.
    best, more = await memories._worth_showing(query, types=types, limit=limit)  # noqa: SLF001
    shown = await _found(results.FoundMemory, memories, [hit.memory for hit in best])
    found: list[results.Answering] = [
        {**one, "relevance": round(hit.relevance, 2)} for one, hit in zip(shown, best, strict=True)
    ]
    note = None
    if not best:
        note = "Nothing was found: ask in other words, leave out types, or see search/recent."
    elif more:
        note = f"{more} less relevant are left out."
    return results.make_answer(results.ByContext, {"found": found, "note": note})


async def recent(
    *, limit: Limit = 10, types: Kinds | None = None, since: Time | None = None, memories: MemoryStore
) -> results.Recent:
    """
    List the newest memories, newest first, each day named once.

    Use it to see what happened lately.
    Don't use it to find something (search/by_context), or to go on with the last work (load/checkpoint).

    Args:
        limit: At most
        types: Only these
        since: From this date or time on (ISO 8601, UTC)

    """
    found = await memories.recent(limit=limit, types=types, since=None if since is None else _moment("since", since))
    note = None
    if not found:
        narrowed = types is not None or since is not None
        note = f"There is nothing{' like this: leave out types or since' if narrowed else ' saved yet'}."
    shown = await _found(results.RecentMemory, memories, found)
    days = ["", *(one["at"] for one in shown)]
    for one, before in zip(shown, days, strict=False):
        if one["at"] == before:
            del one["at"]
    return results.make_answer(results.Recent, {"found": shown, "note": note})


async def _found(kind: type[_T], memories: MemoryStore, found: Sequence[Memory]) -> list[_T]:
    """Return the entries of found memories with their current successors, in one read."""
    beside = await _beside(memories, *(memory.id for memory in found)) if found else {}
    return results.render_results(kind, memories, found, beside)


# Evolving


async def set_outcome(
    decision_id: Id, outcome: Result, *, reason: Text | None = None, memories: MemoryStore
) -> results.Evolved:
    """
    Say how a decision turned out.

    Use it when a decision has worked, failed, or worked in part; again when that changes.
    Don't use it to replace one (evolve/supersede).

    Args:
        decision_id: As a search or save gave it
        outcome: How it turned out
        reason: What showed it, and why; FAILED needs one

    """
    decision_id = check_id("decision_id", decision_id)
    async with _naming_the_decision(memories, "decision_id", decision_id):
        decision = await memories.set_outcome(decision_id, outcome, reason=reason, created_by="llm")
    now, _ = results.get_outcome(decision)
    today = results.get_id((await _beside_one(memories, decision)).superseded_by)
    note = None
    if outcome == "FAILED" and today is None:
        note = "This decision still stands: evolve/supersede says what takes its place."
    known = {
        "decision": results.line(decision.content),
        "trust": results.get_shown_trust(decision),
        "outcome": now or outcome,
        "outcomes_before": [change.outcome.value for change in getattr(decision.metadata, "history", ())[:-1]][-5:],
        "superseded_by": today,
        "note": note,
    }
    return results.make_answer(results.Evolved, known)


async def supersede(
    decision_id: Id, decision: Text, reasoning: str, *, confidence: Share = 0.7, memories: MemoryStore
) -> results.Superseding:
    """
    Put a decision in the place of an earlier one, which stays in the history.

    Use it when a decision changes; find its id by a search.
    Don't use it for a new matter (save/decision), or only to say that one failed (evolve/outcome).

    Args:
        decision_id: The one that is replaced
        decision: What was decided instead, in a sentence that stands alone; or the id of one
        reasoning: Why the change

    """
    decision_id = check_id("decision_id", decision_id)
    async with _naming_the_decision(memories, "decision_id", decision_id):
        new = await _successor(memories, decision_id, decision, reasoning, confidence=confidence)
    before = (await _beside(memories, decision_id)).get(decision_id)
    others = [] if before is None else [one for one in before.successors if one != new.id]
    note = None
    if others:
        other = (await _beside(memories, others[0])).get(others[0])
        today = None if other is None else other.superseded_by
        whose = "" if today is None else f" (in whose place {today.id} stands)"
        note = (
            f"{decision_id} was superseded before, by {others[0]}{whose}: there are {len(others) + 1} successors now, "
            "see search/by_topic."
        )
    replaced = None if before is None else results.line(before.memory.content)
    known = {
        "id": new.id,
        "topic": new.topic,
        "replaced": replaced,
        "replaced_trust": None if before is None else results.get_shown_trust(before.memory),
        "note": note,
    }
    return results.make_answer(results.Superseding, known)


_OTHERWISE: Final = "say in words what was decided instead"


async def _successor(
    memories: MemoryStore, decision_id: str, decision: str, reasoning: str, *, confidence: float
) -> Memory:
    """Save a new successor of a decision, or link an existing memory as its successor."""
    if not is_id(named := decision.strip()):
        return await memories.supersede(decision_id, decision, reasoning, confidence=confidence, created_by="llm")
    new, old = await memories.get(named), await memories.get(decision_id)
    if new.type is not old.type or new.type is MemoryType.CHECKPOINT:
        raise InvalidArgument(f"decision must be the id of a {old.type.value}, as decision_id is", hint=_OTHERWISE)
    reason = results.beginning(reasoning.strip(), MAX_ITEM) or None
    await memories.link(new.id, decision_id, SUPERSEDES, confidence=1.0, reason=reason, created_by="llm")
    return new


async def correct(
    id: Id,  # noqa: A002 - as above
    *,
    content: Text | None = None,
    reason: Text | None = None,
    reasoning: str | None = None,
    memories: MemoryStore,
) -> results.Corrected:
    """
    Correct what a memory says; it keeps its id, and what it said before as history.

    Use it for a slip, such as a wrong number or name.
    Don't use it when a decision changed (evolve/supersede).

    Args:
        id: As a search or save gave it
        content: What it says from now on
        reason: What was wrong

    """
    memory = await memories.correct(check_id("id", id), content, reasoning=reasoning, reason=reason, origin="model")
    known = {"id": memory.id, "content": results.line(memory.content), "trust": results.get_shown_trust(memory)}
    return results.make_answer(results.Corrected, known)


async def forget(
    *,
    ids: Ids | None = None,
    about: Topic | None = None,
    source: Item | None = None,
    before: Time | None = None,
    dry_run: bool = False,
    memories: MemoryStore,
) -> results.Forgot:
    """
    Delete memories for good, with all that was kept of their texts; of several arguments all must hold.

    Use it only where the user asks that something be forgotten; dry_run says first how much that is.
    Don't use it for what no longer holds (evolve/supersede), or a slip (evolve/correct).

    Args:
        ids: As searches or saves gave them
        about: Only what names this id, or has this topic, exactly
        source: Only what has this source, or rests on it
        before: Only what was saved before this date or time (ISO 8601, UTC)
        dry_run: Only say how much that would be

    """
    until = None if before is None else _moment("before", before)
    done = await memories.forget(ids, about=about, source=source, before=until, dry_run=dry_run)
    note = None
    if not done.count:
        note = "There is nothing like this."
    elif dry_run:
        note = "Nothing is gone yet: without dry_run it would be."
    return results.make_answer(
        results.Forgot,
        {**attrs.asdict(done), "forgotten": dict(done.memories), "pending": [*done.pending], "note": note},
    )


# Tool definitions

_READS: Final = ToolAnnotations(read_only=True, open_world=False)
# No data is lost: earlier outcomes stay in the history, and superseded decisions stay stored.
_ADDS: Final = ToolAnnotations(destructive=False, open_world=False)
_DESTROYS: Final = ToolAnnotations(destructive=True, idempotent=True, open_world=False)
_FUNCTIONS: Final[Mapping[str, Callable[..., Awaitable[Any]]]] = {
    "save/decision": save_decision,
    "save/checkpoint": save_checkpoint,
    "save/insight": save_insight,
    "load/checkpoint": load_checkpoint,
    "load/context": load_context,
    "search/by_topic": by_topic,
    "search/by_context": by_context,
    "search/recent": recent,
    "evolve/outcome": set_outcome,
    "evolve/supersede": supersede,
    "evolve/correct": correct,
    "evolve/forget": forget,
}


def memory_tools(memories: MemoryStore, refs: RefStore, *, forget: bool = False) -> list[Tool]:
    """Return the tools for one store; *refs* stores long texts. All stores share the schemas."""
    chosen = (template for template in _templates() if forget or template.name != "evolve/forget")
    return [bound(template, memories=memories, refs=refs) for template in chosen]


@functools.cache
def _templates() -> tuple[Tool, ...]:
    return tuple(_template(name, title) for name, title in MEMORY_TOOLS.items())


def _template(name: str, title: str) -> Tool:
    function = _FUNCTIONS[name]
    changes = _DESTROYS if function is forget else _ADDS
    places = dict.fromkeys(inspect.signature(function).parameters.keys() & {"memories", "refs"})
    tool = Tool.from_function(
        functools.partial(function, **places),
        name=name,
        title=title,
        annotations=_READS if name.startswith(("load/", "search/")) else changes,
    )
    return attrs.evolve(
        tool,
        input_schema=_shown(tool.input_schema),
        on_error=_raise,
        # Resolve handles: a saved handle would be lost with its conversation.
        resolve=name.startswith(("save/", "evolve/")) and function is not forget,
        handles=frozenset({"evidence"}) if name == "save/decision" else frozenset(),
    )


def _shown(schema: Any) -> Any:
    """Return the part of a schema that models need, since it is part of every request."""
    if not isinstance(schema, Mapping):
        return schema
    shown = {key: _shown(value) for key, value in schema.items() if key not in _UNSAID and (key, value) != _NOTHING}
    if "properties" in shown:
        # Parameters without a description are accepted, but models do not need them.
        described = {name: one for name, one in shown["properties"].items() if "description" in one}
        if "links" in described:
            described["links"] = {"description": described["links"]["description"], **_LINKS_SHOWN}
        shown["properties"] = described
    return shown


def _raise(error: MamaStructsError, _arguments: Mapping[str, Any]) -> NoReturn:
    """Raise an error with a hint for a model."""
    if isinstance(error, MemoryNotFound) and error.hint is None:
        error.hint = "search/by_context, search/by_topic and search/recent give ids"
    raise error
