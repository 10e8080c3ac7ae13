"""
The command ``mama-structs``.

What takes time to import is imported within `main`, which is the one place that can end quietly on Ctrl-C.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from mama_structs.errors import MamaStructsError

if TYPE_CHECKING:
    import argparse

# As a shell reports a process that died of SIGINT or SIGPIPE.
_INTERRUPTED: Final = 130
_NO_READER: Final = 141
_LAST_PORT: Final = 65535
# A generated world has no room for fewer, see `mama_structs.testing.World.generate`.
_SMALLEST_WORLD: Final = 12
_MILLI: Final = 1000
# The 50 references of a call, five at a time, are ten rounds, and have a deadline of 5 seconds.
_SLOWEST_DEMO: Final = 400
# The chain's own pace.
_BLOCK_SECONDS: Final = 6.0


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command and return its exit code.

    Args:
        arguments: What stands behind the command's name; by default this process's.

    """
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    # Names on a chain are anybody's: a terminal that cannot show them gets an escape, not a crash.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a host may have replaced it
    try:
        try:
            options = _parser().parse_args(arguments)
        except SystemExit:
            # What --help and --version print is not written yet.
            _flush()
            raise
        code: int = options.run(options) or 0
        _flush()
    except MamaStructsError as error:
        message = str(error)
        # What a node says may be quoted in it, and a terminal obeys control characters.
        _complain(message if message.isprintable() else ascii(message))
        return 1
    except BrokenPipeError:
        # Nobody reads any more (`| head -1`).
        _drop_output()
        return _NO_READER
    return code


def _say(text: str) -> None:
    """Print to stdout, at once: whoever started this may wait for it."""
    with _writing():
        print(text)
    _flush()


def _flush() -> None:
    # There is none where it was closed before the start (`>&-`).
    if sys.stdout is not None:
        with _writing():
            sys.stdout.flush()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise MamaStructsError(f"the output cannot be written: {error.strerror or error}") from error


def _drop_output() -> None:
    """Send what is still to be written nowhere: the interpreter flushes again at its end, and must not complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    # Without a stderr `print` would take stdout.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"mama-structs: {message}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    import argparse
    import importlib.metadata

    from mama_structs import mcp_cli, memory_cli, migration_cli

    parser = argparse.ArgumentParser(prog="mama-structs", description="References, memory and refs for agents.")
    version = importlib.metadata.version("mama-structs")
    parser.add_argument("--version", action="version", version=f"mama-structs {version}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="an agent's question answered without references and with them",
        description="Answer an agent's question without references and with them, and show what each costs. "
        "It starts a small Structs node of its own, unless it is given a real one.",
    )
    demo.add_argument("--base-url", metavar="URL", help="ask this node, such as http://localhost:1317")
    demo.add_argument(
        "--player",
        metavar="ID",
        type=_player_id,
        help="the player in question, such as 1-11, with guild, planet and fleet, among the first 1,024 that the "
        "node lists; by default 1-11 of the bundled node, and of a real one the first that has these",
    )
    demo.add_argument("--json", action="store_true", help="print nothing but the figures, as one JSON object")
    _add_world(demo, players=12, latency=20, slowest=_SLOWEST_DEMO)
    demo.set_defaults(run=_demo, usage_error=demo.error)

    node = commands.add_parser(
        "fake-node",
        help="serve a generated Structs world until stopped",
        description="Serve a generated Structs world, with the routes and manners of the chain's REST interface, "
        "until stopped by Ctrl-C or SIGTERM.",
    )
    node.add_argument("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    node.add_argument(
        "--port", type=_whole(0, _LAST_PORT), default=1317, help="the port, 0 for any free one (%(default)s)"
    )
    _add_world(node, players=40, latency=0)
    node.set_defaults(run=_fake_node)
    for part in (memory_cli, migration_cli, mcp_cli):
        part.add_commands(commands, _say)
    return parser


def _add_world(parser: argparse.ArgumentParser, *, players: int, latency: int, slowest: int | None = None) -> None:
    world = parser.add_argument_group("the generated world and its node")
    world.add_argument(
        "--seed", metavar="N", type=_whole(), default=1, help="another seed, another world (%(default)s)"
    )
    world.add_argument(
        "--players",
        metavar="N",
        type=_whole(_SMALLEST_WORLD),
        default=players,
        help=f"how many players there are, {_SMALLEST_WORLD} or more (%(default)s)",
    )
    world.add_argument(
        "--latency",
        metavar="MS",
        type=_whole(0, slowest, why="" if slowest is None else ", or references would miss their deadline"),
        default=latency,
        help=f"milliseconds before every answer{'' if slowest is None else f', {slowest} at most'} (%(default)s)",
    )
    parser.set_defaults(bundled={"seed": 1, "players": players, "latency": latency})


def _whole(least: int | None = None, most: int | None = None, *, why: str = "") -> Callable[[str], int]:
    import argparse

    bounds = "" if least is None else f", {least} or more" if most is None else f" from {least} to {most}"

    def whole_number(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or (least is not None and number < least) or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"must be a whole number{bounds}{why}, got {text!r:.80}")
        return number

    return whole_number


def _player_id(text: str) -> str:
    import argparse

    from mama_structs.errors import InvalidArgument
    from mama_structs.structs.ids import EntityId, EntityType

    try:
        entity_id = EntityId.parse(text)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if entity_id.type is not EntityType.PLAYER:
        raise argparse.ArgumentTypeError(f"must be the id of a player, such as 1-11, got {text}")
    return str(entity_id)


def _demo(options: argparse.Namespace) -> None:
    changed = [f"--{name}" for name, default in options.bundled.items() if getattr(options, name) != default]
    if options.base_url is not None and changed:
        options.usage_error(f"{', '.join(changed)}: not together with --base-url, whose node has a world of its own")
    import asyncio
    import json

    from mama_structs.demo.scenario import play
    from mama_structs.demo.text import tell

    story = asyncio.run(
        play(
            base_url=options.base_url,
            player_id=options.player,
            seed=options.seed,
            players=options.players,
            latency=options.latency / _MILLI,
        )
    )
    _say(json.dumps(story.figures) if options.json else tell(story))
    if not story.same_facts:
        raise MamaStructsError(
            "the runs found different facts", hint="a chain that moves may change one meanwhile: run the demo again"
        )


def _fake_node(options: argparse.Namespace) -> None:
    import asyncio

    asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    import asyncio
    import signal

    from mama_structs.testing import FakeNode

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Where loops take no signals (Windows) Ctrl-C still ends the process.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    node = FakeNode.world(
        seed=options.seed,
        players=options.players,
        latency=options.latency / _MILLI,
        host=options.host,
        port=options.port,
        block_time=_BLOCK_SECONDS,
    )
    try:
        await node.start()
    except OSError as error:
        raise MamaStructsError(
            f"cannot listen on {options.host} port {options.port}: {error.strerror or error}",
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
