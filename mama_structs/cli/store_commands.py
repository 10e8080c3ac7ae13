"""Commands for maintaining a store: check, back up, move, migrate."""

# ruff: noqa: PLC0415 - slow imports are local, so that the command starts fast

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs._internal.validation import is_url, to_printable
from mama_structs.cli.arguments import check_namespace, create_embedder, is_session, open_session
from mama_structs.cli.output import mask_passwords, print_answer, print_lines, report_progress
from mama_structs.errors import InvalidArgument

# Number of digits of a digest in the text output, for comparison by eye. With --json, all are printed.
_DIGEST_PREFIX_CHARS: Final = 12


async def check(given: argparse.Namespace) -> int:
    """Check all data of a session's directory for damage; repairs nothing."""
    from mama_structs import admin
    from mama_structs.errors import StoreDamaged
    from mama_structs.storage.sqlite_errors import CheckReport, Issue

    try:
        async with open_session(given) as session:
            report = await admin.check(session)
    except StoreDamaged as error:
        # If the store is too damaged to be opened, report the damage as issues.
        found = [f"{error.file}: {line}" for line in error.findings] or [str(error)]
        report = CheckReport(tuple(Issue("error", "damaged", line) for line in found))
    fields = ("severity", "kind", "message", "key")
    issues = [{field: getattr(one, field) for field in fields} for one in report.issues]
    lines = (to_printable(f"{one.severity}: {one.message}") for one in report.issues)
    print_answer(given, {"ok": report.ok, "issues": issues}, "\n".join(lines) or "no damage found")
    return 0 if report.ok else 1


async def stats(given: argparse.Namespace) -> None:
    """Print statistics of the memories."""
    async with open_session(given) as session:
        figures = await session.memories.stats()
        # These statistics count only operations of the current process.
        figures.pop("embedding", None)
    rows = list(_flatten(figures))
    width = max(len(name) for name, _ in rows)
    print_answer(given, figures, "\n".join(to_printable(f"{name:<{width}}  {value}") for name, value in rows))


