"""Without the optional hnswlib, large stores are searched exactly, and one warning is logged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mama_structs

pytestmark = pytest.mark.of_the_directory("a server has an index of its own")

PROGRAM = """
import asyncio, sys
from pathlib import Path
sys.modules["hnswlib"] = None
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


def ran(place, exact_up_to):
    places = str(Path(mama_structs.__file__).parents[1]), str(Path(__file__).parents[3] / "support")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place), str(exact_up_to)],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip


def test_store_above_limit_is_exact_and_warns_once_without_hnswlib(tmp_path):
    """Two namespaces above the limit return all nearest memories, and log one warning."""
    done = ran(tmp_path, 5)

    assert ["exact", "exact"] == done.stdout.split()
    assert 1 == done.stderr.count("hnswlib cannot be imported")
    assert "mama-structs[hnsw]" in done.stderr


def test_store_below_limit_does_not_warn_without_hnswlib(tmp_path):
    assert "" == ran(tmp_path, 20_000).stderr
