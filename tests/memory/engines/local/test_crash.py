"""Durability of killed processes: acknowledged writes are present, and no write is partial."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings
from memory_helpers import SMALL, OpenedDirectory

import mama_structs
from mama_structs import Session

pytestmark = pytest.mark.of_the_directory("tests/postgres/test_crash_on_a_server.py kills who writes to a server")
SRC = str(Path(mama_structs.__file__).parents[1])
TESTS = str(Path(__file__).parents[3] / "support")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join((SRC, TESTS)),
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
}
# The nightly profile runs many more rounds.
ROUNDS = 200 if settings.default.max_examples > 1000 else 20

# Prints a line before each call, and one after its acknowledgement. A call without the second line may be stored.
WRITER = """
import asyncio, json, random, sys
from pathlib import Path
from mama_structs import Session
from mama_structs.errors import MemoryNotFound, LinkNotFound
from mama_structs.settings import MemorySettings, Settings
from memory_helpers import SMALL

def say(*what):
    sys.stdout.write(json.dumps(what) + "\\n")

async def write(store, name, chance):
    mine = []
    store = store._resolving(lambda item: (item + "@1", 200 * (item + " ")))
    for number in range(10**6):
        kind = chance.choice(["decision", "many", "supersede", "outcome", "delete", "link", "decision"])
        text = f"{name}-{number} login tokens"
        if not mine or kind == "decision":
            targets = chance.sample(mine, min(len(mine), 3))
            rests = [f"ref:e{number % 5}", f"ref:{name}-{number}"][: chance.randrange(3)]
            memory = await store.save_decision(text, topic="auth", reasoning="why", implements=targets, evidence=rests)
            say("saved", memory.id, text, targets)
            say("rests", memory.id, rests)
            mine.append(memory.id)
        elif kind == "many":
            records = [{"type": "context", "content": f"{text} {part}"} for part in range(3)]
            saved = await store.save_many(records)
            for memory in saved:
                say("saved", memory.id, memory.content, [])
        elif kind == "supersede":
            target = chance.choice(mine)
            memory = await store.supersede(target, text, reasoning="better")
            say("saved", memory.id, text, [target])
            mine.append(memory.id)
        elif kind == "outcome":
            target = chance.choice(mine)
            await store.set_outcome(target, "FAILED", reason=f"{text} failed")
            say("outcome", target, f"{text} failed")
        elif kind == "link":
            one, other = (chance.choice(mine) for _ in range(2))
            if one != other:
                link = await store.link(one, other, "refines")
                say("linked", link.id, one, other)
        elif len(mine) > 3:
            target = mine.pop(chance.randrange(len(mine)))
            say("deleting", target)
            await store.delete(target)
            say("deleted", target)

async def main(directory, name, seed, tasks):
    chance = random.Random(seed)
    settings = Settings(memory=MemorySettings(snapshot_every=40))
    async with Session.open(directory, embedder=SMALL, settings=settings) as session:
        say("open")
        await asyncio.gather(*(
            write(session.memories, f"{name}.{task}", random.Random(chance.random())) for task in range(tasks)
        ))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


class Oracle:
    """The calls that killed processes printed, recorded outside of the tested directory."""

    def __init__(self):
        self.saved = {}
        self.deleted = set()
        self.doubtful = set()
        self.reasons = {}
        self.linked = {}
        self.rests = {}

    def hear(self, text):
        for line in text.splitlines():
            if not line.endswith("]"):
                continue
            match json.loads(line):
                case ["saved", memory_id, content, targets]:
                    self.saved[memory_id] = (content, targets)
                case ["outcome", memory_id, reason]:
                    self.reasons.setdefault(memory_id, set()).add(reason)
                case ["linked", link_id, one, other]:
                    self.linked[link_id] = (one, other)
                case ["rests", memory_id, handles]:
                    self.rests[memory_id] = handles
                case ["deleting", memory_id]:
                    self.doubtful.add(memory_id)
                case ["deleted", memory_id]:
                    self.deleted.add(memory_id)

    async def ask(self, path):
        """Compare a directory with the recorded calls, and return the number of its memories."""
        place = OpenedDirectory.open(path, embedder=SMALL)
        try:
            store = await place.memories()
            assert [] == await place.findings()
            there = {memory.id: memory for memory in await store.list(limit=10**6)}
            links = {memory_id: await store.links(memory_id) for memory_id in there}
            evidence = {memory_id: await store.evidence(memory_id) for memory_id in there}
        finally:
            await place.close()
        gone = self.deleted | (self.doubtful - set(there))
        assert not self.deleted & set(there)
        assert set(self.saved) - gone <= set(there)
        for memory_id, (content, targets) in self.saved.items():
            if memory_id in there:
                assert content == there[memory_id].content
                made = {link.to_id for link in links[memory_id] if link.created_by == "user"}
                assert set(targets) - gone <= made
        for memory_id, reasons in self.reasons.items():
            if memory_id in there:
                told = [change.reason for change in there[memory_id].metadata.history]
                assert reasons <= set(told)
                # One transaction stores the outcome and the memory with its reason, so both exist.
                ends = [
                    link.from_id for link in links[memory_id] if link.metadata.original_relationship == "outcome_of"
                ]
                assert sorted(told) == sorted(there[end].content for end in ends)
        for memory_id, handles in self.rests.items():
            if memory_id in there:
                assert [f"{handle}@1" for handle in handles] == [one.source for one in evidence[memory_id]]
        for found in evidence.values():
            # A memory and its evidence texts share a transaction, so all texts exist even without an acknowledgement.
            assert all(200 * f"{one.source.removesuffix('@1')} " == one.text for one in found)
        for link_id, (one, other) in self.linked.items():
            if one in there and other in there:
                assert link_id in {link.id for link in links[one]}
        said = {memory.content for memory in there.values()}
        for memory in there.values():
            # A call that saves several memories stores them in order, so the memory before a stored one exists.
            if memory.type == "context" and (part := re.search(r" tokens ([12])$", memory.content)):
                assert f"{memory.content[:-1]}{int(part[1]) - 1}" in said
        return len(there)


