"""One driver per framework: each runs a scripted conversation with the real framework and the session's tools."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import attrs
import host_helpers
import pytest
from host_helpers import Drive, Run

from mama_structs.testing.scripted_model import ScriptedModel

CONVERSATION = "11111111-1111-4111-8111-111111111111"


class TruncatingModel(ScriptedModel):
    """A scripted model whose first answer is changed: its last call is cut off, or it contains an unknown item."""

    # The text of the last call's arguments lacks this number of characters.
    MISSING_CHARS = 2
    UNKNOWN = {"type": "made_up_later", "id": "new_1", "content": []}  # noqa: RUF012 - never changed

    def __init__(self, *script: Any, is_cut_off: bool = False, has_unknown_item: bool = False) -> None:
        super().__init__(*script)
        self.is_cut_off, self.has_unknown_item = is_cut_off, has_unknown_item

    @property
    def is_first(self) -> bool:
        return len(self.requests) == 1

    def shorten(self, arguments: str) -> str:
        return arguments[: -self.MISSING_CHARS] if self.is_cut_off else arguments

    def _next_answer(self, messages: Any, tools: Any, sent: object) -> Any:
        # The transcript of a scripted model rejects unknown items, but a provider accepts its own ones.
        return super()._next_answer(self._without_unknown(messages), tools, sent)

    def _without_unknown(self, value: Any) -> Any:
        if isinstance(value, list):
            known = (one for one in value if not (isinstance(one, dict) and one.get("type") == self.UNKNOWN["type"]))
            return [self._without_unknown(one) for one in known]
        if isinstance(value, dict):
            return {key: self._without_unknown(one) for key, one in value.items()}
        if isinstance(getattr(value, "content", None), list) and hasattr(value, "model_copy"):
            return value.model_copy(update={"content": self._without_unknown(value.content)})
        return value

    def _make_client(self, sdk: Any, name: str) -> Any:
        client = super()._make_client(sdk, name)
        transport, http = (
            client._client._transport,
            importlib.import_module(sdk.DefaultAsyncHttpxClient.__mro__[1].__module__),
        )
        respond = transport.handler

        def altered(request: Any) -> Any:
            response = respond(request)
            if response.status_code != 200 or not self.is_first:
                return response
            body = response.json()
            self._alter(body)
            return http.Response(200, json=body)

        transport.handler = altered
        return client

    def _alter(self, body: dict[str, Any]) -> None:
        if "output" in body:
            if self.is_cut_off:
                body |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
                last = body["output"][-1]
                last |= {"status": "incomplete", "arguments": self.shorten(last["arguments"])}
            if self.has_unknown_item:
                body["output"].insert(0, self.UNKNOWN)
        elif "choices" in body:
            (choice,) = body["choices"]
            if self.is_cut_off:
                choice["finish_reason"] = "length"
                function = choice["message"]["tool_calls"][-1]["function"]
                function["arguments"] = self.shorten(function["arguments"])
            if self.has_unknown_item:
                choice["message"]["tool_calls"].insert(0, self.UNKNOWN)
        else:
            if self.is_cut_off:
                body["stop_reason"] = "max_tokens"
            if self.has_unknown_item:
                body["content"].insert(0, self.UNKNOWN)

    def pydantic_ai(self) -> Any:
        """Return Pydantic AI's own model class for OpenAI, because it interprets finish reasons and items."""
        model = importlib.import_module("pydantic_ai.models.openai").OpenAIResponsesModel
        provider = importlib.import_module("pydantic_ai.providers.openai").OpenAIProvider
        return model("gpt-5.1", provider=provider(openai_client=self.openai()))

    def langchain(self) -> Any:
        """Return a chat model whose message has a finish reason, as the models of LangChain's partners have."""
        model, script = super().langchain(), self

        def generate(messages: list[Any], *_: object, **options: Any) -> Any:
            result = type(model)._generate(model, messages, **options)
            (generation,) = result.generations
            message = generation.message
            if script.is_first and script.is_cut_off:
                message.response_metadata["finish_reason"] = "length"
                # The aggregated chunks of a stream have calls of incomplete arguments, which LangChain completes.
                message.tool_calls[-1]["args"] = {
                    name: value[: -script.MISSING_CHARS] for name, value in message.tool_calls[-1]["args"].items()
                }
            if script.is_first and script.has_unknown_item:
                message.content = [script.UNKNOWN, {"type": "text", "text": message.content}]
            return result

        async def agenerate(messages: list[Any], *_: object, **options: Any) -> Any:
            return generate(messages, **options)

        object.__setattr__(model, "_generate", generate)
        object.__setattr__(model, "_agenerate", agenerate)
        return model


