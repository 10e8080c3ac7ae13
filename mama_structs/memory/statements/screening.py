"""
Bounds from the words of two texts that exclude most pairs from the comparison of statements.

A comparison parses both texts, which takes ten times as long. The bounds never exclude a pair that `compare_parsed`
relates.
"""

from __future__ import annotations

import functools
from typing import Final

import attrs

from mama_structs.memory.statements.comparison import (
    MAX_ADDED_RATIO,
    MAX_SLOT_WORDS,
    MIN_CONTAINED_RATIO,
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
    make_key,
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
    """Keys of the words of a sentence, or of a token between spaces."""

    text: str
    possible: Keys
    """A superset of the keys that the parsed sentence has as content or labels."""
    certain: Keys
    """A subset of the content that has no antonym, group or unit, so that only an equal word can match it."""
    plain: Keys
    """A subset of *certain* that cannot be part of a proper name."""


def may_be_related(newer: str, older: str) -> bool:
    """Return False if the words of two texts exclude every relation, also that of near copies."""
    newer, older = newer[:MAX_COMPARED_CHARS], older[:MAX_COMPARED_CHARS]
    language = common_language(detect_known_language(newer), detect_known_language(older))
    lexicon = None if language is None else load_lexicon(language)
    if lexicon is None:
        return False
    if lexicon.language in UNSPACED_LANGUAGES:
        return True
    new, old = _outline_text(newer, lexicon), _outline_text(older, lexicon)
    least = 1 if len(new) == len(old) == 1 else MIN_SHARED_WORDS
    for one in new:
        for other in old:
            shared = len(one.possible & other.possible)
            if shared >= least and _may_relate(one, other, shared, lexicon):
                return True
    # Sentences in another order can be near copies.
    return (
        least > 1
        and _union(new, "certain") <= _union(old, "possible")
        and _union(old, "certain") <= _union(new, "possible")
    )


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


def _union(outlines: tuple[_Outline, ...], name: str) -> Keys:
    return _NO_KEYS.union(*(getattr(one, name) for one in outlines))


@functools.lru_cache(_MAX_CACHED_TEXTS)
def _has_cue(text: str, lexicon: Lexicon) -> bool:
    lower = text.lower()
    return lexicon.end_pattern.search(lower) is not None or lexicon.change_pattern.search(lower) is not None


@functools.lru_cache(_MAX_CACHED_TEXTS)
def _outline_text(text: str, lexicon: Lexicon) -> tuple[_Outline, ...]:
    """Return the outline of each sentence."""
    plain = normalize_text(text)
    return tuple(_outline_sentence(sentence, lexicon) for sentence in split_sentences(plain))


def _outline_sentence(text: str, lexicon: Lexicon) -> _Outline:
    tokens = [_outline_token(token, lexicon) for token in lexicon.replace_phrases(text).split()]
    possible = _NO_KEYS.union(*[one.possible for one in tokens])
    # A key that is uncertain in one place is uncertain everywhere.
    certain = possible - _NO_KEYS.union(*[one.possible - one.certain for one in tokens])
    return _Outline(text, possible, certain, certain - _NO_KEYS.union(*[one.certain - one.plain for one in tokens]))


@functools.lru_cache(_MAX_CACHED_TOKENS)
def _outline_token(token: str, lexicon: Lexicon) -> _Outline:
    possible: set[str] = set()
    uncertain: set[str] = set()
    named: set[str] = set()
    for word in split_words(token, lexicon)[0]:
        stem = lexicon.stem(word.form)
        key = make_key(stem)
        polarities = find_polarities(word.form, stem, lexicon)
        possible.update((key, *find_entity_labels(word.form)))
        if (
            polarities
            or not is_content_word(word.form, stem, polarities, lexicon)
            or may_be_value(word.form, lexicon)
            or key in lexicon.groups
            or lexicon.find_unit(word.form)[0] is not None
        ):
            uncertain.add(key)
        elif word.written != word.form or not word.form.isalpha():
            named.add(key)
    certain = possible - uncertain
    return _Outline(token, frozenset(possible), frozenset(certain), frozenset(certain - named))
