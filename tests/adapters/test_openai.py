from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import typing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mama_structs import Session
from mama_structs.adapters import openai as adapter
from mama_structs.errors import InvalidArgument, SessionClosed, UnknownTool
from mama_structs.testing.scripted_model import ModelRequest, ModelTurn, ScriptedModel

openai = pytest.importorskip("openai")
ChatCompletionStreamState = pytest.importorskip("openai.lib.streaming.chat").ChatCompletionStreamState

SHOUT = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "shout",
    "arguments": '{"text": "a"}',
    "status": "completed",
}
SHOUT_IN_CHAT = {"id": "call_1", "type": "function", "function": {"name": "shout", "arguments": '{"text": "a"}'}}
MESSAGE_ITEM = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": []}


# Values that resemble answers, most of them invalid.
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["function_call", "function", "assistant", "shout", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "output", "choices", "message", "tool_calls", "function", "name", "id", "call_id"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)
json_texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(["text", "fd"]), inner),
    max_leaves=5,
).map(json.dumps)


# Items that the adapter must ignore: unknown types, no type, and values that are not objects.
unknown_items = (
    st.none()
    | st.integers()
    | st.just("x")
    | st.fixed_dictionaries(
        {
            "type": st.sampled_from(["additional_tools", "made_up_later", "computer_call", ""])
            | st.none()
            | st.integers()
        },
        optional={
            "role": st.sampled_from(["developer", "user", "tool", "assistant"]),
            "content": st.none() | st.text() | st.lists(st.none() | st.text()),
            "text": st.text(),
            "status": st.sampled_from(["completed", "incomplete"]),
        },
    )
)


def mixed_with_unknown(items):
    """Return a strategy that inserts unknown items before, between and after *items*."""
    gaps = st.lists(st.lists(unknown_items, max_size=2), min_size=len(items) + 1, max_size=len(items) + 1)
    return gaps.map(
        lambda gaps: [*gaps[0], *(one for item, gap in zip(items, gaps[1:], strict=True) for one in (item, *gap))]
    )


UNFINISHED_STATUSES = ["failed", "in_progress", "cancelled", "queued", "incomplete", None]


def chat_chunks():
    """Return the chunks of a completion with one call. The first chunk's arguments are incomplete but repairable."""
    function = {"name": "shout", "arguments": '{"text": "Ada went'}
    deltas = [
        {"role": "assistant", "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ' home"}'}}]},
        {},
    ]
    common = {"id": "chatcmpl_1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    return [
        openai.types.chat.ChatCompletionChunk.model_validate(
            {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "tool_calls"}]}
        )
        for delta in deltas
    ]


# All examples share one session, because opening a session is slow and these calls store nothing.
one_session = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
async def session():
    async with Session.open() as opened:

        async def shout(text: str, times: int = 1) -> str:
            """Shout a text."""
            heard.append(text)
            return text.upper() * times

        async def keep(data: dict[str, Any]) -> int:
            """Store anything."""
            return len(data)

        heard: list[str] = []
        opened.tools.add(shout)
        opened.tools.add(keep)
        opened.heard = heard
        yield opened


def response(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "scripted",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "completed",
        **more,
    }


