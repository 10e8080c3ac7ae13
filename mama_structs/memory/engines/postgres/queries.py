"""What a plan asks a server: questions that are put together into one statement, and told apart in its answer."""

# ruff: noqa: S608 - what is put into a statement is written here; what others said is given beside it

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b, sha256
from typing import Any, Final, Protocol

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.types.codec import K1, SPARE, UNIT, rounded_up
from mama_structs.memory.types.engine import ALIKE, NEVER, NUMBERS, Direction, EmbedderRecord, Filter, Vectors, nfc
from mama_structs.memory.types.model import ORIGINS, LinkType, milliseconds

EVOLUTION: Final = NUMBERS[LinkType.EVOLUTION]

# The tags of what is no answer to a question: those are numbered from 1 on.
HEAD: Final = 0
ROW: Final = -1
ENTRY: Final = -2
PIECE: Final = -3
COUNTS: Final = -4
LINK: Final = -5
FOLLOWED: Final = -6
BESIDE: Final = -7
TOUCHED: Final = -8
FREQUENCY: Final = -9
SAMPLE: Final = -10
KEPT: Final = -11
LINKS: Final = -12
# Memories whose JSON is no longer come with the other columns; what is longer is asked for when it is read.
_SHORT_ENTRY: Final = 2_000
# A vector is in one of two columns, by how many bytes the namespace keeps of each number.
VECTOR: Final = "coalesce(p.vector, p.half::vector)"
# Of more memories that a filter lets through an index finds the nearest sooner than comparing them all does.
_FEW: Final = 4_096
# More than so many vectors are not asked of an index.
_MOST: Final = 1_000
# Where memories have several vectors, so many are looked at for one memory.
_SEVERAL: Final = 4
# An index is always asked for so many.
_LOOKED_AT: Final = 100
# An element of an index of pgvector holds so many equal vectors: HNSW_HEAPTIDS in its sources.
_EQUAL: Final = 10
# A term's place and its count are sent as one number.
COUNT_BASE: Final = 256
# A walk along links looks ahead at no more, counted each time it comes by.
_MOST_AROUND: Final = 5_000
_ESCAPED: Final = re.compile(r"\\([0\\])")


def stored(text: str) -> str:
    """Return a text as a column can hold it, which knows no NUL."""
    return text.replace("\\", "\\\\").replace("\0", "\\0") if "\0" in text or "\\" in text else text


def read(text: str) -> str:
    """Return the text of which `stored` made a column's."""
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else "\\", text) if "\\" in text else text


def written(embedder: EmbedderRecord) -> str:
    """Return an embedder as a column holds it."""
    return msgspec.json.encode(embedder).decode()


def key_of(embedder: EmbedderRecord) -> str:
    """Return what stands for an embedder beside its vectors."""
    return blake2b(written(embedder).encode(), digest_size=8).hexdigest()


def index_prefix(namespace: str) -> str:
    """Return how the names of a namespace's indexes of vectors begin."""
    return f"hnsw_{sha256(namespace.encode()).hexdigest()[:24]}"


def index_name(namespace: str, embedder: str) -> str:
    """Return the name of the index of a namespace's vectors by one embedder, of which the key is given."""
    return f"{index_prefix(namespace)}_{embedder}"


def halves(vectors: Vectors) -> Vectors:
    """Return vectors as they are after they were kept as half as many bytes."""
    return vectors.astype(np.float16).astype(np.float32)


@attrs.frozen(eq=False)
class SentVector:
    """A vector as an argument; an array would be taken for a list of numbers."""

    array: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001 - NumPy's own
        return self.array.astype(dtype or np.float32, copy=bool(copy))


