"""When to ask again: pure decisions, with chance and sleep injected."""

import asyncio
import email.utils
import random
import re
from collections.abc import Awaitable, Callable
from datetime import UTC

import attrs

_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)


@attrs.frozen(kw_only=True)
class Backoff:
    """
    Exponential backoff with full jitter.

    Args:
        base: The longest first pause, in seconds; each further one may be twice as long.
        cap: The longest pause, in seconds.
        draw: Gives a number from 0 to 1.
        sleep: Waits for so many seconds.

    """

    base: float = 0.1
    cap: float = 2.0
    draw: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def pause(self, retry: int, *, retry_after: float | None, left: float) -> float | None:
        """
        Return how long to wait before a retry, None where the wait does not fit into the time that is left.

        Args:
            retry: Which retry it is, from 0.
            retry_after: How long the node wants us to wait, where it said so.
            left: The time that is left, in seconds.

        """
        # The exponent is bounded so that a large count of retries cannot overflow.
        pause = self.draw() * min(self.cap, self.base * 2 ** min(retry, 32))
        pause = max(pause, retry_after or 0.0)
        return pause if pause < left else None


def parse_retry_after(text: str | None, *, now: float) -> float | None:
    """
    Read a Retry-After header: seconds, decimals included, or the date of HTTP; None where it is neither.

    Args:
        text: The header.
        now: The wall clock, in seconds since 1970.

    """
    if text is None:
        return None
    if _SECONDS.fullmatch(text.strip()):
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
        # A date without a zone is in UTC, as every date of HTTP.
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, OverflowError):
        return None
