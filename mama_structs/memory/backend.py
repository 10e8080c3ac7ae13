"""
What memory needs of an engine: the protocol under `MemoryStore`.

Everything that decides (links, ranking, traversal, decay) is written once, as *plans* over a `Reader` or `Writer`.
A plan is a plain function: the engine runs it where its data is, all of it on one moment's state.
Memories are *nodes* there: whole numbers that mean something within one plan only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.model import Link, LinkType, Memory, MemoryType

T = TypeVar("T")

Nodes = NDArray[np.int64]
Scores = NDArray[np.float32]
Query = str | Mapping[str, float]
"""What words are looked for: a text, or the terms of one (`text.query_terms`), where it is asked for repeatedly."""
Direction = Literal["out", "in", "both"]
"""Along links to older memories (``out``), against them (``in``), or either way."""


@attrs.frozen(kw_only=True)
class Filter:
    """
    Which memories count; what is None does not restrict.

    Args:
        types: Their types.
        topic: Their topic, exactly (NFC).
        since: Created at this time or later (UTC).
        until: Created before this time (UTC).
        mentions: They name every one of these ids.

    """

    types: frozenset[MemoryType] | None = None
    topic: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    mentions: frozenset[str] | None = None


@attrs.frozen
class Matches:
    """
    Nodes with a score each, best first; equal scores in the order of nodes, newest first.

    Args:
        nodes: Each once.
        scores: Higher is better.

    """

    nodes: Nodes
    scores: Scores

    def __len__(self) -> int:
        return len(self.nodes)


@attrs.frozen
class Facts:
    """
    What is known of nodes without reading their text, an item for each.

    Args:
        created: Milliseconds since 1970 (UTC).
        types: The position of the type in `MemoryType`'s order.
        topics: A number for each topic, -1 for none.

    """

    created: NDArray[np.int64]
    types: NDArray[np.int8]
    topics: NDArray[np.int32]


@attrs.frozen
class LinkTable:
    """
    Links as arrays, an item for each link.

    Args:
        sources: The node that acts.
        targets: The node acted on.
        types: The position of the type in `LinkType`'s order.
        creators: The position in `CREATORS`.
        confidences: As stored.
        created: Milliseconds since 1970 (UTC).

    """

    sources: Nodes
    targets: Nodes
    types: NDArray[np.int8]
    creators: NDArray[np.int8]
    confidences: NDArray[np.float32]
    created: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sources)


@attrs.frozen(eq=False)
class Scanned:
    """
    A memory as `Reader.scan` gives it.

    Args:
        node: Its node.
        memory: The memory.
        vectors: Of shape (pieces, dimensions).
        links: Those that begin at it.

    """

    node: int
    memory: Memory
    vectors: NDArray[np.float32]
    links: tuple[Link, ...]


class Reader(Protocol):
    """One moment's state of a namespace."""

    @property
    def change(self) -> int:
        """The number of the last change: higher after every write, equal as long as there was none."""

    @property
    def damaged(self) -> int:
        """How many memories are left out, since they are damaged."""

    def find(self, memory_id: str) -> int | None:
        """Return the node of a memory, None where there is no such memory."""

    def get(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        """Return memories, in the order of *nodes*."""

    def ids(self, nodes: Sequence[int] | Nodes) -> list[str]:
        """Return the ids of memories, in the order of *nodes*, without reading their text."""

    def topics(self, nodes: Sequence[int] | Nodes) -> list[str | None]:
        """Return the topics of memories, in the order of *nodes*, without reading their text."""

    def vectors(self, node: int) -> NDArray[np.float32]:
        """Return a memory's vectors, of shape (pieces, dimensions), normalised."""

    def pieces(self, nodes: Nodes) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return all vectors of *nodes*, in their order, of shape (pieces, dimensions), and how many each has."""

    def first_vectors(self, nodes: Nodes) -> NDArray[np.float32]:
        """Return the vector of each memory's first piece, of shape (nodes, dimensions); 0 for one without any."""

    def count(self, where: Filter | None = None) -> int:
        """Return how many memories there are."""

    def facts(self, nodes: Nodes) -> Facts:
        """Return what is known of *nodes* without their text."""

    def nearest(self, vector: NDArray[np.float32], limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes with the highest cosine to *vector* (normalised), *limit* of them if there are so many."""

    def similarities(self, vector: NDArray[np.float32], nodes: Nodes) -> Scores:
        """Return the cosine of *vector* (normalised) and each node's best piece."""

    def words(self, query: Query, limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes that match the query's words best (BM25), leaving those out that share none."""

    def word_scores(self, query: Query, nodes: Nodes) -> Scores:
        """Return the BM25 score of the query for each of *nodes*, 0 where they share no word."""

    def rarity(self, query: Query) -> dict[str, float]:
        """Return the query's terms with how rare each is (inverse document frequency)."""

    def terms(self, node: int) -> Collection[str]:
        """Return the terms of a memory's indexed text."""

    def links(
        self, nodes: Nodes, direction: Direction = "both", types: Collection[LinkType] | None = None
    ) -> LinkTable:
        """Return the links that begin (``out``), end (``in``) or do either at *nodes*, each once."""

    def read_links(self, node: int, direction: Direction = "both") -> list[Link]:
        """Return a memory's links with all that is known of them, in order of time."""

    def find_link(self, link_id: str) -> Link | None:
        """Return a link, None where there is no such link."""

    def window(self, where: Filter | None = None, *, newest_first: bool = True, limit: int | None = None) -> Nodes:
        """Return nodes in order of creation, equal times in order of saving."""

    def relationships(self) -> dict[str, int]:
        """Return the words used for links, with how many links have each."""

    def touched_since(self, change: int) -> frozenset[int] | None:
        """Return the nodes that changed, or whose links did, after a change; None where that is not known any more."""

    def scan(self, *, after: int = -1, limit: int | None = None) -> list[Scanned]:
        """Return up to *limit* memories in order of saving, those behind the node *after*."""

    def content(self, digest: str) -> str | None:
        """Return the text that is kept under a hash (`mama_structs.memory.contents`), None where none is."""

    def has_content(self, digest: str) -> bool:
        """Tell whether a text is kept under a hash, without reading it."""

    def note(self, name: str) -> str | None:
        """Return the note of a name, None where there is none."""

    def notes(self, prefix: str = "") -> dict[str, str]:
        """Return the notes whose names begin with *prefix*, in the order of their names."""

    def nearest_ids(self, text: str, limit: int) -> list[str]:
        """Return the ids of memories that look most like *text*, best first."""

    def stats(self) -> Mapping[str, Any]:
        """Return figures about the engine, for people."""


class Writer(Reader, Protocol):
    """
    A `Reader` inside a write transaction, which sees what it has written.

    When its plan raises, all that the plan wrote is undone.
    """

    def put(
        self,
        memory: Memory,
        *,
        vectors: NDArray[np.float32] | None = None,
        links: Sequence[Link] = (),
        contents: Mapping[str, str] | None = None,
    ) -> int:
        """
        Store a memory, or a new version of one, with links that begin at it, and return its node.

        A text that its evidence names is kept until the last memory that names it is gone, or names it no more.

        Args:
            memory: An unknown id is a new memory.
            vectors: Of shape (pieces, dimensions), normalised; None keeps those it has.
            links: Added to those it has; one with the id of a link that it has replaces that one.
            contents: Texts by their hash; of these the ones that its evidence names are kept.

        Raises:
            KeyError: Its evidence names a text that is neither among *contents* nor kept.

        """

    def put_link(self, link: Link) -> None:
        """Store a link, replacing the one of that id; both its ends must exist."""

    def delete(self, memory_id: str) -> int:
        """Delete a memory and all its links, and return how many links that were; an unknown id raises KeyError."""

    def delete_links(self, link_ids: Collection[str]) -> int:
        """Delete links, and return how many of them there were."""

    def set_note(self, name: str, text: str | None) -> None:
        """
        Keep a text beside the memories, or forget it.

        It is for what is done to a namespace as a whole: it changes no memory, and no export carries it.

        Args:
            name: What it is found under.
            text: The text, None to forget it.

        """


class Backend(Protocol):
    """An engine that keeps one namespace's memories."""

    @property
    def namespace(self) -> str:
        """Its name."""

    async def read(self, plan: Callable[[Reader], T]) -> T:
        """Run *plan* on the present state, with every write that any process has acknowledged before."""

    async def write(self, plan: Callable[[Writer], T]) -> T:
        """Run *plan* in a write transaction, and return what it returns when all of it is durable."""
