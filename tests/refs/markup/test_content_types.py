"""`detect_category`: classification by attributes and by content."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.refs.markup.content_types import detect_category, lookup_category
from mama_structs.refs.markup.fences import find_fenced_blocks, parse_language

PYTHON = "import os\n\n\ndef parse(path):\n    # Reads it.\n    with open(path) as file:\n        return file.read()\n"
JSON = '{"a": [1, 2, 3], "b": null}'
PROSE = "The guild moved its fleet. It was late, and the raid had begun.\nNobody knew why; we decided to wait."


@pytest.mark.parametrize(
    ("attributes", "category"),
    [
        ({"type": "code"}, "code"),
        ({"type": "Data"}, "data"),
        ({"type": " text "}, "text"),
        ({"category": "data", "type": "code"}, "data"),
        ({"type": "code", "lang": "json"}, "code"),
        ({"lang": "python"}, "code"),
        ({"lang": "C++"}, "code"),
        ({"language": "TypeScript"}, "code"),
        ({"lang": "sql"}, "code"),
        ({"lang": "html"}, "code"),
        ({"lang": "json"}, "data"),
        ({"lang": "csv"}, "data"),
        ({"lang": "yaml"}, "data"),
        ({"lang": "toml"}, "data"),
        ({"lang": "xml"}, "data"),
        ({"lang": "markdown"}, "text"),
        ({"type": "application/json; charset=utf-8"}, "data"),
        ({"type": "application/ld+json"}, "data"),
        ({"type": "application/vnd.api+json"}, "data"),
        ({"type": "text/csv"}, "data"),
        ({"type": "image/svg+xml"}, "data"),
        ({"type": "text/x-python"}, "code"),
        ({"type": "application/javascript"}, "code"),
        ({"type": "text/plain"}, "text"),
        ({"type": "text/markdown"}, "text"),
        ({"type": "fixture", "lang": "python"}, "code"),
    ],
)
@pytest.mark.parametrize("content", [PYTHON, JSON, PROSE, ""])
def test_category_of_uses_attributes(attributes, category, content):
    """A known attribute value takes precedence over the content."""
    assert category == detect_category(attributes, content)


@pytest.mark.parametrize(
    "attributes", [{}, {"type": "fixture"}, {"type": ""}, {"lang": "en"}, {"type": "image/png"}, {"title": "json"}]
)
@pytest.mark.parametrize(("content", "category"), [(PYTHON, "code"), (JSON, "data"), (PROSE, "text")])
def test_category_of_ignores_unknown_attributes(attributes, content, category):
    """Without a known category, format or language, the content determines the category."""
    assert category == detect_category(attributes, content)


TEXTS = [
    "",
    " \n\t\n",
    "hello",
    "42",
    "true",
    '"a quotation"',
    PROSE,
    "# Heading\n\nSome words, and more of them.\n\n- one\n- two\n",
    "Note: this matters.\nIt was late.",
    "Dear all,\nthe raid begins at nine, bring shields.\nRegards,\nMia",
    "Hello, world\nGoodbye, moon",
    "길드가 함대를 옮겼다. 우리는 기다리기로 했다.\n그 이유는 아무도 모른다.",
    f"How to parse:\n\n```python\n{PYTHON}```\n\nThat is all.",
    "```text\nhello there\n```",
    "```python\nx = 1\n```\nThat was the code, and here are words.\n",
    "Import the module from the list. Return it for a class of ten.",
    "We use a shield (level 2) first; then we attack.\nThe rest follows later (see above).",
    "1. first thing to do\n2. second thing to do\n3. third",
    "[see the notes] and tell me",
    "{braces} are used here in prose.",
    "a < b and b > c",
]
CODES = [
    PYTHON,
    f"```\n{PYTHON}```",
    "```python\nx\n```",
    "~~~~js\nhello\n~~~~\n",
    "```python\nx = 1",
    "#!/bin/sh\necho hello\n",
    "#include <stdio.h>\n\nint main(void) {\n    return 0;\n}\n",
    "const x = require('fs');\nfunction go() {\n  return x;\n}\n",
    'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("x")\n}\n',
    "SELECT id, name\nFROM players\nWHERE id = 1;\n",
    'fn main() {\n    println!("x");\n}\n',
    "class Fleet:\n    size: int = 0\n",
    "<!DOCTYPE html>\n<html><body>x</body></html>",
    '<div class="a">\n  <p>x</p>\n</div>',
    "x = 1\ny = foo(x)\nprint(y)\n",
    "$ pip install x\n$ python -m x\n",
]
DATA = [
    JSON,
    f"```json\n{JSON}\n```",
    f"```\n{JSON}\n```",
    f"\n\n  {JSON}\n\n",
    "[]",
    "[1, 2]",
    '{"a": 1}\n{"a": 2}\n',
    json.dumps([{"n": n, "text": "x" * 50} for n in range(2_000)]),
    json.dumps({"rows": list(range(20_000))}, indent=1),
    "".join(json.dumps({"n": n}) + "\n" for n in range(5_000)),
    "id,name,size\n1,a,2\n2,b,3\n",
    "".join(f"{n},name {n},{n * 2}\n" for n in range(5_000)),
    "id\tname\n1\ta\n",
    'id;name\n1;"a;b"\n',
    "id, name, size\n1, a, 2\n2, b, 3\n",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    '<?xml version="1.0"?>\n<a><b/></a>',
    '<fleet id="9-1">\n  <ship/>\n</fleet>',
    "name: x\nships:\n  - a\n  - b\nsize: 3\n",
    "---\nname: x\n",
    "[main]\nname = x\nsize = 3\n",
    '[tool.ruff]\nline-length = 120\n# why\nselect = ["ALL"]\n',
    "HOST=example\nPORT=80\n",
]


@pytest.mark.parametrize("content", TEXTS)
def test_category_of_prose_is_text(content):
    """Prose with commas, code examples or keywords is text."""
    assert "text" == detect_category({}, content)


@pytest.mark.parametrize("content", CODES)
def test_category_of_code_without_language_is_code(content):
    """Code of many languages is recognized by its content."""
    assert "code" == detect_category({}, content)


@pytest.mark.parametrize("content", DATA, ids=lambda content: content[:20])
def test_category_of_data_format_is_data(content):
    """Data formats are recognized, even if only a sample is examined."""
    assert "data" == detect_category({}, content)


def test_category_of_is_independent_of_line_breaks():
    """CRLF gives the same categories."""
    for category, contents in {"text": TEXTS, "code": CODES, "data": DATA}.items():
        for content in contents:
            assert category == detect_category({}, content.replace("\n", "\r\n")), content[:50]


def test_category_of_deep_json_is_data():
    """JSON that is nested too deeply to parse is recognized by its brackets."""
    assert "data" == detect_category({}, "[" * 500 + "]" * 500)
    assert "text" == detect_category({}, "[" * 500)


def test_category_of_ignores_csv_field_size_limit():
    """The standard library's limit is global, and a host may lower it."""
    limit = csv.field_size_limit(3)
    try:
        assert "text" == detect_category({}, "number,name\n1,a\n")
    finally:
        csv.field_size_limit(limit)


