"""
GET requests to an HTTP API, with retries, rate limiting and strict decoding.

This module imports aiohttp, so callers import it lazily.
Decoders raise `ValueError` for invalid bodies; the caller adds the path of the response.
"""

import asyncio
import contextlib
import email.utils
import json
import math
import random
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from typing import Any, NoReturn, TypeVar

import aiohttp
import attrs
import yarl

from mama_structs.errors import (
    MalformedResponse,
    QueryTimeout,
    RateLimited,
    ResponseTooLarge,
    SessionClosed,
    StructsAPIError,
    StructsError,
    StructsUnreachable,
)
from mama_structs.references.rate_limit import Gate
from mama_structs.references.results import Attempt, current_attempt

T = TypeVar("T")

_REDIRECTS, _ERRORS = 300, 400
_TOO_MANY_REQUESTS = 429
_TEMPORARY = frozenset({502, 503, 504})
_CHUNK = 64 * 1024
QUOTED = 200
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": "mama-structs"}
_NO_NODE = "is the node running, and is the base URL that of its REST interface?"
_OLD_AIOHTTP = "a session with a base_url of its own needs aiohttp 3.12 or later"
_NO_ROUTE = frozenset({404, 405, 501})
MAX_DEPTH = 100
_SPACE = b"\xef\xbb\xbf \t\r\n"
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)


@attrs.frozen(kw_only=True)
class Backoff:
    """
    Exponential backoff with full jitter.

    *base* is the maximum of the first pause, *cap* the maximum of all pauses, in seconds.
    """

    base: float = 0.1
    cap: float = 2.0
    draw: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

    def pause(self, retry: int) -> float:
        """Return how long to wait before a retry, counted from 0."""
        # The exponent is bounded so that a large count of retries cannot overflow.
        return self.draw() * min(self.cap, math.ldexp(self.base, min(retry, 32)))


def parse_retry_after(text: str | None, *, now: float) -> float | None:
    """Parse a Retry-After header: seconds (with decimals) or an HTTP date, else None."""
    if text is None:
        return None
    if _SECONDS.fullmatch(text.strip()):
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
        # A date without a zone is in UTC, as every date of HTTP.
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, OverflowError):
        return None


class Body:
    """
    Response body, decompressed chunk by chunk.

    A size limit protects against gzip bombs.
    """

    def __init__(self, encoding: str, *, limit: int) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ValueError(f"has the content encoding {encoding[:40]!r}, which was not asked for")
        self._compressed = self._encoding not in ("", "identity")
        self._limit = limit
        self._inflater: Any = None
        self._content = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Append the next chunk, of any length."""
        # One extra byte distinguishes "too large" from "exactly at the limit".
        room = self._limit - len(self._content) + 1
        self._content += self._inflate(chunk, room) if self._compressed and chunk else chunk
        if len(self._content) > self._limit:
            raise ResponseTooLarge(self._limit)

    def finish(self) -> bytes:
        """Return the complete body, or raise `ValueError` if the compressed data is incomplete."""
        if self._compressed and (self._inflater is None or not self._inflater.eof):
            raise ValueError(f"ends in the middle of its {self._encoding} data")
        return bytes(self._content)

    def _inflate(self, chunk: bytes, room: int) -> bytes:
        if self._inflater is None:
            # By RFC 9110 "deflate" is zlib data, but some servers omit the zlib header.
            deflated = _ZLIB if chunk[0] & 0x0F == zlib.DEFLATED else _RAW_DEFLATE
            self._inflater = zlib.decompressobj(deflated if self._encoding == "deflate" else _GZIP)
        try:
            content: bytes = self._inflater.decompress(chunk, room)
        except zlib.error as error:
            raise ValueError(f"is not valid {self._encoding} data") from error
        if self._inflater.unused_data:
            raise ValueError(f"has bytes behind its {self._encoding} data")
        return content


def decode_json(content: bytes) -> Any:
    """Parse strict JSON: UTF-8, finite numbers, and at most `MAX_DEPTH` levels."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8") from error
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at character {error.pos}") from error
    except _RuleError:
        raise
    except ValueError as error:  # int() rejects more than 4300 digits
        raise ValueError("has a number with too many digits") from error
    if _deeper_than(value, MAX_DEPTH):
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
    if _SURROGATE_ESCAPE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("has an escaped half of a surrogate pair") from None
    return value


