"""Changes of memories on pages with ``write=True``."""

import asyncio
import html
import re
from datetime import UTC, datetime

import pytest
from ui_helpers import HOSTILE

ACTIONS = ("update", "outcome", "supersede", "dismiss", "delete", "erase")


def read_form(text, action):
    """Return the hidden fields of a form by name, without the token of the forms."""
    form = re.search(rf'<form[^>]+method="post" action="/memory/{action}\b.*?</form>', text, re.DOTALL)[0]
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in found if name != "form_token"}


async def open_form(browser, memory_id, action):
    page = f"/memory/{action}" if action in {"delete", "erase"} else "/memory"
    status, text = await browser.get(f"{page}?id={memory_id}")
    assert status == 200, text
    return read_form(text, action)


@pytest.fixture
async def decision(session):
    return await session.memories.save_decision(
        f"Use JWT {HOSTILE}", topic="auth", reasoning="Any host can check it", created_by="llm", origin="model"
    )


async def test_provenance_of_changes_is_the_user(session, writing_browser, decision):
    post, memories = writing_browser.post, session.memories

    form = await open_form(writing_browser, decision.id, "update")
    fields = {"content": f"Use signed JWT\r\n{HOSTILE}", "reasoning": decision.reasoning, "topic": "auth"}
    status, text = await post("/memory/update", form | fields | {"reason": "Too short"})
    assert (status, "was corrected" in text) == (200, True)
    changed = await memories.get(decision)
    assert changed.content == f"Use signed JWT\n{HOSTILE}"
    assert changed.previous_texts[0].reason == "Too short"

    form = await open_form(writing_browser, decision.id, "outcome")
    status, text = await post("/memory/outcome", form | {"outcome": "FAILED", "reason": f"Stolen {HOSTILE}"})
    assert (status, "outcome was set" in text) == (200, True)
    assert (await memories.get(decision)).outcome_reason == f"Stolen {HOSTILE}"

    form = await open_form(writing_browser, decision.id, "supersede")
    status, text = await post("/memory/supersede", form | {"content": HOSTILE, "reasoning": HOSTILE})
    assert (status, "was replaced" in text) == (200, True)
    newest = (await memories.history(decision)).newest
    assert (newest.content, newest.origin, newest.metadata.created_by) == (HOSTILE, "user", "user")
    assert "<script>alert" not in text


async def test_topic_alone_changes_without_the_text(session, writing_browser):
    memory = await session.memories.save("\n\nTwo lines\r\nof a text\rand \0 more\n", topic="old")
    _, text = await writing_browser.get(f"/memory?id={memory.id}")
    shown = html.unescape(re.search(r'name="content" required>\n(.*?)</textarea>', text, re.DOTALL)[1])
    sent = re.sub(r"\r\n|\r|\n", "\r\n", shown).replace("\0", "\ufffd")

    fields = read_form(text, "update") | {"content": sent, "topic": "new"}
    status, _ = await writing_browser.post("/memory/update", fields)

    changed = await session.memories.get(memory)
    assert (status, changed.topic, changed.content) == (200, "new", memory.content)
    assert changed.previous_texts == ()


async def test_tags_and_validity_are_changed_with_a_receipt(session, writing_browser):
    """Fields that show the stored values change nothing, also a time with seconds and a tag with special characters."""
    ends, tag = datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC), 'a, <b> & "c"'
    memory = await session.memories.save("Ada likes tea", tags=[tag, "old"], valid_until=ends)
    _, text = await writing_browser.get(f"/memory?id={memory.id}")
    shown = html.unescape(re.search(r'name="tags" rows="2">\n(.*?)</textarea>', text, re.DOTALL)[1])
    end = re.search(r'name="valid_until" value="([^"]*)"', text)[1]
    fields = read_form(text, "update") | {"content": memory.content, "topic": "", "tags": shown, "valid_until": end}
    post = writing_browser.post

    assert (f"{tag}\nold", "2030-05-06T07:08") == (shown, end)
    assert 400 == (await post("/memory/update", fields))[0]
    assert 400 == (await post("/memory/update", fields | {"valid_until": "tomorrow"}))[0]
    assert memory == await session.memories.get(memory)

    status, receipt = await post("/memory/update", fields | {"tags": f" new \r\n\r\n{tag}", "valid_until": ""})
    changed = await session.memories.get(memory)
    assert (200, True) == (status, "tags, validity" in receipt)
    assert (("new", tag), None, ()) == (changed.tags, changed.valid_until, changed.previous_texts)

    form = await open_form(writing_browser, memory.id, "update")
    await post("/memory/update", form | {"valid_until": "2031-01-01T00:00"})
    changed = await session.memories.get(memory)
    assert (("new", tag), datetime(2031, 1, 1, tzinfo=UTC)) == (changed.tags, changed.valid_until)


