"""Loading of views from snapshots."""

import contextlib
import logging

import attrs
import pytest
from filter_name_helpers import EMBEDDER, EXPECTED, answers, extract

from mama_structs.memory.engines.local.views import view_set
from mama_structs.memory.engines.local.views.view_set import ViewBuilder
from mama_structs.session.backend import make_local_engines
from mama_structs.settings import MemorySettings
from mama_structs.storage.sqlite_store import SqliteStorage


@contextlib.asynccontextmanager
async def opened(root, views="views"):
    """Open the engine of the namespace in the extracted archive."""
    storage = SqliteStorage.open(root / "journal")
    engines = make_local_engines(storage, views=root / views)
    yield await engines.open("default", EMBEDDER, MemorySettings())
    await engines.release("default")
    await storage.close()


@pytest.fixture
def builds(monkeypatch):
    """Record how often the views are built from the journal."""
    built, step = [], ViewBuilder.step

    def recorded(self, rows, size):
        built.append(size)
        return step(self, rows, size)

    monkeypatch.setattr(ViewBuilder, "step", recorded)
    return built


async def test_snapshot_without_filter_names_is_rejected_once(tmp_path, builds, caplog):
    """A snapshot of commit fb7eb6f2 is replaced with one that has the names, from which the views are then loaded."""
    root = extract(tmp_path)
    with caplog.at_level(logging.INFO, "mama_structs"):
        async with opened(root) as engine:
            first = await answers(engine), await engine.check(), len(builds)
            assert await engine.snapshot()
    async with opened(root) as engine:
        second = await answers(engine), await engine.check(), len(builds)

    assert (EXPECTED, [], 1) == first == second
    assert "other filter names" in caplog.text


async def test_snapshot_with_names_of_another_version_is_rejected(tmp_path, builds, monkeypatch):
    root = extract(tmp_path)
    async with opened(root) as engine:
        await answers(engine)
        assert await engine.snapshot()
    monkeypatch.setattr(view_set, "FILTER_NAMES_VERSION", view_set.FILTER_NAMES_VERSION + 1)
    async with opened(root) as engine:
        assert EXPECTED == await answers(engine)

    assert 2 == len(builds)


async def test_loaded_names_follow_changes_of_metadata(tmp_path):
    """A change that another process has written after the snapshot updates the names when it is replayed."""
    root = extract(tmp_path)
    async with opened(root) as engine:
        await answers(engine)
        assert await engine.snapshot()
    async with opened(root, "other") as engine:
        (memory,) = await engine.read(lambda reader: reader.get(reader.window(EXPECTED[1][0])))
        metadata = attrs.evolve(memory.metadata, tags=("fleet",), source=None, created_by="llm", extra={"ticket": 1})
        await engine.write(lambda writer: writer.put(attrs.evolve(memory, metadata=metadata)))
        changed = await answers(engine)
    async with opened(root) as engine:
        assert changed == await answers(engine)
        assert [] == await engine.check()

    assert EXPECTED != changed
    assert "" == dict(changed)[EXPECTED[1][0]]
