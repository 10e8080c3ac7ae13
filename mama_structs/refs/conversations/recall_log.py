"""
What a conversation was told out of the memories: each fact once, unless it changed.

Rows ``told/<part>/<hash of what it is about>``, one a fact, of hashes only: what is forgotten leaves no word here.
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
    """Something that a conversation is told: what it is about, what is said of it, and the texts it is said in."""

    about: str
    state: str
    texts: tuple[str, ...] = ()


class _ToldRow(msgspec.Struct, frozen=True):
    state: str
    texts: list[str] = []


_DECODER = msgspec.json.Decoder(_ToldRow)


@attrs.define(eq=False)
class Told:
    """What one conversation was told; *keep* writes rows of it, named by the hash at the end of their keys."""

    _keep: Callable[[Mapping[str, Change]], object] = attrs.field(default=lambda _rows: None)
    _rows: dict[str, _ToldRow] = attrs.field(factory=dict, init=False)
    _texts: set[str] = attrs.field(factory=set, init=False)

    @classmethod
    def of(cls, rows: Mapping[str, bytes | Damaged], keep: Callable[[Mapping[str, Change]], object]) -> Told:
        """Return what rows say; of one that cannot be read nothing is known, so that it is told again."""
        told = cls(keep)
        for name, row in rows.items():
            try:
                told._put(name, _DECODER.decode(row if isinstance(row, bytes) else b""))
            except msgspec.MsgspecError:
                continue
        return told

    def copy(self, keep: Callable[[Mapping[str, Change]], object]) -> Told:
        """Return the same for another conversation."""
        rows = {name: msgspec.json.encode(row) for name, row in self._rows.items()}
        if rows:
            keep(rows)
        return type(self).of(rows, keep)

    def knows(self, about: str, state: str) -> bool:
        """Tell whether it was told this already."""
        row = self._rows.get(_hash(about))
        return row is not None and row.state == _hash(state)

    def was_told_of(self, about: str) -> bool:
        """Tell whether it was told something about this."""
        return _hash(about) in self._rows

    def said(self, text: str) -> bool:
        """Tell whether it was told this very text."""
        return _hash(text) in self._texts

    def note(self, facts: Iterable[Fact]) -> None:
        """Keep what it is told."""
        self._note(
            {_hash(fact.about): _ToldRow(_hash(fact.state), [*dict.fromkeys(map(_hash, fact.texts))]) for fact in facts}
        )

    def clear(self) -> None:
        """Begin anew: everything may be told again."""
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
        # What was said before it changed was said, too: it stays for as long as the conversation is open.
        self._texts.update(row.texts)
