"""A handle in a plain text argument is replaced with its content, for any schema."""

import json
import logging
import re
from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mama_structs import RefStore, Session, Tool
from mama_structs.adapters import openai
from mama_structs.adapters.shared import tool_results as answers
from mama_structs.adapters.shared.tool_schemas import to_strict_schema
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidParameter, InvalidRange
from mama_structs.tools.pass_by_reference import substitute_handles

CODE = "def parse(text):\n    return {{text}}\n\n# ref:code {{ref:code}}"
WORDS = st.lists(
    st.sampled_from(["{{", "}}", "ref:", "ref:code", "fd:1", "\\", ":1-2", "{{ref:code", "{{fd:1}}", " ", "x", "\n"]),
    max_size=9,
).map("".join)


async def take(
    text: str,
    *,
    texts: list[str] | None = None,
    maybe: str | int | None = None,
    kind: Literal["ref:code", "x"] = "x",
    narrow: Annotated[str, msgspec.Meta(pattern="^ref:|^fd:|x")] = "x",
    anything: Any = None,
    data: bytes = b"",
    nested: dict[str, str] | None = None,
) -> dict:
    """Return the arguments."""
    return {
        "text": text, "texts": texts, "maybe": maybe, "kind": kind, "narrow": narrow, "anything": anything,
        "data": data.decode(), "nested": nested,
    }  # fmt: skip


TAKE = Tool.from_function(take)


@pytest.fixture
async def session():
    async with Session.open() as opened:
        opened.tools.add(take)
        opened.refs.put("code", CODE)
        opened.refs.add("one\r\ntwo\r\nthree\r\n")
        yield opened


async def test_call_replaces_text_that_is_exactly_a_handle(session):
    """Handles are replaced in each parameter that accepts any text, and in lists of texts."""
    got = await session.call("take", {"text": "ref:code", "texts": ["fd:1", "ref:code@1", "x"], "maybe": "fd:1"})

    assert CODE == got["text"]
    assert ["one\r\ntwo\r\nthree\r\n", CODE, "x"] == got["texts"]
    assert "one\r\ntwo\r\nthree\r\n" == got["maybe"]


async def test_call_replaces_refs_inside_longer_text(session):
    """Inserted text is not searched for handles."""
    asked = "a {{ref:code}} b {{ref:code:1-2}} c {{ref:code@1:4}} d {{ref:code:3-99}}"
    lines = CODE.split("\n")
    expected = f"a {CODE} b {lines[0]}\n{lines[1]} c {lines[3]} d {lines[2]}\n{lines[3]}"

    assert expected == (await session.call("take", {"text": asked}))["text"]


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("\\ref:code", "ref:code"),
        ("\\\\fd:1", "\\fd:1"),
        ("\\{{ref:code}}", "{{ref:code}}"),
        ("a \\{{ref:code}} \\{{ref: x", "a {{ref:code}} {{ref: x"),
        ("{{fd:1}}", "{{fd:1}}"),
        (
            "{{ ref:code }} {{x}} {{ref:}} {{ref:a b}} {{ref:code:x}}",
            "{{ ref:code }} {{x}} {{ref:}} {{ref:a b}} {{ref:code:x}}",
        ),
        ("see ref:code", "see ref:code"),
        ("ref:{{ref:code:1}}", "ref:def parse(text):"),
        ("ref:code\n", "ref:code\n"),
        ("ref: a note", "ref: a note"),
        ("\\{{x}}", "\\{{x}}"),
    ],
)
async def test_call_keeps_escaped_and_invalid_handles(session, asked, given):
    """Handles of outside texts (``fd:``) are not replaced inside a longer text."""
    assert given == (await session.call("take", {"text": asked}))["text"]


async def test_call_keeps_handles_in_restricted_parameters(session):
    """Restricted are enums, patterns, bytes, values of any type, and objects."""
    asked = {"text": "x", "kind": "ref:code", "narrow": "ref:code", "anything": ["ref:code"], "nested": {"a": "fd:1"}}
    got = await session.call("take", asked)

    assert asked == {name: got[name] for name in asked}


@given(text=WORDS)
@example(text="\\{{ref:code}}{{ref:code}}")
def test_substitution_returns_any_escaped_text_unchanged(text):
    store = RefStore()
    store.put("code", CODE)
    store.add("one\n")
    bare = re.fullmatch(r"\\*(ref:\w+|fd:[1-9][0-9]*)", text)
    escaped = f"\\{text}" if bare else text.replace("{{ref:", "\\{{ref:")

    assert text == substitute_handles({"text": escaped}, TAKE, store.get).arguments["text"]


