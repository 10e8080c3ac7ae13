"""Mapping of relationship words to link types, by a table or by similarity to examples."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.memory.types.model import LinkType

MIN_EXAMPLE_COSINE: Final = 0.7
"""
Minimum cosine at which a word gets the type of its nearest example (DESIGN section 6).

This is a raw cosine: calibrations are fitted to sentences and rate all single words as similar.
With the default embedder, 0.7 accepts "relies on", "led to" and "enhances", and no unrelated word.
"""

MIN_SYNONYM_COSINE: Final = 0.75
"""Minimum cosine of near-synonyms (DESIGN section 6)."""

MAX_RELATIONSHIP_CHARS: Final = 64
"""Maximum number of characters of a relationship word."""

_EXAMPLES_BY_TYPE: Final[Mapping[LinkType, tuple[str, ...]]] = MappingProxyType(
    {
        LinkType.EVOLUTION: ("supersedes", "replaces", "refines", "improves", "upgrades"),
        LinkType.IMPLEMENTATION: ("implements", "executes", "realizes", "outcome of", "resulted in"),
        LinkType.ASSOCIATION: ("relates to", "inspired by", "motivated by", "challenges", "depends on"),
        LinkType.TEMPORAL: ("follows", "precedes", "during", "concurrent with"),
    }
)

# Synonyms of the examples above, and the usual Korean words.
# Passive words for evolution map to associations, because they would reverse the direction of the link.
_SYNONYMS_BY_TYPE: Final[Mapping[LinkType, str]] = MappingProxyType(
    {
        LinkType.EVOLUTION: (
            "evolution, supersede, replace, refine, refined from, refinement of, improve, improves on, upgrade, "
            "revises, revision of, updates, amends, corrects, evolves, evolves from, evolved from, extends, "
            "deprecates, obsoletes, overrides, reverts, new version of, "
            "대체, 대체한다, 대체함, 개선, 개선한다, 개정, 수정, 발전, 진화, 업그레이드, 보완"
        ),
        LinkType.IMPLEMENTATION: (
            "implementation, implement, implemented by, execute, executed by, realises, realize, carries out, "
            "fulfills, fulfils, completes, delivers, outcome, result of, results in, resulted from, "
            "구현, 구현한다, 실행, 이행, 적용, 결과, 완료, 실현"
        ),
        LinkType.ASSOCIATION: (
            "association, associated with, relates, related to, related, relation, semantic, same topic, similar to, "
            "see also, references, refers to, mentions, cites, based on, builds on, inspires, motivates, "
            "challenged by, debates, contradicts, conflicts with, supports, synthesizes, explains, causes, caused by, "
            "because of, blocks, blocked by, requires, needs, part of, superseded by, replaced by, refined by, "
            "improved by, upgraded by, 관련, 관련됨, 연관, 연관됨, 유사, 참고, 참조, 의존, 영감, 근거, 동기, 모순, "
            "반박, 충돌, 지지, 원인, 대체됨"
        ),
        LinkType.TEMPORAL: (
            "temporal, follow, followed by, precede, preceded by, before, after, while, concurrently, "
            "simultaneous with, at the same time as, same time, close in time, same session, next, previous, "
            "이후, 이전, 다음, 직전, 직후, 동시, 동안, 시간, 시간순"
        ),
    }
)

# Allowed: letters and digits of any script, ``_``, spaces and hyphens. Combining marks are removed before matching.
_ALLOWED_PATTERN: Final = re.compile(r"[\w \-]+")
_GAP_PATTERN: Final = re.compile(r"[\s_\-]+")


def normalize_relationship(word: str) -> str:
    """Return a relationship word normalized for comparison: NFC, case folding, single spaces."""
    return _GAP_PATTERN.sub(" ", unicodedata.normalize("NFC", word)).strip().casefold()


_TYPE_BY_WORD: Final[Mapping[str, LinkType]] = MappingProxyType(
    {
        normalize_relationship(word): link_type
        for link_type, several in _EXAMPLES_BY_TYPE.items()
        for word in (*several, *_SYNONYMS_BY_TYPE[link_type].split(","))
    }
)


def check_relationship(word: object) -> str:
    """Validate a relationship word and return it in NFC without surrounding spaces."""
    rule = (
        f"relationship must be 1 to {MAX_RELATIONSHIP_CHARS} letters, digits, spaces, '_' or '-', "
        "with a letter or digit"
    )
    if not isinstance(word, str):
        raise InvalidArgument(f"{rule}, got {type(word).__name__}")
    # Normalize only the start of a long text, because the whole text remains too long even if normalized.
    kept = unicodedata.normalize("NFC", word[: 4 * MAX_RELATIONSHIP_CHARS + 1]).strip(" ")
    if not 1 <= len(kept) <= MAX_RELATIONSHIP_CHARS or len(word) > 4 * MAX_RELATIONSHIP_CHARS:
        raise InvalidArgument(f"{rule}, got {len(word)} characters")
    if not _is_word(kept):
        raise InvalidArgument(f"{rule}, got {repr_short(kept)}")
    return kept


def _is_word(text: str) -> bool:
    letters = "".join(sign for sign in text if unicodedata.category(sign) not in {"Mn", "Mc"})
    return _ALLOWED_PATTERN.fullmatch(letters) is not None and any(sign.isalnum() for sign in letters)


EXAMPLE_WORDS: Final = tuple(word for several in _EXAMPLES_BY_TYPE.values() for word in several)
"""Example words for `classify_by_example`, in the order in which they must be embedded."""

_EXAMPLE_TYPES: Final = tuple(link_type for link_type, several in _EXAMPLES_BY_TYPE.items() for _ in several)


def look_up_type(word: str) -> LinkType | None:
    """Return the link type of a word in the table, or None for an unknown word."""
    return _TYPE_BY_WORD.get(normalize_relationship(word))


def classify_by_example(word: str, vector: NDArray[np.float32], example_vectors: NDArray[np.float32]) -> LinkType:
    """Return the link type of the most similar example, or an association if none is similar."""
    cosines = np.nan_to_num(np.asarray(example_vectors, np.float64) @ np.asarray(vector, np.float64), nan=0.0)
    best = int(np.argmax(cosines))
    is_passive = _EXAMPLE_TYPES[best] is LinkType.EVOLUTION and normalize_relationship(word).endswith(" by")
    return LinkType.ASSOCIATION if cosines[best] < MIN_EXAMPLE_COSINE or is_passive else _EXAMPLE_TYPES[best]


def find_near_synonyms(words: Sequence[str], vectors: NDArray[np.float32]) -> dict[str, tuple[tuple[str, float], ...]]:
    """Return the near-synonyms of each word with their cosines, most similar first."""
    # Words that differ only in case, separators or Unicode form get the cosine 1, regardless of their vectors.
    forms: dict[str, list[int]] = {}
    for at, word in enumerate(words):
        forms.setdefault(normalize_relationship(word), []).append(at)
    known = np.asarray(vectors, np.float32)
    found = {}
    for at, word in enumerate(words):
        # Compute one row at a time, because the full matrix of some thousand words would need much memory.
        cosines = np.minimum(np.nan_to_num(known @ known[at], nan=-1.0), 1.0)
        cosines[forms[normalize_relationship(word)]] = 1.0
        cosines[at] = -1.0
        alike = [
            (words[other], float(cosines[other])) for other in np.flatnonzero(cosines >= MIN_SYNONYM_COSINE).tolist()
        ]
        found[word] = tuple(sorted(alike, key=lambda pair: (-pair[1], pair[0])))
    return found
