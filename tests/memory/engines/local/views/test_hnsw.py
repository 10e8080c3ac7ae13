"""
Wrapper of the HNSW libraries.

Each known hazard of voyager and of hnswlib has a test here or in test_background_graph.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import mama_structs
from mama_structs.memory.engines.local.views.hnsw import GraphBusy, GraphError, GraphParameters, HnswGraph

pytestmark = pytest.mark.usefixtures("library")
# Child processes must import the package under test.
SRC = str(Path(mama_structs.__file__).parents[1])


def some(count, dimensions=8, *, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def graph_of(vectors, **keywords):
    graph = HnswGraph(vectors.shape[1], **keywords)
    graph.add(vectors)
    return graph


def exact(vectors, queries, limit):
    return np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :limit]


def rescored(graph, vectors, queries, limit, *, ef):
    """Return the best labels of a query by their exact scores. An index of bytes returns them in about this order."""
    found = graph.query(queries, ef, ef=ef)
    order = np.argsort([-(vectors[own] @ query) for own, query in zip(found, queries, strict=True)], kind="stable")
    return np.take_along_axis(found, order, axis=1)[:, :limit]


def test_query_finds_nearest_vectors():
    """With enough candidates, the labels equal those of an exact scan."""
    vectors, queries = some(300), some(20, seed=1)

    assert exact(vectors, queries, 10).tolist() == rescored(graph_of(vectors), vectors, queries, 10, ef=200).tolist()


def test_query_accepts_vector_whose_projection_is_zero():
    """Such a query finds any vectors."""
    graph = HnswGraph(8, basis=np.eye(8, 4, dtype=np.float32))
    graph.add(some(20))

    assert (1, 3) == graph.query(np.eye(8, dtype=np.float32)[7:], 3, ef=10).shape


def test_query_limit_is_clamped_to_live_vectors():
    """The library raises if it finds fewer vectors than requested."""
    vectors = some(5)
    graph = graph_of(vectors)
    graph.mark(np.array([True, False, True, False, True]))

    assert 3 == graph.live
    assert {0, 2, 4} == set(graph.query(vectors[:1], 100, ef=10)[0].tolist())
    graph.mark(np.zeros(5, np.bool_))
    assert (2, 0) == graph.query(vectors[:2], 3, ef=10).shape
    assert (1, 0) == HnswGraph(8).query(vectors[:1], 3, ef=10).shape


def test_query_returns_fewer_vectors_if_others_cannot_be_reached(monkeypatch):
    """The libraries raise if they find fewer than requested, although more are live."""
    graph = graph_of(some(100))
    query, asked = graph._index.query, []

    def limited(vectors, limit, *, ef):
        asked.append(limit)
        if limit > 90:
            raise RuntimeError("fewer than expected")
        return query(vectors, limit, ef=ef)

    monkeypatch.setattr(graph._index, "query", limited)

    assert (1, 87) == graph.query(some(1), 128, ef=128).shape
    assert [100, 87] == asked


def test_query_raises_graph_error_if_library_fails(monkeypatch):
    graph = graph_of(some(100))
    monkeypatch.setattr(graph._index, "query", lambda *_, **__: 1 / 0)
    with pytest.raises(GraphError, match="failed: ZeroDivisionError"):
        graph.query(some(1), 50, ef=60)


def test_marked_vectors_are_hidden_until_unmarked():
    """Marking twice is allowed."""
    vectors = some(50)
    graph = graph_of(vectors)
    alive = np.ones(50, np.bool_)
    alive[7] = False
    for _ in range(2):
        graph.mark(alive)
        assert 7 not in graph.query(vectors[7:8], 49, ef=100)[0]
    for _ in range(2):
        graph.mark(np.ones(50, np.bool_))
        assert 7 == graph.query(vectors[7:8], 1, ef=100)[0, 0]
    assert 50 == graph.live


def test_marks_of_missing_vectors_are_ignored():
    """While a graph is built, there may be more marks than vectors."""
    graph = graph_of(some(3))
    graph.mark(np.array([False, True, True, False]))

    assert (3, 2) == (len(graph), graph.live)


def test_capacity_grows_before_it_is_full():
    """Any number of vectors can be added, singly or in batches, from an initial capacity of one."""
    vectors = some(700)
    graph = HnswGraph(8, capacity=1)
    for at in (0, 1, 2, 3, 4, 5):
        graph.add(vectors[at : at + 1])
    graph.add(vectors[6:699])
    graph.add(vectors[699:])

    assert 700 == len(graph) == graph.live
    assert exact(vectors, vectors[:5], 5).tolist() == rescored(graph, vectors, vectors[:5], 5, ef=300).tolist()


@pytest.mark.parametrize(
    "vectors",
    [
        np.full((1, 8), np.nan, np.float32),
        np.full((1, 8), np.inf, np.float32),
        np.zeros((1, 8), np.float32),
        np.ones((1, 8), np.float64),
        np.ones((1, 7), np.float32),
        np.ones(8, np.float32),
    ],
)
def test_invalid_vectors_are_rejected(vectors):
    """The library silently accepts NaN, infinity, zero vectors, wrong types and widths, in additions and queries."""
    graph = graph_of(some(3))
    with pytest.raises(ValueError, match="vectors must be"):
        graph.add(vectors)
    with pytest.raises(ValueError, match="vectors must be"):
        graph.query(vectors, 1, ef=10)

    assert 3 == len(graph)


def test_read_only_vectors_are_accepted():
    """Rows of snapshot files are read-only, and voyager rejects such arrays."""
    vectors = some(20)
    vectors.flags.writeable = False

    assert list(range(20)) == graph_of(vectors).query(vectors, 1, ef=50)[:, 0].tolist()


def test_candidate_count_is_set_for_new_and_loaded_graphs(tmp_path):
    """The library resets the number of candidates when it loads a graph."""
    vectors, queries = some(2_000, 32), some(50, 32, seed=1)
    graph = graph_of(vectors)
    path = tmp_path / "graph"
    marked = graph.save(path, max_vectors=2_000)
    loaded = HnswGraph.load(path, dimensions=32, plan=GraphParameters(), marked=marked)
    right = exact(vectors, queries, 10)
    few, many = (
        np.mean(
            [len(set(a) & set(b)) for a, b in zip(right, rescored(loaded, vectors, queries, 10, ef=ef), strict=True)]
        )
        for ef in (10, 400)
    )

    assert graph.query(queries, 10, ef=400).tolist() == loaded.query(queries, 10, ef=400).tolist()
    assert few < 9
    assert many > 9.8


def test_loaded_graph_keeps_marks_and_can_grow(tmp_path):
    """Marks can be removed after loading."""
    vectors = some(40)
    graph = graph_of(vectors[:30])
    alive = np.arange(30) != 4
    graph.mark(alive)
    path = tmp_path / "graph"
    loaded = HnswGraph.load(path, dimensions=8, plan=GraphParameters(), marked=graph.save(path, max_vectors=30))

    assert 29 == loaded.live
    assert 4 not in loaded.query(vectors[4:5], 29, ef=50)[0]
    loaded.mark(np.ones(30, np.bool_))
    loaded.add(vectors[30:])
    assert exact(vectors, vectors, 3).tolist() == loaded.query(vectors, 3, ef=50).tolist()


def test_save_to_missing_directory_raises_oserror(tmp_path):
    """In this case hnswlib reports no error."""
    with pytest.raises(OSError, match="No such file"):
        graph_of(some(10)).save(tmp_path / "none" / "graph", max_vectors=10)


def test_save_to_full_disk_raises_oserror(tmp_path, child_code):
    """The libraries report no error if they are given a path and truncate the file."""
    code = f"""
{child_code}
import resource, sys
from pathlib import Path
import numpy as np
from mama_structs.memory.engines.local.views.hnsw import HnswGraph
graph = HnswGraph(64)
graph.add(np.random.default_rng(0).standard_normal((500, 64)).astype(np.float32))
sys.dont_write_bytecode = True  # as in test_backup.py
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    graph.save(Path({str(tmp_path / "graph")!r}), max_vectors=500)
except OSError as error:
    print("noticed")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SRC}, check=False, capture_output=True, text=True
    )

    assert "noticed\n" == done.stdout, done.stderr


