"""Start of the server of the pages."""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import Final

from aiohttp import web

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs._internal import validation as _check
from mama_structs._internal.reprs import require_extra
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.session.ui_server import UiServer
from mama_structs.ui.access import TOKEN_PARAMETER, Access
from mama_structs.ui.workspace import Workspace

HOST: Final = "127.0.0.1"
_MAX_PORT: Final = 65_535
# Seconds for running requests to end when the server stops.
_SHUTDOWN_SECONDS: Final = 2
# Addresses contain queries, labels and ids, and browsers send them as the referrer.
_MAX_ADDRESS_BYTES: Final = 64 * 1024
# The log of aiohttp would contain malformed requests, with the token and the texts in them.
_HTTP_LOG: Final = logging.getLogger("mama_structs.ui.http")
_HTTP_LOG.setLevel(logging.CRITICAL + 1)


async def serve_ui(
    session: mama_structs.Session, *, port: int, write: bool | None, running: UiServer | None
) -> UiServer:
    """
    Return a server of pages that show the store of a session: the running one if it matches, or a new one.

    Args:
        session: The session. Its namespace is shown first.
        port: Port on 127.0.0.1, 0 for any free one.
        write: Whether the pages can change and delete memories; None for the mode of the running server, or read-only.
        running: The session's previous server. It is stopped if the new one needs its port.

    Raises:
        InvalidArgument: An argument is invalid.
        MamaStructsError: The port is in use.
        ImportError: The extra ``ui`` is not installed.

    """
    require_extra("jinja2", extra="ui")
    from mama_structs.ui.application import create_app  # noqa: PLC0415 - needs the extra

    checked_port = _check.check_integer("port", port, 0)
    if checked_port > _MAX_PORT:
        raise InvalidArgument(f"port must be at most {_MAX_PORT:,}, got {checked_port:,}")
    if write is None:
        is_writable = running is not None and running.is_open and running.write
    else:
        is_writable = _check.check_bool("write", write)
    if running is not None:
        if running._matches(port=checked_port, write=is_writable):
            return running
        if running._port == checked_port:
            await running.close()
    with contextlib.ExitStack() as closing:
        listening = closing.enter_context(socket.socket())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, checked_port))
        except OSError as error:
            raise MamaStructsError(
                f"cannot listen on {HOST} port {checked_port}: {error.strerror or error}",
                hint="port 0 takes any free port",
            ) from error
        access = Access(port=listening.getsockname()[1])
        workspace = Workspace(session, is_writable=is_writable)
        app = create_app(workspace, access)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=_HTTP_LOG,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            max_line_size=_MAX_ADDRESS_BYTES,
            max_field_size=_MAX_ADDRESS_BYTES,
        )
        await runner.setup()
        await web.SockSite(runner, listening).start()
        closing.pop_all()

    def make_url(token: str) -> str:
        return f"http://{HOST}:{access.port}/?{TOKEN_PARAMETER}={token}"

    return UiServer(
        make_url(access.token),
        port=access.port,
        write=is_writable,
        stops=[runner.cleanup, workspace.close],
        make_single_use_url=lambda: make_url(access.create_single_use_token()),
    )
