"""Public view of a stored conversation."""

from __future__ import annotations

from datetime import datetime

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs._internal.reprs import format_count


@attrs.frozen(kw_only=True, repr=False)
class ConversationInfo(JsonMixin):
    """
    A conversation with at least one stored change.

    Args:
        name: The name that `Session.open` accepts to reopen it.
        created_at: When it began (UTC).
        last_used_at: When it was last opened, changed or closed (UTC); None if that row is damaged.
        handle_count: The number of its refs and descriptors; each version of a ref counts.
        recalled_count: The number of memories and conflicts that were recalled into it, summed over its dialogues.
        bytes: The total size of their texts in bytes (UTF-8), deduplicated.
        is_open: Whether a session of this or another process has it open.

    """

    name: str
    created_at: datetime
    last_used_at: datetime | None
    handle_count: int
    recalled_count: int
    bytes: int
    is_open: bool

    def __repr__(self) -> str:
        used = "at a time that is damaged" if self.last_used_at is None else f"{self.last_used_at:%Y-%m-%d %H:%M} UTC"
        held = f"{format_count(self.handle_count, 'handle')}, {self.bytes:,} bytes"
        return f"<ConversationInfo {self.name!r}: {held}, used {used}{', open' if self.is_open else ''}>"
