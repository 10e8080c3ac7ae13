"""Page of one memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from mama_structs._internal.reprs import format_count
from mama_structs.errors import InvalidArgument, MemoryNotFound
from mama_structs.memory.types.model import DecisionMetadata, MemoryType, RecordMetadata, is_id
from mama_structs.ui.form_receipts import make_form_id
from mama_structs.ui.memory_view import LINKS_PER_PAGE, PLAIN_RELATIONSHIPS, TEXTS_PER_PAGE, MemoryView, load_view
from mama_structs.ui.rendering import get_namespace, link_to, render
from mama_structs.ui.workspace import WORKSPACE

CREATOR_WORDS: Final = {"user": "the user", "llm": "a model", "system": "this program, automatically"}
_MAX_CONFLICTS: Final = 10
_MAX_OUTCOMES: Final = 50
_MAX_OFFSET: Final = 1_000_000


def list_routes(*, is_writable: bool) -> list[web.RouteDef]:  # noqa: ARG001 - as the other pages
    """Return the routes of the page."""
    return [web.get("/memory", show)]


async def show(request: web.Request) -> web.Response:
    """Show a memory, or suggest ids that are spelled like an unknown one."""
    memory_id, namespace = read_id(request.query), get_namespace(request)
    first_link, first_text = _read_offset(request, "links"), _read_offset(request, "texts")
    memories = await request.app[WORKSPACE].open_memories(namespace)
    try:
        view = await load_view(memories, memory_id, first_link=first_link, first_text=first_text)
    except MemoryNotFound as error:
        return await render(
            request, "memory_missing.html", path="/", status=404, message=str(error.args[0]), nearest=error.nearest
        )
    data = view.memory.to_dict()["metadata"]
    return await render(
        request,
        "memory.html",
        path="/",
        view=view,
        memory=view.memory,
        link_pages=_list_pages(view, "links", first_link, LINKS_PER_PAGE, view.link_count),
        text_pages=_list_pages(view, "texts", first_text, TEXTS_PER_PAGE, len(view.memory.previous_texts)),
        is_current=view.replaced_by is None,
        facts=_list_facts(view),
        extra=_format_json(data["extra"]) if data.get("extra") else None,
        record_value=_format_json(data.get("value")) if view.memory.type is MemoryType.RECORD else None,
        history=_list_history(view.memory.metadata),
        is_memory_id=is_id,
        make_form_id=make_form_id,
        CREATOR_WORDS=CREATOR_WORDS,
        PLAIN_RELATIONSHIPS=PLAIN_RELATIONSHIPS,
        MAX_CONFLICTS=_MAX_CONFLICTS,
        MAX_OUTCOMES=_MAX_OUTCOMES,
    )


def read_id(fields: Mapping[str, Any]) -> str:
    """
    Return the id of a memory from the fields of a request.

    Raises:
        InvalidArgument: The id is missing.

    """
    memory_id = fields.get("id")
    if not isinstance(memory_id, str) or not memory_id:
        raise InvalidArgument("the address has no id of a memory", hint="open a memory from the search or a topic")
    return memory_id


def _read_offset(request: web.Request, name: str) -> int:
    given = request.query.get(name, "0")
    if not (given.isascii() and given.isdecimal() and int(given[:9]) <= _MAX_OFFSET):
        raise InvalidArgument(f"{name} must be a number from 0 to {_MAX_OFFSET:,}")
    return int(given[:9])


def _list_pages(view: MemoryView, name: str, first: int, size: int, count: int) -> list[tuple[str, str]]:
    """Return labels and addresses of the previous and the next page of links or texts."""
    pages = []
    for label, offset in (("Previous page", max(first - size, 0)), ("Next page", first + size)):
        if offset != first and offset < max(count, 1):
            target = link_to("/memory", id=view.memory.id, namespace=view.memory.namespace, **{name: offset})
            pages.append((label, f"{target}#{name}"))
    return pages


def _list_facts(view: MemoryView) -> list[tuple[str, str]]:
    """Return the names and values of the optional facts that are single texts."""
    memory, metadata = view.memory, view.memory.metadata
    facts = []
    if isinstance(metadata, DecisionMetadata):
        facts.append(("Confidence", f"{metadata.confidence:.0%}"))
    facts += [
        (label, value)
        for label, name in (("Category", "category"), ("Source", "source"), ("Key", "key"))
        if (value := getattr(metadata, name, None))
    ]
    facts += [
        (label, ", ".join(values))
        for label, values in (
            ("Tags", memory.tags),
            ("Labels", getattr(metadata, "labels", ())),
            ("Names in its text", memory.mentions),
        )
        if values
    ]
    if isinstance(metadata, RecordMetadata):
        facts.append(("Written", format_count(metadata.version, "time")))
    return facts


def _list_history(metadata: object) -> tuple[Any, ...]:
    return tuple(reversed(metadata.history)) if isinstance(metadata, DecisionMetadata) else ()


def _format_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
