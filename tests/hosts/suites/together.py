"""
Four frameworks in four processes share one directory. Each framework recalls the facts that the other three saved.

Each process has the environment of its framework. ``run_suites.py`` starts this file in the environment of the MCP
client; the other environments are in the same folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
# Files in this directory have the names of frameworks, so remove the directory from the import path.
sys.path = [one for one in sys.path if Path(one or ".").resolve() != Path(__file__).parent]
FACTS = {
    "langgraph": ("The harbour master is called Ines", "Who is the harbour master?"),
    "pydantic-ai": ("The night watch begins at eleven", "When does the night watch begin?"),
    "google-adk": ("Crates of saffron go to the cold store", "Where do crates of saffron go?"),
    "mcp": ("Ships from Lisbon moor at pier nine", "Where do ships from Lisbon moor?"),
}


def opened(directory: str) -> Any:
    """Open the directory with an embedder that exists in every environment."""
    from mama_structs import HashEmbedder, Session  # noqa: PLC0415 - installed in this environment only

    return Session.open(directory, embedder=HashEmbedder())


@contextlib.asynccontextmanager
async def langgraph(directory: str) -> Any:
    """Run a LangGraph agent that saves facts in its store and gets recalled memories."""
    agents = importlib.import_module("langchain.agents")
    tool = importlib.import_module("langchain_core.tools").tool
    runtime = importlib.import_module("langgraph.config")
    adapter = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    store_of = importlib.import_module("mama_structs.adapters.langgraph.store").LangGraphStore
    scripted = importlib.import_module("mama_structs.testing.scripted_model").ScriptedModel

    @tool
    async def keep(fact: str) -> str:
        """Keep a fact."""
        await runtime.get_store().aput(("facts",), "harbour", {"text": fact})
        return "kept"

    async with opened(directory) as session:

        async def run(said: str, *script: Any) -> list[str]:
            model = scripted(*script)
            graph = agents.create_agent(
                model.langchain(), tools=[keep], store=store_of(session), middleware=[adapter.middleware(session)]
            )
            await graph.ainvoke({"messages": [("user", said)]})
            return [str(message.content) for request in model.requests for message in request.messages]

        async def save(fact: str) -> None:
            await run(f"Keep this: {fact}", ("keep", {"fact": fact}), "Kept.")

        async def recall(question: str) -> list[str]:
            return await run(question, "So it is.")

        yield save, recall


@contextlib.asynccontextmanager
async def pydantic_ai(directory: str) -> Any:
    """Run a Pydantic AI agent with the harness's memory and the recall capability."""
    agent_of = importlib.import_module("pydantic_ai").Agent
    memory_of = importlib.import_module("pydantic_ai_harness.memory").Memory
    harness = importlib.import_module("mama_structs.adapters.pydantic_ai_harness")
    scripted = importlib.import_module("mama_structs.testing.scripted_model").ScriptedModel

    async with opened(directory) as session:

        async def run(said: str, *script: Any) -> list[str]:
            model = scripted(*script)
            abilities = [memory_of(store=harness.memory_store(session)), harness.recall_capability(session)]
            await agent_of(model.pydantic_ai(), capabilities=abilities).run(said)
            return [str(request.messages) for request in model.requests]

        async def save(fact: str) -> None:
            await run(f"Keep this: {fact}", ("write_memory", {"file": "watch.md", "content": fact}), "Kept.")

        async def recall(question: str) -> list[str]:
            return await run(question, "So it is.")

        yield save, recall