def start(path, name, seed, tasks):
    command = [sys.executable, "-W", "ignore", "-c", WRITER, str(path), name, str(seed), str(tasks)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def end(process, oracle):
    process.kill()
    # Read the pipes directly, because `communicate` would lose output that `readline` has already buffered.
    with process:
        said, errors = process.stdout.read(), process.stderr.read()
    oracle.hear(said)

    assert "" == errors
    assert -signal.SIGKILL == process.returncode


@pytest.fixture
def place():
    """A directory on a real disk, because fsync has no effect on files in memory."""
    directory = Path(f"/tmp/mama-structs-crash-{os.getpid()}-{random.randrange(10**9)}")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_oracle_reads_all_output_of_process():
    """Output in the same chunk as the first line counts as acknowledged."""
    says = "import json; print('\\n'.join(json.dumps(['deleted', str(n)]) for n in range(999)), flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", says], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    oracle = Oracle()
    oracle.hear(process.stdout.readline())
    end(process, oracle)
    assert set(map(str, range(999))) == oracle.deleted


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
@pytest.mark.parametrize(("processes", "tasks"), [(1, 4), (4, 1)])
def test_sigkill_loses_no_acknowledged_call(place, processes, tasks):
    """Every call that returned is stored completely, whenever its process is killed."""
    seed = random.randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    oracle = Oracle()
    for turn in range(ROUNDS // (processes * 2) if processes > 1 else ROUNDS // 2):
        writers = [start(place, f"t{turn}-{n}", chance.randrange(2**32), tasks) for n in range(processes)]
        # Wait for a first line, except in every fourth turn, in which processes are killed while they open the store.
        if turn % 4 != 3:
            for writer in writers:
                oracle.hear(writer.stdout.readline())
        # In the first turn, wait for one acknowledgement. On a busy machine, no turn might reach its first save.
        while turn == 0 and not oracle.saved and (line := writers[0].stdout.readline()):
            oracle.hear(line)
        time.sleep(chance.uniform(0.0, 0.35))
        for writer in chance.sample(writers, len(writers)):
            time.sleep(chance.choice([0.0, 0.02]))
            end(writer, oracle)
        if turn % 3 == 2:
            asyncio.run(oracle.ask(place))
        if turn % 5 == 4 and (place / "views").exists() and chance.random() < 0.5:
            shutil.rmtree(place / "views")

    assert oracle.saved
    assert len(oracle.saved) - len(oracle.deleted) <= asyncio.run(oracle.ask(place)) + len(oracle.doubtful)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_store_killed_during_creation_can_be_opened(place):
    """The next session opens the store, whenever a process dies during its first save."""
    chance = random.Random(5)
    for turn in range(max(4, ROUNDS // 5)):
        writer = start(place / str(turn), "x", turn, 1)
        oracle = Oracle()
        if turn % 2:
            oracle.hear(writer.stdout.readline())
            time.sleep(chance.uniform(0, 0.01))
        else:
            time.sleep(chance.uniform(0.2, 0.6))
        end(writer, oracle)

        async def look(path=place / str(turn), oracle=oracle):
            async with Session.open(path, embedder=SMALL) as session:
                await session.memories.save_context("after all")
            await oracle.ask(path)

        asyncio.run(look())


def test_copy_during_writes_contains_complete_calls_only(place):
    """A directory that is copied while four tasks write opens with complete calls only."""

    async def work():
        oracle = Oracle()
        async with Session.open(place / "a", embedder=SMALL) as session:
            store = session.memories

            async def write(name):
                last = None
                for number in range(25):
                    text = f"{name}-{number} login tokens"
                    last = await (
                        store.supersede(last, text, reasoning="")
                        if last
                        else store.save_decision(text, topic="auth", reasoning="")
                    )
                    last = last.id
                    oracle.saved[last] = (text, [])

            writing = [asyncio.ensure_future(write(f"t{task}")) for task in range(4)]
            images = []
            while not all(task.done() for task in writing):
                image = place / f"image{len(images)}"

                def copy(_rows, image=image):
                    known = dict(oracle.saved)
                    shutil.copytree(place / "a", image)
                    return known

                # Copy in the store's thread. Otherwise a checkpoint could run between the copies of two files.
                images.append((image, await session._shared.home.storage.run_read(copy)))
                await asyncio.sleep(0.01)
            await asyncio.gather(*writing)
        for image, known in images[:: max(1, len(images) // 8)]:
            told = Oracle()
            told.saved = known
            assert len(known) <= await told.ask(image)
        assert 100 == await oracle.ask(place / "a")

    asyncio.run(work())
