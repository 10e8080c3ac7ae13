"""A clock that moves only when it is told to."""

from __future__ import annotations

import attrs

from mama_structs.errors import InvalidArgument


@attrs.define
class FakeClock:
    """
    A clock for tests: give its `now` wherever seconds are read.

    Args:
        start: What it shows at first, in seconds.

    """

    _now: float = attrs.field(default=0.0, alias="start", kw_only=True)

    def now(self) -> float:
        """Return the seconds shown; they never go back by themselves."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        if seconds < 0:
            raise InvalidArgument(
                f"seconds must be 0 or more, got {seconds!r}", hint="a monotonic clock never goes back"
            )
        self._now += seconds
