"""The ready-made tools for the Structs chain."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from mama_structs.errors import InvalidArgument
from mama_structs.references.decorator import with_references
from mama_structs.references.resolver import Resolver
from mama_structs.structs.client import StructsClient
from mama_structs.structs.ids import EntityId, EntityType
from mama_structs.structs.source import StructsSource, StructsTool

JSON = dict[str, Any]


def tools(
    origin: str | StructsClient | StructsSource | Any, *, resolver: Resolver | None = None, **defaults: Any
) -> dict[str, StructsTool]:
    """
    Return the ready-made tools for a chain, by name: ``structs_query_<entity>`` and ``structs_list_<entities>``.

    Their queries go through the resolver, so that they count among its parallel queries and feed its cache.

    Args:
        origin: A node's URL, a client, or anything with ``async fetch(entity_id)`` (which gives query tools only).
        resolver: What resolves references; by default one of its own, on the same origin.
        **defaults: The tools' defaults for any field of `ReferenceOptions`.

    """
    source = origin if isinstance(origin, StructsSource) else StructsSource(origin)
    chain = _Chain(source, resolver or Resolver([source]), defaults)
    functions = [*_query_tools(chain), *(_list_tools(chain) if source.client is not None else ())]
    return {function.__name__: function for function in functions}


class _Chain:
    """How the tools ask."""

    def __init__(self, source: StructsSource, resolver: Resolver, defaults: Mapping[str, Any]) -> None:
        self.source = source
        self.resolver = resolver
        self.defaults = defaults

    async def query(self, parameter: str, text: str, kind: EntityType) -> JSON:
        """Return the node's answer for one entity."""
        try:
            entity_id = EntityId.parse(text)
        except InvalidArgument as error:
            raise InvalidArgument(f"{parameter}: {error}") from error
        if entity_id.type is not kind:
            raise InvalidArgument(
                f"{parameter} must be the id of a {kind}, got {entity_id}, which is a {entity_id.type}",
                hint=f"ids of a {kind} look like {kind.code}-1",
            )
        return await self.resolver.query(str(entity_id))

    async def page(self, kind: EntityType, key: str | None, limit: int) -> JSON:
        """Return one page of the node's records."""

        async def fetch(_: str) -> JSON:
            client = await self.source.ready_client()
            return await client.list_page(kind, key=key, limit=limit)

        return await self.resolver.load(f"list {kind} {limit} {key or ''}", fetch, kind=kind)

    def query_tool(self, function: Callable[..., Coroutine[Any, Any, JSON]], subject: str) -> StructsTool:
        """Decorate a query tool."""
        return with_references(resolver=self.resolver, kind="query", subject=subject, **self.defaults)(function)

    def list_tool(self, function: Callable[..., Coroutine[Any, Any, JSON]]) -> StructsTool:
        """Decorate a list tool."""
        return with_references(resolver=self.resolver, kind="list", **self.defaults)(function)


def _query_tools(chain: _Chain) -> list[StructsTool]:  # noqa: C901 - ten tools, one after the other
    async def structs_query_player(player_id: str) -> JSON:
        """
        Look a player up: guild, planet, fleet, substation, rank, power and ore.

        Args:
            player_id: Such as 1-11.

        """
        return await chain.query("player_id", player_id, EntityType.PLAYER)

    async def structs_query_planet(planet_id: str) -> JSON:
        """
        Look a planet up: owner, ore, slots with their structs, visiting fleets, shield.

        Args:
            planet_id: Such as 2-1.

        """
        return await chain.query("planet_id", planet_id, EntityType.PLANET)

    async def structs_query_guild(guild_id: str) -> JSON:
        """
        Look a guild up: owner, primary reactor, entry substation, how to join.

        Args:
            guild_id: Such as 0-1.

        """
        return await chain.query("guild_id", guild_id, EntityType.GUILD)

    async def structs_query_struct(struct_id: str) -> JSON:
        """
        Look a struct up: type, owner, place, health, state, defenders.

        Args:
            struct_id: Such as 5-42.

        """
        return await chain.query("struct_id", struct_id, EntityType.STRUCT)

    async def structs_query_fleet(fleet_id: str) -> JSON:
        """
        Look a fleet up: owner, place, status, structs, command ship. Player 1-11 has fleet 9-11.

        Args:
            fleet_id: Such as 9-11.

        """
        return await chain.query("fleet_id", fleet_id, EntityType.FLEET)

    async def structs_query_reactor(reactor_id: str) -> JSON:
        """
        Look a reactor up: validator, guild, owner, commission, fuel and power.

        Args:
            reactor_id: Such as 3-1.

        """
        return await chain.query("reactor_id", reactor_id, EntityType.REACTOR)

    async def structs_query_substation(substation_id: str) -> JSON:
        """
        Look a substation up: owner, capacity, load, connections.

        Args:
            substation_id: Such as 4-3.

        """
        return await chain.query("substation_id", substation_id, EntityType.SUBSTATION)

    async def structs_query_provider(provider_id: str) -> JSON:
        """
        Look an energy provider up: substation, rate, who may buy, limits, owner.

        Args:
            provider_id: Such as 10-1.

        """
        return await chain.query("provider_id", provider_id, EntityType.PROVIDER)

    async def structs_query_agreement(agreement_id: str) -> JSON:
        """
        Look an energy agreement up: provider, allocation, capacity, blocks, owner.

        Args:
            agreement_id: Such as 11-1.

        """
        return await chain.query("agreement_id", agreement_id, EntityType.AGREEMENT)

    async def structs_query_allocation(allocation_id: str) -> JSON:
        """
        Look an energy allocation up: source, destination, controller, power.

        Args:
            allocation_id: Such as 6-1.

        """
        return await chain.query("allocation_id", allocation_id, EntityType.ALLOCATION)

    return [
        chain.query_tool(structs_query_player, "player_id"),
        chain.query_tool(structs_query_planet, "planet_id"),
        chain.query_tool(structs_query_guild, "guild_id"),
        chain.query_tool(structs_query_struct, "struct_id"),
        chain.query_tool(structs_query_fleet, "fleet_id"),
        chain.query_tool(structs_query_reactor, "reactor_id"),
        chain.query_tool(structs_query_substation, "substation_id"),
        chain.query_tool(structs_query_provider, "provider_id"),
        chain.query_tool(structs_query_agreement, "agreement_id"),
        chain.query_tool(structs_query_allocation, "allocation_id"),
    ]


def _list_tools(chain: _Chain) -> list[StructsTool]:
    return [
        _list_tool(chain, kind)
        for kind in (
            EntityType.PLAYER, EntityType.PLANET, EntityType.STRUCT, EntityType.GUILD, EntityType.FLEET,
            EntityType.REACTOR, EntityType.SUBSTATION, EntityType.PROVIDER, EntityType.AGREEMENT,
            EntityType.ALLOCATION,
        )
    ]  # fmt: skip


def _list_tool(chain: _Chain, kind: EntityType) -> StructsTool:
    async def list_entities(*, pagination_key: str | None = None, pagination_limit: int = 100) -> JSON:
        return await chain.page(kind, pagination_key, pagination_limit)

    list_entities.__name__ = list_entities.__qualname__ = f"structs_list_{kind}s"
    list_entities.__doc__ = f"""
    List {kind}s, page by page, in the byte order of their ids; rows carry no attributes, query one for these.

    Args:
        pagination_key: The next_key of the page before; leave it out for the first page.
        pagination_limit: Rows a page.

    """
    return chain.list_tool(list_entities)
