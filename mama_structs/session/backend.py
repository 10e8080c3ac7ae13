"""
Storage backend of sessions: a shared directory or server, or a temporary store.

A directory contains ``journal/``, the store; ``locks``, which allow only one process to open a conversation;
and ``views/``, data derived from the memories in the store, which can be deleted at any time.
On a server, the same rows are in a table, memories are in separate tables, and locks are leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from mama_structs._internal.caches import RefCountedRegistry
from mama_structs._internal.event_loop import run_in_own_thread, run_to_completion
from mama_structs._internal.offload import InputSize, run_inline_or_in_thread
from mama_structs.errors import (
    InvalidArgument,
    MamaStructsError,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreReadOnly,
    UnknownNamespace,
)
from mama_structs.memory.engines.local.engines import LocalEngines
from mama_structs.memory.types.engine import Engines
from mama_structs.memory.types.namespace_erasure import NamespaceErasure
from mama_structs.memory.types.requests import check_namespace, check_progress
from mama_structs.memory.upkeep.erasure import DISK_WAIT_SECONDS
from mama_structs.refs.conversations.conversation_info import ConversationInfo
from mama_structs.refs.conversations.conversation_log import (
    RECLAIM_PENDING_KEY,
    ConversationKey,
    ConversationLog,
    check_conversation_name,
    load,
    missing_texts,
    parse_conversation_part,
    read_recall_rows,
    reclaim,
)
from mama_structs.refs.conversations.conversations import (
    delete_conversation,
    delete_namespace_rows,
    erase_recalled_ids,
    find_recalled_ids,
    find_unused,
    is_unused,
    list_conversations,
    list_keys,
    list_namespaces,
    move_conversation,
    record_use,
    strip_sources,
    unknown_conversation_error,
)
from mama_structs.refs.conversations.recall_log import RecallLog
from mama_structs.refs.conversations.stored_conversation import StoredConversation, read_conversation
from mama_structs.refs.store.entries import DeletedEntry, Entries, EntryErasure
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.settings import DescriptorSettings, ServerSettings
from mama_structs.storage.locks import DirectoryLocks
from mama_structs.storage.postgres.leases import Leases
from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.postgres.store import PostgresStorage
from mama_structs.storage.sealed_rows import DamagedValue, RowChange, Rows
from mama_structs.storage.sqlite_errors import Issue
from mama_structs.storage.sqlite_store import RowStorage, SqliteStorage, await_job
from mama_structs.tools.wire_names import make_name_hint

_log: Final = logging.getLogger("mama_structs")

CONVERSATION_OPEN_MESSAGE: Final = (
    "a conversation that another process or event loop has open holds texts of the evidence, or read them"
)
CONVERSATION_DAMAGED_MESSAGE: Final = "a conversation is damaged and may need erased texts: admin.check() names it"

# Identity of a store: the URL of a server, or a directory's real path, device and inode, which detect its replacement.
BackendKey = tuple[str, int, int] | str


def make_local_engines(storage: SqliteStorage, *, views: Path | None, locks: DirectoryLocks | None = None) -> Engines:
    """
    Return the memory engines of a directory store.

    The only place that selects the implementation.
    """
    return LocalEngines(storage, views=views, locks=locks)


def make_server_engines(server: PostgresPool) -> Engines:
    """Return the memory engines of a PostgreSQL server."""
    # Imported lazily: sessions in a directory do not need the PostgreSQL engine.
    from mama_structs.memory.engines.postgres.engine import PostgresEngines  # noqa: PLC0415

    return PostgresEngines(server)


@attrs.define(eq=False)
class OpenConversation:
    """An open conversation. *loops* contains the event loop of each session that has it open."""

    key: ConversationKey
    refs: RefStore
    log: ConversationLog | None
    loops: list[asyncio.AbstractEventLoop]
    recall_log: RecallLog = attrs.field(factory=RecallLog)

    @property
    def is_orphaned(self) -> bool:
        """True if all event loops of its sessions are closed, so that no session can close the conversation."""
        return all(loop.is_closed() for loop in self.loops)


class Backend:
    """Stores conversations and memories for the sessions of any event loop. Created by `open`."""

    def __init__(
        self,
        storage: RowStorage,
        engines: Engines,
        *,
        key: BackendKey | None = None,
        locks: DirectoryLocks | Leases | None = None,
    ) -> None:
        self.storage: RowStorage = storage
        self.engines: Engines = engines
        self.path: Path | None = Path(key[0]) if isinstance(key, tuple) else None
        self._key = key
        self._locks = locks
        self._open: dict[ConversationKey, OpenConversation] = {}
        self._is_closed = False
        # On close, unreferenced texts are deleted in these namespaces.
        # A directory stores the texts of all namespaces in one area, named "".
        self._reclaimable_namespaces: set[str] = {""} if isinstance(storage, SqliteStorage) else set()
        self._pending_releases: list[Future[object]] = []
        self._loop_locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    @classmethod
    async def open(cls, location: Path | str | None, *, options: ServerSettings | None = None) -> Backend:
        """
        Open or share the backend of a directory or server URL.

        None for a temporary one. Undone by `close`.
        """
        if location is None:
            storage = SqliteStorage.temporary()
            return cls(storage, make_local_engines(storage, views=None))
        joined: list[Backend] = []

        def join() -> None:
            joined.append(_open_directory(location) if isinstance(location, Path) else _open_server(location, options))

        try:
            await run_in_own_thread(join)
        except asyncio.CancelledError:
            for home in joined:
                await run_in_own_thread(home.close_now)
            raise
        return joined[0]

    @property
    def location(self) -> Path | str | None:
        """The directory or the server's URL without the password; None for a temporary store."""
        return None if self._key is None else self.path or self.storage.location

    @property
    def session_count(self) -> int:
        """Number of sessions that use this directory or server."""
        return 1 if self._key is None else open_backends.count_users(self._key)

    async def open_conversation(self, namespace: str, name: str | None, refs: RefStore) -> OpenConversation:
        """Open a conversation of a namespace, or create it. A *name* of None creates a fresh one."""
        loop = asyncio.get_running_loop()
        # Serialize the calls of one loop: two concurrent ones must share one conversation object.
        async with self._loop_locks.setdefault(loop, asyncio.Lock()):
            key = ConversationKey(namespace, name or uuid.uuid4().hex)
            conversation = self._open.get(key)
            if conversation is not None and conversation.is_orphaned:
                await self._close_conversation(conversation)
                conversation = None
            if conversation is not None:
                _check_shareable(conversation, refs, loop)
                conversation.loops.append(loop)
            else:
                conversation = self._register(await self._load_conversation(key, refs, loop, is_fresh=name is None))
            conversation.refs._is_named |= name is not None
            return conversation

    async def _load_conversation(
        self,
        key: ConversationKey,
        refs: RefStore,
        loop: asyncio.AbstractEventLoop,
        *,
        is_fresh: bool,
    ) -> OpenConversation:
        if self._key is None or (is_fresh and self.storage.is_read_only):
            return OpenConversation(key, refs, None, [loop])
        await self._lock(key)
        log_rows: dict[str, bytes | DamagedValue] = {}
        try:
            if is_fresh:
                entries, log = Entries(refs.settings), ConversationLog(self.storage, key)
            else:
                entries, log = await load(self.storage, key, refs.settings)
                if log.is_started:
                    log_rows = await self.storage.run_read(
                        lambda rows: read_recall_rows(rows, key), namespace=key.namespace
                    )
        except BaseException:
            self._release(key)
            raise
        refs._keep(log, entries=entries, directory=self.path)
        conversation = OpenConversation(
            key, refs, log, [loop], RecallLog.from_rows(log_rows, _make_log_writer(log, refs))
        )
        if log.is_started:
            try:
                await self._note_use(conversation)
            except BaseException:
                self._release(key)
                raise
        return conversation

    def fork(self, origin: OpenConversation, name: str | None, loop: asyncio.AbstractEventLoop) -> OpenConversation:
        """
        Create a conversation with a copy of the content of *origin*.

        If *name* is None, create a random name.
        """
        key = attrs.evolve(origin.key, name=uuid.uuid4().hex if name is None else check_conversation_name(name))
        if key in self._open:
            raise _make_exists_error(key.name)
        self._claim(key, is_fresh=name is None)
        try:
            if name is not None and self._key is not None and self.storage.has(key.start, namespace=key.namespace):
                raise _make_exists_error(key.name)
            refs, log = origin.refs.fork(), None
            refs._is_named = name is not None
            if origin.log is not None:
                log = origin.log.fork(key.name, refs._now())
                refs._keep(log, directory=self.path)
            recall_log = origin.recall_log.copy(_make_log_writer(log, refs))
        except BaseException:
            self._release(key)
            raise
        return self._register(OpenConversation(key, refs, log, [loop], recall_log))

    async def assign(self, name: str, *, origin: str, namespace: str) -> int:
        """Move a conversation that is not open to another namespace; return its number of handles."""
        checked = check_conversation_name(name)
        source, target = (ConversationKey(check_namespace(one), checked) for one in (origin, namespace))
        if source == target:
            raise InvalidArgument(f"the conversation {name!r:.80} cannot move to where it is")

        async def move() -> int:
            with contextlib.ExitStack() as claims:
                for key in (source, target):
                    await self._lock(key)
                    claims.callback(self._release, key)
                moved = await move_conversation(self.storage, source, target)
            await self._wait_for_releases()
            return moved

        # Run to completion even if the caller is cancelled, so that the locks are released.
        return await run_to_completion(move())

    async def namespaces(self) -> tuple[str, ...]:
        """Return the sorted namespaces that have memories or conversations."""
        spoken = await self.storage.run_read(list_namespaces)
        return tuple(sorted({*await self.engines.namespaces(), *spoken}))

    async def conversations(self, namespace: str) -> tuple[ConversationInfo, ...]:
        """Return the conversations of a namespace, most recently used first."""
        space = check_namespace(namespace)
        is_open = await self._make_claim_check()
        return await self.storage.run_read(lambda rows: list_conversations(rows, space, is_open), namespace=space)

    async def read_conversation(self, name: str, *, namespace: str) -> StoredConversation:
        """
        Return the content of a conversation, also while any session or process has it open.

        Changes of other processes are included as soon as they have written them.
        """
        key = ConversationKey(check_namespace(namespace), check_conversation_name(name))
        opened = self._open.get(key)
        if opened is not None and opened.log is None and opened.refs._is_here:
            # It is not stored, as in a temporary session.
            entries, now = opened.refs._entries.fork(), opened.refs._now()
            usage = entries.usage
            return StoredConversation(
                info=ConversationInfo(
                    name=key.name,
                    created_at=min((one.created_at for one in entries.iter_entries()), default=now),
                    last_used_at=now,
                    handle_count=usage.handles,
                    recalled_count=len(opened.recall_log.facts()),
                    bytes=usage.bytes,
                    is_open=True,
                ),
                entries=entries,
                recall_log=opened.recall_log.copy(lambda _rows: None),
            )
        await self.storage.flush()
        is_open = await self._make_claim_check()
        return await read_conversation(self.storage, key, is_open=is_open(key))

    async def delete(self, name: str, *, namespace: str) -> None:
        """
        Delete a conversation that is not open.

        Atomic. Texts that other conversations use remain.
        """
        key = ConversationKey(check_namespace(namespace), check_conversation_name(name))
        if not await run_to_completion(self._delete_all([key])):
            raise await unknown_conversation_error(self.storage, key)

    async def delete_namespace(
        self, name: str, progress: Callable[[int, int], object] | None = None
    ) -> NamespaceErasure:
        """Erase all memories and conversations of a namespace; see `mama_structs.admin.delete_namespace`."""
        namespace = check_namespace(name)
        check_progress(progress)
        known = await self.namespaces()
        erased = NamespaceErasure(namespace=namespace)
        if namespace in known:
            await self._wait_for_releases()
            shares_rows = not self.storage.storage_namespace(namespace)
            erased, rows = await self.engines.delete_namespace(
                namespace,
                lambda rows: delete_namespace_rows(rows, namespace, self.storage.location, shares_rows=shares_rows),
                progress,
            )
            erased = attrs.evolve(erased, conversations=rows.conversations, conversation_texts=rows.texts)
        elif not await self.engines.has_deleted_data(namespace):
            raise UnknownNamespace(namespace, hint=make_name_hint(namespace, known))
        # The deletion is committed. After a crash, the next session completes the rest.
        text_count = await reclaim(self.storage, namespace)
        pending = await self.engines.erase_deleted_data(namespace, wait=DISK_WAIT_SECONDS)
        if RECLAIM_PENDING_KEY in await self.storage.read([RECLAIM_PENDING_KEY], namespace=namespace):
            pending = (CONVERSATION_DAMAGED_MESSAGE, *pending)
        return attrs.evolve(erased, conversation_texts=erased.conversation_texts + text_count, pending=pending)

    async def expire(self, namespace: str, before: datetime) -> int:
        """Delete conversations that are not open and were last used before *before*. Return their number."""
        keys = await self.storage.run_read(lambda rows: find_unused(rows, namespace, before), namespace=namespace)
        return await run_to_completion(self._delete_all(keys, before=before))

    async def _delete_all(self, keys: Sequence[ConversationKey], *, before: datetime | None = None) -> int:
        """
        Delete conversations and return their number.

        With *before*, skip open and recently used ones.
        """
        count = 0
        for key in keys:
            try:
                await self._lock(key)
            except StoreBusy:
                if before is None:
                    raise
                continue

            def work(rows: Rows, key: ConversationKey = key) -> bool:
                return (before is None or is_unused(rows, key, before)) and delete_conversation(
                    rows, key, self.storage.location
                )

            try:
                count += await self.storage.transact(work, namespaces=[key.namespace])
            except StoreDamaged as error:
                if before is None:
                    raise
                _log.warning("a conversation that nobody uses any more is kept: %s", error)
            finally:
                self._release(key)
        await self._wait_for_releases()
        for space in {key.namespace for key in keys} if count else ():
            await reclaim(self.storage, space)
        return count

    async def erase_texts(self, erasure: EntryErasure, *, namespace: str, dry_run: bool) -> tuple[int, tuple[str, ...]]:
        """
        Delete refs and descriptors with erased texts, and the ids of missing memories in recall logs.

        Return the number of refs and descriptors, and what prevented others.
        """
        count = 0
        obstacles: dict[str, None] = {}
        keys = [key for key in self._open if key.namespace == namespace]
        stored = await self.storage.run_read(lambda rows: list_keys(rows, namespace), namespace=namespace)
        for key in dict.fromkeys([*keys, *stored]):
            try:
                count += await self._erase_conversation(key, erasure, dry_run=dry_run)
            except StoreBusy:
                obstacles[CONVERSATION_OPEN_MESSAGE] = None
            except StoreDamaged:
                obstacles[CONVERSATION_DAMAGED_MESSAGE] = None
        if not dry_run:
            await self._erase_recalled_ids(erasure, namespace)
            await reclaim(self.storage, namespace)
            # If a damaged row may refer to a text, reclaiming deletes nothing and the request stays pending.
            owed = await self.storage.read([RECLAIM_PENDING_KEY], namespace=namespace)
            obstacles |= dict.fromkeys([CONVERSATION_DAMAGED_MESSAGE] if RECLAIM_PENDING_KEY in owed else [])
        return count, (*obstacles,)

    async def _erase_recalled_ids(self, erasure: EntryErasure, namespace: str) -> None:
        """Remove ids of missing memories from the recall logs of a namespace, also if others have them open."""
        while True:
            await self.storage.flush()
            recalled = await self.storage.run_read(lambda rows: find_recalled_ids(rows, namespace), namespace=namespace)
            logs = [
                one.recall_log for one in self._open.values() if one.key.namespace == namespace and one.refs._is_here
            ]
            ids = set[str]().union(*(log.ids for log in logs), *filter(None, recalled.values()))
            gone = await erasure.find_missing_ids(ids)
            for log in logs:
                log.erase_ids(gone)
            names = [name for name, some in recalled.items() if some is None or not gone.isdisjoint(some)]
            if not names:
                return
            # Others may copy ids to other rows meanwhile, as when a parent of a fork is deleted, so check again.
            await self.storage.transact(partial(erase_recalled_ids, names=names, gone=gone), namespaces=[namespace])

    async def _erase_conversation(self, key: ConversationKey, erasure: EntryErasure, *, dry_run: bool) -> int:
        """
        Erase the selected entries of one conversation, and return their number.

        Raise `StoreBusy` if others have the conversation open.
        """
        conversation = self._open.get(key)
        with contextlib.ExitStack() as claims:
            if conversation is not None and conversation.refs._is_here and not conversation.is_orphaned:
                usage = conversation.refs.usage
                size = InputSize(usage.bytes, usage.handles)
                erased_entries = await conversation.refs._change(
                    size, lambda refs: refs._erase(erasure, dry_run=dry_run)
                )
            else:
                busy: StoreBusy | None = None
                try:
                    await self._lock(key)
                    claims.callback(self._release, key)
                except StoreBusy as error:
                    busy = error
                entries, log = await load(self.storage, key, DescriptorSettings())
                usage = entries.usage
                size = InputSize(usage.bytes, usage.handles)
                erased_entries = await run_inline_or_in_thread(size, entries.find_erased, erasure)
                if busy is not None and erased_entries:
                    raise busy
                for one in () if dry_run else erased_entries:
                    log.put(one.versioned_handle, DeletedEntry(datetime.now(UTC)))
            if not dry_run:
                await self.storage.flush()
                hashes = erasure.digests.union(one.content.hash for one in erased_entries)
                await self.storage.transact(
                    lambda rows: strip_sources(rows, key, hashes, erasure.is_read), namespaces=[key.namespace]
                )
        await self._wait_for_releases()
        return len(erased_entries)

    async def _note_use(self, conversation: OpenConversation) -> None:
        """Store the time of last use, unless another process holds the write lock. Best effort."""
        if conversation.log is not None and conversation.log.is_started:
            with contextlib.suppress(MamaStructsError):
                at = conversation.refs._now()
                await self.storage.transact(
                    lambda rows: record_use(rows, conversation.key, at), namespaces=[conversation.key.namespace], wait=0
                )

    async def close_conversation(self, conversation: OpenConversation) -> None:
        """
        Unregister the current event loop's session from a conversation.

        After the last session, the conversation stays locked until all data is on disk.
        """
        conversation.loops.remove(asyncio.get_running_loop())
        if conversation.loops:
            await self.storage.flush()
        else:
            await self._close_conversation(conversation)

    async def flush(self) -> None:
        """Wait until everything stored so far is on disk."""
        unfinished = [one for one in self._open.values() if not one.loops]
        await self.storage.flush()
        for one in unfinished:
            self._unregister(one)
        await self._wait_for_releases()

    async def check(self) -> list[Issue]:
        """Check the store for damage."""
        findings = await self.storage.check()
        return findings + [
            Issue("error", "missing", f"{text} is gone, which {change} names", change)
            for text, change in await missing_texts(self.storage)
        ]

    async def close(self) -> None:
        """Unregister one session. Closing the last session closes the backend."""
        if self._key is not None and open_backends.release(self._key) is None:
            return
        self._is_closed = True
        if self._key is not None and not self.storage.is_read_only:
            for space in sorted(self._reclaimable_namespaces):
                try:
                    await reclaim(self.storage, space)
                except StoreError as error:
                    # The texts remain unreferenced, so the next close deletes them.
                    _log.warning("unreachable texts stay stored: %s", error)
        await self.finish()

    async def finish(self) -> None:
        """Write remaining data after a failed close of a conversation or the backend. Idempotent."""
        if not self._is_closed:
            await self.flush()
            return
        await self.storage.close()
        # Release the locks last: another process may open the conversations as soon as they are released.
        if isinstance(self._locks, Leases):
            await run_in_own_thread(self._locks.close)
        elif self._locks is not None:
            self._locks.close()

    def close_now(self) -> None:
        """Close without an event loop, after opening a session failed."""
        if self._key is not None and open_backends.release(self._key) is self:
            try:
                self.storage.close_now()
            finally:
                if self._locks is not None:
                    self._locks.close()

    def _register(self, conversation: OpenConversation) -> OpenConversation:
        self._open[conversation.key] = conversation
        return conversation

    async def _close_conversation(self, conversation: OpenConversation) -> None:
        conversation.refs.close()
        await self._note_use(conversation)
        await self.storage.flush()
        self._unregister(conversation)
        await self._wait_for_releases()

    def _unregister(self, conversation: OpenConversation) -> None:
        if self._open.get(conversation.key) is conversation:
            del self._open[conversation.key]
            self._release(conversation.key)

    async def _lock(self, key: ConversationKey) -> None:
        """
        Lock a conversation without blocking the event loop.

        Requests to a server run in a thread.
        """
        if not isinstance(self._locks, Leases):
            self._claim(key)
            return
        locked_keys: list[ConversationKey] = []

        def take() -> None:
            self._claim(key)
            locked_keys.append(key)

        try:
            await run_in_own_thread(take)
        except asyncio.CancelledError:
            for one in locked_keys:
                self._release(one)
            raise

    def _claim(self, key: ConversationKey, *, is_fresh: bool = False) -> None:
        self._reclaimable_namespaces.add(self.storage.storage_namespace(key.namespace))
        try:
            if isinstance(self._locks, Leases):
                # No other session can claim a fresh random name, so do not wait for the server.
                (self._locks.claim_later if is_fresh else self._locks.claim)(key.key_part, key.namespace)
            elif self._locks is not None:
                self._locks.claim(key.lock_name)
        except StoreBusy as error:
            raise _make_busy_error(key.name, "another process or event loop") from error

    def _release(self, key: ConversationKey) -> None:
        if isinstance(self._locks, Leases):
            pending_release = self._locks.release(key.key_part)
            self._pending_releases += [] if pending_release is None else [pending_release]
        elif self._locks is not None:
            self._locks.release(key.lock_name)

    async def _wait_for_releases(self) -> None:
        """Wait until the released locks can be acquired by other processes."""
        while self._pending_releases:
            with contextlib.suppress(StoreError):  # Ignore a failure, because the lease expires on the server.
                await await_job(self._pending_releases.pop())

    async def _make_claim_check(self) -> Callable[[ConversationKey], bool]:
        """Return a predicate that is true for conversations that any process has open."""
        locks = self._locks
        if isinstance(locks, Leases):
            claimed = await run_in_own_thread(locks.find_claimed_names)
            return lambda key: key.key_part in claimed
        return lambda key: locks is not None and locks.is_claimed(key.lock_name)


