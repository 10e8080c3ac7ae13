"""The list of topics, and the timeline of one."""

import re
from urllib.parse import quote

from ui_helpers import HOSTILE


def find_link(text, label):
    """Return the address of the link with a label, or None."""
    found = re.search(rf'href="([^"]+)">{label}</a>', text)
    return found and found[1].replace("&amp;", "&")


async def test_topics_are_listed_in_pages(session, browser):
    await session.memories.save_many(
        {"type": "insight", "content": f"Text {number}", "topic": f"topic {number % 59:02}"} for number in range(118)
    )
    await session.memories.save_many(
        {"type": "insight", "content": f"Other {number}", "topic": HOSTILE} for number in range(3)
    )

    status, text = await browser.get("/topics?order=used")

    assert (status, "60 topics" in text) == (200, True)
    rows = re.findall(r'<th scope="row">.*?<td class="number">(\d+)', text, re.DOTALL)
    assert rows == ["3", *["2"] * 49]
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert (await browser.get(find_link(text, "Next page")))[1].count('scope="row"') == 10
    assert (await browser.get("/topics?q=IC%2007"))[1].count('scope="row"') == 1
    for path in ("/topics?page=0", "/topics?page=x", "/topics?page=9999999", "/topics?order=size"):
        assert (await browser.get(path))[0] == 400, path
    assert (await browser.get("/topics?topic=nothing%3Cscript%3E"))[0] == 404


async def test_timeline_shows_the_chain_as_picture_and_list(session, browser):
    memories = session.memories
    first = await memories.save_decision(f"Use JWT {HOSTILE}", topic=HOSTILE, reasoning="x")
    await memories.set_outcome(first, "FAILED", reason=f"Stolen tokens {HOSTILE}")
    left = await memories.supersede(first, "Use Redis", reasoning="x")
    right = await memories.supersede(first, "Use cookies", reasoning="x", topic="elsewhere")

    status, text = await browser.get(f"/topics?topic={quote(HOSTILE)}")

    assert status == 200
    picture, entries = text.split("<svg")[1].split("</svg>")[0], text.split("</svg>")[1]
    for memory in (first, left, right):
        assert f"/memory?id={memory.id}&amp;namespace=default" in picture
        assert f"/memory?id={memory.id}&amp;namespace=default" in entries
    assert picture.count('class="line"') == 2 * 2
    assert len(re.findall("Replaced by <a", entries)) == len(re.findall("Replaces <a", entries)) == 2
    assert "Why it failed" in entries
    assert "elsewhere" in entries
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\x1b" not in text


async def test_long_topic_is_paged(session, browser):
    await session.memories.save_many(
        {"type": "insight", "content": f"Text {number}", "topic": "long"} for number in range(50)
    )

    _, text = await browser.get("/topics?topic=long")

    assert text.count('<li class="card') == 40
    assert (await browser.get(find_link(text, "Earlier memories")))[1].count('<li class="card') == 10
    assert (await browser.get("/topics?topic=long&cursor=x"))[0] == 400
