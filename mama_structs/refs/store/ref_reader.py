"""Read access to the entries of a ref store: parts, searches and exports."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from datetime import datetime
from pathlib import Path
from typing import Final, get_args

from mama_structs._internal.event_loop import LoopGuard, run_in_own_thread
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.offload import InputSize, check_sync_size
from mama_structs._internal.reprs import format_entries, format_heading, wrap_html
from mama_structs.errors import InvalidParameter, SessionClosed, WrongLoop, repr_short
from mama_structs.refs.markup.content_types import Category, Suggestion, suggest_ids
from mama_structs.refs.store.editing import make_unified_diff
from mama_structs.refs.store.entries import Descriptor, Entries, Entry, HandleLike, Ref, Usage, as_ref, with_kind
from mama_structs.refs.store.export import ExportMode, ExportRequest, FileResult, export
from mama_structs.refs.store.render import Rendering, render_instructions
from mama_structs.refs.store.text import Excerpt, Mode, read_excerpt
from mama_structs.refs.store.text_search import SearchResult, TextSearchRequest, search
from mama_structs.settings import DescriptorSettings

_CATEGORIES: Final = get_args(Category)
IN_THREAD_HINT: Final = "await refs.run_in_thread(lambda refs: refs.{})"


@with_call_hints(peer_names.REF_STORE)
class RefReader:
    """Reads the entries of a ref store without changing them. The subclass `RefStore` sets the attributes."""

    settings: DescriptorSettings
    files_root: Path | None
    _root: Path
    _rendering: Rendering
    _entries: Entries
    _clock: Callable[[], datetime]
    _loop: LoopGuard
    _directory: Path | None
    _log: object | None
    _is_named: bool
    _closed: bool
    _is_draft: bool

    def _repr_html_(self) -> str:
        live = [] if self._closed else [*self._entries.iter_entries()]
        newest = (one._repr_content() for one in reversed(live))
        return wrap_html(format_heading(repr(self)[1:-1]), format_entries(newest, len(live)))

    def __len__(self) -> int:
        """Return the number of descriptors and refs; each version of a ref counts."""
        self._check_open()
        return self._entries.usage.handles

    def __contains__(self, handle: object) -> bool:
        """Return True if `get` would return an entry."""
        self._check_open()
        return self._entries.contains(with_kind(handle))

    def __iter__(self) -> Iterator[str]:
        """Yield all handles, including all versions of refs, oldest first."""
        self._check_open()
        return (entry.versioned_handle for entry in self._entries.iter_entries())

    @property
    def usage(self) -> Usage:
        """The used handles and bytes, and their limits."""
        return self._entries.usage

    @property
    def _is_here(self) -> bool:
        """True if the current thread may use the store."""
        try:
            self._loop.check_or_bind_thread()
        except WrongLoop:
            return False
        return True

    def _now(self) -> datetime:
        """Return the time of the store's clock."""
        return self._clock()

    def get(self, handle: HandleLike) -> Ref | Descriptor:
        """
        Return the entry of a handle.

        Args:
            handle: The handle, a `Ref` or a `Descriptor`. A text without ``ref:`` or ``fd:`` is the id of a ref.

        """
        return self._find(handle)

    def diff(self, before: HandleLike, after: HandleLike) -> str:
        """
        Return a unified diff between two handles, or "" if their texts are equal.

        Args:
            before: The handle of the older text, as for `get`.
            after: The handle of the newer text, as for `get`.

        Raises:
            InvalidArgument: The texts have more than 1,000,000 characters or 10,000 lines, see `run_in_thread`.

        """
        old, new = self.get(before), self.get(after)
        lines = old.lines + new.lines
        self._check_size("the texts", old.body.text, new.body.text, call="diff(before, after)", items=lines)
        return make_unified_diff(old, new)

    def suggest_refs(self, text: str) -> list[Suggestion]:
        """
        Return suggested ids for those code blocks of a text that are outside of refs.

        Args:
            text: A model's answer.

        Raises:
            InvalidArgument: It has more than 1,000,000 characters, see `run_in_thread`.

        """
        self._check_size("text", text, call="suggest_refs(text)")
        taken = {entry.id for entry in self._entries.iter_entries() if isinstance(entry, Ref)}
        return suggest_ids(text, used_ids=taken)

    def list(self, *, category: Category | None = None) -> tuple[Ref, ...]:
        """
        Return the newest version of every ref, oldest id first.

        Args:
            category: If given, only refs of this category.

        Raises:
            InvalidParameter: *category* is unknown.

        """
        self._check_open()
        if category is not None and category not in _CATEGORIES:
            raise InvalidParameter(
                f"category must be one of {', '.join(_CATEGORIES)}, got {repr_short(category)}", parameter="category"
            )
        newest = {entry.id: entry for entry in self._entries.iter_entries() if isinstance(entry, Ref)}
        return tuple(ref for ref in newest.values() if category in {None, ref.category})

    def _list_creation_times(self) -> dict[str, datetime]:
        """Return the time of the oldest version of every ref, by handle."""
        times: dict[str, datetime] = {}
        for entry in self._entries.iter_entries():
            if isinstance(entry, Ref):
                times.setdefault(entry.handle, entry.created_at)
        return times

    def list_descriptors(self) -> tuple[Descriptor, ...]:
        """Return all descriptors, oldest first."""
        self._check_open()
        return tuple(entry for entry in self._entries.iter_entries() if isinstance(entry, Descriptor))

    def versions(self, ref_id: HandleLike) -> tuple[str, ...]:
        """
        Return the handles of all versions of a ref, oldest first.

        Args:
            ref_id: A ref, or its id with or without ``ref:``.

        """
        entry = self.get(ref_id)
        return self._entries.versions(entry.id) if isinstance(entry, Ref) else (entry.handle,)

    def read(
        self,
        handle: HandleLike,
        *,
        page: int | None = None,
        mode: Mode = "page",
        start: int = 1,
        count: int = 1,
        read_all: bool = False,
    ) -> Excerpt:
        """
        Return pages, lines or characters of a text. All count from 1.

        Args:
            handle: ``fd:<n>``, ``ref:<id>`` or ``ref:<id>@<version>``, a `Ref` or a `Descriptor`.
            page: The first page to read. It replaces *mode* and *start*.
            mode: The unit of *start* and *count*.
            start: The first unit to read.
            count: The number of units; fewer are read at the end of the content.
            read_all: Whether to read everything; *mode*, *start* and *count* are ignored.

        Returns:
            The exact text, its position, the start of the next part, and the remaining size.

        Raises:
            InvalidPage: There is no such page; the error has the valid range.
            InvalidRange: There is no such line or character.
            InvalidParameter: *mode*, *start* or *count* is invalid, or *page* is given together with *mode*, *start* or
                *read_all*.

        """
        entry = self._find(handle)
        if page is not None:
            if mode != "page" or start != 1 or read_all:
                raise InvalidParameter(
                    "page cannot be combined with mode, start or read_all",
                    parameter="page",
                    handle=entry.versioned_handle,
                    hint="read(handle, page=2), or read(handle, mode='line', start=120, count=40)",
                )
            start = page
        return read_excerpt(
            entry.body,
            handle=entry.versioned_handle,
            mode=mode,
            start=start,
            count=count,
            page_size=entry.page_size,
            read_all=read_all,
        )

    async def search(
        self,
        handle: HandleLike,
        query: str,
        *,
        regex: bool = False,
        case_sensitive: bool = False,
        start: int = 1,
        context: int = 0,
        limit: int = 20,
    ) -> SearchResult:
        """
        Search for a text or a regular expression.

        The search does not block the event loop, and ends within ``settings.search_timeout`` seconds.

        Args:
            handle: The handle of the text to search, as for `get`.
            query: The text, or a pattern of the package ``regex`` (a superset of `re`), in which ``^`` and ``$`` match
                at every line.
            regex: Whether *query* is a pattern. A pattern is case-sensitive, unless it starts with ``(?i)``.
            case_sensitive: Whether a text query is case-sensitive.
            start: The character from which to search.
            context: The number of lines to return before and after each match.
            limit: The maximum number of matches to return.

        Raises:
            InvalidParameter: *query* is empty or not a valid pattern, or a number is out of range.
            InvalidRange: There is no such character.
            SearchTimeout: The search exceeded the timeout.

        """
        entry = self._find(handle)
        work = TextSearchRequest(
            entry.body,
            query,
            handle=entry.versioned_handle,
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
        handle: HandleLike,
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
        Write the complete body to a file below the root in UTF-8, atomically.

        The root is `files_root`, or the working directory if that is None.

        After a crash, the file has its old or its new content. A ref is written as complete lines: it ends with a line
        break, and starts on a new line when appended. A descriptor is written byte for byte.

        Args:
            handle: The handle of the text or bytes to write, as for `get`.
            file_path: Relative to the root, or absolute and below it.
            mode: ``"write"`` replaces the file, ``"append"`` adds to its end, ``"insert"`` adds complete lines.
            insert_at: For ``"insert"``: the line, counted from 1, before which they are inserted.
            create: Whether a missing file may be created.
            exist_ok: Whether an existing file may be changed.
            parents: Whether missing directories may be created.
            exact: Whether a ref, too, is written byte for byte.
            by_model: Whether a model chose the path. Then the path is rejected if it is hidden, executable, read-only,
                a symlink, or has invisible characters, as the description of the tool ``fd_to_file`` says.

        Raises:
            InvalidParameter: An argument is invalid.
            InvalidRange: The file has no such line.
            ExportError: The file was not written and is unchanged; the subclass states the reason.

        """
        entry = self._find(handle)
        order = ExportRequest(
            entry.body.text if entry.content.is_text else entry.content.data,
            file_path,
            handle=entry.versioned_handle,
            mode=mode,
            insert_at=insert_at,
            create=create,
            exist_ok=exist_ok,
            parents=parents,
            lines=isinstance(entry, Ref) and not exact,
            by_model=by_model,
            allow_hidden=self.settings.allow_hidden,
        )
        return await run_in_own_thread(functools.partial(export, order, root=self._root, kept=self._directory))

    def system_prompt(self, *, handles: bool = False) -> str:
        """
        Return the system prompt about refs and descriptors.

        Args:
            handles: Whether to list the stored handles, newest first, as many as fit in the budget of an answer.

        """
        return self._render_prompt(frozenset() if self.files_root is not None else {"fd_to_file"}, handles=handles)

    def _render_prompt(self, missing_tools: AbstractSet[str], *, handles: bool) -> str:
        """Return the system prompt without the lines that name *missing_tools*."""
        outlives = self._is_named and self._log is not None
        text = render_instructions(self.settings, missing_tools=missing_tools, outlives_process=outlives)
        if not (handles and text):
            return text
        return f"{text}\n\n{self._rendering.render_handles((*self.list_descriptors(), *self.list()))}"

    def _check_open(self) -> None:
        self._loop.check_or_bind_thread()
        if self._closed:
            raise SessionClosed(
                "the session of these refs was closed",
                hint="come back to them with Session.open(..., conversation=session.conversation)",
            )

    def _check_size(self, name: str, *texts: object, call: str, items: int = 0) -> None:
        """Raise `InvalidArgument` for an input that is too large for a synchronous call."""
        if not self._is_draft:
            chars = sum(len(text) for text in texts if isinstance(text, str | bytes))
            check_sync_size(name, InputSize(chars, items), hint=IN_THREAD_HINT.format(call))

    def _find_ref(self, ref_id: HandleLike) -> Ref:
        return as_ref(self.get(ref_id), ref_id)

    def _find(self, handle: HandleLike) -> Entry:
        self._check_open()
        return self._entries.find(with_kind(handle))
