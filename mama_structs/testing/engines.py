"""Engines for tests: one in plain dicts, the model that others are compared with, and a directory opened by itself."""

from __future__ import annotations

import difflib
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._async import LoopBound
from mama_structs._home import embedded_engines
from mama_structs.errors import StoreDamaged
from mama_structs.memory.contents import FindContent, digests_in, nothing
from mama_structs.memory.embedding.hashed import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.engine import (
    Direction,
    EmbedderRecord,
    Engines,
    Facts,
    Filter,
    LinkTable,
    Matches,
    Nodes,
    Progress,
    Query,
    Reader,
    Scanned,
    Scores,
    Writer,
    mismatch,
)
from mama_structs.memory.graph import nfc
from mama_structs.memory.model import (
    CREATORS,
    METADATA,
    CreatedBy,
    Link,
    LinkMetadata,
    LinkType,
    Memory,
    MemoryType,
    milliseconds,
)
from mama_structs.memory.opening import open_memories
from mama_structs.memory.store import MemoryStore
from mama_structs.memory.text import indexed_text, query_terms, weighted_terms
from mama_structs.settings import MemorySettings, Settings
from mama_structs.storage.failures import Finding
from mama_structs.storage.store import Storage

T = TypeVar("T")

SMALL: Final = HashEmbedder(dimensions=64)
"""An embedder that is quick and needs little room."""

_TYPES: Final = tuple(MemoryType)
_LINK_TYPES: Final = tuple(LinkType)
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
# Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009), the usual values, without the
# factor k1 + 1, as `WordIndex` has it.
_K1: Final = 1.2
_LONGEST: Final = 200.0
_B: Final = 0.75


def plain_memory(
    memory_id: str,
    content: str = "",
    *,
    type: MemoryType = MemoryType.DECISION,  # noqa: A002 - as the field is called
    topic: str | None = None,
    mentions: Sequence[str] = (),
    evidence: Sequence[str] = (),
    at: datetime | float = 0.0,
    **metadata: Any,
) -> Memory:
    """Return a memory for a test."""
    created = at if isinstance(at, datetime) else _START + timedelta(seconds=at)
    return Memory(
        id=memory_id,
        type=type,
        content=content,
        topic=topic,
        metadata=METADATA[type](**metadata),
        mentions=tuple(mentions),
        evidence=tuple(evidence),
        created_at=created,
        updated_at=created,
    )


def plain_link(
    from_id: str,
    to_id: str,
    relationship: str = "relates_to",
    *,
    link_id: str | None = None,
    type: LinkType = LinkType.ASSOCIATION,  # noqa: A002 - as the field is called
    confidence: float = 0.8,
    created_by: CreatedBy = "system",
    at: datetime | float = 0.0,
    similarity: float | None = None,
) -> Link:
    """Return a link for a test."""
    return Link(
        id=f"{from_id}>{to_id}:{relationship}" if link_id is None else link_id,
        from_id=from_id,
        to_id=to_id,
        link_type=type,
        confidence=confidence,
        created_by=created_by,
        metadata=LinkMetadata(original_relationship=relationship, similarity=similarity),
        created_at=at if isinstance(at, datetime) else _START + timedelta(seconds=at),
    )


