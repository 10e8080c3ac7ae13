import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter

import aiohttp
import pytest

from mama_structs.errors import InvalidArgument
from mama_structs.testing import FakeNode, Fault, World


def fake_node_threads():
    return [thread for thread in threading.enumerate() if "FakeNode" in thread.name]


def read(url):
    with urllib.request.urlopen(url, timeout=600) as answer:
        return json.load(answer)


async def test_requests_are_recorded_until_reset(node, get):
    assert [] == node.requests
    await get("/structs/player?pagination.limit=1", headers={"X-Trace": "7"})
    await get("/structs/permission/1-2%401-19")
    await get("/structs/player/1-11")
    first, second, third = node.requests

    assert ("GET", "/structs/player", {"pagination.limit": "1"}) == (first.method, first.path, first.query)
    assert "7" == first.headers["x-trace"]
    assert "/structs/permission/1-2@1-19" == second.path
    assert ("/structs/player/1-11", "1-11", "/structs/player/{id}", "player", "*") == third.names
    assert Counter(["/structs/player", "/structs/permission/1-2@1-19", "/structs/player/1-11"]) == node.requests_by_path
    assert [1, 1, 2, 3, 0] == [node.count(name) for name in ("1-11", "1-2@1-19", "player", "*", "2-1")]
    assert 0 < node.bytes_sent
    node.reset_counters()
    assert ([], 0, 0) == (node.requests, node.bytes_sent, node.most_in_flight)


@pytest.mark.usefixtures("latency_in_turns")
@pytest.mark.parametrize("parallel", [1, 3, 8])
async def test_most_in_flight_is_exact(node, get, parallel):
    """A client with a concurrency limit is never counted above it."""
    node.latency["*"] = 0.01
    slots = asyncio.Semaphore(parallel)

    async def one(index):
        async with slots:
            await get(f"/structs/player/1-{index}")

    await asyncio.gather(*(one(index) for index in range(1, 33)))

    assert (parallel, 0) == (node.most_in_flight, node.in_flight)


@pytest.mark.parametrize(
    ("slow", "path", "expected"),
    [
        ({"*": 3.0}, "/structs/player/1-11", 3.0),
        ({"*": 3.0, "player": 2.0}, "/structs/player/1-11", 2.0),
        ({"*": 3.0, "player": 2.0, "/structs/player/{id}": 1.0}, "/structs/player/1-11", 1.0),
        ({"player": 2.0, "/structs/player/{id}": 1.0, "1-11": 0.0}, "/structs/player/1-11", 0.0),
        ({"1-11": 0.0, "/structs/player/1-11": 4.0}, "/structs/player/1-11", 4.0),
        ({"1-11": 0.0, "player": 2.0}, "/structs/player/1-12", 2.0),
        ({"planet": lambda request: 5.0 if "2-1" in request.names else 0.0}, "/structs/planet/2-1", 5.0),
        ({"planet": lambda request: 5.0 if "2-1" in request.names else 0.0}, "/structs/planet/2-2", 0.0),
        ({"player": 2.0}, "/structs/planet/2-2", 0.0),
    ],
)
async def test_latency_uses_most_specific_name(node, get, monkeypatch, *, slow, path, expected):
    """Names are a path, an id, a route's pattern, a type or everything."""
    waited = []
    sleep = asyncio.sleep

    async def noted(seconds):
        waited.append(seconds)
        await sleep(0)

    # Record the delays instead of waiting, because measured times depend on the machine's speed.
    monkeypatch.setattr("mama_structs.testing.node.fake_node.asyncio.sleep", noted)
    node.latency |= slow
    await get(path)

    assert [expected] * bool(expected) == [seconds for seconds in waited if seconds]


async def test_latency_delays_the_answer(node, get):
    node.latency["1-11"] = 0.2
    started = time.monotonic()
    await get("/structs/player/1-11")

    assert time.monotonic() - started >= 0.2


async def test_latency_can_be_set_after_construction(client_of):
    """Seconds, functions and mappings are accepted, as in the constructor, and other values are rejected."""
    async with FakeNode() as node, client_of(node) as get:
        for latency, delay in ((0.05, 0.05), (lambda _: 0.05, 0.05), ({"1-11": 0.05}, 0.05), (0, 0.0)):
            node.latency = latency
            started = time.monotonic()
            answer = await get("/structs/player/1-11")

            assert 200 == answer.status
            assert time.monotonic() - started >= delay
        for wrong in (-1, "slow", None, {"1-11": -1}, {"nowhere": 1}):
            with pytest.raises(InvalidArgument, match="latency"):
                node.latency = wrong

        assert {"*": 0} == node.latency


