"""The Hypothesis state machines pass for a correct agent and find planted errors."""

from typing import ClassVar, Literal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from mama_structs import HashEmbedder, Session, Settings, ToolSettings
from mama_structs.errors import EmbeddingFailed, InvalidArgument, StoreBusy, StoreError, StoreFull, StoreReadOnly
from mama_structs.testing.machines import MemoryMachine, SessionMachine
from mama_structs.testing.session_faults import SessionFaults

# Run fewer examples than usual, because each example opens several stores.
BRIEF = settings(
    max_examples=max(10, settings.default.max_examples // 20),
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
# Skip the shrinking phase, because these tests only need a failure.
# Hypothesis also draws constants of imported modules, so finding a failure may take many examples.
FINDING = settings(BRIEF, phases=[Phase.generate], derandomize=True, database=None, max_examples=300)

TestSession = SessionMachine.TestCase
TestSession.settings = BRIEF
TestMemories = MemoryMachine.TestCase
TestMemories.settings = BRIEF


class Losing(MemoryMachine):
    """A machine in which another process deletes memories."""

    @precondition(lambda self: self.acknowledged)
    @rule()
    def lose(self):
        self.attempt(self.session.memories.delete(next(iter(self.acknowledged))))


class Failing(SessionMachine):
    """A machine whose agent has a tool that fails for one argument."""

    crash = None

    def set_up(self, session):
        @session.tools.add
        async def attack(planet_id: str, how: Literal["soon", "late"] = "soon") -> int:
            """Attack a planet."""
            return {"soon": 1}[how]

    def tools_to_call(self):
        return ["attack"]


@pytest.mark.parametrize(
    ("machine", "error"), [(Losing, AssertionError), (Failing, KeyError)], ids=["a loss", "an error"]
)
def test_machine_finds_lost_memory_and_failing_tool(machine, error):
    with pytest.raises(error):
        run_state_machine_as_test(machine, settings=FINDING)


class Remembering(MemoryMachine):
    """A machine whose agent has only memory tools."""

    options: ClassVar = {"settings": Settings(tools=ToolSettings(profile="memory"))}


def test_machine_without_tools_to_call_runs_other_rules():
    run_state_machine_as_test(Remembering, settings=settings(BRIEF, max_examples=3))


@pytest.fixture
async def session(tmp_path):
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
        yield session


@pytest.mark.parametrize(
    ("kind", "error"), [("failing", StoreError), ("full", StoreFull), ("read_only", StoreReadOnly), ("busy", StoreBusy)]
)
async def test_disk_fault_fails_the_planned_number_of_transactions(session, kind, error):
    """Failed saves are not stored, and later saves succeed."""
    faults = SessionFaults(session)
    faults.disk(kind, times=2)
    for text in ("one", "two"):
        with pytest.raises(error):
            await session.memories.save_context(text)
    await session.memories.save_context("three")

    assert ["three"] == [memory.content for memory in await session.memories.list()]
    assert (2, False) == (faults.met, faults.planned)


async def test_embedder_fault_lasts_until_clear(session):
    """Calls without new texts do not fail."""
    faults = SessionFaults(session)
    await session.memories.save_context("known")
    faults.embedder(times=None)
    with pytest.raises(EmbeddingFailed):
        await session.memories.save_context("new")
    assert "planned: embedder inf" in repr(faults)
    faults.clear()

    assert "new" == (await session.memories.save_context("new")).content


async def test_unknown_fault_kind_is_rejected(session):
    """A misspelt kind would never fail, and the test would pass."""
    with pytest.raises(InvalidArgument, match="kind must be"):
        SessionFaults(session).disk("ful")
