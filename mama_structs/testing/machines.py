"""
Hypothesis state machines that use a session at random, with faults (extra ``testing``).

Subclass one, add your agent's actions as rules and its guarantees as invariants, and pass its ``TestCase`` to pytest.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mama_structs import HashEmbedder, Memory, Session, admin
from mama_structs.errors import EmbeddingFailed, MamaStructsError, MemoryNotFound, StoreError
from mama_structs.testing.fakes import FakeClock
from mama_structs.testing.session_faults import DiskFault, SessionFaults
from mama_structs.testing.strategies import PlantedMessage, memories, messages, tool_arguments
from mama_structs.tools.wire_names import MEMORY_TOOLS

__all__ = ["MemoryMachine", "SessionMachine"]

T = TypeVar("T")

_DISK_FAULTS: Final = st.sampled_from(["failing", "full", "read_only", "busy"])
_CLOCK_STEPS: Final = st.sampled_from([1.0, 60.0, 3_600.0, 86_400.0, 31 * 86_400.0, -3_600.0])
_START_TIMESTAMP: Final = 1_767_225_600.0
_MAX_MEMORIES: Final = 100_000


class SessionMachine(RuleBasedStateMachine):
    """
    State machine that uses a session in its own directory in random order.

    Its rules call tools with arguments that match their schemas, observe messages with refs, advance the clock,
    close and open the session, simulate a killed process, and make the disk or the embedder fail once.
    After each step every acknowledged ref and memory must exist. At the end `admin.check` must report no problem.
    A tool may reject a call with a `MamaStructsError`; any other error fails the test.

    Attributes:
        options: Arguments for `Session.open` in addition to the directory.
        texts: Strategies for tool parameters by name, as for `strategies.tool_arguments`; existing memory ids and
            handles are added automatically.
        session: The current session; another object each time the session is opened again.
        clock: The clock of the session's memories and refs.
        faults: The faults that are injected into the session.
        place: The directory of the session.

    """

    options: ClassVar[Mapping[str, Any]] = {}
    texts: ClassVar[Mapping[str, st.SearchStrategy[Any]]] = {}
    session: Session
    faults: SessionFaults

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")  # noqa: S108 - faster than a disk; a private directory is created in it
        self._home = Path(tempfile.mkdtemp(prefix="mama-structs-machine-", dir=memory if memory.is_dir() else None))
        self._outer_exception = sys.exception()
        self._runner = asyncio.Runner()
        self._refs: dict[str, str] = {}
        self._saved_ids: list[str] = []
        self.place: Path = self._home / "agent-0.mama"
        self.clock: FakeClock = FakeClock(start=_START_TIMESTAMP)
        try:
            self._open()
        except BaseException:
            self._close_all()
            raise

    # Hooks for subclasses

    def set_up(self, session: Session) -> Awaitable[None] | None:
        """
        Prepare a session that was just opened, for example by adding your agent's tools.

        It may be async. The default does nothing.
        """

    async def open_session(self, **options: Any) -> Session:
        """
        Open a session on the directory. The caller must close it.

        *options* override the options of this machine.
        """
        given = {"embedder": HashEmbedder(dimensions=64), **self.options, **options}
        session = await Session.open(self.place, **given)
        self.clock.drive(session)
        return session

    def tools_to_call(self) -> list[str]:
        """Return the names of the tools to call: by default all tools of the session."""
        return sorted(self.session.tools)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the machine's event loop, and return its result."""
        return self._runner.run(work)

    def attempt(self, work: Awaitable[T]) -> T | None:
        """Return the result of *work*, or None if it fails because of an injected fault."""

        async def attempted() -> T | None:
            met = self.faults.met
            try:
                return await work
            except (StoreError, EmbeddingFailed):
                if self.faults.met == met:
                    raise
                return None

        return self.run(attempted())

    # Rules

    @precondition(lambda self: self.tools_to_call())
    @rule(data=st.data())
    def call_a_tool(self, data: st.DataObject) -> None:
        """Call a random tool with arguments that match its schema."""
        name = data.draw(st.sampled_from(self.tools_to_call()), label="tool")
        given = tool_arguments(self.session.tools[name].input_schema, texts={**self.texts, **self._existing_ids()})
        arguments = data.draw(given, label="arguments")
        try:
            answer = self.attempt(self.session.call(name, arguments))
        except MamaStructsError:
            return
        if name.startswith("save/") and isinstance(answer, Mapping) and "id" in answer:
            self._saved_ids.append(answer["id"])

    @rule(planted=messages())
    def the_model_answers(self, planted: PlantedMessage) -> None:
        """Make the session observe a model's message, and assert that it finds the refs in it."""
        seen = self.attempt(self.session.observe(planted.message))
        if seen is not None:
            wanted, got = [ref.id for ref in planted.document.refs], [ref.id for ref in seen.refs]
            assert wanted == got, f"{wanted} were marked, and {got} stored"  # noqa: S101 - test code
            self._refs.update({ref.versioned_handle: ref.text for ref in seen.refs})

    @rule(seconds=_CLOCK_STEPS)
    def time_passes(self, seconds: float) -> None:
        """Move the clock forward or back."""
        self.clock.step(seconds)

    @rule()
    def open_again(self) -> None:
        """Close the session, and open it again with the same conversation."""
        self.faults.clear()
        self.run(self.session.close())
        self._open(self.session.conversation)

    @rule()
    def crash(self) -> None:
        """Simulate a killed process: open a copy of the directory that was made while the session was open."""
        left, old = self.session, self.place
        self.faults.clear()
        self.place = self._home / f"agent-{int(old.stem.partition('-')[2]) + 1}.mama"
        shutil.copytree(old, self.place)
        self.run(left.close())
        self._open(left.conversation)
        shutil.rmtree(old)

    @rule(kind=_DISK_FAULTS)
    def the_disk_fails(self, kind: DiskFault) -> None:
        """Make the next write transaction fail."""
        self.faults.disk(kind)

    @rule()
    def the_embedder_fails(self) -> None:
        """Make the next call of the embedder fail."""
        self.faults.embedder()

    # Invariants

    @invariant()
    def acknowledged_data_is_readable(self) -> None:
        """Assert that every stored ref still has its text, and that every memory saved by a tool can be read."""
        for handle, text in self._refs.items():
            assert text == self.session.refs.get(handle).text, f"{handle} is not as it was stored"  # noqa: S101 - test code
        for memory_id in self._saved_ids:
            self.run(self.session.memories.get(memory_id))

    def teardown(self) -> None:
        """Check the store for damage, unless a step has failed, and close everything."""
        try:
            if sys.exception() is self._outer_exception:
                self.faults.clear()
                # Write the data that an injected fault has prevented from being written.
                self.run(self.session.flush())
                assert self.run(admin.check(self.session)).ok, "the directory is damaged"  # noqa: S101 - test code
        finally:
            self._close_all()

    # Internals

    def _open(self, conversation: str | None = None) -> None:
        async def opened() -> Session:
            session = await self.open_session(conversation=conversation)
            if (made := self.set_up(session)) is not None:
                await made
            return session

        self.session = self.run(opened())
        self.faults = SessionFaults(self.session)

    def _existing_ids(self) -> dict[str, st.SearchStrategy[Any]]:
        """Return strategies that draw ids and handles that exist in the session."""
        known = {
            **dict.fromkeys(["id", "to_id", "decision_id", "supersedes", "implements", "ids"], self._saved_ids[-20:]),
            **dict.fromkeys(["fd", "ref_id", "evidence"], list(self._refs)[-20:]),
        }
        return {name: st.sampled_from(several) for name, several in known.items() if several}

    def _close_all(self) -> None:
        try:
            if hasattr(self, "faults"):
                self.faults.clear()
            if hasattr(self, "session"):
                self.run(self.session.close())
        finally:
            self._runner.close()
            shutil.rmtree(self._home, ignore_errors=True)


