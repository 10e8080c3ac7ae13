"""Administration of conversations: listing, deletion, expiry and closing."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killing_helpers import killed_commands
from postgres_helpers import database, postgres, prepared

from mama_structs import DescriptorSettings, HashEmbedder, RefStore, Session, Settings, admin
from mama_structs.cli.main import main
from mama_structs.errors import InvalidArgument, SessionClosed, StoreBusy, StoreDamaged
from mama_structs.refs.conversations.conversation_log import parse_conversation_part
from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.postgres.store import PostgresStorage
from mama_structs.storage.sqlite_store import SqliteStorage

__all__ = ["database", "postgres", "prepared"]

DAY = timedelta(days=1)

in_directory = pytest.mark.parametrize("place", ["directory"], indirect=True)


@pytest.fixture(params=["directory", "server"])
def place(request, tmp_path):
    """The directory or the server URL of the sessions."""
    return tmp_path / "agent.mama" if request.param == "directory" else request.getfixturevalue("database")


def store(place):
    """Open the row storage of a directory or a server URL, without a session."""
    if isinstance(place, str):
        return PostgresStorage(PostgresPool.open(place), lease_name_of=parse_conversation_part)
    return SqliteStorage.open(place / "journal")


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock of all sessions. The only item of the returned list is the current time."""
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    monkeypatch.setitem(RefStore.__init__.__kwdefaults__, "clock", lambda: now[0])
    return now


def opened(place, conversation="c", **options):
    return Session.open(place, conversation=conversation, embedder=HashEmbedder(), **options)


def living(days):
    return Settings(descriptors=DescriptorSettings(conversation_ttl=days * DAY.total_seconds()))


async def held(place, name="c", **options):
    """Return the texts of a conversation by handle."""
    async with opened(place, name, **options) as session:
        assert (await admin.check(session)).ok
        return {handle: session.refs.get(handle).text for handle in session.refs}


async def names(place, **options):
    return {one.name for one in await admin.list_conversations(place, **options)}


async def stored(place):
    """Return the keys of all rows, except the rows of memories."""
    storage = store(place)
    keys = await storage.run_read(lambda rows: rows.keys())
    await storage.close()
    return {key for key in keys if key.startswith(("conversations/", "refs/", "texts/", "used/", "deleted"))}


