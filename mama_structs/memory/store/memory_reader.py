"""Search and retrieval in the memories of one namespace."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

import attrs
import numpy as np

from mama_structs._internal import validation as _check
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.telemetry import instrument
from mama_structs._internal.validation import TimeInput
from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding.protocol import Embedder, QueryVectors, Vectors, shared_dimensions
from mama_structs.memory.graph import results
from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.graph.plot import MemoryPlots
from mama_structs.memory.graph.results import (
    Chain,
    Evidence,
    Explanation,
    Hit,
    MemoryDetails,
    MemoryLike,
    Page,
    RelationshipCount,
    Results,
    SimilarMemory,
    TraversedMemory,
)
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.save.conflict_records import MemoryConflict, find_conflicts
from mama_structs.memory.search import search_plan as search
from mama_structs.memory.search.explanation import explain
from mama_structs.memory.search.newer_statements import find_newer_hits, insert_newer
from mama_structs.memory.search.search_request import (
    SearchQuery,
    SearchRequest,
    SimilarityRequest,
    SupersededMode,
    embed_request,
)
from mama_structs.memory.statements.comparison import same_subject_other_value
from mama_structs.memory.store import maintenance
from mama_structs.memory.store.cursors import (
    BEGINNING,
    CursorPosition,
    Positions,
    find_bound,
    format_cursor,
    parse_cursor,
)
from mama_structs.memory.types import requests
from mama_structs.memory.types.engine import (
    DISPLAY_BOUNDS,
    Direction,
    EmbedderRecord,
    EngineFilter,
    Prefetch,
    Reader,
    RelevanceBounds,
    read_in_pages,
)
from mama_structs.memory.types.filters import Filter, TypeCondition, to_engine_filter
from mama_structs.memory.types.model import Link, LinkType, Memory, MemoryType, to_milliseconds
from mama_structs.memory.types.relationships import find_near_synonyms, normalize_relationship
from mama_structs.memory.types.requests import TraversalRequest, check_limit, check_memory
from mama_structs.memory.types.reranker import Reranker
from mama_structs.memory.upkeep.namespace_services import NamespaceServices, add_hint_to_missing_id

T = TypeVar("T")
Order = Literal["newest", "oldest"]
ORDERS: Final[tuple[Order, ...]] = ("newest", "oldest")
_NODES_PER_READ: Final = 256
NO_NODES: Final = np.empty(0, np.int64)


@with_call_hints(peer_names.MEMORY_STORE)
class MemoryReader:
    """
    Read access to the memories of one namespace. Base class of `MemoryStore`.

    Args:
        shared: The services that all stores of this namespace share.

    """

    def __init__(self, shared: NamespaceServices) -> None:
        if not isinstance(shared, NamespaceServices):
            raise TypeError(f"{type(self).__name__}() is not called directly. Use Session.open(location).memories.")
        self._shared = shared
        self._engine = shared.engine
        self._settings = shared.settings

    @property
    def namespace(self) -> str:
        """The namespace of these memories. Calls access no other namespaces except those in `read_namespaces`."""
        return self._engine.namespace

    @property
    def read_namespaces(self) -> tuple[str, ...]:
        """Further namespaces, which are searched and never written; see `Session.open`."""
        return ()

    @property
    def plot(self) -> MemoryPlots:
        """Plots of these memories (extra ``notebook``)."""
        return MemoryPlots(self)

    @property
    def embedder(self) -> Embedder:
        """The embedder, which converts texts to vectors."""
        return self._shared.embedding.embedder

    @property
    def reranker(self) -> Reranker | None:
        """The reranker, which reorders the best hits of a search, or None."""
        return None if self._shared.reranker_runner is None else self._shared.reranker_runner.reranker

    # Reading

    async def get(self, memory: MemoryLike) -> Memory:
        """
        Return a memory.

        Args:
            memory: A memory's id, or an object that contains the memory, such as a `Hit`.

        Raises:
            MemoryNotFound: No memory has this id.
            StoreDamaged: The stored row is corrupt.

        """
        return await self._read(memory, lambda reader, node: reader.get([node])[0])

    async def evidence(self, memory: MemoryLike) -> Results[Evidence]:
        """
        Return a memory's evidence in order, with the texts of handles as saved.

        Args:
            memory: The memory or its id.

        Raises:
            MemoryNotFound: No memory has this id.
            StoreDamaged: A text is missing or corrupt.

        """
        return Results(await self._read(memory, results.evidence_in), item_type=results.Evidence)

    async def count(
        self,
        *,
        type: TypeCondition | None = None,  # noqa: A002 - the name of the field
        topic: str | None = None,
        since: TimeInput | None = None,
        where: Filter | None = None,
    ) -> int:
        """
        Return the number of memories, expired ones included.

        Args:
            type: Only this type, or these types.
            topic: Only this topic, exactly as it was saved.
            since: Only memories from this time on; a timedelta counts back from now.
            where: Further conditions.

        """
        conditions = self._conditions(where, type=type, topic=topic, since=since)
        local = self._localize(conditions)
        return await self._shared.read(lambda reader: reader.count(local))

    async def list(
        self,
        *,
        type: TypeCondition | None = None,  # noqa: A002 - as above
        topic: str | None = None,
        since: TimeInput | None = None,
        where: Filter | None = None,
        limit: int = 20,
        cursor: str | None = None,
        order: Order = "newest",
    ) -> Page[Memory]:
        """
        Return one page of the memories that have not expired, ordered by their time of creation.

        Memories that are saved between two calls neither repeat nor hide others. If the last memory of a page is
        deleted before the next call, memories that were created in the same millisecond are returned again.

        Args:
            type: Only this type, or these types.
            topic: Only this topic, exactly as it was saved.
            since: Only memories from this time on; a timedelta counts back from now.
            where: Further conditions.
            limit: The maximum number of memories on the page.
            cursor: `Page.next_cursor` of the page before; the other arguments must be the same. None for the first.
            order: ``"newest"`` or ``"oldest"`` first.

        Raises:
            InvalidArgument: An argument is invalid, or the cursor belongs to another order or to other namespaces.

        """
        conditions = self._exclude_expired(self._conditions(where, type=type, topic=topic, since=since))
        most, listing = check_limit(limit), f"list(order={_check.check_choice('order', order, ORDERS)!r})"
        after = parse_cursor(cursor, listing, self._namespaces)
        memories, following = await self._list_page(conditions, most, after, newest_first=order == "newest")
        return Page(memories, next_cursor=format_cursor(following, listing, self._namespaces), item_type=Memory)

    @property
    def _namespaces(self) -> tuple[str, ...]:
        """The writable namespace, then the read-only ones."""
        return self.namespace, *self.read_namespaces

    async def _list_page(
        self, where: EngineFilter, limit: int, after: Positions, *, newest_first: bool = True
    ) -> tuple[builtins.list[Memory], Positions | None]:
        """
        Return the memories after the position of this namespace in *after*, and the positions after them.

        After the last page the positions are None.
        """
        position, local = after.get(self.namespace), self._localize(where)

        def plan(reader: Reader) -> tuple[builtins.list[Memory], Positions | None]:
            bound = find_bound(reader, position, newest_first=newest_first)
            nodes = reader.window(local, newest_first=newest_first, after=bound, limit=limit + 1)
            memories = reader.get(nodes[:limit])
            if len(nodes) <= limit:
                return memories, None
            last = CursorPosition(to_milliseconds(memories[-1].created_at), memories[-1].id)
            return memories, {self.namespace: last}

        return await self._shared.read(plan)

    async def iter_all(
        self,
        *,
        type: TypeCondition | None = None,  # noqa: A002 - as above
        topic: str | None = None,
        since: TimeInput | None = None,
        where: Filter | None = None,
    ) -> AsyncIterator[Memory]:
        """
        Iterate over all memories in the order in which they were saved, expired ones included.

        Memories that are saved during the iteration are not included, nor are those that are deleted before their turn.

        Args:
            type: Only this type, or these types.
            topic: Only this topic, exactly as it was saved.
            since: Only memories from this time on; a timedelta counts back from now.
            where: Further conditions.

        """
        conditions = self._conditions(where, type=type, topic=topic, since=since)
        async for memories in self._in_pages(conditions, lambda reader, nodes: reader.get(nodes)):
            for memory in memories:
                yield memory

    async def links(
        self, memory: MemoryLike | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page[Link]:
        """
        Return one page of the links of a memory, oldest first, or of all links, with previews of both memories.

        Links that are removed between two calls neither repeat nor hide others. If the memory at which the last link
        of a page of all links begins is deleted before the next call, links of memories that were created in the same
        millisecond are returned again.

        Args:
            memory: The memory at which the links begin or end; None for all links, in the order in which the
                memories at which they begin were created.
            limit: The maximum number of links on the page.
            cursor: `Page.next_cursor` of the page before; *memory* must be the same. None for the first page.

        Raises:
            InvalidArgument: An argument is invalid, or the cursor belongs to another call.
            MemoryNotFound: No memory has this id.

        """
        self._shared.check()
        checked = None if memory is None else check_memory("memory", memory)
        most, listing = check_limit(limit), "links()" if checked is None else f"links({checked!r})"
        after = parse_cursor(cursor, listing, self._namespaces)
        if checked is None:
            links, following = await self._list_links(most, after)
        else:
            links, following = await self._list_links_of(checked, most, after)
        return Page(links, next_cursor=format_cursor(following, listing, self._namespaces), item_type=Link)

    async def _list_links_of(
        self, memory_id: str, limit: int, after: Positions
    ) -> tuple[Sequence[Link], Positions | None]:
        """Return a page of the links of one memory, and the positions after it, see `_list_page`."""
        links = await self._read(
            memory_id,
            lambda reader, node: results.add_previews(reader, reader.read_links(node)),
            ahead=lambda ahead: ahead.links_of_many(NO_NODES),
        )
        rest = after.get(self.namespace, BEGINNING).links_after(links)
        page = rest[:limit]
        if len(rest) <= limit:
            return page, None
        return page, {self.namespace: CursorPosition(0, memory_id, page[-1].created_at, page[-1].id)}

    async def _list_links(self, limit: int, after: Positions) -> tuple[Sequence[Link], Positions | None]:
        """Return a page of all links, ordered by the creation time of their source memory, and the positions."""
        position = after.get(self.namespace)

        def plan(reader: Reader) -> tuple[Sequence[Link], Positions | None]:
            bound = find_bound(reader, position, newest_first=False)
            found: builtins.list[Link] = []
            if position is not None and (node := reader.find(position.memory_id)) is not None:
                found += position.links_after(reader.read_links(node, "out"))
            while len(found) <= limit:
                nodes = reader.window(newest_first=False, after=bound, limit=_NODES_PER_READ)
                if not len(nodes):
                    return results.add_previews(reader, found), None
                found += [link for own in reader.links_of_many(nodes, "out") for link in own]
                (last,) = reader.get(nodes[-1:])
                bound = to_milliseconds(last.created_at), int(nodes[-1])
            page = found[:limit]
            (begin,) = reader.get([saving.require_node(reader, page[-1].from_id)])
            end = CursorPosition(to_milliseconds(begin.created_at), begin.id, page[-1].created_at, page[-1].id)
            return results.add_previews(reader, page), {self.namespace: end}

        return await self._shared.read(plan)

    async def _iter_links(self) -> AsyncIterator[Link]:
        """Iterate over all links, in the order of `iter_all`, with previews in `Link.endpoint_texts`."""

        def read(reader: Reader, nodes: Sequence[int]) -> Sequence[Link]:
            return results.add_previews(reader, [link for own in reader.links_of_many(nodes, "out") for link in own])

        async for links in self._in_pages(None, read):
            for link in links:
                yield link

    async def _in_pages(
        self, where: EngineFilter | None, plan: Callable[[Reader, builtins.list[int]], Sequence[T]]
    ) -> AsyncIterator[Sequence[T]]:
        """Run a plan on each page of the matching memories, and yield its results."""
        local = None if where is None else self._localize(where)
        ids = await self._shared.read(lambda reader: reader.ids(np.sort(reader.window(local))))
        async for some in read_in_pages(self._shared.read, ids, plan):
            yield some

    async def latest_checkpoint(self) -> Memory | None:
        """Return the newest checkpoint, or None if there is no checkpoint."""
        found = await self.list(limit=1, type=MemoryType.CHECKPOINT)
        return found[0] if found else None

    async def similar(
        self,
        memory: MemoryLike | None = None,
        *,
        content: str | None = None,
        threshold: float | None = None,
        where: Filter | None = None,
        limit: int = 10,
    ) -> Results[SimilarMemory]:
        """
        Return the memories that are most similar in meaning to a memory or to a text, nearest first.

        Give either *memory* or *content*.

        Args:
            memory: A memory or its id.
            content: Any text.
            threshold: The minimum similarity, 0 to 1; None for the embedder's own threshold.
            where: Conditions on the returned memories.
            limit: The maximum number of memories.

        Raises:
            InvalidArgument: Not exactly one of *memory* and *content* is given.
            MemoryNotFound: No memory has this id.

        """
        self._shared.check()
        if (memory is None) is (content is None):
            raise InvalidArgument("similar() needs either a memory or a content", hint="similar(content='any text')")
        least = None if threshold is None else _check.check_ratio("threshold", threshold)
        most = check_limit(limit)
        conditions = self._exclude_expired(self._conditions(where))
        record = self._shared.record
        calibration = await self._shared.embedding.calibration()
        own_id = None
        if memory is None:
            text = _check.check_text("content", content, max_chars=self._settings.max_content)
            pieces = (await self._shared.embedding.embed_query(text))[np.newaxis]
        else:
            own_id = check_memory("memory", memory)
            with add_hint_to_missing_id("for a text: similar(content=...)", accepts_names=True):
                pieces = await self._get_vectors(own_id)
        request = SimilarityRequest(
            pieces=pieces,
            where=conditions,
            but=own_id,
            calibration=calibration,
            shared_dimensions=self._shared_dimensions,
            threshold=calibration.threshold if least is None else least,
            limit=most,
        )
        return await self._find_nearest(request, record)

    @property
    def _shared_dimensions(self) -> int:
        return shared_dimensions(self._shared.embedding.embedder)

    async def _get_vectors(self, memory_id: str) -> Vectors:
        """Return a memory's vectors, of shape (chunks, dimensions)."""
        return await self._read(memory_id, lambda reader, node: reader.vectors(node))

    async def _find_nearest(self, request: SimilarityRequest, made_by: EmbedderRecord) -> Results[SimilarMemory]:
        """Return the memories nearest to the vectors of the request."""
        local = attrs.evolve(request, where=self._localize(request.where))
        return await self._shared.read(lambda reader: search.similar(reader, local), made_by=made_by)

    async def search(
        self,
        query: str,
        *,
        type: TypeCondition | None = None,  # noqa: A002 - as above
        topic: str | None = None,
        since: TimeInput | None = None,
        where: Filter | None = None,
        limit: int = 10,
        min_relevance: float | None = None,
        max_chars: int | None = None,
        superseded: SupersededMode = "demote",
        as_of: TimeInput | None = None,
    ) -> Results[Hit]:
        """
        Find memories by semantic similarity, keywords, links and time, best first.

        Time expressions in the query ("last week", "지난주") favour that time.
        Returns *limit* memories if that many pass the filters, unless *min_relevance* or *max_chars* excludes some;
        `Hit.relevance` rates how well each hit answers the query.
        A session's reranker reorders the best hits if it answers within ``settings.memory.rerank_timeout``.

        Args:
            query: The query, in any words.
            type: Only this type, or these types.
            topic: Only this topic, exactly as it was saved.
            since: Only memories from this time on; a timedelta counts back from now.
            where: Further conditions.
            limit: The maximum number of hits.
            min_relevance: The minimum relevance of a hit, 0 to 1; None for all hits.
            max_chars: The maximum length of all hits' content and reasoning together. A hit that does not fit is left
                out, and no hit is truncated. None for no limit.
            superseded: The position of superseded memories: ``"demote"`` them behind their successors (or behind
                others, if the query asks for an earlier state), ``"keep"`` their rank, or ``"exclude"`` them.
            as_of: Search as of this time: later memories, outcomes and supersessions are ignored.

        Raises:
            InvalidArgument: An argument is invalid, or a condition is given twice.
            EmbeddingFailed: The embedder failed on the query.
            RerankingFailed: The reranker is misconfigured and can never work. After a single failure or a timeout the
                search continues without it.

        """
        self._shared.check()
        asked = SearchQuery.checked(
            query,
            self._conditions(where, type=type, topic=topic, since=since),
            superseded=superseded,
            min_relevance=min_relevance,
            as_of=self._time("as_of", as_of),
            limit=limit,
        )
        room = None if max_chars is None else check_limit(max_chars, name="max_chars")
        return Results(await self._hits(asked, room), item_type=Hit)

    async def _hits(self, asked: SearchQuery, room: int | None) -> builtins.list[Hit]:
        """Return the best hits of a search, with at most *room* characters in total."""
        record, reranking = self._shared.record, self._shared.reranker_runner
        with self._instrument("search_memory") as attributes:
            at_most = asked.limit if reranking is None else max(asked.limit, reranking.max_hits)
            local = attrs.evolve(asked, where=self._localize(asked.where), limit=at_most)
            request = await self._build_request(local)
            hits, precedence = await self._shared.read(lambda reader: search.find_hits(reader, request), made_by=record)
            if reranking is not None:
                hits = (await reranking.rerank_hits(request.text, hits, precedence))[: asked.limit]
            hits = hits if room is None else results.limit_chars(hits, room)
            attributes["memory__record__count"] = len(hits)
        return hits

    async def _search_for_prompt(
        self,
        query: str,
        *,
        limit: int,
        bounds: RelevanceBounds = DISPLAY_BOUNDS,
        types: TypeCondition | None = None,
    ) -> tuple[builtins.list[Hit], builtins.list[Hit]]:
        """Return the hits that are relevant enough for a prompt, and the other hits."""
        found = await self.search(query, limit=limit, type=types)
        shown = search.worth_showing(found, bounds=bounds)
        ids = {hit.memory.id for hit in shown}
        return shown, [hit for hit in found if hit.memory.id not in ids]

    async def _insert_newer(self, query: str, hits: Sequence[Hit], others: Sequence[Hit]) -> builtins.list[Hit]:
        """Return hits with the newer memories on their subjects, each before the hit that it may replace."""
        if not hits:
            return []
        now, find = self._shared.now, same_subject_other_value
        found = await self._read_each_namespace(
            lambda reader: find_newer_hits(
                reader,
                hits,
                others,
                query=query,
                has_other_value=find,
                shared_dimensions=self._shared_dimensions,
                valid_at=now,
            )
        )
        return insert_newer(hits, {key: hit for newer in found for key, hit in newer.items()})

    async def explain(
        self,
        query: str,
        memory: MemoryLike,
        *,
        type: TypeCondition | None = None,  # noqa: A002 - as above
        topic: str | None = None,
        since: TimeInput | None = None,
        where: Filter | None = None,
        limit: int = 10,
        min_relevance: float | None = None,
        max_chars: int | None = None,
        superseded: SupersededMode = "demote",
        as_of: TimeInput | None = None,
    ) -> Explanation:
        """
        Explain why a search returns a memory, or why it does not.

        *memory* is the memory or its id; all other arguments are those of `search`.
        Printing the result shows a small table.

        Raises:
            MemoryNotFound: No memory has this id.

        """
        self._shared.check()
        room = None if max_chars is None else check_limit(max_chars, name="max_chars")
        asked = SearchQuery.checked(
            query,
            self._conditions(where, type=type, topic=topic, since=since),
            superseded=superseded,
            min_relevance=min_relevance,
            as_of=self._time("as_of", as_of),
            limit=limit,
        )
        request = await self._build_request(asked)
        return await self._read(memory, lambda reader, node: explain(reader, request, node, room))

    async def _build_request(self, asked: SearchQuery) -> SearchRequest:
        """Return the search request with the vectors of the query."""
        return await embed_request(asked, self._embed_query, self.embedder, now=self._shared.now)

    async def _embed_query(self, text: str) -> QueryVectors:
        """Return the vectors of a query text."""
        return await self._shared.embedding.embed_query_vectors(text)

    async def _warm_up(self) -> None:
        """Load the embedder, the views and the reranker. See `Session.preload`."""
        await self.search("warm up", limit=1)

    # The graph

    async def history(
        self,
        memory: MemoryLike | None = None,
        *,
        topic: str | None = None,
        link_types: Iterable[LinkType | str] | LinkType | str | None = None,
    ) -> Chain:
        """
        Return the versions of a decision, or all memories of a topic, newest first, with their links and forks.

        Give either *memory* or *topic*. An unknown topic has an empty chain.

        Args:
            memory: A memory or its id. `Chain.nearby` is empty.
            topic: A topic, exactly as it was saved. `Chain.nearby` contains the memories near the chain.
            link_types: The types of links that lead to the memories near the chain of a topic; None for all.

        Raises:
            InvalidArgument: Not exactly one of *memory* and *topic* is given.
            MemoryNotFound: No memory has this id.

        """
        self._shared.check()
        if (memory is None) is (topic is None):
            raise InvalidArgument("history() needs either a memory or a topic", hint="history(topic='auth')")
        types = None if link_types is None else requests.check_link_types(link_types)
        if memory is None:
            return await self._topic_history(requests.check_topic(topic), types)
        with add_hint_to_missing_id("for a topic: history(topic=...)", accepts_names=True):
            return await self._read(
                memory,
                lambda reader, node: results.build_chain(reader, graph.find_evolution(reader, node)),
                ahead=graph.prefetch_chain,
                around=None,
            )

    async def _topic_history(self, topic: str, types: frozenset[LinkType] | None) -> Chain:
        now_ms = to_milliseconds(self._shared.now)

        def plan(reader: Reader) -> Chain:
            found = graph.topic_evolution(reader, topic, now_ms=now_ms, types=types)
            return results.build_chain(reader, found.chain, nearby=results.to_traversed(reader, found.around))

        return await self._shared.read(plan)

    async def _get_annotations(self, ids: Iterable[str]) -> dict[str, graph.AnswerExtras]:
        """Return the annotations that tools show next to memories, by id. Skip unknown ids."""
        names = list(ids)
        found = await self._read_each_namespace(lambda reader: graph.load_answer_extras(reader, names))
        return {name: one for some in reversed(found) for name, one in some.items()}

    async def relationships(self) -> Results[RelationshipCount]:
        """Return all relationship words, most frequent first, each with its near synonyms."""
        counts = await self._shared.read(lambda reader: reader.relationships())
        words = sorted(counts, key=lambda word: (-counts[word], word))
        if not words:
            return Results(item_type=RelationshipCount)
        vectors = np.stack(
            [
                pieces[0]
                for pieces in await self._shared.embedding.embed_documents([*map(normalize_relationship, words)])
            ]
        )
        near = find_near_synonyms(words, vectors)
        found = (RelationshipCount(word=word, count=counts[word], near_synonyms=near[word]) for word in words)
        return Results(found, item_type=RelationshipCount)

    async def conflicts(self, *, limit: int = 100) -> Results[MemoryConflict]:
        """
        Return the unresolved conflicts of this namespace that saves detected, newest first.

        A conflict is resolved when either memory is superseded, updated or deleted, fails or expires, or when the
        conflict is dismissed (`MemoryStore.dismiss_conflict`). An explicit link between both memories resolves it, too.

        Args:
            limit: Maximum number of conflicts, at least 1.

        """
        most = check_limit(limit)
        now = self._shared.now
        found = await self._shared.read(lambda reader: find_conflicts(reader, now, most))
        return Results(found, item_type=MemoryConflict)

    async def traverse(
        self,
        memory: MemoryLike,
        *,
        link_types: Iterable[LinkType | str] | LinkType | str | None = None,
        max_depth: int = 5,
        direction: Direction = "both",
        min_strength: float = 0.0,
        limit: int | None = 1000,
    ) -> Results[TraversedMemory]:
        """
        Follow the links of a memory and return the reached memories, nearest first.

        At equal distance the strongest comes first.

        Args:
            memory: The memory to start from, or its id; it is not part of the result.
            link_types: The types of links to follow, None for all.
            max_depth: The maximum number of links on a path; more than 5 counts as 5.
            direction: ``"out"`` along links (to older memories), ``"in"`` against them, or ``"both"``.
            min_strength: Paths with a strength below this are not followed.
            limit: The maximum number of memories; None for all.

        Raises:
            MemoryNotFound: No memory has this id.

        """
        self._shared.check()
        request = TraversalRequest.checked(
            memory,
            link_types=link_types,
            max_depth=max_depth,
            direction=direction,
            min_strength=min_strength,
            limit=limit,
        )
        return await self._traverse(request)

    async def _traverse(self, request: TraversalRequest) -> Results[TraversedMemory]:
        now_ms = to_milliseconds(self._shared.now)
        return await self._shared.read(lambda reader: results.traversal(reader, request, now_ms=now_ms))

    async def details(
        self, memory: MemoryLike, *, link_types: Iterable[LinkType | str] | LinkType | str | None = None
    ) -> MemoryDetails:
        """
        Return a memory with its history, its links and the memories nearby in the graph.

        Args:
            memory: The memory or its id.
            link_types: As for `traverse`, for the memories nearby.

        Raises:
            MemoryNotFound: No memory has this id.

        """
        types = None if link_types is None else requests.check_link_types(link_types)
        now_ms = to_milliseconds(self._shared.now)

        return await self._read(
            memory,
            lambda reader, node: results.details(reader, node, now_ms=now_ms, types=types),
            ahead=lambda ahead: (ahead.links(NO_NODES, "both", types), ahead.links_of_many(NO_NODES)),
            around=graph.CONTEXT_DEPTH,
        )

    # Statistics

    async def stats(self) -> dict[str, Any]:
        """Return current statistics: memories by type, links, vectors, models and last maintenance."""
        await self._shared.read(lambda reader: reader.change)
        return self._figures()

    def _figures(self) -> dict[str, Any]:
        """Return the statistics known from the last operation without a read; see `stats`."""
        return maintenance.figures(self._shared)

    async def _read_each_namespace(self, plan: Callable[[Reader], T]) -> builtins.list[T]:
        """Run a reading plan in each namespace and return the results. The writable namespace comes first."""
        return [await self._shared.read(plan)]

    async def _read(
        self,
        memory: MemoryLike,
        plan: Callable[[Reader, int], T],
        *,
        ahead: Callable[[Prefetch], object] | None = None,
        around: int | None = 0,
    ) -> T:
        """Run a reading plan on one memory. *ahead* prefetches the results of its queries."""
        self._shared.check()
        checked = check_memory("memory", memory)

        def read_memory(reader: Reader) -> T:
            if ahead is not None:
                reader.expect(lambda asking: (asking.find(checked), ahead(asking)), around=around)
            return plan(reader, saving.require_node(reader, checked))

        return await self._shared.read(read_memory)

    def _conditions(self, where: Filter | None, **direct: object) -> EngineFilter:
        """Return a filter and the conditions that are given directly in the engine's form."""
        self._shared.check()
        return to_engine_filter(where, now=self._shared.now, **direct)

    def _localize(self, where: EngineFilter) -> EngineFilter:
        """Return conditions without the namespace. If they name another namespace, no memory matches the result."""
        if where.namespace in (None, self.namespace):
            return attrs.evolve(where, namespace=None)
        return EngineFilter(types=frozenset())

    def _time(self, name: str, value: object) -> datetime | None:
        """Return a time as a datetime; a timedelta counts back from now."""
        return None if value is None else _check.check_time(name, value, now=self._shared.now)

    def _exclude_expired(self, where: EngineFilter) -> EngineFilter:
        """Restrict conditions to memories that have not expired by now."""
        return attrs.evolve(where, valid_at=self._shared.now)

    def _instrument(self, operation: str, *, count: int | None = None) -> AbstractContextManager[dict[str, str | int]]:
        """Trace an operation on the given number of memories for telemetry."""
        about: dict[str, str | int] = {} if count is None else {"memory__record__count": count}
        return instrument(operation, memory__store__id=self.namespace, **about)
