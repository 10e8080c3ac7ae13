"""Several processes, event loops and sessions on one directory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from memory_helpers import SMALL, OpenedDirectory

import mama_structs
from mama_structs import Session, admin
from mama_structs.errors import InvalidArgument, MamaStructsError, MemoryNotFound, SessionClosed, WrongLoop
from mama_structs.settings import MemorySettings, Settings

SRC = str(Path(mama_structs.__file__).parents[1])
TESTS = str(Path(__file__).parents[3] / "support")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join((SRC, TESTS)),
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
}
# Number of reads after which the fifth process stops the other four.
LOOKS = 150 if settings.default.max_examples > 1000 else 8

# Answers each command with one line, so that the test controls the order of operations in both processes.
SERVANT = """
import asyncio, json, sys, threading
from mama_structs import Session
from memory_helpers import SMALL

async def main(directory):
    loop = asyncio.get_running_loop()
    async with Session.open(directory, embedder=SMALL) as session:
        print("open", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            name, arguments, keywords = json.loads(line)
            result = await getattr(session.memories, name)(*arguments, **keywords)
            print(json.dumps(told(result)), flush=True)

def told(result):
    if isinstance(result, list):
        return [told(one) for one in result]
    if hasattr(result, "memory"):
        return result.memory.id
    return result.id if hasattr(result, "id") else result

asyncio.run(main(sys.argv[1]))
"""


class Servant:
    """A second process that has the directory open and executes commands."""

    def __init__(self, path):
        command = [sys.executable, "-W", "ignore", "-c", SERVANT, str(path)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT)

    def __enter__(self):
        assert "open\n" == self.process.stdout.readline()
        return self

    def __exit__(self, *_):
        _, errors = self.process.communicate(timeout=600)
        assert ("", 0) == (errors, self.process.returncode)

    def __getattr__(self, name):
        def ask(*arguments, **keywords):
            self.process.stdin.write(json.dumps([name, arguments, keywords]) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

        return ask


async def test_changes_of_other_process_are_visible_at_next_call(tmp_path):
    """Saves, links, outcomes and deletions are visible in both directions, in every kind of read."""
    async with Session.open(tmp_path, embedder=SMALL) as session:
        store = session.memories
        with Servant(tmp_path) as other:
            first = other.save_decision("use JWT for the login", topic="auth", reasoning="quick")
            assert first == (await store.get(first)).id
            assert first == (await store.search("JWT login"))[0].memory.id
            second = (await store.supersede(first, "use sessions for the login", reasoning="safe")).id
            assert [second, first] == other.list()
            assert second == other.search("sessions login")[0]
            assert second == other.traverse(first)[0]
            other.set_outcome(first, "FAILED", reason="tokens leak")
            assert "FAILED" == (await store.get(first)).metadata.outcome
            (reason,) = [hit.memory for hit in await store.search("tokens leak") if hit.memory.content == "tokens leak"]
            assert {second, reason.id} <= {one.memory.id for one in await store.traverse(first)}
            await store.delete(reason.id)
            assert reason.id not in other.traverse(first)
            link = other.link(second, first, "refines")
            assert link in {one.id for one in await store.links(first)}
            await store.unlink(link)
            assert link not in other.links(first)
            other.delete(first)
            with pytest.raises(MemoryNotFound):
                await store.get(first)
            assert [second] == [memory.id for memory in await store.history(topic="auth")]
        assert not [finding for finding in (await admin.check(session)).issues if finding.severity == "error"]


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


KILLED = """
import os, sys
from pathlib import Path
from mama_structs.storage.sqlite_store import SqliteStorage

storage = SqliteStorage.open(Path(sys.argv[1]))
os.kill(os.getpid(), 9)
"""


@contextlib.contextmanager
def held(journal, *, after_a_crash):
    """
    Hold the write lock in another process.

    With *after_a_crash*, first kill a process that leaves a write-ahead log.
    """
    if after_a_crash:
        command = [sys.executable, "-c", KILLED, str(journal)]
        assert 0 != subprocess.run(command, check=False, env=ENVIRONMENT).returncode
    command = [sys.executable, "-c", HOLDER, str(journal / "cache.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert b"held\n" == holder.stdout.readline()
        yield
        assert holder.poll() is None
        holder.stdin.close()


@pytest.mark.parametrize("after_a_crash", [False, True])
async def test_session_opens_and_searches_while_other_process_holds_lock(tmp_path, after_a_crash):
    """Reading needs no lock and opening writes nothing, even with the write-ahead log of a killed process."""
    async with Session.open(tmp_path, embedder=SMALL) as session:
        await session.memories.save_decision("Use JWT for logins", topic="auth", reasoning="stateless")
    with held(tmp_path / "journal", after_a_crash=after_a_crash):
        async with Session.open(tmp_path, embedder=SMALL) as session:
            assert ["Use JWT for logins"] == [hit.memory.content for hit in await session.memories.search("JWT")]
            assert (await admin.check(session)).ok


async def test_traversal_shows_changes_of_other_process(tmp_path):
    """The next traversal follows new links, and no removed links or deleted memories."""
    alone = MemorySettings(linking="off")
    place, elsewhere = (OpenedDirectory.open(tmp_path, settings=alone) for _ in range(2))
    store, other = await place.memories(), await elsewhere.memories()
    chain = [await store.save_decision("step 0", topic="auth", reasoning="")]
    for number in range(1, 4):
        chain.append(await store.supersede(chain[-1].id, f"step {number}", reasoning=""))
    apart = [await other.save_checkpoint("far from all this") for _ in range(2)]

    async def reached():
        return {one.memory.id for one in await store.traverse(chain[0].id, link_types=["evolution", "implementation"])}

    before = {memory.id for memory in chain[1:]}
    assert before == await reached()
    assert "association" == (await other.link(apart[0].id, apart[1].id, "contradicts")).link_type
    await other.set_outcome((await other.save_decision("y", topic="x", reasoning="")).id, "SUCCESS")
    assert before == await reached()
    link = await other.link(apart[0].id, chain[3].id, "implements")
    assert before | {apart[0].id} == await reached()
    await other.unlink(link.id)
    assert before == await reached()
    await other.set_outcome(chain[2].id, "SUCCESS")
    assert (
        "SUCCESS"
        == {one.memory.id: one.memory for one in await store.traverse(chain[0].id)}[chain[2].id].metadata.outcome
    )
    await other.delete(chain[2].id)
    assert {chain[1].id} == await reached()
    await admin.rebuild(other)
    more = await other.supersede(chain[1].id, "step 4", reasoning="")
    assert {chain[1].id, more.id} == await reached()
    await admin.rebuild(store)
    await other.delete(more.id)
    assert {chain[1].id} == await reached()
    assert [] == await place.findings() == await elsewhere.findings()
    await elsewhere.close()
    await place.close()


WORKER = """
import asyncio, json, os, random, sys
from mama_structs import Session
from mama_structs.settings import MemorySettings, Settings
from memory_helpers import SMALL

# At this size every few saves ask for a snapshot, in four processes at once.
SETTINGS = Settings(memory=MemorySettings(snapshot_every=50))

async def main(directory, number, stop):
    chance = random.Random(number)
    saved, lags = [], []
    async with Session.open(directory, embedder=SMALL, settings=SETTINGS) as session:
        store = session.memories
        print("open", flush=True)
        async def write(task):
            count = 0
            while not os.path.exists(stop):
                words = " ".join(chance.choice(["login", "shield", "fleet", "token", "planet"]) for _ in range(4))
                memory = await store.save_decision(
                    f"p{number} {task} {count} {words}", topic="t", reasoning="why", implements=saved[-1:]
                )
                saved.append(memory.id)
                print(memory.id, flush=True)
                assert memory == await store.get(memory.id)
                if count % 7 == 3:
                    await store.set_outcome(chance.choice(saved), "PARTIAL")
                count += 1
        async def read():
            while not os.path.exists(stop):
                hits = await store.search("login token", limit=5)
                assert len(hits) <= 5
                await store.traverse(chance.choice(saved)) if saved else None
                await store.list()
                await asyncio.sleep(0.005)
        await asyncio.gather(write("a"), write("b"), read())

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
"""


def test_four_processes_write_and_search_one_directory(tmp_path):
    """No call fails, and acknowledged saves are visible to all processes at their next call."""
    workers = []
    stop = tmp_path.with_name(f"{tmp_path.name}.stop")
    for number in range(4):
        command = [sys.executable, "-W", "ignore", "-c", WORKER, str(tmp_path), str(number), str(stop)]
        pipe = subprocess.PIPE
        workers.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT))
    acknowledged = set()
    guard = threading.Lock()

    def listen(worker):
        for line in worker.stdout:
            if line != "open\n":
                with guard:
                    acknowledged.add(line.strip())

    threads = [threading.Thread(target=listen, args=[worker]) for worker in workers]
    for thread in threads:
        thread.start()

    async def watch():
        """Read in a fifth session. Each read must contain all saves that were acknowledged before the read."""
        looks = 0
        async with Session.open(tmp_path, embedder=SMALL) as session:
            while any(thread.is_alive() for thread in threads):
                with guard:
                    told = set(acknowledged)
                assert told <= {memory.id for memory in await session.memories.list(limit=10**6)}
                looks += 1
                # Stop after a number of reads, because the time that they take depends on the machine.
                if looks > LOOKS and len(told) > 40:
                    stop.touch()
                await asyncio.sleep(0.2)
            assert {*acknowledged} <= {memory.id for memory in await session.memories.list(limit=10**6)}
            assert len(acknowledged) == await session.memories.count()
            findings = (await admin.check(session)).issues
            assert [] == [finding for finding in findings if finding.kind != "sqlite"]
        return looks

    try:
        looks = asyncio.run(watch())
    finally:
        stop.touch()
        for worker, thread in zip(workers, threads, strict=True):
            worker.wait(timeout=600)
            thread.join()
    errors = [worker.stderr.read() for worker in workers]
    for worker in workers:
        worker.stdout.close()
        worker.stderr.close()

    assert [""] * 4 == errors
    assert looks > 3
    assert len(acknowledged) > 40


async def test_sessions_of_one_process_see_each_others_changes(tmp_path):
    """Two sessions and a fork share a directory, and closing one does not affect the others."""
    first = await Session.open(tmp_path, embedder=SMALL)
    second = await Session.open(tmp_path, embedder=SMALL)
    forked = second.fork()
    saved = [await one.memories.save_context(f"note {number}") for number, one in enumerate([first, second, forked])]
    for one in (first, second, forked):
        assert list(reversed(saved)) == await one.memories.list()
    await first.close()
    with pytest.raises(SessionClosed):
        await first.memories.count()
    await second.close()

    saved.append(await forked.memories.save_context("the last one"))
    assert 4 == await forked.memories.count()
    await forked.close()
    with pytest.raises(SessionClosed):
        await forked.memories.count()
    async with Session.open(tmp_path, embedder=SMALL) as session:
        assert list(reversed(saved)) == await session.memories.list()


async def test_sessions_of_one_process_must_agree_on_shared_settings(tmp_path):
    """
    Another limit of the exact search is rejected while the store is open.

    Other settings may differ per session.
    """
    async with Session.open(tmp_path, embedder=SMALL):
        other = Settings(memory=MemorySettings(exact_up_to=5))
        with pytest.raises(InvalidArgument, match="exact_up_to"):
            await Session.open(tmp_path, embedder=SMALL, settings=other)
        own = Settings(memory=MemorySettings(exact_up_to=Settings.from_env().memory.exact_up_to, max_content=10))
        if own.memory.exact_up_to == MemorySettings().exact_up_to:
            async with Session.open(tmp_path, embedder=SMALL, settings=own) as session:
                with pytest.raises(InvalidArgument):
                    await session.memories.save_context("x" * 11)
    async with Session.open(tmp_path, embedder=SMALL, settings=other) as session:
        await session.memories.save_context("now it is")


def test_event_loops_in_threads_share_a_directory(tmp_path):
    """Each loop has its own session and sees the earlier saves of the others."""
    barrier = threading.Barrier(3)
    failures, counts = [], []

    async def work(number):
        async with Session.open(tmp_path, embedder=SMALL) as session:
            for turn in range(10):
                await asyncio.to_thread(barrier.wait, 30)
                await session.memories.save_context(f"loop {number}, turn {turn}")
                await asyncio.to_thread(barrier.wait, 30)
                counts.append(await session.memories.count())
                await session.memories.search("loop turn")
            await asyncio.to_thread(barrier.wait, 30)

    def run(number):
        try:
            asyncio.run(work(number))
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == failures
    assert 30 == max(counts)
    assert all(count >= 3 * (place // 3 + 1) for place, count in enumerate(counts))


async def test_call_from_other_event_loop_raises(tmp_path):
    """Calls in the session's own loop still work."""
    async with Session.open(tmp_path, embedder=SMALL) as session:
        memory = await session.memories.save_context("the login")

        async def elsewhere():
            for call in (
                session.memories.count,
                lambda: session.memories.get(memory.id),
                lambda: session.memories.search("x"),
                lambda: session.memories.save_context("y"),
                lambda: session.memories.similar("y"),
                lambda: session.memories.delete(memory.id),
            ):
                with pytest.raises(WrongLoop):
                    await call()

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        assert 1 == await session.memories.count()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_loop_closed_without_session_does_not_block_directory(tmp_path):
    """Its saves are present, and another loop can open the directory immediately."""
    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(Session.open(tmp_path, embedder=SMALL)._open())
    memory = loop.run_until_complete(session.memories.save_context("the login"))
    loop.close()

    async def again():
        async with Session.open(tmp_path, embedder=SMALL) as other:
            assert memory == await other.memories.get(memory.id)
            await other.memories.save_context("more")
            assert 2 == await other.memories.count()
            assert not [finding for finding in (await admin.check(other)).issues if finding.severity == "error"]

    asyncio.run(again())
    with pytest.raises(WrongLoop):
        asyncio.run(session.memories.count())
    # Mark the session as closed, so that no later test reports it as unclosed.
    session._closed = True


FORK = """
import asyncio, os, signal, sys
from mama_structs import Session, admin
from mama_structs.errors import WrongLoop
from memory_helpers import SMALL

async def main():
    session = await Session.open(sys.argv[1], embedder=SMALL)
    store = session.memories
    memory = await store.save_decision("use JWT", topic="auth", reasoning="quick")
    saving = [asyncio.ensure_future(store.save_context(f"note {number}")) for number in range(50)]
    await asyncio.sleep(0)
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        # In a forked child, the parent's loop still counts as running.
        for call in (
            store.count, lambda: store.get(memory.id), lambda: store.search("JWT"), lambda: store.save_context("x"),
            lambda: store.set_outcome(memory.id, "SUCCESS"), lambda: admin.check(store),
            lambda: admin.rebuild(store), lambda: admin.prune(store),
        ):
            coroutine = call()
            try:
                coroutine.send(None)
            except WrongLoop:
                continue
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    await asyncio.gather(*saving)
    assert 51 == await store.count()
    assert not [one for one in (await admin.check(session)).issues if one.severity == "error"]
    await session.close()
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        async def own():
            async with Session.open(sys.argv[1], embedder=SMALL) as mine:
                await mine.memories.save_context("of the child")
        asyncio.events._set_running_loop(None)
        asyncio.run(own())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    async with Session.open(sys.argv[1], embedder=SMALL) as session:
        assert 52 == await session.memories.count()
    print("done")

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_child_cannot_use_session_of_parent(tmp_path):
    """
    Every call in the child raises a typed error.

    The parent continues, and the child can open its own session.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=600, env=ENVIRONMENT,
    )  # fmt: skip

    assert (0, "done\n") == (done.returncode, done.stdout), done.stderr


async def test_close_during_calls_completes_or_fails_each_call(tmp_path):
    """No call hangs, and completed calls are stored."""
    session = await Session.open(tmp_path, embedder=SMALL)
    calls = [asyncio.ensure_future(session.memories.save_context(f"note {number}")) for number in range(30)]
    calls += [asyncio.ensure_future(session.memories.search("note")) for _ in range(5)]
    await asyncio.sleep(0.003)
    await session.close()
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 600)
    saved = [result for result in results[:30] if not isinstance(result, BaseException)]

    assert all(isinstance(result, MamaStructsError) for result in results if isinstance(result, BaseException)), results
    async with Session.open(tmp_path, embedder=SMALL) as again:
        found = {memory.id for memory in await again.memories.list(limit=100)}
        assert {memory.id for memory in saved} <= found
        with contextlib.suppress(MemoryNotFound):
            await again.memories.delete("nothing")
        assert not [finding for finding in (await admin.check(again)).issues if finding.severity == "error"]
