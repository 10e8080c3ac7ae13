"""What a Google-style docstring says about each parameter."""

from __future__ import annotations

import inspect
import re

_HEADER = re.compile(r"(?:Args|Arguments):\s*")
_ENTRY = re.compile(r"\*{0,2}(?P<names>\w+(?:, *\w+)*)(?: *\([^)]*\))? *: *(?P<text>.*)")


def split_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """
    Part a docstring into its text without the ``Args:`` section, and that section's entries.

    Args:
        docstring: As written in the source, or None.

    Returns:
        The text, and for each parameter that the section names its description in one line.

    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    start = next((number for number, line in enumerate(lines) if _HEADER.fullmatch(line)), None)
    if start is None:
        return "\n".join(lines), {}
    end = next((n for n in range(start + 1, len(lines)) if lines[n] and not lines[n][0].isspace()), len(lines))
    before, after = "\n".join(lines[:start]).rstrip(), "\n".join(lines[end:]).strip()
    return "\n\n".join(part for part in (before, after) if part), _entries(lines[start + 1 : end])


def _entries(lines: list[str]) -> dict[str, str]:
    """Read ``name: text`` entries; a line that is indented further goes on with the entry above it."""
    texts: dict[str, list[str]] = {}
    current: list[str] = []
    block = inspect.cleandoc("\n".join(["", *lines])).splitlines()
    for line in block:
        entry = None if line[:1].isspace() else _ENTRY.fullmatch(line)
        if entry is None:
            current.append(line.strip())
        else:
            current = [entry["text"].strip()]
            texts.update(dict.fromkeys(re.split(r", *", entry["names"]), current))
    return {name: " ".join(part for part in parts if part) for name, parts in texts.items()}
