"""HTTP requests over real sockets: decoding, size limits, errors, retries and timeouts."""

import asyncio
import contextlib
import email.utils
import functools
import gzip
import json
import time
import tracemalloc
import zlib

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import (
    EntityNotFound,
    MalformedResponse,
    QueryTimeout,
    RateLimited,
    ResponseTooLarge,
    SessionClosed,
    StructsAPIError,
    StructsUnreachable,
)
from mama_structs.references.http_api import (
    MAX_JSON_DEPTH,
    Backoff,
    ResponseBody,
    count_connections,
    decode_json,
    parse_retry_after,
)
from mama_structs.references.results import QueryAttempt, current_attempt
from mama_structs.structs.client import StructsClient

PLAYER = {"Player": {"id": "1-11"}}
NOT_FOUND = {"code": 2, "message": "codespace structs code 1050: object not found", "details": []}
HEIGHT = {"Grpc_Metadata_X_Cosmos_Block_Height": "77"}


class Pauses(list):
    """A fake sleep function that records its pauses. Its clock shows the sum of all pauses."""

    async def __call__(self, seconds):
        self.append(round(seconds, 6))
        await asyncio.sleep(0)

    def clock(self):
        return sum(self)


@pytest.fixture
async def client(node):
    backoff = Backoff(random=lambda: 1.0, sleep=(pauses := Pauses()), clock=pauses.clock)
    async with StructsClient(node.url, max_response_bytes=100_000, _backoff=backoff) as opened:
        yield opened


@pytest.fixture
def pauses(client):
    return client._backoff.sleep


@pytest.fixture
def attempt():
    value = QueryAttempt()
    token = current_attempt.set(value)
    yield value
    current_attempt.reset(token)


def idle(client):
    """Return True if no request of the client uses a connection."""
    return not client._transport.session.connector._acquired


# --- answers ---------------------------------------------------------------------------------------------------------


async def test_answer_has_payload_and_height(node, client, http):
    """The height comes from a header."""
    node.says(http(PLAYER, **HEIGHT))
    answer = await client.query("1-11")

    assert PLAYER == answer
    assert 77 == answer.height
    assert ["/structs/player/1-11"] == node.requests


@pytest.mark.parametrize("height", ["", "-1", "1.5", "abc", "9" * 30])
async def test_invalid_height_header_is_ignored(node, client, http, height):
    node.says(http(PLAYER, Grpc_Metadata_X_Cosmos_Block_Height=height))

    assert None is (await client.query("1-11")).height


async def test_connections_are_reused(node, client, http):
    node.says(http(PLAYER))
    for _ in range(3):
        await client.query("1-11")

    assert 1 == node.connections


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body)[2:-4]),
        ("identity", bytes),
    ],
    ids=["gzip", "x-gzip", "upper case", "zlib", "raw deflate", "identity"],
)
async def test_compressed_answers_are_decompressed(node, client, http, encoding, compress):
    node.says(http(body=compress(json.dumps(PLAYER).encode()), Content_Encoding=encoding))

    assert PLAYER == await client.query("1-11")
    assert "gzip, deflate" == node.headers[0]["Accept-Encoding"]


@pytest.mark.parametrize("piece", [1, 7, 100_000])
@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_byte_order_mark_and_second_gzip_member_are_read(client, node, encoding, piece):
    """Over a real socket, in pieces of any size: a proxy may add the mark, and compress each part of an answer."""
    text = b"\xef\xbb\xbf" + json.dumps(PLAYER).encode()
    body = gzip.compress(text[:20]) + gzip.compress(b"") + gzip.compress(text[20:]) if encoding else text
    chunks = [body[start : start + piece] for start in range(0, len(body), piece)]
    head = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Encoding: {encoding or 'identity'}\r\n\r\n"
    parts = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    node.says(b"".join([head.encode(), *parts, b"0\r\n\r\n"]))

    assert PLAYER == await client.query("1-11")


