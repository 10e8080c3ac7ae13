"""
The memory tools for models, in the order of DESIGN section 7.

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
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar

import attrs
import msgspec
from msgspec import Meta

from mama_structs._internal.validation import UNSET
from mama_structs.errors import InvalidArgument, MamaStructsError, MemoryNotFound, repr_short
from mama_structs.memory.graph.traversal import AnswerExtras
from mama_structs.memory.search.passages import Passage
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import SUPERSEDES_WORD, LinkType, Memory, MemoryType, is_id, parse_stored_evidence
from mama_structs.memory.types.relationships import MAX_RELATIONSHIP_CHARS
from mama_structs.memory.types.requests import (
    MAX_ITEM_CHARS,
    MAX_ITEMS,
    MAX_LINKS,
    MAX_REQUEST_ID_CHARS,
    MAX_TOPIC_CHARS,
    check_id,
)
from mama_structs.memory.upkeep.erasure import EraseRequest
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.tools import memory_results as results
from mama_structs.tools.tool import (
    Tool,
    ToolAnnotations,
    bind_template,
    hide_parameters,
    join_lines,
    rename_arguments_in_errors,
)
from mama_structs.tools.wire_names import MEMORY_TOOLS

# Types of parameters, with the limits and descriptions that models see

MAX_LIMIT: Final = 50
MAX_QUERY_CHARS: Final = 10_000
MAX_TIME_CHARS: Final = 64
Text = Annotated[str, Meta(min_length=1)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Topic = Annotated[str, Meta(min_length=1, max_length=MAX_TOPIC_CHARS)]
Question = Annotated[str, Meta(min_length=1, max_length=MAX_QUERY_CHARS)]
Id = Annotated[str, Meta(min_length=1, max_length=MAX_REQUEST_ID_CHARS)]
Ids = Annotated[Sequence[Id], Meta(max_length=MAX_LINKS)]
Item = Annotated[str, Meta(min_length=1, max_length=MAX_ITEM_CHARS)]
Items = Annotated[Sequence[Item], Meta(max_length=MAX_ITEMS)]
Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
MemoryTypes = Annotated[Sequence[Literal["decision", "checkpoint", "insight", "context"]], Meta(min_length=1)]
Time = Annotated[str, Meta(min_length=1, max_length=MAX_TIME_CHARS)]
OutcomeName = Literal["SUCCESS", "FAILED", "PARTIAL"]


class LinkInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A link from a new memory to an existing one, as a model requests it.

    *to_id* is another name of *id*.
    """

    id: Id | None = None
    relationship: Annotated[str, Meta(min_length=1, max_length=MAX_RELATIONSHIP_CHARS)] = "related to"
    to_id: Id | None = None
    confidence: Ratio = 0.8
    reason: Item | None = None
    tags: Items = ()


Links = Annotated[Sequence[Id | LinkInput], Meta(max_length=MAX_LINKS)]
# Parameters that schemas omit. A call may still pass them.
HIDDEN_PARAMETERS: Final[Mapping[str, frozenset[str]]] = {
    "save/decision": frozenset({"supersedes", "implements"}),
    "save/insight": frozenset({"category"}),
    "evolve/supersede": frozenset({"confidence"}),
    "evolve/correct": frozenset({"reasoning"}),
}
# The part of a link's schema that models see. `LinkInput` accepts more fields, and a link may be an id alone.
EMPTY_LIST_DEFAULT: Final[tuple[str, Any]] = ("default", [])
LINKS_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "relationship": {"type": "string", "description": "Such as implements"},
        },
        "required": ["id"],
        "additionalProperties": False,
    },
}
# Schemas omit these constraints to save tokens. Models rarely violate them, and the error states the limit.
OMITTED_KEYWORDS: Final = frozenset({"minLength", "maxLength", "minItems", "maxItems"})


def _links_asked(links: Sequence[str | LinkInput]) -> list[dict[str, Any]]:
    """Convert the links that a model requests to the argument of `MemoryStore` methods."""
    return [_make_link_argument(place, link) for place, link in enumerate(links)]


def _make_link_argument(position: int, link: str | LinkInput) -> dict[str, Any]:
    link_fields = msgspec.structs.asdict(LinkInput(id=link) if isinstance(link, str) else link)
    given_ids = {link_fields.pop("id"), link_fields["to_id"]} - {None}
    if len(given_ids) != 1:
        raise InvalidArgument(f"links[{position}] must have one id", hint="such as {id, relationship}, or the id alone")
    return {**link_fields, "to_id": given_ids.pop()}


