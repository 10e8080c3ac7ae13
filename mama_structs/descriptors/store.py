"""The store of what a model wrote and of what was too large to show."""

from __future__ import annotations

import copy
import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar, cast, get_args

from mama_structs import _check
from mama_structs._async import LoopBound, in_own_thread
from mama_structs._budget import Budget
from mama_structs._offload import SYNC_CHARS, SYNC_ITEMS, Load, check_inline, measure
from mama_structs._provenance import ORIGINS, Origin, Provenance, inserted_texts
from mama_structs._showing import boxed, counted, entries, heading
from mama_structs.descriptors.drafts import DraftLog, Log, WriterLock
from mama_structs.descriptors.entries import EXTRACT, DeletedEntry, Descriptor, Entries, Entry, Erasure, Ref, Usage
from mama_structs.descriptors.export import ExportMode, FileOrder, FileResult, export
from mama_structs.descriptors.fences import fenced_blocks
from mama_structs.descriptors.kinds import Category, Suggestion, category_of, suggest
from mama_structs.descriptors.marking import Collected, Collector, Ingested, RefStream, check_refs, mentioned
from mama_structs.descriptors.messages import said_by_model
from mama_structs.descriptors.parser import ID_RULE, IN_CODE, MENTIONED, Diagnostic, DiagnosticKind, ref_id_in
from mama_structs.descriptors.render import Rendering, instructions
from mama_structs.descriptors.revising import Revision, appended, asks_to_append, difference, edited, is_same
from mama_structs.descriptors.search import SearchResult, TextSearch, search
from mama_structs.descriptors.text import Content, Excerpt, Mode, read
from mama_structs.descriptors.wrapping import OwnShareOf, Shelf, Wrapping
from mama_structs.errors import (
    InvalidArgument,
    InvalidHandle,
    InvalidParameter,
    QuotaExceeded,
    SessionClosed,
    StoreBusy,
    WrongLoop,
    shown,
)
from mama_structs.settings import AnswerSettings, DescriptorSettings, answers_budget

_CATEGORIES: Final = get_args(Category)
_AWAITED: Final = 8
# Drafts that are discarded, because the store changed meanwhile, before the caller gets an error.
_MAX_DRAFTS: Final = 10
_IN_THREAD: Final = "await refs.run_in_thread(lambda refs: refs.{})"
_WRAP_IN_THREAD: Final = f"await session.wrap(result), or {_IN_THREAD.format('wrap(result)')}"

T = TypeVar("T")


class HasRefs(Protocol):
    """Whatever has a store of refs, such as a session."""

    @property
    def refs(self) -> RefStore:
        """The store."""


def _now() -> datetime:
    return datetime.now(UTC)


def files_of(files: str | os.PathLike[str] | None, settings: DescriptorSettings) -> Path | None:
    """Return the directory below which models may write files, None where the host names none."""
    given = os.fspath(files) if isinstance(files, str | os.PathLike) else files
    if given is None and not settings.root:
        return None
    if given is not None and (not isinstance(given, str) or not given or "\0" in given):
        raise InvalidArgument(f"files must be a directory or None, got {shown(files)}")
    path = Path(given or settings.root).absolute()
    try:
        is_other = path.exists() and not path.is_dir()
    except OSError as error:
        raise InvalidArgument(f"files cannot be a directory: {error.strerror}") from error
    if is_other:
        raise InvalidArgument(f"files must be a directory, and {os.fspath(path)!r:.200} is a file")
    return path