# --- invalid bodies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>hello</html>", "not JSON"),
        (b"", "not JSON"),
        (b'{"Player": {"id": "1-11"}', "not JSON"),
        (b'{"Player": {"id": "1-11"}} x', "not JSON"),
        (b'{"Player": NaN}', "NaN"),
        (b'{"Player": -Infinity}', "-Infinity"),
        (b'{"Player": 1e999}', "too large"),
        (b'{"Player": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"Player": "\xff"}', "not UTF-8"),
        ('{"Player": 1}'.encode("utf-16"), "not UTF-8"),
        (b'{"Player": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "deeper"),
        (b'{"Player":' + b"[" * 200 + b"]" * 200 + b"}", "deeper"),
        (b"[]", "no object"),
        (b"null", "no object"),
        (b'{"player": {}}', "no object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_invalid_body_is_malformed_without_retry(node, client, http, body, said):
    node.says(http(body=body))
    with pytest.raises(MalformedResponse, match=said) as caught:
        await client.query("1-11")

    assert "/structs/player/1-11" in str(caught.value)
    assert caught.value.__cause__ is not None or said == "no object"
    assert 1 == len(node.requests)
    assert idle(client)


@pytest.mark.parametrize(
    ("body", "hinted"),
    [
        (b"<html>hello</html>", True),
        (b"\n <!doctype html>", True),
        (b"", True),
        (b'{"jsonrpc": "2.0"}', True),
        (b'{"Player": {"id": "1-11"', False),
        (b' {"Player": NaN}', False),
        (b'\xef\xbb\xbf{"Player": ', False),
        (b'{"Player": "\xff"}', False),
        (b"[" * 1000, False),
    ],
)
async def test_malformed_error_hints_at_base_url_for_body_of_other_server(node, client, http, body, hinted):
    """Broken JSON comes from the node, but HTML or another interface does not."""
    node.says(http(body=body))
    with pytest.raises(MalformedResponse) as caught:
        await client.query("1-11")

    assert hinted == ("base URL" in (caught.value.hint or ""))


@pytest.mark.parametrize(
    ("answer", "hinted"),
    [
        ((404, b"<html>not found</html>"), True),
        ((404, b""), True),
        ((501, b"<html>unsupported method</html>"), True),
        ((404, b'{"message": "page not found"}'), False),
        ((404, b'{"message": '), False),
        ((403, b"<html>forbidden</html>"), False),
        ((500, b"<html>oops</html>"), False),
    ],
)
async def test_api_error_hints_at_base_url_for_missing_route_without_json(node, client, http, answer, hinted):
    status, body = answer
    node.says(http(body=body, status=status))
    with pytest.raises(StructsAPIError) as caught:
        await client.query("1-11")

    assert status == caught.value.status
    assert hinted == ("base URL" in (caught.value.hint or ""))


@pytest.mark.parametrize(
    "case",
    [
        ("gzip", gzip.compress(b"{}" * 100)[:-9], "middle"),
        ("gzip", b"", "middle"),
        ("gzip", b"not gzip at all", "not valid"),
        ("gzip", gzip.compress(b"{}") + b"more", "behind"),
        ("gzip", gzip.compress(b"{}") + gzip.compress(b" ")[:-9], "middle"),
        ("deflate", zlib.compress(b"{}") + zlib.compress(b" "), "behind"),
        ("deflate", b"\xff\xff", "not valid"),
        ("br", b"{}", "not asked for"),
    ],
)
async def test_invalid_compression_is_malformed(node, client, http, case):
    encoding, body, said = case
    node.says(http(body=body, Content_Encoding=encoding))
    with pytest.raises(MalformedResponse, match=said):
        await client.query("1-11")

    assert 1 == len(node.requests)


@functools.cache
def bomb():
    return gzip.compress(bytes(200_000_000))


@pytest.mark.parametrize("auto_decompress", [True, False])
@pytest.mark.parametrize("own", [True, False])
async def test_gzip_bomb_stops_at_size_limit(node, http, own, auto_decompress):
    """200 kB that decompress to 200 MB must not use much more memory than the limit."""
    node.says(http(body=bomb(), Content_Encoding="gzip"))
    session = None if own else aiohttp.ClientSession(auto_decompress=auto_decompress)
    async with StructsClient(node.url, session=session, max_response_bytes=1_000_000) as client:
        tracemalloc.start()
        with pytest.raises(ResponseTooLarge) as caught:
            await client.query("1-11")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if session is not None:
        await session.close()

    assert 1_000_000 == caught.value.limit
    assert peak < 8_000_000


async def test_uncompressed_body_over_limit_is_rejected(node, client, http):
    node.says(http({"Player": {"id": "1-11", "name": "x" * 100_000}}))
    with pytest.raises(ResponseTooLarge):
        await client.query("1-11")

    assert idle(client)


@given(content=st.binary(max_size=300), size=st.integers(1, 50), spare=st.integers(-1, 5))
def test_size_limit_is_exact_for_any_chunking(content, size, spare):
    for encoding, data in (("", content), ("gzip", gzip.compress(content)), ("deflate", zlib.compress(content))):
        body = ResponseBody(encoding, max_bytes=len(content) + spare)
        if len(content) + spare < 0:
            continue
        with pytest.raises(ResponseTooLarge) if spare < 0 else contextlib.nullcontext():
            for start in range(0, len(data), size):
                body.feed(data[start : start + size])
            assert content == body.finish()


def test_json_nesting_limit_is_inclusive():
    deepest = b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH

    assert decode_json(deepest)
    with pytest.raises(ValueError, match="deeper"):
        decode_json(b"[" + deepest + b"]")


def test_surrogate_pairs_are_accepted():
    """Only lone surrogates are rejected."""
    assert ["😀"] == decode_json(b'["\\ud83d\\ude00"]')
    assert 1.5 == decode_json(b"1.5")


@given(content=st.binary(max_size=100))
def test_decode_json_of_any_bytes_raises_only_value_error(content):
    with contextlib.suppress(ValueError):
        decode_json(content)


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "payload"),
    [
        (500, NOT_FOUND),
        (200, NOT_FOUND),
        (404, {"code": 5, "message": "Not Found", "details": []}),
        (404, {"code": 5, "message": "no such object", "details": []}),
        (404, {"code": 5}),
        (200, {"code": 5}),
        (500, {"code": 2, "message": "rpc error: code = NotFound desc = player 1-11", "details": []}),
        (500, {"message": "rpc error: code = NotFound desc = player 1-11"}),
        (503, NOT_FOUND),
        (429, NOT_FOUND),
    ],
)
async def test_not_found_is_recognised_by_body_without_retry(node, client, http, status, payload):
    """The chain answers 500 for an unknown id."""
    node.says(http(payload, status=status))
    with pytest.raises(EntityNotFound) as caught:
        await client.query("1-11")

    assert "1-11" == caught.value.entity_id
    assert 1 == len(node.requests)
    assert idle(client)


