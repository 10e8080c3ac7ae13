"""
Log of the facts that recall has injected into the conversations of a session.

A passage of a memory is injected once until the memory changes. Stored as rows ``told/<part>/<hash of the subject>``,
one per subject and conversation. Rows contain hashes of texts, and ids of memories.

Ids are derived from texts, so an erasure removes them from the rows (`erase_ids`). They are written only when a fact is
recalled. A fork gets copies of the rows without ids, because another process may have erased them after the log was
loaded. `RecallLog.add_ids` reads them from the rows of the fork's ancestors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import takewhile
from typing import Annotated, Final, Self

import attrs
import msgspec

from mama_structs.refs.conversations.conversation_log import check_conversation_name
from mama_structs.storage.sealed_rows import DamagedValue, RowChange

MAX_EVENTS: Final = 50
"""Number of recalls of one fact that are stored. An older passage may be recalled again."""
_HASH_BYTES = 12
_Milliseconds = Annotated[int, msgspec.Meta(ge=-62_135_596_800_000, le=253_402_300_799_999)]
"""A time that `datetime` can express."""
_Range = tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).hexdigest()


@attrs.frozen(kw_only=True)
class RecalledFact:
    """
    A fact that recall injects: its subject, the subject's current state, and texts that express the fact.

    Args:
        subject: The id of a memory, or the joined ids of two conflicting ones.
        state: The state of the subject. The fact is recalled again when it changes.
        ids: The ids to store, the newer memory of a conflict first; empty for memories of other namespaces, whose
            erasure does not reach the log.
        successor_id: Id of the memory that the text names as the successor, to be stored like *ids*.
        texts: Texts that express the fact.
        shown: The range of the memory's content that was shown, in characters; None for a conflict.
        relevance: Relevance of its memory, 0 to 1; 1 for a conflict or a checkpoint.

    """

    subject: str
    state: str
    ids: tuple[str, ...] = ()
    successor_id: str | None = None
    texts: tuple[str, ...] = ()
    shown: tuple[int, int] | None = None
    relevance: float = 0.0


class RecallEvent(msgspec.Struct, frozen=True, array_like=True):
    """
    A recall of a fact.

    Args:
        at_ms: Time in milliseconds since 1970; 0 if neither it nor the relevance was stored.
        relevance: Relevance of the memory at that time, 0 to 1; 1 for a conflict or a checkpoint.
        state_hash: Hash of the state of the subject.
        shown: The range of the memory's content that was shown, in characters; None for a conflict, and if the range
            was not stored.

    """

    at_ms: _Milliseconds
    relevance: float
    state_hash: str
    shown: _Range | None = None

    @property
    def at(self) -> datetime | None:
        """The time (UTC), or None if it was not stored."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC) if self.at_ms else None

    def has_state(self, state: str) -> bool:
        """Return True if the subject had this state when it was recalled."""
        return self.state_hash == _hash(state)


@attrs.frozen(kw_only=True)
class LoggedFact:
    """
    A stored fact of the log.

    Args:
        ids: Id of its memory, or of both conflicting memories, the newer one first; empty if they are not stored.
        successor_id: Id of the memory that the last text named as the successor, or None.
        dialogue: Name of the dialogue if the host names several, "" if the name is not stored, and None for the
            conversation itself.
        events: The recalls of the fact, the last one first.

    """

    ids: tuple[str, ...]
    successor_id: str | None
    dialogue: str | None
    events: tuple[RecallEvent, ...]


