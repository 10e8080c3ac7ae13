"""The search plan, tested with an engine that compares all memories."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.embedding.protocol import Calibration, QueryVectors, unadjusted_query
from mama_structs.memory.graph.traversal import Successors
from mama_structs.memory.search.candidates import collect_candidates
from mama_structs.memory.search.explanation import explain
from mama_structs.memory.search.features import FEATURES
from mama_structs.memory.search.query_rewriting import asks_for_history
from mama_structs.memory.search.ranking import RankedCandidate, collect_features, rank_candidates
from mama_structs.memory.search.search_plan import MAX_TIE_DISTANCE, find_hits, similar, worth_showing
from mama_structs.memory.search.search_request import SUPERSEDED_MODES, SearchRequest, SimilarityRequest
from mama_structs.memory.search.time_expressions import find_period
from mama_structs.memory.types.engine import EngineFilter, RelevanceBounds
from mama_structs.memory.types.model import LinkType, MemoryType
from mama_structs.testing.plain_engine import PlainReader

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400.0
NOW = START + timedelta(days=100)


def direction(*weights: float) -> np.ndarray:
    """Return a normalized vector with four dimensions."""
    vector = np.zeros(4, np.float32)
    vector[: len(weights)] = weights
    return vector / max(float(np.linalg.norm(vector)), 1e-9)


def asked(text: str = "", vector: np.ndarray | None = None, **options: object) -> SearchRequest:
    """Return a search request. Its default vector is similar to no memory of these tests."""
    return attrs.evolve(
        SearchRequest(
            text=text,
            content=text,
            vectors=unadjusted_query(direction(0, 0, 0, 1) if vector is None else vector),
            period=find_period(text, NOW),
            now=NOW,
            calibration=Calibration(0.3, 12.0),
        ),
        **options,
    )


@attrs.frozen
class Scored:
    """The scores of a search result."""

    score: float
    relevance: float


def search(reader: PlainReader, request: SearchRequest) -> list[RankedCandidate]:
    """Return the best results, without folding near duplicates."""
    found = collect_candidates(reader, request)
    if found is None:
        return []
    ranked = rank_candidates(found)
    return ranked.results(range(len(ranked.order)))[: request.limit]


@pytest.fixture
def reader() -> PlainReader:
    """Return an empty store."""
    return PlainReader()


def add(reader: PlainReader, name: str, content: str, vector: np.ndarray, **fields: object) -> int:
    """Save a memory."""
    return reader.put(plain_memory(name, content, **fields), vectors=vector[np.newaxis])


def names(reader: PlainReader, request: SearchRequest) -> list[str]:
    """Return the ids of the results."""
    return reader.ids([one.node for one in search(reader, request)])


def test_stored_question_ranks_after_statement(reader):
    """A question is similar to the query, but does not answer it."""
    add(reader, "asks", "The kettle is from Dunmoor?", direction(1), at=0)
    add(reader, "tells", "The kettle is from Dunmoor.", direction(1), at=DAY)

    assert ["tells", "asks"] == names(reader, asked("kettle from Dunmoor", direction(1)))


@pytest.mark.parametrize("minutes", [1, 100])
def test_temporal_neighbour_gains_within_an_hour(reader, minutes):
    """An answer gains from the question before it. Later notes do not."""
    add(reader, "question", "Which mooring is free?", direction(1), at=0)
    add(reader, "answer", "Number four.", direction(0, 1), at=60.0 * minutes)
    add(reader, "other", "Number five.", direction(0, 1), at=DAY)
    scores = {one.node: one.parts for one in search(reader, asked("mooring free", direction(1)))}
    answer, other = (scores[reader.find(name)] for name in ("answer", "other"))

    assert ("neighbour" in answer) == (minutes == 1)
    assert "neighbour" not in other


def chain(reader: PlainReader) -> None:
    """Save three decisions. The second one supersedes the first one, and the third one supersedes the second one."""
    add(reader, "old", "sessions in postgres", direction(1), at=0)
    add(reader, "middle", "bearer tokens", direction(0, 1), at=DAY)
    add(reader, "new", "signed cookies", direction(0, 0, 1), at=2 * DAY)
    for newer, older in (("middle", "old"), ("new", "middle")):
        reader.put_link(plain_link(newer, older, "supersedes", type=LinkType.EVOLUTION, created_by="user"))


def test_search_of_empty_store_returns_nothing(reader):
    assert [] == search(reader, asked("anything at all"))


def test_search_with_zero_limit_returns_nothing(reader):
    add(reader, "a", "backup", direction(1))

    assert [] == search(reader, asked("backup", limit=0))


def test_search_finds_by_words_and_by_meaning(reader):
    """Both memories rank before one that matches neither."""
    add(reader, "neither", "lunch", direction(0, 0, 1))
    add(
        reader, "words", "advisory lock 7711 guards the nightly import of fleets, planets and guilds", direction(0.2, 1)
    )
    add(reader, "meaning", "only one process may write while others wait patiently for their turn", direction(1))
    hits = search(reader, asked("advisory lock", direction(1)))

    assert {"words", "meaning"} == set(reader.ids([hit.node for hit in hits[:2]]))
    assert "neither" == reader.ids([hits[2].node])[0]
    assert hits[1].relevance > 0.3 > hits[2].relevance


def test_superseded_memory_ranks_after_newest_of_chain(reader):
    """Even for a query in the words of the old decision, its newest successor comes first."""
    chain(reader)
    hits = search(reader, asked("sessions in postgres", direction(1)))
    order = reader.ids([hit.node for hit in hits])
    by_name = dict(zip(order, hits, strict=True))

    assert order.index("new") < order.index("middle") < order.index("old")
    assert reader.find("new") == by_name["old"].superseded_by
    assert reader.find("new") == by_name["middle"].superseded_by
    assert by_name["new"].superseded_by is None


def test_history_ranks_old_decision_by_relevance(reader):
    """The best match comes first, superseded or not, and is still marked as superseded."""
    chain(reader)
    hits = search(reader, asked("sessions in postgres", direction(1), superseded="keep"))

    assert "old" == reader.ids([hits[0].node])[0]
    assert reader.find("new") == hits[0].superseded_by


def test_hiding_superseded_memories_fills_limit(reader):
    """The limit is filled, and successors are found by their predecessors' words."""
    for number in range(60):
        add(reader, f"old{number}", "sessions in postgres", direction(1))
        add(reader, f"new{number}", "signed cookies", direction(0, 0, 1))
        reader.put_link(plain_link(f"new{number}", f"old{number}", "supersedes", type=LinkType.EVOLUTION))
    found = names(reader, asked("sessions in postgres", direction(1), superseded="exclude", limit=50))

    assert 50 == len(found)
    assert all(name.startswith("new") for name in found)


