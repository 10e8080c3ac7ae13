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
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NoReturn, NotRequired, TypedDict, TypeVar, cast

import attrs
import msgspec
from msgspec import Meta

from mama_structs._internal.prompt_quoting import quoted
from mama_structs.errors import InvalidArgument, MamaStructsError, MemoryNotFound, QuotaExceeded, shown
from mama_structs.memory.graph.results import Chain, Evidence, Reached, Surroundings
from mama_structs.memory.graph.traversal import Beside, holding, successors
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import (
    OUTCOME_OF,
    SUPERSEDES,
    CheckpointMetadata,
    DecisionMetadata,
    Link,
    LinkType,
    Memory,
    MemoryType,
    Noticed,
    OutcomeChange,
    is_id,
    is_reason,
    parse_kept,
)
from mama_structs.memory.types.relationships import MAX_RELATIONSHIP
from mama_structs.memory.types.requests import MAX_ID, MAX_ITEM, MAX_ITEMS, MAX_LINKS, MAX_TOPIC, check_id
from mama_structs.provenance import UNKNOWN_ORIGIN, Origin, Provenance, least_trusted, marked_trust
from mama_structs.refs.store.ref_store import RefStore
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


# Answers, truncated for models

# Characters of a text in an answer about one memory; a longer text gets a handle.
_WHOLE: Final = 1000
_WITHOUT_HANDLE: Final = 4000
_LINE: Final = 160
# A lower relevance counts as not found (DESIGN section 6).
_LOW: Final = 0.3
# Characters of all texts of a search answer, divided among its memories.
_ROOM: Final = 8000
_LEAST: Final = 120
_MOST: Final = 400
# Maximum characters of a text in a list, such as a piece of evidence.
_BESIDE: Final = 400
# Maximum number of items in an answer.
_LINKS: Final = 20
_OUTCOMES: Final = 10
_EVIDENCE: Final = 10
_NEAR_VERSIONS: Final = 10
_VERSIONS: Final = 20
_AROUND: Final = 15
_AROUND_A_TOPIC: Final = 5
_NEAR_TOPICS: Final = 5
_TOPICS_LOOKED_AT: Final = 500
_DAY: Final = timedelta(days=1)
# Default confidence of a decision.
_USUAL: Final = DecisionMetadata().confidence
_UNITS: Final = {"year": 31_536_000, "month": 2_592_000, "week": 604_800, "day": 86_400, "hour": 3600, "minute": 60}


# Temporal links are omitted: a similar time of saving is not informative.
_TELLING: Final = frozenset(LinkType) - {LinkType.TEMPORAL}

_T = TypeVar("_T")


# Required fields of an answer are in its base class; optional fields are included if they are not empty (see
# `_answer`).


class Cut(TypedDict):
    """A truncated text in an answer."""

    field: str
    characters: int
    note: str


class More(Cut, total=False):
    """A text that an answer shows the beginning of, and its handle."""

    fd: str


class LinkLine(TypedDict, total=False):
    """A link that begins (*to*) or ends (*from_id*) at the memory."""

    to_id: str
    from_id: str
    relationship: str
    reason: str
    trust: str


class OneMemory(TypedDict):
    """
    Fields of a memory in every answer.

    The time is omitted if it equals that of the previous entry.
    """

    id: str
    content: str
    at: NotRequired[str]


class BriefMemory(OneMemory, total=False):
    """A memory in a line; its id begins with its type, else that is told."""

    type: str
    namespace: str
    trust: str
    topic: str
    outcome: str
    outcome_reason: str


class AroundLine(BriefMemory, total=False):
    """A memory near another one, by one link where *depth* says nothing else."""

    depth: int


class RecentMemory(BriefMemory, total=False):
    """A memory among the newest ones."""

    superseded_by: str
    in_its_place: str
    in_its_place_trust: str
    tells_outcome_of: str


class FoundMemory(RecentMemory, total=False):
    """A memory in the results of a search."""

    reasoning: str


class Answering(FoundMemory):
    """A memory with how well it answers, 0 to 1."""

    relevance: float


