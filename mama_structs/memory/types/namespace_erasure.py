"""Erasure of a whole namespace: receipt, errors, and the protocol of engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import attrs

from mama_structs._internal.reprs import FieldReprMixin
from mama_structs.errors import StoreBusy
from mama_structs.storage.sealed_rows import Rows

T = TypeVar("T")


@attrs.frozen(kw_only=True, repr=False)
class NamespaceErasure(FieldReprMixin):
    """
    Receipt of `mama_structs.admin.delete_namespace`: numbers of erased items, without any erased text.

    Args:
        namespace: Name of the namespace.
        memories: Number of memories by type, without records.
        records: Number of records.
        unreadable: Number of damaged memories and records, whose type is unknown.
        links: Number of links between the memories.
        evidence_texts: Number of texts that memories kept as evidence.
        conversations: Number of conversations.
        conversation_texts: Number of texts of refs and descriptors that no other conversation uses.
        pending: Descriptions of places that still contain some of the data. They are cleared when the store is next
            opened or maintained, or when their holder closes.

    """

    namespace: str
    memories: Mapping[str, int] = attrs.field(factory=dict)
    records: int = 0
    unreadable: int = 0
    links: int = 0
    evidence_texts: int = 0
    conversations: int = 0
    conversation_texts: int = 0
    pending: tuple[str, ...] = ()


class NamespaceDeletion(Protocol):
    """Deletes whole namespaces of one store. Part of `Engines`."""

    async def delete_namespace(
        self, namespace: str, delete_rows: Callable[[Rows], T], progress: Callable[[int, int], object] | None = None
    ) -> tuple[NamespaceErasure, T]:
        """
        Delete all memories of a namespace in one transaction. Damaged memories are deleted, too.

        Args:
            namespace: A namespace that nobody has open.
            delete_rows: Deletes other rows of the namespace in the same transaction.
            progress: Called with the number of finished items and their total number.

        Returns:
            The numbers of deleted memories, records, links and evidence texts, and the result of *delete_rows*.

        Raises:
            StoreBusy: A session has the namespace open. Nothing was deleted.

        """

    async def has_deleted_data(self, namespace: str) -> bool:
        """Return True if deleted data of a namespace is known to be still on disk."""

    async def erase_deleted_data(self, namespace: str, *, wait: float) -> tuple[str, ...]:
        """Remove the data of a deleted namespace from disk. *wait* and the result are as in `Engine.erase`."""


def namespace_open_error(namespace: str) -> StoreBusy:
    """Return the error for a namespace that cannot be deleted, because a session has it open."""
    return StoreBusy(
        f"a session has the namespace {namespace!r:.80} open, or reads it",
        waited=0.0,
        hint="close all sessions with this namespace, and the servers of pages that have shown it (session.ui(), "
        "mama-structs ui); then pass the location of the store",
    )


def namespace_deleted_error(namespace: str) -> StoreBusy:
    """Return the error for a namespace that cannot be opened, because it is being deleted."""
    return StoreBusy(
        f"the namespace {namespace!r:.80} is being deleted", waited=0.0, hint="try again when delete_namespace is done"
    )