async def test_latency_can_be_passed_to_constructor(client_of):
    async with FakeNode(latency=0.1) as node, client_of(node) as get:
        started = time.monotonic()
        await get("/structs/player/1-11")
        assert time.monotonic() - started >= 0.1
    async with FakeNode(latency={"1-12": 9.0}) as node, client_of(node) as get:
        assert 200 == (await get("/structs/player/1-11")).status


async def test_node_can_be_reopened_but_not_opened_twice():
    """Closing twice is allowed. A closed node has no URL."""
    node = FakeNode.world(players=12)
    with pytest.raises(InvalidArgument, match="not open"):
        assert node.url
    async with node:
        assert node.url.startswith("http://127.0.0.1:")
        with pytest.raises(InvalidArgument, match="open already"):
            await node.start()
    await node.close()
    assert 0 == node.open_connections
    async with node:
        assert node.url


async def test_port_in_use_raises_os_error(node):
    port = int(node.url.rsplit(":", 1)[1])
    other = FakeNode(entities={}, port=port)
    with pytest.raises(OSError, match="address already in use"):
        await other.start()
    await other.close()


async def test_ipv6_host_is_bracketed_in_url(client_of):
    async with contextlib.AsyncExitStack() as stack:
        try:
            node = await stack.enter_async_context(FakeNode.world(host="::1"))
        except OSError:
            pytest.skip("this machine has no IPv6")
        get = await stack.enter_async_context(client_of(node))

        assert node.url.startswith("http://[::1]:")
        assert 200 == (await get("/blockheight")).status


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"world": World(), "entities": {}}, "world and entities"),
        ({"entities": {}, "block_time": 0}, "block_time"),
        ({"entities": {}, "block_time": "6"}, "block_time"),
        ({"entities": {}, "block_time": float("inf")}, "block_time"),
        ({"entities": {}, "not_found_status": 403}, "not_found_status"),
        ({"entities": {}, "not_found_status": [500]}, "not_found_status"),
        ({"world": {"1-1": {}}}, "world must be a World"),
        ({"entities": [("1-1", {})]}, "entities must be a mapping"),
        ({"entities": {"1-1": None}}, r"entities\['1-1'\]"),
        ({"entities": {"1-1": {}}}, r"entities\['1-1'\]"),
        ({"entities": {"1-1": {"id": "1-2"}}}, r"entities\['1-1'\] must be a record with this id"),
        ({"entities": {"1-1": {"Player": {"id": "1-2"}}}}, r"entities\['1-1'\]"),
        ({"entities": {"player": {"id": "player"}}}, "an entity id must look like"),
        ({"entities": {}, "latency": -1}, "latency must be 0 or more seconds"),
        ({"entities": {}, "latency": "1"}, "latency must be 0 or more seconds"),
        ({"entities": {}, "latency": True}, "latency"),
        ({"entities": {}, "latency": float("nan")}, "latency"),
        ({"entities": {}, "latency": None}, "latency"),
        ({"entities": {}, "latency": {"1-1": -0.1}}, r"latency\['1-1'\]"),
        ({"entities": {}, "latency": {"plyer": 0.1}}, "latency: no request can be called 'plyer'.*did you mean player"),
        ({"entities": {}, "latency": {7: 0.1}}, "latency must be the name of requests"),
        ({"entities": {}, "port": -1}, "port must be a whole number, from 0 to 65535"),
        ({"entities": {}, "port": 65536}, "port"),
        ({"entities": {}, "port": "80"}, "port"),
        ({"entities": {}, "host": ""}, "host"),
        ({"entities": {}, "height": -1}, "height"),
        ({"entities": {}, "height": 1.5}, "height"),
        ({"entities": {}, "clock": 7.0}, "clock"),
        ({"entities": {}, "faults": ["503"]}, "faults"),
    ],
)
def test_invalid_option_is_rejected_by_name(options, named):
    with pytest.raises(InvalidArgument, match=named):
        FakeNode(**options)


