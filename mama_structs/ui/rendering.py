"""Rendering of the page templates."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from aiohttp import web
from markupsafe import Markup

from mama_structs._internal.offload import measure_input, run_inline_or_in_thread
from mama_structs._internal.reprs import escape_unprintable, format_count, truncate_text
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.ui.access import ACCESS, FORM_TOKEN_FIELD
from mama_structs.ui.workspace import WORKSPACE

MAX_TEXT_CHARS: Final = 200_000
"""Maximum number of characters of one text on a page."""
NAVIGATION: Final = (
    ("overview", "/", "Overview"),
    ("search", "/search", "Search"),
    ("topics", "/topics", "Topics"),
    ("recall", "/recall", "Recall preview"),
    ("conversations", "/conversations", "Conversations"),
    ("records", "/records", "Records"),
)
OUTCOME_WORDS: Final = {"SUCCESS": "succeeded", "FAILED": "failed", "PARTIAL": "partly succeeded"}
ORIGIN_WORDS: Final = {"user": "the user", "model": "a model", "tool": "a tool", "outside": "outside"}


def show_text(text: object, max_chars: int = MAX_TEXT_CHARS) -> Markup:
    """
    Return an untrusted text for a page: escaped, isolated from the direction of its surroundings, control characters
    and direction marks visible.
    """
    # `Markup.format` takes five times as long as the operator.
    return Markup("<bdi>%s</bdi>") % truncate_text(str(text), max_chars)


def show_line(text: object, max_chars: int = 160) -> Markup:
    """Return the beginning of an untrusted text in one line."""
    line = " ".join(str(text).split())
    cut = line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
    return Markup("<bdi>%s</bdi>") % escape_unprintable(cut)


def show_time(at: datetime | None) -> Markup:
    """Return a time in UTC as a ``time`` element. The script of the pages adds the local time as its title."""
    if at is None:
        return Markup("never")
    return Markup('<time datetime="%s">%s</time>') % (at.isoformat(), f"{at:%Y-%m-%d %H:%M} UTC")


def show_time_field(at: datetime | None) -> str:
    """Return a time in UTC as the value of an input field, or an empty text."""
    return "" if at is None else f"{at:%Y-%m-%dT%H:%M}"


def make_tag_lines(tags: Iterable[str]) -> dict[str, str]:
    """Return tags by the lines that show them in a text field."""
    return {" ".join(tag.replace("\0", "\ufffd").split()): tag for tag in tags}


def format_bytes(size: int) -> str:
    """Return a number of bytes in kB, MB or GB."""
    amount, unit = size / 1000, "kB"
    for larger in ("MB", "GB"):
        if amount >= 1000:  # noqa: PLR2004 - from one unit to the next
            amount, unit = amount / 1000, larger
    return f"{amount:,.0f} {unit}" if amount >= 10 or unit == "kB" else f"{amount:.1f} {unit}"  # noqa: PLR2004


def link_to(path: str, **parameters: object) -> str:
    """Return the address of a page with those parameters that are neither None nor empty. Lists are repeated."""
    pairs = [(name, value) for name, value in parameters.items() if value not in (None, "", (), [], False)]
    encoded = urlencode(pairs, doseq=True, errors="replace")
    return f"{path}?{encoded}" if encoded else path


def link_to_memory(memory_id: str, namespace: str) -> str:
    """Return the address of a memory's page."""
    return link_to("/memory", id=memory_id, namespace=namespace)


def link_to_topic(topic: str, namespace: str) -> str:
    """Return the address of a topic's page."""
    return link_to("/topics", topic=topic, namespace=namespace)


@functools.cache
def create_environment() -> jinja2.Environment:
    """Return the environment of all templates. It escapes each value, and an unknown name is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mama_structs.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        text=show_text, line=show_line, time=show_time, time_field=show_time_field, tag_lines=make_tag_lines
    )
    environment.globals.update(
        link_to=link_to,
        link_to_memory=link_to_memory,
        link_to_topic=link_to_topic,
        format_count=format_count,
        format_bytes=format_bytes,
        OUTCOME_WORDS=OUTCOME_WORDS,
        ORIGIN_WORDS=ORIGIN_WORDS,
        FORM_TOKEN_FIELD=FORM_TOKEN_FIELD,
        NAVIGATION=NAVIGATION,
    )
    return environment


async def render(request: web.Request, template: str, *, status: int = 200, **values: Any) -> web.Response:
    """
    Render a template with the given values and the common ones.

    These are ``namespace``, ``namespaces``, ``location``, ``is_writable``, ``form_token`` and ``page``, the name of
    the template without its ending.
    """
    workspace = request.app[WORKSPACE]
    common: dict[str, Any] = {
        "namespace": get_namespace(request),
        "namespaces": await workspace.list_namespaces(),
        "location": workspace.session.location,
        "is_writable": workspace.is_writable,
        "form_token": request.app[ACCESS].form_token,
        "page": template.partition(".")[0],
        "path": request.path,
    }

    def render_template() -> bytes:
        text = create_environment().get_template(template).render(common | values)
        # Lone surrogates cannot be encoded.
        return text.encode("utf-8", "replace")

    body = await run_inline_or_in_thread(measure_input(values), render_template)
    return web.Response(body=body, status=status, content_type="text/html", charset="utf-8")


def read_number(request: web.Request, name: str, *, default: int, most: int) -> int:
    """
    Return a number of an address, from 1 to *most*.

    Raises:
        InvalidArgument: The address has no such number.

    """
    text = request.query.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise InvalidArgument(f"{name} must be a number from 1 to {most:,}, got {repr_short(text)}")
    return int(text)


def get_namespace(request: web.Request) -> str:
    """Return the namespace that a request selects, by default that of the session."""
    return request.query.get("namespace") or request.app[WORKSPACE].session.namespace
