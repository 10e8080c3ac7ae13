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
from mama_structs._internal.reprs import plain, visible
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import LinkType, Memory
from mama_structs.storage.files import DraftFile

# Maximum characters of a text, links of a memory, and characters of all data. A browser needs some hundred MB for them.
_TEXT: Final = 4_000
_LINKS: Final = 12
_DATA: Final = 24_000_000
# Most informative link types first. Temporal links are omitted.
_ORDER: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION, LinkType.ASSOCIATION)
_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@attrs.frozen(kw_only=True)
class MemoryPage:
    """A page, the number of memories on it, and the total number."""

    text: str = attrs.field(repr=False)
    shown: int
    count: int

    def write(self, target: Path) -> None:
        """Write the page atomically."""
        draft = DraftFile(target)
        try:
            draft.write(self.text.encode())
            draft.publish()
        finally:
            draft.discard()


async def page_of(memories: mama_structs.MemoryStore, *, most: int) -> MemoryPage:
    """Return the page of the newest memories: at most *most*, within the data limit."""

    def plan(reader: Reader) -> tuple[list[Memory], list[list[Any]], int]:
        nodes = reader.window(limit=most)
        found = reader.get(nodes)
        at = {memory.id: number for number, memory in enumerate(found)}
        links = []
        for own in reader.links_of_many(nodes, "out"):
            told = sorted(
                (link for link in own if link.link_type in _ORDER), key=lambda link: _ORDER.index(link.link_type)
            )
            links += [
                [at[link.from_id], at[link.to_id], link.link_type.value, link.metadata.original_relationship[:40]]
                for link in told[:_LINKS]
                if link.to_id in at
            ]
        return found, links, reader.count()

    found, links, count = await memories._shared.read(plan)  # noqa: SLF001 - internal API for the CLI
    shown, size = [], 0
    for memory in found:
        shown.append(_told(memory))
        size += len(json.dumps(shown[-1]))
        if size > _DATA:
            break
    links = [link for link in links if link[0] < len(shown) and link[1] < len(shown)]
    note = f"{len(shown):,} of {count:,} memories of {memories.namespace!r}. Choose one."
    return MemoryPage(
        text=_written({"memories": shown, "links": links}, title=f"Memories of {memories.namespace}", note=note),
        shown=len(shown),
        count=count,
    )


def _told(memory: Memory) -> dict[str, str]:
    return {
        "id": memory.id,
        "type": memory.type.value,
        "topic": visible(memory.topic or ""),
        "text": plain(memory.content, _TEXT),
        "why": plain(getattr(memory.metadata, "reasoning", ""), _TEXT),
        "at": memory.created_at.isoformat(),
        "outcome": str(getattr(memory.metadata, "outcome", None) or ""),
        "origin": "" if memory.origin == "user" else f"from {memory.origin}",
    }


def _written(data: object, *, title: str, note: str) -> str:
    template = files("mama_structs.cli").joinpath("page.html").read_text(encoding="utf-8")
    allowed = {
        name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for name, text in _INLINE.findall(template)
    }
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{allowed['script']}'; style-src 'sha256-{allowed['style']}'"
    )
    # Escape <, > and &: the data cannot end its element then.
    safe = re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(data))
    parts = {"POLICY": policy, "TITLE": html.escape(title), "NOTE": html.escape(note), "DATA": safe}
    return re.sub(f"@({'|'.join(parts)})@", lambda found: parts[found[1]], template)
