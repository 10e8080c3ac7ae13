"""
Faults that tests inject between a client and a node.

A `Fault` changes a correct answer. `Faults` selects the affected requests and their number.
"""

from __future__ import annotations

import enum
import functools
import itertools
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.testing.node.routes import check_request_name

_HTML_PAGE: Final = b"<html><head><title>%d</title></head><body><h1>nginx</h1></body></html>"
_CHUNK_BYTES: Final = 2**20


class Delivery(enum.StrEnum):
    """The part of an answer that reaches the client."""

    WHOLE = "whole"
    CUT = "cut"
    DROPPED = "dropped"
    HUNG = "hung"


@attrs.frozen
class FaultAnswer:
    """
    An answer of the node, before it is sent.

    Args:
        status: The HTTP status.
        headers: The headers, including ``Content-Type``.
        body: The encoded body.
        delay: Seconds to wait before it is sent.
        delivery: Whole, cut in the middle of the body, dropped before the first byte, or never sent.

    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    delay: float = 0.0
    delivery: Delivery = Delivery.WHOLE

    @classmethod
    def json(cls, status: int, body: Any, *, headers: Mapping[str, str] | None = None) -> FaultAnswer:
        """
        Return an answer with *body* encoded as the gateway does: compact JSON in UTF-8.

        Args:
            status: The HTTP status.
            body: The JSON value of the answer.
            headers: Additional HTTP headers.

        """
        return cls(status, {"Content-Type": "application/json", **(headers or {})}, _encode_json(body))

    def with_json(self, change: Callable[[Any], Any]) -> FaultAnswer:
        """Return a copy of the answer. *change* computes its JSON body from the original body."""
        return attrs.evolve(self, body=_encode_json(change(json.loads(self.body))))


def _encode_json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


@functools.lru_cache(maxsize=4)
def _make_gzip_bomb(size: int) -> bytes:
    """Return compressed JSON that decompresses to *size* bytes, about a thousand times its compressed size."""
    opening, closing = b'{"Player":{"id":"', b'"}}'
    packer = zlib.compressobj(level=9, wbits=31)
    chunks, rest = divmod(max(0, size - len(opening) - len(closing)), _CHUNK_BYTES)
    parts = itertools.chain([opening], itertools.repeat(b"a" * _CHUNK_BYTES, chunks), [b"a" * rest, closing])
    return b"".join([packer.compress(part) for part in parts]) + packer.flush()


def _find_record(body: Any) -> Any:
    """Return the entity's record in a body: the first row of a list, or the body itself if it has no nested record."""
    if not isinstance(body, dict):
        return {}
    for value in body.values():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return value[0]
        if isinstance(value, dict):
            return value
    return body