class _LogRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of the log. The last event is the newest one."""

    events: Annotated[list[RecallEvent], msgspec.Meta(min_length=1)]
    texts: list[str] = []
    # Hash and name of the dialogue, or "" for the conversation that the row is stored with.
    conversation: str = ""
    dialogue: str = ""
    ids: list[str] = []
    successor_id: str | None = None

    @property
    def named_ids(self) -> set[str]:
        return {*self.ids, *([] if self.successor_id is None else [self.successor_id])}

    def without_ids(self, gone: Collection[str]) -> _LogRow:
        """Return the row without the ids of some memories. The other id of a conflict is removed, too."""
        return msgspec.structs.replace(
            self,
            ids=[] if any(one in gone for one in self.ids) else self.ids,
            successor_id=None if self.successor_id in gone else self.successor_id,
        )

    def with_ids_of(self, other: _LogRow) -> _LogRow:
        """Return the row with the ids of the same fact in the log of an ancestor, if it has none."""
        if self.ids:
            return self
        is_same = self.events[-1].state_hash == other.events[-1].state_hash
        successor_id = other.successor_id if is_same else self.successor_id
        return msgspec.structs.replace(self, ids=other.ids, successor_id=successor_id)


class _OldLogRow(msgspec.Struct, frozen=True):
    """A row of an earlier version: only the last time, no ids, and, in the oldest rows, only the first two fields."""

    state: str
    texts: list[str] = []
    conversation: str = ""
    at_ms: _Milliseconds = 0
    relevance: float = 0.0
    shown: list[_Range] | None = None

    def convert(self) -> _LogRow:
        *earlier, last = self.shown[-MAX_EVENTS:] if self.shown else [None]
        events = [RecallEvent(0, 0.0, self.state, one) for one in earlier]
        events.append(RecallEvent(self.at_ms, self.relevance, self.state, last))
        return _LogRow(events, texts=self.texts, conversation=self.conversation)


_DECODER: Final = msgspec.json.Decoder(_LogRow)
_OLD_DECODER: Final = msgspec.json.Decoder(_OldLogRow)


def _decode(row: bytes | DamagedValue) -> _LogRow | None:
    """Return a stored row, or None if it is unreadable."""
    if isinstance(row, DamagedValue):
        return None
    try:
        return _DECODER.decode(row)
    except msgspec.MsgspecError:
        try:
            return _OLD_DECODER.decode(row).convert()
        except msgspec.MsgspecError:
            return None


def find_ids(row: bytes | DamagedValue) -> set[str] | None:
    """Return the ids of memories in a stored row of the log, or None if it is unreadable."""
    found = _decode(row)
    return None if found is None else found.named_ids


def erase_ids(row: bytes | DamagedValue, gone: Collection[str] | None = None) -> bytes | None:
    """
    Return a stored row without the ids of some memories, or of all memories if *gone* is None.

    Return None for an unreadable row, which may contain any id. Without it, recall only repeats its fact.
    """
    found = _decode(row)
    return None if found is None else msgspec.json.encode(found.without_ids(found.named_ids if gone is None else gone))


def add_ids(row: bytes | DamagedValue | None, ancestor_row: bytes | DamagedValue) -> bytes | None:
    """Return a stored row of a fork with the ids of the same fact in an ancestor; None if a row is unreadable."""
    own, other = None if row is None else _decode(row), _decode(ancestor_row)
    return None if own is None or other is None else msgspec.json.encode(own.with_ids_of(other))


@attrs.define(eq=False)
class RecallLog:
    """
    Facts that recall has injected into one conversation.

    The log passes changed rows, keyed by subject hash, to *write_rows*.
    """

    _write_rows: Callable[[Mapping[str, RowChange]], object] = attrs.field(default=lambda _rows: None)
    _dialogue: str = ""
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
            found = _decode(row)
            if found is None:
                log.damaged.append(name)
            else:
                log._put(name, found)
        return log

    def copy(self, write_rows: Callable[[Mapping[str, RowChange]], object]) -> RecallLog:
        """Return a copy of the log for a fork. Its rows are passed to *write_rows*, without ids."""
        log = type(self)(write_rows)
        for name, row in self._rows.items():
            log._put(name, row)
        # Another process may have erased memories since this log was loaded, so do not write their ids again.
        rows = {name: msgspec.json.encode(row.without_ids(row.named_ids)) for name, row in self._rows.items()}
        if rows:
            write_rows(rows)
        return log

    def for_conversation(self, name: str | None) -> Self:
        """Return the log of a conversation that the host names. It is stored with this log; None for this log."""
        log = copy.copy(self)
        log._dialogue = "" if name is None else check_conversation_name(name)
        return log

    def facts(self) -> list[LoggedFact]:
        """Return the facts of all dialogues, the last recalled first."""
        facts = [
            LoggedFact(
                ids=tuple(row.ids),
                successor_id=row.successor_id,
                dialogue=row.dialogue if row.conversation else None,
                events=tuple(reversed(row.events)),
            )
            for row in self._rows.values()
        ]
        return sorted(facts, key=lambda one: one.events[0].at_ms, reverse=True)

    def add_ids(self, rows: Mapping[str, bytes | DamagedValue]) -> None:
        """Add the ids that rows of an ancestor of this fork contain."""
        for name in self._rows.keys() & rows.keys():
            if (row := _decode(rows[name])) is not None:
                self._rows[name] = self._rows[name].with_ids_of(row)

    @property
    def ids(self) -> set[str]:
        """The ids of memories in the log."""
        return set().union(*(row.named_ids for row in self._rows.values()))

    def erase_ids(self, gone: Collection[str]) -> None:
        """Remove the ids of erased memories. The stored rows are not changed, see the function `erase_ids`."""
        self._rows |= {name: row.without_ids(gone) for name, row in self._rows.items()}

    def contains(self, subject: str, state: str, passage: tuple[int, int] | None = None) -> bool:
        """Return True if this state of the subject was already recalled, with the passage if it is not None."""
        row = self._rows.get(self._key(subject))
        if row is None or not row.events[-1].has_state(state):
            return False
        # Passages from before the last change are recalled again.
        since = takewhile(lambda one: one.has_state(state), reversed(row.events))
        return passage is None or any(
            one.shown is None or (one.shown[0] <= passage[0] and passage[1] <= one.shown[1]) for one in since
        )

    def contains_subject(self, subject: str) -> bool:
        """Return True if any state of the subject was already recalled."""
        return self._key(subject) in self._rows

    def find_time(self, subject: str) -> datetime | None:
        """Return when the subject was last recalled, or None if it never was or the time was not stored."""
        row = self._rows.get(self._key(subject))
        return None if row is None else row.events[-1].at

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

    @property
    def _conversation(self) -> str:
        return _hash(self._dialogue) if self._dialogue else ""

    def _key(self, subject: str) -> str:
        return _hash(f"{self._conversation}\0{subject}" if self._dialogue else subject)

    def _make_row(self, fact: RecalledFact, at_ms: int) -> _LogRow:
        """Return the row of a fact, with its earlier events."""
        before = self._rows.get(self._key(fact.subject))
        event = RecallEvent(at_ms, round(fact.relevance, 3), _hash(fact.state), fact.shown)
        return _LogRow(
            [*([] if before is None else before.events), event][-MAX_EVENTS:],
            texts=[*dict.fromkeys(map(_hash, fact.texts))],
            conversation=self._conversation,
            dialogue=self._dialogue,
            ids=[*fact.ids],
            successor_id=fact.successor_id,
        )

    def _put(self, name: str, row: _LogRow) -> None:
        self._rows[name] = row
        # Keep the hashes of earlier states, because their texts are still part of the conversation.
        self._text_hashes.update(row.texts)
