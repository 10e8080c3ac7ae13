"""The namespaces of one store that are open in this process, each shared by all sessions that have it open."""

from __future__ import annotations

import threading
from hashlib import blake2b
from pathlib import Path

from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedded.engine import EmbeddedEngine, read_head_of
from mama_structs.memory.engine import EmbedderRecord, mismatch
from mama_structs.settings import MemorySettings
from mama_structs.storage import Storage


class EmbeddedEngines:
    """Opens each namespace once."""

    def __init__(self, storage: Storage, *, snapshots: Path | None) -> None:
        self._storage = storage
        self._snapshots = snapshots
        self._guard = threading.Lock()
        self._open: dict[str, EmbeddedEngine] = {}

    async def recorded(self, namespace: str) -> EmbedderRecord | None:
        """Return which embedder made a namespace's vectors, None where there is nothing yet."""
        head = await self._storage.look(lambda rows: read_head_of(rows, namespace, str(self._storage.directory)))
        return None if head is None else head.embedder

    async def open(self, namespace: str, embedder: EmbedderRecord, settings: MemorySettings) -> EmbeddedEngine:
        """Open a namespace, or share it; undone by `leave`."""
        options = (settings.exact_up_to, settings.snapshot_every)
        with self._guard:
            engine = self._open.get(namespace)
            if engine is None:
                engine = EmbeddedEngine(
                    self._storage,
                    namespace,
                    embedder=embedder,
                    exact_up_to=settings.exact_up_to,
                    snapshot_every=settings.snapshot_every,
                    snapshots=None if self._snapshots is None else self._snapshots / _folder(namespace),
                )
                self._open[namespace] = engine
            elif engine.embedder != embedder:
                raise mismatch(namespace, engine.embedder, embedder)
            elif engine.options != options:
                raise InvalidArgument(
                    f"the memories of {namespace!r:.80} are open with another exact_up_to or snapshot_every",
                    hint="open them with the same settings.memory, or close the other session first",
                )
            engine.users += 1
        try:
            await engine.open()
        except BaseException:
            await self.leave(namespace)
            raise
        return engine

    async def leave(self, namespace: str) -> None:
        """End one session's use of a namespace; the last one closes it."""
        with self._guard:
            engine = self._open[namespace]
            engine.users -= 1
            is_last = engine.users == 0
            if is_last:
                del self._open[namespace]
        if is_last:
            await engine.close()


def _folder(namespace: str) -> str:
    # Namespaces may have characters that file systems refuse or confuse.
    return blake2b(namespace.encode(), digest_size=8).hexdigest()
