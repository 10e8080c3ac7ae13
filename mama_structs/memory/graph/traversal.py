"""
Graph traversal along links, evolution chains, and supersession.

All functions are plans over a `Reader` that read the links of a whole level in one query.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.types.engine import (
    SYSTEM_CREATOR_INDEX,
    TYPE_NUMBERS,
    Direction,
    EngineFilter,
    LinkTable,
    Nodes,
    Prefetch,
    Reader,
    in_sorted,
)
from mama_structs.memory.types.model import (
    OUTCOME_OF_WORD,
    Link,
    LinkType,
    Memory,
    from_milliseconds,
    is_outcome_reason,
    to_milliseconds,
)

MAX_DEPTH: Final = 5
"""Maximum depth of a traversal (DESIGN section 6)."""
TOPIC_DEPTH: Final = 3
CONTEXT_DEPTH: Final = 2
DEFAULT_LIMIT: Final = 1000

K = TypeVar("K", bound=Hashable)

_EVOLUTION_ONLY: Final = frozenset({LinkType.EVOLUTION})
_NO_NODES: Final = np.empty(0, np.int64)
# At this depth of a chain, and at each doubling of the depth, all memories of the chain's topics are loaded.
# This saves one query per link.
_LONG_CHAIN_LEVELS: Final = 16


class Step(NamedTuple):
    """A memory reached by a traversal."""

    node: int
    depth: int
    """Number of links from the start, 1 for direct neighbours."""
    path: tuple[int, ...]
    """Nodes from the start to this one, both included."""
    strength: float
    """Product of the decayed strengths of the links on the path, to six decimals."""


@attrs.frozen
class ChainNodes:
    """Evolution of a decision: memories newest first, deduplicated links, and forks."""

    nodes: Nodes
    links: LinkTable
    forks: Nodes


@attrs.frozen
class TopicNodes:
    """A topic's memories with their complete evolution, and the memories linked to these."""

    chain: ChainNodes
    around: list[Step]


# Traversal


def traverse(
    reader: Reader,
    starts: int | Nodes,
    *,
    now_ms: int,
    types: Collection[LinkType] | None = None,
    max_depth: int = MAX_DEPTH,
    direction: Direction = "both",
    min_strength: float = 0.0,
    limit: int = DEFAULT_LIMIT,
) -> list[Step]:
    """
    Return the memories reached from *starts*, nearest and then strongest first.

    Each memory has the strongest of its shortest paths.
    """
    # If strengths are equal, the memory saved last comes first. The limit drops the weakest of the deepest level.
    level = np.atleast_1d(np.asarray(starts, np.int64))
    power, paths = np.ones(len(level)), [(node,) for node in level.tolist()]
    visited = np.sort(level)
    steps: list[Step] = []
    deepest = min(max_depth, MAX_DEPTH)
    reader.expect(lambda ahead: ahead.links(level, direction, types), around=deepest)
    for depth in range(1, deepest + 1):
        if not len(level) or len(steps) >= limit:
            break
        table = reader.links(level, direction, types)
        parents, nodes, reached = _next_links(level, power, table, direction, visited, now_ms=now_ms)
        order = np.lexsort((parents, -nodes, -reached))
        order = order[reached[order] >= min_strength]
        _, first = np.unique(nodes[order], return_index=True)
        chosen = order[np.sort(first)[: limit - len(steps)]]
        level, power = nodes[chosen], reached[chosen]
        paths = [(*paths[at], node) for at, node in zip(parents[chosen].tolist(), level.tolist(), strict=True)]
        steps += map(Step, level.tolist(), itertools.repeat(depth), paths, power.tolist())
        visited = np.sort(np.concatenate([visited, level]))
    return steps