def test_as_of_ignores_newer_memories(reader):
    """As of the first day, the old decision is current."""
    chain(reader)
    hits = search(reader, asked("sessions in postgres", direction(1), as_of=START + timedelta(hours=1)))

    assert ["old"] == reader.ids([hit.node for hit in hits])
    assert hits[0].superseded_by is None


def test_as_of_marks_successor_of_that_time(reader):
    """As of the second day, the second decision is the newest."""
    chain(reader)
    hits = search(reader, asked("sessions", direction(1), as_of=START + timedelta(days=1, hours=1)))

    assert ["middle", "old"] == reader.ids([hit.node for hit in hits])
    assert reader.find("middle") == hits[1].superseded_by


def test_search_terminates_with_cyclic_supersession(reader):
    """Old data may contain cycles."""
    chain(reader)
    reader.put_link(plain_link("old", "new", "supersedes", type=LinkType.EVOLUTION))

    assert {"old", "middle", "new"} == set(names(reader, asked("sessions", direction(1))))


def test_checkpoint_gains_from_implemented_decision(reader):
    """It is found with the decision, and the result names the link."""
    decision = add(reader, "decision", "switch to CP-SAT", direction(1))
    for number in range(20):
        add(reader, f"other{number}", "lunch", direction(0, 1), at=(number + 1) * DAY)
    add(reader, "done", "merged", direction(0, 0, 1), type=MemoryType.CHECKPOINT)
    reader.put_link(plain_link("done", "decision", "implements", type=LinkType.IMPLEMENTATION, created_by="user"))
    hits = search(reader, asked("CP-SAT", direction(1)))

    assert ["decision", "done"] == reader.ids([hit.node for hit in hits[:2]])
    assert (decision,) == hits[1].path
    assert hits[1].parts["links"] > 0


