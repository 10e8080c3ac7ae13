"""Texts that are passed by their handles: as plain text, under every schema."""

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
from mama_structs.adapters.shared.tool_schemas import strict_schema
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidParameter, InvalidRange
from mama_structs.tools.pass_by_reference import passed

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
    """Take."""
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


async def test_what_is_exactly_a_handle_is_the_text(session):
    """In any parameter that takes any text, alone and in lists, whatever else it may be."""
    got = await session.call("take", {"text": "ref:code", "texts": ["fd:1", "ref:code@1", "x"], "maybe": "fd:1"})

    assert CODE == got["text"]
    assert ["one\r\ntwo\r\nthree\r\n", CODE, "x"] == got["texts"]
    assert "one\r\ntwo\r\nthree\r\n" == got["maybe"]


async def test_inside_a_longer_text_refs_are_put_in(session):
    """Whole, or the lines that are asked for; what is put in is not looked at again."""
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
async def test_everything_else_stays_as_it_came(session, asked, given):
    """A backslash keeps a handle as words; what was copied from outside does not pull in other texts from there."""
    assert given == (await session.call("take", {"text": asked}))["text"]


async def test_what_does_not_take_any_text_gets_what_was_said(session):
    """An enum, a pattern, bytes, anything at all, and what is inside of an object."""
    asked = {"text": "x", "kind": "ref:code", "narrow": "ref:code", "anything": ["ref:code"], "nested": {"a": "fd:1"}}
    got = await session.call("take", asked)

    assert asked == {name: got[name] for name in asked}


@given(text=WORDS)
@example(text="\\{{ref:code}}{{ref:code}}")
def test_every_text_can_be_said(text):
    """With a backslash in front of each handle a tool gets any text, letter for letter."""
    store = RefStore()
    store.put("code", CODE)
    store.add("one\n")
    bare = re.fullmatch(r"\\*(ref:\w+|fd:[1-9][0-9]*)", text)
    escaped = f"\\{text}" if bare else text.replace("{{ref:", "\\{{ref:")

    assert text == passed({"text": escaped}, TAKE, store.get).arguments["text"]


async def test_a_handle_that_is_not_there_says_how_to_pass_the_words(session):
    """The tool does not run, and the error gives the literal form."""
    for asked in ("ref:cod", "a {{ref:cod:1-2}}", {"$ref": "ref:cod"}):
        with pytest.raises(HandleNotFound) as caught:
            await session.call("take", {"text": asked})
        assert "nearest: ref:code" in str(caught.value)
        assert str(caught.value).endswith("\\ref:cod)")
    with pytest.raises(InvalidRange, match="no lines 7 to 9"):
        await session.call("take", {"text": "{{ref:code:7-9}}"})


async def test_bytes_are_no_text(session):
    """What a model can only see cannot be put into a text."""
    handle = session.refs.add(b"\x89PNG\r\n\x1a\n", mime_type="image/png").handle
    with pytest.raises(InvalidParameter, match="image/png"):
        await session.call("take", {"text": handle})


async def test_a_short_text_cannot_grow_without_end(session):
    """What is put into longer texts of one call has a million characters at the most; a handle alone has no limit."""
    session.refs.put("big", "x" * 300_000)
    await session.refs.run_in_thread(lambda refs: refs.add("y" * 2_000_000))
    assert 900_002 == len(session.resolved("take", {"text": "{{ref:big}} {{ref:big}} {{ref:big}}"}).arguments["text"])
    with pytest.raises(InvalidArgument, match="more than 1,000,000 characters"):
        await session.call("take", {"text": "{{ref:big}}{{ref:big}}", "texts": ["{{ref:big}}", "a {{ref:big}}"]})
    assert 2_000_000 == len(session.resolved("take", {"text": "fd:2"}).arguments["text"])


async def test_what_is_put_in_is_named(session, caplog):
    """In the log, to whoever approves of the call, and to the model with the result."""
    asked = {"text": "{{ref:code}}", "texts": ["fd:1"]}
    resolved = session.resolved("take", json.dumps(asked))
    with caplog.at_level(logging.INFO, logger="mama_structs"):
        answer = await answers.answer(session, "take", asked)

    assert ("ref:code@1", "fd:1") == resolved.handles
    assert {"text": CODE, "texts": ["one\r\ntwo\r\nthree\r\n"]} == resolved.arguments
    assert "take got the text of ref:code@1, fd:1" in caplog.text
    assert "take got the text of ref:code@1, fd:1" in answer.text
    assert "return" not in caplog.text + repr(resolved)


async def test_tools_that_take_handles_get_the_handle(session):
    """Memory and ref tools resolve by themselves, and so does a tool of the host that says so."""
    session.tools.add(attrs.evolve(TAKE, name="raw", resolve=False))
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
    assert {"take", *saving} == {name for name, tool in session.tools.items() if tool.resolve}
    await session.call("put_ref", {"ref_id": "note", "text": "fd:1"})
    assert "fd:1" == session.refs.get("note").text


async def test_an_argument_with_a_nearly_right_name_is_passed_on(session):
    """A name that can only mean one parameter is put right first."""
    assert CODE == (await session.call("take", {"Text": "ref:code"}))["text"]


@pytest.mark.parametrize("nullable", [True, False])
async def test_it_works_under_strict_schemas(session, nullable):
    """What they allow is plain text, and that is all it takes."""

    async def check(source: str, others: list[str] | None = None) -> list[int]:
        """Check."""
        return [len(source), *map(len, others or ())]

    tool = session.tools.add(check)
    schema = strict_schema(tool.input_schema, nullable=nullable)
    asked = {"source": "ref:code", "others": ["{{ref:code:1}}", "fd:1"]}

    assert not Draft202012Validator(schema).is_valid({"source": {"$ref": "ref:code"}, "others": None})
    Draft202012Validator(schema).validate(asked)
    assert [len(CODE), 16, 17] == await session.call("check", asked)


async def test_a_model_held_to_a_strict_schema_passes_a_part_of_the_same_answer(session):
    """What it marks, the call in the same answer uses."""
    message = {
        "role": "assistant",
        "content": '<ref id="fresh">\nx = 1\n</ref>',
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "take", "arguments": '{"text": "ref:fresh"}'}}
        ],
    }
    (told,) = await openai.handle(session, message, finish_reason="tool_calls")

    assert "x = 1" in told["content"]
