"""
Reader of claude-mem's database.

An observation becomes an insight whose topic is the project, and an observation of the type ``decision`` a decision.
The summary of a session becomes a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.importers.shared.import_model import ImportedData, ImportedMemory, compute_digest, to_topic
from mama_structs.importers.shared.safe_files import import_error
from mama_structs.importers.shared.sqlite_copy import SqliteCopy, is_virtual, open_copy
from mama_structs.importers.shared.value_readers import ForeignRow, read_time
from mama_structs.memory.embedding.chunks import replace_surrogates
from mama_structs.memory.types.requests import MAX_ITEM_CHARS, MAX_ITEMS

KIND: Final = "claude-mem"
SOURCE: Final = "claude-mem"
"""The source of the imported memories; `MemoryStore.erase` can select them by it."""
OBSERVATIONS: Final = "observations"
SUMMARIES: Final = "session summaries"
OBSERVATIONS_TABLE: Final = "observations"
SUMMARIES_TABLE: Final = "session_summaries"
DATABASE_FILE: Final = "claude-mem.db"
DECISION: Final = "decision"
# The rows of all other tables are counted and skipped.
SKIP_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "user_prompts": ("no_memory", "prompts without their answers; the summaries have the requests"),
    "sdk_sessions": ("no_memory", "the memories have the ids of their sessions"),
    "tool_uses": ("no_memory", "inputs and outputs of tools, from which the observations were made"),
}
OTHER_REASON: Final = ("no_memory", "data for claude-mem's own work")
SUMMARY_SECTIONS: Final = ("request", "investigated", "learned", "completed", "notes")
LOCATION_HINT: Final = "claude-mem keeps its memories in ~/.claude-mem/claude-mem.db"


def read(path: Path) -> ImportedData:
    """
    Read claude-mem's database, or the folder that contains it, without changing it. Blocks.

    Raises:
        InvalidArgument: The file does not exist.
        MigrationError: The file is damaged, being written to, too large, or not a database of claude-mem.

    """
    file = path / DATABASE_FILE if path.is_dir() else path
    if file != path and not file.exists():
        raise InvalidArgument(f"{str(path)!r:.200} has no {DATABASE_FILE}", hint=LOCATION_HINT)
    with open_copy(file, kind="the database of claude-mem", program="claude-mem") as database:
        database.check()
        if not {"project", "type", "created_at_epoch"} <= set(database.columns(OBSERVATIONS_TABLE)):
            raise import_error(file, "is a database, and none of claude-mem", LOCATION_HINT)
        found = _TableCollector(KIND, path, (OBSERVATIONS, SUMMARIES))
        found.add_database(database)
    return found


@attrs.define
class _TableCollector(ImportedData):
    """Collects the memories of claude-mem's tables."""

    def add_database(self, database: SqliteCopy) -> None:
        """Add the observations and summaries, and count the rows of all other tables."""
        tables = database.table_definitions()
        # Prefixes of the internal tables of SQLite and of its full-text indexes.
        hidden = ("sqlite_", *(f"{name}_" for name, sql in tables.items() if is_virtual(sql)))
        for row in database.rows(OBSERVATIONS_TABLE):
            self._add_observation(row)
        for row in database.rows(SUMMARIES_TABLE) if SUMMARIES_TABLE in tables else ():
            self._add_summary(row)
        for table, sql in tables.items():
            is_known = table in {OBSERVATIONS_TABLE, SUMMARIES_TABLE}
            if not is_known and not is_virtual(sql) and not table.startswith(hidden):
                count = database.count(table)
                if count:
                    self.skip(table, "all", *SKIP_REASONS.get(table, OTHER_REASON), count=count)

    def _add_observation(self, row: ForeignRow) -> None:
        title, told = _text(row, "title"), _text(row, "narrative") or _text(row, "text")
        facts = "\n".join(f"- {fact}" for fact in self._read_list(OBSERVATIONS, row, "facts"))
        head = ": ".join(filter(None, (title, _text(row, "subtitle"))))
        body = "\n\n".join(filter(None, (told, facts)))
        if not head and not body:
            self.skip(OBSERVATIONS, f"row {row.number}", "no_text", "it has no text")
            return
        tags = self._read_list(OBSERVATIONS, row, "concepts")
        record: dict[str, Any]
        if _text(row, "type") == DECISION and title:
            # With the project as topic, all decisions of a project would be versions of one decision.
            record = {"type": "decision", "topic": to_topic(title), "content": head, "reasoning": body}
            tags = [*filter(None, [_read_project(row)]), *tags]
        else:
            record = {"type": "insight", "content": "\n\n".join(filter(None, (head, body)))}
            record["category"] = _text(row, "type") or None
        files = {name: self._read_list(OBSERVATIONS, row, name) for name in ("files_read", "files_modified")}
        self._add_memory(OBSERVATIONS, row, {**record, "tags": tags}, (title, told), files)

    def _add_summary(self, row: ForeignRow) -> None:
        sections = {name.capitalize(): text for name in SUMMARY_SECTIONS if (text := _text(row, name))}
        steps = _text(row, "next_steps")
        if not sections and not steps:
            self.skip(SUMMARIES, f"row {row.number}", "no_text", "it has no text")
            return
        content = "\n".join(f"{name}: {text}" for name, text in sections.items()) or f"Next steps: {steps}"
        record = {
            "type": "checkpoint",
            "content": content,
            "next_steps": [steps[:MAX_ITEM_CHARS]] if steps else [],
            "open_files": self._read_list(SUMMARIES, row, "files_edited"),
        }
        files = {"files_read": self._read_list(SUMMARIES, row, "files_read")}
        self._add_memory(SUMMARIES, row, record, (content, steps), files)

    def _add_memory(
        self, what: str, row: ForeignRow, record: Mapping[str, Any], texts: tuple[str, ...], extra: Mapping[str, Any]
    ) -> None:
        """Add a memory. Its key is the same in a copy of the database that another machine has synchronized."""
        self.found[what] += 1
        session = _text(row, "memory_session_id") or _text(row, "sdk_session_id")
        project = _read_project(row)
        moment = read_time(row.get("created_at_epoch")).at or read_time(row.get("created_at")).at
        key = f"{what} {session}/{compute_digest(*texts)}"
        if moment is None:
            self.add_odd(what, key, "no_time", "it has no time: it gets the time of the import")
        filled = {"topic": to_topic(project) or None, **record, "source": SOURCE, "created_at": moment}
        place = {"row": row.number, "session": session, "project": project, **extra}
        given = {name: value for name, value in place.items() if value}
        self.memories.append(ImportedMemory(what=what, key=key, record=filled, extra={KIND: given}))

    def _read_list(self, what: str, row: ForeignRow, column: str) -> list[str]:
        """Return the texts of a column with a JSON list. Any other text is one item."""
        text = _text(row, column)
        if not text:
            return []
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = text
        items = found if isinstance(found, list) else [found]
        texts = [replace_surrogates(item.strip()[:MAX_ITEM_CHARS]) for item in items if isinstance(item, str)]
        texts = [one for one in texts if one]
        if len(texts) < len(items) or len(texts) > MAX_ITEMS:
            self.add_odd(what, f"row {row.number}", "not_texts", f"{column} has items that are left out")
        return texts[:MAX_ITEMS]


def _text(row: ForeignRow, column: str) -> str:
    return (row.text(column) or "").strip()


def _read_project(row: ForeignRow) -> str:
    return _text(row, "merged_into_project") or _text(row, "project")
