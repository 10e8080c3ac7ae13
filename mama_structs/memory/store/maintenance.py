"""Maintenance of the memories of one namespace: checks, statistics, erasure, embedder change, export and import."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

import attrs

from mama_structs._internal.reprs import StatsTable
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.graph.results import ErasureReport, JsonlImport
from mama_structs.memory.records import record_plans
from mama_structs.memory.records.record_notes import complete_index, remove_stale_entries
from mama_structs.memory.types.engine import ProgressCallback
from mama_structs.memory.types.model import MaintenanceReport, from_milliseconds, to_milliseconds
from mama_structs.memory.types.requests import check_file, check_progress
from mama_structs.memory.upkeep import erasure
from mama_structs.memory.upkeep import jsonl_transfer as transfer
from mama_structs.memory.upkeep import maintenance as upkeep
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.storage.sqlite_errors import Issue


async def erase(
    shared: NamespaceServices, request: erasure.EraseRequest, *, dry_run: bool, progress: ProgressCallback | None
) -> ErasureReport:
    """Erase the requested memories; see `MemoryStore.erase`."""
    chosen = await shared.read(request.candidates)
    return await erasure.erase_memories(
        shared.engine, request, chosen, shared.erase_texts, dry_run=dry_run, progress=progress
    )


async def prune(shared: NamespaceServices, now: datetime | None) -> int:
    """Remove weak automatic links and old temporal ones; see `mama_structs.admin.prune`."""
    shared.check()
    return await upkeep.prune(shared.engine, shared.resolve_time("now", now), shared.settings)


async def maintain(shared: NamespaceServices) -> MaintenanceReport:
    """Resume interrupted erasures, and prune if it is due; see `mama_structs.admin.maintain`."""
    shared.check()
    await erasure.resume_erasure(shared.engine, shared.erase_texts)
    every = int(shared.settings.prune_every * 1000)
    as_of = await shared.engine.begin_maintenance(to_milliseconds(shared.now), every)
    if as_of is None:
        return MaintenanceReport()
    pruned = await upkeep.prune(shared.engine, from_milliseconds(as_of), shared.settings)
    return MaintenanceReport(pruned=pruned, due=True)


async def check(shared: NamespaceServices, progress: ProgressCallback | None) -> list[Issue]:
    """Return the errors in views, links and records; see `mama_structs.admin.check`."""
    shared.check()
    return [*await shared.engine.check(progress), *await shared.engine.read(record_plans.find_unreadable)]


async def rebuild(shared: NamespaceServices, progress: ProgressCallback | None) -> list[str]:
    """Rebuild all indexes, and return a line for each damaged row; see `mama_structs.admin.rebuild`."""
    shared.check()
    damaged = await shared.engine.rebuild(progress)
    await complete_index(shared)
    await remove_stale_entries(shared)
    return damaged


async def reembed(shared: NamespaceServices, embedder: Embedder, progress: ProgressCallback | None) -> int:
    """Change to another embedder; see `mama_structs.admin.reembed`."""
    shared.check()
    service = EmbeddingService(embedder, cache_entries=shared.settings.embedding_cache_entries)
    shared.next_embedder_record = upkeep.embedder_record(embedder)
    try:
        count = await upkeep.reembed(shared.engine, service, progress)
    except BaseException:
        await service.close()
        raise
    finally:
        shared.next_embedder_record = None
    await shared.replace_embedder(service)
    return count


async def export_jsonl(
    shared: NamespaceServices, path: str | os.PathLike[str], progress: ProgressCallback | None
) -> int:
    """Export all memories to a file; see `mama_structs.admin.export_jsonl`."""
    shared.check()
    check_progress(progress)
    return await transfer.export_jsonl(shared.engine, check_file(path), progress)


async def import_jsonl(
    shared: NamespaceServices, path: str | os.PathLike[str], progress: ProgressCallback | None
) -> JsonlImport:
    """Import the memories of a file; see `mama_structs.admin.import_jsonl`."""
    shared.check()
    check_progress(progress)
    return await transfer.import_jsonl(shared.engine, shared.embedding, check_file(path), progress)


def figures(shared: NamespaceServices) -> dict[str, Any]:
    """Return the statistics as of the last operation, without reading the disk."""
    embedder, reranking, judging = shared.embedding.embedder, shared.reranker_runner, shared.judge_runner
    stored = shared.engine.figures()
    maintained_at = stored.pop("maintained_at", 0)
    return StatsTable(
        namespace=shared.engine.namespace,
        embedder=embedder.name,
        dimensions=embedder.dimensions,
        **stored,
        last_maintenance=from_milliseconds(maintained_at).isoformat() if maintained_at else None,
        embedding=attrs.asdict(shared.embedding.stats),
        **({} if reranking is None else {"reranking": attrs.asdict(reranking.stats)}),
        **({} if judging is None else {"judging": attrs.asdict(judging.stats)}),
    )
