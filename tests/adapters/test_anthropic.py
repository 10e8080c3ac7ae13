from __future__ import annotations

import asyncio
import contextlib
import json
import typing
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mama_structs import Session
from mama_structs.adapters.anthropic import messages as adapter
from mama_structs.adapters.shared.tool_schemas import to_strict_schema
from mama_structs.errors import InvalidArgument, SessionClosed, UnknownTool
from mama_structs.testing import FakeNode
from mama_structs.testing.scripted_model import ModelTurn, ScriptedModel

anthropic = pytest.importorskip("anthropic")
types = anthropic.types
accumulate_event = pytest.importorskip("anthropic.lib.streaming._messages").accumulate_event

SHOUT = {"type": "tool_use", "id": "toolu_1", "name": "shout", "input": {"text": "a"}}
TEXT_BLOCK = {"type": "text", "text": "Hello"}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "A", "is_error": False}


# Values that resemble messages, most of them invalid.
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


# Blocks that the adapter must ignore: unknown types, no type, and values that are not objects.
unknown_blocks = (
    st.none()
    | st.integers()
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["made_up_later", "fallback", "text", ""]) | st.none() | st.integers()},
        optional={
            "content": st.none() | st.text() | st.lists(st.none() | st.text()),
            "text": st.none() | st.integers(),
        },
    )
)


def mixed_with_unknown(blocks):
    """Return a strategy that inserts unknown blocks before, between and after *blocks*."""
    gaps = st.lists(st.lists(unknown_blocks, max_size=2), min_size=len(blocks) + 1, max_size=len(blocks) + 1)
    return gaps.map(
        lambda gaps: [*gaps[0], *(one for block, gap in zip(blocks, gaps[1:], strict=True) for one in (block, *gap))]
    )


UNFINISHED = [
    *("max_tokens", "stop_sequence", "pause_turn", "refusal", "model_context_window_exceeded"),
    # Stop reasons of the beta API and of a later version, and None for an incomplete message.
    *("compaction", "made_up_later", None),
]


def stream_events():
    """Yield the events of a message with one call, whose argument chunks are valid JSON prefixes."""
    started = {**message(stop_reason=None), "content": []}
    yield types.RawMessageStartEvent(type="message_start", message=started)
    block = {**SHOUT, "input": {}}
    yield types.RawContentBlockStartEvent(type="content_block_start", index=0, content_block=block)
    for part in ('{"text": "Ada ', "went ", 'home"}'):
        delta = {"type": "input_json_delta", "partial_json": part}
        yield types.RawContentBlockDeltaEvent(type="content_block_delta", index=0, delta=delta)
    yield types.RawContentBlockStopEvent(type="content_block_stop", index=0)
    end = {"stop_reason": "tool_use", "stop_sequence": None}
    yield types.RawMessageDeltaEvent(type="message_delta", delta=end, usage={"output_tokens": 1})
    yield types.RawMessageStopEvent(type="message_stop")


def snapshot_of(events):
    """Return the message that the SDK builds from stream events."""
    snapshot, buffers = None, {}
    for event in events:
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    return snapshot


# All examples share one session, because opening a session is slow and these calls store nothing.
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


# A conversation: three user messages, and the scripted model's calls and texts.

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


async def test_anthropic_agent_finds_reason_of_failed_decision():
    """The real client with a scripted model: the reason of the failure is found in memory."""
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
        decisions = [one for one in (await session.memories.history(topic="auth")).memories if one.type == "decision"]
        assert ["Keep sessions in Redis", "Use JWT for logins"] == [one.content for one in decisions]


