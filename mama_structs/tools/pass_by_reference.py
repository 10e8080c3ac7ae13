"""
Pass by reference: replace handles in a tool's arguments with their texts.

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

from mama_structs._internal.jsonable import JsonMixin
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidHandle, InvalidRange
from mama_structs.provenance import Provenance
from mama_structs.refs.store.entries import Entry, parse_handle
from mama_structs.tools.schema import iterate_alternatives
from mama_structs.tools.tool import Tool

REF_KEY: Final = "$ref"
HANDLE_PREFIXES: Final = ("fd:", "ref:")
MAX_DEPTH: Final = 100
MAX_INSERTED_CHARS: Final = 1_000_000
# Schema keywords that restrict a parameter to certain values. Handles in such a parameter are not replaced.
RESTRICTING_KEYWORDS: Final = frozenset({"enum", "const", "pattern", "format", "contentEncoding"})
EXACT_HANDLE_PATTERN: Final = re.compile(r"(?P<kept>\\*)(?P<handle>(?:ref|fd):\S{1,300})")
EMBEDDED_HANDLE_PATTERN: Final = re.compile(
    r"\\(?P<kept>\{\{ref:)|\{\{(?P<handle>ref:[^{}:\s]{1,300})(?::(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?)?\}\}"
)


@attrs.frozen
class ResolvedArguments(JsonMixin):
    """
    The arguments of a tool call, with texts in place of handles.

    Args:
        arguments: Arguments with texts in place of handles.
        handles: The handles of these texts, deduplicated, with their versions.
        provenance: The combined provenance of these texts; None without texts.

    """

    arguments: Mapping[str, Any] = attrs.field(repr=False)
    handles: tuple[str, ...] = ()
    provenance: Provenance | None = None


def substitute_handles(arguments: Mapping[str, Any], tool: Tool, find: Callable[[str], Entry]) -> ResolvedArguments:
    """
    Replace the handles in a tool's arguments with their texts, and validate the result.

    A validation error never contains an inserted text.

    Args:
        arguments: The model's arguments.
        tool: The called tool. In its *handles* arguments, ``{"$ref": …}`` is replaced with the handle itself.
        find: Returns the entry of a handle.

    Raises:
        InvalidArgument: The tool rejects the arguments, or they would be too large.
        HandleNotFound: A handle does not exist.

    """
    if not isinstance(arguments, Mapping):
        return ResolvedArguments(arguments)
    substitution = _Substitution(tool, find)
    resolved = substitution.substitute(arguments)
    if not substitution.entries and resolved == arguments:
        return ResolvedArguments(arguments)
    try:
        tool._signature.check(resolved, tool=tool.name)
    except InvalidArgument:
        tool._signature.check(_Substitution(tool, find, keep_handles=True).substitute(arguments), tool=tool.name)
        raise InvalidArgument(f"{tool.name}: a text in place of its handle is not what the tool takes") from None
    found = [entry.provenance for entry in substitution.entries.values()]
    return ResolvedArguments(resolved, tuple(substitution.entries), found[0].merge_with(*found[1:]) if found else None)


@attrs.define
class _Substitution:
    """Replaces the handles in a call's arguments with texts, unless *keep_handles* is set."""

    _tool: Tool
    _find: Callable[[str], Entry]
    _keep_handles: bool = attrs.field(default=False, kw_only=True)
    _remaining_chars: int = attrs.field(default=MAX_INSERTED_CHARS, init=False)
    entries: dict[str, Entry] = attrs.field(factory=dict, init=False)

    def substitute(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a copy of the arguments, with each handle replaced with its text."""
        named = self._tool._signature.fix_argument_names(given) if self._tool.resolves_handles else given
        return {name: self._substitute_argument(name, value) for name, value in named.items()}

    def _substitute_argument(self, name: str, value: Any) -> Any:
        if name in self._tool.handles:
            return (
                [_get_handle(item) or item for item in value]
                if isinstance(value, list)
                else _get_handle(value) or value
            )
        parameter = self._tool._signature.find_parameter(name) if self._tool.resolves_handles else None
        return self._substitute_value(
            value, () if parameter is None else tuple(iterate_alternatives(parameter.schema)), MAX_DEPTH
        )

    def _substitute_value(self, value: Any, schemas: tuple[Mapping[str, Any], ...], depth: int) -> Any:
        if isinstance(value, str):
            return self._substitute_text(value) if _accepts_any_text(schemas) else value
        if depth == 0:
            return value
        if isinstance(value, Mapping):
            if handle := _get_handle(value):
                return self._get_text(handle)
            return {key: self._substitute_value(item, (), depth - 1) for key, item in value.items()}
        if isinstance(value, list):
            items = tuple(_get_item_schemas(schemas))
            return [self._substitute_value(item, items, depth - 1) for item in value]
        return value

    def _substitute_text(self, text: str) -> str:
        """Return a text with its handles replaced."""
        exact = EXACT_HANDLE_PATTERN.fullmatch(text)
        if exact and _is_handle(exact["handle"]):
            return text[1:] if exact["kept"] else self._get_text(exact["handle"])
        return EMBEDDED_HANDLE_PATTERN.sub(self._substitute_match, text) if "{{ref:" in text else text

    def _substitute_match(self, match: re.Match[str]) -> str:
        handle = match["handle"]
        if handle is None or not _is_handle(handle):
            return match["kept"] or match[0]
        first = None if match["first"] is None else int(match["first"])
        text = self._get_text(handle, first=first, last=first if match["last"] is None else int(match["last"]))
        self._remaining_chars -= len(text)
        if self._remaining_chars < 0:
            raise InvalidArgument(
                f"{self._tool.name}: what is put into the arguments has more than {MAX_INSERTED_CHARS:,} characters",
                hint="pass the handle alone, or fewer lines of it",
            )
        return text

    def _get_text(self, handle: str, *, first: int | None = None, last: int | None = None) -> str:
        """Return the text of a handle, or some of its lines."""
        try:
            entry = self._find(handle)
        except HandleNotFound as error:
            error.hint = f"{error.hint}; to pass the words themselves, put a backslash in front: \\{handle}"
            raise
        self.entries[entry.versioned_handle] = entry
        body = entry.body
        if self._keep_handles:
            return handle
        if first is None or last is None:
            return body.text
        if not 1 <= first <= min(last, body.lines):
            raise InvalidRange(f"{handle} has no lines {first} to {last}", valid=(1, body.lines), handle=handle)
        pages = body.pages(entry.page_size)
        start, end = pages.line_start(first), pages.line_start(min(last, body.lines) + 1)
        # Omit the final line break: the surrounding text has its own.
        return body.text[start:end].removesuffix("\n").removesuffix("\r")


def _get_handle(value: Any) -> str | None:
    """
    Return the handle in ``{"$ref": "ref:x"}``.

    Return None for other values, such as JSON references.
    """
    handle = value.get(REF_KEY) if isinstance(value, Mapping) and len(value) == 1 else None
    return handle if isinstance(handle, str) and handle.startswith(HANDLE_PREFIXES) else None


def _is_handle(text: str) -> bool:
    try:
        parse_handle(text)
    except InvalidHandle:
        return False
    return True


def _accepts_any_text(schemas: tuple[Mapping[str, Any], ...]) -> bool:
    texts = [schema for schema in schemas if "string" in _get_types(schema)]
    return bool(texts) and not any(RESTRICTING_KEYWORDS & schema.keys() for schema in texts)


def _get_item_schemas(schemas: tuple[Mapping[str, Any], ...]) -> Iterator[Mapping[str, Any]]:
    for schema in schemas:
        if "array" in _get_types(schema) and isinstance(schema.get("items"), Mapping):
            yield from iterate_alternatives(schema["items"])


def _get_types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = schema.get("type", ())
    return (kinds,) if isinstance(kinds, str) else tuple(kinds)
