"""The directory of a session: its files, its locks, and failures."""

import asyncio
import os
import shutil
import sqlite3
import sys
import textwrap
import threading

import pytest

from mama_structs import Session, admin
from mama_structs._internal import event_loop as _async
from mama_structs.errors import (
    HandleDamaged,
    InvalidArgument,
    SessionClosed,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
)
from mama_structs.refs.conversations import conversation_log as log
from mama_structs.testing import FakeSource


@pytest.fixture
def place(tmp_path):
    return tmp_path / "agent.mama"


def change_rows(place, *statements):
    """Change rows of the database directly, without the store."""
    database = sqlite3.connect(place / "journal" / "cache.db")
    with database:
        for statement, values in statements:
            assert database.execute(statement, values).rowcount > 0, values
    database.close()


def flip(place, key):
    """Change one bit of the value of a row."""
    database = sqlite3.connect(place / "journal" / "cache.db")
    (value,) = database.execute("SELECT value FROM Cache WHERE key = ?", (key,)).fetchone()
    database.close()
    change_rows(place, ("UPDATE Cache SET value = ? WHERE key = ?", (value[:-1] + bytes([value[-1] ^ 1]), key)))


async def texts_on_disk(place):
    async with Session.open(place) as session:
        return len(await session._shared.home.storage.keys("texts/"))