class MemoryMachine(SessionMachine):
    """
    State machine that compares the memories of a session with a plain dict.

    It saves, supersedes, deletes and searches memories, and sets outcomes of decisions.
    To test your own linking policy, embedder, reranker or judge, pass it in *options*.
    After each step, the session must contain exactly the acknowledged memories.

    Attributes:
        acknowledged: The acknowledged memories, by id.

    """

    acknowledged: dict[str, Memory]

    def __init__(self) -> None:
        self.acknowledged = {}
        super().__init__()

    def tools_to_call(self) -> list[str]:
        """Return the tools that do not change memories, because only this machine's rules may change them."""
        return [name for name in super().tools_to_call() if name not in MEMORY_TOOLS]

    @rule(record=memories())
    def save(self, record: dict[str, Any]) -> None:
        """Save a memory of any type."""
        for memory in self.attempt(self.session.memories.save_many([record])) or ():
            self.acknowledged[memory.id] = memory

    @precondition(lambda self: self.acknowledged)
    @rule(data=st.data(), replaces=st.booleans(), record=memories())
    def evolve(self, data: st.DataObject, replaces: bool, record: dict[str, Any]) -> None:  # noqa: FBT001 - drawn by Hypothesis
        """Supersede a decision, or set the outcome of one."""
        chosen = [memory.id for memory in self.acknowledged.values() if memory.type == "decision"]
        if not chosen:
            return
        memory_id = data.draw(st.sampled_from(chosen), label="decision")
        store, content = self.session.memories, record["content"]
        if replaces:
            memory = self.attempt(store.supersede(memory_id, content, reasoning="better"))
        else:
            memory = self.attempt(store.set_outcome(memory_id, "SUCCESS"))
        if memory is not None:
            self.acknowledged[memory.id] = memory

    @precondition(lambda self: self.acknowledged)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Delete a memory, and assert that it cannot be read."""
        memory_id = data.draw(st.sampled_from(list(self.acknowledged)), label="memory")
        if self.attempt(self.session.memories.delete(memory_id)) is not None:
            del self.acknowledged[memory_id]
            with contextlib.suppress(MemoryNotFound):
                self.run(self.session.memories.get(memory_id))
                raise AssertionError("a deleted memory can be read")

    @rule(record=memories(), limit=st.integers(1, 10))
    def search(self, record: dict[str, Any], limit: int) -> None:
        """
        Search for a random text, and check the hits.

        The hits must be distinct existing memories. Their number must be the limit, or that of all memories if smaller.
        """
        hits = self.attempt(self.session.memories.search(record["content"], limit=limit))
        if hits is not None:
            found = [hit.memory.id for hit in hits]
            expected = min(limit, len(self.acknowledged))
            assert expected == len(found) == len(set(found)), "missing or repeated hits"  # noqa: S101 - test code
            assert set(found) <= set(self.acknowledged), "hits of unknown memories"  # noqa: S101 - test code

    @invariant()
    def memories_equal_acknowledged_memories(self) -> None:
        """Assert that the session contains exactly the acknowledged memories, each equal to the returned one."""
        there = {memory.id: memory for memory in self.run(self.session.memories.list(limit=_MAX_MEMORIES))}
        assert there == self.acknowledged, "the memories differ from the acknowledged ones"  # noqa: S101 - test code
