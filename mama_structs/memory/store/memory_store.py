"""The memories of one namespace: saving, linking, changes and deletion."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import attrs

import mama_structs  # Imported for the annotations. The names are resolved lazily, when type hints are evaluated.
from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import is_model_call
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.validation import UNSET, TimeInput, Unset
from mama_structs.errors import InvalidArgument, LinkNotFound, MamaStructsError, repr_short
from mama_structs.memory.graph.results import ErasureReport, LinkLike, MemoryLike, OutcomeWord, Results
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.save.conflict_records import dismiss_conflict
from mama_structs.memory.save.memory_update import MemoryUpdate
from mama_structs.memory.save.save_plan import RECORDS_PER_YIELD, FindContent, PreparedSave
from mama_structs.memory.store import maintenance, writes
from mama_structs.memory.store.memory_reader import MemoryReader
from mama_structs.memory.types import requests
from mama_structs.memory.types.engine import EngineFilter, ProgressCallback, Writer
from mama_structs.memory.types.filters import Filter, check_where, to_engine_filter
from mama_structs.memory.types.model import (
    CREATORS,
    OUTCOME_OF_WORD,
    CreatedBy,
    Link,
    Memory,
    Outcome,
    OutcomeChange,
)
from mama_structs.memory.types.requests import OnDuplicate, check_id, check_memories, check_memory, check_progress
from mama_structs.memory.upkeep import erasure
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.provenance import Origin, get_inserted_provenance, is_tool_call

# Type checkers read an alias in quotes only if it is one string.
Evidences: TypeAlias = "str | Memory | mama_structs.Ref | mama_structs.Descriptor | Sequence[str | Memory | mama_structs.Ref | mama_structs.Descriptor]"  # noqa: E501
"""One item of evidence or several: texts, memories or handles."""


@with_call_hints(peer_names.MEMORY_STORE)
class MemoryStore(MemoryReader):
    """
    The memories of one namespace. `Session.memories` is a `MemoryStore`.

    A save returns when its data is on disk. From then on every process that has the store open can read it.

    Args:
        shared: The services that all stores of this namespace share.
        find_content: Resolves a handle, see `_resolving`.

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

    def _resolving(self, find_content: FindContent) -> MemoryStore:
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

    async def save(
        self,
        content: str,
        *,
        type: Literal["insight", "context"] = "insight",  # noqa: A002 - the name of the field
        topic: str | None = None,
        links: Sequence[Mapping[str, Any]] = (),
        evidence: Evidences = (),
        tags: str | Sequence[str] = (),
        source: str | None = None,
        extra: Mapping[str, Any] | None = None,
        on_duplicate: OnDuplicate = "keep",
        created_at: TimeInput | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: TimeInput | None = None,
    ) -> Memory:
        """
        Save a text, and return the memory.

        Args:
            content: The text. A text that is exactly a handle (``ref:plan``, ``fd:1``) is replaced by the text of the
                handle, unless a backslash precedes it.
            type: ``"insight"`` for a fact or a lesson, ``"context"`` for background text.
            topic: The subject, in a word or two; memories of one topic are found together.
            links: Links to other memories: mappings with ``to_id``, ``relationship`` (any word), and optionally
                ``confidence`` (0.8), ``reason`` and ``tags``.
            evidence: Supporting evidence: memories, ids, addresses, any words, or handles (``ref:plan``, ``fd:1``),
                whose text is stored with the memory, see `evidence`.
            tags: One word or several to group memories by, see `Filter`.
            source: The source of the text.
            extra: JSON data of the host, at most 64 keys and 10,000 characters. It is stored and returned in
                ``memory.metadata.extra``, and `Filter` finds memories by it.
            on_duplicate: The action if a memory with the same words, topic, tags, source and origin exists: ``"keep"``
                also saves this one; ``"merge"`` saves nothing, returns the existing one and adds the time to its
                `Memory.repeated_at`. ``"merge"`` still saves a new memory if links, *evidence*, *extra* or
                *created_at* are given, or if the existing one failed, was superseded, or was followed by another
                decision of its topic.
            created_at: The time of the memory; None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.
            origin: The author of the text: ``"user"``, ``"model"``, ``"tool"`` or ``"outside"``; None for the model
                if it is created by ``"llm"``, else for the user. The text of a handle lowers origin and trust to those
                of the handle; evidence lowers the trust.
            valid_until: The time at which the memory expires; a timedelta counts from now, None means never.

        Raises:
            InvalidArgument: An argument is invalid, or a handle's text is too long; nothing was saved.
            HandleNotFound: A handle in the text or the evidence does not exist; nothing was saved.
            MemoryNotFound: A link leads to a memory that does not exist; nothing was saved.
            EmbeddingFailed: The embedder failed; nothing was saved.
            StoreError: The store cannot be written; nothing was saved.

        """
        if isinstance(content, builtins.list | tuple):
            hint = "save_many(items) saves several texts, and session.remember(messages, extract=) reads a conversation"
            raise InvalidArgument(f"content must be a text, got {repr_short(content)}", hint=hint)
        if type in ("decision", "checkpoint"):
            rule = f"must be one of {', '.join(requests.TEXT_REQUESTS)}"
            raise _check.invalid_argument("type", rule, type, hint=f"use save_{type}(content, ...)")
        kind = _check.check_choice("type", type, requests.TEXT_REQUESTS)
        return await self._save(
            requests.TEXT_REQUESTS[kind](
                content=content,
                topic=topic,
                links=links,
                evidence=requests.check_evidence("evidence", evidence),
                tags=tags,
                source=source,
                extra=extra,
                on_duplicate=on_duplicate,
                created_at=self._time("created_at", created_at),
                created_by=created_by,
                origin=origin,
                valid_until=self._end("valid_until", valid_until),
            )
        )

    async def save_decision(
        self,
        content: str,
        *,
        topic: str,
        reasoning: str,
        confidence: float = 0.7,
        supersedes: MemoryLike | None = None,
        implements: Iterable[MemoryLike] | MemoryLike = (),
        links: Sequence[Mapping[str, Any]] = (),
        evidence: Evidences = (),
        tags: str | Sequence[str] = (),
        source: str | None = None,
        extra: Mapping[str, Any] | None = None,
        on_duplicate: OnDuplicate = "keep",
        created_at: TimeInput | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: TimeInput | None = None,
    ) -> Memory:
        """
        Save a decision, and return the memory.

        Args:
            content: The decision, or a handle as for `save`.
            topic: The subject, in a word or two; decisions of one topic are found together.
            reasoning: The reasons; a handle is replaced as in *content*.
            confidence: The author's confidence, 0 to 1.
            supersedes: The decision that this one supersedes.
            implements: Memories that this decision implements.
            links: As for `save`.
            evidence: As for `save`.
            tags: As for `save`.
            source: As for `save`.
            extra: As for `save`.
            on_duplicate: As for `save`.
            created_at: As for `save`.
            created_by: As for `save`.
            origin: As for `save`.
            valid_until: As for `save`.

        Raises:
            InvalidArgument: An argument is invalid, or a handle's text is too long; nothing was saved.
            HandleNotFound: A handle in the text or the evidence does not exist; nothing was saved.
            MemoryNotFound: A link leads to a memory that does not exist; nothing was saved.
            EmbeddingFailed: The embedder failed; nothing was saved.
            StoreError: The store cannot be written; nothing was saved.

        """
        return await self._save(
            requests.DecisionRequest(
                content=content,
                topic=topic,
                reasoning=reasoning,
                confidence=confidence,
                supersedes=None if supersedes is None else check_memory("supersedes", supersedes),
                implements=check_memories("implements", implements),
                links=links,
                evidence=requests.check_evidence("evidence", evidence),
                tags=tags,
                source=source,
                extra=extra,
                on_duplicate=on_duplicate,
                created_at=self._time("created_at", created_at),
                created_by=created_by,
                origin=origin,
                valid_until=self._end("valid_until", valid_until),
            )
        )

    async def save_insight(
        self,
        content: str,
        *,
        topic: str | None = None,
        category: str | None = None,
        links: Sequence[Mapping[str, Any]] = (),
        evidence: Evidences = (),
        tags: str | Sequence[str] = (),
        source: str | None = None,
        extra: Mapping[str, Any] | None = None,
        on_duplicate: OnDuplicate = "keep",
        created_at: TimeInput | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: TimeInput | None = None,
    ) -> Memory:
        """
        Save an insight, which is a lesson or a fact, and return the memory.

        Args:
            content: The insight, or a handle as for `save`.
            topic: The subject.
            category: The kind of insight, in the host's words.
            links: As for `save`.
            evidence: As for `save`.
            tags: As for `save`.
            source: As for `save`.
            extra: As for `save`.
            on_duplicate: As for `save`.
            created_at: As for `save`.
            created_by: As for `save`.
            origin: As for `save`.
            valid_until: As for `save`.

        Raises:
            InvalidArgument: An argument is invalid, or a handle's text is too long; nothing was saved.
            HandleNotFound: A handle in the text or the evidence does not exist; nothing was saved.
            MemoryNotFound: A link leads to a memory that does not exist; nothing was saved.
            EmbeddingFailed: The embedder failed; nothing was saved.
            StoreError: The store cannot be written; nothing was saved.

        """
        return await self._save(
            requests.InsightRequest(
                content=content,
                topic=topic,
                category=category,
                links=links,
                evidence=requests.check_evidence("evidence", evidence),
                tags=tags,
                source=source,
                extra=extra,
                on_duplicate=on_duplicate,
                created_at=self._time("created_at", created_at),
                created_by=created_by,
                origin=origin,
                valid_until=self._end("valid_until", valid_until),
            )
        )

    async def save_context(
        self,
        content: str,
        *,
        topic: str | None = None,
        links: Sequence[Mapping[str, Any]] = (),
        evidence: Evidences = (),
        tags: str | Sequence[str] = (),
        source: str | None = None,
        extra: Mapping[str, Any] | None = None,
        on_duplicate: OnDuplicate = "keep",
        created_at: TimeInput | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: TimeInput | None = None,
    ) -> Memory:
        """
        Save a context, which is background text, and return the memory.

        Args:
            content: The text, or a handle as for `save`.
            topic: The subject.
            links: As for `save`.
            evidence: As for `save`.
            tags: As for `save`.
            source: As for `save`.
            extra: As for `save`.
            on_duplicate: As for `save`.
            created_at: As for `save`.
            created_by: As for `save`.
            origin: As for `save`.
            valid_until: As for `save`.

        Raises:
            InvalidArgument: An argument is invalid, or a handle's text is too long; nothing was saved.
            HandleNotFound: A handle in the text or the evidence does not exist; nothing was saved.
            MemoryNotFound: A link leads to a memory that does not exist; nothing was saved.
            EmbeddingFailed: The embedder failed; nothing was saved.
            StoreError: The store cannot be written; nothing was saved.

        """
        return await self._save(
            requests.ContextRequest(
                content=content,
                topic=topic,
                links=links,
                evidence=requests.check_evidence("evidence", evidence),
                tags=tags,
                source=source,
                extra=extra,
                on_duplicate=on_duplicate,
                created_at=self._time("created_at", created_at),
                created_by=created_by,
                origin=origin,
                valid_until=self._end("valid_until", valid_until),
            )
        )

    async def save_checkpoint(
        self,
        content: str,
        *,
        topic: str | None = None,
        open_files: Sequence[str] = (),
        next_steps: Sequence[str] = (),
        implements: Iterable[MemoryLike] | MemoryLike = (),
        links: Sequence[Mapping[str, Any]] = (),
        evidence: Evidences = (),
        tags: str | Sequence[str] = (),
        source: str | None = None,
        extra: Mapping[str, Any] | None = None,
        created_at: TimeInput | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: TimeInput | None = None,
    ) -> Memory:
        """
        Save a checkpoint, which is the current state of the work, and return the memory.

        Args:
            content: The work done and the current state, or a handle as for `save`.
            topic: The subject.
            open_files: Paths that are being edited.
            next_steps: The next steps.
            implements: The decisions that this work implements.
            links: As for `save`.
            evidence: As for `save`.
            tags: As for `save`.
            source: As for `save`.
            extra: As for `save`.
            created_at: As for `save`.
            created_by: As for `save`.
            origin: As for `save`.
            valid_until: As for `save`.

        Raises:
            InvalidArgument: An argument is invalid, or a handle's text is too long; nothing was saved.
            HandleNotFound: A handle in the text or the evidence does not exist; nothing was saved.
            MemoryNotFound: A link leads to a memory that does not exist; nothing was saved.
            EmbeddingFailed: The embedder failed; nothing was saved.
            StoreError: The store cannot be written; nothing was saved.

        """
        return await self._save(
            requests.CheckpointRequest(
                content=content,
                topic=topic,
                open_files=open_files,
                next_steps=next_steps,
                implements=check_memories("implements", implements),
                links=links,
                evidence=requests.check_evidence("evidence", evidence),
                tags=tags,
                source=source,
                extra=extra,
                created_at=self._time("created_at", created_at),
                created_by=created_by,
                origin=origin,
                valid_until=self._end("valid_until", valid_until),
            )
        )

    async def save_many(
        self, items: Iterable[str | Mapping[str, Any]], *, progress: ProgressCallback | None = None
    ) -> Results[Memory]:
        """
        Save several memories in order; many of them share one transaction.

        Args:
            items: Texts, which become insights, or mappings with ``content``, ``type`` (``"insight"``, if left out)
                and the other arguments of that type's method.
            progress: Called with the number of saved memories and their total number.

        Returns:
            The memories, in the order of the items.

        Raises:
            InvalidArgument: An item is invalid; nothing was saved.
            MemoryNotFound: An item links to a memory that does not exist; a note names the item; nothing was saved.
            HandleNotFound: A handle in an item's text or evidence does not exist; a note names the item; nothing was
                saved.
            EmbeddingFailed, StoreError: As for `save`.
                Earlier transactions stay committed; a note gives the number of memories that they saved.

        """
        self._shared.check()
        check_progress(progress)
        given = _check.check_items("items", items, item_kind="texts or mappings")
        drafts: builtins.list[PreparedSave] = []
        resolve = _should_resolve_handles()
        for position, item in enumerate(given):
            if position % RECORDS_PER_YIELD == 0:
                # Yield to the event loop so that a large batch does not block other tasks.
                await asyncio.sleep(0)
            try:
                drafts.append(await self._draft(requests.parse_request(item, now=self._shared.now), resolve=resolve))
            except InvalidArgument as error:
                raise requests.prefix_error(f"items[{position}]", error) from error
            except MamaStructsError as error:
                error.add_note(f"in items[{position}]")
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
        memory: MemoryLike,
        outcome: OutcomeWord,
        *,
        reason: str | None = None,
        at: TimeInput | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
    ) -> Memory:
        """
        Record the outcome of a decision, and return the decision.

        The reason is also saved as a context that is linked to the decision, so that a semantic search can find it.
        The decision, and what is based on it, is trusted no more than the reason.

        Args:
            memory: The decision or its id.
            outcome: ``"SUCCESS"``, ``"FAILED"`` or ``"PARTIAL"``.
            reason: The reason; required for a failure.
            at: The time of the outcome; None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.
            origin: The author of the reason, as for `save`.

        Raises:
            InvalidArgument: The memory is not a decision, or another argument is invalid; nothing was changed.

        """
        self._shared.check()
        memory_id = check_memory("memory", memory)
        result = _check.check_choice("outcome", outcome.upper() if isinstance(outcome, str) else outcome, Outcome)
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

    async def update(
        self,
        memory: MemoryLike,
        content: str | None = None,
        *,
        reasoning: str | Unset = UNSET,
        topic: str | Unset | None = UNSET,
        tags: str | Sequence[str] | Unset | None = UNSET,
        valid_until: TimeInput | Unset | None = UNSET,
        change_reason: str | None = None,
        origin: Origin | None = None,
    ) -> Memory:
        """
        Change the text, topic, tags or validity of a memory, and return the memory.

        The memory keeps its id, its links and its time of creation, and is found by its new text.
        Its `Memory.previous_texts` contain the old texts; a search with ``as_of`` at an earlier time shows them.
        Use an update for a text that was wrong from the start. If the decision itself changed, use `supersede`.

        Args:
            memory: The memory or its id.
            content: The new text, or a handle as for `save`; None to leave it unchanged.
            reasoning: A decision's new reasoning; a handle is replaced as in *content*.
            topic: The new topic; None to remove the topic.
            tags: The new tags, which replace the old ones; None to remove all tags.
            valid_until: The new time of expiry; a timedelta counts from now, None means never.
            change_reason: The reason for the change of the text.
            origin: The author of the change; None for the user. It limits the trust of the memory and of all memories
                that are based on it.

        Raises:
            InvalidArgument: Nothing would change, *reasoning* is given for another type than a decision, or another
                argument is invalid; nothing was changed.
            HandleNotFound: A handle in the text does not exist; nothing was changed.
            MemoryNotFound: No memory has this id.

        """
        self._shared.check()
        now, record = self._shared.now, self._shared.record
        texts: dict[str, Any] = {"content": content, "reasoning": reasoning}
        inserted = [get_inserted_provenance()]
        if _should_resolve_handles():
            changed, found_texts = saving.insert_handle_texts(texts, self._find_content)
            texts |= changed
            inserted += found_texts
        asked = MemoryUpdate.checked(
            memory,
            texts["content"],
            {"reasoning": texts["reasoning"], "topic": topic, "tags": tags, "valid_until": valid_until},
            change_reason=change_reason,
            origin=origin,
            inserted=inserted,
            at=now,
            max_chars=self._settings.max_content,
        )
        with self._instrument("update_memory", count=1):
            return await writes.update(self._shared, asked, record)

    async def supersede(
        self,
        memory: MemoryLike,
        content: str,
        *,
        reasoning: str,
        topic: str | None = None,
        confidence: float = 0.7,
        implements: Iterable[MemoryLike] | MemoryLike = (),
        links: Sequence[Mapping[str, Any]] = (),
        evidence: Evidences = (),
        tags: str | Sequence[str] = (),
        source: str | None = None,
        extra: Mapping[str, Any] | None = None,
        on_duplicate: OnDuplicate = "keep",
        created_at: TimeInput | None = None,
        created_by: CreatedBy = "user",
        origin: Origin | None = None,
        valid_until: TimeInput | None = None,
    ) -> Memory:
        """
        Save a decision that supersedes another one, and return it.

        *memory* is the superseded decision or its id, whose topic is the default; all other arguments are those of
        `save_decision`. A supersession is always saved, so ``on_duplicate="merge"`` merges nothing.

        Raises:
            InvalidArgument: The memory is not a decision, or another argument is invalid; nothing was saved.
            MemoryNotFound: No memory has this id; nothing was saved.

        """
        self._shared.check()
        supersedes = check_memory("memory", memory)
        before = await self._shared.read(lambda reader: saving.require_decision(reader, supersedes))
        return await self._save(
            requests.DecisionRequest(
                content=content,
                topic=before.topic or "untitled" if topic is None else topic,
                reasoning=reasoning,
                confidence=confidence,
                supersedes=supersedes,
                implements=check_memories("implements", implements),
                links=links,
                evidence=requests.check_evidence("evidence", evidence),
                tags=tags,
                source=source,
                extra=extra,
                on_duplicate=on_duplicate,
                created_at=self._time("created_at", created_at),
                created_by=created_by,
                origin=origin,
                valid_until=self._end("valid_until", valid_until),
            )
        )

    async def link(
        self,
        from_memory: MemoryLike,
        to_memory: MemoryLike,
        relationship: str,
        *,
        confidence: float = 0.8,
        reason: str | None = None,
        tags: str | Sequence[str] = (),
        created_at: TimeInput | None = None,
        created_by: CreatedBy = "user",
    ) -> Link:
        """
        Link two memories, and return the link.

        If a link with the same relationship exists between them, it is returned with the higher of the two confidences.
        Automatic links between them are converted to explicit ones.

        Args:
            from_memory: The memory that acts, normally the newer one, or its id.
            to_memory: The memory acted on, or its id.
            relationship: Any word; it determines the link's type, see `LinkType`.
            confidence: 0 to 1.
            reason: The reason for the link.
            tags: Words to group links by.
            created_at: The time of the link; None for now.
            created_by: ``"user"``, ``"llm"`` or ``"system"``.

        Raises:
            InvalidArgument: Both memories are the same, or another argument is invalid.
            MemoryNotFound: One of the memories does not exist.

        """
        self._shared.check()
        begin = check_memory("from_memory", from_memory)
        asked = requests.LinkRequest(
            to_id=check_memory("to_memory", to_memory),
            relationship=relationship,
            confidence=confidence,
            reason=reason,
            tags=tags,
        )
        creator = _check.check_choice("created_by", created_by, CREATORS)
        moment = self._shared.resolve_time("created_at", created_at)
        return await writes.link(self._shared, begin, asked, created_by=creator, now=moment)

    async def unlink(self, link: LinkLike) -> None:
        """
        Remove a link.

        Args:
            link: The link or its id.

        Raises:
            LinkNotFound: No link has this id.

        """
        if not isinstance(link, Link | str):
            raise _check.invalid_argument("link", "must be a Link or its id", link)
        checked = link.id if isinstance(link, Link) else check_id("link", link)

        def plan(writer: Writer) -> None:
            if not writer.delete_links([checked]):
                raise LinkNotFound(checked)

        await self._shared.write(plan)

    async def dismiss_conflict(self, newer: MemoryLike, older: MemoryLike) -> None:
        """
        Mark a conflict as resolved, so that `conflicts` no longer returns it. Idempotent.

        Args:
            newer: The newer memory of the conflict, or its id.
            older: The older memory of the conflict, or its id.

        Raises:
            MemoryNotFound: One of the memories does not exist.

        """
        newer_id, older_id = check_memory("newer", newer), check_memory("older", older)

        def plan(writer: Writer) -> None:
            writer.expect(lambda ahead: ahead.find_many([newer_id, older_id]))
            node = saving.require_node(writer, newer_id)
            saving.require_node(writer, older_id)
            dismiss_conflict(writer, node, older_id)

        await self._shared.write(plan)

    async def delete(
        self,
        memories: MemoryLike | Iterable[MemoryLike] | None = None,
        *,
        where: Filter | None = None,
        dry_run: bool = False,
    ) -> int:
        """
        Delete memories with their links, and return the number of deleted memories.

        From then on no call finds them. Bytes of their texts can remain on disk; `erase` removes those, too.
        The contexts that hold the reasons of their outcomes, and evidence texts that no other memory cites, are
        deleted as well, but not counted. Only memories of this namespace are deleted.

        Args:
            memories: One memory or id, or several.
            where: Delete all memories that match this filter.
            dry_run: If true, only count the memories.

        Raises:
            InvalidArgument: Neither *memories* nor a condition is given, or an argument is invalid.
            MemoryNotFound: No memory has a given id; nothing was deleted.
            MemoryReadOnly: A memory is in a read-only namespace; nothing was deleted.

        """
        ids, conditions = self._selection("delete", memories, where)
        only_count = _check.check_bool("dry_run", dry_run)
        with self._instrument("delete_memory"):
            return await writes.delete(self._shared, ids, conditions, dry_run=only_count)

    async def erase(
        self,
        memories: MemoryLike | Iterable[MemoryLike] | None = None,
        *,
        where: Filter | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
    ) -> ErasureReport:
        """
        Erase memories permanently: no part of their texts remains in any file of the store.

        Only memories of this namespace are erased.
        The call also erases the reasons of their outcomes, evidence texts that no other memory cites, the refs and
        descriptors with these texts, and their ids in other memories.
        The whole journal is rewritten; meanwhile searches continue and saves wait.
        An erasure of at least one memory also removes the bytes of memories that `delete` deleted before. If no memory
        matches, the journal is not rewritten and these bytes remain, so erase memories without deleting them first.
        If another process still holds some of the data open, for example in a long read, the result reports it, and the
        data is erased at the next opportunity. If this process is killed half-way, the next opening erases the rest.

        Args:
            memories: One memory or id, or several.
            where: Erase all memories that match this filter.
            dry_run: If true, only report how much would be erased.
            progress: Called with the number of erased memories and their total number.

        Raises:
            InvalidArgument: Neither *memories* nor a condition is given, or an argument is invalid.
            MemoryNotFound: No memory has a given id; nothing was erased.
            MemoryReadOnly: A memory is in a read-only namespace; nothing was erased.

        """
        ids, conditions = self._selection("erase", memories, where)
        request = erasure.EraseRequest(ids=ids, where=conditions)
        return await self._erase(request, dry_run=dry_run, progress=progress)

    async def _erase(
        self, request: erasure.EraseRequest, *, dry_run: bool, progress: ProgressCallback | None = None
    ) -> ErasureReport:
        self._shared.check()
        check_progress(progress)
        only_count = _check.check_bool("dry_run", dry_run)
        with self._instrument("delete_memory"):
            return await maintenance.erase(self._shared, request, dry_run=only_count, progress=progress)

    def _selection(self, method: str, memories: object, where: object) -> tuple[tuple[str, ...] | None, EngineFilter]:
        """Return the ids and the conditions of a call that deletes. Raise if it would select all memories."""
        self._shared.check()
        asked = check_where(where)
        if memories is None and asked.is_empty:
            hint = f"{method}(memory), or {method}(where=Filter(topic='auth'))"
            raise InvalidArgument(f"{method}() needs memories or where=", hint=hint)
        ids = None if memories is None else check_memories("memories", memories, max_items=requests.MAX_DELETED)
        return ids, self._localize(to_engine_filter(asked, now=self._shared.now))

    def _end(self, name: str, value: object) -> datetime | None:
        """Return a time of expiry as a datetime; a timedelta counts from now."""
        return None if value is None else _check.check_time(name, value, now=self._shared.now, in_future=True)

    async def _close(self) -> None:
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
