"""`extract_transcript`: transcripts of the messages of every provider, with the correct roles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.refs.messages.transcript import TranscriptMessage, extract_transcript

TURNS = [("user", "Use JWT?"), ("model", "Looking."), ("tool", "JWT is stateless"), ("model", "Yes.")]
CHAT = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "Use JWT?"},
    {
        "role": "assistant",
        "content": "Looking.",
        "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "t", "content": "JWT is stateless"},
    {"role": "assistant", "content": "Yes."},
]
RESPONSES = [
    {"role": "developer", "content": "You are kind."},
    {"role": "user", "content": [{"type": "input_text", "text": "Use JWT?"}]},
    {"type": "reasoning", "id": "r", "summary": []},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Looking.", "annotations": []}],
    },
    {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "t", "output": "JWT is stateless"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes.", "annotations": []}]},
]
ANTHROPIC = [
    {"role": "user", "content": "Use JWT?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "JWT is stateless"}]}
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
]
GOOGLE = [
    {"role": "user", "parts": [{"text": "Use JWT?"}]},
    {"role": "model", "parts": [{"text": "Looking."}, {"function_call": {"name": "f", "args": {}}}]},
    {"role": "user", "parts": [{"function_response": {"name": "f", "response": {"text": "JWT is stateless"}}}]},
    {"role": "model", "parts": [{"text": "Yes."}]},
]


def langchain():
    messages = pytest.importorskip("langchain_core.messages")
    return [
        messages.SystemMessage("You are kind."),
        messages.HumanMessage("Use JWT?"),
        messages.AIMessage("Looking.", tool_calls=[{"name": "f", "args": {}, "id": "t"}]),
        messages.ToolMessage("JWT is stateless", tool_call_id="t"),
        messages.AIMessage("Yes."),
    ]


def pydantic_ai():
    messages = pytest.importorskip("pydantic_ai.messages")
    return [
        messages.ModelRequest(parts=[messages.SystemPromptPart("You are kind."), messages.UserPromptPart("Use JWT?")]),
        messages.ModelResponse(parts=[messages.TextPart("Looking."), messages.ToolCallPart("f", {}, "t")]),
        messages.ModelRequest(parts=[messages.ToolReturnPart("f", "JWT is stateless", "t")]),
        messages.ModelResponse(parts=[messages.TextPart("Yes.")]),
    ]


@pytest.mark.parametrize(
    "conversation",
    [lambda: CHAT, lambda: RESPONSES, lambda: ANTHROPIC, lambda: GOOGLE, langchain, pydantic_ai],
    ids=["chat", "responses", "anthropic", "google", "langchain", "pydantic_ai"],
)
def test_spoken_in_gives_same_transcript_for_all_providers(conversation):
    """Instructions, calls and thinking are left out; requests with messages are accepted."""
    messages = conversation()

    assert TURNS == [(one.speaker, one.text) for one in extract_transcript(messages)]
    assert TURNS == [(one.speaker, one.text) for one in extract_transcript({"messages": messages})]
    assert TURNS[:1] == [(one.speaker, one.text) for one in extract_transcript(tuple(messages[:2]))][:1]


def test_spoken_in_omits_recalled_memories():
    """A bare text is the user's; the block that recall adds to a message is removed."""
    recalled = '<recalled>\nFrom memory.\n- "use JWT"\n</recalled>'

    assert [TranscriptMessage("user", "Use JWT?")] == extract_transcript("Use JWT?")
    assert [TranscriptMessage("user", "Go on")] == extract_transcript(
        [{"role": "user", "content": f"{recalled}\nGo on"}]
    )
    assert [] == extract_transcript([{"role": "tool", "content": recalled}, {"role": "user", "content": recalled}])
    assert [TranscriptMessage("model", "Yes", "msg_1")] == extract_transcript(
        [{"role": "assistant", "content": "Yes", "id": "msg_1"}]
    )


@pytest.mark.parametrize("message", [7, None, object(), {"role": "narrator", "content": "x"}, {"kind": "x"}, b"x"])
def test_spoken_in_names_place_of_unknown_message(message):
    """It raises instead of skipping the message, and the error contains no text of it."""
    with pytest.raises(InvalidArgument, match=r"messages\[1\] is no message"):
        extract_transcript(["hello", message])


@given(
    said=st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text(max_size=20)), max_size=6),
)
def test_spoken_in_assigns_text_to_speaker(said):
    """Any text, also with lone surrogates, is returned in order with its speaker."""
    names = {"user": "user", "assistant": "model", "tool": "tool"}
    told = extract_transcript([{"role": role, "content": text} for role, text in said])

    assert [(names[role], text.strip()) for role, text in said if text.strip()] == [
        (one.speaker, one.text) for one in told
    ]
