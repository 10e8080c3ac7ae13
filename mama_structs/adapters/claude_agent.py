"""A session for the Claude Agent SDK: the store of its transcripts, and its hooks; needs the extra ``claude-agent``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, cast

from mama_structs.adapters.shared.tool_results import MAX_CHARS, hear, recall_for
from mama_structs.errors import VersionConflict
from mama_structs.records import HostRecord, NewRecord
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

# A transcript is all records under its own labels: the host's, the project's, the session's, and a subagent's path.
_HOST: Final = "claude-agent"
_MAIN: Final = 3
# What is known of a transcript, put with each append: its version lets no two processes append at once.
_HEAD: Final = "head"
# An entry is found by its own id, so that none is stored twice; one without is by its place.
_BY_ID: Final = "uuid:"
_BY_PLACE: Final = "entry:"
# Of one without, until its place is known.
_NEW: Final = "new:"
_LONGEST_ID: Final = 128


class _SessionStore:
    """The transcripts of Claude Code in a session's records; `session_store` makes one."""

    def __init__(self, session: Session) -> None:
        self._records = session.records

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add entries behind those of a transcript, but for those that it has."""
        labels = _labels(key)
        keyed: dict[str, SessionStoreEntry] = {}
        for at, entry in enumerate(entries):
            # Of two with one id the first counts, as of two batches.
            keyed.setdefault(_own_key(entry) or f"{_NEW}{at}", entry)
        while True:
            head, *known = await self._records.get_many([(labels, name) for name in (_HEAD, *keyed)])
            has = {one.key for one in known if one is not None}
            fresh = {name: entry for name, entry in keyed.items() if name not in has}
            if not fresh:
                return
            try:
                await self._records.put_many(_appended(key, head, fresh))
            except VersionConflict:
                # Another process has appended, or deleted it all.
                continue
            return

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript in their order, None where there never was one."""
        entries = [
            record.value for record in await self._records.list(_labels(key), nested=False) if record.key != _HEAD
        ]
        return [json.loads(one["entry"]) for one in sorted(entries, key=lambda one: one["place"])] or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project, and when each was appended to."""
        return [{"session_id": head.labels[-1], "mtime": _mtime(head)} for head in await self._heads(project_key)]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return what the SDK notes of each session of a project, to list it without its transcript."""
        return [
            {"session_id": head.labels[-1], "mtime": _mtime(head), "data": json.loads(head.value["summary"])}
            for head in await self._heads(project_key)
        ]

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with its subagents' transcripts, or one of these alone."""
        labels = _labels(key)
        await self._records.delete_all(labels, nested=len(labels) == _MAIN)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the paths of a session's subagents."""
        labels = _labels(cast("SessionKey", key))
        return [found[_MAIN] for found in await self._records.labels(labels) if len(found) > _MAIN]

    async def _heads(self, project_key: str) -> Iterable[HostRecord]:
        """Return what is known of the sessions of a project."""
        labels = [one for one in await self._records.labels((_HOST, project_key)) if len(one) == _MAIN]
        return filter(None, await self._records.get_many([(one, _HEAD) for one in labels]))


def _labels(key: SessionKey) -> tuple[str, ...]:
    """Return the labels of a transcript."""
    main = (_HOST, key["project_key"], key["session_id"])
    subpath = key.get("subpath")
    return main if subpath is None else (*main, subpath)


def _own_key(entry: SessionStoreEntry) -> str | None:
    """Return what an entry is stored under by its own id, None where it has none."""
    own = entry.get("uuid")
    return f"{_BY_ID}{own}" if isinstance(own, str) and own.isascii() and 0 < len(own) <= _LONGEST_ID else None


def _appended(key: SessionKey, head: HostRecord | None, fresh: dict[str, SessionStoreEntry]) -> list[NewRecord]:
    """Return what an append puts: the new entries, and what is known of the transcript then."""
    labels = _labels(key)
    known: dict[str, Any] = {"places": 0, "summary": "{}"} if head is None else head.value
    place, summary = known["places"], json.loads(known["summary"])
    # A subagent's words are none of the session's.
    if len(labels) == _MAIN:
        before: SessionSummaryEntry = {"session_id": key["session_id"], "mtime": 0, "data": summary}
        summary = fold_session_summary(before, key, list(fresh.values()))["data"]
    # As JSON's own text: it also holds what no record's text may, such as half of a surrogate pair.
    entries = [
        NewRecord(
            labels, f"{_BY_PLACE}{at}" if name.startswith(_NEW) else name, {"place": at, "entry": json.dumps(entry)}
        )
        for at, (name, entry) in enumerate(fresh.items(), start=place)
    ]
    now = {"places": place + len(entries), "summary": json.dumps(summary)}
    return [*entries, NewRecord(labels, _HEAD, now, if_version=0 if head is None else head.version)]


def _mtime(head: HostRecord) -> int:
    """Return when a transcript was last appended to, in milliseconds since the epoch."""
    return int(head.updated_at.timestamp() * 1_000)


def session_store(session: Session) -> SessionStore:
    """
    Return a session as the store of transcripts, for ``ClaudeAgentOptions(session_store=...)``.

    Claude Code can then resume a session on another host, and so can the SDK's own functions list, read, fork and
    delete it. Transcripts are kept beside the memories: no search and no recall finds them. An entry that comes twice
    is stored once; entries of several processes come in the order in which they were stored.
    Nothing is deleted by itself: ``delete_session_via_store`` deletes one session.

    Args:
        session: Where the transcripts are kept; it must be open while they are used, on the event loop that opened it.

    """
    return _SessionStore(session)


def hooks(session: Session, *, max_chars: int = MAX_CHARS) -> dict[HookEvent, list[HookMatcher]]:
    """
    Return hooks that give Claude Code a session's memory, for ``ClaudeAgentOptions(hooks=...)``.

    What the session recalls for the user's prompt stands behind it. When Claude stops, the refs of its last message are
    stored; those of the messages before it are by ``await session.observe(block.text)`` for each `TextBlock` that the
    SDK yields. After a compaction, and in another session of Claude Code, everything may be told again. Nothing that
    goes wrong stops Claude: the log says what it was; only `SessionClosed` and `WrongLoop` are raised.

    Args:
        session: Whose memories and refs; it must be open while they are used, on the event loop that opened it.
        max_chars: Characters of what is recalled at the most, 300 or more.

    """
    # Whether what was told to a session of Claude Code is lost to it, by its id.
    has_lost: dict[str | None, bool] = {}

    async def recall(given: HookInput, _tool: str | None, _context: HookContext) -> HookJSONOutput:
        own_id = given.get("session_id")
        # One behind others has nothing of what they were told; the first one may be resumed, and have it.
        again, has_lost[own_id] = has_lost.get(own_id, bool(has_lost)), False
        text = await recall_for(session, given.get("prompt"), max_chars=max_chars, again=again)
        if not text:
            return {}
        return {"hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": text}}

    async def observe(given: HookInput, _tool: str | None, _context: HookContext) -> HookJSONOutput:
        if said := given.get("last_assistant_message"):
            await hear(session, said)
        return {}

    async def lose(given: HookInput, _tool: str | None, _context: HookContext) -> HookJSONOutput:
        has_lost[given.get("session_id")] = True
        return {}

    return {
        "UserPromptSubmit": [HookMatcher(hooks=[recall])],
        "Stop": [HookMatcher(hooks=[observe])],
        "PreCompact": [HookMatcher(hooks=[lose])],
    }
