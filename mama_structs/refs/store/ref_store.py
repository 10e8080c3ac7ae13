"""`RefStore`: stores, edits and deletes refs and descriptors."""

from __future__ import annotations

import copy
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar, cast

from mama_structs._internal import validation as _check
from mama_structs._internal.budget import Budget
from mama_structs._internal.event_loop import LoopGuard, WriterLock, run_in_own_thread
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.offload import MAX_SYNC_CHARS, MAX_SYNC_ITEMS, InputSize, check_sync_size, measure_input
from mama_structs._internal.reprs import format_count
from mama_structs.errors import InvalidArgument, InvalidHandle, StoreBusy, repr_short
from mama_structs.provenance import ORIGINS, Origin, Provenance, get_inserted_provenance
from mama_structs.refs.markup.content_types import detect_category
from mama_structs.refs.messages.provider_messages import extract_model_text
from mama_structs.refs.store.editing import Revision, append_revision, is_append_requested, is_unchanged, replace_text
from mama_structs.refs.store.entries import (
    EXTRACT_SOURCE_PREFIX,
    DeletedEntry,
    Descriptor,
    Entries,
    Entry,
    EntryErasure,
    HandleLike,
    Ref,
    as_ref,
    id_in,
    with_kind,
)
from mama_structs.refs.store.export import resolve_files_root
from mama_structs.refs.store.ingestion import RecentAnswers, ingest_refs
from mama_structs.refs.store.ref_collector import CollectedRefs, ObservedMessage, RefCollector, RefStream, check_refs
from mama_structs.refs.store.ref_reader import IN_THREAD_HINT, RefReader
from mama_structs.refs.store.render import Rendering
from mama_structs.refs.store.result_truncation import DescriptorSink, OwnShareFactory, ResultTruncation
from mama_structs.refs.store.text import Content, Mode
from mama_structs.settings import AnswerSettings, DescriptorSettings

# A change fails after this many discarded drafts. A draft is discarded if the store has changed in the meantime.
_MAX_DRAFTS: Final = 10
REF_TAG_START: Final = "<ref "
_WRAP_IN_THREAD_HINT: Final = f"await session.wrap(result), or {IN_THREAD_HINT.format('wrap(result)')}"

T = TypeVar("T")
PreparedT = TypeVar("PreparedT")


