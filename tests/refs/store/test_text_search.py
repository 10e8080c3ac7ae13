"""`search`: searches a content for a text or a pattern."""

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import threading
import time
import unicodedata
from pathlib import Path

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

import mama_structs
from mama_structs.errors import InvalidParameter, SearchTimeout
from mama_structs.refs.store import text_search as search_module
from mama_structs.refs.store.text import Content
from mama_structs.refs.store.text_search import TextSearchRequest, search

TEXTS = st.text(st.sampled_from("aab\n\n\r é😀"))
QUERIES = st.text(st.sampled_from("aab\n é"), min_size=1, max_size=3)
PATTERNS = st.sampled_from(
    [
        "a",
        "a*",
        "x*",
        "^",
        "$",
        "^$",
        r"\b",
        r"\b|a+",
        "(?=a)",
        "(?<=a)b",
        "a|",
        "[^a]+",
        r"(a)\1",
        "(?s)a.b",
        "a+?",
        "^a",
    ]
)


async def found(text, query, **options):
    content = text if isinstance(text, Content) else Content.from_text(text)
    return await search(
        TextSearchRequest(content, query, **({"handle": "fd:1", "timeout": 5, "page_size": 5} | options))
    )


def places(result):
    return [(match.char - 1, match.char - 1 + match.length) for match in result.matches]


@given(TEXTS, QUERIES, st.integers(1, 4))
@example("aaaa", "aa", 1)
async def test_search_finds_same_matches_as_str_find(text, query, limit):
    """The first matches are returned, left to right without overlap, and all are counted."""
    result = await found(text, query, limit=limit)
    expected = [match.span() for match in re.finditer(re.escape(query), text)]

    assert expected[:limit] == places(result)
    assert len(expected) == text.count(query) == result.total
    assert (len(expected) > limit) == result.more
    assert "fd:1" == result.handle


@given(TEXTS, PATTERNS, st.integers(1, 6))
async def test_search_finds_same_matches_as_re(text, pattern, limit):
    """Empty matches count, except after a final line feed."""
    result = await found(text, pattern, regex=True, limit=limit)
    expected = [match.span() for match in re.finditer(pattern, text, re.MULTILINE)]
    if text.endswith("\n"):
        expected = [span for span in expected if span != (len(text), len(text))]

    assert expected[:limit] == places(result)
    assert (len(expected) > limit) == result.more
    assert (None if result.more else len(expected)) == result.total


@given(TEXTS, QUERIES, st.integers(0, 3))
async def test_search_returns_correct_positions(text, query, context):
    """Lines, columns, text and context lines match the content."""
    *broken, last = text.split("\n")
    lines = [*(line.removesuffix("\r") for line in broken), last]
    count = Content.from_text(text).lines
    for match in (await found(text, query, context=context, limit=1000)).matches:
        start, end = match.char - 1, match.char - 1 + match.length

        assert query == match.text
        assert text.count("\n", 0, start) + 1 == match.line
        assert start - text.rfind("\n", 0, start) == match.column
        assert text.count("\n", 0, end - 1) + 1 == match.last_line
        assert text[start - match.column + 1 : start] == match.prefix
        before = range(max(1, match.line - context), match.line)
        after = range(match.last_line + 1, min(count, match.last_line + context) + 1)
        assert [(n, lines[n - 1], False) for n in before] == [(x.number, x.text, x.cut) for x in match.before]
        assert [(n, lines[n - 1], False) for n in after] == [(x.number, x.text, x.cut) for x in match.after]
        shown = match.prefix + match.text + match.suffix
        last_line_start = text.rfind("\n", 0, end - 1) + 1
        assert lines[match.last_line - 1][end - last_line_start :] == match.suffix
        assert shown == text[start - match.column + 1 : end + len(match.suffix)]


async def test_search_truncates_long_lines():
    """At most 100 characters on each side of a match, and 200 of a context line."""
    text = "\n".join(["b" * 1_000_000, "x" * 500_000 + "needle" + "y" * 500_000, "c" * 1_000_000])
    match = (await found(text, "needle", context=1, page_size=4_000)).matches[0]

    assert (2, 500_001, 1_500_002) == (match.line, match.column, match.char)
    assert ("x" * 100, True, "y" * 100, True) == (match.prefix, match.prefix_cut, match.suffix, match.suffix_cut)
    assert [("b" * 200, True)] == [(line.text, line.cut) for line in match.before]
    assert [("c" * 200, True)] == [(line.text, line.cut) for line in match.after]