class _RuleError(ValueError):
    """Violation of a rule that is stricter than the JSON parser."""


def _refuse_constant(name: str) -> NoReturn:
    raise _RuleError(f"has the number {name}, which JSON does not")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _RuleError("has a number that is too large")
    return number


# Reused, because json.loads with options creates a decoder for every call.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        nodes = [node for node in level if isinstance(node, dict | list)]
        if not nodes:
            return False
        level = [child for node in nodes for child in (node.values() if isinstance(node, dict) else node)]
    return True


def open_session(*, max_connections: int) -> aiohttp.ClientSession:
    """Return a client session without cookies and without timeouts."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
    )


def connections_of(session: aiohttp.ClientSession, most: int) -> int:
    """
    Return the maximum number of concurrent requests, limited by the session's connector.

    More requests would spend their timeout waiting for a connection.
    """
    connector = session.connector
    if connector is None:
        return most
    # For aiohttp, a limit of 0 means unlimited.
    return min(most, connector.limit or most, connector.limit_per_host or most)


class Temporary(Exception):
    """Signals that *error* may be temporary, so that the request can be retried."""

    def __init__(self, error: StructsError, *, retry_after: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after = retry_after

    @property
    def is_refusal(self) -> bool:
        """True if the node rate-limited the request or sent a Retry-After header."""
        return isinstance(self.error, RateLimited) or self.retry_after is not None


@attrs.frozen
class HttpAnswer:
    """Response for a path. *payload* is None if the body of an error is not JSON."""

    path: str
    status: int
    headers: Mapping[str, str]
    payload: Any
    # Hint for a response that such an API does not send.
    hint: str | None

    @property
    def is_error(self) -> bool:
        """True if the HTTP status is 400 or higher."""
        return self.status >= _ERRORS

    def refuse(self, *, code: int | None = None, message: str | None = None) -> NoReturn:
        """Raise the error of this response, wrapped in `Temporary` if a retry may succeed."""
        wait = parse_retry_after(self.headers.get("Retry-After"), now=time.time())
        if self.status == _TOO_MANY_REQUESTS:
            refused = f"{self.path}: the node refuses more requests for now"
            raise Temporary(RateLimited(refused, retry_after=wait, hint="ask again later"), retry_after=wait)
        text = f"{self.path} answered with HTTP {self.status}" + (f": {message[:QUOTED]}" if message else "")
        error = StructsAPIError(text, status=self.status, code=code, message=message, hint=self.hint)
        if self.status in _TEMPORARY:
            raise Temporary(error, retry_after=wait)
        raise error


@attrs.frozen(kw_only=True)
class HttpApi:
    """Sends requests to one API through an aiohttp session that the caller opens and closes."""

    session: aiohttp.ClientSession
    base_url: str
    # Timeout in seconds for one `ask` with all its retries. It starts after the slot is acquired.
    timeout: float
    retries: int
    max_response_bytes: int
    gate: Gate
    backoff: Backoff
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    # Hint for a response that such an API does not send.
    wrong_base: str = "is the base URL that of the API?"

    async def ask(self, path: str, target: str, judge: Callable[[HttpAnswer], T]) -> T:
        """
        Send a GET request for *target* and return the result of *judge* for its response.

        *target* is the *path* with its query.
        """
        attempt = current_attempt.get() or Attempt()
        # A retry pause keeps its slot, which lowers the load on a node that rate limits.
        async with contextlib.nullcontext() if attempt.gate is self.gate else self.gate.slot(attempt):
            end = asyncio.get_running_loop().time() + self.timeout
            try:
                async with asyncio.timeout_at(end):
                    return await self._get_with_retries(lambda: self._get_once(path, target, judge), attempt, end)
            except TimeoutError as error:
                message = f"{path} had no answer within {self.timeout:g} s"
                raise QueryTimeout(message, seconds=self.timeout) from error

    async def _get_with_retries(self, once: Callable[[], Awaitable[T]], attempt: Attempt, end: float) -> T:
        clock = asyncio.get_running_loop().time

        def left() -> float:
            return (end if attempt.expires is None else min(end, attempt.expires)) - clock()

        retry = 0
        while True:
            if self.session.closed:
                raise _session_closed()
            async with self.gate.turn(attempt, left=left, sleep=self.backoff.sleep) as period:
                try:
                    answer = await once()
                except Temporary as error:
                    failure = error
                    if failure.is_refusal:
                        self.gate.refuse(
                            period, asked=failure.retry_after, pause=self.backoff.pause(self.gate.refusals)
                        )
                except StructsError:
                    self.gate.accept(period)
                    raise
                else:
                    self.gate.accept(period)
                    return answer
            attempt.rate_limited += isinstance(failure.error, RateLimited)
            # Rate-limited requests wait for the cooldown in the rate limiter.
            pause = self.gate.closed_for() if failure.is_refusal else self.backoff.pause(retry)
            if retry >= self.retries or pause >= left():
                raise failure.error from failure.__cause__
            if not failure.is_refusal:
                await self.backoff.sleep(pause)
            retry += 1
            attempt.retries += 1

    async def _get_once(self, path: str, target: str, judge: Callable[[HttpAnswer], T]) -> T:
        try:
            async with self.session.get(
                yarl.URL(self.base_url + target, encoded=True),
                headers={**_HEADERS, **self.headers},
                allow_redirects=False,
                auto_decompress=False,
                raise_for_status=False,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as response:
                return judge(await self._read(path, response))
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            # The messages of these errors contain host names and addresses.
            message = f"{path}: no lasting connection ({type(error).__name__})"
            raise Temporary(StructsUnreachable(message, hint=_NO_NODE)) from error
        except (aiohttp.InvalidURL, UnicodeError) as error:
            # Nothing was sent, because the host name is invalid.
            message = f"{path}: the host of the base URL cannot be asked"
            raise StructsUnreachable(message, hint=_NO_NODE) from error
        except aiohttp.ClientError as error:
            raise MalformedResponse(f"the answer of {path} is not valid HTTP", hint=self.wrong_base) from error
        except (AssertionError, RuntimeError) as error:
            # aiohttp raises these errors if its session is closed during a request.
            if self.session.closed:
                raise _session_closed() from error
            if isinstance(error, AssertionError):
                # aiohttp's own assertions have no message; one with a message comes from the host's wrapper.
                said = f": {error}"[:QUOTED] if str(error) else ""
                hint = None if said else _OLD_AIOHTTP
                raise StructsUnreachable(f"{path}: aiohttp cannot send this{said}", hint=hint) from error
            raise

    async def _read(self, path: str, response: aiohttp.ClientResponse) -> HttpAnswer:
        status = response.status
        if _REDIRECTS <= status < _ERRORS:
            raise StructsAPIError(
                f"{path} answered with a redirect (HTTP {status}), which is not followed",
                status=status,
                hint="give the base URL that the redirect leads to",
            )
        payload: Any = None
        hint: str | None = None
        try:
            body = Body(response.headers.get("Content-Encoding", ""), limit=self.max_response_bytes)
            async for chunk in response.content.iter_chunked(_CHUNK):
                body.feed(chunk)
            content = body.finish()
            # Only JSON may come from a node, even if it is malformed. A web server's HTML page may not.
            hint = None if content.lstrip(_SPACE).startswith((b"{", b"[")) else self.wrong_base
            payload = decode_json(content)
        except ValueError as error:
            # A proxy's body for a 502 need not be JSON; the status suffices.
            if status < _ERRORS:
                raise MalformedResponse(f"the answer of {path} {error}", hint=hint) from error
        return HttpAnswer(path, status, response.headers, payload, hint if status in _NO_ROUTE else None)


def _session_closed() -> SessionClosed:
    return SessionClosed("the client's HTTP session is closed", hint="make a new client")
