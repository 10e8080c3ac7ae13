"""Comparison and repair of derived data on a server against the stored memories."""

from __future__ import annotations

from typing import Any, Final, cast

from mama_structs.errors import StoreDamaged
from mama_structs.memory.embedding.protocol import are_unit
from mama_structs.memory.engines.postgres.queries import read, stored
from mama_structs.memory.engines.postgres.reader import PostgresReader, counted, length_of
from mama_structs.memory.engines.postgres.writer import PostgresWriter, row_of
from mama_structs.memory.types.codec import indexed_terms
from mama_structs.memory.types.engine import Reader, Writer, names_of
from mama_structs.memory.types.model import Memory, digests_in
from mama_structs.storage.sqlite_errors import Finding

_PAGE: Final = 100
# OFFSET 0 forces a lookup by key for each term. Without statistics the planner would compare all rows with all others.
_MEMORIES: Final = """
    SELECT m.node, m.terms, m.counts,
        (SELECT count(*) FROM unnest(m.terms, m.counts) AS u(term, count), LATERAL (SELECT FROM terms t
            WHERE t.namespace = $1 AND t.term = u.term AND t.node = m.node AND t.count = u.count AND t.length = m.length
            OFFSET 0) AS t) AS indexed,
        ARRAY(SELECT n.mention FROM mentions n WHERE n.namespace = $1 AND n.node = m.node) AS mentions,
        ARRAY(SELECT u.digest FROM text_uses u WHERE u.namespace = $1 AND u.node = m.node) AS digests
    FROM memories m WHERE m.namespace = $1 AND m.node > $2 ORDER BY m.node LIMIT $3
"""
_LINKS: Final = """
    SELECT l.id FROM links l WHERE l.namespace = $1 AND NOT
        (EXISTS (SELECT FROM memories m WHERE m.namespace = $1 AND m.node = l.source)
         AND EXISTS (SELECT FROM memories m WHERE m.namespace = $1 AND m.node = l.target))
"""
_TEXTS: Final = """
    SELECT DISTINCT u.digest FROM text_uses u LEFT JOIN texts t ON t.namespace = $1 AND t.digest = u.digest
    WHERE u.namespace = $1 AND encode(sha256(t.text), 'hex') IS DISTINCT FROM u.digest
"""
_ORPHANS: Final = """
    SELECT digest AS key, 'a kept text that no memory names' AS said FROM texts t WHERE t.namespace = $1
        AND NOT EXISTS (SELECT FROM text_uses u WHERE u.namespace = $1 AND u.digest = t.digest)
    UNION SELECT node::text, said FROM (
        SELECT node, 'vectors without a memory' AS said FROM pieces WHERE namespace = $1
        UNION SELECT node, 'words without a memory' FROM terms WHERE namespace = $1
        UNION SELECT node, 'mentions without a memory' FROM mentions WHERE namespace = $1
        UNION SELECT node, 'a text is kept for a memory that is not there' FROM text_uses WHERE namespace = $1
    ) AS derived WHERE NOT EXISTS (SELECT FROM memories m WHERE m.namespace = $1 AND m.node = derived.node)
"""


class ServerInspection:
    """Incremental check or repair of all memories of a namespace, one page per call."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.memories: int = 0
        self._after = -1

    def step(self, reader: Reader) -> bool:
        """
        Check the next page of memories, or the links and texts after the last page.

        Return False when done.
        """
        looking = cast("PostgresReader", reader)
        rows = self._page(looking)
        for row in rows:
            self._look_at(looking, row)
        if rows:
            self._after = rows[-1]["node"]
            return True
        self._look_at_the_rest(looking)
        return False

    def mend(self, writer: Writer) -> bool:
        """
        Recompute the derived columns and terms of the next page of memories.

        Return False when done.
        """
        mending = cast("PostgresWriter", writer)
        rows = self._page(mending)
        for row in rows:
            memory = self._memory(mending, row["node"])
            if memory is not None:
                mending.derive(row["node"], memory)
        if rows:
            self._after = rows[-1]["node"]
        else:
            mending.analysed()
        return bool(rows)

    def _page(self, reader: PostgresReader) -> list[Any]:
        rows = reader.rows_from(_MEMORIES, self._after, _PAGE)
        reader.load([row["node"] for row in rows])
        return rows

    def _memory(self, reader: PostgresReader, node: int) -> Memory | None:
        self.memories += 1
        try:
            (memory,) = reader.get([node])
        except StoreDamaged as error:
            self._note("memory", error.findings[0], str(node))
            return None
        return memory

    def _look_at(self, reader: PostgresReader, row: Any) -> None:
        node = row["node"]
        memory = self._memory(reader, node)
        if memory is None:
            return
        terms = indexed_terms(memory)
        if reader.row(node) != row_of(memory, length_of(terms)):
            self._note("memory", f"the columns of {memory.id} do not follow from it", memory.id)
        is_whole = dict(zip(row["terms"], row["counts"], strict=True)) == counted(terms)
        if not is_whole or row["indexed"] != len(terms):
            self._note("words", f"the words of {memory.id} do not follow from it", memory.id)
        if set(row["mentions"]) != {stored(mention) for mention in names_of(memory)}:
            self._note("memory", f"what {memory.id} mentions does not follow from it", memory.id)
        if set(row["digests"]) != set(digests_in(memory.evidence)):
            self._note("memory", f"the evidence of {memory.id} does not follow from it", memory.id)
        vectors = reader.vectors(node)
        if not len(vectors) or not are_unit(vectors):
            self._note("vectors", f"the vectors of {memory.id} are missing, or not of length 1", memory.id)

    def _look_at_the_rest(self, reader: PostgresReader) -> None:
        for row in reader.rows_from(_LINKS):
            self._note("link", f"the link {read(row['id'])} ends at no memory", read(row["id"]))
        for row in reader.rows_from(_TEXTS):
            self._note("evidence", f"the text {row['digest']} is gone or another one", row["digest"])
        for row in reader.rows_from(_ORPHANS):
            self._note("orphan", f"{row['key']}: {row['said']}", row["key"])

    def _note(self, kind: str, message: str, key: str) -> None:
        self.findings.append(Finding("error", kind, message, key))
