"""Formats of provider APIs for a scripted model: complete messages and stream events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument

Data = dict[str, Any]
Cut = Callable[[str], list[str]]


@attrs.frozen
class WireCall:
    """One tool call with its id."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str

    @property
    def text(self) -> str:
        """The arguments as JSON text, as a model writes them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, separators=(",", ":"))

    @property
    def data(self) -> Data:
        """
        The arguments as a dict, for formats without JSON text.

        Raise `InvalidArgument` for invalid JSON.
        """
        try:
            given = json.loads(self.text)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise InvalidArgument(f"arguments of {self.name} that are no JSON object have no place in a whole message")
        return given


@attrs.frozen
class WireAnswer:
    """One message of the model."""

    id: str
    text: str
    calls: list[WireCall]

    @property
    def known(self) -> Data:
        """The fields that all formats have in common."""
        return {"id": self.id, "model": "scripted"}


# OpenAI's Responses API

_FIELDS: Final[Data] = {
    "object": "response", "created_at": 0, "parallel_tool_calls": True, "tools": [], "tool_choice": "auto",
}  # fmt: skip


def response(answer: WireAnswer) -> Data:
    """Return a complete response."""
    text = {"type": "output_text", "text": answer.text, "annotations": []}
    said = {"type": "message", "id": f"{answer.id}_m", "role": "assistant", "status": "completed", "content": [text]}
    called = [
        {"type": "function_call", "id": f"fc_{one.id}", "call_id": one.id, "name": one.name, "arguments": one.text,
         "status": "completed"}
        for one in answer.calls
    ]  # fmt: skip
    output = [*([said] if answer.text or not called else []), *called]
    return {**answer.known, **_FIELDS, "status": "completed", "output": output}


def response_events(answer: WireAnswer, cut: Cut) -> Iterator[Data]:
    """Yield the stream events of a response."""
    whole = response(answer)
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
            for piece in cut(answer.text):
                yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **at, "text": answer.text, "logprobs": []}
            yield {"type": "response.content_part.done", **at, "part": part}
        else:
            for piece in cut(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **at, **done}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": whole}


# OpenAI's Chat Completions


def _function(call: WireCall, arguments: str) -> Data:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def completion(answer: WireAnswer) -> Data:
    """Return a complete chat completion."""
    functions = [_function(one, one.text) for one in answer.calls]
    message = {"role": "assistant", "content": answer.text} | ({"tool_calls": functions} if functions else {})
    choice = {"index": 0, "finish_reason": "tool_calls" if functions else "stop", "message": message}
    return {**answer.known, "object": "chat.completion", "created": 0, "choices": [choice]}


def completion_events(answer: WireAnswer, cut: Cut) -> Iterator[Data]:
    """Yield the chunks of a chat completion."""

    def chunk(delta: Data, finish_reason: str | None = None) -> Data:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**answer.known, "object": "chat.completion.chunk", "created": 0, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in cut(answer.text):
        yield chunk({"content": piece})
    for index, one in enumerate(answer.calls):
        yield chunk({"tool_calls": [{"index": index, **_function(one, "")}]})
        for piece in cut(one.text):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, "tool_calls" if answer.calls else "stop")


# Anthropic's Messages API

_USAGE: Final[Data] = {"input_tokens": 0, "output_tokens": 0}


def _called(call: WireCall) -> Data:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _message(answer: WireAnswer, content: list[Data], stop_reason: str | None) -> Data:
    known = {**answer.known, "type": "message", "role": "assistant", "stop_sequence": None, "usage": _USAGE}
    return {**known, "content": content, "stop_reason": stop_reason}


def message(answer: WireAnswer) -> Data:
    """Return a complete message."""
    blocks = [{**_called(one), "input": one.data} for one in answer.calls]
    content: list[Data] = [*([{"type": "text", "text": answer.text}] if answer.text else []), *blocks]
    return _message(answer, content, "tool_use" if blocks else "end_turn")


def message_events(answer: WireAnswer, cut: Cut) -> Iterator[Data]:
    """Yield the stream events of a message."""
    yield {"type": "message_start", "message": _message(answer, [], None)}
    text = [({"type": "text", "text": ""}, "text_delta", "text", answer.text)] if answer.text else []
    calls = [
        (
            {"type": "tool_use", "id": one.id, "name": one.name, "input": {}},
            "input_json_delta",
            "partial_json",
            one.text,
        )
        for one in answer.calls
    ]
    for index, (block, kind, name, written) in enumerate([*text, *calls]):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for piece in cut(written):
            yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}}
        yield {"type": "content_block_stop", "index": index}
    stopped = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": 0}}
    yield {"type": "message_stop"}


# Renderers by the end of the request path: for a complete answer, and for its events.
APIS: Final[Mapping[str, tuple[Callable[[WireAnswer], Data], Callable[[WireAnswer, Cut], Iterator[Data]]]]] = {
    "/responses": (response, response_events),
    "/chat/completions": (completion, completion_events),
    "/messages": (message, message_events),
}


def sent_events(events: Iterable[Data]) -> str:
    """Return the body of a server-sent event stream."""
    lines = [
        (f"event: {event['type']}\n" if "type" in event else "")
        + f"data: {json.dumps(event if 'object' in event else {**event, 'sequence_number': number})}\n\n"
        for number, event in enumerate(events)
    ]
    return "".join([*lines, "data: [DONE]\n\n"])
