"""
Token costs of the memory tools: schemas, system prompt and answers.

Four characters count as one token. Definitions count as `json.dumps` writes them by default, as on the page "What is
sent to the model"; answers count as they are sent.
"""

import json
from datetime import datetime
from pathlib import Path

import pytest

from mama_structs import HashEmbedder, Session
from mama_structs._internal.jsonable import to_json_text
from mama_structs.adapters import openai
from mama_structs.adapters.anthropic import messages as anthropic
from mama_structs.settings import Settings, ToolSettings
from mama_structs.tools.wire_names import MEMORY_TOOLS, make_wire_name

MONTH = Path(__file__).parents[1] / "data" / "month"
# Total characters of each tool's answers at commit 4b56ab1, for the same store and calls.
BEFORE = {
    "search/by_context": 102_638,
    "search/by_topic": 132_732,
    "search/recent": 23_987,
    "load/context": 175_962,
    "load/checkpoint": 376,
}


def tokens(value):
    return len(value if isinstance(value, str) else to_json_text(value)) // 4


def definition_tokens(definitions):
    return len(json.dumps(definitions)) / 4


def rows(name):
    return [json.loads(line) for line in (MONTH / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
async def month():
    """Yield a session with the memories of a month, and a dict of these memories by id."""
    async with Session.open(embedder=HashEmbedder()) as session:
        saves = rows("saves")
        made = await session.memories.save_many(
            {**row["save"], "created_at": datetime.fromisoformat(row["at"])} for row in saves
        )
        yield session, {row["id"]: memory for row, memory in zip(saves, made, strict=True)}


# Token limits. Never raise them.
@pytest.mark.parametrize(
    ("adapter", "strict", "most"), [(openai, False, 1_417), (anthropic, False, 1_321), (openai, True, 1_531)]
)
async def test_memory_tool_definitions_fit_token_limit(adapter, strict, most):
    async with Session.open(embedder=HashEmbedder()) as session:
        sent = adapter.tools(session, strict=strict)
    memory = {make_wire_name(name) for name in MEMORY_TOOLS}
    own = [one for one in sent if one["name"] in memory]

    assert len(MEMORY_TOOLS) - 1 == len(own)
    assert definition_tokens(own) <= most


# Token limits of a request's fixed part: the definitions of all 17 tools, and the system prompt. Never raise them.
@pytest.mark.parametrize("name", [None, "build"])
@pytest.mark.parametrize(
    ("adapter", "strict", "most"),
    [(openai, True, 2_800), (openai, False, 2_592), (anthropic, False, 2_443), (anthropic, True, 2_536)],
)
async def test_definitions_and_prompt_fit_token_limit(adapter, strict, most, name, tmp_path):
    async with Session.open(tmp_path / "agent.mama", conversation=name, embedder=HashEmbedder()) as session:
        sent = adapter.tools(session, strict=strict)
        prompt = session.system_prompt()

    assert 17 == len(sent)
    assert definition_tokens(sent) + len(prompt) / 4 <= most


async def test_definitions_and_prompt_with_files_fit_token_limit(tmp_path):
    place = {"conversation": "build", "files_root": tmp_path / "out"}
    async with Session.open(tmp_path / "agent.mama", embedder=HashEmbedder(), **place) as session:
        sent = openai.tools(session, strict=True)

        assert 18 == len(sent)
        assert definition_tokens(sent) + len(session.system_prompt()) / 4 <= 3_120


async def test_mcp_definitions_and_instructions_fit_token_limit():
    """Clients of MCP send names, descriptions and input schemas to the model."""
    client_class = pytest.importorskip("mcp.client").Client
    mcp = pytest.importorskip("mama_structs.adapters.mcp")
    async with Session.open(embedder=HashEmbedder()) as session, client_class(mcp.server(session)) as client:
        tools = (await client.list_tools()).tools
        instructions = client.instructions

    sent = [{"name": one.name, "description": one.description, "inputSchema": one.input_schema} for one in tools]
    assert 17 == len(sent)
    assert definition_tokens(sent) + len(instructions) / 4 <= 2_140


async def test_system_prompt_fits_token_limit(tmp_path):
    async with Session.open(embedder=HashEmbedder(), files_root=tmp_path) as session:
        prompt = session.system_prompt()

    assert tokens(prompt) <= 545
    for name in ("search__by_context", "save__decision", "evolve__supersede", "read_fd", "<recalled>"):
        assert name in prompt
    assert "save/decision" not in prompt


async def test_system_prompt_teaches_refs(tmp_path):
    """It names the tools for refs, asks for descriptive ids, and says how long refs persist."""
    async with Session.open(embedder=HashEmbedder(), files_root=tmp_path) as session:
        prompt = session.system_prompt()

    for text in ("list_refs()", 'get_ref(ref_id="parser")', 'fd_to_file(fd="ref:parser"', "descriptive id", "persist"):
        assert text in prompt
    assert "restart" not in prompt
    async with Session.open(conversation="build", embedder=HashEmbedder()) as session:
        assert "restart" not in session.system_prompt()


async def test_system_prompt_promises_refs_after_restart_only_in_named_conversation(tmp_path):
    """A session that names no conversation gets a fresh one, which does not have the refs of the one before."""
    place = tmp_path / "agent.mama"
    async with Session.open(place, embedder=HashEmbedder()) as session:
        prompt = session.system_prompt()
        first = session.conversation

        assert "fd_to_file" not in prompt
        assert "restart" not in prompt
        async with Session.open(place, conversation=first, embedder=HashEmbedder()) as same:
            assert "also after a restart" in same.system_prompt()
    async with Session.open(place, conversation="build", embedder=HashEmbedder()) as session:
        assert "also after a restart" in session.system_prompt()
        async with session.fork() as fork:
            assert "restart" not in fork.system_prompt()
        async with session.fork("test") as fork:
            assert "also after a restart" in fork.system_prompt()


async def test_system_prompt_names_only_existing_tools():
    profile = ["read_fd", "get_ref", "save/insight"]
    async with Session.open(embedder=HashEmbedder(), settings=Settings(tools=ToolSettings(profile=profile))) as session:
        prompt = session.system_prompt()

    assert "get_ref" in prompt
    for name in ("list_refs", "edit_ref", "put_ref", "search_fd", "fd_to_file", "save__decision"):
        assert name not in prompt
    for profile, named in ((["save/insight"], "save__insight"), ("memory", "evolve__supersede")):
        async with Session.open(
            embedder=HashEmbedder(), settings=Settings(tools=ToolSettings(profile=profile))
        ) as session:
            prompt = session.system_prompt()

            assert named in prompt
            assert ("evolve__supersede" in prompt) is (profile == "memory")
            assert "read_fd" not in prompt
    async with Session.open(settings=Settings(tools=ToolSettings(memory=False))) as session:
        assert "memory" not in session.system_prompt()


async def test_answers_are_a_third_shorter_than_recorded_ones(month):
    session, made = month
    asked = rows("questions")
    calls = {
        "search/by_context": [{"query": row["question"]} for row in asked],
        "search/by_topic": [{"topic": one} for one in sorted({memory.topic for memory in made.values()} - {None})],
        "search/recent": [
            {},
            {"limit": 50},
            *({"types": [kind]} for kind in ("decision", "checkpoint", "insight", "context")),
        ],
        "load/context": [{"id": made[row["answers"][0]].id} for row in asked if row["answers"]],
        "load/checkpoint": [{}],
    }
    sizes = {
        name: sum([len(to_json_text(await session.call(name, one, max_chars=None))) for one in several])
        for name, several in calls.items()
    }

    assert BEFORE.keys() == sizes.keys()
    assert {name for name, size in sizes.items() if size > 0.65 * BEFORE[name]} == set(), sizes


async def test_answers_omit_temporal_links(month):
    session, made = month
    for memory in list(made.values())[::29]:
        answer = await session.call("load/context", {"id": memory.id})
        near = await session.memories.traverse(
            memory.id, link_types=["evolution", "implementation", "association"], max_depth=2
        )

        assert "close_in_time" not in to_json_text(answer)
        assert {one["id"] for one in answer.get("around", ())} <= {one.memory.id for one in near}


async def test_save_answer_fits_token_limit(month):
    session, _ = month
    most = 0
    names = {"decision": "save/decision", "checkpoint": "save/checkpoint", "insight": "save/insight"}
    texts = {"decision": "decision", "checkpoint": "summary"}
    for row in rows("saves")[::12]:
        given = dict(row["save"])
        kind, content = given.pop("type"), given.pop("content")
        if kind in names:
            given[texts.get(kind, "content")] = content
            most = max(most, tokens(await session.call(names[kind], given)))

    assert 0 < most <= 60
