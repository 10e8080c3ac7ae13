"""Messages and stream events in the formats of provider APIs, for a scripted model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument

Data = dict[str, Any]
SplitText = Callable[[str], list[str]]


@attrs.frozen
class ScriptedToolCall:
    """One tool call in a message of the scripted model."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text, the form in which a model sends them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, separators=(",", ":"))

    @property
    def arguments_data(self) -> Data:
        """
        The arguments as a dict, for formats that do not send JSON text.

        Raise `InvalidArgument` if they are not a JSON object.
        """
        try:
            given = json.loads(self.arguments_text)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise InvalidArgument(f"arguments of {self.name} that are no JSON object have no place in a whole message")
        return given


@attrs.frozen
class ScriptedMessage:
    """One message of the scripted model, independent of a provider's format."""

    id: str
    text: str
    calls: list[ScriptedToolCall]

    @property
    def common_fields(self) -> Data:
        """The fields that a message has in every format."""
        return {"id": self.id, "model": "scripted"}


# OpenAI's Responses API

_RESPONSE_FIELDS: Final[Data] = {
    "object": "response", "created_at": 0, "parallel_tool_calls": True, "tools": [], "tool_choice": "auto",
}  # fmt: skip


def make_response(answer: ScriptedMessage) -> Data:
    """Return a complete response."""
    text = {"type": "output_text", "text": answer.text, "annotations": []}
    said = {"type": "message", "id": f"{answer.id}_m", "role": "assistant", "status": "completed", "content": [text]}
    called = [
        {"type": "function_call", "id": f"fc_{one.id}", "call_id": one.id, "name": one.name,
         "arguments": one.arguments_text, "status": "completed"}
        for one in answer.calls
    ]  # fmt: skip
    output = [*([said] if answer.text or not called else []), *called]
    return {**answer.common_fields, **_RESPONSE_FIELDS, "status": "completed", "output": output}


def iter_response_events(answer: ScriptedMessage, split_text: SplitText) -> Iterator[Data]:
    """Yield the stream events of a response."""
    whole = make_response(answer)
    yield {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}
    for index, item in enumerate(whole["output"]):
        at = {"item_id": item["id"], "output_index": index}
        begun: Data = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield {
            "type": "response.output_item.added", "output_index": index,
            "item": {**item, "status": "in_progress", **begun},
        }  # fmt: skip
        if item["type"] == "message":
            at["content_index"] = 0
            (part,) = item["content"]
            yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
            for piece in split_text(answer.text):
                yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **at, "text": answer.text, "logprobs": []}
            yield {"type": "response.content_part.done", **at, "part": part}
        else:
            for piece in split_text(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **at, **done}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": whole}


# OpenAI's Chat Completions


def _make_function_call(call: ScriptedToolCall, arguments: str) -> Data:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def make_completion(answer: ScriptedMessage) -> Data:
    """Return a complete chat completion."""
    functions = [_make_function_call(one, one.arguments_text) for one in answer.calls]
    message = {"role": "assistant", "content": answer.text} | ({"tool_calls": functions} if functions else {})
    choice = {"index": 0, "finish_reason": "tool_calls" if functions else "stop", "message": message}
    return {**answer.common_fields, "object": "chat.completion", "created": 0, "choices": [choice]}


def iter_completion_events(answer: ScriptedMessage, split_text: SplitText) -> Iterator[Data]:
    """Yield the chunks of a chat completion."""

    def chunk(delta: Data, finish_reason: str | None = None) -> Data:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**answer.common_fields, "object": "chat.completion.chunk", "created": 0, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in split_text(answer.text):
        yield chunk({"content": piece})
    for index, one in enumerate(answer.calls):
        yield chunk({"tool_calls": [{"index": index, **_make_function_call(one, "")}]})
        for piece in split_text(one.arguments_text):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, "tool_calls" if answer.calls else "stop")


# Anthropic's Messages API

_ZERO_USAGE: Final[Data] = {"input_tokens": 0, "output_tokens": 0}


def _make_tool_use(call: ScriptedToolCall) -> Data:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _wrap_message(answer: ScriptedMessage, content: list[Data], stop_reason: str | None) -> Data:
    known = {
        **answer.common_fields,
        "type": "message",
        "role": "assistant",
        "stop_sequence": None,
        "usage": _ZERO_USAGE,
    }
    return {**known, "content": content, "stop_reason": stop_reason}


def make_message(answer: ScriptedMessage) -> Data:
    """Return a complete message."""
    blocks = [{**_make_tool_use(one), "input": one.arguments_data} for one in answer.calls]
    content: list[Data] = [*([{"type": "text", "text": answer.text}] if answer.text else []), *blocks]
    return _wrap_message(answer, content, "tool_use" if blocks else "end_turn")


def iter_message_events(answer: ScriptedMessage, split_text: SplitText) -> Iterator[Data]:
    """Yield the stream events of a message."""
    yield {"type": "message_start", "message": _wrap_message(answer, [], None)}
    text = [({"type": "text", "text": ""}, "text_delta", "text", answer.text)] if answer.text else []
    calls = [
        (
            {"type": "tool_use", "id": one.id, "name": one.name, "input": {}},
            "input_json_delta",
            "partial_json",
            one.arguments_text,
        )
        for one in answer.calls
    ]
    for index, (block, kind, name, written) in enumerate([*text, *calls]):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for piece in split_text(written):
            yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}}
        yield {"type": "content_block_stop", "index": index}
    stopped = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": 0}}
    yield {"type": "message_stop"}


# Renderers by suffix of the request path: one for complete answers and one for stream events.
RENDERERS_BY_PATH: Final[
    Mapping[str, tuple[Callable[[ScriptedMessage], Data], Callable[[ScriptedMessage, SplitText], Iterator[Data]]]]
] = {
    "/responses": (make_response, iter_response_events),
    "/chat/completions": (make_completion, iter_completion_events),
    "/messages": (make_message, iter_message_events),
}


def encode_events(events: Iterable[Data]) -> str:
    """Encode events as the body of a server-sent event stream."""
    lines = [
        (f"event: {event['type']}\n" if "type" in event else "")
        + f"data: {json.dumps(event if 'object' in event else {**event, 'sequence_number': number})}\n\n"
        for number, event in enumerate(events)
    ]
    return "".join([*lines, "data: [DONE]\n\n"])
