"""The ready-made tools for the Structs chain."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, Final, cast

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.references.decorator import with_references
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import EntitySource
from mama_structs.structs.arguments import is_page_key
from mama_structs.structs.client import StructsClient
from mama_structs.structs.ids import EntityId, EntityType
from mama_structs.structs.source import StructsSource, StructsTool

JSON = dict[str, Any]
MOST_ROWS: Final = 1000


@attrs.frozen
class _Entity:
    """
    What the two tools for one type of entity say.

    Args:
        kind: The type.
        example: An id of this type.
        tells: What a query answers.
        use: When to query.
        avoid: What a query is not for, and what is.
        finds: What the list is good for.

    """

    kind: EntityType
    example: str
    tells: str
    use: str
    avoid: str
    finds: str

    @property
    def parameter(self) -> str:
        return f"{self.kind}_id"

    @property
    def query_name(self) -> str:
        return f"structs_query_{self.kind}"

    @property
    def list_name(self) -> str:
        return f"structs_list_{self.kind}s"

    @property
    def noun(self) -> str:
        return f"{'an' if self.kind[0] == 'a' else 'a'} {self.kind}"


_ENTITIES: Final = (
    _Entity(
        EntityType.PLAYER,
        "1-11",
        tells="guild, planet, fleet, substation, rank, power and ore",
        use="you have a player's id and want to know where it belongs and what it has",
        avoid="finding a player by name, or the members of a guild: structs_list_players",
        finds="a player by name, or the members of a guild",
    ),
    _Entity(
        EntityType.PLANET,
        "2-1",
        tells="owner, ore, slots with their structs, visiting fleets, shield",
        use="you have a planet's id and want to know what is built there, who visits it or how it is shielded",
        avoid="a struct in one of its slots: structs_query_struct; comparing many planets: structs_list_planets",
        finds="planets by owner, status or free slots",
    ),
    _Entity(
        EntityType.GUILD,
        "0-1",
        tells="owner, primary reactor, entry substation, how to join",
        use="you have a guild's id and want to know who leads it or how to join it",
        avoid="its members: structs_list_players, whose rows name their guild",
        finds="a guild by name, or one to join",
    ),
    _Entity(
        EntityType.STRUCT,
        "5-42",
        tells="type, owner, place, health, state, defenders",
        use="you have a struct's id and want to know its condition or what defends it",
        avoid="everything on a planet or in a fleet: structs_query_planet and structs_query_fleet name their structs",
        finds="structs by owner, type or place",
    ),
    _Entity(
        EntityType.FLEET,
        "9-11",
        tells="owner, place, status, structs, command ship; player 1-11 has fleet 9-11",
        use="you have a fleet's or its player's id and want to know where the fleet is and what is in it",
        avoid="which fleets visit a planet: structs_query_planet",
        finds="fleets by place or status",
    ),
    _Entity(
        EntityType.REACTOR,
        "3-1",
        tells="validator, guild, owner, commission, fuel and power",
        use="you have a reactor's id and want to know its fuel, power or commission",
        avoid="where its power goes: structs_list_allocations",
        finds="reactors by guild or commission",
    ),
    _Entity(
        EntityType.SUBSTATION,
        "4-3",
        tells="owner, capacity, load, connections",
        use="you have a substation's id and want to know whether it has power to spare",
        avoid="which players it feeds: structs_list_players, whose rows name their substation",
        finds="substations by owner or name",
    ),
    _Entity(
        EntityType.PROVIDER,
        "10-1",
        tells="substation, rate, who may buy, limits, owner",
        use="you have an energy provider's id and want to know its price and its terms",
        avoid="what it has sold: structs_list_agreements",
        finds="energy providers by price or access",
    ),
    _Entity(
        EntityType.AGREEMENT,
        "11-1",
        tells="provider, allocation, capacity, blocks, owner",
        use="you have an energy agreement's id and want to know what was bought and until when",
        avoid="the terms on offer: structs_query_provider",
        finds="energy agreements by provider or owner",
    ),
    _Entity(
        EntityType.ALLOCATION,
        "6-1",
        tells="source, destination, controller, power",
        use="you have an energy allocation's id and want to know which way how much power goes",
        avoid="what a substation has in all: structs_query_substation",
        finds="energy allocations by source or destination",
    ),
)


def tools(
    origin: StructsClient | StructsSource | Any, *, resolver: Resolver | None = None, **defaults: Any
) -> dict[str, StructsTool]:
    """
    Return the ready-made tools for a chain, by name: ``structs_query_<entity>`` and ``structs_list_<entities>``.

    Their queries go through the resolver, so that they count among its parallel queries and feed its cache.

    Args:
        origin: A client, a `StructsSource`, or anything with ``async fetch(entity_id)`` (which gives query tools
            only).
        resolver: What resolves references, with a source on the same chain; by default one of its own.
        **defaults: The tools' defaults for any field of `ReferenceOptions`.

    Raises:
        InvalidArgument: *origin* is none of these (a URL alone would make a client that nobody could close), or
            *resolver* asks another chain.

    """
    source = _source_of(origin)
    if resolver is None:
        resolver = Resolver([source])
    else:
        _refuse_another_chain(source, resolver)
    chain = _Chain(source, resolver, defaults)
    ready = [_query_tool(chain, entity) for entity in _ENTITIES]
    if source.client is not None:
        ready += [_list_tool(chain, entity) for entity in _ENTITIES]
    return {tool.__name__: tool for tool in ready}


def _source_of(origin: StructsClient | StructsSource | Any) -> StructsSource:
    if isinstance(origin, StructsSource):
        return origin
    if not isinstance(origin, StructsClient) and (isinstance(origin, str) or hasattr(origin, "url")):
        raise InvalidArgument(
            "tools(...) cannot be made from a URL: nobody could close the connections",
            hint="give a StructsClient, or use Session.open(structs=URL), which has the tools",
        )
    return StructsSource(origin)


def _refuse_another_chain(source: StructsSource, resolver: Resolver) -> None:
    if not isinstance(resolver, Resolver):
        raise InvalidArgument(f"resolver must be a Resolver, got {resolver!r:.80}")
    if not any(_are_one(source, other) for other in resolver.sources):
        raise InvalidArgument(
            f"resolver must ask the chain that the tools ask, got {resolver!r}",
            hint="Resolver([StructsSource(client)]) and tools(client, ...) with the same client, or leave resolver out",
        )


def _are_one(source: StructsSource, other: EntitySource) -> bool:
    """Tell whether two sources answer from the same place."""
    if source is other:
        return True
    if not isinstance(other, StructsSource):
        return other.fetch is not None and bool(other.fetch == source._ask)  # noqa: SLF001 - what it was made from
    if source.client is None or other.client is None:
        return bool(source._ask == other._ask)  # noqa: SLF001 - as above
    return source.client.base_url == other.client.base_url


@attrs.frozen
class _Chain:
    """How the tools ask."""

    source: StructsSource
    resolver: Resolver
    defaults: Mapping[str, Any]

    async def query(self, entity: _Entity, text: str) -> JSON:
        """Return the node's answer for one entity."""
        try:
            entity_id = EntityId.parse(text)
        except InvalidArgument as error:
            raise InvalidArgument(f"{entity.parameter}: {error.args[0]}", hint=error.hint) from error
        if entity_id.type is not entity.kind:
            raise InvalidArgument(
                f"{entity.parameter} must be the id of {entity.noun}, got {entity_id}, which is a {entity_id.type}",
                hint=f"ids of a {entity.kind} look like {entity.kind.code}-1",
            )
        return await self.resolver.query(str(entity_id))

    async def page(self, kind: EntityType, pagination_key: str | None, pagination_limit: int) -> JSON:
        """Return one page of the node's records."""
        # Models write "" for what they leave out.
        key = None if pagination_key == "" else pagination_key
        limit: object = pagination_limit
        if key is not None and not is_page_key(key):
            raise InvalidArgument(
                f"pagination_key must be the next_key of a page, got {key!r:.80}",
                hint="leave it out for the first page",
            )
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_ROWS:
            raise InvalidArgument(
                f"pagination_limit must be a whole number from 1 to {MOST_ROWS}, got {limit!r:.80}",
                hint="further rows are on the next page",
            )
        client = await self.source.ready_client()

        async def fetch(_: str) -> JSON:
            return await client.list_page(kind, key=key, limit=limit)

        # Named by its chain, so that no page can be taken for another chain's.
        return await self.resolver.load(
            f"list {kind} {limit} {key or ''} of {client.base_url}", fetch, kind=kind, source=self.source
        )


