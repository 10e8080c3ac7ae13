"""The typed reads of the client: one explicit method each."""

import abc
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import attrs

from mama_structs import _check
from mama_structs.structs import entities, routes
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
from mama_structs.structs.enums import GridAttribute, PlanetAttribute, StructAttribute
from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.structs.record import Record
from mama_structs.structs.routes import ANSWERS, Listing, NodeQuery, id_of

A = TypeVar("A", bound=Record)
R = TypeVar("R", bound=Record)
Id = EntityId | str
Rows = AsyncGenerator[R, None]

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
        envelope = await self._send(routes.one(model, asked.type, text, asked=text))
        routes.check_about(envelope, model, id=text)
        return envelope

    async def _one(self, model: type[A], *segments: str, asked: str, **expected: str) -> A:
        envelope = await self._send(routes.one(model, *segments, asked=asked))
        routes.check_about(envelope, model, **expected)
        return typed(envelope, model)

    async def guild(self, guild_id: Id) -> Answer[entities.Guild]:
        """Return a guild."""
        return typed(await self._read(id_of(guild_id, EntityType.GUILD)), Answer[entities.Guild])

    async def player(self, player_id: Id) -> PlayerAnswer:
        """Return a player, with grid attributes and inventory."""
        return typed(await self._read(id_of(player_id, EntityType.PLAYER)), PlayerAnswer)

    async def planet(self, planet_id: Id) -> PlanetAnswer:
        """Return a planet, with grid and planet attributes."""
        return typed(await self._read(id_of(planet_id, EntityType.PLANET)), PlanetAnswer)

    async def reactor(self, reactor_id: Id) -> GridAnswer[entities.Reactor]:
        """Return a reactor, with grid attributes."""
        return typed(await self._read(id_of(reactor_id, EntityType.REACTOR)), GridAnswer[entities.Reactor])

    async def substation(self, substation_id: Id) -> GridAnswer[entities.Substation]:
        """Return a substation, with grid attributes."""
        return typed(await self._read(id_of(substation_id, EntityType.SUBSTATION)), GridAnswer[entities.Substation])

    async def struct(self, struct_id: Id) -> StructAnswer:
        """Return a struct, with grid and struct attributes and its defenders."""
        return typed(await self._read(id_of(struct_id, EntityType.STRUCT)), StructAnswer)

    async def allocation(self, allocation_id: Id) -> GridAnswer[entities.Allocation]:
        """Return an allocation; its power is in the grid attributes."""
        return typed(await self._read(id_of(allocation_id, EntityType.ALLOCATION)), GridAnswer[entities.Allocation])

    async def fleet(self, fleet_id: Id) -> Answer[entities.Fleet]:
        """Return a fleet."""
        return typed(await self._read(id_of(fleet_id, EntityType.FLEET)), Answer[entities.Fleet])

    async def provider(self, provider_id: Id) -> GridAnswer[entities.Provider]:
        """Return a provider, with grid attributes."""
        return typed(await self._read(id_of(provider_id, EntityType.PROVIDER)), GridAnswer[entities.Provider])

    async def agreement(self, agreement_id: Id) -> Answer[entities.Agreement]:
        """Return an agreement."""
        return typed(await self._read(id_of(agreement_id, EntityType.AGREEMENT)), Answer[entities.Agreement])

    async def infusion(self, destination_id: Id, address: str) -> Answer[entities.Infusion]:
        """Return what an address infused into a reactor or struct."""
        to, payer = str(id_of(destination_id, *_INFUSED)), routes.address_of(address)
        asked = f"{to}-{payer}"
        return await self._one(
            Answer[entities.Infusion], "infusion", to, payer, asked=asked, destinationId=to, address=payer
        )

    async def address(self, address: str) -> AddressAnswer:
        """Return whom an address acts for; the player of an unknown one is None, and that is no error."""
        text = routes.address_of(address)
        return await self._one(AddressAnswer, "address", text, asked=text, address=text)

    async def struct_type(self, number: int) -> Answer[entities.StructType]:
        """Return a kind of struct; they change only when the chain is upgraded."""
        text = str(_check.whole("number", number, 0, MAX_INDEX))
        return await self._one(Answer[entities.StructType], "struct_type", text, asked=text, id=text)

    async def grid(self, attribute_id: str) -> entities.GridRecord:
        """Return one number of the power grid, by an id such as ``11-1-194``; 0 for an unknown object."""
        text = routes.attribute_id_of(attribute_id, GridAttribute)
        return (await self._one(Answer[entities.GridRecord], "grid", text, asked=text)).entity

    async def struct_attribute(self, struct_id: Id, name: StructAttribute | str) -> int:
        """Return one number of a struct; 0 for an unknown struct."""
        asked, attribute = str(id_of(struct_id, EntityType.STRUCT)), routes.attribute_of(name, StructAttribute)
        return (await self._one(AttributeAnswer, "struct_attribute", asked, attribute, asked=asked)).attribute

    async def planet_attribute(self, planet_id: Id, name: PlanetAttribute | str) -> int:
        """Return one number of a planet; 0 for an unknown planet."""
        asked, attribute = str(id_of(planet_id, EntityType.PLANET)), routes.attribute_of(name, PlanetAttribute)
        return (await self._one(AttributeAnswer, "planet_attribute", asked, attribute, asked=asked)).attribute

    async def block_height(self) -> int:
        """Return the chain's height."""
        request = NodeQuery(path="/blockheight", key="blockHeight")
        return structure(await self._send(request), BlockHeightAnswer).block_height

    # --- lists -------------------------------------------------------------------------------------------------------

    def _records(self, page_size: int, route: str, record: type[R], *of: Any) -> Rows[R]:
        # Checked here, when the method is called: the body of a generator would wait for the first record.
        segments = [str(id_of(*of))] if of else []
        _check.whole("page_size", page_size, 1, MAX_INDEX)
        return self._walk(Listing(route, record), segments, page_size)

    async def _walk(self, listing: Listing[R], segments: list[str], page_size: int) -> Rows[R]:
        key: str | None = None
        while True:
            query = routes.page_query(key=key, limit=page_size)
            envelope = await self._send(listing.request(*segments, query=query))
            next_key = listing.next_key(envelope, after=key)
            for record in typed(envelope, listing.page).records:
                yield record
            # A page without records is not the last one: some routes filter what they have paged.
            if next_key is None:
                return
            key = next_key

    def guilds(self, *, page_size: int = 100) -> Rows[entities.Guild]:
        """Iterate over all guilds."""
        return self._records(page_size, "guild", entities.Guild)

    def players(self, *, page_size: int = 100) -> Rows[entities.Player]:
        """Iterate over all players."""
        return self._records(page_size, "player", entities.Player)

    def planets(self, *, page_size: int = 100) -> Rows[entities.Planet]:
        """Iterate over all planets."""
        return self._records(page_size, "planet", entities.Planet)

    def reactors(self, *, page_size: int = 100) -> Rows[entities.Reactor]:
        """Iterate over all reactors."""
        return self._records(page_size, "reactor", entities.Reactor)

    def substations(self, *, page_size: int = 100) -> Rows[entities.Substation]:
        """Iterate over all substations."""
        return self._records(page_size, "substation", entities.Substation)

    def structs(self, *, page_size: int = 100) -> Rows[entities.Struct]:
        """Iterate over all structs."""
        return self._records(page_size, "struct", entities.Struct)

    def allocations(self, *, page_size: int = 100) -> Rows[entities.Allocation]:
        """Iterate over all allocations."""
        return self._records(page_size, "allocation", entities.Allocation)

    def infusions(self, *, page_size: int = 100) -> Rows[entities.Infusion]:
        """Iterate over all infusions."""
        return self._records(page_size, "infusion", entities.Infusion)

    def addresses(self, *, page_size: int = 100) -> Rows[entities.Address]:
        """Iterate over all addresses."""
        return self._records(page_size, "address", entities.Address)

    def fleets(self, *, page_size: int = 100) -> Rows[entities.Fleet]:
        """Iterate over all fleets."""
        return self._records(page_size, "fleet", entities.Fleet)

    def providers(self, *, page_size: int = 100) -> Rows[entities.Provider]:
        """Iterate over all providers."""
        return self._records(page_size, "provider", entities.Provider)

    def agreements(self, *, page_size: int = 100) -> Rows[entities.Agreement]:
        """Iterate over all agreements."""
        return self._records(page_size, "agreement", entities.Agreement)

    def struct_types(self, *, page_size: int = 100) -> Rows[entities.StructType]:
        """Iterate over all kinds of structs."""
        return self._records(page_size, "struct_type", entities.StructType)

    def planets_by_player(self, player_id: Id, *, page_size: int = 100) -> Rows[entities.Planet]:
        """Iterate over a player's planets; the node walks all planets for it: prefer `Player.planet_id`."""
        return self._records(page_size, "planet_by_player", entities.Planet, player_id, EntityType.PLAYER)

    def addresses_by_player(self, player_id: Id, *, page_size: int = 100) -> Rows[entities.Address]:
        """Iterate over a player's addresses; the node walks all addresses for it."""
        return self._records(page_size, "address_by_player", entities.Address, player_id, EntityType.PLAYER)

    def permissions_by_object(self, object_id: Id, *, page_size: int = 100) -> Rows[entities.PermissionRecord]:
        """Iterate over the permissions on an object; the node walks all permissions for it."""
        return self._records(page_size, "permission/object", entities.PermissionRecord, object_id)

    def permissions_by_player(self, player_id: Id, *, page_size: int = 100) -> Rows[entities.PermissionRecord]:
        """Iterate over the permissions of a player; the node walks all permissions for it."""
        return self._records(page_size, "permission/player", entities.PermissionRecord, player_id, EntityType.PLAYER)

    def agreements_by_provider(self, provider_id: Id, *, page_size: int = 100) -> Rows[entities.Agreement]:
        """Iterate over the agreements with a provider."""
        return self._records(page_size, "agreement_by_provider", entities.Agreement, provider_id, EntityType.PROVIDER)

    def allocations_by_source(self, source_id: Id, *, page_size: int = 100) -> Rows[entities.Allocation]:
        """Iterate over the allocations that a player, reactor or substation gives."""
        return self._records(page_size, "allocation_by_source", entities.Allocation, source_id, *_SOURCES)

    def allocations_by_destination(self, destination_id: Id, *, page_size: int = 100) -> Rows[entities.Allocation]:
        """Iterate over the allocations that a substation gets."""
        return self._records(
            page_size, "allocation_by_destination", entities.Allocation, destination_id, EntityType.SUBSTATION
        )

    def infusions_by_destination(self, destination_id: Id, *, page_size: int = 100) -> Rows[entities.Infusion]:
        """Iterate over the infusions into a reactor or struct."""
        return self._records(page_size, "infusion_by_destination", entities.Infusion, destination_id, *_INFUSED)
