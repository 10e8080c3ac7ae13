"""Memory table of a namespace: ids, nodes, and columns for filters, time and topics."""

from __future__ import annotations

import difflib
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs
import numpy as np
from cachetools import LRUCache
from numpy.typing import DTypeLike, NDArray

from mama_structs.memory.types.codec import Entry, ceil_milliseconds, mutable_columns
from mama_structs.memory.types.duplicates import NO_FINGERPRINT
from mama_structs.memory.types.engine import (
    NEVER_EXPIRES_MS,
    EngineFilter,
    NodeAttributes,
    Nodes,
    Position,
    filter_names,
    to_nfc,
)
from mama_structs.memory.types.model import ORIGINS, PATH_FILTER_PREFIX, MemoryType, from_milliseconds, to_milliseconds

Array = NDArray[Any]
Rows = NDArray[np.int64]
T = TypeVar("T", bound=np.generic)

INITIAL_ROWS: Final = 256
MIN_ROWS_TO_MERGE: Final = 1024
UNMERGED_ROWS_DIVISOR: Final = 64


def grow_array(array: NDArray[T], min_length: int, fill_value: int = 0) -> NDArray[T]:
    """Return a copy with at least *min_length* items and twice the length, rounded up to a multiple of 64."""
    room = max(min_length, 2 * len(array))
    wider: NDArray[T] = np.full(room + -room % 64, fill_value, array.dtype)
    wider[: len(array)] = array
    return wider


def expand_runs(starts: Array, counts: Array) -> Rows:
    """Return the positions in all runs, concatenated. A run is given by its start and its length."""
    places: Rows = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
    return places


class GrowingColumns:
    """Parallel arrays that grow by doubling."""

    def __init__(self, types: Mapping[str, DTypeLike]) -> None:
        self._arrays = {name: np.empty(INITIAL_ROWS, kind) for name, kind in types.items()}
        self._room = INITIAL_ROWS
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, name: str) -> Array:
        """Return a view of the used part of a column. Writes to the view change the column."""
        return self._arrays[name][: self._rows]

    def append(self, **values: Any) -> int:
        """Add a row, and return its position."""
        row = self._rows
        self._reserve(row + 1)
        for name, value in values.items():
            self._arrays[name][row] = value
        self._rows = row + 1
        return row

    def extend(self, values: Mapping[str, Array]) -> None:
        """Add rows. *values* contains one array per column, all of the same length."""
        (more,) = {len(values[name]) for name in self._arrays}
        self._reserve(self._rows + more)
        for name, array in self._arrays.items():
            array[self._rows : self._rows + more] = values[name]
        self._rows += more

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Remove the rows where the mask is False, and close the gaps."""
        self._arrays = {name: self[name][rows] for name in self._arrays}
        self._rows = self._room = int(np.count_nonzero(rows))

    def _reserve(self, rows: int) -> None:
        if rows > self._room:
            self._arrays = {name: grow_array(array, max(rows, INITIAL_ROWS)) for name, array in self._arrays.items()}
            self._room = min(map(len, self._arrays.values()))


class SortedRows:
    """
    Row numbers in the order of a key column.

    Rows with equal keys remain in insertion order. New rows are sorted lazily.
    """

    def __init__(self) -> None:
        self._rows = np.empty(0, np.int32)

    def rows(self, keys: Array) -> NDArray[np.int32]:
        """Return all rows in key order."""
        known = len(self._rows)
        if known < len(keys):
            rows = np.concatenate([self._rows, np.arange(known, len(keys), dtype=np.int32)])
            behind = keys[rows[max(known - 1, 0) :]]
            if (behind[1:] < behind[:-1]).any():
                # A stable sort is fast here, because most of the rows are already sorted.
                rows = rows[np.argsort(keys[rows], kind="stable")]
            self._rows = rows
        return self._rows

    def find(self, keys: Array, key: int) -> Rows:
        """Return the rows with this key, ascending."""
        if key > np.iinfo(keys.dtype).max:
            # A manipulated row may contain a number that exceeds the type of the column.
            return np.zeros(0, np.int64)
        known = len(self._rows)
        if should_merge(len(keys) - known, known):
            known = len(self.rows(keys))
        first = _bisect_rows(keys, self._rows, key)
        end = _bisect_rows(keys, self._rows, key + 1)
        late = known + np.flatnonzero(keys[known:] == keys.dtype.type(key))
        return np.concatenate([self._rows[first:end], late])


def should_merge(late: int, known: int) -> bool:
    """Return True if sorting the unsorted rows is now cheaper than scanning them at each lookup."""
    return late > max(MIN_ROWS_TO_MERGE, known // UNMERGED_ROWS_DIVISOR)


class Vocabulary:
    """Distinct strings, numbered in the order of their first use."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self._texts = list(texts)
        self.numbers: Final = {text: number for number, text in enumerate(self._texts)}

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __getitem__(self, number: int) -> str:
        return self._texts[number]

    def number(self, text: str) -> int:
        """Return the number of a string. A new string gets the next number."""
        number = self.numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
        return number


