"""A migration undone: what it added is deleted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from mama_structs import _check
from mama_structs.errors import MigrationError
from mama_structs.memory.engine import Reader, Writer
from mama_structs.memory.model import Link
from mama_structs.memory.requests import check_progress
from mama_structs.memory.store import MemoryStore, Shared
from mama_structs.v1.report import RollbackReport, some
from mama_structs.v1.state import (
    PREFIX,
    Mark,
    MigrationNote,
    changed_note,
    chunks,
    digest_of,
    key_of,
    migration_of,
    records_of,
)

_PAGE: Final = 500
_CHUNK: Final = 64


class _Migrated(NamedTuple):
    """A migrated memory: what made it and when, whether it was changed since, and the links at it."""

    id: str
    migration: str
    at: datetime
    is_changed: bool
    links: list[Link]


async def rollback(
    memories: MemoryStore, *, force: bool = False, progress: Callable[[int, int], object] | None = None
) -> RollbackReport:
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
    unknown = [(0, one.at, one.migration) for one in found if one.migration not in known]
    last = max([*unknown, *((one.order, one.begun, one.migration) for one in known.values())], default=None)
    if last is None:
        return RollbackReport(namespace=memories.namespace)
    migration = last[2]
    going = [one for one in found if one.migration == migration]
    ids = {one.id for one in going}
    changed = tuple(one.id for one in going if one.is_changed)
    links = {link.id: link for one in going for link in one.links}
    others = [link for link in links.values() if migration_of(link) is None]
    linked = tuple(dict.fromkeys(end for link in others for end in (link.from_id, link.to_id) if end not in ids))
    if (changed or others) and not force:
        raise _refusal(changed, others, linked)
    lost = ids.union(link.id for one in found for link in one.links if migration in {one.migration, migration_of(link)})
    noted = known.get(migration)
    note = await shared.write(lambda writer: _begin(writer, migration, noted, lost))
    if noted is not None and not noted.is_complete:
        # Who was migrating may have added more until then, and nothing after that.
        found = await _migrated(shared)
        going = [one for one in found if one.migration == migration]
        ids = {one.id for one in going}
    # Links that it made between memories of earlier migrations.
    between = {
        link.id
        for one in found
        for link in one.links
        if migration_of(link) == migration and ids.isdisjoint((link.from_id, link.to_id))
    }
    count = await _deleted(
        shared, migration, note, sorted(between), [one.id for one in reversed(going)], progress=progress
    )
    return RollbackReport(
        namespace=memories.namespace,
        migration=migration,
        memories=len(going),
        links=count,
        changed=changed,
        linked=linked,
        migrations_left=len({*known, *(one.migration for one in found)} - {migration}),
    )


async def _deleted(
    shared: Shared,
    migration: str,
    note: MigrationNote | None,
    links: Sequence[str],
    ids: Sequence[str],
    *,
    progress: Callable[[int, int], object] | None,
) -> int:
    """Delete links, then memories in this order, and then the note; return how many links went in all."""

    async def write(plan: Callable[[Writer], int]) -> int:
        def checked(writer: Writer) -> int:
            if note is not None and records_of(writer).get(migration) != note:
                raise _busy()
            return plan(writer)

        return await shared.write(checked)

    count = 0
    for part in chunks(links, _CHUNK):
        count += await write(lambda writer, part=part: writer.delete_links(part))  # type: ignore[misc]  # bound
    done = 0
    for part in chunks(ids, _CHUNK):
        count += await write(lambda writer, part=part: _delete(writer, part))  # type: ignore[misc]  # bound
        done += len(part)
        if progress is not None:
            progress(done, len(ids))
    if note is not None:
        await write(lambda writer: writer.set_note(f"{PREFIX}{migration}", None) or 0)
    return count


async def _migrated(shared: Shared) -> list[_Migrated]:
    """Return all memories that migrations made, in order of saving."""
    ids = await shared.read(lambda reader: reader.ids(sorted(reader.window(newest_first=False).tolist())))
    found: list[_Migrated] = []
    for page in chunks(ids, _PAGE):
        found += await shared.read(lambda reader, page=page: _page(reader, page))  # type: ignore[misc]  # bound
    return found


def _page(reader: Reader, ids: Sequence[str]) -> list[_Migrated]:
    nodes = [node for node in reader.find_many(ids) if node is not None]
    found = [(node, memory, Mark.of(memory)) for node, memory in zip(nodes, reader.get(nodes), strict=True)]
    made = [(node, memory, mark) for node, memory, mark in found if mark is not None]
    links = reader.links_of_many([node for node, _, _ in made])
    return [
        _Migrated(memory.id, mark.migration, mark.at, digest_of(memory) != mark.digest, own)
        for (_, memory, mark), own in zip(made, links, strict=True)
    ]


def _refusal(changed: Sequence[str], others: Sequence[Link], linked: Sequence[str]) -> MigrationError:
    parts = []
    if changed:
        parts.append(f"{len(changed)} migrated memories were changed since ({some(changed)})")
    if others:
        automatic = sum(link.created_by == "system" for link in others)
        ends = f" with {len(linked)} later memories ({some(linked)})" if linked else ""
        parts.append(f"{len(others)} links{ends} were made since, {automatic} of them automatic")
    return MigrationError(
        "the migration cannot be undone without loss: " + ", and ".join(parts),
        path="",
        hint="nothing was deleted; force deletes the memories and these links with them: export the store first",
    )


def _begin(writer: Writer, migration: str, noted: MigrationNote | None, lost: Collection[str]) -> MigrationNote | None:
    """Note that a migration is being taken back, and return its note, None where the store has none."""
    keys = {key_of(one) for one in lost}
    notes = records_of(writer)
    if notes.get(migration) != noted:
        raise _busy()
    for one in notes.values():
        # Two that were under way together: what goes now counts as there in the other one, too, and it must look again.
        if one.migration != migration and one.is_complete and not keys.isdisjoint(one.keys):
            changed_note(writer, one, "begun")
    return None if noted is None else changed_note(writer, noted, "undone")


def _delete(writer: Writer, ids: Sequence[str]) -> int:
    there = writer.find_many(ids)
    return sum(writer.delete(one) for one, node in zip(ids, there, strict=True) if node is not None)


def _busy() -> MigrationError:
    return MigrationError(
        "somebody else migrates, or takes it back, at the same time",
        path="",
        hint="wait until that is done, and run it again then",
    )
