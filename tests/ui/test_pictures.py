"""Pictures of chains: their arrows, texts and size."""

import itertools
import re
from xml.etree import ElementTree as ET

import attrs
from ui_helpers import HOSTILE

from mama_structs.ui.pictures import MAX_DRAWN, draw_chain


def draw(chain):
    """Draw a chain, and return its picture and the parsed picture."""
    picture = draw_chain(chain.memories, chain.links, title=HOSTILE, link_to=lambda memory: f"/m?id={memory.id}&x='")
    return picture, ET.fromstring(picture)


async def test_chain_with_forks_has_an_arrow_for_each_replacement(session):
    memories = session.memories
    first = await memories.save_decision("Use JWT", topic="auth", reasoning="x")
    await memories.set_outcome(first, "FAILED", reason="Stolen tokens stayed valid")
    left = await memories.supersede(first, HOSTILE, reasoning="x")
    right = await memories.supersede(first, "Use cookies", reasoning="x")
    both = await memories.supersede(left, "Use both", reasoning="x")
    await memories.link(both, right, "supersedes")
    await memories.save_insight("Cookies are small", topic="auth")

    picture, parsed = draw(await memories.history(topic="auth"))

    assert picture.count('class="line"') == 2 * 4
    assert "5 memories, newest first, 4 arrows" in parsed.find("desc").text
    assert parsed.get("role") == "group"
    assert "<script>alert(1)</script>" in parsed.find("title").text
    links = {link.get("href"): " ".join(link.itertext()) for link in parsed.iter("a")}
    assert "failed · replaced" in links[f"/m?id={first.id}&x='"]
    assert "Stolen tokens stayed valid" in links[f"/m?id={first.id}&x='"]
    assert "<script" not in picture
    assert "\u202e" not in picture


async def test_long_chain_has_a_bounded_picture(session):
    older = await session.memories.save_decision("Version", topic="long", reasoning="x")
    newer = await session.memories.supersede(older, "Version", reasoning="x")
    chain = await session.memories.history(newer)
    memories = tuple(attrs.evolve(newer, id=f"version_{number}") for number in range(200))
    links = tuple(
        attrs.evolve(chain.links[0], from_id=newer.id, to_id=older.id) for newer, older in itertools.pairwise(memories)
    )

    picture, _ = draw(attrs.evolve(chain, memories=memories, links=links))

    assert len(picture) < 60_000
    assert picture.count("<a ") == MAX_DRAWN
    assert "160 earlier memories not drawn" in picture


async def test_parallel_lines_are_left_of_all_texts(session):
    memories = session.memories
    older = await memories.save_many(
        {"type": "decision", "content": f"Old {number}", "topic": "wide", "reasoning": "x"} for number in range(20)
    )
    newest = await memories.supersede(older[0], "New", reasoning="x")
    for one in older[1:]:
        await memories.link(newest, one, "supersedes")

    picture, parsed = draw(await memories.history(topic="wide"))

    text_x = min(float(text.get("x")) for text in parsed.iter("text"))
    drawn = [
        float(x)
        for path in re.findall(r'class="line" d="([^"]+)"', picture)
        for x in re.findall(r"([\d.]+) [\d.]+", path)
    ]
    assert max(drawn) < text_x < 180