@pytest.mark.parametrize(
    "case",
    [
        (200, {"code": 13, "message": "store error", "details": []}, 13),
        (500, {"code": 2, "message": "out of gas"}, 2),
        (501, {"code": 12, "message": "Not Implemented", "details": []}, 12),
        (500, {"code": 13, "message": "signing key not found in keyring"}, 13),
        (500, {"code": 14, "message": "code = Unavailable desc = upstream said code = NotFound"}, 14),
        (500, {"code": 2, "message": "code = Unavailable desc = upstream said code = NotFound"}, 2),
        (400, {"code": 3, "message": "type mismatch"}, 3),
        (404, {"message": "page not found"}, None),
        (400, {"code": True, "message": 5}, None),
        (418, "a teapot", None),
    ],
)
async def test_other_error_has_status_and_code_without_retry(node, client, http, case):
    status, payload, code = case
    node.says(http(payload, status=status))
    with pytest.raises(StructsAPIError) as caught:
        await client.query("1-11")

    assert (status, code) == (caught.value.status, caught.value.code)
    assert "/structs/player/1-11" in str(caught.value)
    assert 1 == len(node.requests)


async def test_not_found_for_list_is_api_error(node, client, http):
    node.says(http({"code": 5, "message": "Not Found"}, status=404))
    with pytest.raises(StructsAPIError):
        await client.list_page("player")


