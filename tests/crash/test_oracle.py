"""Oracle of the crash test: the comparison finds and names every kind of planted fault."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil

import pytest
from crash.changes import CHANGES, EVERY_CHANGE, write
from crash.comparison import compare, rows_of
from crash.model import ANY, ExpectedState, after, difference
from crash.oracle import opened
from crash.sabotage import SABOTAGES, plant

from mama_structs import admin
from mama_structs.testing.conformance.ack_log import AckLog

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"), pytest.mark.once]

SEED = 1
# `EVERY_CHANGE` later deletes the results of these kinds of changes, so they are repeated at the end.
EXTRA_CHANGES = ("decision", "decision", "outcome", "correct", "link", "unlink", "put", "put", "put", "put", "put")
KINDS = ("lost", "duplicated", "wrong", "errors", "findings", "warnings", "untyped")


class Small(random.Random):
    """A random number generator that limits `save_many` to three memories, because comparing sixty is slow."""

    def choice(self, seq):
        return 3 if seq == (3, 3, 5, 60) else super().choice(seq)


def make(place, kinds, *, seed=SEED):
    """Create a store by changes of the given kinds, and return the lines of its log."""
    book = AckLog.open(place / "book", store=str(place / "store"))

    async def main():
        async with opened(place / "store", "default", "c1") as session:
            await write(session, book, "w-0", Small(seed), 0, kinds=kinds)

    asyncio.run(main())
    lines = (place / "book").read_text().splitlines()
    assert {"begin", "end"} <= {json.loads(line)[0] for line in lines} <= {"begin", "end", "saved", "deleting"}
    return lines


def compared(store, lines):
    """Compare a store with the state expected from its log, and return the reported lines by kind."""
    verdict = asyncio.run(compare(store, ExpectedState().hear(lines)))
    return {kind: lines for kind in KINDS if (lines := getattr(verdict, kind))}


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A store with every kind of change, and its log."""
    place = tmp_path_factory.mktemp("oracle")
    return place / "store", make(place, (*EVERY_CHANGE, *EXTRA_CHANGES))


def test_comparison_of_intact_store_finds_nothing(sample):
    store, lines = sample
    begun = {json.loads(line)[3] for line in lines if line.startswith('["begin"')}

    assert {} == compared(store, lines)
    assert set(CHANGES) == set(EVERY_CHANGE)
    assert begun == {
        *("save", "supersede", "outcome", "correct", "merge", "link_memories", "unlink", "delete", "forget"),
        *("put", "remove", "move", "refer", "fork", "drop_conversation"),
    } - {"supersede"}


@pytest.mark.parametrize("kind", SABOTAGES)
def test_comparison_reports_planted_fault(sample, tmp_path, kind):
    store, lines = sample
    shutil.copytree(store, tmp_path / "store")

    assert plant(tmp_path / "store", ExpectedState().hear(lines), kind)

    found = compared(tmp_path / "store", lines)
    expected = SABOTAGES[kind]
    assert any(expected.report in line for line in found.get(expected.kind, ())), found


def without_end(lines):
    """Return a log whose last change is not acknowledged."""
    last = max(place for place, line in enumerate(lines) if line.startswith('["end"'))
    return [line for place, line in enumerate(lines) if place != last]


@pytest.mark.parametrize("kind", ["supersede", "outcome", "many", "correct", "forget", "move", "fork", "merge", "wrap"])
def test_unacknowledged_change_may_exist_or_not(tmp_path, kind):
    setup = ("decision", "evidence", "insight", "put")
    before = make(tmp_path, setup)
    shutil.copytree(tmp_path / "store", tmp_path / "before")
    (tmp_path / "book").unlink()
    shutil.rmtree(tmp_path / "store")
    lines = make(tmp_path, (*setup, kind))
    # Times and ids of the two stores differ, so the earlier store needs its own log.
    begun = [line for line in lines[len(before) :] if line.startswith('["begin"')][-1]
    again = json.loads(begun)

    assert {} == compared(tmp_path / "store", without_end(lines))
    if kind not in ("forget", "fork"):
        assert {} == compared(tmp_path / "before", [*before, json.dumps(again)])


