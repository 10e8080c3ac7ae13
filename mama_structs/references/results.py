"""Results of source queries: answers, failures with messages for an agent, and statistics."""

from __future__ import annotations

import contextvars
import math
import re
from collections import Counter, deque
from typing import Any, Final

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs.errors import (
    EntityNotFound,
    MamaStructsError,
    QueryTimeout,
    RateLimited,
    SessionClosed,
    StructsError,
    repr_short,
)

_MAX_LATENCY_SAMPLES: Final = 1024
_MAX_ERROR_CHARS: Final = 200
_SECRET_PATTERN: Final = re.compile(
    r"(?<=://)[^/?#\s]+(?=@)"  # user and password in a URL
    r"|(?<=\?)\S+"  # query string of a URL
    r"|\b(?:bearer|basic|token|api[-_]?key|password|passwd|secret|authorization)\b[\"']?"
    r"\s*[:= ]\s*(?:(?:bearer|basic)\s+)?\S+",
    re.IGNORECASE,
)


@attrs.define
class QueryAttempt:
    """
    One upstream query in progress.

    The resolver sets its deadline; the HTTP client counts its events.
    """

    # Event loop time at which the last waiter times out, None without a limit.
    deadline: float | None = None
    requests: int = 0
    retries: int = 0
    rate_limited: int = 0
    gate_waits: int = 0
    # Object that sends the query. Identifies nested queries.
    owner: object = attrs.field(default=None, repr=False)
    # Rate limiter whose slot the query holds.
    limiter: object = attrs.field(default=None, repr=False)


current_attempt: contextvars.ContextVar[QueryAttempt | None] = contextvars.ContextVar(
    "mama_structs_attempt", default=None
)


@attrs.frozen(eq=False)
class SourceAnswer:
    """Answer of a source: plain data, JSON size in bytes, chain height and query time."""

    data: dict[str, Any]
    size: int
    height: int | None = None
    asked_at: float = -math.inf


@attrs.frozen
class Failure:
    """Failure for one id: a kind for statistics, a message for the agent, and the exception."""

    kind: str
    error: str
    cause: BaseException | None = attrs.field(default=None, eq=False, repr=False)
    asked_at: float = attrs.field(default=-math.inf, eq=False, repr=False)


SourceOutcome = SourceAnswer | Failure
NOT_FOUND: Final = Failure("not_found", "Entity not found")


def to_failure(error: BaseException) -> Failure:
    """Return the failure that represents *error*."""
    if isinstance(error, StructsError):
        kind = error.type
    else:
        kind = QueryTimeout.type if isinstance(error, TimeoutError) else StructsError.type
    if kind == "not_found":
        return attrs.evolve(NOT_FOUND, cause=error)
    if isinstance(error, RateLimited) and error.retry_after is not None:
        # Round up, so that no client retries too early: to tenths below one second, else to whole seconds.
        digits = 1 if error.retry_after < 1 else 0
        seconds = math.ceil(error.retry_after * 10**digits) / 10**digits
        return Failure(kind, f"Rate limited: ask again in {seconds:g} s", error)
    return Failure(kind, _format_error(error), error)


