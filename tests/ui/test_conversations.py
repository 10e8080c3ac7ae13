"""Conversations: list, recalled memories and stored texts."""

import re
from datetime import UTC, datetime
from urllib.parse import quote

from ui_helpers import HOSTILE, opened_browser

from mama_structs import HashEmbedder, Session
from mama_structs.refs.conversations.recall_log import RecalledFact
from mama_structs.ui.pages.conversations import PAGE_SIZE

HOSTILE_NAME = HOSTILE[:100]


async def _fill(session):
    jwt = await session.memories.save_decision(
        f"Use JWT for logins on the server {HOSTILE}", topic="auth", reasoning="no state"
    )
    await session.recall("How do logins work on the server?")
    await session.observe('<ref id="plan">first\nthen <b>bold</b></ref>')
    await session.observe('<ref id="plan">second\nthen <b>bold</b></ref>')
    await session.observe('<ref id="과제">ü</ref>')
    await session.wrap({"rows": [{"n": n, "text": "x" * 50} for n in range(400)]}, source=f"web {HOSTILE}")
    session.refs.add(b"\x89PNG\r\n\x1a\n\0\0", source="tool_result", mime_type="image/png")
    await session.flush()
    return jwt


async def test_conversation_that_another_session_has_open_is_shown(session, browser, tmp_path):
    """The page needs no lock, shows what was told, and escapes each text."""
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder(), conversation=HOSTILE_NAME) as other:
        jwt = await _fill(other)
        ada = await other.memories.save("Ada works as a nurse in Oslo")
        await other.recall("Where does Ada work as a nurse?")
        await other.flush()
        await session.memories.set_outcome(jwt, "FAILED", reason="It could not be revoked")
        redis = await session.memories.supersede(jwt, "Keep logins in Redis", reasoning="They can be revoked")
        await session.memories.update(ada, content="Ada works as a pilot in Bergen")
        _, listed = await browser.get("/conversations")
        address = re.search(r'<td><a href="([^"]*)"', listed)[1].replace("&amp;", "&")

        status, text = await browser.get(address)

    assert 200 == status
    assert ">in use</span></td>" in listed
    assert f"/memory?id={jwt.id}" in text
    assert "changed (text, reasons, outcome or replacement)" in text
    assert re.search(rf'<dt>Now</dt><dd>replaced by <a href="/memory\?id={redis.id}&', text)
    assert re.search("as it was then:<p[^>]*><bdi>Ada works as a nurse in Oslo<", text)
    assert ">ref:plan<" in text
    assert "fd:1" in text
    assert "10 bytes" in text
    for page in (listed, text):
        assert "<script>alert" not in page
        assert "\u202e" not in page


async def test_stored_texts_are_viewed_compared_and_downloaded(session, browser):
    await _fill(session)
    here = "name=monday&handle="

    _, first = await browser.get(f"/conversations/text?{here}fd:1")
    _, last = await browser.get(f"/conversations/text?{here}fd:1&page=2")
    _, ref = await browser.get(f"/conversations/text?{here}ref:plan")
    _, diff = await browser.get("/conversations/diff?name=monday&before=ref:plan@1&after=ref:plan@2")
    _, image = await browser.get(f"/conversations/text?{here}fd:3")
    _, page = await browser.get("/conversations?name=monday")

    assert re.search(r"\d texts in \d versions, the last changed first", page)
    assert "page 1 of " in first
    assert "Next page" in first
    assert "Previous page" in last
    assert "then &lt;b&gt;bold&lt;/b&gt;" in ref
    assert "changes to the version before" in ref
    assert "<del>\u2212 <bdi>first</bdi></del><ins>+ <bdi>second</bdi></ins>" in diff
    assert "This is no text" in image
    for handle, kind, name, content in (
        ("ref:plan@2", "text/plain", "plan-2.txt", b"second\nthen <b>bold</b>"),
        (quote("ref:과제"), "text/plain", "1.txt", "ü".encode()),
        ("fd:3", "application/octet-stream", "fd-3.bin", b"\x89PNG\r\n\x1a\n\0\0"),
    ):
        async with browser.http.get(f"{browser.origin}/conversations/download?{here}{handle}") as response:
            disposition = response.headers["Content-Disposition"]
            assert (kind, content) == (response.content_type, await response.read())
            assert disposition.startswith(f'attachment; filename="{name}"; filename*=UTF-8')
            assert "nosniff" == response.headers["X-Content-Type-Options"]


