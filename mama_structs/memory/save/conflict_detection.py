"""
What stands on the matter of a new memory: copies, contradictions, replacements (DESIGN section 6a).

A memory says something of something. Two that differ in what they say disagree; two that differ in what they say it of
are strangers, however alike they look. So what two texts do not have in common tells more than what they have.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import combinations
from typing import Final

import attrs
import numpy as np

from mama_structs.errors import StoreDamaged
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.save.automatic_links import LinkCandidates, Unlinked, probabilities
from mama_structs.memory.types.claims import Meant, all_of, differ
from mama_structs.memory.types.duplicates import has_failed, is_copy, superseded, wording
from mama_structs.memory.types.engine import Nodes, Reader
from mama_structs.memory.types.judge import Verdict
from mama_structs.memory.types.model import SINGULAR, Memory, MemoryType, Noticed, NoticedMemory

# Of the candidates the likeliest are read: none that counts stood behind the fifth.
_READ: Final = 5
_NAMED: Final = 5
# A judge is asked about candidates that are of one matter as probably as not.
_LIKELY: Final = 0.5
# What follows was chosen on half a of tests/data/month and half a of tests/data/noticing, see ``benchmarks/month.py``.
# Two may disagree that are so probably of one matter, or so alike: in a store of few memories nothing is probable.
_ONE_MATTER: Final = 0.85
_ALIKE: Final = 3.2
# Who denies what is as alike as this says the same by way of its opposite.
_TOO_ALIKE: Final = 4.0
# Steps of cosine by which the likest of what is named may be before another one, which else is of another thing.
_BEHIND: Final = 0.86
# Words in common, and shares of the words of one of the two.
_COMMON: Final = 2
_MUCH: Final = 0.5
# Words in a place of a frame at the most, and shares of it that stay: where words may be swapped, and where these are
# all that is another.
_PLACE: Final = 3
_FRAME: Final = 0.45
_ONE_FRAME: Final = 0.65
# What a step of cosine, a frame, and to be both insights add to the logarithm of the odds that two say the same, of
# those that nothing speaks against; the last is that of two without any. Fitted with the default embedder, as was the
# probability from which on they are named: of twelve parts each was told by the eleven others.
_SAME: Final = (2.6, -4.25, 2.8, -11.3)
_SURE: Final = 0.6
# The share of those so noticed that were right.
_REPLACED: Final = 0.85
_CONTRADICTED: Final = 0.8


@attrs.frozen(kw_only=True)
class Compared:
    """How a new memory and an older one differ."""

    matter: float  # how probable it is that they are of one matter, 0 to 1, as links have it
    cosine: float  # in the steps of the embedder's calibration, 0 where it is as likely alike as not
    insights: bool  # both are insights, which are found anew; what was decided is rather decided otherwise
    one_choice: bool  # they are decisions of one topic

    common: int  # words that both say in some form
    share: float  # how many of its words the one with more of them in common has in common, 0 to 1
    share_of_old: float
    left: bool  # at least one has a word that the other does not say; `left_on_both`: each has
    left_on_both: bool
    frame: float  # how much of them is the same around other words, 0 to 1
    swapped: bool  # other words stand in the same places of that frame: they are said of other things
    same_words: bool  # neither has a word that the other has not

    other_numbers: bool
    other_values: bool  # of something that both count they have no number in common
    other_entities: bool
    same_entities: bool  # they have an entity in common, and not each another one
    other_codes: bool
    moved: bool  # the new one names a number of the older one, and another one

    other_sense: bool  # one of them denies
    denied: bool  # and what it denies the other one says
    opposite: bool
    ends: bool  # the new one tells that something holds no more; `changes` where it only may
    changes: bool
    adds: bool  # one of them, not both, only adds to something

    @classmethod
    def of(cls, new: Meant, old: Meant, *, matter: float, cosine: float, types: Collection[MemoryType]) -> Compared:
        """Compare what two memories say."""
        said, before = new.said, old.said
        left, left_of_old = new.left(old), old.left(new)
        shares = [1 - len(some) / max(len(of.told), 1) for some, of in ((left, new), (left_of_old, old))]
        numbers, older = all_of(said.values), all_of(before.values)
        both = [(said.values[unit], before.values[unit]) for unit in said.values.keys() & before.values.keys()]
        other_entities = differ(said.entities, before.entities)
        frame, swapped = _frame(said.order, before.order, left, left_of_old)
        return cls(
            matter=matter,
            cosine=cosine,
            insights=types == {MemoryType.INSIGHT},
            one_choice=types == {MemoryType.DECISION} and new.topic == old.topic,
            common=len(new.told) - len(left),
            share=max(shares),
            share_of_old=shares[1],
            left=bool(left or left_of_old),
            left_on_both=bool(left and left_of_old),
            frame=frame,
            swapped=swapped,
            same_words=said.words == before.words,
            other_numbers=differ(numbers, older),
            other_values=any(not some & others for some, others in both),
            other_entities=other_entities,
            same_entities=bool(said.entities & before.entities) and not other_entities,
            other_codes=differ(said.codes, before.codes),
            moved=bool(older & said.all_numbers and numbers - older),
            other_sense=said.denies != before.denies,
            denied=said.denies != before.denies and bool(new.denied & before.words or old.denied & said.words),
            opposite=new.opposes(old),
            ends=bool(new.ending - old.ending),
            changes=bool(new.changing - old.changing),
            adds=new.adds != old.adds,
        )


def _frame(
    new: Sequence[str], old: Sequence[str], left: frozenset[str], left_of_old: frozenset[str]
) -> tuple[float, bool]:
    """Return how much of two texts is a frame in which other words stand, 0 to 1, and whether these only changed."""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    places = [place for place in matcher.get_opcodes() if place[0] == "replace"]
    if not places:
        return 0.0, False
    frame = matcher.ratio()
    swapped = any(
        max(end - start, new_end - new_start) <= _PLACE
        and not (left_of_old.isdisjoint(old[start:end]) or left.isdisjoint(new[new_start:new_end]))
        for _, start, end, new_start, new_end in places
    )
    return frame, swapped and frame >= _FRAME


def judged(compared: Compared) -> Mapping[str, float]:
    """Return how probable it is that a memory says the same as an older one, contradicts or replaces it."""
    if compared.other_entities:
        return {}
    of_one_matter = compared.matter >= _ONE_MATTER or compared.cosine >= _ALIKE
    if of_one_matter and _replaces(compared):
        return {REPLACES: _REPLACED}
    if (of_one_matter and not compared.adds and _contradicts(compared)) or (
        compared.other_sense and compared.same_words
    ):
        return {CONTRADICTS: _CONTRADICTED}
    differs = compared.other_numbers or compared.other_codes or compared.opposite or compared.adds
    if differs or compared.ends or compared.changes or (compared.swapped and compared.frame >= _ONE_FRAME):
        return {}
    cosine, frame, insights, bias = _SAME
    odds = cosine * compared.cosine + frame * compared.frame + insights * compared.insights + bias
    return {COPIES: 0.5 + 0.5 * math.tanh(0.5 * odds)}


def _replaces(compared: Compared) -> bool:
    """Tell whether of two memories of one matter the new one says that the older one holds no more."""
    much = compared.share_of_old >= _MUCH and (compared.common >= _COMMON or compared.same_entities)
    if compared.ends:
        return compared.moved or much
    other = (compared.other_values or compared.denied) and not compared.swapped and compared.share_of_old >= _MUCH
    return compared.changes and (
        compared.moved or (compared.same_entities and much) or (other and compared.common >= _COMMON)
    )


def _contradicts(compared: Compared) -> bool:
    """Tell whether of two memories of one matter only one can hold."""
    much = compared.common >= _COMMON and compared.share >= _MUCH
    denied = compared.denied and much and compared.cosine < _TOO_ALIKE
    # Where one denies and other words stand in the same place they are said of two things.
    if denied and not (compared.swapped and compared.left_on_both):
        return True
    # Another value alone says little: most that is measured, planned or numbered is of another day or thing.
    one_thing = compared.same_entities or (compared.one_choice and not compared.left)
    value = compared.other_values and one_thing and compared.share >= _MUCH
    return value or (compared.other_codes and compared.one_choice)


def disagreeing(memories: Iterable[Memory]) -> Iterator[tuple[Memory, Memory]]:
    """Yield those pairs, the newer one first, of one topic of which one contradicts or replaces the other."""
    meant = functools.cache(Meant.by)
    some = [memory for memory in memories if memory.topic and memory.type not in SINGULAR]
    for new, old in combinations(sorted(some, key=lambda memory: (memory.created_at, memory.id), reverse=True), 2):
        if new.topic == old.topic:
            compared = Compared.of(meant(new), meant(old), matter=1.0, cosine=0.0, types={new.type, old.type})
            if not judged(compared).keys().isdisjoint((CONTRADICTS, REPLACES)):
                yield new, old


COPIES: Final = "copy_of"
CONTRADICTS: Final = "may_contradict"
REPLACES: Final = "may_replace"
"""The fields of `Noticed`."""

_SAID: Final[Mapping[str, Verdict]] = {COPIES: "copy", CONTRADICTS: "contradict", REPLACES: "replace"}
"""What a judge says of what is noticed there."""


def noticed(
    reader: Reader, asked: Sequence[Unlinked], found: Mapping[Unlinked, LinkCandidates], calibration: Calibration
) -> list[Noticed]:
    """
    Return what stands on the matter of each of some memories, read all at once.

    Args:
        reader: What is read.
        asked: The memories, saved together; they may be in no row yet.
        found: Their candidates for links; of one that has none only copies word for word are noticed.
        calibration: What the embedder's cosines mean.

    """
    return [
        _noticed_by(one.memory, older, calibration)
        for one, older in zip(asked, _standing(reader, asked, found), strict=True)
    ]


def of_the_matter(reader: Reader, asked: Unlinked, found: Mapping[Unlinked, LinkCandidates]) -> list[Memory]:
    """Return what stands on the matter of a memory, or says the same word for word, newest first."""
    (older,) = _standing(reader, [asked], found)
    memories = [one.memory for one in older if one.one_matter or is_copy(one.memory, asked.memory)]
    return sorted(memories, key=lambda memory: memory.created_at, reverse=True)


def judged_by(noticed: Noticed, verdicts: Mapping[str, Verdict], note: str | None) -> Noticed:
    """Return what was noticed with a judge's words in the place of ours, and a note of why it said nothing."""
    named = {
        kind: (
            *(NoticedMemory(memory_id, 1.0) for memory_id, word in verdicts.items() if word == _SAID[kind]),
            *(one for one in getattr(noticed, kind) if one.id not in verdicts),
        )
        for kind in (COPIES, CONTRADICTS, REPLACES)
    }
    return _as_noticed(named, note)


