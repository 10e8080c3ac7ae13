"""
Plan that chooses the automatic links of newly saved memories (DESIGN section 6).

Features of each pair yield the probability that both memories have the same subject. The most probable candidates
are linked, within the policy's limits. Memories that were saved shortly before get a temporal link.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.save.link_candidates import (
    MILLISECOND,
    ONE_HOUR,
    TEMPORAL_LINK_TYPES,
    LinkCandidates,
    PendingLinks,
    SimilarityBaseline,
    Values,
    collect_many_link_candidates,
    find_nodes,
)
from mama_structs.memory.types.engine import (
    SYSTEM_CREATOR_INDEX,
    TYPE_NUMBERS,
    EngineFilter,
    Nodes,
    Reader,
    union_nodes,
)
from mama_structs.memory.types.model import (
    Link,
    LinkMetadata,
    LinkType,
    Memory,
    MemoryType,
    new_link_id,
    to_milliseconds,
)
from mama_structs.settings import LinkingPolicy

RELATED_WORD: Final = "related_to"
SAME_TOPIC_WORD: Final = "same_topic"
CLOSE_IN_TIME_WORD: Final = "close_in_time"
"""Relationship words of automatic links, one for each reason."""

_MAX_TEMPORAL_CANDIDATES: Final = 48
# Minimum same-subject probability for a link between decisions that have the same topic.
# Without this limit, all decisions of a broad topic would be linked.
_MIN_SAME_TOPIC_PROBABILITY: Final = 0.75


@attrs.frozen(kw_only=True)
class LinkingContext:
    """Link policy, calibration of the embedder, and whether to detect conflicts."""

    policy: LinkingPolicy
    calibration: Calibration
    # The number of leading dimensions that the vectors of texts in all languages have in common.
    shared_dimensions: int
    # False if the detected conflicts would be discarded, for example in an import.
    detects_conflicts: bool = True


@attrs.frozen
class AutomaticLink:
    """A link to create. *similarity* is the cosine, or None if the link is not based on similarity."""

    node: int
    link_type: LinkType
    relationship: str
    confidence: float
    similarity: float | None = None


def find_candidates(
    reader: Reader, asked: Sequence[PendingLinks], linking: LinkingContext, usual: SimilarityBaseline
) -> dict[PendingLinks, LinkCandidates]:
    """
    Return the link candidates of each memory that the policy links by similarity.

    Other memories are left out of the result. The arguments are those of `choose_automatic_links`.
    """
    policy = linking.policy
    meant = [one for one in asked if policy.max_semantic and one.memory.type is not MemoryType.CHECKPOINT]
    return dict(
        zip(meant, collect_many_link_candidates(reader, meant, usual, topic_window=policy.topic_window), strict=True)
    )


def choose_automatic_links(
    reader: Reader,
    asked: Sequence[PendingLinks],
    linking: LinkingContext,
    usual: SimilarityBaseline,
    *,
    found: Mapping[PendingLinks, LinkCandidates] | None = None,
) -> list[list[Link]]:
    """
    Return the automatic links of each memory to older ones, semantic links first.

    A memory gets at most one link to each older memory.

    Args:
        reader: Store to read.
        asked: Memories that are saved together, in the order of saving.
        linking: Link policy and calibration.
        usual: Baseline of the store before these memories were saved.
        found: Result of `find_candidates`, if it was already computed.

    """
    policy = linking.policy
    candidates = find_candidates(reader, asked, linking, usual) if found is None else found
    likely = [_rank_candidates(one.memory, candidates[one], policy) if one in candidates else None for one in asked]
    shortly = [_recent_filter(one, policy) for one in asked if one not in candidates]
    spare = len(asked)
    reader.expect(
        lambda ahead: [
            (ahead.window(one[0], limit=one[1] + spare), ahead.links(np.zeros(0, np.int64)))
            for one in shortly
            if one is not None
        ]
    )
    before = [_recent_nodes(reader, one, candidates.get(one), policy, spare=spare) for one in asked]
    earliest = union_nodes(before)
    created = reader.facts(earliest).created
    taking = _IncomingLinkCounter(reader, [*before, *(one.nodes for one in likely if one is not None)], policy)
    chosen = []
    for one, queue, earlier in zip(asked, likely, before, strict=True):
        semantic = [] if queue is None else _choose_associations(queue, taking, policy)
        covered = {*(choice.node for choice in semantic), *find_nodes(reader, one.explicit).tolist()}
        free = [node for node in earlier[taking.free(earlier)].tolist() if node not in covered]
        nodes = np.array(free[: policy.max_temporal], np.int64)
        temporal = _choose_temporal_links(one.memory, nodes, created[earliest.searchsorted(nodes)], policy)
        taking.give([*semantic, *temporal])
        chosen.append([*semantic, *temporal])
    ids = iter(reader.ids([choice.node for some in chosen for choice in some]))
    return [
        [
            Link(
                id=new_link_id(),
                from_id=one.memory.id,
                to_id=next(ids),
                link_type=choice.link_type,
                confidence=choice.confidence,
                created_by="system",
                metadata=LinkMetadata(original_relationship=choice.relationship, similarity=choice.similarity),
                created_at=one.memory.created_at,
            )
            for choice in some
        ]
        for one, some in zip(asked, chosen, strict=True)
    ]


class _IncomingLinkCounter:
    """Counts the automatic links that end at each node, to enforce the policy's limit."""

    def __init__(self, reader: Reader, parts: Iterable[Nodes], policy: LinkingPolicy) -> None:
        self._nodes = union_nodes(parts)
        table = reader.links(self._nodes, "in")
        targets = np.sort(table.targets[table.creators == SYSTEM_CREATOR_INDEX])
        self._taken = np.searchsorted(targets, self._nodes, side="right") - np.searchsorted(targets, self._nodes)
        self._most = policy.max_incoming

    def free(self, nodes: Nodes) -> NDArray[np.bool_]:
        """Return a mask of the *nodes* that may receive another link."""
        free: NDArray[np.bool_] = self._taken[np.searchsorted(self._nodes, nodes)] < self._most
        return free

    def give(self, choices: Iterable[AutomaticLink]) -> None:
        """Count the links that will be created as incoming links of their targets."""
        for choice in choices:
            self._taken[np.searchsorted(self._nodes, choice.node)] += 1


