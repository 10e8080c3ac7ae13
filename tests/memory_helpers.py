"""Memories of tests: records by hand, and a directory opened by itself, over the engine on disk or one of dicts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import attrs

from mama_structs._async import LoopBound
from mama_structs._home import embedded_engines
from mama_structs.memory.embedding.hashed import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.engine import EmbedderRecord, Engines, mismatch
from mama_structs.memory.model import METADATA, CreatedBy, Link, LinkMetadata, LinkType, Memory, MemoryType
from mama_structs.memory.opening import open_memories
from mama_structs.memory.saving import FindContent, no_content
from mama_structs.memory.store import MemoryStore
from mama_structs.settings import MemorySettings, Settings
from mama_structs.storage.failures import Finding
from mama_structs.storage.store import Storage
from mama_structs.testing import PlainEngine

SMALL: Final = HashEmbedder(dimensions=64)
"""An embedder that is quick and needs little room."""

_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


def plain_memory(
    memory_id: str,
    content: str = "",
    *,
    type: MemoryType = MemoryType.DECISION,  # noqa: A002 - as the field is called
    topic: str | None = None,
    mentions: Sequence[str] = (),
    evidence: Sequence[str] = (),
    at: datetime | float = 0.0,
    **metadata: Any,
) -> Memory:
    """Return a memory for a test."""
    created = at if isinstance(at, datetime) else _START + timedelta(seconds=at)
    return Memory(
        id=memory_id,
        type=type,
        content=content,
        topic=topic,
        metadata=METADATA[type](**metadata),
        mentions=tuple(mentions),
        evidence=tuple(evidence),
        created_at=created,
        updated_at=created,
    )


def plain_link(
    from_id: str,
    to_id: str,
    relationship: str = "relates_to",
    *,
    link_id: str | None = None,
    type: LinkType = LinkType.ASSOCIATION,  # noqa: A002 - as the field is called
    confidence: float = 0.8,
    created_by: CreatedBy = "system",
    at: datetime | float = 0.0,
    similarity: float | None = None,
) -> Link:
    """Return a link for a test."""
    return Link(
        id=f"{from_id}>{to_id}:{relationship}" if link_id is None else link_id,
        from_id=from_id,
        to_id=to_id,
        link_type=type,
        confidence=confidence,
        created_by=created_by,
        metadata=LinkMetadata(original_relationship=relationship, similarity=similarity),
        created_at=at if isinstance(at, datetime) else _START + timedelta(seconds=at),
    )


class PlainEngines:
    """`Engines` whose namespaces are `PlainEngine`, and live as long as this object."""

    def __init__(self) -> None:
        self.kept: dict[str, PlainEngine] = {}

    async def namespaces(self) -> list[str]:
        """Return whose memories there are."""
        return [name for name, engine in self.kept.items() if engine.memories.change]

    async def recorded(self, namespace: str) -> EmbedderRecord | None:
        """Return which embedder made a namespace's vectors, None where there is nothing yet."""
        engine = self.kept.get(namespace)
        return engine.embedder if engine is not None and engine.memories.change else None

    async def open(self, namespace: str, embedder: EmbedderRecord, settings: MemorySettings) -> PlainEngine:
        """Return a namespace's engine; another embedder than the one that made its vectors raises."""
        if namespace not in self.kept:
            self.kept[namespace] = PlainEngine(namespace, embedder=embedder)
        recorded = await self.recorded(namespace)
        if recorded not in (None, embedder):
            raise mismatch(namespace, self.kept[namespace].embedder, embedder)
        self.kept[namespace].embedder = embedder
        return self.kept[namespace]

    async def leave(self, namespace: str) -> None:
        """Do nothing: what is kept stays."""


@attrs.define(eq=False)
class OpenedDirectory:
    """A session's directory, opened without sharing anything with what this process has open there; made by `open`."""

    path: Path
    storage: Storage
    engines: Engines
    embedder: Embedder
    clock: Callable[[], float]
    settings: MemorySettings
    find_mentions: Callable[[str], Sequence[str]]
    find_content: FindContent = no_content
    _open: dict[tuple[str, ...], tuple[MemoryStore, Callable[[], Awaitable[None]]]] = attrs.field(
        factory=dict, init=False
    )

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        engines: Engines | None = None,
        embedder: Embedder = SMALL,
        clock: Callable[[], float] = time.time,
        settings: MemorySettings | None = None,
        wait: float = 60.0,
        find_mentions: Callable[[str], Sequence[str]] = lambda _text: (),
        find_content: FindContent = no_content,
    ) -> Self:
        """Open a directory, making it where there is none."""
        storage = Storage.open(path / "journal", wait=wait)
        return cls(
            path=path,
            storage=storage,
            engines=embedded_engines(storage, views=path / "views") if engines is None else engines,
            embedder=embedder,
            clock=clock,
            settings=Settings.from_env().memory if settings is None else settings,
            find_mentions=find_mentions,
            find_content=find_content,
        )

    async def memories(self, namespace: str = "default", *, reads: Sequence[str] = ()) -> MemoryStore:
        """Return the memories of a namespace with those of others that it only reads, open until `close`."""
        names = (namespace, *reads)
        if names not in self._open:
            self._open[names] = await open_memories(
                self.engines,
                namespace=namespace,
                reads=reads,
                embedder=self.embedder,
                settings=self.settings,
                loop=LoopBound("directory"),
                find_mentions=self.find_mentions,
                find_content=self.find_content,
                clock=self.clock,
            )
        return self._open[names][0]

    async def findings(self) -> list[Finding]:
        """Return what is wrong with the journal and with every open namespace; that SQLite is old does not count."""
        found = await self.storage.check()
        for memories, _ in self._open.values():
            found += await memories.check()
        return [finding for finding in found if finding.kind != "sqlite"]

    async def close(self) -> None:
        """Close the namespaces and the journal."""
        for _, close in self._open.values():
            await close()
        self._open.clear()
        await self.storage.close()