async def in_strict_pydantic_ai(session: Any, model: ScriptedModel, *turns: str) -> Run:
    """Run a Pydantic AI agent whose model is sent strict schemas by Pydantic AI's class for OpenAI."""
    pydantic_ai = importlib.import_module("pydantic_ai")
    toolset = importlib.import_module("mama_structs.adapters.pydantic_ai").toolset(session)

    async def set_strict(_context: Any, definitions: list[Any]) -> list[Any]:
        return [dataclasses.replace(one, strict=True) for one in definitions]

    agent = pydantic_ai.Agent(TruncatingModel.pydantic_ai(model), toolsets=[toolset.prepared(set_strict)])
    run = Run()
    for said in turns:
        result = await agent.run(said, message_history=run.history)
        run.history = result.all_messages()
        run.answers.append(result.output)
    parts = [part for message in run.history for part in message.parts]
    run.outputs = [part.content for part in parts if part.part_kind == "tool-return"]
    return run


async def in_langgraph(
    session: Any, model: ScriptedModel, *turns: str, history: Any = (), strict: bool | None = None
) -> Run:
    """Run a graph with LangGraph's tool node and the session's checkpointer. Its model node stores the refs."""
    graphs = importlib.import_module("langgraph.graph")
    prebuilt = importlib.import_module("langgraph.prebuilt")
    checkpoints = importlib.import_module("mama_structs.adapters.langgraph.checkpoints")
    toolkit = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    tools, middleware = toolkit.tools(session), toolkit.middleware(session)
    bound = model.langchain().bind_tools(tools, strict=strict)

    async def ask(state: Any) -> Any:
        answer = await bound.ainvoke(state["messages"])
        await session.observe(answer.text)
        return {"messages": [answer]}

    builder = graphs.StateGraph(graphs.MessagesState)
    builder.add_node("model", ask)
    builder.add_node("tools", prebuilt.ToolNode(tools, awrap_tool_call=middleware.awrap_tool_call))
    builder.add_edge(graphs.START, "model")
    builder.add_conditional_edges("model", prebuilt.tools_condition)
    builder.add_edge("tools", "model")
    graph = builder.compile(checkpointer=checkpoints.LangGraphCheckpointer(session))
    run = Run(history=[*history])
    for said in turns:
        state = await graph.ainvoke({"messages": [("user", said)]}, {"configurable": {"thread_id": CONVERSATION}})
        run.history = state["messages"]
        run.answers.append(run.history[-1].content)
    run.outputs = [one.content for one in run.history if one.type == "tool"]
    return run


async def in_agent_framework(session: Any, model: ScriptedModel, *turns: str, history: Any = (), **options: Any) -> Run:
    """Run an agent of Agent Framework with the session's context and history providers."""
    framework = importlib.import_module("agent_framework")
    adapter = importlib.import_module("mama_structs.adapters.agent_framework.providers")
    run = Run(history=[*history])

    def to_dicts(messages: Any) -> list[dict[str, Any]]:
        found = []
        for one in messages:
            results = [content for content in one.contents if content.type == "function_result"]
            found += [
                {"role": "tool", "tool_call_id": content.call_id, "content": content.result} for content in results
            ]
            found += [{"role": one.role, "content": one.text}] if one.text else []
        return found

    class Client(framework.FunctionInvocationLayer, framework.ChatMiddlewareLayer, framework.BaseChatClient):
        def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
            async def respond() -> Any:
                listed = [
                    {"name": one.name, "description": one.description, "parameters": one.parameters()}
                    for one in options.get("tools") or ()
                ]
                answer = model._next_answer(to_dicts(messages), [one["name"] for one in listed], {"tools": listed})
                contents = [framework.Content.from_text(answer.text)] if answer.text else []
                is_cut = getattr(model, "is_cut_off", False) and model.is_first
                if getattr(model, "has_unknown_item", False) and model.is_first:
                    contents.insert(0, framework.Content("made_up_later", text="x"))
                for one in answer.calls:
                    arguments = model.shorten(one.arguments_text) if is_cut else one.arguments_text
                    contents.append(framework.Content.from_function_call(one.id, one.name, arguments=arguments))
                said = framework.Message("assistant", contents)
                return framework.ChatResponse(messages=[said], finish_reason="length" if is_cut else None)

            return respond()

    providers = [
        adapter.SessionHistoryProvider(session, store_context_messages=True),
        adapter.SessionContextProvider(session, **options),
    ]
    agent = framework.Agent(Client(), context_providers=providers)
    for said in turns:
        response = await agent.run(said, session=agent.create_session(session_id=CONVERSATION))
        run.history += response.messages
        results = [one for said in response.messages for one in said.contents if one.type == "function_result"]
        for one in results:
            texts = [item.text for item in one.items or () if item.type == "text"]
            run.outputs.append(one.items if len(texts) < len(one.items or ()) else "\n".join(texts) or one.result)
        run.answers.append(response.messages[-1].text)
    return run