async def another_process(place, conversation="c"):
    """Open a conversation in another process, and return its handles or the error's type."""
    code = """
        import asyncio, sys
        from mama_structs import Session
        from mama_structs.errors import StoreError
        async def main():
            try:
                async with Session.open(sys.argv[1], conversation=sys.argv[2]) as session:
                    print("open", *session.refs)
            except StoreError as error:
                print(error.type)
        asyncio.run(main())
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(code), place, conversation, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    return out.decode().split()


# After closing


@pytest.mark.parametrize("kept", [True, False])
async def test_closed_session_stores_nothing(place, kept):
    """Its refs, streams and tools raise before any change, and refs of other sessions remain."""
    location = place if kept else None
    async with Session.open(location):
        first = await Session.open(location, conversation="c")
        await first.observe('<ref id="a">1</ref>')
        stream = first.stream()
        stream.feed('<ref id="b">stale</ref>')
        refs, tools = first.refs, first.tools
        await first.close()
        async with Session.open(location, conversation="c") as second:
            await second.observe('<ref id="b">acknowledged</ref>')
            for use in (
                lambda: refs.observe('<ref id="b">late</ref>'),
                lambda: refs.add("late"),
                lambda: refs.wrap("x" * 9_000),
                lambda: refs.delete("ref:a"),
                lambda: refs.extract("ref:a"),
            ):
                with pytest.raises(SessionClosed):
                    use()
            with pytest.raises(SessionClosed):
                await stream.close()
            with pytest.raises(SessionClosed):
                await tools.call("read_fd", {"fd": "ref:a", "extract_to_new_fd": True})
            assert "acknowledged" == second.refs.get("b").text
    if kept:
        async with Session.open(place, conversation="c") as again:
            assert ["1", "acknowledged"] == [again.refs.get(handle).text for handle in again.refs]


async def test_conversation_stays_locked_until_its_rows_are_written(place, monkeypatch):
    """If the disk is full on close, other processes must wait for the next flush."""
    async with Session.open(place) as other:
        storage = other._shared.home.storage
        session = await Session.open(place, conversation="c")
        session.refs.observe('<ref id="a">1</ref>')

        async def full():
            raise StoreFull("no room")

        with monkeypatch.context() as patched:
            patched.setattr(storage, "flush", full)
            with pytest.raises(StoreFull):
                await session.close()
        assert ["busy"] == await another_process(place)
        await other.flush()
        assert ["open", "ref:a@1"] == await another_process(place)


async def test_conversation_that_failed_to_close_can_be_reopened(place, monkeypatch):
    """The reopening writes the pending rows first."""
    async with Session.open(place) as other:
        session = await Session.open(place, conversation="c")
        session.refs.observe('<ref id="a">1</ref>')

        async def full():
            raise StoreFull("no room")

        with monkeypatch.context() as patched:
            patched.setattr(other._shared.home.storage, "flush", full)
            with pytest.raises(StoreFull):
                await session.close()
        async with Session.open(place, conversation="c") as again:
            assert ["ref:a@1"] == list(again.refs)
            with pytest.raises(SessionClosed):
                session.refs.add("x")


def test_conversation_of_ended_loop_can_be_reopened(place):
    """Another thread or another process can reopen it with all stored data."""
    left = []

    async def forget():
        session = await Session.open(place, conversation="c")
        session.refs.observe('<ref id="a">1</ref>')
        left.append(session)

    async def go_on():
        async with Session.open(place, conversation="c") as session:
            await session.observe('<ref id="a">2</ref>')
            return list(session.refs)

    asyncio.run(forget())
    seen = []
    thread = threading.Thread(target=lambda: seen.append(asyncio.run(go_on())))
    thread.start()
    thread.join()
    assert [["ref:a@1", "ref:a@2"]] == seen
    assert ["open", "ref:a@1", "ref:a@2"] == asyncio.run(another_process(place))
    assert ["ref:a@1", "ref:a@2"] == asyncio.run(go_on())[:2]
    left[0]._closed = True


def test_conversation_cannot_be_shared_by_two_running_loops(place):
    """Objects belong to one loop, so this also applies to two loops of one thread."""

    async def opened():
        return await Session.open(place, conversation="c")

    with asyncio.Runner() as first, asyncio.Runner() as second:
        session = first.run(opened())
        with pytest.raises(StoreBusy, match="another event loop"):
            second.run(opened())
        first.run(session.close())
        second.run(second.run(opened()).close())


# Failures on opening


async def test_source_with_invalid_tools_leaves_nothing_open(place):
    class Offers(FakeSource):
        def tools(self, resolver):
            return [print]

    with pytest.raises(InvalidArgument):
        await Session.open(place, conversation="c", sources=[Offers()])
    assert ["open"] == await another_process(place)
    async with Session.open(place, conversation="c") as session:
        assert 1 == session._shared.home.session_count


async def test_conversation_that_fails_to_load_is_unlocked(place, monkeypatch):
    async def broken(*args):
        raise StoreError("broken")

    async with Session.open(place):
        with monkeypatch.context() as patched:
            patched.setattr("mama_structs.session.backend.load", broken)
            with pytest.raises(StoreError, match="broken"):
                await Session.open(place, conversation="c")
        assert ["open"] == await another_process(place)


async def test_failed_fork_releases_the_name(place, monkeypatch):
    async with Session.open(place, conversation="old") as old:
        await old.observe('<ref id="a">1</ref>')
    async with Session.open(place) as session:

        def broken(_key, *, namespace):
            raise StoreError("broken")

        with monkeypatch.context() as patched:
            patched.setattr(session._shared.home.storage, "has", broken)
            with pytest.raises(StoreError, match="broken"):
                session.fork("child")
        async with session.fork("child"):
            pass
        with pytest.raises(InvalidArgument, match="already"):
            session.fork("old")
        assert ["open", "ref:a@1"] == await another_process(place, "old")


async def test_open_that_is_cancelled_twice_closes_the_directory(place):
    """The cancellations may happen at any point."""
    for turns in range(40):
        opening = asyncio.create_task(Session.open(place, conversation="c")._open())
        for _ in range(turns):
            await asyncio.sleep(0 if turns < 25 else 0.001)
        opening.cancel()
        await asyncio.sleep(0)
        opening.cancel()
        (result,) = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(result, Session):
            await result.close()
    async with Session.open(place, conversation="c") as session:
        assert 1 == session._shared.home.session_count


async def test_invalid_lock_file_raises_and_leaves_nothing_open(place):
    (place / "locks").mkdir(parents=True)
    before = threading.active_count()
    with pytest.raises(StoreError):
        await Session.open(place)

    assert before == threading.active_count()
    (place / "locks").rmdir()
    async with Session.open(place) as session:
        assert 1 == session._shared.home.session_count


@pytest.mark.parametrize("location", ["", "a\0b", "x/" + "y" * 300, "\ud800", b"bytes", 7, "$HOME/x"])
def test_open_rejects_invalid_location_immediately(location, tmp_path, monkeypatch):
    """The rejected call creates nothing."""
    monkeypatch.chdir(tmp_path)

    class Odd:
        def __fspath__(self):
            return b"bytes"

    for one in (location, Odd()):
        with pytest.raises(InvalidArgument, match=r"location|directory"):
            Session.open(one)
    assert [] == list(tmp_path.iterdir())


async def test_opening_that_is_awaited_twice_returns_one_session(place):
    opening = Session.open(place)
    first, second = await asyncio.gather(opening._open(), opening._open())

    assert first is second
    await first.close()


async def test_recreated_directory_is_another_store(place):
    """The old session raises, and a new one works."""
    old = await Session.open(place, conversation="c")
    await old.observe('<ref id="a">1</ref>')
    shutil.rmtree(place)
    async with Session.open(place, conversation="c") as new:
        assert [] == list(new.refs)
        await new.observe('<ref id="b">2</ref>')
        assert (await admin.check(new)).ok
        with pytest.raises(StoreDamaged):
            await old.observe('<ref id="a">2</ref>')
    with pytest.raises(StoreError):
        await old.close()
    async with Session.open(place, conversation="c") as again:
        assert ["ref:b@1"] == list(again.refs)


def test_find_session_tolerates_concurrent_changes():
    stop = threading.Event()

    class Some:
        is_open = False

    def churn():
        while not stop.is_set():
            some = [Some() for _ in range(50)]
            for one in some:
                _async.open_sessions.add(one)
            for one in some:
                _async.open_sessions.discard(one)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    try:
        for _ in range(3_000):
            _async.find_session()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)


# Files


@pytest.mark.parametrize("name", ["대화" * 100, "😀" * 200, "x" * 200, "%" * 200])
async def test_long_names_in_any_script_work(place, name):
    """Conversations with such names can have the longest ids, and can be forked and deleted."""
    async with Session.open(place, conversation=name) as session:
        await session.observe(f'<ref id="{"i" * 64}">1</ref>')
        async with session.fork(name[:-1] + "y") as child:
            await child.observe('<ref id="a">2</ref>')
    async with Session.open(place, conversation=name[:-1] + "y") as child:
        assert [f"ref:{'i' * 64}@1", "ref:a@1"] == list(child.refs)
        assert (await admin.check(child)).ok


async def test_export_cannot_write_to_session_directory(place, monkeypatch):
    """No path leads into the directory, whether relative, absolute or through a link."""
    monkeypatch.chdir(place.parent)
    (place.parent / "link").symlink_to(place)
    async with Session.open(place, conversation="c", files_root=place.parent) as session:
        await session.observe('<ref id="a">1</ref>')
        before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for name in ("agent.mama/journal/cache.db", "agent.mama/locks", "agent.mama/new", "link/new", str(place / "x")):
            for one in (session, child := session.fork()):
                answer = await one.call("fd_to_file", {"fd": "ref:a", "file_path": name})
                assert 'type="path_denied"' in answer, name
            await child.close()
        assert set(before) <= {path for path in place.rglob("*") if path.is_file()}
        assert not (place / "new").exists()
        assert "fd_file_result" in await session.call("fd_to_file", {"fd": "ref:a", "file_path": "agent.mama.txt"})
        assert (await admin.check(session)).ok


async def test_fork_with_damaged_first_row_is_rejected(place):
    """Its inherited content is unknown, and its parent's texts are kept."""
    async with Session.open(place, conversation="c") as session:
        session.refs.add("inherited")
        async with session.fork("child") as child:
            child.refs.add("own")
    flip(place, "conversations/child")
    with pytest.raises(StoreDamaged, match="child"):
        await Session.open(place, conversation="child")
    async with Session.open(place, conversation="c") as session:
        session.refs.delete("fd:1")
        assert not (await admin.check(session)).ok
    assert 2 == await texts_on_disk(place)


