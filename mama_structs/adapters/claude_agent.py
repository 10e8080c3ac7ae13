"""
Adapter for the Claude Agent SDK: a transcript store and hooks.

Needs the extra ``claude-agent``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, cast

from mama_structs.adapters.shared.loop_bridge import require_async_session
from mama_structs.adapters.shared.tool_results import DEFAULT_MAX_RECALL_CHARS, observe_message, recall_for_messages
from mama_structs.errors import VersionConflict
from mama_structs.memory.types.record import NewRecord, Record
from mama_structs.session.session import Session

try:
    from claude_agent_sdk import (
        HookContext,
        HookInput,
        HookJSONOutput,
        HookMatcher,
        SessionKey,
        SessionListSubkeysKey,
        SessionStore,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
        fold_session_summary,
    )
    from claude_agent_sdk.types import HookEvent
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.claude_agent needs the Claude Agent SDK: pip install 'mama-structs[claude-agent]'"
    ) from _missing

# Name of the framework in error messages.
_FRAMEWORK: Final = "the Claude Agent SDK"
# Labels of a transcript's records: host, project, session and, for a subagent, its path.
_HOST_LABEL: Final = "claude-agent"
_MAIN_LABEL_COUNT: Final = 3
# The head record stores a transcript's entry count and summary. Each append replaces it.
# A check of the head's version detects concurrent appends by two processes.
_HEAD_KEY: Final = "head"
# An entry's key contains its id, which prevents duplicates. The key of an entry without id contains its position.
_ID_KEY_PREFIX: Final = "uuid:"
_POSITION_KEY_PREFIX: Final = "entry:"
# Temporary key prefix of new entries that have no id. The stored key contains the entry's position instead.
_TEMPORARY_KEY_PREFIX: Final = "new:"
_MAX_ID_CHARS: Final = 128


class _SessionStore:
    """Store for the transcripts of Claude Code in a session's records; see `session_store`."""

    def __init__(self, session: Session) -> None:
        self._records = session.records

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries to a transcript, skipping entries that it already contains."""
        labels = _create_labels(key)
        keyed: dict[str, SessionStoreEntry] = {}
        for at, entry in enumerate(entries):
            # If several entries have the same id, the first one is stored.
            keyed.setdefault(_create_id_key(entry) or f"{_TEMPORARY_KEY_PREFIX}{at}", entry)
        while True:
            head, *known = await self._records.get_many([(labels, name) for name in (_HEAD_KEY, *keyed)])
            has = {one.key for one in known if one is not None}
            fresh = {name: entry for name, entry in keyed.items() if name not in has}
            if not fresh:
                return
            try:
                await self._records.put_many(_create_append_records(key, head, fresh))
            except VersionConflict:
                # Another process changed or deleted the transcript concurrently, so read it again and retry.
                continue
            return

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript in order, or None if it does not exist."""
        entries = [
            record.value
            for record in await self._records.list(_create_labels(key), nested=False)
            if record.key != _HEAD_KEY
        ]
        return [json.loads(one["entry"]) for one in sorted(entries, key=lambda one: one["place"])] or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the ids of a project's sessions, each with the time of its last append."""
        return [
            {"session_id": head.labels[-1], "mtime": _get_mtime(head)} for head in await self._load_heads(project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the stored summary of each session of a project, without reading its transcript."""
        return [
            {"session_id": head.labels[-1], "mtime": _get_mtime(head), "data": json.loads(head.value["summary"])}
            for head in await self._load_heads(project_key)
        ]

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with its subagents' transcripts, or only one subagent's transcript."""
        labels = _create_labels(key)
        await self._records.delete_all(labels, nested=len(labels) == _MAIN_LABEL_COUNT)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the paths of a session's subagents."""
        labels = _create_labels(cast("SessionKey", key))
        return [
            found[_MAIN_LABEL_COUNT] for found in await self._records.labels(labels) if len(found) > _MAIN_LABEL_COUNT
        ]

    async def _load_heads(self, project_key: str) -> Iterable[Record]:
        """Return the head record of each session of a project."""
        labels = [
            one for one in await self._records.labels((_HOST_LABEL, project_key)) if len(one) == _MAIN_LABEL_COUNT
        ]
        return filter(None, await self._records.get_many([(one, _HEAD_KEY) for one in labels]))


def _create_labels(key: SessionKey) -> tuple[str, ...]:
    """Return the labels of the records of a transcript."""
    main = (_HOST_LABEL, key["project_key"], key["session_id"])
    subpath = key.get("subpath")
    return main if subpath is None else (*main, subpath)


def _create_id_key(entry: SessionStoreEntry) -> str | None:
    """Return the record key for the id of an entry, or None if it has no usable id."""
    own = entry.get("uuid")
    return (
        f"{_ID_KEY_PREFIX}{own}" if isinstance(own, str) and own.isascii() and 0 < len(own) <= _MAX_ID_CHARS else None
    )


def _create_append_records(
    key: SessionKey, head: Record | None, fresh: dict[str, SessionStoreEntry]
) -> list[NewRecord]:
    """Create the records of an append: the new entries and the updated head."""
    labels = _create_labels(key)
    known: dict[str, Any] = {"places": 0, "summary": "{}"} if head is None else head.value
    place, summary = known["places"], json.loads(known["summary"])
    # Only the main transcript is part of a session's summary.
    if len(labels) == _MAIN_LABEL_COUNT:
        before: SessionSummaryEntry = {"session_id": key["session_id"], "mtime": 0, "data": summary}
        summary = fold_session_summary(before, key, list(fresh.values()))["data"]
    # Store entries as JSON text, because it escapes lone surrogates, which a record's text cannot contain.
    entries = [
        NewRecord(
            labels,
            f"{_POSITION_KEY_PREFIX}{at}" if name.startswith(_TEMPORARY_KEY_PREFIX) else name,
            {"place": at, "entry": json.dumps(entry)},
        )
        for at, (name, entry) in enumerate(fresh.items(), start=place)
    ]
    now = {"places": place + len(entries), "summary": json.dumps(summary)}
    return [*entries, NewRecord(labels, _HEAD_KEY, now, if_version=0 if head is None else head.version)]


def _get_mtime(head: Record) -> int:
    """Return the time of a transcript's last append, in milliseconds since the epoch."""
    return int(head.updated_at.timestamp() * 1_000)


def session_store(session: Session) -> SessionStore:
    """
    Return a session as a transcript store, for ``ClaudeAgentOptions(session_store=...)``.

    Claude Code can then resume a session on another host, and the SDK's own functions can list, read, fork and delete
    it. Transcripts are stored separately from memories: search and recall do not find them. Duplicate entries are
    stored once. Entries of several processes are ordered by the time at which they were stored. Nothing expires:
    ``delete_session_via_store`` deletes one session.

    Args:
        session: The session that stores the transcripts. It must stay open while they are used, on the event loop that
            opened it.

    Raises:
        InvalidArgument: *session* is one of `mama_structs.sync`. The SDK is async only.

    """
    return _SessionStore(require_async_session(session, _FRAMEWORK))


def hooks(session: Session, *, max_chars: int = DEFAULT_MAX_RECALL_CHARS) -> dict[HookEvent, list[HookMatcher]]:
    """
    Return Claude Code hooks that recall a session's memories and store refs in it.

    Pass them to ``ClaudeAgentOptions(hooks=...)``.

    The memories recalled for the user's prompt are appended to it. When Claude stops, the refs of its last message are
    stored. Store the refs of earlier messages with ``await session.observe(block.text)`` for each `TextBlock` that the
    SDK yields. After a compaction, and in another session of Claude Code, facts may be recalled again. Errors are
    logged and do not stop Claude; only `SessionClosed` and `WrongLoop` are raised.

    Args:
        session: The session with the memories and refs. It must stay open while the hooks are used, on the event loop
            that opened it.
        max_chars: Maximum number of recalled characters, at least 300.

    Raises:
        InvalidArgument: *session* is one of `mama_structs.sync`. The SDK is async only.

    """
    require_async_session(session, _FRAMEWORK)
    # Maps the id of a Claude Code session to True if its context no longer contains the recalled text.
    has_lost: dict[str | None, bool] = {}

    async def recall(given: HookInput, _tool: str | None, _context: HookContext) -> HookJSONOutput:
        own_id = given.get("session_id")
        # Recall again for every Claude Code session after the first, because its context contains no recalled text yet.
        again, has_lost[own_id] = has_lost.get(own_id, bool(has_lost)), False
        text = await recall_for_messages(session, given.get("prompt"), max_chars=max_chars, repeat=again)
        if not text:
            return {}
        return {"hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": text}}

    async def observe(given: HookInput, _tool: str | None, _context: HookContext) -> HookJSONOutput:
        if said := given.get("last_assistant_message"):
            await observe_message(session, said)
        return {}

    async def lose(given: HookInput, _tool: str | None, _context: HookContext) -> HookJSONOutput:
        has_lost[given.get("session_id")] = True
        return {}

    return {
        "UserPromptSubmit": [HookMatcher(hooks=[recall])],
        "Stop": [HookMatcher(hooks=[observe])],
        "PreCompact": [HookMatcher(hooks=[lose])],
    }
