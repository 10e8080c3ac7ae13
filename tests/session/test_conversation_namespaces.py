"""Conversations belong to a namespace. A host can move a conversation to another namespace."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from killing_helpers import killed_commands

from mama_structs import Session, admin
from mama_structs.cli.main import main
from mama_structs.errors import HandleNotFound, InvalidArgument, StoreBusy
from mama_structs.refs.conversations import conversation_log as log
from mama_structs.refs.conversations.conversation_log import ConversationKey
from mama_structs.storage.sealed_rows import MAX_KEY_CHARS
from mama_structs.storage.sqlite_store import SqliteStorage

# Rows that commit 7f2dd1b wrote without namespaces: a conversation of "alice", its fork, and a conversation `LONG`.
ROWS = json.loads((Path(__file__).parents[1] / "data" / "conversations_without_namespaces.json").read_text())
LONG = "ü" * 200


@pytest.fixture
def place(tmp_path):
    return tmp_path / "agent.mama"


def opened(place, namespace="default", conversation="c", **options):
    return Session.open(place, namespace=namespace, conversation=conversation, **options)


def child(code, *arguments):
    """Run code in a new process, and return the finished process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


async def texts(place, namespace="default", conversation="c"):
    """Return the texts of a conversation by handle."""
    async with opened(place, namespace, conversation) as session:
        assert (await admin.check(session)).ok
        return {handle: session.refs.get(handle).text for handle in session.refs}


def moved(capsys, *arguments):
    """Run the command that moves a conversation, and return its exit code and output."""
    code = main(["conversations", "assign", *map(str, arguments)])
    captured = capsys.readouterr()
    assert 1 == (captured.out + captured.err).count("\n")
    return code, captured.out + captured.err


async def assigned(place, name="c", *, namespace, origin="default"):
    """Move a conversation like the command does, but inside a running event loop."""
    async with Session.open(place) as session:
        return await session._shared.home.assign(name, origin=origin, namespace=namespace)


def rows_on_disk(place):
    with closing(sqlite3.connect(place / "journal" / "cache.db")) as database:
        return dict(database.execute("SELECT key, value FROM Cache WHERE key GLOB 'refs/*' OR key GLOB 'conv*'"))


async def recorded(place, rows):
    """Write rows in the format of an earlier version."""
    storage = SqliteStorage.open(place / "journal")
    storage.enqueue([(key, text.encode()) for key, text in rows.items()])
    await storage.close()


# Isolation


async def test_equal_names_in_two_namespaces_are_separate_conversations(place):
    """Both conversations are open in one process."""
    async with opened(place, "alice") as alice, opened(place, "bob") as bob, opened(place) as host:
        await alice.observe('<ref id="plan">of alice</ref>')
        alice.refs.add("the same text")
        assert [] == list(bob.refs) == list(host.refs)

        await bob.observe('<ref id="plan">of bob</ref>')
        bob.refs.add("the same text")
        with pytest.raises(HandleNotFound):
            host.refs.get("ref:plan")
        bob.refs.delete("fd:1")
        bob.refs.delete("ref:plan")
        assert "ref:plan" not in alice.system_prompt(handles=False)
        assert {"ref:plan@1", "fd:1"} == set(alice.refs)
    assert {"ref:plan@1": "of alice", "fd:1": "the same text"} == await texts(place, "alice")
    assert {} == await texts(place, "bob") == await texts(place)


async def test_equal_names_of_two_namespaces_are_open_in_two_processes(place):
    """The processes do not wait for each other."""
    code = """
        import asyncio, sys
        from mama_structs import Session
        async def main():
            async with Session.open(sys.argv[1], namespace="bob", conversation="c") as session:
                print(*session.refs)
                await session.observe('<ref id="mine">of bob</ref>')
                async with session.fork("fork") as fork:
                    print(*fork.refs)
        asyncio.run(main())
    """
    async with opened(place, "alice") as session, session.fork("fork") as fork:
        await session.observe('<ref id="plan">of alice</ref>')
        await fork.observe('<ref id="plan">of the fork</ref>')
        done = await asyncio.to_thread(child, code, place)

    assert ("\nref:mine@1\n", "", 0) == (done.stdout, done.stderr, done.returncode)
    assert {"ref:plan@1": "of alice"} == await texts(place, "alice")
    assert {"ref:plan@1": "of the fork"} == await texts(place, "alice", "fork")
    assert {"ref:mine@1": "of bob"} == await texts(place, "bob") == await texts(place, "bob", "fork")


