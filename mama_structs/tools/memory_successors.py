"""What took the place of a memory: what did so directly, and what holds today."""

from __future__ import annotations

from collections.abc import Iterable

from mama_structs.errors import MamaStructsError
from mama_structs.memory.graph import holding
from mama_structs.memory.model import Link, LinkType
from mama_structs.memory.results import Chain
from mama_structs.memory.saving import OUTCOME_OF
from mama_structs.memory.store import MemoryStore


def direct_successors(links: Iterable[Link], memory_id: str) -> list[str]:
    """Return the ids of the memories that superseded one directly, newest link first."""
    found = [link for link in links if link.link_type is LinkType.EVOLUTION and link.to_id == memory_id]
    found.sort(key=lambda link: link.created_at, reverse=True)
    return list(dict.fromkeys(link.from_id for link in found))


def standing(chain: Chain, memory_id: str) -> str | None:
    """
    Return what stands in a memory's place today, None where it holds itself.

    Args:
        chain: The evolution that the memory is part of.
        memory_id: The memory's id.

    """
    links = ((link.from_id, link.to_id) for link in chain.links)
    return holding(links, (memory.id for memory in chain.memories)).get(memory_id)


async def successor(memories: MemoryStore, memory_id: str, links: Iterable[Link]) -> str | None:
    """
    Return what stands in a memory's place today, None where it holds; what was read already is not read again.

    Args:
        memories: Where the chain is read.
        memory_id: The memory's id.
        links: The links that begin or end at it.

    """
    later = direct_successors(links, memory_id)
    if not later:
        return None
    try:
        return standing(await memories.evolution(memory_id), memory_id)
    except MamaStructsError:
        # It may have been deleted meanwhile, or cannot be read; the nearest answer is better than none.
        return later[0]


def decision_told_of(links: Iterable[Link], memory_id: str) -> str | None:
    """Return the decision whose outcome a context explains."""
    return next(
        (
            link.to_id
            for link in links
            if link.from_id == memory_id and link.metadata.original_relationship == OUTCOME_OF
        ),
        None,
    )