class Version(OneMemory, total=False):
    """One version of what was decided on a topic."""

    type: str
    namespace: str
    trust: str
    reasoning: str
    confidence: float
    outcome: str
    outcome_reason: str
    superseded_by: str
    successors: list[str]


class OutcomeTold(TypedDict):
    """Required fields of an outcome in the history of a decision."""

    outcome: str
    at: str


class OutcomeLine(OutcomeTold, total=False):
    """One outcome of a decision."""

    reason: str


class EvidenceTold(TypedDict):
    """Required fields of a piece of evidence."""

    source: str


class EvidenceLine(EvidenceTold, total=False):
    """What a decision rests on."""

    content: str


class Noted(TypedDict, total=False):
    """An optional note in an answer."""

    note: str


class SavedMemory(TypedDict):
    """Required fields of an answer about a saved memory."""

    id: str


class Saved(SavedMemory, Noted):
    """What a tool that saves answers."""


class Superseding(SavedMemory, Noted, total=False):
    """What holds after a decision took the place of another one."""

    topic: str
    replaced: str
    replaced_trust: str


class LastCheckpoint(Noted, total=False):
    """Answer of load/checkpoint."""

    summary: str
    trust: str
    open_files: list[str]
    next_steps: list[str]
    implements: list[str]
    at: str
    more: list[More]


class Whole(OneMemory, total=False):
    """One memory, whole."""

    namespace: str
    type: str
    trust: str
    topic: str
    reasoning: str
    confidence: float
    outcome: str
    outcome_reason: str
    outcomes: list[OutcomeLine]
    category: str
    tags: list[str]
    source: str
    open_files: list[str]
    next_steps: list[str]
    mentions: list[str]
    superseded_by: str
    successors: list[str]
    tells_outcome_of: str


class AboutOne(TypedDict):
    """Required fields of the answer of load/context."""

    memory: Whole


class WithContext(AboutOne, Noted, total=False):
    """What load/context answers."""

    evolution: list[BriefMemory]
    more_versions: int
    around: list[AroundLine]
    more_around: int
    links: list[LinkLine]
    more_links: int
    evidence: list[EvidenceLine]
    more_evidence: int
    more: list[More]


class FoundByContext(TypedDict):
    """Required fields of the answer of search/by_context; the best memory is first."""

    found: list[Answering]


class ByContext(FoundByContext, Noted):
    """What search/by_context answers."""


class FoundRecent(TypedDict):
    """Required fields of the answer of search/recent."""

    found: list[RecentMemory]


class Recent(FoundRecent, Noted):
    """What search/recent answers."""


class OnTopic(TypedDict):
    """Required fields of the answer of search/by_topic; the newest version is first."""

    topic: str
    versions: list[Version]


class ByTopic(OnTopic, Noted, total=False):
    """What search/by_topic answers."""

    older_versions: int
    forks: list[str]
    around: list[BriefMemory]
    near_topics: list[str]


class EvolvedDecision(TypedDict):
    """Required fields of the answer of evolve/outcome."""

    decision: str
    outcome: str


class Evolved(EvolvedDecision, Noted, total=False):
    """What holds after a decision was given an outcome."""

    trust: str
    outcomes_before: list[str]
    superseded_by: str


class ForgottenCounts(TypedDict):
    """Numbers of erased memories by type."""

    forgotten: dict[str, int]


class Forgot(ForgottenCounts, Noted, total=False):
    """What is gone, or would be: nothing of it is repeated."""

    links: int
    mended: int
    texts: int
    refs: int
    pending: list[str]


class CorrectedMemory(TypedDict):
    """Required fields of the answer of evolve/correct."""

    id: str
    content: str


class Corrected(CorrectedMemory, total=False):
    """Answer of evolve/correct."""

    trust: str