def test_decision_ranks_before_memory_of_its_outcome(reader):
    """`Why did it fail` matches the outcome, but the decision is the answer."""
    add(reader, "decision", "celery", direction(1))
    add(reader, "outcome", "the broker ran out of disk", direction(0, 1), type=MemoryType.CONTEXT)
    reader.put_link(plain_link("outcome", "decision", "outcome_of", type=LinkType.IMPLEMENTATION, created_by="user"))

    assert ["decision", "outcome"] == names(reader, asked("broker out of disk", direction(0, 1)))


def test_superseded_decision_ranks_before_memory_of_its_outcome(reader):
    """The penalty of the decision applies to the memory of its outcome too."""
    add(reader, "decision", "celery with a broker", direction(1))
    add(reader, "outcome", "the broker ran out of disk", direction(0, 1), type=MemoryType.CONTEXT)
    add(reader, "successor", "cron", direction(0, 0, 1))
    reader.put_link(plain_link("outcome", "decision", "outcome_of", type=LinkType.IMPLEMENTATION, created_by="user"))
    reader.put_link(plain_link("successor", "decision", "supersedes", type=LinkType.EVOLUTION, created_by="user"))

    assert ["successor", "decision", "outcome"] == names(reader, asked("broker out of disk", direction(0, 1)))


def test_period_in_query_promotes_memories_of_that_time(reader):
    """`Last week` ranks memories of last week first."""
    add(reader, "before", "backup of the store", direction(1), at=10 * DAY)
    add(reader, "week", "backup of the store", direction(1), at=92 * DAY)
    add(reader, "now", "backup of the store", direction(1), at=99 * DAY)

    assert "week" == names(reader, asked("backup last week", direction(1)))[0]


def test_relevance_is_low_when_nothing_matches(reader):
    """That is a query with unknown words and a distant vector."""
    add(reader, "a", "backup of the store", direction(1))
    hits = search(reader, asked("payment provider donations", direction(0, 1)))

    assert max(hit.relevance for hit in hits) < 0.3


def test_linked_results_pass_filter(reader):
    """Neighbours of a result must match topic, mentions, type and time too."""
    add(reader, "a", "backup", direction(1), topic="ops", mentions=("2-1",), at=10)
    add(reader, "b", "lunch", direction(0, 1), type=MemoryType.CHECKPOINT, at=2 * DAY)
    reader.put_link(plain_link("b", "a", "implements", type=LinkType.IMPLEMENTATION))
    wheres = (
        EngineFilter(types=frozenset({MemoryType.DECISION})),
        EngineFilter(topic="ops"),
        EngineFilter(mentions=frozenset({"2-1"})),
        EngineFilter(until=START + timedelta(days=1)),
    )

    for where in wheres:
        assert ["a"] == names(reader, asked("backup", direction(1), where=where))


def test_search_handles_memory_with_thousands_of_links(reader):
    """Only the strongest links are followed."""
    add(reader, "hub", "backup", direction(1))
    for number in range(300):
        add(reader, f"leaf{number}", "lunch", direction(0, 1))
        reader.put_link(plain_link(f"leaf{number}", "hub", confidence=0.5))

    assert "hub" == names(reader, asked("backup", direction(1)))[0]


