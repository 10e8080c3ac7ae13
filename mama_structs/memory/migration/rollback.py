"""A migration undone: what it added is deleted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

import attrs
import msgspec

from mama_structs import _check
from mama_structs.errors import MigrationError
from mama_structs.memory.engine import Reader, Writer
from mama_structs.memory.migration.marks import Mark, digest_of, migration_of
from mama_structs.memory.migration.record import Record, forget, keep, key_of, record_of, records_of
from mama_structs.memory.migration.report import RollbackReport
from mama_structs.memory.migration.values import printable
from mama_structs.memory.model import Link
from mama_structs.memory.requests import check_progress
from mama_structs.memory.shared import Shared
from mama_structs.memory.store import MemoryStore

Progress = Callable[[int, int], object]

_PAGE: Final = 500
_CHUNK: Final = 64
_SHOWN: Final = 3


@attrs.frozen
class _Found:
    """
    A migrated memory.

    Args:
        id: Its id.
        migration: The migration that made it.
        at: When that was begun.
        is_changed: Whether it is not as it was made.
        links: The links that begin or end at it.

    """

    id: str
    migration: str
    at: datetime
    is_changed: bool
    links: tuple[Link, ...]


async def rollback(memories: MemoryStore, *, force: bool = False, progress: Progress | None = None) -> RollbackReport:
    """
    Undo the last migration: delete the memories and links that it added; interrupted, it goes on when it is run again.

    Args:
        memories: The store.
        force: Whether to delete also what was changed since, and what later memories link to.
        progress: Called with how many memories are deleted, and of how many.

    Raises:
        MigrationError: A migrated memory was changed since, or later links begin or end at one; nothing was deleted.
            Or somebody else migrates, or takes it back, at the same time.
        StoreError: The store cannot be read or written; what was deleted before stays so.

    """
    _check.flag("force", force)
    check_progress(progress)
    shared = memories._shared  # noqa: SLF001 - this package's
    shared.check()
    known = await shared.read(records_of)
    found = await _migrated(shared)
    # Memories that came with an import name a migration that the store has no note of.
    last = max(
        [(0, one.at, one.migration) for one in found if one.migration not in known]
        + [(one.order, one.begun, one.migration) for one in known.values()],
        default=None,
    )
    if last is None:
        return RollbackReport(namespace=memories.namespace)
    migration = last[2]
    going = [one for one in found if one.migration == migration]
    ids = {one.id for one in going}
    changed = tuple(one.id for one in going if one.is_changed)
    others = _others(going)
    linked = tuple(dict.fromkeys(end for link in others for end in (link.from_id, link.to_id) if end not in ids))
    if (changed or others) and not force:
        raise MigrationError(
            _refusal(changed, others, linked),
            path="",
            hint="nothing was deleted; force deletes the memories and these links with them: export the store first",
        )
    lost = ids.union(link.id for one in found for link in one.links if migration in {one.migration, migration_of(link)})
    noted = known.get(migration)
    record = await shared.write(lambda writer: _begin(writer, migration, noted, lost))
    if noted is not None and not noted.is_complete:
        # Who was migrating may have added more until then, and nothing after that.
        found = await _migrated(shared)
        going = [one for one in found if one.migration == migration]
        ids = {one.id for one in going}
    # Links that it made between memories of earlier migrations.
    between = [
        link.id
        for one in found
        if one.id not in ids
        for link in one.links
        if link.from_id == one.id and migration_of(link) == migration and link.to_id not in ids
    ]
    count = await _deleted(shared, record, between, [one.id for one in reversed(going)], progress)
    return RollbackReport(
        namespace=memories.namespace,
        migration=migration,
        memories=len(going),
        links=count,
        changed=changed,
        linked=linked,
        migrations_left=len({*known, *(one.migration for one in found)} - {migration}),
    )


async def _migrated(shared: Shared) -> list[_Found]:
    """Return all memories that migrations made, in order of saving."""
    ids = await shared.read(lambda reader: reader.ids(sorted(reader.window(newest_first=False).tolist())))
    found: list[_Found] = []
    for start in range(0, len(ids), _PAGE):
        some = ids[start : start + _PAGE]
        found += await shared.read(lambda reader, some=some: _page(reader, some))  # type: ignore[misc]
    return found


def _page(reader: Reader, ids: Sequence[str]) -> list[_Found]:
    nodes = [node for node in map(reader.find, ids) if node is not None]
    found = []
    for node, memory in zip(nodes, reader.get(nodes), strict=True):
        mark = Mark.of(memory)
        if mark is not None:
            is_changed = digest_of(memory) != mark.digest
            links = tuple(reader.read_links(node))
            found.append(_Found(memory.id, mark.migration, mark.at, is_changed, links))
    return found


def _others(going: Sequence[_Found]) -> list[Link]:
    """Return the links of what goes that no migration made."""
    links: Mapping[str, Link] = {link.id: link for one in going for link in one.links}
    return [link for link in links.values() if migration_of(link) is None]


def _refusal(changed: Sequence[str], others: Sequence[Link], linked: Sequence[str]) -> str:
    parts = []
    if changed:
        parts.append(f"{len(changed)} migrated memories were changed since ({_some(changed)})")
    if others:
        automatic = sum(link.created_by == "system" for link in others)
        ends = f" with {len(linked)} later memories ({_some(linked)})" if linked else ""
        parts.append(f"{len(others)} links{ends} were made since, {automatic} of them automatic")
    return "the migration cannot be undone without loss: " + ", and ".join(parts)


def _some(ids: Sequence[str]) -> str:
    return ", ".join(f"{printable(one):.100}" for one in ids[:_SHOWN]) + (", ..." if len(ids) > _SHOWN else "")


def _begin(writer: Writer, migration: str, noted: Record | None, lost: Collection[str]) -> Record | None:
    """Note that a migration is being taken back, and return its record, None where the store has none."""
    keys = {key_of(one) for one in lost}
    records = records_of(writer)
    if records.get(migration) != noted:
        raise _busy()
    for one in records.values():
        # Two that were under way together: what goes now counts as there in the other one, too, and it must look again.
        if one.migration != migration and one.is_complete and not keys.isdisjoint(one.keys):
            keep(writer, msgspec.structs.replace(one, state="begun", settled=b""))
    record = records.get(migration)
    if record is not None:
        record = msgspec.structs.replace(record, state="undone", settled=b"")
        keep(writer, record)
    return record


async def _deleted(
    shared: Shared, record: Record | None, links: Sequence[str], ids: Sequence[str], progress: Progress | None
) -> int:
    """Delete links, then memories in this order, and then the note; return how many links went in all."""

    async def write(plan: Callable[[Writer], int]) -> int:
        def checked(writer: Writer) -> int:
            if record is not None and record_of(writer, record.migration) != record:
                raise _busy()
            return plan(writer)

        return await shared.write(checked)

    count = 0
    for start in range(0, len(links), _CHUNK):
        some = links[start : start + _CHUNK]
        count += await write(lambda writer, some=some: writer.delete_links(some))  # type: ignore[misc]
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        count += await write(lambda writer, chunk=chunk: _delete(writer, chunk))  # type: ignore[misc]
        if progress is not None:
            progress(start + len(chunk), len(ids))
    if record is not None:
        name = record.migration

        def end(writer: Writer) -> int:
            forget(writer, name)
            return 0

        await write(end)
    return count


def _delete(writer: Writer, ids: Sequence[str]) -> int:
    return sum(writer.delete(one) for one in ids if writer.find(one) is not None)


def _busy() -> MigrationError:
    return MigrationError(
        "somebody else migrates, or takes it back, at the same time",
        path="",
        hint="wait until that is done, and run it again then",
    )
