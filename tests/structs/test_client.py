"""Structs client: routes, arguments, lists and lifecycle."""

import ast
import asyncio
import base64
import contextlib
import inspect
import os
import subprocess
import sys
import typing
from urllib.parse import parse_qsl, quote, urlsplit

import aiohttp
import pytest

from mama_structs import structs
from mama_structs.errors import EntityNotFound, InvalidArgument, MalformedResponse, SessionClosed, WrongLoop
from mama_structs.structs import entities, routes
from mama_structs.structs.client import StructsClient
from mama_structs.structs.ids import EntityId, EntityType

ADDRESS = "structs1abc"
TYPES = [kind for kind in EntityType if kind.has_ids]
KEY = base64.b64encode(b"\xfb\xff\xfe1").decode()  # contains + / and =


@pytest.fixture
async def client(node):
    async with StructsClient(node.url) as opened:
        yield opened


def rows(*ids, next_key=None, key="Player"):
    return {key: [{"id": entity_id} for entity_id in ids], "pagination": {"next_key": next_key, "total": "0"}}


# --- single entities -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES, ids=str)
async def test_every_entity_type_has_a_typed_method(node, client, http, kind):
    """The method of a type, `fetch` and `query` use the same route."""
    text = f"{kind.code}-7"
    envelope = kind.value.capitalize()
    node.says(http({envelope: {"id": text}}, Grpc_Metadata_X_Cosmos_Block_Height=5))
    answer = await getattr(client, kind.value)(text)

    assert EntityId.parse(text) == answer.entity.id
    assert 5 == answer.height
    assert answer == await client.fetch(EntityId.parse(text))
    assert {envelope: {"id": text}} == await client.query(text)
    assert [f"/structs/{kind.value}/{text}"] * 3 == node.requests


@pytest.mark.parametrize("kind", TYPES, ids=str)
async def test_id_of_other_type_is_rejected_before_request(node, client, kind):
    """The chain would answer "not found" instead of naming the problem."""
    other = "2-1" if kind is not EntityType.PLANET else "1-1"
    with pytest.raises(InvalidArgument) as caught:
        await getattr(client, kind.value)(other)

    assert caught.value.hint
    assert [] == node.requests


@pytest.mark.parametrize("text", ["abc", "1-0", "1-01", "12-1", "1-1/../guild", "1-1?x=1", "", None, 5])
async def test_invalid_id_is_rejected_before_request(node, client, text):
    for read in (client.player, client.fetch, client.query):
        with pytest.raises(InvalidArgument):
            await read(text)

    assert [] == node.requests


@pytest.mark.parametrize("text", ["7-1", "8-1"])
async def test_types_without_ids_raise_not_found_with_hint(node, client, text):
    for read in (client.fetch, client.query):
        with pytest.raises(EntityNotFound) as caught:
            await read(text)

        assert (text, True) == (caught.value.entity_id, "no ids" in caught.value.hint)
    assert [] == node.requests


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"Player": {"id": "1-2"}}, "$.Player.id"),
        ({"Player": {}}, "$.Player.id"),
        ({"Player": None}, "$.Player"),
        ({"Player": [{"id": "1-1"}]}, "$.Player"),
        ({"player": {"id": "1-1"}}, "$"),
    ],
)
async def test_answer_about_other_entity_is_malformed(node, client, http, payload, path):
    """The raw answer is checked too."""
    node.says(http(payload))
    for read in (client.query, client.fetch, client.player):
        with pytest.raises(MalformedResponse) as caught:
            await read("1-1")

        assert path == caught.value.path


async def test_malformed_error_path_starts_at_answer_root(node, client, http):
    node.says(http({"Player": {"id": "1-1", "guildId": 5}}))
    with pytest.raises(MalformedResponse) as caught:
        await client.player("1-1")

    assert "$.Player.guildId" == caught.value.path


