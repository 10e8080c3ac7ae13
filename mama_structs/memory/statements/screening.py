"""
Bounds from the words of two texts that exclude most pairs from the comparison of statements.

A comparison parses both texts, which takes ten times as long. The bounds never exclude a pair that `compare_parsed`
relates.
"""

from __future__ import annotations

from typing import Final

import attrs

from mama_structs._internal.caches import cache_by_text
from mama_structs.memory.statements.comparison import (
    MAX_ADDED_RATIO,
    MAX_SLOT_WORDS,
    MIN_CONTAINED_RATIO,
    MIN_SHARED_RATIO,
    MIN_SHARED_WORDS,
)
from mama_structs.memory.statements.lexicons import UNSPACED_LANGUAGES, Lexicon, load_lexicon
from mama_structs.memory.statements.parser import (
    MAX_COMPARED_CHARS,
    common_language,
    detect_known_language,
    find_entity_labels,
    find_polarities,
    is_content_word,
    is_negating,
    make_key,
    may_be_label,
    may_be_value,
    normalize_text,
    split_sentences,
    split_words,
)

_MAX_CACHED_TEXTS: Final = 4_096
_MAX_CACHED_TOKENS: Final = 16_384

Keys = frozenset[str]
_NO_KEYS: Final[Keys] = frozenset()


@attrs.frozen(eq=False)
class _Outline:
    """Keys of the words of a sentence, of a whole text, or of a token between spaces."""

    text: str
    possible: Keys
    """A superset of the keys that the parsed sentence has as content or labels."""
    certain: Keys
    """A subset of the content that has no antonym, group or unit, so that only an equal word can match it."""
    plain: Keys
    """A subset of *certain* that cannot be part of a proper name."""
    may_have_values: bool
    """False if the parsed sentence has no number, date, weekday or month."""
    has_negation: bool

    def max_share(self, other: _Outline) -> float:
        """Return an upper bound of the ratio of this sentence's words that the other one contains."""
        return 1 - len(self.certain - other.possible) / max(len(self.possible), 1)


@attrs.frozen(eq=False)
class _TextOutline:
    sentences: tuple[_Outline, ...]
    possible: Keys
    """The keys of all sentences."""
    certain: Keys


def may_be_related(newer: str, older: str) -> bool:
    """Return False if the words of two texts exclude every relation, also that of near copies."""
    newer, older = newer[:MAX_COMPARED_CHARS], older[:MAX_COMPARED_CHARS]
    lexicon = _common_lexicon(newer, older)
    if lexicon is None or lexicon.language in UNSPACED_LANGUAGES:
        return lexicon is not None
    new, old = _outline_text(newer, lexicon), _outline_text(older, lexicon)
    least = 1 if len(new.sentences) == len(old.sentences) == 1 else MIN_SHARED_WORDS
    common = new.possible & old.possible
    old_sentences = [one for one in old.sentences if len(common & one.possible) >= least]
    for one in new.sentences if old_sentences else ():
        own = common & one.possible
        for other in old_sentences if len(own) >= least else ():
            shared = len(own & other.possible)
            if shared >= least and _may_relate(one, other, shared, lexicon):
                return True
    # Sentences in another order can be near copies.
    return least > 1 and new.certain <= common and old.certain <= common


def may_disagree(newer: str, older: str) -> bool:
    """
    Return False if two texts on the same subject have no `TextFeatures` of a contradiction or replacement.

    Codes are not considered, which count only if both texts are decisions on the same topic.
    """
    newer, older = newer[:MAX_COMPARED_CHARS], older[:MAX_COMPARED_CHARS]
    lexicon = _common_lexicon(newer, older)
    if lexicon is None or lexicon.language in UNSPACED_LANGUAGES:
        return lexicon is not None
    new, old = _outline_whole(newer, lexicon), _outline_whole(older, lexicon)
    share_of_old = old.max_share(new)
    has_values = new.may_have_values and old.may_have_values
    if (has_values or share_of_old >= MIN_SHARED_RATIO) and _has_cue(new.text, lexicon):
        return True
    if max(share_of_old, new.max_share(old)) < MIN_SHARED_RATIO:
        return False
    # Other values count only for a common entity, and the sides of antonyms only together with a negation.
    return (
        new.has_negation
        or old.has_negation
        or any(key[0].isdigit() and "-" in key for key in new.possible & old.possible)
    )