@attrs.frozen(eq=False)
class _CandidateQueue:
    """
    Candidates that may be linked, most probable first.

    Candidates that explicit links already connect with the memory come last.
    """

    nodes: Nodes
    confidences: Values
    cosines: NDArray[np.float32]
    by_topic: NDArray[np.bool_]


def _rank_candidates(memory: Memory, candidates: LinkCandidates, policy: LinkingPolicy) -> _CandidateQueue:
    features = candidates.features
    probable = candidates.probabilities
    surest = np.where(probable >= policy.threshold, probable, 0.0)
    by_topic = np.zeros(len(surest))
    if policy.topic_window and memory.type is MemoryType.DECISION:
        age = (to_milliseconds(memory.created_at) - candidates.created) / (1000 * policy.topic_window)
        # ADR-001, revised rule 2: link decisions on one topic with confidence 0.4 + 0.3 * (1 - age / window).
        of_matter = (probable >= min(policy.threshold, _MIN_SAME_TOPIC_PROBABILITY)) & (features.topic > 0)
        by_topic[of_matter & (candidates.types == TYPE_NUMBERS[MemoryType.DECISION]) & (age <= 1)] = 1.0
        by_topic *= 0.4 + 0.3 * (1 - age)
    confidence = np.maximum(surest, by_topic)
    rows = np.flatnonzero((confidence > 0) & (confidence >= policy.min_confidence))
    nodes = candidates.nodes[rows]
    rows = rows[np.lexsort((-nodes, -candidates.created[rows], -confidence[rows], features.chain[rows] > 0))]
    return _CandidateQueue(
        candidates.nodes[rows], confidence[rows], candidates.cosines[rows], surest[rows] < by_topic[rows]
    )


def _choose_associations(
    likely: _CandidateQueue, taking: _IncomingLinkCounter, policy: LinkingPolicy
) -> list[AutomaticLink]:
    """Return association links to the best candidates, up to the policy's limit."""
    return [
        AutomaticLink(
            int(likely.nodes[at]),
            LinkType.ASSOCIATION,
            SAME_TOPIC_WORD if likely.by_topic[at] else RELATED_WORD,
            float(likely.confidences[at]),
            float(likely.cosines[at]),
        )
        for at in np.flatnonzero(taking.free(likely.nodes))[: policy.max_semantic].tolist()
    ]


def _recent_nodes(
    reader: Reader, asked: PendingLinks, candidates: LinkCandidates | None, policy: LinkingPolicy, *, spare: int
) -> Nodes:
    """Return the memories saved shortly before the given one, newest first."""
    where = _recent_filter(asked, policy)
    if where is None:
        return np.zeros(0, np.int64)
    if candidates is not None and policy.temporal_window == ONE_HOUR.total_seconds() and not policy.temporal_same_topic:
        return candidates.recent
    return asked.select_linkable(reader.window(where[0], limit=where[1] + spare), where[1])


def _recent_filter(asked: PendingLinks, policy: LinkingPolicy) -> tuple[EngineFilter, int] | None:
    """
    Return the filter and the limit for memories saved shortly before the given one.

    Returns None if the policy allows no temporal links for it.
    """
    memory, same_topic = asked.memory, policy.temporal_same_topic
    if not policy.max_temporal or not policy.temporal_window or (same_topic and memory.topic is None):
        return None
    where = EngineFilter(
        types=TEMPORAL_LINK_TYPES,
        topic=memory.topic if same_topic else None,
        since=memory.created_at - timedelta(seconds=policy.temporal_window),
        until=memory.created_at + MILLISECOND,
    )
    return where, _MAX_TEMPORAL_CANDIDATES + len(asked.explicit) + policy.max_semantic


def _choose_temporal_links(
    memory: Memory, nodes: Nodes, created: NDArray[np.int64], policy: LinkingPolicy
) -> list[AutomaticLink]:
    """Return temporal links to the *nodes*, whose creation times are *created*."""
    age = (to_milliseconds(memory.created_at) - created) / (1000 * policy.temporal_window or 1)
    confidence = 0.3 + 0.2 * (1 - np.clip(age, 0, 1))
    return [
        AutomaticLink(int(nodes[at]), LinkType.TEMPORAL, CLOSE_IN_TIME_WORD, float(confidence[at]))
        for at in np.flatnonzero(confidence >= policy.min_confidence).tolist()
    ]