async def test_tags_with_line_breaks_and_blanks_stay_as_they_are(session, writing_browser):
    """The form shows each tag in one line, and a user adds a tag."""
    tags = ("two\nlines", " blanks ", "a\0b", "removed")
    memory = await session.memories.save("Ada likes tea", tags=tags)
    _, text = await writing_browser.get(f"/memory?id={memory.id}")
    shown = html.unescape(re.search(r'name="tags" rows="2">\n(.*?)</textarea>', text, re.DOTALL)[1])
    lines = shown.replace("\0", "\ufffd").split("\n")
    assert ["two lines", "blanks", "a\ufffdb", "removed"] == lines

    fields = read_form(text, "update") | {"content": memory.content}
    assert 400 == (await writing_browser.post("/memory/update", fields | {"tags": "\r\n".join(lines)}))[0]
    await writing_browser.post("/memory/update", fields | {"tags": "\r\n".join([*lines[:3], "new"])})

    assert (*tags[:3], "new") == (await session.memories.get(memory)).tags


async def test_conflict_is_dismissed(session, writing_browser):
    await session.memories.save("Ada likes tea", topic="ada")
    newer = await session.memories.save("Ada does not like tea", topic="ada")
    form = await open_form(writing_browser, newer.id, "dismiss")

    for _ in range(2):
        status, _ = await writing_browser.post("/memory/dismiss", form)
        assert status == 200

    assert await session.memories.conflicts() == []


async def test_form_sent_twice_makes_one_change(session, writing_browser, decision):
    form = await open_form(writing_browser, decision.id, "supersede")
    fields = form | {"content": "Use Redis", "reasoning": "x"}

    answers = await asyncio.gather(*(writing_browser.post("/memory/supersede", fields) for _ in range(3)))

    assert [status for status, _ in answers] == [200] * 3
    assert len(await session.memories.history(decision)) == 2


@pytest.mark.parametrize("action", ["update", "outcome", "supersede", "delete", "erase"])
async def test_form_of_a_changed_memory_changes_nothing(session, writing_browser, decision, action):
    form = await open_form(writing_browser, decision.id, action)
    await session.memories.supersede(decision, "Use Redis", reasoning="x")
    before = await session.memories.get(decision)

    fields = {"content": f"Mine {HOSTILE}", "reasoning": "My reasoning", "outcome": "SUCCESS", "topic": "My topic"}
    status, text = await writing_browser.post(f"/memory/{action}", form | fields)

    assert status == 409
    assert "nothing was saved" in text
    assert "My reasoning" in text
    assert "My topic" in text
    assert "<script>alert" not in text
    assert await session.memories.get(decision) == before
    assert len(await session.memories.history(decision)) == 2


async def test_delete_shows_what_will_go_and_what_went(session, writing_browser):
    await session.observe('<ref id="own">Only here</ref> <ref id="shared">Twice</ref>')
    evidence = ["ref:own", "ref:shared", "free text"]
    decision = await session.memories.save_decision("Use JWT", topic="auth", reasoning="x", evidence=evidence)
    await session.memories.set_outcome(decision, "FAILED", reason=f"Stolen {HOSTILE}")
    other = await session.memories.save("Cites the same", evidence=["ref:shared"])
    report = await session.memories.erase(decision, dry_run=True)
    ids = [memory.id async for memory in session.memories.iter_all() if memory.id != other.id]

    status, text = await writing_browser.get(f"/memory/delete?id={decision.id}")

    assert "Stolen &lt;script" in text
    assert "ref:shared@1" in text
    counts = re.findall(r'<td class="number">(\d+)', text)
    assert counts == ["1", "1", str(report.links), "1"]
    assert report.evidence_texts == 1
    assert "<script>alert" not in text

    status, text = await writing_browser.post("/memory/delete", read_form(text, "delete"))

    assert (status, all(memory_id in text for memory_id in ids)) == (200, True)
    assert re.findall(r'<td class="number">(\d+)', text) == counts
    assert [memory.id async for memory in session.memories.iter_all()] == [other.id]
    assert (await writing_browser.get(f"/memory?id={decision.id}"))[0] == 404


