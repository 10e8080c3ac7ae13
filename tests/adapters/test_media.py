"""Images and audio in tool results: each provider gets them as native content, outside the answer budget."""

from __future__ import annotations

import base64
import importlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import DescriptorSettings, HashEmbedder, Session, Settings
from mama_structs.adapters import anthropic, openai
from mama_structs.adapters.shared.tool_results import CallScheduler, answer_tool_call
from mama_structs.errors import QuotaExceeded
from mama_structs.refs.messages.media import Media, parse_media, to_content_blocks
from mama_structs.testing.scripted_model import ModelTurn, ScriptedModel

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 100
WAV = b"RIFF\x00\x00\x00\x00WAVE" + bytes(20_000)
DATA, SOUND = base64.b64encode(PNG).decode(), base64.b64encode(WAV).decode()
IMAGE = {"type": "image", "data": DATA, "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": SOUND, "mimeType": "audio/wav"}
CAPTION = {"type": "text", "text": "The map"}
MIXED = [CAPTION, IMAGE, {"type": "text", "text": "and the horn"}, AUDIO]
# A script in which the model calls the tool that returns the image, and then answers.
SHOWING = (ModelTurn(calls=[("show", {})]), "ok")


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


def giving(session: Session, result: Any) -> None:
    async def show() -> Any:
        """Return a result."""
        return result

    session.tools.add(show)


# Detection of image and audio blocks


@pytest.mark.parametrize(
    "block",
    [
        IMAGE,
        {"type": "image", "data": DATA, "mime_type": "image/png", "annotations": None},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
        {"type": "image_url", "image_url": f"data:image/png;charset=x;base64,{DATA}"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}", "detail": "auto"},
        {"type": "image", "image_url": f"data:image/png;base64,{DATA}", "file_id": None},
        {"type": "image", "base64": DATA, "mime_type": "image/png"},
        {"type": "image", "source_type": "base64", "data": DATA, "mime_type": "image/png"},
        {"kind": "binary", "data": DATA, "media_type": "image/png", "vendor_metadata": None},
    ],
    ids=["mcp", "mcp-dumped", "anthropic", "chat", "chat-text", "responses", "agents", "langchain", "old", "pydantic"],
)
def test_image_is_detected_in_any_form(block):
    """MCP, providers and frameworks have different formats for the same image."""
    assert Media("image", "image/png", data=DATA) == parse_media(block)
    assert PNG == parse_media(block).content


@pytest.mark.parametrize(
    "block",
    [
        AUDIO,
        {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}},
        {"type": "audio", "base64": SOUND, "mime_type": "audio/wav"},
        {"kind": "binary", "data": SOUND, "media_type": "audio/wav"},
    ],
)
def test_audio_is_detected_in_any_form(block):
    """As for images."""
    assert Media("audio", "audio/wav", data=SOUND) == parse_media(block)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    ],
)
def test_image_url_is_preserved(block):
    """An image that the provider fetches itself is passed as a URL."""
    assert Media("image", url="https://example.org/a.png") == parse_media(block)


@pytest.mark.parametrize(
    "data",
    [
        {"type": "image", "url": "https://example.org/a.png", "title": "A record"},
        {"type": "image", "name": "map"},
        {"type": "image", "data": "no type"},
        {"type": "struct", "data": DATA, "mimeType": "image/png"},
        {"type": ["image"], "data": DATA, "mimeType": "image/png"},
        {"type": "image", "data": 5, "mimeType": "image/png"},
        {},
        [],
        None,
        "image",
    ],
)
def test_record_with_type_and_url_is_no_image(data):
    """Data with a type and a URL, as in lists of pictures, stays data."""
    assert parse_media(data) is None


@given(block=st.recursive(st.none() | st.text(max_size=5), lambda i: st.lists(i) | st.dictionaries(st.sampled_from(["type", "kind", "data", "source", "image_url", "url", "image", "mimeType"]), i)))  # fmt: skip
def test_media_detection_never_raises(block):
    """Any tool result is inspected without an error."""
    assert parse_media(block) is None or isinstance(parse_media(block), Media)


