"""Upkeep of a store: its contents, backup and maintenance."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from mama_structs.errors import InvalidArgument
from mama_structs.session.backend import Backend
from mama_structs.session.location import Location, check_directory
from mama_structs.settings import Settings
from mama_structs.storage.backup import backup

_log: Final = logging.getLogger("mama_structs")


async def back_up(home: Backend, target: Location, progress: Callable[[int, int], object] | None) -> Path:
    """Copy the directory of a backend; see `mama_structs.admin.backup`."""
    if home.path is None:
        hint = "open it with a location" if home.location is None else "use the server's own: pg_dump -n mama_structs"
        raise InvalidArgument("a session without a directory cannot be backed up", hint=hint)
    directory = check_directory(target)
    if _is_inside(directory, home.path):
        raise InvalidArgument(f"{str(directory)!r:.200} is in the store itself", hint="name another directory")
    await home.flush()
    await backup(home.path, directory, progress=progress)
    return directory


def _is_inside(path: Path, directory: Path) -> bool:
    return Path(os.path.realpath(directory)) in Path(os.path.realpath(path)).parents


async def expire_conversations(home: Backend, namespace: str, settings: Settings, *, now: datetime) -> None:
    """Delete conversations that were not used within the TTL in the settings. Do nothing without a TTL."""
    ttl = settings.descriptors.conversation_ttl
    if ttl is not None and home.location is not None:
        count = await home.expire(namespace, now - timedelta(seconds=ttl))
        _log.log(logging.INFO if count else logging.DEBUG, "%d conversations were deleted, unused for %g s", count, ttl)