class Statement:
    """One statement with its arguments, and the parts that it is made of; ``$1`` is the namespace."""

    def __init__(self, namespace: str) -> None:
        self.arguments: list[Any] = [namespace]
        self._tables: list[str] = []
        self._parts: list[str] = []

    def given(self, value: Any, kind: str) -> str:
        """Return what stands for an argument of a type."""
        self.arguments.append(value)
        return f"${len(self.arguments)}::{kind}"

    def table(self, name: str, sql: str, *, once: bool = False) -> str:
        """Let a part's rows have a name for other parts, and return it; *once* has them found once in any plan."""
        self._tables.append(f"{name} AS {'MATERIALIZED ' if once else ''}({sql})")
        return name

    def part(self, tag: int, rest: str, **columns: str) -> None:
        """Add rows to the answer: *columns* of what follows FROM in *rest*."""
        kinds = {
            "node": "bigint",
            "score": "float8",
            "numbers": "bigint[]",
            "texts": "text[]",
            "vector": "vector",
            "data": "bytea",
        }
        selected = ", ".join(f"({columns.get(name, 'NULL')})::{kind} AS {name}" for name, kind in kinds.items())
        self._parts.append(f"SELECT {tag}::int AS tag, {selected} {rest}")

    def unnested(self, name: str, rows: Sequence[Sequence[Any]], **kinds: str) -> str:
        """Let rows that are given be a table, whose columns have these types, and return its name."""
        columns = zip(zip(*rows, strict=True), kinds.values(), strict=True)
        given = ", ".join(self.given([*column], f"{kind}[]") for column, kind in columns)
        return self.table(name, f"SELECT * FROM unnest({given}) AS t({', '.join(kinds)})")

    def insert(self, into: str, rows: Sequence[Sequence[Any]], *, key: Sequence[str] = (), **kinds: str) -> None:
        """Insert rows, if there are any, in the place of those with the same *key* where one is given."""
        if not rows:
            return
        new, columns = self.unnested(f"new_{into}", rows, **kinds), ", ".join(kinds)
        changed = ", ".join(f"{name} = excluded.{name}" for name in kinds if name not in key)
        conflict = (
            f"ON CONFLICT (namespace, {', '.join(key)}) DO UPDATE SET {changed}" if key else "ON CONFLICT DO NOTHING"
        )
        self.table(
            f"put_{into}",
            f"INSERT INTO {into} (namespace, {columns}) SELECT $1, {columns} FROM {new} {conflict}",
        )

    @property
    def modifying(self) -> str:
        """The whole statement, where all of its tables write and give nothing."""
        return f"WITH {', '.join(self._tables)} SELECT 1 WHERE $1::text IS NOT NULL"

    @property
    def sql(self) -> str:
        """The whole statement."""
        tables = f"WITH RECURSIVE {', '.join(self._tables)} " if self._tables else ""
        return tables + " UNION ALL ".join(f"({part})" for part in self._parts)


def each(nodes: str, table: str, rule: str = "") -> str:
    """
    Return what follows FROM: the rows of a table for each of the nodes in another one, which is *f*.

    Each is looked up by its key: a planner that thinks nothing is in memory reads a whole namespace instead.
    """
    rows = f"SELECT * FROM {table} WHERE namespace = $1 AND node = f.node{rule} OFFSET 0"
    return f"{nodes} f, LATERAL ({rows}) {table[0]}"


def passing(statement: Statement, where: Filter | None, memory: str = "m") -> str:
    """Return what lets those rows of memories pass that a filter does, beginning with AND, or nothing."""
    if where is None:
        return ""
    given, rules = statement.given, []
    if where.types is not None:
        rules.append(f"{memory}.type = ANY({given([NUMBERS[kind] for kind in where.types], 'smallint[]')})")
    if where.topic is not None:
        rules.append(f"{memory}.topic = {given(stored(nfc(where.topic)), 'text')}")
    if where.since is not None:
        rules.append(f"{memory}.created >= {given(rounded_up(where.since), 'bigint')}")
    if where.until is not None:
        rules.append(f"{memory}.created < {given(rounded_up(where.until), 'bigint')}")
    if where.valid_at is not None:
        rules.append(f"{memory}.ends > {given(milliseconds(where.valid_at), 'bigint')}")
    if where.origins is not None:
        rules.append(f"{memory}.origin = ANY({given([ORIGINS.index(one) for one in where.origins], 'smallint[]')})")
    if where.trust is not None:
        rules.append(f"{memory}.trust <= {given(ORIGINS.index(where.trust), 'smallint')}")
    rules += [
        f"EXISTS (SELECT FROM mentions n WHERE n.namespace = $1 AND n.node = {memory}.node "
        f"AND n.mention = {given(stored(mention), 'text')})"
        for mention in where.names
    ]
    return "".join(f" AND {rule}" for rule in rules)


