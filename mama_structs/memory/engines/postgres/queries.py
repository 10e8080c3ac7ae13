"""
Building blocks of SQL statements.

Several queries are combined into one statement. Each result row has a tag, the number of its query.
"""

# ruff: noqa: S608 - statements are built from constants; values are passed as arguments

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b, sha256
from typing import Any, Final, Protocol

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.types.codec import BM25_K1, EXTRA_LENGTH_TERMS, TERM_COUNT_STEP, ceil_milliseconds
from mama_structs.memory.types.engine import (
    MAX_DUPLICATES,
    NEVER_EXPIRES_MS,
    TYPE_NUMBERS,
    Direction,
    EmbedderRecord,
    EngineFilter,
    Position,
    Vectors,
    to_nfc,
)
from mama_structs.memory.types.model import ORIGINS, LinkType, to_milliseconds

EVOLUTION_NUMBER: Final = TYPE_NUMBERS[LinkType.EVOLUTION]

# Tags of results that belong to no query. These tags are not positive, because queries are numbered from 1.
HEAD_TAG: Final = 0
ROW_TAG: Final = -1
ENTRY_TAG: Final = -2
CHUNK_TAG: Final = -3
COUNTS_TAG: Final = -4
LINK_TAG: Final = -5
SUCCESSORS_TAG: Final = -6
NEIGHBOURS_TAG: Final = -7
FREQUENCY_TAG: Final = -9
SAMPLE_TAG: Final = -10
STORED_TEXT_TAG: Final = -11
LINKS_TAG: Final = -12
SAMPLED_TAG: Final = -13
EXPANDED_TAG: Final = -14
# Number of rows that are sent as one row of arrays, because decoding a row costs more than executing its query.
# A limit, because the server cannot build a value of more than 1 GB.
PACKED_ROWS: Final = 256
# Entries up to this size are fetched with the other columns, longer entries on demand.
MAX_INLINE_ENTRY_BYTES: Final = 2_000
# A vector is stored in the column `vector` or `half`, depending on the precision of the namespace.
VECTOR_SQL: Final = "coalesce(p.vector, p.half::vector)"
# Number columns of a memory: the node, followed by the columns of `PostgresMemoryRow`.
MEMORY_ROW_COLUMNS: Final = (
    "node",
    "created",
    "type",
    "scripts",
    "asking",
    "ends",
    "origin",
    "trust",
    "wording",
    "length",
)
LINK_COLUMNS: Final = ("source", "target", "type", "creator", "created")
VECTOR_BYTES_SQL: Final = f"vector_send({VECTOR_SQL})"
# If a filter selects at most this many memories, scanning all of them is faster than using the index.
MAX_EXACT_FILTERED_MEMORIES: Final = 4_096
# Maximum number of vectors to request from an index. A search that needs more is exact.
MAX_INDEX_CANDIDATES: Final = 1_000
# Number of vectors to request per memory if some memories have several vectors.
CANDIDATES_PER_MEMORY: Final = 4
# Minimum number of vectors to request from an index.
MIN_INDEX_CANDIDATES: Final = 100
# Maximum number of equal vectors in one index element: HNSW_HEAPTIDS in pgvector's source code.
MAX_EQUAL_VECTORS: Final = 10
# A walk does not follow further links once it has reached this many nodes: with a limited distance, the maximum number
# of results of a traversal, and without one, the maximum length of a chain that is fetched in one statement.
MAX_NEAR_NODES: Final = 1_000
MAX_CHAIN_NODES: Final = 5_000
# Columns of the result, see `ResultRow`.
RESULT_COLUMNS: Final = {
    "numbers": "bigint[]",
    "texts": "text[]",
    "data": "bytea[]",
    "packed_numbers": "bytea",
    "packed_scores": "bytea",
    "packed_texts": "text",
    "packed_sizes": "bytea",
}
ESCAPE_PATTERN: Final = re.compile(r"\\([0\\])")


def escape_text(text: str) -> str:
    """Return a text escaped for a text column, because such a column cannot contain NUL."""
    return text.replace("\\", "\\\\").replace("\0", "\\0") if "\0" in text or "\\" in text else text


def unescape_text(text: str) -> str:
    """Return the original of a text that `escape_text` escaped."""
    return ESCAPE_PATTERN.sub(lambda found: "\0" if found[1] == "0" else "\\", text) if "\\" in text else text


def encode_embedder(embedder: EmbedderRecord) -> str:
    """Return an embedder as JSON for a text column."""
    return msgspec.json.encode(embedder).decode()


def embedder_key(embedder: EmbedderRecord) -> str:
    """Return the key of an embedder in the table of vectors."""
    return blake2b(encode_embedder(embedder).encode(), digest_size=8).hexdigest()


def index_prefix(namespace: str) -> str:
    """Return the prefix of the names of a namespace's vector indexes."""
    return f"hnsw_{sha256(namespace.encode()).hexdigest()[:24]}"


def index_name(namespace: str, embedder: str) -> str:
    """Return the name of a namespace's vector index for the key of an embedder."""
    return f"{index_prefix(namespace)}_{embedder}"


