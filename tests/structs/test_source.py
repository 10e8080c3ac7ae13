"""The ready-made tools: what they say of themselves, what they take, and whom they ask."""

import inspect
import subprocess
import sys
import typing
from collections.abc import Sequence
from typing import Literal

import jsonschema
import pytest

from mama_structs import EntityType, Resolver, Session, Source, StructsClient, StructsSource
from mama_structs._internal.jsonable import json_text
from mama_structs.errors import InvalidArgument
from mama_structs.structs import STRUCTS_SCHEME, tools
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
    """Anything with an async fetch; it answers with the id."""

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
    return tools(client)


def existing(node, kind):
    return node.data.ids(kind)[0]


# What they say of themselves


@pytest.mark.parametrize("kind", KINDS)
async def test_a_query_tool_shows_its_real_parameter(ready, kind):
    """Signature and type hints of a query tool are as if it was written out, its options behind its parameter."""
    tool = ready[f"structs_query_{kind}"]
    first, *options = inspect.signature(tool).parameters.values()
    hints = typing.get_type_hints(tool)

    assert (f"{kind}_id", inspect.Parameter.POSITIONAL_OR_KEYWORD) == (first.name, first.kind)
    assert [*REFERENCES] == [option.name for option in options]
    assert {f"{kind}_id": str, "return": dict[str, typing.Any], **REFERENCES} == hints
    assert inspect.iscoroutinefunction(tool)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_list_tool_shows_its_real_parameters(ready, kind):
    """A list tool takes key and limit by name, with their defaults."""
    tool = ready[f"structs_list_{kind}s"]
    parameters = inspect.signature(tool).parameters
    hints = typing.get_type_hints(tool)

    assert ["pagination_key", "pagination_limit", *REFERENCES] == [*parameters]
    assert [None, 100] == [parameters[name].default for name in ("pagination_key", "pagination_limit")]
    assert [str | None, int] == [hints[name] for name in ("pagination_key", "pagination_limit")]


async def test_names_are_everywhere_the_same(ready):
    """A tool is found under the name that tracebacks and models see."""
    assert 20 == len(ready)
    assert [*ready] == [tool.__name__ for tool in ready.values()] == [tool.__qualname__ for tool in ready.values()]
    assert [*ready] == [Tool.from_function(tool).name for tool in ready.values()]
    assert {"mama_structs.structs.source"} == {tool.__module__ for tool in ready.values()}


async def test_descriptions_say_when_and_when_not(ready):
    """Each description says when to use the tool, and which other tool to use when not."""
    for name, tool in ready.items():
        description = Tool.from_function(tool).description
        use, avoid = description.splitlines()

        assert use.startswith("Use when ")
        assert avoid.startswith("Don't use for ")
        others = [other for other in ready if other in avoid]
        assert others
        assert name not in others


async def test_definitions_cost_little(ready):
    """Each request to a model carries all twenty: the figure may fall, and never rise."""
    tools = [Tool.from_function(tool) for tool in ready.values()]
    definitions = [
        {"name": one.name, "description": one.description, "input_schema": one.input_schema} for one in tools
    ]

    assert 13_967 >= sum(len(json_text(one).encode()) for one in definitions)


async def test_titles_are_written(ready):
    """Titles are for people: no title is a name with its underscores taken out."""
    titles = {name: Tool.from_function(tool).title for name, tool in ready.items()}

    assert "Look up a player" == titles["structs_query_player"]
    assert "Look up an allocation" == titles["structs_query_allocation"]
    assert "List planets" == titles["structs_list_planets"]
    assert 20 == len(set(titles.values()))


async def test_a_session_shows_the_same(node, ready):
    """The tools of a session have these titles, descriptions and schemas, and only read."""
    async with Session.open(structs=node.url) as session:
        for name, function in ready.items():
            tool, own = session.tools[name], Tool.from_function(function)

            assert (own.title, own.description, own.input_schema) == (tool.title, tool.description, tool.input_schema)
            assert tool.annotations.read_only


async def test_parameters_are_described_with_an_example(ready):
    """A model sees what to give and, for the id, one of the right type."""
    for kind, example in KINDS.items():
        schema = Tool.from_function(ready[f"structs_query_{kind}"]).input_schema
        described = schema["properties"][f"{kind}_id"]["description"]

        assert described.startswith(f"Such as {example.split('-')[0]}-")
        assert [f"{kind}_id"] == schema["required"]


# What they take


@pytest.mark.parametrize("kind", KINDS)
async def test_ids_go_by_name_and_by_position(ready, node, kind):
    """Both ways of giving the id ask the node for it."""
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
async def test_wrong_calls_are_type_errors(ready, node, args, kwargs, said):
    """A call that does not fit the signature fails as one of a plain function, by the tool's name."""
    with pytest.raises(TypeError, match=r"structs_query_player\(\)") as raised:
        await ready["structs_query_player"](*args, **kwargs)

    assert said in str(raised.value)
    assert [] == node.requests