async def test_conversation_of_any_namespace_is_open_in_one_process_only(place):
    code = """
        import asyncio, sys
        from mama_structs import Session
        from mama_structs.errors import StoreBusy
        async def main():
            try:
                await Session.open(sys.argv[1], namespace="bob", conversation="c")
            except StoreBusy as error:
                print(error.type)
        asyncio.run(main())
    """
    async with opened(place, "bob"):
        assert "busy\n" == (await asyncio.to_thread(child, code, place)).stdout


async def test_fork_in_namespace_keeps_text_that_its_parent_deleted(place):
    """Only texts without references are deleted from disk."""
    async with opened(place, "bob") as session:
        session.refs.add("of both")
        session.refs.add("of the parent")
        session.refs.delete("fd:2")
        async with session.fork("fork"):
            session.refs.delete("fd:1")
    assert {"fd:1": "of both"} == await texts(place, "bob", "fork")
    async with Session.open(place) as session:
        assert 1 == len(await session._shared.home.storage.keys("texts/"))


# Keys

PIECES = ["default", "a", "%", "%.", "%%", ".", "/", "%25", "2E", "é", "x" * 60, "\0"]
NAMES = st.text(min_size=1, max_size=200) | st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)
KEYS = st.builds(ConversationKey, NAMES | st.just("default"), NAMES)
LONGEST_HANDLE = f"ref:{'x' * 64}@{10**18 - 1}"


@given(one=KEYS, other=KEYS)
@example(one=ConversationKey("a", "b"), other=ConversationKey("default", "a%.b"))
@example(one=ConversationKey("default", "c%.x"), other=ConversationKey("c", "x"))
@example(one=ConversationKey("x", LONG), other=ConversationKey("default", f"x%.{'%C3%BC' * 200}"))
@example(one=ConversationKey("é" * 100, LONG), other=ConversationKey("e" * 100, LONG))
def test_different_conversations_have_different_rows_and_locks(one, other):
    """All keys are ASCII, and short enough even with the longest handle."""
    key = f"{one.changes}{10**17:010}/{LONGEST_HANDLE}"

    assert (one == other) == (one.key_part == other.key_part) == (one.lock_name == other.lock_name)
    assert key.isascii()
    assert len(key) <= MAX_KEY_CHARS
    assert one.key_part == log._CHANGE_KEY.fullmatch(key)["conversation"]


# Compatibility


async def test_store_of_earlier_version_opens_in_default_namespace(place):
    await recorded(place, ROWS)
    assert {"ref:plan@1": "alice v1", "ref:plan@2": "alice v2", "fd:2": "a long result"} == await texts(
        place, conversation="raid"
    )
    assert {"ref:plan@2": "alice v2", "fd:2": "a long result", "ref:own@1": "of the fork"} == await texts(
        place, conversation="raid, again"
    )
    assert {"ref:a@1": "long name"} == await texts(place, conversation=LONG)
    for name in ("raid", "raid, again", LONG):
        assert {} == await texts(place, "alice", name)


async def test_default_namespace_keeps_earlier_row_format(place):
    """An earlier version of the package can open the conversation."""
    async with opened(place, conversation=LONG) as session:
        await session.observe('<ref id="a">long name</ref>')
    async with opened(place, conversation="raid") as session:
        session.refs.add("x")
        async with session.fork("raid, again"):
            pass
    storage = SqliteStorage.open(place / "journal")
    keys = [key for key in ROWS if key.startswith("conversations/")]
    found = await storage.read(keys)
    await storage.close()
    assert [list(json.loads(ROWS[key])) for key in keys] == [list(json.loads(found[key])) for key in keys]


async def test_earlier_version_rejects_conversation_of_other_namespace(place):
    """An earlier version treats the first row as damaged, and so deletes no text."""
    async with opened(place, "bob") as session:
        session.refs.add("x")
    key = ConversationKey("bob", "c").start
    storage = SqliteStorage.open(place / "journal")
    fields = set(json.loads((await storage.read([key]))[key]))
    await storage.close()
    assert {"namespace"} == fields - set(json.loads(ROWS["conversations/raid"]))


# Moving