async def test_search_does_not_truncate_lines_of_maximum_length():
    """The flags are set only if characters are missing."""
    text = "b" * 200 + "\r\n" + "x" * 100 + "needle" + "y" * 100 + "\n" + "c" * 200
    match = (await found(text, "needle", context=1)).matches[0]

    assert (False, False, False) == (match.prefix_cut, match.suffix_cut, match.text_cut)
    assert (["b" * 200], ["c" * 200]) == ([x.text for x in match.before], [x.text for x in match.after])
    assert not any(line.cut for line in (*match.before, *match.after))


async def test_search_truncates_long_match():
    """500 characters and the full length are returned."""
    exact, longer = [(await found("a" * n, "a+", regex=True)).matches[0] for n in (500, 501)]

    assert ("a" * 500, False, 500) == (exact.text, exact.text_cut, exact.length)
    assert ("a" * 500, True, 501) == (longer.text, longer.text_cut, longer.length)


async def test_search_match_over_several_lines_has_both_lines():
    """The prefix is from the first line, the suffix from the last."""
    match = (await found("zero\none two\nthree four\nfive", "two\nthree", context=5)).matches[0]

    assert (2, 5, 3, "one ", " four") == (match.line, match.column, match.last_line, match.prefix, match.suffix)
    assert ([1], [4]) == ([line.number for line in match.before], [line.number for line in match.after])


async def test_search_case_sensitivity():
    """Patterns are case-sensitive; for text queries it is an option."""
    text = "A.c abc a.C ÉÉ éé"

    assert [(0, 3), (8, 11)] == places(await found(text, "a.C"))
    assert [(8, 11)] == places(await found(text, "a.C", case_sensitive=True))
    assert [(8, 11)] == places(await found(text, "a[.]C", regex=True))
    assert [(0, 3), (4, 7), (8, 11)] == places(await found(text, "(?i)A.C", regex=True))


@pytest.mark.parametrize(("text", "query"), [("İİ x İX", "ix"), ("ΟΔΟΣ οδος", "ΟΔΟΣ"), ("K k", "k"), ("straße", "ße")])
async def test_search_ignoring_case_keeps_positions(text, query):
    """Letters whose lower case has another length do not shift positions."""
    for start, end in places(await found(text, query)):
        assert len(query) == end - start
    assert places(await found(text, query))


@given(text=st.text(st.sampled_from("aAbİΣς\n")), query=st.text(st.sampled_from("abΣ"), min_size=1))
async def test_search_from_next_start_continues_search(text, query):
    """Following next_start returns the same matches as one search."""
    whole, parts, following = places(await found(text, query)), [], 1
    while following is not None:
        result = await found(text, query, limit=1, start=following)
        parts += places(result)
        following = result.next_start

    assert whole == parts


@pytest.mark.parametrize("text", ["", "text", "\n"])
async def test_search_returns_no_matches_when_text_is_missing(text):
    """An empty result is not an error."""
    result = await found(text, "absent")

    assert ((), False, 0) == (result.matches, result.more, result.total)


async def test_search_finds_empty_lines():
    """A final line feed does not start a line; an empty content has one line."""
    assert [2, 4] == [match.line for match in (await found("a\n\nb\n\n", "^$", regex=True)).matches]
    assert [1] == [match.line for match in (await found("", "^$", regex=True)).matches]


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"query": ""}, "query"),
        ({"query": "x" * 1001}, "query"),
        ({"query": None}, "query"),
        ({"query": b"x"}, "query"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": "5"}, "limit"),
        ({"limit": 10**5000}, "limit"),
        ({"context": -1}, "context"),
        ({"context": 21}, "context"),
        ({"context": 1.0}, "context"),
        ({"regex": "yes"}, "regex"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"timeout": True}, "timeout"),
    ],
)
async def test_search_names_invalid_parameter(options, parameter):
    """Nothing is searched."""
    with pytest.raises(InvalidParameter) as caught:
        await found("text", **({"query": "t"} | options))

    assert (parameter, "fd:1") == (caught.value.parameter, caught.value.handle)
    assert str(caught.value).startswith(parameter)