@attrs.frozen
class Fault:
    """
    A change of an answer that simulates an error of the node or the network.

    The named constructors create the common faults; a test can define another one with ``Fault("name", edit)``.

    Args:
        name: A description of the fault.
        edit: Function from the correct answer to the faulty one.

    """

    name: str
    edit: Callable[[FaultAnswer], FaultAnswer] = attrs.field(repr=False, eq=False)

    @classmethod
    def _make_constant(cls, name: str, **changes: Any) -> Fault:
        return cls(name, lambda answer: attrs.evolve(answer, **changes))

    @classmethod
    def _make_html(cls, name: str, status: int, retry_after: float | str | None = None) -> Fault:
        headers = {"Content-Type": "text/html"}
        if retry_after is not None:
            headers["Retry-After"] = str(retry_after)
        return cls._make_constant(name, status=status, headers=headers, body=_HTML_PAGE % status)

    @classmethod
    def rate_limited(cls, *, retry_after: float | str | None = 1) -> Fault:
        """
        Status 429, with an optional Retry-After header.

        *retry_after* is the value of the header (seconds or an HTTP date), or None for no header.

        Returns:
            The fault.

        """
        return cls._make_html(f"rate limited, retry after {retry_after}", 429, retry_after)

    @classmethod
    def unavailable(cls, *, status: int = 503, retry_after: float | str | None = None) -> Fault:
        """
        Status 502, 503 or 504, with an HTML page as from a proxy.

        Args:
            status: The HTTP status.
            retry_after: The seconds in the header ``Retry-After``; None for no header.

        Returns:
            The fault.

        """
        return cls._make_html(f"status {status}", status, retry_after)

    @classmethod
    def error(cls, *, status: int, code: int, message: str) -> Fault:
        """
        An error in the JSON format of the chain's gateway.

        Args:
            status: The HTTP status.
            code: The code of the error.
            message: The message of the error.

        Returns:
            The fault.

        """
        body = {"code": code, "message": message, "details": []}
        return cls(
            f"status {status}, code {code}", lambda answer: FaultAnswer.json(status, body, headers=answer.headers)
        )

    @classmethod
    def html(cls) -> Fault:
        """
        Status 200 with HTML, as from a captive portal.

        Returns:
            The fault.

        """
        return cls._make_html("HTML", 200)

    @classmethod
    def redirect(cls, url: str, *, status: int = 302) -> Fault:
        """
        A redirect to *url*, which may be on another server.

        Args:
            url: The target.
            status: The HTTP status.

        Returns:
            The fault.

        """
        return cls._make_constant(f"redirect to {url}", status=status, headers={"Location": url}, body=b"")

    @classmethod
    def dropped(cls) -> Fault:
        """
        The connection is reset before the answer.

        aiohttp's client retries once automatically, so each attempt may count as two requests.
        """
        return cls._make_constant("dropped", delivery=Delivery.DROPPED)

    @classmethod
    def cut_off(cls) -> Fault:
        """The connection is reset in the middle of the body."""
        return cls._make_constant("cut", delivery=Delivery.CUT)

    @classmethod
    def hung(cls) -> Fault:
        """The answer is never sent. Closing the node does not wait for it."""
        return cls._make_constant("hung", delivery=Delivery.HUNG)

    @classmethod
    def delayed(cls, seconds: float = 2.5) -> Fault:
        """The answer is delayed."""
        return cls(f"delayed by {seconds} s", lambda answer: attrs.evolve(answer, delay=answer.delay + seconds))

    @classmethod
    def gzip_bomb(cls, *, size: int = 200_000_000) -> Fault:
        """
        Compressed JSON that decompresses to *size* bytes, about a thousand times its compressed size.

        Returns:
            The fault.

        """
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return cls._make_constant(f"gzip bomb of {size} bytes", headers=headers, body=_make_gzip_bomb(size))

    @classmethod
    def oversized(cls, *, size: int = 20_000_000) -> Fault:
        """The correct answer, padded with spaces to *size* bytes. It is still valid JSON."""
        return cls(f"{size} bytes", lambda answer: attrs.evolve(answer, body=answer.body.ljust(size)))

    @classmethod
    def truncated(cls) -> Fault:
        """The first half of the JSON, sent as a complete HTTP response."""
        return cls("truncated", lambda answer: attrs.evolve(answer, body=answer.body[: len(answer.body) // 2]))

    @classmethod
    def invalid_utf8(cls) -> Fault:
        """
        JSON with a string that is not valid UTF-8.

        Returns:
            The fault.

        """
        return cls._make_constant("invalid UTF-8", body=b'{"Player":{"id":"1-\xff\xfe"}}')

    @classmethod
    def nan(cls, *, field: str = "index") -> Fault:
        """
        JSON with a NaN value, which the JSON standard does not allow.

        Args:
            field: The name of the field.

        Returns:
            The fault.

        """
        return cls.wrong_field(field=field, value=float("nan"))

    @classmethod
    def nested(cls, *, levels: int = 100_000) -> Fault:
        """
        JSON that is nested too deeply for a parser to accept.

        Args:
            levels: The number of nested levels.

        Returns:
            The fault.

        """
        return cls._make_constant(f"{levels} levels", body=b'{"Player":' + b"[" * levels + b"]" * levels + b"}")

    @classmethod
    def wrong_field(cls, *, field: str, value: Any) -> Fault:
        """
        A malformed entity: one field of the record has the given value, which may be of any type.

        In a list, the first row is changed.

        Args:
            field: The name of the field.
            value: The value of the field.

        Returns:
            The fault.

        """

        def change(body: Any) -> Any:
            _find_record(body)[field] = value
            return body

        return cls(f"{field} is {value!r}", lambda answer: answer.with_json(change))

    @classmethod
    def wrong_entity(cls, entity_id: str) -> Fault:
        """The answer contains another entity instead of the requested one."""
        return cls.wrong_field(field="id", value=entity_id)

    @classmethod
    def not_an_object(cls) -> Fault:
        """
        Valid JSON, but an array instead of the expected object.

        Returns:
            The fault.

        """
        return cls("a list", lambda answer: answer.with_json(lambda body: [body]))


@attrs.define
class _FaultRule:
    faults: tuple[Fault, ...]
    on: str
    remaining: int | None


@attrs.define(eq=False)
class Faults:
    """
    Rules that select the requests with faults.

    May be changed at any time and from any thread.
    Only the oldest matching rule that is not used up applies to a request.
    Several `add` calls therefore make a sequence, such as first a 429 and then a 503. Several faults in one `add` apply
    together.
    """

    _rules: list[_FaultRule] = attrs.field(factory=list, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    def add(self, *faults: Fault, on: str = "*", times: int | None = None) -> None:
        """
        Add a rule that makes requests fail.

        Args:
            faults: The faults, all applied to the same request, in this order.
            on: The affected requests: a path, an id or other parameter in the path, a route's pattern
                (``/structs/player/{id}``), a type (``player``), or ``*`` for everything.
                A parameter begins with a digit, or is an address, an attribute's name or hexadecimal text;
                for any other parameter, use the path.
            times: The number of affected requests; None for all until `clear`.

        Raises:
            InvalidArgument: There is no fault, or the rule could never match a request.

        """
        check_request_name("on", on)
        if not faults or not all(isinstance(fault, Fault) for fault in faults):
            raise InvalidArgument(f"faults must be one Fault or more, got {faults!r:.80}")
        if times is not None and (not isinstance(times, int) or isinstance(times, bool) or times < 1):
            raise InvalidArgument(f"times must be 1 or more, or None, got {times!r}")
        with self._lock:
            self._rules.append(_FaultRule(faults, on, times))

    def clear(self, on: str | None = None) -> None:
        """Remove the rules that were added with this *on*, or all rules if *on* is None."""
        if on is not None:
            check_request_name("on", on)
        with self._lock:
            self._rules = [rule for rule in self._rules if on is not None and rule.on != on]

    def take(self, names: Iterable[str]) -> tuple[Fault, ...]:
        """Return the faults of the first rule that matches a name of the request, and count one use of the rule."""
        wanted = frozenset(names)
        with self._lock:
            for rule in self._rules:
                if rule.on in wanted:
                    if rule.remaining is not None:
                        rule.remaining -= 1
                        if not rule.remaining:
                            self._rules.remove(rule)
                    return rule.faults
        return ()