def test_save_fails_if_graph_has_grown(tmp_path):
    """A snapshot of 10 rows must not contain a graph of 11."""
    assert graph_of(some(11)).save(tmp_path / "graph", max_vectors=10) is None
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize(
    "said",
    [
        {"marked": np.zeros(29, np.bool_)},
        {"marked": np.zeros(31, np.bool_)},
        {"plan": GraphParameters(m=8)},
        {"plan": GraphParameters(ef_construction=77)},
    ],
)
def test_load_rejects_file_that_differs_from_manifest(tmp_path, said):
    """Count, M and ef_construction must be equal."""
    path = tmp_path / "graph"
    marked = graph_of(some(30)).save(path, max_vectors=30)
    with pytest.raises(GraphError):
        HnswGraph.load(path, **{"dimensions": 8, "plan": GraphParameters(), "marked": marked} | said)


def test_load_rejects_file_that_is_no_graph(tmp_path, library):
    """Errors of the libraries are converted to one error type."""
    (tmp_path / "graph").write_bytes(b"")
    with pytest.raises(GraphError, match=f"{library} failed"):
        HnswGraph.load(tmp_path / "graph", dimensions=8, plan=GraphParameters(), marked=np.zeros(1, np.bool_))


def test_large_components_are_stored_as_the_bound():
    """One component of 0.99 does not coarsen the others. The library would reject vectors beyond its range."""
    vectors = some(200, 64)
    vectors[7] = np.eye(64)[0]
    graph = graph_of(vectors, bound=0.25)

    assert exact(vectors, vectors, 1).tolist() == rescored(graph, vectors, vectors, 1, ef=60).tolist()


