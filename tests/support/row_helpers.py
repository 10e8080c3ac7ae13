"""Decorator that checks many rows in one test, for rows that are cheap and need no test id."""

from __future__ import annotations

import functools
import inspect

import pytest


class _Rows:
    """The rows of one test, and the results so far."""

    def __init__(self, names, rows):
        self._names = names if isinstance(names, tuple) else (names,)
        self._rows = list(rows)

    def __iter__(self):
        self._failed = []
        for row in self._rows:
            self._row = row
            yield dict(zip(self._names, row if len(self._names) > 1 else (row,), strict=True))

    def note(self, error):
        error.add_note(f"{', '.join(self._names)}: {self._row!r}")
        self._failed.append(error)

    def tell(self):
        if self._failed:
            raise BaseExceptionGroup(f"{len(self._failed)} of {len(self._rows)} rows", self._failed)
        assert self._rows

    def asks_for(self, test):
        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in self._names]
        return signature.replace(parameters=others)


def every_row(names, rows):
    """
    Check all rows in one test, like ``pytest.mark.parametrize``, and report all failing rows.

    The rows share the test's fixtures.
    """
    rows = _Rows(names, rows)
    # `pytest.raises` fails with pytest.fail.Exception, which is no subclass of Exception. Catch it to check all rows.
    failures = (Exception, pytest.fail.Exception)

    def decorate(test):
        @functools.wraps(test)
        def all_rows(**fixtures):
            for row in rows:
                try:
                    test(**row, **fixtures)
                except failures as error:
                    rows.note(error)
            rows.tell()

        @functools.wraps(test)
        async def all_async_rows(**fixtures):
            for row in rows:
                try:
                    await test(**row, **fixtures)
                except failures as error:
                    rows.note(error)
            rows.tell()

        made = all_async_rows if inspect.iscoroutinefunction(test) else all_rows
        made.__signature__ = rows.asks_for(test)
        return made

    return decorate