def _common_lexicon(newer: str, older: str) -> Lexicon | None:
    """Return the word lists of the language in which two texts are compared, or None if there are none."""
    language = common_language(detect_known_language(newer), detect_known_language(older))
    return None if language is None else load_lexicon(language)


def _may_relate(new: _Outline, old: _Outline, shared: int, lexicon: Lexicon) -> bool:
    """Return False if two sentences have no relation. *shared* is the maximum number of shared content words."""
    left, left_of_old = len(new.certain - old.possible), len(old.certain - new.possible)
    if max(left, left_of_old) <= MAX_SLOT_WORDS:
        return True
    most = max(len(new.certain), len(old.certain))
    if min(left, left_of_old) == 0 and shared >= max(MIN_SHARED_WORDS, MIN_CONTAINED_RATIO * most):
        return True
    if left > MAX_ADDED_RATIO * shared:
        return False
    missing = len(old.plain - new.possible)
    is_mostly_shared = shared >= missing if shared >= MIN_SHARED_WORDS else missing <= 1
    return is_mostly_shared and _has_cue(new.text, lexicon)


@cache_by_text(_MAX_CACHED_TEXTS)
def _has_cue(text: str, lexicon: Lexicon) -> bool:
    lower = text.lower()
    return lexicon.end_pattern.search(lower) is not None or lexicon.change_pattern.search(lower) is not None


@cache_by_text(_MAX_CACHED_TEXTS)
def _outline_text(text: str, lexicon: Lexicon) -> _TextOutline:
    sentences = tuple(_outline_sentence(sentence, lexicon) for sentence in split_sentences(normalize_text(text)))
    possible, certain = (
        _NO_KEYS.union(*some) for some in zip(*((one.possible, one.certain) for one in sentences), strict=True)
    )
    return _TextOutline(sentences, possible, certain)


@cache_by_text(_MAX_CACHED_TEXTS)
def _outline_whole(text: str, lexicon: Lexicon) -> _Outline:
    return _outline_sentence(normalize_text(text), lexicon)


def _outline_sentence(text: str, lexicon: Lexicon) -> _Outline:
    tokens = [_outline_token(token, lexicon) for token in set(lexicon.replace_phrases(text).split())]
    possible = _NO_KEYS.union(*[one.possible for one in tokens])
    # A key that is uncertain in one place is uncertain everywhere.
    certain = possible - _NO_KEYS.union(*[one.uncertain for one in tokens])
    return _Outline(
        text,
        possible,
        certain,
        certain - _NO_KEYS.union(*[one.named for one in tokens]),
        may_have_values=any(one.may_be_value for one in tokens),
        has_negation=any(one.is_negation for one in tokens),
    )


@attrs.frozen(eq=False)
class _TokenOutline:
    """Keys of the words of a token between spaces."""

    possible: Keys
    uncertain: Keys
    """The keys that are no content, or may match other words."""
    named: Keys
    """The other keys that can be part of a proper name."""
    may_be_value: bool
    is_negation: bool


@cache_by_text(_MAX_CACHED_TOKENS)
def _outline_token(token: str, lexicon: Lexicon) -> _TokenOutline:
    possible: set[str] = set()
    uncertain: set[str] = set()
    named: set[str] = set()
    is_value = is_negation = False
    for word in split_words(token, lexicon)[0]:
        stem = lexicon.stem(word.form)
        key = make_key(stem)
        polarities = find_polarities(word.form, stem, lexicon)
        # An id, a name with digits or a single letter is compared as a label, also if it is no content.
        labels = {*find_entity_labels(word.form), *([word.form] if may_be_label(word.form) else ())}
        possible |= labels
        uncertain |= labels
        may_be_number = may_be_value(word.form, lexicon)
        is_value = is_value or may_be_number
        is_negation = is_negation or is_negating(word.form, lexicon)
        if not is_content_word(word.form, stem, polarities, lexicon):
            continue
        possible.add(key)
        if may_be_number or polarities or key in lexicon.groups or lexicon.find_unit(word.form)[0] is not None:
            uncertain.add(key)
        elif word.written != word.form or not word.form.isalpha():
            named.add(key)
    return _TokenOutline(frozenset(possible), frozenset(uncertain), frozenset(named - uncertain), is_value, is_negation)
