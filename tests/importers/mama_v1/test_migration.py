"""Complete migrations: their result, repetition, interruption at any point, and rollback."""

from __future__ import annotations

import asyncio
import itertools
import json
import lzma
import os
import subprocess
import sys
import textwrap
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest
from mama_v1_0 import NOW, START, OldStore, Open, exported

import mama_structs
from mama_structs import admin
from mama_structs.errors import EmbeddingFailed, InvalidArgument, MigrationError
from mama_structs.importers import migrate_v1, rollback_v1
from mama_structs.importers.mama_v1.migration_plan import BACKFILLED_KEY, MIGRATION_MARK_KEY
from mama_structs.memory.embedding.factory import as_embedder
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.types.model import LinkType

SAMPLES = Path(__file__).parents[2] / "data" / "mama"
COUNT = 40
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mama_structs.__file__).parents[1])}


@pytest.fixture
def small_chunks(monkeypatch):
    """Use small transactions, so that a few memories need many transactions."""
    monkeypatch.setattr("mama_structs.importers.mama_v1.migration.BATCH_SIZE", 4)
    monkeypatch.setattr("mama_structs.importers.mama_v1.migration.BATCH_SIZE", 4)


@pytest.fixture
def old(tmp_path):
    """A v1.0 database with chains, failures, checkpoints and a fork."""
    path = tmp_path / "old.db"
    with OldStore.made(path) as store:
        store.history(COUNT)
        for number in range(3):
            store.row("checkpoints", timestamp=START + number, summary=f"Part {number} is done", next_steps="Go on.")
    return path


def sample(name, folder):
    """Unpack a prepared sample file into a folder."""
    path = folder / name
    path.write_bytes(lzma.decompress((SAMPLES / f"{name}.xz").read_bytes()))
    return path


async def links_of(memories, ids):
    """Return all links of the memories with these ids, by link id."""
    return {link.id: link for one in ids for link in await memories.links(one)}


async def test_migrate_stores_or_reports_every_row_of_the_manifest(tmp_path):
    """Every row of the manifest is in the store or in the report, and the chains match."""
    path = sample("v1_0_user.db", tmp_path)
    manifest = json.loads((SAMPLES / "v1_0_user.manifest.json").read_text(encoding="utf-8"))
    async with Open() as memories:
        report = await migrate_v1(memories, path)
        said = {row.id for row in report.warnings}
        rows = [*manifest["clean"], *(row["id"] for row in manifest["awkward"])]
        found = {one: await memories.get(one) for one in rows}
        chains = {topic: await memories.history(topic=topic) for topic in manifest["chains"]}
        links = await links_of(memories, rows)
        checkpoint = await memories.latest_checkpoint()
        assert await memories.search("why did we leave JWT?")

    counts = {one.table: one for one in report.tables}
    assert manifest["counts"]["decisions"] == len(found) == counts["decisions"].migrated
    for table in ("decisions", "decision_edges", "checkpoints", "sessions", "error_patterns"):
        assert manifest["counts"][table] == counts[table].rows == counts[table].migrated + counts[table].skipped
    assert manifest["counts"]["embeddings"] == counts["vss_memories"].skipped
    assert said.issuperset(f"session_2025-{day}" for day in ("06-02-0100", "11-22-1130"))
    for topic, ids in manifest["chains"].items():
        chain = [one.id for one in chains[topic].memories if one.id in manifest["clean"]]
        assert ids == chain[::-1]
        ends = {(link.to_id, link.from_id) for link in links.values() if link.link_type is LinkType.EVOLUTION}
        assert ends.issuperset(itertools.pairwise(ids))
    outcomes = Counter(memory.metadata.outcome or "NULL" for memory in found.values())
    assert manifest["counts"]["outcomes"] == {str(outcome): count for outcome, count in outcomes.items()}
    assert 11 == checkpoint.metadata.extra["v1_0"]["id"]
    quiet = {"confidence_edges", "huge_text", "duplicate_text", "fork", "edge_only_supersedes", "no_embedding"}
    quiet |= {"column_only_supersedes", "cross_topic_supersedes", "needs_validation", "extra_column_value"}
    quiet |= {"stale_embedding", "id_collides_with_checkpoint", "double_encoded_trust_context", "topic_case"}
    assert {row["id"] for row in manifest["awkward"] if row["kind"] not in quiet} - said == {
        # The chain of this row leads into a cycle. The row is not part of the cycle, so it is not reported.
        "decision_cycle_xyz_1763440800000_h44r"
    }
    assert manifest["counts"]["edges_by_relationship"]["supersedes"] <= report.links["supersedes"]