def narrowed(statement: Statement, where: Filter | None, node: str) -> tuple[str, str]:
    """
    Return what is joined to rows with a node each, and what lets those pass that a filter does.

    That they are still valid is asked of the few that end, and not of all.
    """
    if where is None:
        return "", ""
    rules = passing(statement, attrs.evolve(where, valid_at=None))
    joined = f" JOIN memories m ON m.namespace = $1 AND m.node = {node}" if rules else ""
    if where.valid_at is not None:
        ended = _ended(statement, where.valid_at)
        rules += f" AND NOT EXISTS (SELECT FROM memories e WHERE e.namespace = $1 AND e.node = {node} AND {ended})"
    return joined, rules


def _ended(statement: Statement, moment: datetime) -> str:
    """Return what holds for memories *e* that are not valid any more: the index of those that end finds them."""
    return f"e.ends < {NEVER} AND e.ends <= {statement.given(milliseconds(moment), 'bigint')}"


class NodeQuestion(Protocol):
    """Something that is asked of all memories, and answered by nodes, each with a number by which they are sorted."""

    def rows(self, statement: Statement, name: str) -> str:
        """Return the SELECT of nodes and scores; further tables' names begin with *name*."""


@attrs.frozen
class Window:
    """Memories in order of creation."""

    where: Filter | None
    newest_first: bool
    limit: int | None

    def rows(self, statement: Statement, _name: str) -> str:
        """Return the SELECT of nodes and times."""
        order = "DESC" if self.newest_first else "ASC"
        limit = "" if self.limit is None else f" LIMIT {statement.given(max(self.limit, 0), 'bigint')}"
        return (
            f"SELECT m.node, m.created::float8 AS score FROM memories m WHERE m.namespace = $1"
            f"{passing(statement, self.where)} ORDER BY m.created {order}, m.node {order}{limit}"
        )


@attrs.frozen
class Count:
    """How many memories pass a filter."""

    where: Filter

    def rows(self, statement: Statement, _name: str) -> str:
        """Return the SELECT of the count."""
        return (
            "SELECT NULL::bigint AS node, count(*)::float8 AS score FROM memories m WHERE m.namespace = $1"
            f"{passing(statement, self.where)}"
        )


@attrs.frozen
class Alike:
    """The first and the last memories of some wordings."""

    wordings: tuple[int, ...]

    def rows(self, statement: Statement, _name: str) -> str:
        """Return the SELECT of the nodes; what their wordings are, their rows say."""
        wanted = statement.given(sorted(set(self.wordings) - {0}), "bigint[]")
        some = f"(SELECT node FROM memories WHERE namespace = $1 AND wording = said ORDER BY node {{}} LIMIT {ALIKE})"
        return (
            f"SELECT m.node, 0::float8 AS score FROM unnest({wanted}) AS said "
            f"CROSS JOIN LATERAL ({some.format('ASC')} UNION {some.format('DESC')}) AS m"
        )


@attrs.frozen
class Named:
    """Memories of some ids."""

    ids: tuple[str, ...]

    def rows(self, statement: Statement, _name: str) -> str:
        """Return the SELECT of the nodes."""
        wanted = statement.given([stored(one) for one in self.ids], "text[]")
        return f"SELECT m.node, 0::float8 AS score FROM memories m WHERE m.namespace = $1 AND m.id = ANY({wanted})"


@attrs.frozen
class HnswIndex:
    """An HNSW index, by what it holds: a column's vectors, as numbers of a kind; *several* of some memories."""

    column: str
    kind: str
    dimensions: int
    several: bool

    def near(self, vector: str) -> str:
        """Return what rows of ``pieces p`` are sorted by, so that the index gives them in this order."""
        return f"p.{self.column}::{self.kind}({self.dimensions}) <#> {vector}::{self.kind}"