async def test_entity_with_code_and_message_fields_is_not_an_error(node, client, http):
    node.says(http({**PLAYER, "code": 1, "message": "hello"}))

    assert "Player" in await client.query("1-11")


async def test_long_error_message_is_truncated_in_text(node, client, http):
    """The attribute has the whole message."""
    node.says(http({"code": 2, "message": "x" * 5000}, status=500))
    with pytest.raises(StructsAPIError) as caught:
        await client.query("1-11")

    assert 5000 == len(caught.value.message)
    assert len(str(caught.value)) < 400


async def test_unreadable_error_body_keeps_status(node, client, http):
    node.says(http(body=b"\xff", status=403, Content_Encoding="br"))
    with pytest.raises(StructsAPIError) as caught:
        await client.query("1-11")

    assert 403 == caught.value.status


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(node, client, http, status):
    hits = []
    other = await asyncio.start_server(lambda reader, writer: (hits.append(1), writer.close()), "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    node.says(http({}, status=status, Location=f"http://127.0.0.1:{port}/structs/player/1-11"))
    with pytest.raises(StructsAPIError, match="redirect") as caught:
        await client.query("1-11")
    other.close()
    await other.wait_closed()

    assert (status, []) == (caught.value.status, hits)
    assert caught.value.hint


async def test_settings_of_host_session_do_not_affect_requests(node, http):
    node.says(http(NOT_FOUND, status=500))
    async with (
        aiohttp.ClientSession(raise_for_status=True, timeout=aiohttp.ClientTimeout(total=0.0001)) as session,
        StructsClient(node.url, session=session) as client,
    ):
        with pytest.raises(EntityNotFound):
            await client.query("1-11")


async def test_answer_that_is_not_http_is_malformed(node, client):
    node.says(b"220 mail.example ESMTP\r\n\r\n")
    with pytest.raises(MalformedResponse, match="not valid HTTP"):
        await client.query("1-11")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("Session is closed"), (True, SessionClosed)),
        (RuntimeError("a bug"), (False, RuntimeError)),
        (AssertionError(), (True, SessionClosed)),
        (AssertionError(), (False, StructsUnreachable)),
        (AssertionError("a guard"), (False, StructsUnreachable)),
        (UnicodeError("label too long"), (False, StructsUnreachable)),
        (aiohttp.InvalidURL("http://1.2.3"), (False, StructsUnreachable)),
    ],
    ids=repr,
)
async def test_aiohttp_errors_are_mapped_to_typed_errors(node, client, monkeypatch, error, outcome):
    """Other errors are bugs and are raised unchanged."""
    closed, expected = outcome
    session = client._transport.session
    is_closed = type(session).closed.fget

    def get(*args, **kwargs):
        # Patch the state of this session only. Closed sessions that seem open would warn when garbage-collected.
        told = property(lambda one: closed if one is session else is_closed(one))
        monkeypatch.setattr(type(session), "closed", told)
        raise error

    monkeypatch.setattr(type(session), "get", get)
    with pytest.raises(expected) as caught:
        await client.query("1-11")
    monkeypatch.undo()

    assert expected is type(caught.value)
    assert str(error) in str(caught.value) or not isinstance(error, AssertionError)
    assert [] == node.requests


# --- retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_temporary_errors_are_retried_twice_with_backoff(node, client, http, attempt, status):
    node.says(http("busy", status=status), http("busy", status=status), http(PLAYER))

    assert PLAYER == await client.query("1-11")
    assert [0.1, 0.2] == client._backoff.sleep
    assert (2, 2 if status == 429 else 0) == (attempt.retries, attempt.rate_limited)


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_lasting_temporary_error_is_raised_after_retries(node, client, http, status):
    node.says(http(body=b"<html>bad gateway</html>", status=status))
    with pytest.raises(StructsAPIError) as caught:
        await client.query("1-11")

    assert (status, 3) == (caught.value.status, len(node.requests))


