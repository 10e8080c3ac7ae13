from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging

import pydantic
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mama_structs import MamaStructsError, Session, Settings, with_descriptors
from mama_structs._internal.jsonable import to_answer, to_jsonable
from mama_structs.adapters import openai
from mama_structs.adapters.anthropic import messages as anthropic
from mama_structs.adapters.shared.tool_results import ToolAnswer, answer_tool_call, create_error_answer, list_wire_tools
from mama_structs.errors import InvalidArgument, SessionClosed, UnknownTool, WrongLoop
from mama_structs.settings import AnswerSettings

# All examples share one session, because opening a session is slow and these calls store nothing.
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
            """Raise an error."""
            raise RuntimeError(text)

        for function in (shout, describe, fail):
            opened.tools.add(function)
        yield opened


def error_of(answered: ToolAnswer) -> dict[str, str]:
    assert answered.is_error
    assert json.loads(answered.text) == answered.data
    return answered.data["error"]


async def test_answer_returns_text_unchanged_and_data_as_json(session):
    """Text has no quotes, and JSON keeps non-ASCII letters."""
    shouted = await answer_tool_call(session, "shout", {"text": "가나다a"})
    described = await answer_tool_call(session, "describe", {"text": "결정"})

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
async def test_answer_accepts_arguments_as_mapping_or_json(session, arguments):
    """JSON in a JSON string is unambiguous, too."""
    answered = await answer_tool_call(session, "shout", arguments)

    assert "AA" == answered.data


@pytest.mark.parametrize("arguments", [None, "", "  \n", "{}", {}])
async def test_answer_accepts_empty_arguments(session, arguments):
    """Providers encode a call without arguments differently."""
    answered = await answer_tool_call(session, "list_refs", arguments)

    assert not answered.is_error


@pytest.mark.parametrize("arguments", ['{"text": "a"', "text=a", "[1]", "3", "null", '"a"', "[" * 100_000, "1" * 5000])
async def test_answer_rejects_arguments_that_are_no_json_object(session, arguments):
    """The tool does not run, and the error asks for an object."""
    told = error_of(await answer_tool_call(session, "shout", arguments))

    assert "invalid_argument" == told["type"]
    assert told["message"].startswith("the arguments ")
    assert told["hint"].startswith("give ")
    assert len(told["message"]) < 300


async def test_answer_error_names_wrong_arguments(session):
    """The error names the argument and says that it is optional."""
    told = error_of(await answer_tool_call(session, "shout", {"text": "a", "times": "often"}))

    assert "times must be an integer" in told["message"]
    assert "times is optional" == told["hint"]


async def test_answer_error_suggests_nearest_tool_when_name_is_unknown(session):
    """A model that invents a name gets a suggestion."""
    told = error_of(await answer_tool_call(session, "save_decision_", {}))

    assert "unknown_tool" == told["type"]
    assert "save__decision" in told["hint"]


async def test_answer_reports_host_tool_failure_and_logs_traceback(session, caplog):
    """The agent continues. The log has the location of the error without user data."""
    with caplog.at_level(logging.ERROR, logger="mama_structs"):
        told = error_of(await answer_tool_call(session, "fail", {"text": "no disk " * 1000}))

    assert told["message"].startswith("fail failed: RuntimeError: no disk ")
    assert len(told["message"]) < 1000
    (record,) = caplog.records
    assert record.getMessage().endswith("RuntimeError")
    assert f'File "{__file__}"' in record.getMessage()
    assert "no disk no disk" not in caplog.text


async def test_answer_propagates_cancellation(session):
    """Cancelling an agent's turn must end it instead of creating an error answer."""
    began = asyncio.Event()

    async def wait() -> None:
        """Wait for a minute."""
        began.set()
        await asyncio.sleep(60)

    session.tools.add(wait)
    running = asyncio.create_task(answer_tool_call(session, "wait", {}))
    await began.wait()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert not (await answer_tool_call(session, "shout", {"text": "a"})).is_error


