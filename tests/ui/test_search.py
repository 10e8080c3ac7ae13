"""The search page: results, conditions, pages, explanations and the search without an embedder."""

import re
from urllib.parse import quote

import pytest
from ui_helpers import HOSTILE, opened_browser
from yarl import URL

from mama_structs import HashEmbedder, Session
from mama_structs.errors import EmbeddingFailed
from mama_structs.ui.pages import search as page_module


def cards(page):
    return re.findall(r'<article class="card.*?</article>', page, re.DOTALL)


@pytest.fixture
async def filled(session):
    memories = session.memories
    old = await memories.save_decision("Use JWT for logins", topic="auth", reasoning="stateless", tags=["security"])
    await memories.set_outcome(old, "FAILED", reason=f"not revocable {HOSTILE}")
    new = await memories.supersede(old, "Keep logins in Redis", reasoning="revocable")
    await memories.save(HOSTILE, topic=HOSTILE, origin="outside", source=HOSTILE, tags=[HOSTILE])
    long = "Logins are a long story. " * 20 + "The lighthouse keeper wears a yellow coat. " + "And so on it goes. " * 20
    await memories.save(long, topic="story")
    return old, new


async def test_search_explains_results(browser, filled):
    """Results name their replacement, the reason of their outcome, and why they were found."""
    old, new = filled
    _, page = await browser.get("/search?q=JWT+logins")
    (card,) = [one for one in cards(page) if "Use JWT" in one.partition("</h3>")[0]]

    assert f'Replaced by <a href="/memory?id={new.id}&amp;namespace=default">' in card
    assert "Why it failed: <bdi>not revocable" in card
    assert "same words" in card
    assert re.search(r"Reason for the outcome of <a [^>]*><bdi>Use JWT", page)
    assert re.search(r"relevance \d+ %", card)
    assert all("Replaced by" not in one for one in cards(page) if "Reason for the outcome" in one)
    assert "<script>alert" not in page
    for path in ("/search?q=JWT+logins&outdated=no", "/search?outdated=no"):
        titles = [one.partition("</h3>")[0] for one in cards((await browser.get(path))[1])]
        assert (False, True) == (any(old.id in one for one in titles), any(new.id in one for one in titles))


async def test_search_marks_the_passage(browser, filled):
    _, page = await browser.get("/search?q=lighthouse+keeper+yellow+coat")
    assert re.search(r"<mark><bdi>[^<]*The lighthouse keeper wears a yellow coat\.", page)


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ({}, 5),
        ({"type": "decision"}, 2),
        ({"outcome": "FAILED"}, 1),
        ({"origin": "outside"}, 1),
        ({"tag": HOSTILE}, 1),
        ({"source": HOSTILE, "topic": HOSTILE}, 1),
        ({"since": "2001-01-01", "until": "2001-01-02"}, 0),
        ({"topic": " ", "type": ""}, 5),
    ],
)
async def test_conditions_select_memories(browser, filled, condition, count):
    status, page = await browser.get(str(URL("/search").with_query(condition)))
    assert (status, len(cards(page))) == (200, count)
    assert "<script>alert" not in page


async def test_last_day_belongs_to_the_period(browser, session, filled):
    day = f"{(await session.memories.get(filled[0])).created_at:%Y-%m-%d}"
    assert len(cards((await browser.get(f"/search?since={day}&until={day}"))[1])) == 5


@pytest.mark.parametrize(
    "query",
    [
        "since=x",
        "type=x",
        "origin=x",
        "q=a&limit=0",
        "cursor=x",
        "outcome=x",
        "q=a&limit=x",
        "until=9999-12-31",
        "q=a&limit=101",
    ],
)
async def test_bad_parameters_are_explained(browser, query):
    status, page = await browser.get(f"/search?{query}")
    assert (status, "This did not work" in page) == (400, True)


async def test_pages_list_each_memory_once(browser, session, monkeypatch):
    monkeypatch.setattr(page_module, "PAGE_SIZE", 2)
    await session.memories.save_many([{"type": "insight", "content": f"memory {n}"} for n in range(5)])
    path, seen = "/search?type=insight", []
    while path:
        _, page = await browser.get(path)
        seen += re.findall(r"<bdi>memory (\d)</bdi>", page)
        following = re.search(r'<a href="([^"]*)">Next page', page)
        path = following and following[1].replace("&amp;", "&")
    assert seen == ["4", "3", "2", "1", "0"]


async def test_explanation_of_a_missing_memory(browser, filled):
    """The page says in words why a search leaves a memory out."""
    old, _ = filled
    for condition, words in (
        ("topic=story", "It has another topic."),
        ("outdated=no", "A newer memory replaces it"),
        ("limit=20", "It is result number"),
    ):
        _, page = await browser.get(f"/search?q=logins&explain={old.id}&{condition}")
        assert words in page
    status, page = await browser.get("/search?q=logins&explain=decision_none_1795436746081_00000000")
    assert (status, 'role="alert"' in page) == (200, True)


async def test_search_without_embedder_compares_words(tmp_path):
    class Broken(HashEmbedder):
        def embed(self, texts, *, kind="document"):
            if kind == "query":
                raise EmbeddingFailed("the model is missing")
            return super().embed(texts, kind=kind)

    async with Session.open(tmp_path / "a.mama", embedder=Broken()) as session, opened_browser(session) as browser:
        await session.memories.save("the lighthouse keeper")
        status, page = await browser.get("/search?q=lighthouse&explain=x")
    assert (status, len(cards(page)), "Searched by words only" in page) == (200, 1, True)


async def test_long_query_has_an_address(browser):
    address = f"/search?q={quote('漢' * 3_000)}"
    assert (await browser.get(address, headers={"Referer": browser.origin + address}))[0] == 200
