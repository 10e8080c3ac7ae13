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

from mama_structs._internal.event_loop import in_own_thread, to_its_end
from mama_structs._internal.offload import Load, run_inline_or_in_thread
from mama_structs.errors import InvalidArgument, StoreDamaged, UnknownNamespace
from mama_structs.memory.types.copy_report import Copied, CopiedNamespace
from mama_structs.memory.upkeep.namespace_copy import CarriedMemories, KindTally, refuse
from mama_structs.refs.conversations.conversation_log import STARTS
from mama_structs.refs.conversations.transfer_rows import LAX, CarriedRows, carried
from mama_structs.session.backend import Home, home_at
from mama_structs.session.location import Location, check_location, check_store
from mama_structs.settings import MemorySettings
from mama_structs.storage.backup import backup
from mama_structs.storage.files import JOURNAL, TemporaryDirectory, explained, is_store, make_directory, sweep
from mama_structs.storage.locks import FILE_NAME as LOCKS
from mama_structs.storage.sealed_rows import Damaged, Rows
from mama_structs.storage.sqlite_store import RowStorage
from mama_structs.tools.wire_names import hint_at

_ROWS: Final = 500
_BYTES: Final = 2**22
# Files that may exist in a target without a store: they are from a run that was killed early.
_OWN: Final = frozenset({JOURNAL, LOCKS, "views"})
# The copy does no vector searches, so it needs no HNSW graph.
_EXACT: Final = MemorySettings(exact_up_to=2**62)

Progress = Callable[[int, int], object]


async def copy(source: Location, target: Location, *, namespace: str | None, progress: Progress | None) -> Copied:
    """Copy a session's directory or server to another; see `Session.copy`."""
    origin, place = await check_store(source), check_location(target)
    if origin == place:
        raise InvalidArgument("the target is where the source is", hint="name another one")
    directory, beside = origin if isinstance(origin, Path) else None, None
    if isinstance(place, Path):
        place = await in_own_thread(functools.partial(_checked, directory, place))
        beside = place.parent
    opening = home_at(origin) if directory is None else _moment(directory, beside)
    async with opening as one, home_at(place) as other:
        return await copy_home(one, other, namespace=namespace, progress=progress)


async def copy_home(source: Home, target: Home, *, namespace: str | None, progress: Progress | None) -> Copied:
    """
    Copy the content of one backend to another.

    *source* must not be written to during the copy.
    """
    known = await source.namespaces()
    if namespace is not None and namespace not in known:
        raise UnknownNamespace(namespace, hint=hint_at(namespace, known))
    names = known if namespace is None else (namespace,)
    rows = await source.storage.look(lambda rows: carried(rows, names, strays=namespace is None))
    there = await target.storage.look(lambda rows: carried(rows, names, strays=False))
    await run_inline_or_in_thread(Load(items=len(there.rows)), _refuse_others, there, rows)
    steps = _Steps(progress, 2 * len(rows.texts))
    damaged = list(rows.damaged)
    tallies = {name: KindTally() for name in names}
    added = {
        name: await _memories(source, target, tally, name=name, steps=steps, damaged=damaged)
        for name, tally in tallies.items()
    }
    # The order is free: conversations do not refer to memories, and memories do not refer to rows of conversations.
    lost = await _put_texts(source.storage, target.storage, rows, steps)
    await _put_rows(target.storage, rows)
    await _compare(target.storage, rows, lost, tallies, steps)
    copied = (
        CopiedNamespace(name=name, added=added[name], counts=dict(one.counts), digests=one.digests)
        for name, one in tallies.items()
    )
    return Copied(namespaces=tuple(copied), damaged=(*damaged, *lost.values()))


def _checked(source: Path | None, target: Path) -> Path:
    """Return the real path of the target. Reject one inside the source, or with foreign files."""
    with explained(target):
        real, place = source and Path(os.path.realpath(source)), Path(os.path.realpath(target))
        names = set(os.listdir(place)) if place.exists() else set()  # noqa: PTH208 - compare names
    if real is not None and (real == place or real in place.parents or place in real.parents):
        raise InvalidArgument(f"{str(target)!r:.200} is where the source is", hint="name another directory")
    if not names <= _OWN and not is_store(place):
        raise InvalidArgument(
            f"{str(target)!r:.200} is neither a session's directory nor empty", hint="name one that does not exist yet"
        )
    return place


@contextlib.asynccontextmanager
async def _moment(directory: Path, beside: Path | None) -> AsyncIterator[Home]:
    """Open a consistent snapshot of a directory, from a temporary copy of its files."""
    temporary = TemporaryDirectory(beside)

    def make() -> None:
        with explained(temporary.path):
            if beside is not None:
                make_directory(beside)
            # Remove the backups of killed runs, which are as large as a store.
            sweep(beside)
            temporary.make()

    try:
        await in_own_thread(make)
        await backup(directory, temporary.path / "source")
        async with home_at(temporary.path / "source") as home:
            yield home
    finally:
        await in_own_thread(temporary.remove)


@attrs.define
class _Steps:
    """Progress of copying and comparing. The total grows while namespaces are read."""

    progress: Progress | None
    total: int
    done: int = 0

    def expect(self, more: int) -> None:
        self.total += more

    def tell(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, max(self.done, self.total))


