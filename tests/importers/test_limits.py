"""Limits on the files of other programs: a hostile file raises a typed error and nothing is written."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import sqlite3
import subprocess
import sys
import textwrap
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importing_helpers import PointStruct, entity, graph, langgraph_store, points
from memory_helpers import SMALL

import mama_structs
from mama_structs import Session, admin
from mama_structs.cli import command_table as table
from mama_structs.errors import InvalidArgument, MigrationError
from mama_structs.importers import read_v1
from mama_structs.importers.basic_memory import frontmatter
from mama_structs.importers.basic_memory import reader as basic_memory
from mama_structs.importers.basic_memory.frontmatter import read_fields
from mama_structs.importers.claude_code import reader as claude_code
from mama_structs.importers.claude_mem import reader as claude_mem
from mama_structs.importers.langgraph import reader as langgraph
from mama_structs.importers.mcp_memory import reader as mcp_memory
from mama_structs.importers.mem0 import reader as mem0
from mama_structs.importers.mem0.safe_pickle import read_pickle, to_jsonable_data
from mama_structs.importers.shared import safe_files as files
from mama_structs.importers.shared import sqlite_copy as databases
from mama_structs.memory.types.text_analysis import normalize

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mama_structs.__file__).parents[1])}


def run_script(script):
    """Run a script in another interpreter, because it may crash. Return its output lines as parsed JSON."""
    code = textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


# Pickle files


def test_read_pickle_raises_value_error_when_a_pickle_is_hostile():
    """Hostile pickles raise ValueError, and the interpreter neither crashes nor hangs."""
    outcomes = run_script(
        r"""
        import json, pickle, resource
        from mama_structs.importers.mem0 import safe_pickle as pickled
        from mama_structs.importers.mem0.safe_pickle import to_jsonable_data, read_pickle

        # A crash that allocates all memory must not take the machine with it.
        resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
        head = b"\x80\x04"
        deep = b")" + b"\x85" * 200_000
        # A smaller limit, so that this takes no minute.
        pickled.MAX_PARTS = 210_000
        samples = {
            "nested key": head + b"}" + deep + b"K\x01s.",
            "nested key in many": head + b"}(" + deep + b"K\x01u.",
            "nested dictionary": head + b"(" + deep + b"K\x01d.",
            "nested tuple": head + deep + b".",
            "nested frozenset": head + b"(" * 1000 + b"N" + b"\x91" * 1000 + b".",
            "nested list": b"(" * 200_000 + b"l" * 200_000 + b".",
            "nested object": head + b"cos\nx\n" + b"q\x00)R" + b"q\x01h\x00h\x01\x85R" * 100 + b".",
            "tuple in set": head + b"\x8f(" + deep + b"\x90.",
            "key of two to the 40": head + b"}" + b"N" + b"2\x86" * 40 + b"K\x01s.",
            "list in a key": head + b"}]K\x01s.",
            "colliding keys": head + b"}(" + b"".join(pickle.dumps(n * (2**61 - 1))[2:-1] + b"N" for n in range(9)) + b"u.",
            "memo index": head + b"Nr" + (2**31).to_bytes(4, "little") + b".",
            "memo index in text": b"Np99999999999999999999\n.",
            "length of bytes": head + b"\x8e" + (2**62).to_bytes(8, "little") + b"x.",
            "length of text": head + b"\x8d" + (2**62).to_bytes(8, "little") + b"x.",
            "length of bytearray": b"\x80\x05\x96" + (2**62).to_bytes(8, "little") + b"x.",
            "length of integer": head + b"\x8b" + (2**31 - 1).to_bytes(4, "little") + b"x.",
            "integer": pickle.dumps(1 << 4_000_000),
            "digits": b"L" + b"9" * 5_000 + b"L\n.",
            "instructions": head + b"(" + b"}" * 210_001 + b"l.",
            "name of a name": head + pickle.dumps("x" * 900)[2:-1] + b"2" + b"\x93" + b".",
            "text named again": pickle.dumps([text := "x" * 2**20] * 100),
            "list named again": pickle.dumps(__import__("functools").reduce(lambda one, _: [one] * 10, range(40), [])),
        }
        for name, data in samples.items():
            try:
                to_jsonable_data(read_pickle(data))
            except ValueError as error:
                print(json.dumps([name, str(error)]))
            else:
                print(json.dumps([name, None]))
        """
    )
    key, deep = "it is no JSON: a key of a dictionary is not a text", "it is nested more than 50 deep"
    whole = "it is no whole pickle"

    assert {
        "nested key": deep,
        "nested key in many": deep,
        "nested dictionary": deep,
        "nested tuple": deep,
        "nested frozenset": deep,
        "nested list": deep,
        "nested object": deep,
        "tuple in set": deep,
        "key of two to the 40": key,
        "list in a key": key,
        "colliding keys": key,
        "memo index": "it has a memo index above 1,000,000",
        "memo index in text": "it has a memo index above 1,000,000",
        "length of bytes": whole,
        "length of text": whole,
        "length of bytearray": whole,
        "length of integer": whole,
        "integer": "it has an integer of more than 4,096 bits",
        "digits": whole,
        "instructions": "it has more than 1,000,000 parts",
        "name of a name": "it names an object with more than 1,000 characters",
        "text named again": "it has more than 67,108,864 characters",
        "list named again": "it has more than 1,000,000 parts",
    } == dict(outcomes)


@given(data=st.binary(max_size=100).map(lambda data: data + b"."))
def test_read_pickle_error_contains_no_data_of_the_pickle(data):
    """The error for an instruction with a wrong argument does not repeat the argument."""
    for sample in (b"Isecret\n", b"Lsecret\n", b"Fsecret\n", b"Ssecret\n", b"psecret\n"):
        with pytest.raises(ValueError, match="no whole pickle") as caught:
            read_pickle(sample + data)

        assert "secret" not in str(caught.value)
        assert caught.value.__suppress_context__


@given(depth=st.integers(0, 120))
def test_plain_accepts_lists_up_to_the_limit_of_depth(depth):
    """Plain data may be nested 50 deep, and no deeper."""
    data = b"\x80\x04" + b"]" * (depth + 1) + b"a" * depth + b"."

    if depth <= 50:
        assert depth == json.dumps(to_jsonable_data(read_pickle(data))).count("[") - 1
    else:
        with pytest.raises(ValueError, match="nested more than 50 deep"):
            to_jsonable_data(read_pickle(data))


def test_mem0_read_reports_point_when_its_id_is_nested(tmp_path):
    """A point whose id would be a text of 10**40 characters is left out and reported."""
    nested = "x"
    for _ in range(40):
        nested = [nested] * 10
    point = pickle.dumps(PointStruct(id=nested, vector=[0.5], payload={"data": "left out"}))
    file = points(tmp_path / "collection" / "mem0" / "storage.sqlite", [("1", {"data": "kept"}), ("2", point)])
    found = mem0.read(file)

    assert ["kept"] == [one.value["data"] for one in found.records]
    assert ["left out: its id is neither a text nor a number"] == [one.note for one in found.odd]


# Sizes, folders and special files


def sparse(path, size=2**33, start=b""):
    """Create a file with an apparent size of 8 GiB by default. It occupies almost no disk space."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


