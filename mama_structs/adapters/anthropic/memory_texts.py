"""Answer texts of Anthropic's memory tool, in the exact wording that Claude was trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Final

_MAX_LINES: Final = 999_999
_LINE_NUMBER_WIDTH: Final = len(str(_MAX_LINES))
_MAX_LISTING_DEPTH: Final = 2
# Maximum number of line numbers in the error about a text that occurs several times.
_MAX_REPORTED_LINES: Final = 100


class FileError(Exception):
    """
    An error whose text is sent to the model.

    Unlike other errors of this package it may quote the model's input.
    """


def format_content(path: str, text: str, view_range: object) -> str:
    """Format a file with line numbers: all lines, or *view_range* (-1 is the last line)."""
    lines = text.split("\n")
    if len(lines) > _MAX_LINES:
        raise FileError(f"File {path} exceeds maximum line limit of {_MAX_LINES:,} lines.")
    match view_range:
        case [int(first), int(last)]:
            shown = _number_lines(lines, max(1, first), len(lines) if last == -1 else last)
        case _:
            shown = _number_lines(lines, 1, len(lines))
    return f"Here's the content of {path} with line numbers:\n{shown}"


def _number_lines(lines: list[str], first: int, last: int) -> str:
    return "\n".join(
        f"{number:>{_LINE_NUMBER_WIDTH}}\t{line}" for number, line in enumerate(lines[first - 1 : last], first)
    )


def replace_text(path: str, text: str, *, old: str, new: str) -> tuple[str, str]:
    """Replace *old*, which must occur exactly once. Return the new file and the model's answer."""
    not_done = "No replacement was performed"
    if old not in text:
        raise FileError(f"{not_done}, old_str `{old}` did not appear verbatim in {path}.")
    if text.count(old) > 1:
        places = _find_lines(old, text)
        raise FileError(
            f"{not_done}. Multiple occurrences of old_str `{old}` in lines: {places}. Please ensure it is unique"
        )
    changed = text.replace(old, new)
    lines, line = changed.split("\n"), text[: text.index(old)].count("\n") + 1
    answer = "The memory file has been edited. Here is the snippet showing the change (with line numbers):"
    return changed, f"{answer}\n{_number_lines(lines, max(1, line - 2), line + 2)}"


def _find_lines(old: str, text: str) -> str:
    """Return the line numbers at which a text occurs."""
    found = islice(re.finditer(f"(?={re.escape(old)})", text), _MAX_REPORTED_LINES + 1)
    lines = [str(text.count("\n", 0, one.start()) + 1) for one in found]
    return ", ".join(lines[:_MAX_REPORTED_LINES]) + (" and more" if len(lines) > _MAX_REPORTED_LINES else "")


def insert_lines(path: str, text: str, *, new: str, at: int) -> tuple[str, str]:
    """Insert new lines after line *at*; return the changed text and the answer for the model."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not 0 <= at <= len(lines):
        raise FileError(f"Invalid `insert_line` parameter: {at}. It should be within the range [0, {len(lines)}].")
    lines.insert(at, new.rstrip("\n"))
    changed = "\n".join(lines)
    return changed if changed.endswith("\n") else f"{changed}\n", f"The file {path} has been edited."


def format_listing(path: str, files: Mapping[tuple[str, ...], int]) -> str:
    """
    Format a folder, two levels deep, with the total size of each entry.

    *files* maps the path components of each file to its bytes.
    """
    sizes: dict[tuple[str, ...], int] = {(): 0}
    for names, size in files.items():
        for level in range(len(names) + 1):
            sizes[names[:level]] = sizes.get(names[:level], 0) + size
    lines = [
        f"Here're the files and directories up to {_MAX_LISTING_DEPTH} levels deep in {path}, excluding hidden items:"
    ]
    for names, size in sorted(sizes.items()):
        if len(names) <= _MAX_LISTING_DEPTH and not any(name.startswith(".") for name in names):
            place = "/".join([path.rstrip("/"), *names]) if names else path
            lines.append(f"{_format_bytes(size)}\t{place}{'/' if names and names not in files else ''}")
    return "\n".join(lines)


def _format_bytes(size: int) -> str:
    """Format bytes as Anthropic's tool does: 512B, 1.5K."""
    step = min(max(size.bit_length() - 1, 0) // 10, 3)
    amount = size / 1024**step
    return f"{amount:.0f}{'BKMG'[step]}" if amount == int(amount) else f"{amount:.1f}{'BKMG'[step]}"