async def test_answer_raises_when_session_is_closed():
    """It is a bug of the host, so it is not reported to the model."""
    session = await Session.open()
    await session.close()

    with pytest.raises(SessionClosed):
        await answer_tool_call(session, "list_refs", {})


async def test_answer_raises_in_another_event_loop(session):
    """It is a bug of the host, too."""
    with pytest.raises(WrongLoop):
        await asyncio.to_thread(lambda: asyncio.run(answer_tool_call(session, "list_refs", {})))


@one_session
@given(text=st.text(st.characters(categories=["Cs", "L", "Cc"]), max_size=20))
@example(text="\ud800")
async def test_answer_replaces_lone_surrogates(session, text):
    """A lone surrogate in a result must not break the client."""
    for name in ("shout", "describe"):
        for arguments in ({"text": text}, {text: text}, text):
            answered = await answer_tool_call(session, name, arguments)

            assert answered.text == answered.text.encode().decode()


def test_error_answer_has_type_message_and_hint():
    """A missing hint is omitted, and a long message is truncated."""
    assert {"error": {"type": "error", "message": "m"}} == create_error_answer(MamaStructsError("m")).data
    assert {"type", "message", "hint"} == create_error_answer(InvalidArgument("m", hint="h")).data["error"].keys()
    assert 1000 == len(create_error_answer(InvalidArgument("m" * 5000)).data["error"]["message"])
    assert "there is no tool named 'x'" == create_error_answer(UnknownTool("x")).data["error"]["message"]


async def test_answer_rejects_duplicate_argument_names(session):
    """The model's intention is unknown, so the tool does not run."""
    answered = await answer_tool_call(session, "shout", '{"text": "use A", "text": "use B"}')

    assert answered.is_error
    assert "given twice" in answered.text


async def test_answer_replaces_number_without_text(session):
    """An integer with thousands of digits has no JSON text. The answer says that the tool has run."""

    async def enormous() -> int:
        """Return a number that is too large for JSON."""
        return 10**5000

    session.tools.add(enormous)
    answered = await answer_tool_call(session, "enormous", {})

    assert not answered.is_error
    assert "[int: not shown, has no JSON form; the tool has run]" == answered.text


async def test_answer_of_ref_tool_error_is_marked_as_error(session):
    """Their XML error answers are reported as errors."""
    answered = await answer_tool_call(session, "read_fd", {"fd": "fd:7"})

    assert answered.is_error
    assert answered.text.startswith("<fd_error")
    assert "not_found" == answered.data["error"]["type"]


async def test_answer_uses_wire_names_in_package_texts(session):
    """Descriptions, notes and errors use wire names. The text of a memory is unchanged."""
    saved = await answer_tool_call(session, "save__insight", {"content": "call save/decision first"})
    found = await answer_tool_call(session, "search__recent", {})
    unknown = await answer_tool_call(session, "load__context", {"id": "nothing"})
    empty = await answer_tool_call(session, "load__checkpoint", {})

    assert not saved.is_error
    assert "call save/decision first" == found.data["found"][0]["content"]
    assert "search__" in unknown.text
    assert "search__recent" in empty.data["note"]
    assert not [tool for _, tool in list_wire_tools(session) if "save/" in tool.description]


@pytest.mark.parametrize("name", ["save/insight", "save__insight"])
@pytest.mark.parametrize(
    "arguments", [{"content": "it rains"}, '{"content": "it rains"}', '"{\\"content\\": \\"it rains\\"}"']
)
async def test_session_call_accepts_wire_names_json_and_hidden_tools(session, name, arguments):
    """`Session.call` accepts the model's output directly, also for a tool that is currently hidden."""
    shown = {tool.name for tool in session.tools_for("continue from yesterday")}
    saved = await session.call(name, arguments)
    answered = await answer_tool_call(session, name, arguments)

    assert "save/insight" not in shown
    assert saved["id"] == answered.data["id"]
    assert "it rains" == (await session.memories.get(saved["id"])).content


