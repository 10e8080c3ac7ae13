"""Decode JSON-RPC messages: repair unambiguous mistakes, reject other invalid messages."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import attrs
import mcp_types as types
from pydantic import ValidationError

MAX_DEPTH: Final = 200
"""Maximum nesting depth of a message: the limit of the SDK's own parser."""

# Ids longer than this are not recovered from messages that cannot be parsed.
MAX_ID_BYTES: Final = 1024
# JavaScript represents integers exactly only up to this bound. Below this bound, an id 1.0 is read as 1.
_MAX_EXACT_INTEGER: Final = 2**53
_BOM: Final = b"\xef\xbb\xbf"
# Matches a surrogate pair, a lone surrogate (group 1), or any other escape.
_ESCAPE_PATTERN: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_REPLACEMENT: Final = rb"\ufffd"

Id = str | int | float | None


class AnyIdError(types.JSONRPCError):
    """An error answer whose id may be of a type that the protocol forbids, such as 1.5."""

    id: Any


@attrs.frozen
class Rejection:
    """A rejected message: the error code, the error text and the id for the answer."""

    code: int
    message: str
    id: Id = None

    def answer(self) -> types.JSONRPCError:
        """Return the error answer."""
        error = types.ErrorData(code=self.code, message=self.message)
        return AnyIdError(jsonrpc="2.0", id=self.id, error=error)


DecodedMessage = types.JSONRPCMessage | Rejection


def decode(data: bytes) -> DecodedMessage | list[DecodedMessage] | None:
    """
    Decode a message, or a batch as a list. Return None for data that needs no answer.

    Lone surrogate escapes become U+FFFD, as in JavaScript's ``toWellFormed``. A byte order mark is removed, control
    characters within strings are accepted, and an id 1.0 is read as 1.
    """
    text = data.removeprefix(_BOM)
    if not text.strip():
        return None
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and (scanner := IdScanner.scan(text)).max_depth > MAX_DEPTH:
        return _reject_too_deep(scanner)
    if b"\\u" in text:
        text = _ESCAPE_PATTERN.sub(lambda found: _REPLACEMENT if found[1] else found[0], text)
    return _parse(text)


def _parse(data: bytes) -> DecodedMessage | list[DecodedMessage] | None:
    flaws: list[str] = []
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # Parse the text anyway, to find the id for the answer.
        # JSON syntax is ASCII, so replacing the invalid bytes does not change the structure.
        text = data.decode(errors="replace")
        flaws.append("the message is not UTF-8")

    def reject_constant(name: str) -> None:
        flaws.append(f"{name} is not JSON")

    try:
        value = json.loads(text, strict=False, parse_constant=reject_constant)
    except RecursionError:
        return _reject_too_deep(IdScanner.scan(data))
    except json.JSONDecodeError as error:
        # Scan only up to the error, where the text is valid JSON. After the error, an "id" may be part of a string.
        scanner = IdScanner.scan(text[: error.pos].encode(errors="replace"))
        return Rejection(types.PARSE_ERROR, f"the message is not JSON: {error.msg} at {error.pos}", scanner.id)
    except ValueError:
        return Rejection(types.PARSE_ERROR, "a number of the message is too long", IdScanner.scan(data).id)
    if flaws:
        return Rejection(types.PARSE_ERROR, flaws[0], _extract_id(value))
    return _classify_batch(value) if isinstance(value, list) else _classify(value)


def _classify_batch(members: list[Any]) -> list[DecodedMessage] | Rejection:
    if not members:
        return Rejection(types.INVALID_REQUEST, "a batch must not be empty")
    return [one for one in map(_classify, members) if one is not None]


def _reject_too_deep(scanner: IdScanner) -> Rejection:
    found = scanner.id if scanner.is_complete else None
    return Rejection(types.INVALID_REQUEST, f"the message is nested deeper than {MAX_DEPTH} levels", found)


def reject_too_long(scanner: IdScanner, limit: int) -> Rejection:
    """Return the rejection of a message above *limit* bytes, which *scanner* has scanned."""
    found = scanner.id if scanner.is_complete else None
    return Rejection(types.INVALID_REQUEST, f"the message has more than {limit:,} bytes", found)


