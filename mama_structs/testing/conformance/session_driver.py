"""
Drivers that run the memory suite on the sessions of this package.

See `StoreDriver` for the contract of each method.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from typing import ClassVar, Final

from mama_structs.errors import MemoryNotFound
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.record import Record
from mama_structs.session.session import Session
from mama_structs.testing.conformance.memory_suite import Capability

__all__ = ["RecordsDriver", "ServerRecordsDriver", "ServerSessionDriver", "SessionDriver"]

_TEST_EMBEDDER: Final = HashEmbedder(dimensions=64)
_SERVER_LACKS: Final[Mapping[Capability, str]] = {
    "full_disk": "the disk is the server's: a host writes no file of the store",
    "forgetting": "a server keeps its log and its backups: `ErasureReport.out_of_scope` names what no host can erase",
}


class _BaseSessionDriver:
    """Base class of the drivers. It opens a session for each namespace on first use, all at the same location."""

    lacks: ClassVar[Mapping[Capability, str]] = {}

    async def open(self, location: str) -> None:
        """Store the location. Sessions are opened on first use."""
        self._location, self._closing = location, AsyncExitStack()
        self._open: dict[str, Session] = {}

    async def close(self) -> None:
        """Close all sessions."""
        await self._closing.aclose()

    async def _open_session(self, namespace: str) -> Session:
        if namespace not in self._open:
            opening = Session.open(self._location, namespace=namespace, embedder=_TEST_EMBEDDER)
            self._open[namespace] = await self._closing.enter_async_context(opening)
        return self._open[namespace]


class SessionDriver(_BaseSessionDriver):
    """
    Test driver for memories in a directory. Each namespace has its own session.

    Ids are memory ids.
    """

    async def _open_memories(self, namespace: str) -> MemoryStore:
        return (await self._open_session(namespace)).memories

    async def save(
        self,
        namespace: str,
        _key: str,
        text: str,
        metadata: Mapping[str, str],
    ) -> str:
        """Save a context or a decision, and return the id of the memory."""
        memories = await self._open_memories(namespace)
        if metadata["kind"] == "decision":
            return (await memories.save_decision(text, topic=metadata["topic"], reasoning="as the suite says")).id
        return (await memories.save_context(text, topic=metadata["topic"])).id

    async def get(self, namespace: str, key: str) -> str | None:
        """Return the content of a memory, or None if it does not exist."""
        try:
            return (await (await self._open_memories(namespace)).get(key)).content
        except MemoryNotFound:
            return None

    async def all(self, namespace: str) -> list[tuple[str, str]]:
        """Return the ids and contents of all memories."""
        return [(memory.id, memory.content) async for memory in (await self._open_memories(namespace)).iter_all()]

    async def search(
        self,
        namespace: str,
        query: str,
        *,
        limit: int,
        where: Mapping[str, str] | None = None,
        as_of: datetime | None = None,
    ) -> list[tuple[str, str]]:
        """Search memories by vector similarity and keywords, filtered by topic and type."""
        given = where or {}
        hits = await (await self._open_memories(namespace)).search(
            query, limit=limit, topic=given.get("topic"), type=given.get("kind"), as_of=as_of
        )
        return [(hit.memory.id, hit.memory.content) for hit in hits]

    async def replace(self, namespace: str, key: str, text: str) -> None:
        """Replace the content of a memory with a correction."""
        await (await self._open_memories(namespace)).update(key, text)

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a memory."""
        await (await self._open_memories(namespace)).delete(key)

    async def forget(self, namespace: str, key: str) -> None:
        """Erase a memory permanently."""
        await (await self._open_memories(namespace)).erase(key)


class RecordsDriver(_BaseSessionDriver):
    """Test driver for records in a directory. One session contains all records, and each namespace is a label."""

    lacks: ClassVar[Mapping[Capability, str]] = {"time_travel": "a search of records sees the present only"}

    async def _open_records(self) -> RecordStore:
        return (await self._open_session("hosts")).records

    async def _get_record(self, namespace: str, key: str) -> Record | None:
        return await (await self._open_records()).get((namespace,), key)

    async def save(self, namespace: str, key: str, text: str, metadata: Mapping[str, str]) -> None:
        """Store a record with the text, and with the metadata as its value."""
        await (await self._open_records()).put((namespace,), key, dict(metadata), text=text)

    async def get(self, namespace: str, key: str) -> str | None:
        """Return the text of a record, or None if the record does not exist."""
        found = await self._get_record(namespace, key)
        return None if found is None else found.text

    async def all(self, namespace: str) -> list[tuple[str, str]]:
        """Return the keys and texts of all records."""
        return [(one.key, one.text or "") for one in await (await self._open_records()).list((namespace,))]

    async def search(
        self, namespace: str, query: str, *, limit: int, where: Mapping[str, str] | None = None
    ) -> list[tuple[str, str]]:
        """Search a label's records by vector similarity and keywords. The values of the hits match *where*."""
        wanted = dict(where or {})
        hits = await (await self._open_records()).search(
            query, (namespace,), limit=limit, predicate=lambda one: wanted.items() <= one.value.items()
        )
        return [(hit.record.key, hit.record.text or "") for hit in hits]

    async def replace(self, namespace: str, key: str, text: str) -> None:
        """Store the record again with another text."""
        found = await self._get_record(namespace, key)
        if found is not None:
            await (await self._open_records()).put((namespace,), key, found.value, text=text)

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a record."""
        await (await self._open_records()).delete((namespace,), key)

    async def forget(self, namespace: str, key: str) -> None:
        """Erase a record permanently."""
        found = await self._get_record(namespace, key)
        if found is not None:
            await (await self._open_session("hosts")).memories.erase(found.memory_id)


class ServerSessionDriver(SessionDriver):
    """
    Test driver for memories on a PostgreSQL server.

    Checks cannot access the server's files, so the checks that need them are excused.
    """

    lacks: ClassVar[Mapping[Capability, str]] = _SERVER_LACKS


class ServerRecordsDriver(RecordsDriver):
    """Test driver for records on a PostgreSQL server."""

    lacks: ClassVar[Mapping[Capability, str]] = {**RecordsDriver.lacks, **_SERVER_LACKS}
