"""Handle of a running server of the pages that show a store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from mama_structs._internal.event_loop import run_to_completion
from mama_structs._internal.reprs import escape_html, wrap_html


class UiServer:
    """
    A running server of pages that show a store; returned by `Session.ui`.

    It listens on 127.0.0.1 only. It stops with `close`, with its session, and with the process.

    Attributes:
        url: Address to open in a browser, with its token. Whoever knows it can read the store.
        write: Whether the pages can change the store.

    """

    def __init__(
        self,
        url: str,
        *,
        port: int,
        write: bool,
        stops: Sequence[Callable[[], Awaitable[Any]]],
        make_single_use_url: Callable[[], str],
    ) -> None:
        self.url: str = url
        self.write: bool = write
        self._port = port
        self._stops = stops
        self._make_single_use_url = make_single_use_url
        self._close_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        # Reprs get into logs, so this one does not contain the token.
        kind = "read and write" if self.write else "read-only"
        return f"<UiServer {self.url.partition('?')[0]}, {kind}{'' if self.is_open else ', closed'}>"

    def _repr_html_(self) -> str:
        if not self.is_open:
            return wrap_html(escape_html(repr(self)))
        link = f'<a href="{self.url}" target="_blank" rel="noopener">Open the memories in a browser</a>'
        note = "The address works on this computer only, until the session closes."
        return wrap_html(f"{link}<br><small>{note}</small>")

    @property
    def is_open(self) -> bool:
        """True until the server stops."""
        return self._close_task is None

    def _matches(self, *, port: int, write: bool) -> bool:
        """Return True if the server runs with these arguments of `Session.ui`."""
        return self.is_open and port in {0, self._port} and write == self.write

    async def close(self) -> None:
        """Stop the server. The session stays open. Idempotent."""
        if self._close_task is None:
            self._close_task = asyncio.get_running_loop().create_task(self._close())
        await run_to_completion(self._wait())

    async def _close(self) -> None:
        # A failure of one step must not prevent the next one.
        async with contextlib.AsyncExitStack() as stack:
            for stop in reversed(self._stops):
                stack.push_async_callback(stop)

    async def _wait(self) -> None:
        if self._close_task is not None:
            await asyncio.shield(self._close_task)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
