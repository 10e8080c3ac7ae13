"""
What memory needs of an engine: the protocols under `MemoryStore`.

Everything that decides (links, ranking, traversal, decay) is written once, as *plans* over a `Reader` or `Writer`.
A plan is a plain function: the engine runs it where its data is, all of it on one moment's state.
An engine's data may be behind a connection: a plan asks for many things in one question, never once for each result.
Memories are *nodes* there: whole numbers that mean something within one plan only.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar
from urllib.parse import quote

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import EmbedderMismatch
from mama_structs.memory.types.model import (
    CREATORS,
    ORIGINS,
    RATES,
    Link,
    LinkType,
    Memory,
    MemoryType,
    Origin,
    RecordMetadata,
    is_id,
    milliseconds,
)
from mama_structs.settings import MemorySettings
from mama_structs.storage.sqlite_errors import Finding

T = TypeVar("T")
ItemT = TypeVar("ItemT")

Nodes = NDArray[np.int64]
Scores = NDArray[np.float32]
Vectors = NDArray[np.float32]
Query = str | Mapping[str, float]
"""What words are looked for: a text, or the terms of one (`text.query_terms`), where it is asked for repeatedly."""
Direction = Literal["out", "in", "both"]
"""Along links to older memories (``out``), against them (``in``), or either way."""
Progress = Callable[[int, int], object]
"""Told how much of a long piece of work is done, and of how much."""


class EmbedderRecord(msgspec.Struct, frozen=True):
    """Which embedder made a namespace's vectors."""

    name: str
    fingerprint: str
    dimensions: int


NUMBERS: Final[Mapping[str, int]] = {
    kind: number for kinds in (MemoryType, LinkType) for number, kind in enumerate(kinds)
}
"""By which number a type stands in `Facts` and in a `LinkTable`."""
SYSTEM: Final = CREATORS.index("system")
"""The position of who makes automatic links, in a `LinkTable`."""
_RATES: Final = np.array([RATES[link_type] for link_type in LinkType])
_DAY_MS: Final = 86_400_000
_SAMPLE_BITS: Final = 10
# Memories that are read at once, where others are to have their turn.
_PAGE: Final = 256
ALIKE: Final = 64
"""Where a host keeps copies there may be any number: more are looked at by nobody."""
NEVER: Final = 2**63 - 1
"""When what has no end ends, in milliseconds since 1970."""


