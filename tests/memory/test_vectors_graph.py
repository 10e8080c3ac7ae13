"""A graph serves searches only when it was proved, and whatever becomes of it no search goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import mama_structs
from mama_structs.memory.engines.local.views import hnsw as vector_graph
from mama_structs.memory.engines.local.views.hnsw import Graph, GraphFailed, ServedGraph
from mama_structs.memory.engines.local.views.snapshots import SnapshotStore
from mama_structs.memory.engines.local.views.vector_index import VectorIndex

pytest.importorskip("hnswlib")
# Children import the package that is under test here.
SRC = str(Path(mama_structs.__file__).parents[1])
DIMENSIONS = 24


def clustered(count, *, seed=0):
    """Vectors that lie together as those of text do: a graph finds them."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((40, DIMENSIONS))
    vectors = centres[random.integers(0, 40, count)] + 0.5 * random.standard_normal((count, DIMENSIONS))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def filled(vectors, *, exact_up_to=100):
    index = VectorIndex(DIMENSIONS, exact_up_to=exact_up_to)
    for node, vector in enumerate(vectors):
        index.add(node, vector[None])
    return index


def recall(index, vectors, queries, *, live=None):
    scores = queries @ vectors.T
    if live is not None:
        scores[:, ~live] = -2
    found = 0
    for query, own in zip(queries, scores, strict=True):
        worst = np.partition(own, len(own) - 10)[len(own) - 10]
        matches = index.nearest(query, 10)
        assert 10 == len(matches)
        found += np.count_nonzero(own[matches.nodes] >= worst - 1e-6)
    return found / (10 * len(queries))


@pytest.fixture
def index():
    index = filled(clustered(1_500))
    assert index.settled(30)
    yield index
    index.close()


def test_small_stores_are_searched_exactly():
    """Up to the limit no graph is made."""
    index = filled(clustered(100), exact_up_to=100)

    assert index.settled(5)
    assert ("exact", None) == (index.stats()["mode"], index.stats()["recall"])


def test_above_the_limit_a_graph_is_built_behind_and_switched_to(monkeypatch):
    """Searches are exact while the graph is built, served by it afterwards, and right at every moment."""
    vectors, queries = clustered(4_000), clustered(50, seed=1)
    looked, publish = threading.Event(), ServedGraph._publish
    monkeypatch.setattr(ServedGraph, "_publish", lambda graph, proved: looked.wait() and publish(graph, proved))
    index = filled(vectors[:2_000])
    assert "building" == index.stats()["mode"]
    assert 1 == recall(index, vectors[:2_000], queries[:5])
    looked.set()
    for node in range(2_000, 4_000):
        index.add(node, vectors[node : node + 1])
        if node % 100 == 0:
            assert node == index.nearest(vectors[node], 1).nodes[0]

    assert index.settled(60)
    assert "hnsw" == index.stats()["mode"]
    assert index.stats()["recall"] >= 0.98
    assert recall(index, vectors, queries) >= 0.97
    index.close()
    assert 1 == recall(index, vectors, queries[:5])


def test_what_is_not_in_the_graph_yet_is_found(index):
    """A vector is found by the search after its add, though the graph is caught up with later."""
    fresh = clustered(200, seed=7)
    # How many came while it was built depends on the machine; so many more that it is worth to catch up are none.
    index._graph._fill(index._graph.proved.graph, index._rows.count)
    before = len(index._graph.proved.graph)
    for at, vector in enumerate(fresh):
        index.add(5_000 + at, vector[None])

    assert before == len(index._graph.proved.graph)
    assert list(range(5_000, 5_200)) == [int(index.nearest(vector, 1).nodes[0]) for vector in fresh]


def test_the_graph_catches_up(index):
    """After many adds all vectors are in the graph, and searches went on."""
    fresh = clustered(1_000, seed=7)
    for at, vector in enumerate(fresh):
        index.add(5_000 + at, vector[None])
        index.nearest(vector, 3)

    assert index.settled(30)
    assert 2_500 - len(index._graph.proved.graph) <= 256
    assert 5_999 == index.nearest(fresh[999], 1).nodes[0]


