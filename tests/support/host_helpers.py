"""Agents in every framework and on every provider's API, driven by the scripted model."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs
import pytest

from mama_structs import Session
from mama_structs.adapters import anthropic, openai
from mama_structs.testing.scripted_model import ScriptedModel


@attrs.define
class Run:
    """The result of a conversation: tool answers, final texts, messages and streams."""

    outputs: list[str] = attrs.field(factory=list)
    answers: list[str] = attrs.field(factory=list)
    history: list[Any] = attrs.field(factory=list)
    streams: list[Watched] = attrs.field(factory=list)

    def watch(self, session: Session) -> Watched:
        self.streams.append(Watched(session.stream()))
        return self.streams[-1]

    async def streamed(self, session: Session, coming: Any, final: str) -> Any:
        """Feed a provider's stream to the session, and return the complete message."""
        watched = self.watch(session)
        async with coming as stream:
            async for event in stream:
                watched.feed(event)
            whole = await getattr(stream, final)()
        await watched.close()
        return whole


@attrs.define
class Watched:
    """A message stream. The host displays the stream's events, and stores the refs when the stream ends."""

    stream: Any
    shown: list[str] = attrs.field(factory=list)
    seen: Any = None

    def feed(self, event: Any) -> None:
        if text := "".join(getattr(one, "text", "") for one in self.stream.feed(event)):
            self.shown.append(text)

    async def close(self) -> None:
        self.seen = await self.stream.close()


