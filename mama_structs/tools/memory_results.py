"""
Conversion of memories and search hits into the answers of the memory tools.

Long texts are truncated, and stored under a handle that the model can read.
"""
# `TypedDict` cannot find Required in postponed annotations, so this module does not use them.

import functools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NotRequired, Required, Self, TypedDict, TypeVar, cast

import attrs

from mama_structs._internal.prompt_quoting import quote
from mama_structs.errors import QuotaExceeded
from mama_structs.memory.graph.results import Chain, Evidence, MemoryDetails, TraversedMemory
from mama_structs.memory.graph.traversal import AnswerExtras, direct_successors, find_superseded
from mama_structs.memory.search.passages import Passage, show_passage
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import (
    OUTCOME_OF_WORD,
    SUPERSEDES_WORD,
    CheckpointMetadata,
    DecisionMetadata,
    Link,
    LinkType,
    Memory,
    OutcomeChange,
    SaveWarnings,
    is_outcome_reason,
)
from mama_structs.provenance import UNKNOWN_ORIGIN, Origin, Provenance, get_marked_trust, least_trusted
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.tools.wire_names import MEMORY_TOOLS

# Maximum characters of a text in an answer about one memory. The whole text is stored under a handle.
MAX_TEXT_CHARS: Final = 1000
MAX_CHARS_WITHOUT_HANDLE: Final = 4000
MAX_LINE_CHARS: Final = 160
# Maximum characters of all texts in a search answer.
MAX_SEARCH_CHARS: Final = 6000
# Minimum characters of an answer's budget that ids, times and other fields take, and their minimum share.
MIN_FIELD_CHARS: Final = 400
MIN_FIELD_SHARE: Final = 0.25
MIN_SEARCH_TEXT_CHARS: Final = 120
# Maximum characters of a listed text, such as a piece of evidence.
MAX_LISTED_TEXT_CHARS: Final = 400
# Maximum numbers of items in an answer.
MAX_SHOWN_LINKS: Final = 20
MAX_OUTCOMES: Final = 10
MAX_EVIDENCE: Final = 10
MAX_NEAR_VERSIONS: Final = 10
MAX_VERSIONS: Final = 20
MAX_NEIGHBOURS: Final = 15
MAX_TOPIC_NEIGHBOURS: Final = 5
ONE_DAY: Final = timedelta(days=1)
# Answers omit this default confidence of a decision.
DEFAULT_CONFIDENCE: Final = DecisionMetadata().confidence
UNIT_SECONDS: Final = {
    "year": 31_536_000,
    "month": 2_592_000,
    "week": 604_800,
    "day": 86_400,
    "hour": 3600,
    "minute": 60,
}

_T = TypeVar("_T")


# Models read the docstrings of these classes, which become descriptions in the result schemas.
# An answer contains its required fields, and other fields only if they have a value (see `make_answer`).


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


class MemoryEntry(TypedDict):
    """
    Fields of a memory in every answer.

    The time is omitted if it equals that of the previous entry.
    """

    id: str
    content: str
    at: NotRequired[str]


class BriefMemory(MemoryEntry, total=False):
    """A memory in one line. `type` is given if the id does not begin with it."""

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


class Version(MemoryEntry, total=False):
    """One version of a decision on a topic."""

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
    """A memory that a decision cites as evidence."""

    source: Required[str]
    content: str


class Saved(TypedDict, total=False):
    """The answer of a tool that saves."""

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


class Whole(MemoryEntry, total=False):
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
    """The answer of load/context."""

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
    """The answer of search/by_context."""

    # Best first.
    found: Required[list[Answering]]
    note: str


class Recent(TypedDict, total=False):
    """The answer of search/recent."""

    found: Required[list[RecentMemory]]
    note: str


class ByTopic(TypedDict, total=False):
    """The answer of search/by_topic."""

    topic: Required[str]
    # Newest first.
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

    # Number of erased memories of each type.
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


