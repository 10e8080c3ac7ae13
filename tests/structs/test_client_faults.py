"""Cancellation of client requests at any point, and requests with every kind of accepted base URL."""

import asyncio
import contextlib
import socket
import string
from asyncio import selector_events

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.references.http_api import Backoff
from mama_structs.structs.client import StructsClient

PLAYER = {"Player": {"id": "1-1"}}
FIRST = {"Player": [{"id": "1-1"}], "pagination": {"next_key": "MS0y", "total": "0"}}
LAST = {"Player": [{"id": "1-2"}], "pagination": {"next_key": None, "total": "0"}}

# --- cancellation ----------------------------------------------------------------------------------------------------


async def iterate(client):
    return [player async for player in client.players()]


READS = {
    "player": (lambda client: client.player("1-1"), [PLAYER]),
    "fetch": (lambda client: client.fetch("1-1"), [PLAYER]),
    "list_page": (lambda client: client.list_page("player"), [FIRST]),
    "iteration": (iterate, [FIRST, LAST]),
}


async def cancelled_after(turns, coroutine):
    """Cancel a coroutine after *turns* loop iterations. Return True if it was cancelled before it finished."""
    task = asyncio.create_task(coroutine)
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            break
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return task.cancelled()


async def left_over(node, before):
    """Return the running tasks that are not in *before* and do not belong to the server."""
    for _ in range(5):
        await asyncio.sleep(0)
    return asyncio.all_tasks() - before - node._tasks


@pytest.mark.parametrize("warm", [False, True], ids=["new connection", "open connection"])
@pytest.mark.parametrize("name", READS)
async def test_read_cancelled_at_any_loop_iteration_leaves_nothing_behind(node, http, name, warm):
    """
    Covers retries, lost connections and paging.

    No connection, slot or task remains, and reads still work.
    """

    async def hang_up(writer):
        writer.close()

    read, payloads = READS[name]
    answers = [http(payload) for payload in payloads]
    before = asyncio.all_tasks()
    backoff = Backoff(sleep=lambda _: asyncio.sleep(0))
    async with StructsClient(node.url, max_connections=1, _backoff=backoff) as client:
        for turns in range(2000):
            node.replies.clear()
            if warm:
                node.says(http(PLAYER))
                await client.query("1-1")
                node.replies.clear()
            node.says(http("busy", status=503), hang_up, *answers)
            cancelled = await cancelled_after(turns, read(client))

            assert not client._transport or (0, 0) == (
                client._transport.limiter._slots_in_use,
                len(client._transport.limiter._slot_waiters),
            )
            assert not client._transport or not client._transport.session.connector._acquired
            assert set() == await left_over(node, before)
            if not cancelled:
                break
            node.replies.clear()
            node.says(http(PLAYER))
            assert PLAYER == await client.query("1-1")
        assert 10 < turns < 1999


async def test_open_or_close_cancelled_at_any_loop_iteration_leaves_nothing_behind(node, http):
    """A client is either open or not. After a cancelled close, client and session are closed."""
    before = asyncio.all_tasks()
    node.says(http(PLAYER))
    for turns in range(20):
        client = StructsClient(node.url)
        opening = await cancelled_after(turns, client.open())
        assert (turns == 0) == opening == (not client.is_open)
        if opening:
            await client.open()
        await client.query("1-1")
        session = client._transport.session
        closing = await cancelled_after(turns, client.close())
        if closing and turns == 0:
            await client.close()

        assert not client.is_open
        assert session.closed
        assert set() == await left_over(node, before)
        await client.close()
        if not closing:
            break
    assert 0 < turns < 19


# --- base URLs -------------------------------------------------------------------------------------------------------

LABELS = st.text(string.ascii_letters + string.digits + "-_.", max_size=70) | st.sampled_from(
    ["xn--", "xn--a", "a" * 63]
)
NUMBERS = st.integers(0, 300).map(str)
HOSTS = st.one_of(
    st.lists(LABELS, min_size=1, max_size=6).map(".".join),
    st.lists(NUMBERS, min_size=1, max_size=5).map(".".join),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map("[{}]".format),
    st.text(string.hexdigits + ":.", max_size=20).map("[{}]".format),
    st.text(max_size=10),
)
URLS = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["http", "https", "HTTP"]),
    HOSTS,
    st.just("") | st.integers(0, 70_000).map(":{}".format) | st.text(string.digits + ":", max_size=4),
    st.text(string.ascii_letters + "/._~-%", max_size=10) | st.just("/lcd"),
)


@contextlib.contextmanager
def no_network():
    """Make every DNS lookup and every connection fail. Host names are encoded first, as in a real lookup."""

    def look_up(host, *args, **kwargs):
        host.encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    async def connect(loop, sock, address):
        raise ConnectionRefusedError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", look_up)
        patched.setattr(selector_events.BaseSelectorEventLoop, "sock_connect", connect)
        yield


@example(url="http://a..b")
@example(url="http://127.1:9")
@example(url="http://1.2.3.4.5")
@example(url="http://xn--")
@example(url="http://[::1]:9/lcd")
@given(url=URLS)
@settings(deadline=None)
def test_client_with_any_base_url_raises_only_mama_structs_errors(url):
    try:
        client = StructsClient(url, retries=0, timeout=600)
    except InvalidArgument:
        return

    async def read():
        async with client:
            with pytest.raises(MamaStructsError):
                await client.player("1-1")
            with pytest.raises(MamaStructsError):
                await anext(client.players())

    with no_network():
        asyncio.run(read())
