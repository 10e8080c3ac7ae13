"""The body of a ref is its content without the enclosing code fence."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import RefStore, Session
from mama_structs.refs.markup.fences import find_fenced_blocks
from mama_structs.refs.store.text import Content

LINES = st.lists(st.text(st.sampled_from("ab` ~\t#é"), max_size=8), max_size=6).map("\n".join)
INFOS = st.sampled_from(["", "python", "  py title=x", "{.sql}", "JSON"])


def marked(content, tag=""):
    """Ingest an answer with one ref that has this content, and return the ref."""
    return RefStore().observe(f'<ref id="x"{tag}>\n{content}\n</ref>').refs[0]


@pytest.mark.parametrize(
    ("content", "body", "language"),
    [
        ("```python\nprint(1)\n```", "print(1)", "python"),
        ("```\nprint(1)\n```", "print(1)", None),
        ("~~~ sql\nselect 1;\n~~~~~", "select 1;", "sql"),
        ("````\n```\ninner\n```\n````", "```\ninner\n```", None),
        ("\n\n```python\nprint(1)\n```\n   \n", "print(1)", "python"),
        ("   ```py\n   def f():\n       pass\n  ```  ", "def f():\n    pass", "py"),
        ("  ```py\n a\n    b\n  ```", "a\n  b", "py"),
        ("```python\r\nprint(1)\r\nprint(2)\r\n```\r", "print(1)\r\nprint(2)", "python"),
        ("```python\rprint(1)\rprint(2)\r```", "print(1)\rprint(2)", "python"),
        ("\r\n```python\rprint(1)\nprint(2)\r\n```\r", "print(1)\nprint(2)", "python"),
        ("  ```\r  a\r\n  b\n  ```", "a\r\nb", None),
        ("```python\nprint(1)\n\n```", "print(1)\n", "python"),
        ("```python\n```", "", "python"),
        ("```", "", None),
        ('```python title="a.py"\nprint(1)\n```', "print(1)", "python"),
    ],
)
def test_body_excludes_enclosing_fence(content, body, language):
    """Covers info strings, lengths, tildes, indentation, blank lines and carriage returns."""
    ref = marked(content)

    assert body == ref.body.text
    assert language == ref.language
    assert content == ref.text
    assert (len(body), body.count("\n") + (not body.endswith("\n"))) == (ref.chars, ref.lines)


@pytest.mark.parametrize(
    "content",
    [
        "```markdown\n# Title\n```",
        "```md\n# Title\n```",
        "    ```python\n    print(1)\n    ```",
        "Text\n```python\nprint(1)\n```",
        "```python\nprint(1)\n```\nText",
        "```python\n1\n```\n```python\n2\n```",
        "```print(1)```",
        "``\nprint(1)\n``",
        "print('```')",
        "",
    ],
)
def test_body_equals_text_when_no_fence_encloses_it(content):
    """Markdown fences, indented blocks, adjacent text, two fences and inline code are content."""
    ref = marked(content)

    assert content == ref.body.text == ref.text


def test_body_includes_fence_when_tag_keeps_it():
    """The attribute fence="keep" makes the fence content."""
    ref = marked("```python\nprint(1)\n```", ' fence="keep"')

    assert "```python\nprint(1)\n```" == ref.body.text


def test_observe_reports_ref_that_closes_in_open_fence():
    """The diagnostic is open_fence; the opening fence is still not part of the body."""
    ingested = RefStore().observe('<ref id="x">\n```python\nprint(1)\n</ref>\n```\n')
    prose = RefStore().observe('<ref id="x">\nSee:\n```python\nprint(1)\n</ref>\n```\n')

    assert ["open_fence"] == [one.kind for one in ingested.diagnostics] == [one.kind for one in prose.diagnostics]
    assert "print(1)" == ingested.refs[0].body.text
    assert "See:\n```python\nprint(1)" == prose.refs[0].body.text


def test_body_keeps_last_line_break_when_ref_is_unclosed():
    """A continuation may follow, so only the missing end is reported."""
    ingested = RefStore().observe('<ref id="x">\n```python\nprint(1)\n')

    assert "print(1)\n" == ingested.refs[0].body.text
    assert ["unclosed"] == [one.kind for one in ingested.diagnostics]


@given(content=LINES, info=INFOS, indent=st.integers(0, 3), mark=st.sampled_from("`~"), more=st.integers(0, 2))
def test_body_equals_content_of_enclosing_fence(content, info, indent, mark, more):
    """Only a fence that is longer than every run in the content is removed."""
    longest = max((len(run) for run in re.findall("`+|~+", content)), default=0)
    fence = mark * (max(3, longest + 1) + more)
    inner = "\n".join(" " * indent + line for line in content.split("\n"))
    ref = marked(f"{' ' * indent}{fence}{info}\n{inner}\n{fence}")

    assert content == ref.body.text


@given(text=st.lists(st.sampled_from(["```", "~~~", " ```py", "````", "a", "", " b"]), max_size=7).map("\n".join))
def test_body_is_text_or_single_fenced_block(text):
    """A body differs from its text only if one fence encloses it, and contains no new lines."""
    content = Content.from_text(text)
    blocks = list(find_fenced_blocks(text))

    assert content.body is content or 1 == len(blocks)
    assert all(line in text for line in content.body.text.split("\n"))


async def test_session_uses_body_of_ref(tmp_path):
    """Reading, searching, passing and extracting exclude the fence; visible text includes it."""
    async with Session.open(tmp_path / "agent.mama") as session:
        seen = await session.observe('<ref id="x">\n```python\nprint(1)\n```\n</ref>')

        async def take(source: str) -> str:
            return f"got {source}"

        session.tools.add(take)
        refs = session.refs

        assert "print(1)" == refs.read("ref:x").text
        assert "print(1)" == refs.extract("ref:x").text
        assert 0 == len((await refs.search("ref:x", "python")).matches)
        assert "\nprint(1)\n</ref_content>" in await session.call("get_ref", {"ref_id": "x"})
        listed = await session.call("list_refs", {})
        assert 'lines="1" chars="8"' in listed
        assert 'lang="python"' in listed
        assert "got print(1)" == await session.call("take", {"source": {"$ref": "ref:x"}})
        assert "```python\nprint(1)\n```" in seen.visible_text
        assert "```python\nprint(1)\n```" == refs.get("x").text


async def test_body_is_unchanged_when_conversation_is_reopened(tmp_path):
    """The body is derived from stored data, so that conversations of older versions have it."""
    async with Session.open(tmp_path / "agent.mama", conversation="c") as session:
        await session.observe('<ref id="x" fence="keep">\n```\n1\n```\n</ref><ref id="y">\n```js\n2\n```\n</ref>')
    async with Session.open(tmp_path / "agent.mama", conversation="c") as session:
        assert ["```\n1\n```", "2"] == [session.refs.get(one).body.text for one in "xy"]
        assert "js" == session.refs.get("y").language
