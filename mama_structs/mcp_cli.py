"""
The command of ``mama-structs`` that serves a session's tools over the Model Context Protocol.

What takes time to import is imported when the command runs, see `mama_structs.cli`.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.terminal import Say

if TYPE_CHECKING:
    import argparse

    from mama_structs.adapters.mcp import McpServer
    from mama_structs.settings import Settings

TOKEN_VARIABLE: Final = "MAMA_MCP_TOKEN"  # noqa: S105 - the variable's name
_HOST: Final = "127.0.0.1"
_LAST_PORT: Final = 65_535
# Longer than any token, and short enough to read without thinking.
_MAX_TOKEN_FILE: Final = 4096
# Seconds after a signal that requests have to end in; a client that reads nothing must not hold up the end.
_GRACE: Final = 5.0


def add_commands(commands: Any, say: Say) -> None:
    """
    Add the command to a parser's.

    Args:
        commands: What `argparse.ArgumentParser.add_subparsers` returned.
        say: Prints a text.

    """
    parser = commands.add_parser(
        "serve-mcp",
        help="serve a session's tools to MCP clients, over stdio or HTTP",
        description="Serve a session's tools to MCP clients: to one over stdio, or with --http to any number, "
        "who share the session. It runs until the client leaves, or Ctrl-C or SIGTERM stops it.",
        epilog=f"Over HTTP clients must send the token that {TOKEN_VARIABLE} or --token-file holds as "
        "'Authorization: Bearer ...'. On an address that others can reach there must be one.",
    )
    parser.add_argument("store", metavar="STORE", help="the session's directory, made if it is missing")
    parser.add_argument("--structs", metavar="URL", help="a Structs node, such as http://localhost:1317")
    parser.add_argument("--namespace", metavar="NAME", default="default", help="whose memories (%(default)s)")
    parser.add_argument("--conversation", metavar="NAME", help="whose refs; a fresh conversation by default")
    parser.add_argument(
        "--dynamic",
        choices=("auto", "force_static", "force_dynamic"),
        help="auto: a client that follows changes sees the tools that fit the user's message; force_static: all "
        "clients see all tools; force_dynamic: all see what fits",
    )
    parser.add_argument("--deprecated", action="store_true", help="list the tools of v1.0, too")
    parser.add_argument("--verbose", action="store_true", help="log on stderr what is decided, without any content")
    http = parser.add_argument_group("over HTTP")
    http.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        type=_address,
        help=f"listen there, by default on {_HOST} only; port 0 takes any free one",
    )
    http.add_argument("--token-file", metavar="FILE", help="holds the token that clients must send")
    http.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a further name by which clients may reach this server; can be repeated",
    )
    parser.set_defaults(run=lambda given: _serve(given, say), usage_error=parser.error)


def _address(text: str) -> tuple[str, int]:
    import argparse

    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise argparse.ArgumentTypeError(f"an IPv6 address stands in brackets, such as [::1]:8317, got {text!r:.80}")
    if not port.isascii() or not port.isdecimal() or int(port) > _LAST_PORT or (colon and not host):
        raise argparse.ArgumentTypeError(f"must be PORT or HOST:PORT, got {text!r:.80}")
    return host or _HOST, int(port)


def _serve(given: argparse.Namespace, say: Say) -> int:
    import asyncio
    import logging

    if given.http is None and (given.token_file is not None or given.allow_host):
        given.usage_error("--token-file and --allow-host are for --http")
    token = _token(given.token_file, os.environ) if given.http is not None else None
    # Over stdio stdout is the protocol's. There is no stderr where it was closed before the start (`2>&-`).
    if sys.stderr is not None:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO if given.verbose else logging.WARNING)
    return asyncio.run(_run(given, token, say))


async def _run(given: argparse.Namespace, token: str | None, say: Say) -> int:
    import asyncio
    import contextlib
    import signal

    from mama_structs.session import Session

    adapter = _adapter()
    if given.http is not None:
        # Before anything is made.
        await adapter.address_for(*given.http, token=token)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Where loops take no signals (Windows) Ctrl-C still ends the process.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with Session.open(
        given.store,
        structs=given.structs,
        namespace=given.namespace,
        conversation=given.conversation,
        settings=_settings(given),
    ) as session:
        own: McpServer = adapter.server(session)
        if given.http is None:
            serving = asyncio.create_task(adapter.serve_stdio(own))
        else:
            host, port = given.http
            names = given.allow_host
            serving = asyncio.create_task(
                adapter.serve_http(own, host=host, port=port, token=token, allowed_hosts=names, started=say)
            )
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
    return 0


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
    changes: dict[str, Any] = {}
    if given.dynamic is not None:
        changes["dynamic"] = given.dynamic
    if given.deprecated:
        changes["deprecated"] = True
    return attrs.evolve(settings, tools=attrs.evolve(settings.tools, **changes))


def _token(path: str | None, environ: Any) -> str | None:
    """Return the token; never from the arguments, which every user of the machine can read."""
    if path is None:
        token: str | None = environ.get(TOKEN_VARIABLE)
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
