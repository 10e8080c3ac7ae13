"""Recall preview: the same text as a recall, the reasons, and nothing recorded."""

import asyncio
import html
import re
from urllib.parse import quote

import pytest
from loop_helpers import metered
from ui_helpers import HOSTILE
from yarl import URL

from mama_structs import HashEmbedder, Session
from mama_structs.ui.pages.recall import MAX_LINK_CHARS

LOGIN = "Let's continue where we left off: how do logins work on the server?"


async def _save(memories):
    jwt = await memories.save_decision("Use JWT for logins on the server", topic="auth", reasoning="no state")
    await memories.set_outcome(jwt, "FAILED", reason=f"It could not be revoked {HOSTILE}")
    redis = await memories.supersede(jwt, "Keep logins of the server in Redis", reasoning="can be revoked")
    long = await memories.save_insight(
        "How do logins work on the server? They work on the server. " * 40, topic=HOSTILE
    )
    await memories.save_checkpoint("The login service is half done", next_steps=[HOSTILE])
    await memories.save_context("The weather is fine", origin="outside")
    return jwt, redis, long


def _told(text):
    """Return the recalled text in a page."""
    found = re.search(r'<pre class="told"[^>]*><bdi>(.*?)</bdi>', text, re.DOTALL)
    return "" if found is None else html.unescape(found[1])


async def test_preview_equals_recall_and_records_nothing(session, browser):
    _, _, long = await _save(session.memories)
    address = f"/recall?message={quote(LOGIN)}&max_chars=1500"

    status, fresh = await browser.get(address)
    recalled = await session.recall(LOGIN, max_chars=1_500)

    assert (200, recalled.text) == (status, _told(fresh))
    assert "<script>alert" not in fresh
    assert f"about {-(-len(recalled.text) // 4)} tokens" in fresh
    assert "The work continues, and this is its last state" in fresh
    assert "It answers the message: " in fresh
    assert f" of {len(long.content):,}." in fresh
    # The conversation got the text now, a fresh one did not.
    _, again = await browser.get(f"{address}&conversation=monday")
    assert "already got each memory" in again
    assert "already recalled in this conversation, the last time at" in again
    assert recalled.text == _told((await browser.get(address))[1])
    _, dialogue = await browser.get(f"{address}&conversation=monday&dialogue=ada")
    assert recalled.text == _told(dialogue)
    assert (await session.recall(LOGIN, max_chars=1_500, conversation="ada")).text == recalled.text


async def test_pages_with_long_texts_are_rendered_outside_the_loop(session, browser, monkeypatch):
    """A callback of the event loop makes few calls for a preview and for a page of a memory with 40,000 characters."""
    for number in range(3):
        long = await session.memories.save_insight(f'Logins on server {number}: "größer".\n' * 1_300)
    for path in (f"/recall?message={quote(LOGIN)}&max_chars=100000", f"/memory?id={quote(long.id)}"):
        with metered(monkeypatch) as meter:
            status, text = await asyncio.create_task(browser.get(path))

        assert (200, True) == (status, len(text) > 40_000)
        assert meter.calls < 10_000


async def test_preview_states_reason_for_omission(session, browser):
    await _save(session.memories)
    await session.memories.save_insight("The server of the logins has its own disk", topic="auth")

    _, text = await browser.get(f"/recall?message={quote(LOGIN)}&max_chars=300")
    _, other = await browser.get("/recall?message=Eiffel+tower%3F")

    assert "no room left: its shortest line needs" in text
    assert "not relevant enough: 0." in text
    assert "No memory is relevant enough. The best one is not relevant enough: 0." in other
    assert "at least 0.28 is needed" in other


async def test_start_of_session_shows_last_state_of_the_work(session, browser):
    await session.memories.save("Logins are in Redis")
    _, before = await browser.get("/recall?start=1")
    await session.memories.save_checkpoint("The login service is half done", next_steps=["test it"])

    _, text = await browser.post("/recall", {"message": "", "start": "1"})

    assert "No checkpoint is stored" in before
    assert "The login service is half done" in _told(text)


async def test_empty_preview_states_reason(session, browser):
    assert "There are no memories in this namespace." in (await browser.get("/recall?message=logins"))[1]
    await session.memories.save("Logins are in Redis")
    assert "asks for nothing that could be looked up" in (await browser.get("/recall?message=today"))[1]
    assert "The message is empty." in (await browser.get("/recall?message=+"))[1]


async def test_posted_message_gets_an_address_unless_it_is_long(session, browser):
    await session.memories.save("Logins are in Redis")
    form = {"message": "Where are logins?\r\n", "max_chars": "500", "conversation": ""}
    async with browser.http.post(
        f"{browser.origin}/recall?namespace=default",
        data=form | {"form_token": browser.access.form_token},
        headers={"Origin": browser.origin},
        allow_redirects=False,
    ) as response:
        assert 303 == response.status
        assert form["message"] == URL(response.headers["Location"]).query["message"]
    long = "Where are logins? " + "word " * MAX_LINK_CHARS

    status, text = await browser.post("/recall", {"message": long, "max_chars": "500"}, allow_redirects=False)

    assert 200 == status
    assert (await session.recall(long, max_chars=500)).text == _told(text)


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("max_chars=1", "between 300 and 100,000"),
        ("max_chars=x%3Cb%3E", "between 300 and 100,000"),
        (f"max_chars={'9' * 5000}", "between 300 and 100,000"),
        ("conversation=%3Cscript%3Ealert(1)", "no conversation"),
        (f"conversation={'a' * 300}", "1 to 200"),
    ],
)
async def test_invalid_parameter_shows_error_page(browser, query, word):
    status, text = await browser.get(f"/recall?message=a&{query}")

    assert (400, True) == (status, word in text)
    assert "<script>alert" not in text


async def test_preview_reads_conversation_of_another_namespace(session, browser, tmp_path):
    async with Session.open(
        tmp_path / "a.mama", embedder=HashEmbedder(), namespace="user:ada", conversation="tuesday"
    ) as other:
        await other.memories.save("Logins are in Redis")
        recalled = await other.recall("Where are logins?")

        _, fresh = await browser.get("/recall?message=Where+are+logins%3F&namespace=user:ada")
        _, known = await browser.get("/recall?message=Where+are+logins%3F&namespace=user:ada&conversation=tuesday")

    assert recalled.text == _told(fresh)
    assert "already got each memory" in known
