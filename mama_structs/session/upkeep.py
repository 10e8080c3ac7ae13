"""Upkeep of a store: its contents, backup and maintenance."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.refs.conversations.conversation_info import Conversations
from mama_structs.session.backend import Backend, OpenConversation, open_backend
from mama_structs.session.location import Location, check_directory, check_store
from mama_structs.settings import Settings
from mama_structs.storage.backup import backup

_log: Final = logging.getLogger("mama_structs")


async def list_conversations(location: Location, *, namespace: str) -> Conversations:
    """Return the conversations of a store; see `Session.conversations`."""
    checked = await check_store(location)
    async with open_backend(checked) as home:
        found = await home.conversations(namespace)
        where = checked if isinstance(checked, Path) else home.location

    async def delete(name: str) -> None:
        async with open_backend(checked) as home:
            await home.delete(name, namespace=namespace)

    return Conversations(found, what=f"{repr_short(namespace)} at {str(where)!r}", delete=delete)


async def list_namespaces(location: Location) -> tuple[str, ...]:
    """Return the namespaces of a store; see `Session.namespaces`."""
    async with open_backend(await check_store(location)) as home:
        return await home.namespaces()


async def back_up(home: Backend, target: Location, progress: Callable[[int, int], object] | None) -> Path:
    """Copy the directory of a backend; see `Session.backup`."""
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
        before = conversation.refs.now() - timedelta(seconds=ttl)
        count = await home.expire(conversation.key.namespace, before)
        _log.log(logging.INFO if count else logging.DEBUG, "%d conversations were deleted, unused for %g s", count, ttl)