def truncate(text: str, max_chars: int) -> str:
    """Return the beginning of a text, with an ellipsis if it was cut."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1].rstrip()}…"


def truncate_line(text: str, max_chars: int = MAX_LINE_CHARS, passage: Passage | None = None) -> str:
    """Return the beginning of a text, or the text around a passage, as one line."""
    # Joining words removes whitespace, so the beginning is read from more than *max_chars* characters.
    around = text[: 8 * max_chars] if passage is None else show_passage(text, passage, max_chars)
    return truncate(" ".join(around.split()), max_chars)


def _truncate_optional_line(text: str | None, max_chars: int = MAX_LINE_CHARS) -> str | None:
    return None if text is None else truncate_line(text, max_chars)


@attrs.define
class TextTruncator:
    """
    Truncates the long texts of an answer.

    The full texts are stored, with their handles in `more`.
    """

    refs: RefStore
    # Source label of the stored texts, which models see, and their provenance.
    source: str
    provenance: Provenance
    more: list[More] = attrs.field(factory=list)

    @classmethod
    def for_memory(cls, refs: RefStore, tool: str, memory: Memory) -> Self:
        """Create a truncator for the texts of a memory."""
        return cls(refs, f"{tool} {memory.id}", Provenance(memory.origin, memory.trust))

    def truncate(self, field: str, text: str, *, max_chars: int = MAX_TEXT_CHARS) -> str:
        """Return a text. If it is too long, return its beginning and add its handle to `more`."""
        if len(text) <= max_chars:
            return text
        handle = self._store_text(field, text)
        if handle is not None:
            self._add_note(field, text, handle, f"read_fd with fd={handle} gives all of it")
            return truncate(text, max_chars)
        if len(text) > MAX_CHARS_WITHOUT_HANDLE:
            self._add_note(field, text, None, "the rest cannot be shown: there is no room left for another fd")
        return truncate(text, MAX_CHARS_WITHOUT_HANDLE)

    def truncate_optional(self, field: str, text: str | None, *, max_chars: int = MAX_TEXT_CHARS) -> str | None:
        """Return None for None, otherwise the result of `truncate`."""
        return None if text is None else self.truncate(field, text, max_chars=max_chars)

    def truncate_items(self, field: str, items: Sequence[str], *, max_items: int = 30) -> list[str]:
        """Return a short list, or its first items and a note in `more` with the handle of all."""
        if len(items) <= max_items and sum(map(len, items)) <= MAX_TEXT_CHARS:
            return list(items)
        shown_items = [truncate_line(item) for item in items[:max_items]]
        text = "\n".join(items)
        handle = self._store_text(field, text)
        shortened = ", shortened" if shown_items != list(items[:max_items]) else ""
        where = f"; read_fd with fd={handle} gives all of it" if handle else ""
        self._add_note(
            field,
            text,
            handle,
            f"{len(items)} items, of which the first {len(shown_items)} are shown{shortened}{where}",
        )
        return shown_items

    def store_rest(self, field: str, items: Sequence[str], *, shown_count: int) -> None:
        """Store omitted items as the lines of one text, and add its handle to `more`."""
        if not items:
            return
        text = "\n".join(items)
        handle = self._store_text(field, text)
        where = f"read_fd with fd={handle} gives them" if handle else "there is no room left for another fd"
        self._add_note(field, text, handle, f"{len(items)} more than the {shown_count} that are shown: {where}")

    def _add_note(self, field: str, text: str, handle: str | None, note: str) -> None:
        self.more.append(make_answer(More, {"field": field, "characters": len(text), "fd": handle, "note": note}))

    def _store_text(self, field: str, text: str) -> str | None:
        """
        Return the handle of a text, storing it if necessary.

        Return None if the quota is exhausted.
        """
        source = f"{self.source}, {field}"
        for descriptor in self.refs.list_descriptors():
            is_alike = (descriptor.source, descriptor.provenance, descriptor.chars) == (
                source,
                self.provenance,
                len(text),
            )
            if is_alike and descriptor.text == text:
                return descriptor.handle
        try:
            free_quota(self.refs)
            provenance = self.provenance
            return self.refs._add_any(text, source=source, origin=provenance.origin, trust=provenance.trust).handle
        except QuotaExceeded:
            return None


def free_quota(refs: RefStore) -> None:
    """Delete stored memory texts until half of the quota is free. Models can load them again."""
    for descriptor in refs.list_descriptors():
        usage = refs.usage
        if 2 * usage.handles < usage.max_handles and 2 * usage.bytes < usage.max_bytes:
            return
        # The source of a descriptor begins with the name of the tool that created it.
        if descriptor.source.partition(" ")[0] in MEMORY_TOOLS:
            refs.delete(descriptor.handle)


def _format_time(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%MZ}"


def format_time_or_age(time: datetime, now: datetime) -> str:
    """Return a time as an age (``3 hours ago``) within a day of *now*, otherwise as a date."""
    return format_age(time, now) if abs(now - time) < ONE_DAY else f"{time:%Y-%m-%d}"


def format_age(time: datetime, now: datetime) -> str:
    """Return the time since *time*, such as ``3 hours ago``."""
    seconds = (now - time).total_seconds()
    for unit, length in UNIT_SECONDS.items():
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


# Parts of answers


def make_answer(kind: type[_T], known: Mapping[str, object]) -> _T:
    """Create an answer with its required fields, and with optional fields that have a value."""
    fields: Any = kind
    wanted, needed = fields.__annotations__, fields.__required_keys__
    said = {name: value for name, value in known.items() if name in needed or (name in wanted and _has_value(value))}
    return cast("_T", said)


def _has_value(value: object) -> bool:
    """Return True if a field must be shown: its value is not None, "", [] or 0."""
    return value is not None and value not in ("", []) and not (type(value) is int and value == 0)


def get_shown_trust(memory: Memory | None) -> Origin | None:
    """Return the trust of a memory if a tool or an outside source wrote it, otherwise None."""
    return None if memory is None else get_marked_trust(least_trusted([memory.origin, memory.trust]))


def get_id(memory: Memory | None) -> str | None:
    """Return the id of a memory, or None if there is no memory."""
    return None if memory is None else memory.id


def get_outcome(memory: Memory) -> tuple[str | None, str | None]:
    """Return the outcome of a decision and its reason, or (None, None) without an outcome."""
    metadata = memory.metadata
    if not isinstance(metadata, DecisionMetadata) or metadata.outcome is None:
        return None, None
    return metadata.outcome.value, metadata.outcome_reason


def _max_search_chars(refs: RefStore) -> int:
    """Return the maximum characters of all texts in a search answer, so that the answer keeps its budget."""
    # A text has at most as many tokens as characters.
    budget = refs.answers.max_tokens or refs.answers.max_chars
    return min(MAX_SEARCH_CHARS, budget - max(MIN_FIELD_CHARS, int(MIN_FIELD_SHARE * budget)))


def divide_chars(lengths: Iterable[int], max_chars: int) -> int:
    """Return the maximum characters per text with which texts of these *lengths* have *max_chars* in total."""
    waiting = sorted(lengths, reverse=True)
    longest = MIN_SEARCH_TEXT_CHARS
    while waiting and waiting[-1] * len(waiting) <= max_chars:
        max_chars -= waiting[-1]
        longest = max(longest, waiting.pop())
    return max(longest, max_chars // len(waiting)) if waiting else longest


def _get_text_lengths(memory: Memory) -> list[int]:
    """Return the lengths of the texts that `_render_memory` shows."""
    texts = [memory.content, getattr(memory.metadata, "reasoning", None), get_outcome(memory)[1]]
    return [len(text) for text in texts if text]


def _render_memory(
    answer_type: type[_T],
    memory: Memory,
    memories: MemoryStore,
    *,
    max_chars: int = MAX_LINE_CHARS,
    passage: Passage | None = None,
    **more: object,
) -> _T:
    """Return an answer's entry for a memory, with truncated texts and the fields in *more*."""
    outcome, reason = get_outcome(memory)
    reasoning = memory.metadata.reasoning if isinstance(memory.metadata, DecisionMetadata) else None
    fields = {
        **_render_identity(memory, memories),
        "content": truncate_line(memory.content, max_chars, passage),
        "reasoning": _truncate_optional_line(reasoning, max_chars),
        "outcome": outcome,
        "outcome_reason": _truncate_optional_line(reason, max_chars),
        **more,
    }
    return make_answer(answer_type, fields)


