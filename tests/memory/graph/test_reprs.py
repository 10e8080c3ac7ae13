"""Reprs, HTML and graphs of memories, links and results, with arbitrary texts."""

from __future__ import annotations

import copy
import json
import operator
import pickle
import re
import sys
import unicodedata
from datetime import UTC, datetime
from html.parser import HTMLParser

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL, OpenedDirectory, PlainEngines, plain_link, plain_memory

from mama_structs import Memory, References, RefParser, RefStore, Session, admin, sync
from mama_structs._internal.reprs import MAX_LINE_COLUMNS, escape_unprintable
from mama_structs.errors import InvalidArgument
from mama_structs.memory.graph.results import (
    Chain,
    Evidence,
    Explanation,
    Hit,
    MemoryDetails,
    RelationshipCount,
    Results,
    SimilarMemory,
    TraversedMemory,
)
from mama_structs.memory.graph.score_parts import describe_score_parts
from mama_structs.memory.search.features import FEATURES
from mama_structs.memory.types.model import (
    CheckpointMetadata,
    ContextMetadata,
    DecisionMetadata,
    InsightMetadata,
    LinkMetadata,
    MemoryType,
    Outcome,
    OutcomeChange,
    PreviousText,
    PreviousValue,
    RecordMetadata,
    RelatedMemory,
    SaveWarnings,
    with_previews,
)
from mama_structs.memory.types.reports import ExtractionResult, RejectedMemory
from mama_structs.recall import Conflict, Recall
from mama_structs.testing.strategies import ref_documents
from mama_structs.types import NewRecord, Record, RecordHit

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
    """Draw an object with a one-line repr, and the texts that it contains."""
    kind = draw(st.sampled_from(MemoryType))
    word, said, other = draw(texts), draw(texts), draw(texts)
    slug = draw(st.sampled_from(["a", "boats", "가" * 24, "x" * 50]))
    outcome = {"outcome": draw(st.sampled_from([None, *Outcome]))} if kind is MemoryType.DECISION else {}
    topic = draw(st.sampled_from([word, None]))
    one = plain_memory(f"{kind}_{slug}_1795436746081_3188da2e", said, type=kind, topic=topic, **outcome)
    two = attrs.evolve(one, id=f"{kind}_{slug}_1795436746082_3188da2f", content=other)
    link = plain_link(one.id, two.id, word, link_id="link_" + 24 * "a")
    (told,) = with_previews([link], [one, two])
    chain = Chain(memories=(one, two), links=(told,), forks=(one,))
    reached = TraversedMemory(memory=one, depth=1, path=(two.id, one.id), strength=0.5)
    hit = Hit(memory=one, score=3.2, relevance=0.8, signals={}, superseded_by=two.id, duplicates=(two.id,) * 12)
    hit = attrs.evolve(hit, terms={"meaning": draw(st.floats(-9, 9)), word: draw(st.floats(-9, 9))})
    return [
        one,
        hit,
        reached,
        link,
        told,
        chain,
        SimilarMemory(memory=one, similarity=0.7),
        MemoryDetails(memory=one, history=chain, nearby=(reached,) * 3, links=(told,)),
        Evidence(source=word, digest="0" * 64, text=said),
        Evidence(source=word),
    ]


@given(shown_things())
def test_repr_is_one_line_with_escaped_characters(things):
    """
    It has at most 120 columns per line, and no terminal control characters.

    A chain has one line per version.
    """
    for thing in things:
        lines = repr(thing).split("\n")

        assert (3 if isinstance(thing, Chain) else 1) == len(lines)
        for line in lines:
            assert line.isprintable()
            assert MAX_LINE_COLUMNS >= columns(line), line


