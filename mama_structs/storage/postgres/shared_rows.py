"""
Migration of the rows of the namespace ``""``, which all namespaces once shared.

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

from mama_structs.storage.sealed_rows import range_of, seal, unseal

_STARTS: Final = "conversations/"
_CHANGES: Final = "refs/"
_TEXTS: Final = "texts/"
_DEFAULT: Final = "default"
_MAX_QUOTED: Final = 600
_BATCH: Final = 1000
_CHANGE_KEY: Final = re.compile(r"refs/(?P<part>[^/]+)/(?P<rest>(?P<number>\d{10,18})/(?P<handle>.+))", re.DOTALL)
_DIGEST: Final = re.compile(rb'"hash":"([0-9a-f]{64})"')

_STORED: Final = "SELECT namespace, key, value FROM rows WHERE key >= $1 AND key < $2"
_COPY: Final = """
INSERT INTO rows (namespace, key, value) SELECT $1, key, value FROM rows WHERE namespace = '' AND key = ANY($2::text[])
ON CONFLICT (namespace, key) DO NOTHING
"""
_MOVE: Final = "UPDATE rows SET namespace = $1 WHERE namespace = '' AND (key = ANY($2::text[]) OR {ranges})"
_PUT: Final = """
INSERT INTO rows (namespace, key, value) VALUES ($1, $2, $3)
ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value
"""
_DELETE: Final = "DELETE FROM rows WHERE namespace = '' AND key = ANY($1::text[])"
# With row-level security and no policy, only the owner of the table sees its rows.
_UNASSIGN: Final = """
CREATE TABLE IF NOT EXISTS unassigned_rows (LIKE rows);
ALTER TABLE unassigned_rows ENABLE ROW LEVEL SECURITY, ALTER COLUMN value SET STATISTICS 0;
INSERT INTO unassigned_rows SELECT 'unassigned', key, value FROM rows WHERE namespace = ''
"""

_log: Final = logging.getLogger("mama_structs")


@attrs.frozen
class _RowChange:
    """
    A row of a conversation's change log.

    *digest* is the hash of the text that it refers to, or None.
    """

    number: int
    handle: str
    rest: str  # The key after the conversation's part.
    stored: bytes
    value: bytes | None  # None if the row is unreadable.
    digest: str | None
    is_deletion: bool


@attrs.define
class _Conversation:
    """A conversation. *record* is its start row, or None if that is missing or unreadable."""

    part: str
    namespace: str | None = None
    record: dict[str, Any] | None = None
    changes: list[_RowChange] = attrs.field(factory=list)

    @property
    def parent(self) -> str | None:
        """The key part of the parent conversation if this is a fork, else None."""
        record = self.record
        if record is None or record.get("parent") is None:
            return None
        return _part(record.get("parent_namespace") or record.get("namespace", _DEFAULT), record["parent"])

    @property
    def parent_at(self) -> int:
        """The number of the last change that is inherited from the parent."""
        return 0 if self.record is None else int(self.record["parent_at"])


async def assign_shared_rows(connection: Any, *, timeout: float) -> None:  # noqa: ASYNC109 - per statement
    """
    Move all rows of the namespace ``""`` to the namespaces that need them.

    Runs in the transaction of *connection*.
    """
    # Sessions of an earlier version must not insert rows during the migration.
    await connection.execute("LOCK TABLE rows IN EXCLUSIVE MODE", timeout=timeout)
    starts = await connection.fetch(_STORED, *range_of(_STARTS), timeout=timeout)
    changes = await connection.fetch(_STORED, *range_of(_CHANGES), timeout=timeout)
    known, all_readable = _read(starts, changes)
    for one in known.values():
        if one.namespace is not None:
            await _move(connection, one, timeout)
            for key, value in _detached(known, one):
                await connection.execute(_PUT, one.namespace, key, value, timeout=timeout)
    needed = _needed(known)
    for namespace, digests in needed.items():
        for keys in _batches(digests):
            await connection.execute(_COPY, namespace, keys, timeout=timeout)
    for keys in _batches(set[str]().union(*needed.values())):
        await connection.execute(_DELETE, keys, timeout=timeout)
    await connection.execute(_DELETE, ["deleted"], timeout=timeout)
    if not all_readable and await connection.fetchval("SELECT EXISTS (SELECT FROM rows WHERE namespace = '')"):
        await connection.execute(_UNASSIGN, timeout=timeout)
        _log.warning("rows of unreadable conversations were moved to the table mama_structs.unassigned_rows")
    await connection.execute("DELETE FROM rows WHERE namespace = ''", timeout=timeout)


def _part(namespace: str, name: str) -> str:
    """Return the part of a row's key that identifies a conversation."""
    if namespace == _DEFAULT:
        return _bounded(quote(name, safe=""), "%%", name)
    whole = f"{quote(namespace, safe='')}%.{quote(name, safe='')}"
    return _bounded(whole, "%.", whole)


def _bounded(part: str, mark: str, hashed: str) -> str:
    return part if len(part) <= _MAX_QUOTED else f"{mark}{hashlib.sha256(hashed.encode()).hexdigest()}"


