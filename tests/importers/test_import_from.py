"""Imports into a session: each item is added once, has the origin "outside", and skipped items are reported."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from importing_helpers import entity, graph, langgraph_store, listing, mem0_home, points, relation
from memory_helpers import SMALL

from mama_structs import Filter, LinkType, Session, admin, as_embedder
from mama_structs.errors import EmbeddingFailed, InvalidArgument, SessionClosed
from mama_structs.importers import import_from
from mama_structs.importers.langgraph.reader import read_store

DATA = Path(__file__).parents[1] / "data"
NOTE = "---\ntitle: Tea\npermalink: tea\n---\n- [method] Steep it #brewing\n- goes_with [[Cake]]\n"


@pytest.fixture
async def session(tmp_path):
    async with Session.open(tmp_path / "agent.mama", embedder=SMALL) as opened:
        yield opened


@pytest.fixture
def sources(tmp_path):
    """One source of each kind."""
    folder = tmp_path / "sources"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "tea.md").write_text(NOTE)
    (folder / "notes" / "cake.md").write_text("---\ntitle: Cake\n---\nSweet.")
    lines = (entity("Ada", "person", "prefers tabs"), entity("Structs", "project"), relation("Ada", "uses", "Structs"))
    return {
        "mcp-memory": graph(folder / "memory.jsonl", *lines),
        "basic-memory": folder / "notes",
        "mem0": mem0_home(folder / "mem0"),
        "langgraph": langgraph_store(folder / "store.db", [("users.ada", "1", {"text": "likes tea"})]),
    }


async def everything(session):
    """Return all memories, links and records of a session."""
    memories = [one async for one in session.memories.iter_all()]
    links = [
        (one.from_id, one.to_id, one.metadata.original_relationship) async for one in session.memories._iter_links()
    ]
    return memories, sorted(links), list(await session.records.list())


def odd(report):
    """Return the problem kind of each irregular item in a report."""
    return [one.kind for one in report.warnings]


@pytest.mark.parametrize("kind", ["mcp-memory", "basic-memory", "mem0", "langgraph"])
async def test_import_from_changes_nothing_when_repeated(session, sources, tmp_path, kind):
    """
    A second import adds nothing, and the source is unchanged.

    Imported items have the origin "outside".
    """
    before = listing(tmp_path / "sources")
    report = await import_from(session.memories, kind, sources[kind])
    first = await everything(session)
    again = await import_from(session.memories, kind, sources[kind])

    assert report.added > 0 == report.existing
    assert all(one.total == one.added + one.existing + one.skipped for one in report.items)
    assert (0, report.added) == (again.added, again.existing)
    assert first == await everything(session)
    assert {"outside"} == {one.origin for one in (*first[0], *first[2])} | {one.trust for one in first[0]}
    assert before == listing(tmp_path / "sources")
    assert (await admin.check(session)).ok


@pytest.mark.parametrize("kind", ["mcp-memory", "basic-memory", "mem0", "langgraph"])
async def test_import_from_dry_run_reports_the_same_without_writing(session, sources, kind):
    """A dry run reports the same counts as the import, and writes nothing."""
    report = await import_from(session.memories, kind, sources[kind], dry_run=True)
    empty = await everything(session)
    done = await import_from(session.memories, kind, sources[kind])

    assert ([], [], []) == empty
    assert (report.items, report.warnings) == (done.items, done.warnings)
    assert "would be added" in str(report)


async def test_import_from_links_related_memories(session, sources):
    """A relation becomes a link with its own word; observations are linked to their entities."""
    await import_from(session.memories, "mcp-memory", sources["mcp-memory"])
    (hit, *_) = await session.memories.search("who prefers tabs?")
    links = {one.metadata.original_relationship: one async for one in session.memories._iter_links()}
    ada = await session.memories.get(links["uses"].from_id)

    assert ("prefers tabs", "Ada") == (hit.memory.content, hit.memory.topic)
    assert ("Ada (person)", "Structs (project)") == links["uses"].endpoint_texts
    assert hit.memory.id == links["refers to"].from_id
    assert {"name": "Ada", "entityType": "person"} == ada.metadata.extra["mcp-memory"]
    assert LinkType.TEMPORAL not in {one.link_type for one in links.values()}


async def test_import_from_adds_new_items_when_a_source_has_grown(session, tmp_path):
    """A source that has grown adds its new items, with their links to existing ones."""
    file = tmp_path / "memory.jsonl"
    graph(file, entity("Ada", "person", "one"))
    await import_from(session.memories, "mcp-memory", file)
    graph(file, entity("Ada", "person", "one", "two"), entity("Eve"), relation("Ada", "knows", "Eve"))
    report = await import_from(session.memories, "mcp-memory", file)

    assert {"entities": (1, 1), "observations": (1, 1), "relations": (1, 0)} == {
        one.item: (one.added, one.existing) for one in report.items
    }
    assert 4 == await session.memories.count()


async def test_import_from_skips_items_that_were_deleted_since(session, sources):
    """
    Memories, links and records that were deleted since are skipped and reported.

    Again=True adds them again.
    """
    for kind in ("mcp-memory", "langgraph"):
        await import_from(session.memories, kind, sources[kind])
    whole = await everything(session)
    link = next(
        one
        for one in [link async for link in session.memories._iter_links()]
        if one.endpoint_texts[1].startswith("Structs")
    )
    await session.memories.unlink(link.id)
    fact = next(one for one in whole[0] if one.content == "prefers tabs")
    await session.memories.delete(fact.id)
    await session.records.delete_all(("langgraph",))
    first = await import_from(session.memories, "mcp-memory", sources["mcp-memory"])
    second = await import_from(session.memories, "langgraph", sources["langgraph"])
    anew = [
        await import_from(session.memories, kind, sources[kind], again=True) for kind in ("mcp-memory", "langgraph")
    ]

    assert ["deleted_since", "unlinked_since"] == odd(first)
    assert ["deleted_since"] == odd(second)
    assert (0, 0) == (first.added, second.added)
    assert [2, 1] == [one.added for one in anew]
    assert {one.id for one in whole[0]} == {one.id async for one in session.memories.iter_all()}


async def test_import_from_reports_items_that_changed_in_the_source(session, tmp_path):
    """A note that changed since its import is left as it was imported, and reported."""
    note = tmp_path / "notes" / "tea.md"
    note.parent.mkdir()
    note.write_text(NOTE)
    await import_from(session.memories, "basic-memory", note.parent)
    note.write_text(NOTE.replace("Steep it", "Boil it"))
    report = await import_from(session.memories, "basic-memory", note)

    assert ["changed_since", "no_such_end"] == odd(report)
    assert {"notes": 0, "observations": 1, "relations": 0} == {one.item: one.added for one in report.items}


async def test_erase_by_source_erases_an_import(session, sources):
    """All memories from one program have the same source, so `erase` can erase them together."""
    await import_from(session.memories, "basic-memory", sources["basic-memory"])
    await import_from(session.memories, "mcp-memory", sources["mcp-memory"])
    await session.memories.erase(where=Filter(source="basic-memory"))

    assert {"mcp-memory"} == {one.metadata.source async for one in session.memories.iter_all()}


async def test_import_from_reports_taken_ids(session, sources):
    """If a memory that no import made has the same id, the item is skipped."""
    await import_from(session.memories, "mcp-memory", sources["mcp-memory"])
    path = sources["mcp-memory"].parent / "export.jsonl"
    await admin.export_jsonl(session.memories, path)
    path.write_text(path.read_text().replace('"from":"mcp-memory","key":"Ada",', '"from":"x","key":"y",'))
    async with Session.open(None, embedder=SMALL) as other:
        await admin.import_jsonl(other.memories, path)
        report = await import_from(other.memories, "mcp-memory", sources["mcp-memory"])

    assert "id_taken" in odd(report)


async def test_import_from_continues_after_a_failure(tmp_path, sources):
    """A second import after a failure adds the rest, with the same result as one import."""
    file = graph(tmp_path / "memory.jsonl", *(entity(f"Name{n}", "thing", f"fact {n}") for n in range(100)))
    count = 0

    def failing(texts):
        nonlocal count
        count += len(texts)
        if count > 100:
            raise RuntimeError("it fails")
        return SMALL.embed(texts)

    embedder = as_embedder(failing, name="failing", dimensions=64, calibration=SMALL.calibration)
    async with Session.open(tmp_path / "one.mama", embedder=embedder) as session:
        with pytest.raises(EmbeddingFailed):
            await import_from(session.memories, "mcp-memory", file)
        begun, count = await session.memories.count(), -10_000
        report = await import_from(session.memories, "mcp-memory", file)
        interrupted = await everything(session)
    async with Session.open(tmp_path / "two.mama", embedder=SMALL) as session:
        await import_from(session.memories, "mcp-memory", file)
        whole = await everything(session)

    assert 0 < begun < 200
    assert (200 - begun, begun) == (report.added, report.existing)
    assert [one.id for one in whole[0]] == [one.id for one in interrupted[0]]
    assert whole[1] == interrupted[1]


async def test_import_from_adds_items_once_when_run_concurrently(tmp_path):
    """Concurrent imports of one source have the same result as one import."""
    file = graph(tmp_path / "memory.jsonl", *(entity(f"Name{n}", "thing", f"fact {n}") for n in range(80)))
    async with Session.open(tmp_path / "one.mama", embedder=SMALL) as session:
        await asyncio.gather(*(import_from(session.memories, "mcp-memory", file) for _ in range(3)))
        together = await everything(session)
        check = await admin.check(session)
    async with Session.open(tmp_path / "two.mama", embedder=SMALL) as session:
        await import_from(session.memories, "mcp-memory", file)
        alone = await everything(session)

    assert sorted(one.id for one in alone[0]) == sorted(one.id for one in together[0])
    assert len(alone[0]) == 160
    assert check.ok


async def test_session_works_after_an_import_is_cancelled_at_any_step(tmp_path):
    """After a cancellation at any step the session works, and a second import completes it."""
    file = graph(tmp_path / "memory.jsonl", entity("Ada", "person", "one"), relation("Ada", "knows", "Ada"))
    async with Session.open(tmp_path / "agent.mama", embedder=SMALL) as session:
        for turns in range(40):
            task = asyncio.ensure_future(import_from(session.memories, "mcp-memory", file))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        report = await import_from(session.memories, "mcp-memory", file)

        assert (2, ["refused"]) == (await session.memories.count(), odd(report))
        assert (await admin.check(session)).ok


NAMES = st.sampled_from(["Ada", "Eve", "Structs", "도구", " ", "a" * 300, "\ud800"])
JUNK = st.sampled_from([None, 7, float("nan"), "text", [], {}, True])
PAYLOADS = st.dictionaries(st.sampled_from(["a", "\ud800"]), NAMES | JUNK, max_size=2)
MCP_ITEMS = st.lists(
    st.one_of(
        st.builds(lambda name, kind, told: entity(name, kind, *told), NAMES, NAMES | st.none(), st.lists(NAMES)),
        st.builds(relation, NAMES, st.text(max_size=5) | NAMES, NAMES),
        st.sampled_from([{"type": "thing"}, {"type": [], "name": "Ada", "observations": "x"}]),
    ),
    max_size=8,
)
MEM0_ITEMS = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from(["1", "2", 1, None]), "memory": NAMES | JUNK},
        optional={"metadata": PAYLOADS, "created_at": JUNK, "user_id": NAMES, "expiration_date": JUNK},
    )
    | JUNK,
    max_size=8,
)
LANGGRAPH_ITEMS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "a.b", ""]), NAMES.filter(str.isascii)),
    (PAYLOADS | JUNK).map(json.dumps) | st.just("no JSON"),
    max_size=8,
)
NOTE_LINES = st.sampled_from(
    [
        "- [idea] one #tag",
        "- [fact] two",
        "- [ ] task",
        "text",
        "",
        "- knows [[a]]",
        "- 'is near' [[b]]",
        "see [[a]], [[x]]",
    ]
)
FRONT = st.sampled_from(
    ["", "---\ntitle: null\npermalink: same\n---\n", "---\nno: [\n---\n", '---\ntitle: "\\ud800"\n---\n']
)
NOTES = st.dictionaries(
    st.sampled_from(["a.md", "b.md", "c.png"]),
    st.tuples(FRONT, st.lists(NOTE_LINES, max_size=8)).map(lambda parts: parts[0] + "\n\n".join(parts[1])),
)


def write_mem0(folder, items):
    """Write a result of get_all, and return its path and the number of its items."""
    (folder / "all.json").write_text(json.dumps({"results": items}))
    return folder / "all.json", len(items)


def write_mcp(folder, items):
    """Write a graph, and return its path and the number of its entities, observations, relations and other lines."""
    lists = [one.get("observations") for one in items]
    return graph(folder / "memory.jsonl", entity("Ada"), *items), 1 + len(items) + sum(map(len, filter(None, lists)))


def write_langgraph(folder, items):
    """Write a SqliteStore, and return its path and the number of its items."""
    (folder / "store.db").unlink(missing_ok=True)
    return langgraph_store(folder / "store.db", [(*key, value) for key, value in items.items()]), len(items)


def write_notes(folder, notes):
    """Write a folder of notes, and return its path and the number of files, observations and distinct relations."""
    shutil.rmtree(folder / "notes", ignore_errors=True)
    count = 0
    for name, text in {**notes, "d.md": "Text."}.items():
        (folder / "notes").mkdir(exist_ok=True)
        (folder / "notes" / name).write_text(text)
        lines = text.split("\n") if name.endswith(".md") else []
        relations = {link for line in lines for link in re.findall(r"- .*\]\]|see|x\]\]", line)}
        count += 1 + len(relations) + sum(line.startswith(("- [i", "- [f")) for line in lines)
    return folder / "notes", count


WRITERS = {
    "mem0": (MEM0_ITEMS, write_mem0),
    "mcp-memory": (MCP_ITEMS, write_mcp),
    "langgraph": (LANGGRAPH_ITEMS, write_langgraph),
    "basic-memory": (NOTES, write_notes),
}


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("kind", WRITERS)
@given(data=st.data())
async def test_import_from_counts_every_item_as_added_existing_or_skipped(tmp_path, kind, data):
    """Each item of a source is added, exists, or is named by a warning; the totals are those of the table."""
    items, write = WRITERS[kind]
    source, count = write(tmp_path, data.draw(items))
    async with Session.open(None, embedder=SMALL) as session:
        report = await import_from(session.memories, kind, source)
        again = await import_from(session.memories, kind, source)
        found = await everything(session)

    assert 0 == again.added
    assert report.added == again.existing
    for one in (report, again):
        assert count == one.total == one.added + one.existing + one.skipped
        assert all(each.total == each.added + each.existing + each.skipped for each in one.items)
        named = Counter({each.item: 0 for each in one.items})
        for warning in one.warnings:
            named[warning.item] += warning.skipped
        assert {each.item: each.skipped for each in one.items} == named
        totals = f"{one.added} of {count} items added, {one.existing} there already, {one.skipped} left out"
        assert totals in repr(one)
        assert totals == str(one).split("\n")[1]
    assert len(found[0]) == sum(one.added for one in report.items if one.item != "relations")


async def test_import_from_imports_files_that_the_programs_wrote(session):
    """Files of server-memory 2026.8.31, basic-memory 0.24.1 and mem0ai 2.2.1 are imported in default settings."""
    counts = {
        ("mcp-memory", DATA / "mcp_memory" / "memory.jsonl"): {
            "entities": (9, 7, 2),
            "observations": (16, 13, 3),
            "relations": (6, 3, 3),
        },
        ("basic-memory", DATA / "basic_memory"): {
            "notes": (4, 4, 0),
            "observations": (8, 7, 1),
            "relations": (7, 3, 4),
        },
        ("mem0", DATA / "mem0" / "get_all_odd.json"): {"memories": (9, 9, 0)},
    }
    reports = {source: await import_from(session.memories, *source) for source in counts}
    topics = {one.topic async for one in session.memories.iter_all()}

    assert counts == {
        source: {one.item: (one.total, one.added, one.skipped) for one in report.items}
        for source, report in reports.items()
    }
    assert {"no_such_end", "no_text", "refused", "said_twice", "same_name"} == {
        one.kind for report in reports.values() for one in report.warnings if one.skipped
    }
    title = "A title: with 'quotes', a \"colon\" and more words than one line of YAML may have"
    assert {"Tea", "Cake", "null", title} <= topics


async def test_import_from_reads_langgraph_base_store_objects(session):
    """Items of a BaseStore are read by its sync or async methods without extending expiry."""
    items = [
        SimpleNamespace(
            namespace=("a", "b") if n % 2 else ("a",),
            key=f"{n}",
            value={"n": n},
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        for n in range(250)
    ]
    asked = []

    class Store:
        def list_namespaces(self, *, limit, offset):
            return [("a",), ("a", "b")][offset : offset + limit]

        async def alist_namespaces(self, **options):
            raise NotImplementedError

        def search(self, namespace, *, limit, offset, refresh_ttl):
            asked.append(refresh_ttl)
            return [one for one in items if one.namespace[: len(namespace)] == namespace][offset : offset + limit]

        async def asearch(self, *arguments, **options):
            raise NotImplementedError

    report = await import_from(session.memories, "langgraph", Store())
    kept = await session.records.list(("langgraph", "store"))

    assert (250, 250) == (report.added, len(kept))
    assert {datetime(2026, 1, 1, tzinfo=UTC)} == {one.created_at for one in kept}
    assert {False} == set(asked)


async def test_langgraph_read_store_reports_values_that_are_not_json():
    """A value with an object that JSON cannot represent, or with NaN, is reported, and does not prevent the import."""
    values = ["text", {"at": datetime(2026, 1, 1, tzinfo=UTC)}, {("a",): 1}, {"n": float("nan")}, {"n": 1}]
    items = [
        SimpleNamespace(namespace=("a",), key=f"{n}", value=value, created_at=datetime(2026, 1, 1, tzinfo=UTC))
        for n, value in enumerate(values)
    ]

    async def find(*arguments, offset, **options):
        return items

    async def list_namespaces(**options):
        return [("a",)]

    store = SimpleNamespace(list_namespaces=len, search=len, asearch=find, alist_namespaces=list_namespaces)
    found = await read_store(store)

    assert [{"n": "NaN"}, {"n": 1}] == [one.value for one in found.records]
    assert ["no_mapping", "no_json", "no_json", "no_json"] == [one.kind for one in found.odd]
    assert found.found["items"] - len(found.records) == sum(one.skipped for one in found.odd)


async def test_import_from_skips_expired_memories(session, sources):
    """A mem0 memory after its expiration date is not added, and is reported in each import."""
    for _ in range(2):
        report = await import_from(session.memories, "mem0", sources["mem0"])

        assert "expired" in odd(report)
    assert 3 == await session.memories.count()


async def test_import_from_reports_records_with_invalid_keys(session, tmp_path):
    """A record with a key that is too long is reported, and the others are added."""
    file = points(
        tmp_path / "collection" / "mem0" / "storage.sqlite", [("k" * 2_000, {"data": "x"}), ("1", {"data": "y"})]
    )
    report = await import_from(session.memories, "mem0", file)

    assert (1, ["refused"]) == (report.added, odd(report))
    assert f"\nmemories {'k' * 100}...: refused: left out: it.key " in str(report)


async def test_import_from_rejects_invalid_arguments_before_reading(session, tmp_path):
    """An unknown kind, an unexpected user and an invalid source raise InvalidArgument."""
    for kind, source, options in (
        ("mem1", tmp_path, {}),
        ("mcp-memory", tmp_path / "x", {"user": "ada"}),
        ("mcp-memory", 7, {}),
        ("langgraph", object(), {}),
        ("mem0", tmp_path, {"progress": 1}),
        ("basic-memory", tmp_path, {"dry_run": 1}),
    ):
        with pytest.raises(InvalidArgument):
            await import_from(session.memories, kind, source, **options)


async def test_import_from_progress_reaches_the_total(session, sources):
    """The reported progress never decreases, and ends at the total."""
    steps = []
    await import_from(
        session.memories, "basic-memory", sources["basic-memory"], progress=lambda *step: steps.append(step)
    )

    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1] > 0


async def test_import_from_raises_session_closed_on_closed_session(sources):
    """An import into a closed session raises SessionClosed."""
    async with Session.open(None, embedder=SMALL) as session:
        memories = session.memories
    with pytest.raises(SessionClosed):
        await import_from(memories, "mcp-memory", sources["mcp-memory"])
