"""The number of parser steps is proportional to the length of the text, and the memory use does not grow."""

from __future__ import annotations

import tracemalloc

import pytest

from mama_structs.refs.markup import parser as parser_module
from mama_structs.refs.markup.parser import MAX_BUFFERED_CHARS, Diagnostic, RefParser

# Maximum growth of the number of steps for a text ten times as long. A quadratic parser would need 100 times as many.
LIMIT = 20


@pytest.fixture
def work(steps, monkeypatch):
    """Return a function that counts the executed lines of the package, plus the characters that patterns match."""
    matched_to, looked_at = parser_module._match_end, 0

    def counted(pattern, text, at):
        nonlocal looked_at
        end = matched_to(pattern, text, at)
        looked_at += end - at
        return end

    monkeypatch.setattr(parser_module, "_match_end", counted)

    def count(text, size=None):
        nonlocal looked_at
        looked_at = 0
        return steps(read, text, size) + looked_at

    return count


def read(text, size=None):
    parser = RefParser()
    size = size or len(text)
    for start in range(0, len(text), size):
        parser.feed(text[start : start + size])
    return parser.close()


ANSWER = "Words and `code` and a < b, and more of the words.\n" * 9 + '<ref id="a">\nx\n</ref>\n```\ny\n```\n'

GROWING = "x".join("`" * length for length in range(1, 1_100))

HOSTILE = {
    "unclosed refs": (lambda n: "".join(f'<ref id="a{i}">' for i in range(n)), 40_000),
    "tags cut off": (lambda n: '<ref id="a' * n, 40_000),
    "tags that end nowhere": (lambda n: '<ref id="a"' + " x" * n, 400_000),
    "tags too long": (lambda n: f'<ref id="a" x="{"y" * 600}"' * n, 4_000),
    "nested refs": (lambda n: '<ref id="a">' * n + "</ref>" * n, 100_000),
    "<": (lambda n: "<" * n, 1_000_000),
    "</": (lambda n: "</" * n, 1_000_000),
    "<ref ": (lambda n: "<ref " * n, 100_000),
    "<ref and quotes": (lambda n: """<ref "<ref '""" * n, 50_000),
    "values that take in tags": (lambda n: """<ref a='<ref b=\"""" * n, 50_000),
    "quotes of both kinds": (lambda n: """<ref a='x' b="y" c=' """ * n, 50_000),
    "one run of backticks": (lambda n: "`" * n, 1_000_000),
    "backticks and spaces": (lambda n: "` " * n, 1_000_000),
    "backticks and tags": (lambda n: '` <ref id="a"/>\n' * n, 40_000),
    "runs of growing length": (lambda n: (GROWING * (n // len(GROWING) + 1))[:n], 2_000_000),
    "runs that meet no other": (lambda n: "x".join("`" * (i % 44 + 1) for i in range(n)), 40_000),
    "tildes": (lambda n: "\n~~ ~~~" * n, 50_000),
    "a fence full of tags": (lambda n: "```\n" + "<ref " * n, 100_000),
    "a fence full of valid tags on one line": (lambda n: "```\n" + '<ref id="a">' * n, 50_000),
    "a fence that nearly closes": (lambda n: "```\n" + "\n``` x" * n, 100_000),
    "a fence that never closes": (lambda n: "`" * 99 + "\n" + ("`" * 98 + "\n") * n, 20_000),
    "a closing line without an end": (lambda n: "```\n```" + " " * n, 5_000_000),
    "stray closing tags": (lambda n: "</ref>" * n, 100_000),
    "thoughts": (lambda n: "<think>x</think>" * n, 100_000),
    "thoughts that do not end": (lambda n: "<think>" * n, 100_000),
    "ends of thoughts": (lambda n: "</think>" * n, 100_000),
    "thoughts full of refs": (lambda n: "<think>" + '<ref id="a"/>' * n, 40_000),
    "tags in JSON strings": (lambda n: '<ref id=\\"a\\">\\n"' * n, 40_000),
    "backslashes in a JSON string": (lambda n: '<ref id=\\"a\\">' + "\\" * n, 400_000),
    "JSON tags that are not closed": (lambda n: '<ref id=\\"a ' * n, 40_000),
    "an answer": (lambda n: ANSWER * n, 2_000),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_parser_takes_linear_steps(name, work):
    """No text makes the parser scan the same characters repeatedly."""
    make, count = HOSTILE[name]

    assert LIMIT * work(make(count // 100)) + 100 >= work(make(count // 10))


@pytest.mark.parametrize("size", [1, 64])
@pytest.mark.parametrize("name", HOSTILE)
def test_parser_takes_linear_steps_in_small_chunks(name, size, work):
    """Buffered text is not scanned repeatedly from its start."""
    make, count = HOSTILE[name]
    length = len(make(count))
    count = max(count * 20_000 * min(size, 3) // length, 10)

    assert LIMIT * work(make(count // 10), size) + 100 >= work(make(count), size)


@pytest.mark.parametrize("name", HOSTILE)
def test_parser_memory_does_not_grow_with_text(name):
    """If a host drops the events, a parser keeps little more than the open refs."""
    make, count = HOSTILE[name]
    text = make(count // 10)
    parser = RefParser()
    tracemalloc.start()
    try:
        for start in range(0, min(len(text), 200_000), 500):
            parser.feed(text[start : start + 500])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert MAX_BUFFERED_CHARS >= len(parser._buffered)
    assert 100_000 > kept


def test_parser_fast_path_of_plain_chunk(monkeypatch):
    """A chunk without markup is returned without a scan."""
    monkeypatch.setattr(RefParser, "_scan", None)
    parser = RefParser()

    for number in range(1_000):
        chunk = f"word{number % 9} x"
        assert [chunk] == [event.text for event in parser.feed(chunk)]


def test_parser_reports_each_hostile_tag_once():
    """There are as many diagnostics as tags."""
    events = []
    parser = RefParser()
    events += parser.feed('<ref id="a">' * 1_000)
    events += parser.close()

    kinds = [event.kind for event in events if isinstance(event, Diagnostic)]
    assert {"nested": 63, "too_deep": 936, "unclosed": 64} == {kind: kinds.count(kind) for kind in set(kinds)}