async def test_search_accepts_maximum_parameters():
    """Limits are inclusive, and the timeout may be any finite number."""
    result = await found("x" * 1000, "x" * 1000, limit=1000, context=20, timeout=1e308)

    assert 1 == result.total


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("ab(", "at its character 4"),
        ("[a", "regular expression"),
        ("a**", "at its character 3"),
        (r"\p{Nonsense}", "unknown property"),
        (r"\L<words>", "undefined named list"),
        ("(" * 450 + ")" * 450, "nested too deeply"),
        ("a{99999999999999999999}", "repeats too much"),
        ("a{2000000000}", "repeats too much"),
        ("(?:ab){1000000}", "repeats too much"),
        ("(?:ab){1000000,}", "repeats too much"),
        ("((a{100}){100}){100}", "repeats too much"),
        (r"[\]}(]{30000}", "repeats too much"),
        ("(?x) (?: a{200} ) # ) \n {200}", "repeats too much"),
    ],
)
async def test_search_rejects_invalid_or_expensive_pattern(pattern, message):
    """Patterns that cannot be compiled, or only at a high cost, are rejected."""
    with pytest.raises(InvalidParameter, match=re.escape(message)) as caught:
        await found("text" * 100, pattern, regex=True)

    assert "query" == caught.value.parameter


@pytest.mark.parametrize(
    "pattern",
    [
        "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        r"(?:\d{1,3}\.){3}\d{1,3}",
        r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}",
        r".{0,500}needle.{0,500}",
        r"\w{1000}",
    ],
)
async def test_search_accepts_ordinary_repeats(pattern):
    """The limit on repeats does not affect ordinary patterns."""
    text = "at 123e4567-e89b-12d3-a456-426614174000, 127.0.0.1, 2026-01-31T10:20:30.123456 needle " + "w" * 1000

    assert 1 == (await found(text, pattern, regex=True)).total


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "a*a*c", "(?:a(?:a|aa)*)*$"])
async def test_search_stops_hostile_pattern_at_timeout(pattern):
    """SearchTimeout is raised, and the thread ends."""
    threads = threading.active_count()
    with pytest.raises(SearchTimeout, match=r"fd:1 did not end within 0\.2 s") as caught:
        await found("a" * 100_000 + "b\nc", pattern, regex=True, timeout=0.2)
    again = await found("abc", "b")

    assert (0.2, "fd:1") == (caught.value.seconds, caught.value.handle)
    assert 1 == again.total
    assert threads + 4 > threading.active_count()


async def test_search_deadline_includes_all_matches():
    """Many fast matches together must not exceed the timeout."""
    # Matching a line takes some milliseconds, so the total of all lines exceeds the timeout.
    text = ("a" * 22 + "b\n") * 1_000
    with pytest.raises(SearchTimeout):
        await found(text, "(?:(?:a|aa)+c)|b", regex=True, limit=1000, timeout=0.3)


