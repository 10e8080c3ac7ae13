"""
Operations on whole conversations: list, move to another namespace, and delete.

None of them affects the contents of forks. In addition to the rows of `conversation_log`, a row ``used/<part>`` stores
when a conversation with changes was last opened or closed.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final, cast

import attrs
import msgspec

from mama_structs.errors import InvalidArgument, StoreDamaged
from mama_structs.refs.conversations.conversation_info import ConversationInfo
from mama_structs.refs.conversations.conversation_log import (
    CHANGE_PREFIX,
    ENCODER,
    RECALL_LOG_PREFIX,
    RECLAIM_PENDING_KEY,
    ROW_PREFIXES,
    START_PREFIX,
    TEXT_PREFIX,
    USED_PREFIX,
    ConversationKey,
    DeleteRecord,
    StartRecord,
    decode_start_row,
    is_key_part_of,
    key_part_prefix,
    load,
    parse_change,
    parse_changes,
    parse_conversation_part,
    read_lineage,
    require_start_row,
)
from mama_structs.refs.conversations.recall_log import add_ids, erase_ids, find_ids
from mama_structs.settings import DescriptorSettings
from mama_structs.storage.sealed_rows import DamagedValue, Rows, Snapshot
from mama_structs.storage.sqlite_store import RowStorage

_MAX_SUGGESTIONS: Final = 5
_TIME_DECODER: Final = msgspec.json.Decoder(datetime)

_log: Final = logging.getLogger("mama_structs")


def list_conversations(
    rows: Snapshot, namespace: str, is_open: Callable[[ConversationKey], bool]
) -> tuple[ConversationInfo, ...]:
    """Return the conversations of a namespace, most recently used first."""
    sizes = rows.sizes(TEXT_PREFIX)
    found = []
    for start in read_start_rows(rows, namespace):
        try:
            changes = parse_changes(read_lineage(rows, start.key, "")[1])
        except StoreDamaged:
            # An ancestor is unreadable, so count only the conversation's own changes.
            changes = parse_changes([(rows.items(start.key.changes), math.inf)])
        held = {change.handle: change.hash for change in changes if change.hash is not None}
        for change in changes:
            if isinstance(change.record, DeleteRecord):
                held.pop(change.handle, None)
        info = ConversationInfo(
            name=start.name,
            created_at=start.created_at,
            last_used_at=read_last_use(rows, start),
            handle_count=len(held),
            recalled_count=len(rows.keys(start.key.recall_log_prefix)),
            bytes=sum(sizes.get(f"{TEXT_PREFIX}{digest}", 0) for digest in set(held.values())),
            is_open=is_open(start.key),
        )
        found.append(info)
    return tuple(sorted(found, key=lambda info: info.last_used_at or info.created_at, reverse=True))


def list_keys(rows: Snapshot, namespace: str) -> list[ConversationKey]:
    """Return the keys of all conversations of a namespace."""
    return [start.key for start in read_start_rows(rows, namespace)]


def list_namespaces(rows: Snapshot) -> set[str]:
    """Return the namespaces of all conversations whose start row is readable."""
    read = (decode_start_row(row) for _, row in rows.items(START_PREFIX))
    return {start.namespace for start in read if isinstance(start, StartRecord)}


def strip_sources(rows: Rows, key: ConversationKey, hashes: Collection[str], is_read: Callable[[str], bool]) -> None:
    """
    Remove source and attributes from changes whose handles were deleted.

    Only changes whose text hash is in *hashes*, or whose source satisfies *is_read*, are rewritten.
    """
    changes = [(name, parse_change(name, row)) for name, row in rows.items(key.changes)]
    gone = {change.handle for _, change in changes if isinstance(change.record, DeleteRecord)}
    for name, change in changes:
        bare = change.record_without_source
        if change.handle in gone and bare is not None and (change.hash in hashes or is_read(change.source)):
            rows.put(name, ENCODER.encode(bare))


def find_recalled_ids(rows: Snapshot, namespace: str) -> dict[str, set[str] | None]:
    """Return the ids of memories in each recall log row of a namespace, by row key; None for an unreadable row."""
    prefixes = [f"{RECALL_LOG_PREFIX}{part}/" for part in _find_key_parts(rows, namespace)]
    return {name: find_ids(row) for prefix in prefixes for name, row in rows.items(prefix)}


def erase_recalled_ids(rows: Rows, names: Sequence[str], gone: AbstractSet[str]) -> None:
    """Remove ids from recall log rows. Delete unreadable rows."""
    rows.apply_changes({name: erase_ids(row, gone) for name, row in rows.get_many(names).items()})


def find_unused(rows: Snapshot, namespace: str, before: datetime) -> list[ConversationKey]:
    """
    Return the conversations of a namespace that were last used before a time.

    Conversations whose last use cannot be read are left out.
    """
    return [start.key for start in read_start_rows(rows, namespace) if is_unused(rows, start.key, before)]


def is_unused(rows: Snapshot, key: ConversationKey, before: datetime) -> bool:
    """Return True if the last use of the conversation is readable and earlier than *before*."""
    start = decode_start_row(rows.get(key.start))
    at = read_last_use(rows, start) if isinstance(start, StartRecord) else None
    return at is not None and at < before


def record_use(rows: Rows, key: ConversationKey, at: datetime) -> None:
    """Store the time of the last use, if the conversation has a start row."""
    if rows.get(key.start) is not None:
        rows.put(key.used_key, ENCODER.encode(at))


def delete_conversation(rows: Rows, key: ConversationKey, directory: str) -> bool:
    """
    Delete a locked conversation, and return whether it existed.

    Inherited changes are copied to its forks first. `reclaim` deletes texts that are no longer referenced.
    """
    first, changes = rows.get(key.start), rows.items(key.changes)
    if first is None and not changes:
        return False
    _detach_forks(rows, key, changes, directory, why="it has forks that need them, and was not deleted")
    for name in (*(name for name, _ in changes), *rows.keys(key.recall_log_prefix), key.start, key.used_key):
        rows.delete(name)
    rows.put(RECLAIM_PENDING_KEY, b"")
    return True


async def move_conversation(storage: RowStorage, source: ConversationKey, target: ConversationKey) -> int:
    """
    Move a conversation to another namespace, and return its number of handles.

    The move is one transaction; both names must be locked. Forks of the conversation stay in their namespace and keep
    their contents. If the conversation is itself a fork, it keeps its contents, too. Afterwards no conversation depends
    on a row or text of another namespace.
    """
    held, known = await load(storage, source, DescriptorSettings())
    if not known.is_started:
        raise await unknown_conversation_error(storage, source)

    def move(rows: Rows) -> None:
        there = rows.in_namespace(target.namespace)
        changes, first = rows.items(source.changes), rows.get(source.start)
        inherited = [
            (f"{source.changes}{name.split('/', 2)[2]}", row)
            for generation, until in read_lineage(rows, source, storage.location)[1][1:]
            for name, row in generation
            if 0 < parse_change(name, row).number <= until
        ]
        if there.get(target.start) is not None or there.keys(target.changes):
            raise InvalidArgument(
                f"there is a conversation {target.name!r:.80} in the namespace {target.namespace!r:.80} already",
                hint="nothing was moved: names are kept, and two conversations are never made one",
            )
        _check_undamaged([*inherited, *changes], source, storage.location, "nothing was moved")
        _detach_forks(rows, source, changes, storage.location, why="nothing was moved")
        for name, row in [*inherited, *changes]:
            there.put(f"{target.changes}{name.removeprefix(source.changes)}", cast("bytes", row))
        for name, _ in changes:
            rows.delete(name)
        _copy_texts(rows, there, {parse_change(name, row).hash for name, row in [*inherited, *changes]} - {None})
        _move_recall_log(rows, there, source, target)
        used = rows.get(source.used_key)
        if first is not None:
            rows.delete(source.start)
            start = require_start_row(first, source, storage.location)
            there.put(target.start, ENCODER.encode(start.with_key(target, None, parent_at=0)))
        if rows.delete(source.used_key) and isinstance(used, bytes):
            there.put(target.used_key, used)

    await storage.transact(move, namespaces=[source.namespace, target.namespace])
    return held.usage.handles


@attrs.frozen
class DeletedConversations:
    """Number of deleted conversations, and of texts that were deleted with them."""

    conversations: int
    texts: int


def delete_namespace_rows(rows: Rows, namespace: str, directory: str, *, shares_rows: bool) -> DeletedConversations:
    """
    Delete all conversations of a namespace, including those with damaged rows.

    Forks in other namespaces receive the changes that they inherit. If *shares_rows* is True, *rows* also contains
    other namespaces. Then `reclaim` must delete the unreferenced texts afterwards.

    Raises:
        StoreDamaged: A change that a fork in another namespace inherits cannot be read.

    """
    parts = _find_key_parts(rows, namespace)
    if not shares_rows:
        text_count = len(rows.keys(TEXT_PREFIX))
        for prefix in (*ROW_PREFIXES, TEXT_PREFIX):
            rows.delete_prefix(prefix)
        rows.delete(RECLAIM_PENDING_KEY)
        return DeletedConversations(len(parts), text_count)
    _detach_foreign_forks(rows, namespace, directory)
    for part in parts:
        rows.delete_prefix(f"{CHANGE_PREFIX}{part}/")
        rows.delete_prefix(f"{RECALL_LOG_PREFIX}{part}/")
        rows.delete(f"{START_PREFIX}{part}")
        rows.delete(f"{USED_PREFIX}{part}")
    if parts:
        rows.put(RECLAIM_PENDING_KEY, b"")
    return DeletedConversations(len(parts), 0)


def _find_key_parts(rows: Snapshot, namespace: str) -> list[str]:
    """Return the key parts of the conversations of a namespace, even if their start rows are damaged."""
    # The start row names the namespace of a conversation whose key part is a hash.
    found = dict.fromkeys(start.key.key_part for start in read_start_rows(rows, namespace))
    for prefix in ROW_PREFIXES:
        parts = (parse_conversation_part(key) for key in rows.keys(f"{prefix}{key_part_prefix(namespace)}"))
        found |= dict.fromkeys(part for part in parts if part is not None and is_key_part_of(part, namespace))
    return list(found)


def _detach_foreign_forks(rows: Rows, namespace: str, directory: str) -> None:
    """Copy inherited changes to forks in other namespaces until none has an ancestor in this namespace."""
    seen: set[tuple[ConversationKey, ConversationKey]] = set()
    while True:
        inheriting = {
            (start.key, start.parent_key)
            for start in read_start_rows(rows)
            if start.parent_key is not None and start.namespace != namespace == start.parent_key.namespace
        }
        # Damaged rows may form a cycle of parents.
        if inheriting <= seen:
            return
        seen |= inheriting
        for parent in {parent for _, parent in inheriting}:
            why = "forks in other namespaces need them, and nothing was deleted"
            _detach_forks(rows, parent, rows.items(parent.changes), directory, why=why, except_in=namespace)


def _detach_forks(
    rows: Rows,
    key: ConversationKey,
    changes: list[tuple[str, bytes | DamagedValue]],
    directory: str,
    *,
    why: str,
    except_in: str | None = None,
) -> None:
    """
    Copy the inherited changes, and ids of recall logs, to all forks of a conversation, so that it can be removed.

    Forks in the namespace *except_in* are left out.
    """
    forks = [start for start in read_start_rows(rows) if start.parent_key == key and start.namespace != except_in]
    if not forks:
        return
    _check_undamaged(changes, key, directory, why)
    first = rows.get(key.start)
    start = None if first is None else require_start_row(first, key, directory)
    recalled = rows.items(key.recall_log_prefix)
    for fork in forks:
        for name, row in changes:
            if 0 < parse_change(name, row).number <= fork.parent_at:
                rows.put(f"{fork.key.changes}{name.removeprefix(key.changes)}", cast("bytes", row))
        for name, row in recalled if fork.namespace == key.namespace else ():
            own = f"{fork.key.recall_log_prefix}{name.removeprefix(key.recall_log_prefix)}"
            if (named := add_ids(rows.get(own), row)) is not None:
                rows.put(own, named)
        parent, until = (None, 0) if start is None else (start.parent_key, start.parent_at)
        rows.put(fork.key.start, ENCODER.encode(fork.with_key(fork.key, parent, parent_at=min(fork.parent_at, until))))


def _copy_texts(rows: Rows, target: Rows, hashes: Collection[str | None]) -> None:
    """Copy texts to another namespace unless both share them, and schedule the cleanup of the originals."""
    if target is rows:
        return
    for name, text in rows.get_many([f"{TEXT_PREFIX}{digest}" for digest in sorted(map(str, hashes))]).items():
        if isinstance(text, bytes):
            target.put_new(name, text)
    rows.put(RECLAIM_PENDING_KEY, b"")


def _move_recall_log(rows: Rows, there: Rows, source: ConversationKey, target: ConversationKey) -> None:
    for name, row in rows.items(source.recall_log_prefix):
        rows.delete(name)
        # Remove the ids, because erasures in the new namespace do not know the memories. Skip unreadable rows.
        if (moved := erase_ids(row)) is not None:
            there.put(f"{target.recall_log_prefix}{name.removeprefix(source.recall_log_prefix)}", moved)


async def unknown_conversation_error(storage: RowStorage, key: ConversationKey) -> InvalidArgument:
    """Return the error for a missing conversation. Its hint lists similar names."""
    names = sorted(
        start.name
        for start in await storage.run_read(lambda rows: read_start_rows(rows, key.namespace), namespace=key.namespace)
    )
    nearest = difflib.get_close_matches(key.name, names, n=_MAX_SUGGESTIONS) or names[:_MAX_SUGGESTIONS]
    return InvalidArgument(
        f"the namespace {key.namespace!r:.80} has no conversation {key.name!r:.80} that contains anything",
        hint=f"it has {', '.join(f'{name!r:.80}' for name in nearest) or 'none'}",
    )


def read_start_rows(rows: Snapshot, namespace: str | None = None) -> list[StartRecord]:
    """
    Return the readable start rows of a namespace, or of all namespaces if None.

    Damaged start rows are logged and skipped.
    """
    read = {name: decode_start_row(row) for name, row in rows.items(START_PREFIX)}
    for name, start in read.items():
        if isinstance(start, DamagedValue):
            _log.warning("the row %s is damaged, and the conversation passed over: %s", name, start.reason)
    known = [start for start in read.values() if isinstance(start, StartRecord)]
    return [start for start in known if namespace in {None, start.namespace}]


def read_last_use(rows: Snapshot, start: StartRecord) -> datetime | None:
    """Return the time of a conversation's last use, or None if any stored time is unreadable."""
    times: list[datetime | None] = [start.created_at]
    last, used = rows.last_key(start.key.changes), rows.get(start.key.used_key)
    if last is not None:
        times.append(parse_change(last, rows.get(last)).at)
    if used is not None:
        try:
            times.append(_TIME_DECODER.decode(used) if isinstance(used, bytes) else None)
        except msgspec.MsgspecError:
            times.append(None)
    return None if None in times else max(cast("list[datetime]", times))


def _check_undamaged(
    changes: list[tuple[str, bytes | DamagedValue]], key: ConversationKey, directory: str, why: str
) -> None:
    """Raise `StoreDamaged` if any of the rows is unreadable, because they must be rewritten."""
    damaged = tuple(name for name, row in changes if isinstance(row, DamagedValue))
    if damaged:
        raise StoreDamaged(
            f"changes of the conversation {key.name!r:.80} are damaged: {why}",
            file=directory,
            findings=damaged,
            hint="admin.check() lists the damage; undamaged entries can still be read",
        )
