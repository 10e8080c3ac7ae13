"""The typed reads of the client: one explicit method each, all of them over the tables of routes."""

import abc
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.structs import routes
from mama_structs.structs.answers import (
    AddressAnswer,
    AgreementAnswer,
    AllocationAnswer,
    BlockHeightAnswer,
    Envelope,
    FleetAnswer,
    GuildAnswer,
    InfusionAnswer,
    PlanetAnswer,
    PlayerAnswer,
    ProviderAnswer,
    ReactorAnswer,
    StructAnswer,
    StructTypeAnswer,
    SubstationAnswer,
)
from mama_structs.structs.arguments import (
    address_of,
    attribute_id_of,
    attribute_of,
    id_of,
    page_query,
    whole_of,
)
from mama_structs.structs.attributes import GridRecord, PermissionRecord
from mama_structs.structs.convert import structure
from mama_structs.structs.entities import (
    Address,
    Agreement,
    Allocation,
    Fleet,
    Guild,
    Infusion,
    Planet,
    Player,
    Provider,
    Reactor,
    Struct,
    Substation,
)
from mama_structs.structs.enums import GridAttribute, PlanetAttribute, StructAttribute
from mama_structs.structs.ids import EntityId, EntityType
from mama_structs.structs.record import Record
from mama_structs.structs.struct_types import StructType

A = TypeVar("A", bound=Record)
R = TypeVar("R", bound=Record)

_SOURCES = (EntityType.PLAYER, EntityType.REACTOR, EntityType.SUBSTATION)
_INFUSED = (EntityType.REACTOR, EntityType.STRUCT)


def typed(envelope: Envelope, model: type[A]) -> A:
    """Return the answer or page in *envelope*, with the height it was read at."""
    answer: Any = structure(envelope, model)
    with_height: A = attrs.evolve(answer, height=envelope.height)
    return with_height


