"""
Which links a memory makes by itself when it is saved: a plan over a `Reader`.

What is known of a new memory and its candidates (`evidence`) becomes the probability that they belong to one matter,
and the likeliest get a link, within the policy's limits; what was saved shortly before gets a link in time
(DESIGN section 6, "Automatic links on save").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engine import Filter, Nodes, Reader
from mama_structs.memory.evidence import SYSTEM, Calibrate, Candidates, Evidence, Values, gather, moved, nodes_of
from mama_structs.memory.ids import milliseconds
from mama_structs.memory.model import Link, LinkMetadata, LinkType, Memory, MemoryType
from mama_structs.settings import LinkingPolicy

RELATED: Final = "related_to"
SAME_TOPIC: Final = "same_topic"
CLOSE_IN_TIME: Final = "close_in_time"
"""The words of automatic links, one for each reason to make one."""

# Fitted to the whole retrieval sample, with topics of all kinds: ``benchmarks/linking.py --fit``, the default embedder.
WEIGHTS: Final = (0.86, 0.17, 19.84, 4.93, -2.95, 2.45, 3.59, 12.12)
"""What each of the `FEATURES` adds to the logarithm of the odds that two memories belong to one matter."""

BIAS: Final = -4.76
"""That logarithm where nothing is known."""

_DECISION: Final = tuple(MemoryType).index(MemoryType.DECISION)
_RECENT: Final = 48
# One topic makes likely what this probable already; alone it would join all that is of a broad topic.
_LIKELY: Final = 0.75


@attrs.frozen(kw_only=True)
class Linking:
    """How automatic links are made: which are wanted, and what the embedder's cosines mean."""

    policy: LinkingPolicy
    calibration: Callable[[Any], Any]


@attrs.frozen
class LinkChoice:
    """One link to make; *similarity* is the cosine, None for a link that does not rest on it."""

    node: int
    link_type: LinkType
    relationship: str
    confidence: float
    similarity: float | None = None


def automatic_links(
    reader: Reader,
    memory: Memory,
    vectors: NDArray[np.float32],
    *,
    policy: LinkingPolicy,
    calibration: Calibrate,
    explicit: Collection[str],
    new_link_id: Callable[[], str],
) -> list[Link]:
    """
    Return the links that a memory makes by itself, from it to older memories.

    The same state gives the same links. A pair gets one of them at the most; semantic links go first.
    A checkpoint makes none of these.

    Args:
        reader: The state before the memory is saved.
        memory: The memory.
        vectors: Its vectors, of shape (pieces, dimensions), normalised.
        policy: Which links are wanted.
        calibration: What the embedder's cosines mean.
        explicit: Ids of memories that its explicit links cover: these get no automatic link.
        new_link_id: Gives an id for each link.

    """
    chosen: list[LinkChoice] = []
    if policy.max_semantic and memory.type is not MemoryType.CHECKPOINT:
        within = policy.topic_window if memory.type is MemoryType.DECISION else 0.0
        candidates = gather(
            reader, memory, vectors, calibration=calibration, explicit=explicit, decisions_within=within
        )
        chosen += _semantic(reader, memory, candidates, policy)
    if policy.max_temporal and policy.temporal_window:
        covered = nodes_of(reader, {memory.id, *explicit})
        chosen += _temporal(reader, memory, policy, {*covered.tolist(), *(choice.node for choice in chosen)})
    ids = reader.ids([choice.node for choice in chosen])
    return [
        Link(
            id=new_link_id(),
            from_id=memory.id,
            to_id=to_id,
            link_type=choice.link_type,
            confidence=choice.confidence,
            created_by="system",
            metadata=LinkMetadata(original_relationship=choice.relationship, similarity=choice.similarity),
            created_at=memory.created_at,
        )
        for choice, to_id in zip(chosen, ids, strict=True)
    ]