async def test_infusion_is_read_by_destination_and_address(node, client, http):
    """Both are checked in the answer."""
    node.says(http({"Infusion": {"destinationId": "3-1", "address": ADDRESS, "fuel": "5"}}))
    answer = await client.infusion("3-1", ADDRESS)

    assert 5 == answer.entity.fuel
    assert [f"/structs/infusion/3-1/{ADDRESS}"] == node.requests
    with pytest.raises(MalformedResponse, match=r"Infusion\.address"):
        await client.infusion("3-1", "structs1other")


async def test_unknown_infusion_error_names_both_keys(node, client, http):
    node.says(http({"code": 2, "message": "object not found"}, status=500))
    with pytest.raises(EntityNotFound) as caught:
        await client.infusion("3-1", ADDRESS)

    assert f"3-1-{ADDRESS}" == caught.value.entity_id


async def test_unknown_address_has_no_player(node, client, http):
    """The chain answers with the null player, which is not an error."""
    node.says(http({"address": ADDRESS, "playerId": "1-0", "permissions": "0"}, Grpc_Metadata_X_Cosmos_Block_Height=9))
    answer = await client.address(ADDRESS)

    assert (None, 9) == (answer.player_id, answer.height)
    assert [f"/structs/address/{ADDRESS}"] == node.requests
    with pytest.raises(MalformedResponse, match=r"\$\.address"):
        await client.address("structs1other")


@pytest.mark.parametrize("text", ["", "a/b", "../x", "structs1ABC", "structs1 ", "structs1\n", "a" * 91, "é" * 9, None])
async def test_invalid_address_is_rejected_before_request(node, client, text):
    with pytest.raises(InvalidArgument):
        await client.address(text)
    with pytest.raises(InvalidArgument):
        await client.infusion("3-1", text)

    assert [] == node.requests


async def test_struct_type_is_read_by_number(node, client, http):
    """Struct type ids have no type code."""
    node.says(http({"StructType": {"id": "14", "class": "Tank"}}))
    answer = await client.struct_type(14)

    assert (14, "Tank") == (answer.entity.id, answer.entity.class_)
    for wrong in (-1, 2**64, True, "14", None):
        with pytest.raises(InvalidArgument):
            await client.struct_type(wrong)
    assert ["/structs/struct_type/14"] == node.requests


async def test_attributes_are_read_by_name(node, client, http):
    """The chain reads an unknown name as attribute 0, so the client validates names."""
    node.says(http({"attribute": "6"}))

    assert 6 == await client.struct_attribute("5-1", "health")
    assert 6 == await client.planet_attribute("2-1", structs.PlanetAttribute.BLOCK_START_RAID)
    assert ["/structs/struct_attribute/5-1/health", "/structs/planet_attribute/2-1/blockStartRaid"] == node.requests
    for read, text in ((client.struct_attribute, "5-1"), (client.planet_attribute, "2-1")):
        with pytest.raises(InvalidArgument, match="no attribute 'armour'"):
            await read(text, "armour")


async def test_grid_record_is_read_by_attribute_id(node, client, http):
    """An attribute id consists of attribute, type and index."""
    node.says(http({"gridRecord": {"attributeId": "11-1-194", "value": "23"}}))
    record = await client.grid("11-1-194")

    assert ("11-1-194", 23) == (record.attribute_id, record.value)
    for wrong in ("1-194", "15-1-194", "11-1-0", "11-1-194-1", None):
        with pytest.raises(InvalidArgument):
            await client.grid(wrong)
    assert ["/structs/grid/11-1-194"] == node.requests


async def test_block_height_is_returned_as_number(node, client, http):
    """The format is that of the chain, not of its documentation."""
    node.says(http({"blockHeight": "12345"}), http({"height": 12345}))

    assert 12345 == await client.block_height()
    with pytest.raises(MalformedResponse, match="blockHeight"):
        await client.block_height()
    assert ["/blockheight"] * 2 == node.requests


# --- lists -----------------------------------------------------------------------------------------------------------


