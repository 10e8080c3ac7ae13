"""Memory engine over plain dicts. Tests use it as the reference for the results of other engines."""

# ruff: noqa: D102 - methods are documented in the protocols of `mama_structs.memory.types.engine`

from __future__ import annotations

import copy
import difflib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import StoreDamaged
from mama_structs.memory.types.duplicates import NO_FINGERPRINT, duplicate_fingerprint
from mama_structs.memory.types.engine import (
    TYPE_NUMBERS,
    Direction,
    EmbedderRecord,
    EngineFilter,
    LinkTable,
    Matches,
    NewMemory,
    NodeAttributes,
    Nodes,
    Position,
    ProgressCallback,
    Query,
    Reader,
    ScannedMemory,
    Scores,
    Vectors,
    Writer,
    expiry_milliseconds,
    sample_slice,
    select_names,
    to_nfc,
)
from mama_structs.memory.types.model import (
    CREATORS,
    ORIGINS,
    Link,
    LinkType,
    Memory,
    MemoryType,
    RecordMetadata,
    evidence_digests,
    short_path,
    to_milliseconds,
)
from mama_structs.memory.types.text_analysis import (
    detect_scripts,
    indexed_text,
    question_percentage,
    resolve_terms,
    weighted_terms,
)
from mama_structs.storage.sqlite_errors import Issue

T = TypeVar("T")

# BM25 parameters with the usual values, and without the factor k1 + 1, as in `WordIndex`.
# Reference: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009).
_K1: Final = 1.2
_MAX_DOCUMENT_LENGTH: Final = 200.0
_LENGTH_SMOOTHING: Final = 30.0


