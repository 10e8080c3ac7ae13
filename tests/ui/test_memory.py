"""The page of one memory."""

import re
import threading

from ui_helpers import HOSTILE

from mama_structs.ui import memory_view
from mama_structs.ui.text_diff import compare_words


async def test_page_shows_everything_that_is_stored(session, browser):
    memories = session.memories
    await session.observe(f'<ref id="bench">12 ms {HOSTILE}</ref>')
    first = await memories.save_decision(
        f"Use JWT {HOSTILE}",
        topic=HOSTILE,
        reasoning=f"Any host can check it {HOSTILE}",
        confidence=0.9,
        tags=["security", "<b>tag</b>"],
        source=f"meeting {HOSTILE}",
        evidence=["ref:bench", "javascript:alert(1)"],
        extra={"ticket": {"number": 12, "title": "</pre><script>"}},
        created_by="llm",
        origin="outside",
    )
    await memories.set_outcome(first, "PARTIAL", reason="Half of it works")
    await memories.set_outcome(first, "FAILED", reason=f"Tokens were stolen {HOSTILE}")
    await memories.update(first, "Use signed JWT now", change_reason="Too short")
    newer = await memories.supersede(first, "Use Redis", reasoning="Tokens can be revoked")
    other = await memories.save_insight("Redis is fast")
    await memories.link(first, other, "inspired by", reason="Seen in a talk")

    status, text = await browser.get(f"/memory?id={first.id}")

    assert status == 200
    plain = re.sub(r"<[^>]+>|\s+", " ", text.split("<main")[1])
    plain = re.sub(r"\s+", " ", plain)
    for expected in (
        "Why it failed Tokens were stolen",
        "Replaced by Use Redis",
        "Tokens can be revoked",
        "Origin of the text outside",
        "Saved by a model",
        "Confidence 90%",
        "security, &lt;b&gt;tag",
        "&#34;number&#34;: 12",
        "partly succeeded",
        "Half of it works",
        "changed because: Too short",
        "Marked text ( ref:bench@1 )",
        "12 ms",
        "javascript:alert(1)",
        "Refers to Redis is fast",
        "because: Seen in a talk",
    ):
        assert expected in plain, expected
    assert "<ins><bdi>signed" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert 'href="javascript' not in text
    assert "<form" not in text.split("<main")[1]
    assert "What it replaced" in (await browser.get(f"/memory?id={newer.id}"))[1]


async def test_conflicts_and_checkpoints_are_shown(session, browser):
    older = await session.memories.save("Ada likes tea", topic="ada")
    newer = await session.memories.save("Ada does not like tea", topic="ada")
    checkpoint = await session.memories.save_checkpoint("Redis is in place", next_steps=["load test"])

    _, older_text = await browser.get(f"/memory?id={older.id}")
    _, newer_text = await browser.get(f"/memory?id={newer.id}")

    for text, other in ((newer_text, older), (older_text, newer)):
        notice = text.split("May contradict another memory")[1].split("</div>")[0]
        assert other.id in notice
    assert "load test" in (await browser.get(f"/memory?id={checkpoint.id}"))[1]


async def test_unknown_id_suggests_similar_ones(session, browser):
    known = await session.memories.save("Redis is fast")

    status, text = await browser.get(f"/memory?id={known.id[:-1]}")

    assert status == 404
    assert f"/memory?id={known.id}&amp;namespace=default" in text
    for path, code in (
        ("/memory", 400),
        ("/memory?id=", 400),
        (f"/memory?id={known.id}&links=-1", 400),
        (f"/memory?id={known.id}&texts=x", 400),
        (f"/memory?id={known.id}&links=99999999999", 400),
        (f"/memory?id={known.id}&links=999999", 200),
        ("/memory?id=%3Cscript%3Ealert(1)%3C/script%3E", 404),
        ("/memory?id=a%00b%ED%A0%80", 404),
        (f"/memory?id={known.id}&namespace=nothing", 404),
    ):
        status, text = await browser.get(path)
        assert status == code, path
        assert "<script>alert" not in text


async def test_links_of_a_hub_are_paged(session, browser):
    hub = await session.memories.save("The hub")
    link = {"to_id": hub.id, "relationship": "inspires"}
    await session.memories.save_many(
        {"type": "context", "content": f"Spoke {number}", "links": [link]} for number in range(60)
    )

    _, text = await browser.get(f"/memory?id={hub.id}")

    assert text.count("<bdi>inspires</bdi>") == 40
    target = re.search(r'href="([^"]+)">Next page', text)[1].replace("&amp;", "&")
    assert (await browser.get(target))[1].count("<bdi>inspires</bdi>") == 20


def test_comparison_by_words_keeps_both_texts():
    for before, after in (
        ("Use JWT now", "Use signed JWT later"),
        ("", "x"),
        ("a b " * 900, "b a " * 900),
        ("same", "same"),
        ("x y", "x x y"),
    ):
        parts = compare_words(before, after)
        assert "".join(text for kind, text in parts if kind != "ins") == before
        assert "".join(text for kind, text in parts if kind != "del") == after


async def test_texts_are_compared_outside_the_event_loop(session, browser, monkeypatch):
    memory = await session.memories.save("Ada works as a nurse")
    await session.memories.update(memory, content="Ada works as a teacher")
    threads = []
    show = memory_view.show_difference
    monkeypatch.setattr(
        memory_view, "show_difference", lambda *texts: threads.append(threading.get_ident()) or show(*texts)
    )
    assert (await browser.get(f"/memory?id={memory.id}"))[0] == 200
    assert threads
    assert threading.get_ident() not in threads
