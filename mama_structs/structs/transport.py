"""
One GET to the node: with retries, a cap on the body, strict decoding, and errors told apart by the body first.

This module imports aiohttp; the client loads it when it is first used.
What decodes raises a plain `ValueError` for a body that breaks a rule: the caller knows which answer it was.
"""

import asyncio
import email.utils
import json
import math
import random
import re
import time
import zlib
from collections.abc import Awaitable, Callable
from datetime import UTC
from typing import Any, NoReturn, Protocol

import aiohttp
import attrs
import yarl

from mama_structs.errors import (
    EntityNotFound,
    MalformedResponse,
    QueryTimeout,
    RateLimited,
    ResponseTooLarge,
    SessionClosed,
    StructsAPIError,
    StructsError,
    StructsUnreachable,
)
from mama_structs.references.outcomes import Attempt, current_attempt
from mama_structs.structs.answers import Envelope
from mama_structs.structs.routes import NodeQuery

_REDIRECTS, _ERRORS = 300, 400
_TOO_MANY_REQUESTS = 429
_TEMPORARY = frozenset({502, 503, 504})
_CHUNK = 64 * 1024
_QUOTED = 200
_HEIGHT = re.compile(r"[0-9]{1,20}", re.ASCII)
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": "mama-structs"}
_NO_NODE = "is the node running, and is the base URL that of its REST interface?"
_OLD_AIOHTTP = "a session with a base_url of its own needs aiohttp 3.12 or later"
_NO_ROUTE = frozenset({404, 405, 501})
_WRONG_BASE = "is the base URL that of the chain's REST interface (port 1317 on a local node)?"
MAX_DEPTH = 100
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)


@attrs.frozen(kw_only=True)
class Backoff:
    """Exponential backoff with full jitter, in seconds: *base* is the longest first pause, *cap* the longest."""

    base: float = 0.1
    cap: float = 2.0
    draw: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def pause(self, retry: int, *, retry_after: float | None, left: float) -> float | None:
        """Return how long to wait before a retry (from 0), None where that does not fit into the time *left*."""
        # The exponent is bounded so that a large count of retries cannot overflow.
        pause = self.draw() * min(self.cap, self.base * 2 ** min(retry, 32))
        pause = max(pause, retry_after or 0.0)
        return pause if pause < left else None


def parse_retry_after(text: str | None, *, now: float) -> float | None:
    """Read a Retry-After header: seconds, decimals included, or the date of HTTP; None where it is neither."""
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


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /, max_length: int = ...) -> bytes: ...


class Body:
    """
    A body that arrives in chunks, decompressed as it comes and never beyond a cap.

    A few hundred kilobytes of gzip can hold gigabytes: no step may produce more than what is still allowed.
    """

    def __init__(self, encoding: str, *, limit: int) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ValueError(f"has the content encoding {encoding[:40]!r}, which was not asked for")
        self._compressed = self._encoding not in ("", "identity")
        self._limit = limit
        self._inflater: _Inflater | None = None
        self._content = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk, of any length."""
        # One byte more than allowed tells "too large" from "just fits".
        room = self._limit - len(self._content) + 1
        self._content += self._inflate(chunk, room) if self._compressed and chunk else chunk
        if len(self._content) > self._limit:
            raise ResponseTooLarge(self._limit)

    def finish(self) -> bytes:
        """Return the whole body, or raise `ValueError` where the compressed data ends too early."""
        if self._compressed and (self._inflater is None or not self._inflater.eof):
            raise ValueError(f"ends in the middle of its {self._encoding} data")
        return bytes(self._content)

    def _inflate(self, chunk: bytes, room: int) -> bytes:
        if self._inflater is None:
            self._inflater = zlib.decompressobj(self._window(chunk))
        try:
            content = self._inflater.decompress(chunk, room)
        except zlib.error as error:
            raise ValueError(f"is not valid {self._encoding} data") from error
        if self._inflater.unused_data:
            raise ValueError(f"has bytes behind its {self._encoding} data")
        return content

    def _window(self, chunk: bytes) -> int:
        if self._encoding != "deflate":
            return _GZIP
        # "deflate" is zlib data by the standard, but some servers leave the zlib header out.
        return _ZLIB if chunk[0] & 0x0F == zlib.DEFLATED else _RAW_DEFLATE


def decode_json(content: bytes) -> Any:
    """Read JSON as the standard has it: UTF-8, finite numbers, and at most `MAX_DEPTH` levels."""
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
    except ValueError as error:  # int() takes no more than 4300 digits
        raise ValueError("has a number with too many digits") from error
    if _deeper_than(value, MAX_DEPTH):
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
    if _SURROGATE_ESCAPE.search(text) and _has_lone_surrogate(value):
        raise ValueError("has an escaped half of a surrogate pair")
    return value


class _RuleError(ValueError):
    """A rule of ours, as opposed to one of the parser's."""


