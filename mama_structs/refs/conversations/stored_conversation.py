"""Reading of a stored conversation, which sessions of any process may have open."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import attrs

from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.refs.conversations.conversation_info import ConversationInfo
from mama_structs.refs.conversations.conversation_log import (
    ConversationKey,
    StartRecord,
    find_ancestors,
    read_entries,
    read_recall_rows,
    require_start_row,
)
from mama_structs.refs.conversations.conversations import read_last_use, unknown_conversation_error
from mama_structs.refs.conversations.recall_log import RecallLog
from mama_structs.refs.store.entries import Entries
from mama_structs.settings import DescriptorSettings
from mama_structs.storage.sealed_rows import DamagedValue, Snapshot
from mama_structs.storage.sqlite_store import RowStorage


@attrs.frozen(kw_only=True, eq=False)
class StoredConversation:
    """
    Content of a conversation at one time.

    Args:
        info: Its name, times and size.
        parent: Name of the conversation of which it is a fork, or None.
        entries: Its refs and descriptors, including deleted and damaged ones.
        recall_log: What was recalled into it. Changes of this log are not stored.

    """

    info: ConversationInfo
    parent: str | None = None
    entries: Entries
    recall_log: RecallLog


class _ConversationRows(NamedTuple):
    start: StartRecord
    last_used_at: datetime | None
    build_entries: Callable[[DescriptorSettings], Entries]
    recall_rows: dict[str, bytes | DamagedValue]
    inherited_recall_rows: list[dict[str, bytes | DamagedValue]]


async def read_conversation(storage: RowStorage, key: ConversationKey, *, is_open: bool) -> StoredConversation:
    """
    Read a conversation without a lock, in one transaction.

    Raises:
        InvalidArgument: The store has no such conversation.
        StoreDamaged: The start row of the conversation or of an ancestor cannot be read.

    """

    def read(rows: Snapshot) -> _ConversationRows | None:
        row = rows.get(key.start)
        if row is None:
            return None
        start = require_start_row(row, key, storage.location)
        return _ConversationRows(
            start,
            read_last_use(rows, start),
            read_entries(rows, key, storage.location),
            read_recall_rows(rows, key),
            [read_recall_rows(rows, one) for one in find_ancestors(rows, key)],
        )

    found = await storage.run_read(read, namespace=key.namespace)
    if found is None:
        raise await unknown_conversation_error(storage, key)

    def build() -> StoredConversation:
        entries = found.build_entries(DescriptorSettings())
        usage = entries.usage
        recall_log = RecallLog.from_rows(found.recall_rows, lambda _rows: None)
        for inherited in found.inherited_recall_rows:
            recall_log.add_ids(inherited)
        return StoredConversation(
            info=ConversationInfo(
                name=key.name,
                created_at=found.start.created_at,
                last_used_at=found.last_used_at,
                handle_count=usage.handles,
                recalled_count=len(found.recall_rows),
                bytes=usage.bytes,
                is_open=is_open,
            ),
            parent=found.start.parent,
            entries=entries,
            recall_log=recall_log,
        )

    return await run_in_own_thread(build)
