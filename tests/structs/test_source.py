"""The predefined tools for the chain: descriptions, arguments and sources."""

import inspect
import subprocess
import sys
import typing
from collections.abc import Sequence
from typing import Literal

import jsonschema
import pytest

from mama_structs import EntityType, Resolver, Session, Source, StructsClient, StructsSource, with_references
from mama_structs._internal.jsonable import to_json_text
from mama_structs.errors import InvalidArgument
from mama_structs.structs import STRUCTS_SCHEME, structs_tools
from mama_structs.testing import FakeNode, World
from mama_structs.tools.tool import Tool

KINDS = {
    "player": "1-11", "planet": "2-1", "guild": "0-1", "struct": "5-1", "fleet": "9-11", "reactor": "3-1",
    "substation": "4-1", "provider": "10-1", "agreement": "11-1", "allocation": "6-1",
}  # fmt: skip
REFERENCES = {
    "include_references": bool | Literal["primary", "all"],
    "reference_types": Sequence[Literal[tuple(str(kind) for kind in EntityType)]] | None,
    "reference_depth": Literal[0, 1, 2],
}


class Fetches:
    """A source whose async fetch function returns the id and records it."""

    def __init__(self):
        self.asked = []

    async def fetch(self, entity_id):
        self.asked.append(entity_id)
        return {"id": entity_id}


@pytest.fixture
async def node():
    async with FakeNode.world(seed=1, players=40) as node:
        yield node


@pytest.fixture
async def client(node):
    async with StructsClient(node.url) as client:
        yield client


@pytest.fixture
async def ready(client):
    return structs_tools(client)


def existing(node, kind):
    return node.data.ids(kind)[0]


# Tool descriptions


@pytest.mark.parametrize("kind", KINDS)
async def test_query_tool_signature_shows_its_id_parameter(ready, kind):
    """Signature and type hints equal those of a function with these parameters."""
    tool = ready[f"structs_query_{kind}"]
    first, *options = inspect.signature(tool).parameters.values()
    hints = typing.get_type_hints(tool)

    assert (f"{kind}_id", inspect.Parameter.POSITIONAL_OR_KEYWORD) == (first.name, first.kind)
    assert [*REFERENCES] == [option.name for option in options]
    assert {f"{kind}_id": str, "return": dict[str, typing.Any], **REFERENCES} == hints
    assert inspect.iscoroutinefunction(tool)


@pytest.mark.parametrize("kind", KINDS)
async def test_list_tool_signature_shows_paging_parameters(ready, kind):
    tool = ready[f"structs_list_{kind}s"]
    parameters = inspect.signature(tool).parameters
    hints = typing.get_type_hints(tool)

    assert ["pagination_key", "pagination_limit", *REFERENCES] == [*parameters]
    assert [None, 100] == [parameters[name].default for name in ("pagination_key", "pagination_limit")]
    assert [str | None, int] == [hints[name] for name in ("pagination_key", "pagination_limit")]


async def test_tool_names_are_consistent(ready):
    """Dictionary key, function name and model-facing name are equal."""
    assert 20 == len(ready)
    assert [*ready] == [tool.__name__ for tool in ready.values()] == [tool.__qualname__ for tool in ready.values()]
    assert [*ready] == [Tool.from_function(tool).name for tool in ready.values()]
    assert {"mama_structs.structs.source"} == {tool.__module__ for tool in ready.values()}


async def test_tool_descriptions_say_when_to_use_the_tool_and_when_not(ready):
    for name, tool in ready.items():
        description = Tool.from_function(tool).description
        use, avoid = description.splitlines()

        assert use.startswith("Use when ")
        assert avoid.startswith("Don't use for ")
        others = [other for other in ready if other in avoid]
        assert others
        assert name not in others


async def test_tool_definitions_do_not_exceed_their_size(ready):
    """Each model request includes all twenty definitions. The limit may only be lowered."""
    tools = [Tool.from_function(tool) for tool in ready.values()]
    definitions = [
        {"name": one.name, "description": one.description, "input_schema": one.input_schema} for one in tools
    ]

    assert 13_967 >= sum(len(to_json_text(one).encode()) for one in definitions)


async def test_tool_titles_are_written_for_people(ready):
    titles = {name: Tool.from_function(tool).title for name, tool in ready.items()}

    assert "Look up a player" == titles["structs_query_player"]
    assert "Look up an allocation" == titles["structs_query_allocation"]
    assert "List planets" == titles["structs_list_planets"]
    assert 20 == len(set(titles.values()))


async def test_session_has_tools_with_same_definitions(node, ready):
    """All of them are read-only."""
    async with Session.open(structs=node.url) as session:
        for name, function in ready.items():
            tool, own = session.tools[name], Tool.from_function(function)

            assert (own.title, own.description, own.input_schema) == (tool.title, tool.description, tool.input_schema)
            assert tool.annotations.read_only