async def test_list_page_is_raw_and_has_a_default_limit(node, client, http):
    """Without a limit the node would count its whole store."""
    node.says(http(rows("1-1"), Grpc_Metadata_X_Cosmos_Block_Height=3))
    page = await client.list_page("player")

    assert rows("1-1") == page
    assert 3 == page.height
    assert ["/structs/player?pagination.limit=100"] == node.requests


@pytest.mark.parametrize("name", [*EntityType, "struct_type"], ids=str)
async def test_every_type_can_be_listed(node, client, http, name):
    key = routes.LIST_ROUTES[name].key
    node.says(http({key: [], "pagination": None}))

    assert {key: [], "pagination": None} == await client.list_page(name)
    assert [f"/structs/{name}?pagination.limit=100"] == node.requests


async def test_page_key_is_percent_encoded(node, client, http):
    """An unescaped plus sign would be decoded as a space."""
    node.says(http(rows()))
    await client.list_page("player", key=KEY, limit=5, reverse=True, count_total=True)

    assert {"+", "/", "="} <= set(KEY)
    assert f"pagination.key={quote(KEY, safe='')}" in node.requests[0].split("?")[1].split("&")
    assert {
        "pagination.key": KEY,
        "pagination.limit": "5",
        "pagination.reverse": "true",
        "pagination.count_total": "true",
    } == dict(parse_qsl(urlsplit(node.requests[0]).query))


async def test_offset_is_sent_without_key(node, client, http):
    node.says(http(rows()))
    await client.list_page("player", offset=0)

    assert ["/structs/player?pagination.limit=100&pagination.offset=0"] == node.requests


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("players", {}),
        ("grid", {}),
        (None, {}),
        ("player", {"key": KEY, "offset": 0}),
        ("player", {"limit": 0}),
        ("player", {"limit": True}),
        ("player", {"limit": "5"}),
        ("player", {"offset": -1}),
        ("player", {"key": "abc"}),
        ("player", {"key": ""}),
        ("player", {"key": "a b&c=d"}),
        ("player", {"key": "é==="}),
        ("player", {"key": "QUJD" * 2000}),
        ("player", {"key": 5}),
        ("player", {"reverse": "yes"}),
        ("player", {"count_total": 1}),
    ],
)
async def test_invalid_page_arguments_are_rejected_before_request(node, client, name, options):
    with pytest.raises(InvalidArgument):
        await client.list_page(name, **options)

    assert [] == node.requests


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"Player": {}}, "$.Player"),
        ({"Player": [], "pagination": []}, "$.pagination"),
        ({"Player": [], "pagination": {"next_key": 5}}, "$.pagination.next_key"),
        ({"Player": [], "pagination": {"next_key": "not base64"}}, "$.pagination.next_key"),
        ({"Player": [], "pagination": {"next_key": "QUJD" * 2000}}, "$.pagination.next_key"),
        ({"Player": [], "pagination": {"total": 5}}, "$.pagination.total"),
        ({"Player": [], "pagination": {"total": None}}, "$.pagination.total"),
        ({"player": []}, "$"),
    ],
)
async def test_invalid_page_is_malformed_for_list_page_and_iteration(node, client, http, payload, path):
    node.says(http(payload))
    for read in (client.list_page("player"), anext(client.players())):
        with pytest.raises(MalformedResponse) as caught:
            await read

        assert path == caught.value.path


@pytest.mark.parametrize(("reverse", "expected"), [(False, MalformedResponse), (True, None)])
async def test_list_page_rejects_next_key_that_leads_back(node, client, http, reverse, expected):
    """In reverse order, keys descend."""
    node.says(http(rows("1-1", next_key="QQ==")))
    with pytest.raises(expected, match="later place") if expected else contextlib.nullcontext():
        await client.list_page("player", key="Qg==", reverse=reverse)

    assert 1 == len(node.requests)


