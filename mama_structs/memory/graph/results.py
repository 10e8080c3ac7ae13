"""Result types of searches, traversals and chains, with memories instead of nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, SupportsIndex, TypeAlias, TypeVar, overload

import attrs
import numpy as np

from mama_structs._internal.hints.call_hints import make_attribute_error
from mama_structs._internal.hints.peer_names import RESULT_ATTRIBUTES
from mama_structs._internal.jsonable import JsonMixin, make_pydantic_schema, to_json_text
from mama_structs._internal.reprs import (
    MAX_FIELD_ITEMS,
    Bar,
    Columns,
    FieldReprMixin,
    ReprContent,
    ReprMixin,
    format_count,
    format_entries,
    format_entry,
    format_heading,
    format_line,
    format_section,
    join_lines,
    make_frame,
    order_columns,
    wrap_html,
)
from mama_structs.errors import StoreDamaged
from mama_structs.memory.graph import diagrams
from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.graph.score_parts import SCORE_PARTS, ScoredResult, describe_score_parts
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.types.engine import Nodes, Reader
from mama_structs.memory.types.model import (
    MEMORY_COLUMNS,
    Link,
    LinkType,
    Memory,
    MemoryType,
    Outcome,
    parse_stored_evidence,
    with_previews,
)
from mama_structs.memory.types.requests import TraversalRequest

_MAX_LINE_CHARS = 60
_TERM_COLUMNS: Final = {part: f"terms.{part}" for part in SCORE_PARTS}
_VERSION_COLUMNS: Final[Columns] = order_columns(
    "content outcome outcome_reason reasoning confidence created_at superseded_by topic origin id",
    {**MEMORY_COLUMNS, "superseded_by": "text"},
)


@attrs.frozen(kw_only=True, repr=False)
class Hit(ReprMixin):
    """
    A memory found by a search.

    Args:
        memory: The memory. In a search with ``as_of``, its state at that time.
        score: Sort key of this result list. Scores of different searches are not comparable.
        relevance: Estimated relevance, 0 to 1. It also depends on the other memories of the store. An answer in other
            words than the query often gets less than 0.3.
        signals: Contributions to its score by name, such as ``links`` and ``recency``. ``meaning`` and ``words`` are
            the similarity and the share of the query's words, 0 to 1.
        terms: Terms that add up to the score, by name, as in `Explanation`.
        path: Ids of the memories from which it was reached along links, starting with a direct match; empty for a
            direct match.
        superseded_by: Id of its current successor, or None if it is current.
        duplicates: Ids of memories that say the same and have no hits of their own.
        passage: Start and end of the sentence or two in `content` that answer the query, in characters; None if the
            content has at most 280 characters.

    """

    _table_columns: ClassVar[Columns] = order_columns(
        "content relevance type topic outcome superseded_by created_at reasoning score id",
        {
            **MEMORY_COLUMNS,
            "score": "float",
            "relevance": "float",
            "superseded_by": "text",
            "path": "object",
            "duplicates": "object",
            **dict.fromkeys(_TERM_COLUMNS.values(), "float"),
        },
    )

    memory: Memory
    score: float
    relevance: float
    signals: Mapping[str, float] = attrs.field(hash=False)
    path: tuple[str, ...] = ()
    superseded_by: str | None = None
    duplicates: tuple[str, ...] = ()
    terms: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    passage: tuple[int, int] | None = None

    @property
    def id(self) -> str:
        """The id of the memory."""
        return self.memory.id

    @property
    def type(self) -> MemoryType:
        """The type of the memory."""
        return self.memory.type

    @property
    def topic(self) -> str | None:
        """The topic of the memory, or None if it has none."""
        return self.memory.topic

    @property
    def content(self) -> str:
        """The text of the memory."""
        return self.memory.content

    def _repr_content(self) -> ReprContent:
        replaced = None if self.superseded_by is None else "replaced"
        copies = format_count(len(self.duplicates), "copy", "copies") if self.duplicates else None
        seen = repr_with_facts(self.memory, f"relevance {self.relevance:.2f}", replaced, copies)
        return seen._replace(bars=_score_bars(self), is_replaced=replaced is not None)

    def _table_row(self) -> dict[str, Any]:
        names = ("score", "relevance", "superseded_by", "path", "duplicates")
        terms = {column: self.terms.get(part, 0.0) for part, column in _TERM_COLUMNS.items()}
        return self.memory._table_row() | {name: getattr(self, name) for name in names} | terms


@attrs.frozen(kw_only=True, repr=False)
class Explanation(ReprMixin):
    """
    Explanation of why a search found or left out a memory. The reranker is not called.

    Args:
        memory_id: Id of the memory.
        rank: Its rank among the hits, starting at 1, or None if it is no hit.
        excluded_by: Why it is no hit: the name of the search argument that excluded it, ``"limit"`` if others answer
            better, ``"duplicates"`` if a hit says the same, ``"valid_until"`` if it has expired. None for a hit.
        score: Its score, or None if a filter excluded it.
        relevance: Its relevance, 0 to 1, as in `Hit`, or None if a filter excluded it.
        terms: Terms that add up to the score, by name: the weighted features ``meaning``, ``words``, ``questions``,
            ``neighbour``, ``links``, ``topic``, ``period`` and ``recency``, the rules ``outcome`` and
            ``superseded``, and ``place`` (difference to the score of the place to which a rule moved it).
        duplicate_of: Id of the hit that it is shown with.
        superseded_by: As in `Hit`.

    """

    memory_id: str
    rank: int | None = None
    excluded_by: str | None = None
    score: float | None = None
    relevance: float | None = None
    terms: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    duplicate_of: str | None = None
    superseded_by: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.memory_id}: {self._place}{'' if self.duplicate_of is None else f', with {self.duplicate_of}'}"]
        if self.score is not None:
            lines += [f"{one.words:<26}{one.value:>7.2f}" for one in describe_score_parts(self)]
            lines += [f"{'score':<26}{self.score:>7.2f}", f"{'relevance':<26}{self.relevance:>7.2f}"]
        return "\n".join(lines)

    def _repr_content(self) -> ReprContent:
        relevance = None if self.relevance is None else f"relevance {self.relevance:.2f}"
        return ReprContent(text=self._place, facts=(relevance,), id=self.memory_id, bars=_score_bars(self))

    @property
    def _place(self) -> str:
        return f"left out by {self.excluded_by}" if self.rank is None else f"hit {self.rank}"


@attrs.frozen(kw_only=True, repr=False)
class TraversedMemory(ReprMixin):
    """
    A memory reached by a traversal.

    Args:
        memory: The memory.
        depth: Number of links from the start, 1 for direct neighbours.
        path: Ids from the start to this memory, both included.
        strength: Product of the decayed strengths of the links on the path.

    """

    _table_columns: ClassVar[Columns] = order_columns(
        "content depth strength type topic outcome reasoning origin created_at id",
        {**MEMORY_COLUMNS, "depth": "int", "strength": "float", "path": "object"},
    )

    memory: Memory
    depth: int
    path: tuple[str, ...]
    strength: float

    def _repr_content(self) -> ReprContent:
        return repr_with_facts(self.memory, f"depth {self.depth}", f"strength {self.strength:.2f}")

    def _table_row(self) -> dict[str, Any]:
        return self.memory._table_row() | {"depth": self.depth, "strength": self.strength, "path": self.path}


class GraphExportMixin:
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
        return diagrams.to_networkx(*self._graph())

    def to_mermaid(self) -> str:
        """Return a Mermaid flowchart of at most 100 memories, which GitHub can render."""
        return diagrams.to_mermaid(*self._graph())


@attrs.frozen(kw_only=True, repr=False)
class Chain(JsonMixin, GraphExportMixin):
    """
    The evolution of a decision.

    Args:
        memories: All versions, newest first.
        links: Evolution links between them.
        forks: Memories that several others supersede, or that supersede several others.
        nearby: Only for a topic: memories linked to the chain, nearest first.

    """

    memories: tuple[Memory, ...]
    links: tuple[Link, ...] = ()
    forks: tuple[Memory, ...] = ()
    nearby: tuple[TraversedMemory, ...] = ()

    @property
    def newest(self) -> Memory | None:
        """The newest memory, or None for an empty chain."""
        return self.memories[0] if self.memories else None

    def __len__(self) -> int:
        return len(self.memories)

    def __iter__(self) -> Iterator[Memory]:
        return iter(self.memories)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Memory: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Memory, ...]: ...
    @overload
    def __getitem__(self, key: str) -> Any: ...
    def __getitem__(self, key: SupportsIndex | slice | str) -> Any:
        """Return a memory by its index, memories by a slice, or one value of `to_dict` by its key."""
        return super().__getitem__(key) if isinstance(key, str) else self.memories[key]

    def __str__(self) -> str:
        return "\n".join(_format_line(memory) for memory in self.memories) or "nothing"

    def to_frame(self, *, all: bool = False) -> Any:  # noqa: A002 - as in `Results.to_frame`
        """Return a `pandas.DataFrame` with one row per version, newest first, see `Results.to_frame`."""
        newer = {link.to_id: link.from_id for link in self.links}
        rows = (memory._table_row() | {"superseded_by": newer.get(memory.id)} for memory in self.memories)
        return make_frame(rows, _VERSION_COLUMNS, has_all=all)

    def _graph(self) -> tuple[list[Memory], list[Link]]:
        return [*self.memories], [*self.links]

    @property
    def _title(self) -> str:
        counts = [format_count(len(self.memories), "version"), format_count(len(self.links), "link")]
        if self.forks:
            counts.append(format_count(len(self.forks), "fork"))
        return f"Chain of {', '.join(counts)}"

    def _entries(self) -> str:
        gone = {link.to_id for link in self.links}
        seen = (memory._repr_content()._replace(is_replaced=memory.id in gone) for memory in self.memories)
        return format_entries(seen, len(self))

    def _repr_html_(self) -> str:
        return wrap_html(format_heading(self._title), self._entries(), format_section("Nearby", self.nearby))

    def __repr__(self) -> str:
        versions = (format_line("", memory._repr_content(), opening="  ", closing="") for memory in self.memories)
        return join_lines(chain([f"<{self._title}>"], versions), 1 + len(self))


@attrs.frozen(kw_only=True, repr=False)
class SimilarMemory(ReprMixin):
    """
    A memory that is similar to another memory or to a text.

    Args:
        memory: The memory.
        similarity: Probability, 0 to 1, that both have the same subject, from their vectors only.

    """

    _table_columns: ClassVar[Columns] = order_columns(
        "content similarity type topic outcome reasoning confidence origin created_at id",
        {**MEMORY_COLUMNS, "similarity": "float"},
    )

    memory: Memory
    similarity: float

    def _repr_content(self) -> ReprContent:
        return repr_with_facts(self.memory, f"similarity {self.similarity:.2f}")

    def _table_row(self) -> dict[str, Any]:
        return self.memory._table_row() | {"similarity": self.similarity}


@attrs.frozen(kw_only=True, repr=False)
class MemoryDetails(ReprMixin, GraphExportMixin):
    """
    A memory with its evolution and neighbourhood.

    Args:
        memory: The memory.
        history: Its versions.
        nearby: Memories at most two links away, nearest and strongest first.
        links: Links that start or end at it.
        nearby_links: Links between the memories in *nearby*, of the followed types.

    """

    memory: Memory
    history: Chain
    nearby: tuple[TraversedMemory, ...]
    links: tuple[Link, ...]
    nearby_links: tuple[Link, ...] = ()

    def _repr_content(self) -> ReprContent:
        counts = (
            format_count(len(self.history), "version"),
            f"{len(self.nearby):,} nearby",
            format_count(len(self.links), "link"),
        )
        return repr_with_facts(self.memory, *counts)

    def _graph(self) -> tuple[list[Memory], list[Link]]:
        every = [self.memory, *self.history.memories, *(one.memory for one in self.nearby)]
        links = [*self.links, *self.history.links, *self.nearby_links]
        return list({memory.id: memory for memory in every}.values()), links

    def _repr_html_(self) -> str:
        versions = [format_heading("How it evolved"), self.history._entries()] if len(self.history) > 1 else []
        return wrap_html(
            format_entry(self.memory._repr_content(), is_alone=True),
            *versions,
            format_section("Nearby", self.nearby),
            format_section("Links", self.links),
        )


@attrs.frozen(kw_only=True, repr=False)
class Evidence(ReprMixin):
    """
    An evidence item of a memory: a stored text, or free text.

    Args:
        source: Handle with the version at the time of saving, such as ``ref:plan@2``; or the whole free text.
        digest: SHA-256 of the handle's text (UTF-8), in hexadecimal; None for free text.
        text: Stored text of the handle; None for free text.

    """

    _table_columns: ClassVar[Columns] = {"source": "text", "text": "text", "digest": "text"}

    source: str
    digest: str | None = None
    text: str | None = None

    def _repr_content(self) -> ReprContent:
        if self.text is None:
            return ReprContent(text=self.source)
        return ReprContent(text=self.text, facts=(f"{len(self.text):,} characters", self.source))

    def _table_row(self) -> dict[str, Any]:
        return {"source": self.source, "text": self.text, "digest": self.digest}


@attrs.frozen(kw_only=True, repr=False)
class RelationshipCount(ReprMixin):
    """
    A relationship word that links use, with its frequency and its near synonyms.

    Args:
        word: The word in its first spelling.
        count: Number of links with the word.
        near_synonyms: Similar words in use with their similarity, 0 to 1, most similar first.

    """

    _table_columns: ClassVar[Columns] = {"word": "text", "count": "int", "near_synonyms": "object"}

    word: str
    count: int
    near_synonyms: tuple[tuple[str, float], ...] = ()

    def _repr_content(self) -> ReprContent:
        near = (f"{word} {similarity:.2f}" for word, similarity in islice(self.near_synonyms, MAX_FIELD_ITEMS))
        return ReprContent(text=self.word, facts=(format_count(self.count, "link"),), html_facts=tuple(near))

    def _table_row(self) -> dict[str, Any]:
        return attrs.asdict(self, recurse=False)


@attrs.frozen(kw_only=True, repr=False)
class JsonlImport(FieldReprMixin):
    """
    Result of `admin.import_jsonl`.

    Args:
        added: Number of added memories.
        existing: Number of memories that already existed unchanged.
        embedded: Number of added memories that were re-embedded, because another embedder made their vectors.
        dropped_links: Number of links to memories that are neither in the file nor in the store.

    """

    added: int = 0
    existing: int = 0
    embedded: int = 0
    dropped_links: int = 0


@attrs.frozen(kw_only=True, repr=False)
class ErasureReport(FieldReprMixin):
    """
    Numbers of items that `MemoryStore.erase` deleted. Contains no deleted text.

    Args:
        memories: Number of memories by type. Deleted reasons of outcomes count as contexts.
        links: Number of links that started or ended at them.
        updated_memories: Number of other memories from which their ids were removed.
        evidence_texts: Number of stored evidence texts that no other memory refers to.
        refs: Number of refs and descriptors with those texts, counting versions.
        pending: Descriptions of places that still contain some of the data. They are cleared when the store is next
            opened or maintained, or when their holder closes.
        out_of_scope: Descriptions of places that were not searched and may exist with the backend of this store.
        dry_run: True if nothing was deleted, and the numbers are only a preview.

    """

    _json_properties = ("count",)

    memories: Mapping[str, int] = attrs.field(factory=dict)
    links: int = 0
    updated_memories: int = 0
    evidence_texts: int = 0
    refs: int = 0
    pending: tuple[str, ...] = ()
    out_of_scope: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def count(self) -> int:
        """Number of memories of all types."""
        return sum(self.memories.values())


OutcomeWord = Outcome | Literal["SUCCESS", "FAILED", "PARTIAL", "success", "failed", "partial"]


def with_place_term(terms: Mapping[str, float], score: float) -> dict[str, float]:
    """Return the terms with a ``place`` term for the difference between their sum and *score*."""
    known = {name: term for name, term in terms.items() if name != "place"}
    place = score - sum(known.values())
    # Smaller differences are rounding errors.
    return known | ({"place": place} if abs(place) > 1e-6 else {})  # noqa: PLR2004


def limit_chars(hits: Sequence[Hit], max_chars: int) -> list[Hit]:
    """
    Return hits with at most *max_chars* characters of content and reasoning in total.

    Hits that do not fit are skipped.
    """
    kept: list[Hit] = []
    for hit in hits:
        size = len(hit.memory.content) + len(getattr(hit.memory.metadata, "reasoning", ""))
        if size <= max_chars:
            kept.append(hit)
            max_chars -= size
    return kept


def _score_bars(result: ScoredResult) -> list[Bar]:
    return [Bar(one.words, one.value, one.colour) for one in describe_score_parts(result)]


ReprMixinT = TypeVar("ReprMixinT", bound=ReprMixin)


class Results(list[ReprMixinT]):
    """
    Ordered results of a call: a list with a notebook display and conversion to JSON and to a table.

    Args:
        items: The results.
        item_type: Type of the results. Only needed for the columns of an empty table.

    """

    _item_type: type[ReprMixinT] | None = None

    def __init__(self, items: Iterable[ReprMixinT] = (), *, item_type: type[ReprMixinT] | None = None) -> None:
        super().__init__(items)
        if item_type is not None:
            self._item_type = item_type

    @overload
    def __getitem__(self, index: SupportsIndex) -> ReprMixinT: ...
    @overload
    def __getitem__(self, index: slice) -> Results[ReprMixinT]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> ReprMixinT | Results[ReprMixinT]:
        if isinstance(index, slice):
            return Results(super().__getitem__(index), item_type=self._item_type)
        return super().__getitem__(index)

    # Type checkers must not see this method, or they would accept every attribute name.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`, with the right attribute if the name is a known guess."""
            meant = RESULT_ATTRIBUTES.get(name)
            # Only a `Page` has a cursor.
            if meant is None or (meant == "next_cursor" and not isinstance(self, Page)):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise make_attribute_error(f"{type(self).__name__} has no {name!r}. Use {meant}.", name)

    def __repr__(self) -> str:
        return join_lines(map(repr, self), len(self)) or "[]"

    def _repr_html_(self) -> str:
        return wrap_html(format_entries((one._repr_content() for one in self), len(self)) or "nothing")

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the results as JSON data, see `Memory.to_dict`."""
        return [one.to_dict() for one in self]

    def to_json(self) -> str:
        """Return the results as the text of a JSON array."""
        return to_json_text(self.to_dicts())

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        """Return a pydantic schema that accepts instances and serializes them with `to_dicts`."""
        return make_pydantic_schema(cls, cls.to_dicts)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: object, _handler: object) -> dict[str, Any]:
        """Return the JSON Schema of `to_dicts`, with which FastAPI documents its routes."""
        return {"type": "array", "items": {"type": "object"}}

    def to_frame(self, *, all: bool = False) -> Any:  # noqa: A002 - shadows nothing that the method needs
        """
        Return a `pandas.DataFrame` with one row per result.

        Times are in UTC. An empty result has the same columns with the same types.

        Args:
            all: True for all columns, False for the ten most useful ones.

        Raises:
            ImportError: pandas is not installed (extra ``notebook``).

        """
        item_type = type(self[0]) if self else self._item_type
        columns = {} if item_type is None else item_type._table_columns
        return make_frame((one._table_row() for one in self), columns, has_all=all)


class Page(Results[ReprMixinT]):
    """
    One page of results: a list that knows where the next page begins.

    Args:
        items: The results.
        next_cursor: The ``cursor`` of the call that returns the next page; None on the last page.
        item_type: As for `Results`.

    """

    def __init__(
        self,
        items: Iterable[ReprMixinT] = (),
        *,
        next_cursor: str | None = None,
        item_type: type[ReprMixinT] | None = None,
    ) -> None:
        super().__init__(items, item_type=item_type)
        self.next_cursor = next_cursor


MemoryLike: TypeAlias = str | Memory | Hit | TraversedMemory | SimilarMemory
"""A memory's id, or an object that contains the memory."""
LinkLike: TypeAlias = str | Link
"""A link or its id."""


