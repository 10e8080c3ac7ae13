"""Content blocks, as MCP and providers have them: dicts with a type, of which some hold text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def text_of(block: dict[str, Any]) -> str | None:
    """Return the text of a block, None where it holds none."""
    text = block.get("text")
    return text if block["type"] == "text" and isinstance(text, str) else None


def joined(blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make one block of each run of texts, a line for each; what else the blocks said is that of the first."""
    made: list[dict[str, Any]] = []
    for block in blocks:
        text, before = text_of(block), text_of(made[-1]) if made else None
        if text is None or before is None:
            made.append(block)
        else:
            made[-1] = {**made[-1], "text": f"{before}\n{text}"}
    return made


def are_blocks(value: object) -> bool:
    """Tell whether a tool's result is a list of content blocks, as MCP and providers have them."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in value)
        and any(text_of(block) is not None for block in value)
    )
