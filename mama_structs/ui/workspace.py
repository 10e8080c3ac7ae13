"""Access of the pages to the namespaces of a store."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
from aiohttp import web

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs.errors import EmbedderMismatch, UnknownNamespace
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.store.factory import UnavailableEmbedder, open_memories
from mama_structs.session.wiring import make_text_eraser
from mama_structs.tools.wire_names import make_name_hint
from mama_structs.ui.form_receipts import FormReceipts


@attrs.define(eq=False)
class Workspace:
    """
    The namespaces of the store of an open session.

    Memories of further namespaces are opened on first use, and closed with the workspace.
    """

    session: mama_structs.Session
    is_writable: bool = False
    changes: FormReceipts = attrs.field(factory=FormReceipts, init=False)
    _stores: dict[str, mama_structs.MemoryStore] = attrs.field(factory=dict, init=False)
    _closing: list[Callable[[], Awaitable[Any]]] = attrs.field(factory=list, init=False)

    async def list_namespaces(self) -> tuple[str, ...]:
        """Return the sorted namespaces of the store, including that of the session."""
        known = await self.session._shared.home.namespaces()
        return tuple(sorted({*known, self.session.namespace}))

    async def open_memories(self, namespace: str) -> mama_structs.MemoryStore:
        """
        Return the memories of a namespace.

        Raises:
            UnknownNamespace: The store has no namespace of this name.

        """
        if namespace == self.session.namespace:
            return self.session.memories
        if namespace not in self._stores:
            known = await self.list_namespaces()
            if namespace not in known:
                raise UnknownNamespace(namespace, hint=make_name_hint(namespace, known))
            open_with = functools.partial(self._open_memories, namespace)
            try:
                memories, close = await open_with(self.session.memories.embedder)
            except EmbedderMismatch:
                # Without the embedder of this namespace, its memories can be read and found by words.
                memories, close = await open_with(UnavailableEmbedder())
            self._stores[namespace] = memories
            self._closing.append(close)
        return self._stores[namespace]

    async def _open_memories(
        self, namespace: str, embedder: Any
    ) -> tuple[mama_structs.MemoryStore, Callable[[], Awaitable[Any]]]:
        home, own = self.session._shared.home, self.session.memories._shared
        return await open_memories(
            home.engines,
            namespace=namespace,
            embedder=embedder,
            settings=self.session.settings.memory,
            loop=self.session._shared.loop,
            find_mentions=own.find_mentions,
            erase_texts=make_text_eraser(functools.partial(home.erase_texts, namespace=namespace)),
        )

    async def open_records(self, namespace: str) -> RecordStore:
        """Return the records of a namespace."""
        return RecordStore((await self.open_memories(namespace))._shared)

    async def close(self) -> None:
        """Wait for running changes, and close the memories of further namespaces."""
        await self.changes.close()
        while self._closing:
            await self._closing.pop()()
        self._stores.clear()


WORKSPACE: Final = web.AppKey("workspace", Workspace)
