"""
Detection of duplicates, contradictions and replacements of a new memory (DESIGN, 6a).

A conflict needs the same subject and different statements about it. Memories on different subjects may look very
similar, so unshared words and values are stronger evidence than shared ones.
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

# On the development set, no relevant memory ranked below the fifth candidate.
_READ: Final = 5
_NAMED: Final = 5
# A judge receives candidates whose probability of the same subject is at least this.
_LIKELY: Final = 0.5
# The thresholds below were chosen on half a of tests/data/month and half a of tests/data/noticing, see
# ``benchmarks/month.py``. A conflict requires either of these two: in a small store, no probability is high.
_ONE_MATTER: Final = 0.85
_ALIKE: Final = 3.2
# Above this similarity, a negation usually expresses the same statement by an antonym.
_TOO_ALIKE: Final = 4.0
# Maximum distance, in calibration steps of the cosine, to the most similar reported memory. Memories further away are
# usually on another subject.
_BEHIND: Final = 0.86
# Minimum number of shared words, and minimum ratio of shared words in either memory.
_COMMON: Final = 2
_MUCH: Final = 0.5
# Maximum number of words in a slot of a sentence template, minimum ratio of the template for substituted slots, and the
# ratio from which substituted slots are the only difference.
_PLACE: Final = 3
_FRAME: Final = 0.45
_ONE_FRAME: Final = 0.65
# Logistic weights of cosine, template ratio and both being insights, and the bias, for the probability that two
# memories without contrary evidence say the same. Fitted with the default embedder, like the reporting threshold below,
# by cross-validation over twelve parts.
_SAME: Final = (2.6, -4.25, 2.8, -11.3)
_SURE: Final = 0.6
# Precision of reported replacements and contradictions.
_REPLACED: Final = 0.85
_CONTRADICTED: Final = 0.8


@attrs.frozen(kw_only=True)
class Compared:
    """Differences between a new memory and an older one, as input of the conflict rules."""

    matter: float  # probability of the same subject, 0 to 1, from automatic linking
    cosine: float  # in calibration steps of the embedder, 0 at even odds of similarity
    insights: bool  # both are insights, which are often found repeatedly, whereas decisions are rather revised
    one_choice: bool  # both are decisions on the same topic

    common: int  # number of words that both contain in some form
    share: float  # larger of the two ratios of shared words, 0 to 1
    share_of_old: float
    left: bool  # at least one has an unshared word; for `left_on_both`, each has
    left_on_both: bool
    frame: float  # ratio of the text that is a common sentence template, 0 to 1
    swapped: bool  # slots of the template contain other words, so the subjects differ
    same_words: bool  # both have the same set of words

    other_numbers: bool
    other_values: bool  # for some unit that both use, they have no number in common
    other_entities: bool
    same_entities: bool  # they share an entity, and at most one of them has further entities
    other_codes: bool
    moved: bool  # the new text repeats a number of the old one and adds another

    other_sense: bool  # exactly one text is negated
    denied: bool  # and the negated words occur in the other one
    opposite: bool
    ends: bool  # the new text says that something is no longer true; `changes` if it only may say so
    changes: bool
    adds: bool  # exactly one text contains a cue for an addition

    @classmethod
    def of(cls, new: Meant, old: Meant, *, matter: float, cosine: float, types: Collection[MemoryType]) -> Compared:
        """Compute the differences between the claims of two memories."""
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
    """Return the ratio of the common sentence template, and whether only its slots differ."""
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
    """
    Return the probability of each conflict type: duplicate, contradiction or replacement.

    Conflicts with the probability 0 are left out.
    """
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
    """Return True if the new memory says that the old one on the same subject is outdated."""
    much = compared.share_of_old >= _MUCH and (compared.common >= _COMMON or compared.same_entities)
    if compared.ends:
        return compared.moved or much
    other = (compared.other_values or compared.denied) and not compared.swapped and compared.share_of_old >= _MUCH
    return compared.changes and (
        compared.moved or (compared.same_entities and much) or (other and compared.common >= _COMMON)
    )


def _contradicts(compared: Compared) -> bool:
    """Return True if two memories on the same subject cannot both be true."""
    much = compared.common >= _COMMON and compared.share >= _MUCH
    denied = compared.denied and much and compared.cosine < _TOO_ALIKE
    # A negation plus a slot substitution are statements about two different subjects.
    if denied and not (compared.swapped and compared.left_on_both):
        return True
    # Another value alone is weak evidence: most measured, planned or numbered values belong to another day or thing.
    one_thing = compared.same_entities or (compared.one_choice and not compared.left)
    value = compared.other_values and one_thing and compared.share >= _MUCH
    return value or (compared.other_codes and compared.one_choice)


def disagreeing(memories: Iterable[Memory]) -> Iterator[tuple[Memory, Memory]]:
    """
    Yield pairs of memories of one topic that contradict or replace each other.

    The newer memory of a pair comes first.
    """
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
"""Field names of `Noticed`."""

_SAID: Final[Mapping[str, Verdict]] = {COPIES: "copy", CONTRADICTS: "contradict", REPLACES: "replace"}
"""Verdict of a judge that corresponds to each field."""


def noticed(
    reader: Reader, asked: Sequence[Unlinked], found: Mapping[Unlinked, LinkCandidates], calibration: Calibration
) -> list[Noticed]:
    """
    Return the conflicts of each memory with older ones, read in one batch.

    Args:
        reader: Store to read.
        asked: Memories that are saved together. They need not be stored yet.
        found: Their link candidates. For a memory without candidates, only exact duplicates are found.
        calibration: Calibration of the embedder.

    """
    return [
        _noticed_by(one.memory, older, calibration)
        for one, older in zip(asked, _standing(reader, asked, found), strict=True)
    ]


def of_the_matter(reader: Reader, asked: Unlinked, found: Mapping[Unlinked, LinkCandidates]) -> list[Memory]:
    """Return the current memories on the same subject, and exact duplicates, newest first."""
    (older,) = _standing(reader, [asked], found)
    memories = [one.memory for one in older if one.one_matter or is_copy(one.memory, asked.memory)]
    return sorted(memories, key=lambda memory: memory.created_at, reverse=True)


def judged_by(noticed: Noticed, verdicts: Mapping[str, Verdict], note: str | None) -> Noticed:
    """
    Return detected conflicts, overridden by a judge's verdicts.

    *note* says why the judge was not consulted.
    """
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
    """A current older memory, and its similarity to a new one."""

    memory: Memory
    cosine: float = -1.0
    matter: float = 0.0
    one_matter: bool = False


def _standing(
    reader: Reader, asked: Sequence[Unlinked], found: Mapping[Unlinked, LinkCandidates]
) -> list[list[_Older]]:
    """Return for each memory the current memories that most probably have the same subject."""
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
    """
    Return True if the older memory may still be true.

    Checkpoints and records describe a past state, so they do not count.
    """
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
    """
    Return memories by node, or nothing if one is damaged.

    A damaged memory must not make the save of another one fail.
    """
    with contextlib.suppress(StoreDamaged):
        return dict(zip(nodes, reader.get(nodes) if nodes else [], strict=True))
    return {}


def _likeliest(candidates: LinkCandidates | None) -> Nodes:
    """Return the candidates with the highest probability of the same subject."""
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
        # Skip the expensive comparison if the memory is neither on the same subject nor similar.
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
