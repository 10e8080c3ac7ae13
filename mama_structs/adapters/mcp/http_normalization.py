"""Normalize HTTP requests, because the SDK compares headers and paths exactly, and drop answers to cancelled calls."""

from __future__ import annotations

import ipaddress
import json
from typing import Final

import attrs
from mcp.server.streamable_http import REQUEST_CANCELLED
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Header = tuple[bytes, bytes]

_ANY_TYPE: Final = (b"accept", b"*/*")
_LAST_EVENT_ID: Final = b"last-event-id"
_EVENT_DATA: Final = b"data: "


@attrs.frozen
class NormalizedRequests:
    """
    ASGI middleware that normalizes requests and drops answers to cancelled requests.

    It changes the case of media types and host names, the form of IPv6 addresses, a trailing slash of the path, and a
    missing Accept header. It removes Last-Event-ID, because streams cannot be resumed.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_unless_cancelled(message: Message) -> None:
            await send({**message, "body": b""} if _is_cancelled_answer(message) else message)

        path = scope["path"].rstrip("/") or "/"
        headers = [_normalize_header(*one) for one in scope["headers"] if one[0] != _LAST_EVENT_ID]
        if all(name != b"accept" for name, _ in headers):
            headers.append(_ANY_TYPE)
        await self.app({**scope, "path": path, "headers": headers}, receive, send_unless_cancelled)


def normalize_host(host: str) -> str:
    """
    Return the canonical form of a host with an optional port.

    Names become lower-case without the root dot, IPv6 addresses compressed in brackets. Invalid hosts are unchanged.
    """
    if host.count(":") > 1 and not host.startswith("["):
        name, port = host, ""
    elif host.startswith("[") and "]" in host:
        name, _, port = host[1:].partition("]")
    else:
        name, colon, number = host.partition(":")
        return f"{name.lower().removesuffix('.')}{colon}{number}"
    try:
        return f"[{ipaddress.IPv6Address(name).compressed}]{port}"
    except ValueError:
        return host


def normalize_origin(origin: str) -> str:
    """Return the canonical form of an origin: scheme, host and optional port."""
    scheme, separator, host = origin.partition("://")
    return f"{scheme.lower()}://{normalize_host(host)}" if separator else origin


def _normalize_header(name: bytes, value: bytes) -> Header:
    text = value.decode("latin-1")
    if name == b"content-type":
        media_type, semicolon, parameters = text.partition(";")
        text = f"{media_type.strip().lower()}{semicolon}{parameters}"
    elif name == b"host":
        text = normalize_host(text)
    elif name == b"origin":
        text = normalize_origin(text)
    else:
        return name, value
    return name, text.encode("latin-1", "replace")


def _is_cancelled_answer(message: Message) -> bool:
    """
    Return True for an event with the SDK's error for a cancelled request.

    The protocol forbids this answer, and clients report it as unexpected.
    """
    body: bytes = message.get("body", b"")
    if b"%d" % REQUEST_CANCELLED not in body:
        return False
    try:
        answer = json.loads(body.partition(_EVENT_DATA)[2])
    except ValueError:
        return False
    error = answer.get("error") if isinstance(answer, dict) else None
    return isinstance(error, dict) and error.get("code") == REQUEST_CANCELLED
