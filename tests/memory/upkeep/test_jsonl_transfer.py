"""JSONL exports are complete, and imports are validated before anything is written."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import OpenedDirectory, plain_link, plain_memory

from mama_structs import admin
from mama_structs.errors import InvalidArgument, StoreError, StoreFull
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import fingerprint_of
from mama_structs.memory.engines.local.plans import JournalWriter
from mama_structs.memory.graph.results import JsonlImport
from mama_structs.memory.save.save_plan import TRUST_LINK_TYPES, lower_trust
from mama_structs.memory.types.engine import EmbedderRecord
from mama_structs.memory.types.model import (
    METADATA_TYPES,
    ORIGINS,
    CheckpointMetadata,
    ContextMetadata,
    DecisionMetadata,
    InsightMetadata,
    Link,
    LinkMetadata,
    LinkType,
    Memory,
    MemoryType,
    Outcome,
    OutcomeChange,
    PreviousText,
    PreviousValue,
    RecordMetadata,
    evidence_digests,
    least_trusted,
    text_digest,
)
from mama_structs.memory.types.record import record_memory_id
from mama_structs.memory.upkeep import jsonl_transfer as transfer
from mama_structs.memory.upkeep.jsonl_transfer import export_jsonl, import_jsonl
from mama_structs.session.session import Session
from mama_structs.storage import files
from mama_structs.testing.plain_engine import PlainEngine

DIMENSIONS = 4
RECORD = EmbedderRecord("four", "four-1", DIMENSIONS)


@attrs.define
class Backend(PlainEngine):
    """A plain engine that records its calls, and can fail at a given write."""

    embedder: EmbedderRecord = attrs.field(default=RECORD, kw_only=True)
    writes: int = attrs.field(default=0, kw_only=True)
    fail_at: int = attrs.field(default=0, kw_only=True)
    scanned: list = attrs.field(factory=list, kw_only=True)

    async def read(self, plan):
        await asyncio.sleep(0)
        return plan(self.memories)

    async def write(self, plan):
        self.writes += 1
        if self.writes == self.fail_at:
            raise StoreFull("no room")
        return await PlainEngine.write(self, plan)

    @property
    def state(self):
        """Return all memories, vectors and links in comparable form."""
        found = self.memories.scan()
        return [
            (
                one.memory,
                np.asarray(one.vectors).tobytes(),
                sorted(one.links, key=lambda link: link.id),
            )
            for one in found
        ]


def unit(seed=0, pieces=1):
    """Return normalized vectors."""
    vectors = np.random.default_rng(seed).standard_normal((pieces, DIMENSIONS)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def link_between(one, other):
    """Return the id of the link that `filled` creates between two memories."""
    return f"link_{one:012x}{other:012x}"


def filled(count=5, *, namespace="default"):
    """
    Return an engine with a chain of memories, each linked to the previous one.

    The first memory is linked to the last one.
    """
    backend = Backend(namespace)
    for number in range(count):
        memory = attrs.evolve(plain_memory(f"m{number}", f"text {number}", at=number), namespace=namespace)
        backend.memories.put(memory, vectors=unit(number, 1 + number % 2))
        if number:
            link_id = link_between(number, number - 1)
            backend.memories.put_link(plain_link(f"m{number}", f"m{number - 1}", at=number, link_id=link_id))
    if count > 2:
        backend.memories.put_link(plain_link("m0", f"m{count - 1}", at=99, link_id=link_between(0, count - 1)))
    return backend


@pytest.fixture
async def embedding():
    service = EmbeddingService(HashEmbedder(dimensions=64))
    yield service
    await service.close()


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


async def test_export_is_complete_when_plan_is_repeated(tmp_path):
    """An engine may run a plan twice. No memory or text may be skipped then."""

    class Again(Backend):
        async def read(self, plan):
            plan(self.memories)
            return await super().read(plan)

    text = "kept " * 9
    first = filled()
    evidence = [f"ref:a@1#sha256:{text_digest(text)}"]
    assert evidence_digests(evidence)
    first.memories.put(plain_memory("kept", evidence=evidence), vectors=unit(), contents={text_digest(text): text})
    again = Again()
    again.memories = first.memories
    for backend, name in ((first, "once"), (again, "again")):
        await export_jsonl(backend, tmp_path / name, None)

    assert (tmp_path / "once").read_bytes() == (tmp_path / "again").read_bytes()


def memory_lines(path):
    """Return all lines except the header, which contains the embedder."""
    return lines_of(path)[1:]


def changed(path, number, change):
    """Apply *change* to the JSON of one line of a file. Line numbers begin at 1."""
    lines = lines_of(path)
    line = json.loads(lines[number - 1])
    change(line)
    lines[number - 1] = json.dumps(line).encode() + b"\n"
    path.write_bytes(b"".join(lines))


# Round trips

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = texts.filter(bool)
times = st.datetimes(datetime(1970, 1, 1), datetime(8999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
extras = st.dictionaries(texts, values, max_size=2)
creators = st.sampled_from(["user", "llm", "system"])
shares = st.floats(0, 1)
several = st.lists(texts, max_size=2).map(tuple)
outcomes = st.sampled_from(Outcome)
metadata_of = {
    MemoryType.DECISION: st.builds(
        DecisionMetadata,
        reasoning=texts,
        confidence=shares,
        outcome=st.none() | outcomes,
        outcome_reason=st.none() | texts,
        outcome_at=st.none() | times,
        history=st.lists(st.builds(OutcomeChange, outcome=outcomes, reason=texts, at=times), max_size=2).map(tuple),
        created_by=creators,
        extra=extras,
    ),
    MemoryType.CHECKPOINT: st.builds(
        CheckpointMetadata, open_files=several, next_steps=several, created_by=creators, extra=extras
    ),
    MemoryType.INSIGHT: st.builds(
        InsightMetadata, category=st.none() | texts, tags=several, source=texts, created_by=creators, extra=extras
    ),
    MemoryType.CONTEXT: st.builds(ContextMetadata, source=st.none() | texts, created_by=creators, extra=extras),
    MemoryType.RECORD: st.builds(
        RecordMetadata,
        labels=st.lists(names, max_size=2).map(tuple),
        key=names,
        value=values,
        version=st.integers(1, 99),
        history=st.lists(
            st.builds(PreviousValue, value=values, version=st.integers(1, 99), at=times, text=st.none() | texts),
            max_size=2,
        ).map(tuple),
        created_by=creators,
        extra=extras,
    ),
}


formers = st.builds(PreviousText, content=texts, reasoning=texts, until=times, reason=st.none() | texts)


@st.composite
def memories(draw, number):
    kind = draw(st.sampled_from(MemoryType))
    metadata = draw(metadata_of[kind])
    memory_id = f"{kind.value}_기억_{1_790_000_000_000 + number}_0a1b2c3d"
    if isinstance(metadata, RecordMetadata):
        metadata = attrs.evolve(metadata, key=f"{metadata.key}{number}")
        memory_id = record_memory_id((metadata.labels, metadata.key))
    origin = draw(st.sampled_from(ORIGINS))
    return Memory(
        id=memory_id,
        type=kind,
        content=draw(texts),
        topic=draw(st.none() | texts),
        metadata=metadata,
        mentions=draw(several),
        evidence=draw(several),
        created_at=draw(times),
        updated_at=draw(times),
        origin=origin,
        trust=least_trusted([origin, draw(st.sampled_from(ORIGINS))]),
        valid_until=draw(st.none() | times),
        repeated_at=tuple(draw(st.lists(times, max_size=3))),
        previous_texts=tuple(draw(st.lists(formers, max_size=2))),
    )


@st.composite
def stores(draw):
    """Draw an engine with memories of all types, and with links in both directions."""
    backend = Backend()
    made = [draw(memories(number)) for number in range(draw(st.integers(0, 6)))]
    for memory in made:
        backend.memories.put(memory, vectors=unit(draw(st.integers(0, 99)), draw(st.integers(1, 3))))
    for number in range(draw(st.integers(0, 8)) if len(made) > 1 else 0):
        one, other = draw(st.lists(st.sampled_from(made), min_size=2, max_size=2, unique_by=lambda memory: memory.id))
        backend.memories.put_link(
            Link(
                id=f"link_{number:024x}",
                from_id=one.id,
                to_id=other.id,
                link_type=draw(st.sampled_from(LinkType)),
                confidence=draw(shares),
                created_by=draw(creators),
                metadata=LinkMetadata(
                    original_relationship=draw(texts),
                    similarity=draw(st.none() | shares),
                    reason=draw(st.none() | texts),
                    tags=draw(several),
                    extra=draw(extras),
                ),
                created_at=draw(times),
            )
        )
    for one in backend.memories.scan():
        for link in one.links:
            if link.link_type in TRUST_LINK_TYPES:
                (to,) = backend.memories.get(backend.memories.find_many([link.to_id]))
                lower_trust(backend.memories, backend.memories.find(link.from_id), to.trust)
    return backend


@given(backend=stores(), chunk=st.integers(1, 4))
@settings(max_examples=40)  # each example writes two files
async def test_export_and_import_restore_memories(backend, chunk):
    """Export, import into an empty store and export again give equal lines."""
    other = Backend()
    service = EmbeddingService(HashEmbedder(dimensions=64))
    before, transfer.CHUNK_LINES = transfer.CHUNK_LINES, chunk
    try:
        with tempfile.TemporaryDirectory() as directory:
            first, second = Path(directory) / "1", Path(directory) / "2"
            count = await export_jsonl(backend, first, None)
            done = await import_jsonl(other, service, first, None)
            await export_jsonl(other, second, None)
            again = await import_jsonl(other, service, second, None)

            assert memory_lines(first) == memory_lines(second)
    finally:
        transfer.CHUNK_LINES = before
        await service.close()

    assert len(backend.memories.scan()) == count
    assert JsonlImport(added=count) == done
    assert JsonlImport(existing=count) == again
    assert backend.state == other.state


async def test_export_and_import_restore_local_store(tmp_path):
    """The imported store is equal, and passes check()."""
    embedder = HashEmbedder()
    async with Session.open(tmp_path / "a", embedder=embedder) as session:
        first = await session.memories.save_decision("shield first", topic="defence", reasoning="raids doubled")
        second = await session.memories.supersede(first.id, "shield and reactor", reasoning="the raids went on")
        await session.memories.set_outcome(second.id, "FAILED", reason="no ore left")
        await session.memories.save_many(
            [{"type": "insight", "content": f"ore runs out in sector {number}"} for number in range(30)]
        )
        count = await admin.export_jsonl(session.memories, tmp_path / "x")
    async with Session.open(tmp_path / "b", embedder=embedder, namespace="other") as session:
        done = await admin.import_jsonl(session.memories, tmp_path / "x")
        report = await admin.check(session)
        chain = await session.memories.history(first.id)
        found = (await session.memories.search("why did it fail: no ore left"))[0].memory
        await admin.export_jsonl(session.memories, tmp_path / "y")

    assert JsonlImport(added=count) == done
    assert report.ok
    assert [second.id, first.id] == [memory.id for memory in chain.memories]
    assert "other" == found.namespace
    own = [line.replace(b'"namespace":"other"', b'"namespace":"default"') for line in memory_lines(tmp_path / "y")]
    assert memory_lines(tmp_path / "x") == own


async def test_export_of_empty_store_has_header_and_end(tmp_path, embedding):
    assert 0 == await export_jsonl(Backend(), tmp_path / "x", None)
    assert JsonlImport() == await import_jsonl(Backend(), embedding, tmp_path / "x", None)
    assert {"end": True, "memories": 0} == json.loads(lines_of(tmp_path / "x")[1])


async def test_exports_of_equal_states_are_equal(tmp_path):
    """An export contains no time of export, so files can be compared."""
    await export_jsonl(filled(3), tmp_path / "x", None)
    await export_jsonl(filled(3), tmp_path / "y", None)

    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


async def test_import_reads_version_1(tmp_path, embedding):
    """A header of version 1 contains the time of export."""
    await export_jsonl(filled(3), tmp_path / "x", None)
    first, *rest = lines_of(tmp_path / "x")
    header = {**json.loads(first), "version": 1, "exported_at": "2026-11-21T09:00:00Z"}
    (tmp_path / "y").write_bytes(b"".join([json.dumps(header).encode() + b"\n", *rest]))

    assert JsonlImport(added=3) == await import_jsonl(Backend(), embedding, tmp_path / "y", None)


async def test_export_reads_pages_and_reports_progress(tmp_path, monkeypatch):
    """Only one page is in memory at a time."""
    backend = filled(7)
    limits = []
    scan = backend.memories.scan

    def counted(**options):
        limits.append(options["limit"])
        return scan(**options)

    monkeypatch.setattr(type(backend.memories), "scan", lambda _self, **options: counted(**options))
    monkeypatch.setattr(transfer, "PAGE_MEMORIES", 3)
    told = []

    assert 7 == await export_jsonl(backend, tmp_path / "x", lambda *how_far: told.append(how_far))
    assert [3, 3, 1] == limits
    assert [(3, 7), (6, 7), (7, 7)] == told


async def test_export_raises_when_embedder_changes(tmp_path, monkeypatch):
    """All vectors in a file are of the embedder in its header."""
    monkeypatch.setattr(transfer, "PAGE_MEMORIES", 2)
    backend = filled()

    def change(_done, _total):
        backend.embedder = EmbedderRecord("other", "1", DIMENSIONS)

    with pytest.raises(StoreError, match="embedder was changed"):
        await export_jsonl(backend, tmp_path / "x", change)
    assert [] == names_in(tmp_path)


# Importing


async def test_repeated_import_changes_nothing(tmp_path, embedding):
    """All memories and links are recognised as existing."""
    other = Backend()
    await export_jsonl(filled(), tmp_path / "x", None)
    await import_jsonl(other, embedding, tmp_path / "x", None)
    state, change = other.state, other.memories.change

    assert JsonlImport(existing=5) == await import_jsonl(other, embedding, tmp_path / "x", None)
    assert (state, change) == (other.state, other.memories.change)


@pytest.mark.parametrize("fail_at", range(1, 6))
async def test_interrupted_import_can_be_repeated(fail_at, tmp_path, embedding, monkeypatch):
    """After a failure at any point, a second import gives the result of a single one."""
    monkeypatch.setattr(transfer, "CHUNK_LINES", 1)
    whole = filled()
    await export_jsonl(whole, tmp_path / "x", None)
    other = Backend(fail_at=fail_at)

    with pytest.raises(StoreFull):
        await import_jsonl(other, embedding, tmp_path / "x", None)
    await import_jsonl(other, embedding, tmp_path / "x", None)

    assert whole.state == other.state


async def test_cancelled_import_can_be_repeated(tmp_path, embedding, monkeypatch):
    """After a cancellation at any point, a second import gives the result of a single one."""
    monkeypatch.setattr(transfer, "CHUNK_LINES", 2)
    whole = filled()
    await export_jsonl(whole, tmp_path / "x", None)
    other = Backend()
    cancelled = 0
    for wanted in range(1, 4):

        def cancel(done, _total, wanted=wanted):
            if done >= wanted:
                asyncio.current_task().cancel()

        with pytest.raises(asyncio.CancelledError):
            await import_jsonl(other, embedding, tmp_path / "x", cancel)
        cancelled += 1
    await import_jsonl(other, embedding, tmp_path / "x", None)

    assert 3 == cancelled
    assert whole.state == other.state


async def test_import_counts_dropped_links(tmp_path, embedding):
    """A link to a memory that exists nowhere is dropped and counted, in every import."""
    await export_jsonl(filled(), tmp_path / "x", None)
    lines = lines_of(tmp_path / "x")
    end = json.dumps({"end": True, "memories": 4}).encode() + b"\n"
    (tmp_path / "x").write_bytes(b"".join([lines[0], *lines[2:-1], end]))
    alone, having = Backend(), Backend()
    having.memories.put(plain_memory("m0", "text 0", at=0), vectors=unit(0))

    assert JsonlImport(added=4, dropped_links=1) == await import_jsonl(alone, embedding, tmp_path / "x", None)
    assert JsonlImport(existing=4, dropped_links=1) == await import_jsonl(alone, embedding, tmp_path / "x", None)
    assert JsonlImport(added=4) == await import_jsonl(having, embedding, tmp_path / "x", None)
    assert having.memories.find_links([link_between(1, 0)]) != [None]


async def test_import_uses_namespace_of_store(tmp_path, embedding):
    other = Backend("mine")
    await export_jsonl(filled(namespace="yours"), tmp_path / "x", None)
    await import_jsonl(other, embedding, tmp_path / "x", None)

    assert {"mine"} == {one.memory.namespace for one in other.memories.scan()}


async def test_import_embeds_new_memories_when_embedder_differs(tmp_path, embedding):
    """Existing memories are not embedded again."""
    embedder = embedding.embedder
    record = EmbedderRecord(embedder.name, fingerprint_of(embedder), embedder.dimensions)
    other = Backend(embedder=record)
    await export_jsonl(filled(), tmp_path / "x", None)

    assert JsonlImport(added=5, embedded=5) == await import_jsonl(other, embedding, tmp_path / "x", None)
    assert 5 == embedding.stats.texts
    assert {(1, 64)} == {one.vectors.shape for one in other.memories.scan()}
    assert JsonlImport(existing=5) == await import_jsonl(other, embedding, tmp_path / "x", None)
    assert 5 == embedding.stats.texts


async def test_import_reports_progress(tmp_path, embedding, monkeypatch):
    """Progress is the number of memories and their total number in the file."""
    monkeypatch.setattr(transfer, "CHUNK_LINES", 2)
    await export_jsonl(filled(), tmp_path / "x", None)
    told = []
    await import_jsonl(Backend(), embedding, tmp_path / "x", lambda *how_far: told.append(how_far))

    assert [(0, 5), (2, 5), (4, 5), (5, 5)] == told


async def test_import_accepts_crlf(tmp_path, embedding):
    whole, other = filled(), Backend()
    await export_jsonl(whole, tmp_path / "x", None)
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes().replace(b"\n", b"\r\n"))
    await import_jsonl(other, embedding, tmp_path / "x", None)

    assert whole.state == other.state


async def test_import_normalises_vectors(tmp_path, embedding):
    """Vectors of length 1 are kept bit for bit."""
    whole, other = filled(), Backend()
    await export_jsonl(whole, tmp_path / "x", None)
    longer = base64.b64encode((7 * unit(2)).astype("<f4").tobytes()).decode()
    changed(tmp_path / "x", 4, lambda line: line.update(vectors=longer))
    await import_jsonl(other, embedding, tmp_path / "x", None)

    np.testing.assert_allclose(unit(2), other.memories.vectors(2), atol=1e-6)
    assert whole.memories.vectors(3).tobytes() == other.memories.vectors(3).tobytes()


# Rejected files

SECRET = "secret-content"


def encoded(*numbers):
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.pop("links"), "missing required field `links`"),
        (lambda line: line.update(more=SECRET), "unknown field"),
        (lambda line: line["memory"].update(more=SECRET), "unknown field"),
        (lambda line: line["memory"]["metadata"].update(more=SECRET), "`$.memory.metadata` has an unknown field"),
        (lambda line: line["links"][0].update(more=SECRET), "`$.links[0]` has an unknown field"),
        (lambda line: line["links"][0]["metadata"].update(more=SECRET), "`$.links[0].metadata` has an unknown field"),
        (lambda line: line["memory"].update(id=""), "`$.memory.id` must have 1 to 512 characters"),
        (lambda line: line["memory"].update(id="x" * 1000), "`$.memory.id` must have 1 to 512 characters"),
        (lambda line: line["memory"].update(id="u\u0308"), "NFC"),
        (lambda line: line["memory"].update(id="a\x00b"), "`$.memory.id` must have no control"),
        (lambda line: line["memory"].update(id="a\u202eb"), "`$.memory.id` must have no control"),
        (lambda line: line["memory"].update(id="a\u2028b"), "`$.memory.id` must have no control"),
        (lambda line: line["memory"].update(id=" a"), "`$.memory.id` must not begin or end with blanks"),
        (lambda line: line["memory"].update(id="fd:1"), "`$.memory.id` must not be a handle"),
        (
            lambda line: line["memory"].update(id="insight_x_1790000000000_0a1b2c3d"),
            "`$.memory.id` must begin with decision_",
        ),
        (
            lambda line: line["memory"].update(type="insight", metadata={}),
            "`$.memory.id` must have the form insight_",
        ),
        (lambda line: line["links"][0].update(to_id="a\nb"), "`$.links[0].to_id` must have no control"),
        (lambda line: line["links"][0].update(id="link_1"), "`$.links[0].id` must have the form link_"),
        (
            lambda line: line["memory"].update(id="m0") or line.update(links=[]),
            "it has the id of an earlier line, 'm0'",
        ),
        (lambda line: line["memory"].update(type=SECRET), "Invalid enum value"),
        (lambda line: line["memory"].update(content=7), "Expected `str`, got `int` - at `$.memory.content`"),
        (lambda line: line["memory"].update(content="\ud800"), "is no JSON"),
        (lambda line: line["memory"].update(namespace="x"), "must be that of the first line"),
        (
            lambda line: line["memory"].update(created_at="2026-01-01T00:00:00"),
            "`$.memory.created_at` has no time zone",
        ),
        (lambda line: line["memory"].update(updated_at="1960-01-01T00:00:00Z"), "between 1970 and 9000"),
        (lambda line: line["memory"].update(created_at=SECRET), "Invalid RFC3339"),
        (lambda line: line["memory"]["metadata"].update(confidence=1.5), "must be a number from 0 to 1"),
        (lambda line: line["memory"]["metadata"].update(outcome=SECRET), "`$.memory.metadata.outcome`"),
        (
            lambda line: line["memory"]["metadata"].update(outcome_at="2026-01-01T00:00:00"),
            "outcome_at` has no time zone",
        ),
        (
            lambda line: line["memory"]["metadata"].update(
                history=[{"outcome": "FAILED", "at": "2026-01-01T00:00:00"}]
            ),
            "history[0].at` has no time zone",
        ),
        (lambda line: line["memory"]["metadata"].update(extra=json.loads('{"a":' * 150 + "1" + "}" * 150)), "100 deep"),
        (lambda line: line["links"][0].update(confidence=-0.1), "`$.links[0].confidence`"),
        (lambda line: line["links"][0].update(from_id="m3"), "`$.links[0].from_id`"),
        (lambda line: line["links"][0].update(to_id="m2"), "`$.links[0].to_id` must be another"),
        (lambda line: line["links"][0].update(link_type=SECRET), "`$.links[0].link_type`"),
        (lambda line: line["links"][0].update(created_at="2026-01-01T00:00:00"), "`$.links[0].created_at`"),
        (lambda line: line["links"][0].update(id=link_between(1, 0)), "link with the id of an earlier line's"),
        (lambda line: line["links"].append(line["links"][0]), "two links of one id"),
        (lambda line: line.update(vectors="-" + SECRET), "is no base64"),
        (lambda line: line.update(vectors=encoded()), "vectors of 4 dimensions, got 0 bytes"),
        (lambda line: line.update(vectors=encoded(1, 0, 0)), "vectors of 4 dimensions, got 12 bytes"),
        (lambda line: line.update(vectors=encoded(1, 0, 0, np.nan)), "not finite"),
        (lambda line: line.update(vectors=encoded(0, 0, 0, 0)), "length 0"),
    ],
)
async def test_import_rejects_invalid_line(change, said, tmp_path, embedding):
    """The error names line and rule but no content, and nothing is imported."""
    other = Backend()
    await export_jsonl(filled(), tmp_path / "x", None)
    changed(tmp_path / "x", 4, change)

    with pytest.raises(InvalidArgument) as refused:
        await import_jsonl(other, embedding, tmp_path / "x", None)

    assert str(refused.value).startswith("line 4: ")
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)
    assert (0, []) == (other.writes, other.state)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\n", "no JSON"),
        (b"\xff\n", "no JSON"),
        (b'{"links":[],"vectors":"\xff"}\n', "UTF-8"),
        (b"[]\n", "Expected `object`"),
        (b"[" * 100_000 + b"\n", "Expected `object`"),
        (b'{"memory":{"metadata":' + b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"end":true,"memories":2}\n', "more follows"),
        (b'{"end":true,"memories":9}\n', "counts 9 memories, and there are 2"),
        (b'{"end":1}\n', "Expected `bool`"),
    ],
)
async def test_import_rejects_line_of_other_format(line, said, tmp_path, embedding):
    other = Backend()
    await export_jsonl(filled(), tmp_path / "x", None)
    lines = lines_of(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"".join([*lines[:3], line, *lines[4:]]))

    with pytest.raises(InvalidArgument, match="line 4: ") as refused:
        await import_jsonl(other, embedding, tmp_path / "x", None)

    assert said in str(refused.value)
    assert [] == other.state


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.update(format="x"), "not the first line of an export"),
        (lambda line: line.update(version=3), "upgrade mama-structs"),
        (lambda line: line.update(version=0), "upgrade mama-structs"),
        (lambda line: line.update(version="1"), "upgrade mama-structs"),
        (lambda line: line.pop("embedder"), "missing required field `embedder`"),
        (lambda line: line["embedder"].update(dimensions=0), "dimensions"),
        (lambda line: line["embedder"].update(dimensions=-4), "dimensions"),
        (lambda line: line["embedder"].update(dimensions="4"), "dimensions"),
    ],
)
async def test_import_rejects_invalid_header(change, said, tmp_path, embedding):
    await export_jsonl(filled(), tmp_path / "x", None)
    changed(tmp_path / "x", 1, change)

    with pytest.raises(InvalidArgument, match="line 1: ") as refused:
        await import_jsonl(Backend(), embedding, tmp_path / "x", None)
    assert said in str(refused.value)


async def test_import_rejects_truncated_file(tmp_path, embedding):
    """Truncation at any point is detected, and nothing is imported."""
    other = Backend()
    await export_jsonl(filled(3), tmp_path / "x", None)
    data = (tmp_path / "x").read_bytes()
    for length in range(0, len(data), 7):
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(InvalidArgument):
            await import_jsonl(other, embedding, tmp_path / "cut", None)

    assert [] == other.state


@pytest.mark.parametrize("namespace", ["", " ", "x" * 101, "u\u0308"])
async def test_import_rejects_invalid_namespace(namespace, tmp_path, embedding):
    """The namespace in the header must be a valid one."""
    other = Backend()
    await export_jsonl(filled(), tmp_path / "x", None)
    changed(tmp_path / "x", 1, lambda line: line.update(namespace=namespace))

    with pytest.raises(InvalidArgument, match=r"line 1: `\$\.namespace` is no"):
        await import_jsonl(other, embedding, tmp_path / "x", None)
    assert [] == other.state


async def test_import_lowers_trust_to_origin_and_basis(tmp_path, embedding):
    """A file cannot raise trust, and a repeated import changes nothing."""
    other = Backend()
    await export_jsonl(filled(), tmp_path / "x", None)
    changed(tmp_path / "x", 2, lambda line: line["memory"].update(evidence=["decision_page_1790000000000_0a1b2c3d"]))
    changed(tmp_path / "x", 3, lambda line: line["memory"].update(origin="tool"))
    changed(tmp_path / "x", 4, lambda line: line["links"][0].update(link_type="implementation"))
    changed(tmp_path / "x", 5, lambda line: line["links"][0].update(link_type="association"))
    page = {"id": "decision_page_1790000000000_0a1b2c3d", "origin": "outside"}
    changed(tmp_path / "x", 6, lambda line: line["memory"].update(page) or line.update(links=[]))
    changed(tmp_path / "x", 2, lambda line: line.update(links=[]))
    first = await import_jsonl(other, embedding, tmp_path / "x", None)
    trusts = {one.memory.id: one.memory.trust for one in other.memories.scan()}
    again = await import_jsonl(other, embedding, tmp_path / "x", None)

    assert {"m0": "outside", "m1": "tool", "m2": "tool", "m3": "user", page["id"]: "outside"} == trusts
    assert (JsonlImport(added=5), JsonlImport(existing=5)) == (first, again)
    assert trusts == {one.memory.id: one.memory.trust for one in other.memories.scan()}


async def test_import_rejects_too_long_line(tmp_path, embedding, monkeypatch):
    """The line is rejected before all of it is in memory."""
    await export_jsonl(filled(), tmp_path / "x", None)
    monkeypatch.setattr(transfer, "MAX_LINE_BYTES", 2000)
    changed(tmp_path / "x", 3, lambda line: line["memory"].update(content="x" * 5000))

    with pytest.raises(InvalidArgument, match="line 3: it is longer than 2000 bytes"):
        await import_jsonl(Backend(), embedding, tmp_path / "x", None)


async def test_import_rejects_existing_id_with_other_content(tmp_path, embedding):
    """The error names the line, and nothing is imported."""
    other = Backend()
    await export_jsonl(filled(), tmp_path / "x", None)
    other.memories.put(plain_memory("m4", SECRET, at=4), vectors=unit())
    state = other.state

    with pytest.raises(InvalidArgument, match="line 6: a memory with the id 'm4' is there") as refused:
        await import_jsonl(other, embedding, tmp_path / "x", None)

    assert SECRET not in str(refused.value)
    assert state == other.state


async def test_import_rejects_existing_link_id_between_other_memories(tmp_path, embedding):
    """The error names the line, and nothing is imported."""
    other = Backend()
    for name in ("a", "b"):
        other.memories.put(plain_memory(name), vectors=unit())
    other.memories.put_link(plain_link("a", "b", link_id=link_between(3, 2)))
    await export_jsonl(filled(), tmp_path / "x", None)

    with pytest.raises(InvalidArgument, match=f"line 5: a link with the id '{link_between(3, 2)}'"):
        await import_jsonl(other, embedding, tmp_path / "x", None)
    assert 2 == len(other.state)


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
async def test_import_rejects_path_that_is_no_file(make, tmp_path, embedding):
    """The import does not block on special files."""
    make(tmp_path / "x")

    with pytest.raises(InvalidArgument, match="path must be"):
        await import_jsonl(Backend(), embedding, tmp_path / "x", None)


# Files


async def test_export_file_is_private(tmp_path):
    """The file is private even if it replaces one that others could read."""
    (tmp_path / "x").write_text("old")
    (tmp_path / "x").chmod(0o666)
    await export_jsonl(filled(), tmp_path / "x", None)

    assert 0o600 == (tmp_path / "x").stat().st_mode & 0o777
    assert ["x"] == names_in(tmp_path)


async def test_export_follows_symbolic_link(tmp_path):
    """The target of the link is replaced, and the link remains."""
    (tmp_path / "link").symlink_to("x")
    await export_jsonl(filled(), tmp_path / "link", None)

    assert (tmp_path / "link").is_symlink()
    assert 7 == len(lines_of(tmp_path / "x"))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")])
async def test_export_rejects_special_files(make, tmp_path):
    """A directory, a FIFO or a device is not replaced."""
    make(tmp_path / "x")

    with pytest.raises(StoreError, match="is no regular file"):
        await export_jsonl(filled(), tmp_path / "x", None)
    assert ["x"] == names_in(tmp_path)


@pytest.mark.parametrize("name", ["journal/cache.db", "journal/notes", "locks"])
async def test_export_rejects_files_of_session(name, tmp_path):
    async with Session.open(tmp_path / "a", embedder=HashEmbedder()) as session:
        await session.memories.save_context("something")
        with pytest.raises(StoreError, match="session's own data"):
            await admin.export_jsonl(session.memories, tmp_path / "a" / name)
        assert (await admin.check(session)).ok


async def test_export_to_missing_directory_raises_typed_error(tmp_path):
    with pytest.raises(StoreError, match="No such file or directory"):
        await export_jsonl(filled(), tmp_path / "none" / "x", None)


@pytest.mark.parametrize("call", ["write", "fsync"])
async def test_full_disk_keeps_previous_export(call, tmp_path, monkeypatch):
    """Whichever call fails, the old file remains, and no temporary file."""
    (tmp_path / "x").write_text("old")
    monkeypatch.setattr(transfer, "PAGE_MEMORIES", 2)
    plain = getattr(os, call)
    failed = 0
    for number in range(1, 20):
        calls = 0

        def counted(*arguments, number=number):
            nonlocal calls
            calls += 1
            if calls == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            return plain(*arguments)

        monkeypatch.setattr(files.os, call, counted)
        try:
            await export_jsonl(filled(), tmp_path / "x", None)
        except StoreFull:
            failed += 1
            is_published = call == "fsync" and number > 1
            assert is_published or "old" == (tmp_path / "x").read_text()
            assert ["x"] == names_in(tmp_path)
        else:
            break

    assert failed == {"write": 5, "fsync": 2}[call]
    assert 7 == len(lines_of(tmp_path / "x"))


async def test_cancelled_export_leaves_complete_file_or_none(tmp_path):
    cancelled = 0
    for turns in range(0, 400, 9):
        task = asyncio.ensure_future(export_jsonl(filled(), tmp_path / "x", None))
        for _ in range(turns):
            await asyncio.sleep(0.0001 if turns > 20 else 0)
        is_done = not task.cancel()
        if is_done:
            break
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled += 1
        assert names_in(tmp_path) in ([], ["x"])
        (tmp_path / "x").unlink(missing_ok=True)

    assert cancelled


async def test_export_removes_files_of_killed_process(tmp_path):
    """The temporary file of a running export is kept."""
    dead = tmp_path / f".mama-structs-file-{'0' * 16}.tmp"
    foreign = tmp_path / ".mama-structs-file-notes.tmp"
    dead.touch()
    foreign.touch()
    alive = files.DraftFile(tmp_path / "other")
    alive.write(b"half")
    dead.touch()
    await export_jsonl(filled(), tmp_path / "x", None)

    assert not dead.exists()
    assert foreign.exists()
    alive.publish()
    assert b"half" == (tmp_path / "other").read_bytes()


def test_stores_strategy_generates_each_memory_type():
    """The round trip test covers each type of memory."""
    assert set(METADATA_TYPES) == set(metadata_of)
    assert timedelta(0) == UTC.utcoffset(None)


@pytest.mark.of_the_directory("it has the links of a memory in its row; a server has one for each")
async def test_import_writes_links_to_later_lines_together(tmp_path, monkeypatch):
    """A memory with links to many later lines is written twice, not once per link."""
    place = OpenedDirectory.open(tmp_path)
    store, other = await place.memories("a"), await place.memories("b")
    hub = await store.save_context("the hub")
    for number in range(30):
        later = await store.save_context(f"spoke {number}")
        await store.link(hub.id, later.id, "leads to")
    await admin.export_jsonl(store, tmp_path / "file")
    written = []
    rewrite = JournalWriter._rewrite
    monkeypatch.setattr(JournalWriter, "_rewrite", lambda self, *given: written.append(given) or rewrite(self, *given))

    assert 31 == (await admin.import_jsonl(other, tmp_path / "file")).added
    assert 1 == len(written)
    assert await store.links(hub.id) == await other.links(hub.id)
    assert [] == await place.findings()
    await place.close()
