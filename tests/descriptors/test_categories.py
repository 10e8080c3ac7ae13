"""`category_of`: what attributes say, and what contents look like."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.refs.markup.content_types import category_of, category_of_word
from mama_structs.refs.markup.fences import fenced_blocks, language_of

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
def test_attributes_that_say_it_decide(attributes, category, content):
    """What the author says counts, whatever the content looks like."""
    assert category == category_of(attributes, content)


@pytest.mark.parametrize(
    "attributes", [{}, {"type": "fixture"}, {"type": ""}, {"lang": "en"}, {"type": "image/png"}, {"title": "json"}]
)
@pytest.mark.parametrize(("content", "category"), [(PYTHON, "code"), (JSON, "data"), (PROSE, "text")])
def test_attributes_that_do_not_say_it_do_not_decide(attributes, content, category):
    """A word that names no category, format or language leaves it to the content."""
    assert category == category_of(attributes, content)


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
def test_prose_is_text(content):
    """Prose stays text, with commas, code between and key words in it."""
    assert "text" == category_of({}, content)


@pytest.mark.parametrize("content", CODES)
def test_code_is_code(content):
    """Code of many languages is told without being named."""
    assert "code" == category_of({}, content)


@pytest.mark.parametrize("content", DATA, ids=lambda content: content[:20])
def test_data_is_data(content):
    """Formats that hold values are told, cut off after the part that is looked at too."""
    assert "data" == category_of({}, content)


def test_line_breaks_of_windows_change_nothing():
    """CRLF gives the same categories."""
    for category, contents in {"text": TEXTS, "code": CODES, "data": DATA}.items():
        for content in contents:
            assert category == category_of({}, content.replace("\n", "\r\n")), content[:50]


def test_a_deep_document_is_data_though_it_is_not_parsed():
    """Nesting deeper than any real document's is told by its brackets."""
    assert "data" == category_of({}, "[" * 500 + "]" * 500)
    assert "text" == category_of({}, "[" * 500)


def test_a_host_that_limits_csv_fields_breaks_nothing():
    """The standard library keeps that limit for the whole process."""
    limit = csv.field_size_limit(3)
    try:
        assert "text" == category_of({}, "number,name\n1,a\n")
    finally:
        csv.field_size_limit(limit)


@given(content=st.text(), attributes=st.dictionaries(st.sampled_from(["type", "lang", "x"]), st.text(max_size=20)))
def test_every_content_has_a_category(content, attributes):
    """No content and no attribute makes it fail."""
    assert category_of(attributes, content) in {"code", "data", "text"}


@given(
    value=st.recursive(
        st.integers() | st.text(max_size=9), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner)
    )
)
def test_json_documents_are_data(value):
    """Whatever a JSON document holds, it is data when it is an object or array."""
    content = json.dumps(value, indent=2)
    if isinstance(value, list | dict):
        assert "data" == category_of({}, content)
        assert "data" == category_of({}, f"```\n{content}\n```")


@given(content=st.text(min_size=1), tail=st.text(max_size=50))
def test_only_the_beginning_counts(content, tail):
    """What stands behind the first 20,000 characters changes nothing."""
    head = (content * 20_000)[:20_000]

    assert category_of({}, f"{head}a") == category_of({}, f"{head}b{tail}")


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
def test_hostile_contents_take_few_steps(content, steps):
    """A megabyte of anything takes little more than prose: only a part is looked at, without backtracking."""
    assert steps(category_of, {}, content) < 100 * steps(category_of, {}, PROSE * 200)


def test_a_deep_array_does_not_exhaust_the_stack():
    """Deep nesting is answered, not crashed on, in a thread with a small stack too."""
    code = textwrap.dedent(
        """
        import threading
        from mama_structs.refs.markup.content_types import category_of
        threading.stack_size(256 * 1024)
        found = []
        thread = threading.Thread(target=lambda: found.append(category_of({}, "[" * 9_000 + "]" * 9_000)))
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
def test_which_lines_open_a_fence(line, info):
    """As CommonMark has it: three marks or more, three blanks before at most, no backtick behind backticks."""
    assert ([] if info is None else [info]) == [block.info for block in fenced_blocks(f"{line}\nx")]


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
def test_which_lines_close_a_fence(line, closes, behind):
    """The same mark, at least as many, and nothing else."""
    (block,) = fenced_blocks(f"~~~~ info\nx\n{line}{behind}")

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
def test_the_language_of_an_info_string(info, language):
    """The first word names the language, as the usual tools write it."""
    assert language == language_of(info)


def test_a_fence_with_more_behind_what_is_looked_at_is_prose():
    """A fence that closes just where the looking ends need not be around everything."""
    block = f"```python\n{'y' * 19_950}\n```\n"

    assert "code" == category_of({}, block)
    assert "text" == category_of({}, f"{block}{'Words. ' * 20}\n")


def test_words_that_name_nothing_name_nothing():
    """Only whole, known words count."""
    assert [None] * 5 == [category_of_word(word) for word in ("", "/", "pythonic", "text/", "a/b/c")]
