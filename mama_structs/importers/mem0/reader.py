"""
Reader of mem0 memories.

It reads the files of mem0's default local configuration, or the JSON result of ``get_all``.
Memories become records in the format of `mama_structs.adapters.mem0`, with their ids and histories, so that a host that
switches to that adapter finds them. Since the records have texts, all searches of the session find them too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import md5
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.importers.mem0.safe_pickle import Opaque, plain, read_pickle
from mama_structs.importers.shared.import_model import Outside, OutsideRecord
from mama_structs.importers.shared.safe_files import MAX_FILE_BYTES, list_files, read_bytes, read_start, refused
from mama_structs.importers.shared.sqlite_copy import MAGIC, CopiedDatabase, copied
from mama_structs.importers.shared.value_readers import ForeignRow, kept, read_json, read_time

KIND: Final = "mem0"
LABELS: Final = ("mem0", "memories")
"""The labels of imported memories; the record's key is the memory id, its value the mem0 payload."""
HISTORY: Final = ("mem0", "history")
"""The labels of the records with the events of a memory, oldest first."""
MEMORIES: Final = "memories"
_DELETED: Final = "deleted memories"
_OF_OTHERS: Final = "memories of others"
_ENTITIES: Final = "entities"
_MESSAGES: Final = "messages"
_OTHERS: Final = "other points"
_FILES: Final = "files"
_POINTS: Final = "storage.sqlite"
_HISTORY_FILE: Final = "history.db"
_MAX_DEPTH: Final = 3
_CORE: Final = frozenset({"id", "memory", "metadata", "score", "score_details"})
# Derived by mem0 from the text, so not imported.
_MADE: Final = frozenset({"text_lemmatized"})
_EVENT: Final = (
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
_WHY: Final[Mapping[str, tuple[str, str]]] = {
    _ENTITIES: ("derived", "mem0 derived it from its memories, to find them by"),
    _MESSAGES: ("no_memory", "the last messages, which mem0 keeps for its model, are no memories"),
    _DELETED: ("deleted", "it was deleted in mem0, and only its history is there"),
    _OTHERS: ("no_memory", "mem0's own, and no memory"),
}
_ELSEWHERE: Final = (
    "mem0 keeps its memories in Qdrant's folder (/tmp/qdrant unless told otherwise), and their history in "
    "~/.mem0/history.db; a file with what get_all() gives as JSON is taken, too"
)


def read(path: Path, *, user: str | None = None) -> Outside:
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
    found = _Mem0Files(KIND, path, (MEMORIES,), user)
    for file in _files(path, found):
        if read_start(file, "a file of mem0", len(MAGIC)) == MAGIC:
            with copied(file, kind="a database of mem0", program="mem0") as database:
                database.check()
                found.take_database(database)
        else:
            found.take_json(file)
    found.finish()
    return found


def expiry_of(value: Any) -> datetime | None:
    """Return the time at which a memory expires: the end of its expiration date (UTC)."""
    if value is None:
        return None
    try:
        day = value if type(value) is date else date.fromisoformat(str(value))
    except ValueError:
        return None
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)


def hash_of(text: str) -> str:
    """Return the hash of a memory as mem0 computes it."""
    return md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def _files(path: Path, found: Outside) -> list[Path]:
    """Return the mem0 files below a folder, memories first, or the path itself if a file."""
    if not path.is_dir():
        return [path]
    names = (_POINTS, _HISTORY_FILE)
    files = []
    for file, problem in list_files(path, depth=_MAX_DEPTH):
        if problem is None and file.name in names:
            files.append(file)
        elif file.name in names or (problem is not None and file.is_dir() and not file.is_symlink()):
            name = file.relative_to(path).as_posix()
            found.add_odd(_FILES, name, "not_read", f"left out: {problem}")
    if not files:
        raise InvalidArgument(f"{str(path)!r:.200} has nothing of mem0 in it", hint=_ELSEWHERE)
    return sorted(files, key=lambda file: (names.index(file.name), len(file.parts), file))