@given(content=st.text(), attributes=st.dictionaries(st.sampled_from(["type", "lang", "x"]), st.text(max_size=20)))
def test_category_of_accepts_any_content(content, attributes):
    """No content and no attributes raise an error."""
    assert detect_category(attributes, content) in {"code", "data", "text"}


@given(
    value=st.recursive(
        st.integers() | st.text(max_size=9), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner)
    )
)
def test_category_of_json_container_is_data(value):
    """Any JSON object or array is data, also in a fence."""
    content = json.dumps(value, indent=2)
    if isinstance(value, list | dict):
        assert "data" == detect_category({}, content)
        assert "data" == detect_category({}, f"```\n{content}\n```")


@given(content=st.text(min_size=1), tail=st.text(max_size=50))
def test_category_of_depends_only_on_sample(content, tail):
    """Text after the first 20,000 characters has no effect."""
    head = (content * 20_000)[:20_000]

    assert detect_category({}, f"{head}a") == detect_category({}, f"{head}b{tail}")


@pytest.mark.parametrize(
    "content",
    [
        "[" * 1000000,
        '{"a":' * 200000,
        "9" * 1000000,
        "`" * 1000000,
        '"' * 1000000,
        ",\n" * 500000,
        "<a " * 300000,
        "def f(" * 200000,
        "def " + "a:" * 400000,
        "a: " * 300000,
        " " * 1000000,
        "import a.b" * 100000,
        "- " * 500000,
        "(" * 399 + "\n" + "if " * 500000,
        "return a" + " " * 500000,
        "=" * 10**6,
        "\n".join("x" * 40 + "(" for _ in range(9999)),
    ],
    ids=lambda content: repr(content[:8]),
)
def test_category_of_hostile_content_takes_few_steps(content, steps):
    """Only a sample is examined, without backtracking."""
    assert steps(detect_category, {}, content) < 100 * steps(detect_category, {}, PROSE * 200)


