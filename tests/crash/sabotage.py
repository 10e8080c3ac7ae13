"""Faults that are added to a store, to prove that the crash test detects each kind."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import attrs
import numpy as np
from crash.model import ExpectedState, Item, text_of
from crash.oracle import Store, opened

from mama_structs import admin
from mama_structs.memory.types.engine import NewMemory, Writer
from mama_structs.memory.types.model import Link, LinkMetadata, LinkType, Memory, new_link_id
from mama_structs.refs.store.text import Content
from mama_structs.session.session import Session

T = TypeVar("T")

_YEAR: Final = timedelta(days=365)


class NothingToDamage(Exception):
    """Raised if the store has no item for a fault to damage."""


def _first(items: Iterable[T]) -> T:
    for one in items:
        return one
    raise NothingToDamage


@attrs.define
class Target:
    """
    A namespace with its settled items, as the target of a fault.

    Args:
        store: The store.
        facts: The expected state of the store.
        space: The namespace.
        session: An open session in it.

    """

    store: Store
    facts: ExpectedState
    space: str
    session: Session

    def memories(self, *, having: str | None = None, kind: str | None = None) -> Iterator[Item]:
        """Yield the acknowledged memories of a type in which the field *having* is set, newest first."""
        for (space, _), item in reversed(self.facts.memories.items()):
            state = item.now
            if space == self.space and item.is_settled and item.id is not None and state is not None:
                fields = {**state["metadata"], **state}
                if (kind is None or state["type"] == kind) and (having is None or fields.get(having)):
                    yield item

    def links(self, *, there: bool = True) -> Iterator[tuple[str, str, str]]:
        """Yield both ids and the relationship of each existing explicit link, or of each deleted one if not *there*."""
        ends = {tag: item.id for (space, tag), item in self.facts.memories.items() if space == self.space and item.now}
        for (space, one, other, word), item in reversed(self.facts.links.items()):
            first, second = ends.get(one), ends.get(other)
            if space == self.space and item.is_settled and (item.now is not None) is there and first and second:
                yield first, second, word

    def refs(self) -> Iterator[tuple[str, str]]:
        """Yield conversation and handle of each existing ref."""
        for (space, name, handle), item in reversed(self.facts.refs.items()):
            if space == self.space and item.is_settled and item.now is not None and handle[0] != "?":
                yield name, handle

    def records(self, *, least: int = 1) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield labels and key of each existing record whose version is at least *least*."""
        for (space, labels), item in reversed(self.facts.groups.items()):
            if space == self.space and item.is_settled:
                yield from ((labels, key) for key, one in item.now.items() if one["version"] >= least)

    async def write(self, plan: Callable[[Writer], Any]) -> None:
        """Change rows directly, bypassing the rules of the store."""
        await self.session.memories._shared.write(plan)

    async def change(self, item: Item, change: Callable[[Memory], Memory]) -> None:
        """Replace a memory with the result of *change*."""
        memory = change(await self.session.memories.get(str(item.id)))
        await self.write(lambda writer: writer.put(memory))

    async def link(self, one: str, other: str, word: str, *, kind: LinkType, by: Any = "user") -> None:
        """Write a link between two memories directly, bypassing the rules of the store."""
        made = Link(
            id=new_link_id(),
            from_id=one,
            to_id=other,
            link_type=kind,
            confidence=0.9,
            created_by=by,
            metadata=LinkMetadata(original_relationship=word),
            created_at=datetime.now(UTC),
        )
        await self.write(lambda writer: writer.put_link(made))

    async def two(self) -> tuple[str, str]:
        """Return two memories without a link between them."""
        linked = {frozenset((one.from_id, one.to_id)) async for one in self.session.memories._iter_links()}
        ids = [str(item.id) for item in self.memories()]
        return _first((one, other) for one in ids for other in ids if one < other and {one, other} not in linked)


Plant = Callable[[Target], Awaitable[None]]