def test_invalid_base64_has_no_content():
    """An invalid value is not an error."""
    assert Media("image", "image/png", data="?").content is None


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (PNG, [IMAGE]),
        (bytearray(PNG), [IMAGE]),
        (["The map", PNG], [CAPTION, IMAGE]),
        ((PNG, WAV), [IMAGE, AUDIO]),
        ([1, PNG], [1, IMAGE]),
    ],
)
def test_image_bytes_become_a_block(result, expected):
    """Bytes are detected by their signature, alone and among texts."""
    assert expected == to_content_blocks(result)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (b"", ""),
        ("{é}\r\n".encode(), "{é}\r\n"),
        (bytearray(b"\xef\xbb\xbftext"), "text"),
        ([b"a", "b", memoryview(b"c")], ["a", "b", "c"]),
        ([b"a", PNG], [{"type": "text", "text": "a"}, IMAGE]),
        (b"a\0b", [{"type": "file", "data": "YQBi", "mimeType": "application/octet-stream"}]),
    ],
)
async def test_utf8_bytes_become_text(result, expected):
    """Bytes with NUL are no text."""
    assert expected == to_content_blocks(result)
    async with Session.open() as session:
        session.tools.add(lambda: result, name="read_file")
        assert expected == await session.call("read_file", {})


@pytest.mark.parametrize("result", ["text", None, {"a": PNG}, ["a"], []])
def test_other_results_are_unchanged(result):
    """Values that are not images are unchanged."""
    assert result is to_content_blocks(result)


# Images and audio in the format of each provider


async def test_openai_responses_show_images(session):
    """Images are input_image parts of the output. Audio is not supported and is named."""
    giving(session, MIXED)
    (output,) = await openai.handle(session, [function_call()], finish_reason="completed")

    parts = (
        importlib.import_module("pydantic")
        .TypeAdapter(importlib.import_module("openai.types.responses").ResponseFunctionCallOutputItemListParam)
        .validate_python(output["output"])
    )

    assert ["input_text", "input_image", "input_text", "input_text"] == [part["type"] for part in parts]
    assert f"data:image/png;base64,{DATA}" == parts[1]["image_url"]
    assert "audio/wav" in parts[3]["text"]
    assert SOUND not in json.dumps(output)
    assert (WAV, "audio/wav") == (session.refs.get("fd:1").data, session.refs.get("fd:1").mime_type)


async def test_chat_completions_name_unsupported_media(session):
    """Tool results are text there."""
    giving(session, MIXED)
    call = {"type": "function", "id": "c", "function": {"name": "show", "arguments": "{}"}}
    (output,) = await openai.handle(session, [call], finish_reason="tool_calls")

    assert isinstance(output["content"], str)
    assert output["content"].startswith("The map\n[image/png, 25,608 bytes: cannot be shown here, and is kept as fd:1]")
    assert len(output["content"]) < 400
    assert [(PNG, "image/png"), (WAV, "audio/wav")] == [
        (one.data, one.mime_type) for one in session.refs.list_descriptors()
    ]


async def test_anthropic_shows_images(session):
    """Images are image blocks of the result. Audio is not supported and is named."""
    giving(session, MIXED)
    (result,) = (
        await anthropic.handle(
            session, [{"type": "tool_use", "id": "c", "name": "show", "input": {}}], stop_reason="tool_use"
        )
    )["content"]

    assert ["text", "image", "text", "text"] == [block["type"] for block in result["content"]]
    assert {"type": "base64", "media_type": "image/png", "data": DATA} == result["content"][1]["source"]
    assert "audio/wav" in result["content"][3]["text"]


