"""Vector index, compared with a brute-force search."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.memory.engines.local.views import hnsw
from mama_structs.memory.engines.local.views import vector_index as module
from mama_structs.memory.engines.local.views import vector_store as rows_module
from mama_structs.memory.engines.local.views.hnsw_libraries import LIBRARIES
from mama_structs.memory.engines.local.views.snapshots import SnapshotStore
from mama_structs.memory.engines.local.views.vector_index import VectorIndex

POOL = np.array([[x, y, z] for x in (-1, 0, 1, 2) for y in (-1, 0.0, 1) for z in (-0.0, 1)], np.float32)
POOL = POOL[np.linalg.norm(POOL, axis=1) > 0]
POOL /= np.linalg.norm(POOL, axis=1, keepdims=True)


@pytest.fixture(params=[None, *LIBRARIES], ids=lambda library: "exact" if library is None else library.library)
def exact_up_to(request, monkeypatch):
    """Return a limit that selects exact search, or graphs of one library."""
    if request.param is None:
        return 1_000
    pytest.importorskip(request.param.library, reason=f"{request.param.library} is not installed")
    monkeypatch.setattr(hnsw, "find_library", lambda: request.param)
    return 0


choices = st.lists(st.integers(0, len(POOL) - 1), min_size=0, max_size=3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), choices),
        st.tuples(st.just("remove"), st.integers(0, 30)),
        st.tuples(st.just("change"), st.integers(0, 30), choices),
        st.tuples(
            st.just("search"), st.integers(0, len(POOL) - 1), st.integers(0, 40), st.none() | st.integers(0, 2**31)
        ),
        st.tuples(st.just("save")),
        st.tuples(st.just("restore")),
    ),
    max_size=30,
)


def some(count, dimensions=16, *, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def filled(vectors, *, exact_up_to=10**6):
    index = VectorIndex(vectors.shape[1], exact_up_to=exact_up_to)
    for node, vector in enumerate(vectors):
        index.add(node, vector[None])
    return index


def check_many(index, queries, limit, mask=None):
    """Assert that batched and single queries agree: equal cosines, and equal nodes except for ties."""
    if len({len(query) for query in queries}) == 1 < len(queries[0]):
        for query, at_once in zip(queries, index.nearest_many(np.stack(queries), limit, mask), strict=True):
            alone = index.nearest(query, limit, mask)

            assert pytest.approx(alone.scores.tolist(), abs=1e-5) == at_once.scores.tolist()
            assert len(set(at_once.nodes.tolist())) == len(at_once)
            assert pytest.approx(at_once.scores.tolist(), abs=1e-5) == index.similarities(query, at_once.nodes).tolist()


def check_nearest(index, model, query, limit, mask=None):
    """Assert that a query returns the result of a brute-force search over a dict of vectors."""
    scores = {
        node: float((vectors @ query).max())
        for node, vectors in model.items()
        if len(vectors) and (mask is None or (node < len(mask) and mask[node]))
    }
    matches = index.nearest(query, limit, mask)
    check_many(index, [query, -query, *POOL[:3]], limit, mask)
    nodes, values = matches.nodes.tolist(), matches.scores.tolist()

    assert min(limit, len(scores)) == len(nodes) == len(set(nodes))
    assert sorted(scores.values(), reverse=True)[: len(nodes)] == pytest.approx(values, abs=1e-5)
    assert [scores[node] for node in nodes] == pytest.approx(values, abs=1e-5)
    assert sorted(zip(values, nodes, strict=True), reverse=True) == list(zip(values, nodes, strict=True))
    # Equal vectors have equal scores, so the newest of them come first.
    tied = {node: model[node].tobytes() for node in scores}
    for node in nodes:
        newer = [other for other, same in tied.items() if same == tied[node] and other > node]
        assert set(newer) <= set(nodes)


@attrs.define
class Run:
    """An index, and the dict of vectors with which its results must agree."""

    exact_up_to: int
    store: SnapshotStore
    index: VectorIndex = attrs.field(
        default=attrs.Factory(lambda run: VectorIndex(3, exact_up_to=run.exact_up_to), True)
    )
    model: dict = attrs.field(factory=dict)
    next: int = 0
    changes: int = 0

    def add(self, chosen):
        self._put(self.next, chosen)
        self.next += 1 + len(chosen) % 2

    def remove(self, number):
        if self.model:
            node = sorted(self.model)[number % len(self.model)]
            self.index.remove(node)
            del self.model[node]

    def change(self, number, chosen):
        if self.model:
            node = sorted(self.model)[number % len(self.model)]
            self.index.remove(node)
            self._put(node, chosen)

    def search(self, query, limit, seed):
        mask = None
        if seed is not None:
            generator = np.random.default_rng(seed)
            mask = generator.random(generator.integers(0, self.next + 3)) < generator.choice([0.1, 0.5, 0.9])
        check_nearest(self.index, self.model, POOL[query], limit, mask)

    def save(self):
        self.changes += 1
        assert self.index.record_saved_files(self.store.write(self.changes, self.index.parts()).parts)

    def restore(self):
        self.save()
        self.index.close()
        generation = self.store.load()
        assert [] == generation.damaged
        self.index = VectorIndex.restore(generation.parts, dimensions=3, exact_up_to=self.exact_up_to)
        assert self.index.wait_until_idle(10)

    def _put(self, node, chosen):
        self.model[node] = POOL[chosen]
        self.index.add(node, POOL[chosen])


@pytest.mark.parametrize("held", [10**6, 8])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_index_agrees_with_brute_force(exact_up_to, held, steps):
    """After any changes and snapshots, in exact and graph mode, in memory and in files."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Lower all size limits, so that a few vectors reach them.
        for owner, name, value in (
            (os, "fsync", lambda fd: None),
            (rows_module, "BLOCK_ROWS", 8),
            (rows_module, "MIN_ROWS_ON_DISK", held),
            (rows_module, "READ_ROWS", 3),
            (rows_module, "MIN_BLOCK_ROWS", 2),
            (rows_module, "GATHER_ROWS", 4),
            (rows_module, "MAX_CACHED_ROWS", 6),
            (module, "MIN_DEAD_TO_COMPACT", 4),
            (module, "MAX_SCANNED_SELECTION", 3),
        ):
            patch.setattr(owner, name, value)
        run = Run(exact_up_to, SnapshotStore(Path(folder), identity="x"))
        for name, *arguments in steps:
            getattr(run, name)(*arguments)
        for query in range(0, len(POOL), 5):
            check_nearest(run.index, run.model, POOL[query], 5)
        having = {node: vectors for node, vectors in run.model.items() if len(vectors)}

        assert len(having) == len(run.index) == run.index.stats()["nodes"]
        assert (
            len({row.tobytes() for vectors in having.values() for row in vectors + 0}) == run.index.stats()["vectors"]
        )
        for node in range(run.next + 2):
            assert run.model.get(node, POOL[:0]).tolist() == run.index.get(node).tolist()
            assert (node in having) == (node in run.index)
        nodes = np.arange(run.next + 2)
        expected = [(having[node] @ POOL[0]).max() if node in having else 0 for node in nodes]
        assert expected == pytest.approx(run.index.similarities(POOL[0], nodes).tolist(), abs=1e-5)
        assert exact_up_to or not having or run.index.stats()["mode"] == "hnsw"
        run.index.close()


