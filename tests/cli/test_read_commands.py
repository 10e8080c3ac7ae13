"""The commands for reading and deleting memories, and the HTML page."""

import asyncio
import io
import json
import re
import shutil
import subprocess
import sys
import unicodedata
from html.parser import HTMLParser

import pytest

from mama_structs import HashEmbedder, Session, as_embedder
from mama_structs.cli.main import main

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<!--<script>",
    '<img src=x onerror="alert(3)">',
    "<a href='javascript:alert(4)'>here</a>",
    "<svg onload=alert(5)><style>@import url(//evil)</style>",
    "]]>&lt;b&gt;@DATA@ @POLICY@ \u2028\u2029 \x1b[31m red \u202e backwards",
)


@pytest.fixture
def store(tmp_path):
    """A directory with a superseded decision, a context, and a checkpoint."""

    async def fill():
        async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
            old = await session.memories.save_decision(
                "ore first", topic="defence", reasoning="ships cost ore", evidence=["fleet log"]
            )
            await session.memories.supersede(old.id, "shield first", reasoning="raids doubled")
            await session.memories.save_checkpoint("the shield\nis half built", next_steps=["finish it"])
            await session.memories.save_context("\x1b[31mred\u202e", topic="colour")

    asyncio.run(fill())
    return tmp_path / "a.mama"


def said(capsys, *command, error=""):
    """Run a command, assert that it succeeds, and return its output."""
    code = main([str(part) for part in command])
    captured = capsys.readouterr()

    assert (0, error) == (code, captured.err[: len(error) or None])
    return captured.out


def told(capsys, *command):
    return json.loads(said(capsys, *command, "--json"))


def test_list_prints_a_line_per_memory(store, capsys):
    """The newest memory is first, ids are complete, and control characters are escaped."""
    lines = said(capsys, "list", store).splitlines()

    assert 4 == len(lines)
    assert "\\x1b[31mred\\u202e" in lines[0]
    assert [memory["id"] for memory in told(capsys, "list", store)] == [line.split()[-1] for line in lines]
    assert 2 == len(said(capsys, "list", store, "--type", "decision").splitlines())
    assert 2 == len(told(capsys, "list", store, "--topic", "defence"))
    assert 0 == len(told(capsys, "list", store, "--topic", "defence", "--type", "insight"))
    assert 1 == len(told(capsys, "list", store, "--limit", "1"))
    assert "nothing found\n" == said(capsys, "list", store, "--type", "insight")


def test_show_prints_complete_memory(store, capsys):
    """It prints the text, reasoning, versions, evidence and links."""
    (old,) = [one for one in told(capsys, "list", store, "--topic", "defence") if one["content"] == "ore first"]
    text = said(capsys, "show", store, old["id"])

    assert [old["id"], "topic: defence"] == text.splitlines()[:2]
    for part in ("ore first", "Reasoning:\n  ships cost ore", "Evidence:\n  fleet log", "supersedes this", "History:"):
        assert part in text
    assert "close_in_time" not in text
    assert {"memory", "history", "nearby", "links", "nearby_links", "evidence"} == set(
        told(capsys, "show", store, old["id"])
    )


def test_unknown_id_or_store_exits_with_1(store, capsys):
    """The error is one line on stderr, and a missing store is not created."""
    assert 1 == main(["show", str(store), "nothing"])
    assert "mama-structs: there is no memory with the id 'nothing'\n" == capsys.readouterr().err
    assert 1 == main(["search", str(store.parent / "b.mama"), "shield"])
    assert "is not the directory of a store" in capsys.readouterr().err
    assert not (store.parent / "b.mama").exists()


def test_search_and_recall_print_results_of_methods(store, capsys):
    """A search prints the relevance first, and marks superseded decisions; recall prints the text for a model."""
    lines = said(capsys, "search", store, "ore or shield first?", "--topic", "defence").splitlines()
    hits = told(capsys, "search", store, "ore or shield first?", "--topic", "defence")

    assert "shield first" in lines[0]
    assert "(superseded) ore first" in lines[1]
    assert [f"{hit['relevance']:.2f}" for hit in hits] == [line.split()[0] for line in lines]
    assert "the shield is half built" in said(capsys, "recall", store, "continue from yesterday")
    assert "nothing\n" == said(capsys, "recall", store, "zebras")
    assert {"text", "hits", "checkpoint", "conflicts", "left_out"} == set(told(capsys, "recall", store, "zebras"))


def test_list_truncates_by_terminal_columns(tmp_path, capsys):
    """Korean letters take two columns, and the ids are aligned."""

    async def fill():
        async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
            await session.memories.save_decision(
                "로그인 세션은 서버에 둔다. " * 9, topic="인증 정책 " * 5, reasoning="취소"
            )
            await session.memories.save_decision("x", topic="\u202e" * 9, reasoning="y")

    asyncio.run(fill())
    short, long = said(capsys, "list", tmp_path / "a.mama").splitlines()

    assert 2 == long.count("…")
    wide = sum(one.isalpha() and not one.isascii() for one in long[: long.index("decision_")])
    assert short.rindex("decision_") == long.rindex("decision_") + wide


