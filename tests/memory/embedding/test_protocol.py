"""Common behaviour of embedders: calibration, fingerprints, the default embedder, and validation of vectors."""

import copy
import logging
import math
import re

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import Session
from mama_structs.errors import EmbeddingFailed, InvalidArgument
from mama_structs.memory.embedding import english_encoder, sentence_encoder
from mama_structs.memory.embedding import factory as callables
from mama_structs.memory.embedding.factory import as_embedder, default_embedder
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import (
    PROVISIONAL_CALIBRATION,
    Calibration,
    Embedder,
    calibrate_embedder,
    compute_auc,
    fingerprint_of,
    fit_calibration,
    load_sentence_triples,
    unadjusted_query,
    validate_vectors,
)
from mama_structs.memory.embedding.sentence_embedder import SentenceEmbedder
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder

COSINES = st.floats(-1, 1)
CALIBRATIONS = st.builds(Calibration, st.floats(-1, 1), st.floats(0.1, 100))


@given(calibration=CALIBRATIONS, one=COSINES, two=COSINES)
def test_calibration_is_monotonic(calibration, one, two):
    """Similarity is between 0 and 1 and increases with the cosine."""
    low, high = sorted((one, two))

    assert 0 <= calibration(low) <= calibration(high) <= 1


@given(calibration=CALIBRATIONS, similarity=st.floats(0.01, 0.99))
def test_inverse_calibration_returns_cosine_of_similarity(calibration, similarity):
    """The functions are inverse, and similarity 0.5 is at the midpoint."""
    assert similarity == pytest.approx(calibration(calibration.cosine(similarity)))
    assert 0.5 == calibration(calibration.midpoint)


@given(calibration=CALIBRATIONS, cosines=st.lists(COSINES))
def test_calibration_of_array_equals_calibration_of_numbers(calibration, cosines):
    """Arrays keep their shape and type."""
    given_ = np.array(cosines, dtype=np.float32)
    found = calibration(given_)

    assert (given_.shape, np.dtype(np.float32)) == (found.shape, found.dtype)
    assert [calibration(float(one)) for one in given_] == pytest.approx(found.tolist(), abs=1e-5)


def test_inverse_calibration_is_infinite_at_0_and_1():
    """No finite cosine has the similarity 0 or 1."""
    assert (-math.inf, math.inf) == (Calibration().cosine(0), Calibration().cosine(1))
    for wrong in (-0.1, 1.1, math.nan, True, "1"):
        with pytest.raises(InvalidArgument, match="similarity must"):
            Calibration().cosine(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"midpoint": math.nan}, "midpoint must be a finite number, got nan"),
        ({"slope": 0}, "slope must be more than 0, got 0"),
        ({"slope": "steep"}, "slope must be a finite number, got 'steep'"),
        ({"threshold": 1}, "threshold must lie between 0 and 1, got 1"),
    ],
)
def test_calibration_rejects_invalid_arguments(arguments, message):
    """The error contains argument, value and rule."""
    with pytest.raises(InvalidArgument, match=message):
        Calibration(**arguments)


@given(
    midpoint=st.floats(-0.3, 0.8), slope=st.floats(3, 40), seed=st.integers(0, 2**32 - 1), count=st.integers(1000, 3000)
)
def test_fit_recovers_curve_that_generated_labels(midpoint, slope, seed, count):
    """Labels drawn from a known curve at evenly spread cosines yield that curve."""
    random = np.random.default_rng(seed)
    cosines = random.uniform(midpoint - 4 / slope, midpoint + 4 / slope, count)
    is_same = random.random(count) < Calibration(midpoint, slope)(cosines)
    found = fit_calibration([cosines[is_same]], [cosines[~is_same]])

    assert midpoint == pytest.approx(found.midpoint, abs=1 / slope)
    assert slope == pytest.approx(found.slope, rel=0.4)


@given(
    same=st.lists(COSINES, min_size=1, max_size=20),
    other=st.lists(COSINES, min_size=1, max_size=20),
)
def test_fit_returns_valid_calibration_for_any_cosines(same, other):
    """The classes may be separable, equal or in reversed order."""
    found = fit_calibration([np.array(same)], [np.array(other)])

    assert 0 < found.slope <= 200
    assert min(same + other) - 1e-6 <= found.midpoint <= max(same + other) + 1e-6
    if min(same) > max(other) + 0.1:
        assert 0.5 <= found(np.array(same)).mean()
        assert 0.5 >= found(np.array(other)).mean()


def test_fit_rejects_single_class_and_non_finite_values():
    """A fit needs finite values of both classes."""
    for same, other in (([], [np.ones(1)]), ([np.ones(1)], [np.ones(0)]), ([np.array([np.nan])], [np.ones(1)])):
        with pytest.raises(InvalidArgument, match="must be groups of finite cosines"):
            fit_calibration(same, other)