async def test_erase_leaves_nothing_of_the_text(session, writing_browser):
    secret = await session.memories.save_decision("Secretword one", topic="secretword", reasoning="secretword")
    form = await open_form(writing_browser, secret.id, "outcome")
    await writing_browser.post("/memory/outcome", form | {"outcome": "SUCCESS", "reason": "secretword"})
    (reason,) = [memory async for memory in session.memories.iter_all() if memory.id != secret.id]
    reason_form = await open_form(writing_browser, reason.id, "update")
    await writing_browser.post("/memory/update", reason_form | {"content": "A secretword", "topic": reason.topic or ""})
    receipts = [f"/receipt?id={one['form_id']}" for one in (form, reason_form)]
    assert [(await writing_browser.get(one))[0] for one in receipts] == [200, 200]
    _, text = await writing_browser.get(f"/memory/erase?id={secret.id}")
    assert "What an erasure does not reach" in text
    form = read_form(text, "erase")
    ends = [memory.id.rpartition("_")[2] async for memory in session.memories.iter_all()]

    headers = {"Origin": writing_browser.origin}
    fields = form | {"form_token": writing_browser.access.form_token}
    async with writing_browser.http.post(
        f"{writing_browser.origin}/memory/erase", data=fields, headers=headers
    ) as response:
        text, address = await response.text(), str(response.url)

    assert response.status == 200
    assert "was erased" in text
    assert "Not searched" in text
    assert "secretword" not in (text + address).lower()
    assert len(ends) == 2
    assert all(end in text for end in ends)
    assert await session.memories.count() == 0
    assert [(await writing_browser.get(one))[0] for one in receipts] == [404, 404]
    again = await writing_browser.post("/memory/erase", form)
    assert (again[0], "was erased" in again[1]) == (200, True)


async def test_invalid_forms_change_nothing(session, writing_browser, decision):
    form = await open_form(writing_browser, decision.id, "update")
    same = {"content": decision.content, "reasoning": decision.reasoning, "topic": "auth"}
    for action, fields, code in (
        ("update", form | same, 400),
        ("update", form | same | {"content": " "}, 400),
        ("update", form | same | {"topic": ""}, 400),
        ("update", form | same | {"form_id": ""}, 400),
        ("update", form | same | {"form_id": "x" * 65}, 400),
        ("update", form | same | {"form_token": "x"}, 403),
        ("update", form | same | {"id": ""}, 400),
        ("update", form | same | {"id": "insight_x_1795993585916_eec4510d"}, 404),
        ("outcome", form | {"outcome": "FAILED"}, 400),
        ("outcome", form | {"outcome": "<script>alert(1)"}, 400),
        ("supersede", form | {"content": "x"}, 400),
        ("dismiss", form, 400),
    ):
        status, text = await writing_browser.post(f"/memory/{action}", fields)
        assert (status, action) == (code, action), text
        assert "<script>alert" not in text
    assert await session.memories.get(decision) == decision
    assert (await writing_browser.post("/memory/update", form | same | {"content": "Now valid"}))[0] == 200


async def test_read_only_server_has_no_changes(session, browser, decision):
    for action in ACTIONS:
        status, _ = await browser.post(f"/memory/{action}", {"id": decision.id, "form_id": "x"})
        assert status == 404
    for path in (f"/memory/delete?id={decision.id}", f"/memory/erase?id={decision.id}", "/receipt?id=x"):
        assert (await browser.get(path))[0] == 404
    assert await session.memories.get(decision) == decision
