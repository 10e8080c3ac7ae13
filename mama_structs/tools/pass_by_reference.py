"""
Pass by reference: replace handles in a tool's arguments by their texts.

``{"$ref": "ref:x"}`` is replaced everywhere. Strict schemas forbid it, so plain text works as well, in parameters (and
lists) that accept any text: a text that is exactly a handle is replaced, and so is ``{{ref:x}}`` or ``{{ref:x:10-20}}``
(lines) inside a longer text. A preceding backslash prevents it.
Only refs are inserted into a longer text: text that was copied from outside must not pull in other outside texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidHandle, InvalidRange
from mama_structs.provenance import Provenance
from mama_structs.refs.store.entries import Entry, parse_handle
from mama_structs.tools.schema import alternatives
from mama_structs.tools.tool import Tool

_REF: Final = "$ref"
_HANDLES: Final = ("fd:", "ref:")
_MAX_DEPTH: Final = 100
_MOST: Final = 1_000_000
# Schema keywords that restrict a parameter to certain texts.
_NARROW: Final = frozenset({"enum", "const", "pattern", "format", "contentEncoding"})
_EXACT: Final = re.compile(r"(?P<kept>\\*)(?P<handle>(?:ref|fd):\S{1,300})")
_INSIDE: Final = re.compile(
    r"\\(?P<kept>\{\{ref:)|\{\{(?P<handle>ref:[^{}:\s]{1,300})(?::(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?)?\}\}"
)


@attrs.frozen
class Passed:
    """
    A tool's arguments as the tool receives them.

    Args:
        arguments: Arguments with texts in place of handles.
        handles: The handles of these texts, deduplicated, with their versions.
        provenance: The provenance of these texts together; None if there are none.

    """

    arguments: Mapping[str, Any] = attrs.field(repr=False)
    handles: tuple[str, ...] = ()
    provenance: Provenance | None = None


def passed(asked: Mapping[str, Any], tool: Tool, find: Callable[[str], Entry]) -> Passed:
    """
    Replace the handles in a tool's arguments by their texts, and validate the result.

    An error of the validation never contains an inserted text.

    Args:
        asked: The model's arguments.
        tool: The called tool. In its *handles* arguments, ``{"$ref": …}`` is replaced by the handle itself.
        find: Returns the entry of a handle.

    Raises:
        InvalidArgument: The tool rejects the arguments, or they would be too large.
        HandleNotFound: A handle does not exist.

    """
    if not isinstance(asked, Mapping):
        return Passed(asked)
    putting = _Putting(tool, find)
    given = putting.arguments(asked)
    if not putting.found and given == asked:
        return Passed(asked)
    try:
        tool.signature.check(given, tool=tool.name)
    except InvalidArgument:
        tool.signature.check(_Putting(tool, find, is_named=True).arguments(asked), tool=tool.name)
        raise InvalidArgument(f"{tool.name}: a text in place of its handle is not what the tool takes") from None
    found = [entry.provenance for entry in putting.found.values()]
    return Passed(given, tuple(putting.found), found[0].limited_by(*found[1:]) if found else None)


@attrs.define
class _Putting:
    """Replaces the handles of one call by their texts, or with *is_named* by handles."""

    _tool: Tool
    _find: Callable[[str], Entry]
    _is_named: bool = attrs.field(default=False, kw_only=True)
    _room: int = attrs.field(default=_MOST, init=False)
    found: dict[str, Entry] = attrs.field(factory=dict, init=False)

    def arguments(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a copy of the arguments with texts in place of handles."""
        named = self._tool.signature.named(asked) if self._tool.resolve else asked
        return {name: self._argument(name, value) for name, value in named.items()}

    def _argument(self, name: str, value: Any) -> Any:
        if name in self._tool.handles:
            return (
                [_handle_in(item) or item for item in value] if isinstance(value, list) else _handle_in(value) or value
            )
        parameter = self._tool.signature.parameter(name) if self._tool.resolve else None
        return self._value(value, () if parameter is None else tuple(alternatives(parameter.schema)), _MAX_DEPTH)

    def _value(self, value: Any, schemas: tuple[Mapping[str, Any], ...], depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value) if _takes_any_text(schemas) else value
        if depth == 0:
            return value
        if isinstance(value, Mapping):
            if handle := _handle_in(value):
                return self._content(handle)
            return {key: self._value(item, (), depth - 1) for key, item in value.items()}
        if isinstance(value, list):
            items = tuple(_items(schemas))
            return [self._value(item, items, depth - 1) for item in value]
        return value

    def _text(self, text: str) -> str:
        """Return a text with its handles replaced."""
        exact = _EXACT.fullmatch(text)
        if exact and _is_handle(exact["handle"]):
            return text[1:] if exact["kept"] else self._content(exact["handle"])
        return _INSIDE.sub(self._inside, text) if "{{ref:" in text else text

    def _inside(self, match: re.Match[str]) -> str:
        handle = match["handle"]
        if handle is None or not _is_handle(handle):
            return match["kept"] or match[0]
        first = None if match["first"] is None else int(match["first"])
        text = self._content(handle, first=first, last=first if match["last"] is None else int(match["last"]))
        self._room -= len(text)
        if self._room < 0:
            raise InvalidArgument(
                f"{self._tool.name}: what is put into the arguments has more than {_MOST:,} characters",
                hint="pass the handle alone, or fewer lines of it",
            )
        return text

    def _content(self, handle: str, *, first: int | None = None, last: int | None = None) -> str:
        """Return the text of a handle, or some of its lines."""
        try:
            entry = self._find(handle)
        except HandleNotFound as error:
            error.hint = f"{error.hint}; to pass the words themselves, put a backslash in front: \\{handle}"
            raise
        self.found[entry.versioned] = entry
        body = entry.body
        if self._is_named:
            return handle
        if first is None or last is None:
            return body.text
        if not 1 <= first <= min(last, body.lines):
            raise InvalidRange(f"{handle} has no lines {first} to {last}", valid=(1, body.lines), handle=handle)
        pages = body.pages(entry.page_size)
        start, end = pages.line_start(first), pages.line_start(min(last, body.lines) + 1)
        # The line break after the last line belongs to the surrounding text.
        return body.text[start:end].removesuffix("\n").removesuffix("\r")


def _handle_in(value: Any) -> str | None:
    """Return the handle of ``{"$ref": "ref:x"}``, or None, as for a JSON Schema's ``$ref``."""
    handle = value.get(_REF) if isinstance(value, Mapping) and len(value) == 1 else None
    return handle if isinstance(handle, str) and handle.startswith(_HANDLES) else None


def _is_handle(text: str) -> bool:
    try:
        parse_handle(text)
    except InvalidHandle:
        return False
    return True


def _takes_any_text(schemas: tuple[Mapping[str, Any], ...]) -> bool:
    texts = [schema for schema in schemas if "string" in _kinds(schema)]
    return bool(texts) and not any(_NARROW & schema.keys() for schema in texts)


def _items(schemas: tuple[Mapping[str, Any], ...]) -> Iterator[Mapping[str, Any]]:
    for schema in schemas:
        if "array" in _kinds(schema) and isinstance(schema.get("items"), Mapping):
            yield from alternatives(schema["items"])


def _kinds(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = schema.get("type", ())
    return (kinds,) if isinstance(kinds, str) else tuple(kinds)
