"""
Storage protocols of memory, implemented by engines and used by `MemoryStore`.

Decision logic (links, ranking, traversal, decay) is written once, as *plans* over a `Reader` or `Writer`.
A plan is a plain function. The engine runs it next to its data, on one consistent snapshot.
The data may be on a server, so a plan batches its queries and never issues one query per result.
Plans identify memories by *nodes*: integers that are valid within one plan only.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal.json_conditions import field_filter_name, value_filter_names
from mama_structs._internal.jsonable import canonical_json
from mama_structs.errors import EmbedderMismatch
from mama_structs.memory.types.model import (
    CREATORS,
    DECAY_RATES_PER_DAY,
    KEY_PREFIX,
    ORIGINS,
    PATH_FILTER_PREFIX,
    CreatedBy,
    Link,
    LinkType,
    Memory,
    MemoryType,
    Origin,
    Outcome,
    RecordMetadata,
    is_id,
    record_path,
    short_path,
    to_milliseconds,
)
from mama_structs.memory.types.namespace_erasure import NamespaceDeletion
from mama_structs.settings import MemorySettings
from mama_structs.storage.sqlite_errors import Issue

T = TypeVar("T")
ItemT = TypeVar("ItemT")

Nodes = NDArray[np.int64]
Scores = NDArray[np.float32]
Vectors = NDArray[np.float32]
Query = str | Mapping[str, float]
"""A word query: a text, or its terms from `text_analysis.query_terms` if it is used repeatedly."""
Position = tuple[int, int]
"""Position in the order of creation: a time in milliseconds since 1970, and a node."""
Direction = Literal["out", "in", "both"]
"""Direction of link traversal: to older memories (``out``), to newer ones (``in``), or both."""
ProgressCallback = Callable[[int, int], object]
"""Progress callback: called with the amount of finished work and the total."""


class EmbedderRecord(msgspec.Struct, frozen=True):
    """Identity of the embedder that computed a namespace's vectors."""

    name: str
    fingerprint: str
    dimensions: int


TYPE_NUMBERS: Final[Mapping[str, int]] = {
    kind: number for kinds in (MemoryType, LinkType) for number, kind in enumerate(kinds)
}
"""Numbers of memory types and link types in `NodeAttributes` and `LinkTable`."""
SYSTEM_CREATOR_INDEX: Final = CREATORS.index("system")
"""Index of the creator of automatic links in `LinkTable.creators`."""
_DECAY_RATES: Final = np.array([DECAY_RATES_PER_DAY[link_type] for link_type in LinkType])
_DAY_MS: Final = 86_400_000
_SAMPLE_BITS: Final = 10
# Maximum number of memories per page. The limit lets other transactions run between two pages.
_PAGE_MEMORIES: Final = 256
MAX_DUPLICATES: Final = 64
"""Maximum number of duplicates examined per fingerprint. Hosts may store any number of them."""
FILTER_NAMES_VERSION: Final = 3
"""Version of the names that `filter_names` returns. Snapshots with names of another version are rejected."""
NEVER_EXPIRES_MS: Final = 2**63 - 1
"""End of validity of memories that never expire, in milliseconds since 1970."""


@attrs.frozen(kw_only=True)
class RelevanceBounds:
    """
    Minimum relevance of displayed hits.

    The values were chosen on the recall set and the exact sets in tests/data, see ``benchmarks/precision.py``.
    """

    relevance: float = 0.25  # minimum relevance of the best hit; if it is lower, no hit is displayed
    share: float = 0.3  # minimum relevance of a hit, relative to the highest one


DISPLAY_BOUNDS: Final = RelevanceBounds()


def _extra_key(extra: Mapping[str, Any] | None) -> object:
    """Return a hashable key that is equal for equal conditions. Python's ``==`` would not distinguish 1 from True."""
    return frozenset(canonical_json([key, value]) for key, value in extra.items()) if extra else None


