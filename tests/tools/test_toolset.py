"""The toolset of a session: a mapping from names to tools."""

import functools

import pytest

from mama_structs.errors import InvalidArgument, UnknownTool
from mama_structs.tools.tool import Tool, ToolAnnotations, ToolSet


async def save(text: str) -> dict:
    return {"saved": (text,)}


async def search(query: str, ctx=None):
    return [query, ctx]


@pytest.fixture
def tools():
    tools = ToolSet()
    tools.add(save, name="save/decision")
    tools.add(search)
    return tools


def test_tool_set_keeps_insertion_order(tools):
    assert ("save/decision", "search") == tools.names == tuple(tools)
    assert 2 == len(tools)
    assert "search" in tools
    assert "save" not in tools
    assert "Search" == tools["search"].title
    assert tools["search"] is tools.get("search")
    assert tools.get("find") is None
    assert ["save/decision", "search"] == [tool.name for tool in tools.values()]
    assert "ToolSet(save/decision, search)" == repr(tools)


def test_unknown_name_error_suggests_similar_names(tools):
    with pytest.raises(UnknownTool, match=r"no tool named 'saved/decisions'.*did you mean save/decision\?") as caught:
        tools["saved/decisions"]

    assert "saved/decisions" == caught.value.tool
    with pytest.raises(UnknownTool, match="there are: save/decision, search"):
        tools["zzz"]
    with pytest.raises(UnknownTool, match="there are: none"):
        ToolSet()["zzz"]


def test_unknown_name_error_lists_ten_names():
    tools = ToolSet()
    for number in range(12):
        tools.add(search, name=f"tool{number}")
    with pytest.raises(UnknownTool) as caught:
        tools["zzz"]

    assert f"there are: {', '.join(f'tool{number}' for number in range(10))}, and 2 more" == caught.value.hint


def test_add_rejects_existing_name(tools):
    with pytest.raises(InvalidArgument, match=r"already is a tool named 'search'.*replace=True"):
        tools.add(save, name="search")

    assert 2 == len(tools)


CELL = """
import functools
from mama_structs import with_references

async def find(query: str) -> str:
    return "%s"

def count(text: str) -> int:
    return len(text)

@with_references
async def look(query: str) -> dict:
    return {}

functions = find, count, look
"""


def test_add_replaces_function_of_rerun_notebook_cell():
    """Covers async, synchronous and decorated functions."""
    tools, cells = ToolSet(), {"__name__": "__main__"}
    for answer in ("first", "second"):
        exec(CELL % answer, cells)
        for function in cells["functions"]:
            tools.add(function)

    assert ("find", "count", "look") == tools.names
    assert [cells["find"]] == [tool.function for tool in tools.values()][:1]


class Shop:
    async def find(self, query: str) -> str:
        return query

    def count(self, text: str) -> int:
        return len(text)


def _made(_number):
    async def inner(query: str) -> str:
        return query

    return inner


@pytest.mark.parametrize(
    "several",
    [
        lambda: (Shop().find, Shop().find),
        lambda: (Shop().count, Shop().count),
        lambda: (_made(1), _made(2)),
        lambda: (functools.partial(save, "a"), functools.partial(save, "b")),
        lambda: (Tool.from_function(save), Tool.from_function(search)),
    ],
)
def test_add_rejects_different_callable_of_same_name(several):
    """Covers methods of two objects, functions that are created twice, and partials."""
    tools = ToolSet()
    first, second = several()
    tools.add(first, name="one")
    tools.add(first, name="one")
    with pytest.raises(InvalidArgument, match="already is a tool"):
        tools.add(second, name="one")
    replaced = tools.add(second, name="one", replace=True)

    assert [replaced] == [*tools.values()]


def test_remove_returns_tool(tools):
    search_tool = tools["search"]

    assert search_tool is tools.remove("search")
    assert ("save/decision",) == tools.names
    with pytest.raises(UnknownTool):
        tools.remove("search")


def test_add_accepts_tool_under_another_name(tools):
    tool = Tool.from_function(save)

    assert tool is tools.add(tool)
    renamed = tools.add(tool, name="keep", annotations=ToolAnnotations(read_only=True))
    assert ("keep", tool.title, True) == (renamed.name, renamed.title, renamed.annotations.read_only)


def test_add_with_invalid_name_changes_nothing(tools):
    with pytest.raises(InvalidArgument, match="tool's name"):
        tools.add(tools["search"], name="a b")

    assert 2 == len(tools)


async def test_call_returns_json_data(tools):
    assert {"saved": ["x"]} == await tools.call("save/decision", {"text": "x"})


async def test_call_rejects_unknown_name_and_arguments(tools):
    with pytest.raises(UnknownTool):
        await tools.call("save/decisions", {})
    with pytest.raises(InvalidArgument, match="save/decision: text is required"):
        await tools.call("save/decision", {})
    with pytest.raises(InvalidArgument, match="1 is no argument"):
        await tools.call("save/decision", {"text": "x", 1: 2})


async def test_model_cannot_set_host_parameters(tools):
    assert ["x", 7] == await tools.call("search", {"query": "x"}, host={"ctx": 7})
    with pytest.raises(InvalidArgument, match="'ctx' is no argument"):
        await tools.call("search", {"query": "x", "ctx": 7})


async def test_call_replaces_result_without_json_form(tools):
    async def give():
        return object()

    tools.add(give)

    assert "[object: not shown, has no JSON form; the tool has run]" == await tools.call("give", {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"annotations": {"read_only": True}}, "annotations must be a ToolAnnotations, got dict"),
        ({"description": ["Attack."]}, "description must be a text, got list"),
        ({"title": 5}, "title must be a text, got int"),
    ],
)
def test_add_rejects_texts_that_adapters_cannot_send(given, said):
    """One invalid description would break every later list of tools."""

    async def attack(planet_id: str) -> None:
        """Attack a planet."""

    tools = ToolSet()
    for added in (attack, Tool.from_function(attack)):
        with pytest.raises(InvalidArgument, match=said):
            tools.add(added, **given)

    assert not tools