async def test_conversation_without_its_first_row_is_usable(place):
    """The conversation can be read and forked, and its name is still taken."""
    async with Session.open(place, conversation="c") as session:
        await session.observe('<ref id="a">1</ref>')
    change_rows(place, ("DELETE FROM Cache WHERE key = ?", ("conversations/c",)))
    async with Session.open(place, conversation="c") as session:
        assert ["ref:a@1"] == list(session.refs)
        async with session.fork("child"):
            pass
    async with Session.open(place, conversation="child") as child:
        assert ["ref:a@1"] == list(child.refs)


@pytest.mark.parametrize(
    "key",
    [
        "refs/c/00000q0002/ref:b@1",
        "refs/c/0000000002",
        "refs/c/0000000002/ref:b@q",
        "refs/c/0000000002/fd:x",
        "refs/c/",
    ],
)
async def test_row_with_invalid_key_is_reported_and_skipped(place, key):
    async with Session.open(place, conversation="c") as session:
        await session.observe('<ref id="a">1</ref><ref id="b">2</ref><ref id="c">3</ref>')
    change_rows(place, ("UPDATE Cache SET key = ? WHERE key = ?", (key, "refs/c/0000000002/ref:b@1")))
    async with Session.open(place, conversation="c") as session:
        assert ["ref:a@1", "ref:c@1"] == list(session.refs)
        assert key in {finding.key for finding in (await admin.check(session)).issues}
        session.refs.delete("ref:a")
    assert 3 == await texts_on_disk(place)


