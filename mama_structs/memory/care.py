"""Looking after a store: pruning, checking, and changing the embedder."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.backend import Nodes, Reader, Writer
from mama_structs.memory.decay import is_prunable, prunable
from mama_structs.memory.embedded.engine import Engine
from mama_structs.memory.embedded.inspection import STEPS, Checked
from mama_structs.memory.embedded.keys import EmbedderRecord
from mama_structs.memory.embedding.protocol import Embedder, fingerprint_of
from mama_structs.memory.embedding.service import EmbeddingService
from mama_structs.memory.ids import milliseconds
from mama_structs.memory.text import embedded_text
from mama_structs.settings import MemorySettings
from mama_structs.storage import Finding

Progress = Callable[[int, int], object]

# Memories that are looked at, embedded or changed in one go, so that others have their turn.
_PAGE: Final = 500
_BATCH: Final = 128
# Fewer where each is compared with all views, which takes some 0.1 ms.
_CHECKED: Final = 100


async def prune(backend: Engine, now: datetime, settings: MemorySettings) -> int:
    """Remove the automatic links that are too weak or too old, and return how many."""
    now_ms = milliseconds(now)

    def where(reader: Reader) -> Nodes:
        table = reader.links(reader.window(newest_first=False), "out")
        return np.unique(table.sources[prunable(table, now_ms, settings)])

    # Nodes mean something within one plan only; ids last.
    sources = await backend.read(lambda reader: reader.ids(where(reader)))
    pruned = 0
    for start in range(0, len(sources), _PAGE):
        some = sources[start : start + _PAGE]

        def plan(writer: Writer, some: list[str] = some) -> int:
            nodes = [node for node in map(writer.find, some) if node is not None]
            weak = [
                link.id for node in nodes for link in writer.read_links(node, "out") if is_prunable(link, now, settings)
            ]
            return writer.delete_links(weak)

        pruned += await backend.write(plan)
    return pruned


async def check(backend: Engine, progress: Progress | None) -> list[Finding]:
    """Look at every memory, vector, link and change in the journal, and at what the views have made of them."""
    state = Checked()
    total = await backend.read(lambda reader: reader.count())
    for step in STEPS:
        while await backend.inspect(lambda inspected: step(inspected, state, _CHECKED)):  # noqa: B023 - run at once
            if progress is not None:
                progress(min(state.memories, total), total)
    if progress is not None:
        progress(total, total)
    return state.findings


async def reembed(backend: Engine, service: EmbeddingService, progress: Progress | None) -> int:
    """Embed every memory with another embedder, and then let its vectors count; return how many were embedded now."""
    record = record_of(service.embedder)
    done = 0
    missing = await backend.without_vectors(record)
    total = len(missing)
    while missing:
        for start in range(0, len(missing), _BATCH):
            some = missing[start : start + _BATCH]
            memories = await backend.memories_numbered(some)
            found = await service.documents([embedded_text(memory) for memory in memories.values()])
            vectors: dict[int, NDArray[np.float32]] = dict(zip(memories, found, strict=True))
            await backend.put_vectors(record, vectors)
            done += len(vectors)
            if progress is not None:
                progress(min(done, total), total)
        # What was saved meanwhile.
        missing = await backend.without_vectors(record)
    while missing := await backend.adopt(record):
        memories = await backend.memories_numbered(missing)
        found = await service.documents([embedded_text(memory) for memory in memories.values()])
        await backend.put_vectors(record, dict(zip(memories, found, strict=True)))
        done += len(memories)
    await backend.drop_other_vectors()
    return done


def record_of(embedder: Embedder) -> EmbedderRecord:
    """Return how a store names an embedder."""
    return EmbedderRecord(embedder.name, fingerprint_of(embedder), embedder.dimensions)