def _next_links(
    level: Nodes, power: NDArray[np.float64], table: LinkTable, direction: Direction, visited: Nodes, *, now_ms: int
) -> tuple[NDArray[np.intp], Nodes, NDArray[np.float64]]:
    """
    Return the links from the nodes of a level to nodes that are not in *visited*, which must be sorted.

    The three arrays have one item per link: the index of its start in *level*, the node at its end, and the strength of
    the path.
    """
    fade = table.decayed_confidences(now_ms).astype(np.float64)
    rank_of = np.argsort(level)
    ranked = level[rank_of]
    ways = []
    for wanted, here, there in (("out", table.sources, table.targets), ("in", table.targets, table.sources)):
        if direction in (wanted, "both"):
            follow = np.flatnonzero(in_sorted(here, ranked) & ~in_sorted(there, visited))
            parents = rank_of[np.searchsorted(ranked, here[follow])]
            # Round, so that a confidence of 0.7, which is slightly less in single precision, passes a minimum of 0.7.
            ways.append((parents, there[follow], np.round(power[parents] * fade[follow], 6)))
    parents, nodes, reached = (np.concatenate(column) for column in zip(*ways, strict=True))
    return parents, nodes, reached


# Evolution


def topic_evolution(
    reader: Reader, topic: str, *, now_ms: int, types: Collection[LinkType] | None = None
) -> TopicNodes:
    """Return a topic's unexpired memories with their complete evolution and neighbourhood."""
    where = EngineFilter(topic=topic, valid_at=from_milliseconds(now_ms))
    reader.expect(lambda ahead: [ahead.window(where), *prefetch_chain(ahead)], around=None)
    chain = find_evolution(reader, reader.window(where))
    around = traverse(reader, chain.nodes, now_ms=now_ms, types=types, max_depth=TOPIC_DEPTH)
    reached = np.array([step.node for step in around], np.int64)
    ended = {
        *chain.nodes[~reader.facts(chain.nodes).unexpired_mask(now_ms)],
        *reached[~reader.facts(reached).unexpired_mask(now_ms)],
    }
    if ended:
        # Expired memories are traversed, but left out of the result.
        gone = np.array(sorted(ended), np.int64)
        links = select_rows(chain.links, ~(np.isin(chain.links.sources, gone) | np.isin(chain.links.targets, gone)))
        chain = ChainNodes(chain.nodes[~np.isin(chain.nodes, gone)], links, chain.forks[~np.isin(chain.forks, gone)])
        around = [step for step in around if step.node not in ended]
    return TopicNodes(chain, around)


def prefetch_chain(ahead: Prefetch, starts: Nodes = _NO_NODES) -> Sequence[object]:
    """Prefetch the links that determine the evolution of memories."""
    return ahead.links(starts, "both", _EVOLUTION_ONLY), ahead.links_of_many(starts, "out")


def find_evolution(reader: Reader, starts: int | Nodes) -> ChainNodes:
    """
    Return the combined evolution chain of memories.

    A memory without evolution links is a chain of its own.
    """
    begun = set(np.atleast_1d(starts).tolist())
    reader.expect(lambda ahead: prefetch_chain(ahead, np.atleast_1d(starts)), around=None)
    members = _connected_nodes(begun, _evolution_closure(reader, begun, "both"))
    # Read the links again, because the closure may contain a link twice, once from each end.
    links = reader.links(members, "out", _EVOLUTION_ONLY)
    chain = _sort_newest_first(reader, members)
    pairs = np.unique(np.stack([links.sources, links.targets], axis=1), axis=0)
    sides = [np.unique(side, return_counts=True) for side in pairs.T]
    forks = np.concatenate([nodes[count > 1] for nodes, count in sides])
    return ChainNodes(chain, links, chain[np.isin(chain, forks)])


def find_superseded(links: Iterable[tuple[K, K]], newest_first: Iterable[K]) -> dict[K, K]:
    """Return each superseded memory with its current successor, according to *links*."""
    # The current successor is the newest direct or indirect successor that nothing supersedes.
    # If all successors lead into cycles, it is the newest memory of a cycle from which no link leads out.
    # All callers must use this rule, so that their answers agree.
    newer: dict[K, list[K]] = {one: [] for one in newest_first}
    older: dict[K, list[K]] = {one: [] for one in newer}
    for source, target in links:
        if source in newer and target in newer:
            newer[target].append(source)
            older[source].append(target)
    standing: dict[K, K] = {}
    replaced: set[K] = set()
    # Memories that nothing supersedes come first. The memories that remain after them lead into cycles.
    for end in sorted(newer, key=lambda one: bool(newer[one])):
        if end in standing or end in replaced:
            continue
        below = find_reachable([end], older) if newer[end] else set()
        if not find_reachable([end], newer) <= below:
            replaced |= below
            continue
        waiting = [end]
        while waiting:
            one = waiting.pop()
            if one not in standing:
                standing[one] = end
                waiting += older[one]
    return {one: end for one, end in standing.items() if one != end}