@attrs.frozen
class Nearest:
    """The memories nearest to a vector, by their best piece: found with an index where there is one."""

    vector: bytes
    limit: int
    where: Filter | None
    embedder: str
    graph: HnswIndex | None = None

    @property
    def array(self) -> Vectors:
        """The vector."""
        return np.frombuffer(self.vector, np.float32)

    def rows(self, statement: Statement, name: str) -> str:
        """Return the SELECT of nodes and cosines."""
        vector = statement.given(self.array, "vector")
        limit = statement.given(max(self.limit, 0), "bigint")
        joined, rules = narrowed(statement, self.where, "p.node")
        pieces = (
            f"pieces p{joined} WHERE p.namespace = $1 AND p.embedder = {statement.given(self.embedder, 'text')}{rules}"
        )
        every = f"SELECT p.node, max(-({VECTOR} <#> {vector}))::float8 AS score FROM {pieces}"
        found = f"{every} GROUP BY p.node"
        looked_at = max(self.limit * (_SEVERAL if self.graph is not None and self.graph.several else 1), _LOOKED_AT)
        if self.graph is not None and looked_at <= _MOST and self.array.any():
            is_many = "true"
            found = ""
            if joined and self.where is not None:
                chosen = passing(statement, attrs.evolve(self.where, valid_at=None))
                few = statement.table(
                    f"{name}_few",
                    f"SELECT m.node FROM memories m WHERE m.namespace = $1{chosen} LIMIT {_FEW + 1}",
                )
                is_many = f"(SELECT count(*) FROM {few}) > {_FEW}"
                found = f"{every} AND NOT {is_many} AND p.node = ANY(ARRAY(SELECT node FROM {few})) GROUP BY p.node"
                found += " UNION ALL "
            near = statement.table(
                f"{name}_near",
                f"SELECT p.node, -({VECTOR} <#> {vector})::float8 AS score FROM {pieces} AND {is_many} "
                f"ORDER BY {self.graph.near(vector)} LIMIT {looked_at}",
            )
            # Where the index meets too little of a filter all is compared, and where it meets very many equal vectors:
            # they are neighbours of none but each other, and hide others.
            is_enough = (
                f"(SELECT count(DISTINCT node) FROM {near}) >= {limit} "
                f"AND NOT EXISTS (SELECT FROM {near} GROUP BY score HAVING count(*) > {_EQUAL})"
            )
            found += (
                f"SELECT node, max(score) AS score FROM {near} WHERE {is_enough} GROUP BY node "
                f"UNION ALL {every} AND {is_many} AND NOT ({is_enough}) GROUP BY p.node"
            )
        return f"SELECT node, score FROM ({found}) found ORDER BY score DESC, node DESC LIMIT {limit}"


@attrs.frozen
class Words:
    """
    The memories that match words best.

    *more* says in how many memories that no server has yet each of the words is, *live* how many these are, and
    *length* how long they are together.
    """

    terms: tuple[tuple[str, float], ...]
    limit: int
    where: Filter | None
    more: tuple[int, ...]
    live: int
    length: int

    def rows(self, statement: Statement, name: str) -> str:
        """Return the SELECT of nodes and BM25 scores, which are exact to some 15 digits."""
        given = statement.given
        # A list has to have a type even where it is empty.
        wanted = (
            f"SELECT * FROM unnest({given([term for term, _ in self.terms], 'text[]')}, "
            f"{given([weight for _, weight in self.terms], 'float8[]')}, {given(list(self.more), 'bigint[]')}) "
            "AS a(term, weight, more)"
        )
        asked = statement.table(f"{name}_asked", wanted)
        found = statement.table(
            f"{name}_found",
            f"SELECT a.term, a.weight, a.more, x.node, x.count, x.length FROM {asked} a "
            "JOIN terms x ON x.namespace = $1 AND x.term = a.term",
        )
        worth = statement.table(
            f"{name}_worth",
            "SELECT f.term, f.weight * ln(1 + (h.live - f.often + 0.5) / (f.often + 0.5)) AS worth, "
            f"{K1 / UNIT}::float8 / ({SPARE / UNIT} + h.length / greatest(h.live, 1)) AS norm FROM "
            f"(SELECT term, weight, count(*) + more AS often FROM {found} GROUP BY term, weight, more) f, "
            f"(SELECT (SELECT sum(one) FROM unnest(types) one)::float8 + {given(self.live, 'bigint')} AS live, "
            f"length::float8 + {given(self.length, 'bigint')} AS length "
            "FROM memory_heads WHERE namespace = $1) h",
            # A table without statistics is planned as one of few rows: they were counted for each row that has a word.
            once=True,
        )
        joined, rules = narrowed(statement, self.where, "f.node")
        return (
            f"SELECT f.node, sum(w.worth * f.count / (f.count + w.norm * ({SPARE / UNIT} + f.length))) AS score "
            f"FROM {found} f JOIN {worth} w ON w.term = f.term{joined} WHERE f.count > 0{rules} "
            f"GROUP BY f.node ORDER BY round(sum(w.worth * f.count / (f.count + w.norm * ({SPARE / UNIT} + f.length)))"
            f"::numeric, 7) DESC, f.node DESC LIMIT {given(max(self.limit, 0), 'bigint')}"
        )