def _render_identity(memory: Memory, memories: MemoryStore) -> dict[str, object]:
    """Return a memory's id, type and other identifying fields; None for default values."""
    confidence = getattr(memory.metadata, "confidence", None)
    return {
        "id": memory.id,
        "type": None if memory.id.startswith(f"{memory.type.value}_") else memory.type.value,
        "trust": get_shown_trust(memory),
        # Show the namespace only if it is not the store's own. Memories of other namespaces are read-only.
        "namespace": None if memory.namespace == memories.namespace else memory.namespace,
        "topic": memory.topic,
        "confidence": None if confidence in (None, DEFAULT_CONFIDENCE) else round(confidence, 2),
        "at": format_time_or_age(memory.created_at, memories._shared.now),
    }


def render_results(
    kind: type[_T],
    memories: MemoryStore,
    refs: RefStore,
    found: Sequence[Memory],
    beside: Mapping[str, AnswerExtras],
    *,
    passages: Mapping[str, Passage],
) -> list[_T]:
    """
    Return the entries of found memories, with the text around their *passages*.

    A superseded memory's entry contains its successor.
    """
    current = [None if (known := beside.get(memory.id)) is None else known.superseded_by for memory in found]
    lengths = (length for one in (*found, *filter(None, current)) for length in _get_text_lengths(one))
    most = divide_chars(lengths, _max_search_chars(refs))
    return [
        _render_memory(
            kind,
            memory,
            memories,
            max_chars=most,
            passage=passages.get(memory.id),
            superseded_by=get_id(today),
            in_its_place=None if today is None else truncate_line(today.content, most),
            in_its_place_trust=get_shown_trust(today),
            tells_outcome_of=beside[memory.id].outcome_of if memory.id in beside else None,
        )
        for memory, today in zip(found, current, strict=True)
    ]