def test_why_query_ranks_old_decision_first(reader):
    """The reason of a superseded decision is stored in that decision."""
    chain(reader)
    hits = search(reader, asked("why did we leave sessions in postgres", direction(1)))

    assert "old" == reader.ids([hits[0].node])[0]
    assert reader.find("new") == hits[0].superseded_by


def test_as_of_ignores_later_links(reader):
    """Before they were linked, two decisions are independent."""
    add(reader, "old", "sessions in postgres", direction(1), at=0)
    add(reader, "new", "signed cookies", direction(0, 0, 1), at=DAY)
    reader.put_link(plain_link("new", "old", type=LinkType.EVOLUTION, created_by="user", at=50 * DAY))
    then = search(reader, asked("sessions", direction(1), as_of=START + timedelta(days=10)))
    now = search(reader, asked("sessions", direction(1)))

    assert ["old", "new"] == reader.ids([hit.node for hit in then])
    assert then[0].superseded_by is None
    assert {} == {name: part for name, part in then[1].parts.items() if name == "graph"}
    assert ["new", "old"] == reader.ids([hit.node for hit in now])


def test_memories_of_same_topic_gain_from_good_hit(reader):
    """They outrank memories with the same distance to the query."""
    add(reader, "hit", "backup of the store", direction(1), topic="disk")
    add(reader, "same", "lunch", direction(0, 1), topic="disk")
    add(reader, "other", "lunch", direction(0, 1), topic="food")

    assert ["hit", "same", "other"] == names(reader, asked("backup of the store", direction(1)))


@st.composite
def stores(draw: st.DrawFn) -> PlainReader:
    """Draw a small store with links of all types, which may form cycles."""
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
    superseded=st.sampled_from(SUPERSEDED_MODES),
    types=st.none() | st.sets(st.sampled_from(list(MemoryType)), min_size=1),
    topic=st.none() | st.just("ops"),
    day=st.none() | st.integers(0, 6),
)
def test_search_returns_exact_number_of_matches(  # noqa: PLR0917 - drawn by name
    reader, text, limit, superseded, types, topic, day
):
    """
    All results are distinct, match the filters and are sorted.

    There are *limit* if enough match.
    """
    as_of = None if day is None else START + timedelta(days=day)
    where = EngineFilter(types=None if types is None else frozenset(types), topic=topic)
    hits = search(reader, asked(text, direction(1), limit=limit, superseded=superseded, where=where, as_of=as_of))
    until = None if as_of is None else as_of + timedelta(milliseconds=1)
    allowed = set(reader.window(attrs.evolve(where, until=until)).tolist())
    if superseded == "exclude":
        allowed -= set(Successors(reader, as_of).newest(sorted(allowed)))
    found = [hit.node for hit in hits]

    assert min(limit, len(allowed)) == len(found)
    assert len(set(found)) == len(found)
    assert set(found) <= allowed
    assert sorted((hit.score for hit in hits), reverse=True) == [hit.score for hit in hits]
    assert all(0 <= hit.relevance <= 1 for hit in hits)
    if superseded == "demote" and not asks_for_history(text):
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
def test_injection_cut_returns_best_hits_in_order(hits, relevance, share):
    """It returns hits nearly as relevant, or with nearly as high a score, as the best; nothing if none is relevant."""
    given_hits = [Scored(score, own) for score, own in sorted(hits, reverse=True)]
    kept = worth_showing(given_hits, bounds=RelevanceBounds(relevance=relevance, share=share))
    best = max((own for _, own in hits), default=-1.0)

    assert bool(kept) == (best >= relevance)
    least_score = max((score for score, _ in hits), default=0.0) - MAX_TIE_DISTANCE
    shown = [hit for hit in given_hits if hit.relevance >= share * best or hit.score >= least_score]
    assert kept == (shown if kept else [])


