"""
Copies a store to another one: memories by engine, conversations by row.

Missing data is added in the source's order, and then all data is compared.
Existing data is never replaced or deleted, so an interrupted copy can be continued, and repeated or concurrent copies
have the same result.
A directory is read from a temporary backup, which is a consistent snapshot. The directory itself is not written to.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import attrs

from mama_structs._internal.event_loop import run_in_own_thread, run_to_completion
from mama_structs._internal.offload import InputSize, run_inline_or_in_thread
from mama_structs.errors import InvalidArgument, StoreDamaged, UnknownNamespace
from mama_structs.memory.types.reports import CopyReport, NamespaceCopy
from mama_structs.memory.upkeep.namespace_copy import CopyDigest, NamespaceCopier, raise_store_mismatch
from mama_structs.refs.conversations.conversation_log import START_PREFIX
from mama_structs.refs.conversations.transfer_rows import VOLATILE_PREFIXES, TransferRows, select_transfer_rows
from mama_structs.session.backend import Backend, open_backend
from mama_structs.session.location import Location, check_location, check_location_type, check_store
from mama_structs.settings import MemorySettings
from mama_structs.storage.backup import backup
from mama_structs.storage.files import (
    JOURNAL_DIRECTORY,
    TemporaryDirectory,
    convert_os_errors,
    create_directory,
    delete_leftovers,
    is_store,
)
from mama_structs.storage.locks import LOCK_FILE_NAME as LOCKS
from mama_structs.storage.sealed_rows import DamagedValue, Rows
from mama_structs.storage.sqlite_store import RowStorage
from mama_structs.tools.wire_names import make_name_hint

MAX_PAGE_ROWS: Final = 500
MAX_PAGE_BYTES: Final = 2**22
# Files that a killed run may leave in a target. They do not count as foreign files.
STORE_FILE_NAMES: Final = frozenset({JOURNAL_DIRECTORY, LOCKS, "views"})
# The copy never searches vectors, so the limit for exact search is set high to avoid building an HNSW graph.
EXACT_SEARCH_SETTINGS: Final = MemorySettings(exact_up_to=2**62)

ProgressCallback = Callable[[int, int], object]


async def copy_store(
    source: Location, target: Location, *, namespace: str | None, progress: ProgressCallback | None
) -> CopyReport:
    """Copy a session's directory or server to another; see `admin.copy`."""
    for name, location in (("source", source), ("target", target)):
        check_location_type(name, location)
    origin, target_location = await check_store(source), check_location(target)
    if origin == target_location:
        raise InvalidArgument("source and target are the same store", hint="name another one")
    directory, backup_parent = origin if isinstance(origin, Path) else None, None
    if isinstance(target_location, Path):
        target_location = await run_in_own_thread(functools.partial(_check_target, directory, target_location))
        backup_parent = target_location.parent
    opening = open_backend(origin) if directory is None else _open_snapshot(directory, backup_parent)
    async with opening as one, open_backend(target_location) as other:
        return await copy_backend(one, other, namespace=namespace, progress=progress)


async def copy_backend(
    source: Backend, target: Backend, *, namespace: str | None, progress: ProgressCallback | None
) -> CopyReport:
    """
    Copy the content of one backend to another.

    *source* must not be written to during the copy.
    """
    source_namespaces = await source.namespaces()
    if namespace is not None and namespace not in source_namespaces:
        raise UnknownNamespace(namespace, hint=make_name_hint(namespace, source_namespaces))
    names = source_namespaces if namespace is None else (namespace,)
    rows = await source.storage.run_read(
        lambda rows: select_transfer_rows(rows, names, report_orphans=namespace is None)
    )
    target_rows = await target.storage.run_read(lambda rows: select_transfer_rows(rows, names, report_orphans=False))
    await run_inline_or_in_thread(InputSize(items=len(target_rows.rows)), _check_foreign_rows, target_rows, rows)
    steps = _ProgressCounter(progress, 2 * len(rows.texts))
    damaged = list(rows.damaged)
    tallies = {name: CopyDigest() for name in names}
    added = {
        name: await _copy_memories(source, target, tally, name=name, steps=steps, damaged=damaged)
        for name, tally in tallies.items()
    }
    # Texts and rows are independent of the memories, so the order of copying does not matter.
    lost = await _copy_texts(source.storage, target.storage, rows, steps)
    await _copy_rows(target.storage, rows)
    await _compare_conversations(target.storage, rows, lost, tallies, steps)
    copied = (
        NamespaceCopy(name=name, added=added[name], counts=dict(one.counts), digests=one.digests)
        for name, one in tallies.items()
    )
    return CopyReport(namespaces=tuple(copied), damaged=(*damaged, *lost.values()))


