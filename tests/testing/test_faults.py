import asyncio
import gzip
import json
import math
import time

import aiohttp
import pytest

from mama_structs.errors import InvalidArgument
from mama_structs.testing import FakeNode, Fault, FaultAnswer

PLAYER = "/structs/player/1-11"


async def test_rate_limits_say_when_to_come_back(node, get):
    """A 429 carries Retry-After, when it is given."""
    node.faults.add(Fault.rate_limited(retry_after=7), times=1)
    node.faults.add(Fault.rate_limited(retry_after=None), times=1)
    first, second, third = [await get(PLAYER) for _ in range(3)]

    assert (429, "7") == (first.status, first.headers["Retry-After"])
    assert (429, False) == (second.status, "Retry-After" in second.headers)
    assert 200 == third.status


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_proxy_answers_in_html(node, get, status):
    """An overloaded node shows its proxy's page, which is no JSON and names no block."""
    node.faults.add(Fault.unavailable(status=status, retry_after=1))
    reply = await get(PLAYER)

    assert (status, "text/html", "1") == (reply.status, reply.headers["Content-Type"], reply.headers["Retry-After"])
    assert "Grpc-Metadata-X-Cosmos-Block-Height" not in reply.headers
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(reply.text)


async def test_an_error_in_the_gateways_form(node, get):
    """Any gRPC code can come with any status."""
    node.faults.add(Fault.error(status=503, code=14, message="unavailable"))
    reply = await get(PLAYER)

    assert (503, {"code": 14, "message": "unavailable", "details": []}) == (reply.status, reply.json)


async def test_html_with_status_200(node, get):
    """A captive portal answers 200 with a page."""
    node.faults.add(Fault.html())
    reply = await get(PLAYER)

    assert (200, "<html>") == (reply.status, reply.text[:6])


async def test_a_redirect_points_elsewhere(node, get):
    """A redirect names the other place, and only the client decides to follow."""
    node.faults.add(Fault.redirect("http://127.0.0.1:9/elsewhere"))
    reply = await get(PLAYER)

    assert (302, "http://127.0.0.1:9/elsewhere") == (reply.status, reply.headers["Location"])


async def test_a_dropped_connection_gives_no_answer(node, get):
    """The connection ends before the first byte."""
    node.faults.add(Fault.dropped(), on="1-11")
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(PLAYER)

    assert 200 == (await get("/structs/player/1-12")).status


async def test_a_cut_connection_ends_within_the_body(node, get):
    """The headers and half of the body come, then nothing."""
    node.faults.add(Fault.cut())
    with pytest.raises(aiohttp.ClientPayloadError):
        await get(PLAYER)

    assert 0 < node.bytes_sent


async def test_a_hung_request_is_let_go_when_the_client_gives_up(node, until):
    """A client that gives up frees the request and its connection; the node notices."""
    node.faults.add(Fault.hung(), on="1-11")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(TimeoutError):
            await session.get(node.url + PLAYER, timeout=aiohttp.ClientTimeout(total=0.1))
        await until(lambda: not node.open_connections)

        assert (0, 0) == (node.in_flight, node.open_connections)


async def test_a_hung_request_does_not_hold_up_the_end(until):
    """Closing the node drops what hangs, at once."""
    async with FakeNode(faults=[Fault.hung()]) as node, aiohttp.ClientSession() as session:
        request = asyncio.create_task(session.get(node.url + PLAYER, timeout=aiohttp.ClientTimeout(total=600)))
        await until(lambda: node.in_flight)
        assert 1 == node.open_connections
        await node.close()
        assert (0, 0) == (node.in_flight, node.open_connections)
        with pytest.raises(aiohttp.ClientError):
            await request


