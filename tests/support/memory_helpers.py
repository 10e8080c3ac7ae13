"""Helpers for memory tests: records, and directories opened without a session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import attrs
import tenant_rival

from mama_structs import admin
from mama_structs._internal.event_loop import LoopGuard
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.save.save_plan import FindContent, no_content
from mama_structs.memory.store.factory import open_memories
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.engine import EmbedderRecord, Engines, embedder_mismatch
from mama_structs.memory.types.model import METADATA_TYPES, CreatedBy, Link, LinkMetadata, LinkType, Memory, MemoryType
from mama_structs.session.backend import Backend, make_local_engines, make_server_engines
from mama_structs.session.session import Session
from mama_structs.settings import MemorySettings, Settings
from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.sqlite_errors import Issue
from mama_structs.storage.sqlite_store import SqliteStorage
from mama_structs.testing.plain_engine import PlainEngine

SMALL: Final = HashEmbedder(dimensions=64)
"""A fast embedder with few dimensions."""

_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


def plain_memory(
    memory_id: str,
    content: str = "",
    *,
    type: MemoryType = MemoryType.DECISION,  # noqa: A002 - name of the field
    topic: str | None = None,
    mentions: Sequence[str] = (),
    evidence: Sequence[str] = (),
    at: datetime | float = 0.0,
    **metadata: Any,
) -> Memory:
    """Return a memory with test defaults for all fields that are not passed."""
    created = at if isinstance(at, datetime) else _START + timedelta(seconds=at)
    return Memory(
        id=memory_id,
        type=type,
        content=content,
        topic=topic,
        metadata=METADATA_TYPES[type](**metadata),
        mentions=tuple(mentions),
        evidence=tuple(evidence),
        created_at=created,
        updated_at=created,
    )


def plain_link(
    from_id: str,
    to_id: str,
    relationship: str = "relates_to",
    *,
    link_id: str | None = None,
    type: LinkType = LinkType.ASSOCIATION,  # noqa: A002 - name of the field
    confidence: float = 0.8,
    created_by: CreatedBy = "system",
    at: datetime | float = 0.0,
    similarity: float | None = None,
) -> Link:
    """Return a link with test defaults for all fields that are not passed."""
    return Link(
        id=f"{from_id}>{to_id}:{relationship}" if link_id is None else link_id,
        from_id=from_id,
        to_id=to_id,
        link_type=type,
        confidence=confidence,
        created_by=created_by,
        metadata=LinkMetadata(original_relationship=relationship, similarity=similarity),
        created_at=at if isinstance(at, datetime) else _START + timedelta(seconds=at),
    )


def alike(one: Any, other: Any) -> bool:
    """Return True if two values are equal. Floats may differ by less than 2e-6."""
    if isinstance(one, float):
        return abs(one - other) < 2e-6
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


class PlainEngines:
    """`Engines` in memory: each namespace has a `PlainEngine`, which lives as long as this object."""

    def __init__(self) -> None:
        self.kept: dict[str, PlainEngine] = {}

    async def namespaces(self) -> list[str]:
        """Return the namespaces with memories."""
        return [name for name, engine in self.kept.items() if engine.memories.change]

    async def stored_embedder(self, namespace: str) -> EmbedderRecord | None:
        """Return the embedder of a namespace, or None if it is empty."""
        engine = self.kept.get(namespace)
        return engine.embedder if engine is not None and engine.memories.change else None

    async def open(self, namespace: str, embedder: EmbedderRecord, settings: MemorySettings) -> PlainEngine:
        """Return the engine of a namespace, and raise if its memories have another embedder."""
        if namespace not in self.kept:
            self.kept[namespace] = PlainEngine(namespace, embedder=embedder)
        recorded = await self.stored_embedder(namespace)
        if recorded not in (None, embedder):
            raise embedder_mismatch(namespace, self.kept[namespace].embedder, embedder)
        self.kept[namespace].embedder = embedder
        return self.kept[namespace]

    async def release(self, namespace: str) -> None:
        """Do nothing: the engines stay open."""


ENGINE: Final = "MAMA_STRUCTS_TEST_ENGINE"
"""``postgres`` stores the memories of each `OpenedDirectory` on a server, and ``postgres-roles`` does so as a role."""
END_CONNECTIONS: Final = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
"""
_LENT: Final[dict[Path, str]] = {}
_RIVALS: Final[dict[Path, str]] = {}


def count(store: Path, namespace: str = "default") -> int:
    """Return the number of memories in a directory."""

    async def counted() -> int:
        async with Session.open(store, embedder=HashEmbedder(), namespace=namespace) as session:
            return await session.memories.count()

    return asyncio.run(counted())


def is_on_server() -> bool:
    """Return True if the memories of an `OpenedDirectory` are on a server."""
    return os.environ.get(ENGINE) in {"postgres", "postgres-roles"}


def has_roles() -> bool:
    """Return True if tests run as a role with policies, while a second role deletes in its own namespace."""
    return os.environ.get(ENGINE) == "postgres-roles"


def url_of(path: Path) -> str:
    """Return the database URL of a directory. The same directory always has the same database."""
    known = path.with_name(f"{path.name}.database")
    if not known.exists():
        from postgres_helpers import borrowed  # noqa: PLC0415 - needed on a server only

        path.mkdir(parents=True, exist_ok=True)
        give_back(lambda one: not one.exists())
        _LENT[path] = url = borrowed()
        if has_roles():
            from postgres_helpers import two_roles  # noqa: PLC0415 - needed with roles only

            url, rival = two_roles(url)
            _RIVALS[path] = rival
            if len(_RIVALS) == 1:
                tenant_rival.start(rival)
        known.write_text(url)
    return known.read_text()


