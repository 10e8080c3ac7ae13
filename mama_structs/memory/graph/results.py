"""Result types of searches, traversals and chains, with memories instead of nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal, SupportsIndex, TypeVar, overload

import attrs
import numpy as np

from mama_structs._internal.reprs import (
    Seen,
    Showing,
    boxed,
    briefly,
    counted,
    entries,
    entry,
    heading,
    line,
    lines,
    needed,
)
from mama_structs.errors import StoreDamaged
from mama_structs.memory.graph import diagrams
from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.types.engine import Nodes, Reader
from mama_structs.memory.types.model import Link, LinkType, Memory, Outcome, parse_kept, with_texts
from mama_structs.memory.types.requests import TraversalRequest

_SHOWN = 60


@attrs.frozen(kw_only=True, repr=False)
class Hit(Showing):
    """
    A memory found by a search.

    Args:
        memory: The memory. In a search with ``as_of``, its state at that time.
        score: Sort key of this result list. Scores of different searches are not comparable.
        relevance: Absolute relevance, 0 to 1, comparable between searches. Below 0.3 the memory is no answer.
        parts: Contributions to its score by name: ``meaning``, ``words``, ``graph`` and so on.
        terms: Terms that add up to the score, by name, as in `Explanation`.
        path: Ids of the memories from which it was reached along links, starting with a direct match; empty for a
            direct match.
        superseded_by: Id of its current successor, or None if it is current.
        copies: Ids of memories that say the same and have no hits of their own.

    """

    memory: Memory
    score: float
    relevance: float
    parts: Mapping[str, float]
    path: tuple[str, ...] = ()
    superseded_by: str | None = None
    copies: tuple[str, ...] = ()
    terms: Mapping[str, float] = attrs.field(factory=dict)

    def _seen(self) -> Seen:
        superseded = None if self.superseded_by is None else "superseded"
        copies = counted(len(self.copies), "copy", "copies") if self.copies else None
        seen = seen_with(self.memory, f"relevance {self.relevance:.2f}", superseded, copies)
        return seen._replace(terms=self.terms, is_gone=superseded is not None)

    def _record(self) -> dict[str, Any]:
        own = {"score": self.score, "relevance": self.relevance, "superseded_by": self.superseded_by}
        terms = {f"terms.{name}": term for name, term in self.terms.items()}
        return self.memory._record() | own | terms  # noqa: SLF001 - class of this package


@attrs.frozen(kw_only=True, repr=False)
class Explanation(Showing):
    """
    Why a search found or left out a memory. The reranker is not called.

    Args:
        id: Id of the memory.
        rank: Its rank among the hits, starting at 1, or None if it is no hit.
        left_out_by: Why it is no hit: the name of the search argument that excluded it, ``"limit"`` if others answer
            better, ``"copies"`` if a hit says the same, ``"valid_until"`` if it has expired. None for a hit.
        score: Its score, or None if a filter excluded it.
        relevance: Its absolute relevance, 0 to 1, or None if a filter excluded it.
        terms: Terms that add up to the score, by name: ``meaning``, ``words`` and ``length`` (log-odds), ``floor``
            (keeps their sum above 0), the other names of `Hit.parts`, and ``place`` (difference to the score of the
            place to which a successor or a period moved it).
        copy_of: Id of the hit that it is shown with.
        superseded_by: As in `Hit`.

    """

    id: str
    rank: int | None = None
    left_out_by: str | None = None
    score: float | None = None
    relevance: float | None = None
    terms: Mapping[str, float] = attrs.field(factory=dict)
    copy_of: str | None = None
    superseded_by: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.id}: {self._place}{'' if self.copy_of is None else f', with {self.copy_of}'}"]
        if self.score is not None:
            lines += [f"{name:<12}{term:>8.3f}" for name, term in self.terms.items()]
            lines += [f"{'score':<12}{self.score:>8.3f}", f"{'relevance':<12}{self.relevance:>8.3f}"]
        return "\n".join(lines)

    def _seen(self) -> Seen:
        relevance = None if self.relevance is None else f"relevance {self.relevance:.2f}"
        return Seen(text=self._place, facts=(relevance,), id=self.id, terms=self.terms)

    @property
    def _place(self) -> str:
        return f"left out by {self.left_out_by}" if self.rank is None else f"hit {self.rank}"


@attrs.frozen(kw_only=True, repr=False)
class Reached(Showing):
    """
    A memory reached by a traversal.

    Args:
        memory: The memory.
        depth: Number of links from the start, 1 for direct neighbours.
        path: Ids from the start to this memory, both included.
        strength: Product of the decayed strengths of the links on the path.

    """

    memory: Memory
    depth: int
    path: tuple[str, ...]
    strength: float

    def _seen(self) -> Seen:
        return seen_with(self.memory, f"depth {self.depth}", f"strength {self.strength:.2f}")

    def _record(self) -> dict[str, Any]:
        return self.memory._record() | {"depth": self.depth, "strength": self.strength}  # noqa: SLF001 - this package


class Graphed:
    """Mixin for results with memories and links that can be exported as graphs."""

    __slots__ = ()

    def _graph(self) -> tuple[list[Memory], list[Link]]:
        raise NotImplementedError

    def to_networkx(self) -> Any:
        """
        Return a `networkx.MultiDiGraph` with memories as nodes and links as edges.

        Nodes are memory ids. Edges have the direction of the links, and the attributes ``link_type``, ``relationship``
        and ``confidence``.

        Raises:
            ImportError: networkx is not installed (extra ``notebook``).

        """
        return diagrams.networkx_of(*self._graph())

    def to_mermaid(self) -> str:
        """Return a Mermaid flowchart of at most 100 memories, which GitHub can render."""
        return diagrams.mermaid_of(*self._graph())


@attrs.frozen(kw_only=True, repr=False)
class Chain(Graphed):
    """
    The evolution of a decision.

    Args:
        memories: All versions, newest first.
        links: Evolution links between them.
        forks: Memories that several others supersede, or that supersede several others.
        around: Only for a topic: memories linked to the chain, nearest first.

    """

    memories: tuple[Memory, ...]
    links: tuple[Link, ...] = ()
    forks: tuple[Memory, ...] = ()
    around: tuple[Reached, ...] = ()

    @property
    def newest(self) -> Memory | None:
        """The newest memory, or None for an empty chain."""
        return self.memories[0] if self.memories else None

    def __len__(self) -> int:
        return len(self.memories)

    def __iter__(self) -> Iterator[Memory]:
        return iter(self.memories)

    def __str__(self) -> str:
        return "\n".join(_line(memory) for memory in self.memories) or "nothing"

    def _graph(self) -> tuple[list[Memory], list[Link]]:
        return [*self.memories], [*self.links]

    @property
    def _title(self) -> str:
        counts = [counted(len(self.memories), "version"), counted(len(self.links), "link")]
        if self.forks:
            counts.append(counted(len(self.forks), "fork"))
        return f"Chain of {', '.join(counts)}"

    def _entries(self) -> str:
        gone = {link.to_id for link in self.links}
        seen = (memory._seen()._replace(is_gone=memory.id in gone) for memory in self.memories)  # noqa: SLF001
        return entries(seen, len(self))

    def _repr_html_(self) -> str:
        return boxed(heading(self._title), self._entries(), _listed("Around it", self.around))

    def __repr__(self) -> str:
        versions = (line("", memory._seen(), opening="  ", closing="") for memory in self.memories)  # noqa: SLF001
        return lines(chain([f"<{self._title}>"], versions), 1 + len(self))


@attrs.frozen(kw_only=True, repr=False)
class Similar(Showing):
    """
    A memory that is similar to another one or to a text.

    Args:
        memory: The memory.
        similarity: Probability, 0 to 1, that both have the same subject, by meaning only.

    """

    memory: Memory
    similarity: float

    def _seen(self) -> Seen:
        return seen_with(self.memory, f"similarity {self.similarity:.2f}")

    def _record(self) -> dict[str, Any]:
        return self.memory._record() | {"similarity": self.similarity}  # noqa: SLF001 - class of this package


@attrs.frozen(kw_only=True, repr=False)
class Surroundings(Showing, Graphed):
    """
    A memory with its evolution and neighbourhood.

    Args:
        memory: The memory.
        chain: Its evolution.
        around: Memories at most two links away, nearest and strongest first.
        links: Links that start or end at it.
        links_around: Links between the memories in *around*, of the followed types.

    """

    memory: Memory
    chain: Chain
    around: tuple[Reached, ...]
    links: tuple[Link, ...]
    links_around: tuple[Link, ...] = ()

    def _seen(self) -> Seen:
        counts = counted(len(self.chain), "version"), f"{len(self.around):,} around", counted(len(self.links), "link")
        return seen_with(self.memory, *counts)

    def _graph(self) -> tuple[list[Memory], list[Link]]:
        every = [self.memory, *self.chain.memories, *(one.memory for one in self.around)]
        links = [*self.links, *self.chain.links, *self.links_around]
        return list({memory.id: memory for memory in every}.values()), links

    def _repr_html_(self) -> str:
        versions = [heading("How it evolved"), self.chain._entries()] if len(self.chain) > 1 else []  # noqa: SLF001
        return boxed(
            entry(self.memory._seen(), is_alone=True),  # noqa: SLF001 - class of this package
            *versions,
            _listed("Around it", self.around),
            _listed("Links", self.links),
        )


@attrs.frozen(kw_only=True, repr=False)
class Evidence(Showing):
    """
    An evidence item of a memory: a stored text, or free text.

    Args:
        source: Handle with the version at the time of saving, such as ``ref:plan@2``; or the whole free text.
        digest: SHA-256 of the handle's text (UTF-8), in hexadecimal; None for free text.
        text: Stored text of the handle; None for free text.

    """

    source: str
    digest: str | None = None
    text: str | None = None

    def _seen(self) -> Seen:
        if self.text is None:
            return Seen(text=self.source)
        return Seen(text=self.text, facts=(f"{len(self.text):,} characters", self.source))


@attrs.frozen(kw_only=True, field_transformer=briefly)
class RelationshipWord:
    """
    A relationship word in use.

    Args:
        word: The word in its first spelling.
        count: Number of links with it.
        near_synonyms: Similar words in use with their similarity, 0 to 1, most similar first.

    """

    word: str
    count: int
    near_synonyms: tuple[tuple[str, float], ...] = ()


@attrs.frozen(kw_only=True)
class Imported:
    """
    Result of `MemoryStore.import_jsonl`.

    Args:
        added: Number of added memories.
        known: Number of memories that already existed unchanged.
        embedded: Number of added memories that were re-embedded, because another embedder made their vectors.
        dropped_links: Number of links to memories that are neither in the file nor in the store.

    """

    added: int = 0
    known: int = 0
    embedded: int = 0
    dropped_links: int = 0


NOT_REACHED: Final = (
    "backups that were made before",
    "exports, and other files that were written",
    "what other namespaces and other memories say, and refs that only quote it",
    "the names of refs that went with it, which stay to say so",
    "the source of a migration from v1.0",
    "on a server: its write-ahead log with what is archived of it, its replicas' backups, and bytes between the rows",
    "on a server: words, topics and ids in what its catalog held as the planner's statistics, until it is vacuumed",
    "on a server: words, topics and ids that tell pages of its indexes apart, until they are made anew",
)
"""Data that forgetting does not delete."""


@attrs.frozen(kw_only=True)
class Forgotten:
    """
    Numbers of items that `MemoryStore.forget` deleted. Contains no deleted text.

    Args:
        memories: Number of memories by type. Deleted reasons of outcomes count as contexts.
        links: Number of links that started or ended at them.
        mended: Number of other memories from which their ids were removed.
        texts: Number of stored evidence texts that no other memory refers to.
        refs: Number of refs and descriptors with those texts, counting versions.
        pending: Descriptions of places that still contain some of the data. They are cleared when the store is next
            opened or maintained, or when their holder closes.
        not_reached: Descriptions of places that were not searched.
        dry_run: True if nothing was deleted, and the numbers are only a preview.

    """

    memories: Mapping[str, int] = attrs.field(factory=dict)
    links: int = 0
    mended: int = 0
    texts: int = 0
    refs: int = 0
    pending: tuple[str, ...] = ()
    not_reached: tuple[str, ...] = NOT_REACHED
    dry_run: bool = False

    @property
    def count(self) -> int:
        """Number of memories of all types."""
        return sum(self.memories.values())


OutcomeWord = Outcome | Literal["SUCCESS", "FAILED", "PARTIAL"]


def placed(terms: Mapping[str, float], score: float) -> dict[str, float]:
    """Return the terms with a ``place`` term that makes their sum equal to *score*."""
    known = {name: term for name, term in terms.items() if name != "place"}
    place = score - sum(known.values())
    # A smaller difference is a rounding error.
    return known | ({"place": place} if abs(place) > 1e-6 else {})  # noqa: PLR2004


def within_chars(hits: Sequence[Hit], most: int) -> list[Hit]:
    """
    Return hits with at most *most* characters of content and reasoning in total.

    Hits that do not fit are skipped.
    """
    kept: list[Hit] = []
    for hit in hits:
        size = len(hit.memory.content) + len(getattr(hit.memory.metadata, "reasoning", ""))
        if size <= most:
            kept.append(hit)
            most -= size
    return kept


def _listed(title: str, items: Sequence[Showing]) -> str:
    return heading(title) + entries((one._seen() for one in items), len(items)) if items else ""  # noqa: SLF001


ShownT = TypeVar("ShownT", bound=Showing)


class Results(list[ShownT]):
    """Ordered results of a call: a list with a notebook display and conversion to a table."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> ShownT: ...
    @overload
    def __getitem__(self, index: slice) -> Results[ShownT]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> ShownT | Results[ShownT]:
        return Results(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def __repr__(self) -> str:
        return lines(map(repr, self), len(self)) or "[]"

    def _repr_html_(self) -> str:
        return boxed(entries((one._seen() for one in self), len(self)) or "nothing")  # noqa: SLF001

    def to_frame(self) -> Any:
        """
        Return a `pandas.DataFrame` with one row per result.

        Raises:
            ImportError: pandas is not installed (extra ``notebook``).

        """
        return needed("pandas").DataFrame([one._record() for one in self])  # noqa: SLF001


def seen_with(memory: Memory, *facts: str | None) -> Seen:
    """Return the display content of a memory with additional facts."""
    seen = memory._seen()  # noqa: SLF001 - class of this package
    return seen._replace(facts=(*facts, *seen.facts[1:]))


def evidence_in(reader: Reader, node: int) -> list[Evidence]:
    """Return the evidence of a memory in order, with the stored texts of handles."""
    (memory,) = reader.get([node])
    kept = [parse_kept(item) for item in memory.evidence]
    texts = reader.contents([one.digest for one in kept if one is not None])
    return [
        Evidence(source=item) if one is None else Evidence(source=one.source, digest=one.digest, text=texts[one.digest])
        for item, one in zip(memory.evidence, kept, strict=True)
    ]


def surroundings(reader: Reader, node: int, *, now_ms: int, types: Collection[LinkType] | None) -> Surroundings:
    """Return a memory with its evolution and its neighbourhood in the graph."""
    (memory,) = reader.get([node])
    steps = graph.traverse(reader, node, now_ms=now_ms, types=types, max_depth=graph.CONTEXT_DEPTH)
    around = reached_along(reader, steps)
    nodes = np.array([step.node for step in steps], np.int64)
    memories = [one.memory for one in around]
    return Surroundings(
        memory=memory,
        chain=chain_of(reader, graph.evolution(reader, node)),
        around=around,
        links=with_texts(reader.read_links(node), [memory, *memories]),
        links_around=with_texts(links_among(reader, nodes, types), memories),
    )


def traversal(
    reader: Reader, request: TraversalRequest, cache: graph.TraversalCache[list[Reached]], *, now_ms: int
) -> Results[Reached]:
    """Return the memories reached from a memory, nearest first, from the cache if they are in it."""
    if request not in cache:
        none = np.empty(0, np.int64)
        reader.expect(
            lambda ahead: (ahead.find(request.start), ahead.links(none, request.direction, request.types)),
            around=request.max_depth,
        )
    node = saving.found(reader, request.start)
    cached = cache.get(request, reader.change, reader.touched_since)
    if cached is not None:
        return Results(cached)
    with graph.uncollected():
        steps = graph.traverse(
            reader,
            node,
            now_ms=now_ms,
            types=request.types,
            max_depth=request.max_depth,
            direction=request.direction,
            min_strength=request.min_strength,
            limit=request.limit,
        )
        reached = list(reached_along(reader, steps))
    cache.put(request, reader.change, graph.read_by(node, steps), reached)
    return Results(reached)


def read_texts(reader: Reader, links: Sequence[Link]) -> tuple[Link, ...]:
    """Return links with the first characters of both linked memories."""
    memories: list[Memory] = []
    # If a memory is damaged, return its links without texts.
    with contextlib.suppress(StoreDamaged):
        ends = list({end for link in links for end in (link.from_id, link.to_id)})
        memories = reader.get([node for node in reader.find_many(ends) if node is not None])
    return with_texts(links, memories)


def shortened(text: str) -> str:
    """Return the start of a text on one line."""
    line = " ".join(text[: 4 * _SHOWN].split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _line(memory: Memory) -> str:
    outcome: Any = getattr(memory.metadata, "outcome", None)
    mark = "" if outcome is None else f" [{outcome.value}]"
    return f"{memory.created_at:%Y-%m-%d} {memory.id}{mark} {shortened(memory.content)}"


def reached_along(reader: Reader, steps: Sequence[graph.Step]) -> tuple[Reached, ...]:
    """Convert the steps of a traversal to results."""
    memories = reader.get([step.node for step in steps])
    on_paths = list({node for step in steps for node in step.path})
    ids = dict(zip(on_paths, reader.ids(on_paths), strict=True))
    return tuple(
        Reached(memory=memory, depth=step.depth, path=tuple([ids[node] for node in step.path]), strength=step.strength)
        for memory, step in zip(memories, steps, strict=True)
    )


def links_among(reader: Reader, nodes: Nodes, types: Collection[LinkType] | None = None) -> list[Link]:
    """Return the links with both ends among *nodes*, optionally of some types only."""
    table = reader.links(nodes, "out", types)
    sources = np.unique(table.sources[np.isin(table.targets, nodes)])
    ids = set(reader.ids(nodes))
    read = (link for own in reader.links_of_many(sources, "out") for link in own)
    return [link for link in read if link.to_id in ids and (types is None or link.link_type in types)]


def chain_of(reader: Reader, found: graph.ChainNodes, *, around: tuple[Reached, ...] = ()) -> Chain:
    """Return a chain of decisions with its links and neighbourhood."""
    memories = reader.get(found.nodes)
    by_node = dict(zip(found.nodes.tolist(), memories, strict=True))
    links = links_among(reader, found.nodes, [LinkType.EVOLUTION])
    return Chain(
        memories=tuple(memories),
        links=with_texts(sorted(links, key=lambda link: (link.created_at, link.id), reverse=True), memories),
        forks=tuple(by_node[node] for node in found.forks.tolist()),
        around=around,
    )
