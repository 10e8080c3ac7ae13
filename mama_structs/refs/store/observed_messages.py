"""Messages that a session observed, and pending notes for the model about their refs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import attrs

from mama_structs._internal.budget import Budget
from mama_structs.refs.markup.parser import Diagnostic
from mama_structs.refs.messages.provider_messages import extract_model_text
from mama_structs.refs.store.ref_collector import Ingested

# A message may be observed twice: by the host and by an adapter, in either order.
_MAX_MESSAGES: Final = 8
_MAX_DELIVERED_NOTES: Final = 10
# Newest notes to retain.
_MAX_STORED_NOTES: Final = 100


@attrs.define(eq=False)
class ObservedMessages:
    """The last observed messages of a session's model, and the pending notes about their refs."""

    _messages: deque[tuple[object, Ingested]] = attrs.field(factory=lambda: deque(maxlen=_MAX_MESSAGES), init=False)
    # Deduplicated, in arrival order.
    _notes: dict[str, None] = attrs.field(factory=dict, init=False)

    def find_earlier(self, message: object) -> Ingested | None:
        """Return the earlier result if this message object was observed and its text is unchanged."""
        found = self._find(message)
        return found if found is not None and "".join(extract_model_text(message)) == found.text else None

    def contains(self, message: object, text: str) -> bool:
        """Return True if this message object was observed before with this text."""
        found = self._find(message)
        return found is not None and found.text == text

    def _find(self, message: object) -> Ingested | None:
        return next((held for known, held in self._messages if known is message), None)

    def record(self, message: object, ingested: Ingested) -> None:
        """
        Remember a message object and its notes.

        Texts and lists are not remembered, only their notes: callers create and change them freely.
        """
        if not isinstance(message, str | list | tuple):
            self._messages.append((message, ingested))
        self.add_diagnostics(ingested.diagnostics)

    def record_stream(self, ingested: Ingested) -> None:
        """Add the notes on a closed stream, unless the same text was observed as a message."""
        if all(held.text != ingested.text for _, held in self._messages):
            self.add_diagnostics(ingested.diagnostics)

    def add_diagnostics(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Add diagnostics that report a problem, and keep only the newest 100 notes."""
        # A message may have thousands of diagnostics: format only the ones that are kept.
        newest = [one for one in diagnostics if not one.is_note][-_MAX_STORED_NOTES:]
        self._notes |= {" ".join(one.message.split()): None for one in newest}
        # Without tool calls the notes are never delivered, so their number must be limited.
        for old in [*self._notes][:-_MAX_STORED_NOTES]:
            del self._notes[old]

    def add_note(self, note: str) -> None:
        """Add a note about an action that the model requested, unless many notes are pending."""
        if len(self._notes) < _MAX_DELIVERED_NOTES:
            self._notes[note] = None

    @property
    def has_notes(self) -> bool:
        """True if notes are pending for the model."""
        return bool(self._notes)

    def notes(self, room: Budget) -> list[str]:
        """Return the pending notes that fit, and a count of the others."""
        told: list[str] = []
        for note in [*self._notes][:_MAX_DELIVERED_NOTES]:
            if not room.fits("\n".join([*told, note])):
                break
            told.append(note)
        rest = len(self._notes) - len(told)
        return [*told, f"and {rest} more"] if told and rest else told

    def clear_notes(self) -> None:
        """Clear the notes after they were delivered to the model."""
        self._notes.clear()