async def test_search_timeout_ignores_cpu_time_of_other_threads():
    """The timeout is wall-clock time: busy threads do not shorten it."""
    stop = threading.Event()

    def burn():
        data = b"x" * 10_000_000
        while not stop.is_set():
            hashlib.sha256(data)

    burner = threading.Thread(target=burn)
    burner.start()
    try:
        started = time.perf_counter()
        with pytest.raises(SearchTimeout):
            await found("a" * 60 + "b", "(a|aa)+$", regex=True, timeout=0.6)
        elapsed = time.perf_counter() - started
    finally:
        stop.set()
        burner.join()

    assert 0.55 < elapsed


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("(a|aa)+$", {"regex": True}),
        ("a", {}),
        ("aa", {}),
        ("zq", {}),
        ("a" * 500 + "z", {}),
    ],
)
async def test_search_does_not_block_event_loop(query, options):
    """Neither a hostile pattern nor a text search of ten million characters blocks it."""
    content = Content.from_text("a" * 10_000_000)
    content.pages(4_000)
    turns = 0
    timeout = 0.5 if options else 60
    searching = asyncio.create_task(found(content, query, page_size=4_000, timeout=timeout, **options))
    while not searching.done():
        # Do not sleep at first, because on a slow machine the search could end during the sleep.
        await asyncio.sleep(0 if turns < 3 else 0.001)
        turns += 1
    if query == "(a|aa)+$":
        assert searching.exception() is None or isinstance(searching.exception(), SearchTimeout)
        assert 2 < turns
    else:
        assert query.count("a") == 0 or (await searching).total in {10_000_000 // len(query), 0}


async def test_search_omits_total_when_counting_times_out(monkeypatch):
    """The matches that were found are returned without their total number."""

    def is_over(work):
        if "_count_matches" == sys._getframe(1).f_code.co_name:
            raise TimeoutError

    # Patch this function and not the clock, because threads of earlier tests also read the clock.
    monkeypatch.setattr(search_module, "_check_time", is_over)
    result = await found("a" * 40_000_000, "aa", limit=3, timeout=60.0, page_size=4_000)

    assert (3, True, None) == (len(result.matches), result.more, result.total)


async def test_search_finds_matches_across_windows():
    """Matches at window boundaries are found and counted once."""
    unit = "ab" * 999 + "aXbXa"
    # The length of "needle" does not divide any window length, so window boundaries split its matches.
    text = unit * 400 + "needle" * 200_000
    for query in ("needle", "XbX", "aXbXaab", "abab", "a", unit[-1000:], "bXaa"):
        result = await found(text, query, limit=1000, page_size=4_000)
        expected = [match.span() for match in re.finditer(re.escape(query), text)]

        assert text.count(query) == len(expected) == result.total
        assert expected[:1000] == places(result)


async def test_search_reports_memory_error_as_invalid_query(monkeypatch):
    """Running out of memory while matching is an error of the query."""

    class Heavy:
        def finditer(self, *_, **__):
            raise MemoryError

    monkeypatch.setattr(regex, "compile", lambda *_, **__: Heavy())
    with pytest.raises(InvalidParameter, match="needs too much memory") as caught:
        await found("text", "t", regex=True)

    assert "query" == caught.value.parameter


class Slow:
    """A fake pattern that blocks until it is released, matches nothing, and counts concurrent searches."""

    def __init__(self, monkeypatch):
        self.go, self.first, self.guard = threading.Event(), threading.Event(), threading.Lock()
        self.now = self.most = self.begun = 0
        compiled = regex.compile

        def compile_(pattern, *arguments, **options):
            return self if pattern == "slow" else compiled(pattern, *arguments, **options)

        monkeypatch.setattr(regex, "compile", compile_)

    def finditer(self, *_, **__):
        with self.guard:
            self.now += 1
            self.begun += 1
            self.most = max(self.most, self.now)
        self.first.set()
        assert self.go.wait(600)
        time.sleep(0.01)
        with self.guard:
            self.now -= 1
        return iter(())

    async def has_begun(self):
        assert await asyncio.to_thread(self.first.wait, 600)


async def test_search_returns_immediately_when_cancelled(monkeypatch):
    """The caller does not wait for the thread, which continues."""
    slow = Slow(monkeypatch)
    searching = asyncio.create_task(found("text", "slow", regex=True))
    await slow.has_begun()
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching

    assert 1 == slow.now
    slow.go.set()


async def test_search_matches_one_pattern_at_a_time(monkeypatch):
    """Patterns may use much memory, so concurrent searches wait for each other."""
    slow = Slow(monkeypatch)
    slow.go.set()
    results = await asyncio.gather(*(found("text", "slow", regex=True, limit=1) for _ in range(8)))

    assert [0] * 8 == [result.total for result in results]
    assert (1, 8) == (slow.most, slow.begun)


async def test_search_times_out_while_waiting_for_lock(monkeypatch):
    """Text searches do not wait, and the next pattern gets the lock."""
    slow = Slow(monkeypatch)
    first = asyncio.create_task(found("text", "slow", regex=True))
    await slow.has_begun()
    before = set(threading.enumerate())
    with pytest.raises(SearchTimeout) as caught:
        await found("text", "t", regex=True, timeout=0.2)
    # The thread of the timed-out search must end instead of waiting for the lock.
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(600)
    left = {thread for thread in left if thread.is_alive()}
    plain = [await found("text", "t", timeout=600), await found("text", "xt", timeout=600)]
    slow.go.set()

    assert (0.2, "fd:1") == (caught.value.seconds, caught.value.handle)
    assert set() == left
    assert [2, 1] == [result.total for result in plain]
    assert 0 == (await first).total
    assert 2 == (await found("text", "t", regex=True)).total


@pytest.mark.parametrize("pattern", ["a(", "(a|aa)+$"])
async def test_search_releases_lock_after_error(pattern):
    """The lock is released after an invalid pattern and after a timeout."""
    for _ in range(2):
        with pytest.raises((InvalidParameter, SearchTimeout)):
            await found("a" * 60 + "b", pattern, regex=True, timeout=0.1)

    assert 1 == (await found("a b", "b", regex=True)).total


async def test_waiting_searches_do_not_block_shared_threads(monkeypatch):
    """Text searches and other work in threads start immediately."""
    slow = Slow(monkeypatch)
    waiting = [asyncio.create_task(found("text", "slow", regex=True)) for _ in range(2 * (os.cpu_count() or 1) + 8)]
    await slow.has_begun()
    await asyncio.sleep(0.05)
    plain = await found("text", "t")
    await asyncio.to_thread(time.time)
    assert not slow.go.is_set()
    slow.go.set()
    await asyncio.gather(*waiting)

    assert 2 == plain.total


async def test_cancelled_search_does_not_start_when_lock_is_released(monkeypatch):
    """A search that is cancelled while it waits never starts."""
    slow = Slow(monkeypatch)
    first = asyncio.create_task(found("text", "slow", regex=True))
    await slow.has_begun()
    left = [asyncio.create_task(found("text", "slow", regex=True)) for _ in range(3)]
    await asyncio.sleep(0.05)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    slow.go.set()
    await first

    assert 1 == (await found("a", "a", regex=True)).total
    assert 1 == slow.begun


FORKED = """
import asyncio, os, threading, time
from mama_structs.refs.store import text_search as module
from mama_structs.refs.store.text import Content

def look(query, timeout):
    content = Content.from_text("a" * 60 + "b")
    return asyncio.run(module.search(module.TextSearchRequest(content, query, handle="fd:1", timeout=timeout, regex=True)))

def hostile():
    try:
        look("(a|aa)+$", 2)
    except module.SearchTimeout:
        pass

look("b", 600)
thread = threading.Thread(target=hostile)
thread.start()
while module._pattern_lock.lock.acquire(blocking=False):
    module._pattern_lock.lock.release()
    time.sleep(0.001)
time.sleep(0.05)
child = os.fork()
if child == 0:
    os._exit(0 if look("b", 600).total == 1 else 1)
print(os.waitpid(child, 0)[1])
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_search_in_forked_child_does_not_wait_for_lock_of_parent():
    """The thread that holds the lock does not exist in the child."""
    root = str(Path(mama_structs.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": root},
    )

    assert ("0\n", 0) == (done.stdout, done.returncode), done.stderr


async def test_search_result_reprs_contain_no_text():
    """They contain only numbers."""
    result = await found("a secret\nsecrets\nand more secret", "secret", context=1, limit=2)

    assert "<SearchResult: 2 of 3 matches in fd:1>" == repr(result)
    assert "Match(line=1, column=3, char=3, length=6)" == repr(result.matches[0])
    assert "secret" not in repr(result.matches[0].after)


async def test_search_restart_does_not_repeat_empty_match(monkeypatch):
    """If the regex module times out early, the search continues without duplicates."""
    compiled = regex.compile

    class Nervous:
        def __init__(self, *args, **options):
            self.pattern = compiled(*args, **options)

        def finditer(self, text, position, **options):
            for number, match in enumerate(self.pattern.finditer(text, position, **options)):
                if number == 2:
                    raise TimeoutError
                yield match

    text = unicodedata.normalize("NFD", "aébb a\n\nb")
    expected = {p: places(await found(text, p, regex=True)) for p in (r"a|\b", "x*", "b*", "^|b", "(?<=b)b")}
    monkeypatch.setattr(regex, "compile", Nervous)
    for pattern, spans in expected.items():
        assert spans == places(await found(text, pattern, regex=True))


@pytest.mark.parametrize("query", ["(?R)?a", "(a)(?1)", "(?P<n>a)(?&n)", "(?P<n>a)(?P>n)", r"\\\\(?R)", "(a)(?-1)"])
async def test_search_rejects_recursive_pattern(query):
    """Such a pattern could exhaust the memory before the timeout."""
    with pytest.raises(InvalidParameter, match="calls itself"):
        await search(TextSearchRequest(Content.from_text("a" * 10), query, handle="fd:1", regex=True, timeout=600))


@pytest.mark.parametrize("query", [r"\(\?R", r"\(?R", "[(]?R", "(?:a)", "(?i)a"])
async def test_search_accepts_escaped_recursion_syntax(query):
    """Escaped characters are ordinary text."""
    assert (
        await search(TextSearchRequest(Content.from_text("(?R a"), query, handle="fd:1", regex=True, timeout=600))
    ).matches
