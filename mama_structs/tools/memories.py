"""
The ten tools through which a model uses memories, in the order of DESIGN section 7.

An answer asks the store a fixed number of questions, however much it shows.
"""
# ruff: noqa: D417 - these docstrings are for models, who never see the store

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NoReturn, TypedDict, TypeVar, cast

import attrs
import msgspec
from msgspec import Meta

from mama_structs._quoting import quoted
from mama_structs.descriptors.store import RefStore
from mama_structs.errors import InvalidArgument, MamaStructsError, MemoryNotFound, QuotaExceeded
from mama_structs.memory.graph import Beside, holding, successors
from mama_structs.memory.model import (
    OUTCOME_OF,
    CheckpointMetadata,
    ContextMetadata,
    DecisionMetadata,
    Link,
    LinkType,
    Memory,
    MemoryType,
    OutcomeChange,
    parse_kept,
)
from mama_structs.memory.relationships import MAX_RELATIONSHIP
from mama_structs.memory.requests import MAX_ID, MAX_ITEM, MAX_ITEMS, MAX_LINKS, MAX_TOPIC, check_id
from mama_structs.memory.results import Chain, Evidence, Hit, Surroundings
from mama_structs.memory.store import MemoryStore
from mama_structs.tools.names import MEMORY_TOOLS
from mama_structs.tools.tool import Tool, ToolAnnotations, bound

# What the tools take, in types with bounds and words for models

_MAX_LIMIT: Final = 50
_MAX_QUERY: Final = 10_000
_MAX_TIME: Final = 64
# "2026-03-01"; words that a model tries instead get an answer that says more than their length.
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
    """A link that a model asks for, from what it saves to a memory that there is."""

    to_id: Annotated[Id, Meta(description="The id of the memory that it leads to, as another tool gave it")]
    relationship: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_RELATIONSHIP,
            description="Any word or two for it, such as depends on, contradicts, caused by, refines",
        ),
    ]
    confidence: Annotated[Share, Meta(description="How sure it is")] = 0.8
    reason: Annotated[Item | None, Meta(description="Why they belong together")] = None
    tags: Annotated[Items, Meta(description="Words to group links by")] = ()


Links = Annotated[Sequence[LinkTo], Meta(max_length=MAX_LINKS)]


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model gave to a tool that saves, as the method of `MemoryStore` of the same name takes it."""
    given = {name: value for name, value in arguments.items() if name != "memories"}
    if "links" in given:
        given["links"] = [msgspec.structs.asdict(link) for link in given["links"]]
    return {**given, "created_by": "llm"}


def _moment(name: str, text: str) -> datetime:
    """Read a time that a model gave; without a time zone it is meant as UTC."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(
            f"{name} must be a date or time in ISO 8601, such as 2026-03-01 or 2026-03-01T09:30:00Z, got {text!r:.80}",
            hint="work out the date; for words such as 'last week' use search/by_context, which understands them",
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# What the tools answer, cut to what a model can read at once

# Characters of a text that an answer about one memory shows; what is longer gets a handle.
_WHOLE: Final = 1000
_WITHOUT_HANDLE: Final = 4000
_LINE: Final = 160
# Below this relevance nothing was found (DESIGN section 6).
_LOW: Final = 0.3
# Characters of one search answer's texts, shared out among its memories.
_ROOM: Final = 8000
_LEAST: Final = 120
_MOST: Final = 400
# Characters of a text beside others of its kind, such as one of several pieces of evidence.
_BESIDE: Final = 400
# How many of each an answer shows.
_MADE_LINKS: Final = 5
_LINKS: Final = 20
_OUTCOMES: Final = 10
_EVIDENCE: Final = 10
_NEAR_VERSIONS: Final = 10
_VERSIONS: Final = 20
_AROUND: Final = 15
_AROUND_A_TOPIC: Final = 5
_NEAR_TOPICS: Final = 5
_TOPICS_LOOKED_AT: Final = 500
_UNITS: Final = {"year": 31_536_000, "month": 2_592_000, "week": 604_800, "day": 86_400, "hour": 3600, "minute": 60}