def without_vacuum() -> None:
    """Disable vacuum, because a role may not vacuum, and transactions of the second role would delay a vacuum."""

    def vacuum(_self: PostgresPool, *_tables: str, wait: float) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    PostgresPool.vacuum = vacuum  # type: ignore[method-assign]  # in this process only


def sessions_on_server() -> None:
    """Redirect the sessions of directories to a server, except in tests that inspect the directory."""
    at = Backend.open.__func__  # type: ignore[attr-defined]  # it is a class method

    async def mapped(cls: type[Backend], place: Path | str | None, **options: Any) -> Backend:
        is_here = re.match(r"tests/(memory|postgres)/", os.environ.get("PYTEST_CURRENT_TEST", "tests/memory/"))
        opened: Backend = await at(cls, url_of(place) if isinstance(place, Path) and not is_here else place, **options)
        return opened

    Backend.open = classmethod(mapped)  # type: ignore[method-assign,assignment]  # in this process only


def give_back(is_over: Callable[[Path], bool]) -> None:
    """Release the databases of the directories for which *is_over* is true, so that other tests reuse them."""
    for path in [path for path in _LENT if is_over(path)]:
        from postgres_helpers import give_back  # noqa: PLC0415 - needed if one was borrowed only

        path.with_name(f"{path.name}.database").unlink(missing_ok=True)
        if path in _RIVALS:
            is_at_work = path == next(iter(_RIVALS))
            del _RIVALS[path]
            if is_at_work:
                tenant_rival.stop()
                for waiting in [*_RIVALS.values()][:1]:
                    tenant_rival.start(waiting)
        give_back(_LENT.pop(path))


class Planned(Exception):
    """A failure that a test injects."""


@contextlib.contextmanager
def failing_after(writer: Any, count: int) -> Iterator[None]:
    """Make the write or query that follows *count* successful ones fail."""
    target = writer._connection if is_on_server() else writer._rows_to_write
    left = iter(range(count))

    def counted(done: Callable[..., Any]) -> Callable[..., Any]:
        def one(*given: Any) -> Any:
            if next(left, None) is None:
                raise Planned
            return done(*given)

        return one

    # Restore the methods afterwards, because other plans share this transaction object.
    changed = {
        name: counted(getattr(target, name)) for name in ("put", "delete", "fetch", "execute") if hasattr(target, name)
    }
    vars(target).update(changed)
    try:
        yield
    finally:
        for name in changed:
            delattr(target, name)


def vectors_settled(store: MemoryStore) -> None:
    """Wait until the background build of a vector index has ended. On a server, each save updates the index."""
    if not is_on_server():
        store._engine._views.vectors.wait_until_idle(30)


@attrs.define(eq=False)
class OpenedDirectory:
    """A session's directory that shares no state with other sessions of this process. Created by `open`."""

    path: Path
    storage: SqliteStorage
    engines: Engines
    embedder: Embedder
    clock: Callable[[], float]
    settings: MemorySettings
    find_mentions: Callable[[str], Sequence[str]]
    find_content: FindContent = no_content
    server: PostgresPool | None = None
    _open: dict[tuple[str, ...], tuple[MemoryStore, Callable[[], Awaitable[None]]]] = attrs.field(
        factory=dict, init=False
    )

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        engines: Engines | None = None,
        embedder: Embedder = SMALL,
        clock: Callable[[], float] = time.time,
        settings: MemorySettings | None = None,
        wait: float = 60.0,
        find_mentions: Callable[[str], Sequence[str]] = lambda _text: (),
        find_content: FindContent = no_content,
    ) -> Self:
        """Open or create a directory. Its memories may be on a server, see `url_of`."""
        storage = SqliteStorage.open(path / "journal", wait=wait)
        server = PostgresPool.open(url_of(path)) if engines is None and is_on_server() else None
        if server is not None:
            engines = make_server_engines(server)
        return cls(
            path=path,
            storage=storage,
            engines=make_local_engines(storage, views=path / "views") if engines is None else engines,
            embedder=embedder,
            clock=clock,
            settings=Settings.from_env().memory if settings is None else settings,
            find_mentions=find_mentions,
            find_content=find_content,
            server=server,
        )

    async def memories(self, namespace: str = "default", *, reads: Sequence[str] = ()) -> MemoryStore:
        """Return the memory store of a namespace, which also reads the namespaces *reads*. `close` closes it."""
        names = (namespace, *reads)
        if names not in self._open:
            self._open[names] = await open_memories(
                self.engines,
                namespace=namespace,
                reads=reads,
                embedder=self.embedder,
                settings=self.settings,
                loop=LoopGuard("directory"),
                find_mentions=self.find_mentions,
                find_content=self.find_content,
                clock=self.clock,
            )
        return self._open[names][0]

    async def findings(self) -> list[Issue]:
        """
        Return the findings of `check` for the journal and for every open namespace.

        An old version of SQLite and a role that may not create indexes are properties of the machine, not faults.
        """
        found = await self.storage.check()
        for memories, _ in self._open.values():
            found += (await admin.check(memories)).issues
        found = [finding for finding in found if not (has_roles() and "may make no index" in finding.message)]
        return [finding for finding in found if finding.kind != "sqlite"]

    async def close(self) -> None:
        """Close the namespaces and the journal."""
        for _, close in self._open.values():
            await close()
        self._open.clear()
        if self.server is not None:
            self.server.close()
        await self.storage.close()