@pytest.mark.parametrize(
    ("read", "name", "is_database", "limit"),
    [
        (basic_memory.read, "note.md", False, files.MAX_NOTE_BYTES),
        (mcp_memory.read, "memory.jsonl", False, files.MAX_FILE_BYTES),
        (mem0.read, "all.json", False, files.MAX_FILE_BYTES),
        (claude_code.read, "session.jsonl", False, claude_code.MAX_TRANSCRIPT_BYTES),
        (claude_mem.read, "claude-mem.db", True, files.MAX_DATABASE_BYTES),
        (langgraph.read, "store.db", True, files.MAX_DATABASE_BYTES),
        (mem0.read, "history.db", True, files.MAX_DATABASE_BYTES),
        (read_v1, "mama-memory.db", True, files.MAX_DATABASE_BYTES),
    ],
)
def test_read_raises_migration_error_when_a_file_is_too_large(  # noqa: PLR0917 - fixtures and parameters
    tmp_path, monkeypatch, read, name, is_database, limit
):
    """A file of 8 GB is rejected by its size, and no more than its first bytes are read."""
    start = b""
    if is_database:
        with contextlib.closing(sqlite3.connect(tmp_path / "small.db")) as database:
            database.execute("CREATE TABLE t (a)")
        start = (tmp_path / "small.db").read_bytes()
    file = sparse(tmp_path / name, start=start)
    count = 0
    real = os.fdopen

    class Counting(io.FileIO):
        def read(self, size=-1):
            nonlocal count
            data = super().read(min(size, 2**21) if size >= 0 else 2**21)
            count += len(data)
            return data

    monkeypatch.setattr(os, "fdopen", lambda fd, *mode, **more: Counting(fd) if more else real(fd, *mode))
    with pytest.raises(MigrationError) as caught:
        read(file)

    assert name in str(caught.value)
    assert f"{limit:,} bytes" in str(caught.value)
    assert str(file) == caught.value.path
    assert count <= 2**20


