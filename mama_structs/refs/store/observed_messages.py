"""Recent messages that a session observed, and undelivered notes for the model about their refs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import attrs

from mama_structs._internal.budget import Budget
from mama_structs.refs.markup.parser import Diagnostic
from mama_structs.refs.messages.provider_messages import extract_model_text
from mama_structs.refs.store.ref_collector import ObservedMessage

# Number of messages stored to detect repeats, because the host and an adapter may observe the same message.
_MAX_MESSAGES: Final = 8
_MAX_DELIVERED_NOTES: Final = 10
# Maximum number of stored notes; the oldest are dropped.
_MAX_STORED_NOTES: Final = 100


@attrs.define(eq=False)
class ObservedMessages:
    """Recent messages of a session's model, and undelivered notes about their refs."""

    _messages: deque[tuple[object, ObservedMessage]] = attrs.field(
        factory=lambda: deque(maxlen=_MAX_MESSAGES), init=False
    )
    # Hashes of recent texts, for `is_first`.
    _texts: deque[int] = attrs.field(factory=lambda: deque(maxlen=_MAX_MESSAGES), init=False)
    # Deduplicated, in arrival order.
    _notes: dict[str, None] = attrs.field(factory=dict, init=False)

    def find_earlier(self, message: object) -> ObservedMessage | None:
        """Return the result of an earlier observation of the same message object, if its text is unchanged."""
        found = self._find(message)
        return found if found is not None and "".join(extract_model_text(message)) == found.text else None

    def contains(self, message: object, text: str) -> bool:
        """Return True if this message object was already observed with the same text."""
        found = self._find(message)
        return found is not None and found.text == text

    def _find(self, message: object) -> ObservedMessage | None:
        return next((held for known, held in self._messages if known is message), None)

    def record(self, message: object, ingested: ObservedMessage) -> None:
        """
        Remember a message object and its notes.

        For texts and lists, only the notes are remembered, because callers may change or recreate these objects.
        """
        if not isinstance(message, str | list | tuple):
            self._messages.append((message, ingested))
        self.add_diagnostics(ingested.diagnostics)

    def record_stream(self, ingested: ObservedMessage) -> bool:
        """Add the notes of a closed stream. Return False if a message with the same text was observed."""
        is_new = all(held.text != ingested.text for _, held in self._messages)
        if is_new:
            self.add_diagnostics(ingested.diagnostics)
        return is_new

    def is_first(self, text: str) -> bool:
        """Return True if this is the first call with this text, among the recent ones."""
        key = hash(text)
        is_new = key not in self._texts
        self._texts.append(key)
        return is_new

    def add_diagnostics(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Add a note for each diagnostic that reports a problem. Only the newest 100 notes are retained."""
        # A message may have thousands of diagnostics, so format only the retained ones.
        newest = [one for one in diagnostics if not one.is_note][-_MAX_STORED_NOTES:]
        self._notes |= {" ".join(one.message.split()): None for one in newest}
        # Limit the number of notes, because they are not delivered until the model calls a tool.
        for old in [*self._notes][:-_MAX_STORED_NOTES]:
            del self._notes[old]

    def add_note(self, note: str) -> None:
        """Add a note about an action that the model requested, unless the next delivery is already full."""
        if len(self._notes) < _MAX_DELIVERED_NOTES:
            self._notes[note] = None

    @property
    def has_notes(self) -> bool:
        """True if there are notes to deliver to the model."""
        return bool(self._notes)

    def notes(self, room: Budget) -> list[str]:
        """Return the first notes that fit into *room*, and the number of omitted notes."""
        told: list[str] = []
        for note in [*self._notes][:_MAX_DELIVERED_NOTES]:
            if not room.fits("\n".join([*told, note])):
                break
            told.append(note)
        rest = len(self._notes) - len(told)
        return [*told, f"and {rest} more"] if told and rest else told

    def clear_notes(self) -> None:
        """Remove all notes, because they were delivered to the model."""
        self._notes.clear()