def test_category_of_deep_array_does_not_overflow_stack():
    """Deep nesting does not crash a thread with a small stack."""
    code = textwrap.dedent(
        """
        import threading
        from mama_structs.refs.markup.content_types import detect_category
        threading.stack_size(256 * 1024)
        found = []
        thread = threading.Thread(target=lambda: found.append(detect_category({}, "[" * 9_000 + "]" * 9_000)))
        thread.start()
        thread.join()
        print(found)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stderr)
    assert "['data']" == done.stdout.strip()


@pytest.mark.parametrize(
    ("line", "info"),
    [
        ("```", ""),
        ("   ````python x", "python x"),
        ("~~~ `a`", "`a`"),
        ("```\r", ""),
        ("    ```", None),
        ("``", None),
        ("``` a`b", None),
        ("a ```", None),
    ],
)
def test_fenced_blocks_recognizes_opening_line(line, info):
    """As in CommonMark: at least three marks, at most three spaces before them."""
    assert ([] if info is None else [info]) == [block.info for block in find_fenced_blocks(f"{line}\nx")]


@pytest.mark.parametrize(
    ("line", "closes"),
    [
        ("~~~~", True),
        ("   ~~~~~ \t\r", True),
        ("~~~", False),
        ("````", False),
        ("~~~~ a", False),
        ("    ~~~~", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("behind", ["", "\n", "\nx"])
def test_fenced_blocks_recognizes_closing_line(line, closes, behind):
    """A closing line has the same mark, at least the same length, and nothing else."""
    (block,) = find_fenced_blocks(f"~~~~ info\nx\n{line}{behind}")

    assert (closes, "info") == (block.closed, block.info)


@pytest.mark.parametrize(
    ("info", "language"),
    [
        ("", None),
        ("Python", "python"),
        ("python:src/app.py", "python"),
        ("{.python .numberLines}", "python"),
        ("python title=x", "python"),
        ("title=x", None),
        ("js,linenos", "js"),
        ("c++", "c++"),
        (":", None),
    ],
)
def test_language_of_returns_first_word(info, language):
    """The first word of the info string is the language, in the notations of common tools."""
    assert language == parse_language(info)


def test_category_of_is_text_when_text_follows_fence_after_sample():
    """A fence that closes at the end of the sample may not enclose everything."""
    block = f"```python\n{'y' * 19_950}\n```\n"

    assert "code" == detect_category({}, block)
    assert "text" == detect_category({}, f"{block}{'Words. ' * 20}\n")


def test_category_of_word_returns_none_for_unknown_word():
    """Only complete, known words have a category."""
    assert [None] * 5 == [lookup_category(word) for word in ("", "/", "pythonic", "text/", "a/b/c")]
