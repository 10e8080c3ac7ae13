"""Adapters to embedding providers, with fakes instead of their services."""

import importlib
import sys
import types

import numpy as np
import pytest

from mama_structs import Embedder, HashEmbedder, Session, embedders
from mama_structs.embedders import (
    CohereEmbedder,
    OnnxEmbedder,
    OnnxReranker,
    OpenAIEmbedder,
    Reranker,
    SentenceTransformerEmbedder,
    VoyageEmbedder,
)
from mama_structs.errors import EmbeddingFailed, InvalidArgument, RerankingFailed
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.protocol import Calibration, fingerprint_of

CALIBRATION = Calibration()


def vector(text, dimensions):
    return [float(len(text)), *([1.0] * (dimensions - 1))]


class FakeOpenAI:
    """Fake OpenAI client that returns real response objects, with the vectors out of order."""

    def __init__(self):
        self.requests = []
        self.embeddings = self

    async def create(self, **request):
        self.requests.append(request)
        types_ = importlib.import_module("openai.types")
        usage = importlib.import_module("openai.types.create_embedding_response").Usage(prompt_tokens=1, total_tokens=1)
        data = [
            types_.Embedding(embedding=vector(text, request.get("dimensions", 1536)), index=i, object="embedding")
            for i, text in enumerate(request["input"])
        ]
        return types_.CreateEmbeddingResponse(data=data[::-1], model=request["model"], object="list", usage=usage)


class FakeCohere:
    def __init__(self):
        self.requests = []

    async def embed(self, **request):
        self.requests.append(request)
        found = [vector(text, request.get("output_dimension", 1536)) for text in request["texts"]]
        return types.SimpleNamespace(embeddings=types.SimpleNamespace(float_=found))


class FakeVoyage:
    def __init__(self):
        self.requests = []

    async def embed(self, texts, **request):
        self.requests.append({"texts": texts, **request})
        return types.SimpleNamespace(embeddings=[vector(text, request.get("output_dimension", 1024)) for text in texts])


class FakeTransformer:
    max_seq_length = 128

    def __init__(self):
        self.calls = []

    def get_sentence_embedding_dimension(self):
        return 4

    def encode(self, sentences, **options):
        self.calls.append(("encode", sentences, options))
        return np.array([vector(text, 4) for text in sentences], dtype=np.float32)


class FakeNewTransformer(FakeTransformer):
    def encode_query(self, sentences, **options):
        self.calls.append(("query", sentences, options))
        return super().encode(sentences, **options)

    def encode_document(self, sentences, **options):
        self.calls.append(("document", sentences, options))
        return super().encode(sentences, **options)


async def test_openai_returns_vectors_in_input_order():
    """Vectors are sorted by the index in the answer. An empty text, which the service rejects, is not sent."""
    pytest.importorskip("openai")
    client = FakeOpenAI()
    embedder = OpenAIEmbedder(client=client, calibration=CALIBRATION)
    found = await embedder.embed(["a", "bcd", ""], kind="query")

    assert [1, 3, 1] == found[:, 0].tolist()
    assert (3, 1536) == found.shape
    assert [
        {"model": "text-embedding-3-small", "input": ["a", "bcd", "-"], "encoding_format": "float"}
    ] == client.requests


async def test_openai_requests_non_default_dimensions():
    """Shortened vectors are requested and have another fingerprint."""
    pytest.importorskip("openai")
    client = FakeOpenAI()
    short = OpenAIEmbedder(client=client, dimensions=256, calibration=CALIBRATION)

    assert (1, 256) == (await short.embed(["a"])).shape
    assert 256 == client.requests[0]["dimensions"]
    assert short.fingerprint != OpenAIEmbedder(client=client).fingerprint


async def test_cohere_sends_input_type():
    """Queries and documents have different input types."""
    client = FakeCohere()
    embedder = CohereEmbedder(client=client, calibration=CALIBRATION)
    await embedder.embed(["a"])
    found = await embedder.embed(["ab"], kind="query")

    assert (1, 1536) == found.shape
    assert ["search_document", "search_query"] == [request["input_type"] for request in client.requests]
    assert ["float"] == client.requests[0]["embedding_types"]
    assert "output_dimension" not in client.requests[0]


async def test_voyage_sends_input_type():
    """Queries and documents have different input types."""
    client = FakeVoyage()
    embedder = VoyageEmbedder(client=client, dimensions=256, calibration=CALIBRATION)
    found = [await embedder.embed(["a"], kind=kind) for kind in ("document", "query")]

    assert [(1, 256)] * 2 == [one.shape for one in found]
    assert ["document", "query"] == [request["input_type"] for request in client.requests]
    assert [256] * 2 == [request["output_dimension"] for request in client.requests]


