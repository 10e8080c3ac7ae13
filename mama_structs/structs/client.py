"""Client for the REST interface of a Structs node."""

import asyncio
import functools
import time
import warnings
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Self, TypeVar

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import LoopGuard
from mama_structs._internal.validation import parse_base_url
from mama_structs.errors import EntityNotFound, InvalidArgument, SessionClosed
from mama_structs.references.rate_limit import RateLimiter, get_rate_limiter
from mama_structs.structs import entities, routes
from mama_structs.structs.answers import (
    AddressAnswer,
    Answer,
    AttributeAnswer,
    BlockHeightAnswer,
    GridAnswer,
    PlanetAnswer,
    PlayerAnswer,
    RawAnswer,
    StructAnswer,
)
from mama_structs.structs.chain_json import StructsModel, structure
from mama_structs.structs.enums import GridAttribute, PlanetAttribute, StructAttribute
from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.structs.routes import ANSWER_MODELS, ChainRequest, ListRoute, parse_entity_id

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from mama_structs.references.http_api import Backoff
    from mama_structs.structs.transport import NodeTransport
else:
    # aiohttp is imported at the first use of a client. These names allow type hints to be resolved before.
    ClientSession = Backoff = NodeTransport = Any

A = TypeVar("A", bound=StructsModel)
R = TypeVar("R", bound=StructsModel)
EntityIdLike = EntityId | str
RecordIterator = AsyncGenerator[R, None]

_ALLOCATION_SOURCE_TYPES = (EntityType.PLAYER, EntityType.REACTOR, EntityType.SUBSTATION)
_INFUSION_TYPES = (EntityType.REACTOR, EntityType.STRUCT)
_MAX_CONNECTIONS = 10_000
_integer_field = functools.partial(_check.field_validator, _check.check_integer)
_NO_ID_HINTS = {
    EntityType.INFUSION: "infusions have no ids: read one by its destination and address",
    EntityType.ADDRESS: "addresses have no ids: read one by the address itself",
}


