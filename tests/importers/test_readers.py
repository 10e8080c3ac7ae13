"""Readers of other programs' files: the returned data, and the reports of irregular items."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importing_helpers import (
    MEM0,
    entity,
    graph,
    langgraph_store,
    listing,
    mem0_home,
    points,
    relation,
)

from mama_structs.errors import InvalidArgument, MigrationError
from mama_structs.importers.basic_memory import reader as basic_memory
from mama_structs.importers.basic_memory.frontmatter import read_fields
from mama_structs.importers.basic_memory.note_parser import find_observations, find_relations
from mama_structs.importers.langgraph import reader as langgraph
from mama_structs.importers.mcp_memory import reader as mcp_memory
from mama_structs.importers.mem0 import reader as mem0
from mama_structs.importers.shared.import_model import to_relationship
from mama_structs.memory.types.relationships import check_relationship

TEA = """---
title: Tea
type: note
permalink: drinks/tea
tags: [drinks, "hot"]
created: 2025-03-01T10:00:00+00:00
---

# Tea

- [method] Steep it for three minutes #brewing (green tea)
- [ ] buy some
- goes_with [[Cake]] (sweet)
- "is part of" [[Breakfast]]
- made in [[Japan]] and [[China|the other one]]

See [the cake](sweets/cake.md), and `[[no link]]`.