@pytest.mark.parametrize(("kind", "prefix"), [("document", "passage: "), ("query", "query: ")])
async def test_sentence_transformers_use_prompts_or_prefixes(kind, prefix):
    """Newer models distinguish queries and documents themselves. E5 needs a prefix."""
    old, new = FakeTransformer(), FakeNewTransformer()
    first = SentenceTransformerEmbedder(
        model=old, name="e5", query_prefix="query: ", document_prefix="passage: ", calibration=CALIBRATION
    )
    second = SentenceTransformerEmbedder(model=new, name="new", calibration=CALIBRATION)

    assert (1, 4) == first.embed(["a"], kind=kind).shape == second.embed(["a"], kind=kind).shape
    assert ("encode", [prefix + "a"]) == old.calls[0][:2]
    assert (kind, ["a"]) == new.calls[0][:2]
    assert (4, 128) == (first.dimensions, first.max_tokens)


async def test_requests_stay_within_service_limits():
    """The number of texts and their total length are limited per request."""
    client = FakeVoyage()
    embedder = VoyageEmbedder(client=client, batch_size=10, calibration=CALIBRATION)
    await embedder.embed(["short"] * 25)
    few = len(client.requests)
    found = await embedder.embed(["결" * 5_000] * 10)

    assert 3 == few
    assert [10, 10, 5] == [len(request["texts"]) for request in client.requests[:3]]
    assert all(len(request["texts"]) < 5 for request in client.requests[3:])
    assert (10, 1024) == found.shape
    assert (0, 1024) == (await embedder.embed([])).shape


async def test_service_error_when_vectors_are_missing():
    """Otherwise vectors would be assigned to wrong texts."""

    class Short(FakeVoyage):
        async def embed(self, texts, **request):
            return types.SimpleNamespace(embeddings=[])

    with pytest.raises(EmbeddingFailed, match=r"voyage/voyage-3\.5 gave 0 vectors for 1 texts"):
        await VoyageEmbedder(client=Short()).embed(["a"])


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [
        (OpenAIEmbedder, "openai", "openai"),
        (CohereEmbedder, "cohere", "cohere"),
        (VoyageEmbedder, "voyageai", "voyage"),
    ],
)
async def test_missing_package_names_the_extra(monkeypatch, kind, package, extra):
    """It is imported at the first use, and the error says what to install."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EmbeddingFailed) as caught:
        await kind().embed(["a"])

    assert f"pip install 'mama-structs[{extra}]'" == caught.value.hint


def test_unknown_model_requires_dimensions():
    """Guessed dimensions would store unusable vectors."""
    with pytest.raises(InvalidArgument, match="dimensions must be given for the model 'new'"):
        OpenAIEmbedder(model="new")
    with pytest.raises(InvalidArgument, match="dimensions must be given for the model 'new'"):
        CohereEmbedder(model="new")
    assert 8 == OpenAIEmbedder(model="new", dimensions=8).dimensions
    assert 512 == VoyageEmbedder(model="voyage-3-lite").dimensions
    with pytest.raises(InvalidArgument, match="model must have encode"):
        SentenceTransformerEmbedder(model=3, name="x")


def test_repr_does_not_show_client():
    """A client's repr may contain a key."""
    assert "secret" not in repr(VoyageEmbedder(client="secret"))


async def test_provider_is_calibrated_and_batched_by_batch_service():
    """The adapter of a provider needs no code for calibration and batches."""
    client = FakeVoyage()
    embedder = VoyageEmbedder(client=client)
    service = EmbeddingService(embedder)
    (found,) = await service.embed_documents(["a"])
    await service.close()

    assert isinstance(embedder, Embedder)
    assert "voyage/voyage-3.5 1024" == fingerprint_of(embedder)
    assert embedder.is_calibrated
    assert (1, 1024) == found.shape


class FakeSession:
    def __init__(self, path, sess_options, providers):
        self.path = path

    def get_inputs(self):
        return [types.SimpleNamespace(name="input_ids"), types.SimpleNamespace(name="attention_mask")]

    def run(self, outputs, feed):
        assert {"input_ids", "attention_mask"} == feed.keys()
        ids = feed["input_ids"].astype(np.float32)
        return [np.stack([ids, np.ones_like(ids)], axis=2)]


