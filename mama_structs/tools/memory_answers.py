"""What the memory tools answer, cut to what a model can read at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, TypedDict

import attrs

from mama_structs.descriptors.store import RefStore
from mama_structs.errors import QuotaExceeded
from mama_structs.memory.model import ContextMetadata, DecisionMetadata, Link, Memory
from mama_structs.memory.saving import OUTCOME_OF

WHOLE: Final = 1000
"""Characters of a text that an answer about one memory shows; what is longer gets a handle."""
# How the source of such a text begins.
_FROM_MEMORIES: Final = ("load/context ", "load/checkpoint ")
_WITHOUT_HANDLE: Final = 4000
LINE: Final = 160
MAX_LINKS_SHOWN: Final = 5
LOW: Final = 0.3
"""Below this relevance nothing was found (DESIGN section 6)."""
# Characters of one search answer's texts, shared out among its memories.
_ROOM: Final = 8000
_LEAST: Final = 120
_MOST: Final = 400
_UNITS: Final = (("year", 365 * 86400), ("month", 30 * 86400), ("week", 7 * 86400), ("day", 86400), ("hour", 3600))
_MINUTE: Final = 60


class More(TypedDict):
    """A text that an answer shows the beginning of."""

    field: str
    characters: int
    fd: str | None
    note: str


class LinkLine(TypedDict):
    """A link."""

    from_id: str
    to_id: str
    relationship: str
    type: str
    confidence: float
    created_by: str
    reason: str | None


class MadeLink(TypedDict):
    """A link that a save made, to another memory."""

    to_id: str
    relationship: str
    type: str
    confidence: float
    created_by: str


class MemoryLine(TypedDict):
    """A memory in a line."""

    id: str
    type: str
    topic: str | None
    content: str
    outcome: str | None
    outcome_reason: str | None
    created_at: str


def beginning(text: str, most: int) -> str:
    """Return the beginning of a text, with a mark where something is left out."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def line(text: str, most: int = LINE) -> str:
    """Return the beginning of a text as one line."""
    # Runs of blanks shrink; nothing beyond this much of the text can be seen.
    return beginning(" ".join(text[: 8 * most].split()), most)


@attrs.define
class Cutter:
    """
    Cuts the long texts of one answer, and keeps each behind a handle.

    Args:
        refs: Where they are kept.
        source: Where they come from, as models see it.
        more: What was cut, for the answer.

    """

    refs: RefStore
    source: str
    more: list[More] = attrs.field(factory=list)

    def cut(self, field: str, text: str, *, most: int = WHOLE) -> str:
        """Return a text, or its beginning and a note among `more` on where the whole of it is."""
        if len(text) <= most:
            return text
        try:
            handle = self._handle(f"{self.source}, {field}", text)
        except QuotaExceeded:
            if len(text) <= _WITHOUT_HANDLE:
                return text
            self.more.append(
                {
                    "field": field,
                    "characters": len(text),
                    "fd": None,
                    "note": "the rest cannot be shown: there is no room left for another fd",
                }
            )
            return beginning(text, _WITHOUT_HANDLE)
        self.more.append(
            {"field": field, "characters": len(text), "fd": handle, "note": f"read_fd with fd={handle} gives all of it"}
        )
        return beginning(text, most)

    def cut_items(self, field: str, items: Sequence[str], *, most: int = 30) -> list[str]:
        """Return short items as they are, else the first of them, with a note on where all are."""
        if len(items) <= most and sum(map(len, items)) <= WHOLE:
            return list(items)
        shown = [line(item) for item in items[:most]]
        text = "\n".join(items)
        handle = self._if_room(field, text)
        shortened = ", shortened" if shown != list(items[:most]) else ""
        where = f"; read_fd with fd={handle} gives all of it" if handle else ""
        self.more.append(
            {
                "field": field,
                "characters": len(text),
                "fd": handle,
                "note": f"{len(items)} items, of which the first {len(shown)} are shown{shortened}{where}",
            }
        )
        return shown

    def keep_rest(self, field: str, items: Sequence[str], *, shown: int) -> None:
        """Note among `more` where the items are that the answer leaves out, as lines of one text."""
        if not items:
            return
        text = "\n".join(items)
        handle = self._if_room(field, text)
        where = f"read_fd with fd={handle} gives them" if handle else "there is no room left for another fd"
        self.more.append(
            {
                "field": field,
                "characters": len(text),
                "fd": handle,
                "note": f"{len(items)} more than the {shown} that are shown: {where}",
            }
        )

    def _if_room(self, field: str, text: str) -> str | None:
        try:
            return self._handle(f"{self.source}, {field}", text)
        except QuotaExceeded:
            return None

    def _handle(self, source: str, text: str) -> str:
        """Return the handle of a text; the same text of the same source keeps the one that it has."""
        for known in self.refs.descriptors():
            if known.source == source and known.chars == len(text) and known.text == text:
                return known.handle
        self._make_room()
        return self.refs.add(text, source=source).handle

    def _make_room(self) -> None:
        """Leave half of a conversation's room to what is nowhere else: texts of memories can be loaded again."""
        for known in self.refs.descriptors():
            usage = self.refs.usage
            if 2 * usage.handles < usage.max_handles and 2 * usage.bytes < usage.max_bytes:
                return
            if known.source.startswith(_FROM_MEMORIES):
                self.refs.delete(known.handle)


