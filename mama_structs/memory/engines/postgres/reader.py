"""Reader of one namespace in one transaction, which caches all answers."""

# ruff: noqa: D102, S608 - documented in the protocols; statements are built from constants

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import StoreDamaged
from mama_structs.memory.engines.postgres import queries as questions
from mama_structs.memory.engines.postgres.client_state import HostKnowledge, KeptSample
from mama_structs.memory.engines.postgres.prefetch import AskedAhead, is_followed, listed_nodes
from mama_structs.memory.engines.postgres.queries import (
    ENDS,
    After,
    Alike,
    Along,
    Count,
    Named,
    Nearest,
    NodeQuestion,
    SentVector,
    Statement,
    Wanted,
    Window,
    Words,
    index_name,
    key_of,
)
from mama_structs.memory.save.automatic_links import topic_terms
from mama_structs.memory.types.codec import K1, LONGEST, MOST_PARTS, SPARE, UNIT, read_memory, wrong_with
from mama_structs.memory.types.duplicates import NO_WORDING
from mama_structs.memory.types.engine import (
    NUMBERS,
    Direction,
    EmbedderRecord,
    Facts,
    Filter,
    LinkTable,
    Matches,
    Nodes,
    Prefetch,
    Query,
    Reader,
    Scanned,
    Scores,
    Vectors,
    mismatch,
    nfc,
    sampled,
)
from mama_structs.memory.types.model import Link, LinkType, Memory, MemoryType, digest_of
from mama_structs.memory.types.text_analysis import ANALYSIS, terms_of
from mama_structs.storage.postgres.pool import Connection

T = TypeVar("T")

# Above this number of results, rows are fetched only for nodes that the plan asks about.
_LOOKED_AT: Final = 1_000
# Number of ids to compare for "did you mean" suggestions.
_CANDIDATES: Final = 1_000
_LONGEST_ID: Final = 200
_NO_NODES: Final = np.empty(0, np.int64)
read_embedder: Final = msgspec.json.Decoder(EmbedderRecord).decode
_read_link: Final = msgspec.json.Decoder(Link).decode


@attrs.frozen
class NamespaceHead:
    """State of a namespace as a whole."""

    change: int = 0
    next_node: int = 0
    length: int = 0
    links: int = 0
    pieces: int = 0
    maintained_at: int = 0
    analysis: int = ANALYSIS
    half: bool = False
    # None if there is no vector index, False if it is incomplete.
    index: bool | None = None
    types: tuple[int, ...] = (0,) * len(MemoryType)
    embedder: EmbedderRecord | None = None

    @classmethod
    def of(cls, row: Any, unless_made: NamespaceHead) -> NamespaceHead:
        """Return the state in a result row, or *unless_made* if the namespace is empty."""
        change, next_node, length, links, pieces, maintained_at, analysis, half, index, *types = row["numbers"]
        text = row["texts"][0]
        if text is None:
            return attrs.evolve(unless_made, change=change)
        return cls(
            change,
            next_node,
            length,
            links,
            pieces,
            maintained_at,
            analysis,
            half=bool(half),
            index=None if index is None else bool(index),
            types=tuple(types),
            embedder=read_embedder(text),
        )

    @property
    def live(self) -> int:
        """Number of memories."""
        return sum(self.types)


class Row(NamedTuple):
    """
    Columns of a memory without its text, in the order of `Facts`.

    The length is in tenths of a term.
    """

    memory_id: str
    topic: str | None
    created: int
    type: int
    scripts: int
    asking: int
    ends: int
    origin: int
    trust: int
    wording: int
    length: int


class LinkRow(NamedTuple):
    """A link with the columns of `LinkTable`."""

    source: int
    target: int
    type: int
    creator: int
    created: int
    confidence: float


