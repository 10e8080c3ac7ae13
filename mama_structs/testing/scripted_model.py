"""Scripted model for tests. It plays complete conversations, with or without streaming, and needs no provider."""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from mama_structs._internal import validation as _check
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.refs.messages.transcript import TranscriptMessage, extract_transcript
from mama_structs.testing.provider_formats import RENDERERS_BY_PATH, ScriptedMessage, ScriptedToolCall, encode_events

__all__ = ["ModelRequest", "ModelTurn", "ScriptedModel"]


def _parse_calls(
    calls: Iterable[tuple[str, Mapping[str, Any] | str]],
) -> tuple[tuple[str, dict[str, Any] | str], ...]:
    turned: list[tuple[str, dict[str, Any] | str]] = []
    for at, call in enumerate(calls):
        match call:
            case (str(name), str() | Mapping() as given):
                turned.append((name.replace("/", "__"), given if isinstance(given, str) else dict(given)))
            case _:
                raise InvalidArgument(
                    f"calls[{at}] must be a pair of a tool's name and its arguments, got {repr_short(call)}"
                )
    return tuple(turned)


def _check_text(text: str) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(f"text must be a text, got {type(text).__name__}")
    return text


@attrs.frozen
class ModelTurn:
    """
    One message of the scripted model.

    Args:
        text: Its text.
        calls: Its tool calls, in order: a tool name, as in the session or on the wire, and arguments. Arguments may be
            a text, which is sent as written and may be invalid JSON.

    """

    text: str = attrs.field(default="", converter=_check_text)
    calls: tuple[tuple[str, dict[str, Any] | str], ...] = attrs.field(default=(), converter=_parse_calls)


@attrs.frozen
class ModelRequest:
    """
    A request that the model received.

    Args:
        transcript: The messages of the conversation with their speakers, without recalled memories.
        tools: The names of the offered tools, in the form in which they were sent.
        messages: The conversation in the framework's own format.
        options: The rest of the request: the whole request as a dict for the clients and the OpenAI Agents SDK, an
            ``AgentInfo`` of Pydantic AI, the options of LangChain.

    """

    transcript: tuple[TranscriptMessage, ...]
    tools: tuple[str, ...]
    messages: Any = attrs.field(repr=False)
    options: Any = attrs.field(repr=False)

    @property
    def results(self) -> list[str]:
        """The tool results in the conversation so far."""
        return [one.text for one in self.transcript if one.speaker == "tool"]


ScriptedTurn: TypeAlias = str | ModelTurn | tuple[str, Mapping[str, Any] | str]
ScriptStep: TypeAlias = (
    ScriptedTurn | Callable[[ModelRequest], ScriptedTurn] | Generator[ScriptedTurn, ModelRequest, None]
)


class _ScriptExhausted(LookupError):
    """Raised if the model receives a request after the last message of its script."""


