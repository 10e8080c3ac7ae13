"""The memories of one namespace: saving, linking, search and evolution over time."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import from_model
from mama_structs._internal.reprs import Figures
from mama_structs._internal.telemetry import observed
from mama_structs.errors import InvalidArgument, LinkNotFound, MamaStructsError
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.protocol import Calibration, Embedder, Vectors
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
from mama_structs.memory.records import record_plans
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.save.save_plan import AT_ONCE, FindContent, PreparedSave
from mama_structs.memory.save.text_update import Correction
from mama_structs.memory.search import search_plan as search
from mama_structs.memory.search.explanation import explained
from mama_structs.memory.search.scores import SHOWN, Bounds
from mama_structs.memory.search.search_plan import SearchRequest, Superseded
from mama_structs.memory.types import requests
from mama_structs.memory.types.engine import (
    Direction,
    EmbedderRecord,
    Filter,
    Progress,
    Reader,
    Writer,
    in_pages,
    nfc,
)
from mama_structs.memory.types.model import (
    CREATORS,
    OUTCOME_OF,
    CreatedBy,
    Link,
    LinkType,
    Maintained,
    Memory,
    MemoryType,
    Outcome,
    OutcomeChange,
    from_milliseconds,
    is_id,
    milliseconds,
    parse_kept,
    with_texts,
)
from mama_structs.memory.types.relationships import near_synonyms, normalised
from mama_structs.memory.types.requests import OnDuplicate, check_filter, check_id, check_limit, check_progress
from mama_structs.memory.types.reranker import Reranker
from mama_structs.memory.types.text_analysis import embedded_text
from mama_structs.memory.upkeep import erasure as forgetting
from mama_structs.memory.upkeep import jsonl_transfer as transfer
from mama_structs.memory.upkeep import maintenance
from mama_structs.memory.upkeep.maintenance import record_of
from mama_structs.memory.upkeep.namespace_services import Shared
from mama_structs.provenance import ORIGINS, Origin, inserted_texts, is_tool_call, least_trusted
from mama_structs.storage.sqlite_errors import Finding

T = TypeVar("T")
ReaderT = TypeVar("ReaderT", bound=Reader)
_CHUNK: Final = 256
_NONE: Final = np.empty(0, np.int64)
_MAX_QUERY: Final = 10_000
_DIRECTIONS: Final = ("out", "in", "both")


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

    def __init__(self, shared: Shared, *, find_content: FindContent = saving.no_content) -> None:
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
        return None if self._shared.reranking is None else self._shared.reranking.reranker

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
        return await self._save(requests.DecisionRequest(**_arguments(locals())))

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
        return await self._save(requests.CheckpointRequest(**_arguments(locals())))

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
        return await self._save(requests.InsightRequest(**_arguments(locals())))

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
        return await self._save(requests.ContextRequest(**_arguments(locals())))

    async def save_many(
        self, records: Iterable[Mapping[str, Any]], *, progress: Progress | None = None
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
        resolve = _resolves_handles()
        for position, record in enumerate(records):
            if position % AT_ONCE == 0:
                # Yield to the event loop so that a large batch does not block other tasks.
                await asyncio.sleep(0)
            try:
                drafts.append(await self._draft(requests.request_of(record), resolve=resolve))
            except InvalidArgument as error:
                raise requests.within(f"records[{position}]", error) from error
            except MamaStructsError as error:
                error.add_note(f"in records[{position}]")
                raise
        return await self._save_all(drafts, progress)

    async def _save_all(
        self, drafts: Sequence[PreparedSave], progress: Progress | None = None, *, judged: bool = False
    ) -> Results[Memory]:
        """Save drafted memories; call the judge only if *judged* is true. See `save_many`."""
        # A draft may cite evidence by a hash whose text only another draft of the batch contains.
        texts = {digest: text for draft in drafts for digest, text in draft.contents.items()}
        trusts: dict[str, Origin] = {}
        for draft in drafts:
            for digest, trust in draft.trusts.items():
                trusts[digest] = least_trusted([trust, trusts.get(digest, trust)])
        drafts = [attrs.evolve(draft, contents=texts, trusts=trusts) for draft in drafts]
        with self._observed("create_memory", count=len(drafts)):
            await self._shared.read(lambda reader: saving.check_all_ends(reader, drafts))
            saved: Results[Memory] = Results()
            pace = saving.Pace()
            try:
                for start in range(0, len(drafts), _CHUNK):
                    record = self._shared.record
                    write = partial(self._shared.write, made_by=record)
                    prepared = await self._prepare(drafts[start : start + _CHUNK])
                    while prepared:
                        some = (
                            [await self._judged(prepared[0], record)]
                            if judged
                            else await write(partial(pace.save, prepared=prepared, linking=self._shared.linking))
                        )
                        saved += some
                        prepared = prepared[len(some) :]
                    if progress is not None:
                        progress(len(saved), len(drafts))
            except BaseException as error:
                error.add_note(f"{len(saved)} of {len(drafts)} memories were saved")
                raise
        return saved

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

        def plan(reader: Reader, node: int) -> list[Evidence]:
            (memory,) = reader.get([node])
            kept = [parse_kept(item) for item in memory.evidence]
            texts = reader.contents([one.digest for one in kept if one is not None])
            return [
                Evidence(source=item)
                if one is None
                else Evidence(source=one.source, digest=one.digest, text=texts[one.digest])
                for item, one in zip(memory.evidence, kept, strict=True)
            ]

        return await self._read(id, plan)

    async def delete(self, id: str) -> int:  # noqa: A002 - as above
        """
        Delete a memory with all its links, and return the number of deleted links.

        The texts of its evidence are deleted too, unless another memory cites them.
        From then on no reader sees any of it. If many memories link to it, later transactions remove the links from
        their rows; if this process is killed before, the next write does so.
        """
        memory_id = check_id("id", id)

        def plan(writer: Writer) -> int:
            writer.expect(lambda ahead: (ahead.find(memory_id), ahead.links(_NONE)))
            saving.found(writer, memory_id)
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
        progress: Progress | None = None,
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
            return await forgetting.forget(
                self._engine,
                request,
                await self._shared.read(request.candidates),
                self._shared.erase_texts,
                dry_run=_check.flag("dry_run", dry_run),
                progress=progress,
            )

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
        where = self._holding(check_filter(types=types, since=since, origins=origins, trust=trust))
        most = check_limit(limit)
        return await self._newest(where, most)

    async def _newest(self, where: Filter, most: int) -> Results[Memory]:
        return Results(await self._shared.read(lambda reader: reader.get(reader.window(where, limit=most))))

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
            return results.read_texts(reader, [link for own in reader.links_of_many(nodes, "out") for link in own])

        async for links in self._in_pages(None, read):
            for link in links:
                yield link

    async def _in_pages(
        self, where: Filter | None, plan: Callable[[Reader, list[int]], Sequence[T]]
    ) -> AsyncIterator[Sequence[T]]:
        """Run a plan on one page of matching memories after the other, and yield its results."""
        ids = await self._shared.read(lambda reader: reader.ids(np.sort(reader.window(where))))
        async for some in in_pages(self._shared.read, ids, plan):
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
        text = _check.text("id_or_text", id_or_text, most=self._settings.max_content)
        least = None if threshold is None else _check.share("threshold", threshold)
        most = check_limit(limit)
        record = self._shared.record
        calibration = await self._shared.embedding.calibration()
        own_id: str | None = nfc(text)
        pieces = await self._vectors_of(nfc(text))
        if pieces is None:
            own_id, pieces = None, (await self._shared.embedding.query(text))[np.newaxis]
        enough = calibration.threshold if least is None else least
        where = self._holding(check_filter(origins=origins, trust=trust))
        return await self._near(
            pieces, where=where, but=own_id, calibration=calibration, threshold=enough, limit=most, made_by=record
        )

    async def _vectors_of(self, memory_id: str) -> Vectors | None:
        """
        Return a memory's vectors, or None if the text is not an id of a memory.

        An unknown text with the form of an id raises `MemoryNotFound`.
        """

        def plan(reader: Reader) -> Vectors | None:
            node = saving.found(reader, memory_id) if is_id(memory_id) else reader.find(memory_id)
            return None if node is None else reader.vectors(node)

        return await self._shared.read(plan)

    async def _near(
        self,
        pieces: Vectors,
        *,
        where: Filter,
        but: str | None,
        calibration: Calibration,
        threshold: float,
        limit: int,
        made_by: EmbedderRecord,
    ) -> Results[Similar]:
        """Return the filtered memories nearest to any of the vectors, without the memory *but*."""

        def plan(reader: Reader) -> Results[Similar]:
            best: dict[int, float] = {}
            for piece in pieces:
                matches = reader.nearest(piece, limit + 1, where)
                for near, score in zip(matches.nodes.tolist(), matches.scores.tolist(), strict=True):
                    best[near] = max(score, best.get(near, -1.0))
            own = None if but is None else reader.find(but)
            if own is not None:
                best.pop(own, None)
            ranked = sorted(best.items(), key=lambda one: (-one[1], -one[0]))
            alike = [(near, float(calibration(score))) for near, score in ranked]
            kept = [(near, similarity) for near, similarity in alike if similarity >= threshold][:limit]
            memories = reader.get([near for near, _ in kept])
            return Results(Similar(memory=one, similarity=kept[place][1]) for place, one in enumerate(memories))

        return await self._shared.read(plan, made_by=made_by)

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
        where = self._holding(check_filter(types=types))
        where = attrs.evolve(where, mentions=frozenset({check_id("mention", mention)}))
        most = check_limit(limit)
        return await self._newest(where, most)

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
        superseded: Superseded = "behind",
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
            superseded = "equal" if _check.flag("history", history) else superseded
            warnings.warn("history=True is deprecated: say superseded='equal'", DeprecationWarning, stacklevel=2)
        record, reranking, most = self._shared.record, self._shared.reranking, check_limit(limit)
        room = None if max_chars is None else check_limit(max_chars, name="max_chars")
        with self._observed("search_memory") as told:
            request = await self._request(
                query,
                superseded=superseded,
                min_relevance=min_relevance,
                as_of=as_of,
                limit=most if reranking is None else max(most, reranking.at_most),
                types=types,
                topic=topic,
                since=since,
                until=until,
                mentions=mentions,
                origins=origins,
                trust=trust,
            )
            hits, precedence = await self._shared.read(lambda reader: search.hits(reader, request), made_by=record)
            if reranking is not None:
                hits = (await reranking.reranked(request.text, hits, precedence))[:most]
            hits = hits if room is None else results.within_chars(hits, room)
            told["memory__record__count"] = len(hits)
        return Results(hits)

    async def _worth_showing(
        self, query: str, *, limit: int, bounds: Bounds = SHOWN, **given: Any
    ) -> tuple[list[Hit], int]:
        """Return the hits that are relevant enough for a prompt, and the number of other hits."""
        found = await self.search(query, limit=limit, **given)
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
        superseded: Superseded = "behind",
        min_relevance: float | None = None,
        max_chars: int | None = None,
        as_of: datetime | None = None,
        limit: int = 10,
    ) -> Explanation:
        """
        Explain why a search returns a memory, or why it does not.

        Printing the result shows a small table.

        Args:
            query: The query.
            id: The id of the memory.
            types: As for `search`, like the rest.
            topic: As for `search`.
            since: As for `search`.
            until: As for `search`.
            mentions: As for `search`.
            origins: As for `search`.
            trust: As for `search`.
            superseded: As for `search`.
            min_relevance: As for `search`.
            max_chars: As for `search`.
            as_of: As for `search`.
            limit: As for `search`.

        """
        given = _arguments(locals())
        memory_id, room = given.pop("id"), given.pop("max_chars")
        self._shared.check()
        room = None if room is None else check_limit(room, name="max_chars")
        request = await self._request(**given)
        return await self._read(memory_id, lambda reader, node: explained(reader, request, node, room))

    async def _request(
        self,
        query: str,
        *,
        superseded: Superseded,
        min_relevance: float | None,
        as_of: datetime | None,
        limit: int,
        **where: Any,
    ) -> SearchRequest:
        """Validate the arguments of a search and return the search request."""
        filters, most = check_filter(**where), check_limit(limit)
        text = _check.text("query", query, most=_MAX_QUERY)
        stands = _check.choice("superseded", superseded, search.SUPERSEDED)
        moment = None if as_of is None else _check.moment("as_of", as_of)
        least = 0.0 if min_relevance is None else _check.share("min_relevance", min_relevance)
        return SearchRequest(
            text=text,
            vector=await self._question(text),
            where=filters,
            superseded=stands,
            min_relevance=least,
            as_of=moment,
            now=self._shared.now,
            limit=most,
            calibration=self.embedder.calibration,
        )

    async def _question(self, text: str) -> NDArray[np.float32]:
        """Return the embedding of a query text."""
        return await self._shared.embedding.query(text)

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
        now_ms = milliseconds(self._shared.now)

        def plan(reader: Reader) -> Chain:
            found = graph.by_topic(reader, named, now_ms=now_ms, types=types)
            return results.chain_of(reader, found.chain, around=results.reached_along(reader, found.around))

        return await self._shared.read(plan)

    async def evolution(self, id: str) -> Chain:  # noqa: A002 - as above
        """Return the whole chain of decisions of a memory, newest first, with its forks."""
        return await self._read(
            id,
            lambda reader, node: results.chain_of(reader, graph.evolution(reader, node)),
            ahead=graph.chain_ahead,
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
        result = _check.choice("outcome", outcome, Outcome)
        creator = _check.choice("created_by", created_by, CREATORS)
        why = None if reason is None else _check.text("reason", reason, most=self._settings.max_content)
        if result is Outcome.FAILED and why is None:
            raise InvalidArgument(
                "a FAILED outcome needs a reason", hint="say why it failed: that is what is searched for later"
            )
        moment = self._shared.moment("at", at)
        record = self._shared.record
        before = await self._shared.read(lambda reader: saving.decision(reader, memory_id))
        prepared = None
        if why is not None:
            asked = requests.ContextRequest(
                content=why,
                topic=before.topic,
                source=OUTCOME_OF,
                created_at=moment,
                created_by=creator,
                origin=origin,
            )
            (prepared,) = await self._prepare([await self._draft(asked)])
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
            inserted=inserted_texts(),
            at=now,
            most=self._settings.max_content,
        )
        with self._observed("update_memory", count=1):
            memory, is_written = await self._shared.read(asked.made), False
            while not is_written:
                text = embedded_text(memory)
                (vectors,) = await self._shared.embedding.documents([text])
                prepared = attrs.evolve(memory, mentions=tuple(self._shared.find_mentions(text)))
                # Another writer may have corrected the memory in the meantime; then the new version is embedded again.
                memory, is_written = await self._shared.write(
                    partial(asked.write, prepared=prepared, vectors=vectors), made_by=record
                )
        return memory

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

        Args:
            id: The id of the superseded decision.
            decision: The new decision.
            reasoning: The reasons.
            topic: None for the topic of the superseded decision.
            confidence: As for `save_decision`, like the rest.
            implements: As for `save_decision`.
            links: As for `save_decision`.
            evidence: As for `save_decision`.
            created_at: As for `save_decision`.
            created_by: As for `save_decision`.
            origin: As for `save_decision`.
            valid_until: As for `save_decision`.

        Raises:
            InvalidArgument: The memory is not a decision, or another argument is invalid; nothing was saved.

        """
        self._shared.check()
        given = _arguments(locals())
        supersedes = given["supersedes"] = check_id("id", given.pop("id"))
        before = await self._shared.read(lambda reader: saving.decision(reader, supersedes))
        if topic is None:
            given["topic"] = before.topic or "untitled"
        return await self._save(requests.DecisionRequest(**given))

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
            to_id=to_id,
            relationship=relationship,
            confidence=confidence,
            reason=reason,
            tags=tags,  # type: ignore[arg-type]  # converted to a tuple by the class
        )
        creator = _check.choice("created_by", created_by, CREATORS)
        moment = self._shared.moment("created_at", created_at)
        kinds = await saving.link_types(self._shared.embedding, [asked.relationship])
        inserted = None if asked.reason is None else inserted_texts()
        trust = ORIGINS[0] if inserted is None else inserted.trust
        return await self._shared.write(
            lambda writer: saving.add_link(
                writer,
                source,
                asked,
                kinds[asked.relationship],
                created_by=creator,
                now=moment,
                reason_trust=trust,
            )
        )

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
            lambda reader, node: Results(results.read_texts(reader, reader.read_links(node))),
            ahead=lambda ahead: ahead.links_of_many(_NONE),
        )

    async def _beside(self, ids: Iterable[str]) -> dict[str, graph.Beside]:
        """Return the annotations that tools show next to memories, by id. Skip unknown ids."""
        names = list(ids)
        found = await self._each(lambda reader: graph.beside(reader, names))
        return {name: one for some in reversed(found) for name, one in some.items()}

    async def relationships(self) -> list[RelationshipWord]:
        """Return all relationship words, most frequent first, each with its near synonyms."""
        counts = await self._shared.read(lambda reader: reader.relationships())
        words = sorted(counts, key=lambda word: (-counts[word], word))
        if not words:
            return []
        vectors = np.stack([pieces[0] for pieces in await self._shared.embedding.documents([*map(normalised, words)])])
        near = near_synonyms(words, vectors)
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
        start = check_id("start_id", start_id)
        types = None if link_types is None else requests.check_link_types(link_types)
        depth = check_limit(max_depth, name="max_depth")
        _check.choice("direction", direction, _DIRECTIONS)
        least = _check.share("min_strength", min_strength)
        most = check_limit(limit)
        now_ms = milliseconds(self._shared.now)
        how: dict[str, Any] = {"types": types, "max_depth": depth, "direction": direction}
        how.update(min_strength=least, limit=most)
        key = (start, *how.values())

        def plan(reader: Reader) -> Results[Reached]:
            if key not in self._shared.cache:
                reader.expect(lambda ahead: (ahead.find(start), ahead.links(_NONE, direction, types)), around=depth)
            node = saving.found(reader, start)
            cached = self._shared.cache.get(key, reader.change, reader.touched_since)
            if cached is not None:
                return Results(cached)
            with graph.uncollected():
                steps = graph.traverse(reader, node, now_ms=now_ms, **how)
                reached = list(results.reached_along(reader, steps))
            self._shared.cache.put(key, reader.change, graph.read_by(node, steps), reached)
            return Results(reached)

        return await self._shared.read(plan)

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
        now_ms = milliseconds(self._shared.now)

        def plan(reader: Reader, node: int) -> Surroundings:
            (memory,) = reader.get([node])
            steps = graph.traverse(reader, node, now_ms=now_ms, types=types, max_depth=graph.CONTEXT_DEPTH)
            around = results.reached_along(reader, steps)
            return Surroundings(
                memory=memory,
                chain=results.chain_of(reader, graph.evolution(reader, node)),
                around=around,
                links=with_texts(reader.read_links(node), [memory, *(one.memory for one in around)]),
                links_around=with_texts(
                    results.links_among(reader, np.array([step.node for step in steps], np.int64), types),
                    [one.memory for one in around],
                ),
            )

        return await self._read(
            id,
            plan,
            ahead=lambda ahead: (ahead.links(_NONE, "both", types), ahead.links_of_many(_NONE)),
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
        self._shared.check()
        moment = self._shared.moment("now", now)
        return await maintenance.prune(self._engine, moment, self._settings)

    async def maintain(self) -> Maintained:
        """
        Prune once a week. Calls in between cost little.

        Ages are computed from the time of the previous maintenance, so that one opening with a wrong clock removes
        nothing. A store that is opened once in three months therefore prunes an old link one opening later.
        """
        self._shared.check()
        await forgetting.resume(self._engine, self._shared.erase_texts)
        every = int(self._settings.prune_every * 1000)
        as_of = await self._engine.begin_maintenance(milliseconds(self._shared.now), every)
        if as_of is None:
            return Maintained()
        pruned = await maintenance.prune(self._engine, from_milliseconds(as_of), self._settings)
        return Maintained(pruned=pruned, due=True)

    async def check(self, *, progress: Progress | None = None) -> list[Finding]:
        """
        Compare every view with the journal and check all links, without changing anything.

        Args:
            progress: Called with the number of checked memories and their total number.

        """
        self._shared.check()
        return [*await self._engine.check(progress), *await self._engine.read(record_plans.unreadable)]

    async def rebuild(self, *, progress: Progress | None = None) -> list[str]:
        """
        Rebuild all indexes from the journal; meanwhile searches use the old ones.

        The current journal is accepted as complete: `check` no longer reports that it lost changes.

        Args:
            progress: Called with the number of indexed memories and their total number.

        Returns:
            A line for each damaged row. Damaged rows are excluded from now on.

        """
        self._shared.check()
        return await self._engine.rebuild(progress)

    async def reembed(self, embedder: Embedder, *, progress: Progress | None = None) -> int:
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
        self._shared.check()
        service = EmbeddingService(embedder, cache_entries=self._settings.embedding_cache)
        self._shared.next_record = record_of(embedder)
        try:
            count = await maintenance.reembed(self._engine, service, progress)
        except BaseException:
            await service.close()
            raise
        finally:
            self._shared.next_record = None
        await self._shared.take_over(service)
        return count

    async def export_jsonl(self, path: str | Path, *, progress: Progress | None = None) -> int:
        """
        Export all memories with links and vectors to a file, and return their number.

        The format is JSON Lines: one JSON object per line.
        The file appears under its name only when it is complete; memories that are saved meanwhile may or may not be in
        it.

        Args:
            path: The file; an existing file is replaced.
            progress: Called with the number of written memories and their total number.

        """
        self._shared.check()
        check_progress(progress)
        target = requests.check_file(path)
        return await transfer.export_jsonl(self._engine, target, progress)

    async def import_jsonl(self, path: str | Path, *, progress: Progress | None = None) -> Imported:
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
        self._shared.check()
        check_progress(progress)
        source = requests.check_file(path)
        return await transfer.import_jsonl(self._engine, self._shared.embedding, source, progress)

    async def stats(self) -> dict[str, Any]:
        """Return current statistics: memories by type, links, vectors, the traversal cache."""
        await self._shared.read(lambda reader: reader.change)
        return self.figures()

    def figures(self) -> dict[str, Any]:
        """Return the statistics as of the last call, without reading the disk; see `stats`."""
        reranking, judging = self._shared.reranking, self._shared.judging
        return Figures(
            namespace=self.namespace,
            embedder=self.embedder.name,
            dimensions=self.embedder.dimensions,
            **self._engine.figures(),
            embedding=attrs.asdict(self._shared.embedding.stats),
            **({} if reranking is None else {"reranking": attrs.asdict(reranking.stats)}),
            **({} if judging is None else {"judging": attrs.asdict(judging.stats)}),
            traversal_cache=dict(self._shared.cache.statistics),
        )

    async def close(self) -> None:
        """Reject further calls and stop embedder and reranker. The session calls this method."""
        await self._shared.close()

    async def _each(self, plan: Callable[[Reader], T]) -> list[T]:
        """Run a reading plan in each namespace and return the results, own namespace first."""
        return [await self._shared.read(plan)]

    async def _read(
        self,
        memory_id: str,
        plan: Callable[[Reader, int], T],
        *,
        ahead: Callable[[Reader], object] | None = None,
        around: int | None = 0,
    ) -> T:
        """Run a reading plan on one memory. *ahead* declares its reads for prefetching."""
        checked = check_id("id", memory_id)

        def found(reader: Reader) -> T:
            if ahead is not None:
                reader.expect(lambda asking: (asking.find(checked), ahead(asking)), around=around)
            return plan(reader, saving.found(reader, checked))

        return await self._shared.read(found)

    def _holding(self, where: Filter | None = None) -> Filter:
        """Restrict a filter to memories that have not expired by now."""
        return attrs.evolve(where or Filter(), valid_at=self._shared.now)

    async def _save(self, request: requests.SaveRequest) -> Memory:
        self._shared.check()
        record = self._shared.record
        with self._observed("create_memory", count=1):
            (prepared,) = await self._prepare([await self._draft(request, resolve=_resolves_handles())])
            return await self._judged(prepared, record)

    async def _judged(self, prepared: PreparedSave, made_by: EmbedderRecord) -> Memory:
        """Save a memory, with the decision of the session's judge if there is a judge."""
        shared = self._shared
        read, write = partial(shared.read, made_by=made_by), partial(shared.write, made_by=made_by)
        if shared.judging is not None:
            return await shared.judging.save(prepared, shared.linking, read=read, write=write)
        return await write(lambda writer: saving.save(writer, prepared, shared.linking))

    def _observed(self, operation: str, *, count: int | None = None) -> AbstractContextManager[dict[str, str | int]]:
        """Trace an operation on the given number of memories for telemetry."""
        about: dict[str, str | int] = {} if count is None else {"memory__record__count": count}
        return observed(operation, memory__store__id=self.namespace, **about)

    async def _draft(self, request: requests.SaveRequest, *, resolve: bool = False) -> PreparedSave:
        return await saving.draft(
            request,
            self.namespace,
            self._find_content,
            now=self._shared.now,
            settings=self._settings,
            resolve=resolve,
        )

    async def _prepare(self, drafts: Sequence[PreparedSave]) -> list[PreparedSave]:
        return await saving.prepare(self._shared.embedding, drafts, self._shared.find_mentions)


def _resolves_handles() -> bool:
    """
    Return False in a tool call, where handles are already replaced.

    Scanning inserted text again would replace handles that the text only quotes.
    """
    return not (from_model.get() or is_tool_call())


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the method's arguments for a request.

    `tests/memory/types/test_requests.py` checks that both have the same names.
    """
    return {name: value for name, value in given.items() if name != "self"}
