"""What a notebook needs beyond what shows itself."""

from __future__ import annotations

import sys

import pytest
from memory_helpers import SMALL

from mama_structs import Session
from mama_structs.notebook import ProgressBar


@pytest.fixture
def bars(monkeypatch):
    """What `tqdm.auto` is asked to show."""
    shown = []

    class Bar:
        def __init__(self, **how):
            self.how, self.n, self.total, self.closed = how, 0, how["total"], False
            shown.append(self)

        def update(self, more):
            assert not self.closed
            self.n += more

        def close(self):
            self.closed = True

    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    return shown


async def test_a_bar_begins_and_ends_with_the_work(bars):
    """A bar for each work, which stands where that is, and is closed when it is done; the same one can be given again."""
    bar = ProgressBar("saving")
    async with Session.open(embedder=SMALL) as session:
        for _ in range(2):
            records = [{"type": "context", "content": f"number {number}"} for number in range(20)]
            await session.memories.save_many(records, progress=bar)

    assert [(20, 20, True)] * 2 == [(one.n, one.total, one.closed) for one in bars]
    assert {"desc": "saving", "total": 20, "unit": " memories"} == bars[0].how


def test_a_bar_follows_a_total_that_grows(bars):
    """What long work finds meanwhile counts as well."""
    bar = ProgressBar()
    bar(1, 2)
    bar(2, 3)

    assert [(2, 3, False)] == [(one.n, one.total, one.closed) for one in bars]


def test_a_bar_of_work_that_ended_early_is_given_to_other_work(bars):
    """A cell that was interrupted and runs again begins at nothing."""
    bar = ProgressBar()
    bar(5, 10)
    bar(1, 10)

    assert [(5, 10, True), (1, 10, False)] == [(one.n, one.total, one.closed) for one in bars]


def test_without_tqdm_no_work_begins_and_the_error_says_what_to_install(monkeypatch):
    """Said by the bar itself, and not when a part of the work is done."""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)

    with pytest.raises(ImportError, match=r"needs tqdm: pip install 'mama-structs\[notebook\]'"):
        ProgressBar()