def test_a_graph_that_finds_too_little_is_refused(monkeypatch, caplog):
    """Random vectors have no neighbourhoods that a graph could follow: it is not used, which is said."""
    monkeypatch.setattr(vector_graph, "EFS", (10, 12))
    monkeypatch.setattr(vector_graph, "_AT_ONCE", 100)
    random = np.random.default_rng(0).standard_normal((3_000, 64)).astype(np.float32)
    random /= np.linalg.norm(random, axis=1, keepdims=True)
    index = VectorIndex(64, exact_up_to=1_000)
    for node, vector in enumerate(random):
        index.add(node, vector[None])

    assert index.settled(60)
    assert "exact" == index.stats()["mode"]
    assert "of the nearest; searching exactly" in caplog.text
    assert 1 == recall(index, random, np.ascontiguousarray(random[:20]))
    index.close()


def test_a_graph_that_finds_almost_enough_is_built_again_more_thoroughly(monkeypatch):
    """Before a graph is given up another plan is tried."""
    built = []

    def proof(self, graph):
        built.append(graph.plan)
        share = 0.9 if len(built) == 1 else 0.99
        return vector_graph.Proved(graph=graph, ef=64, compared=64, recall=share, count=len(graph))

    monkeypatch.setattr(vector_graph.ServedGraph, "_proof", proof)
    index = filled(clustered(300))

    assert index.settled(30)
    index.nearest(clustered(1)[0], 1)
    assert [plan for plan in vector_graph.PLANS if not plan.reduced] == built
    assert ("hnsw", 0.99) == (index.stats()["mode"], index.stats()["recall"])
    index.close()


