"""The typed reads of the client: one explicit method each."""

import abc
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import attrs

from mama_structs import _check
from mama_structs.structs.answers import (
    AddressAnswer,
    Answer,
    AttributeAnswer,
    BlockHeightAnswer,
    Envelope,
    GridAnswer,
    PlanetAnswer,
    PlayerAnswer,
    StructAnswer,
)
from mama_structs.structs.convert import structure
from mama_structs.structs.entities import (
    Address,
    Agreement,
    Allocation,
    Fleet,
    GridRecord,
    Guild,
    Infusion,
    PermissionRecord,
    Planet,
    Player,
    Provider,
    Reactor,
    Struct,
    StructType,
    Substation,
)
from mama_structs.structs.enums import GridAttribute, PlanetAttribute, StructAttribute
from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.structs.record import Record
from mama_structs.structs.routes import (
    ANSWERS,
    Listing,
    NodeQuery,
    address_of,
    attribute_id_of,
    attribute_of,
    check_about,
    id_of,
    one,
    page_query,
)

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
    async def _send(self, request: NodeQuery) -> Envelope:
        """Return the JSON object that the node answers with."""

    async def _read(self, asked: EntityId) -> Envelope:
        model, text = ANSWERS[asked.type], str(asked)
        envelope = await self._send(one(model, asked.type, text, asked=text))
        check_about(envelope, model, id=text)
        return envelope

    async def _one(self, model: type[A], *segments: str, asked: str, **expected: str) -> A:
        envelope = await self._send(one(model, *segments, asked=asked))
        check_about(envelope, model, **expected)
        return typed(envelope, model)

    async def guild(self, guild_id: EntityId | str) -> Answer[Guild]:
        """Return a guild."""
        return typed(await self._read(id_of(guild_id, EntityType.GUILD)), Answer[Guild])

    async def player(self, player_id: EntityId | str) -> PlayerAnswer:
        """Return a player, with grid attributes and inventory."""
        return typed(await self._read(id_of(player_id, EntityType.PLAYER)), PlayerAnswer)

    async def planet(self, planet_id: EntityId | str) -> PlanetAnswer:
        """Return a planet, with grid and planet attributes."""
        return typed(await self._read(id_of(planet_id, EntityType.PLANET)), PlanetAnswer)

    async def reactor(self, reactor_id: EntityId | str) -> GridAnswer[Reactor]:
        """Return a reactor, with grid attributes."""
        return typed(await self._read(id_of(reactor_id, EntityType.REACTOR)), GridAnswer[Reactor])

    async def substation(self, substation_id: EntityId | str) -> GridAnswer[Substation]:
        """Return a substation, with grid attributes."""
        return typed(await self._read(id_of(substation_id, EntityType.SUBSTATION)), GridAnswer[Substation])

    async def struct(self, struct_id: EntityId | str) -> StructAnswer:
        """Return a struct, with grid and struct attributes and its defenders."""
        return typed(await self._read(id_of(struct_id, EntityType.STRUCT)), StructAnswer)

    async def allocation(self, allocation_id: EntityId | str) -> GridAnswer[Allocation]:
        """Return an allocation; its power is in the grid attributes."""
        return typed(await self._read(id_of(allocation_id, EntityType.ALLOCATION)), GridAnswer[Allocation])

    async def fleet(self, fleet_id: EntityId | str) -> Answer[Fleet]:
        """Return a fleet."""
        return typed(await self._read(id_of(fleet_id, EntityType.FLEET)), Answer[Fleet])

    async def provider(self, provider_id: EntityId | str) -> GridAnswer[Provider]:
        """Return a provider, with grid attributes."""
        return typed(await self._read(id_of(provider_id, EntityType.PROVIDER)), GridAnswer[Provider])

    async def agreement(self, agreement_id: EntityId | str) -> Answer[Agreement]:
        """Return an agreement."""
        return typed(await self._read(id_of(agreement_id, EntityType.AGREEMENT)), Answer[Agreement])

    async def infusion(self, destination_id: EntityId | str, address: str) -> Answer[Infusion]:
        """Return what an address infused into a reactor or struct."""
        to, payer = str(id_of(destination_id, *_INFUSED)), address_of(address)
        asked = f"{to}-{payer}"
        return await self._one(Answer[Infusion], "infusion", to, payer, asked=asked, destinationId=to, address=payer)

    async def address(self, address: str) -> AddressAnswer:
        """Return whom an address acts for; the player of an unknown one is None, and that is no error."""
        text = address_of(address)
        return await self._one(AddressAnswer, "address", text, asked=text, address=text)

    async def struct_type(self, number: int) -> Answer[StructType]:
        """Return a kind of struct; they change only when the chain is upgraded."""
        text = str(_check.whole("number", number, 0, MAX_INDEX))
        return await self._one(Answer[StructType], "struct_type", text, asked=text, id=text)

    async def grid(self, attribute_id: str) -> GridRecord:
        """Return one number of the power grid, by an id such as ``11-1-194``; 0 for an unknown object."""
        text = attribute_id_of(attribute_id, GridAttribute)
        return (await self._one(Answer[GridRecord], "grid", text, asked=text)).entity

    async def struct_attribute(self, struct_id: EntityId | str, name: StructAttribute | str) -> int:
        """Return one number of a struct; 0 for an unknown struct."""
        asked, attribute = str(id_of(struct_id, EntityType.STRUCT)), attribute_of(name, StructAttribute)
        return (await self._one(AttributeAnswer, "struct_attribute", asked, attribute, asked=asked)).attribute

    async def planet_attribute(self, planet_id: EntityId | str, name: PlanetAttribute | str) -> int:
        """Return one number of a planet; 0 for an unknown planet."""
        asked, attribute = str(id_of(planet_id, EntityType.PLANET)), attribute_of(name, PlanetAttribute)
        return (await self._one(AttributeAnswer, "planet_attribute", asked, attribute, asked=asked)).attribute

    async def block_height(self) -> int:
        """Return the chain's height."""
        request = NodeQuery(path="/blockheight", key="blockHeight")
        return structure(await self._send(request), BlockHeightAnswer).block_height

    # --- lists -------------------------------------------------------------------------------------------------------

    def _records(self, route: str, record: type[R], *segments: str, page_size: int) -> AsyncGenerator[R, None]:
        # Checked here, when the method is called: the body of a generator would wait for the first record.
        _check.whole("page_size", page_size, 1, MAX_INDEX)
        return self._walk(Listing(route, record), segments, page_size)

    async def _walk(self, listing: Listing[R], segments: tuple[str, ...], page_size: int) -> AsyncGenerator[R, None]:
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
        return self._records("guild", Guild, page_size=page_size)

    def players(self, *, page_size: int = 100) -> AsyncGenerator[Player, None]:
        """Iterate over all players."""
        return self._records("player", Player, page_size=page_size)

    def planets(self, *, page_size: int = 100) -> AsyncGenerator[Planet, None]:
        """Iterate over all planets."""
        return self._records("planet", Planet, page_size=page_size)

    def reactors(self, *, page_size: int = 100) -> AsyncGenerator[Reactor, None]:
        """Iterate over all reactors."""
        return self._records("reactor", Reactor, page_size=page_size)

    def substations(self, *, page_size: int = 100) -> AsyncGenerator[Substation, None]:
        """Iterate over all substations."""
        return self._records("substation", Substation, page_size=page_size)

    def structs(self, *, page_size: int = 100) -> AsyncGenerator[Struct, None]:
        """Iterate over all structs."""
        return self._records("struct", Struct, page_size=page_size)

    def allocations(self, *, page_size: int = 100) -> AsyncGenerator[Allocation, None]:
        """Iterate over all allocations."""
        return self._records("allocation", Allocation, page_size=page_size)

    def infusions(self, *, page_size: int = 100) -> AsyncGenerator[Infusion, None]:
        """Iterate over all infusions."""
        return self._records("infusion", Infusion, page_size=page_size)

    def addresses(self, *, page_size: int = 100) -> AsyncGenerator[Address, None]:
        """Iterate over all addresses."""
        return self._records("address", Address, page_size=page_size)

    def fleets(self, *, page_size: int = 100) -> AsyncGenerator[Fleet, None]:
        """Iterate over all fleets."""
        return self._records("fleet", Fleet, page_size=page_size)

    def providers(self, *, page_size: int = 100) -> AsyncGenerator[Provider, None]:
        """Iterate over all providers."""
        return self._records("provider", Provider, page_size=page_size)

    def agreements(self, *, page_size: int = 100) -> AsyncGenerator[Agreement, None]:
        """Iterate over all agreements."""
        return self._records("agreement", Agreement, page_size=page_size)

    def struct_types(self, *, page_size: int = 100) -> AsyncGenerator[StructType, None]:
        """Iterate over all kinds of structs."""
        return self._records("struct_type", StructType, page_size=page_size)

    def planets_by_player(self, player_id: EntityId | str, *, page_size: int = 100) -> AsyncGenerator[Planet, None]:
        """Iterate over a player's planets; the node walks all planets for it: prefer `Player.planet_id`."""
        player = str(id_of(player_id, EntityType.PLAYER))
        return self._records("planet_by_player", Planet, player, page_size=page_size)

    def addresses_by_player(self, player_id: EntityId | str, *, page_size: int = 100) -> AsyncGenerator[Address, None]:
        """Iterate over a player's addresses; the node walks all addresses for it."""
        player = str(id_of(player_id, EntityType.PLAYER))
        return self._records("address_by_player", Address, player, page_size=page_size)

    def permissions_by_object(
        self, object_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[PermissionRecord, None]:
        """Iterate over the permissions on an object; the node walks all permissions for it."""
        return self._records("permission/object", PermissionRecord, str(id_of(object_id)), page_size=page_size)

    def permissions_by_player(
        self, player_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[PermissionRecord, None]:
        """Iterate over the permissions of a player; the node walks all permissions for it."""
        player = str(id_of(player_id, EntityType.PLAYER))
        return self._records("permission/player", PermissionRecord, player, page_size=page_size)

    def agreements_by_provider(
        self, provider_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[Agreement, None]:
        """Iterate over the agreements with a provider."""
        provider = str(id_of(provider_id, EntityType.PROVIDER))
        return self._records("agreement_by_provider", Agreement, provider, page_size=page_size)

    def allocations_by_source(
        self, source_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[Allocation, None]:
        """Iterate over the allocations that a player, reactor or substation gives."""
        source = str(id_of(source_id, *_SOURCES))
        return self._records("allocation_by_source", Allocation, source, page_size=page_size)

    def allocations_by_destination(
        self, destination_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[Allocation, None]:
        """Iterate over the allocations that a substation gets."""
        destination = str(id_of(destination_id, EntityType.SUBSTATION))
        return self._records("allocation_by_destination", Allocation, destination, page_size=page_size)

    def infusions_by_destination(
        self, destination_id: EntityId | str, *, page_size: int = 100
    ) -> AsyncGenerator[Infusion, None]:
        """Iterate over the infusions into a reactor or struct."""
        destination = str(id_of(destination_id, *_INFUSED))
        return self._records("infusion_by_destination", Infusion, destination, page_size=page_size)
