"""Check and repair of a server's derived data, by comparison with the stored memories."""

from __future__ import annotations

from typing import Any, Final, cast

from mama_structs.errors import StoreDamaged
from mama_structs.memory.engines.postgres.namespace_rows import text_length, to_term_counts
from mama_structs.memory.engines.postgres.queries import escape_text, unescape_text
from mama_structs.memory.engines.postgres.reader import PostgresReader
from mama_structs.memory.engines.postgres.writer import PostgresWriter, to_row
from mama_structs.memory.types.codec import are_unit_vectors, content_digests, indexed_terms
from mama_structs.memory.types.engine import Reader, Writer, filter_names
from mama_structs.memory.types.model import Memory
from mama_structs.storage.sqlite_errors import Issue

PAGE_ROWS: Final = 100
# OFFSET 0 forces one key lookup per term. Otherwise a planner without statistics would compare all pairs of rows.
MEMORIES_SQL: Final = """
    SELECT m.node, m.terms, m.counts,
        (SELECT count(*) FROM unnest(m.terms, m.counts) AS u(term, count), LATERAL (SELECT FROM terms t
            WHERE t.namespace = $1 AND t.term = u.term AND t.node = m.node AND t.count = u.count AND t.length = m.length
            OFFSET 0) AS t) AS indexed,
        ARRAY(SELECT n.mention FROM mentions n WHERE n.namespace = $1 AND n.node = m.node) AS mentions,
        ARRAY(SELECT u.digest FROM text_uses u WHERE u.namespace = $1 AND u.node = m.node) AS digests
    FROM memories m WHERE m.namespace = $1 AND m.node > $2 ORDER BY m.node LIMIT $3
"""
BROKEN_LINKS_SQL: Final = """
    SELECT l.id FROM links l WHERE l.namespace = $1 AND NOT
        (EXISTS (SELECT FROM memories m WHERE m.namespace = $1 AND m.node = l.source)
         AND EXISTS (SELECT FROM memories m WHERE m.namespace = $1 AND m.node = l.target))
"""
BROKEN_TEXTS_SQL: Final = """
    SELECT DISTINCT u.digest FROM text_uses u LEFT JOIN texts t ON t.namespace = $1 AND t.digest = u.digest
    WHERE u.namespace = $1 AND encode(sha256(t.text), 'hex') IS DISTINCT FROM u.digest
"""
ORPHANS_SQL: Final = """
    SELECT digest AS key, 'a kept text that no memory names' AS said FROM texts t WHERE t.namespace = $1
        AND NOT EXISTS (SELECT FROM text_uses u WHERE u.namespace = $1 AND u.digest = t.digest)
    UNION SELECT node::text, said FROM (
        SELECT node, 'vectors without a memory' AS said FROM pieces WHERE namespace = $1
        UNION SELECT node, 'words without a memory' FROM terms WHERE namespace = $1
        UNION SELECT node, 'mentions without a memory' FROM mentions WHERE namespace = $1
        UNION SELECT node, 'a text is kept for a memory that is not there' FROM text_uses WHERE namespace = $1
    ) AS derived WHERE NOT EXISTS (SELECT FROM memories m WHERE m.namespace = $1 AND m.node = derived.node)
"""


class PostgresConsistencyCheck:
    """Checks or repairs all memories of a namespace, one page per call."""

    def __init__(self) -> None:
        self.findings: list[Issue] = []
        self.checked_count: int = 0
        self._last_node = -1

    def check_page(self, reader: Reader) -> bool:
        """
        Check the next page of memories. After the last page, check the links and the texts.

        Return False when everything is checked.
        """
        postgres_reader = cast("PostgresReader", reader)
        rows = self._read_page(postgres_reader)
        for row in rows:
            self._check_memory(postgres_reader, row)
        if rows:
            self._last_node = rows[-1]["node"]
            return True
        self._check_links_and_texts(postgres_reader)
        return False

    def repair_page(self, writer: Writer) -> bool:
        """
        Recompute the derived columns, terms, filter names and uses of texts of the next page of memories.

        Return False after the last page, when the uses of missing memories and the texts without uses are deleted.
        """
        postgres_writer = cast("PostgresWriter", writer)
        rows = self._read_page(postgres_writer)
        for row in rows:
            memory = self._read_memory(postgres_writer, row["node"])
            if memory is not None:
                postgres_writer.rebuild_derived(
                    row["node"], memory, map(unescape_text, row["mentions"]), set(row["digests"])
                )
        if rows:
            self._last_node = rows[-1]["node"]
        else:
            postgres_writer.delete_orphaned_texts()
            postgres_writer.mark_analysis_current()
        return bool(rows)

    def _read_page(self, reader: PostgresReader) -> list[Any]:
        rows = reader.fetch_rows(MEMORIES_SQL, self._last_node, PAGE_ROWS)
        reader.fetch_for_check([row["node"] for row in rows])
        return rows

    def _read_memory(self, reader: PostgresReader, node: int) -> Memory | None:
        self.checked_count += 1
        try:
            (memory,) = reader.get_stored([node])
        except StoreDamaged as error:
            self._add_issue("memory", error.findings[0], str(node))
            return None
        return memory

    def _check_memory(self, reader: PostgresReader, row: Any) -> None:
        node = row["node"]
        memory = self._read_memory(reader, node)
        if memory is None:
            return
        terms = indexed_terms(memory)
        if reader.fetch_row(node) != to_row(memory, text_length(terms)):
            self._add_issue("memory", f"the columns of {memory.id} do not follow from it", memory.id)
        is_whole = dict(zip(row["terms"], row["counts"], strict=True)) == to_term_counts(terms)
        if not is_whole or row["indexed"] != len(terms):
            self._add_issue("words", f"the words of {memory.id} do not follow from it", memory.id)
        if set(row["mentions"]) != {escape_text(mention) for mention in filter_names(memory)}:
            self._add_issue("memory", f"what {memory.id} mentions does not follow from it", memory.id)
        if set(row["digests"]) != set(content_digests(memory)):
            self._add_issue(
                "memory", f"the texts of {memory.id}, evidence or former versions, do not follow from it", memory.id
            )
        vectors = reader.vectors(node)
        if not len(vectors) or not are_unit_vectors(vectors):
            self._add_issue("vectors", f"the vectors of {memory.id} are missing, or not of length 1", memory.id)

    def _check_links_and_texts(self, reader: PostgresReader) -> None:
        for row in reader.fetch_rows(BROKEN_LINKS_SQL):
            self._add_issue("link", f"the link {unescape_text(row['id'])} ends at no memory", unescape_text(row["id"]))
        for row in reader.fetch_rows(BROKEN_TEXTS_SQL):
            self._add_issue("evidence", f"the text {row['digest']} is gone or another one", row["digest"])
        for row in reader.fetch_rows(ORPHANS_SQL):
            self._add_issue("orphan", f"{row['key']}: {row['said']}", row["key"])

    def _add_issue(self, kind: str, message: str, key: str) -> None:
        self.findings.append(Issue("error", kind, message, key))