def pack_texts(texts: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the concatenated strings in UTF-8, and an array of their end positions in characters."""
    listed = list(texts)
    # Encode lone surrogates too, so that one invalid string does not prevent a snapshot.
    whole = "".join(listed).encode("utf-8", "surrogatepass")
    ends = np.cumsum(np.fromiter(map(len, listed), np.int64, len(listed)))
    return np.frombuffer(whole, np.uint8), ends


def unpack_texts(whole: NDArray[np.uint8], ends: NDArray[np.int64]) -> list[str]:
    """Return the strings from the arrays that `pack_texts` returned."""
    text = whole.tobytes().decode("utf-8", "surrogatepass")
    places = [0, *ends.tolist()]
    if places[-1] != len(text) or (np.diff(ends, prepend=0) < 0).any():
        raise ValueError("texts end elsewhere than is said")
    return [text[first:end] for first, end in itertools.pairwise(places)]


Mask = NDArray[np.bool_]

_TYPES: Final = tuple(MemoryType)
TYPE_INDEX: Final = {kind: position for position, kind in enumerate(MemoryType)}
_COLUMNS: Final = {
    "number": np.int64,
    "version": np.int64,
    "created": np.int64,
    "type": np.int8,
    "topic": np.int32,
    "scripts": np.uint8,
    "asking": np.uint8,
    "ends": np.int64,
    "wording": np.int64,
    "origin": np.int8,
    "trust": np.int8,
    "alive": np.bool_,
}
_MENTION_COLUMNS: Final = {"node": np.int32, "mention": np.int32}
MAX_CACHED_MASKS: Final = 8
BLOCK_ROWS: Final = 256
# Maximum number of candidate ids for a "did you mean" suggestion.
MAX_SUGGESTION_CANDIDATES: Final = 1000
# Maximum number of these candidates that difflib compares.
MAX_COMPARED_SUGGESTIONS: Final = 200
# Maximum number of consecutive deleted rows to skip one by one. If there are more, only existing rows are searched.
MAX_HOLES_SKIPPED: Final = 16
MAX_SUGGESTION_CHARS: Final = 200
MIN_ID_PART_CHARS: Final = 3

EMPTY_FILTER: Final = EngineFilter()
NO_NODES: Final = np.empty(0, np.int64)


@attrs.frozen(kw_only=True)
class MemoryRow:
    """Values of one memory in the table: its id, number, version and filter attributes."""

    memory_id: str
    number: int
    version: int
    created_ms: int
    type_index: int
    topic: str | None
    mentions: Sequence[str]
    scripts: int = 0
    asking: int = 0
    ends_ms: int = NEVER_EXPIRES_MS
    wording: int = NO_FINGERPRINT
    origin: int = 0
    trust: int = 0

    @classmethod
    def from_entry(cls, number: int, entry: Entry) -> MemoryRow:
        """Return the values of a stored memory."""
        memory = entry.memory
        return cls(
            memory_id=memory.id,
            number=number,
            version=entry.version,
            created_ms=to_milliseconds(memory.created_at),
            type_index=TYPE_INDEX[memory.type],
            topic=memory.topic,
            mentions=filter_names(memory),
            **mutable_columns(memory),
        )


class MemoryTable:
    """
    Memories of a namespace by node.

    Nodes are consecutive numbers in save order. They are never reused.
    """

    def __init__(self) -> None:
        self._rows = GrowingColumns(_COLUMNS)
        self._ids: list[str] = []
        self._node_of: dict[str, int] = {}
        self._topics = Vocabulary()
        self._mentions = Vocabulary()
        self._mention_pairs = GrowingColumns(_MENTION_COLUMNS)
        self._pairs_by_node = SortedRows()
        # Sorted paths of records, or None if they must be searched again, and whether each changed path exists.
        self._paths: list[str] | None = None
        self._changed_paths: dict[str, bool] = {}
        self._by_time = SortedRows()
        self._by_topic = SortedRows()
        self._by_number = SortedRows()
        self._by_wording = SortedRows()
        self._masks: LRUCache[EngineFilter | None, Mask] = LRUCache(MAX_CACHED_MASKS)
        # Distinct expiry times of memories, sorted. None if they must be computed again.
        self._ends: Rows | None = None

    def __len__(self) -> int:
        """Return the number of assigned nodes, including the nodes of deleted memories."""
        return len(self._rows)

    def add(self, item: MemoryRow) -> int:
        """Add a memory and return its node, the next free number."""
        self._require_unused_id(item.memory_id)
        node = self._rows.append(
            number=item.number,
            version=item.version,
            created=item.created_ms,
            type=item.type_index,
            topic=self._topic_number(item.topic),
            scripts=item.scripts,
            asking=item.asking,
            ends=item.ends_ms,
            wording=item.wording,
            origin=item.origin,
            trust=item.trust,
            alive=True,
        )
        self._ids.append(item.memory_id)
        self._node_of[item.memory_id] = node
        self._add_mentions(node, item.mentions)
        self._invalidate_masks()
        return node

    def change(
        self,
        node: int,
        *,
        version: int,
        topic: str | None,
        mentions: Sequence[str],
        scripts: int | None = None,
        asking: int = 0,
        ends_ms: int = NEVER_EXPIRES_MS,
        wording: int = NO_FINGERPRINT,
        origin: int = 0,
        trust: int = 0,
    ) -> None:
        """
        Apply a new version of a memory. Its id, number, type and creation time do not change.

        If *scripts* is None, it and the arguments after it are ignored.
        """
        self._require_alive(node)
        self._rows["version"][node] = version
        number = self._topic_number(topic)
        if number != self._rows["topic"][node]:
            self._rows["topic"][node] = number
            self._by_topic = SortedRows()
        if scripts is not None:
            values = {"scripts": scripts, "asking": asking, "ends": ends_ms, "origin": origin, "trust": trust}
            for name, value in values.items():
                self._rows[name][node] = value
            if wording != self._rows["wording"][node]:
                self._rows["wording"][node] = wording
                self._by_wording = SortedRows()
        self._replace_mentions(node, mentions)
        self._invalidate_masks()

    def remove(self, node: int) -> None:
        """Delete the memory at a node. The node is not reused."""
        self._require_alive(node)
        self._rows["alive"][node] = False
        del self._node_of[self._ids[node]]
        if self._paths is not None:
            places = self._pairs_by_node.find(self._mention_pairs["node"], node)
            self._change_paths(self._mention_pairs["mention"][places].tolist(), exist=False)
        self._invalidate_masks()

    def restore(self, node: int, item: MemoryRow) -> None:
        """Restore a removed memory. *item* must equal the removed row."""
        self._require_unused_id(item.memory_id)
        there = 0 <= node < len(self) and not self._rows["alive"][node]
        if not there or self._identity(node) != (item.memory_id, item.number, item.created_ms, item.type_index):
            raise ValueError(f"node {node} is not where this memory was")
        self._rows["alive"][node] = True
        self._node_of[self._ids[node]] = node
        self.change(
            node,
            version=item.version,
            topic=item.topic,
            mentions=item.mentions,
            scripts=item.scripts,
            asking=item.asking,
            ends_ms=item.ends_ms,
            wording=item.wording,
            origin=item.origin,
            trust=item.trust,
        )

    def find(self, memory_id: str) -> int | None:
        """Return the node of a memory, or None if it does not exist."""
        return self._node_of.get(memory_id)

    def find_many(self, memory_ids: Sequence[str]) -> list[int | None]:
        """Return the node of each memory, or None where it does not exist."""
        return [self._node_of.get(memory_id) for memory_id in memory_ids]

    def node_of(self, number: int) -> int | None:
        """Return the node of the memory with this journal number, or None if it does not exist."""
        nodes = self._by_number.find(self._rows["number"], number)
        # After a rollback the same number is assigned again. The last node that exists is the valid one.
        return next((int(node) for node in nodes[::-1] if self._rows["alive"][node]), None)

    def duplicates(self, wordings: Sequence[int]) -> list[Nodes]:
        """Return the nodes with each duplicate fingerprint, in save order."""
        keys, alive = self._rows["wording"], self._rows["alive"]
        found = [NO_NODES if one == NO_FINGERPRINT else self._by_wording.find(keys, one) for one in wordings]
        return [nodes[alive[nodes]] for nodes in found]

    def number_of(self, node: int) -> int:
        """Return the journal number of a memory."""
        return int(self._rows["number"][node])

    def numbers(self, nodes: Sequence[int] | Nodes) -> list[int]:
        """Return the journal numbers of memories, in the order of *nodes*."""
        return _column_values(self._rows["number"], nodes)

    def version_of(self, node: int) -> int:
        """Return the number of the change that last modified a memory."""
        return int(self._rows["version"][node])

    def ids(self, nodes: Sequence[int] | Nodes) -> list[str]:
        """Return the ids of memories, in the order of *nodes*."""
        listed = nodes.tolist() if isinstance(nodes, np.ndarray) else nodes
        return [self._ids[node] for node in listed]

    def topics(self, nodes: Sequence[int] | Nodes) -> list[str | None]:
        """Return the topics of memories in Unicode NFC, in the order of *nodes*."""
        return [None if number < 0 else self._topics[number] for number in _column_values(self._rows["topic"], nodes)]

    def after(self, node: int, limit: int | None = None) -> Nodes:
        """Return up to *limit* existing nodes that follow a node in save order."""
        first = max(node + 1, 0)
        found: Nodes = first + np.flatnonzero(self._rows["alive"][first:])
        return found[:limit]

    def count(self, where: EngineFilter | None = None) -> int:
        """Return the number of memories that pass a filter, or of all memories."""
        mask = None if where is None else self.mask(where)
        return len(self._node_of) if mask is None else int(np.count_nonzero(mask))

    def mask(self, where: EngineFilter | None) -> Mask | None:
        """Return a read-only mask of the nodes that pass a filter, or None if all nodes pass."""
        where = self._normalize_filter(where)
        if where is None and len(self._node_of) == len(self):
            return None
        mask = self._masks.get(where)
        if mask is None:
            mask = self._rows["alive"].copy() if where is None else self._build_mask(where)
            mask.flags.writeable = False
            self._masks[where] = mask
        return mask

    def window(
        self,
        where: EngineFilter | None = None,
        *,
        newest_first: bool = True,
        after: Position | None = None,
        limit: int | None = None,
    ) -> Nodes:
        """
        Return nodes that pass a filter, sorted by creation time. Equal times are sorted in save order.

        With *after*, return only the nodes strictly after this position in the chosen order.
        """
        where, created = self._normalize_filter(where), self._rows["created"]
        of_topic = None if where is None or where.topic is None else self._find_by_topic(where.topic)
        if where is not None and of_topic is not None and len(of_topic) <= BLOCK_ROWS:
            of_topic = self._filter_nodes(of_topic[self._rows["alive"][of_topic]], where)
            # Use a stable sort, so that equal times stay in save order.
            ordered = of_topic[np.argsort(created[of_topic], kind="stable")]
            first, end = _bounds_after(created, ordered, after, newest_first=newest_first)
            ordered = ordered[first:end]
            return (ordered[::-1] if newest_first else ordered)[: None if limit is None else max(limit, 0)]
        order = self._by_time.rows(created)
        first, end = _bounds_after(created, order, after, newest_first=newest_first)
        if where is not None and where.since is not None:
            first = max(first, _bisect_rows(created, order, ceil_milliseconds(where.since)))
        if where is not None and where.until is not None:
            end = min(end, _bisect_rows(created, order, ceil_milliseconds(where.until)))
        order = order[first:end]
        if newest_first:
            order = order[::-1]
        wanted = len(order) if limit is None else max(limit, 0)
        found = [np.empty(0, np.int64)]
        position, size = 0, max(BLOCK_ROWS, wanted)
        while wanted and position < len(order):
            block = order[position : position + size].astype(np.int64)
            block = block[self._rows["alive"][block]]
            if where is not None:
                block = self._filter_nodes(block, where)
            found.append(block[:wanted])
            wanted -= len(found[-1])
            # Quadruple the block size, so that few reads suffice even if few rows pass the filter.
            position, size = position + size, 4 * size
        return np.concatenate(found)

    def facts(self, nodes: Nodes) -> NodeAttributes:
        """Return the attributes of *nodes*. The table contains them, so no text is read."""
        columns = ("created", "type", "topic", "scripts", "asking", "ends", "origin", "trust", "wording")
        return NodeAttributes(*(self._rows[name][nodes] for name in columns))

    def temporal_neighbours(self, nodes: Nodes, apart_ms: int) -> tuple[Nodes, Nodes]:
        """
        Return the previous and the next node, in time order, for each of *nodes*. -1 means no node.

        Memories that are more than *apart_ms* milliseconds away do not count.
        """
        created, alive = self._rows["created"], self._rows["alive"]
        order = self._by_time.rows(created)
        places = self._time_positions(order, nodes)
        found = []
        for step in (-1, 1):
            at = places + step
            for _ in range(MAX_HOLES_SKIPPED):
                holes = (at >= 0) & (at < len(order))
                holes[holes] = ~alive[order[at[holes]]]
                if not holes.any():
                    break
                at = at + step * holes
            else:
                # The run of deleted rows is long, so search among the existing rows instead of skipping one at a time.
                living = np.flatnonzero(alive[order])
                which = living.searchsorted(places, "left" if step < 0 else "right") + min(step, 0)
                at = np.concatenate([living, [-1]])[np.minimum(which, len(living))]
            inside = (at >= 0) & (at < len(order))
            others = np.where(inside, order[np.where(inside, at, 0)], -1)
            others[np.abs(created[others] - created[nodes]) > apart_ms] = -1
            found.append(others.astype(np.int64))
        return found[0], found[1]

    def _time_positions(self, order: NDArray[np.int32], nodes: Nodes) -> Rows:
        """Return the positions of *nodes* in the order of creation times."""
        # Memories are usually saved in time order, so most positions equal the node number. Search for the others.
        places = nodes.copy()
        late = np.flatnonzero(order[places] != nodes)
        low, high = np.zeros(len(late), np.int64), np.full(len(late), len(order))
        wanted, created = nodes[late], self._rows["created"]
        while (low < high).any():
            middle = (low + high) // 2
            here = order[np.minimum(middle, len(order) - 1)]
            before = (created[here] < created[wanted]) | ((created[here] == created[wanted]) & (here < wanted))
            before &= low < high
            low, high = np.where(before, middle + 1, low), np.where(before, high, np.minimum(middle, high))
        places[late] = low
        return places

    def record_paths(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, last_first: bool = False
    ) -> list[str]:
        """Return the paths of records that start with *prefix*, sorted, see `Reader.record_paths`."""
        paths = self._paths = self._update_paths()
        first, end = bisect_left(paths, prefix), len(paths)
        if prefix:
            end = bisect_left(paths, f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}")
        if after is not None and last_first:
            end = min(end, bisect_left(paths, after))
        elif after is not None:
            first = max(first, bisect_right(paths, after))
        if last_first:
            return paths[first if limit is None else max(first, end - limit) : end][::-1]
        return paths[first : end if limit is None else min(end, first + limit)]

    def nearest_ids(self, text: str, limit: int) -> list[str]:
        """Return the existing ids that are most similar to *text*, most similar first, for "did you mean"."""
        if limit <= 0:
            return []
        text = to_nfc(text[:MAX_SUGGESTION_CHARS])
        candidates = self._find_similar_ids(text)
        if len(candidates) > MAX_COMPARED_SUGGESTIONS:
            candidates.sort(key=lambda memory_id: _count_common_ends(memory_id, text), reverse=True)
        return difflib.get_close_matches(text, candidates[:MAX_COMPARED_SUGGESTIONS], limit)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return a state for a snapshot, as input for `from_state`. The state contains no text of deleted memories."""
        alive = self._rows["alive"]
        arrays = {name: self._rows[name].copy() for name in _COLUMNS}
        # Omit the ids of deleted memories, because ids are derived from texts.
        ids = [memory_id if there else "" for memory_id, there in zip(self._ids, alive.tolist(), strict=True)]
        arrays["topic"][~alive] = -1
        topics, arrays["topic"] = compact_vocabulary(self._topics, arrays["topic"])
        pairs = alive[self._mention_pairs["node"]]
        arrays["pair_node"] = self._mention_pairs["node"][pairs]
        mentions, arrays["pair_mention"] = compact_vocabulary(self._mentions, self._mention_pairs["mention"][pairs])
        for name, texts in (("ids", ids), ("topics", topics), ("mentions", mentions)):
            arrays[f"{name}_text"], arrays[f"{name}_ends"] = pack_texts(texts)
        return {"nodes": len(self)}, arrays

    @classmethod
    def from_state(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> MemoryTable:
        """Return the table restored from the result of `state`. Raise ValueError if it is inconsistent."""
        made = cls()
        made._rows.extend({name: arrays[name] for name in _COLUMNS})
        made._mention_pairs.extend({name: arrays[f"pair_{name}"] for name in _MENTION_COLUMNS})
        made._ids = unpack_texts(arrays["ids_text"], arrays["ids_ends"])
        made._topics = Vocabulary(unpack_texts(arrays["topics_text"], arrays["topics_ends"]))
        made._mentions = Vocabulary(unpack_texts(arrays["mentions_text"], arrays["mentions_ends"]))
        alive = made._rows["alive"]
        named = zip(made._ids, range(len(made._ids)), strict=True)
        made._node_of = dict(named if alive.all() else itertools.compress(named, alive.tolist()))
        fits = (
            len(made) == len(made._ids) == meta["nodes"]
            and len(made._node_of) == np.count_nonzero(alive)
            and _is_in_range(made._rows["topic"], -1, len(made._topics))
            and _is_in_range(made._rows["type"], 0, len(_TYPES))
            and _is_in_range(made._rows["origin"], 0, len(ORIGINS))
            and _is_in_range(made._rows["trust"], 0, len(ORIGINS))
            and _is_in_range(made._mention_pairs["node"], 0, len(made))
            and _is_in_range(made._mention_pairs["mention"], 0, len(made._mentions))
        )
        if not fits:
            raise ValueError("the parts of the catalogue's state do not fit together")
        return made

    def _require_unused_id(self, memory_id: str) -> None:
        if memory_id in self._node_of:
            raise ValueError(f"there is a memory with the id {memory_id}")

    def _require_alive(self, node: int) -> None:
        if not 0 <= node < len(self) or not self._rows["alive"][node]:
            raise ValueError(f"there is no memory at node {node}")

    def _identity(self, node: int) -> tuple[str, int, int, int]:
        number, created, kind = (int(self._rows[name][node]) for name in ("number", "created", "type"))
        return self._ids[node], number, created, kind

    def _topic_number(self, topic: str | None) -> int:
        return -1 if topic is None else self._topics.number(to_nfc(topic))

    def _change_paths(self, mentions: Iterable[int], *, exist: bool) -> None:
        """Add the paths among these mentions to the paths of records, or remove them."""
        if self._paths is None:
            return
        texts = map(self._mentions.__getitem__, mentions)
        self._changed_paths |= dict.fromkeys((one for one in texts if one.startswith(PATH_FILTER_PREFIX)), exist)
        if len(self._changed_paths) > MIN_ROWS_TO_MERGE:
            self._paths = None

    def _update_paths(self) -> list[str]:
        """Return the paths of all records, sorted."""
        changed, self._changed_paths = self._changed_paths, {}
        if self._paths is None:
            used = np.zeros(len(self._mentions), np.bool_)
            used[self._mention_pairs["mention"][self._rows["alive"][self._mention_pairs["node"]]]] = True
            texts = itertools.compress(self._mentions, used.tolist())
            return sorted(one.removeprefix(PATH_FILTER_PREFIX) for one in texts if one.startswith(PATH_FILTER_PREFIX))
        for mention, exists in changed.items():
            path = mention.removeprefix(PATH_FILTER_PREFIX)
            place = bisect_left(self._paths, path)
            is_listed = self._paths[place : place + 1] == [path]
            if is_listed and not exists:
                del self._paths[place]
            elif exists and not is_listed:
                self._paths.insert(place, path)
        return self._paths

    def _add_mentions(self, node: int, mentions: Iterable[str]) -> None:
        numbers = [self._mentions.number(mention) for mention in dict.fromkeys(mentions)]
        for number in numbers:
            self._mention_pairs.append(node=node, mention=number)
        self._change_paths(numbers, exist=True)

    def _replace_mentions(self, node: int, mentions: Iterable[str]) -> None:
        places = np.flatnonzero(self._mention_pairs["node"] == node)
        numbers = self._mention_pairs["mention"][places].tolist()
        wanted = {self._mentions.number(mention) for mention in mentions}
        free = [place for place, number in zip(places.tolist(), numbers, strict=True) if number not in wanted]
        new = sorted(wanted.difference(numbers))
        self._change_paths(set(numbers) - wanted, exist=False)
        self._change_paths(wanted, exist=True)
        # Reuse the rows of removed mentions, because removing rows copies the whole table.
        for place, number in zip(free, new, strict=False):
            self._mention_pairs["mention"][place] = number
        for number in new[len(free) :]:
            self._mention_pairs.append(node=node, mention=number)
        if len(free) > len(new):
            kept = np.ones(len(self._mention_pairs), np.bool_)
            kept[free[len(new) :]] = False
            self._mention_pairs.keep(kept)
            self._pairs_by_node = SortedRows()

    def _find_by_topic(self, topic: str) -> Rows:
        """Return the nodes of a topic, ascending, including deleted ones."""
        number = self._topics.numbers.get(to_nfc(topic), -1)
        return NO_NODES if number < 0 else self._by_topic.find(self._rows["topic"], number)

    def _find_by_mention(self, mention: str) -> Nodes:
        number = self._mentions.numbers.get(mention, -1)
        if number < 0:
            return NO_NODES
        nodes: Nodes = self._mention_pairs["node"][self._mention_pairs["mention"] == number].astype(np.int64)
        return nodes

    def _invalidate_masks(self) -> None:
        self._masks.clear()
        self._ends = None

    def _normalize_filter(self, where: EngineFilter | None) -> EngineFilter | None:
        """
        Return an equivalent filter, to use as a cache key.

        Its `valid_at` is replaced with the last expiry time up to it, so that more filters share a cache entry.
        """
        if where is not None and where.valid_at is not None:
            if self._ends is None:
                ends = self._rows["ends"]
                self._ends = np.unique(ends[ends != NEVER_EXPIRES_MS])
            over = int(self._ends.searchsorted(to_milliseconds(where.valid_at), "right"))
            where = attrs.evolve(where, valid_at=from_milliseconds(int(self._ends[over - 1])) if over else None)
        return None if where == EMPTY_FILTER else where

    def _build_mask(self, where: EngineFilter) -> Mask:
        mask = np.zeros(len(self), np.bool_)
        mask[self._filter_nodes(None, where)] = True
        mask &= self._rows["alive"]
        return mask

    def _filter_nodes(self, nodes: Nodes | None, where: EngineFilter) -> Nodes:
        """
        Return the *nodes* that pass a filter, in the same order.

        None means all nodes, including those of deleted memories.
        """
        rows: Nodes | slice = slice(None) if nodes is None else nodes
        whole = len(self) if nodes is None else len(nodes)
        passing = np.ones(whole, np.bool_)
        if where.types is not None:
            wanted = np.array([kind in where.types for kind in _TYPES])
            passing &= wanted[self._rows["type"][rows]]
        if where.topic is not None:
            number = self._topics.numbers.get(to_nfc(where.topic), -1)
            passing &= (self._rows["topic"][rows] == number) if number >= 0 else False
        if where.since is not None:
            passing &= self._rows["created"][rows] >= ceil_milliseconds(where.since)
        if where.until is not None:
            passing &= self._rows["created"][rows] < ceil_milliseconds(where.until)
        if where.valid_at is not None:
            passing &= self._rows["ends"][rows] > to_milliseconds(where.valid_at)
        if where.origins is not None:
            wanted = np.array([origin in where.origins for origin in ORIGINS])
            passing &= wanted[self._rows["origin"][rows]]
        if where.trust is not None:
            passing &= self._rows["trust"][rows] <= ORIGINS.index(where.trust)
        for mention in where.names:
            naming = np.zeros(len(self), np.bool_)
            naming[self._find_by_mention(mention)] = True
            passing &= naming[rows]
        return np.flatnonzero(passing) if nodes is None else nodes[passing]

    def _find_similar_ids(self, text: str) -> list[str]:
        """Return about `MAX_SUGGESTION_CANDIDATES` ids, mostly the newest, that share a part with *text*."""
        # Search by each of the last two parts first, because a typing error usually affects only one part of an id.
        head, *tail = text.rsplit("_", 2)
        found = {memory_id: None for piece in tail for memory_id in self._find_ids_containing(piece)}
        for length in (len(head), len(head) * 3 // 4, len(head) // 2, len(head) // 4):
            alike = self._find_ids_containing(head[:length])
            if alike:
                return [*found, *(memory_id for memory_id in alike if memory_id not in found)]
        return list(found) or list(self._node_of)[-MAX_SUGGESTION_CANDIDATES:]

    def _find_ids_containing(self, piece: str) -> list[str]:
        if len(piece) < MIN_ID_PART_CHARS:
            return []
        return [memory_id for memory_id in self._node_of if piece in memory_id][-MAX_SUGGESTION_CANDIDATES:]


def compact_vocabulary(texts: Vocabulary, numbers: NDArray[np.int32]) -> tuple[list[str], NDArray[np.int32]]:
    """
    Return the used strings of a vocabulary, and *numbers* converted to positions in this result.

    The number -1 stands for a missing string and does not change.
    """
    used = np.unique(numbers[numbers >= 0])
    renumbered = np.full(len(texts) + 1, -1, np.int32)
    renumbered[used] = np.arange(len(used))
    return [texts[number] for number in used.tolist()], renumbered[numbers]


def _bisect_rows(keys: Array, order: NDArray[np.int32], bound: int) -> int:
    # Bisect here, because NumPy's searchsorted would first copy the whole key column in sorted order.
    return bisect_left(range(len(order)), bound, key=lambda place: int(keys[order[place]]))


def _bounds_after(created: Array, order: Array, after: Position | None, *, newest_first: bool) -> tuple[int, int]:
    """Return the slice bounds of the rows after a position. *order* is sorted by time and row number."""
    if after is None:
        return 0, len(order)
    find = bisect_left if newest_first else bisect_right
    place = find(range(len(order)), after, key=lambda at: (int(created[order[at]]), int(order[at])))
    return (0, place) if newest_first else (place, len(order))


def _column_values(column: NDArray[Any], nodes: Sequence[int] | Nodes) -> list[Any]:
    listed: list[Any] = column[np.asarray(nodes, np.int64)].tolist()
    return listed


def _is_in_range(column: NDArray[Any], least: int, end: int) -> bool:
    return not len(column) or bool(column.min() >= least and column.max() < end)


def _count_common_ends(first: str, second: str) -> int:
    pairs = (zip(first, second, strict=False), zip(reversed(first), reversed(second), strict=False))
    return sum(len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pair))) for pair in pairs)
