"""What plans found, as callers get it: memories in place of nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mama_structs.memory import graph
from mama_structs.memory.engine import LinkTable, Reader
from mama_structs.memory.model import Link, LinkType
from mama_structs.memory.results import Chain, Reached


def reached_along(reader: Reader, steps: Sequence[graph.Step]) -> tuple[Reached, ...]:
    """Return what a traversal reached."""
    memories = reader.get([step.node for step in steps])
    on_paths = list({node for step in steps for node in step.path})
    ids = dict(zip(on_paths, reader.ids(on_paths), strict=True))
    return tuple(
        Reached(
            memory=memory,
            depth=step.depth,
            path=tuple([ids[node] for node in step.path]),
            strength=step.strength,
        )
        for memory, step in zip(memories, steps, strict=True)
    )


def chain_of(reader: Reader, found: graph.ChainNodes, *, around: tuple[Reached, ...] = ()) -> Chain:
    """Return a chain of decisions with its links, and what is around it."""
    memories = reader.get(found.nodes)
    by_node = dict(zip(found.nodes.tolist(), memories, strict=True))
    return Chain(
        memories=tuple(memories),
        links=tuple(_evolution_links(reader, found.links)),
        forks=tuple(by_node[node] for node in found.forks.tolist()),
        around=around,
    )


def _evolution_links(reader: Reader, table: LinkTable) -> list[Link]:
    found = [
        link
        for links in reader.links_of_many(np.unique(table.sources), "out")
        for link in links
        if link.link_type is LinkType.EVOLUTION
    ]
    return sorted(found, key=lambda link: (link.created_at, link.id), reverse=True)
