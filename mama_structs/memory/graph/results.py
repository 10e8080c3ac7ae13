"""What searches, traversals and chains give back: memories in place of nodes."""

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
from mama_structs.memory.types.engine import Nodes, Reader
from mama_structs.memory.types.model import Link, LinkType, Memory, Outcome, with_texts

_SHOWN = 60


@attrs.frozen(kw_only=True, repr=False)
class Hit(Showing):
    """
    A memory that a search found.

    Args:
        memory: The memory; searched with ``as_of``, as it was then.
        score: What orders this list; scores of two searches do not compare.
        relevance: How well it answers, 0 to 1, comparable between searches; below 0.3 it does not answer.
        parts: What it owes its score to, by name: ``meaning``, ``words``, ``graph`` and so on.
        terms: What adds up to the score, by name, as in `Explanation`.
        path: Ids of the memories by which it was reached along links, the first one found by itself; else empty.
        superseded_by: The id of the memory that stands in its place today, None where it still holds.
        copies: Ids of memories that say the same, and have no hits of their own.

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
        return self.memory._record() | own | terms  # noqa: SLF001 - one of ours


@attrs.frozen(kw_only=True, repr=False)
class Explanation(Showing):
    """
    Why a memory came up in a search, or did not; a reranker is not asked.

    Args:
        id: The memory's.
        rank: Its place among the hits, 1 for the first; None for no hit.
        left_out_by: Why it is no hit: the name of the search's argument that left it out, ``"limit"`` if others answer
            better, ``"copies"`` if a hit says the same, ``"valid_until"`` if it has ended. None for a hit.
        score: Its score, None where a filter left it out.
        relevance: How well it answers, 0 to 1, likewise.
        terms: What adds up to the score, by name: ``meaning``, ``words`` and ``length`` (log-odds), ``floor`` (what
            keeps these above 0), what else is in `Hit.parts`, and ``place`` (what the place is worth beyond that, to
            which a successor or a period moved it).
        copy_of: The id of the hit that it is shown with.
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
    A memory that a traversal reached.

    Args:
        memory: The memory.
        depth: How many links away it is, 1 for direct neighbours.
        path: Ids from the start to this memory, both included.
        strength: The product of the strengths of the links on the path, after decay.

    """

    memory: Memory
    depth: int
    path: tuple[str, ...]
    strength: float

    def _seen(self) -> Seen:
        return seen_with(self.memory, f"depth {self.depth}", f"strength {self.strength:.2f}")

    def _record(self) -> dict[str, Any]:
        return self.memory._record() | {"depth": self.depth, "strength": self.strength}  # noqa: SLF001 - one of ours


class Graphed:
    """Memories with their links, of which others can make graphs."""

    __slots__ = ()

    def _graph(self) -> tuple[list[Memory], list[Link]]:
        raise NotImplementedError

    def to_networkx(self) -> Any:
        """
        Return a `networkx.MultiDiGraph` with a node for each memory, under its id, and an edge for each link.

        Edges lead from the memory that acts to the one that it acts on, and have ``link_type``, ``relationship`` and
        ``confidence``.

        Raises:
            ImportError: networkx is not installed, which the extra ``notebook`` has.

        """
        return diagrams.networkx_of(*self._graph())

    def to_mermaid(self) -> str:
        """Return a flowchart in the language of Mermaid, which GitHub draws, of 100 memories at the most."""
        return diagrams.mermaid_of(*self._graph())


@attrs.frozen(kw_only=True, repr=False)
class Chain(Graphed):
    """
    How a decision evolved.

    Args:
        memories: All of its versions, newest first.
        links: The evolution links between them.
        forks: Those of the memories that several supersede, or that supersede several.
        around: For a topic: what is linked to the chain, nearest first.

    """

    memories: tuple[Memory, ...]
    links: tuple[Link, ...] = ()
    forks: tuple[Memory, ...] = ()
    around: tuple[Reached, ...] = ()

    @property
    def newest(self) -> Memory | None:
        """The newest memory, None for an empty chain."""
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
        seen = (memory._seen()._replace(is_gone=memory.id in gone) for memory in self.memories)  # noqa: SLF001 - ours
        return entries(seen, len(self))

    def _repr_html_(self) -> str:
        return boxed(heading(self._title), self._entries(), _listed("Around it", self.around))

    def __repr__(self) -> str:
        versions = (line("", memory._seen(), opening="  ", closing="") for memory in self.memories)  # noqa: SLF001 - ours
        return lines(chain([f"<{self._title}>"], versions), 1 + len(self))


@attrs.frozen(kw_only=True, repr=False)
class Similar(Showing):
    """
    A memory that is like another, or like a text.

    Args:
        memory: The memory.
        similarity: 0 to 1: how probable it is that both are about one matter, by their meaning alone.

    """

    memory: Memory
    similarity: float

    def _seen(self) -> Seen:
        return seen_with(self.memory, f"similarity {self.similarity:.2f}")

    def _record(self) -> dict[str, Any]:
        return self.memory._record() | {"similarity": self.similarity}  # noqa: SLF001 - one of ours


@attrs.frozen(kw_only=True, repr=False)
class Surroundings(Showing, Graphed):
    """
    A memory with what is around it.

    Args:
        memory: The memory.
        chain: How it evolved.
        around: What is linked to it, at most two links away, nearest and strongest first.
        links: The links that begin or end at it.
        links_around: The links between those around it, of the types that were followed.

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
        versions = [heading("How it evolved"), self.chain._entries()] if len(self.chain) > 1 else []  # noqa: SLF001 - ours
        return boxed(
            entry(self.memory._seen(), is_alone=True),  # noqa: SLF001 - as above
            *versions,
            _listed("Around it", self.around),
            _listed("Links", self.links),
        )


