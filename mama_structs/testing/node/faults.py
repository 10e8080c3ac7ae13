"""
What can go wrong between a client and a node, as values.

A `Fault` changes an answer that was right; `Faults` says which requests it meets and how often.
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
from mama_structs.testing.node.routes import checked_name

_HTML: Final = b"<html><head><title>%d</title></head><body><h1>nginx</h1></body></html>"
_CHUNK: Final = 2**20


class Delivery(enum.StrEnum):
    """How an answer reaches the client."""

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
        headers: The headers, ``Content-Type`` among them.
        body: The body as it goes over the wire.
        delay: Seconds to wait before it is sent.
        delivery: Whole, cut off in the middle of the body, dropped before the first byte, or never.

    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    delay: float = 0.0
    delivery: Delivery = Delivery.WHOLE

    @classmethod
    def json(cls, status: int, body: Any, *, headers: Mapping[str, str] | None = None) -> FaultAnswer:
        """Write *body* as the gateway does: compact, UTF-8."""
        return cls(status, {"Content-Type": "application/json", **(headers or {})}, _compact(body))

    def with_json(self, change: Callable[[Any], Any]) -> FaultAnswer:
        """Return the answer with a changed body: what *change* makes of it."""
        return attrs.evolve(self, body=_compact(change(json.loads(self.body))))


def _compact(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


@functools.lru_cache(maxsize=4)
def _bomb(size: int) -> bytes:
    """Return gzip data of about a thousandth of *size* that becomes JSON of *size* bytes."""
    opening, closing = b'{"Player":{"id":"', b'"}}'
    packer = zlib.compressobj(level=9, wbits=31)
    chunks, rest = divmod(max(0, size - len(opening) - len(closing)), _CHUNK)
    parts = itertools.chain([opening], itertools.repeat(b"a" * _CHUNK, chunks), [b"a" * rest, closing])
    return b"".join([packer.compress(part) for part in parts]) + packer.flush()


def _first_record(body: Any) -> Any:
    """Return the record that an answer is about, or a list's first row; the body itself when it is flat."""
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
    One thing that goes wrong with an answer.

    The named constructors make the usual ones; a test's own fault is ``Fault("name", edit)``.

    Args:
        name: What goes wrong, for people.
        edit: Makes the faulty answer of the right one.

    """

    name: str
    edit: Callable[[FaultAnswer], FaultAnswer] = attrs.field(repr=False, eq=False)

    @classmethod
    def _setting(cls, name: str, **changes: Any) -> Fault:
        return cls(name, lambda answer: attrs.evolve(answer, **changes))

    @classmethod
    def _showing_a_page(cls, name: str, status: int, retry_after: float | str | None = None) -> Fault:
        headers = {"Content-Type": "text/html"}
        if retry_after is not None:
            headers["Retry-After"] = str(retry_after)
        return cls._setting(name, status=status, headers=headers, body=_HTML % status)

    @classmethod
    def rate_limited(cls, *, retry_after: float | str | None = 1) -> Fault:
        """429; *retry_after* becomes the header (seconds or an HTTP date), None sends none."""
        return cls._showing_a_page(f"rate limited, retry after {retry_after}", 429, retry_after)

    @classmethod
    def unavailable(cls, *, status: int = 503, retry_after: float | str | None = None) -> Fault:
        """502, 503 or 504 with the page of a proxy instead of JSON."""
        return cls._showing_a_page(f"status {status}", status, retry_after)

    @classmethod
    def error(cls, *, status: int, code: int, message: str) -> Fault:
        """An error in the gateway's own form."""
        body = {"code": code, "message": message, "details": []}
        return cls(
            f"status {status}, code {code}", lambda answer: FaultAnswer.json(status, body, headers=answer.headers)
        )

    @classmethod
    def html(cls) -> Fault:
        """Status 200 with HTML, as a captive portal answers."""
        return cls._showing_a_page("HTML", 200)

    @classmethod
    def redirect(cls, url: str, *, status: int = 302) -> Fault:
        """A redirect to *url*, which may be another server's."""
        return cls._setting(f"redirect to {url}", status=status, headers={"Location": url}, body=b"")

    @classmethod
    def dropped(cls) -> Fault:
        """
        The connection is reset before the answer.

        aiohttp's client by itself asks once more, so each try of its user may count as two requests.
        """
        return cls._setting("dropped", delivery=Delivery.DROPPED)

    @classmethod
    def cut(cls) -> Fault:
        """The connection is reset in the middle of the body."""
        return cls._setting("cut", delivery=Delivery.CUT)

    @classmethod
    def hung(cls) -> Fault:
        """The answer never comes; closing the node does not wait for it."""
        return cls._setting("hung", delivery=Delivery.HUNG)

    @classmethod
    def delayed(cls, seconds: float = 2.5) -> Fault:
        """The answer comes late."""
        return cls(f"delayed by {seconds} s", lambda answer: attrs.evolve(answer, delay=answer.delay + seconds))

    @classmethod
    def gzip_bomb(cls, *, size: int = 200_000_000) -> Fault:
        """JSON of *size* bytes, a thousandth of that on the wire."""
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return cls._setting(f"gzip bomb of {size} bytes", headers=headers, body=_bomb(size))

    @classmethod
    def oversized(cls, *, size: int = 20_000_000) -> Fault:
        """The right answer, padded to *size* bytes with blanks, which JSON allows."""
        return cls(f"{size} bytes", lambda answer: attrs.evolve(answer, body=answer.body.ljust(size)))

    @classmethod
    def truncated(cls) -> Fault:
        """Half of the JSON, in a whole answer."""
        return cls("truncated", lambda answer: attrs.evolve(answer, body=answer.body[: len(answer.body) // 2]))

    @classmethod
    def invalid_utf8(cls) -> Fault:
        """JSON with bytes in a string that are no UTF-8."""
        return cls._setting("invalid UTF-8", body=b'{"Player":{"id":"1-\xff\xfe"}}')

    @classmethod
    def nan(cls, *, field: str = "index") -> Fault:
        """JSON with NaN, which is none."""
        return cls.wrong_field(field=field, value=float("nan"))

    @classmethod
    def nested(cls, *, levels: int = 100_000) -> Fault:
        """JSON nested deeper than a reader should follow."""
        return cls._setting(f"{levels} levels", body=b'{"Player":' + b"[" * levels + b"]" * levels + b"}")

    @classmethod
    def wrong_field(cls, *, field: str, value: Any) -> Fault:
        """A malformed entity: one field of the record (of a list's first row) has another value, of any type."""

        def change(body: Any) -> Any:
            _first_record(body)[field] = value
            return body

        return cls(f"{field} is {value!r}", lambda answer: answer.with_json(change))

    @classmethod
    def wrong_entity(cls, entity_id: str) -> Fault:
        """The answer says that it is about another entity than the one asked for."""
        return cls.wrong_field(field="id", value=entity_id)

    @classmethod
    def not_an_object(cls) -> Fault:
        """Valid JSON, but a list where an object is promised."""
        return cls("a list", lambda answer: answer.with_json(lambda body: [body]))


@attrs.define
class _Rule:
    faults: tuple[Fault, ...]
    on: str
    left: int | None


@attrs.define(eq=False)
class Faults:
    """
    Which requests go wrong; may be changed at any time and from any thread.

    A request meets the oldest rule that fits it and is not used up, and only that one.
    So several `add` make a sequence (first a 429, then a 503), and several faults in one `add` come together.
    """

    _rules: list[_Rule] = attrs.field(factory=list, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    def add(self, *faults: Fault, on: str = "*", times: int | None = None) -> None:
        """
        Let requests go wrong.

        Args:
            faults: What goes wrong, all of it at once, in this order.
            on: Whom it meets: a path, an id or other parameter in the path, a route's pattern
                (``/structs/player/{id}``), a type (``player``), or ``*`` for everything.
                A parameter begins with a digit, or is an address, an attribute's name or hexadecimal text;
                name a request by its path where it is anything else.
            times: For how many requests; None for all until `clear`.

        Raises:
            InvalidArgument: There is no fault, or the rule could never meet a request.

        """
        checked_name("on", on)
        if not faults or not all(isinstance(fault, Fault) for fault in faults):
            raise InvalidArgument(f"faults must be one Fault or more, got {faults!r:.80}")
        if times is not None and (not isinstance(times, int) or isinstance(times, bool) or times < 1):
            raise InvalidArgument(f"times must be 1 or more, or None, got {times!r}")
        with self._lock:
            self._rules.append(_Rule(faults, on, times))

    def clear(self, on: str | None = None) -> None:
        """Let requests go well again: those named by *on*, or all of them."""
        if on is not None:
            checked_name("on", on)
        with self._lock:
            self._rules = [rule for rule in self._rules if on is not None and rule.on != on]

    def take(self, names: Iterable[str]) -> tuple[Fault, ...]:
        """Return the faults that the next request with these names meets; this uses one of the rule's times."""
        wanted = frozenset(names)
        with self._lock:
            for rule in self._rules:
                if rule.on in wanted:
                    if rule.left is not None:
                        rule.left -= 1
                        if not rule.left:
                            self._rules.remove(rule)
                    return rule.faults
        return ()
