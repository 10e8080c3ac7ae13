"""Looking after a namespace: pruning its links, and changing its embedder."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import numpy as np

from mama_structs.memory.decay import is_prunable, prunable
from mama_structs.memory.embedding.protocol import Embedder, fingerprint_of
from mama_structs.memory.embedding.service import EmbeddingService
from mama_structs.memory.engine import EmbedderRecord, Engine, Progress, Reader, Writer
from mama_structs.memory.ids import milliseconds
from mama_structs.memory.model import Memory
from mama_structs.memory.text import embedded_text
from mama_structs.settings import MemorySettings

# Memories that are looked at or embedded in one go, so that others have their turn.
_PAGE: Final = 500
_BATCH: Final = 128


def record_of(embedder: Embedder) -> EmbedderRecord:
    """Return how a store names an embedder."""
    return EmbedderRecord(embedder.name, fingerprint_of(embedder), embedder.dimensions)


async def prune(engine: Engine, now: datetime, settings: MemorySettings) -> int:
    """Remove the automatic links that are too weak or too old, and return how many."""
    now_ms = milliseconds(now)

    def where(reader: Reader) -> list[str]:
        table = reader.links(reader.window(newest_first=False), "out")
        # Nodes mean something within one plan only; ids last.
        return reader.ids(np.unique(table.sources[prunable(table, now_ms, settings)]))

    sources = await engine.read(where)
    pruned = 0
    for start in range(0, len(sources), _PAGE):

        def plan(writer: Writer, some: list[str] = sources[start : start + _PAGE]) -> int:
            nodes = [node for node in writer.find_many(some) if node is not None]
            links = [link for own in writer.links_of_many(nodes, "out") for link in own]
            return writer.delete_links([link.id for link in links if is_prunable(link, now, settings)])

        pruned += await engine.write(plan)
    return pruned


async def reembed(engine: Engine, service: EmbeddingService, progress: Progress | None) -> int:
    """Embed every memory with another embedder, and then let its vectors count; return how many were embedded now."""
    record = record_of(service.embedder)
    done = 0
    adopted = False
    while not adopted:
        # Again and again: others go on saving meanwhile.
        missing = await engine.read(lambda reader: reader.without_vectors(record))
        total = done + len(missing)
        for start in range(0, len(missing), _BATCH):

            def memories(reader: Reader, some: list[str] = missing[start : start + _BATCH]) -> list[Memory]:
                return reader.get([node for node in reader.find_many(some) if node is not None])

            found = await engine.read(memories)
            pieces = await service.documents([embedded_text(memory) for memory in found])
            vectors = {memory.id: own for memory, own in zip(found, pieces, strict=True)}
            await engine.write(lambda writer: writer.put_vectors(record, vectors))  # noqa: B023 - awaited
            done += len(vectors)
            if progress is not None:
                progress(min(done, total), total)
        adopted = await engine.adopt(record)
    return done
