"""Relationship words: validation, and the link type that belongs to each word."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.model import LinkType
from mama_structs.memory.types.relationships import (
    EXAMPLE_WORDS,
    check_relationship,
    classify_by_example,
    find_near_synonyms,
    look_up_type,
    normalize_relationship,
)

E, I, A, T = LinkType.EVOLUTION, LinkType.IMPLEMENTATION, LinkType.ASSOCIATION, LinkType.TEMPORAL  # noqa: E741
LINK_TYPES_BY_WORD = {
    "supersedes": E, "replaces": E, "refines": E, "improves": E, "upgrades": E, "대체": E,
    "implements": I, "executes": I, "realizes": I, "outcome_of": I, "resulted_in": I, "구현": I,
    "relates_to": A, "inspired_by": A, "motivated_by": A, "challenges": A, "depends_on": A, "contradicts": A, "관련": A,
    "related_to": A, "same_topic": A, "superseded by": A,
    "follows": T, "precedes": T, "during": T, "concurrent_with": T, "temporal": T, "close_in_time": T, "이후": T,
}  # fmt: skip
LETTERS = st.text(st.characters(categories=("Lu", "Ll", "Lo", "Nd")), min_size=1, max_size=16)


@pytest.mark.parametrize(("word", "link_type"), LINK_TYPES_BY_WORD.items())
def test_known_relationship_has_its_type_in_any_spelling(word, link_type):
    """Case, whitespace and Hangul composition are ignored."""
    for written in (word, word.upper(), word.replace("_", "-"), f" {word} ", unicodedata.normalize("NFD", word)):
        assert link_type is look_up_type(written)


def test_unknown_relationship_is_not_in_table():
    """Its type is determined by its vector."""
    assert look_up_type("bananas about") is None


@pytest.mark.parametrize("at", range(len(EXAMPLE_WORDS)))
def test_similar_relationship_has_type_of_nearest_example(at):
    """The similarity must be at least 0.7."""
    examples = np.eye(len(EXAMPLE_WORDS), dtype=np.float32)
    like = 0.7071 * examples[at] + 0.5 * examples[at - 1]
    unlike = 0.69 * examples[at]

    assert look_up_type(EXAMPLE_WORDS[at]) is classify_by_example("unheard of", like, examples)
    assert A is classify_by_example("unheard of", unlike, examples)


def test_passive_relationship_does_not_reverse_evolution():
    """A passive word ("... by") would mark the newer memory as superseded."""
    examples = np.eye(len(EXAMPLE_WORDS), dtype=np.float32)
    vector = examples[EXAMPLE_WORDS.index("supersedes")]

    assert A is classify_by_example("supplanted_by", vector, examples)
    assert E is classify_by_example("supplants", vector, examples)


def test_relationship_with_nan_vector_is_association():
    examples = np.full((len(EXAMPLE_WORDS), 2), np.nan, np.float32)

    assert A is classify_by_example("unheard of", np.ones(2, np.float32), examples)


def test_relationship_examples_cover_all_types():
    """Each example is also in the table."""
    assert set(LinkType) == {look_up_type(example) for example in EXAMPLE_WORDS}


@given(st.lists(LETTERS, min_size=1, max_size=4), st.sampled_from(" _-"))
def test_valid_relationship_is_kept_unchanged(parts, gap):
    """
    Any script is allowed.

    Only Unicode form and surrounding whitespace change, idempotently.
    """
    word = unicodedata.normalize("NFC", gap.join(parts))
    if len(word) <= 64:
        kept = check_relationship(f" {word}  ")

        assert word.strip(" ") == kept
        assert kept == check_relationship(kept)
        assert normalize_relationship(word) == normalize_relationship(normalize_relationship(word))


@pytest.mark.parametrize(
    "word",
    ["", "   ", "_-_", "a" * 65, "a\nb", "a\tb", "a\x00b", "a/b", "a.b", "a\u200bb", "\u202eb", "\ud800", "x" * 10**6],
)
def test_invalid_relationship_raises(word):
    """Control characters, other symbols, empty texts and long texts are invalid."""
    with pytest.raises(InvalidArgument, match="relationship must be 1 to 64 letters") as caught:
        check_relationship(word)

    assert 200 > len(str(caught.value))


@pytest.mark.parametrize("word", [None, 3, b"implements", ["implements"]])
def test_relationship_of_other_type_raises(word):
    """The message contains the type."""
    with pytest.raises(InvalidArgument, match=type(word).__name__):
        check_relationship(word)


@pytest.mark.parametrize("word", ["관련됨", "विस्तार", "Ü-ber_arbeitet", "v2 of"])
def test_relationship_accepts_letters_of_any_script(word):
    """Combining marks count as part of a letter."""
    assert unicodedata.normalize("NFC", word) == check_relationship(word)


def test_synonyms_are_sorted_by_similarity_above_threshold():
    """Each word has the others as synonyms."""
    vectors = np.array([[1, 0], [0.8, 0.6], [0, 1], [0.995, 0.0999]], np.float32)

    found = find_near_synonyms(["a", "b", "c", "d"], vectors)

    assert {"a": ["d", "b"], "b": ["d", "a"], "c": [], "d": ["a", "b"]} == {
        word: [other for other, _ in near] for word, near in found.items()
    }
    assert pytest.approx([0.995, 0.8, 0.856, 0.8, 0.995, 0.856], abs=1e-3) == [
        similarity for near in found.values() for _, similarity in near
    ]


def test_spelling_variants_are_synonyms():
    """Their vectors are ignored, and so are vectors with NaN."""
    vectors = np.full((3, 2), np.nan, np.float32)

    assert {
        "Depends_On": (("depends-on", 1.0),),
        "other": (),
        "depends-on": (("Depends_On", 1.0),),
    } == find_near_synonyms(["Depends_On", "other", "depends-on"], vectors)


@pytest.mark.parametrize("words", [[], ["one"]])
def test_single_relationship_has_no_synonyms(words):
    assert dict.fromkeys(words, ()) == find_near_synonyms(words, np.ones((len(words), 2), np.float32))