@attrs.frozen
class After:
    """Memories in order of saving."""

    node: int
    limit: int | None

    def rows(self, statement: Statement, _name: str) -> str:
        """Return the SELECT of the nodes."""
        limit = "" if self.limit is None else f" LIMIT {statement.given(max(self.limit, 0), 'bigint')}"
        after = statement.given(self.node, "bigint")
        return (
            "SELECT m.node, 0::float8 AS score FROM memories m "
            f"WHERE m.namespace = $1 AND m.node > {after} ORDER BY m.node{limit}"
        )


Along = tuple[Direction, frozenset[LinkType] | None]
"""Which links a walk follows: the direction, and the types, None for all."""
ENDS: Final[Mapping[Direction, tuple[str, ...]]] = {
    "out": ("source",),
    "in": ("target",),
    "both": ("source", "target"),
}
"""The ends of links that memories are, by direction."""


@attrs.frozen(kw_only=True)
class Wanted:
    """What is wanted of the nodes that questions find, and of some besides."""

    nodes: Sequence[int] = ()
    rows: bool = False
    entries: bool = False
    pieces: bool = False
    links: bool = False
    told: Collection[str] = ()  # The links of which they are one of these ends, with all that is known of those.
    followed: bool = False  # What supersedes them, and what supersedes that, to its end.
    around: int | None = 0  # So many links away from them, None for all, as far as that is not very much.
    along: Along = ("both", None)
    link_ids: Sequence[str] = ()  # Links by their ids.
    digests: Sequence[str] = ()  # Which of these texts are kept.
    beside: bool = False  # What was created just before and after each, and its rows as well.
    topics: bool = False  # In how many memories each word of their topics is.
    counts: Sequence[str] = ()  # How much these terms count in them.


def add_found(statement: Statement, found: Sequence[str], wanted: Wanted, embedder: str) -> None:
    """Add all that is wanted of the nodes in tables."""
    nodes = statement.given(list(wanted.nodes), "bigint[]")
    own = " UNION ".join([f"SELECT node FROM {one}" for one in found] + [f"SELECT unnest({nodes}) AS node"])
    all_nodes = statement.table("found", own)
    if wanted.around != 0:
        all_nodes = _add_walk(statement, wanted)
    _add_links(statement, wanted, all_nodes)
    if wanted.beside:
        statement.table("neighbours", _BESIDE)
        statement.part(BESIDE, "FROM neighbours", node="node", numbers="ARRAY[before, after, earlier, later]")
    if wanted.followed:
        statement.table(
            "followed",
            f"SELECT node FROM {all_nodes} UNION SELECT l.source FROM followed f, LATERAL (SELECT source FROM links "
            f"WHERE namespace = $1 AND target = f.node AND type = {EVOLUTION} OFFSET 0) l",
        )
        statement.part(FOLLOWED, "", numbers="ARRAY(SELECT node FROM followed)")
    if wanted.rows:
        _add_rows(statement, "followed" if wanted.followed else all_nodes, depth="f.depth" if wanted.around else "NULL")
    if wanted.entries:
        statement.part(
            ENTRY,
            f"FROM {each(all_nodes, 'memories')}",
            node="m.node",
            data="m.entry",
        )
    if wanted.pieces:
        own = f" AND embedder = {statement.given(embedder, 'text')}"
        statement.part(
            PIECE,
            f"FROM {each(all_nodes, 'pieces', own)}",
            node="p.node",
            score="p.place",
            vector=VECTOR,
        )
    if wanted.counts:
        terms = statement.given(list(wanted.counts), "text[]")
        statement.part(
            COUNTS,
            f"FROM (SELECT m.node, array_agg(a.place * {COUNT_BASE} + t.count) AS counts "
            f"FROM {each(all_nodes, 'memories')}, unnest(m.terms, m.counts) AS t(term, count) "
            f"JOIN unnest({terms}) WITH ORDINALITY AS a(term, place) ON a.term = t.term GROUP BY m.node) c",
            node="node",
            numbers="counts",
        )
    if wanted.topics:
        _add_frequencies(statement, f"SELECT unnest(m.topic_terms) FROM {each(all_nodes, 'memories')}")
    if wanted.digests:
        digests = statement.given(list(wanted.digests), "text[]")
        statement.part(
            KEPT, f"FROM texts t WHERE t.namespace = $1 AND t.digest = ANY({digests})", texts="ARRAY[t.digest]"
        )