def completion(message: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    return {
        "id": "chatcmpl_1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [
            {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": None, **message}}
        ],
    }


# A conversation of three user messages, the same for both APIs.

REASON = "A stolen JWT could not be revoked before it expired"
USER = ["We use JWT for logins.", "JWT is out, a stolen one could not be revoked.", "Why did we leave JWT?"]


def filled(request: ModelRequest, name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a call in the strict form, in which omitted arguments are null."""
    tools = {one.get("function", one)["name"]: one.get("function", one) for one in request.options["tools"]}
    assert tools[name]["strict"] is True
    return name, {**dict.fromkeys(tools[name]["parameters"]["properties"]), **arguments}


def save(request):
    decision = {"topic": "auth", "decision": "Use JWT for logins", "reasoning": "no session store"}
    return ModelTurn(calls=[filled(request, "save__decision", decision)])


def leave(request):
    first = json.loads(request.results[0])["id"]
    instead = {"decision_id": first, "decision": "Keep sessions in Redis", "reasoning": "can be revoked"}
    failed = {"decision_id": first, "outcome": "FAILED", "reason": REASON}
    return ModelTurn(calls=[filled(request, "evolve__supersede", instead), filled(request, "evolve__outcome", failed)])


def look(request):
    return ModelTurn(calls=[filled(request, "search__by_context", {"query": "Why did we leave JWT?"})])


def explain(request):
    found = json.loads(request.results[-1])["found"]
    jwt = next(one for one in found if one["content"] == "Use JWT for logins")
    return f"We left it because: {jwt['outcome_reason']}. Since then: {jwt['in_its_place']}."


async def create_response(client, conversation, tools):
    answered = await client.responses.create(model="any", input=conversation, tools=tools)
    return answered, answered.output, answered.output_text


async def create_completion(client, conversation, tools):
    answered = await client.chat.completions.create(model="any", messages=conversation, tools=tools)
    return answered, [answered.choices[0].message], answered.choices[0].message.content


@pytest.mark.parametrize(("api", "create"), [("responses", create_response), ("chat", create_completion)])
async def test_openai_agent_finds_reason_of_failed_decision(api, create):
    """The real client with a scripted model: the reason of the failure is found in memory."""
    model = ScriptedModel(save, "Noted.", leave, "Replaced.", look, explain)
    async with Session.open() as session, model.openai() as client:
        conversation: list[Any] = []
        for user in USER:
            conversation.append({"role": "user", "content": user})
            outputs: list[Any] = [None]
            while outputs:
                tools = adapter.tools(session, message=user, api=api)
                answered, messages, said = await create(client, conversation, tools)
                await session.observe(answered)
                outputs = await adapter.handle(session, answered)
                conversation += [*messages, *outputs]

        assert f"We left it because: {REASON}. Since then: Keep sessions in Redis." == said
        assert 0 == model.left
        decisions = [one for one in (await session.memories.history(topic="auth")).memories if one.type == "decision"]
        assert ["Keep sessions in Redis", "Use JWT for logins"] == [one.content for one in decisions]


class TestTools:
    async def test_tools_have_shape_of_each_api(self, session):
        """The Responses API is flat; Chat Completions nests the function."""
        flat = adapter.tools(session)
        nested = adapter.tools(session, api="chat")

        assert {"type", "name", "description", "parameters", "strict"} == set().union(*flat)
        assert [
            {"type": "function", "function": {k: v for k, v in one.items() if k != "type"}} for one in flat
        ] == nested
        assert len(session.tools) == len(flat)

    async def test_tools_are_strict_when_possible(self, session):
        """A free-form tool is sent in its plain form, and is marked as not strict."""
        strict = {one["name"]: one["strict"] for one in adapter.tools(session)}

        assert ["keep"] == [name for name, is_strict in strict.items() if not is_strict]
        assert {False} == {one["strict"] for one in adapter.tools(session, strict=False)}
        assert ["save__decision"] == [
            one["name"] for one in adapter.tools(session, strict=["save/decision"]) if one["strict"]
        ]

    async def test_tools_without_strict_may_omit_optional_arguments(self, session):
        """They have the tool's own schema."""
        shout = next(one for one in adapter.tools(session, strict=False) if one["name"] == "shout")

        assert session.tools["shout"].input_schema == shout["parameters"]
        assert ["text"] == shout["parameters"]["required"]

    async def test_tools_are_selected_by_message(self, session):
        """They are the tools of `tools_for`, under the same names."""
        message = "What did we decide about logins?"
        names = [tool.name.replace("/", "__") for tool in session.tools_for(message)]

        assert names == [one["name"] for one in adapter.tools(session, message=message)]

    async def test_tool_choice_follows_message_while_list_stays(self, session):
        """For a message that needs some tools, the choice is restricted to them in the form of each API."""
        listed = adapter.tools(session)
        choice, chat = (
            adapter.tool_choice(session, "continue from yesterday", api=api) for api in ("responses", "chat")
        )
        names = [tool["name"] for tool in choice["tools"]]

        assert "auto" == adapter.tool_choice(session, "What is the weather?")
        assert {"load__checkpoint", "search__recent", "shout"} < set(names) < {tool["name"] for tool in listed}
        assert names == [tool["function"]["name"] for tool in chat["allowed_tools"]["tools"]]
        assert {"type": "allowed_tools", "mode": "auto"}.items() <= choice.items()
        assert listed == adapter.tools(session)
        TypeAdapter(openai.types.responses.ToolChoiceAllowedParam).validate_python(choice)
        TypeAdapter(openai.types.chat.ChatCompletionAllowedToolChoiceParam).validate_python(chat)

    async def test_tools_defer_adds_search_tool(self, session):
        """Deferred tools are sent with a search tool, if the API has one."""
        sent = adapter.tools(session, defer=["shout", "evolve/outcome"])
        deferred = {one["name"] for one in sent if one.get("defer_loading")}

        assert {"shout", "evolve__outcome"} == deferred
        assert {"type": "tool_search"} == sent[-1]
        assert adapter.tools(session) == [
            {key: value for key, value in one.items() if key != "defer_loading"} for one in sent[:-1]
        ]
        TypeAdapter(list[openai.types.responses.ToolParam]).validate_python(sent)
        with pytest.raises(InvalidArgument, match="no search"):
            adapter.tools(session, api="chat", defer=["shout"])
        with pytest.raises(UnknownTool, match="shoot"):
            adapter.tools(session, defer=["shoot"])

    async def test_tools_rejects_wrong_options(self, session):
        """The error lists the valid names."""
        with pytest.raises(InvalidArgument, match="'responses' or 'chat'"):
            adapter.tool_choice(session, "Hello", api="completions")
        with pytest.raises(InvalidArgument, match="'responses' or 'chat'"):
            adapter.tools(session, api="completions")
        with pytest.raises(InvalidArgument, match="strict must be"):
            adapter.tools(session, strict="save/decision")
        with pytest.raises(UnknownTool, match="save/decision"):
            adapter.tools(session, strict=["save/decisions"])


def as_object(answered: dict[str, Any]) -> Any:
    """Convert an answer to the corresponding object of the SDK."""
    if "output" in answered:
        return openai.types.responses.Response.model_validate(answered)
    return openai.types.chat.ChatCompletion.model_validate(answered)


class TestHandle:
    @pytest.mark.parametrize(
        "answered",
        [
            response(SHOUT),
            as_object(response(SHOUT)),
            response(SHOUT)["output"],
            as_object(response(SHOUT)).output,
            [SHOUT],
            (SHOUT,),
            response(
                {"type": "reasoning", "id": "r", "summary": []},
                MESSAGE_ITEM,
                {"type": "web_search_call", "id": "w"},
                SHOUT,
            ),
        ],
    )
    async def test_handle_accepts_response_in_any_form(self, session, answered):
        """Objects, dicts, and parts of them give the same result."""
        outputs = await adapter.handle(session, answered)

        assert [{"type": "function_call_output", "call_id": "call_1", "output": "A"}] == outputs

    @pytest.mark.parametrize(
        "answered",
        [
            completion({"tool_calls": [SHOUT_IN_CHAT]}),
            as_object(completion({"tool_calls": [SHOUT_IN_CHAT]})),
            as_object(completion({"tool_calls": [SHOUT_IN_CHAT]})).choices[0].message,
            as_object(completion({"tool_calls": [SHOUT_IN_CHAT]})).choices[0].message.tool_calls,
            {"role": "assistant", "tool_calls": [SHOUT_IN_CHAT]},
            [SHOUT_IN_CHAT],
            # Some OpenAI-compatible servers omit the key `type` of a call.
            [{key: value for key, value in SHOUT_IN_CHAT.items() if key != "type"}],
        ],
    )
    async def test_handle_accepts_completion_in_any_form(self, session, answered):
        """As for the Responses API."""
        outputs = await adapter.handle(session, answered, finish_reason="tool_calls")

        assert [{"role": "tool", "tool_call_id": "call_1", "content": "A"}] == outputs

    @pytest.mark.parametrize(
        "answered",
        [
            [],
            response(),
            response(MESSAGE_ITEM),
            as_object(response(MESSAGE_ITEM)),
            completion({"content": "Hello"}),
            as_object(completion({"content": "Hello"})),
            {"role": "assistant", "content": "Hello"},
            MESSAGE_ITEM,
            {"choices": []},
        ],
    )
    async def test_handle_returns_nothing_when_nothing_was_called(self, session, answered):
        """The turn is over."""
        assert [] == await adapter.handle(session, answered)

    @pytest.mark.parametrize(
        "answered",
        [
            None,
            "shout",
            {},
            {"role": "user", "content": "shout"},
            {"role": "tool", "tool_call_id": "x", "content": "A"},
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        ],
    )
    async def test_handle_raises_before_calls_run_when_value_is_no_answer(self, session, answered):
        """A value that is not a model's answer is a bug of the host."""
        with pytest.raises(InvalidArgument):
            await adapter.handle(session, answered)
        assert [] == session.heard

    async def test_handle_runs_calls_in_order_with_their_ids(self, session):
        """Calls may write, so their order matters."""
        calls = [
            {**SHOUT, "call_id": f"c{number}", "arguments": json.dumps({"text": str(number)})} for number in range(5)
        ]
        outputs = await adapter.handle(session, calls)

        assert ["0", "1", "2", "3", "4"] == session.heard == [one["output"] for one in outputs]
        assert ["c0", "c1", "c2", "c3", "c4"] == [one["call_id"] for one in outputs]

    async def test_handle_answers_failed_call_and_runs_others(self, session):
        """Each id has an answer, as the API requires; errors say what to change."""
        outputs = await adapter.handle(
            session,
            [
                {**SHOUT, "call_id": "1", "arguments": '{"text": '},
                {**SHOUT, "call_id": "2", "arguments": '{"txt": "a"}'},
                {**SHOUT, "call_id": "3", "name": "shoot"},
                {**SHOUT, "call_id": "4", "name": "load__context", "arguments": '{"id": "decision_x"}'},
                {**SHOUT, "call_id": "5"},
            ],
        )
        told = [json.loads(one["output"])["error"] for one in outputs[:4]]

        assert ["1", "2", "3", "4", "5"] == [one["call_id"] for one in outputs]
        assert ["invalid_argument", "invalid_argument", "unknown_tool", "not_found"] == [one["type"] for one in told]
        assert "one JSON object" in told[0]["hint"]
        assert "did you mean text" in told[1]["message"]
        assert "did you mean shout?" == told[2]["hint"]
        assert "A" == outputs[4]["output"]

    async def test_handle_does_not_run_call_that_was_cut_off(self, session):
        """Arguments that are valid JSON may still be incomplete."""
        cut = [
            response(SHOUT, {**SHOUT, "call_id": "call_2", "status": "incomplete"}, status="incomplete"),
            response(SHOUT, {**SHOUT, "call_id": "call_2", "status": None}, status="incomplete"),
            completion({"tool_calls": [SHOUT_IN_CHAT, {**SHOUT_IN_CHAT, "id": "call_2"}]}, "length"),
        ]
        for answered in [*cut, *map(as_object, cut)]:
            session.heard.clear()
            outputs = await adapter.handle(session, answered)
            told = json.loads(outputs[1].get("output") or outputs[1].get("content"))["error"]

            assert ["a"] == session.heard
            assert "cut off" in told["message"]
            assert "call_2" == (outputs[1].get("call_id") or outputs[1].get("tool_call_id"))

    async def test_handle_does_not_run_item_with_incomplete_status(self, session):
        """The status of the item counts if only the items are passed."""
        outputs = await adapter.handle(session, [{**SHOUT, "status": "incomplete"}, {**SHOUT, "status": "completed"}])

        assert ["a"] == session.heard
        assert ["cut off" in one["output"] for one in outputs] == [True, False]

    @pytest.mark.parametrize("status", UNFINISHED_STATUSES)
    async def test_handle_does_not_run_last_call_when_response_is_not_completed(self, session, status):
        """The last call is cut off for every status but "completed", even if a text follows it."""
        for last in ({**SHOUT, "call_id": "call_2", "status": None}, {**SHOUT, "call_id": "call_2"}):
            if status is None and last["status"] is not None:
                # This item's own status is "completed", so its call is not cut off.
                continue
            session.heard.clear()
            outputs = await adapter.handle(session, response(SHOUT, last, MESSAGE_ITEM, status=status))

            assert ["a"] == session.heard
            assert [False, True] == ["cut off" in one["output"] for one in outputs]

    @pytest.mark.parametrize("reason", [None, "length", "content_filter", "made_up_later"])
    async def test_handle_does_not_run_last_call_when_completion_is_not_finished(self, session, reason):
        """The last call is cut off for every finish reason that does not mean finished, and for none."""
        calls = [SHOUT_IN_CHAT, {**SHOUT_IN_CHAT, "id": "call_2"}]
        for answered in (completion({"tool_calls": calls}, reason), calls, {"role": "assistant", "tool_calls": calls}):
            session.heard.clear()
            outputs = await adapter.handle(session, answered, finish_reason=reason)

            assert ["a"] == session.heard
            assert [False, True] == ["cut off" in one["content"] for one in outputs]

    @pytest.mark.parametrize(("chunks", "heard"), [(1, []), (2, []), (3, ["Ada went home"])])
    async def test_handle_runs_call_of_chat_stream_only_when_stream_finished(self, session, chunks, heard):
        """The SDK's snapshot of an interrupted stream has incomplete arguments and no finish reason."""
        state = ChatCompletionStreamState()
        for chunk in chat_chunks()[:chunks]:
            state.handle_chunk(chunk)
        (message,) = await adapter.handle(session, state.current_completion_snapshot)

        assert heard == session.heard
        assert ("cut off" in message["content"]) is not bool(heard)

    @pytest.mark.parametrize("reason", sorted(adapter.FINISHED_REASONS))
    async def test_handle_runs_all_calls_when_completion_is_finished(self, session, reason):
        """All calls run for each finish reason that means finished."""
        outputs = await adapter.handle(session, completion({"tool_calls": [SHOUT_IN_CHAT]}, reason))

        assert ["A"] == [one["content"] for one in outputs]

    def test_finish_reasons_match_the_sdk(self):
        """Each value of the SDK's enums is classified as finished or not."""
        chat = typing.get_args(openai.types.chat.chat_completion.Choice.model_fields["finish_reason"].annotation)
        statuses = typing.get_args(openai.types.responses.ResponseStatus)

        assert {*chat} == adapter.FINISHED_REASONS | {"length", "content_filter"}
        assert {*statuses} == adapter.FINISHED_STATUSES | {one for one in UNFINISHED_STATUSES if one}

    @pytest.mark.parametrize("call_id", ["", None])
    async def test_handle_runs_call_without_id(self, session, caplog, call_id):
        """Some compatible servers send no ids: the call runs, its result has the id "", and a warning is logged."""
        outputs = await adapter.handle(session, response({**SHOUT, "call_id": call_id}))
        messages = await adapter.handle(
            session, completion({"tool_calls": [{**SHOUT_IN_CHAT, "id": call_id}]}, "tool_calls")
        )

        assert [{"type": "function_call_output", "call_id": "", "output": "A"}] == outputs
        assert [{"role": "tool", "tool_call_id": "", "content": "A"}] == messages
        assert 2 == caplog.text.count("has no id")

    async def test_handle_answers_call_without_name(self, session):
        """A call without a tool name is answered with an error, and the others run."""
        nameless = [{**SHOUT, "name": None}, {**SHOUT, "call_id": "call_2"}]
        outputs = await adapter.handle(session, response(*nameless))

        assert ["call_1", "call_2"] == [one["call_id"] for one in outputs]
        assert "names no tool" in outputs[0]["output"]
        assert "A" == outputs[1]["output"]

    @pytest.mark.parametrize(
        "item",
        [
            {"type": "additional_tools", "id": "a", "role": "developer", "tools": []},
            {"type": "made_up_later", "id": "m", "content": "x"},
            {"type": "message", "role": "assistant", "content": 5},
            {"id": "no type"},
            None,
            5,
        ],
    )
    async def test_handle_runs_calls_and_reports_item_when_item_cannot_be_read(self, session, caplog, item):
        """The calls run, refs of the other items are stored, and the item is logged and reported to the model."""
        said = {
            **MESSAGE_ITEM,
            "content": [{"type": "output_text", "text": '<ref id="plan">shield</ref>', "annotations": []}],
        }
        for answered in (response(said, item, SHOUT), [said, item, SHOUT]):
            session.heard.clear()
            caplog.clear()
            (output,) = await adapter.handle(session, answered)

            assert ["a"] == session.heard
            assert output["output"].startswith("A\n<ref_notes>")
            assert "could not be read" in output["output"]
            assert 1 == caplog.text.count("cannot be read")
        assert "shield" == session.refs.get("ref:plan").text
        with pytest.raises(InvalidArgument):
            await session.observe(response(said, item, SHOUT))

    @pytest.mark.parametrize("item", [None, 5, {"id": "x"}, {"name": "shout"}])
    async def test_handle_runs_calls_in_chat_and_reports_item_when_item_cannot_be_read(self, session, item):
        """An invalid entry in a message's tool calls does not affect the others."""
        (message,) = await adapter.handle(session, completion({"tool_calls": [item, SHOUT_IN_CHAT]}))

        assert ["a"] == session.heard
        assert "could not be read" in message["content"]

    @pytest.mark.parametrize("choice", [None, {"index": 0, "finish_reason": "content_filter"}])
    async def test_handle_returns_nothing_when_choice_has_no_message(self, session, choice):
        """An answer that a filter stopped does not end the turn with an error."""
        assert [] == await adapter.handle(session, {"choices": [choice]})

    @one_session
    @given(data=st.data())
    async def test_unknown_items_never_change_which_calls_run(self, session, data):
        """Unknown items anywhere change neither the ids of the calls nor whether each runs."""
        count = data.draw(st.integers(0, 3))
        is_whole = data.draw(st.booleans())
        calls = [
            {**SHOUT, "call_id": f"c{number}", "arguments": json.dumps({"text": str(number)})}
            for number in range(count)
        ]
        mixed = data.draw(mixed_with_unknown(calls))
        in_chat = [
            {"id": f"c{number}", "type": "function", "function": {"name": "shout", "arguments": one["arguments"]}}
            for number, one in enumerate(calls)
        ]
        mixed_in_chat = data.draw(mixed_with_unknown(in_chat))
        reason = "tool_calls" if is_whole else "length"
        ran = []
        for answered in (
            response(*calls, status="completed" if is_whole else "incomplete"),
            response(*mixed, status="completed" if is_whole else "incomplete"),
            completion({"tool_calls": in_chat}, reason),
            completion({"tool_calls": mixed_in_chat}, reason),
        ):
            session.heard.clear()
            outputs = await adapter.handle(session, answered)
            ran.append(([one.get("call_id") or one["tool_call_id"] for one in outputs], [*session.heard]))

        assert [[f"c{number}" for number in range(count)]] * 4 == [ids for ids, _ in ran]
        assert [[str(number) for number in range(count if is_whole else max(0, count - 1))]] * 4 == [
            texts for _, texts in ran
        ]

    @one_session
    @given(
        calls=st.lists(
            st.tuples(
                st.text(min_size=1) | st.sampled_from(["shout", "list_refs", "search_fd"]), st.text() | json_texts
            ),
            max_size=3,
        )
    )
    async def test_handle_answers_every_call_with_any_input(self, session, calls):
        """No name and no arguments raise, and answers keep the ids of the calls."""
        in_responses = [
            {**SHOUT, "call_id": f"c{number}", "name": name, "arguments": arguments}
            for number, (name, arguments) in enumerate(calls)
        ]
        in_chat = [
            {"id": one["call_id"], "type": "function", "function": {"name": one["name"], "arguments": one["arguments"]}}
            for one in in_responses
        ]
        outputs = await adapter.handle(session, response(*in_responses))
        messages = await adapter.handle(session, completion({"tool_calls": in_chat}, "tool_calls"))

        ids = [f"c{number}" for number in range(len(calls))]
        assert ids == [one["call_id"] for one in outputs] == [one["tool_call_id"] for one in messages]
        assert [one["output"] for one in outputs] == [one["content"] for one in messages]
        assert json.dumps(outputs).encode()

    @one_session
    @given(answered=anything)
    async def test_handle_accepts_or_rejects_any_value(self, session, answered):
        """Only errors of this package are raised."""
        with contextlib.suppress(InvalidArgument):
            assert isinstance(await adapter.handle(session, answered), list)

    async def test_handle_uses_first_choice_only(self, session):
        """As in `Session.observe`."""
        answered = completion({"tool_calls": [SHOUT_IN_CHAT]})
        answered["choices"] *= 2

        assert 1 == len(await adapter.handle(session, answered))

    async def test_handle_ignores_custom_tools(self, session):
        """The host runs its custom tools itself."""
        custom = {"type": "custom_tool_call", "id": "x", "call_id": "x", "name": "shell", "input": "ls"}
        in_chat = {"id": "x", "type": "custom", "custom": {"name": "shell", "input": "ls"}}

        assert 1 == len(await adapter.handle(session, response(custom, SHOUT)))
        assert 1 == len(await adapter.handle(session, completion({"tool_calls": [in_chat, SHOUT_IN_CHAT]})))

    async def test_handle_passes_host_values_to_tools(self, session):
        """A tool's ``ctx`` comes from the caller, and is in no schema."""

        async def whoami(ctx: dict[str, str]) -> str:
            """Return the name of the caller."""
            return ctx["user"]

        session.tools.add(whoami)
        outputs = await adapter.handle(
            session, [{**SHOUT, "name": "whoami", "arguments": "{}"}], host={"ctx": {"user": "Ada"}}
        )

        assert ["Ada"] == [one["output"] for one in outputs]
        assert "ctx" not in json.dumps(adapter.tools(session)[-1])

    async def test_handle_cancellation_stops_calls(self, session):
        """The running call is cancelled, and later calls do not start."""
        began = asyncio.Event()

        async def wait() -> None:
            """Wait for a minute."""
            began.set()
            await asyncio.sleep(60)

        session.tools.add(wait)
        running = asyncio.create_task(
            adapter.handle(session, [{**SHOUT, "name": "wait", "arguments": "{}"}, {**SHOUT, "call_id": "2"}])
        )
        await began.wait()
        running.cancel()

        with pytest.raises(asyncio.CancelledError):
            await running
        assert [] == session.heard

    async def test_handle_raises_when_session_is_closed(self, session):
        """It is a bug of the host, so it is not reported to the model."""
        await session.close()

        with pytest.raises(SessionClosed):
            await adapter.handle(session, [SHOUT])


def test_provider_adapters_do_not_import_sdks():
    """They return dicts and read objects by attribute, so only the host needs the SDK."""
    program = (
        "import sys, mama_structs.adapters.openai, mama_structs.adapters.anthropic.messages;"
        "print([name for name in ('openai', 'anthropic', 'pydantic', 'httpx', 'httpx2') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "[]" == loaded.stdout.strip()
