"""Commands that serve: the demo and its node, a session over MCP, and the set-up of coding agents."""

# ruff: noqa: PLC0415 - slow imports are local, so that the command starts fast

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Final

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs.cli.output import print_answer, print_lines, write_stderr
from mama_structs.errors import InvalidArgument, MamaStructsError

TOKEN_VARIABLE: Final = "MAMA_MCP_TOKEN"  # noqa: S105 - the name of an environment variable
_MS_PER_SECOND: Final = 1000
DEMO_WORLD: Final = {"players": 12, "latency": 20}
# Block time of the real chain.
_BLOCK_SECONDS: Final = 6.0
# Limits the size of a token file, because the file is read completely. Tokens are much shorter.
_MAX_TOKEN_FILE_BYTES: Final = 4096
# Seconds for running requests to end after a signal. After that, exit even if a client does not read its answer.
_SHUTDOWN_SECONDS: Final = 5.0


async def demo(given: argparse.Namespace) -> None:
    """
    Show memory: saves, a failed decision and its replacement, a recall and a search.

    With --references it answers questions with and without references, and compares the costs. It starts a small
    Structs node for this, unless the address of a node is given. --json runs both parts.
    """
    bundled = {"seed": 1, **DEMO_WORLD}
    changed = [f"--{name}" for name, default in bundled.items() if getattr(given, name) != default]
    if given.base_url is not None and changed:
        given.usage_error(f"{', '.join(changed)}: not allowed with --base-url, because that node has its own world")
    changed += [f"--{name}" for name in ("base-url", "player") if getattr(given, name.replace("-", "_")) is not None]
    if changed and not (given.references or given.json):
        given.usage_error(f"{', '.join(changed)}: only allowed with --references or --json")
    from mama_structs.cli.demo import MAX_COLUMNS, render_story, run_demo
    from mama_structs.cli.demo_memory import render_memory_demo, run_memory_demo

    width = min(MAX_COLUMNS, shutil.get_terminal_size((MAX_COLUMNS, 0)).columns)
    if not (given.references or given.json):
        print_answer(given, {}, render_memory_demo(await run_memory_demo(), width=width))
        return
    latency = given.latency / _MS_PER_SECOND
    story = await run_demo(
        base_url=given.base_url, player_id=given.player, seed=given.seed, players=given.players, latency=latency
    )
    memory = {"memory": (await run_memory_demo()).figures} if given.json else {}
    print_answer(given, memory | story.figures, "" if given.json else render_story(story, width=width))
    if not story.same_facts:
        raise MamaStructsError(
            "the runs found different facts", hint="a chain that moves may change one meanwhile: run the demo again"
        )


