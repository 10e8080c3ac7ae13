"""Reading the old file: never changed, and refused with a clear error where it is not what it should be."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from mama_v1_0 import OldStore

from mama_structs.errors import InvalidArgument, MigrationError
from mama_structs.importers.mama_v1 import read_old
from mama_structs.importers.shared import sqlite_copy as databases

SAMPLES = Path(__file__).parents[1] / "data" / "mama"
FILES = ["v1_0_real_writes.db", "v1_0_user.db"]


@pytest.fixture
def old(tmp_path):
    """A v1.0 database with some decisions, in the journal mode of a file that is copied by hand."""
    path = tmp_path / "old.db"
    with OldStore.made(path) as store:
        store.history(40)
    return path


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A lock is not waited for long."""
    monkeypatch.setattr(databases, "PATIENCE", 0.05)


def sample(name, folder):
    """Unpack one of the files that were made for this into a folder."""
    path = folder / name
    path.write_bytes(lzma.decompress((SAMPLES / f"{name}.xz").read_bytes()))
    return path


def listing(folder):
    """Return each file of a folder with its bytes' hash and its times."""
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in folder.iterdir()
    }


@pytest.mark.parametrize("name", FILES)
def test_the_sample_files_are_read_and_stay_as_they_are(name, tmp_path):
    """The files that were made for this are read, and stay as they are, with nothing beside them."""
    path = sample(name, tmp_path)
    before = listing(tmp_path)
    found = read_old(Path(path))

    assert before == listing(tmp_path)
    assert before[name][0] == found.checksum
    assert 4 == found.version


def test_what_is_in_the_write_ahead_log_is_read(tmp_path):
    """What is still in the write-ahead log is read, and the log stays where it is, as it is."""
    path = tmp_path / "old.db"
    with OldStore.made(path, wal=True) as store:
        store.decision("first")
        store.database.execute("COMMIT")
        store.database.execute("BEGIN")
        hot = tmp_path / "hot"
        hot.mkdir()
        for name in ("old.db", "old.db-wal"):
            shutil.copy(tmp_path / name, hot)
    before = listing(hot)
    found = read_old(hot / "old.db")

    assert before["old.db-wal"]
    assert ["first"] == [row.get("topic") for row in found.decisions]
    assert before == listing(hot)


def test_a_database_that_is_open_elsewhere_is_read(tmp_path):
    """A database that its program has open, and does not write to just now, is read."""
    path = tmp_path / "old.db"
    with OldStore.made(path, wal=True) as store:
        store.decision("first")
        store.database.execute("COMMIT")

        assert 1 == len(read_old(path).decisions)

        store.database.execute("BEGIN")