@attrs.frozen
class Sabotage:
    """
    A kind of fault that can be added to a store.

    Args:
        plant: Adds the fault to the store, or raises `NothingToDamage`.
        kind: The category in which the comparison must count it.
        report: A text that the report must contain.

    """

    plant: Plant
    kind: Literal["lost", "duplicated", "wrong"]
    report: str


def _changed(field: str, change: Callable[[Memory], Memory], **having: str) -> Sabotage:
    async def plant(target: Target) -> None:
        await target.change(_first(target.memories(**having)), change)

    return Sabotage(plant, "wrong", f"another {field}")


def _metadata(memory: Memory, **fields: Any) -> Memory:
    return attrs.evolve(memory, metadata=attrs.evolve(memory.metadata, **fields))


async def _lose_memory(target: Target) -> None:
    memory_id = str(_first(target.memories()).id)
    await target.write(lambda writer: writer.delete(memory_id))


async def _lose_link(target: Target) -> None:
    one, other, word = _first(target.links())
    links = await target.session.memories.links(one, limit=10_000)
    ids = [link.id for link in links if (link.to_id, link.metadata.original_relationship) == (other, word)]
    await target.write(lambda writer: writer.delete_links(ids))


async def _lose_record(target: Target) -> None:
    await target.session.records.delete(*_first(target.records()))


async def _lose_ref(target: Target) -> None:
    name, handle = _first(target.refs())
    async with opened(target.store, target.space, name) as session:
        session.refs.delete(handle)


async def _lose_conversation(target: Target) -> None:
    name, _ = _first(target.refs())
    await admin.delete_conversation(target.store, name, namespace=target.space)


async def _duplicate_memory(target: Target) -> None:
    state = _first(target.memories()).now
    await target.session.memories.save_context(state["content"])


async def _duplicate_link(target: Target) -> None:
    one, other, word = _first(target.links())
    links = await target.session.memories.links(one, limit=10_000)
    same = _first(link for link in links if (link.to_id, link.metadata.original_relationship) == (other, word))
    await target.write(lambda writer: writer.put_link(attrs.evolve(same, id=new_link_id())))


async def _duplicate_ref(target: Target) -> None:
    name, handle = _first(target.refs())
    async with opened(target.store, target.space, name) as session:
        session.refs.put("another", session.refs.get(handle).text)


async def _invent_memory(target: Target) -> None:
    await target.session.memories.save_insight("nobody wrote this")


async def _invent_link(target: Target) -> None:
    await target.link(*await target.two(), "relates to", kind=LinkType.ASSOCIATION)


async def _invent_supersession(target: Target) -> None:
    await target.link(*await target.two(), "supersedes", kind=LinkType.EVOLUTION)


async def _invent_automatic_evolution(target: Target) -> None:
    await target.link(*await target.two(), "supersedes", kind=LinkType.EVOLUTION, by="system")


async def _invent_automatic_links(target: Target) -> None:
    one, other = await target.two()
    for _ in range(6):
        await target.link(one, other, "similar", kind=LinkType.ASSOCIATION, by="system")


async def _invent_record(target: Target) -> None:
    await target.session.records.put(("invented",), "k", 1)


async def _invent_ref(target: Target) -> None:
    name, _ = _first(target.refs())
    async with opened(target.store, target.space, name) as session:
        session.refs.put("invented", "nobody wrote this")


async def _invent_conversation(target: Target) -> None:
    async with opened(target.store, target.space, "invented") as session:
        session.refs.put("invented", "nobody wrote this")


async def _invent_namespace(target: Target) -> None:
    async with opened(target.store, "invented") as session:
        await session.memories.save_insight("nobody wrote this")


async def _restore_memory(target: Target) -> None:
    tag, gone = _first(
        (tag, item)
        for (space, tag), item in target.facts.memories.items()
        if space == target.space and item.is_settled and item.now is None and item.id
    )
    before = await target.session.memories.get(str(_first(target.memories(kind="decision")).id))
    memory = attrs.evolve(before, id=str(gone.id), content=text_of(tag))
    vectors = np.ones((1, target.session.memories.embedder.dimensions), np.float32)
    vectors /= np.linalg.norm(vectors)
    await target.write(
        lambda writer: writer.put_new([NewMemory(memory=memory, vectors=vectors)], lambda nodes: [()] * len(nodes))
    )