@attrs.frozen
class _Older:
    """A memory that still holds, and how near it is to another one."""

    memory: Memory
    cosine: float = -1.0
    matter: float = 0.0
    one_matter: bool = False


def _standing(
    reader: Reader, asked: Sequence[Unlinked], found: Mapping[Unlinked, LinkCandidates]
) -> list[list[_Older]]:
    """Return, for each of some memories, what is likeliest to stand on its matter, and still holds."""
    alike = reader.alike([wording(one.memory) for one in asked])
    nodes = [
        one.seen(np.union1d(one.seen(same)[-_NAMED:], _likeliest(found.get(one))))
        for one, same in zip(asked, alike, strict=True)
    ]
    own = {one.node: one.memory for one in asked if one.node is not None}
    others = sorted({node for some in nodes for node in some.tolist()} - own.keys())
    known = own | _readable(reader, others)
    gone = superseded(reader, np.array([*others, *own], np.int64))
    return [
        [
            _older(one.memory, known[node], node, found.get(one))
            for node in some.tolist()
            if node in known and node not in gone and _holds(known[node], one.memory)
        ]
        for one, some in zip(asked, nodes, strict=True)
    ]


def _holds(old: Memory, new: Memory) -> bool:
    """Tell whether what an older memory says may still hold; what was done by then always does."""
    ended = old.valid_until is not None and old.valid_until <= new.created_at
    return not ended and not has_failed(old) and SINGULAR.isdisjoint({old.type, new.type})


