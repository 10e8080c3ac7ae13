"""A migration taken back: what it added is deleted again, unless that would lose what was made since."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import methodcaller
from typing import NamedTuple, TypeVar

from mama_structs import _check
from mama_structs.errors import MigrationError
from mama_structs.memory.engine import Progress, Reader, Writer, in_turns
from mama_structs.memory.model import Link
from mama_structs.memory.requests import check_progress
from mama_structs.memory.store import MemoryStore, Shared
from mama_structs.v1.report import RollbackReport, some
from mama_structs.v1.write import (
    CHUNK,
    PAGE,
    PREFIX,
    Mark,
    MigrationNote,
    chunks,
    digest_of,
    key_of,
    migration_of,
    records_of,
    refused,
)

T = TypeVar("T")


class _Migrated(NamedTuple):
    """A migrated memory: what made it, whether it was changed since, and the links at it."""

    id: str
    mark: Mark
    is_changed: bool
    links: list[Link]


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
    unknown = [(0, one.mark.at, one.mark.migration) for one in found if one.mark.migration not in known]
    last = max([*unknown, *((one.order, one.begun, one.migration) for one in known.values())], default=None)
    if last is None:
        return RollbackReport(namespace=memories.namespace)
    migration = last[2]
    going = {one.id: one for one in found if one.mark.migration == migration}
    changed = tuple(one.id for one in going.values() if one.is_changed)
    links = {link.id: link for one in going.values() for link in one.links}
    others = [link for link in links.values() if migration_of(link) is None]
    linked = tuple(dict.fromkeys(end for link in others for end in (link.from_id, link.to_id) if end not in going))
    if (changed or others) and not force:
        raise _refusal(changed, others, linked)
    noted = known.get(migration)
    lost = {key_of(one) for one in {*going, *links, *_made(found, migration)}}
    note = await shared.write(partial(_begin, migration=migration, noted=noted, lost=lost))
    if noted is not None and noted.state != "complete":
        # Who was migrating may have added more until then, and nothing after that.
        found = await _migrated(shared)
        going = {one.id: one for one in found if one.mark.migration == migration}
    # Links that it made between memories of earlier migrations go by themselves.
    between = [
        one for one, link in _made(found, migration).items() if going.keys().isdisjoint((link.from_id, link.to_id))
    ]

    async def write(plan: Callable[[Writer], T]) -> T:
        return await shared.write(plan if note is None else note.unless_ended(_busy(), plan))

    count = done = 0
    async for cut in in_turns(write, sorted(between), _unlink, most=CHUNK):
        count += sum(cut)
    async for deleted in in_turns(write, [*reversed(going)], _delete, most=CHUNK):
        count += sum(deleted)
        done += len(deleted)
        if progress is not None:
            progress(done, len(going))
    if note is not None:
        await write(methodcaller("set_note", f"{PREFIX}{migration}", None))
    return RollbackReport(
        namespace=memories.namespace,
        migration=migration,
        memories=len(going),
        links=count,
        changed=changed,
        linked=linked,
        migrations_left=len({*known, *(one.mark.migration for one in found)} - {migration}),
    )


async def _migrated(shared: Shared) -> list[_Migrated]:
    """Return all memories that migrations made, in order of saving."""

    def page(reader: Reader, ids: Sequence[str]) -> list[_Migrated]:
        nodes = [node for node in reader.find_many(ids) if node is not None]
        marks = [(node, memory, Mark.of(memory)) for node, memory in zip(nodes, reader.get(nodes), strict=True)]
        made = [(node, memory, mark) for node, memory, mark in marks if mark is not None]
        links = reader.links_of_many([node for node, _, _ in made])
        return [
            _Migrated(memory.id, mark, digest_of(memory) != mark.digest, own)
            for (_, memory, mark), own in zip(made, links, strict=True)
        ]

    every = await shared.read(lambda reader: reader.ids(sorted(reader.window(newest_first=False).tolist())))
    return [one for ids in chunks(every, PAGE) for one in await shared.read(partial(page, ids=ids))]


def _made(found: Sequence[_Migrated], migration: str) -> dict[str, Link]:
    """Return the links that a migration made, by id."""
    return {link.id: link for one in found for link in one.links if migration_of(link) == migration}


def _refusal(changed: Sequence[str], others: Sequence[Link], linked: Sequence[str]) -> MigrationError:
    parts = []
    if changed:
        parts.append(f"{len(changed)} migrated memories were changed since ({some(changed)})")
    if others:
        automatic = sum(link.created_by == "system" for link in others)
        ends = f" with {len(linked)} later memories ({some(linked)})" if linked else ""
        parts.append(f"{len(others)} links{ends} were made since, {automatic} of them automatic")
    return refused(
        "the migration cannot be undone without loss: " + ", and ".join(parts),
        "nothing was deleted; force deletes the memories and these links with them: export the store first",
    )


def _begin(
    writer: Writer, migration: str, noted: MigrationNote | None, lost: Collection[bytes]
) -> MigrationNote | None:
    """Note that a migration is being taken back, and return its note, None where the store has none."""
    notes = records_of(writer)
    if notes.pop(migration, None) != noted:
        raise _busy()
    for one in notes.values():
        # Two that were under way together: what goes now counts as there in the other one, too, and it must look again.
        if one.state == "complete" and not one.keys.isdisjoint(lost):
            one.written(writer, "begun")
    return None if noted is None else noted.written(writer, "undone")


def _unlink(writer: Writer, link_id: str) -> int:
    return writer.delete_links([link_id])


def _delete(writer: Writer, memory_id: str) -> int:
    return 0 if writer.find(memory_id) is None else writer.delete(memory_id)


def _busy() -> MigrationError:
    return refused(
        "somebody else migrates, or takes it back, at the same time", "wait until that is done, and run it again then"
    )