async def test_id_parameter_description_has_an_example_of_its_type(ready):
    for kind, example in KINDS.items():
        schema = Tool.from_function(ready[f"structs_query_{kind}"]).input_schema
        described = schema["properties"][f"{kind}_id"]["description"]

        assert described.startswith(f"Such as {example.split('-')[0]}-")
        assert [f"{kind}_id"] == schema["required"]


# Tool arguments


@pytest.mark.parametrize("kind", KINDS)
async def test_query_tool_accepts_id_by_name_and_by_position(ready, node, kind):
    entity_id = existing(node, kind)
    tool = ready[f"structs_query_{kind}"]

    assert await tool(entity_id) == await tool(**{f"{kind}_id": entity_id})
    assert 1 == node.count(entity_id)


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'player_id'"),
        (("1-11", "1-12"), {}, "too many positional arguments"),
        (("1-11",), {"player_id": "1-11"}, "multiple values for argument 'player_id'"),
        ((), {"entity_id": "1-11"}, "player_id"),
    ],
)
async def test_call_with_wrong_signature_raises_type_error(ready, node, args, kwargs, said):
    """The error has the name of the tool."""
    with pytest.raises(TypeError, match=r"structs_query_player\(\)") as raised:
        await ready["structs_query_player"](*args, **kwargs)

    assert said in str(raised.value)
    assert [] == node.requests


async def test_query_tool_rejects_id_of_other_type_without_request(ready, node):
    with pytest.raises(
        InvalidArgument, match="agreement_id must be the id of an agreement, got 1-11, which is a player"
    ):
        await ready["structs_query_agreement"]("1-11")
    with pytest.raises(InvalidArgument, match="player_id: an entity id must look like") as raised:
        await ready["structs_query_player"]("player 11")

    assert "invalid_argument" == raised.value.type
    assert 1 == str(raised.value).count("(")
    assert [] == node.requests


@pytest.mark.parametrize("limit", [0, -1, 1001, True, 2.5, "10", None])
async def test_list_tool_rejects_limit_out_of_range(ready, node, limit):
    with pytest.raises(InvalidArgument, match="pagination_limit must be a whole number from 1 to 1000, got "):
        await ready["structs_list_players"](pagination_limit=limit)

    assert [] == node.requests


@pytest.mark.parametrize("key", ["no base64!", 7, "A" * 10_000, b"AA=="])
async def test_list_tool_rejects_invalid_page_key(ready, node, key):
    with pytest.raises(InvalidArgument, match="pagination_key must be the next_key of a page, got "):
        await ready["structs_list_players"](pagination_key=key)

    assert [] == node.requests


async def test_list_tool_treats_empty_page_key_as_none(ready, node):
    """Models often pass "" for an omitted argument."""
    first = await ready["structs_list_players"](pagination_key="", pagination_limit=3)

    assert first == await ready["structs_list_players"](pagination_key=None, pagination_limit=3)
    assert 1 == len(node.requests)
    assert {"pagination.limit": "3"} == node.requests[0].query


BAD = {
    "query": [{}, {"{}": 7}, {"{}": None}, {"{}": ["1-1"]}, {"{}": "1-1", "colour": "red"}],
    "list": [
        {"pagination_limit": 0},
        {"pagination_limit": 1001},
        {"pagination_limit": "a few"},
        {"pagination_limit": 2.5},
        {"pagination_key": 7},
        {"key": "AA=="},
    ],
    "both": [
        {"include_references": "some"},
        {"reference_depth": 3},
        {"reference_depth": -1},
        {"reference_types": 7},
        {"max_references": -1},
        {"max_references_per_entity": -1},
    ],
}
# Arguments that violate the schema are accepted if they are unambiguous or belong to hidden parameters.
MENDED = {
    "query": [],
    "list": [{"pagination_limit": "3"}, {"pagination_limit": None}],
    "both": [
        {"reference_types": "player"},
        {"include_references": "true"},
        {"Reference_Depth": "1"},
        {"reference_depth": "2"},
        {"include_references": True, "max_references": 0},
        {"Max_References_Per_Entity": "0"},
    ],
}
GOOD = [
    {},
    {"include_references": "primary", "reference_depth": 2, "reference_types": ["player"]},
    {"include_references": True, "reference_types": []},
]


@pytest.mark.parametrize(
    "name", [f"structs_query_{kind}" for kind in KINDS] + [f"structs_list_{kind}s" for kind in KINDS]
)
async def test_tool_schema_and_validation_agree(node, name):
    """Invalid arguments are rejected before a request is sent, unless they can be repaired."""
    form, kind = name.split("_")[1], name.split("_")[2].removesuffix("s" if "_list_" in name else "")
    own = {f"{kind}_id": existing(node, kind)} if form == "query" else {"pagination_limit": 2}
    async with Session.open(structs=node.url) as session:
        schema = jsonschema.Draft202012Validator(session.tools[name].input_schema)
        for bad in BAD[form]:
            arguments = {key.format(f"{kind}_id"): value for key, value in bad.items()}
            assert not schema.is_valid(arguments), arguments
            with pytest.raises(InvalidArgument, match=name):
                await session.call(name, arguments)
        for bad in BAD["both"]:
            assert not schema.is_valid(own | bad), bad
            with pytest.raises(InvalidArgument, match=name):
                await session.call(name, own | bad)
        assert [] == node.requests

        for good in GOOD:
            assert schema.is_valid(own | good), good
            assert await session.call(name, own | good)
        for mended in (*MENDED[form], *MENDED["both"]):
            assert not schema.is_valid(own | mended), mended
            assert await session.call(name, own | mended)