def round_to_half(vectors: Vectors) -> Vectors:
    """Return vectors with the rounding errors of half precision, as they are read from the database."""
    return vectors.astype(np.float16).astype(np.float32)


@attrs.frozen(eq=False)
class VectorArgument:
    """A vector as a query argument. asyncpg would encode a NumPy array as a list of numbers."""

    array: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001 - NumPy's signature
        return self.array.astype(dtype or np.float32, copy=bool(copy))


def quote_literal(text: str) -> str:
    """Return a text as an SQL literal, independent of the setting `standard_conforming_strings`."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


class Statement:
    """
    Builder of one SQL statement with its arguments. ``$1`` is the namespace.

    *memory_count* is the approximate size of the namespace. A prepared statement keeps its plan, which must not remain
    that of a small table when the table grows. So the text differs for each fourfold size.
    """

    def __init__(self, namespace: str, memory_count: int = 0) -> None:
        self.namespace: str = namespace
        self._size = f" /* size {memory_count.bit_length() // 2} */"
        self.arguments: list[Any] = [namespace]
        self._tables: list[str] = []
        self._parts: list[str] = []

    def add_argument(self, value: Any, sql_type: str) -> str:
        """Add an argument, and return its placeholder with a type cast."""
        self.arguments.append(value)
        return f"${len(self.arguments)}::{sql_type}"

    def add_table(self, name: str, sql: str, *, materialized: bool = False) -> str:
        """Add a common table expression, MATERIALIZED if requested, and return its name."""
        self._tables.append(f"{name} AS {'MATERIALIZED ' if materialized else ''}({sql})")
        return name

    def add_part(self, tag: int, from_clause: str, **columns: str) -> None:
        """
        Add tagged rows to the result, as `ResultRow` describes them.

        *columns* are SQL expressions of arrays, and *from_clause* begins with FROM.
        """
        selected = ", ".join(
            f"({columns.get(name, 'NULL')})::{kind} AS {name}" for name, kind in RESULT_COLUMNS.items()
        )
        self._parts.append(f"SELECT {tag}::int AS tag, {selected} {from_clause}")

    def add_packed_part(
        self,
        tag: int,
        from_clause: str,
        *,
        numbers: Sequence[str] = (),
        texts: Sequence[str] = (),
        score: str | None = None,
        data: str | None = None,
        vector: str | None = None,
    ) -> None:
        """
        Add rows to the result in packs, in which the columns follow one another; see `ResultRow`.

        The arguments are SQL expressions of one row. An array of each value would take twice as long to make and to
        decode.
        """
        columns = {
            **{f"number_{at}": f"{one}::bigint" for at, one in enumerate(numbers)},
            **{f"text_{at}": one for at, one in enumerate(texts)},
            **{
                name: one
                for name, one in (("score", score and f"{score}::float8"), ("data", data), ("vector", vector))
                if one is not None
            },
        }
        packed = {
            "packed_numbers": [f"string_agg(int8send(number_{at}), ''::bytea)" for at in range(len(numbers))],
            "packed_texts": [f"coalesce(string_agg(text_{at}, ''), '')" for at in range(len(texts))],
            # The client splits texts in UTF-8, which is the encoding of each database that a session accepts.
            "packed_sizes": [
                f"string_agg(int4send(coalesce(octet_length(text_{at}), -1)), ''::bytea)" for at in range(len(texts))
            ],
            "packed_scores": ["string_agg(float8send(score), ''::bytea)"] if score is not None else [],
            "data": [
                *(["array_agg(data)"] if data is not None else []),
                *(["ARRAY[string_agg(vector, ''::bytea)]"] if vector is not None else []),
            ],
        }
        selected = ", ".join(f"{one} AS {name}" for name, one in columns.items())
        # Only values in bytes can exceed the maximum size of a value. Numbering rows takes longer than packing them.
        in_packs, rule = "", "HAVING count(*) > 0"
        if packed["data"]:
            in_packs, rule = f", (row_number() OVER () - 1) / {PACKED_ROWS} AS pack", "GROUP BY pack ORDER BY pack"
        self.add_part(
            tag,
            f"FROM (SELECT {selected}{in_packs} {from_clause}) packed {rule}",
            **{name: " || ".join(some) for name, some in packed.items() if some},
        )

    def add_values_table(self, name: str, rows: Sequence[Sequence[Any]], **kinds: str) -> str:
        """Add a table of the given rows, and return its name. *kinds* are the types of its columns."""
        columns = zip(zip(*rows, strict=True), kinds.values(), strict=True)
        given = ", ".join(self.add_argument([*column], f"{kind}[]") for column, kind in columns)
        return self.add_table(name, f"SELECT * FROM unnest({given}) AS t({', '.join(kinds)})")

    def add_insert(self, table: str, rows: Sequence[Sequence[Any]], *, key: Sequence[str] = (), **kinds: str) -> None:
        """Add an INSERT of rows, if there are any. With *key*, replace existing rows with the same key."""
        if not rows:
            return
        new, columns = self.add_values_table(f"new_{table}", rows, **kinds), ", ".join(kinds)
        changed = ", ".join(f"{name} = excluded.{name}" for name in kinds if name not in key)
        conflict = (
            f"ON CONFLICT (namespace, {', '.join(key)}) DO UPDATE SET {changed}" if key else "ON CONFLICT DO NOTHING"
        )
        self.add_table(
            f"put_{table}",
            f"INSERT INTO {table} (namespace, {columns}) SELECT $1, {columns} FROM {new} {conflict}",
        )

    @property
    def write_sql(self) -> str:
        """The whole statement, if its common table expressions only write."""
        return f"WITH {', '.join(self._tables)} SELECT 1 WHERE $1::text IS NOT NULL{self._size}"

    @property
    def select_sql(self) -> str:
        """The whole statement, which returns rows."""
        tables = f"WITH RECURSIVE {', '.join(self._tables)} " if self._tables else ""
        return tables + " UNION ALL ".join(f"({part})" for part in self._parts) + self._size


def rows_of_nodes(nodes: str, table: str, rule: str = "") -> str:
    """
    Return a FROM clause of the rows of *table* that belong to the nodes in another table.

    The array is looked up in one pass over the index. For a join, without statistics, the planner would scan the whole
    namespace.
    """
    alias = table[0]
    return f"{table} {alias} WHERE {alias}.namespace = $1 AND {alias}.node = ANY(ARRAY(SELECT node FROM {nodes})){rule}"


def filter_conditions(statement: Statement, where: EngineFilter | None, memory: str = "m") -> str:
    """
    Return the SQL conditions of a filter on memories, each beginning with AND.

    The result is an empty string if there are no conditions.
    """
    if where is None:
        return ""
    given, rules = statement.add_argument, []
    if where.types is not None:
        rules.append(f"{memory}.type = ANY({given([TYPE_NUMBERS[kind] for kind in where.types], 'smallint[]')})")
    if where.topic is not None:
        rules.append(f"{memory}.topic = {given(escape_text(to_nfc(where.topic)), 'text')}")
    if where.since is not None:
        rules.append(f"{memory}.created >= {given(ceil_milliseconds(where.since), 'bigint')}")
    if where.until is not None:
        rules.append(f"{memory}.created < {given(ceil_milliseconds(where.until), 'bigint')}")
    if where.valid_at is not None:
        rules.append(f"{memory}.ends > {given(to_milliseconds(where.valid_at), 'bigint')}")
    if where.origins is not None:
        rules.append(f"{memory}.origin = ANY({given([ORIGINS.index(one) for one in where.origins], 'smallint[]')})")
    if where.trust is not None:
        rules.append(f"{memory}.trust <= {given(ORIGINS.index(where.trust), 'smallint')}")
    rules += [
        f"EXISTS (SELECT FROM mentions n WHERE n.namespace = $1 AND n.node = {memory}.node "
        f"AND n.mention = {given(escape_text(mention), 'text')})"
        for mention in where.names
    ]
    return "".join(f" AND {rule}" for rule in rules)


def filter_join(statement: Statement, where: EngineFilter | None, node: str) -> tuple[str, str]:
    """
    Return the SQL join and the SQL conditions that apply a filter to rows with a node.

    Expired memories are excluded one by one, because there are few of them.
    """
    if where is None:
        return "", ""
    rules = filter_conditions(statement, attrs.evolve(where, valid_at=None))
    joined = f" JOIN memories m ON m.namespace = $1 AND m.node = {node}" if rules else ""
    return joined, rules + _unexpired_rule(statement, where, node)


def filter_subquery(statement: Statement, where: EngineFilter | None, node: str) -> tuple[str, str]:
    """
    Return a query of the nodes that pass a filter, or "" if all pass, and the SQL condition that excludes expired ones.

    Unlike a join, the query runs once, even if the planner has no statistics.
    """
    if where is None:
        return "", ""
    rules = filter_conditions(statement, attrs.evolve(where, valid_at=None))
    passing = f"SELECT m.node FROM memories m WHERE m.namespace = $1{rules}" if rules else ""
    return passing, _unexpired_rule(statement, where, node)


def _unexpired_rule(statement: Statement, where: EngineFilter, node: str) -> str:
    if where.valid_at is None:
        return ""
    moment = statement.add_argument(to_milliseconds(where.valid_at), "bigint")
    # A partial index supports the condition.
    ended = f"e.ends < {NEVER_EXPIRES_MS} AND e.ends <= {moment}"
    return f" AND NOT EXISTS (SELECT FROM memories e WHERE e.namespace = $1 AND e.node = {node} AND {ended})"


class NodeQuery(Protocol):
    """A query over all memories of a namespace. Its result is a list of nodes, each with a score to sort by."""

    def select_sql(self, statement: Statement, name: str) -> str:
        """Return the SELECT of nodes and scores. Names of auxiliary tables begin with *name*."""


def uses_names(query: NodeQuery, names: Collection[str]) -> bool:
    """Return True if a query filters by any of these names, see `filter_names`."""
    where: EngineFilter | None = getattr(query, "where", None)
    return bool(names) and where is not None and any(name in names for name in where.names)


@attrs.frozen
class TimelineQuery:
    """Query for memories in order of creation."""

    where: EngineFilter | None
    newest_first: bool
    limit: int | None
    after: Position | None = None

    def select_sql(self, statement: Statement, _name: str) -> str:
        """Return the SELECT of nodes and creation times."""
        order, sign = ("DESC", "<") if self.newest_first else ("ASC", ">")
        limit = "" if self.limit is None else f" LIMIT {statement.add_argument(max(self.limit, 0), 'bigint')}"
        after = ""
        if self.after is not None:
            # Compare rows, so that PostgreSQL begins at this position in the index.
            created, node = (statement.add_argument(_clamp_to_bigint(one), "bigint") for one in self.after)
            after = f" AND (m.created, m.node) {sign} ({created}, {node})"
        return (
            f"SELECT m.node, m.created::float8 AS score FROM memories m WHERE m.namespace = $1"
            f"{filter_conditions(statement, self.where)}{after} ORDER BY m.created {order}, m.node {order}{limit}"
        )

    def has_after(self, created_ms: int, node: int) -> bool:
        """Return True if a node is after the position of this query."""
        place = created_ms, node
        return self.after is None or (place < self.after if self.newest_first else place > self.after)


def _clamp_to_bigint(number: int) -> int:
    return min(max(number, -(2**63)), 2**63 - 1)


@attrs.frozen
class CountQuery:
    """Query for the number of memories that pass a filter."""

    where: EngineFilter

    def select_sql(self, statement: Statement, _name: str) -> str:
        """Return the SELECT of the count."""
        return (
            "SELECT -1 AS node, count(*)::float8 AS score FROM memories m WHERE m.namespace = $1"
            f"{filter_conditions(statement, self.where)}"
        )


@attrs.frozen
class DuplicateQuery:
    """Query for duplicates: the first and the last memories with each duplicate fingerprint."""

    wordings: tuple[int, ...]

    def select_sql(self, statement: Statement, _name: str) -> str:
        """Return the SELECT of nodes. The rows of these nodes contain their duplicate fingerprints."""
        wanted = statement.add_argument(sorted(set(self.wordings) - {0}), "bigint[]")
        some = (
            "(SELECT node FROM memories WHERE namespace = $1 AND wording = said "
            f"ORDER BY node {{}} LIMIT {MAX_DUPLICATES})"
        )
        return (
            f"SELECT m.node, 0::float8 AS score FROM unnest({wanted}) AS said "
            f"CROSS JOIN LATERAL ({some.format('ASC')} UNION {some.format('DESC')}) AS m"
        )


@attrs.frozen
class ByIdQuery:
    """Query for memories by id."""

    ids: tuple[str, ...]

    def select_sql(self, statement: Statement, _name: str) -> str:
        """Return the SELECT of nodes."""
        wanted = statement.add_argument([escape_text(one) for one in self.ids], "text[]")
        return f"SELECT m.node, 0::float8 AS score FROM memories m WHERE m.namespace = $1 AND m.id = ANY({wanted})"


@attrs.frozen
class HnswIndex:
    """
    A vector index: its column, vector type, dimensions, and the number of candidates of a search.

    *has_several_vectors* is True if some memories have several vectors.
    """

    column: str
    vector_type: str
    dimensions: int
    search_width: int
    has_several_vectors: bool

    def order_by_sql(self, vector: str) -> str:
        """Return the ORDER BY expression over ``pieces p`` with which PostgreSQL uses this index."""
        return f"p.{self.column}::{self.vector_type}({self.dimensions}) <#> {vector}::{self.vector_type}"


@attrs.frozen
class NearestQuery:
    """
    Query for the memories whose vectors are nearest to a vector.

    Uses an index if there is one.
    """

    vector: bytes
    limit: int
    where: EngineFilter | None
    embedder: str
    index: HnswIndex | None = None

    @property
    def array(self) -> Vectors:
        """The searched vector as an array."""
        return np.frombuffer(self.vector, np.float32)

    def select_sql(self, statement: Statement, name: str) -> str:
        """Return the SELECT of nodes and cosines."""
        vector = statement.add_argument(self.array, "vector")
        limit = statement.add_argument(max(self.limit, 0), "bigint")
        embedder = statement.add_argument(self.embedder, "text")
        passing, rules = filter_subquery(statement, self.where, "p.node")
        rules += f" AND p.node = ANY(ARRAY({passing}))" if passing else ""
        every = (
            f"SELECT p.node, max(-({VECTOR_SQL} <#> {vector}))::float8 AS score "
            f"FROM pieces p WHERE p.namespace = $1 AND p.embedder = {embedder}{rules}"
        )
        found = f"{every} GROUP BY p.node"
        looked_at = max(
            self.limit * (CANDIDATES_PER_MEMORY if self.index is not None and self.index.has_several_vectors else 1),
            MIN_INDEX_CANDIDATES,
        )
        if self.index is not None and looked_at <= MAX_INDEX_CANDIDATES and self.array.any():
            is_many = "true"
            found = ""
            if passing:
                few = statement.add_table(f"{name}_few", f"{passing} LIMIT {MAX_EXACT_FILTERED_MEMORIES + 1}")
                is_many = f"(SELECT count(*) FROM {few}) > {MAX_EXACT_FILTERED_MEMORIES}"
                found = f"{every} AND NOT {is_many} AND p.node = ANY(ARRAY(SELECT node FROM {few})) GROUP BY p.node"
                found += " UNION ALL "
            # Literals, because a generic plan with arguments cannot use the index, which serves one namespace only.
            joined, rules = filter_join(statement, self.where, "p.node")
            names = map(quote_literal, (statement.namespace, self.embedder))
            indexed = "p.namespace = {} AND p.embedder = {}".format(*names)
            near = statement.add_table(
                f"{name}_near",
                f"SELECT p.node, -({VECTOR_SQL} <#> {vector})::float8 AS score "
                f"FROM pieces p{joined} WHERE {indexed}{rules} AND {is_many} "
                f"ORDER BY {self.index.order_by_sql(vector)} LIMIT {looked_at}",
            )
            # Search exactly if the index finds too few memories that pass the filter, or many equal vectors.
            # In the index, equal vectors are linked only to each other, so they hide other results.
            is_enough = (
                f"(SELECT count(DISTINCT node) FROM {near}) >= {limit} "
                f"AND NOT EXISTS (SELECT FROM {near} GROUP BY score HAVING count(*) > {MAX_EQUAL_VECTORS})"
            )
            found += (
                f"SELECT node, max(score) AS score FROM {near} WHERE {is_enough} GROUP BY node "
                f"UNION ALL {every} AND {is_many} AND NOT ({is_enough}) GROUP BY p.node"
            )
        return f"SELECT node, score FROM ({found}) found ORDER BY score DESC, node DESC LIMIT {limit}"


@attrs.frozen
class Words:
    """
    Full-text query for the memories with the highest BM25 scores.

    Pending memories, which are not on the server yet, count in the statistics too. *pending_count* is their number,
    *pending_length* their total length, and *pending_frequencies* the number of them that contain each term.
    """

    terms: tuple[tuple[str, float], ...]
    limit: int
    where: EngineFilter | None
    pending_frequencies: tuple[int, ...]
    pending_count: int
    pending_length: int

    def select_sql(self, statement: Statement, name: str) -> str:
        """Return the SELECT of nodes and BM25 scores. The scores are accurate to about 15 digits."""
        given = statement.add_argument
        # Name the types, because PostgreSQL cannot infer the type of an empty list.
        wanted = (
            f"SELECT * FROM unnest({given([term for term, _ in self.terms], 'text[]')}, "
            f"{given([weight for _, weight in self.terms], 'float8[]')}, "
            f"{given(list(self.pending_frequencies), 'bigint[]')}) AS a(term, weight, more)"
        )
        asked = statement.add_table(f"{name}_asked", wanted)
        found = statement.add_table(
            f"{name}_found",
            f"SELECT a.term, a.weight, a.more, x.node, x.count, x.length FROM {asked} a "
            "JOIN terms x ON x.namespace = $1 AND x.term = a.term",
        )
        extra_length = EXTRA_LENGTH_TERMS / TERM_COUNT_STEP
        worth = statement.add_table(
            f"{name}_worth",
            "SELECT f.term, f.weight * ln(1 + (h.live - f.often + 0.5) / (f.often + 0.5)) AS worth, "
            f"{BM25_K1 / TERM_COUNT_STEP}::float8 / ({extra_length} + h.length / greatest(h.live, 1)) AS norm FROM "
            f"(SELECT term, weight, count(*) + more AS often FROM {found} GROUP BY term, weight, more) f, "
            "(SELECT (SELECT sum(one) FROM unnest(types) one)::float8 "
            f"+ {given(self.pending_count, 'bigint')} AS live, "
            f"length::float8 + {given(self.pending_length, 'bigint')} AS length "
            "FROM memory_heads WHERE namespace = $1) h",
            # Materialize, because a planner without statistics would count the terms again for each row.
            materialized=True,
        )
        passing, rules = filter_subquery(statement, self.where, "f.node")
        # Without IS TRUE, the planner would turn the condition into a join, which may run once for each row.
        rules += f" AND (f.node IN ({passing})) IS TRUE" if passing else ""
        score = f"sum(w.worth * f.count / (f.count + w.norm * ({extra_length} + f.length)))"
        return (
            f"SELECT f.node, {score} AS score "
            f"FROM {found} f JOIN {worth} w ON w.term = f.term WHERE f.count > 0{rules} "
            f"GROUP BY f.node ORDER BY round({score}::numeric, 7) DESC, f.node DESC "
            f"LIMIT {given(max(self.limit, 0), 'bigint')}"
        )


@attrs.frozen
class OrderedQuery:
    """Query for the memories after a node, in save order."""

    node: int
    limit: int | None

    def select_sql(self, statement: Statement, _name: str) -> str:
        """Return the SELECT of nodes."""
        limit = "" if self.limit is None else f" LIMIT {statement.add_argument(max(self.limit, 0), 'bigint')}"
        after = statement.add_argument(self.node, "bigint")
        return (
            "SELECT m.node, 0::float8 AS score FROM memories m "
            f"WHERE m.namespace = $1 AND m.node > {after} ORDER BY m.node{limit}"
        )


LinkFilter = tuple[Direction, frozenset[LinkType] | None]
"""The links that a walk follows: direction and types, None for all types."""
ENDS_BY_DIRECTION: Final[Mapping[Direction, tuple[str, ...]]] = {
    "out": ("source",),
    "in": ("target",),
    "both": ("source", "target"),
}
"""The columns of links that contain the start node, by direction."""


@attrs.frozen(kw_only=True)
class FetchSpec:
    """Data to fetch for the nodes that the queries find, and for the additional *nodes*."""

    nodes: Sequence[int] = ()
    rows: bool = False
    entries: bool = False
    pieces: bool = False
    links: bool = False
    # "source" fetches the complete links from the nodes, "target" those to the nodes.
    complete_link_ends: Collection[str] = ()
    successors: bool = False  # Fetch all versions that supersede the nodes, directly or indirectly.
    walk_distance: int | None = 0  # Number of links to walk from the nodes, None for no limit. See `MAX_NEAR_NODES`.
    link_filter: LinkFilter = ("both", None)
    link_ids: Sequence[str] = ()  # Ids of links to fetch completely.
    digests: Sequence[str] = ()  # Hashes of texts to check for existence.
    # Fetch the memories created directly before and after each node, at most this many milliseconds apart.
    max_neighbour_gap_ms: int | None = None
    topic_frequencies: bool = False  # Fetch the document frequencies of the words in the nodes' topics.
    counted_terms: Sequence[str] = ()  # Terms to count in these nodes.


def add_fetched_data(statement: Statement, found: Sequence[str], fetch_spec: FetchSpec, embedder: str) -> None:
    """Add the data that *fetch_spec* requests for the nodes in the *found* tables to a statement."""
    nodes = statement.add_argument(list(fetch_spec.nodes), "bigint[]")
    own = " UNION ".join([f"SELECT node FROM {one}" for one in found] + [f"SELECT unnest({nodes}) AS node"])
    all_nodes = statement.add_table("found", own)
    if fetch_spec.walk_distance != 0:
        all_nodes = _add_walk(statement, fetch_spec)
    _add_links(statement, fetch_spec, all_nodes)
    if fetch_spec.max_neighbour_gap_ms is not None:
        gap = statement.add_argument(fetch_spec.max_neighbour_gap_ms, "bigint")
        statement.add_table("neighbours", NEIGHBOURS_SQL.format(gap=gap))
        statement.add_packed_part(NEIGHBOURS_TAG, "FROM neighbours", numbers=("node", gap, "before", "after"))
    if fetch_spec.successors:
        statement.add_table(
            "followed",
            f"SELECT node FROM {all_nodes} UNION SELECT l.source FROM followed f, LATERAL (SELECT source FROM links "
            f"WHERE namespace = $1 AND target = f.node AND type = {EVOLUTION_NUMBER} OFFSET 0) l",
        )
        statement.add_part(SUCCESSORS_TAG, "", numbers="ARRAY(SELECT node FROM followed)")
    if fetch_spec.rows:
        _add_rows(statement, "followed" if fetch_spec.successors else all_nodes)
    if fetch_spec.entries:
        statement.add_part(
            ENTRY_TAG,
            f"FROM {rows_of_nodes(all_nodes, 'memories')}",
            numbers="ARRAY[m.node]",
            data="ARRAY[m.entry]",
        )
    if fetch_spec.pieces:
        own = f" AND embedder = {statement.add_argument(embedder, 'text')}"
        statement.add_packed_part(
            CHUNK_TAG,
            f"FROM {rows_of_nodes(all_nodes, 'pieces', own)}",
            numbers=("p.node", "p.place"),
            vector=VECTOR_BYTES_SQL,
        )
    if fetch_spec.counted_terms:
        terms = statement.add_argument(list(fetch_spec.counted_terms), "text[]")
        statement.add_packed_part(
            COUNTS_TAG,
            f"FROM terms t WHERE t.namespace = $1 AND t.term = ANY({terms}) "
            f"AND t.node = ANY(ARRAY(SELECT node FROM {all_nodes}))",
            numbers=("t.node", f"array_position({terms}, t.term)", "t.count"),
        )
    if fetch_spec.topic_frequencies:
        _add_frequencies_of(statement, f"SELECT unnest(m.topic_terms) FROM {rows_of_nodes(all_nodes, 'memories')}")
    if fetch_spec.digests:
        digests = statement.add_argument(list(fetch_spec.digests), "text[]")
        statement.add_packed_part(
            STORED_TEXT_TAG,
            f"FROM texts t WHERE t.namespace = $1 AND t.digest = ANY({digests})",
            texts=("t.digest",),
        )


def _add_walk(statement: Statement, fetch_spec: FetchSpec) -> str:
    """
    Add a table of all nodes that a walk along links reaches, and return its name.

    *is_expanded* is true for the nodes whose links the walk has followed.
    """
    direction, types = fetch_spec.link_filter
    rule = "true"
    if types is not None:
        rule = f"type = ANY({statement.add_argument([TYPE_NUMBERS[kind] for kind in types], 'smallint[]')})"
    others = {"source": "target", "target": "source"}
    rules = {end: rule if end in ENDS_BY_DIRECTION[direction] else "false" for end in others}
    ways = " UNION ALL ".join(
        f"SELECT ctid AS link, {other} AS node, {rules[end]} AS is_followed FROM links "
        f"WHERE namespace = $1 AND {end} = ANY(w.level)"
        for end, other in others.items()
    )
    is_expanded = f"w.total < {MAX_CHAIN_NODES}"
    if fetch_spec.walk_distance is not None:
        distance = statement.add_argument(fetch_spec.walk_distance, "int")
        is_expanded = f"w.total < {MAX_NEAR_NODES} AND w.depth < {distance}"
    # Each step visits a whole level, so that no node is visited twice, and notes the places of its links in both
    # directions, so that no link is looked up twice.
    statement.add_table(
        "walked",
        "SELECT 0 AS depth, 0 AS total, f.nodes AS level, f.nodes AS visited, NULL::tid[] AS links "
        "FROM (SELECT ARRAY(SELECT node FROM found) AS nodes) f UNION ALL "
        "SELECT w.depth + 1, w.total + cardinality(n.level), n.level, w.visited || n.level, n.links FROM walked w, "
        f"LATERAL (WITH seen AS MATERIALIZED ({ways}) SELECT ARRAY(SELECT link FROM seen) AS links, "
        "ARRAY(SELECT node FROM seen WHERE is_followed EXCEPT SELECT unnest(w.visited)) AS level) n "
        f"WHERE {is_expanded} AND cardinality(w.level) > 0",
    )
    return statement.add_table("around", f"SELECT unnest(w.level) AS node, {is_expanded} AS is_expanded FROM walked w")


# Both bounds of the time are needed, because PostgreSQL reads all rows of an index page that pass the condition.
NEIGHBOURS_SQL: Final = f"""
    SELECT m.node, coalesce(b.node, -1) AS before, coalesce(a.node, -1) AS after
    FROM (SELECT * FROM {rows_of_nodes("found", "memories")}) m
    LEFT JOIN LATERAL (SELECT o.node FROM memories o WHERE o.namespace = $1
                       AND o.created >= m.created - {{gap}} AND (o.created, o.node) < (m.created, m.node)
                       ORDER BY o.created DESC, o.node DESC LIMIT 1) b ON true
    LEFT JOIN LATERAL (SELECT o.node FROM memories o WHERE o.namespace = $1
                       AND o.created <= m.created + {{gap}} AND (o.created, o.node) > (m.created, m.node)
                       ORDER BY o.created, o.node LIMIT 1) a ON true
