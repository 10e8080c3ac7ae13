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
from mama_structs.references.rate_limit import RateLimiter
from mama_structs.references.results import QueryAttempt, current_attempt

T = TypeVar("T")

_FIRST_REDIRECT_STATUS, _FIRST_ERROR_STATUS = 300, 400
_TOO_MANY_REQUESTS = 429
_RETRYABLE_STATUSES = frozenset({502, 503, 504})
_CHUNK_BYTES = 64 * 1024
MAX_QUOTED_CHARS = 200
_DEFAULT_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": "mama-structs"}
_UNREACHABLE_HINT = "is the node running, and is the base URL that of its REST interface?"
_AIOHTTP_VERSION_HINT = "a session with a base_url of its own needs aiohttp 3.12 or later"
_MISSING_ROUTE_STATUSES = frozenset({404, 405, 501})
MAX_JSON_DEPTH = 100
_BOM_AND_WHITESPACE = b"\xef\xbb\xbf \t\r\n"
_GZIP_WBITS, _ZLIB_WBITS, _RAW_DEFLATE_WBITS = 31, 15, -15
_SURROGATE_ESCAPE_PATTERN = re.compile(r"\\u[dD][89a-fA-F]")
_SECONDS_PATTERN = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)


@attrs.frozen(kw_only=True)
class Backoff:
    """
    Exponential backoff with full jitter.

    *base* is the maximum of the first pause, *cap* the maximum of all pauses, in seconds.
    """

    base: float = 0.1
    cap: float = 2.0
    random: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

    def compute_pause(self, retry: int) -> float:
        """Return the pause in seconds before retry number *retry*, counted from 0."""
        # Limit the exponent, because a large number of retries would overflow.
        return self.random() * min(self.cap, math.ldexp(self.base, min(retry, 32)))


def parse_retry_after(text: str | None, *, now: float) -> float | None:
    """Parse a Retry-After header: seconds (with decimals) or an HTTP date, else None."""
    if text is None:
        return None
    if _SECONDS_PATTERN.fullmatch(text.strip()):
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
        # HTTP dates are in UTC, so assume UTC if the zone is missing.
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, OverflowError):
        return None


