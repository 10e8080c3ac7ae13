"""Isolation of the namespaces in one directory, for every method."""

# Allow blocking file system calls, which are fast here, and lambdas, which keep the tables of calls uniform.
# ruff: noqa: ASYNC240, PLW0108

from __future__ import annotations

import inspect
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL, OpenedDirectory, PlainEngines, plain_memory

from mama_structs import Filter, Session, admin
from mama_structs.errors import InvalidArgument, LinkNotFound, MemoryNotFound, MemoryReadOnly
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.model import (
    Link,
    LinkMetadata,
    LinkType,
    MemoryType,
    StoredEvidence,
    text_digest,
    to_milliseconds,
)
from mama_structs.settings import MemorySettings
from mama_structs.storage.sqlite_errors import Issue

START = datetime(2026, 1, 1, tzinfo=UTC)
TEXTS = st.sampled_from(["the login of planet 2-1", "tokens for the login", "shields of planet 2-1", "로그인 토큰"])
TOPICS = st.sampled_from(["auth", "raids"])
WORLDS = st.lists(
    st.tuples(TEXTS, TOPICS, st.sampled_from(list(MemoryType)), st.lists(st.integers(0, 20), max_size=2)),
    min_size=2,
    max_size=7,
)
# Every namespace stores these texts, so that equal hashes occur in all of them.
KEPT = {text_digest(text): text for text in ("a long report", "근거")}
OTHER_MARK = "of the other namespace"


def mentions(text):
    return ["2-1"] if "2-1" in text else []


def built(world, namespace, mark, prefix=""):
    """Return memories and links whose ids are equal in every namespace, but whose contents differ."""
    memories, links, kept = [], [], list(KEPT)
    for number, (text, topic, kind, targets) in enumerate(world):
        memory = plain_memory(
            f"{prefix}memory_{number}", f"{text} {mark}", type=kind, topic=topic, mentions=mentions(text),
            at=START + timedelta(minutes=number), evidence=["https://x", str(StoredEvidence(f"ref:{number}@1", kept[number % 2]))],
        )  # fmt: skip
        memories.append(attrs.evolve(memory, namespace=namespace))
        own = []
        for target in sorted({target % len(world) for target in targets} - {number}):
            if target < number:
                kinds = [LinkType.EVOLUTION, LinkType.IMPLEMENTATION, LinkType.ASSOCIATION, LinkType.TEMPORAL]
                own.append(
                    Link(
                        id=f"{prefix}link_{number}_{target}", from_id=memory.id, to_id=f"{prefix}memory_{target}",
                        link_type=kinds[(number + target) % 4], confidence=0.5, created_by="system",
                        metadata=LinkMetadata(original_relationship=f"word {mark}"), created_at=memory.created_at,
                    )
                )  # fmt: skip
        links.append(own)
    return memories, links


async def fill(store, world, mark, prefix=""):
    memories, links = built(world, store.namespace, mark, prefix)
    vectors = [SMALL.embed([memory.content]) for memory in memories]

    def plan(writer):
        for memory, own, vector in zip(memories, links, vectors, strict=True):
            writer.put(memory, vectors=vector, links=own, contents=KEPT)

    await store._engine.write(plan)
    return [memory.id for memory in memories]


async def gathered(items):
    return [one async for one in items]