def _parse_time(name: str, text: str) -> datetime:
    """Parse a time from a model; without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(
            f"{name} must be a date or time in ISO 8601, such as 2026-03-01 or 2026-03-01T09:30:00Z, "
            f"got {repr_short(text)}",
            hint="work out the date; for words such as 'last week' use search/by_context, which understands them",
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# Hits with a lower relevance count as not found (DESIGN section 6).
MIN_RELEVANCE: Final = 0.3
MAX_SIMILAR_TOPICS: Final = 5
MAX_SCANNED_DECISIONS: Final = 500

# Answers omit temporal links: it is not informative that two memories were saved at a similar time.
INFORMATIVE_LINK_TYPES: Final = frozenset(LinkType) - {LinkType.TEMPORAL}

_T = TypeVar("_T")


async def _fetch_extras(memories: MemoryStore, *ids: str) -> Mapping[str, AnswerExtras]:
    """
    Return successors and links of memories by id.

    Best effort: empty if they cannot be read.
    """
    try:
        return await memories._get_annotations(ids)
    except MamaStructsError:
        return {}


async def _fetch_extras_of_one(memories: MemoryStore, memory: Memory) -> AnswerExtras:
    nothing = AnswerExtras(memory=memory, links=(), superseded_by=None, outcome_of=None)
    return (await _fetch_extras(memories, memory.id)).get(memory.id, nothing)


# Saving


async def save_decision(
    topic: Topic,
    decision: Text,
    reasoning: str,
    *,
    confidence: Ratio = 0.7,
    supersedes: Id | None = None,
    implements: Ids = (),
    links: Links = (),
    evidence: Items = (),
    memories: MemoryStore,
) -> results.Saved:
    """
    Save a decision and its reasons.

    Use it for a choice or rule that later work must follow,
    not to change a decision (evolve/supersede).

    Args:
        topic: Such as auth_strategy, shared by related decisions
        reasoning: Why; rejected alternatives
        evidence: Handles, memory ids, URLs

    """
    asked = _links_asked(links)
    for position, item in enumerate(evidence):
        # Reject the store's internal format of evidence: no model has seen it, so the model has invented the hash.
        if parse_stored_evidence(item.strip()) is not None:
            raise InvalidArgument(
                f"evidence[{position}] must not name a text by its hash",
                hint="give the handle alone, such as ref:name or fd:1, or the id of the memory that rests on it",
            )
    async with _explain_wrong_type(memories, "supersedes", supersedes):
        with rename_arguments_in_errors(content="decision"):
            memory = await memories.save_decision(
                decision,
                topic=topic,
                reasoning=reasoning,
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
    Save the state of the work.

    Use it after a piece of work or before a break, not for a choice (save/decision).

    Args:
        summary: What is done and open
        implements: Ids of decisions carried out

    """
    with rename_arguments_in_errors(content="summary"):
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
    Save a fact, cause, pattern or preference.

    Use it when you learn something, not for a choice (save/decision).

    Args:
        source: A file, URL or person

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
async def _explain_wrong_type(memories: MemoryStore, name: str, memory_id: str | None) -> AsyncIterator[None]:
    """If an id is not a decision's, raise an error that names the tools that return decisions."""
    try:
        yield
    except InvalidArgument:
        extras = {} if memory_id is None else await _fetch_extras(memories, memory_id)
        found = next(iter(extras.values()), None)
        if found is None or found.memory.type is MemoryType.DECISION:
            raise
        raise InvalidArgument(
            f"{name} must be the id of a decision, and {memory_id!r:.200} is of the type {found.memory.type.value}",
            hint="search/by_topic gives the decisions of a topic, search/by_context with types=['decision'] any others",
        ) from None


# Loading


async def load_checkpoint(*, memories: MemoryStore, refs: RefStore) -> results.LastCheckpoint:
    """
    Load the last state of the work.

    Use it to continue earlier work, not for other questions (search/by_context).
    """
    memory = await memories.latest_checkpoint()
    if memory is None:
        return {"note": "There is no checkpoint yet: search/recent shows what else was saved."}
    return results.render_checkpoint(memory, (await _fetch_extras_of_one(memories, memory)).links, refs)


async def load_context(id: Id, *, memories: MemoryStore, refs: RefStore) -> results.WithContext:  # noqa: A002 - name in DESIGN
    """
    Load one memory with its history, links and evidence.

    Use it when a search result is too short, not to search (search/by_context).
    """
    with rename_arguments_in_errors(memory="id"):
        found = await memories.details(id, link_types=INFORMATIVE_LINK_TYPES)
    extras = await _fetch_extras_of_one(memories, found.memory)
    evidence = await memories.evidence(found.memory.id)
    return results.render_context(found, extras, evidence, memories=memories, refs=refs)


