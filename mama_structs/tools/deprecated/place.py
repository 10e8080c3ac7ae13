"""Where the tools of v1.0 work, and which of its decisions hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import attrs

from mama_structs.errors import MemoryNotFound
from mama_structs.memory.model import Memory, MemoryType
from mama_structs.memory.store import MemoryStore
from mama_structs.tools.deprecated.choosing import decisions_on, standing


@attrs.frozen(kw_only=True, eq=False)
class Place:
    """
    Where the tools work.

    Args:
        memories: What they read and write.
        clock: Gives the seconds since 1970, for ages.

    """

    memories: MemoryStore
    clock: Callable[[], float] = time.time

    @property
    def chaining(self) -> AbstractAsyncContextManager[None]:
        """
        Held while a decision takes the place of its topic's newest, so that two at once make one chain.

        A session and its forks hold the same one. Sessions that were opened apart, in this process or another, do not
        wait for each other: where both save at once, a chain may fork, which recalling and listing cope with.
        """
        return self.memories._shared.chaining  # noqa: SLF001 - what all views of these memories have in common

    @property
    def now(self) -> datetime:
        """The present (UTC)."""
        return datetime.fromtimestamp(self.clock(), UTC)

    async def newest_on(self, topic: str) -> Memory | None:
        """Return the newest decision of a topic that still holds, None where there is none."""
        chain = await self.memories.by_topic(topic)
        own = decisions_on(chain, topic)
        holding = {memory.id for memory in standing(chain.memories, chain.links)}
        return next((memory for memory in own if memory.id in holding), None)

    async def holds(self, decision: Memory) -> bool:
        """
        Tell whether nothing took a decision's place.

        Raises:
            MemoryNotFound: It was deleted.

        """
        chain = await self.memories.evolution(decision.id)
        return decision.id in {memory.id for memory in standing(chain.memories, chain.links)}

    async def newest_holding(self, limit: int) -> list[Memory]:
        """
        Return the newest decisions that still hold, newest first.

        Args:
            limit: Decisions at the most.

        """
        holds: dict[str, bool] = {}
        asked = 2 * limit
        while True:
            newest = await self.memories.recent(limit=asked, types=[MemoryType.DECISION])
            found: list[Memory] = []
            for memory in newest:
                if memory.id not in holds:
                    try:
                        chain = await self.memories.evolution(memory.id)
                    except MemoryNotFound:
                        # Deleted meanwhile.
                        continue
                    ends = {one.id for one in standing(chain.memories, chain.links)}
                    holds.update({one.id: one.id in ends for one in chain})
                if holds[memory.id]:
                    found.append(memory)
                if len(found) == limit:
                    return found
            if len(newest) < asked:
                return found
            asked *= 4
