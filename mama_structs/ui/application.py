"""Web application of the pages: routes, static files and error pages."""

from __future__ import annotations

import logging
import traceback
from importlib.resources import files
from typing import Final

from aiohttp import web

from mama_structs.errors import (
    LinkNotFound,
    MamaStructsError,
    MemoryNotFound,
    SessionClosed,
    StoreBusy,
    UnknownNamespace,
    VersionConflict,
)
from mama_structs.ui.access import ACCESS, Access, Handler, add_headers, check_access
from mama_structs.ui.pages import changes, conversations, memory, overview, recall, records, search, topics
from mama_structs.ui.rendering import render
from mama_structs.ui.workspace import WORKSPACE, Workspace

_logger = logging.getLogger(__name__)
_ERROR_NOTE: Final = "The log of the process has its details."
_MAX_FORM_BYTES: Final = 4 * 1024 * 1024
# HTTP status of an error's page. The first matching class decides; other errors of the package are 400.
_STATUS_BY_ERROR: Final = (
    (MemoryNotFound, 404),
    (LinkNotFound, 404),
    (UnknownNamespace, 404),
    (VersionConflict, 409),
    (StoreBusy, 503),
    (SessionClosed, 503),
)
STATIC_FILES: Final = {"site.css": "text/css", "site.js": "text/javascript", "icon.svg": "image/svg+xml"}


def create_app(workspace: Workspace, access: Access) -> web.Application:
    """Return the application with all pages. Pages that change the store exist only if the workspace is writable."""
    app = web.Application(
        middlewares=[add_headers, hide_errors, check_access, show_errors], client_max_size=_MAX_FORM_BYTES
    )
    app[WORKSPACE], app[ACCESS] = workspace, access
    app.router.add_get("/static/{name}", _send_static_file)
    for page in (overview, search, memory, changes, topics, recall, conversations, records):
        app.router.add_routes(page.list_routes(is_writable=workspace.is_writable))
    return app


@web.middleware
async def hide_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return a plain response without the error's text if a page and the error page failed."""
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception as error:
        _log_error(request, error)
        raise web.HTTPInternalServerError(text=f"This page failed. {_ERROR_NOTE}\n") from error


@web.middleware
async def show_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Show an error of the package as a page with its message and hint, and log others."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return await render(
            request, "error.html", path="/", status=404, title="No such page", message=request.path, hint=None
        )
    except MamaStructsError as error:
        status = next((status for kind, status in _STATUS_BY_ERROR if isinstance(error, kind)), 400)
        message = str(error.args[0] if error.args else error)
        return await render(
            request, "error.html", status=status, title="This did not work", message=message, hint=error.hint
        )
    except web.HTTPException:
        raise
    except Exception as error:  # noqa: BLE001 - the server must go on
        _log_error(request, error)
        return await render(
            request,
            "error.html",
            status=500,
            title="This page failed",
            message=f"An unexpected error occurred. {_ERROR_NOTE}",
            hint=None,
        )


def _log_error(request: web.Request, error: Exception) -> None:
    """Log the type and place of an error. Its text may contain a memory, and an address may contain line ends."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    name = type(error).__name__
    _logger.error("the page %.200r failed: %s at %s:%s", request.path, name, place.filename, place.lineno)


async def _send_static_file(request: web.Request) -> web.Response:
    kind = STATIC_FILES.get(request.match_info["name"])
    if kind is None:
        raise web.HTTPNotFound
    content = files("mama_structs.ui").joinpath("static", request.match_info["name"]).read_bytes()
    return web.Response(body=content, content_type=kind, charset="utf-8")