def beginning(text: str, most: int) -> str:
    """Return the beginning of a text, with an ellipsis if it was cut."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def line(text: str, most: int = _LINE) -> str:
    """Return the beginning of a text as one line."""
    # Whitespace shrinks, so more than *most* characters are read, but the cost stays bounded.
    return beginning(" ".join(text[: 8 * most].split()), most)


def _short(text: str | None, most: int = _LINE) -> str | None:
    return None if text is None else line(text, most)


@attrs.define
class Cutter:
    """Truncates the long texts of an answer, and stores each under a handle in `more`."""

    refs: RefStore
    # Source of the texts as models see it, and their provenance.
    source: str
    provenance: Provenance
    more: list[More] = attrs.field(factory=list)

    @classmethod
    def of(cls, refs: RefStore, tool: str, memory: Memory) -> Cutter:
        """Return a cutter for the texts of a memory."""
        return cls(refs, f"{tool} {memory.id}", Provenance(memory.origin, memory.trust))

    def cut(self, field: str, text: str, *, most: int = _WHOLE) -> str:
        """Return a text, or its beginning and a note in `more` with the handle of the full text."""
        if len(text) <= most:
            return text
        handle = self._handle(field, text)
        if handle is not None:
            self._note(field, text, handle, f"read_fd with fd={handle} gives all of it")
            return beginning(text, most)
        if len(text) > _WITHOUT_HANDLE:
            self._note(field, text, None, "the rest cannot be shown: there is no room left for another fd")
        return beginning(text, _WITHOUT_HANDLE)

    def cut_or_none(self, field: str, text: str | None, *, most: int = _WHOLE) -> str | None:
        """Return the same as `cut`, or None for None."""
        return None if text is None else self.cut(field, text, most=most)

    def cut_items(self, field: str, items: Sequence[str], *, most: int = 30) -> list[str]:
        """Return a short list unchanged, or the first items and a note with the handle of all."""
        if len(items) <= most and sum(map(len, items)) <= _WHOLE:
            return list(items)
        shown = [line(item) for item in items[:most]]
        text = "\n".join(items)
        handle = self._handle(field, text)
        shortened = ", shortened" if shown != list(items[:most]) else ""
        where = f"; read_fd with fd={handle} gives all of it" if handle else ""
        self._note(
            field, text, handle, f"{len(items)} items, of which the first {len(shown)} are shown{shortened}{where}"
        )
        return shown

    def keep_rest(self, field: str, items: Sequence[str], *, shown: int) -> None:
        """Store the omitted items as lines of one text, and note its handle in `more`."""
        if not items:
            return
        text = "\n".join(items)
        handle = self._handle(field, text)
        where = f"read_fd with fd={handle} gives them" if handle else "there is no room left for another fd"
        self._note(field, text, handle, f"{len(items)} more than the {shown} that are shown: {where}")

    def _note(self, field: str, text: str, handle: str | None, note: str) -> None:
        self.more.append(_answer(More, {"field": field, "characters": len(text), "fd": handle, "note": note}))

    def _handle(self, field: str, text: str) -> str | None:
        """Return the existing or new handle of a text, or None if the quota is exhausted."""
        source = f"{self.source}, {field}"
        for known in self.refs.descriptors():
            is_alike = (known.source, known.provenance, known.chars) == (source, self.provenance, len(text))
            if is_alike and known.text == text:
                return known.handle
        try:
            make_room(self.refs)
            provenance = self.provenance
            return self.refs.add_any(text, source=source, origin=provenance.origin, trust=provenance.trust).handle
        except QuotaExceeded:
            return None


def make_room(refs: RefStore) -> None:
    """Delete descriptors with memory texts, which can be reloaded, to free half of a quota."""
    for known in refs.descriptors():
        usage = refs.usage
        if 2 * usage.handles < usage.max_handles and 2 * usage.bytes < usage.max_bytes:
            return
        # The source starts with the name of the tool.
        if known.source.partition(" ")[0] in MEMORY_TOOLS:
            refs.delete(known.handle)


def _written(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%MZ}"


def when(moment: datetime, now: datetime) -> str:
    """Return the age of a time within a day, such as ``3 hours ago``, otherwise its date."""
    return age(moment, now) if abs(now - moment) < _DAY else f"{moment:%Y-%m-%d}"


def age(moment: datetime, now: datetime) -> str:
    """Return the age of a time, such as ``3 hours ago``."""
    seconds = (now - moment).total_seconds()
    for unit, length in _UNITS.items():
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def _share(count: int) -> int:
    """Return the number of characters for each text in an answer about several memories."""
    return max(_LEAST, min(_MOST, _ROOM // (2 * max(1, count))))


def _outcome_of(memory: Memory) -> tuple[str | None, str | None]:
    """Return the outcome of a decision and its reason, or None twice."""
    metadata = memory.metadata
    if not isinstance(metadata, DecisionMetadata) or metadata.outcome is None:
        return None, None
    return metadata.outcome.value, metadata.outcome_reason


def _told(kind: type[_T], memory: Memory, memories: MemoryStore, *, most: int = _LINE, **more: object) -> _T:
    """Return the entry of a memory in an answer, with truncated texts and *more* fields."""
    decision = memory.metadata if isinstance(memory.metadata, DecisionMetadata) else None
    outcome, reason = _outcome_of(memory)
    known = {
        **_named(memory, memories),
        "content": line(memory.content, most),
        "reasoning": _short(decision.reasoning or None, most) if decision else None,
        "outcome": outcome,
        "outcome_reason": _short(reason, most),
        **more,
    }
    return _answer(kind, known)


def _named(memory: Memory, memories: MemoryStore) -> dict[str, object]:
    """Return the identifying fields of a memory, without default values."""
    confidence = getattr(memory.metadata, "confidence", None)
    return {
        "id": memory.id,
        "type": None if memory.id.startswith(f"{memory.type.value}_") else memory.type.value,
        "trust": _shown_trust(memory),
        "namespace": _read_only(memories, memory),
        "topic": memory.topic,
        "confidence": None if confidence in (None, _USUAL) else round(confidence, 2),
        "at": when(memory.created_at, memories._shared.now),  # noqa: SLF001 - the store's own clock
    }


def _shown_trust(memory: Memory | None) -> Origin | None:
    """Return the trust of a memory if it is a tool's or an outside source's, else None."""
    return None if memory is None else marked_trust(least_trusted([memory.origin, memory.trust]))


def _id_of(memory: Memory | None) -> str | None:
    return None if memory is None else memory.id


def _link(link: Link, memory_id: str, *, reason: str | None = None, trust: Origin | None = None) -> LinkLine:
    begins = link.from_id == memory_id
    known = {
        "to_id": link.to_id if begins else None,
        "from_id": None if begins else link.from_id,
        "relationship": link.metadata.original_relationship,
        "reason": reason,
        "trust": trust,
    }
    return _answer(LinkLine, known)


def _answer(kind: type[_T], known: Mapping[str, object]) -> _T:
    """Return an answer of one type: required fields, and optional fields with a value."""
    fields: Any = kind
    wanted, needed = fields.__annotations__, fields.__required_keys__
    said = {name: value for name, value in known.items() if name in needed or (name in wanted and _tells(value))}
    return cast("_T", said)


def _tells(value: object) -> bool:
    """Return True unless a value is None, empty or a count of 0."""
    return value is not None and value not in ("", []) and not (type(value) is int and value == 0)


def _read_only(memories: MemoryStore, memory: Memory) -> str | None:
    """Return the namespace of a read-only memory, or None for a writable one."""
    return None if memory.namespace == memories.namespace else memory.namespace


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
) -> Saved:
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
    return _saved(memory)


async def save_checkpoint(
    summary: Text, *, open_files: Items = (), next_steps: Items = (), implements: Ids = (), memories: MemoryStore
) -> Saved:
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
    return _saved(memory)


async def save_insight(
    content: Text,
    *,
    category: Item | None = None,
    tags: Items = (),
    source: Item | None = None,
    links: Links = (),
    memories: MemoryStore,
) -> Saved:
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
    return _saved(memory)


def _saved(memory: Memory) -> Saved:
    """Return the answer to a save: the id, and a note about conflicts and duplicates."""
    return _answer(Saved, {"id": memory.id, "note": _noticed(memory.id, memory.noticed)})


def _noticed(saved: str, seen: Noticed | None) -> str | None:
    """Return a note about the most important duplicate or conflict, with the id to resolve it."""
    if not seen:
        return None
    if any(one.id == saved for one in seen.copy_of):
        return "This was saved before, word for word: its id is the earlier one."
    what, found = next(
        (what, found)
        for what, found in (
            ("May replace", seen.may_replace),
            ("May contradict", seen.may_contradict),
            ("Says the same as", seen.copy_of),
        )
        if found
    )
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    # The text was saved before, then contradicted, and is saved again: the model must resolve the conflict.
    if seen.copy_of and found is not seen.copy_of:
        what = f"Said before, and {what[0].lower()}{what[1:]}"
    return f"{what} {found[0].id}{others}: if that no longer holds, evolve/supersede it by this id."


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


async def load_checkpoint(*, memories: MemoryStore, refs: RefStore) -> LastCheckpoint:
    """
    Load where the work stood last: summary, open files, next steps.

    Use it first when the user goes on with earlier work ("continue", "where were we?").
    Don't use it for why something is as it is (search/by_context).
    """
    memory = await memories.latest_checkpoint()
    if memory is None:
        return {"note": "There is no checkpoint yet: search/recent shows what else was saved."}
    metadata = memory.metadata
    assert isinstance(metadata, CheckpointMetadata)  # noqa: S101 - checkpoints have this metadata type
    cutter = Cutter.of(refs, "load/checkpoint", memory)
    carried_out = [
        link.to_id
        for link in (await _beside_one(memories, memory)).links
        if link.from_id == memory.id and link.link_type is LinkType.IMPLEMENTATION
    ]
    known = {
        "summary": cutter.cut("summary", memory.content),
        "trust": _shown_trust(memory),
        "open_files": cutter.cut_items("open_files", metadata.open_files),
        "next_steps": cutter.cut_items("next_steps", metadata.next_steps),
        "implements": cutter.cut_items("implements", list(dict.fromkeys(carried_out)), most=_LINKS),
        "at": when(memory.created_at, refs.now()),
        "more": cutter.more,
    }
    return _answer(LastCheckpoint, known)


async def load_context(id: Id, *, memories: MemoryStore, refs: RefStore) -> WithContext:  # noqa: A002 - name in DESIGN
    """
    Load one memory whole: how it evolved, what is linked to it, what it rests on.

    Use it when a search gave an id and too little.
    Don't use it to search (search/by_context), or for the last checkpoint (load/checkpoint).

    Args:
        id: As another tool gave it

    """
    found = await memories.load_context(id, link_types=_TELLING)
    memory = found.memory
    cutter = Cutter.of(refs, "load/context", memory)
    known = await _beside_one(memories, memory)
    told, today = known.outcome_of, _id_of(known.superseded_by)
    if told is None and today is None:
        # If the second read failed, use the chain of the first one.
        today = _standing(found.chain).get(memory.id)
    note = None
    if today is not None:
        whose = f"This {memory.type.value}" if told is None else f"The decision that this is about, {told},"
        note = f"{whose} no longer holds: {today} took its place."
    whole = _whole(found, cutter, memories, today=today, told=told)
    evidence = _evidence_lines(await memories.evidence_of(memory.id), cutter)
    versions = _near(found.chain.memories, memory)
    around = _around(found.around, found.chain)
    links = [link for link in found.links if _is_told(link)]
    # The reason of a link has the trust of the memory at which the link starts.
    begins = {memory.id: memory, **{one.memory.id: one.memory for one in found.around}}
    answer = {
        "memory": whole,
        "evolution": [_told(BriefMemory, one, memories) for one in versions if one.id != memory.id],
        "more_versions": len(found.chain) - len(versions),
        "around": [
            _told(AroundLine, one.memory, memories, depth=one.depth if one.depth > 1 else None)
            for one in around[:_AROUND]
        ],
        "more_around": max(0, len(around) - _AROUND),
        "links": _link_lines(links, memory.id, cutter, begins),
        "more_links": max(0, len(links) - _LINKS),
        "evidence": evidence,
        "more_evidence": max(0, len(memory.evidence) - len(evidence)),
        "more": cutter.more,
        "note": note,
    }
    return _answer(WithContext, answer)


def _around(around: Sequence[Reached], chain: Chain) -> list[Reached]:
    """Omit versions and outcome reasons, which the answer already contains."""
    versions = {memory.id for memory in chain.memories}
    return [one for one in around if one.memory.id not in versions and not is_reason(one.memory)]


def _is_told(link: Link) -> bool:
    """Return True for an explicit link that no other field of the answer shows."""
    word, reason = link.metadata.original_relationship, link.metadata.reason
    return link.created_by != "system" and (word not in (SUPERSEDES, OUTCOME_OF) or reason is not None)


def _whole(found: Surroundings, cutter: Cutter, memories: MemoryStore, *, today: str | None, told: str | None) -> Whole:
    memory = found.memory
    outcome, reason = _outcome_of(memory)
    # Missing fields of this memory type are left empty.
    part = functools.partial(getattr, memory.metadata)
    # Records have a history, too, but of their values.
    history = memory.metadata.history if isinstance(memory.metadata, DecisionMetadata) else ()
    after = cutter.cut_items("successors", successors(found.links, memory.id), most=_LINKS)
    known = {
        **_named(memory, memories),
        "content": cutter.cut("content", memory.content),
        "reasoning": cutter.cut_or_none("reasoning", part("reasoning", None)),
        "outcome": outcome,
        "outcome_reason": cutter.cut_or_none("outcome_reason", reason),
        # A single outcome is already in `outcome`.
        "outcomes": _outcome_lines(history, cutter) if len(history) > 1 else None,
        "category": cutter.cut_or_none("category", part("category", None)),
        "tags": cutter.cut_items("tags", part("tags", ())),
        "source": cutter.cut_or_none("source", part("source", None)),
        "open_files": cutter.cut_items("open_files", part("open_files", ())),
        "next_steps": cutter.cut_items("next_steps", part("next_steps", ())),
        "mentions": cutter.cut_items("mentions", memory.mentions, most=_LINKS),
        "at": _written(memory.created_at),
        "superseded_by": today,
        "successors": _others(after, today),
        "tells_outcome_of": told,
    }
    return _answer(Whole, known)


def _near(versions: Sequence[Memory], memory: Memory) -> Sequence[Memory]:
    """Return the neighbouring versions of a memory in a long chain."""
    place = next((place for place, one in enumerate(versions) if one.id == memory.id), 0)
    first = max(0, min(place - _NEAR_VERSIONS // 4, len(versions) - _NEAR_VERSIONS))
    return versions[first : first + _NEAR_VERSIONS]


def _outcome_lines(history: Sequence[OutcomeChange], cutter: Cutter) -> list[OutcomeLine]:
    """Return the last outcomes of a decision; earlier ones get a handle."""
    earlier = [f"{_written(one.at)} {one.outcome.value}: {one.reason or 'no reason'}" for one in history[:-_OUTCOMES]]
    cutter.keep_rest("outcomes", earlier, shown=_OUTCOMES)
    shown: list[OutcomeLine] = []
    for place, change in enumerate(history[-_OUTCOMES:], start=len(earlier)):
        reason = _short(change.reason)
        # The full reason of the last outcome is already in `outcome_reason`.
        if place < len(history) - 1:
            reason = cutter.cut_or_none(f"outcomes[{place}].reason", change.reason, most=_BESIDE)
        told = {"outcome": change.outcome.value, "reason": reason, "at": _written(change.at)}
        shown.append(_answer(OutcomeLine, told))
    return shown


def _link_lines(links: Sequence[Link], memory_id: str, cutter: Cutter, begins: Mapping[str, Memory]) -> list[LinkLine]:
    """
    Return the first links of a memory; the others get a handle.

    *begins* maps ids to source memories.
    """
    shown = []
    cutters = [_limited(cutter, begins.get(link.from_id)) for link in links]
    for place, link in enumerate(links[:_LINKS]):
        reason = cutters[place].cut_or_none(f"links[{place}].reason", link.metadata.reason, most=_LINE)
        trust = None if reason is None else _shown_trust(begins.get(link.from_id))
        shown.append(_link(link, memory_id, reason=reason, trust=trust))
    rest = [
        f"{link.from_id} {link.metadata.original_relationship} {link.to_id}"
        f"{f': {link.metadata.reason}' if link.metadata.reason else ''}"
        for link in links[_LINKS:]
    ]
    for one in cutters[_LINKS:]:
        cutter = attrs.evolve(cutter, provenance=cutter.provenance.limited_by(one.provenance))
    cutter.keep_rest("links", rest, shown=_LINKS)
    return shown


def _limited(cutter: Cutter, memory: Memory | None) -> Cutter:
    """
    Return a cutter for texts of another memory in the same answer.

    They share `Cutter.more`.
    """
    # The source memory of a link may not have been read.
    other = Provenance.by(UNKNOWN_ORIGIN) if memory is None else Provenance(memory.origin, memory.trust)
    return attrs.evolve(cutter, provenance=cutter.provenance.limited_by(other))


def _evidence_lines(evidence: Sequence[Evidence], cutter: Cutter) -> list[EvidenceLine]:
    """Return the evidence of a memory, with its stored texts."""
    shown = [
        _answer(
            EvidenceLine,
            {
                "source": cutter.cut(f"evidence[{place}].source", one.source, most=_BESIDE),
                "content": cutter.cut_or_none(f"evidence[{place}].content", one.text),
            },
        )
        for place, one in enumerate(evidence[:_EVIDENCE])
    ]
    rest = [
        f"evidence[{place}] {one.source}" if one.text is None else f"evidence[{place}] {one.source}:\n{one.text}"
        for place, one in enumerate(evidence[_EVIDENCE:], start=_EVIDENCE)
    ]
    cutter.keep_rest("evidence", rest, shown=len(shown))
    return shown


# Searching


async def by_topic(topic: Topic, *, memories: MemoryStore) -> ByTopic:
    """
    Show how what was decided on one topic evolved, newest first, with outcomes and why.

    Use it when you know the topic: what holds, what was tried before, why it was left.
    Don't use it for a question in words (search/by_context), or an id (load/context).

    Args:
        topic: Exactly as it was saved

    """
    chain = await memories.by_topic(topic, link_types=_TELLING)
    # Reasons are part of the outcomes.
    versions = [memory for memory in chain.memories if not is_reason(memory)]
    shown = versions[:_VERSIONS]
    most = _share(len(shown))
    standing = _standing(chain)
    near: list[str] = []
    note = None
    if not chain:
        near = await _near_topics(memories, topic)
        hint = f"Did you mean {' or '.join(map(quoted, near))}?" if near else "Ask search/by_context in words."
        note = f"Nothing was saved on this topic. {hint}"
    elif len(versions) > len(shown):
        note = (
            f"{len(versions) - len(shown)} older versions are left out: load/context with the last id here shows more."
        )
    around = [reached.memory for reached in _around(chain.around, chain)]
    known = {
        "topic": topic,
        "versions": [
            _told(
                Version,
                memory,
                memories,
                most=most,
                superseded_by=standing.get(memory.id),
                successors=_others(successors(chain.links, memory.id), standing.get(memory.id))[:_AROUND_A_TOPIC],
            )
            for memory in shown
        ],
        "older_versions": len(versions) - len(shown),
        "forks": [memory.id for memory in chain.forks][:_VERSIONS],
        "around": [_told(BriefMemory, memory, memories) for memory in around[:_AROUND_A_TOPIC]],
        "near_topics": near,
        "note": note,
    }
    return _answer(ByTopic, known)


def _others(successors_: Sequence[str], today: str | None) -> list[str]:
    """Return the successors of a memory, or nothing if the only one is its current successor."""
    return [] if list(successors_) == [today] else list(successors_)


def _standing(chain: Chain) -> dict[str, str]:
    """Return the current successor of each superseded memory of a chain."""
    return holding(((link.from_id, link.to_id) for link in chain.links), (memory.id for memory in chain.memories))


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
) -> ByContext:
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
    shown = await _found(FoundMemory, memories, [hit.memory for hit in best])
    found: list[Answering] = [
        {**one, "relevance": round(hit.relevance, 2)} for one, hit in zip(shown, best, strict=True)
    ]
    note = None
    if not best:
        note = "Nothing was found: ask in other words, leave out types, or see search/recent."
    elif more:
        note = f"{more} less relevant are left out."
    return _answer(ByContext, {"found": found, "note": note})


async def recent(
    *, limit: Limit = 10, types: Kinds | None = None, since: Time | None = None, memories: MemoryStore
) -> Recent:
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
    shown = await _found(RecentMemory, memories, found)
    days = ["", *(one["at"] for one in shown)]
    for one, before in zip(shown, days, strict=False):
        if one["at"] == before:
            del one["at"]
    return _answer(Recent, {"found": shown, "note": note})


async def _found(kind: type[_T], memories: MemoryStore, found: Sequence[Memory]) -> list[_T]:
    """Return the entries of found memories with their current successors, in one read."""
    beside = await _beside(memories, *(memory.id for memory in found)) if found else {}
    most = _share(len(found))
    shown = []
    for memory in found:
        known = beside.get(memory.id)
        today = None if known is None else known.superseded_by
        shown.append(
            _told(
                kind,
                memory,
                memories,
                most=most,
                superseded_by=_id_of(today),
                in_its_place=None if today is None else line(today.content, most),
                in_its_place_trust=_shown_trust(today),
                tells_outcome_of=None if known is None else known.outcome_of,
            )
        )
    return shown


# Evolving


async def set_outcome(
    decision_id: Id, outcome: Result, *, reason: Text | None = None, memories: MemoryStore
) -> Evolved:
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
    now, _ = _outcome_of(decision)
    today = _id_of((await _beside_one(memories, decision)).superseded_by)
    note = None
    if outcome == "FAILED" and today is None:
        note = "This decision still stands: evolve/supersede says what takes its place."
    known = {
        "decision": line(decision.content),
        "trust": _shown_trust(decision),
        "outcome": now or outcome,
        "outcomes_before": [change.outcome.value for change in getattr(decision.metadata, "history", ())[:-1]][-5:],
        "superseded_by": today,
        "note": note,
    }
    return _answer(Evolved, known)


async def supersede(
    decision_id: Id, decision: Text, reasoning: str, *, confidence: Share = 0.7, memories: MemoryStore
) -> Superseding:
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
    replaced = None if before is None else line(before.memory.content)
    known = {
        "id": new.id,
        "topic": new.topic,
        "replaced": replaced,
        "replaced_trust": None if before is None else _shown_trust(before.memory),
        "note": note,
    }
    return _answer(Superseding, known)


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
    reason = beginning(reasoning.strip(), MAX_ITEM) or None
    await memories.link(new.id, decision_id, SUPERSEDES, confidence=1.0, reason=reason, created_by="llm")
    return new


async def correct(
    id: Id,  # noqa: A002 - as above
    *,
    content: Text | None = None,
    reason: Text | None = None,
    reasoning: str | None = None,
    memories: MemoryStore,
) -> Corrected:
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
    known = {"id": memory.id, "content": line(memory.content), "trust": _shown_trust(memory)}
    return _answer(Corrected, known)


async def forget(
    *,
    ids: Ids | None = None,
    about: Topic | None = None,
    source: Item | None = None,
    before: Time | None = None,
    dry_run: bool = False,
    memories: MemoryStore,
) -> Forgot:
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
    return _answer(
        Forgot, {**attrs.asdict(done), "forgotten": dict(done.memories), "pending": [*done.pending], "note": note}
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