def _older(new: Memory, old: Memory, node: int, candidates: LinkCandidates | None) -> _Older:
    at = np.zeros(0, np.int64) if candidates is None else np.flatnonzero(candidates.nodes == node)
    if candidates is None or not len(at):
        return _Older(old)
    row = int(at[0])
    one_topic = old.topic is not None and old.topic == new.topic
    matter = float(probabilities(candidates.features)[row])
    return _Older(old, float(candidates.cosines[row]), matter, one_topic or matter >= _LIKELY)


def _readable(reader: Reader, nodes: Sequence[int]) -> dict[int, Memory]:
    """Return memories by node, none where one of them is damaged: nobody's save shall fail for it."""
    with contextlib.suppress(StoreDamaged):
        return dict(zip(nodes, reader.get(nodes) if nodes else [], strict=True))
    return {}


def _likeliest(candidates: LinkCandidates | None) -> Nodes:
    """Return the candidates that are most probably of one matter."""
    if candidates is None:
        return np.zeros(0, np.int64)
    return candidates.nodes[np.argsort(-probabilities(candidates.features), kind="stable")[:_READ]]


def _noticed_by(new: Memory, older: Sequence[_Older], calibration: Calibration) -> Noticed:
    named: list[tuple[str, float, str, float]] = []
    copies: list[NoticedMemory] = []
    meant: Meant | None = None
    for one in older:
        cosine = calibration.slope * (one.cosine - calibration.midpoint)
        if is_copy(one.memory, new):
            copies.append(NoticedMemory(one.memory.id, 1.0))
        # What is neither of the matter nor alike is not worth taking apart.
        elif one.one_matter or cosine > 0:
            meant = meant or Meant.by(new)
            compared = Compared.of(
                meant, Meant.by(one.memory), matter=one.matter, cosine=cosine, types={new.type, one.memory.type}
            )
            named += [
                (kind, probability, one.memory.id, cosine)
                for kind, probability in judged(compared).items()
                if probability >= _SURE
            ]
    least = max((cosine for *_, cosine in named), default=0.0) - _BEHIND
    found = {COPIES: copies}
    for kind, probability, memory_id, cosine in named:
        if cosine >= least:
            found.setdefault(kind, []).append(NoticedMemory(memory_id, probability))
    return _as_noticed(
        {kind: tuple(sorted(some, key=lambda one: -one.probability)[:_NAMED]) for kind, some in found.items()}
    )


def _as_noticed(named: Mapping[str, tuple[NoticedMemory, ...]], note: str | None = None) -> Noticed:
    copies, contradicted, replaced = (named.get(kind, ()) for kind in (COPIES, CONTRADICTS, REPLACES))
    return Noticed(copy_of=copies, may_contradict=contradicted, may_replace=replaced, note=note)