def _refuse_constant(name: str) -> NoReturn:
    raise _RuleError(f"has the number {name}, which JSON does not")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _RuleError("has a number that is too large")
    return number


# Made once: json.loads with options would make one for each text.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def open_session(*, max_connections: int) -> aiohttp.ClientSession:
    """Return a session for one client: no cookies, no timeouts of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
    )


def connections_of(session: aiohttp.ClientSession, most: int) -> int:
    """Return how many requests can be in progress at once: who waits for a connection in the session loses time."""
    connector = session.connector
    if connector is None:
        return most
    # To a connector, 0 means any number.
    return min(most, connector.limit or most, connector.limit_per_host or most)


class _Temporary(Exception):
    """*error* may be gone when asked again."""

    def __init__(self, error: StructsError, *, retry_after: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after = retry_after


@attrs.frozen(kw_only=True)
class Transport:
    """
    Sends requests to one node through a session of aiohttp that somebody else opens and closes.

    The session's own settings for redirects, decompression and timeouts are overruled.
    *timeout* is for one `get` with all its retries, from when it has its slot: waiting for one costs none of it.
    """

    session: aiohttp.ClientSession
    base_url: str
    timeout: float
    retries: int
    max_response_bytes: int
    slots: asyncio.Semaphore
    backoff: Backoff

    async def get(self, request: NodeQuery) -> Envelope:
        """Return the JSON object that the node answers with, or raise what it answers, or that it does not."""
        async with self.slots:
            # Pauses keep their slot: a node that asks us to slow down should see fewer of us.
            end = asyncio.get_running_loop().time() + self.timeout
            try:
                async with asyncio.timeout_at(end):
                    return await self._get_with_retries(request, end)
            except TimeoutError as error:
                raise QueryTimeout(
                    f"{request.path} had no answer within {self.timeout:g} s", seconds=self.timeout
                ) from error

    async def _get_with_retries(self, request: NodeQuery, end: float) -> Envelope:
        attempt = current_attempt.get() or Attempt()
        retry = 0
        while True:
            if self.session.closed:
                raise _session_closed()
            try:
                return await self._get_once(request)
            except _Temporary as failure:
                attempt.rate_limited += isinstance(failure.error, RateLimited)
                pause = self._pause(retry, failure, end, attempt)
                if pause is None:
                    raise failure.error from failure.__cause__
            await self.backoff.sleep(pause)
            retry += 1
            attempt.retries += 1

    def _pause(self, retry: int, failure: _Temporary, end: float, attempt: Attempt) -> float | None:
        if retry >= self.retries:
            return None
        expires = end if attempt.expires is None else min(end, attempt.expires)
        left = expires - asyncio.get_running_loop().time()
        return self.backoff.pause(retry, retry_after=failure.retry_after, left=left)

    async def _get_once(self, request: NodeQuery) -> Envelope:
        try:
            async with self.session.get(
                yarl.URL(self.base_url + request.target, encoded=True),
                headers=_HEADERS,
                allow_redirects=False,
                auto_decompress=False,
                raise_for_status=False,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as response:
                return await self._read(request, response)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            # The errors' own texts name hosts and addresses.
            message = f"{request.path}: no lasting connection ({type(error).__name__})"
            raise _Temporary(StructsUnreachable(message, hint=_NO_NODE)) from error
        except (aiohttp.InvalidURL, UnicodeError) as error:
            # Nothing was sent: the host's name cannot be looked up.
            raise StructsUnreachable(
                f"{request.path}: the host of the base URL cannot be asked", hint=_NO_NODE
            ) from error
        except aiohttp.ClientError as error:
            raise MalformedResponse(f"the answer of {request.path} is not valid HTTP", hint=_WRONG_BASE) from error
        except (AssertionError, RuntimeError) as error:
            # When its session is closed under a request, aiohttp trips over what is gone.
            if self.session.closed:
                raise _session_closed() from error
            if isinstance(error, AssertionError):
                # aiohttp's own assertions are bare; one with words is from what the host put around it.
                said = f": {error}"[:_QUOTED] if str(error) else ""
                hint = None if said else _OLD_AIOHTTP
                raise StructsUnreachable(f"{request.path}: aiohttp cannot send this{said}", hint=hint) from error
            raise

    async def _read(self, request: NodeQuery, response: aiohttp.ClientResponse) -> Envelope:
        status = response.status
        if _REDIRECTS <= status < _ERRORS:
            raise StructsAPIError(
                f"{request.path} answered with a redirect (HTTP {status}), which is not followed",
                status=status,
                hint="give the base URL that the redirect leads to",
            )
        payload: Any = None
        hint: str | None = None
        try:
            content = await self._content(response)
            hint = None if _looks_like_json(content) else _WRONG_BASE
            payload = decode_json(content)
        except ValueError as error:
            # What a proxy says beside a 502 need not be JSON: the status says enough.
            if status < _ERRORS:
                raise MalformedResponse(f"the answer of {request.path} {error}", hint=hint) from error
        if status >= _ERRORS or _is_error(payload, request):
            hint = hint if status in _NO_ROUTE else None
            _raise_error(request, status, payload, retry_after=response.headers.get("Retry-After"), hint=hint)
        if not isinstance(payload, dict) or request.key not in payload:
            raise MalformedResponse(f"the answer of {request.path} is no object with {request.key!r}", hint=_WRONG_BASE)
        return Envelope(payload, height=_height(response.headers.get("Grpc-Metadata-X-Cosmos-Block-Height")))

    async def _content(self, response: aiohttp.ClientResponse) -> bytes:
        body = Body(response.headers.get("Content-Encoding", ""), limit=self.max_response_bytes)
        async for chunk in response.content.iter_chunked(_CHUNK):
            body.feed(chunk)
        return body.finish()


def _session_closed() -> SessionClosed:
    return SessionClosed("the client's HTTP session is closed", hint="make a new client")


def _looks_like_json(content: bytes) -> bool:
    """Whether a body may be from a node at all, be it broken: a web server's page is not."""
    return content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))


