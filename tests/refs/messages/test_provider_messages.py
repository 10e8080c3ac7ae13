"""`extract_model_text` and `parse_delta`, with the real classes of the installed provider packages."""

from __future__ import annotations

import importlib
import subprocess
import sys
import typing
import warnings
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.refs.messages.provider_messages import DeltaReader, TextDelta, extract_model_text, parse_delta


def provider(name):
    """Import a provider's package, or skip the test. Import warnings are ignored, because they differ by version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(name.partition(".")[0])
        return importlib.import_module(name)


def pieces_of_stream(chunks, read=None):
    """Return the texts of a stream. The chunks of one text are joined, as a store joins them."""
    read = read or DeltaReader().read
    pieces = [""]
    for chunk in chunks:
        delta = read(chunk)
        if delta is not None:
            if delta.starts_piece:
                pieces.append("")
            pieces[-1] += delta.text
    return [piece for piece in pieces if piece]


# -- messages: formats without a provider ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "pieces"),
    [
        ("", []),
        ("a", ["a"]),
        ([], []),
        ((), []),
        (["a", "b"], ["ab"]),
        ({"type": "text", "text": "a"}, ["a"]),
        ({"type": "output_text", "text": "a", "annotations": []}, ["a"]),
        ({"type": "thinking", "thinking": "a"}, []),
        ({"type": "tool_use", "id": "1", "name": "n", "input": {"text": "no"}}, []),
        (SimpleNamespace(type="text", text="a"), ["a"]),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], ["ab"]),
        ([{"type": "text", "text": "a"}, {"type": "tool_use"}, {"type": "text", "text": "b"}], ["a", "b"]),
        ([{"type": "text", "text": "a"}, {"type": "made_up_later", "query": "no"}, "b"], ["a", "b"]),
        ({"type": "AIMessageChunk", "content": [{"type": "text", "text": "a", "index": 0}]}, ["a"]),
        ({"role": "assistant", "content": None}, []),
        ({"role": "assistant"}, []),
        ({"content": None}, []),
        ({"content": "a"}, ["a"]),
        ({"role": "assistant", "content": "a", "tool_calls": [{"type": "function"}]}, ["a"]),
        ({"role": "assistant", "content": ["a", {"type": "text", "text": "b"}]}, ["ab"]),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, []),
        ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], ["a", "b"]),
        (SimpleNamespace(type="ai", content="a"), ["a"]),
        ({"choices": []}, []),
        ({"choices": [{"message": {"content": "a"}}]}, ["a"]),
        ({"choices": [{"index": 1, "message": {"content": "b"}}, {"index": 0, "message": {"content": "a"}}]}, ["a"]),
        ({"output": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "no"}]}]}, []),
        (
            {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]},
            ["a"],
        ),
        ({"role": "model", "parts": [{"text": "a"}, {"text": "b"}]}, ["ab"]),
        ({"parts": [{"text": "no", "thought": True}, {"text": "a"}, {"functionCall": {}}, {"text": "b"}]}, ["a", "b"]),
        ({"role": "model"}, []),
        ({"parts": ["a", {"type": "text", "text": "b"}]}, ["ab"]),
        ({"candidates": [{"content": {"role": "model", "parts": [{"text": "a"}]}}]}, ["a"]),
        ({"candidates": [{"finishReason": "SAFETY"}]}, []),
    ],
)
def test_said_by_model_returns_pieces(message, pieces):
    """Adjacent text blocks form one piece; other blocks and messages separate pieces."""
    assert pieces == extract_model_text(message)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (None, "NoneType"),
        ([None], "NoneType"),
        (5, "int"),
        (b"text", "bytes"),
        ({}, "dict"),
        ({"text": "without a type"}, "dict"),
        ([5], "message[0]"),
        (["a", ["b"]], "message[1]"),
        (iter(["a"]), "list_iterator"),
        (object(), "object"),
        (MagicMock(), "MagicMock"),
        ([MagicMock()], "MagicMock"),
        (MagicMock(type="tool_use"), "MagicMock"),
        (MagicMock(kind="response", parts=[]), "MagicMock"),
        (MagicMock(content="text"), "MagicMock"),
        ({"type": "made_up_later", "text": "words"}, "made_up_later"),
        ({"type": "made_up_later"}, "made_up_later"),
        ([{"type": "text", "text": "a"}, {"type": "made_up_later", "text": "words"}], "message[1]"),
        ({"role": "assistant", "content": [{"type": "made_up_later", "content": "words"}]}, "content[0]"),
        ({"role": "assistant", "message": "words"}, "dict"),
        (SimpleNamespace(role="assistant", message="words"), "SimpleNamespace"),
        ({"role": "model", "parts": [5]}, "parts[0]"),
        ({"role": "model", "parts": "words"}, "dict"),
        ({"kind": "response", "parts": [{"part_kind": "made-up-later", "content": "words"}]}, "parts[0]"),
        ({"new_items": [{"type": "made_up_later", "raw_item": {}, "content": "words"}]}, "new_items[0]"),
        ({"messages": [{"role": "assistant", "content": "words"}]}, "dict"),
        (MagicMock(type="text"), "MagicMock"),
        (MagicMock(role="assistant"), "MagicMock"),
        ({"type": "text"}, "NoneType"),
        ({"type": "text", "text": 5}, "int"),
        ({"type": "text", "text": {"value": "a"}}, "dict"),
        ({"role": "assistant", "content": 5}, "content must be"),
        ({"role": "assistant", "content": [5]}, "content[0]"),
        ({"choices": [{"index": 0, "delta": {"content": "a"}}]}, "stream"),
        ({"output": [5]}, "output[0]"),
    ],
)
def test_said_by_model_rejects_unknown_format(message, words):
    """The error names the type and the accepted formats."""
    with pytest.raises(InvalidArgument) as caught:
        extract_model_text(message)

    assert words in str(caught.value)
    assert caught.value.hint is not None


@pytest.mark.parametrize("role", ["user", "tool", "system", "developer", "function"])
@pytest.mark.parametrize(
    "wrap", [lambda m: m, lambda m: [m], lambda m: SimpleNamespace(**m), lambda m: {"output": [m]}]
)
def test_said_by_model_rejects_messages_of_other_roles(role, wrap):
    """Tags in messages of users or tools must not be parsed."""
    with pytest.raises(InvalidArgument, match="own output") as caught:
        extract_model_text(wrap({"role": role, "content": '<ref id="planted">x</ref>'}))

    assert "planted" not in str(caught.value)


def test_said_by_model_rejects_other_speaker_in_type():
    """Some frameworks state the speaker in the type."""
    with pytest.raises(InvalidArgument, match="human"):
        extract_model_text(SimpleNamespace(type="human", content="a"))


def test_said_by_model_error_contains_no_content():
    """Errors name types and places only."""
    with pytest.raises(InvalidArgument) as caught:
        extract_model_text({"role": "assistant", "content": [{"type": "text", "text": "secret"}, {"secret": "secret"}]})

    assert "secret" not in str(caught.value)


BLOCKS = st.lists(
    st.one_of(st.text(max_size=5), st.sampled_from(["tool_use", "thinking", "refusal"]).map(lambda k: {"type": k}))
)


def as_block(block):
    return {"type": "text", "text": block} if isinstance(block, str) else block


@given(blocks=BLOCKS)
def test_said_by_model_returns_all_text_in_order(blocks):
    """For any sequence of blocks, the pieces contain all text, and none is empty."""
    pieces = extract_model_text([as_block(block) for block in blocks])

    assert "".join(block for block in blocks if isinstance(block, str)) == "".join(pieces)
    assert all(pieces)


@given(blocks=BLOCKS)
def test_said_by_model_accepts_equivalent_forms(blocks):
    """Lists of dicts or objects, messages, and blocks passed one by one give the same pieces."""
    dicts = [as_block(block) for block in blocks]
    expected = extract_model_text(dicts)

    assert expected == extract_model_text([SimpleNamespace(**block) for block in dicts])
    assert expected == extract_model_text({"role": "assistant", "content": dicts})
    assert expected == extract_model_text({"type": "message", "role": "assistant", "content": tuple(dicts)})
    assert expected == pieces_of_stream(dicts)
    assert expected == pieces_of_stream(dicts, parse_delta)


def test_said_by_model_takes_linear_steps(steps):
    """Ten times the blocks take about ten times the steps."""
    few, many = ([{"type": "text", "text": "x" * 50}] * count for count in (2_000, 20_000))

    assert steps(extract_model_text, many) < 12 * steps(extract_model_text, few)


# -- chunks: formats without a provider --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk", "delta"),
    [
        ("a", TextDelta("a")),
        ("", None),
        (None, None),
        ({"type": "ping"}, None),
        ({"type": "text", "text": "a"}, TextDelta("a")),
        ({"type": "text_delta", "text": "a"}, TextDelta("a")),
        ({"type": "text", "text": "a", "snapshot": "ba"}, None),
        ({"type": "thinking", "thinking": "a", "snapshot": "a"}, None),
        ({"type": "thinking", "thinking": "a"}, TextDelta("", starts_piece=True)),
        ({"type": "web_search_tool_result"}, TextDelta("", starts_piece=True)),
        ({"type": "content.delta", "delta": "a", "snapshot": "a"}, None),
        ({"type": "content.done", "content": "a"}, None),
        ({"type": "made.up.later", "text": "a", "delta": "b"}, None),
        ({"type": "content_block_start", "content_block": {"type": "text", "text": "a"}}, TextDelta("a")),
        ({"type": "content_block_start", "content_block": {"type": "new"}}, TextDelta("", starts_piece=True)),
        ({"choices": []}, None),
        ({"choices": [{"index": 0, "finish_reason": "stop"}]}, None),
        ({"choices": [{"index": 0, "delta": None, "content_filter_results": {}}]}, None),
        ({"choices": [], "usage": {}}, None),
        ({"choices": [{"index": 1, "delta": {"content": "b"}}]}, None),
        ({"choices": [{"delta": {"content": "a"}}]}, TextDelta("a")),
        ({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}, None),
        ({"choices": [{"index": 0, "delta": {"content": "a", "reasoning_content": "no"}}]}, TextDelta("a")),
    ],
)
def test_delta_of_returns_text_of_chunk(chunk, delta):
    """A chunk adds its own text once, starts a new piece, or adds nothing."""
    assert delta == parse_delta(chunk)


@pytest.mark.parametrize(
    "chunk",
    [
        5,
        b"a",
        {},
        [],
        object(),
        MagicMock(),
        MagicMock(type="text", snapshot=None),
        {"type": "text"},
        {"type": "content_block_delta", "delta": {"type": "text_delta"}},
        {"type": "response.output_text.delta", "delta": {"text": "a"}},
        {"choices": [{"index": 0, "delta": {"content": ["a"]}}]},
        {"choices": [{"index": 0, "message": {"content": "a"}}]},
        {"type": "message", "role": "assistant", "content": []},
        {"role": "assistant", "content": "a"},
    ],
)
def test_delta_of_rejects_other_values(chunk):
    """Complete messages and other values are not chunks."""
    with pytest.raises(InvalidArgument) as caught:
        parse_delta(chunk)

    assert caught.value.hint is not None


# -- anthropic

ANTHROPIC_BLOCKS = st.lists(
    st.one_of(
        st.lists(st.text(min_size=1, max_size=5), max_size=4),
        st.sampled_from(["thinking", "redacted_thinking", "tool_use"]),
    ),
    max_size=6,
)


def anthropic_block(types, block):
    if isinstance(block, list):
        return types.TextBlock(type="text", text="".join(block), citations=None)
    if block == "thinking":
        return types.ThinkingBlock(type="thinking", thinking='<ref id="no">', signature="s")
    if block == "redacted_thinking":
        return types.RedactedThinkingBlock(type="redacted_thinking", data="d")
    return types.ToolUseBlock(type="tool_use", id="t", name="n", input={"text": '<ref id="no">'}, caller=None)


def anthropic_message(types, blocks):
    return types.Message(
        id="m",
        type="message",
        role="assistant",
        model="claude",
        content=[anthropic_block(types, block) for block in blocks],
        stop_reason="end_turn",
        stop_sequence=None,
        usage=types.Usage(input_tokens=1, output_tokens=1),
    )


def anthropic_events(types, blocks, *, first_in_start=False):
    """Return the events of a stream of this message."""
    yield types.RawMessageStartEvent(type="message_start", message=anthropic_message(types, []))
    for index, block in enumerate(blocks):
        parts = list(block) if isinstance(block, list) else []
        begun = parts[:1] if first_in_start else []
        content_block = anthropic_block(types, begun if isinstance(block, list) else block)
        yield types.RawContentBlockStartEvent(type="content_block_start", index=index, content_block=content_block)
        deltas = [types.TextDelta(type="text_delta", text=part) for part in parts[len(begun) :]]
        if block == "thinking":
            deltas = [
                types.ThinkingDelta(type="thinking_delta", thinking='<ref id="no">'),
                types.SignatureDelta(type="signature_delta", signature="s"),
            ]
        elif block == "tool_use":
            deltas = [types.InputJSONDelta(type="input_json_delta", partial_json='{"text": "no"}')]
        for delta in deltas:
            yield types.RawContentBlockDeltaEvent(type="content_block_delta", index=index, delta=delta)
        yield types.RawContentBlockStopEvent(type="content_block_stop", index=index)
    yield types.RawMessageStopEvent(type="message_stop")


def helper_events(types, blocks):
    """Return the events of the SDK's helper stream, which repeats each text after its chunks."""
    streaming = provider("anthropic.lib.streaming")
    kinds = provider("anthropic.lib.streaming._types")
    message = anthropic_message(types, blocks)
    snapshot = ""
    for event in anthropic_events(types, blocks):
        if event.type == "content_block_stop":
            snapshot = ""
            yield streaming.ContentBlockStopEvent(
                type="content_block_stop", index=event.index, content_block=message.content[event.index]
            )
        elif event.type == "message_stop":
            yield streaming.MessageStopEvent(type="message_stop", message=message)
        else:
            yield event
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            snapshot += event.delta.text
            yield streaming.TextEvent(type="text", text=event.delta.text, snapshot=snapshot)
        if event.type == "content_block_delta" and event.delta.type == "thinking_delta":
            yield kinds.ThinkingEvent(type="thinking", thinking="t", snapshot="t")