def test_a_half_written_transaction_is_taken_back_in_the_copy_alone(old, tmp_path):
    """What a crash left half written is taken back in the copy, not in the file."""
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    writer = sqlite3.connect(old, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("PRAGMA cache_spill = ON")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE decisions SET decision = hex(randomblob(4000))")
    for name in ("old.db", "old.db-journal"):
        shutil.copy(tmp_path / name, crashed)
    writer.execute("ROLLBACK")
    writer.close()
    before = listing(crashed)
    expected = read_old(old)

    assert expected.content == read_old(crashed / "old.db").content
    assert before == listing(crashed)
    assert before["old.db"][0] != expected.checksum


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
@pytest.mark.parametrize("wal", [False, True])
def test_a_file_that_somebody_writes_to_is_refused_until_that_is_over(tmp_path, mode, wal):
    """A file that somebody writes to is refused, and read when that is over."""
    path = tmp_path / "old.db"
    with OldStore.made(path, wal=wal) as store:
        store.decision("first")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute(f"BEGIN {mode}")
    writer.execute("UPDATE decisions SET topic = 'second'")

    with pytest.raises(MigrationError, match="is locked: another program is writing to it") as caught:
        read_old(path)

    assert str(path) == caught.value.path
    writer.execute("COMMIT")
    writer.close()
    assert "second" == read_old(path).decisions[0].get("topic")


def test_the_lock_of_another_process_counts_too(old):
    """The lock of another process counts as well."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN EXCLUSIVE');"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(old)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        other.stdout.readline()

        with pytest.raises(MigrationError, match="is locked"):
            read_old(old)

        other.stdin.close()
    assert 40 == len(read_old(old).decisions)


def test_a_file_that_changes_while_it_is_copied_is_refused(old, monkeypatch):
    """A file that changes while it is copied is refused."""
    summed = databases._sum

    def changing(file):
        with old.open("r+b") as target:
            target.seek(5000)
            target.write(b"x")
        return summed(file)

    monkeypatch.setattr(databases, "_sum", changing)

    with pytest.raises(MigrationError, match="was changed while it was read"):
        read_old(old)


def test_what_is_no_file_is_refused_and_nothing_is_made(tmp_path):
    """What is no file is refused, and nothing is made of it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    for name, problem in (("missing.db", "No such file"), ("folder", "is none"), ("pipe", "is none")):
        with pytest.raises(InvalidArgument, match=problem):
            read_old(tmp_path / name)

    assert {"pipe", "folder"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("data", "problem"), [(b"", "is empty"), (b"hello", "no SQLite database"), (b"x" * 5000, "no SQLite database")]
)
def test_a_file_that_is_no_database_is_refused(tmp_path, data, problem):
    """A file that is no database is refused."""
    path = tmp_path / "old.db"
    path.write_bytes(data)

    with pytest.raises(MigrationError, match=problem):
        read_old(path)


def test_the_database_of_another_program_is_refused(tmp_path):
    """Another program's database is refused."""
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE decisions (id, what)")
    database.close()

    with pytest.raises(MigrationError, match=r"none of MAMA v1\.0"):
        read_old(path)


@pytest.mark.parametrize(("version", "problem"), [(5, "the form 5"), (64, "the form 64"), (None, "does not say")])
def test_a_database_of_a_later_or_unknown_version_is_refused(old, version, problem):
    """A later MAMA's database is refused with its version, and so is one that names none."""
    with sqlite3.connect(old) as database:
        if version is None:
            database.execute("DELETE FROM schema_version")
        else:
            database.execute("INSERT INTO schema_version (version) VALUES (?)", (version,))
    database.close()

    with pytest.raises(MigrationError, match=problem):
        read_old(old)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_refused(old, share):
    """A file that was not copied to its end is refused."""
    data = old.read_bytes()
    old.write_bytes(data[: int(len(data) * share)])

    with pytest.raises(MigrationError, match="it was cut off"):
        read_old(old)


def test_a_missing_end_is_found_without_a_size_in_the_header(old):
    """Where the header says no size, a missing end is found all the same."""
    data = bytearray(old.read_bytes()[: 4096 * 3])
    struct.pack_into(">I", data, 28, 0)
    old.write_bytes(data)

    with pytest.raises(MigrationError, match="is damaged or not whole"):
        read_old(old)


def test_pages_that_are_not_what_was_written_are_found(old):
    """Pages that are not what was written are found."""
    data = bytearray(old.read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = os.urandom(64)
    old.write_bytes(data)

    with pytest.raises(MigrationError, match="is damaged or not whole"):
        read_old(old)


def test_the_same_rows_have_the_same_name_in_any_file(tmp_path):
    """The same rows have the same name, however the file keeps them."""
    found = []
    for name in ("one.db", "two.db"):
        with OldStore.made(tmp_path / name, wal=name == "two.db") as store:
            store.history(5)
        found.append(read_old(tmp_path / name))

    assert found[0].checksum != found[1].checksum
    assert found[0].content == found[1].content


def beside_a_link(old, folder):
    """Return a link in another folder that leads to a file."""
    folder.mkdir()
    link = folder / "link.db"
    link.symlink_to(old)
    return link


def test_what_is_beside_the_file_that_a_link_leads_to_is_read(tmp_path):
    """Through a link, the write-ahead log of the file itself counts, in whatever folder the link is."""
    path = tmp_path / "old.db"
    with OldStore.made(path, wal=True) as store:
        store.decision("first")
        store.database.execute("COMMIT")
        store.database.execute("BEGIN")
        link = beside_a_link(path, tmp_path / "elsewhere")
        found = read_old(link)

    assert ["first"] == [row.get("topic") for row in found.decisions]
    assert str(link) == found.path


@pytest.mark.parametrize("wal", [False, True])
def test_a_lock_counts_through_a_link_and_the_message_names_the_link(tmp_path, wal):
    """A file that somebody writes to is refused under the name of a link, too, and the message says that name."""
    path = tmp_path / "old.db"
    with OldStore.made(path, wal=wal) as store:
        store.decision("first")
    link = beside_a_link(path, tmp_path / "elsewhere")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE decisions SET topic = 'second'")

    with pytest.raises(MigrationError, match=r"link\.db' is locked"):
        read_old(link)

    writer.execute("ROLLBACK")
    writer.close()


@pytest.mark.parametrize("suffix", ["-shm", "-wal", "-journal"])
def test_a_fifo_beside_the_file_is_not_waited_for(old, suffix):
    """What is beside the file and is no file is not opened, and holds nothing up."""
    os.mkfifo(f"{old}{suffix}")

    assert 40 == len(read_old(old).decisions)


def test_a_table_is_hidden_by_no_virtual_one_whose_name_begins_alike(old):
    """Only what a virtual table keeps itself is left out, and never a table that is migrated."""
    database = sqlite3.connect(old)
    database.execute("CREATE VIRTUAL TABLE decision USING fts5(x)")
    database.execute("CREATE VIRTUAL TABLE schema USING fts5(x)")
    database.execute("CREATE TABLE decision_notes (id)")
    database.execute("INSERT INTO decision_notes VALUES ('note')")
    database.commit()
    database.close()
    found = read_old(old)
    others = {one.name: one.rows for one in found.others}

    assert found.edges
    assert 1 == others["decision_notes"]
    assert {"decision", "schema"} <= set(others)
    assert not [name for name in others if name.endswith(("_data", "_idx", "_content", "_docsize", "_config"))]


def test_tables_inside_a_virtual_one_of_a_missing_module_are_left_out(old):
    """The tables that hold the old vectors are not listed, though nothing here can open the one that they are of."""
    database = sqlite3.connect(old)
    database.execute("PRAGMA writable_schema = ON")
    database.execute(
        "INSERT INTO sqlite_master VALUES ('table', 'vss_memories', 'vss_memories', 0, "
        "'CREATE VIRTUAL TABLE vss_memories USING vec0(embedding float[384])')"
    )
    for name in ("rowids", "chunks", "vector_chunks00", "kept"):
        database.execute(f"CREATE TABLE vss_memories_{name} (id)")
    database.commit()
    database.close()

    assert {"vss_memories", "vss_memories_kept"} == {
        one.name for one in read_old(old).others if one.name.startswith("vss")
    }


@pytest.mark.parametrize("table", ["decisions", "others"])
def test_columns_that_take_every_name_of_a_rows_number_are_no_crash(old, table):
    """Rows without a number are refused where they are needed, and counted elsewhere."""
    database = sqlite3.connect(old)
    if table == "decisions":
        database.execute("DROP TABLE decisions")
        database.execute("CREATE TABLE decisions (id, topic, decision, rowid, _rowid_, oid)")
    else:
        database.execute("CREATE TABLE others (rowid, _rowid_, oid)")
        database.execute("INSERT INTO others VALUES (7, 7, 7)")
    database.commit()
    database.close()

    if table == "decisions":
        with pytest.raises(MigrationError, match="all the names that a row's number goes by"):
            read_old(old)
    else:
        assert [("row 1",)] == [one.keys for one in read_old(old).others if one.name == "others"]


def test_an_error_message_has_no_control_characters(old):
    """What the file names its tables reaches no terminal as it is."""
    database = sqlite3.connect(old)
    database.execute('CREATE TABLE "evil\x1b[2J" (a UNIQUE)')
    database.execute("""INSERT INTO "evil\x1b[2J" VALUES (1)""")
    database.commit()
    (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", ("evil\x1b[2J",)).fetchone()
    database.close()
    data = bytearray(old.read_bytes())
    data[(page - 1) * 4096 + 3 : (page - 1) * 4096 + 5] = b"\0\0"
    old.write_bytes(data)

    with pytest.raises(MigrationError, match="is damaged or not whole") as caught:
        read_old(old)

    assert "evil" in str(caught.value)
    assert str(caught.value).isprintable()