def repr_with_facts(memory: Memory, *facts: str | None) -> ReprContent:
    """Return the display content of a memory with additional facts."""
    seen = memory._repr_content()
    return seen._replace(facts=(*facts, *seen.facts[1:]))


def evidence_in(reader: Reader, node: int) -> list[Evidence]:
    """Return the evidence of a memory in order, with the stored texts of handles."""
    (memory,) = reader.get([node])
    kept = [parse_stored_evidence(item) for item in memory.evidence]
    texts = reader.contents([one.digest for one in kept if one is not None])
    return [
        Evidence(source=item) if one is None else Evidence(source=one.source, digest=one.digest, text=texts[one.digest])
        for item, one in zip(memory.evidence, kept, strict=True)
    ]


def details(reader: Reader, node: int, *, now_ms: int, types: Collection[LinkType] | None) -> MemoryDetails:
    """Return a memory with its evolution and its neighbourhood in the graph."""
    (memory,) = reader.get([node])
    steps = graph.traverse(reader, node, now_ms=now_ms, types=types, max_depth=graph.CONTEXT_DEPTH)
    around = to_traversed(reader, steps)
    nodes = np.array([step.node for step in steps], np.int64)
    memories = [one.memory for one in around]
    return MemoryDetails(
        memory=memory,
        history=build_chain(reader, graph.find_evolution(reader, node)),
        nearby=around,
        links=with_previews(reader.read_links(node), [memory, *memories]),
        nearby_links=with_previews(read_links_between(reader, nodes, types), memories),
    )