async def fake_node(given: argparse.Namespace) -> None:
    """Serve a generated Structs world over the chain's REST interface until Ctrl-C or SIGTERM."""
    from mama_structs.testing import FakeNode

    stopped = _create_stop_event()
    node = FakeNode.world(
        seed=given.seed,
        players=given.players,
        latency=given.latency / _MS_PER_SECOND,
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
        print_lines(
            f"{node.url}\n\n  curl {node.url}/structs/player/1-11\n"
            f"  curl '{node.url}/structs/planet?pagination.limit=2'\n\nCtrl-C stops it."
        )
        await stopped.wait()
    finally:
        await node.close()


def _create_stop_event() -> Any:
    import asyncio
    import signal

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Event loops on Windows have no signal handlers, but Ctrl-C still ends the process there.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


async def serve_mcp(given: argparse.Namespace) -> None:
    """
    Serve a session's tools to MCP clients: one over stdio, or any number with --http.

    It runs until the client leaves, or Ctrl-C or SIGTERM stops it.
    """
    import asyncio

    from mama_structs.session.session import Session

    if given.http is None and (given.token_file is not None or given.allow_host):
        given.usage_error("--token-file and --allow-host are for --http")
    token = read_token(given.token_file, os.environ) if given.http is not None else None
    # Log to stderr: over stdio, stdout carries the protocol. stderr is None if it was closed before the start (`2>&-`).
    if sys.stderr is not None:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO if given.verbose else logging.WARNING)
    adapter = load_mcp_adapter()
    if given.http is not None:
        # Reject an invalid address before opening the session creates a store.
        await adapter.http.address_for(*given.http, token=token)
    stopped = _create_stop_event()
    async with Session.open(
        given.store,
        structs=given.structs,
        namespace=given.namespace,
        read_namespaces=given.reads,
        conversation=given.conversation,
        files_root=given.files,
        settings=create_settings(given),
    ) as session:
        warming = asyncio.create_task(_warm_up(session))
        own = adapter.server(session)
        if given.http is None:
            served = adapter.serve_stdio(own)
        else:
            host, port = given.http
            names = given.allow_host
            served = adapter.serve_http(
                own, host=host, port=port, token=token, allowed_hosts=names, started=print_lines
            )
        serving = asyncio.create_task(served)
        waiting = asyncio.create_task(stopped.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        warming.cancel()
        if not serving.done():
            serving.cancel()
            await asyncio.wait({serving}, timeout=_SHUTDOWN_SECONDS)
    if not serving.done():
        # A thread still writes to a client that does not read, so exit without waiting for the thread.
        # The session is closed, so no data is lost.
        os._exit(0)
    if not serving.cancelled():
        serving.result()


async def ui(given: argparse.Namespace) -> None:
    """
    Serve pages that show a store in a browser on this computer, until Ctrl-C or SIGTERM.

    The address contains a token: whoever knows it can read the store.
    """
    import asyncio
    import webbrowser

    from mama_structs._internal.event_loop import run_in_own_thread
    from mama_structs.cli.arguments import check_namespace

    stopped = _create_stop_event()
    await check_namespace(given)
    async with await _open_for_pages(given) as session:
        try:
            server = await session.ui(port=given.port, write=given.write)
        except ImportError as missing:
            raise MamaStructsError(str(missing)) from missing
        print_lines(f"{server.url}\n\nOpen this address in a browser. Ctrl-C stops the server.")
        warming = asyncio.create_task(_warm_up(session))
        if given.open:
            # The command line of a browser is visible to other users. A text browser runs until the user ends it.
            url = server._make_single_use_url()
            if not await run_in_own_thread(lambda: webbrowser.open(url)):
                write_stderr("mama-structs: no browser was found: open the address above\n")
        await stopped.wait()
        warming.cancel()


async def _open_for_pages(given: argparse.Namespace) -> mama_structs.Session:
    """Open a session with the embedder of the store, or without one if it is unavailable."""
    from mama_structs.errors import EmbedderMismatch
    from mama_structs.memory.store.factory import UnavailableEmbedder
    from mama_structs.session.session import Session

    try:
        return await Session.open(given.store, namespace=given.namespace)
    except EmbedderMismatch as error:
        write_stderr(f"mama-structs: the pages search by words only: {error}\n")
        return await Session.open(given.store, namespace=given.namespace, embedder=UnavailableEmbedder())


async def init(given: argparse.Namespace) -> int:
    """
    Connect a coding agent: add the MCP server, the hooks and slash commands to its files.

    It shows the changes and asks first. A further run changes settings, such as --dynamic, and keeps the others.
    """
    if given.user and given.project is not None:
        given.usage_error("--project is not allowed with --user")
    from mama_structs.cli.coding_agents.init_command import run_init

    return run_init(given)


async def hook(given: argparse.Namespace) -> None:
    """Answer a coding agent's hook with recalled memories, from a background helper process."""
    raise AssertionError(given)  # `mama_structs.cli.main` handles this command before this module is loaded


async def _warm_up(session: mama_structs.Session) -> None:
    """
    Load the search components in the background.

    If this fails, the first search reports the error.
    """
    with contextlib.suppress(MamaStructsError):
        await session.preload()


def load_mcp_adapter() -> Any:
    """Return the MCP adapter, or raise with the missing dependency."""
    try:
        from mama_structs.adapters import mcp
    except ModuleNotFoundError as missing:
        raise MamaStructsError(str(missing)) from missing
    return mcp


def create_settings(given: argparse.Namespace) -> mama_structs.Settings:
    """Return the settings of the environment, overridden by the command line."""
    import attrs

    from mama_structs.settings import Settings

    settings = Settings.from_env()
    changes = {name: value for name in ("dynamic", "deprecated") if (value := getattr(given, name))}
    return attrs.evolve(settings, tools=attrs.evolve(settings.tools, **changes))


def read_token(path: str | None, environ: Mapping[str, str]) -> str | None:
    """
    Return the token from a file or the environment.

    It is not a command line argument, because every user of the machine can read these.
    """
    if path is None:
        token = environ.get(TOKEN_VARIABLE)
        if token is not None and not token.strip():
            # An empty secret must not disable authentication.
            raise InvalidArgument(f"{TOKEN_VARIABLE} is set and empty: unset it, or give a token")
        return token
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the path may be a pipe
            text = file.read(_MAX_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"the token file {path!r:.200} cannot be read: {error.strerror}") from error
    token_text = text.decode("latin-1").strip()
    if not token_text or len(text) > _MAX_TOKEN_FILE_BYTES:
        raise InvalidArgument(f"the token file {path!r:.200} holds no token")
    return token_text
