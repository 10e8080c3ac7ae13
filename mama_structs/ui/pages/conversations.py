"""Conversations: their recalled memories, refs and large outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final
from urllib.parse import quote

import attrs
from aiohttp import web

from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.model import Memory
from mama_structs.refs.conversations.conversation_info import ConversationInfo
from mama_structs.refs.conversations.recall_log import RecallEvent
from mama_structs.refs.conversations.stored_conversation import StoredConversation
from mama_structs.refs.store.editing import make_unified_diff
from mama_structs.refs.store.entries import DamagedEntry, DeletedEntry, Descriptor, Entry, Ref, Slot
from mama_structs.session.recall_history import RecalledItem, read_recall_history
from mama_structs.ui.rendering import get_namespace, link_to, render
from mama_structs.ui.search_results import load_memories
from mama_structs.ui.workspace import WORKSPACE

PAGE_SIZE: Final = 50
"""Number of conversations, recalled memories or stored texts on a page."""
MAX_EVENTS: Final = 10
"""Number of times at which a memory was recalled that the page shows."""
MAX_DIFF_LINES: Final = 10_000
MAX_DIFF_CHARS: Final = 1_000_000
_HUNK_PATTERN: Final = re.compile(r"@@ -(\d+)\S* \+(\d+)\S* @@")
_UNSAFE_NAME_PATTERN: Final = re.compile(r"[^A-Za-z0-9_-]+")


@attrs.frozen(kw_only=True)
class _TextVersions:
    """All versions of a ref, or one large output. *versions* are the newest first."""

    name: str
    versions: tuple[_Version, ...]


@attrs.frozen(kw_only=True)
class _Version:
    """A version of a stored text. *entry* is None if it was deleted or is damaged."""

    handle: str
    number: int
    entry: Entry | None
    damage: str | None = None
    deleted_at: datetime | None = None
    previous: str | None = None


@attrs.frozen(kw_only=True)
class _ShownEvent:
    """
    A recall of a memory, and the passage that was shown; None if it is not known.

    *is_previous* is True if the passage is from a text that was corrected since then.
    """

    event: RecallEvent
    passage: str | None = None
    is_whole: bool = False
    is_previous: bool = False


@attrs.frozen(kw_only=True)
class _RecalledEntry:
    """
    A recalled memory, its last recalls, and the memory that replaces it.

    *missing* contains the ids of memories that were not found.
    """

    item: RecalledItem
    events: tuple[_ShownEvent, ...]
    missing: tuple[str, ...]
    successor: Memory | None


@attrs.frozen
class _DiffLine:
    """A line of a diff. *kind* is ``"added"``, ``"removed"``, ``"same"`` or ``"place"``."""

    kind: str
    text: str


def list_routes(*, is_writable: bool) -> list[web.RouteDef]:  # noqa: ARG001 - as the other pages
    """Return the routes of the page."""
    return [
        web.get("/conversations", show),
        web.get("/conversations/text", show_text),
        web.get("/conversations/diff", show_diff),
        web.get("/conversations/download", download),
    ]


async def show(request: web.Request) -> web.Response:
    """Show one conversation, or the list of all."""
    return await (_show_list(request) if request.query.get("name") is None else _show_conversation(request))


async def _show_list(request: web.Request) -> web.Response:
    namespace = get_namespace(request)
    workspace = request.app[WORKSPACE]
    session, home = workspace.session, workspace.session._shared.home
    # Changes of the last moments may not be on disk yet.
    await session.flush()
    found = await home.conversations(namespace)
    if namespace == session.namespace and session.conversation not in {one.name for one in found}:
        # A temporary session stores nothing, so its own conversation is not in the list.
        found = (*await _find_unstored(request), *found)
    start = _read_number(request, "start", 0)
    following = start + PAGE_SIZE
    links = [("First page", link_to("/conversations", namespace=namespace))] if start else []
    if following < len(found):
        links.append(("Next page", link_to("/conversations", namespace=namespace, start=following)))
    return await render(
        request, "conversations.html", shown=found[start:following], total=len(found), start=start, links=links
    )


async def _find_unstored(request: web.Request) -> list[ConversationInfo]:
    """Return the session's own conversation if it holds anything, but is not stored."""
    session = request.app[WORKSPACE].session
    try:
        stored = await session._shared.home.read_conversation(session.conversation, namespace=session.namespace)
    except InvalidArgument:
        return []
    return [stored.info] if stored.info.handle_count or stored.info.recalled_count else []