def _flatten(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", "-" if value is None else f"{value:,}" if type(value) is int else str(value)


async def rebuild(given: argparse.Namespace) -> int:
    """Rebuild the search indexes from the saved memories, without losing any."""
    from mama_structs import admin

    async with open_session(given) as session:
        with report_progress("rebuilt", "memories") as progress:
            damaged = await admin.rebuild(session.memories, progress=progress)
        count = await session.memories.count()
    print_lines("\n".join([*(to_printable(f"skipped: {line}") for line in damaged), f"{count:,} memories indexed"]))
    return 1 if damaged else 0


async def backup_store(given: argparse.Namespace) -> None:
    """Copy a session's directory, even while other processes write to it."""
    # Do not open a namespace, so that a store with an unreadable namespace can be backed up.
    from pathlib import Path

    from mama_structs.storage.backup import backup

    if is_url(given.store):
        raise InvalidArgument("a server cannot be copied as a directory", hint="pg_dump -n mama_structs")
    with report_progress("copied", "pages") as progress:
        await backup(Path(given.store), Path(given.target), progress=progress)
    print_lines(to_printable(f"{given.store} was copied to {given.target}"))


async def copy_store(given: argparse.Namespace) -> int:
    """Copy a store to another and compare them; if interrupted, run it again to continue."""
    import attrs

    from mama_structs import admin

    with report_progress("copied and compared", "items", resumable=True) as progress:
        copied = await admin.copy(given.store, given.target, namespace=given.namespace, progress=progress)
    lines = [f"not copied: {line}" for line in copied.damaged]
    for one in copied.namespaces:
        counts = (
            f"{count:,} {kind} ({one.digests[kind][:_DIGEST_PREFIX_CHARS]})" for kind, count in one.counts.items()
        )
        lines.append(f"{one.name}: {', '.join(counts) or 'nothing'}; {one.added:,} memories are new")
    same = mask_passwords(f"{given.target} has the same content as {given.store}")
    lines.append(same + ("" if copied.ok else ", except for damaged items"))
    print_answer(given, {"ok": copied.ok, **attrs.asdict(copied)}, "\n".join(map(to_printable, lines)))
    return 0 if copied.ok else 1


async def assign_conversation(given: argparse.Namespace) -> None:
    """Move a conversation that is not open to another namespace; its forks are not moved."""
    from pathlib import Path

    from mama_structs.session.backend import Backend

    # Open the store without a namespace, because a move needs neither memories nor an embedder.
    home = await Backend.open(given.store if is_url(given.store) else Path(given.store))
    try:
        moved_count = await home.assign(given.name, origin=given.origin, namespace=given.namespace)
    finally:
        await home.close()
    what = f"{moved_count:,} refs and descriptors" if moved_count != 1 else "1 ref or descriptor"
    print_lines(to_printable(f"{given.name} was moved from {given.origin} to {given.namespace}, with {what}"))


async def list_conversations(given: argparse.Namespace) -> None:
    """List the conversations of a namespace, last used first."""
    import attrs

    from mama_structs import admin

    await check_namespace(given)
    found = await admin.list_conversations(given.store, namespace=given.namespace)
    figures = [
        {name: str(value) if name.endswith("_at") and value else value for name, value in attrs.asdict(one).items()}
        for one in found
    ]
    lines = (to_printable(repr(one)[1:-1].partition(" ")[2]) for one in found)
    print_answer(given, figures, "\n".join(lines) or "no conversations")


async def delete_conversation(given: argparse.Namespace) -> None:
    """Delete a conversation, which must not be open; texts that forks or memories use remain."""
    from mama_structs import admin

    await check_namespace(given)
    await admin.delete_conversation(given.store, given.name, namespace=given.namespace)
    print_lines(to_printable(f"{given.name} was deleted"))


async def export(given: argparse.Namespace) -> None:
    """Export all memories, with their links and vectors, to a file."""
    from mama_structs import admin

    async with open_session(given) as session:
        with report_progress("exported", "memories") as progress:
            count = await admin.export_jsonl(session.memories, given.file, progress=progress)
    print_lines(to_printable(f"{count:,} memories were written to {given.file}"))


async def import_file(given: argparse.Namespace) -> None:
    """Import the memories of a file that `export` wrote; adds nothing twice."""
    from mama_structs import admin
    from mama_structs.memory.upkeep.jsonl_transfer import read_export_embedder

    async with open_session(given, read_export_embedder(given.file), is_new=True) as session:
        with report_progress("imported", "memories", resumable=True) as progress:
            done = await admin.import_jsonl(session.memories, given.file, progress=progress)
    parts = [f"{done.added:,} memories added", f"{done.existing:,} existed already"]
    if done.embedded:
        parts.append(f"{done.embedded:,} embedded again")
    if done.dropped_links:
        parts.append(f"{done.dropped_links:,} links skipped, because a memory is missing")
    print_lines(", ".join(parts))


async def maintain(given: argparse.Namespace) -> None:
    """Remove weak and old automatic links, at most once a week."""
    from mama_structs import admin

    async with open_session(given) as session:
        done = await admin.maintain(session)
    print_lines(f"{done.pruned:,} links removed" if done.due else "maintenance was not due")


async def reembed(given: argparse.Namespace) -> None:
    """Recompute all vectors with another embedder; if interrupted, run it again to continue."""
    from mama_structs import admin

    embedder = create_embedder(given.embedder)
    async with open_session(given) as session:
        with report_progress("embedded", "memories", resumable=True) as progress:
            count = await admin.reembed(session.memories, embedder, progress=progress)
    print_lines(f"{count:,} memories embedded with {embedder.name}")


async def migrate(given: argparse.Namespace) -> None:
    """Import the memories of a MAMA v1.0 database, which is not changed."""
    from pathlib import Path

    import attrs

    from mama_structs.importers import migrate_v1, read_v1

    begun = time.perf_counter()
    # Read the old file first, so that no store is created if the file is unreadable.
    old = read_v1(Path(given.old))
    async with _open_for_import(given) as session:
        with report_progress("migrated", "steps", resumable=True, lines=False) as progress:
            report = await migrate_v1(session.memories, old, dry_run=given.dry_run, progress=progress)
    report = attrs.evolve(report, seconds=time.perf_counter() - begun)
    print_answer(given, report.to_dict(), str(report))


async def import_from(given: argparse.Namespace) -> None:
    """Import memories of another program, whose files are not changed; adds nothing twice."""
    from mama_structs.importers.dispatch import import_data, read_source

    # Read the source first, so that no store is created if the source is unreadable.
    outside = await read_source(given.kind, given.source, user=given.user)
    async with _open_for_import(given) as session:
        with report_progress("processed", "items", resumable=True, lines=False) as progress:
            how = {"dry_run": given.dry_run, "again": given.again, "progress": progress}
            report = await import_data(session.memories, outside, **how)
    print_answer(given, report.to_dict(), str(report))


@contextlib.asynccontextmanager
async def _open_for_import(given: argparse.Namespace) -> AsyncIterator[mama_structs.Session]:
    """Open the session for imported memories. A missing store is created, except in a dry run."""
    from mama_structs.session.session import Session

    embedder = None if given.embedder is None else create_embedder(given.embedder)
    # A dry run must not create a store, so it uses one in memory if the store is missing.
    location = None if given.dry_run and not is_session(given.store) else given.store
    async with Session.open(location, namespace=given.namespace, embedder=embedder) as session:
        yield session


async def roll_back(given: argparse.Namespace) -> None:
    """Undo the last migration by deleting only the data that it added."""
    from mama_structs.importers import rollback_v1

    async with open_session(given) as session:
        with report_progress("deleted", "memories", resumable=True) as progress:
            report = await rollback_v1(session.memories, force=given.force, progress=progress)
    print_answer(given, report.to_dict(), str(report))
