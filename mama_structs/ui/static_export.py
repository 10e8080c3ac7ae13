"""Export of memories as one HTML file that works without a server and without a network."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import attrs
from markupsafe import Markup

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.memory.graph.results import add_previews
from mama_structs.memory.graph.traversal import load_answer_extras
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import Link, LinkType, Memory
from mama_structs.storage.files import DraftFile
from mama_structs.ui.embedder_status import search_with_fallback
from mama_structs.ui.memory_view import REASON_HEADING, find_link_heading
from mama_structs.ui.pictures import draw_chain
from mama_structs.ui.rendering import create_environment

# These limits bound the memory of the browser to a few hundred MB.
MAX_TEXT_CHARS: Final = 4_000
"""Maximum number of characters of one text in an export."""
_MAX_LINKS_PER_MEMORY: Final = 12
_MAX_DATA_CHARS: Final = 24_000_000
_MAX_PREVIOUS_TEXTS: Final = 20
# Markup of one memory without its texts.
_MARKUP_CHARS: Final = 700
_PAGE_MEMORIES: Final = 500


@attrs.frozen(kw_only=True)
class StaticExport:
    """
    An HTML page.

    Args:
        text: The page.
        count: Number of memories on it.
        total: Number of memories that satisfy the conditions.
        notice: Why a query was searched by words only, or None.

    """

    text: str = attrs.field(repr=False)
    count: int
    total: int
    notice: str | None

    def write(self, target: Path) -> None:
        """Write the page atomically."""
        draft = DraftFile(target)
        try:
            draft.write(self.text.encode("utf-8", "replace"))
            draft.publish()
        finally:
            draft.discard()


@attrs.frozen
class ExportedLink:
    """A link as seen from a memory: its words, and the id and the beginning of the text of the other memory."""

    heading: str
    other_id: str
    other_text: str


@attrs.frozen
class ExportedMemory:
    """A memory with its current replacement and its links."""

    memory: Memory
    replaced_by: Memory | None
    links: tuple[ExportedLink, ...]


@attrs.frozen
class ExportedTopic:
    """The memories of a topic, newest first. The picture is None if no memory replaces another."""

    name: str
    memories: tuple[ExportedMemory, ...]
    picture: Markup | None


async def create_export(
    memories: mama_structs.MemoryStore, *, where: mama_structs.Filter, query: str | None, limit: int
) -> StaticExport:
    """
    Return a page of memories, or of fewer if they exceed the data limit.

    Args:
        memories: The memories.
        where: Conditions.
        query: A query whose results are exported, best first; None for the newest memories.
        limit: Maximum number of memories.

    Raises:
        InvalidArgument: The query is empty.

    """
    notice = None
    found: Sequence[Memory]
    if query is None:
        found = await memories.list(where=where, limit=limit)
    else:
        hits, notice = await search_with_fallback(memories, lambda store: store.search(query, where=where, limit=limit))
        found = [hit.memory for hit in hits]
    shown = [*_limit_size(found)]
    exported, links = await _load_links(memories, shown)
    total = await memories.count(where=where)
    text = await run_in_own_thread(
        lambda: _render(
            exported,
            _group_topics(exported, links),
            namespace=memories.namespace,
            query=query,
            total=total,
            now=memories._shared.now,
        )
    )
    return StaticExport(text=text, count=len(shown), total=total, notice=notice)


def _limit_size(memories: Sequence[Memory]) -> Iterator[Memory]:
    """Yield memories until their texts exceed the data limit."""
    size = 0
    for memory in memories:
        texts = (memory.content, memory.reasoning or "", *(one.content for one in memory.previous_texts))
        size += _MARKUP_CHARS + sum(min(len(text), MAX_TEXT_CHARS) for text in texts)
        if size > _MAX_DATA_CHARS:
            return
        yield memory


async def _load_links(
    memories: mama_structs.MemoryStore, shown: Sequence[Memory]
) -> tuple[list[ExportedMemory], list[Link]]:
    """Return the memories with their links, and all links between versions of decisions."""
    exported: list[ExportedMemory] = []
    replacements: list[Link] = []
    for start in range(0, len(shown), _PAGE_MEMORIES):
        page = shown[start : start + _PAGE_MEMORIES]
        found, links = await memories._shared.read(functools.partial(_read_links, page=page))
        exported += found
        replacements += links
    return exported, replacements


def _read_links(reader: Reader, page: Sequence[Memory]) -> tuple[list[ExportedMemory], list[Link]]:
    extras = load_answer_extras(reader, [memory.id for memory in page])
    chosen = {name: _choose_links(found.links) for name, found in extras.items()}
    with_texts = iter(add_previews(reader, [link for links in chosen.values() for link in links]))
    described = {
        name: tuple(_describe_link(next(with_texts), memory_id=name) for _ in links) for name, links in chosen.items()
    }
    # A reason of an outcome is true also if its decision is replaced.
    replaced_by = {name: found.superseded_by for name, found in extras.items() if found.outcome_of is None}
    return [ExportedMemory(memory, replaced_by.get(memory.id), described.get(memory.id, ())) for memory in page], [
        link for links in chosen.values() for link in links if link.link_type is LinkType.EVOLUTION
    ]


def _choose_links(links: Sequence[Link]) -> list[Link]:
    """Return the most informative links: replacements, then links of users and models, then automatic ones."""
    order = [LinkType.EVOLUTION, LinkType.IMPLEMENTATION, LinkType.ASSOCIATION]
    informative = [link for link in links if link.link_type in order]
    informative.sort(key=lambda link: (link.created_by == "system", order.index(link.link_type)))
    return informative[:_MAX_LINKS_PER_MEMORY]


def _describe_link(link: Link, *, memory_id: str) -> ExportedLink:
    is_out = link.from_id == memory_id
    texts = link.endpoint_texts or (link.from_id, link.to_id)
    other_id, other_text = (link.to_id, texts[1]) if is_out else (link.from_id, texts[0])
    return ExportedLink(find_link_heading(link, is_out=is_out), other_id, other_text)


def _group_topics(exported: Sequence[ExportedMemory], links: Sequence[Link]) -> list[ExportedTopic]:
    """Return the topics with at least two memories, by name."""
    groups: dict[str, list[ExportedMemory]] = {}
    for one in exported:
        if one.memory.topic is not None:
            groups.setdefault(one.memory.topic, []).append(one)
    links_by_end: dict[str, list[Link]] = {}
    for link in links:
        links_by_end.setdefault(link.from_id, []).append(link)
    topics = []
    for name in sorted(name for name, group in groups.items() if len(group) > 1):
        group = sorted(groups[name], key=lambda one: one.memory.created_at, reverse=True)
        ids = {one.memory.id for one in group}
        own = {link.id: link for one in ids for link in links_by_end.get(one, ()) if link.to_id in ids}
        picture = None
        if own:
            drawn = [one.memory for one in group]
            picture = draw_chain(
                drawn, own.values(), title=f"Timeline of {name}", link_to=lambda one: _link_to_memory(one.id)
            )
        topics.append(ExportedTopic(name, tuple(group), picture))
    return topics


def _link_to_memory(memory_id: str) -> str:
    return f"#memory-{quote(memory_id, safe='', errors='replace')}"


def _render(
    exported: Sequence[ExportedMemory],
    topics: Sequence[ExportedTopic],
    *,
    namespace: str,
    query: str | None,
    total: int,
    now: datetime,
) -> str:
    style, script = _read_static("site.css"), _read_static("export.js")
    ids = {one.memory.id for one in exported}
    topic_links = {topic.name: f"#topic-{number}" for number, topic in enumerate(topics, 1)}
    environment = create_environment().overlay()
    # Links are anchors of the same file.
    environment.globals = {
        **environment.globals,
        "link_to_memory": lambda memory_id, _: _link_to_memory(memory_id) if memory_id in ids else None,
        "link_to_topic": lambda topic, _: topic_links.get(topic),
        "REASON_HEADING": REASON_HEADING,
        "MAX_TEXT_CHARS": MAX_TEXT_CHARS,
        "MAX_PREVIOUS_TEXTS": _MAX_PREVIOUS_TEXTS,
    }
    values: Mapping[str, Any] = {
        "policy": (
            "default-src 'none'; base-uri 'none'; form-action 'none'; "
            f"script-src 'sha256-{_hash(script)}'; style-src 'sha256-{_hash(style)}'"
        ),
        # The static files of the package contain no end tags.
        "style": Markup(style),  # noqa: S704
        "script": Markup(script),  # noqa: S704
        "exported": exported,
        "topics": topics,
        "types": sorted({one.memory.type.value for one in exported}),
        "outcomes": sorted({one.memory.outcome.value for one in exported if one.memory.outcome}),
        "namespace": namespace,
        "query": query,
        "total": total,
        "now": now,
    }
    return environment.get_template("export.html").render(values)


def _read_static(name: str) -> str:
    return files("mama_structs.ui").joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