async def test_assign_moves_conversation_to_another_namespace(place, capsys):
    """Texts, tombstones and numbers are moved, and the old name can be used again."""
    await recorded(place, ROWS)
    code, said = await asyncio.to_thread(moved, capsys, "raid", place, "--namespace", "alice")

    assert (0, "raid was moved from default to alice, with 3 refs and descriptors\n") == (code, said)
    assert {} == await texts(place, conversation="raid")
    async with opened(place, "alice", "raid") as session:
        assert "alice v2" == session.refs.get("plan").text
        with pytest.raises(HandleNotFound, match="deleted"):
            session.refs.get("fd:1")
        assert "fd:3" == session.refs.add("next").handle
    # Move the conversation back. Then move a conversation whose long name is stored as a hash.
    command = ("raid", place, "--from", "alice", "--namespace", "default")
    assert 0 == (await asyncio.to_thread(moved, capsys, *command))[0]
    assert "next" == (await texts(place, conversation="raid"))["fd:3"]
    assert "with 1 ref" in (await asyncio.to_thread(moved, capsys, LONG, place, "--namespace", "é" * 100))[1]
    assert {"ref:a@1": "long name"} == await texts(place, "é" * 100, LONG)


@pytest.mark.parametrize("order", [("c",), ("fork",), ("c", "fork", "last"), ("last", "fork", "c"), ("fork", "c")])
async def test_forks_keep_texts_when_they_or_their_parents_move(place, order):
    """Forks are also complete if the parent deletes and stores more, or if another conversation takes the old name."""
    async with opened(place) as session:
        session.refs.add("first")
        session.refs.add("second")
        async with session.fork("fork") as fork:
            fork.refs.delete("fd:1")
            async with fork.fork("last") as last:
                last.refs.add("of the last")
    expected = {
        "c": {"fd:1": "first", "fd:2": "second"},
        "fork": {"fd:2": "second"},
        "last": {"fd:2": "second", "fd:3": "of the last"},
    }
    spaces = dict.fromkeys(expected, "default")
    for name in order:
        await assigned(place, name, namespace="bob")
        spaces[name] = "bob"
        for each, held in expected.items():
            assert held == await texts(place, spaces[each], each)
    for name in order:
        async with opened(place, conversation=name) as stranger:
            stranger.refs.add("first")
    async with opened(place, spaces["c"]) as session:
        session.refs.delete("fd:2")
        session.refs.add("third")
        session.refs.delete("fd:1")
    del expected["c"]
    for each, held in expected.items():
        assert held == await texts(place, spaces[each], each)


async def test_fork_that_opens_while_its_parent_moves_is_complete(place, monkeypatch):
    """A fork reads its own and its parent's rows at one change number. Otherwise it would reuse their numbers."""
    async with opened(place) as session:
        session.refs.add("inherited")
        async with session.fork("fork"):
            pass
    begun = log.require_start_row
    done = []

    def move_meanwhile(row, key, directory):
        if not done:
            done.append(
                child("import sys; from mama_structs.cli.main import main; sys.exit(main(sys.argv[1:]))", *command)
            )
        return begun(row, key, directory)

    command = ("conversations", "assign", "c", place, "--namespace", "bob")
    monkeypatch.setattr(log, "require_start_row", move_meanwhile)
    async with opened(place, conversation="fork") as fork:
        assert [0] == [one.returncode for one in done]
        assert ["fd:1"] == list(fork.refs)
        fork.refs.add("own")
    assert {"fd:1": "inherited", "fd:2": "own"} == await texts(place, conversation="fork")
    assert {"fd:1": "inherited"} == await texts(place, "bob")


async def test_assign_rejects_open_conversation(place, capsys):
    """The conversation may be open in any namespace and in any process."""
    command = ("conversations", "assign", "c", place, "--namespace", "bob")
    run = "import sys; from mama_structs.cli.main import main; sys.exit(main(sys.argv[1:]))"
    async with opened(place) as session:
        await session.observe('<ref id="a">1</ref>')
        done = await asyncio.to_thread(child, run, *command)
        assert (1, "") == (done.returncode, done.stdout)
        assert "'c' is open in another process" in done.stderr
        with pytest.raises(StoreBusy):
            await assigned(place, namespace="bob")
        await session.observe('<ref id="a">2</ref>')
    async with opened(place, "bob"):
        with pytest.raises(StoreBusy):
            await assigned(place, namespace="bob")
    assert 2 == len(await texts(place))
    assert 2 == await assigned(place, namespace="bob")


