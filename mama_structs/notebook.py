"""What a notebook needs beyond what shows itself there; the extra ``notebook``."""

from __future__ import annotations

from typing import Any

from mama_structs._internal.reprs import needed

__all__ = ["ProgressBar"]


class ProgressBar:
    """
    Shows how far long work is, by tqdm: given as its *progress*, it begins with the work and ends with it.

    The same bar can be given again, to work that comes later.

    Args:
        what: What stands before the bar.
        unit: What is counted.

    Raises:
        ImportError: tqdm is not installed.

    """

    def __init__(self, what: str = "", *, unit: str = "memories") -> None:
        # Before the work, which would end half done at its first call.
        self._tqdm = needed("tqdm.auto").tqdm
        self._what, self._unit = what, unit
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        """Show that so many of *total* are done."""
        if self._bar is not None and done < self._bar.n:
            # Work that failed or was interrupted ends no bar; this is other work.
            self._bar.close()
            self._bar = None
        if self._bar is None:
            self._bar = self._tqdm(desc=self._what or None, total=total, unit=f" {self._unit}")
        self._bar.total = total
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()
            self._bar = None