```
- [no] observation of [[Nobody]]
```
"""


def kinds(outside):
    """Return the item type and problem kind of each irregular item."""
    return [(one.item, one.kind) for one in outside.odd]


# The memory server of MCP


def test_mcp_memory_read_returns_entities_observations_and_relations(tmp_path):
    """Each entity and observation is a memory with the entity as topic; each relation a link."""
    file = graph(
        tmp_path / "memory.jsonl",
        entity("Ada", "person", "prefers tabs", "works from Oslo"),
        entity("Structs", "project"),
        relation("Ada", "works_on", "Structs"),
    )
    found = mcp_memory.read(file)

    assert {"entities": 2, "observations": 2, "relations": 1} == found.found
    assert [("Ada", "Ada (person)"), ("Ada", "prefers tabs"), ("Ada", "works from Oslo")] == [
        (one.record["topic"], one.record["content"]) for one in found.memories[:3]
    ]
    assert ("Ada", "works_on", "Structs") == next(
        (one.from_key, one.relationship, one.to_key) for one in found.links if one.is_explicit
    )
    assert () == tuple(found.odd)


def test_mcp_memory_read_reports_odd_lines(tmp_path):
    """Lines that are not items, and incomplete items, are reported and counted."""
    file = graph(
        tmp_path / "memory.jsonl",
        "nonsense",
        {"type": "note"},
        entity("", "person", "of nobody"),
        entity("Ada", None, "  ", 7, "is known"),
        {**entity("Eve"), "observations": "alone"},
        entity("Ada", "person", "is told twice"),
        relation("Ada", "", "Eve"),
        {**relation("Ada", "knows", "Eve"), "since": 2020},
    )
    found = mcp_memory.read(file)

    assert [
        ("lines", "no_item"),
        ("lines", "no_item"),
        ("entities", "no_name"),
        ("observations", "no_name"),
        ("entities", "no_type"),
        ("observations", "no_text"),
        ("observations", "no_text"),
        ("entities", "no_list"),
        ("entities", "same_name"),
        ("relations", "no_end"),
        ("relations", "more_fields"),
    ] == kinds(found)
    assert {"lines": 2, "entities": 4, "observations": 6, "relations": 2} == found.found
    assert ["Ada", "is known", "Eve (person)", "alone", "is told twice"] == [
        one.record["content"] for one in found.memories
    ]


FORMS = {
    "lines": lambda items: "\n".join(map(json.dumps, items)),
    "one line": lambda items: " ".join(map(json.dumps, items)),
    "without separators": lambda items: "".join(map(json.dumps, items)),
    "lines with byte order marks": lambda items: "".join(f"\ufeff{json.dumps(one)}\r\n" for one in items),
    "indented": lambda items: "\n".join(json.dumps(one, indent=2) for one in items),
    "array": json.dumps,
    "unfinished array": lambda items: json.dumps(items, indent=1)[:-1],
    "trailing NULs": lambda items: "\n".join(map(json.dumps, items)) + "\0" * 512,
    "NULs between": lambda items: "\n\0\0\n".join(map(json.dumps, items)),
    "graph": lambda items: json.dumps({"entities": items[:2], "relations": items[2:]}),
    "without type": lambda items: "\n".join(
        json.dumps({name: value for name, value in one.items() if name != "type"}) for one in items
    ),
    "type for entityType": lambda items: (
        "\n".join(map(json.dumps, items))
        .replace('"type": "entity", ', "")
        .replace('"type": "relation", ', "")
        .replace("entityType", "type")
        .replace("relationType", "type")
    ),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("form", FORMS)
def test_mcp_memory_read_returns_the_same_for_every_form_of_a_graph(tmp_path, form, encoding):
    """Each layout and encoding of the same graph yields the same memories and links."""
    items = [entity("Ada", "person", "prefers tabs"), entity("도구", "tool"), relation("Ada", "uses", "도구")]
    expected = mcp_memory.read(graph(tmp_path / "memory.jsonl", *items))
    file = tmp_path / "other.json"
    file.write_bytes(FORMS[form](items).encode(encoding))
    found = mcp_memory.read(file)

    assert (expected.memories, expected.links) == (found.memories, found.links)
    assert {"lines": 1} if form == "unfinished array" else {} == found.found - expected.found


def test_mcp_memory_read_continues_after_a_broken_line(tmp_path):
    """An unfinished line is left out with its number, and the entities around it are imported."""
    file = graph(tmp_path / "memory.jsonl", entity("Ada"), '{"type":"entity","name":"Bo","observations":["a",')
    eve, half = json.dumps(entity("Eve")), json.dumps(entity("half \ud83d"))
    file.write_text(f"{file.read_text()}\n{eve} and\n{half}")
    found = mcp_memory.read(file)

    assert ["Ada", "Eve", "half \ufffd"] == [one.key for one in found.memories]
    assert [("line 2", "no_item"), ("line 3", "no_item"), ("line 4", "no_json")] == [
        (one.id, one.kind) for one in found.odd
    ]


@given(word=st.text(min_size=1))
def test_word_of_returns_a_valid_relationship_for_any_text(word):
    """Any relation text becomes a valid relationship; the original text is kept if it differs."""
    found, whole = to_relationship(word)

    assert found == check_relationship(found)
    assert (found if whole is None else whole) == word.strip()


def test_mcp_memory_read_rejects_files_without_graph_items(tmp_path):
    """A file without any graph item is rejected; an empty file has no memories."""
    with pytest.raises(MigrationError, match="no file of MCP's memory server"):
        mcp_memory.read(graph(tmp_path / "some.jsonl", {"a": 1}))

    assert () == tuple(mcp_memory.read(graph(tmp_path / "empty.jsonl")).memories)


# Markdown notes


def test_basic_memory_read_returns_notes_observations_and_links(tmp_path):
    """A note is a context, its observations are insights, and links may use any of its names."""
    (tmp_path / "Tea.md").write_text(TEA)
    (tmp_path / "sweets").mkdir()
    (tmp_path / "sweets" / "cake.md").write_text("---\ntitle: Cake\n---\nSweet.")
    (tmp_path / "breakfast.md").write_text("Early.")
    before = listing(tmp_path)
    found = basic_memory.read(tmp_path)
    note = next(one for one in found.memories if one.key == "drinks/tea")
    (insight,) = (one for one in found.memories if one.what == "observations")

    assert {"notes": 3, "observations": 1, "relations": 5} == found.found
    assert ("Tea", datetime(2025, 3, 1, 10, tzinfo=UTC)) == (note.record["topic"], note.record["created_at"])
    assert note.record["content"].startswith("# Tea\n\n- [method]")
    assert ["drinks", "hot"] == note.extra["basic-memory"]["tags"]
    assert ("insight", "method", ("brewing",)) == tuple(insight.record[name] for name in ("type", "category", "tags"))
    assert "Steep it for three minutes #brewing (green tea)" == insight.record["content"]
    assert {
        ("goes_with", "sweets/cake.md", "sweet"),
        ("is part of", "breakfast.md", None),
        ("links_to", "[[Japan]]", None),
        ("links_to", "[[China]]", None),
        ("links_to", "sweets/cake.md", None),
    } == {(one.relationship, one.to_key, one.reason) for one in found.links if one.is_explicit}
    assert before == listing(tmp_path)


def test_basic_memory_read_reports_odd_files(tmp_path):
    """Other files, symbolic links and notes with invalid fields are reported."""
    (tmp_path / "a.md").write_text("---\npermalink: same\ncreated: soon\n---\nOne.")
    (tmp_path / "b.md").write_text("---\npermalink: same\n---\nTwo.")
    (tmp_path / "c.md").write_bytes(b"Three \xff.")
    (tmp_path / "d.png").write_bytes(b"x")
    (tmp_path / "e.md").symlink_to(tmp_path / "a.md")
    os.mkfifo(tmp_path / "f.md")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "f.md").write_text("Hidden.")
    found = basic_memory.read(tmp_path)

    assert [
        ("notes", "no_time"),
        ("notes", "not_utf8"),
        ("other files", "no_note"),
        ("other files", "no_note"),
        ("other files", "no_note"),
        ("notes", "same_permalink"),
    ] == kinds(found)
    assert ["same", "b.md", "c.md"] == [one.key for one in found.memories]


def test_basic_memory_read_rejects_folders_without_notes(tmp_path):
    """A folder without notes and a missing folder raise InvalidArgument."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidArgument):
            basic_memory.read(path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("- [idea] a thought", [("idea", "a thought", (), None)]),
        ("* [idea] a #b #c#d", [("idea", "a #b #c#d", ("b", "c", "d"), None)]),
        ("1. [idea] one", [("idea", "one", (), None)]),
        ("- [idea] a #b (see #c)", [("idea", "a #b (see #c)", ("b",), "see #c")]),
        ("- [idea] a\n- [idea] a", [("idea", "a", (), None)] * 2),
        ("- a\n    - [idea] nested", [("idea", "nested", (), None)]),
        ("- no category #tag", [(None, "no category #tag", ("tag",), None)]),
        ("- [idea] over\n  two lines\nand a third", [("idea", "over two lines and a third", (), None)]),
        ("A paragraph\nwith #tag\n2. lines", [(None, "A paragraph with #tag 2. lines", ("tag",), None)]),
        ("# Heading #tag\ntext", [(None, "Heading #tag", ("tag",), None)]),
        ("[idea] no item", [("idea", "no item", (), None)]),
        ("- [ ] a task #x", []),
        ("- [x] a task", []),
        ("- [00:01:02] spoken", []),
        ("- [text](http://example.org)", []),
        ("- plain", []),
        ("> - [!info] a quotation #x", []),
        ("    - [idea] code", []),
        ("```\n- [idea] code\n```", []),
        ("~~~\n```\n- [idea] code\n~~~\n- [idea] behind", [("idea", "behind", (), None)]),
    ],
)
def test_find_observations_returns_blocks_with_category_or_tag(line, expected):
    """
    List items, paragraphs and headings with a category or a tag are observations.

    Tasks, timestamps, code and quotations are not.
    """
    assert expected == find_observations(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("- knows [[Ada]]", [("knows", "Ada", None)]),
        ("- 'is near' [[Oslo]] (a town (big))", [("is near", "Oslo", "a town (big)")]),
        ("- knows [[Ada]] (a) and [[Bo]] (b)", [("links_to", "Ada", None), ("links_to", "Bo", None)]),
        ("- knows [[Ada]] #bm:links_to", [("links_to", "Ada", None)]),
        ("> - knows [[Ada|her]]\n\n    [[code]]", [("knows", "Ada", None)]),
        ("- she knows [[Ada]]", [("links_to", "Ada", None)]),
        ("- knows [[Ada]] well", [("links_to", "Ada", None)]),
        ("knows [[Ada]] and [[Ada]]", [("links_to", "Ada", None)]),
        ("see [[a|b]] and [[memory://x/y]]", [("links_to", "a", None), ("links_to", "x/y", None)]),
        ("`[[a]]` and ``[[b]] ` `` and `[[c]]", [("links_to", "c", None)]),
        ("see [b](b%20c.md#part), [c](https://example.org/c.md), ![d](d.md)", [("links_to", "./b c.md", None)]),
        (
            '[a](../a.pdf) [b](<b c.md> "title") [c](mailto:c) [d](#d) [e](e/)',
            [("links_to", "../a.pdf", None), ("links_to", "./b c.md", None)],
        ),
        ("\\[[a]] [[]] [[ ]]", []),
    ],
)
def test_relations_of_finds_named_relations_and_links(line, expected):
    """
    A word before a link in a list item is the relation.

    Other links get the default; code is ignored.
    """
    assert expected == find_relations(line)


