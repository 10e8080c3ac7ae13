"""Public views of stored conversations: `ConversationInfo` and `Conversations`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import datetime

import attrs

from mama_structs._internal.reprs import format_count


@attrs.frozen(kw_only=True, repr=False)
class ConversationInfo:
    """
    A conversation with at least one stored change.

    Args:
        name: The name that `Session.open` accepts to reopen it.
        created_at: When it began (UTC).
        used_at: When it was last opened, changed or closed (UTC); None if that row is damaged.
        handles: The number of its refs and descriptors; each version of a ref counts.
        bytes: The total size of their texts in bytes (UTF-8), deduplicated.
        is_open: Whether a session of this or another process has it open.

    """

    name: str
    created_at: datetime
    used_at: datetime | None
    handles: int
    bytes: int
    is_open: bool

    def __repr__(self) -> str:
        used = "at a time that is damaged" if self.used_at is None else f"{self.used_at:%Y-%m-%d %H:%M} UTC"
        held = f"{format_count(self.handles, 'handle')}, {self.bytes:,} bytes"
        return f"<ConversationInfo {self.name!r}: {held}, used {used}{', open' if self.is_open else ''}>"


class Conversations:
    """
    The conversations of a namespace, most recently used first.

    A snapshot made by `Session.conversations`. Iteration yields a `ConversationInfo` for each; ``name in
    conversations`` is True if a conversation has this name.
    """

    def __init__(
        self, found: Iterable[ConversationInfo], *, what: str, delete: Callable[[str], Awaitable[None]]
    ) -> None:
        self._found = {one.name: one for one in found}
        self._what = what
        self._delete = delete

    def __iter__(self) -> Iterator[ConversationInfo]:
        return iter(tuple(self._found.values()))

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __repr__(self) -> str:
        lines = (f"\n  {one!r}" for one in self)
        return f"<Conversations of {self._what}: {len(self)}{''.join(lines)}>"

    async def delete(self, name: str) -> None:
        """
        Delete a conversation that is not open anywhere. The deletion is atomic.

        Its texts are deleted from the store, except those that another conversation uses or a memory keeps as evidence.
        Forks of it keep their contents.

        Raises:
            InvalidArgument: No conversation has this name.
            StoreBusy: A session of this or another process has it open.
            StoreDamaged: A row that one of its forks needs cannot be read.

        """
        await self._delete(name)
        self._found.pop(name, None)
