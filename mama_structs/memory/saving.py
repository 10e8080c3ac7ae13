"""The plans that save: explicit links as they were asked for, automatic ones as the policy has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import InvalidArgument, MemoryNotFound
from mama_structs.memory.backend import Reader, Writer
from mama_structs.memory.contents import parse_kept
from mama_structs.memory.drafts import Draft, LinkDraft
from mama_structs.memory.ids import new_link_id
from mama_structs.memory.linking import automatic_links
from mama_structs.memory.model import (
    CreatedBy,
    DecisionMetadata,
    Link,
    LinkMetadata,
    LinkType,
    Memory,
    MemoryType,
    Outcome,
    OutcomeChange,
)
from mama_structs.memory.relationships import normalised
from mama_structs.settings import LinkingPolicy

SUPERSEDES: Final = "supersedes"
IMPLEMENTS: Final = "implements"
OUTCOME_OF: Final = "outcome_of"
_NEAREST: Final = 3


@attrs.frozen(kw_only=True, eq=False)
class Prepared:
    """
    What is ready to be saved.

    Args:
        draft: What was asked for.
        memory: The memory.
        vectors: Its vectors, of shape (pieces, dimensions).
        link_types: The type of each relationship word that the draft uses.

    """

    draft: Draft
    memory: Memory
    vectors: NDArray[np.float32]
    link_types: Mapping[str, LinkType]


@attrs.frozen(kw_only=True)
class Linking:
    """
    How automatic links are made.

    Args:
        policy: Which are wanted.
        calibration: What the embedder's cosines mean.

    """

    policy: LinkingPolicy
    calibration: Callable[[Any], Any]


def found(reader: Reader, memory_id: str) -> int:
    """
    Return a memory's node.

    Raises:
        MemoryNotFound: There is no such memory; the nearest ids are named.

    """
    node = reader.find(memory_id)
    if node is None:
        hint = None
        if reader.damaged:
            hint = f"{reader.damaged} damaged memories are left out, and it may be one of them: see check()"
        raise MemoryNotFound(memory_id, nearest=tuple(reader.nearest_ids(memory_id, _NEAREST)), hint=hint)
    return node


def decision(reader: Reader, memory_id: str) -> Memory:
    """
    Return a decision.

    Raises:
        MemoryNotFound: There is no such memory.
        InvalidArgument: It is no decision.

    """
    (memory,) = reader.get([found(reader, memory_id)])
    if memory.type is not MemoryType.DECISION:
        raise InvalidArgument(f"{memory_id!r:.200} must be a decision, and is of the type {memory.type.value}")
    return memory


def check_evidence(reader: Reader, draft: Draft) -> None:
    """
    See that every text is kept that evidence names by its hash, or is about to be.

    Raises:
        InvalidArgument: One is not.

    """
    for position, item in enumerate(draft.memory.evidence):
        kept = parse_kept(item)
        if kept is not None and kept.digest not in draft.contents and not reader.has_content(kept.digest):
            raise InvalidArgument(
                f"evidence[{position}] names a text by its hash that no memory keeps",
                hint="give the handle alone, such as ref:name or fd:1",
            )


def not_before(memory: Memory, before: Memory, *, is_dated: bool) -> Memory:
    """
    Return a memory that is not older than the one that it supersedes.

    A clock that stepped back meanwhile is corrected; a time that somebody gave is not.

    Raises:
        InvalidArgument: The time that was given is earlier.

    """
    if memory.created_at >= before.created_at:
        return memory
    if is_dated:
        raise InvalidArgument(
            f"created_at must not be before {before.created_at.isoformat()}, when the decision was made that it "
            f"supersedes, got {memory.created_at.isoformat()}"
        )
    return attrs.evolve(memory, created_at=before.created_at, updated_at=before.created_at)


def save(writer: Writer, prepared: Prepared, linking: Linking) -> Memory:
    """
    Save a memory with its links.

    Raises:
        MemoryNotFound: A link ends at no memory; nothing was saved.
        InvalidArgument: What it supersedes is no decision, or a later one, or its evidence names a text that is not
            kept; nothing was saved.

    """
    draft, memory = prepared.draft, prepared.memory
    check_evidence(writer, draft)
    explicit: list[Link] = []
    if draft.supersedes is not None:
        before = decision(writer, draft.supersedes)
        memory = not_before(memory, before, is_dated=draft.is_dated)
        explicit.append(_link(memory, draft.supersedes, SUPERSEDES, LinkType.EVOLUTION, 1.0))
    explicit += [_link(memory, to_id, IMPLEMENTS, LinkType.IMPLEMENTATION, 1.0) for to_id in draft.implements]
    for asked in draft.links:
        kind = prepared.link_types[asked.relationship]
        explicit.append(_link(memory, asked.to_id, asked.relationship, kind, asked.confidence, asked=asked))
    for link in explicit:
        found(writer, link.to_id)
    explicit = _strongest(explicit)
    automatic = automatic_links(
        writer,
        memory,
        prepared.vectors,
        policy=linking.policy,
        calibration=linking.calibration,
        explicit=[link.to_id for link in explicit],
        new_link_id=new_link_id,
    )
    writer.put(memory, vectors=prepared.vectors, links=[*explicit, *automatic], contents=draft.contents)
    return memory


def add_link(
    writer: Writer, from_id: str, asked: LinkDraft, link_type: LinkType, *, created_by: CreatedBy, now: datetime
) -> Link:
    """
    Make a link between two memories, and return it, or the one of that word that is there already, made stronger.

    An explicit link takes over the automatic ones between the two.

    Raises:
        MemoryNotFound: One of them does not exist.
        InvalidArgument: They are one and the same.

    """
    source = found(writer, from_id)
    found(writer, asked.to_id)
    if from_id == asked.to_id:
        raise InvalidArgument(f"a memory cannot be linked to itself, and {from_id!r:.200} is both ends")
    between = [link for link in writer.read_links(source) if {link.from_id, link.to_id} == {from_id, asked.to_id}]
    word = normalised(asked.relationship)
    same = [
        link
        for link in between
        if link.to_id == asked.to_id
        # An automatic link is no other form of an explicit one: it is taken over below.
        and (link.created_by == "system") == (created_by == "system")
        and normalised(link.metadata.original_relationship) == word
    ]
    if same:
        link = attrs.evolve(
            same[0],
            confidence=max(same[0].confidence, asked.confidence),
            metadata=attrs.evolve(
                same[0].metadata,
                reason=asked.reason or same[0].metadata.reason,
                tags=asked.tags or same[0].metadata.tags,
            ),
        )
        if link == same[0]:
            return link
    else:
        link = Link(
            id=new_link_id(),
            from_id=from_id,
            to_id=asked.to_id,
            link_type=link_type,
            confidence=asked.confidence,
            created_by=created_by,
            metadata=LinkMetadata(original_relationship=asked.relationship, reason=asked.reason, tags=asked.tags),
            created_at=now,
        )
        if created_by != "system":
            writer.delete_links([one.id for one in between if is_automatic(one)])
    writer.put_link(link)
    return link


def is_automatic(link: Link) -> bool:
    """Tell whether a save made a link by itself; evolution and implementation are always said by somebody."""
    return link.created_by == "system" and link.link_type in {LinkType.ASSOCIATION, LinkType.TEMPORAL}


def set_outcome(
    writer: Writer,
    memory_id: str,
    change: OutcomeChange,
    reason: Prepared | None,
    linking: Linking,
    *,
    created_by: CreatedBy,
    is_dated: bool,
) -> Memory:
    """
    Give a decision an outcome, save its reason as a memory of its own, and return the decision.

    Raises:
        MemoryNotFound: There is no such memory.
        InvalidArgument: It is no decision, or the time that was given is before it was made.

    """
    memory = decision(writer, memory_id)
    metadata = memory.metadata
    assert isinstance(metadata, DecisionMetadata)  # noqa: S101 - a decision has no other
    if change.at < memory.created_at:
        if is_dated:
            raise InvalidArgument(
                f"at must not be before {memory.created_at.isoformat()}, when the decision was made, "
                f"got {change.at.isoformat()}"
            )
        change = attrs.evolve(change, at=memory.created_at)
    history = tuple(sorted((*metadata.history, change), key=lambda one: one.at))
    last = history[-1]
    changed = attrs.evolve(
        memory,
        metadata=attrs.evolve(
            metadata, outcome=last.outcome, outcome_reason=last.reason, outcome_at=last.at, history=history
        ),
        updated_at=max(memory.updated_at, change.at),
    )
    writer.put(changed)
    if reason is not None:
        save(writer, reason, linking)
        add_link(
            writer,
            reason.memory.id,
            LinkDraft(to_id=memory_id, relationship=OUTCOME_OF, confidence=1.0),
            LinkType.IMPLEMENTATION,
            created_by=created_by,
            now=reason.memory.created_at,
        )
    return changed


def as_of(memory: Memory, moment: datetime) -> Memory:
    """Return a memory as it was at a moment: later outcomes are taken away."""
    metadata = memory.metadata
    if not isinstance(metadata, DecisionMetadata) or all(one.at <= moment for one in metadata.history):
        return memory
    history = tuple(one for one in metadata.history if one.at <= moment)
    last = history[-1] if history else None
    outcome: Outcome | None = last.outcome if last else None
    return attrs.evolve(
        memory,
        metadata=attrs.evolve(
            metadata,
            history=history,
            outcome=outcome,
            outcome_reason=last.reason if last else None,
            outcome_at=last.at if last else None,
        ),
        updated_at=max([memory.created_at, *(one.at for one in history)]),
    )


def _link(
    memory: Memory,
    to_id: str,
    relationship: str,
    link_type: LinkType,
    confidence: float,
    *,
    asked: LinkDraft | None = None,
) -> Link:
    return Link(
        id=new_link_id(),
        from_id=memory.id,
        to_id=to_id,
        link_type=link_type,
        confidence=confidence,
        created_by=memory.metadata.created_by,
        metadata=LinkMetadata(
            original_relationship=relationship,
            reason=None if asked is None else asked.reason,
            tags=() if asked is None else asked.tags,
        ),
        created_at=memory.created_at,
    )


def _strongest(links: Sequence[Link]) -> list[Link]:
    """Keep of links with the same end and word the one with the highest confidence, the first of equals."""
    kept: dict[tuple[str, str], Link] = {}
    for link in links:
        key = (link.to_id, normalised(link.metadata.original_relationship))
        if key not in kept or kept[key].confidence < link.confidence:
            kept[key] = link
    return list(kept.values())