def test_read_fields_returns_scalars_and_lists_as_written():
    """Scalars and lists are read as text, aliases are resolved, other values are skipped."""
    front = (
        "title: 'It''s'\nnothing: null\nword: 'null'\ntwice: a\ntwice: ~\ntags:\n- a\n- \"b\"\nlist: [c, 'd']\nempty:\nnested:\n  key: value\nn: 1 # one\n"
        "url: http://x/#y\nlong: >-\n  two\n  lines\nday: &d 2025-03-01\nsame: *d\nto: {a: [b]}\nlists: [[a], b]"
    )

    assert {
        "title": "It's",
        "word": "null",
        "tags": ["a", "b"],
        "list": ["c", "d"],
        "n": "1",
        "url": "http://x/#y",
        "long": "two lines",
        "day": "2025-03-01",
        "same": "2025-03-01",
        "lists": ["b"],
    } == read_fields(front)


@given(text=st.text(alphabet="`[]()#-*> \n\\|x~'\"&:{},!%", max_size=200))
def test_note_parser_accepts_any_text(text):
    """No text of a note raises an error."""
    find_observations(text)
    find_relations(text)
    with contextlib.suppress(ValueError):
        read_fields(text)


# mem0


def test_mem0_read_returns_memories_with_payloads_and_histories(tmp_path):
    """
    mem0's own files yield memories with ids, payloads and histories.

    Skipped items are reported.
    """
    home = mem0_home(tmp_path)
    before = listing(home)
    found = mem0.read(home)
    memories = {one.value["data"]: one for one in found.records if one.what == "memories" and not one.is_auxiliary}
    tea = memories["Ada likes black tea"]
    (history,) = (one.value for one in found.records if one.is_auxiliary and one.key == tea.key)

    assert {"Ada likes black tea", "Noted: green tea", "Bob lives in Oslo", "It has ended"} == set(memories)
    assert ("ada", "drinks", 3, ["a", "b"]) == tuple(tea.value[name] for name in ("user_id", "topic", "n", "tags"))
    assert "text_lemmatized" not in tea.value
    assert tea.value["created_at"].startswith(tea.created_at.isoformat()[:23])
    assert [("ADD", None), ("UPDATE", "Ada likes green tea")] == [(one["event"], one["old_memory"]) for one in history]
    assert datetime(2020, 1, 2, tzinfo=UTC) == memories["It has ended"].expires_at
    assert [("deleted memories", "deleted")] == kinds(found)
    assert before == listing(home)