# Answers to saves


def render_saved(memory: Memory) -> Saved:
    """Return the answer to a save: the id, and a note about conflicts and duplicates."""
    return make_answer(Saved, {"id": memory.id, "note": _render_warnings(memory.id, memory.warnings)})


def _render_warnings(saved: str, warnings: SaveWarnings | None) -> str | None:
    """Return a note on the most important conflict or duplicate, with its id."""
    if not warnings:
        return None
    if any(one.id == saved for one in warnings.duplicate_of):
        return "This was saved before, word for word: its id is the earlier one."
    kinds = {
        "May replace": warnings.possible_replacements,
        "May contradict": warnings.possible_conflicts,
        "Says the same as": warnings.duplicate_of,
    }
    what, found = next((what, found) for what, found in kinds.items() if found)
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    # The text was saved, then contradicted, and is saved again: the model must resolve the conflict.
    if warnings.duplicate_of and found is not warnings.duplicate_of:
        what = f"Said before, and {what[0].lower()}{what[1:]}"
    return f"{what} {found[0].id}{others}: if that no longer holds, evolve/supersede it by this id."


# Answers about one memory


def render_checkpoint(memory: Memory, links: Sequence[Link], refs: RefStore) -> LastCheckpoint:
    """Return the answer about a checkpoint. *links* are the links from and to it."""
    metadata = memory.metadata
    assert isinstance(metadata, CheckpointMetadata)  # noqa: S101 - checkpoints have this metadata type
    cutter = TextTruncator.for_memory(refs, "load/checkpoint", memory)
    carried_out = [
        link.to_id for link in links if link.from_id == memory.id and link.link_type is LinkType.IMPLEMENTATION
    ]
    known = {
        "summary": cutter.truncate("summary", memory.content),
        "trust": get_shown_trust(memory),
        "open_files": cutter.truncate_items("open_files", metadata.open_files),
        "next_steps": cutter.truncate_items("next_steps", metadata.next_steps),
        "implements": cutter.truncate_items("implements", list(dict.fromkeys(carried_out)), max_items=MAX_SHOWN_LINKS),
        "at": format_time_or_age(memory.created_at, refs._now()),
        "more": cutter.more,
    }
    return make_answer(LastCheckpoint, known)


