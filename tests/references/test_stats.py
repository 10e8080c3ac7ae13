"""A resolver in numbers."""

import attrs
import pytest

from mama_structs.references.results import Counters


def test_a_new_resolver_has_done_nothing():
    """All numbers start at zero, and a rate without a question is 0."""
    stats = Counters().snapshot()

    assert 0.0 == stats.hit_rate
    assert ({}, {}) == (stats.latency, stats.failures)
    assert {0} == {value for value in attrs.asdict(stats).values() if value != {}}


def test_a_snapshot_stands_still():
    """Later work does not change the numbers that were handed out."""
    counters = Counters(cache_hits=3, cache_misses=1)
    counters.failures.update(timeout=2, deadline=3, not_found=1)
    stats = counters.snapshot()
    counters.cache_hits += 5
    counters.failures["timeout"] += 5

    assert (0.75, 5) == (stats.hit_rate, stats.timeouts)
    assert {"timeout": 2, "deadline": 3, "not_found": 1} == stats.failures


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], {}),
        ([0.5], {"p50": 0.5, "p90": 0.5, "p99": 0.5}),
        ([0.0, 1.0], {"p50": 0.5, "p90": 0.9, "p99": 0.99}),
        ([float(number) for number in range(101)], {"p50": 50.0, "p90": 90.0, "p99": 99.0}),
    ],
)
def test_latencies_are_quantiles(samples, expected):
    """Half, nine tenths and ninety-nine hundredths of the queries took at most so long."""
    counters = Counters()
    counters.latencies.extend(samples)

    assert pytest.approx(expected) == counters.snapshot().latency


def test_only_recent_latencies_count():
    """The last 1,024 samples are kept."""
    counters = Counters()
    counters.latencies.extend([100.0] * 1000 + [1.0] * 1024)

    assert {"p50": 1.0, "p90": 1.0, "p99": 1.0} == counters.snapshot().latency
