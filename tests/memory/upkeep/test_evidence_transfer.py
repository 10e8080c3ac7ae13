"""Export and import of evidence texts: each text is transferred once."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from memory_helpers import OpenedDirectory, plain_memory

from mama_structs import admin
from mama_structs.errors import InvalidArgument, StoreFull
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.graph.results import JsonlImport
from mama_structs.memory.types.engine import EmbedderRecord
from mama_structs.memory.types.model import StoredEvidence, text_digest
from mama_structs.memory.upkeep import jsonl_transfer as transfer
from mama_structs.testing.plain_engine import PlainEngine

DIMENSIONS = 4
SECRET = "secret-content"


class Backend(PlainEngine):
    """A plain engine that can fail or call a function at the n-th write."""

    def __init__(self, *, before=None):
        super().__init__(embedder=EmbedderRecord("four", "four-1", DIMENSIONS))
        self.before = before or {}
        self.writes = 0

    async def write(self, plan):
        self.writes += 1
        self.before.get(self.writes, lambda: None)()
        return await PlainEngine.write(self, plan)


@pytest.fixture
async def embedding():
    service = EmbeddingService(HashEmbedder(dimensions=64))
    yield service
    await service.close()


def named(text, source="ref:x@1"):
    return str(StoredEvidence(source, text_digest(text)))


def filled(*evidence):
    """Return a backend with one memory per argument. Each argument lists the evidence texts of its memory."""
    backend = Backend()
    for number, texts in enumerate(evidence):
        backend.memories.put(
            plain_memory(f"m{number}", f"memory {number}", evidence=["https://x", *map(named, texts)]),
            vectors=np.eye(1, DIMENSIONS, dtype=np.float32),
            contents={text_digest(text): text for text in texts},
        )
    return backend


def state(backend):
    return [one.memory for one in backend.memories.scan()], backend.memories._contents


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def kinds_of(path):
    return [next(iter(json.loads(line))) for line in lines_of(path)]


async def exported(backend, path):
    await transfer.export_jsonl(backend, path, None)
    return path


@pytest.mark.parametrize("chunk", [1, 2, 100])
async def test_export_writes_each_text_once_before_its_memories(chunk, tmp_path, embedding, monkeypatch):
    """The import restores them for any page size, and a second import changes nothing."""
    monkeypatch.setattr(transfer, "CHUNK_LINES", chunk)
    whole, other = filled(["a", "기억\r\n"], [], ["기억\r\n", "a", ""], ["a"]), Backend()
    path = await exported(whole, tmp_path / "x")
    first = await transfer.import_jsonl(other, embedding, path, None)
    again = await transfer.import_jsonl(other, embedding, path, None)

    assert sorted(["format", *["content"] * 3, *["memory"] * 4, "end"]) == sorted(kinds_of(path))
    assert "content" == kinds_of(path)[1]
    assert (JsonlImport(added=4), JsonlImport(existing=4)) == (first, again)
    assert state(whole) == state(other)


async def test_export_pages_are_limited_by_text_size(tmp_path, embedding, monkeypatch):
    """Pages with long texts are shorter, and the order of memories stays."""
    monkeypatch.setattr(transfer, "MAX_CHUNK_BYTES", 10)
    whole, other = filled(["long text " * 9], ["long text " * 9], [], ["other text " * 9], ["x"]), Backend()
    path = await exported(whole, tmp_path / "x")
    told = []
    await transfer.import_jsonl(other, embedding, path, lambda *how_far: told.append(how_far))

    assert ["content", "memory", "memory", "memory", "content", "memory", "content", "memory"] == kinds_of(path)[1:-1]
    assert state(whole) == state(other)
    assert [(0, 5), *[(number, 5) for number in range(1, 6)]] == sorted(set(told))


async def test_export_without_texts_has_first_format_version(tmp_path, embedding):
    """The trailer does not mention texts."""
    path = await exported(filled([], []), tmp_path / "x")
    lines = lines_of(path)
    assert b'{"end":true,"memories":2}\n' == lines[-1]
    assert b'"version":2' in lines[0]
    path.write_bytes(b"".join([lines[0].replace(b'"version":2', b'"version":1'), *lines[1:]]))

    assert JsonlImport(added=2) == await transfer.import_jsonl(Backend(), embedding, path, None)


@pytest.mark.parametrize(
    ("change", "number", "said"),
    [
        (lambda lines: lines.__setitem__(1, lines[1].replace(SECRET, SECRET + "!")), 2, "does not have the hash"),
        (lambda lines: lines.__setitem__(1, lines[1].replace('"text"', '"txt"')), 2, "unknown field"),
        (lambda lines: lines.__setitem__(1, lines[1].replace(f'"{SECRET}"', "7")), 2, "Expected `str`"),
        (lambda lines: lines.__setitem__(1, lines[1].replace(SECRET, "\\ud800")), 2, "no JSON"),
        (lambda lines: lines.insert(2, lines[1]), 3, "it has the hash of an earlier line's text"),
        (lambda lines: lines.insert(4, lines[1]), 5, "it has the hash of an earlier line's text"),
        (
            lambda lines: lines.pop(1) and lines.__setitem__(-1, '{"end":true,"memories":2}\n'),
            2,
            "names a text that no line before it has",
        ),
        (lambda lines: lines.insert(2, lines.pop(1)), 2, "names a text that no line before it has"),
        (
            lambda lines: lines.__setitem__(-1, lines[-1].replace('"contents":1', '"contents":2')),
            5,
            "2 memories and 2 texts, and there are 3",
        ),
    ],
)
@pytest.mark.parametrize("chunk", [1, 256])
async def test_import_rejects_invalid_text_line(change, number, said, chunk, tmp_path, embedding, monkeypatch):  # noqa: PLR0917 - fixtures
    """The message contains the line number and the rule but no content, and nothing is imported."""
    monkeypatch.setattr(transfer, "CHUNK_LINES", chunk)
    path, other = await exported(filled([SECRET], [SECRET]), tmp_path / "x"), Backend()
    lines = path.read_text().splitlines(keepends=True)
    change(lines)
    path.write_text("".join(lines))

    with pytest.raises(InvalidArgument, match=f"^line {number}: ") as refused:
        await transfer.import_jsonl(other, embedding, path, None)

    assert said in str(refused.value)
    assert SECRET not in str(refused.value)
    assert (0, ([], {})) == (other.writes, state(other))


async def test_import_rejects_too_long_text(tmp_path, embedding, monkeypatch):
    """A text that could not be exported again is rejected."""
    path = await exported(filled(["x" * 11]), tmp_path / "x")
    monkeypatch.setattr(transfer, "MAX_STORED_TEXT_BYTES", 10)

    with pytest.raises(InvalidArgument, match=r"line 2: .*at most 10 bytes"):
        await transfer.import_jsonl(Backend(), embedding, path, None)


async def test_import_stores_text_again_if_deleted_meanwhile(tmp_path, embedding, monkeypatch):
    """The text is read again from the file for later memories."""
    monkeypatch.setattr(transfer, "CHUNK_LINES", 2)
    path = await exported(filled(["a"], ["b"], ["a", "b"]), tmp_path / "x")

    def deletes():
        for memory_id in ("m0", "m1"):
            other.memories.delete(memory_id)

    other = Backend(before={3: deletes})
    done = await transfer.import_jsonl(other, embedding, path, None)

    assert JsonlImport(added=3) == done
    assert ["m2"] == [memory.id for memory in state(other)[0]]
    assert {"a", "b"} == set(state(other)[1].values())


async def test_interrupted_import_can_be_repeated(tmp_path, embedding, monkeypatch):
    """The texts stored by the first attempt are reused."""
    monkeypatch.setattr(transfer, "CHUNK_LINES", 2)
    whole = filled(["a"], ["b"], ["a", "b"])
    path = await exported(whole, tmp_path / "x")

    def fails():
        raise StoreFull("no room")

    other = Backend(before={3: fails})
    with pytest.raises(StoreFull):
        await transfer.import_jsonl(other, embedding, path, None)
    assert {"a", "b"} == set(state(other)[1].values())
    await transfer.import_jsonl(other, embedding, path, None)

    assert state(whole) == state(other)


@asynccontextmanager
async def opened(path, texts=None):
    texts = texts or {}
    place = OpenedDirectory.open(path, find_content=lambda item: (f"{item}@1", texts[item]) if item in texts else None)
    try:
        yield place, await place.memories()
        assert [] == await place.findings()
    finally:
        await place.close()


async def test_real_store_exports_and_imports_evidence(tmp_path):
    """Texts of any length are copied to another directory and to a store with another embedder."""
    texts = {"ref:a": "short", "ref:b": '"\n\0' * 100_000, "fd:1": "x" * 3_000_000}
    async with opened(tmp_path / "a", texts) as (_, store):
        saved = [
            await store.save_decision(f"d{n}", topic="t", reasoning="", evidence=list(texts)[: n % 4])
            for n in range(12)
        ]
        evidence = [await store.evidence(memory.id) for memory in saved]
        await admin.export_jsonl(store, tmp_path / "x")
    async with opened(tmp_path / "b") as (_, store):
        assert 12 == (await admin.import_jsonl(store, tmp_path / "x")).added
        assert evidence == [await store.evidence(memory.id) for memory in saved]
        for memory in saved:
            await store.delete(memory.id)
        assert 12 == (await admin.import_jsonl(store, tmp_path / "x")).added
    place = OpenedDirectory.open(tmp_path / "c", embedder=HashEmbedder(dimensions=32))
    store = await place.memories("other")

    assert 12 == (await admin.import_jsonl(store, tmp_path / "x")).embedded
    assert evidence == [await store.evidence(memory.id) for memory in saved]
    assert [] == await place.findings()
    await place.close()
