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


async def test_rate_limited_sends_retry_after_if_given(node, get):
    node.faults.add(Fault.rate_limited(retry_after=7), times=1)
    node.faults.add(Fault.rate_limited(retry_after=None), times=1)
    first, second, third = [await get(PLAYER) for _ in range(3)]

    assert (429, "7") == (first.status, first.headers["Retry-After"])
    assert (429, False) == (second.status, "Retry-After" in second.headers)
    assert 200 == third.status


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_unavailable_sends_html_without_height(node, get, status):
    node.faults.add(Fault.unavailable(status=status, retry_after=1))
    reply = await get(PLAYER)

    assert (status, "text/html", "1") == (reply.status, reply.headers["Content-Type"], reply.headers["Retry-After"])
    assert "Grpc-Metadata-X-Cosmos-Block-Height" not in reply.headers
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(reply.text)


async def test_error_has_gateway_format(node, get):
    node.faults.add(Fault.error(status=503, code=14, message="unavailable"))
    reply = await get(PLAYER)

    assert (503, {"code": 14, "message": "unavailable", "details": []}) == (reply.status, reply.json)


async def test_html_has_status_200(node, get):
    node.faults.add(Fault.html())
    reply = await get(PLAYER)

    assert (200, "<html>") == (reply.status, reply.text[:6])


async def test_redirect_has_location(node, get):
    node.faults.add(Fault.redirect("http://127.0.0.1:9/elsewhere"))
    reply = await get(PLAYER)

    assert (302, "http://127.0.0.1:9/elsewhere") == (reply.status, reply.headers["Location"])


async def test_dropped_connection_has_no_answer(node, get):
    node.faults.add(Fault.dropped(), on="1-11")
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(PLAYER)

    assert 200 == (await get("/structs/player/1-12")).status


async def test_cut_connection_ends_within_body(node, get):
    node.faults.add(Fault.cut_off())
    with pytest.raises(aiohttp.ClientPayloadError):
        await get(PLAYER)

    assert 0 < node.bytes_sent


async def test_hung_request_is_released_when_client_gives_up(node, until):
    node.faults.add(Fault.hung(), on="1-11")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(TimeoutError):
            await session.get(node.url + PLAYER, timeout=aiohttp.ClientTimeout(total=0.1))
        await until(lambda: not node.open_connections)

        assert (0, 0) == (node.in_flight, node.open_connections)


async def test_hung_request_does_not_delay_close(until):
    async with FakeNode(faults=[Fault.hung()]) as node, aiohttp.ClientSession() as session:
        request = asyncio.create_task(session.get(node.url + PLAYER, timeout=aiohttp.ClientTimeout(total=600)))
        await until(lambda: node.in_flight)
        assert 1 == node.open_connections
        await node.close()
        assert (0, 0) == (node.in_flight, node.open_connections)
        with pytest.raises(aiohttp.ClientError):
            await request


async def test_delayed_adds_to_latency(node):
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


async def test_gzip_bomb_is_small_on_the_wire(node):
    """It decompresses to valid JSON of the requested size."""
    node.faults.add(Fault.gzip_bomb(size=20_000_000))
    async with aiohttp.ClientSession(auto_decompress=False) as session, session.get(node.url + PLAYER) as response:
        wire = await response.read()

    assert "gzip" == response.headers["Content-Encoding"]
    assert len(wire) < 40_000
    assert len(wire) == node.bytes_sent
    assert 20_000_000 == len(gzip.decompress(wire))
    assert {"Player"} == json.loads(gzip.decompress(wire)).keys()


async def test_oversized_body_is_a_correct_answer(node, get):
    expected = node.data.envelope("1-11")
    node.faults.add(Fault.oversized(size=3_000_000))
    reply = await get(PLAYER)

    assert 3_000_000 == len(reply.text.encode())
    assert expected == reply.json


