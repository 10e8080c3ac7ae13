from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from typing import Any, Literal

import pytest

from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.references.decorator import make_decorator, with_references
from mama_structs.references.resolver import Resolver
from mama_structs.testing.fakes import FakeSource

pytestmark = pytest.mark.usefixtures("virtual_time")

RESULT = {"Player": {"id": "1-11", "guildId": "0-1", "planetId": "2-1"}}


def tool_on(resolver, result=RESULT, **options):
    calls = []

    @with_references(resolver=resolver, **options)
    async def tool(player_id: str = "1-11", **more: Any) -> dict[str, Any]:
        """Look a player up."""
        calls.append((player_id, more))
        return result

    tool.calls = calls
    return tool


class TestCalls:
    async def test_call_without_reference_options_returns_tools_own_object(self, resolver, source):
        tool = tool_on(resolver)

        assert RESULT is await tool()
        assert RESULT is await tool("1-11", include_references=False)
        assert RESULT is await tool("1-11", include_references=True, reference_depth=0)
        assert RESULT is await tool("1-11", max_references=3)
        assert [] == source.requested_ids

    async def test_call_with_references_adds_each_id_once(self, resolver):
        result = await tool_on(resolver)("1-11", include_references=True)

        assert RESULT == {key: value for key, value in result.items() if key != "references"}
        assert ["0-1", "2-1"] == list(result["references"])

    async def test_call_options_select_and_limit_references(self, resolver):
        tool = tool_on(resolver)

        assert ["0-1"] == list((await tool(include_references="all", reference_types=["guild"]))["references"])
        assert ["0-1"] == list((await tool(include_references=True, max_references=1))["references"])
        assert "3-1" in (await tool(include_references=True, reference_depth=2))["references"]

    async def test_tool_does_not_receive_reference_options(self, resolver):
        tool = tool_on(resolver)

        await tool("1-12", include_references=True, reference_depth=2, extra=1)

        assert [("1-12", {"extra": 1})] == tool.calls

    async def test_call_options_override_defaults_of_tool(self, resolver):
        tool = tool_on(resolver, include_references=True, max_references=1, metadata=True)

        assert ["0-1"] == list((await tool())["references"])
        assert ["0-1", "2-1"] == list((await tool(max_references=9))["references"])
        assert RESULT is await tool(include_references=False)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"include_references": "some"},
            {"include_references": 1},
            {"include_references": True, "reference_depth": 3},
            {"include_references": True, "reference_depth": True},
            {"include_references": True, "reference_types": "planet"},
            {"include_references": True, "reference_types": ["planets"]},
            {"include_references": True, "max_references": -1},
            {"include_references": False, "max_references_per_entity": "5"},
        ],
    )
    async def test_invalid_option_is_rejected_before_tool_runs(self, resolver, arguments):
        tool = tool_on(resolver)

        with pytest.raises(InvalidArgument):
            await tool("1-11", **arguments)
        assert [] == tool.calls

    async def test_error_of_tool_is_raised_unchanged(self, resolver):
        @with_references(resolver=resolver)
        async def fails():
            raise LookupError("no such player")

        with pytest.raises(LookupError, match="no such player"):
            await fails(include_references=True)

    async def test_wrong_arguments_raise_type_error_of_tool(self, resolver):
        @with_references(resolver=resolver, subject="player_id")
        async def tool(player_id: str) -> dict[str, Any]:
            return {}

        with pytest.raises(TypeError, match="player_id"):
            await tool(include_references=True)

    async def test_result_is_returned_when_adding_references_fails(self, resolver, caplog):
        class Odd(dict):
            def items(self):
                raise RuntimeError("odd")

        odd = Odd(a=1)

        assert odd is await tool_on(resolver, odd)(include_references=True)
        assert "could not be added to the result of tool" in caplog.text

    async def test_closed_resolver_raises_before_tool_runs(self, source):
        resolver = Resolver([source])
        tool = tool_on(resolver)
        await resolver.close()

        with pytest.raises(SessionClosed):
            await tool(include_references=True)
        assert [] == tool.calls
        assert RESULT is await tool()

    async def test_subject_is_read_from_positional_keyword_or_default_argument(self, resolver):
        @with_references(resolver=resolver, subject="player_id")
        async def activity(player_id: str = "1-11") -> dict[str, Any]:
            return {"rows": [{"playerId": "1-11"}, {"owner": "1-12"}]}

        assert ["1-12"] == list((await activity("1-11", include_references=True))["references"])
        assert ["1-12"] == list((await activity(player_id="1-11", include_references=True))["references"])
        assert ["1-12"] == list((await activity(include_references=True))["references"])
        assert ["1-11"] == list((await activity("1-12", include_references=True))["references"])

    async def test_kind_and_primary_of_decorator_are_applied(self, resolver):
        payload = {"Planet": [{"id": "2-1", "owner": "1-11", "commandStruct": "5-1"}]}

        assert ["1-11"] == list((await tool_on(resolver, payload)(include_references=True))["references"])
        assert ["5-1"] == list(
            (await tool_on(resolver, payload, primary={"commandStruct"})(include_references=True))["references"]
        )
        assert ["2-1", "1-11", "5-1"] == list(
            (await tool_on(resolver, payload, kind="query", subject="player_id")("x", include_references=True))[
                "references"
            ]
        ) or ["1-11", "5-1"] == list(
            (await tool_on(resolver, payload, kind="query")(include_references=True))["references"]
        )


