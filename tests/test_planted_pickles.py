"""
Pickles that another process plants in a session's directory are rejected with a typed error and never unpickled.

The tests cover the statement of SECURITY.md about CVE-2025-69872 of diskcache, whose own deserializer unpickles such rows.
"""

import asyncio
import pickle
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import diskcache
import pytest
from memory_helpers import SMALL

from mama_structs import Filter, Session, admin
from mama_structs.cli.main import main
from mama_structs.errors import HandleDamaged, MamaStructsError, StoreDamaged, StoreError
from mama_structs.storage.cache_factory import SETTINGS
from mama_structs.storage.sealed_rows import seal


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Return the path of a directory that the first test fills with a row of each kind."""
    return tmp_path_factory.mktemp("filled") / "agent.mama"


@pytest.fixture
async def place(tmp_path, filled):
    """Return a copy of the filled directory."""
    if not filled.exists():
        async with Session.open(filled, conversation="talk", embedder=SMALL) as session:
            await session.observe('<ref id="plan">shields, then fleets</ref>')
            first = await session.memories.save_decision(
                "Use JWT", topic="auth", reasoning="stateless", evidence=["ref:plan"]
            )
            await session.memories.supersede(first.id, "Use sessions for logins", reasoning="can be ended")
            await session.memories.delete((await session.memories.save_insight("raids doubled")).id)
            await session.records.put(("raid",), "plan", {"step": 1}, text="shields first")
            session.refs.add("deleted again")
            session.refs.delete("fd:1")
            assert "sessions" in (await session.recall("How do logins work?")).text
            async with session.fork("child") as child:
                await child.observe('<ref id="own">fleets</ref>')
    return shutil.copytree(filled, tmp_path / "agent.mama")


def planted_keys(connection, kind):
    """Return the keys of all rows of a kind, or a valid key of this kind if there are no rows."""
    found = connection.execute("SELECT key FROM Cache WHERE raw = 1 AND key GLOB ?", (f"{kind}*",)).fetchall()
    return [key for (key,) in found] or [f"{kind}0000000000000001" if kind.endswith("/") else kind]


def plant(place, kind, form, fired):
    """Replace all rows of a kind with pickles that create a file when unpickled. Return the keys."""
    trap = pickle.dumps(Trap(fired))
    with closing(sqlite3.connect(place / "journal" / "cache.db")) as connection, connection:
        keys = planted_keys(connection, kind)
        for number, key in enumerate(keys):
            connection.execute("DELETE FROM Cache WHERE key = ?", (key,))
            mode, filename, value = diskcache.core.MODE_PICKLE, None, trap
            if form == "file":
                filename, value = f"{number}.val", None
                (place / "journal" / filename).write_bytes(trap)
            elif form == "raw":
                mode = diskcache.core.MODE_RAW
            elif form == "sealed":
                mode, value = diskcache.core.MODE_RAW, seal(key, trap)
            sql = "INSERT INTO Cache (key, raw, mode, filename, value) VALUES (?, 1, ?, ?, ?)"
            connection.execute(sql, (key, mode, filename, value))
    return set(keys)


async def each(found):
    """Return a list of the items of an async iterator."""
    return [one async for one in found]


async def ids_of(session):
    """Return the ids of all listed memories."""
    return [memory.id for memory in await session.memories.list(limit=50)]


async def get_all(session):
    """Read each listed memory by its id."""
    return [await session.memories.get(one) for one in await ids_of(session)]


async def around_all(session):
    """Read the links, versions and evidence of each memory."""
    return [
        await call(one)
        for one in await ids_of(session)
        for call in (session.memories.links, session.memories.history, session.memories.evidence)
    ] + [await session.memories.details(one) for one in await ids_of(session)]


async def ref_texts(session):
    """Return the texts of the current and of the first version of a ref."""
    return [session.refs.get(handle).text for handle in ("ref:plan", "ref:plan@1")]


async def copied(session):
    """Back up the store, and copy it."""
    target = Path(session.location).with_name("copies")
    await admin.backup(session, target / "backup")
    return await admin.copy(session.location, target / "copy")


# Public operations that read an open store.
READS = {
    "recent": ids_of,
    "get": get_all,
    "around": around_all,
    "all": lambda session: each(session.memories.iter_all()),
    "links": lambda session: session.memories.links(limit=1_000),
    "search": lambda session: session.memories.search("how do logins work?"),
    "search as_of": lambda session: session.memories.search("auth", topic="auth"),
    "similar": lambda session: session.memories.similar(content="use sessions"),
    "by_topic": lambda session: session.memories.history(topic="auth"),
    "about": lambda session: session.memories.list(where=Filter(mentions="1-11")),
    "stats": lambda session: session.memories.stats(),
    "export": lambda session: admin.export_jsonl(session.memories, Path(session.location).with_name("export.jsonl")),
    "records.get": lambda session: session.records.get(("raid",), "plan"),
    "records.list": lambda session: session.records.list(("raid",)),
    "records.history": lambda session: session.records.history(("raid",), "plan"),
    "records.search": lambda session: session.records.search("shields"),
    "refs": ref_texts,
    "recall": lambda session: session.recall("how do logins work?", repeat=True),
    "search tool": lambda session: session.call("search/by_topic", {"topic": "auth"}),
    "read_fd": lambda session: session.call("read_fd", {"fd": "ref:plan"}),
    "copies": copied,
    "maintain": admin.maintain,
    "rebuild": lambda session: admin.rebuild(session.memories),
}


async def read_all(session, ways):
    """Run read operations on an open store. Return the type of each raised error by operation."""
    errors = {}
    for name in ways:
        try:
            await READS[name](session)
        except MamaStructsError as error:
            errors[name] = type(error)
    return errors


async def read_again(place):
    """Reopen a store and read it. Return the raised errors by operation, and the keys that the check reports."""
    errors, keys = {}, set()
    looks = {"conversations": admin.list_conversations, "namespaces": admin.list_namespaces}
    for name, look in looks.items():
        try:
            await look(place)
        except MamaStructsError as error:
            errors[name] = type(error)
    for conversation in ("talk", "child"):
        try:
            async with Session.open(place, conversation=conversation, embedder=SMALL) as session:
                errors |= await read_all(session, ["refs"] if conversation == "talk" else ["recent", "search"])
                keys |= {finding.key for finding in (await admin.check(session)).issues if finding.severity == "error"}
        except MamaStructsError as error:
            errors[f"open {conversation}"] = type(error)
    return errors, keys


# Kinds of rows that an operation cannot skip, with the operation and its error. Other operations skip the row.
DIRECT = {
    "memories/default/head": ("open talk", StoreDamaged),
    "memories/default/m/": ("get", StoreDamaged),
    "memories/default/e/": ("around", StoreDamaged),
    "conversations/": ("open talk", StoreDamaged),
    "refs/talk/": ("refs", HandleDamaged),
    "texts/": ("refs", HandleDamaged),
}
# Kinds of rows that the next writer replaces or deletes, so a check need not report them.
REPLACED = ("deleted", "erasing/")
OTHERS = (*(f"memories/default/{kind}/" for kind in "vucdn"), "used/", "told/", *REPLACED)


@pytest.mark.once
@pytest.mark.parametrize("form", ["pickled", "sealed"])
@pytest.mark.parametrize("kind", [*DIRECT, *OTHERS])
async def test_planted_pickle_is_rejected_and_never_unpickled(place, kind, form):
    """Reading the row raises a typed error."""
    fired = place.parent / "fired"
    async with Session.open(place, conversation="talk", embedder=SMALL) as session:
        await session.memories.list()
        keys = plant(place, kind, form, fired)
        errors = await read_all(session, READS)
    again, found = await read_again(place)

    assert not fired.exists()
    if kind in DIRECT:
        way, error = DIRECT[kind]
        assert error is (errors | again)[way]
    else:
        assert {} == errors | again
        # A check may miss wrong content whose checksum is valid.
        assert keys & found or kind in REPLACED or form == "sealed"


def test_trap_creates_file_when_unpickled(tmp_path):
    pickle.loads(pickle.dumps(Trap(tmp_path / "fired")))

    assert (tmp_path / "fired").exists()


async def test_planted_rows_cover_every_kind(place):
    async with Session.open(place, embedder=SMALL) as session:
        keys = await session._shared.home.storage.keys()

    kinds = (*DIRECT, *OTHERS, "refs/child/")
    assert [] == [key for key in keys if not key.startswith(kinds)]


@pytest.mark.parametrize("form", ["pickled", "file", "raw", "sealed"])
async def test_commands_never_unpickle(place, form, capsys):
    """Each command ends with a message."""
    fired = place.parent / "fired"
    plant(place, "[^c]", form, fired)
    commands = (
        ["list", place], ["search", place, "logins"], ["stats", place], ["conversations", "list", place], ["check", place],
        ["export", place, place.parent / "out.jsonl"], ["backup", place, place.parent / "copy"],
    )  # fmt: skip
    codes = [await asyncio.to_thread(main, [*map(str, command)]) for command in commands]
    said = capsys.readouterr()

    assert not fired.exists()
    assert 1 in codes
    assert "Traceback" not in said.out + said.err


async def test_planted_settings_of_diskcache_are_replaced_and_never_unpickled(place):
    """They are reported while the store is open, and replaced when it opens."""
    fired = place.parent / "fired"
    trap = pickle.dumps(Trap(fired))
    database = place / "journal" / "cache.db"
    async with Session.open(place, conversation="talk", embedder=SMALL) as session:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE Settings SET value = ?", (trap,))
            connection.executemany("INSERT INTO Settings VALUES (?, ?)", [("disk_trap", trap), (trap, trap)])
        assert {} == await read_all(session, READS)
        kinds = {finding.kind for finding in (await admin.check(session)).issues if finding.severity == "error"}
    errors, _ = await read_again(place)
    with closing(sqlite3.connect(database)) as connection:
        stored = dict(connection.execute("SELECT key, value FROM Settings"))

    assert not fired.exists()
    assert {"settings"} == kinds
    assert {} == errors
    assert SETTINGS == {key: stored[key] for key in SETTINGS}
    assert set(SETTINGS) | set(diskcache.core.METADATA) == set(stored)


async def test_planted_tables_and_keys_are_rejected_and_never_unpickled(place):
    """A table with pickles prevents opening; a pickled key is reported."""
    fired = place.parent / "fired"
    trap = pickle.dumps(Trap(fired))
    with closing(sqlite3.connect(place / "journal" / "cache.db")) as connection, connection:
        connection.execute("INSERT INTO Cache (key, raw, mode, value) VALUES (?, 0, 4, ?)", (trap, trap))
    errors, _ = await read_again(place)
    async with Session.open(place, embedder=SMALL) as session:
        kinds = {finding.kind for finding in (await admin.check(session)).issues if finding.severity == "error"}
    with closing(sqlite3.connect(place / "journal" / "cache.db")) as connection, connection:
        connection.execute("CREATE TABLE Planted (value)")
        connection.execute("INSERT INTO Planted VALUES (?)", (trap,))

    assert {} == errors
    assert {"foreign"} == kinds
    with pytest.raises(StoreDamaged, match="was not made by this package"):
        await Session.open(place, embedder=SMALL)
    assert not fired.exists()


async def test_planted_files_are_rejected_and_never_unpickled(place):
    """A view is rebuilt; a planted format file is rejected."""
    fired = place.parent / "fired"
    trap = pickle.dumps(Trap(fired))
    async with Session.open(place, conversation="talk", embedder=SMALL) as session:
        assert await session.memories._engine.snapshot()
    files = [path for path in (place / "views").rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(trap)
    (place / "locks").write_bytes(trap)
    async with Session.open(place, conversation="talk", embedder=SMALL) as session:
        assert {} == await read_all(session, READS)
    (place / "journal" / "FORMAT").write_bytes(trap)

    assert len(files) > 3
    with pytest.raises(StoreError, match="newer version"):
        await Session.open(place, embedder=SMALL)
    assert not fired.exists()