def test_repr_starts_with_text():
    """Then follow the time, the outcome and the id in a form that can be copied."""
    memory = plain_memory(
        "decision_boats_1795436746081_3188da2e", "Leave the boats\nopen", at=START, outcome=Outcome.FAILED
    )
    other = plain_memory("decision_boats_1795436746082_3188da2f", "It's covered now", at=START)
    hit = Hit(memory=memory, score=1.0, relevance=0.5, signals={}, superseded_by=other.id, duplicates=("a",))
    (link,) = with_previews([plain_link(other.id, memory.id, "supersedes", link_id="link_1")], [memory, other])

    assert "<Memory 'Leave the boats open' 2026-01-01, FAILED, decision_boats_1795436746081_3188da2e>" == repr(memory)
    assert (
        "<Hit 'Leave the boats open' relevance 0.50, replaced, 1 copy, FAILED, decision_boats_1795436746081_3188da2e>"
        == repr(hit)
    )
    assert "<Link \"It's covered now\" supersedes 'Leave the boats open' 0.80, link_1>" == repr(link)
    assert [
        "<Chain of 2 versions, 1 link>",
        '  "It\'s covered now" 2026-01-01, decision_boats_1795436746082_3188da2f',
        "  'Leave the boats open' 2026-01-01, FAILED, decision_boats_1795436746081_3188da2e",
    ] == repr(Chain(memories=(other, memory), links=(link,))).split("\n")
    assert r"'\u202e\x1b[31m'" in repr(attrs.evolve(memory, content="\u202e\x1b[31m"))


def test_repr_of_long_chain_shows_newest_versions():
    """It shows twenty lines and the number of omitted ones."""
    memory = plain_memory("decision_boats_1795436746081_3188da2e", "x")

    lines = repr(Chain(memories=(memory,) * 50)).split("\n")

    assert 21 == len(lines)
    assert "… 31 more" == lines[-1]


async def test_read_links_contain_beginnings_of_both_texts(store):
    """`links`, chains and neighbourhoods have them. They are neither compared nor stored."""
    old = await store.save_decision("Leave the boats open", topic="boats", reasoning="quick")
    new = await store.supersede(old.id, "Cover the boats", reasoning="rain")
    (link,) = await store.links(new.id)
    (of_chain,) = (await store.history(old.id)).links
    details = await store.details(old.id)

    assert ("Cover the boats", "Leave the boats open") == link.endpoint_texts == of_chain.endpoint_texts
    assert [link.endpoint_texts] == [one.endpoint_texts for one in details.links]
    assert attrs.evolve(link) == link
    assert attrs.evolve(link).endpoint_texts is None


async def test_validation_errors_do_not_quote_memories(store):
    """A wrong argument with text is described by its type only, also inside a list."""
    memory = await store.save_decision("Leave the boats open", topic="boats", reasoning="quick")
    await store.supersede(memory.id, "Cover the boats", reasoning="rain")
    hits, chain = await store.search("boats"), await store.history(memory.id)
    asked = {
        "get": store.get,
        "limit": lambda one: store.list(limit=one),
        "types": lambda one: store.search("boats", type=one),
        "link_types": lambda one: store.traverse(memory.id, link_types=one),
        "min_relevance": lambda one: store.search("boats", min_relevance=one),
        "origin": lambda one: store.save_context("x", origin=one),
        "outcome": lambda one: store.set_outcome(memory.id, one),
        "path": lambda one: admin.export_jsonl(store, one),
        "conversation": lambda one: Session.open(conversation=one),
    }
    for name, ask in asked.items():
        # A memory and a hit are valid in place of an id.
        for wrong in (*([] if name == "get" else [memory, hits[0]]), hits, [memory], chain, chain.links[0]):
            with pytest.raises(InvalidArgument) as told:
                await ask(wrong)
            assert "boats" not in str(told.value), name


# HTML

TAGS = {"div", "span", "bdi", "b", "code", "table", "tr", "td", "th"}


