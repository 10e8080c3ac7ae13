"""
Conversion of memories and search hits into the answers of the memory tools.

Long texts are truncated, and stored under a handle that the model can read.
"""
# No postponed annotations: `TypedDict` does not recognize Required in the text of an annotation.

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NotRequired, Required, Self, TypedDict, TypeVar, cast

import attrs

from mama_structs._internal.prompt_quoting import quoted
from mama_structs.errors import QuotaExceeded
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
    Noticed,
    OutcomeChange,
    is_reason,
)
from mama_structs.provenance import UNKNOWN_ORIGIN, Origin, Provenance, least_trusted, marked_trust
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.tools.wire_names import MEMORY_TOOLS

# Characters of a text in an answer about one memory; a longer text gets a handle.
_WHOLE: Final = 1000
_WITHOUT_HANDLE: Final = 4000
_LINE: Final = 160
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
_DAY: Final = timedelta(days=1)
# Default confidence of a decision.
_USUAL: Final = DecisionMetadata().confidence
_UNITS: Final = {"year": 31_536_000, "month": 2_592_000, "week": 604_800, "day": 86_400, "hour": 3600, "minute": 60}

_T = TypeVar("_T")


# Fields of an answer that are not required are included if they are not empty (see `make_answer`).


class More(TypedDict, total=False):
    """A text that an answer shows the beginning of, and its handle."""

    field: Required[str]
    characters: Required[int]
    note: Required[str]
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


class OutcomeLine(TypedDict, total=False):
    """One outcome of a decision."""

    outcome: Required[str]
    at: Required[str]
    reason: str


class EvidenceLine(TypedDict, total=False):
    """What a decision rests on."""

    source: Required[str]
    content: str


class Saved(TypedDict, total=False):
    """What a tool that saves answers."""

    id: Required[str]
    note: str


class Superseding(Saved, total=False):
    """What holds after a decision took the place of another one."""

    topic: str
    replaced: str
    replaced_trust: str


class LastCheckpoint(TypedDict, total=False):
    """Answer of load/checkpoint."""

    note: str
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


class WithContext(TypedDict, total=False):
    """What load/context answers."""

    memory: Required[Whole]
    note: str
    evolution: list[BriefMemory]
    more_versions: int
    around: list[AroundLine]
    more_around: int
    links: list[LinkLine]
    more_links: int
    evidence: list[EvidenceLine]
    more_evidence: int
    more: list[More]


class ByContext(TypedDict, total=False):
    """What search/by_context answers."""

    # The best memory is first.
    found: Required[list[Answering]]
    note: str


class Recent(TypedDict, total=False):
    """What search/recent answers."""

    found: Required[list[RecentMemory]]
    note: str


class ByTopic(TypedDict, total=False):
    """What search/by_topic answers."""

    topic: Required[str]
    # The newest version is first.
    versions: Required[list[Version]]
    note: str
    older_versions: int
    forks: list[str]
    around: list[BriefMemory]
    near_topics: list[str]


class Evolved(TypedDict, total=False):
    """What holds after a decision was given an outcome."""

    decision: Required[str]
    outcome: Required[str]
    note: str
    trust: str
    outcomes_before: list[str]
    superseded_by: str


class Forgot(TypedDict, total=False):
    """What is gone, or would be: nothing of it is repeated."""

    # Numbers of erased memories by type.
    forgotten: Required[dict[str, int]]
    note: str
    links: int
    mended: int
    texts: int
    refs: int
    pending: list[str]


class Corrected(TypedDict, total=False):
    """Answer of evolve/correct."""

    id: Required[str]
    content: Required[str]
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
    def of(cls, refs: RefStore, tool: str, memory: Memory) -> Self:
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
        self.more.append(make_answer(More, {"field": field, "characters": len(text), "fd": handle, "note": note}))

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


# Parts of answers


def make_answer(kind: type[_T], known: Mapping[str, object]) -> _T:
    """Return an answer of one type: required fields, and optional fields with a value."""
    fields: Any = kind
    wanted, needed = fields.__annotations__, fields.__required_keys__
    said = {name: value for name, value in known.items() if name in needed or (name in wanted and _tells(value))}
    return cast("_T", said)


def _tells(value: object) -> bool:
    """Return True unless a value is None, empty or a count of 0."""
    return value is not None and value not in ("", []) and not (type(value) is int and value == 0)