async def _restore_link(target: Target) -> None:
    one, other, word = _first(target.links(there=False))
    await target.link(one, other, word, kind=LinkType.ASSOCIATION)


async def _restore_record(target: Target) -> None:
    labels = _first(
        labels for (space, labels), item in target.facts.groups.items() if space == target.space and item.now
    )
    await target.session.records.put(labels, "gone", 1)


async def _restore_conversation(target: Target) -> None:
    named = {name for name, _ in target.refs()}
    name, handle = _first(
        (name, handle)
        for (space, name, handle), item in target.facts.refs.items()
        if space == target.space and item.now is None and name not in named
    )
    async with opened(target.store, target.space, name) as session:
        session.refs.put(handle.removeprefix("ref:").partition("@")[0], "again")


async def _overwrite_record(target: Target) -> None:
    labels, key = _first(target.records())
    await target.session.records.delete(labels, key)
    await target.session.records.put(labels, key, "another value")


async def _raise_version(target: Target) -> None:
    labels, key = _first(target.records())
    record = await target.session.records.get(labels, key)
    if record is not None:
        await target.session.records.put(labels, key, record.value, text=record.text, origin=record.origin)


async def _drop_history(target: Target) -> None:
    for labels, key in target.records(least=2):
        history = await target.session.records.history(labels, key)
        if len(history) > 1:
            await target.session.records.delete(labels, key)
            for _ in range(history[0].version):
                await target.session.records.put(
                    labels, key, history[0].value, text=history[0].text, origin=history[0].origin
                )
            return
    raise NothingToDamage


async def _expire_record(target: Target) -> None:
    labels, key = _first(target.records())
    await target.session.records.expire([(labels, key)], datetime(2020, 1, 1, tzinfo=UTC))


async def _overwrite_ref(target: Target) -> None:
    name, handle = _first(target.refs())
    async with opened(target.store, target.space, name) as session:
        # Replace the entry without a new version, as a bug in the log could do.
        store = session.refs
        entry = store.get(handle)
        store._put(entry.versioned_handle, attrs.evolve(entry, content=Content.from_text("another text")))


def _remove_row(store: Store, facts: ExpectedState) -> None:
    """Delete the row of an acknowledged memory from the database file."""
    with contextlib.closing(sqlite3.connect(Path(store) / "journal" / "cache.db")) as database, database:
        for item in reversed(facts.memories.values()):
            if item.is_settled and item.now is not None and item.id is not None:
                sought = item.now["content"][:40].encode()
                rows = database.execute(
                    "SELECT rowid FROM Cache WHERE instr(value, ?) AND key LIKE 'memories/%'", (sought,)
                )
                if found := rows.fetchall():
                    database.executemany("DELETE FROM Cache WHERE rowid = ?", found)
                    return
    raise NothingToDamage


async def _change_trust(target: Target) -> None:
    item = _first(one for one in target.memories() if one.now["trust"] != "user")
    await target.change(item, lambda memory: attrs.evolve(memory, trust="user"))


