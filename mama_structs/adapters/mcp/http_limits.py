"""Limits for HTTP requests: size of the headers, and time to receive headers and body."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any, Final

import attrs
import h11
import mcp_types as types
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from mama_structs.adapters.mcp.jsonrpc import Rejection, decode

_log = logging.getLogger("mama_structs")

MAX_HEADER_BYTES: Final = 32 * 1024
"""Maximum bytes of the request line and headers. Larger requests are answered with 431."""

# Seconds for a client to send the headers.
HEADER_SECONDS: Final = 20.0
# Seconds for a client to send the body. A slower request is answered with 408.
BODY_SECONDS: Final = 60.0
# Seconds to receive the rest of a body after its request was answered early, for example because the token is missing.
UNREAD_BODY_SECONDS: Final = 5.0
# Bodies above this size are decoded in a thread, so that decoding does not block the event loop.
_LARGE_BODY_BYTES: Final = 256 * 1024
_STATUS_TIMEOUT: Final = 408
_STATUS_HEADERS_TOO_LARGE: Final = 431
_STATUS_BAD_REQUEST: Final = 400


class LimitedProtocol(H11Protocol):
    """The HTTP protocol of uvicorn with a header timeout and exact error statuses."""

    _header_timer: asyncio.TimerHandle | None = None
    _rest_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the header timer of the first request."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_timer()
        self._stop_rest_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Run the header timer only while the server waits for the headers of a request."""
        super().data_received(data)
        if self.conn.our_state is not h11.DONE:
            # The body is complete, so its timer is no longer needed.
            self._stop_rest_timer()
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_timer()
        elif self._header_timer is None:
            self._start_timer()

    def on_response_complete(self) -> None:
        """Limit the time to read the rest of a body, because uvicorn would read it forever."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            # Do not close immediately, because a client that is still sending would lose the answer.
            self._rest_timer = self.loop.call_later(UNREAD_BODY_SECONDS, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, or whose headers are too long."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else _STATUS_BAD_REQUEST
        self._answer(status, msg)

    def _start_timer(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._end_slow_request)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_rest_timer(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _end_slow_request(self) -> None:
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            self._answer(_STATUS_TIMEOUT, f"The headers were not complete after {HEADER_SECONDS:g} seconds.")
        else:
            self.transport.close()

    def _answer(self, status: int, text: str) -> None:
        _log.info("an HTTP request is rejected with %d", status)
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        events: Sequence[Any] = (
            h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
            h11.Data(data=text.encode("ascii")),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


@attrs.frozen
class LimitedRequests:
    """
    ASGI middleware that limits headers and body time, and decodes the body like a message over stdio.

    The body is read when the application asks for it, so that a client without a token cannot make the server wait.
    """

    app: ASGIApp
    max_body: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif _count_header_bytes(scope) > MAX_HEADER_BYTES:
            _log.info("an HTTP request is rejected with %d", _STATUS_HEADERS_TOO_LARGE)
            response = Response("The headers are too long.", _STATUS_HEADERS_TOO_LARGE, headers={"Connection": "close"})
            await response(scope, receive, send)
        else:
            request = _Request(scope, receive, send, self.max_body)
            await self.app(scope, request.receive, request.send)


def _count_header_bytes(scope: Scope) -> int:
    line = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    return line + sum(len(name) + len(value) for name, value in scope["headers"])


@attrs.define
class _Request:
    """One HTTP request: reads and checks its body, and may answer before the application."""

    scope: Scope
    _receive: Receive
    _send: Send
    _max_body: int
    _is_read: bool = False
    _is_answered: bool = False

    async def receive(self) -> Message:
        """Return the checked body as one message. Later calls return the server's messages."""
        if self._is_read:
            return await self._receive()
        self._is_read = True
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await self._read_body()
        except TimeoutError:
            text = f"The body was not complete after {BODY_SECONDS:g} seconds."
            return await self._answer(Response(text, _STATUS_TIMEOUT, headers={"Connection": "close"}))
        body: bytes = message.get("body", b"")
        # Do not check empty, long or incomplete bodies. The application answers 413 to a body that is too long.
        if not 0 < len(body) <= self._max_body or message.get("more_body") or self.scope["method"] != "POST":
            return message
        checked = await asyncio.to_thread(_check_body, body) if len(body) > _LARGE_BODY_BYTES else _check_body(body)
        if isinstance(checked, bytes):
            return _create_body_message(checked)
        answer = checked.answer().model_dump_json(by_alias=True, exclude_unset=True)
        return await self._answer(Response(answer, _STATUS_BAD_REQUEST, media_type="application/json"))

    async def _read_body(self) -> Message:
        """Return the whole body, or a prefix of a body that is too long."""
        body = bytearray()
        while len(body) <= self._max_body:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                return _create_body_message(bytes(body))
        return {"type": "http.request", "body": bytes(body), "more_body": True}

    async def send(self, message: Message) -> None:
        """Send the application's answer, unless this class has already answered the request."""
        if not self._is_answered:
            await self._send(message)

    async def _answer(self, response: Response) -> Message:
        _log.info("an HTTP request is rejected with %d", response.status_code)
        await response(self.scope, self._receive, self._send)
        self._is_answered = True
        # The application still waits for a body, so return an empty one.
        # The application rejects it, and `send` drops that answer.
        return _create_body_message(b"")


def _create_body_message(body: bytes) -> Message:
    return {"type": "http.request", "body": body, "more_body": False}


def _check_body(body: bytes) -> bytes | Rejection:
    """Return the body as one valid message, repaired if necessary, or a rejection."""
    found = decode(body)
    if isinstance(found, list):
        error = "batches are not accepted over HTTP: send each message in a request of its own"
        return Rejection(types.INVALID_REQUEST, error)
    if found is None or isinstance(found, Rejection):
        return body if found is None else found
    return json.dumps(found.model_dump(by_alias=True, exclude_unset=True)).encode()
