"""Without the optional hnswlib, large stores use voyager. Without both, they are searched exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from memory_helpers import OpenedDirectory

import mama_structs
from mama_structs.memory.engines.local.views import hnsw
from mama_structs.memory.engines.local.views.hnsw import BackgroundGraph
from mama_structs.memory.engines.local.views.hnsw_libraries import VoyagerIndex
from mama_structs.settings import MemorySettings

pytestmark = pytest.mark.of_the_directory("a server has an index of its own")

PROGRAM = """
import asyncio, sys
from pathlib import Path
sys.modules.update(dict.fromkeys(sys.argv[3:]))
from mama_structs.settings import MemorySettings
from memory_helpers import OpenedDirectory

async def main(place, exact_up_to):
    opened = OpenedDirectory.open(Path(place), settings=MemorySettings(exact_up_to=exact_up_to))
    for namespace in ("one", "two"):
        store = await opened.memories(namespace)
        await store.save_many([{"type": "context", "content": f"note {number} on topic {number % 7}"} for number in range(40)])
        for number in range(40):
            (near, *_) = await store.similar(content=f"note {number} on topic {number % 7}", threshold=0.0, limit=3)
            assert f"note {number} on topic {number % 7}" == near.memory.content
        assert 40 == len(await store.search("topic 3", limit=40))
        print(store._figures()["vectors"]["mode"])
    assert [] == await opened.findings()
    await opened.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def ran(place, exact_up_to, *missing):
    """Run the program without the packages *missing*."""
    places = str(Path(mama_structs.__file__).parents[1]), str(Path(__file__).parents[3] / "support")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place), str(exact_up_to), *missing],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip


def test_store_above_limit_uses_voyager_without_hnswlib(tmp_path):
    """The default installation has a graph, and logs nothing."""
    done = ran(tmp_path, 5, "hnswlib")

    assert (["hnsw", "hnsw"], "") == (done.stdout.split(), done.stderr)


def test_store_above_limit_is_exact_and_warns_once_without_libraries(tmp_path):
    """Two namespaces above the limit return all nearest memories, and log one warning."""
    done = ran(tmp_path, 5, "hnswlib", "voyager")

    assert ["exact", "exact"] == done.stdout.split()
    assert 1 == done.stderr.count("neither voyager nor hnswlib can be imported")


def test_store_below_limit_does_not_warn_without_libraries(tmp_path):
    assert "" == ran(tmp_path, 20_000, "hnswlib", "voyager").stderr


async def test_engine_retains_stored_graph_of_other_library(tmp_path, monkeypatch):
    """Two processes with different libraries share a directory. Each finds its own graph at its next opening."""
    built = []
    build = BackgroundGraph._build
    monkeypatch.setattr(BackgroundGraph, "_build", lambda graph: built.append(graph._part_name) or build(graph))
    for number, name in enumerate(["one", "two", "one", "two"]):
        library = type("OtherIndex", (VoyagerIndex,), {"library": name})
        monkeypatch.setattr(hnsw, "find_library", lambda library=library: library)
        opened = OpenedDirectory.open(tmp_path, settings=MemorySettings(exact_up_to=5, linking="off"))
        store = await opened.memories("memories")
        await store.save_many([{"type": "context", "content": f"note {number} on {topic}"} for topic in range(100)])
        await store.search("note on 7")
        assert await store._engine.snapshot()
        await opened.close()

    assert ["graph_one_unknown", "graph_two_unknown"] == built