@attrs.frozen(kw_only=True)
class Filter:
    """
    Which memories count.

    Of these types, of this topic (NFC), created in [since, until), naming all *mentions*, not ended at *valid_at*, of
    these *origins*, at least as trusted as *trust*, naming all memories of *evidence* as what they rest on, and kept
    under labels that begin with *labels*, or where *nested* is False under just these.
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

    @property
    def names(self) -> list[str]:
        """All that a memory must name, as `names_of` gives it."""
        named = [*sorted(self.mentions or ()), *map(as_evidence, sorted(self.evidence or ()))]
        return named if self.labels is None else [*named, under_labels(self.labels, nested=self.nested)]

    def passes(self, memory: Memory) -> bool:
        """Tell whether a memory counts."""
        return (
            (self.types is None or memory.type in self.types)
            and (self.topic is None or (memory.topic is not None and nfc(memory.topic) == nfc(self.topic)))
            and (self.since is None or memory.created_at >= self.since)
            and (self.until is None or memory.created_at < self.until)
            and (self.mentions is None or self.mentions <= set(memory.mentions))
            and (self.origins is None or memory.origin in self.origins)
            and (self.trust is None or ORIGINS.index(memory.trust) <= ORIGINS.index(self.trust))
            and (self.evidence is None or self.evidence <= set(memory.evidence))
            and (self.labels is None or under_labels(self.labels, nested=self.nested) in names_of(memory))
            and (self.valid_at is None or memory.valid_until is None or memory.valid_until > self.valid_at)
        )


def names_of(memory: Memory) -> tuple[str, ...]:
    """Return what a memory names that filters ask of: its mentions, the memories that are its evidence, its labels."""
    named = (*memory.mentions, *(as_evidence(item) for item in memory.evidence if is_id(item)))
    if not isinstance(memory.metadata, RecordMetadata):
        return named
    labels = memory.metadata.labels
    whole = (under_labels(labels[:length]) for length in range(len(labels) + 1))
    return (*named, *whole, under_labels(labels, nested=False))


def as_evidence(memory_id: str) -> str:
    """Return under which name a memory that names another one as evidence is found."""
    # No mention begins so.
    return f"\0{memory_id}"


def under_labels(labels: Sequence[str], *, nested: bool = True) -> str:
    """Return under which name the records are found whose labels begin with some, or are these."""
    return f"\0{place_of(labels)}{'' if nested else KEY}"


KEY: Final = "="
"""Begins the key in the place of a record."""


def place_of(labels: Sequence[str], key: str | None = None) -> str:
    """
    Return the place of labels, or of a key under them, in ASCII.

    Those of all labels that begin with some begin with the place of these.
    """
    place = "".join(f"{quote(label, safe='')}/" for label in labels)
    return place if key is None else f"{place}{KEY}{quote(key, safe='')}"


def nfc(text: str) -> str:
    """Return a text in the form in which topics are compared: composed (Unicode's NFC)."""
    return unicodedata.normalize("NFC", text)


def ends_at(memory: Memory) -> int:
    """Return when a memory stops to hold, in milliseconds since 1970 (UTC)."""
    return NEVER if memory.valid_until is None else milliseconds(memory.valid_until)


def sampled(count: int) -> slice:
    """Return which of so many memories a sample takes: all below 1,024, else every 2^k-th, 512 to 1,023 of them."""
    step = 1 << max(count.bit_length() - _SAMPLE_BITS, 0)
    return slice(step - 1, None, step)


@attrs.frozen
class Matches:
    """Nodes with a score each, best first; equal scores in the order of nodes, newest first."""

    nodes: Nodes
    scores: Scores

    def __len__(self) -> int:
        return len(self.nodes)


@attrs.frozen
class Facts:
    """What is known of nodes without reading their text, an item for each."""

    created: NDArray[np.int64]  # milliseconds since 1970 (UTC)
    types: NDArray[np.int8]  # a number of `NUMBERS` for each type
    topics: NDArray[np.int32]  # a number for each topic, -1 for none
    scripts: NDArray[np.uint8]  # what `text.scripts_of` says of the content
    asking: NDArray[np.uint8]  # what `text.asking_of` says of it
    ends: NDArray[np.int64]  # when it stops to hold, as `ends_at` says
    origins: NDArray[np.int8]  # the position of its origin in `ORIGINS`
    trusts: NDArray[np.int8]  # the same of its trust
    wordings: NDArray[np.int64]  # what `copies.wording` says of it

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """The arrays, in the order in which facts are made of them."""
        text = self.created, self.types, self.topics, self.scripts, self.asking
        return *text, self.ends, self.origins, self.trusts, self.wordings

    def holding(self, moment_ms: int) -> NDArray[np.bool_]:
        """Return which still hold at a time in milliseconds since 1970."""
        return self.ends > moment_ms


@attrs.frozen
class LinkTable:
    """Links as arrays, an item for each link."""

    sources: Nodes  # the node that acts
    targets: Nodes  # the node acted on
    types: NDArray[np.int8]  # a number of `NUMBERS` for each type
    creators: NDArray[np.int8]  # the position in `CREATORS`
    confidences: NDArray[np.float32]  # as stored
    created: NDArray[np.int64]  # milliseconds since 1970 (UTC)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """The arrays, in the order in which a table is made of them."""
        return self.sources, self.targets, self.types, self.creators, self.confidences, self.created

    def strengths(self, now_ms: int) -> Scores:
        """Return what `Link.strength` gives for each link, at a time in milliseconds since 1970."""
        rates = np.where(self.creators == SYSTEM, _RATES[self.types], 0.0)
        days = np.maximum(now_ms - self.created, 0) / _DAY_MS
        faded: Scores = (self.confidences * np.exp(-rates * days)).astype(np.float32)
        return faded


@attrs.frozen(eq=False)
class Scanned:
    """A memory as `Reader.scan` gives it, with its vectors and the links that begin at it."""

    node: int
    memory: Memory
    vectors: Vectors
    links: tuple[Link, ...]


@attrs.frozen(kw_only=True, eq=False)
class NewMemory:
    """A memory that is to be stored, as `Writer.put` takes it."""

    memory: Memory
    vectors: Vectors
    links: Sequence[Link] = ()
    contents: Mapping[str, str] = attrs.field(factory=dict, repr=False)


class Reader(Protocol):
    """One moment's state of a namespace."""

    @property
    def change(self) -> int:
        """The number of the last change: higher after every write, equal as long as there was none."""

    @property
    def damaged(self) -> int:
        """How many memories are left out, since they are damaged."""

    def expect(self, ask: Callable[[Reader], object], *, around: int | None = 0) -> None:
        """
        Say ahead what a plan will ask, and that it will look closely at what it finds.

        An engine whose data is behind a connection asks all of it at once; any other need not care.

        Args:
            ask: Asks those questions, of which none needs another one's answer: it gets no answers.
            around: How many links away from what is found it will look, at ids, links and texts alone, None for all;
                by such links as it asks for there.

        """

    def find_many(self, memory_ids: Sequence[str]) -> list[int | None]:
        """Return the node of each memory, None where there is no such memory."""

    def find(self, memory_id: str) -> int | None:
        """Return the node of one memory."""
        return self.find_many([memory_id])[0]

    def get(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        """Return memories, in the order of *nodes*."""

    def ids(self, nodes: Sequence[int] | Nodes) -> list[str]:
        """Return the ids of memories, in the order of *nodes*, without reading their text."""

    def topics(self, nodes: Sequence[int] | Nodes) -> list[str | None]:
        """Return the topics of memories, in the order of *nodes*, without reading their text."""

    def alike(self, wordings: Sequence[int]) -> list[Nodes]:
        """Return the nodes of memories with each `copies.wording`, sorted; of many the first and the last `ALIKE`."""

    def pieces(self, nodes: Sequence[int] | Nodes) -> tuple[Vectors, NDArray[np.int64]]:
        """Return all vectors of *nodes* (pieces, dimensions), normalised, in their order, and how many each has."""

    def vectors(self, node: int) -> Vectors:
        """Return one memory's vectors."""
        return self.pieces([node])[0]

    def count(self, where: Filter | None = None) -> int:
        """Return how many memories there are."""

    def facts(self, nodes: Nodes) -> Facts:
        """Return what is known of *nodes* without their text."""

    def nearest(self, vector: Vectors, limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes with the highest cosine to *vector* (normalised), *limit* of them if there are so many."""

    def nearest_many(self, vectors: Vectors, limit: int) -> list[Matches]:
        """Return what `nearest` does for each row of *vectors*."""
        return [self.nearest(vector, limit) for vector in vectors]

    def similarities(self, vector: Vectors, nodes: Nodes) -> Scores:
        """Return the cosine of *vector* (normalised) and each node's best piece."""

    def sample(self) -> Vectors:
        """
        Return the first vectors of some memories, of shape (n, dimensions): what plans derive from what is usual here.

        They are those at `sampled` places in the order of saving, whatever was deleted before; not to be written to.
        As long as nothing changes it is the same array.
        """

    def words(self, query: Query, limit: int, where: Filter | None = None) -> Matches:
        """Return the nodes that match the query's words best (BM25), leaving those out that share none."""

    def word_scores(self, query: Query, nodes: Nodes) -> Scores:
        """Return the BM25 score of the query for each of *nodes*, 0 where they share no word."""

    def lengths(self, nodes: Nodes) -> Scores:
        """Return how many terms the text of each of *nodes* has, 0 for one whose words are not indexed yet."""

    def rarity(self, query: Query) -> dict[str, float]:
        """Return the query's terms with how rare each is (inverse document frequency)."""

    def links(
        self, nodes: Nodes, direction: Direction = "both", types: Collection[LinkType] | None = None
    ) -> LinkTable:
        """Return the links that begin (``out``), end (``in``) or do either at *nodes*, each once."""

    def links_of_many(self, nodes: Sequence[int] | Nodes, direction: Direction = "both") -> list[list[Link]]:
        """Return the links of each of *nodes* with all that is known of them, in order of time."""

    def read_links(self, node: int, direction: Direction = "both") -> list[Link]:
        """Return one memory's links."""
        return self.links_of_many([node], direction)[0]

    def find_links(self, link_ids: Sequence[str]) -> list[Link | None]:
        """Return each link, None where there is no such link."""

    def window(self, where: Filter | None = None, *, newest_first: bool = True, limit: int | None = None) -> Nodes:
        """Return nodes in order of creation, equal times in order of saving."""

    def beside(self, nodes: Nodes, apart_ms: int) -> tuple[Nodes, Nodes]:
        """
        Return for each of *nodes* what was created just before it, and just after it, -1 for none.

        It is the next one in order of creation, equal times in order of saving, and no more than *apart_ms* away.
        """

    def relationships(self) -> dict[str, int]:
        """Return the words used for links, with how many links have each."""

    def touched_since(self, change: int) -> frozenset[int] | None:
        """Return the nodes that changed, or whose links did, after a change; None where that is not known any more."""

    def scan(self, *, after: int = -1, limit: int | None = None) -> list[Scanned]:
        """Return up to *limit* memories in order of saving, those behind the node *after*."""

    def contents(self, digests: Sequence[str]) -> dict[str, str]:
        """Return the texts that are kept under hashes (`model.digest_of`); one that is gone raises `StoreDamaged`."""

    def known_contents(self, digests: Sequence[str]) -> set[str]:
        """Return the hashes under which a text is kept, without reading it."""

    def users_of_content(self, digest: str) -> Nodes:
        """Return the memories whose evidence names the stored text with this hash."""

    def notes(self, prefix: str = "") -> dict[str, str]:
        """Return the notes whose names begin with *prefix*, in the order of their names."""

    def note_names(self, prefix: str = "") -> list[str]:
        """Return the names that begin with *prefix*, in their order (of code points), without reading the notes."""

    def notes_named(self, names: Sequence[str]) -> dict[str, str]:
        """Return the notes of these names, in the order of *names*, without those that are not there."""

    def nearest_ids(self, text: str, limit: int) -> list[str]:
        """Return the ids of memories that look most like *text*, best first."""

    def without_vectors(self, embedder: EmbedderRecord) -> list[str]:
        """Return the ids of memories that have no vectors of an embedder, in order of saving."""


class Writer(Reader, Protocol):
    """A `Reader` inside a write transaction, which sees what it has written; all of it is undone if its plan raises."""

    @property
    def is_due(self) -> bool:
        """Whether others have waited long enough: what a plan has still to write is for another transaction."""

    def put(
        self,
        memory: Memory,
        *,
        vectors: Vectors | None = None,
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

    def put_new(self, new: Sequence[NewMemory], links_of: Callable[[Nodes], Sequence[Sequence[Link]]]) -> Nodes:
        """
        Store new memories in their order, and return their nodes.

        Args:
            new: Each with links that begin at it.
            links_of: Called with the nodes when all can be found; returns further links.

        Raises:
            ValueError: There is a memory of such an id.
            KeyError: As for `put`.

        """

    def put_link(self, link: Link) -> None:
        """Store a link, replacing the one of that id; both its ends must exist."""

    def delete(self, memory_id: str) -> int:
        """Delete a memory and all its links, and return how many links that were; an unknown id raises KeyError."""

    def delete_links(self, link_ids: Collection[str]) -> int:
        """Delete links, and return how many of them there were."""

    def leave_no_trace(self) -> None:
        """Have what this plan deletes or replaces leave the disk, too, with the next `Engine.erase`."""

    def set_note(self, name: str, text: str | None) -> None:
        """Keep a text beside the memories (None forgets it); it changes no memory, and no export carries it."""
        self.set_notes({name: text})

    def set_notes(self, notes: Mapping[str, str | None]) -> None:
        """Keep texts by their names, as `set_note` does."""

    def put_vectors(self, embedder: EmbedderRecord, vectors: Mapping[str, Vectors]) -> None:
        """Store vectors of an embedder that do not count yet, by id, for those memories that are still there."""


class Engine(Protocol):
    """
    Keeps one namespace's memories: all that `MemoryStore` and what is above it ask of an engine.

    Every method raises `StoreError` where its data cannot be read or written, `SessionClosed` once it was closed,
    and `EmbedderMismatch` once another process has embedded everything anew.
    """

    @property
    def namespace(self) -> str:
        """Its name."""

    @property
    def embedder(self) -> EmbedderRecord:
        """Which embedder's vectors count."""

    async def read(self, plan: Callable[[Reader], T]) -> T:
        """Run *plan* on the present state, with every write that any process has acknowledged before."""

    async def write(self, plan: Callable[[Writer], T]) -> T:
        """Run *plan* in a write transaction, and return what it returns when all of it is durable."""

    async def check(self, progress: Progress | None = None) -> list[Finding]:
        """Compare what is derived with what is stored; nothing is changed."""

    async def rebuild(self, progress: Progress | None = None) -> list[str]:
        """Derive everything anew from what is stored, and return a line for each damaged row, which is left out."""

    async def settled(self) -> None:
        """Wait until every memory is found by its words."""

    async def begin_maintenance(self, now_ms: int, every_ms: int) -> int | None:
        """
        Note that maintenance has begun and return as of when it judges ages, or None where it is not due.

        That is the time of the maintenance before, if it is earlier: a clock that is wrong once makes nothing old.
        A store that was just made has nothing old.
        """

    async def adopt(self, embedder: EmbedderRecord) -> bool:
        """Let an embedder's vectors count, and drop all others; False, and nothing done, while memories lack them."""

    async def erase(self, *, wait: float) -> tuple[str, ...]:
        """
        Have what plans were to leave no trace of leave the disk, and return what still holds some of it, for people.

        *wait* says how many seconds to wait for others that use the data. Where nothing is to be done it is cheap.
        """

    def figures(self) -> dict[str, Any]:
        """Return figures about what is kept, as they were at the last call, from any thread."""


class Engines(Protocol):
    """Opens the namespaces of one store, each once, and shares them."""

    async def namespaces(self) -> list[str]:
        """Return whose memories there are."""

    async def recorded(self, namespace: str) -> EmbedderRecord | None:
        """Return which embedder made a namespace's vectors, None where there is nothing yet."""

    async def open(self, namespace: str, embedder: EmbedderRecord, settings: MemorySettings) -> Engine:
        """Open a namespace, or share it; undone by `leave`."""

    async def leave(self, namespace: str) -> None:
        """End one user's use of a namespace; the last one closes it."""


def as_time_allows(writer: Writer, items: Sequence[ItemT], write: Callable[[Writer, ItemT], T]) -> list[T]:
    """Write items, at least one, until others have waited long enough, and return what came of each."""
    written = []
    for item in items:
        written.append(write(writer, item))
        if writer.is_due:
            break
    return written


async def in_turns(
    run: Callable[[Callable[[Writer], list[T]]], Awaitable[list[T]]],
    items: Sequence[ItemT],
    write: Callable[[Writer, ItemT], T],
    *,
    most: int,
) -> AsyncIterator[list[T]]:
    """Write items in transactions that others need not wait for long, and give what came of those of each."""
    done = 0
    while done < len(items):
        some = items[done : done + most]
        written = await run(lambda writer: as_time_allows(writer, some, write))  # noqa: B023 - awaited
        done += len(written)
        yield written


async def in_pages(
    read: Callable[[Callable[[Reader], T]], Awaitable[T]], ids: Sequence[str], plan: Callable[[Reader, list[int]], T]
) -> AsyncIterator[T]:
    """Give what a plan reads of the nodes of some memories after others; those that are gone by then are left out."""
    for start in range(0, len(ids), _PAGE):

        def page(reader: Reader, some: Sequence[str] = ids[start : start + _PAGE]) -> T:
            # Nodes mean something within one plan only.
            return plan(reader, [node for node in reader.find_many(some) if node is not None])

        yield await read(page)


def mismatch(namespace: str, stored: EmbedderRecord, given: EmbedderRecord) -> EmbedderMismatch:
    """Return the error for an embedder that is not the one that made a namespace's vectors."""
    return EmbedderMismatch(
        f"the memories of {namespace!r:.80} were embedded by {stored.name} ({stored.dimensions} dimensions, "
        f"{stored.fingerprint}), and the embedder at hand is {given.name} ({given.dimensions} dimensions, "
        f"{given.fingerprint})",
        stored=(stored.name, stored.fingerprint),
        given=(given.name, given.fingerprint),
        hint="open it with the embedder that made them, or change over with `mama-structs reembed` or "
        "MemoryStore.reembed",
    )
