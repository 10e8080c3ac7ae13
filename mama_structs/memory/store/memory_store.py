"""Memories for agents: saved, linked, found, and followed through time."""

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
    The memories of one namespace; a session's are `Session.memories`.

    Saving returns when what was saved is on disk, and every process that has the directory open sees it from then on.

    Args:
        shared: What it shares with every other view of these memories.
        find_content: Resolves a handle, see `resolving`.

    Raises:
        InvalidArgument: An argument breaks its rule; of every method, before anything is done.
        MemoryNotFound: Nothing has an id that was given; nothing was changed.
        EmbeddingFailed: The embedder failed at a text that was given; nothing was changed.
        StoreError: The store cannot be read or written; what was not acknowledged is not there.
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
        """Whose memories these are; no call sees those of another namespace, unless `reads` names it."""
        return self._engine.namespace

    @property
    def reads(self) -> tuple[str, ...]:
        """Further namespaces, which are searched and never written; see `Session.open`."""
        return ()

    @property
    def plot(self) -> MemoryPlots:
        """Pictures of these memories (extra ``notebook``)."""
        return MemoryPlots(self)

    @property
    def embedder(self) -> Embedder:
        """What turns texts into vectors."""
        return self._shared.embedding.embedder

    @property
    def reranker(self) -> Reranker | None:
        """What puts the best hits of a search in order, or None."""
        return None if self._shared.reranking is None else self._shared.reranking.reranker

    @property
    def records(self) -> RecordStore:
        """What hosts keep beside these memories, see `mama_structs.records`."""
        return RecordStore(self._shared)

    def resolving(self, find_content: FindContent) -> MemoryStore:
        """
        Return the same memories for a caller with other handles, such as a fork of the session.

        Everything else is shared: what one saves the other finds, and closing one closes both.

        Args:
            find_content: Called with an item of evidence, or with a content that is exactly a handle. It returns the
                versioned handle, its text and the text's provenance (without one, the text counts as from outside), or
                None if the item is no handle, and raises `HandleNotFound` for an unknown handle.

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
            topic: What it is about, in a word or two; decisions of one topic are found together.
            decision: What was decided; a text that is exactly a handle (``ref:plan``, ``fd:1``) is replaced by the
                text of the handle, unless a backslash precedes it.
            reasoning: Why; a handle is replaced as in *decision*.
            confidence: How sure its author is, 0 to 1.
            supersedes: The id of the decision whose place it takes.
            implements: Ids of memories that it carries out.
            links: Further links: mappings with ``to_id``, ``relationship`` (any word), and if wanted ``confidence``
                (0.8), ``reason`` and ``tags``.
            evidence: What it rests on: ids, addresses, any words, or handles (``ref:plan``, ``fd:1``), whose text is
                kept with the memory, see `evidence_of`.
            on_duplicate: What to do if a memory with the same words, topic and origin exists: ``"keep"`` saves this
                one, too; ``"merge"`` saves nothing, returns the existing one and adds the time to its `Memory.repeats`.
                ``"merge"`` saves all the same if *supersedes*, *implements*, *links*, *evidence* or *created_at* is
                given, or if the existing one failed, was superseded, or was followed by another decision of its topic.
            created_at: When it was taken (with a time zone); None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.
            origin: The author of the text: ``"user"``, ``"model"``, ``"tool"`` or ``"outside"``; None for the model
                if it is created by ``"llm"``, else for the user. The text of a handle lowers origin and trust to those
                of the handle; evidence lowers the trust.
            valid_until: When it stops to hold (with a time zone); None for never.

        Raises:
            InvalidArgument: An argument breaks its rule, or a handle's text is too long; nothing was saved.
            HandleNotFound: A handle in the text or the evidence does not exist; nothing was saved.
            MemoryNotFound: It links to a memory that does not exist; nothing was saved.
            EmbeddingFailed: The embedder failed; nothing was saved.
            StoreError: It cannot be written; nothing was saved.

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
        Save where the work stands.

        Args:
            summary: What was done and what holds, or a handle as in `save_decision`.
            open_files: Paths that are being worked on.
            next_steps: What is to be done next.
            implements: Ids of the decisions that it carries out.
            created_at: When that was (with a time zone); None for now.
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
        Save something learnt.

        Args:
            content: What was learnt, or a handle as in `save_decision`.
            category: What kind of insight it is, in the host's words.
            tags: Words to group insights by.
            source: Where it comes from.
            links: As for `save_decision`.
            on_duplicate: As for `save_decision`.
            created_at: When that was (with a time zone); None for now.
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
        Save something worth knowing that is neither decision nor insight.

        Args:
            content: What is worth knowing, or a handle as in `save_decision`.
            topic: What it is about.
            source: Where it comes from.
            on_duplicate: As for `save_decision`.
            created_at: When that was (with a time zone); None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.
            origin: As for `save_decision`.
            valid_until: As for `save_decision`.

        """
        return await self._save(requests.ContextRequest(**_arguments(locals())))

    async def save_many(
        self, records: Iterable[Mapping[str, Any]], *, progress: Progress | None = None
    ) -> Results[Memory]:
        """
        Save several memories in order; many share a transaction.

        Args:
            records: Mappings with ``type`` (``"decision"`` and so on) and the arguments of that type's method.
            progress: Called with how many are saved, and of how many.

        Returns:
            The memories, in the order of the records.

        Raises:
            InvalidArgument: A record breaks a rule; nothing was saved.
            MemoryNotFound: A record links to a memory that does not exist; a note says which; nothing was saved.
            HandleNotFound: A handle in a record's text or evidence does not exist; likewise.
            EmbeddingFailed, StoreError: As for `save_decision`.
                The transactions before are kept; a note says how many memories they saved.

        """
        self._shared.check()
        check_progress(progress)
        if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
            raise InvalidArgument(f"records must be a list of mappings, got {type(records).__name__}")
        drafts: list[PreparedSave] = []
        resolve = _resolves_handles()
        for position, record in enumerate(records):
            if position % AT_ONCE == 0:
                # Others have their turn in the loop.
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
        """Save what was drafted, asking the judge only where it is to be *judged*; see `save_many`."""
        # One may name by its hash what another one keeps.
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

    async def get(self, id: str) -> Memory:  # noqa: A002 - the word that everybody expects
        """
        Return a memory.

        Raises:
            StoreDamaged: What is on disk is not what was saved.

        """
        return await self._read(id, lambda reader, node: reader.get([node])[0])

    async def evidence_of(self, id: str) -> list[Evidence]:  # noqa: A002 - as above
        """
        Return a memory's evidence in order, with the texts of its handles as they were when it was saved.

        Raises:
            StoreDamaged: A text is gone, or not what was kept.

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
        Delete a memory with all its links, and return how many links that were.

        A text that it kept as evidence goes with it, unless another memory names that, too.
        From then on nobody sees any of it. If many others link to it, further transactions take the links out of their
        rows; if this process is killed, the next write does so.

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
        Delete memories for good: nothing of their texts stays in any file of the store.

        Of several filters all must hold; without any it is an error. Only this namespace's own memories go.
        It also deletes the reasons of their outcomes, texts that only they kept as evidence, the refs and descriptors
        that are these texts, and their ids where other memories name them.
        The whole journal is written anew: meanwhile searches go on and saves wait.
        If somebody still holds some of it, such as a process that reads for long, the answer says so, and it is deleted
        at the next chance. If this process is killed half-way, the next opening deletes the rest.

        Args:
            ids: Ids of memories.
            about: A mention or a topic, exactly; no search.
            source: A source of insights or contexts, or an item of evidence; a handle with its version or without.
            before: Only what was created before this time (with a time zone).
            dry_run: Whether only to say how much that would be.
            progress: Called with how many memories are deleted, and of how many.

        Raises:
            InvalidArgument: No filter was given, or one breaks its rule; nothing was changed.
            MemoryNotFound: Nothing has an id that was given; nothing was changed.

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
        Return how many memories there are.

        Args:
            types: Only of these types.

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
            limit: Memories at the most.
            types: Only of these types.
            since: Only from this time on (with a time zone).
            origins: Only of these origins, as for `save_decision`.
            trust: Only those at least as trusted as this origin, see `Memory`.

        """
        where = self._holding(check_filter(types=types, since=since, origins=origins, trust=trust))
        most = check_limit(limit)
        return await self._newest(where, most)

    async def _newest(self, where: Filter, most: int) -> Results[Memory]:
        return Results(await self._shared.read(lambda reader: reader.get(reader.window(where, limit=most))))

    async def all(self, *, types: Iterable[MemoryType | str] | str | None = None) -> AsyncIterator[Memory]:
        """
        Go through all memories in the order in which they were saved, those that have ended included.

        What is saved meanwhile is not among them, nor what is deleted before its turn.

        Args:
            types: Only of these types.

        """
        async for memories in self._in_pages(check_filter(types=types), lambda reader, nodes: reader.get(nodes)):
            for memory in memories:
                yield memory

    async def links(self) -> AsyncIterator[Link]:
        """Go through all links by the memories at which they begin, in the order of `all`; they have their `texts`."""

        def read(reader: Reader, nodes: list[int]) -> Sequence[Link]:
            return results.read_texts(reader, [link for own in reader.links_of_many(nodes, "out") for link in own])

        async for links in self._in_pages(None, read):
            for link in links:
                yield link

    async def _in_pages(
        self, where: Filter | None, plan: Callable[[Reader, list[int]], Sequence[T]]
    ) -> AsyncIterator[Sequence[T]]:
        """Give what a plan gives for some memories after the others."""
        ids = await self._shared.read(lambda reader: reader.ids(np.sort(reader.window(where))))
        async for some in in_pages(self._shared.read, ids, plan):
            yield some

    async def latest_checkpoint(self) -> Memory | None:
        """Return the newest checkpoint, None where there is none."""
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
            threshold: The least similarity, 0 to 1; None for what the embedder calls similar.
            origins: As for `recent`.
            trust: As for `recent`.
            limit: Memories at the most.

        Raises:
            MemoryNotFound: It has the form of an id, and there is none with it.

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
        """Return a memory's vectors; None for what has not even the form of an id, and is the id of none."""

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
        """Return the memories nearest to any of some vectors that pass, without one of them."""

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
        Return the newest memories whose text names an id, newest first.

        Args:
            mention: The id of an entity, such as ``2-1``.
            limit: Memories at the most.
            types: Only of these types.

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

        Words of time in the question ("last week", "지난주") favour that time.
        Returns *limit* memories if at least so many pass the filters, unless *min_relevance* or *max_chars* leaves
        some out; `Hit.relevance` says how well each answers.
        A session's reranker puts the best in its order, where it answers within ``settings.memory.rerank_seconds``.

        Args:
            query: The question, in any words.
            types: Only of these types.
            topic: Only of this topic.
            since: Only from this time on (with a time zone).
            until: Only before this time.
            mentions: Only those that name all of these ids.
            origins: As for `recent`.
            trust: As for `recent`.
            superseded: Where superseded memories stand: ``"behind"`` what superseded them (as others do where the
                question asks for what was), ``"equal"`` to others, or ``"drop"`` for nowhere.
            min_relevance: Only hits of so much relevance or more, 0 to 1; None for all.
            max_chars: The characters of all hits' content and reasoning together; a hit that does not fit any more is
                left out, and none is cut. None for any number.
            history: Deprecated: True means ``superseded="equal"``.
            as_of: Search as if it were this time: later memories, outcomes and supersessions are not there.
            limit: Hits at the most.

        Raises:
            RerankingFailed: The reranker can never work as it is; where it fails once, or takes too long, the search
                goes on without.

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
        """Return those of a search's hits that belong in a prompt, and how many more it has."""
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
        Say why a memory came up in a search, or did not; print it for a small table.

        Args:
            query: The question.
            id: The memory's.
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
        """Return a search, having checked its arguments."""
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
        """Return what a search compares memories with."""
        return await self._shared.embedding.query(text)

    async def warm_up(self) -> None:
        """
        Load the embedder, the views and the reranker, so that the first search is as quick as others.

        Raises:
            RerankingFailed: As for `search`.

        """
        await self.search("warm up", limit=1)

    # The graph

    async def by_topic(self, topic: str, *, link_types: Iterable[LinkType | str] | None = None) -> Chain:
        """
        Return all memories of a topic with how they evolved, newest first; an unknown topic gives an empty chain.

        Args:
            topic: Exactly as it was saved.
            link_types: As for `traverse`, to what is around the chain.

        """
        named = requests.check_topic(topic)
        types = None if link_types is None else requests.check_link_types(link_types)
        now_ms = milliseconds(self._shared.now)

        def plan(reader: Reader) -> Chain:
            found = graph.by_topic(reader, named, now_ms=now_ms, types=types)
            return results.chain_of(reader, found.chain, around=results.reached_along(reader, found.around))

        return await self._shared.read(plan)

    async def evolution(self, id: str) -> Chain:  # noqa: A002 - as above
        """Return the whole chain of decisions that a memory is part of, newest first, with its forks."""
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
            InvalidArgument: It is no decision, or another argument breaks its rule; nothing was changed.

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
        Change the text of a memory from now on, and return the memory.

        It keeps its id, its links and its place in time, and is found by what it says now.
        What it said before is in its `former`, and is what a search with ``as_of`` an earlier time shows.
        Where something else was decided, `supersede` it: a correction mends what was never meant so.

        Args:
            id: The memory's.
            content: The decision, summary, insight or context; None where that stays.
            reasoning: A decision's reasoning; None where that stays.
            reason: Why it is corrected.
            origin: The author of the correction; None for the user. The memory, and what is based on it, is trusted no
                more than that.

        Raises:
            InvalidArgument: It says just that already, *reasoning* is given for another type than a decision, or
                another argument breaks its rule; nothing was changed.

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
                # Somebody else may have corrected it meanwhile.
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
        Save a decision that takes the place of another one, and return it.

        Args:
            id: The decision whose place it takes.
            decision: What was decided.
            reasoning: Why.
            topic: None for the topic of the other one.
            confidence: As for `save_decision`, like the rest.
            implements: As for `save_decision`.
            links: As for `save_decision`.
            evidence: As for `save_decision`.
            created_at: As for `save_decision`.
            created_by: As for `save_decision`.
            origin: As for `save_decision`.
            valid_until: As for `save_decision`.

        Raises:
            InvalidArgument: It is no decision, or another argument breaks its rule; nothing was saved.

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

        The same word between the same two gives the link that is there, with the higher confidence of the two;
        the automatic links between them are taken over.

        Args:
            from_id: The memory that acts, normally the newer one.
            to_id: The memory acted on.
            relationship: Any word; it decides the link's type, see `LinkType`.
            confidence: 0 to 1.
            reason: Why they are linked.
            tags: Words to group links by.
            created_at: When that was (with a time zone); None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.

        Raises:
            InvalidArgument: They are one and the same, or another argument breaks its rule.

        """
        self._shared.check()
        source = check_id("from_id", from_id)
        asked = requests.LinkRequest(
            to_id=to_id,
            relationship=relationship,
            confidence=confidence,
            reason=reason,
            tags=tags,  # type: ignore[arg-type]  # made a tuple there
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
            LinkNotFound: There is none with this id.

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
        """Return what the tools show beside memories, by id; those that are not there are left out."""
        names = list(ids)
        found = await self._each(lambda reader: graph.beside(reader, names))
        return {name: one for some in reversed(found) for name, one in some.items()}

    async def relationships(self) -> list[RelationshipWord]:
        """Return the words that links were given, the most frequent first, with those that mean nearly the same."""
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
        Follow the links of a memory and return what they reach: nearest first, and strongest first at one distance.

        Args:
            start_id: Where to begin; it is not part of the answer.
            link_types: The types of links to follow, None for all.
            max_depth: Links on a path at the most; more than 5 counts as 5.
            direction: ``"out"`` along links (to older memories), ``"in"`` against them, or ``"both"``.
            min_strength: A path whose strength is below this is not followed.
            limit: Memories at the most.

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
        Return the memories that are linked to one directly, strongest first.

        Args:
            id: The memory's.
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
        Return a memory with how it evolved and what is around it.

        Args:
            id: The memory's.
            link_types: As for `traverse`, to what is around it.

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

    # Care

    async def prune(self, *, now: datetime | None = None) -> int:
        """
        Remove automatic links that are weak, and automatic temporal ones that are old; explicit links stay.

        Args:
            now: What ages are counted from (with a time zone); None for the present.

        Returns:
            How many links were removed.

        """
        self._shared.check()
        moment = self._shared.moment("now", now)
        return await maintenance.prune(self._engine, moment, self._settings)

    async def maintain(self) -> Maintained:
        """
        Prune once a week; cheap at other times.

        Ages are counted from the time before, so that one opening with a wrong clock removes nothing.
        A store that is opened once in three months prunes an old link one opening later.
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
        Compare every view with the journal and check both ends of every link, without changing anything.

        Args:
            progress: Called with how many memories were looked at, and of how many.

        """
        self._shared.check()
        return [*await self._engine.check(progress), *await self._engine.read(record_plans.unreadable)]

    async def rebuild(self, *, progress: Progress | None = None) -> list[str]:
        """
        Make all indexes again from the journal; meanwhile searches use the old ones.

        The journal counts as it is: `check` says no more that it went back.

        Args:
            progress: Called with how many memories are indexed, and of how many.

        Returns:
            A line for each damaged row, which is left out from now on.

        """
        self._shared.check()
        return await self._engine.rebuild(progress)

    async def reembed(self, embedder: Embedder, *, progress: Progress | None = None) -> int:
        """
        Change to another embedder: give every memory new vectors, going on where an earlier call was interrupted.

        Until the last memory has its new vectors the old ones serve.
        Other processes that have the store open are refused from then on, until they open it with that embedder.

        Args:
            embedder: The other embedder.
            progress: Called with how many memories are done, and of how many.

        Returns:
            How many memories were embedded now.

        Raises:
            EmbeddingFailed: The embedder failed; what holds is as it was.

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
        Write all memories with their links and vectors to a file, one JSON object a line, and return how many.

        The file appears under its name when it is whole; what is saved meanwhile may or may not be in it.

        Args:
            path: The file; one that exists is replaced.
            progress: Called with how many memories are written, and of how many.

        """
        self._shared.check()
        check_progress(progress)
        target = requests.check_file(path)
        return await transfer.export_jsonl(self._engine, target, progress)

    async def import_jsonl(self, path: str | Path, *, progress: Progress | None = None) -> Imported:
        """
        Add the memories of a file that `export_jsonl` wrote, with their ids, times and links.

        What is there already, the same, is left as it is: an interrupted import is simply repeated.

        Args:
            path: The file.
            progress: Called with how many lines were taken, and of how many.

        Raises:
            InvalidArgument: A line is not in the form of an export, or a memory of that id is there with other
                content; the message names the line. Nothing was imported.
            StoreError: The store cannot be written; what was imported before stays.

        """
        self._shared.check()
        check_progress(progress)
        source = requests.check_file(path)
        return await transfer.import_jsonl(self._engine, self._shared.embedding, source, progress)

    async def stats(self) -> dict[str, Any]:
        """Return figures about the store as it is now: memories by type, links, vectors, the traversal cache."""
        await self._shared.read(lambda reader: reader.change)
        return self.figures()

    def figures(self) -> dict[str, Any]:
        """Return the figures of `stats` as of the last call, without reading the disk."""
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
        """Refuse further calls, and end the work of embedder and reranker; the session calls this."""
        await self._shared.close()

    async def _each(self, plan: Callable[[Reader], T]) -> list[T]:
        """Run a plan that reads, in each namespace where there are several, the own one first."""
        return [await self._shared.read(plan)]

    async def _read(
        self,
        memory_id: str,
        plan: Callable[[Reader, int], T],
        *,
        ahead: Callable[[Reader], object] | None = None,
        around: int | None = 0,
    ) -> T:
        """Run a plan that reads what is known of one memory, and says *ahead* what it will ask of that."""
        checked = check_id("id", memory_id)

        def found(reader: Reader) -> T:
            if ahead is not None:
                reader.expect(lambda asking: (asking.find(checked), ahead(asking)), around=around)
            return plan(reader, saving.found(reader, checked))

        return await self._shared.read(found)

    def _holding(self, where: Filter | None = None) -> Filter:
        """Narrow a filter to what has not ended by now."""
        return attrs.evolve(where or Filter(), valid_at=self._shared.now)

    async def _save(self, request: requests.SaveRequest) -> Memory:
        self._shared.check()
        record = self._shared.record
        with self._observed("create_memory", count=1):
            (prepared,) = await self._prepare([await self._draft(request, resolve=_resolves_handles())])
            return await self._judged(prepared, record)

    async def _judged(self, prepared: PreparedSave, made_by: EmbedderRecord) -> Memory:
        """Save a memory as the session's judge says, if there is one."""
        shared = self._shared
        read, write = partial(shared.read, made_by=made_by), partial(shared.write, made_by=made_by)
        if shared.judging is not None:
            return await shared.judging.save(prepared, shared.linking, read=read, write=write)
        return await write(lambda writer: saving.save(writer, prepared, shared.linking))

    def _observed(self, operation: str, *, count: int | None = None) -> AbstractContextManager[dict[str, str | int]]:
        """Let whoever watches know of some work on so many memories."""
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
    """Return False in a tool call: a model's handles are already replaced, and inserted text is not scanned again."""
    return not (from_model.get() or is_tool_call())


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method, which are those of a request: `tests/memory/test_requests.py` compares them."""
    return {name: value for name, value in given.items() if name != "self"}