def test_many_dimensions_are_halved_and_nothing_is_lost_by_it(tmp_path):
    """A graph over half of the dimensions finds nearly all, its answers are exact cosines, and it is loaded again."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((60, 256))
    vectors = centres[random.integers(0, 60, 3_000)] + 0.8 * random.standard_normal((3_000, 256))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    queries = (vectors[:20] + vectors[20:40]) / np.linalg.norm(vectors[:20] + vectors[20:40], axis=1, keepdims=True)
    index = VectorIndex(256, exact_up_to=1_000)
    for node, vector in enumerate(vectors):
        index.add(node, vector[None])
    assert index.settled(60)
    store = SnapshotStore(tmp_path, identity="x")
    assert store.write(1, index.parts())
    restored = VectorIndex.restore(store.load().parts, dimensions=256, exact_up_to=1_000)
    assert restored.settled(60)

    for one in (index, restored):
        assert (256, 128) == one._graph.proved.graph.basis.shape
        assert recall(one, vectors, queries) > 0.97
        matches = one.nearest(queries[0], 10)
        np.testing.assert_allclose(vectors[matches.nodes] @ queries[0], matches.scores, rtol=1e-5)
        one.close()
    assert one._graph._saved is not None


def test_no_more_of_what_a_graph_finds_is_compared_than_it_takes(monkeypatch):
    """Where the nearest few by half of the dimensions hold the nearest no more are read, else all that were found."""
    index = filled(clustered(1_500))
    assert index.settled(30)
    index.nearest(clustered(1)[0], 1)
    served = index._graph
    assert served.proved.compared <= 64
    compared = []
    scores = type(index._recent).scores
    monkeypatch.setattr(type(index._recent), "scores", lambda *call: compared.append(len(call[2])) or scores(*call))
    for few in (16, 64):
        monkeypatch.setattr(served, "proved", vector_graph.attrs.evolve(served.proved, ef=64, compared=few))
        index.nearest(clustered(1)[0], 4)

    assert [16, 64] == compared
    index.close()


def test_what_few_dimensions_cannot_tell_apart_is_found_with_all_of_them(monkeypatch):
    """Where half of the dimensions find too little, the graph is built over all."""
    proof = vector_graph.ServedGraph._proof

    def refusing(self, graph):
        found = proof(self, graph)
        return vector_graph.attrs.evolve(found, recall=0.5) if graph.basis is not None else found

    monkeypatch.setattr(vector_graph.ServedGraph, "_proof", refusing)
    monkeypatch.setattr(vector_graph, "_MANY", 1)
    index = filled(clustered(1_500))

    assert index.settled(30)
    index.nearest(clustered(1)[0], 1)
    assert "hnsw" == index.stats()["mode"]
    assert index._graph.proved.graph.basis is None
    index.close()


def test_a_graph_serves_while_a_load_goes_on():
    """What comes while it is built is compared one by one: it is not waited for."""
    index = filled(clustered(1_500), exact_up_to=10**6)
    served = vector_graph.ServedGraph(index._rows)
    counts = []
    publish, fill = served._publish, served._fill

    def loading(graph, count, **options):
        for at, vector in enumerate(clustered(50, seed=8)):
            index.add(9_000 + at, vector[None])
        return fill(graph, count, **options)

    served._fill = loading
    served._publish = lambda proved: (counts.append(len(proved.graph)), publish(proved))
    served._build()

    assert [1_500] == counts
    assert (1_550, "hnsw") == (index._rows.count, served.mode)
    served.close()


@pytest.mark.parametrize("method", ["query", "mark", "add"])
def test_whatever_the_graph_raises_searches_go_on_exactly(index, monkeypatch, caplog, method):
    """An error of the library costs the graph, never a search, is said once, and three of them end it."""

    def fails(*_, **__):
        raise GraphFailed("hnswlib failed: RuntimeError")

    with monkeypatch.context() as patch:
        patch.setattr(Graph, method, fails)
        for _ in range(6):
            index.remove(5)
            index.add(5, clustered(1, seed=50))
            index.remove(6)
            assert 5 == index.nearest(clustered(1, seed=50)[0], 1).nodes[0]
            for node in range(300):
                index.add(9_000 + node, clustered(1, seed=100 + node))
            for node in range(300):
                index.remove(9_000 + node)
            index.settled(30)
            index.add(6, clustered(1, seed=51))
    assert caplog.text.count("the vector graph failed (") == 1
    assert index.stats()["mode"] in {"exact", "hnsw"}
    assert 1 == recall(index, np.concatenate([clustered(1_500)[:0], _all(index)]), clustered(3, seed=3))


def _all(index):
    return np.concatenate([index.get(node) for node in range(1_500)])


def test_without_the_library_everything_works_exactly(monkeypatch):
    """Where hnswlib cannot be imported a large store is searched exactly."""
    monkeypatch.setattr(vector_graph, "_library", lambda: None)
    vectors = clustered(500)
    index = filled(vectors, exact_up_to=0)

    assert index.settled(5)
    assert "exact" == index.stats()["mode"]
    assert 1 == recall(index, vectors, clustered(5, seed=1))


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
def test_a_filter_gives_all_that_is_wanted(index, share):
    """However few a filter lets pass, as many come back as there are, each of them let pass."""
    vectors = clustered(1_500)
    mask = np.random.default_rng(0).random(1_500) < share
    for query in clustered(20, seed=1):
        matches = index.nearest(query, 20, mask)

        assert min(20, mask.sum()) == len(matches)
        assert mask[matches.nodes].all()
    # Those farthest from the query alone: the graph cannot fill this one.
    query = vectors[0]
    far = np.argsort(vectors @ query)[:700]
    mask = np.zeros(1_500, np.bool_)
    mask[far] = True

    assert far[-20:][::-1].tolist() == index.nearest(query, 20, mask).nodes.tolist()


def test_a_large_limit_is_filled(index):
    """A limit beyond what a graph is good for is served exactly."""
    assert 1_400 == len(index.nearest(clustered(1)[0], 1_400))
    assert 1_500 == len(index.nearest(clustered(1)[0], 10_000))


def test_removed_nodes_are_never_found(index):
    """Removing marks what is dead before the next search, a whole neighbourhood too, and the limit is still filled."""
    vectors = clustered(1_500)
    near = index.nearest(vectors[0], 300).nodes
    for node in near.tolist():
        index.remove(node)
    live = np.ones(1_500, np.bool_)
    live[near] = False

    assert "hnsw" == index.stats()["mode"]
    assert not set(index.nearest(vectors[0], 50).nodes.tolist()) & set(near.tolist())
    assert recall(index, vectors, clustered(30, seed=2), live=live) > 0.95


def test_the_graph_is_built_anew_when_a_third_is_dead(index):
    """What leads nowhere is dropped from the graph as well."""
    graph = index._graph.proved.graph
    for node in range(600):
        index.remove(node)
    assert index.settled(30)
    index.nearest(clustered(1)[0], 1)

    assert index._graph.proved.graph is not graph
    assert 999 >= len(index._graph.proved.graph) >= 900
    assert recall(index, clustered(1_500), clustered(20, seed=2), live=np.arange(1_500) >= 600) > 0.97


def test_a_graph_that_lost_its_own_vectors_is_built_anew(index, monkeypatch):
    """After many changes sampled vectors are looked for, and a graph that misses them is replaced."""
    graph = index._graph.proved.graph
    monkeypatch.setattr(vector_graph, "_PROBE_EVERY", 10)
    monkeypatch.setattr(
        vector_graph.ServedGraph,
        "_knows_itself",
        lambda self, asked: asked is not graph,
    )
    for node in range(20):
        index.remove(node)
    assert index.settled(30)
    index.nearest(clustered(1)[0], 1)

    assert "hnsw" == index.stats()["mode"]
    assert index._graph.proved.graph is not graph


def test_the_probe_sees_a_graph_that_is_torn(index):
    """A graph of other vectors than the rows' does not know itself; the one in use does."""
    served = index._graph
    torn = Graph(DIMENSIONS)
    torn.add(clustered(1_500, seed=12))

    assert served._knows_itself(served.proved.graph)
    assert not served._knows_itself(torn)


