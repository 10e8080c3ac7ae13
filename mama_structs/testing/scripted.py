"""A model that says what a script has it say: whole conversations on every adapter, without a provider."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from mama_structs.descriptors.spoken import Spoken, spoken_in

__all__ = ["ModelRequest", "ModelTurn", "ScriptedModel"]


def _turns_calls(calls: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple((name.replace("/", "__"), dict(arguments)) for name, arguments in calls)


@attrs.frozen
class ModelTurn:
    """
    What the model says in one message.

    Args:
        text: Its text.
        calls: The tools that it calls, in order: a name, as in the session or on the wire, and arguments.

    """

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = attrs.field(default=(), converter=_turns_calls)


@attrs.frozen
class ModelRequest:
    """
    What the model was asked.

    Args:
        said: What it was shown of the conversation: who said what, without what a session recalled.
        tools: The names of the tools that it was offered, as they are on the wire.
        sent: The request as the framework made it: a dict for the clients, else what the framework gives a model.

    """

    said: tuple[Spoken, ...]
    tools: tuple[str, ...]
    sent: Any = attrs.field(repr=False)

    @property
    def results(self) -> list[str]:
        """What tools answered so far."""
        return [one.text for one in self.said if one.speaker == "tool"]


Step: TypeAlias = str | ModelTurn | Callable[[ModelRequest], str | ModelTurn]

_FIELDS: Final[dict[str, Any]] = {"object": "response", "created_at": 0, "parallel_tool_calls": True, "tools": []}


class ScriptedModel:
    """
    A model that says what a script has it say, in the shape that a framework takes.

    It has no network, and does not stream.
    Where the script is over and the model is asked once more, the request fails and says so.

    Args:
        script: Its messages in order: a text, a `ModelTurn` with calls of tools, or a function that makes either of
            what the model was asked.

    Attributes:
        requests: What it was asked, in order.

    """

    def __init__(self, *script: Step) -> None:
        self.requests: list[ModelRequest] = []
        self._script = list(script)

    def __repr__(self) -> str:
        return f"<ScriptedModel, {self.left} of {len(self._script)} messages left>"

    @property
    def left(self) -> int:
        """How many messages of the script were not asked for yet."""
        return max(0, len(self._script) - len(self.requests))

    def _turn(self, messages: object, tools: Iterable[str], sent: object) -> ModelTurn:
        """Return the next message, and keep what was asked."""
        self.requests.append(ModelRequest(tuple(spoken_in(messages)), tuple(tools), sent))
        if len(self.requests) > len(self._script):
            raise LookupError(f"the script is over: it has {len(self._script)} messages, and another was asked for")
        step = self._script[len(self.requests) - 1]
        said = step if isinstance(step, str | ModelTurn) else step(self.requests[-1])
        return ModelTurn(said) if isinstance(said, str) else said

    def _ids(self, turn: ModelTurn) -> list[tuple[str, str, dict[str, Any]]]:
        """Return the calls of a turn, each with an id of its own."""
        return [(f"call_{len(self.requests)}_{number}", *call) for number, call in enumerate(turn.calls)]

    def openai(self) -> Any:
        """Return an ``openai.AsyncOpenAI``: ``responses.create`` and ``chat.completions.create`` (extra ``openai``)."""
        return self._client(importlib.import_module("openai"), "AsyncOpenAI")

    def anthropic(self) -> Any:
        """Return an ``anthropic.AsyncAnthropic`` for ``messages.create`` (extra ``anthropic``)."""
        return self._client(importlib.import_module("anthropic"), "AsyncAnthropic")

    def _client(self, sdk: Any, name: str) -> Any:
        # Whichever HTTP client this version of the SDK brings along.
        http = importlib.import_module(sdk.DefaultAsyncHttpxClient.__mro__[1].__module__)

        def respond(request: Any) -> Any:
            body = json.loads(request.content)
            try:
                return http.Response(200, json=self._answered(request.url.path, body))
            except LookupError as error:
                return http.Response(400, json={"error": {"message": str(error), "type": "script"}})

        client = sdk.DefaultAsyncHttpxClient(transport=http.MockTransport(respond))
        return getattr(sdk, name)(api_key="none", base_url="http://scripted.invalid", http_client=client, max_retries=0)

    def _answered(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a provider's API."""
        if body.get("stream"):
            raise LookupError("a ScriptedModel does not stream")
        tools = [tool.get("name") or tool["function"]["name"] for tool in body.get("tools", ())]
        turn = self._turn(body["messages"] if "messages" in body else body["input"], tools, body)
        calls, known = self._ids(turn), {"id": f"answer_{len(self.requests)}", "model": "scripted"}
        if path.endswith("/responses"):
            text = {"type": "output_text", "text": turn.text, "annotations": []}
            said = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
            called = [
                {"type": "function_call", "call_id": one, "name": name, "arguments": json.dumps(arguments)}
                for one, name, arguments in calls
            ]
            return {**known, **_FIELDS, "status": "completed", "tool_choice": "auto", "output": [said, *called]}
        if path.endswith("/chat/completions"):
            functions = [
                {"type": "function", "id": one, "function": {"name": name, "arguments": json.dumps(arguments)}}
                for one, name, arguments in calls
            ]
            message = {"role": "assistant", "content": turn.text} | ({"tool_calls": functions} if functions else {})
            choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
            return {**known, "object": "chat.completion", "created": 0, "choices": [choice]}
        blocks = [{"type": "tool_use", "id": one, "name": name, "input": given} for one, name, given in calls]
        content = [*([{"type": "text", "text": turn.text}] if turn.text else []), *blocks]
        ending = {"stop_reason": "tool_use" if calls else "end_turn", "usage": {"input_tokens": 0, "output_tokens": 0}}
        return {**known, "type": "message", "role": "assistant", "content": content, **ending}

    def pydantic_ai(self) -> Any:
        """Return a model of Pydantic AI, for ``Agent(model)`` (extra ``pydantic-ai``)."""
        parts = importlib.import_module("pydantic_ai.messages")

        def respond(messages: list[Any], info: Any) -> Any:
            turn = self._turn(messages, [tool.name for tool in info.function_tools], info)
            said = [parts.TextPart(turn.text)] if turn.text else []
            calls = [parts.ToolCallPart(name, given, tool_call_id=one) for one, name, given in self._ids(turn)]
            return parts.ModelResponse([*said, *calls])

        return importlib.import_module("pydantic_ai.models.function").FunctionModel(respond)

    def langchain(self) -> Any:
        """Return a chat model of LangChain, for ``create_agent(model)`` (extra ``langchain``)."""
        core = importlib.import_module("langchain_core.language_models.chat_models")
        messages = importlib.import_module("langchain_core.messages")
        outputs = importlib.import_module("langchain_core.outputs")
        described = importlib.import_module("langchain_core.utils.function_calling").convert_to_openai_tool
        script = self

        class Scripted(core.BaseChatModel):  # type: ignore[misc, name-defined]
            @property
            def _llm_type(self) -> str:
                return "scripted"

            def bind_tools(self, tools: Iterable[Any], **options: Any) -> Any:
                return self.bind(tools=[described(tool) for tool in tools], **options)

            def _generate(self, asked: list[Any], *_: object, tools: Iterable[Any] = (), **options: Any) -> Any:
                turn = script._turn(asked, [tool["function"]["name"] for tool in tools], options)
                calls = [
                    {"type": "tool_call", "id": one, "name": name, "args": given}
                    for one, name, given in script._ids(turn)
                ]
                message = messages.AIMessage(turn.text, tool_calls=calls)
                return outputs.ChatResult(generations=[outputs.ChatGeneration(message=message)])

        return Scripted()

    def openai_agents(self) -> Any:
        """Return a model of the OpenAI Agents SDK, for ``Agent(model=...)`` (extra ``openai-agents``)."""
        testing = importlib.import_module("agents.testing")

        def respond(call: Any) -> list[Any]:
            turn = self._turn(call.input, [tool.name for tool in call.tools], call)
            said = [testing.assistant_message(turn.text)] if turn.text else []
            return [*said, *(testing.function_call(name, given, call_id=one) for one, name, given in self._ids(turn))]

        # One more, which says that the script is over.
        return testing.ScriptedModel([testing.ModelStep.respond(respond)] * (len(self._script) + 1))