@pytest.mark.parametrize("room", [30, 40, 80, 200])
@pytest.mark.parametrize("command", [["list"], ["search", "shield"]], ids=lambda command: command[0])
def test_list_prints_blocks_on_narrow_terminal(tmp_path, capsys, monkeypatch, command, room):
    """Only lines with an id exceed the terminal's width. A pipe gets the unwrapped table for programs."""

    async def fill():
        async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
            await session.memories.save_decision(
                "shield: 로그인 세션은 서버에 둔다. " * 9, topic="인증 정책 " * 5, reasoning="취소"
            )
            await session.memories.save_decision("shield first", topic="defence", reasoning="raids doubled")

    asyncio.run(fill())
    monkeypatch.setenv("COLUMNS", str(room))
    called = [command[0], tmp_path / "a.mama", *command[1:]]
    piped = said(capsys, *called).splitlines()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    shown = said(capsys, *called).splitlines()
    ids = [line.split()[-1] for line in piped]

    assert ids == [line.split()[-1] for line in shown if "decision_" in line]
    assert all(line.strip() in ids or columns_of(line) <= room for line in shown)
    assert (piped == shown) == (max(map(columns_of, piped)) <= room)


def columns_of(line):
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line)


def test_search_falls_back_to_words_without_embedder(tmp_path, capsys):
    """If the embedder is missing, the search uses words, and stderr says so."""

    async def fill():
        foreign = as_embedder(lambda texts: [[1.0, 0.0]] * len(texts), name="mine", dimensions=2)
        async with Session.open(tmp_path / "a.mama", embedder=foreign) as session:
            await session.memories.save_context("alerts by mail")
            await session.memories.save_context("shield first")

    asyncio.run(fill())

    found = said(capsys, "search", tmp_path / "a.mama", "shield", error="mama-structs: searched by words only: ")
    assert "shield first" in found.splitlines()[0]


# The HTML page


