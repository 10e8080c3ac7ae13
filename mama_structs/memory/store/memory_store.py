"""The memories of one namespace: saving, linking, search and evolution over time."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import is_model_call
from mama_structs._internal.telemetry import instrument
from mama_structs.errors import InvalidArgument, LinkNotFound, MamaStructsError
from mama_structs.memory.embedding.protocol import Embedder, Vectors
from mama_structs.memory.graph import results
from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.graph.plot import MemoryPlots
from mama_structs.memory.graph.results import (
    Chain,
    Evidence,
    Explanation,
    Forgotten,
    Hit,
    Imported,
    OutcomeWord,
    Reached,
    RelationshipWord,
    Results,
    Similar,
    Surroundings,
)
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.save.save_plan import RECORDS_PER_YIELD, FindContent, PreparedSave
from mama_structs.memory.save.text_update import Correction
from mama_structs.memory.search import search_plan as search
from mama_structs.memory.search.explanation import explain
from mama_structs.memory.search.search_plan import SearchQuery, SearchRequest, SimilarityRequest, SupersededMode
from mama_structs.memory.store import maintenance, writes
from mama_structs.memory.types import requests
from mama_structs.memory.types.engine import (
    DISPLAY_BOUNDS,
    Direction,
    EmbedderRecord,
    Filter,
    Prefetch,
    ProgressCallback,
    Reader,
    RelevanceBounds,
    Writer,
    read_in_pages,
    to_nfc,
)
from mama_structs.memory.types.model import (
    CREATORS,
    OUTCOME_OF_WORD,
    CreatedBy,
    Link,
    LinkType,
    Maintained,
    Memory,
    MemoryType,
    Outcome,
    OutcomeChange,
    is_id,
    to_milliseconds,
)
from mama_structs.memory.types.relationships import find_near_synonyms, normalize_relationship
from mama_structs.memory.types.requests import (
    OnDuplicate,
    TraversalRequest,
    check_filter,
    check_id,
    check_limit,
    check_progress,
)
from mama_structs.memory.types.reranker import Reranker
from mama_structs.memory.upkeep import erasure as forgetting
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.provenance import Origin, get_inserted_provenance, is_tool_call
from mama_structs.storage.sqlite_errors import Finding

T = TypeVar("T")
ReaderT = TypeVar("ReaderT", bound=Reader)
NO_NODES: Final = np.empty(0, np.int64)


class MemoryStore:
    """
    The memories of one namespace. `Session.memories` is a `MemoryStore`.

    A save returns when its data is on disk. From then on every process that has the store open can read it.

    Args:
        shared: The services that all stores of this namespace share.
        find_content: Resolves a handle, see `resolving`.

    Raises:
        InvalidArgument: An argument is invalid. Every method raises it before it changes anything.
        MemoryNotFound: No memory has the given id; nothing was changed.
        EmbeddingFailed: The embedder failed on a given text; nothing was changed.
        StoreError: The store cannot be read or written; unacknowledged changes are not stored.
        SessionClosed: The session was closed.

    """

    def __init__(self, shared: NamespaceServices, *, find_content: FindContent = saving.no_content) -> None:
        self._shared = shared
        self._engine = shared.engine
        self._settings = shared.settings
        self._find_content = find_content

    def __repr__(self) -> str:
        return f"<MemoryStore {self.namespace!r}, {self.embedder.name}{', closed' if self._shared.closed else ''}>"

    @property
    def namespace(self) -> str:
        """The namespace of these memories. Calls access no other namespace except `reads`."""
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

    @property
    def records(self) -> RecordStore:
        """The records that hosts store next to these memories, see `mama_structs.records`."""
        return RecordStore(self._shared)

    def resolving(self, find_content: FindContent) -> MemoryStore:
        """
        Return a store of the same memories with another handle resolver, as a fork needs it.

        Both share everything else: one finds what the other saves, and closing either closes both.

        Args:
            find_content: Called with an item of evidence, or with a content that is exactly a handle. It returns the
                versioned handle, its text and the text's provenance (text without provenance counts as from outside),
                or None if the item is no handle, and raises `HandleNotFound` for an unknown handle.

        """
        return type(self)(self._shared, find_content=find_content)

    # Saving

    async def save_decision(
        self,
        topic: str,
        decision: str,
        reasoning: str,
        *,
        confidence: float = 0.7,
        supersedes: str | None = None,
        implements: Sequence[str] = (),
        links: Sequence[Mapping[str, Any]] = (),
        evidence: Sequence[str] = (),
        on_duplicate: OnDuplicate = "keep",
        created_at: datetime | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: datetime | None = None,
    ) -> Memory:
        """
        Save a decision.

        Args:
            topic: The subject, in a word or two; decisions of one topic are found together.
            decision: The decision; a text that is exactly a handle (``ref:plan``, ``fd:1``) is replaced by the
                text of the handle, unless a backslash precedes it.
            reasoning: The reasons; a handle is replaced as in *decision*.
            confidence: The author's confidence, 0 to 1.
            supersedes: The id of the decision that this one supersedes.
            implements: Ids of memories that this decision implements.
            links: Further links: mappings with ``to_id``, ``relationship`` (any word), and optionally ``confidence``
                (0.8), ``reason`` and ``tags``.
            evidence: Supporting evidence: ids, addresses, any words, or handles (``ref:plan``, ``fd:1``), whose text is
                stored with the memory, see `evidence_of`.
            on_duplicate: The action if a memory with the same words, topic and origin exists: ``"keep"`` also saves
                this one; ``"merge"`` saves nothing, returns the existing one and adds the time to its `Memory.repeats`.
                ``"merge"`` still saves a new memory if *supersedes*, *implements*, *links*, *evidence* or *created_at*
                is given, or if the existing one failed, was superseded, or was followed by another decision of its
                topic.
            created_at: The time of the decision (with a time zone); None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.
            origin: The author of the text: ``"user"``, ``"model"``, ``"tool"`` or ``"outside"``; None for the model
                if it is created by ``"llm"``, else for the user. The text of a handle lowers origin and trust to those
                of the handle; evidence lowers the trust.
            valid_until: The time at which the decision expires (with a time zone); None for never.

        Raises:
            InvalidArgument: An argument is invalid, or a handle's text is too long; nothing was saved.
            HandleNotFound: A handle in the text or the evidence does not exist; nothing was saved.
            MemoryNotFound: A link leads to a memory that does not exist; nothing was saved.
            EmbeddingFailed: The embedder failed; nothing was saved.
            StoreError: The store cannot be written; nothing was saved.

        """
        return await self._save(
            requests.DecisionRequest(
                topic=topic,
                decision=decision,
                reasoning=reasoning,
                confidence=confidence,
                supersedes=supersedes,
                implements=implements,
                links=links,
                evidence=evidence,
                on_duplicate=on_duplicate,
                created_at=created_at,
                created_by=created_by,
                origin=origin,
                valid_until=valid_until,
            )
        )

    async def save_checkpoint(
        self,
        summary: str,
        *,
        open_files: Sequence[str] = (),
        next_steps: Sequence[str] = (),
        implements: Sequence[str] = (),
        created_at: datetime | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: datetime | None = None,
    ) -> Memory:
        """
        Save a checkpoint: the current state of the work.

        Args:
            summary: The work done and the current state, or a handle as in `save_decision`.
            open_files: Paths that are being edited.
            next_steps: The next steps.
            implements: Ids of the decisions that this work implements.
            created_at: The time of the checkpoint (with a time zone); None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.
            origin: As for `save_decision`.
            valid_until: As for `save_decision`.

        """
        return await self._save(
            requests.CheckpointRequest(
                summary=summary,
                open_files=open_files,
                next_steps=next_steps,
                implements=implements,
                created_at=created_at,
                created_by=created_by,
                origin=origin,
                valid_until=valid_until,
            )
        )

    async def save_insight(
        self,
        content: str,
        *,
        category: str | None = None,
        tags: Sequence[str] = (),
        source: str | None = None,
        links: Sequence[Mapping[str, Any]] = (),
        on_duplicate: OnDuplicate = "keep",
        created_at: datetime | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: datetime | None = None,
    ) -> Memory:
        """
        Save an insight: a lesson or a fact.

        Args:
            content: The insight, or a handle as in `save_decision`.
            category: The kind of insight, in the host's words.
            tags: Words to group insights by.
            source: The source of the insight.
            links: As for `save_decision`.
            on_duplicate: As for `save_decision`.
            created_at: The time of the insight (with a time zone); None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.
            origin: As for `save_decision`.
            valid_until: As for `save_decision`.

        """
        return await self._save(
            requests.InsightRequest(
                content=content,
                category=category,
                tags=tags,
                source=source,
                links=links,
                on_duplicate=on_duplicate,
                created_at=created_at,
                created_by=created_by,
                origin=origin,
                valid_until=valid_until,
            )
        )

    async def save_context(
        self,
        content: str,
        *,
        topic: str | None = None,
        source: str | None = None,
        on_duplicate: OnDuplicate = "keep",
        created_at: datetime | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: datetime | None = None,
    ) -> Memory:
        """
        Save a context: background text that is neither a decision nor an insight.

        Args:
            content: The text, or a handle as in `save_decision`.
            topic: The subject.
            source: The source of the text.
            on_duplicate: As for `save_decision`.
            created_at: The time of the text (with a time zone); None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.
            origin: As for `save_decision`.
            valid_until: As for `save_decision`.

        """
        return await self._save(
            requests.ContextRequest(
                content=content,
                topic=topic,
                source=source,
                on_duplicate=on_duplicate,
                created_at=created_at,
                created_by=created_by,
                origin=origin,
                valid_until=valid_until,
            )
        )

    async def save_many(
        self, records: Iterable[Mapping[str, Any]], *, progress: ProgressCallback | None = None
    ) -> Results[Memory]:
        """
        Save several memories in order; many of them share one transaction.

        Args:
            records: Mappings with ``type`` (``"decision"`` and so on) and the arguments of that type's method.
            progress: Called with the number of saved memories and their total number.

        Returns:
            The memories, in the order of the records.

        Raises:
            InvalidArgument: A record is invalid; nothing was saved.
            MemoryNotFound: A record links to a memory that does not exist; a note names the record; nothing was saved.
            HandleNotFound: A handle in a record's text or evidence does not exist; a note names the record; nothing was
                saved.
            EmbeddingFailed, StoreError: As for `save_decision`.
                Earlier transactions stay committed; a note gives the number of memories that they saved.

        """
        self._shared.check()
        check_progress(progress)
        if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
            raise InvalidArgument(f"records must be a list of mappings, got {type(records).__name__}")
        drafts: list[PreparedSave] = []
        resolve = _should_resolve_handles()
        for position, record in enumerate(records):
            if position % RECORDS_PER_YIELD == 0:
                # Yield to the event loop so that a large batch does not block other tasks.
                await asyncio.sleep(0)
            try:
                drafts.append(await self._draft(requests.parse_request(record), resolve=resolve))
            except InvalidArgument as error:
                raise requests.prefix_error(f"records[{position}]", error) from error
            except MamaStructsError as error:
                error.add_note(f"in records[{position}]")
                raise
        return await self._save_drafts(drafts, progress)

    async def _save_drafts(
        self, drafts: Sequence[PreparedSave], progress: ProgressCallback | None = None, *, judged: bool = False
    ) -> Results[Memory]:
        """Save drafted memories; call the judge only if *judged* is true. See `save_many`."""
        with self._observed("create_memory", count=len(drafts)):
            return await writes.save_all(self._shared, drafts, progress, judged=judged)

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

    async def delete(self, id: str) -> int:  # noqa: A002 - as above
        """
        Delete a memory with all its links, and return the number of deleted links.

        The texts of its evidence are deleted too, unless another memory cites them.
        From then on no reader sees any of it. If many memories link to it, later transactions remove the links from
        their rows; if this process is killed before, the next write does so.
        """
        memory_id = check_id("id", id)

        def plan(writer: Writer) -> int:
            writer.expect(lambda ahead: (ahead.find(memory_id), ahead.links(NO_NODES)))
            saving.require_node(writer, memory_id)
            return writer.delete(memory_id)

        with self._observed("delete_memory", count=1):
            return await self._shared.write(plan)

    async def forget(
        self,
        ids: Iterable[str] | str | None = None,
        *,
        about: str | None = None,
        source: str | None = None,
        before: datetime | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
    ) -> Forgotten:
        """
        Erase memories permanently: no part of their texts remains in any file of the store.

        Several filters are combined with AND; at least one is required. Only this namespace's own memories are erased.
        The call also erases the reasons of their outcomes, evidence texts that no other memory cites, the refs and
        descriptors with these texts, and their ids in other memories.
        The whole journal is rewritten; meanwhile searches continue and saves wait.
        If another process still holds some of the data open, for example in a long read, the result reports it, and the
        data is erased at the next opportunity. If this process is killed half-way, the next opening erases the rest.

        Args:
            ids: Ids of memories.
            about: A mention or a topic, matched exactly, without a search.
            source: A source of insights or contexts, or an item of evidence; a handle with or without its version.
            before: Only memories that were created before this time (with a time zone).
            dry_run: If true, only report how much would be erased.
            progress: Called with the number of erased memories and their total number.

        Raises:
            InvalidArgument: No filter was given, or a filter is invalid; nothing was changed.
            MemoryNotFound: No memory has a given id; nothing was changed.

        """
        self._shared.check()
        check_progress(progress)
        request = forgetting.ForgetRequest.checked(ids, about, source, before)
        with self._observed("delete_memory"):
            dry_run = _check.check_bool("dry_run", dry_run)
            return await maintenance.forget(self._shared, request, dry_run=dry_run, progress=progress)

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
        """Iterate over all links, by source memory in the order of `all`, with their `texts`."""

        def read(reader: Reader, nodes: list[int]) -> Sequence[Link]:
            return results.add_previews(reader, [link for own in reader.links_of_many(nodes, "out") for link in own])

        async for links in self._in_pages(None, read):
            for link in links:
                yield link

    async def _in_pages(
        self, where: Filter | None, plan: Callable[[Reader, list[int]], Sequence[T]]
    ) -> AsyncIterator[Sequence[T]]:
        """Run a plan on one page of matching memories after the other, and yield its results."""
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
        Return a memory's vectors, or None if the text is not an id of a memory.

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
        history: bool | None = None,
        as_of: datetime | None = None,
        limit: int = 10,
    ) -> Results[Hit]:
        """
        Find memories by meaning, words, links and time, best first.

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
            history: Deprecated: True means ``superseded="equal"``.
            as_of: Search as of this time: later memories, outcomes and supersessions are ignored.
            limit: The maximum number of hits.

        Raises:
            RerankingFailed: The reranker is misconfigured and can never work. After a single failure or a timeout the
                search continues without it.

        """
        self._shared.check()
        if history is not None:
            superseded = "equal" if _check.check_bool("history", history) else superseded
            warnings.warn("history=True is deprecated: say superseded='equal'", DeprecationWarning, stacklevel=2)
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
        with self._observed("search_memory") as told:
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
        """Return the hits that are relevant enough for a prompt, and the number of other hits."""
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
        """Return the whole chain of decisions of a memory, newest first, with its forks."""
        return await self._read(
            id,
            lambda reader, node: results.build_chain(reader, graph.find_evolution(reader, node)),
            ahead=graph.prefetch_chain,
            around=None,
        )

    async def set_outcome(
        self,
        id: str,  # noqa: A002 - as above
        outcome: OutcomeWord,
        *,
        reason: str | None = None,
        at: datetime | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
    ) -> Memory:
        """
        Record the outcome of a decision, and return the decision.

        The reason is also saved as a context that is linked to the decision, so that a search finds it by meaning.
        The decision, and what is based on it, is trusted no more than the reason.

        Args:
            id: The id of the decision.
            outcome: ``"SUCCESS"``, ``"FAILED"`` or ``"PARTIAL"``.
            reason: The reason; required for a failure.
            at: The time of the outcome (with a time zone); None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.
            origin: The author of the reason, as for `save_decision`.

        Raises:
            InvalidArgument: The memory is not a decision, or another argument is invalid; nothing was changed.

        """
        self._shared.check()
        memory_id = check_id("id", id)
        result = _check.check_choice("outcome", outcome, Outcome)
        creator = _check.check_choice("created_by", created_by, CREATORS)
        why = None if reason is None else _check.check_text("reason", reason, max_chars=self._settings.max_content)
        if result is Outcome.FAILED and why is None:
            raise InvalidArgument(
                "a FAILED outcome needs a reason", hint="say why it failed: that is what is searched for later"
            )
        moment = self._shared.resolve_time("at", at)
        record = self._shared.record
        before = await self._shared.read(lambda reader: saving.require_decision(reader, memory_id))
        prepared = None
        if why is not None:
            asked = requests.ContextRequest(
                content=why,
                topic=before.topic,
                source=OUTCOME_OF_WORD,
                created_at=moment,
                created_by=creator,
                origin=origin,
            )
            (prepared,) = await writes.prepare(self._shared, [await self._draft(asked)])
            prepared = attrs.evolve(prepared, outcome_of=memory_id)
        change = OutcomeChange(outcome=result, reason=why, at=moment)
        linking, is_dated = self._shared.linking, at is not None
        with self._observed("update_memory", count=1):
            return await self._shared.write(
                lambda writer: saving.set_outcome(writer, memory_id, change, prepared, linking, is_dated=is_dated),
                made_by=record,
            )

    async def correct(
        self,
        id: str,  # noqa: A002 - as above
        content: str | None = None,
        *,
        reasoning: str | None = None,
        reason: str | None = None,
        origin: Origin | None = None,
    ) -> Memory:
        """
        Correct the text of a memory, and return the memory.

        The memory keeps its id, its links and its time, and is found by its new text.
        Its earlier texts are in its `former`; a search with ``as_of`` at an earlier time shows them.
        Use a correction for a text that was wrong from the start. If the decision itself changed, use `supersede`.

        Args:
            id: The id of the memory.
            content: The new decision, summary, insight or context; None to leave it unchanged.
            reasoning: A decision's new reasoning; None to leave it unchanged.
            reason: The reason for the correction.
            origin: The author of the correction; None for the user. It limits the trust of the memory and of all
                memories that are based on it.

        Raises:
            InvalidArgument: The text is unchanged, *reasoning* is given for another type than a decision, or another
                argument is invalid; nothing was changed.

        """
        self._shared.check()
        now, record = self._shared.now, self._shared.record
        asked = Correction.checked(
            id,
            content,
            reasoning,
            reason=reason,
            origin=origin,
            inserted=get_inserted_provenance(),
            at=now,
            max_chars=self._settings.max_content,
        )
        with self._observed("update_memory", count=1):
            return await writes.correct(self._shared, asked, record)

    async def supersede(
        self,
        id: str,  # noqa: A002 - as above
        decision: str,
        reasoning: str,
        *,
        topic: str | None = None,
        confidence: float = 0.7,
        implements: Sequence[str] = (),
        links: Sequence[Mapping[str, Any]] = (),
        evidence: Sequence[str] = (),
        created_at: datetime | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: datetime | None = None,
    ) -> Memory:
        """
        Save a decision that supersedes another one, and return it.

        *id* is the id of the superseded decision, whose topic is the default; all other arguments are those of
        `save_decision`.

        Raises:
            InvalidArgument: The memory is not a decision, or another argument is invalid; nothing was saved.

        """
        self._shared.check()
        supersedes = check_id("id", id)
        before = await self._shared.read(lambda reader: saving.require_decision(reader, supersedes))
        return await self._save(
            requests.DecisionRequest(
                topic=before.topic or "untitled" if topic is None else topic,
                decision=decision,
                reasoning=reasoning,
                confidence=confidence,
                supersedes=supersedes,
                implements=implements,
                links=links,
                evidence=evidence,
                created_at=created_at,
                created_by=created_by,
                origin=origin,
                valid_until=valid_until,
            )
        )

    async def link(
        self,
        from_id: str,
        to_id: str,
        relationship: str,
        *,
        confidence: float = 0.8,
        reason: str | None = None,
        tags: Sequence[str] = (),
        created_at: datetime | None = None,
        created_by: CreatedBy = "user",
    ) -> Link:
        """
        Link two memories, and return the link.

        If a link with the same relationship exists between them, it is returned with the higher of the two confidences.
        Automatic links between them are converted to explicit ones.

        Args:
            from_id: The memory that acts, normally the newer one.
            to_id: The memory acted on.
            relationship: Any word; it determines the link's type, see `LinkType`.
            confidence: 0 to 1.
            reason: The reason for the link.
            tags: Words to group links by.
            created_at: The time of the link (with a time zone); None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.

        Raises:
            InvalidArgument: Both ids are the same, or another argument is invalid.

        """
        self._shared.check()
        source = check_id("from_id", from_id)
        asked = requests.LinkRequest(
            to_id=to_id, relationship=relationship, confidence=confidence, reason=reason, tags=tags
        )
        creator = _check.check_choice("created_by", created_by, CREATORS)
        moment = self._shared.resolve_time("created_at", created_at)
        return await writes.link(self._shared, source, asked, created_by=creator, now=moment)

    async def unlink(self, link_id: str) -> None:
        """
        Remove a link.

        Raises:
            LinkNotFound: No link has this id.

        """
        checked = check_id("link_id", link_id)

        def plan(writer: Writer) -> None:
            if not writer.delete_links([checked]):
                raise LinkNotFound(checked)

        await self._shared.write(plan)

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

    # Maintenance

    async def prune(self, *, now: datetime | None = None) -> int:
        """
        Remove weak automatic links and old temporal ones. Explicit links stay.

        Args:
            now: The time from which ages are computed (with a time zone); None for the present.

        Returns:
            The number of removed links.

        """
        return await maintenance.prune(self._shared, now)

    async def maintain(self) -> Maintained:
        """
        Prune once a week. Calls in between cost little.

        Ages are computed from the time of the previous maintenance, so that one opening with a wrong clock removes
        nothing. A store that is opened once in three months therefore prunes an old link one opening later.
        """
        return await maintenance.maintain(self._shared)

    async def check(self, *, progress: ProgressCallback | None = None) -> list[Finding]:
        """
        Compare every view with the journal and check all links, without changing anything.

        Args:
            progress: Called with the number of checked memories and their total number.

        """
        return await maintenance.check(self._shared, progress)

    async def rebuild(self, *, progress: ProgressCallback | None = None) -> list[str]:
        """
        Rebuild all indexes from the journal; meanwhile searches use the old ones.

        The current journal is accepted as complete: `check` no longer reports that it lost changes.

        Args:
            progress: Called with the number of indexed memories and their total number.

        Returns:
            A line for each damaged row. Damaged rows are excluded from now on.

        """
        return await maintenance.rebuild(self._shared, progress)

    async def reembed(self, embedder: Embedder, *, progress: ProgressCallback | None = None) -> int:
        """
        Change to another embedder: compute new vectors for every memory.

        A call resumes where an earlier one was interrupted.
        The old vectors remain in use until the last memory has new ones.
        From then on, other processes that have the store open get an error until they open it with the new embedder.

        Args:
            embedder: The new embedder.
            progress: Called with the number of embedded memories and their total number.

        Returns:
            The number of memories that this call embedded.

        Raises:
            EmbeddingFailed: The embedder failed; the old embedder and its vectors stay in use.

        """
        return await maintenance.reembed(self._shared, embedder, progress)

    async def export_jsonl(self, path: str | Path, *, progress: ProgressCallback | None = None) -> int:
        """
        Export all memories with links and vectors to a file, and return their number.

        The format is JSON Lines: one JSON object per line.
        The file appears under its name only when it is complete; memories that are saved meanwhile may or may not be in
        it.

        Args:
            path: The file; an existing file is replaced.
            progress: Called with the number of written memories and their total number.

        """
        return await maintenance.export_jsonl(self._shared, path, progress)

    async def import_jsonl(self, path: str | Path, *, progress: ProgressCallback | None = None) -> Imported:
        """
        Import the memories of an `export_jsonl` file, with their ids, times and links.

        Memories that already exist unchanged are skipped, so an interrupted import can simply be repeated.

        Args:
            path: The file.
            progress: Called with the number of imported lines and their total number.

        Raises:
            InvalidArgument: A line does not have the export format, or a memory with its id exists with other
                content; the message names the line. Nothing was imported.
            StoreError: The store cannot be written; lines that were already imported stay.

        """
        return await maintenance.import_jsonl(self._shared, path, progress)

    async def stats(self) -> dict[str, Any]:
        """Return current statistics: memories by type, links, vectors, the traversal cache."""
        await self._shared.read(lambda reader: reader.change)
        return self.figures()

    def figures(self) -> dict[str, Any]:
        """Return the statistics as of the last call, without reading the disk; see `stats`."""
        return maintenance.figures(self._shared)

    async def close(self) -> None:
        """Reject further calls and stop embedder and reranker. The session calls this method."""
        await self._shared.close()

    async def _read_each_namespace(self, plan: Callable[[Reader], T]) -> list[T]:
        """Run a reading plan in each namespace and return the results, own namespace first."""
        return [await self._shared.read(plan)]

    async def _read(
        self,
        memory_id: str,
        plan: Callable[[Reader, int], T],
        *,
        ahead: Callable[[Prefetch], object] | None = None,
        around: int | None = 0,
    ) -> T:
        """Run a reading plan on one memory. *ahead* declares its reads for prefetching."""
        checked = check_id("id", memory_id)

        def found(reader: Reader) -> T:
            if ahead is not None:
                reader.expect(lambda asking: (asking.find(checked), ahead(asking)), around=around)
            return plan(reader, saving.require_node(reader, checked))

        return await self._shared.read(found)

    def _exclude_expired(self, where: Filter | None = None) -> Filter:
        """Restrict a filter to memories that have not expired by now."""
        return attrs.evolve(where or Filter(), valid_at=self._shared.now)

    async def _save(self, request: requests.SaveRequest) -> Memory:
        self._shared.check()
        record = self._shared.record
        with self._observed("create_memory", count=1):
            (prepared,) = await writes.prepare(
                self._shared, [await self._draft(request, resolve=_should_resolve_handles())]
            )
            return await writes.save(self._shared, prepared, record)

    def _observed(self, operation: str, *, count: int | None = None) -> AbstractContextManager[dict[str, str | int]]:
        """Trace an operation on the given number of memories for telemetry."""
        about: dict[str, str | int] = {} if count is None else {"memory__record__count": count}
        return instrument(operation, memory__store__id=self.namespace, **about)

    async def _draft(self, request: requests.SaveRequest, *, resolve: bool = False) -> PreparedSave:
        return await saving.draft_save(
            request,
            self.namespace,
            self._find_content,
            now=self._shared.now,
            settings=self._settings,
            resolve=resolve,
        )


def _should_resolve_handles() -> bool:
    """
    Return False in a tool call, where handles are already replaced.

    Scanning inserted text again would replace handles that the text only quotes.
    """
    return not (is_model_call.get() or is_tool_call())
