"""
Defaults and upper limits that a host sets for reference options.

Ceilings apply to models, not to the host's own calls.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import (
    ReferenceOptions,
    Resolver,
    Session,
    StructsSource,
    Tool,
    with_descriptors,
    with_references,
)
from mama_structs.errors import InvalidArgument, MamaStructsError, SessionClosed, WrongLoop
from mama_structs.references.options import ALL_PARAMETERS
from mama_structs.settings import MemorySettings, ReferenceSettings, Settings
from mama_structs.testing import FakeNode
from mama_structs.testing.fakes import FakeSource

LARGE_PAYLOAD = {"rows": [{"playerId": f"1-{number}"} for number in range(1, 3000)]}


def of_many(resolver, **options):
    """Return a tool whose result contains thousands of ids."""

    @with_references(resolver=resolver, **options)
    async def many() -> dict[str, Any]:
        return LARGE_PAYLOAD

    return many


def for_model(function):
    """Return a function that calls a tool as a model does, so that the ceilings apply."""
    tool = Tool.from_function(function)

    async def run(**arguments):
        return await tool.run(arguments)

    return run


async def test_empty_list_of_types_means_default_for_models_only():
    """Models with strict schemas send it for nothing. A host gets no references."""

    @with_references(resolver=Resolver([FakeSource({"0-1": {"id": "0-1"}, "1-1": {"id": "1-1"}})]))
    async def look() -> dict[str, Any]:
        return {"guildId": "0-1", "playerId": "1-1"}

    asked = {"include_references": True, "reference_types": []}

    assert {"0-1", "1-1"} == {*(await for_model(look)(**asked))["references"]}
    assert {} == (await look(**asked))["references"]


class TestCeilings:
    async def test_model_cannot_exceed_max_references_of_session(self):
        """The fake node counts the requests."""
        async with FakeNode.world(seed=1, players=120) as node:
            options = ReferenceOptions(max_references=20)
            async with Session.open(structs=node.url, reference_options=options) as session:
                result = await session.call(
                    "structs_list_structs",
                    {
                        "include_references": "all",
                        "reference_depth": 2,
                        "max_references": 10**6,
                        "max_references_per_entity": 10**6,
                    },
                )

            assert 1 + 20 >= len(node.requests)
            assert result

    async def test_exceeded_ceilings_are_reported_in_meta(self):
        source = FakeSource({})
        tool = for_model(of_many(Resolver([source]), max_references=3, max_depth=1))

        meta = (await tool(include_references=True, reference_depth=2, max_references=10**6))["references_meta"]

        assert {"max_references": 3, "reference_depth": 1} == meta["ceilings"]
        assert 3 == len(source.requested_ids)

    async def test_meta_has_no_ceilings_when_none_is_exceeded(self):
        tool = for_model(of_many(Resolver([FakeSource({})]), max_references=3))

        meta = (await tool(include_references=True, max_references=2))["references_meta"]

        assert "ceilings" not in meta

    async def test_defaults_are_ceilings_when_host_sets_none(self):
        source = FakeSource({})
        tool = for_model(of_many(Resolver([source])))

        await tool(include_references=True, max_references=10**6)

        assert 50 == len(source.requested_ids)

    async def test_model_cannot_fetch_types_outside_allowed_types(self):
        payload = {"guildId": "0-1", "planetId": "2-1"}
        source = FakeSource({"0-1": {"id": "0-1"}, "2-1": {"id": "2-1"}})

        @with_references(resolver=Resolver([source]), allowed_types=["planet"])
        async def look() -> dict[str, Any]:
            return payload

        tool = for_model(look)
        asked = await tool(include_references=True, reference_types=["guild", "planet"])

        assert ["2-1"] == list((await tool(include_references=True))["references"])
        assert ["2-1"] == list(asked["references"])
        assert {"reference_types": ["planet"]} == asked["references_meta"]["ceilings"]
        assert {} == (await tool(include_references=True, reference_types=["guild"]))["references"]
        assert "0-1" not in source.requested_ids
        assert ["0-1", "2-1"] == list((await look(include_references=True))["references"])

    async def test_direct_call_is_not_limited_by_ceilings(self):
        source = FakeSource({})

        function = of_many(Resolver([source]), max_references=3, max_depth=0)

        for call in (function, Tool.from_function(function)):
            result = await call(include_references=True, max_references=100)
            assert 100 == len(set(source.requested_ids))
            assert "ceilings" not in result["references_meta"]

    async def test_nested_tool_call_by_tool_code_is_not_limited_by_ceilings(self):
        """Only the outermost decorated tool is called by the model."""
        source = FakeSource({})
        inner = of_many(Resolver([source]), max_references=3)

        @with_references(resolver=Resolver([FakeSource({})]))
        async def outer() -> dict[str, Any]:
            await inner(include_references=True, max_references=60)
            return {}

        await for_model(outer)(include_references=True)

        assert 60 == len(source.requested_ids)

    async def test_ceilings_apply_below_other_decorators_and_in_forwarding_tools(self):
        source = FakeSource({})
        tool = of_many(Resolver([source]), max_references=3)

        async def passes_on(many: int) -> dict[str, Any]:
            await tool(include_references=True, max_references=many)
            return await tool(include_references=True, max_references=many)

        async with Session.open() as session:
            session.tools.add(passes_on)
            session.tools.add(with_descriptors(tool))
            await session.call("passes_on", {"many": 1000})
            assert 3 == len(source.requested_ids)
            await session.call("many", {"include_references": True, "max_references": 1000})

        assert 3 == len(set(source.requested_ids))

    async def test_concurrent_calls_do_not_affect_each_others_ceilings(self):
        source = FakeSource({}, delays=0.01)
        tool = for_model(of_many(Resolver([source]), max_references=3))

        await asyncio.gather(*(tool(include_references=True, max_references=1000) for _ in range(5)))

        assert {"1-1", "1-2", "1-3"} == set(source.requested_ids)

    @given(
        given=st.fixed_dictionaries(
            {},
            optional={
                "include_references": st.sampled_from([True, False, "all", "primary", "true", None, 3]),
                "reference_depth": st.integers(-1, 3) | st.none(),
                "reference_types": st.none() | st.lists(st.sampled_from(["player", "guild", "infusion", "x"])),
                "max_references": st.integers(-1, 10**9) | st.just("100000"),
                "max_references_per_entity": st.integers(0, 10**9),
            },
        ),
        ceiling=st.integers(0, 60),
        per_entity=st.integers(0, 5),
    )
    async def test_session_call_never_starts_more_references_than_ceiling(self, given, ceiling, per_entity):
        """Holds for any arguments, valid or not."""
        players = {f"1-{n}": {"id": f"1-{n}", "guildId": f"0-{n}", "planetId": f"2-{n}"} for n in range(1, 40)}
        source = FakeSource(players)
        options = {"max_references": ceiling, "max_references_per_entity": per_entity}
        async with Session.open(sources=[source], settings=_LIGHT) as session:
            session.tools.add(of_many(session.resolver, **options))
            try:
                await session.call("many", given)
            except MamaStructsError:
                assert [] == source.requested_ids

        assert ceiling >= len(source.requested_ids)


_LIGHT = Settings(memory=MemorySettings(exact_up_to=0))


class TestSharing:
    async def test_session_reference_options_are_defaults_of_predefined_tools(self):
        async with FakeNode.world(seed=1, players=12) as node:
            options = ReferenceOptions(include_references="primary", max_references=1)
            async with Session.open(structs=node.url, reference_options=options) as session:
                result = await session.call("structs_query_player", {"player_id": "1-1"})

                assert options is session.reference_options
                assert 1 == len(result["references"])

    async def test_session_reference_options_add_no_references_by_default(self):
        """A host that sets limits does not request references for every call."""
        options = ReferenceOptions(max_references=2)
        async with (
            FakeNode.world(seed=1, players=12) as node,
            Session.open(structs=node.url, reference_options=options) as session,
        ):
            assert "references" not in await session.call("structs_query_player", {"player_id": "1-1"})

    async def test_session_decorator_and_bare_decorator_use_session_options(self):
        source = FakeSource({})
        async with Session.open(sources=[source], reference_options=ReferenceOptions(max_references=2)) as session:

            @session.with_references
            async def bound() -> dict[str, Any]:
                return LARGE_PAYLOAD

            @session.with_references(max_references=3)
            async def own() -> dict[str, Any]:
                return LARGE_PAYLOAD

            @with_references
            async def bare() -> dict[str, Any]:
                return LARGE_PAYLOAD

            assert [2, 3, 2] == [
                len((await tool(include_references=True))["references"]) for tool in (bound, own, bare)
            ]

    async def test_sessions_can_share_a_resolver_that_its_owner_closes(self):
        """
        They share cache, limits and statistics.

        The memories of each session are a source of that session only.
        """
        async with FakeNode.world(seed=1, players=12) as node:
            shared = Resolver([StructsSource(node.url)])
            async with Session.open(resolver=shared) as one, Session.open(resolver=shared) as other:
                saved = await one.memories.save_decision(
                    "shield first", topic="defence", reasoning="raids", confidence=0.9
                )
                await one.call("structs_query_player", {"player_id": "1-1", "include_references": True})
                before = len(node.requests)
                again = await other.call("structs_query_player", {"player_id": "1-1", "include_references": True})
                mine = await one.resolver.enrich({"because": saved.id})
                theirs = await other.resolver.enrich({"because": saved.id})

                assert before >= len(node.requests) - 1
                assert again["references"]
                assert "shield first" == mine["references"][saved.id]["content"]
                assert [saved.id] == list(theirs["references"])
                assert "Entity not found" == theirs["references"][saved.id]["error"]
            assert (await shared.resolve(["1-1"]))["1-1"]["id"] == "1-1"
            await shared.close()

    async def test_concurrent_sessions_do_not_share_memory_references(self):
        """Namespaces are isolated even while sessions share queries in flight."""
        shared = Resolver([FakeSource({})])
        async with (
            Session.open(resolver=shared, namespace="a") as one,
            Session.open(resolver=shared, namespace="b") as other,
        ):
            saved = await one.memories.save_context("only for a")
            mine, theirs = await asyncio.gather(*(s.resolver.enrich({"because": saved.id}) for s in (one, other)))

        assert "only for a" == mine["references"][saved.id]["content"]
        assert "only for a" not in str(theirs)
        await shared.close()

    async def test_shared_resolver_in_another_loop_raises_wrong_loop(self):
        shared = Resolver([FakeSource({})])

        async def elsewhere():
            async with Session.open(resolver=shared):
                pass

        async with Session.open(resolver=shared):
            with pytest.raises(WrongLoop, match="resolver"):
                await asyncio.to_thread(asyncio.run, elsewhere())
        await shared.close()

    async def test_session_raises_session_closed_after_shared_resolver_is_closed(self):
        shared = Resolver([FakeSource({})])
        async with Session.open(resolver=shared) as session:
            await shared.close()
            with pytest.raises(SessionClosed, match="resolver is closed"):
                await session.resolver.enrich({"guildId": "0-1"})
        with pytest.raises(SessionClosed, match="resolver is closed"):
            await Session.open(resolver=shared)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"reference_options": {"max_references": 3}}, "reference_options must be ReferenceOptions"),
            ({"resolver": "http://localhost"}, "resolver must be a Resolver"),
            ({"resolver": Resolver(), "structs": "http://localhost:1317"}, "resolver= has its own sources"),
        ],
    )
    def test_session_open_rejects_invalid_reference_arguments(self, options, message):
        with pytest.raises(InvalidArgument, match=message):
            Session.open(**options)


class TestWhatIsShown:
    def test_tool_accepts_all_reference_options_shown_or_not(self):
        tools = {
            setting: Tool.from_function(of_many(Resolver([FakeSource({})], settings=ReferenceSettings(**setting_of))))
            for setting, setting_of in {
                "main": {},
                "all": {"parameters": "all"},
                "off": {"enabled": False},
            }.items()
        }

        assert {"main": 3, "all": 5, "off": 0} == {
            name: len(tool.input_schema["properties"]) for name, tool in tools.items()
        }
        for tool in tools.values():
            given = dict.fromkeys(ALL_PARAMETERS[2:], 1) | {"include_references": True, "reference_types": ["player"]}
            assert given == tool._signature.check(given, tool=tool.name)

    async def test_bare_tool_schema_depends_on_session(self):
        @with_references
        async def look() -> dict[str, Any]:
            return {}

        off = Settings(references=ReferenceSettings(enabled=False))
        async with Session.open(sources=[FakeSource({})]) as session:
            types = session.tools.add(look).input_schema["properties"]["reference_types"]
            assert {"planet", "infusion", "decision"} < set(types["items"]["enum"])
        async with Session.open(settings=off) as session:
            assert {} == session.tools.add(look).input_schema["properties"]
            assert {} == await session.call("look", {"include_references": True, "max_references": 3})

    async def test_unknown_reference_type_error_lists_known_types(self):
        async with FakeNode.world(seed=1, players=12) as node, Session.open(structs=node.url) as session:
            with pytest.raises(InvalidArgument, match=r"reference_types must be .*'planet'"):
                await session.call("structs_query_player", {"player_id": "1-1", "reference_types": ["planets"]})
