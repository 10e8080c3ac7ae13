"""Conversation store of the harness on a session's records."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai_harness.step_persistence.conversations import (
    ConversationConflict,
    ConversationSummary,
    SavedConversation,
    conversation_text,
    ensure_inactive,
)

from mama_structs import sync
from mama_structs.adapters.shared.loop_bridge import LoopBridge, make_awaitable
from mama_structs.errors import InvalidArgument, VersionConflict, repr_short
from mama_structs.memory.types.record import NewRecord, Record
from mama_structs.session.session import Session

# The summary's key is the conversation's id. Messages have the id as a label, so listing summaries reads no messages.
_CONVERSATION_LABELS: Final = ("pydantic-ai", "conversations")
# A save does not overwrite these fields, because the conversation may have been named since it was read.
_NAMING_FIELDS: Final = (
    "naming_tokens",
    "naming_version",
    "named_revision",
    "subtitle",
    "tags",
    "title",
    "title_source",
)


class SessionConversationStore:
    """
    Stores conversations and their summaries; see `conversation_store`.

    It has the methods of the harness's ``SqliteConversationStore`` and raises the same exceptions.
    """

    def __init__(self, session: Session | sync.Session) -> None:
        self._bridge = LoopBridge(session)
        self._records = self._bridge.session.records
        self._now = self._bridge.session.refs._now

    @make_awaitable
    async def save(self, *, summary: ConversationSummary, messages: Sequence[ModelMessage]) -> ConversationSummary:
        """
        Store the messages of a conversation, unless it changed after its summary was read.

        Args:
            summary: The summary as it was read, or a new one.
            messages: All messages; those that are stored already are not written again.

        Returns:
            The summary for the next save.

        Raises:
            ConversationConflict: It was saved or deleted meanwhile; nothing was written.
            InvalidArgument: A message exceeds the size limit of a record.

        """
        dumped = [json.dumps(one) for one in ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")]
        updated = replace(
            summary,
            revision=summary.revision + 1,
            updated_at=self._now(),
            message_count=len(messages),
            total_tokens=sum(one.usage.total_tokens for one in messages if isinstance(one, ModelResponse)),
        )
        labels = (*_CONVERSATION_LABELS, summary.id)
        while True:
            record = await self._records.get(_CONVERSATION_LABELS, summary.id)
            if record is not None:
                before = _parse_summary(record)
                updated = replace(updated, **{name: getattr(before, name) for name in _NAMING_FIELDS}, archived_at=None)
                if before.revision != summary.revision:
                    raise ConversationConflict("this conversation was changed in another process: read it again")
            elif summary.revision != 0:
                raise ConversationConflict("this conversation was deleted: start a new one")
            kept = await self._records.list(labels, nested=False)
            same = {one.key for one, text in zip(kept, dumped, strict=False) if one.value == text}
            puts = [NewRecord(labels, key, text) for at, text in enumerate(dumped) if (key := f"{at:012d}") not in same]
            head = NewRecord(
                _CONVERSATION_LABELS,
                summary.id,
                _serialize_summary(updated),
                if_version=0 if record is None else record.version,
            )
            try:
                await self._records.put_many([head, *puts], delete=[(labels, one.key) for one in kept[len(dumped) :]])
            except VersionConflict:
                # Retry, because another process may have changed only the name, which is no conflict.
                continue
            return updated

    @make_awaitable
    async def get(self, *, conversation_id: str) -> SavedConversation:
        """
        Return a conversation.

        Args:
            conversation_id: The id of the conversation.

        Raises:
            LookupError: There is no conversation with this id.
            ValueError: Its messages cannot be parsed, for example those of a later version of Pydantic AI.

        """
        while True:
            record = await self._load_record(conversation_id)
            kept = await self._records.list((*_CONVERSATION_LABELS, conversation_id), nested=False)
            # Retry if the conversation was saved between reading its summary and its messages.
            if (await self._load_record(conversation_id)).version == record.version:
                return SavedConversation(summary=_parse_summary(record), messages=_parse_messages(kept))

    @make_awaitable
    async def listing(
        self, *, query: str = "", limit: int = 200, offset: int = 0, archived: bool | None = None
    ) -> list[ConversationSummary]:
        """
        Return conversation summaries, most recently changed first.

        Args:
            query: Only those whose summary or messages contain this text, ignoring case.
            limit: Maximum number of summaries.
            offset: Number of summaries to skip.
            archived: True for archived ones only, False for the others only, None for all.

        Raises:
            InvalidArgument: *limit* or *offset* is too small.

        """
        if limit < 1 or offset < 0:
            raise InvalidArgument(f"limit must be 1 or more and offset 0 or more, got {limit} and {offset}")
        records = await self._records.list(_CONVERSATION_LABELS, nested=False)
        found = [one for one in map(_parse_summary, records) if archived in (None, one.archived_at is not None)]
        found.sort(key=lambda one: (-one.updated_at.timestamp(), one.id))
        if query:
            found = [one for one in found if query.casefold() in (await self._load_searchable_text(one)).casefold()]
        return found[offset : offset + limit]

    async def _load_searchable_text(self, summary: ConversationSummary) -> str:
        """Return the searchable text of a conversation."""
        kept = await self._records.list((*_CONVERSATION_LABELS, summary.id), nested=False)
        return f"{conversation_text(_parse_messages(kept))}{_serialize_summary(summary)}"

    @make_awaitable
    async def name(
        self,
        *,
        source: ConversationSummary,
        title: str,
        subtitle: str = "",
        tags: tuple[str, ...] = (),
        manual: bool = False,
        tokens: int = 0,
    ) -> bool:
        """
        Name a conversation. Return False if it has changed since *source* was read, or if its user has named it.

        Args:
            source: The summary from which the name was generated.
            title: The name.
            subtitle: A second line.
            tags: Its topics.
            manual: True if its user named it.
            tokens: Tokens used for naming, counted even if it is not named.

        """
        is_named = False

        def apply_name(current: ConversationSummary) -> ConversationSummary:
            nonlocal is_named
            current = replace(current, naming_tokens=current.naming_tokens + tokens)
            is_current = (current.revision, current.naming_version) == (source.revision, source.naming_version)
            is_named = is_current and (manual or current.title_source != "user")
            if not is_named:
                return current
            return replace(
                current,
                title=title,
                subtitle=subtitle,
                tags=tags,
                title_source="user" if manual else "generated",
                naming_version=current.naming_version + 1,
                named_revision=current.revision,
            )

        try:
            await self._revise(source.id, apply_name)
        except LookupError:
            return False
        return is_named

    @make_awaitable
    async def set_archived(self, *, conversation_id: str, archived: bool) -> ConversationSummary:
        """
        Archive or unarchive a conversation, and return its summary.

        Args:
            conversation_id: The id of the conversation.
            archived: Whether the conversation is archived.

        Raises:
            LookupError: There is no conversation with this id.

        """
        now = self._now()

        def revised(current: ConversationSummary) -> ConversationSummary:
            is_so = archived == (current.archived_at is not None)
            return current if is_so else replace(current, archived_at=now if archived else None)

        return await self._revise(conversation_id, revised)

    @make_awaitable
    async def delete(self, *, source: ConversationSummary) -> None:
        """
        Delete a conversation with its messages.

        Raises:
            ConversationConflict: It changed since *source* was read, or a process is using it.

        """
        ensure_inactive(source)
        record = await self._records.get(_CONVERSATION_LABELS, source.id)
        if record is None or _parse_summary(record).revision != source.revision:
            raise ConversationConflict("this conversation was changed or deleted: list them again")
        kept = await self._records.list((*_CONVERSATION_LABELS, source.id), nested=False)
        head, gone = (_CONVERSATION_LABELS, source.id, record.version), [(one.labels, one.key) for one in kept]
        try:
            await self._records.put_many((), delete=[head, *gone])
        except VersionConflict:
            await self.delete(source=source)

    async def _load_record(self, conversation_id: str) -> Record:
        """Return the record of a summary."""
        record = await self._records.get(_CONVERSATION_LABELS, conversation_id)
        if record is None:
            raise LookupError(f"No saved session {repr_short(conversation_id)}")
        return record

    async def _revise(
        self, conversation_id: str, revised: Callable[[ConversationSummary], ConversationSummary]
    ) -> ConversationSummary:
        """Apply *revised* to a summary and store the result. Retry on concurrent changes."""
        while True:
            record = await self._load_record(conversation_id)
            current = _parse_summary(record)
            if (updated := revised(current)) == current:
                return current
            try:
                await self._records.put(
                    _CONVERSATION_LABELS, conversation_id, _serialize_summary(updated), if_version=record.version
                )
            except VersionConflict:
                continue
            return updated


@functools.cache
def _make_summary_adapter() -> TypeAdapter[ConversationSummary]:
    # The documentation is built without this framework, so the module must not create the adapter while it is imported.
    return TypeAdapter(ConversationSummary)


def _parse_summary(record: Record) -> ConversationSummary:
    return _make_summary_adapter().validate_json(record.value)


def _serialize_summary(summary: ConversationSummary) -> str:
    return _make_summary_adapter().dump_json(summary).decode()


def _parse_messages(kept: Sequence[Record]) -> list[ModelMessage]:
    # Messages are stored as JSON text, which escapes lone surrogates, because a record's text cannot contain them.
    return ModelMessagesTypeAdapter.validate_python([json.loads(one.value) for one in kept])