class RefStore:
    """
    Keeps ``ref:<id>``, the parts of its answers that a model marked, and ``fd:<n>``, what was too large to show.

    Works by itself, in memory; that of a `Session` is also kept on disk.
    Belongs to the thread and process that first use it.
    A method that takes a handle raises `InvalidHandle` if the text is no handle, `HandleNotFound` if the handle is
    unknown (the error names the nearest handles, or says when it was deleted) and `HandleDamaged` if the disk does not
    give its text back. A method that stores raises `QuotaExceeded` if there is no room, and then stores nothing.

    Args:
        settings: Page sizes and quotas.
        answers: How long what a model reads may be.
        files: The directory below which files are written, also by models; None for the working directory, and then
            models have no tool that writes any.
        clock: The time in UTC.

    Raises:
        InvalidArgument: *settings* or *answers* are none, or *files* is no directory.

    """

    def __init__(
        self,
        *,
        settings: DescriptorSettings | None = None,
        answers: AnswerSettings | None = None,
        files: str | os.PathLike[str] | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        if settings is not None and not isinstance(settings, DescriptorSettings):
            raise InvalidArgument(f"settings must be DescriptorSettings, got {shown(settings)}")
        if answers is not None and not isinstance(answers, AnswerSettings):
            raise InvalidArgument(f"answers must be AnswerSettings, got {shown(answers)}")
        self.settings: DescriptorSettings = settings or DescriptorSettings()
        self.answers: AnswerSettings = answers or AnswerSettings()
        self.files: Path | None = files_of(files, self.settings)
        self.root: Path = self.files or Path.cwd()
        # How much of an answer may be shown, and what of it shrinks by rules of its own.
        self.budget: Budget = answers_budget(self.settings, self.answers)
        self.own_share: OwnShareOf | None = None
        self._clock = clock
        self._entries = Entries(self.settings)
        self._log: Log[Any] | None = None
        self._directory: Path | None = None
        self._closed = False
        # Streamed answers whose finished messages may still come: each is stored once.
        self._awaited: deque[tuple[Collected, Ingested]] = deque(maxlen=_AWAITED)
        # Messages that a stream may still be open for: an adapter takes one before a host closes its stream.
        self._finished: deque[tuple[int, Collected, Ingested]] = deque(maxlen=_AWAITED)
        self._ingests: int = 0
        self._loop = LoopBound("ref store")
        # Counts changes: a draft of an earlier version cannot be applied.
        self._version = 0
        self._is_draft = False
        self._writing = WriterLock()
        self.rendering: Rendering = Rendering(self.budget)

    def keep(self, log: Log[Any], *, entries: Entries | None = None, directory: Path | None = None) -> None:
        """Hand all further changes to a log, which holds *entries*; no export may touch the session's *directory*."""
        self._loop.check_here()
        self._entries = entries or self._entries
        self._log = log
        self._version += 1
        self._directory = directory

    def is_like(self, other: RefStore) -> bool:
        """Tell whether another store was made with the same settings, and writes files to the same place."""
        mine, its = ((one.settings, one.answers, one.files, one.root) for one in (self, other))
        return mine == its

    def close(self) -> None:
        """Refuse further calls."""
        self._closed = True

    async def run_in_thread(self, work: Callable[[RefStore], T]) -> T:
        """
        Run synchronous methods of this store on inputs of any size, in a thread, and store all that they stored.

        All of it is stored, or nothing if *work* raises or the caller is cancelled.
        ``await refs.run_in_thread(lambda refs: refs.put("report", text))``

        Args:
            work: A function of a draft of this store; called again if the store changes before the draft is applied.

        Raises:
            StoreBusy: The store changed during each of 10 attempts; nothing was stored.

        """
        return await self.change(None, work)

    async def change(self, load: Load | None, work: Callable[[RefStore], T]) -> T:
        """
        Run *work* on this store if its input is small, otherwise on a draft in a thread. None is a large input.

        Async writers of one store run one after the other, in the order of their calls.
        """
        self._check_open()
        started = time.monotonic()
        async with self._writing.of_loop():
            self._check_open()
            if load is not None and load.is_inline:
                return work(self)
            for _ in range(_MAX_DRAFTS):
                draft, version, log = self._make_draft(), self._version, self._log
                changes = cast("DraftLog", draft._log).changes  # noqa: SLF001 - of this class

                def run(draft: RefStore = draft, changes: Any = changes, log: Any = log) -> tuple[T, Any]:
                    result = work(draft)
                    return result, None if log is None else log.prepare(changes)

                result, prepared = await in_own_thread(run)
                self._check_open()
                if self._version == version and (log is None or log.follows(prepared)):
                    self._apply(draft, prepared)
                    return result
        raise StoreBusy(
            f"the refs changed during {_MAX_DRAFTS} attempts to store a large input; nothing of it was stored",
            waited=time.monotonic() - started,
            hint="call it again when no other task stores refs",
        )

    async def look(self, load: Load, work: Callable[[RefStore], T]) -> T:
        """Run *work*, which stores nothing, on this store if its input is small, and else on a draft in a thread."""
        if load.is_inline:
            return work(self)
        return await in_own_thread(functools.partial(work, self._make_draft()))

    def _make_draft(self) -> RefStore:
        """Return a copy for one thread, which shares the stored entries and records its changes."""
        draft = copy.copy(self)
        draft._entries = self._entries.fork()  # noqa: SLF001 - of this class, as below
        draft._log = cast("Log[Any]", DraftLog())  # noqa: SLF001
        draft._loop = LoopBound("draft")  # noqa: SLF001
        draft._awaited, draft._finished = self._awaited.copy(), self._finished.copy()  # noqa: SLF001
        draft._is_draft = True  # noqa: SLF001
        return draft

    def _apply(self, draft: RefStore, prepared: Any) -> None:
        """Replace the contents by those of a draft of this version; the log first, which may raise."""
        if self._log is not None:
            self._log.put_prepared(prepared)
        self._entries = draft._entries
        self._awaited, self._finished = draft._awaited, draft._finished
        self._ingests = draft._ingests
        self._version += 1

    def _check_size(self, name: str, *texts: object, call: str, items: int = 0) -> None:
        """Raise `InvalidArgument` for an input that only a thread may process."""
        if not self._is_draft:
            chars = sum(len(text) for text in texts if isinstance(text, str | bytes))
            check_inline(name, Load(chars, items), hint=_IN_THREAD.format(call))

    def fork(self) -> Self:
        """
        Return a store with a full copy of all refs and descriptors, which costs next to nothing until either changes.

        Neither sees what the other stores or deletes later; in both, numbers and versions go on from here.
        The fork is in memory only; `Session.fork` makes one that is kept.
        """
        self._check_open()
        child = type(self)(settings=self.settings, answers=self.answers, files=self.files, clock=self._clock)
        child.root = self.root
        child._entries = self._entries.fork()  # noqa: SLF001 - of this class
        child._awaited = self._awaited.copy()  # noqa: SLF001 - as above
        child._loop.check_here()  # noqa: SLF001 - as above
        return child

    @property
    def is_here(self) -> bool:
        """Whether this thread may use the store."""
        try:
            self._loop.check_here()
        except WrongLoop:
            return False
        return True

    def now(self) -> datetime:
        """Return the time, by the store's clock."""
        return self._clock()

    def __repr__(self) -> str:
        usage = self._entries.usage
        state = ", closed" if self._closed else ""
        return f"<RefStore {counted(usage.handles, 'handle')}, {usage.bytes:,} of {usage.max_bytes:,} bytes{state}>"

    def _repr_html_(self) -> str:
        live = [] if self._closed else [*self._entries.live()]
        newest = (one._seen() for one in reversed(live))  # noqa: SLF001 - one of ours
        return boxed(heading(repr(self)[1:-1]), entries(newest, len(live)))

    def __len__(self) -> int:
        """Count the descriptors and refs, each version of a ref for itself."""
        self._check_open()
        return self._entries.usage.handles

    def __contains__(self, handle: object) -> bool:
        """Tell whether `get` gives something for a handle."""
        self._check_open()
        return self._entries.holds(_with_kind(handle))

    def __iter__(self) -> Iterator[str]:
        """Go through the handles, the oldest first, versions of refs included."""
        self._check_open()
        return (entry.versioned for entry in self._entries.live())

    @property
    def usage(self) -> Usage:
        """How much the store holds, and its limits."""
        return self._entries.usage

    # What a model wrote

    def ingest(self, message: object) -> Ingested:
        """
        Store the refs of a model's answer with the origin ``"model"``. They are usable immediately.

        A ref that cannot be stored is reported among the diagnostics, and the others are stored.

        Args:
            message: Text, content blocks (dicts or SDK objects), or a whole message of the ``anthropic`` or ``openai``
                packages. Thinking and tool calls are not scanned.

        Raises:
            InvalidArgument: *message* is nothing of the kind, or not by a model, or it has more than 1,000,000
                characters or 1,000 refs, for which there are `Session.observe` and `run_in_thread`; nothing was stored.

        """
        self._check_open()
        collector = Collector(marks=self.settings.references_enabled)
        pieces = said_by_model(message)
        if not self._is_draft:
            check_refs("message", pieces, hint="await session.observe(message), which processes it in a thread")
        for piece in pieces:
            collector.feed(piece)
            collector.end_piece()
        collected = collector.finish()
        for number, (streamed, ingested) in enumerate(self._awaited):
            if collected == streamed:
                # It is the message that was streamed, and stored then.
                del self._awaited[number]
                self._version += 1
                return ingested
        ingested = self._ingested(collected)
        if collected.marked:
            self._ingests += 1
            self._finished.append((self._ingests, collected, ingested))
        return ingested

    def stream(self) -> RefStream:
        """Return a `RefStream`, which collects the refs of a streamed answer."""
        collector = Collector(marks=self.settings.references_enabled)
        begun = self._ingests

        async def store(load: Load, collected: Collected) -> Ingested:
            return await self.change(load, lambda refs: refs._streamed(collected, begun=begun))  # noqa: SLF001 - of this class

        return RefStream(collector, functools.partial(self._streamed, begun=begun), store)

    def put(
        self, ref_id: str, text: str, *, append: bool = False, origin: Origin | None = None, **attributes: str
    ) -> Ref:
        """
        Store a text as a ref. Tags in the text are text.

        This creates a new version, unless the newest version has the same content. A code fence that encloses the
        whole text is markup, as in an answer.

        Args:
            ref_id: With or without ``ref:``.
            text: Of any length, within the quota.
            append: Whether to append to the newest version, on a new line, or without a line break if it is incomplete.
            origin: The author of the text, as for `MemoryStore.save_decision`; None for the user.
            attributes: The attributes of a tag, such as *lang*, *title* or ``fence="keep"``.

        Raises:
            InvalidHandle: *ref_id* is no id.
            InvalidArgument: *text* or an attribute is no text or has surrogates that no file could hold, *origin* is
                unknown, or *text* has more than 1,000,000 characters, see `run_in_thread`.

        """
        self._check_open()
        self._check_size("text", text, call="put(ref_id, text)")
        author = _author("user" if origin is None else origin)
        for name, value in attributes.items():
            if not isinstance(value, str):
                raise InvalidArgument(f"{name} must be text, got {type(value).__name__}")
        said = {name.lower(): value for name, value in attributes.items()}
        said.update({"append": ""} if append else {})
        return self._revised(_id_in(ref_id), Revision(text, said, provenance=author))

    def edit(self, ref_id: str, old: str, new: str, *, origin: Origin | None = None) -> Ref:
        r"""
        Create a new version of a ref in which *new* replaces *old*, which must occur exactly once.

        The new version is trusted no more than the version that it is made from.

        Args:
            ref_id: With or without ``ref:``; with ``@<version>`` the new version is made from that one.
            old: The text to replace, character for character. Line breaks match those of a content that has ``\r\n``.
            new: The replacement.
            origin: The author of the replacement, as for `put`.

        Returns:
            The new version, or the newest one if nothing changes.

        Raises:
            InvalidParameter: *old* occurs more than once, or not at all; the message shows candidate lines by number.
            InvalidHandle: It is no ref.
            InvalidArgument: *origin* is unknown, or a text has more than 1,000,000 characters, see `run_in_thread`.

        """
        self._check_open()
        author = _author("user" if origin is None else origin)
        ref = self._ref(ref_id)
        self._check_size("the ref and its change", ref.text, old, new, call="edit(ref_id, old, new)")
        return self._revised(ref.id, edited(ref, old, new, author=author))

    def adopt(self, child: RefStore | HasRefs, ref_id: str) -> Ref:
        """
        Store a ref of another store here as the next version of its id, unless the newest version is the same.

        The copy has the origin and trust of the original.

        Args:
            child: The store, or a session that has one, such as a fork.
            ref_id: With or without ``ref:``; ``@<version>`` for an earlier version than the child's newest.

        Raises:
            InvalidArgument: *child* has no refs, or the ref has more than 1,000,000 characters, see `run_in_thread`.
            InvalidHandle: It is no ref.

        """
        self._check_open()
        store = child if isinstance(child, RefStore) else getattr(child, "refs", None)
        if not isinstance(store, RefStore):
            raise InvalidArgument(f"child must be a RefStore or a session, got {type(child).__name__}")
        # The other store belongs to the loop's thread; its entries never change, and may be read in any.
        entry = store._entries.find(_with_kind(ref_id)) if self._is_draft else store.get(ref_id)  # noqa: SLF001 - of this class
        ref = _as_ref(entry, ref_id)
        self._check_size("the ref", ref.text, call="adopt(child, ref_id)")
        return self._revised(ref.id, Revision(ref.text, ref.attributes, ref.complete, provenance=ref.provenance))

    def diff(self, before: str, after: str) -> str:
        """
        Return the difference of two handles as a unified diff; "" if they are the same.

        Args:
            before: The handle of the older one.
            after: The handle of the newer one.

        Raises:
            InvalidArgument: The two have more than 1,000,000 characters or 10,000 lines, see `run_in_thread`.

        """
        old, new = self.get(before), self.get(after)
        lines = old.lines + new.lines
        self._check_size("the texts", old.body.text, new.body.text, call="diff(before, after)", items=lines)
        return difference(old, new)

    def suggest(self, text: str) -> list[Suggestion]:
        """
        Propose ids for the code blocks of a text that no ref marks.

        Args:
            text: A model's answer.

        Raises:
            InvalidArgument: It has more than 1,000,000 characters, see `run_in_thread`.

        """
        self._check_size("text", text, call="suggest(text)")
        taken = {entry.id for entry in self._entries.live() if isinstance(entry, Ref)}
        return suggest(text, taken=taken)

    # Texts that are too long to show

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
        Store a text, or bytes, and return the descriptor.

        Args:
            text: A text, or bytes that are returned unchanged, of any length within the quota.
            source: The source of the text, shown to the model.
            mime_type: The type of the bytes, such as ``image/png``; only for bytes.
            origin: The author of the text, as for `MemoryStore.save_decision`; None to derive it from *source*, as
                `wrap` does.
            trust: The least trusted origin among everything that the text is based on; None for *origin*.

        Raises:
            InvalidArgument: *text* is neither, or has surrogates that no file could hold; bytes have no *mime_type*;
                *origin* or *trust* is unknown; or it has more than 1,000,000 characters or bytes, see
                `run_in_thread`.

        """
        self._check_open()
        self._check_size("text", text, call="add(text)")
        return self.add_any(text, source=source, mime_type=mime_type, origin=origin, trust=trust)

    def add_any(
        self,
        text: str | bytes,
        *,
        source: str,
        mime_type: str | None = None,
        origin: Origin | None = None,
        trust: Origin | None = None,
    ) -> Descriptor:
        """Store a text or bytes of any size, as `add` does; for content that is in memory already, such as an image."""
        self._check_open()
        if isinstance(text, bytes):
            kept = Content.of_bytes(text, mime_type)
        elif mime_type is None:
            kept = Content.of(text)
        else:
            raise InvalidArgument("mime_type is for bytes only", hint="leave it out: a text is text/plain")
        if not isinstance(source, str) or not source:
            raise InvalidArgument(f"source must be a word such as tool_result, got {shown(source)}")
        _check.encodable("source", source)
        author = Provenance.of_source(source) if origin is None else _author(origin)
        basis = None if trust is None else Provenance.by(_check.choice("trust", trust, ORIGINS))
        # The basis lowers the trust only, and not the origin.
        return self._add(kept, source, Provenance(author.origin, author.limited_by(basis).trust))

    def wrap(self, result: Any, *, source: str = "tool_result") -> Any:
        """
        Return a result as a model should read it: whole if it fits the budget of answers, else shortened.

        What was left out is kept under handles, as far as there is room.
        JSON stays JSON and text stays text: a mapping or list is shortened by its structure, and so is a text that is a
        JSON object or array; any other text becomes an ``<fd_result>`` with its beginning and its end.

        Args:
            result: Text; JSON-able data; or a list of content blocks, whose long texts are shortened, each for itself.
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
            load = measure(result, max_chars=SYNC_CHARS, max_items=SYNC_ITEMS)
            check_inline("result", load, hint=_WRAP_IN_THREAD)
        return self.within(result, self.budget, source=source)

    def within(
        self,
        result: Any,
        budget: Budget,
        *,
        source: str = "tool_result",
        schema: Mapping[str, Any] | None = None,
        keeps: bool = True,
        provenance: Provenance | None = None,
    ) -> Any:
        """
        Shorten a result as `wrap` does, within any budget.

        Args:
            result: As for `wrap`.
            budget: The maximum size of the answer.
            source: As for `wrap`.
            schema: The JSON Schema of the result, which says which texts never change.
            keeps: Whether to store the omitted parts under handles.
            provenance: The provenance of the handles; None to derive it from *source*.

        """
        self._check_open()
        written_by = Provenance.of_source(source) if provenance is None else provenance
        shelf = Shelf(
            next_number=lambda: self._entries.next_fd,
            check_room=self._entries.check_room,
            describe=functools.partial(self._describe, provenance=written_by),
            keep=lambda descriptor: self._put(descriptor.handle, descriptor),
            show=self.rendering.result,
        )
        wrapping = Wrapping(
            shelf=shelf, budget=budget, source=source, schema=schema, own_share=self.own_share, keeps=keeps
        )
        return wrapping.shown(result)

    # Reading

    def get(self, handle: str) -> Ref | Descriptor:
        """Return what a handle stands for; an id without ``ref:`` is a ref's."""
        return self._find(handle)

    def list(self, *, category: Category | None = None) -> tuple[Ref, ...]:
        """
        Return the newest version of every ref, the oldest id first.

        Args:
            category: Only these.

        Raises:
            InvalidParameter: There is no such category.

        """
        self._check_open()
        if category is not None and category not in _CATEGORIES:
            raise InvalidParameter(
                f"category must be one of {', '.join(_CATEGORIES)}, got {shown(category)}", parameter="category"
            )
        newest = {entry.id: entry for entry in self._entries.live() if isinstance(entry, Ref)}
        return tuple(ref for ref in newest.values() if category in {None, ref.category})

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Return all descriptors, the oldest first."""
        self._check_open()
        return tuple(entry for entry in self._entries.live() if isinstance(entry, Descriptor))

    def versions(self, ref_id: str) -> tuple[str, ...]:
        """
        Return the handles of all versions of a ref, the first one first.

        Args:
            ref_id: With or without ``ref:``.

        """
        entry = self.get(ref_id)
        return self._entries.versions(entry.id) if isinstance(entry, Ref) else (entry.handle,)

    def read(
        self, handle: str, *, mode: Mode = "page", start: int = 1, count: int = 1, read_all: bool = False
    ) -> Excerpt:
        """
        Read pages, lines or characters; all are counted from 1.

        Args:
            handle: ``fd:<n>``, ``ref:<id>`` or ``ref:<id>@<version>``.
            mode: What *start* and *count* count.
            start: The first.
            count: How many; fewer where the content ends before.
            read_all: Everything, whatever the others say.

        Returns:
            The exact text, where it stands, what comes next and how much remains.

        Raises:
            InvalidPage: There is no such page; the error has the valid range.
            InvalidRange: There is no such line or character.
            InvalidParameter: *mode*, *start* or *count* break their rules.

        """
        entry = self._find(handle)
        return read(
            entry.body,
            handle=entry.versioned,
            mode=mode,
            start=start,
            count=count,
            page_size=entry.page_size,
            read_all=read_all,
        )

    def extract(
        self, handle: str, *, mode: Mode = "page", start: int = 1, count: int = 1, read_all: bool = False
    ) -> Descriptor:
        """Store a part of a text as a new descriptor with the same origin and trust; see `read`."""
        self._check_open()
        excerpt = self.read(handle, mode=mode, start=start, count=count, read_all=read_all)
        provenance = self._find(excerpt.handle).provenance
        self._check_size("the part", excerpt.text, call="extract(handle)")
        return self._add(Content.of(excerpt.text), f"{EXTRACT}{excerpt.handle}", provenance)

    async def search(
        self,
        handle: str,
        query: str,
        *,
        regex: bool = False,
        case_sensitive: bool = False,
        start: int = 1,
        context: int = 0,
        limit: int = 20,
    ) -> SearchResult:
        """
        Find a text, or what a regular expression matches.

        Neither blocks the event loop, and both end within ``settings.search_timeout`` seconds.

        Args:
            handle: What to search.
            query: The text, or the pattern, as the package ``regex`` reads it (a superset of `re`), with ``^`` and
                ``$`` at every line.
            regex: Whether *query* is a pattern, in which case counts unless it begins with ``(?i)``.
            case_sensitive: Whether case counts in a text.
            start: The character from which to search.
            context: Lines around each match to give.
            limit: Matches to give at the most.

        Raises:
            InvalidParameter: *query* is empty or no pattern, or a number breaks its rule.
            InvalidRange: There is no such character.
            SearchTimeout: It took too long.

        """
        entry = self._find(handle)
        work = TextSearch(
            entry.body,
            query,
            handle=entry.versioned,
            regex=regex,
            case_sensitive=case_sensitive,
            start=start,
            context=context,
            limit=limit,
            timeout=self.settings.search_timeout,
            page_size=entry.page_size,
        )
        return await search(work)

    async def to_file(
        self,
        handle: str,
        file_path: str | os.PathLike[str],
        *,
        mode: ExportMode = "write",
        insert_at: int | None = None,
        create: bool = True,
        exist_ok: bool = True,
        parents: bool = False,
        exact: bool = False,
        by_model: bool = False,
    ) -> FileResult:
        """
        Write the whole body to a file below ``root``, in UTF-8, so that a crash leaves the old file or the new one.

        A ref is whole lines: it ends with a line break, and appended it begins on a line of its own.
        A descriptor is written byte for byte.

        Args:
            handle: What to write.
            file_path: Relative to ``root``, or absolute and below it.
            mode: ``"write"`` replaces the file, ``"append"`` adds to its end, ``"insert"`` adds whole lines.
            insert_at: For ``"insert"``: the line, counted from 1, before which they go.
            create: Whether a missing file may be made.
            exist_ok: Whether an existing file may be changed.
            parents: Whether missing directories may be made.
            exact: Whether a ref, too, is written byte for byte.
            by_model: Whether a model chose the path, which is refused where it is hidden, executable, read-only, a
                symlink, or cannot be read at sight; the tool ``fd_to_file`` says so.

        Raises:
            InvalidParameter: An argument breaks its rule.
            InvalidRange: The file has no such line.
            ExportError: The file was not written and is as it was; its children say why.

        """
        entry = self._find(handle)
        order = FileOrder(
            entry.body.text if entry.content.is_text else entry.content.data,
            file_path,
            handle=entry.versioned,
            mode=mode,
            insert_at=insert_at,
            create=create,
            exist_ok=exist_ok,
            parents=parents,
            lines=isinstance(entry, Ref) and not exact,
            by_model=by_model,
            allow_hidden=self.settings.allow_hidden,
        )
        return await in_own_thread(functools.partial(export, order, root=self.root, kept=self._directory))

    def delete(self, handle: str) -> None:
        """
        Delete a descriptor, a version of a ref, or with ``ref:<id>`` all its versions.

        A tombstone stays, and no number is used again.

        """
        self._check_open()
        doomed, deleted = self._entries.named_by(handle), DeletedEntry(self._clock())
        for one in doomed:
            self._put(one, deleted)

    def erase(self, erasure: Erasure, *, dry_run: bool) -> tuple[Entry, ...]:
        """Delete what is to be erased, or only find it, and return it; what is left of it says so."""
        self._check_open()
        doomed, deleted = self._entries.going(erasure), DeletedEntry(self._clock())
        for one in () if dry_run else doomed:
            self._put(one.versioned, deleted)
        return doomed

    def prompt(self, *, handles: bool = False) -> str:
        """
        Return what a system prompt should say about refs and descriptors.

        Args:
            handles: Whether to list what is stored, the newest first, as far as an answer's budget holds it.

        """
        text = instructions(self.settings, files=self.files is not None)
        if not (handles and text):
            return text
        return f"{text}\n\n{self.rendering.handles((*self.descriptors(), *self.list()))}"

    # How things are stored

    def _check_open(self) -> None:
        self._loop.check_here()
        if self._closed:
            raise SessionClosed(
                "the session of these refs was closed",
                hint="come back to them with Session.open(..., conversation=session.conversation)",
            )

    def _ref(self, ref_id: str) -> Ref:
        return _as_ref(self.get(ref_id), ref_id)

    def _find(self, handle: str) -> Entry:
        self._check_open()
        return self._entries.find(_with_kind(handle))

    def _ingested(self, collected: Collected) -> Ingested:
        """Store what one message marks, and remember what it marks in vain."""
        self._check_open()
        stored: dict[int, Ref] = {}
        said = list(collected.diagnostics)
        for marked in collected.marked:
            report = functools.partial(Diagnostic, id=marked.id, position=marked.position)
            before = self._newest(marked.id)
            text, author = collected.content(marked), Provenance.by("model")
            revision = Revision(text, marked.attributes, marked.complete, provenance=author)
            if before is None and asks_to_append(marked.attributes):
                message = f"there was no ref:{marked.id} to append to, so this is its first part"
                said.append(report("nothing_to_append", message=message))
            try:
                ref = stored[marked.position] = self._revised(marked.id, revision)
            except (QuotaExceeded, InvalidArgument) as error:
                why: DiagnosticKind = "quota_exceeded" if isinstance(error, QuotaExceeded) else "invalid_text"
                said.append(report(why, message=f"not stored: {error}"))
                self._entries.miss(marked.id, f"it was not stored: {error}")
                continue
            goes_on = before is not None and not before.complete and asks_to_append(marked.attributes)
            text = ref.text if goes_on else revision.text
            if marked.complete and any(not block.closed for block in fenced_blocks(text)):
                message = (
                    f"ref {marked.id!r} closes inside a code fence that is open: close the fence before </ref>,"
                    " since a fence that ends behind it hides what follows"
                )
                said.append(report("open_fence", message=message))
            if ref is not before and ref.version > 1:
                older = f"; {before.versioned} is the one before" if before else ""
                said.append(report("new_version", message=f"ref:{ref.id} is now version {ref.version}{older}"))
        for diagnostic in collected.diagnostics:
            if diagnostic.kind == "in_code" and diagnostic.id is not None:
                self._entries.miss(diagnostic.id, IN_CODE)
        for ref_id in mentioned(collected.text):
            # A model whose history names its refs so may write a new one so.
            if self._newest(ref_id) is None:
                self._entries.miss(ref_id, MENTIONED)
        said.sort(key=lambda diagnostic: diagnostic.position)
        self._version += 1
        return Ingested(
            refs=tuple(stored.values()),
            diagnostics=tuple(said),
            text=collected.text,
            visible=collected.visible,
            compact=collected.compact(stored),
        )

    def _streamed(self, collected: Collected, *, begun: int) -> Ingested:
        for at, (number, finished, ingested) in enumerate(self._finished):
            if number > begun and collected == finished:
                # Its finished message was stored while the stream was open.
                del self._finished[at]
                self._version += 1
                return ingested
        ingested = self._ingested(collected)
        if collected.marked:
            self._awaited.append((collected, ingested))
        return ingested

    def _newest(self, ref_id: str) -> Ref | None:
        """Return the newest version of a ref that can be read."""
        slot = self._entries.get(self._entries.newest(ref_id) or "")
        return slot if isinstance(slot, Ref) else None

    def _revised(self, ref_id: str, revision: Revision) -> Ref:
        """Store the next version of a ref, or return the newest one where that would say the same."""
        for text in (*revision.attributes, *revision.attributes.values()):
            _check.encodable("an attribute", text)
        before = self._newest(ref_id)
        if asks_to_append(revision.attributes) and before is not None:
            revision = appended(before, revision)
        provenance = revision.provenance.limited_by(inserted_texts())
        attributes = {name: value for name, value in revision.attributes.items() if name != "append"}
        content = self._entries.shared(Content.of(revision.text))
        ref = Ref(
            id=ref_id,
            version=self._entries.next_version(ref_id),
            category=category_of(attributes, content.text),
            attributes=attributes,
            complete=revision.complete,
            created_at=self._clock(),
            page_size=self.settings.page_size,
            content=content,
            origin=provenance.origin,
            trust=provenance.trust,
        )
        if before is not None and is_same(before, ref):
            return before
        self._entries.check_room(content)
        self._put(ref.versioned, ref)
        return ref

    def _describe(self, number: int, content: Content, source: str, *, provenance: Provenance) -> Descriptor:
        """Return a descriptor that is not stored yet."""
        # In a tool call, the result may repeat texts that replaced handles in the arguments.
        provenance = provenance.limited_by(inserted_texts())
        content = self._entries.shared(content)
        content.pages(self.settings.page_size)  # Build the page index now, so that reading a page is fast.
        return Descriptor(
            number=number,
            source=source,
            category=category_of({}, content.text) if content.is_text else "data",
            created_at=self._clock(),
            page_size=self.settings.page_size,
            content=content,
            mime_type=content.mime_type,
            origin=provenance.origin,
            trust=provenance.trust,
        )

    def _add(self, content: Content, source: str, provenance: Provenance) -> Descriptor:
        self._entries.check_room(self._entries.shared(content))
        descriptor = self._describe(self._entries.next_fd, content, source, provenance=provenance)
        self._put(descriptor.handle, descriptor)
        return descriptor

    def _put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        # A log that takes no more leaves everything as it was.
        if self._log is not None:
            self._log.put(handle, slot)
        self._entries.put(handle, slot)
        self._version += 1


def _with_kind(handle: Any) -> Any:
    """Return the handle of a ref where only its id is given."""
    return f"ref:{handle}" if isinstance(handle, str) and ":" not in handle else handle


def _author(origin: object) -> Provenance:
    """Return the provenance of a text by *origin*, or raise `InvalidArgument`."""
    return Provenance.by(_check.choice("origin", origin, ORIGINS))


def _as_ref(entry: Entry, ref_id: str) -> Ref:
    """Return an entry that is a ref, or raise `InvalidHandle`."""
    if not isinstance(entry, Ref):
        raise InvalidHandle(f"{ref_id} is no ref", handle=ref_id, hint="only refs have versions: ref:<id>")
    return entry


def _id_in(text: object) -> str:
    """Return the id of a ref, or raise `InvalidHandle`."""
    name = ref_id_in(text.removeprefix("ref:")) if isinstance(text, str) else None
    if name is None:
        raise InvalidHandle(f"{shown(text)} is no id of a ref", handle=f"{text!s:.80}", hint=f"an id is {ID_RULE}")
    return name