def test_said_by_model_reads_anthropic_message():
    """SDK objects are read like dicts; thinking and tool calls are skipped."""
    types = provider("anthropic.types")
    message = anthropic_message(types, [["a"], ["b"], "thinking", "tool_use", ["c"]])

    assert ["ab", "c"] == extract_model_text(message)
    assert ["ab", "c"] == extract_model_text(message.content)
    assert ["ab", "c"] == extract_model_text(message.model_dump())
    assert ["ab", "c"] == extract_model_text({"role": "assistant", "content": message.content})
    assert ["c"] == extract_model_text(message.content[-1])
    assert ["ab", "c", "ab", "c"] == extract_model_text([message, message])


@given(blocks=ANTHROPIC_BLOCKS, first_in_start=st.booleans())
def test_delta_of_anthropic_stream_matches_message(blocks, first_in_start):
    """Events as objects or dicts give the pieces of the final message."""
    types = provider("anthropic.types")
    expected = extract_model_text(anthropic_message(types, blocks))
    events = list(anthropic_events(types, blocks, first_in_start=first_in_start))

    assert expected == pieces_of_stream(events)
    assert expected == pieces_of_stream(events, parse_delta)
    assert expected == pieces_of_stream([event.model_dump() for event in events])


@given(blocks=ANTHROPIC_BLOCKS)
def test_delta_reader_skips_repeated_text_of_anthropic_helper(blocks):
    """The helper stream yields each text twice; it is read once."""
    types = provider("anthropic.types")
    events = list(helper_events(types, blocks))
    expected = extract_model_text(anthropic_message(types, blocks))

    assert expected == pieces_of_stream(events)
    assert expected == pieces_of_stream(events, parse_delta)
    assert expected == pieces_of_stream([event.model_dump() for event in events])