# Searching


async def search_by_topic(topic: Topic, *, memories: MemoryStore, refs: RefStore) -> results.ByTopic:
    """
    List the decisions on a topic, newest first, with outcomes.

    Use it when you know the exact topic, not for a question (search/by_context).
    """
    chain = await memories.history(topic=topic, link_types=INFORMATIVE_LINK_TYPES)
    similar_topics = [] if chain else await _find_similar_topics(memories, topic)
    return results.render_topic(topic, chain, similar_topics, memories, refs)


async def _find_similar_topics(memories: MemoryStore, topic: str) -> list[str]:
    """Return existing topics with a similar spelling or meaning."""
    # Similar spelling finds most topics. Semantic search adds synonyms and topics in other languages.
    try:
        recent = await memories.list(limit=MAX_SCANNED_DECISIONS, type=[MemoryType.DECISION])
        hits = await memories.search(topic, type=[MemoryType.DECISION], limit=MAX_SIMILAR_TOPICS)
    except MamaStructsError:
        return []
    by_look: dict[str, str] = {}
    for memory in (*recent, *(hit.memory for hit in hits)):
        if memory.topic is not None:
            by_look.setdefault(_normalize_topic(memory.topic), memory.topic)
    similar_spellings = [
        by_look[look] for look in difflib.get_close_matches(_normalize_topic(topic), by_look, n=MAX_SIMILAR_TOPICS)
    ]
    similar_meanings = [
        hit.memory.topic for hit in hits if hit.relevance >= MIN_RELEVANCE and hit.memory.topic is not None
    ]
    return list(dict.fromkeys([*similar_spellings, *similar_meanings]))[:MAX_SIMILAR_TOPICS]


def _normalize_topic(topic: str) -> str:
    return " ".join("".join(letter if letter.isalnum() else " " for letter in topic.casefold()).split())


async def search_by_context(
    query: Question, *, types: MemoryTypes | None = None, limit: Limit = 5, memories: MemoryStore, refs: RefStore
) -> results.ByContext:
    """
    Find memories by meaning, words, links and time.

    Use it for any question about the past, not for the newest memories (search/recent).
    """
    # Use these methods of the store, which are internal to the package and intended for these tools.
    best, more = await memories._search_for_prompt(query, types=types, limit=limit)
    with_newer = await memories._insert_newer(query, best, more)
    found_ids = {hit.id for hit in (*best, *more)}
    best = [hit for hit in with_newer if not types or hit.type.value in types][:limit]
    left_out = len(found_ids - {hit.id for hit in best})
    passages = {hit.id: Passage(*hit.passage) for hit in best if hit.passage is not None}
    shown = await _render_results(results.FoundMemory, memories, refs, [hit.memory for hit in best], passages)
    found: list[results.Answering] = [
        {**one, "relevance": round(hit.relevance, 2)} for one, hit in zip(shown, best, strict=True)
    ]
    note = None
    if not best:
        weak = f"No clear match, and {left_out} weak matches are left out"
        what = weak if left_out else "Nothing was found"
        note = f"{what}: ask in other words, leave out types, or see search/recent."
    elif left_out:
        note = f"{left_out} less relevant are left out."
    return results.make_answer(results.ByContext, {"found": found, "note": note})


async def list_recent(
    *,
    limit: Limit = 10,
    types: MemoryTypes | None = None,
    since: Time | None = None,
    memories: MemoryStore,
    refs: RefStore,
) -> results.Recent:
    """
    List the newest memories, by date.

    Use it to see recent work, not to find something (search/by_context).

    Args:
        since: ISO 8601 time, UTC

    """
    found = await memories.list(limit=limit, type=types, since=None if since is None else _parse_time("since", since))
    note = None
    if not found:
        narrowed = types is not None or since is not None
        note = f"There is nothing{' like this: leave out types or since' if narrowed else ' saved yet'}."
    shown = await _render_results(results.RecentMemory, memories, refs, found)
    days = ["", *(one["at"] for one in shown)]
    for one, before in zip(shown, days, strict=False):
        if one["at"] == before:
            del one["at"]
    return results.make_answer(results.Recent, {"found": shown, "note": note})


async def _render_results(
    answer_type: type[_T],
    memories: MemoryStore,
    refs: RefStore,
    found: Sequence[Memory],
    passages: Mapping[str, Passage] = MappingProxyType({}),
) -> list[_T]:
    """Return the entries of found memories with their current successors, in one read."""
    extras = await _fetch_extras(memories, *(memory.id for memory in found)) if found else {}
    return results.render_results(answer_type, memories, refs, found, extras, passages=passages)


