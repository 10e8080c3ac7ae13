"""Maintenance of the memories of one namespace: checks, statistics, erasure, embedder change, export and import."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from mama_structs._internal.reprs import Figures
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.graph.results import Forgotten, Imported
from mama_structs.memory.records import record_plans
from mama_structs.memory.types.engine import Progress
from mama_structs.memory.types.model import Maintained, from_milliseconds, milliseconds
from mama_structs.memory.types.requests import check_file, check_progress
from mama_structs.memory.upkeep import erasure as forgetting
from mama_structs.memory.upkeep import jsonl_transfer as transfer
from mama_structs.memory.upkeep import maintenance as upkeep
from mama_structs.memory.upkeep.namespace_services import Shared
from mama_structs.storage.sqlite_errors import Finding


async def forget(
    shared: Shared, request: forgetting.ForgetRequest, *, dry_run: bool, progress: Progress | None
) -> Forgotten:
    """Erase the requested memories; see `MemoryStore.forget`."""
    chosen = await shared.read(request.candidates)
    return await forgetting.forget(
        shared.engine, request, chosen, shared.erase_texts, dry_run=dry_run, progress=progress
    )


async def prune(shared: Shared, now: datetime | None) -> int:
    """Remove weak automatic links and old temporal ones; see `MemoryStore.prune`."""
    shared.check()
    return await upkeep.prune(shared.engine, shared.moment("now", now), shared.settings)


async def maintain(shared: Shared) -> Maintained:
    """Resume interrupted erasures, and prune if it is due; see `MemoryStore.maintain`."""
    shared.check()
    await forgetting.resume(shared.engine, shared.erase_texts)
    every = int(shared.settings.prune_every * 1000)
    as_of = await shared.engine.begin_maintenance(milliseconds(shared.now), every)
    if as_of is None:
        return Maintained()
    pruned = await upkeep.prune(shared.engine, from_milliseconds(as_of), shared.settings)
    return Maintained(pruned=pruned, due=True)


async def check(shared: Shared, progress: Progress | None) -> list[Finding]:
    """Return the errors in views, links and records; see `MemoryStore.check`."""
    shared.check()
    return [*await shared.engine.check(progress), *await shared.engine.read(record_plans.unreadable)]


async def rebuild(shared: Shared, progress: Progress | None) -> list[str]:
    """Rebuild all indexes, and return a line for each damaged row; see `MemoryStore.rebuild`."""
    shared.check()
    return await shared.engine.rebuild(progress)


async def reembed(shared: Shared, embedder: Embedder, progress: Progress | None) -> int:
    """Change to another embedder; see `MemoryStore.reembed`."""
    shared.check()
    service = EmbeddingService(embedder, cache_entries=shared.settings.embedding_cache)
    shared.next_record = upkeep.record_of(embedder)
    try:
        count = await upkeep.reembed(shared.engine, service, progress)
    except BaseException:
        await service.close()
        raise
    finally:
        shared.next_record = None
    await shared.take_over(service)
    return count


async def export_jsonl(shared: Shared, path: str | Path, progress: Progress | None) -> int:
    """Export all memories to a file; see `MemoryStore.export_jsonl`."""
    shared.check()
    check_progress(progress)
    return await transfer.export_jsonl(shared.engine, check_file(path), progress)


async def import_jsonl(shared: Shared, path: str | Path, progress: Progress | None) -> Imported:
    """Import the memories of a file; see `MemoryStore.import_jsonl`."""
    shared.check()
    check_progress(progress)
    return await transfer.import_jsonl(shared.engine, shared.embedding, check_file(path), progress)


def figures(shared: Shared) -> dict[str, Any]:
    """Return the statistics as of the last call, without reading the disk."""
    embedder, reranking, judging = shared.embedding.embedder, shared.reranking, shared.judging
    return Figures(
        namespace=shared.engine.namespace,
        embedder=embedder.name,
        dimensions=embedder.dimensions,
        **shared.engine.figures(),
        embedding=attrs.asdict(shared.embedding.stats),
        **({} if reranking is None else {"reranking": attrs.asdict(reranking.stats)}),
        **({} if judging is None else {"judging": attrs.asdict(judging.stats)}),
        traversal_cache=dict(shared.cache.statistics),
    )
