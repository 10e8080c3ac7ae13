"""
The cost of migrating a v1.0 database, compared with embedding the same texts.

Generated histories of 1,000 and 10,000 decisions are migrated into new stores.
The targets are 1,000 memories in less than 60 s, and 10,000 with at most 1.5 times the time per memory.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
from _common import arguments, report

from mama_structs.importers import migrate_v1, read_v1, rollback_v1
from mama_structs.importers.mama_v1.migration_plan import build_plan
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.factory import default_embedder
from mama_structs.memory.types.text_analysis import embedded_text
from mama_structs.session.session import Session

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from mama_v1_0 import OldStore

SIZES, QUICK = (1_000, 10_000), (5, 10)


async def measured(decisions: int) -> dict[str, Any]:
    """Time the migration of a generated history, and its rollback."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.db"
        with OldStore.made(path, wal=True) as old:
            old.history(decisions)
        read = read_v1(path)
        plan = build_plan(read, namespace="default", max_content=1_000_000)
        texts = [embedded_text(one.memory) for one in plan.planned]
        embedder = default_embedder()
        service = EmbeddingService(embedder, cache_entries=0)
        started = time.perf_counter()
        await service.embed_documents(texts)
        embedding = time.perf_counter() - started
        await service.close()
        phases: list[tuple[float, int]] = []
        async with Session.open(Path(folder) / "new", embedder=default_embedder()) as session:
            started, worked = time.perf_counter(), time.process_time()
            done = await migrate_v1(
                session.memories, path, progress=lambda at, _: phases.append((time.perf_counter() - started, at))
            )
            seconds, worked = time.perf_counter() - started, time.process_time() - worked
            memories = len(plan.planned)
            written = next(at for at, steps in phases if steps >= memories)
            started = time.perf_counter()
            await migrate_v1(session.memories, path)
            again = time.perf_counter() - started
            started = time.perf_counter()
            await rollback_v1(session.memories)
            undone = time.perf_counter() - started
        return {
            "embedder": embedder.name,
            "decisions": decisions,
            "memories": memories,
            "seconds": seconds,
            "rate": memories / seconds,
            "cpu_milliseconds": 1000 * worked / memories,
            "embedding_seconds": embedding,
            "embedding_rate": memories / embedding,
            "memories_seconds": written,
            "links_seconds": seconds - written,
            "again_seconds": again,
            "rollback_seconds": undone,
            "backfilled_average": done.backfilled_average,
            "backfilled_most": done.backfilled_most,
            "links": attrs.asdict(done)["backfilled"],
        }


def main() -> None:
    """Print and write the figures."""
    options = arguments(__doc__.splitlines()[1])
    figures = [asyncio.run(measured(size)) for size in (QUICK if options.quick else SIZES)]
    rows = [
        [
            f"{one['decisions']:,}",
            f"{one['memories']:,}",
            f"{one['seconds']:.1f}",
            f"{one['rate']:.0f}",
            f"{one['cpu_milliseconds']:.1f}",
            f"{one['embedding_rate']:.0f}",
            f"{one['memories_seconds']:.1f}",
            f"{one['links_seconds']:.1f}",
            f"{one['again_seconds']:.1f}",
            f"{one['rollback_seconds']:.1f}",
            f"{one['backfilled_average']:.1f}",
        ]
        for one in figures
    ]
    header = [
        "decisions",
        "memories",
        "s",
        "memories/s",
        "CPU ms each",
        "only embedded/s",
        "s for memories",
        "s for links",
        "s again",
        "s back",
        "links a memory",
    ]
    report(
        "migration",
        f"Migration from v1.0 ({figures[0]['embedder']})",
        header,
        rows,
        figures=figures,
        folder=options.results,
        words=0,
    )


if __name__ == "__main__":
    main()
