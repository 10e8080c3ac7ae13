"""
Reader of mem0 memories.

It reads the files of mem0's default local configuration, or the JSON result of ``get_all``.
Memories become records in the format of `mama_structs.adapters.mem0`, with their ids and histories. A host that
switches to that adapter therefore finds them. Since the records have texts, searches of the session find them too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import md5
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.importers.mem0.safe_pickle import PickledObject, read_pickle, to_jsonable_data
from mama_structs.importers.shared.import_model import ImportedData, ImportedRecord
from mama_structs.importers.shared.json_values import read_json, read_json_file, repair_json
from mama_structs.importers.shared.safe_files import import_error, list_files, read_start
from mama_structs.importers.shared.sqlite_copy import SQLITE_MAGIC, SqliteCopy, open_copy
from mama_structs.importers.shared.value_readers import ForeignRow, read_time, to_jsonable_value

KIND: Final = "mem0"
MEMORY_LABELS: Final = ("mem0", "memories")
"""The labels of imported memories; the record's key is the memory id, its value the mem0 payload."""
HISTORY_LABELS: Final = ("mem0", "history")
"""The labels of the records with the events of a memory, oldest first."""
MEMORIES: Final = "memories"
DELETED_MEMORIES: Final = "deleted memories"
MEMORIES_OF_OTHERS: Final = "memories of others"
_ENTITIES: Final = "entities"
_MESSAGES: Final = "messages"
OTHER_POINTS: Final = "other points"
_GRAPH_RELATIONS: Final = "graph relations"
_FILES: Final = "files"
POINTS_FILE: Final = "storage.sqlite"
_HISTORY_FILE: Final = "history.db"
MAX_FOLDER_DEPTH: Final = 3
NON_PAYLOAD_FIELDS: Final = frozenset({"id", "memory", "metadata", "score", "score_details"})
NUMBER: Final = re.compile(r"\s*\d+(?:\.\d*)?\s*")
PAYLOAD_TIMES: Final = ("created_at", "updated_at")
# mem0 derives these fields from the text, so they are not imported.
DERIVED_FIELDS: Final = frozenset({"text_lemmatized"})
EVENT_COLUMNS: Final = (
    "id",
    "memory_id",
    "old_memory",
    "new_memory",
    "event",
    "created_at",
    "updated_at",
    "is_deleted",
    "actor_id",
    "role",
)
SKIP_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    _ENTITIES: ("derived", "mem0 derived it from its memories, to find them by"),
    _MESSAGES: ("no_memory", "the last messages, which mem0 keeps for its model, are no memories"),
    DELETED_MEMORIES: ("deleted", "it was deleted in mem0, and only its history is there"),
    OTHER_POINTS: ("no_memory", "mem0's own, and no memory"),
    _GRAPH_RELATIONS: ("derived", "mem0 derived them from its memories"),
}
LOCATION_HINT: Final = (
    "mem0 keeps its memories in Qdrant's folder (/tmp/qdrant unless told otherwise), and their history in "
    "~/.mem0/history.db; a file with what get_all() gives as JSON is taken, too"
)


def read(path: Path, *, user: str | None = None) -> ImportedData:
    """
    Read mem0 data without changing it. Blocks.

    Args:
        path: Qdrant's folder, a folder with it and the history up to three levels below, one of their files, or a JSON
            file.
        user: Only this user's memories; None for all. Memories without a user are assigned to this user.

    Raises:
        InvalidArgument: The file or folder does not exist or contains no mem0 data.
        MigrationError: A file is damaged, being written to, too large, or not written by mem0.

    """
    found = _Mem0Collector(KIND, path, (MEMORIES,), user)
    for file in _find_files(path, found):
        if read_start(file, "a file of mem0", len(SQLITE_MAGIC)) == SQLITE_MAGIC:
            with open_copy(file, kind="a database of mem0", program="mem0") as database:
                database.check()
                found.add_database(database)
        else:
            found.add_json(file)
    found.finish()
    return found


def read_expiry(value: Any) -> datetime | None:
    """Return the expiry time of a memory: the end of its expiration date in UTC."""
    if value is None:
        return None
    try:
        day = value if type(value) is date else date.fromisoformat(str(value))
    except ValueError:
        return None
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)


