"""Reference source for the Structs chain, and its predefined tools."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.introspection import make_async
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.references.decorator import AsyncTool, make_decorator
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.rate_limit import RateLimiter
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import EntitySource, Fetch, IdScheme
from mama_structs.structs.client import StructsClient
from mama_structs.structs.ids import EntityId, EntityType
from mama_structs.structs.routes import decode_page_key
from mama_structs.structs.scheme import STRUCTS_SCHEME

JSON = dict[str, Any]
MAX_PAGE_ROWS: Final = 1000
StructsTool: TypeAlias = AsyncTool[..., dict[str, Any]]


class StructsSource:
    """
    Source of the chain's entities.

    Args:
        origin: A node's URL, or an object with a ``url`` such as a `mama_structs.testing.FakeNode`
            (the source creates a client for it, opened when first used and closed with the source);
            a `StructsClient` (its owner closes it);
            or an object with ``fetch(entity_id)``, async or synchronous, that returns the node's answer, or the
            entity's fields.
        shared: Whether resolvers of this event loop with the same base URL share a cache. Sources with a
            host's own session, or with an object that only fetches, never share one.

    Raises:
        InvalidArgument: *origin* is none of these, or the URL is invalid.

    """

    def __init__(self, origin: str | StructsClient | Any, *, shared: bool = True) -> None:
        url = origin if isinstance(origin, str) else getattr(origin, "url", None)
        self._own_client = StructsClient(url) if isinstance(url, str) else None
        self.client: StructsClient | None = origin if isinstance(origin, StructsClient) else self._own_client
        self._shared = shared
        self._open_lock = asyncio.Lock()
        own = None if self.client is not None else getattr(origin, "fetch", None)
        if self.client is None and not callable(own):
            raise InvalidArgument(
                f"structs must be a URL, a StructsClient or an object with fetch(entity_id), got {repr_short(origin)}"
            )
        self._own_fetch = own
        self.fetch: Fetch = self._query if own is None else make_async(own, role="fetch")

    def __repr__(self) -> str:
        return f"StructsSource({self.client or self._own_fetch!r})"

    @property
    def scheme(self) -> IdScheme:
        """The scheme of the chain's ids."""
        return STRUCTS_SCHEME

    @property
    def fetch_many(self) -> None:
        """Always None, because the chain has no route that returns several entities by id."""
        return

    async def _ready_client(self) -> StructsClient:
        """
        Return the client, and open it first if the source created it.

        Raises:
            InvalidArgument: The source was created from an object that only fetches.

        """
        if self.client is None:
            raise InvalidArgument("this source only fetches by id", hint="make it from a URL or a StructsClient")
        if self._own_client is not None and not self._own_client.is_open:
            async with self._open_lock:
                if not self._own_client.is_open:
                    await self._own_client.open()
        return self.client

    async def _query(self, entity_id: str) -> Mapping[str, Any]:
        client = await self._ready_client()
        return await client.query(entity_id)

    @property
    def _shared_as(self) -> Hashable | None:
        """Cache key that is equal for all sources of the same node, or None if this source shares no cache."""
        client = self.client
        return client.base_url if self._shared and client is not None and client.session is None else None

    def _join_gate(self, user: object, limit: int) -> RateLimiter | None:
        """Register a resolver and its maximum of concurrent queries with the node's rate limiter."""
        return None if self.client is None else self.client._join_gate(user, limit)

    def flatten(self, entity_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        Return the fields of the entity, followed by the remaining fields of the answer.

        Args:
            entity_id: The id of an entity.
            answer: The answer of the source.

        """
        envelope = EntityId.parse(entity_id).type.capitalize()
        record = answer.get(envelope)
        if not isinstance(record, Mapping):
            return answer
        return {**record, **{name: value for name, value in answer.items() if name != envelope and name not in record}}

    def tools(self, resolver: Resolver, options: ReferenceOptions | None = None) -> list[StructsTool]:
        """
        Return the predefined tools.

        They query through *resolver*; *options* sets defaults and ceilings.
        """
        return list(_make_tools(self, resolver, options).values())

    async def close(self) -> None:
        """Close the client that the source created itself."""
        if self._own_client is not None:
            await self._own_client.close()


@attrs.frozen
class _ToolTexts:
    """Texts for the descriptions of the two tools for one type."""

    kind: EntityType
    example: str
    tells: str
    avoid: str
    instead: str
    finds: str

    @property
    def parameter(self) -> str:
        return f"{self.kind}_id"

    @property
    def noun(self) -> str:
        return f"{'an' if self.kind[0] == 'a' else 'a'} {self.kind}"


def structs_tools(
    origin: StructsClient | StructsSource | Any, *, resolver: Resolver | None = None, **defaults: Any
) -> dict[str, StructsTool]:
    """
    Return the predefined tools for a chain by name.

    The names are ``structs_query_<entity>`` and ``structs_list_<entities>``. There are no tools for actions and
    workflows, because transactions need a private key, and the agent's framework runs workflows.
    Their queries go through the resolver, so that its concurrency limit and its cache apply to them.

    Args:
        origin: A client, a `StructsSource`, or an object with ``fetch(entity_id)`` (which provides query tools
            only).
        resolver: Resolves references, with a source on the same chain; by default a new resolver.
        **defaults: The tools' defaults for any field of `ReferenceOptions`.

    Raises:
        InvalidArgument: *origin* is none of these (a client created for a URL could never be closed), or
            *resolver* queries another chain.

    """
    if not isinstance(origin, StructsSource | StructsClient) and (isinstance(origin, str) or hasattr(origin, "url")):
        raise InvalidArgument(
            "tools(...) does not accept a URL, because its connections could never be closed",
            hint="give a StructsClient, or use Session.open(structs=URL), which has the tools",
        )
    source = origin if isinstance(origin, StructsSource) else StructsSource(origin)
    if resolver is None:
        resolver = Resolver([source])
    elif not isinstance(resolver, Resolver):
        raise InvalidArgument(f"resolver must be a Resolver, got {repr_short(resolver)}")
    elif not any(_have_same_origin(source, other) for other in resolver.sources):
        raise InvalidArgument(
            f"resolver must ask the chain that the tools ask, got {resolver!r}",
            hint="Resolver([StructsSource(client)]) and tools(client, ...) with the same client, or leave resolver out",
        )
    return _make_tools(source, resolver, None, **defaults)


def _make_tools(
    source: StructsSource, resolver: Resolver, options: ReferenceOptions | None, **defaults: Any
) -> dict[str, StructsTool]:
    bound = make_decorator(resolver, options, allowed_types=[str(kind) for kind in EntityType])
    decorate = functools.partial(bound, **defaults)
    chain = _ToolContext(source, resolver, decorate)
    texts = json.loads(Path(__file__).with_name("tools.json").read_text(encoding="utf-8"))
    entities = [_ToolTexts(EntityType[kind.upper()], **words) for kind, words in texts.items()]
    ready = [_make_query_tool(chain, entity) for entity in entities]
    if source.client is not None:
        ready += [_make_list_tool(chain, entity) for entity in entities]
    return {tool.__name__: tool for tool in ready}


def _have_same_origin(source: StructsSource, other: EntitySource) -> bool:
    """Return True if two sources query the same node, or the same `fetch` function of the same object."""
    if isinstance(other, StructsSource) and source.client is not None and other.client is not None:
        return source.client.base_url == other.client.base_url
    fetch = other._own_fetch if isinstance(other, StructsSource) else other.fetch
    return source is other or (fetch is not None and bool(fetch == source._own_fetch))


@attrs.frozen
class _ToolContext:
    """Source, resolver and decorator of the predefined tools."""

    source: StructsSource
    resolver: Resolver
    decorate: Callable[..., Callable[..., Any]]

    async def query(self, entity: _ToolTexts, text: str) -> JSON:
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
        return await self.resolver.fetch(str(entity_id))

    async def page(self, kind: EntityType, key: str | None, limit: int) -> JSON:
        """Return one page of the node's records."""
        # Models often pass "" for an omitted argument.
        key = key or None if isinstance(key, str) else key
        if key is not None and decode_page_key(key) is None:
            raise InvalidArgument(
                f"pagination_key must be the next_key of a page, got {repr_short(key)}",
                hint="leave it out for the first page",
            )
        try:
            _check.check_integer("pagination_limit", limit, 1, MAX_PAGE_ROWS)
        except InvalidArgument as error:
            raise InvalidArgument(error.args[0], hint="further rows are on the next page") from None
        client = await self.source._ready_client()

        async def fetch(_: str) -> JSON:
            return await client.list_page(kind, key=key, limit=limit)

        # The key includes the base URL, so that pages of different chains never share a cache entry.
        name = f"list {kind} {limit} {key or ''} of {client.base_url}"
        return await self.resolver._load(name, fetch, kind=kind, source=self.source)


def _make_query_tool(chain: _ToolContext, entity: _ToolTexts) -> StructsTool:
    name = f"structs_query_{entity.kind}"
    parameter = inspect.Parameter(entity.parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str)
    signature = inspect.Signature([parameter], return_annotation=JSON)

    async def query(*args: Any, **kwargs: Any) -> JSON:
        try:
            [text] = signature.bind(*args, **kwargs).arguments.values()
        except TypeError as error:
            # Raise the same error as Python for a function with this signature.
            raise TypeError(f"{name}(): {error}") from None
        return await chain.query(entity, text)

    shown: Any = query
    shown.__signature__, shown.__annotations__ = signature, {entity.parameter: str, "return": JSON}
    _set_name(query, name, f"Look up {entity.noun}")
    query.__doc__ = (
        f"Use when you want {entity.tells} by id.\n"
        f"Don't use for {entity.avoid}: {entity.instead}.\n\n"
        f"Args:\n    {entity.parameter}: Such as {entity.example}\n"
    )
    tool: StructsTool = chain.decorate(kind="query", subject=entity.parameter)(query)
    return tool


def _make_list_tool(chain: _ToolContext, entity: _ToolTexts) -> StructsTool:
    import msgspec  # noqa: PLC0415 - needed for list tools only

    async def page(*, pagination_key: str | None = None, pagination_limit: int = 100) -> JSON:
        return await chain.page(entity.kind, pagination_key, pagination_limit)

    page.__annotations__["pagination_limit"] = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE_ROWS)]
    _set_name(page, f"structs_list_{entity.kind}s", f"List {entity.kind}s")
    page.__doc__ = (
        f"Use when you search by {entity.finds}.\n"
        f"Don't use for ids: structs_query_{entity.kind}.\n\n"
        "Args:\n"
        "    pagination_key: Last next_key\n"
    )
    tool: StructsTool = chain.decorate(kind="list")(page)
    return tool


def _set_name(function: Any, name: str, title: str) -> None:
    function.__name__ = function.__qualname__ = name
    function.tool_title = title
