from __future__ import annotations

import asyncio
import json
import logging

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mama_structs import MamaStructsError, Session
from mama_structs.adapters.answers import ToolAnswer, answer, failed, offered
from mama_structs.errors import InvalidArgument, SessionClosed, UnknownTool, WrongLoop

# Opening a session takes longer than a call, and nothing that these calls do is kept.
one_session = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
async def session():
    async with Session.open() as opened:

        async def shout(text: str, times: int = 1) -> str:
            """Shout a text."""
            return text.upper() * times

        async def describe(text: str) -> dict[str, str | int]:
            """Describe a text."""
            return {"text": text, "length": len(text)}

        async def fail(text: str) -> None:
            """Fail."""
            raise RuntimeError(text)

        for function in (shout, describe, fail):
            opened.tools.add(function)
        yield opened


def error_of(answered: ToolAnswer) -> dict[str, str]:
    assert answered.is_error
    assert json.loads(answered.text) == answered.data
    return answered.data["error"]


async def test_text_is_told_as_it_is_and_data_as_json(session):
    """A model reads text without quotes, and data with letters of its own."""
    shouted = await answer(session, "shout", {"text": "가나다a"})
    described = await answer(session, "describe", {"text": "결정"})

    assert "가나다A" == shouted.text == shouted.data
    assert '{"text":"결정","length":2}' == described.text
    assert {"text": "결정", "length": 2} == described.data
    assert not shouted.is_error


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "a", "times": 2},
        '{"text": "a", "times": 2}',
        ' {"times": 2, "text": "a"}\n',
        json.dumps('{"text": "a", "times": 2}'),
    ],
)
async def test_arguments_may_be_a_mapping_or_json(session, arguments):
    """JSON text of JSON text can mean one thing only."""
    answered = await answer(session, "shout", arguments)

    assert "AA" == answered.data


@pytest.mark.parametrize("arguments", [None, "", "  \n", "{}", {}])
async def test_nothing_stands_for_no_arguments(session, arguments):
    """Providers differ in how they say that a tool without parameters was called."""
    answered = await answer(session, "list_refs", arguments)

    assert not answered.is_error


@pytest.mark.parametrize("arguments", ['{"text": "a"', "text=a", "[1]", "3", "null", '"a"', "[" * 100_000, "1" * 5000])
async def test_what_is_no_json_object_is_an_error_that_says_what_to_send(session, arguments):
    """Nothing runs, and the model is told to send an object."""
    told = error_of(await answer(session, "shout", arguments))

    assert "invalid_argument" == told["type"]
    assert told["message"].startswith("the arguments ")
    assert told["hint"].startswith("give ")
    assert len(told["message"]) < 300


async def test_wrong_arguments_are_an_error_that_names_them(session):
    """The model reads which argument was wrong, and that it may be left out."""
    told = error_of(await answer(session, "shout", {"text": "a", "times": "often"}))

    assert "times must be an integer" in told["message"]
    assert "times is optional" == told["hint"]


async def test_an_unknown_tool_is_an_error_that_names_the_nearest(session):
    """A model that invents a name is told the one that it meant."""
    told = error_of(await answer(session, "save_decision_", {}))

    assert "unknown_tool" == told["type"]
    assert "save__decision" in told["hint"]


async def test_a_hosts_failing_tool_is_an_error_for_the_model_and_a_traceback_in_the_log(session, caplog):
    """The agent goes on; who runs it finds where it failed, without what was said there."""
    with caplog.at_level(logging.ERROR, logger="mama_structs"):
        told = error_of(await answer(session, "fail", {"text": "no disk " * 1000}))

    assert told["message"].startswith("fail failed: RuntimeError: no disk ")
    assert len(told["message"]) < 1000
    (record,) = caplog.records
    assert record.getMessage().endswith("RuntimeError")
    assert f'File "{__file__}"' in record.getMessage()
    assert "no disk no disk" not in caplog.text


async def test_a_cancelled_call_is_no_answer(session):
    """Who cancels an agent's turn wants it to end, not to be told about it."""
    began = asyncio.Event()

    async def wait() -> None:
        """Wait."""
        began.set()
        await asyncio.sleep(60)

    session.tools.add(wait)
    running = asyncio.create_task(answer(session, "wait", {}))
    await began.wait()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert not (await answer(session, "shout", {"text": "a"})).is_error