@attrs.frozen(kw_only=True, repr=False)
class Evidence(Showing):
    """
    What a memory rests on: a kept text, or a plain note.

    Args:
        source: A handle as it was when the memory was saved, such as ``ref:plan@2``; for plain evidence all there is.
        digest: The SHA-256 of the handle's text (UTF-8), in hexadecimal; None for plain evidence.
        text: The text that the handle stood for; None for plain evidence.

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
    A word that links were given.

    Args:
        word: As it was given first.
        count: How many links have it.
        near_synonyms: Other words in use that mean nearly the same, with their similarity 0 to 1, nearest first.

    """

    word: str
    count: int
    near_synonyms: tuple[tuple[str, float], ...] = ()


@attrs.frozen(kw_only=True)
class Imported:
    """
    What `MemoryStore.import_jsonl` did.

    Args:
        added: Memories that were added.
        known: Memories that were there already, the same.
        embedded: How many of the added ones were embedded anew, since another embedder made their vectors.
        dropped_links: Links that lead to a memory that is neither in the file nor in the store.

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
"""What forgetting does not reach."""


@attrs.frozen(kw_only=True)
class Forgotten:
    """
    What `MemoryStore.forget` removed, in numbers; it holds no text of it.

    Args:
        memories: How many memories, by type; the reasons of outcomes that went along are contexts.
        links: Links that began or ended at them.
        mended: Other memories that named them, out of which their ids were taken.
        texts: Texts that were kept as their evidence, and named by nothing else.
        refs: Refs and descriptors that were those texts, versions counted.
        pending: Who still holds some of it, in words; it is deleted when the store is next opened or maintained, or
            when its holder closes.
        not_reached: What was not looked at, in words.
        dry_run: Whether nothing was done, and all this is only what would be.

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
        """How many memories of all types."""
        return sum(self.memories.values())


OutcomeWord = Outcome | Literal["SUCCESS", "FAILED", "PARTIAL"]


def placed(terms: Mapping[str, float], score: float) -> dict[str, float]:
    """Return what adds up to the score of the place that something was moved to."""
    known = {name: term for name, term in terms.items() if name != "place"}
    place = score - sum(known.values())
    # What is left of adding up floats is no place.
    return known | ({"place": place} if abs(place) > 1e-6 else {})  # noqa: PLR2004