async def test_wrong_address_shows_error_page(session, browser):
    await _fill(session)
    for path, word in (
        ("?name=nothing", "no conversation"),
        ("?name=", "1 to 200"),
        ("?start=-1", "a number from 0"),
        ("?start=x", "a number from 0"),
        ("/text?name=monday", "handle is missing"),
        ("/text?name=monday&handle=../etc", "is no handle"),
        ("/text?name=monday&handle=fd:9", "there is no fd:9"),
        ("/text?name=monday&handle=ref:plan&page=7", "no pages 7"),
        ("/download?name=monday&handle=%3Cscript%3Ealert(1)", "is no handle"),
        ("/diff?name=monday&before=fd:3&after=fd:1", "only texts can be compared"),
    ):
        status, text = await browser.get(f"/conversations{path}")

        assert (400, True) == (status, word in text), path
        assert "<script>alert" not in text


async def test_page_lists_damaged_and_deleted_texts(session, browser):
    await session.observe('<ref id="plan">first</ref>')
    await session.observe('<ref id="plan">second</ref>')
    await session.observe('<ref id="gone">third</ref>')
    session.refs.delete("ref:gone")
    await session.flush()
    storage = session._shared.home.storage
    (key,) = [one for one in await storage.keys("refs/") if one.endswith("plan@1")]
    await storage.transact(lambda rows: rows.put(key, b"{"))

    status, text = await browser.get("/conversations?name=monday")

    assert 200 == status
    assert "damaged: <bdi>no record of this version" in text
    assert "deleted <time" in text
    assert "View ref:plan@2" in text


async def test_texts_are_paged(session, browser):
    for number in range(PAGE_SIZE + 1):
        session.refs.put(f"text-{number}", "x")
    await session.flush()
    _, text = await browser.get("/conversations?name=monday")
    _, rest = await browser.get(f"/conversations?name=monday&texts={PAGE_SIZE}")

    assert "Next page of texts" in text
    assert "ref:text-0<" not in text
    assert "ref:text-0<" in rest


async def test_conversation_of_a_temporary_session_is_shown():
    async with Session.open(embedder=HashEmbedder(), conversation="own") as session, opened_browser(session) as browser:
        await session.observe('<ref id="plan">first</ref>')

        _, listed = await browser.get("/conversations")
        _, text = await browser.get("/conversations?name=own")

    assert "name=own&amp;namespace=default" in listed
    assert ">ref:plan<" in text


async def test_conversation_page_lists_times_and_deleted_memories(session, browser):
    now = [datetime(2026, 11, 28, 9, tzinfo=UTC).timestamp()]
    session.memories._shared.clock = lambda: now[0]
    filler = "Nothing of interest was said. " * 60
    note = await session.memories.save(f"The boiler needs 1.4 bar. {filler} The attic key hangs behind the door.")
    for message in ("What pressure does the boiler need?", "Where hangs the key of the attic?"):
        now[0] += 3600
        assert await session.recall(message, max_chars=500, conversation=HOSTILE_NAME)
    log = session._conversation.recall_log
    log.record(RecalledFact(subject=one, state="", ids=(one,) if one else ()) for one in ("x_1 <b>", ""))
    await session.flush()

    _, listed = await browser.get("/conversations")
    _, text = await browser.get("/conversations?name=monday")

    assert '<td class="number">3 <span class="narrow">recalled memories</span></td>' in listed
    assert f"/memory?id={note.id}" in text
    events = re.findall(r'<dt>(Last recalled|Recalled before)</dt><dd><time datetime="([^"]*)', text)
    assert ["11", "10"] == [at[11:13] for _, at in events]
    assert ["Last recalled", "Recalled before"] == [word for word, _ in events]
    assert text.index("The attic key hangs behind the door") < text.index(
        "1.4 bar. Nothing", text.index("Last recalled")
    )
    assert "x_1 &lt;b&gt;" in text
    assert '<p class="dim">deleted</p>' in text
    assert '<p class="dim">erased, recalled by an earlier version, or of another namespace</p>' in text
    assert "<dt>Dialogue</dt>" in text
    assert "<script>alert" not in text
