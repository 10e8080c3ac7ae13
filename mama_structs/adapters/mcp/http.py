"""The server over streamable HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import uvicorn
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware.authentication import AuthenticationMiddleware

from mama_structs._async import to_its_end
from mama_structs.adapters.mcp.ending import StreamsEnd
from mama_structs.adapters.mcp.listening import Address, BearerToken, bound_socket, check_allowed, check_token
from mama_structs.adapters.mcp.server import McpServer, server_of
from mama_structs.errors import InvalidArgument
from mama_structs.session import Session

DEFAULT_PORT: Final = 8317
PATH: Final = "/mcp"
# Seconds that requests have to end in when the server stops.
_GRACE: Final = 2


async def serve_http(
    served: Session | McpServer,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
    max_body: int = DEFAULT_MAX_REQUEST_BODY_SIZE,
    started: Callable[[str], object] | None = None,
) -> None:
    """
    Serve any number of clients over HTTP until the caller is cancelled.

    They share the session: its memories, and also the refs of its conversation.
    A request is refused whose Host or Origin is none of this server's, which keeps pages of the web out that a browser
    on this machine shows.

    Args:
        served: A session, or what `server` made of one; it is not closed.
        host: The address to listen on.
        port: The port, 0 for any free one.
        token: What clients must send as ``Authorization: Bearer ...``. It can be left out on a loopback address only.
        allowed_hosts: Further names by which clients may reach the server, such as that of a proxy before it.
        max_body: Bytes that a request may have.
        started: Called with the server's URL as soon as clients can connect.

    Raises:
        InvalidArgument: An argument breaks its rule, or a token is missing; nothing is listened on.
        MamaStructsError: The address is taken, or not one of this machine's.

    """
    own = server_of(served)
    if not isinstance(max_body, int) or max_body <= 0:
        raise InvalidArgument(f"max_body must be a number of bytes above 0, got {max_body!r:.40}")
    names = check_allowed(allowed_hosts)
    address = await address_for(host, port, token=token)
    verifier = None if token is None else BearerToken(token)
    listening, address = bound_socket(address)
    with contextlib.closing(listening):
        app = _app(own, address, names, verifier, max_body)
        stopping = asyncio.Event()
        app.add_middleware(StreamsEnd, stopping=stopping)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=_GRACE,
        )
        running = _Running(config)
        serving = asyncio.create_task(running.serve(sockets=[listening]))
        try:
            if started is not None:
                started(f"{address.url}{PATH}")
            await asyncio.shield(serving)
        finally:
            running.should_exit = True
            stopping.set()
            own.end_streams()
            await to_its_end(_ended(serving))


async def address_for(host: str, port: int, *, token: str | None) -> Address:
    """
    Return where to listen.

    Args:
        host: The address, or a name of one.
        port: The port.
        token: What clients must send; None for nothing, on a loopback address only.

    Raises:
        InvalidArgument: There is no such address, the token is no good one, or one is missing.

    """
    if token is not None:
        check_token(token)
    address = await Address.of(host, port)
    if token is None and not address.is_loopback:
        raise InvalidArgument(
            f"on {host} everybody in its network can connect: a token is required",
            hint="give token=..., or listen on 127.0.0.1",
        )
    return address


async def _ended(serving: asyncio.Task[None]) -> None:
    await serving


class _Running(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the host: who is in the middle of closing a session must not be killed."""
        yield


def _app(
    own: McpServer, address: Address, names: tuple[str, ...], verifier: BearerToken | None, max_body: int
) -> Starlette:
    hosts = address.hosts(names)
    app = own.streamable_http_app(
        streamable_http_path=PATH,
        host=address.host,
        max_request_body_size=max_body,
        token_verifier=verifier,
        transport_security=TransportSecuritySettings(
            allowed_hosts=list(hosts),
            allowed_origins=[f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")],
        ),
    )
    if verifier is not None:
        app.add_middleware(AuthenticationMiddleware, backend=BearerAuthBackend(verifier))
    return app
