"""
Log of the facts that recall has injected into the conversations of a session.

A passage of a memory is injected once until the memory changes. Stored as rows ``told/<part>/<hash of the subject>``,
one per subject and conversation. Rows contain hashes, times and numbers, so erased text leaves no trace here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Self

import attrs
import msgspec

from mama_structs.refs.conversations.conversation_log import check_conversation_name
from mama_structs.storage.sealed_rows import DamagedValue, RowChange

_HASH_BYTES = 12


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).hexdigest()


@attrs.frozen(kw_only=True)
class RecalledFact:
    """
    A fact that recall injects: its subject, the subject's current state, and texts that express the fact.

    The subject is the id of a memory, or the ids of two conflicting ones. *shown* is the range of the memory's content
    that was shown, in characters.
    """

    subject: str
    state: str
    texts: tuple[str, ...] = ()
    shown: tuple[int, int] | None = None
    relevance: float = 0.0


@attrs.frozen(kw_only=True)
class LoggedFact:
    """
    A stored fact of the log.

    Args:
        key: Hash of the subject, and of the dialogue if the host names several.
        dialogue: Hash of the name of the dialogue, or "" for the conversation itself.
        at: When the fact was last recalled (UTC); None if the time was not stored.
        relevance: Relevance of its memory at that time, 0 to 1; 1 for a conflict or a checkpoint.
        shown: The ranges of the memory's content that were shown, in characters; None for a conflict, and if the
            ranges were not stored.
        state_hash: Hash of the state of the subject.

    """

    key: str
    dialogue: str
    at: datetime | None
    relevance: float
    shown: tuple[tuple[int, int], ...] | None
    state_hash: str

    def has_state(self, state: str) -> bool:
        """Return True if the subject had this state when it was recalled."""
        return self.state_hash == _hash(state)


class _LogRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of the log. Earlier versions wrote only the first two fields, for whole memories."""

    state: str
    texts: list[str] = []
    # Hash of the name of the conversation, or "" for the conversation that the row is stored with.
    conversation: str = ""
    at_ms: int = 0
    relevance: float = 0.0
    shown: list[tuple[int, int]] | None = None

    @property
    def time(self) -> datetime | None:
        """When the fact was last recalled (UTC), or None if an earlier version did not store the time."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC) if self.at_ms else None


_DECODER = msgspec.json.Decoder(_LogRow)


@attrs.define(eq=False)
class RecallLog:
    """
    Facts that recall has injected into one conversation.

    The log passes changed rows, keyed by subject hash, to *write_rows*.
    """

    _write_rows: Callable[[Mapping[str, RowChange]], object] = attrs.field(default=lambda _rows: None)
    _conversation: str = ""
    _rows: dict[str, _LogRow] = attrs.field(factory=dict, init=False)
    _text_hashes: set[str] = attrs.field(factory=set, init=False)
    damaged: list[str] = attrs.field(factory=list, init=False)
    """Keys of the rows that could not be read."""

    @classmethod
    def from_rows(
        cls, rows: Mapping[str, bytes | DamagedValue], write_rows: Callable[[Mapping[str, RowChange]], object]
    ) -> RecallLog:
        """Load the log. Unreadable rows are skipped, so their facts are recalled again."""
        log = cls(write_rows)
        for name, row in rows.items():
            try:
                log._put(name, _DECODER.decode(row if isinstance(row, bytes) else b""))
            except msgspec.MsgspecError:
                log.damaged.append(name)
        return log

    def copy(self, write_rows: Callable[[Mapping[str, RowChange]], object]) -> RecallLog:
        """Return a copy of the log for a fork. Its rows are passed to *write_rows*."""
        rows = {name: msgspec.json.encode(row) for name, row in self._rows.items()}
        if rows:
            write_rows(rows)
        return type(self).from_rows(rows, write_rows)

    def for_conversation(self, name: str | None) -> Self:
        """Return the log of a conversation that the host names. It is stored with this log; None for this log."""
        log = copy.copy(self)
        log._conversation = "" if name is None else _hash(check_conversation_name(name))
        return log

    def facts(self) -> list[LoggedFact]:
        """Return the facts of all dialogues, the last recalled first."""
        facts = [
            LoggedFact(
                key=name,
                dialogue=row.conversation,
                at=row.time,
                relevance=row.relevance,
                shown=None if row.shown is None else tuple(row.shown),
                state_hash=row.state,
            )
            for name, row in self._rows.items()
        ]
        return sorted(facts, key=lambda one: (one.at is not None, one.at), reverse=True)

    def find_subjects(self, subjects: Iterable[str]) -> dict[str, str]:
        """Return the subjects that are in the log of any dialogue, by the keys of their facts."""
        prefixes = {f"{row.conversation}\0" if row.conversation else "" for row in self._rows.values()}
        keyed = ((_hash(f"{prefix}{subject}"), subject) for subject in subjects for prefix in prefixes)
        return {key: subject for key, subject in keyed if key in self._rows}

    def contains(self, subject: str, state: str, passage: tuple[int, int] | None = None) -> bool:
        """Return True if this state of the subject was already recalled, with the passage if it is not None."""
        row = self._rows.get(self._key(subject))
        if row is None or row.state != _hash(state):
            return False
        return (
            passage is None
            or row.shown is None
            or any(start <= passage[0] and passage[1] <= end for start, end in row.shown)
        )

    def contains_subject(self, subject: str) -> bool:
        """Return True if any state of the subject was already recalled."""
        return self._key(subject) in self._rows

    def find_time(self, subject: str) -> datetime | None:
        """Return when the subject was last recalled, or None if it never was or the time was not stored."""
        row = self._rows.get(self._key(subject))
        return None if row is None else row.time

    def contains_text(self, text: str) -> bool:
        """Return True if exactly this text was already recalled, in any conversation of the session."""
        return _hash(text) in self._text_hashes

    def record(self, facts: Iterable[RecalledFact], *, at_ms: int = 0) -> None:
        """Record facts as recalled at a time in milliseconds since 1970, and write their rows."""
        rows = {self._key(fact.subject): self._make_row(fact, at_ms) for fact in facts}
        for name, row in rows.items():
            self._put(name, row)
        if rows:
            self._write_rows({name: msgspec.json.encode(row) for name, row in rows.items()})

    def clear(self) -> None:
        """Delete the rows of the conversation, so that every fact may be recalled again."""
        own = [name for name, row in self._rows.items() if row.conversation == self._conversation]
        if own:
            self._write_rows(dict.fromkeys(own))
        for name in own:
            del self._rows[name]

    def _key(self, subject: str) -> str:
        return _hash(f"{self._conversation}\0{subject}" if self._conversation else subject)

    def _make_row(self, fact: RecalledFact, at_ms: int) -> _LogRow:
        """Return the row of a fact, with the ranges that were shown before in the same state."""
        state, before = _hash(fact.state), self._rows.get(self._key(fact.subject))
        shown = None if fact.shown is None else [fact.shown]
        if before is not None and before.state == state:
            shown = None if shown is None or before.shown is None else [*before.shown, *shown]
        return _LogRow(
            state=state,
            texts=[*dict.fromkeys(map(_hash, fact.texts))],
            conversation=self._conversation,
            at_ms=at_ms,
            relevance=round(fact.relevance, 3),
            shown=shown,
        )

    def _put(self, name: str, row: _LogRow) -> None:
        self._rows[name] = row
        # Keep the hashes of earlier states, because their texts are still part of the conversation.
        self._text_hashes.update(row.texts)