async def test_damaged_change_prevents_deletion_of_texts(place):
    """The damaged row may refer to any text."""
    async with Session.open(place, conversation="c") as session:
        await session.observe('<ref id="a">1</ref><ref id="b">2</ref>')
    flip(place, "refs/c/0000000002/ref:b@1")
    async with Session.open(place, conversation="c") as session:
        session.refs.delete("ref:a")
    assert 2 == await texts_on_disk(place)


async def test_missing_text_is_reported_when_another_conversation_deleted_it(place):
    async with Session.open(place, conversation="x") as session:
        session.refs.add("of x")
        digest = session.refs.get("fd:1").content.hash
    async with Session.open(place, conversation="y") as session:
        session.refs.add("of y")
        session.refs.delete("fd:1")
    change_rows(place, ("DELETE FROM Cache WHERE key = ?", (f"texts/{digest}",)))
    async with Session.open(place, conversation="x") as session:
        report = await admin.check(session)
        assert ["refs/x/0000000001/fd:1"] == [one.key for one in report.issues if one.kind == "missing"]
        with pytest.raises(HandleDamaged):
            session.refs.get("fd:1")


async def test_text_deleted_before_crash_is_removed_by_next_session(place):
    session = await Session.open(place, conversation="c")
    session.refs.add("x")
    session.refs.delete("fd:1")
    await session.flush()
    shutil.copytree(place, place.parent / "copy")
    await session.close()
    assert 0 == await texts_on_disk(place)
    async with Session.open(place.parent / "copy") as other:
        assert 1 == len(await other._shared.home.storage.keys("texts/"))
    assert 0 == await texts_on_disk(place.parent / "copy")


async def test_text_that_is_added_during_reclaim_remains(place, monkeypatch):
    """Another process may use a text again between the search for unreferenced ones and their deletion."""
    read = log._ChangeIndex.read

    async def read_and_add(storage, namespace):
        known = await read(storage, namespace)
        if storage is first_storage and other.is_open and "ref:again@1" not in other.refs:
            await other.observe('<ref id="again">shared text</ref>')
        return known

    other = await Session.open(place, conversation="other")
    session = await Session.open(place, conversation="c")
    first_storage = session._shared.home.storage
    session.refs.add("shared text")
    session.refs.add("gone for good")
    session.refs.delete("fd:1")
    session.refs.delete("fd:2")
    await session.flush()
    monkeypatch.setattr(log._ChangeIndex, "read", read_and_add)
    assert 1 == await log.reclaim(first_storage, "default")
    await session.close()
    assert "shared text" == other.refs.get("again").text
    await other.close()
    async with Session.open(place, conversation="other") as again:
        assert "shared text" == again.refs.get("again").text


@pytest.mark.once
async def test_long_chain_of_forks_can_be_reclaimed(place):
    """Each fork deleted the text that it inherited."""
    sessions = [await Session.open(place)]
    sessions[0].refs.add("x")
    for _ in range(1_200):
        sessions.append(sessions[-1].fork())
    for session in sessions:
        session.refs.delete("fd:1")
    for session in sessions:
        await session.close()
    assert 0 == await texts_on_disk(place)


@pytest.mark.skipif(os.name != "posix", reason="locks of other systems are not copied")
async def test_copying_the_directory_does_not_release_locks(place):
    """A backup by the same process reads the lock file, too."""
    async with Session.open(place, conversation="c") as session:
        await session.observe('<ref id="a">1</ref>')
        shutil.copytree(place, place.parent / "copy")
        assert ["busy"] == await another_process(place)


FULL = """
import asyncio, resource, signal, sys
from mama_structs import Session, admin
from mama_structs.errors import StoreBusy, StoreFull

async def main():
    session = await Session.open(sys.argv[1], conversation=sys.argv[2])
    session.refs.add("small")
    await session.flush()
    # Else a module that is imported below the limit leaves bytecode that is cut off, for everybody.
    sys.dont_write_bytecode = True
    free = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, free[1]))
    session.refs.add("x" * 400_000)
    for _ in range(2):
        try:
            await session.close()
        except StoreFull:
            print("full", flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, free)
    try:
        await Session.open(sys.argv[1], conversation=sys.argv[2])
    except StoreBusy:
        print("busy", flush=True)
    await session.close()
    await session.close()
    async with Session.open(sys.argv[1], conversation=sys.argv[2]) as again:
        print([len(again.refs.get(handle).text) for handle in again.refs], (await admin.check(again)).ok)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of size")
async def test_failed_close_on_full_disk_is_retried(place):
    """Until it succeeds, the conversation stays locked."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FULL, place, "chat", stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert ["full", "full", "busy", "[5, 400000] True"] == said.decode().splitlines()
