"""Records pages: labels and records below them, a search, and one record with its versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import attrs
from aiohttp import web
from markupsafe import Markup

from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs._internal.jsonable import to_jsonable
from mama_structs.errors import EmbeddingFailed
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.types.record import Record
from mama_structs.ui.rendering import get_namespace, link_to, render
from mama_structs.ui.text_diff import show_difference
from mama_structs.ui.workspace import WORKSPACE

PAGE_SIZE: Final = 50
"""Number of labels, and of records, on a page."""
_MAX_HITS: Final = 20
_MAX_VERSIONS: Final = 20
_MAX_PREVIEW_CHARS: Final = 160
# Longer values are shown without a comparison with their previous version.
_MAX_COMPARED_CHARS: Final = 100_000


@attrs.frozen
class ShownRecord:
    """A record in a list, with the beginning of its value and its relevance in percent."""

    record: Record
    preview: str
    relevance: int | None = None


@attrs.frozen
class ShownVersion:
    """A version of a record, with its value as text, or its difference to the version before."""

    record: Record
    text: str
    difference: Markup | None


def list_routes(*, is_writable: bool) -> list[web.RouteDef]:  # noqa: ARG001 - as the other pages
    """Return the routes of the pages."""
    return [web.get("/records", show), web.get("/record", show_record), web.get("/record.json", download_record)]


async def show(request: web.Request) -> web.Response:
    """Show the labels and the records below some labels, or the results of a search below them."""
    namespace, labels = get_namespace(request), tuple(request.query.getall("label", []))
    records = await request.app[WORKSPACE].open_records(namespace)
    query = request.query.get("q", "").strip()
    here: dict[str, Any] = {"label": labels, "namespace": namespace}
    values: dict[str, Any] = {"labels": labels, "query": query, "children": [], "links": [], "failure": None}
    if query:
        try:
            hits = await records.search(query, labels, limit=_MAX_HITS)
            values["shown"] = [
                ShownRecord(hit.record, _preview(hit.record), round(100 * hit.relevance)) for hit in hits
            ]
        except EmbeddingFailed as error:
            values["shown"], values["failure"] = [], str(error.args[0] if error.args else error)
        return await render(request, "records.html", **values)
    values["children"], following = _list_children(
        await records.labels(labels), len(labels), request.query.get("after") or None
    )
    if following is not None:
        values["links"].append(("Further labels", link_to("/records", **here, after=following)))
    cursor = request.query.get("cursor") or None
    page = await records.list(labels, nested=False, limit=PAGE_SIZE, cursor=cursor)
    values["shown"] = [ShownRecord(record, _preview(record)) for record in page]
    if page.next_cursor is not None:
        values["links"].append(("Further records", link_to("/records", **here, cursor=page.next_cursor)))
    if request.query.get("after") or cursor:
        values["links"].insert(0, ("First page", link_to("/records", **here)))
    return await render(request, "records.html", **values)


async def show_record(request: web.Request) -> web.Response:
    """Show one record with its versions."""
    labels, key, versions = await _read_versions(request)
    if not versions:
        return await render(
            request,
            "error.html",
            status=404,
            title="No such record",
            message=f"No record has the key {key} under these labels. It may have been deleted, or may have expired.",
            hint=None,
        )
    shown = await run_in_own_thread(partial(_compare_versions, versions[: _MAX_VERSIONS + 1]))
    return await render(
        request,
        "record.html",
        page="records",
        labels=labels,
        key=key,
        record=versions[0],
        value=shown[0].text,
        versions=shown[:_MAX_VERSIONS],
        omitted=max(len(versions) - _MAX_VERSIONS, 0),
    )


async def download_record(request: web.Request) -> web.Response:
    """Send a record and its former versions as JSON."""
    _, _, versions = await _read_versions(request)
    if not versions:
        raise web.HTTPNotFound
    text = await run_in_own_thread(lambda: json.dumps(to_jsonable(list(versions)), indent=2))
    headers = {"Content-Disposition": 'attachment; filename="record.json"'}
    return web.Response(text=text, content_type="application/json", headers=headers)


async def _read_versions(request: web.Request) -> tuple[tuple[str, ...], str, Sequence[Record]]:
    """Return the labels, the key and the versions of the record that a request names, newest first."""
    labels, key = tuple(request.query.getall("label", [])), request.query.get("key", "")
    records: RecordStore = await request.app[WORKSPACE].open_records(get_namespace(request))
    return labels, key, await records.history(labels, key)


def _list_children(labels: Sequence[tuple[str, ...]], depth: int, after: str | None) -> tuple[list[str], str | None]:
    """Return a page of the labels at a depth, and the last of them if another page follows."""
    names = list(dict.fromkeys(one[depth] for one in labels if len(one) > depth))
    start = names.index(after) + 1 if after in names else 0
    page = names[start : start + PAGE_SIZE]
    return page, page[-1] if start + PAGE_SIZE < len(names) else None


def _preview(record: Record) -> str:
    """Return the beginning of a record's text or value, without encoding the whole value."""
    if record.text is not None:
        return record.text
    text = ""
    for chunk in json.JSONEncoder(ensure_ascii=False).iterencode(record.value):
        text += chunk
        if len(text) > _MAX_PREVIEW_CHARS:
            break
    return text


def _compare_versions(versions: Sequence[Record]) -> list[ShownVersion]:
    texts = [json.dumps(one.value, ensure_ascii=False, indent=2) for one in versions]
    shown = []
    for record, (new, old) in zip(versions, pairwise([*texts, ""]), strict=True):
        is_compared = record is not versions[-1] and max(len(new), len(old)) <= _MAX_COMPARED_CHARS
        shown.append(ShownVersion(record, new, show_difference(old, new) if is_compared else None))
    return shown
