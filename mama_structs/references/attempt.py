"""What an upstream query in progress and the layers below it tell each other."""

from __future__ import annotations

import contextvars

import attrs


@attrs.define
class Attempt:
    """
    One upstream query in progress.

    The resolver makes it and says how long there is; a client below, which retries, counts what happened.

    Args:
        expires: The event loop's time (seconds) after which nobody waits any more, None without a bound.
        retries: How often the client asked again.
        rate_limited: How many answers refused more requests (HTTP 429).
        owner: Who asks, so that a source that asks back is told apart from others.

    """

    expires: float | None = None
    retries: int = 0
    rate_limited: int = 0
    owner: object = attrs.field(default=None, repr=False)


current_attempt: contextvars.ContextVar[Attempt | None] = contextvars.ContextVar("mama_structs_attempt", default=None)
