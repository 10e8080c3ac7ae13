"""A store without the filter names of metadata, as commit fb7eb6f2 wrote it (scripts/filter_names_of_fb7eb6f2.py)."""

import tarfile
from pathlib import Path

from mama_structs.memory.types.engine import EmbedderRecord, EngineFilter
from mama_structs.memory.types.model import MemoryType, Outcome

EMBEDDER = EmbedderRecord("drawn", "drawn", 3)
LONG = "x" * 300
# For each filter, the beginnings of the ids that it finds, oldest first.
EXPECTED = [
    (EngineFilter(mentions=frozenset({"2-1"}), topic="raids"), "failed later raid long escaped plain labelled"),
    (EngineFilter(tags=("raid",)), "raid"),
    (EngineFilter(tags=("caf\u00e9", "raid")), "raid"),
    (EngineFilter(tags=(LONG,)), "long"),
    (EngineFilter(tags=("a\\b", "a\0")), "escaped"),
    (EngineFilter(source="log.txt"), "raid"),
    (EngineFilter(source=LONG), "long"),
    (EngineFilter(outcome=Outcome.FAILED), "failed"),
    (EngineFilter(outcome=Outcome.SUCCESS), "later"),
    (EngineFilter(outcome=Outcome.PARTIAL), ""),
    (EngineFilter(created_by="llm"), "failed"),
    (EngineFilter(created_by="system"), "plain"),
    (EngineFilter(created_by="user"), "later raid long escaped labelled"),
    (EngineFilter(extra={"ticket": 12}), "raid long labelled"),
    (EngineFilter(extra={"ticket": 12}, types=frozenset({MemoryType.INSIGHT})), "raid long"),
    (EngineFilter(extra={"ticket": "12"}), "escaped"),
    (EngineFilter(extra={"flag": True}), "raid"),
    (EngineFilter(extra={"flag": 1}), "long"),
    (EngineFilter(extra={"none": None}), "raid"),
    (EngineFilter(extra={"note": LONG}), "long"),
    (EngineFilter(extra={"a\\b": {"a": [1, None], "b": 1}}), "escaped"),
    (EngineFilter(labels=("raid",)), "labelled"),
]


def extract(directory):
    """Extract the archive to a directory, and return the directory."""
    with tarfile.open(Path(__file__).parents[1] / "data" / "filter_names_of_fb7eb6f2.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory


async def answers(engine):
    """Return the filters with the ids that they find, in the form of `EXPECTED`."""

    def plan(reader):
        found = [reader.ids(reader.window(where, newest_first=False)) for where, _ in EXPECTED]
        return [" ".join(one.split("_")[1] for one in ids) for ids in found]

    return [*zip([where for where, _ in EXPECTED], await engine.read(plan), strict=True)]