def compute_hash(text: str) -> str:
    """Return the hash of a memory's text, computed as in mem0."""
    return md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def _find_files(path: Path, found: ImportedData) -> list[Path]:
    """Return the mem0 files below a folder, files with memories first. If the path is a file, return only that."""
    if not path.is_dir():
        return [path]
    names = (POINTS_FILE, _HISTORY_FILE)
    files = []
    for file, problem in list_files(path, depth=MAX_FOLDER_DEPTH):
        if problem is None and file.name in names:
            files.append(file)
        elif file.name in names or (problem is not None and file.is_dir() and not file.is_symlink()):
            name = file.relative_to(path).as_posix()
            found.skip(_FILES, name, "not_read", problem or "it cannot be read")
    if not files:
        raise InvalidArgument(f"{str(path)!r:.200} has nothing of mem0 in it", hint=LOCATION_HINT)
    return sorted(files, key=lambda file: (names.index(file.name), len(file.parts), file))


@attrs.define
class _Mem0Collector(ImportedData):
    """Collects payloads and events from mem0 files."""

    user: str | None
    payloads: dict[str, dict[str, Any]] = attrs.field(init=False, factory=dict)
    # The ids of all points, including skipped points.
    ids: set[str] = attrs.field(init=False, factory=set)
    # The events of each memory, oldest first. `has_points` is True if a file with the memories themselves was read.
    events: defaultdict[str, list[dict[str, Any]]] = attrs.field(init=False, factory=lambda: defaultdict(list))
    has_points: bool = attrs.field(init=False, default=False)

    def add_database(self, database: SqliteCopy) -> None:
        """Add the memories or the events of a database. Raise `MigrationError` if it contains neither."""
        tables = database.names()
        if "points" in tables:
            self._add_points(database)
        elif "history" in tables:
            self._add_history(database, has_messages="messages" in tables)
        else:
            raise import_error(database.path, "is a database, and none of mem0", LOCATION_HINT)

    def _add_points(self, database: SqliteCopy) -> None:
        collection = database.path.parent.name
        what = (
            _ENTITIES
            if collection.endswith("_entities")
            else OTHER_POINTS
            if collection.startswith("mem0mig")
            else None
        )
        if what is not None:
            self._skip_items(what, f"collection {collection}", database.rows("points"))
            return
        self.has_points = True
        # If a point has several rows of one time, the last one is current.
        for row in database.rows("points", newest_first=True):
            self._add_point(row, f"{collection} row {row.number}")

    def _add_point(self, row: ForeignRow, place: str) -> None:
        try:
            point = read_pickle(data if isinstance(data := row.get("point"), bytes) else b"")
            if not isinstance(point, PickledObject) or not point.name.endswith(".PointStruct"):
                raise ValueError("it is no point")
            payload, key = to_jsonable_data(point.field("payload")), point.field("id")
            # Only texts and integers are valid ids. The text form of a nested value could be arbitrarily long.
            if not isinstance(key, str | int):
                raise TypeError("its id is neither a text nor a number")
            key = str(key)
        except (TypeError, ValueError) as error:
            self.skip(MEMORIES, place, "no_point", str(error))
            return
        self._take(key, payload if isinstance(payload, dict) else {})

    def add_json(self, file: Path) -> None:
        """Add the memories of a ``get_all`` result."""
        try:
            given = read_json(read_json_file(file, "a file of mem0"))
        except ValueError as error:
            raise import_error(file, "is neither a database of mem0 nor JSON", LOCATION_HINT) from error
        items = given.get("results") if isinstance(given, Mapping) else given
        if not isinstance(items, list):
            raise import_error(file, "is JSON, and not what get_all() gives", LOCATION_HINT)
        relations = given.get("relations") if isinstance(given, Mapping) else None
        if relations and isinstance(relations, list):
            self.skip(_GRAPH_RELATIONS, "relations", *SKIP_REASONS[_GRAPH_RELATIONS], count=len(relations))
        self.has_points = True
        for number, item in enumerate(items, start=1):
            place = f"result {number}"
            if not isinstance(item, Mapping) or item.get("id") is None:
                self.skip(MEMORIES, place, "no_id", "it has no id")
                continue
            metadata = item.get("metadata")
            rest = {name: value for name, value in item.items() if name not in NON_PAYLOAD_FIELDS and value is not None}
            self._take(
                str(item["id"]),
                {**(metadata if isinstance(metadata, Mapping) else {}), **rest, "data": item.get("memory")},
            )

    def _take(self, key: str, payload: dict[str, Any]) -> None:
        """Add a memory, given its id and payload, unless it belongs to another user, or a newer one has its id."""
        (key, payload), problem = repair_json([key, payload])
        self.ids.add(key)
        if self.user is not None and payload.setdefault("user_id", self.user) != self.user:
            self.found[MEMORIES_OF_OTHERS] += 1
            return
        if not isinstance(payload.get("data"), str) or not payload["data"].strip():
            self.skip(MEMORIES, key, "no_text", "it has no text")
            return
        self.found[MEMORIES] += 1
        payload = {name: value for name, value in payload.items() if name not in DERIVED_FIELDS}
        if problem is not None:
            self.add_odd(MEMORIES, key, "no_json", problem)
        for name in PAYLOAD_TIMES:
            payload |= {name: _format_time(payload[name])} if name in payload else {}
        other = self.payloads.get(key)
        if other == payload:
            self.leave_out(MEMORIES, key, "said_twice", "another item is the same")
            return
        if other is not None:
            self.leave_out(MEMORIES, key, "same_id", "another item with its id is newer, or comes first")
        if other is None or _last_change(payload) > _last_change(other):
            self.payloads[key] = payload

    def _add_history(self, database: SqliteCopy, *, has_messages: bool) -> None:
        for row in database.rows("history"):
            event = {name: to_jsonable_value(row.get(name)) for name in EVENT_COLUMNS}
            event["is_deleted"] = bool(event["is_deleted"])
            self.events[str(event["memory_id"])].append(event)
        if has_messages:
            self._skip_items(_MESSAGES, "the table messages", database.rows("messages"))

    def finish(self) -> None:
        """Add the records of all memories. Report each memory that exists only in the history."""
        for key, events in self.events.items():
            last = events[-1]
            is_deleted = last["event"] == "DELETE" or last["is_deleted"]
            if key in self.ids:
                continue
            if is_deleted or self.has_points:
                # The collection was read and does not contain this memory, so it was deleted.
                self.skip(DELETED_MEMORIES, key, *SKIP_REASONS[DELETED_MEMORIES])
            else:
                self._take(key, _rebuild_payload(events))
                if self.user is None:
                    what = "the history names no user: user='...' (--user) says whose it is"
                    self.add_odd(MEMORIES, key, "no_user", what)
        if others := self.found[MEMORIES_OF_OTHERS]:
            why = "those of one user alone were asked for"
            self.leave_out(MEMORIES_OF_OTHERS, "all", "other_user", why, count=others)
        for key, payload in self.payloads.items():
            self.records += self._records(key, payload)

    def _records(self, key: str, payload: Mapping[str, Any]) -> Iterator[ImportedRecord]:
        ends = read_expiry(payload.get("expiration_date"))
        if ends is None and payload.get("expiration_date") is not None:
            self.add_odd(MEMORIES, key, "no_date", "its expiration date is no date: it does not expire")
        created = payload.get("created_at")
        at = read_time(created).at if isinstance(created, str) else None
        if created is not None and at is None:
            self.add_odd(MEMORIES, key, "no_time", "when it was created is no time: it has that of the import")
        yield ImportedRecord(
            what=MEMORIES,
            labels=MEMORY_LABELS,
            key=key,
            value=payload,
            text=payload["data"],
            created_at=at,
            expires_at=ends,
        )
        if key in self.events:
            value = self.events[key]
            yield ImportedRecord(
                what=MEMORIES, labels=HISTORY_LABELS, key=key, value=value, expires_at=ends, is_auxiliary=True
            )

    def _skip_items(self, what: str, place: str, rows: Iterator[ForeignRow]) -> None:
        if count := sum(1 for _ in rows):
            self.skip(what, place, *SKIP_REASONS[what], count=count)


def _format_time(value: Any) -> Any:
    """Return a time that is a number, or a text of digits, in ISO 8601 as mem0 writes it. Return others unchanged."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, str) and NUMBER.fullmatch(value)):
        return value
    found = read_time(value).at
    return value if found is None else found.isoformat()


def _last_change(payload: Mapping[str, Any]) -> datetime:
    """Return when a memory was changed last; the earliest time if it is unknown."""
    texts = (value for name in reversed(PAYLOAD_TIMES) if isinstance(value := payload.get(name), str))
    return next(filter(None, (read_time(text).at for text in texts)), datetime.min.replace(tzinfo=UTC))


def _rebuild_payload(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Reconstruct the payload of a memory from its history."""
    first, last = events[0], events[-1]
    text = last["new_memory"]
    said = {
        "data": text,
        "hash": compute_hash(text) if isinstance(text, str) else None,
        "created_at": first["created_at"],
        "updated_at": last["updated_at"] or first["created_at"],
        "actor_id": last["actor_id"],
        "role": last["role"],
    }
    return {name: value for name, value in said.items() if value is not None}
