"""Cases that a strategy must generate."""

from __future__ import annotations

import contextlib

from hypothesis import find
from hypothesis.errors import NoSuchExample


def find_missing_cases(strategy, cases, settings):
    """Return the names of the cases that no example of the strategy has. All cases share the examples."""
    missing = dict(cases)

    def has_last_cases(example):
        for name in [name for name, is_case in missing.items() if is_case(example)]:
            del missing[name]
        return not missing

    with contextlib.suppress(NoSuchExample):
        find(strategy, has_last_cases, settings=settings)
    return set(missing)