"""


def _add_rows(statement: Statement, table: str) -> None:
    found = table
    if table == "around":
        # Leave out the last nodes if there are many. The plan does not need all of them.
        found = f"around WHERE is_expanded OR (SELECT count(*) FROM around) <= {MAX_NEAR_NODES}"
        statement.add_part(EXPANDED_TAG, "", numbers="ARRAY(SELECT node FROM around WHERE is_expanded)")
    statement.add_packed_part(
        ROW_TAG,
        f"FROM {rows_of_nodes(found, 'memories')}",
        numbers=[f"m.{name}" for name in MEMORY_ROW_COLUMNS],
        texts=("m.id", "m.topic"),
        data=f"CASE WHEN octet_length(m.entry) <= {MAX_INLINE_ENTRY_BYTES} THEN m.entry END",
    )


def _add_links(statement: Statement, fetch_spec: FetchSpec, table: str) -> None:
    """Add the links of the nodes in a table, and the links by id, that *fetch_spec* requests."""
    near = f"SELECT node FROM {table}"
    rules: list[tuple[str, str, str]] = []
    if fetch_spec.links:
        is_walk = fetch_spec.walk_distance != 0
        ends = ENDS_BY_DIRECTION["both"]
        rules = [("ctid", "SELECT unnest(links) FROM walked", "")] if is_walk else [(end, near, "") for end in ends]
    if fetch_spec.successors:
        rules.append(("target", "SELECT node FROM followed", f"l.type = {EVOLUTION_NUMBER} AND "))
    if rules:
        _add_matching_links(statement, rules)
    if fetch_spec.complete_link_ends:
        _add_matching_links(statement, [(end, near, "") for end in fetch_spec.complete_link_ends], complete=True)
    if fetch_spec.link_ids:
        ids = statement.add_argument([*map(escape_text, fetch_spec.link_ids)], "text[]")
        _add_matching_links(statement, [("id", f"SELECT unnest({ids})", "")], complete=True)


def _add_matching_links(statement: Statement, rules: Iterable[tuple[str, str, str]], *, complete: bool = False) -> None:
    """
    Add the links that match any of several rules.

    Each rule is a column of links, a subquery of its values, and a further condition.
    """
    # One query per rule, because PostgreSQL would not use the indexes for OR or for a join.
    # Excluding the links of earlier rules takes less time than UNION, which sorts all links.
    queries, earlier = [], ""
    for column, values, condition in rules:
        queries.append(
            f"SELECT l.* FROM links l WHERE l.namespace = $1 AND {condition}l.{column} = ANY(ARRAY({values})){earlier}"
        )
        earlier += f" AND l.{column} NOT IN ({values})"
    statement.add_packed_part(
        LINK_TAG if complete else LINKS_TAG,
        f"FROM ({' UNION ALL '.join(queries)}) l",
        numbers=[f"l.{name}" for name in LINK_COLUMNS],
        texts=("l.id", "l.word"),
        score="l.confidence",
        data="l.entry" if complete else None,
    )


def add_head(statement: Statement, since: int, index: str) -> None:
    """
    Add the state of a namespace to a statement.

    The state contains the tokens of the change *since* and of the last change.

    *index* is the name of the vector index. Its state is 0 while it is incomplete.
    """
    mark = "(SELECT c.token::text FROM changes c WHERE c.namespace = $1 AND c.change = {})"
    usable = "(SELECT i.indisvalid::int FROM pg_index i WHERE i.indexrelid = to_regclass({}))"
    statement.add_part(
        HEAD_TAG,
        "FROM namespaces n LEFT JOIN memory_heads h ON h.namespace = n.namespace WHERE n.namespace = $1",
        numbers="ARRAY[n.change, h.next_node, h.length, h.links, h.pieces, h.maintained_at, h.analysis, h.half::int, "
        f"{usable.format(statement.add_argument(index, 'text'))}] || h.types",
        texts=f"ARRAY[h.embedder, {mark.format('n.change')}, {mark.format(statement.add_argument(since, 'bigint'))}]",
    )


def add_frequencies(statement: Statement, terms: Iterable[str]) -> None:
    """Add the document frequencies of *terms* to a statement."""
    _add_frequencies_of(statement, f"SELECT unnest({statement.add_argument(list(terms), 'text[]')})")


def _add_frequencies_of(statement: Statement, terms: str) -> None:
    statement.add_packed_part(
        FREQUENCY_TAG,
        "FROM (SELECT x.term, count(*) AS often FROM terms x WHERE x.namespace = $1 "
        f"AND x.term = ANY(ARRAY({terms})) GROUP BY x.term) x",
        numbers=("often",),
        texts=("term",),
    )


def add_sample(statement: Statement, embedder: str, known: Sequence[int]) -> None:
    """
    Add the data for `Reader.sample` that is not in the cached sample *known*.

    *known* contains its change number, number of memories, next node and sampling step.
    """
    given, (change, live, next_node, step) = statement.add_argument, known
    since, steps = given(change, "bigint"), given(step, "bigint")
    table = statement.add_table(
        "sampling",
        "SELECT coalesce(n.change, 0) AS change, l.live, h.next_node, s.step, "
        f"s.step = {steps} AND h.last_modifying_change <= {since} AND coalesce(n.change, 0) >= {since} AS grows "
        "FROM memory_heads h LEFT JOIN namespaces n ON n.namespace = h.namespace, "
        "LATERAL (SELECT sum(one)::bigint AS live FROM unnest(h.types) one) l, "
        # Same rule as `sample_slice`: the step is a power of two, so that the sample has 512 to 1,023 memories.
        "LATERAL (SELECT 1::bigint << greatest(length(ltrim(l.live::bit(40)::text, '0')) - 10, 0) AS step) s "
        "WHERE h.namespace = $1",
    )
    statement.add_part(SAMPLE_TAG, f"FROM {table}", numbers="ARRAY[grows::int, change, live, next_node, step]")
    statement.add_packed_part(
        SAMPLED_TAG,
        f"FROM (SELECT m.node, s.step, row_number() OVER (ORDER BY m.node) "
        f"+ CASE WHEN s.grows THEN {given(live, 'bigint')} ELSE 0 END AS place FROM memories m, {table} s "
        f"WHERE m.namespace = $1 AND m.node >= CASE WHEN s.grows THEN {given(next_node, 'bigint')} ELSE 0 END) q "
        # Look vectors up by key. Otherwise, without statistics, the planner would read all vectors for each one.
        f", LATERAL (SELECT * FROM pieces WHERE namespace = $1 AND embedder = {given(embedder, 'text')} "
        "AND node = q.node AND place = 0 OFFSET 0) p WHERE q.place % q.step = 0",
        numbers=("q.node",),
        vector=VECTOR_BYTES_SQL,
    )
