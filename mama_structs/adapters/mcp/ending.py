"""Ends the streams of clients that only listen when a server stops."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class StreamsEnd:
    """
    ASGI middleware that ends the answers to GET requests, on which clients of before 2026-07-28 hear of changes.

    Nothing else would: such an answer lasts for as long as its client, and the server would cut it off in the end.

    Args:
        app: What answers.
        stopping: Set when the server stops.

    """

    def __init__(self, app: ASGIApp, stopping: asyncio.Event) -> None:
        self._app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        is_open = False

        async def sending(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        async def receiving() -> Message:
            return await self._first(receive)

        await self._app(scope, receiving, sending)
        if is_open and self._stopping.is_set():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _first(self, receive: Receive) -> Message:
        """Wait for the client, or for the end, which looks to the application as if the client had left."""
        message = asyncio.ensure_future(receive())
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({message, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else {"type": "http.disconnect"}
        finally:
            message.cancel()
            stopped.cancel()