async def test_lasting_rate_limit_is_raised_after_retries(node, client, http, attempt):
    """Every rate-limit response is counted."""
    node.says(http("slow down", status=429))
    with pytest.raises(RateLimited) as caught:
        await client.query("1-11")

    assert None is caught.value.retry_after
    assert (2, 3, 3) == (attempt.retries, attempt.rate_limited, len(node.requests))


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [("0", 0.1), ("1", 1.0), (" 2 ", 2.0), ("garbage", 0.1), ("-5", 0.1), ("1.5", 1.5), ("1.", 0.1), ("nan", 0.1)],
)
async def test_retry_after_is_respected(node, client, http, retry_after, expected):
    """Invalid values are ignored."""
    node.says(http("busy", status=429, Retry_After=retry_after), http(PLAYER))
    await client.query("1-11")

    assert [expected] == client._backoff.sleep


async def test_retry_after_longer_than_timeout_fails_immediately(node, client, http, pauses):
    node.says(http("busy", status=429, Retry_After="3600"))
    with pytest.raises(RateLimited) as caught:
        await client.query("1-11")

    assert 3600 == caught.value.retry_after
    assert ([], 1) == (pauses, len(node.requests))


async def test_retry_after_date_is_respected(node, client, http):
    date = email.utils.formatdate(time.time() + 3600, usegmt=True)
    node.says(http("busy", status=503, Retry_After=date))
    with pytest.raises(StructsAPIError):
        await client.query("1-11")

    assert 1 == len(node.requests)


async def test_retries_end_at_deadline_of_caller(node, client, http, attempt, clock):
    """A pause that would end after the deadline does not begin."""
    attempt.deadline = asyncio.get_running_loop().time() + 0.05
    node.says(http("busy", status=503))
    with pytest.raises(StructsAPIError):
        await client.query("1-11")

    assert (1, 0) == (len(node.requests), attempt.retries)


@pytest.mark.parametrize(
    "text",
    ["", "abc", "Wed, 99 Foo 2026 00:00:00 GMT", "9" * 400, "Wed, 21 Oct 99999 07:28:00 GMT", "٣"],
)
def test_invalid_retry_after_is_none(text):
    assert None is parse_retry_after(text, now=0.0)


def test_retry_after_date_is_relative_to_clock():
    """Past dates mean 0 seconds; dates without a zone are UTC."""
    assert 10.0 == parse_retry_after("Thu, 01 Jan 1970 00:00:20 GMT", now=10.0)
    assert 10.0 == parse_retry_after("Thu, 01 Jan 1970 00:00:20 -0000", now=10.0)
    assert 0.0 == parse_retry_after("Thu, 01 Jan 1970 00:00:20 GMT", now=99.0)


@given(retry=st.integers(0, 10**6), draw=st.floats(0, 1))
def test_backoff_pause_never_exceeds_cap(retry, draw):
    assert 0 <= Backoff(random=lambda: draw).compute_pause(retry) <= 2.0


async def hang_up(writer):
    writer.close()


