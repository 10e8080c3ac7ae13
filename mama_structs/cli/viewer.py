"""HTML page that shows memories offline in a browser and treats their texts as untrusted."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import attrs

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs._internal.reprs import escape_unprintable, truncate_text
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import LinkType, Memory
from mama_structs.storage.files import DraftFile

# These limits bound the memory of the browser to a few hundred MB.
_MAX_TEXT_CHARS: Final = 4_000
_MAX_LINKS_PER_MEMORY: Final = 12
_MAX_DATA_CHARS: Final = 24_000_000
# Link types that the page shows, the most informative first. Temporal links are omitted.
_LINK_TYPE_ORDER: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION, LinkType.ASSOCIATION)
_INLINE_PATTERN: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@attrs.frozen(kw_only=True)
class MemoryPage:
    """An HTML page, the number of memories on it, and the number of memories in the namespace."""

    text: str = attrs.field(repr=False)
    shown_count: int
    count: int

    def write(self, target: Path) -> None:
        """Write the page atomically."""
        draft = DraftFile(target)
        try:
            draft.write(self.text.encode())
            draft.publish()
        finally:
            draft.discard()


async def create_page(memories: mama_structs.MemoryStore, *, limit: int) -> MemoryPage:
    """Return a page of the newest *limit* memories, or fewer if they exceed the data limit."""

    def plan(reader: Reader) -> tuple[list[Memory], list[list[Any]], int]:
        nodes = reader.window(limit=limit)
        found = reader.get(nodes)
        at = {memory.id: number for number, memory in enumerate(found)}
        links = []
        for own in reader.links_of_many(nodes, "out"):
            told = sorted(
                (link for link in own if link.link_type in _LINK_TYPE_ORDER),
                key=lambda link: _LINK_TYPE_ORDER.index(link.link_type),
            )
            links += [
                [at[link.from_id], at[link.to_id], link.link_type.value, link.metadata.original_relationship[:40]]
                for link in told[:_MAX_LINKS_PER_MEMORY]
                if link.to_id in at
            ]
        return found, links, reader.count()

    found, links, count = await memories._shared.read(plan)
    shown, size = [], 0
    for memory in found:
        shown.append(_create_entry(memory))
        size += len(json.dumps(shown[-1]))
        if size > _MAX_DATA_CHARS:
            break
    links = [link for link in links if link[0] < len(shown) and link[1] < len(shown)]
    note = f"{len(shown):,} of {count:,} memories of {memories.namespace!r}. Choose one."
    return MemoryPage(
        text=_render_page({"memories": shown, "links": links}, title=f"Memories of {memories.namespace}", note=note),
        shown_count=len(shown),
        count=count,
    )


def _create_entry(memory: Memory) -> dict[str, str]:
    return {
        "id": memory.id,
        "type": memory.type.value,
        "topic": escape_unprintable(memory.topic or ""),
        "text": truncate_text(memory.content, _MAX_TEXT_CHARS),
        "why": truncate_text(getattr(memory.metadata, "reasoning", ""), _MAX_TEXT_CHARS),
        "at": memory.created_at.isoformat(),
        "outcome": str(getattr(memory.metadata, "outcome", None) or ""),
        "origin": "" if memory.origin == "user" else f"from {memory.origin}",
    }


def _render_page(data: object, *, title: str, note: str) -> str:
    template = files("mama_structs.cli").joinpath("page.html").read_text(encoding="utf-8")
    allowed = {
        name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for name, text in _INLINE_PATTERN.findall(template)
    }
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{allowed['script']}'; style-src 'sha256-{allowed['style']}'"
    )
    # Escape <, > and &, so that the data cannot close the HTML element that contains it.
    safe = re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(data))
    parts = {"POLICY": policy, "TITLE": html.escape(title), "NOTE": html.escape(note), "DATA": safe}
    return re.sub(f"@({'|'.join(parts)})@", lambda found: parts[found[1]], template)
