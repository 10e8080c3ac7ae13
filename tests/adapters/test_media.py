"""Images and audio that tools give: as each provider understands them, never as text, and not in the budget."""

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
from mama_structs.adapters.shared.tool_results import Turns, answer
from mama_structs.errors import QuotaExceeded
from mama_structs.refs.messages.media import Media, media_in, with_blocks
from mama_structs.testing.scripted_model import ModelTurn, ScriptedModel

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 100
WAV = b"RIFF\x00\x00\x00\x00WAVE" + bytes(20_000)
DATA, SOUND = base64.b64encode(PNG).decode(), base64.b64encode(WAV).decode()
IMAGE = {"type": "image", "data": DATA, "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": SOUND, "mimeType": "audio/wav"}
CAPTION = {"type": "text", "text": "The map"}
MIXED = [CAPTION, IMAGE, {"type": "text", "text": "and the horn"}, AUDIO]
# What a model does to see it.
SHOWING = (ModelTurn(calls=[("show", {})]), "ok")


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


def giving(session: Session, result: Any) -> None:
    async def show() -> Any:
        """Show."""
        return result

    session.tools.add(show)


# Which blocks are images and audio


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
def test_an_image_in_any_form_is_known(block):
    """MCP, providers and frameworks write the same image in their own ways."""
    assert Media("image", "image/png", data=DATA) == media_in(block)
    assert PNG == media_in(block).content


@pytest.mark.parametrize(
    "block",
    [
        AUDIO,
        {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}},
        {"type": "audio", "base64": SOUND, "mime_type": "audio/wav"},
        {"kind": "binary", "data": SOUND, "media_type": "audio/wav"},
    ],
)
def test_audio_in_any_form_is_known(block):
    """As for images."""
    assert Media("audio", "audio/wav", data=SOUND) == media_in(block)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    ],
)
def test_an_image_elsewhere_keeps_its_address(block):
    """What a provider would fetch itself is passed on as an address."""
    assert Media("image", url="https://example.org/a.png") == media_in(block)


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
def test_a_record_is_no_image(data):
    """Data that has a type and an address, as lists of pictures do, stays data."""
    assert media_in(data) is None


@given(block=st.recursive(st.none() | st.text(max_size=5), lambda i: st.lists(i) | st.dictionaries(st.sampled_from(["type", "kind", "data", "source", "image_url", "url", "image", "mimeType"]), i)))  # fmt: skip
def test_no_data_is_too_odd(block):
    """Whatever a tool gives is looked at without an error."""
    assert media_in(block) is None or isinstance(media_in(block), Media)


def test_what_is_no_base64_has_no_content():
    """A claim that does not hold is no error."""
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
def test_bytes_that_are_an_image_are_a_block(result, expected):
    """Bytes are known by how they begin, alone and among texts."""
    assert expected == with_blocks(result)


@pytest.mark.parametrize("result", [b"", b"text", "text", None, {"a": PNG}, [b"text"], ["a"], []])
def test_other_results_are_left_alone(result):
    """What is no image stays what it is."""
    assert result is with_blocks(result)


# As each provider understands them


async def test_openai_responses_show_images(session):
    """Images are input_image parts of the output; audio, which it does not take, is named."""
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


async def test_chat_completions_name_what_they_do_not_take(session):
    """Results of tools are texts there."""
    giving(session, MIXED)
    call = {"type": "function", "id": "c", "function": {"name": "show", "arguments": "{}"}}
    (output,) = await openai.handle(session, [call], finish_reason="tool_calls")

    assert isinstance(output["content"], str)
    assert output["content"].startswith("The map\n[image/png, 25,608 bytes: cannot be shown here, and is kept as fd:1]")
    assert len(output["content"]) < 400
    assert [(PNG, "image/png"), (WAV, "audio/wav")] == [(one.data, one.mime_type) for one in session.refs.descriptors()]


async def test_anthropic_shows_images(session):
    """Images are image blocks of the result; audio, which it does not take, is named."""
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
    """Images are blocks as LangChain itself writes them, which its models translate; audio is named."""
    giving(session, MIXED)
    adapter = importlib.import_module("mama_structs.adapters.langchain.toolkit")
    tool = next(tool for tool in adapter.tools(session) if tool.name == "show")
    message = await tool.ainvoke({"type": "tool_call", "id": "c", "name": "show", "args": {}})

    assert {"type": "image", "base64": DATA, "mime_type": "image/png"} == message.content[1]
    assert ["text", "image", "text", "text"] == [block["type"] for block in message.content_blocks]
    assert "audio/wav" in message.content[3]["text"]
    assert MIXED == message.artifact