async def test_session_call_error_explains_invalid_json_and_unknown_name(session):
    """JSON that is not an object is rejected, and an unknown tool gets a suggestion."""
    for text in ("{", "[1]", "3"):
        with pytest.raises(InvalidArgument, match="the arguments "):
            await session.call("list_refs", text)
    with pytest.raises(UnknownTool) as raised:
        await session.call("save__decison", {})

    assert "save/decision" in raised.value.hint
    assert isinstance(await session.call("list_refs", ""), str)


# Errors that state whether the tool has run


class Ticket(pydantic.BaseModel):
    """A model with one field that pydantic cannot serialize."""

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    number: int
    link: object


class Refusing(dict):
    """A mapping whose `items` method raises an error. The error message contains a secret."""

    def items(self):
        raise RuntimeError("secret")


LEAF = "[object: not shown, has no JSON form; the tool has run]"


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"charged": 5, "link": object()}, {"charged": 5, "link": LEAF}),
        ([1, [object()], 2], [1, [LEAF], 2]),
        (Ticket(number=7, link=object()), {"number": 7, "link": LEAF}),
        ({"a": Refusing(), "b": 1}, {"a": LEAF.replace("object", "Refusing"), "b": 1}),
        ({"huge": 10**5000, "b": 1}, {"huge": LEAF.replace("object", "int"), "b": 1}),
        ({(1, 2): "pair", (3, 4): "other", "b": 1}, {"[tuple]": "pair", "[tuple]_": "other", "b": 1}),
        ({1: "number", "1": "text"}, {"1": "number", "1_": "text"}),
        ({"half": "\ud800"}, {"half": "?"}),
    ],
)
async def test_answer_replaces_only_part_without_json_form(session, result, shown):
    """The rest of the result is included, and the placeholder says that the tool has run."""
    runs = []

    async def charge() -> object:
        runs.append(1)
        return result

    session.tools.add(charge)
    answered = await answer_tool_call(session, "charge", {})

    assert shown == json.loads(answered.text)
    assert not answered.is_error
    assert "secret" not in answered.text
    assert 1 == len(runs)


async def test_answer_replaces_cycles_and_depth(session):
    """A cyclic or too deeply nested result is included up to the limit."""
    cycle = {"id": 1}
    cycle["self"] = cycle
    deep = []
    for _ in range(5_000):
        deep = [deep]

    async def give(which: str) -> object:
        return cycle if which == "cycle" else {"id": 1, "deep": deep}

    session.tools.add(give)

    for which, key in (("cycle", "self"), ("deep", "deep")):
        answered = await answer_tool_call(session, "give", {"which": which})
        assert 1 == answered.data["id"]
        assert "not shown, has no JSON form; the tool has run" in json.dumps(answered.data[key])
        assert not answered.is_error


@one_session
@given(
    value=st.recursive(
        st.integers() | st.text(max_size=3) | st.builds(object) | st.just(1j) | st.builds(Refusing),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=2) | st.integers() | st.tuples(st.integers()), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
async def test_to_answer_never_raises_and_keeps_json_parts(value):
    """Every result becomes JSON. If `to_jsonable` accepts it, both results are equal."""
    shown = to_answer(value)

    json.dumps(shown)
    with contextlib.suppress(MamaStructsError, RuntimeError):
        assert to_jsonable(value) == shown


NOT_RUN, MAY_HAVE_RUN = "the tool was not run", "the tool may have run"


async def test_answer_says_that_tool_may_have_run_when_it_raises(session):
    """An error after the start of a tool may come after side effects, whatever its type."""

    async def charge(amount: int) -> str:
        raise (InvalidArgument if amount else RuntimeError)("declined")

    def refund(amount: int) -> str:
        raise KeyError("declined")

    session.tools.add(charge)
    session.tools.add(refund)

    for name, amount in (("charge", 0), ("charge", 1), ("refund", 1)):
        error = error_of(await answer_tool_call(session, name, {"amount": amount}))
        assert "declined" in error["message"]
        assert error["status"].startswith(MAY_HAVE_RUN)


async def test_answer_names_type_of_exception_whose_text_raises(session):
    """The answer does not depend on the ``__str__`` of the tool's exception."""

    class Declined(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def charge() -> str:
        raise Declined

    session.tools.add(charge)
    error = error_of(await answer_tool_call(session, "charge", {}))

    assert "charge failed: Declined" == error["message"]
    assert error["status"].startswith(MAY_HAVE_RUN)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("charge", {}),
        ("charge", {"amount": "many"}),
        ("charge", {"amount": 1, "more": 2}),
        ("charge", '{"amount": 1, "amount": 2}'),
        ("charge", "["),
        ("charge", {"amount": {"$ref": "ref:nothing"}}),
        ("charge", {"amount": 1, "include_references": "maybe"}),
        ("no_such_tool", {}),
    ],
)
async def test_answer_says_that_tool_was_not_run_when_arguments_are_wrong(session, name, arguments):
    """The status covers errors before the start of the tool or its decorator."""
    runs = []

    @session.with_references
    async def charge(amount: int) -> dict:
        runs.append(amount)
        return {}

    session.tools.add(charge)
    error = error_of(await answer_tool_call(session, name, arguments))

    assert NOT_RUN == error["status"]
    assert [] == runs


