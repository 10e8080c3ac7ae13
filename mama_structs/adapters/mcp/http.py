"""Streamable HTTP transport of the MCP server: address, access control and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Self

import attrs
import uvicorn
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import run_to_completion
from mama_structs.adapters.mcp.http_limits import MAX_HEADER_BYTES, LimitedProtocol, LimitedRequests
from mama_structs.adapters.mcp.http_normalization import NormalizedRequests, normalize_host
from mama_structs.adapters.mcp.server import McpServer, ensure_server
from mama_structs.errors import InvalidArgument, MamaStructsError, repr_short
from mama_structs.session.session import Session

DEFAULT_PORT: Final = 8317
ENDPOINT_PATH: Final = "/mcp"
# Seconds for running requests to end when the server stops.
_SHUTDOWN_SECONDS: Final = 2
# Seconds until an idle connection is closed. If the server closed first, a request being sent would be lost.
# Clients (httpx 5, aiohttp 15, Go 90) and proxies (nginx 60) close idle connections earlier.
_KEEP_ALIVE_SECONDS: Final = 120
_MAX_PORT: Final = 65_535
_DEFAULT_PORTS: Final = (80, 443)
# Minimum length of a token. A shorter one could be guessed.
MIN_TOKEN_CHARS: Final = 16
_LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")


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
    A request with a foreign Host or Origin header is rejected, so that web pages in a browser on this machine cannot
    reach the server. Requests have limits for the size of headers (431) and body (413), and for the time in which both
    must arrive (408).

    Args:
        served: A session, or the result of `server`; it is not closed.
        host: The address to listen on.
        port: The port, 0 for any free one.
        token: The token that clients must send as ``Authorization: Bearer ...``. It is optional on a loopback address
            only.
        allowed_hosts: Further host names by which clients may reach the server, such as that of a reverse proxy.
        max_body: Maximum bytes of a request body.
        started: Called with the server's URL as soon as clients can connect.

    Raises:
        InvalidArgument: An argument is invalid, or a token is missing; the server did not listen.
        MamaStructsError: The address is in use, or is not an address of this machine.

    """
    own = ensure_server(served)
    if not isinstance(max_body, int) or max_body <= 0:
        raise InvalidArgument(f"max_body must be a number of bytes above 0, got {repr_short(max_body)}")
    names = _check_allowed_hosts(allowed_hosts)
    address = await address_for(host, port, token=token)
    verifier = None if token is None else BearerTokenVerifier(token)
    listening, address = _bind_socket(address)
    with contextlib.closing(listening):
        app = _create_app(own, address, names, verifier, max_body)
        stopping = asyncio.Event()
        app.add_middleware(_StreamShutdown, stopping=stopping)
        config = uvicorn.Config(
            app,
            http=LimitedProtocol,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        running = _EmbeddedServer(config)
        serving = asyncio.create_task(running.serve(sockets=[listening]))
        try:
            if started is not None:
                started(f"http://{address.url_host}:{address.port}{ENDPOINT_PATH}")
            await asyncio.shield(serving)
        finally:
            running.should_exit = True
            stopping.set()
            own._end_streams()
            await run_to_completion(asyncio.wait_for(serving, None))


async def address_for(host: str, port: int, *, token: str | None) -> ListenAddress:
    """
    Resolve and check the address on which the server listens.

    Raise `InvalidArgument` if it is invalid, or if it is not a loopback address and *token* is None.
    """
    if token is not None:
        check_token(token)
    address = await ListenAddress.resolve(host, port)
    if token is None and not address.is_loopback:
        raise InvalidArgument(
            f"{host} is reachable from the network: a token is required",
            hint="give token=..., or listen on 127.0.0.1",
        )
    return address


class _EmbeddedServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers, because uvicorn's would exit before the host has closed its session."""
        yield


def _create_app(
    own: McpServer, address: ListenAddress, names: tuple[str, ...], verifier: BearerTokenVerifier | None, max_body: int
) -> Starlette:
    hosts = address.list_allowed_hosts(names)
    app = own.streamable_http_app(
        streamable_http_path=ENDPOINT_PATH,
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
    app.add_middleware(LimitedRequests, max_body=max_body)
    app.add_middleware(NormalizedRequests)
    return app


@attrs.frozen
class ListenAddress:
    """A resolved address of this machine."""

    host: str
    port: int
    family: socket.AddressFamily

    @classmethod
    async def resolve(cls, host: str, port: int) -> Self:
        """Resolve a host name or address."""
        _check.check_integer("port", port, 0, _MAX_PORT)
        if not isinstance(host, str) or not host:
            raise InvalidArgument(f"host must be an address or a name, got {host!r:.80}", hint="such as 127.0.0.1")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise InvalidArgument(f"host {host!r:.80} has no address") from None
        family, _, _, _, where = found[0]
        return cls(str(where[0]), port, family)

    @property
    def _ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        ip = ipaddress.ip_address(self.host.partition("%")[0])
        return getattr(ip, "ipv4_mapped", None) or ip

    @property
    def is_loopback(self) -> bool:
        """True if the address can be reached from this machine only."""
        return self._ip.is_loopback

    @property
    def url_host(self) -> str:
        """The address as it appears in a URL: IPv6 addresses are in brackets."""
        return f"[{self.host}]" if self.family == socket.AF_INET6 else self.host

    def list_allowed_hosts(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the allowed values of the Host header: those for this address, and *names*."""
        own: tuple[str, ...] = (self.url_host,)
        if self.is_loopback:
            own = (*own, *_LOOPBACK_HOSTS)
        elif self._ip.is_unspecified:
            own = (*_LOOPBACK_HOSTS, socket.gethostname())
        extra = tuple(map(normalize_host, names))
        own = tuple(map(normalize_host, own))
        without_port = (*own, *extra) if self.port in _DEFAULT_PORTS else extra
        return tuple(dict.fromkeys((*(f"{name}:{self.port}" for name in (*own, *extra)), *without_port)))


def _bind_socket(address: ListenAddress) -> tuple[socket.socket, ListenAddress]:
    """Return a listening socket, and its address with the actual port."""
    try:
        # From here on, clients can connect. Their requests wait until the server runs.
        listening = socket.create_server((address.host, address.port), family=address.family)
    except OSError as error:
        raise MamaStructsError(
            f"cannot listen on {address.host} port {address.port}: {os.strerror(error.errno or 0)}",
            hint="port 0 takes any free one",
        ) from error
    listening.setblocking(False)
    return listening, attrs.evolve(address, port=listening.getsockname()[1])


def _check_allowed_hosts(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise InvalidArgument(
            f"allowed_hosts must be several names, got the text {repr_short(names)}", hint="give a list"
        )
    found = tuple(names)
    for name in found:
        if not isinstance(name, str) or not name or any(part in name for part in "*/@, \t\r\n"):
            raise InvalidArgument(
                f"allowed_hosts must be names of hosts, got {repr_short(name)}",
                hint="such as agents.example or 10.0.0.5",
            )
    return found


def check_token(token: str) -> str:
    """
    Return a token if it is long enough and valid in a header.

    Error messages do not contain it.
    """
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument("the token must be printable ASCII text without spaces")
    if len(token) < MIN_TOKEN_CHARS:
        raise InvalidArgument(
            f"the token must have at least {MIN_TOKEN_CHARS} characters, got {len(token)}",
            hint="python -c 'import secrets; print(secrets.token_urlsafe(32))' prints one",
        )
    return token


class BearerTokenVerifier:
    """Verifies bearer tokens against the single configured token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the access of a valid token, or None. The comparison takes constant time."""
        if not hmac.compare_digest(token.encode("utf-8", errors="surrogatepass"), self._token):
            return None
        return AccessToken(token="", client_id="bearer", scopes=[])


@attrs.frozen
class _StreamShutdown:
    """ASGI middleware that ends the event streams of GET requests when the server stops."""

    # Older clients receive list changes on these streams and never end them, so a shutdown would have to abort them.
    app: ASGIApp
    stopping: asyncio.Event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        is_open = False

        async def send_and_track(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        async def receive_or_stop() -> Message:
            # Report to the application that the client has disconnected, which ends the stream.
            message = asyncio.ensure_future(receive())
            stopped = asyncio.ensure_future(self.stopping.wait())
            try:
                await asyncio.wait({message, stopped}, return_when=asyncio.FIRST_COMPLETED)
                return message.result() if message.done() else {"type": "http.disconnect"}
            finally:
                message.cancel()
                stopped.cancel()

        await self.app(scope, receive_or_stop, send_and_track)
        if is_open and self.stopping.is_set():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
