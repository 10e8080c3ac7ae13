"""Search and retrieval in the memories of one namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Final, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.telemetry import instrument
from mama_structs.memory.embedding.protocol import Embedder, Vectors
from mama_structs.memory.graph import results
from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.graph.plot import MemoryPlots
from mama_structs.memory.graph.results import (
    Chain,
    Evidence,
    Explanation,
    Hit,
    Reached,
    RelationshipWord,
    Results,
    Similar,
    Surroundings,
)
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.search import search_plan as search
from mama_structs.memory.search.explanation import explain
from mama_structs.memory.search.search_plan import SearchQuery, SearchRequest, SimilarityRequest, SupersededMode
from mama_structs.memory.store import maintenance
from mama_structs.memory.types import requests
from mama_structs.memory.types.engine import (
    DISPLAY_BOUNDS,
    Direction,
    EmbedderRecord,
    Filter,
    Prefetch,
    Reader,
    RelevanceBounds,
    read_in_pages,
    to_nfc,
)
from mama_structs.memory.types.model import Link, LinkType, Memory, MemoryType, is_id, to_milliseconds
from mama_structs.memory.types.relationships import find_near_synonyms, normalize_relationship
from mama_structs.memory.types.requests import TraversalRequest, check_filter, check_id, check_limit
from mama_structs.memory.types.reranker import Reranker
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.provenance import Origin

T = TypeVar("T")
NO_NODES: Final = np.empty(0, np.int64)


class MemoryReader:
    """
    Read access to the memories of one namespace. Base class of `MemoryStore`.

    Args:
        shared: The services that all stores of this namespace share.

    """

    def __init__(self, shared: NamespaceServices) -> None:
        self._shared = shared
        self._engine = shared.engine
        self._settings = shared.settings

    @property
    def namespace(self) -> str:
        """The namespace of these memories. Calls access no other namespaces except those in `reads`."""
        return self._engine.namespace

    @property
    def reads(self) -> tuple[str, ...]:
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

    async def get(self, id: str) -> Memory:  # noqa: A002 - the conventional name
        """
        Return a memory.

        Raises:
            StoreDamaged: The stored row is corrupt.

        """
        return await self._read(id, lambda reader, node: reader.get([node])[0])

    async def evidence_of(self, id: str) -> list[Evidence]:  # noqa: A002 - as above
        """
        Return a memory's evidence in order, with the texts of handles as saved.

        Raises:
            StoreDamaged: A text is missing or corrupt.

        """
        return await self._read(id, results.evidence_in)

    async def count(self, *, types: Iterable[MemoryType | str] | str | None = None) -> int:
        """
        Return the number of memories.

        Args:
            types: Count only these types.

        """
        where = check_filter(types=types)
        return await self._shared.read(lambda reader: reader.count(where))

    async def recent(
        self,
        *,
        limit: int = 10,
        types: Iterable[MemoryType | str] | str | None = None,
        since: datetime | None = None,
        origins: Iterable[Origin] | Origin | None = None,
        trust: Origin | None = None,
    ) -> Results[Memory]:
        """
        Return the newest memories, newest first.

        Args:
            limit: The maximum number of memories.
            types: Only these types.
            since: Only memories from this time on (with a time zone).
            origins: Only these origins, as for `save_decision`.
            trust: Only memories that are at least as trusted as this origin, see `Memory`.

        """
        where = self._exclude_expired(check_filter(types=types, since=since, origins=origins, trust=trust))
        most = check_limit(limit)
        return await self._get_newest(where, most)

    async def _get_newest(self, where: Filter, limit: int) -> Results[Memory]:
        return Results(await self._shared.read(lambda reader: reader.get(reader.window(where, limit=limit))))

    async def all(self, *, types: Iterable[MemoryType | str] | str | None = None) -> AsyncIterator[Memory]:
        """
        Iterate over all memories in the order in which they were saved, expired ones included.

        Memories that are saved during the iteration are not included, nor are those that are deleted before their turn.

        Args:
            types: Only these types.

        """
        async for memories in self._in_pages(check_filter(types=types), lambda reader, nodes: reader.get(nodes)):
            for memory in memories:
                yield memory

    async def links(self) -> AsyncIterator[Link]:
        """Iterate over all links, in the order of `all`, with previews in `Link.texts`."""

        def read(reader: Reader, nodes: list[int]) -> Sequence[Link]:
            return results.add_previews(reader, [link for own in reader.links_of_many(nodes, "out") for link in own])

        async for links in self._in_pages(None, read):
            for link in links:
                yield link

    async def _in_pages(
        self, where: Filter | None, plan: Callable[[Reader, list[int]], Sequence[T]]
    ) -> AsyncIterator[Sequence[T]]:
        """Run a plan on each page of the matching memories, and yield its results."""
        ids = await self._shared.read(lambda reader: reader.ids(np.sort(reader.window(where))))
        async for some in read_in_pages(self._shared.read, ids, plan):
            yield some

    async def latest_checkpoint(self) -> Memory | None:
        """Return the newest checkpoint, or None if there is no checkpoint."""
        found = await self.recent(limit=1, types=[MemoryType.CHECKPOINT])
        return found[0] if found else None

    async def similar(
        self,
        id_or_text: str,
        *,
        threshold: float | None = None,
        origins: Iterable[Origin] | Origin | None = None,
        trust: Origin | None = None,
        limit: int = 10,
    ) -> Results[Similar]:
        """
        Return the memories that are most similar in meaning, nearest first.

        Args:
            id_or_text: A memory's id, or any text.
            threshold: The minimum similarity, 0 to 1; None for the embedder's own threshold.
            origins: As for `recent`.
            trust: As for `recent`.
            limit: The maximum number of memories.

        Raises:
            MemoryNotFound: The argument has the form of an id, but no memory has this id.

        """
        self._shared.check()
        text = _check.check_text("id_or_text", id_or_text, max_chars=self._settings.max_content)
        least = None if threshold is None else _check.check_ratio("threshold", threshold)
        most = check_limit(limit)
        record = self._shared.record
        calibration = await self._shared.embedding.calibration()
        own_id: str | None = to_nfc(text)
        pieces = await self._get_vectors(to_nfc(text))
        if pieces is None:
            own_id, pieces = None, (await self._shared.embedding.embed_query(text))[np.newaxis]
        request = SimilarityRequest(
            pieces=pieces,
            where=self._exclude_expired(check_filter(origins=origins, trust=trust)),
            but=own_id,
            calibration=calibration,
            threshold=calibration.threshold if least is None else least,
            limit=most,
        )
        return await self._find_nearest(request, record)

    async def _get_vectors(self, memory_id: str) -> Vectors | None:
        """
        Return a memory's vectors, or None if no memory has this id.

        An unknown text with the form of an id raises `MemoryNotFound`.
        """

        def plan(reader: Reader) -> Vectors | None:
            node = saving.require_node(reader, memory_id) if is_id(memory_id) else reader.find(memory_id)
            return None if node is None else reader.vectors(node)

        return await self._shared.read(plan)

    async def _find_nearest(self, request: SimilarityRequest, made_by: EmbedderRecord) -> Results[Similar]:
        """Return the memories nearest to the vectors of the request."""
        return await self._shared.read(lambda reader: search.similar(reader, request), made_by=made_by)

    async def about(
        self, mention: str, *, limit: int = 10, types: Iterable[MemoryType | str] | str | None = None
    ) -> Results[Memory]:
        """
        Return the newest memories whose text mentions an id, newest first.

        Args:
            mention: The id of an entity, such as ``2-1``.
            limit: The maximum number of memories.
            types: Only these types.

        """
        where = self._exclude_expired(check_filter(types=types))
        where = attrs.evolve(where, mentions=frozenset({check_id("mention", mention)}))
        most = check_limit(limit)
        return await self._get_newest(where, most)

    async def search(
        self,
        query: str,
        *,
        types: Iterable[MemoryType | str] | str | None = None,
        topic: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        mentions: Iterable[str] | None = None,
        origins: Iterable[Origin] | Origin | None = None,
        trust: Origin | None = None,
        superseded: SupersededMode = "behind",
        min_relevance: float | None = None,
        max_chars: int | None = None,
        as_of: datetime | None = None,
        limit: int = 10,
    ) -> Results[Hit]:
        """
        Find memories by semantic similarity, keywords, links and time, best first.

        Time expressions in the query ("last week", "지난주") favour that time.
        Returns *limit* memories if that many pass the filters, unless *min_relevance* or *max_chars* excludes some;
        `Hit.relevance` rates how well each hit answers the query.
        A session's reranker reorders the best hits if it answers within ``settings.memory.rerank_seconds``.

        Args:
            query: The query, in any words.
            types: Only these types.
            topic: Only this topic.
            since: Only memories from this time on (with a time zone).
            until: Only memories before this time.
            mentions: Only memories that mention all of these ids.
            origins: As for `recent`.
            trust: As for `recent`.
            superseded: The position of superseded memories: ``"behind"`` their successors (or behind others, if the
                query asks for an earlier state), ``"equal"`` to others, or ``"drop"`` to leave them out.
            min_relevance: The minimum relevance of a hit, 0 to 1; None for all hits.
            max_chars: The maximum length of all hits' content and reasoning together. A hit that does not fit is left
                out, and no hit is truncated. None for no limit.
            as_of: Search as of this time: later memories, outcomes and supersessions are ignored.
            limit: The maximum number of hits.

        Raises:
            RerankingFailed: The reranker is misconfigured and can never work. After a single failure or a timeout the
                search continues without it.

        """
        self._shared.check()
        where = check_filter(
            types=types, topic=topic, since=since, until=until, mentions=mentions, origins=origins, trust=trust
        )
        asked = SearchQuery.checked(
            query, where, superseded=superseded, min_relevance=min_relevance, as_of=as_of, limit=limit
        )
        return Results(await self._hits(asked, None if max_chars is None else check_limit(max_chars, name="max_chars")))

    async def _hits(self, asked: SearchQuery, room: int | None) -> list[Hit]:
        """Return the best hits of a search, with at most *room* characters in total."""
        record, reranking = self._shared.record, self._shared.reranker_runner
        with self._instrument("search_memory") as told:
            at_most = asked.limit if reranking is None else max(asked.limit, reranking.max_hits)
            request = await self._build_request(attrs.evolve(asked, limit=at_most))
            hits, precedence = await self._shared.read(lambda reader: search.find_hits(reader, request), made_by=record)
            if reranking is not None:
                hits = (await reranking.rerank_hits(request.text, hits, precedence))[: asked.limit]
            hits = hits if room is None else results.limit_chars(hits, room)
            told["memory__record__count"] = len(hits)
        return hits

    async def _search_for_prompt(
        self,
        query: str,
        *,
        limit: int,
        bounds: RelevanceBounds = DISPLAY_BOUNDS,
        types: Iterable[MemoryType | str] | str | None = None,
    ) -> tuple[list[Hit], int]:
        """Return the hits that are relevant enough for a prompt, and the number of the remaining hits."""
        found = await self.search(query, limit=limit, types=types)
        shown = search.worth_showing(found, bounds=bounds)
        return shown, len(found) - len(shown)

    async def explain(
        self,
        query: str,
        id: str,  # noqa: A002 - as above
        *,
        types: Iterable[MemoryType | str] | str | None = None,
        topic: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        mentions: Iterable[str] | None = None,
        origins: Iterable[Origin] | Origin | None = None,
        trust: Origin | None = None,
        superseded: SupersededMode = "behind",
        min_relevance: float | None = None,
        max_chars: int | None = None,
        as_of: datetime | None = None,
        limit: int = 10,
    ) -> Explanation:
        """
        Explain why a search returns a memory, or why it does not.

        *id* is the id of the memory; all other arguments are those of `search`.
        Printing the result shows a small table.
        """
        self._shared.check()
        room = None if max_chars is None else check_limit(max_chars, name="max_chars")
        where = check_filter(
            types=types, topic=topic, since=since, until=until, mentions=mentions, origins=origins, trust=trust
        )
        asked = SearchQuery.checked(
            query, where, superseded=superseded, min_relevance=min_relevance, as_of=as_of, limit=limit
        )
        request = await self._build_request(asked)
        return await self._read(id, lambda reader, node: explain(reader, request, node, room))

    async def _build_request(self, asked: SearchQuery) -> SearchRequest:
        """Return the search request with the embedding of the query."""
        return SearchRequest(
            text=asked.text,
            vector=await self._embed_query(asked.text),
            where=asked.where,
            superseded=asked.superseded,
            min_relevance=asked.min_relevance,
            as_of=asked.as_of,
            now=self._shared.now,
            limit=asked.limit,
            calibration=self.embedder.calibration,
        )

    async def _embed_query(self, text: str) -> NDArray[np.float32]:
        """Return the embedding of a query text."""
        return await self._shared.embedding.embed_query(text)

    async def warm_up(self) -> None:
        """
        Load the embedder, the views and the reranker before the first search needs them.

        Raises:
            RerankingFailed: As for `search`.

        """
        await self.search("warm up", limit=1)

    # The graph

    async def by_topic(self, topic: str, *, link_types: Iterable[LinkType | str] | None = None) -> Chain:
        """
        Return all memories of a topic and their evolution, newest first.

        An unknown topic has an empty chain.

        Args:
            topic: The topic exactly as it was saved.
            link_types: As for `traverse`, for the neighbours of the chain.

        """
        named = requests.check_topic(topic)
        types = None if link_types is None else requests.check_link_types(link_types)
        now_ms = to_milliseconds(self._shared.now)

        def plan(reader: Reader) -> Chain:
            found = graph.topic_evolution(reader, named, now_ms=now_ms, types=types)
            return results.build_chain(reader, found.chain, around=results.to_reached(reader, found.around))

        return await self._shared.read(plan)

    async def evolution(self, id: str) -> Chain:  # noqa: A002 - as above
        """Return the evolution chain that contains a decision, newest first, with its forks."""
        return await self._read(
            id,
            lambda reader, node: results.build_chain(reader, graph.find_evolution(reader, node)),
            ahead=graph.prefetch_chain,
            around=None,
        )

    async def links_of(self, id: str) -> Results[Link]:  # noqa: A002 - as above
        """Return the links that begin or end at a memory, oldest first."""
        return await self._read(
            id,
            lambda reader, node: Results(results.add_previews(reader, reader.read_links(node))),
            ahead=lambda ahead: ahead.links_of_many(NO_NODES),
        )

    async def _get_annotations(self, ids: Iterable[str]) -> dict[str, graph.AnswerExtras]:
        """Return the annotations that tools show next to memories, by id. Skip unknown ids."""
        names = list(ids)
        found = await self._read_each_namespace(lambda reader: graph.load_answer_extras(reader, names))
        return {name: one for some in reversed(found) for name, one in some.items()}

    async def relationships(self) -> list[RelationshipWord]:
        """Return all relationship words, most frequent first, each with its near synonyms."""
        counts = await self._shared.read(lambda reader: reader.relationships())
        words = sorted(counts, key=lambda word: (-counts[word], word))
        if not words:
            return []
        vectors = np.stack(
            [
                pieces[0]
                for pieces in await self._shared.embedding.embed_documents([*map(normalize_relationship, words)])
            ]
        )
        near = find_near_synonyms(words, vectors)
        return [RelationshipWord(word=word, count=counts[word], near_synonyms=near[word]) for word in words]

    async def traverse(
        self,
        start_id: str,
        *,
        link_types: Iterable[LinkType | str] | None = None,
        max_depth: int = 5,
        direction: Direction = "both",
        min_strength: float = 0.0,
        limit: int = 1000,
    ) -> Results[Reached]:
        """
        Follow the links of a memory and return the reached memories, nearest first.

        At equal distance the strongest comes first.

        Args:
            start_id: The memory to start from; it is not part of the result.
            link_types: The types of links to follow, None for all.
            max_depth: The maximum number of links on a path; more than 5 counts as 5.
            direction: ``"out"`` along links (to older memories), ``"in"`` against them, or ``"both"``.
            min_strength: Paths with a strength below this are not followed.
            limit: The maximum number of memories.

        """
        request = TraversalRequest.checked(
            start_id,
            link_types=link_types,
            max_depth=max_depth,
            direction=direction,
            min_strength=min_strength,
            limit=limit,
        )
        return await self._traverse(request)

    async def _traverse(self, request: TraversalRequest) -> Results[Reached]:
        now_ms = to_milliseconds(self._shared.now)
        return await self._shared.read(
            lambda reader: results.traversal(reader, request, self._shared.cache, now_ms=now_ms)
        )

    async def connected(self, id: str, *, direction: Direction = "both") -> Results[Reached]:  # noqa: A002 - as above
        """
        Return the memories that are directly linked to a memory, strongest first.

        Args:
            id: The id of the memory.
            direction: As for `traverse`.

        """
        return await self.traverse(check_id("id", id), max_depth=1, direction=direction, limit=2**31)

    async def load_context(
        self,
        id: str,  # noqa: A002 - as above
        *,
        link_types: Iterable[LinkType | str] | None = None,
    ) -> Surroundings:
        """
        Return a memory with its evolution and its neighbourhood in the graph.

        Args:
            id: The id of the memory.
            link_types: As for `traverse`, for its neighbourhood.

        """
        types = None if link_types is None else requests.check_link_types(link_types)
        now_ms = to_milliseconds(self._shared.now)

        return await self._read(
            id,
            lambda reader, node: results.surroundings(reader, node, now_ms=now_ms, types=types),
            ahead=lambda ahead: (ahead.links(NO_NODES, "both", types), ahead.links_of_many(NO_NODES)),
            around=graph.CONTEXT_DEPTH,
        )

    # Statistics

    async def stats(self) -> dict[str, Any]:
        """Return current statistics: memories by type, links, vectors, the traversal cache."""
        await self._shared.read(lambda reader: reader.change)
        return self.figures()

    def figures(self) -> dict[str, Any]:
        """Return the statistics known from the last operation without a read; see `stats`."""
        return maintenance.figures(self._shared)

    async def _read_each_namespace(self, plan: Callable[[Reader], T]) -> list[T]:
        """Run a reading plan in each namespace and return the results. The writable namespace comes first."""
        return [await self._shared.read(plan)]

    async def _read(
        self,
        memory_id: str,
        plan: Callable[[Reader, int], T],
        *,
        ahead: Callable[[Prefetch], object] | None = None,
        around: int | None = 0,
    ) -> T:
        """Run a reading plan on one memory. *ahead* prefetches the results of its queries."""
        checked = check_id("id", memory_id)

        def found(reader: Reader) -> T:
            if ahead is not None:
                reader.expect(lambda asking: (asking.find(checked), ahead(asking)), around=around)
            return plan(reader, saving.require_node(reader, checked))

        return await self._shared.read(found)

    def _exclude_expired(self, where: Filter | None = None) -> Filter:
        """Restrict a filter to memories that have not expired by now."""
        return attrs.evolve(where or Filter(), valid_at=self._shared.now)

    def _instrument(self, operation: str, *, count: int | None = None) -> AbstractContextManager[dict[str, str | int]]:
        """Trace an operation on the given number of memories for telemetry."""
        about: dict[str, str | int] = {} if count is None else {"memory__record__count": count}
        return instrument(operation, memory__store__id=self.namespace, **about)