@attrs.frozen(kw_only=True)
class EngineFilter:
    """
    Conditions on memories. A memory must satisfy every condition that is not None.

    *types*: it has one of these types. *topic*: it has this topic, after NFC normalization. *since*, *until*: it was
    created in [since, until). *mentions*: it mentions all of these ids. *valid_at*: it has not expired at this time.
    *origins*: it has one of these origins. *trust*: it is at least as trusted as this origin. *evidence*: it cites all
    of these memories. *labels*: it is a record whose labels start with these, or equal them if *nested* is False.
    *tags*: it has all of these tags, after NFC normalization. *source*: it has this source, after NFC normalization.
    *outcome*, *created_by*: its metadata have these values. *extra*: its extra data have JSON values under these keys
    that are equal by the rules of `canonical_json`; the keys are compared without normalization. *values*: it is a
    record with all of these names of values, see `value_filter_names`.

    *namespace*: it is in this namespace. An engine may ignore this condition, because its memories are all in one
    namespace: the store reads only the namespaces that match, and removes the condition before it calls an engine.
    """

    types: frozenset[MemoryType] | None = None
    topic: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    mentions: frozenset[str] | None = None
    valid_at: datetime | None = None
    origins: frozenset[Origin] | None = None
    trust: Origin | None = None
    evidence: frozenset[str] | None = None
    labels: tuple[str, ...] | None = None
    nested: bool = True
    tags: tuple[str, ...] | None = None
    source: str | None = None
    outcome: Outcome | None = None
    created_by: CreatedBy | None = None
    extra: Mapping[str, Any] | None = attrs.field(default=None, eq=_extra_key)
    values: tuple[str, ...] | None = None
    namespace: str | None = None

    @property
    def names(self) -> list[str]:
        """Filter names that a memory must have to match, in the form that `filter_names` returns."""
        named = [_mention_filter_name(one) for one in sorted(self.mentions or ())]
        named += map(evidence_filter_name, sorted(self.evidence or ()))
        if self.labels is not None:
            named.append(labels_filter_name(self.labels, nested=self.nested))
        named += _metadata_filter_names(self.tags or (), self.source, self.outcome, self.created_by)
        for key, value in (self.extra or {}).items():
            # For a value that no filter can match, use a name that no memory has.
            named.append(_extra_filter_name(key, value) or field_filter_name("extra", ""))
        return [*named, *(self.values or ())]

    def matches(self, memory: Memory) -> bool:
        """Return True if a memory satisfies all conditions."""
        return (
            (self.types is None or memory.type in self.types)
            and (self.topic is None or _is_same_text(memory.topic, self.topic))
            and (self.since is None or memory.created_at >= self.since)
            and (self.until is None or memory.created_at < self.until)
            and (self.mentions is None or self.mentions <= set(memory.mentions))
            and (self.origins is None or memory.origin in self.origins)
            and (self.trust is None or ORIGINS.index(memory.trust) <= ORIGINS.index(self.trust))
            and (self.evidence is None or self.evidence <= set(memory.evidence))
            and (self.labels is None or labels_filter_name(self.labels, nested=self.nested) in filter_names(memory))
            and (self.tags is None or set(map(to_nfc, self.tags)) <= set(map(to_nfc, memory.tags)))
            and (self.source is None or _is_same_text(memory.source, self.source))
            and (self.outcome is None or memory.outcome == self.outcome)
            and (self.created_by is None or memory.metadata.created_by == self.created_by)
            and all(_has_extra(memory.metadata.extra, key, value) for key, value in (self.extra or {}).items())
            and (self.values is None or set(self.values) <= set(filter_names(memory)))
            and (self.namespace is None or memory.namespace == self.namespace)
            and (self.valid_at is None or memory.valid_until is None or memory.valid_until > self.valid_at)
        )


def _is_same_text(text: str | None, wanted: str) -> bool:
    return text is not None and to_nfc(text) == to_nfc(wanted)


def _has_extra(extra: Mapping[str, Any], key: str, value: object) -> bool:
    return key in extra and canonical_json([key, extra[key]]) == canonical_json([key, value]) is not None


def filter_names(memory: Memory) -> tuple[str, ...]:
    """
    Return the names by which filters find a memory.

    These are its mentions, the memories that it cites as evidence, its tags, source, outcome, creator and extra data,
    and the labels, the path and the values of a record. The names of different conditions never collide: mentions begin
    with no NUL, ids and labels with one, and all others with two.
    """
    own = memory.metadata
    named = (
        *map(_mention_filter_name, memory.mentions),
        *(evidence_filter_name(item) for item in memory.evidence if is_id(item)),
        *_metadata_filter_names(memory.tags, memory.source, memory.outcome, own.created_by),
        *filter(None, (_extra_filter_name(key, value) for key, value in own.extra.items())),
    )
    if not isinstance(own, RecordMetadata):
        return named
    whole = (labels_filter_name(own.labels[:length]) for length in range(len(own.labels) + 1))
    place = labels_filter_name(own.labels, nested=False), f"{PATH_FILTER_PREFIX}{short_path(own.labels, own.key)}"
    return (*named, *whole, *place, *value_filter_names(own.value))


