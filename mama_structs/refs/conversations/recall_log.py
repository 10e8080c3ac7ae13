"""
Log of the facts that recall has injected into a conversation.

A fact is injected once until it changes. Stored as rows ``told/<part>/<hash of the subject>``, one per fact. Rows
contain only hashes, so erased text leaves no trace here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

import attrs
import msgspec

from mama_structs.storage.sealed_rows import DamagedValue, RowChange

_HASH_BYTES = 12


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).hexdigest()


@attrs.frozen(kw_only=True)
class RecalledFact:
    """A fact that recall injects: its subject, the subject's current state, and texts that express the fact."""

    subject: str
    state: str
    texts: tuple[str, ...] = ()


class _LogRow(msgspec.Struct, frozen=True):
    state: str
    texts: list[str] = []


_DECODER = msgspec.json.Decoder(_LogRow)


@attrs.define(eq=False)
class RecallLog:
    """
    Facts that recall has injected into one conversation.

    The log passes changed rows, keyed by subject hash, to *write_rows*.
    """

    _write_rows: Callable[[Mapping[str, RowChange]], object] = attrs.field(default=lambda _rows: None)
    _rows: dict[str, _LogRow] = attrs.field(factory=dict, init=False)
    _text_hashes: set[str] = attrs.field(factory=set, init=False)

    @classmethod
    def from_rows(
        cls, rows: Mapping[str, bytes | DamagedValue], write_rows: Callable[[Mapping[str, RowChange]], object]
    ) -> RecallLog:
        """Load the log. Unreadable rows are skipped, so their facts are recalled again."""
        told = cls(write_rows)
        for name, row in rows.items():
            try:
                told._put(name, _DECODER.decode(row if isinstance(row, bytes) else b""))
            except msgspec.MsgspecError:
                continue
        return told

    def copy(self, write_rows: Callable[[Mapping[str, RowChange]], object]) -> RecallLog:
        """Return a copy of the log for another conversation. Its rows are passed to *write_rows*."""
        rows = {name: msgspec.json.encode(row) for name, row in self._rows.items()}
        if rows:
            write_rows(rows)
        return type(self).from_rows(rows, write_rows)

    def contains(self, subject: str, state: str) -> bool:
        """Return True if this state of the subject was already recalled."""
        row = self._rows.get(_hash(subject))
        return row is not None and row.state == _hash(state)

    def contains_subject(self, subject: str) -> bool:
        """Return True if any state of the subject was already recalled."""
        return _hash(subject) in self._rows

    def contains_text(self, text: str) -> bool:
        """Return True if exactly this text was already recalled."""
        return _hash(text) in self._text_hashes

    def record(self, facts: Iterable[RecalledFact]) -> None:
        """Record facts as recalled, and write their rows."""
        self._record_rows(
            {
                _hash(fact.subject): _LogRow(_hash(fact.state), [*dict.fromkeys(map(_hash, fact.texts))])
                for fact in facts
            }
        )

    def clear(self) -> None:
        """Delete all rows, so that every fact may be recalled again."""
        if self._rows:
            self._write_rows(dict.fromkeys(self._rows))
        self._rows.clear()

    def _record_rows(self, rows: dict[str, _LogRow]) -> None:
        for name, row in rows.items():
            self._put(name, row)
        if rows:
            self._write_rows({name: msgspec.json.encode(row) for name, row in rows.items()})

    def _put(self, name: str, row: _LogRow) -> None:
        self._rows[name] = row
        # Keep the hashes of earlier states, because their texts are still part of the conversation.
        self._text_hashes.update(row.texts)