@pytest.mark.parametrize(
    ("options", "named"), [({"seed": "1"}, "seed"), ({"seed": True}, "seed"), ({"players": 12.0}, "players")]
)
def test_invalid_world_option_is_rejected_by_name(options, named):
    with pytest.raises(InvalidArgument, match=named):
        FakeNode.world(**options)


@pytest.mark.parametrize("blocks", [-1, 1.5, "1"])
def test_advance_rejects_invalid_block_count(blocks):
    with pytest.raises(InvalidArgument, match="blocks"):
        FakeNode(entities={}).advance(blocks=blocks)


def test_latency_is_validated_whenever_it_is_set():
    node = FakeNode(entities={}, latency=0.5)
    node.latency["1-11"] = 1
    node.latency |= {"planet": lambda _: 0.0}

    for change in (
        lambda: node.latency.update({"player": -1}),
        lambda: node.latency.__setitem__("plyer", 1),
        lambda: node.latency.__ior__({"*": None}),
        lambda: node.latency.setdefault("fleet", "slow"),
    ):
        with pytest.raises(InvalidArgument, match="latency"):
            change()
    assert {"*", "1-11", "planet"} == node.latency.keys()
    assert 0.5 == node.latency["*"]


async def test_repr_shows_url_and_world_size():
    node = FakeNode(entities={"1-1": {"id": "1-1"}})
    assert "<FakeNode not open, 1 player>" == repr(node)
    async with node:
        assert f"<FakeNode {node.url}, 1 player>" == repr(node)
    assert "<FakeNode not open, 1 player>" == repr(node)
    assert "<FakeNode not open, 15 players>" == repr(FakeNode.world(players=12))


def test_unclosed_node_emits_resource_warning():
    """A closed node does not."""
    code = (
        "import asyncio, gc\n"
        "from mama_structs.testing import FakeNode\n"
        "async def forget():\n"
        "    node = await FakeNode(entities={}).start()\n"
        "    print(node.url, flush=True)\n"
        "    async with FakeNode(entities={'1-1': {'id': '1-1'}}): pass\n"
        "asyncio.run(forget())\n"
        "gc.collect()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )

    assert f"ResourceWarning: <FakeNode {done.stdout.strip()}, 0 players> was never closed" in done.stderr
    assert "1 player>" not in done.stderr


def test_node_in_thread_serves_sync_code():
    """The node can be changed from outside, and its thread ends with the context."""
    with FakeNode.world(seed=3).in_thread() as node:
        assert "1-11" == read(f"{node.url}/structs/player/1-11")["Player"]["id"]
        node.faults.add(Fault.unavailable(), times=1)
        with pytest.raises(urllib.error.HTTPError, match="503") as raised:
            read(f"{node.url}/structs/player/1-11")
        raised.value.close()
        assert 2 == node.count("1-11")

    assert [] == fake_node_threads()


async def test_node_in_thread_serves_async_code(until):
    """A hung request does not delay the end of the context."""
    with FakeNode.world().in_thread() as node:
        node.faults.add(Fault.hung(), on="1-12")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{node.url}/structs/player/1-11") as response:
                assert 200 == response.status
            hung = asyncio.create_task(session.get(f"{node.url}/structs/player/1-12"))
            await until(lambda: node.in_flight)
            hung.cancel()
            await asyncio.wait([hung])


def test_thread_ends_when_node_cannot_open():
    """The error is raised in the caller's thread."""
    with FakeNode.world().in_thread() as node:
        port = int(node.url.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="address already in use"), FakeNode(entities={}, port=port).in_thread():
            pass

    assert [] == fake_node_threads()


def test_error_in_block_closes_node_and_thread():
    node = FakeNode.world()
    with contextlib.suppress(KeyboardInterrupt), node.in_thread():
        url = node.url
        raise KeyboardInterrupt

    assert [] == fake_node_threads()
    with pytest.raises(urllib.error.URLError):
        read(url)


def test_interrupt_ends_serving_process_without_warnings():
    """Requests may hang at that time."""
    code = (
        "import asyncio\n"
        "from mama_structs.testing import FakeNode, Fault\n"
        "async def serve():\n"
        "    async with FakeNode.world(players=12) as node:\n"
        "        node.faults.add(Fault.hung())\n"
        "        print(node.url, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "try:\n"
        "    asyncio.run(serve())\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().strip()
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(f"{url}/blockheight", timeout=0.3)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=600)

    assert "stopped\n" == output
    assert "destroyed" not in errors
    assert "ResourceWarning" not in errors