def _add_walk(statement: Statement, wanted: Wanted) -> str:
    """Let what links lead to, and how far it is, be a table, and return its name."""
    direction, types = wanted.along
    rule = ""
    if types is not None:
        rule = f" AND type = ANY({statement.given([NUMBERS[kind] for kind in types], 'smallint[]')})"
    others = {"source": "target", "target": "source"}
    ways = " UNION ALL ".join(
        f"SELECT {others[end]} AS node FROM links WHERE namespace = $1 AND {end} = w.node{rule}"
        for end in ENDS[direction]
    )
    # A step at a time: what is read of it ends the walk, so that no more is walked where everything is linked. One that
    # goes to the end counts no steps, and so comes by no node twice.
    depth = 1 if wanted.around is None else statement.given(wanted.around, "int")
    statement.table(
        "walked",
        f"SELECT node, 0 AS depth FROM found UNION SELECT l.node, w.depth + {0 if wanted.around is None else 1} "
        f"FROM walked w, LATERAL ({ways}) l WHERE w.depth < {depth}",
    )
    return statement.table(
        "around", f"SELECT node, min(depth) AS depth FROM (SELECT * FROM walked LIMIT {_MOST_AROUND}) w GROUP BY node"
    )


_BESIDE: Final = f"""
    SELECT m.node, coalesce(b.node, -1) AS before, coalesce(a.node, -1) AS after,
        coalesce(b.created, 0) AS earlier, coalesce(a.created, 0) AS later
    FROM {each("found", "memories")}
    LEFT JOIN LATERAL (SELECT o.node, o.created FROM memories o
                       WHERE o.namespace = $1 AND (o.created, o.node) < (m.created, m.node)
                       ORDER BY o.created DESC, o.node DESC LIMIT 1) b ON true
    LEFT JOIN LATERAL (SELECT o.node, o.created FROM memories o
                       WHERE o.namespace = $1 AND (o.created, o.node) > (m.created, m.node)
                       ORDER BY o.created, o.node LIMIT 1) a ON true
"""


def _add_rows(statement: Statement, table: str, *, depth: str = "NULL") -> None:
    statement.part(
        ROW,
        f"FROM {each(table, 'memories')}",
        node="m.node",
        score=depth,
        numbers="ARRAY[m.created, m.type, m.scripts, m.asking, m.ends, m.origin, m.trust, m.wording, m.length]",
        texts="ARRAY[m.id, m.topic]",
        data=f"CASE WHEN octet_length(m.entry) <= {_SHORT_ENTRY} THEN m.entry END",
    )


def _add_links(statement: Statement, wanted: Wanted, table: str) -> None:
    """Add the links that are wanted of the nodes in a table, and some by their ids."""
    # What leads on from where a walk ends is not looked at.
    near = f"SELECT node FROM {table}" + (f" WHERE depth < {wanted.around:d}" if wanted.around else "")
    rules = [f"l.{end} = ANY(ARRAY({near}))" for end in ENDS["both"]] if wanted.links else []
    if wanted.followed:
        rules.append(f"l.type = {EVOLUTION} AND l.target = ANY(ARRAY(SELECT node FROM followed))")
    if rules:
        _add_links_by(statement, rules)
    if wanted.told:
        _add_links_by(statement, [f"l.{end} = ANY(ARRAY(SELECT node FROM {table}))" for end in wanted.told], told=True)
    if wanted.link_ids:
        ids = statement.given([*map(stored, wanted.link_ids)], "text[]")
        _add_links_by(statement, [f"l.id = ANY({ids})"], told=True)


def _add_links_by(statement: Statement, rules: Iterable[str], *, told: bool = False) -> None:
    """Add the links for which one of some rules holds."""
    columns = "l.id, l.source, l.target, l.type, l.creator, l.created, l.confidence" + ", l.entry" * told
    # Not with OR or with a join, for which no index would be used.
    some = " UNION ".join(f"SELECT {columns} FROM links l WHERE l.namespace = $1 AND {rule}" for rule in rules)
    if not told:
        # A row for each takes its reader longer than all else: so the columns come in one row, one after the other.
        numbers = ("l.source", "l.target", "l.type::bigint", "l.creator::bigint", "l.created")
        statement.part(
            LINKS,
            f"FROM ({some}) l",
            numbers=" || ".join(f"array_agg({one})" for one in numbers),
            texts="array_agg(l.id)",
            data="string_agg(float4send(l.confidence), ''::bytea)",
        )
        return
    statement.part(
        LINK,
        f"FROM ({some}) l",
        score="l.confidence",
        numbers="ARRAY[l.source, l.target, l.type, l.creator, l.created]",
        texts="ARRAY[l.id]",
        data="l.entry",
    )


