"""
Text and pattern search in a content.

A pattern may come from a model, and some patterns take unlimited time or memory. Therefore, a pattern whose compilation
is too expensive is rejected, matching runs in a thread without the GIL, and it stops at a deadline. Matching may still
use hundreds of megabytes, so only one pattern is matched at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import re
import threading
import time
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

import attrs

from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs._internal.jsonable import JsonMixin
from mama_structs._internal.lazy_import import load_regex
from mama_structs.errors import InvalidParameter, InvalidRange, SearchTimeout, repr_short
from mama_structs.refs.store.text import Content, Pages, Span, format_number

MAX_QUERY_CHARS: Final = 1_000
MAX_MATCHES: Final = 1_000
MAX_CONTEXT_LINES: Final = 20
MAX_MATCH_CHARS: Final = 500
# Maximum number of characters shown on each side of a match. A context line shows twice as many.
_SIDE_CHARS: Final = 100
# `str.find` and `str.split` hold the GIL, for about 0.1 ms with this number of characters.
_WINDOW_CHARS: Final = 2**17
# The regex compiler expands repeats. It needs about 300 bytes and a microsecond for each item.
_MAX_COMPILED_ITEMS: Final = 20_000
_REPEAT_PATTERN: Final = re.compile(r"(.?)\s*\{\s*(\d+)", re.DOTALL)
_VERBOSE_FLAG: Final = re.compile(r"\(\?[\w-]*x")
# Recursive patterns (supported by ``regex``, not by `re`) may exhaust the memory before the timeout.
_RECURSION_PATTERN: Final = re.compile(r"(?<!\\)(?:\\\\)*\(\?(?:R|[+-]?\d+|&|P>)")
# Seconds after the timeout during which the caller waits for the thread to stop.
_GRACE_SECONDS: Final = 0.1
# Maximum timeout in seconds that the system clocks support. In practice, it is no limit.
_MAX_TIMEOUT_SECONDS: Final = 1e6


@attrs.frozen
class ContextLine(JsonMixin):
    """The first 200 characters of a line near a match. *cut* is True if the line is longer."""

    number: int
    text: str = attrs.field(repr=False)
    cut: bool


@attrs.frozen(kw_only=True)
class Match(JsonMixin):
    """
    A match. Lines, columns and characters count from 1.

    *column* counts in the first line of the match.
    """

    line: int  # first line of the match
    column: int
    char: int
    length: int  # 0 for an empty match
    text: str = attrs.field(repr=False)
    text_cut: bool = attrs.field(repr=False)
    prefix: str = attrs.field(repr=False)
    prefix_cut: bool = attrs.field(repr=False)
    suffix: str = attrs.field(repr=False)
    suffix_cut: bool = attrs.field(repr=False)
    last_line: int = attrs.field(repr=False)  # last line of the match
    before: tuple[ContextLine, ...] = attrs.field(repr=False)
    after: tuple[ContextLine, ...] = attrs.field(repr=False)


@attrs.frozen(kw_only=True, repr=False)
class SearchResult(JsonMixin):
    """
    The matches of a search, in order.

    *total* is the number of matches from the start of the search, None if not all were counted. *next_start* is the
    character at which the next match begins, None if there is none.
    """

    _json_properties = ("more",)

    handle: str
    matches: tuple[Match, ...]
    total: int | None
    next_start: int | None

    @property
    def more(self) -> bool:
        """True if there are further matches."""
        return self.next_start is not None

    def __repr__(self) -> str:
        of = f" of {self.total}" if self.total is not None else " and more" if self.more else ""
        return f"<SearchResult: {len(self.matches)}{of} matches in {self.handle}>"


@attrs.define
class TextSearchRequest:
    """The parameters of one search; see `RefStore.search`."""

    content: Content
    query: str
    handle: str = attrs.field(kw_only=True)
    timeout: float = attrs.field(kw_only=True)
    regex: bool = attrs.field(default=False, kw_only=True)
    case_sensitive: bool = attrs.field(default=False, kw_only=True)
    start: int = attrs.field(default=1, kw_only=True)
    context: int = attrs.field(default=0, kw_only=True)
    limit: int = attrs.field(default=20, kw_only=True)
    page_size: int = attrs.field(default=4_000, kw_only=True)
    # Monotonic time of the timeout, set after validation.
    deadline: float = attrs.field(default=0.0, init=False)
    # Set when the caller no longer waits for the result.
    is_over: threading.Event = attrs.field(factory=threading.Event, init=False)


# Lock for pattern matching: only one thread of the process may match a pattern.
_pattern_lock: Final = SimpleNamespace(lock=threading.Lock())
if hasattr(os, "register_at_fork"):
    # In a forked child, no thread could release a lock that another thread held, so create a new lock.
    os.register_at_fork(after_in_child=lambda: vars(_pattern_lock).update(lock=threading.Lock()))


async def search(work: TextSearchRequest) -> SearchResult:
    """
    Search in a content, in a thread.

    Only one pattern is matched at a time; the time spent waiting counts towards the timeout. If the caller is
    cancelled, the thread continues until its next match or its deadline.
    """
    _check_request(work)
    timeout, regex = work.timeout, work.regex
    seconds = min(timeout, _MAX_TIMEOUT_SECONDS)
    work.deadline = time.monotonic() + seconds
    try:
        # The thread stops itself at its deadline. This timeout also covers waiting for the lock or for CPU time.
        async with asyncio.timeout(seconds + _GRACE_SECONDS):
            if regex:
                # The thread may wait for the lock, so do not block a thread of the shared pool.
                return await run_in_own_thread(lambda: _run_exclusively(work), abandon_on_cancel=True)
            return await asyncio.to_thread(_run_search, work)
    except TimeoutError as cause:
        raise SearchTimeout(
            f"the search in {work.handle} did not end within {timeout:g} s",
            seconds=timeout,
            handle=work.handle,
            hint="a plain query is quick; in a pattern, avoid repeats within repeats" if regex else None,
        ) from cause
    finally:
        work.is_over.set()


def _check_request(work: TextSearchRequest) -> None:
    """Raise `InvalidParameter` or `InvalidRange` for an invalid argument."""
    refused = functools.partial(InvalidParameter, handle=work.handle)
    timeout, regex = work.timeout, work.regex
    for name, value, lowest, highest in (
        ("limit", work.limit, 1, MAX_MATCHES),
        ("context", work.context, 0, MAX_CONTEXT_LINES),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise refused(f"{name} must be a whole number from {lowest} to {highest}", parameter=name)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise refused(f"timeout must be more than 0 seconds, got {repr_short(timeout)}", parameter="timeout")
    for name, flag in (("regex", regex), ("case_sensitive", work.case_sensitive)):
        if not isinstance(flag, bool):
            raise refused(f"{name} must be true or false, got {repr_short(flag)}", parameter=name)
    start, last = work.start, max(1, work.content.chars)
    if not isinstance(start, int) or isinstance(start, bool):
        raise refused(f"start must be a whole number, got {repr_short(start)}", parameter="start")
    if not 1 <= start <= last:
        raise InvalidRange(
            f"{work.handle} has no character {format_number(start)}", valid=(1, last), handle=work.handle
        )
    if problem := _find_query_problem(work.query, regex=regex):
        raise refused(problem, parameter="query")


def _find_query_problem(query: object, *, regex: bool) -> str:
    if not isinstance(query, str):
        return f"query must be text, got {type(query).__name__}"
    if not query:
        return "query must not be empty"
    if len(query) > MAX_QUERY_CHARS:
        return f"query must have at most {MAX_QUERY_CHARS} characters, got {len(query)}"
    if regex and _RECURSION_PATTERN.search(query):
        return "query calls itself or a group of its own, which is not supported"
    if regex and _estimate_compiled_items(query) > _MAX_COMPILED_ITEMS:
        return f"query repeats too much: its repeats, written out, must stay below {_MAX_COMPILED_ITEMS} items"
    return ""


def _estimate_compiled_items(pattern: str) -> int:
    """Return an upper bound for the number of items of a pattern with expanded repeats."""
    # Also count braces that are not repeats. Otherwise, escapes or sets could hide a repeat.
    spaces_mean_nothing = _VERBOSE_FLAG.search(pattern) is not None
    items, factor = len(pattern), 1
    for found in _REPEAT_PATTERN.finditer(pattern):
        times = int(found[2])
        if found[1] == ")" or spaces_mean_nothing:
            factor *= max(1, times)
        else:
            items += times
    return items * factor


def _run_exclusively(work: TextSearchRequest) -> SearchResult:
    """Run a pattern search when no other one runs in this process. Raise TimeoutError at the deadline."""
    lock = _pattern_lock.lock
    if not lock.acquire(timeout=max(0.0, work.deadline - time.monotonic())):
        raise TimeoutError
    try:
        _check_time(work)
        return _run_search(work)
    finally:
        lock.release()


def _run_search(work: TextSearchRequest) -> SearchResult:
    """Run a search in the current thread, or raise TimeoutError at the deadline."""
    text, query = work.content.text, work.query
    if not (work.regex or work.case_sensitive):
        text, query = _fold_case(text, work), _fold_case(query, work)
    spans = _find_pattern_spans(work) if work.regex else _find_text_spans(work, text, query)
    kept = list(islice(spans, work.limit))
    following = next(spans, None) if len(kept) == work.limit else None
    pages = work.content.pages(work.page_size)
    matches = []
    for start, end in kept:
        _check_time(work)
        matches.append(_make_match(pages, start, end, work.context))
    total = len(kept) if following is None else None
    if following is not None and not work.regex:
        # All requested matches are found, so ignore a timeout while the remaining ones are counted.
        with contextlib.suppress(TimeoutError):
            total = len(kept) + _count_matches(work, text, query, following[0])
    next_start = None if following is None else following[0] + 1
    return SearchResult(handle=work.handle, matches=tuple(matches), total=total, next_start=next_start)


def _check_time(work: TextSearchRequest) -> None:
    if work.is_over.is_set() or time.monotonic() > work.deadline:
        raise TimeoutError


def _fold_case(text: str, work: TextSearchRequest) -> str:
    """Return the text in lower case for comparison. The offsets of characters do not change."""

    def fold_part(part: str) -> str:
        # `str.lower` would turn U+0130 into two characters. U+03C2 is the sigma at the end of a word.
        return part.replace("\u0130", "i").lower().replace("\u03c2", "\u03c3")

    parts = []
    for position in range(0, len(text), _WINDOW_CHARS):
        _check_time(work)
        parts.append(fold_part(text[position : position + _WINDOW_CHARS]))
    return "".join(parts)


def _find_text_spans(work: TextSearchRequest, text: str, query: str) -> Iterator[Span]:
    position = work.start - 1
    while position < len(text):
        _check_time(work)
        end = position + _WINDOW_CHARS
        found = text.find(query, position, end + len(query) - 1)
        if found >= 0:
            yield found, found + len(query)
        position = found + len(query) if found >= 0 else end


def _count_matches(work: TextSearchRequest, text: str, query: str, position: int) -> int:
    """
    Return the number of matches from a position on, without holding the GIL for long.

    The result equals that of `str.count`.
    """
    total = 0
    if not any(query.startswith(query[shift:]) for shift in range(1, len(query))):
        # Matches of this query cannot overlap, so count them window by window, which is 30 times as fast.
        for start in range(position, len(text), _WINDOW_CHARS):
            _check_time(work)
            total += text.count(query, start, start + _WINDOW_CHARS + len(query) - 1)
        return total
    while True:
        _check_time(work)
        end = min(len(text), position + _WINDOW_CHARS)
        pieces = text[position:end].split(query)
        total += len(pieces) - 1
        if end == len(text):
            return total
        # Continue after the last match or, if later, at the first position where a match would exceed this window.
        position = max(end - len(pieces[-1]), end - len(query) + 1)


def _find_pattern_spans(work: TextSearchRequest) -> Iterator[Span]:
    text, pattern = work.content.text, _compile_pattern(work)
    # Skip an empty match after a final line feed, because no line starts there.
    nowhere = (len(text), len(text)) if text.endswith("\n") else None
    position, last, rate = work.start - 1, None, 1.0
    while True:
        started, used = time.monotonic(), time.process_time()
        left = work.deadline - started
        if left <= 0:
            raise TimeoutError
        try:
            for found in pattern.finditer(text, position, timeout=left * rate, concurrent=True):
                _check_time(work)
                span = found.span()
                # Skip the previous empty match, which is found again after a restart.
                if span not in (last, nowhere):
                    yield span
                position, last = span[1], span
        except TimeoutError:
            # The regex module limits CPU time, and the CPU time of the process includes other threads.
            # In measurements, one busy thread halved the effective timeout, so scale the timeout accordingly.
            elapsed = max(time.monotonic() - started, 1e-6)
            rate = max(1.0, (time.process_time() - used) / elapsed)
        except (MemoryError, RecursionError) as cause:
            problem = "query needs too much memory on this content"
            raise InvalidParameter(problem, parameter="query", handle=work.handle) from cause
        else:
            return


def _compile_pattern(work: TextSearchRequest) -> Any:
    # Import regex lazily, because only pattern searches need it.
    regex = load_regex()
    try:
        return regex.compile(work.query, regex.MULTILINE, cache_pattern=False)
    except Exception as error:
        # Report every error of the compiler as an invalid pattern, because only the pattern can cause it.
        if isinstance(error, RecursionError):
            problem = "it is nested too deeply"
        elif isinstance(error, MemoryError | OverflowError):
            problem = "it is too large"
        else:
            position = getattr(error, "pos", None)
            where = "" if position is None else f" at its character {position + 1}"
            problem = f"{getattr(error, 'msg', 'it cannot be compiled')!s:.80}{where}"
        message = f"query is no valid regular expression: {problem}"
        raise InvalidParameter(message, parameter="query", handle=work.handle) from error


def _make_match(pages: Pages, start: int, end: int, context: int) -> Match:
    text = pages.text
    line, last_line = pages.line_at(start), pages.line_at(max(start, end - 1))
    line_start = pages.line_start(line)
    line_end = _end_without_line_break(text, line_start, pages.line_start(last_line + 1))
    prefix_start = max(line_start, start - _SIDE_CHARS)
    suffix_end = max(end, min(line_end, end + _SIDE_CHARS))
    return Match(
        line=line,
        column=start - line_start + 1,
        char=start + 1,
        length=end - start,
        text=text[start : min(end, start + MAX_MATCH_CHARS)],
        text_cut=end - start > MAX_MATCH_CHARS,
        prefix=text[prefix_start:start],
        prefix_cut=prefix_start > line_start,
        suffix=text[end:suffix_end],
        suffix_cut=suffix_end < line_end,
        last_line=last_line,
        before=tuple(_make_context_lines(pages, max(1, line - context), line - 1)),
        after=tuple(_make_context_lines(pages, last_line + 1, min(pages.lines, last_line + context))),
    )


def _make_context_lines(pages: Pages, first: int, last: int) -> Iterator[ContextLine]:
    text, start = pages.text, pages.line_start(first)
    for number in range(first, last + 1):
        # Search for the line end in the visible part before the page index, because a line may be as long as the text.
        after = text.find("\n", start, start + 2 * _SIDE_CHARS) + 1 or pages.line_start(number + 1)
        end = _end_without_line_break(text, start, after)
        shown = min(end, start + 2 * _SIDE_CHARS)
        yield ContextLine(number, text[start:shown], cut=shown < end)
        start = after


def _end_without_line_break(text: str, start: int, end: int) -> int:
    return end - next((len(kind) for kind in ("\r\n", "\n") if text.endswith(kind, start, end)), 0)