async def test_migrate_reports_no_warnings_for_a_file_of_v1_0(tmp_path):
    """A file written by v1.0's own handlers is migrated without warnings."""
    path = sample("v1_0_real_writes.db", tmp_path)
    async with Open(now=1_800_000_000.0) as memories:
        report = await migrate_v1(memories, path)
        checkpoint = await memories.latest_checkpoint()
        chain = await memories.history(topic="auth_strategy")

    assert () == report.warnings
    assert ["v1_0_real_writes.db"] == [one.name for one in tmp_path.iterdir()]
    assert checkpoint.content.startswith("작업 중단")
    assert [
        "Use Redis-backed sessions instead of JWT",
        "Use JWT with refresh tokens",
        "Use server-side session cookies",
    ] == [one.content for one in chain.memories]


async def test_migrate_adds_at_most_8_links_per_memory(old, tmp_path):
    """
    At most 8 marked links are added to a memory.

    They age from the migration and duplicate no explicit link.
    """
    async with Open() as memories:
        report = await migrate_v1(memories, old)
        ids = [one.id for one in await memories.list(limit=1000)]
        links = await links_of(memories, ids)

    added = [link for link in links.values() if link.metadata.extra.get(BACKFILLED_KEY)]
    said = [link for link in links.values() if not link.metadata.extra.get(BACKFILLED_KEY)]
    ends = Counter(end for link in added for end in (link.from_id, link.to_id))
    assert 8 >= max(ends.values()) == report.backfilled_most
    assert len(added) / len(ids) == pytest.approx(report.backfilled_average)
    assert {datetime.fromtimestamp(NOW, UTC)} == {link.created_at for link in added}
    assert {LinkType.ASSOCIATION: {0.4}, LinkType.TEMPORAL: {0.3}} == {
        kind: {link.confidence for link in added if link.link_type is kind} for kind in {o.link_type for o in added}
    }
    assert {frozenset((link.from_id, link.to_id)) for link in added}.isdisjoint(
        frozenset((link.from_id, link.to_id)) for link in said
    )
    assert report.links == Counter(link.metadata.original_relationship for link in said)
    assert {report.migration} == {link.metadata.extra[MIGRATION_MARK_KEY] for link in links.values()}


async def test_migrate_chains_decisions_of_a_topic(tmp_path):
    """Unrelated decisions of one topic are chained; a fork stays a fork."""
    path = tmp_path / "old.db"
    with OldStore.made(path) as store:
        for number, name in enumerate(("loose", "loose", "loose", "fork", "fork", "fork", "", "")):
            store.decision(name, id=f"{number}", created_at=START + number * 10**9)
        store.edge("2", "0")
        store.edge("4", "3")
        store.edge("5", "3")
    async with Open(linking="off") as memories:
        report = await migrate_v1(memories, path)
        links = await links_of(memories, [str(number) for number in range(8)])

    assert {("2", "0", 1.0), ("1", "0", 0.6), ("2", "1", 0.6), ("4", "3", 1.0), ("5", "3", 1.0)} == {
        (link.from_id, link.to_id, link.confidence) for link in links.values()
    }
    assert {"evolution": 2} == report.backfilled


