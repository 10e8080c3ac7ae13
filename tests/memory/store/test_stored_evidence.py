"""Evidence texts: a save stores the text of each handle for as long as a memory refers to it."""

# Allow blocking file system calls, which are fast enough in these tests.
# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL, OpenedDirectory, is_on_server, plain_memory

from mama_structs import Session, admin
from mama_structs.errors import (
    HandleNotFound,
    InvalidArgument,
    MemoryNotFound,
    SessionClosed,
    StoreDamaged,
    StoreFull,
)
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.engines.local import consistency_check as inspection
from mama_structs.memory.engines.local.journal_rows import RowKeys, number_key
from mama_structs.memory.engines.postgres.reader import PostgresReader
from mama_structs.memory.engines.postgres.writer import PostgresWriter
from mama_structs.memory.graph.results import Evidence
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.types.model import StoredEvidence, evidence_digests, parse_stored_evidence, text_digest
from mama_structs.memory.upkeep.maintenance import embedder_record
from mama_structs.settings import MemorySettings
from mama_structs.storage.backup import backup
from mama_structs.storage.sqlite_store import SqliteStorage
from mama_structs.testing.plain_engine import PlainEngine

KEYS = RowKeys("default", embedder_record(SMALL), "")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip)


@attrs.define(eq=False)
class Handles:
    """A fake for the handles of a session. Each new text of a handle gets a new version."""

    texts: dict = attrs.field(factory=dict)
    asked: list = attrs.field(factory=list)

    def __call__(self, item):
        self.asked.append(item)
        if not item.startswith(("ref:", "fd:")):
            return None
        if item not in self.texts:
            raise HandleNotFound(f"there is no {item}", handle=item)
        return f"{item}@1", self.texts[item]


@asynccontextmanager
async def opened(path, find_content=saving.no_content, **options):
    place = OpenedDirectory.open(path, find_content=find_content, settings=MemorySettings(**options))
    try:
        yield await place.memories()
        assert [] == [one for one in await place.storage.check() if one.kind != "sqlite"]
    finally:
        await place.close()


async def rows_of(store):
    """Return the keys of stored texts and of the references to them, without their namespace prefix."""

    def plan(reader):
        if isinstance(reader, PostgresReader):
            texts = reader.fetch_rows("SELECT digest FROM texts WHERE namespace = $1")
            uses = reader.fetch_rows("SELECT digest, node FROM text_uses WHERE namespace = $1")
            return [*(f"e/{row['digest']}" for row in texts), *(f"u/{row['digest']}/{row['node']}" for row in uses)]
        rows = reader._rows
        return [*rows.keys(KEYS.contents), *rows.keys(KEYS.all_uses)]

    return [key.removeprefix("memories/default/") for key in await store._engine.read(plan)]


async def kept_in(store):
    return sorted(key.removeprefix("e/") for key in await rows_of(store) if key.startswith("e/"))


async def plant(store, work):
    """Write rows with valid checksums, or run statements on a server."""
    await store._engine.write(lambda writer: work(writer._connection if is_on_server() else writer._rows_to_write))


async def decision(store, *evidence, topic="t"):
    return await store.save_decision("what", topic=topic, reasoning="why", evidence=evidence)


# Round trips


