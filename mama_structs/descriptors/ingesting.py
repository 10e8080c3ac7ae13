"""What a model's answer held, and the stream that takes one as it comes."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mama_structs.descriptors.collect import Collected, Collector
from mama_structs.descriptors.entries import Ref
from mama_structs.descriptors.events import Diagnostic, Event
from mama_structs.descriptors.messages import DeltaReader
from mama_structs.errors import SessionClosed


@attrs.frozen(kw_only=True)
class Ingested:
    """
    What one message of a model held.

    Args:
        refs: The stored refs, in order of their opening tags.
        diagnostics: What its author may not have meant, in order of positions; worth telling the model.
        text: The text that was scanned, as it came.
        visible: The same without the tags of refs, for people.

    """

    refs: tuple[Ref, ...]
    diagnostics: tuple[Diagnostic, ...]
    text: str = attrs.field(repr=False)
    visible: str = attrs.field(repr=False)


class RefStream:
    """
    Takes a model's answer as it comes: ``feed`` every chunk, then ``close``.

    Chunks may be cut anywhere: what is stored is the same as for the whole answer in one piece.
    `RefStore.stream` makes one.

    Args:
        collector: Scans the text.
        store: Stores what was collected.

    """

    def __init__(self, collector: Collector, store: Callable[[Collected], Ingested]) -> None:
        self._collector = collector
        self._deltas = DeltaReader()
        self._store = store
        self._result: Ingested | None = None

    def __repr__(self) -> str:
        return f"<RefStream{', closed' if self._result is not None else ''}>"

    def feed(self, chunk: object) -> list[Event]:
        """
        Take the next part and return what is known by now, to be shown to people.

        Args:
            chunk: Text, or a stream event of the ``anthropic`` or ``openai`` packages (objects or dicts).

        Raises:
            InvalidArgument: It is nothing of the kind.
            SessionClosed: The stream was closed.

        """
        if self._result is not None:
            raise SessionClosed("the stream was closed", hint="take another one for the next answer: stream()")
        delta = self._deltas.read(chunk)
        if delta is None:
            return []
        events = self._collector.end_piece() if delta.starts_piece else []
        return [*events, *self._collector.feed(delta.text)] if delta.text else events

    def close(self) -> Ingested:
        """Store the refs, and return what was found; again, the same."""
        if self._result is None:
            self._collector.end_piece()
            self._result = self._store(self._collector.finish())
        return self._result