def find_reachable(starts: Iterable[K], edges: Mapping[K, Sequence[K]]) -> set[K]:
    """Return all nodes reachable along *edges*. A start is included only if it is on a cycle."""
    found: set[K] = set()
    waiting = list(starts)
    while waiting:
        for one in edges.get(waiting.pop(), ()):
            if one not in found:
                found.add(one)
                waiting.append(one)
    return found


class Successors:
    """Loads and caches the successors of memories, as of a given time or the present."""

    def __init__(self, reader: Reader, as_of: datetime | None = None) -> None:
        self.replaced_by: dict[int, set[int]] = {}
        self._reader = reader
        self._as_of = as_of
        self._seen: set[int] = set()

    def newest(self, nodes: Sequence[int] | Nodes, table: LinkTable | None = None) -> dict[int, int]:
        """
        Return the superseded *nodes* with their current successors.

        *table* can provide all links that end at *nodes*, so that they need not be read.
        """
        wanted = set(map(int, nodes))
        if unseen := wanted - self._seen:
            found = _evolution_closure(self._reader, unseen, "in", self._as_of, table)
            for source, target in zip(found.sources.tolist(), found.targets.tolist(), strict=True):
                self.replaced_by.setdefault(target, set()).add(source)
            self._seen |= unseen.union(found.sources.tolist())
        if not self.replaced_by:
            return {}
        links = [(source, target) for target, sources in self.replaced_by.items() for source in sources]
        known = np.array(sorted({one for link in links for one in link}), np.int64)
        standing = find_superseded(links, _sort_newest_first(self._reader, known).tolist())
        return {node: standing[node] for node in sorted(wanted) if node in standing}


@attrs.frozen(kw_only=True)
class AnswerExtras:
    """Related information that answers show with a memory."""

    memory: Memory
    links: tuple[Link, ...]
    """Links that start or end at it, oldest first."""
    superseded_by: Memory | None
    """Its current successor, or that of its decision if it is the reason of an outcome. None if it is current."""
    outcome_of: str | None
    """Id of the decision whose outcome it explains."""

    @property
    def successors(self) -> list[str]:
        """Ids of the memories that directly supersede this memory, newest link first."""
        return direct_successors(self.links, self.memory.id)


def direct_successors(links: Iterable[Link], memory_id: str) -> list[str]:
    """Return the ids of the memories that directly supersede a memory, newest link first."""
    found = [link for link in links if link.link_type is LinkType.EVOLUTION and link.to_id == memory_id]
    found.sort(key=lambda link: link.created_at, reverse=True)
    return list(dict.fromkeys(link.from_id for link in found))


def load_answer_extras(reader: Reader, memory_ids: Iterable[str]) -> dict[str, AnswerExtras]:
    """
    Return the related information of memories, by id. All of it is read in one batch.

    Unknown ids are left out.
    """
    names = list(dict.fromkeys(memory_ids))
    nodes = {name: node for name, node in zip(names, reader.find_many(names), strict=True) if node is not None}
    memories = dict(zip(nodes, reader.get([*nodes.values()]), strict=True))
    links = dict(zip(nodes, map(tuple, reader.links_of_many([*nodes.values()])), strict=True))
    told = {
        name: link.to_id
        for name, memory in memories.items()
        if is_outcome_reason(memory)
        for link in reversed(links[name])
        if link.from_id == name and link.metadata.original_relationship == OUTCOME_OF_WORD
    }
    about: dict[str, int | None] = {**nodes, **dict(zip(told, reader.find_many([*told.values()]), strict=True))}
    newest = Successors(reader).newest([node for node in about.values() if node is not None])
    standing = dict(zip(newest, reader.get([*newest.values()]), strict=True))
    return {
        name: AnswerExtras(
            memory=memories[name],
            links=links[name],
            superseded_by=None if node is None else standing.get(node),
            outcome_of=told.get(name),
        )
        for name, node in about.items()
    }