class TestForms:
    async def test_decorated_methods_bind_to_their_object(self, resolver):
        class Agent:
            @with_references(resolver=resolver)
            async def look(self, planet_id: str) -> dict[str, Any]:
                return {"self": type(self).__name__, "planetId": planet_id}

            @classmethod
            @with_references(resolver=resolver)
            async def of_class(cls) -> dict[str, Any]:
                return {"cls": cls.__name__, "guildId": "0-1"}

            @staticmethod
            @with_references(resolver=resolver)
            async def of_none() -> dict[str, Any]:
                return {"guildId": "0-1"}

        agent = Agent()

        assert {"self": "Agent", "planetId": "2-1"} == await agent.look("2-1")
        assert ["2-1"] == list((await agent.look("2-1", include_references=True))["references"])
        assert "Agent" == (await agent.of_class(include_references=True))["cls"]
        assert ["0-1"] == list((await agent.of_none(include_references=True))["references"])
        assert "self" not in inspect.signature(agent.look).parameters

    async def test_callable_objects_and_partials_can_be_decorated(self, resolver):
        class Lookup:
            """Looks things up."""

            name: int = 3

            async def __call__(self, guild_id: str) -> dict[str, Any]:
                return {"guildId": guild_id}

        decorated = with_references(resolver=resolver)(Lookup())
        partial = with_references(resolver=resolver)(functools.partial(Lookup().__call__, "0-1"))

        assert "Lookup" == decorated.__name__
        assert ["guild_id"] == list(inspect.signature(decorated).parameters)[:1]
        assert str is typing.get_type_hints(decorated)["guild_id"]
        assert ["0-1"] == list((await decorated("0-1", include_references=True))["references"])
        assert ["0-1"] == list((await partial(include_references=True))["references"])

    def test_decorated_partials_and_objects_keep_docstring_and_hints(self, resolver):
        """They come from the wrapped function, or from the object's class."""

        async def look(guild_id: str, *, deep: bool = False) -> dict[str, Any]:
            """Look a guild up."""
            return {}

        class Lookup:
            """Looks things up."""

            async def __call__(self, guild_id: str) -> dict[str, Any]:
                return {}

        partial = with_references(resolver=resolver)(functools.partial(look, "0-1"))
        called = with_references(resolver=resolver)(Lookup())

        assert ("look", "Look a guild up.") == (partial.__name__, partial.__doc__)
        assert {"deep", "return"} <= typing.get_type_hints(partial).keys()
        assert "guild_id" not in typing.get_type_hints(partial)
        assert ("Lookup", "Looks things up.") == (called.__name__, called.__doc__)

    async def test_bound_decorator_works_with_and_without_arguments(self, resolver):
        bound = make_decorator(resolver)

        @bound
        async def one() -> dict[str, Any]:
            return {"guildId": "0-1"}

        @bound(max_references=0)
        async def other() -> dict[str, Any]:
            return {"guildId": "0-1"}

        assert ["0-1"] == list((await one(include_references=True))["references"])
        assert ["0-1"] == (await other(include_references=True))["references_meta"]["omitted_ids"]

    def test_wrapper_has_name_and_docstring_of_tool(self, resolver):
        tool = tool_on(resolver)

        assert "tool" == tool.__name__
        assert "Look a player up." == tool.__doc__
        assert inspect.iscoroutinefunction(tool)
        assert inspect.iscoroutinefunction(inspect.unwrap(tool))

    def test_signature_shows_default_reference_options_before_var_keywords(self, resolver):
        parameters = inspect.signature(tool_on(resolver)).parameters
        names = ["player_id", "include_references", "reference_types", "reference_depth", "more"]

        assert names == list(parameters)
        assert [False, None, 1] == [parameters[name].default for name in names[1:4]]
        assert {inspect.Parameter.KEYWORD_ONLY} == {parameters[name].kind for name in names[1:4]}

    def test_signature_shows_all_options_when_settings_request_them(self, make_resolver, source):
        parameters = inspect.signature(tool_on(make_resolver(source, parameters="all"), max_references=7)).parameters

        assert ["max_references", "max_references_per_entity"] == list(parameters)[4:6]
        assert 7 == parameters["max_references"].default

    def test_signature_shows_no_options_when_references_are_disabled(self, make_resolver, source):
        tool = tool_on(make_resolver(source, enabled=False))

        assert ["player_id", "more"] == list(inspect.signature(tool).parameters)

    def test_type_hints_of_decorated_tool_resolve(self, resolver):
        hints = typing.get_type_hints(tool_on(resolver))

        assert str is hints["player_id"]
        assert bool | Literal["primary", "all"] == hints["include_references"]

    def test_signature_shows_defaults_of_decorator(self, resolver):
        parameters = inspect.signature(tool_on(resolver, include_references="primary", reference_depth=2)).parameters

        assert "primary" == parameters["include_references"].default
        assert 2 == parameters["reference_depth"].default

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: with_references(kind="graph"), "kind must be"),
            (lambda: with_references(primary="owner"), "primary must be field names"),
            (lambda: with_references(resolver="http://localhost"), "resolver must be a Resolver"),
            (lambda: with_references(max_reference=3), "no option 'max_reference'"),
            (lambda: with_references(max_references=-3), "max_references must be"),
            (lambda: with_references(subject="guild_id")(_tool), "has no such parameter"),
            (lambda: with_references(_clashing), "already has a parameter 'reference_depth'"),
        ],
    )
    def test_decorator_rejects_invalid_arguments_and_tools(self, make, message):
        with pytest.raises(InvalidArgument, match=message):
            make()


