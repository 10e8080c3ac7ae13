"""Set operations on arrays of nodes agree with those of Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.memory.types.engine import find_positions, in_sorted, union_nodes

NODES = st.lists(st.integers(-1, 12), max_size=8).map(lambda nodes: np.array(nodes, np.int64))


@given(parts=st.lists(NODES, max_size=4))
def test_union_contains_each_node_once_in_order(parts):
    assert sorted({node for part in parts for node in part.tolist()}) == union_nodes(parts).tolist()


@given(nodes=NODES, others=NODES)
def test_positions_are_indexes_in_the_sorted_nodes(nodes, others):
    known = union_nodes([others])
    expected = [known.tolist().index(node) if node in known else -1 for node in nodes.tolist()]

    assert expected == find_positions(nodes, known).tolist()
    assert [position >= 0 for position in expected] == in_sorted(nodes, known).tolist()


def test_positions_have_the_shape_of_the_nodes():
    nodes = np.array([[3, 5], [7, 3]], np.int64)

    assert [[0, -1], [1, 0]] == find_positions(nodes, np.array([3, 7], np.int64)).tolist()
    assert (2, 2) == find_positions(nodes, nodes[:0, 0]).shape
