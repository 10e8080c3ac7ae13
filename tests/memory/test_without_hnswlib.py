"""hnswlib is optional: without it large memories are searched exactly, and that is said once."""

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
            (near, *_) = await store.similar(f"note {number} on topic {number % 7}", threshold=0.0, limit=3)
            assert f"note {number} on topic {number % 7}" == near.memory.content
        assert 40 == len(await store.search("topic 3", limit=40))
        print(store.figures()["vectors"]["mode"])
    assert [] == await opened.findings()
    await opened.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def ran(place, exact_up_to):
    places = str(Path(mama_structs.__file__).parents[1]), str(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place), str(exact_up_to)],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip


def test_without_it_a_store_above_its_limit_answers_exactly_and_warns_once(tmp_path):
    """Two namespaces above the limit give every nearest memory, and one warning in the log."""
    done = ran(tmp_path, 5)

    assert ["exact", "exact"] == done.stdout.split()
    assert 1 == done.stderr.count("hnswlib cannot be imported")
    assert "mama-structs[hnsw]" in done.stderr


def test_without_it_a_store_below_its_limit_says_nothing(tmp_path):
    """Nobody who does not need it hears of it."""
    assert "" == ran(tmp_path, 20_000).stderr