@given(blocks=ANTHROPIC_BLOCKS)
def test_delta_reader_reads_text_events_of_anthropic_helper(blocks):
    """A host that passes only the helper's text events loses no text."""
    types = provider("anthropic.types")
    events = [event for event in helper_events(types, blocks) if event.type == "text"]

    assert "".join(extract_model_text(anthropic_message(types, blocks))) == "".join(pieces_of_stream(events))


def test_delta_of_separates_anthropic_messages_in_stream():
    """The start of a message begins a new piece."""
    types = provider("anthropic.types")
    events = [*anthropic_events(types, [["a"]]), *anthropic_events(types, [["b"]])]

    assert ["a", "b"] == pieces_of_stream(events)


# -- openai: chat completions

TOOL_CALL = {"id": "t", "type": "function", "function": {"name": "n", "arguments": '{"text": "no"}'}}


def completion(chat, contents):
    choices = [
        {
            "index": n,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": content, "tool_calls": [TOOL_CALL]},
        }
        for n, content in enumerate(contents)
    ]
    return chat.ChatCompletion.model_validate(
        {"id": "c", "created": 1, "model": "m", "object": "chat.completion", "choices": choices}
    )


def completion_chunk(chat, delta, *, index=0, finish_reason=None):
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish_reason}]
    return chat.ChatCompletionChunk.model_validate(
        {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk", "choices": choices}
    )


def completion_chunks(chat, parts):
    yield completion_chunk(chat, {"role": "assistant", "content": ""})
    for part in parts:
        yield completion_chunk(chat, {"content": part})
        yield completion_chunk(chat, {"content": "other"}, index=1)
    yield completion_chunk(chat, {"tool_calls": [{"index": 0, **TOOL_CALL}]})
    yield completion_chunk(chat, {}, finish_reason="stop")
    yield completion_chunk(chat, None)


def test_said_by_model_reads_chat_completion():
    """The text of the first choice is read from completions, messages and their dicts."""
    chat = provider("openai.types.chat")
    answer = completion(chat, ["a", "b"])

    assert ["a"] == extract_model_text(answer)
    assert ["a"] == extract_model_text(answer.model_dump())
    assert ["a"] == extract_model_text(answer.choices[0].message)
    assert ["a"] == extract_model_text([answer.choices[0].message.model_dump(exclude_none=True)])
    assert [] == extract_model_text(completion(chat, [None]))


@given(parts=st.lists(st.text(max_size=5)))
def test_delta_of_chat_stream_matches_message(parts):
    """Chunks give the pieces of the final message, without other choices and tool calls."""
    chat = provider("openai.types.chat")
    chunks = list(completion_chunks(chat, parts))
    expected = extract_model_text(completion(chat, ["".join(parts), "other"]))

    assert expected == pieces_of_stream(chunks)
    assert expected == pieces_of_stream(chunks, parse_delta)
    assert expected == pieces_of_stream([chunk.model_dump() for chunk in chunks])


@given(parts=st.lists(st.text(min_size=1, max_size=5)))
def test_delta_reader_skips_repeated_text_of_chat_helper(parts):
    """All events, or only one of the two kinds, give each text once."""
    chat = provider("openai.types.chat")
    helper = provider("openai.lib.streaming.chat")
    events, snapshot = [], ""
    for chunk in completion_chunks(chat, parts):
        events.append(helper.ChunkEvent.model_construct(type="chunk", chunk=chunk, snapshot={"choices": []}))
        content = chunk.choices[0].delta.content if chunk.choices and chunk.choices[0].index == 0 else None
        if content:
            snapshot += content
            events.append(helper.ContentDeltaEvent(type="content.delta", delta=content, snapshot=snapshot, parsed=None))
    events.append(helper.ContentDoneEvent.model_construct(type="content.done", content=snapshot))
    expected = ["".join(parts)] if parts else []

    assert expected == pieces_of_stream(events)
    assert expected == pieces_of_stream(events, parse_delta)
    assert expected == pieces_of_stream([event for event in events if event.type == "content.delta"])


# -- openai: responses

ITEMS = st.lists(
    st.one_of(
        st.lists(st.one_of(st.just(None), st.lists(st.text(min_size=1, max_size=5), max_size=3)), max_size=4),
        st.sampled_from(["reasoning", "function_call"]),
    ),
    max_size=5,
)


def response_part(part):
    if part is None:
        return {"type": "refusal", "refusal": "no"}
    return {"type": "output_text", "text": "".join(part), "annotations": []}


def response_item(number, item):
    if item == "reasoning":
        return {"type": "reasoning", "id": f"i{number}", "summary": [{"type": "summary_text", "text": "no"}]}
    if item == "function_call":
        return {"type": "function_call", "id": f"i{number}", "call_id": "c", "name": "n", "arguments": "{}"}
    content = [response_part(part) for part in item]
    return {"type": "message", "id": f"i{number}", "role": "assistant", "status": "completed", "content": content}


def response(responses, items):
    return responses.Response.model_validate(
        {
            "id": "r",
            "created_at": 1.0,
            "model": "m",
            "object": "response",
            "output": [response_item(number, item) for number, item in enumerate(items)],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }
    )


def response_events(responses, items):
    def event(kind, cls, **fields):
        return getattr(responses, cls).model_validate({"type": kind, "sequence_number": 1, **fields})

    yield event("response.created", "ResponseCreatedEvent", response=response(responses, []).model_dump())
    for number, item in enumerate(items):
        at = {"item_id": f"i{number}", "output_index": number}
        whole = response_item(number, item)
        added = response_item(number, []) if isinstance(item, list) else whole
        yield event("response.output_item.added", "ResponseOutputItemAddedEvent", output_index=number, item=added)
        if item == "reasoning":
            yield event(
                "response.reasoning_summary_text.delta",
                "ResponseReasoningSummaryTextDeltaEvent",
                delta="no",
                summary_index=0,
                **at,
            )
            yield event(
                "response.reasoning_text.delta", "ResponseReasoningTextDeltaEvent", delta="no", content_index=0, **at
            )
        if item == "function_call":
            yield event(
                "response.function_call_arguments.delta", "ResponseFunctionCallArgumentsDeltaEvent", delta="no", **at
            )
        for index, part in enumerate(item if isinstance(item, list) else ()):
            here = {"content_index": index, **at}
            empty = response_part(None if part is None else [])
            yield event("response.content_part.added", "ResponseContentPartAddedEvent", part=empty, **here)
            if part is None:
                yield event("response.refusal.delta", "ResponseRefusalDeltaEvent", delta="no", **here)
                yield event("response.refusal.done", "ResponseRefusalDoneEvent", refusal="no", **here)
            else:
                for text in part:
                    yield event("response.output_text.delta", "ResponseTextDeltaEvent", delta=text, logprobs=[], **here)
                yield event(
                    "response.output_text.done", "ResponseTextDoneEvent", text="".join(part), logprobs=[], **here
                )
            yield event("response.content_part.done", "ResponseContentPartDoneEvent", part=response_part(part), **here)
        yield event("response.output_item.done", "ResponseOutputItemDoneEvent", output_index=number, item=whole)
    done = response(responses, items).model_dump()
    yield event("response.completed", "ResponseCompletedEvent", response=done)


def test_said_by_model_reads_response():
    """Output messages are read; reasoning, function calls and refusals are not."""
    responses = provider("openai.types.responses")
    answer = response(responses, ["reasoning", [["a"], ["b"], None, ["c"]], "function_call", [["d"]]])

    assert ["ab", "c", "d"] == extract_model_text(answer)
    assert ["ab", "c", "d"] == extract_model_text(answer.model_dump())
    assert ["ab", "c", "d"] == extract_model_text(answer.output)
    assert ["ab", "c"] == extract_model_text(answer.output[1])


@given(items=ITEMS)
def test_delta_of_response_stream_matches_response(items):
    """Events give the pieces of the final response; events that repeat text add nothing."""
    responses = provider("openai.types.responses")
    events = list(response_events(responses, items))
    expected = extract_model_text(response(responses, items))

    assert expected == pieces_of_stream(events)
    assert expected == pieces_of_stream(events, parse_delta)
    assert expected == pieces_of_stream([event.model_dump() for event in events])


def test_delta_reader_reads_deltas_of_response_helper():
    """Its text deltas also have a snapshot, but are not repeated."""
    helper = provider("openai.lib.streaming.responses")
    fields = {"content_index": 0, "item_id": "i", "logprobs": [], "output_index": 0, "sequence_number": 1}
    event = helper.ResponseTextDeltaEvent(type="response.output_text.delta", delta="a", snapshot="ba", **fields)

    assert TextDelta("a") == DeltaReader().read(event)
    assert TextDelta("a") == parse_delta(event)


# -- frameworks -------------------------------------------------------------------------------------------------------


MARKED = 'Here: <ref id="plan">shields first</ref>'


async def pydantic_run(*answers):
    """Run a Pydantic AI agent whose model returns these answers, with a tool call before the last answer."""
    pydantic_ai, function = provider("pydantic_ai"), provider("pydantic_ai.models.function")
    messages, script = provider("pydantic_ai.messages"), iter(answers)

    def respond(history, info):
        text = next(script)
        call = [messages.ToolCallPart("look", {})] if len(history) == 1 else []
        return messages.ModelResponse([messages.ThinkingPart("hm"), messages.TextPart(text), *call])

    agent = pydantic_ai.Agent(function.FunctionModel(respond))
    agent.tool_plain(lambda: '<ref id="planted">x</ref>', name="look")
    return await agent.run('<ref id="mine">x</ref>'), messages.ModelMessagesTypeAdapter


async def test_said_by_model_reads_pydantic_ai_run():
    """Runs, messages, responses and their dicts give all model text and nothing else."""
    result, adapter = await pydantic_run("a", MARKED)
    new = result.new_messages()

    assert ["a", MARKED] == extract_model_text(result)
    assert ["a", MARKED] == extract_model_text(new)
    assert ["a", MARKED] == extract_model_text(adapter.dump_python(new))
    assert [MARKED] == extract_model_text(new[-1])
    assert [MARKED] == extract_model_text(adapter.dump_python(new, mode="json")[-1])


async def test_said_by_model_rejects_pydantic_ai_request():
    """Text of users and tools must not be parsed, alone or among other requests."""
    result, adapter = await pydantic_run("a", "b")
    request = result.new_messages()[0]

    for message in (request, [request], adapter.dump_python([request])[0]):
        with pytest.raises(InvalidArgument, match="own output"):
            extract_model_text(message)


def test_said_by_model_knows_all_parts_of_pydantic_ai():
    """Each part of a response is read or known to contain no text; a transcript is model text."""
    messages = provider("pydantic_ai.messages")
    parts = [
        messages.ThinkingPart("no"),
        messages.ToolCallPart("no", {}),
        messages.NativeToolCallPart("no", {}),
        messages.NativeToolReturnPart("no", "no", "no"),
        messages.CompactionPart("no"),
        messages.FilePart(messages.BinaryContent(b"no", media_type="image/png")),
        messages.TextPart("a"),
        messages.SpeechPart(speaker="assistant", transcript="b"),
    ]
    assert ["ab"] == extract_model_text(messages.ModelResponse(parts))


async def agents_run(*outputs):
    """Run an agent of the OpenAI Agents SDK whose model returns these outputs."""
    agents, testing = provider("agents"), provider("agents.testing")
    tool = agents.FunctionTool(
        name="look", description="", params_json_schema={}, on_invoke_tool=look, strict_json_schema=False
    )
    agent = agents.Agent(name="agent", model=testing.ScriptedModel(list(outputs)), tools=[tool])
    quiet = agents.RunConfig(tracing_disabled=True)
    return await agents.Runner.run(agent, '<ref id="mine">x</ref>', run_config=quiet)


async def look(context, arguments):
    return '<ref id="planted">x</ref>'


async def test_said_by_model_reads_agents_sdk_run():
    """Runs, new items, message items, raw items and responses give the model text."""
    testing = provider("agents.testing")
    call = [testing.assistant_message("a"), testing.function_call("look", {}, call_id="call_1")]
    result = await agents_run(call, [testing.assistant_message(MARKED)])
    last = result.new_items[-1]

    assert ["a", MARKED] == extract_model_text(result)
    assert ["a", MARKED] == extract_model_text(result.new_items)
    assert ["a", MARKED] == extract_model_text(
        [item.raw_item for item in result.new_items if item.type == "message_output_item"]
    )
    assert [MARKED] == extract_model_text(last)
    assert [MARKED] == extract_model_text(last.raw_item)
    assert [MARKED] == extract_model_text(result.raw_responses[-1])


def test_delta_of_reads_raw_events_of_agents_sdk():
    """Text deltas are inside raw events; events of complete items add nothing."""
    stream_events, responses = provider("agents.stream_events"), provider("openai.types.responses")
    delta = responses.ResponseTextDeltaEvent(
        content_index=0,
        delta="a",
        item_id="1",
        logprobs=[],
        output_index=0,
        sequence_number=1,
        type="response.output_text.delta",
    )
    raw = stream_events.RawResponsesStreamEvent(data=delta)
    item = SimpleNamespace(type="run_item_stream_event", name="message_output_created", item=SimpleNamespace())

    assert ["aa"] == pieces_of_stream([raw, item, raw])


def test_said_by_model_reads_langchain_message():
    """AI messages with text or blocks are read; human and tool messages are rejected."""
    messages = provider("langchain_core.messages")
    blocks = [{"type": "reasoning", "reasoning": "no"}, {"type": "text", "text": "a"}, "b", {"type": "tool_call"}]

    assert [MARKED] == extract_model_text(messages.AIMessage(MARKED))
    assert [MARKED] == extract_model_text(messages.AIMessageChunk(MARKED))
    assert ["ab"] == extract_model_text(messages.AIMessage(blocks))
    assert ["ab"] == extract_model_text(messages.AIMessage(blocks).model_dump())
    for other in (messages.HumanMessage("a"), messages.ToolMessage("a", tool_call_id="1"), messages.SystemMessage("a")):
        with pytest.raises(InvalidArgument, match="own output"):
            extract_model_text(other)


CHUNKS = st.lists(
    st.one_of(
        st.text(max_size=3),
        st.text(max_size=3).map(lambda text: [{"type": "text", "text": text, "index": 0}]),
        st.just([{"type": "text", "annotations": [], "index": 0}]),
        st.just([]),
    ),
    max_size=6,
)


@given(contents=CHUNKS)
def test_delta_of_langchain_chunks_matches_message(contents):
    """Chunks read one by one give the joined text."""
    messages = provider("langchain_core.messages")
    texts = ["".join(b.get("text", "") for b in c) if isinstance(c, list) else c for c in contents]

    pieces = pieces_of_stream([messages.AIMessageChunk(content) for content in contents])

    assert [text for text in ["".join(texts)] if text] == pieces


def test_delta_of_langchain_tool_call_ends_piece():
    """As in a complete message, a ref does not continue after a block that is not text."""
    messages = provider("langchain_core.messages")
    contents = ["a", [{"type": "tool_use", "index": 1}], [{"type": "text", "text": "b", "index": 2}]]

    assert ["a", "b"] == pieces_of_stream([messages.AIMessageChunk(content) for content in contents])


def test_said_by_model_knows_all_blocks_of_sdks():
    """No type in the installed SDKs makes an answer unreadable."""
    anthropic, openai = provider("anthropic.types.beta"), provider("openai.types.responses")
    kinds = {kind for union in (anthropic.BetaContentBlock, openai.ResponseOutputItem) for kind in kinds_in(union)}
    rest = sorted(kinds - {"text", "message"})

    assert len(rest) > 20
    assert [] == extract_model_text(
        {
            "role": "assistant",
            "content": [{"type": kind, "content": [], "text": ""} for kind in rest if kind not in NO_WORDS],
        }
    )


# Types of items that have no text field.
NO_WORDS = {"mcp_list_tools", "mcp_tool_listing", "additional_tools", "container_upload", "fallback"}


def kinds_in(union):
    for one in typing.get_args(union):
        field = getattr(one, "model_fields", {}).get("type")
        yield from typing.get_args(field.annotation) if field is not None else kinds_in(one)


def test_messages_module_imports_no_provider():
    """Reading messages does not require a provider's package."""
    code = (
        "import sys; from mama_structs.refs.messages import provider_messages; "
        "print({'openai', 'anthropic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "set()" == done.stdout.strip()