def memory_line(memory: Memory, *, most: int = LINE) -> MemoryLine:
    """Show a memory in a line."""
    outcome, reason = outcome_of(memory)
    return {
        "id": memory.id,
        "type": memory.type.value,
        "topic": memory.topic,
        "content": line(memory.content, most),
        "outcome": outcome,
        "outcome_reason": None if reason is None else line(reason, most),
        "created_at": written(memory.created_at),
    }


def share(count: int) -> int:
    """Return how many characters of each text an answer about several memories shows."""
    return max(_LEAST, min(_MOST, _ROOM // (2 * max(1, count))))


def tells_outcome(memory: Memory) -> bool:
    """Tell whether a memory was saved as the reason of a decision's outcome."""
    return isinstance(memory.metadata, ContextMetadata) and memory.metadata.source == OUTCOME_OF


def outcome_of(memory: Memory) -> tuple[str | None, str | None]:
    """Return what became of a decision, and why; twice None for what is none."""
    metadata = memory.metadata
    if not isinstance(metadata, DecisionMetadata) or metadata.outcome is None:
        return None, None
    return metadata.outcome.value, metadata.outcome_reason


def link_line(link: Link) -> LinkLine:
    """Show a link."""
    return {
        "from_id": link.from_id,
        "to_id": link.to_id,
        "relationship": link.metadata.original_relationship,
        "type": link.link_type.value,
        "confidence": round(link.confidence, 2),
        "created_by": link.created_by,
        "reason": None if link.metadata.reason is None else line(link.metadata.reason),
    }


def made_links(links: Iterable[Link], memory_id: str) -> list[MadeLink]:
    """Show the links that a save made: those that were asked for first, then the surest."""
    found = [link for link in links if link.from_id == memory_id]
    found.sort(key=lambda link: (link.created_by == "system", -link.confidence))
    return [
        {
            "to_id": link.to_id,
            "relationship": link.metadata.original_relationship,
            "type": link.link_type.value,
            "confidence": round(link.confidence, 2),
            "created_by": link.created_by,
        }
        for link in found
    ]


def written(moment: datetime) -> str:
    """Return a time in ISO 8601, to the second."""
    return moment.isoformat(timespec="seconds")


def age(moment: datetime, now: datetime) -> str:
    """Say how long ago something was: ``3 hours ago``."""
    seconds = (now - moment).total_seconds()
    for unit, length in _UNITS:
        if seconds >= length:
            return _ago(int(seconds // length), unit)
    return _ago(int(seconds // _MINUTE), "minute") if seconds >= _MINUTE else "just now"


def _ago(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'} ago"
