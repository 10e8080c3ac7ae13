"""The index by which memories are found by their words: postings in segments, scored by BM25."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.embedded.catalogue import Array, Columns, Vocabulary, grown, packed, unpacked
from mama_structs.memory.engine import Matches, Nodes, Scores

Whole = NDArray[np.int32]
Counts = NDArray[np.uint8]
"""How much a term counts in a memory, in parts of `UNIT`, 255 for more: there BM25 hardly grows any more."""

UNIT: Final = 1 / 10

_NODE_BITS: Final = 32
_AT_ONCE: Final = 250_000


@attrs.frozen(eq=False)
class Postings:
    """Postings by term, and the terms of each memory, both as rows of one long array."""

    keys: Whole
    bounds: Whole
    nodes: Whole
    counts: Counts
    members: Whole
    starts: Whole
    terms: Whole

    def __len__(self) -> int:
        return len(self.nodes)

    @classmethod
    def of(cls, members: Whole, nodes: Whole, terms: Whole, counts: Counts) -> Postings:
        """Make one of *members*, in rising order, and of postings in any, each of a member and a term."""
        by_node, by_term = np.argsort(nodes, kind="stable"), np.lexsort((nodes, terms))
        starts = _bounds(np.bincount(np.searchsorted(members, nodes), minlength=len(members)))
        keys, sizes = np.unique(terms, return_counts=True)
        return cls(keys, _bounds(sizes), nodes[by_term], counts[by_term], members, starts, terms[by_node])

    def bounds_of(self, numbers: Whole) -> tuple[Whole, Whole]:
        """Return where the postings of each of some terms begin and end."""
        begin, end = self.keys.searchsorted(numbers), self.keys.searchsorted(numbers, "right")
        return self.bounds[begin], self.bounds[end]

    def terms_of(self, row: int) -> Whole:
        """Return the numbers of the terms of a member."""
        return self.terms[self.starts[row] : self.starts[row + 1]]

    def only(self, living: NDArray[np.bool_]) -> Postings:
        """Return it without the memories that are not *living* any more, which has an item for each node."""
        kept_rows, kept = living[self.members], living[self.nodes]
        sizes = np.add.reduceat(kept, self.bounds[:-1], dtype=np.int32) if len(self.keys) else self.keys
        used = sizes > 0
        row_sizes = np.diff(self.starts)
        return Postings(
            self.keys[used],
            _bounds(sizes[used]),
            self.nodes[kept],
            self.counts[kept],
            self.members[kept_rows],
            _bounds(row_sizes[kept_rows]),
            self.terms[np.repeat(kept_rows, row_sizes)],
        )

    def joined(self, other: Postings) -> Postings:
        """Return one with the memories of both, which have none in common."""
        keys = np.union1d(self.keys, other.keys)
        sizes = np.zeros((len(keys), 2), np.int32)
        sizes[np.searchsorted(keys, self.keys), 0] = np.diff(self.bounds)
        sizes[np.searchsorted(keys, other.keys), 1] = np.diff(other.bounds)
        from_other = self._places_of(other, sizes)
        return Postings(
            keys,
            _bounds(sizes.sum(axis=1)),
            _merged(self.nodes, other.nodes, from_other),
            _merged(self.counts, other.counts, from_other),
            np.concatenate([self.members, other.members]),
            np.concatenate([self.starts, other.starts[1:] + self.starts[-1]]),
            np.concatenate([self.terms, other.terms]),
        )

    def _places_of(self, other: Postings, sizes: Whole) -> NDArray[np.bool_]:
        """Return, for each posting of both in order, whether it comes from *other*; *sizes* is how many each has."""
        mine, others = _bounds(sizes[:, 0]), _bounds(sizes[:, 1])
        ends = mine + others
        from_other = np.zeros(ends[-1], np.bool_)
        # Some at a time, because what is sorted by takes more memory than what is sorted.
        edges = np.unique(np.append(np.searchsorted(ends, np.arange(0, ends[-1], _AT_ONCE)), len(sizes)))
        for low, high in pairwise(edges.tolist()):
            first = _sort_keys(sizes[low:high, 0], self.nodes[mine[low] : mine[high]])
            second = _sort_keys(sizes[low:high, 1], other.nodes[others[low] : others[high]])
            from_other[ends[low] + np.searchsorted(first, second) + np.arange(len(second))] = True
        return from_other


def _sort_keys(sizes: Whole, nodes: Whole) -> NDArray[np.int64]:
    keys = np.repeat(np.arange(len(sizes), dtype=np.int64) << _NODE_BITS, sizes)
    keys += nodes
    return keys


def _bounds(sizes: Sequence[int] | NDArray[Any]) -> Whole:
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def _merged(mine: NDArray[Any], others: NDArray[Any], from_other: NDArray[np.bool_]) -> NDArray[Any]:
    merged = np.empty(len(from_other), mine.dtype)
    merged[from_other] = others
    merged[~from_other] = mine
    return merged


K1: Final = 1.2
"""How soon a further occurrence of a term stops counting."""
B: Final = 0.75
"""How much a long text is discounted, 0 to 1."""
LONGEST: Final = 200.0
"""Terms: a longer text counts as one of this length, or a rare word in it would count for next to nothing."""

_FORM: Final = 1
_POSTING: Final = {"node": np.int32, "term": np.int32, "count": np.uint8}
_NOWHERE: Final = -1
# The home of the memories that are in no segment yet.
_FRESH: Final = 0
_FRESH_POSTINGS: Final = 8_192
# Words are given back when so many are unused, and these are more than those in use.
_UNUSED_WORDS: Final = 4_096
# A term with more postings than this is worth the search for a way around it.
_FREQUENT: Final = 2_048
# So many postings are added up in the time in which one node is looked up among those of one term.
_FEW: Final = 8
# Rounding must never leave a match out.
_MARGIN: Final = 1e-5
_MOST_PARTS: Final = 255
# The highest scores are looked for in so many strips at once.
_STRIPS: Final = 64
_NOTHING: Final[tuple[list[Any], Scores]] = ([], np.zeros(0, np.float32))


@attrs.frozen
class _Wanted:
    """A term of a query: its number and the most that it can add to a score."""

    number: int
    worth: float


class WordIndex:
    """Terms and the memories that they occur in."""

    def __init__(self, *, k1: float = K1, b: float = B) -> None:
        self._k1 = k1
        self._b = b
        self._words = Vocabulary()
        # By number of term: how many living memories have it; of how many terms there are any.
        self._frequency = np.zeros(1024, np.int32)
        self._used = 0
        # Gives the terms of one question their turns; all 0 between questions.
        self._turn = np.zeros(1024, np.int32)
        # By node: the serial number of its segment, its row there, and its length in parts of `UNIT`.
        self._home = np.full(1024, _NOWHERE, np.int32)
        self._row = np.zeros(1024, np.int32)
        self._length = np.zeros(1024, np.float32)
        # What of BM25's divisor depends on the memory alone, None after a change.
        self._norms: Scores | None = None
        # The last query and the scores of all nodes, for whoever asks for some of them next.
        self._added: tuple[list[_Wanted], Scores] = _NOTHING
        self._live = 0
        self._total = 0
        self._fresh = Columns(_POSTING)
        # By serial number, in order of making.
        self._segments: dict[int, Postings] = {}
        self._dead: dict[int, int] = {}
        self._serial = _FRESH

    def __len__(self) -> int:
        return self._live

    def add(self, node: int, terms: Mapping[str, float] | Sequence[str]) -> None:
        """Index a memory, in the place of what *node* had."""
        weighed = terms if isinstance(terms, Mapping) else Counter(terms)
        self.remove(node)
        self._reach(node)
        numbers = np.fromiter(map(self._words.number, weighed), np.int32, len(weighed))
        if len(self._words) > len(self._frequency):
            self._frequency, self._turn = (grown(known, len(self._words)) for known in (self._frequency, self._turn))
        exact = np.fromiter(weighed.values(), np.float64, len(weighed))
        # Whole numbers, whose sums are exact: what was added and removed leaves no trace in the statistics.
        parts = np.maximum(np.rint(exact / UNIT), 1.0)
        counts = np.minimum(parts, _MOST_PARTS).astype(np.uint8)
        self._used += int(np.count_nonzero(self._frequency[numbers] == 0))
        self._frequency[numbers] += 1
        self._home[node] = _FRESH
        self._length[node] = min(float(parts.sum()), LONGEST / UNIT)
        self._total += int(self._length[node])
        self._live += 1
        self._norms = None
        self._added = _NOTHING
        self._fresh.extend({"node": np.full(len(numbers), node, np.int32), "term": numbers, "count": counts})
        if len(self._fresh) >= _FRESH_POSTINGS:
            self._settle()

    def remove(self, node: int) -> None:
        """Forget a memory; one that is not there is no error."""
        numbers = self._numbers_of(node)
        if numbers is None:
            return
        home = int(self._home[node])
        if home == _FRESH:
            self._fresh.keep(self._fresh["node"] != node)
        self._home[node] = _NOWHERE
        self._frequency[numbers] -= 1
        self._used -= int(np.count_nonzero(self._frequency[numbers] == 0))
        self._live -= 1
        self._norms = None
        self._added = _NOTHING
        self._total -= int(self._length[node])
        if home != _FRESH:
            self._dead[home] += 1
            if 2 * self._dead[home] > len(self._segments[home].members):
                self._replace([home])
        if len(self._words) - self._used > max(_UNUSED_WORDS, self._used):
            self._forget_words()

    def terms(self, node: int) -> list[str]:
        """Return the terms of a memory, each once; none where it is not there."""
        numbers = self._numbers_of(node)
        return [] if numbers is None else [self._words[number] for number in numbers.tolist()]

    def rarity(self, terms: Iterable[str]) -> dict[str, float]:
        """Return the inverse document frequency of each term, the highest for one that occurs nowhere."""
        find = self._words.numbers.get
        return {term: self._rarity(find(term, -1)) for term in terms}

    def search(self, query: Mapping[str, float], limit: int, mask: NDArray[np.bool_] | None = None) -> Matches:
        """Return the memories that match best, leaving out those that share no term with the query."""
        wanted = self._wanted(query)
        if limit <= 0 or not wanted:
            return Matches(np.empty(0, np.int64), np.empty(0, np.float32))
        if mask is not None and self._is_few(int(np.count_nonzero(mask)), wanted):
            nodes = np.flatnonzero(mask[: len(self._home)])
            return _best(nodes, self._scores(wanted, nodes), limit)
        return self._search(wanted, limit, mask)

    def scores(self, query: Mapping[str, float], nodes: Nodes) -> Scores:
        """Return the score of each of *nodes*, 0 for one that shares no term with the query or is not there."""
        wanted, nodes = self._wanted(query), np.asarray(nodes, np.int64)
        known, sums = self._added
        if known != wanted:
            if self._is_few(len(nodes), wanted):
                return self._scores(wanted, nodes)
            sums = np.zeros(len(self._home), np.float32)
            self._add_up(wanted, sums)
        scores = np.zeros(len(nodes), np.float32)
        inside = np.flatnonzero((nodes >= 0) & (nodes < len(sums)))
        scores[inside] = sums[nodes[inside]]
        return scores

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return what a snapshot keeps of it: what goes into JSON, and arrays that later changes leave alone."""
        self._freeze()
        text, ends = packed(self._words)
        meta = {
            "form": _FORM,
            "live": self._live,
            "serial": self._serial,
            "dead": [[serial, count] for serial, count in self._dead.items()],
        }
        arrays: dict[str, NDArray[Any]] = {
            "words": text,
            "word_lengths": np.diff(ends, prepend=0).astype(np.int32),
            "frequency": self._frequency[: len(self._words)].copy(),
            "home": self._home.copy(),
            "row": self._row.copy(),
            "length": self._length.copy(),
        }
        for serial, segment in self._segments.items():
            arrays |= {f"{serial}.{name}": array for name, array in attrs.asdict(segment, recurse=False).items()}
        return meta, arrays

    @classmethod
    def from_state(
        cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, k1: float = K1, b: float = B
    ) -> WordIndex:
        """Return an index as it was when *state* was called."""
        if meta.get("form") != _FORM:
            raise ValueError(f"the state of a word index must be of form {_FORM}, got {meta.get('form')!r:.20}")
        index = cls(k1=k1, b=b)
        index._words = Vocabulary(unpacked(arrays["words"], np.cumsum(arrays["word_lengths"])))
        index._frequency = grown(arrays["frequency"], 1024)
        index._turn = np.zeros_like(index._frequency)
        index._used = int(np.count_nonzero(arrays["frequency"]))
        # Copies, because a snapshot's arrays may be read-only.
        index._home, index._row, index._length = (arrays[name].copy() for name in ("home", "row", "length"))
        index._live = meta["live"]
        index._total = int(index._length[index._home != _NOWHERE].sum(dtype=np.float64))
        index._serial = meta["serial"]
        names = [field.name for field in attrs.fields(Postings)]
        for serial, dead in meta["dead"]:
            index._dead[serial] = dead
            index._segments[serial] = Postings(**{name: arrays[f"{serial}.{name}"] for name in names})
        return index

    def _search(self, wanted: list[_Wanted], limit: int, mask: NDArray[np.bool_] | None) -> Matches:
        sums = np.zeros(len(self._home), np.float32)
        allowed = None if mask is None else _fitted(mask, len(sums))
        added = 0
        for place, term in enumerate(wanted):
            rest = wanted[place:]
            most = sum(term.worth for term in rest)
            if most < sum(term.worth for term in wanted[:place]) and int(self._frequency[term.number]) > _FREQUENT:
                # The terms that are left are frequent, and so worth little. When all of them together cannot lift a
                # memory that has none of the terms before into the best, only those that have one need be looked at
                # (Turtle and Flood, Query Evaluation: Strategies and Optimizations, 1995).
                self._add_up(wanted[added:place], sums)
                added = place
                reached = sums if allowed is None else sums * allowed
                found = _survivors(reached, limit, most)
                if found is not None and self._is_few(len(found), rest):
                    return _best(found, self._scores(rest, found, sums[found]), limit)
        self._add_up(wanted[added:], sums)
        self._added = (wanted, sums)
        sums = sums if allowed is None else sums * allowed
        nodes = _leading(sums, limit)
        return _best(nodes, sums[nodes], limit)

    def _is_few(self, nodes: int, wanted: Sequence[_Wanted]) -> bool:
        """Return whether to look up so many nodes takes less time than to add up all postings."""
        return _FEW * nodes * len(wanted) <= sum(int(self._frequency[term.number]) for term in wanted)

    def _add_up(self, wanted: Sequence[_Wanted], sums: Scores) -> None:
        """Add what terms give to the sums of all living memories that have them, one term after the other."""
        worths = np.array([term.worth for term in wanted], np.float32)
        for home, all_nodes, all_counts, starts, stops in self._places(wanted):
            slices = [slice(*both) for both in zip(starts.tolist(), stops.tolist(), strict=True) if both[0] != both[1]]
            if not slices:
                continue
            # All at once, since an array of some ten postings costs as much as one of some hundred.
            nodes = np.concatenate([all_nodes[each] for each in slices]).astype(np.intp)
            counts, worth = np.concatenate([all_counts[each] for each in slices]), worths.repeat(stops - starts)
            if self._dead.get(home):
                living = self._home[nodes] == home
                nodes, counts, worth = nodes[living], counts[living], worth[living]
            np.add.at(sums, nodes, self._gain(worth, nodes, counts))

    def _gain(self, worth: Scores | float, nodes: Nodes, counts: Counts) -> Scores:
        """Return ``worth * count / (count + k1 * (1 - b + b * length / average))``, counts and lengths in `UNIT`."""
        if self._norms is None:
            saturation = self._k1 / UNIT
            self._norms = self._length * np.float32(saturation * self._b * self._live / max(self._total, 1))
            self._norms += np.float32(saturation * (1.0 - self._b))
        gains = self._norms.take(nodes)
        found = counts.astype(np.float32)
        gains += found
        np.divide(found, gains, out=gains)
        gains *= np.float32(worth)
        return gains

    def _scores(self, wanted: Sequence[_Wanted], nodes: Nodes, sums: Scores | None = None) -> Scores:
        """Add what *wanted* gives to *sums*, for these nodes only, in the order in which a search adds."""
        sums = np.zeros(len(nodes), np.float32) if sums is None else sums
        inside = np.flatnonzero((nodes >= 0) & (nodes < len(self._home)))
        homes = np.full(len(nodes), _NOWHERE, np.int32)
        homes[inside] = self._home[nodes[inside]]
        for home, all_nodes, all_counts, starts, stops in self._places(wanted):
            here = np.flatnonzero(homes == home)
            for term, start, stop in zip(wanted, starts.tolist(), stops.tolist(), strict=True) if len(here) else ():
                having = all_nodes[start:stop]
                if len(having):
                    spots = having.searchsorted(nodes[here].astype(np.int32))
                    spots[spots == len(having)] = 0
                    hits = having[spots] == nodes[here]
                    asked, spots = here[hits], spots[hits]
                    sums[asked] += self._gain(term.worth, nodes[asked], all_counts[start:stop][spots])
        return sums

    def _places(self, wanted: Sequence[_Wanted]) -> list[tuple[int, Array, Array, Array, Array]]:
        """Return postings, home by home, each term's by node, and where those of each wanted term begin and end."""
        numbers = np.array([term.number for term in wanted], np.int32)
        # Of the fresh postings those of wanted terms, in the turn of these.
        self._turn[numbers] = np.arange(1, len(numbers) + 1)
        turns = self._turn[self._fresh["term"]]
        self._turn[numbers] = 0
        found = np.flatnonzero(turns)
        found = found[np.lexsort((self._fresh["node"][found], turns[found]))]
        bounds = turns[found].searchsorted(np.arange(1, len(numbers) + 2))
        return [
            *((home, known.nodes, known.counts, *known.bounds_of(numbers)) for home, known in self._segments.items()),
            (_FRESH, self._fresh["node"][found], self._fresh["count"][found], bounds[:-1], bounds[1:]),
        ]

    def _wanted(self, query: Mapping[str, float]) -> list[_Wanted]:
        """Return what of a query is known, what is worth most first; the order is that in which scores are added."""
        known = []
        for term, weight in query.items():
            number = self._words.numbers.get(term, -1)
            if number >= 0 and weight > 0 and self._frequency[number]:
                known.append((-weight * self._rarity(number), term, number))
        # Equal ones by their words, so that rounding does not depend on what was indexed before.
        return [_Wanted(number, -worth) for worth, _, number in sorted(known)]

    def _rarity(self, number: int) -> float:
        having = 0 if number < 0 else int(self._frequency[number])
        return math.log1p((self._live - having + 0.5) / (having + 0.5))

    def _numbers_of(self, node: int) -> Whole | None:
        home = int(self._home[node]) if 0 <= node < len(self._home) else _NOWHERE
        if home == _NOWHERE:
            return None
        if home == _FRESH:
            numbers: Whole = self._fresh["term"][self._fresh["node"] == node]
            return numbers
        return self._segments[home].terms_of(int(self._row[node]))

    def _reach(self, node: int) -> None:
        if node >= len(self._home):
            self._home = grown(self._home, node + 1, _NOWHERE)
            self._row = grown(self._row, node + 1, 0)
            self._length = grown(self._length, node + 1, 0)

    def _settle(self) -> None:
        """Make a segment of the fresh memories, and join the smallest ones that are of like size."""
        self._freeze()
        joined: list[int] = []
        size = 0
        for serial, segment in sorted(self._segments.items(), key=lambda item: len(item[1])):
            if joined and len(segment) >= 2 * size:
                break
            joined.append(serial)
            size += len(segment)
        if len(joined) > 1:
            self._replace(joined)

    def _freeze(self) -> None:
        members = np.flatnonzero(self._home == _FRESH).astype(np.int32)
        if len(members):
            self._keep(Postings.of(members, self._fresh["node"], self._fresh["term"], self._fresh["count"]))
            self._fresh = Columns(_POSTING)

    def _replace(self, serials: Sequence[int]) -> None:
        parts = [self._living(serial) for serial in serials]
        for serial in serials:
            del self._segments[serial], self._dead[serial]
        if parts:
            whole = reduce(Postings.joined, parts)
            if len(whole.members):
                self._keep(whole)

    def _living(self, serial: int) -> Postings:
        segment = self._segments[serial]
        return segment.only(self._home == serial) if self._dead[serial] else segment

    def _keep(self, segment: Postings) -> None:
        self._serial += 1
        self._segments[self._serial] = segment
        self._dead[self._serial] = 0
        self._home[segment.members] = self._serial
        self._row[segment.members] = np.arange(len(segment.members), dtype=np.int32)

    def _forget_words(self) -> None:
        self._freeze()
        self._replace(list(self._segments))
        used = self._frequency[: len(self._words)] > 0
        numbers = (np.cumsum(used) - 1).astype(np.int32)
        self._words = Vocabulary([self._words[number] for number in np.flatnonzero(used).tolist()])
        self._frequency = grown(self._frequency[: len(used)][used], 1024)
        for serial, known in self._segments.items():
            self._segments[serial] = attrs.evolve(known, keys=numbers[known.keys], terms=numbers[known.terms])