def test_separation_counts_ordered_pairs():
    """Ties count as one half."""
    assert 1 == compute_auc([0.5, 0.6], [0.1])
    assert 0.5 == compute_auc([0.5], [0.5])
    assert 0.25 == compute_auc([0.2, 0.2], [0.1, 0.3, 0.3, 0.3])


def test_builtin_embedders_satisfy_protocol():
    """The protocol is checkable at run time without loading a model."""
    for embedder in (
        HashEmbedder(),
        SentenceEmbedder(),
        UniversalSentenceEmbedder(),
        as_embedder(len, name="x", dimensions=3),
    ):
        assert isinstance(embedder, Embedder)
        assert fingerprint_of(embedder)
    assert not isinstance(object(), Embedder)


def test_fingerprint_identifies_source_of_vectors():
    """An embedder's own fingerprint is used; otherwise class, name and dimensions identify it."""
    plain = as_embedder(len, name="x", dimensions=3)

    assert fingerprint_of(plain) == fingerprint_of(as_embedder(max, name="x", dimensions=3))
    # Databases store this fingerprint, so it must keep the original module name of the class.
    assert "e484ddb72e90019723ab9ea2588cf62b" == fingerprint_of(plain)
    assert "mine" == fingerprint_of(as_embedder(len, name="x", dimensions=3, fingerprint="mine"))
    assert 4 == len(
        {
            fingerprint_of(plain),
            fingerprint_of(as_embedder(len, name="y", dimensions=3)),
            fingerprint_of(as_embedder(len, name="x", dimensions=4)),
            fingerprint_of(HashEmbedder(dimensions=16)),
        }
    )


def test_default_is_hash_embedder_without_extra(monkeypatch, caplog):
    """The choice of the default is logged once per process."""
    monkeypatch.setattr(sentence_encoder, "is_installed", lambda: False)
    callables._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, logger="mama_structs"):
        found = [default_embedder(), default_embedder()]

    assert [HashEmbedder(), HashEmbedder()] == found
    assert ["mama_structs"] == [record.name for record in caplog.records]
    assert "mama-structs[semantic]" in caplog.text


@pytest.mark.parametrize(
    ("has_runtime", "expected"), [(True, SentenceEmbedder()), (False, UniversalSentenceEmbedder())]
)
def test_default_is_best_installed_sentence_encoder(monkeypatch, caplog, has_runtime, expected):
    """Without ONNX Runtime, the multilingual encoder is the default. This choice is not logged."""
    monkeypatch.setattr(sentence_encoder, "is_installed", lambda: True)
    monkeypatch.setattr(english_encoder, "is_installed", lambda: has_runtime)

    assert expected == default_embedder()
    assert not caplog.records


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fn": 3}, "fn must be callable, got a int"),
        ({"name": ""}, "name must be text that is not empty, got ''"),
        ({"dimensions": 0}, "dimensions must be a whole number, 1 or more, got 0"),
        ({"dimensions": True}, "dimensions must be a whole number"),
        ({"max_tokens": 7}, "max_tokens must be a whole number, 8 or more, got 7"),
        ({"batch_size": 0}, "batch_size must be"),
    ],
)
def test_as_embedder_rejects_invalid_arguments(arguments, message):
    """The error contains argument, value and rule."""
    with pytest.raises(InvalidArgument, match=message):
        as_embedder(**({"fn": len, "name": "x", "dimensions": 3} | arguments))


async def test_callable_receives_kind_only_if_it_accepts_it():
    """Functions with one parameter are called with texts only."""
    seen = []

    def plain(texts):
        seen.append(texts)
        return texts

    def keen(texts, *, kind):
        seen.append((texts, kind))
        return texts

    as_embedder(plain, name="x", dimensions=1).embed(("a",), kind="query")
    as_embedder(keen, name="x", dimensions=1).embed(("a",), kind="query")

    assert [["a"], (["a"], "query")] == seen


async def test_unknown_embedder_is_calibrated_on_sample_sentences():
    """Its default calibration is a guess, which the sample sentences replace by one for its own scale."""
    inner = HashEmbedder(dimensions=4096)

    def shifted(texts):
        vectors = inner.embed(texts)
        return np.hstack((vectors, np.full((len(texts), 1), 3.0)))  # raises all cosines to more than 0.9

    async def later(texts):
        return inner.embed(texts)

    high, plain = as_embedder(shifted, name="x", dimensions=4097), as_embedder(later, name="x", dimensions=4096)
    before = high.calibration

    assert before is PROVISIONAL_CALIBRATION
    assert not high.is_calibrated
    assert not copy.deepcopy(high).is_calibrated
    assert 0.9 < (await calibrate_embedder(high)).midpoint < 1
    assert -0.1 < (await calibrate_embedder(plain)).midpoint < 0.3
    assert high.is_calibrated
    assert (await calibrate_embedder(high)) is high.calibration


