"""
Several namespaces that are read as one (DESIGN section 6a, "Scopes").

Only one of them is written.
Each namespace keeps its own engine. A query is sent to each of them, and this module merges the results.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar

import attrs

from mama_structs.errors import LinkNotFound, MemoryNotFound, MemoryReadOnly
from mama_structs.memory.embedding.protocol import Vectors
from mama_structs.memory.graph.results import (
    Chain,
    Hit,
    MemoryLike,
    Results,
    SimilarMemory,
    TraversedMemory,
    limit_chars,
    with_place_term,
)
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.save.save_plan import FindContent, PreparedSave, no_content
from mama_structs.memory.search.search_request import SearchQuery, SimilarityRequest
from mama_structs.memory.store.cursors import BEGINNING, CursorPosition, Positions
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.engine import (
    DISPLAY_BOUNDS,
    EmbedderRecord,
    EngineFilter,
    Prefetch,
    Reader,
    RelevanceBounds,
    Writer,
)
from mama_structs.memory.types.filters import TypeCondition
from mama_structs.memory.types.model import Link, LinkType, Memory, is_id, to_milliseconds
from mama_structs.memory.types.requests import SaveRequest, TraversalRequest
from mama_structs.memory.upkeep.namespace_services import NamespaceServices

T = TypeVar("T")


class ScopedShared(NamespaceServices):
    """The services of a writable namespace that also reads the namespaces in `others`."""

    others: tuple[MemoryStore, ...] = ()

    async def read(self, plan: Callable[[Reader], T], *, made_by: EmbedderRecord | None = None) -> T:
        """Run a reading plan; ids that exist only in `others` raise `MemoryReadOnly`."""
        async with self._explaining_read_only():
            return await super().read(plan, made_by=made_by)

    async def write(self, plan: Callable[[Writer], T], *, made_by: EmbedderRecord | None = None) -> T:
        """Run a writing plan; ids that exist only in `others` raise `MemoryReadOnly`."""
        async with self._explaining_read_only():
            return await super().write(plan, made_by=made_by)

    @contextlib.asynccontextmanager
    async def _explaining_read_only(self) -> AsyncIterator[None]:
        """Replace a not-found error with `MemoryReadOnly` if another namespace contains the id."""
        # The lookup runs only after a failure, so that calls on the session's own namespace need no extra query.
        try:
            yield
        except MemoryNotFound as error:
            id_ = str(error.memory_id)
            raise await self._find_owner_error(error, id_, "memory", lambda reader: reader.find(id_)) from error
        except LinkNotFound as error:
            id_ = str(error.link_id)
            raise await self._find_owner_error(
                error, id_, "link", lambda reader: reader.find_links([id_])[0]
            ) from error

    async def _find_owner_error(
        self, error: Exception, id_: str, what: str, find: Callable[[Reader], object | None]
    ) -> Exception:
        for one in self.others:
            if await one._shared.read(find) is not None:
                told = MemoryReadOnly(id_, what=what, namespace=one.namespace)
                for note in getattr(error, "__notes__", ()):
                    told.add_note(note)
                return told
        return error

    async def close(self) -> None:
        """Reject further calls in all namespaces."""
        for one in self.others:
            # Only mark these stores as closed, because the call below closes their shared embedder and reranker.
            one._shared.closed = True
        await super().close()


class ScopedMemories(MemoryStore):
    """
    The memories of one namespace and of further read-only namespaces.

    Methods that search or read use all of them; `Memory.namespace` names the origin of each memory. If several
    namespaces contain the same id, the own namespace takes precedence, then the first one in order.
    Everything else uses the own namespace only: saving, linking, changing, deleting, `latest_checkpoint`,
    `count`, `relationships`, `stats` and the functions of `mama_structs.admin`.

    Raises:
        MemoryReadOnly: The memory to link, change or delete is in a read-only namespace; nothing was changed.

    """

    def __init__(self, shared: ScopedShared, *, find_content: FindContent = no_content) -> None:
        super().__init__(shared, find_content=find_content)
        self._own = MemoryStore(shared, find_content=find_content)
        self._scopes: tuple[MemoryStore, ...] = (self._own, *shared.others)

    @property
    def read_namespaces(self) -> tuple[str, ...]:
        """The read-only namespaces."""
        return tuple(one.namespace for one in self._scopes[1:])

    async def _hits(self, asked: SearchQuery, room: int | None) -> list[Hit]:
        """Find memories in every namespace; see `merge_hits_by_score`."""
        found = merge_hits_by_score([await one._hits(asked, None) for one in self._scopes], asked.limit)
        return found if room is None else limit_chars(found, room)

    async def _search_for_prompt(
        self,
        query: str,
        *,
        limit: int,
        bounds: RelevanceBounds = DISPLAY_BOUNDS,
        types: TypeCondition | None = None,
    ) -> tuple[list[Hit], list[Hit]]:
        # Filter each namespace by itself, because a relevance depends on the other hits.
        found = [await one._search_for_prompt(query, limit=limit, bounds=bounds, types=types) for one in self._scopes]
        shown = merge_hits_by_score([hits for hits, _ in found], limit)
        return shown, merge_hits_by_score([others for _, others in found], limit - len(shown))

    async def _list_page(
        self, where: EngineFilter, limit: int, after: Positions, *, newest_first: bool = True
    ) -> tuple[list[Memory], Positions | None]:
        pages = [await one._list_page(where, limit, after, newest_first=newest_first) for one in self._scopes]
        every = [memory for memories, _ in pages for memory in memories]
        merged = sorted(every, key=lambda one: one.created_at, reverse=newest_first)[:limit]
        if len(merged) == len(every) and all(following is None for _, following in pages):
            return merged, None
        positions = dict(after)
        for memory in merged:
            positions[memory.namespace] = CursorPosition(to_milliseconds(memory.created_at), memory.id)
        # Move every namespace to the time of the last memory. Otherwise a memory saved between two pages, with a time
        # of an earlier page, would break the order.
        end = to_milliseconds(merged[-1].created_at)
        for one in self._scopes:
            if one.namespace not in positions or positions[one.namespace].created_ms != end:
                positions[one.namespace] = CursorPosition(end)
        return merged, positions

    async def _list_links(self, limit: int, after: Positions) -> tuple[Sequence[Link], Positions | None]:
        # List one namespace after another, because links have no common order.
        names = [one.namespace for one in self._scopes]
        start = next((names.index(name) for name in names if name in after), 0)
        page: list[Link] = []
        for position, one in enumerate(self._scopes[start:], start):
            links, following = await one._list_links(limit - len(page), after if position == start else {})
            page += links
            if following is not None or len(page) == limit:
                if following is None and position + 1 < len(names):
                    following = {names[position + 1]: BEGINNING}
                return page, following
        return page, None

    async def latest_checkpoint(self) -> Memory | None:
        """
        Return the newest checkpoint of the writable namespace.

        Checkpoints of other namespaces describe other work.
        """
        return await self._own.latest_checkpoint()

    async def _topic_history(self, topic: str, types: frozenset[LinkType] | None) -> Chain:
        chains = [await one._topic_history(topic, types) for one in self._scopes]
        return Chain(
            memories=tuple(_merge_newest([chain.memories for chain in chains])),
            links=tuple(sorted((link for chain in chains for link in chain.links), key=_creation_key, reverse=True)),
            forks=tuple(_merge_newest([chain.forks for chain in chains])),
            nearby=tuple(
                sorted((one for chain in chains for one in chain.nearby), key=lambda one: (one.depth, -one.strength))
            ),
        )

    async def _traverse(self, request: TraversalRequest) -> Results[TraversedMemory]:
        return await self._call_owner(lambda one: one._traverse(request))

    async def _read(
        self,
        memory: MemoryLike,
        plan: Callable[[Reader, int], T],
        *,
        ahead: Callable[[Prefetch], object] | None = None,
        around: int | None = 0,
    ) -> T:
        return await self._call_owner(lambda one: one._read(memory, plan, ahead=ahead, around=around))

    async def _get_vectors(self, memory_id: str) -> Vectors:
        return await self._call_owner(lambda one: one._get_vectors(memory_id))

    async def _find_nearest(self, request: SimilarityRequest, made_by: EmbedderRecord) -> Results[SimilarMemory]:
        found = [near for one in self._scopes for near in await one._find_nearest(request, made_by)]
        nearest = sorted(found, key=lambda near: near.similarity, reverse=True)
        return Results(nearest[: request.limit], item_type=SimilarMemory)

    async def _draft(self, request: SaveRequest, *, resolve: bool = False) -> PreparedSave:
        """Draft a memory, and limit its trust to that of its evidence in all namespaces."""
        draft = await super()._draft(request, resolve=resolve)
        for one in self._scopes[1:] if any(map(is_id, draft.memory.evidence)) else ():
            memory = draft.memory
            known = await one._shared.read(lambda reader: saving.apply_trust(reader, memory, ()))  # noqa: B023 - awaited
            draft = attrs.evolve(draft, memory=known)
        return draft

    async def _read_each_namespace(self, plan: Callable[[Reader], T]) -> list[T]:
        return [await one._shared.read(plan) for one in self._scopes]

    async def _in_pages(
        self, where: EngineFilter | None, plan: Callable[[Reader, list[int]], Sequence[T]]
    ) -> AsyncIterator[Sequence[T]]:
        for one in self._scopes:
            async for found in one._in_pages(where, plan):
                yield found

    async def _call_owner(self, call: Callable[[MemoryStore], Awaitable[T]]) -> T:
        """Run a call on the writable namespace, or on the namespace that contains the requested memory."""
        try:
            return await call(self._own)
        except MemoryReadOnly as error:
            owner = next(one for one in self._scopes if one.namespace == error.namespace)
            return await call(owner)


def merge_hits_by_score(hit_lists: Sequence[Sequence[Hit]], limit: int) -> list[Hit]:
    """
    Merge the hits of several namespaces, and keep the order within each namespace.

    Scores are sums of features that are relative to their namespace, so they are comparable, unlike a relevance, which
    depends on the other hits. If a reranker has rated all hits, its scores are used: in each namespace, the n-th hit
    gets the n-th best of them, because rules may have moved a hit. The highest value comes first; ties prefer the own
    namespace. The value becomes the score in the merged list; `Hit.signals` keeps the signals from the search in the
    memory's own namespace.
    """
    by_reranker = all("reranker" in hit.signals for hits in hit_lists for hit in hits)
    ordered: list[tuple[float, Hit]] = []
    for hits in hit_lists:
        worth = sorted((hit.signals["reranker"] if by_reranker else hit.score for hit in hits), reverse=True)
        ordered += zip(worth, hits, strict=True)
    ordered.sort(key=lambda one: -one[0])
    return [attrs.evolve(hit, score=value, terms=with_place_term(hit.terms, value)) for value, hit in ordered[:limit]]


def _merge_newest(memory_lists: Sequence[Sequence[Memory]], limit: int | None = None) -> Results[Memory]:
    every = (memory for some in memory_lists for memory in some)
    return Results(sorted(every, key=lambda one: one.created_at, reverse=True)[:limit], item_type=Memory)


def _creation_key(link: Link) -> tuple[datetime, str]:
    return link.created_at, link.id
