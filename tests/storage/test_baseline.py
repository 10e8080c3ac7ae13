"""
A store that the baseline commit 561ec94 wrote is read unchanged.

`scripts/store_of_561ec94.py` created it, and describes its files.
"""

import json
import tarfile
from pathlib import Path

import pytest
from memory_helpers import SMALL

from mama_structs import Filter, Session, admin

pytestmark = pytest.mark.of_the_directory("its store is a directory")
STORE = Path(__file__).parents[1] / "data" / "store_of_561ec94.tar.xz"
NAMESPACES = ("default", "team")


@pytest.fixture
def root(tmp_path):
    """The directory with the files of the extracted archive."""
    with tarfile.open(STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def expected(root):
    return json.loads((root / "contents.json").read_text("utf-8"))


def opened(place, namespace, conversation=None):
    return Session.open(place, namespace=namespace, conversation=conversation, embedder=SMALL)


async def exported(session, root):
    """Return the lines of an export."""
    await admin.export_jsonl(session.memories, root / "new.jsonl")
    return (root / "new.jsonl").read_text("utf-8").splitlines()


async def test_store_of_the_baseline_has_the_same_namespaces_and_no_findings(root, expected):
    assert sorted(expected) == sorted(await admin.list_namespaces(root / "agent.mama"))
    async with opened(root / "agent.mama", "default") as session:
        assert (await admin.check(session)).ok


@pytest.mark.parametrize("namespace", NAMESPACES)
async def test_store_of_the_baseline_has_the_same_memories(root, expected, namespace):
    async with opened(root / "agent.mama", namespace) as session:
        memories = session.memories
        found = {
            one.id: [one.type.value, one.content, one.topic, [each.text for each in await memories.evidence(one.id)]]
            async for one in memories.iter_all()
        }
        # Compare an export, too, because it contains all stored fields of memories and links.
        lines = await exported(session, root)

    assert expected[namespace]["memories"] == found
    assert (root / f"{namespace}.jsonl").read_text("utf-8").splitlines() == lines


@pytest.mark.parametrize("namespace", NAMESPACES)
async def test_store_of_the_baseline_has_the_same_records(root, expected, namespace):
    async with opened(root / "agent.mama", namespace) as session:
        records = session.records
        written = [one for last in await records.list() for one in await records.history(last.labels, last.key)]
    found = [[*one.labels, one.key, one.version, one.value, one.text] for one in written]

    assert expected[namespace]["records"] == found


@pytest.mark.parametrize("namespace", NAMESPACES)
async def test_store_of_the_baseline_has_the_same_refs_in_each_conversation(root, expected, namespace):
    found = {}
    for known in await admin.list_conversations(root / "agent.mama", namespace=namespace):
        async with opened(root / "agent.mama", namespace, known.name) as session:
            refs = {handle: session.refs.get(handle) for handle in session.refs}
        found[known.name] = {
            handle: [
                one.text if getattr(one, "is_text", True) else one.data.hex(),
                one.created_at.isoformat(),
                getattr(one, "source", None),
                getattr(one, "version", None),
            ]
            for handle, one in refs.items()
        }

    assert expected[namespace]["conversations"] == found


@pytest.mark.parametrize("namespace", NAMESPACES)
async def test_export_of_the_baseline_is_imported_unchanged(root, namespace):
    file = root / f"{namespace}.jsonl"
    async with opened(root / "other.mama", namespace) as session:
        await admin.import_jsonl(session.memories, file)
        lines = await exported(session, root)

    assert sorted(file.read_text("utf-8").splitlines()) == sorted(lines)


async def test_store_of_the_baseline_is_filtered_by_metadata(root):
    """The baseline had no filters by tag, source, outcome and creator, but its rows contain these values."""
    async with opened(root / "agent.mama", "default") as session:
        for where, expected in [
            (Filter(tags="raid"), ["raids doubled on plot:12"]),
            (Filter(source="log.txt", created_by="user"), ["raids doubled on plot:12"]),
            (Filter(outcome="FAILED"), ["Use JWT for logins"]),
            (Filter(outcome="SUCCESS"), ["Use sessions for logins"]),
            (Filter(outcome="PARTIAL"), []),
        ]:
            assert expected == [one.content for one in await session.memories.list(where=where)]
            assert len(expected) == await session.memories.count(where=where)