SABOTAGES: Final[Mapping[str, Sabotage]] = {
    "memory-lost": Sabotage(_lose_memory, "lost", "memory "),
    "memory-duplicated": Sabotage(_duplicate_memory, "duplicated", "is there again"),
    "memory-invented": Sabotage(_invent_memory, "wrong", "which nobody saved"),
    "memory-restored": Sabotage(_restore_memory, "wrong", "which was deleted"),
    "content-replaced": _changed("content", lambda one: attrs.evolve(one, content=f"{one.content} not")),
    "topic-replaced": _changed("topic", lambda one: attrs.evolve(one, topic="other"), having="topic"),
    "reasoning-replaced": _changed(
        "metadata.reasoning", lambda one: _metadata(one, reasoning="other"), kind="decision"
    ),
    "confidence-replaced": _changed("metadata.confidence", lambda one: _metadata(one, confidence=0.1), kind="decision"),
    "outcome-overwritten": _changed("metadata.outcome", lambda one: _metadata(one, outcome=None), having="outcome"),
    "outcome-history-lost": _changed("metadata.history", lambda one: _metadata(one, history=()), having="history"),
    "created-at-replaced": _changed("created_at", lambda one: attrs.evolve(one, created_at=one.created_at - _YEAR)),
    "updated-at-replaced": _changed("updated_at", lambda one: attrs.evolve(one, updated_at=one.updated_at + _YEAR)),
    "valid-until-replaced": _changed("valid_until", lambda one: attrs.evolve(one, valid_until=one.created_at + _YEAR)),
    "trust-raised": Sabotage(_change_trust, "wrong", "another trust"),
    "correction-lost": _changed(
        "previous_texts", lambda one: attrs.evolve(one, previous_texts=()), having="previous_texts"
    ),
    "merge-lost": _changed("repeated_at", lambda one: attrs.evolve(one, repeated_at=()), having="repeated_at"),
    "merge-time-replaced": _changed(
        "repeated_at",
        lambda one: attrs.evolve(one, repeated_at=tuple(at + _YEAR for at in one.repeated_at)),
        having="repeated_at",
    ),
    "evidence-lost": _changed("evidence", lambda one: attrs.evolve(one, evidence=()), having="evidence"),
    "link-lost": Sabotage(_lose_link, "lost", "link "),
    "link-duplicated": Sabotage(_duplicate_link, "duplicated", "times"),
    "link-invented": Sabotage(_invent_link, "wrong", "which nobody made"),
    "link-restored": Sabotage(_restore_link, "wrong", "which was deleted"),
    "supersession-invented": Sabotage(_invent_supersession, "wrong", "which nobody asked for"),
    "automatic-supersession": Sabotage(_invent_automatic_evolution, "wrong", "automatic links of the type evolution"),
    "automatic-links-invented": Sabotage(_invent_automatic_links, "duplicated", "automatic link"),
    "record-lost": Sabotage(_lose_record, "lost", "records "),
    "record-expired": Sabotage(_expire_record, "lost", "records "),
    "record-overwritten": Sabotage(_overwrite_record, "wrong", "another "),
    "record-version-raised": Sabotage(_raise_version, "wrong", "another "),
    "record-history-lost": Sabotage(_drop_history, "wrong", "another "),
    "record-invented": Sabotage(_invent_record, "wrong", "which nobody put"),
    "record-restored": Sabotage(_restore_record, "wrong", "or which was deleted"),
    "ref-lost": Sabotage(_lose_ref, "lost", "ref:"),
    "ref-overwritten": Sabotage(_overwrite_ref, "wrong", "another text"),
    "ref-duplicated": Sabotage(_duplicate_ref, "duplicated", "is there again"),
    "ref-invented": Sabotage(_invent_ref, "wrong", "which nobody stored"),
    "conversation-lost": Sabotage(_lose_conversation, "lost", "ref:"),
    "conversation-restored": Sabotage(_restore_conversation, "wrong", "which was deleted"),
    "conversation-invented": Sabotage(_invent_conversation, "wrong", "which nobody began"),
    "namespace-invented": Sabotage(_invent_namespace, "wrong", "which nobody wrote to"),
}
"""All kinds of faults that the comparison must detect, by name."""


def plant(store: Store, facts: ExpectedState, name: str) -> bool:
    """Add a fault to the store, and return False if it has no item to damage in this way."""
    if name == "row":
        try:
            _remove_row(store, facts)
        except NothingToDamage:
            return False
        return True
    return asyncio.run(_planted(store, facts, SABOTAGES[name]))


async def _planted(store: Store, facts: ExpectedState, sabotage: Sabotage) -> bool:
    for space in sorted(facts.namespaces - facts.copies.keys() - facts.migrated):
        async with opened(store, space) as session:
            try:
                await sabotage.plant(Target(store, facts, space, session))
            except NothingToDamage:
                continue
            return True
    return False
