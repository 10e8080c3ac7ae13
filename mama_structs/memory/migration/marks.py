"""How a memory or link says that a migration made it: a mark in what its metadata holds besides."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Self

import attrs
import msgspec

from mama_structs.memory.codec import Entry, read_memory, write_entry
from mama_structs.memory.model import ContextMetadata, DecisionMetadata, Link, Memory

MARK: Final = "migrated"
OLD: Final = "v1_0"
"""Where the columns are that this store has no place for."""

BACKFILLED: Final = "backfilled"
_LINKS: Final = frozenset({"supersedes", "superseded_by", "refined_from", "updated_at"})
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen(kw_only=True)
class Mark:
    """
    What a migrated memory says of its migration.

    Args:
        migration: The migration's name.
        at: When it was begun.
        digest: What the memory was like then, see `digest_of`.
        row: What its row said then, see `row_digest_of`; empty where that is not known.

    """

    migration: str
    at: datetime
    digest: str
    row: str = ""

    @classmethod
    def of(cls, memory: Memory) -> Self | None:
        """Return a memory's mark, None where it has none."""
        found = memory.metadata.extra.get(MARK)
        if not isinstance(found, Mapping):
            return None
        try:
            return cls(
                migration=str(found["migration"]),
                at=datetime.fromisoformat(found["at"]).astimezone(UTC),
                digest=str(found["digest"]),
                row=str(found.get("row", "")),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def on(self, memory: Memory) -> Memory:
        """Return a memory with this mark."""
        mark: dict[str, Any] = {
            "migration": self.migration,
            "at": self.at.isoformat(),
            "digest": self.digest,
            "row": self.row,
        }
        extra = {name: value for name, value in memory.metadata.extra.items() if name != MARK}
        return attrs.evolve(memory, metadata=attrs.evolve(memory.metadata, extra={**extra, MARK: mark}))


def digest_of(memory: Memory) -> str:
    """Return what tells whether a memory was changed: the same for the same content, mark and namespace aside."""
    extra = {name: value for name, value in memory.metadata.extra.items() if name != MARK}
    plain = attrs.evolve(memory, namespace="", metadata=attrs.evolve(memory.metadata, extra=extra))
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]


def row_digest_of(memory: Memory) -> str:
    """
    Return what tells whether a memory's row was changed: the same where it says the same.

    When it was updated does not count, nor which rows it names: v1.0 changes that in a row that is superseded, and
    these become links. Nor do mentions, which depend on the host.
    """
    extra = {name: value for name, value in memory.metadata.extra.items() if name not in {MARK, OLD}}
    old = memory.metadata.extra.get(OLD)
    if isinstance(old, Mapping):
        extra[OLD] = {name: value for name, value in old.items() if name not in _LINKS}
    metadata = attrs.evolve(memory.metadata, extra=extra if extra.get(OLD) else {**extra, OLD: {}})
    if isinstance(metadata, DecisionMetadata):
        metadata = attrs.evolve(metadata, outcome_at=None, history=())
    # Why a decision came out as it did has the time of its row's update.
    created = _NO_TIME if isinstance(metadata, ContextMetadata) else memory.created_at
    return digest_of(attrs.evolve(memory, metadata=metadata, mentions=(), created_at=created, updated_at=created))


def as_stored(memory: Memory) -> Memory:
    """
    Return a memory as it comes back from the store.

    Raises:
        ValueError: It cannot be written.

    """
    return read_memory(write_entry(Entry(memory)))


def migration_of(link: Link) -> str | None:
    """Return the migration that made a link, None for another link."""
    found = link.metadata.extra.get(MARK)
    return found if isinstance(found, str) else None


def is_backfilled(link: Link) -> bool:
    """Tell whether a migration added a link to those that the old file says."""
    return migration_of(link) is not None and bool(link.metadata.extra.get(BACKFILLED))


def link_id(namespace: str, from_id: str, to_id: str, word: str) -> str:
    """Return the id of a link, the same whenever it is made."""
    said = f"{namespace}\x00{from_id}\x00{to_id}\x00{word}".encode("utf-8", "surrogatepass")
    return f"link_{hashlib.sha256(said).hexdigest()[:24]}"
