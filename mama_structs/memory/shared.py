"""What all views of a session's memories share: engine and embedder, what is remembered, and whether it is open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeVar

import attrs

from mama_structs._async import LoopBound
from mama_structs.errors import SessionClosed
from mama_structs.memory.embedding.service import EmbeddingService
from mama_structs.memory.engine import EmbedderRecord, Engine, Reader, Writer, mismatch
from mama_structs.memory.linking import Linking
from mama_structs.memory.maintenance import record_of
from mama_structs.memory.model import from_milliseconds
from mama_structs.memory.recent import TraversalCache
from mama_structs.memory.results import Reached
from mama_structs.settings import MemorySettings

T = TypeVar("T")

AT_ONCE: Final = 50
"""Records that are checked or saved before others have their turn."""


@attrs.define(eq=False)
class Shared:
    """The memories of one namespace, as far as it does not matter who asks."""

    engine: Engine
    embedding: EmbeddingService
    settings: MemorySettings = attrs.field(kw_only=True)
    loop: LoopBound = attrs.field(kw_only=True)
    find_mentions: Callable[[str], Sequence[str]] = attrs.field(default=lambda _text: (), kw_only=True)
    clock: Callable[[], float] = attrs.field(default=time.time, kw_only=True)
    cache: TraversalCache[list[Reached]] = attrs.field(init=False)
    record: EmbedderRecord = attrs.field(init=False)
    # The embedder that is taking over, as long as one is.
    next_record: EmbedderRecord | None = attrs.field(default=None, init=False)
    closed: bool = attrs.field(default=False, init=False)
    chaining: asyncio.Lock = attrs.field(factory=asyncio.Lock, init=False)
    """Held while something is saved in the place of what was read to be the newest; see `mama_structs.v1`."""

    def __attrs_post_init__(self) -> None:
        self.cache = self._new_cache()
        self.record = record_of(self.embedding.embedder)

    @property
    def linking(self) -> Linking:
        """How automatic links are made."""
        return Linking(policy=self.settings.linking, calibration=self.embedding.embedder.calibration)

    @property
    def now(self) -> datetime:
        """The time."""
        return from_milliseconds(int(self.clock() * 1000))

    def check(self) -> None:
        """Refuse what was closed, and another loop."""
        if self.closed:
            raise SessionClosed("the memories were closed with their session", hint="open another session")
        self.loop.check()

    async def read(self, plan: Callable[[Reader], T], *, made_by: EmbedderRecord | None = None) -> T:
        """Run a plan that reads."""
        self.check()

        def checked(reader: Reader) -> T:
            self._check_embedder(made_by)
            return plan(reader)

        return await self.engine.read(checked)

    async def write(self, plan: Callable[[Writer], T], *, made_by: EmbedderRecord | None = None) -> T:
        """Run a plan that writes; the arguments are those of `read`."""
        self.check()

        def checked(writer: Writer) -> T:
            self._check_embedder(made_by)
            return plan(writer)

        return await self.engine.write(checked)

    async def take_over(self, embedding: EmbeddingService) -> None:
        """Use another embedder from now on, and end the one before."""
        before, self.embedding = self.embedding, embedding
        self.record = record_of(embedding.embedder)
        self.cache = self._new_cache()
        await before.close()

    async def close(self) -> None:
        """Take nothing more, and end the embedder's work; again is no error."""
        if not self.closed:
            self.closed = True
            await self.embedding.close()

    def _new_cache(self) -> TraversalCache[list[Reached]]:
        return TraversalCache(entries=self.settings.traversal_entries, ttl=self.settings.traversal_ttl)

    def _check_embedder(self, made_by: EmbedderRecord | None) -> None:
        """See that nobody has embedded everything anew since."""
        known = (self.record, self.next_record) if made_by is None else (made_by,)
        if self.engine.embedder not in known:
            raise mismatch(self.engine.namespace, self.engine.embedder, known[0])