class FakeTokenizer:
    @classmethod
    def from_file(cls, path):
        return cls()

    def enable_truncation(self, max_length):
        self.limit = max_length

    def enable_padding(self):
        pass

    def encode_batch(self, texts):
        self.texts = texts
        longest = max(map(len, texts))
        return [
            types.SimpleNamespace(
                ids=[ord(one) for one in text] + [0] * (longest - len(text)),
                attention_mask=[1] * len(text) + [0] * (longest - len(text)),
                type_ids=[0] * longest,
            )
            for text in texts
        ]


@pytest.fixture
def files(tmp_path, monkeypatch):
    options = types.SimpleNamespace
    monkeypatch.setitem(
        sys.modules, "onnxruntime", types.SimpleNamespace(InferenceSession=FakeSession, SessionOptions=options)
    )
    monkeypatch.setitem(sys.modules, "tokenizers", types.SimpleNamespace(Tokenizer=FakeTokenizer))
    (tmp_path / "model.onnx").write_bytes(b"weights")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    return {"model": tmp_path / "model.onnx", "tokenizer": tmp_path / "tokenizer.json"}


def test_onnx_model_receives_named_inputs_and_prefixes(files):
    """Inputs are passed by name, texts have the prefix of their kind, and vectors are normalized."""
    embedder = OnnxEmbedder(**files, name="e5", dimensions=2, query_prefix="q", calibration=CALIBRATION)
    found = embedder.embed(["ab", "a"])

    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(2), abs=1e-6)
    assert [97.5, 97] == pytest.approx((found[:, 0] / found[:, 1]).tolist(), rel=1e-5)
    embedder.embed(["a"], kind="query")
    assert ["qa"] == embedder._files.loaded[1].texts
    assert 256 == embedder._files.loaded[1].limit
    assert (0, 2) == embedder.embed([]).shape


def test_onnx_fingerprint_depends_on_files_and_options(files):
    """Other weights, pooling or prefixes give other vectors."""
    plain = OnnxEmbedder(**files, name="e5", dimensions=2).fingerprint
    pooled = OnnxEmbedder(**files, name="e5", dimensions=2, pooling="cls").fingerprint
    files["model"].write_bytes(b"other weights")

    assert 3 == len({plain, pooled, OnnxEmbedder(**files, name="e5", dimensions=2).fingerprint})


def test_onnx_missing_model_is_named_in_error(files, monkeypatch):
    """The error names the file or the package."""
    files["tokenizer"].unlink()
    embedder = OnnxEmbedder(**files, name="e5", dimensions=2)
    with pytest.raises(EmbeddingFailed, match=r"there is no file .*tokenizer\.json"):
        embedder.embed(["a"])
    with pytest.raises(EmbeddingFailed, match="cannot be read"):
        _ = embedder.fingerprint
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EmbeddingFailed, match="onnxruntime cannot be imported") as caught:
        embedder.embed(["a"])
    assert "pip install 'mama-structs[onnx]'" == caught.value.hint
    with pytest.raises(InvalidArgument, match="pooling must be 'mean' or 'cls', got 'max'"):
        OnnxEmbedder(**files, name="e5", dimensions=2, pooling="max")


class FakePairs(FakeTokenizer):
    """Fake tokenizer for pairs. It joins both texts with a separator, and gives the second one the type id 1."""

    def encode_batch(self, texts):
        self.pairs = texts
        encoded = super().encode_batch([f"{query}|{text}" for query, text in texts])
        for one, (query, _) in zip(encoded, texts, strict=True):
            one.type_ids = [int(at > len(query)) for at in range(len(one.ids))]
        return encoded


class FakeCrossEncoder(FakeSession):
    """Fake cross-encoder that scores a pair by the number of ``x`` in its second text, in one or two output columns."""

    columns = 1

    def get_inputs(self):
        return [types.SimpleNamespace(name=name) for name in ("input_ids", "attention_mask", "token_type_ids")]

    def run(self, outputs, feed):
        count = ((feed["input_ids"] == ord("x")) & (feed["token_type_ids"] == 1)).sum(axis=1).astype(np.float32)
        return [np.stack([count, -count][: self.columns][::-1], axis=1)]


@pytest.fixture
def cross_encoder(files, monkeypatch):
    monkeypatch.setattr(sys.modules["onnxruntime"], "InferenceSession", FakeCrossEncoder)
    monkeypatch.setattr(sys.modules["tokenizers"], "Tokenizer", FakePairs)
    return files


