"""Result types of `Session.remember`."""

from __future__ import annotations

from typing import Any

import attrs

from mama_structs._internal.reprs import bound_field_reprs
from mama_structs.memory.types.model import Memory


@attrs.frozen(kw_only=True, field_transformer=bound_field_reprs)
class RejectedMemory:
    """
    A proposed record that was not saved.

    Args:
        reason: Why it was rejected.
        record: The record as proposed.

    """

    reason: str
    proposal: Any = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True, repr=False)
class ExtractionResult:
    """
    Memories that `Session.remember` saved, merged and rejected.

    Falsy if nothing was saved or merged.

    Args:
        new: Saved memories, each with its `Memory.noticed`.
        merged: Existing memories that an exact duplicate repeated.
        refused: Proposed records that were not saved.
        passed_over: Number of messages that were skipped, because they only repeat recalled memories.

    """

    saved: tuple[Memory, ...] = ()
    duplicates: tuple[Memory, ...] = ()
    rejected: tuple[RejectedMemory, ...] = ()
    skipped_messages: int = 0

    def __bool__(self) -> bool:
        return bool(self.saved or self.duplicates)

    def __repr__(self) -> str:
        return f"<Learned {len(self.saved)} new, {len(self.duplicates)} merged, {len(self.rejected)} refused>"