async def test_truncated_sends_half_of_the_json(node, get):
    node.faults.add(Fault.truncated())
    with pytest.raises(json.JSONDecodeError):
        assert (await get(PLAYER)).json


async def test_invalid_utf8_cannot_be_decoded(node, get):
    node.faults.add(Fault.invalid_utf8())
    with pytest.raises(UnicodeDecodeError):
        await get(PLAYER)


async def test_nan_sends_nan_in_json(node, get):
    """Lenient parsers accept it."""
    node.faults.add(Fault.nan())
    reply = await get(PLAYER)

    assert '"index":NaN' in reply.text
    assert math.isnan(reply.json["Player"]["index"])


async def test_nested_sends_deeply_nested_json(node, get):
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
async def test_wrong_field_changes_record_first_row_or_flat_answer(node, get, path, where):
    node.faults.add(Fault.wrong_field(field="owner", value=7))

    assert 7 == where((await get(path)).json)["owner"]


async def test_wrong_entity_sends_other_id(node, get):
    node.faults.add(Fault.wrong_entity("1-12"), on="1-11")

    assert "1-12" == (await get(PLAYER)).json["Player"]["id"]


async def test_not_an_object_sends_array(node, get):
    """wrong_field has no effect on an array."""
    node.faults.add(Fault.not_an_object(), Fault.wrong_field(field="id", value=1))

    assert [node.data.envelope("1-11")] == (await get(PLAYER)).json


@pytest.mark.parametrize("on", [PLAYER, "1-11", "/structs/player/{id}", "player", "*"])
async def test_fault_applies_to_named_requests_only(node, get, on):
    """Names are a path, an id, a route, a type or everything."""
    node.faults.add(Fault.unavailable(), on=on)

    assert 503 == (await get(PLAYER)).status
    assert (503 if on == "*" else 200) == (await get("/structs/planet/2-1")).status
    node.faults.clear(on)
    assert 200 == (await get(PLAYER)).status


async def test_rules_are_used_in_order(node, get):
    """Other requests do not use up a rule."""
    node.faults.add(Fault.rate_limited(), on="1-11", times=2)
    node.faults.add(Fault.unavailable(), on="1-11", times=1)
    await get("/structs/player/1-12")

    assert [429, 429, 503, 200] == [(await get(PLAYER)).status for _ in range(4)]


async def test_faults_of_one_rule_apply_together(node, get):
    """One of them is a custom fault."""
    shout = Fault("upper case", lambda answer: FaultAnswer(answer.status, answer.headers, answer.body.upper()))
    node.faults.add(Fault.wrong_entity("1-12"), shout)

    assert "1-12" == (await get(PLAYER)).json["PLAYER"]["ID"]


async def test_clear_removes_all_rules_or_rules_of_one_name(node, get):
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
def test_add_rejects_invalid_rule(arguments, options, named):
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
def test_add_accepts_every_valid_request_name(on):
    """
    Names are any path, a pattern, a type, and path parameters.

    Parameters are ids, numbers, addresses, attributes and hexadecimal text.
    """
    faults = FakeNode(entities={}).faults
    faults.add(Fault.html(), on=on)

    assert faults.take([on])
    faults.clear(on)
    assert not faults.take([on])


def test_clear_rejects_unknown_name():
    with pytest.raises(InvalidArgument, match="did you mean planet"):
        FakeNode(entities={}).faults.clear("plannet")


async def test_every_request_has_its_route_type_as_name(node, get):
    for path in ("/blockheight", "/structs/grid/0-1-11", "/cosmos/base/tendermint/v1beta1/blocks/latest"):
        await get(path)
        *_, kind, everything = node.requests[-1].names
        node.faults.add(Fault.unavailable(), on=kind, times=1)

        assert "*" == everything
        assert 503 == (await get(path)).status


def test_fault_repr_shows_name_and_equality_uses_it():
    assert "Fault(name='rate limited, retry after 2')" == repr(Fault.rate_limited(retry_after=2))
    assert Fault.hung() == Fault.hung()
