"""
Writer to one namespace in one transaction, which buffers changes.

The changes are sent in few statements.
"""

# ruff: noqa: D102, S608 - documented in the protocols; statements are built from constants

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec
import numpy as np

from mama_structs.memory.engines.postgres.client_state import HostKnowledge, KeptSample
from mama_structs.memory.engines.postgres.queries import (
    NodeQuestion,
    SentVector,
    Statement,
    Wanted,
    halves,
    key_of,
    stored,
    written,
)
from mama_structs.memory.engines.postgres.reader import LinkRow, PostgresReader, Row, counted, length_of
from mama_structs.memory.save.automatic_links import topic_terms
from mama_structs.memory.types.codec import Entry, check_vectors, indexed_terms, told_by, write_entry
from mama_structs.memory.types.engine import NUMBERS, EmbedderRecord, NewMemory, Nodes, Vectors, Writer, names_of, nfc
from mama_structs.memory.types.model import CREATORS, Link, Memory, MemoryType, digests_in, milliseconds
from mama_structs.memory.types.text_analysis import ANALYSIS
from mama_structs.storage.postgres.pool import Connection

# A plan that can continue in another transaction is asked to do so after this time, because other writers wait.
_TRANSACTION_SECONDS: Final = 0.1
# Number of recent changes for which the touched nodes are stored.
_KEPT_CHANGES: Final = 4096
_SEPARATOR: Final = "\x1f"
_TYPES: Final = len(MemoryType)
_encode: Final = msgspec.json.Encoder().encode
_FORGET_NOTES: Final = "DELETE FROM notes WHERE namespace = $1 AND name = ANY($2::text[])"
_KEEP_NOTES: Final = (
    "INSERT INTO notes (namespace, name, text) SELECT $1, * FROM unnest($2::text[], $3::text[]) "
    "ON CONFLICT (namespace, name) DO UPDATE SET text = excluded.text"
)


@attrs.define(eq=False)
class _Outgoing:
    """Buffered rows to insert or replace, by key."""

    memories: dict[int, tuple[Memory, Row, Mapping[str, int]]] = attrs.field(factory=dict)
    pieces: dict[tuple[str, int], Vectors] = attrs.field(factory=dict)
    mentions: set[tuple[str, int]] = attrs.field(factory=set)
    links: dict[str, tuple[Link, LinkRow]] = attrs.field(factory=dict)
    texts: dict[str, str] = attrs.field(factory=dict)
    uses: set[tuple[str, int]] = attrs.field(factory=set)
    # Nodes with new or changed words.
    worded: set[int] = attrs.field(factory=set)

    def __bool__(self) -> bool:
        return bool(self.memories or self.pieces or self.links)


@attrs.define(eq=False)
class _Outdated:
    """Keys of rows to delete before other rows replace them."""

    pieces: set[tuple[str, int]] = attrs.field(factory=set)
    words: set[int] = attrs.field(factory=set)
    mentions: set[tuple[str, int]] = attrs.field(factory=set)
    uses: set[tuple[str, int]] = attrs.field(factory=set)
    links: set[str] = attrs.field(factory=set)

    def __bool__(self) -> bool:
        return bool(self.pieces or self.words or self.mentions or self.uses or self.links)