@attrs.define
class PlainReader(Writer):
    """A `Reader` and `Writer` over dicts. It has no indexes and scans all memories."""

    should_yield: bool = attrs.field(default=False, kw_only=True)
    _next: int = attrs.field(default=0, init=False)
    _nodes: dict[str, int] = attrs.field(factory=dict, init=False)
    _memories: dict[int, Memory] = attrs.field(factory=dict, init=False)
    _vectors: dict[int, Vectors] = attrs.field(factory=dict, init=False)
    _terms: dict[int, Mapping[str, float]] = attrs.field(factory=dict, init=False)
    _links: dict[str, Link] = attrs.field(factory=dict, init=False)
    _contents: dict[str, str] = attrs.field(factory=dict, init=False)
    _notes: dict[str, str] = attrs.field(factory=dict, init=False)
    _inactive_vectors: dict[EmbedderRecord, dict[int, Vectors]] = attrs.field(factory=dict, init=False)
    change: int = attrs.field(default=0, init=False)

    @property
    def damaged(self) -> int:
        return 0

    def find_many(self, memory_ids: Sequence[str]) -> list[int | None]:
        return [self._nodes.get(memory_id) for memory_id in memory_ids]

    def get(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        return [self._memories[int(node)] for node in nodes]

    get_stored = get

    def ids(self, nodes: Sequence[int] | Nodes) -> list[str]:
        return [memory.id for memory in self.get(nodes)]

    def topics(self, nodes: Sequence[int] | Nodes) -> list[str | None]:
        return [memory.topic for memory in self.get(nodes)]

    def duplicates(self, wordings: Sequence[int]) -> list[Nodes]:
        fingerprints = {node: duplicate_fingerprint(memory) for node, memory in sorted(self._memories.items())}
        return [
            np.array([node for node, one in fingerprints.items() if one == wanted != NO_FINGERPRINT], np.int64)
            for wanted in wordings
        ]

    def pieces(self, nodes: Sequence[int] | Nodes) -> tuple[Vectors, NDArray[np.int64]]:
        found = [self._vectors[int(node)] for node in nodes]
        some = [vectors for vectors in found if len(vectors)]
        return np.concatenate(some or [np.zeros((0, 0), np.float32)]), np.array([len(one) for one in found], np.int64)

    def count(self, where: EngineFilter | None = None) -> int:
        return len(self._filter_nodes(where))

    def facts(self, nodes: Nodes) -> NodeAttributes:
        memories = self.get(nodes)
        names = sorted({to_nfc(memory.topic) for memory in self._memories.values() if memory.topic is not None})
        return NodeAttributes(
            np.array([to_milliseconds(memory.created_at) for memory in memories], np.int64),
            np.array([TYPE_NUMBERS[memory.type] for memory in memories], np.int8),
            np.array(
                [-1 if memory.topic is None else names.index(to_nfc(memory.topic)) for memory in memories], np.int32
            ),
            np.array([detect_scripts(memory.content) for memory in memories], np.uint8),
            np.array([question_percentage(memory.content) for memory in memories], np.uint8),
            np.array([expiry_milliseconds(memory) for memory in memories], np.int64),
            np.array([ORIGINS.index(memory.origin) for memory in memories], np.int8),
            np.array([ORIGINS.index(memory.trust) for memory in memories], np.int8),
            np.array([duplicate_fingerprint(memory) for memory in memories], np.int64),
        )

    def nearest(self, vector: Vectors, limit: int, where: EngineFilter | None = None) -> Matches:
        nodes = np.array([node for node in self._filter_nodes(where) if len(self._vectors[node])], np.int64)
        return _top_k(nodes, self.similarities(vector, nodes), limit)

    def similarities(self, vector: Vectors, nodes: Nodes) -> Scores:
        found = [self._vectors[int(node)] for node in nodes]
        return np.array([(vectors @ vector).max() if len(vectors) else 0.0 for vectors in found], np.float32)

    def sample(self) -> Vectors:
        first = [vectors[:1] for _, vectors in sorted(self._vectors.items()) if len(vectors)]
        return np.concatenate(first[sample_slice(len(first))] or [np.zeros((0, 0), np.float32)])

    def words(self, query: Query, limit: int, where: EngineFilter | None = None) -> Matches:
        nodes = np.array(self._filter_nodes(where), np.int64)
        scores = self.word_scores(query, nodes)
        return _top_k(nodes[scores > 0], scores[scores > 0], limit)

    def word_scores(self, query: Query, nodes: Nodes) -> Scores:
        wanted, rarity = resolve_terms(query), self.rarity(query)
        lengths = {node: min(sum(counts.values()), _MAX_DOCUMENT_LENGTH) for node, counts in self._terms.items()}
        mean = sum(lengths.values()) / max(len(lengths), 1) or 1.0
        scores = []
        for node in map(int, nodes):
            norm = _K1 * (_LENGTH_SMOOTHING + lengths[node]) / (_LENGTH_SMOOTHING + mean)
            found = [(term, weight, self._terms[node].get(term, 0)) for term, weight in wanted.items()]
            scores.append(sum(weight * rarity[term] * often / (often + norm) for term, weight, often in found))
        return np.array(scores, np.float32)

    def lengths(self, nodes: Nodes) -> Scores:
        return np.array([min(sum(self._terms[int(node)].values()), _MAX_DOCUMENT_LENGTH) for node in nodes], np.float32)

    def rarity(self, query: Query) -> dict[str, float]:
        total = len(self._terms)
        having = {term: sum(term in counts for counts in self._terms.values()) for term in resolve_terms(query)}
        return {term: math.log(1 + (total - number + 0.5) / (number + 0.5)) for term, number in having.items()}

    def links(
        self,
        nodes: Nodes,
        direction: Direction = "both",
        types: Collection[LinkType] | None = None,
        *,
        words: Collection[str] | None = None,
    ) -> LinkTable:
        ids = set(self.ids(nodes))
        links = [
            one
            for one in self._links_of(ids, direction)
            if (types is None or one.link_type in types)
            and (words is None or one.metadata.original_relationship in words)
        ]
        return LinkTable(
            np.array([self._nodes[link.from_id] for link in links], np.int64),
            np.array([self._nodes[link.to_id] for link in links], np.int64),
            np.array([TYPE_NUMBERS[link.link_type] for link in links], np.int8),
            np.array([CREATORS.index(link.created_by) for link in links], np.int8),
            np.array([link.confidence for link in links], np.float32),
            np.array([to_milliseconds(link.created_at) for link in links], np.int64),
        )

    def links_of_many(self, nodes: Sequence[int] | Nodes, direction: Direction = "both") -> list[list[Link]]:
        def order(link: Link) -> Any:
            return link.created_at, link.id

        return [sorted(self._links_of({memory_id}, direction), key=order) for memory_id in self.ids(nodes)]

    def find_links(self, link_ids: Sequence[str]) -> list[Link | None]:
        return [self._links.get(link_id) for link_id in link_ids]

    def window(
        self,
        where: EngineFilter | None = None,
        *,
        newest_first: bool = True,
        after: Position | None = None,
        limit: int | None = None,
    ) -> Nodes:
        places = sorted((to_milliseconds(self._memories[node].created_at), node) for node in self._filter_nodes(where))
        if newest_first:
            places.reverse()
        if after is not None:
            places = [one for one in places if (one < after if newest_first else one > after)]
        return np.array([node for _, node in places[:limit]], np.int64)

    def find_temporal_neighbours(self, nodes: Nodes, apart_ms: int) -> tuple[Nodes, Nodes]:
        order = self.window(newest_first=False).tolist()
        created = dict(zip(order, self.facts(np.array(order, np.int64)).created.tolist(), strict=True))
        pairs = [pair for pair in itertools.pairwise(order) if created[pair[1]] - created[pair[0]] <= apart_ms]
        after, before = dict(pairs), {second: first for first, second in pairs}
        found = np.array([(before.get(node, -1), after.get(node, -1)) for node in nodes.tolist()], np.int64)
        return found.reshape(-1, 2)[:, 0], found.reshape(-1, 2)[:, 1]

    def relationships(self) -> dict[str, int]:
        return dict(Counter(link.metadata.original_relationship for link in self._links.values()))

    def scan(self, *, after: int = -1, limit: int | None = None) -> list[ScannedMemory]:
        nodes = [node for node in sorted(self._memories) if node > after]
        return [
            ScannedMemory(node, self._memories[node], self._vectors[node], tuple(self.read_links(node, "out")))
            for node in nodes[:limit]
        ]

    def nearest_ids(self, text: str, limit: int) -> list[str]:
        return difflib.get_close_matches(text, self.ids(sorted(self._memories)), max(limit, 1))[: max(limit, 0)]

    def contents(self, digests: Sequence[str]) -> dict[str, str]:
        for digest in digests:
            if digest not in self._contents:
                raise StoreDamaged(f"kept evidence cannot be read: {digest}", file="memory", findings=(digest,))
        return {digest: self._contents[digest] for digest in digests}

    def known_contents(self, digests: Sequence[str]) -> set[str]:
        return self._contents.keys() & set(digests)

    def users_of_content(self, digest: str) -> Nodes:
        """Return the memories whose evidence refers to the stored content with this hash."""
        users = (node for node, memory in self._memories.items() if digest in evidence_digests(memory.evidence))
        return np.array(sorted(users), np.int64)

    def notes(self, prefix: str = "") -> dict[str, str]:
        return {name: self._notes[name] for name in self.note_names(prefix)}

    def note_names(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, last_first: bool = False
    ) -> list[str]:
        """Return the names of the notes that begin with *prefix*."""
        return select_names((name for name in self._notes if name.startswith(prefix)), after, limit, last_first)

    def record_paths(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, last_first: bool = False
    ) -> list[str]:
        """Return the paths of the records that begin with *prefix*."""
        own = [one.metadata for one in self._memories.values() if isinstance(one.metadata, RecordMetadata)]
        paths = (short_path(one.labels, one.key) for one in own)
        return select_names((path for path in paths if path.startswith(prefix)), after, limit, last_first)

    def notes_by_name(self, names: Sequence[str]) -> dict[str, str]:
        """Return the texts of the notes with these names."""
        return {name: self._notes[name] for name in names if name in self._notes}

    def without_vectors(self, embedder: EmbedderRecord) -> list[str]:
        return self.ids(sorted(self._memories.keys() - self._inactive_vectors.get(embedder, {}).keys()))

    def put(
        self,
        memory: Memory,
        *,
        vectors: Vectors | None = None,
        links: Sequence[Link] = (),
        contents: Mapping[str, str] | None = None,
    ) -> int:
        known = self._contents | dict(contents or {})
        for digest in evidence_digests(memory.evidence):
            if digest not in known:
                raise KeyError(digest)
        node = self.find(memory.id)
        if node is None:
            node = self._nodes[memory.id] = self._next
            self._next += 1
            self._vectors[node] = np.zeros((0, 0), np.float32)
        self._memories[node] = memory
        self._terms[node] = weighted_terms(indexed_text(memory))
        if vectors is not None:
            self._vectors[node] = np.asarray(vectors, np.float32)
        self._drop_unused_contents(known)
        self.change += 1
        for link in links:
            if link.from_id != memory.id:
                raise ValueError(f"the link {link.id} begins at another memory")
            self.put_link(link)
        return node

    def put_new(self, new: Sequence[NewMemory], links_of: Callable[[Nodes], Sequence[Sequence[Link]]]) -> Nodes:
        for one in new:
            if one.memory.id in self._nodes:
                raise ValueError(f"there is a memory with the id {one.memory.id}")
            self.put(one.memory, vectors=one.vectors, links=one.links, contents=one.contents)
        nodes = np.array([self._nodes[one.memory.id] for one in new], np.int64)
        for links in links_of(nodes):
            for link in links:
                self.put_link(link)
        return nodes

    def put_link(self, link: Link) -> None:
        for end in (link.to_id, link.from_id):
            if end not in self._nodes:
                raise KeyError(end)
        if link.from_id == link.to_id:
            raise ValueError(f"the link {link.id} leads to the memory where it begins")
        self._links[link.id] = link
        self.change += 1

    def delete(self, memory_id: str) -> int:
        node = self.find(memory_id)
        if node is None:
            raise KeyError(memory_id)
        deleted = self.delete_links([link.id for link in self.read_links(node)])
        self.change += 1
        del self._memories[node], self._vectors[node], self._terms[node], self._nodes[memory_id]
        for record, vectors in self._inactive_vectors.items():
            self._inactive_vectors[record] = {other: found for other, found in vectors.items() if other != node}
        self._drop_unused_contents(self._contents)
        return deleted

    def delete_links(self, link_ids: Collection[str]) -> int:
        known = [self._links.pop(link_id) for link_id in set(link_ids) if link_id in self._links]
        self.change += len(known)
        return len(known)

    def set_notes(self, notes: Mapping[str, str | None]) -> None:
        for name, text in notes.items():
            self._notes.pop(name, None)
            if text is not None:
                self._notes[name] = text

    def mark_for_erasure(self) -> None: ...

    def put_vectors(self, embedder: EmbedderRecord, vectors: Mapping[str, Vectors]) -> None:
        found = {self._nodes[memory_id]: one for memory_id, one in vectors.items() if memory_id in self._nodes}
        self._inactive_vectors[embedder] = self._inactive_vectors.get(embedder, {}) | found

    def activate_vectors(self, embedder: EmbedderRecord) -> None:
        """Activate the vectors of an embedder, and delete all others."""
        self._vectors = dict(self._inactive_vectors.get(embedder, {}))
        self._inactive_vectors = {}

    def copy(self) -> PlainReader:
        """Return a copy that later writes do not change."""
        made = copy.copy(self)
        for field in attrs.fields(PlainReader):
            # A shallow copy of each dict suffices, because values are replaced and never modified.
            setattr(made, field.name, copy.copy(getattr(self, field.name)))
        return made

    def _drop_unused_contents(self, contents: Mapping[str, str]) -> None:
        named = {digest for memory in self._memories.values() for digest in evidence_digests(memory.evidence)}
        self._contents = {digest: text for digest, text in contents.items() if digest in named}

    def _links_of(self, ids: Collection[str], direction: Direction) -> list[Link]:
        return [
            link
            for link in self._links.values()
            if (direction != "in" and link.from_id in ids) or (direction != "out" and link.to_id in ids)
        ]

    def _filter_nodes(self, where: EngineFilter | None) -> list[int]:
        return sorted(node for node, memory in self._memories.items() if where is None or where.matches(memory))


@attrs.define
class PlainEngine:
    """
    An `Engine` over a `PlainReader`, for one process and one thread. It does not write to disk.

    Args:
        namespace: The name of its namespace.
        embedder: The embedder of the active vectors.
        memories: Its data; tests may read and write it synchronously.

    """

    namespace: str = "default"
    embedder: EmbedderRecord = attrs.field(default=EmbedderRecord("plain", "plain", 2), kw_only=True)
    memories: PlainReader = attrs.field(factory=PlainReader, kw_only=True)
    closed: bool = attrs.field(default=False, init=False)
    _maintained_at: int = attrs.field(default=0, init=False)

    async def read(self, plan: Callable[[Reader], T]) -> T:
        """Run *plan* on the current state, and return its result."""
        return plan(self.memories)

    async def write(self, plan: Callable[[Writer], T]) -> T:
        """Run *plan* as a transaction, which is rolled back if *plan* raises."""
        attempt = self.memories.copy()
        answer = plan(attempt)
        self.memories = attempt
        return answer

    async def check(self, progress: ProgressCallback | None = None) -> list[Issue]:
        """Return a finding for each link to a missing memory. This engine should never contain such a link."""
        memories = self.memories
        known = set(memories.ids(memories.window()))
        if progress is not None:
            progress(len(known), len(known))
        return [
            Issue("error", "link", f"the link {link.id} ends at no memory", link.id)
            for links in memories.links_of_many(memories.window())
            for link in links
            if not {link.from_id, link.to_id} <= known
        ]

    async def rebuild(self, progress: ProgressCallback | None = None) -> list[str]:
        """Do nothing, because this engine has no derived data."""
        if progress is not None:
            progress(self.memories.count(), self.memories.count())
        return []

    async def wait_until_idle(self) -> None:
        """Do nothing, because this engine does not index in the background."""

    async def begin_maintenance(self, now_ms: int, every_ms: int) -> int | None:
        """
        Record the start of maintenance.

        Return the time as of which maintenance must judge ages, or None if maintenance is not due.
        """
        if not self.memories.change or 0 <= now_ms - self._maintained_at < every_ms:
            return None
        before, self._maintained_at = self._maintained_at, now_ms
        return min(now_ms, before) if before else None

    async def adopt(self, embedder: EmbedderRecord) -> bool:
        """Activate the vectors of an embedder and delete all others. Return False if memories lack its vectors."""
        if embedder != self.embedder:
            if self.memories.without_vectors(embedder):
                return False
            self.memories.activate_vectors(embedder)
            self.embedder = embedder
        return True

    async def erase(self, *, wait: float) -> tuple[str, ...]:  # noqa: ARG002 - required by the protocol
        """Do nothing, because this engine does not write to disk."""
        return ()

    @property
    def unerasable_places(self) -> tuple[str, ...]:
        """None: everything is in memory."""
        return ()

    def figures(self) -> dict[str, Any]:
        """Return statistics of the stored data."""
        kinds = self.memories.facts(self.memories.window()).types.tolist()
        return {
            "memories": self.memories.count(),
            "types": {kind.value: kinds.count(position) for position, kind in enumerate(MemoryType)},
            "links": sum(map(len, self.memories.links_of_many(self.memories.window(), "out"))),
            "vectors": {"mode": "exact", "vectors": int(self.memories.pieces(self.memories.window())[1].sum())},
            "words_to_index": 0,
            "maintained_at": self._maintained_at,
        }


def _top_k(nodes: Nodes, scores: Scores, limit: int) -> Matches:
    order = np.lexsort((-nodes, -scores))[: max(limit, 0)]
    return Matches(nodes[order], scores[order])
