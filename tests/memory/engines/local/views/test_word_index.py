"""The word index, compared with BM25 computed from a plain dict of the existing documents."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mama_structs.memory.engines.local.views import word_index as words
from mama_structs.memory.engines.local.views.word_index import BM25_K1, EXTRA_LENGTH_TERMS, MAX_LENGTH_TERMS, WordIndex

TERMS = st.sampled_from([f"t{number}" for number in range(12)])
WEIGHTS = st.sampled_from([0.1, 0.4, 0.5, 1.0, 2.0, 7.0])
DOCUMENTS = st.dictionaries(TERMS, WEIGHTS, max_size=8)
QUERIES = st.dictionaries(st.one_of(TERMS, st.just("unknown")), st.sampled_from([0.5, 1.0, 2.0]), max_size=8)
NODES = st.integers(min_value=0, max_value=30)


def make_small(monkeypatch):
    """Lower all size limits, so that a small test reaches them."""
    for name, value in {
        "MAX_FRESH_POSTINGS": 9,
        "MAX_POSTINGS_PER_STEP": 5,
        "MAX_GATHERED_POSTINGS": 1,
        "MIN_UNUSED_WORDS_TO_DROP": 2,
        "MAX_PENDING_MEMORIES": 3,
    }.items():
        monkeypatch.setattr(words, name, value)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    make_small(monkeypatch)


def bm25(documents, query):
    """Return BM25 scores (Robertson and Zaragoza, in the form that Lucene uses)."""
    count = len(documents)
    lengths = {node: min(sum(terms.values()), MAX_LENGTH_TERMS) for node, terms in documents.items()}
    average = sum(lengths.values()) / count if count else 1.0
    scores = {}
    for node, terms in documents.items():
        score = 0.0
        for term, weight in query.items():
            if term in terms:
                having = sum(term in other for other in documents.values())
                rarity = math.log(1 + (count - having + 0.5) / (having + 0.5))
                divisor = terms[term] + BM25_K1 * (EXTRA_LENGTH_TERMS + lengths[node]) / (EXTRA_LENGTH_TERMS + average)
                score += weight * rarity * terms[term] / divisor
        if score > 0:
            scores[node] = score
    return scores


def found(matches):
    return list(zip(matches.nodes.tolist(), matches.scores.tolist(), strict=True))


def assert_best(expected, matches, limit):
    """Assert that the matches have the highest scores, sorted by score and then newest first."""
    got = found(matches)

    assert min(limit, len(expected)) == len(got)
    assert pytest.approx(sorted(expected.values(), reverse=True)[:limit], rel=1e-4) == [score for _, score in got]
    for node, score in got:
        assert pytest.approx(expected[node], rel=1e-4) == score
    for (node, score), (following, next_score) in pairwise(got):
        assert score > next_score or (score == next_score and node > following)


class Indexing(RuleBasedStateMachine):
    """Stateful test of a word index that is changed and reopened, compared with a dict of its documents."""

    @initialize()
    def start(self):
        self.index = WordIndex()
        self.documents = {}
        self.patched = pytest.MonkeyPatch()
        make_small(self.patched)

    def teardown(self):
        self.patched.undo()

    @rule(node=NODES, document=DOCUMENTS)
    def add(self, node, document):
        self.index.add(node, document)
        self.documents[node] = document

    @rule(documents=st.lists(DOCUMENTS, min_size=1, max_size=12), first=NODES)
    def add_many(self, documents, first):
        for node, document in enumerate(documents, first):
            self.add(node, document)

    @rule(node=NODES)
    def remove(self, node):
        self.index.remove(node)
        self.documents.pop(node, None)

    @rule()
    def reopen(self):
        meta, arrays = self.index.state()
        self.index.add(0, {"later": 1.0})
        self.index = WordIndex.from_state(json.loads(json.dumps(meta)), {k: _locked(v) for k, v in arrays.items()})

    @rule(query=QUERIES, limit=st.integers(1, 40))
    def search(self, query, limit):
        assert_best(bm25(self.documents, query), self.index.search(query, limit), limit)

    @rule(query=QUERIES, limit=st.integers(1, 40), mask=st.lists(st.booleans(), max_size=40))
    def search_some(self, query, limit, mask):
        allowed = {n: s for n, s in bm25(self.documents, query).items() if n < len(mask) and mask[n]}

        assert_best(allowed, self.index.search(query, limit, np.array(mask, np.bool_)), limit)

    @rule(query=QUERIES, nodes=st.lists(st.integers(0, 5000), max_size=10))
    def scores(self, query, nodes):
        expected = bm25(self.documents, query)

        assert pytest.approx([expected.get(node, 0.0) for node in nodes], rel=1e-4) == list(
            self.index.scores(query, np.array(nodes, np.int64))
        )

    @precondition(lambda self: self.documents)
    @rule(query=QUERIES)
    def search_and_scores_agree(self, query):
        matches = self.index.search(query, 10)

        assert matches.scores.tolist() == self.index.scores(query, matches.nodes).tolist()

    @rule(query=QUERIES, limit=st.integers(1, 40), mask=st.one_of(st.none(), st.lists(st.booleans(), max_size=40)))
    def search_is_the_head_of_all_scores(self, query, limit, mask):
        matches = self.index.search(query, limit, None if mask is None else np.array(mask, np.bool_))
        nodes = [node for node in range(50) if mask is None or (node < len(mask) and mask[node])]
        scores = self.index.scores(query, np.array(nodes, np.int64)).tolist()
        order = sorted(((-score, -node) for score, node in zip(scores, nodes, strict=True) if score), key=tuple)

        assert [(-node, -score) for score, node in order[:limit]] == found(matches)

    @invariant()
    def each_segment_is_longer_than_all_shorter_ones_together(self):
        sizes = sorted(map(len, self.index._segments.values()))

        assert all(size > sum(sizes[:place]) for place, size in enumerate(sizes))

    @invariant()
    def knows_its_memories(self):
        assert len(self.documents) == len(self.index)

    @rule(node=NODES)
    def terms(self, node):
        assert sorted(self.documents.get(node, ())) == sorted(self.index.terms(node))


def _locked(array):
    array = array.copy()
    array.flags.writeable = False
    return array


TestIndexing = Indexing.TestCase
TestIndexing.settings = settings(stateful_step_count=12)


@given(documents=st.lists(DOCUMENTS, max_size=20), doomed=st.sets(st.integers(0, 19)), query=QUERIES)
def test_removed_memories_do_not_affect_scores(documents, doomed, query):
    """Scores equal, bit for bit, those of an index without the removed memories."""
    index, fresh = WordIndex(), WordIndex()
    for node, document in enumerate(documents):
        index.add(node, document)
    for node in doomed:
        index.remove(node)
    for node, document in enumerate(documents):
        if node not in doomed:
            fresh.add(node, document)

    assert found(fresh.search(query, 20)) == found(index.search(query, 20))
    assert fresh.rarity(query) == index.rarity(query)


def test_add_counts_terms_of_sequence():
    """The weight of a term in a sequence is its number of occurrences."""
    index, weighed = WordIndex(), WordIndex()
    index.add(0, ["raid", "raid", "shield"])
    weighed.add(0, {"raid": 2.0, "shield": 1.0})

    assert found(weighed.search({"raid": 1.0}, 1)) == found(index.search({"raid": 1.0}, 1))


def many(count):
    index = WordIndex()
    for node in range(count):
        index.add(node, {f"w{node % 7}": 1.0, f"v{node % 11}": 1.0, f"u{node}": 1.0})
        if node % 53 == 0:
            index.state()
    return index


def test_number_of_segments_is_logarithmic_with_many_snapshots():
    """Each snapshot creates a small segment, which must not prevent merges."""
    index = many(3_000)

    assert len(index._segments) <= math.log2(9_000)


def test_postings_are_rarely_moved_while_loading(monkeypatch):
    """Merging takes linear time, up to a logarithmic factor."""
    moved, joined = [], words.Segment.merge_segments
    monkeypatch.setattr(
        words.Segment, "merge_segments", lambda parts: moved.append(sum(map(len, parts))) or joined(parts)
    )
    many(3_000)

    assert sum(moved) <= 9_000 * math.log2(9_000)


def test_query_looks_up_its_terms_once_per_segment(monkeypatch):
    """A search and the scores of its candidates share one lookup per segment."""
    looked, bounds_of = [], words.Segment.find_bounds
    monkeypatch.setattr(words.Segment, "find_bounds", lambda *given: looked.append(given) or bounds_of(*given))
    index = many(3_000)
    query = {"w1": 1.0, "v2": 1.0, "u3": 1.0, "u2999": 1.0}
    nodes = index.search(query, 96).nodes
    index.scores(query, nodes)
    index.scores(query, np.arange(3_000))

    assert 96 == len(nodes)
    assert len(looked) == len(index._segments)


def test_empty_index_returns_nothing():
    """No method raises an error."""
    index = WordIndex()
    index.remove(7)

    assert 0 == len(index)
    assert 0 == len(index.search({"raid": 1.0}, 10))
    assert 0 == len(index.search({}, 10))
    assert [0.0, 0.0] == index.scores({"raid": 1.0}, np.array([0, 10**6])).tolist()
    assert [] == index.terms(3)
    assert {"raid"} == set(index.rarity(["raid"]))


@pytest.mark.parametrize("limit", [0, -1])
def test_search_without_positive_limit_returns_nothing(limit):
    index = WordIndex()
    index.add(0, {"raid": 1.0})

    assert 0 == len(index.search({"raid": 1.0}, limit))


def test_memory_without_terms_is_counted_but_not_found():
    index = WordIndex()
    for node in range(10):
        index.add(node, {})
    index.add(10, {"raid": 1.0})

    assert 11 == len(index)
    assert [10] == index.search({"raid": 1.0}, 5).nodes.tolist()


def test_equal_memories_are_found_newest_first():
    """Of equal matches, the one with the higher node comes first."""
    index = WordIndex()
    for node in range(100):
        index.add(node, {"raid": 1.0})

    assert [99, 98, 97] == index.search({"raid": 1.0}, 3).nodes.tolist()


def test_rarity_decreases_with_document_frequency():
    """It is highest for a term that occurs nowhere."""
    index = WordIndex()
    for node in range(10):
        index.add(node, {"all": 1.0, **({"some": 1.0} if node < 3 else {})})
    rarity = index.rarity(["all", "some", "none"])

    assert 0 < rarity["all"] < rarity["some"] < rarity["none"]


def test_non_positive_weights_are_ignored():
    index = WordIndex()
    index.add(0, {"raid": 1.0, "shield": 1.0})

    assert found(index.search({"raid": 1.0}, 1)) == found(index.search({"raid": 1.0, "shield": -1.0}, 1))


def test_huge_memory_is_indexed_and_removed():
    """100,000 distinct terms can be searched, and removing them frees the words."""
    index = WordIndex()
    index.add(0, {"raid": 1.0})
    index.add(1, {f"w{number}": 1.0 for number in range(100_000)})

    assert [1] == index.search({"w99999": 1.0}, 5).nodes.tolist()

    index.remove(1)

    assert 0 == len(index.search({"w99999": 1.0}, 5))
    assert ["raid"] == list(index._words)


def test_unused_words_are_dropped():
    """Repeated changes of a memory do not let the vocabulary grow without limit."""
    index = WordIndex()
    for turn in range(1_000):
        index.add(turn % 5, {f"w{turn}": 1.0, "raid": 1.0})

    assert len(index._words) < 30
    assert 5 == len(index.search({"raid": 1.0}, 10))


def test_snapshot_restores_terms_of_any_characters():
    """Examples are combining marks, surrogates and characters beyond the basic plane."""
    document = {"\u0001결정": 1.0, "": 1.0, "\ud800": 1.0, "😀": 1.0, "a\nb": 2.0}
    index = WordIndex()
    index.add(3, document)
    restored = WordIndex.from_state(*index.state())

    assert set(document) == set(restored.terms(3))
    assert [3] == restored.search({"😀": 1.0}, 1).nodes.tolist()


def test_state_of_other_format_is_rejected():
    """The state of a later version is not misread."""
    meta, arrays = WordIndex().state()

    with pytest.raises(ValueError, match="form"):
        WordIndex.from_state({**meta, "form": 99}, arrays)


def test_state_is_not_changed_by_later_adds():
    """A state can be written to disk while memories are added."""
    index = WordIndex()
    for node in range(10):
        index.add(node, {"raid": 1.0})
    meta, arrays = index.state()
    before = {name: array.copy() for name, array in arrays.items()}
    for node in range(5, 40):
        index.add(node, {"shield": 1.0})
    index.remove(0)

    assert all(np.array_equal(before[name], array) for name, array in arrays.items())
    assert 10 == len(WordIndex.from_state(meta, arrays))
