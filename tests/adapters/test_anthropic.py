from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mama_structs import Session
from mama_structs.adapters import anthropic as adapter
from mama_structs.adapters.schemas import strict_schema
from mama_structs.errors import InvalidArgument, SessionClosed, UnknownTool
from mama_structs.testing import FakeNode
from mama_structs.testing.scripted import ModelTurn, ScriptedModel

anthropic = pytest.importorskip("anthropic")

SHOUT = {"type": "tool_use", "id": "toolu_1", "name": "shout", "input": {"text": "a"}}
SAID = {"type": "text", "text": "Hello"}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "A", "is_error": False}


# Messages that are nearly right.
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["tool_use", "text", "assistant", "message", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "stop_reason", "name", "id", "input"]), inner, max_size=5
        )
    ),
    max_leaves=8,
)
arguments = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(["query", "fd"]), inner),
    max_leaves=5,
)


# Opening a session takes longer than a call, and nothing that these calls do is kept.
one_session = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
async def session():
    async with Session.open() as opened:

        async def shout(text: str, times: int = 1) -> str:
            """Shout a text."""
            heard.append(text)
            return text.upper() * times

        heard: list[str] = []
        opened.tools.add(shout)
        opened.heard = heard
        yield opened


def message(*content: dict[str, Any], stop_reason: str = "tool_use") -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def as_object(answered: dict[str, Any]) -> Any:
    return anthropic.types.Message.model_validate(answered)


# The three turns of a conversation: what the model calls, and what it says.

REASON = "A stolen JWT could not be revoked before it expired"
USER = ["We use JWT for logins.", "JWT is out, a stolen one could not be revoked.", "Why did we leave JWT?"]


def story():
    def calling(*calls):
        assert {name for name, _ in calls} <= {*model_tools}
        return ModelTurn("One moment.", calls)

    decision = {"topic": "auth", "decision": "Use JWT for logins", "reasoning": "no session store"}
    request = yield ModelTurn("One moment.", [("save__decision", decision)])
    first = json.loads(request.results[0])["id"]
    model_tools = (yield "Noted.").tools
    instead = {"decision_id": first, "decision": "Keep sessions in Redis", "reasoning": "can be revoked"}
    failed = {"decision_id": first, "outcome": "FAILED", "reason": REASON}
    yield calling(("evolve__supersede", instead), ("evolve__outcome", failed))
    model_tools = (yield "Replaced.").tools
    request = yield calling(("search__by_context", {"query": "Why did we leave JWT?"}))
    jwt = next(one for one in json.loads(request.results[-1])["found"] if one["content"] == "Use JWT for logins")
    yield f"We left it because: {jwt['outcome_reason']}. Since then: {jwt['in_its_place']}."


async def test_an_agent_remembers_why_it_left_jwt():
    """The real client talks to a scripted model, and the reason of the failure comes out of memory."""
    async with Session.open() as session, ScriptedModel(story()).anthropic() as client:
        conversation: list[Any] = []
        for user in USER:
            conversation.append({"role": "user", "content": user})
            results: Any = {}
            while results is not None:
                answered = await client.messages.create(
                    model="scripted", max_tokens=1000, messages=conversation, tools=adapter.tools(session, message=user)
                )
                await session.observe(answered)
                results = await adapter.handle(session, answered)
                conversation += [{"role": "assistant", "content": answered.content}, *([results] if results else [])]

        assert f"We left it because: {REASON}. Since then: Keep sessions in Redis." == answered.content[0].text
        assert ["user", "assistant"] * 6 == [one["role"] for one in conversation]
        decisions = [one for one in (await session.memories.by_topic("auth")).memories if one.type == "decision"]
        assert ["Keep sessions in Redis", "Use JWT for logins"] == [one.content for one in decisions]


