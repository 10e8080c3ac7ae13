"""Reader of one namespace in one transaction. All answers of the server are cached."""

# ruff: noqa: D102, S608 - documented in the protocols; statements are built from constants

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import StoreDamaged
from mama_structs.memory.engines.postgres import queries as questions
from mama_structs.memory.engines.postgres.client_state import CachedSample, ClientState
from mama_structs.memory.engines.postgres.link_cache import LinkCache, LinkColumns
from mama_structs.memory.engines.postgres.namespace_rows import PostgresMemoryRow, PostgresNamespaceHead
from mama_structs.memory.engines.postgres.prefetch import PrefetchRecorder, is_successor_query, to_node_list
from mama_structs.memory.engines.postgres.queries import (
    ENDS_BY_DIRECTION,
    MEMORY_ROW_COLUMNS,
    ByIdQuery,
    CountQuery,
    DuplicateQuery,
    FetchSpec,
    LinkFilter,
    NearestQuery,
    NodeQuery,
    OrderedQuery,
    Statement,
    TimelineQuery,
    Words,
    embedder_key,
    index_name,
)
from mama_structs.memory.engines.postgres.result_rows import (
    ResultRow,
    decode_memory_rows,
    decode_vectors,
    split_columns,
)
from mama_structs.memory.save.link_candidates import extract_topic_terms
from mama_structs.memory.types.codec import (
    BM25_K1,
    EXTRA_LENGTH_TERMS,
    TERM_COUNT_STEP,
    decode_memory,
    find_invalid_field,
    join_histories,
)
from mama_structs.memory.types.duplicates import NO_FINGERPRINT
from mama_structs.memory.types.engine import (
    TYPE_NUMBERS,
    Direction,
    EmbedderRecord,
    EngineFilter,
    LinkTable,
    Matches,
    NodeAttributes,
    Nodes,
    Position,
    Prefetch,
    Query,
    Reader,
    ScannedMemory,
    Scores,
    Vectors,
    embedder_mismatch,
    sample_slice,
    select_names,
    to_nfc,
)
from mama_structs.memory.types.model import PATH_FILTER_PREFIX, Link, LinkType, Memory, text_digest
from mama_structs.memory.types.text_analysis import resolve_terms
from mama_structs.storage.postgres.pool import Connection

T = TypeVar("T")

# If a query may find more nodes than this, their rows are fetched only when the plan requests them.
MAX_PREFETCHED_NODES: Final = 1_000
# Maximum number of ids to compare for "did you mean" suggestions.
MAX_ID_CANDIDATES: Final = 1_000
MAX_ID_CHARS: Final = 200
NO_NODES: Final = np.empty(0, np.int64)
RECALL_NEIGHBOURS: Final = 10
# Scores of an index with half precision differ by less than this.
SCORE_TOLERANCE: Final = 1e-3
_decode_link: Final = msgspec.json.Decoder(Link).decode