async def test_a_delay_beyond_the_query_timeout(node):
    """A late answer is late by what was asked for, on top of the latency."""
    node.latency["*"] = 0.1
    node.faults.add(Fault.delayed(2.5))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(TimeoutError):
            await session.get(node.url + PLAYER, timeout=aiohttp.ClientTimeout(total=0.3))
    node.faults.clear()
    node.faults.add(Fault.delayed(0.1))
    async with aiohttp.ClientSession() as session:
        started = time.monotonic()
        async with session.get(node.url + PLAYER):
            assert time.monotonic() - started >= 0.2


async def test_a_gzip_bomb_is_small_on_the_wire(node):
    """A thousandth travels, and becomes valid JSON of the size asked for."""
    node.faults.add(Fault.gzip_bomb(size=20_000_000))
    async with aiohttp.ClientSession(auto_decompress=False) as session, session.get(node.url + PLAYER) as response:
        wire = await response.read()

    assert "gzip" == response.headers["Content-Encoding"]
    assert len(wire) < 40_000
    assert len(wire) == node.bytes_sent
    assert 20_000_000 == len(gzip.decompress(wire))
    assert {"Player"} == json.loads(gzip.decompress(wire)).keys()


async def test_an_oversized_body_is_still_the_right_answer(node, get):
    """Padding makes it large, not wrong."""
    expected = node.data.envelope("1-11")
    node.faults.add(Fault.oversized(size=3_000_000))
    reply = await get(PLAYER)

    assert 3_000_000 == len(reply.text.encode())
    assert expected == reply.json


async def test_truncated_json(node, get):
    """The answer ends in the middle of the JSON."""
    node.faults.add(Fault.truncated())
    with pytest.raises(json.JSONDecodeError):
        assert (await get(PLAYER)).json


async def test_invalid_utf8(node, get):
    """The bytes are no text."""
    node.faults.add(Fault.invalid_utf8())
    with pytest.raises(UnicodeDecodeError):
        await get(PLAYER)


async def test_nan_in_json(node, get):
    """NaN stands where a number should, which lenient readers take."""
    node.faults.add(Fault.nan())
    reply = await get(PLAYER)

    assert '"index":NaN' in reply.text
    assert math.isnan(reply.json["Player"]["index"])


async def test_deeply_nested_json(node, get):
    """Nesting is deep enough to exhaust a recursive reader."""
    node.faults.add(Fault.nested(levels=50_000))

    assert "[" * 50_000 in (await get(PLAYER)).text


@pytest.mark.parametrize(
    ("path", "where"),
    [
        (PLAYER, lambda body: body["Player"]),
        ("/structs/planet?pagination.limit=2", lambda body: body["Planet"][0]),
        ("/structs/address/structs1nobody", lambda body: body),
    ],
)
async def test_a_field_of_the_wrong_type(node, get, path, where):
    """The record, a list's first row, or the flat answer is malformed in one field."""
    node.faults.add(Fault.wrong_field(field="owner", value=7))

    assert 7 == where((await get(path)).json)["owner"]


async def test_another_entity_than_the_one_asked_for(node, get):
    """The answer is about somebody else."""
    node.faults.add(Fault.wrong_entity("1-12"), on="1-11")

    assert "1-12" == (await get(PLAYER)).json["Player"]["id"]


async def test_a_list_instead_of_an_object(node, get):
    """Valid JSON of the wrong shape; a field cannot be wrong in it."""
    node.faults.add(Fault.not_an_object(), Fault.wrong_field(field="id", value=1))

    assert [node.data.envelope("1-11")] == (await get(PLAYER)).json


@pytest.mark.parametrize("on", [PLAYER, "1-11", "/structs/player/{id}", "player", "*"])
async def test_faults_meet_whom_they_name(node, get, on):
    """A path, an id, a route, a type or everything can be named."""
    node.faults.add(Fault.unavailable(), on=on)

    assert 503 == (await get(PLAYER)).status
    assert (503 if on == "*" else 200) == (await get("/structs/planet/2-1")).status
    node.faults.clear(on)
    assert 200 == (await get(PLAYER)).status


