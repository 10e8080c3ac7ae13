"""How far memories are trusted: no more than what they rest on, carry out or supersede (DESIGN section 6a)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import numpy as np

from mama_structs.memory.engine import Filter, Nodes, Reader, Writer
from mama_structs.memory.model import ORIGINS, Link, LinkType, Memory, Origin, is_id, least_trusted

RESTING: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION)
"""The types of links that begin at a memory which rests on the other one."""


def trusted(reader: Reader, memory: Memory, links: Iterable[Link]) -> Memory:
    """Return a memory, which begins *links*, with the trust that it has beside what it rests on."""
    ids = [item for item in memory.evidence if is_id(item)]
    ids += [link.to_id for link in links if link.link_type in RESTING]
    if not ids:
        return memory
    nodes = np.array([node for node in reader.find_many(ids) if node is not None], np.int64)
    trusts = [ORIGINS[trust] for trust in reader.facts(nodes).trusts.tolist()]
    return attrs.evolve(memory, trust=least_trusted([memory.trust, *trusts]))


def lower(writer: Writer, node: int, trust: Origin) -> None:
    """Trust a memory no more than so far, nor what rests on it in turn."""
    nodes = np.array([node], np.int64)
    while len(nodes := nodes[writer.facts(nodes).trusts < ORIGINS.index(trust)]):
        memories = writer.get(nodes)
        for memory in memories:
            writer.put(attrs.evolve(memory, trust=trust))
        nodes = np.unique(np.concatenate([writer.links(nodes, "in", RESTING).sources, *_naming(writer, memories)]))


def _naming(reader: Reader, memories: Iterable[Memory]) -> list[Nodes]:
    """Return the memories that name each of some as evidence."""
    return [reader.window(Filter(evidence=frozenset({memory.id}))) for memory in memories]
