"""Maintenance of a namespace: pruning of automatic links, and change of the embedder."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.protocol import Embedder, fingerprint_of
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.types.engine import (
    SYSTEM_CREATOR_INDEX,
    TYPE_NUMBERS,
    EmbedderRecord,
    Engine,
    LinkTable,
    ProgressCallback,
    Reader,
    Vectors,
    Writer,
    write_in_transactions,
)
from mama_structs.memory.types.model import Link, LinkType, Memory, to_milliseconds
from mama_structs.settings import MemorySettings

# Maximum number of memories per page. Other plans can run between two pages.
PAGE_MEMORIES: Final = 500
# Maximum number of memories per embedding call.
EMBED_BATCH_MEMORIES: Final = 128


def embedder_record(embedder: Embedder) -> EmbedderRecord:
    """Return the record by which a store identifies an embedder."""
    return EmbedderRecord(embedder.name, fingerprint_of(embedder), embedder.dimensions)


def prunable_mask(table: LinkTable, now_ms: int, settings: MemorySettings) -> NDArray[np.bool_]:
    """Return a mask of the links that may be pruned (DESIGN section 6)."""
    # Use the stored confidence without decay over time, so that only links that were weak from the start count as weak.
    weak = table.confidences < np.float32(settings.prune_below)
    old = (table.types == TYPE_NUMBERS[LinkType.TEMPORAL]) & (
        now_ms - table.created > settings.prune_temporal_after * 1000
    )
    may_go: NDArray[np.bool_] = (table.creators == SYSTEM_CREATOR_INDEX) & (weak | old)
    return may_go


def is_prunable(link: Link, now: datetime, settings: MemorySettings) -> bool:
    """Return True if a link may be pruned, by the same rule as `prunable_mask`."""
    if link.created_by != "system":
        return False
    # Compare in single precision, as `prunable_mask` does, so that both functions agree.
    if np.float32(link.confidence) < np.float32(settings.prune_below):
        return True
    age = to_milliseconds(now) - to_milliseconds(link.created_at)
    return link.link_type is LinkType.TEMPORAL and age > settings.prune_temporal_after * 1000


async def prune(engine: Engine, now: datetime, settings: MemorySettings) -> int:
    """Delete automatic links that are too weak or too old, and return their number."""
    now_ms = to_milliseconds(now)

    def where(reader: Reader) -> list[str]:
        table = reader.links(reader.window(newest_first=False), "out")
        # Return ids, because node numbers are valid within one plan only.
        return reader.ids(np.unique(table.sources[prunable_mask(table, now_ms, settings)]))

    def prune_one(writer: Writer, source: str) -> int:
        node = writer.find(source)
        links = [] if node is None else writer.read_links(node, "out")
        return writer.delete_links([link.id for link in links if is_prunable(link, now, settings)])

    sources = await engine.read(where)
    return sum(
        [sum(some) async for some in write_in_transactions(engine.write, sources, prune_one, max_items=PAGE_MEMORIES)]
    )


async def reembed(engine: Engine, service: EmbeddingService, progress: ProgressCallback | None) -> int:
    """Embed all memories with another embedder, switch to it, and return the number of embedded memories."""
    record = embedder_record(service.embedder)
    done = 0
    adopted = False

    def put(writer: Writer, made: tuple[str, Vectors]) -> None:
        writer.put_vectors(record, dict([made]))

    while not adopted:
        # Repeat until no memory lacks vectors, because other plans save memories in the meantime.
        missing = await engine.read(lambda reader: reader.without_vectors(record))
        total = done + len(missing)
        for start in range(0, len(missing), EMBED_BATCH_MEMORIES):

            def memories(
                reader: Reader, some: list[str] = missing[start : start + EMBED_BATCH_MEMORIES]
            ) -> list[Memory]:
                return reader.get([node for node in reader.find_many(some) if node is not None])

            found = await engine.read(memories)
            pieces = await saving.embed_memories(service, found)
            vectors = [(memory.id, own) for memory, own in zip(found, pieces, strict=True)]
            async for some in write_in_transactions(engine.write, vectors, put, max_items=EMBED_BATCH_MEMORIES):
                done += len(some)
            if progress is not None:
                progress(min(done, total), total)
        adopted = await engine.adopt(record)
    return done
