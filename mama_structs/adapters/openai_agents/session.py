"""
Conversation storage and recall for the OpenAI Agents SDK.

Needs the extra ``openai-agents``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from mama_structs import sync
from mama_structs._internal.prompt_quoting import remove_recalled
from mama_structs.adapters.shared.loop_bridge import LoopBridge
from mama_structs.adapters.shared.tool_results import (
    DEFAULT_MAX_RECALL_CHARS,
    create_recall_message,
    recall_for_messages,
)
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.session.session import Session

try:
    from agents import SessionSettings, TResponseInputItem
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.openai_agents needs the OpenAI Agents SDK: pip install 'mama-structs[openai-agents]'"
    ) from _missing

_HOST_LABEL: Final = "openai-agents"


class ConversationSession:
    """
    Stores the items of one conversation in a session's records; implements the SDK's ``Session`` protocol.

    Pass it to ``Runner.run(..., session=...)``.

    Each item is a record under the labels ``("openai-agents", session_id)``, in order. Search and recall do not find
    them; use `add_recall` and memories for what an agent should remember. Items are durable when a call returns, and
    other processes on the same store see them immediately. Every method may be called from any event loop while the
    session's loop runs, as ``Runner.run_sync`` does.

    Args:
        session: The session that stores the items. Use one of `mama_structs.sync` in scripts with ``Runner.run_sync``.
        session_id: The conversation's id, at most about 490 characters, fewer if they are not ASCII.
        session_settings: The SDK's settings for it: *limit* is the maximum number of items that a run receives. A
            `RunConfig` can override them.

    Raises:
        InvalidArgument: *session_id* is not such a text; a limit is negative; an item is not JSON (nothing was added).
        StoreError: The items cannot be read or written.
        TypeError: *session_settings* has a field that the SDK does not know.

    """

    def __init__(
        self,
        session: Session | sync.Session,
        session_id: str,
        *,
        session_settings: SessionSettings | Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(session_id, str) or not session_id:
            raise InvalidArgument(
                f"session_id must be a text, got {repr_short(session_id)}",
                hint="name the conversation, such as by its user",
            )
        given = dict(session_settings) if isinstance(session_settings, Mapping) else session_settings
        self.session_id = session_id
        self.session_settings: SessionSettings | None = SessionSettings().resolve(given)
        self._bridge = LoopBridge(session)
        self._labels = (_HOST_LABEL, session_id)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """
        Return the items in order.

        Args:
            limit: Return only this many of the newest items; None for the limit of the settings, by default all items.

        Raises:
            InvalidArgument: *limit* is negative.

        """
        settings = self.session_settings
        most = settings.limit if limit is None and settings is not None else limit
        if most is not None and most < 0:
            raise InvalidArgument(f"limit must be 0 or more, got {most}", hint="None is for all items")
        if most == 0:
            return []
        records = self._bridge.session.records
        found = await self._bridge.arun(lambda: records.list(self._labels, nested=False, limit=most, reverse=True))
        return [cast("TResponseInputItem", one.value) for one in reversed(found)]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, all or none."""
        await self._bridge.arun(lambda: self._bridge.session.records.append(self._labels, items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the newest item, or None if the conversation is empty. Atomic."""
        taken = await self._bridge.arun(lambda: self._bridge.session.records.pop(self._labels))
        return None if taken is None else cast("TResponseInputItem", taken.value)

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._bridge.arun(lambda: self._bridge.session.records.delete_all(self._labels, nested=False))


def add_recall(
    session: Session | sync.Session, *, max_chars: int = DEFAULT_MAX_RECALL_CHARS
) -> Callable[[list[TResponseInputItem], list[TResponseInputItem]], Awaitable[list[TResponseInputItem]]]:
    """
    Return a callback that adds recalled memories to the input of a run.

    Pass it to ``RunConfig(session_input_callback=...)``.

    The memories recalled for the user's message are appended as a separate item, which stays in the conversation. Each
    fact is recalled once. Facts may be recalled again if a run's input contains no recalled item any more. Concurrent
    users need a session each (`Session.fork`), because the session records what was recalled.
    A run without an SDK session has no such callback; use `openai_agents.hooks` there.

    Args:
        session: The session with the memories.
        max_chars: Maximum number of recalled characters, at least 300.

    """
    bridge = LoopBridge(session)

    async def combined(
        history: list[TResponseInputItem], new_items: list[TResponseInputItem]
    ) -> list[TResponseInputItem]:
        items = [*history, *new_items]
        # Recall facts again if the history contains no recalled text, for example because it was truncated.
        again = not any(map(_is_recalled, history))
        text = await bridge.arun(lambda: recall_for_messages(bridge.session, items, max_chars=max_chars, repeat=again))
        return [*items, cast("TResponseInputItem", create_recall_message(text))] if text else items

    return combined


def _is_recalled(item: TResponseInputItem) -> bool:
    content = item.get("content")
    return isinstance(content, str) and remove_recalled(content) != content