_T = TypeVar("_T")


# Each answer has the fields above; those below it, only where they say something (see `_answer`).


class Cut(TypedDict):
    """A text that an answer shows the beginning of."""

    field: str
    characters: int
    note: str


class More(Cut, total=False):
    """A text that an answer shows the beginning of, and its handle."""

    fd: str


class MadeLink(TypedDict):
    """A link that a save made, to another memory."""

    to_id: str
    relationship: str
    type: str
    confidence: float
    created_by: str


class LinkLine(MadeLink):
    """A link."""

    from_id: str


class LinkWithReason(LinkLine, total=False):
    """A link."""

    reason: str


class OneMemory(TypedDict):
    """What every answer says of a memory."""

    id: str
    type: str
    content: str
    created_at: str


class BriefMemory(OneMemory, total=False):
    """A memory in a line."""

    namespace: str
    topic: str
    outcome: str
    outcome_reason: str


class AroundLine(BriefMemory):
    """A memory near another one."""

    depth: int


class FoundMemory(BriefMemory, total=False):
    """A memory that a search found."""

    reasoning: str
    superseded_by: str
    in_its_place: str
    tells_outcome_of: str


class Answering(FoundMemory):
    """A memory with how well it answers, 0 to 1."""

    relevance: float


class Version(OneMemory, total=False):
    """One version of what was decided on a topic."""

    namespace: str
    reasoning: str
    confidence: float
    outcome: str
    outcome_reason: str
    superseded_by: str
    successors: list[str]


class OutcomeTold(TypedDict):
    """One outcome of a decision."""

    outcome: str
    at: str


class OutcomeLine(OutcomeTold, total=False):
    """One outcome of a decision."""

    reason: str


class EvidenceTold(TypedDict):
    """What a decision rests on."""

    source: str


class EvidenceLine(EvidenceTold, total=False):
    """What a decision rests on."""

    content: str


class Noted(TypedDict, total=False):
    """What an answer may say beside its subject."""

    note: str


class SavedMemory(TypedDict):
    """What was saved."""

    id: str
    type: str


class Saved(SavedMemory, Noted, total=False):
    """What a tool that saves answers."""

    topic: str
    supersedes: str
    links: list[MadeLink]
    more_links: int


class Superseding(SavedMemory, Noted, total=False):
    """What holds after a decision took the place of another one."""

    topic: str
    decision: str
    replaced: BriefMemory
    supersedes: str
    links: list[MadeLink]
    more_links: int


class Looked(TypedDict):
    """Whether there is one."""

    found: bool


class LastCheckpoint(Looked, Noted, total=False):
    """What load/checkpoint answers."""

    id: str
    summary: str
    open_files: list[str]
    next_steps: list[str]
    implements: list[str]
    created_at: str
    age: str
    more: list[More]


class WholeMemory(OneMemory):
    """What every answer says of one memory."""

    created_by: str
    age: str


class Whole(WholeMemory, total=False):
    """One memory, whole."""

    namespace: str
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
    """The memory that was asked for."""

    memory: Whole


class WithContext(AboutOne, Noted, total=False):
    """What load/context answers."""

    evolution: list[BriefMemory]
    more_versions: int
    around: list[AroundLine]
    more_around: int
    links: list[LinkWithReason]
    more_links: int
    evidence: list[EvidenceLine]
    more_evidence: int
    more: list[More]


class FoundByContext(TypedDict):
    """The memories that were found, the best first."""

    found: list[Answering]


class ByContext(FoundByContext, Noted):
    """What search/by_context answers."""


class FoundRecent(TypedDict):
    """The newest memories."""

    found: list[FoundMemory]


class Recent(FoundRecent, Noted):
    """What search/recent answers."""


class OnTopic(TypedDict):
    """The versions on a topic, newest first."""

    topic: str
    versions: list[Version]


class ByTopic(OnTopic, Noted, total=False):
    """What search/by_topic answers."""

    older_versions: int
    links: list[LinkWithReason]
    forks: list[str]
    around: list[BriefMemory]
    near_topics: list[str]


