"""Locations of stores: directories and addresses of PostgreSQL servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs._internal.validation import invalid_argument, is_url
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.storage.files import absolute_path, is_store
from mama_structs.storage.postgres.pool import check_url, has_session

# Maximum bytes of a file name in common file systems.
MAX_FILE_NAME_BYTES: Final = 255
IN_MEMORY_NAME: Final = ":memory:"
"""The name of a database in memory in SQLite and other libraries. Here it would create a directory."""

Location = str | os.PathLike[str]


async def check_store(location: Location) -> Path | str:
    """Return the location of an existing store: a directory, or the URL of a server."""
    checked = check_location(location)
    if isinstance(checked, Path):
        if not is_store(checked):
            raise InvalidArgument(f"{os.fspath(checked)!r:.200} is not the directory of a store")
    elif not await run_in_own_thread(lambda: has_session(checked)):
        raise InvalidArgument("the database contains no session yet", hint="nothing was created; check its URL")
    return checked


def check_location_type(name: str, location: object) -> None:
    """Raise `InvalidArgument` if the required argument *name* is no location, such as an open session or None."""
    if not isinstance(location, str | os.PathLike):
        rule = "must be a directory or the URL of a server"
        raise invalid_argument(name, rule, location, hint="for an open session, pass its location")


def check_location(location: Location) -> Path | str:
    """Return a session's location: a directory, or the URL of a server."""
    return check_url(location) if is_url(location) else check_directory(location)


def check_directory(location: Location) -> Path:
    """Return the path of a directory, which may be missing."""
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument(f"location must be a directory or None, got {repr_short(location)}")
    if text == IN_MEMORY_NAME:
        hint = "omit location for a session in memory"
        raise InvalidArgument(f"location must be a directory or None, got {text!r}", hint=hint)
    if is_url(text):
        raise InvalidArgument("this must be a directory, and is the address of a server")
    try:
        path = Path(text)
        too_long = any(len(part.encode()) > MAX_FILE_NAME_BYTES for part in path.parts)
        is_file = path.exists() and not path.is_dir()
    except (OSError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"location cannot be a directory: {repr_short(text)}") from error
    if too_long:
        raise InvalidArgument(f"location has a name of more than {MAX_FILE_NAME_BYTES} bytes: {repr_short(text)}")
    if is_file:
        raise InvalidArgument(f"location must be a directory, and {repr_short(text)} is a file")
    absolute_path(path.absolute() / "journal")
    return path
