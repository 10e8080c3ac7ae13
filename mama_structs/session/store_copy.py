"""
All that one store holds, copied to another: memories by their engines, conversations by their rows.

What is missing is added, in the source's order, and then all of it is compared.
Nothing that is there is ever replaced or deleted: so what was interrupted goes on, and who runs it twice, or two at
once, end with the same.
A directory is read as of one moment, out of a backup that is removed in the end: nothing is written to it.
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
from mama_structs.settings import MemorySettings
from mama_structs.storage.backup import backup
from mama_structs.storage.files import JOURNAL, TemporaryDirectory, explained, is_store, make_directory, sweep
from mama_structs.storage.locks import FILE_NAME as LOCKS
from mama_structs.storage.sealed_rows import Damaged, Rows
from mama_structs.storage.sqlite_store import RowStorage
from mama_structs.tools.wire_names import hint_at

_ROWS: Final = 500
_BYTES: Final = 2**22
# Its directory may be made by a run that was killed before there was a store in it.
_OWN: Final = frozenset({JOURNAL, LOCKS, "views"})
# Nothing is searched there, so that no graph of vectors is needed.
_EXACT: Final = MemorySettings(exact_up_to=2**62)

Progress = Callable[[int, int], object]


async def copy(source: Path | str, target: Path | str, *, namespace: str | None, progress: Progress | None) -> Copied:
    """Copy a session's directory to another; see `Session.copy`."""
    if source == target:
        raise InvalidArgument("the target is where the source is", hint="name another one")
    place, beside = target, None
    if isinstance(source, Path) and isinstance(target, Path):
        place = await in_own_thread(lambda: _checked(source, target))
        beside = place.parent
    elif isinstance(target, Path):
        place = await in_own_thread(lambda: _checked(None, target))
    origin = _moment(source, beside) if isinstance(source, Path) else home_at(source)
    async with origin as one, home_at(place) as other:
        return await copy_home(one, other, namespace=namespace, progress=progress)


async def copy_home(source: Home, target: Home, *, namespace: str | None, progress: Progress | None) -> Copied:
    """Copy what one home keeps to another, wherever the two keep it; *source* must not be written to meanwhile."""
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
    # Conversations name no memories, and memories no rows of these: either may come first.
    lost = await _put_texts(source.storage, target.storage, rows, steps)
    await _put_rows(target.storage, rows)
    await _compare(target.storage, rows, lost, tallies, steps)
    copied = (
        CopiedNamespace(name=name, added=added[name], counts=dict(one.counts), digests=one.digests)
        for name, one in tallies.items()
    )
    return Copied(namespaces=tuple(copied), damaged=(*damaged, *lost.values()))


def _checked(source: Path | None, target: Path) -> Path:
    """Return where a copy's directory really is, unless that is in the source or somebody else's."""
    with explained(target):
        real, place = source and Path(os.path.realpath(source)), Path(os.path.realpath(target))
        names = set(os.listdir(place)) if place.exists() else set()  # noqa: PTH208 - names are what is compared
    if real is not None and (real == place or real in place.parents or place in real.parents):
        raise InvalidArgument(f"{str(target)!r:.200} is where the source is", hint="name another directory")
    if not names <= _OWN and not is_store(place):
        raise InvalidArgument(
            f"{str(target)!r:.200} is neither a session's directory nor empty", hint="name one that does not exist yet"
        )
    return place


@contextlib.asynccontextmanager
async def _moment(directory: Path, beside: Path | None) -> AsyncIterator[Home]:
    """Open a directory as it is now, out of a copy of its files."""
    temporary = TemporaryDirectory(beside)

    def make() -> None:
        with explained(temporary.path):
            if beside is not None:
                make_directory(beside)
            # What a run that was killed has left is as large as a store.
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
    """How far the work is: what was copied, and what was compared, of as much as is known of by now."""

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
    """Copy a namespace's memories, and return how many were not there."""
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
        # What has a bad seal is found where all rows are looked at.
        part, said = f"/{quote(name, safe='')}/", "\n".join(damaged)
        for found in await source.storage.check():
            if found.kind == "damaged" and found.key and part in found.key and found.key not in said:
                damaged.append(f"{found.key}: {found.message}")
    return run.added


def _refuse_others(there: CarriedRows, wanted: CarriedRows) -> None:
    """Refuse a copy that has rows of conversations which the source has not, or has otherwise."""
    for key, row in there.rows.items():
        if not key.startswith(LAX) and wanted.rows.get(key) != row:
            refuse(there.spaces[key], "has other conversations, or other things in them, than the source", [key])


async def _put_texts(
    source: RowStorage, target: RowStorage, rows: CarriedRows, steps: _Steps
) -> Mapping[tuple[str, str], str]:
    """Copy the texts that conversations hold, and return a line for each unreadable one by namespace and key."""
    lost: dict[tuple[str, str], str] = {}
    for name, keys in _pages(rows.texts):
        found = await source.look(lambda rows: rows.get_many(keys), namespace=name)  # noqa: B023 - awaited
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
    """Yield a namespace and keys of it, with a bounded number of keys and bytes at a time."""
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
    """Copy the other rows, those of each namespace in their order."""
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
    """Compare the conversations that are there with the source."""
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
        found = await target.look(lambda rows: rows.get_many(keys), namespace=name)  # noqa: B023 - awaited
        for key, row in found.items():
            if isinstance(row, Damaged):
                refuse(name, "has damaged texts of conversations", [key])
            tallies[name].add("conversations' texts", key.encode())
        steps.tell(len(keys))
    await run_inline_or_in_thread(load, count)
