"""What became of copying a store."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class CopiedNamespace:
    """
    What a copy holds of one namespace, counted and compared there.

    Args:
        name: Its name.
        added: Memories that were not in the copy before.
        counts: How many there are of each kind: memories, links, texts, notes, conversations, changes, and the texts of
            these.
        digests: What the things of each kind come to (BLAKE2), the same in the source and in the copy.

    """

    name: str
    added: int
    counts: Mapping[str, int]
    digests: Mapping[str, str]


@attrs.frozen(kw_only=True)
class Copied:
    """
    What `Session.copy` did.

    Args:
        namespaces: What the copy holds of each namespace that was copied.
        damaged: A line for each thing of the source that could not be read, and is not in the copy.

    """

    namespaces: tuple[CopiedNamespace, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all that the source has is in the copy."""
        return not self.damaged
