"""Hash embedder, which needs no model."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding import hash_embedder as hashed
from mama_structs.memory.embedding.hash_embedder import HashEmbedder

ANY = st.text(st.characters(), max_size=200)  # includes lone surrogates, which cannot be encoded as UTF-8
HASH = HashEmbedder()


def cosine(one, two):
    first, second = HASH.embed([one, two])
    return float(first @ second)


@given(texts=st.lists(ANY, max_size=8))
def test_hash_embedder_returns_unit_vector_for_any_text(texts):
    """Covers empty text, emoji, whitespace and lone surrogates."""
    vectors = HASH.embed(texts)

    assert ((len(texts), 384), np.dtype(np.float32)) == (vectors.shape, vectors.dtype)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-6)


@given(texts=st.lists(ANY, min_size=1, max_size=8), data=st.data())
def test_vector_does_not_depend_on_other_texts_of_the_call(texts, data):
    """Vectors are bit-identical in any order and batch, as document or query."""
    order = data.draw(st.permutations(range(len(texts))))
    vectors = HASH.embed(texts)

    assert np.array_equal(vectors[list(order)], HASH.embed([texts[i] for i in order], kind="query"))
    assert np.array_equal(vectors[:1], HASH.embed(texts[:1]))


@given(texts=st.lists(ANY, max_size=6), size=st.integers(1, 300))
def test_splitting_large_batches_does_not_change_vectors(texts, size):
    """Vectors do not depend on the position at which a batch is split."""
    whole = HASH.embed(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashed, "MAX_CHARS_PER_BATCH", size)
        parts = HASH.embed(texts)

    assert np.array_equal(whole, parts)


# The three largest components of each text's vector, as (index, value).
EXPECTED = {
    "": [(1, 1.0), (0, 0.0), (2, 0.0)],
    "Shield first, then raid.": [(27, -0.169031), (28, 0.169031), (30, -0.169031)],
    "결정을 바꾸다": [(18, -0.25), (22, -0.25), (38, -0.25)],
    "🙂": [(201, 0.707107), (336, 0.707107), (0, 0.0)],
}


def test_vectors_match_stored_reference_values():
    """These values must never change, because stores contain such vectors."""
    found = {}
    for text in ("", "Shield first, then raid.", "결정을 바꾸다", "🙂"):
        vector = HASH.embed([text])[0]
        largest = np.argsort(-np.abs(vector), kind="stable")[:3]
        found[text] = [(int(i), round(float(vector[i]), 6)) for i in largest]

    assert EXPECTED == found


def test_other_process_returns_same_vectors():
    """The embedder does not use Python's randomized hash."""
    code = (
        "import sys; from mama_structs.memory.embedding.hash_embedder import HashEmbedder;"
        "sys.stdout.write(HashEmbedder().embed(['the guild raids', '길드 습격']).tobytes().hex())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert HASH.embed(["the guild raids", "길드 습격"]).tobytes().hex() == other


def test_case_unicode_form_and_stop_words_do_not_change_vector():
    """Texts are case-folded and normalized to NFKC, and stop words are ignored."""
    assert 1 == pytest.approx(cosine("The SHIELD of the planet", "shield planet"))
    assert 1 == pytest.approx(cosine("".join(chr(ord(letter) + 0xFEE0) for letter in "shield"), "shield"))
    assert 1 == pytest.approx(cosine("결정", "\u1100\u1167\u11af\u110c\u1165\u11bc"))


def test_near_duplicates_are_closer_than_texts_with_a_shared_word():
    """Similarity follows the words, also with Korean particles and endings."""
    assert 0.6 < cosine("retry the payment three times", "retried the payments three times")
    assert 0.3 < cosine("길드 결정을 바꾼다", "길드 결정은 바꿨다")
    assert cosine("retry the payment", "paint the payment office") < 0.6
    assert cosine("energy of the base", "printer on fire") < 0.2


def test_words_of_every_script_are_embedded():
    """Vowel signs do not split Indic words, and scripts without spaces are split into runs."""
    for one, near, far in (
        ("निर्णय बदल गया", "निर्णय बदला", "सुरक्षा कवच"),
        ("会议记录已移动", "会议记录移动了", "价格上涨"),
        ("😀😀 🚀", "🚀 😀😀", "🧊"),
    ):
        assert cosine(one, near) > cosine(one, far) + 0.2


def test_repeated_words_have_decreasing_weight():
    """In a text with one word a hundred times, the other words still count."""
    assert 0.3 < cosine("shield " * 100 + "raid", "raid")


def test_dimensions_are_configurable():
    """Valid values are 16 to 65,536."""
    assert (1, 16) == HashEmbedder(dimensions=16).embed(["x"]).shape
    for wrong in (15, 65_537, 20.0, True):
        with pytest.raises(InvalidArgument, match="dimensions must be a whole number, from 16 to 65536"):
            HashEmbedder(dimensions=wrong)


def test_fingerprint_depends_on_dimensions():
    """Vectors of different lengths are not compatible."""
    fingerprints = {HashEmbedder(dimensions=n).fingerprint for n in (16, 32, 384)}

    assert 3 == len(fingerprints)
    assert all(one != two for one, two in itertools.combinations(fingerprints, 2))
