"""Data of another program in an importable form: memories, links and records."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs.memory.types.record import NewRecord
from mama_structs.memory.types.relationships import MAX_RELATIONSHIP_CHARS
from mama_structs.memory.types.requests import MAX_TOPIC_CHARS
from mama_structs.memory.types.text_analysis import normalize

DIGEST_LENGTH: Final = 16
# The first labels of a record name the adapter's program and the type of item.
ADAPTER_LABEL_COUNT: Final = 2
# Used if a relation's word contains no usable character.
DEFAULT_RELATIONSHIP: Final = "relates to"


@attrs.frozen(kw_only=True)
class ItemWarning(JsonMixin):
    """
    An item of a source that is malformed or was left out.

    Args:
        item: The source's plural name for such items, such as ``"relations"``.
        id: The item's location: its id or name, a line, or a file.
        kind: The type of problem, such as ``"no_text"``.
        note: How the import handled the item.
        skipped: The number of items that were left out for this reason; 0 if the item was imported nevertheless.

    """

    item: str
    id: str
    kind: str
    note: str
    skipped: int = 0


@attrs.frozen(kw_only=True)
class ImportedMemory:
    """A memory to import: its key in the source, its record for `save_many`, and extra metadata."""

    what: str
    key: str
    record: Mapping[str, Any]
    extra: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ImportedLink:
    """A link to import, between two memories given by their keys in the source."""

    what: str
    from_key: str
    to_key: str
    relationship: str
    reason: str | None = None
    # False for a link that only connects the parts of one item. Links between parts are not counted.
    is_explicit: bool = True


@attrs.frozen(kw_only=True)
class ImportedRecord:
    """A record to import. Searches find it by *text*."""

    what: str
    labels: tuple[str, ...]
    key: str
    value: Any
    text: str | tuple[str, ...] | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    # True for a record that only supplements another item. Supplementary records are not counted.
    is_auxiliary: bool = False

    @property
    def name(self) -> str:
        """A unique name: the digest of the labels and the key."""
        return compute_digest(*self.labels, self.key)

    @property
    def source_location(self) -> str:
        """The record's location in the source: its labels and key, without the labels of the adapter."""
        return "/".join((*self.labels[ADAPTER_LABEL_COUNT:], self.key))

    def to_new_record(self, max_chars: int) -> NewRecord:
        """Return the record for the store, with each text truncated to *max_chars* characters."""
        several = (self.text,) if isinstance(self.text, str) else self.text or ()
        return NewRecord(
            labels=self.labels,
            key=self.key,
            value=self.value,
            text=[text[:max_chars] for text in several] or None,
            created_at=self.created_at,
            expires_at=self.expires_at,
            origin="outside",
        )


def _zero_counts(types: Iterable[str]) -> Counter[str]:
    return Counter(dict.fromkeys(types, 0))


@attrs.define
class ImportedData:
    """The importable content of a source, as collected by a reader."""

    kind: str
    source: str = attrs.field(converter=str)
    # The number of items by type. A type given to the constructor is reported even if it has no items.
    found: Counter[str] = attrs.field(converter=_zero_counts)
    memories: list[ImportedMemory] = attrs.field(init=False, factory=list)
    links: list[ImportedLink] = attrs.field(init=False, factory=list)
    records: list[ImportedRecord] = attrs.field(init=False, factory=list)
    odd: list[ItemWarning] = attrs.field(init=False, factory=list)

    def add_odd(self, what: str, name: str, kind: str, note: str) -> None:
        """Report an item that is malformed, but imported."""
        self.odd.append(ItemWarning(item=what, id=name, kind=kind, note=note))

    def leave_out(self, what: str, name: str, kind: str, note: str, *, count: int = 1) -> None:
        """Report in one entry that *count* items, which `found` already counts, are left out."""
        self.odd.append(ItemWarning(item=what, id=name, kind=kind, note=f"left out: {note}", skipped=count))

    def skip(self, what: str, name: str, kind: str, note: str, *, count: int = 1) -> None:
        """Count *count* items that are left out, and report them in one entry."""
        self.found[what] += count
        self.leave_out(what, name, kind, note, count=count)


def to_relationship(text: str) -> tuple[str, str | None]:
    """Convert a relation's name to a valid relationship. Also return the original text if it differs."""
    kept = "".join(sign if _is_word_character(sign) else " " for sign in normalize("NFC", text))
    word = " ".join(kept.split())[:MAX_RELATIONSHIP_CHARS].strip(" _-")
    word = word if any(sign.isalnum() for sign in word) else DEFAULT_RELATIONSHIP
    return word, None if word == text.strip() else text.strip()


def _is_word_character(sign: str) -> bool:
    return sign.isalnum() or sign in "_-" or unicodedata.category(sign) in {"Mn", "Mc"}


def to_topic(name: str) -> str:
    """Convert a name to a topic, truncated to the maximum length."""
    return normalize("NFC", name)[:MAX_TOPIC_CHARS].strip()


def compute_digest(*parts: str) -> str:
    """Return a short deterministic digest of some texts."""
    lengths = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(lengths.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]