def call(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return name, arguments


def texts_of_users(messages: list[Any]) -> Iterator[str]:
    """Yield the texts of the user in a conversation, as the model received them."""
    for message in messages:
        if not isinstance(message, dict):
            yield from ([message.content] if getattr(message, "type", "") == "human" else ())
            parts = getattr(message, "parts", ())
            yield from (part.content for part in parts if part.part_kind == "user-prompt")
        elif message.get("role") == "user":
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            yield from (one["text"] for one in blocks if one["type"] in ("text", "input_text"))


async def in_openai_responses(session, model: ScriptedModel, *turns, history=(), streamed=False, **options) -> Run:
    """Run an agent loop on the Responses API, with strict schemas."""
    run, client, tools = Run(history=[*history]), model.openai(), openai.tools(session)
    assert all(tool["strict"] for tool in tools if tool["name"] in {"get_ref", "measure"})
    for said in turns:
        run.history.append({"role": "user", "content": said})
        results = [None]
        while results:
            run.history = await openai.add_recall(session, run.history, **options)
            asked = {"model": "any", "input": run.history, "tools": tools}
            if streamed:
                response = await run.streamed(session, client.responses.stream(**asked), "get_final_response")
            else:
                response = await client.responses.create(**asked)
            results = await openai.handle(session, response)
            output = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
            run.history += [*output, *results]
            run.outputs += [one["output"] for one in results]
        run.answers.append(response.output_text)
    return run


async def in_openai_chat(session, model: ScriptedModel, *turns, history=(), streamed=False, **options) -> Run:
    """Run an agent loop on the Chat Completions API."""
    run, client, tools = Run(history=[*history]), model.openai(), openai.tools(session, api="chat")
    for said in turns:
        run.history.append({"role": "user", "content": said})
        results = [None]
        while results:
            run.history = await openai.add_recall(session, run.history, **options)
            asked = {"model": "any", "messages": run.history, "tools": tools}
            if streamed:
                completion = await run.streamed(
                    session, client.chat.completions.stream(**asked), "get_final_completion"
                )
            else:
                completion = await client.chat.completions.create(**asked)
            results = await openai.handle(session, completion)
            message = completion.choices[0].message
            run.history += [message.model_dump(exclude_none=True, exclude={"parsed"}, warnings=False), *results]
            run.outputs += [one["content"] for one in results]
        run.answers.append(message.content)
    return run


async def in_anthropic(session, model: ScriptedModel, *turns, history=(), streamed=False, strict=(), **options) -> Run:
    """Run an agent loop on the Messages API."""
    strict = [name for name in ("get_ref", "measure", *strict) if name in session.tools]
    run, client, tools = Run(history=[*history]), model.anthropic(), anthropic.tools(session, strict=strict)
    assert all(tool["strict"] for tool in tools if tool["name"] in strict)
    for said in turns:
        run.history.append({"role": "user", "content": said})
        results: Any = {}
        while results is not None:
            run.history = await anthropic.add_recall(session, run.history, **options)
            asked = {"model": "any", "max_tokens": 100, "messages": run.history, "tools": tools}
            if streamed:
                message = await run.streamed(session, client.messages.stream(**asked), "get_final_message")
            else:
                message = await client.messages.create(**asked)
            results = await anthropic.handle(session, message)
            run.history.append({"role": "assistant", "content": [one.model_dump() for one in message.content]})
            run.history += [] if results is None else [results]
            run.outputs += [] if results is None else [one["content"] for one in results["content"]]
        run.answers.append("".join(one.text for one in message.content if one.type == "text"))
    return run


def _has_media(content: Any) -> bool:
    return isinstance(content, list) and not all(isinstance(one, dict) for one in content)


async def in_pydantic_ai(session, model: ScriptedModel, *turns, history=(), streamed=False, **options) -> Run:
    """Run a Pydantic AI agent with the session's capability."""
    adapter = importlib.import_module("mama_structs.adapters.pydantic_ai")
    capabilities = [adapter.capability(session, **options)]
    agent = importlib.import_module("pydantic_ai").Agent(model.pydantic_ai(), capabilities=capabilities)
    run = Run(history=[*history])

    async def watch(_context: Any, events: Any) -> None:
        watched = None
        async for event in events:
            watched = watched or run.watch(session)
            watched.feed(event)
        if watched:
            await watched.close()

    for said in turns:
        result = await agent.run(said, message_history=run.history, event_stream_handler=watch if streamed else None)
        run.history = result.all_messages()
        run.answers.append(result.output)
    parts = [part for message in run.history for part in message.parts]
    run.outputs = [
        # Contents of media have no JSON form.
        part.content if isinstance(part.content, str) or _has_media(part.content) else json.dumps(part.content)
        for part in parts
        if part.part_kind in {"tool-return", "retry-prompt"}
    ]
    return run


async def in_openai_agents(session, model: ScriptedModel, *turns, history=(), streamed=False, **options) -> Run:
    """Run an agent of the OpenAI Agents SDK, with strict schemas."""
    agents = importlib.import_module("agents")
    adapter = importlib.import_module("mama_structs.adapters.openai_agents.toolkit")
    run, tools = Run(history=[*history]), adapter.tools(session)
    assert all(tool.strict_json_schema for tool in tools if tool.name in {"get_ref", "measure"})
    agent = agents.Agent(name="agent", model=model.openai_agents(), tools=tools)
    for said in turns:
        # Create the hooks for each run, as a web server does.
        hooks = adapter.hooks(session, **options)
        config = agents.RunConfig(tracing_disabled=True, call_model_input_filter=hooks.add_recall)
        items = [*run.history, {"role": "user", "content": said}]
        if streamed:
            watched = run.watch(session)
            result = agents.Runner.run_streamed(agent, items, run_config=config, hooks=hooks)
            async for event in result.stream_events():
                watched.feed(event)
            await watched.close()
        else:
            result = await agents.Runner.run(agent, items, run_config=config, hooks=hooks)
        run.history = result.to_input_list()
        run.outputs += [item.output for item in result.new_items if item.type == "tool_call_output_item"]
        run.answers.append(result.final_output)
    return run


async def in_langchain(
    session, model: ScriptedModel, *turns, history=(), streamed=False, strict=None, **options
) -> Run:
    """Run a LangChain agent with the middleware."""
    agents = pytest.importorskip("langchain.agents", reason="create_agent is not in langchain_core")
    adapter = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    middlewares = importlib.import_module("langchain.agents.middleware")

    @middlewares.wrap_model_call
    async def set_strict(request, handler):
        return await handler(request.override(model_settings={**request.model_settings, "strict": strict}))

    middleware = [adapter.middleware(session, **options), *([] if strict is None else [set_strict])]
    agent = agents.create_agent(model.langchain(), tools=adapter.tools(session), middleware=middleware)
    run = Run(history=[*history])
    for said in turns:
        asked: Any = {"messages": [*run.history, {"role": "user", "content": said}]}
        if streamed:
            under_way = None
            async for mode, told in agent.astream(asked, stream_mode=["messages", "values"]):
                if mode == "values":
                    run.history = told["messages"]
                elif told[0].type == "AIMessageChunk":
                    if under_way != told[0].id:
                        under_way, watched = told[0].id, run.watch(session)
                    watched.feed(told[0])
            for watched in run.streams:
                await watched.close()
        else:
            run.history = (await agent.ainvoke(asked))["messages"]
        run.answers.append(run.history[-1].content)
    run.outputs = [one.content for one in run.history if one.type == "tool"]
    return run


async def in_google_adk(session, model: ScriptedModel, *turns, history=(), streamed=False, **options) -> Run:
    """Run an agent of Google ADK with the plugin. The history consists of ADK's events."""
    llms = importlib.import_module("google.adk.integrations.openai")
    agents, apps = importlib.import_module("google.adk.agents"), importlib.import_module("google.adk.apps")
    configs = importlib.import_module("google.adk.agents.run_config")
    runners = importlib.import_module("google.adk.runners")
    types = importlib.import_module("google.genai.types")
    adapter = importlib.import_module("mama_structs.adapters.google_adk.toolkit")
    llm = llms.OpenAIResponsesLlm(model="any", client=model.openai())
    agent = agents.LlmAgent(name="agent", model=llm, tools=[adapter.AdkToolset(session)])
    app = apps.App(name="app", root_agent=agent, plugins=[adapter.AdkRecallPlugin(session, **options)])
    runner = runners.InMemoryRunner(app=app)
    own = await runner.session_service.create_session(app_name="app", user_id="user", session_id="conversation")
    for event in history:
        await runner.session_service.append_event(own, event)
    run, mode = Run(), configs.StreamingMode.SSE if streamed else configs.StreamingMode.NONE
    for said in turns:
        message, watched = types.Content(role="user", parts=[types.Part(text=said)]), None
        asked = {"user_id": "user", "session_id": own.id, "new_message": message}
        async for event in runner.run_async(**asked, run_config=configs.RunConfig(streaming_mode=mode)):
            parts = event.content.parts if event.content else ()
            if event.partial:
                watched = watched or run.watch(session)
                watched.feed("".join(part.text or "" for part in parts))
                continue
            if watched:
                await watched.close()
                watched = None
            for response in event.get_function_responses():
                value = response.response
                value = next(iter(value.values())) if [*value] in (["result"], ["error"]) else value
                media = [part.inline_data for part in response.parts or () if part.inline_data]
                run.outputs.append([value, *media] if media else value if isinstance(value, str) else json.dumps(value))
            if event.is_final_response():
                run.answers.append("".join(part.text or "" for part in parts))
    found = await runner.session_service.get_session(app_name="app", user_id="user", session_id=own.id)
    run.history = found.events
    return run


async def in_haystack(
    session, model: ScriptedModel, *turns, history=(), streamed=False, strict=False, **options
) -> Run:
    """Run an agent of Haystack with the hook."""
    agents = importlib.import_module("haystack.components.agents")
    chat = importlib.import_module("haystack.dataclasses")
    generators = importlib.import_module("haystack.components.generators.chat")
    secret = importlib.import_module("haystack.utils").Secret
    adapter = importlib.import_module("mama_structs.adapters.haystack.toolkit")
    generator = generators.OpenAIChatGenerator(api_key=secret.from_token("none"), tools_strict=strict)
    generator.async_client = model.openai()
    recall = adapter.HaystackRecallHook(session, **options)
    agent = agents.Agent(chat_generator=generator, tools=adapter.HaystackToolset(session), hooks=recall.hooks)
    run = Run(history=[*history])
    watched: list[Watched] = []

    async def watch(chunk: Any) -> None:
        if chunk.content and not watched:
            watched.append(run.watch(session))
        if watched:
            watched[0].feed(chunk.content)
        if chunk.finish_reason and watched:
            await watched.pop().close()

    for said in turns:
        asked = [*run.history, chat.ChatMessage.from_user(said)]
        result = await agent.run_async(asked, streaming_callback=watch if streamed else None)
        new = result["messages"][len(asked) :]
        run.history = result["messages"]
        run.answers.append(result["last_message"].text)
        for one in new:
            run.outputs += [call.result for call in one.tool_call_results]
    return run


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


Drive = Callable[..., Awaitable[Run]]
DRIVES: list[Drive] = [
    in_openai_responses, in_openai_chat, in_anthropic, in_pydantic_ai, in_openai_agents, in_langchain,
]  # fmt: skip
# Frameworks of `nox -s hosts` take part where they are installed.
DRIVES += [one for one, name in ((in_google_adk, "google.adk"), (in_haystack, "haystack")) if is_installed(name)]


def named(drive: Drive) -> str:
    return drive.__name__.removeprefix("in_")


FRAMEWORKS = {
    "agent_framework", "agents", "anthropic", "claude_agent_sdk", "deepagents", "google.adk", "haystack", "langchain_core",
    "langgraph", "mcp", "mem0", "openai", "pydantic_ai", "pydantic_ai_harness", "qdrant_client",
}  # fmt: skip


def frameworks_loaded_by(*adapters: str) -> set[str]:
    """Return the frameworks that are loaded by importing the given adapters in a new process."""
    modules = ", ".join(f"mama_structs.adapters.{one}" for one in adapters)
    code = f"import sys, {modules}; print(*{FRAMEWORKS!r}.intersection(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return {*done.stdout.split()}