async def test_migrate_adds_only_topic_links_when_automatic_links_are_off(old):
    """If the host disables automatic links, only the links within topics are added."""
    async with Open(linking="off") as memories:
        report = await migrate_v1(memories, old)

    assert not {"association", "temporal"} & set(report.backfilled)


async def test_search_ranks_decisions_superseded_in_v1_0_behind(tmp_path):
    """
    Decisions superseded in v1.0 rank behind.

    A search as of an earlier time ignores later supersessions.
    """
    path = tmp_path / "old.db"
    with OldStore.made(path) as store:
        store.decision("auth", id="jwt", decision="Use JWT tokens", created_at=START)
        store.decision("auth", id="redis", decision="Use Redis sessions", supersedes="jwt", created_at=START + 10**9)
    async with Open() as memories:
        await migrate_v1(memories, path)
        now = {hit.memory.id: hit for hit in await memories.search("JWT tokens")}
        then = await memories.search("JWT tokens", as_of=datetime.fromtimestamp(START / 1000 + 5, UTC))

    assert "redis" == now["jwt"].superseded_by
    assert [("jwt", None)] == [(hit.memory.id, hit.superseded_by) for hit in then]


async def test_search_finds_the_reason_of_a_failed_decision(tmp_path):
    """The reason of a failure is found, and is linked to the decision."""
    path = tmp_path / "old.db"
    with OldStore.made(path) as store:
        store.decision("auth", id="jwt", outcome="FAILED", failure_reason="Revoked tokens stayed valid for an hour.")
    async with Open() as memories:
        await migrate_v1(memories, path)
        (best, *_) = await memories.search("revoked tokens stayed valid", type="context")
        (link,) = await memories.links(best.memory.id)

    assert ("jwt", "outcome_of") == (link.to_id, link.metadata.original_relationship)


async def test_migrate_changes_nothing_when_repeated(old, tmp_path):
    """A repeated migration changes nothing, and reports the same about the old file."""
    async with Open() as memories:
        first = await migrate_v1(memories, old)
        before = await exported(memories, tmp_path)
        memories._shared.clock = lambda: NOW + 10**6
        told = []
        again = await migrate_v1(memories, old, progress=lambda done, total: told.append((done, total)))

        assert before == await exported(memories, tmp_path)

    assert (0, first.added) == (again.added, again.existing)
    assert told
    for name in (
        "at",
        "migration",
        "tables",
        "links",
        "backfilled",
        "backfilled_average",
        "backfilled_most",
        "warnings",
    ):
        assert getattr(first, name) == getattr(again, name)


async def test_migrate_dry_run_reports_without_writing(old, tmp_path):
    """A dry run reports what a migration would do, and writes nothing."""
    async with Open() as memories:
        before = await exported(memories, tmp_path)
        would = await migrate_v1(memories, old, dry_run=True)

        assert before == await exported(memories, tmp_path)

        done = await migrate_v1(memories, old)

    assert would.dry_run
    for name in ("added", "existing", "tables", "memories", "links", "warnings"):
        assert getattr(done, name) == getattr(would, name)


async def test_migrate_progress_reaches_the_total(old):
    """The reported progress never decreases, and ends at the total."""
    told = []
    async with Open() as memories:
        report = await migrate_v1(memories, old, progress=lambda done, total: told.append((done, total)))

    assert (2 * report.added, 2 * report.added) == told[-1]
    assert told == sorted(told)
    assert 1 == len({total for _, total in told})


class Interrupted(BaseException):
    """Raised to simulate the end of the process."""