class ResponseBody:
    """
    Response body, decompressed chunk by chunk.

    A size limit protects against gzip bombs.
    """

    def __init__(self, encoding: str, *, max_bytes: int) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ValueError(f"has the content encoding {encoding[:40]!r}, which was not asked for")
        self._compressed = self._encoding not in ("", "identity")
        self._limit = max_bytes
        self._inflater: Any = None
        self._member_count = 0
        self._content = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Append the next chunk, of any length."""
        # Decompress one byte more than allowed, to detect a body that exceeds the limit.
        room = self._limit - len(self._content) + 1
        self._content += self._inflate(chunk, room) if self._compressed and chunk else chunk
        if len(self._content) > self._limit:
            raise ResponseTooLarge(self._limit)

    def finish(self) -> bytes:
        """Return the complete body, or raise `ValueError` if the compressed data is incomplete."""
        if self._compressed and (self._inflater is None or not self._inflater.eof):
            raise ValueError(f"ends in the middle of its {self._encoding} data")
        return bytes(self._content)

    def _inflate(self, chunk: bytes, max_bytes: int) -> bytes:
        content = b""
        while chunk and len(content) < max_bytes:
            if self._inflater is None or (self._inflater.eof and self._encoding != "deflate"):
                # A gzip body may consist of several members (RFC 1952), such as one for each part of a proxy's answer.
                self._inflater = self._make_inflater(chunk)
                self._member_count += 1
            try:
                content += self._inflater.decompress(chunk, max_bytes - len(content))
            except zlib.error as error:
                fault = "is not valid" if self._member_count == 1 else "has bytes behind its"
                raise ValueError(f"{fault} {self._encoding} data") from error
            chunk = self._inflater.unused_data
            if chunk and self._encoding == "deflate":
                raise ValueError("has bytes behind its deflate data")
        return content

    def _make_inflater(self, chunk: bytes) -> Any:
        # By RFC 9110 "deflate" is zlib data, but some servers omit the zlib header.
        deflated = _ZLIB_WBITS if chunk[0] & 0x0F == zlib.DEFLATED else _RAW_DEFLATE_WBITS
        return zlib.decompressobj(deflated if self._encoding == "deflate" else _GZIP_WBITS)


def decode_json(content: bytes) -> Any:
    """Parse strict JSON: UTF-8, also with a byte order mark, finite numbers, at most `MAX_JSON_DEPTH` levels."""
    try:
        # A byte order mark is no JSON, but some servers and proxies send it.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8") from error
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError(f"is nested deeper than {MAX_JSON_DEPTH} levels") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at character {error.pos}") from error
    except _StrictJsonError:
        raise
    except ValueError as error:  # int() raises for more than 4300 digits
        raise ValueError("has a number with too many digits") from error
    if _exceeds_depth(value, MAX_JSON_DEPTH):
        raise ValueError(f"is nested deeper than {MAX_JSON_DEPTH} levels")
    if _SURROGATE_ESCAPE_PATTERN.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("has an escaped half of a surrogate pair") from None
    return value


class _StrictJsonError(ValueError):
    """Violation of a rule that is stricter than the JSON parser."""


def _reject_constant(name: str) -> NoReturn:
    raise _StrictJsonError(f"has the number {name}, which JSON does not")


def _parse_finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _StrictJsonError("has a number that is too large")
    return number


# Reused, because json.loads with options creates a decoder for every call.
_DECODER = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_parse_finite_float)


def _exceeds_depth(value: Any, max_depth: int) -> bool:
    level = [value]
    for _ in range(max_depth + 1):
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


def count_connections(session: aiohttp.ClientSession, max_connections: int) -> int:
    """
    Return the maximum number of concurrent requests, at most the connection limit of the session.

    Without this limit, requests would spend their timeout waiting for a connection.
    """
    connector = session.connector
    if connector is None:
        return max_connections
    # For aiohttp, a limit of 0 means unlimited.
    return min(max_connections, connector.limit or max_connections, connector.limit_per_host or max_connections)


class RetryableError(Exception):
    """Raised for a request that may be retried, because *error* may be temporary."""

    def __init__(self, error: StructsError, *, retry_after: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after = retry_after

    @property
    def is_rate_limit(self) -> bool:
        """True if the node rate-limited the request or sent a Retry-After header."""
        return isinstance(self.error, RateLimited) or self.retry_after is not None


@attrs.frozen
class HttpResponse:
    """Response to the request for *path*. *payload* is None if the body of an error is not JSON."""

    path: str
    status: int
    headers: Mapping[str, str]
    payload: Any
    # Hint if the response cannot come from the expected API, else None.
    hint: str | None

    @property
    def is_error(self) -> bool:
        """True if the HTTP status is 400 or higher."""
        return self.status >= _FIRST_ERROR_STATUS

    def raise_error(self, *, code: int | None = None, message: str | None = None) -> NoReturn:
        """Raise the error of this response, wrapped in `RetryableError` if a retry may succeed."""
        wait = parse_retry_after(self.headers.get("Retry-After"), now=time.time())
        if self.status == _TOO_MANY_REQUESTS:
            rate_limit_message = f"{self.path}: the node refuses more requests for now"
            raise RetryableError(
                RateLimited(rate_limit_message, retry_after=wait, hint="ask again later"), retry_after=wait
            )
        text = f"{self.path} answered with HTTP {self.status}" + (f": {message[:MAX_QUOTED_CHARS]}" if message else "")
        error = StructsAPIError(text, status=self.status, code=code, message=message, hint=self.hint)
        if self.status in _RETRYABLE_STATUSES:
            raise RetryableError(error, retry_after=wait)
        raise error


@attrs.frozen(kw_only=True)
class HttpClient:
    """Sends requests to one API through an aiohttp session that the caller opens and closes."""

    session: aiohttp.ClientSession
    base_url: str
    # Timeout in seconds for one `send_get` with all its retries. It starts after the slot is acquired.
    timeout: float
    retries: int
    max_response_bytes: int
    limiter: RateLimiter
    backoff: Backoff
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    # Hint for a response that cannot come from the expected API.
    wrong_base_url_hint: str = "is the base URL that of the API?"

    async def send_get(self, path: str, target: str, parse_response: Callable[[HttpResponse], T]) -> T:
        """
        Send a GET request for *target* and return the result of *parse_response* for its response.

        *target* is the *path* with its query.
        """
        attempt = current_attempt.get() or QueryAttempt()
        # A request holds its slot during retry pauses, which lowers the load on a node that rate-limits.
        async with contextlib.nullcontext() if attempt.limiter is self.limiter else self.limiter.acquire_slot(attempt):
            end = asyncio.get_running_loop().time() + self.timeout
            try:
                async with asyncio.timeout_at(end):
                    return await self._get_with_retries(
                        lambda: self._get_once(path, target, parse_response), attempt, end
                    )
            except TimeoutError as error:
                message = f"{path} had no answer within {self.timeout:g} s"
                raise QueryTimeout(message, seconds=self.timeout) from error

    async def _get_with_retries(
        self, send_once: Callable[[], Awaitable[T]], attempt: QueryAttempt, deadline: float
    ) -> T:
        clock = asyncio.get_running_loop().time

        def left() -> float:
            return (deadline if attempt.deadline is None else min(deadline, attempt.deadline)) - clock()

        retry = 0
        while True:
            if self.session.closed:
                raise _make_session_closed_error()
            async with self.limiter.wait_for_turn(attempt, remaining_seconds=left, sleep=self.backoff.sleep) as period:
                try:
                    answer = await send_once()
                except RetryableError as error:
                    failure = error
                    if failure.is_rate_limit:
                        self.limiter.record_rejection(
                            period,
                            retry_after=failure.retry_after,
                            backoff_seconds=self.backoff.compute_pause(self.limiter.consecutive_rejections),
                        )
                except StructsError:
                    self.limiter.record_success(period)
                    raise
                else:
                    self.limiter.record_success(period)
                    return answer
            attempt.rate_limited += isinstance(failure.error, RateLimited)
            # The rate limiter enforces the cooldown, so rate-limited requests need no backoff here.
            pause = self.limiter.remaining_cooldown() if failure.is_rate_limit else self.backoff.compute_pause(retry)
            if retry >= self.retries or pause >= left():
                raise failure.error from failure.__cause__
            if not failure.is_rate_limit:
                await self.backoff.sleep(pause)
            retry += 1
            attempt.retries += 1

    async def _get_once(self, path: str, target: str, parse_response: Callable[[HttpResponse], T]) -> T:
        try:
            async with self.session.get(
                yarl.URL(self.base_url + target, encoded=True),
                headers={**_DEFAULT_HEADERS, **self.headers},
                allow_redirects=False,
                auto_decompress=False,
                raise_for_status=False,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as response:
                return parse_response(await self._read(path, response))
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            # Report only the error's type. Its message contains host names and addresses, which models must not see.
            message = f"{path}: no lasting connection ({type(error).__name__})"
            raise RetryableError(self._make_unreachable(message)) from error
        except (aiohttp.InvalidURL, UnicodeError) as error:
            # Do not retry, because the host name is invalid.
            message = f"{path}: the host of the base URL cannot be asked"
            raise self._make_unreachable(message) from error
        except aiohttp.ClientError as error:
            raise MalformedResponse(f"the answer of {path} is not valid HTTP", hint=self.wrong_base_url_hint) from error
        except (AssertionError, RuntimeError) as error:
            # aiohttp raises these errors if its session is closed during a request.
            if self.session.closed:
                raise _make_session_closed_error() from error
            if isinstance(error, AssertionError):
                # Quote the message only if it comes from the host's wrapper. The assertions of aiohttp have no message.
                said = f": {error}"[:MAX_QUOTED_CHARS] if str(error) else ""
                hint = None if said else _AIOHTTP_VERSION_HINT
                raise self._make_unreachable(f"{path}: aiohttp cannot send this{said}", hint) from error
            raise

    def _make_unreachable(self, message: str, hint: str | None = _UNREACHABLE_HINT) -> StructsUnreachable:
        """Return the error for a request that got no answer, with the host and port of the base URL."""
        host, port = None, None
        # The URL itself may be the reason for the error.
        with contextlib.suppress(ValueError):
            url = yarl.URL(self.base_url)
            host, port = url.host, url.port
        return StructsUnreachable(message, hint=hint, host=host, port=port)

    async def _read(self, path: str, response: aiohttp.ClientResponse) -> HttpResponse:
        status = response.status
        if _FIRST_REDIRECT_STATUS <= status < _FIRST_ERROR_STATUS:
            raise StructsAPIError(
                f"{path} answered with a redirect (HTTP {status}), which is not followed",
                status=status,
                hint="give the base URL that the redirect leads to",
            )
        payload: Any = None
        hint: str | None = None
        try:
            body = ResponseBody(response.headers.get("Content-Encoding", ""), max_bytes=self.max_response_bytes)
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                body.feed(chunk)
            content = body.finish()
            # Malformed JSON may still come from a node. Other content, such as HTML, suggests a wrong base URL.
            hint = None if content.lstrip(_BOM_AND_WHITESPACE).startswith((b"{", b"[")) else self.wrong_base_url_hint
            payload = decode_json(content)
        except ValueError as error:
            # Ignore an invalid body if the status reports an error, because a proxy's body for a 502 need not be JSON.
            if status < _FIRST_ERROR_STATUS:
                raise MalformedResponse(f"the answer of {path} {error}", hint=hint) from error
        return HttpResponse(
            path, status, response.headers, payload, hint if status in _MISSING_ROUTE_STATUSES else None
        )


def _make_session_closed_error() -> SessionClosed:
    return SessionClosed("the client's HTTP session is closed", hint="make a new client")


# Base URLs