def test_mem0_read_returns_the_same_for_get_all_json(tmp_path):
    """The JSON of get_all yields the same payloads as the files, for the user of the call."""
    files = {one.key: one.value for one in mem0.read(mem0_home(tmp_path), user="ada").records if not one.is_auxiliary}
    given = {one.key: one.value for one in mem0.read(MEM0 / "get_all.json").records}

    assert files == given


def test_mem0_read_skips_other_users_when_user_is_given(tmp_path):
    """With a user the memories of other users are skipped, and their number is reported."""
    found = mem0.read(mem0_home(tmp_path), user="ada")

    assert {"memories": 2, "memories of others": 2, "deleted memories": 1} == found.found
    assert ("memories of others", "other_user") in kinds(found)


def test_mem0_read_restores_memories_from_a_history_only(tmp_path):
    """A history without memories yields their texts and times, and the given user."""
    home = mem0_home(tmp_path)
    found = mem0.read(home / "history.db", user="ada")
    tea = next(one for one in found.records if one.value["data"] == "Ada likes black tea")

    assert ("ada", "user") == (tea.value["user_id"], tea.value["role"])
    assert 4 == found.found["memories"]
    assert {("memories", "no_user")} <= set(kinds(mem0.read(home / "history.db")))


def test_mem0_read_reports_odd_points(tmp_path):
    """
    Invalid points, points without text, and replaced rows are reported.

    The points of mem0's internal collections are reported as skipped.
    """
    folder = tmp_path / "collection"
    points(
        folder / "mem0" / "storage.sqlite",
        [
            ("1", {"data": "an older form"}),
            ("2", {"data": " "}),
            ("3", b"no pickle"),
            ("4", {"data": "with a date", "expiration_date": "soon"}),
            ("1", {"data": "the newer form"}),
            ("5", {"data": "holds bytes", "blob": b"x"}),
            ("6", {"data": "half \ud83d", "n": float("nan")}),
        ],
    )
    points(folder / "mem0_entities" / "storage.sqlite", [("7", {"data": "Ada"})])
    points(folder / "mem0migrations" / "storage.sqlite", [("8", {"user_id": "x"})])
    found = mem0.read(tmp_path)

    assert {"with a date": None, "the newer form": None, "half \ufffd": "NaN"} == {
        one.value["data"]: one.value.get("n") for one in found.records
    }
    assert [
        ("entities", "derived"),
        ("memories", "no_date"),
        ("memories", "no_json"),
        ("memories", "no_point"),
        ("memories", "no_point"),
        ("memories", "no_text"),
        ("memories", "same_id"),
        ("other points", "no_memory"),
    ] == sorted(kinds(found))
    assert {"memories": 7, "entities": 1, "other points": 1} == found.found


