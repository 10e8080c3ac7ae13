"""A session of the OpenAI Agents SDK, kept in one of ours; needs the extra ``openai-agents``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from mama_structs import sync
from mama_structs._internal.prompt_quoting import without_recalled
from mama_structs.adapters.shared.loop_bridge import Bridge
from mama_structs.adapters.shared.tool_results import MAX_CHARS, recall_for, recalled_message
from mama_structs.errors import InvalidArgument, shown
from mama_structs.session.session import Session

try:
    from agents import SessionSettings, TResponseInputItem
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.openai_agents.session needs the OpenAI Agents SDK: "
        "pip install 'mama-structs[openai-agents]'"
    ) from _missing

_LABEL: Final = "openai-agents"


class ConversationSession:
    """
    The items of one conversation, for ``Runner.run(..., session=...)``: the SDK's ``Session`` protocol.

    Each item is a record under the labels ``("openai-agents", session_id)``, in order. No search or recall finds them:
    what should be remembered of them is for `recalling` and for memories. They are durable when a call returns, and
    other processes on the same store see them at once. Every method may be called from any event loop while that of
    the session runs, as ``Runner.run_sync`` does.

    Args:
        session: Where the items are kept. One of `mama_structs.sync` is for scripts with ``Runner.run_sync``.
        session_id: The conversation's name, some 490 characters at the most, fewer of other letters than ASCII's.
        session_settings: The SDK's settings for it: *limit* is how many items a run is given at the most. A
            `RunConfig` can say otherwise.

    Raises:
        InvalidArgument: *session_id* is no such text; a limit is negative; an item is no JSON (nothing was added).
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
                f"session_id must be a text, got {shown(session_id)}", hint="name the conversation, such as by its user"
            )
        given = dict(session_settings) if isinstance(session_settings, Mapping) else session_settings
        self.session_id = session_id
        self.session_settings: SessionSettings | None = SessionSettings().resolve(given)
        self._bridge = Bridge(session)
        self._labels = (_LABEL, session_id)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """
        Return the items in their order.

        Args:
            limit: The newest so many; None for what the settings say, and all of them if they say nothing.

        """
        settings = self.session_settings
        most = settings.limit if limit is None and settings is not None else limit
        if most is not None and most < 0:
            raise InvalidArgument(f"limit must be 0 or more, got {most}", hint="None is for all items")
        if most == 0:
            return []
        records = self._bridge.session.records
        found = await self._bridge.arun(lambda: records.list(self._labels, nested=False, limit=most, last_first=True))
        return [cast("TResponseInputItem", one.value) for one in reversed(found)]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end, all or none."""
        await self._bridge.arun(lambda: self._bridge.session.records.append(self._labels, items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it, None where there is none; no two callers get the same."""
        taken = await self._bridge.arun(lambda: self._bridge.session.records.pop(self._labels))
        return None if taken is None else cast("TResponseInputItem", taken.value)

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._bridge.arun(lambda: self._bridge.session.records.delete_all(self._labels, nested=False))


def recalling(
    session: Session | sync.Session, *, max_chars: int = MAX_CHARS
) -> Callable[[list[TResponseInputItem], list[TResponseInputItem]], Awaitable[list[TResponseInputItem]]]:
    """
    Return what tells a run what is remembered, for ``RunConfig(session_input_callback=...)``.

    What the session recalls for the user's message stands behind it, as an item of its own, and stays in the
    conversation: each fact is told once, and may be told again where nothing that was recalled is left in what a run is
    given. Users who talk at the same time need a session each (`Session.fork`): what one is told is known to it.
    A run without a session has no such callback: `openai_agents.hooks` is for it.

    Args:
        session: Whose memories.
        max_chars: Characters of what is recalled at the most, 300 or more.

    """
    bridge = Bridge(session)

    async def combined(
        history: list[TResponseInputItem], new_items: list[TResponseInputItem]
    ) -> list[TResponseInputItem]:
        items = [*history, *new_items]
        # Another conversation's history, or one that is cut, has nothing of what the session told before.
        again = not any(map(_is_recalled, history))
        text = await bridge.arun(lambda: recall_for(bridge.session, items, max_chars=max_chars, again=again))
        return [*items, cast("TResponseInputItem", recalled_message(text))] if text else items

    return combined


def _is_recalled(item: TResponseInputItem) -> bool:
    content = item.get("content")
    return isinstance(content, str) and without_recalled(content) != content
