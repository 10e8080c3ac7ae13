"""The client of a Structs node's REST interface."""

import asyncio
import functools
import warnings
from typing import TYPE_CHECKING, Any, Self

import attrs

from mama_structs import _check
from mama_structs._async import LoopBound
from mama_structs.errors import EntityNotFound, InvalidArgument, SessionClosed
from mama_structs.structs.answers import Answer, Envelope
from mama_structs.structs.ids import EntityId, EntityType
from mama_structs.structs.reads import Reads, typed
from mama_structs.structs.routes import ANSWERS, NodeQuery, base_url_of, id_of, listing_of, page_query

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from mama_structs.structs.transport import Backoff, Transport
else:
    # aiohttp loads when a client is first used; annotations must be readable before that.
    ClientSession = Backoff = Transport = Any

_MANY = 10_000
_whole = functools.partial(_check.field, _check.whole)
_HOW_TO_READ = {
    EntityType.INFUSION: "infusions have no ids: read one by its destination and address",
    EntityType.ADDRESS: "addresses have no ids: read one by the address itself",
}


@attrs.define(eq=False, repr=False, on_setattr=attrs.setters.frozen)
class StructsClient(Reads):
    """
    Reads what a Structs node knows.

    ``async with StructsClient("http://localhost:1317") as client`` opens a session of its own and closes it. Given a
    session of the host's, the client is usable at once and never closes it. Either way it belongs to one event loop
    and one process.

    Args:
        base_url: Where the routes begin; a path prefix is kept.
        session: The host's `aiohttp.ClientSession`, None for one of its own.
        timeout: Seconds for one read with all its retries, counted from when it has a connection slot.
        max_connections: How many reads are in progress at once; others wait. A host's session may allow fewer.
        retries: How often a read is tried again after HTTP 429, 502, 503, 504 or a lost connection.
        max_response_bytes: The largest answer, after decompression.

    Raises:
        InvalidArgument: An argument breaks a rule.

    """

    base_url: str = attrs.field(converter=base_url_of)
    session: ClientSession | None = attrs.field(default=None, kw_only=True)
    timeout: float = attrs.field(default=10.0, kw_only=True, validator=_check.field(_check.seconds))
    max_connections: int = attrs.field(default=8, kw_only=True, validator=_whole(1, _MANY))
    retries: int = attrs.field(default=2, kw_only=True, validator=_whole(0, _MANY))
    max_response_bytes: int = attrs.field(default=16 * 2**20, kw_only=True, validator=_whole(1, 2**40))
    _backoff: Backoff | None = attrs.field(default=None, kw_only=True, alias="_backoff")
    _transport: Transport | None = attrs.field(default=None, init=False, on_setattr=attrs.setters.NO_OP)
    _home: LoopBound | None = attrs.field(default=None, init=False, on_setattr=attrs.setters.NO_OP)
    _closed: bool = attrs.field(default=False, init=False, on_setattr=attrs.setters.NO_OP)

    def __repr__(self) -> str:
        return f"StructsClient({self.base_url!r})"

    async def __aenter__(self) -> Self:
        """Open the client."""
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        """Close the client."""
        await self.close()

    def __del__(self) -> None:
        """Warn where a session of its own was forgotten."""
        # A base URL that was refused leaves an object without attributes.
        if getattr(self, "_closed", True) or not self._owns_open_session():
            return
        # A forked child has no part in what its parent opened.
        if self._home is not None and not self._home.is_elsewhere:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=1)

    @property
    def is_open(self) -> bool:
        """Whether the client can be used now: one with the host's session can until it is closed."""
        return not self._closed and (self.session is not None or self._transport is not None)

    async def open(self) -> Self:
        """
        Open the client's own session, where it has none of the host's; ``async with`` does it.

        Raises:
            InvalidArgument: It is open already; whoever closed it first would close it for both.
            SessionClosed: It was closed before.

        """
        self._check_usable()
        if self._owns_open_session():
            raise InvalidArgument(f"{self!r} is open already", hint="share the open client, or make another one")
        self._connect()
        return self

    async def close(self) -> None:
        """Close the client, and its session unless that is the host's; again is no error."""
        if self._closed:
            return
        self._check_home()
        own = self._transport.session if self._owns_open_session() and self._transport else None
        self._closed = True
        if own is not None:
            await own.close()
            # The transports of closed connections end one turn of the loop later.
            await asyncio.sleep(0)

    async def query(self, entity_id: EntityId | str) -> Envelope:
        """
        Return the raw answer about an entity: the JSON object as it came, only checked to be about this id.

        Raises:
            InvalidArgument: *entity_id* is no id.
            EntityNotFound: The chain has no such entity.
            StructsError: The node did not answer as promised.
            QueryTimeout: It did not answer in time.

        """
        return await self._read(_readable(entity_id))

    async def fetch(self, entity_id: EntityId | str) -> Answer[Any]:
        """Return the typed answer about an entity of any type that has ids; see `query` for the errors."""
        asked = _readable(entity_id)
        return typed(await self._read(asked), ANSWERS[asked.type])

    async def list_page(
        self,
        entity_type: EntityType | str,
        *,
        key: str | None = None,
        limit: int = 100,
        offset: int | None = None,
        reverse: bool = False,
        count_total: bool = False,
    ) -> Envelope:
        """
        Return one raw page of all entities of a type.

        Args:
            entity_type: The type or its name, or ``"struct_type"``.
            key: The ``next_key`` of the page before, None for the first.
            limit: The most records to return.
            offset: How many records to leave out; not together with *key*.
            reverse: Whether to begin at the end.
            count_total: Whether the node shall count all records, which costs it a walk of them all.

        """
        listing = listing_of(entity_type)
        query = page_query(key=key, limit=limit, offset=offset, reverse=reverse, count_total=count_total)
        envelope = await self._send(listing.request(query=query))
        listing.next_key(envelope, after=None if reverse else key)
        return envelope

    async def _send(self, request: NodeQuery) -> Envelope:
        self._check_usable()
        if not self.is_open:
            raise InvalidArgument(f"{self!r} is not open", hint="use it with `async with`")
        return await self._connect().get(request)

    def _connect(self) -> Transport:
        if self._transport is None:
            from mama_structs.structs import transport  # noqa: PLC0415 - aiohttp loads when first used

            # Not made before: a client may be made where there is no loop, and before a fork.
            self._home = LoopBound(repr(self))
            self._home.check()
            session = self.session or transport.open_session(max_connections=self.max_connections)
            self._transport = transport.Transport(
                session=session,
                base_url=self.base_url,
                timeout=self.timeout,
                retries=self.retries,
                max_response_bytes=self.max_response_bytes,
                slots=asyncio.Semaphore(transport.connections_of(session, self.max_connections)),
                backoff=self._backoff or transport.Backoff(),
            )
        return self._transport

    def _check_usable(self) -> None:
        if self._closed:
            raise SessionClosed(f"{self!r} is closed", hint="make a new client")
        self._check_home()

    def _check_home(self) -> None:
        if self._home is not None:
            self._home.check()

    def _owns_open_session(self) -> bool:
        return self.session is None and self._transport is not None and not self._closed


def _readable(entity_id: EntityId | str) -> EntityId:
    """Return the parsed id, or raise `EntityNotFound` where entities of its type have no ids."""
    asked = id_of(entity_id)
    if asked.type in _HOW_TO_READ:
        raise EntityNotFound(str(asked), hint=_HOW_TO_READ[asked.type])
    return asked