def test_search_finds_others_among_two_thousand_equal_vectors(exact_up_to):
    """Each of 300 others is found by its own vector, and a filter returns all its matches."""
    vectors = np.concatenate([np.repeat(some(1, seed=5), 2_000, axis=0), some(300)])
    index = filled(vectors, exact_up_to=exact_up_to)
    own = [int(index.nearest(vectors[node], 1).nodes[0]) for node in range(2_000, 2_300)]
    among = index.nearest(vectors[0], 2_100)
    mask = np.arange(2_300) % 100 == 0

    assert list(range(2_000, 2_300)) == own
    assert list(range(1_999, -1, -1)) == among.nodes[:2_000].tolist()
    assert 2_100 == len(among)
    assert list(range(1_900, -1, -100)) == index.nearest(vectors[0], 20, mask).nodes.tolist()
    assert 23 == len(index.nearest(vectors[0], 50, mask))
    assert 301 == index.stats()["vectors"]
    index.close()


def test_nodes_with_equal_vectors_are_removed_in_any_order():
    """Removing is fast, and the row is dead after the last node is removed."""
    index = filled(np.repeat(some(1), 3_000, axis=0))
    for node in [*range(0, 3_000, 2), *range(2_999, 0, -2)]:
        index.remove(node)

    assert 0 == len(index)
    assert 0 == len(index.nearest(some(1)[0], 5))