def add_head(statement: Statement, since: int, index: str) -> None:
    """
    Add what is known of the namespace, what changes after *since* touched, and the marks of the last one and it.

    *index* is the name of its index: 0 stands for one that was begun, and perhaps is still made.
    """
    mark = "(SELECT c.token::text FROM changes c WHERE c.namespace = $1 AND c.change = {})"
    usable = "(SELECT i.indisvalid::int FROM pg_index i WHERE i.indexrelid = to_regclass({}))"
    statement.part(
        HEAD,
        "FROM namespaces n LEFT JOIN memory_heads h ON h.namespace = n.namespace WHERE n.namespace = $1",
        numbers="ARRAY[n.change, h.next_node, h.length, h.links, h.pieces, h.maintained_at, h.analysis, h.half::int, "
        f"{usable.format(statement.given(index, 'text'))}] || h.types",
        texts=f"ARRAY[h.embedder, {mark.format('n.change')}, {mark.format(statement.given(since, 'bigint'))}]",
    )
    statement.part(
        TOUCHED,
        f"FROM touched t WHERE t.namespace = $1 AND t.change > {statement.given(since, 'bigint')}",
        node="t.change",
        score="CASE WHEN t.more THEN 1 ELSE 0 END",
        numbers="t.nodes",
    )


def add_frequencies(statement: Statement, terms: Iterable[str]) -> None:
    """Add in how many memories each of some terms is."""
    _add_frequencies(statement, f"SELECT unnest({statement.given(list(terms), 'text[]')})")


def _add_frequencies(statement: Statement, terms: str) -> None:
    statement.part(
        FREQUENCY,
        "FROM (SELECT x.term, count(*) AS often FROM terms x WHERE x.namespace = $1 "
        f"AND x.term = ANY(ARRAY({terms})) GROUP BY x.term) x",
        score="often",
        texts="ARRAY[term]",
    )


def add_sample(statement: Statement, embedder: str, known: Sequence[int]) -> None:
    """
    Add what `Reader.sample` gives, less what is *known* of a change.

    It is the number of the change, how many memories there were, below which node, and which of them were taken.
    """
    given, (change, live, next_node, step) = statement.given, known
    since, steps = given(change, "bigint"), given(step, "bigint")
    table = statement.table(
        "sampling",
        "SELECT coalesce(n.change, 0) AS change, l.live, h.next_node, s.step, "
        f"s.step = {steps} AND coalesce(n.change, 0) - {since} = (SELECT count(*) FROM touched t "
        f"WHERE t.namespace = $1 AND t.change > {since} AND NOT t.more) AS grows "
        "FROM memory_heads h LEFT JOIN namespaces n ON n.namespace = h.namespace, "
        "LATERAL (SELECT sum(one)::bigint AS live FROM unnest(h.types) one) l, "
        # As `sampled` says: as many of 512 to 1,023 as there are bits above ten.
        "LATERAL (SELECT 1::bigint << greatest(length(ltrim(l.live::bit(40)::text, '0')) - 10, 0) AS step) s "
        "WHERE h.namespace = $1",
    )
    statement.part(
        SAMPLE,
        f"FROM {table}",
        score="CASE WHEN grows THEN 1 ELSE 0 END",
        numbers="ARRAY[change, live, next_node, step]",
    )
    statement.part(
        SAMPLE,
        f"FROM (SELECT m.node, s.step, row_number() OVER (ORDER BY m.node) "
        f"+ CASE WHEN s.grows THEN {given(live, 'bigint')} ELSE 0 END AS place FROM memories m, {table} s "
        f"WHERE m.namespace = $1 AND m.node >= CASE WHEN s.grows THEN {given(next_node, 'bigint')} ELSE 0 END) q "
        f"JOIN pieces p ON p.namespace = $1 AND p.embedder = {given(embedder, 'text')} AND p.node = q.node "
        "AND p.place = 0 WHERE q.place % q.step = 0",
        node="q.node",
        vector=VECTOR,
    )
