"""Stored facts about one memory, as its page shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Final

import attrs
from markupsafe import Markup

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.errors import EmbedderMismatch, EmbeddingFailed, StoreDamaged
from mama_structs.memory.graph.results import Evidence, SimilarMemory, add_previews
from mama_structs.memory.graph.traversal import AnswerExtras, direct_successors, load_answer_extras
from mama_structs.memory.save.conflict_records import MemoryConflict, select_unresolved
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import (
    OUTCOME_OF_WORD,
    SUPERSEDES_WORD,
    Link,
    LinkType,
    Memory,
    PreviousText,
    evidence_digests,
    parse_stored_evidence,
)
from mama_structs.memory.upkeep.erasure import find_outcome_reasons
from mama_structs.ui.text_diff import show_difference

LINKS_PER_PAGE: Final = 40
TEXTS_PER_PAGE: Final = 10
_MAX_SIMILAR: Final = 5
_STATE_CHARS: Final = 24
PLAIN_RELATIONSHIPS: Final = frozenset({OUTCOME_OF_WORD, SUPERSEDES_WORD})
"""Relationships that say no more than the heading of their links."""
REASON_HEADING: Final = "Reason for the outcome of"
# Headings of outgoing and of incoming links, in the order of the page.
_HEADINGS_BY_KIND: Final[Mapping[object, tuple[str, str]]] = {
    OUTCOME_OF_WORD: (REASON_HEADING, "Reason for its outcome"),
    LinkType.EVOLUTION: ("Replaces", "Replaced by"),
    LinkType.IMPLEMENTATION: ("Carries out", "Carried out by"),
    LinkType.ASSOCIATION: ("Refers to", "Referred to by"),
    LinkType.TEMPORAL: ("Close in time", "Close in time"),
    "similar": ("Similar subject", "Similar subject"),
}
_HEADINGS: Final = tuple(heading for pair in _HEADINGS_BY_KIND.values() for heading in pair)


@attrs.frozen
class ShownLink:
    """A link of a memory: the memory at its other end, and its strength now."""

    link: Link
    other_id: str
    other_text: str
    strength: float
    heading: str
    is_first: bool
    """True if it is the first with its heading on the page."""


@attrs.frozen
class ShownText:
    """A previous text of a memory, and its difference to the text that replaced it."""

    previous: PreviousText
    difference: Markup
    reasoning_difference: Markup | None


@attrs.frozen(kw_only=True)
class MemoryView:
    """All facts about a memory. Links and previous texts are one page of them."""

    memory: Memory
    now: datetime
    state: str
    replaced_by: Memory | None
    replaces: tuple[tuple[str, str], ...]
    """Ids and previews of the memories that it replaces directly."""
    reason_of: str | None
    links: tuple[ShownLink, ...]
    link_count: int
    texts: tuple[ShownText, ...]
    evidence: tuple[Evidence, ...]
    has_damaged_evidence: bool
    similar: tuple[SimilarMemory, ...] | None
    """None if no embedder is available."""
    conflicts: tuple[MemoryConflict, ...]


async def load_view(
    memories: mama_structs.MemoryStore, memory_id: str, *, first_link: int = 0, first_text: int = 0
) -> MemoryView:
    """
    Return the facts about a memory.

    Args:
        memories: Its namespace.
        memory_id: Its id.
        first_link: Number of links that the page leaves out.
        first_text: Number of previous texts that the page leaves out, newest first.

    Raises:
        MemoryNotFound: No memory has this id.

    """
    now = memories._shared.now

    def plan(reader: Reader, node: int) -> tuple[AnswerExtras, Sequence[Link], Sequence[Link], list[MemoryConflict]]:
        found = _load_extras(reader, node)
        page = [link for _, link in _order_links(found.links, found.memory.id)[first_link:][:LINKS_PER_PAGE]]
        older = [link for link in found.links if _is_replacement(link) and link.from_id == found.memory.id]
        return (
            found,
            add_previews(reader, page),
            add_previews(reader, older[:LINKS_PER_PAGE]),
            select_unresolved(reader, found.links, now),
        )

    found, page, older, conflicts = await memories._read(memory_id, plan)
    memory = found.memory
    evidence, is_damaged = await _load_evidence(memories, memory)
    return MemoryView(
        memory=memory,
        now=now,
        state=compute_state(found),
        replaced_by=found.superseded_by if found.outcome_of is None else None,
        replaces=tuple({link.to_id: _preview(link, link.to_id) for link in older}.items()),
        reason_of=found.outcome_of,
        links=tuple(_show_links(page, memory.id, now)),
        link_count=len(found.links),
        # The comparison of some texts takes seconds, which must not block the event loop of the session.
        texts=await run_in_own_thread(lambda: tuple(_show_texts(memory, first_text))),
        evidence=evidence,
        has_damaged_evidence=is_damaged,
        similar=await _find_similar(memories, memory.id),
        conflicts=tuple(conflicts),
    )


def compute_state(found: AnswerExtras) -> str:
    """Return a hash of what a memory says and of its successors. It differs after each change of them."""
    told = repr((found.memory.to_json(), sorted(direct_successors(found.links, found.memory.id))))
    return sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:_STATE_CHARS]


async def load_state(memories: mama_structs.MemoryStore, memory_id: str) -> tuple[Memory, str]:
    """Return a memory and the hash of its present state, see `compute_state`."""
    found = await memories._read(memory_id, _load_extras)
    return found.memory, compute_state(found)


@attrs.frozen
class DeletionView:
    """Data that a deletion of a memory deletes with it."""

    reasons: tuple[Memory, ...]
    """Memories that contain the reasons of its outcomes."""
    link_count: int
    evidence_count: int
    """Number of stored evidence texts that no other memory cites."""


async def load_deletion(memories: mama_structs.MemoryStore, memory_id: str) -> DeletionView:
    """Return the data that a deletion of a memory would delete with it."""

    def plan(reader: Reader, node: int) -> DeletionView:
        found = [one for one in reader.find_many(find_outcome_reasons(reader, [node])) if one is not None]
        nodes = [node, *found]
        cited = {digest for memory in reader.get(nodes) for digest in evidence_digests(memory.evidence)}
        return DeletionView(
            tuple(reader.get(found)),
            len({link.id for own in reader.links_of_many(nodes) for link in own}),
            sum(set(reader.users_of_content(digest).tolist()) <= set(nodes) for digest in cited),
        )

    return await memories._read(memory_id, plan)


def _load_extras(reader: Reader, node: int) -> AnswerExtras:
    (found,) = load_answer_extras(reader, reader.ids([node])).values()
    return found


def _is_replacement(link: Link) -> bool:
    return link.link_type is LinkType.EVOLUTION


def _order_links(links: Sequence[Link], memory_id: str) -> list[tuple[str, Link]]:
    """Return the links in the order of their headings, then newest first, each with its heading."""
    newest_first = sorted(links, key=lambda link: link.created_at, reverse=True)
    with_headings = ((find_link_heading(link, is_out=link.from_id == memory_id), link) for link in newest_first)
    return sorted(with_headings, key=lambda one: _HEADINGS.index(one[0]))


def find_link_heading(link: Link, *, is_out: bool) -> str:
    """Return the words for a link, as seen from the memory at which it begins (*is_out*) or ends."""
    if link.metadata.original_relationship == OUTCOME_OF_WORD:
        kind: object = OUTCOME_OF_WORD
    elif link.created_by == "system" and link.link_type is LinkType.ASSOCIATION:
        kind = "similar"
    else:
        kind = link.link_type
    return _HEADINGS_BY_KIND[kind][0 if is_out else 1]


def _show_links(page: Sequence[Link], memory_id: str, now: datetime) -> Iterator[ShownLink]:
    previous = None
    for link in page:
        is_out = link.from_id == memory_id
        other_id, heading = link.to_id if is_out else link.from_id, find_link_heading(link, is_out=is_out)
        yield ShownLink(link, other_id, _preview(link, other_id), link.strength(now), heading, heading != previous)
        previous = heading


def _preview(link: Link, memory_id: str) -> str:
    texts = link.endpoint_texts or (link.from_id, link.to_id)
    return texts[0] if link.from_id == memory_id else texts[1]


def _show_texts(memory: Memory, first: int) -> Iterator[ShownText]:
    """Yield previous texts, newest first, each with the difference to its successor."""
    newer, newer_reasoning = memory.content, memory.reasoning or ""
    for place, previous in enumerate(reversed(memory.previous_texts)):
        if first <= place < first + TEXTS_PER_PAGE:
            is_reasoned = previous.reasoning != newer_reasoning
            yield ShownText(
                previous,
                show_difference(previous.content, newer),
                show_difference(previous.reasoning, newer_reasoning) if is_reasoned else None,
            )
        newer, newer_reasoning = previous.content, previous.reasoning


async def _load_evidence(memories: mama_structs.MemoryStore, memory: Memory) -> tuple[tuple[Evidence, ...], bool]:
    try:
        return tuple(await memories.evidence(memory)), False
    except StoreDamaged:
        parsed = [(item, parse_stored_evidence(item)) for item in memory.evidence]
        return tuple(Evidence(source=item if one is None else one.source) for item, one in parsed), True


async def _find_similar(memories: mama_structs.MemoryStore, memory_id: str) -> tuple[SimilarMemory, ...] | None:
    try:
        return tuple(await memories.similar(memory_id, limit=_MAX_SIMILAR))
    except (EmbedderMismatch, EmbeddingFailed):
        return None
