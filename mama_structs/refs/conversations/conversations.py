"""
Operations on whole conversations: list, move to another namespace, and delete.

None of them affects the contents of forks. In addition to the rows of `conversation_log`, a row ``used/<part>`` stores
when a conversation with changes was last opened or closed.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final, cast

import msgspec

from mama_structs.errors import InvalidArgument, StoreDamaged
from mama_structs.refs.conversations.conversation_info import ConversationInfo
from mama_structs.refs.conversations.conversation_log import (
    DEBT,
    ENCODER,
    STARTS,
    TEXTS,
    ConversationKey,
    DeleteRecord,
    StartRecord,
    begun,
    change_of,
    changes_of,
    lineage,
    load,
    start_of,
)
from mama_structs.settings import DescriptorSettings
from mama_structs.storage.sealed_rows import Damaged, Rows, Snapshot
from mama_structs.storage.sqlite_store import RowStorage

_NEAREST: Final = 5
_TIME: Final = msgspec.json.Decoder(datetime)

_log: Final = logging.getLogger("mama_structs")


def listed(rows: Snapshot, namespace: str, is_open: Callable[[ConversationKey], bool]) -> tuple[ConversationInfo, ...]:
    """Return the conversations of a namespace, most recently used first."""
    sizes = rows.sizes(TEXTS)
    found = []
    for start in starts_in(rows, namespace):
        try:
            changes = changes_of(lineage(rows, start.key, "")[1])
        except StoreDamaged:
            # An ancestor cannot be read: count only the conversation's own changes.
            changes = changes_of([(rows.items(start.key.changes), math.inf)])
        held = {change.handle: change.hash for change in changes if change.hash is not None}
        for change in changes:
            if isinstance(change.record, DeleteRecord):
                held.pop(change.handle, None)
        info = ConversationInfo(
            name=start.name,
            created_at=start.created_at,
            used_at=_used(rows, start),
            handles=len(held),
            bytes=sum(sizes.get(f"{TEXTS}{digest}", 0) for digest in set(held.values())),
            is_open=is_open(start.key),
        )
        found.append(info)
    return tuple(sorted(found, key=lambda info: info.used_at or info.created_at, reverse=True))


def keys_of(rows: Snapshot, namespace: str) -> list[ConversationKey]:
    """Return the keys of all conversations of a namespace."""
    return [start.key for start in starts_in(rows, namespace)]


def namespaces_of(rows: Snapshot) -> set[str]:
    """Return the namespaces of all conversations whose start row is readable."""
    read = (start_of(row) for _, row in rows.items(STARTS))
    return {start.namespace for start in read if isinstance(start, StartRecord)}


def strip(rows: Rows, key: ConversationKey, hashes: Collection[str], is_read: Callable[[str], bool]) -> None:
    """
    Remove source and attributes from the changes of deleted handles.

    Only changes whose text hash is in *hashes*, or whose source satisfies *is_read*, are rewritten.
    """
    changes = [(name, change_of(name, row)) for name, row in rows.items(key.changes)]
    gone = {change.handle for _, change in changes if isinstance(change.record, DeleteRecord)}
    for name, change in changes:
        bare = change.bare
        if change.handle in gone and bare is not None and (change.hash in hashes or is_read(change.source)):
            rows.put(name, ENCODER.encode(bare))


def unused(rows: Snapshot, namespace: str, before: datetime) -> list[ConversationKey]:
    """
    Return the conversations of a namespace that were last used before a time.

    Conversations whose last use cannot be read are left out.
    """
    return [start.key for start in starts_in(rows, namespace) if is_unused(rows, start.key, before)]


def is_unused(rows: Snapshot, key: ConversationKey, before: datetime) -> bool:
    """Return True if a conversation's last use is readable and before a time."""
    start = start_of(rows.get(key.start))
    at = _used(rows, start) if isinstance(start, StartRecord) else None
    return at is not None and at < before


def note_use(rows: Rows, key: ConversationKey, at: datetime) -> None:
    """Store the time of the last use, if the conversation has a start row."""
    if rows.get(key.start) is not None:
        rows.put(key.used, ENCODER.encode(at))


def delete(rows: Rows, key: ConversationKey, directory: str) -> bool:
    """
    Delete a locked conversation, and return whether it existed.

    Inherited changes are copied to its forks first. `reclaim` deletes texts that are no longer referenced.
    """
    first, changes = rows.get(key.start), rows.items(key.changes)
    if first is None and not changes:
        return False
    _detach_forks(rows, key, changes, directory, why="it has forks that need them, and was not deleted")
    for name in (*(name for name, _ in changes), *rows.keys(key.told), key.start, key.used):
        rows.delete(name)
    rows.put(DEBT, b"")
    return True