class VisibleTextParser(HTMLParser):
    """An HTML parser that collects the visible text and rejects unknown elements."""

    def __init__(self, html):
        super().__init__()
        self.text, self.open = "", []
        self.feed(html)
        self.close()
        assert [] == self.open

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS
        assert {name for name, _ in attrs} <= {"style"}
        assert not any("url(" in (value or "") for _, value in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def seen_in_html(text):
    """Return a text as a browser displays it, with normalized whitespace."""
    return "".join("".join(one if one in "\n\t\u200c\u200d" else escape_unprintable(one) for one in text[:600]).split())


@given(shown_things())
def test_html_escapes_texts(things):
    """For any text, only expected elements occur, and invisible characters are shown."""
    for thing in [*things, Results(things[:1] * 3)]:
        seen = VisibleTextParser(thing._repr_html_())

        if isinstance(thing, Memory | Hit | Results):
            memory = getattr(thing[0] if isinstance(thing, Results) else thing, "memory", things[0])
            assert seen_in_html(memory.content) in "".join(seen.text.split())
        assert all(one.isprintable() or one in "\n\t\u200c\u200d" for one in seen.text)


def test_html_is_bounded():
    """Texts end after 600 characters and lists after fifty items, with the rest counted."""
    memory = plain_memory(
        "context_x_1795436746081_3188da2e", "x" * 100_000, type=MemoryType.CONTEXT, source="y" * 9_000
    )

    assert "… (100,000 characters)" in memory._repr_html_()
    assert "… (9,000 characters)" in memory._repr_html_()
    assert 8_000 > len(memory._repr_html_())
    assert "… 950 more" in Results([memory] * 1_000)._repr_html_()
    assert "nothing" in Results([])._repr_html_()


@st.composite
def told_things(draw):
    """Draw an object of a type that `shown_things` does not draw, with arbitrary texts and any number of items."""
    said, many = draw(texts), draw(st.sampled_from([0, 1, 60]))
    kept = [
        DecisionMetadata(
            reasoning=said,
            outcome=Outcome.FAILED,
            outcome_reason=said,
            history=(OutcomeChange(outcome=Outcome.FAILED, reason=said, at=START),) * many,
            extra={said: said},
        ),
        CheckpointMetadata(open_files=(said,) * many, next_steps=(said,) * many),
        InsightMetadata(category=said, tags=(said,) * many, source=said),
        ContextMetadata(source=said),
        RecordMetadata(
            labels=(said,) * many,
            key=said,
            value={said: [said] * many},
            history=(PreviousValue(value=said, version=1, at=START, text=said),) * many,
        ),
    ]
    record = Record(labels=(said,) * many, key=said, value=[said] * many, version=1, created_at=START, updated_at=START)
    former = PreviousText(content=said, reasoning=said, until=START, reason=said)
    about = SaveWarnings(duplicate_of=(RelatedMemory("context_x_1", 1.0),) * many, note=said)
    whole = [
        attrs.evolve(
            plain_memory(f"{kind}_a_1795436746081_3188da2e", said, type=kind),
            metadata=metadata,
            evidence=(said,) * many,
            previous_texts=(former,) * many,
            warnings=about,
        )
        for kind, metadata in zip(MemoryType, kept, strict=True)
    ]
    two = (whole[0], whole[1])
    entry = {"reference_type": draw(texts), "id": "2-1", "name": said, said: said}
    document = draw(ref_documents(max_size=3)).text
    store = RefStore()
    store.add(said.encode("utf-8", "replace").decode() or "x")
    seen = store.observe(document)
    return [
        *whole,
        *kept,
        record,
        attrs.evolve(record, text=said),
        RecordHit(record=record, score=1.0, relevance=1.0),
        NewRecord((said,) * many, said, [said] * many, text=(said,) * many),
        former,
        about,
        LinkMetadata(original_relationship=said, reason=said, tags=(said,) * many),
        Results(whole[: many % 7]),
        Chain(memories=two[: many % 7]),
        Conflict(memories=two, reason=said),
        Recall(text=said, hits=(), conflicts=(Conflict(memories=two, reason=said),) * many),
        RejectedMemory(reason=said, proposal=said),
        ExtractionResult(saved=two * many, rejected=(RejectedMemory(reason=said),) * many),
        RelationshipCount(word=said, count=1, near_synonyms=((said, 0.5),) * many),
        References({str(number): entry for number in range(many)}),
        *RefParser().feed(f"{said} <ref id='x'>{said}"),
        store,
        seen,
        *seen.refs,
        *seen.diagnostics,
    ]


@settings(max_examples=max(6, settings.default.max_examples // 10))
@given(told_things())
def test_repr_of_any_content_is_short_and_safe(things):
    """A repr has short lines without control characters, and at most ten items of each container."""
    for thing in things:
        told = repr(thing)

        for line in told.split("\n"):
            assert line.isprintable(), type(thing)
            assert MAX_LINE_COLUMNS >= columns(line), line
        assert 60 >= told.count("\n"), type(thing)
        if hasattr(thing, "_repr_html_"):
            shown = thing._repr_html_()
            assert 400_000 > len(shown)
            assert VisibleTextParser(shown).text


def test_repr_of_ten_megabytes_reads_only_the_beginning():
    """The cost depends on the visible part of texts and lists only."""
    read = []

    class Counted(tuple):
        __slots__ = ()

        def __iter__(self):
            for one in super().__iter__():
                read.append(one)
                yield one

    long = "x" * 10_000_000
    files = CheckpointMetadata(open_files=(long,) * 1_000, next_steps=())
    one = plain_memory("checkpoint_x_1795436746081_3188da2e", long, type=MemoryType.CHECKPOINT)
    one = attrs.evolve(one, metadata=attrs.evolve(files, open_files=Counted(files.open_files)))

    assert 120 >= len(repr(one))
    assert 5_000 > len(repr(files))
    assert "(10,000,000 characters)" in one._repr_html_()
    assert 21 * 121 > len(repr(Results([one] * 10_000)))
    assert 50 * 25 >= len(read)


def test_repr_creates_only_visible_items():
    """Hidden items of a long list are not read."""
    looked_at = []

    class Counted(TraversedMemory):
        def _repr_content(self):
            looked_at.append(self)
            return super()._repr_content()

    one = Counted(memory=plain_memory("context_x_1", "x"), depth=1, path=(), strength=1.0)
    shown = [repr(Results([one] * 1_000)), Results([one] * 1_000)._repr_html_()]

    assert 20 + 50 == len(looked_at)
    assert ["980 more", "950 more"] == re.findall(r"\d+ more", " ".join(shown))


def test_repr_of_fields_is_one_line_or_one_line_each():
    """Empty optional fields are omitted, long texts state their length, and long lists the number of omitted items."""
    short = DecisionMetadata(reasoning="No state", extra={"a": 1})
    long = CheckpointMetadata(open_files=tuple(f"{number} {'x' * 20}" for number in range(27)), next_steps=("y" * 900,))

    assert (
        "DecisionMetadata(reasoning='No state', confidence=0.7, created_by='user', extra={'a': 1}, schema_version=1)"
        == repr(short)
    )
    lines = repr(long).split("\n")
    assert ["CheckpointMetadata(", "    open_files=(", f"        '0 {'x' * 20}',"] == lines[:3]
    assert ["        … 17 more", "    ),", "    next_steps=("] == lines[12:15]
    assert lines[15].endswith("y…,")
    assert repr(PreviousText(content="x", until=START, reason="y" * 900)).endswith("y…' (900 characters),\n)")


async def test_recall_shows_text_for_model_and_reasons(tmp_path):
    """The repr has the text in lines, and the HTML also the hits with the parts of their scores."""
    async with Session.open(tmp_path, embedder=SMALL, conversation="c") as session:
        old = await session.memories.save_decision(
            "Use JWT for logins", topic="auth", reasoning=f"No state {'x ' * 99}"
        )
        await session.memories.set_outcome(old.id, "FAILED", reason="A stolen JWT cannot be revoked")
        recalled = await session.recall("JWT for logins?", explain=True)
        later = await session.recall("JWT for logins?", explain=True)
    first, *lines = repr(recalled).split("\n")
    shown = VisibleTextParser(recalled._repr_html_()).text

    assert f"<Recall of {len(recalled.hits)} " in first
    assert recalled.text.split() == " ".join(lines[: len(lines) - len(recalled.left_out)]).split()
    assert recalled.text in shown
    assert "same words" in shown
    assert "already recalled" in repr(later)
    assert "already recalled" in VisibleTextParser(later._repr_html_()).text


async def test_bar_of_hit_sums_to_score(store):
    """Each term of the score has a segment of the bar, words and a number."""
    for said in ("Use JWT for logins", "Orders peak on Mondays"):
        await store.save_context(said, topic="auth")
    (hit,) = (await store.search("logins by JWT"))[:1]
    text = " ".join(VisibleTextParser(hit._repr_html_()).text.split())
    shown = {name: term for name, term in hit.terms.items() if abs(term) >= 0.005}
    parts = describe_score_parts(hit)

    why = await store.explain("logins by JWT", hit.memory.id)

    assert repr(why) == f"<Explanation 'hit 1' relevance {why.relevance:.2f}, {hit.memory.id}>"
    assert [f"{words:<26}{value:>7.2f}" for _, words, value in describe_score_parts(why)] == str(why).split("\n")[1:-2]
    assert f"= {why.score:.2f}" in VisibleTextParser(why._repr_html_()).text
    assert hit.score == pytest.approx(sum(hit.terms.values()))
    assert {"meaning", "words"} <= set(shown)
    assert f"= {hit.score:.2f}" in text
    assert shown == {part: value for part, _, value in parts}
    assert {"similar meaning", "same words"} <= {words for _, words, _ in parts}
    for _, words, value in parts:
        assert f"{words} {abs(value):.2f}" in text
    bars = re.findall(r"position:absolute;height:100%;left:([0-9.]+)%;width:([0-9.]+)%", hit._repr_html_())
    ends = [float(left) + float(width) for left, width in bars]
    assert len(shown) <= len(bars) <= len(shown) + 1
    assert 100 == pytest.approx(max(ends), abs=0.05)
    kept = 100 * hit.score / sum(term for term in shown.values() if term > 0)
    assert any(end == pytest.approx(kept, abs=0.05) for end in ends)


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_every_part_of_score_has_words(value):
    """No feature or rule is shown by its internal name, and parts that lower the score come last."""
    terms = dict.fromkeys([*FEATURES, "outcome", "superseded", "place"], value)
    found = describe_score_parts(
        Hit(memory=plain_memory("context_x_1", "x"), score=1.0, relevance=0.5, signals={}, terms=terms)
    )

    assert set(terms) == {one.part for one in found}
    assert not {one.words for one in found} & set(terms)
    assert len(terms) == len({one.colour for one in found})
    assert ["similar meaning", "same words", "unknown", "replaced"] == [
        one.words
        for one in describe_score_parts(
            Explanation(memory_id="x", terms={"superseded": -1, "unknown": 1, "words": 1, "meaning": 1, "topic": 1e-3})
        )
    ]


async def test_session_refs_and_stats_have_html(tmp_path):
    """Tested for open and closed sessions, also in synchronous code."""
    result = {"references": {"2-1": {"reference_type": "planet", "id": "2-1", "name": "<img src=x onerror=alert(1)>"}}}
    async with Session.open(tmp_path / "<b>.mama", embedder=SMALL) as session:
        session.refs.observe('<ref id="plan"><script>alert(1)</script></ref>')
        await session.memories.save_context("x")
        shown = {
            "<b>.mama": session,
            "<script>alert(1)</script>": session.refs,
            "memories embedder": session.stats(),
            "dimensions": await session.memories.stats(),
            "<img src=x onerror=alert(1)>": References.from_result(result),
        }
        for text, thing in shown.items():
            assert text in VisibleTextParser(thing._repr_html_()).text
    assert "closed" in VisibleTextParser(session._repr_html_()).text
    assert "closed" in VisibleTextParser(session.refs._repr_html_()).text


def test_sync_facade_has_html_of_wrapped_object():
    with sync.Session.open(embedder=SMALL) as session:
        session.memories.save_context("The shield holds")

        assert "memories1links0" in VisibleTextParser(session._repr_html_()).text
        assert "The shield holds" in VisibleTextParser(session.memories.list()._repr_html_()).text


async def test_results_are_lists_and_data_frames(store):
    """Slices are lists too, and a data frame has a row per result."""
    old = await store.save_decision("Leave the boats open", topic="boats", reasoning="quick")
    new = await store.supersede(old.id, "Cover the boats", reasoning="rain")
    recent, hits, links = await store.list(), await store.search("boats"), await store.links(new.id)

    assert [new, old] == recent == list(recent)
    assert '["Cover the boats"]' == json.dumps([one.content for one in recent[:1]])
    assert "<Memory 'Cover" in repr(recent[:1])
    assert [new.id, old.id] == list(recent.to_frame()["id"])
    assert [hit.score for hit in hits] == list(hits.to_frame()["score"])
    assert hits[0].terms["meaning"] == hits.to_frame(all=True)["terms.meaning"][0]
    assert [("Cover the boats", "supersedes")] == list(
        links.to_frame()[["from_text", "relationship"]].itertuples(index=False, name=None)
    )
    assert [1] == list((await store.traverse(old.id, max_depth=1)).to_frame()["depth"])
    assert {"similarity"} <= set((await store.similar(old.id, threshold=0)).to_frame())


async def test_data_frame_has_ten_columns_with_types(store):
    """An empty result has the same columns and types, `all` adds the others, and times are in UTC."""
    old = await store.save_decision(
        "Leave the boats open",
        topic="boats",
        reasoning="quick",
        evidence=["a log"],
        valid_until=datetime(8000, 1, 1, tzinfo=UTC),
    )
    unlinked = await store.links(old.id)
    new = await store.supersede(old.id, "Cover the boats", reasoning="rain")
    found = [
        (await store.list(), await store.list(topic="x")),
        (await store.search("boats"), await store.search("boats", topic="x")),
        (await store.similar(old.id, threshold=0), await store.similar(old.id, threshold=1)),
        (await store.traverse(old.id), await store.traverse(old.id, link_types=["temporal"])),
        (await store.links(new.id), unlinked),
        (await store.evidence(old.id), await store.evidence(new.id)),
        (await store.history(new.id), await store.history(topic="x")),
    ]
    frames = [tuple(one.to_frame(all=True) for one in pair) for pair in found]

    for (some, none), (full, empty) in zip(found, frames, strict=True):
        shown = some.to_frame()
        assert len(some) == len(full) > 0 == len(none) == len(empty)
        assert list(full)[:10] == list(shown) == list(none.to_frame())
        assert list(full.dtypes) == list(empty.dtypes)
        for name in set(full) & {"created_at", "updated_at", "valid_until"}:
            assert "datetime64[us, UTC]" == str(full.dtypes[name])
    memories, hits, _, _, links, evidence, chain = [full for full, _ in frames]
    assert {"content", "outcome", "confidence", "id"} < set(found[0][0].to_frame())
    assert ["float64"] * 2 == [str(hits.dtypes[name]) for name in ("relevance", "terms.place")]
    assert 8000 == memories["valid_until"].max().year
    assert ["supersedes"] == list(links["relationship"])
    assert ["a log"] == list(evidence["source"])
    assert [None, new.id] == [one if isinstance(one, str) else None for one in chain["superseded_by"]]
    assert list(found[1][1][:5].to_frame()) == list(found[1][0].to_frame())


async def test_data_frame_without_pandas_raises_error_with_install_hint(store, monkeypatch):
    """Only this method needs pandas."""
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ImportError, match=r"needs pandas: pip install 'mama-structs\[notebook\]'"):
        (await store.list()).to_frame()


# Graphs

LABEL = r"(?:[^\W_]|[ ,.\-'!?:/()…]|#\d+;)*"
MERMAID = [
    r"flowchart TD",
    rf'  m\d+\["\d{{4}}-\d\d-\d\d {LABEL}"\](?::::(?:SUCCESS|FAILED|PARTIAL))?',
    rf'  m\d+ (?:-->|-\.->)\|"{LABEL}"\| m\d+',
    r"  classDef \w+ stroke:#[0-9a-f]{6},stroke-width:3px",
]


@given(shown_things())
def test_mermaid_escapes_texts(things):
    """Each line of a flowchart has one of the expected forms, for any texts and words."""
    for thing in things:
        if isinstance(thing, Chain | MemoryDetails):
            for line in thing.to_mermaid().split("\n"):
                assert any(re.fullmatch(form, line) for form in MERMAID), line


async def test_chains_and_neighbourhoods_convert_to_graphs(store):
    """Nodes are memories by id, and edges are links with their attributes."""
    old = await store.save_decision("Leave the boats open", topic="boats", reasoning="quick")
    await store.set_outcome(old.id, "FAILED", reason="Two were full of water")
    new = await store.supersede(old.id, "Cover the boats", reasoning="rain")
    done = await store.save_checkpoint("Tarps are bought", implements=[new.id])
    chain = (await store.history(old.id)).to_networkx()
    await store.link(done.id, (await store.save_insight("Tarps tear")).id, "led to", confidence=0.6)
    around = await store.details(old.id)
    graph = around.to_networkx()
    told = around.to_mermaid().split("\n")

    assert {old.id, new.id} == set(chain)
    assert "FAILED" == chain.nodes[old.id]["outcome"]
    assert [(new.id, old.id, "supersedes")] == [(*ends, word) for *ends, word in chain.edges(data="relationship")]
    assert {old.id, new.id, done.id} < set(graph)
    assert {"content": "Tarps are bought", "type": "checkpoint"}.items() <= graph.nodes[done.id].items()
    assert [("implements", "implementation", 1.0)] == [
        tuple(facts[name] for name in ("relationship", "link_type", "confidence"))
        for *_, facts in graph.subgraph([new.id, done.id]).edges(data=True)
    ]
    assert not [ends for *ends, facts in graph.edges(data=True) if not facts]
    assert {*graph} == {end for link in (*around.links, *around.nearby_links) for end in (link.from_id, link.to_id)}
    assert {link.id for link in around.nearby_links} == {
        link.id
        for one in around.nearby
        for link in await store.links(one.memory.id)
        if {link.from_id, link.to_id} <= {one.memory.id for one in around.nearby}
    }
    assert 1 == sum("Leave the boats open" in line and line.endswith(":::FAILED") for line in told)
    assert 1 == sum('-->|"supersedes"|' in line for line in told)


def test_large_flowchart_is_bounded():
    """It shows a hundred memories, and the number of omitted ones."""
    memories = [plain_memory(f"context_x_{number}", "x") for number in range(250)]
    told = Chain(memories=tuple(memories), links=(plain_link("context_x_0", "context_x_200"),)).to_mermaid()

    assert 100 == told.count("[")
    assert "%% 150 more" in told
    assert "-->" not in told


# Suggestions in attribute errors


@pytest.mark.parametrize(
    ("shown", "name", "place"),
    [
        (lambda one: Hit(memory=one, score=1.0, relevance=0.5, signals={}), "previous_texts", "memory.previous_texts"),
        (lambda one: Hit(memory=one, score=1.0, relevance=0.5, signals={}), "outcome_at", "memory.metadata.outcome_at"),
        (lambda one: TraversedMemory(memory=one, depth=1, path=(one.id,), strength=0.5), "topic", "memory.topic"),
        (lambda one: SimilarMemory(memory=one, similarity=0.5), "id", "memory.id"),
        (lambda one: one, "history", "metadata.history"),
    ],
)
def test_attribute_error_suggests_path_to_attribute(shown, name, place):
    """
    `hit.previous_texts` raises an error that names the right path.

    Other unknown names have no suggestion.
    """
    one = shown(plain_memory("decision_a_1795436746081_3188da2e", "secret", type=MemoryType.DECISION))

    with pytest.raises(AttributeError, match=re.escape(f"no attribute {name!r}. Did you mean {place!r}?")) as caught:
        getattr(one, name)
    assert "secret" not in str(caught.value)
    operator.attrgetter(place)(one)  # raises AttributeError if the suggested path does not exist
    for unknown in ("colour", "_content", "__deepcopy__"):
        with pytest.raises(AttributeError, match=f"no attribute '{unknown}'$"):
            getattr(one, unknown)
    assert copy.deepcopy(one) == one == pickle.loads(pickle.dumps(one))
    with pytest.raises(AttributeError, match=r"no attribute '\w+'$"):
        repr(object.__new__(type(one)))


# Iteration


async def test_iterating_yields_all_memories_and_links(store):
    """Iteration is in save order over many pages, and omits memories that are deleted or saved meanwhile."""
    first = await store.save_decision("Leave the boats open", topic="boats", reasoning="quick")
    await store.save_many({"type": "context", "content": f"number {number}"} for number in range(260))
    last = await store.supersede(first.id, "Cover the boats", reasoning="rain")
    found = []
    async for memory in store.iter_all():
        if not found:
            await store.delete(last.id)
            await store.save_context("too late")
        found.append(memory)
    decided = [memory async for memory in store.iter_all(type="decision")]

    assert [first.content, *(f"number {number}" for number in range(260))] == [one.content for one in found]
    assert [first.id] == [one.id for one in decided]
    new = await store.supersede(first.id, "Cover the boats", reasoning="rain")
    links = [link async for link in store._iter_links() if link.created_by == "user"]
    assert [(new.id, first.id, ("Cover the boats", "Leave the boats open"))] == [
        (link.from_id, link.to_id, link.endpoint_texts) for link in links
    ]


def test_sync_facade_iterates_over_memories():
    """`mama_structs.sync` has plain iterators, which can be abandoned."""
    with sync.Session.open(embedder=SMALL) as session:
        for number in range(3):
            session.memories.save_context(f"number {number}")
        for memory in session.memories.iter_all():
            assert "number 0" == memory.content
            break

        assert ["number 0", "number 1", "number 2"] == [one.content for one in session.memories.iter_all()]
