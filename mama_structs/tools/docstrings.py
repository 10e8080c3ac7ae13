"""Descriptions of parameters in docstrings of Google, NumPy and Sphinx style."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Final

GOOGLE_HEADER_PATTERN: Final = re.compile(r"(?:Args|Arguments|Parameters|Params|Keyword Args|Other Parameters):\s*")
# The type in parentheses may contain two further levels of parentheses. An entry may be an item of a list.
GOOGLE_TYPE: Final = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
BULLET_PATTERN: Final = re.compile(r"[-*+] +")
GOOGLE_ENTRY_PATTERN: Final = re.compile(
    rf"(?:{BULLET_PATTERN.pattern})?`?\*{{0,2}}(?P<names>\w+(?:, *\*{{0,2}}\w+)*)`?"
    rf"(?: *{GOOGLE_TYPE})? *: *(?P<text>.*)"
)
NUMPY_HEADER_PATTERN: Final = re.compile(r"(?:Other )?Parameters\s*")
NUMPY_LINE_PATTERN: Final = re.compile(r"-{3,}\s*")
NUMPY_ENTRY_PATTERN: Final = re.compile(r"\*{0,2}(?P<names>\w+(?:, *\*{0,2}\w+)*) *(?::.*)?")
SPHINX_FIELD_PATTERN: Final = re.compile(r":(?P<field>\w+)(?: (?P<about>[^:\n]*))?:(?: +(?P<text>.*)|\s*)")
SPHINX_PARAMETER_FIELDS: Final = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
SPHINX_TYPE_FIELDS: Final = frozenset({"type", "paramtype", "kwtype"})


def split_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Split a docstring into text and parameter descriptions. Other sections stay in the text."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    kept: list[str] = []
    descriptions: dict[str, list[str]] = {}
    number = 0
    while number < len(lines):
        end = _find_section_end(lines, number)
        if end == number:
            kept.append(lines[number])
            number += 1
        else:
            if not _read_section(lines[number:end], descriptions):
                kept.extend(lines[number:end])
            number = end
            # The blank line before the section also separates the text after it.
            while kept and not kept[-1]:
                kept.pop()
            kept.extend([""] if kept and any(lines[end:]) else ())
            while number < len(lines) and not lines[number]:
                number += 1
    return "\n".join(kept).rstrip(), {
        name: " ".join(part for part in parts if part) for name, parts in descriptions.items()
    }


def _find_section_end(lines: list[str], start: int) -> int:
    """Return the number of the line after a section of parameters, or *start* if none starts there."""
    rest = lines[start + 1 :]
    if GOOGLE_HEADER_PATTERN.fullmatch(lines[start]):
        return start + 1 + _count_while(rest, lambda line: not line or line[0].isspace() or _is_list_item(line))
    if NUMPY_HEADER_PATTERN.fullmatch(lines[start]) and rest and NUMPY_LINE_PATTERN.fullmatch(rest[0]):
        # The line before the dashes is the header of the next section.
        dashes = _count_while(rest[1:], lambda line: NUMPY_LINE_PATTERN.fullmatch(line) is None)
        section = rest[1 : dashes if dashes < len(rest) - 1 else None]
        return start + 2 + _count_while(section, _is_numpy_line)
    return start + (1 + _count_while(rest, lambda line: line[:1].isspace()) if _find_sphinx_field(lines[start]) else 0)


def _count_while(lines: list[str], is_inside: Callable[[str], bool]) -> int:
    return next((number for number, line in enumerate(lines) if not is_inside(line)), len(lines))


def _is_numpy_line(line: str) -> bool:
    return not line or line[0].isspace() or NUMPY_ENTRY_PATTERN.fullmatch(line) is not None


def _find_sphinx_field(line: str) -> re.Match[str] | None:
    found = SPHINX_FIELD_PATTERN.fullmatch(line)
    known = SPHINX_PARAMETER_FIELDS | SPHINX_TYPE_FIELDS
    return found if found and found["field"] in known and found["about"] else None


def _is_list_item(line: str) -> bool:
    return BULLET_PATTERN.match(line) is not None


def _read_section(lines: list[str], descriptions: dict[str, list[str]]) -> bool:
    """
    Add the entries of a section, and return False if it has other text only.

    A line with deeper indentation continues the previous entry.
    """
    if field := _find_sphinx_field(lines[0]):
        if field["field"] in SPHINX_PARAMETER_FIELDS:
            # The type may precede the name.
            name = field["about"].split()[-1].lstrip("*")
            descriptions[name] = [field["text"] or "", *(line.strip() for line in lines[1:])]
        return True
    is_google = GOOGLE_HEADER_PATTERN.fullmatch(lines[0])
    pattern, body = (GOOGLE_ENTRY_PATTERN, lines[1:]) if is_google else (NUMPY_ENTRY_PATTERN, lines[2:])
    current: list[str] = []
    has_entry = False
    for line in inspect.cleandoc("\n".join(["", *body])).splitlines():
        entry = None if line[:1].isspace() else pattern.fullmatch(line)
        if entry is None:
            current.append(line.strip())
        else:
            has_entry = True
            current = [entry["text"].strip()] if is_google else []
            names = (name.lstrip("*") for name in re.split(r", *", entry["names"]))
            descriptions.update(dict.fromkeys(names, current))
    return has_entry or not any(body)
