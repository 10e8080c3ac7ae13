"""The progress bar for notebooks."""

from __future__ import annotations

import sys

import pytest
from memory_helpers import SMALL

from mama_structs import Session
from mama_structs.notebook import ProgressBar


@pytest.fixture
def bars(monkeypatch):
    """Replace `tqdm.auto` with a fake that records the calls of its progress bars."""
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


async def test_progress_bar_starts_and_ends_with_each_operation(bars):
    bar = ProgressBar("saving")
    async with Session.open(embedder=SMALL) as session:
        for _ in range(2):
            records = [{"type": "context", "content": f"number {number}"} for number in range(20)]
            await session.memories.save_many(records, progress=bar)

    assert [(20, 20, True)] * 2 == [(one.n, one.total, one.closed) for one in bars]
    assert {"desc": "saving", "total": 20, "unit": " memories"} == bars[0].how


def test_progress_bar_accepts_growing_total(bars):
    bar = ProgressBar()
    bar(1, 2)
    bar(2, 3)

    assert [(2, 3, False)] == [(one.n, one.total, one.closed) for one in bars]


def test_progress_bar_restarts_after_interrupted_operation(bars):
    bar = ProgressBar()
    bar(5, 10)
    bar(1, 10)

    assert [(5, 10, True), (1, 10, False)] == [(one.n, one.total, one.closed) for one in bars]


def test_progress_bar_without_tqdm_raises_before_the_operation(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)

    with pytest.raises(ImportError, match=r"needs tqdm: pip install 'mama-structs\[notebook\]'"):
        ProgressBar()