def test_voyager_stores_one_byte_per_component(tmp_path, library):
    for dimensions in (64, 192):
        graph_of(some(500, dimensions)).save(tmp_path / str(dimensions), max_vectors=500)
    grown = (tmp_path / "192").stat().st_size - (tmp_path / "64").stat().st_size

    assert {"voyager": 1, "hnswlib": 4}[library] * 128 * 500 == grown


def test_equal_input_yields_identical_file(tmp_path):
    """With one thread and a fixed seed, the bytes are equal."""
    for name in "ab":
        graph_of(some(400)).save(tmp_path / name, max_vectors=400)

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_concurrent_operations_are_serialized(tmp_path):
    """Threads add, query, mark and save at the same time, but never run inside the library concurrently."""
    vectors = some(1_500, 16)
    graph = graph_of(vectors[:100], capacity=100)
    errors = []

    def run(work):
        try:
            work()
        except Exception as error:
            errors.append(error)

    def add():
        for at in range(100, 1_500, 20):
            graph.add(vectors[at : at + 20], threads=2)

    def query():
        for at in range(300):
            found = graph.query(vectors[at % 100][None], 5, ef=50)
            assert found.max() < 1_500
            assert 5 == found.shape[1]

    def mark():
        for at in range(100):
            alive = np.ones(100, np.bool_)
            alive[at : at + 2] = False
            graph.mark(alive)
        graph.mark(np.ones(100, np.bool_))

    def save():
        for _ in range(5):
            graph.save(tmp_path / "graph", max_vectors=10_000)

    threads = [threading.Thread(target=run, args=(work,)) for work in (add, query, query, mark, save)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == errors
    assert 1_500 == graph.live
    assert np.mean(graph.query(vectors, 1, ef=100)[:, 0] == np.arange(1_500)) > 0.99


def test_query_times_out_while_vectors_are_added():
    """The adding thread can see that a query is waiting."""
    graph = graph_of(some(10))
    seen = []
    with graph._lock:
        thread = threading.Thread(target=lambda: seen.append(graph.query(some(1), 1, ef=10)))
        thread.start()
        while not graph._waiting:
            pass
        with pytest.raises(GraphBusy):
            graph.query(some(1), 1, ef=10, wait=0.001)
        with pytest.raises(GraphBusy):
            graph.mark(np.ones(10, np.bool_), wait=0)
    thread.join()

    assert 1 == len(seen)
    assert not graph._waiting


TRUNCATED_GRAPH_SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from mama_structs.memory.engines.local.views.hnsw import HnswGraph, GraphError, GraphParameters
path = Path(sys.argv[1])
whole = path.read_bytes()
for length in [*range(0, 120, 7), *range(120, len(whole), 997), len(whole) - 1]:
    path.write_bytes(whole[:length])
    try:
        HnswGraph.load(path, dimensions=8, plan=GraphParameters(), marked=np.zeros(500, np.bool_))
    except GraphError:
        continue
    print("loaded", length)
print("lives")
"""


def test_truncated_file_raises_instead_of_crashing(tmp_path, child_code):
    """Truncation after the hash comparison is detected by the file length."""
    graph_of(some(500)).save(tmp_path / "graph", max_vectors=500)
    done = subprocess.run(
        [sys.executable, "-c", child_code + TRUNCATED_GRAPH_SCRIPT, str(tmp_path / "graph")],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHONPATH": SRC},
    )

    assert (0, "lives\n") == (done.returncode, done.stdout), done.stderr


def test_vectors_added_in_slices_are_projected_in_one_step(monkeypatch):
    """
    Queries run between the slices.

    The projection is slow for few rows, so it is computed for all.
    """
    graph = HnswGraph(8, basis=np.eye(8, 4, dtype=np.float32))
    reduced, held = [], []
    own, room = graph._project, graph._ensure_capacity
    monkeypatch.setattr(graph, "_project", lambda vectors: reduced.append(len(vectors)) or own(vectors))
    monkeypatch.setattr(graph, "_ensure_capacity", lambda end: held.append(end) or room(end))
    graph.add(some(100, 8), max_lock_seconds=0.0)

    assert [100] == reduced
    assert len(held) > 20
    assert 100 == len(graph)