# Evolving


async def set_outcome(
    decision_id: Id, outcome: OutcomeName, *, reason: Text | None = None, memories: MemoryStore
) -> results.Evolved:
    """
    Record how a decision turned out.

    Use it when the result is known, not to replace one (evolve/supersede).

    Args:
        reason: What showed it. FAILED requires it

    """
    decision_id = check_id("decision_id", decision_id)
    async with _explain_wrong_type(memories, "decision_id", decision_id):
        decision = await memories.set_outcome(decision_id, outcome, reason=reason, created_by="llm")
    now, _ = results.get_outcome(decision)
    successor_id = results.get_id((await _fetch_extras_of_one(memories, decision)).superseded_by)
    note = None
    if outcome == "FAILED" and successor_id is None:
        note = "This decision still stands: evolve/supersede says what takes its place."
    fields = {
        "decision": results.truncate_line(decision.content),
        "trust": results.get_shown_trust(decision),
        "outcome": now or outcome,
        "outcomes_before": [change.outcome.value for change in getattr(decision.metadata, "history", ())[:-1]][-5:],
        "superseded_by": successor_id,
        "note": note,
    }
    return results.make_answer(results.Evolved, fields)


async def supersede(
    decision_id: Id, decision: Text, reasoning: str, *, confidence: Ratio = 0.7, memories: MemoryStore
) -> results.Superseding:
    """
    Replace a decision, which stays in the history.

    Use it when it changes, not for a slip (evolve/correct).

    Args:
        decision_id: The old one
        decision: The new one, or its id

    """
    decision_id = check_id("decision_id", decision_id)
    async with _explain_wrong_type(memories, "decision_id", decision_id):
        new = await _save_successor(memories, decision_id, decision, reasoning, confidence=confidence)
    before = (await _fetch_extras(memories, decision_id)).get(decision_id)
    others = [] if before is None else [one for one in before.successors if one != new.id]
    note = None
    if others:
        other = (await _fetch_extras(memories, others[0])).get(others[0])
        current_successor = None if other is None else other.superseded_by
        whose = "" if current_successor is None else f" (in whose place {current_successor.id} stands)"
        note = (
            f"{decision_id} was superseded before, by {others[0]}{whose}: there are {len(others) + 1} successors now, "
            "see search/by_topic."
        )
    replaced = None if before is None else results.truncate_line(before.memory.content)
    fields = {
        "id": new.id,
        "topic": new.topic,
        "replaced": replaced,
        "replaced_trust": None if before is None else results.get_shown_trust(before.memory),
        "note": note,
    }
    return results.make_answer(results.Superseding, fields)


DECISION_TEXT_HINT: Final = "say in words what was decided instead"


async def _save_successor(
    memories: MemoryStore, decision_id: str, decision: str, reasoning: str, *, confidence: float
) -> Memory:
    """
    Save the successor of a decision.

    If *decision* is an id, link that memory as the successor.
    """
    if not is_id(named := decision.strip()):
        with rename_arguments_in_errors(content="decision"):
            return await memories.supersede(
                decision_id, decision, reasoning=reasoning, confidence=confidence, created_by="llm"
            )
    new, old = await memories.get(named), await memories.get(decision_id)
    if new.type is not old.type or new.type is MemoryType.CHECKPOINT:
        raise InvalidArgument(
            f"decision must be the id of a {old.type.value}, as decision_id is", hint=DECISION_TEXT_HINT
        )
    reason = results.truncate(reasoning.strip(), MAX_ITEM_CHARS) or None
    await memories.link(new.id, decision_id, SUPERSEDES_WORD, confidence=1.0, reason=reason, created_by="llm")
    return new


