"""Overview: figures of the store, its health, and the memories that wait for a person."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.memory.store import maintenance
from mama_structs.storage.sqlite_errors import CheckReport
from mama_structs.ui.embedder_status import get_embedder_status
from mama_structs.ui.rendering import get_namespace, read_number, render
from mama_structs.ui.search_results import describe_memories
from mama_structs.ui.statistics import compute_statistics, measure_directory
from mama_structs.ui.workspace import WORKSPACE, Workspace

_SHOWN_CONFLICTS: Final = 10
_MAX_SHOWN_CONFLICTS: Final = 500
_MAX_NEWEST: Final = 5
# Counting opens a namespace, which loads its indexes.
_MAX_COUNTED_NAMESPACES: Final = 20


def list_routes(*, is_writable: bool) -> list[web.RouteDef]:  # noqa: ARG001 - as the other pages
    """Return the routes of the page."""
    return [web.get("/", show)]


async def show(request: web.Request) -> web.Response:
    """Show the page. With ``check=1``, check the store first, which reads all of it."""
    workspace, namespace = request.app[WORKSPACE], get_namespace(request)
    memories = await workspace.open_memories(namespace)
    shared = memories._shared
    location = workspace.session.location
    statistics = await shared.read(partial(compute_statistics, now=shared.now))
    limit = read_number(request, "conflicts", default=_SHOWN_CONFLICTS, most=_MAX_SHOWN_CONFLICTS)
    conflicts = await memories.conflicts(limit=limit + 1)
    report = None
    if request.query.get("check"):
        found = [*await workspace.session._shared.home.check(), *await maintenance.check(shared, None)]
        report = CheckReport(tuple(found))
    figures = await memories.stats()
    maintained_at = figures["last_maintenance"]
    return await render(
        request,
        "overview.html",
        last_maintenance=None if maintained_at is None else datetime.fromisoformat(maintained_at),
        statistics=statistics,
        figures=figures,
        size=await run_in_own_thread(partial(measure_directory, location)) if isinstance(location, Path) else None,
        embedder=get_embedder_status(memories),
        conflicts=conflicts[:limit],
        has_more_conflicts=len(conflicts) > limit,
        more_conflicts=min(limit * 5, _MAX_SHOWN_CONFLICTS) if limit < _MAX_SHOWN_CONFLICTS else None,
        newest=await describe_memories(memories, await memories.list(limit=_MAX_NEWEST)),
        checkpoint=await memories.latest_checkpoint(),
        counts_by_namespace=await _count_by_namespace(workspace),
        report=report,
    )


async def _count_by_namespace(workspace: Workspace) -> list[tuple[str, Any]]:
    """Return the names of the namespaces, each with its number of memories, or None beyond the first ones."""
    names = await workspace.list_namespaces()
    if len(names) == 1:
        return []
    counted = [(name, await (await workspace.open_memories(name)).count()) for name in names[:_MAX_COUNTED_NAMESPACES]]
    return [*counted, *((name, None) for name in names[_MAX_COUNTED_NAMESPACES:])]