@attrs.define
class PlainReader(Writer):
    """A `Reader` and `Writer` over dicts: every question looks at everything."""

    text_of: Callable[[Memory], str] = attrs.field(default=indexed_text, kw_only=True)
    _change: int = attrs.field(default=0, init=False)
    _next: int = attrs.field(default=0, init=False)
    _memories: dict[int, Memory] = attrs.field(factory=dict, init=False)
    _vectors: dict[int, NDArray[np.float32]] = attrs.field(factory=dict, init=False)
    _terms: dict[int, Mapping[str, float]] = attrs.field(factory=dict, init=False)
    _links: dict[str, Link] = attrs.field(factory=dict, init=False)
    _contents: dict[str, str] = attrs.field(factory=dict, init=False)
    _notes: dict[str, str] = attrs.field(factory=dict, init=False)
    _nodes: dict[str, int] = attrs.field(factory=dict, init=False)
    _others: dict[EmbedderRecord, dict[int, NDArray[np.float32]]] = attrs.field(factory=dict, init=False)
    _touched: list[tuple[int, frozenset[int]]] = attrs.field(factory=list, init=False)

    @property
    def change(self) -> int:
        """The number of the last change."""
        return self._change

    @property
    def damaged(self) -> int:
        """None are."""
        return 0

    def find_many(self, memory_ids: Sequence[str]) -> list[int | None]:
        """Return the node of each memory, None where there is no such memory."""
        return [self._nodes.get(memory_id) for memory_id in memory_ids]

    def get(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        """Return memories, in the order of *nodes*."""
        return [self._memories[int(node)] for node in nodes]

    def ids(self, nodes: Sequence[int] | Nodes) -> list[str]:
        """Return the ids of memories, in the order of *nodes*."""
        return [memory.id for memory in self.get(nodes)]

    def topics(self, nodes: Sequence[int] | Nodes) -> list[str | None]:
        """Return the topics of memories, in the order of *nodes*."""
        return [memory.topic for memory in self.get(nodes)]

    def pieces(self, nodes: Sequence[int] | Nodes) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return all vectors of *nodes*, and how many each has."""
        found = [self._vectors[int(node)] for node in nodes]
        some = [vectors for vectors in found if len(vectors)]
        return np.concatenate(some or [np.zeros((0, 0), np.float32)]), np.array([len(one) for one in found], np.int64)

    def first_vectors(self, nodes: Nodes) -> NDArray[np.float32]:
        """Return the vector of each memory's first piece, of shape (nodes, dimensions); 0 for one without any."""
        known = [self._vectors[int(node)] for node in nodes]
        found = np.zeros((len(known), max((vectors.shape[1] for vectors in known), default=0)), np.float32)
        for at, vectors in enumerate(known):
            if len(vectors):
                found[at] = vectors[0]
        return found

    def count(self, where: Filter | None = None) -> int:
        """Return how many memories there are."""
        return len(self._where(where))

    def facts(self, nodes: Nodes) -> Facts:
        """Return what is known of *nodes* without their text."""
        memories = self.get(nodes)
        names = sorted({nfc(memory.topic) for memory in self._memories.values() if memory.topic is not None})
        number = {topic: position for position, topic in enumerate(names)}
        return Facts(
            np.array([milliseconds(memory.created_at) for memory in memories], np.int64),
            np.array([_TYPES.index(memory.type) for memory in memories], np.int8),
            np.array([-1 if memory.topic is None else number[nfc(memory.topic)] for memory in memories], np.int32),
        )

    def nearest(self, vector: NDArray[np.float32], limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes with the highest cosine to *vector*."""
        nodes = np.array([node for node in self._where(where) if len(self._vectors[node])], np.int64)
        return _best(nodes, self.similarities(vector, nodes), limit)

    def similarities(self, vector: NDArray[np.float32], nodes: Nodes) -> Scores:
        """Return the cosine of *vector* and each node's best piece, 0 where a node has none."""
        return np.array(
            [(self._vectors[int(node)] @ vector).max() if len(self._vectors[int(node)]) else 0.0 for node in nodes],
            np.float32,
        )

    def words(self, query: Query, limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes that match the query's words best."""
        nodes = np.array(self._where(where), np.int64)
        scores = self.word_scores(query, nodes)
        return _best(nodes[scores > 0], scores[scores > 0], limit)

    def word_scores(self, query: Query, nodes: Nodes) -> Scores:
        """Return the BM25 score of the query for each of *nodes*."""
        wanted = _terms_of(query)
        rarity = self.rarity(query)
        lengths = [min(sum(counts.values()), _LONGEST) for counts in self._terms.values()]
        mean = sum(lengths) / max(len(lengths), 1) or 1.0
        scores = []
        for counts in (self._terms[int(node)] for node in nodes):
            norm = _K1 * (1 - _B + _B * min(sum(counts.values()), _LONGEST) / mean)
            found = [(term, weight, counts[term]) for term, weight in wanted.items() if term in counts]
            scores.append(sum(weight * rarity[term] * often / (often + norm) for term, weight, often in found))
        return np.array(scores, np.float32)

    def rarity(self, query: Query) -> dict[str, float]:
        """Return the query's terms with how rare each is."""
        total = len(self._terms)
        having = {term: sum(term in counts for counts in self._terms.values()) for term in _terms_of(query)}
        return {term: math.log(1 + (total - number + 0.5) / (number + 0.5)) for term, number in having.items()}

    def links(
        self, nodes: Nodes, direction: Direction = "both", types: Collection[LinkType] | None = None
    ) -> LinkTable:
        """Return the links that begin, end or do either at *nodes*, each once."""
        wanted = {memory.id for memory in self.get(nodes)}
        chosen = [
            link
            for link in self._links.values()
            if (types is None or link.link_type in types) and _begins_or_ends(link, wanted, direction)
        ]
        return self._table(chosen)

    def links_of_many(self, nodes: Sequence[int] | Nodes, direction: Direction = "both") -> list[list[Link]]:
        """Return the links of each of *nodes*, in order of time and id."""
        links = sorted(self._links.values(), key=lambda link: (link.created_at, link.id))
        return [[link for link in links if _begins_or_ends(link, {one}, direction)] for one in self.ids(nodes)]

    def find_links(self, link_ids: Sequence[str]) -> list[Link | None]:
        """Return each link, None where there is no such link."""
        return [self._links.get(link_id) for link_id in link_ids]

    def window(self, where: Filter | None = None, *, newest_first: bool = True, limit: int | None = None) -> Nodes:
        """Return nodes in order of creation, equal times in order of saving."""
        nodes = sorted(self._where(where), key=lambda node: (self._memories[node].created_at, node))
        if newest_first:
            nodes.reverse()
        return np.array(nodes[:limit], np.int64)

    def relationships(self) -> dict[str, int]:
        """Return the words used for links, with how many links have each."""
        return dict(Counter(link.metadata.original_relationship for link in self._links.values()))

    def touched_since(self, change: int) -> frozenset[int] | None:
        """Return the nodes that changed, or whose links did, after a change."""
        return frozenset(node for number, nodes in self._touched if number > change for node in nodes)

    def scan(self, *, after: int = -1, limit: int | None = None) -> list[Scanned]:
        """Return up to *limit* memories in order of saving, those behind the node *after*."""
        nodes = [node for node in sorted(self._memories) if node > after]
        return [
            Scanned(
                node=node,
                memory=self._memories[node],
                vectors=self._vectors[node],
                links=tuple(self.read_links(node, "out")),
            )
            for node in nodes[:limit]
        ]

    def nearest_ids(self, text: str, limit: int) -> list[str]:
        """Return the ids of memories that look most like *text*, best first."""
        return difflib.get_close_matches(text, self.ids(sorted(self._memories)), max(limit, 1))[: max(limit, 0)]

    def contents(self, digests: Sequence[str]) -> dict[str, str]:
        """Return the texts that are kept under hashes; one that is gone raises `StoreDamaged`."""
        for digest in digests:
            if digest not in self._contents:
                raise StoreDamaged(f"kept evidence cannot be read: {digest}", file="memory", findings=(digest,))
        return {digest: self._contents[digest] for digest in digests}

    def known_contents(self, digests: Sequence[str]) -> set[str]:
        """Return the hashes under which a text is kept."""
        return self._contents.keys() & set(digests)

    def note(self, name: str) -> str | None:
        """Return the note of a name, None where there is none."""
        return self._notes.get(name)

    def notes(self, prefix: str = "") -> dict[str, str]:
        """Return the notes whose names begin with *prefix*, in the order of their names."""
        return {name: self._notes[name] for name in sorted(self._notes) if name.startswith(prefix)}

    def without_vectors(self, embedder: EmbedderRecord) -> list[str]:
        """Return the ids of memories that have no vectors of an embedder."""
        having = self._others.get(embedder, {})
        return self.ids([node for node in sorted(self._memories) if node not in having])

    def put(
        self,
        memory: Memory,
        *,
        vectors: NDArray[np.float32] | None = None,
        links: Sequence[Link] = (),
        contents: Mapping[str, str] | None = None,
    ) -> int:
        """Store a memory, or a new version of one, with links that begin at it, and return its node."""
        node = self.find(memory.id)
        known = self._contents | dict(contents or {})
        for digest in digests_in(memory.evidence):
            if digest not in known:
                raise KeyError(digest)
        if node is None:
            node = self._next
            self._next += 1
            self._vectors[node] = np.zeros((0, 0), np.float32)
        self._memories[node] = memory
        self._nodes[memory.id] = node
        self._terms[node] = weighted_terms(self.text_of(memory))
        if vectors is not None:
            self._vectors[node] = np.asarray(vectors, np.float32)
        self._contents = known
        self._forget_contents()
        self._touch(node)
        for link in links:
            if link.from_id != memory.id:
                raise ValueError(f"the link {link.id} begins at another memory")
            self.put_link(link)
        return node

    def put_link(self, link: Link) -> None:
        """Store a link, replacing the one of that id; both its ends must exist."""
        ends = [self.find(link.from_id), self.find(link.to_id)]
        if None in ends:
            raise KeyError(link.to_id if ends[1] is None else link.from_id)
        if link.from_id == link.to_id:
            raise ValueError(f"the link {link.id} leads to the memory where it begins")
        replaced = self._links.get(link.id)
        if replaced is not None:
            ends += [self.find(replaced.from_id), self.find(replaced.to_id)]
        self._links[link.id] = link
        self._touch(*(node for node in ends if node is not None))

    def delete(self, memory_id: str) -> int:
        """Delete a memory and all its links, and return how many links that were."""
        node = self.find(memory_id)
        if node is None:
            raise KeyError(memory_id)
        deleted = self.delete_links([link.id for link in self.read_links(node)])
        del self._memories[node], self._vectors[node], self._terms[node], self._nodes[memory_id]
        for vectors in self._others.values():
            vectors.pop(node, None)
        self._forget_contents()
        self._touch(node)
        return deleted

    def delete_links(self, link_ids: Collection[str]) -> int:
        """Delete links, and return how many of them there were."""
        known = [self._links.pop(link_id) for link_id in set(link_ids) if link_id in self._links]
        for link in known:
            ends = (self.find(link.from_id), self.find(link.to_id))
            self._touch(*(node for node in ends if node is not None))
        return len(known)

    def set_note(self, name: str, text: str | None) -> None:
        """Keep a text beside the memories, or forget it."""
        self._notes.pop(name, None)
        if text is not None:
            self._notes[name] = text

    def put_vectors(self, embedder: EmbedderRecord, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        """Store vectors of an embedder that do not count yet, for those memories that are still there."""
        nodes = zip(self.find_many(list(vectors)), vectors.values(), strict=True)
        self._others.setdefault(embedder, {}).update({node: found for node, found in nodes if node is not None})

    def take_vectors(self, embedder: EmbedderRecord) -> None:
        """Let an embedder's vectors count, and drop all others."""
        self._vectors = self._others.get(embedder, {})
        self._others = {}

    def copy(self) -> PlainReader:
        """Return a copy that later writes do not change."""
        made = PlainReader(text_of=self.text_of)
        made._change, made._next = self._change, self._next
        made._memories, made._vectors, made._terms = dict(self._memories), dict(self._vectors), dict(self._terms)
        made._links, made._touched = dict(self._links), list(self._touched)
        made._contents, made._notes, made._nodes = dict(self._contents), dict(self._notes), dict(self._nodes)
        made._others = {record: dict(vectors) for record, vectors in self._others.items()}
        return made

    def _forget_contents(self) -> None:
        """Forget the texts that no memory names."""
        if self._contents:
            named = {digest for memory in self._memories.values() for digest in digests_in(memory.evidence)}
            self._contents = {digest: text for digest, text in self._contents.items() if digest in named}

    def _touch(self, *nodes: int) -> None:
        self._change += 1
        self._touched.append((self._change, frozenset(nodes)))

    def _where(self, where: Filter | None) -> list[int]:
        return sorted(node for node, memory in self._memories.items() if where is None or _passes(memory, where))

    def _table(self, links: Sequence[Link]) -> LinkTable:
        node_of = {memory.id: node for node, memory in self._memories.items()}
        return LinkTable(
            np.array([node_of[link.from_id] for link in links], np.int64),
            np.array([node_of[link.to_id] for link in links], np.int64),
            np.array([_LINK_TYPES.index(link.link_type) for link in links], np.int8),
            np.array([CREATORS.index(link.created_by) for link in links], np.int8),
            np.array([link.confidence for link in links], np.float32),
            np.array([milliseconds(link.created_at) for link in links], np.int64),
        )


@attrs.define
class PlainEngine:
    """
    An `Engine` over a `PlainReader`, of one process and one thread, which keeps nothing on disk.

    Args:
        namespace: Its name.
        embedder: Which embedder's vectors count.
        memories: What it keeps; tests may look and write there without awaiting.

    """

    namespace: str = "default"
    embedder: EmbedderRecord = attrs.field(default=EmbedderRecord("plain", "plain", 2), kw_only=True)
    memories: PlainReader = attrs.field(factory=PlainReader, kw_only=True)
    closed: bool = attrs.field(default=False, init=False)
    _maintained_at: int = attrs.field(default=0, init=False)

    async def read(self, plan: Callable[[Reader], T]) -> T:
        """Run *plan* on the present state."""
        return plan(self.memories)

    async def write(self, plan: Callable[[Writer], T]) -> T:
        """Run *plan*; what it wrote is undone where it raises."""
        attempt = self.memories.copy()
        answer = plan(attempt)
        self.memories = attempt
        return answer

    async def check(self, progress: Progress | None = None) -> list[Finding]:
        """Return the links and evidence that lead nowhere: there are none."""
        memories = self.memories
        known = set(memories.ids(memories.window()))
        if progress is not None:
            progress(len(known), len(known))
        return [
            Finding("error", "link", f"the link {link.id} ends at no memory", link.id)
            for links in memories.links_of_many(memories.window())
            for link in links
            if not {link.from_id, link.to_id} <= known
        ]

    async def rebuild(self, progress: Progress | None = None) -> list[str]:
        """Do nothing: nothing is derived, and nothing damaged."""
        if progress is not None:
            progress(self.memories.count(), self.memories.count())
        return []

    async def settled(self) -> None:
        """Return at once: words are looked for in the texts themselves."""

    async def begin_maintenance(self, now_ms: int, every_ms: int) -> bool:
        """Tell whether maintenance is due, and note then that it has begun."""
        if not self.memories.change or 0 <= now_ms - self._maintained_at < every_ms:
            return False
        before, self._maintained_at = self._maintained_at, now_ms
        return before != 0

    async def adopt(self, embedder: EmbedderRecord) -> bool:
        """Let an embedder's vectors count, and drop all others, unless memories lack them."""
        if embedder != self.embedder:
            if self.memories.without_vectors(embedder):
                return False
            self.memories.take_vectors(embedder)
            self.embedder = embedder
        return True

    def figures(self) -> dict[str, Any]:
        """Return figures about what is kept."""
        kinds = self.memories.facts(self.memories.window()).types.tolist()
        return {
            "memories": self.memories.count(),
            "types": {kind.value: kinds.count(position) for position, kind in enumerate(MemoryType)},
            "links": sum(map(len, self.memories.links_of_many(self.memories.window(), "out"))),
            "vectors": {"mode": "exact", "vectors": int(self.memories.pieces(self.memories.window())[1].sum())},
            "words_to_index": 0,
        }


class PlainEngines:
    """`Engines` whose namespaces are `PlainEngine`, and live as long as this object."""

    def __init__(self) -> None:
        self.kept: dict[str, PlainEngine] = {}

    async def recorded(self, namespace: str) -> EmbedderRecord | None:
        """Return which embedder made a namespace's vectors, None where there is nothing yet."""
        engine = self.kept.get(namespace)
        return engine.embedder if engine is not None and engine.memories.change else None

    async def open(self, namespace: str, embedder: EmbedderRecord, settings: MemorySettings) -> PlainEngine:  # noqa: ARG002 - the protocol's
        """Return a namespace's engine; another embedder than the one that made its vectors raises."""
        if namespace not in self.kept:
            self.kept[namespace] = PlainEngine(namespace, embedder=embedder)
        recorded = await self.recorded(namespace)
        if recorded not in (None, embedder):
            raise mismatch(namespace, self.kept[namespace].embedder, embedder)
        self.kept[namespace].embedder = embedder
        return self.kept[namespace]

    async def leave(self, namespace: str) -> None:
        """Do nothing: what is kept stays."""


@attrs.define(eq=False)
class OpenedDirectory:
    """A session's directory, opened without sharing anything with what this process has open there; made by `open`."""

    path: Path
    storage: Storage
    engines: Engines
    embedder: Embedder
    clock: Callable[[], float]
    settings: MemorySettings
    find_mentions: Callable[[str], Sequence[str]]
    find_content: FindContent = nothing
    _open: dict[str, tuple[MemoryStore, Callable[[], Awaitable[None]]]] = attrs.field(factory=dict, init=False)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        engines: Engines | None = None,
        embedder: Embedder = SMALL,
        clock: Callable[[], float] = time.time,
        settings: MemorySettings | None = None,
        wait: float = 60.0,
        find_mentions: Callable[[str], Sequence[str]] = lambda _text: (),
        find_content: FindContent = nothing,
    ) -> Self:
        """Open a directory, making it where there is none."""
        storage = Storage.open(path / "journal", wait=wait)
        return cls(
            path=path,
            storage=storage,
            engines=embedded_engines(storage, views=path / "views") if engines is None else engines,
            embedder=embedder,
            clock=clock,
            settings=Settings.from_env().memory if settings is None else settings,
            find_mentions=find_mentions,
            find_content=find_content,
        )

    async def memories(self, namespace: str = "default") -> MemoryStore:
        """Return the memories of a namespace, open until `close`."""
        if namespace not in self._open:
            self._open[namespace] = await open_memories(
                self.engines,
                namespace=namespace,
                embedder=self.embedder,
                settings=self.settings,
                loop=LoopBound("directory"),
                find_mentions=self.find_mentions,
                find_content=self.find_content,
                clock=self.clock,
            )
        return self._open[namespace][0]

    async def findings(self) -> list[Finding]:
        """Return what is wrong with the journal and with every open namespace; that SQLite is old does not count."""
        found = await self.storage.check()
        for memories, _ in self._open.values():
            found += await memories.check()
        return [finding for finding in found if finding.kind != "sqlite"]

    async def close(self) -> None:
        """Close the namespaces and the journal."""
        for _, close in self._open.values():
            await close()
        self._open.clear()
        await self.storage.close()


def _terms_of(query: Query) -> Mapping[str, float]:
    return query_terms(query) if isinstance(query, str) else query


def _best(nodes: Nodes, scores: Scores, limit: int) -> Matches:
    order = np.lexsort((-nodes, -scores))[: max(limit, 0)]
    return Matches(nodes[order], scores[order])


def _passes(memory: Memory, where: Filter) -> bool:
    return (
        (where.types is None or memory.type in where.types)
        and (where.topic is None or (memory.topic is not None and nfc(memory.topic) == nfc(where.topic)))
        and (where.since is None or memory.created_at >= where.since)
        and (where.until is None or memory.created_at < where.until)
        and (where.mentions is None or where.mentions <= set(memory.mentions))
    )


def _begins_or_ends(link: Link, ids: Collection[str], direction: Direction) -> bool:
    return (direction != "in" and link.from_id in ids) or (direction != "out" and link.to_id in ids)