def get_shown_trust(memory: Memory | None) -> Origin | None:
    """Return the trust of a memory if it is a tool's or an outside source's, else None."""
    return None if memory is None else marked_trust(least_trusted([memory.origin, memory.trust]))


def get_id(memory: Memory | None) -> str | None:
    """Return the id of a memory, or None for None."""
    return None if memory is None else memory.id


def get_outcome(memory: Memory) -> tuple[str | None, str | None]:
    """Return the outcome of a decision and its reason, or None twice."""
    metadata = memory.metadata
    if not isinstance(metadata, DecisionMetadata) or metadata.outcome is None:
        return None, None
    return metadata.outcome.value, metadata.outcome_reason


def _share(count: int) -> int:
    """Return the number of characters for each text in an answer about several memories."""
    return max(_LEAST, min(_MOST, _ROOM // (2 * max(1, count))))


def _told(kind: type[_T], memory: Memory, memories: MemoryStore, *, most: int = _LINE, **more: object) -> _T:
    """Return the entry of a memory in an answer, with truncated texts and *more* fields."""
    outcome, reason = get_outcome(memory)
    reasoning = memory.metadata.reasoning if isinstance(memory.metadata, DecisionMetadata) else None
    known = {
        **_named(memory, memories),
        "content": line(memory.content, most),
        "reasoning": _short(reasoning, most),
        "outcome": outcome,
        "outcome_reason": _short(reason, most),
        **more,
    }
    return make_answer(kind, known)


def _named(memory: Memory, memories: MemoryStore) -> dict[str, object]:
    """Return the identifying fields of a memory, without default values."""
    confidence = getattr(memory.metadata, "confidence", None)
    return {
        "id": memory.id,
        "type": None if memory.id.startswith(f"{memory.type.value}_") else memory.type.value,
        "trust": get_shown_trust(memory),
        # Memories of other namespaces are read-only.
        "namespace": None if memory.namespace == memories.namespace else memory.namespace,
        "topic": memory.topic,
        "confidence": None if confidence in (None, _USUAL) else round(confidence, 2),
        "at": when(memory.created_at, memories._shared.now),  # noqa: SLF001 - the store's own clock
    }


def render_results(
    kind: type[_T], memories: MemoryStore, found: Sequence[Memory], beside: Mapping[str, Beside]
) -> list[_T]:
    """Return the entries of found memories with their current successors."""
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
                superseded_by=get_id(today),
                in_its_place=None if today is None else line(today.content, most),
                in_its_place_trust=get_shown_trust(today),
                tells_outcome_of=None if known is None else known.outcome_of,
            )
        )
    return shown


# Answers to saves


def render_saved(memory: Memory) -> Saved:
    """Return the answer to a save: the id, and a note about conflicts and duplicates."""
    return make_answer(Saved, {"id": memory.id, "note": _noticed(memory.id, memory.noticed)})


def _noticed(saved: str, seen: Noticed | None) -> str | None:
    """Return a note about the most important duplicate or conflict, with the id to resolve it."""
    if not seen:
        return None
    if any(one.id == saved for one in seen.copy_of):
        return "This was saved before, word for word: its id is the earlier one."
    kinds = {"May replace": seen.may_replace, "May contradict": seen.may_contradict, "Says the same as": seen.copy_of}
    what, found = next((what, found) for what, found in kinds.items() if found)
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    # The text was saved before, then contradicted, and is saved again: the model must resolve the conflict.
    if seen.copy_of and found is not seen.copy_of:
        what = f"Said before, and {what[0].lower()}{what[1:]}"
    return f"{what} {found[0].id}{others}: if that no longer holds, evolve/supersede it by this id."


# Answers about one memory


def render_checkpoint(memory: Memory, links: Sequence[Link], refs: RefStore) -> LastCheckpoint:
    """Return the answer about a checkpoint; *links* start or end at it."""
    metadata = memory.metadata
    assert isinstance(metadata, CheckpointMetadata)  # noqa: S101 - checkpoints have this metadata type
    cutter = Cutter.of(refs, "load/checkpoint", memory)
    carried_out = [
        link.to_id for link in links if link.from_id == memory.id and link.link_type is LinkType.IMPLEMENTATION
    ]
    known = {
        "summary": cutter.cut("summary", memory.content),
        "trust": get_shown_trust(memory),
        "open_files": cutter.cut_items("open_files", metadata.open_files),
        "next_steps": cutter.cut_items("next_steps", metadata.next_steps),
        "implements": cutter.cut_items("implements", list(dict.fromkeys(carried_out)), most=_LINKS),
        "at": when(memory.created_at, refs.now()),
        "more": cutter.more,
    }
    return make_answer(LastCheckpoint, known)


