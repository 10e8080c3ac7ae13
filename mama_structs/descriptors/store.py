"""The store of what a model wrote and of what was too large to show."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, Self, get_args

import attrs

from mama_structs import _check
from mama_structs._async import LoopBound, in_own_thread
from mama_structs._plain import to_jsonable
from mama_structs.descriptors.entries import DeletedEntry, Descriptor, Entries, Entry, Ref, Usage
from mama_structs.descriptors.export import ExportMode, FileOrder, FileResult, export
from mama_structs.descriptors.fences import fenced_blocks
from mama_structs.descriptors.kinds import Category, Suggestion, category_of, suggest
from mama_structs.descriptors.messages import DeltaReader, are_blocks, block_text, joined_blocks, said_by_model
from mama_structs.descriptors.parser import (
    Diagnostic,
    DiagnosticKind,
    Event,
    RefEnd,
    RefParser,
    RefStart,
    RefText,
    Text,
)
from mama_structs.descriptors.render import fd_result, instructions
from mama_structs.descriptors.search import SearchResult, TextSearch, search
from mama_structs.descriptors.text import Content, Excerpt, Mode, Pasted, preview, read, split_pasted
from mama_structs.errors import (
    InvalidArgument,
    InvalidParameter,
    MamaStructsError,
    QuotaExceeded,
    SessionClosed,
    WrongLoop,
)
from mama_structs.settings import AnswerSettings, DescriptorSettings

_WRAPPED: Final = re.compile('<fd_result fd="(fd:[0-9]+)"')
_CATEGORIES: Final = get_args(Category)
_BREAKS: Final = ("\r\n", "\n")


class Log(Protocol):
    """Where a store's changes go, to be written behind."""

    def put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        """Take what was stored, with its text, or that it was deleted."""


def _now() -> datetime:
    return datetime.now(UTC)


def files_of(files: str | os.PathLike[str] | None, settings: DescriptorSettings) -> Path | None:
    """Return the directory below which models may write files, None where the host names none."""
    given = os.fspath(files) if isinstance(files, str | os.PathLike) else files
    if given is None and not settings.root:
        return None
    if given is not None and (not isinstance(given, str) or not given or "\0" in given):
        raise InvalidArgument(f"files must be a directory or None, got {files!r:.80}")
    path = Path(given or settings.root).absolute()
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"files must be a directory, and {os.fspath(path)!r:.200} is a file")
    return path


def trimmed(text: str, *, closed: bool = True) -> str:
    r"""
    Drop one line break after an opening tag and one before the closing tag, and nothing else.

    A line break is ``\n`` or ``\r\n``.
    After a tag that ended its line in ``\n`` a ``\r`` at the end is content: what was put on lines of its own comes
    back exactly.
    """
    opening = next((kind for kind in _BREAKS if text.startswith(kind)), "")
    text = text[len(opening) :]
    kinds = ("\n",) if opening == "\n" else _BREAKS
    closing = next((kind for kind in kinds if closed and text.endswith(kind)), "")
    return text[: len(text) - len(closing)]


@attrs.define
class MarkedText:
    """A ref before it is stored: what its tag said and where, and where its content is in the visible text."""

    id: str
    attributes: Mapping[str, str]
    position: int
    begin: int
    end: int = -1
    complete: bool = False


@attrs.frozen
class Collected:
    """What one message holds: refs by opening tags, what the parser said, all that was scanned, and it without tags."""

    marked: tuple[MarkedText, ...]
    diagnostics: tuple[Diagnostic, ...]
    text: str = attrs.field(repr=False)
    visible: str = attrs.field(repr=False)

    def content(self, marked: MarkedText) -> str:
        """Return a ref's content: without the tags of refs inside, and without one line break at each end."""
        # On demand: the contents of nested refs may together be 64 times the text.
        return trimmed(self.visible[marked.begin : marked.end], closed=marked.complete)


