"""Embedder without a model: signed hashing of words and character n-grams."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.lazy_import import load_regex
from mama_structs.memory.embedding.chunks import replace_surrogates
from mama_structs.memory.embedding.protocol import Calibration, Kind, Vectors

HASH_VERSION: Final = 1  # Part of the fingerprint. Increase it with every change that alters vectors.

ENGLISH_STOP_WORDS: Final = """
a an and are as at be been but by can did do does for from had has have he her his how i if in into is it its may more
not of on one or our she so than that the their them then there these they this to was we were what when which who why
will with would you your
"""
STOP_WORDS: Final = frozenset(ENGLISH_STOP_WORDS.split())
"""English stop words, which would make all English texts similar."""

_CALIBRATION: Final = Calibration(0.073, 5.8, threshold=0.75)

SPACE_CODEPOINT: Final = 0x20
MAX_CHARS_PER_BATCH: Final = 100_000  # Maximum number of characters to hash in one batch, to limit memory.

# Weight of a feature that occurs once. An integer, so that sums do not depend on the order or the machine.
FEATURE_WEIGHT: Final = 512
NGRAM_LENGTHS: Final = (3, 4, 5)  # N-gram lengths in characters, including the word borders.
WIDE_NGRAM_LENGTHS: Final = (2, 3)  # N-gram lengths for scripts in which a character is a syllable or a word.

# Code points of Kana, Han, Hangul syllables and rarer Han, after normalisation (NFKC).
WIDE_RANGES: Final = ((0x3040, 0xA4CF), (0xAC00, 0xD7A3), (0x20000, 0x3FFFF))

SPLITMIX_INCREMENT: Final = (
    0x9E3779B97F4A7C15  # Constant of SplitMix64 (Steele, Lea and Flood, 2014). `_mix` is the finaliser of SplitMix64.
)
HASH_BASE: Final = 0xD1342543DE82EF95
UINT64_ONE: Final = np.uint64(1)


@attrs.frozen(kw_only=True)
class HashEmbedder:
    """
    Converts texts to vectors by hashing words and the character n-grams inside them.

    It needs no model and only numpy, and returns the same vectors in every process and on every machine.
    It does not model meaning: near-duplicates and texts with the same words are similar, paraphrases are not.
    Signed feature hashing follows Weinberger et al., "Feature hashing for large scale multitask learning" (2009).

    Args:
        dimensions: The length of a vector, 16 to 65,536.
        calibration: The calibration of its cosines. The default was fitted for 384 dimensions.

    Raises:
        InvalidArgument: *dimensions* is invalid.

    """

    dimensions: int = attrs.field(
        default=384, validator=_check.field_validator(_check.check_integer, 16, 65_536, separator=",")
    )
    calibration: Calibration = _CALIBRATION
    max_tokens: ClassVar[int] = 128
    """The method itself has no limit, but in longer texts other subjects dilute the features of each subject."""
    batch_size: ClassVar[int] = 256
    """Preferred number of texts per call."""

    @property
    def name(self) -> str:
        """``hash-`` followed by the number of dimensions."""
        return f"hash-{self.dimensions}"

    @property
    def fingerprint(self) -> str:
        """Identifies the vectors. It changes when the hashing or the dimensions change."""
        return f"mama-structs-hash-{HASH_VERSION}-{self.dimensions}"

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        """
        Return a unit vector for each text, also for an empty one.

        Args:
            texts: Any texts. Lone surrogates count as U+FFFD.
            kind: Ignored.

        Returns:
            Float32, of shape (texts, dimensions).

        """
        del kind
        prepared = [_normalize_words(text) for text in texts]
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        start = 0
        for batch in _split_batches(prepared):
            vectors[start : start + len(batch)] = _hash_texts(batch, self.dimensions)
            start += len(batch)
        return vectors


def _normalize_words(text: str) -> str:
    """Return the normalised words of a text without stop words, separated and surrounded by spaces."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", replace_surrogates(text)).casefold())
    words = _word_pattern().findall(text)
    kept = [word for word in words if word not in STOP_WORDS] or words or text.split()
    return f" {' '.join(kept)} " if kept else " "


@functools.cache
def _word_pattern() -> Any:
    # Letters with combining marks, and numbers. `\w` of `re` would split words of Indic scripts at vowel signs.
    return load_regex().compile(r"[\p{L}\p{M}\p{N}]+")