@settings(max_examples=60)
@given(
    reader=stores(),
    text=st.sampled_from(["", "backup", "lock yesterday", "왜 백업을 했나"]),
    limit=st.integers(1, 6),
    superseded=st.sampled_from(SUPERSEDED_MODES),
    topic=st.none() | st.just("ops"),
    least=st.sampled_from([0.0, 0.1, 0.5]),
    day=st.none() | st.integers(0, 6),
    room=st.none() | st.integers(1, 40),
)
def test_score_terms_sum_to_score(  # noqa: PLR0917 - drawn by name
    reader, text, limit, superseded, topic, least, day, room
):
    """The explanation has rank, score and relevance of hits, and why others are omitted."""
    as_of = None if day is None else START + timedelta(days=day)
    request = asked(
        text,
        direction(1),
        limit=limit,
        superseded=superseded,
        where=EngineFilter(topic=topic),
        as_of=as_of,
        min_relevance=least,
    )
    found, _ = find_hits(reader, request)
    ranks = {hit.memory.id: rank for rank, hit in enumerate(found, 1)}
    for node in reader.window().tolist():
        one = explain(reader, request, node, room)
        if one.score is not None:
            assert one.score == pytest.approx(sum(one.terms.values()), abs=1e-5)
        if one.memory_id in ranks and one.excluded_by is None:
            hit = found[ranks[one.memory_id] - 1]
            assert (hit.score, hit.relevance, hit.superseded_by) == (one.score, one.relevance, one.superseded_by)
            assert hit.terms == one.terms
            assert one.rank <= ranks[one.memory_id]
        assert (one.rank is None) == (one.excluded_by is not None)
        assert (one.memory_id in ranks) == (one.excluded_by in {None, "max_chars"})
        assert one.memory_id in str(one)
        assert (one.duplicate_of is not None) <= (one.excluded_by in {"duplicates", "superseded"})


def test_copies_of_the_best_hit_do_not_hide_other_memories(reader):
    """The search reads more candidates if most of them are copies."""
    for number in range(150):
        add(reader, f"copy{number}", "The store is backed up at night.", direction(1))
    for number in range(200):
        add(reader, f"late{number}", f"Lunch {number} is late.", direction(0.2, 1))
    hits, _ = find_hits(reader, asked("store backed up at night", direction(1), limit=3))

    assert 3 == len(hits)
    assert 149 == len(hits[0].duplicates)
    assert {"late"} == {hit.memory.id[:4] for hit in hits[1:]}


def test_newer_statement_comes_before_older_one(reader):
    """The older one matches the query better, but has an outdated value. A query for history shows it first."""
    add(reader, "older", "The nightly backup runs at 2:00.", direction(1), at=0)
    add(reader, "newer", "The nightly backup runs at 4:00.", direction(1, 0.3), at=2 * DAY)
    for number in range(5):
        add(reader, f"other{number}", "lunch", direction(0, 0, 1), at=(10 + number) * DAY)
    (first, second, *_), _ = find_hits(reader, asked("nightly backup runs at 2:00", direction(1)))
    before, _ = find_hits(reader, asked("why did the nightly backup run at 2:00", direction(1)))

    assert ("newer", "older") == (first.memory.id, second.memory.id)
    assert first.score >= second.score
    assert first.relevance >= second.relevance
    assert "place" in first.terms
    assert [hit.score for hit in (first, second)] == pytest.approx([sum(hit.terms.values()) for hit in (first, second)])
    assert "older" == before[0].memory.id


def test_memories_of_requested_period_are_relevant(reader):
    """A query for all memories of a period has no words that they could match."""
    add(reader, "inside", "lunch", direction(1), at=92 * DAY)
    add(reader, "outside", "dinner", direction(1), at=10 * DAY)
    text = "What did we note last week?"
    without, related = (
        {reader.ids([hit.node])[0]: hit.relevance for hit in search(reader, asked(text, is_about_period=about))}
        for about in (False, True)
    )

    assert without["inside"] < 0.32 == related["inside"]
    assert without["outside"] == related["outside"]


