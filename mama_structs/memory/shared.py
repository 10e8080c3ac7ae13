"""What all views of a session's memories share: engine and embedder, what is remembered, and whether it is open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeVar

import attrs
import numpy as np

from mama_structs._async import LoopBound
from mama_structs.errors import SessionClosed
from mama_structs.memory import care, contents
from mama_structs.memory.backend import Reader, Writer
from mama_structs.memory.contents import Found
from mama_structs.memory.drafts import Door, Draft
from mama_structs.memory.embedded.engine import Engine, mismatch
from mama_structs.memory.embedded.keys import EmbedderRecord
from mama_structs.memory.embedding.service import EmbeddingService
from mama_structs.memory.ids import from_milliseconds
from mama_structs.memory.model import LinkType
from mama_structs.memory.relationships import EXAMPLES, link_type_of, normalised
from mama_structs.memory.results import Reached
from mama_structs.memory.saving import Linking, Prepared
from mama_structs.memory.text import embedded_text
from mama_structs.memory.traversal_cache import TraversalCache
from mama_structs.settings import MemorySettings

T = TypeVar("T")

AT_ONCE: Final = 50
"""Records that are checked or saved before others have their turn."""


@attrs.define(eq=False)
class Shared:
    """
    The memories of one namespace, as far as it does not matter who asks.

    Args:
        backend: What keeps them.
        embedding: What turns texts into vectors; another one after `take_over`.
        settings: For the memories.
        loop: The session's.
        find_mentions: Gives the ids of entities that a text names.
        clock: Gives the seconds since 1970.

    """

    backend: Engine
    embedding: EmbeddingService
    settings: MemorySettings = attrs.field(kw_only=True)
    loop: LoopBound = attrs.field(kw_only=True)
    find_mentions: Callable[[str], Sequence[str]] = attrs.field(default=lambda _text: (), kw_only=True)
    clock: Callable[[], float] = attrs.field(default=time.time, kw_only=True)
    door: Door = attrs.field(init=False)
    cache: TraversalCache[list[Reached]] = attrs.field(init=False)
    record: EmbedderRecord = attrs.field(init=False)
    # The embedder that is taking over, as long as one is.
    next_record: EmbedderRecord | None = attrs.field(default=None, init=False)
    closed: bool = attrs.field(default=False, init=False)
    chaining: asyncio.Lock = attrs.field(factory=asyncio.Lock, init=False)
    """Held while something is saved in the place of what was read to be the newest; see `tools.deprecated`."""

    def __attrs_post_init__(self) -> None:
        self.door = Door(namespace=self.backend.namespace, max_content=self.settings.max_content)
        self.cache = self._new_cache()
        self.record = care.record_of(self.embedding.embedder)

    @property
    def linking(self) -> Linking:
        """How automatic links are made."""
        return Linking(policy=self.settings.linking, calibration=self.embedding.embedder.calibration)

    @property
    def now(self) -> datetime:
        """The time."""
        return from_milliseconds(int(self.clock() * 1000))

    def check(self) -> None:
        """
        Refuse what was closed, and another loop.

        Raises:
            SessionClosed: It was closed.
            WrongLoop: This is another loop or process.

        """
        if self.closed:
            raise SessionClosed("the memories were closed with their session", hint="open another session")
        self.loop.check()

    async def read(self, plan: Callable[[Reader], T], *, made_by: EmbedderRecord | None = None) -> T:
        """
        Run a plan that reads.

        Args:
            plan: The plan.
            made_by: Which embedder made the vectors at hand; None where there are none.

        """
        self.check()

        def checked(reader: Reader) -> T:
            self._check_embedder(made_by)
            return plan(reader)

        return await self.backend.read(checked)

    async def write(self, plan: Callable[[Writer], T], *, made_by: EmbedderRecord | None = None) -> T:
        """Run a plan that writes; the arguments are those of `read`."""
        self.check()

        def checked(writer: Writer) -> T:
            self._check_embedder(made_by)
            return plan(writer)

        return await self.backend.write(checked)

    async def with_contents(self, drafts: Sequence[Draft], found: Sequence[Sequence[str | Found]]) -> list[Draft]:
        """
        Return drafts with the texts that the handles in their evidence stand for.

        Args:
            drafts: What was asked for.
            found: The evidence of each, as `contents.find_all` gives it.

        """
        digests = await contents.digests_of(found)
        texts = {digest: text for text, digest in digests.items()}
        return [
            attrs.evolve(
                draft,
                memory=attrs.evolve(draft.memory, evidence=contents.as_kept(items, digests)),
                contents=texts,
            )
            for draft, items in zip(drafts, found, strict=True)
        ]

    async def prepare(self, drafts: Sequence[Draft]) -> list[Prepared]:
        """Embed what was asked for, and find what it mentions and the types of its links."""
        words = {link.relationship for draft in drafts for link in draft.links}
        kinds = await self.link_types(sorted(words))
        memories = []
        for position, draft in enumerate(drafts):
            if position and position % AT_ONCE == 0:
                await asyncio.sleep(0)
            mentions = tuple(self.find_mentions(embedded_text(draft.memory)))
            memories.append(attrs.evolve(draft.memory, mentions=mentions))
        vectors = await self.embedding.documents([embedded_text(memory) for memory in memories])
        return [
            Prepared(draft=draft, memory=memory, vectors=pieces, link_types=kinds)
            for draft, memory, pieces in zip(drafts, memories, vectors, strict=True)
        ]

    async def link_types(self, words: Sequence[str]) -> dict[str, LinkType]:
        """Return the type of each relationship word."""
        kinds = {word: link_type_of(word) for word in words}
        unknown = [word for word, mapped in kinds.items() if mapped.fallback]
        if unknown:
            found = await self.embedding.documents([*map(normalised, unknown), *EXAMPLES])
            vectors = [pieces[0] for pieces in found]
            examples = np.stack(vectors[len(unknown) :])
            for word, vector in zip(unknown, vectors, strict=False):
                kinds[word] = link_type_of(word, vector=vector, example_vectors=examples)
        return {word: mapped.link_type for word, mapped in kinds.items()}

    async def take_over(self, embedding: EmbeddingService) -> None:
        """Use another embedder from now on, and end the one before."""
        before, self.embedding = self.embedding, embedding
        self.record = care.record_of(embedding.embedder)
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
        if self.backend.embedder not in known:
            raise mismatch(self.backend.namespace, self.backend.embedder, known[0])
