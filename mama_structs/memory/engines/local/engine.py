"""
Local engine of one namespace.

Plans run on the journal and its views, in the single thread of the namespace's store.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

import attrs

from mama_structs._internal.telemetry import format_error
from mama_structs.errors import SessionClosed, StoreBusy, StoreDamaged, StoreError, StoreFull
from mama_structs.memory.engines.local.change_watermark import ChangeWatermark
from mama_structs.memory.engines.local.consistency_check import ConsistencyCheck
from mama_structs.memory.engines.local.erasure import erase_from_disk, view_folder
from mama_structs.memory.engines.local.journal_rows import (
    ChangeRow,
    NamespaceHead,
    RowKeys,
    encode_row,
    find_last_number,
    find_numbers,
    number_key,
    read_head,
)
from mama_structs.memory.engines.local.plans import JournalReader, JournalWriter
from mama_structs.memory.engines.local.text_repair import (
    FindRepairs,
    find_missing_uses,
    find_orphaned_texts,
    find_orphaned_uses,
)
from mama_structs.memory.engines.local.views.snapshots import SnapshotInvalid, SnapshotStore
from mama_structs.memory.engines.local.views.view_set import (
    INVALID_VIEW_ERRORS,
    LoadedViews,
    ViewBuilder,
    ViewSet,
    apply_changes,
    build_snapshot_parts,
    load_views,
    read_changes_since,
)
from mama_structs.memory.types.engine import EmbedderRecord, ProgressCallback, Reader, Writer, embedder_mismatch
from mama_structs.settings import MemorySettings
from mama_structs.storage.sealed_rows import ERASING_KEY_PREFIX, Rows, Snapshot
from mama_structs.storage.sqlite_errors import Issue
from mama_structs.storage.sqlite_store import SqliteStorage, await_job, copy_error

T = TypeVar("T")

# Maximum number of plans per transaction.
MAX_PLANS_PER_TRANSACTION: Final = 256
SLICE_MEMORIES: Final = 100
# Rows per step of a rebuild. A step takes some 40 ms.
REBUILD_PAGE_ROWS: Final = 200
# If more changes than this must be replayed first, a transaction is postponed, up to MAX_POSTPONEMENTS times.
MAX_REPLAY_IN_TRANSACTION: Final = 200
MAX_POSTPONEMENTS: Final = 3
# A transaction that already took this long starts no further plan.
MAX_TRANSACTION_SECONDS: Final = 0.1
MAX_DROPS_PER_TRANSACTION: Final = 5_000
MAX_SLICE_SECONDS: Final = 0.01
# A snapshot is due only after the change number has grown by at least 1/8 since the last snapshot.
SNAPSHOT_INTERVAL_DIVISOR: Final = 8
# Do not write a snapshot after fewer changes, because reading them from the journal is faster.
SNAPSHOT_MIN_CHANGES: Final = 200
# Memories per step of a check. Each memory takes some 0.1 ms.
CHECK_PAGE_ROWS: Final = 100

_log: Final = logging.getLogger("mama_structs")


@attrs.define(eq=False)
class _PendingWrite(Generic[T]):
    """A plan that waits for its write transaction."""

    plan: Callable[[JournalWriter], T]
    done: Future[T] = attrs.field(factory=Future)
    # Resolved when the links to memories that the plan deleted are removed.
    cleanup_done: Future[None] | None = None
    result: Any = None
    error: BaseException | None = None
    runs_alone: bool = False


@attrs.define(eq=False)
class _WriteGroup:
    """Plans that share a transaction, with their writers and the state before the transaction."""

    plans: list[_PendingWrite[Any]] = attrs.field(factory=list)
    written: list[JournalWriter] = attrs.field(factory=list)
    plans_with_cleanup: list[_PendingWrite[Any]] = attrs.field(factory=list)
    before: int = 0
    head: NamespaceHead | None = None
    # True if the plans were returned to the queue.
    is_requeued: bool = False
    # Number of times that the transaction was postponed to replay changes of other processes first.
    postponements: int = 0


@attrs.define(eq=False)
class _Rebuild:
    """New views that are built while the old views are in use."""

    # The row keys and the namespace identity for which the new views are built.
    of: tuple[RowKeys, str | None] | None = None
    derivation: ViewBuilder | None = None
    is_read: bool = False
    rounds: int = 0

    @property
    def count(self) -> int:
        """Number of memories in the new views."""
        return 0 if self.derivation is None else len(self.derivation.loaded.views.memory_table)

    def drop(self) -> None:
        """Discard the new views. The next step, if any, starts the rebuild from the beginning."""
        derivation, self.derivation = self.derivation, None
        if derivation is not None:
            derivation.loaded.views.vectors.close()


class LocalEngine:
    """Engine for the memories of one namespace in a directory. Call `open` before the first use."""

    def __init__(
        self,
        storage: SqliteStorage,
        namespace: str,
        embedder: EmbedderRecord,
        settings: MemorySettings,
        *,
        views: Path | None,
    ) -> None:
        self._storage = storage
        self.namespace: str = namespace
        self.settings: MemorySettings = settings
        self._views_folder = views
        self._snapshot_folder = None if views is None else view_folder(views, namespace)
        self._snapshots: SnapshotStore | None = None
        self._watermark = ChangeWatermark(self._snapshot_folder)
        self._row_keys = RowKeys(namespace, embedder, str(storage.directory))
        self._head: NamespaceHead | None = None
        self._views: ViewSet | None = None
        self._change = 0
        self._snapshot_at = 0
        self._damaged: dict[str, str] = {}
        self._guard = threading.Lock()
        self._queue: deque[_PendingWrite[Any]] = deque()
        self._is_transaction_scheduled = False
        self._is_slice_scheduled = False
        # True if rows may contain links to deleted memories. `_cleaning` is resolved when these links are removed.
        self._needs_cleanup = False
        self._cleaning: Future[None] | None = None
        self._closed = False

    @property
    def embedder(self) -> EmbedderRecord:
        """The embedder whose vectors the engine uses."""
        return self._row_keys.embedder

    async def open(self) -> None:
        """Load the views from a snapshot or from the journal."""
        await self._storage.run_read(self._prepare)

    async def read(self, plan: Callable[[Reader], T]) -> T:
        """Run *plan* on the current state."""
        return await self._run_read(lambda rows: plan(self._reader(rows)))

    async def write(self, plan: Callable[[Writer], T]) -> T:
        """
        Run *plan* in a write transaction, and return its result when it is durable.

        Other plans may share the transaction.
        """
        self._check_open()
        waiting = _PendingWrite(plan)
        waiting.done.set_running_or_notify_cancel()
        with self._guard:
            self._queue.append(waiting)
            self._schedule_writes()
        result = await await_job(waiting.done)
        if waiting.cleanup_done is not None:
            await await_job(waiting.cleanup_done)
        return result

    async def check(self, progress: ProgressCallback | None = None) -> list[Issue]:
        """Check all memories, vectors, links and changes, and compare them with the views."""
        inspection = ConsistencyCheck(CHECK_PAGE_ROWS)
        await self._run_read(lambda _rows: self._read_watermark())
        await self._run_read(self._compare_watermark)
        total = await self.read(lambda reader: reader.count())
        tell = progress or _ignore_progress
        while await self._run_read(lambda rows: inspection.step(rows, self._catch_up(rows), self._row_keys)):
            tell(min(inspection.memories, total), total)
        tell(total, total)
        return [*inspection.findings, *await self._run_read(lambda _rows: self._watermark.findings())]

    async def rebuild(self, progress: ProgressCallback | None = None) -> list[str]:
        """
        Build all views again from the journal, replace the old ones, and write a snapshot.

        Searches run between the steps, on the old views. Afterwards the journal counts as complete, even if the
        watermark shows that changes were lost. Recorded uses of texts that no memory names, and texts without uses,
        are deleted and erased.

        Returns:
            A line for each damaged row.

        """
        tell = progress or _ignore_progress
        total = self.figures().get("memories", 0)
        rebuild = _Rebuild()
        try:
            while not await self._run_read(lambda rows: self._rebuild_step(rows, rebuild)):
                tell(min(rebuild.count, total), total)
        except BaseException:
            # Drop the views in the store's thread, because a cancelled step may still be running there.
            try:
                self._storage.submit_job(rebuild.drop)
            except SessionClosed:
                rebuild.drop()
            raise
        found = list(self._damaged.values())
        await self.wait_until_idle(progress)
        if not self._storage.is_read_only:
            await self._repair(find_missing_uses, self._row_keys.memories)
            await self._repair(find_orphaned_uses, self._row_keys.all_uses)
            await self._repair(find_orphaned_texts, self._row_keys.contents)
            await self.erase(wait=0)
        await self.snapshot()
        return found

    async def _repair(self, find: FindRepairs, prefix: str) -> None:
        """Repair the rows with a key prefix, page by page. Pages without damage are not written."""
        after: str | None = None

        def find_in_page(rows: Snapshot) -> tuple[list[str], bool]:
            page = rows.page_of_keys(prefix, after=after, limit=REBUILD_PAGE_ROWS, last_first=False)
            return page, bool(find(rows, self._row_keys, page))

        while True:
            page, is_damaged = await self._run_read(find_in_page)
            if not page:
                return
            if is_damaged:
                await self.write(lambda writer: cast("JournalWriter", writer).repair(find, page))  # noqa: B023 - awaited
            after = page[-1]

    async def wait_until_idle(self, progress: ProgressCallback | None = None) -> None:
        """Wait until the words of all memories are indexed."""
        total = await self.read(lambda reader: reader.count())
        tell = progress or _ignore_progress
        while left := await self._storage.run_read(self._index_pending_words):
            tell(total - min(left, total), total)
        tell(total, total)

    @property
    def unerasable_places(self) -> tuple[str, ...]:
        """None: `erase` reaches all files of the store."""
        return ()

    def figures(self) -> dict[str, Any]:
        """Return statistics about the views. The statistics may lack the last changes."""
        views, head = self._views, self._head
        maintained_at = head.maintained_at if head is not None else 0
        return {} if views is None else {**views.stats(), "maintained_at": maintained_at}

    async def begin_maintenance(self, now_ms: int, every_ms: int) -> int | None:
        """
        Record the start of maintenance, and return the time from which ages are computed.

        Return None if maintenance is not due, or if it never ran before.

        Args:
            now_ms: The current time, in milliseconds.
            every_ms: The minimum time between two runs, in milliseconds.

        """
        self._check_open()
        head = self._head
        if head is None or 0 <= now_ms - head.maintained_at < every_ms:
            return None

        def work(rows: Rows) -> int | None:
            head = self._read_head(rows)
            if head is None or 0 <= now_ms - head.maintained_at < every_ms:
                return None
            before, head.maintained_at = head.maintained_at, now_ms
            rows.put(self._row_keys.head, encode_row(head))
            self._head = head
            # Use the earlier of two times, so that a clock that is years ahead does not expire valid data.
            # Return None at the first run, because nothing can have expired in a new store.
            return min(now_ms, before) if before else None

        try:
            return await self._storage.transact(work, wait=0)
        except StoreBusy:
            # Another writer is active. Maintenance stays due and runs at the next opportunity.
            return None

    async def adopt(self, embedder: EmbedderRecord) -> bool:
        """Switch to the vectors of *embedder*. Return False, without a change, if some memories have none."""
        self._check_open()
        lacking: list[str] = []

        def work(rows: Rows) -> None:
            lacking.extend(self._reader(rows).without_vectors(embedder))
            head = self._read_head(rows)
            if lacking or head is None or head.embedder == embedder:
                return
            self._drop_orphans(rows, embedder)
            change = number_key(self._row_keys.changes, self._last_change(rows) + 1)
            rows.put(change, encode_row(ChangeRow(salt=secrets.token_hex(8))))
            # The new identity invalidates snapshots, because they contain the old vectors.
            head.began_as, head.identity, head.embedder = head.history, secrets.token_hex(16), embedder
            rows.put(self._row_keys.head, encode_row(head))

        def job() -> None:
            self._storage.transact_in_job(work)
            # Replace the row keys in the same job as the head, so that no plan uses the new head with the old row keys.
            if not lacking:
                self._row_keys = RowKeys(self.namespace, embedder, self._row_keys.directory)
                self._head = None
                self._drop_views()

        await await_job(self._storage.submit_job(job))
        if lacking:
            return False
        await self.read(lambda reader: reader.change)
        while await self._storage.transact(self._drop_other_vectors):
            pass
        return True

    async def erase(self, *, wait: float) -> tuple[str, ...]:
        """
        Remove erased data from disk, and return a message for each copy that could not be removed.

        Args:
            wait: Maximum seconds to wait for other processes that read the journal.

        """
        if not await self._run_read(lambda rows: rows.last_key(ERASING_KEY_PREFIX)):
            return ()
        while await self.write(lambda writer: cast("JournalWriter", writer).clean_up()):
            """Rows may still contain links to deleted memories, and thereby their ids."""
        had_snapshot = await self._run_read(lambda _rows: self._snapshots is not None and self._snapshots.last() > 0)
        held = await erase_from_disk(self._storage, self._views_folder, wait=wait)
        if had_snapshot and not held:
            await self.snapshot()
        return held

    async def snapshot(self) -> bool:
        """Write a snapshot of the views. Return True if it was written."""
        return await self._run_read(self._write_snapshot)

    async def close(self) -> None:
        """Write a snapshot and stop background work. Idempotent."""
        if self._closed:
            return
        with self._guard:
            self._closed = True
        try:
            # Submit a job, which runs after pending writes. A plain read would run before them.
            await await_job(self._storage.submit_job(lambda: self._storage.run_read_in_job(self._finish)))
        except StoreError as error:
            _log.warning("no snapshot of the memories was written: %s", error)
        try:
            # Retry the erasure, because reads by this engine may have prevented it until now.
            await erase_from_disk(self._storage, self._views_folder, wait=0)
        except StoreError as error:
            _log.warning("erased data is still on the disk: %s", error)

    async def _run_read(self, plan: Callable[[Snapshot], T]) -> T:
        self._check_open()
        return await self._storage.run_read(lambda rows: self._run_with_valid_views(rows, plan))

    # The methods below run in the store's thread.

    def _run_with_valid_views(self, rows: Snapshot, look: Callable[[Snapshot], T]) -> T:
        try:
            return look(rows)
        except SnapshotInvalid as error:
            self._discard_invalid_views(error)
            return look(rows)

    def _discard_invalid_views(self, error: SnapshotInvalid) -> None:
        _log.warning("%s: the views of the memories are rebuilt", error)
        self._drop_views()

    def _drop_other_vectors(self, rows: Rows) -> bool:
        """Delete some vectors of other embedders. Return True if there are more."""
        kept = self._row_keys.vectors
        others = [key for key in rows.keys(self._row_keys.all_vectors) if not key.startswith(kept)]
        for key in others[:MAX_DROPS_PER_TRANSACTION]:
            rows.delete(key)
        return len(others) > MAX_DROPS_PER_TRANSACTION

    def _drop_orphans(self, rows: Rows, embedder: EmbedderRecord) -> None:
        """Delete those vectors of *embedder* whose memories were deleted while another embedder was in use."""
        memories = set(find_numbers(rows, self._row_keys.memories))
        prefix = self._row_keys.vectors_prefix(embedder)
        for number in find_numbers(rows, prefix):
            if number not in memories:
                rows.delete(number_key(prefix, number))

    def _finish(self, rows: Snapshot) -> None:
        try:
            if self._views is not None and self._change - self._snapshot_at >= SNAPSHOT_MIN_CHANGES:
                self._write_snapshot(rows)
        finally:
            self._drop_views()
            self._watermark.close()

    def _drop_views(self) -> None:
        views, self._views = self._views, None
        if views is not None:
            views.vectors.close()

    def _reader(self, rows: Snapshot) -> JournalReader:
        views = self._catch_up(rows)
        return JournalReader(rows, views, self._row_keys, self._change, damaged=len(self._damaged))

    def _prepare(self, rows: Snapshot) -> None:
        self._head = self._read_head(rows)
        if self._head is not None:
            self._check_embedder(self._head)
            self._catch_up(rows)

    def _read_head(self, rows: Snapshot) -> NamespaceHead | None:
        return read_head(rows, self.namespace, self._row_keys.directory)

    def _use_head(self, head: NamespaceHead | None) -> None:
        self._head = head
        self._watermark.use(None if head is None else head.history)
        self._snapshots = None
        if head is not None and self._snapshot_folder is not None:
            self._snapshots = SnapshotStore(self._snapshot_folder, identity=head.identity)

    def _check_embedder(self, head: NamespaceHead) -> None:
        if head.embedder != self._row_keys.embedder:
            raise embedder_mismatch(self.namespace, head.embedder, self._row_keys.embedder)

    def _catch_up(self, rows: Snapshot) -> ViewSet:
        if self._views is None:
            return self._load(rows)
        last = self._last_change(rows)
        if last > self._change:
            try:
                self._replay(rows, self._views, last)
            except SnapshotInvalid as error:
                # Reload the views here, because a transaction that fails before its first plan is not retried.
                self._discard_invalid_views(error)
                return self._load(rows)
        elif last < self._change:
            # Change rows are never removed, so the journal was replaced or is damaged.
            return self._load(rows)
        return self._views

    def _last_change(self, rows: Snapshot) -> int:
        return max(find_last_number(rows, self._row_keys.memories), find_last_number(rows, self._row_keys.changes))

    def _load(self, rows: Snapshot, *, ignore_snapshot: bool = False) -> ViewSet:
        # Read the head again, because another process may have switched to another embedder.
        head = self._read_head(rows)
        self._use_head(head)
        if head is not None:
            self._check_embedder(head)
        last = self._last_change(rows)
        self._read_watermark()
        if self._watermark.may_have_lost_changes(last):
            # Another process may have written after this read began, so compare again with a later read.
            self._schedule_background(self._warn_lost_changes)
        snapshots = None if ignore_snapshot else self._snapshots
        loaded = load_views(rows, self._row_keys, snapshots, last=last, exact_up_to=self.settings.exact_up_to)
        self._use(loaded)
        if last != self._change:
            try:
                self._replay(rows, loaded.views, last)
            except (*INVALID_VIEW_ERRORS, SnapshotInvalid):
                if ignore_snapshot:
                    raise
                # The snapshot is undamaged, but does not match the journal.
                return self._load(rows, ignore_snapshot=True)
        self._schedule_slice()
        self._needs_cleanup = rows.last_key(self._row_keys.all_cleanups) is not None
        return loaded.views if self._views is None else self._views

    def _use(self, loaded: LoadedViews) -> None:
        self._drop_views()
        self._views, self._change, self._damaged = loaded.views, loaded.change, loaded.damaged
        self._snapshot_at = loaded.snapshot_at
        if self._damaged:
            _log.warning("%d damaged rows of the memories are skipped: see admin.check()", len(self._damaged))

    def _rebuild_step(self, rows: Snapshot, rebuild: _Rebuild) -> bool:
        """Run the next step of a rebuild. Return True when the new views have replaced the old ones."""
        head = self._read_head(rows)
        if head is not None:
            self._check_embedder(head)
        last = self._last_change(rows)
        of = (self._row_keys, None if head is None else head.identity)
        if rebuild.derivation is not None and (rebuild.of != of or last < rebuild.derivation.loaded.change):
            rebuild.drop()
        if rebuild.derivation is None:
            fresh = ViewBuilder(self._row_keys, last, exact_up_to=self.settings.exact_up_to)
            rebuild.of, rebuild.derivation, rebuild.is_read = of, fresh, False
        if not rebuild.is_read:
            rebuild.is_read = not rebuild.derivation.step(rows, REBUILD_PAGE_ROWS)
            return False
        loaded = rebuild.derivation.loaded
        changes = read_changes_since(rows, self._row_keys, loaded.change)
        if changes is None:
            rebuild.drop()
            return False
        behind = last - loaded.change
        apply_changes(rows, self._row_keys, loaded, last, changes, force_update=True)
        rebuild.rounds += 1
        if behind > MAX_REPLAY_IN_TRANSACTION and rebuild.rounds < MAX_POSTPONEMENTS:
            return False
        self._use_head(head)
        if self._snapshots is not None:
            self._snapshots.clear()
        self._watermark.reset(last)
        self._use(loaded)
        self._schedule_slice()
        return True

    def _read_watermark(self) -> None:
        self._watermark.read_last_seen(max(self._change, (self._snapshots and self._snapshots.last()) or 0))

    def _compare_watermark(self, rows: Snapshot) -> None:
        head = self._read_head(rows)
        self._watermark.use(None if head is None else head.history)
        self._watermark.compare(self._last_change(rows))

    def _warn_lost_changes(self, rows: Snapshot) -> None:
        self._compare_watermark(rows)
        for finding in self._watermark.findings():
            _log.warning("the memories of %r: %s", self.namespace, finding.message)

    def _replay(self, rows: Snapshot, views: ViewSet, last: int) -> None:
        try:
            self._apply_changes(rows, views, last)
        except BaseException:
            # The error may have left the views half updated, so the next plan must load them again.
            self._drop_views()
            raise

    def _apply_changes(self, rows: Snapshot, views: ViewSet, last: int) -> None:
        changes = read_changes_since(rows, self._row_keys, self._change)
        if changes is None:
            # A change row is unreadable, so it is unknown which memories changed. Build the views again.
            self._drop_views()
            self._load(rows, ignore_snapshot=True)
            return
        # If the namespace was empty, another process may have created it with another embedder.
        if (changes.count or self._head is None) and self._reload_if_embedder_changed(rows):
            return
        loaded = LoadedViews(views, self._change, damaged=self._damaged)
        apply_changes(rows, self._row_keys, loaded, last, changes)
        self._change = last
        self._schedule_slice()

    def _record_damaged(self, key: str, error: StoreDamaged) -> None:
        self._damaged[key] = error.findings[0]
        _log.warning("a damaged row of the memories is skipped: see admin.check()")

    def _reload_if_embedder_changed(self, rows: Snapshot) -> bool:
        """Reload the views and return True if another process changed the embedder."""
        head = self._read_head(rows)
        if head is None:
            return False
        self._check_embedder(head)
        before = self._head
        self._use_head(head)
        if before is None or before.identity == head.identity:
            return False
        self._drop_views()
        self._load(rows, ignore_snapshot=True)
        return True

    def _schedule_writes(self) -> None:
        """Schedule a transaction if plans wait. The caller must hold the guard."""
        if self._queue and not self._is_transaction_scheduled:
            self._storage.submit_job(self._run_transaction)
            self._is_transaction_scheduled = True

    def _run_transaction(self) -> None:
        """Run waiting plans in one transaction, then resolve their futures."""
        group = _WriteGroup()
        failure: BaseException | None = None
        try:
            # A deletion must not wait for texts of conversations that have no room.
            while not self._storage.transact_in_job(lambda rows: self._write_group(rows, group), is_independent=True):
                # Replay changes of other processes before the transaction, because it blocks other writers.
                self._storage.run_read_in_job(self._catch_up)
        except BaseException as error:  # noqa: BLE001 - passed to all waiting callers
            failure = error
            self._handle_failure(group, error)
        else:
            self._handle_commit(group)
        if failure is not None and not group.plans and not group.is_requeued:
            # The transaction did not begin, so all waiting plans fail.
            group.plans = self._dequeue_plans(len(self._queue))
        _resolve_plans(group.plans, failure)
        try:
            with self._guard:
                self._schedule_writes()
        except SessionClosed as error:
            _resolve_plans(self._dequeue_plans(len(self._queue)), error)
        if failure is None:
            self._after_write()

    def _handle_failure(self, group: _WriteGroup, failure: BaseException) -> None:
        """Undo a failed transaction in the views. If a retry may succeed, return its plans to the queue."""
        if isinstance(failure, SnapshotInvalid):
            self._discard_invalid_views(failure)
        elif group.written:
            self._undo_in_views(group.written)
            self._change = group.before
        is_full = isinstance(failure, StoreFull)
        if isinstance(failure, SnapshotInvalid) or (is_full and len(group.plans) > 1):
            # If the disk is full, run the plans separately, because some may fit into the remaining space.
            for one in reversed(group.plans):
                one.result, one.error, one.runs_alone = None, None, is_full
                self._queue.appendleft(one)
            # The queue is not empty, so another job will be scheduled.
            group.is_requeued = bool(group.plans)
            group.plans.clear()

    def _dequeue_plans(self, count: int) -> list[_PendingWrite[Any]]:
        """
        Remove up to *count* waiting plans from the queue and return them.

        From now on, new plans schedule another job.
        """
        with self._guard:
            self._is_transaction_scheduled = False
            return [self._queue.popleft() for _ in range(min(count, len(self._queue)))]

    def _write_group(self, rows: Rows, group: _WriteGroup) -> bool:
        """Run the next plans. Return False if too many changes of other processes must be replayed first."""
        if group.postponements < MAX_POSTPONEMENTS and self._is_far_behind(rows):
            group.postponements += 1
            return False
        started = time.monotonic()
        # Check the format again: a newer version can raise it without adding a change to the journal.
        self._read_head(rows)
        views = self._catch_up(rows)
        group.before = self._change
        group.plans = self._dequeue_plans(1 if self._queue[0].runs_alone else MAX_PLANS_PER_TRANSACTION)

        def is_due() -> bool:
            return time.monotonic() - started > MAX_TRANSACTION_SECONDS

        for position, one in enumerate(group.plans):
            if position and is_due():
                # Postpone the remaining plans, because other processes and the callers of finished plans are waiting.
                self._queue.extendleft(reversed(group.plans[position:]))
                del group.plans[position:]
                break
            self._run(one, rows, views, group, is_due)
        needed = max((writer.format for writer in group.written), default=0)
        if needed > (0 if self._head is None else self._head.format):
            group.head = self._ensure_head(rows, needed)
        return True

    def _run(
        self, one: _PendingWrite[Any], rows: Rows, views: ViewSet, group: _WriteGroup, is_due: Callable[[], bool]
    ) -> None:
        damaged = len(self._damaged)
        writer = JournalWriter(rows, views, self._row_keys, self._change, damaged=damaged, is_due=is_due)
        try:
            with rows.savepoint():
                one.result = one.plan(writer)
                change = writer.finish()
        except SnapshotInvalid:
            # All plans of the transaction used invalid views, so abort the transaction.
            raise
        except BaseException as error:
            is_undone = self._undo_in_views([writer])
            if not is_undone or rows.failure is not None or not isinstance(error, Exception):
                raise
            one.error = error
        else:
            self._change = change
            group.written.append(writer)
            if writer.needs_cleanup:
                group.plans_with_cleanup.append(one)

    def _handle_commit(self, group: _WriteGroup) -> None:
        """Record the committed changes, and schedule the removal of links to deleted memories."""
        if group.head is not None:
            self._use_head(group.head)
        if group.written:
            # Record the change only now, because only durable changes may be recorded.
            self._watermark.record(self._change)
        # Also process clean-up rows that a killed process left, but only after a write, because readers take no lock.
        self._needs_cleanup |= bool(group.plans_with_cleanup)
        if self._needs_cleanup and self._cleaning is None:
            self._cleaning = Future()
            self._schedule_cleanup()
        for one in group.plans_with_cleanup:
            one.cleanup_done = self._cleaning

    def _schedule_cleanup(self) -> None:
        """Queue one step of the clean-up. When this step is done, its callback queues the next step."""
        some: _PendingWrite[bool] = _PendingWrite(JournalWriter.clean_up)
        some.done.set_running_or_notify_cancel()
        some.done.add_done_callback(self._on_cleanup_done)
        self._needs_cleanup = False
        # If scheduling fails, all waiting plans receive the error, including this one.
        with self._guard, contextlib.suppress(SessionClosed):
            if self._closed:
                some.done.set_result(False)
            else:
                self._queue.append(some)
                self._schedule_writes()

    def _on_cleanup_done(self, done: Future[bool]) -> None:
        error = done.exception()
        if error is None and (done.result() or self._needs_cleanup):
            self._schedule_cleanup()
            return
        # Readers do not see the remaining links, and the next write resumes the clean-up.
        if error is not None:
            self._needs_cleanup = True
            _log.warning("links to deleted memories are still to be taken away: %s", error)
        if self._cleaning is not None:
            self._cleaning.set_result(None)
            self._cleaning = None

    def _is_far_behind(self, rows: Rows) -> bool:
        return self._views is None or self._last_change(rows) - self._change > MAX_REPLAY_IN_TRANSACTION

    def _ensure_head(self, rows: Rows, needed: int) -> NamespaceHead:
        """Return the head row of the namespace, in the needed format or a later one. Create it if it does not exist."""
        head = self._read_head(rows)
        if head is None:
            head = NamespaceHead(identity=secrets.token_hex(16), embedder=self._row_keys.embedder)
        head.format = max(head.format, needed)
        self._check_embedder(head)
        rows.put(self._row_keys.head, encode_row(head))
        return head

    def _undo_in_views(self, writers: Sequence[JournalWriter]) -> bool:
        """Undo the changes of writers in the views, last writer first. Return False if that failed."""
        try:
            for writer in reversed(writers):
                writer.undo()
        except Exception as error:  # noqa: BLE001 - any error leaves the views inconsistent
            # Discard the views, because a failed undo leaves them inconsistent.
            _log.error("the views of the memories are rebuilt: %s", format_error(error))
            self._drop_views()
            return False
        return True

    def _after_write(self) -> None:
        # Grow the interval with the number of changes. With a constant interval, an import would take quadratic time.
        due = self._snapshot_at + max(self.settings.snapshot_every, self._snapshot_at // SNAPSHOT_INTERVAL_DIVISOR)
        if self._snapshot_folder is not None and self._change >= due:
            self._snapshot_at = self._change
            self._schedule_background(self._write_snapshot)

    def _write_snapshot(self, rows: Snapshot) -> bool:
        if self._snapshot_folder is None or self._storage.is_read_only:
            return False
        views = self._catch_up(rows)
        if self._snapshots is None or views.unindexed_nodes:
            return False
        self._snapshot_at = self._change
        generation = self._snapshots.write(
            self._change,
            build_snapshot_parts(rows, self._row_keys, views, self._change),
            last=self._change,
            should_retain=views.vectors.should_retain,
        )
        if generation is not None:
            views.vectors.record_saved_files(generation.parts)
        return generation is not None

    def _schedule_slice(self) -> None:
        if (
            self._views is not None
            and self._views.unindexed_nodes
            and not self._is_slice_scheduled
            and not self._closed
        ):
            self._is_slice_scheduled = True
            self._schedule_background(self._index_pending_words)

    def _index_pending_words(self, rows: Snapshot) -> int:
        """Index the words of some pending memories, and return the number still pending."""
        self._is_slice_scheduled = False
        if self._closed:
            return 0
        views = self._catch_up(rows)
        started = time.monotonic()
        while views.unindexed_nodes and time.monotonic() - started < MAX_SLICE_SECONDS:
            nodes = [node for node, _ in zip(views.unindexed_nodes, range(SLICE_MEMORIES), strict=False)]
            keys = [number_key(self._row_keys.memories, number) for number in views.memory_table.numbers(nodes)]
            found = rows.get_many(keys)
            for node, key in zip(nodes, keys, strict=True):
                try:
                    views.index(node, self._row_keys.entry(key, found.get(key)).memory)
                except StoreDamaged as error:
                    self._record_damaged(key, error)
                    views.remove(node)
        self._schedule_slice()
        return len(views.unindexed_nodes)

    def _schedule_background(self, work: Callable[[Snapshot], Any]) -> None:

        def log_failure(done: Future[Any]) -> None:
            error = done.exception()
            if error is not None:
                _log.warning("work on the memories' views failed: %s", format_error(error))

        with contextlib.suppress(SessionClosed):
            self._storage.submit_job(lambda: self._storage.run_read_in_job(work)).add_done_callback(log_failure)

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"the memories of {self.namespace!r:.80} were closed")


def _ignore_progress(_done: int, _total: int) -> None:
    """Accept and ignore progress reports."""


def _resolve_plans(plans: Sequence[_PendingWrite[Any]], failure: BaseException | None) -> None:
    """Resolve the future of each plan with its result, its error, or *failure*."""
    for one in plans:
        if one.error is not None:
            one.done.set_exception(one.error)
        elif failure is not None:
            one.done.set_exception(copy_error(failure))
        else:
            one.done.set_result(one.result)