def _metadata_filter_names(
    tags: Iterable[str], source: str | None, outcome: str | None, created_by: str | None
) -> Iterator[str]:
    """Yield the filter names of metadata fields."""
    for tag in tags:
        yield field_filter_name("tag", to_nfc(tag))
    if source is not None:
        yield field_filter_name("source", to_nfc(source))
    for field, value in (("outcome", outcome), ("created_by", created_by)):
        if value is not None:
            yield field_filter_name(field, value)


def _extra_filter_name(key: str, value: object) -> str | None:
    """Return the filter name of an item of extra data, or None if no filter can match the value."""
    # Encode key and value as one JSON array, so that the end of the key is unambiguous.
    text = canonical_json([key, value])
    return None if text is None else field_filter_name("extra", text)


def _mention_filter_name(mention: str) -> str:
    """Return the filter name of a mentioned id."""
    # A stored id has no control characters, but a filter may name any text.
    return field_filter_name("mention", mention) if mention.startswith("\0") else mention


def evidence_filter_name(memory_id: str) -> str:
    """Return the filter name of the memories that cite this memory as evidence."""
    # The NUL prefix prevents collisions with mentions.
    return f"\0{memory_id}"


def labels_filter_name(labels: Sequence[str], *, nested: bool = True) -> str:
    """
    Return the filter name of records whose labels start with *labels*.

    If *nested* is False, the labels must be equal.
    """
    return f"\0{record_path(labels)}{'' if nested else KEY_PREFIX}"


def to_nfc(text: str) -> str:
    """Return a text in Unicode NFC, the form in which topics are compared."""
    return unicodedata.normalize("NFC", text)


def expiry_milliseconds(memory: Memory) -> int:
    """Return a memory's expiry in milliseconds since 1970 (UTC), or `NEVER_EXPIRES_MS`."""
    return NEVER_EXPIRES_MS if memory.valid_until is None else to_milliseconds(memory.valid_until)


def sample_slice(count: int) -> slice:
    """
    Return the slice that selects the sample from *count* memories in order of saving.

    It selects all of fewer than 1,024 memories. Otherwise it selects every 2^k-th, which yields 512 to 1,023 of them.
    """
    step = 1 << max(count.bit_length() - _SAMPLE_BITS, 0)
    return slice(step - 1, None, step)


def union_nodes(parts: Iterable[Nodes]) -> Nodes:
    """Return the sorted union of arrays of nodes. For a few hundred nodes, `numpy.unique` takes ten times as long."""
    nodes = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
    is_first = np.ones(len(nodes), np.bool_)
    np.not_equal(nodes[1:], nodes[:-1], out=is_first[1:])
    return nodes[is_first]


def find_positions(nodes: Nodes, sorted_nodes: Nodes) -> NDArray[np.intp]:
    """Return the index of each of *nodes* in *sorted_nodes*, which must be sorted, or -1 for other nodes."""
    if not len(sorted_nodes):
        return np.full(nodes.shape, -1, np.intp)
    at = np.minimum(sorted_nodes.searchsorted(nodes), len(sorted_nodes) - 1)
    return np.where(sorted_nodes[at] == nodes, at, -1)


def in_sorted(nodes: Nodes, sorted_nodes: Nodes) -> NDArray[np.bool_]:
    """Return a mask of the *nodes* that occur in *sorted_nodes*, which must be sorted."""
    mask: NDArray[np.bool_] = find_positions(nodes, sorted_nodes) >= 0
    return mask


@attrs.frozen
class Matches:
    """Nodes with scores, best first. Equal scores are ordered newest first."""

    nodes: Nodes
    scores: Scores

    def __len__(self) -> int:
        return len(self.nodes)


