"""The export of memories as one HTML file."""

import re
from html.parser import HTMLParser

import pytest

from mama_structs import Filter
from mama_structs.ui import static_export
from mama_structs.ui.static_export import create_export

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script></style>",
    "<!--<script>",
    '<img src=x onerror="alert(3)">',
    "<a href='javascript:alert(4)'>here</a>",
    "<svg onload=alert(5)><style>@import url(//evil)</style>",
    "{{ policy }} {% raw %} ]]>&lt;b&gt; \u2028\u2029 \x1b[31m red \u202e backwards",
)


class Page(HTMLParser):
    """A parser that collects the elements, the shown text and the scripts of an HTML page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.text, self.script, self.inside = [], "", "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.script += data
        else:
            self.text += data

    def attributes(self, name):
        return [own[name] for _, own in self.elements if name in own]


async def export(session, *, query=None, limit=100, **conditions):
    found = await create_export(session.memories, where=Filter(**conditions), query=query, limit=limit)
    return found, Page(found.text)


async def test_export_shows_histories_and_links(session):
    """Replacements, reasons, previous texts and links between the memories of the file are shown."""
    memories = session.memories
    old = await memories.save_decision("Use JWT", topic="auth", reasoning="stateless")
    await memories.set_outcome(old, "FAILED", reason="not revocable")
    new = await memories.supersede(old, "Keep logins in Redis", reasoning="revocable")
    await memories.update(new, "Keep all logins in Redis")
    await memories.save("Redis needs a backup", links=[{"to_id": new.id, "relationship": "refers to"}])
    found, page = await export(session)

    assert (found.count, found.total) == (4, 4)
    assert 1 == page.text.count("Replaced by Keep all")
    for words in (
        "Why it failed: not revocable",
        "Replaced by Keep all logins",
        "Reasoning: stateless",
        ": Keep logins in Redis",
    ):
        assert words in page.text
    assert "Referred to by: Redis needs a backup" in page.text
    ids = set(page.attributes("id"))
    assert {f"memory-{old.id}", f"memory-{new.id}", "topic-1"} <= ids
    assert {link.partition("#")[2] for link in page.attributes("href")} <= ids
    assert "svg" in {tag for tag, _ in page.elements}


async def test_links_out_of_the_selection_are_texts(session):
    old = await session.memories.save_decision("Use JWT", topic="auth", reasoning="stateless")
    await session.memories.supersede(old, "Keep logins in Redis", reasoning="revocable", topic="redis")
    _, page = await export(session, topic="auth")

    assert "Replaced by Keep logins in Redis (not in this file)" in page.text
    assert {"#memories"} == set(page.attributes("href"))


async def test_query_selects_the_best_results(session):
    await session.memories.save_many([{"type": "insight", "content": f"part {n}"} for n in range(5)])
    await session.memories.save("the lighthouse keeper")
    found, page = await export(session, query="lighthouse keeper", limit=1)

    assert (found.count, "part 1" in page.text, "best first" in page.text) == (1, False, True)


async def test_hostile_texts_change_neither_elements_nor_policy(session):
    """The page has the elements of a page with harmless texts, and its policy allows only its own script and style."""

    async def fill(texts):
        await session.memories.save_many(
            {"type": "decision", "topic": text[:50], "content": text, "reasoning": text, "tags": [text], "source": text}
            for text in texts
        )

    await fill([f"text {n}" for n in range(len(HOSTILE))])
    _, plain = await export(session, limit=len(HOSTILE))
    await fill(HOSTILE)
    found, page = await export(session, limit=len(HOSTILE))

    def elements(page):
        return [(tag, sorted(own)) for tag, own in page.elements]

    assert [*elements(plain)] == [*elements(page)]
    assert "\u202e" not in found.text
    for text in HOSTILE[:-1]:
        assert text in page.text
    (policy,) = [text for text in page.attributes("content") if "default-src" in text]
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not {"src", "action", "style"} & {name for _, own in page.elements for name in own}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|eval\(|fetch\(|import\(|\.write\(", page.script)


@pytest.mark.parametrize("max_chars", [static_export._MAX_DATA_CHARS, 20_000])
async def test_size_is_bounded(session, monkeypatch, max_chars):
    """Long texts are cut with their length, and the page has fewer memories rather than too much text."""
    monkeypatch.setattr(static_export, "_MAX_DATA_CHARS", max_chars)
    await session.memories.save_many([{"type": "insight", "content": f"{n} {'x' * 5_000}"} for n in range(6)])
    found, page = await export(session, limit=5)

    assert (5 if max_chars > 20_000 else 4, 6) == (found.count, found.total)
    assert "5,002 characters)" in page.text
