"""`suggest_ids`: suggested ids for code blocks outside of refs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mama_structs.refs.markup.content_types import suggest_ids
from mama_structs.refs.markup.parser import RefParser, RefStart, is_ref_id

LONG = "value 1\nvalue 2\nvalue 3"


def ids(text, **options):
    return [suggestion.id for suggestion in suggest_ids(text, **options)]


def fenced(content, info="", before=""):
    return f"{before}\n\n```{info}\n{content}\n```\n"


@pytest.mark.parametrize(
    ("content", "info", "before", "found"),
    [
        ("import os\n\ndef parse(path):\n    return path", "python", "", ("parse", "definition")),
        ("@frozen\nclass Fleet(Base):\n    size = 0", "python", "", ("Fleet", "definition")),
        ("async def _load_all(x):\n    pass\n", "py", "", ("load_all", "definition")),
        ("export default async function runAll(a) {\n}\n", "ts", "", ("runAll", "definition")),
        ("const fs = require('fs')\nconst add = (a) => {\n}\n", "js", "", ("add", "definition")),
        ("const LIMIT = 5;\nfoo();\nfunction go() {}\n", "js", "", ("go", "definition")),
        ("pub(crate) struct Ship<T> {\n a: T\n}", "rust", "", ("Ship", "definition")),
        ("fn main() {\n  x();\n}", "rust", "", ("main", "definition")),
        ("package a\nfunc (s *Store) Save(x int) error {\n}", "go", "", ("Save", "definition")),
        ("type Store struct {\n a int\n}", "go", "", ("Store", "definition")),
        ("public interface Source {\n void a();\n}", "java", "", ("Source", "definition")),
        ("public static void main(String[] a) {\n\n}", "java", "", ("main", "definition")),
        ("create table if not exists players (\n id int\n);", "sql", "", ("players", "definition")),
        ("CREATE OR REPLACE FUNCTION raid()\nRETURNS int\nAS 1", "sql", "", ("raid", "definition")),
        ("deploy_all() {\n echo x\n}", "bash", "", ("deploy_all", "definition")),
        ("int main(void) {\n  return 0;\n}", "c", "", ("main", "definition")),
        ("CREATE USER a;\nx\ny", "sql", "", ("sql-1", "language")),
        ("class\nfoo\nbar", "python", "", ("python-1", "language")),
        ("class of ships\nfoo\nbar", "python", "", ("python-1", "language")),
        ("class of ships\nwith many\nwords", "text", "", ("text-1", "language")),
        (LONG, "yaml", "Save this as `deploy/config.yaml`:", ("config.yaml", "file")),
        (LONG, "python", "**`app.py`**", ("app.py", "file")),
        (LONG, "python", "### src/app.py", ("app.py", "file")),
        (LONG, "python", "I like Node.js and example.com, e.g. here", ("python-1", "language")),
        (LONG, "text", "Run `app.py` and see:", ("text-1", "language")),
        (LONG, "bash", "Save as `run.sh`:", ("run.sh", "file")),
        (LONG, "app.py", "", ("app.py", "file")),
        (LONG, "python:src/app.py", "", ("app.py", "file")),
        (LONG, 'python title="src/my app.py"', "", ("python-1", "language")),
        (LONG, 'python title="src/app.py"', "", ("app.py", "file")),
        ("# src/app.py\ndef go():\n    pass", "python", "", ("app.py", "file")),
        ("<!-- index.html -->\n<p>\n</p>", "html", "", ("index.html", "file")),
        (LONG, "", "`Dockerfile`", ("Dockerfile", "file")),
        (LONG, "", "**.env**", ("env", "file")),
        (LONG, "", "## 3.1. Set up the Fleet ##", ("set-up-the-fleet", "heading")),
        (LONG, "", "**Café settings**\n\nSome words.", ("cafe-settings", "heading")),
        (LONG, "python", "## 함대 설정", ("python-1", "language")),
        (LONG, "python", "## 2단계", ("python-1", "language")),
        (LONG, "", "## 설정 setup", ("setup", "heading")),
        (LONG, "c++", "", ("c-1", "language")),
        (LONG, "한글", "", ("text-1", "language")),
        ('{"a": 1,\n"b": 2,\n"c": 3}', "", "", ("data-1", "language")),
        ("def parse(x):\n    return x\n", "", "", ("parse", "definition")),
        (LONG, "", f"## {'x' * 200}", ("x" * 64, "heading")),
    ],
)
def test_suggest_derives_id(content, info, before, found):
    """Sources are a file name, the first definition, the heading, or language and number."""
    (suggestion,) = suggest_ids(fenced(content, info, before))

    assert found == (suggestion.id, suggestion.reason)


def test_suggest_returns_position_of_block():
    """Positions count from 1, and exclude the fences and the last line break."""
    text = "Words.\r\n\r\n  ~~~~ Python\r\ndef go():\r\n    pass\r\n~~~\r\n  ~~~~\r\nMore."
    (found,) = suggest_ids(text)

    assert "def go():\r\n    pass\r\n~~~" == found.content
    assert text[found.start - 1 : found.end] == found.content
    assert (4, "python", "code", "go") == (found.line, found.language, found.category, found.id)


def test_suggest_skips_short_blocks():
    """Blocks with less than three lines and less than 80 characters get no id."""
    assert [] == ids("```\na\nb\n```")
    assert [] == ids(f"```\n{'a' * 79}\n```")
    assert ["text-1"] == ids(f"```\n{'a' * 80}\n```")
    assert ["text-1"] == ids("```\na\nb\nc\n```")
    assert [] == ids("```\n```") + ids("```") + ids("") + ids("```\n")


def test_suggest_includes_unclosed_block():
    """The last block of a truncated answer runs to the end."""
    (found,) = suggest_ids("```python\ndef go():\n    a\n    b\n")

    assert "def go():\n    a\n    b" == found.content


def test_suggest_skips_blocks_in_refs():
    """Blocks after a ref get an id."""
    block = fenced("def go():\n    a\n    b", "python")

    assert [] == ids(f'<ref id="a">{block}</ref>')
    assert [] == ids(f'<ref id="a">\n<ref id="b">{block}</ref>\n{block}</ref>')
    assert [] == ids(f'<ref id="a">x{block}')
    assert ["go"] == ids(f'<ref id="a">{block}</ref>{block}')
    assert ["go"] == ids(f'<ref id="a" title="x > y"/>{block}')
    assert ["go"] == ids(f'<ref id="a">x/></ref>{block}')
    assert ["go"] == ids(f'<ref id="a"></ref>{block}<ref id="b">x{block}')
    assert ["go"] == ids(f"</ref>{block}<ref>{block[:0]}")


def test_suggest_treats_tag_in_fence_as_code():
    """Tags that the parser ignores do not mark a block."""
    assert ["python-1"] == ids('```python\n<ref id="a">\nx\n</ref>\n```\n')


def test_suggest_skips_fence_that_overlaps_ref():
    """A run of over 1,000 marks opens no fence, so the tags after it count."""
    text = f"{'`' * 1_001}\n<ref id='a'>x</ref>\n"

    assert [] == ids(f"{text}1\n2\n3\n{'`' * 1_001}\n")
    assert [] == ids(f"{text}1\n2\n3\n")
    assert ["text-1"] == ids(f"{text}1\n2\n3\n```\n1\n2\n3\n```")


def test_suggest_numbers_used_ids():
    """Ids used by the host or by refs of the text get a number."""
    block = fenced("def go():\n    a\n    b", "python")

    assert ["go", "go_2", "go_3"] == ids(block * 3)
    assert ["go_2", "go_4"] == ids(block * 2, used_ids=["go", "go_3"])
    assert ["go_2"] == ids(f'<ref id="go">x</ref>\n{block}')
    assert ["text-2", "text-3"] == ids(fenced(LONG) * 2, used_ids={"text-1"})
    assert ["x" * 64, f"{'x' * 54}_2"] == ids(fenced(LONG, "", f"## {'x' * 99}") * 2)


def test_suggest_uses_heading_until_next_heading():
    """Blocks below a heading share it; lines in fences or refs are not headings."""
    text = f"# One\n{fenced(LONG)}{fenced('# no heading' + LONG)}<ref id='r'>\n# Marked\n</ref>\n{fenced(LONG)}# Two\n{fenced(LONG)}"

    assert ["one", "one_2", "one_3", "two"] == ids(text)


PARTS = st.lists(
    st.one_of(
        st.text(alphabet="ab \n", max_size=8),
        st.sampled_from(
            [
                "```",
                "~~~",
                "`",
                "\n",
                "\r\n",
                "\n```python\ndef go():\n  a\n  b\n```\n",
                "\n~~~\n1\n2\n3\n",
                "## 설정\n",
                "# Set\n",
                '<ref id="go">',
                "</ref>",
                "<ref id='b'/>",
                '<ref id="a" t=">">',
                "<ref",
                "/>",
                '<ref id="설정">',
                "`app.py`\n",
            ]
        ),
    ),
    max_size=30,
).map("".join)


@given(text=PARTS, taken=st.sets(st.sampled_from(["go", "go_2", "set", "text-1", "python-1", "app.py"])))
def test_suggest_returns_valid_unused_ids_for_any_text(text, taken):
    """Positions are exact and ordered, and no suggestion overlaps a ref."""
    found = suggest_ids(text, used_ids=taken)
    parser = RefParser()
    events = [*parser.feed(text), *parser.close()]
    used = taken | {event.id for event in events if isinstance(event, RefStart)}

    assert len(found) == len({suggestion.id for suggestion in found} - used)
    assert all(is_ref_id(suggestion.id) for suggestion in found)
    assert all(text[suggestion.start - 1 : suggestion.end] == suggestion.content for suggestion in found)
    assert all(text.count("\n", 0, suggestion.start - 1) + 1 == suggestion.line for suggestion in found)
    assert all(one.end < other.start for one, other in itertools.pairwise(found))


@given(text=PARTS)
def test_suggest_returns_nothing_after_all_suggestions_are_marked(text):
    """If each suggestion is marked with its id, the parser finds it."""
    lines = text.split("\n")
    found = suggest_ids(text)
    spans = [lines[one.line - 2 : one.line + one.content.count("\n") + 1] for one in found]
    # Exclude tags in a block or on the line of its fence, because a closing tag there would end the ref early.
    assume(not any("<ref" in line or "</ref" in line for span in spans for line in span))
    for suggestion in reversed(found):
        last = suggestion.line - 1 + suggestion.content.count("\n")
        lines[last + 1 : last + 2] = [*lines[last + 1 : last + 2], "</ref>"]
        lines.insert(suggestion.line - 2, f'<ref id="{suggestion.id}">')
    marked = "\n".join(lines)
    parser = RefParser()
    started = {event.id for event in [*parser.feed(marked), *parser.close()] if isinstance(event, RefStart)}

    assert {suggestion.id for suggestion in found} <= started
    assert [] == suggest_ids(marked)


@pytest.mark.once
@pytest.mark.parametrize(
    "piece",
    [
        "```python\ndef go():\n a\n b\n```\n",
        "```\n",
        "``` `\n",
        "# a\n",
        '<ref id="a">```\n',
        '<ref id="a">x</ref>\n```\na\nb\nc\n```\n',
        '"\'<ref id="a"/>',
        "\n",
        "`" * 50,
        "a/" * 25 + "\n```\na\nb\nc\n```\n",
    ],
)
def test_suggest_takes_linear_steps(piece, steps):
    """Eight times the text takes at most about eight times the steps."""
    short, long = (piece * (length // len(piece)) for length in (12_500, 100_000))

    assert steps(suggest_ids, long) < 12 * steps(suggest_ids, short) + 100