@given(texts=st.lists(TEXTS, max_size=4), plain=st.lists(WORDS, max_size=3))
@settings(max_examples=settings.default.max_examples // 4)
async def test_evidence_text_round_trip_is_exact(texts, plain):
    """Any text of a handle is returned after a reopening, and evidence without text stays unchanged."""
    handles = Handles({f"ref:r{number}": text for number, text in enumerate(texts)})
    plain = [item for item in plain if not item.startswith(("ref:", "fd:"))]
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home:
        async with opened(Path(home), handles) as store:
            saved = await decision(store, *handles.texts, *plain)
        async with opened(Path(home)) as store:
            found = await store.evidence(saved.id)
            assert saved == await store.get(saved.id)
            assert sorted({text_digest(text) for text in texts}) == await kept_in(store)
            assert () == (await admin.check(store)).issues

    kept = [
        Evidence(source=f"{handle}@1", digest=text_digest(text), text=text) for handle, text in handles.texts.items()
    ]
    assert [*kept, *(Evidence(source=item) for item in plain)] == found


@given(source=st.from_regex(r"(ref|fd):[^\s#]{1,80}", fullmatch=True), text=TEXTS, words=TEXTS)
def test_parse_kept_accepts_only_stored_evidence(source, text, words):
    """The form of an item with a stored text is parsed exactly, and no other text is accepted."""
    kept = StoredEvidence(source, text_digest(text))

    assert kept == parse_stored_evidence(str(kept))
    assert (kept.digest,) == evidence_digests([words, str(kept), str(kept)])
    assert parse_stored_evidence(f"{kept}\n") is None
    assert parse_stored_evidence(f"https://example.org/#sha256:{kept.digest}") is None
    assert parse_stored_evidence(str(kept).upper()) is None


async def test_evidence_repr_truncates_long_text(tmp_path):
    """A long text does not fill the screen."""
    async with opened(tmp_path, Handles({"ref:a": "long text " * 1000})) as store:
        saved = await decision(store, "ref:a", "https://example.org")

        assert "10,000 characters" in repr((await store.evidence(saved.id))[0])
        assert len(repr(await store.evidence(saved.id))) < 250


async def test_evidence_has_text_of_the_time_of_saving(tmp_path):
    """A handle is resolved at the start of the call, and later versions do not change the stored text."""
    handles = Handles({"ref:a": "first"})
    async with opened(tmp_path, handles) as store:
        call = asyncio.ensure_future(decision(store, "ref:a"))
        await asyncio.sleep(0)
        handles.texts["ref:a"] = "second"
        first, second = await call, await decision(store, "ref:a")

        assert ["first"] == [one.text for one in await store.evidence(first.id)]
        assert ["second"] == [one.text for one in await store.evidence(second.id)]


async def test_supersede_and_save_many_store_evidence_texts(tmp_path):
    """Covers superseding and batch saves."""
    handles = Handles({"ref:a": "one", "fd:1": "two"})
    async with opened(tmp_path, handles) as store:
        first = await decision(store, "ref:a")
        later = await store.supersede(first.id, "else", reasoning="better", evidence=["fd:1", *first.evidence])
        record = {"type": "decision", "topic": "t", "content": "d", "reasoning": "r"}
        many = await store.save_many([{**record, "evidence": ["fd:1"]}, {**record, "evidence": later.evidence}])

        assert ["two", "one"] == [one.text for one in await store.evidence(later.id)]
        assert ["two"] == [one.text for one in await store.evidence(many[0].id)]
        assert ["two", "one"] == [one.text for one in await store.evidence(many[1].id)]
        assert 2 == len(await kept_in(store))
        assert () == (await admin.check(store)).issues


async def test_record_may_refer_to_text_of_earlier_record(tmp_path):
    """A record of a batch may refer by hash to a text that the same call stores."""
    handles = Handles({"ref:a": "one"})
    named = str(StoredEvidence("ref:a@1", text_digest("one")))
    record = {"type": "decision", "topic": "t", "content": "d", "reasoning": "r"}
    async with opened(tmp_path, handles) as store:
        saved = await store.save_many([{**record, "evidence": ["ref:a"]}, {**record, "evidence": [named]}])
        await store.delete(saved[0].id)

        assert ["one"] == [one.text for one in await store.evidence(saved[1].id)]


# Rejected evidence


async def test_save_with_unknown_handle_raises_and_saves_nothing(tmp_path):
    """In a batch, a note on the error contains the index of the record."""
    record = {"type": "decision", "topic": "t", "content": "d", "reasoning": "r"}
    async with opened(tmp_path, Handles({"ref:a": "one"})) as store:
        with pytest.raises(HandleNotFound, match="ref:b"):
            await decision(store, "ref:a", "ref:b")
        with pytest.raises(HandleNotFound) as refused:
            await store.save_many([{**record, "evidence": ["ref:a"]}, {**record, "evidence": ["ref:b"]}])

        assert ["in items[1]"] == refused.value.__notes__
        assert (0, []) == (await store.count(), await rows_of(store))


@pytest.mark.parametrize(("most", "fits"), [(6, True), (5, False), (0, False)])
async def test_save_rejects_too_long_text(tmp_path, most, fits):
    """The size in UTF-8 counts. The error contains none of the text, and nothing is saved."""
    async with opened(tmp_path, Handles({"ref:a": "기억"}), max_evidence=most) as store:
        if fits:
            assert ["기억"] == [one.text for one in await store.evidence((await decision(store, "ref:a")).id)]
        else:
            with pytest.raises(InvalidArgument, match=rf"^evidence\[1\] must refer to at most {most} bytes") as refused:
                await decision(store, "https://x", "ref:a")
            assert "기억" not in str(refused.value)
            assert "max_evidence" in refused.value.hint
            assert (0, []) == (await store.count(), await rows_of(store))


async def test_text_limit_never_exceeds_export_limit(tmp_path, monkeypatch):
    """The limit of exports applies regardless of the settings."""
    monkeypatch.setattr(saving, "MAX_STORED_TEXT_BYTES", 10)
    async with opened(tmp_path, Handles({"ref:a": "x" * 11}), max_evidence=2**40) as store:
        with pytest.raises(InvalidArgument, match="at most 10 bytes"):
            await decision(store, "ref:a")


async def test_save_rejects_lone_surrogate(tmp_path):
    """The error contains its position."""
    async with opened(tmp_path, Handles({"ref:a": "ab\ud800"})) as store:
        with pytest.raises(InvalidArgument, match=r"evidence\[0\]: character 3 of its text is a lone surrogate"):
            await decision(store, "ref:a")


async def test_save_rejects_unknown_text_hash(tmp_path):
    """An item that refers to a text that is not stored could never be resolved."""
    named = str(StoredEvidence("ref:a@1", text_digest("elsewhere")))
    handles = Handles({})
    record = {"type": "decision", "topic": "t", "content": "d", "reasoning": "r", "evidence": [named]}
    async with opened(tmp_path, handles) as store:
        with pytest.raises(InvalidArgument, match=r"evidence\[1\] names a text by its hash that no memory keeps"):
            await decision(store, "https://x", named)
        with pytest.raises(InvalidArgument) as refused:
            await store.save_many([{"type": "context", "content": "x"}, record])

        assert ["in items[1]"] == refused.value.__notes__
        assert ["https://x"] == handles.asked
        assert 0 == await store.count()


async def test_find_content_must_return_a_handle(tmp_path):
    """Other sources could not be distinguished from evidence without text."""
    async with opened(tmp_path, lambda _item: ("no handle", "text")) as store:
        with pytest.raises(ValueError, match="no handle"):
            await decision(store, "ref:a")


async def test_evidence_of_unknown_memory_raises(tmp_path):
    """The error is `MemoryNotFound`."""
    async with opened(tmp_path) as store:
        with pytest.raises(MemoryNotFound):
            await store.evidence("decision_x_1_00000000")


# Sharing and deletion


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
async def test_text_is_deleted_with_last_memory_that_refers_to_it(tmp_path, order):
    """For any order of deletions, it is deleted immediately, and none of its rows remains."""
    async with opened(tmp_path, Handles({"ref:a": "shared", "ref:b": "shared", "ref:c": "own"})) as store:
        saved = [await decision(store, *evidence) for evidence in (["ref:a", "ref:c"], ["ref:b"], ["ref:a", "ref:a"])]
        assert 2 == len(await kept_in(store))
        left = set(range(3))
        for one in order:
            await store.delete(saved[one].id)
            left.discard(one)
            expected = {text_digest("shared")} if left else set()
            expected |= {text_digest("own")} & ({text_digest("own")} if 0 in left else set())

            assert sorted(expected) == await kept_in(store)
            assert () == (await admin.check(store)).issues
            for other in left:
                assert "shared" == (await store.evidence(saved[other].id))[0].text

        assert [] == await rows_of(store)


TEXTS_BY_DIGEST = {text_digest(text): text for text in ("one", "two", "기억")}
STEPS = st.tuples(st.sampled_from("abc"), st.none() | st.sets(st.sampled_from([*TEXTS_BY_DIGEST])))


@given(plans=st.lists(st.tuples(st.lists(STEPS, min_size=1, max_size=5), st.booleans()), max_size=8))
# Regression: the last node of the transaction belongs to a memory that the same transaction deletes.
@example(plans=[([("a", set()), ("a", None), ("a", set()), ("a", None)], False)])
@settings(max_examples=settings.default.max_examples // 2)
async def test_texts_after_transaction_match_plain_model(plans):
    """One plan writes, rewrites and deletes several memories, and may fail."""
    vectors = SMALL.embed(["x"])

    def done(writer, steps):
        for memory_id, named in steps:
            if named is not None:
                evidence = [str(StoredEvidence("ref:x@1", digest)) for digest in sorted(named)]
                writer.put(plain_memory(memory_id, evidence=evidence), vectors=vectors, contents=TEXTS_BY_DIGEST)
            elif writer.find(memory_id) is not None:
                writer.delete(memory_id)
        return writer.contents(sorted(writer.known_contents(list(TEXTS_BY_DIGEST))))

    memory, plain = Path("/dev/shm"), PlainEngine()
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home:
        async with opened(Path(home)) as store:
            for steps, fails in plans:

                def plan(writer, steps=steps, fails=fails):
                    seen = done(writer, steps)
                    if fails:
                        raise EOFError
                    return seen

                answers = await asyncio.gather(store._engine.write(plan), plain.write(plan), return_exceptions=True)
                if fails:
                    assert [EOFError, EOFError] == [type(answer) for answer in answers]
                else:
                    assert answers[0] == answers[1]
                assert sorted(plain.memories._contents) == await kept_in(store)
            assert () == (await admin.check(store)).issues


async def test_deleted_text_can_be_stored_again(tmp_path):
    """Covers storing it again later and in the same transaction."""
    handles = Handles({"ref:a": "again"})
    async with opened(tmp_path, handles) as store:
        saved = await decision(store, "ref:a")

        def plan(writer):
            vectors = writer.vectors(writer.find(saved.id))
            writer.delete(saved.id)
            assert not writer.known_contents([text_digest("again")])
            with pytest.raises(KeyError):
                writer.put(saved, vectors=vectors)
            writer.put(saved, vectors=vectors, contents={text_digest("again"): "again", text_digest("other"): "other"})

        await store._engine.write(plan)

        assert ["again"] == [one.text for one in await store.evidence(saved.id)]
        assert [text_digest("again")] == await kept_in(store)
        assert () == (await admin.check(store)).issues


async def test_other_changes_keep_evidence(tmp_path):
    """Outcomes, links, pruning, rebuilds and re-embedding do not change it."""
    async with opened(tmp_path, Handles({"ref:a": "shared"})) as store:
        first, second = await decision(store, "ref:a"), await decision(store, "ref:a")
        await store.set_outcome(first.id, "FAILED", reason="it leaked")
        link = await store.link(second.id, first.id, "refines")
        await store.unlink(link.id)
        await admin.prune(store)
        await (admin.rebuild(store) if is_on_server() else store._engine.snapshot())
        await admin.rebuild(store)
        await admin.reembed(store, HashEmbedder(dimensions=32))

        assert ["shared"] == [one.text for one in await store.evidence(first.id)]
        assert [text_digest("shared")] == await kept_in(store)
        assert () == (await admin.check(store)).issues


async def test_evidence_texts_are_shared_between_processes(tmp_path):
    """Each process sees texts of the other immediately, and deletes none that the other still refers to."""
    handles = Handles({"ref:a": "shared"})
    async with opened(tmp_path, handles) as one, opened(tmp_path, handles) as other:
        first = await decision(one, "ref:a")
        assert "shared" == (await other.evidence(first.id))[0].text
        second = await other.save_decision("d", topic="t", reasoning="", evidence=first.evidence)
        await other.delete(first.id)
        assert "shared" == (await one.evidence(second.id))[0].text
        assert () == (await admin.check(one)).issues
        await one.delete(second.id)

        assert [] == await rows_of(other)


async def test_namespaces_have_separate_evidence_texts(tmp_path):
    """A text deleted in one namespace stays in another, and its hash is invalid in a third."""
    place = OpenedDirectory.open(tmp_path, find_content=Handles({"ref:a": "shared"}))
    stores = [await place.memories(name) for name in ("default", "b", "c")]
    first, second = await decision(stores[0], "ref:a"), await decision(stores[1], "ref:a")
    with pytest.raises(InvalidArgument):
        await decision(stores[2], *first.evidence)
    await stores[0].delete(first.id)

    assert "shared" == (await stores[1].evidence(second.id))[0].text
    assert [] == await place.findings()
    await place.close()


async def test_cancelled_save_stores_memory_with_text_or_neither(tmp_path):
    """The save is cancelled at each of its awaits."""
    handles = Handles()
    async with opened(tmp_path, handles) as store:
        for waits in range(12):
            # A text of this length is hashed in a separate thread.
            handles.texts = {"ref:a": f"{waits}" * 2**21 if waits % 3 == 2 else f"{waits}"}
            task = asyncio.ensure_future(decision(store, "ref:a"))
            for _ in range(waits):
                await asyncio.sleep(0)
            await asyncio.sleep(0.002 * (waits % 4))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        # Writes run in order, so all earlier writes are finished after this one.
        await store.save_context("the last one")
        there = await store.list(limit=100)

        assert sorted(digest for memory in there for digest in evidence_digests(memory.evidence)) == await kept_in(
            store
        )
        assert () == (await admin.check(store)).issues


async def test_failed_save_stores_no_text(tmp_path, monkeypatch):
    """A full disk leaves nothing of the text, and a retry with space stores everything."""
    async with opened(tmp_path, Handles({"ref:a": "text"})) as store:
        await store.save_context("before")
        owner, name = (PostgresWriter, "finish") if is_on_server() else (SqliteStorage, "_run_transaction")
        whole = getattr(owner, name)

        def failing(self, *work, **how):
            def undone(rows):
                work[0](rows)
                raise StoreFull("no room")

            whole(self, *[undone for _ in work], **how)
            raise StoreFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            with pytest.raises(StoreFull):
                await decision(store, "ref:a")
        assert (1, []) == (await store.count(), await rows_of(store))
        await decision(store, "ref:a")

        assert [text_digest("text")] == await kept_in(store)
        assert () == (await admin.check(store)).issues


# Damage

DAMAGE = {"gone": None, "another text": b"another", "no UTF-8": b"\xff"}


def damage(rows, name):
    digest = text_digest("secret")
    key = f"{KEYS.contents}{digest}"
    if is_on_server():
        rows.execute("DELETE FROM texts WHERE digest = $1", digest)
        if DAMAGE[name] is not None:
            rows.execute("INSERT INTO texts (namespace, digest, text) VALUES ('default', $1, $2)", digest, DAMAGE[name])
    elif name == "broken":
        rows._connection.execute("UPDATE Cache SET value = ? WHERE key = ?", (b"broken", key))
    elif DAMAGE[name] is None:
        rows.delete(key)
    else:
        rows.put(key, DAMAGE[name])


BROKEN = pytest.param("broken", marks=pytest.mark.of_the_directory("a server sees to the bytes of its rows itself"))


@pytest.mark.parametrize("name", [*DAMAGE, BROKEN])
async def test_damaged_text_is_never_returned(tmp_path, name):
    """Reading raises, check() reports it without content, other data is readable, and saving it again repairs it."""
    async with opened(tmp_path, Handles({"ref:a": "secret", "ref:b": "whole"})) as store:
        bad, good = await decision(store, "ref:a"), await decision(store, "ref:b")
        await plant(store, lambda rows: damage(rows, name))
        with pytest.raises(StoreDamaged) as refused:
            await store.evidence(bad.id)
        findings = (await admin.check(store)).issues
        with pytest.raises(StoreDamaged):
            await admin.export_jsonl(store, tmp_path / "x")

        assert {("error", "evidence")} == {(one.severity, one.kind) for one in findings}
        assert text_digest("secret") in str(refused.value)
        assert refused.value.file == (store._engine._pool.location if is_on_server() else str(tmp_path / "journal"))
        assert "secret" not in f"{refused.value}{refused.value.findings}{findings}"
        assert not (tmp_path / "x").exists()
        assert bad == await store.get(bad.id)
        assert "whole" == (await store.evidence(good.id))[0].text
        # A memory with a damaged text can still be changed.
        await store.set_outcome(bad.id, "SUCCESS")
        await decision(store, "ref:a")
        assert "secret" == (await store.evidence(bad.id))[0].text
        assert () == (await admin.check(store)).issues


async def test_check_reports_and_rebuild_erases_orphaned_texts(tmp_path):
    """Orphans are texts without references, references of deleted memories, and foreign keys. A rebuild erases them."""
    own, lost = text_digest("own"), text_digest("a text that is lost")

    def work(rows):
        if is_on_server():
            rows.execute(
                "INSERT INTO texts (namespace, digest, text) VALUES ('default', $1, $2)", lost, b"a text that is lost"
            )
            rows.execute(
                "INSERT INTO text_uses (namespace, digest, node) VALUES ('default', $1, 77), ('default', $1, 1)", own
            )
            rows.execute("DELETE FROM text_uses WHERE node = 0")
            return
        rows.put(f"{KEYS.contents}{lost}", b"a text that is lost")
        rows.put(number_key(KEYS.uses_prefix(own), 77), b"")
        rows.put(number_key(KEYS.uses_prefix(own), 2), b"")
        rows.delete(number_key(KEYS.uses_prefix(own), 1))
        rows.put(f"{KEYS.contents}zz", b"")
        rows.put(f"{KEYS.all_uses}zz/{1:016x}", b"")
        rows.put(f"{KEYS.uses_prefix(own)}zz", b"")

    async with opened(tmp_path, Handles({"ref:a": "own"})) as store:
        first = await decision(store, "ref:a")
        second = await store.save_context("without evidence")
        assert () == (await admin.check(store)).issues
        await plant(store, work)
        findings = (await admin.check(store)).issues
        await admin.rebuild(store)
        left = {(one.kind, one.key) for one in (await admin.check(store)).issues}
        assert "own" == (await store.evidence(first.id))[0].text
        if not is_on_server():
            assert all(b"a text that is lost" not in path.read_bytes() for path in tmp_path.glob("journal/cache.db*"))

    expected = {
        ("orphan", f"{KEYS.contents}{lost}"),
        ("orphan", number_key(KEYS.uses_prefix(own), 77)),
        ("orphan", number_key(KEYS.uses_prefix(own), 2)),
        ("evidence", number_key(KEYS.memories, 1)),
        ("foreign", f"{KEYS.contents}zz"),
        ("foreign", f"{KEYS.all_uses}zz/{1:016x}"),
        ("foreign", f"{KEYS.uses_prefix(own)}zz"),
    }
    if is_on_server():
        expected = {("orphan", lost), ("orphan", "77"), ("memory", first.id), ("memory", second.id)}
    assert expected == {(finding.kind, finding.key) for finding in findings}
    assert {one for one in expected if one[0] == "foreign"} == left
    texts = [one.message for one in findings if one.kind == "evidence" or one.key == first.id]
    assert [True] == ["evidence or former versions" in text for text in texts]


@pytest.mark.skipif(is_on_server(), reason="damages a row of a directory")
async def test_rebuild_keeps_texts_of_damaged_memories(tmp_path):
    """Their evidence is unknown, and a restored row needs its texts."""
    async with opened(tmp_path, Handles({"ref:a": "own"})) as store:
        await decision(store, "ref:a")
        before = await rows_of(store)
        await plant(store, lambda rows: rows.put(number_key(KEYS.memories, 1), b"{"))
        damaged = await admin.rebuild(store)
        after = await rows_of(store)

    assert 1 == len(damaged)
    assert 2 == len(before)
    assert before == after


async def test_check_reads_texts_in_several_transactions(tmp_path, monkeypatch):
    """Other tasks can run between the transactions, for any number and size of texts."""
    monkeypatch.setattr(inspection, "MAX_TEXT_CHARS_PER_STEP", 10)
    handles = Handles({f"ref:r{number}": f"text {number}" for number in range(250)})
    async with opened(tmp_path, handles) as store:
        saved = await decision(store, *handles.texts)
        assert () == (await admin.check(store)).issues

        def work(rows):
            if is_on_server():
                rows.execute("UPDATE texts SET text = 'x'")
            else:
                for key in rows.keys(KEYS.contents):
                    rows.put(key, b"x")

        await plant(store, work)
        findings = (await admin.check(store)).issues

        assert set(evidence_digests(saved.evidence)) == {one.key.removeprefix(KEYS.contents) for one in findings}
        assert 250 == len(findings)


# Views


async def test_memory_view_resolves_own_handles(tmp_path):
    """
    Each view resolves its own handles.

    A new embedder and the end of the store apply to all.
    """
    async with opened(tmp_path, Handles({"ref:a": "of one"})) as one:
        other = one._resolving(Handles({"ref:a": "of the other"}))
        first, second = await decision(one, "ref:a"), await decision(other, "ref:a")
        assert "of the other" == (await one.evidence(second.id))[0].text
        assert "of one" == (await other.evidence(first.id))[0].text
        await admin.reembed(other, HashEmbedder(dimensions=32))
        assert 32 == one.embedder.dimensions
        assert second == (await one.search("what", limit=1))[0].memory
        # The strength of a link decreases with time.
        walks = await one.traverse(second.id), await other.traverse(second.id)
        assert [found.memory for found in walks[0]] == [found.memory for found in walks[1]]
        assert one._figures() == other._figures()
        await other._close()

        for store in (one, other):
            with pytest.raises(SessionClosed):
                await store.count()
            assert "closed" in repr(store)


async def test_session_stores_texts_of_own_refs(tmp_path):
    """A fork has its own refs, but evidence outlives the conversation."""
    async with Session.open(tmp_path / "a", embedder=SMALL, conversation="one") as session:
        await session.observe("<ref id='plan'>build the wall first</ref>")
        fork = session.fork()
        await fork.observe("<ref id='plan'>build nothing</ref>")
        large = await session.wrap("line\n" * 5000)
        first = await session.memories.save_decision(
            "d", topic="t", reasoning="", evidence=["ref:plan", "fd:1", "no handle"]
        )
        second = await fork.memories.save_decision("d", topic="t", reasoning="", evidence=["ref:plan@1", "ref:plan"])
        with pytest.raises(HandleNotFound):
            await session.memories.save_decision("d", topic="t", reasoning="", evidence=["ref:plan@2"])
        await fork.close()
    await backup(tmp_path / "a", tmp_path / "b")
    async with Session.open(tmp_path / "b", embedder=SMALL, conversation="two") as session:
        kept = await session.memories.evidence(first.id)
        of_fork = await session.memories.evidence(second.id)

        assert "fd:1" in str(large)
        assert ["ref:plan@1", "fd:1", "no handle"] == [one.source for one in kept]
        assert ["build the wall first", "line\n" * 5000, None] == [one.text for one in kept]
        assert ["build the wall first", "build nothing"] == [one.text for one in of_fork]
        assert (await admin.check(session)).ok


# The plain engine as a reference


async def test_plain_engine_stores_and_deletes_evidence_texts():
    """It stores referenced texts, deletes unreferenced ones, and rejects unknown ones."""
    backend = PlainEngine()
    named = str(StoredEvidence("ref:a@1", text_digest("text")))
    given = {text_digest("text"): "text", text_digest("other"): "other"}
    with pytest.raises(KeyError):
        await backend.write(lambda writer: writer.put(plain_memory("a", evidence=[named])))
    await backend.write(lambda writer: writer.put(plain_memory("a", evidence=[named]), contents=given))
    await backend.write(lambda writer: writer.put(plain_memory("b", evidence=[named]), vectors=np.eye(1)))
    await backend.write(lambda writer: writer.delete("a"))

    assert ["text"] == list((await backend.read(lambda reader: reader.contents([text_digest("text")]))).values())
    assert not await backend.read(lambda reader: reader.known_contents([text_digest("other")]))
    await backend.write(lambda writer: writer.put(plain_memory("b")))
    assert not await backend.read(lambda reader: reader.known_contents([text_digest("text")]))