def test_equal_scores_return_newest_nodes():
    """If more nodes are equal than the limit allows, the newest ones are returned."""
    vectors = np.eye(8, dtype=np.float32)
    index = filled(np.concatenate([vectors] * 3))
    query = np.zeros(8, np.float32)
    query[:2] = np.sqrt(0.5)

    assert [17, 16, 9] == index.nearest(query, 3).nodes.tolist()
    assert [17, 16, 9, 8, 1, 0, 23] == index.nearest(query, 7).nodes.tolist()


def test_node_is_scored_by_its_best_piece():
    """A node with several pieces is returned once."""
    index = VectorIndex(4, exact_up_to=10)
    axes = np.eye(4, dtype=np.float32)
    index.add(3, axes[:3])
    index.add(5, axes[1:2])
    matches = index.nearest(axes[1], 5)

    assert ([5, 3], [1, 1]) == (matches.nodes.tolist(), matches.scores.tolist())
    assert axes[:3].tolist() == index.get(3).tolist()
    assert [1, 0, 0] == index.similarities(axes[1], np.array([3, 4, 99])).tolist()


def test_index_of_no_or_one_vector(exact_up_to):
    """An empty index returns nothing, an index of one vector returns it."""
    index = VectorIndex(4, exact_up_to=exact_up_to)
    query = np.eye(4, dtype=np.float32)[0]
    assert [] == index.nearest(query, 5).nodes.tolist()
    index.add(0, np.empty((0, 4), np.float32))
    assert [] == index.nearest(query, 5).nodes.tolist()
    index.add(7, query[None])

    assert [7] == index.nearest(query, 5).nodes.tolist()
    assert [] == index.nearest(query, 0).nodes.tolist()
    assert [] == index.nearest(query, 5, np.zeros(3, np.bool_)).nodes.tolist()
    assert [7] == index.nearest(np.zeros(4, np.float32), 5).nodes.tolist()
    index.close()


@pytest.mark.parametrize(
    "vectors",
    [
        np.full((1, 4), np.nan, np.float32),
        np.full((1, 4), np.inf, np.float32),
        np.zeros((1, 4), np.float32),
        np.ones((1, 4), np.float32),
        np.ones((1, 3), np.float32),
        np.ones(4, np.float32),
    ],
)
def test_add_rejects_invalid_vectors(vectors):
    """NaN, infinity, zero, another length or shape raise an error, and nothing is added."""
    index = VectorIndex(4, exact_up_to=10)
    with pytest.raises(InvalidArgument):
        index.add(0, vectors)

    assert 0 == len(index) == index.stats()["vectors"]


def test_add_rejects_node_with_vectors():
    """Its vectors must be removed first."""
    index = filled(some(2))
    with pytest.raises(InvalidArgument, match="node must be a new one"):
        index.add(1, some(1))
    with pytest.raises(InvalidArgument, match="node must be a new one"):
        index.add(-1, some(1))


@pytest.mark.parametrize("query", [np.full(16, np.nan), np.full(16, np.inf), np.ones(15), np.ones((1, 16))])
def test_query_rejects_invalid_vector(query):
    """A query must be finite and of the right shape."""
    with pytest.raises(InvalidArgument):
        filled(some(2)).nearest(query, 1)
    with pytest.raises(InvalidArgument):
        filled(some(2)).similarities(query, np.array([0]))


def test_vector_added_again_reuses_its_label():
    """Updating a memory removes and adds its vector, which must not use up a row."""
    vectors = some(100)
    index = filled(vectors)
    for _ in range(50):
        index.remove(3)
        index.add(3, vectors[3:4])

    assert (100, 0) == (index.stats()["vectors"], index.stats()["dead"])
    assert 3 == index.nearest(vectors[3], 1).nodes[0]


def test_dead_rows_are_dropped_when_they_are_a_third():
    """The remaining vectors are still found."""
    vectors = some(600)
    index = filled(vectors)
    for node in range(0, 600, 2):
        index.remove(node)

    assert 300 == index.stats()["vectors"]
    assert index.stats()["dead"] <= 200
    assert [1, 3] == [int(index.nearest(vectors[node], 1).nodes[0]) for node in (1, 3)]
    assert vectors[599].tolist() == index.get(599)[0].tolist()


