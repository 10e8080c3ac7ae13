"""
Migration of the rows of the namespace ``""``, which all namespaces shared in earlier versions.

These are texts of refs (``texts/<hash>``), rows of conversations whose keys contain a hash instead of the namespace,
and the mark ``deleted``. Each text is copied to every namespace with a conversation that refers to it. A fork whose
parent is in another namespace gets copies of the inherited changes, so that namespaces become independent.

If every row is readable, texts without a conversation are deleted. Otherwise an unreadable row may refer to them, so
they are moved to the table `unassigned_rows`, which only its owner can read.

The row format of the versions before this migration is duplicated here, so that it never changes.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import attrs
import msgspec

from mama_structs.storage.sealed_rows import key_range, seal, unseal

START_KEY_PREFIX: Final = "conversations/"
CHANGE_KEY_PREFIX: Final = "refs/"
TEXT_KEY_PREFIX: Final = "texts/"
DEFAULT_NAMESPACE: Final = "default"
MAX_QUOTED_CHARS: Final = 600
BATCH_ROWS: Final = 1000
CHANGE_KEY_PATTERN: Final = re.compile(
    r"refs/(?P<part>[^/]+)/(?P<rest>(?P<number>\d{10,18})/(?P<handle>.+))", re.DOTALL
)
DIGEST_PATTERN: Final = re.compile(rb'"hash":"([0-9a-f]{64})"')

ROWS_IN_RANGE_SQL: Final = "SELECT namespace, key, value FROM rows WHERE key >= $1 AND key < $2"
COPY_SQL: Final = """
INSERT INTO rows (namespace, key, value) SELECT $1, key, value FROM rows WHERE namespace = '' AND key = ANY($2::text[])
ON CONFLICT (namespace, key) DO NOTHING
"""
MOVE_SQL: Final = "UPDATE rows SET namespace = $1 WHERE namespace = '' AND (key = ANY($2::text[]) OR {ranges})"
PUT_SQL: Final = """
INSERT INTO rows (namespace, key, value) VALUES ($1, $2, $3)
ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value
"""
DELETE_SQL: Final = "DELETE FROM rows WHERE namespace = '' AND key = ANY($1::text[])"
# Without a policy, row-level security shows the rows only to the owner of the table.
UNASSIGN_SQL: Final = """
CREATE TABLE IF NOT EXISTS unassigned_rows (LIKE rows);
ALTER TABLE unassigned_rows ENABLE ROW LEVEL SECURITY, ALTER COLUMN value SET STATISTICS 0;
INSERT INTO unassigned_rows SELECT 'unassigned', key, value FROM rows WHERE namespace = ''
"""

_log: Final = logging.getLogger("mama_structs")


@attrs.frozen
class _RowChange:
    """
    A row of a conversation's change log.

    *digest* is the hash of the text that the row refers to, or None.
    """

    number: int
    handle: str
    key_suffix: str  # The part of the row key that follows the conversation's key part.
    stored: bytes
    value: bytes | None  # The row's content, or None if the row is unreadable.
    digest: str | None
    is_deletion: bool


@attrs.define
class _Conversation:
    """A conversation. *record* is its decoded start row, or None if the row is missing or unreadable."""

    key_part: str
    namespace: str | None = None
    record: dict[str, Any] | None = None
    changes: list[_RowChange] = attrs.field(factory=list)

    @property
    def parent(self) -> str | None:
        """The key part of the parent conversation, or None if this is no fork."""
        record = self.record
        if record is None or record.get("parent") is None:
            return None
        return _key_part(record.get("parent_namespace") or record.get("namespace", DEFAULT_NAMESPACE), record["parent"])

    @property
    def last_inherited_number(self) -> int:
        """The number of the last change that the fork inherits from its parent."""
        return 0 if self.record is None else int(self.record["parent_at"])


async def assign_shared_rows(connection: Any, *, timeout: float) -> None:  # noqa: ASYNC109 - per statement
    """
    Move all rows of the namespace ``""`` to the namespaces that need them.

    Runs in the transaction of *connection*.
    """
    # Prevent sessions of an earlier version from inserting rows during the migration.
    await connection.execute("LOCK TABLE rows IN EXCLUSIVE MODE", timeout=timeout)
    starts = await connection.fetch(ROWS_IN_RANGE_SQL, *key_range(START_KEY_PREFIX), timeout=timeout)
    changes = await connection.fetch(ROWS_IN_RANGE_SQL, *key_range(CHANGE_KEY_PREFIX), timeout=timeout)
    known, all_readable = _read_conversations(starts, changes)
    for one in known.values():
        if one.namespace is not None:
            await _move_rows(connection, one, timeout)
            for key, value in _detach_fork(known, one):
                await connection.execute(PUT_SQL, one.namespace, key, value, timeout=timeout)
    needed = _find_needed_texts(known)
    for namespace, digests in needed.items():
        for keys in _batch_text_keys(digests):
            await connection.execute(COPY_SQL, namespace, keys, timeout=timeout)
    for keys in _batch_text_keys(set[str]().union(*needed.values())):
        await connection.execute(DELETE_SQL, keys, timeout=timeout)
    await connection.execute(DELETE_SQL, ["deleted"], timeout=timeout)
    if not all_readable and await connection.fetchval("SELECT EXISTS (SELECT FROM rows WHERE namespace = '')"):
        await connection.execute(UNASSIGN_SQL, timeout=timeout)
        _log.warning("rows of unreadable conversations were moved to the table mama_structs.unassigned_rows")
    await connection.execute("DELETE FROM rows WHERE namespace = ''", timeout=timeout)


def _key_part(namespace: str, name: str) -> str:
    """Return the part of row keys that identifies a conversation."""
    if namespace == DEFAULT_NAMESPACE:
        return _shorten_key_part(quote(name, safe=""), "%%", name)
    whole = f"{quote(namespace, safe='')}%.{quote(name, safe='')}"
    return _shorten_key_part(whole, "%.", whole)


def _shorten_key_part(part: str, mark: str, hashed: str) -> str:
    return part if len(part) <= MAX_QUOTED_CHARS else f"{mark}{hashlib.sha256(hashed.encode()).hexdigest()}"


def _read_conversations(starts: Iterable[Any], changes: Iterable[Any]) -> tuple[dict[str, _Conversation], bool]:
    """Return all conversations by key part, and whether all rows are readable and belong to a namespace."""
    known: dict[str, _Conversation] = {}
    all_readable = True
    for row in starts:
        part = row["key"].removeprefix(START_KEY_PREFIX)
        one = known.setdefault(part, _Conversation(part))
        one.record = _decode_start(unseal(row["key"], row["value"]))
        # Earlier versions stored rows without a namespace if their key contained a hash instead of the namespace.
        one.namespace = row["namespace"] or (one.record and one.record.get("namespace", DEFAULT_NAMESPACE)) or None
        all_readable &= one.record is not None and one.namespace is not None
    for row in changes:
        found = CHANGE_KEY_PATTERN.fullmatch(row["key"])
        if found is None:
            all_readable = False
            continue
        one = known.setdefault(found["part"], _Conversation(found["part"], row["namespace"] or None))
        change = _decode_change(found, row["key"], row["value"])
        all_readable &= change.value is not None and one.namespace is not None
        one.changes.append(change)
    return known, all_readable


def _decode_start(value: object) -> dict[str, Any] | None:
    """Return a decoded start row, or None if it is unreadable."""
    record = _decode_record(value)
    is_known = record is not None and record.get("op") == "start" and type(record.get("parent_at")) is int
    return record if is_known else None


def _decode_change(key_match: re.Match[str], key: str, stored: bytes) -> _RowChange:
    value = unseal(key, stored)
    record = _decode_record(value)
    is_deletion = record is not None and record.get("op") == "delete"
    digest = None if record is None else record.get("hash")
    if not is_deletion and not isinstance(digest, str):
        # The row is damaged, but the hash may be intact. Extract it, so that the text is not deleted.
        record, hidden = None, DIGEST_PATTERN.search(stored)
        digest = hidden[1].decode() if hidden else None
    return _RowChange(
        number=int(key_match["number"]),
        handle=str(record["handle"]) if is_deletion and record is not None else key_match["handle"],
        key_suffix=key_match["rest"],
        stored=stored,
        value=value if isinstance(value, bytes) and record is not None else None,
        digest=None if is_deletion else digest,
        is_deletion=is_deletion,
    )


def _decode_record(value: object) -> dict[str, Any] | None:
    if not isinstance(value, bytes):
        return None
    try:
        record = msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


async def _move_rows(connection: Any, conversation: _Conversation, timeout: float) -> None:  # noqa: ASYNC109 - per statement
    """Move the rows of a conversation from the namespace ``""`` to the namespace in its start row."""
    if not conversation.key_part.startswith("%."):
        return
    ranges = [key_range(f"{prefix}{conversation.key_part}/") for prefix in (CHANGE_KEY_PREFIX, "told/")]
    sql = MOVE_SQL.format(ranges="(key >= $3 AND key < $4) OR (key >= $5 AND key < $6)")
    keys = [f"{START_KEY_PREFIX}{conversation.key_part}", f"used/{conversation.key_part}"]
    await connection.execute(
        sql, conversation.namespace, keys, *(key for pair in ranges for key in pair), timeout=timeout
    )


def _detach_fork(conversations: Mapping[str, _Conversation], fork: _Conversation) -> Iterator[tuple[str, bytes]]:
    """Yield the rows that make a fork independent of a parent in another namespace."""
    parent = conversations.get(fork.parent or "")
    if parent is None or fork.record is None or parent.namespace in {fork.namespace, None}:
        return
    until, current, seen = math.inf, fork, {fork.key_part}
    inherited: list[_RowChange] = []
    while parent is not None and parent.key_part not in seen:
        if current is not fork and current.record is None:
            return
        seen.add(parent.key_part)
        until = min(until, current.last_inherited_number)
        inherited += [change for change in parent.changes if 0 < change.number <= until]
        current, parent = parent, conversations.get(parent.parent or "")
    for change in inherited:
        key = f"{CHANGE_KEY_PREFIX}{fork.key_part}/{change.key_suffix}"
        # Copy unreadable rows unchanged. They stay unreadable, and so still show that a change is missing.
        yield key, change.stored if change.value is None else seal(key, change.value)
    record = {name: value for name, value in fork.record.items() if name != "parent_namespace"}
    key = f"{START_KEY_PREFIX}{fork.key_part}"
    yield key, seal(key, msgspec.json.encode(record | {"parent": None, "parent_at": 0}))


def _find_needed_texts(conversations: Mapping[str, _Conversation]) -> dict[str, set[str]]:
    """Return the hashes of the texts that each namespace's conversations refer to."""
    deleted = {
        (one.key_part, change.handle): change.number
        for one in conversations.values()
        for change in one.changes
        if change.is_deletion
    }
    forks: dict[str, list[_Conversation]] = {}
    for one in conversations.values():
        if one.parent is not None:
            forks.setdefault(one.parent, []).append(one)
    needed: dict[str, set[str]] = {}
    for one in conversations.values():
        for change in one.changes:
            if change.digest is None:
                continue
            waiting, seen = [one], set()
            while waiting:
                holder = waiting.pop()
                if holder.key_part in seen:
                    continue
                seen.add(holder.key_part)
                gone = deleted.get((holder.key_part, change.handle), math.inf)
                if gone == math.inf and holder.namespace is not None:
                    needed.setdefault(holder.namespace, set()).add(change.digest)
                waiting += [
                    fork
                    for fork in forks.get(holder.key_part, ())
                    if change.number <= fork.last_inherited_number < gone
                ]
    return needed


def _batch_text_keys(digests: Iterable[str]) -> Iterator[Sequence[str]]:
    """Yield the keys of texts, in batches."""
    keys = [f"{TEXT_KEY_PREFIX}{digest}" for digest in sorted(digests)]
    for start in range(0, len(keys), BATCH_ROWS):
        yield keys[start : start + BATCH_ROWS]