async def test_langchain_shows_images(session):
    """Images are LangChain's own blocks, which its models translate. Audio is named."""
    giving(session, MIXED)
    adapter = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    tool = next(tool for tool in adapter.tools(session) if tool.name == "show")
    message = await tool.ainvoke({"type": "tool_call", "id": "c", "name": "show", "args": {}})

    assert {"type": "image", "base64": DATA, "mime_type": "image/png"} == message.content[1]
    assert ["text", "image", "text", "text"] == [block["type"] for block in message.content_blocks]
    assert "audio/wav" in message.content[3]["text"]
    assert MIXED == message.artifact


async def test_pydantic_ai_shows_images_and_audio(session):
    """A model of Pydantic AI gets the framework's binary contents."""
    giving(session, MIXED)
    pydantic_ai = importlib.import_module("pydantic_ai")
    messages = importlib.import_module("pydantic_ai.messages")
    adapter = importlib.import_module("mama_structs.adapters.pydantic_ai")
    agent = pydantic_ai.Agent(ScriptedModel(*SHOWING).pydantic_ai(), toolsets=[adapter.toolset(session)])
    result = await agent.run("go")
    (returned,) = [
        part for message in result.all_messages() for part in message.parts if isinstance(part, messages.ToolReturnPart)
    ]

    assert ["The map", "and the horn"] == [one for one in returned.content if isinstance(one, str)]
    assert [(PNG, "image/png"), (WAV, "audio/wav")] == [
        (one.data, one.media_type) for one in returned.content if isinstance(one, pydantic_ai.BinaryContent)
    ]


async def test_agents_sdk_shows_images(session):
    """Images are the SDK's image outputs. Audio is not supported and is named."""
    giving(session, MIXED)
    agents = importlib.import_module("agents")
    adapter = importlib.import_module("mama_structs.adapters.openai_agents.toolkit")
    agent = agents.Agent(
        name="agent", model=ScriptedModel(*SHOWING).openai_agents(), tools=adapter.tools(session, strict=False)
    )
    result = await agents.Runner.run(agent, "go", run_config=agents.RunConfig(tracing_disabled=True))
    sent = result.to_input_list()[2]["output"]

    assert ["input_text", "input_image", "input_text", "input_text"] == [part["type"] for part in sent]
    assert f"data:image/png;base64,{DATA}" == sent[1]["image_url"]
    assert "audio/wav" in sent[3]["text"]


async def test_mcp_shows_images_and_audio(session):
    """A client gets the protocol's own contents."""
    giving(session, MIXED)
    mcp = importlib.import_module("mama_structs.adapters.mcp")
    client_class = importlib.import_module("mcp.client").Client
    async with client_class(mcp.server(session)) as client:
        result = await client.call_tool("show", {})

    assert ["text", "image", "text", "audio"] == [one.type for one in result.content]
    assert (DATA, "image/png") == (result.content[1].data, result.content[1].mime_type)
    assert (SOUND, "audio/wav") == (result.content[3].data, result.content[3].mime_type)


def function_call() -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "show", "arguments": "{}"}


# Images and audio in the answers of tools


@pytest.mark.parametrize("result", [IMAGE, [IMAGE], PNG, ["The map", PNG], MIXED, [CAPTION, IMAGE]])
async def test_image_is_complete_regardless_of_size(session, result):
    """Images and audio do not count in the budget and are not converted to text."""
    giving(session, result)
    answered = await answer_tool_call(session, "show", {})

    assert PNG in [part.content for part in answered.parts if isinstance(part, Media)]
    assert len(answered.text) < 100
    assert 0 == len(session.refs)