class Reads(abc.ABC):
    """
    Every typed read.

    Arguments are checked before anything is sent. Lists give bare records in byte order of their ids (``1-10`` comes
    before ``1-2``), page by page as they are iterated.
    """

    __slots__ = ()

    @abc.abstractmethod
    async def _send(self, request: routes.Request) -> Envelope:
        """Return the JSON object that the node answers with."""

    async def _read(self, asked: EntityId) -> Envelope:
        route, text = routes.ROUTES[asked.type], str(asked)
        envelope = await self._send(route.request(text, asked=text))
        route.check(envelope, id=text)
        return envelope

    async def guild(self, guild_id: EntityId | str) -> GuildAnswer:
        """Return a guild."""
        return typed(await self._read(id_of(guild_id, EntityType.GUILD)), GuildAnswer)

    async def player(self, player_id: EntityId | str) -> PlayerAnswer:
        """Return a player, with grid attributes and inventory."""
        return typed(await self._read(id_of(player_id, EntityType.PLAYER)), PlayerAnswer)

    async def planet(self, planet_id: EntityId | str) -> PlanetAnswer:
        """Return a planet, with grid and planet attributes."""
        return typed(await self._read(id_of(planet_id, EntityType.PLANET)), PlanetAnswer)

    async def reactor(self, reactor_id: EntityId | str) -> ReactorAnswer:
        """Return a reactor, with grid attributes."""
        return typed(await self._read(id_of(reactor_id, EntityType.REACTOR)), ReactorAnswer)

    async def substation(self, substation_id: EntityId | str) -> SubstationAnswer:
        """Return a substation, with grid attributes."""
        return typed(await self._read(id_of(substation_id, EntityType.SUBSTATION)), SubstationAnswer)

    async def struct(self, struct_id: EntityId | str) -> StructAnswer:
        """Return a struct, with grid and struct attributes and its defenders."""
        return typed(await self._read(id_of(struct_id, EntityType.STRUCT)), StructAnswer)

    async def allocation(self, allocation_id: EntityId | str) -> AllocationAnswer:
        """Return an allocation; its power is in the grid attributes."""
        return typed(await self._read(id_of(allocation_id, EntityType.ALLOCATION)), AllocationAnswer)

    async def fleet(self, fleet_id: EntityId | str) -> FleetAnswer:
        """Return a fleet."""
        return typed(await self._read(id_of(fleet_id, EntityType.FLEET)), FleetAnswer)

    async def provider(self, provider_id: EntityId | str) -> ProviderAnswer:
        """Return a provider, with grid attributes."""
        return typed(await self._read(id_of(provider_id, EntityType.PROVIDER)), ProviderAnswer)

    async def agreement(self, agreement_id: EntityId | str) -> AgreementAnswer:
        """Return an agreement."""
        return typed(await self._read(id_of(agreement_id, EntityType.AGREEMENT)), AgreementAnswer)

    async def infusion(self, destination_id: EntityId | str, address: str) -> InfusionAnswer:
        """Return what an address infused into a reactor or struct."""
        destination, payer = str(id_of(destination_id, *_INFUSED)), address_of(address)
        request = routes.INFUSION.request(destination, payer, asked=f"{destination}-{payer}")
        envelope = await self._send(request)
        routes.INFUSION.check(envelope, destinationId=destination, address=payer)
        return typed(envelope, InfusionAnswer)

    async def address(self, address: str) -> AddressAnswer:
        """Return whom an address acts for; the player of an unknown one is None, and that is no error."""
        text = address_of(address)
        envelope = await self._send(routes.ADDRESS.request(text, asked=text))
        routes.ADDRESS.check(envelope, address=text)
        return typed(envelope, AddressAnswer)

    async def struct_type(self, number: int) -> StructTypeAnswer:
        """Return a kind of struct; they change only when the chain is upgraded."""
        text = str(whole_of("number", number, least=0))
        envelope = await self._send(routes.STRUCT_TYPE.request(text, asked=text))
        routes.STRUCT_TYPE.check(envelope, id=text)
        return typed(envelope, StructTypeAnswer)

    async def grid(self, attribute_id: str) -> GridRecord:
        """Return one number of the power grid, by an id such as ``11-1-194``; 0 for an unknown object."""
        text = attribute_id_of(attribute_id, GridAttribute)
        return typed(await self._send(routes.GRID.request(text, asked=text)), routes.GRID.answer).entity

    async def struct_attribute(self, struct_id: EntityId | str, name: StructAttribute | str) -> int:
        """Return one number of a struct; 0 for an unknown struct."""
        asked, attribute = str(id_of(struct_id, EntityType.STRUCT)), attribute_of(name, StructAttribute)
        request = routes.STRUCT_ATTRIBUTE.request(asked, attribute.value, asked=asked)
        return typed(await self._send(request), routes.STRUCT_ATTRIBUTE.answer).attribute

    async def planet_attribute(self, planet_id: EntityId | str, name: PlanetAttribute | str) -> int:
        """Return one number of a planet; 0 for an unknown planet."""
        asked, attribute = str(id_of(planet_id, EntityType.PLANET)), attribute_of(name, PlanetAttribute)
        request = routes.PLANET_ATTRIBUTE.request(asked, attribute.value, asked=asked)
        return typed(await self._send(request), routes.PLANET_ATTRIBUTE.answer).attribute

    async def block_height(self) -> int:
        """Return the chain's height."""
        return structure(await self._send(routes.BLOCK_HEIGHT), BlockHeightAnswer).block_height

    # --- lists -------------------------------------------------------------------------------------------------------

    def _records(self, listing: routes.Listing[R], *segments: str, page_size: int) -> AsyncGenerator[R, None]:
        # Checked here, when the method is called: the body of a generator would wait for the first record.
        whole_of("page_size", page_size, least=1)
        return self._walk(listing, segments, page_size)

    async def _walk(
        self, listing: routes.Listing[R], segments: tuple[str, ...], page_size: int
    ) -> AsyncGenerator[R, None]:
        key: str | None = None
        while True:
            query = page_query(key=key, limit=page_size)
            envelope = await self._send(listing.request(*segments, query=query))
            next_key = listing.next_key(envelope, after=key)
            for record in typed(envelope, listing.page).records:
                yield record
            # A page without records is not the last one: some routes filter what they have paged.
            if next_key is None:
                return
            key = next_key

    def guilds(self, *, page_size: int = 100) -> AsyncGenerator[Guild, None]:
        """Iterate over all guilds."""
        return self._records(routes.GUILDS, page_size=page_size)

    def players(self, *, page_size: int = 100) -> AsyncGenerator[Player, None]:
        """Iterate over all players."""
        return self._records(routes.PLAYERS, page_size=page_size)

    def planets(self, *, page_size: int = 100) -> AsyncGenerator[Planet, None]:
        """Iterate over all planets."""
        return self._records(routes.PLANETS, page_size=page_size)

    def reactors(self, *, page_size: int = 100) -> AsyncGenerator[Reactor, None]:
        """Iterate over all reactors."""
        return self._records(routes.REACTORS, page_size=page_size)

    def substations(self, *, page_size: int = 100) -> AsyncGenerator[Substation, None]:
        """Iterate over all substations."""
        return self._records(routes.SUBSTATIONS, page_size=page_size)

    def structs(self, *, page_size: int = 100) -> AsyncGenerator[Struct, None]:
        """Iterate over all structs."""
        return self._records(routes.STRUCTS, page_size=page_size)

    def allocations(self, *, page_size: int = 100) -> AsyncGenerator[Allocation, None]:
        """Iterate over all allocations."""
        return self._records(routes.ALLOCATIONS, page_size=page_size)

    def infusions(self, *, page_size: int = 100) -> AsyncGenerator[Infusion, None]:
        """Iterate over all infusions."""
        return self._records(routes.INFUSIONS, page_size=page_size)

    def addresses(self, *, page_size: int = 100) -> AsyncGenerator[Address, None]:
        """Iterate over all addresses."""
        return self._records(routes.ADDRESSES, page_size=page_size)

    def fleets(self, *, page_size: int = 100) -> AsyncGenerator[Fleet, None]:
        """Iterate over all fleets."""
        return self._records(routes.FLEETS, page_size=page_size)

    def providers(self, *, page_size: int = 100) -> AsyncGenerator[Provider, None]:
        """Iterate over all providers."""
        return self._records(routes.PROVIDERS, page_size=page_size)

    def agreements(self, *, page_size: int = 100) -> AsyncGenerator[Agreement, None]:
        """Iterate over all agreements."""
        return self._records(routes.AGREEMENTS, page_size=page_size)

    def struct_types(self, *, page_size: int = 100) -> AsyncGenerator[StructType, None]:
        """Iterate over all kinds of structs."""
        return self._records(routes.STRUCT_TYPES, page_size=page_size)

    def planets_by_player(self, player_id: EntityId | str, *, page_size: int = 100) -> AsyncGenerator[Planet, None]:
        """Iterate over a player's planets; the node walks all planets for it: prefer `Player.planet_id`."""
        segment = str(id_of(player_id, EntityType.PLAYER))
        return self._records(routes.PLANETS_BY_PLAYER, segment, page_size=page_size)

    def addresses_by_player(self, player_id: EntityId | str, *, page_size: int = 100) -> AsyncGenerator[Address, None]:
        """Iterate over a player's addresses; the node walks all addresses for it."""
        segment = str(id_of(player_id, EntityType.PLAYER))
        return self._records(routes.ADDRESSES_BY_PLAYER, segment, page_size=page_size)

    def permissions_by_object(
        self, object_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[PermissionRecord, None]:
        """Iterate over the permissions on an object; the node walks all permissions for it."""
        return self._records(routes.PERMISSIONS_BY_OBJECT, str(id_of(object_id)), page_size=page_size)

    def permissions_by_player(
        self, player_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[PermissionRecord, None]:
        """Iterate over the permissions of a player; the node walks all permissions for it."""
        segment = str(id_of(player_id, EntityType.PLAYER))
        return self._records(routes.PERMISSIONS_BY_PLAYER, segment, page_size=page_size)

    def agreements_by_provider(
        self, provider_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[Agreement, None]:
        """Iterate over the agreements with a provider."""
        segment = str(id_of(provider_id, EntityType.PROVIDER))
        return self._records(routes.AGREEMENTS_BY_PROVIDER, segment, page_size=page_size)

    def allocations_by_source(
        self, source_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[Allocation, None]:
        """Iterate over the allocations that a player, reactor or substation gives."""
        segment = str(id_of(source_id, *_SOURCES))
        return self._records(routes.ALLOCATIONS_BY_SOURCE, segment, page_size=page_size)

    def allocations_by_destination(
        self, destination_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[Allocation, None]:
        """Iterate over the allocations that a substation gets."""
        segment = str(id_of(destination_id, EntityType.SUBSTATION))
        return self._records(routes.ALLOCATIONS_BY_DESTINATION, segment, page_size=page_size)

    def infusions_by_destination(
        self, destination_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[Infusion, None]:
        """Iterate over the infusions into a reactor or struct."""
        segment = str(id_of(destination_id, *_INFUSED))
        return self._records(routes.INFUSIONS_BY_DESTINATION, segment, page_size=page_size)


def listing_of(name: EntityType | str) -> routes.Listing[Any]:
    """Return the list of all entities of a type, or raise `InvalidArgument`."""
    listing = routes.LISTINGS.get(name) if isinstance(name, str) else None
    if listing is None:
        raise InvalidArgument(f"there is no list of {name!r:.80}", hint=f"one of {', '.join(sorted(routes.LISTINGS))}")
    return listing