def _check_target(source: Path | None, target: Path) -> Path:
    """
    Return the real path of the target.

    Raise if it overlaps the source or has foreign files.
    """
    with convert_os_errors(target):
        real, real_target = source and Path(os.path.realpath(source)), Path(os.path.realpath(target))
        names = set(os.listdir(real_target)) if real_target.exists() else set()  # noqa: PTH208 - compare names
    if real is not None and (real == real_target or real in real_target.parents or real_target in real.parents):
        raise InvalidArgument(f"{str(target)!r:.200} is in the source, or contains it", hint="name another directory")
    if not names <= STORE_FILE_NAMES and not is_store(real_target):
        raise InvalidArgument(
            f"{str(target)!r:.200} is neither a session's directory nor empty", hint="name one that does not exist yet"
        )
    return real_target


@contextlib.asynccontextmanager
async def _open_snapshot(directory: Path, parent: Path | None) -> AsyncIterator[Backend]:
    """Open a consistent snapshot of a directory, from a temporary copy of its files."""
    temporary = TemporaryDirectory(parent)

    def make() -> None:
        with convert_os_errors(temporary.path):
            if parent is not None:
                create_directory(parent)
            # Delete temporary backups of killed runs, which are as large as a store.
            delete_leftovers(parent)
            temporary.create()

    try:
        await run_in_own_thread(make)
        await backup(directory, temporary.path / "source")
        async with open_backend(temporary.path / "source") as home:
            yield home
    finally:
        await run_in_own_thread(temporary.remove)


@attrs.define
class _ProgressCounter:
    """Counts progress of copying and comparing. The total grows as namespaces are read."""

    progress: ProgressCallback | None
    total: int
    done: int = 0

    def add_expected(self, more: int) -> None:
        self.total += more

    def report_progress(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, max(self.done, self.total))


async def _copy_memories(
    source: Backend, target: Backend, tally: CopyDigest, *, name: str, steps: _ProgressCounter, damaged: list[str]
) -> int:
    """Copy the memories of a namespace, and return the number of added ones."""
    try:
        record = await source.engines.stored_embedder(name)
        if record is None and name in await source.engines.namespaces():
            damaged.append(f"{name}: which embedder made the vectors of its memories is missing")
    except StoreDamaged as error:
        damaged += error.findings
        return 0
    if record is None:
        return 0
    one = await source.engines.open(name, record, EXACT_SEARCH_SETTINGS)
    try:
        other = await target.engines.open(name, record, MemorySettings())
        try:
            steps.add_expected(2 * await one.read(lambda reader: reader.count()))
            run = NamespaceCopier(one, other, steps.report_progress, tally)
            await run.run()
        finally:
            await run_to_completion(target.engines.release(name))
    finally:
        await run_to_completion(source.engines.release(name))
    damaged += run.damaged
    if run.missing:
        # The import skips rows with a bad checksum without naming them, so find their keys with a full check.
        part, known_damage = f"/{quote(name, safe='')}/", "\n".join(damaged)
        for found in await source.storage.check():
            if found.kind == "damaged" and found.key and part in found.key and found.key not in known_damage:
                damaged.append(f"{found.key}: {found.message}")
    return run.added


def _check_foreign_rows(target_rows: TransferRows, source_rows: TransferRows) -> None:
    """Raise if the target has conversation rows that differ from or are not in the source."""
    for key, row in target_rows.rows.items():
        if not key.startswith(VOLATILE_PREFIXES) and source_rows.rows.get(key) != row:
            raise_store_mismatch(
                target_rows.namespaces[key], "has other conversations, or other things in them, than the source", [key]
            )