async def assign(storage: RowStorage, source: ConversationKey, target: ConversationKey) -> int:
    """
    Move a conversation to another namespace, and return its number of handles.

    The move is one transaction; both names must be locked. Forks of the conversation stay in their namespace and keep
    their contents. If the conversation is itself a fork, it keeps its contents, too. Afterwards no conversation depends
    on a row or text of another namespace.
    """
    held, known = await load(storage, source, DescriptorSettings())
    if not known.is_started:
        raise await unknown(storage, source)

    def move(rows: Rows) -> None:
        there = rows.within(target.namespace)
        changes, first = rows.items(source.changes), rows.get(source.start)
        inherited = [
            (f"{source.changes}{name.split('/', 2)[2]}", row)
            for generation, until in lineage(rows, source, storage.location)[1][1:]
            for name, row in generation
            if 0 < change_of(name, row).number <= until
        ]
        if there.get(target.start) is not None or there.keys(target.changes):
            raise InvalidArgument(
                f"there is a conversation {target.name!r:.80} in the namespace {target.namespace!r:.80} already",
                hint="nothing was moved: names are kept, and two conversations are never made one",
            )
        _refuse_damaged([*inherited, *changes], source, storage.location, "nothing was moved")
        _detach_forks(rows, source, changes, storage.location, why="nothing was moved")
        for name, row in [*inherited, *changes]:
            there.put(f"{target.changes}{name.removeprefix(source.changes)}", cast("bytes", row))
        for name, _ in changes:
            rows.delete(name)
        _copy_texts(rows, there, {change_of(name, row).hash for name, row in [*inherited, *changes]} - {None})
        _move_told(rows, there, source, target)
        used = rows.get(source.used)
        if first is not None:
            rows.delete(source.start)
            start = begun(first, source, storage.location)
            there.put(target.start, ENCODER.encode(start.moved(target, None, until=0)))
        if rows.delete(source.used) and isinstance(used, bytes):
            there.put(target.used, used)

    await storage.transact(move, namespaces=[source.namespace, target.namespace])
    return held.usage.handles


def _detach_forks(
    rows: Rows, key: ConversationKey, changes: list[tuple[str, bytes | Damaged]], directory: str, *, why: str
) -> None:
    """Copy the inherited changes of a conversation to its forks, so that it can be removed."""
    forks = [start for start in starts_in(rows) if start.parent_key == key]
    if not forks:
        return
    _refuse_damaged(changes, key, directory, why)
    first = rows.get(key.start)
    start = None if first is None else begun(first, key, directory)
    for fork in forks:
        for name, row in changes:
            if 0 < change_of(name, row).number <= fork.parent_at:
                rows.put(f"{fork.key.changes}{name.removeprefix(key.changes)}", cast("bytes", row))
        parent, until = (None, 0) if start is None else (start.parent_key, start.parent_at)
        rows.put(fork.key.start, ENCODER.encode(fork.moved(fork.key, parent, until=min(fork.parent_at, until))))


def _copy_texts(rows: Rows, target: Rows, hashes: Collection[str | None]) -> None:
    """Copy texts to another namespace, unless shared, and schedule cleanup of the originals."""
    if target is rows:
        return
    for name, text in rows.get_many([f"{TEXTS}{digest}" for digest in sorted(map(str, hashes))]).items():
        if isinstance(text, bytes):
            target.put_new(name, text)
    rows.put(DEBT, b"")


def _move_told(rows: Rows, there: Rows, source: ConversationKey, target: ConversationKey) -> None:
    for name, row in rows.items(source.told):
        rows.delete(name)
        # Facts of unreadable rows are recalled again.
        if isinstance(row, bytes):
            there.put(f"{target.told}{name.removeprefix(source.told)}", row)


async def unknown(storage: RowStorage, key: ConversationKey) -> InvalidArgument:
    """Return the error for a conversation that does not exist, with similar names."""
    names = sorted(
        start.name for start in await storage.look(lambda rows: starts_in(rows, key.namespace), namespace=key.namespace)
    )
    nearest = difflib.get_close_matches(key.name, names, n=_NEAREST) or names[:_NEAREST]
    return InvalidArgument(
        f"the namespace {key.namespace!r:.80} has no conversation {key.name!r:.80} that holds anything",
        hint=f"it has {', '.join(f'{name!r:.80}' for name in nearest) or 'none'}",
    )


def starts_in(rows: Snapshot, namespace: str | None = None) -> list[StartRecord]:
    """
    Return the readable start rows of a namespace, or of all namespaces if None.

    Damaged start rows are logged and skipped.
    """
    read = {name: start_of(row) for name, row in rows.items(STARTS)}
    for name, start in read.items():
        if isinstance(start, Damaged):
            _log.warning("the row %s is damaged, and the conversation passed over: %s", name, start.reason)
    known = [start for start in read.values() if isinstance(start, StartRecord)]
    return [start for start in known if namespace in {None, start.namespace}]


def _used(rows: Snapshot, start: StartRecord) -> datetime | None:
    """Return when a conversation was last used, or None if a time is unreadable."""
    times: list[datetime | None] = [start.created_at]
    last, used = rows.last(start.key.changes), rows.get(start.key.used)
    if last is not None:
        times.append(change_of(last, rows.get(last)).at)
    if used is not None:
        try:
            times.append(_TIME.decode(used) if isinstance(used, bytes) else None)
        except msgspec.MsgspecError:
            times.append(None)
    return None if None in times else max(cast("list[datetime]", times))


def _refuse_damaged(changes: list[tuple[str, bytes | Damaged]], key: ConversationKey, directory: str, why: str) -> None:
    """Raise `StoreDamaged` if a row that must be rewritten is unreadable."""
    damaged = tuple(name for name, row in changes if isinstance(row, Damaged))
    if damaged:
        raise StoreDamaged(
            f"changes of the conversation {key.name!r:.80} are damaged: {why}",
            file=directory,
            findings=damaged,
            hint="what can be read can be read where it is; check() lists what is damaged",
        )