def within_chars(hits: Sequence[Hit], most: int) -> list[Hit]:
    """Return hits whose content and reasoning have so many characters together, leaving out what does not fit."""
    kept: list[Hit] = []
    for hit in hits:
        size = len(hit.memory.content) + len(getattr(hit.memory.metadata, "reasoning", ""))
        if size <= most:
            kept.append(hit)
            most -= size
    return kept


def _listed(title: str, items: Sequence[Showing]) -> str:
    return heading(title) + entries((one._seen() for one in items), len(items)) if items else ""  # noqa: SLF001 - ours


ShownT = TypeVar("ShownT", bound=Showing)


class Results(list[ShownT]):
    """What a call found, in order: a list that shows itself in a notebook, and that `to_frame` makes a table of."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> ShownT: ...
    @overload
    def __getitem__(self, index: slice) -> Results[ShownT]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> ShownT | Results[ShownT]:
        return Results(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def __repr__(self) -> str:
        return lines(map(repr, self), len(self)) or "[]"

    def _repr_html_(self) -> str:
        return boxed(entries((one._seen() for one in self), len(self)) or "nothing")  # noqa: SLF001 - as above

    def to_frame(self) -> Any:
        """
        Return a `pandas.DataFrame` with a row for each.

        Raises:
            ImportError: pandas is not installed, which the extra ``notebook`` has.

        """
        return needed("pandas").DataFrame([one._record() for one in self])  # noqa: SLF001 - as above


def seen_with(memory: Memory, *facts: str | None) -> Seen:
    """Return what is shown of a memory where something more is known of it."""
    seen = memory._seen()  # noqa: SLF001 - one of ours
    return seen._replace(facts=(*facts, *seen.facts[1:]))


def read_texts(reader: Reader, links: Sequence[Link]) -> tuple[Link, ...]:
    """Return links that know how both of their ends begin."""
    memories: list[Memory] = []
    # A memory that cannot be read has links that can.
    with contextlib.suppress(StoreDamaged):
        ends = list({end for link in links for end in (link.from_id, link.to_id)})
        memories = reader.get([node for node in reader.find_many(ends) if node is not None])
    return with_texts(links, memories)


def shortened(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(text[: 4 * _SHOWN].split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _line(memory: Memory) -> str:
    outcome: Any = getattr(memory.metadata, "outcome", None)
    mark = "" if outcome is None else f" [{outcome.value}]"
    return f"{memory.created_at:%Y-%m-%d} {memory.id}{mark} {shortened(memory.content)}"


def reached_along(reader: Reader, steps: Sequence[graph.Step]) -> tuple[Reached, ...]:
    """Return what a traversal reached."""
    memories = reader.get([step.node for step in steps])
    on_paths = list({node for step in steps for node in step.path})
    ids = dict(zip(on_paths, reader.ids(on_paths), strict=True))
    return tuple(
        Reached(memory=memory, depth=step.depth, path=tuple([ids[node] for node in step.path]), strength=step.strength)
        for memory, step in zip(memories, steps, strict=True)
    )


def links_among(reader: Reader, nodes: Nodes, types: Collection[LinkType] | None = None) -> list[Link]:
    """Return the links, of some types or of all, that have both ends among some nodes."""
    table = reader.links(nodes, "out", types)
    sources = np.unique(table.sources[np.isin(table.targets, nodes)])
    ids = set(reader.ids(nodes))
    read = (link for own in reader.links_of_many(sources, "out") for link in own)
    return [link for link in read if link.to_id in ids and (types is None or link.link_type in types)]


def chain_of(reader: Reader, found: graph.ChainNodes, *, around: tuple[Reached, ...] = ()) -> Chain:
    """Return a chain of decisions with its links, and what is around it."""
    memories = reader.get(found.nodes)
    by_node = dict(zip(found.nodes.tolist(), memories, strict=True))
    links = links_among(reader, found.nodes, [LinkType.EVOLUTION])
    return Chain(
        memories=tuple(memories),
        links=with_texts(sorted(links, key=lambda link: (link.created_at, link.id), reverse=True), memories),
        forks=tuple(by_node[node] for node in found.forks.tolist()),
        around=around,
    )