async def _show_conversation(request: web.Request) -> web.Response:
    namespace, stored = get_namespace(request), await _read_conversation(request)
    memories = await request.app[WORKSPACE].open_memories(namespace)
    recalled_start, texts_start = _read_number(request, "recalled", 0), _read_number(request, "texts", 0)
    history = await read_recall_history(memories, stored.recall_log, offset=recalled_start, limit=PAGE_SIZE)
    successors = await load_memories(memories, (one.successor_id for one in history.items if one.successor_id))
    texts = await run_in_own_thread(lambda: _group_texts(stored))
    here = {"name": stored.info.name, "namespace": namespace}
    page_of_texts = texts[texts_start : texts_start + PAGE_SIZE]
    recalled_links, text_links = [], []
    if recalled_start + PAGE_SIZE < history.total:
        recalled_links.append(
            ("Next page of memories", link_to("/conversations", **here, recalled=recalled_start + PAGE_SIZE))
        )
    if texts_start + PAGE_SIZE < len(texts):
        text_links.append(("Next page of texts", link_to("/conversations", **here, texts=texts_start + PAGE_SIZE)))
    return await render(
        request,
        "conversation.html",
        page="conversations",
        stored=stored,
        history=history,
        recalled=[_show_item(one, successors) for one in history.items],
        recalled_start=recalled_start,
        recalled_links=recalled_links,
        texts=page_of_texts,
        texts_start=texts_start,
        text_count=len(texts),
        text_links=text_links,
    )


async def show_text(request: web.Request) -> web.Response:
    """Show a page of a stored text."""
    stored = await _read_conversation(request)
    entry = stored.entries.find(_get_handle(request, "handle"))
    number = _read_number(request, "page", 1)
    text, page_count = None, 0
    if _is_text(entry):
        pages = await run_in_own_thread(lambda: entry.body.pages(entry.page_size))
        page_count = len(pages)
        start, end = pages.bounds(number, number)
        text = entry.body.text[start:end]
    texts = await run_in_own_thread(lambda: _group_texts(stored))
    versions = next(
        one.versions for one in texts if any(some.handle == entry.versioned_handle for some in one.versions)
    )
    here = {"name": stored.info.name, "namespace": get_namespace(request), "handle": entry.versioned_handle}
    around = [("Previous page", number - 1)] if number > 1 else []
    around += [("Next page", number + 1)] if number < page_count else []
    return await render(
        request,
        "conversation_text.html",
        page="conversations",
        stored=stored,
        entry=entry,
        is_ref=isinstance(entry, Ref),
        text=text,
        number=number,
        page_count=page_count,
        versions=versions,
        links=[(label, link_to("/conversations/text", **here, page=target)) for label, target in around],
    )


async def show_diff(request: web.Request) -> web.Response:
    """Show the differences between two stored texts."""
    stored = await _read_conversation(request)
    before, after = (stored.entries.find(_get_handle(request, name)) for name in ("before", "after"))
    if not (_is_text(before) and _is_text(after)):
        raise InvalidArgument("only texts can be compared", hint="download both files instead")
    if before.chars + after.chars > MAX_DIFF_CHARS or before.lines + after.lines > MAX_DIFF_LINES:
        raise InvalidArgument(
            f"the texts are too long to be compared here: the limit is {MAX_DIFF_CHARS:,} characters and"
            f" {MAX_DIFF_LINES:,} lines together",
            hint="download both versions, and compare the files",
        )
    lines = await run_in_own_thread(lambda: [*_parse_diff(make_unified_diff(before, after))])
    return await render(
        request,
        "conversation_diff.html",
        page="conversations",
        stored=stored,
        before=before,
        after=after,
        lines=lines,
    )