def _read(starts: Iterable[Any], changes: Iterable[Any]) -> tuple[dict[str, _Conversation], bool]:
    """Return all conversations by key part, and True if all rows are readable and assigned."""
    known: dict[str, _Conversation] = {}
    all_readable = True
    for row in starts:
        part = row["key"].removeprefix(_STARTS)
        one = known.setdefault(part, _Conversation(part))
        one.record = _start(unseal(row["key"], row["value"]))
        # Keys with a hash do not contain the namespace, so earlier versions stored these rows without one.
        one.namespace = row["namespace"] or (one.record and one.record.get("namespace", _DEFAULT)) or None
        all_readable &= one.record is not None and one.namespace is not None
    for row in changes:
        found = _CHANGE_KEY.fullmatch(row["key"])
        if found is None:
            all_readable = False
            continue
        one = known.setdefault(found["part"], _Conversation(found["part"], row["namespace"] or None))
        change = _change(found, row["key"], row["value"])
        all_readable &= change.value is not None and one.namespace is not None
        one.changes.append(change)
    return known, all_readable


def _start(value: object) -> dict[str, Any] | None:
    """Return a decoded start row, or None if it is unreadable."""
    record = _decoded(value)
    is_known = record is not None and record.get("op") == "start" and type(record.get("parent_at")) is int
    return record if is_known else None


def _change(found: re.Match[str], key: str, stored: bytes) -> _RowChange:
    value = unseal(key, stored)
    record = _decoded(value)
    is_deletion = record is not None and record.get("op") == "delete"
    digest = None if record is None else record.get("hash")
    if not is_deletion and not isinstance(digest, str):
        # The checksum is wrong, but the hash may be intact. Extract it, so that its text is not lost.
        record, hidden = None, _DIGEST.search(stored)
        digest = hidden[1].decode() if hidden else None
    return _RowChange(
        number=int(found["number"]),
        handle=str(record["handle"]) if is_deletion and record is not None else found["handle"],
        rest=found["rest"],
        stored=stored,
        value=value if isinstance(value, bytes) and record is not None else None,
        digest=None if is_deletion else digest,
        is_deletion=is_deletion,
    )


def _decoded(value: object) -> dict[str, Any] | None:
    if not isinstance(value, bytes):
        return None
    try:
        record = msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


async def _move(connection: Any, one: _Conversation, timeout: float) -> None:  # noqa: ASYNC109 - per statement
    """Move the rows of a conversation without namespace to the namespace in its start row."""
    if not one.part.startswith("%."):
        return
    ranges = [range_of(f"{prefix}{one.part}/") for prefix in (_CHANGES, "told/")]
    sql = _MOVE.format(ranges="(key >= $3 AND key < $4) OR (key >= $5 AND key < $6)")
    keys = [f"{_STARTS}{one.part}", f"used/{one.part}"]
    await connection.execute(sql, one.namespace, keys, *(key for pair in ranges for key in pair), timeout=timeout)


def _detached(known: Mapping[str, _Conversation], one: _Conversation) -> Iterator[tuple[str, bytes]]:
    """Yield the rows that make a fork independent of a parent in another namespace."""
    parent = known.get(one.parent or "")
    if parent is None or one.record is None or parent.namespace in {one.namespace, None}:
        return
    until, current, seen = math.inf, one, {one.part}
    inherited: list[_RowChange] = []
    while parent is not None and parent.part not in seen:
        if current is not one and current.record is None:
            return
        seen.add(parent.part)
        until = min(until, current.parent_at)
        inherited += [change for change in parent.changes if 0 < change.number <= until]
        current, parent = parent, known.get(parent.parent or "")
    for change in inherited:
        key = f"{_CHANGES}{one.part}/{change.rest}"
        # Unreadable rows are copied unchanged: they stay unreadable under the new key and so still mark the gap.
        yield key, change.stored if change.value is None else seal(key, change.value)
    record = {name: value for name, value in one.record.items() if name != "parent_namespace"}
    key = f"{_STARTS}{one.part}"
    yield key, seal(key, msgspec.json.encode(record | {"parent": None, "parent_at": 0}))


def _needed(known: Mapping[str, _Conversation]) -> dict[str, set[str]]:
    """Return the hashes of the texts that the conversations of each namespace refer to."""
    deleted = {
        (one.part, change.handle): change.number
        for one in known.values()
        for change in one.changes
        if change.is_deletion
    }
    forks: dict[str, list[_Conversation]] = {}
    for one in known.values():
        if one.parent is not None:
            forks.setdefault(one.parent, []).append(one)
    needed: dict[str, set[str]] = {}
    for one in known.values():
        for change in one.changes:
            if change.digest is None:
                continue
            waiting, seen = [one], set()
            while waiting:
                holder = waiting.pop()
                if holder.part in seen:
                    continue
                seen.add(holder.part)
                gone = deleted.get((holder.part, change.handle), math.inf)
                if gone == math.inf and holder.namespace is not None:
                    needed.setdefault(holder.namespace, set()).add(change.digest)
                waiting += [fork for fork in forks.get(holder.part, ()) if change.number <= fork.parent_at < gone]
    return needed


def _batches(digests: Iterable[str]) -> Iterator[Sequence[str]]:
    """Yield the keys of texts in batches."""
    keys = [f"{_TEXTS}{digest}" for digest in sorted(digests)]
    for start in range(0, len(keys), _BATCH):
        yield keys[start : start + _BATCH]