def traversal(reader: Reader, request: TraversalRequest, *, now_ms: int) -> Results[TraversedMemory]:
    """Return the memories reached from a memory, nearest first."""
    none = np.empty(0, np.int64)
    reader.expect(
        lambda ahead: (ahead.find(request.start), ahead.links(none, request.direction, request.types)),
        around=request.max_depth,
    )
    node = saving.require_node(reader, request.start)
    with graph.disable_garbage_collection():
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
        return Results(to_traversed(reader, steps), item_type=TraversedMemory)


def add_previews(reader: Reader, links: Sequence[Link]) -> tuple[Link, ...]:
    """Return links with previews of the memories at both ends."""
    memories: list[Memory] = []
    # If any of the memories is damaged, all previews are replaced with ids.
    with contextlib.suppress(StoreDamaged):
        ends = list({end for link in links for end in (link.from_id, link.to_id)})
        memories = reader.get([node for node in reader.find_many(ends) if node is not None])
    return with_previews(links, memories)


def shorten_to_line(text: str) -> str:
    """Return the start of a text on one line."""
    line = " ".join(text[: 4 * _MAX_LINE_CHARS].split())
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[: _MAX_LINE_CHARS - 1]}…"


def _format_line(memory: Memory) -> str:
    outcome: Any = getattr(memory.metadata, "outcome", None)
    mark = "" if outcome is None else f" [{outcome.value}]"
    return f"{memory.created_at:%Y-%m-%d} {memory.id}{mark} {shorten_to_line(memory.content)}"


