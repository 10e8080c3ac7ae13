"""The memories of one namespace: saving, linking, changes and maintenance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import is_model_call
from mama_structs.errors import InvalidArgument, LinkNotFound, MamaStructsError
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.graph.results import Forgotten, Imported, OutcomeWord, Results
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.save.save_plan import RECORDS_PER_YIELD, FindContent, PreparedSave
from mama_structs.memory.save.text_update import Correction
from mama_structs.memory.store import maintenance, writes
from mama_structs.memory.store.memory_reader import NO_NODES, MemoryReader
from mama_structs.memory.types import requests
from mama_structs.memory.types.engine import ProgressCallback, Writer
from mama_structs.memory.types.model import (
    CREATORS,
    OUTCOME_OF_WORD,
    CreatedBy,
    Link,
    Maintained,
    Memory,
    Outcome,
    OutcomeChange,
)
from mama_structs.memory.types.requests import OnDuplicate, check_id, check_progress
from mama_structs.memory.upkeep import erasure as forgetting
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.provenance import Origin, get_inserted_provenance, is_tool_call
from mama_structs.storage.sqlite_errors import Finding


class MemoryStore(MemoryReader):
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
        super().__init__(shared)
        self._find_content = find_content

    def __repr__(self) -> str:
        return f"<MemoryStore {self.namespace!r}, {self.embedder.name}{', closed' if self._shared.closed else ''}>"

    @property
    def records(self) -> RecordStore:
        """The records that hosts store next to these memories, see `mama_structs.records`."""
        return RecordStore(self._shared)

    def resolving(self, find_content: FindContent) -> MemoryStore:
        """
        Return a store of the same memories that uses another handle resolver, for a fork.

        Both stores share everything else: each finds the memories of the other one, and closing one closes both.

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
        with self._instrument("create_memory", count=len(drafts)):
            return await writes.save_all(self._shared, drafts, progress, judged=judged)

    # Changes

    async def set_outcome(
        self,
        id: str,  # noqa: A002 - the conventional name
        outcome: OutcomeWord,
        *,
        reason: str | None = None,
        at: datetime | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
    ) -> Memory:
        """
        Record the outcome of a decision, and return the decision.

        The reason is also saved as a context that is linked to the decision, so that a semantic search can find it.
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
        with self._instrument("update_memory", count=1):
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
        with self._instrument("update_memory", count=1):
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

        with self._instrument("delete_memory", count=1):
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
        with self._instrument("delete_memory"):
            dry_run = _check.check_bool("dry_run", dry_run)
            return await maintenance.forget(self._shared, request, dry_run=dry_run, progress=progress)

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

        Ages are computed from the time of the previous maintenance, so that one wrong clock reading removes nothing.
        A store that is opened once in three months therefore prunes an old link one opening later.
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

    async def close(self) -> None:
        """Reject further calls and stop embedder and reranker. The session calls this method."""
        await self._shared.close()

    async def _save(self, request: requests.SaveRequest) -> Memory:
        self._shared.check()
        record = self._shared.record
        with self._instrument("create_memory", count=1):
            (prepared,) = await writes.prepare(
                self._shared, [await self._draft(request, resolve=_should_resolve_handles())]
            )
            return await writes.save(self._shared, prepared, record)

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
    Return False in a tool call, whose arguments already contain the texts of handles.

    Scanning inserted text again would replace handles that the text only quotes.
    """
    return not (is_model_call.get() or is_tool_call())
