"""The rows of a namespace in the journal: what they are called and hold."""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import quote

import attrs
import msgspec

from mama_structs.memory.engine import EmbedderRecord
from mama_structs.storage import Damaged, Snapshot

FORMAT: Final = 1
_DIGITS: Final = 16
_HEXADECIMAL: Final = "fedcba9876543210"
# The first digits are zeros for as long as anyone writes.
_NUMBER: Final = re.compile(r"0{4}[0-9a-f]{12}")


class Head(msgspec.Struct, kw_only=True):
    """What holds for a whole namespace."""

    format: int = FORMAT
    identity: str
    embedder: EmbedderRecord
    maintained_at: int = 0


class Change(msgspec.Struct, kw_only=True):
    """One change that is more than a new memory."""

    salt: str
    changed: list[int] = []
    deleted: list[int] = []


@attrs.frozen
class Keys:
    """The keys of a namespace's rows."""

    namespace: str
    _prefix: str = attrs.field(init=False, default=attrs.Factory(lambda self: prefix_of(self.namespace), True))

    @property
    def head(self) -> str:
        """The row of the namespace itself."""
        return f"{self._prefix}head"

    @property
    def memories(self) -> str:
        """How the keys of memories begin."""
        return f"{self._prefix}m/"

    @property
    def changes(self) -> str:
        """How the keys of changes begin."""
        return f"{self._prefix}c/"

    @property
    def all_vectors(self) -> str:
        """How the keys of vectors begin, whoever made them."""
        return f"{self._prefix}v/"

    @property
    def contents(self) -> str:
        """How the keys of kept texts begin; a text's hash follows."""
        return f"{self._prefix}e/"

    @property
    def all_uses(self) -> str:
        """How the keys begin that say which memories name a kept text."""
        return f"{self._prefix}u/"

    @property
    def notes(self) -> str:
        """How the keys of notes begin; a note's name follows."""
        return f"{self._prefix}n/"

    def uses(self, digest: str) -> str:
        """Return how the keys begin that say which memories name one text; a memory's number follows."""
        return f"{self.all_uses}{digest}/"

    def vectors(self, embedder: EmbedderRecord) -> str:
        """Return how the keys of vectors begin that an embedder made."""
        text = f"{embedder.name}\0{embedder.fingerprint}\0{embedder.dimensions}"
        return f"{self.all_vectors}{blake2b(text.encode(), digest_size=8).hexdigest()}/"


def prefix_of(namespace: str) -> str:
    """Return how all keys of a namespace begin."""
    return f"memories/{quote(namespace, safe='')}/"


def numbered(prefix: str, number: int) -> str:
    """Return the key of a row with a number; keys sort as numbers do."""
    return f"{prefix}{number:0{_DIGITS}x}"


def own_number(prefix: str, key: str) -> int | None:
    """Return the number in a key of ours that begins with *prefix*, None where nobody of ours made the key."""
    digits = key[len(prefix) :]
    return int(digits, 16) if key.startswith(prefix) and _NUMBER.fullmatch(digits) else None


def own_numbers(rows: Snapshot, prefix: str, *, but: Collection[str] = ()) -> list[int]:
    """Return the numbers in our keys that begin with *prefix*, in their order, without those of some keys."""
    found = (own_number(prefix, key) for key in rows.keys(prefix) if key not in but)
    return [number for number in found if number is not None]


def last_number(rows: Snapshot, prefix: str) -> int:
    """Return the highest number in a key of ours that begins with *prefix*, 0 where there is none."""
    return _last_number(rows, prefix, "") or 0


def _last_number(rows: Snapshot, prefix: str, digits: str) -> int | None:
    last = rows.last(prefix + digits)
    found = None if last is None else own_number(prefix, last)
    if last is None or found is not None:
        return found
    # The last key is none of ours: it hides what comes before it.
    if len(digits) == _DIGITS:
        own = own_number(prefix, prefix + digits)
        return None if own is None or rows.get(prefix + digits) is None else own
    hidden = (_last_number(rows, prefix, digits + digit) for digit in _HEXADECIMAL)
    return next((number for number in hidden if number is not None), None)


def whole(value: bytes | Damaged) -> bytes:
    """Return a row's value."""
    if isinstance(value, Damaged):
        raise ValueError(value.reason)  # noqa: TRY004 - it is the data that is wrong
    return value


def encode(value: Any) -> bytes:
    """Return a head or change as its row holds it."""
    return msgspec.json.encode(value)


read_head: Final = msgspec.json.Decoder(Head).decode
read_change: Final = msgspec.json.Decoder(Change).decode