def _format_error(error: BaseException) -> str:
    try:
        # Hints are addressed to the developer, not to the agent that reads the reference.
        text = " ".join(str(error.args[0] if isinstance(error, MamaStructsError) and error.args else error).split())
    except Exception:  # noqa: BLE001 - str() of a host's exception may raise
        text = ""
    if not isinstance(error, MamaStructsError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    text = _SECRET_PATTERN.sub("***", text)
    return text if len(text) <= _MAX_ERROR_CHARS else text[: _MAX_ERROR_CHARS - 1] + "…"


def make_timeout_failure(seconds: float) -> Failure:
    """Return the `Failure` for a query that exceeded its timeout."""
    return Failure("timeout", f"No answer within {seconds:g} s")


def make_deadline_failure(seconds: float) -> Failure:
    """Return the `Failure` for a reference that missed the deadline of its call."""
    return Failure("deadline", f"No answer before the deadline of {seconds:g} s for all references")


def make_cancelled_failure(*, resolver_closed: bool) -> Failure:
    """
    Return the `Failure` for a cancelled query.

    *resolver_closed* is True if the query was cancelled because the resolver was closed.
    """
    return (
        Failure("closed", "The resolver was closed")
        if resolver_closed
        else Failure("cancelled", "The query was cancelled")
    )


def to_exception(failure: Failure, key: str) -> BaseException:
    """Return the exception to raise for *key*, preferably the source's own exception."""
    if failure.kind == "not_found":
        # Create a new exception for each caller, because a shared one would accumulate the tracebacks of all callers.
        return EntityNotFound(key)
    if failure.kind == "closed":
        return SessionClosed("the resolver was closed before the answer was there")
    return failure.cause or MamaStructsError(failure.error)


def make_unknown_id_failure(entity_id: str) -> Failure:
    """Return the `Failure` for an id that matches no source."""
    return Failure("unsupported", f"No source answers for ids such as {repr_short(entity_id, max_chars=80)}")


@attrs.frozen(kw_only=True)
class ResolverStats(JsonMixin):
    """
    Statistics of a resolver since its creation.

    Args:
        upstream_queries: Queries sent to sources. A batch counts as one, a query rejected by the rate limiter as none.
        cache_hits: Ids answered from the cache.
        cache_misses: Ids that required a query.
        coalesced: Ids that joined a query already in flight.
        retries: Queries that the client retried.
        rate_limited: Answers that rejected the query because of a rate limit.
        rate_limit_waits: Queries that waited for the rate limiter of their node, because of a cooldown or because all
            of its slots were in use, including use by other sessions.
        timeouts: References without an answer before their timeout or deadline.
        failures: Number of failed references by kind.
        look_alikes: Strings skipped because their field expects another type.
        latency: Duration of upstream queries in seconds: quantiles ``p50``, ``p90``, ``p99`` of the last 1,024.
        bytes_added: JSON bytes of the returned references.
        references: Number of returned references.
        follow_up_calls_saved: Calls that the agent would have needed to look up every id it received. It counts each
            resolved id once, and not at all if it is one of the last 10,000 ids that this resolver returned before,
            as a reference or as a tool's answer to `fetch`.

    """

    upstream_queries: int
    cache_hits: int
    cache_misses: int
    coalesced: int
    retries: int
    rate_limited: int
    rate_limit_waits: int
    timeouts: int
    failures: dict[str, int]
    look_alikes: int
    latency: dict[str, float]
    bytes_added: int
    references: int
    follow_up_calls_saved: int

    @property
    def hit_rate(self) -> float:
        """The ratio of ids answered from the cache, 0 to 1; 0 before the first query."""
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else 0.0


@attrs.define
class Counters:
    """Mutable counters from which `ResolverStats` is created."""

    upstream_queries: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    coalesced: int = 0
    retries: int = 0
    rate_limited: int = 0
    rate_limit_waits: int = 0
    look_alikes: int = 0
    bytes_added: int = 0
    references: int = 0
    follow_up_calls_saved: int = 0
    failures: Counter[str] = attrs.field(factory=Counter)
    latencies: deque[float] = attrs.field(factory=lambda: deque(maxlen=_MAX_LATENCY_SAMPLES))

    def snapshot(self) -> ResolverStats:
        """Return the current statistics."""
        counts = attrs.asdict(self, recurse=False, filter=lambda field, _: field.name not in ("failures", "latencies"))
        return ResolverStats(
            **counts,
            failures=dict(self.failures),
            timeouts=self.failures["timeout"] + self.failures["deadline"],
            latency=_compute_quantiles(list(self.latencies)),
        )


def _compute_quantiles(samples: list[float]) -> dict[str, float]:
    if not samples:
        return {}
    import statistics  # noqa: PLC0415 - slow to import and rarely needed

    # `statistics.quantiles` requires two samples in Python 3.11.
    cuts = statistics.quantiles(samples if len(samples) > 1 else samples * 2, n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}