class ChangeLog(Protocol[PreparedT]):
    """The durable, asynchronously written log of a store's changes."""

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Record an entry with its text, or a deletion."""

    def prepare(self, changes: Sequence[tuple[str, Entry | DeletedEntry]]) -> PreparedT:
        """Serialize changes that continue after the last recorded one. May run in any thread."""

    def follows(self, prepared: PreparedT) -> bool:
        """Return True if nothing was recorded after *prepared* was made, so that *prepared* is still valid."""

    def put_prepared(self, prepared: PreparedT) -> None:
        """Record prepared changes atomically."""


class DraftLog:
    """Records the changes of a draft, in order."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, Entry | DeletedEntry]] = []

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Append a change."""
        self.changes.append((handle, slot))


class HasRefs(Protocol):
    """An object with a ref store, such as a session."""

    @property
    def refs(self) -> RefStore:
        """The store."""


def _now() -> datetime:
    return datetime.now(UTC)


@with_call_hints(peer_names.REF_STORE)
class RefStore(RefReader):
    """
    Stores refs, the marked parts of a model's answers, and descriptors, large texts.

    Handles are ``ref:<id>`` and ``fd:<n>``. A store without a session is in memory only; the store of a `Session` is
    also on disk. It belongs to the thread and process that first use it. A method that takes a handle raises
    `InvalidHandle` if the text is not a handle, `HandleNotFound` if the handle is unknown (the error names the nearest
    handles, or the time of deletion) and `HandleDamaged` if the text could not be read from disk. A method that stores
    raises `QuotaExceeded` if a limit would be exceeded, and then stores nothing.

    Args:
        settings: Page sizes and quotas.
        answers: Maximum sizes of texts for models.
        files_root: Directory below which files are written, also by models. None is the working directory, and then
            models have no tool that writes files.
        clock: Returns the time in UTC.

    Raises:
        InvalidArgument: *settings* or *answers* have the wrong type, or *files_root* is not a directory.

    """

    def __init__(
        self,
        *,
        settings: DescriptorSettings | None = None,
        answers: AnswerSettings | None = None,
        files_root: str | os.PathLike[str] | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        if settings is not None and not isinstance(settings, DescriptorSettings):
            raise InvalidArgument(f"settings must be DescriptorSettings, got {repr_short(settings)}")
        if answers is not None and not isinstance(answers, AnswerSettings):
            raise InvalidArgument(f"answers must be AnswerSettings, got {repr_short(answers)}")
        self.settings: DescriptorSettings = settings or DescriptorSettings()
        self.answers: AnswerSettings = answers or AnswerSettings()
        self.files_root: Path | None = resolve_files_root(files_root, self.settings)
        self._root: Path = self.files_root or Path.cwd()
        # Size budget of answers.
        self._budget: Budget = self.answers._budget
        # Factory for answer members that have their own truncation rules.
        self._own_share: OwnShareFactory | None = None
        self._clock = clock
        self._entries = Entries(self.settings)
        self._log: ChangeLog[Any] | None = None
        self._directory: Path | None = None
        # True if the host named the conversation, so that it can open it again.
        self._is_named = False
        self._closed = False
        self._recent = RecentAnswers()
        self._loop = LoopGuard("ref store")
        # Incremented by each change. A draft can be applied only to the version from which it was made.
        self._version = 0
        self._is_draft = False
        self._writing = WriterLock()
        self._rendering: Rendering = Rendering(self._budget)

    def _keep(self, log: ChangeLog[Any], *, entries: Entries | None = None, directory: Path | None = None) -> None:
        """
        Pass all further changes to a log. *entries* are the entries that the log already contains.

        Exports must not write to *directory*.
        """
        self._loop.check_or_bind_thread()
        self._entries = entries or self._entries
        self._log = log
        self._version += 1
        self._directory = directory

    def _is_like(self, other: RefStore) -> bool:
        """Return True if another store has the same settings and directory for files."""
        mine, its = ((one.settings, one.answers, one.files_root, one._root) for one in (self, other))
        return mine == its

    def close(self) -> None:
        """Reject all further calls."""
        self._closed = True

    async def run_in_thread(self, work: Callable[[RefStore], T]) -> T:
        """
        Run synchronous methods of this store on inputs of any size, in a thread.

        Everything that *work* stores is stored atomically: nothing if *work* raises or the caller is cancelled.
        ``await refs.run_in_thread(lambda refs: refs.put("report", text))``

        Args:
            work: A function of a draft of this store. It is called again if the store changes before the draft is
                applied.

        Returns:
            The result of *work*.

        Raises:
            StoreBusy: The store changed during each of 10 attempts; nothing was stored.

        """
        return await self._change(None, work)

    async def _change(self, load: InputSize | None, work: Callable[[RefStore], T]) -> T:
        """
        Run *work* on this store if its input is small, else on a draft in a thread.

        None for *load* counts as large. Async writers of one store run one at a time, in the order of their calls.
        """
        self._check_open()
        started = time.monotonic()
        async with self._writing.for_running_loop():
            self._check_open()
            if load is not None and load.is_inline:
                return work(self)
            for _ in range(_MAX_DRAFTS):
                draft, version, log = self._make_draft(), self._version, self._log
                changes = cast("DraftLog", draft._log).changes

                def run(draft: RefStore = draft, changes: Any = changes, log: Any = log) -> tuple[T, Any]:
                    result = work(draft)
                    return result, None if log is None else log.prepare(changes)

                result, prepared = await run_in_own_thread(run)
                self._check_open()
                if self._version == version and (log is None or log.follows(prepared)):
                    self._apply(draft, prepared)
                    return result
        raise StoreBusy(
            f"the refs changed during {_MAX_DRAFTS} attempts to store a large input; nothing of it was stored",
            waited=time.monotonic() - started,
            hint="call it again when no other task stores refs",
        )

    async def _run_read(self, load: InputSize, work: Callable[[RefStore], T]) -> T:
        """Run *work*, which must store nothing. If its input is large, run it in a thread."""
        if load.is_inline:
            return work(self)
        return await run_in_own_thread(functools.partial(work, self._make_draft()))

    def _make_draft(self) -> RefStore:
        """Return a copy of the store for one thread. It shares the stored entries and records its own changes."""
        draft = copy.copy(self)
        draft._entries = self._entries.fork()
        draft._log = cast("ChangeLog[Any]", DraftLog())
        draft._loop = LoopGuard("draft")
        draft._recent = self._recent.copy()
        draft._is_draft = True
        return draft

    def _apply(self, draft: RefStore, prepared: Any) -> None:
        """
        Replace the contents of this store with the contents of a draft. The draft must have the current version.

        The changes are passed to the log first, because the log may raise.
        """
        if self._log is not None:
            self._log.put_prepared(prepared)
        self._entries = draft._entries
        self._recent = draft._recent
        self._version += 1

    def fork(self) -> Self:
        """
        Return a store with a copy of all refs and descriptors.

        The copy is lazy: it costs almost nothing until either store changes. Later changes of one are not visible in
        the other; in both, numbers and versions continue from here. The fork is in memory only; `Session.fork` creates
        one on disk.
        """
        self._check_open()
        child = type(self)(settings=self.settings, answers=self.answers, files_root=self.files_root, clock=self._clock)
        child._root = self._root
        child._entries = self._entries.fork()
        child._recent = self._recent.fork()
        child._loop.check_or_bind_thread()
        return child

    def __repr__(self) -> str:
        usage = self._entries.usage
        state = ", closed" if self._closed else ""
        return (
            f"<RefStore {format_count(usage.handles, 'handle')}, {usage.bytes:,} of {usage.max_bytes:,} bytes{state}>"
        )

    # Model output

    def observe(self, message: object) -> ObservedMessage:
        """
        Store the refs of a model's answer with the origin ``"model"``.

        They are usable immediately. A ref that cannot be stored is reported among the diagnostics, and the others are
        stored.

        Args:
            message: Text, content blocks (dicts or SDK objects), or a complete message of the ``anthropic`` or
                ``openai`` packages. Thinking and tool calls are not parsed.

        Returns:
            The stored refs, the diagnostics, and the text without tags.

        Raises:
            InvalidArgument: *message* has an unknown format, is not by a model, or has more than 1,000,000 characters
                or 1,000 refs. For larger ones use `Session.observe` or `run_in_thread`. Nothing was stored.

        """
        self._check_open()
        collector = RefCollector(marks=self.settings.marks_enabled)
        pieces = extract_model_text(message)
        if not self._is_draft:
            check_refs("message", pieces, hint="await session.observe(message), which processes it in a thread")
        for piece in pieces:
            collector.feed(piece)
            collector.end_piece()
        collected = collector.finish()
        ingested = self._recent.take_streamed(collected)
        if ingested is None:
            ingested = self._store_collected(collected)
            self._recent.add_message(collected, ingested)
        self._version += 1
        return ingested

    def stream(self) -> RefStream:
        """Return a stream for an answer that arrives in chunks; see `RefStream`."""
        collector = RefCollector(marks=self.settings.marks_enabled)
        begun = self._recent.messages

        async def store(load: InputSize, collected: CollectedRefs) -> ObservedMessage:
            return await self._change(load, lambda refs: refs._store_streamed(collected, begun=begun))

        return RefStream(collector, functools.partial(self._store_streamed, begun=begun), store)

    def put(
        self, ref_id: str | Ref, text: str, *, append: bool = False, origin: Origin | None = None, **attributes: str
    ) -> Ref:
        """
        Store a text as a ref. Tags in the text are not parsed.

        This creates a new version, unless the newest version has the same content. A code fence that encloses the
        whole text is markup, as in an answer.

        Args:
            ref_id: With or without ``ref:``; or a ref, of which this is the next version.
            text: Of any length, within the quota.
            append: Whether to append to the newest version, on a new line, or without a line break if it is incomplete.
            origin: The author of the text, as for `MemoryStore.save_decision`; None for the user.
            attributes: The attributes of a tag, such as *lang*, *title* or ``fence="keep"``.

        Returns:
            The new version, or the newest one if nothing changes.

        Raises:
            InvalidHandle: *ref_id* is not a valid id.
            InvalidArgument: *text* or an attribute is not text or has lone surrogates, *origin* is unknown, or *text*
                has more than 1,000,000 characters, see `run_in_thread`.

        """
        self._check_open()
        self._check_size("text", text, call="put(ref_id, text)")
        author = _author_provenance("user" if origin is None else origin)
        for name, value in attributes.items():
            if not isinstance(value, str):
                raise InvalidArgument(f"{name} must be text, got {type(value).__name__}")
        said = {name.lower(): value for name, value in attributes.items()}
        said.update({"append": ""} if append else {})
        return self._store_revision(id_in(ref_id), Revision(text, said, provenance=author))

    def edit(self, ref_id: HandleLike, old: str, new: str, *, origin: Origin | None = None) -> Ref:
        r"""
        Create a new version of a ref in which *new* replaces *old*.

        *old* must occur exactly once. The new version is trusted no more than the version that it is made from.

        Args:
            ref_id: With or without ``ref:``; with ``@<version>``, or for a `Ref`, the new version is made from it.
            old: The text to replace, character for character. Line breaks match those of a content that has ``\r\n``.
            new: The replacement.
            origin: The author of the replacement, as for `put`.

        Returns:
            The new version, or the newest one if nothing changes.

        Raises:
            InvalidParameter: *old* occurs more than once, or not at all; the message shows candidate lines by number.
            InvalidHandle: *ref_id* is not the handle of a ref.
            InvalidArgument: *origin* is unknown, or a text has more than 1,000,000 characters, see `run_in_thread`.

        """
        self._check_open()
        author = _author_provenance("user" if origin is None else origin)
        ref = self._find_ref(ref_id)
        self._check_size("the ref and its change", ref.text, old, new, call="edit(ref_id, old, new)")
        return self._store_revision(ref.id, replace_text(ref, old, new, author=author))

    def copy_from(self, child: RefStore | HasRefs, ref_id: HandleLike) -> Ref:
        """
        Copy a ref of another store to this one, as the next version of its id.

        Nothing is stored if the newest version is the same. The copy has the origin and trust of the original.

        Args:
            child: The store, or a session that has one, such as a fork.
            ref_id: With or without ``ref:``; ``@<version>``, or a `Ref`, for a version that is not the newest.

        Returns:
            The new version, or the newest one if nothing changes.

        Raises:
            InvalidArgument: *child* has no refs, or the ref has more than 1,000,000 characters, see `run_in_thread`.
            InvalidHandle: *ref_id* is not the handle of a ref.

        """
        self._check_open()
        store = child if isinstance(child, RefStore) else getattr(child, "refs", None)
        if not isinstance(store, RefStore):
            raise InvalidArgument(f"child must be a RefStore or a session, got {type(child).__name__}")
        # A draft runs in a different thread than *child*. It may read the entries of *child*, which are immutable.
        entry = store._entries.find(with_kind(ref_id)) if self._is_draft else store.get(ref_id)
        ref = as_ref(entry, ref_id)
        self._check_size("the ref", ref.text, call="copy_from(child, ref_id)")
        return self._store_revision(
            ref.id, Revision(ref.text, ref.attributes, ref.is_complete, provenance=ref.provenance)
        )

    # Large texts

    def add(
        self,
        text: str | bytes,
        *,
        source: str = "host",
        mime_type: str | None = None,
        origin: Origin | None = None,
        trust: Origin | None = None,
    ) -> Descriptor:
        """
        Store a text or bytes, and return the descriptor.

        Args:
            text: A text, or bytes that are returned unchanged, of any length within the quota.
            source: The source of the text, shown to the model.
            mime_type: The type of the bytes, such as ``image/png``; only for bytes.
            origin: The author of the text, as for `MemoryStore.save_decision`; None to derive it from *source*, as
                `wrap` does.
            trust: The least trusted origin among everything that the text is based on; None for *origin*.

        Raises:
            InvalidArgument: *text* is neither, or has lone surrogates; bytes have no *mime_type*; *origin* or *trust*
                is unknown; or it has more than 1,000,000 characters or bytes, see `run_in_thread`.

        """
        self._check_open()
        self._check_size("text", text, call="add(text)")
        return self._add_any(text, source=source, mime_type=mime_type, origin=origin, trust=trust)

    def _add_any(
        self,
        text: str | bytes,
        *,
        source: str,
        mime_type: str | None = None,
        origin: Origin | None = None,
        trust: Origin | None = None,
    ) -> Descriptor:
        """
        Store a text or bytes as `add` does, without a size limit.

        Use it only for content that is in memory already, such as an image.

        Raises:
            InvalidArgument: An argument is invalid.
            QuotaExceeded: The conversation has no room for the content.

        """
        self._check_open()
        if isinstance(text, bytes):
            kept = Content.from_bytes(text, mime_type)
        elif mime_type is None:
            kept = Content.from_text(text)
        else:
            raise InvalidArgument("mime_type is for bytes only", hint="leave it out: a text is text/plain")
        if not isinstance(source, str) or not source:
            raise InvalidArgument(f"source must be a word such as tool_result, got {repr_short(source)}")
        _check.check_encodable("source", source)
        author = Provenance.from_source(source) if origin is None else _author_provenance(origin)
        basis = None if trust is None else Provenance.from_author(_check.check_choice("trust", trust, ORIGINS))
        # *trust* affects only the trust of the text, not its origin.
        return self._add(kept, source, Provenance(author.origin, author.merge_with(basis).trust))

    def wrap(self, result: Any, *, source: str = "tool_result") -> Any:
        """
        Return a result for a model: unchanged if it fits in the answer budget, else shortened.

        Omitted parts are stored under handles, if the quota permits. JSON stays JSON and text stays text. A mapping or
        list is shortened structurally, and so is a text that consists of a JSON object or array. Any other text becomes
        an ``<fd_result>`` with its beginning and its end.

        Args:
            result: Text; JSON-able data; or a list of content blocks, whose long texts are shortened separately.
                Images and audio do not count.
            source: The source of the result, shown to the model. It determines the origin of the new handles:
                ``"user_input"`` and ``"host"`` are the user's, ``"tool_result"`` is a tool's, and every other source,
                such as ``"web"``, is from outside.
                With ``"user_input"`` the user's own words around the pasted text stay visible.

        Returns:
            The shortened result, or *result* itself if it is short or has no text.

        Raises:
            InvalidArgument: It has more than 1,000,000 characters or 10,000 items; `Session.wrap` processes it in a
                thread.

        """
        if not self._is_draft:
            load = measure_input(result, max_chars=MAX_SYNC_CHARS, max_items=MAX_SYNC_ITEMS)
            check_sync_size("result", load, hint=_WRAP_IN_THREAD_HINT)
        return self._within(result, self._budget, source=source)

    def _within(
        self,
        result: Any,
        budget: Budget,
        *,
        source: str = "tool_result",
        schema: Mapping[str, Any] | None = None,
        keeps: bool = True,
        provenance: Provenance | None = None,
        payload_chars: int | None = None,
    ) -> Any:
        """
        Shorten a result as `wrap` does, within any budget.

        Args:
            result: As for `wrap`.
            budget: The maximum size of the answer.
            source: As for `wrap`.
            schema: The JSON Schema of the result, which determines the texts that are never truncated.
            keeps: Whether to store the omitted parts under handles.
            provenance: The provenance of the handles; None to derive it from *source*.
            payload_chars: The characters for a result without its references; None if neither has priority.

        """
        self._check_open()
        written_by = Provenance.from_source(source) if provenance is None else provenance
        shelf = DescriptorSink(
            next_number=lambda: self._entries.next_fd,
            check_room=self._entries.check_room,
            describe=functools.partial(self._make_descriptor, provenance=written_by),
            keep=lambda descriptor: self._put(descriptor.handle, descriptor),
            show=self._rendering.render_result,
        )
        wrapping = ResultTruncation(
            shelf=shelf,
            budget=budget,
            source=source,
            schema=schema,
            own_share=self._own_share,
            payload_chars=payload_chars,
            keeps=keeps,
        )
        return wrapping.truncate(result)

    def extract(
        self, handle: HandleLike, *, mode: Mode = "page", start: int = 1, count: int = 1, read_all: bool = False
    ) -> Descriptor:
        """
        Store a part of a text as a new descriptor with the same origin and trust; see `read`.

        To store the refs of a model's answer, use `observe`.

        Raises:
            InvalidHandle: The handle is not well-formed.
            HandleNotFound: No text has this handle.

        """
        self._check_open()
        if isinstance(handle, str) and REF_TAG_START in handle:
            raise InvalidHandle(
                f"{repr_short(handle)} is no handle", hint="observe(message) stores the refs of an answer"
            )
        excerpt = self.read(handle, mode=mode, start=start, count=count, read_all=read_all)
        provenance = self._find(excerpt.handle).provenance
        self._check_size("the part", excerpt.text, call="extract(handle)")
        return self._add(Content.from_text(excerpt.text), f"{EXTRACT_SOURCE_PREFIX}{excerpt.handle}", provenance)

    # Deletion

    def delete(self, handle: HandleLike) -> None:
        """
        Delete a descriptor, a version of a ref, or with ``ref:<id>`` all its versions.

        A tombstone remains, and numbers are not reused.

        Args:
            handle: The handle, as for `get`. A `Ref` means this version only; its ``handle`` means all versions.

        """
        self._check_open()
        doomed, deleted = self._entries.expand_handle(with_kind(handle)), DeletedEntry(self._clock())
        for one in doomed:
            self._put(one, deleted)

    def _erase(self, erasure: EntryErasure, *, dry_run: bool) -> tuple[Entry, ...]:
        """Replace the selected entries with tombstones, and return the entries. With *dry_run*, only return them."""
        self._check_open()
        doomed, deleted = self._entries.find_erased(erasure), DeletedEntry(self._clock())
        for one in () if dry_run else doomed:
            self._put(one.versioned_handle, deleted)
        return doomed

    # Storage

    def _store_collected(self, collected: CollectedRefs) -> ObservedMessage:
        """Store the refs of one message."""
        self._check_open()
        return ingest_refs(collected, entries=self._entries, store=self._store_revision)

    def _store_streamed(self, collected: CollectedRefs, *, begun: int) -> ObservedMessage:
        ingested = self._recent.take_message(collected, since=begun)
        if ingested is None:
            ingested = self._store_collected(collected)
            self._recent.add_streamed(collected, ingested)
        self._version += 1
        return ingested

    def _store_revision(self, ref_id: str, revision: Revision) -> Ref:
        """Store a revision as the next version of a ref. If the newest version is equal, return it instead."""
        for text in (*revision.attributes, *revision.attributes.values()):
            _check.check_encodable("an attribute", text)
        before = self._entries.newest_ref(ref_id)
        if is_append_requested(revision.attributes) and before is not None:
            revision = append_revision(before, revision)
        provenance = revision.provenance.merge_with(get_inserted_provenance())
        attributes = {name: value for name, value in revision.attributes.items() if name != "append"}
        content = self._entries.deduplicate(Content.from_text(revision.text))
        ref = Ref(
            id=ref_id,
            version=self._entries.next_version(ref_id),
            category=detect_category(attributes, content.text),
            attributes=attributes,
            is_complete=revision.complete,
            created_at=self._clock(),
            page_size=self.settings.page_size,
            content=content,
            origin=provenance.origin,
            trust=provenance.trust,
        )
        if before is not None and is_unchanged(before, ref):
            return before
        self._entries.check_room(content)
        self._put(ref.versioned_handle, ref)
        return ref

    def _make_descriptor(self, number: int, content: Content, source: str, *, provenance: Provenance) -> Descriptor:
        """Return a descriptor without storing it."""
        # In a tool call, the result may repeat texts inserted for handles, so include their provenance.
        provenance = provenance.merge_with(get_inserted_provenance())
        content = self._entries.deduplicate(content)
        content.pages(self.settings.page_size)  # Build the index now, so that the first read is fast.
        return Descriptor(
            number=number,
            source=source,
            category=detect_category({}, content.text) if content.is_text else "data",
            created_at=self._clock(),
            page_size=self.settings.page_size,
            content=content,
            mime_type=content.mime_type,
            origin=provenance.origin,
            trust=provenance.trust,
        )

    def _add(self, content: Content, source: str, provenance: Provenance) -> Descriptor:
        self._entries.check_room(self._entries.deduplicate(content))
        descriptor = self._make_descriptor(self._entries.next_fd, content, source, provenance=provenance)
        self._put(descriptor.handle, descriptor)
        return descriptor

    def _put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        # If the log raises, the entries stay unchanged.
        if self._log is not None:
            self._log.put(handle, slot)
        self._entries.put(handle, slot)
        self._version += 1


def _author_provenance(origin: object) -> Provenance:
    """Return the provenance of a text whose author is *origin*. Raise `InvalidArgument` if it is unknown."""
    return Provenance.from_author(_check.check_choice("origin", origin, ORIGINS))