class ScriptedModel:
    """
    A model for several frameworks that answers with the messages of a script.

    It uses no network.
    A streaming framework receives text and arguments in pieces.
    A request after the end of the script fails with an error that says so.

    Args:
        script: Its messages in order: a text, a call of one tool (a pair of a name and arguments), a `ModelTurn`, a
            function that returns one of them for a request, or a generator of several, which is sent each
            request after its first.
        cut: Number of characters per piece of a stream, or a function that splits a text into pieces.

    Attributes:
        requests: The received requests, in order.

    """

    def __init__(self, *script: ScriptStep, cut: int | Callable[[str], Iterable[str]] = 8) -> None:
        for number, step in enumerate(script):
            if not (isinstance(step, str | tuple | ModelTurn | Generator) or callable(step)):
                kinds = "a text, a pair, a ModelTurn, a function or a generator"
                raise InvalidArgument(f"script[{number}] must be {kinds}, got {type(step).__name__}")
        self.requests: list[ModelRequest] = []
        self._script = list(script)
        self._next = 0
        self._active_generator: Generator[ScriptedTurn, ModelRequest, None] | None = None
        self._split = cut if callable(cut) else _check.check_integer("cut", cut, 1)

    def __repr__(self) -> str:
        return f"<ScriptedModel, {self.left} of {len(self._script)} steps left>"

    @property
    def left(self) -> int:
        """The number of steps of the script that have not been used."""
        return len(self._script) - self._next

    def _next_answer(self, messages: object, tools: Iterable[str], sent: object) -> ScriptedMessage:
        """Record the request and return the next message."""
        request = ModelRequest(tuple(extract_transcript(messages)), tuple(tools), messages, sent)
        self.requests.append(request)
        said = self._next_step(request)
        turn = ModelTurn(said) if isinstance(said, str) else ModelTurn("", [said]) if isinstance(said, tuple) else said
        if not isinstance(turn, ModelTurn):
            kinds = "a text, a pair or a ModelTurn"
            raise InvalidArgument(f"a step of the script must give {kinds}, got {type(turn).__name__}")
        number = len(self.requests)
        calls = [ScriptedToolCall(f"call_{number}_{at}", *call) for at, call in enumerate(turn.calls)]
        return ScriptedMessage(f"answer_{number}", turn.text, calls)

    def _next_step(self, request: ModelRequest) -> ScriptedTurn:
        while True:
            if self._active_generator is not None:
                try:
                    return self._active_generator.send(request)
                except StopIteration:
                    self._active_generator = None
            if not self.left:
                count = len(self.requests) - 1
                raise _ScriptExhausted(
                    f"the script is over after {count} message{'s' * (count != 1)}, and the model is asked once more"
                )
            step = self._script[self._next]
            self._next += 1
            if not isinstance(step, Generator):
                return step(request) if callable(step) else step
            for said in step:
                self._active_generator = step
                return said

    def _split_text(self, text: str) -> list[str]:
        if not callable(self._split):
            size = self._split
            return [text[start : start + size] for start in range(0, len(text), size)]
        pieces = list(self._split(text))
        if "".join(pieces) != text:
            raise InvalidArgument("cut must give pieces that make up the text when they are joined")
        return pieces

    def _iter_pieces(self, answer: ScriptedMessage) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the parts of a streamed message: first the chunks of its text, then the chunks of each call."""
        for piece in self._split_text(answer.text) or [""] * (not answer.calls):
            yield piece, {}
        for index, one in enumerate(answer.calls):
            yield "", {"index": index, "id": one.id, "name": one.name, "args": ""}
            for piece in self._split_text(one.arguments_text):
                yield "", {"index": index, "id": None, "name": None, "args": piece}

    def openai(self) -> Any:
        """
        Return an ``openai.AsyncOpenAI`` (extra ``openai``).

        It supports ``responses`` and ``chat.completions``.
        """
        return self._make_client(importlib.import_module("openai"), "AsyncOpenAI")

    def anthropic(self) -> Any:
        """Return an ``anthropic.AsyncAnthropic`` for its ``messages`` (extra ``anthropic``)."""
        return self._make_client(importlib.import_module("anthropic"), "AsyncAnthropic")

    def _make_client(self, sdk: Any, name: str) -> Any:
        # The SDK's client class names the HTTP library that this version of the SDK uses.
        http = importlib.import_module(sdk.DefaultAsyncHttpxClient.__mro__[1].__module__)

        def respond(request: Any) -> Any:
            body = json.loads(request.content)
            tools = [tool.get("name") or tool.get("function", tool).get("name", "") for tool in body.get("tools", ())]
            whole, events = next(api for end, api in RENDERERS_BY_PATH.items() if request.url.path.endswith(end))
            try:
                answer = self._next_answer(body["messages"] if "messages" in body else body["input"], tools, body)
                if not body.get("stream"):
                    return http.Response(200, json=whole(answer))
                told = encode_events(events(answer, self._split_text))
            except (_ScriptExhausted, InvalidArgument) as error:
                return http.Response(400, json={"error": {"message": str(error), "type": "script"}})
            return http.Response(200, text=told, headers={"content-type": "text/event-stream"})

        client = sdk.DefaultAsyncHttpxClient(transport=http.MockTransport(respond))
        return getattr(sdk, name)(api_key="none", base_url="http://scripted.invalid", http_client=client, max_retries=0)

    def openai_agents(self) -> Any:
        """Return a model for the OpenAI Agents SDK's ``Agent(model=...)`` (extra ``openai-agents``)."""
        agents = importlib.import_module("agents")
        return agents.OpenAIResponsesModel("scripted", openai_client=self.openai())

    def pydantic_ai(self) -> Any:
        """Return a model of Pydantic AI, for ``Agent(model)`` (extra ``pydantic-ai``)."""
        parts = importlib.import_module("pydantic_ai.messages")
        function = importlib.import_module("pydantic_ai.models.function")

        async def respond(messages: list[Any], info: Any) -> Any:
            answer = self._next_answer(messages, [tool.name for tool in info.function_tools], info)
            said = [parts.TextPart(answer.text)] if answer.text else []
            calls = [parts.ToolCallPart(one.name, one.arguments, tool_call_id=one.id) for one in answer.calls]
            return parts.ModelResponse([*said, *calls])

        async def stream(messages: list[Any], info: Any) -> AsyncIterator[Any]:
            answer = self._next_answer(messages, [tool.name for tool in info.function_tools], info)
            for text, call in self._iter_pieces(answer):
                if call:
                    yield {call["index"]: function.DeltaToolCall(call["name"], call["args"], tool_call_id=call["id"])}
                else:
                    yield text

        return function.FunctionModel(respond, stream_function=stream)

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

            def bind_tools(self, tools: Iterable[Any], *, strict: bool | None = None, **options: Any) -> Any:
                return self.bind(tools=[described(tool, strict=strict) for tool in tools], **options)

            def _stream(self, asked: list[Any], *_: object, **options: Any) -> Iterator[Any]:
                answer = script._next_answer(
                    asked, [tool["function"]["name"] for tool in options.get("tools", ())], options
                )
                for text, call in script._iter_pieces(answer):
                    calls = [call] if call else []
                    message = messages.AIMessageChunk(text, tool_call_chunks=calls)
                    yield outputs.ChatGenerationChunk(message=message)

            def _generate(self, asked: list[Any], *_: object, **options: Any) -> Any:
                return core.generate_from_stream(self._stream(asked, **options))

            # Run steps in the thread of the event loop, because a step may use objects of that loop.

            async def _agenerate(self, asked: list[Any], *_: object, **options: Any) -> Any:
                return self._generate(asked, **options)

            async def _astream(self, asked: list[Any], *_: object, **options: Any) -> AsyncIterator[Any]:
                for chunk in self._stream(asked, **options):
                    yield chunk

        return Scripted()
