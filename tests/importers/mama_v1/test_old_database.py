"""Reading a v1.0 database never changes it. Unsuitable files are rejected."""

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
from mama_structs.importers import read_v1
from mama_structs.importers.shared import sqlite_copy as databases

SAMPLES = Path(__file__).parents[2] / "data" / "mama"
FILES = ["v1_0_real_writes.db", "v1_0_user.db"]


@pytest.fixture
def old(tmp_path):
    """A v1.0 database with some decisions, in the journal mode of a database that was copied as a file."""
    path = tmp_path / "old.db"
    with OldStore.made(path) as store:
        store.history(40)
    return path


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Shorten the wait for a locked database."""
    monkeypatch.setattr(databases, "LOCK_WAIT_SECONDS", 0.05)


def sample(name, folder):
    """Unpack a prepared sample file into a folder."""
    path = folder / name
    path.write_bytes(lzma.decompress((SAMPLES / f"{name}.xz").read_bytes()))
    return path


def listing(folder):
    """Return the content hash and modification time of each file in a folder."""
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in folder.iterdir()
    }


@pytest.mark.parametrize("name", FILES)
def test_read_old_does_not_change_sample_files(name, tmp_path):
    """The sample files are read without changes to them and without new files next to them."""
    path = sample(name, tmp_path)
    before = listing(tmp_path)
    found = read_v1(Path(path))

    assert before == listing(tmp_path)
    assert before[name][0] == found.checksum
    assert 4 == found.version


def test_read_old_includes_the_write_ahead_log(tmp_path):
    """Rows in the write-ahead log are read, and the log stays unchanged."""
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
    found = read_v1(hot / "old.db")

    assert before["old.db-wal"]
    assert ["first"] == [row.get("topic") for row in found.decisions]
    assert before == listing(hot)


def test_read_old_accepts_a_database_that_another_connection_has_open(tmp_path):
    """A database that another program has open without writing is read."""
    path = tmp_path / "old.db"
    with OldStore.made(path, wal=True) as store:
        store.decision("first")
        store.database.execute("COMMIT")

        assert 1 == len(read_v1(path).decisions)

        store.database.execute("BEGIN")


def test_read_old_rolls_back_a_hot_journal_only_in_the_copy(old, tmp_path):
    """A transaction that a crash left incomplete is rolled back in the copy, not in the file."""
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
    expected = read_v1(old)

    assert expected.content == read_v1(crashed / "old.db").content
    assert before == listing(crashed)
    assert before["old.db"][0] != expected.checksum


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
@pytest.mark.parametrize("wal", [False, True])
def test_read_old_raises_while_another_connection_writes(tmp_path, mode, wal):
    """A file with a write lock is rejected, and can be read after the write."""
    path = tmp_path / "old.db"
    with OldStore.made(path, wal=wal) as store:
        store.decision("first")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute(f"BEGIN {mode}")
    writer.execute("UPDATE decisions SET topic = 'second'")

    with pytest.raises(MigrationError, match="is locked: another program is writing to it") as caught:
        read_v1(path)

    assert str(path) == caught.value.path
    writer.execute("COMMIT")
    writer.close()
    assert "second" == read_v1(path).decisions[0].get("topic")


def test_read_old_raises_while_another_process_holds_the_lock(old):
    """The write lock of another process is detected as well."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN EXCLUSIVE');"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(old)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        other.stdout.readline()

        with pytest.raises(MigrationError, match="is locked"):
            read_v1(old)

        other.stdin.close()
    assert 40 == len(read_v1(old).decisions)


def test_read_old_raises_when_the_file_changes_during_the_copy(old, monkeypatch):
    """A file that changes while it is copied is rejected."""
    summed = databases._compute_checksum

    def changing(file):
        with old.open("r+b") as target:
            target.seek(5000)
            target.write(b"x")
        return summed(file)

    monkeypatch.setattr(databases, "_compute_checksum", changing)

    with pytest.raises(MigrationError, match="was changed while it was read"):
        read_v1(old)


