"""Exclusion of pairs of texts that the comparison of statements need not parse."""

import json
from itertools import pairwise, product
from pathlib import Path

import pytest

from mama_structs.memory.statements import parser
from mama_structs.memory.statements.comparison import StatementRelation, TextFeatures, compare_parsed, parse_pair
from mama_structs.memory.statements.screening import may_be_related, may_disagree

SAVES = Path(__file__).parents[2] / "data" / "recall" / "saves.jsonl"
PAIRS = [json.loads(line) for line in SAVES.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("lang", sorted({pair["lang"] for pair in PAIRS}))
def test_no_related_pair_is_excluded(lang):
    """Related pairs include texts of different pairs, and texts of several sentences."""
    pairs = [pair for pair in PAIRS if pair["lang"] == lang]
    texts = [text for pair in pairs for text in (pair["older"], pair["newer"])]
    several = [" ".join(some) for some in zip(texts, texts[5:], texts[11:], strict=False)]
    asked = [(pair["newer"], pair["older"]) for pair in pairs] + [(pair["older"], pair["newer"]) for pair in pairs]
    asked += product(texts[:40], texts[:40])
    asked += pairwise(several)
    asked += zip(several, reversed(texts), strict=False)
    related = [
        (newer, older)
        for newer, older in asked
        if compare_parsed(*parse_pair(newer, older)).relation is not StatementRelation.NONE
    ]

    assert [] == [pair for pair in related if not may_be_related(*pair)]


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("The cooks bake rye bread at dawn.", "A glacier feeds the northern lake all summer."),
        ("Der Dienst speichert alle Bilder in Frankfurt.", "주방은 매일 아침 빵을 굽는다."),
        (
            "We deploy the gateway from the main branch every Friday after the review meeting ended.",
            "The gateway rejects requests without a token, and logs the address of each such client.",
        ),
    ],
)
def test_pair_with_few_shared_words_is_excluded(newer, older):
    """Different languages exclude a pair, too."""
    assert not may_be_related(newer, older)


def test_excluded_pair_is_not_parsed():
    """Only the words of both texts are looked up."""
    before = parser._parse.cache_info().misses
    for number in range(20):
        may_be_related(f"Harbour {number} closes for storms in the winter.", "Rye grows on poor soils, too.")

    assert before == parser._parse.cache_info().misses


@pytest.mark.parametrize("lang", sorted({pair["lang"] for pair in PAIRS}))
def test_no_pair_with_conflicting_features_is_excluded(lang):
    """The features are those of whole texts on the same subject."""
    pairs = [pair for pair in PAIRS if pair["lang"] == lang]
    texts = [text for pair in pairs for text in (pair["older"], pair["newer"])]
    several = [" ".join(some) for some in zip(texts, texts[1:], texts[3:], strict=False)]
    asked = [(pair["newer"], pair["older"]) for pair in pairs] + [(pair["older"], pair["newer"]) for pair in pairs]
    asked += product(texts[:40], texts[:40])
    asked += pairwise(several)

    assert [] == [pair for pair in asked if has_conflicting_features(*pair) and not may_disagree(*pair)]


def has_conflicting_features(newer, older):
    new, old = (one.whole for one in parse_pair(newer, older))
    if new is None or old is None or new.lexicon is not old.lexicon:
        return False
    features = TextFeatures.between(new, old, numbers_of_reasoning=frozenset())
    return features.is_replacement or features.is_contradiction(is_same_decision_topic=False, is_reworded=False)


def test_similar_texts_without_conflicting_features_are_excluded():
    """Both texts may have one subject, but less than half of the words are equal and no word states a change."""
    newer = "The gateway caches answers of the billing service for an hour, and logs each slow request."
    older = "The gateway signs its calls for each client with a private key."

    assert not may_disagree(newer, older)
