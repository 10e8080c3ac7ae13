"""The statistics of a resolver."""

import attrs
import pytest

from mama_structs.references.results import Counters


def test_new_counters_are_zero():
    stats = Counters().snapshot()

    assert 0.0 == stats.hit_rate
    assert ({}, {}) == (stats.latency, stats.failures)
    assert {0} == {value for value in attrs.asdict(stats).values() if value != {}}


def test_snapshot_is_not_changed_by_later_counts():
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
def test_latency_has_p50_p90_and_p99(samples, expected):
    counters = Counters()
    counters.latencies.extend(samples)

    assert pytest.approx(expected) == counters.snapshot().latency


def test_latency_uses_last_1024_samples():
    counters = Counters()
    counters.latencies.extend([100.0] * 1000 + [1.0] * 1024)

    assert {"p50": 1.0, "p90": 1.0, "p99": 1.0} == counters.snapshot().latency
