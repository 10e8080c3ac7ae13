"""The memory engine without a session: with a connection and a clock of its own, as another process would have it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Self

import attrs

from mama_structs._async import LoopBound
from mama_structs.memory.contents import FindContent, nothing
from mama_structs.memory.embedded.engine import EmbeddedEngines
from mama_structs.memory.embedding.hashed import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.engine import Engines
from mama_structs.memory.opening import open_memories
from mama_structs.memory.store import MemoryStore
from mama_structs.settings import MemorySettings, Settings
from mama_structs.storage.opening import Finding
from mama_structs.storage.store import Storage

SMALL: Final = HashEmbedder(dimensions=64)
"""An embedder that is quick and needs little room."""


@attrs.define(eq=False)
class OpenedDirectory:
    """
    A session's directory, opened without sharing anything with what this process has open there; made by `open`.

    Args:
        path: The directory.
        storage: Its journal.
        engines: The namespaces that are open.
        embedder: What turns texts into vectors.
        clock: Gives the seconds since 1970.
        settings: For the memories.
        find_mentions: Gives the ids that a text names.
        find_content: Gives the versioned handle and the text of a handle.

    """

    path: Path
    storage: Storage
    engines: Engines
    embedder: Embedder
    clock: Callable[[], float]
    settings: MemorySettings
    find_mentions: Callable[[str], Sequence[str]]
    find_content: FindContent = nothing
    _open: dict[str, tuple[MemoryStore, Callable[[], Awaitable[None]]]] = attrs.field(factory=dict, init=False)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        embedder: Embedder = SMALL,
        clock: Callable[[], float] = time.time,
        settings: MemorySettings | None = None,
        wait: float = 60.0,
        find_mentions: Callable[[str], Sequence[str]] = lambda _text: (),
        find_content: FindContent = nothing,
    ) -> Self:
        """
        Open a directory, making it where there is none.

        Args:
            path: The directory.
            embedder: What turns texts into vectors.
            clock: Gives the seconds since 1970.
            settings: For the memories; by default what the environment says, such as
                ``MAMA_STRUCTS_MEMORY_EXACT_UP_TO=0``.
            wait: Seconds that a write waits for other processes.
            find_mentions: Gives the ids that a text names.
            find_content: Gives the versioned handle and the text of a handle, None for what is no handle.

        Raises:
            StoreError: It cannot be used.

        """
        storage = Storage.open(path / "journal", wait=wait)
        return cls(
            path=path,
            storage=storage,
            engines=EmbeddedEngines(storage, snapshots=path / "views"),
            embedder=embedder,
            clock=clock,
            settings=Settings.from_env().memory if settings is None else settings,
            find_mentions=find_mentions,
            find_content=find_content,
        )

    async def memories(self, namespace: str = "default") -> MemoryStore:
        """
        Return the memories of a namespace, open until `close`.

        Raises:
            EmbedderMismatch: Another embedder made the vectors.
            StoreError: The journal cannot be read.

        """
        if namespace not in self._open:
            self._open[namespace] = await open_memories(
                self.engines,
                namespace=namespace,
                embedder=self.embedder,
                settings=self.settings,
                loop=LoopBound("directory"),
                find_mentions=self.find_mentions,
                find_content=self.find_content,
                clock=self.clock,
            )
        return self._open[namespace][0]

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