@contextlib.asynccontextmanager
async def open_backend(location: Path | str) -> AsyncIterator[Backend]:
    """Open the backend of a directory or server without a session."""
    home = await Backend.open(location)
    try:
        yield home
    finally:
        await run_to_completion(home.close())


open_backends: Final[RefCountedRegistry[BackendKey, Backend]] = RefCountedRegistry()
"""The directories and servers that this process has open."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_backends.reset)


def _open_directory(path: Path) -> Backend:
    """Return the backend of a directory, which is created if missing. Blocking."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        real = os.path.realpath(path, strict=True)
    except OSError as error:
        kind = StoreReadOnly if isinstance(error, PermissionError) else StoreError
        raise kind(f"the directory {os.fspath(path)!r} cannot be made: {error.strerror}") from error
    status = Path(real).stat()
    key = (real, status.st_dev, status.st_ino)

    def make() -> Backend:
        storage = SqliteStorage.open(Path(real) / "journal")
        try:
            # A store that cannot be written to needs no locks, and their file cannot be opened.
            locks = None if storage.is_read_only else DirectoryLocks(Path(real))
            engines = make_local_engines(storage, views=Path(real) / "views", locks=locks)
            return Backend(storage, engines, key=key, locks=locks)
        except BaseException:
            storage.close_now()
            raise

    return open_backends.acquire(key, make)