async def test_iteration_follows_pages_to_the_end(node, client, http):
    """An empty page with a next key is not the last one."""
    node.says(http(rows("1-1", "1-10", next_key="MS0xMg==")), http(rows(next_key=KEY)), http(rows("1-2")))
    found = [str(player.id) async for player in client.players(page_size=2)]

    assert ["1-1", "1-10", "1-2"] == found
    assert [None, "MS0xMg==", KEY] == [
        dict(parse_qsl(urlsplit(request).query)).get("pagination.key") for request in node.requests
    ]
    assert all("pagination.limit=2" in request for request in node.requests)


@pytest.mark.parametrize("ids", [["1-1"], []], ids=["records", "no records"])
@pytest.mark.parametrize(
    "keys", [[KEY, KEY], ["QQ==", "Qg==", "QQ=="], ["Qg==", "QQ=="], ["Qg==", "QUE="], ["not base64"]]
)
async def test_iteration_rejects_next_key_that_leads_back(node, client, http, keys, ids):
    """Keys of a list ascend in byte order. Otherwise iteration might never end."""
    node.says(*(http(rows(*ids, next_key=key)) for key in keys))
    with pytest.raises(MalformedResponse) as caught:
        async for _ in client.players():
            pass

    assert "$.pagination.next_key" == caught.value.path
    assert len(keys) == len(node.requests)


@pytest.mark.parametrize("pagination", [{}, {"pagination": None}, {"pagination": {"next_key": ""}}])
async def test_list_without_pagination_is_one_page(node, client, http, pagination):
    node.says(http({"Player": [{"id": "1-1"}], **pagination}))

    assert 1 == len([player async for player in client.players()])
    assert 1 == len(node.requests)


async def test_iteration_stopped_early_reads_no_further_pages(node, client, http):
    node.says(http(rows("1-1", "1-2", next_key=KEY)))
    players = client.players()
    await anext(players)
    await players.aclose()

    assert 1 == len(node.requests)


LISTS = {
    "guilds": ((), "guild", structs.Guild, {"id": "0-1"}),
    "players": ((), "player", structs.Player, {"id": "1-1"}),
    "planets": ((), "planet", structs.Planet, {"id": "2-1"}),
    "reactors": ((), "reactor", structs.Reactor, {"id": "3-1"}),
    "substations": ((), "substation", structs.Substation, {"id": "4-1"}),
    "structs": ((), "struct", structs.Struct, {"id": "5-1"}),
    "allocations": ((), "allocation", structs.Allocation, {"id": "6-1"}),
    "infusions": ((), "infusion", structs.Infusion, {}),
    "addresses": ((), "address", structs.Address, {"address": ADDRESS}),
    "fleets": ((), "fleet", structs.Fleet, {"id": "9-1"}),
    "providers": ((), "provider", structs.Provider, {"id": "10-1"}),
    "agreements": ((), "agreement", structs.Agreement, {"id": "11-1"}),
    "struct_types": ((), "struct_type", structs.StructType, {"id": "1"}),
    "planets_by_player": (("1-1",), "planet_by_player/1-1", structs.Planet, {"id": "2-1"}),
    "addresses_by_player": (("1-1",), "address_by_player/1-1", structs.Address, {}),
    "permissions_by_object": (("6-1",), "permission/object/6-1", entities.PermissionRecord, {}),
    "permissions_by_player": (("1-1",), "permission/player/1-1", entities.PermissionRecord, {}),
    "agreements_by_provider": (("10-1",), "agreement_by_provider/10-1", structs.Agreement, {"id": "11-1"}),
    "allocations_by_source": (("3-1",), "allocation_by_source/3-1", structs.Allocation, {"id": "6-1"}),
    "allocations_by_destination": (("4-1",), "allocation_by_destination/4-1", structs.Allocation, {"id": "6-1"}),
    "infusions_by_destination": (("3-1",), "infusion_by_destination/3-1", structs.Infusion, {}),
}
KEYS = {structs.Address: "address", entities.PermissionRecord: "permissionRecords"}