# One or more example calls per method, by its name or a description. A new method of `MemoryStore` must be added here or to `APART`.
READS = {
    "iter_all": lambda store, memory_id: gathered(store.iter_all()),
    "all_links": lambda store, memory_id: store.links(limit=1000),
    "_iter_links": lambda store, memory_id: gathered(store._iter_links()),
    "get": lambda store, memory_id: store.get(memory_id),
    "evidence": lambda store, memory_id: store.evidence(memory_id),
    "count": lambda store, memory_id: store.count(),
    "list": lambda store, memory_id: store.list(limit=100),
    "latest_checkpoint": lambda store, memory_id: store.latest_checkpoint(),
    "similar": lambda store, memory_id: store.similar(memory_id, threshold=0.0, limit=100),
    "list_mentions": lambda store, memory_id: store.list(limit=100, where=Filter(mentions="2-1")),
    "search": lambda store, memory_id: store.search(
        "the login of planet 2-1 of the other namespace", superseded="keep", limit=100
    ),
    "explain": lambda store, memory_id: store.explain(
        "the login of planet 2-1 of the other namespace", memory_id, superseded="keep", limit=100
    ),
    "topic_history": lambda store, memory_id: store.history(topic="auth"),
    "history": lambda store, memory_id: store.history(memory_id),
    "links": lambda store, memory_id: store.links(memory_id),
    "relationships": lambda store, memory_id: store.relationships(),
    "conflicts": lambda store, memory_id: store.conflicts(),
    "traverse": lambda store, memory_id: store.traverse(memory_id, max_depth=5),
    "neighbours": lambda store, memory_id: store.traverse(memory_id, max_depth=1),
    "details": lambda store, memory_id: store.details(memory_id),
    "similar_content": lambda store, memory_id: store.similar(content="the login", threshold=0.0, limit=100),
    "admin.check": lambda store, memory_id: admin.check(store),
}
CREATED = {"created_at": START + timedelta(days=2)}
WRITES = {
    "save": lambda store, memory_id: store.save(f"new {OTHER_MARK}", topic="auth", **CREATED),
    "save_decision": lambda store, memory_id: store.save_decision(
        f"new {OTHER_MARK}", topic="auth", reasoning="", **CREATED
    ),
    "save_checkpoint": lambda store, memory_id: store.save_checkpoint(
        f"new {OTHER_MARK}", implements=[memory_id], **CREATED
    ),
    "save_insight": lambda store, memory_id: store.save_insight(f"new 2-1 {OTHER_MARK}", **CREATED),
    "save_context": lambda store, memory_id: store.save_context(f"new {OTHER_MARK}", topic="auth", **CREATED),
    "save_many": lambda store, memory_id: store.save_many([{"type": "context", "content": OTHER_MARK, **CREATED}] * 2),
    "link": lambda store, memory_id: store.link(
        memory_id, f"{memory_id[:-1]}{1 - int(memory_id[-1]) % 2}", f"word {OTHER_MARK}"
    ),
    "unlink": lambda store, memory_id: store.unlink(f"{memory_id.partition('memory')[0]}link_1_0"),
    "dismiss_conflict": lambda store, memory_id: store.dismiss_conflict(memory_id, memory_id),
    "supersede": lambda store, memory_id: store.supersede(memory_id, f"new {OTHER_MARK}", reasoning="", **CREATED),
    "update": lambda store, memory_id: store.update(memory_id, f"new {OTHER_MARK}"),
    "set_outcome": lambda store, memory_id: store.set_outcome(memory_id, "FAILED", reason=f"why {OTHER_MARK}"),
    "admin.prune": lambda store, memory_id: admin.prune(store, now=START + timedelta(days=100)),
    "admin.maintain": lambda store, memory_id: admin.maintain(store),
    "admin.rebuild": lambda store, memory_id: admin.rebuild(store),
    "erase": lambda store, memory_id: store.erase(where=Filter(source="outcome_of")),
    "delete": lambda store, memory_id: store.delete(memory_id),
}
# Excluded, because it reports on the process.
APART = {"stats"}
BY_DESCRIPTION = {"all_links", "_iter_links", "list_mentions", "topic_history", "neighbours", "similar_content"}


def test_memory_store_methods_are_listed():
    """A new method of `MemoryStore` must be tested for isolation too."""
    methods = {
        name
        for name, member in inspect.getmembers(MemoryStore)
        if not name.startswith("_") and inspect.isfunction(member)
    }

    calls = {name for name in READS.keys() | WRITES.keys() if not name.startswith("admin.")}
    assert methods == calls - BY_DESCRIPTION | APART


async def answers(store, ids):
    """Return the results of all reading methods as comparable values."""
    said = {}
    for name, call in READS.items():
        for memory_id in ids if name in BY_ID else ids[:1]:
            said[name, memory_id] = told(await call(store, memory_id))
    return said


