"""
Comparison of two statements (DESIGN 7.9): copy, contradiction, replacement, or another value of one subject.

A conflict needs the same subject and different statements about it. Similar texts are often on different subjects, so
unshared words and values are stronger evidence than shared ones.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Final

import attrs

from mama_structs.memory.statements.lexicons import UNSPACED_LANGUAGES
from mama_structs.memory.statements.parser import (
    MAX_COMPARED_CHARS,
    PARTICLE_LANGUAGES,
    ParsedStatement,
    ParsedText,
    common_language,
    make_key,
    parse_text,
)
from mama_structs.memory.types.duplicates import normalize_wording

# Relative difference up to which quantities in different units can be one, such as 1024 MB and 1 GB.
_UNIT_TOLERANCE: Final = 0.05
MAX_SLOT_WORDS: Final = 3
_MAX_SWAPPED_WORDS: Final = 4
# Minimum number of shared content words, unless at most one word of the older statement is missing.
MIN_SHARED_WORDS: Final = 2
MIN_SHARED_RATIO: Final = 0.5
# Maximum ratio of added words to shared words in a statement of a change.
MAX_ADDED_RATIO: Final = 3
# A longer statement may add words of time and manner to a contradicted one.
MIN_CONTAINED_RATIO: Final = 0.6
# Minimum template ratio at which different words in a slot count as a slot substitution.
_MIN_TEMPLATE_RATIO: Final = 0.45
# Minimum template ratio at which a slot substitution rules out a duplicate.
_MIN_SAME_TEMPLATE_RATIO: Final = 0.65
# Minimum ratio of shared words at which another polarity or quantifier rules out a duplicate.
_MIN_OPPOSED_SHARE: Final = 0.65
# Two words with exchanged endings have four forms.
_MIN_CHANGED_FORMS: Final = 4
_KOREAN_COPULAS: Final = ("이다", "입니다", "이에요")
_DATE_UNITS: Final = frozenset({"day", "month", "weekday"})
_OPPOSITE_PROBABILITY: Final = 0.9
_VALUE_PROBABILITY: Final = 0.8
_CHANGE_PROBABILITY: Final = 0.85
_NEAR_COPY_PROBABILITY: Final = 0.9

Phrase = tuple[str, ...]


class StatementRelation(enum.Enum):
    """Relation of a newer text to an older one."""

    NONE = "none"
    COPY = "copy"
    NEAR_COPY = "near_copy"
    CONTRADICTS = "contradicts"
    REPLACES = "replaces"


@attrs.frozen
class Comparison:
    """Relation of a newer text to an older one, with the probability that it is right."""

    relation: StatementRelation
    probability: float


# Signs that change the meaning of a text: operators, arrows, currencies and emoji, and the sign of a number.
_SIGN_PATTERN: Final = re.compile(
    r"[-\u2212]+(?=[\d\w])(?<![\w][-\u2212])|!(?=\w|=)"
    r"|[^\w\s.,;:!?'\"()\u2026\u2018-\u201d\u3001\u3002\uff01\uff0c\uff1f\u2010-\u2015-]"
)
_OPERATOR_PATTERN: Final = re.compile(r"[<>=\u2264\u2265\u2260$\u00a3\u00a5\u20ac]|(?<!\w)[-\u2212](?=\d)|\w\+\+|\w#")
NO_RELATION: Final = Comparison(StatementRelation.NONE, 1.0)
_COPY: Final = Comparison(StatementRelation.COPY, 1.0)
_NEAR_COPY: Final = Comparison(StatementRelation.NEAR_COPY, _NEAR_COPY_PROBABILITY)
_REPLACES: Final = Comparison(StatementRelation.REPLACES, _CHANGE_PROBABILITY)
_OPPOSES: Final = Comparison(StatementRelation.CONTRADICTS, _OPPOSITE_PROBABILITY)
_OTHER_VALUE: Final = Comparison(StatementRelation.CONTRADICTS, _VALUE_PROBABILITY)


def compare(newer: str, older: str) -> Comparison:
    """
    Return the relation of a newer text to an older one.

    At most the first 2,000 characters are compared, sentence by sentence. Copies are equal except for the differences
    that DESIGN 7.9 ignores. In a language without word lists, only equality is a copy and no conflict is found.

    Args:
        newer: The text that was written later.
        older: The text that was written earlier.

    """
    if is_copy(newer, older):
        return _COPY
    new, old = parse_pair(newer, older)
    return compare_parsed(new, old)


def same_subject_other_value(newer: str, older: str) -> bool:
    """
    Return True if the newer text says something else about the same subject, so that it outdates the older one.

    Examples are "X is A" and "X is B", or "X runs on port 1" and "We moved X to port 2".
    """
    new, old = parse_pair(newer, older)
    return compare_parsed(new, old).relation in {StatementRelation.CONTRADICTS, StatementRelation.REPLACES}


def can_fold(one: str, other: str) -> bool:
    """
    Return True if two texts may be one search result.

    They have equal content words, and no difference in order, roles, polarity, quantifiers, numbers or names.
    """
    if is_copy(one, other):
        return True
    if max(len(one), len(other)) > MAX_COMPARED_CHARS or _SIGN_PATTERN.findall(one) != _SIGN_PATTERN.findall(other):
        return False
    first, second = parse_pair(one, other)
    return _can_fold(first.whole, second.whole)


def has_other_operators(one: str, other: str) -> bool:
    """Return True if two texts have different comparison operators, currencies, or signs of numbers."""
    first, second = _OPERATOR_PATTERN.findall(one), _OPERATOR_PATTERN.findall(other)
    # One text may spell out what the other one writes as a sign.
    return bool(first and second) and first != second


def is_copy(one: str, other: str) -> bool:
    """Return True if two texts are equal after the normalization of DESIGN 7.9."""
    if max(len(one), len(other)) > MAX_COMPARED_CHARS:
        return normalize_wording(one) == normalize_wording(other)
    return parse_text(one).normal == parse_text(other).normal


def parse_pair(one: str, other: str) -> tuple[ParsedText, ParsedText]:
    """Parse two texts. A text without evidence of its language is parsed in the language of the other one."""
    first, second = parse_text(one), parse_text(other)
    language = common_language(first.language, second.language)
    if language is not None and first.language != second.language:
        # The language of one text is known, and parsing it again reads the cache.
        first, second = parse_text(one, language), parse_text(other, language)
    return first, second


def compare_parsed(new: ParsedText, old: ParsedText) -> Comparison:
    """Return the relation of two parsed texts that are not copies."""
    if new.whole is None or old.whole is None or new.language != old.language:
        return NO_RELATION
    if new.whole.content.isdisjoint(old.whole.content):
        return NO_RELATION
    if len(new.statements) == len(old.statements) == 1:
        return _compare_statements(new.whole, old.whole)
    for one in new.statements:
        for other in old.statements:
            # A sentence of a longer text needs more evidence, because its subject may be in another sentence.
            if len(one.content & other.content) >= MIN_SHARED_WORDS:
                found = _compare_statements(one, other)
                if found.relation in {StatementRelation.CONTRADICTS, StatementRelation.REPLACES}:
                    return found
    return _NEAR_COPY if _can_fold(new.whole, old.whole) else NO_RELATION


@attrs.frozen(eq=False)
class Difference:
    """Words and values in which two statements differ."""

    shared: frozenset[str]
    left: frozenset[str]
    """Keys of the newer statement that the older one lacks, also as antonym or synonym; *left_of_old* conversely."""
    left_of_old: frozenset[str]
    flips: int
    """Number of words whose antonym the other statement contains."""
    is_opposed: bool
    """True if exactly one statement is affirmative, counting negations and antonyms."""
    group_differs: bool
    """True if the statements contain different words of a group of mutually exclusive words."""
    other_units: frozenset[str]
    """Units, or dimensions of different units, of which both statements have values, but no common one."""

    @classmethod
    def between(cls, new: ParsedStatement, old: ParsedStatement) -> Difference:
        """Compare the words and values of two statements."""
        shared = new.content & old.content
        left, left_of_old = new.content - shared, old.content - shared
        flips, flipped = 0, frozenset[int]()
        group_differs = False
        if new.polarities and old.polarities:
            more, less = new.polarities - old.polarities, old.polarities - new.polarities
            flipped = frozenset(pair for pair, side in more if (pair, 1 - side) in less)
            if flipped:
                opposed = [_keys_of(flipped, one) for one in (new, old)]
                flips = min(map(len, opposed))
                left, left_of_old = left - opposed[0], left_of_old - opposed[1]
            if left and left_of_old:
                same = {
                    (key, other)
                    for key in left & new.polarity_keys.keys()
                    for other in left_of_old & old.polarity_keys.keys()
                    if not set(new.polarity_keys[key]).isdisjoint(old.polarity_keys[other])
                }
                left, left_of_old = left - {key for key, _ in same}, left_of_old - {key for _, key in same}
        if left and left_of_old:
            groups = new.lexicon.groups
            # Few words belong to a group, so select them before pairing.
            pairs = {
                (key, other)
                for key in groups.keys() & left
                for other in groups.keys() & left_of_old
                if groups[key] == groups[other]
                # Other units are compared with their numbers.
                and not (key in new.unit_keys and other in old.unit_keys)
            }
            if pairs:
                group_differs = True
                left, left_of_old = left - {key for key, _ in pairs}, left_of_old - {key for _, key in pairs}
        if new.measures and old.measures:
            # A unit is part of a value, so another unit of the same dimension is no other word.
            left = _without_units(left, new, old)
            left_of_old = _without_units(left_of_old, old, new)
        negations = sum(
            all(pair not in flipped for pair, _ in polarities) for one in (new, old) for polarities in one.negations
        )
        return cls(
            shared=(shared - new.lexicon.generic) | (new.labels & old.labels),
            left=left,
            left_of_old=left_of_old,
            flips=flips,
            is_opposed=(negations + flips) % 2 == 1,
            group_differs=group_differs,
            other_units=_find_other_units(new, old),
        )


def _without_units(left: frozenset[str], own: ParsedStatement, other: ParsedStatement) -> frozenset[str]:
    """Return the keys without units of measurement for which the *other* statement has another unit."""
    dimensions = {*other.measures, *other.unit_keys.values()}
    return left - {key for key, dimension in own.unit_keys.items() if dimension in dimensions}


def _find_other_units(new: ParsedStatement, old: ParsedStatement) -> frozenset[str]:
    units = {unit for unit in new.values.keys() & old.values.keys() if new.values[unit].isdisjoint(old.values[unit])}
    for dimension in new.measures.keys() & old.measures.keys():
        (names, values), (names_of_old, values_of_old) = (
            tuple(map(set, zip(*one.measures[dimension], strict=True))) for one in (new, old)
        )
        if names.isdisjoint(names_of_old) and not any(
            _are_almost_equal(one, other) for one in values for other in values_of_old
        ):
            units.add(dimension)
    return frozenset(units)


def _are_almost_equal(one: str, other: str) -> bool:
    """Return True for two converted quantities that can be one, such as 30 days and 1 month."""
    try:
        return math.isclose(float(one), float(other), rel_tol=_UNIT_TOLERANCE)
    except ValueError:
        return one == other


def _keys_of(pairs: frozenset[int], statement: ParsedStatement) -> frozenset[str]:
    return frozenset(key for key, own in statement.polarity_keys.items() if any(pair in pairs for pair, _ in own))


def _compare_statements(new: ParsedStatement, old: ParsedStatement) -> Comparison:
    labels, labels_of_old = new.labels - old.labels, old.labels - new.labels
    found = Difference.between(new, old)
    if not found.shared or (labels and labels_of_old and _have_other_subjects(new, old)):
        return NO_RELATION
    has_end, has_change = bool(new.ends - old.ends), bool(new.changes - old.changes)
    conflict = _find_conflict(new, old, found)
    if conflict is not None and conflict.relation is StatementRelation.CONTRADICTS and (has_end or has_change):
        return _REPLACES
    if conflict is not None:
        return conflict
    is_replaced = has_end or (has_change and _has_moved_value(new, old, found))
    if is_replaced and not (labels and labels_of_old) and _is_mostly_shared(old, found):
        return _REPLACES
    return NO_RELATION


def _has_moved_value(new: ParsedStatement, old: ParsedStatement, found: Difference) -> bool:
    """Return True if a statement with a weak cue of a change has another value of the same subject."""
    units = found.other_units
    enough = len(found.shared) >= MIN_SHARED_WORDS and len(found.left) <= len(found.shared)
    return enough and bool(units) and not units & _DATE_UNITS and not _have_other_subjects(new, old)


def _find_conflict(new: ParsedStatement, old: ParsedStatement, found: Difference) -> Comparison | None:
    """Return the conflict of two statements, a near copy, or None."""
    if not found.left and not found.left_of_old:
        return _compare_same_words(new, old, found)
    contained = not (found.left and found.left_of_old)
    enough = (
        contained
        and len(found.shared) >= MIN_SHARED_WORDS
        and len(found.shared) >= MIN_CONTAINED_RATIO * max(len(new.content), len(old.content))
    )
    if enough and found.is_opposed and not found.other_units and not found.group_differs:
        return None if _are_both_partial(new, old) else _OPPOSES
    if new.adds != old.adds or found.is_opposed:
        return None
    if enough and _has_other_value(new, old, found):
        return _OTHER_VALUE
    if not contained and not found.other_units and not found.flips and _differ_in_value_slot(new, old, found):
        return _OTHER_VALUE
    return None


def _compare_same_words(new: ParsedStatement, old: ParsedStatement, found: Difference) -> Comparison | None:
    """Compare statements with equal content words, except for antonyms and mutually exclusive words."""
    if found.is_opposed:
        if found.other_units or found.group_differs or new.labels != old.labels or _are_both_partial(new, old):
            return None
        return _OPPOSES
    if new.adds == old.adds and _has_other_value(new, old, found):
        return _OTHER_VALUE
    if found.other_units or found.group_differs or new.values != old.values or new.labels != old.labels:
        return None
    if has_swapped_roles(new, old):
        return _OPPOSES
    return _NEAR_COPY if _can_fold(new, old) else None


def _are_both_partial(new: ParsedStatement, old: ParsedStatement) -> bool:
    """Return True if "some" in both statements makes their opposites compatible."""
    return "some" in new.quantifiers and "some" in old.quantifiers


def _has_other_value(new: ParsedStatement, old: ParsedStatement, found: Difference) -> bool:
    """Return True if one value of the same subject differs."""
    if _have_other_subjects(new, old):
        return False
    # Without a known verb, the value may belong to the subject.
    if new.lexicon.language in PARTICLE_LANGUAGES:
        if not new.subject or not old.subject:
            return False
    elif new.verb_at < 0 or old.verb_at < 0:
        return False
    units = found.other_units
    is_count = new.verb in new.lexicon.counting and all(units)
    if new.verb in new.lexicon.multi_valued and not is_count:
        return False
    if found.group_differs:
        return not units and bool(new.subject)
    # Values of another date belong to another event.
    dated = units & _DATE_UNITS
    return bool(units) and (units == dated or not dated) and new.labels == old.labels


def _have_other_subjects(new: ParsedStatement, old: ParsedStatement) -> bool:
    """Return True if each statement has a word before the verb that the other one lacks anywhere."""
    if not new.subject or not old.subject:
        return False
    return bool(_unknown_in(new, old) and _unknown_in(old, new))


def _unknown_in(one: ParsedStatement, other: ParsedStatement) -> bool:
    return any(key not in other.subject and key not in other.content for key in one.subject)


def _is_mostly_shared(old: ParsedStatement, found: Difference) -> bool:
    """Return True if a statement of a change contains enough of the older statement."""
    names = found.left_of_old & old.names
    # The words of a proper name count as one word.
    missing = len(found.left_of_old - names) + bool(names)
    shared = len(found.shared)
    if len(found.left) > MAX_ADDED_RATIO * shared:
        return False
    if shared >= MIN_SHARED_WORDS:
        return shared >= MIN_SHARED_RATIO * (shared + missing)
    return missing <= 1


def _differ_in_value_slot(new: ParsedStatement, old: ParsedStatement, found: Difference) -> bool:
    """Return True if the statements have the same subject and verb, and another value after a single-valued verb."""
    if max(len(found.left), len(found.left_of_old)) > MAX_SLOT_WORDS:
        return False
    are_names = found.left <= new.names and found.left_of_old <= old.names
    # In a request such as "use X as Y", the role is the subject.
    if new.forms[0] == old.forms[0] and _get_role_slot(new) == found.left and _get_role_slot(old) == found.left_of_old:
        return are_names or "for" not in new.forms
    if not new.subject or new.subject != old.subject:
        return False
    if new.lexicon.language in PARTICLE_LANGUAGES:
        differ = _differ_in_korean_slot if new.lexicon.language == "ko" else _differ_in_japanese_slot
        return differ(new, old, found)
    starts = [min(one.key_at[key] for key in left) for one, left in ((new, found.left), (old, found.left_of_old))]
    if not _have_same_single_valued_verb(new, old) or starts[0] < new.verb_at or starts[1] < old.verb_at:
        return False
    before, before_old = new.forms[starts[0] - 1], old.forms[starts[1] - 1]
    places, determiners = new.lexicon.places, new.lexicon.determiners
    return (before in places and before_old in places) or (
        before == before_old and (are_names or before in determiners)
    )


def _have_same_single_valued_verb(new: ParsedStatement, old: ParsedStatement) -> bool:
    is_single_valued = not new.verb or new.verb in new.lexicon.single_valued
    return new.verb_at >= 0 and old.verb_at >= 0 and new.verb == old.verb and is_single_valued


def _get_role_slot(statement: ParsedStatement) -> frozenset[str]:
    """Return the keys between the first word and a role marker, as in "use X as Y"."""
    end = next((at for at, form in enumerate(statement.forms) if form in statement.lexicon.role_markers), 0)
    return frozenset(key for key, at in statement.key_at.items() if 0 < at < end)


def _differ_in_korean_slot(new: ParsedStatement, old: ParsedStatement, found: Difference) -> bool:
    for one, left in ((new, found.left), (old, found.left_of_old)):
        if any(one.roles.get(key, "") in {"object", "agent"} for key in left):
            return False
    if all(one.forms[-1].endswith(_KOREAN_COPULAS) for one in (new, old)):
        return True
    return new.forms[-1] == old.forms[-1] and new.forms[-1].startswith(tuple(new.lexicon.single_valued))


def _differ_in_japanese_slot(new: ParsedStatement, old: ParsedStatement, found: Difference) -> bool:
    """Return True for "X is NAME" and "X is at PLACE" with another name or place."""
    lexicon, end = new.lexicon, new.forms[-1]
    if end != old.forms[-1]:
        return False
    if end in lexicon.copulas:
        return found.left <= new.names and found.left_of_old <= old.names
    roles = {one.roles.get(key) for one, left in ((new, found.left), (old, found.left_of_old)) for key in left}
    is_located = new.verb == old.verb and new.verb in lexicon.single_valued
    return roles == {"to"} and (is_located or end.removeprefix("に").startswith(tuple(lexicon.single_valued)))


def has_swapped_roles(new: ParsedStatement, old: ParsedStatement) -> bool:
    """Return True if two words or phrases have exchanged their places, so that "A owes B" became "B owes A"."""
    if new.roles or old.roles:
        changed = [key for key, role in new.roles.items() if old.roles.get(key, role) != role]
        return any(
            new.roles[one] == old.roles[other] and new.roles[other] == old.roles[one]
            for one in changed
            for other in changed
            if one != other
        )
    if new.lexicon.language == "ru" and sorted(new.forms) != sorted(old.forms):
        # The order of words is free, so other endings of two words are evidence.
        return new.stems != old.stems and len({*new.forms} ^ {*old.forms}) >= _MIN_CHANGED_FORMS
    if _has_passive_agent(new) != _has_passive_agent(old):
        return new.stems[:1] == old.stems[:1] and new.stems[-1:] == old.stems[-1:]
    return any(_is_asymmetric(*swap, new, old) for swap in _find_swaps(new.forms, old.forms))


def _has_passive_agent(statement: ParsedStatement) -> bool:
    return statement.lexicon.language == "en" and "by" in statement.forms and not statement.verb


def _find_swaps(new: Phrase, old: Phrase) -> Iterator[tuple[Phrase, Phrase, Phrase]]:
    """Yield the phrases X, M and Y for which the older text has X M Y where the newer one has Y M X."""
    if len(new) != len(old) or new == old:
        return
    start = next(at for at, (one, other) in enumerate(zip(new, old, strict=True)) if one != other)
    end = len(old) - next(at for at, (one, other) in enumerate(zip(new[::-1], old[::-1], strict=True)) if one != other)
    first, second = old[start:end], new[start:end]
    for size in range(1, min(_MAX_SWAPPED_WORDS, len(first)) + 1):
        for other in range(1, min(_MAX_SWAPPED_WORDS, len(first) - size - 1) + 1):
            x, middle, y = first[:size], first[size:-other], first[-other:]
            if middle and second == (*y, *middle, *x):
                yield x, middle, y


def _is_asymmetric(x: Phrase, middle: Phrase, y: Phrase, new: ParsedStatement, old: ParsedStatement) -> bool:
    """Return True if exchanging the phrases around *middle* changes the meaning."""
    if all(word in new.lexicon.symmetric for word in middle):
        return False
    if new.lexicon.language == "ru":
        return all(word.isascii() for word in (*x, *y))
    if new.lexicon.language == "de":
        # An adverb can precede the verb, too. Only nouns and names are capitalized.
        return all(make_key(new.lexicon.stem(phrase[-1])) in new.names | old.names for phrase in (x, y))
    return True


def _can_fold(one: ParsedStatement | None, other: ParsedStatement | None) -> bool:
    if one is None or other is None or one.lexicon is not other.lexicon:
        return False
    if one.lexicon.language in UNSPACED_LANGUAGES:
        return False
    return (
        sorted(set(one.stems)) == sorted(set(other.stems))
        and (one.values, one.labels, one.quantifiers, one.polarities, one.adds)
        == (other.values, other.labels, other.quantifiers, other.polarities, other.adds)
        and len(one.negations) % 2 == len(other.negations) % 2
        and bool(one.ends) == bool(other.ends)
        and not has_swapped_roles(one, other)
    )


@attrs.frozen(kw_only=True)
class TextFeatures:
    """Differences of two whole texts, as evidence that they contradict, replace or repeat each other."""

    shared_word_count: int
    share: float  # larger ratio of shared words to all words of a text, 0 to 1
    shared_word_ratio_of_old: float
    has_left: bool  # at least one text contains a word that the other one lacks
    both_have_left: bool
    frame: float  # ratio of the words that belong to a common sentence template, 0 to 1
    has_slot_substitution: bool  # the texts have different words in a slot of the template, so their subjects differ
    differs_in_one_slot: bool  # all words are equal, in the same order, except for some content words in one place

    numbers_differ: bool
    values_differ: bool  # for one unit, both texts have values but no value in common
    entities_differ: bool
    share_entities: bool  # the texts share an entity, and at most one text has further entities
    labels_differ: bool  # ids, names with digits, single letters
    codes_differ: bool
    has_moved: bool  # the new text repeats a number of the old one and adds another

    is_opposed: bool  # exactly one text is affirmative
    is_denied: bool  # the words that one text negates are in the other one
    has_antonyms: bool
    has_end: bool  # strong cue in the new text that something is no longer true; *has_change*: weak cue
    has_change: bool
    adds: bool  # exactly one text contains a cue for an addition
    quantifiers_differ: bool

    @classmethod
    def between(
        cls, new: ParsedStatement, old: ParsedStatement, *, numbers_of_reasoning: frozenset[str]
    ) -> TextFeatures:
        """Compare two texts; *numbers_of_reasoning* are the numbers in the reasoning of the newer one."""
        found = Difference.between(new, old)
        entities = len(new.entities & old.entities)
        shares = [
            1 - len(left) / max(len(one.content - one.lexicon.generic) + entities, 1)
            for left, one in ((found.left, new), (found.left_of_old, old))
        ]
        frame, has_slot_substitution = _compare_templates(new, old, found)
        other_entities = _both_have_unshared(new.entities, old.entities)
        return cls(
            shared_word_count=len(found.shared),
            share=max(shares),
            shared_word_ratio_of_old=shares[1],
            has_left=bool(found.left or found.left_of_old),
            both_have_left=bool(found.left and found.left_of_old),
            frame=frame,
            has_slot_substitution=has_slot_substitution,
            differs_in_one_slot=_differ_in_one_slot(new, old, found),
            numbers_differ=_both_have_unshared(new.numbers, old.numbers),
            values_differ=bool(found.other_units),
            entities_differ=other_entities,
            share_entities=bool(new.entities & old.entities) and not other_entities,
            labels_differ=_both_have_unshared(new.labels, old.labels),
            codes_differ=_both_have_unshared(new.codes, old.codes),
            has_moved=bool(old.numbers & (new.numbers | numbers_of_reasoning) and new.numbers - old.numbers),
            is_opposed=found.is_opposed,
            is_denied=found.is_opposed
            and not (new.denied.isdisjoint(old.content) and old.denied.isdisjoint(new.content)),
            has_antonyms=found.flips > 0,
            has_end=bool(new.ends - old.ends),
            has_change=bool(new.changes - old.changes),
            adds=new.adds != old.adds,
            quantifiers_differ=_both_have_unshared(new.quantifiers, old.quantifiers),
        )

    @property
    def is_replacement(self) -> bool:
        """True if the newer text on the same subject says that the older one is outdated."""
        much = self.shared_word_ratio_of_old >= MIN_SHARED_RATIO and (
            self.shared_word_count >= MIN_SHARED_WORDS or self.share_entities
        )
        if self.has_end:
            return self.has_moved or much
        other = (
            (self.values_differ or self.is_denied)
            and not self.has_slot_substitution
            and self.shared_word_ratio_of_old >= MIN_SHARED_RATIO
        )
        return self.has_change and (
            self.has_moved or (self.share_entities and much) or (other and self.shared_word_count >= MIN_SHARED_WORDS)
        )

    def is_contradiction(self, *, is_same_decision_topic: bool, is_reworded: bool) -> bool:
        """
        Return True if two texts on the same subject cannot both be true.

        A very similar text with a negation usually contains an antonym, too (*is_reworded*), so both say the same.
        """
        if self.adds:
            return False
        much = self.shared_word_count >= MIN_SHARED_WORDS and self.share >= MIN_SHARED_RATIO
        # If both texts also differ in a slot, the negated statement is about another subject.
        if self.is_denied and not is_reworded and much and not (self.has_slot_substitution and self.both_have_left):
            return True
        # Different values alone are weak evidence, because they often belong to another day or thing.
        one_thing = self.share_entities or (is_same_decision_topic and not self.has_left)
        value = self.values_differ and one_thing and self.share >= MIN_SHARED_RATIO
        return value or (self.codes_differ and is_same_decision_topic)

    @property
    def rules_out_duplicate(self) -> bool:
        """True if the texts differ in a way that reworded duplicates do not."""
        return (
            self.numbers_differ
            or self.values_differ
            or self.labels_differ
            or self.has_antonyms
            or self.adds
            or self.has_end
            or self.has_change
            or (self.share >= _MIN_OPPOSED_SHARE and (self.is_opposed or self.quantifiers_differ))
            or (self.has_slot_substitution and self.frame >= _MIN_SAME_TEMPLATE_RATIO)
            or self.differs_in_one_slot
        )


def _both_have_unshared(first: frozenset[str], second: frozenset[str]) -> bool:
    """Return True if each set has an element that the other lacks."""
    return bool(first - second and second - first)


def _differ_in_one_slot(new: ParsedStatement, old: ParsedStatement, found: Difference) -> bool:
    """Return True if only a slot of at most `MAX_SLOT_WORDS` words with content differs in the texts."""
    if not found.left or not found.left_of_old or len(new.forms) != len(old.forms):
        return False
    places = [at for at, (one, other) in enumerate(zip(new.forms, old.forms, strict=True)) if one != other]
    return 0 < len(places) == places[-1] - places[0] + 1 <= MAX_SLOT_WORDS


def _compare_templates(new: ParsedStatement, old: ParsedStatement, found: Difference) -> tuple[float, bool]:
    """Return the template ratio of two texts, and True if the texts differ in a slot of the template."""
    order, order_of_old = new.keys, old.keys
    matcher = SequenceMatcher(None, order_of_old, order, autojunk=False)
    places = [place for place in matcher.get_opcodes() if place[0] == "replace"]
    if not places:
        return 0.0, False
    frame = matcher.ratio()
    has_slot_substitution = any(
        max(end - start, new_end - new_start) <= MAX_SLOT_WORDS
        and not found.left_of_old.isdisjoint(order_of_old[start:end])
        and not found.left.isdisjoint(order[new_start:new_end])
        for _, start, end, new_start, new_end in places
    )
    return frame, has_slot_substitution and frame >= _MIN_TEMPLATE_RATIO
