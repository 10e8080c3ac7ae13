"""Answers in the styles of three model families are written to files, and the files can be parsed."""

import ast
import json
import runpy
import sqlite3
import tomllib
from collections import Counter
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mama_structs import DescriptorSettings, RefStore, Session

DATA = Path(__file__).parents[2] / "data" / "answers" / "answers.jsonl"
NOTE, *ANSWERS = map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
FENCE = "```"
VOID = {"input", "br", "img", "meta", "link", "hr"}


class Balanced(HTMLParser):
    """An HTML parser that asserts that each element is closed."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag == self.open.pop()


def is_html(text):
    page = Balanced()
    page.feed(text)
    page.close()
    assert [] == page.open


def is_sql(text):
    assert sqlite3.complete_statement(text)
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(text)


PARSERS = {
    "python": ast.parse,
    "json": json.loads,
    "toml": tomllib.loads,
    "sql": is_sql,
    "html": is_html,
    "markdown": str,
}


@pytest.mark.parametrize("answer", ANSWERS, ids=[f"{n}-{one['frame']}-{one['kind']}" for n, one in enumerate(ANSWERS)])
async def test_to_file_writes_parsable_file_from_model_answer(tmp_path, answer):
    """The file has exactly the expected bytes, for complete and streamed answers."""
    store = RefStore(settings=DescriptorSettings(files_root=str(tmp_path)))
    for message in answer["messages"]:
        stream = store.stream()
        for start in range(0, len(message), 7):
            stream.feed(message[start : start + 7])
        seen = stream.close()
        store.observe(message)
    await store.to_file(f"ref:{answer['id']}", "file")
    written = (tmp_path / "file").read_bytes().decode()

    assert answer["file"] == written
    PARSERS[answer["kind"]](written)
    assert {one.kind for one in seen.diagnostics} <= {"new_version", "nested", "in_code", "malformed"}


def test_answers_cover_all_families_and_kinds():
    """There are at least 200 answers, of three families and six kinds, with many templates."""
    frames = Counter(one["frame"] for one in ANSWERS)

    assert len(ANSWERS) >= 200
    assert 3 == len({one["family"] for one in ANSWERS})
    assert set(PARSERS) == {one["kind"] for one in ANSWERS}
    assert len(frames) >= 30
    assert max(frames.values()) <= 10
    assert len({(one["kind"], one["id"]) for one in ANSWERS}) >= 60


async def test_fd_to_file_appends_second_ref_to_compilable_module(tmp_path):
    """Two fenced functions, written and appended through the tool, form one module."""
    answer = (
        f'<ref id="first" type="code" lang="python">\n{FENCE}python\ndef double(x):\n    return 2 * x\n{FENCE}\n</ref>\n\n'
        f'and\n\n<ref id="second" type="code" lang="python">\n{FENCE}python\ndef half(x):\n    return x / 2\n{FENCE}\n</ref>'
    )
    async with Session.open(tmp_path / "agent.mama", files_root=tmp_path) as session:
        await session.observe(answer)
        await session.call("fd_to_file", {"fd": "ref:first", "file_path": "both.py"})
        await session.call("fd_to_file", {"fd": "ref:second", "file_path": "both.py", "mode": "append"})
    names = runpy.run_path(str(tmp_path / "both.py"))

    assert (4, 2) == (names["double"](2), names["half"](4))
