"""Writer to one namespace in one transaction. Changes are buffered and sent in few statements."""

# ruff: noqa: D102, S608 - documented in the protocols; statements are built from constants

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec
import numpy as np

from mama_structs.memory.engines.postgres.client_state import CachedSample, ClientState
from mama_structs.memory.engines.postgres.namespace_rows import LinkRow, PostgresMemoryRow, text_length, to_term_counts
from mama_structs.memory.engines.postgres.queries import (
    FetchSpec,
    NodeQuery,
    Statement,
    VectorArgument,
    embedder_key,
    encode_embedder,
    escape_text,
    round_to_half,
    uses_names,
)
from mama_structs.memory.engines.postgres.reader import PostgresReader
from mama_structs.memory.save.link_candidates import extract_topic_terms
from mama_structs.memory.types.codec import (
    Entry,
    check_vectors,
    content_digests,
    encode_entry,
    indexed_terms,
    mutable_columns,
    split_history,
)
from mama_structs.memory.types.engine import (
    TYPE_NUMBERS,
    EmbedderRecord,
    NewMemory,
    Nodes,
    Vectors,
    Writer,
    filter_names,
    to_nfc,
)
from mama_structs.memory.types.model import CREATORS, Link, Memory, MemoryType, to_milliseconds
from mama_structs.memory.types.text_analysis import ANALYSIS_VERSION
from mama_structs.storage.postgres.pool import Connection

# After this time `should_yield` is true, because other writers wait for the lock of the namespace.
MAX_TRANSACTION_SECONDS: Final = 0.1
LIST_SEPARATOR: Final = "\x1f"
MEMORY_TYPE_COUNT: Final = len(MemoryType)
_encode_json: Final = msgspec.json.Encoder().encode
DELETE_NOTES_SQL: Final = "DELETE FROM notes WHERE namespace = $1 AND name = ANY($2::text[])"
PUT_NOTES_SQL: Final = (
    "INSERT INTO notes (namespace, name, text) SELECT $1, * FROM unnest($2::text[], $3::text[]) "
    "ON CONFLICT (namespace, name) DO UPDATE SET text = excluded.text"
)


@attrs.define(eq=False)
class _PendingRows:
    """Buffered rows to insert or replace, by key."""

    memories: dict[int, tuple[Memory, PostgresMemoryRow, Mapping[str, int]]] = attrs.field(factory=dict)
    pieces: dict[tuple[str, int], Vectors] = attrs.field(factory=dict)
    mentions: set[tuple[str, int]] = attrs.field(factory=set)
    links: dict[str, tuple[Link, LinkRow]] = attrs.field(factory=dict)
    texts: dict[str, str] = attrs.field(factory=dict)
    text_uses: set[tuple[str, int]] = attrs.field(factory=set)
    # Nodes whose terms must be written.
    nodes_with_new_words: set[int] = attrs.field(factory=set)

    def __bool__(self) -> bool:
        return bool(self.memories or self.pieces or self.links)


@attrs.define(eq=False)
class _PendingDeletions:
    """Keys of rows to delete before the pending rows are inserted."""

    pieces: set[tuple[str, int]] = attrs.field(factory=set)
    words: set[int] = attrs.field(factory=set)
    mentions: set[tuple[str, int]] = attrs.field(factory=set)
    text_uses: set[tuple[str, int]] = attrs.field(factory=set)
    links: set[str] = attrs.field(factory=set)

    def __bool__(self) -> bool:
        return bool(self.pieces or self.words or self.mentions or self.text_uses or self.links)