def test_snapshot_files_are_reused(tmp_path, monkeypatch):
    """Rows in a snapshot stay in their file, and later snapshots keep the segment."""
    monkeypatch.setattr(rows_module, "BLOCK_ROWS", 100)
    vectors = some(300)
    index = filled(vectors[:200])
    store = SnapshotStore(tmp_path, identity="x")
    parts = index.parts()
    for node in range(200, 300):
        index.add(node, vectors[node : node + 1])
    generation = store.write(1, parts)
    blocks = index._rows._layout[0]

    assert 300 == index.unsaved
    assert index.record_saved_files(generation.parts)
    assert 100 == index.unsaved
    assert all(one is other for one, other in zip(blocks, index._rows._layout[0], strict=True))
    assert [int(index.nearest(vector, 1).nodes[0]) for vector in vectors] == list(range(300))
    first = generation.parts["vectors"].segments[0].stored
    again = store.write(2, index.parts())
    assert first == again.parts["vectors"].segments[0].stored
    assert 2 == len(again.parts["vectors"].segments)
    restored = VectorIndex.restore(store.load().parts, dimensions=16, exact_up_to=10**6)
    assert [int(restored.nearest(vector, 1).nodes[0]) for vector in vectors] == list(range(300))
    third = store.write(3, restored.parts())
    assert [one.stored for one in again.parts["vectors"].segments] == [
        one.stored for one in third.parts["vectors"].segments
    ]


def test_large_index_reads_rows_from_files(tmp_path, monkeypatch):
    """After writing or loading a snapshot, only newer rows are in memory."""
    monkeypatch.setattr(rows_module, "BLOCK_ROWS", 100)
    monkeypatch.setattr(rows_module, "MIN_ROWS_ON_DISK", 250)
    vectors = some(400)
    index = filled(vectors[:200])
    store = SnapshotStore(tmp_path, identity="x")

    def own(one):
        return sum(len(block) for block in one._rows._layout[0] if isinstance(block, np.ndarray))

    assert index.record_saved_files(store.write(1, index.parts()).parts)
    assert 200 == own(index)
    for node in range(200, 400):
        index.add(node, vectors[node : node + 1])
    assert index.record_saved_files(store.write(2, index.parts()).parts)
    assert 0 == own(index)
    index.add(400, some(1, seed=5))
    restored = VectorIndex.restore(store.load().parts, dimensions=16, exact_up_to=10**6)
    assert 0 == own(restored)
    for one in (index, restored):
        assert [int(one.nearest(vector, 1).nodes[0]) for vector in vectors] == list(range(400))
        assert vectors[[3, 399, 3]].tobytes() == one.pieces([3, 399, 3])[0].tobytes()


def test_files_with_old_labels_are_not_reused(tmp_path):
    """Dropping dead rows changes the labels, so older snapshot files are invalid."""
    index = filled(some(200))
    parts = SnapshotStore(tmp_path, identity="x").write(1, index.parts()).parts
    for node in range(100):
        index.remove(node)

    assert not index.record_saved_files(parts)
    assert not index.record_saved_files({})
    assert [150] == index.nearest(some(200)[150], 1).nodes.tolist()


def test_snapshot_with_other_dimensions_is_rejected(tmp_path):
    """Its vectors are of another embedder."""
    parts = SnapshotStore(tmp_path, identity="x").write(1, filled(some(20)).parts()).parts

    assert VectorIndex.restore(parts, dimensions=8, exact_up_to=10) is None
    assert VectorIndex.restore({}, dimensions=16, exact_up_to=10) is None


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("alive", np.ones(3, np.bool_)),
        ("prints", np.ones(3, np.uint64)),
        ("piece_labels", np.full(20, 20, np.int32)),
        ("piece_labels", np.full(20, -1, np.int32)),
        ("piece_nodes", np.zeros(3, np.int32)),
        ("piece_nodes", np.array([0, 1] * 10, np.int32)),
        ("tail", np.zeros((20, 4), np.float32)),
        ("tail", np.zeros((20, 16), np.float64)),
    ],
)
def test_inconsistent_snapshot_is_rejected(tmp_path, name, array):
    """Valid checksums do not suffice: a faulty program may have written it."""
    parts = filled(some(20)).parts()
    part = attrs.evolve(parts["vectors"], arrays={**parts["vectors"].arrays, name: array})
    loaded = SnapshotStore(tmp_path, identity="x").write(1, {"vectors": part}).parts

    assert VectorIndex.restore(loaded, dimensions=16, exact_up_to=10) is None


def test_number_of_pieces_is_between_one_and_two_per_node():
    """The number of searched vectors grows with the share of nodes that have several."""
    index = VectorIndex(16, exact_up_to=100)
    assert 10 == index._count_pieces(10)
    for node in range(4):
        index.add(node, some(2 if node == 3 else 1, seed=node))

    assert 15 == index._count_pieces(10)