async def test_ids_of_another_type_are_refused(ready, node):
    """The message has the right article and names the parameter, and nothing is asked."""
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
async def test_limits_out_of_bounds_are_named(ready, node, limit):
    """A limit that breaks the rule is refused under the parameter's own name."""
    with pytest.raises(InvalidArgument, match="pagination_limit must be a whole number from 1 to 1000, got "):
        await ready["structs_list_players"](pagination_limit=limit)

    assert [] == node.requests


@pytest.mark.parametrize("key", ["no base64!", 7, "A" * 10_000, b"AA=="])
async def test_keys_that_are_none_are_named(ready, node, key):
    """What cannot be the key of a page is refused under the parameter's own name."""
    with pytest.raises(InvalidArgument, match="pagination_key must be the next_key of a page, got "):
        await ready["structs_list_players"](pagination_key=key)

    assert [] == node.requests


async def test_an_empty_key_is_none(ready, node):
    """Models write "" for what they leave out: it means the first page, which is asked for once."""
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
# Not in the schema, too, but each can only mean one thing, or is taken without being shown.
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
async def test_schemas_and_refusals_agree(node, name):
    """What a tool's schema allows it takes; what it forbids it refuses before it asks, unless that can be mended."""
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


# Whom they ask


@pytest.mark.parametrize("origin", ["http://localhost:1317", "nonsense"])
def test_a_url_alone_is_refused(origin):
    """Nobody could close the client that a URL would need; the hint says what to give instead."""
    with pytest.raises(InvalidArgument, match="could never be closed") as raised:
        tools(origin)

    assert "give a StructsClient" in raised.value.hint
    assert "Session.open(structs=URL)" in raised.value.hint


async def test_an_object_with_a_url_is_refused(node):
    """A node has no more than a URL."""
    with pytest.raises(InvalidArgument, match="could never be closed"):
        tools(node)


async def test_a_source_made_from_a_url_can_be_closed(node):
    """A source of the host's own is taken: the host closes it."""
    source = StructsSource(node.url)
    answer = await tools(source)["structs_query_guild"]("0-1")
    await source.close()

    assert "0-1" == answer["Guild"]["id"]
    assert 0 == node.in_flight


async def test_what_only_fetches_gives_query_tools():
    """Without a node there are no pages."""
    fetches = Fetches()
    ready = tools(fetches)

    assert 10 == len(ready)
    assert {"id": "1-11"} == await ready["structs_query_player"]("1-11")
    assert ["1-11"] == fetches.asked


@pytest.mark.parametrize("origin", [None, 7, object()])
def test_what_cannot_answer_is_refused(origin):
    """An origin must be able to fetch."""
    with pytest.raises(InvalidArgument, match="structs must be"):
        tools(origin)


async def test_a_resolver_on_the_same_chain_is_taken(client, node):
    """The same client, the same base URL or the same object that fetches: the resolver asks what the tools ask."""
    fetches = Fetches()
    source = StructsSource(client)
    for origin, sources in (
        (client, [StructsSource(client)]),
        (source, [source]),
        (StructsClient(node.url), [StructsSource(client)]),
        (fetches, [StructsSource(fetches)]),
        (fetches, [Source(STRUCTS_SCHEME, fetch=fetches.fetch)]),
    ):
        assert tools(origin, resolver=Resolver(sources))


async def test_a_resolver_on_another_chain_is_refused(client):
    """A resolver that would send the tools' ids elsewhere, or nowhere, is refused at once."""
    elsewhere = StructsSource(StructsClient("http://localhost:9"))
    for sources in (
        [],
        [elsewhere],
        [Source(STRUCTS_SCHEME, fetch=Fetches().fetch)],
        [StructsSource(Fetches())],
    ):
        with pytest.raises(InvalidArgument, match="resolver must ask the chain that the tools ask"):
            tools(client, resolver=Resolver(sources))
    with pytest.raises(InvalidArgument, match="resolver must be a Resolver"):
        tools(client, resolver="http://localhost:1317")


async def test_two_chains_never_share_a_page():
    """A page is kept under its chain's name, also where two chains' tools use the same resolver."""
    async with (
        FakeNode(World.generate(seed=1, players=12)) as first,
        FakeNode(World.generate(seed=2, players=12)) as second,
        StructsClient(first.url) as one,
        StructsClient(second.url) as other,
        Resolver([StructsSource(one)]) as resolver,
    ):
        ready = tools(one, resolver=resolver)
        mine = await ready["structs_list_guilds"]()
        # As it would be if the check above was ever relaxed.
        resolver.sources = (StructsSource(other), *resolver.sources)
        theirs = await tools(other, resolver=resolver)["structs_list_guilds"]()

        assert [first.data.rows("guild"), second.data.rows("guild")] == [mine["Guild"], theirs["Guild"]]


def test_importing_the_toolbox_needs_no_schemas():
    """The library that makes schemas loads with the first tools, not with this module."""
    code = "import sys, mama_structs.structs.source; sys.exit('msgspec' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