async def _tool(player_id: str) -> dict[str, Any]:
    return {}


async def _clashing(reference_depth: int) -> dict[str, Any]:
    return {}


async def test_call_without_session_returns_result_with_note_and_logs_once(caplog):
    """The main answer succeeds. The hint in the log says how to give the tool a source."""

    @with_references
    async def tool() -> dict[str, Any]:
        return {"guildId": "0-1"}

    assert {"guildId": "0-1"} == await tool()
    for _ in range(2):
        answer = await tool(include_references=True)
        assert {"guildId": "0-1", "references": {}} == {key: answer[key] for key in ("guildId", "references")}
        assert "no session is open" in answer["references_meta"]["notes"][0]
    assert 1 == caplog.text.count("@with_references(resolver=resolver)")


async def test_call_without_session_returns_other_values_than_mappings_unchanged():
    result = [{"guildId": "0-1"}]

    @with_references
    def tool() -> list[dict[str, Any]]:
        return result

    assert result is await tool(include_references=True)


@pytest.mark.parametrize(
    ("enabled", "options"),
    [(True, {}), (True, {"include_references": False}), (False, {"include_references": True})],
    ids=["not asked for", "declined", "switched off"],
)
async def test_wrapper_overhead_is_constant_for_call_without_references(make_resolver, steps, enabled, options):
    """It does not depend on the size of the result."""
    calls = []

    async def bare(player_id):
        calls.append(player_id)
        return RESULT

    tool = with_references(resolver=make_resolver(enabled=enabled))(bare)

    with steps:
        assert RESULT is await tool("1-11", **options)
    assert ["1-11"] == calls
    assert steps.count <= 21


async def test_disabled_resolver_returns_tools_own_object(make_resolver, source):
    tool = tool_on(make_resolver(source, enabled=False))

    assert RESULT is await tool("1-11", include_references=True, reference_depth=2)
    assert [] == source.requested_ids


async def test_cancellation_is_passed_to_source(make_resolver):
    source = FakeSource({"0-1": {"id": "0-1"}}, delays=5)
    task = asyncio.create_task(tool_on(make_resolver(source))(include_references=True))
    await asyncio.sleep(0.01)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
