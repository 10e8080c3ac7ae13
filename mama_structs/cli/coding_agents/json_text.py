"""Edits of a JSON document's text that leave all other characters unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import attrs

Path: TypeAlias = Sequence[str]
"""Keys of nested objects, from the root."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_COMMENT_OR_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\r\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA_OR_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])')
_DECODER: Final = json.JSONDecoder()
_DEFAULT_INDENT: Final = "  "


@attrs.frozen
class _Part:
    """A member of an object or an item of an array. *start* is where its key or item starts."""

    key: str | None
    start: int
    value_start: int
    end: int
    value: Any


def parse_json(text: str) -> Any:
    """Return the value of a document, or raise `ValueError` also for repeated keys."""
    try:
        return json.loads(text, object_pairs_hook=_create_object)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def remove_comments(text: str) -> str | None:
    """Return a document without its comments and trailing commas, or None if it is not JSON then."""
    without = _COMMENT_OR_STRING.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
    without = _TRAILING_COMMA_OR_STRING.sub(lambda found: found[0] if found[0].startswith('"') else "", without)
    try:
        parse_json(without)
    except ValueError:
        return None
    return without


def get_value(document: Any, path: Path) -> Any:
    """Return the value at a path, or None if it is missing."""
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return None
        document = document[key]
    return document


def set_member(text: str, path: Path, value: Any) -> str:
    """Replace the member at a path, or append it to its existing object."""
    start = _find_container(text, path[:-1])
    for part in _list_parts(text, start):
        if part.key == path[-1]:
            return text[: part.value_start] + _render(text, part.start, value) + text[part.end :]
    return _append(text, start, path[-1], value)


def append_item(text: str, path: Path, value: Any) -> str:
    """Add an item at the end of the array at a path."""
    return _append(text, _find_container(text, path), None, value)


def replace_item(text: str, path: Path, index: int, value: Any) -> str:
    """Replace an item of the array at a path."""
    part = list(_list_parts(text, _find_container(text, path)))[index]
    return text[: part.value_start] + _render(text, part.start, value) + text[part.end :]


def remove_part(text: str, path: Path, part: str | int) -> str:
    """Remove a member by its key or an item by its index from the object or array at a path."""
    start = _find_container(text, path)
    parts = list(_list_parts(text, start))
    index = part if isinstance(part, int) else [one.key for one in parts].index(part)
    if len(parts) == 1:
        return text[: start + 1] + text[_skip(text, parts[0].end) :]
    if index == 0:
        return text[: parts[0].start] + text[parts[1].start :]
    return text[: parts[index - 1].end] + text[parts[index].end :]


def get_blank(text: str, path: Path) -> str:
    """Return the white space in the empty object or array at a path, or "" if it is not empty."""
    start = _find_container(text, path)
    end = _skip(text, start + 1)
    return text[start + 1 : end] if text[end] in "}]" else ""


def set_blank(text: str, path: Path, blank: str) -> str:
    """Replace the white space in the empty object or array at a path."""
    start = _find_container(text, path)
    return text[: start + 1] + blank + text[_skip(text, start + 1) :]


def _create_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("an object has the same key twice")
    return made


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # noqa: S101 - for the type checker: the pattern matches the empty text
    return found.end()


def _find_container(text: str, path: Path) -> int:
    """Return the position of the opening bracket of the object or array at a path."""
    at = _skip(text, 0)
    for key in path:
        at = next(part.value_start for part in _list_parts(text, at) if part.key == key)
    return at


def _list_parts(text: str, start: int) -> Iterator[_Part]:
    """Yield the parts of the object or array that starts at a position."""
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        begin, key = at, None
        if text[start] == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        value, end = _DECODER.raw_decode(text, at)
        yield _Part(key, begin, at, end, value)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _append(text: str, start: int, key: str | None, value: Any) -> str:
    parts = list(_list_parts(text, start))
    name = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
    if parts:
        gap = text[start + 1 : parts[0].start]
        gap = gap if "\n" in gap else " "
        return text[: parts[-1].end] + "," + gap + name + _render(text, parts[0].start, value) + text[parts[-1].end :]
    close = _skip(text, start + 1)
    if not _has_lines(text):
        return text[: start + 1] + name + _render(text, start, value) + text[close:]
    newline, outer, indent = _get_newline(text), _get_line_indent(text, start), _get_indent_unit(text)
    inner = name + _render(text, start, value, extra=indent)
    return text[: start + 1] + newline + outer + indent + inner + newline + outer + text[close:]


def _render(text: str, at: int, value: Any, *, extra: str = "") -> str:
    """Return a value as JSON in the style of the document, for the line of a position, indented by *extra*."""
    if not _has_lines(text):
        return json.dumps(value, ensure_ascii=False)
    line_break = _get_newline(text) + _get_line_indent(text, at) + extra
    return json.dumps(value, ensure_ascii=False, indent=_get_indent_unit(text)).replace("\n", line_break)


def _has_lines(text: str) -> bool:
    """Return True unless a document that is not empty is on one line."""
    return "\n" in text.strip() or text.strip() == "{}"


def _get_newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _get_line_indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _get_indent_unit(text: str) -> str:
    """Return the indentation of the root's first member."""
    start = _skip(text, 0)
    first = next(_list_parts(text, start), None)
    gap = "" if first is None else text[start + 1 : first.start]
    return gap.rpartition("\n")[2] or _DEFAULT_INDENT if "\n" in gap else _DEFAULT_INDENT