@pytest.mark.parametrize(("columns", "expected"), [(1, [1, 3, 0]), (2, [2, 6, 0])])
def test_onnx_cross_encoder_scores_pairs(cross_encoder, monkeypatch, columns, expected):
    """It returns one value per pair, or one for "no" and one for "yes", whose difference counts."""
    monkeypatch.setattr(FakeCrossEncoder, "columns", columns)
    reranker = OnnxReranker(**cross_encoder, max_tokens=64)

    assert expected == reranker.rerank("xx?", ["x", "axxbx", ""]).tolist()
    assert [("xx?", "x"), ("xx?", "axxbx"), ("xx?", "")] == reranker._files.loaded[1].pairs
    assert 64 == reranker._files.loaded[1].limit
    assert (0,) == reranker.rerank("x", []).shape
    assert "model" == reranker.name
    assert isinstance(reranker, Reranker)


async def test_session_reranks_with_onnx_cross_encoder(cross_encoder):
    """It is configured by its path, and its score is in `parts`."""
    reranker = OnnxReranker(**cross_encoder, name="mine", batch_size=2)
    async with Session.open(embedder=HashEmbedder(dimensions=64), reranker=reranker) as session:
        for text in ("the door", "a xxx of doors", "an x"):
            await session.memories.save_insight(text)
        hits = await session.memories.search("door")

    assert [3, 1, 0] == [hit.signals["reranker"] for hit in hits]


def test_onnx_model_that_is_no_cross_encoder_is_rejected(files, monkeypatch):
    """A sentence model returns a vector per token."""
    monkeypatch.setattr(sys.modules["tokenizers"], "Tokenizer", FakePairs)
    with pytest.raises(RerankingFailed, match=r"model gave an array of shape \(2, 4, 2\) for 2 texts") as caught:
        OnnxReranker(**files).rerank("q", ["ab", "c"])
    assert "OnnxEmbedder" in caught.value.hint


async def test_onnx_reranker_error_is_raised_at_first_search(files, monkeypatch):
    """The error names the file or the package, and the search fails instead of ignoring it."""
    files["model"].unlink()
    async with Session.open(embedder=HashEmbedder(dimensions=64), reranker=OnnxReranker(**files)) as session:
        await session.memories.save_insight("the door")
        with pytest.raises(RerankingFailed, match=r"there is no file .*model\.onnx"):
            await session.memories.search("door")
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(RerankingFailed, match="tokenizers cannot be imported") as caught:
            await session.memories.search("door")
    assert "pip install 'mama-structs[onnx]'" == caught.value.hint
    for wrong in ({"threads": 0}, {"max_tokens": 7}, {"max_chars": 0}, {"batch_size": 0}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            OnnxReranker(**files, **wrong)


def test_real_onnx_cross_encoder_scores_pairs(tmp_path):
    """The real packages run a generated model of three operators with a word tokenizer."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[PAD]": 0, "[SEP]": 1, "door": 2, "key": 3, "?": 4}, unk_token="?")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair="$A [SEP] $B:1", special_tokens=[("[SEP]", 1)]
    )
    words.save(str(tmp_path / "tokenizer.json"))
    # This model scores a pair by the largest token id of its second text. The word `key` has the largest id.
    make, integers = onnx.helper, onnx.TensorProto.INT64
    nodes = [
        make.make_node("Mul", ["input_ids", "token_type_ids"], ["second"]),
        make.make_node("Cast", ["second"], ["floats"], to=onnx.TensorProto.FLOAT),
        make.make_node("ReduceMax", ["floats", "axes"], ["logits"], keepdims=1),
    ]
    shape = ["texts", "tokens"]
    inputs = [make.make_tensor_value_info(name, integers, shape) for name in ("input_ids", "token_type_ids")]
    outputs = [make.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["texts", 1])]
    axes = make.make_tensor("axes", integers, [1], [1])
    graph = make.make_graph(nodes, "cross", inputs, outputs, [axes])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(tmp_path / "model.onnx"))
    reranker = OnnxReranker(model=tmp_path / "model.onnx", tokenizer=tmp_path / "tokenizer.json", max_tokens=8)

    assert [2, 3, 0] == reranker.rerank("key key", ["door", "door key", ""]).tolist()
    # `max_tokens` truncates the longer text of the pair, so the score does not include its last word.
    assert [2] == reranker.rerank("door", ["door " * 20 + "key"]).tolist()


def test_onnx_mean_pooling_ignores_padding():
    """Only real tokens are averaged. First-token pooling and already pooled models are supported, too."""
    hidden = np.array([[[3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]])
    mask = np.array([[1, 1, 0]])

    assert [[pytest.approx(0.6), pytest.approx(0.8)]] == embedders.pool_vectors(hidden, mask, "mean").tolist()
    assert [[1, 0]] == embedders.pool_vectors(hidden, mask, "cls").tolist()
    assert [[0, 1]] == embedders.pool_vectors(np.array([[0.0, 2.0]]), mask, "mean").tolist()