def _query_tool(chain: _Chain, entity: _Entity) -> StructsTool:
    async def query(*args: Any, **kwargs: Any) -> JSON:
        return await chain.query(entity, *_bound(query, args, kwargs))

    _dress(
        query,
        entity.query_name,
        title=f"Look up {entity.noun}",
        docstring=f"Look up {entity.noun}: {entity.tells}.\n\n"
        f"Use when {entity.use}.\n"
        f"Don't use for {entity.avoid}.\n\n"
        f"Args:\n    {entity.parameter}: The id, such as {entity.example}.\n",
        parameters=[
            inspect.Parameter(entity.parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str),
        ],
    )
    return with_references(resolver=chain.resolver, kind="query", subject=entity.parameter, **chain.defaults)(query)


def _list_tool(chain: _Chain, entity: _Entity) -> StructsTool:
    import msgspec  # noqa: PLC0415 - whoever only imports this module needs none

    async def page(*args: Any, **kwargs: Any) -> JSON:
        return await chain.page(entity.kind, *_bound(page, args, kwargs))

    limit = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
    _dress(
        page,
        entity.list_name,
        title=f"List {entity.kind}s",
        docstring=f"List {entity.kind}s, page by page, in the byte order of their ids.\n\n"
        f"Use when you look for {entity.finds}.\n"
        f"Don't use for {entity.noun} whose id you have: {entity.query_name}, which also tells what rows leave out.\n\n"
        "Args:\n"
        "    pagination_key: The next_key of the page before; leave it out for the first page.\n"
        "    pagination_limit: Rows a page.\n",
        parameters=[
            inspect.Parameter(
                "pagination_key", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=cast("Any", str | None)
            ),
            inspect.Parameter("pagination_limit", inspect.Parameter.KEYWORD_ONLY, default=100, annotation=limit),
        ],
    )
    return with_references(resolver=chain.resolver, kind="list", **chain.defaults)(page)


def _dress(
    function: Callable[..., Coroutine[Any, Any, JSON]],
    name: str,
    *,
    title: str,
    docstring: str,
    parameters: list[inspect.Parameter],
) -> None:
    """Let a function with ``*args`` look as if it was written out."""
    shown: Any = function
    shown.__name__ = shown.__qualname__ = name
    shown.__doc__ = docstring
    shown.__signature__ = inspect.Signature(parameters, return_annotation=JSON)
    shown.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": JSON}
    shown.tool_title = title


def _bound(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of all parameters, in order."""
    try:
        bound = function.__signature__.bind(*args, **kwargs)
    except TypeError as error:
        # As Python says it of a function that is written out.
        raise TypeError(f"{function.__name__}(): {error}") from None
    bound.apply_defaults()
    return tuple(bound.arguments.values())
