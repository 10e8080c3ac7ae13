"""The commands for reading and deleting memories, and the HTML page."""

import asyncio
import io
import json
import sys
import unicodedata

import pytest

from mama_structs import HashEmbedder, Session, as_embedder
from mama_structs.cli.main import main


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
    assert "(replaced) ore first" in lines[1]
    assert [f"{hit['relevance']:.2f}" for hit in hits] == [line.split()[0] for line in lines]
    assert "the shield is half built" in said(capsys, "recall", store, "continue from yesterday")
    assert "nothing\n" == said(capsys, "recall", store, "zebras")
    assert "Found, but left out:" in said(capsys, "recall", store, "zebras", "--explain")
    explained = said(capsys, "recall", store, "continue from yesterday", "--explain")
    assert "The work continues, and this is its last state. The line contains the whole text." in explained
    assert {"text", "hits", "checkpoint", "conflicts", "lines", "left_out"} == set(
        told(capsys, "recall", store, "zebras")
    )


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


def test_view_writes_selected_memories(store, capsys, monkeypatch):
    """By default the page has all memories and the name of the store; options select memories."""
    monkeypatch.chdir(store.parent)
    assert "4 of 4 memories are in a.mama.html\n" == said(capsys, "view", store)
    assert "ships cost ore" in (store.parent / "a.mama.html").read_text(encoding="utf-8")

    target = store.parent / "page.html"
    for options, counts in (
        (["--topic", "defence"], "2 of 2"),
        (["--type", "checkpoint", "--type", "context", "--limit", "1"], "1 of 2"),
        (["--origin", "user", "--since", "2001-01-01", "--before", "2002-01-01"], "0 of 0"),
        (["--query", "shield", "--outcome", "FAILED", "--tag", "a", "--source", "b"], "0 of 0"),
    ):
        error = "mama-structs: no memory satisfies the conditions; " if counts == "0 of 0" else ""
        written = said(capsys, "view", store, "-o", target, *options, error=error)
        assert written.startswith(f"{counts} memories are in ")


def test_view_without_extra_names_the_install_command(store, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert 1 == main(["view", str(store)])
    assert "mama-structs[ui]" in capsys.readouterr().err


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