def told(value):
    """Convert a result to comparable values, without parts that depend on the current time."""
    if isinstance(value, list | tuple):
        return [told(one) for one in value]
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Issue):
        return (value.kind, value.message)
    if attrs.has(type(value)):
        return {field.name: told(getattr(value, field.name)) for field in attrs.fields(type(value))}
    return dict(value) if isinstance(value, dict) and not value else str(value)


@pytest.mark.parametrize("kind", ["exact", "graph", "plain"])
@settings(max_examples=max(4, settings.default.max_examples // 25))
@given(
    world=WORLDS, names=st.sampled_from([("a", "b"), ("a", "a/m"), ("a%2Fm", "a/m"), ("é", "e"), ("default", "x y")])
)
async def test_changes_in_one_namespace_do_not_affect_another(kind, world, names):
    """
    Calling every method of one namespace changes no result of the other.

    Both have equal ids and texts.
    """
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home:
        clock = (START + timedelta(days=40)).timestamp()
        options = {
            "settings": MemorySettings(exact_up_to=0 if kind == "graph" else 20_000), "clock": lambda: clock,
            "find_mentions": mentions, "engines": PlainEngines() if kind == "plain" else None,
        }  # fmt: skip
        place, elsewhere = (OpenedDirectory.open(Path(home), **options) for _ in range(2))
        store, other = [await place.memories(name) for name in names]
        ids = await fill(store, world, "of this namespace")
        await fill(other, world, OTHER_MARK)
        expected = await answers(store, ids)
        assert OTHER_MARK not in str(expected)
        assert "this namespace" not in str(await answers(other, ids))
        distant = await elsewhere.memories(names[0])
        for name, call in WRITES.items():
            try:
                await call(other, ids[0] if name != "delete" else ids[-1])
            except (MemoryNotFound, LinkNotFound, InvalidArgument):
                # This example has no memory or link that the call could change.
                continue
            for one in (store, distant):
                assert (name, expected) == (name, await answers(one, ids))
        file = Path(home) / "export"
        await admin.export_jsonl(other, file)
        with pytest.raises(InvalidArgument):
            await admin.import_jsonl(store, file)
        assert expected == await answers(store, ids)
        assert [] == await place.findings()
        await place.close()
        await elsewhere.close()


# These methods take the id of a memory. Their results contain only the namespace of that memory.
BY_ID = ["get", "evidence", "history", "links", "traverse", "neighbours", "details"]
CHANGES_BY_ID = {"link", "dismiss_conflict", "save_checkpoint", "supersede", "update", "set_outcome", "delete"}
SECRET = "of a namespace that nobody granted"


@pytest.mark.parametrize("kind", ["exact", "graph", "plain"])
@settings(max_examples=max(4, settings.default.max_examples // 25))
@given(world=WORLDS, elsewhere=WORLDS)
async def test_granted_namespaces_are_readable_and_never_changed(kind, world, elsewhere):
    """A session writes a, reads b and cannot access c, for all methods and ids of all."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home:
        clock = (START + timedelta(days=40)).timestamp()
        place = OpenedDirectory.open(
            Path(home), settings=MemorySettings(exact_up_to=0 if kind == "graph" else 20_000), clock=lambda: clock,
            find_mentions=mentions, engines=PlainEngines() if kind == "plain" else None,
        )  # fmt: skip
        own, granted, secret = [await place.memories(name) for name in "abc"]
        ids = await fill(own, world, "of this namespace")
        others = await fill(granted, elsewhere, "of what is read", "x")
        await fill(secret, elsewhere, SECRET, "x")
        scoped = await place.memories("a", reads=["b"])
        expected, hidden = await answers(granted, others), await answers(secret, others)
        for name, call in READS.items():
            for memory_id in (ids[0], *others):
                said = told(await call(scoped, memory_id))
                assert SECRET not in str(said)
                if name in BY_ID and memory_id in others:
                    assert (name, told(await call(granted, memory_id))) == (name, said)
        assert {"a", "b"} == {memory.namespace for memory in await scoped.list(limit=100)}
        for name, call in WRITES.items():
            if name in CHANGES_BY_ID:
                with pytest.raises(MemoryReadOnly, match="'b', which is only read") as caught:
                    await call(scoped, others[0])
                assert (others[0], "b") == (caught.value.id, caught.value.namespace)
            elif name != "unlink":
                await call(scoped, others[0])
            elif await granted.links(others[1]):
                with pytest.raises((MemoryReadOnly, LinkNotFound)):
                    await call(scoped, others[0])
        assert expected == await answers(granted, others)
        assert hidden == await answers(secret, others)
        with pytest.raises(MemoryReadOnly):
            await scoped.link(ids[0], others[0], "goes with")
        assert [] == await place.findings()
        await place.close()


@pytest.mark.parametrize("engines", [lambda: None, PlainEngines], ids=["embedded", "plain"])
async def test_search_scores_do_not_depend_on_other_namespaces(tmp_path, engines):
    """Rarity, similarity and frequency are computed within one namespace."""
    place = OpenedDirectory.open(tmp_path, engines=engines(), clock=lambda: START.timestamp())
    store, other = await place.memories("a"), await place.memories("b")
    for text in ("the login", "the shield", "tokens for the login"):
        await store.save_context(text)
    before = [(hit.memory.id, hit.score, dict(hit.signals)) for hit in await store.search("login tokens")]
    for number in range(100):
        await other.save_context(f"login tokens {number}")

    after = [(hit.memory.id, hit.score, dict(hit.signals)) for hit in await store.search("login tokens")]
    assert before == after
    await place.close()


async def test_namespaces_are_opened_and_closed_independently(tmp_path):
    """Two sessions with different namespaces in one directory each count their own memories."""
    names = ["default", "Default", "a/b", "a%2Fb", "../up", "한국어", "x" * 100, "m", "head", " ", ".", "a\tb"]
    for number, name in enumerate(names):
        if not name.strip():
            with pytest.raises(InvalidArgument, match="namespace"):
                Session.open(tmp_path, namespace=name)
            continue
        async with Session.open(tmp_path, embedder=SMALL, namespace=name) as session:
            for count in range(number + 1):
                memory = await session.memories.save_context(f"{count} of {number}")
                assert name == memory.namespace
    for number, name in enumerate(names):
        if name.strip():
            async with Session.open(tmp_path, embedder=SMALL, namespace=name) as session:
                assert number + 1 == await session.memories.count()
                assert not [finding for finding in (await admin.check(session)).issues if finding.severity == "error"]
    for name in ("", "x" * 101, None, 7, "\ud800"):
        with pytest.raises(InvalidArgument, match="namespace"):
            Session.open(tmp_path, namespace=name)


@pytest.mark.parametrize("engines", [lambda: None, PlainEngines], ids=["embedded", "plain"])
async def test_export_imports_into_other_namespace_with_same_ids(tmp_path, engines):
    """The copies are equal except for the namespace, and later changes are independent."""
    place = OpenedDirectory.open(tmp_path, engines=engines())
    store, other = await place.memories("a"), await place.memories("b")
    first = await store.save_decision("use JWT for the login", topic="auth", reasoning="quick")
    second = await store.supersede(first.id, "use sessions for the login", reasoning="safe")
    assert 2 == await admin.export_jsonl(store, tmp_path / "file")
    assert 2 == (await admin.import_jsonl(other, tmp_path / "file")).added
    for memory in (first, second):
        assert attrs.evolve(memory, namespace="b") == await other.get(memory.id)
        assert await store.links(memory.id) == await other.links(memory.id)

    await other.set_outcome(first.id, "SUCCESS", reason="it holds")
    await store.delete(second.id)
    assert first == await store.get(first.id)
    assert [] == await store.links(first.id)
    assert [second.id, first.id] == [memory.id for memory in (await other.history(first.id)).memories]
    assert (1, 3) == (await store.count(), await other.count())
    vectors = [await one._engine.read(lambda reader: reader.vectors(reader.find(first.id))) for one in (store, other)]
    assert np.array_equal(*vectors)
    assert to_milliseconds(first.created_at) == to_milliseconds((await other.get(first.id)).created_at)
    assert [] == await place.findings()
    await place.close()