def _describe(tool: Any) -> dict[str, Any]:
    """Return an MCP tool as a function of Chat Completions."""
    known = tool if isinstance(tool, dict) else tool.model_dump(by_alias=True)
    return {"name": known["name"], "description": known["description"], "parameters": known["inputSchema"]}


def _shown(result: Any) -> Any:
    """Return the text of an MCP result, or its contents if it has others."""
    contents = (
        result["content"] if isinstance(result, dict) else [one.model_dump(by_alias=True) for one in result.content]
    )
    return "\n".join(one["text"] for one in contents) if {"text"} >= {one["type"] for one in contents} else contents


async def in_mcp(session: Any, model: ScriptedModel, *turns: str, history: Any = (), **_options: Any) -> Run:
    """Run an agent loop on the Chat Completions API with the tools and the prompt of an MCP server."""
    adapter = importlib.import_module("mama_structs.adapters.mcp")
    client_class = importlib.import_module("mcp").Client
    run = Run(history=[*history])
    async with client_class(adapter.server(session)) as client:
        tools = [_describe(one) for one in (await client.list_tools()).tools]
        for said in turns:
            prompt = (await client.get_prompt("recall", {"message": said})).messages
            run.history += [{"role": one.role, "content": one.content.text} for one in prompt]
            calls: list[Any] = [None]
            while calls:
                answer = model._next_answer(run.history, [one["name"] for one in tools], {"tools": tools})
                calls = answer.calls
                run.history.append({"role": "assistant", "content": answer.text})
                for one in calls:
                    shown = _shown(await client.call_tool(one.name, json.loads(one.arguments_text)))
                    run.outputs.append(shown)
                    run.history.append({"role": "tool", "tool_call_id": one.id, "content": shown})
            run.answers.append(answer.text)
    return run


async def in_claude_agent(session: Any, model: ScriptedModel, *turns: str, history: Any = (), **options: Any) -> Run:
    """Run queries of the Claude Agent SDK, whose command line is scripted, with hooks and an MCP server."""
    sdk = importlib.import_module("claude_agent_sdk")
    adapter = importlib.import_module("mama_structs.adapters.claude_agent")
    server = importlib.import_module("mama_structs.adapters.mcp").server(session)
    run = Run(history=[*history])
    hooks = adapter.hooks(session, **options)
    # Keep the SDK from reading the configuration of the user who runs the tests.
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLAUDE_CONFIG_DIR", os.path.join(folder, "claude"))  # noqa: PTH118 - an environment variable
        configured = sdk.ClaudeAgentOptions(
            hooks=hooks, mcp_servers={"memory": {"type": "sdk", "name": "memory", "instance": server}}
        )
        for said in turns:
            line = _create_command_line(model, run)
            async for _message in sdk.query(prompt=said, options=configured, transport=line):
                pass
            if line.failure is not None:
                raise line.failure
    return run