def test_mem0_read_rejects_foreign_files(tmp_path):
    """A folder without mem0 files, another database, and JSON in another format raise errors."""
    (tmp_path / "some.json").write_text(json.dumps({"a": 1}))
    (tmp_path / "some.txt").write_text("no JSON")
    with sqlite3.connect(tmp_path / "some.db") as database:
        database.execute("CREATE TABLE other (id)")
    database.close()

    with pytest.raises(InvalidArgument, match="nothing of mem0"):
        mem0.read(tmp_path)
    for name in ("some.json", "some.txt", "some.db"):
        with pytest.raises(MigrationError):
            mem0.read(tmp_path / name)


def test_mem0_read_accepts_json_that_only_python_writes(tmp_path):
    """NaN, lone surrogates, numeric times, a byte order mark and trailing NULs do not prevent an import."""
    item = '{"id": "%s", "memory": "%s", "created_at": %s, "metadata": {"n": %s}}'
    items = [
        item % ("seconds", "half \\ud83d", "1735689600", "NaN"),
        item % ("milliseconds", "b", "1735689600000.0", "-Infinity"),
        item % ("digits", "c", '"1735689600"', "1e999"),
        item % ("text", "d", '"2025-01-01T01:00:00+01:00"', "1"),
        item % ("no time", "e", '"soon"', "true"),
    ]
    (tmp_path / "all.json").write_bytes(b"\xef\xbb\xbf" + f"[{','.join(items)}]".encode() + bytes(4096))
    found = mem0.read(tmp_path / "all.json")
    written = {one.key: one.value for one in found.records}

    assert ["half \ufffd", "b", "c", "d", "e"] == [one["data"] for one in written.values()]
    assert ["NaN", "-Infinity", "Infinity", 1, True] == [one["n"] for one in written.values()]
    assert [datetime(2025, 1, 1, tzinfo=UTC)] * 4 + [None] == [one.created_at for one in found.records]
    assert ["2025-01-01T00:00:00+00:00"] * 3 + ["2025-01-01T01:00:00+01:00", "soon"] == [
        one["created_at"] for one in written.values()
    ]
    assert ["no_json"] * 3 + ["no_time"] == [one.kind for one in found.odd]


