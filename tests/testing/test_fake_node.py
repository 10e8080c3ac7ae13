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


async def test_requests_are_recorded(node, get):
    """Every request is kept with path, query, headers and names, until the reset."""
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
    """A client that keeps to a limit is never counted beyond it, however fast it asks again."""
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
async def test_latency_goes_by_the_most_exact_name(node, get, monkeypatch, *, slow, path, expected):
    """A path, an id, a route's pattern, a type or everything can be slow, and the most exact counts."""
    waited = []
    sleep = asyncio.sleep

    async def noted(seconds):
        waited.append(seconds)
        await sleep(0)

    # What the node waits is what is asked for, whatever the machine makes of it.
    monkeypatch.setattr("mama_structs.testing.node.fake_node.asyncio.sleep", noted)
    node.latency |= slow
    await get(path)

    assert [expected] * bool(expected) == [seconds for seconds in waited if seconds]


async def test_latency_is_waited_for(node, get):
    """A slow request is not answered sooner than it was asked to be."""
    node.latency["1-11"] = 0.2
    started = time.monotonic()
    await get("/structs/player/1-11")

    assert time.monotonic() - started >= 0.2


async def test_latency_can_be_given_at_the_start(client_of):
    """Seconds for all, or a mapping; what is not named is not slow."""
    async with FakeNode(latency=0.1) as node, client_of(node) as get:
        started = time.monotonic()
        await get("/structs/player/1-11")
        assert time.monotonic() - started >= 0.1
    async with FakeNode(latency={"1-12": 9.0}) as node, client_of(node) as get:
        assert 200 == (await get("/structs/player/1-11")).status


async def test_a_node_opens_and_closes_once():
    """Closing twice is harmless, opening twice is not, and a closed node has no URL."""
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


async def test_a_taken_port_is_said_at_once(node):
    """Two nodes cannot have one port, and the second leaves nothing behind."""
    port = int(node.url.rsplit(":", 1)[1])
    other = FakeNode(entities={}, port=port)
    with pytest.raises(OSError, match="address already in use"):
        await other.start()
    await other.close()


async def test_ipv6_hosts_stand_in_brackets(client_of):
    """The URL is one that clients can read."""
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
def test_wrong_options_are_named(options, named):
    """A wrong option is refused before anything is opened."""
    with pytest.raises(InvalidArgument, match=named):
        FakeNode(**options)


@pytest.mark.parametrize(
    ("options", "named"), [({"seed": "1"}, "seed"), ({"seed": True}, "seed"), ({"players": 12.0}, "players")]
)
def test_wrong_options_of_a_world_are_named(options, named):
    """Seed and size are whole numbers."""
    with pytest.raises(InvalidArgument, match=named):
        FakeNode.world(**options)


@pytest.mark.parametrize("blocks", [-1, 1.5, "1"])
def test_the_chain_makes_no_blocks_backwards(blocks):
    """The height only grows, by whole blocks."""
    with pytest.raises(InvalidArgument, match="blocks"):
        FakeNode(entities={}).advance(blocks=blocks)


def test_latency_is_checked_whenever_it_is_set():
    """A latency that is set later, in whichever way, is checked like one that was given."""
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


async def test_a_node_shows_where_it_listens():
    """The repr names the URL while there is one, and the size of the world."""
    node = FakeNode(entities={"1-1": {"id": "1-1"}})
    assert "<FakeNode not open, 1 player>" == repr(node)
    async with node:
        assert f"<FakeNode {node.url}, 1 player>" == repr(node)
    assert "<FakeNode not open, 1 player>" == repr(node)
    assert "<FakeNode not open, 15 players>" == repr(FakeNode.world(players=12))


def test_a_forgotten_node_is_named():
    """A node that was opened and never closed warns when it goes, and says which it was; a closed one does not."""
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


def test_a_thread_serves_code_without_a_loop():
    """The node runs in its own thread, can be changed from outside, and the thread ends with the context."""
    with FakeNode.world(seed=3).in_thread() as node:
        assert "1-11" == read(f"{node.url}/structs/player/1-11")["Player"]["id"]
        node.faults.add(Fault.unavailable(), times=1)
        with pytest.raises(urllib.error.HTTPError, match="503") as raised:
            read(f"{node.url}/structs/player/1-11")
        raised.value.close()
        assert 2 == node.count("1-11")

    assert [] == fake_node_threads()


async def test_a_thread_serves_a_loop_too(until):
    """The context also works where a loop is running already, and a hung request does not hold up its end."""
    with FakeNode.world().in_thread() as node:
        node.faults.add(Fault.hung(), on="1-12")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{node.url}/structs/player/1-11") as response:
                assert 200 == response.status
            hung = asyncio.create_task(session.get(f"{node.url}/structs/player/1-12"))
            await until(lambda: node.in_flight)
            hung.cancel()
            await asyncio.wait([hung])


def test_the_thread_ends_when_the_node_cannot_open():
    """A taken port fails in the caller's thread."""
    with FakeNode.world().in_thread() as node:
        port = int(node.url.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="address already in use"), FakeNode(entities={}, port=port).in_thread():
            pass

    assert [] == fake_node_threads()


def test_an_error_in_the_block_closes_the_node():
    """Ctrl-C in the middle of a test leaves no thread and no socket."""
    node = FakeNode.world()
    with contextlib.suppress(KeyboardInterrupt), node.in_thread():
        url = node.url
        raise KeyboardInterrupt

    assert [] == fake_node_threads()
    with pytest.raises(urllib.error.URLError):
        read(url)


def test_control_c_ends_a_serving_process_at_once():
    """SIGINT stops a node, hung requests and all, without a word about tasks or sockets."""
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