async def correct(
    id: Id,  # noqa: A002 - as above
    *,
    content: Text | None = None,
    reason: Text | None = None,
    reasoning: Text | None = None,
    memories: MemoryStore,
) -> results.Corrected:
    """
    Correct a memory, which keeps its id and history.

    Use it for a slip, such as a wrong number, not when a decision changes (evolve/supersede).
    """
    if content is reasoning is None:
        raise InvalidArgument("content or reasoning must be given", hint="say what the memory is to say instead")
    with rename_arguments_in_errors(change_reason="reason"):
        memory = await memories.update(
            check_id("id", id),
            content,
            reasoning=UNSET if reasoning is None else reasoning,
            change_reason=reason,
            origin="model",
        )
    fields = {
        "id": memory.id,
        "content": results.truncate_line(memory.content),
        "trust": results.get_shown_trust(memory),
    }
    return results.make_answer(results.Corrected, fields)


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
    Delete the memories that match all arguments, and all stored copies of their texts, for good.

    Use it only if the user asks to forget something, first with dry_run,
    not for a decision that changed (evolve/supersede) or a slip (evolve/correct).

    Args:
        ids: From searches or saves
        about: Memories that mention exactly this id, or have exactly this topic
        source: Memories with this source, or based on it
        before: Memories saved before this date or time (ISO 8601, UTC)
        dry_run: Only report what would be deleted

    """
    until = None if before is None else _parse_time("before", before)
    asked = EraseRequest.checked(ids=ids, about=about, source=source, before=until)
    done = await memories._erase(asked, dry_run=dry_run)
    note = None
    if not done.count:
        note = "There is nothing like this."
    elif dry_run:
        note = "Nothing is gone yet: without dry_run it would be."
    return results.make_answer(
        results.Forgot,
        {
            "forgotten": dict(done.memories),
            "note": note,
            "links": done.links,
            "mended": done.updated_memories,
            "texts": done.evidence_texts,
            "refs": done.refs,
            "pending": [*done.pending],
        },
    )


# Tool definitions

READ_ONLY_ANNOTATIONS: Final = ToolAnnotations(read_only=True, open_world=False)
# Annotations of tools that lose no data: earlier outcomes and superseded decisions remain stored.
ADDING_ANNOTATIONS: Final = ToolAnnotations(destructive=False, open_world=False)
DELETING_ANNOTATIONS: Final = ToolAnnotations(destructive=True, idempotent=True, open_world=False)
TOOL_FUNCTIONS: Final[Mapping[str, Callable[..., Awaitable[Any]]]] = {
    "save/decision": save_decision,
    "save/checkpoint": save_checkpoint,
    "save/insight": save_insight,
    "load/checkpoint": load_checkpoint,
    "load/context": load_context,
    "search/by_topic": search_by_topic,
    "search/by_context": search_by_context,
    "search/recent": list_recent,
    "evolve/outcome": set_outcome,
    "evolve/supersede": supersede,
    "evolve/correct": correct,
    "evolve/forget": forget,
}


def make_memory_tools(memories: MemoryStore, refs: RefStore, *, forget: bool = False) -> list[Tool]:
    """
    Create the tools for a store.

    *refs* stores long texts. The tools of all stores share schemas.
    """
    chosen = (template for template in _get_templates() if forget or template.name != "evolve/forget")
    return [bind_template(template, memories=memories, refs=refs) for template in chosen]


@functools.cache
def _get_templates() -> tuple[Tool, ...]:
    return tuple(_make_template(name, title) for name, title in MEMORY_TOOLS.items())


def _make_template(name: str, title: str) -> Tool:
    function = TOOL_FUNCTIONS[name]
    changes = DELETING_ANNOTATIONS if function is forget else ADDING_ANNOTATIONS
    bound_stores = dict.fromkeys(inspect.signature(function).parameters.keys() & {"memories", "refs"})
    tool = Tool.from_function(
        functools.partial(function, **bound_stores),
        name=name,
        title=title,
        annotations=READ_ONLY_ANNOTATIONS if name.startswith(("load/", "search/")) else changes,
    )
    return attrs.evolve(
        tool,
        description=join_lines(tool.description),
        input_schema=_reduce_schema(hide_parameters(tool.input_schema, HIDDEN_PARAMETERS.get(name, frozenset()))),
        on_error=_raise_with_hint,
        # Replace handles with their texts, because a saved handle would be lost when its conversation is deleted.
        resolves_handles=name.startswith(("save/", "evolve/")) and function is not forget,
        handles=frozenset({"evidence"}) if name == "save/decision" else frozenset(),
    )


def _reduce_schema(schema: Any) -> Any:
    """Return a schema without parts that models rarely need, because each request contains the schema."""
    if not isinstance(schema, Mapping):
        return schema
    shown = {
        key: _reduce_schema(value)
        for key, value in schema.items()
        if key not in OMITTED_KEYWORDS and (key, value) != EMPTY_LIST_DEFAULT
    }
    if "links" in shown.get("properties", ()):
        shown["properties"] = {**shown["properties"], "links": LINKS_SCHEMA}
    return shown


def _raise_with_hint(error: MamaStructsError, _arguments: Mapping[str, Any]) -> NoReturn:
    """Raise the error. For an unknown memory id, add a hint with the tools that return ids."""
    if isinstance(error, MemoryNotFound) and error.hint is None:
        error.hint = "search/by_context, search/by_topic and search/recent give ids"
    raise error