def _create_command_line(model: ScriptedModel, run: Run) -> Any:
    sdk = importlib.import_module("claude_agent_sdk")

    class CommandLine(sdk.Transport):
        """Plays Claude Code: it calls the hooks, asks the scripted model, and calls tools by the SDK's MCP bridge."""

        def __init__(self) -> None:
            self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
            self._pending: dict[str, asyncio.Future[Any]] = {}
            self._hooks: dict[str, list[str]] = {}
            self._turn: asyncio.Task[None] | None = None
            self.failure: BaseException | None = None

        async def connect(self) -> None:
            """Do nothing: no process is started."""

        async def write(self, data: str) -> None:
            for written in data.splitlines():
                message = json.loads(written)
                if message["type"] == "control_response":
                    response = message["response"]
                    self._pending.pop(response["request_id"]).set_result(response.get("response", response))
                elif message["type"] == "control_request":
                    declared = message["request"].get("hooks") or {}
                    self._hooks = {
                        event: [one for each in matchers for one in each["hookCallbackIds"]]
                        for event, matchers in declared.items()
                    }
                    done = {"subtype": "success", "request_id": message["request_id"], "response": {}}
                    self._out.put_nowait({"type": "control_response", "response": done})
                elif message["type"] == "user":
                    self._turn = asyncio.create_task(self._play(message["message"]["content"]))

        async def _ask(self, request: dict[str, Any]) -> Any:
            name = f"asked-{id(request)}"
            self._pending[name] = asyncio.get_running_loop().create_future()
            self._out.put_nowait({"type": "control_request", "request_id": name, "request": request})
            return await self._pending[name]

        async def _run_hooks(self, event: str, **fields: Any) -> list[str]:
            texts = []
            for callback in self._hooks.get(event, ()):
                given = {"hook_event_name": event, "session_id": CONVERSATION, **fields}
                answer = await self._ask({"subtype": "hook_callback", "callback_id": callback, "input": given})
                texts.append(answer.get("hookSpecificOutput", {}).get("additionalContext"))
            return [text for text in texts if text]

        async def _send(self, method: str, params: Any = None) -> Any:
            message = {"jsonrpc": "2.0", "id": len(run.history), "method": method, "params": params or {}}
            answer = await self._ask({"subtype": "mcp_message", "server_name": "memory", "message": message})
            return answer["mcp_response"]["result"]

        async def _play(self, prompt: str) -> None:
            try:
                await self._converse(prompt)
            except Exception as error:
                self.failure = error
            done = {"subtype": "success", "duration_ms": 1, "duration_api_ms": 1, "is_error": False, "num_turns": 1}
            self._out.put_nowait({"type": "result", "session_id": CONVERSATION, "result": "", **done})
            self._out.put_nowait(None)

        async def _converse(self, prompt: str) -> None:
            recalled = await self._run_hooks("UserPromptSubmit", prompt=prompt)
            run.history += [{"role": "user", "content": text} for text in (prompt, *recalled)]
            await self._send(
                "initialize",
                {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "script", "version": "1"}},
            )
            tools = [_describe(one) for one in (await self._send("tools/list"))["tools"]]
            calls: list[Any] = [None]
            while calls:
                answer = model._next_answer(run.history, [one["name"] for one in tools], {"tools": tools})
                calls = answer.calls
                run.history.append({"role": "assistant", "content": answer.text})
                for one in calls:
                    given = {"name": one.name, "arguments": json.loads(one.arguments_text)}
                    shown = _shown(await self._send("tools/call", given))
                    run.outputs.append(shown)
                    run.history.append({"role": "tool", "tool_call_id": one.id, "content": shown})
            run.answers.append(answer.text)
            await self._run_hooks("Stop", stop_hook_active=False, last_assistant_message=answer.text)

        async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
            while (message := await self._out.get()) is not None:
                yield message

        async def close(self) -> None:
            if self._turn is not None:
                self._turn.cancel()

        def is_ready(self) -> bool:
            return True

        async def end_input(self) -> None:
            """Do nothing: the script ends on its own."""

    return CommandLine()


