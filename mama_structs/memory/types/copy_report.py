"""Result types of copying a store."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mama_structs._internal.serialization import JsonMixin


@attrs.frozen(kw_only=True)
class NamespaceCopy(JsonMixin):
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


@attrs.frozen(kw_only=True)
class CopyReport(JsonMixin):
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
