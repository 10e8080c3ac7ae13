"""How the changes of one conversation are written: one record a change, JSON in bytes, told apart by ``op``."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from mama_structs.descriptors.categories import Category
from mama_structs.descriptors.content import Content
from mama_structs.descriptors.entries import Descriptor, Entry, Ref


class RefRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="ref", forbid_unknown_fields=True):
    """A ref was stored."""

    id: str
    version: int
    category: Category
    attributes: dict[str, str]
    complete: bool
    created_at: datetime
    page_size: int
    hash: str


class FdRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="fd", forbid_unknown_fields=True):
    """A descriptor was stored."""

    number: int
    source: str
    category: Category
    created_at: datetime
    page_size: int
    hash: str


class DeleteRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="delete", forbid_unknown_fields=True):
    """What had this handle was deleted."""

    handle: str
    at: datetime


class StartRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="start", forbid_unknown_fields=True):
    """
    A conversation began.

    One that was forked holds what *parent* held when its record number *parent_at* was written.
    """

    name: str
    created_at: datetime
    parent: str | None
    parent_at: int
    version: Literal[1]


Record = RefRecord | FdRecord | DeleteRecord
ENCODER: Final = msgspec.json.Encoder()
DECODER: Final = msgspec.json.Decoder(Record)
START_DECODER: Final = msgspec.json.Decoder(StartRecord)


def record_of(entry: Entry) -> RefRecord | FdRecord:
    """Return how it is written that an entry was stored."""
    if isinstance(entry, Descriptor):
        return FdRecord(
            number=entry.number,
            source=entry.source,
            category=entry.category,
            created_at=entry.created_at,
            page_size=entry.page_size,
            hash=entry.content.hash,
        )
    return RefRecord(
        id=entry.id,
        version=entry.version,
        category=entry.category,
        attributes=dict(entry.attributes),
        complete=entry.complete,
        created_at=entry.created_at,
        page_size=entry.page_size,
        hash=entry.content.hash,
    )


def entry_of(record: RefRecord | FdRecord, content: Content) -> Entry:
    """Return the entry whose record this is."""
    if isinstance(record, FdRecord):
        return Descriptor(
            number=record.number,
            source=record.source,
            category=record.category,
            created_at=record.created_at,
            page_size=record.page_size,
            content=content,
        )
    return Ref(
        id=record.id,
        version=record.version,
        category=record.category,
        attributes=record.attributes,
        complete=record.complete,
        created_at=record.created_at,
        page_size=record.page_size,
        content=content,
    )
