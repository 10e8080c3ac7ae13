"""Which tools a session has: the profile, and what it leaves out."""

import pytest

from mama_structs import HashEmbedder, Session
from mama_structs.errors import InvalidSetting, UnknownTool
from mama_structs.settings import Settings, ToolSettings

MEMORY = [
    *("save/decision", "save/checkpoint", "save/insight", "load/checkpoint", "load/context"),
    *("search/by_topic", "search/by_context", "search/recent", "evolve/outcome", "evolve/supersede"),
]


def opened(**given):
    return Session.open(
        structs="http://127.0.0.1:1",
        embedder=HashEmbedder(),
        settings=Settings(tools=ToolSettings(**given)),
    )


async def mine():
    """Give a long text."""
    return "a line of the host's\n" * 2_000


async def test_the_profile_of_memories_has_their_tools_alone():
    """No tool of refs and of the chain is there; nothing tells of handles that no tool could read."""
    async with opened(profile="memory") as session:
        assert [*session.tools] == [name for name in session.tools if name in MEMORY or name.startswith("evolve/")]
        assert {*MEMORY} <= {*session.tools}
        assert "fd:1" not in session.system_prompt()
        with pytest.raises(UnknownTool):
            await session.call("read_fd", {"fd": "fd:1"})
        with pytest.raises(UnknownTool):
            await session.call("structs_query_player", {"player_id": "1-1"})


async def test_a_profile_of_names_has_these_and_what_the_host_adds():
    """A tool that is left out is unknown, on the wire too, in a fork as well; the host's own ones are all there."""
    async with opened(profile=["save/decision", "structs_query_player"]) as session:
        session.tools.add(mine)
        fork = session.fork()
        for one in (session, fork):
            assert ["save/decision", "structs_query_player", "mine"] == [*one.tools]
            assert await mine() == await one.call("mine")
            for name in ("save/insight", "save__insight", "read_fd"):
                with pytest.raises(UnknownTool):
                    await one.call(name, {"content": "a fact"})
        await fork.close()


@pytest.mark.filterwarnings("ignore:the tool:DeprecationWarning")
@pytest.mark.parametrize("profile", ["all", "memory", ["save/insight"]])
async def test_the_tools_of_v1_are_callable_in_every_profile(profile):
    """What an agent of v1.0 calls works, whatever is shown."""
    async with opened(profile=profile) as session:
        answer = await session.call(
            "save_decision", {"topic": "auth", "decision": "Use passkeys", "reasoning": "No passwords"}
        )

        assert answer["success"]
        assert "use save/decision" in answer["deprecated"]
        assert "save_decision" not in session.tools


@pytest.mark.parametrize("name", ["save/decison", "evolve/forget", "structs_query_moon"])
async def test_a_profile_that_names_no_tool_is_refused(name):
    """A name that nothing has would leave a hole that nobody sees."""
    with pytest.raises(InvalidSetting, match=name) as refused:
        await opened(profile=["save/decision", name])

    assert refused.value.hint


async def test_a_profile_of_names_of_v1_alone_is_refused():
    """It would leave an agent without a tool: those of v1.0 are shown only where they are asked for."""
    with pytest.raises(InvalidSetting, match=r"did you mean save/decision.*deprecated=True"):
        await opened(profile=("save_decision",))
    with pytest.raises(InvalidSetting, match=r"save_decision.*there are: "):
        await opened(profile=("save_decision",), memory=False)
    async with opened(profile=("save_decision",), deprecated=True) as session:
        assert ["save_decision"] == [*session.tools]


async def test_a_profile_with_read_fd_keeps_what_is_too_long():
    """Where a tool reads on, a long answer is shortened and kept."""
    async with opened(profile=["save/decision", "read_fd"]) as session:
        session.tools.add(mine)

        assert "fd:1" in str(await session.call("mine"))
        assert "read_fd" in session.system_prompt()
