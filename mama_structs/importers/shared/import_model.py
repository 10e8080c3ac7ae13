"""What another program's file holds, as what becomes of it here: memories, links between them, and records."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import attrs

from mama_structs.memory.types.record import NewRecord
from mama_structs.memory.types.relationships import MAX_RELATIONSHIP
from mama_structs.memory.types.requests import MAX_TOPIC
from mama_structs.memory.types.text_analysis import normalize

_DIGEST: Final = 16
# A host and a sort of things.
_OWN_LABELS: Final = 2
# Where nothing is left of a relation's word.
_RELATED: Final = "relates to"


@attrs.frozen(kw_only=True)
class OddItem:
    """
    Something in a source that is not as its program writes it, or was left out.

    Args:
        what: What the source calls it, in the plural, such as ``"relations"``.
        id: Where it is: its own id or name, a line, or a file.
        kind: What is odd about it, in a word, such as ``"no_text"``.
        note: What was done about it.

    """

    what: str
    id: str
    kind: str
    note: str


@attrs.frozen(kw_only=True)
class OutsideMemory:
    """A memory: its name in the source, what `MemoryStore.save_many` takes, and what has no place in that."""

    what: str
    key: str
    record: Mapping[str, Any]
    extra: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class OutsideLink:
    """A link between two memories, by their names in the source."""

    what: str
    from_key: str
    to_key: str
    relationship: str
    reason: str | None = None
    # Whether the source says it itself; what only holds its parts together is not counted.
    is_told: bool = True


@attrs.frozen(kw_only=True)
class OutsideRecord:
    """A record of what a host keeps; *text* is what it is found by."""

    what: str
    labels: tuple[str, ...]
    key: str
    value: Any
    text: str | tuple[str, ...] | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    # Whether it only goes with another one, and is not counted.
    is_beside: bool = False

    @property
    def name(self) -> str:
        """What stands for it, and for no other."""
        return digest_of(*self.labels, self.key)

    @property
    def shown(self) -> str:
        """Where it is in the source, which has no place for the host's own labels."""
        return "/".join((*self.labels[_OWN_LABELS:], self.key))

    def record(self, most: int) -> NewRecord:
        """Return the record that is to be put, which is found by so many characters of each text at the most."""
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


@attrs.frozen(kw_only=True)
class Outside:
    """What a source holds; *found* counts it by what the source calls it."""

    kind: str
    source: str
    found: Mapping[str, int]
    memories: Sequence[OutsideMemory] = ()
    links: Sequence[OutsideLink] = ()
    records: Sequence[OutsideRecord] = ()
    odd: Sequence[OddItem] = ()


def word_of(text: str) -> tuple[str, str | None]:
    """Return a relation's word as a link takes it, and the whole of it where that is another one."""
    kept = "".join(sign if _is_of_word(sign) else " " for sign in normalize("NFC", text))
    word = " ".join(kept.split())[:MAX_RELATIONSHIP].strip(" _-")
    word = word if any(sign.isalnum() for sign in word) else _RELATED
    return word, None if word == text.strip() else text.strip()


def _is_of_word(sign: str) -> bool:
    return sign.isalnum() or sign in "_-" or unicodedata.category(sign) in {"Mn", "Mc"}


def topic_of(name: str) -> str:
    """Return a name as a topic, which has a length at the most."""
    return normalize("NFC", name)[:MAX_TOPIC].strip()


def digest_of(*parts: str) -> str:
    """Return a short name for some texts, the same for the same ones."""
    lengths = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(lengths.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