async def _copy_texts(
    source: RowStorage, target: RowStorage, rows: TransferRows, steps: _ProgressCounter
) -> Mapping[tuple[str, str], str]:
    """
    Copy the texts of conversations.

    Return a message for each unreadable text, by namespace and key.
    """
    lost: dict[tuple[str, str], str] = {}
    for name, keys in _split_pages(rows.texts):
        # Binding the loop variable is safe: the function is awaited in the same iteration.
        found = await source.run_read(lambda rows: rows.get_many(keys), namespace=name)  # noqa: B023
        lost |= {(name, key): f"{key}: {row.reason}" for key, row in found.items() if isinstance(row, DamagedValue)}
        texts = [(key, row) for key, row in found.items() if isinstance(row, bytes)]
        put = functools.partial(_add_texts, texts=texts)
        await target.transact(put, namespaces=[name])
        steps.report_progress(len(keys))
    return lost


def _add_texts(rows: Rows, texts: Sequence[tuple[str, bytes]]) -> None:
    for text in texts:
        rows.put_new(*text)


def _split_pages(sizes: Mapping[tuple[str, str], int]) -> Iterator[tuple[str, list[str]]]:
    """Yield pages of keys with their namespace, each page limited in rows and bytes."""
    page: list[str] = []
    size, namespace = 0, ""
    for (name, key), length in sizes.items():
        if page and (name != namespace or size + length > MAX_PAGE_BYTES or len(page) == MAX_PAGE_ROWS):
            yield namespace, page
            page, size = [], 0
        page.append(key)
        size, namespace = size + length, name
    if page:
        yield namespace, page


async def _copy_rows(target: RowStorage, source_rows: TransferRows) -> None:
    """Copy the rows of conversations, in order within each namespace."""
    by_namespace: dict[str, list[tuple[str, bytes]]] = {}
    for key, row in source_rows.rows.items():
        by_namespace.setdefault(source_rows.namespaces[key], []).append((key, row))

    def put(rows: Rows, some: Sequence[tuple[str, bytes]]) -> None:
        there = rows.get_many([key for key, _ in some])
        for key, row in some:
            have = there.get(key)
            if not isinstance(have, bytes):
                rows.put(key, row)
            elif have != row and not key.startswith(VOLATILE_PREFIXES):
                raise_store_mismatch(source_rows.namespaces[key], "has other conversations than the source", [key])

    for name, items in by_namespace.items():
        for start in range(0, len(items), MAX_PAGE_ROWS):
            some = functools.partial(put, some=items[start : start + MAX_PAGE_ROWS])
            await target.transact(some, namespaces=[name])


async def _compare_conversations(
    target: RowStorage,
    source_rows: TransferRows,
    unreadable_texts: Mapping[tuple[str, str], str],
    tallies: Mapping[str, CopyDigest],
    steps: _ProgressCounter,
) -> None:
    """Compare the conversations of the target with the source."""
    target_rows = await target.run_read(lambda rows: select_transfer_rows(rows, list(tallies), report_orphans=False))

    def compare() -> None:
        _check_foreign_rows(target_rows, source_rows)
        missing = [(source_rows.namespaces[key], key) for key in source_rows.rows if key not in target_rows.rows]
        missing += [
            text for text in source_rows.texts if text not in unreadable_texts and text not in target_rows.texts
        ]
        if missing:
            raise_store_mismatch(missing[0][0], "lacks what conversations hold", [key for _, key in missing])

    def count() -> None:
        for key, row in sorted(target_rows.rows.items()):
            if not key.startswith(VOLATILE_PREFIXES):
                kind = "conversations" if key.startswith(START_PREFIX) else "changes"
                tallies[target_rows.namespaces[key]].add(kind, key.encode() + row)

    load = InputSize(items=len(target_rows.rows) + len(source_rows.rows))
    await run_inline_or_in_thread(load, compare)
    for name, keys in _split_pages(target_rows.texts):
        # Binding the loop variable is safe: the function is awaited in the same iteration.
        found = await target.run_read(lambda rows: rows.get_many(keys), namespace=name)  # noqa: B023
        for key, row in found.items():
            if isinstance(row, DamagedValue):
                raise_store_mismatch(name, "has damaged texts of conversations", [key])
            tallies[name].add("conversations' texts", key.encode())
        steps.report_progress(len(keys))
    await run_inline_or_in_thread(load, count)
