"""Search page: results of a query, or the newest memories, with conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs.errors import InvalidArgument, MemoryNotFound
from mama_structs.memory.types.model import MemoryType
from mama_structs.ui.embedder_status import get_embedder_status, search_with_fallback
from mama_structs.ui.rendering import get_namespace, link_to, read_number, render
from mama_structs.ui.search_form import SearchForm
from mama_structs.ui.search_results import (
    ShownExplanation,
    ShownMemory,
    describe_explanation,
    describe_hits,
    describe_memories,
)
from mama_structs.ui.workspace import WORKSPACE

PAGE_SIZE: Final = 20
"""Number of memories on a page."""
WEAK_PERCENT: Final = 5
"""Results below this relevance, in percent, are shown as weak matches."""
MAX_HITS: Final = 100
"""Maximum number of results of a query."""
# Pages without a current memory that a list without outdated memories skips per request.
_MAX_SKIPPED_PAGES: Final = 50


def list_routes(*, is_writable: bool) -> list[web.RouteDef]:  # noqa: ARG001 - as the other pages
    """Return the routes of the page."""
    return [web.get("/search", show)]


async def show(request: web.Request) -> web.Response:
    """Show the results of the query, or without a query a page of the newest memories."""
    namespace, form = get_namespace(request), SearchForm.read(request.query)
    memories = await request.app[WORKSPACE].open_memories(namespace)
    here: dict[str, Any] = {**form.fields, "namespace": namespace}
    links, failure, missing = [], None, None
    explanation: ShownExplanation | None = None
    total = None
    if form.q is None:
        shown, cursor = await _list_page(memories, form, request.query.get("cursor") or None)
        total = await memories.count(where=form.where)
        if request.query.get("cursor"):
            links.append(("First page", link_to("/search", **here)))
        if cursor is not None:
            links.append(("Next page", link_to("/search", **here, cursor=cursor)))
    else:
        limit = read_number(request, "limit", default=PAGE_SIZE, most=MAX_HITS)
        arguments: dict[str, Any] = {
            "where": form.where,
            "limit": limit,
            "superseded": "exclude" if form.outdated == "no" else "demote",
        }
        hits, failure = await search_with_fallback(memories, lambda store: store.search(form.q or "", **arguments))
        shown = await describe_hits(memories, hits)
        if len(hits) == limit < MAX_HITS:
            links.append(("More results", link_to("/search", **here, limit=min(limit + 2 * PAGE_SIZE, MAX_HITS))))
        if name := request.query.get("explain", "").strip():
            try:
                explained, _ = await search_with_fallback(
                    memories, lambda store: store.explain(form.q or "", name, **arguments)
                )
                explanation = await describe_explanation(memories, explained, form)
            except (MemoryNotFound, InvalidArgument) as error:
                missing = str(error.args[0] if error.args else error)
    return await render(
        request,
        "search.html",
        form=form,
        shown=shown,
        weak_from=_count_before_weak(shown),
        WEAK_PERCENT=WEAK_PERCENT,
        total=total,
        links=links,
        failure=failure,
        embedder=get_embedder_status(memories),
        explained_id=request.query.get("explain", ""),
        explanation=explanation,
        missing=missing,
        types=[(kind.value, kind.value) for kind in MemoryType],
    )


def _count_before_weak(shown: Sequence[ShownMemory]) -> int:
    """Return the number of results before the trailing weak matches."""
    return max((n for n, one in enumerate(shown, 1) if (one.relevance or 0) >= WEAK_PERCENT), default=0)


async def _list_page(
    memories: mama_structs.MemoryStore, form: SearchForm, cursor: str | None
) -> tuple[list[ShownMemory], str | None]:
    """Return a page of the newest memories, and the cursor of the next page."""
    for _ in range(_MAX_SKIPPED_PAGES):
        page = await memories.list(where=form.where, limit=PAGE_SIZE, cursor=cursor)
        shown, cursor = await describe_memories(memories, page), page.next_cursor
        if form.outdated == "no":
            shown = [one for one in shown if one.replaced_by is None]
        if shown or cursor is None:
            break
    return shown, cursor