class TestTools:
    async def test_tools_have_name_description_and_schema(self, session):
        """The schemas are the tools' own, with optional arguments."""
        sent = adapter.tools(session)

        assert {"name", "description", "input_schema"} == set().union(*sent)
        assert len(session.tools) == len(sent)
        shout = next(one for one in sent if one["name"] == "shout")
        assert session.tools["shout"].input_schema == shout["input_schema"]

    async def test_tools_are_selected_by_message(self, session):
        """They are the tools of `tools_for`, under the same names."""
        said = "What did we decide about logins?"
        names = [tool.name.replace("/", "__") for tool in session.tools_for(said)]

        assert names == [one["name"] for one in adapter.tools(session, message=said)]

    async def test_tools_strict_applies_to_named_tools(self, session):
        """Named tools are strict, and their optional arguments stay optional."""
        sent = adapter.tools(session, strict=["shout", "save/decision"])
        strict = {one["name"]: one["input_schema"] for one in sent if one.get("strict")}

        assert {"shout", "save__decision"} == strict.keys()
        assert to_strict_schema(session.tools["shout"].input_schema, nullable=False) == strict["shout"]
        assert ["text"] == strict["shout"]["required"]

    async def test_tools_strict_respects_request_limits(self):
        """Anthropic rejects a request above its limits, with all its tools."""
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

    async def test_tools_strict_counts_union_arguments(self, session):
        """All strict tools of a request may have at most sixteen union-typed arguments."""

        async def either(first: int | str, second: int | str) -> None:
            """Take either."""

        names = [session.tools.add(either, name=f"either_{number}").name for number in range(12)]
        sent = adapter.tools(session, strict=["shout", *reversed(names)])

        assert ["shout", *names[:8]] == [one["name"] for one in sent if one.get("strict")]

    async def test_tools_strict_skips_recursive_and_free_form_schemas(self, session):
        """Anthropic's grammars do not support recursion."""

        async def plant(tree: Tree) -> None:
            """Plant a tree."""

        async def keep(data: dict[str, Any]) -> None:
            """Store any data."""

        session.tools.add(plant)
        session.tools.add(keep)
        sent = {one["name"]: one for one in adapter.tools(session, strict=["plant", "keep", "shout"])}

        assert {"shout"} == {name for name, one in sent.items() if "strict" in one}
        assert session.tools["plant"].input_schema == sent["plant"]["input_schema"]

    async def test_tools_defer_adds_search_tool(self, session):
        """Deferred tools are sent with a search tool. Without deferred tools there is none."""
        sent = adapter.tools(session, defer=["shout", "evolve/outcome"])
        deferred = [one["name"] for one in sent if one.get("defer_loading")]

        assert sorted(["shout", "evolve__outcome"]) == sorted(deferred)
        assert "tool_search_tool_bm25" == sent[-1]["name"]
        assert len(session.tools) + 1 == len(sent)
        assert [
            {**one, "defer_loading": True} if one["name"] in deferred else one for one in adapter.tools(session)
        ] == (sent[:-1])
        TypeAdapter(list[anthropic.types.ToolUnionParam]).validate_python(sent)

    async def test_tools_rejects_unknown_names(self, session):
        """The error lists the valid names."""
        with pytest.raises(UnknownTool, match="shoot"):
            adapter.tools(session, defer=["shoot"])
        with pytest.raises(InvalidArgument, match="strict must be"):
            adapter.tools(session, strict="shout")
        with pytest.raises(UnknownTool, match="shoot"):
            adapter.tools(session, strict=["shoot"])

    async def test_tools_rejects_argument_name_that_anthropic_rejects(self, session):
        """One such tool would make every request fail, with an error that names only its index."""

        async def greet(이름: str) -> None:  # noqa: N803, PLC2401 - valid argument names of a host
            """Greet a person."""

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
            as_object(message(TEXT_BLOCK, SHOUT)).content,
            [SHOUT],
            {"role": "assistant", "content": [SHOUT]},
            message(SHOUT, stop_reason="end_turn"),
            message(
                {"type": "thinking", "thinking": "Hm", "signature": "s"},
                TEXT_BLOCK,
                {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
                SHOUT,
            ),
        ],
    )
    async def test_handle_accepts_message_in_any_form(self, session, answered):
        """Objects, dicts, and parts of them give the same result."""
        results = await adapter.handle(session, answered, stop_reason="tool_use")

        assert {"role": "user", "content": [RESULT]} == results

    @pytest.mark.parametrize(
        "answered",
        [
            [],
            message(TEXT_BLOCK, stop_reason="end_turn"),
            as_object(message(TEXT_BLOCK, stop_reason="end_turn")),
            {"role": "assistant", "content": "Hello"},
            message({"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}),
        ],
    )
    async def test_handle_returns_none_when_nothing_was_called(self, session, answered):
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
        ],
    )
    async def test_handle_raises_before_calls_run_when_value_is_no_message(self, session, answered):
        """A value that is not a model's message is a bug of the host."""
        with pytest.raises(InvalidArgument):
            await adapter.handle(session, answered)
        assert [] == session.heard

    async def test_handle_returns_all_results_in_one_message_in_order(self, session):
        """Anthropic requires the results of one message together."""
        blocks = [{**SHOUT, "id": f"t{number}", "input": {"text": str(number)}} for number in range(5)]
        results = await adapter.handle(session, message(TEXT_BLOCK, *blocks))

        assert ["0", "1", "2", "3", "4"] == session.heard == [one["content"] for one in results["content"]]
        assert ["t0", "t1", "t2", "t3", "t4"] == [one["tool_use_id"] for one in results["content"]]

    async def test_handle_returns_error_result_and_runs_other_calls(self, session):
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
            stop_reason="tool_use",
        )
        *failed, worked = results["content"]
        told = [json.loads(one["content"])["error"] for one in failed]

        assert [True] * 4 == [one["is_error"] for one in failed]
        assert ["invalid_argument", "unknown_tool", "not_found", "invalid_argument"] == [one["type"] for one in told]
        assert "did you mean text" in told[0]["message"]
        assert "did you mean shout?" == told[1]["hint"]
        assert RESULT == worked

    @pytest.mark.parametrize("reason", UNFINISHED)
    async def test_handle_does_not_run_last_call_when_message_is_not_finished(self, session, reason):
        """The last call is cut off for every stop reason that does not mean finished, and for none."""
        cut = message(SHOUT, {**SHOUT, "id": "toolu_2"}, stop_reason=reason)
        for answered in (
            cut,
            types.Message.construct(**cut),
            cut["content"],
            {**cut, "content": [*cut["content"], TEXT_BLOCK]},
        ):
            session.heard.clear()
            results = await adapter.handle(session, answered)

            assert ["a"] == session.heard
            assert [False, True] == [one["is_error"] for one in results["content"]]
            assert "cut off" in results["content"][1]["content"]

    def test_stop_reasons_match_the_sdk(self):
        """Each value of the SDK's enums is classified as finished or not."""
        known = adapter.FINISHED_STOP_REASONS | {one for one in UNFINISHED if one}

        assert known == {*typing.get_args(anthropic.types.StopReason), "compaction", "made_up_later"}
        assert {*typing.get_args(anthropic.types.beta.BetaStopReason)} <= known

    @pytest.mark.parametrize("events", [3, 4, 5, 6])
    async def test_handle_does_not_run_call_of_stream_that_ended_early(self, session, events):
        """The SDK's snapshot of an interrupted stream has incomplete arguments and no stop reason."""
        snapshot = snapshot_of([*stream_events()][:events])
        results = await adapter.handle(session, snapshot)

        assert [] == session.heard
        assert [True] == [one["is_error"] for one in results["content"]]
        assert "cut off" in results["content"][0]["content"]

    async def test_handle_runs_call_of_finished_stream(self, session):
        """The SDK's snapshot of a complete stream has a stop reason."""
        snapshot = snapshot_of(stream_events())
        results = await adapter.handle(session, snapshot)

        assert ["Ada went home"] == session.heard
        assert [False] == [one["is_error"] for one in results["content"]]

    @pytest.mark.parametrize("call_id", ["", None])
    async def test_handle_runs_call_without_id(self, session, caplog, call_id):
        """Some compatible servers send no ids: the call runs, its result has the id "", and a warning is logged."""
        results = await adapter.handle(session, message({**SHOUT, "id": call_id}))

        assert [{**RESULT, "tool_use_id": ""}] == results["content"]
        assert "has no id" in caplog.text

    @pytest.mark.parametrize(
        "block",
        [
            {"type": "made_up_later", "content": "x"},
            {"type": "text"},
            {"name": "shout"},
            {"type": 5},
            None,
            5,
        ],
    )
    async def test_handle_runs_calls_and_reports_block_when_block_cannot_be_read(self, session, caplog, block):
        """The calls run, refs of the other blocks are stored, and the block is logged and reported to the model."""
        said = {"type": "text", "text": '<ref id="plan">shield</ref>'}
        answered = message(said, block, SHOUT)
        results = await adapter.handle(session, answered)

        assert ["a"] == session.heard
        assert results["content"][0]["content"].startswith("A\n<ref_notes>")
        assert "could not be read" in results["content"][0]["content"]
        assert 1 == caplog.text.count("cannot be read")
        assert "shield" == session.refs.get("ref:plan").text
        with pytest.raises(InvalidArgument):
            await session.observe(answered)

    @one_session
    @given(data=st.data())
    async def test_unknown_blocks_never_change_which_calls_run(self, session, data):
        """Unknown blocks anywhere change neither the ids of the calls nor whether each runs."""
        count = data.draw(st.integers(0, 3))
        is_whole = data.draw(st.booleans())
        calls = [{**SHOUT, "id": f"c{number}", "input": {"text": str(number)}} for number in range(count)]
        mixed = data.draw(mixed_with_unknown(calls))
        session.heard.clear()
        results = await adapter.handle(session, message(*mixed, stop_reason="tool_use" if is_whole else "max_tokens"))

        assert [one["id"] for one in calls] == [one["tool_use_id"] for one in (results or {"content": []})["content"]]
        assert [str(number) for number in range(count if is_whole else max(0, count - 1))] == session.heard

    @one_session
    @given(
        calls=st.lists(
            st.tuples(st.text(min_size=1) | st.sampled_from(["list_refs", "search_fd"]), arguments), max_size=3
        )
    )
    async def test_handle_returns_result_for_every_call_with_any_input(self, session, calls):
        """No name and no input raises, and results keep the ids of the calls."""
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
    async def test_handle_accepts_or_rejects_any_value(self, session, answered):
        """Only errors of this package are raised."""
        with contextlib.suppress(InvalidArgument):
            results = await adapter.handle(session, answered)

            assert results is None or results["content"]

    async def test_handle_passes_host_values_to_tools(self, session):
        """A tool's ``ctx`` comes from the caller, and is in no schema."""

        async def whoami(ctx: dict[str, str]) -> str:
            """Return the name of the caller."""
            return ctx["user"]

        session.tools.add(whoami)
        outputs = await adapter.handle(
            session, message({**SHOUT, "name": "whoami", "input": {}}), host={"ctx": {"user": "Ada"}}
        )

        assert ["Ada"] == [one["content"] for one in outputs["content"]]
        assert "ctx" not in json.dumps(adapter.tools(session)[-1])

    async def test_handle_cancellation_stops_calls(self, session):
        """The running call is cancelled, and later calls do not start."""
        began = asyncio.Event()

        async def wait() -> None:
            """Wait for a minute."""
            began.set()
            await asyncio.sleep(60)

        session.tools.add(wait)
        running = asyncio.create_task(adapter.handle(session, [{**SHOUT, "name": "wait", "input": {}}, SHOUT]))
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