async def download(request: web.Request) -> web.Response:
    """Send a stored text or file as an attachment, which no browser shows as a page."""
    stored = await _read_conversation(request)
    entry = stored.entries.find(_get_handle(request, "handle"))
    is_text = _is_text(entry)
    data = await run_in_own_thread(lambda: entry.body.data if is_text else entry.content.data)
    name = f"{entry.versioned_handle.partition(':')[2] if isinstance(entry, Ref) else f'fd-{entry.number}'}"
    ending = "txt" if is_text else "bin"
    plain = _UNSAFE_NAME_PATTERN.sub("-", name).strip("-") or "text"
    # Most browsers use the second name, which has all characters of the id.
    disposition = f"attachment; filename=\"{plain}.{ending}\"; filename*=UTF-8''{quote(f'{name}.{ending}', safe='')}"
    return web.Response(
        body=data,
        content_type="text/plain" if is_text else "application/octet-stream",
        charset="utf-8" if is_text else None,
        headers={"Content-Disposition": disposition},
    )


async def _read_conversation(request: web.Request) -> StoredConversation:
    home = request.app[WORKSPACE].session._shared.home
    return await home.read_conversation(request.query.get("name", ""), namespace=get_namespace(request))


def _get_handle(request: web.Request, parameter: str) -> str:
    handle = request.query.get(parameter)
    if not handle:
        raise InvalidArgument(f"the address names no text: {parameter} is missing")
    return handle


def _read_number(request: web.Request, parameter: str, least: int) -> int:
    text = request.query.get(parameter, str(least))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):  # noqa: PLR2004
        raise InvalidArgument(f"{parameter} must be a number from {least}, got {text!r:.40}")
    return int(text)


def _is_text(entry: Entry) -> bool:
    return not isinstance(entry, Descriptor) or entry.is_text


def _group_texts(stored: StoredConversation) -> list[_TextVersions]:
    """Return the stored texts of a conversation by their names, the last used first."""
    order: dict[str, list[tuple[str, Slot]]] = {}
    for handle, slot in stored.entries.iter_slots():
        name = handle.partition("@")[0]
        # A new version moves its text to the end.
        slots = order.pop(name, [])
        slots.append((handle, slot))
        order[name] = slots
    return [_TextVersions(name=name, versions=_make_versions(some)) for name, some in reversed(order.items())]


def _make_versions(slots: list[tuple[str, Slot]]) -> tuple[_Version, ...]:
    versions: list[_Version] = []
    previous = None
    for handle, slot in slots:
        entry = slot if isinstance(slot, Ref | Descriptor) else None
        versions.append(
            _Version(
                handle=handle,
                number=int(handle.rpartition("@" if "@" in handle else ":")[2]),
                entry=entry,
                damage=slot.reason if isinstance(slot, DamagedEntry) else None,
                deleted_at=slot.at if isinstance(slot, DeletedEntry) else None,
                previous=previous if entry is not None and _is_text(entry) else None,
            )
        )
        if entry is not None and _is_text(entry):
            previous = handle
    return tuple(reversed(versions))


def _show_item(item: RecalledItem, successors: Mapping[str, Memory]) -> _RecalledEntry:
    known = {memory.id for memory in item.memories}
    return _RecalledEntry(
        item=item,
        events=tuple(_show_event(one, item.memories) for one in item.fact.events[:MAX_EVENTS]),
        missing=tuple(one for one in item.fact.ids if one not in known),
        successor=successors.get(item.successor_id or ""),
    )


def _show_event(event: RecallEvent, memories: Sequence[Memory]) -> _ShownEvent:
    at, shown = event.at, event.shown
    if len(memories) != 1 or shown is None or at is None:
        return _ShownEvent(event=event)
    (memory,) = memories
    previous = next((one for one in memory.previous_texts if at < one.until), None)
    content = memory.content if previous is None else previous.content
    if shown[1] > len(content):
        return _ShownEvent(event=event)
    return _ShownEvent(
        event=event,
        passage=content[slice(*shown)],
        is_whole=shown == (0, len(content)),
        is_previous=previous is not None,
    )


def _parse_diff(diff: str) -> Iterator[_DiffLine]:
    """Yield the lines of a unified diff without its header."""
    kinds = {"+": "added", "-": "removed", " ": "same"}
    for line in islice(diff.split("\n"), 2, None):
        if (place := _HUNK_PATTERN.match(line)) is not None:
            yield _DiffLine("place", f"from line {place[2]}")
        elif line[:1] in kinds:
            yield _DiffLine(kinds[line[0]], line[1:])