@pytest.mark.parametrize(
    ("result", "mime_type"),
    [(b"%PDF-1.7\xff", "application/pdf"), (bytes(range(256)), "application/octet-stream")],
)
async def test_other_bytes_are_stored_with_their_type(session, result, mime_type):
    """Content that no provider shows is stored unchanged and named."""
    giving(session, result)
    (output,) = await openai.handle(session, [function_call()], finish_reason="completed")

    (part,) = output["output"]
    kept = session.refs.get("fd:1")

    assert f"[{mime_type}, {len(result)} bytes: cannot be shown here, and is kept as fd:1]" == part["text"]
    assert (result, mime_type) == (kept.data, kept.mime_type)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({**IMAGE, "data": "no base64!"}, "[file: not readable]"),
        (
            {**IMAGE, "data": "PHN2Zy8+", "mimeType": "image/svg+xml"},
            "[image/svg+xml, 6 bytes: cannot be shown here, and",
        ),
    ],
    ids=["broken", "svg"],
)
async def test_unsupported_image_is_replaced_by_description(session, block, told):
    """Providers reject every request of a conversation that contains one."""
    giving(session, [CAPTION, block])
    (one,) = await openai.handle(
        session, [{"type": "function_call", "call_id": "c", "name": "show"}], finish_reason="completed"
    )
    result = await anthropic.handle(
        session, [{"type": "tool_use", "id": "t", "name": "show", "input": {}}], stop_reason="tool_use"
    )

    assert one["output"][1]["text"].startswith(told)
    assert result["content"][0]["content"][1]["text"].startswith(told)


async def test_common_wrong_mime_type_is_corrected(session):
    """Providers accept image/jpeg, and tools often return image/jpg."""
    giving(session, [{**IMAGE, "mimeType": "image/jpg"}])
    (one,) = await openai.handle(
        session, [{"type": "function_call", "call_id": "c", "name": "show"}], finish_reason="completed"
    )

    assert one["output"][0]["image_url"].startswith("data:image/jpeg;base64,")


async def test_media_is_not_stored_without_descriptors():
    """Unsupported content is only named, because no tool could read it."""
    off = Settings(descriptors=DescriptorSettings(enabled=False))
    async with Session.open(embedder=HashEmbedder(), settings=off) as session:
        giving(session, [CAPTION, AUDIO])
        (told,) = await openai.handle(
            session, [{"type": "function_call", "call_id": "c", "name": "show"}], finish_reason="completed"
        )

        assert "cannot be shown here]" in told["output"][1]["text"]
        assert 0 == len(session.refs)


async def test_media_is_named_when_quota_is_exceeded(session, monkeypatch):
    """The tool's answer does not fail because of the quota."""
    giving(session, MIXED)

    def refuse(*_arguments, **_keywords):
        raise QuotaExceeded("full", quota="max_bytes", used=1, limit=1)

    monkeypatch.setattr(session.refs, "_add_any", refuse)
    (output,) = await openai.handle(session, [function_call()], finish_reason="completed")

    assert output["output"][3]["text"].endswith("cannot be shown here]")


async def test_long_text_next_to_image_is_truncated(session):
    """Only the text counts in the budget."""
    giving(session, [{"type": "text", "text": "shields first\n" * 5_000}, IMAGE])
    answered = await answer_tool_call(session, "show", {})

    assert [str, Media] == [type(part) for part in answered.parts]
    assert len(answered.text) <= 8_000
    assert "fd:1" in answered.text


async def test_framework_image_object_is_detected(session):
    """Tools may return the objects of their frameworks."""
    contents = [
        importlib.import_module("mcp_types").ImageContent(data=DATA, mime_type="image/png"),
        importlib.import_module("pydantic_ai").BinaryContent(PNG, media_type="image/png"),
        importlib.import_module("agents").ToolOutputImage(image_url=f"data:image/png;base64,{DATA}"),
    ]

    async def show(number: int) -> Any:
        """Return a picture."""
        return contents[number]

    session.tools.add(show)
    answers = [await answer_tool_call(session, "show", {"number": number}) for number in range(3)]

    assert [[PNG]] * 3 == [[part.content for part in one.parts] for one in answers]


async def test_diagnostics_follow_image_as_text(session):
    """Diagnostics are a separate text part."""
    giving(session, [IMAGE])
    await session.observe('<ref id="my map">x')
    answered = await CallScheduler(session).answer("show", {})

    assert [Media, str] == [type(part) for part in answered.parts]
    assert answered.parts[1].startswith("<ref_notes>\n'my map' is no id")