@contextlib.asynccontextmanager
async def google_adk(directory: str) -> Any:
    """Run an ADK agent whose runner uses our memory service."""
    agents, models = importlib.import_module("google.adk.agents"), importlib.import_module("google.adk.models")
    runner_of = importlib.import_module("google.adk.runners").Runner
    sessions = importlib.import_module("google.adk.sessions").InMemorySessionService
    load_memory = importlib.import_module("google.adk.tools").load_memory
    types = importlib.import_module("google.genai").types
    service = importlib.import_module("mama_structs.adapters.google_adk.memory").AdkMemoryService

    class Scripted(models.BaseLlm):  # type: ignore[misc, name-defined]
        script: list[Any]

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            said = self.script.pop(0)
            part = types.Part(text=said) if isinstance(said, str) else types.Part.from_function_call(**said)
            yield models.LlmResponse(content=types.Content(role="model", parts=[part]))

    async def remember(callback_context: Any) -> None:
        await callback_context.add_session_to_memory()

    async with opened(directory) as session:
        services = {"session_service": sessions(), "memory_service": service(session, shared=True)}

        async def run(conversation: str, said: str, *script: Any) -> list[str]:
            model = Scripted(model="scripted", script=list(script))
            agent = agents.LlmAgent(name="ada", model=model, tools=[load_memory], after_agent_callback=remember)
            runner = runner_of(app_name="harbour", agent=agent, auto_create_session=True, **services)
            message = types.Content(role="user", parts=[types.Part(text=said)])
            events = runner.run_async(user_id="ada", session_id=conversation, new_message=message)
            return [str(one.response) async for event in events for one in event.get_function_responses()]

        async def save(fact: str) -> None:
            await run("monday", fact, "I see.")

        async def recall(question: str) -> list[str]:
            asked = {"name": "load_memory", "args": {"query": question}}
            return await run(f"asking {question}", question, asked, "So it is.")

        yield save, recall


@contextlib.asynccontextmanager
async def mcp(directory: str) -> Any:
    """Run an MCP client that starts our server on the directory."""
    client_of = importlib.import_module("mcp").Client
    parameters = importlib.import_module("mcp").StdioServerParameters
    command = ["-m", "mama_structs", "serve-mcp", directory]
    server = parameters(command=sys.executable, args=command, env=dict(os.environ))
    async with client_of(server, mode="auto") as client:

        async def save(fact: str) -> None:
            await client.call_tool("save__insight", {"content": fact})

        async def recall(question: str) -> list[str]:
            found = await client.call_tool("search__by_context", {"query": question})
            return [block.text for block in found.content]

        yield save, recall


async def work(role: str, directory: str) -> None:
    """Save and recall facts for the parent process. Each request and each answer is one line of JSON."""
    async with globals()[role.replace("-", "_")](directory) as (save, recall):
        say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, given = json.loads(line)
            say(await (save if what == "save" else recall)(given))


def say(what: object) -> None:
    """Send an answer to the parent process."""
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def python_of(role: str) -> Path:
    """Return the interpreter in the environment of a framework. The MCP client uses the current interpreter."""
    if role == "mcp":
        return Path(sys.executable)
    suffix = "-newest" if "newest" in sys.prefix else ""
    return Path(sys.prefix).parent / f"{role}{suffix}" / "bin" / "python"


def main() -> int:
    """Make each framework save its fact, and check that each framework recalls the facts of the other three."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        # Create the store first, so that no process has to wait until another one has stored the embedder.
        asyncio.run(made(f"{folder}/one.mama"))
        told = {}
        for role in FACTS:
            command = [str(python_of(role)), __file__, role, f"{folder}/one.mama"]
            pipe = subprocess.PIPE
            one = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT))
            stack.callback(one.kill)
            told[role] = one
        for one in told.values():
            answer(one)
        # Send all requests before reading an answer, so that the processes write concurrently.
        for role, (fact, _) in FACTS.items():
            ask(told[role], "save", fact)
        for one in told.values():
            answer(one)
        passed, failed = 0, []
        for role, one in told.items():
            for other, (fact, question) in FACTS.items():
                if other != role:
                    ask(one, "recall", question)
                    is_found = any(fact in text for text in answer(one))
                    passed += is_found
                    failed += [] if is_found else [f"{role} recalls what {other} saved"]
        for one in told.values():
            one.stdin.close()
            one.wait(60)
    say({"passed": passed, "failed": failed})
    return 0


async def made(directory: str) -> None:
    """Create the directory with its store."""
    async with opened(directory):
        pass


def ask(one: Any, what: str, given: str) -> None:
    """Send a request to a child process."""
    one.stdin.write(f"{json.dumps([what, given])}\n")
    one.stdin.flush()


def answer(one: Any) -> Any:
    """Return the next answer of a child process. Lines that are not JSON are output of its framework."""
    while line := one.stdout.readline():
        with contextlib.suppress(ValueError):
            return json.loads(line)
    raise RuntimeError(f"a process ended: {one.args}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(*sys.argv[1:]))
    else:
        sys.exit(main())
