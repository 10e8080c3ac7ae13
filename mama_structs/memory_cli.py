"""
The commands of ``mama-structs`` that look after a session's directory.

What takes time to import is imported when a command runs, see `mama_structs.cli`.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mama_structs.terminal import EMBEDDERS, Say, embedder_named, printable, refuse_missing, resumable, shown

if TYPE_CHECKING:
    import argparse


def add_commands(commands: Any, say: Say) -> None:
    """
    Add the commands to a parser's.

    Args:
        commands: What `argparse.ArgumentParser.add_subparsers` returned.
        say: Prints a text.

    """

    def add(name: str, run: Callable[[argparse.Namespace, Say], Awaitable[int]], text: str, **options: Any) -> Any:
        parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", **options)
        parser.add_argument("store", metavar="STORE", help="a session's directory, which must exist")
        if name != "backup":
            parser.add_argument("--namespace", metavar="NAME", default="default", help="whose memories (%(default)s)")
        parser.set_defaults(run=lambda given: _run(run, given, say), namespace="default")
        return parser

    check = add("check", _check, "look for damage in all that a session's directory holds; nothing is repaired")
    stats = add("stats", _stats, "print figures about the memories")
    for parser in (check, stats):
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    add("rebuild", _rebuild, "forget what was derived from the journal, and derive it anew")
    backup = add("backup", _backup, "copy a session's directory, also while it is written to")
    backup.add_argument("target", metavar="TARGET", help="a directory that does not exist yet, or is empty")
    export = add("export", _export, "write all memories, with their links and vectors, to a file")
    export.add_argument("file", metavar="FILE", help="the file, JSON lines; one that exists is replaced")
    taken = add("import", _import, "add the memories of a file that `export` wrote; again, nothing is added twice")
    taken.add_argument("file", metavar="FILE", help="the file")
    add("maintain", _maintain, "remove weak and old automatic links, if a week has passed since the last time")
    reembed = add("reembed", _reembed, "change over to another embedder; interrupted, it goes on when it is run again")
    reembed.add_argument(
        "--embedder",
        required=True,
        choices=EMBEDDERS,
        help="semantic: the sentence encoder of the extra of that name; hash: words only, always there",
    )


def _run(run: Callable[[argparse.Namespace, Say], Awaitable[int]], given: argparse.Namespace, say: Say) -> int:
    import asyncio

    refuse_missing(given.store)

    async def running() -> int:
        return await run(given, say)

    return asyncio.run(running())


@contextlib.asynccontextmanager
async def _opened(given: argparse.Namespace) -> Any:
    """Open the session without its embedder, which most commands need not have."""
    from mama_structs.memory.opening import Unavailable
    from mama_structs.session import Session

    async with Session.open(given.store, namespace=given.namespace, embedder=Unavailable()) as session:
        yield session


async def _check(given: argparse.Namespace, say: Say) -> int:
    import json

    from mama_structs.composition import CheckReport
    from mama_structs.errors import StoreDamaged
    from mama_structs.storage import Finding

    try:
        async with _opened(given) as session:
            report = await session.check()
    except StoreDamaged as error:
        # It cannot even be opened, which is what was asked.
        found = [f"{error.file}: {line}" for line in error.findings] or [str(error)]
        report = CheckReport(tuple(Finding("error", "damaged", line) for line in found))
    if given.json:
        findings = [
            {"severity": one.severity, "kind": one.kind, "message": one.message, "key": one.key}
            for one in report.findings
        ]
        say(json.dumps({"ok": report.ok, "findings": findings}))
    else:
        say("\n".join(printable(f"{one.severity}: {one.message}") for one in report.findings) or "nothing found")
    return 0 if report.ok else 1


async def _stats(given: argparse.Namespace, say: Say) -> int:
    import json

    async with _opened(given) as session:
        # What a process counts while it runs says nothing here.
        counted = ("embedding", "traversal_cache")
        figures = {name: value for name, value in (await session.memories.stats()).items() if name not in counted}
    if given.json:
        say(json.dumps(figures))
    else:
        rows = list(_flat(figures))
        width = max(len(name) for name, _ in rows)
        say("\n".join(printable(f"{name:<{width}}  {value}") for name, value in rows))
    return 0


async def _rebuild(given: argparse.Namespace, say: Say) -> int:
    async with _opened(given) as session:
        with shown("rebuilt", "memories") as progress:
            damaged = await session.memories.rebuild(progress=progress)
        count = await session.memories.count()
    say("\n".join([*(printable(f"left out: {line}") for line in damaged), f"{count:,} memories indexed"]))
    return 1 if damaged else 0


async def _backup(given: argparse.Namespace, say: Say) -> int:
    # No namespace is opened: a backup is also for a store of which one cannot be read.
    from pathlib import Path

    from mama_structs.storage.backup import backup

    with shown("copied", "pages") as progress:
        await backup(Path(given.store), Path(given.target), progress=progress)
    say(printable(f"{given.store} is copied to {given.target}"))
    return 0


async def _export(given: argparse.Namespace, say: Say) -> int:
    async with _opened(given) as session:
        with shown("exported", "memories") as progress:
            count = await session.memories.export_jsonl(given.file, progress=progress)
    say(printable(f"{count:,} memories are written to {given.file}"))
    return 0


async def _import(given: argparse.Namespace, say: Say) -> int:
    async with _opened_to_write(given) as session:
        with shown("imported", "memories") as progress, resumable():
            done = await session.memories.import_jsonl(given.file, progress=progress)
    parts = [f"{done.added:,} memories added", f"{done.known:,} were there already"]
    if done.embedded:
        parts.append(f"{done.embedded:,} embedded anew")
    if done.dropped_links:
        parts.append(f"{done.dropped_links:,} links left out, whose other end is not there")
    say(", ".join(parts))
    return 0


@contextlib.asynccontextmanager
async def _opened_to_write(given: argparse.Namespace) -> Any:
    """Open the session with the embedder of its vectors, or in an empty store with that of the file's."""
    from mama_structs.memory.opening import Unavailable
    from mama_structs.memory.transfer import embedder_of
    from mama_structs.session import Session

    record = embedder_of(given.file)
    async with Session.open(given.store, namespace=given.namespace, embedder=Unavailable(record)) as session:
        yield session


async def _maintain(given: argparse.Namespace, say: Say) -> int:
    from mama_structs.memory.results import Maintained

    async with _opened(given) as session:
        done: Maintained = await session.maintain()
    say(f"{done.pruned:,} links removed" if done.due else "nothing was due")
    return 0


async def _reembed(given: argparse.Namespace, say: Say) -> int:
    embedder = embedder_named(given.embedder)
    async with _opened(given) as session:
        with shown("embedded", "memories") as progress, resumable():
            count = await session.memories.reembed(embedder, progress=progress)
    say(f"{count:,} memories embedded by {embedder.name}")
    return 0


def _flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            shown = "-" if value is None else f"{value:,}" if type(value) is int else str(value)
            yield f"{prefix}{name}", shown
