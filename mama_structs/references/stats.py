"""What a resolver did, in numbers."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import attrs

_SAMPLES: Final = 1024


@attrs.frozen(kw_only=True)
class ResolverStats:
    """
    What a resolver did since it was made.

    Args:
        upstream_queries: Queries sent to sources; a batch is one.
        cache_hits: Ids answered from the cache.
        cache_misses: Ids that had to be asked for.
        shared_in_flight: Ids that joined a query already under way.
        retries: Queries that the client sent again.
        rate_limited: Answers that refused more requests.
        timeouts: References that had no answer in their time.
        failures: Failed references by kind.
        lookalikes: Strings skipped because their field holds another type.
        latency: Seconds an upstream query took: quantiles ``p50``, ``p90``, ``p99`` of the last 1,024.
        bytes_added: JSON bytes of the references handed out.
        references: References handed out.
        follow_up_calls_saved: References handed out that were resolved: calls that an agent had no need to make.

    """

    upstream_queries: int
    cache_hits: int
    cache_misses: int
    shared_in_flight: int
    retries: int
    rate_limited: int
    timeouts: int
    failures: dict[str, int]
    lookalikes: int
    latency: dict[str, float]
    bytes_added: int
    references: int
    follow_up_calls_saved: int

    @property
    def hit_rate(self) -> float:
        """The share of ids that the cache answered, 0 to 1; 0 when nothing was asked."""
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else 0.0


@attrs.define
class Counters:
    """The running numbers behind `ResolverStats`."""

    upstream_queries: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    shared_in_flight: int = 0
    retries: int = 0
    rate_limited: int = 0
    lookalikes: int = 0
    bytes_added: int = 0
    references: int = 0
    follow_up_calls_saved: int = 0
    failures: Counter[str] = attrs.field(factory=Counter)
    latencies: deque[float] = attrs.field(factory=lambda: deque(maxlen=_SAMPLES))

    def snapshot(self) -> ResolverStats:
        """Return the numbers as they stand."""
        counts = attrs.asdict(self, recurse=False, filter=lambda field, _: field.name not in ("failures", "latencies"))
        return ResolverStats(
            **counts,
            failures=dict(self.failures),
            timeouts=self.failures["timeout"] + self.failures["deadline"],
            latency=_quantiles(list(self.latencies)),
        )


def _quantiles(samples: list[float]) -> dict[str, float]:
    if not samples:
        return {}
    if len(samples) == 1:
        return dict.fromkeys(("p50", "p90", "p99"), samples[0])
    import statistics  # noqa: PLC0415 - half as slow to load as the whole module, for numbers that few ask for

    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}
