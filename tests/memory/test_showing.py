"""What memories, links and results show of themselves, whatever their texts say."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import OpenedDirectory, PlainEngines, plain_link, plain_memory

from mama_structs._showing import WIDTH
from mama_structs.memory.model import MemoryType, Outcome, with_texts
from mama_structs.memory.results import Chain, Evidence, Hit, Reached, Similar, Surroundings

START = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\u200b'\"&\n\ud800 `x` %%{init}%% 猫"


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def store(request, tmp_path):
    opened = OpenedDirectory.open(tmp_path, engines=request.param(), clock=START.timestamp)
    yield await opened.memories()
    await opened.close()


def columns(line):
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line)


texts = st.one_of(
    st.text(max_size=200),
    st.text(alphabet="<>&\"'\u202e\x1b\n\u200d\u0301가猫ab ", max_size=400),
    st.sampled_from([HOSTILE, "a" * 5000, "猫" * 300, "\u0301" * 300, ""]),
)


@st.composite
def shown_things(draw):
    """Everything that shows itself in one line, and the texts that are in it."""
    kind = draw(st.sampled_from(MemoryType))
    word, said, other = draw(texts), draw(texts), draw(texts)
    slug = draw(st.sampled_from(["a", "boats", "가" * 24, "x" * 50]))
    outcome = {"outcome": draw(st.sampled_from([None, *Outcome]))} if kind is MemoryType.DECISION else {}
    one = plain_memory(f"{kind}_{slug}_1795436746081_3188da2e", said, type=kind, topic=word, **outcome)
    two = attrs.evolve(one, id=f"{kind}_{slug}_1795436746082_3188da2f", content=other)
    link = plain_link(one.id, two.id, word, link_id="link_" + 24 * "a")
    (told,) = with_texts([link], [one, two])
    chain = Chain(memories=(one, two), links=(told,), forks=(one,))
    reached = Reached(memory=one, depth=1, path=(two.id, one.id), strength=0.5)
    hit = Hit(memory=one, score=3.2, relevance=0.8, parts={}, superseded_by=two.id, copies=(two.id,) * 12)
    return [
        one,
        hit,
        reached,
        link,
        told,
        chain,
        Similar(memory=one, similarity=0.7),
        Surroundings(memory=one, chain=chain, around=(reached,) * 3, links=(told,)),
        Evidence(source=word, digest="0" * 64, text=said),
        Evidence(source=word),
    ]


@given(shown_things())
def test_a_line_is_one_line_that_shows_what_hides(things):
    """A repr is one line (a chain's one for each version) of at most 120 columns, and a terminal obeys nothing in it."""
    for thing in things:
        lines = repr(thing).split("\n")

        assert (3 if isinstance(thing, Chain) else 1) == len(lines)
        for line in lines:
            assert line.isprintable()
            assert WIDTH >= columns(line), line


def test_a_line_begins_with_the_text():
    """What a memory says comes first; then when, what became of it, and its id as it can be copied."""
    memory = plain_memory(
        "decision_boats_1795436746081_3188da2e", "Leave the boats\nopen", at=START, outcome=Outcome.FAILED
    )
    other = plain_memory("decision_boats_1795436746082_3188da2f", "It's covered now", at=START)
    hit = Hit(memory=memory, score=1.0, relevance=0.5, parts={}, superseded_by=other.id, copies=("a",))
    (link,) = with_texts([plain_link(other.id, memory.id, "supersedes", link_id="link_1")], [memory, other])

    assert "<Memory 'Leave the boats open' 2026-01-01, FAILED, decision_boats_1795436746081_3188da2e>" == repr(memory)
    assert (
        "<Hit 'Leave the boats open' relevance 0.50, superseded, 1 copy, FAILED, decision_boats_1795436746081_3188da2e>"
        == repr(hit)
    )
    assert "<Link \"It's covered now\" supersedes 'Leave the boats open' 0.80, link_1>" == repr(link)
    assert [
        "<Chain of 2 versions, 1 link>",
        '  "It\'s covered now" 2026-01-01, decision_boats_1795436746082_3188da2f',
        "  'Leave the boats open' 2026-01-01, FAILED, decision_boats_1795436746081_3188da2e",
    ] == repr(Chain(memories=(other, memory), links=(link,))).split("\n")
    assert r"'\u202e\x1b[31m'" in repr(attrs.evolve(memory, content="\u202e\x1b[31m"))


def test_a_long_chain_shows_its_newest():
    """Twenty lines, and how many more there are."""
    memory = plain_memory("decision_boats_1795436746081_3188da2e", "x")

    lines = repr(Chain(memories=(memory,) * 50)).split("\n")

    assert 21 == len(lines)
    assert "… 31 more" == lines[-1]


async def test_links_that_are_read_know_both_texts(store):
    """`links_of`, chains and surroundings say how both ends begin; it is neither compared nor stored."""
    old = await store.save_decision("boats", "Leave the boats open", "quick")
    new = await store.supersede(old.id, "Cover the boats", "rain")
    (link,) = await store.links_of(new.id)
    (of_chain,) = (await store.evolution(old.id)).links
    surroundings = await store.load_context(old.id)

    assert ("Cover the boats", "Leave the boats open") == link.texts == of_chain.texts
    assert [link.texts] == [one.texts for one in surroundings.links]
    assert attrs.evolve(link) == link
    assert attrs.evolve(link).texts is None