class PostgresReader(Reader):
    """A `Reader` of one namespace inside one transaction on a server."""

    def __init__(
        self, connection: Connection, namespace: str, embedder: EmbedderRecord, host: HostKnowledge, location: str
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._embedder = embedder
        self._key = key_of(embedder)
        self._index = index_name(namespace, self._key)
        self._host = host
        self._location = location
        self._head: NamespaceHead | None = None
        # The last change that the client had cached when the head was queried, and the change tokens in the answer.
        self._knew: tuple[int, str | None] = 0, None
        self._marks: tuple[str | None, str | None] = None, None
        self._is_up_to_date = True
        # Answers of queries. They exclude memories that were not sent to the server yet.
        self._answers: dict[NodeQuestion, list[tuple[Any, float]]] = {}
        self._rows: dict[int, Row] = {}
        self._node_of: dict[str, int | None] = {}
        self._entries: dict[int, bytes] = {}
        self._memories: dict[int, Memory] = {}
        self._pieces: dict[int, Vectors] = {}
        # Counts of terms in the queried nodes, by term.
        self._counts: dict[str, dict[int, int]] = {}
        self._frequencies: dict[str, int] = {}
        self._links: dict[str, LinkRow] = {}
        self._ends: dict[str, defaultdict[int, set[str]]] = {end: defaultdict(set) for end in ENDS["both"]}
        # Complete links by id, as JSON until they are used. None if there is no such link.
        self._told_links: dict[str, Link | bytes | None] = {}
        # Cache coverage: nodes with all links, nodes with complete links by end, the distance walked from a
        # node, and nodes with all successors.
        self._linked: set[int] = set()
        self._told: dict[str, set[int]] = {"source": set(), "target": set()}
        self._walked: dict[tuple[Along, int], float] = {}
        self._followed: set[int] = set()
        # Previous and next node by creation time, and their creation times.
        self._neighbours: dict[int, tuple[int, int, int, int]] = {}
        self._topics: dict[str, int] = {}
        self._kept: dict[str, bool] = {}
        self._sample: KeptSample | None = None
        # Memories that were written but not sent yet, and the counts of their terms.
        self._unsent: dict[int, Memory] = {}
        self._unsent_terms: dict[int, dict[str, int]] = {}
        # Deleted links that may still exist on the server.
        self._dropped: set[str] = set()
        # False once the plan has changed more than new memories.
        self._only_added = True

    @property
    def head(self) -> NamespaceHead:
        """The state of the namespace on the server."""
        if self._head is None:
            self._ask([])
        assert self._head is not None  # noqa: S101 - set by every first query
        return self._head

    @property
    def change(self) -> int:
        return self.head.change + self._host.past

    @property
    def damaged(self) -> int:
        return 0

    def expect(self, ask: Callable[[Prefetch], object], *, around: int | None = 0) -> None:
        ahead = AskedAhead(self)
        ask(ahead)
        far = _far(around)
        wanted = Wanted(
            nodes=[
                node
                for node in ahead.nodes
                if node not in self._unsent and not (far and far <= self._walked.get((ahead.along, node), 0))
            ],
            rows=True,
            topics=ahead.with_topics,
            pieces=not far,
            links=ahead.with_links or (ahead.with_followed and bool(far)),
            told=sorted(ahead.told),
            followed=ahead.with_followed and not far,
            around=around,
            along=ahead.along,
            beside=ahead.with_neighbours,
            counts=[*ahead.scored],
            digests=[one for one in ahead.digests if one not in self._kept],
        )
        self._ask(ahead.questions, wanted, terms=[*ahead.terms], sample=ahead.with_sample and self._sample is None)

    def find_many(self, memory_ids: Sequence[str]) -> list[int | None]:
        unknown = tuple(dict.fromkeys(one for one in memory_ids if one not in self._node_of))
        if unknown:
            self._ask([Named(unknown)])
        return [self._node_of[one] for one in memory_ids]

    def get(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        wanted = listed_nodes(nodes)
        missing = [node for node in wanted if node not in self._memories and node not in self._entries]
        self._load(missing, Wanted(nodes=missing, entries=True))
        return [self._memory(node) for node in wanted]

    def ids(self, nodes: Sequence[int] | Nodes) -> list[str]:
        return [row.memory_id for row in self._rows_of(nodes)]

    def topics(self, nodes: Sequence[int] | Nodes) -> list[str | None]:
        return [row.topic for row in self._rows_of(nodes)]

    def alike(self, wordings: Sequence[int]) -> list[Nodes]:
        found = [node for node, _ in self._answer(Alike(tuple(wordings)))] if any(wordings) else []
        found += [node for node in self._unsent if node not in found]
        said = dict(zip(found, (row.wording for row in self._rows_of(found)), strict=True))
        return [
            np.array(sorted(node for node, its in said.items() if its == one != NO_WORDING), np.int64)
            for one in wordings
        ]

    def pieces(self, nodes: Sequence[int] | Nodes) -> tuple[Vectors, NDArray[np.int64]]:
        wanted = listed_nodes(nodes)
        missing = [node for node in dict.fromkeys(wanted) if node not in self._pieces]
        self._load(missing, Wanted(nodes=missing, pieces=True))
        none = np.zeros((0, self._embedder.dimensions), np.float32)
        found = [self._pieces.get(node, none) for node in wanted]
        return np.concatenate([none, *found]), np.array([len(one) for one in found], np.int64)

    def count(self, where: Filter | None = None) -> int:
        if where in {None, Filter()}:
            return self.head.live + len(self._unsent)
        ((_, found),) = self._answer(Count(where))
        return int(found) + len(self._passing(where))

    def facts(self, nodes: Nodes) -> Facts:
        rows = self._rows_of(nodes)
        topics = [-1 if row.topic is None else self._topics.setdefault(row.topic, len(self._topics)) for row in rows]

        def column(name: str, kind: Any) -> NDArray[Any]:
            return np.array([getattr(row, name) for row in rows], kind)

        return Facts(
            column("created", np.int64),
            column("type", np.int8),
            np.array(topics, np.int32),
            column("scripts", np.uint8),
            column("asking", np.uint8),
            column("ends", np.int64),
            column("origin", np.int8),
            column("trust", np.int8),
            column("wording", np.int64),
        )

    def nearest(self, vector: Vectors, limit: int, where: Filter | None = None) -> Matches:
        if limit < 1:
            return _best(_NO_NODES, np.zeros(0, np.float32), 0)
        found = self._answer(self.nearest_question(vector, limit, where), Wanted(rows=True, pieces=True))
        nodes = np.array([*(node for node, _ in found), *self._passing(where)], np.int64)
        return _best(nodes, self.similarities(vector, nodes), limit)

    def similarities(self, vector: Vectors, nodes: Nodes) -> Scores:
        pieces, counts = self.pieces(nodes)
        result = np.zeros(len(counts), np.float32)
        has = counts > 0
        if has.any():
            result[has] = np.maximum.reduceat(
                pieces @ np.asarray(vector, np.float32), (np.cumsum(counts) - counts)[has]
            )
        return result

    def sample(self) -> Vectors:
        if self._sample is None:
            self._ask([], sample=True)
        assert self._sample is not None  # noqa: S101 - set by the query
        known, live = self._sample, self.count()
        if known.live == live:
            return known.vectors
        places = range(live)[sampled(live)]
        if places.step != known.step:
            self._send()
            self._sample = None
            return self.sample()
        new = sorted(self._unsent)
        more = [self._pieces[new[place - known.live]][:1] for place in places if place >= known.live]
        return np.concatenate([known.vectors, *more])

    def words(self, query: Query, limit: int, where: Filter | None = None) -> Matches:
        terms = {term: weight for term, weight in terms_of(query).items() if weight > 0}
        if limit < 1 or not terms:
            return _best(_NO_NODES, np.zeros(0, np.float32), 0)
        found = self._answer(
            self.words_question(terms, limit, where), Wanted(rows=True, counts=[*terms]), terms=[*terms]
        )
        nodes = np.array([*(node for node, _ in found), *self._passing(where)], np.int64)
        scores = self.word_scores(terms, nodes)
        return _best(nodes[scores > 0], scores[scores > 0], limit)

    def word_scores(self, query: Query, nodes: Nodes) -> Scores:
        terms = terms_of(query)
        scores, listed = np.zeros(len(nodes), np.float32), listed_nodes(nodes)
        rarities = self.rarity(terms)
        known = [
            (-weight * rarities[term], term)
            for term, weight in terms.items()
            if weight > 0 and self._frequencies_of(term)
        ]
        if not known or not len(nodes):
            return scores
        self._count({term for _, term in known}, listed)
        # Sum in the order and single precision of the local engine, so that scores are equal: by value, then by term.
        norms = self._lengths(nodes) + np.float32(SPARE / UNIT)
        norms *= np.float32(K1 / UNIT / (SPARE / UNIT + self._length / max(self.count(), 1)))
        for worth, term in sorted(known):
            having = self._counts[term] | {node: has.get(term, 0) for node, has in self._unsent_terms.items()}
            counts = np.array([having.get(node, 0) for node in listed], np.float32)
            scores += counts / (norms + counts) * np.float32(-worth)
        return scores

    def lengths(self, nodes: Nodes) -> Scores:
        found: Scores = self._lengths(nodes) * np.float32(UNIT)
        return found

    def rarity(self, query: Query) -> dict[str, float]:
        terms = [*terms_of(query)]
        unknown = [term for term in terms if term not in self._frequencies]
        if unknown:
            self._ask([], terms=unknown)
        live = self.count()
        having = {term: self._frequencies_of(term) for term in terms}
        return {term: math.log1p((live - often + 0.5) / (often + 0.5)) for term, often in having.items()}

    def links(
        self, nodes: Nodes, direction: Direction = "both", types: Collection[LinkType] | None = None
    ) -> LinkTable:
        listed = listed_nodes(nodes)
        kinds = None if types is None else {NUMBERS[kind] for kind in types}
        known = [self._linked, *([self._followed] if is_followed(direction, types) else ())]
        if direction != "both":
            known += [self._told[end] for end in ENDS[direction]]
        missing = [node for node in dict.fromkeys(listed) if not any(node in some for some in known)]
        self._load(missing, Wanted(nodes=missing, links=True))
        found = [self._links[link_id] for link_id in self._ids_of(listed, ENDS[direction])]
        if kinds is not None:
            found = [link for link in found if link.type in kinds]
        return LinkTable(
            np.array([link.source for link in found], np.int64),
            np.array([link.target for link in found], np.int64),
            np.array([link.type for link in found], np.int8),
            np.array([link.creator for link in found], np.int8),
            np.array([link.confidence for link in found], np.float32),
            np.array([link.created for link in found], np.int64),
        )

    def links_of_many(self, nodes: Sequence[int] | Nodes, direction: Direction = "both") -> list[list[Link]]:
        listed, ends = listed_nodes(nodes), ENDS[direction]
        missing = [node for node in listed if any(node not in self._told[end] for end in ends)]
        self._load(missing, Wanted(nodes=missing, told=ends))
        found = [filter(None, map(self._link, self._ids_of([node], ends))) for node in listed]
        return [sorted(own, key=lambda link: (link.created_at, link.id)) for own in found]

    def find_links(self, link_ids: Sequence[str]) -> list[Link | None]:
        unknown = [link_id for link_id in dict.fromkeys(link_ids) if link_id not in self._told_links]
        if unknown:
            self._ask([], Wanted(link_ids=unknown))
        return [self._link(link_id) for link_id in link_ids]

    def _ids_of(self, nodes: Iterable[int], ends: Iterable[str]) -> set[str]:
        """Return the ids of cached links whose given ends include some nodes."""
        return {link_id for end in ends for node in nodes for link_id in self._ends[end].get(node, ())}

    def window(self, where: Filter | None = None, *, newest_first: bool = True, limit: int | None = None) -> Nodes:
        found = self._answer(Window(where, newest_first, limit), Wanted(rows=True))
        more = self._passing(where)
        if more:
            found = [*found, *((node, self._rows[node].created) for node in more)]
            found.sort(key=lambda one: (one[1], one[0]), reverse=newest_first)
        return np.array([node for node, _ in found[: None if limit is None else max(limit, 0)]], np.int64)

    def beside(self, nodes: Nodes, apart_ms: int) -> tuple[Nodes, Nodes]:
        if self._unsent:
            self._send()
        listed = listed_nodes(nodes)
        missing = [node for node in listed if node not in self._neighbours]
        self._load(missing, Wanted(nodes=missing, beside=True, rows=True))
        found = np.array([self._neighbours[node] for node in listed], np.int64).reshape(-1, 4)
        created = np.array([row.created for row in self._rows_of(listed)], np.int64)[:, np.newaxis]
        beside = np.where(np.abs(found[:, 2:] - created) <= apart_ms, found[:, :2], -1)
        return beside[:, 0], beside[:, 1]

    def relationships(self) -> dict[str, int]:
        sql = "SELECT word, count(*) AS often FROM links WHERE namespace = $1 GROUP BY word"
        return {questions.read(row["word"]): row["often"] for row in self.rows_from(sql)}

    def touched_since(self, change: int) -> frozenset[int] | None:
        self.head  # noqa: B018 - fetches the touched nodes
        return self._host.touched_since(change) if self._is_up_to_date else None

    def scan(self, *, after: int = -1, limit: int | None = None) -> list[Scanned]:
        nodes = [node for node, _ in self._answer(After(after, limit), Wanted(rows=True, entries=True, pieces=True))]
        nodes = [*nodes, *(node for node in self._unsent if node > after)][:limit]
        return [
            Scanned(node, memory, self.vectors(node), tuple(links))
            for node, memory, links in zip(nodes, self.get(nodes), self.links_of_many(nodes, "out"), strict=True)
        ]

    def contents(self, digests: Sequence[str]) -> dict[str, str]:
        sql = "SELECT digest, text FROM texts WHERE namespace = $1 AND digest = ANY($2::text[])"
        found = {row["digest"]: row["text"] for row in self.rows_from(sql, [*digests])}
        return {digest: self._content(digest, found.get(digest)) for digest in digests}

    def known_contents(self, digests: Sequence[str]) -> set[str]:
        unknown = [digest for digest in dict.fromkeys(digests) if digest not in self._kept]
        if unknown:
            self._ask([], Wanted(digests=unknown))
        return {digest for digest in digests if self._kept[digest]}

    def users_of_content(self, digest: str) -> Nodes:
        sql = "SELECT node FROM text_uses WHERE namespace = $1 AND digest = $2 ORDER BY node"
        return np.array([row["node"] for row in self.rows_from(sql, digest)], np.int64)

    def notes(self, prefix: str = "") -> dict[str, str]:
        sql = "SELECT name, text FROM notes WHERE namespace = $1 AND starts_with(name, $2::text)"
        names = _notes_in(self.rows_from(sql, questions.stored(prefix)))
        return {name: names[name] for name in sorted(names)}

    def note_names(self, prefix: str = "") -> list[str]:
        # Use a range, because the primary key does not support a prefix condition.
        sql, first = "SELECT name FROM notes WHERE namespace = $1 AND name >= $2", questions.stored(prefix)
        bounds = [first]
        if first and first.isascii():
            sql, bounds = f"{sql} AND name < $3", [first, f"{first[:-1]}{chr(ord(first[-1]) + 1)}"]
        names = (questions.read(row["name"]) for row in self.rows_from(sql, *bounds))
        return sorted(name for name in names if name.startswith(prefix))

    def notes_named(self, names: Sequence[str]) -> dict[str, str]:
        if not names:
            return {}
        sql = "SELECT name, text FROM notes WHERE namespace = $1 AND name = ANY($2::text[])"
        found = _notes_in(self.rows_from(sql, [*map(questions.stored, names)]))
        return {name: found[name] for name in names if name in found}

    def nearest_ids(self, text: str, limit: int) -> list[str]:
        if limit <= 0:
            return []
        wanted = nfc(text[:_LONGEST_ID])
        head, *tail = wanted.rsplit("_", 2)
        pieces = [piece for piece in (*tail, head[: len(head) // 2]) if len(piece) > 2]  # noqa: PLR2004 - distinctive
        sql = (
            "SELECT id FROM memories WHERE namespace = $1 ORDER BY "
            "(SELECT count(*) FROM unnest($2::text[]) AS piece WHERE position(piece IN id) > 0) DESC, node DESC "
            f"LIMIT {_CANDIDATES}"
        )
        found = [questions.read(row["id"]) for row in self.rows_from(sql, [*map(questions.stored, pieces)])]
        return difflib.get_close_matches(wanted, found, limit)

    def without_vectors(self, embedder: EmbedderRecord) -> list[str]:
        sql = (
            "SELECT m.id FROM memories m WHERE m.namespace = $1 AND NOT EXISTS (SELECT FROM pieces p "
            "WHERE p.namespace = $1 AND p.embedder = $2 AND p.node = m.node) ORDER BY m.node"
        )
        return [questions.read(row["id"]) for row in self.rows_from(sql, key_of(embedder))]

    # Queries.

    def _keep_sample(self, sample: KeptSample) -> None:
        self._host.keep(sample)

    def _send(self) -> None:
        """Send pending writes to the server. A reader has none."""

    def load(self, nodes: Sequence[int]) -> None:
        """Fetch all data of some memories that the consistency check needs."""
        self._load(nodes, Wanted(rows=True, entries=True, pieces=True))

    def rows_from(self, sql: str, *arguments: Any) -> list[Any]:
        """Return the rows of a separate statement."""
        self._send()
        self.head  # noqa: B018 - checks the embedder
        return self._connection.ask(sql, self._namespace, *arguments)

    def row(self, node: int) -> Row:
        """Return the stored columns of a memory without its text."""
        return self._rows_of([node])[0]

    def _answer(
        self, question: NodeQuestion, wanted: Wanted | None = None, *, terms: Sequence[str] = ()
    ) -> list[tuple[Any, float]]:
        if question not in self._answers:
            limit = getattr(question, "limit", 0)
            is_much = limit is None or limit > _LOOKED_AT
            keep = isinstance(question, After)
            self._ask([question], wanted if keep or not is_much else None, terms=terms)
        return self._answers[question]

    def _ask(
        self,
        asked: Iterable[NodeQuestion],
        wanted: Wanted | None = None,
        *,
        terms: Sequence[str] = (),
        sample: bool = False,
    ) -> None:
        """Run queries and fetch the *wanted* data of the nodes that they find, in one statement."""
        statement, is_first = Statement(self._namespace), self._head is None
        if is_first:
            self._knew = self._host.known
            questions.add_head(statement, self._knew[0], self._index)
        new = [one for one in dict.fromkeys(asked) if one not in self._answers]
        if wanted is None and any(isinstance(one, Named | Alike) for one in new):
            wanted = Wanted(rows=True)
        unknown = [term for term in dict.fromkeys(terms) if term not in self._frequencies]
        if wanted is not None and not (new or wanted.nodes or wanted.link_ids or wanted.digests):
            wanted = None
        if not (is_first or new or wanted or unknown or sample):
            return
        self._compile(statement, new, wanted)
        if unknown:
            questions.add_frequencies(statement, unknown)
        kept = self._host.sample if self._only_added else None
        if sample:
            known = (-1, 0, 0, 0) if kept is None else (kept.change, kept.live, kept.next_node, kept.step)
            questions.add_sample(statement, self._key, known)
        rows = self._connection.ask(statement.sql, *statement.arguments)
        self._take(rows, is_first=is_first)
        self._frequencies |= {term: 0 for term in unknown if term not in self._frequencies}
        found = self._take_answers(rows, new)
        if wanted is not None:
            self._take_wanted(rows, wanted, found | set(wanted.nodes))
        if sample:
            self._sample = self._sampled(rows, kept)
            self._keep_sample(self._sample)

    def _compile(self, statement: Statement, new: Sequence[NodeQuestion], wanted: Wanted | None) -> None:
        found = []
        for tag, one in enumerate(new, 1):
            table = statement.table(f"q{tag}", one.rows(statement, f"q{tag}"))
            statement.part(tag, f"FROM {table}", node="node", score="score")
            if not isinstance(one, Count):
                found.append(table)
        if wanted is not None:
            questions.add_found(statement, found, wanted, self._key)

    def _take_answers(self, rows: Iterable[Any], new: Sequence[NodeQuestion]) -> set[int]:
        """Cache the answers of queries, and return the nodes that they found."""
        answers: list[list[tuple[Any, float]]] = [[] for _ in new]
        for row in rows:
            if row["tag"] > 0:
                answers[row["tag"] - 1].append((row["node"], row["score"]))
        self._answers |= dict(zip(new, answers, strict=True))
        for one in new:
            if isinstance(one, Named):
                for memory_id in one.ids:
                    self._node_of.setdefault(memory_id, None)
        return {node for some in answers for node, _ in some if node is not None}

    def _take_wanted(self, rows: Iterable[Any], wanted: Wanted, nodes: set[int]) -> None:
        linked = nodes
        if wanted.around != 0:
            far = _far(wanted.around)
            self._walked |= {(wanted.along, node): far for node in nodes}
            reached = [(row["node"], row["score"]) for row in rows if row["tag"] == questions.ROW]
            nodes = nodes.union(node for node, _ in reached)
            linked = linked.union(node for node, depth in reached if depth is None or depth < far)
        if wanted.links:
            self._linked |= linked
        if len(wanted.told) == len(self._told):
            self._linked |= nodes
        for end in wanted.told:
            self._told[end] |= nodes
        self._told_links |= {link_id: None for link_id in wanted.link_ids if link_id not in self._told_links}
        kept = {row["texts"][0] for row in rows if row["tag"] == questions.KEPT}
        self._kept |= {digest: digest in kept for digest in wanted.digests}
        self._take_counts(rows, wanted.counts, nodes)
        if wanted.topics:
            topics = {self._rows[node].topic for node in nodes if node in self._rows}
            for topic in topics:
                for term in topic_terms(topic):
                    self._frequencies.setdefault(term, 0)

    def _load(self, nodes: Sequence[int], wanted: Wanted) -> None:
        if nodes:
            self._ask([], attrs.evolve(wanted, nodes=[*dict.fromkeys(nodes)]))

    def _take(self, rows: Sequence[Any], *, is_first: bool) -> None:
        if is_first:
            self._head = NamespaceHead(half=self._host.half)
        takers: dict[int, Callable[[Any], None]] = {
            questions.HEAD: self._take_head,
            questions.ROW: self._take_row,
            questions.ENTRY: lambda row: self._entries.update({row["node"]: row["data"]}),
            questions.LINK: self._take_link,
            questions.LINKS: self._take_links,
            questions.FOLLOWED: lambda row: self._followed.update(row["numbers"]),
            questions.BESIDE: lambda row: self._neighbours.update({row["node"]: tuple(row["numbers"])}),
            questions.FREQUENCY: lambda row: self._frequencies.update({row["texts"][0]: int(row["score"])}),
        }
        for row in rows:
            take = takers.get(row["tag"])
            if take is not None:
                take(row)
        self._take_pieces(row for row in rows if row["tag"] == questions.PIECE)
        if is_first:
            self._check_embedder()
            touched = [(row["node"], row["numbers"]) for row in rows if row["tag"] == questions.TOUCHED]
            mark, before = self._marks
            is_other = self._knew[1] not in (None, before)
            self._is_up_to_date = self._host.learn(self.head.change, touched, mark, is_other=is_other)

    def _take_head(self, row: Any) -> None:
        self._head = NamespaceHead.of(row, NamespaceHead(half=self._host.half))
        self._marks = row["texts"][1], row["texts"][2]

    def _take_link(self, row: Any) -> None:
        link_id = questions.read(row["texts"][0])
        source, target, kind, creator, created = row["numbers"]
        self._meet_link(link_id, LinkRow(source, target, kind, creator, created, row["score"]))
        if link_id not in self._dropped:
            self._told_links.setdefault(link_id, row["data"])

    def _take_links(self, row: Any) -> None:
        if row["texts"] is not None:
            count = len(row["texts"])
            columns = [row["numbers"][at : at + count] for at in range(0, len(row["numbers"]), count)]
            confidences = np.frombuffer(row["data"], ">f4").tolist()
            for link_id, link in zip(row["texts"], map(LinkRow, *columns, confidences), strict=True):
                self._meet_link(questions.read(link_id), link)

    def _meet_link(self, link_id: str, link: LinkRow) -> None:
        # The plan's own writes are newer.
        if link_id not in self._links and link_id not in self._dropped:
            self._know_link(link_id, link)

    def _check_embedder(self) -> None:
        stored = self.head.embedder
        if stored is not None and stored != self._embedder:
            raise mismatch(self._namespace, stored, self._embedder)

    def _take_row(self, row: Any) -> None:
        memory_id, topic = row["texts"]
        made = Row(questions.read(memory_id), None if topic is None else questions.read(topic), *row["numbers"])
        self._rows[row["node"]] = made
        self._node_of[made.memory_id] = row["node"]
        if row["data"] is not None:
            self._entries[row["node"]] = row["data"]

    def _take_pieces(self, rows: Iterable[Any]) -> None:
        found: dict[int, list[tuple[float, Vectors]]] = {}
        for row in rows:
            found.setdefault(row["node"], []).append((row["score"], row["vector"]))
        for node, pieces in found.items():
            pieces.sort(key=lambda one: one[0])
            self._pieces[node] = np.stack([vector for _, vector in pieces])

    def _count(self, terms: Collection[str], nodes: Sequence[int]) -> None:
        """Fetch the counts of some terms in some nodes, unless they are cached."""
        missing = {
            node
            for term in terms
            for node in nodes
            if node not in self._counts.setdefault(term, {}) and node not in self._unsent
        }
        self._load(sorted(missing), Wanted(counts=sorted(terms)))

    def _take_counts(self, rows: Iterable[Any], terms: Sequence[str], nodes: Iterable[int]) -> None:
        for term in terms:
            self._counts.setdefault(term, {}).update(dict.fromkeys(nodes, 0))
        for row in rows:
            if row["tag"] == questions.COUNTS:
                for number in row["numbers"]:
                    place, count = divmod(number, questions.COUNT_BASE)
                    self._counts[terms[place - 1]][row["node"]] = count

    def _rows_of(self, nodes: Sequence[int] | Nodes) -> list[Row]:
        wanted = listed_nodes(nodes)
        missing = [node for node in wanted if node not in self._rows]
        self._load(missing, Wanted(nodes=missing, rows=True))
        return [self._rows[node] for node in wanted]

    def _memory(self, node: int) -> Memory:
        """Return a memory whose JSON was fetched before."""
        if node not in self._memories:
            data = self._entries.get(node)
            if data is None:
                raise self._damaged(node, "the row is missing")
            try:
                memory = read_memory(data)
            except (ValueError, RecursionError) as error:
                raise self._damaged(node, "it does not have the form of a memory") from error
            reason = wrong_with(memory, self._namespace)
            if reason is not None:
                raise self._damaged(node, reason)
            self._memories[node] = memory
        return self._memories[node]

    def _damaged(self, node: int, reason: str) -> StoreDamaged:
        row = f"{self._namespace}/{node}"
        return StoreDamaged(
            f"a memory cannot be read: the row {row}: {reason}",
            file=self._location,
            findings=(f"{row}: {reason}",),
            hint="check() lists all damage; restore a backup",
        )

    def _link(self, link_id: str) -> Link | None:
        """Return a complete link that was fetched before, or None if it does not exist."""
        told = self._told_links[link_id]
        if isinstance(told, bytes):
            try:
                told = self._told_links[link_id] = _read_link(told)
            except (ValueError, RecursionError) as error:
                raise StoreDamaged(
                    "a link cannot be read", file=self._location, findings=(f"link {link_id}",), hint="restore a backup"
                ) from error
        return told

    def _content(self, digest: str, data: bytes | None) -> str:
        reason = "it is gone"
        if data is not None:
            text = data.decode("utf-8", "replace")
            if digest_of(text) == digest:
                return text
            reason = "its text has another hash"
        raise StoreDamaged(
            f"kept evidence cannot be read: {digest}: {reason}",
            file=self._location,
            findings=(f"{digest}: {reason}",),
            hint="check() lists all damage; restore a backup, or save the memory again with its evidence",
        )

    @property
    def _length(self) -> int:
        """Total length of all texts, in tenths of a term."""
        return self.head.length + sum(self._rows[node].length for node in self._unsent)

    def _lengths(self, nodes: Nodes) -> Scores:
        return np.array([row.length for row in self._rows_of(nodes)], np.float32)

    def _frequencies_of(self, term: str) -> int:
        return self._frequencies[term] + sum(term in terms for terms in self._unsent_terms.values())

    def _passing(self, where: Filter | None) -> list[int]:
        """Return the memories not sent to the server yet that pass a filter."""
        return [node for node, memory in self._unsent.items() if where is None or where.passes(memory)]

    def nearest_question(self, vector: Vectors, limit: int, where: Filter | None) -> Nearest:
        """Return the query object for `nearest`."""
        return Nearest(np.ascontiguousarray(vector, np.float32).tobytes(), limit, where, self._key, self._host.graph)

    def share_found(self, vectors: Vectors, graph: questions.HnswIndex, itself: float) -> float:
        """
        Return the ratio of *vectors* that the index finds when searching for them.

        Found means that one of the top ten has a cosine of at least *itself*.
        """
        sql = (
            "SELECT avg(CASE WHEN n.best >= $3::float8 THEN 1.0 ELSE 0.0 END)::float8 AS share "
            f"FROM unnest($2::vector[]) AS v(vector), LATERAL (SELECT max(-({questions.VECTOR} <#> v.vector)) AS best "
            "FROM (SELECT p.vector, p.half FROM pieces p WHERE p.namespace = $1 AND p.embedder = $4 "
            f"ORDER BY {graph.near('v.vector')} LIMIT 10) p) n"
        )
        found: float = self.rows_from(sql, [*map(SentVector, vectors)], itself, self._key)[0]["share"]
        return found

    def words_question(self, all_terms: Mapping[str, float], limit: int, where: Filter | None) -> Words:
        """Return the query object for `words`."""
        terms = {term: weight for term, weight in all_terms.items() if weight > 0}
        more = tuple(sum(term in has for has in self._unsent_terms.values()) for term in terms)
        length = sum(self._rows[node].length for node in self._unsent)
        return Words(tuple(terms.items()), limit, where, more, len(self._unsent), length)

    def _know_link(self, link_id: str, link: LinkRow) -> None:
        self._links[link_id] = link
        self._ends["source"][link.source].add(link_id)
        self._ends["target"][link.target].add(link_id)

    def _forget_link(self, link_id: str) -> None:
        self._told_links[link_id] = None
        link = self._links.pop(link_id, None)
        if link is not None:
            self._ends["source"][link.source].discard(link_id)
            self._ends["target"][link.target].discard(link_id)

    def _sampled(self, rows: Iterable[Any], kept: KeptSample | None) -> KeptSample:
        """
        Return the sample from an answer.

        If the sample only grew, extend the cached sample *kept*.
        """
        none = np.zeros((0, self._embedder.dimensions), np.float32)
        grows, numbers, found = False, (0, 0, 0, 1), []
        for row in rows:
            if row["tag"] == questions.SAMPLE and row["node"] is None:
                grows, numbers = row["score"] > 0, row["numbers"]
            elif row["tag"] == questions.SAMPLE:
                found.append((row["node"], row["vector"]))
        found.sort(key=lambda one: one[0])
        before = kept.vectors if grows and kept is not None else none
        vectors = np.concatenate([before, *(vector[np.newaxis] for _, vector in found)]) if found else before
        vectors.flags.writeable = False
        change, live, next_node, step = numbers
        return KeptSample(change, live, next_node, step, vectors)


def _far(around: int | None) -> float:
    return math.inf if around is None else around


def _best(nodes: Nodes, scores: Scores, limit: int) -> Matches:
    """Return the best matches. Equal scores are sorted newest first."""
    order = np.lexsort((-nodes, -scores))[:limit]
    return Matches(nodes[order], scores[order])


def _notes_in(rows: Iterable[Any]) -> dict[str, str]:
    """Return the notes in rows, by name."""
    return {questions.read(row["name"]): questions.read(row["text"]) for row in rows}


def counted(terms: Mapping[str, float]) -> dict[str, int]:
    """Return the counts of terms in tenths, from their weights."""
    return {term: min(max(round(weight / UNIT), 1), MOST_PARTS) for term, weight in terms.items()}


def length_of(terms: Mapping[str, float]) -> int:
    """Return the length of a text with these terms, in tenths of a term."""
    return min(sum(max(round(weight / UNIT), 1) for weight in terms.values()), round(LONGEST / UNIT))