class EvolvedDecision(TypedDict):
    """A decision with its outcome."""

    id: str
    decision: str
    outcome: str


class Evolved(EvolvedDecision, Noted, total=False):
    """What holds after a decision was given an outcome."""

    topic: str
    outcome_reason: str
    outcomes_before: list[str]
    superseded_by: str


def beginning(text: str, most: int) -> str:
    """Return the beginning of a text, with a mark where something is left out."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def line(text: str, most: int = _LINE) -> str:
    """Return the beginning of a text as one line."""
    # Runs of blanks shrink; nothing beyond this much of the text can be seen.
    return beginning(" ".join(text[: 8 * most].split()), most)


def _short(text: str | None, most: int = _LINE) -> str | None:
    return None if text is None else line(text, most)


@attrs.define
class Cutter:
    """Cuts the long texts of one answer and keeps each behind a handle; `more` says so in the answer."""

    refs: RefStore
    # Where the texts come from, as models see it.
    source: str
    more: list[More] = attrs.field(factory=list)

    def cut(self, field: str, text: str, *, most: int = _WHOLE) -> str:
        """Return a text, or its beginning and a note among `more` on where the whole of it is."""
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
        """Do the same with what may not be there."""
        return None if text is None else self.cut(field, text, most=most)

    def cut_items(self, field: str, items: Sequence[str], *, most: int = 30) -> list[str]:
        """Return short items as they are, else the first of them, with a note on where all are."""
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
        """Note among `more` where the items are that the answer leaves out, as lines of one text."""
        if not items:
            return
        text = "\n".join(items)
        handle = self._handle(field, text)
        where = f"read_fd with fd={handle} gives them" if handle else "there is no room left for another fd"
        self._note(field, text, handle, f"{len(items)} more than the {shown} that are shown: {where}")

    def _note(self, field: str, text: str, handle: str | None, note: str) -> None:
        self.more.append(_answer(More, {"field": field, "characters": len(text), "fd": handle, "note": note}))

    def _handle(self, field: str, text: str) -> str | None:
        """Return the handle of a text, the one that it has if it has one; None where there is no room."""
        source = f"{self.source}, {field}"
        for known in self.refs.descriptors():
            if known.source == source and known.chars == len(text) and known.text == text:
                return known.handle
        try:
            make_room(self.refs)
            return self.refs.add(text, source=source).handle
        except QuotaExceeded:
            return None


def make_room(refs: RefStore) -> None:
    """Leave half of a conversation's room to what is nowhere else: what memories gave can be loaded again."""
    for known in refs.descriptors():
        usage = refs.usage
        if 2 * usage.handles < usage.max_handles and 2 * usage.bytes < usage.max_bytes:
            return
        # Which tool gave it, and of what.
        if known.source.partition(" ")[0] in MEMORY_TOOLS:
            refs.delete(known.handle)


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def age(moment: datetime, now: datetime) -> str:
    """Say how long ago something was: ``3 hours ago``."""
    seconds = (now - moment).total_seconds()
    for unit, length in _UNITS.items():
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def _share(count: int) -> int:
    """Return how many characters of each text an answer about several memories shows."""
    return max(_LEAST, min(_MOST, _ROOM // (2 * max(1, count))))


def _outcome_of(memory: Memory) -> tuple[str | None, str | None]:
    """Return what became of a decision, and why; twice None for what is none."""
    metadata = memory.metadata
    if not isinstance(metadata, DecisionMetadata) or metadata.outcome is None:
        return None, None
    return metadata.outcome.value, metadata.outcome_reason


def _told(kind: type[_T], memory: Memory, *, most: int = _LINE, **more: object) -> _T:
    """Tell of a memory what an answer of one kind says of it: its texts in lines of so many characters, and *more*."""
    decision = memory.metadata if isinstance(memory.metadata, DecisionMetadata) else None
    outcome, reason = _outcome_of(memory)
    known = {
        "id": memory.id,
        "type": memory.type.value,
        "topic": memory.topic,
        "content": line(memory.content, most),
        "reasoning": _short(decision.reasoning or None, most) if decision else None,
        "confidence": round(decision.confidence, 2) if decision else None,
        "outcome": outcome,
        "outcome_reason": _short(reason, most),
        "created_at": _written(memory.created_at),
        **more,
    }
    return _answer(kind, known)


def _id_of(memory: Memory | None) -> str | None:
    return None if memory is None else memory.id


def _link(kind: type[_T], link: Link, *, reason: str | None = None) -> _T:
    known = {
        "from_id": link.from_id,
        "to_id": link.to_id,
        "relationship": link.metadata.original_relationship,
        "type": link.link_type.value,
        "confidence": round(link.confidence, 2),
        "created_by": link.created_by,
        "reason": reason,
    }
    return _answer(kind, known)


def _answer(kind: type[_T], known: Mapping[str, object]) -> _T:
    """Return what an answer of one kind says, out of what is known; what need not stand there stands if it tells."""
    fields: Any = kind
    wanted, needed = fields.__annotations__, fields.__required_keys__
    said = {name: value for name, value in known.items() if name in needed or (name in wanted and _tells(value))}
    return cast("_T", said)


def _tells(value: object) -> bool:
    """Tell whether a value says something: it is there, not empty, and no count of nothing."""
    return value is not None and value not in ("", []) and not (type(value) is int and value == 0)


def _read_only(memories: MemoryStore, memory: Memory) -> str | None:
    """Return whose a memory is that is only read here, None for one that can be changed."""
    return None if memory.namespace == memories.namespace else memory.namespace


async def _beside(memories: MemoryStore, *ids: str) -> Mapping[str, Beside]:
    """Return what is shown beside memories, by id; nothing where it cannot be read: what was done is done."""
    try:
        return await memories._beside(ids)  # noqa: SLF001 - a plan for these answers
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
    Save a decision with its reasons, so that later conversations find it.

    Use it when something was decided that later work has to respect: a choice between ways, a rule, a design.
    Don't use it for what was merely learnt (save/insight), for where the work stands (save/checkpoint), to replace a
    decision whose id you have (evolve/supersede), or to say how one turned out (evolve/outcome).

    Args:
        topic: What it is about, in a word or two such as auth_strategy; use the same topic for what belongs together
        decision: What was decided, in a sentence or two that stand alone
        reasoning: Why, with the alternatives that were turned down
        confidence: How sure it is
        supersedes: The id of the decision whose place it takes
        implements: Ids of decisions that it carries out
        links: Further links to memories that there are
        evidence: What it rests on: ref:<id> or fd:<number>, whose text is kept with it, ids of memories, or addresses

    """
    given = _given(locals())
    for position, item in enumerate(evidence):
        # The form in which the store keeps evidence: nobody shows it to a model, so what it names is made up.
        if parse_kept(item.strip()) is not None:
            raise InvalidArgument(
                f"evidence[{position}] must not name a text by its hash",
                hint="give the handle alone, such as ref:name or fd:1, or the id of the memory that rests on it",
            )
    async with _naming_the_decision(memories, "supersedes", supersedes):
        memory = await memories.save_decision(**given, on_duplicate="merge")
    return await _saved(Saved, memories, memory, supersedes=supersedes)


async def save_checkpoint(
    summary: Text, *, open_files: Items = (), next_steps: Items = (), implements: Ids = (), memories: MemoryStore
) -> Saved:
    """
    Save where the work stands, so that another conversation can go on from there; load/checkpoint gives the newest.

    Use it at the end of a piece of work, before a break, or when the user says that they will go on later.
    Don't use it for a choice that was made (save/decision) or for what was learnt (save/insight).

    Args:
        summary: What was done, what holds, and what is open
        open_files: Paths of the files that are being worked on
        next_steps: What is to be done next, one step an item
        implements: Ids of the decisions that this work carries out

    """
    return await _saved(Saved, memories, await memories.save_checkpoint(**_given(locals())))


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
    Save something that was learnt and is worth knowing later.

    Use it for a fact, cause, pattern or preference that was found out: why something broke, what the user likes.
    Don't use it for a choice between ways (save/decision), for how a decision turned out (evolve/outcome), or for
    where the work stands (save/checkpoint).

    Args:
        content: What was learnt, in a sentence or two that stand alone
        category: What kind of insight it is, in a word such as performance
        tags: Words to group insights by
        source: Where it comes from, such as a file, an address or a person
        links: Links to memories that there are

    """
    return await _saved(Saved, memories, await memories.save_insight(**_given(locals()), on_duplicate="merge"))


async def _saved(kind: type[_T], memories: MemoryStore, memory: Memory, **more: object) -> _T:
    """Say what was saved, with the links that were made: those that were asked for first, then the surest."""
    links = [link for link in (await _beside_one(memories, memory)).links if link.from_id == memory.id]
    links.sort(key=lambda link: (link.created_by == "system", -link.confidence))
    made = [_link(MadeLink, link) for link in links[:_MADE_LINKS]]
    known = {
        "id": memory.id,
        "type": memory.type.value,
        "topic": memory.topic,
        "links": made,
        "more_links": len(links) - len(made),
        **more,
    }
    return _answer(kind, known)


@contextlib.asynccontextmanager
async def _naming_the_decision(memories: MemoryStore, name: str, memory_id: str | None) -> AsyncIterator[None]:
    """Say which argument it was when a store refuses what is no decision, and what gives decisions."""
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

    Use it first when the user wants to go on with earlier work ("continue", "where were we?").
    Don't use it to find out why something is as it is (search/by_context).
    """
    memory = await memories.latest_checkpoint()
    if memory is None:
        return {
            "found": False,
            "note": "There is no checkpoint yet: search/recent shows what else was saved, save/checkpoint saves one.",
        }
    metadata = memory.metadata
    assert isinstance(metadata, CheckpointMetadata)  # noqa: S101 - a checkpoint has no other
    cutter = Cutter(refs, f"load/checkpoint {memory.id}")
    carried_out = [
        link.to_id
        for link in (await _beside_one(memories, memory)).links
        if link.from_id == memory.id and link.link_type is LinkType.IMPLEMENTATION
    ]
    known = {
        "found": True,
        "id": memory.id,
        "summary": cutter.cut("summary", memory.content),
        "open_files": cutter.cut_items("open_files", metadata.open_files),
        "next_steps": cutter.cut_items("next_steps", metadata.next_steps),
        "implements": cutter.cut_items("implements", list(dict.fromkeys(carried_out)), most=_LINKS),
        "created_at": _written(memory.created_at),
        "age": age(memory.created_at, refs.now()),
        "more": cutter.more,
    }
    return _answer(LastCheckpoint, known)


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
    known = await _beside_one(memories, memory)
    told, today = known.outcome_of, _id_of(known.superseded_by)
    if told is None and today is None:
        # What was read first says it, too, where the second could not be read.
        today = _standing(found.chain).get(memory.id)
    note = None
    if today is not None:
        whose = f"This {memory.type.value}" if told is None else f"The decision that this is about, {told},"
        note = f"{whose} no longer holds: {today} took its place."
    about = {"today": today, "told": told, "whose": _read_only(memories, memory)}
    whole = _whole(found, cutter, how_old=age(memory.created_at, refs.now()), **about)
    evidence = _evidence_lines(await memories.evidence_of(memory.id), cutter)
    links = _link_lines(found.links, cutter)
    answer = {
        "memory": whole,
        "evolution": [_told(BriefMemory, one) for one in _near(found.chain.memories, memory)],
        "more_versions": max(0, len(found.chain) - _NEAR_VERSIONS),
        "around": [_told(AroundLine, one.memory, depth=one.depth) for one in found.around[:_AROUND]],
        "more_around": max(0, len(found.around) - _AROUND),
        "links": links,
        "more_links": max(0, len(found.links) - len(links)),
        "evidence": evidence,
        "more_evidence": max(0, len(memory.evidence) - len(evidence)),
        "more": cutter.more,
        "note": note,
    }
    return _answer(WithContext, answer)


def _whole(
    found: Surroundings, cutter: Cutter, *, today: str | None, told: str | None, how_old: str, whose: str | None
) -> Whole:
    memory = found.memory
    outcome, reason = _outcome_of(memory)
    # What a memory of its type has not is left empty.
    part = functools.partial(getattr, memory.metadata)
    after = cutter.cut_items("successors", successors(found.links, memory.id), most=_LINKS)
    known = {
        "id": memory.id,
        "type": memory.type.value,
        "namespace": whose,
        "topic": memory.topic,
        "content": cutter.cut("content", memory.content),
        "reasoning": cutter.cut_or_none("reasoning", part("reasoning", None)),
        "confidence": part("confidence", None),
        "outcome": outcome,
        "outcome_reason": cutter.cut_or_none("outcome_reason", reason),
        "outcomes": _outcome_lines(part("history", ()), cutter),
        "category": cutter.cut_or_none("category", part("category", None)),
        "tags": cutter.cut_items("tags", part("tags", ())),
        "source": cutter.cut_or_none("source", part("source", None)),
        "open_files": cutter.cut_items("open_files", part("open_files", ())),
        "next_steps": cutter.cut_items("next_steps", part("next_steps", ())),
        "mentions": cutter.cut_items("mentions", memory.mentions, most=_LINKS),
        "created_by": memory.metadata.created_by,
        "created_at": _written(memory.created_at),
        "age": how_old,
        "superseded_by": today,
        "successors": _others(after, today),
        "tells_outcome_of": told,
    }
    return _answer(Whole, known)


def _near(versions: Sequence[Memory], memory: Memory) -> Sequence[Memory]:
    """Return a few newer versions, this one and older ones, so that a long chain can be walked from one to the next."""
    place = next((place for place, one in enumerate(versions) if one.id == memory.id), 0)
    first = max(0, min(place - _NEAR_VERSIONS // 4, len(versions) - _NEAR_VERSIONS))
    return versions[first : first + _NEAR_VERSIONS]


def _outcome_lines(history: Sequence[OutcomeChange], cutter: Cutter) -> list[OutcomeLine]:
    """Show the last outcomes of a decision, with the earlier ones behind a handle."""
    earlier = [f"{_written(one.at)} {one.outcome.value}: {one.reason or 'no reason'}" for one in history[:-_OUTCOMES]]
    cutter.keep_rest("outcomes", earlier, shown=_OUTCOMES)
    shown: list[OutcomeLine] = []
    for place, change in enumerate(history[-_OUTCOMES:], start=len(earlier)):
        reason = _short(change.reason)
        # Of the last one all stands above.
        if place < len(history) - 1:
            reason = cutter.cut_or_none(f"outcomes[{place}].reason", change.reason, most=_BESIDE)
        told = {"outcome": change.outcome.value, "reason": reason, "at": _written(change.at)}
        shown.append(_answer(OutcomeLine, told))
    return shown


def _link_lines(links: Sequence[Link], cutter: Cutter) -> list[LinkWithReason]:
    """Show the first of a memory's links, with the others behind a handle."""
    shown = []
    for place, link in enumerate(links[:_LINKS]):
        reason = cutter.cut_or_none(f"links[{place}].reason", link.metadata.reason, most=_LINE)
        shown.append(_link(LinkWithReason, link, reason=reason))
    rest = [
        f"{link.from_id} {link.metadata.original_relationship} {link.to_id}"
        f"{f': {link.metadata.reason}' if link.metadata.reason else ''}"
        for link in links[_LINKS:]
    ]
    cutter.keep_rest("links", rest, shown=_LINKS)
    return shown


def _evidence_lines(evidence: Sequence[Evidence], cutter: Cutter) -> list[EvidenceLine]:
    """Return what a memory rests on, with the texts that were kept of it."""
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
    Show how what was decided on one topic evolved: every version, newest first, with outcomes and their reasons.

    Use it when you know the topic: what holds now, what was tried before, and why it was left.
    Don't use it for a question in words (search/by_context), or for one memory whose id you have (load/context).

    Args:
        topic: The topic exactly as it was saved, such as auth_strategy

    """
    chain = await memories.by_topic(topic)
    # The reason of an outcome stands beside the outcome.
    versions = [
        memory
        for memory in chain.memories
        if not (isinstance(memory.metadata, ContextMetadata) and memory.metadata.source == OUTCOME_OF)
    ]
    shown = versions[:_VERSIONS]
    most = _share(len(shown))
    standing = _standing(chain)
    ids = {memory.id for memory in shown}
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
    links = [link for link in chain.links if link.from_id in ids][:_VERSIONS]
    known = {
        "topic": topic,
        "versions": [
            _told(
                Version,
                memory,
                most=most,
                namespace=_read_only(memories, memory),
                superseded_by=standing.get(memory.id),
                successors=_others(successors(chain.links, memory.id), standing.get(memory.id))[:_AROUND_A_TOPIC],
            )
            for memory in shown
        ],
        "older_versions": len(versions) - len(shown),
        "links": [_link(LinkWithReason, link, reason=_short(link.metadata.reason)) for link in links],
        "forks": [memory.id for memory in chain.forks][:_VERSIONS],
        "around": [_told(BriefMemory, reached.memory) for reached in chain.around[:_AROUND_A_TOPIC]],
        "near_topics": near,
        "note": note,
    }
    return _answer(ByTopic, known)


def _others(successors_: Sequence[str], today: str | None) -> list[str]:
    """Return what took a memory's place, unless that is just what stands there today, which is said already."""
    return [] if list(successors_) == [today] else list(successors_)


def _standing(chain: Chain) -> dict[str, str]:
    """Return what stands today in the place of each memory of a chain that does not hold itself."""
    return holding(((link.from_id, link.to_id) for link in chain.links), (memory.id for memory in chain.memories))


async def _near_topics(memories: MemoryStore, topic: str) -> list[str]:
    """Return topics that exist and look or mean nearly the same."""
    # Most are found by how they look; words of another language or another word for it, by what they mean.
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
    Find what was decided, learnt or done, by meaning, words, links and time; English and Korean.

    Use it for any question about the past, such as "why did we leave JWT?" or "what did we decide last week?".
    The answer names outcomes with their reasons, and what superseded what.
    Don't use it when you know the exact topic (search/by_topic), have an id (load/context), or only want the newest
    (search/recent).

    Args:
        query: The question, in whole words
        types: Only memories of these types; leave it out for all
        limit: How many to find at most

    """
    hits = await memories.search(query, types=types, limit=limit)
    shown = await _found(memories, [hit.memory for hit in hits])
    found: list[Answering] = [
        {**one, "relevance": round(hit.relevance, 2)} for one, hit in zip(shown, hits, strict=True)
    ]
    return _answer(ByContext, {"found": found, "note": _note(hits)})


async def recent(
    *, limit: Limit = 10, types: Kinds | None = None, since: Time | None = None, memories: MemoryStore
) -> Recent:
    """
    List the newest memories, newest first.

    Use it to see what happened lately, as when the user comes back after a while.
    Don't use it to find something in particular (search/by_context), or to go on with the last work (load/checkpoint).

    Args:
        limit: How many at most
        types: Only memories of these types; leave it out for all
        since: Only from this date or time on, in ISO 8601, such as 2026-03-01 or 2026-03-01T09:30:00Z; without a
            time zone it is UTC

    """
    found = await memories.recent(limit=limit, types=types, since=None if since is None else _moment("since", since))
    note = None
    if not found:
        narrowed = types is not None or since is not None
        note = f"There is nothing{' like this: leave out types or since' if narrowed else ' saved yet'}."
    return _answer(Recent, {"found": await _found(memories, found), "note": note})


async def _found(memories: MemoryStore, found: Sequence[Memory]) -> list[FoundMemory]:
    """Show memories that a search found, with what holds in their place: all of it is read at once."""
    beside = await _beside(memories, *(memory.id for memory in found)) if found else {}
    most = _share(len(found))
    shown = []
    for memory in found:
        known = beside.get(memory.id)
        today = None if known is None else known.superseded_by
        shown.append(
            _told(
                FoundMemory,
                memory,
                most=most,
                namespace=_read_only(memories, memory),
                superseded_by=_id_of(today),
                in_its_place=None if today is None else line(today.content, most),
                tells_outcome_of=None if known is None else known.outcome_of,
            )
        )
    return shown


def _note(hits: Sequence[Hit]) -> str | None:
    if not hits:
        return "Nothing was found: ask in other words, leave out types, or see search/recent."
    best = max(hit.relevance for hit in hits)
    if best < _LOW:
        return (
            f"Nothing answers this well (the best relevance is {best:.2f}; below {_LOW} it is likely about something "
            "else): ask in other words, or see search/recent. Don't take these for an answer."
        )
    return "load/context with an id gives the whole of a memory, and what belongs to it."


# Evolving


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
    async with _naming_the_decision(memories, "decision_id", decision_id):
        decision = await memories.set_outcome(decision_id, outcome, reason=reason, created_by="llm")
    now, why = _outcome_of(decision)
    today = _id_of((await _beside_one(memories, decision)).superseded_by)
    note = None
    if outcome == "FAILED" and today is None:
        note = "This decision still stands: evolve/supersede says what takes its place."
    known = {
        "id": decision.id,
        "topic": decision.topic,
        "decision": line(decision.content),
        "outcome": now or outcome,
        "outcome_reason": _short(why),
        "outcomes_before": [change.outcome.value for change in getattr(decision.metadata, "history", ())[:-1]][-5:],
        "superseded_by": today,
        "note": note,
    }
    return _answer(Evolved, known)


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
    async with _naming_the_decision(memories, "decision_id", decision_id):
        new = await memories.supersede(decision_id, decision, reasoning, confidence=confidence, created_by="llm")
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
    replaced = None if before is None else _told(BriefMemory, before.memory)
    # What was replaced names itself, unless it cannot be read.
    unread = decision_id if replaced is None else None
    told = {"decision": line(new.content), "replaced": replaced, "supersedes": unread, "note": note}
    return await _saved(Superseding, memories, new, **told)


# The tools

_READS: Final = ToolAnnotations(read_only=True, open_world=False)
# Nothing is lost: an earlier outcome stays in the history, and a superseded decision stays where it is.
_ADDS: Final = ToolAnnotations(destructive=False, open_world=False)
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
}


def memory_tools(memories: MemoryStore, refs: RefStore, *, forget: bool = False) -> list[Tool]:
    """Return the tools for one store, with *refs* for what is too long; all stores' tools share their schemas."""
    chosen = (template for template in _templates() if forget or template.name != "evolve/forget")
    return [bound(template, memories=memories, refs=refs) for template in chosen]


@functools.cache
def _templates() -> tuple[Tool, ...]:
    return tuple(
        attrs.evolve(
            Tool.from_function(
                functools.partial(
                    _FUNCTIONS[name],
                    **dict.fromkeys(inspect.signature(_FUNCTIONS[name]).parameters.keys() & {"memories", "refs"}),
                ),
                name=name,
                title=title,
                annotations=_READS if name.startswith(("load/", "search/")) else _ADDS,
            ),
            on_error=_raise,
            # A text that is saved would be gone with its conversation, were it kept as a handle.
            resolve=name.startswith(("save/", "evolve/")),
            handles=frozenset({"evidence"}) if name == "save/decision" else frozenset(),
        )
        for name, title in MEMORY_TOOLS.items()
        if name in _FUNCTIONS
    )


def _raise(error: MamaStructsError, _arguments: Mapping[str, Any]) -> NoReturn:
    """Raise an error with a way out for a model."""
    if isinstance(error, MemoryNotFound) and error.hint is None:
        error.hint = "search/by_context, search/by_topic and search/recent give ids"
    raise error