async def test_pydantic_ai_shows_images_and_audio(session):
    """A model of Pydantic AI gets its own binary contents."""
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


async def test_the_agents_sdk_shows_images(session):
    """Images are the SDK's image outputs; audio, which it does not take, is named."""
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


# In what a tool answers


@pytest.mark.parametrize("result", [IMAGE, [IMAGE], PNG, ["The map", PNG], MIXED, [CAPTION, IMAGE]])
async def test_an_image_comes_whole_whatever_its_size(session, result):
    """Images and audio do not count in the budget, and nothing of them is text."""
    giving(session, result)
    answered = await answer(session, "show", {})

    assert PNG in [part.content for part in answered.parts if isinstance(part, Media)]
    assert len(answered.text) < 100
    assert 0 == len(session.refs)


@pytest.mark.parametrize(
    ("result", "mime_type"),
    [(b"%PDF-1.7\xff", "application/pdf"), (bytes(range(256)), "application/octet-stream")],
)
async def test_other_bytes_are_kept_with_their_type(session, result, mime_type):
    """What no provider shows is kept as it came, and named."""
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
async def test_an_image_for_which_a_request_would_be_refused_is_named(session, block, told):
    """One of them, and a provider answers none of the conversation any more."""
    giving(session, [CAPTION, block])
    (one,) = await openai.handle(
        session, [{"type": "function_call", "call_id": "c", "name": "show"}], finish_reason="completed"
    )
    result = await anthropic.handle(
        session, [{"type": "tool_use", "id": "t", "name": "show", "input": {}}], stop_reason="tool_use"
    )

    assert one["output"][1]["text"].startswith(told)
    assert result["content"][0]["content"][1]["text"].startswith(told)


async def test_a_type_that_many_write_wrongly_is_put_right(session):
    """Providers take image/jpeg, and tools often say image/jpg."""
    giving(session, [{**IMAGE, "mimeType": "image/jpg"}])
    (one,) = await openai.handle(
        session, [{"type": "function_call", "call_id": "c", "name": "show"}], finish_reason="completed"
    )

    assert one["output"][0]["image_url"].startswith("data:image/jpeg;base64,")


async def test_without_descriptors_nothing_is_kept_for_a_tool_that_is_not_there():
    """What cannot be shown is named only: no tool could read it."""
    off = Settings(descriptors=DescriptorSettings(enabled=False))
    async with Session.open(embedder=HashEmbedder(), settings=off) as session:
        giving(session, [CAPTION, AUDIO])
        (told,) = await openai.handle(
            session, [{"type": "function_call", "call_id": "c", "name": "show"}], finish_reason="completed"
        )

        assert "cannot be shown here]" in told["output"][1]["text"]
        assert 0 == len(session.refs)


async def test_an_image_without_room_is_named(session, monkeypatch):
    """A tool's work is never lost for our sake."""
    giving(session, MIXED)

    def refuse(*_arguments, **_keywords):
        raise QuotaExceeded("full", quota="max_bytes", used=1, limit=1)

    monkeypatch.setattr(session.refs, "add_any", refuse)
    (output,) = await openai.handle(session, [function_call()], finish_reason="completed")

    assert output["output"][3]["text"].endswith("cannot be shown here]")


async def test_a_long_text_beside_an_image_is_shortened(session):
    """What counts is the text."""
    giving(session, [{"type": "text", "text": "shields first\n" * 5_000}, IMAGE])
    answered = await answer(session, "show", {})

    assert [str, Media] == [type(part) for part in answered.parts]
    assert len(answered.text) <= 8_000
    assert "fd:1" in answered.text


async def test_an_image_of_a_framework_is_known(session):
    """Tools may give the objects of the frameworks that they were written for."""
    contents = [
        importlib.import_module("mcp_types").ImageContent(data=DATA, mime_type="image/png"),
        importlib.import_module("pydantic_ai").BinaryContent(PNG, media_type="image/png"),
        importlib.import_module("agents").ToolOutputImage(image_url=f"data:image/png;base64,{DATA}"),
    ]

    async def show(number: int) -> Any:
        """Show."""
        return contents[number]

    session.tools.add(show)
    answers = [await answer(session, "show", {"number": number}) for number in range(3)]

    assert [[PNG]] * 3 == [[part.content for part in one.parts] for one in answers]


async def test_notes_stand_behind_an_image(session):
    """A note on a mark is a text of its own."""
    giving(session, [IMAGE])
    await session.observe('<ref id="my map">x')
    answered = await Turns(session).answer("show", {})

    assert [Media, str] == [type(part) for part in answered.parts]
    assert answered.parts[1].startswith("<ref_notes>\n'my map' is no id")