def test_recall_is_proved_again_when_the_store_has_doubled(index):
    """A proof for 1,500 vectors is none for 4,500: no graph serves that is twice as large as the last proof."""
    for at, vector in enumerate(clustered(3_000, seed=9)):
        index.add(2_000 + at, vector[None])
    index.nearest(clustered(1)[0], 1)

    assert index.settled(60)
    proved = index._graph.proved
    assert proved.count > 1_500
    assert len(proved.graph) < 2 * proved.count


def test_closing_stops_a_build():
    """Close leaves no thread behind, and the index still answers."""
    vectors = clustered(8_000)
    before = set(threading.enumerate())
    index = filled(vectors)
    index.close()
    index.close()

    assert set() == set(threading.enumerate()) - before
    assert 7 == index.nearest(vectors[7], 1).nodes[0]


def test_a_program_that_ends_while_a_graph_is_built_ends_well():
    """The interpreter goes away without waiting for the build and without a crash."""
    code = """
import numpy as np
from mama_structs.memory.engines.local.views.hnsw import ServedGraph
from mama_structs.memory.engines.local.views.vector_index import VectorIndex
# However fast the machine, the end comes while one is built: none is ever ready.
build = ServedGraph._build
ServedGraph._build = lambda graph: [build(graph) for _ in iter(graph._stop.is_set, True)]
ServedGraph._publish = lambda graph, proved: None
index = VectorIndex(64, exact_up_to=10)
vectors = np.random.default_rng(0).standard_normal((6_000, 64)).astype(np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
for node, vector in enumerate(vectors):
    index.add(node, vector[None])
print(index.stats()["mode"])
"""
    done = _run(code)

    assert (0, "building\n", "") == (done.returncode, done.stdout, done.stderr)