class PostgresWriter(PostgresReader, Writer):
    """A `Writer` of one namespace inside one transaction that holds the lock of the namespace."""

    def __init__(
        self, connection: Connection, namespace: str, embedder: EmbedderRecord, client_state: ClientState, location: str
    ) -> None:
        super().__init__(connection, namespace, embedder, client_state, location)
        self.needs_vacuum: bool = False
        self._started = time.monotonic()
        self._pending_rows = _PendingRows()
        self._pending_deletions = _PendingDeletions()
        self._is_changed = False
        self._has_sent = False
        # True if buffered changes would alter the result of a query. The changes are then sent before the next query.
        self._must_send_before_query = False
        # Filter names that buffered changes have added to a memory or removed from one, if they changed nothing else.
        self._unsent_names: set[str] = set()
        # Change of the stored number of links, apart from new links in the buffer.
        self._link_count_change = 0
        # Hashes of texts that are deleted if no memory refers to them any more.
        self._released_digests: set[str] = set()

    @property
    def should_yield(self) -> bool:
        return time.monotonic() - self._started > MAX_TRANSACTION_SECONDS

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
        (before,) = self.get_stored([node])
        memory, former = split_history(memory, before)
        had = 0 if vectors is None else len(self.vectors(node))
        self._update_texts(node, before, memory, {**(contents or {}), **former})
        self._only_new_memories = False
        self._replace_memory(node, before, memory)
        if vectors is not None:
            if node not in self._unsent:
                self._update_head_counts(None, 0, pieces=len(vectors) - had)
            self._pending_deletions.pieces.add((self._embedder_key, node))
            self._pending_rows.pieces[self._embedder_key, node] = self._pieces[node] = self._round_to_stored(vectors)
        self._is_changed = True
        for link in links:
            self._put_link(link)
        return node

    def put_new(self, new: Sequence[NewMemory], links_of: Callable[[Nodes], Sequence[Sequence[Link]]]) -> Nodes:
        known = dict(zip([one.memory.id for one in new], self.find_many([one.memory.id for one in new]), strict=True))
        nodes = []
        for one in new:
            memory, former = split_history(one.memory)
            if known[memory.id] is not None:
                raise ValueError(f"there is a memory with the id {memory.id}")
            check_vectors(one.vectors, self._embedder.dimensions)
            self._check_links(memory.id, one.links)
            node = self.head.next_node
            self._update_texts(node, None, memory, {**one.contents, **former})
            terms = indexed_terms(memory)
            row = to_row(memory, text_length(terms))
            self._add_memory(node, memory, row, to_term_counts(terms))
            self._pending_rows.pieces[self._embedder_key, node] = self._pieces[node] = self._round_to_stored(
                one.vectors
            )
            self._pending_rows.mentions |= {(mention, node) for mention in filter_names(memory)}
            known[memory.id] = node
            self._is_changed = True
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
        self._require_node(link.from_id)
        self._put_link(link)

    def delete(self, memory_id: str) -> int:
        node = self._require_node(memory_id)
        (memory,) = self.get_stored([node])
        (row,) = self._get_rows([node])
        table = self.links(np.array([node]), "both")
        self._update_texts(node, memory, None, {})
        self._send_pending()
        self._only_new_memories = False
        ((gone,),) = self._connection.fetch(DELETE_MEMORY_SQL, self._namespace, node, self._embedder_key)
        for link_id in self._links.find_ids([node], ("source", "target")):
            self._remove_link(link_id)
        self._update_head_counts(row, -1, pieces=-gone)
        self._link_count_change -= len(table)
        self._is_changed = True
        for known in (self._rows, self._entries, self._memories, self._pieces):
            known.pop(node, None)
        self._node_of[memory_id] = None
        self._clear_cache()
        return len(table)

    def delete_links(self, link_ids: Collection[str]) -> int:
        found = [link for link in self.find_links(list(dict.fromkeys(link_ids))) if link is not None]
        self._only_new_memories &= not found
        for link in found:
            self._is_changed = True
            self._delete_link(link.id)
        self._link_count_change -= len(found)
        return len(found)

    def mark_for_erasure(self) -> None:
        """Request that the next `Engine.erase` vacuums the tables that contain texts."""
        self.needs_vacuum = True

    def set_notes(self, notes: Mapping[str, str | None]) -> None:
        self._send_pending()
        gone = [escape_text(name) for name, text in notes.items() if text is None]
        kept = {escape_text(name): escape_text(text) for name, text in notes.items() if text is not None}
        if gone:
            self._connection.execute(DELETE_NOTES_SQL, self._namespace, gone)
        if kept:
            self._connection.execute(PUT_NOTES_SQL, self._namespace, [*kept], [*kept.values()])
        # Count a change. If the answer to the commit is lost, its change number shows whether the commit succeeded.
        self._connection.note_change()

    def put_vectors(self, embedder: EmbedderRecord, vectors: Mapping[str, Vectors]) -> None:
        nodes = dict(zip(vectors, self.find_many([*vectors]), strict=True))
        key = embedder_key(embedder)
        for memory_id, found in vectors.items():
            node = nodes[memory_id]
            if node is not None:
                self._pending_deletions.pieces.add((key, node))
                self._pending_rows.pieces[key, node] = self._round_to_stored(found)
        self._send_pending()

    def rebuild_derived(self, node: int, memory: Memory, stored_names: Iterable[str], stored_uses: set[str]) -> None:
        """Recompute the columns, terms, filter names and uses of texts of an existing memory."""
        self._only_new_memories = False
        self._replace_memory(node, memory, memory)
        self._pending_deletions.words.add(node)
        self._pending_rows.nodes_with_new_words.add(node)
        names = set(filter_names(memory))
        self._pending_rows.mentions |= {(name, node) for name in names}
        self._pending_deletions.mentions |= {(name, node) for name in stored_names if name not in names}
        digests = set(content_digests(memory))
        self._pending_rows.text_uses |= {(digest, node) for digest in digests - stored_uses}
        self._pending_deletions.text_uses |= {(digest, node) for digest in stored_uses - digests}

    def delete_orphaned_texts(self) -> None:
        """Delete the uses of texts by missing memories, and the texts without uses."""
        self._send_pending()
        self._connection.execute(DELETE_ORPHANED_USES_SQL, self._namespace)
        self._connection.execute(DELETE_ORPHANED_TEXTS_SQL, self._namespace)

    def mark_analysis_current(self) -> None:
        """Record that the current version of the text analysis produced all terms."""
        self._head = attrs.evolve(self.head, analysis=ANALYSIS_VERSION)
        self._is_changed = True

    def adopt(self, embedder: EmbedderRecord) -> None:
        """Make an embedder the current one, and delete the vectors of all other embedders."""
        self._connection.execute(
            "DELETE FROM pieces WHERE namespace = $1 AND embedder <> $2", self._namespace, embedder_key(embedder)
        )
        self._connection.execute(
            "UPDATE memory_heads SET embedder = $2, pieces = (SELECT count(*) FROM pieces WHERE namespace = $1) "
            "WHERE namespace = $1",
            self._namespace,
            encode_embedder(embedder),
        )
        self._is_changed = True
        self._connection.note_change()

    def finish(self) -> None:
        """Send all remaining changes. If there were any, the commit counts one change."""
        self.head  # noqa: B018 - checks the embedder
        self._send_pending(is_last=True)
        if self._is_changed:
            self._connection.note_change()

    def _check_links(self, source: str, links: Iterable[Link]) -> None:
        for link in links:
            if link.from_id != source:
                raise ValueError(f"the link {link.id} begins at another memory")
            if link.to_id == source:
                raise ValueError(f"the link {link.id} leads to the memory where it begins")
            self._require_node(link.to_id)

    def _require_node(self, memory_id: str) -> int:
        node = self.find(memory_id)
        if node is None:
            raise KeyError(memory_id)
        return node

    def _update_head_counts(self, row: PostgresMemoryRow | None, sign: int, *, pieces: int = 0) -> None:
        head = self.head
        types = [count + sign * (row is not None and place == row.type) for place, count in enumerate(head.types)]
        self._head = attrs.evolve(
            head,
            types=tuple(types),
            length=head.length + (0 if row is None else sign * row.length),
            chunk_count=head.chunk_count + pieces,
        )

    def _add_memory(self, node: int, memory: Memory, row: PostgresMemoryRow, terms: Mapping[str, int]) -> None:
        """Buffer a new memory."""
        self._head = attrs.evolve(self.head, next_node=node + 1)
        self._pending_rows.memories[node] = (memory, row, terms)
        self._pending_rows.nodes_with_new_words.add(node)
        self._rows[node], self._memories[node], self._node_of[memory.id] = row, memory, node
        self._unsent[node], self._unsent_terms[node] = memory, dict(terms)
        for known in (self._nodes_with_links, *self._nodes_with_complete_links.values()):
            known.add(node)
        # The answers of queries remain valid, because each reading method adds the memories that are not sent yet.
        self._neighbours.clear()

    def _replace_memory(self, node: int, before: Memory, memory: Memory) -> None:
        """Buffer a new version of a memory."""
        old, new = indexed_terms(before), indexed_terms(memory)
        (known,) = self._get_rows([node])
        row, counts = to_row(memory, text_length(new)), to_term_counts(new)
        self._pending_rows.memories[node] = (memory, row, counts)
        mentions, named = ({(mention, node) for mention in filter_names(one)} for one in (before, memory))
        if node in self._unsent:
            self._unsent[node], self._unsent_terms[node] = memory, dict(counts)
            self._pending_rows.mentions -= mentions - named
        else:
            self._pending_deletions.mentions |= mentions - named
            self._pending_deletions.mentions -= named
            self._pending_rows.mentions -= mentions - named
            self._update_head_counts(known, -1)
            self._update_head_counts(row, 1)
            if old != new:
                self._pending_deletions.words.add(node)
                self._pending_rows.nodes_with_new_words.add(node)
        self._pending_rows.mentions |= named - mentions if node not in self._unsent else named
        self._rows[node], self._memories[node] = row, memory
        # Do not clear the cache if the change affects no query, for example another confidence.
        if node in self._unsent or (row, new) != (known, old):
            self._must_send_before_query |= node not in self._unsent
            self._clear_cache()
        elif named != mentions:
            # For example a new outcome. It affects only queries that filter by the changed names.
            changed = {name for name, _ in named ^ mentions}
            self._unsent_names |= changed
            self._answers = {query: found for query, found in self._answers.items() if not uses_names(query, changed)}

    def _clear_cache(self) -> None:
        self._answers.clear()
        self._frequencies.clear()
        self._counts.clear()
        self._neighbours.clear()
        self._sample = None

    def _put_link(self, link: Link, *, is_new: bool = False) -> None:
        source, target = self._require_node(link.from_id), self._require_node(link.to_id)
        if (
            not is_new
            and source not in self._nodes_with_links
            and source not in self._nodes_with_complete_links["source"]
        ):
            self.find_links([link.id])
        before = None if is_new else self._links.get(link.id)
        if before is not None:
            self._only_new_memories = False
            self._is_changed = True
            self._remove_link(link.id)
        row = LinkRow(
            source,
            target,
            TYPE_NUMBERS[link.link_type],
            CREATORS.index(link.created_by),
            to_milliseconds(link.created_at),
            float(np.float32(link.confidence)),
            link.metadata.original_relationship,
        )
        self._links.put(link.id, row)
        self._complete_links[link.id] = link
        if link.id in self._pending_deletions.links:
            self._pending_deletions.links.discard(link.id)
            self._link_count_change += 1
        self._pending_rows.links[link.id] = (link, row)
        self._is_changed = True

    def _delete_link(self, link_id: str) -> None:
        self._remove_link(link_id, is_deleted=True)
        self._pending_rows.links.pop(link_id, None)
        self._pending_deletions.links.add(link_id)

    def _update_texts(
        self, node: int, before: Memory | None, after: Memory | None, contents: Mapping[str, str]
    ) -> None:
        """Store the texts to which a memory refers, and release those to which only its previous version refers."""
        named, kept = (() if one is None else content_digests(one) for one in (before, after))
        for digest in kept:
            if digest in contents:
                self._pending_rows.texts[digest] = contents[digest]
                self._stored_digests[digest] = True
            # Accept a lost text that the memory already refers to. Otherwise the memory could no longer be changed.
            elif digest not in named and digest not in self._pending_rows.texts and not self.known_contents([digest]):
                raise KeyError(digest)
            if digest not in named:
                self._pending_deletions.text_uses.discard((digest, node))
                self._pending_rows.text_uses.add((digest, node))
        for digest in named:
            if digest not in kept:
                self._released_digests.add(digest)
                # Drop the cached state of the text, because only the server knows whether other memories refer to it.
                self._stored_digests.pop(digest, None)
                self._must_send_before_query = True
                self._pending_rows.text_uses.discard((digest, node))
                self._pending_deletions.text_uses.add((digest, node))

    def _round_to_stored(self, vectors: Vectors) -> Vectors:
        """Return vectors with the rounding errors of the stored precision."""
        return round_to_half(vectors) if self.head.half_precision else np.asarray(vectors, np.float32)

    # Sending.

    def _cache_sample(self, sample: CachedSample) -> None:
        # Do not cache a sample that includes changes of this transaction, because they may be rolled back.
        if not self._has_sent:
            super()._cache_sample(sample)

    def _fetch(self, queries: Iterable[NodeQuery], fetch_spec: FetchSpec | None = None, **others: Any) -> None:
        new = [*queries]
        if self._must_send_before_query or any(uses_names(query, self._unsent_names) for query in new):
            self._send_pending()
        super()._fetch(new, fetch_spec, **others)

    def _send_pending(self, *, is_last: bool = False) -> None:
        if self._pending_deletions or self._pending_rows or (is_last and self._is_changed):
            self._send_all()
        if self._released_digests:
            self._connection.execute(DELETE_TEXTS_SQL, self._namespace, [*self._released_digests])
            self._released_digests.clear()
        self._must_send_before_query = False
        self._unsent_names.clear()

    def _add_deletions(self, statement: Statement) -> None:
        """
        Add the deletions to a statement.

        A deleted row must not be inserted too, because the parts of a statement do not see each other's effects.
        """
        old, pieces = self._pending_deletions, self._pending_rows.pieces
        # The insert overwrites chunks that are replaced, so only surplus chunks are deleted.
        gone = {
            "pieces": (
                "embedder = o.a AND t.node = o.b AND t.place >= o.c",
                [(*one, len(pieces[one])) for one in old.pieces],
            ),
            "mentions": ("mention = o.a AND t.node = o.b", [(escape_text(one), node, 0) for one, node in old.mentions]),
            "text_uses": ("digest = o.a AND t.node = o.b", [(*one, 0) for one in old.text_uses]),
            "links": ("id = o.a", [(escape_text(one), 0, 0) for one in old.links]),
        }
        for name, (rule, rows) in gone.items():
            if rows:
                keys = statement.add_values_table(f"old_{name}", rows, a="text", b="bigint", c="integer")
                statement.add_table(
                    f"drop_{name}", f"DELETE FROM {name} t USING {keys} o WHERE t.namespace = $1 AND t.{rule}"
                )
        if old.words:
            nodes = statement.add_argument([*old.words], "bigint[]")
            statement.add_table(
                "drop_terms",
                # Delete by key lookups, and exclude the terms that remain. Comparing all pairs of terms takes minutes.
                "DELETE FROM terms WHERE namespace = $1 AND ctid = ANY(ARRAY("
                "SELECT t.ctid FROM memories m, unnest(m.terms) AS o(term), LATERAL (SELECT ctid FROM terms "
                "WHERE namespace = $1 AND term = o.term AND node = m.node OFFSET 0) t "
                f"WHERE m.namespace = $1 AND m.node = ANY({nodes}) AND (m.node, o.term) NOT IN "
                f"(SELECT node, unnest({LIST_COLUMNS_SQL['terms']}) FROM new_memories)))",
            )

    def _send_all(self) -> None:
        statement, out = Statement(self._namespace, self.head.memory_count), self._pending_rows
        if out.memories:
            self._add_memory_rows(statement)
        pieces = [
            (key, node, place, VectorArgument(vector))
            for (key, node), vectors in out.pieces.items()
            for place, vector in enumerate(vectors)
        ]
        mentions = [(escape_text(mention), node) for mention, node in out.mentions]
        self._add_deletions(statement)
        texts = [(digest, text.encode()) for digest, text in out.texts.items()]
        key = ("embedder", "node", "place")
        column = {"half": "halfvec"} if self.head.half_precision else {"vector": "vector"}
        statement.add_insert("pieces", pieces, key=key, embedder="text", node="bigint", place="integer", **column)
        statement.add_insert("mentions", mentions, mention="text", node="bigint")
        statement.add_insert("texts", texts, key=("digest",), digest="text", text="bytea")
        statement.add_insert("text_uses", [*out.text_uses], digest="text", node="bigint")
        self._add_link_rows(statement)
        for node in self._unsent:
            own = len(out.pieces.get((self._embedder_key, node), ()))
            self._update_head_counts(self._rows[node], 1, pieces=own)
        if self._is_changed:
            self._add_head_row(statement, with_links=bool(out.links))
        self._connection.execute(statement.write_sql, *statement.arguments)
        self._has_sent = True
        self._pending_rows, self._pending_deletions = _PendingRows(), _PendingDeletions()
        if self._unsent:
            self._unsent.clear()
            self._unsent_terms.clear()
            self._clear_cache()

    def _add_memory_rows(self, statement: Statement) -> None:
        rows = [
            (
                node,
                escape_text(row.memory_id),
                encode_entry(Entry(memory)),
                row.created,
                row.type,
                None if row.topic is None else escape_text(row.topic),
                row.scripts,
                row.asking,
                row.ends,
                row.origin,
                row.trust,
                row.wording,
                row.length,
                LIST_SEPARATOR.join(terms),
                LIST_SEPARATOR.join(map(str, terms.values())),
                LIST_SEPARATOR.join(extract_topic_terms(row.topic)),
            )
            for node, (memory, row, terms) in self._pending_rows.memories.items()
        ]
        memories = statement.add_values_table("new_memories", rows, **MEMORY_COLUMNS)
        columns = ", ".join(name for name in MEMORY_COLUMNS)
        listed = ", ".join(LIST_COLUMNS_SQL.get(name, name) for name in MEMORY_COLUMNS)
        changed = ", ".join(f"{name} = excluded.{name}" for name in MEMORY_COLUMNS if name not in {"node", "id"})
        statement.add_table(
            "put_memories",
            f"INSERT INTO memories (namespace, {columns}) SELECT $1, {listed} FROM {memories} "
            f"ON CONFLICT (namespace, node) DO UPDATE SET {changed}",
        )
        worded = statement.add_argument([*self._pending_rows.nodes_with_new_words], "bigint[]")
        statement.add_table(
            "put_terms",
            "INSERT INTO terms (namespace, term, node, count, length) SELECT $1, t.term, n.node, t.count, n.length "
            f"FROM {memories} n, unnest({LIST_COLUMNS_SQL['terms']}, {LIST_COLUMNS_SQL['counts']}) AS t(term, count) "
            f"WHERE n.node = ANY({worded}) "
            "ON CONFLICT (namespace, term, node) DO UPDATE SET count = excluded.count, length = excluded.length",
        )

    def _add_link_rows(self, statement: Statement) -> None:
        rows = [
            (
                escape_text(link.id),
                row.source,
                row.target,
                row.type,
                row.creator,
                row.confidence,
                row.created,
                escape_text(link.metadata.original_relationship),
                _encode_json(link),
            )
            for link, row in self._pending_rows.links.values()
        ]
        statement.add_insert(
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

    def _add_head_row(self, statement: Statement, *, with_links: bool) -> None:
        head = self.head
        values = {
            "embedder": (encode_embedder(self._embedder), "text"),
            "next_node": (head.next_node, "bigint"),
            "types": ([*head.types] if head.memory_count else [0] * MEMORY_TYPE_COUNT, "bigint[]"),
            "length": (head.length, "bigint"),
            "links": (self._link_count_change, "bigint"),
            "pieces": (head.chunk_count, "bigint"),
            "analysis": (head.analysis, "integer"),
            "half": (head.half_precision, "boolean"),
            "last_modifying_change": (0 if self._only_new_memories else head.change + 1, "bigint"),
        }
        given = {name: statement.add_argument(*value) for name, value in values.items()}
        if with_links:
            # Replacing a link does not change the number of links.
            known = "SELECT FROM links l WHERE l.namespace = $1 AND l.id = n.id"
            given["links"] += f" + (SELECT count(*) FROM new_links n WHERE NOT EXISTS ({known}))"
        replaced = given.keys() - {"links", "half", "last_modifying_change"}
        changed = ", ".join(f"{name} = excluded.{name}" for name in given if name in replaced)
        self._link_count_change = 0
        statement.add_table(
            "put_head",
            f"INSERT INTO memory_heads (namespace, {', '.join(given)}) VALUES ($1, {', '.join(given.values())}) "
            f"ON CONFLICT (namespace) DO UPDATE SET {changed}, links = memory_heads.links + excluded.links, "
            "last_modifying_change = greatest(memory_heads.last_modifying_change, excluded.last_modifying_change)",
        )


MEMORY_COLUMNS: Final = {
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
# Each list is sent as one delimited text, because PostgreSQL requires that nested arrays have equal lengths.
LIST_COLUMNS_SQL: Final = {
    "terms": "string_to_array(terms, chr(31))",
    "counts": "string_to_array(counts, chr(31))::smallint[]",
    "topic_terms": "string_to_array(topic_terms, chr(31))",
}
DELETE_MEMORY_SQL: Final = """
    WITH gone AS (DELETE FROM memories WHERE namespace = $1 AND node = $2),
    words AS (DELETE FROM terms WHERE namespace = $1 AND node = $2
              AND term = ANY((SELECT terms FROM memories WHERE namespace = $1 AND node = $2)::text[])),
    named AS (DELETE FROM mentions WHERE namespace = $1 AND node = $2),
    used AS (DELETE FROM text_uses WHERE namespace = $1 AND node = $2),
    tied AS (DELETE FROM links WHERE namespace = $1 AND (source = $2 OR target = $2)),
    seen AS (DELETE FROM pieces WHERE namespace = $1 AND node = $2 RETURNING embedder)
    SELECT count(*) AS gone FROM seen WHERE embedder = $3
"""
DELETE_TEXTS_SQL: Final = """
    DELETE FROM texts t WHERE t.namespace = $1 AND t.digest = ANY($2::text[])
    AND NOT EXISTS (SELECT FROM text_uses u WHERE u.namespace = $1 AND u.digest = t.digest)
"""
DELETE_ORPHANED_USES_SQL: Final = """
    DELETE FROM text_uses u WHERE u.namespace = $1
    AND NOT EXISTS (SELECT FROM memories m WHERE m.namespace = $1 AND m.node = u.node)
"""
DELETE_ORPHANED_TEXTS_SQL: Final = """
    DELETE FROM texts t WHERE t.namespace = $1
    AND NOT EXISTS (SELECT FROM text_uses u WHERE u.namespace = $1 AND u.digest = t.digest)
"""


def to_row(memory: Memory, length: int) -> PostgresMemoryRow:
    """Return the columns of a memory without its text."""
    changeable_columns = mutable_columns(memory)
    return PostgresMemoryRow(
        memory.id,
        None if memory.topic is None else to_nfc(memory.topic),
        to_milliseconds(memory.created_at),
        TYPE_NUMBERS[memory.type],
        changeable_columns["scripts"],
        changeable_columns["asking"],
        changeable_columns["ends_ms"],
        changeable_columns["origin"],
        changeable_columns["trust"],
        changeable_columns["wording"],
        length,
    )