async def test_faults_come_in_the_order_of_their_rules(node, get):
    """Several rules are a sequence; what other requests meet uses nothing up."""
    node.faults.add(Fault.rate_limited(), on="1-11", times=2)
    node.faults.add(Fault.unavailable(), on="1-11", times=1)
    await get("/structs/player/1-12")

    assert [429, 429, 503, 200] == [(await get(PLAYER)).status for _ in range(4)]


async def test_faults_of_one_rule_come_together(node, get):
    """Several faults in one rule change the same answer, a test's own among them."""
    shout = Fault("upper case", lambda answer: FaultAnswer(answer.status, answer.headers, answer.body.upper()))
    node.faults.add(Fault.wrong_entity("1-12"), shout)

    assert "1-12" == (await get(PLAYER)).json["PLAYER"]["ID"]


async def test_clear_ends_everything_or_one_name(node, get):
    """After clear all is well again; with a name only that rule ends."""
    node.faults.add(Fault.unavailable(), on="1-11")
    node.faults.add(Fault.unavailable(), on="planet")
    node.faults.clear("1-11")
    assert [200, 503] == [(await get(path)).status for path in (PLAYER, "/structs/planet/2-1")]
    node.faults.clear()
    assert 200 == (await get("/structs/planet/2-1")).status


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((), {}, "faults"),
        (("503",), {}, "faults"),
        ((Fault.html(),), {"times": 0}, "times"),
        ((Fault.html(),), {"times": True}, "times"),
        ((Fault.html(),), {"times": "2"}, "times"),
        ((Fault.html(),), {"on": "plyer"}, "on: no request can be called 'plyer'.*did you mean player"),
        ((Fault.html(),), {"on": "Player"}, "did you mean player"),
        ((Fault.html(),), {"on": ""}, "on: no request can be called ''.*give a path such as"),
        ((Fault.html(),), {"on": "/structs/player/{playerId}"}, "did you mean /structs/"),
        ((Fault.html(),), {"on": None}, "on must be the name of requests"),
    ],
)
def test_wrong_rules_are_refused(arguments, options, named):
    """What is no fault, or would never happen, is refused at once."""
    with pytest.raises(InvalidArgument, match=named):
        FakeNode(entities={}).faults.add(*arguments, **options)


@pytest.mark.parametrize(
    "on",
    [
        "*",
        "/structs/player/1-11",
        "/nowhere/at/all",
        "/structs/player/{id}",
        "player",
        "struct_type",
        "blockheight",
        "1-11",
        "14",
        "0-2-1",
        "1-2@1-19",
        "8-structs1abc@0",
        "structs1nobody",
        "structsvaloper1qqq",
        "health",
        "planetaryShield",
        "ab" * 33,
    ],
)
def test_whatever_could_be_named_is_taken(on):
    """Everything, any path, a pattern, a type, and what can stand in a path: ids, numbers, addresses, attributes, hex."""
    faults = FakeNode(entities={}).faults
    faults.add(Fault.html(), on=on)

    assert faults.take([on])
    faults.clear(on)
    assert not faults.take([on])


def test_a_misspelt_name_is_not_cleared():
    """Clearing what could not have been added is refused, too."""
    with pytest.raises(InvalidArgument, match="did you mean planet"):
        FakeNode(entities={}).faults.clear("plannet")


async def test_every_request_can_be_named_by_its_type(node, get):
    """Each route's type is a name that faults take, and one that its requests have."""
    for path in ("/blockheight", "/structs/grid/0-1-11", "/cosmos/base/tendermint/v1beta1/blocks/latest"):
        await get(path)
        *_, kind, everything = node.requests[-1].names
        node.faults.add(Fault.unavailable(), on=kind, times=1)

        assert "*" == everything
        assert 503 == (await get(path)).status


def test_a_fault_says_what_it_is():
    """The name is for people, and faults of one kind are equal."""
    assert "Fault(name='rate limited, retry after 2')" == repr(Fault.rate_limited(retry_after=2))
    assert Fault.hung() == Fault.hung()