async def test_migrate_continues_after_an_interruption_at_any_transaction(small_chunks, tmp_path):
    """A migration interrupted at any transaction and repeated has the same result."""
    path = tmp_path / "old.db"
    with OldStore.made(path) as store:
        store.history(14)
    async with Open() as memories:
        await migrate_v1(memories, path)
        expected = await exported(memories, tmp_path)
    transactions = 0
    for end in range(100):
        async with Open(tmp_path / f"{end}") as memories:
            written = memories._shared.engine.write
            left = end

            async def write(plan, written=written):
                nonlocal left
                if left == 0:
                    raise Interrupted
                left -= 1
                return await written(plan)

            memories._shared.engine.write = write
            try:
                await migrate_v1(memories, path)
            except Interrupted:
                transactions += 1
            else:
                break
            finally:
                del memories._shared.engine.write
        # The first transaction stores the start time, so a migration that continues later gives the same result.
        async with Open(tmp_path / f"{end}", now=NOW + (5000 if end else 0)) as memories:
            await migrate_v1(memories, path)

            assert expected == await exported(memories, tmp_path)
    assert 7 <= transactions


KILLED = """
    import asyncio, sys
    from mama_structs.memory.embedding.hash_embedder import HashEmbedder
    from mama_structs.importers import migrate_v1
    from mama_structs.importers.mama_v1 import migration
    from mama_structs.session.session import Session

    migration.BATCH_SIZE = 4

    async def main():
        async with Session.open(sys.argv[1], embedder=HashEmbedder(dimensions=64)) as session:
            session.memories._shared.clock = lambda: 1_764_000_000.0
            await migrate_v1(session.memories, sys.argv[2], progress=lambda done, total: print(done, flush=True))

    asyncio.run(main())
"""


async def test_migrate_continues_after_a_kill(small_chunks, tmp_path):
    """A migration killed at several moments and repeated has the same result."""
    old = tmp_path / "old.db"
    with OldStore.made(old) as store:
        store.history(14)
    async with Open() as memories:
        await migrate_v1(memories, old)
        expected = await exported(memories, tmp_path)
    for after in (2, 5):
        process = subprocess.Popen(  # noqa: ASYNC220 - it is killed in a moment
            [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "store"), str(old)],
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        with process:
            for _ in range(after):
                process.stdout.readline()
            process.kill()
    async with Open(tmp_path / "store") as memories:
        await migrate_v1(memories, old)

        assert expected == await exported(memories, tmp_path)
        assert not [one for one in (await admin.check(memories)).issues if one.severity == "error"]


async def test_migrate_continues_after_an_embedder_failure(old, small_chunks):
    """If the embedder fails half-way, the written memories stay, and a repetition continues."""
    calls = 0
    hashed = HashEmbedder(dimensions=64)

    def embed(texts):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("gone")
        return hashed.embed(texts)

    async with Open(embedder=as_embedder(embed, name="mine", dimensions=64)) as memories:
        await memories._shared.embedding.calibration()
        calls = 0
        with pytest.raises(EmbeddingFailed):
            await migrate_v1(memories, old)
        report = await migrate_v1(memories, old)

    assert 0 < report.existing
    assert report.existing + report.added == sum(report.memories.values())


async def test_rollback_restores_the_exact_store(old, tmp_path):
    """A rollback restores the store's export exactly, and a later migration is the same."""
    async with Open() as memories:
        first = await memories.save_decision("Use sessions", topic="auth", reasoning="They can be revoked.")
        await memories.save_decision("Use Redis sessions", topic="auth", reasoning="Two nodes.", supersedes=first.id)
        before = await exported(memories, tmp_path)
        done = await migrate_v1(memories, old)
        after = await exported(memories, tmp_path)
        report = await rollback_v1(memories)

        assert before == await exported(memories, tmp_path)

        nothing = await rollback_v1(memories)
        await migrate_v1(memories, old)

        assert after == await exported(memories, tmp_path)

    assert (done.added, (), ()) == (report.memories, report.changed, report.linked)
    assert sum(done.links.values()) + sum(done.backfilled.values()) == report.links
    assert (0, None) == (nothing.memories, nothing.migration)
    assert "nothing to roll back" in str(nothing)


