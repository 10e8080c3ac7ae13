"""Tool profiles select the tools of a session."""

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


async def test_memory_profile_contains_only_memory_tools():
    async with opened(profile="memory") as session:
        assert [*session.tools] == [name for name in session.tools if name in MEMORY or name.startswith("evolve/")]
        assert {*MEMORY} <= {*session.tools}
        assert "fd:1" not in session.system_prompt()
        with pytest.raises(UnknownTool):
            await session.call("read_fd", {"fd": "fd:1"})
        with pytest.raises(UnknownTool):
            await session.call("structs_query_player", {"player_id": "1-1"})


async def test_profile_of_names_contains_named_and_added_tools():
    """Other tools are unknown, also by their wire names and in a fork."""
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
async def test_deprecated_tools_are_callable_in_every_profile(profile):
    async with opened(profile=profile) as session:
        answer = await session.call(
            "save_decision", {"topic": "auth", "decision": "Use passkeys", "reasoning": "No passwords"}
        )

        assert answer["success"]
        assert "use save/decision" in answer["deprecated"]
        assert "save_decision" not in session.tools


@pytest.mark.parametrize("name", ["save/decison", "evolve/forget", "structs_query_moon"])
async def test_profile_rejects_unknown_tool_name(name):
    with pytest.raises(InvalidSetting, match=name) as refused:
        await opened(profile=["save/decision", name])

    assert refused.value.hint


async def test_profile_rejects_only_deprecated_names():
    """It would leave a model without tools, since deprecated ones are hidden by default."""
    with pytest.raises(InvalidSetting, match=r"did you mean save/decision.*deprecated=True"):
        await opened(profile=("save_decision",))
    with pytest.raises(InvalidSetting, match=r"save_decision.*there are: "):
        await opened(profile=("save_decision",), memory=False)
    async with opened(profile=("save_decision",), deprecated=True) as session:
        assert ["save_decision"] == [*session.tools]


async def test_profile_with_read_fd_stores_truncated_results():
    async with opened(profile=["save/decision", "read_fd"]) as session:
        session.tools.add(mine)

        assert "fd:1" in str(await session.call("mine"))
        assert "read_fd" in session.system_prompt()
