"""From the parser's events to refs: the pure half of ingesting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from mama_structs.descriptors.events import Diagnostic, Event, RefEnd, RefStart, RefText, Text
from mama_structs.descriptors.parser import RefParser

_BREAKS = ("\r\n", "\n")


def trimmed(text: str, *, closed: bool = True) -> str:
    r"""
    Drop one line break after an opening tag and one before the closing tag, and nothing else.

    A line break is ``\n`` or ``\r\n``.
    After a tag that ended its line in ``\n`` a ``\r`` at the end is content: what was put on lines of its own comes
    back exactly.

    Args:
        text: What stands between the tags.
        closed: Whether there is a closing tag.

    """
    opening = next((kind for kind in _BREAKS if text.startswith(kind)), "")
    text = text[len(opening) :]
    kinds = ("\n",) if opening == "\n" else _BREAKS
    closing = next((kind for kind in kinds if closed and text.endswith(kind)), "")
    return text[: len(text) - len(closing)]


@attrs.frozen
class MarkedText:
    """
    A ref as it was marked, before it is stored.

    Args:
        id: As the model chose it.
        attributes: The others, by lower-case name.
        complete: Whether it was closed.
        position: The first character of its opening tag, counted from 1.
        begin: Where its content begins in the visible text, as Python counts.
        end: Where it ends, line breaks at both ends included.

    """

    id: str
    attributes: Mapping[str, str]
    complete: bool
    position: int
    begin: int
    end: int


@attrs.frozen
class Collected:
    """
    What one message holds.

    Args:
        marked: The refs, in order of opening tags.
        diagnostics: What the parser said, in order of positions in the text.
        text: Everything that was scanned, as it came.
        visible: The same without the tags of refs.

    """

    marked: tuple[MarkedText, ...]
    diagnostics: tuple[Diagnostic, ...]
    text: str = attrs.field(repr=False)
    visible: str = attrs.field(repr=False)

    def content(self, marked: MarkedText) -> str:
        """Return a ref's content: without the tags of refs inside, and without one line break at each end."""
        # On demand: the contents of nested refs may together be 64 times the text.
        return trimmed(self.visible[marked.begin : marked.end], closed=marked.complete)


@attrs.define
class _Open:
    start: RefStart
    begin: int
    end: int = -1
    complete: bool = False


class Collector:
    """
    Scans the pieces of one message, chunk by chunk, and collects its refs.

    A ref does not go on from one piece into the next.

    Args:
        marks: False to take tags for text.

    """

    def __init__(self, *, marks: bool = True) -> None:
        self._marks = marks
        self._parser = RefParser()
        self._fed: list[str] = []
        self._before = 0
        self._length = 0
        self._visible: list[str] = []
        self._shown = 0
        self._stack: list[_Open] = []
        self._all: list[_Open] = []
        self._diagnostics: list[Diagnostic] = []

    def feed(self, chunk: str) -> list[Event]:
        """Scan the next part of the piece and return what is known by now."""
        self._fed.append(chunk)
        self._length += len(chunk)
        if not self._marks:
            return self._take([Text(chunk)] if chunk else [])
        return self._take(self._parser.feed(chunk))

    def end_piece(self) -> list[Event]:
        """Say that what comes next is a text of its own."""
        events = self._take(self._parser.close())
        self._parser = RefParser()
        self._before = self._length
        return events

    def finish(self) -> Collected:
        """Return what was found, after the last `end_piece`."""
        visible = "".join(self._visible)
        marked = tuple(
            MarkedText(
                id=one.start.id,
                attributes=one.start.attributes,
                complete=one.complete,
                position=one.start.position,
                begin=one.begin,
                end=one.end,
            )
            for one in self._all
        )
        return Collected(marked=marked, diagnostics=tuple(self._diagnostics), text="".join(self._fed), visible=visible)

    def _take(self, events: Iterable[Event]) -> list[Event]:
        taken: list[Event] = []
        for event in events:
            if isinstance(event, Text | RefText):
                self._visible.append(event.text)
                self._shown += len(event.text)
                taken.append(event)
                continue
            moved = attrs.evolve(event, position=event.position + self._before)
            taken.append(moved)
            if isinstance(moved, RefStart):
                opened = _Open(moved, self._shown)
                self._stack.append(opened)
                self._all.append(opened)
            elif isinstance(moved, RefEnd):
                closed = self._stack.pop()
                closed.end, closed.complete = self._shown, moved.complete
            else:
                self._diagnostics.append(moved)
        return taken
