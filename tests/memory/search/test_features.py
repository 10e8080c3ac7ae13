"""Features of search candidates, and the fitted weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.memory.search import features
from mama_structs.memory.search.features import FEATURES, RELEVANCE_FEATURES
from mama_structs.memory.search.scores import CandidateSignals
from mama_structs.memory.types.engine import SYSTEM_CREATOR_INDEX, TYPE_NUMBERS, LinkTable
from mama_structs.memory.types.model import LinkType

evidences = st.lists(st.floats(0, 20), min_size=1, max_size=12).map(np.array)


def signals(nearness=(0.0, 0.0), words=(0.0, 0.0), lengths=(20.0, 20.0), foreign=(False, False), asking=(0.0, 0.0)):
    zeros = np.zeros(len(nearness))
    columns = (nearness, zeros, words, lengths, foreign, asking)
    return CandidateSignals(*(np.array(column) for column in columns))


def link_table(sources, targets, types, creators, confidences):
    return LinkTable(
        np.array(sources, np.int64),
        np.array(targets, np.int64),
        np.array(types, np.int8),
        np.array(creators, np.int8),
        np.array(confidences, np.float32),
        np.zeros(len(sources), np.int64),
    )


def test_weights_have_one_number_per_feature():
    weights = features.load_weights()

    assert set(FEATURES) == set(weights["ranking"])
    assert {*RELEVANCE_FEATURES, "intercept"} == set(weights["relevance"])
    assert all(np.isfinite([*weights["ranking"].values(), *weights["relevance"].values()]))
    np.testing.assert_array_equal([weights["ranking"][name] for name in FEATURES], features.load_ranking_weights())


def test_weights_have_the_expected_signs():
    """A nearer text with more words ranks higher and is more relevant; a text that asks ranks lower."""
    ranking, relevance = features.load_weights()["ranking"], features.load_weights()["relevance"]

    assert min(ranking[name] for name in ("meaning", "words", "neighbour", "period")) > 0
    assert ranking["questions"] < 0
    assert min(relevance[name] for name in ("standing", "words", "share", "links")) > 0 > relevance["unrelated"]


def test_word_match_depends_on_best_and_possible_match():
    """The best text has less than a complete match if the query has words that it does not contain."""

    def match(words, rarity):
        return features.word_match(signals(words, words), rarity)

    np.testing.assert_allclose([1.0, 0.5], match((4.0, 2.0), rarity=4.0))
    np.testing.assert_allclose([0.5, 0.25], match((4.0, 2.0), rarity=32.0))
    np.testing.assert_array_equal([0.0, 0.0], match((0.0, 0.0), rarity=0.0))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1, 1e4)), min_size=1, max_size=10))
def test_text_features_questions_grow_with_their_share_and_shrink_with_length(texts):
    """The whole of a short question counts; a long text usually states something as well."""
    asking, lengths = np.array(texts).T
    zeros = np.zeros(len(texts))

    def questions(asking, lengths):
        return features.text_features(signals(zeros, zeros, lengths, zeros > 0, asking), rarity=1.0)["questions"]

    found = questions(asking, lengths)

    assert ((found >= 0) & (found <= 1)).all()
    assert (found <= questions(np.minimum(1.0, asking + 0.1), lengths)).all()
    assert (found >= questions(asking, lengths + 10)).all()
    assert (questions(np.ones(len(texts)), np.minimum(lengths, features.STATEMENT_TERMS)) == 1).all()


def test_neighbour_features_count_strong_neighbours_only():
    """A weak neighbour counts as little as a missing one."""
    columns = {"meaning": np.array([1.2, 3.0, 0.0]), "words": np.array([0.2, 0.3, 0.0])}
    found = features.neighbour_features(columns, np.full(3, 20.0), np.array([-1, 0, 1]), np.array([1, 2, -1]))

    strong = 3.0 - features.MIN_NEIGHBOUR_DEVIATIONS + 0.1 * features.DEVIATIONS_OF_WORDS
    np.testing.assert_allclose([strong, 0.0, strong], found["neighbour"])


@given(st.floats(0, 10), st.floats(0, 10))
def test_neighbour_features_of_text_between_matches_are_those_of_the_stronger(first, last):
    """Otherwise "after change 1" is found before an exact match, because both of its neighbours match."""
    columns = {"meaning": np.array([first, 0.0, last]), "words": np.zeros(3)}
    before, after = np.array([-1, 0, 1]), np.array([1, 2, -1])
    least = features.MIN_NEIGHBOUR_DEVIATIONS
    between = features.neighbour_features(columns, np.full(3, 20.0), before, after)["neighbour"][1]

    assert between == pytest.approx(max(first, last, least) - least)


def test_neighbour_features_of_long_texts_are_smaller():
    columns = {"meaning": np.array([3.25, 0.0]), "words": np.zeros(2)}
    found = features.neighbour_features(columns, np.array([10.0, 450.0]), np.array([-1, 0]), np.array([1, -1]))

    np.testing.assert_allclose([0.0, 0.2], found["neighbour"])


@given(evidence=evidences, data=st.data())
def test_link_feature_is_the_strongest_usable_link(evidence, data):
    """Equal to a loop over all links."""
    count = len(evidence)
    ends = st.integers(-1, count - 1)
    kinds = st.sampled_from([TYPE_NUMBERS[LinkType.EVOLUTION], TYPE_NUMBERS[LinkType.ASSOCIATION]])
    creators = st.sampled_from([SYSTEM_CREATOR_INDEX, SYSTEM_CREATOR_INDEX + 1])
    rows = data.draw(st.lists(st.tuples(ends, ends, kinds, creators, st.floats(0, 1, width=32)), max_size=12))
    table = link_table(*zip(*rows, strict=True)) if rows else link_table([], [], [], [], [])

    expected = np.zeros(count)
    for source, target, kind, creator, confidence in rows:
        if min(source, target) < 0 or source == target or creator == SYSTEM_CREATOR_INDEX:
            continue
        strength = 1.0 if kind == TYPE_NUMBERS[LinkType.EVOLUTION] else confidence
        for here, there in ((source, target), (target, source)):
            expected[here] = max(expected[here], strength * evidence[there] ** 2 / max(evidence.max(), 1e-9))

    found = features.link_feature(evidence, table, table.sources, table.targets, now_ms=0)
    np.testing.assert_allclose(expected, found, rtol=1e-6)


@given(evidence=evidences, data=st.data())
def test_topic_feature_is_the_strongest_other_of_the_topic(evidence, data):
    """Equal to a loop over all pairs."""
    topics = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=len(evidence), max_size=len(evidence))), np.int32)
    shared = evidence**2 / max(evidence.max(), 1e-9)
    expected = [
        max((shared[j] for j in range(len(topics)) if j != i and topics[j] == topic >= 0), default=0.0)
        for i, topic in enumerate(topics)
    ]

    np.testing.assert_allclose(expected, features.topic_feature(evidence, topics))


@given(evidence=evidences)
def test_relative_evidence_of_the_best_is_its_evidence(evidence):
    relative = features.relative_evidence(evidence)

    assert relative.max() == pytest.approx(evidence.max(), abs=1e-6)
    assert (relative <= evidence + 1e-9).all()


def test_recency_feature_halves_every_thirty_days():
    day = 86_400_000
    created = np.array([100, 70, 40, 200], np.int64) * day

    np.testing.assert_allclose([1.0, 0.5, 0.25, 1.0], features.recency_feature(created, now_ms=100 * day))


def test_relevance_features_judge_first_hit_by_standings_and_words():
    """The highest two similarities of the first hits count for all hits, shares and links only for further ones."""
    standings = np.array([1.0, 3.0, 6.0, 0.0, 0.0, 9.0])
    scores = np.arange(6.0, 0.0, -1.0)
    found = features.relevance_features(scores, standings, np.full(6, 0.5), np.full(6, 0.3), np.full(6, 2.0), total=6.5)

    assert (6, len(RELEVANCE_FEATURES)) == found.shape
    np.testing.assert_allclose([5.0, 0.0625, 0.0, 0.0, 0.3], found[0])
    np.testing.assert_allclose([5.0, 0.0625, -5.5, 2.0, 0.3], found[5])


def test_relevance_features_of_one_hit_have_its_standing():
    one = np.ones(1)

    np.testing.assert_allclose(
        [[4.0, 1.0, 0.0, 0.0, 1.0]], features.relevance_features(one, 4 * one, one, one, one, total=1.0)
    )


def test_word_coverage_of_other_script_is_neutral():
    """A text that cannot contain the words of the query is no less relevant for that, unless it resembles nothing."""
    found = CandidateSignals(
        nearness=np.zeros(4),
        standings=np.array([3.0, 3.0, 6.0, -1.0]),
        words=np.zeros(4),
        lengths=np.full(4, 20.0),
        foreign=np.array([False, True, True, True]),
        asking=np.zeros(4),
    )
    coverage = features.word_coverage(found, rarity=8.0)

    np.testing.assert_allclose(features.FOREIGN_COVERAGE * np.array([0.0, 3.0, 6.0, 0.0]), coverage**4)


def test_relevance_features_of_no_hits_are_empty():
    none = np.zeros(0)

    assert (0, len(RELEVANCE_FEATURES)) == features.relevance_features(none, none, none, none, none, total=0.0).shape


@pytest.mark.parametrize("count", [25, 1_000, 10_000])
def test_expected_maximum_is_close_to_the_mean_of_samples(count):
    highest = np.random.default_rng(0).standard_normal((300, count)).max(axis=1)

    assert highest.mean() == pytest.approx(features.expected_maximum(count), abs=0.1)
    assert 0 == features.expected_maximum(0) == features.expected_maximum(1)
