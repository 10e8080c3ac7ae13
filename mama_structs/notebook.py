"""Notebook helpers that need the extra ``notebook``."""

from __future__ import annotations

from typing import Any

from mama_structs._internal.reprs import require_extra

__all__ = ["ProgressBar"]


class ProgressBar:
    """
    A tqdm progress bar for the *progress* argument of long operations.

    It starts and ends with the operation. The same bar can be used again for a later operation.

    Args:
        what: Label in front of the bar.
        unit: Name of the counted items.

    Raises:
        ImportError: tqdm is not installed.

    """

    def __init__(self, what: str = "", *, unit: str = "memories") -> None:
        # Load tqdm before the operation starts, because an ImportError at the first report would abort it halfway.
        self._tqdm = require_extra("tqdm.auto").tqdm
        self._what, self._unit = what, unit
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        """Show that *done* of *total* items are done."""
        if self._bar is not None and done < self._bar.n:
            # A smaller count belongs to a new operation; the failed previous one left its bar open.
            self._bar.close()
            self._bar = None
        if self._bar is None:
            self._bar = self._tqdm(desc=self._what or None, total=total, unit=f" {self._unit}")
        self._bar.total = total
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()
            self._bar = None