def render_context(
    found: Surroundings, known: Beside, evidence: Sequence[Evidence], *, memories: MemoryStore, refs: RefStore
) -> WithContext:
    """Return the answer about one memory, with its versions, neighbours, links and evidence."""
    memory = found.memory
    cutter = Cutter.of(refs, "load/context", memory)
    told, today = known.outcome_of, get_id(known.superseded_by)
    if told is None and today is None:
        # If the second read failed, use the chain of the first one.
        today = _standing(found.chain).get(memory.id)
    note = None
    if today is not None:
        whose = f"This {memory.type.value}" if told is None else f"The decision that this is about, {told},"
        note = f"{whose} no longer holds: {today} took its place."
    # Handles are numbered in this order: memory, evidence, links.
    whole = _whole(found, cutter, memories, today=today, told=told)
    shown_evidence = _evidence_lines(evidence, cutter)
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
        "evidence": shown_evidence,
        "more_evidence": max(0, len(memory.evidence) - len(shown_evidence)),
        "more": cutter.more,
        "note": note,
    }
    return make_answer(WithContext, answer)


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
    outcome, reason = get_outcome(memory)
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
    return make_answer(Whole, known)


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
        shown.append(make_answer(OutcomeLine, told))
    return shown


def _link_lines(links: Sequence[Link], memory_id: str, cutter: Cutter, begins: Mapping[str, Memory]) -> list[LinkLine]:
    """
    Return the first links of a memory; the others get a handle.

    *begins* maps ids to source memories.
    """
    shown = []
    for place, link in enumerate(links[:_LINKS]):
        start = begins.get(link.from_id)
        reason = _limited(cutter, start).cut_or_none(f"links[{place}].reason", link.metadata.reason, most=_LINE)
        known = {
            "to_id": link.to_id if link.from_id == memory_id else None,
            "from_id": None if link.from_id == memory_id else link.from_id,
            "relationship": link.metadata.original_relationship,
            "reason": reason,
            "trust": None if reason is None else get_shown_trust(start),
        }
        shown.append(make_answer(LinkLine, known))
    rest = []
    for link in links[_LINKS:]:
        cutter = _limited(cutter, begins.get(link.from_id))
        reason = f": {link.metadata.reason}" if link.metadata.reason else ""
        rest.append(f"{link.from_id} {link.metadata.original_relationship} {link.to_id}{reason}")
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
        make_answer(
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


# Answers to searches


def render_topic(topic: str, chain: Chain, near: Sequence[str], memories: MemoryStore) -> ByTopic:
    """Return the answer about a topic, or the topics *near* it if it has no memories."""
    # Reasons are part of the outcomes.
    versions = [memory for memory in chain.memories if not is_reason(memory)]
    shown = versions[:_VERSIONS]
    older = len(versions) - len(shown)
    most = _share(len(shown))
    standing = _standing(chain)
    note = None
    if not chain:
        hint = f"Did you mean {' or '.join(map(quoted, near))}?" if near else "Ask search/by_context in words."
        note = f"Nothing was saved on this topic. {hint}"
    elif older:
        note = f"{older} older versions are left out: load/context with the last id here shows more."
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
        "older_versions": older,
        "forks": [memory.id for memory in chain.forks][:_VERSIONS],
        "around": [_told(BriefMemory, one.memory, memories) for one in _around(chain.around, chain)[:_AROUND_A_TOPIC]],
        "near_topics": near,
        "note": note,
    }
    return make_answer(ByTopic, known)


def _others(successors_: Sequence[str], today: str | None) -> list[str]:
    """Return the successors of a memory, or nothing if the only one is its current successor."""
    return [] if list(successors_) == [today] else list(successors_)


def _standing(chain: Chain) -> dict[str, str]:
    """Return the current successor of each superseded memory of a chain."""
    return holding(((link.from_id, link.to_id) for link in chain.links), (memory.id for memory in chain.memories))