def _classify(value: object) -> DecodedMessage | None:
    """
    Return a request, notification, response or rejection.

    Return None for an invalid response, because responses are never answered.
    """
    if not isinstance(value, dict):
        return Rejection(types.INVALID_REQUEST, "a message must be an object")
    if "method" not in value and ("result" in value or "error" in value):
        kind = types.JSONRPCResponse if "result" in value else types.JSONRPCError
        try:
            return kind.model_validate(value, by_name=False)
        except ValidationError:
            return None
    found = _extract_id(value)
    fault = _find_violation(value, found)
    if fault is not None:
        return Rejection(types.INVALID_REQUEST, fault, found)
    given = {name: value[name] for name in ("jsonrpc", "method", "params") if name in value}
    if "id" not in value:
        return types.JSONRPCNotification.model_validate(given)
    return types.JSONRPCRequest.model_validate({**given, "id": found})


def _find_violation(value: dict[str, Any], found: Id) -> str | None:
    """Return a description of the rule that a request or notification violates, or None."""
    if value.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if not isinstance(value.get("method"), str):
        return "method must be a string"
    if not isinstance(value.get("params"), dict | None):
        return "params must be an object"
    if "id" in value and not isinstance(found, str | int):
        return "id must be a string or an integer"
    return None


def _extract_id(value: object) -> Id:
    """Return the id of a message, or None if the id is missing or not allowed in an answer."""
    found = value.get("id") if isinstance(value, dict) else None
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        return None
    if isinstance(found, float):
        if found.is_integer() and abs(found) < _MAX_EXACT_INTEGER:
            return int(found)
        return found if found - found == 0 else None
    return found


class IdScanner:
    """
    Incremental scanner for the nesting depth and the top-level ``id`` of one JSON object.

    It runs in linear time and constant memory without recursion, so that messages that are too long or too deep for a
    parser can be answered. It does not validate: the id is exact only for JSON or a prefix of JSON.
    """

    _STRING_END = re.compile(rb'["\\]')
    _TOP_LEVEL = re.compile(rb'["{}\[\],:]')
    _NESTED = re.compile(rb'"|[{\[]+|[}\]]')

    def __init__(self) -> None:
        self.max_depth: int = 0
        self.id: Id = None
        self.is_complete: bool = False
        self._depth = 0
        self._is_object = False
        self._in_string = False
        self._is_escaped = False
        # Text of the current top-level key or value. None if it cannot be an id.
        self._text: bytes | None = b""
        self._key: bytes | None = None

    @classmethod
    def scan(cls, data: bytes) -> IdScanner:
        """Scan a complete message."""
        scanner = cls()
        scanner.feed(data)
        return scanner

    def feed(self, chunk: bytes) -> None:
        """Scan the next bytes of the message."""
        position, end = 0, len(chunk)
        while position < end:
            if self._is_escaped:
                self._is_escaped = False
                self._capture(chunk[position : position + 1])
                position += 1
                continue
            found = self._pattern.search(chunk, position)
            stop = end if found is None else found.start()
            self._capture(chunk[position:stop])
            if found is None:
                return
            self._process_token(found[0])
            position = found.end()

    @property
    def _pattern(self) -> re.Pattern[bytes]:
        if self._in_string:
            return self._STRING_END
        return self._TOP_LEVEL if self._depth <= 1 else self._NESTED

    def _capture(self, text: bytes) -> None:
        if self._depth == 0:
            if text.strip():
                # Text before or after the object means that the message is not a single complete object.
                self.is_complete = False
        elif self._depth == 1 and self._text is not None:
            self._text = self._text + text if len(self._text) + len(text) <= MAX_ID_BYTES else None

    def _process_token(self, token: bytes) -> None:
        if token == b"\\":
            self._capture(token)
            self._is_escaped = True
        elif token == b'"':
            self._capture(token)
            self._in_string = not self._in_string
        elif token in (b",", b":"):
            if token == b":":
                self._key, self._text = self._text, b""
            else:
                self._end_member()
        elif token[:1] in (b"{", b"["):
            if self._depth == 0:
                self._is_object = token == b"{" and self.max_depth == 0
                self.is_complete = False
            else:
                # Objects and arrays are neither keys nor ids.
                self._text = None
            self._depth += len(token)
            self.max_depth = max(self.max_depth, self._depth)
        elif self._depth > 0:
            if self._depth == 1:
                self._end_member()
                self.is_complete = self._is_object
            self._depth -= 1
        else:
            self._is_object = self.is_complete = False

    def _end_member(self) -> None:
        key, text = self._key, self._text
        self._key, self._text = None, b""
        try:
            if self._is_object and key is not None and json.loads(key) == "id":
                self.id = None if text is None else _extract_id({"id": json.loads(text, strict=False)})
        except ValueError:
            self.id = None
