"""
One GET to the node: with retries, a cap on the body, strict decoding, and errors told apart by the body first.

This module imports aiohttp; the client loads it when it is first used.
"""

import asyncio
import re
import time
from typing import Any, NoReturn

import aiohttp
import attrs
import yarl

from mama_structs.errors import (
    EntityNotFound,
    MalformedResponse,
    QueryTimeout,
    RateLimited,
    SessionClosed,
    StructsAPIError,
    StructsError,
    StructsUnreachable,
)
from mama_structs.references.attempt import Attempt, current_attempt
from mama_structs.structs.answers import Envelope
from mama_structs.structs.decoding import Body, decode_json
from mama_structs.structs.retrying import Backoff, parse_retry_after
from mama_structs.structs.routes import Request

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


def open_session(*, max_connections: int) -> aiohttp.ClientSession:
    """Return a session for one client: no cookies, no timeouts of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
    )


def connections_of(session: aiohttp.ClientSession, most: int) -> int:
    """
    Return how many requests can be in progress at once, up to *most*.

    Who waits for a connection inside the session has a slot already, and loses time.
    """
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

    Args:
        session: The session; its own settings for redirects, decompression and timeouts are overruled.
        base_url: Where the routes begin, without a slash at the end.
        timeout: Seconds for one `get` with all its retries, from when it has its slot.
        retries: How often a request is sent again.
        max_response_bytes: The largest body after decompression.
        slots: Bounds the requests at once; waiting for one costs none of the timeout.
        backoff: How long to wait before a retry.

    """

    session: aiohttp.ClientSession
    base_url: str
    timeout: float
    retries: int
    max_response_bytes: int
    slots: asyncio.Semaphore
    backoff: Backoff

    async def get(self, request: Request) -> Envelope:
        """
        Return the JSON object that the node answers with.

        Raises:
            EntityNotFound: The node says so, whatever the HTTP status.
            RateLimited: It refuses more requests, and waiting as it asks does not fit into the time.
            StructsAPIError: It answers with another error.
            MalformedResponse: It answers with something else than the object that the request expects.
            ResponseTooLarge: The body is over the limit.
            StructsUnreachable: There is no connection, or none that lasts.
            QueryTimeout: The time is over.

        """
        async with self.slots:
            # Pauses keep their slot: a node that asks us to slow down should see fewer of us.
            end = asyncio.get_running_loop().time() + self.timeout
            try:
                async with asyncio.timeout_at(end):
                    return await self._get_patiently(request, end)
            except TimeoutError as error:
                raise QueryTimeout(
                    f"{request.path} had no answer within {self.timeout:g} s", seconds=self.timeout
                ) from error

    async def _get_patiently(self, request: Request, end: float) -> Envelope:
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

    async def _get_once(self, request: Request) -> Envelope:
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

    async def _read(self, request: Request, response: aiohttp.ClientResponse) -> Envelope:
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


def _is_error(payload: Any, request: Request) -> bool:
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


def _raise_error(request: Request, status: int, payload: Any, *, retry_after: str | None, hint: str | None) -> NoReturn:
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
