"""
What is reached from a memory along links: traversals, evolution chains, and which memory supersedes which.

All of it are plans over a `Reader`, which read the links of a whole level at once.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.backend import Direction, Filter, LinkTable, Nodes, Reader
from mama_structs.memory.decay import strengths
from mama_structs.memory.model import LinkType

MAX_DEPTH: Final = 5
"""How deep a traversal goes at the most (DESIGN section 6)."""
TOPIC_DEPTH: Final = 3
CONTEXT_DEPTH: Final = 2
DEFAULT_LIMIT: Final = 1000

_EVOLUTION: Final = frozenset({LinkType.EVOLUTION})
# From this level on, and again whenever it has doubled, a walk along a chain looks where the rest of it probably is.
_LONG_CHAIN: Final = 16


class Step(NamedTuple):
    """
    A memory that a traversal has reached.

    Args:
        node: The memory.
        depth: How many links away it is, 1 for direct neighbours.
        path: The nodes from where it began to this one, both included.
        strength: The product of the strengths of the links on the path, after decay, to six decimals.

    """

    node: int
    depth: int
    path: tuple[int, ...]
    strength: float


@attrs.frozen
class ChainNodes:
    """
    A decision's evolution.

    Args:
        nodes: Its memories, newest first; equal times in the order of saving, the last one first.
        links: The evolution links between them, each once.
        forks: Those of *nodes* that more than one memory supersedes or that supersede more than one, in their order.

    """

    nodes: Nodes
    links: LinkTable
    forks: Nodes


@attrs.frozen
class TopicNodes:
    """
    What is known of a topic.

    Args:
        chain: The topic's memories with the evolution of each of them, whatever topic the others have.
        around: What is linked to the chain and no part of it.

    """

    chain: ChainNodes
    around: list[Step]


def nfc(text: str) -> str:
    """Return a text in the form in which topics are compared: composed (Unicode's NFC)."""
    return unicodedata.normalize("NFC", text)


def traverse(
    reader: Reader,
    start: int,
    *,
    now_ms: int,
    types: Collection[LinkType] | None = None,
    max_depth: int = MAX_DEPTH,
    direction: Direction = "both",
    min_strength: float = 0.0,
    limit: int = DEFAULT_LIMIT,
    as_of_ms: int | None = None,
) -> list[Step]:
    """
    Return what is reached from a memory, nearest first, and strongest first within a level.

    Each memory is reached once, by the strongest of the paths that have the fewest links.
    Equal strengths: the one saved last comes first.

    Args:
        reader: Where to read.
        start: The memory to begin at, which is no part of the answer.
        now_ms: When strengths are taken, in milliseconds since 1970.
        types: The types of links to follow, None for all.
        max_depth: Links on a path at the most; more than 5 counts as 5.
        direction: Along links (``out``), against them (``in``), or either way.
        min_strength: A path weaker than this is not followed.
        limit: Steps at the most; those of the deepest level that are too many are the weakest.
        as_of_ms: Links and memories made later do not exist.

    """
    return spread(
        reader,
        [start],
        now_ms=now_ms,
        types=types,
        max_depth=max_depth,
        direction=direction,
        min_strength=min_strength,
        limit=limit,
        as_of_ms=as_of_ms,
    )


def spread(
    reader: Reader,
    starts: Sequence[int] | Nodes,
    *,
    now_ms: int,
    types: Collection[LinkType] | None = None,
    max_depth: int = MAX_DEPTH,
    direction: Direction = "both",
    min_strength: float = 0.0,
    limit: int = DEFAULT_LIMIT,
    as_of_ms: int | None = None,
) -> list[Step]:
    """Return what `traverse` does for several memories to begin at, none of which is part of the answer."""
    level = _Level.at(starts)
    visited = np.sort(level.nodes)
    steps: list[Step] = []
    for depth in range(1, min(max_depth, MAX_DEPTH) + 1):
        if not len(level.nodes) or len(steps) >= limit:
            break
        table = _existing(reader, reader.links(level.nodes, direction, types), as_of_ms)
        ways = _ways_on(level, table, direction, visited, now_ms)
        level = _next_level(level, ways, min_strength, limit - len(steps))
        steps += level.steps(depth)
        visited = np.sort(np.concatenate([visited, level.nodes]))
    return steps


def read_by(starts: Iterable[int], steps: Iterable[Step]) -> frozenset[int]:
    """Return the nodes on whose links and contents the answer of a traversal depends."""
    return frozenset((*starts, *(step.node for step in steps)))


def connected(
    reader: Reader, node: int, *, now_ms: int, direction: Direction = "both", types: Collection[LinkType] | None = None
) -> list[Step]:
    """Return all direct neighbours of a memory, strongest first."""
    return traverse(
        reader, node, now_ms=now_ms, types=types, max_depth=1, direction=direction, limit=reader.count() + 1
    )


def around(
    reader: Reader, node: int, *, now_ms: int, depth: int = CONTEXT_DEPTH, limit: int = DEFAULT_LIMIT
) -> list[Step]:
    """Return what is near a memory whichever way its links point: what `load_context` shows."""
    return traverse(reader, node, now_ms=now_ms, max_depth=depth, limit=limit)


def evolution(reader: Reader, node: int, *, as_of_ms: int | None = None) -> ChainNodes:
    """
    Return the whole evolution that a memory is part of, with its forks, however long it is.

    Args:
        reader: Where to read.
        node: A memory; one that neither supersedes nor is superseded is a chain of its own.
        as_of_ms: Links and memories made later do not exist.

    """
    return evolutions(reader, [node], as_of_ms=as_of_ms)


def evolutions(reader: Reader, nodes: Sequence[int] | Nodes, *, as_of_ms: int | None = None) -> ChainNodes:
    """Return the evolutions that any of some memories is part of, as one."""
    begun = np.unique(np.asarray(nodes, np.int64))
    members = _component(begun, _closure(reader, begun, "both", as_of_ms))
    # Asked once more: the walk may have met a link from either end.
    links = _existing(reader, reader.links(members, "out", _EVOLUTION), as_of_ms)
    chain = _newest_first(reader, members)
    return ChainNodes(chain, links, chain[np.isin(chain, _forks(links))])


def by_topic(
    reader: Reader, topic: str, *, now_ms: int, depth: int = TOPIC_DEPTH, limit: int = DEFAULT_LIMIT
) -> TopicNodes:
    """
    Return a topic's memories with their evolution, and what is around that.

    Args:
        reader: Where to read.
        topic: Exactly as it was given, composed or not.
        now_ms: When strengths are taken, in milliseconds since 1970.
        depth: How many links away from the chain something may be.
        limit: Steps around the chain at the most; the chain itself is always whole.

    """
    chain = evolutions(reader, reader.window(Filter(topic=topic)))
    return TopicNodes(chain, spread(reader, chain.nodes, now_ms=now_ms, max_depth=depth, limit=limit))


def superseded(reader: Reader, nodes: Sequence[int] | Nodes, *, as_of_ms: int | None = None) -> dict[int, int]:
    """
    Return those of some memories that are superseded, each with what stands in its place today.

    That is the newest of the memories at the end of its evolution: of those that supersede it, directly or not, and
    that nothing supersedes. Where evolution runs in a circle, its newest memory is taken to stand.

    Args:
        reader: Where to read.
        nodes: The memories asked about.
        as_of_ms: Links and memories made later do not exist.

    """
    asked = np.unique(np.asarray(nodes, np.int64))
    table = _closure(reader, asked, "in", as_of_ms)
    if not len(table):
        return {}
    newest = _newest_first(reader, np.unique(np.concatenate([table.sources, table.targets]))).tolist()
    older: dict[int, list[int]] = {node: [] for node in newest}
    newer: dict[int, list[int]] = {node: [] for node in newest}
    for source, target in zip(table.sources.tolist(), table.targets.tolist(), strict=True):
        older[source].append(target)
        newer[target].append(source)
    standing: dict[int, int] = {}
    for end in (node for node in newest if not newer[node]):
        _stand(end, older, standing)
    # What is left leads into circles only.
    for node in newest:
        while node not in standing:
            circle = _last_circle(node, newer, older)
            _stand(next(other for other in newest if other in circle), older, standing)
    return {node: standing[node] for node in asked.tolist() if standing.get(node, node) != node}


def _stand(end: int, older: dict[int, list[int]], standing: dict[int, int]) -> None:
    """Let *end* stand for all that it supersedes, directly or not, and for which nothing stands yet."""
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node not in standing:
            standing[node] = end
            waiting += older[node]


def _last_circle(node: int, newer: dict[int, list[int]], older: dict[int, list[int]]) -> set[int]:
    """Return a circle that *node* leads to and that leads nowhere else; no way on from *node* has an end."""
    while True:
        passed: set[int] = set()
        while node not in passed:
            passed.add(node)
            node = newer[node][0]
        circle = _reached(node, newer)
        away = circle - _reached(node, older)
        if not away:
            return circle
        node = min(away)


def _reached(node: int, edges: dict[int, list[int]]) -> set[int]:
    """Return what *edges* lead to from a node; the node itself only where they lead back."""
    found: set[int] = set()
    waiting = list(edges[node])
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += edges[other]
    return found


@attrs.frozen
class _Level:
    """The nodes of one depth, best first, with the paths that lead to them."""

    nodes: Nodes
    strengths: NDArray[np.float64]
    paths: list[tuple[int, ...]]

    @classmethod
    def at(cls, starts: Sequence[int] | Nodes) -> _Level:
        nodes = np.array(list(dict.fromkeys(map(int, starts))), np.int64)
        return cls(nodes, np.ones(len(nodes)), [(node,) for node in nodes.tolist()])

    def steps(self, depth: int) -> list[Step]:
        columns = (self.nodes.tolist(), itertools.repeat(depth), self.paths, self.strengths.tolist())
        return list(map(Step, *columns))


@attrs.frozen
class _Ways:
    """
    Ways that lead on from a level, an item for each.

    Args:
        nodes: Where it leads.
        parents: The position in the level of where it begins.
        strengths: Of the whole path.

    """

    nodes: Nodes
    parents: NDArray[np.intp]
    strengths: NDArray[np.float64]


def _ways_on(level: _Level, table: LinkTable, direction: Direction, visited: Nodes, now_ms: int) -> _Ways:
    """Return the ways along a level's links to nodes that are not among *visited* (sorted)."""
    fade = strengths(table, now_ms).astype(np.float64)
    rank_of = np.argsort(level.nodes)
    ranked = level.nodes[rank_of]
    ways = []
    for wanted, here, there in (("out", table.sources, table.targets), ("in", table.targets, table.sources)):
        if direction in (wanted, "both"):
            follow = np.flatnonzero(_within(here, ranked) & ~_within(there, visited))
            parents = rank_of[np.searchsorted(ranked, here[follow])]
            # A confidence such as 0.7 is a little less in single precision, and has to pass where 0.7 is asked for.
            ways.append((there[follow], parents, np.round(level.strengths[parents] * fade[follow], 6)))
    return _Ways(*(np.concatenate(column) for column in zip(*ways, strict=True)))


def _next_level(level: _Level, ways: _Ways, min_strength: float, limit: int) -> _Level:
    """Return the up to *limit* nodes to which the strongest ways lead, each with the best of the ways to it."""
    order = np.lexsort((ways.parents, -ways.nodes, -ways.strengths))
    order = order[ways.strengths[order] >= min_strength]
    _, first = np.unique(ways.nodes[order], return_index=True)
    chosen = order[np.sort(first)[:limit]]
    nodes = ways.nodes[chosen]
    parents = ways.parents[chosen].tolist()
    paths = [(*level.paths[parent], node) for parent, node in zip(parents, nodes.tolist(), strict=True)]
    return _Level(nodes, ways.strengths[chosen], paths)


def _within(nodes: Nodes, known: Nodes) -> NDArray[np.bool_]:
    """Return which of *nodes* are among *known* (sorted, not empty)."""
    position = np.searchsorted(known, nodes)
    same: NDArray[np.bool_] = known[np.minimum(position, len(known) - 1)] == nodes
    return same


def _existing(reader: Reader, table: LinkTable, as_of_ms: int | None) -> LinkTable:
    """Leave out the links that did not exist at a time, or one of whose ends did not."""
    if as_of_ms is None or not len(table):
        return table
    ends, position = np.unique(np.concatenate([table.sources, table.targets]), return_inverse=True)
    there = (reader.facts(ends).created <= as_of_ms)[position.reshape(-1)]
    return _selected(table, (table.created <= as_of_ms) & there[: len(table)] & there[len(table) :])


def _selected(table: LinkTable, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> LinkTable:
    return LinkTable(*(column[chosen] for column in attrs.astuple(table, recurse=False)))


def _closure(reader: Reader, begun: Nodes, direction: Direction, as_of_ms: int | None) -> LinkTable:
    """Return the evolution links of some nodes and of all that these lead to; some may come twice, and others too."""
    tables = [reader.links(begun[:0], direction, _EVOLUTION)]
    level = set(begun.tolist())
    seen = set(level)
    for depth in itertools.count(1):
        if not level:
            break
        asked = np.fromiter(level, np.int64, len(level))
        table = _existing(reader, reader.links(asked, direction, _EVOLUTION), as_of_ms)
        tables.append(table)
        level = set(table.sources.tolist())
        if direction == "both":
            level.update(table.targets.tolist())
        level -= seen
        if level and depth >= _LONG_CHAIN and depth & (depth - 1) == 0:
            # One question a link is slow on a long chain, most of which has its end's topic.
            level.update(_of_same_topic(reader, np.array(sorted(level), np.int64)).tolist())
            level -= seen
        seen |= level
    columns = (attrs.astuple(table, recurse=False) for table in tables)
    return LinkTable(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _of_same_topic(reader: Reader, nodes: Nodes) -> Nodes:
    numbers = reader.facts(nodes).topics
    _, first = np.unique(numbers[numbers >= 0], return_index=True)
    memories = reader.get(nodes[numbers >= 0][first])
    return np.concatenate([nodes[:0], *(reader.window(Filter(topic=memory.topic)) for memory in memories)])


def _component(begun: Nodes, table: LinkTable) -> Nodes:
    """Return the nodes that links connect with *begun*, these included."""
    neighbours: dict[int, list[int]] = {}
    for source, target in zip(table.sources.tolist(), table.targets.tolist(), strict=True):
        neighbours.setdefault(source, []).append(target)
        neighbours.setdefault(target, []).append(source)
    found = set(begun.tolist())
    waiting = list(found)
    while waiting:
        for other in neighbours.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return np.array(sorted(found), np.int64)


def _newest_first(reader: Reader, nodes: Nodes) -> Nodes:
    order = np.lexsort((-nodes, -reader.facts(nodes).created))
    ordered: Nodes = nodes[order]
    return ordered


def _forks(links: LinkTable) -> Nodes:
    """Return the nodes with more than one other memory on one side."""
    pairs = np.unique(np.stack([links.sources, links.targets], axis=1), axis=0)
    forks = [nodes[count > 1] for nodes, count in (np.unique(side, return_counts=True) for side in pairs.T)]
    return np.concatenate(forks)