@pytest.mark.parametrize("name", LISTS)
async def test_every_list_method_returns_typed_records_of_its_route(node, client, http, name):
    arguments, route, model, row = LISTS[name]
    node.says(http({KEYS.get(model, model.__name__): [row], "pagination": {"next_key": None, "total": "0"}}))
    records = [record async for record in getattr(client, name)(*arguments, page_size=7)]

    assert [model] == [type(record) for record in records]
    assert [f"/structs/{route}?pagination.limit=7"] == node.requests


@pytest.mark.parametrize("name", LISTS)
def test_list_methods_validate_arguments_when_called(name):
    """Validation does not wait for the first record."""
    arguments, *_ = LISTS[name]
    client = StructsClient("http://localhost")
    with pytest.raises(InvalidArgument, match="page_size"):
        getattr(client, name)(*arguments, page_size=0)
    for wrong in ("8-", "9-1") if arguments and name != "permissions_by_object" else ():
        with pytest.raises(InvalidArgument):
            getattr(client, name)(wrong)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_every_type_with_ids_has_an_answer_model():
    assert set(TYPES) == routes.ANSWER_MODELS.keys()


# --- lifecycle -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://localhost:1317", "http://localhost:1317"),
        ("http://localhost:1317/", "http://localhost:1317"),
        ("https://node.example/lcd/v1//", "https://node.example/lcd/v1"),
        ("http://[::1]:1317", "http://[::1]:1317"),
        ("http://127.0.0.1:1317", "http://127.0.0.1:1317"),
        ("http://node.example.:80", "http://node.example.:80"),
        ("http://" + "a" * 63 + ".b", "http://" + "a" * 63 + ".b"),
    ],
)
def test_base_url_loses_trailing_slashes_only(given, expected):
    """A path prefix is kept."""
    assert expected == StructsClient(given).base_url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:1317",
        "ftp://localhost",
        "http://",
        "http://:80",
        "http://localhost:",
        "http://localhost:0",
        "http://localhost:99999",
        "http://localhost:x",
        "http://user:secret@localhost",
        "http://localhost?x=1",
        "http://localhost?",
        "http://localhost#x",
        "http://localhost/a b",
        "http://localhost/../x",
        "http://localhost/a//b",
        "http://local host",
        "http://localhost\n",
        " http://localhost",
        "http://lo\tcalhost",
        "http://[::1",
        "http://höst",
        "http://a..b",
        "http://.",
        "http://a..",
        "http://" + "a" * 64,
        "http://" + "a." * 126 + "aa",
        "http://127.1:9",
        "http://1.2.3.4.5",
        "http://1.2.3.4.",
        "http://01.2.3.4",
        "http://5",
        "http://[1.2.3.4]",
        "http://[v1.a]",
        "http://[:]",
        "http://[::]A",
        "http://[::]:80:80",
        "http://a\\b",
        None,
        b"http://localhost",
    ],
)
def test_invalid_base_url_is_rejected(url):
    """The error does not contain the URL, which may include a password."""
    with pytest.raises(InvalidArgument, match="base_url") as caught:
        StructsClient(url)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("inf")},
        {"timeout": float("nan")},
        {"timeout": True},
        {"timeout": "1"},
        {"max_connections": 0},
        {"max_connections": 1.5},
        {"retries": -1},
        {"retries": None},
        {"max_response_bytes": 0},
    ],
)
def test_invalid_option_is_rejected_by_name(options):
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        StructsClient("http://localhost", **options)


async def test_base_url_prefix_precedes_route(node, http):
    node.says(http({"Player": {"id": "1-1"}}))
    async with StructsClient(f"{node.url}/lcd/") as client:
        await client.player("1-1")

    assert ["/lcd/structs/player/1-1"] == node.requests