@attrs.define
class _Mem0Files(Outside):
    """Collects payloads and events from mem0 files."""

    user: str | None
    payloads: dict[str, dict[str, Any]] = attrs.field(init=False, factory=dict)
    # Events by memory, oldest first; and whether a file with the memories themselves was read.
    events: defaultdict[str, list[dict[str, Any]]] = attrs.field(init=False, factory=lambda: defaultdict(list))
    has_points: bool = attrs.field(init=False, default=False)

    def take_database(self, database: CopiedDatabase) -> None:
        tables = database.names()
        if "points" in tables:
            self._take_points(database)
        elif "history" in tables:
            self._take_history(database, has_messages="messages" in tables)
        else:
            raise refused(database.path, "is a database, and none of mem0", _ELSEWHERE)

    def _take_points(self, database: CopiedDatabase) -> None:
        collection = database.path.parent.name
        what = _ENTITIES if collection.endswith("_entities") else _OTHERS if collection.startswith("mem0mig") else None
        if what is not None:
            self._leave_out(what, f"collection {collection}", database.rows("points"))
            return
        self.has_points = True
        # If a point has several rows, the last one is current.
        for row in database.rows("points", newest_first=True):
            self._take_point(row, f"{collection} row {row.number}")

    def _take_point(self, row: ForeignRow, place: str) -> None:
        try:
            point = read_pickle(data if isinstance(data := row.get("point"), bytes) else b"")
            if not isinstance(point, Opaque) or not point.name.endswith(".PointStruct"):
                raise ValueError("it is no point")
            payload, key = plain(point.field("payload")), point.field("id")
            # Reject nested ids: their text could be arbitrarily long.
            if not isinstance(key, str | int):
                raise TypeError("its id is neither a text nor a number")
            key = str(key)
        except (TypeError, ValueError) as error:
            self.skip(MEMORIES, place, "no_point", str(error))
            return
        if key not in self.payloads:
            self._take(key, payload if isinstance(payload, dict) else {})

    def take_json(self, file: Path) -> None:
        """Add the memories of a ``get_all`` result."""
        try:
            given = read_json(read_bytes(file, "a file of mem0", limit=MAX_FILE_BYTES).decode("utf-8-sig"))
        except ValueError as error:
            raise refused(file, "is neither a database of mem0 nor JSON", _ELSEWHERE) from error
        items = given.get("results") if isinstance(given, Mapping) else given
        if not isinstance(items, list):
            raise refused(file, "is JSON, and not what get_all() gives", _ELSEWHERE)
        self.has_points = True
        for number, item in enumerate(items, start=1):
            place = f"result {number}"
            if not isinstance(item, Mapping) or item.get("id") is None:
                self.skip(MEMORIES, place, "no_id", "it has no id")
                continue
            metadata = item.get("metadata")
            rest = {name: value for name, value in item.items() if name not in _CORE and value is not None}
            self._take(
                str(item["id"]),
                {**(metadata if isinstance(metadata, Mapping) else {}), **rest, "data": item.get("memory")},
            )

    def _take(self, key: str, payload: dict[str, Any]) -> None:
        """Add a memory, given its id and payload, unless it belongs to another user."""
        if self.user is not None and payload.setdefault("user_id", self.user) != self.user:
            self.found[_OF_OTHERS] += 1
            return
        if not isinstance(payload.get("data"), str) or not payload["data"].strip():
            self.skip(MEMORIES, key, "no_text", "it has no text")
            return
        self.found[MEMORIES] += 1
        self.payloads[key] = {name: value for name, value in payload.items() if name not in _MADE}

    def _take_history(self, database: CopiedDatabase, *, has_messages: bool) -> None:
        for row in database.rows("history"):
            event = {name: kept(row.get(name)) for name in _EVENT}
            event["is_deleted"] = bool(event["is_deleted"])
            self.events[str(event["memory_id"])].append(event)
        if has_messages:
            self._leave_out(_MESSAGES, "the table messages", database.rows("messages"))

    def finish(self) -> None:
        """Add the records of all memories, and report those of which only the history is there."""
        for key, events in self.events.items():
            last = events[-1]
            is_deleted = last["event"] == "DELETE" or last["is_deleted"]
            if key in self.payloads:
                continue
            if is_deleted or (self.has_points and self.user is None):
                # The memory is missing in the collection and only its history remains, so it was deleted.
                self.skip(_DELETED, key, *_WHY[_DELETED])
            elif not self.has_points:
                self._take(key, _payload_of(events))
                if self.user is None:
                    what = "the history names no user: user='...' (--user) says whose it is"
                    self.add_odd(MEMORIES, key, "no_user", what)
        if self.found[_OF_OTHERS]:
            self.add_odd(_OF_OTHERS, "all", "other_user", "left out: those of one user alone were asked for")
        for key, payload in self.payloads.items():
            self.records += self._records(key, payload)

    def _records(self, key: str, payload: Mapping[str, Any]) -> Iterator[OutsideRecord]:
        ends = expiry_of(payload.get("expiration_date"))
        if ends is None and payload.get("expiration_date") is not None:
            self.add_odd(MEMORIES, key, "no_date", "its expiration date is no date: it does not expire")
        yield OutsideRecord(
            what=MEMORIES,
            labels=LABELS,
            key=key,
            value=payload,
            text=payload["data"],
            created_at=read_time(created if isinstance(created := payload.get("created_at"), str) else None).at,
            expires_at=ends,
        )
        if key in self.events:
            value = self.events[key]
            yield OutsideRecord(what=MEMORIES, labels=HISTORY, key=key, value=value, expires_at=ends, is_beside=True)

    def _leave_out(self, what: str, place: str, rows: Iterator[ForeignRow]) -> None:
        if count := sum(1 for _ in rows):
            self.skip(what, place, *_WHY[what], count=count)


def _payload_of(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Reconstruct the payload of a memory from its history."""
    first, last = events[0], events[-1]
    text = last["new_memory"]
    said = {
        "data": text,
        "hash": hash_of(text) if isinstance(text, str) else None,
        "created_at": first["created_at"],
        "updated_at": last["updated_at"] or first["created_at"],
        "actor_id": last["actor_id"],
        "role": last["role"],
    }
    return {name: value for name, value in said.items() if value is not None}
