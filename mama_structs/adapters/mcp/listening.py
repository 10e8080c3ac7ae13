"""Where an HTTP server listens, who may reach it there, and by what they prove it."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from typing import Final, Self

import attrs
from mcp.server.auth.provider import AccessToken

from mama_structs.errors import InvalidArgument, MamaStructsError

_MAX_PORT: Final = 65_535
_DEFAULT_PORTS: Final = (80, 443)
# One that could be guessed is none.
MIN_TOKEN: Final = 16
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


@attrs.frozen
class Address:
    """
    An address of this machine, resolved.

    Args:
        host: The IP address.
        port: The port.
        family: Of the socket.

    """

    host: str
    port: int
    family: socket.AddressFamily

    @classmethod
    async def of(cls, host: str, port: int) -> Self:
        """
        Resolve a host's name or address.

        Raises:
            InvalidArgument: It has none, or there is no such port.

        """
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _MAX_PORT:
            raise InvalidArgument(f"port must be a whole number from 0 to {_MAX_PORT}, got {port!r:.40}")
        if not isinstance(host, str) or not host:
            raise InvalidArgument(f"host must be an address or a name, got {host!r:.80}", hint="such as 127.0.0.1")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise InvalidArgument(f"host {host!r:.80} has no address") from None
        family, _, _, _, where = found[0]
        return cls(str(where[0]), port, family)

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address as a value."""
        ip = ipaddress.ip_address(self.host.partition("%")[0])
        return getattr(ip, "ipv4_mapped", None) or ip

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can connect."""
        return self.ip.is_loopback

    @property
    def url(self) -> str:
        """The server's URL, without a path."""
        return f"http://{self._shown}:{self.port}"

    def hosts(self, names: Iterable[str]) -> tuple[str, ...]:
        """
        Return what a request's Host may be.

        Args:
            names: What else than this address may be.

        """
        own: tuple[str, ...] = (self._shown,)
        if self.is_loopback:
            own = (*own, *_LOOPBACK)
        elif self.ip.is_unspecified:
            own = (*_LOOPBACK, socket.gethostname())
        found = [f"{name}:{self.port}" for name in own]
        if self.port in _DEFAULT_PORTS:
            found.extend(own)
        for name in names:
            found.extend((name, f"{name}:{self.port}"))
        return tuple(dict.fromkeys(found))

    @property
    def _shown(self) -> str:
        return f"[{self.host}]" if self.family == socket.AF_INET6 else self.host


def bound_socket(address: Address) -> tuple[socket.socket, Address]:
    """
    Return a socket that listens, and its address with the port that it has come to have.

    Raises:
        MamaStructsError: The address is taken, or not one of this machine's.

    """
    listening = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((address.host, address.port))
        # From here on clients can connect: they wait until somebody answers.
        listening.listen()
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise MamaStructsError(
            f"cannot listen on {address.host} port {address.port}: {error.strerror or error}",
            hint="port 0 takes any free one",
        ) from error
    return listening, attrs.evolve(address, port=listening.getsockname()[1])


def check_allowed(names: Iterable[str]) -> tuple[str, ...]:
    """
    Return the further names of a server.

    Raises:
        InvalidArgument: One of them is no name.

    """
    if isinstance(names, str):
        raise InvalidArgument(f"allowed_hosts must be several names, got the text {names!r:.80}", hint="give a list")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str) or not name or any(part in name for part in "*/@, \t\r\n"):
            raise InvalidArgument(
                f"allowed_hosts must be names of hosts, got {name!r:.80}", hint="such as agents.example or 10.0.0.5"
            )
    return found


def check_token(token: str) -> str:
    """
    Return a token that a header can carry and nobody can guess.

    Raises:
        InvalidArgument: It is none; the message does not repeat it.

    """
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument("the token must be printable ASCII text without spaces")
    if len(token) < MIN_TOKEN:
        raise InvalidArgument(
            f"the token must have {MIN_TOKEN} characters at least, got {len(token)}",
            hint="python -c 'import secrets; print(secrets.token_urlsafe(32))' prints one",
        )
    return token


class BearerToken:
    """
    Checks what a client sends against the one token that there is.

    Args:
        token: As `check_token` returned it.

    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return who a token is for, None where it is not the right one; both take the same time."""
        if not hmac.compare_digest(token.encode("utf-8", errors="surrogatepass"), self._token):
            return None
        return AccessToken(token="", client_id="bearer", scopes=[])