class PostgresReader(Reader):
    """A `Reader` of one namespace on a server, inside one transaction."""

    def __init__(
        self, connection: Connection, namespace: str, embedder: EmbedderRecord, client_state: ClientState, location: str
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._embedder = embedder
        self._embedder_key = embedder_key(embedder)
        self._index_name = index_name(namespace, self._embedder_key)
        self._client_state = client_state
        self._location = location
        self._head: PostgresNamespaceHead | None = None
        # The last change, with its token, that the client knew before it queried the head.
        self._cached_change: tuple[int, str | None] = 0, None
        # The change tokens in the server's answer: of the last change, and of the cached one.
        self._change_tokens: tuple[str | None, str | None] = None, None
        # Results of queries, without the memories that are not sent to the server yet.
        self._answers: dict[NodeQuery, list[tuple[Any, float]]] = {}
        self._rows: dict[int, PostgresMemoryRow] = {}
        self._node_of: dict[str, int | None] = {}
        self._entries: dict[int, bytes] = {}
        self._memories: dict[int, Memory] = {}
        self._pieces: dict[int, Vectors] = {}
        # By term: its count in each queried node.
        self._counts: dict[str, dict[int, int]] = {}
        self._frequencies: dict[str, int] = {}
        self._links = LinkCache()
        # Complete links by id. A link is decoded from JSON at its first use. None if the link does not exist.
        self._complete_links: dict[str, Link | bytes | None] = {}
        # Cached data: nodes with all their links, with their complete links (by end), and with all their successors.
        # Walk distances are stored by link filter and start node.
        self._nodes_with_links: set[int] = set()
        self._nodes_with_complete_links: dict[str, set[int]] = {"source": set(), "target": set()}
        self._walk_distances: dict[tuple[LinkFilter, int], float] = {}
        self._nodes_with_successors: set[int] = set()
        # By node and maximum gap in milliseconds: the previous and the next node in creation order, -1 for none.
        self._neighbours: dict[tuple[int, int], tuple[int, int]] = {}
        self._topic_numbers: dict[str, int] = {}
        self._stored_digests: dict[str, bool] = {}
        self._sample: CachedSample | None = None
        # Memories that are written but not sent to the server yet, and the counts of their terms.
        self._unsent: dict[int, Memory] = {}
        self._unsent_terms: dict[int, dict[str, int]] = {}
        # True while the plan has only added memories.
        self._only_new_memories = True

    @property
    def head(self) -> PostgresNamespaceHead:
        """The state of the namespace on the server."""
        if self._head is None:
            self._fetch([])
        assert self._head is not None  # noqa: S101 - set by every first query
        return self._head

    @property
    def change(self) -> int:
        return self.head.change + self._client_state.change_offset

    @property
    def damaged(self) -> int:
        return 0

    def expect(self, ask: Callable[[Prefetch], object], *, around: int | None = 0) -> None:
        recorder = PrefetchRecorder(self)
        ask(recorder)
        far = _max_distance(around)
        wanted = FetchSpec(
            nodes=[
                node
                for node in recorder.nodes
                if node not in self._unsent
                and not (far and far <= self._walk_distances.get((recorder.link_filter, node), 0))
            ],
            rows=True,
            topic_frequencies=recorder.with_topics,
            pieces=not far,
            links=recorder.with_links or (recorder.with_successors and bool(far)),
            complete_link_ends=sorted(recorder.complete_link_ends),
            successors=recorder.with_successors and not far,
            walk_distance=around,
            link_filter=recorder.link_filter,
            max_neighbour_gap_ms=recorder.max_neighbour_gap_ms,
            counted_terms=[*recorder.scored_terms],
            digests=[one for one in recorder.digests if one not in self._stored_digests],
        )
        self._fetch(
            recorder.queries, wanted, terms=[*recorder.terms], sample=recorder.with_sample and self._sample is None
        )

    def find_many(self, memory_ids: Sequence[str]) -> list[int | None]:
        unknown = tuple(dict.fromkeys(one for one in memory_ids if one not in self._node_of))
        if unknown:
            self._fetch([ByIdQuery(unknown)])
        return [self._node_of[one] for one in memory_ids]

    def get(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        return join_histories(self.get_stored(nodes), self.contents)

    def get_stored(self, nodes: Sequence[int] | Nodes) -> list[Memory]:
        wanted = to_node_list(nodes)
        missing = [node for node in wanted if node not in self._memories and node not in self._entries]
        # The rows contain short entries.
        self._fetch_nodes([node for node in missing if node not in self._rows], FetchSpec(rows=True))
        missing = [node for node in missing if node not in self._entries]
        self._fetch_nodes(missing, FetchSpec(entries=True))
        return [self._decode_memory(node) for node in wanted]

    def ids(self, nodes: Sequence[int] | Nodes) -> list[str]:
        return [row.memory_id for row in self._get_rows(nodes)]

    def topics(self, nodes: Sequence[int] | Nodes) -> list[str | None]:
        return [row.topic for row in self._get_rows(nodes)]

    def duplicates(self, wordings: Sequence[int]) -> list[Nodes]:
        found = [node for node, _ in self._run_query(DuplicateQuery(tuple(wordings)))] if any(wordings) else []
        found += [node for node in self._unsent if node not in found]
        fingerprints = dict(zip(found, (row.wording for row in self._get_rows(found)), strict=True))
        return [
            np.array(sorted(node for node, its in fingerprints.items() if its == one != NO_FINGERPRINT), np.int64)
            for one in wordings
        ]

    def pieces(self, nodes: Sequence[int] | Nodes) -> tuple[Vectors, NDArray[np.int64]]:
        wanted = to_node_list(nodes)
        missing = [node for node in dict.fromkeys(wanted) if node not in self._pieces]
        self._fetch_nodes(missing, FetchSpec(pieces=True))
        none = np.zeros((0, self._embedder.dimensions), np.float32)
        found = [self._pieces.get(node, none) for node in wanted]
        return np.concatenate([none, *found]), np.array([len(one) for one in found], np.int64)

    def count(self, where: EngineFilter | None = None) -> int:
        if where in {None, EngineFilter()}:
            return self.head.memory_count + len(self._unsent)
        ((_, found),) = self._run_query(CountQuery(where))
        return int(found) + len(self._filter_unsent(where))

    def facts(self, nodes: Nodes) -> NodeAttributes:
        rows = self._get_rows(nodes)
        topics = [
            -1 if row.topic is None else self._topic_numbers.setdefault(row.topic, len(self._topic_numbers))
            for row in rows
        ]

        def column(name: str, kind: Any) -> NDArray[Any]:
            return np.array([getattr(row, name) for row in rows], kind)

        return NodeAttributes(
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

    def nearest(self, vector: Vectors, limit: int, where: EngineFilter | None = None) -> Matches:
        if limit < 1:
            return _top_matches(NO_NODES, np.zeros(0, np.float32), 0)
        found = self._run_query(self.nearest_query(vector, limit, where), FetchSpec(rows=True, pieces=True))
        nodes = np.array([*(node for node, _ in found), *self._filter_unsent(where)], np.int64)
        return _top_matches(nodes, self.similarities(vector, nodes), limit)

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
            self._fetch([], sample=True)
        assert self._sample is not None  # noqa: S101 - set by the query
        known, live = self._sample, self.count()
        if known.memory_count == live:
            return known.vectors
        places = range(live)[sample_slice(live)]
        if places.step != known.step:
            self._send_pending()
            self._sample = None
            return self.sample()
        new = sorted(self._unsent)
        more = [self._pieces[new[place - known.memory_count]][:1] for place in places if place >= known.memory_count]
        return np.concatenate([known.vectors, *more])

    def cached_sample(self) -> Vectors | None:
        """Return the last known sample, or None if it is known to be outdated."""
        known = self._sample or self._client_state.sample
        if known is None or known.change != self._client_state.last_change[0]:
            return None
        return known.vectors

    def words(self, query: Query, limit: int, where: EngineFilter | None = None) -> Matches:
        terms = {term: weight for term, weight in resolve_terms(query).items() if weight > 0}
        if limit < 1 or not terms:
            return _top_matches(NO_NODES, np.zeros(0, np.float32), 0)
        found = self._run_query(
            self.word_query(terms, limit, where), FetchSpec(rows=True, counted_terms=[*terms]), terms=[*terms]
        )
        nodes = np.array([*(node for node, _ in found), *self._filter_unsent(where)], np.int64)
        scores = self.word_scores(terms, nodes)
        return _top_matches(nodes[scores > 0], scores[scores > 0], limit)

    def word_scores(self, query: Query, nodes: Nodes) -> Scores:
        terms = resolve_terms(query)
        scores, listed = np.zeros(len(nodes), np.float32), to_node_list(nodes)
        rarities = self.rarity(terms)
        known = [
            (-weight * rarities[term], term)
            for term, weight in terms.items()
            if weight > 0 and self._document_frequency(term)
        ]
        if not known or not len(nodes):
            return scores
        self._fetch_counts({term for _, term in known}, listed)
        # Add in the same order and precision as the local engine, by value and then by term, so that scores are equal.
        norms = self._get_lengths(nodes) + np.float32(EXTRA_LENGTH_TERMS / TERM_COUNT_STEP)
        norms *= np.float32(
            BM25_K1
            / TERM_COUNT_STEP
            / (EXTRA_LENGTH_TERMS / TERM_COUNT_STEP + self._total_length / max(self.count(), 1))
        )
        for worth, term in sorted(known):
            having = self._counts[term] | {node: has.get(term, 0) for node, has in self._unsent_terms.items()}
            counts = np.array([having.get(node, 0) for node in listed], np.float32)
            scores += counts / (norms + counts) * np.float32(-worth)
        return scores

    def lengths(self, nodes: Nodes) -> Scores:
        found: Scores = self._get_lengths(nodes) * np.float32(TERM_COUNT_STEP)
        return found

    def rarity(self, query: Query) -> dict[str, float]:
        terms = [*resolve_terms(query)]
        unknown = [term for term in terms if term not in self._frequencies]
        if unknown:
            self._fetch([], terms=unknown)
        live = self.count()
        having = {term: self._document_frequency(term) for term in terms}
        return {term: math.log1p((live - often + 0.5) / (often + 0.5)) for term, often in having.items()}

    def links(
        self,
        nodes: Nodes,
        direction: Direction = "both",
        types: Collection[LinkType] | None = None,
        *,
        words: Collection[str] | None = None,
    ) -> LinkTable:
        listed = to_node_list(nodes)
        kinds = None if types is None else {TYPE_NUMBERS[kind] for kind in types}
        known = [
            self._nodes_with_links,
            *([self._nodes_with_successors] if is_successor_query(direction, types) else ()),
        ]
        if direction != "both":
            known += [self._nodes_with_complete_links[end] for end in ENDS_BY_DIRECTION[direction]]
        missing = [node for node in dict.fromkeys(listed) if not any(node in some for some in known)]
        self._fetch_nodes(missing, FetchSpec(links=True))
        table = self._links.select(listed, ENDS_BY_DIRECTION[direction], words)
        if kinds is None:
            return table
        chosen = np.isin(table.types, [*kinds])
        return LinkTable(*(column[chosen] for column in table.columns))

    def links_of_many(self, nodes: Sequence[int] | Nodes, direction: Direction = "both") -> list[list[Link]]:
        listed, ends = to_node_list(nodes), ENDS_BY_DIRECTION[direction]
        missing = [node for node in listed if any(node not in self._nodes_with_complete_links[end] for end in ends)]
        self._fetch_nodes(missing, FetchSpec(complete_link_ends=ends))
        found = [filter(None, map(self._get_complete_link, self._links.find_ids([node], ends))) for node in listed]
        return [sorted(own, key=lambda link: (link.created_at, link.id)) for own in found]

    def find_links(self, link_ids: Sequence[str]) -> list[Link | None]:
        unknown = [link_id for link_id in dict.fromkeys(link_ids) if link_id not in self._complete_links]
        if unknown:
            self._fetch([], FetchSpec(link_ids=unknown))
        return [self._get_complete_link(link_id) for link_id in link_ids]

    def window(
        self,
        where: EngineFilter | None = None,
        *,
        newest_first: bool = True,
        after: Position | None = None,
        limit: int | None = None,
    ) -> Nodes:
        query = TimelineQuery(where, newest_first, limit, after)
        found = self._run_query(query, FetchSpec(rows=True))
        unsent = ((node, self._rows[node].created) for node in self._filter_unsent(where))
        more = [(node, created) for node, created in unsent if query.has_after(created, node)]
        if more:
            found = [*found, *more]
            found.sort(key=lambda one: (one[1], one[0]), reverse=newest_first)
        return np.array([node for node, _ in found[: None if limit is None else max(limit, 0)]], np.int64)

    def find_temporal_neighbours(self, nodes: Nodes, apart_ms: int) -> tuple[Nodes, Nodes]:
        if self._unsent:
            self._send_pending()
        listed = to_node_list(nodes)
        missing = [node for node in listed if (node, apart_ms) not in self._neighbours]
        self._fetch_nodes(missing, FetchSpec(max_neighbour_gap_ms=apart_ms))
        found = np.array([self._neighbours[node, apart_ms] for node in listed], np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def relationships(self) -> dict[str, int]:
        sql = "SELECT word, count(*) AS often FROM links WHERE namespace = $1 GROUP BY word"
        return {questions.unescape_text(row["word"]): row["often"] for row in self.fetch_rows(sql)}

    def scan(self, *, after: int = -1, limit: int | None = None) -> list[ScannedMemory]:
        nodes = [
            node
            for node, _ in self._run_query(OrderedQuery(after, limit), FetchSpec(rows=True, entries=True, pieces=True))
        ]
        nodes = [*nodes, *(node for node in self._unsent if node > after)][:limit]
        return [
            ScannedMemory(node, memory, self.vectors(node), tuple(links))
            for node, memory, links in zip(nodes, self.get(nodes), self.links_of_many(nodes, "out"), strict=True)
        ]

    def contents(self, digests: Sequence[str]) -> dict[str, str]:
        sql = "SELECT digest, text FROM texts WHERE namespace = $1 AND digest = ANY($2::text[])"
        found = {row["digest"]: row["text"] for row in self.fetch_rows(sql, [*digests])}
        return {digest: self._decode_content(digest, found.get(digest)) for digest in digests}

    def known_contents(self, digests: Sequence[str]) -> set[str]:
        unknown = [digest for digest in dict.fromkeys(digests) if digest not in self._stored_digests]
        if unknown:
            self._fetch([], FetchSpec(digests=unknown))
        return {digest for digest in digests if self._stored_digests[digest]}

    def users_of_content(self, digest: str) -> Nodes:
        sql = "SELECT node FROM text_uses WHERE namespace = $1 AND digest = $2 ORDER BY node"
        return np.array([row["node"] for row in self.fetch_rows(sql, digest)], np.int64)

    def notes(self, prefix: str = "") -> dict[str, str]:
        sql = "SELECT name, text FROM notes WHERE namespace = $1 AND starts_with(name, $2::text)"
        names = _decode_notes(self.fetch_rows(sql, questions.escape_text(prefix)))
        return {name: names[name] for name in sorted(names)}

    def note_names(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, last_first: bool = False
    ) -> list[str]:
        return self._read_names("name", "notes", prefix, after, limit, last_first=last_first)

    def record_paths(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, last_first: bool = False
    ) -> list[str]:
        after = after and f"{PATH_FILTER_PREFIX}{after}"
        found = self._read_names(
            "mention", "mentions", f"{PATH_FILTER_PREFIX}{prefix}", after, limit, last_first=last_first
        )
        return [name.removeprefix(PATH_FILTER_PREFIX) for name in found]

    def _read_names(
        self, column: str, table: str, prefix: str, after: str | None, limit: int | None, *, last_first: bool
    ) -> list[str]:
        # Search by a range of names, because an index does not support prefix conditions.
        sql, first = (
            f"SELECT {column} AS name FROM {table} WHERE namespace = $1 AND {column} >= $2",
            questions.escape_text(prefix),
        )
        bounds = [first]
        if first and first.isascii():
            sql, bounds = f"{sql} AND {column} < $3", [first, f"{first[:-1]}{chr(ord(first[-1]) + 1)}"]
        if limit is not None:
            order, sign = ("DESC", "<") if last_first else ("ASC", ">")
            if after is not None:
                bounds.append(questions.escape_text(after))
                sql += f" AND {column} {sign} ${len(bounds) + 1}"
            sql += f" ORDER BY {column} {order} LIMIT {limit}"
        names = (questions.unescape_text(row["name"]) for row in self.fetch_rows(sql, *bounds))
        return select_names((name for name in names if name.startswith(prefix)), after, limit, last_first)

    def notes_by_name(self, names: Sequence[str]) -> dict[str, str]:
        if not names:
            return {}
        sql = "SELECT name, text FROM notes WHERE namespace = $1 AND name = ANY($2::text[])"
        found = _decode_notes(self.fetch_rows(sql, [*map(questions.escape_text, names)]))
        return {name: found[name] for name in names if name in found}

    def nearest_ids(self, text: str, limit: int) -> list[str]:
        if limit <= 0:
            return []
        wanted = to_nfc(text[:MAX_ID_CHARS])
        head, *tail = wanted.rsplit("_", 2)
        pieces = [piece for piece in (*tail, head[: len(head) // 2]) if len(piece) > 2]  # noqa: PLR2004 - distinctive
        sql = (
            "SELECT id FROM memories WHERE namespace = $1 ORDER BY "
            "(SELECT count(*) FROM unnest($2::text[]) AS piece WHERE position(piece IN id) > 0) DESC, node DESC "
            f"LIMIT {MAX_ID_CANDIDATES}"
        )
        found = [
            questions.unescape_text(row["id"]) for row in self.fetch_rows(sql, [*map(questions.escape_text, pieces)])
        ]
        return difflib.get_close_matches(wanted, found, limit)

    def without_vectors(self, embedder: EmbedderRecord) -> list[str]:
        sql = (
            "SELECT m.id FROM memories m WHERE m.namespace = $1 AND NOT EXISTS (SELECT FROM pieces p "
            "WHERE p.namespace = $1 AND p.embedder = $2 AND p.node = m.node) ORDER BY m.node"
        )
        return [questions.unescape_text(row["id"]) for row in self.fetch_rows(sql, embedder_key(embedder))]

    # Queries.

    def _cache_sample(self, sample: CachedSample) -> None:
        self._client_state.cache_sample(sample)

    def _send_pending(self) -> None:
        """Send pending writes to the server. Does nothing in a reader, which has none."""

    def fetch_for_check(self, nodes: Sequence[int]) -> None:
        """Fetch all data that the consistency check needs for some memories."""
        self._fetch_nodes(nodes, FetchSpec(rows=True, entries=True, pieces=True))

    def fetch_rows(self, sql: str, *arguments: Any) -> list[Any]:
        """Run a separate statement and return its rows."""
        self._send_pending()
        self.head  # noqa: B018 - checks the embedder
        return self._connection.fetch(sql, self._namespace, *arguments)

    def fetch_row(self, node: int) -> PostgresMemoryRow:
        """Return the columns of a memory without its text."""
        return self._get_rows([node])[0]

    def _run_query(
        self, query: NodeQuery, fetch_spec: FetchSpec | None = None, *, terms: Sequence[str] = ()
    ) -> list[tuple[Any, float]]:
        if query not in self._answers:
            limit = getattr(query, "limit", 0)
            is_much = limit is None or limit > MAX_PREFETCHED_NODES
            keep = isinstance(query, OrderedQuery)
            self._fetch([query], fetch_spec if keep or not is_much else None, terms=terms)
        return self._answers[query]

    def _fetch(
        self,
        queries: Iterable[NodeQuery],
        fetch_spec: FetchSpec | None = None,
        *,
        terms: Sequence[str] = (),
        sample: bool = False,
    ) -> None:
        """Run queries, and fetch the data of the found nodes that *fetch_spec* requests, in one statement."""
        statement, is_first = Statement(self._namespace, self._client_state.memory_count), self._head is None
        if is_first:
            self._cached_change = self._client_state.last_change
            questions.add_head(statement, self._cached_change[0], self._index_name)
        new = [one for one in dict.fromkeys(queries) if one not in self._answers]
        if fetch_spec is None and any(isinstance(one, ByIdQuery | DuplicateQuery) for one in new):
            fetch_spec = FetchSpec(rows=True)
        unknown = [term for term in dict.fromkeys(terms) if term not in self._frequencies]
        if fetch_spec is not None and not (new or fetch_spec.nodes or fetch_spec.link_ids or fetch_spec.digests):
            fetch_spec = None
        if not (is_first or new or fetch_spec or unknown or sample):
            return
        self._add_queries(statement, new, fetch_spec)
        if unknown:
            questions.add_frequencies(statement, unknown)
        kept = self._client_state.sample if self._only_new_memories else None
        if sample:
            known = (-1, 0, 0, 0) if kept is None else (kept.change, kept.memory_count, kept.next_node, kept.step)
            questions.add_sample(statement, self._embedder_key, known)
        rows = [*map(ResultRow, self._connection.fetch(statement.select_sql, *statement.arguments))]
        self._cache_rows(rows, is_first=is_first)
        self._frequencies |= {term: 0 for term in unknown if term not in self._frequencies}
        found = self._cache_answers(rows, new)
        if fetch_spec is not None:
            self._cache_coverage(rows, fetch_spec, found | set(fetch_spec.nodes))
        if sample:
            self._sample = self._build_sample(rows, kept)
            self._cache_sample(self._sample)

    def _add_queries(self, statement: Statement, new: Sequence[NodeQuery], wanted: FetchSpec | None) -> None:
        found = []
        for tag, one in enumerate(new, 1):
            table = statement.add_table(f"q{tag}", one.select_sql(statement, f"q{tag}"))
            statement.add_packed_part(tag, f"FROM {table}", numbers=("node",), score="score")
            if not isinstance(one, CountQuery):
                found.append(table)
        if wanted is not None:
            questions.add_fetched_data(statement, found, wanted, self._embedder_key)

    def _cache_answers(self, rows: Iterable[Any], new: Sequence[NodeQuery]) -> set[int]:
        """Cache the answers of queries, and return the found nodes."""
        answers: list[list[tuple[Any, float]]] = [[] for _ in new]
        for row in rows:
            if row.tag > 0:
                answers[row.tag - 1] += zip(row.numbers, row.scores, strict=True)
        self._answers |= dict(zip(new, answers, strict=True))
        for one in new:
            if isinstance(one, ByIdQuery):
                for memory_id in one.ids:
                    self._node_of.setdefault(memory_id, None)
        return {node for some in answers for node, _ in some if node is not None}

    def _cache_coverage(self, rows: Sequence[ResultRow], wanted: FetchSpec, nodes: set[int]) -> None:
        linked = nodes
        if wanted.walk_distance != 0:
            far = _max_distance(wanted.walk_distance)
            self._walk_distances |= {(wanted.link_filter, node): far for node in nodes}
            reached = (row for row in rows if row.tag == questions.ROW_TAG)
            linked = nodes.union(*(row.numbers for row in rows if row.tag == questions.EXPANDED_TAG))
            nodes = nodes.union(*(split_columns(row.numbers, len(MEMORY_ROW_COLUMNS))[0] for row in reached))
        if wanted.links:
            self._nodes_with_links |= linked
        if len(wanted.complete_link_ends) == len(self._nodes_with_complete_links):
            self._nodes_with_links |= nodes
        for end in wanted.complete_link_ends:
            self._nodes_with_complete_links[end] |= nodes
        self._complete_links |= {link_id: None for link_id in wanted.link_ids if link_id not in self._complete_links}
        kept = {digest for row in rows if row.tag == questions.STORED_TEXT_TAG for digest in row.texts}
        self._stored_digests |= {digest: digest in kept for digest in wanted.digests}
        self._cache_counts(rows, wanted.counted_terms, nodes)
        if wanted.topic_frequencies:
            topics = {self._rows[node].topic for node in nodes if node in self._rows}
            for topic in topics:
                for term in extract_topic_terms(topic):
                    self._frequencies.setdefault(term, 0)

    def _fetch_nodes(self, nodes: Sequence[int], wanted: FetchSpec) -> None:
        if nodes:
            self._fetch([], attrs.evolve(wanted, nodes=[*dict.fromkeys(nodes)]))

    def _cache_rows(self, rows: Sequence[Any], *, is_first: bool) -> None:
        if is_first:
            self._head = PostgresNamespaceHead(half_precision=self._client_state.half_precision)
        takers: dict[int, Callable[[Any], object]] = {
            questions.HEAD_TAG: self._cache_head,
            questions.ROW_TAG: self._cache_memory_rows,
            questions.ENTRY_TAG: lambda row: self._entries.update({row.numbers[0]: row.data[0]}),
            questions.SUCCESSORS_TAG: lambda row: self._nodes_with_successors.update(row.numbers),
            questions.NEIGHBOURS_TAG: self._cache_neighbours,
            questions.FREQUENCY_TAG: lambda row: self._frequencies.update(zip(row.texts, row.numbers, strict=True)),
        }
        for row in rows:
            take = takers.get(row.tag)
            if take is not None:
                take(row)
        self._cache_chunks(row for row in rows if row.tag == questions.CHUNK_TAG)
        self._cache_links(rows)
        if is_first:
            self._check_embedder()
            last_seen, token_then = self._cached_change
            token, token_now = self._change_tokens
            self._client_state.record_change(
                self.head.change, token, last_seen=last_seen, is_history_replaced=token_then not in (None, token_now)
            )

    def _cache_head(self, row: Any) -> None:
        self._head = PostgresNamespaceHead.from_row(
            row, PostgresNamespaceHead(half_precision=self._client_state.half_precision)
        )
        self._client_state.memory_count = self._head.memory_count
        self._change_tokens = row.texts[1], row.texts[2]

    def _cache_links(self, rows: Iterable[Any]) -> None:
        found = [row for row in rows if row.tag in {questions.LINK_TAG, questions.LINKS_TAG}]
        if not found:
            return
        self._links.add_columns(LinkColumns.decode(found))
        for row in found:
            ids = split_columns(row.texts, 2)[0] if row.data else ()
            for link_id, entry in zip(map(questions.unescape_text, ids), row.data or (), strict=True):
                if not self._links.is_deleted(link_id):
                    self._complete_links.setdefault(link_id, entry)

    def _cache_neighbours(self, row: Any) -> None:
        nodes, gaps, before, after = split_columns(row.numbers, 4)
        self._neighbours |= zip(zip(nodes, gaps, strict=True), zip(before, after, strict=True), strict=True)

    def _check_embedder(self) -> None:
        stored = self.head.embedder
        if stored is not None and stored != self._embedder:
            raise embedder_mismatch(self._namespace, stored, self._embedder)

    def _cache_memory_rows(self, row: Any) -> None:
        nodes, memory_rows = decode_memory_rows(row)
        self._rows |= zip(nodes, memory_rows, strict=True)
        self._node_of |= {one.memory_id: node for one, node in zip(memory_rows, nodes, strict=True)}
        self._entries |= {node: entry for node, entry in zip(nodes, row.data, strict=True) if entry is not None}

    def _cache_chunks(self, rows: Iterable[Any]) -> None:
        (nodes, places), vectors = decode_vectors(rows, 2, self._embedder.dimensions)
        order = np.lexsort((places, nodes))
        found, first = np.unique(nodes[order], return_index=True)
        self._pieces |= zip(found.tolist(), np.split(vectors[order], first[1:]), strict=False)

    def _fetch_counts(self, terms: Collection[str], nodes: Sequence[int]) -> None:
        """Fetch the counts of terms in nodes, except cached ones."""
        stored = {node for node in nodes if node not in self._unsent}
        missing = {node for term in terms for node in stored.difference(self._counts.setdefault(term, {}))}
        self._fetch_nodes(sorted(missing), FetchSpec(counted_terms=sorted(terms)))

    def _cache_counts(self, rows: Iterable[Any], terms: Sequence[str], nodes: Iterable[int]) -> None:
        for term in terms:
            self._counts.setdefault(term, {}).update(dict.fromkeys(nodes, 0))
        for row in rows:
            if row.tag == questions.COUNTS_TAG:
                for node, place, count in zip(*split_columns(row.numbers, 3), strict=True):
                    self._counts[terms[place - 1]][node] = count

    def _get_rows(self, nodes: Sequence[int] | Nodes) -> list[PostgresMemoryRow]:
        wanted = to_node_list(nodes)
        missing = [node for node in wanted if node not in self._rows]
        self._fetch_nodes(missing, FetchSpec(rows=True))
        return [self._rows[node] for node in wanted]

    def _decode_memory(self, node: int) -> Memory:
        """Decode a memory whose JSON is in the cache."""
        if node not in self._memories:
            data = self._entries.get(node)
            if data is None:
                raise self._damaged_row_error(node, "the row is missing")
            try:
                memory = decode_memory(data)
            except (ValueError, RecursionError) as error:
                raise self._damaged_row_error(node, "it does not have the form of a memory") from error
            reason = find_invalid_field(memory, self._namespace)
            if reason is not None:
                raise self._damaged_row_error(node, reason)
            self._memories[node] = memory
        return self._memories[node]

    def _damaged_row_error(self, node: int, reason: str) -> StoreDamaged:
        row = f"{self._namespace}/{node}"
        return StoreDamaged(
            f"a memory cannot be read: the row {row}: {reason}",
            file=self._location,
            findings=(f"{row}: {reason}",),
            hint="admin.check() lists all damage; restore a backup",
        )

    def _get_complete_link(self, link_id: str) -> Link | None:
        """Return a complete link from the cache, or None if it does not exist."""
        stored = self._complete_links[link_id]
        if isinstance(stored, bytes):
            try:
                stored = self._complete_links[link_id] = _decode_link(stored)
            except (ValueError, RecursionError) as error:
                raise StoreDamaged(
                    "a link cannot be read", file=self._location, findings=(f"link {link_id}",), hint="restore a backup"
                ) from error
        return stored

    def _decode_content(self, digest: str, data: bytes | None) -> str:
        reason = "it is gone"
        if data is not None:
            text = data.decode("utf-8", "replace")
            if text_digest(text) == digest:
                return text
            reason = "its text has another hash"
        raise StoreDamaged(
            f"kept evidence cannot be read: {digest}: {reason}",
            file=self._location,
            findings=(f"{digest}: {reason}",),
            hint="admin.check() lists all damage; restore a backup, or save the memory again with its evidence",
        )

    @property
    def _total_length(self) -> int:
        """Total length of all texts, in tenths of a term."""
        return self.head.length + sum(self._rows[node].length for node in self._unsent)

    def _get_lengths(self, nodes: Nodes) -> Scores:
        return np.array([row.length for row in self._get_rows(nodes)], np.float32)

    def _document_frequency(self, term: str) -> int:
        return self._frequencies[term] + sum(term in terms for terms in self._unsent_terms.values())

    def _filter_unsent(self, where: EngineFilter | None) -> list[int]:
        """Return the memories that pass a filter and are not sent to the server yet."""
        return [node for node, memory in self._unsent.items() if where is None or where.matches(memory)]

    def nearest_query(self, vector: Vectors, limit: int, where: EngineFilter | None) -> NearestQuery:
        """Return the query object for `nearest`."""
        return NearestQuery(
            np.ascontiguousarray(vector, np.float32).tobytes(),
            limit,
            where,
            self._embedder_key,
            self._client_state.hnsw_index,
        )

    def measure_recall(self, query: Vectors, index: questions.HnswIndex) -> float:
        """Return the ratio of the vectors nearest to *query* that the index finds."""
        selected = f"SELECT -({questions.VECTOR_SQL} <#> $2::vector) AS score FROM pieces p WHERE p"
        # A generic plan uses the index only if the namespace and the embedder are literals.
        namespace, embedder = map(questions.quote_literal, (self._namespace, self._embedder_key))
        sql = (
            f"WITH nearest AS ({selected}.namespace = $1 AND p.embedder = $3 "
            f"ORDER BY score DESC LIMIT {RECALL_NEIGHBOURS}), "
            f"found AS ({selected}.namespace = {namespace} AND p.embedder = {embedder} "
            f"ORDER BY {index.order_by_sql('$2::vector')} LIMIT {RECALL_NEIGHBOURS}) "
            f"SELECT (SELECT count(*) FROM found WHERE score >= min(nearest.score) - {SCORE_TOLERANCE})::float8 "
            "/ count(*) AS recall FROM nearest"
        )
        found: float = self.fetch_rows(sql, query, self._embedder_key)[0]["recall"]
        return found

    def word_query(self, all_terms: Mapping[str, float], limit: int, where: EngineFilter | None) -> Words:
        """Return the query object for `words`."""
        terms = {term: weight for term, weight in all_terms.items() if weight > 0}
        more = tuple(sum(term in has for has in self._unsent_terms.values()) for term in terms)
        length = sum(self._rows[node].length for node in self._unsent)
        return Words(tuple(terms.items()), limit, where, more, len(self._unsent), length)

    def _remove_link(self, link_id: str, *, is_deleted: bool = False) -> None:
        self._complete_links[link_id] = None
        self._links.remove(link_id, is_deleted=is_deleted)

    def _build_sample(self, rows: Sequence[Any], cached: CachedSample | None) -> CachedSample:
        """
        Build the sample from an answer of the server.

        If memories were only added, the sample extends the cached one.
        """
        grows, *numbers = next((row.numbers for row in rows if row.tag == questions.SAMPLE_TAG), (0, 0, 0, 0, 1))
        sampled = (row for row in rows if row.tag == questions.SAMPLED_TAG)
        (nodes,), vectors = decode_vectors(sampled, 1, self._embedder.dimensions)
        vectors = vectors[nodes.argsort()]
        if grows and cached is not None:
            vectors = np.concatenate([cached.vectors, vectors]) if len(vectors) else cached.vectors
        vectors.flags.writeable = False
        change, live, next_node, step = numbers
        return CachedSample(change, live, next_node, step, vectors)


def _max_distance(walk_distance: int | None) -> float:
    return math.inf if walk_distance is None else walk_distance


def _top_matches(nodes: Nodes, scores: Scores, limit: int) -> Matches:
    """Return the nodes with the best scores. Equal scores are sorted newest first."""
    order = np.lexsort((-nodes, -scores))[:limit]
    return Matches(nodes[order], scores[order])


def _decode_notes(rows: Iterable[Any]) -> dict[str, str]:
    """Return the texts of the notes in rows, by name."""
    return {questions.unescape_text(row["name"]): questions.unescape_text(row["text"]) for row in rows}
