"""End-to-end test: an agent uses references, memory and refs on two days, in two processes."""

import asyncio
import json
import subprocess
import sys
import textwrap

import pytest

from mama_structs.testing import FakeNode

PLAN = "1. Two planetary shields on 2-1 before the next ore run.\n2. Fleet 9-11 stays on station <until> then.\n"

SCRIPT_PROLOGUE = """
import asyncio, json, sys
from mama_structs import DescriptorSettings, HashEmbedder, ReferenceSettings, Session, Settings, admin

store, url, root = sys.argv[1:4]
settings = Settings(references=ReferenceSettings(include_memories=True), descriptors=DescriptorSettings(files_root=root))

def opened(conversation):
    return Session.open(store, structs=url, conversation=conversation, settings=settings, embedder=HashEmbedder())

async def look(session):
    return await session.call("structs_query_planet", {"planet_id": "2-1", "include_references": True})
"""

MONDAY = """
PLAN = sys.argv[4]

async def main():
    async with opened("monday") as session:
        before = await session.memories.save_decision(
            "Mine 2-1 without shields", topic="orchard", reasoning="nobody raids out here"
        )
        seen = await look(session)
        await session.call("evolve/outcome", {"decision_id": before.id, "outcome": "FAILED", "reason": "raided at night"})
        await session.observe(f'I suggest this. <ref id="plan">\\n{PLAN}\\n</ref> Shall I?')
        decided = await session.call("evolve/supersede", {
            "decision_id": before.id, "decision": "Shield 2-1 before mining", "reasoning": "raids cost more",
        })
        planned = await session.call("save/decision", {
            "topic": "defence", "decision": "Carry out the plan for 2-1", "reasoning": "agreed upon",
            "implements": [decided["id"]], "evidence": [{"$ref": "ref:plan"}],
        })
        file = await session.call("fd_to_file", {"fd": "ref:plan", "file_path": "plan.md"})
        await session.call("save/checkpoint", {
            "summary": "The plan is decided, nothing is built", "open_files": ["plan.md"],
            "next_steps": ["build the first shield"], "implements": [planned["id"]],
        })
        print(json.dumps({
            "before": before.id, "decided": decided["id"], "planned": planned["id"], "file": file,
            "remembered": seen["remembered"]["2-1"], "owner": seen["references"]["1-11"]["name"],
        }))

asyncio.run(main())
"""

TUESDAY = """
ids = json.loads(sys.argv[4])

async def main():
    async with opened("tuesday") as session:
        tools = [tool.name for tool in session.tools_for("Good morning! Let's continue from yesterday.")]
        checkpoint = await session.call(tools[0])
        found = await session.call("search/by_context", {"query": "why shields on 2-1 before mining?"})
        whole = await session.call("load/context", {"id": ids["planned"]})
        seen = await look(session)
        kept = [one.text for one in await session.memories.evidence(ids["planned"])]
        named = await session.resolver.enrich({"because_of": ids["before"]})
    async with opened("monday") as session:
        plan = session.refs.get("ref:plan").text
        report = await admin.check(session)
    print(json.dumps({
        "tools": tools, "checkpoint": checkpoint, "found": found, "whole": whole, "kept": kept, "plan": plan,
        "remembered": seen["remembered"]["2-1"], "named": named["references"][ids["before"]], "ok": report.ok,
    }))

asyncio.run(main())
"""


async def run(code, *arguments):
    """Run Python code in a new process, and return its JSON output."""

    def work():
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT_PROLOGUE + code), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    done = await asyncio.to_thread(work)
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
async def story(tmp_path):
    """Return the agent's observations on Monday and Tuesday, and the directory of its files."""
    entities = {
        "2-1": {"Planet": {"id": "2-1", "name": "azure-orchard", "owner": "1-11", "status": "active"}},
        "1-11": {"Player": {"id": "1-11", "name": "hollow-anvil", "guildId": "0-1", "planetId": "2-1"}},
        "0-1": {"Guild": {"id": "0-1", "name": "Golden Falcon", "owner": "1-11"}},
    }
    (tmp_path / "files").mkdir()
    where = [str(tmp_path / "agent.mama"), str(tmp_path / "files")]
    async with FakeNode(entities=entities) as node:
        monday = await run(MONDAY, where[0], node.url, where[1], PLAN)
        tuesday = await run(TUESDAY, where[0], node.url, where[1], json.dumps(monday))
    return monday, tuesday, tmp_path / "files"


async def test_agent_finds_all_data_of_the_previous_day(story):
    """The agent continues in another process."""
    monday, tuesday, files = story

    # The reference to the planet contains the planet's owner and the decision about the planet.
    assert "hollow-anvil" == monday["owner"]
    assert [{"id": monday["before"], "decision": "Mine 2-1 without shields"}] == monday["remembered"]
    assert PLAN == (files / "plan.md").read_text()
    # The message "Continue from yesterday" puts load/checkpoint first, and the checkpoint has the next steps.
    assert "load/checkpoint" == tuesday["tools"][0]
    assert "evolve/outcome" not in tuesday["tools"]
    assert ["build the first shield"] == tuesday["checkpoint"]["next_steps"]
    # The search finds the decision, and its failed predecessor with the reason for the failure.
    found = {one["id"]: one for one in tuesday["found"]["found"]}
    assert "Shield 2-1 before mining" == found[monday["decided"]]["content"]
    assert ("FAILED", "raided at night", monday["decided"]) == tuple(
        found[monday["before"]][key] for key in ("outcome", "outcome_reason", "superseded_by")
    )
    # The store has a copy of the evidence, and the conversation still contains the text as well.
    assert [PLAN] == tuesday["kept"]
    assert PLAN in json.dumps(tuesday["whole"], ensure_ascii=False).replace("\\n", "\n")
    assert PLAN == tuesday["plan"]
    # The reference to the planet contains all decisions about the planet, newest first.
    assert [monday["planned"], monday["decided"], monday["before"]] == [one["id"] for one in tuesday["remembered"]]
    assert "[FAILED] Mine 2-1 without shields" == tuesday["remembered"][-1]["decision"]
    # The id of a memory is resolved like the id of an entity.
    assert ("decision", "FAILED") == (tuesday["named"]["reference_type"], tuesday["named"]["outcome"])
    assert tuesday["ok"]