def child(code, *arguments):
    """Run code in a new process, and return the finished process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


# Listing


async def test_conversations_lists_names_times_handles_and_sizes(place, clock):
    """The conversation that was used last is first."""
    begun = clock[0]
    async with opened(place, "old") as session:
        await session.observe('<ref id="a">é</ref><ref id="a">2</ref>')
        session.refs.add("2")
        session.refs.delete("ref:a@1")
    clock[0] += DAY
    async with opened(place, "new") as session, opened(place, "empty"):
        session.refs.add("x")
        await session.flush()
        found = await admin.list_conversations(place)

    assert ["new", "old"] == [one.name for one in found]
    new, old = found
    assert (1, 1, True, clock[0]) == (new.handle_count, new.bytes, new.is_open, new.created_at)
    assert (2, 1, False, begun, begun) == (old.handle_count, old.bytes, old.is_open, old.created_at, old.last_used_at)
    assert "<ConversationInfo 'old': 2 handles, 1 bytes, used 2026-01-01 00:00 UTC>" == repr(old)
    assert "open>" in repr(new)


async def test_opening_a_conversation_updates_used_at(place, clock):
    """The time changes even if nothing is stored."""
    async with opened(place) as session:
        session.refs.add("x")
    clock[0] += DAY
    async with opened(place):
        (one,) = await admin.list_conversations(place)
        assert clock[0] == one.last_used_at
        clock[0] += DAY
    (one,) = await admin.list_conversations(place)
    assert clock[0] == one.last_used_at == one.created_at + 2 * DAY


async def test_conversations_lists_and_deletes_only_its_namespace(place):
    for namespace in ("default", "bob"):
        async with opened(place, namespace=namespace) as session:
            session.refs.add(namespace)
    await admin.delete_conversation(place, "c", namespace="bob")

    assert (set(), {"c"}) == (await names(place, namespace="bob"), await names(place))
    assert {"fd:1": "default"} == await held(place)


async def test_conversation_of_another_process_is_listed_as_open(place):
    """Listing does not lock the conversation."""
    code = """
        import asyncio, sys
        from mama_structs import admin
        print([one.is_open for one in asyncio.run(admin.list_conversations(sys.argv[1]))])
    """
    async with opened(place) as session:
        session.refs.add("x")
        await session.flush()
        assert "[True]\n" == (await asyncio.to_thread(child, code, place)).stdout
    assert "[False]\n" == (await asyncio.to_thread(child, code, place)).stdout


@pytest.mark.parametrize("location", ["nowhere", "file", "empty"])
async def test_conversations_rejects_directory_without_store(tmp_path, location):
    """The rejected call creates nothing."""
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgument):
        await admin.list_conversations(tmp_path / location)
    assert ["empty", "file"] == sorted(path.name for path in tmp_path.iterdir())


async def test_conversations_skips_damaged_first_row(place, caplog):
    """The log names the row."""
    for name in "ab":
        async with opened(place, name) as session:
            session.refs.add("x")
    storage = store(place)
    storage.enqueue([("conversations/a", b"{}")], namespace="default")
    await storage.close()

    assert {"b"} == await names(place)
    assert "conversations/a" in caplog.text


# Deletion


async def test_delete_removes_conversation_and_its_texts(place):
    """Texts of other conversations and evidence remain, and the name can be used again."""
    async with opened(place) as session, opened(place, "other") as other:
        for text in ("secret", "shared", "evidence"):
            session.refs.add(text)
        other.refs.add("shared")
        kept = await session.memories.save_decision("b", topic="a", reasoning="c", evidence=["fd:3"])
    await admin.delete_conversation(place, "c")

    assert {"other"} == await names(place)
    assert not [key for key in await stored(place) if key.startswith(("refs/c/", "used/c", "conversations/c", "del"))]
    assert 1 == len([key for key in await stored(place) if key.startswith("texts/")])
    assert {"fd:1": "shared"} == await held(place, "other")
    async with opened(place) as again:
        assert [] == list(again.refs)
        context = await again.call("load/context", {"id": kept.id})
        assert "evidence" in json.dumps(context)


async def test_delete_of_unknown_conversation_names_existing_ones(place):
    async with opened(place, "raid") as session:
        session.refs.add("x")
    with pytest.raises(InvalidArgument, match="'raad'") as caught:
        await admin.delete_conversation(place, "raad")
    assert "raid" in str(caught.value)
    with pytest.raises(InvalidArgument):
        await admin.delete_conversation(place, 7)


async def test_delete_rejects_open_conversation(place):
    """The conversation may be open in this process or in another one."""
    code = """
        import asyncio, sys
        from mama_structs import Session, admin
        from mama_structs.errors import StoreBusy
        async def main():
            try:
                await admin.delete_conversation(sys.argv[1], "c")
            except StoreBusy as error:
                print(error.type)
        asyncio.run(main())
    """
    async with opened(place) as session:
        await session.observe('<ref id="a">1</ref>')
        with pytest.raises(StoreBusy, match="'c' is open"):
            await admin.delete_conversation(place, "c")
        assert "busy\n" == (await asyncio.to_thread(child, code, place)).stdout
        await session.observe('<ref id="a">2</ref>')
    assert {"ref:a@1": "1", "ref:a@2": "2"} == await held(place)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.sampled_from(["x", "y", "zé"])),
        st.tuples(st.just("delete"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("fork"), st.integers(0, 3), st.just(0)),
    ),
    max_size=14,
)


@given(steps=STEPS, order=st.permutations(range(4)), kept=st.integers(0, 3))
@settings(max_examples=20)
def test_forks_keep_texts_when_ancestors_are_deleted(steps, order, kept):
    async def hold(place):
        async with Session.open(place, conversation="0", embedder=HashEmbedder()) as first:
            open_ones = [first]
            for what, who, value in steps:
                one = open_ones[who % len(open_ones)]
                if what == "add":
                    one.refs.add(value)
                elif what == "fork" and len(open_ones) < 4:
                    open_ones.append(one.fork(str(len(open_ones))))
                elif what == "delete" and f"fd:{value}" in one.refs:
                    one.refs.delete(f"fd:{value}")
            expected = {
                one.conversation: {handle: one.refs.get(handle).text for handle in one.refs} for one in open_ones
            }
            usages = {one.conversation: one.refs.usage for one in open_ones}
            for one in open_ones[1:]:
                await one.close()
        listed = {one.name: (one.handle_count, one.bytes) for one in await admin.list_conversations(place)}
        assert listed == {name: (usages[name].handles, usages[name].bytes) for name in listed}
        assert {name for name, texts in expected.items() if texts} <= set(listed)
        for number in order[:kept]:
            if str(number) in await names(place):
                await admin.delete_conversation(place, str(number))
            expected.pop(str(number), None)
            for name, texts in expected.items():
                assert texts == await held(place, name)

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(hold(Path(name) / "s"))


@in_directory
async def test_delete_rejects_conversation_with_damaged_row_that_a_fork_needs(place):
    """After the fork was deleted, the conversation can be deleted, too."""
    async with opened(place) as session:
        session.refs.add("x")
        await session.flush()
        async with session.fork("fork"):
            pass
    storage = store(place)
    await storage.transact(
        lambda rows: rows._execute(
            "UPDATE Cache SET value = CAST(value || x'00' AS BLOB) WHERE key = 'refs/c/0000000001/fd:1'"
        )
    )
    await storage.close()
    with pytest.raises(StoreDamaged, match="forks"):
        await admin.delete_conversation(place, "c")
    assert {"c", "fork"} == await names(place)

    await admin.delete_conversation(place, "fork")
    await admin.delete_conversation(place, "c")
    assert set() == await names(place)


@in_directory
@pytest.mark.skipif(os.name != "posix", reason="nothing is killed so elsewhere")
async def test_killed_delete_is_atomic(place):
    async with opened(place) as session:
        await session.observe('<ref id="a">1</ref><ref id="b">2</ref>')
        async with session.fork("fork") as fork:
            fork.refs.delete("ref:b")
    whole = {"ref:a@1": "1", "ref:b@1": "2"}
    with killed_commands("conversations", "delete", "c", place) as is_killed:
        for steps in count():
            was_killed = await asyncio.to_thread(is_killed, steps)
            async with opened(place, "another"):
                is_there = "c" in await names(place)
                assert {"ref:a@1": "1"} == await held(place, "fork")
                if is_there:
                    assert whole == await held(place)
            if not is_there:
                break
            assert was_killed
    assert steps > 8
    assert 1 == len([key for key in await stored(place) if key.startswith("texts/")])


# Expiry


async def test_unused_conversations_expire_at_next_opening(place, clock):
    """They expire only if the setting has a TTL, and their texts are deleted, too."""
    for name in ("old", "read", "forked"):
        async with opened(place, name) as session:
            session.refs.add(f"text of {name}")
            if name == "forked":
                async with session.fork("young"):
                    pass
    clock[0] += 6 * DAY
    async with opened(place, "read"), opened(place, "young"):
        pass
    clock[0] += 5 * DAY
    async with opened(place, "own"):
        assert {"old", "read", "forked", "young"} == await names(place)
    async with opened(place, "own", settings=living(10)):
        assert {"read", "young"} == await names(place)
    assert {"fd:1": "text of forked"} == await held(place, "young")
    assert 2 == len([key for key in await stored(place) if key.startswith("texts/")])


async def test_open_conversations_and_other_namespaces_do_not_expire(place, clock):
    """The conversation that is being opened does not expire either."""
    for options in ({"conversation": "mine"}, {"conversation": "busy"}, {"namespace": "bob"}):
        async with opened(place, **options) as session:
            session.refs.add("x")
    async with opened(place, "busy"):
        clock[0] += 100 * DAY
        async with opened(place, "mine", settings=living(1)) as session:
            assert {"mine", "busy"} == await names(place)
            await admin.maintain(session)
            assert {"mine", "busy"} == await names(place)
    assert {"c"} == await names(place, namespace="bob")


async def test_maintain_deletes_expired_conversations(place, clock):
    async with opened(place) as session:
        session.refs.add("x")
    async with opened(place, "long", settings=living(1)) as session:
        assert {"c"} == await names(place)
        clock[0] += 2 * DAY
        await admin.maintain(session)
        assert set() == await names(place)


async def test_conversation_with_unknown_or_future_use_does_not_expire(place, clock):
    """The row may be damaged, or the clock may have stepped back."""
    for name in ("damaged", "future"):
        async with opened(place, name) as session:
            session.refs.add("x")
        clock[0] += 100 * DAY
    storage = store(place)
    storage.enqueue([("used/damaged", b"yesterday")], namespace="default")
    await storage.close()
    clock[0] -= 150 * DAY
    async with opened(place, settings=living(1)):
        assert {"damaged", "future"} == await names(place)


def test_conversation_ttl_is_read_from_environment():
    settings = Settings.from_env({"MAMA_STRUCTS_DESCRIPTORS_CONVERSATION_TTL": "86400"})

    assert 86400.0 == settings.descriptors.conversation_ttl
    assert DescriptorSettings().conversation_ttl is None


# Command line


def run(capsys, *arguments):
    code = main(["conversations", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


async def test_conversations_command_lists_and_deletes(place, capsys, tmp_path):
    """The command prints its result as text or as JSON."""
    async with opened(place, "raid\n2") as session:
        session.refs.add("x")
    code, said = await asyncio.to_thread(run, capsys, "list", place)
    assert (0, 1) == (code, said.count("\n"))
    assert said.startswith(r"'raid\n2': 1 handle, 1 bytes, used 2")
    code, said = await asyncio.to_thread(run, capsys, "list", place, "--json")
    (one,) = json.loads(said)
    assert ("raid\n2", 1, False) == (one["name"], one["handle_count"], one["is_open"])

    assert (1, True) == ((done := await asyncio.to_thread(run, capsys, "delete", "x", place))[0], "raid" in done[1])
    assert 0 == (await asyncio.to_thread(run, capsys, "delete", "raid\n2", place))[0]
    assert (0, "no conversations\n") == await asyncio.to_thread(run, capsys, "list", place)
    assert 1 == (await asyncio.to_thread(run, capsys, "list", tmp_path / "nowhere"))[0]


# Closing


@pytest.mark.parametrize("kept", [True, False])
async def test_refs_of_closed_session_raise_session_closed(place, kept):
    """Objects that were read before the close remain usable."""
    async with Session.open(place if kept else None, conversation="c") as session:
        await session.observe('<ref id="a">1</ref>')
        refs, ref = session.refs, session.refs.get("a")
    calls = [
        lambda: refs.get("a"), lambda: refs.read("ref:a"), refs.list, refs.list_descriptors,
        lambda: refs.versions("a"), lambda: list(refs), lambda: len(refs), lambda: "a" in refs, lambda: refs.add("x"),
        lambda: refs.observe("x"), lambda: refs.wrap("x"), lambda: refs.delete("ref:a"), refs.fork,
        lambda: refs.system_prompt(handles=True),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(SessionClosed, match="closed"):
            call()
    for call in (refs.search("ref:a", "1"), refs.to_file("ref:a", "x")):
        with pytest.raises(SessionClosed, match="come back to them with"):
            await call

    assert "closed" in repr(refs)
    assert "1 handle, closed" in repr(session)
    assert "1" == ref.text
