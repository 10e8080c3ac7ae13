"""What `Session.remember` gives back."""

from __future__ import annotations

from typing import Any

import attrs

from mama_structs._internal.reprs import briefly
from mama_structs.memory.types.model import Memory


@attrs.frozen(kw_only=True, field_transformer=briefly)
class RefusedRecord:
    """
    A record that was proposed and not saved.

    Args:
        reason: Why not.
        record: As it was proposed.

    """

    reason: str
    record: Any = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True, repr=False)
class Learned:
    """
    What `Session.remember` saved, merged and refused; false if it saved and merged nothing.

    Args:
        new: What was saved, each with its `Memory.noticed`.
        merged: What stood there already, word for word, and was said again.
        refused: What was proposed and not saved.
        passed_over: How many messages were not learnt from, since they only repeat what memories said.

    """

    new: tuple[Memory, ...] = ()
    merged: tuple[Memory, ...] = ()
    refused: tuple[RefusedRecord, ...] = ()
    passed_over: int = 0

    def __bool__(self) -> bool:
        return bool(self.new or self.merged)

    def __repr__(self) -> str:
        return f"<Learned {len(self.new)} new, {len(self.merged)} merged, {len(self.refused)} refused>"
