"""The plan of a search, over the brute-force model engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.graph.traversal import Successors
from mama_structs.memory.search.explanation import explained
from mama_structs.memory.search.scores import WEIGHTS, Bounds
from mama_structs.memory.search.search_plan import (
    SUPERSEDED,
    Ranked,
    SearchRequest,
    asks_for_history,
    gathered,
    hits,
    ranked,
    worth_showing,
)
from mama_structs.memory.types.engine import Filter
from mama_structs.memory.types.model import LinkType, MemoryType
from mama_structs.testing.plain_engine import PlainReader

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400.0
NOW = START + timedelta(days=100)


def direction(*weights: float) -> np.ndarray:
    """Return a normalised vector of four dimensions."""
    vector = np.zeros(4, np.float32)
    vector[: len(weights)] = weights
    return vector / max(float(np.linalg.norm(vector)), 1e-9)


def asked(text: str = "", vector: np.ndarray | None = None, **options: object) -> SearchRequest:
    """Return a request; by default its vector is like nothing."""
    return attrs.evolve(
        SearchRequest(
            text=text,
            vector=direction(0, 0, 0, 1) if vector is None else vector,
            now=NOW,
            calibration=Calibration(0.3, 12.0),
        ),
        **options,
    )


@attrs.frozen
class Scored:
    """What a search says of a result."""

    score: float
    relevance: float


def search(reader: PlainReader, request: SearchRequest) -> list[Ranked]:
    """Return what answers best, with nothing folded."""
    found = gathered(reader, request, WEIGHTS)
    return [] if found is None else ranked(found)[0][: request.limit]


@pytest.fixture
def reader() -> PlainReader:
    """Return an empty store."""
    return PlainReader()


def add(reader: PlainReader, name: str, content: str, vector: np.ndarray, **fields: object) -> int:
    """Save a memory."""
    return reader.put(plain_memory(name, content, **fields), vectors=vector[np.newaxis])


def names(reader: PlainReader, request: SearchRequest) -> list[str]:
    """Return the ids that a search gives."""
    return reader.ids([one.node for one in search(reader, request)])


def test_what_asks_comes_behind_what_tells(reader):
    """A question is like the one that is asked, and answers it no more than that does."""
    add(reader, "asks", "The kettle is from Dunmoor?", direction(1), at=0)
    add(reader, "tells", "The kettle is from Dunmoor.", direction(1), at=DAY)

    assert ["tells", "asks"] == names(reader, asked("kettle from Dunmoor", direction(1)))


@pytest.mark.parametrize("is_talk", [True, False])
def test_neighbours_lend_where_sittings_are_talks(reader, is_talk):
    """Within the hour an answer follows the question; notes that only share a day say nothing of each other."""
    for sitting in range(8):
        for turn in range(4):
            matter = sitting if is_talk else 4 * sitting + turn
            vector = np.random.default_rng(matter).normal(size=16).astype(np.float32)
            vector /= np.linalg.norm(vector)
            at = sitting * DAY + 60 * turn
            reader.put(plain_memory(f"{sitting}-{turn}", f"text {sitting} {turn}", at=at), vectors=vector[np.newaxis])
    found = search(reader, asked("text 3", np.eye(16, dtype=np.float32)[0]))

    assert is_talk == any("beside" in one.parts for one in found)


def chain(reader: PlainReader) -> None:
    """Save a decision, what replaced it, and what replaced that."""
    add(reader, "old", "sessions in postgres", direction(1), at=0)
    add(reader, "middle", "bearer tokens", direction(0, 1), at=DAY)
    add(reader, "new", "signed cookies", direction(0, 0, 1), at=2 * DAY)
    for newer, older in (("middle", "old"), ("new", "middle")):
        reader.put_link(plain_link(newer, older, "supersedes", type=LinkType.EVOLUTION, created_by="user"))


def test_an_empty_store_has_no_results(reader):
    """Nothing is found where nothing is."""
    assert [] == search(reader, asked("anything at all"))


def test_a_limit_of_nothing_gives_nothing(reader):
    """No result is asked for, none is given."""
    add(reader, "a", "backup", direction(1))

    assert [] == search(reader, asked("backup", limit=0))


def test_words_and_meaning_both_find(reader):
    """One memory is found by its words, another by its meaning, before one that has neither."""
    add(reader, "neither", "lunch", direction(0, 0, 1))
    add(
        reader, "words", "advisory lock 7711 guards the nightly import of fleets, planets and guilds", direction(0.2, 1)
    )
    add(reader, "meaning", "only one process may write while others wait patiently for their turn", direction(1))
    hits = search(reader, asked("advisory lock", direction(1)))

    assert {"words", "meaning"} == set(reader.ids([hit.node for hit in hits[:2]]))
    assert "neither" == reader.ids([hits[2].node])[0]
    assert hits[1].relevance > 0.3 > hits[2].relevance


def test_a_superseded_memory_stands_behind_the_newest_of_its_chain(reader):
    """Asked for in its own words, an old decision brings what holds now, in front of it."""
    chain(reader)
    hits = search(reader, asked("sessions in postgres", direction(1)))
    order = reader.ids([hit.node for hit in hits])
    by_name = dict(zip(order, hits, strict=True))

    assert order.index("new") < order.index("middle") < order.index("old")
    assert reader.find("new") == by_name["old"].superseded_by
    assert reader.find("new") == by_name["middle"].superseded_by
    assert by_name["new"].superseded_by is None


def test_history_leaves_the_old_decision_in_front(reader):
    """Where all rank as equals what answers best comes first, replaced or not, and is still marked."""
    chain(reader)
    hits = search(reader, asked("sessions in postgres", direction(1), superseded="equal"))

    assert "old" == reader.ids([hits[0].node])[0]
    assert reader.find("new") == hits[0].superseded_by


def test_what_is_dropped_makes_room_for_others(reader):
    """Without superseded memories there are as many results all the same, and what holds is found by their words."""
    for number in range(60):
        add(reader, f"old{number}", "sessions in postgres", direction(1))
        add(reader, f"new{number}", "signed cookies", direction(0, 0, 1))
        reader.put_link(plain_link(f"new{number}", f"old{number}", "supersedes", type=LinkType.EVOLUTION))
    found = names(reader, asked("sessions in postgres", direction(1), superseded="drop", limit=50))

    assert 50 == len(found)
    assert all(name.startswith("new") for name in found)


def test_as_of_knows_nothing_of_what_came_later(reader):
    """Searched as of the first day, the old decision holds, and nothing newer is there."""
    chain(reader)
    hits = search(reader, asked("sessions in postgres", direction(1), as_of=START + timedelta(hours=1)))

    assert ["old"] == reader.ids([hit.node for hit in hits])
    assert hits[0].superseded_by is None


def test_as_of_marks_what_replaced_it_by_then(reader):
    """As of the second day the second decision is the newest."""
    chain(reader)
    hits = search(reader, asked("sessions", direction(1), as_of=START + timedelta(days=1, hours=1)))

    assert ["middle", "old"] == reader.ids([hit.node for hit in hits])
    assert reader.find("middle") == hits[1].superseded_by


def test_a_cycle_of_supersessions_ends(reader):
    """Old data may supersede in a circle."""
    chain(reader)
    reader.put_link(plain_link("old", "new", "supersedes", type=LinkType.EVOLUTION))

    assert {"old", "middle", "new"} == set(names(reader, asked("sessions", direction(1))))


def test_a_checkpoint_rises_with_the_decision_that_it_implements(reader):
    """What carries out a decision is found with it, and says by which way."""
    decision = add(reader, "decision", "switch to CP-SAT", direction(1))
    for number in range(20):
        add(reader, f"other{number}", "lunch", direction(0, 1))
    add(reader, "done", "merged", direction(0, 0, 1), type=MemoryType.CHECKPOINT)
    reader.put_link(plain_link("done", "decision", "implements", type=LinkType.IMPLEMENTATION, created_by="user"))
    hits = search(reader, asked("CP-SAT", direction(1)))

    assert ["decision", "done"] == reader.ids([hit.node for hit in hits[:2]])
    assert (decision,) == hits[1].path
    assert hits[1].parts["graph"] > 0


def test_the_memory_of_an_outcome_brings_its_decision_in_front(reader):
    """`Why did it fail` is said by the outcome, and answered by the decision."""
    add(reader, "decision", "celery", direction(1))
    add(reader, "outcome", "the broker ran out of disk", direction(0, 1), type=MemoryType.CONTEXT)
    reader.put_link(plain_link("outcome", "decision", "outcome_of", type=LinkType.IMPLEMENTATION, created_by="user"))

    assert ["decision", "outcome"] == names(reader, asked("broker out of disk", direction(0, 1)))


def test_words_of_a_period_favour_what_was_written_then(reader):
    """`Last week` brings what was written last week before what was not."""
    add(reader, "before", "backup of the store", direction(1), at=10 * DAY)
    add(reader, "week", "backup of the store", direction(1), at=92 * DAY)
    add(reader, "now", "backup of the store", direction(1), at=99 * DAY)

    assert "week" == names(reader, asked("backup last week", direction(1)))[0]


def test_a_question_that_nothing_answers_is_told_by_relevance(reader):
    """Words that occur nowhere and a meaning that is far leave nothing relevant."""
    add(reader, "a", "backup of the store", direction(1))
    hits = search(reader, asked("payment provider donations", direction(0, 1)))

    assert max(hit.relevance for hit in hits) < 0.3


def test_what_a_link_brings_must_pass_the_filter(reader):
    """Neighbours of a result are held to topic, mentions, type and time like everything else."""
    add(reader, "a", "backup", direction(1), topic="ops", mentions=("2-1",), at=10)
    add(reader, "b", "lunch", direction(0, 1), type=MemoryType.CHECKPOINT, at=2 * DAY)
    reader.put_link(plain_link("b", "a", "implements", type=LinkType.IMPLEMENTATION))
    wheres = (
        Filter(types=frozenset({MemoryType.DECISION})),
        Filter(topic="ops"),
        Filter(mentions=frozenset({"2-1"})),
        Filter(until=START + timedelta(days=1)),
    )

    for where in wheres:
        assert ["a"] == names(reader, asked("backup", direction(1), where=where))


def test_of_a_chain_with_thousands_of_links_the_plan_survives(reader):
    """A memory that everything links to brings the strongest only, and does not fail."""
    add(reader, "hub", "backup", direction(1))
    for number in range(300):
        add(reader, f"leaf{number}", "lunch", direction(0, 1))
        reader.put_link(plain_link(f"leaf{number}", "hub", confidence=0.5))

    assert "hub" == names(reader, asked("backup", direction(1)))[0]


def test_who_asks_why_gets_the_old_decision_in_front(reader):
    """The reason of what was given up is in the decision that was given up."""
    chain(reader)
    hits = search(reader, asked("why did we leave sessions in postgres", direction(1)))

    assert "old" == reader.ids([hits[0].node])[0]
    assert reader.find("new") == hits[0].superseded_by


def test_a_link_that_was_made_later_was_not_there_then(reader):
    """As of a day before somebody linked them, two decisions stand beside each other."""
    add(reader, "old", "sessions in postgres", direction(1), at=0)
    add(reader, "new", "signed cookies", direction(0, 0, 1), at=DAY)
    reader.put_link(plain_link("new", "old", type=LinkType.EVOLUTION, created_by="user", at=50 * DAY))
    then = search(reader, asked("sessions", direction(1), as_of=START + timedelta(days=10)))
    now = search(reader, asked("sessions", direction(1)))

    assert ["old", "new"] == reader.ids([hit.node for hit in then])
    assert then[0].superseded_by is None
    assert {} == {name: part for name, part in then[1].parts.items() if name == "graph"}
    assert ["new", "old"] == reader.ids([hit.node for hit in now])


def test_memories_of_one_topic_rise_together(reader):
    """What has the topic of a good hit passes what is as far from the question."""
    add(reader, "hit", "backup of the store", direction(1), topic="disk")
    add(reader, "same", "lunch", direction(0, 1), topic="disk")
    add(reader, "other", "lunch", direction(0, 1), topic="food")

    assert ["hit", "same", "other"] == names(reader, asked("backup of the store", direction(1)))


@st.composite
def stores(draw: st.DrawFn) -> PlainReader:
    """Draw a small store with links of every kind, cycles included."""
    reader = PlainReader()
    size = draw(st.integers(0, 8))
    words = st.sampled_from(["backup", "lock", "token", "raid", "백업", "토큰을"])
    for number in range(size):
        vector = direction(*draw(st.lists(st.integers(-2, 2), min_size=4, max_size=4)))
        reader.put(
            plain_memory(
                f"m{number}",
                " ".join(draw(st.lists(words, max_size=3))),
                type=draw(st.sampled_from(list(MemoryType))),
                topic=draw(st.sampled_from([None, "ops"])),
                at=draw(st.integers(0, 5)) * DAY,
            ),
            vectors=vector[np.newaxis] if draw(st.booleans()) else None,
        )
    if size > 1:
        for number in range(draw(st.integers(0, 10))):
            source, target = draw(st.permutations(range(size)))[:2]
            kind = draw(st.sampled_from(list(LinkType)))
            reader.put_link(plain_link(f"m{source}", f"m{target}", link_id=f"l{number}", type=kind))
    return reader


@settings(max_examples=60)
@given(
    reader=stores(),
    text=st.sampled_from(["", "backup", "lock yesterday", "왜 백업을 했나", "nothing of this", "\ud800"]),
    limit=st.integers(1, 10),
    superseded=st.sampled_from(SUPERSEDED),
    types=st.none() | st.sets(st.sampled_from(list(MemoryType)), min_size=1),
    topic=st.none() | st.just("ops"),
    day=st.none() | st.integers(0, 6),
)
def test_a_search_gives_exactly_as_many_as_match(  # noqa: PLR0917 - drawn by name
    reader, text, limit, superseded, types, topic, day
):
    """Every result passes the filters, comes once and in order, and there are *limit* if so many match."""
    as_of = None if day is None else START + timedelta(days=day)
    where = Filter(types=None if types is None else frozenset(types), topic=topic)
    hits = search(reader, asked(text, direction(1), limit=limit, superseded=superseded, where=where, as_of=as_of))
    until = None if as_of is None else as_of + timedelta(milliseconds=1)
    allowed = set(reader.window(attrs.evolve(where, until=until)).tolist())
    if superseded == "drop":
        allowed -= set(Successors(reader, as_of).newest(sorted(allowed)))
    found = [hit.node for hit in hits]

    assert min(limit, len(allowed)) == len(found)
    assert len(set(found)) == len(found)
    assert set(found) <= allowed
    assert sorted((hit.score for hit in hits), reverse=True) == [hit.score for hit in hits]
    assert all(0 <= hit.relevance <= 1 for hit in hits)
    if superseded == "behind" and not asks_for_history(text):
        for place, hit in enumerate(hits):
            assert hit.superseded_by not in found[place + 1 :] or _in_circle(reader, hit.node)


def _in_circle(reader: PlainReader, node: int) -> bool:
    frontier, seen = {node}, set()
    while frontier:
        table = reader.links(np.array(sorted(frontier)), "in", (LinkType.EVOLUTION,))
        frontier = set(table.sources.tolist()) - seen
        seen |= frontier
    return node in seen or len(seen) > 1


@given(
    hits=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1)), max_size=12),
    relevance=st.floats(0, 1),
    share=st.floats(0, 1),
)
def test_what_is_worth_showing_begins_with_the_best(hits, relevance, share):
    """Nothing is shown where nothing is relevant enough, else the best of all and what is nearly as good, in order."""
    given_hits = [Scored(score, own) for score, own in sorted(hits, reverse=True)]
    kept = worth_showing(given_hits, bounds=Bounds(relevance=relevance, share=share))

    assert given_hits[: len(kept)] == kept
    assert bool(kept) == (max((own for _, own in hits), default=-1.0) >= relevance)
    assert all(hit.score >= share * given_hits[0].score for hit in kept)
    assert all(hit.score < share * given_hits[0].score for hit in given_hits[len(kept) :] if kept)


@settings(max_examples=60)
@given(
    reader=stores(),
    text=st.sampled_from(["", "backup", "lock yesterday", "왜 백업을 했나"]),
    limit=st.integers(1, 6),
    superseded=st.sampled_from(SUPERSEDED),
    topic=st.none() | st.just("ops"),
    least=st.sampled_from([0.0, 0.1, 0.5]),
    day=st.none() | st.integers(0, 6),
    room=st.none() | st.integers(1, 40),
)
def test_terms_add_up_to_the_score_of_each_memory(  # noqa: PLR0917 - drawn by name
    reader, text, limit, superseded, topic, least, day, room
):
    """Of hits rank, score and relevance are theirs; of all others it is said what left them out."""
    as_of = None if day is None else START + timedelta(days=day)
    request = asked(
        text,
        direction(1),
        limit=limit,
        superseded=superseded,
        where=Filter(topic=topic),
        as_of=as_of,
        min_relevance=least,
    )
    found, _ = hits(reader, request)
    ranks = {hit.memory.id: rank for rank, hit in enumerate(found, 1)}
    for node in reader.window().tolist():
        one = explained(reader, request, node, room)
        if one.score is not None:
            assert one.score == pytest.approx(sum(one.terms.values()), abs=1e-5)
        if one.id in ranks and one.left_out_by is None:
            hit = found[ranks[one.id] - 1]
            assert (hit.score, hit.relevance, hit.superseded_by) == (one.score, one.relevance, one.superseded_by)
            assert hit.terms == one.terms
            assert one.rank <= ranks[one.id]
        assert (one.rank is None) == (one.left_out_by is not None)
        assert (one.id in ranks) == (one.left_out_by in {None, "max_chars"})
        assert one.id in str(one)
        assert (one.copy_of is not None) <= (one.left_out_by in {"copies", "superseded"})
