"""Google ADK's memory service on a session's records; needs the extra ``google-adk``."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from mama_structs import sync
from mama_structs._internal import validation as _check
from mama_structs._internal.prompt_quoting import remove_recalled
from mama_structs.adapters.google_adk.common import HOST_LABEL, convert_errors, extract_text, hash_name
from mama_structs.adapters.shared.loop_bridge import LoopBridge
from mama_structs.errors import VersionConflict
from mama_structs.memory.types.engine import DISPLAY_BOUNDS
from mama_structs.memory.types.model import MemoryType
from mama_structs.memory.types.record import NewRecord, Record
from mama_structs.session.session import Session
from mama_structs.session.wiring import find_author

try:
    from google.adk.errors.input_validation_error import InputValidationError
    from google.adk.events import Event
    from google.adk.memory import BaseMemoryService
    from google.adk.memory.base_memory_service import SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions import Session as AdkSession
    from google.genai import types
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.google_adk needs the Agent Development Kit: pip install 'mama-structs[google-adk]'"
    ) from _missing

# Maximum characters of a search query. ADK sends the whole message of the user, which may be long.
_MAX_QUERY_CHARS: Final = 10_000
_NON_RECORD_TYPES: Final = tuple(one for one in MemoryType if one is not MemoryType.RECORD)


class AdkMemoryService(BaseMemoryService):
    """
    ADK memory service that stores and searches messages: ``Runner(memory_service=...)``.

    Search uses meaning, words and time. Each event with text is one record of its user, even if its session is added
    repeatedly, and keeps the event's time. Reasoning (`Part.thought`) is omitted. Other users of an app cannot find it
    here. The session's own search and recall, and every other host on the same namespace, can.

    Args:
        session: The session that stores the memories. An async one may be used in any event loop while its own runs.
        limit: Maximum number of memories that a search returns, at least 1.
        min_relevance: A search returns nothing if its best hit has a lower relevance, 0 to 1.
        shared: True to search also the other memories of the namespace: those of its other hosts, tools and people, but
            nothing that this service stores for other users.

    Raises:
        InvalidArgument: *limit* or *min_relevance* is invalid.

    """

    def __init__(
        self,
        session: Session | sync.Session,
        *,
        limit: int = 10,
        min_relevance: float = DISPLAY_BOUNDS.relevance,
        shared: bool = False,
    ) -> None:
        self._bridge = LoopBridge(session)
        self._records = self._bridge.session.records
        self._limit = _check.check_integer("limit", limit, 1)
        self._min_relevance = _check.check_ratio("min_relevance", min_relevance)
        self._shared = shared

    async def add_session_to_memory(self, session: AdkSession) -> None:
        """Store the messages of an ADK session that were neither stored nor deleted before."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store the new messages among *events*, all or none. *custom_metadata* must be JSON."""
        entries = [
            (
                _create_key(event.id, session_id),
                MemoryEntry(
                    id=event.id,
                    content=content,
                    author=event.author,
                    timestamp=datetime.fromtimestamp(event.timestamp, UTC).isoformat(),
                    custom_metadata=dict(custom_metadata or {}),
                ),
            )
            for event in events
            if event.content is not None and extract_text(content := _remove_recalled_parts(event.content))
        ]
        await self._bridge.arun(lambda: self._add(_create_user_labels(app_name, user_id), entries))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """
        Store memories, all or none. A memory replaces a stored memory with the same id.

        Raises:
            InputValidationError: A memory has no text, or its metadata is not JSON.

        """
        entries = []
        for memory in memories:
            if not extract_text(memory.content):
                raise InputValidationError("a memory needs text")
            own_id = memory.id or uuid.uuid4().hex
            told = {**(custom_metadata or {}), **memory.custom_metadata}
            named = memory.model_copy(update={"id": own_id, "custom_metadata": told})
            entries.append((_create_key(own_id, None), named))
        await self._bridge.arun(lambda: self._add(_create_user_labels(app_name, user_id), entries, replace=True))

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the memories of a user that match the beginning of a query, best first."""
        if not query.strip():
            return SearchMemoryResponse()
        labels = _create_user_labels(app_name, user_id)
        found = await self._bridge.arun(lambda: self._find_memories(labels, query[:_MAX_QUERY_CHARS]))
        best = sorted(found, key=lambda one: -one[0])[: self._limit]
        is_answer = bool(best) and best[0][0] >= self._min_relevance
        return SearchMemoryResponse(memories=[memory for _, memory in best] if is_answer else [])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """
        Delete a memory.

        The id of an event is retained, so that adding its session again does not restore it.
        """
        if memory_id:
            labels = _create_user_labels(app_name, user_id)
            await self._bridge.arun(lambda: self._delete(labels, memory_id))

    async def _find_memories(self, labels: tuple[str, ...], query: str) -> list[tuple[float, MemoryEntry]]:
        """Return matching memories with their relevance."""

        def is_shared(record: Record) -> bool:
            return record.labels[:2] != labels[:2] or record.labels == labels

        def entry(record: Record) -> MemoryEntry:
            if record.labels == labels:
                return MemoryEntry.model_validate(record.value)
            return _create_entry(record.memory_id, record.text, record.origin, record.created_at)

        if not self._shared:
            hits = await self._records.search(query, labels, limit=self._limit)
            return [(hit.relevance, entry(hit.record)) for hit in hits]
        hits = await self._records.search(query, predicate=is_shared, limit=self._limit)
        others = await self._bridge.session.memories.search(query, type=_NON_RECORD_TYPES, limit=self._limit)
        memories = [(hit.relevance, hit.memory) for hit in others]
        return [(hit.relevance, entry(hit.record)) for hit in hits] + [
            (relevance, _create_entry(one.id, one.content, one.origin, one.created_at)) for relevance, one in memories
        ]

    async def _add(
        self, labels: tuple[str, ...], entries: Sequence[tuple[str, MemoryEntry]], *, replace: bool = False
    ) -> None:
        """Store the entries that are new or, with *replace*, all entries. Retry on concurrent changes."""
        longest, refs = self._bridge.session.settings.memory.max_content, self._bridge.session.refs
        while True:
            # If several entries have the same key, the last one is stored.
            wanted = dict(entries)
            known = dict(zip(wanted, await self._records.get_many([(labels, key) for key in wanted]), strict=True))
            with convert_errors():
                new = [
                    NewRecord(
                        labels,
                        key,
                        # Add the metadata without pydantic, which would serialize NaN as null.
                        entry.model_dump(mode="json", exclude_none=True) | {"custom_metadata": entry.custom_metadata},
                        text=extract_text(entry.content)[:longest],
                        origin=find_author(
                            extract_text(entry.content), "user" if entry.author == "user" else "model", refs
                        ),
                        created_at=_parse_time(entry.timestamp),
                        if_version=0 if (there := known[key]) is None else there.version,
                    )
                    for key, entry in wanted.items()
                    if replace or known[key] is None
                ]
                try:
                    await self._records.put_many(new)
                except VersionConflict:
                    continue
            return

    async def _delete(self, labels: tuple[str, ...], memory_id: str) -> None:
        """Replace a memory with a tombstone that has no text, in each session that contains its event."""
        found = await self._records.list(labels, nested=False, prefix=hash_name(memory_id))
        await self._records.put_many([NewRecord(labels, one.key, {"deleted": True}) for one in found])


def _create_user_labels(app_name: str, user_id: str) -> tuple[str, ...]:
    """Return the labels of a user's memories; raise for empty names."""
    if not app_name or not user_id:
        raise InputValidationError("app_name and user_id must not be empty.")
    return (HOST_LABEL, "memory", app_name, user_id)


def _create_key(memory_id: str, session_id: str | None) -> str:
    """Return the record key of an event. Keys of one event in several sessions share a prefix."""
    return hash_name(memory_id) + hash_name(session_id or "")


def _create_entry(memory_id: str | None, text: str | None, origin: str, at: datetime) -> MemoryEntry:
    """Convert a memory or record that this service did not store to an ADK entry."""
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return MemoryEntry(id=memory_id, content=content, author=origin, timestamp=at.isoformat())


def _remove_recalled_parts(content: types.Content) -> types.Content:
    """Return a message without the memories that `AdkRecallPlugin` has added to it."""
    parts = content.parts or ()
    return content.model_copy(update={"parts": [one for one in parts if not one.text or remove_recalled(one.text)]})


def _parse_time(timestamp: str | None) -> datetime | None:
    """Return a timestamp as a datetime, or None if it is missing or not ISO 8601."""
    try:
        parsed = datetime.fromisoformat(timestamp or "")
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
