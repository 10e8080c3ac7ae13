"""Access to the pages, and the start and end of a server."""

import asyncio
import socket

import aiohttp
import pytest
from ui_helpers import opened_browser
from yarl import URL

from mama_structs import Session, admin
from mama_structs.errors import InvalidArgument, MamaStructsError, SessionClosed, StoreBusy
from mama_structs.sync import Session as SyncSession


async def test_pages_need_the_token(browser):
    async with aiohttp.ClientSession() as stranger:
        for query in ("", "?token=wrong", "?token="):
            async with stranger.get(f"{browser.origin}/{query}") as response:
                assert response.status == 403
                assert "complete address" in await response.text()
                assert "default" not in await response.text()


async def test_entering_keeps_the_page_and_hides_the_token(browser):
    token = browser.access.token
    async with browser.http.get(f"{browser.origin}/search?q=a%26b&token={token}") as response:
        assert response.headers["Refresh"] == "0; url=/search?q=a%26b"
        cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert token not in repr(browser.server)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:80"])
async def test_other_host_names_are_rejected(browser, host):
    status, text = await browser.get("/", headers={"Host": host})
    assert (status, "its own address" in text) == (403, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_forms_of_other_sites_are_rejected(writing_browser, headers):
    status, text = await writing_browser.post("/search", {}, headers=headers)
    assert (status, "another site" in text) == (403, True)


async def test_forms_without_their_token_are_rejected(writing_browser):
    status, text = await writing_browser.post("/search", {"form_token": "x"})
    assert (status, "Reload" in text) == (403, True)


async def test_every_response_restricts_the_browser(browser):
    for path in ("/", "/nothing", "/static/site.css", "/static/nothing", "/?namespace=nothing"):
        async with browser.http.get(browser.origin + path) as response:
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["Cache-Control"] == "no-store"


async def test_server_ends_with_its_session(tmp_path):
    async with Session.open(tmp_path / "a.mama") as session:
        server = await session.ui()
        assert server.is_open
    assert not server.is_open
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get(server.url)


async def test_port_is_checked(session):
    with pytest.raises(InvalidArgument, match="65,535"):
        await session.ui(port=70_000)
    with pytest.raises(InvalidArgument, match="write"):
        await session.ui(write="yes")
    first = await session.ui()
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(MamaStructsError, match="cannot listen"):
        await session.ui(port=other.getsockname()[1])
    assert first.is_open


async def test_session_has_one_server(session):
    """Calls without arguments return it, also concurrent ones. Only arguments that differ from it replace it."""
    first, same = await asyncio.gather(session.ui(), session.ui())
    port = URL(first.url).port
    assert first is same is await session.ui(port=port)

    writable = await session.ui(port=port, write=True)
    assert (False, True, True) == (first.is_open, writable.is_open, writable.write)
    assert URL(writable.url).port == port
    assert writable.url != first.url
    assert writable is await session.ui(write=True) is await session.ui()

    read_only = await session.ui(write=False)
    assert (False, True, False) == (writable.is_open, read_only.is_open, read_only.write)
    await (await session.ui(write=True)).close()
    again = await session.ui()
    assert (True, False) == (again.is_open, again.write)


async def test_shown_namespace_can_be_deleted_when_server_is_closed(tmp_path, session):
    async with Session.open(tmp_path / "a.mama", namespace="ada", embedder=session.memories.embedder) as other:
        await other.memories.save("Ada likes tea")
    async with opened_browser(session) as browser:
        assert "Ada likes tea" in (await browser.get("/search?namespace=ada"))[1]
        with pytest.raises(StoreBusy) as caught:
            await admin.delete_namespace(session, "ada")
        assert "session.ui()" in caught.value.hint
    assert {"insight": 1} == (await admin.delete_namespace(session, "ada")).memories


def test_sync_session_returns_running_server(tmp_path):
    with SyncSession.open(tmp_path / "a.mama") as session:
        first, again = session.ui(), session.ui()
        assert (first.url, True) == (again.url, again.is_open)
        assert session.ui(write=True).url != first.url
        assert not first.is_open
    assert not again.is_open


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///\\/evil.example/"])
async def test_entering_stays_on_this_server(browser, path):
    address = URL(f"{browser.origin}{path}?token={browser.access.token}", encoded=True)
    async with browser.http.get(address) as response:
        assert response.headers["Refresh"] == "0; url=/evil.example/"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=x", b"x"),
        ("application/x-www-form-urlencoded; charset=x", b"x"),
        ("application/x-www-form-urlencoded", b"\xff"),
    ],
)
async def test_malformed_forms_are_rejected(writing_browser, kind, body):
    headers = {"Origin": writing_browser.origin, "Content-Type": kind}
    async with writing_browser.http.post(f"{writing_browser.origin}/recall", data=body, headers=headers) as response:
        assert response.status == 400
        assert "Content-Security-Policy" in response.headers


async def test_logs_contain_neither_requests_nor_texts_of_errors(browser, monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("the text of a memory")

    monkeypatch.setattr("mama_structs.ui.workspace.Workspace.list_namespaces", fail)
    async with browser.http.get(f"{browser.origin}/search") as response:
        assert response.status == 500
        assert "Content-Security-Policy" in response.headers
    reader, writer = await asyncio.open_connection("127.0.0.1", browser.access.port)
    writer.write(f"GET /\xe9?token={browser.access.token} HTTP/1.1\r\n\r\n".encode())
    assert b"400" in await reader.readline()
    writer.close()

    assert "RuntimeError" in caplog.text
    assert "text of a memory" not in caplog.text
    assert browser.access.token not in caplog.text


async def test_session_that_closes_meanwhile_gets_no_server(tmp_path):
    session = await Session.open(tmp_path / "a.mama")
    results = await asyncio.gather(session.ui(), session.close(), return_exceptions=True)
    assert isinstance(results[0], SessionClosed)
    assert not session._ui_server.is_open


async def test_session_is_written_if_its_server_fails_to_stop(tmp_path):
    async def fail():
        raise OSError("cannot stop")

    session = await Session.open(tmp_path / "a.mama", conversation="a")
    server = await session.ui()
    server._stops = [fail, *server._stops]
    with pytest.raises(OSError, match="cannot stop"):
        await session.close()
    # The lock of the conversation is released.
    async with Session.open(tmp_path / "a.mama", conversation="a"):
        pass