async def _memories(
    source: Home, target: Home, tally: KindTally, *, name: str, steps: _Steps, damaged: list[str]
) -> int:
    """Copy the memories of a namespace, and return the number of added ones."""
    try:
        record = await source.engines.recorded(name)
        if record is None and name in await source.engines.namespaces():
            damaged.append(f"{name}: which embedder made the vectors of its memories is missing")
    except StoreDamaged as error:
        damaged += error.findings
        return 0
    if record is None:
        return 0
    one = await source.engines.open(name, record, _EXACT)
    try:
        other = await target.engines.open(name, record, MemorySettings())
        try:
            steps.expect(2 * await one.read(lambda reader: reader.count()))
            run = CarriedMemories(one, other, steps.tell, tally)
            await run.run()
        finally:
            await to_its_end(target.engines.leave(name))
    finally:
        await to_its_end(source.engines.leave(name))
    damaged += run.damaged
    if run.missing:
        # Rows with a bad checksum are only found by a check of all rows.
        part, said = f"/{quote(name, safe='')}/", "\n".join(damaged)
        for found in await source.storage.check():
            if found.kind == "damaged" and found.key and part in found.key and found.key not in said:
                damaged.append(f"{found.key}: {found.message}")
    return run.added


def _refuse_others(there: CarriedRows, wanted: CarriedRows) -> None:
    """Reject a target with conversation rows that are missing or different in the source."""
    for key, row in there.rows.items():
        if not key.startswith(LAX) and wanted.rows.get(key) != row:
            refuse(there.spaces[key], "has other conversations, or other things in them, than the source", [key])


async def _put_texts(
    source: RowStorage, target: RowStorage, rows: CarriedRows, steps: _Steps
) -> Mapping[tuple[str, str], str]:
    """
    Copy the texts of conversations.

    Return a message for each unreadable text, by namespace and key.
    """
    lost: dict[tuple[str, str], str] = {}
    for name, keys in _pages(rows.texts):
        # Awaited in the same iteration.
        found = await source.look(lambda rows: rows.get_many(keys), namespace=name)  # noqa: B023
        lost |= {(name, key): f"{key}: {row.reason}" for key, row in found.items() if isinstance(row, Damaged)}
        texts = [(key, row) for key, row in found.items() if isinstance(row, bytes)]
        put = functools.partial(_put_new, texts=texts)
        await target.transact(put, namespaces=[name])
        steps.tell(len(keys))
    return lost


def _put_new(rows: Rows, texts: Sequence[tuple[str, bytes]]) -> None:
    for text in texts:
        rows.put_new(*text)


def _pages(sizes: Mapping[tuple[str, str], int]) -> Iterator[tuple[str, list[str]]]:
    """Yield a namespace and some of its keys, bounded in number and bytes per page."""
    page: list[str] = []
    size, namespace = 0, ""
    for (name, key), length in sizes.items():
        if page and (name != namespace or size + length > _BYTES or len(page) == _ROWS):
            yield namespace, page
            page, size = [], 0
        page.append(key)
        size, namespace = size + length, name
    if page:
        yield namespace, page


async def _put_rows(target: RowStorage, wanted: CarriedRows) -> None:
    """Copy the other rows, in order within each namespace."""
    by_namespace: dict[str, list[tuple[str, bytes]]] = {}
    for key, row in wanted.rows.items():
        by_namespace.setdefault(wanted.spaces[key], []).append((key, row))

    def put(rows: Rows, some: Sequence[tuple[str, bytes]]) -> None:
        there = rows.get_many([key for key, _ in some])
        for key, row in some:
            have = there.get(key)
            if not isinstance(have, bytes):
                rows.put(key, row)
            elif have != row and not key.startswith(LAX):
                refuse(wanted.spaces[key], "has other conversations than the source", [key])

    for name, items in by_namespace.items():
        for start in range(0, len(items), _ROWS):
            some = functools.partial(put, some=items[start : start + _ROWS])
            await target.transact(some, namespaces=[name])


async def _compare(
    target: RowStorage,
    wanted: CarriedRows,
    lost: Mapping[tuple[str, str], str],
    tallies: Mapping[str, KindTally],
    steps: _Steps,
) -> None:
    """Compare the conversations of the target with the source."""
    there = await target.look(lambda rows: carried(rows, list(tallies), strays=False))

    def compare() -> None:
        _refuse_others(there, wanted)
        missing = [(wanted.spaces[key], key) for key in wanted.rows if key not in there.rows]
        missing += [text for text in wanted.texts if text not in lost and text not in there.texts]
        if missing:
            refuse(missing[0][0], "lacks what conversations hold", [key for _, key in missing])

    def count() -> None:
        for key, row in sorted(there.rows.items()):
            if not key.startswith(LAX):
                kind = "conversations" if key.startswith(STARTS) else "changes"
                tallies[there.spaces[key]].add(kind, key.encode() + row)

    load = Load(items=len(there.rows) + len(wanted.rows))
    await run_inline_or_in_thread(load, compare)
    for name, keys in _pages(there.texts):
        # Awaited in the same iteration.
        found = await target.look(lambda rows: rows.get_many(keys), namespace=name)  # noqa: B023
        for key, row in found.items():
            if isinstance(row, Damaged):
                refuse(name, "has damaged texts of conversations", [key])
            tallies[name].add("conversations' texts", key.encode())
        steps.tell(len(keys))
    await run_inline_or_in_thread(load, count)