def probabilities(evidence: Evidence, weights: Sequence[float] = WEIGHTS, bias: float = BIAS) -> Values:
    """
    Return how probable it is, 0 to 1, that each candidate and the new memory belong to one matter.

    It is a logistic regression; a wrong link counted two and a half times in its fit, so it is rather too low.

    Args:
        evidence: What is known.
        weights: As `WEIGHTS`.
        bias: As `BIAS`.

    """
    odds = evidence.table() @ np.asarray(weights, np.float64) + bias
    # Half a hyperbolic tangent is the logistic function, without its overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * odds)


def _semantic(reader: Reader, memory: Memory, candidates: Candidates, policy: LinkingPolicy) -> list[LinkChoice]:
    """Return the associations, surest first, but last what explicit links lead to anyway."""
    evidence = candidates.evidence
    probable = probabilities(evidence)
    surest = np.where(probable >= policy.threshold, probable, 0.0)
    by_topic = np.zeros(len(surest))
    if policy.topic_window and memory.type is MemoryType.DECISION:
        age = (milliseconds(memory.created_at) - candidates.created) / (1000 * policy.topic_window)
        # The revised ADR-001, rule 2: decisions of one topic within the window, 0.4 + 0.3 * (1 - age / window).
        of_matter = (probable >= min(policy.threshold, _LIKELY)) & (evidence.topic > 0)
        by_topic[of_matter & (candidates.types == _DECISION) & (age <= 1)] = 1.0
        by_topic *= 0.4 + 0.3 * (1 - age)
    confidence = np.maximum(surest, by_topic)
    likely = np.flatnonzero((confidence > 0) & (confidence >= policy.minimum))
    taking = np.zeros(len(confidence), np.bool_)
    taking[likely] = _free(reader, candidates.nodes[likely], policy)
    confidence[~taking] = 0.0
    order = np.lexsort((-candidates.nodes, -candidates.created, -confidence, evidence.chain > 0))
    wanted = order[confidence[order] > 0][: policy.max_semantic]
    return [
        LinkChoice(
            int(candidates.nodes[at]),
            LinkType.ASSOCIATION,
            RELATED if surest[at] >= by_topic[at] else SAME_TOPIC,
            float(confidence[at]),
            float(candidates.cosines[at]),
        )
        for at in wanted
    ]


def _temporal(reader: Reader, memory: Memory, policy: LinkingPolicy, covered: Collection[int]) -> list[LinkChoice]:
    """Return the links to what was saved shortly before, newest first."""
    same_topic = policy.temporal_same_topic
    if same_topic and memory.topic is None:
        return []
    where = Filter(
        topic=memory.topic if same_topic else None,
        since=moved(memory.created_at, -timedelta(seconds=policy.temporal_window)),
        until=moved(memory.created_at, timedelta(milliseconds=1)),
    )
    nodes = reader.window(where, limit=_RECENT + len(covered))
    age = (milliseconds(memory.created_at) - reader.facts(nodes).created) / (1000 * policy.temporal_window)
    confidence = 0.3 + 0.2 * (1 - np.clip(age, 0, 1))
    wanted = _free(reader, nodes, policy) & (confidence >= policy.minimum) & ~_in(nodes, covered)
    return [
        LinkChoice(int(nodes[at]), LinkType.TEMPORAL, CLOSE_IN_TIME, float(confidence[at]))
        for at in np.flatnonzero(wanted)[: policy.max_temporal]
    ]


def _in(nodes: Nodes, others: Collection[int]) -> NDArray[np.bool_]:
    """Return which of some nodes are in a set."""
    return np.fromiter((node in others for node in nodes.tolist()), np.bool_, len(nodes))


def _free(reader: Reader, nodes: Nodes, policy: LinkingPolicy) -> NDArray[np.bool_]:
    """Return which of *nodes* may take one more automatic link."""
    table = reader.links(nodes, "in")
    targets = np.sort(table.targets[table.creators == SYSTEM])
    taken = np.searchsorted(targets, nodes, side="right") - np.searchsorted(targets, nodes, side="left")
    free: NDArray[np.bool_] = taken < policy.max_incoming
    return free
