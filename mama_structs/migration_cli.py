"""
The commands of ``mama-structs`` that take over memories of MAMA v1.0, and give them back.

What takes time to import is imported when a command runs, see `mama_structs.cli`.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from mama_structs.terminal import EMBEDDERS, Say, embedder_named, refuse_missing, resumable, shown

if TYPE_CHECKING:
    import argparse

    from mama_structs.memory.migration import MigrationReport, RollbackReport


def add_commands(commands: Any, say: Say) -> None:
    """
    Add the commands to a parser's.

    Args:
        commands: What `argparse.ArgumentParser.add_subparsers` returned.
        say: Prints a text.

    """

    def add(name: str, run: Callable[[argparse.Namespace, Say], Awaitable[None]], text: str) -> Any:
        parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        parser.set_defaults(run=lambda given: _run(run, given, say))
        return parser

    migrate = add("migrate", _migrate, "take over the memories of a MAMA v1.0 database, which is not changed")
    migrate.add_argument("old", metavar="OLD.db", help="the old file, such as ~/.claude/mama-memory.db")
    migrate.add_argument("store", metavar="STORE", help="a session's directory; made if it does not exist")
    migrate.add_argument("--dry-run", action="store_true", help="only say what would be done")
    migrate.add_argument(
        "--embedder",
        choices=EMBEDDERS,
        help="semantic: the sentence encoder of the extra of that name; hash: words only, always there; by default "
        "the one that the store was written with, or else the better one that is installed",
    )
    rollback = add("rollback", _rollback, "undo the last migration: delete what it added, and nothing else")
    rollback.add_argument("store", metavar="STORE", help="a session's directory, which must exist")
    rollback.add_argument(
        "--force", action="store_true", help="delete also what was changed since, and what later memories link to"
    )
    for parser in (migrate, rollback):
        parser.add_argument("--namespace", metavar="NAME", default="default", help="whose memories (%(default)s)")
        parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def _run(run: Callable[[argparse.Namespace, Say], Awaitable[None]], given: argparse.Namespace, say: Say) -> int:
    import asyncio

    async def running() -> int:
        await run(given, say)
        return 0

    return asyncio.run(running())


async def _migrate(given: argparse.Namespace, say: Say) -> None:
    import contextlib
    import time
    from pathlib import Path

    import attrs

    from mama_structs.errors import InvalidArgument
    from mama_structs.memory.migration import migrate_old, read_old
    from mama_structs.session import Session

    begun = time.perf_counter()
    # First: where the old file cannot be read, no directory is made.
    old = read_old(Path(given.old))
    embedder = None if given.embedder is None else embedder_named(given.embedder)
    is_there = True
    try:
        refuse_missing(given.store)
    except InvalidArgument:
        is_there = False
    location = given.store if is_there or not given.dry_run else None
    async with contextlib.AsyncExitStack() as stack:
        # What a dry run is for may not exist yet, and is not made: a store that is removed again stands for it.
        session = await stack.enter_async_context(Session.open(location, namespace=given.namespace, embedder=embedder))
        with shown("migrated", "steps") as progress, resumable():
            report = await migrate_old(session.memories, old, dry_run=given.dry_run, progress=progress)
    _say(attrs.evolve(report, seconds=time.perf_counter() - begun), given, say)


async def _rollback(given: argparse.Namespace, say: Say) -> None:
    from mama_structs.memory.migration import rollback
    from mama_structs.memory.opening import Unavailable
    from mama_structs.session import Session

    refuse_missing(given.store)
    async with Session.open(given.store, namespace=given.namespace, embedder=Unavailable()) as session:
        with shown("deleted", "memories") as progress, resumable():
            report = await rollback(session.memories, force=given.force, progress=progress)
    _say(report, given, say)


def _say(report: MigrationReport | RollbackReport, given: argparse.Namespace, say: Say) -> None:
    import json

    say(json.dumps(report.to_json()) if given.json else str(report))
