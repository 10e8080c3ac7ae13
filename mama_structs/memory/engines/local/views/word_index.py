"""Inverted index of the words of memories. Posting lists are stored in segments and scored with BM25."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.engines.local.views.memory_table import (
    GrowingColumns,
    Vocabulary,
    expand_runs,
    grow_array,
    pack_texts,
    unpack_texts,
)
from mama_structs.memory.types.codec import (
    BM25_K1,
    EXTRA_LENGTH_TERMS,
    MAX_LENGTH_TERMS,
    MAX_TERM_COUNT_STEPS,
    TERM_COUNT_STEP,
)
from mama_structs.memory.types.engine import Matches, Nodes, Scores

Int32Array = NDArray[np.int32]
TermCounts = NDArray[np.uint8]
"""Term frequencies in units of `TERM_COUNT_STEP`, capped at 255, above which BM25 hardly increases."""

# Number of postings to process per step, so that intermediate arrays stay in the CPU cache.
MAX_POSTINGS_PER_STEP: Final = 65_536


@attrs.frozen(eq=False)
class Segment:
    """
    Posting lists of some memories.

    The postings of term ``keys[i]`` are ``nodes[bounds[i] : bounds[i + 1]]`` and the same slice of *counts*.
    """

    keys: Int32Array
    bounds: Int32Array
    nodes: Int32Array
    counts: TermCounts

    def __len__(self) -> int:
        return len(self.nodes)

    @classmethod
    def from_postings(cls, nodes: Int32Array, terms: Int32Array, counts: TermCounts) -> Segment:
        """Build a segment from parallel arrays of postings."""
        order = np.argsort(terms, kind="stable")
        keys, sizes = np.unique(terms, return_counts=True)
        return cls(keys, _bounds(sizes), nodes[order], counts[order])

    @classmethod
    def merge_segments(cls, parts: Sequence[Segment]) -> Segment:
        """Merge segments that have no memory in common."""
        keys = np.unique(np.concatenate([part.keys for part in parts]))
        rows = [keys.searchsorted(part.keys) for part in parts]
        sizes = np.zeros(len(keys), np.int32)
        for part, its_rows in zip(parts, rows, strict=True):
            sizes[its_rows] += np.diff(part.bounds)
        bounds = _bounds(sizes)
        free, nodes, counts = bounds[:-1].copy(), np.empty(bounds[-1], np.int32), np.empty(bounds[-1], np.uint8)
        for part, its_rows in zip(parts, rows, strict=True):
            shifts, lengths = free[its_rows] - part.bounds[:-1], np.diff(part.bounds)
            for low, high in part.steps():
                begin, end = part.bounds[low], part.bounds[high]
                places = np.repeat(shifts[low:high], lengths[low:high])
                places += np.arange(begin, end, dtype=np.int32)
                nodes[places], counts[places] = part.nodes[begin:end], part.counts[begin:end]
            free[its_rows] += lengths
        return cls(keys, bounds, nodes, counts)

    def steps(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of terms with a limited number of postings each, to limit the memory for a merge."""
        edges = self.bounds.searchsorted(np.arange(0, len(self), MAX_POSTINGS_PER_STEP))
        return pairwise(np.unique(np.append(edges, len(self.keys))).tolist())

    def find_bounds(self, numbers: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Return the start and the end of the postings of each term. Both are equal for unknown terms."""
        rows = self.keys.searchsorted(numbers)
        ends = rows + (self.keys.take(rows, mode="clip") == numbers)
        # For a term after the last key, start and end are the end of all postings.
        return self.bounds[rows], self.bounds[ends]

    def only(self, living: NDArray[np.bool_]) -> Segment:
        """Return a segment with only those postings for which *living* is True."""
        sizes = np.add.reduceat(living, self.bounds[:-1], dtype=np.int32)
        used = sizes > 0
        return Segment(self.keys[used], _bounds(sizes[used]), self.nodes[living], self.counts[living])


def _bounds(sizes: NDArray[Any]) -> Int32Array:
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


STATE_FORMAT: Final = 2
_POSTING_COLUMNS: Final = {"term": np.int32, "count": np.uint8}
NOT_INDEXED: Final = -1
# Segment number of memories that are indexed but not in a segment yet.
FRESH_SEGMENT: Final = 0
MAX_FRESH_POSTINGS: Final = 8_192
# Number of new memories to index together, because processing a short array costs as much as a long one.
MAX_PENDING_MEMORIES: Final = 128
# Posting lists up to this average length are copied for all terms together, longer ones one term at a time.
MAX_GATHERED_POSTINGS: Final = 1_024
# Unused terms are dropped if there are at least this many of them, and more than used terms.
MIN_UNUSED_WORDS_TO_DROP: Final = 4_096
# If there are this many times more nodes than postings, scores are stored only for the matching nodes.
SPARSE_NODE_RATIO: Final = 64
# Number of postings that `WordIndex.scores_many` reads together, which limits its memory.
MAX_SCORED_POSTINGS: Final = 524_288
# Number of strips that an array of scores is split into, to find a lower bound of the best scores quickly.
TOP_SCORE_STRIPS: Final = 64


@attrs.frozen
class _QueryTerm:
    """A query term: its number in the vocabulary, and the upper bound of its contribution to a score."""

    number: int
    weight: float


class _QueryBatch(NamedTuple):
    """Terms of several queries: their numbers, the upper bounds of their contributions, and the query of each."""

    numbers: Int32Array
    weights: Scores
    owners: Nodes


class _PostingBlock(NamedTuple):
    """Postings of one segment, ordered by query term, each with the weight of its term."""

    home: int
    nodes: Int32Array
    counts: TermCounts
    weights: Scores


@attrs.frozen(eq=False)
class _ScoreAccumulator:
    """Scores of *nodes* (ascending), or of the nodes 0, 1, 2, … if *nodes* is None."""

    scores: Scores
    nodes: Nodes | None = None

    def scores_of(self, nodes: Nodes) -> Scores:
        """Return the scores of *nodes*, 0 for nodes without a score."""
        found, known = np.zeros(len(nodes), np.float32), len(self.scores)
        places = nodes if self.nodes is None else self.nodes.searchsorted(nodes)
        inside = (nodes >= 0) & (places < known)
        if self.nodes is not None:
            inside[inside] = self.nodes[places[inside]] == nodes[inside]
        found[inside] = self.scores[places[inside]]
        return found

    def top_matches(self, limit: int, mask: NDArray[np.bool_] | None) -> Matches:
        """Return those nodes with the best scores that pass *mask*."""
        if self.nodes is not None:
            scores = self.scores if mask is None else self.scores * mask[self.nodes]
            return _top_nodes(self.nodes, scores, limit)
        scores = self.scores if mask is None else self.scores * mask
        nodes = _top_candidates(scores, limit)
        return _top_nodes(nodes, scores[nodes], limit)


_NO_QUERY: Final[tuple[list[_QueryTerm], _ScoreAccumulator]] = ([], _ScoreAccumulator(np.zeros(0, np.float32)))


class WordIndex:
    """
    Inverted index: terms, and the memories that contain them.

    A forward index contains the terms of each memory, in insertion order. Segments contain postings sorted by term.
    Each segment is longer than all shorter ones together, so there are few of them and postings are rarely moved
    (O'Neil et al., The Log-Structured Merge-Tree, 1996).
    """

    def __init__(self) -> None:
        self._words = Vocabulary()
        # Number of memories that contain each term, by term number.
        self._frequency = np.zeros(1024, np.int32)
        # Number of terms that occur in at least one memory.
        self._used = 0
        # Scratch array with the position of each term in one query. All values are 0 between queries.
        self._position_scratch = np.zeros(1024, np.int32)
        # The forward index: the postings of each memory, in insertion order.
        self._terms = GrowingColumns(_POSTING_COLUMNS)
        # Number of postings in the forward index that belong to removed memories.
        self._removed_postings = 0
        # Node of each posting that is not in a segment yet. These are the last postings of the forward index.
        self._fresh = GrowingColumns({"node": np.int32})
        # By node: segment number, first posting, number of postings, and length in units of `TERM_COUNT_STEP`.
        self._segment_of = np.full(1024, NOT_INDEXED, np.int32)
        self._first = np.zeros(1024, np.int32)
        self._size = np.zeros(1024, np.int32)
        self._length = np.zeros(1024, np.float32)
        # Cache of the last query with its scores.
        self._last_scores: tuple[list[_QueryTerm], _ScoreAccumulator] = _NO_QUERY
        self._live = 0
        self._total = 0
        # Segments by number.
        self._segments: dict[int, Segment] = {}
        # By segment number: number of postings that belong to removed memories.
        self._dead: dict[int, int] = {}
        self._last_segment = FRESH_SEGMENT
        self._waiting: dict[int, Mapping[str, float]] = {}

    def __len__(self) -> int:
        self._index_pending()
        return self._live

    def add(self, node: int, terms: Mapping[str, float] | Sequence[str]) -> None:
        """Index a memory. The terms replace previous terms of *node*."""
        self._waiting.pop(node, None)
        self._waiting[node] = terms if isinstance(terms, Mapping) else Counter(terms)
        if len(self._waiting) >= MAX_PENDING_MEMORIES:
            self._index_pending()

    def remove(self, node: int) -> None:
        """Remove a memory, if it is indexed."""
        self._waiting.pop(node, None)
        if not self._has(node):
            return
        home, first, size = int(self._segment_of[node]), int(self._first[node]), int(self._size[node])
        numbers = self._terms["term"][first : first + size]
        self._frequency[numbers] -= 1
        self._used -= int(np.count_nonzero(self._frequency[numbers] == 0))
        self._live -= 1
        self._total -= int(self._length[node])
        self._segment_of[node], self._size[node] = NOT_INDEXED, 0
        self._removed_postings += size
        self._last_scores = _NO_QUERY
        if home == FRESH_SEGMENT:
            first -= len(self._terms) - len(self._fresh)
            self._fresh["node"][first : first + size] = NOT_INDEXED
        elif size:
            self._dead[home] += size
            if 2 * self._dead[home] > len(self._segments[home]):
                self._replace([home])
                self._merge()
        if self._removed_postings > max(MAX_FRESH_POSTINGS, len(self._terms) // 2):
            self._drop_removed()
        if len(self._words) - self._used > max(MIN_UNUSED_WORDS_TO_DROP, self._used):
            self._drop_unused_words()

    def drop_erased_data(self) -> None:
        """Drop the data of removed memories, and the terms that occur only in them."""
        self._index_pending()
        self._drop_unused_words()

    def terms(self, node: int) -> list[str]:
        """Return the distinct terms of a memory. Empty if it is not indexed."""
        self._index_pending()
        if not self._has(node):
            return []
        numbers = self._terms["term"][self._first[node] : self._first[node] + self._size[node]]
        return [self._words[number] for number in numbers.tolist()]

    def rarity(self, terms: Iterable[str]) -> dict[str, float]:
        """Return the inverse document frequency of each term. Unknown terms get the highest value."""
        self._index_pending()
        find = self._words.numbers.get
        return {term: self._rarity(find(term, -1)) for term in terms}

    def search(self, query: Mapping[str, float], limit: int, mask: NDArray[np.bool_] | None = None) -> Matches:
        """Return the memories with the best scores. Each shares at least one term with the query."""
        wanted = self._resolve_query(query)
        if limit <= 0 or not wanted:
            return Matches(np.empty(0, np.int64), np.empty(0, np.float32))
        known, sums = self._last_scores
        mask = None if mask is None else _resize_mask(mask, len(self._segment_of))
        if known != wanted:
            if mask is not None and self._should_score_directly(nodes := np.flatnonzero(mask), wanted):
                return _top_nodes(nodes, self._scores(wanted, nodes), limit)
            sums = self._accumulate_scores(wanted)
        return sums.top_matches(limit, mask)

    def scores(self, query: Mapping[str, float], nodes: Nodes) -> Scores:
        """Return the score of each node. It is 0 if the node shares no term with the query or is not indexed."""
        wanted, nodes = self._resolve_query(query), np.asarray(nodes, np.int64)
        known, sums = self._last_scores
        if not wanted:
            return np.zeros(len(nodes), np.float32)
        if known == wanted:
            return sums.scores_of(nodes)
        if self._should_score_directly(nodes, wanted):
            return self._scores(wanted, nodes)
        return self._accumulate_scores(wanted).scores_of(nodes)

    def search_many(self, queries: Sequence[Mapping[str, float]], limit: int) -> list[Matches]:
        """Return the results of `search` for each query, in one pass over the postings of all queries."""
        batch, count = self._resolve_queries(queries), len(self._segment_of)
        if limit <= 0 or not len(batch.numbers):
            return [Matches(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        if len(queries) > 1 and int(self._frequency[batch.numbers].sum()) > MAX_POSTINGS_PER_STEP:
            half = len(queries) // 2
            return self.search_many(queries[:half], limit) + self.search_many(queries[half:], limit)
        terms, places = np.unique(batch.numbers, return_inverse=True)
        keys, gains = [], []
        for home, nodes, counts, starts, stops in self._find_postings([_QueryTerm(one, 1.0) for one in terms.tolist()]):
            sizes = (stops - starts)[places].astype(np.int64)
            rows = expand_runs(starts[places], sizes)
            found, worths, owners = (
                nodes[rows].astype(np.int64),
                batch.weights.repeat(sizes),
                batch.owners.repeat(sizes),
            )
            if self._dead.get(home):
                living = self._segment_of[found] == home
                rows, found, worths, owners = rows[living], found[living], worths[living], owners[living]
            keys.append(owners * count + found)
            gains.append(self._bm25_gains(worths, found, counts[rows]))
        # Each memory is in one segment, so its contributions are added in the order of the query, as in a search.
        pairs, at = np.unique(np.concatenate(keys), return_inverse=True)
        sums = np.zeros(len(pairs), np.float32)
        np.add.at(sums, at, np.concatenate(gains))
        bounds = pairs.searchsorted(count * np.arange(len(queries) + 1))
        return [
            _top_nodes(pairs[begin:end] - number * count, sums[begin:end], limit)
            for number, (begin, end) in enumerate(pairwise(bounds.tolist()))
        ]

    def scores_many(self, queries: Sequence[Mapping[str, float]], nodes: Sequence[Nodes]) -> list[Scores]:
        """Return the results of `scores` for each query and its nodes, in one pass over the terms of all nodes."""
        batch, lengths = self._resolve_queries(queries), [len(own) for own in nodes]
        if not sum(lengths):
            return [np.zeros(0, np.float32) for _ in nodes]
        flat = np.concatenate(nodes)
        sizes = self._sizes(flat)
        if len(queries) > 1 and int(sizes.sum()) > MAX_SCORED_POSTINGS:
            half = len(queries) // 2
            return self.scores_many(queries[:half], nodes[:half]) + self.scores_many(queries[half:], nodes[half:])
        terms, columns = np.unique(batch.numbers, return_inverse=True)
        # Position of each term in each query, starting at 1, or 0 if the query does not contain it.
        ranks = np.zeros((len(queries), len(terms) + 1), np.int64)
        ranks[batch.owners, columns + 1] = np.arange(1, len(batch.numbers) + 1)
        places = expand_runs(self._first[np.where(sizes > 0, flat, 0)], sizes)
        turns = self._query_positions([_QueryTerm(one, 1.0) for one in terms.tolist()], self._terms["term"][places])
        pairs = np.arange(len(flat)).repeat(sizes)
        own_ranks = ranks[np.arange(len(queries)).repeat(lengths)[pairs], turns]
        found = np.flatnonzero(own_ranks)
        # Add in the order of the query, as in a search, so that the scores are equal.
        found = found[own_ranks[found].argsort(kind="stable")]
        gains = self._bm25_gains(
            batch.weights[own_ranks[found] - 1], flat[pairs[found]], self._terms["count"][places[found]]
        )
        sums = np.zeros(len(flat), np.float32)
        np.add.at(sums, pairs[found], gains)
        return np.split(sums, np.cumsum(lengths[:-1]))

    def lengths(self, nodes: Nodes) -> Scores:
        """Return the number of terms of each node, at most `MAX_LENGTH_TERMS`. It is 0 if the node is not indexed."""
        self._index_pending()
        inside = (nodes >= 0) & (nodes < len(self._length))
        places = np.where(inside, nodes, 0)
        there = inside & (self._segment_of[places] != NOT_INDEXED)
        lengths: Scores = np.where(there, self._length[places], 0) * np.float32(TERM_COUNT_STEP)
        return lengths

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return JSON metadata and arrays for a snapshot. Later changes of the index do not modify them."""
        self._index_pending()
        self._flush_fresh()
        text, ends = pack_texts(self._words)
        meta = {
            "form": STATE_FORMAT,
            "live": self._live,
            "gone": self._removed_postings,
            "serial": self._last_segment,
            "dead": [[serial, count] for serial, count in self._dead.items()],
        }
        arrays: dict[str, NDArray[Any]] = {
            "words": text,
            "word_lengths": np.diff(ends, prepend=0).astype(np.int32),
            "frequency": self._frequency[: len(self._words)].copy(),
            # Do not copy these columns, because their existing items never change.
            "term": self._terms["term"],
            "count": self._terms["count"],
            "home": self._segment_of.copy(),
            "first": self._first.copy(),
            "size": self._size.copy(),
            "length": self._length.copy(),
        }
        for serial, segment in self._segments.items():
            arrays |= {f"{serial}.{name}": array for name, array in attrs.asdict(segment, recurse=False).items()}
        return meta, arrays

    @classmethod
    def from_state(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> WordIndex:
        """Return an index restored from the result of `state`."""
        if meta.get("form") != STATE_FORMAT:
            raise ValueError(f"the state of a word index must be of form {STATE_FORMAT}, got {meta.get('form')!r:.20}")
        index = cls()
        index._words = Vocabulary(unpack_texts(arrays["words"], np.cumsum(arrays["word_lengths"])))
        index._frequency = grow_array(arrays["frequency"], 1024)
        index._position_scratch = np.zeros_like(index._frequency)
        index._used = int(np.count_nonzero(arrays["frequency"]))
        index._terms.extend({name: arrays[name] for name in _POSTING_COLUMNS})
        # Copy the arrays, because the arrays of a snapshot may be read-only.
        index._segment_of, index._first, index._size, index._length = (
            arrays[name].copy() for name in ("home", "first", "size", "length")
        )
        index._live, index._removed_postings, index._last_segment = meta["live"], meta["gone"], meta["serial"]
        index._total = int(index._length[index._segment_of != NOT_INDEXED].sum(dtype=np.float64))
        names = [field.name for field in attrs.fields(Segment)]
        for serial, dead in meta["dead"]:
            index._dead[serial] = dead
            index._segments[serial] = Segment(**{name: arrays[f"{serial}.{name}"] for name in names})
        return index

    def _accumulate_scores(self, wanted: list[_QueryTerm]) -> _ScoreAccumulator:
        """Return the scores of all nodes, computed in one pass over the postings of all terms."""
        if SPARSE_NODE_RATIO * self._postings(wanted) < len(self._segment_of):
            blocks = [*self._iter_gains(wanted)]
            nodes, places = np.unique(np.concatenate([block[0] for block in blocks]), return_inverse=True)
            scores = np.zeros(len(nodes), np.float32)
            np.add.at(scores, places, np.concatenate([block[1] for block in blocks]))
            sums = _ScoreAccumulator(scores, nodes)
        else:
            sums = _ScoreAccumulator(np.zeros(len(self._segment_of), np.float32))
            for nodes, gains in self._iter_gains(wanted):
                np.add.at(sums.scores, nodes, gains)
        self._last_scores = (wanted, sums)
        return sums

    def _postings(self, wanted: Sequence[_QueryTerm]) -> int:
        return sum(int(self._frequency[term.number]) for term in wanted)

    def _should_score_directly(self, nodes: Nodes, wanted: Sequence[_QueryTerm]) -> bool:
        """Return True if scoring only *nodes* by their terms is cheaper than scoring all postings."""
        postings = self._postings(wanted)
        return len(nodes) <= postings and len(nodes) + int(self._sizes(nodes).sum()) <= postings

    def _iter_gains(self, wanted: Sequence[_QueryTerm]) -> Iterator[tuple[Nodes, Scores]]:
        """Yield nodes with their score contributions per term. The terms of a node are in the order of *wanted*."""
        block: list[_PostingBlock] = []
        size = 0
        for piece in self._iter_posting_blocks(wanted):
            if size + len(piece.nodes) > MAX_POSTINGS_PER_STEP:
                yield self._compute_gains(block)
                block, size = [], 0
            block.append(piece)
            size += len(piece.nodes)
        if block:
            yield self._compute_gains(block)

    def _compute_gains(self, block: Sequence[_PostingBlock]) -> tuple[Nodes, Scores]:
        """Return the nodes and the score contributions of several posting blocks, computed together for speed."""
        homes, all_nodes, all_counts, worths = zip(*block, strict=True)
        nodes, counts = np.concatenate(all_nodes, dtype=np.int64), np.concatenate(all_counts)
        worth = np.concatenate(worths)
        if any(self._dead.values()):
            living = self._segment_of[nodes] == np.array(homes).repeat([len(nodes) for nodes in all_nodes])
            nodes, counts, worth = nodes[living], counts[living], worth[living]
        return nodes, self._bm25_gains(worth, nodes, counts)

    def _iter_posting_blocks(self, wanted: Sequence[_QueryTerm]) -> Iterator[_PostingBlock]:
        """Yield the postings of the wanted terms by segment. Within a segment they are in the order of *wanted*."""
        worths = np.array([term.weight for term in wanted], np.float32)
        for home, nodes, counts, starts, stops in self._find_postings(wanted):
            sizes = (stops - starts).astype(np.int64)
            if int(sizes.sum()) <= min(MAX_GATHERED_POSTINGS * len(wanted), MAX_POSTINGS_PER_STEP):
                places = expand_runs(starts, sizes)
                yield _PostingBlock(home, nodes[places], counts[places], worths.repeat(sizes))
                continue
            for worth, start, stop in zip(worths, starts.tolist(), stops.tolist(), strict=True):
                for begin in range(start, stop, MAX_POSTINGS_PER_STEP):
                    end = min(begin + MAX_POSTINGS_PER_STEP, stop)
                    yield _PostingBlock(home, nodes[begin:end], counts[begin:end], np.full(end - begin, worth))

    def _find_postings(
        self, wanted: Sequence[_QueryTerm]
    ) -> Iterator[tuple[int, Int32Array, TermCounts, Int32Array, Int32Array]]:
        """Yield the posting arrays of each segment, with the start and the end of each wanted term."""
        numbers = np.array([term.number for term in wanted], np.int32)
        for home, segment in self._segments.items():
            yield home, segment.nodes, segment.counts, *segment.find_bounds(numbers)
        settled = len(self._terms) - len(self._fresh)
        turns = self._query_positions(wanted, self._terms["term"][settled:])
        found = np.flatnonzero(turns)
        found = found[self._fresh["node"][found] != NOT_INDEXED]
        found = found[turns[found].argsort(kind="stable")]
        bounds = turns[found].searchsorted(np.arange(1, len(wanted) + 2))
        yield FRESH_SEGMENT, self._fresh["node"][found], self._terms["count"][settled:][found], bounds[:-1], bounds[1:]

    def _query_positions(self, wanted: Sequence[_QueryTerm], terms: Int32Array) -> Int32Array:
        """Return the position of each of *terms* in the query, starting at 1, or 0 if the query does not contain it."""
        numbers = [term.number for term in wanted]
        self._position_scratch[numbers] = np.arange(1, len(numbers) + 1)
        turns: Int32Array = self._position_scratch[terms]
        self._position_scratch[numbers] = 0
        return turns

    def _bm25_gains(self, weights: Scores, nodes: Nodes, counts: TermCounts) -> Scores:
        """
        Return the contribution of each posting to the BM25 score of its node.

        The formula is ``weight * count / (count + k1 * (extra + length) / (extra + average))``. Counts and lengths are
        in units of `TERM_COUNT_STEP`.
        """
        gains = self._length.take(nodes)
        gains += np.float32(EXTRA_LENGTH_TERMS / TERM_COUNT_STEP)
        gains *= np.float32(
            BM25_K1 / TERM_COUNT_STEP / (EXTRA_LENGTH_TERMS / TERM_COUNT_STEP + self._total / max(self._live, 1))
        )
        found = counts.astype(np.float32)
        gains += found
        np.divide(found, gains, out=gains)
        gains *= weights
        return gains

    def _scores(self, wanted: Sequence[_QueryTerm], nodes: Nodes) -> Scores:
        """
        Return the scores of some nodes.

        Contributions are added in the order of *wanted*, as in a search, so that the scores are equal.
        """
        sizes = self._sizes(nodes)
        places = expand_runs(self._first[np.where(sizes > 0, nodes, 0)], sizes)
        turns = self._query_positions(wanted, self._terms["term"][places])
        found = np.flatnonzero(turns)
        found = found[turns[found].argsort(kind="stable")]
        owners = np.arange(len(nodes)).repeat(sizes)[found]
        worths = np.array([term.weight for term in wanted], np.float32)
        scores = np.zeros(len(nodes), np.float32)
        gains = self._bm25_gains(worths[turns[found] - 1], nodes[owners], self._terms["count"][places[found]])
        np.add.at(scores, owners, gains)
        return scores

    def _sizes(self, nodes: Nodes) -> Int32Array:
        """Return the number of postings of each node. It is 0 if the node is not indexed."""
        inside = (nodes >= 0) & (nodes < len(self._size))
        sizes: Int32Array = np.where(inside, self._size[np.where(inside, nodes, 0)], 0)
        return sizes

    def _resolve_query(self, query: Mapping[str, float]) -> list[_QueryTerm]:
        """Return the known terms of a query, highest weight first. Scores are added in this order."""
        self._index_pending()
        known = []
        for term, weight in query.items():
            number = self._words.numbers.get(term, -1)
            if number >= 0 and weight > 0 and self._frequency[number]:
                known.append((-weight * self._rarity(number), term, number))
        # Sort terms of equal weight by text, so that rounding does not depend on the order of indexing.
        return [_QueryTerm(number, -worth) for worth, _, number in sorted(known)]

    def _resolve_queries(self, queries: Sequence[Mapping[str, float]]) -> _QueryBatch:
        """Return the known terms of several queries, each in the order of `_resolve_query`."""
        self._index_pending()
        rarities = self.rarity(dict.fromkeys(chain.from_iterable(queries)))
        numbers, known, owners = self._words.numbers, [], []
        for owner, query in enumerate(queries):
            own = [
                (-weight * rarities[term], term, numbers[term])
                for term, weight in query.items()
                if weight > 0 and term in numbers and self._frequency[numbers[term]]
            ]
            known += sorted(own)
            owners += [owner] * len(own)
        return _QueryBatch(
            np.array([number for *_, number in known], np.int32),
            np.array([-worth for worth, *_ in known], np.float32),
            np.array(owners, np.int64),
        )

    def _rarity(self, number: int) -> float:
        having = 0 if number < 0 else int(self._frequency[number])
        return math.log1p((self._live - having + 0.5) / (having + 0.5))

    def _has(self, node: int) -> bool:
        return 0 <= node < len(self._segment_of) and int(self._segment_of[node]) != NOT_INDEXED

    def _index_pending(self) -> None:
        """Index the pending memories."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for node in waiting:
            self.remove(node)
        nodes = np.fromiter(waiting, np.int64, len(waiting))
        self._reserve_nodes(int(nodes.max()))
        sizes = np.fromiter(map(len, waiting.values()), np.int32, len(waiting))
        count = int(sizes.sum())
        numbers = np.fromiter(map(self._words.number, chain.from_iterable(waiting.values())), np.int32, count)
        exact = np.fromiter(chain.from_iterable(terms.values() for terms in waiting.values()), np.float64, count)
        if len(self._words) > len(self._frequency):
            self._frequency, self._position_scratch = (
                grow_array(known, len(self._words)) for known in (self._frequency, self._position_scratch)
            )
        # Sum integers, which is exact, so that adding and removing a memory restores the statistics.
        parts = np.maximum(np.rint(exact / TERM_COUNT_STEP), 1.0)
        lengths = np.minimum(
            np.bincount(np.arange(len(nodes)).repeat(sizes), parts, len(nodes)),
            round(MAX_LENGTH_TERMS / TERM_COUNT_STEP),
        )
        self._used += len(set(numbers[self._frequency[numbers] == 0].tolist()))
        np.add.at(self._frequency, numbers, 1)
        self._segment_of[nodes], self._size[nodes], self._length[nodes] = FRESH_SEGMENT, sizes, lengths
        self._first[nodes] = len(self._terms) + _bounds(sizes)[:-1]
        self._total += int(lengths.sum())
        self._live += len(nodes)
        self._last_scores = _NO_QUERY
        self._terms.extend({"term": numbers, "count": np.minimum(parts, MAX_TERM_COUNT_STEPS).astype(np.uint8)})
        self._fresh.extend({"node": nodes.repeat(sizes)})
        if len(self._fresh) >= MAX_FRESH_POSTINGS:
            self._flush_fresh()

    def _reserve_nodes(self, node: int) -> None:
        if node >= len(self._segment_of):
            self._segment_of = grow_array(self._segment_of, node + 1, NOT_INDEXED)
            self._first, self._size = (grow_array(known, node + 1) for known in (self._first, self._size))
            self._length = grow_array(self._length, node + 1)

    def _flush_fresh(self) -> None:
        """Build a segment from the memories that are not in a segment yet."""
        nodes, first = self._fresh["node"], len(self._terms) - len(self._fresh)
        living = nodes != NOT_INDEXED
        if living.any():
            terms, counts = (self._terms[name][first:][living] for name in _POSTING_COLUMNS)
            self._add_segment(Segment.from_postings(nodes[living], terms, counts))
        self._fresh = GrowingColumns({"node": np.int32})
        self._merge()

    def _merge(self) -> None:
        """Merge short segments, until each segment is longer than all shorter ones together."""
        serials = sorted(self._segments, key=lambda serial: len(self._segments[serial]))
        sizes = [len(self._segments[serial]) for serial in serials]
        shorter = [0, *accumulate(sizes)]
        joined = max((place for place, size in enumerate(sizes) if size <= shorter[place]), default=0)
        if joined:
            self._replace(serials[: joined + 1])

    def _replace(self, serials: Sequence[int]) -> None:
        """Merge some segments, and drop the postings of removed memories."""
        parts = [self._without_removed(serial) for serial in serials]
        for serial in serials:
            del self._segments[serial], self._dead[serial]
        parts = [part for part in parts if len(part)]
        if parts:
            self._add_segment(Segment.merge_segments(parts) if len(parts) > 1 else parts[0])

    def _without_removed(self, serial: int) -> Segment:
        segment = self._segments[serial]
        return segment.only(self._segment_of[segment.nodes] == serial) if self._dead[serial] else segment

    def _add_segment(self, segment: Segment) -> None:
        self._last_segment += 1
        self._segments[self._last_segment] = segment
        self._dead[self._last_segment] = 0
        self._segment_of[segment.nodes] = self._last_segment

    def _drop_removed(self) -> None:
        """Remove the postings of removed memories from the forward index."""
        self._flush_fresh()
        nodes = np.flatnonzero(self._size)
        nodes = nodes[self._first[nodes].argsort()]
        first, sizes = self._first[nodes], self._size[nodes]
        edges = np.zeros(len(self._terms) + 1, np.int8)
        edges[first] += 1
        edges[first + sizes] -= 1
        self._terms.keep(np.cumsum(edges[:-1], dtype=np.int8) > 0)
        self._first[nodes] = _bounds(sizes)[:-1]
        self._removed_postings = 0

    def _drop_unused_words(self) -> None:
        self._drop_removed()
        self._replace(list(self._segments))
        used = self._frequency[: len(self._words)] > 0
        numbers = (np.cumsum(used) - 1).astype(np.int32)
        self._words = Vocabulary([self._words[number] for number in np.flatnonzero(used).tolist()])
        self._frequency = grow_array(self._frequency[: len(used)][used], 1024)
        known, self._terms = self._terms, GrowingColumns(_POSTING_COLUMNS)
        self._terms.extend({"term": numbers[known["term"]], "count": known["count"]})
        for serial, segment in self._segments.items():
            self._segments[serial] = attrs.evolve(segment, keys=numbers[segment.keys])


def _top_nodes(nodes: Nodes, scores: Scores, limit: int) -> Matches:
    """
    Return the nodes with the highest positive scores. Equal scores are sorted newest first.

    *nodes* must be ascending.
    """
    found = np.flatnonzero(scores)
    if len(found) > limit:
        least = np.partition(scores, len(scores) - limit)[len(scores) - limit]
        above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
        found = np.concatenate([above, equal[len(above) - limit :]])
    nodes, scores = nodes[found], scores[found]
    order = np.lexsort((-nodes, -scores))
    return Matches(nodes[order].astype(np.int64), scores[order])


def _top_candidates(sums: Scores, limit: int) -> Nodes:
    """Return candidates for the *limit* nodes with the highest positive sums, ascending."""
    # At least *limit* of these maxima across the strips reach *least*, so the limit-th best score is not lower.
    tops = sums.reshape(TOP_SCORE_STRIPS, -1).max(axis=0)
    least = np.partition(tops, len(tops) - limit)[len(tops) - limit] if limit <= len(tops) else np.float32(0)
    return np.flatnonzero(sums >= least if least > 0 else sums > 0)


def _resize_mask(mask: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    fitted = np.zeros(length, np.bool_)
    fitted[: min(len(mask), length)] = mask[:length]
    return fitted