class TestTools:
    async def test_they_have_a_name_a_description_and_a_schema(self, session):
        """The schemas are the tools' own, with what is optional left out."""
        sent = adapter.tools(session)

        assert {"name", "description", "input_schema"} == set().union(*sent)
        assert len(session.tools) == len(sent)
        shout = next(one for one in sent if one["name"] == "shout")
        assert session.tools["shout"].input_schema == shout["input_schema"]

    async def test_a_message_chooses(self, session):
        """What `tools_for` offers for a message is what is sent, under the same names."""
        said = "What did we decide about logins?"
        names = [tool.name.replace("/", "__") for tool in session.tools_for(said)]

        assert names == [one["name"] for one in adapter.tools(session, message=said)]

    async def test_some_can_be_strict(self, session):
        """Those that are named, in a form in which what is optional may be left out."""
        sent = adapter.tools(session, strict=["shout", "save/decision"])
        strict = {one["name"]: one["input_schema"] for one in sent if one.get("strict")}

        assert {"shout", "save__decision"} == strict.keys()
        assert strict_schema(session.tools["shout"].input_schema, nullable=False) == strict["shout"]
        assert ["text"] == strict["shout"]["required"]

    async def test_as_many_are_strict_as_a_request_may_have(self):
        """Anthropic refuses a request over its limits, with all its tools."""
        async with FakeNode.world(seed=1, players=12) as node, Session.open(structs=node.url) as session:
            for number in range(25):

                async def plain(text: str) -> None:
                    """Take a text."""

                session.tools.add(plain, name=f"plain_{number}")
            sent = adapter.tools(session, strict=True)
            strict = [one["input_schema"] for one in sent if one.get("strict")]

            assert len(session.tools) == len(sent)
            assert 20 == len(strict)
            assert 24 >= sum(len(one["properties"]) - len(one["required"]) for one in strict) > 12
            assert 16 >= sum("anyOf" in of for one in strict for of in one["properties"].values())
            assert all("strict" not in one or one["strict"] is True for one in sent)

    async def test_arguments_of_several_types_count(self, session):
        """Sixteen in all strict tools of a request are the most."""

        async def either(first: int | str, second: int | str) -> None:
            """Take either."""

        names = [session.tools.add(either, name=f"either_{number}").name for number in range(12)]
        sent = adapter.tools(session, strict=["shout", *reversed(names)])

        assert ["shout", *names[:8]] == [one["name"] for one in sent if one.get("strict")]

    async def test_what_has_no_strict_form_or_is_recursive_is_sent_as_it_is(self, session):
        """Anthropic's grammars know no recursion."""

        async def plant(tree: Tree) -> None:
            """Plant."""

        async def keep(data: dict[str, Any]) -> None:
            """Keep."""

        session.tools.add(plant)
        session.tools.add(keep)
        sent = {one["name"]: one for one in adapter.tools(session, strict=["plant", "keep", "shout"])}

        assert {"shout"} == {name for name, one in sent.items() if "strict" in one}
        assert session.tools["plant"].input_schema == sent["plant"]["input_schema"]

    async def test_some_can_be_left_out_until_the_model_searches_for_them(self, session):
        """They are sent all the same, behind a tool of Anthropic's that finds them; without any there is no such tool."""
        sent = adapter.tools(session, defer=["shout", "evolve/outcome"])
        deferred = [one["name"] for one in sent if one.get("defer_loading")]

        assert sorted(["shout", "evolve__outcome"]) == sorted(deferred)
        assert "tool_search_tool_bm25" == sent[-1]["name"]
        assert len(session.tools) + 1 == len(sent)
        assert [
            {**one, "defer_loading": True} if one["name"] in deferred else one for one in adapter.tools(session)
        ] == (sent[:-1])
        TypeAdapter(list[anthropic.types.ToolUnionParam]).validate_python(sent)

    async def test_wrong_options_are_refused(self, session):
        """The error names what there is."""
        with pytest.raises(UnknownTool, match="shoot"):
            adapter.tools(session, defer=["shoot"])
        with pytest.raises(InvalidArgument, match="strict must be"):
            adapter.tools(session, strict="shout")
        with pytest.raises(UnknownTool, match="shoot"):
            adapter.tools(session, strict=["shoot"])

    async def test_a_name_of_an_argument_that_anthropic_refuses_is_refused_here(self, session):
        """One such tool would make every request fail, with an error that names a number."""

        async def greet(이름: str) -> None:  # noqa: N803, PLC2401 - what a host may write
            """Greet."""

        session.tools.add(greet)

        with pytest.raises(InvalidArgument, match="greet: Anthropic does not take an argument named '이름'"):
            adapter.tools(session)


@dataclass
class Tree:
    children: list[Tree]