@attrs.frozen(eq=False)
class Framework:
    """
    A column of the table of behaviours.

    Args:
        name: The title of the column.
        drives: The drivers, by the API that they use.
        modules: The modules that must be installed.
        package: The distribution whose version is shown.
        not_applicable: The behaviours that the framework cannot have, with the reasons.
        sees_answers: The answers of the model whose refs the adapter receives: "all", "last" (of a turn) or "none".
        strict_drives: The drivers that use strict schemas.
        is_strict_complete: Whether strict schemas must require all arguments, so that optional ones accept null.

    """

    name: str
    drives: Mapping[str, Drive]
    modules: tuple[str, ...]
    package: str
    not_applicable: Mapping[str, str] = attrs.field(factory=dict)
    sees_answers: str = "all"
    strict_drives: Mapping[str, Drive] = attrs.field(factory=dict)
    is_strict_complete: bool = True

    @property
    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [one for one in self.modules if not _is_installed(one)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


_NO_STRICT: Final = "there is no option for strict schemas"
_CLIENT_ASKS: Final = "the client asks the model, and passes on complete calls only"
_OPENAI: Final = {"responses": host_helpers.in_openai_responses, "chat": host_helpers.in_openai_chat}
_AGENTS: Final = {"agent": host_helpers.in_openai_agents}
FRAMEWORKS: Final = [
    Framework("OpenAI", _OPENAI, ("openai",), "openai", strict_drives=_OPENAI),
    Framework(
        "Anthropic",
        {"messages": host_helpers.in_anthropic},
        ("anthropic",),
        "anthropic",
        strict_drives={"messages": functools.partial(host_helpers.in_anthropic, strict=["plan"])},
        is_strict_complete=False,
    ),
    Framework(
        "LangChain",
        {"agent": host_helpers.in_langchain},
        ("langchain.agents",),
        "langchain",
        strict_drives={"agent": functools.partial(host_helpers.in_langchain, strict=True)},
    ),
    Framework(
        "LangGraph",
        {"graph": in_langgraph},
        ("langgraph.graph", "langgraph.prebuilt", "langchain.agents"),
        "langgraph",
        {"recall": "a graph calls `session.recall` itself"},
        strict_drives={"graph": functools.partial(in_langgraph, strict=True)},
    ),
    Framework(
        "Pydantic AI",
        {"agent": host_helpers.in_pydantic_ai},
        ("pydantic_ai", "openai"),
        "pydantic-ai-slim",
        strict_drives={"agent": in_strict_pydantic_ai},
    ),
    Framework("OpenAI Agents", _AGENTS, ("agents",), "openai-agents", strict_drives=_AGENTS),
    Framework(
        "Agent Framework",
        {"agent": in_agent_framework},
        ("agent_framework",),
        "agent-framework-core",
        {"strict": _NO_STRICT},
    ),
    Framework(
        "Google ADK",
        {"agent": host_helpers.in_google_adk},
        ("google.adk.integrations.openai", "openai"),
        "google-adk",
        {"strict": _NO_STRICT},
    ),
    Framework(
        "Haystack",
        {"agent": host_helpers.in_haystack},
        ("haystack",),
        "haystack-ai",
        {"unknown items": "the model class of Haystack reads the answers"},
        strict_drives={"agent": functools.partial(host_helpers.in_haystack, strict=True)},
    ),
    Framework(
        "Claude Agent SDK",
        {"query": in_claude_agent},
        ("claude_agent_sdk", "mcp"),
        "claude-agent-sdk",
        {"strict": _NO_STRICT, "cut-off calls": _CLIENT_ASKS, "unknown items": _CLIENT_ASKS},
        "last",
    ),
    Framework(
        "MCP",
        {"client": in_mcp},
        ("mcp",),
        "mcp",
        {
            "strict": _NO_STRICT,
            "cut-off calls": _CLIENT_ASKS,
            "unknown items": _CLIENT_ASKS,
            "notes": "a server does not receive the model's answers",
        },
        "none",
    ),
]


def sent_schemas(model: ScriptedModel) -> dict[str, dict[str, Any]]:
    """Return the parameters of each tool as the model received them in its last request."""
    sent = model.requests[-1].options
    listed = sent.get("tools", ()) if isinstance(sent, dict) else sent.function_tools
    found = {}
    for one in listed:
        if not isinstance(one, dict):
            found[one.name] = one.parameters_json_schema
        else:
            function = one.get("function", one)
            found[function["name"]] = function.get("parameters") or function["input_schema"]
    return found