def test_read_raises_migration_error_when_one_note_of_a_folder_is_too_large(tmp_path):
    """The error for a folder names the note."""
    (tmp_path / "small.md").write_text("Small.")
    sparse(tmp_path / "large.md")

    with pytest.raises(MigrationError, match=r"large\.md.*16,777,216 bytes"):
        basic_memory.read(tmp_path)


def test_read_bytes_raises_migration_error_when_a_file_grows(tmp_path):
    """A file with more bytes than its reported size is read up to the limit only."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("only Linux has files of unknown size below /proc")

    with pytest.raises(MigrationError, match="at most 10 bytes, got 11"):
        files.read_bytes(maps, "a file", limit=10)
    assert len(files.read_bytes(maps, "a file", limit=2**24)) > 10


def test_read_raises_migration_error_when_the_notes_of_a_folder_are_too_large(tmp_path, monkeypatch):
    """The notes of a folder have a limit on their total size."""
    monkeypatch.setattr(basic_memory, "MAX_FOLDER_BYTES", 30)
    for number in range(4):
        (tmp_path / f"{number}.md").write_text("x" * 10)

    with pytest.raises(MigrationError, match="30 bytes in total"):
        basic_memory.read(tmp_path)


def test_list_files_raises_migration_error_when_a_folder_has_too_many_entries(tmp_path, monkeypatch):
    """Entries are counted while they are listed, hidden ones too."""
    monkeypatch.setattr(files, "MAX_FOLDER_ENTRIES", 10)
    for number in range(11):
        (tmp_path / f".{number}.md").touch()

    for read in (basic_memory.read, mem0.read):
        with pytest.raises(MigrationError, match="at most 10 files and folders"):
            read(tmp_path)


def test_list_files_raises_migration_error_when_folders_are_nested_too_deep(tmp_path):
    """Folders nested a thousand deep raise MigrationError and not RecursionError."""
    (tmp_path / "note.md").write_text("x")
    current = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=current)
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    os.close(current)
    try:
        with pytest.raises(MigrationError, match="nested at most 64 deep"):
            basic_memory.read(tmp_path)
    finally:
        # Remove the folder here, because pytest would remove it recursively and fail at this depth.
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_read_reports_symbolic_links_and_special_files_without_opening_them(tmp_path):
    """Symbolic links, FIFOs and devices are reported and never opened."""
    notes = tmp_path / "notes"
    outside = tmp_path / "outside"
    notes.mkdir()
    outside.mkdir()
    (outside / "secret.md").write_text("Secret.")
    (notes / "a.md").write_text("Kept.")
    (notes / "device.md").symlink_to("/dev/zero")
    (notes / "file.md").symlink_to(outside / "secret.md")
    (notes / "folder").symlink_to(outside)
    (notes / "loop").symlink_to(notes)
    os.mkfifo(notes / "pipe.md")
    found = basic_memory.read(notes)

    assert ["Kept."] == [one.record["content"] for one in found.memories]
    assert {
        "device.md": "left out: it is a symbolic link",
        "file.md": "left out: it is a symbolic link",
        "folder": "left out: it is a symbolic link",
        "loop": "left out: it is a symbolic link",
        "pipe.md": "left out: it is not a regular file",
    } == {one.id: one.note for one in found.odd}


def test_mem0_read_does_not_follow_symbolic_links_below_its_folder(tmp_path):
    """A link to a database outside of the folder is reported and not read."""
    home = tmp_path / "home"
    home.mkdir()
    points(tmp_path / "outside" / "storage.sqlite", [("1", {"data": "outside"})])
    points(home / "collection" / "mem0" / "storage.sqlite", [("2", {"data": "inside"})])
    (home / "linked").symlink_to(tmp_path / "outside")
    (home / "storage.sqlite").symlink_to(tmp_path / "outside" / "storage.sqlite")
    found = mem0.read(home)

    assert ["inside"] == [one.value["data"] for one in found.records]
    assert [("storage.sqlite", "not_read")] == [(one.id, one.kind) for one in found.odd]


# JSON files


def test_read_reports_or_rejects_deeply_nested_json_and_huge_numbers(tmp_path):
    """Deep JSON and huge numbers are reported for items, and raise an error for a whole file."""
    hostile = ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, "1" * 100_000]
    lines = [f'{{"type":"entity","name":"E","observations":{one}}}' for one in hostile]
    found = mcp_memory.read(graph(tmp_path / "memory.jsonl", entity("Ada"), *lines))
    store = langgraph_store(tmp_path / "store.db", [("a", str(n), one) for n, one in enumerate(hostile)])

    assert ["no_item"] * 3 == [one.kind for one in found.odd]
    assert ["no_json"] * 3 == [one.kind for one in langgraph.read(store).odd]
    for one in hostile:
        (tmp_path / "all.json").write_text(f'[{{"id":"1","memory":"x","metadata":{one}}}]')
        with pytest.raises(MigrationError, match=r"all\.json"):
            mem0.read(tmp_path / "all.json")


async def test_import_jsonl_raises_invalid_argument_when_a_line_is_hostile(tmp_path):
    """Deep JSON, huge numbers and an unterminated line raise an error; nothing is written."""
    path = tmp_path / "export.jsonl"
    async with Session.open(None, embedder=SMALL) as session:
        await session.memories.save_context("The text.", source="here")
        await admin.export_jsonl(session.memories, path)
    whole = path.read_text()
    for hostile in ("[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, "1" * 100_000, "1e999"):
        path.write_text(whole.replace('"source":"here"', f'"source":"here","extra":{{"a":{hostile}}}'))
        async with Session.open(None, embedder=SMALL) as session:
            with pytest.raises(InvalidArgument, match="line 2"):
                await admin.import_jsonl(session.memories, path)

            assert 0 == await session.memories.count()


# YAML files


def bomb(levels=9, width=9):
    """Return YAML whose aliases expand to *width* ** *levels* strings."""
    lines = ["a0: &a0 [lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "front",
    [
        bomb(),
        "a: " + "[" * 5_000,
        "a: " + "{b: " * 2_000,
        "\n".join(f"k{n}: v" for n in range(1_100)),
        "a: " + "x" * 2**14,
    ],
    ids=["aliases", "lists", "mappings", "nodes", "characters"],
)
def test_read_imports_frontmatter_as_text_when_it_exceeds_a_limit(tmp_path, front):
    """The frontmatter of a note with a YAML bomb is part of its text, and reported with the limit."""
    (tmp_path / "note.md").write_text(f"---\n{front}\n---\nText.")
    found = basic_memory.read(tmp_path)

    assert [f"---\n{front}\n---\nText."] == [one.record["content"] for one in found.memories]
    assert [("note.md", "no_yaml")] == [(one.id, one.kind) for one in found.odd]
    assert re.search("more than (2,000 YAML nodes|16,384 characters)", found.odd[0].note)


def test_read_fields_does_not_expand_aliases(monkeypatch):
    """Below the limit, aliases of nested lists are not expanded."""
    monkeypatch.setattr(frontmatter, "MAX_ALIASES", 1_000)
    fields = read_fields(bomb())

    assert {"a0": ["lol"], **{f"a{n}": [] for n in range(1, 9)}} == fields


@pytest.mark.parametrize(
    "front",
    ["a: !!python/object/apply:os.system [exit]", "a: !!python/name:os.system x", "<<: {a: 1}", 'a: "\\U00110000"'],
)
def test_read_fields_does_not_construct_objects(front):
    """Tags, merges and code points beyond Unicode construct no object."""
    try:
        fields = read_fields(front)
    except ValueError:
        fields = {}

    assert fields in ({"a": ["exit"]}, {"a": "x"}, {})


def test_read_reports_note_when_its_frontmatter_is_invalid_yaml(tmp_path):
    """A block that is no YAML mapping is part of the text. The note has its file name as the topic, and is reported."""
    blocks = ["title: [Tea", "Dear Ada: a: letter", "Dear Ada,", "- a\n- b", 'title: "\\q"', "null: [", "? [a"]
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.md").write_text(f"---\n{block}\n---\nText.")
    found = basic_memory.read(tmp_path)

    assert [(f"{n}", f"---\n{block}\n---\nText.") for n, block in enumerate(blocks)] == [
        (one.record["topic"], one.record["content"]) for one in found.memories
    ]
    assert [(f"{n}.md", "no_yaml") for n in range(len(blocks))] == [(one.id, one.kind) for one in found.odd]


def test_read_raises_invalid_argument_when_pyyaml_is_missing(tmp_path, monkeypatch):
    """Without PyYAML the error names the required extra."""
    (tmp_path / "note.md").write_text("Text.")
    monkeypatch.setitem(sys.modules, "yaml", None)
    frontmatter._yaml.cache_clear()
    try:
        with pytest.raises(InvalidArgument, match=r"mama-structs\[basic-memory\]"):
            basic_memory.read(tmp_path)
    finally:
        frontmatter._yaml.cache_clear()


@given(marks=st.lists(st.sampled_from(["\u0301", "\u0323", "e", "한", " "]), max_size=60))
def test_normalize_returns_the_unicode_normal_form(marks):
    """A text without a long run of combining marks gets the Unicode normal form."""
    text = "".join(marks)

    assert unicodedata.normalize("NFC", text) == normalize("NFC", text)


def test_normalize_works_in_pieces_when_a_run_of_combining_marks_is_long(monkeypatch):
    """A run of 200,000 combining marks is normalized in pieces, as sorting it is quadratic."""
    longest = 0
    real = unicodedata.normalize

    def counting(form, text):
        nonlocal longest
        longest = max(longest, len(text))
        return real(form, text)

    monkeypatch.setattr(unicodedata, "normalize", counting)
    normalize("NFC", "\u0301\u0323" * 100_000)

    assert longest == 64


# SQLite databases


def database_of(path, *statements):
    """Create a database by executing these statements."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("BEGIN")
        for statement in statements:
            database.execute(statement)
    return path