class Collector:
    """
    Scans the pieces of one message, chunk by chunk, and collects its refs; without *marks*, tags are text.

    A ref does not go on from one piece into the next.
    """

    def __init__(self, *, marks: bool = True) -> None:
        self._marks = marks
        self._parser = RefParser()
        self._fed: list[str] = []
        self._before = 0  # Characters of the pieces before this one.
        self._visible: list[str] = []
        self._shown = 0
        self._open: list[MarkedText] = []
        self._marked: list[MarkedText] = []
        self._diagnostics: list[Diagnostic] = []

    def feed(self, chunk: str) -> list[Event]:
        """Scan the next part of the piece and return what is known by now."""
        self._fed.append(chunk)
        return self._take(self._parser.feed(chunk) if self._marks else [Text(chunk)] if chunk else [])

    def end_piece(self) -> list[Event]:
        """Say that what comes next is a text of its own."""
        events = self._take(self._parser.close())
        self._before += self._parser.position
        self._parser = RefParser()
        return events

    def finish(self) -> Collected:
        """Return what was found, after the last `end_piece`."""
        texts = "".join(self._fed), "".join(self._visible)
        return Collected(tuple(self._marked), tuple(self._diagnostics), *texts)

    def _take(self, events: Sequence[Event]) -> list[Event]:
        return [self._taken(event) for event in events]

    def _taken(self, event: Event) -> Event:
        if isinstance(event, Text | RefText):
            self._visible.append(event.text)
            self._shown += len(event.text)
            return event
        moved = attrs.evolve(event, position=event.position + self._before)
        if isinstance(moved, RefStart):
            self._open.append(MarkedText(moved.id, moved.attributes, moved.position, self._shown))
            self._marked.append(self._open[-1])
        elif isinstance(moved, RefEnd):
            closed = self._open.pop()
            closed.end, closed.complete = self._shown, moved.complete
        else:
            self._diagnostics.append(moved)
        return moved


@attrs.frozen(kw_only=True)
class Ingested:
    """
    What one message of a model held.

    Args:
        refs: The stored refs, in order of their opening tags.
        diagnostics: What its author may not have meant, in order of positions; worth telling the model.
        text: The text that was scanned, as it came.
        visible: The same without the tags of refs, for people.

    """

    refs: tuple[Ref, ...]
    diagnostics: tuple[Diagnostic, ...]
    text: str = attrs.field(repr=False)
    visible: str = attrs.field(repr=False)


class RefStream:
    """
    Takes a model's answer as it comes: ``feed`` every chunk, then ``close``.

    Chunks may be cut anywhere: what is stored is the same as for the whole answer in one piece.
    `RefStore.stream` makes one.
    """

    def __init__(self, collector: Collector, store: Callable[[Collected], Ingested]) -> None:
        self._collector = collector
        self._deltas = DeltaReader()
        self._store = store
        self._result: Ingested | None = None

    def __repr__(self) -> str:
        return f"<RefStream{', closed' if self._result is not None else ''}>"

    def feed(self, chunk: object) -> list[Event]:
        """
        Take the next part and return what is known by now, to be shown to people.

        Args:
            chunk: Text, or a stream event of the ``anthropic`` or ``openai`` packages (objects or dicts).

        Raises:
            InvalidArgument: It is nothing of the kind.
            SessionClosed: The stream was closed.

        """
        if self._result is not None:
            raise SessionClosed("the stream was closed", hint="take another one for the next answer: stream()")
        delta = self._deltas.read(chunk)
        if delta is None:
            return []
        events = self._collector.end_piece() if delta.starts_piece else []
        return [*events, *self._collector.feed(delta.text)] if delta.text else events

    def close(self) -> Ingested:
        """Store the refs, and return what was found; again, the same."""
        if self._result is None:
            self._collector.end_piece()
            self._result = self._store(self._collector.finish())
        return self._result