def links_as_of(table: LinkTable, as_of: datetime | None) -> LinkTable:
    """Return the links of a table that existed at *as_of*."""
    # Links by users and models exist from their creation time on.
    # An automatic link exists as soon as both ends exist, because a migration may create it much later.
    if as_of is None or not len(table):
        return table
    return select_rows(table, (table.creators == SYSTEM_CREATOR_INDEX) | (table.created <= to_milliseconds(as_of)))


def select_rows(table: LinkTable, rows: NDArray[np.bool_]) -> LinkTable:
    """Return the selected rows of a table."""
    return LinkTable(*(column[rows] for column in table.columns))


def _evolution_closure(
    reader: Reader, begun: set[int], direction: Direction, as_of: datetime | None = None, table: LinkTable | None = None
) -> LinkTable:
    """
    Return the evolution links that are reachable from the nodes *begun*.

    *table* may provide the links of the first level.
    """
    tables: list[LinkTable] = []
    level, seen = set(begun), set(begun)
    for depth in itertools.count(1):
        if not level:
            break
        if table is None:
            table = links_as_of(reader.links(np.array(sorted(level), np.int64), direction, _EVOLUTION_ONLY), as_of)
            rows = np.ones(len(table), np.bool_)
        else:
            rows = table.types == TYPE_NUMBERS[LinkType.EVOLUTION]
            if rows.any():
                rows &= np.isin(table.targets, list(level))
        if as_of is not None:
            rows &= reader.facts(table.sources).created <= to_milliseconds(as_of)
        tables.append(table if rows.all() else select_rows(table, rows))
        level = set(tables[-1].sources.tolist())
        if direction == "both":
            level.update(tables[-1].targets.tolist())
        level -= seen
        if level and depth >= _LONG_CHAIN_LEVELS and depth & (depth - 1) == 0:
            # One query per link is slow on a long chain, so add all memories of its topics: they include most of it.
            level.update(_same_topic_nodes(reader, np.array(sorted(level), np.int64)).tolist())
            level -= seen
        seen |= level
        table = None
    if not tables:
        return reader.links(np.zeros(0, np.int64), direction, _EVOLUTION_ONLY)
    if len(tables) == 1:
        return tables[0]
    return LinkTable(*map(np.concatenate, zip(*(table.columns for table in tables), strict=True)))


def _same_topic_nodes(reader: Reader, nodes: Nodes) -> Nodes:
    numbers = reader.facts(nodes).topics
    _, first = np.unique(numbers[numbers >= 0], return_index=True)
    topics = reader.topics(nodes[numbers >= 0][first])
    return np.concatenate([nodes[:0], *(reader.window(EngineFilter(topic=topic)) for topic in topics)])


def _connected_nodes(begun: set[int], table: LinkTable) -> Nodes:
    """Return *begun* and all nodes that the links of *table* connect with it."""
    neighbours: dict[int, list[int]] = {}
    for source, target in zip(table.sources.tolist(), table.targets.tolist(), strict=True):
        neighbours.setdefault(source, []).append(target)
        neighbours.setdefault(target, []).append(source)
    return np.array(sorted(begun | find_reachable(begun, neighbours)), np.int64)


def _sort_newest_first(reader: Reader, nodes: Nodes) -> Nodes:
    order = np.lexsort((-nodes, -reader.facts(nodes).created))
    ordered: Nodes = nodes[order]
    return ordered


@contextmanager
def disable_garbage_collection() -> Iterator[None]:
    """
    Disable garbage collection while a short block creates many live objects.

    The block should take a few milliseconds at most.
    """
    # Each collection promotes live objects to the old generation, which is then scanned as well.
    # Garbage collections would make a traversal of a thousand memories three times as slow.
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