async def undo_half(store, lines, kind):
    """Undo a part of the last change."""
    async with opened(store) as session:
        memories = session.memories
        if kind == "outcome":
            reason = (await memories.list(limit=1, type="context"))[0]
            await memories.delete(reason.id)
        elif kind == "supersede":
            newest = (await memories.list(limit=1))[0]
            (link,) = [link for link in await memories.links(newest.id) if link.created_by == "user"]
            await memories.unlink(link.id)
        elif kind == "many":
            tags = [one["tag"] for one in json.loads(lines[-1])[5]["memories"]]
            (first,) = [one async for one in memories.iter_all() if one.content.split(" ")[0] == tags[0]]
            await memories.delete(first.id)
        elif kind == "move":
            (record,) = await session.records.list(("moved",))
            await session.records.delete(record.labels, record.key)


@pytest.mark.parametrize("kind", ["supersede", "outcome", "many", "move"])
def test_half_of_unacknowledged_change_is_a_fault(tmp_path, kind):
    """An unacknowledged change exists completely or not at all."""
    lines = make(tmp_path, ("decision", "put", kind))
    open_change = [line for line in without_end(lines) if line.startswith(('["begin"', '["end"'))]
    asyncio.run(undo_half(tmp_path / "store", open_change, kind))

    assert any("is there in part" in line for line in compared(tmp_path / "store", open_change)["wrong"])


def test_backup_may_have_later_changes_only_in_order(tmp_path):
    """In a concurrent copy, each item has one of its states since the start of the copy."""
    lines = make(tmp_path, ("decision", "correct", "outcome"))
    begun = next(place for place, line in enumerate(lines) if '"correct"' in line)

    def report(loose):
        known = ExpectedState().hear(lines[:loose]).loosen().hear(lines[loose:])
        return asyncio.run(compare(tmp_path / "store", known))

    assert [] == report(begun).wrong + report(begun).lost
    assert [] == report(len(lines)).wrong


@pytest.mark.parametrize("imported", [0, 1, 2])
def test_interrupted_import_may_leave_any_part_of_the_file(tmp_path, imported):
    """It must leave nothing else."""
    lines = make(tmp_path, ("context", "context"))
    store, file = tmp_path / "store", tmp_path / "export"

    async def export():
        async with opened(store) as session:
            await admin.export_jsonl(session.memories, file)
        return rows_of(file.read_text().splitlines())

    async def import_some():
        async with opened(store, "copy") as session:
            await admin.import_jsonl(session.memories, file)
            for memory in (await session.memories.list(limit=2))[imported:]:
                await session.memories.delete(memory.id)

    begun = ["begin", "w-0-copy", "copy", "import", "2026-01-01T00:00:00+00:00", {"rows": asyncio.run(export())}]
    asyncio.run(import_some())

    assert {} == compared(store, [*lines, json.dumps(begun)])


def test_difference_returns_path_of_mismatch():
    """
    A pattern may match any value or any later time.

    Other values must be equal, including their type.
    """
    pattern = {"a": [1, {"b": after("2026-01-01T00:00:00+00:00")}], "c": ANY}

    assert None is difference(pattern, {"a": [1, {"b": "2026-01-01T00:00:01+00:00"}], "c": None})
    assert "a[1].b" == difference(pattern, {"a": [1, {"b": "2025-01-01T00:00:00+00:00"}], "c": None})
    assert "a[0]" == difference(pattern, {"a": [1.0, {"b": "2026-01-01T00:00:01+00:00"}], "c": None})
    assert "d" == difference(pattern, {"a": [1, {"b": "2026-01-01T00:00:01+00:00"}], "c": None, "d": 1})


def test_answer_that_differs_from_request_is_a_fault():
    memory = {"tag": "w-1", "type": "context", "origin": "model"}
    lines = [
        json.dumps(["begin", "w-1", "default", "save", "2026-01-01T00:00:00+00:00", {"memories": [memory]}]),
        json.dumps(["end", "w-1", {"memory w-1": {"id": "context_1", "content": "other"}}]),
    ]

    assert 1 == len(ExpectedState().hear(lines).misreported)