class RefStore:
    """
    Keeps ``ref:<id>``, the parts of its answers that a model marked, and ``fd:<n>``, what was too large to show.

    Works by itself, in memory; that of a `Session` is also kept on disk.
    Belongs to the thread and process that first use it.
    Whatever takes a handle raises `InvalidHandle` where it is none, `HandleNotFound` where nothing has it (the error
    names the nearest that exist, or says when it was deleted) and `HandleDamaged` where the disk did not give it back.
    What stores raises `QuotaExceeded` where there is no room, and then nothing was stored.

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
            raise InvalidArgument(f"settings must be DescriptorSettings, got {settings!r:.80}")
        if answers is not None and not isinstance(answers, AnswerSettings):
            raise InvalidArgument(f"answers must be AnswerSettings, got {answers!r:.80}")
        self.settings: DescriptorSettings = settings or DescriptorSettings()
        self.answers: AnswerSettings = answers or AnswerSettings()
        self.files: Path | None = files_of(files, self.settings)
        self.root: Path = self.files or Path.cwd()
        self._clock = clock
        self._entries = Entries(self.settings)
        self._log: Log | None = None
        self._directory: Path | None = None
        self._closed = False
        self._loop = LoopBound("ref store")

    def keep(self, log: Log, *, entries: Entries | None = None, directory: Path | None = None) -> None:
        """Hand all further changes to a log, which holds *entries*; no export may touch the session's *directory*."""
        self._loop.check_here()
        self._entries = entries or self._entries
        self._log = log
        self._directory = directory

    def is_like(self, other: RefStore) -> bool:
        """Tell whether another store was made with the same settings, and writes files to the same place."""
        mine, its = ((one.settings, one.answers, one.files, one.root) for one in (self, other))
        return mine == its

    def close(self) -> None:
        """Take nothing more: what is stored can still be read."""
        self._closed = True

    def fork(self) -> Self:
        """
        Return a store with a full copy of all refs and descriptors, which costs next to nothing until either changes.

        What either stores or deletes later, the other does not see; numbers and versions go on from here in both.
        The fork is in memory only; `Session.fork` makes one that is kept.
        """
        self._loop.check_here()
        child = type(self)(settings=self.settings, answers=self.answers, files=self.files, clock=self._clock)
        child.root = self.root
        child._entries = self._entries.fork()  # noqa: SLF001 - of this class
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
        return f"<RefStore {usage.handles} handles, {usage.bytes:,} of {usage.max_bytes:,} bytes>"

    def __len__(self) -> int:
        """Count the descriptors and refs, each version of a ref for itself."""
        return self._entries.usage.handles

    def __contains__(self, handle: object) -> bool:
        """Tell whether `get` gives something for a handle."""
        return self._entries.holds(_with_kind(handle))

    def __iter__(self) -> Iterator[str]:
        """Go through the handles, the oldest first, versions of refs included."""
        return (entry.versioned for entry in self._entries.live())

    @property
    def usage(self) -> Usage:
        """How much is held, and how much may be."""
        return self._entries.usage

    # What a model wrote

    def ingest(self, message: object) -> Ingested:
        """
        Store the refs of a model's answer, usable at once.

        A ref that cannot be stored is reported among the diagnostics, and the others are stored.

        Args:
            message: Text, content blocks (dicts or SDK objects), or a whole message of the ``anthropic`` or ``openai``
                packages. Thinking and tool calls are not scanned.

        Raises:
            InvalidArgument: *message* is nothing of the kind, or not by a model; nothing was stored.

        """
        self._check_open()
        collector = Collector(marks=self.settings.references_enabled)
        for piece in said_by_model(message):
            collector.feed(piece)
            collector.end_piece()
        return self._take(collector.finish())

    def stream(self) -> RefStream:
        """Return a stream for an answer that comes in parts; see `RefStream`."""
        return RefStream(Collector(marks=self.settings.references_enabled), self._take)

    def suggest(self, text: str) -> list[Suggestion]:
        """
        Propose ids for the code blocks of a text that no ref marks.

        Args:
            text: A model's answer.

        """
        taken = {entry.id for entry in self._entries.live() if isinstance(entry, Ref)}
        return suggest(text, taken=taken)

    # What is too large to show

    def add(self, text: str, *, source: str = "host") -> Descriptor:
        """
        Store a text and return its descriptor.

        Args:
            text: Of any length, within the quota.
            source: Where it came from, shown to the model.

        Raises:
            InvalidArgument: *text* is no text, or has surrogates that no file could hold.

        """
        self._check_open()
        content = Content.of(text)
        if not isinstance(source, str) or not source:
            raise InvalidArgument(f"source must be a word such as tool_result, got {source!r:.80}")
        _check.encodable("source", source)
        return self._add(content, source)

    def wrap(self, result: Any, *, source: str = "tool_result") -> Any:
        """
        Turn what is longer than ``settings.wrap_over`` characters into a descriptor.

        Args:
            result: Text; JSON-able data, which is measured and kept as JSON; or a list of content blocks, of which the
                long texts are turned into descriptors, each for itself, and many short ones together.
            source: Where it came from.
                In ``"user_input"`` the user's own words around what was pasted stay in sight.

        Returns:
            An ``<fd_result>`` with the beginning and the end, or *result* itself where it is short or has no text.

        Raises:
            InvalidArgument: The text has surrogates that no file could hold.

        """
        self._check_open()
        if isinstance(result, str):
            return self._wrap_text(result, source)
        if result is None or isinstance(result, int | float | bytes | bytearray | memoryview):
            return result
        return self._wrap_data(result, source)

    # Reading

    def get(self, handle: str) -> Ref | Descriptor:
        """Return what a handle stands for; an id without ``ref:`` is a ref's."""
        return self._find(_with_kind(handle))

    def list(self, *, category: Category | None = None) -> tuple[Ref, ...]:
        """
        Return the newest version of every ref, the oldest id first.

        Args:
            category: Only these.

        Raises:
            InvalidParameter: There is no such category.

        """
        self._loop.check_here()
        if category is not None and category not in _CATEGORIES:
            raise InvalidParameter(
                f"category must be one of {', '.join(_CATEGORIES)}, got {category!r:.80}", parameter="category"
            )
        newest = {entry.id: entry for entry in self._entries.live() if isinstance(entry, Ref)}
        return tuple(ref for ref in newest.values() if category in {None, ref.category})

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Return all descriptors, the oldest first."""
        self._loop.check_here()
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
        """Store a part of something as a descriptor of its own; see `read`."""
        self._check_open()
        excerpt = self.read(handle, mode=mode, start=start, count=count, read_all=read_all)
        return self._add(Content.of(excerpt.text), f"extract of {excerpt.handle}")

    async def search(
        self, handle: str, query: str, *, regex: bool = False, context: int = 0, limit: int = 20
    ) -> SearchResult:
        """
        Find a text, or what a regular expression matches.

        Neither blocks the event loop, and both end within ``settings.search_timeout`` seconds.

        Args:
            handle: What to search.
            query: The text, case-sensitive, or the pattern, as the package ``regex`` reads it (a superset of `re`),
                with ``^`` and ``$`` at every line.
            regex: Whether *query* is a pattern.
            context: Lines around each match to give.
            limit: Matches to give at the most.

        Raises:
            InvalidParameter: *query* is empty or no pattern, or a number breaks its rule.
            SearchTimeout: It took too long.

        """
        entry = self._find(handle)
        work = TextSearch(
            entry.body,
            query,
            handle=entry.versioned,
            regex=regex,
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
            entry.body.text,
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

    def prompt(self, *, handles: bool = False) -> str:
        """
        Return what a system prompt should say about refs and descriptors.

        Args:
            handles: Whether to list what is stored.

        """
        stored: Sequence[Entry] | None = (*self.descriptors(), *self.list()) if handles else None
        return instructions(self.settings, files=self.files is not None, stored=stored)

    # How things are stored

    def _check_open(self) -> None:
        self._loop.check_here()
        if self._closed:
            raise SessionClosed("the session of these refs was closed", hint="open another one")

    def _find(self, handle: str) -> Entry:
        self._loop.check_here()
        return self._entries.find(handle)

    def _take(self, collected: Collected) -> Ingested:
        self._check_open()
        refs: list[Ref] = []
        said = list(collected.diagnostics)
        for marked in collected.marked:
            try:
                for text in (*marked.attributes, *marked.attributes.values()):
                    _check.encodable("an attribute", text)
                content = self._entries.shared(Content.of(collected.content(marked)))
                self._entries.check_room(content)
            except (QuotaExceeded, InvalidArgument) as error:
                why: DiagnosticKind = "quota_exceeded" if isinstance(error, QuotaExceeded) else "invalid_text"
                said.append(Diagnostic(why, marked.id, marked.position, f"not stored: {error}"))
                continue
            version = self._entries.next_version(marked.id)
            if version > 1:
                before = self._entries.newest(marked.id)
                older = f"; {before} is the one before" if before else ""
                message = f"ref:{marked.id} is now version {version}{older}"
                said.append(Diagnostic("new_version", marked.id, marked.position, message))
            ref = Ref(
                id=marked.id,
                version=version,
                category=category_of(marked.attributes, content.text),
                attributes=dict(marked.attributes),
                complete=marked.complete,
                created_at=self._clock(),
                page_size=self.settings.page_size,
                content=content,
            )
            if marked.complete and any(not block.closed for block in fenced_blocks(content.text)):
                message = f"ref {marked.id!r} closes inside a code fence that is open: close the fence before </ref>"
                said.append(Diagnostic("open_fence", marked.id, marked.position, message))
            self._put(ref.versioned, ref)
            refs.append(ref)
        said.sort(key=lambda diagnostic: diagnostic.position)
        return Ingested(refs=tuple(refs), diagnostics=tuple(said), text=collected.text, visible=collected.visible)

    def _add(self, content: Content, source: str) -> Descriptor:
        content = self._entries.shared(content)
        self._entries.check_room(content)
        content.pages(self.settings.page_size)  # Indexed now, so that any page can be read at once.
        descriptor = Descriptor(
            number=self._entries.next_fd,
            source=source,
            category=category_of({}, content.text),
            created_at=self._clock(),
            page_size=self.settings.page_size,
            content=content,
        )
        self._put(descriptor.handle, descriptor)
        return descriptor

    def _put(self, handle: str, slot: Entry | DeletedEntry) -> None:
        # A log that takes no more leaves everything as it was.
        if self._log is not None:
            self._log.put(handle, slot)
        self._entries.put(handle, slot)

    def _wrap_text(self, text: str, source: str) -> str:
        limit = self.settings.wrap_over
        if len(text) <= limit:
            return text
        # Where the limit is small, what was wrapped is longer than the limit.
        found = _WRAPPED.match(text)
        entry = self._entries.get(found[1]) if found else None
        if isinstance(entry, Descriptor) and text == self._shown(entry):
            return text
        parts = split_pasted(text, over=limit) if source == "user_input" else Pasted("", text, "")
        return f"{parts.before}{self._shown(self.add(parts.pasted, source=source))}{parts.after}"

    def _shown(self, descriptor: Descriptor) -> str:
        shown = preview(descriptor.content, head=self.settings.preview_head, tail=self.settings.preview_tail)
        return fd_result(descriptor, shown)

    def _wrap_data(self, result: Any, source: str) -> Any:
        try:
            data = result if are_blocks(result) or self._is_short(result) else to_jsonable(result)
        except MamaStructsError:
            # What has no JSON form has no length, and cannot be shown as text either.
            return result
        if are_blocks(data):
            return self._wrap_blocks(data, source) or result
        if self._is_short(data):
            return result
        descriptor = self.add(json.dumps(data, ensure_ascii=False, indent=2), source=source)
        return self._shown(descriptor)

    def _is_short(self, data: Any) -> bool:
        try:
            return len(json.dumps(data, ensure_ascii=False)) <= self.settings.wrap_over
        except (TypeError, ValueError, RecursionError):
            return False

    def _wrap_blocks(self, blocks: Sequence[dict[str, Any]], source: str) -> Sequence[dict[str, Any]] | None:
        """Wrap the long texts; where many short ones are long together, those that stand side by side are one."""
        limit = self.settings.wrap_over
        lengths = [len(text) for block in blocks if (text := block_text(block)) is not None]
        if sum(lengths) <= limit:
            return None
        if max(lengths) <= limit:
            blocks = joined_blocks(blocks)
        texts = [text if (text := block_text(block)) and len(text) > limit else None for block in blocks]
        # Room for all of them, or nothing is stored.
        self._entries.check_room(*(Content.of(text) for text in texts if text))
        return [
            {**block, "text": self._wrap_text(text, source)} if text else block
            for block, text in zip(blocks, texts, strict=True)
        ]


def _with_kind(handle: Any) -> Any:
    """Return the handle of a ref where only its id is given."""
    return f"ref:{handle}" if isinstance(handle, str) and ":" not in handle else handle