STORE = "CREATE TABLE store (prefix text, key text, value text)"


def test_read_ignores_views_triggers_and_generated_columns(tmp_path):
    """Expressions of the schema are never evaluated."""
    file = database_of(
        tmp_path / "store.db",
        "CREATE TABLE store (prefix text, key text, value text, big AS (zeroblob(200000000)), x AS (abs(key)) STORED)",
        "CREATE VIEW store_vectors AS SELECT prefix, key, zeroblob(900000000) AS field_name FROM store",
        "CREATE TRIGGER t AFTER INSERT ON store BEGIN SELECT randomblob(100000000); END",
        "INSERT INTO store VALUES ('a', '1', '{\"text\": \"x\"}')",
    )
    found = langgraph.read(file)

    assert [{"text": "x"}] == [one.value for one in found.records]


def test_read_raises_migration_error_when_a_table_is_a_view(tmp_path):
    """A view with the name of the expected table is not read."""
    file = database_of(
        tmp_path / "store.db",
        "CREATE VIEW store AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT 'a' AS prefix, i AS key, '{}' AS value FROM n",
    )

    with pytest.raises(MigrationError, match="none of a LangGraph store"):
        langgraph.read(file)


def test_read_raises_migration_error_when_a_table_is_virtual(tmp_path):
    """A virtual table with the name of the expected table is not read."""
    try:
        file = database_of(tmp_path / "store.db", "CREATE VIRTUAL TABLE store USING fts5(prefix, key, value)")
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no FTS5")

    with pytest.raises(MigrationError, match="store is a virtual table"):
        langgraph.read(file)


