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
    NUMBERS,
    SYSTEM,
    EmbedderRecord,
    Engine,
    LinkTable,
    Progress,
    Reader,
    Vectors,
    Writer,
    in_turns,
)
from mama_structs.memory.types.model import Link, LinkType, Memory, milliseconds
from mama_structs.settings import MemorySettings

# Memories per read or embedding call, so that other plans can run in between.
_PAGE: Final = 500
_BATCH: Final = 128


def record_of(embedder: Embedder) -> EmbedderRecord:
    """Return the record by which a store identifies an embedder."""
    return EmbedderRecord(embedder.name, fingerprint_of(embedder), embedder.dimensions)


def prunable(table: LinkTable, now_ms: int, settings: MemorySettings) -> NDArray[np.bool_]:
    """Return a mask of the links that may be pruned (DESIGN section 6)."""
    # Use the stored confidence, without decay: otherwise links that were never weak would be pruned.
    weak = table.confidences < np.float32(settings.prune_below)
    old = (table.types == NUMBERS[LinkType.TEMPORAL]) & (now_ms - table.created > settings.prune_temporal_after * 1000)
    may_go: NDArray[np.bool_] = (table.creators == SYSTEM) & (weak | old)
    return may_go


def is_prunable(link: Link, now: datetime, settings: MemorySettings) -> bool:
    """Return True if a link may be pruned. Same rule as `prunable`, for one link."""
    if link.created_by != "system":
        return False
    # Compare in single precision, as tables do, so that both functions agree.
    if np.float32(link.confidence) < np.float32(settings.prune_below):
        return True
    age = milliseconds(now) - milliseconds(link.created_at)
    return link.link_type is LinkType.TEMPORAL and age > settings.prune_temporal_after * 1000


async def prune(engine: Engine, now: datetime, settings: MemorySettings) -> int:
    """Delete automatic links that are too weak or too old, and return their number."""
    now_ms = milliseconds(now)

    def where(reader: Reader) -> list[str]:
        table = reader.links(reader.window(newest_first=False), "out")
        # Nodes are valid within one plan only, so return ids.
        return reader.ids(np.unique(table.sources[prunable(table, now_ms, settings)]))

    def prune_one(writer: Writer, source: str) -> int:
        node = writer.find(source)
        links = [] if node is None else writer.read_links(node, "out")
        return writer.delete_links([link.id for link in links if is_prunable(link, now, settings)])

    sources = await engine.read(where)
    return sum([sum(some) async for some in in_turns(engine.write, sources, prune_one, most=_PAGE)])


async def reembed(engine: Engine, service: EmbeddingService, progress: Progress | None) -> int:
    """
    Embed all memories with another embedder and switch to it.

    Returns how many memories were embedded.
    """
    record = record_of(service.embedder)
    done = 0
    adopted = False

    def put(writer: Writer, made: tuple[str, Vectors]) -> None:
        writer.put_vectors(record, dict([made]))

    while not adopted:
        # Repeat, because other plans save memories in the meantime.
        missing = await engine.read(lambda reader: reader.without_vectors(record))
        total = done + len(missing)
        for start in range(0, len(missing), _BATCH):

            def memories(reader: Reader, some: list[str] = missing[start : start + _BATCH]) -> list[Memory]:
                return reader.get([node for node in reader.find_many(some) if node is not None])

            found = await engine.read(memories)
            pieces = await saving.documents(service, found)
            vectors = [(memory.id, own) for memory, own in zip(found, pieces, strict=True)]
            async for some in in_turns(engine.write, vectors, put, most=_BATCH):
                done += len(some)
            if progress is not None:
                progress(min(done, total), total)
        adopted = await engine.adopt(record)
    return done
