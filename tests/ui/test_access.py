"""Access to the pages, and the start and end of a server."""

import asyncio

import aiohttp
import pytest
from ui_helpers import opened_browser
from yarl import URL

from mama_structs import Session
from mama_structs.errors import InvalidArgument, MamaStructsError, SessionClosed


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
    async with opened_browser(session) as first:
        with pytest.raises(MamaStructsError, match="cannot listen"):
            await session.ui(port=first.access.port)


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
    assert [server.is_open for server in session._ui_servers] == [False]


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