def test_mem0_read_imports_the_newest_of_several_items_with_one_id(tmp_path):
    """Equal items and older items with the same id are left out and reported; graph relations are counted."""
    old, new = ({"id": "1", "memory": text, "updated_at": f"2026-01-0{day}"} for text, day in (("old", 1), ("new", 2)))
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"results": [old, new, new, old], "relations": [{"source": "a"}, {"source": "b"}]}))
    found = mem0.read(file)

    assert ["new"] == [one.text for one in found.records]
    assert {"memories": 4, "graph relations": 2} == found.found
    assert [("derived", 2), ("same_id", 1), ("said_twice", 1), ("same_id", 1)] == [
        (one.kind, one.skipped) for one in found.odd
    ]


def test_mem0_read_reports_odd_results_of_get_all(tmp_path):
    """Results without an id or a text are reported."""
    file = tmp_path / "all.json"
    file.write_text(json.dumps([{"memory": "no id"}, "nothing", {"id": "1", "memory": None}, {"id": 2, "memory": "x"}]))
    found = mem0.read(file)

    assert [("memories", "no_id"), ("memories", "no_id"), ("memories", "no_text")] == kinds(found)
    assert ["2"] == [one.key for one in found.records]


# LangGraph


def test_langgraph_read_returns_items_of_a_file(tmp_path):
    """Each item has its namespace after the adapter's labels, its times, and its indexed text."""
    file = langgraph_store(
        tmp_path / "store.db",
        [
            ("users.ada", "tea", {"text": "likes tea", "n": 1}, "2026-01-02 03:04:05"),
            ("users.ada", "secret", {"text": "not indexed"}),
            ("users", "soon", {"a": {"b": ["x", "y"]}}, "2026-01-02 03:04:05", "2999-01-01 00:00:00", 60.0),
        ],
        indexed=[("users.ada", "tea", "text"), ("users", "soon", "a.b.0"), ("users", "soon", "a.b.1")],
    )
    before = listing(tmp_path)
    tea, secret, soon = langgraph.read(file).records

    assert (("langgraph", "store", "users", "ada"), "tea") == (tea.labels, tea.key)
    assert ({"text": "likes tea", "n": 1}, ("likes tea",)) == (tea.value, tea.text)
    assert datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) == tea.created_at
    assert secret.text is None
    assert ([{"a": {"b": ["x", "y"]}}, 60.0], ("x", "y")) == (soon.value, soon.text)
    assert datetime(2999, 1, 1, tzinfo=UTC) == soon.expires_at
    assert before == listing(tmp_path)


def test_langgraph_read_reports_odd_items(tmp_path):
    """
    Values that are not JSON or not a mapping are reported.

    Without vectors the whole value is indexed.
    """
    file = langgraph_store(tmp_path / "store.db", [("a", "1", "no JSON"), ("a", "2", [1]), ("", "3", {"b": "ö"})])
    found = langgraph.read(file)

    assert [("items", "no_json"), ("items", "no_mapping")] == kinds(found)
    assert [(("langgraph", "store"), ('{"b": "ö"}',))] == [(one.labels, one.text) for one in found.records]
    assert {"items": 3} == found.found


def test_langgraph_read_rejects_foreign_files(tmp_path):
    """A database without a store's table, and a file that is no database, are rejected."""
    with sqlite3.connect(tmp_path / "some.db") as database:
        database.execute("CREATE TABLE checkpoints (id)")
    database.close()
    (tmp_path / "some.txt").write_text("x")
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(MigrationError, match="none of a LangGraph store"):
        langgraph.read(tmp_path / "some.db")
    with pytest.raises(MigrationError, match="no SQLite database"):
        langgraph.read(tmp_path / "some.txt")
    for name in ("pipe", "missing"):
        with pytest.raises(InvalidArgument):
            langgraph.read(tmp_path / name)
