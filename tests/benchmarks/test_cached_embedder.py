"""The embedder of the benchmarks that stores vectors between runs."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from mama_structs.memory.embedding.hash_embedder import HashEmbedder

FOLDER = Path(__file__).parents[2] / "benchmarks"


class CountingEmbedder(HashEmbedder):
    """A `HashEmbedder` that counts the embedded texts."""

    def embed(self, texts, *, kind="document"):
        COUNTED.extend(texts)
        return super().embed(texts, kind=kind)


COUNTED: list[str] = []


@pytest.fixture
def common(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    COUNTED.clear()
    return importlib.import_module("_common")


def test_cached_embedder_embeds_each_text_once(common, tmp_path):
    path = tmp_path / "vectors.npz"
    first = common.CachedEmbedder(CountingEmbedder(), path)
    vectors = first.embed(["one", "two"])
    first.save()
    second = common.CachedEmbedder(CountingEmbedder(), path)

    np.testing.assert_array_equal(vectors, second.embed(["one", "two"]))
    assert ["one", "two"] == COUNTED
    assert (0, first.dimensions) == second.embed([]).shape


def test_cached_embedder_keeps_vectors_that_another_process_added(common, tmp_path):
    path = tmp_path / "vectors.npz"
    first, second = (common.CachedEmbedder(CountingEmbedder(), path) for _ in range(2))
    for embedder, text in ((first, "one"), (second, "two")):
        embedder.embed([text])
        embedder.save()

    common.CachedEmbedder(CountingEmbedder(), path).embed(["one", "two"])

    assert ["one", "two"] == COUNTED


def test_cached_embedder_ignores_file_of_another_fingerprint(common, tmp_path):
    path = tmp_path / "vectors.npz"
    with path.open("wb") as file:
        keys = np.array([common.vector_key("document", "one")])
        np.savez(file, fingerprint=np.array("other"), keys=keys, vectors=np.zeros((1, 384), np.float32))
    common.CachedEmbedder(CountingEmbedder(), path).embed(["one"])

    assert ["one"] == COUNTED