def test_read_raises_migration_error_when_rows_are_larger_than_the_file(tmp_path):
    """A small file whose added column has a long default value cannot exhaust the memory."""
    file = database_of(
        tmp_path / "store.db",
        STORE,
        *(f"INSERT INTO store VALUES ('a', '{n}', '{{}}')" for n in range(500)),
        f"ALTER TABLE store ADD COLUMN more TEXT DEFAULT '{'x' * 100_000}'",
    )

    with pytest.raises(MigrationError, match="rows of store are larger than the file"):
        langgraph.read(file)


def test_read_raises_migration_error_when_a_database_has_too_many_tables(tmp_path):
    """The number of tables is checked before any of them is read."""
    file = database_of(tmp_path / "store.db", STORE, *(f"CREATE TABLE t{n} (a)" for n in range(1_000)))

    with pytest.raises(MigrationError, match="at most 1,000 tables"):
        langgraph.read(file)
    with pytest.raises(MigrationError, match="at most 1,000 tables"):
        read_v1(file)


def test_read_raises_migration_error_when_a_value_is_too_large(tmp_path, monkeypatch):
    """The error for an oversized row says that it is too large, and does not report damage."""
    monkeypatch.setitem(databases.SQLITE_LIMITS, sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    file = database_of(tmp_path / "store.db", STORE, f"INSERT INTO store VALUES ('a', '1', '{'x' * 200_000}')")

    with pytest.raises(MigrationError, match="a value or a row of more than"):
        langgraph.read(file)


# The command import-from


def test_import_from_command_creates_no_store_when_a_file_is_hostile(tmp_path):
    """The command raises the typed error before it creates a store."""
    sparse(tmp_path / "note.md")
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(MigrationError):
        table.run(table.parse(["import-from", "basic-memory", str(tmp_path), str(tmp_path / "new.mama")]))

    assert not (tmp_path / "new.mama").exists()
