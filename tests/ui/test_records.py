"""The records pages: labels, lists, a search, versions and the download."""

import json
import re

import pytest
from ui_helpers import HOSTILE
from yarl import URL

from mama_structs.ui.pages import records as page_module


def address(path, **query):
    return str(URL(path).with_query(query))


@pytest.fixture
async def filled(session):
    records = session.records
    await records.put(("settings", "ui"), "theme", {"dark": True, "size": 3})
    await records.put(("settings", "ui"), "theme", {"dark": False, "size": 3}, keep_history=True)
    await records.put((HOSTILE[:40], "a/b"), HOSTILE, {HOSTILE: HOSTILE}, text=HOSTILE, expires_at="2100-01-01")
    await records.put((), "alone", [1])
    await session.records.put("notes", "n1", 1, text="The lighthouse keeper wears a yellow coat")


async def test_records_are_browsed_by_labels(browser, filled):
    """Labels lead to records, also to those with hostile names."""
    _, page = await browser.get("/records")
    assert ">alone<" in page
    path = "/records"
    for name in (HOSTILE[:40], "a/b"):
        _, page = await browser.get(path)
        (path,) = [
            link.replace("&amp;", "&")
            for link in re.findall(r'<li><a href="([^"]*)">', page)
            if URL(link.replace("&amp;", "&")).query.getall("label", [""])[-1] == name
        ]
    _, page = await browser.get(path)
    assert "2100-01-01 00:00 UTC" in page
    assert "<script>alert" not in page
    status, page = await browser.get(address("/record", label=[HOSTILE[:40], "a/b"], key=HOSTILE))
    assert (status, "<img src=x" in page, "\u202e" in page) == (200, False, False)


async def test_record_shows_versions_and_downloads(browser, filled):
    path = "?label=settings&label=ui&key=theme"
    _, page = await browser.get(f"/record{path}")
    assert "Version 1" in page
    assert "<del><bdi>true</bdi></del><ins><bdi>false</bdi></ins>" in page
    async with browser.http.get(f"{browser.origin}/record.json{path}") as response:
        assert response.headers["Content-Disposition"].startswith("attachment")
        found = json.loads(await response.text())
    assert [False, True] == [one["value"]["dark"] for one in found]


async def test_search_in_records(browser, filled):
    _, page = await browser.get("/records?q=lighthouse+keeper")
    assert "key=n1" in page
    assert "Nothing found" in (await browser.get("/records?q=lighthouse&label=settings"))[1]


async def test_pages_of_labels_and_records(browser, session, monkeypatch):
    monkeypatch.setattr(page_module, "PAGE_SIZE", 2)
    for name in "abc":
        await session.records.put(name, "k", 1)
        await session.records.put((), name, 1)
    _, page = await browser.get("/records")
    further = [link.replace("&amp;", "&") for link in re.findall(r'<a href="([^"]*)">Further', page)]

    assert "label=c" in (await browser.get(further[0]))[1]
    assert "key=c" in (await browser.get(further[1]))[1]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/record?key=x", 404), ("/record.json?key=x", 404), ("/record", 400), ("/records?label=", 400)],
)
async def test_wrong_addresses_are_explained(browser, path, status):
    assert (await browser.get(path))[0] == status
