"""Topics: timelines and chains of decisions."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import attrs
import numpy as np
from aiohttp import web

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs._internal.validation import check_choice
from mama_structs.errors import InvalidArgument
from mama_structs.memory.graph.results import add_previews
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import Link, LinkType, Memory, from_milliseconds, is_outcome_reason
from mama_structs.ui.pictures import MAX_DRAWN, draw_chain
from mama_structs.ui.rendering import get_namespace, link_to, link_to_memory, render
from mama_structs.ui.workspace import WORKSPACE

_TOPICS_PER_PAGE: Final = 50
_MAX_PAGE: Final = 100_000
ORDERS: Final = {"recent": "Last saved first", "used": "Most memories first", "name": "By name"}


@attrs.frozen
class Topic:
    """A topic with the number of its memories, and when the newest one was saved."""

    name: str
    count: int
    last_at: datetime


@attrs.frozen(kw_only=True)
class TimelineEntry:
    """A memory of a topic, and the memories that it replaced or that replaced it, as ids and previews."""

    memory: Memory
    replaces: tuple[tuple[str, str], ...]
    replaced_by: tuple[tuple[str, str], ...]


def list_routes(*, is_writable: bool) -> list[web.RouteDef]:  # noqa: ARG001 - as the other pages
    """Return the routes of the page."""
    return [web.get("/topics", show)]


async def show(request: web.Request) -> web.Response:
    """Show the list of topics, or the timeline of one."""
    namespace = get_namespace(request)
    memories = await request.app[WORKSPACE].open_memories(namespace)
    topic = request.query.get("topic")
    return await (_show_list(request, memories) if not topic else _show_timeline(request, memories, topic))


async def _show_list(request: web.Request, memories: mama_structs.MemoryStore) -> web.Response:
    words, page = request.query.get("q", "").strip(), _read_page(request)
    order = check_choice("order", request.query.get("order", "recent"), ORDERS)
    topics = await memories._shared.read(_count_topics)
    if words:
        topics = [topic for topic in topics if words.casefold() in topic.name.casefold()]
    if order == "used":
        topics.sort(key=lambda topic: (-topic.count, topic.name))
    elif order == "name":
        topics.sort(key=lambda topic: topic.name.casefold())
    first = (page - 1) * _TOPICS_PER_PAGE
    own = {"namespace": memories.namespace, "q": words, "order": order if order != "recent" else None}
    pages = [
        (label, link_to("/topics", **own, page=number))
        for label, number in (("Previous page", page - 1), ("Next page", page + 1))
        if number > 0 and (number - 1) * _TOPICS_PER_PAGE < len(topics)
    ]
    return await render(
        request,
        "topics.html",
        topics=topics[first : first + _TOPICS_PER_PAGE],
        count=len(topics),
        order=order,
        orders=ORDERS,
        words=words,
        pages_links=pages,
    )


async def _show_timeline(request: web.Request, memories: mama_structs.MemoryStore, topic: str) -> web.Response:
    cursor = request.query.get("cursor")
    page = await memories.list(topic=topic, limit=MAX_DRAWN, cursor=cursor)
    count = await memories.count(topic=topic)
    if not count:
        return await render(request, "topic_missing.html", status=404, topic=topic)

    def plan(reader: Reader) -> tuple[list[Memory], tuple[Link, ...]]:
        return _load_chain(reader, [memory for memory in page if not is_outcome_reason(memory)])

    shown, links = await memories._shared.read(plan)
    next_page = link_to("/topics", topic=topic, namespace=memories.namespace, cursor=page.next_cursor)
    picture = draw_chain(
        shown,
        links,
        title=f"Memories of the topic {topic}",
        link_to=lambda memory: link_to_memory(memory.id, memory.namespace),
    )
    return await render(
        request,
        "topic.html",
        topic=topic,
        count=count,
        entries=[_make_entry(memory, links) for memory in shown],
        picture=picture,
        is_first_page=cursor is None,
        pages_links=[("Earlier memories", next_page)] if page.next_cursor else [],
    )


def _read_page(request: web.Request) -> int:
    given = request.query.get("page", "1")
    if not (given.isascii() and given.isdecimal() and len(given) < len(str(_MAX_PAGE)) and int(given)):
        raise InvalidArgument(f"page must be a number from 1 to {_MAX_PAGE - 1:,}")
    return int(given)


def _count_topics(reader: Reader) -> list[Topic]:
    """Return all topics, that with the newest memory first."""
    nodes = reader.window()
    attributes = reader.facts(nodes)
    has_topic = attributes.topics >= 0
    nodes, created = nodes[has_topic], attributes.created[has_topic]
    _, first, group, counts = np.unique(
        attributes.topics[has_topic], return_index=True, return_inverse=True, return_counts=True
    )
    newest = np.zeros(len(first), np.int64)
    np.maximum.at(newest, group, created)
    names = reader.topics(nodes[first])
    found = [
        Topic(name, count, from_milliseconds(at))
        for name, count, at in zip(names, counts.tolist(), newest.tolist(), strict=True)
        if name is not None
    ]
    return sorted(found, key=lambda topic: (topic.last_at, topic.name), reverse=True)


def _load_chain(reader: Reader, page: list[Memory]) -> tuple[list[Memory], tuple[Link, ...]]:
    """
    Return a page of a topic with the memories of other topics that replace them or that they replace, newest first.

    Also return the evolution links of the page with previews.
    """
    nodes = [node for node in reader.find_many([memory.id for memory in page]) if node is not None]
    every = {link.id: link for own in reader.links_of_many(nodes) for link in own}
    links = [link for link in every.values() if link.link_type is LinkType.EVOLUTION]
    known = {memory.id for memory in page}
    others = sorted({end for link in links for end in (link.from_id, link.to_id)} - known)
    topic = page[0].topic if page else None
    linked = reader.get([node for node in reader.find_many(others[:MAX_DRAWN]) if node is not None])
    # The others of this topic are on another page.
    shown = [*page, *(memory for memory in linked if memory.topic != topic)]
    return sorted(shown, key=lambda memory: memory.created_at, reverse=True), add_previews(reader, links)


def _make_entry(memory: Memory, links: tuple[Link, ...]) -> TimelineEntry:
    previews = [(link, link.endpoint_texts or (link.from_id, link.to_id)) for link in links]
    return TimelineEntry(
        memory=memory,
        replaces=tuple((link.to_id, older) for link, (_, older) in previews if link.from_id == memory.id),
        replaced_by=tuple((link.from_id, newer) for link, (newer, _) in previews if link.to_id == memory.id),
    )
