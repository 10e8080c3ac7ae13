"""
What a store notes of each migration, besides the memories: these may be deleted one by one, and it may not.

The note says when the migration was begun, which one came last, and, once it is complete, what was settled by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

import msgspec

from mama_structs.errors import MigrationError
from mama_structs.memory.engine import Reader, Writer

PREFIX: Final = "migration/"
_SIZE: Final = 12


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """
    One migration.

    Args:
        migration: Its name.
        order: Later ones have higher numbers, whatever the clock says.
        begun: When it was begun; its back-filled links age from then.
        checksum: SHA-256 of the old file.
        state: Whether it is under way or interrupted, complete, or being taken back.
        settled: The keys (`key_of`) of the memories and links of the old file that were there when it was complete, or
            deleted before; what is not there any more was deleted, and does not come back.

    """

    migration: str
    order: int
    begun: datetime
    checksum: str
    state: Literal["begun", "complete", "undone"] = "begun"
    settled: bytes = b""

    @property
    def is_complete(self) -> bool:
        """Whether it was brought to its end."""
        return self.state == "complete"

    @property
    def keys(self) -> frozenset[bytes]:
        """The keys of what was settled."""
        return frozenset(self.settled[at : at + _SIZE] for at in range(0, len(self.settled), _SIZE))


_decode: Final = msgspec.json.Decoder(Record).decode


def key_of(one: str) -> bytes:
    """Return what stands for a memory's or link's id."""
    return hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest()[:_SIZE]


def joined(ids: Iterable[str]) -> bytes:
    """Return the keys of some ids as `Record.settled` holds them."""
    return b"".join(sorted({key_of(one) for one in ids}))


def records_of(reader: Reader) -> dict[str, Record]:
    """
    Return the migrations that the store notes, by name.

    Raises:
        MigrationError: A note is none of ours.

    """
    return {name.removeprefix(PREFIX): _read(name, text) for name, text in reader.notes(PREFIX).items()}


def record_of(reader: Reader, migration: str) -> Record | None:
    """
    Return what the store notes of a migration, None where it notes nothing.

    Raises:
        MigrationError: The note is none of ours.

    """
    name = f"{PREFIX}{migration}"
    text = reader.note(name)
    return None if text is None else _read(name, text)


def keep(writer: Writer, record: Record) -> None:
    """Note a migration."""
    writer.set_note(f"{PREFIX}{record.migration}", msgspec.json.encode(record).decode())


def forget(writer: Writer, migration: str) -> None:
    """Forget a migration."""
    writer.set_note(f"{PREFIX}{migration}", None)


def begin(writer: Writer, migration: str, *, checksum: str, at: datetime) -> Record:
    """Return the record of a migration that goes on from now; it is noted, unless it is complete."""
    known = records_of(writer)
    own = known.get(migration)
    if own is None:
        order = 1 + max((one.order for one in known.values()), default=0)
        own = Record(migration=migration, order=order, begun=at, checksum=checksum)
    elif own.state != "undone":
        return own
    own = msgspec.structs.replace(own, state="begun")
    keep(writer, own)
    return own


def still(reader: Reader, record: Record) -> Record:
    """
    Return a record as it is now.

    Raises:
        MigrationError: Another process has taken the migration back meanwhile, or has begun it anew.

    """
    now = record_of(reader, record.migration)
    if now is None or now.state == "undone" or (now.order, now.begun) != (record.order, record.begun):
        raise MigrationError(
            "the migration was taken back by somebody else while it ran", path="", hint="run it again if it is wanted"
        )
    return now


def _read(name: str, text: str) -> Record:
    try:
        return _decode(text)
    except (ValueError, RecursionError) as error:
        raise MigrationError(
            f"what the store notes of {name!r:.100} cannot be read: {error}", path="", hint="restore a backup"
        ) from error