@attrs.define(eq=False, repr=False, on_setattr=attrs.setters.frozen)
class StructsClient:
    """
    Client that reads data from a Structs node.

    ``async with StructsClient("http://localhost:1317") as client`` opens its own HTTP session and closes it. A client
    with a session of the host can be used immediately and never closes that session. In both cases the client belongs
    to one event loop and one process.

    Arguments are validated before a request is sent. Lists return bare records in byte order of their ids (``1-10``
    comes before ``1-2``), and fetch each page lazily.

    Args:
        base_url: The base URL of the routes; a path prefix is kept.
        session: The host's `aiohttp.ClientSession`, None for a new one.
        timeout: Seconds for one read with all its retries, counted from when it has a connection slot.
        max_connections: Maximum number of concurrent reads; others wait. A host's session may allow fewer, and so
            may other clients and resolvers for the same node in this event loop: the smallest limit applies.
        retries: How often a read is retried after HTTP 429, 502, 503, 504 or a lost connection.
        max_response_bytes: Maximum size of an answer, after decompression.

    Raises:
        InvalidArgument: An argument is invalid.

    """

    base_url: str = attrs.field(converter=parse_base_url)
    session: ClientSession | None = attrs.field(default=None, kw_only=True)
    timeout: float = attrs.field(default=10.0, kw_only=True, validator=_check.field_validator(_check.check_seconds))
    max_connections: int = attrs.field(default=8, kw_only=True, validator=_integer_field(1, _MAX_CONNECTIONS))
    retries: int = attrs.field(default=2, kw_only=True, validator=_integer_field(0, _MAX_CONNECTIONS))
    max_response_bytes: int = attrs.field(default=16 * 2**20, kw_only=True, validator=_integer_field(1, 2**40))
    _backoff: Backoff | None = attrs.field(default=None, kw_only=True, alias="_backoff")
    _transport: NodeTransport | None = attrs.field(default=None, init=False, on_setattr=attrs.setters.NO_OP)
    _home: LoopGuard | None = attrs.field(default=None, init=False, on_setattr=attrs.setters.NO_OP)
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
        """Emit a `ResourceWarning` if the client's own session was not closed."""
        # The constructor raises for an invalid base URL, and leaves an object without attributes.
        if getattr(self, "_closed", True) or not self._owns_open_session():
            return
        # A forked child process does not own the connections of its parent.
        if self._home is not None and not self._home.is_forked_child:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=1)

    @property
    def is_open(self) -> bool:
        """True if the client can be used now."""
        return not self._closed and (self.session is not None or self._transport is not None)

    async def open(self) -> Self:
        """
        Open the client's own HTTP session, unless the host passed one; ``async with`` calls it.

        Raises:
            InvalidArgument: It is already open. The first `close` would otherwise close it for both callers.
            SessionClosed: It was closed before.

        """
        self._check_usable()
        if self._owns_open_session():
            raise InvalidArgument(f"{self!r} is open already", hint="share the open client, or make another one")
        self._connect()
        return self

    async def close(self) -> None:
        """Close the client and its own HTTP session. Idempotent."""
        if self._closed:
            return
        self._check_home()
        own = self._transport.session if self._owns_open_session() and self._transport else None
        self._closed = True
        if self._transport is not None:
            self._transport.limiter.unregister(self)
        if own is not None:
            await own.close()
            # Wait for one iteration of the event loop, in which aiohttp closes the transports.
            await asyncio.sleep(0)

    async def query(self, entity_id: EntityId | str) -> RawAnswer:
        """
        Return the node's JSON answer for an entity, unchanged.

        Raises:
            InvalidArgument: *entity_id* is not an id.
            EntityNotFound: The chain has no such entity.
            StructsError: The node's answer is invalid or an error.
            QueryTimeout: It did not answer in time.

        """
        return await self._fetch_entity(_parse_readable_id(entity_id))

    async def fetch(self, entity_id: EntityId | str) -> Answer[Any]:
        """Return the typed answer for an entity of any type that has ids; see `query` for the errors."""
        asked = _parse_readable_id(entity_id)
        return _to_model(await self._fetch_entity(asked), ANSWER_MODELS[asked.type])

    async def list_page(
        self,
        entity_type: EntityType | str,
        *,
        key: str | None = None,
        limit: int = 100,
        offset: int | None = None,
        reverse: bool = False,
        count_total: bool = False,
    ) -> RawAnswer:
        """
        Return one raw page of all entities of a type.

        Args:
            entity_type: The type or its name, or ``"struct_type"``.
            key: The ``next_key`` of the previous page, None for the first page.
            limit: Maximum number of records.
            offset: Number of records to skip; not together with *key*.
            reverse: Whether to start at the end.
            count_total: Whether the node counts all records, which requires a scan of all of them.

        """
        listing = routes.get_list_route(entity_type)
        query = routes.make_page_query(key=key, limit=limit, offset=offset, reverse=reverse, count_total=count_total)
        envelope = await self._send(listing.make_request(query=query))
        listing.check_next_key(envelope, after=None if reverse else key)
        return envelope

    def _join_gate(self, user: object, limit: int) -> RateLimiter:
        """
        Register *user* and its maximum of concurrent queries with the node's rate limiter.

        Return the limiter.
        Clients of one base URL and one event loop share the limiter. A client with the host's session has a separate
        one, because that session may have its own headers and credentials.
        """
        backoff = self._backoff
        clock = time.monotonic if backoff is None else backoff.clock
        gate = get_rate_limiter(
            self.base_url if self.session is None else id(self), is_shared=self.session is None, clock=clock
        )
        gate.register(user, limit)
        return gate

    # --- single entities ----------------------------------------------------------------------------------------------

    async def guild(self, guild_id: EntityIdLike) -> Answer[entities.Guild]:
        """Return a guild."""
        return _to_model(await self._fetch_entity(parse_entity_id(guild_id, EntityType.GUILD)), Answer[entities.Guild])

    async def player(self, player_id: EntityIdLike) -> PlayerAnswer:
        """Return a player, with grid attributes and inventory."""
        return _to_model(await self._fetch_entity(parse_entity_id(player_id, EntityType.PLAYER)), PlayerAnswer)

    async def planet(self, planet_id: EntityIdLike) -> PlanetAnswer:
        """Return a planet, with grid and planet attributes."""
        return _to_model(await self._fetch_entity(parse_entity_id(planet_id, EntityType.PLANET)), PlanetAnswer)

    async def reactor(self, reactor_id: EntityIdLike) -> GridAnswer[entities.Reactor]:
        """Return a reactor, with grid attributes."""
        return _to_model(
            await self._fetch_entity(parse_entity_id(reactor_id, EntityType.REACTOR)), GridAnswer[entities.Reactor]
        )

    async def substation(self, substation_id: EntityIdLike) -> GridAnswer[entities.Substation]:
        """Return a substation, with grid attributes."""
        return _to_model(
            await self._fetch_entity(parse_entity_id(substation_id, EntityType.SUBSTATION)),
            GridAnswer[entities.Substation],
        )

    async def struct(self, struct_id: EntityIdLike) -> StructAnswer:
        """Return a struct, with grid and struct attributes and its defenders."""
        return _to_model(await self._fetch_entity(parse_entity_id(struct_id, EntityType.STRUCT)), StructAnswer)

    async def allocation(self, allocation_id: EntityIdLike) -> GridAnswer[entities.Allocation]:
        """Return an allocation. The grid attributes contain its power."""
        return _to_model(
            await self._fetch_entity(parse_entity_id(allocation_id, EntityType.ALLOCATION)),
            GridAnswer[entities.Allocation],
        )

    async def fleet(self, fleet_id: EntityIdLike) -> Answer[entities.Fleet]:
        """Return a fleet."""
        return _to_model(await self._fetch_entity(parse_entity_id(fleet_id, EntityType.FLEET)), Answer[entities.Fleet])

    async def provider(self, provider_id: EntityIdLike) -> GridAnswer[entities.Provider]:
        """Return a provider, with grid attributes."""
        return _to_model(
            await self._fetch_entity(parse_entity_id(provider_id, EntityType.PROVIDER)), GridAnswer[entities.Provider]
        )

    async def agreement(self, agreement_id: EntityIdLike) -> Answer[entities.Agreement]:
        """Return an agreement."""
        return _to_model(
            await self._fetch_entity(parse_entity_id(agreement_id, EntityType.AGREEMENT)), Answer[entities.Agreement]
        )

    async def infusion(self, destination_id: EntityIdLike, address: str) -> Answer[entities.Infusion]:
        """
        Return the infusion that an address made into a reactor or struct.

        Args:
            destination_id: The id of the destination.
            address: The address of an account.

        """
        to, payer = str(parse_entity_id(destination_id, *_INFUSION_TYPES)), routes.check_address(address)
        asked = f"{to}-{payer}"
        return await self._fetch_model(
            Answer[entities.Infusion], "infusion", to, payer, requested_id=asked, destinationId=to, address=payer
        )

    async def address(self, address: str) -> AddressAnswer:
        """
        Return the player on whose behalf an address acts.

        The player of an unknown address is None.

        Args:
            address: The address of an account.

        """
        text = routes.check_address(address)
        return await self._fetch_model(AddressAnswer, "address", text, requested_id=text, address=text)

    async def struct_type(self, number: int) -> Answer[entities.StructType]:
        """Return a struct type. Struct types change only with upgrades of the chain."""
        text = str(_check.check_integer("number", number, 0, MAX_INDEX))
        return await self._fetch_model(Answer[entities.StructType], "struct_type", text, requested_id=text, id=text)

    async def grid(self, attribute_id: str) -> entities.GridRecord:
        """
        Return one attribute of the power grid.

        *attribute_id* is an id such as ``11-1-194``. The result is 0 for an unknown object.
        """
        text = routes.parse_attribute_id(attribute_id, GridAttribute)
        return (await self._fetch_model(Answer[entities.GridRecord], "grid", text, requested_id=text)).entity

    async def struct_attribute(self, struct_id: EntityIdLike, name: StructAttribute | str) -> int:
        """
        Return one attribute of a struct; 0 for an unknown struct.

        Args:
            struct_id: The id of a struct.
            name: The name of the attribute.

        """
        asked, attribute = (
            str(parse_entity_id(struct_id, EntityType.STRUCT)),
            routes.parse_attribute_name(name, StructAttribute),
        )
        return (
            await self._fetch_model(AttributeAnswer, "struct_attribute", asked, attribute, requested_id=asked)
        ).attribute

    async def planet_attribute(self, planet_id: EntityIdLike, name: PlanetAttribute | str) -> int:
        """
        Return one attribute of a planet; 0 for an unknown planet.

        Args:
            planet_id: The id of a planet.
            name: The name of the attribute.

        """
        asked, attribute = (
            str(parse_entity_id(planet_id, EntityType.PLANET)),
            routes.parse_attribute_name(name, PlanetAttribute),
        )
        return (
            await self._fetch_model(AttributeAnswer, "planet_attribute", asked, attribute, requested_id=asked)
        ).attribute

    async def block_height(self) -> int:
        """Return the chain's height."""
        request = ChainRequest(path="/blockheight", key="blockHeight")
        return structure(await self._send(request), BlockHeightAnswer).block_height

    # --- lists -------------------------------------------------------------------------------------------------------

    def guilds(self, *, page_size: int = 100) -> RecordIterator[entities.Guild]:
        """Iterate over all guilds."""
        return self._iter_records(page_size, "guild", entities.Guild)

    def players(self, *, page_size: int = 100) -> RecordIterator[entities.Player]:
        """Iterate over all players."""
        return self._iter_records(page_size, "player", entities.Player)

    def planets(self, *, page_size: int = 100) -> RecordIterator[entities.Planet]:
        """Iterate over all planets."""
        return self._iter_records(page_size, "planet", entities.Planet)

    def reactors(self, *, page_size: int = 100) -> RecordIterator[entities.Reactor]:
        """Iterate over all reactors."""
        return self._iter_records(page_size, "reactor", entities.Reactor)

    def substations(self, *, page_size: int = 100) -> RecordIterator[entities.Substation]:
        """Iterate over all substations."""
        return self._iter_records(page_size, "substation", entities.Substation)

    def structs(self, *, page_size: int = 100) -> RecordIterator[entities.Struct]:
        """Iterate over all structs."""
        return self._iter_records(page_size, "struct", entities.Struct)

    def allocations(self, *, page_size: int = 100) -> RecordIterator[entities.Allocation]:
        """Iterate over all allocations."""
        return self._iter_records(page_size, "allocation", entities.Allocation)

    def infusions(self, *, page_size: int = 100) -> RecordIterator[entities.Infusion]:
        """Iterate over all infusions."""
        return self._iter_records(page_size, "infusion", entities.Infusion)

    def addresses(self, *, page_size: int = 100) -> RecordIterator[entities.Address]:
        """Iterate over all addresses."""
        return self._iter_records(page_size, "address", entities.Address)

    def fleets(self, *, page_size: int = 100) -> RecordIterator[entities.Fleet]:
        """Iterate over all fleets."""
        return self._iter_records(page_size, "fleet", entities.Fleet)

    def providers(self, *, page_size: int = 100) -> RecordIterator[entities.Provider]:
        """Iterate over all providers."""
        return self._iter_records(page_size, "provider", entities.Provider)

    def agreements(self, *, page_size: int = 100) -> RecordIterator[entities.Agreement]:
        """Iterate over all agreements."""
        return self._iter_records(page_size, "agreement", entities.Agreement)

    def struct_types(self, *, page_size: int = 100) -> RecordIterator[entities.StructType]:
        """Iterate over all struct types."""
        return self._iter_records(page_size, "struct_type", entities.StructType)

    def planets_by_player(self, player_id: EntityIdLike, *, page_size: int = 100) -> RecordIterator[entities.Planet]:
        """
        Iterate over a player's planets.

        The node scans all planets for it: prefer `Player.planet_id`.

        Args:
            player_id: The id of a player.
            page_size: The number of entities per request.

        """
        return self._iter_records(page_size, "planet_by_player", entities.Planet, player_id, EntityType.PLAYER)

    def addresses_by_player(self, player_id: EntityIdLike, *, page_size: int = 100) -> RecordIterator[entities.Address]:
        """
        Iterate over a player's addresses. The node scans all addresses to find them.

        Args:
            player_id: The id of a player.
            page_size: The number of entities per request.

        """
        return self._iter_records(page_size, "address_by_player", entities.Address, player_id, EntityType.PLAYER)

    def permissions_by_object(
        self, object_id: EntityIdLike, *, page_size: int = 100
    ) -> RecordIterator[entities.PermissionRecord]:
        """
        Iterate over the permissions on an object. The node scans all permissions to find them.

        Args:
            object_id: The id of an entity.
            page_size: The number of entities per request.

        """
        return self._iter_records(page_size, "permission/object", entities.PermissionRecord, object_id)

    def permissions_by_player(
        self, player_id: EntityIdLike, *, page_size: int = 100
    ) -> RecordIterator[entities.PermissionRecord]:
        """
        Iterate over the permissions of a player. The node scans all permissions to find them.

        Args:
            player_id: The id of a player.
            page_size: The number of entities per request.

        """
        return self._iter_records(
            page_size, "permission/player", entities.PermissionRecord, player_id, EntityType.PLAYER
        )

    def agreements_by_provider(
        self, provider_id: EntityIdLike, *, page_size: int = 100
    ) -> RecordIterator[entities.Agreement]:
        """
        Iterate over the agreements with a provider.

        Args:
            provider_id: The id of a provider.
            page_size: The number of entities per request.

        """
        return self._iter_records(
            page_size, "agreement_by_provider", entities.Agreement, provider_id, EntityType.PROVIDER
        )

    def allocations_by_source(
        self, source_id: EntityIdLike, *, page_size: int = 100
    ) -> RecordIterator[entities.Allocation]:
        """
        Iterate over the allocations from a player, reactor or substation.

        Args:
            source_id: The id of the source.
            page_size: The number of entities per request.

        """
        return self._iter_records(
            page_size, "allocation_by_source", entities.Allocation, source_id, *_ALLOCATION_SOURCE_TYPES
        )

    def allocations_by_destination(
        self, destination_id: EntityIdLike, *, page_size: int = 100
    ) -> RecordIterator[entities.Allocation]:
        """
        Iterate over the allocations to a substation.

        Args:
            destination_id: The id of the destination.
            page_size: The number of entities per request.

        """
        return self._iter_records(
            page_size, "allocation_by_destination", entities.Allocation, destination_id, EntityType.SUBSTATION
        )

    def infusions_by_destination(
        self, destination_id: EntityIdLike, *, page_size: int = 100
    ) -> RecordIterator[entities.Infusion]:
        """
        Iterate over the infusions into a reactor or struct.

        Args:
            destination_id: The id of the destination.
            page_size: The number of entities per request.

        """
        return self._iter_records(
            page_size, "infusion_by_destination", entities.Infusion, destination_id, *_INFUSION_TYPES
        )

    # --- requests -----------------------------------------------------------------------------------------------------

    def _iter_records(self, page_size: int, route: str, record: type[R], *of: Any) -> RecordIterator[R]:
        # Validate the arguments here, because the body of a generator would run only at the first record.
        segments = [str(parse_entity_id(*of))] if of else []
        _check.check_integer("page_size", page_size, 1, MAX_INDEX)
        return self._iter_pages(ListRoute(route, record), segments, page_size)

    async def _iter_pages(self, listing: ListRoute[R], segments: list[str], page_size: int) -> RecordIterator[R]:
        key: str | None = None
        while True:
            query = routes.make_page_query(key=key, limit=page_size)
            envelope = await self._send(listing.make_request(*segments, query=query))
            next_key = listing.check_next_key(envelope, after=key)
            for record in _to_model(envelope, listing.page_model).records:
                yield record
            # Continue after an empty page, because some routes filter records after paging.
            if next_key is None:
                return
            key = next_key

    async def _fetch_entity(self, asked: EntityId) -> RawAnswer:
        model, text = ANSWER_MODELS[asked.type], str(asked)
        envelope = await self._send(routes.make_entity_request(model, asked.type, text, requested_id=text))
        routes.check_answer_entity(envelope, model, id=text)
        return envelope

    async def _fetch_model(self, model: type[A], *segments: str, requested_id: str, **expected: str) -> A:
        envelope = await self._send(routes.make_entity_request(model, *segments, requested_id=requested_id))
        routes.check_answer_entity(envelope, model, **expected)
        return _to_model(envelope, model)

    async def _send(self, request: ChainRequest) -> RawAnswer:
        self._check_usable()
        if not self.is_open:
            raise InvalidArgument(f"{self!r} is not open", hint="use it with `async with`")
        return await self._connect().get(request)

    def _connect(self) -> NodeTransport:
        if self._transport is None:
            from mama_structs.references import http_api as http  # noqa: PLC0415 - aiohttp is imported on first use
            from mama_structs.structs import transport  # noqa: PLC0415

            # Created lazily, because a client may be created outside of a loop and before a fork.
            self._home = LoopGuard(repr(self))
            self._home.check()
            session = self.session or http.open_session(max_connections=self.max_connections)
            self._transport = transport.NodeTransport(
                session=session,
                base_url=self.base_url,
                timeout=self.timeout,
                retries=self.retries,
                max_response_bytes=self.max_response_bytes,
                limiter=self._join_gate(self, http.count_connections(session, self.max_connections)),
                backoff=self._backoff or http.Backoff(),
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


def _parse_readable_id(entity_id: EntityId | str) -> EntityId:
    """Return the parsed id, or raise `EntityNotFound` for types whose entities have no ids."""
    asked = parse_entity_id(entity_id)
    if asked.type in _NO_ID_HINTS:
        raise EntityNotFound(str(asked), hint=_NO_ID_HINTS[asked.type])
    return asked


def _to_model(envelope: RawAnswer, model: type[A]) -> A:
    """Convert the JSON of an answer or page to a model, and set its chain height."""
    answer: Any = structure(envelope, model)
    with_height: A = attrs.evolve(answer, height=envelope.height)
    return with_height
