"""Ids for migrated memories: those of v1.0 where they can be kept, since people have them in their notes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.memory.ids import milliseconds, slug
from mama_structs.memory.model import MemoryType
from mama_structs.memory.requests import check_id

_TITLE: Final = 200


@attrs.define(eq=False)
class Ids:
    """
    The ids that are given, each once.

    Args:
        taken: Those that are given already.

    """

    taken: set[str] = attrs.field(factory=set, converter=set)

    def keep(self, old: str | None) -> str | None:
        """Return an old id where it can be an id here, None where it cannot, or is taken."""
        if old is None or old in self.taken:
            return None
        try:
            if check_id("id", old) != old or old != old.strip():
                return None
        except InvalidArgument:
            return None
        self.taken.add(old)
        return old

    def new(self, kind: MemoryType, title: str, created_at: datetime, said: Iterable[object]) -> str:
        """
        Return a new id, the same whenever the same is said.

        Args:
            kind: The memory's type.
            title: What its readable part is made of.
            created_at: When it was made.
            said: What it stands for.

        """
        text = repr(tuple(said))
        while True:
            name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            found = f"{kind.value}_{slug(title[:_TITLE])}_{milliseconds(created_at)}_{name}"
            if found not in self.taken:
                self.taken.add(found)
                return found
            text += "'"