def render_context(
    found: MemoryDetails, known: AnswerExtras, evidence: Sequence[Evidence], *, memories: MemoryStore, refs: RefStore
) -> WithContext:
    """Return the answer about one memory, with its versions, neighbours, links and evidence."""
    memory = found.memory
    cutter = TextTruncator.for_memory(refs, "load/context", memory)
    told, today = known.outcome_of, get_id(known.superseded_by)
    if told is None and today is None:
        # The separate read of the successor may have failed. Then use the chain, which was read before.
        today = _find_current_successors(found.history).get(memory.id)
    note = None
    if today is not None:
        whose = f"This {memory.type.value}" if told is None else f"The decision that this is about, {told},"
        note = f"{whose} no longer holds: {today} took its place."
    # Keep this order, which determines the numbers of the handles: memory, evidence, links.
    whole = _render_full_memory(found, cutter, memories, successor_id=today, decision_id=told)
    shown_evidence = _render_evidence(evidence, cutter)
    versions = _select_near_versions(found.history.memories, memory)
    around = _filter_neighbours(found.nearby, found.history)
    links = [link for link in found.links if _is_informative_link(link)]
    # A link's reason has the trust of the link's source memory.
    begins = {memory.id: memory, **{one.memory.id: one.memory for one in found.nearby}}
    answer = {
        "memory": whole,
        "evolution": [_render_memory(BriefMemory, one, memories) for one in versions if one.id != memory.id],
        "more_versions": len(found.history) - len(versions),
        "around": [
            _render_memory(AroundLine, one.memory, memories, depth=one.depth if one.depth > 1 else None)
            for one in around[:MAX_NEIGHBOURS]
        ],
        "more_around": max(0, len(around) - MAX_NEIGHBOURS),
        "links": _render_links(links, memory.id, cutter, begins),
        "more_links": max(0, len(links) - MAX_SHOWN_LINKS),
        "evidence": shown_evidence,
        "more_evidence": max(0, len(memory.evidence) - len(shown_evidence)),
        "more": cutter.more,
        "note": note,
    }
    return make_answer(WithContext, answer)


def _filter_neighbours(around: Sequence[TraversedMemory], chain: Chain) -> list[TraversedMemory]:
    """Omit versions and outcome reasons, which other parts of the answer contain."""
    versions = {memory.id for memory in chain.memories}
    return [one for one in around if one.memory.id not in versions and not is_outcome_reason(one.memory)]


def _is_informative_link(link: Link) -> bool:
    """Return True for a link by a user or model that no other field of the answer shows."""
    word, reason = link.metadata.original_relationship, link.metadata.reason
    return link.created_by != "system" and (word not in (SUPERSEDES_WORD, OUTCOME_OF_WORD) or reason is not None)