def _split_batches(prepared: Sequence[str]) -> Iterator[Sequence[str]]:
    start = size = 0
    for i, text in enumerate(prepared):
        if size and size + len(text) > MAX_CHARS_PER_BATCH:
            yield prepared[start:i]
            start, size = i, 0
        size += len(text)
    if start < len(prepared):
        yield prepared[start:]


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 well-distributed bits for each value, computed by the finaliser of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.lru_cache(maxsize=2)
def _base_powers(size: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the powers of `HASH_BASE` and of its inverse, modulo 2**64."""
    powers = np.full(size, HASH_BASE, dtype=np.uint64)
    inverses = np.full(size, pow(HASH_BASE, -1, 2**64), dtype=np.uint64)
    powers[0] = inverses[0] = 1
    return np.cumprod(powers, dtype=np.uint64), np.cumprod(inverses, dtype=np.uint64)


def _hash_texts(prepared: Sequence[str], dimensions: int) -> Vectors:
    points = np.frombuffer("".join(prepared).encode("utf-32-le"), dtype="<u4").astype(np.uint64)
    lengths = np.fromiter(map(len, prepared), dtype=np.int64, count=len(prepared))
    texts = np.repeat(np.arange(len(prepared), dtype=np.int64), lengths)
    # Round the size up to a power of two, so that more calls find their powers in the cache.
    powers, inverses = _base_powers(1 << len(points).bit_length())
    characters = _mix(points + np.uint64(SPLITMIX_INCREMENT))
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(characters * powers[: len(points)])))

    space = points == SPACE_CODEPOINT
    wide = np.zeros(len(points), dtype=bool)
    for low, high in WIDE_RANGES:
        wide |= (points >= low) & (points <= high)
    starts = np.flatnonzero(space[:-1] & ~space[1:])
    ends = np.flatnonzero(space[1:] & ~space[:-1]) + 2
    keys: list[NDArray[np.uint64]] = []
    owners: list[NDArray[np.int64]] = []

    def add(begin: NDArray[np.int64], end: NDArray[np.int64], salt: int) -> None:
        values = (sums[end] - sums[begin]) * inverses[begin]
        keys.append(_mix(values + np.uint64(salt * SPLITMIX_INCREMENT % 2**64)))
        owners.append(texts[begin])

    add(starts, ends, 1)
    # Keep n-grams inside one word. A space may only be their first or last character, where it marks the word border.
    spaces = np.concatenate(([0], np.cumsum(space)))
    wides = np.concatenate(([0], np.cumsum(wide)))
    ending = np.zeros(len(points), dtype=bool)
    # Exclude n-grams that start at the last character of a text, because they would reach into the next text.
    ending[np.cumsum(lengths) - 1] = True
    for size in sorted({*NGRAM_LENGTHS, *WIDE_NGRAM_LENGTHS}):
        begin = np.arange(max(0, len(points) - size + 1))
        inside = (spaces[begin + size - 1] == spaces[begin + 1]) & ~ending[begin]
        is_wide = wides[begin + size] > wides[begin]
        begin = begin[inside & np.where(is_wide, size in WIDE_NGRAM_LENGTHS, size in NGRAM_LENGTHS)]
        add(begin, begin + size, size)
    return _sum_features(np.concatenate(owners), np.concatenate(keys), lengths, dimensions)


def _sum_features(
    owners: NDArray[np.int64], keys: NDArray[np.uint64], lengths: NDArray[np.int64], dimensions: int
) -> Vectors:
    """Sum the signed features of each text. Repetitions of a feature have diminishing weights."""
    # Each key has 24 bits for the text's index, at most 100,000 per batch, and 40 bits of the feature hash.
    joined = (owners.astype(np.uint64) << np.uint64(40)) | (keys >> np.uint64(24))
    _, first, counts = np.unique(joined, return_index=True, return_counts=True)
    key, owner = keys[first], owners[first]
    # Weights by count: 1, 4/3, 3/2, … below 2. Integer division gives the same result on every machine.
    sizes = FEATURE_WEIGHT * 2 * counts // (counts + 1)
    signed = np.where(key & UINT64_ONE, sizes, -sizes)
    places = owner * dimensions + ((key >> UINT64_ONE) % np.uint64(dimensions)).astype(np.int64)
    # All sums are integers below 2**53, so floating-point addition is exact.
    table = np.bincount(places, weights=signed, minlength=len(lengths) * dimensions).astype(np.int64)
    table = table.reshape(len(lengths), dimensions)
    # A text without words, or with features that cancel out, also needs a non-zero vector.
    empty = np.flatnonzero(~table.any(axis=1))
    table[empty, lengths[empty] % dimensions] = 1
    vectors: Vectors = (table / np.sqrt((table * table).sum(axis=1))[:, None]).astype(np.float32)
    return vectors
