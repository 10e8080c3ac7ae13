"""Reports of long operations: extraction from a conversation, and the copy of a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs._internal.reprs import (
    FieldReprMixin,
    ReprContent,
    ReprMixin,
    format_count,
    format_heading,
    format_line,
    format_section,
    join_lines,
    wrap_html,
)
from mama_structs.memory.types.model import Memory


@attrs.frozen(kw_only=True, repr=False)
class RejectedMemory(ReprMixin):
    """
    A proposed memory that was not saved.

    Args:
        reason: Why it was rejected.
        proposal: The memory as proposed.

    """

    reason: str
    proposal: Any = attrs.field(default=None, repr=False)

    def _repr_content(self) -> ReprContent:
        return ReprContent(text=self.reason, html_facts=("rejected",))


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
        saved = [format_line("saved", memory._repr_content(), opening="  ", closing="") for memory in self.saved]
        return join_lines([f"<{self._title}>", *saved], 1 + len(saved))

    def _repr_html_(self) -> str:
        return wrap_html(
            format_heading(self._title),
            format_section("Saved", self.saved),
            format_section("Duplicates", self.duplicates),
            format_section("Rejected", self.rejected),
        )

    @property
    def _title(self) -> str:
        others = f"{format_count(len(self.duplicates), 'duplicate')}, {len(self.rejected):,} rejected"
        return f"ExtractionResult: {len(self.saved):,} saved, {others}"


@attrs.frozen(kw_only=True, repr=False)
class NamespaceCopy(FieldReprMixin):
    """
    Counts and digests of one namespace in the copy.

    Args:
        name: Name of the namespace.
        added: Number of memories that were not in the copy before.
        counts: Number of items of each kind: memories, links, texts, notes, conversations, changes, and the texts of
            conversations.
        digests: BLAKE2 digest of the items of each kind. Equal in the source and in the copy.

    """

    name: str
    added: int
    counts: Mapping[str, int]
    digests: Mapping[str, str]


@attrs.frozen(kw_only=True, repr=False)
class CopyReport(FieldReprMixin):
    """
    Result of `admin.copy`.

    Args:
        namespaces: Contents of the copy, for each copied namespace.
        damaged: A line for each item of the source that was unreadable and is missing in the copy.

    """

    _json_properties = ("ok",)

    namespaces: tuple[NamespaceCopy, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the copy contains everything in the source."""
        return not self.damaged