def test_meaning_of_adjusted_similarities_is_a_share(reader):
    """The shown similarity is on the scale of cosines, although ranking uses differences from unrelated texts."""
    for number in range(8):
        add(reader, f"m{number}", f"note {number}", direction(1, number))
    vector = direction(1)
    adjusted = QueryVectors(
        plain=vector, same=vector - direction(0, 0, 1), other=vector, has_rest=False, shared_dimensions=4
    )
    first, plain = (find_hits(reader, asked("", vectors=one))[0] for one in (adjusted, unadjusted_query(vector)))

    assert [hit.memory.id for hit in plain] == [hit.memory.id for hit in first]
    assert all(0 <= hit.signals["meaning"] <= 1 for hit in first)
    assert first[0].signals["meaning"] > 0.9


def test_similar_returns_other_memories_by_nearest_vector(reader):
    """The memory itself is left out, and each memory has the similarity of its nearest vector."""
    for name, vector in {"own": direction(1), "near": direction(1, 0.2), "far": direction(0, 0, 1)}.items():
        add(reader, name, name, vector)
    request = SimilarityRequest(
        pieces=np.stack([direction(1), direction(0, 1)]),
        where=EngineFilter(),
        but="own",
        calibration=Calibration(0.3, 12.0),
        shared_dimensions=4,
        threshold=0.5,
        limit=5,
    )
    (found,) = similar(reader, request)

    assert "near" == found.memory.id
    assert found.similarity == pytest.approx(float(Calibration(0.3, 12.0)(1 / np.sqrt(1.04))), abs=1e-5)
    assert ["near", "far"] == [one.memory.id for one in similar(reader, attrs.evolve(request, threshold=0.0))]


def test_find_hits_returns_nothing_without_limit_or_memories(reader):
    assert ([], None) == find_hits(reader, asked("backup"))
    add(reader, "a", "backup", direction(1))
    assert ([], None) == find_hits(reader, asked("backup", limit=0))


def test_collected_features_have_a_row_per_candidate(reader):
    """The fit reads the columns that ranking uses."""
    nodes, columns, evidence = collect_features(reader, asked("backup"))
    assert (0, (0, len(FEATURES)), (3, 0)) == (len(nodes), columns.shape, evidence.shape)

    chain(reader)
    request = asked("sessions", direction(1))
    nodes, columns, evidence = collect_features(reader, request)

    assert (3, (3, len(FEATURES)), (3, 3)) == (len(nodes), columns.shape, evidence.shape)
    np.testing.assert_array_equal(rank_candidates(collect_candidates(reader, request)).table.columns, columns)


def test_exclusion_of_superseded_memories_does_not_reduce_the_number_of_hits(reader):
    """The search continues if most candidates are superseded."""
    for number in range(60):
        add(reader, f"old{number}", f"The deploy host is box {number}.", direction(1), at=number)
        if number:
            reader.put_link(plain_link(f"old{number}", f"old{number - 1}", type=LinkType.EVOLUTION))
    for number in range(30):
        add(reader, f"note{number}", f"Lunch {number}", direction(0, 1), at=DAY + number)
    hits, _ = find_hits(reader, asked("deploy host", direction(1), superseded="exclude", limit=20))

    assert 20 == len(hits)
    assert "old59" == hits[0].memory.id


def test_newer_statement_passes_the_minimum_relevance_with_the_older_one(reader):
    """Otherwise only the outdated statement would be found."""
    add(reader, "old", "The editor of the user is Vim.", direction(1), at=0)
    add(reader, "new", "The editor of the user is Emacs.", direction(1, 0.1), at=DAY)
    for number in range(30):
        add(reader, f"note{number}", f"Lunch {number}", direction(0, 1), at=2 * DAY + number)
    request = asked("editor of the user Vim", direction(1))
    (new, old, *_), _ = find_hits(reader, request)
    bounded, _ = find_hits(reader, attrs.evolve(request, min_relevance=old.relevance))

    assert ["new", "old"] == [new.memory.id, old.memory.id]
    assert ["new", "old"] == [hit.memory.id for hit in bounded]
