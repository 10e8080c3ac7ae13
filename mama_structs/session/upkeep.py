"""Upkeep of a store: its contents, backup and maintenance."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.requests import check_namespace
from mama_structs.session.backend import Backend, OpenConversation, open_backend
from mama_structs.session.location import Location, check_directory, check_store
from mama_structs.settings import Settings
from mama_structs.storage.backup import backup

if TYPE_CHECKING:
    from mama_structs.session.session import Session

_log: Final = logging.getLogger("mama_structs")


@contextlib.asynccontextmanager
async def opened_backend(store: Location | Session) -> AsyncIterator[Backend]:
    """Yield the backend of an open session, or open an existing store for the duration of the block."""
    if isinstance(store, str | os.PathLike):
        async with open_backend(await check_store(store)) as home:
            yield home
    else:
        store._check()
        yield store._shared.home


def namespace_of(store: Location | Session, namespace: str | None) -> str:
    """Return the given namespace, or that of an open session, or ``"default"``."""
    if namespace is not None:
        return check_namespace(namespace)
    return "default" if isinstance(store, str | os.PathLike) else store.namespace


async def back_up(home: Backend, target: Location, progress: Callable[[int, int], object] | None) -> Path:
    """Copy the directory of a backend; see `mama_structs.admin.backup`."""
    if home.path is None:
        hint = "open it with a location" if home.location is None else "use the server's own: pg_dump -n mama_structs"
        raise InvalidArgument("a session without a directory cannot be backed up", hint=hint)
    directory = check_directory(target)
    await home.flush()
    await backup(home.path, directory, progress=progress)
    return directory


async def expire_conversations(home: Backend, conversation: OpenConversation, settings: Settings) -> None:
    """Delete conversations that were not used within the TTL in the settings. Do nothing without a TTL."""
    ttl = settings.descriptors.conversation_ttl
    if ttl is not None and home.location is not None:
        before = conversation.refs._now() - timedelta(seconds=ttl)
        count = await home.expire(conversation.key.namespace, before)
        _log.log(logging.INFO if count else logging.DEBUG, "%d conversations were deleted, unused for %g s", count, ttl)
