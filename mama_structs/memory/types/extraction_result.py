"""Result types of `Session.remember`."""

from __future__ import annotations

from typing import Any

import attrs

from mama_structs._internal.reprs import bound_field_reprs
from mama_structs._internal.serialization import JsonMixin
from mama_structs.memory.types.model import Memory


@attrs.frozen(kw_only=True, field_transformer=bound_field_reprs)
class RejectedMemory(JsonMixin):
    """
    A proposed memory that was not saved.

    Args:
        reason: Why it was rejected.
        proposal: The memory as proposed.

    """

    reason: str
    proposal: Any = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True, repr=False)
class ExtractionResult(JsonMixin):
    """
    Result of `Session.remember`: saved memories, duplicates and rejected proposals.

    False in a boolean test if nothing was saved and nothing was a duplicate.

    Args:
        saved: Saved memories, each with its `Memory.warnings`.
        duplicates: Existing memories that an exact duplicate repeated.
        rejected: Proposed memories that were not saved.
        skipped_messages: Number of messages that were skipped, because they only repeat recalled memories.

    """

    saved: tuple[Memory, ...] = ()
    duplicates: tuple[Memory, ...] = ()
    rejected: tuple[RejectedMemory, ...] = ()
    skipped_messages: int = 0

    def __bool__(self) -> bool:
        return bool(self.saved or self.duplicates)

    def __repr__(self) -> str:
        others = f"{len(self.duplicates)} duplicates, {len(self.rejected)} rejected"
        return f"<ExtractionResult: {len(self.saved)} saved, {others}>"
