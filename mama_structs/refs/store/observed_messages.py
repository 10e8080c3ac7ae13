"""What a session has heard of its model, and what the model is yet to be told about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import attrs

from mama_structs._internal.budget import Budget
from mama_structs.refs.markup.parser import Diagnostic
from mama_structs.refs.messages.provider_messages import said_by_model
from mama_structs.refs.store.ref_collector import Ingested

# Messages that may be observed again: by an adapter, after the host has done so or before.
_MESSAGES: Final = 8
_MAX_NOTES: Final = 10
# Notes that are kept, the newest.
_MOST: Final = 100


@attrs.define(eq=False)
class Heard:
    """The last messages of a session's model, each observed once, and the notes on their marks that it was not told."""

    _messages: deque[tuple[object, Ingested]] = attrs.field(factory=lambda: deque(maxlen=_MESSAGES), init=False)
    # In the order in which they came, each once.
    _notes: dict[str, None] = attrs.field(factory=dict, init=False)

    def before(self, message: object) -> Ingested | None:
        """Return the result for this message object if it was observed before and its text did not change."""
        found = self._known(message)
        return found if found is not None and "".join(said_by_model(message)) == found.text else None

    def contains(self, message: object, text: str) -> bool:
        """Return True if this message object was observed before with this text."""
        found = self._known(message)
        return found is not None and found.text == text

    def _known(self, message: object) -> Ingested | None:
        return next((held for known, held in self._messages if known is message), None)

    def keep(self, message: object, ingested: Ingested) -> None:
        """Remember a message; texts and lists are whatever they are made into next, and not remembered."""
        if not isinstance(message, str | list | tuple):
            self._messages.append((message, ingested))
        self.note(ingested.diagnostics)

    def streamed(self, ingested: Ingested) -> None:
        """Keep the notes on a stream, unless its finished message was heard while it was open."""
        if all(held.text != ingested.text for _, held in self._messages):
            self.note(ingested.diagnostics)

    def note(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Store what the model should know, the newest 100; a report of what was done is left out."""
        # A message may have thousands: no more of them are written than are stored.
        newest = [one for one in diagnostics if not one.is_note][-_MOST:]
        self._notes |= {" ".join(one.message.split()): None for one in newest}
        # Where no tool is called, nobody tells them.
        for old in [*self._notes][:-_MOST]:
            del self._notes[old]

    def say(self, note: str) -> None:
        """Keep what was done at the model's word, unless nobody tells the notes."""
        if len(self._notes) < _MAX_NOTES:
            self._notes[note] = None

    @property
    def has_notes(self) -> bool:
        """Whether there is something that the model was not told yet."""
        return bool(self._notes)

    def notes(self, room: Budget) -> list[str]:
        """Return the notes that fit, and how many more there are."""
        told: list[str] = []
        for note in [*self._notes][:_MAX_NOTES]:
            if not room.holds("\n".join([*told, note])):
                break
            told.append(note)
        rest = len(self._notes) - len(told)
        return [*told, f"and {rest} more"] if told and rest else told

    def told(self) -> None:
        """Forget the notes, which the model has now."""
        self._notes.clear()