def _best(nodes: Nodes, scores: Scores, limit: int) -> Matches:
    """Return those with the highest scores above 0, equal ones newest first; *nodes* are in rising order."""
    found = np.flatnonzero(scores)
    if len(found) > limit:
        least = np.partition(scores, len(scores) - limit)[len(scores) - limit]
        above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
        found = np.concatenate([above, equal[len(above) - limit :]])
    nodes, scores = nodes[found], scores[found]
    order = np.lexsort((-nodes, -scores))
    return Matches(nodes[order].astype(np.int64), scores[order])


def _survivors(sums: Scores, limit: int, rest: float) -> Nodes | None:
    """Return the nodes that can be among the best when *rest* is the most that can come, None where any can."""
    leading = sums[_leading(sums, limit)]
    if len(leading) < limit:
        return None
    least = float(np.partition(leading, len(leading) - limit)[len(leading) - limit])
    rest += _MARGIN * least
    return np.flatnonzero(sums >= least - rest) if rest < least else None


def _leading(sums: Scores, limit: int) -> Nodes:
    """Return a superset, in rising order, of the *limit* nodes with the highest sums above 0."""
    # So many strips have a maximum of this or more: the limit-th best cannot be below, and most nodes are.
    tops = sums.reshape(_STRIPS, -1).max(axis=0)
    least = np.partition(tops, len(tops) - limit)[len(tops) - limit] if limit <= len(tops) else np.float32(0)
    return np.flatnonzero(sums >= least if least > 0 else sums > 0)


def _fitted(mask: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    fitted = np.zeros(length, np.bool_)
    fitted[: min(len(mask), length)] = mask[:length]
    return fitted