async def test_given_calibration_is_not_refitted():
    """An embedder with its own calibration embeds no text for calibration."""
    known = Calibration(0.8, 30)
    embedder = as_embedder(len, name="x", dimensions=3, calibration=known)

    assert known == await calibrate_embedder(embedder)
    assert HashEmbedder().calibration == await calibrate_embedder(HashEmbedder())


async def test_random_embedder_is_reported(caplog):
    """Random vectors get an almost flat calibration and a warning."""
    random = np.random.default_rng(1)
    embedder = as_embedder(lambda texts: random.normal(size=(len(texts), 512)), name="dice", dimensions=512)
    with caplog.at_level(logging.WARNING, logger="mama_structs"):
        await calibrate_embedder(embedder)

    assert "dice separates sentences on the same subject" in caplog.text


async def test_calibration_reports_failed_sentence():
    """A zero vector for a sentence makes calibration fail."""
    with pytest.raises(EmbeddingFailed, match="vector of a built-in sentence is zero"):
        await calibrate_embedder(as_embedder(lambda texts: np.zeros((len(texts), 3)), name="x", dimensions=3))


def test_calibration_sentences_are_distinct():
    """A repeated sentence would count twice."""
    sentences = [text for triple in load_sentence_triples() for text in triple]

    assert len(sentences) == len(set(sentences)) == 3 * len(load_sentence_triples())


@given(
    rows=st.lists(
        st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=3, max_size=3), min_size=1, max_size=8
    )
)
def test_rows_are_normalized_or_reported_as_invalid(rows):
    """For any numbers, a row gets length 1 and keeps its direction, or is reported as faulty."""
    found = validate_vectors(rows, len(rows), dimensions=3)

    for row, one in enumerate(rows):
        if not all(map(math.isfinite, one)):
            assert "holds a number that is not finite" == found.faults[row]
        elif not any(one):
            assert "is zero" == found.faults[row]
        else:
            assert row not in found.faults
            assert 1 == pytest.approx(float(np.linalg.norm(found.vectors[row])), abs=1e-5)
            largest = max(range(3), key=lambda i: abs(one[i]))
            assert (one[largest] > 0) == (found.vectors[row][largest] > 0)
    assert np.float32 == found.vectors.dtype
    assert len(rows) >= len(found.faults)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (None, "a NoneType of object, expected numbers"),
        ("text", "a str of str"),
        ([[1, 2, 3], [1, 2]], "a list that is no array of numbers"),
        (np.zeros((2, 4)), r"shape \(2, 4\) for 2 texts"),
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((2, 3), dtype=complex), "of complex128"),
        (np.zeros((2, 3), dtype=bool), "of bool"),
    ],
)
def test_arrays_of_wrong_shape_are_rejected(given_, message):
    """The message describes the value, and the hint the expected shape."""
    with pytest.raises(EmbeddingFailed, match=message) as caught:
        validate_vectors(given_, 2, dimensions=3)

    assert "(2, 3)" in caught.value.hint


def test_embedders_are_immutable():
    """A changed embedder would make stored vectors incompatible."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        HashEmbedder().dimensions = 3


class AdjustingEmbedder(HashEmbedder):
    """Returns *result* from `adjust_query`, or calls it."""

    result = None

    def adjust_query(self, text, vector):
        return self.result(vector) if callable(self.result) else self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "must return QueryVectors, got NoneType"),
        (lambda vector: vector, "must return QueryVectors, got ndarray"),
        (
            lambda vector: attrs.evolve(unadjusted_query(vector), other=vector[:3]),
            "must return other as an array of 64",
        ),
        (
            lambda vector: attrs.evolve(unadjusted_query(vector), same=vector * np.nan),
            "not finite or too large in same",
        ),
        (
            lambda vector: attrs.evolve(unadjusted_query(vector), shared_dimensions=8),
            "must return shared_dimensions=64",
        ),
        (lambda vector: attrs.evolve(unadjusted_query(vector), same=vector * 3e38), "too large in same"),
        (lambda vector: attrs.evolve(unadjusted_query(vector), has_rest=None), "has_rest as a bool, got NoneType"),
        (lambda vector: attrs.evolve(unadjusted_query(vector), unrelated=math.nan), "unrelated as a finite number"),
        (lambda vector: 1 / 0, "raised ZeroDivisionError"),
    ],
)
async def test_search_rejects_invalid_result_of_adjust_query(monkeypatch, result, message):
    """The error names the embedder and the fault, and a valid result is used."""
    monkeypatch.setattr(AdjustingEmbedder, "result", staticmethod(result) if callable(result) else result)
    async with Session.open(embedder=AdjustingEmbedder(dimensions=64)) as session:
        await session.memories.save("shield first")
        with pytest.raises(EmbeddingFailed, match=re.escape(message)):
            await session.memories.search("shield")
        monkeypatch.setattr(
            AdjustingEmbedder,
            "result",
            staticmethod(lambda vector: attrs.evolve(unadjusted_query(vector), has_rest=vector[-1] > 2)),
        )
        assert await session.memories.search("shield")