def _is_error(payload: Any, request: NodeQuery) -> bool:
    """Whether a body that came with a good status is an error nevertheless, as the docs of the chain have it."""
    code, message = _error_of(payload)
    return code not in (None, 0) and message is not None and request.key not in payload


def _error_of(payload: Any) -> tuple[int | None, str | None]:
    """Return code and message of an error body, None for what it does not have."""
    if not isinstance(payload, dict):
        return None, None
    code, message = payload.get("code"), payload.get("message")
    return (
        code if isinstance(code, int) and not isinstance(code, bool) else None,
        message if isinstance(message, str) else None,
    )


def _raise_error(
    request: NodeQuery, status: int, payload: Any, *, retry_after: str | None, hint: str | None
) -> NoReturn:
    code, message = _error_of(payload)
    # The chain answers 500 for an id that does not exist: only the body tells.
    if request.asked is not None and code is not None and message is not None and "not found" in message.lower():
        raise EntityNotFound(request.asked)
    wait = parse_retry_after(retry_after, now=time.time())
    if status == _TOO_MANY_REQUESTS:
        limited = RateLimited(
            f"{request.path}: the node refuses more requests for now", retry_after=wait, hint="ask again later"
        )
        raise _Temporary(limited, retry_after=wait)
    said = f": {message[:_QUOTED]}" if message else ""
    error = StructsAPIError(
        f"{request.path} answered with HTTP {status}{said}", status=status, code=code, message=message, hint=hint
    )
    if status in _TEMPORARY:
        raise _Temporary(error, retry_after=wait)
    raise error


def _height(text: str | None) -> int | None:
    return int(text) if text is not None and _HEIGHT.fullmatch(text) else None
