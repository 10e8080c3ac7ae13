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

from mama_structs.storage.sealed_rows import Change, Damaged

_SIZE = 12


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=_SIZE).hexdigest()


@attrs.frozen(kw_only=True)
class Fact:
    """A fact that recall injects: its subject, current state, and the texts that express it."""

    about: str
    state: str
    texts: tuple[str, ...] = ()


class _ToldRow(msgspec.Struct, frozen=True):
    state: str
    texts: list[str] = []


_DECODER = msgspec.json.Decoder(_ToldRow)


@attrs.define(eq=False)
class Told:
    """
    Facts that were recalled into one conversation.

    Changed rows, keyed by subject hash, are passed to *keep*.
    """

    _keep: Callable[[Mapping[str, Change]], object] = attrs.field(default=lambda _rows: None)
    _rows: dict[str, _ToldRow] = attrs.field(factory=dict, init=False)
    _texts: set[str] = attrs.field(factory=set, init=False)

    @classmethod
    def of(cls, rows: Mapping[str, bytes | Damaged], keep: Callable[[Mapping[str, Change]], object]) -> Told:
        """Load the log. Unreadable rows are skipped, so their facts are recalled again."""
        told = cls(keep)
        for name, row in rows.items():
            try:
                told._put(name, _DECODER.decode(row if isinstance(row, bytes) else b""))
            except msgspec.MsgspecError:
                continue
        return told

    def copy(self, keep: Callable[[Mapping[str, Change]], object]) -> Told:
        """Return a copy of the log for another conversation, and write its rows with *keep*."""
        rows = {name: msgspec.json.encode(row) for name, row in self._rows.items()}
        if rows:
            keep(rows)
        return type(self).of(rows, keep)

    def knows(self, about: str, state: str) -> bool:
        """Return True if this state of the subject was already recalled."""
        row = self._rows.get(_hash(about))
        return row is not None and row.state == _hash(state)

    def was_told_of(self, about: str) -> bool:
        """Return True if any state of the subject was already recalled."""
        return _hash(about) in self._rows

    def said(self, text: str) -> bool:
        """Return True if exactly this text was already recalled."""
        return _hash(text) in self._texts

    def note(self, facts: Iterable[Fact]) -> None:
        """Record facts as recalled, and write their rows."""
        self._note(
            {_hash(fact.about): _ToldRow(_hash(fact.state), [*dict.fromkeys(map(_hash, fact.texts))]) for fact in facts}
        )

    def clear(self) -> None:
        """Delete all rows, so that every fact may be recalled again."""
        if self._rows:
            self._keep(dict.fromkeys(self._rows))
        self._rows.clear()

    def _note(self, rows: dict[str, _ToldRow]) -> None:
        for name, row in rows.items():
            self._put(name, row)
        if rows:
            self._keep({name: msgspec.json.encode(row) for name, row in rows.items()})

    def _put(self, name: str, row: _ToldRow) -> None:
        self._rows[name] = row
        # Keep the hashes of earlier states: their texts are still part of the conversation.
        self._texts.update(row.texts)