class TestHandle:
    @pytest.mark.parametrize(
        "answered",
        [
            message(SHOUT),
            as_object(message(SHOUT)),
            message(SHOUT)["content"],
            as_object(message(SAID, SHOUT)).content,
            [SHOUT],
            {"role": "assistant", "content": [SHOUT]},
            message(
                {"type": "thinking", "thinking": "Hm", "signature": "s"},
                SAID,
                {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
                SHOUT,
            ),
        ],
    )
    async def test_a_message_may_come_in_any_form(self, session, answered):
        """Objects, dicts, and parts of them give the same."""
        assert {"role": "user", "content": [RESULT]} == await adapter.handle(session, answered)

    @pytest.mark.parametrize(
        "answered",
        [
            [],
            message(SAID, stop_reason="end_turn"),
            as_object(message(SAID, stop_reason="end_turn")),
            {"role": "assistant", "content": "Hello"},
            message({"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}),
        ],
    )
    async def test_where_nothing_was_called_there_is_nothing_to_append(self, session, answered):
        """The turn is over."""
        assert await adapter.handle(session, answered) is None

    @pytest.mark.parametrize(
        "answered",
        [
            None,
            "shout",
            {},
            {"role": "assistant"},
            {"role": "user", "content": [SHOUT]},
            {"content": [SHOUT]},
            ["shout"],
            [{"type": "tool_use", "name": "shout", "input": {}}],
            [{"type": "tool_use", "id": "x", "input": {}}],
            [SHOUT, {"name": "shout"}],
        ],
    )
    async def test_what_is_no_message_of_a_model_is_refused_before_anything_runs(self, session, answered):
        """A bug of the host's is no tool result."""
        with pytest.raises(InvalidArgument):
            await adapter.handle(session, answered)
        assert [] == session.heard

    async def test_all_results_are_in_one_message_in_order(self, session):
        """Anthropic wants the results of one message together."""
        blocks = [{**SHOUT, "id": f"t{number}", "input": {"text": str(number)}} for number in range(5)]
        results = await adapter.handle(session, message(SAID, *blocks))

        assert ["0", "1", "2", "3", "4"] == session.heard == [one["content"] for one in results["content"]]
        assert ["t0", "t1", "t2", "t3", "t4"] == [one["tool_use_id"] for one in results["content"]]

    async def test_a_call_that_fails_is_an_error_result_and_the_others_run(self, session):
        """Each call has its result, and each error says what to change."""
        results = await adapter.handle(
            session,
            [
                {**SHOUT, "id": "1", "input": {"txt": "a"}},
                {**SHOUT, "id": "2", "name": "shoot"},
                {**SHOUT, "id": "3", "name": "load__context", "input": {"id": "decision_x"}},
                {**SHOUT, "id": "4", "input": [1]},
                SHOUT,
            ],
        )
        *failed, worked = results["content"]
        told = [json.loads(one["content"])["error"] for one in failed]

        assert [True] * 4 == [one["is_error"] for one in failed]
        assert ["invalid_argument", "unknown_tool", "not_found", "invalid_argument"] == [one["type"] for one in told]
        assert "did you mean text" in told[0]["message"]
        assert "did you mean shout?" == told[1]["hint"]
        assert RESULT == worked

    @pytest.mark.parametrize("limit", ["max_tokens", "model_context_window_exceeded"])
    async def test_a_call_that_was_cut_off_does_not_run(self, session, limit):
        """Of a message that reached a limit the last block is half of what the model meant."""
        cut = message(SHOUT, {**SHOUT, "id": "toolu_2"}, stop_reason=limit)
        for answered in (cut, as_object(cut)):
            session.heard.clear()
            results = await adapter.handle(session, answered)

            assert ["a"] == session.heard
            assert [False, True] == [one["is_error"] for one in results["content"]]
            assert "cut off" in results["content"][1]["content"]

    async def test_calls_before_a_text_that_was_cut_off_run(self, session):
        """They were complete."""
        results = await adapter.handle(session, message(SHOUT, SAID, stop_reason="max_tokens"))

        assert [RESULT] == results["content"]

    @one_session
    @given(
        calls=st.lists(
            st.tuples(st.text(min_size=1) | st.sampled_from(["list_refs", "search_fd"]), arguments), max_size=3
        )
    )
    async def test_every_call_has_a_result_whatever_the_model_sends(self, session, calls):
        """No name and no input break the loop, and the ids stay with their calls."""
        blocks = [
            {"type": "tool_use", "id": f"t{number}", "name": name, "input": given}
            for number, (name, given) in enumerate(calls)
        ]
        results = await adapter.handle(session, message(*blocks))

        found = [] if results is None else results["content"]
        assert [block["id"] for block in blocks] == [one["tool_use_id"] for one in found]
        assert all(isinstance(one["content"], str) and isinstance(one["is_error"], bool) for one in found)
        assert json.dumps(results, ensure_ascii=False).encode()

    @one_session
    @given(answered=anything)
    async def test_what_is_passed_is_handled_or_refused(self, session, answered):
        """There is no other error than ours."""
        with contextlib.suppress(InvalidArgument):
            results = await adapter.handle(session, answered)

            assert results is None or results["content"]

    async def test_the_host_gives_what_no_model_sees(self, session):
        """A tool's ``ctx`` comes from the caller, and is in no schema."""

        async def whoami(ctx: dict[str, str]) -> str:
            """Say who asks."""
            return ctx["user"]

        session.tools.add(whoami)
        outputs = await adapter.handle(
            session, [{**SHOUT, "name": "whoami", "input": {}}], host={"ctx": {"user": "Ada"}}
        )

        assert ["Ada"] == [one["content"] for one in outputs["content"]]
        assert "ctx" not in json.dumps(adapter.tools(session)[-1])

    async def test_a_cancelled_handle_is_cancelled(self, session):
        """The call under way ends, and those behind it do not begin."""
        began = asyncio.Event()

        async def wait() -> None:
            """Wait."""
            began.set()
            await asyncio.sleep(60)

        session.tools.add(wait)
        running = asyncio.create_task(adapter.handle(session, [{**SHOUT, "name": "wait", "input": {}}, SHOUT]))
        await began.wait()
        running.cancel()

        with pytest.raises(asyncio.CancelledError):
            await running
        assert [] == session.heard

    async def test_a_closed_session_raises(self, session):
        """No model could do anything about it."""
        await session.close()

        with pytest.raises(SessionClosed):
            await adapter.handle(session, [SHOUT])