async def test_answer_says_may_have_run_when_decorated_tool_raises(session):
    """A decorator of this package does not hide that the tool started."""

    @with_descriptors
    @session.with_references
    async def charge(amount: int) -> dict:
        raise RuntimeError("declined")

    def logged(function):
        @functools.wraps(function)
        async def wrapper(**arguments):
            raise RuntimeError("the log is full, after the charge")

        return wrapper

    session.tools.add(charge)
    session.tools.add(logged(charge), name="logged")

    for name in ("charge", "logged"):
        assert error_of(await answer_tool_call(session, name, {"amount": 1}))["status"].startswith(MAY_HAVE_RUN)


async def test_answer_status_ignores_calls_by_the_tool_itself(session):
    """A tool that calls another tool and then raises has the status "may have run"."""

    async def outer() -> str:
        await session.call("shout", {"text": "a"})
        raise RuntimeError("after the inner call")

    session.tools.add(outer)

    assert error_of(await answer_tool_call(session, "outer", {}))["status"].startswith(MAY_HAVE_RUN)


async def test_answer_has_no_status_when_own_tool_reports_missing_memory(session):
    """Tools of this package are atomic, so their own errors need no status."""
    error = error_of(await answer_tool_call(session, "load__context", {"id": "nothing"}))

    assert "status" not in error


async def test_answer_keeps_result_when_counting_tokens_fails():
    """If a host's `count_tokens` raises, the answer is not truncated, but the result is not lost."""
    broken = []

    def count(text):
        if broken:
            raise RuntimeError("the tokenizer is gone")
        return len(text)

    async with Session.open(settings=Settings(answers=AnswerSettings(max_tokens=1000, count_tokens=count))) as opened:

        async def charge() -> dict:
            broken.append(1)
            return {"charged": 5}

        opened.tools.add(charge)
        answered = await answer_tool_call(opened, "charge", {})

    assert '{"charged":5}' == answered.text


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_providers_show_status_and_replaced_parts(session, provider):
    """Every provider's adapter passes the status to the model."""

    async def charge() -> dict:
        return {"charged": 5, "receipt": object()}

    session.tools.add(charge)
    calls = [("charge", {}), ("fail", {"text": "x"}), ("fail", {})]
    if provider == "openai":
        items = [
            {"type": "function_call", "call_id": f"c{at}", "name": name, "arguments": json.dumps(given), "id": f"f{at}"}
            for at, (name, given) in enumerate(calls)
        ]
        told = await openai.handle(session, {"output": items, "status": "completed", "object": "response"})
    else:
        items = [
            {"type": "tool_use", "id": f"c{at}", "name": name, "input": given} for at, (name, given) in enumerate(calls)
        ]
        told = await anthropic.handle(session, {"role": "assistant", "content": items, "stop_reason": "tool_use"})

    text = json.dumps(told)
    positions = [text.find(part) for part in ("the tool has run", MAY_HAVE_RUN, NOT_RUN)]
    assert -1 not in positions
    assert sorted(positions) == positions