async def test_rollback_continues_after_an_interruption(old, tmp_path):
    """An interrupted rollback continues when repeated, and a later migration is the same."""
    async with Open() as memories:
        before = await exported(memories, tmp_path)
        await migrate_v1(memories, old)
        after = await exported(memories, tmp_path)
        for goes_on in (rollback_v1, lambda memories: migrate_v1(memories, old)):

            def stop(done, total):
                raise Interrupted

            with pytest.raises(Interrupted):
                await rollback_v1(memories, progress=stop)
            await goes_on(memories)

            assert (before if goes_on is rollback_v1 else after) == await exported(memories, tmp_path)

            await migrate_v1(memories, old)


async def test_rollback_raises_when_later_changes_would_be_lost(old, tmp_path):
    """Memories that were changed or linked since are deleted only with force=True."""
    async with Open() as memories:
        await migrate_v1(memories, old)
        decision = (await memories.list(limit=1, type="decision"))[0]
        await memories.set_outcome(decision.id, "SUCCESS")
        later = await memories.save_decision("Go on", topic="late", reasoning="It works.", implements=[decision.id])
        before = await exported(memories, tmp_path)

        with pytest.raises(
            MigrationError, match=r"1 migrated memories were changed since .*, and .* links with"
        ) as caught:
            await rollback_v1(memories)

        assert before == await exported(memories, tmp_path)
        assert "It works" not in str(caught.value)

        report = await rollback_v1(memories, force=True)

        assert [later.id] == [one.id for one in await memories.list()]
        assert [] == await memories.links(later.id)

    assert ((decision.id,), (later.id,)) == (report.changed, report.linked)


async def test_migrate_keeps_memories_that_were_changed_since(old, tmp_path):
    """A memory that was changed after its migration is unchanged by a repeated migration."""
    async with Open() as memories:
        await migrate_v1(memories, old)
        decision = (await memories.list(limit=1, type="decision"))[0]
        changed = await memories.set_outcome(decision.id, "PARTIAL")
        report = await migrate_v1(memories, old)

        assert changed == await memories.get(decision.id)

    assert [decision.id] == [odd.id for odd in report.warnings if odd.kind == "changed_since"]


async def test_migrate_and_rollback_a_grown_file_separately(old, tmp_path):
    """A second migration adds the new rows of a grown file, and can be rolled back separately."""
    async with Open() as memories:
        await migrate_v1(memories, old)
        before = await exported(memories, tmp_path)
        with OldStore.made(tmp_path / "other.db") as store:
            store.history(COUNT)
            last = store.database.execute("SELECT id, topic FROM decisions ORDER BY rowid DESC").fetchone()
            at = START + 10**11
            store.decision(last[1], id="new", supersedes=last[0], created_at=at)
            store.database.execute("UPDATE decisions SET limitation = 'late' WHERE rowid = 1")
        memories._shared.clock = lambda: NOW + 1000
        report = await migrate_v1(memories, tmp_path / "other.db")
        (link, *_) = [one for one in await memories.links("new") if one.link_type is LinkType.EVOLUTION]
        undone = await rollback_v1(memories)

        assert before == await exported(memories, tmp_path)

        last_one = await rollback_v1(memories)

        assert 0 == await memories.count()

    assert 2 == report.added
    assert "row_changed" in [odd.kind for odd in report.warnings]
    assert last[0] == link.to_id
    assert (1, 0) == (undone.migrations_left, last_one.migrations_left)


async def test_migrate_keeps_unrelated_memories_with_a_taken_id(old, tmp_path):
    """An existing memory with an old id stays, and the row and its links are reported."""
    async with Open() as memories:
        await migrate_v1(memories, old)
        taken = (await memories.list(limit=1, type="decision"))[0].id
        await rollback_v1(memories)
        lines = (await exported(memories, tmp_path)).decode()

        assert '"memory"' not in lines

        def put(writer):
            return writer.put(
                attrs.evolve(plain, id=taken, namespace="default"), vectors=writer.vectors(writer.find(plain.id))
            )

        plain = await memories.save_context("something else")
        await memories._shared.write(put)
        report = await migrate_v1(memories, old)
        kept = await memories.get(taken)
        again = await migrate_v1(memories, old)

    counts = {one.table: one for one in report.tables}
    assert "something else" == kept.content
    assert taken in [odd.id for odd in report.warnings if odd.kind == "id_taken"]
    assert 1 == counts["decisions"].skipped
    assert report.tables == again.tables