def _render_full_memory(
    found: MemoryDetails,
    cutter: TextTruncator,
    memories: MemoryStore,
    *,
    successor_id: str | None,
    decision_id: str | None,
) -> Whole:
    memory = found.memory
    outcome, reason = get_outcome(memory)
    # Fields that this type of memory does not have get the passed default.
    part = functools.partial(getattr, memory.metadata)
    # Only decisions have outcomes. The history of a record contains its values instead.
    history = memory.metadata.history if isinstance(memory.metadata, DecisionMetadata) else ()
    after = cutter.truncate_items("successors", direct_successors(found.links, memory.id), max_items=MAX_SHOWN_LINKS)
    fields = {
        **_render_identity(memory, memories),
        "content": cutter.truncate("content", memory.content),
        "reasoning": cutter.truncate_optional("reasoning", part("reasoning", None)),
        "outcome": outcome,
        "outcome_reason": cutter.truncate_optional("outcome_reason", reason),
        # A single outcome is already shown in `outcome`.
        "outcomes": _render_outcomes(history, cutter) if len(history) > 1 else None,
        "category": cutter.truncate_optional("category", part("category", None)),
        "tags": cutter.truncate_items("tags", part("tags", ())),
        "source": cutter.truncate_optional("source", part("source", None)),
        "open_files": cutter.truncate_items("open_files", part("open_files", ())),
        "next_steps": cutter.truncate_items("next_steps", part("next_steps", ())),
        "mentions": cutter.truncate_items("mentions", memory.mentions, max_items=MAX_SHOWN_LINKS),
        "at": _format_time(memory.created_at),
        "superseded_by": successor_id,
        "successors": _drop_known_successor(after, successor_id),
        "tells_outcome_of": decision_id,
    }
    return make_answer(Whole, fields)