def test_read_old_raises_for_paths_that_are_not_files(tmp_path):
    """A path that is not a file is rejected, and no file is created."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    for name, problem in (("missing.db", "No such file"), ("folder", "is none"), ("pipe", "is none")):
        with pytest.raises(InvalidArgument, match=problem):
            read_v1(tmp_path / name)

    assert {"pipe", "folder"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("data", "problem"), [(b"", "is empty"), (b"hello", "no SQLite database"), (b"x" * 5000, "no SQLite database")]
)
def test_read_old_raises_for_files_that_are_not_databases(tmp_path, data, problem):
    """A file that is not a database is rejected."""
    path = tmp_path / "old.db"
    path.write_bytes(data)

    with pytest.raises(MigrationError, match=problem):
        read_v1(path)


def test_read_old_raises_for_databases_of_other_programs(tmp_path):
    """The database of another program is rejected."""
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE decisions (id, what)")
    database.close()

    with pytest.raises(MigrationError, match=r"none of MAMA v1\.0"):
        read_v1(path)


@pytest.mark.parametrize(("version", "problem"), [(5, "the form 5"), (64, "the form 64"), (None, "does not say")])
def test_read_old_raises_for_later_or_unknown_versions(old, version, problem):
    """The database of a later MAMA is rejected, and so is one without a version."""
    with sqlite3.connect(old) as database:
        if version is None:
            database.execute("DELETE FROM schema_version")
        else:
            database.execute("INSERT INTO schema_version (version) VALUES (?)", (version,))
    database.close()

    with pytest.raises(MigrationError, match=problem):
        read_v1(old)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.99])
def test_read_old_raises_for_truncated_files(old, share):
    """A truncated file is rejected."""
    data = old.read_bytes()
    old.write_bytes(data[: int(len(data) * share)])

    with pytest.raises(MigrationError, match="it was cut off"):
        read_v1(old)


def test_read_old_detects_truncation_without_a_size_in_the_header(old):
    """A truncated file is detected even if the header contains no size."""
    data = bytearray(old.read_bytes()[: 4096 * 3])
    struct.pack_into(">I", data, 28, 0)
    old.write_bytes(data)

    with pytest.raises(MigrationError, match="is damaged or not whole"):
        read_v1(old)


def test_read_old_detects_damaged_pages(old):
    """Pages with changed content are detected."""
    data = bytearray(old.read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = os.urandom(64)
    old.write_bytes(data)

    with pytest.raises(MigrationError, match="is damaged or not whole"):
        read_v1(old)


def test_read_old_content_digest_depends_on_rows_only(tmp_path):
    """The same rows have the same digest in differently stored files."""
    found = []
    for name in ("one.db", "two.db"):
        with OldStore.made(tmp_path / name, wal=name == "two.db") as store:
            store.history(5)
        found.append(read_v1(tmp_path / name))

    assert found[0].checksum != found[1].checksum
    assert found[0].content == found[1].content


def beside_a_link(old, folder):
    """In another folder, create a symbolic link to the database, and return the link."""
    folder.mkdir()
    link = folder / "link.db"
    link.symlink_to(old)
    return link


def test_read_old_uses_the_log_next_to_the_target_of_a_link(tmp_path):
    """For a symbolic link, the write-ahead log next to its target is used."""
    path = tmp_path / "old.db"
    with OldStore.made(path, wal=True) as store:
        store.decision("first")
        store.database.execute("COMMIT")
        store.database.execute("BEGIN")
        link = beside_a_link(path, tmp_path / "elsewhere")
        found = read_v1(link)

    assert ["first"] == [row.get("topic") for row in found.decisions]
    assert str(link) == found.path


@pytest.mark.parametrize("wal", [False, True])
def test_read_old_detects_locks_through_a_link_and_names_the_link(tmp_path, wal):
    """A write lock is detected through a symbolic link, and the error names the link."""
    path = tmp_path / "old.db"
    with OldStore.made(path, wal=wal) as store:
        store.decision("first")
    link = beside_a_link(path, tmp_path / "elsewhere")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE decisions SET topic = 'second'")

    with pytest.raises(MigrationError, match=r"link\.db' is locked"):
        read_v1(link)

    writer.execute("ROLLBACK")
    writer.close()


@pytest.mark.parametrize("suffix", ["-shm", "-wal", "-journal"])
def test_read_old_does_not_block_on_a_fifo_next_to_the_file(old, suffix):
    """A FIFO with the name of a journal is not opened, so it cannot block the reader."""
    os.mkfifo(f"{old}{suffix}")

    assert 40 == len(read_v1(old).decisions)


def test_read_old_reads_tables_with_the_prefix_of_a_virtual_table(old):
    """Only the shadow tables of a virtual table are skipped, never a table that is migrated."""
    database = sqlite3.connect(old)
    database.execute("CREATE VIRTUAL TABLE decision USING fts5(x)")
    database.execute("CREATE VIRTUAL TABLE schema USING fts5(x)")
    database.execute("CREATE TABLE decision_notes (id)")
    database.execute("INSERT INTO decision_notes VALUES ('note')")
    database.commit()
    database.close()
    found = read_v1(old)
    others = {one.name: one.rows for one in found.others}

    assert found.edges
    assert 1 == others["decision_notes"]
    assert {"decision", "schema"} <= set(others)
    assert not [name for name in others if name.endswith(("_data", "_idx", "_content", "_docsize", "_config"))]


def test_read_old_skips_shadow_tables_when_their_module_is_missing(old):
    """Shadow tables of vectors are not listed, even without the module of their table."""
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
        one.name for one in read_v1(old).others if one.name.startswith("vss")
    }


@pytest.mark.parametrize("table", ["decisions", "others"])
def test_read_old_handles_columns_that_use_all_names_of_the_rowid(old, table):
    """A table without accessible rowid is rejected if migrated, and otherwise only counted."""
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
            read_v1(old)
    else:
        assert [("row 1",)] == [one.keys for one in read_v1(old).others if one.name == "others"]


def test_read_old_error_contains_no_control_characters(old):
    """Control characters in the names of tables do not reach the error message."""
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
        read_v1(old)

    assert "evil" in str(caught.value)
    assert str(caught.value).isprintable()