async def test_migrate_accepts_a_database_without_rows(tmp_path):
    """A database without rows is migrated, and there is nothing to roll back."""
    with OldStore.made(tmp_path / "old.db"):
        pass
    async with Open() as memories:
        report = await migrate_v1(memories, tmp_path / "old.db")

        assert (await rollback_v1(memories)).migration is None

    assert (0, 0, 0.0) == (report.added, report.existing, report.backfilled_average)
    assert "0 memories added" in str(report)


async def test_migration_report_warns_of_every_malformed_row_without_content(tmp_path):
    """
    The JSON report contains every warning, the text some of them.

    Neither contains a memory's content.
    """
    with OldStore.made(tmp_path / "old.db") as store:
        for number in range(60):
            store.decision("a", id=f"row {number}\x1b[2J", decision="the secret plan", confidence=None)
    async with Open() as memories:
        report = await migrate_v1(memories, tmp_path / "old.db")

    text, data = str(report), report.to_json()
    kinds = [one["kind"] for one in report.to_dict()["warnings"]]
    # An id with a control character is invalid, so each memory gets a new id.
    assert ["new_id"] * 60 + ["no_confidence"] * 60 == sorted(kinds)
    assert "warnings: 120" in text
    assert "80 more" in text
    assert "\x1b" not in text
    assert "secret" not in text + data


async def test_reports_and_errors_contain_no_control_characters(tmp_path):
    """Reports and a rollback's error contain no control characters of the old file."""
    path = tmp_path / "old\x1b[2J.db"
    with OldStore.made(path) as store:
        for number in range(2):
            store.decision("a", id=f"row {number}\x1b[2J\x9b")
        store.database.execute("PRAGMA ignore_check_constraints = ON")
        store.edge("row 0\x1b[2J\x9b", "row 1\x1b[2J\x9b", "x\x1b]0;pwned\x07")
        store.database.execute('CREATE TABLE "evil\x1b[2J" (a)')
        store.database.execute('INSERT INTO "evil\x1b[2J" VALUES (1)')
    async with Open() as memories:
        report = await migrate_v1(memories, path)
        for one in await memories.list():
            await memories.set_outcome(one.id, "SUCCESS")
        with pytest.raises(MigrationError, match="changed since") as caught:
            await rollback_v1(memories)
        undone = await rollback_v1(memories, force=True)

    for text in (str(report), str(undone), str(caught.value)):
        assert all(line.isprintable() for line in text.split("\n"))
    assert "evil" in str(report)
    assert "pwned" in str(report)
    assert "row 0" in str(report)


@pytest.mark.parametrize("arguments", [{"dry_run": "yes"}, {"progress": 3}, {"source": 3}])
async def test_migrate_and_rollback_reject_wrong_arguments(old, arguments):
    """Wrong arguments raise InvalidArgument before anything is read."""
    async with Open() as memories:
        with pytest.raises(InvalidArgument):
            await migrate_v1(memories, **({"source": old} | arguments))


async def test_migrate_writes_nothing_for_a_bad_file(tmp_path):
    """A rejected file leaves the store unchanged."""
    (tmp_path / "bad.db").write_bytes(b"hello")
    async with Open() as memories:
        before = await memories.stats()
        with pytest.raises(MigrationError):
            await migrate_v1(memories, tmp_path / "bad.db")

        assert before == await memories.stats()


async def test_store_answers_other_calls_during_a_migration(old):
    """Other calls are answered while a migration runs."""
    async with Open() as memories:
        running = asyncio.create_task(migrate_v1(memories, old))
        answered = 0
        while not running.done():
            await memories.count()
            answered += 1
        await running

    assert 1 < answered
