"""Data of another program in an importable form: memories, links and records."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import attrs

from mama_structs.memory.types.record import NewRecord
from mama_structs.memory.types.relationships import MAX_RELATIONSHIP
from mama_structs.memory.types.requests import MAX_TOPIC
from mama_structs.memory.types.text_analysis import normalize

_DIGEST: Final = 16
# Labels of the importing adapter: its program and the type of item.
_OWN_LABELS: Final = 2
# Used if a relation's word contains no usable character.
_RELATED: Final = "relates to"


@attrs.frozen(kw_only=True)
class OddItem:
    """
    An item of a source that is malformed or was left out.

    Args:
        what: The source's plural name for such items, such as ``"relations"``.
        id: The item's location: its id or name, a line, or a file.
        kind: The problem in one word, such as ``"no_text"``.
        note: The handling of the item.

    """

    what: str
    id: str
    kind: str
    note: str


@attrs.frozen(kw_only=True)
class OutsideMemory:
    """A memory to import: its key in the source, its `save_many` record, and extra fields."""

    what: str
    key: str
    record: Mapping[str, Any]
    extra: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class OutsideLink:
    """A link to import, between two memories given by their keys in the source."""

    what: str
    from_key: str
    to_key: str
    relationship: str
    reason: str | None = None
    # False for links that only connect parts of one item. Those are not counted.
    is_told: bool = True


@attrs.frozen(kw_only=True)
class OutsideRecord:
    """A record to import; *text* is the text that searches find it by."""

    what: str
    labels: tuple[str, ...]
    key: str
    value: Any
    text: str | tuple[str, ...] | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    # True for an auxiliary record of another item. It is not counted.
    is_beside: bool = False

    @property
    def name(self) -> str:
        """A unique name of the record."""
        return digest_of(*self.labels, self.key)

    @property
    def shown(self) -> str:
        """The location in the source, without the labels that the import adds."""
        return "/".join((*self.labels[_OWN_LABELS:], self.key))

    def record(self, most: int) -> NewRecord:
        """Return the record to put, with each text truncated to *most* characters."""
        several = (self.text,) if isinstance(self.text, str) else self.text or ()
        return NewRecord(
            labels=self.labels,
            key=self.key,
            value=self.value,
            text=[text[:most] for text in several] or None,
            created_at=self.created_at,
            expires_at=self.expires_at,
            origin="outside",
        )


def _zero_counts(types: Iterable[str]) -> Counter[str]:
    return Counter(dict.fromkeys(types, 0))


@attrs.define
class Outside:
    """The importable content of a source, which a reader collects."""

    kind: str
    source: str = attrs.field(converter=str)
    # The number of items by type. The types that are passed are reported even without an item.
    found: Counter[str] = attrs.field(converter=_zero_counts)
    memories: list[OutsideMemory] = attrs.field(init=False, factory=list)
    links: list[OutsideLink] = attrs.field(init=False, factory=list)
    records: list[OutsideRecord] = attrs.field(init=False, factory=list)
    odd: list[OddItem] = attrs.field(init=False, factory=list)

    def add_odd(self, what: str, name: str, kind: str, note: str) -> None:
        """Report an item as odd."""
        self.odd.append(OddItem(what=what, id=name, kind=kind, note=note))

    def skip(self, what: str, name: str, kind: str, note: str, *, count: int = 1) -> None:
        """Count items that are left out, and report them as one odd item."""
        self.found[what] += count
        self.add_odd(what, name, kind, f"left out: {note}")


def word_of(text: str) -> tuple[str, str | None]:
    """Return a relation's word as a valid relationship, and the original text if it differs."""
    kept = "".join(sign if _is_of_word(sign) else " " for sign in normalize("NFC", text))
    word = " ".join(kept.split())[:MAX_RELATIONSHIP].strip(" _-")
    word = word if any(sign.isalnum() for sign in word) else _RELATED
    return word, None if word == text.strip() else text.strip()


def _is_of_word(sign: str) -> bool:
    return sign.isalnum() or sign in "_-" or unicodedata.category(sign) in {"Mn", "Mc"}


def topic_of(name: str) -> str:
    """Return a name as a topic, truncated to the maximum length."""
    return normalize("NFC", name)[:MAX_TOPIC].strip()


def digest_of(*parts: str) -> str:
    """Return a short deterministic digest of some texts."""
    lengths = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(lengths.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