def _open_server(url: str, options: ServerSettings | None) -> Backend:
    """Return the backend of a server. Blocking."""

    def make() -> Backend:
        with contextlib.ExitStack() as opened:
            # Open the pool twice, because storage and leases are closed one after the other and each closes its pool.
            servers = [PostgresPool.open(url, options=options) for _ in range(2)]
            for server in servers:
                opened.callback(server.close)
            engines = make_server_engines(servers[0])
            leases = Leases(servers[1], seconds=servers[1].options.lease_seconds)
            storage = PostgresStorage(
                servers[0],
                lease_name_of=parse_conversation_part,
                leases=leases,
                wait=servers[0].options.pool_timeout,
            )
            home = Backend(storage, engines, key=url, locks=leases)
            opened.pop_all()
        return home

    return open_backends.acquire(url, make)


def _make_log_writer(log: ConversationLog | None, refs: RefStore) -> Callable[[Mapping[str, RowChange]], None]:
    """Return a function that stores changes of the recall log, or does nothing without *log*."""
    return lambda rows: None if log is None else log.write_recall_rows(rows, refs._now())


def _make_exists_error(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"there is a conversation {name!r:.80} already",
        hint="come back to it with Session.open(..., conversation=...), or choose another name",
    )


def _make_busy_error(name: str, where: str) -> StoreBusy:
    return StoreBusy(
        f"the conversation {name!r:.80} is open in {where}",
        waited=0.0,
        hint="close it there first, or take another name",
    )


def _check_shareable(conversation: OpenConversation, refs: RefStore, loop: asyncio.AbstractEventLoop) -> None:
    if not conversation.refs._is_here or any(one is not loop and not one.is_closed() for one in conversation.loops):
        raise _make_busy_error(conversation.key.name, "another event loop of this process")
    if not conversation.refs._is_like(refs):
        raise InvalidArgument(
            f"the conversation {conversation.key.name!r:.80} is open with other settings",
            hint="open it with the same files_root, settings.descriptors and settings.answers, or close the other",
        )
