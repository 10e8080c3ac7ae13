"""The Structs chain as a source of references."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from mama_structs._introspect import is_async_callable
from mama_structs.errors import InvalidArgument
from mama_structs.references.decorator import ReferencedTool
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import Fetch, IdScheme
from mama_structs.structs.client import StructsClient
from mama_structs.structs.ids import EntityId
from mama_structs.structs.scheme import STRUCTS_SCHEME

StructsTool = ReferencedTool[..., dict[str, Any]]


class StructsSource:
    """
    Answers for the chain's ids.

    Args:
        origin: A node's URL, or an object with a ``url`` such as a `mama_structs.testing.FakeNode`
            (a client is made for it, opened when first used and closed with the source);
            a `StructsClient` (which stays its owner's);
            or anything with ``async fetch(entity_id)`` that returns the node's answer, or the entity's fields.

    Raises:
        InvalidArgument: *origin* is none of these, or the URL is none.

    """

    def __init__(self, origin: str | StructsClient | Any) -> None:
        url = origin if isinstance(origin, str) else getattr(origin, "url", None)
        self._owned = StructsClient(url) if isinstance(url, str) else None
        self.client: StructsClient | None = origin if isinstance(origin, StructsClient) else self._owned
        self._opening = asyncio.Lock()
        if self.client is None and not is_async_callable(getattr(origin, "fetch", None)):
            raise InvalidArgument(
                f"structs must be a URL, a StructsClient or an object with async fetch(entity_id), got {origin!r:.80}"
            )
        own: Any = origin
        self._ask: Fetch = self._query if self.client is not None else own.fetch

    def __repr__(self) -> str:
        return f"StructsSource({self.client or self._ask!r})"

    @property
    def scheme(self) -> IdScheme:
        """The chain's ids."""
        return STRUCTS_SCHEME

    @property
    def fetch(self) -> Fetch:
        """Answer one id."""
        return self._ask

    @property
    def fetch_many(self) -> None:
        """The chain has no route for many ids."""
        return

    async def ready_client(self) -> StructsClient:
        """
        Return the client, opened.

        Raises:
            InvalidArgument: The source was made from an object that only fetches.

        """
        if self.client is None:
            raise InvalidArgument("this source only fetches by id", hint="make it from a URL or a StructsClient")
        if self._owned is not None and not self._owned.is_open:
            async with self._opening:
                if not self._owned.is_open:
                    await self._owned.open()
        return self.client

    async def _query(self, entity_id: str) -> Mapping[str, Any]:
        client = await self.ready_client()
        return await client.query(entity_id)

    def flatten(self, entity_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entity's own fields, then the answer's siblings under their own names."""
        envelope = EntityId.parse(entity_id).type.capitalize()
        record = answer.get(envelope)
        if not isinstance(record, Mapping):
            return answer
        return {**record, **{name: value for name, value in answer.items() if name != envelope and name not in record}}

    def tools(self, resolver: Resolver) -> list[StructsTool]:
        """Return the ready-made tools, asking through *resolver*."""
        # The tools are made from a source, so their module imports this one.
        from mama_structs.structs.toolbox import tools  # noqa: PLC0415

        return list(tools(self, resolver=resolver).values())

    async def close(self) -> None:
        """Close the client that the source made itself."""
        if self._owned is not None:
            await self._owned.close()