@attrs.frozen
class NodeAttributes:
    """Attributes of nodes as columns, with one item per node. Reading the attributes does not read texts."""

    created: NDArray[np.int64]  # creation time, milliseconds since 1970 (UTC)
    types: NDArray[np.int8]  # memory type as a number of `TYPE_NUMBERS`
    topics: NDArray[np.int32]  # number of the topic, -1 without a topic
    scripts: NDArray[np.uint8]  # scripts of the content, from `text_analysis.detect_scripts`
    asking: NDArray[np.uint8]  # percentage of questions in the content, from `text_analysis.question_percentage`
    ends: NDArray[np.int64]  # expiry, from `expiry_milliseconds`
    origins: NDArray[np.int8]  # index of the origin in `ORIGINS`
    trusts: NDArray[np.int8]  # index of the trust in `ORIGINS`
    wordings: NDArray[np.int64]  # duplicate fingerprint, from `duplicates.duplicate_fingerprint`

    def unexpired_mask(self, moment_ms: int) -> NDArray[np.bool_]:
        """Return a mask of the nodes that have not expired at a time in milliseconds since 1970."""
        return self.ends > moment_ms


@attrs.frozen
class LinkTable:
    """Links as columns, with one item per link."""

    sources: Nodes  # node at the start of the link
    targets: Nodes  # node at the end of the link
    types: NDArray[np.int8]  # link type as a number of `TYPE_NUMBERS`
    creators: NDArray[np.int8]  # index of the creator in `CREATORS`
    confidences: NDArray[np.float32]  # stored confidence, before decay
    created: NDArray[np.int64]  # creation time, milliseconds since 1970 (UTC)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """All columns, in the order of the constructor's arguments."""
        return self.sources, self.targets, self.types, self.creators, self.confidences, self.created

    def decayed_confidences(self, now_ms: int) -> Scores:
        """
        Return the decayed confidence of each link, as computed by `Link.strength`.

        *now_ms* is in milliseconds since 1970.
        """
        rates = np.where(self.creators == SYSTEM_CREATOR_INDEX, _DECAY_RATES[self.types], 0.0)
        days = np.maximum(now_ms - self.created, 0) / _DAY_MS
        faded: Scores = (self.confidences * np.exp(-rates * days)).astype(np.float32)
        return faded


@attrs.frozen(eq=False)
class ScannedMemory:
    """A memory returned by `Reader.scan`, with its vectors and outgoing links."""

    node: int
    memory: Memory
    vectors: Vectors
    links: tuple[Link, ...]


@attrs.frozen(kw_only=True, eq=False)
class NewMemory:
    """A memory to store, as input of `Writer.put_new`."""

    memory: Memory
    vectors: Vectors
    links: Sequence[Link] = ()
    contents: Mapping[str, str] = attrs.field(factory=dict, repr=False)


class Prefetch(Protocol):
    """
    Queries of a `Reader` whose results a plan can request in advance with `Reader.expect`.

    Each method requests the result of the `Reader` method with the same name.
    """

    def find_many(self, memory_ids: Sequence[str]) -> object:
        """Prefetch `Reader.find_many`."""

    def find(self, memory_id: str) -> object:
        """Prefetch `Reader.find`."""

    def topics(self, nodes: Nodes) -> object:
        """Prefetch `Reader.topics`."""

    def duplicates(self, wordings: Sequence[int]) -> object:
        """Prefetch `Reader.duplicates`."""

    def count(self, where: EngineFilter | None = None) -> object:
        """Prefetch `Reader.count`."""

    def nearest(self, vector: Vectors, limit: int, where: EngineFilter | None = None) -> object:
        """Prefetch `Reader.nearest`."""

    def nearest_many(self, vectors: Vectors, limit: int, where: EngineFilter | None = None) -> object:
        """Prefetch `Reader.nearest_many`."""

    def sample(self) -> Vectors | None:
        """
        Prefetch `Reader.sample`, and return the cached sample, or None.

        A query that depends on the sample can be prefetched with the cached one. The sample may have changed since.
        """

    def words(self, query: Query, limit: int, where: EngineFilter | None = None) -> object:
        """Prefetch `Reader.words`."""

    def word_scores(self, query: Query, nodes: Nodes) -> object:
        """Prefetch `Reader.word_scores`."""

    def rarity(self, query: Query) -> object:
        """Prefetch `Reader.rarity`."""

    def links(self, nodes: Nodes, direction: Direction = "both", types: Collection[LinkType] | None = None) -> object:
        """Prefetch `Reader.links`."""

    def links_of_many(self, nodes: Nodes, direction: Direction = "both") -> object:
        """Prefetch `Reader.links_of_many`."""

    def window(
        self,
        where: EngineFilter | None = None,
        *,
        newest_first: bool = True,
        after: Position | None = None,
        limit: int | None = None,
    ) -> object:
        """Prefetch `Reader.window`."""

    def find_temporal_neighbours(self, nodes: Nodes, apart_ms: int) -> object:
        """Prefetch `Reader.find_temporal_neighbours`."""

    def known_contents(self, digests: Sequence[str]) -> object:
        """Prefetch `Reader.known_contents`."""