def to_traversed(reader: Reader, steps: Sequence[graph.Step]) -> tuple[TraversedMemory, ...]:
    """Convert the steps of a traversal to results."""
    memories = reader.get([step.node for step in steps])
    on_paths = list({node for step in steps for node in step.path})
    ids = dict(zip(on_paths, reader.ids(on_paths), strict=True))
    return tuple(
        TraversedMemory(
            memory=memory, depth=step.depth, path=tuple([ids[node] for node in step.path]), strength=step.strength
        )
        for memory, step in zip(memories, steps, strict=True)
    )


def read_links_between(reader: Reader, nodes: Nodes, types: Collection[LinkType] | None = None) -> list[Link]:
    """Return the links with both ends among *nodes*, optionally of some types only."""
    table = reader.links(nodes, "out", types)
    sources = np.unique(table.sources[np.isin(table.targets, nodes)])
    ids = set(reader.ids(nodes))
    read = (link for own in reader.links_of_many(sources, "out") for link in own)
    return [link for link in read if link.to_id in ids and (types is None or link.link_type in types)]


def build_chain(reader: Reader, found: graph.ChainNodes, *, nearby: tuple[TraversedMemory, ...] = ()) -> Chain:
    """Return a chain of decisions with its links and neighbourhood."""
    memories = reader.get(found.nodes)
    by_node = dict(zip(found.nodes.tolist(), memories, strict=True))
    links = read_links_between(reader, found.nodes, [LinkType.EVOLUTION])
    return Chain(
        memories=tuple(memories),
        links=with_previews(sorted(links, key=lambda link: (link.created_at, link.id), reverse=True), memories),
        forks=tuple(by_node[node] for node in found.forks.tolist()),
        nearby=nearby,
    )