async def test_unknown_handle_error_shows_escaped_form(session):
    for asked in ("ref:cod", "a {{ref:cod:1-2}}", {"$ref": "ref:cod"}):
        with pytest.raises(HandleNotFound) as caught:
            await session.call("take", {"text": asked})
        assert "nearest: ref:code" in str(caught.value)
        assert str(caught.value).endswith("\\ref:cod)")
    with pytest.raises(InvalidRange, match="no lines 7 to 9"):
        await session.call("take", {"text": "{{ref:code:7-9}}"})


async def test_call_rejects_handle_of_binary_content(session):
    handle = session.refs.add(b"\x89PNG\r\n\x1a\n", mime_type="image/png").handle
    with pytest.raises(InvalidParameter, match="image/png"):
        await session.call("take", {"text": handle})


async def test_call_limits_inserted_text_to_a_million_characters(session):
    """A handle alone has no limit."""
    session.refs.put("big", "x" * 300_000)
    await session.refs.run_in_thread(lambda refs: refs.add("y" * 2_000_000))
    assert 900_002 == len(
        session.resolve_arguments("take", {"text": "{{ref:big}} {{ref:big}} {{ref:big}}"}).arguments["text"]
    )
    with pytest.raises(InvalidArgument, match="more than 1,000,000 characters"):
        await session.call("take", {"text": "{{ref:big}}{{ref:big}}", "texts": ["{{ref:big}}", "a {{ref:big}}"]})
    assert 2_000_000 == len(session.resolve_arguments("take", {"text": "fd:2"}).arguments["text"])


async def test_inserted_handles_are_named_in_log_approval_and_answer(session, caplog):
    asked = {"text": "{{ref:code}}", "texts": ["fd:1"]}
    resolved = session.resolve_arguments("take", json.dumps(asked))
    with caplog.at_level(logging.INFO, logger="mama_structs"):
        answer = await answers.answer_tool_call(session, "take", asked)

    assert ("ref:code@1", "fd:1") == resolved.handles
    assert {"text": CODE, "texts": ["one\r\ntwo\r\nthree\r\n"]} == resolved.arguments
    assert "take got the text of ref:code@1, fd:1" in caplog.text
    assert "take got the text of ref:code@1, fd:1" in answer.text
    assert "return" not in caplog.text + repr(resolved)


async def test_tools_that_resolve_handles_receive_the_handle(session):
    """These are the memory tools, the ref tools, and a host's tools with ``resolve=False``."""
    session.tools.add(attrs.evolve(TAKE, name="raw", resolves_handles=False))
    assert "ref:code" == (await session.call("raw", {"text": "ref:code"}))["text"]
    assert CODE == (await session.call("raw", {"text": {"$ref": "ref:code"}}))["text"]
    saving = {
        "save/decision",
        "save/checkpoint",
        "save/insight",
        "evolve/outcome",
        "evolve/supersede",
        "evolve/correct",
    }
    assert {"take", *saving} == {name for name, tool in session.tools.items() if tool.resolves_handles}
    await session.call("put_ref", {"ref_id": "note", "text": "fd:1"})
    assert "fd:1" == session.refs.get("note").text


async def test_call_replaces_handle_in_argument_with_similar_name(session):
    assert CODE == (await session.call("take", {"Text": "ref:code"}))["text"]


@pytest.mark.parametrize("nullable", [True, False])
async def test_call_replaces_handles_with_strict_schema(session, nullable):
    async def check(source: str, others: list[str] | None = None) -> list[int]:
        """Return the lengths of texts."""
        return [len(source), *map(len, others or ())]

    tool = session.tools.add(check)
    schema = to_strict_schema(tool.input_schema, nullable=nullable)
    asked = {"source": "ref:code", "others": ["{{ref:code:1}}", "fd:1"]}

    assert not Draft202012Validator(schema).is_valid({"source": {"$ref": "ref:code"}, "others": None})
    Draft202012Validator(schema).validate(asked)
    assert [len(CODE), 16, 17] == await session.call("check", asked)


async def test_call_resolves_ref_of_the_same_answer(session):
    message = {
        "role": "assistant",
        "content": '<ref id="fresh">\nx = 1\n</ref>',
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "take", "arguments": '{"text": "ref:fresh"}'}}
        ],
    }
    (told,) = await openai.handle(session, message, finish_reason="tool_calls")

    assert "x = 1" in told["content"]