async def test_assign_with_wrong_arguments_changes_nothing(place, capsys):
    """Each mistake has a message and exit code 1; a usage error exits with 2."""
    async with opened(place, conversation="raid") as session:
        await session.observe('<ref id="a">1</ref>')
    async with opened(place, "bob", "raid") as session:
        await session.observe('<ref id="secret">2</ref>')
    before = rows_on_disk(place)
    for arguments, message in (
        (
            ["raad", place, "--namespace", "carol"],
            "no conversation 'raad' that contains anything (it has 'raid')",
        ),
        (["raid", place, "--from", "nobody", "--namespace", "carol"], "'nobody' has no conversation 'raid'"),
        (["raid", place, "--namespace", "bob"], "there is a conversation 'raid' in the namespace 'bob' already"),
        (["raid", place, "--namespace", "default"], "cannot move to where it is"),
        (["raid", place, "--namespace", ""], "namespace must"),
        (["raid", place, "--namespace", "x" * 101], "namespace must"),
        (["", place, "--namespace", "bob"], "conversation must"),
        (["raid", place.parent, "--namespace", "bob"], "is not the directory of a store"),
    ):
        code, said = await asyncio.to_thread(moved, capsys, *arguments)
        assert (1, True) == (code, message in said), said
        assert "secret" not in said
    assert before == rows_on_disk(place)
    for wrong in (["conversations"], ["conversations", "assign", "raid", str(place)]):
        with pytest.raises(SystemExit) as caught:
            main(wrong)
        assert 2 == caught.value.code


@pytest.mark.parametrize("key", ["conversations/c", "refs/c/0000000001/ref:a@1"])
async def test_assign_rejects_damaged_conversation(place, capsys, key):
    """The message names the damaged row; other conversations can be moved."""
    for name in ("c", "d"):
        async with opened(place, conversation=name) as session:
            await session.observe('<ref id="a">1</ref><ref id="b">2</ref>')
    with closing(sqlite3.connect(place / "journal" / "cache.db")) as database, database:
        database.execute("UPDATE Cache SET value = CAST(value || x'00' AS BLOB) WHERE key = ?", (key,))
    before = rows_on_disk(place)
    code, said = await asyncio.to_thread(moved, capsys, "c", place, "--namespace", "bob")

    assert (1, True) == (code, "damaged" in said)
    assert before == rows_on_disk(place)
    assert 2 == await assigned(place, "d", namespace="bob")


async def test_assign_moves_conversation_without_its_first_row(place):
    async with opened(place) as session:
        await session.observe('<ref id="a">1</ref>')
    with closing(sqlite3.connect(place / "journal" / "cache.db")) as database, database:
        database.execute("DELETE FROM Cache WHERE key = 'conversations/c'")
    assert 1 == await assigned(place, namespace="bob")
    assert ({}, {"ref:a@1": "1"}) == (await texts(place), await texts(place, "bob"))
    async with opened(place) as session:
        await session.observe('<ref id="a">another</ref>')
    with pytest.raises(InvalidArgument, match="already"):
        await assigned(place, namespace="bob")


@pytest.mark.skipif(os.name != "posix", reason="nothing is killed so elsewhere")
async def test_killed_assign_is_atomic(place):
    async with opened(place) as session:
        await session.observe('<ref id="a">1</ref><ref id="b">2</ref>')
        async with session.fork("fork"):
            pass
    held = {"ref:a@1": "1", "ref:b@1": "2"}
    with killed_commands("conversations", "assign", "c", place, "--namespace", "bob") as is_killed:
        for steps in count():
            was_killed = await asyncio.to_thread(is_killed, steps)
            async with Session.open(place):
                found = await texts(place), await texts(place, "bob"), await texts(place, conversation="fork")
            if not was_killed:
                break
            assert (held, {}, held) == found
    assert ({}, held, held) == found
    assert steps > 8


async def test_backup_contains_conversations_of_all_namespaces(place):
    async with opened(place, "bob") as session:
        await session.observe('<ref id="a">1</ref>')
        copy = await admin.backup(session, place.parent / "copy")
    assert ({"ref:a@1": "1"}, {}) == (await texts(copy, "bob"), await texts(copy))