class PostgresWriter(PostgresReader, Writer):
    """A `Writer` of one namespace inside one transaction, which holds the namespace's lock."""

    def __init__(
        self, connection: Connection, namespace: str, embedder: EmbedderRecord, host: HostKnowledge, location: str
    ) -> None:
        super().__init__(connection, namespace, embedder, host, location)
        self.leaves_no_trace: bool = False
        self._started = time.monotonic()
        self._out = _Outgoing()
        self._old = _Outdated()
        self._touched: set[int] = set()
        self._is_changed = False
        self._has_sent = False
        # True if a query would miss buffered changes, so that they must be sent before it.
        self._is_ahead = False
        # Links to add to the stored number of links, besides the new links in the buffer.
        self._fewer_links = 0
        # Hashes of texts that may have lost their last reference.
        self._unnamed: set[str] = set()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._started > _TRANSACTION_SECONDS

    @property
    def change(self) -> int:
        return super().change + self._is_changed

    def put(
        self,
        memory: Memory,
        *,
        vectors: Vectors | None = None,
        links: Sequence[Link] = (),
        contents: Mapping[str, str] | None = None,
    ) -> int:
        self._check_links(memory.id, links)
        if vectors is not None:
            check_vectors(vectors, self._embedder.dimensions)
        node = self.find(memory.id)
        if node is None:
            if vectors is None:
                raise ValueError("a new memory needs vectors")
            new = NewMemory(memory=memory, vectors=vectors, links=links, contents=contents or {})
            return int(self.put_new([new], lambda _nodes: [()])[0])
        (before,) = self.get([node])
        had = 0 if vectors is None else len(self.vectors(node))
        self._keep(node, before.evidence, memory.evidence, contents or {})
        self._only_added = False
        self._replace(node, before, memory)
        if vectors is not None:
            if node not in self._unsent:
                self._count_head(None, 0, pieces=len(vectors) - had)
            self._old.pieces.add((self._key, node))
            self._out.pieces[self._key, node] = self._pieces[node] = self._rounded(vectors)
        self._touch(node)
        for link in links:
            self._put_link(link)
        return node

    def put_new(self, new: Sequence[NewMemory], links_of: Callable[[Nodes], Sequence[Sequence[Link]]]) -> Nodes:
        known = dict(zip([one.memory.id for one in new], self.find_many([one.memory.id for one in new]), strict=True))
        nodes = []
        for one in new:
            memory = one.memory
            if known[memory.id] is not None:
                raise ValueError(f"there is a memory with the id {memory.id}")
            check_vectors(one.vectors, self._embedder.dimensions)
            self._check_links(memory.id, one.links)
            node = self.head.next_node
            self._keep(node, (), memory.evidence, one.contents)
            terms = indexed_terms(memory)
            row = row_of(memory, length_of(terms))
            self._add(node, memory, row, counted(terms))
            self._out.pieces[self._key, node] = self._pieces[node] = self._rounded(one.vectors)
            self._out.mentions |= {(mention, node) for mention in names_of(memory)}
            known[memory.id] = node
            self._touch(node)
            for link in one.links:
                self._put_link(link, is_new=True)
            nodes.append(node)
        found = np.array(nodes, np.int64)
        for one, more in zip(new, links_of(found), strict=True):
            self._check_links(one.memory.id, more)
            for link in more:
                self._put_link(link, is_new=True)
        return found

    def put_link(self, link: Link) -> None:
        self._check_links(link.from_id, [link])
        self._node(link.from_id)
        self._put_link(link)

    def delete(self, memory_id: str) -> int:
        node = self._node(memory_id)
        (memory,) = self.get([node])
        (row,) = self._rows_of([node])
        table = self.links(np.array([node]), "both")
        self._keep(node, memory.evidence, (), {})
        self._send()
        self._only_added = False
        ((gone,),) = self._connection.ask(_DELETE, self._namespace, node, self._key)
        for link_id in self._ends["source"].get(node, set()) | self._ends["target"].get(node, set()):
            self._forget_link(link_id)
        self._count_head(row, -1, pieces=-gone)
        self._fewer_links -= len(table)
        self._touch(node, *table.sources.tolist(), *table.targets.tolist())
        for known in (self._rows, self._entries, self._memories, self._pieces):
            known.pop(node, None)
        self._node_of[memory_id] = None
        self._forget_answers()
        return len(table)

    def delete_links(self, link_ids: Collection[str]) -> int:
        found = [link for link in self.find_links(list(dict.fromkeys(link_ids))) if link is not None]
        self._only_added &= not found
        for link in found:
            self._touch(self._links[link.id].source, self._links[link.id].target)
            self._drop_link(link.id)
        self._fewer_links -= len(found)
        return len(found)

    def leave_no_trace(self) -> None:
        """Request that the next `Engine.erase` vacuums the tables of memories."""
        self.leaves_no_trace = True

    def set_notes(self, notes: Mapping[str, str | None]) -> None:
        self._send()
        gone = [stored(name) for name, text in notes.items() if text is None]
        kept = {stored(name): stored(text) for name, text in notes.items() if text is not None}
        if gone:
            self._connection.tell(_FORGET_NOTES, self._namespace, gone)
        if kept:
            self._connection.tell(_KEEP_NOTES, self._namespace, [*kept], [*kept.values()])
        # Count a change, so that a commit without an answer can be looked up.
        self._connection.note_change()

    def put_vectors(self, embedder: EmbedderRecord, vectors: Mapping[str, Vectors]) -> None:
        nodes = dict(zip(vectors, self.find_many([*vectors]), strict=True))
        key = key_of(embedder)
        for memory_id, found in vectors.items():
            node = nodes[memory_id]
            if node is not None:
                self._old.pieces.add((key, node))
                self._out.pieces[key, node] = self._rounded(found)
        self._send()

    def derive(self, node: int, memory: Memory) -> None:
        """Recompute the columns and terms of an existing memory."""
        self._only_added = False
        self._replace(node, memory, memory)
        self._old.words.add(node)
        self._out.worded.add(node)
        self._out.mentions |= {(mention, node) for mention in names_of(memory)}

    def analysed(self) -> None:
        """Record that all terms follow the current rules of text analysis."""
        self._head = attrs.evolve(self.head, analysis=ANALYSIS)
        self._touch(*self._rows)

    def adopt(self, embedder: EmbedderRecord) -> None:
        """Make an embedder the current one, and delete the vectors of all others."""
        self._connection.tell(
            "DELETE FROM pieces WHERE namespace = $1 AND embedder <> $2", self._namespace, key_of(embedder)
        )
        self._connection.tell(
            "UPDATE memory_heads SET embedder = $2, pieces = (SELECT count(*) FROM pieces WHERE namespace = $1) "
            "WHERE namespace = $1",
            self._namespace,
            written(embedder),
        )
        self._touch()
        self._connection.note_change()

    def finish(self) -> None:
        """Send the remaining changes, and make the commit count a change if there were any."""
        self.head  # noqa: B018 - checks the embedder
        self._send(is_last=True)
        if self._is_changed:
            self._connection.note_change()

    def _check_links(self, source: str, links: Iterable[Link]) -> None:
        for link in links:
            if link.from_id != source:
                raise ValueError(f"the link {link.id} begins at another memory")
            if link.to_id == source:
                raise ValueError(f"the link {link.id} leads to the memory where it begins")
            self._node(link.to_id)

    def _node(self, memory_id: str) -> int:
        node = self.find(memory_id)
        if node is None:
            raise KeyError(memory_id)
        return node

    def _touch(self, *nodes: int) -> None:
        self._touched.update(nodes)
        self._is_changed = True

    def _count_head(self, row: Row | None, more: int, *, pieces: int = 0) -> None:
        head = self.head
        types = [count + more * (row is not None and place == row.type) for place, count in enumerate(head.types)]
        self._head = attrs.evolve(
            head,
            types=tuple(types),
            length=head.length + (0 if row is None else more * row.length),
            pieces=head.pieces + pieces,
        )

    def _add(self, node: int, memory: Memory, row: Row, terms: Mapping[str, int]) -> None:
        """Register a new memory."""
        self._head = attrs.evolve(self.head, next_node=node + 1)
        self._out.memories[node] = (memory, row, terms)
        self._out.worded.add(node)
        self._rows[node], self._memories[node], self._node_of[memory.id] = row, memory, node
        self._unsent[node], self._unsent_terms[node] = memory, dict(terms)
        for known in (self._linked, *self._told.values()):
            known.add(node)
        self._answers.clear()
        self._neighbours.clear()

    def _replace(self, node: int, before: Memory, memory: Memory) -> None:
        """Register a new version of a memory."""
        old, new = indexed_terms(before), indexed_terms(memory)
        (known,) = self._rows_of([node])
        row, counts = row_of(memory, length_of(new)), counted(new)
        self._out.memories[node] = (memory, row, counts)
        mentions, named = ({(mention, node) for mention in names_of(one)} for one in (before, memory))
        if node in self._unsent:
            self._unsent[node], self._unsent_terms[node] = memory, dict(counts)
            self._out.mentions -= mentions - named
        else:
            self._old.mentions |= mentions - named
            self._old.mentions -= named
            self._out.mentions -= mentions - named
            self._count_head(known, -1)
            self._count_head(row, 1)
            if old != new:
                self._old.words.add(node)
                self._out.worded.add(node)
        self._out.mentions |= named - mentions if node not in self._unsent else named
        self._rows[node], self._memories[node] = row, memory
        # An addition that no query sees, such as an outcome, keeps the cached answers valid.
        if node in self._unsent or (row, new, named) != (known, old, mentions):
            self._is_ahead |= node not in self._unsent
            self._forget_answers()

    def _forget_answers(self) -> None:
        self._answers.clear()
        self._frequencies.clear()
        self._counts.clear()
        self._neighbours.clear()
        self._sample = None

    def _put_link(self, link: Link, *, is_new: bool = False) -> None:
        source, target = self._node(link.from_id), self._node(link.to_id)
        if not is_new and source not in self._linked and source not in self._told["source"]:
            self.find_links([link.id])
        before = self._links.get(link.id)
        if before is not None:
            self._only_added = False
            self._touch(before.source, before.target)
            self._forget_link(link.id)
        row = LinkRow(
            source,
            target,
            NUMBERS[link.link_type],
            CREATORS.index(link.created_by),
            milliseconds(link.created_at),
            float(np.float32(link.confidence)),
        )
        self._know_link(link.id, row)
        self._told_links[link.id] = link
        if link.id in self._old.links:
            self._old.links.discard(link.id)
            self._fewer_links += 1
        self._dropped.discard(link.id)
        self._out.links[link.id] = (link, row)
        self._touch(source, target)

    def _drop_link(self, link_id: str) -> None:
        self._forget_link(link_id)
        self._dropped.add(link_id)
        self._out.links.pop(link_id, None)
        self._old.links.add(link_id)

    def _keep(self, node: int, before: Iterable[str], after: Iterable[str], contents: Mapping[str, str]) -> None:
        """Store the texts that a memory's evidence refers to, and release all others of it."""
        named, kept = digests_in(before), digests_in(after)
        for digest in kept:
            if digest in contents:
                self._out.texts[digest] = contents[digest]
                self._kept[digest] = True
            # Tolerate that a text referenced before is missing, so that the memory can still be changed.
            elif digest not in named and digest not in self._out.texts and not self.known_contents([digest]):
                raise KeyError(digest)
            if digest not in named:
                self._old.uses.discard((digest, node))
                self._out.uses.add((digest, node))
        for digest in named:
            if digest not in kept:
                self._unnamed.add(digest)
                # Only the server knows if other memories refer to the text.
                self._kept.pop(digest, None)
                self._is_ahead = True
                self._out.uses.discard((digest, node))
                self._old.uses.add((digest, node))

    def _rounded(self, vectors: Vectors) -> Vectors:
        """Return vectors with the precision of the stored ones."""
        return halves(vectors) if self.head.half else np.asarray(vectors, np.float32)

    # Sending.

    def _keep_sample(self, sample: KeptSample) -> None:
        # The transaction may still be rolled back, so do not cache a sample that includes its changes.
        if not self._has_sent:
            super()._keep_sample(sample)

    def _ask(self, asked: Iterable[NodeQuestion], wanted: Wanted | None = None, **others: Any) -> None:
        if self._is_ahead:
            self._send()
        super()._ask(asked, wanted, **others)

    def _send(self, *, is_last: bool = False) -> None:
        if self._old or self._out or (is_last and self._is_changed):
            self._send_all(is_last=is_last)
        if self._unnamed:
            self._connection.tell(_DROP_TEXTS, self._namespace, [*self._unnamed])
            self._unnamed.clear()
        self._is_ahead = False

    def _send_old(self, statement: Statement) -> None:
        """
        Add the deletions.

        No deleted row may be inserted, because the parts of a statement do not see each other.
        """
        old, pieces = self._old, self._out.pieces
        # Replaced chunks are overwritten by the insert, so only surplus chunks are deleted.
        gone = {
            "pieces": (
                "embedder = o.a AND t.node = o.b AND t.place >= o.c",
                [(*one, len(pieces[one])) for one in old.pieces],
            ),
            "mentions": ("mention = o.a AND t.node = o.b", [(stored(one), node, 0) for one, node in old.mentions]),
            "text_uses": ("digest = o.a AND t.node = o.b", [(*one, 0) for one in old.uses]),
            "links": ("id = o.a", [(stored(one), 0, 0) for one in old.links]),
        }
        for name, (rule, rows) in gone.items():
            if rows:
                keys = statement.unnested(f"old_{name}", rows, a="text", b="bigint", c="integer")
                statement.table(
                    f"drop_{name}", f"DELETE FROM {name} t USING {keys} o WHERE t.namespace = $1 AND t.{rule}"
                )
        if old.words:
            nodes = statement.given([*old.words], "bigint[]")
            statement.table(
                "drop_terms",
                # Look up each term by key, and put the remaining terms into a table.
                # Comparing all terms with all others takes minutes.
                "DELETE FROM terms WHERE namespace = $1 AND ctid = ANY(ARRAY("
                "SELECT t.ctid FROM memories m, unnest(m.terms) AS o(term), LATERAL (SELECT ctid FROM terms "
                "WHERE namespace = $1 AND term = o.term AND node = m.node OFFSET 0) t "
                f"WHERE m.namespace = $1 AND m.node = ANY({nodes}) AND (m.node, o.term) NOT IN "
                f"(SELECT node, unnest({_LISTED['terms']}) FROM new_memories)))",
            )

    def _send_all(self, *, is_last: bool) -> None:
        statement, out = Statement(self._namespace), self._out
        if out.memories:
            self._send_memories(statement)
        pieces = [
            (key, node, place, SentVector(vector))
            for (key, node), vectors in out.pieces.items()
            for place, vector in enumerate(vectors)
        ]
        mentions = [(stored(mention), node) for mention, node in out.mentions]
        self._send_old(statement)
        texts = [(digest, text.encode()) for digest, text in out.texts.items()]
        key = ("embedder", "node", "place")
        column = {"half": "halfvec"} if self.head.half else {"vector": "vector"}
        statement.insert("pieces", pieces, key=key, embedder="text", node="bigint", place="integer", **column)
        statement.insert("mentions", mentions, mention="text", node="bigint")
        statement.insert("texts", texts, key=("digest",), digest="text", text="bytea")
        statement.insert("text_uses", [*out.uses], digest="text", node="bigint")
        self._send_links(statement)
        for node in self._unsent:
            own = len(out.pieces.get((self._key, node), ()))
            self._count_head(self._rows[node], 1, pieces=own)
        if self._is_changed:
            self._send_head(statement, with_links=bool(out.links))
        if is_last and self._is_changed:
            self._send_touched(statement)
        self._connection.tell(statement.modifying, *statement.arguments)
        self._has_sent = True
        self._out, self._old = _Outgoing(), _Outdated()
        if self._unsent:
            self._unsent.clear()
            self._unsent_terms.clear()
            self._forget_answers()

    def _send_memories(self, statement: Statement) -> None:
        rows = [
            (
                node,
                stored(row.memory_id),
                write_entry(Entry(memory)),
                row.created,
                row.type,
                None if row.topic is None else stored(row.topic),
                row.scripts,
                row.asking,
                row.ends,
                row.origin,
                row.trust,
                row.wording,
                row.length,
                _SEPARATOR.join(terms),
                _SEPARATOR.join(map(str, terms.values())),
                _SEPARATOR.join(topic_terms(row.topic)),
            )
            for node, (memory, row, terms) in self._out.memories.items()
        ]
        memories = statement.unnested("new_memories", rows, **_MEMORY)
        columns = ", ".join(name for name in _MEMORY)
        listed = ", ".join(_LISTED.get(name, name) for name in _MEMORY)
        changed = ", ".join(f"{name} = excluded.{name}" for name in _MEMORY if name not in {"node", "id"})
        statement.table(
            "put_memories",
            f"INSERT INTO memories (namespace, {columns}) SELECT $1, {listed} FROM {memories} "
            f"ON CONFLICT (namespace, node) DO UPDATE SET {changed}",
        )
        worded = statement.given([*self._out.worded], "bigint[]")
        statement.table(
            "put_terms",
            "INSERT INTO terms (namespace, term, node, count, length) SELECT $1, t.term, n.node, t.count, n.length "
            f"FROM {memories} n, unnest({_LISTED['terms']}, {_LISTED['counts']}) AS t(term, count) "
            f"WHERE n.node = ANY({worded}) "
            "ON CONFLICT (namespace, term, node) DO UPDATE SET count = excluded.count, length = excluded.length",
        )

    def _send_links(self, statement: Statement) -> None:
        rows = [
            (
                stored(link.id),
                row.source,
                row.target,
                row.type,
                row.creator,
                row.confidence,
                row.created,
                stored(link.metadata.original_relationship),
                _encode(link),
            )
            for link, row in self._out.links.values()
        ]
        statement.insert(
            "links",
            rows,
            key=("id",),
            id="text",
            source="bigint",
            target="bigint",
            type="smallint",
            creator="smallint",
            confidence="real",
            created="bigint",
            word="text",
            entry="bytea",
        )

    def _send_head(self, statement: Statement, *, with_links: bool) -> None:
        head = self.head
        values = {
            "embedder": (written(self._embedder), "text"),
            "next_node": (head.next_node, "bigint"),
            "types": ([*head.types] if head.live else [0] * _TYPES, "bigint[]"),
            "length": (head.length, "bigint"),
            "links": (self._fewer_links, "bigint"),
            "pieces": (head.pieces, "bigint"),
            "analysis": (head.analysis, "integer"),
            "half": (head.half, "boolean"),
        }
        given = {name: statement.given(*value) for name, value in values.items()}
        if with_links:
            # A link that replaces an existing one does not change the number of links.
            known = "SELECT FROM links l WHERE l.namespace = $1 AND l.id = n.id"
            given["links"] += f" + (SELECT count(*) FROM new_links n WHERE NOT EXISTS ({known}))"
        changed = ", ".join(f"{name} = excluded.{name}" for name in given if name not in {"links", "half"})
        self._fewer_links = 0
        statement.table(
            "put_head",
            f"INSERT INTO memory_heads (namespace, {', '.join(given)}) VALUES ($1, {', '.join(given.values())}) "
            f"ON CONFLICT (namespace) DO UPDATE SET {changed}, links = memory_heads.links + excluded.links",
        )

    def _send_touched(self, statement: Statement) -> None:
        change = statement.given(self.head.change + 1, "bigint")
        nodes, more = (
            statement.given(sorted(self._touched), "bigint[]"),
            statement.given(not self._only_added, "boolean"),
        )
        statement.table(
            "put_touched",
            f"INSERT INTO touched (namespace, change, nodes, more) VALUES ($1, {change}, {nodes}, {more}) "
            "ON CONFLICT (namespace, change) DO UPDATE SET nodes = excluded.nodes, more = excluded.more",
        )
        statement.table(
            "drop_touched", f"DELETE FROM touched WHERE namespace = $1 AND change <= {change} - {_KEPT_CHANGES}"
        )