async def test_unopened_client_error_hints_at_async_with():
    client = StructsClient("http://localhost")
    with pytest.raises(InvalidArgument, match="async with"):
        await client.player("1-1")

    assert not client.is_open
    await client.close()


async def test_closed_client_raises_session_closed(node):
    """Closing it again is allowed."""
    client = await StructsClient(node.url).open()
    assert client.is_open
    await client.close()
    await client.close()

    assert not client.is_open
    for use in (client.player("1-1"), client.open(), client.list_page("player"), anext(client.players())):
        with pytest.raises(SessionClosed):
            await use


async def test_opening_twice_is_rejected(client):
    with pytest.raises(InvalidArgument, match="open already"):
        await client.open()


async def test_close_closes_http_session(node, http):
    node.says(http({"Player": {"id": "1-1"}}))
    async with StructsClient(node.url) as client:
        await client.player("1-1")
        session = client._transport.session

    assert session.closed


async def test_close_fails_reads_in_progress_with_session_closed(node):
    asked = asyncio.Event()

    async def stall(writer):
        asked.set()
        await asyncio.sleep(60)

    node.says(stall)
    client = await StructsClient(node.url).open()
    reading = asyncio.create_task(client.player("1-1"))
    await asked.wait()
    await client.close()
    with pytest.raises(SessionClosed):
        await asyncio.wait_for(reading, 50)


async def test_base_url_of_host_session_is_ignored(node, http):
    node.says(http({"Player": {"id": "1-1"}}))
    async with aiohttp.ClientSession(base_url="http://elsewhere.invalid/x/") as session:
        await StructsClient(node.url, session=session).player("1-1")

    assert ["/structs/player/1-1"] == node.requests


async def test_host_session_is_used_and_never_closed(node, http):
    node.says(http({"Player": {"id": "1-1"}}))
    async with aiohttp.ClientSession() as session:
        client = StructsClient(node.url, session=session)
        assert client.is_open
        await client.player("1-1")
        async with client:
            await client.player("1-1")

        assert not session.closed
        assert not client.is_open
        with pytest.raises(SessionClosed):
            await client.player("1-1")


async def test_closed_host_session_raises_session_closed(node):
    session = aiohttp.ClientSession()
    client = StructsClient(node.url, session=session)
    await session.close()
    with pytest.raises(SessionClosed):
        await client.player("1-1")


def test_client_in_another_loop_raises_wrong_loop():
    client = StructsClient("http://localhost")
    with asyncio.Runner() as home, asyncio.Runner() as other:
        home.run(client.open())
        for use in (client.player("1-1"), client.close(), client.open()):
            with pytest.raises(WrongLoop):
                other.run(use)
        home.run(client.close())


def test_client_may_be_created_before_fork(monkeypatch):
    """It belongs to the process that opens it."""
    client = StructsClient("http://localhost")
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)

    async def life():
        async with client:
            return client.is_open

    assert asyncio.run(life())
    monkeypatch.undo()


async def test_client_in_forked_process_raises_wrong_loop(client, monkeypatch):
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    with pytest.raises(WrongLoop):
        await client.player("1-1")
    monkeypatch.undo()


async def test_unclosed_client_emits_resource_warning(node):
    client = await StructsClient(node.url).open()
    session = client._transport.session
    with pytest.warns(ResourceWarning, match=f"StructsClient.*{node.url}.*never closed"):
        del client
    await session.close()


async def test_client_options_are_immutable(client):
    with pytest.raises(AttributeError):
        client.timeout = 0


def test_type_hints_of_every_method_resolve_without_aiohttp():
    for _, method in inspect.getmembers(StructsClient, inspect.isfunction):
        typing.get_type_hints(method)
    assert "base_url" in typing.get_type_hints(StructsClient)


def test_importing_client_does_not_import_aiohttp():
    code = "import sys, mama_structs.structs.client; print([m for m in ('aiohttp', 'yarl') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert [] == ast.literal_eval(done.stdout)
