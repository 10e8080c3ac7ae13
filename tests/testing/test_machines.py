"""The machines for a host's own agent, and what they break: they pass on what is whole, and find what is not."""

from typing import ClassVar, Literal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from mama_structs import HashEmbedder, Session, Settings, ToolSettings
from mama_structs.errors import EmbeddingFailed, InvalidArgument, StoreBusy, StoreError, StoreFull, StoreReadOnly
from mama_structs.testing.machines import MemoryMachine, SessionMachine
from mama_structs.testing.session_faults import SessionFaults

# An example opens a store or several, as in `tests/storage/test_machine.py`.
BRIEF = settings(
    max_examples=max(10, settings.default.max_examples // 20),
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
# It ends at the first that is found; how soon that is depends on the constants of all modules that are imported.
FINDING = settings(BRIEF, phases=[Phase.generate], derandomize=True, database=None, max_examples=300)

TestSession = SessionMachine.TestCase
TestSession.settings = BRIEF
TestMemories = MemoryMachine.TestCase
TestMemories.settings = BRIEF


class Losing(MemoryMachine):
    """A machine in whose place somebody else deletes a memory."""

    @precondition(lambda self: self.known)
    @rule()
    def lose(self):
        self.run(self.session.memories.delete(next(iter(self.known))))


class Failing(SessionMachine):
    """A machine of an agent with a tool that fails for one argument."""

    crash = None

    def set_up(self, session):
        @session.tools.add
        async def attack(planet_id: str, how: Literal["soon", "late"] = "soon") -> int:
            """Attack."""
            return {"soon": 1}[how]

    def tools_to_call(self):
        return ["attack"]


@pytest.mark.parametrize(
    ("machine", "error"), [(Losing, AssertionError), (Failing, KeyError)], ids=["a loss", "an error"]
)
def test_a_machine_finds_what_is_wrong(machine, error):
    """What is not there any more, and what a tool raises, is found without being thought of."""
    with pytest.raises(error):
        run_state_machine_as_test(machine, settings=FINDING)


class Remembering(MemoryMachine):
    """A machine of an agent that has the tools of memories alone."""

    options: ClassVar = {"settings": Settings(tools=ToolSettings(profile="memory"))}


def test_a_machine_whose_tools_are_not_called_does_all_the_rest():
    """Where no tool is left to call, the other rules go on."""
    run_state_machine_as_test(Remembering, settings=settings(BRIEF, max_examples=3))


@pytest.fixture
async def session(tmp_path):
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
        yield session


@pytest.mark.parametrize(
    ("kind", "error"), [("failing", StoreError), ("full", StoreFull), ("read_only", StoreReadOnly), ("busy", StoreBusy)]
)
async def test_a_disk_fails_as_often_as_it_was_told(session, kind, error):
    """What was not acknowledged is not there, and then everything works again."""
    faults = SessionFaults(session)
    faults.disk(kind, times=2)
    for text in ("one", "two"):
        with pytest.raises(error):
            await session.memories.save_context(text)
    await session.memories.save_context("three")

    assert ["three"] == [memory.content for memory in await session.memories.recent()]
    assert (2, False) == (faults.met, faults.planned)


async def test_an_embedder_fails_until_it_is_told_to_work(session):
    """For as long as a test wants it, and not where nothing is embedded."""
    faults = SessionFaults(session)
    await session.memories.save_context("known")
    faults.embedder(times=None)
    with pytest.raises(EmbeddingFailed):
        await session.memories.save_context("new")
    assert "planned: embedder inf" in repr(faults)
    faults.clear()

    assert "new" == (await session.memories.save_context("new")).content


async def test_a_fault_that_there_is_not_is_refused(session):
    """A misspelt kind would break nothing, and a test would pass for it."""
    with pytest.raises(InvalidArgument, match="kind must be"):
        SessionFaults(session).disk("ful")