_MEMORY: Final = {
    "node": "bigint",
    "id": "text",
    "entry": "bytea",
    "created": "bigint",
    "type": "smallint",
    "topic": "text",
    "scripts": "smallint",
    "asking": "smallint",
    "ends": "bigint",
    "origin": "smallint",
    "trust": "smallint",
    "wording": "bigint",
    "length": "integer",
    "terms": "text",
    "counts": "text",
    "topic_terms": "text",
}
# Each list is sent as one delimited text, because PostgreSQL requires nested arrays to have equal lengths.
_LISTED: Final = {
    "terms": "string_to_array(terms, chr(31))",
    "counts": "string_to_array(counts, chr(31))::smallint[]",
    "topic_terms": "string_to_array(topic_terms, chr(31))",
}
_DELETE: Final = """
    WITH gone AS (DELETE FROM memories WHERE namespace = $1 AND node = $2),
    words AS (DELETE FROM terms WHERE namespace = $1 AND node = $2
              AND term = ANY((SELECT terms FROM memories WHERE namespace = $1 AND node = $2)::text[])),
    named AS (DELETE FROM mentions WHERE namespace = $1 AND node = $2),
    used AS (DELETE FROM text_uses WHERE namespace = $1 AND node = $2),
    tied AS (DELETE FROM links WHERE namespace = $1 AND (source = $2 OR target = $2)),
    seen AS (DELETE FROM pieces WHERE namespace = $1 AND node = $2 RETURNING embedder)
    SELECT count(*) AS gone FROM seen WHERE embedder = $3
"""
_DROP_TEXTS: Final = """
    DELETE FROM texts t WHERE t.namespace = $1 AND t.digest = ANY($2::text[])
    AND NOT EXISTS (SELECT FROM text_uses u WHERE u.namespace = $1 AND u.digest = t.digest)
"""


def row_of(memory: Memory, length: int) -> Row:
    """Return the columns of a memory without its text."""
    told = told_by(memory)
    return Row(
        memory.id,
        None if memory.topic is None else nfc(memory.topic),
        milliseconds(memory.created_at),
        NUMBERS[memory.type],
        told["scripts"],
        told["asking"],
        told["ends_ms"],
        told["origin"],
        told["trust"],
        told["wording"],
        length,
    )