def _select_near_versions(versions: Sequence[Memory], memory: Memory) -> Sequence[Memory]:
    """Return the versions around a memory: of a long chain, at most `MAX_NEAR_VERSIONS`."""
    position = next((place for place, one in enumerate(versions) if one.id == memory.id), 0)
    first = max(0, min(position - MAX_NEAR_VERSIONS // 4, len(versions) - MAX_NEAR_VERSIONS))
    return versions[first : first + MAX_NEAR_VERSIONS]


def _render_outcomes(history: Sequence[OutcomeChange], cutter: TextTruncator) -> list[OutcomeLine]:
    """Return the last outcomes of a decision. Earlier ones are stored under a handle."""
    earlier = [
        f"{_format_time(one.at)} {one.outcome.value}: {one.reason or 'no reason'}" for one in history[:-MAX_OUTCOMES]
    ]
    cutter.store_rest("outcomes", earlier, shown_count=MAX_OUTCOMES)
    shown: list[OutcomeLine] = []
    for position, change in enumerate(history[-MAX_OUTCOMES:], start=len(earlier)):
        reason = _truncate_optional_line(change.reason)
        # The reason of the last outcome is already shown in full in `outcome_reason`.
        if position < len(history) - 1:
            reason = cutter.truncate_optional(
                f"outcomes[{position}].reason", change.reason, max_chars=MAX_LISTED_TEXT_CHARS
            )
        fields = {"outcome": change.outcome.value, "reason": reason, "at": _format_time(change.at)}
        shown.append(make_answer(OutcomeLine, fields))
    return shown


def _render_links(
    links: Sequence[Link], memory_id: str, cutter: TextTruncator, source_memories: Mapping[str, Memory]
) -> list[LinkLine]:
    """
    Return the first links of a memory. The others are stored under a handle.

    *source_memories* maps memory ids to memories, which determine the trust of a link's reason.
    """
    shown = []
    for position, link in enumerate(links[:MAX_SHOWN_LINKS]):
        start = source_memories.get(link.from_id)
        reason = _limit_provenance(cutter, start).truncate_optional(
            f"links[{position}].reason", link.metadata.reason, max_chars=MAX_LINE_CHARS
        )
        known = {
            "to_id": link.to_id if link.from_id == memory_id else None,
            "from_id": None if link.from_id == memory_id else link.from_id,
            "relationship": link.metadata.original_relationship,
            "reason": reason,
            "trust": None if reason is None else get_shown_trust(start),
        }
        shown.append(make_answer(LinkLine, known))
    rest = []
    for link in links[MAX_SHOWN_LINKS:]:
        cutter = _limit_provenance(cutter, source_memories.get(link.from_id))
        reason = f": {link.metadata.reason}" if link.metadata.reason else ""
        rest.append(f"{link.from_id} {link.metadata.original_relationship} {link.to_id}{reason}")
    cutter.store_rest("links", rest, shown_count=MAX_SHOWN_LINKS)
    return shown


def _limit_provenance(cutter: TextTruncator, memory: Memory | None) -> TextTruncator:
    """
    Return a truncator with the combined provenance of *cutter* and *memory*.

    Both truncators add their notes to the same `more`.
    """
    # The link's source memory may not have been read. Then its origin is unknown.
    other = Provenance.from_author(UNKNOWN_ORIGIN) if memory is None else Provenance(memory.origin, memory.trust)
    return attrs.evolve(cutter, provenance=cutter.provenance.merge_with(other))


def _render_evidence(evidence: Sequence[Evidence], cutter: TextTruncator) -> list[EvidenceLine]:
    """Return the evidence of a memory, each source with its stored text."""
    shown = [
        make_answer(
            EvidenceLine,
            {
                "source": cutter.truncate(f"evidence[{place}].source", one.source, max_chars=MAX_LISTED_TEXT_CHARS),
                "content": cutter.truncate_optional(f"evidence[{place}].content", one.text),
            },
        )
        for place, one in enumerate(evidence[:MAX_EVIDENCE])
    ]
    rest = [
        f"evidence[{place}] {one.source}" if one.text is None else f"evidence[{place}] {one.source}:\n{one.text}"
        for place, one in enumerate(evidence[MAX_EVIDENCE:], start=MAX_EVIDENCE)
    ]
    cutter.store_rest("evidence", rest, shown_count=len(shown))
    return shown


# Answers to searches


def render_topic(topic: str, chain: Chain, near: Sequence[str], memories: MemoryStore, refs: RefStore) -> ByTopic:
    """Return the answer about a topic. If it has no memories, suggest the topics in *near*."""
    # Outcome reasons are already part of the outcomes.
    versions = [memory for memory in chain.memories if not is_outcome_reason(memory)]
    shown = versions[:MAX_VERSIONS]
    older = len(versions) - len(shown)
    lengths = (length for memory in shown for length in _get_text_lengths(memory))
    most = divide_chars(lengths, _max_search_chars(refs))
    standing = _find_current_successors(chain)
    note = None
    if not chain:
        hint = f"Did you mean {' or '.join(map(quote, near))}?" if near else "Ask search/by_context in words."
        note = f"Nothing was saved on this topic. {hint}"
    elif older:
        note = f"{older} older versions are left out: load/context with the last id here shows more."
    known = {
        "topic": topic,
        "versions": [
            _render_memory(
                Version,
                memory,
                memories,
                max_chars=most,
                superseded_by=standing.get(memory.id),
                successors=_drop_known_successor(direct_successors(chain.links, memory.id), standing.get(memory.id))[
                    :MAX_TOPIC_NEIGHBOURS
                ],
            )
            for memory in shown
        ],
        "older_versions": older,
        "forks": [memory.id for memory in chain.forks][:MAX_VERSIONS],
        "around": [
            _render_memory(BriefMemory, one.memory, memories)
            for one in _filter_neighbours(chain.nearby, chain)[:MAX_TOPIC_NEIGHBOURS]
        ],
        "near_topics": near,
        "note": note,
    }
    return make_answer(ByTopic, known)


def _drop_known_successor(successors_: Sequence[str], current_successor: str | None) -> list[str]:
    """Return the successors of a memory, or [] if the only one is its current successor."""
    return [] if list(successors_) == [current_successor] else list(successors_)


def _find_current_successors(chain: Chain) -> dict[str, str]:
    """Return the current successor of each superseded memory in a chain, by memory id."""
    return find_superseded(
        ((link.from_id, link.to_id) for link in chain.links), (memory.id for memory in chain.memories)
    )