async def drop_in_body(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()


async def drop_in_chunks(writer):
    writer.write(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n')
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("drop", [hang_up, drop_in_body, drop_in_chunks])
async def test_lost_connection_is_retried(node, client, http, drop, attempt):
    node.says(drop, http(PLAYER))

    assert PLAYER == await client.query("1-11")
    assert attempt.retries <= 1


@pytest.mark.parametrize("drop", [hang_up, drop_in_body, drop_in_chunks])
async def test_lasting_connection_loss_is_unreachable(node, client, drop):
    """The cause is aiohttp's error. Only ``str()`` names the host, so models do not see it."""
    node.says(drop)
    with pytest.raises(StructsUnreachable, match="/structs/player/1-11") as caught:
        await client.query("1-11")

    assert "is the node running" in caught.value.hint
    assert isinstance(caught.value.__cause__, aiohttp.ClientError)
    assert f" at 127.0.0.1:{caught.value.port} (" in str(caught.value)
    assert ["127.0.0.1", int(node.url.rpartition(":")[2])] == [caught.value.host, caught.value.port]
    assert "127.0.0.1" not in f"{caught.value.args}{caught.value.hint}"
    assert idle(client)


async def test_closed_port_is_unreachable(node):
    await node.stop()
    async with StructsClient(node.url, retries=0) as client:
        with pytest.raises(StructsUnreachable):
            await client.query("1-11")


# --- timeouts and cancellation ---------------------------------------------------------------------------------------


async def stall(writer):
    await asyncio.sleep(60)


async def stall_in_body(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(60)


async def trickle(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(1000):
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("slow", [stall, stall_in_body, trickle])
async def test_timeout_includes_body(node, slow):
    """A node that sends data slowly times out too."""
    node.says(slow)
    async with StructsClient(node.url, timeout=0.1) as client:
        with pytest.raises(QueryTimeout, match="/structs/player/1-11") as caught:
            await client.query("1-11")

        assert 0.1 == caught.value.seconds
        assert idle(client)


async def test_timeout_includes_retries(node, http):
    node.says(http("busy", status=503))
    async with StructsClient(node.url, timeout=0.2, retries=10_000, _backoff=Backoff(random=lambda: 1.0)) as client:
        with pytest.raises((StructsAPIError, QueryTimeout)):
            await client.query("1-11")

    # The pauses of 0.1 s and 0.2 s exceed the timeout of 0.2 s, so at most one retry is sent.
    assert len(node.requests) <= 2


async def test_timeout_starts_after_slot_is_acquired(node, http, clock):
    async def slowly(writer):
        clock(0.1)
        writer.write(http(PLAYER))

    node.says(slowly)
    async with StructsClient(node.url, timeout=0.3, max_connections=1) as client:
        answers = await asyncio.gather(*(client.query("1-11") for _ in range(4)))

    assert [PLAYER] * 4 == answers
    assert 1 == node.connections


@pytest.mark.parametrize("limits", [{"limit": 1}, {"limit": 0, "limit_per_host": 1}])
async def test_timeout_excludes_waiting_for_connection_of_host_session(node, http, limits, clock):
    """The connector's limit determines the number of concurrent reads."""

    async def slowly(writer):
        clock(0.2)
        writer.write(http(PLAYER))

    node.says(slowly)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(**limits)) as session:
        client = StructsClient(node.url, session=session, timeout=0.5)
        answers = await asyncio.gather(*(client.query("1-11") for _ in range(8)))

    assert [PLAYER] * 8 == answers


@pytest.mark.parametrize(("limit", "per_host", "expected"), [(0, 0, 8), (100, 0, 8), (5, 3, 3), (3, 5, 3), (0, 20, 8)])
async def test_connections_of_returns_smallest_limit(limit, per_host, expected):
    """0 means no limit."""
    connector = aiohttp.TCPConnector(limit=limit, limit_per_host=per_host)
    async with aiohttp.ClientSession(connector=connector) as session:
        assert expected == count_connections(session, 8)

    assert 8 == count_connections(session, 8)


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.005, 0.02, 0.05])
@pytest.mark.parametrize("slow", [stall, stall_in_body, trickle])
async def test_cancelled_read_releases_connection_and_slot(node, http, slow, delay):
    node.says(slow)
    async with StructsClient(node.url, max_connections=1) as client:
        reading = asyncio.create_task(client.query("1-11"))
        await asyncio.sleep(delay)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        node.replies.clear()
        node.says(http(PLAYER))

        assert idle(client)
        assert PLAYER == await client.query("1-11")


async def test_read_cancelled_during_retry_pause_releases_slot(node, http):
    node.says(http("busy", status=503), http(PLAYER))
    pausing = asyncio.Event()

    async def sleep(seconds):
        pausing.set()
        await asyncio.sleep(60)

    async with StructsClient(node.url, max_connections=1, _backoff=Backoff(sleep=sleep)) as client:
        reading = asyncio.create_task(client.query("1-11"))
        await pausing.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

        assert PLAYER == await client.query("1-11")
        assert idle(client)