class Reader(Protocol):
    """Read access to one consistent snapshot of a namespace."""

    @property
    def change(self) -> int:
        """Number of the last change. Every write increases it."""

    @property
    def damaged(self) -> int:
        """Number of memories that the snapshot leaves out because they are damaged."""

    def expect(self, ask: Callable[[Prefetch], object], *, around: int | None = 0) -> None:
        """
        Prefetch the results of queries that the plan will issue.

        An engine whose data is on a server sends these queries in one batch. Other engines may ignore the call.

        Args:
            ask: Issues the queries. It receives no results, so no query may depend on the result of another one.
            around: Number of hops along links from the results, within which memories are prefetched too, with ids,
                links and texts only. None for all hops. Only links of the types that *ask* queries are followed.

        """

    def find_many(self, memory_ids: Sequence[str]) -> list[int | None]:
        """Return the node of each memory, or None for an unknown id."""

    def find(self, memory_id: str) -> int | None:
        """Return the node of one memory, or None for an unknown id."""
        return self.find_many([memory_id])[0]

    def get(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        """Return memories, in the order of *nodes*."""

    def get_stored(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        """Return memories as `get` does, but without the older former versions of records, which need more reads."""

    def filter_stored(self, nodes: list[int], is_wanted: Callable[[bytes], bool]) -> list[int]:  # noqa: ARG002 - default
        """Return at least those *nodes* whose stored JSON, including links, is wanted. The default returns all."""
        return nodes

    def ids(self, nodes: Sequence[int] | Nodes) -> list[str]:
        """Return the ids of memories, in the order of *nodes*, without reading their texts."""

    def topics(self, nodes: Sequence[int] | Nodes) -> list[str | None]:
        """Return the topics of memories, in the order of *nodes*, without reading their texts."""

    def duplicates(self, wordings: Sequence[int]) -> list[Nodes]:
        """
        Return, for each duplicate fingerprint, the sorted nodes of the memories that have this fingerprint.

        If a fingerprint has many nodes, only the first and the last `MAX_DUPLICATES` are returned.
        """

    def pieces(self, nodes: Sequence[int] | Nodes) -> tuple[Vectors, NDArray[np.int64]]:
        """
        Return the normalized vectors of *nodes*, and the number of vectors per node.

        The vectors have the shape (chunks, dimensions) and are in the order of *nodes*.
        """

    def vectors(self, node: int) -> Vectors:
        """Return the vectors of one memory."""
        return self.pieces([node])[0]

    def count(self, where: EngineFilter | None = None) -> int:
        """Return the number of memories that match the filter."""

    def facts(self, nodes: Nodes) -> NodeAttributes:
        """Return the attributes of *nodes* that can be read without their texts."""

    def nearest(self, vector: Vectors, limit: int, where: EngineFilter | None = None) -> Matches:
        """Return up to *limit* nodes with the highest cosine to the normalized *vector*."""

    def nearest_many(self, vectors: Vectors, limit: int, where: EngineFilter | None = None) -> list[Matches]:
        """Return the result of `nearest` for each row of *vectors*."""
        return [self.nearest(vector, limit, where) for vector in vectors]

    def similarities(self, vector: Vectors, nodes: Nodes) -> Scores:
        """Return the highest cosine between the normalized *vector* and the vectors of each node."""

    def sample(self) -> Vectors:
        """
        Return the first vector of each memory in a sample, from which plans compute baselines.

        The array has the shape (n, dimensions) and is read-only. It is the same array until something changes.
        `sample_slice` selects the sample from the memories in order of saving. Earlier deletions do not affect it.
        """

    def words(self, query: Query, limit: int, where: EngineFilter | None = None) -> Matches:
        """
        Return the nodes with the highest BM25 score for the query.

        Nodes that share no term with the query are left out.
        """

    def word_scores(self, query: Query, nodes: Nodes) -> Scores:
        """Return the BM25 score of each node for the query, or 0 if the node shares no term with the query."""

    def words_many(self, queries: Sequence[Query], limit: int) -> list[Matches]:
        """Return the results of `words` for each query."""
        return [self.words(query, limit) for query in queries]

    def word_scores_many(self, queries: Sequence[Query], nodes: Sequence[Nodes]) -> list[Scores]:
        """Return the results of `word_scores` for each query and its nodes."""
        return [self.word_scores(query, own) for query, own in zip(queries, nodes, strict=True)]

    def lengths(self, nodes: Nodes) -> Scores:
        """Return the number of terms of each node's text, or 0 if the node is not indexed yet."""

    def rarity(self, query: Query) -> dict[str, float]:
        """Return the inverse document frequency of each term of the query."""

    def links(
        self,
        nodes: Nodes,
        direction: Direction = "both",
        types: Collection[LinkType] | None = None,
        *,
        words: Collection[str] | None = None,
    ) -> LinkTable:
        """
        Return the deduplicated links that start (``out``) or end (``in``) at *nodes*, or both.

        *types* and *words* select links by type and by relationship word.
        """

    def links_of_many(self, nodes: Sequence[int] | Nodes, direction: Direction = "both") -> list[list[Link]]:
        """Return the links of each node as `Link` objects, ordered by time."""

    def read_links(self, node: int, direction: Direction = "both") -> list[Link]:
        """Return the links of one memory as `Link` objects."""
        return self.links_of_many([node], direction)[0]

    def find_links(self, link_ids: Sequence[str]) -> list[Link | None]:
        """Return each link, or None for an unknown id."""

    def window(
        self,
        where: EngineFilter | None = None,
        *,
        newest_first: bool = True,
        after: Position | None = None,
        limit: int | None = None,
    ) -> Nodes:
        """
        Return the matching nodes, ordered by creation time in milliseconds and then in order of saving.

        Args:
            where: Conditions that the memories must satisfy.
            newest_first: Reverses the order.
            after: Return only nodes that are strictly after this position in the chosen order. No memory needs to be
                there: the node -1 is before all memories of the millisecond, and a number above every node after them.
            limit: Maximum number of nodes. An engine does not read the memories before *after*.

        """

    def find_temporal_neighbours(self, nodes: Nodes, apart_ms: int) -> tuple[Nodes, Nodes]:
        """
        Return each node's predecessor and successor by creation time, or -1 if it has none.

        A neighbour was created at most *apart_ms* milliseconds away. Nodes with equal times are in order of saving.
        """

    def relationships(self) -> dict[str, int]:
        """Return the relationship words of all links, with the number of links per word."""

    def scan(self, *, after: int = -1, limit: int | None = None) -> list[ScannedMemory]:
        """Return up to *limit* memories in order of saving, starting after the node *after*."""

    def contents(self, digests: Sequence[str]) -> dict[str, str]:
        """
        Return the stored texts with these hashes (`model.text_digest`).

        A missing text raises `StoreDamaged`.
        """

    def known_contents(self, digests: Sequence[str]) -> set[str]:
        """Return the subset of the hashes for which a text is stored, without reading the texts."""

    def users_of_content(self, digest: str) -> Nodes:
        """Return the memories whose evidence refers to the stored text with this hash."""

    def notes(self, prefix: str = "") -> dict[str, str]:
        """Return the notes whose names start with *prefix*, sorted by name."""

    def note_names(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, last_first: bool = False
    ) -> list[str]:
        """
        Return the names of notes that start with *prefix*, without reading the notes.

        They are sorted by code points, or in reverse with *last_first*, and follow *after* in this order. With a
        *limit*, which needs an ASCII *prefix*, an engine does not read the names beyond it.
        """

    def record_paths(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, last_first: bool = False
    ) -> list[str]:
        """
        Return the paths of records (`short_path`) that are memories and start with *prefix*, without reading them.

        The other arguments are as for `note_names`.
        """

    def notes_by_name(self, names: Sequence[str]) -> dict[str, str]:
        """Return the notes with these names, in the order of *names*. Missing notes are left out."""

    def nearest_ids(self, text: str, limit: int) -> list[str]:
        """Return up to *limit* ids that are spelled most like *text*, most similar first."""

    def without_vectors(self, embedder: EmbedderRecord) -> list[str]:
        """Return the ids of memories without vectors of *embedder*, in order of saving."""


class Writer(Reader, Protocol):
    """
    A `Reader` in a write transaction.

    It reads its own uncommitted writes. If its plan raises, the transaction is rolled back.
    """

    @property
    def should_yield(self) -> bool:
        """
        True if the transaction should end, because other writers have waited long enough.

        A plan should then leave its remaining writes to another transaction.
        """

    def put(
        self,
        memory: Memory,
        *,
        vectors: Vectors | None = None,
        links: Sequence[Link] = (),
        contents: Mapping[str, str] | None = None,
    ) -> int:
        """
        Store a new memory or a new version of one, with outgoing links, and return its node.

        Evidence texts to which no memory refers any more are deleted.

        Args:
            memory: The memory. An unknown id creates a new one.
            vectors: Of shape (chunks, dimensions), normalized. None leaves the stored vectors unchanged.
            links: Added to the stored links. A link with the id of a stored link replaces the stored link.
            contents: Texts by hash. Only texts to which the memory's evidence refers are stored.

        Raises:
            KeyError: The evidence refers to a text that is neither in *contents* nor stored.

        """

    def put_new(self, new: Sequence[NewMemory], links_of: Callable[[Nodes], Sequence[Sequence[Link]]]) -> Nodes:
        """
        Store new memories in order, and return their nodes.

        Args:
            new: The memories, each with outgoing links.
            links_of: Called with the nodes once all new memories are readable. Returns further links for each memory.

        Raises:
            ValueError: A memory with one of the ids already exists.
            KeyError: As for `put`.

        """

    def put_link(self, link: Link) -> None:
        """Store a link, replacing a link with the same id. The memories at both ends must exist."""

    def delete(self, memory_id: str) -> int:
        """
        Delete a memory and all its links, and return the number of deleted links.

        An unknown id raises KeyError.
        """

    def delete_links(self, link_ids: Collection[str]) -> int:
        """Delete links, and return the number of links that existed."""

    def mark_for_erasure(self) -> None:
        """Mark the data that this plan deletes or replaces, so that `Engine.erase` removes the data from disk."""

    def set_note(self, name: str, text: str | None) -> None:
        """
        Store a note, a text that is separate from memories and never exported.

        None deletes the note.
        """
        self.set_notes({name: text})

    def set_notes(self, notes: Mapping[str, str | None]) -> None:
        """Store several notes by name. None deletes a note."""

    def put_vectors(self, embedder: EmbedderRecord, vectors: Mapping[str, Vectors]) -> None:
        """
        Store vectors, by memory id, of an embedder that is not active yet.

        Deleted memories are skipped.
        """


class Engine(Protocol):
    """
    Storage of one namespace, with all operations that `MemoryStore` and higher layers need.

    Every method raises `StoreError` if its data cannot be read or written, `SessionClosed` after it was closed,
    and `EmbedderMismatch` after another process re-embedded the namespace.
    """

    @property
    def namespace(self) -> str:
        """Name of the namespace."""

    @property
    def embedder(self) -> EmbedderRecord:
        """The active embedder, whose vectors are searched."""

    @property
    def unerasable_places(self) -> tuple[str, ...]:
        """Descriptions of the places of this backend that `erase` does not reach."""

    async def read(self, plan: Callable[[Reader], T]) -> T:
        """Run *plan* on a snapshot with all writes that any process acknowledged before the call."""

    async def write(self, plan: Callable[[Writer], T]) -> T:
        """Run *plan* in a write transaction, and return its result once it is durable."""

    async def check(self, progress: ProgressCallback | None = None) -> list[Issue]:
        """Compare derived data with stored data, without changing anything."""

    async def rebuild(self, progress: ProgressCallback | None = None) -> list[str]:
        """
        Rebuild all derived data from stored data.

        Damaged rows are skipped, and reported with one line each.
        """

    async def wait_until_idle(self) -> None:
        """Wait until the word index contains every memory."""

    async def begin_maintenance(self, now_ms: int, every_ms: int) -> int | None:
        """
        Record the start of maintenance, and return the time from which it computes ages.

        Returns None if maintenance is not due. The returned time is the start of the previous maintenance if that is
        earlier, so that a single wrong clock reading does not age anything. In a new store nothing is old.
        """

    async def adopt(self, embedder: EmbedderRecord) -> bool:
        """
        Activate an embedder and drop the vectors of all others.

        If some memories lack vectors of *embedder*, return False and change nothing.
        """

    async def erase(self, *, wait: float) -> tuple[str, ...]:
        """
        Remove data marked by `Writer.mark_for_erasure` from disk.

        Returns readable descriptions of the places that still contain marked data. *wait* is the time in seconds to
        wait for other users of the data. Cheap if there is nothing to erase.
        """

    def figures(self) -> dict[str, Any]:
        """Return statistics about the stored data, known from the last operation. Thread-safe."""


class Engines(NamespaceDeletion, Protocol):
    """Opens the namespaces of one store. Users of the same namespace share one engine."""

    async def namespaces(self) -> list[str]:
        """Return the names of the namespaces that contain memories."""

    async def stored_embedder(self, namespace: str) -> EmbedderRecord | None:
        """Return the embedder of a namespace's vectors, or None if there are none yet."""

    async def open(self, namespace: str, embedder: EmbedderRecord, settings: MemorySettings) -> Engine:
        """Return the engine of a namespace, and open it if necessary. Each call must be matched by `release`."""

    async def release(self, namespace: str) -> None:
        """Release one use of a namespace. The last release closes the namespace."""


def select_names(
    names: Iterable[str],
    after: str | None,
    limit: int | None,
    last_first: bool,  # noqa: FBT001 - as in `Reader.note_names`
) -> list[str]:
    """Return the page of sorted names that `Reader.note_names` describes."""
    found = sorted(names, reverse=last_first)
    if after is not None:
        found = [name for name in found if (name < after if last_first else name > after)]
    return found[:limit]


def write_until_due(writer: Writer, items: Sequence[ItemT], write: Callable[[Writer, ItemT], T]) -> list[T]:
    """
    Write at least one item, and continue until other writers have waited long enough.

    Returns the results of the items that were written.
    """
    written = []
    for item in items:
        written.append(write(writer, item))
        if writer.should_yield:
            break
    return written


async def write_in_transactions(
    run: Callable[[Callable[[Writer], list[T]]], Awaitable[list[T]]],
    items: Sequence[ItemT],
    write: Callable[[Writer, ItemT], T],
    *,
    max_items: int,
) -> AsyncIterator[list[T]]:
    """
    Write items in transactions of at most *max_items* items, and yield the results of each.

    A transaction ends early if other writers have waited long enough.
    """
    done = 0
    while done < len(items):
        some = items[done : done + max_items]
        written = await run(lambda writer: write_until_due(writer, some, write))  # noqa: B023 - awaited
        done += len(written)
        yield written


async def read_in_pages(
    read: Callable[[Callable[[Reader], T]], Awaitable[T]], ids: Sequence[str], plan: Callable[[Reader, list[int]], T]
) -> AsyncIterator[T]:
    """Yield the plan's result for each page of memories. Deleted memories are skipped."""
    for start in range(0, len(ids), _PAGE_MEMORIES):

        def page(reader: Reader, some: Sequence[str] = ids[start : start + _PAGE_MEMORIES]) -> T:
            # Look up the nodes for each page, because they are valid within one plan only.
            return plan(reader, [node for node in reader.find_many(some) if node is not None])

        yield await read(page)


def embedder_mismatch(namespace: str, stored: EmbedderRecord, given: EmbedderRecord) -> EmbedderMismatch:
    """Return the error for an embedder that differs from the embedder of the stored vectors."""
    return EmbedderMismatch(
        f"the memories of {namespace!r:.80} were embedded by {stored.name} ({stored.dimensions} dimensions, "
        f"{stored.fingerprint}), and the embedder at hand is {given.name} ({given.dimensions} dimensions, "
        f"{given.fingerprint})",
        stored=(stored.name, stored.fingerprint),
        given=(given.name, given.fingerprint),
        hint="open it with the embedder that made them, or change over with `mama-structs reembed` or "
        "mama_structs.admin.reembed()",
    )