# Sources of the tools


@pytest.mark.parametrize("origin", ["http://localhost:1317", "nonsense"])
def test_tools_reject_url(origin):
    """The client for it could never be closed. The hint names the alternatives."""
    with pytest.raises(InvalidArgument, match="could never be closed") as raised:
        structs_tools(origin)

    assert "give a StructsClient" in raised.value.hint
    assert "Session.open(structs=URL)" in raised.value.hint


async def test_tools_reject_object_with_url(node):
    with pytest.raises(InvalidArgument, match="could never be closed"):
        structs_tools(node)


async def test_tools_accept_source_that_host_can_close(node):
    source = StructsSource(node.url)
    answer = await structs_tools(source)["structs_query_guild"]("0-1")
    await source.close()

    assert "0-1" == answer["Guild"]["id"]
    assert 0 == node.in_flight


async def test_tools_of_fetch_only_object_are_query_tools():
    fetches = Fetches()
    ready = structs_tools(fetches)

    assert 10 == len(ready)
    assert {"id": "1-11"} == await ready["structs_query_player"]("1-11")
    assert ["1-11"] == fetches.asked


@pytest.mark.parametrize("origin", [None, 7, object()])
def test_tools_reject_origin_without_fetch(origin):
    with pytest.raises(InvalidArgument, match="structs must be"):
        structs_tools(origin)


async def test_tools_accept_resolver_on_the_same_chain(client, node):
    """The same chain means the same client, base URL or object."""
    fetches = Fetches()
    source = StructsSource(client)
    for origin, sources in (
        (client, [StructsSource(client)]),
        (source, [source]),
        (StructsClient(node.url), [StructsSource(client)]),
        (fetches, [StructsSource(fetches)]),
        (fetches, [Source(STRUCTS_SCHEME, fetch=fetches.fetch)]),
    ):
        assert structs_tools(origin, resolver=Resolver(sources))


async def test_tools_reject_resolver_on_another_chain(client):
    elsewhere = StructsSource(StructsClient("http://localhost:9"))
    for sources in (
        [],
        [elsewhere],
        [Source(STRUCTS_SCHEME, fetch=Fetches().fetch)],
        [StructsSource(Fetches())],
    ):
        with pytest.raises(InvalidArgument, match="resolver must ask the chain that the tools ask"):
            structs_tools(client, resolver=Resolver(sources))
    with pytest.raises(InvalidArgument, match="resolver must be a Resolver"):
        structs_tools(client, resolver="http://localhost:1317")


async def test_pages_of_two_chains_are_cached_separately():
    """Holds even if tools of two chains use the same resolver."""
    async with (
        FakeNode(World.generate(seed=1, players=12)) as first,
        FakeNode(World.generate(seed=2, players=12)) as second,
        StructsClient(first.url) as one,
        StructsClient(second.url) as other,
        Resolver([StructsSource(one)]) as resolver,
    ):
        ready = structs_tools(one, resolver=resolver)
        mine = await ready["structs_list_guilds"]()
        # Add the second source directly, because `structs_tools` rejects a resolver of another chain.
        resolver.sources = (StructsSource(other), *resolver.sources)
        theirs = await structs_tools(other, resolver=resolver)["structs_list_guilds"]()

        assert [first.data.rows("guild"), second.data.rows("guild")] == [mine["Guild"], theirs["Guild"]]


async def test_resolvers_of_one_node_share_their_cache_and_request_limit():
    """Two sessions in one process must not query the same entity twice."""
    async with (
        FakeNode(World.generate(seed=1, players=12)) as node,
        StructsClient(node.url) as client,
        StructsClient(node.url) as other,
        Resolver([StructsSource(client)]) as first,
        Resolver([StructsSource(other)]) as second,
    ):
        payload = {"playerId": node.data.rows("player")[0]["id"]}
        for resolver in (first, second):

            @with_references(resolver=resolver)
            async def get_payload() -> dict[str, str]:
                return payload

            assert payload["playerId"] in (await get_payload(include_references=True))["references"]

        assert [1, 0] == [resolver.stats.upstream_queries for resolver in (first, second)]
        assert client._join_gate(first, 4) is other._join_gate(second, 4)


def test_importing_structs_source_does_not_import_msgspec():
    code = "import sys, mama_structs.structs.source; sys.exit('msgspec' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