class Page(HTMLParser):
    """A parser that collects the elements and the script texts of an HTML page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.inside, self.scripts = [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data

    @property
    def shown(self):
        return json.loads(self.scripts[0])

    def attribute(self, tag, name):
        return [attributes.get(name) for own, attributes in self.elements if own == tag]


def fill_with(path, texts):
    async def fill():
        async with Session.open(path, embedder=HashEmbedder()) as session:
            await session.memories.save_many(
                {"type": "decision", "topic": text[:50], "content": text, "reasoning": text} for text in texts
            )

    asyncio.run(fill())
    return path


def page_of(capsys, store, *options):
    target = store.parent / "page.html"
    said(capsys, "view", store, "-o", target, *options)
    return target.read_text(encoding="utf-8")


def test_view_page_contains_memories_and_links(store, capsys, monkeypatch):
    """The page is one file with every memory and the links between them, except temporal ones."""
    monkeypatch.chdir(store.parent)
    assert "4 of 4 memories are in a.mama.html\n" == said(capsys, "view", store)
    page = Page((store.parent / "a.mama.html").read_text(encoding="utf-8"))
    memories = page.shown["memories"]

    assert {"ore first", "shield first"} < {one["text"] for one in memories}
    assert ["shield first", "ore first", "evolution", "supersedes"] in [
        [memories[start]["text"], memories[end]["text"], kind, word] for start, end, kind, word in page.shown["links"]
    ]
    assert "temporal" not in {kind for *_, kind, _ in page.shown["links"]}


def test_view_page_does_not_run_hostile_texts(tmp_path, capsys):
    """Texts change neither the page's elements nor its policy, and their invisible characters are shown."""
    plain = page_of(capsys, fill_with(tmp_path / "plain.mama", ["shield first"]))
    hostile = page_of(capsys, fill_with(tmp_path / "hostile.mama", HOSTILE))
    page = Page(hostile)

    assert Page(plain).elements == page.elements
    assert ["application/json", None] == page.attribute("script", "type")
    *shown, last = HOSTILE
    last = last.replace("\u2028\u2029 \x1b[31m", r"\u2028\u2029 \x1b[31m").replace("\u202e", r"\u202e")
    assert sorted([*shown, last]) == sorted(one["text"] for one in page.shown["memories"])
    policy = page.attribute("meta", "content")[1]
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not {"src", "href", "action"} & {name for _, attributes in page.elements for name in attributes}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|eval\(|fetch\(|import\(|\.write\(", page.scripts[1])


def test_view_page_size_is_bounded(tmp_path, capsys):
    """Long texts are truncated with their length, and --limit bounds the number of memories."""
    store = fill_with(tmp_path / "a.mama", [f"{number} {'x' * 5_000}" for number in range(30)])
    page = Page(page_of(capsys, store, "--limit", "20"))

    assert 20 == len(page.shown["memories"])
    assert {True} == {one["text"].endswith(" characters)") for one in page.shown["memories"][:5]}
    assert "20 of 30 memories" in page_of(capsys, store, "--limit", "20")


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
def test_view_page_works_in_browser(tmp_path, capsys):
    """A real browser lists the memories under the page's own policy, and runs nothing of their texts."""
    target = tmp_path / "page.html"
    page_of(capsys, fill_with(tmp_path / "a.mama", HOSTILE))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", target.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    page = Page(done.stdout)

    assert len(HOSTILE) == len(page.attribute("li", "id"))
    assert 2 == len(page.scripts)
    assert "alert" not in done.stderr


NODE = shutil.which("node")
# A minimal DOM for the page's script. It cannot parse HTML, so using innerHTML fails.
DOCUMENT = """
const texts = [];
class Element {
  constructor(name) { this.name = name; this.children = []; this.listeners = {}; this.value = ""; this.classList = { add() {} }; }
  set textContent(text) { texts.push(text); this.text = text; }
  get textContent() { return this.text; }
  append(...parts) { this.children.push(...parts); }
  replaceChildren(...parts) { this.children = parts; }
  setAttribute() {}
  scrollIntoView() { texts.push("seen"); }
  addEventListener(name, call) { this.listeners[name] = call; }
  all() { return [this, ...this.children.flatMap((one) => one.all())]; }
}
const known = {};
const document = {
  getElementById(id) { return known[id] ??= new Element(id); },
  createElement(name) { return new Element(name); },
  createElementNS(_, name) { return new Element(name); },
};
known.data = new Element("data"); known.data.text = DATA;
"""


@pytest.mark.skipif(NODE is None, reason="no node is installed")
def test_view_page_script_searches_and_draws(tmp_path, capsys):
    """The script lists at most 200 of 302 memories, searches by words, and shows timeline and graph of bounded size."""

    async def fill():
        async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
            await session.memories.save_many({"type": "context", "content": f"number {n}"} for n in range(240))
            old = await session.memories.save_decision("ore first", topic="defence", reasoning="ships")
            new = await session.memories.supersede(old.id, "shield first", reasoning="raids doubled")
            link = {"to_id": new.id, "relationship": "refers to"}
            await session.memories.save_many(
                {"type": "insight", "content": f"around {number}", "links": [link]} for number in range(60)
            )

    asyncio.run(fill())
    page = Page(page_of(capsys, tmp_path / "a.mama"))
    asked = """
    const count = (id, name) => document.getElementById(id).all().filter((one) => one.name === name).length;
    const first = [count("list", "li"), document.getElementById("count").textContent];
    document.getElementById("query").value = "SHIELD first"; document.getElementById("query").listeners.input();
    const found = document.getElementById("list").all().filter((one) => one.name === "button");
    found[0].listeners.click();
    console.log(JSON.stringify([first, found.length, count("detail", "li"), count("detail", "circle"), texts.includes("raids doubled") && texts.at(-1) === "seen"]));
    """
    source = DOCUMENT.replace("DATA", json.dumps(page.scripts[0])) + page.scripts[1] + asked
    done = subprocess.run([NODE, "-"], input=source, capture_output=True, text=True, check=True)

    assert [[200, "302 found, the newest 200 shown"], 1, 2, 40, True] == json.loads(done.stdout)


# The command erase


def test_erase_asks_for_confirmation(store, capsys, monkeypatch):
    """Without a yes nothing is deleted; a dry run only counts; the report has counts and no text."""
    (old, *_) = [
        one["id"] for one in told(capsys, "list", store, "--topic", "defence") if one["content"] == "ore first"
    ]
    planned = said(capsys, "erase", store, old, "--dry-run")
    monkeypatch.setattr(sys, "stdin", io.StringIO("no\n"))
    assert 1 == main(["erase", str(store), old])
    assert "erase 1 memory permanently? [y/N] " in capsys.readouterr().err
    assert 4 == len(told(capsys, "list", store))

    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert 0 == main(["erase", str(store), old])
    receipt = capsys.readouterr().out

    assert planned.startswith("would be erased: 1 decision")
    assert receipt.startswith("erased: 1 decision")
    assert "ore first" not in receipt
    assert 3 == len(told(capsys, "list", store))
    assert not any(b"ships cost ore" in file.read_bytes() for file in store.rglob("*") if file.is_file())


def test_erase_applies_all_filters(store, capsys):
    """All filters must match, a date is in UTC, and a call without filters is an error."""
    assert {} == told(capsys, "erase", store, "--about", "colour", "--before", "2020-01-01", "--yes")["memories"]
    assert {"context": 1} == told(capsys, "erase", store, "--about", "colour", "--yes")["memories"]
    assert 1 == main(["erase", str(store), "--yes"])
    assert 1 == capsys.readouterr().err.count("\n")
    with pytest.raises(SystemExit):
        main(["erase", str(store), "--before", "yesterday"])