async def test_a_closed_session_is_a_bug_and_raises():
    """A model could do nothing about it."""
    session = await Session.open()
    await session.close()

    with pytest.raises(SessionClosed):
        await answer(session, "list_refs", {})


async def test_another_loop_is_a_bug_and_raises(session):
    """As for a closed session."""
    with pytest.raises(WrongLoop):
        await asyncio.to_thread(lambda: asyncio.run(answer(session, "list_refs", {})))


@one_session
@given(text=st.text(st.characters(categories=["Cs", "L", "Cc"]), max_size=20))
@example(text="\ud800")
async def test_every_answer_can_be_sent(session, text):
    """Half a surrogate pair in a result does not break the client."""
    for name in ("shout", "describe"):
        for arguments in ({"text": text}, {text: text}, text):
            answered = await answer(session, name, arguments)

            assert answered.text == answered.text.encode().decode()


def test_an_error_tells_type_message_and_hint_and_no_more_than_a_model_needs():
    """A missing hint is left out, and a long message is cut."""
    assert {"error": {"type": "error", "message": "m"}} == failed(MamaStructsError("m")).data
    assert {"type", "message", "hint"} == failed(InvalidArgument("m", hint="h")).data["error"].keys()
    assert 1000 == len(failed(InvalidArgument("m" * 5000)).data["error"]["message"])
    assert "there is no tool named 'x'" == failed(UnknownTool("x")).data["error"]["message"]


async def test_a_name_given_twice_is_refused(session):
    """Which of the two a model meant nobody knows, so nothing runs."""
    answered = await answer(session, "shout", '{"text": "use A", "text": "use B"}')

    assert answered.is_error
    assert "given twice" in answered.text


async def test_a_result_without_a_text_is_an_answer(session):
    """A number of thousands of digits has no JSON text; the model is told that the work was done."""

    async def enormous() -> int:
        """Count."""
        return 10**5000

    session.tools.add(enormous)
    answered = await answer(session, "enormous", {})

    assert answered.is_error
    assert "has done its work" in answered.data["error"]["message"]


async def test_an_error_of_the_tools_for_refs_is_an_error(session):
    """What they answer in XML a client sees as an error, too."""
    answered = await answer(session, "read_fd", {"fd": "fd:7"})

    assert answered.is_error
    assert answered.text.startswith("<fd_error")
    assert "not_found" == answered.data["error"]["type"]


async def test_tools_are_named_as_on_the_wire_in_what_we_say_ourselves(session):
    """Descriptions, notes and errors name tools as the model knows them; what a memory says stays as it is."""
    saved = await answer(session, "save__insight", {"content": "call save/decision first"})
    found = await answer(session, "search__recent", {})
    unknown = await answer(session, "load__context", {"id": "nothing"})
    empty = await answer(session, "load__checkpoint", {})

    assert not saved.is_error
    assert "call save/decision first" == found.data["found"][0]["content"]
    assert "search__" in unknown.text
    assert "search__recent" in empty.data["note"]
    assert not [tool for _, tool in offered(session) if "save/" in tool.description]


@pytest.mark.parametrize("name", ["save/insight", "save__insight"])
@pytest.mark.parametrize(
    "arguments", [{"content": "it rains"}, '{"content": "it rains"}', '"{\\"content\\": \\"it rains\\"}"']
)
async def test_a_session_takes_both_spellings_json_text_and_tools_that_are_not_shown(session, name, arguments):
    """`Session.call` takes what a model sends as it comes, for a tool that its message has hidden, too."""
    shown = {tool.name for tool in session.tools_for("continue from yesterday")}
    saved = await session.call(name, arguments)
    answered = await answer(session, name, arguments)

    assert "save/insight" not in shown
    assert saved["id"] == answered.data["id"]
    assert "it rains" == (await session.memories.get(saved["id"])).content


async def test_a_session_says_what_is_wrong_with_json_text_and_with_names(session):
    """Text that is no JSON object is refused, and an unknown tool is answered with the nearest."""
    for text in ("{", "[1]", "3"):
        with pytest.raises(InvalidArgument, match="the arguments "):
            await session.call("list_refs", text)
    with pytest.raises(UnknownTool) as raised:
        await session.call("save__decison", {})

    assert "save/decision" in raised.value.hint
    assert isinstance(await session.call("list_refs", ""), str)