def _run(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": SRC},
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_a_stored_graph_is_loaded_and_not_built(index, tmp_path, monkeypatch):
    """From a snapshot the graph comes back with its proof, and what died or came since is known."""
    vectors = clustered(1_500)
    index.remove(3)
    store = SnapshotStore(tmp_path, identity="x")
    assert store.write(1, index.parts())
    monkeypatch.setattr(vector_graph.ServedGraph, "_build", None)
    restored = VectorIndex.restore(store.load().parts, dimensions=DIMENSIONS, exact_up_to=100)
    restored.remove(4)

    assert restored.settled(30)
    assert index.stats()["recall"] == restored.stats()["recall"]
    assert "hnsw" == restored.stats()["mode"]
    assert not {3, 4} & set(restored.nearest(vectors[3], 100).nodes.tolist())
    live = ~np.isin(np.arange(1_500), [3, 4])
    assert recall(restored, vectors, clustered(20, seed=1), live=live) > 0.97
    restored.close()


def test_a_graph_that_hardly_grew_is_not_written_again(index, tmp_path):
    """Hundreds of megabytes stay where they are, and what is missing is caught up with after loading."""
    store = SnapshotStore(tmp_path, identity="x")
    first = store.write(1, index.parts())
    index.saved(first.parts)
    for at, vector in enumerate(clustered(300, seed=4)):
        index.add(3_000 + at, vector[None])
    index.settled(30)
    second = store.write(2, index.parts())

    assert first.parts["graph"].files["graph"].stored == second.parts["graph"].files["graph"].stored
    restored = VectorIndex.restore(store.load().parts, dimensions=DIMENSIONS, exact_up_to=100)
    assert restored.settled(30)
    assert 3_299 == restored.nearest(clustered(300, seed=4)[299], 1).nodes[0]
    assert "hnsw" == restored.stats()["mode"]
    third = store.write(3, restored.parts())
    assert first.parts["graph"].files["graph"].stored == third.parts["graph"].files["graph"].stored
    restored.close()


def test_a_graph_of_more_rows_than_its_snapshot_is_left_out(index, tmp_path):
    """A graph that caught up while the snapshot was being written would hold rows that the snapshot has not."""
    parts = index.parts()
    for at, vector in enumerate(clustered(1_000, seed=4)):
        index.add(3_000 + at, vector[None])
    assert index.settled(30)
    generation = SnapshotStore(tmp_path, identity="x").write(1, parts)

    assert {} == generation.parts["graph"].files
    restored = VectorIndex.restore(generation.parts, dimensions=DIMENSIONS, exact_up_to=100)
    assert restored.settled(30)
    assert 1_500 == len(restored)
    restored.close()


DAMAGED = """
import sys
from pathlib import Path
import numpy as np
from mama_structs.memory.engines.local.views.snapshots import SnapshotStore
from mama_structs.memory.engines.local.views.vector_index import VectorIndex
generation = SnapshotStore(Path(sys.argv[1]), identity="x").load()
index = VectorIndex.restore(generation.parts, dimensions=24, exact_up_to=100)
query = np.load(sys.argv[2])
def show():
    print(*("none" if index is None else index.nearest(query, 5).nodes.tolist()))
show()
if index is not None:
    print(index.settled(30), index.stats()["mode"])
    show()
    index.close()
"""


def _truncate(path, other):
    os.truncate(path, path.stat().st_size // 2)


def _flip(path, other):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def _page(path, other):
    content = bytearray(path.read_bytes())
    content[4096:8192] = os.urandom(4096)
    path.write_bytes(content)


def _empty(path, other):
    path.write_bytes(b"")


def _foreign(path, other):
    path.write_bytes(other.read_bytes())


def _older(path, other):
    """An earlier graph of the same rows, as long as this one."""
    graph = Graph(DIMENSIONS)
    graph.add(clustered(1_500, seed=77))
    graph.save(path, at_most=1_500)


@pytest.mark.parametrize("damage", [_truncate, _flip, _page, _empty, _foreign, _older])
def test_a_damaged_graph_is_built_again_and_kills_nobody(index, tmp_path, damage):
    """Whatever the graph's file became, a fresh process answers exactly, builds it again and goes on."""
    generation = SnapshotStore(tmp_path / "views", identity="x").write(1, index.parts())
    file, other = (generation.parts["graph"].files[name].path for name in ("graph", "marks"))
    damage(file, other)
    query = clustered(1, seed=5)[0]
    np.save(tmp_path / "query.npy", query)
    done = _run(DAMAGED, tmp_path / "views", tmp_path / "query.npy")
    expected = " ".join(map(str, np.argsort(-(clustered(1_500) @ query))[:5]))

    assert (0, [expected, "True hnsw", expected]) == (done.returncode, done.stdout.splitlines()), done.stderr


@pytest.mark.parametrize("damage", [_truncate, _flip])
def test_damaged_vectors_are_not_used(tmp_path, damage):
    """Vectors that are not what was written give no index, and never a wrong answer."""
    index = filled(clustered(1_500), exact_up_to=10**6)
    SnapshotStore(tmp_path / "views", identity="x").write(1, index.parts())
    file = next((tmp_path / "views").glob("vectors-*"))
    damage(file, tmp_path / "views" / "manifest")
    np.save(tmp_path / "query.npy", clustered(1)[0])
    done = _run(DAMAGED, tmp_path / "views", tmp_path / "query.npy")

    assert (0, "n o n e\n") == (done.returncode, done.stdout), done.stderr
