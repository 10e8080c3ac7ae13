"""`ForkableMap`: a mapping whose forks share unchanged entries."""

import tracemalloc

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from mama_structs.refs.store.entries import ForkableMap


class ForkableMapAgainstDicts(RuleBasedStateMachine):
    """Compares forked mappings with copied dicts under any sequence of writes and forks."""

    maps = Bundle("maps")

    def __init__(self):
        super().__init__()
        self.all = []

    @rule(target=maps)
    def new(self):
        pair = (ForkableMap(), {})
        self.all.append(pair)
        return pair

    @rule(pair=maps, key=st.integers(0, 12), value=st.integers())
    def write(self, pair, key, value):
        pair[0][key] = value
        pair[1][key] = value

    @rule(target=maps, pair=maps)
    def fork(self, pair):
        child = (pair[0].fork(), dict(pair[1]))
        self.all.append(child)
        return child

    @invariant()
    def they_agree(self):
        for layers, model in self.all:
            assert list(model.items()) == list(layers.items())
            assert [model.get(key) for key in range(13)] == [layers.get(key) for key in range(13)]


TestForkableMap = ForkableMapAgainstDicts.TestCase


def test_forkable_map_layers_grow_logarithmically():
    """Ten thousand writes, each followed by a fork, give about twenty layers."""
    layers = ForkableMap()
    for number in range(10_000):
        layers[number] = number
        layers.fork()

    assert len(layers.maps) < 20
    assert 10_000 == len(list(layers.items()))


def test_forkable_map_fork_does_not_copy_entries():
    """A thousand forks of ten thousand entries use less memory than five copies."""
    layers = ForkableMap()
    for number in range(10_000):
        layers[number] = number
    layers.fork()
    copy = dict(layers.items()).__sizeof__()
    tracemalloc.start()
    forks = [layers.fork() for _ in range(1_000)]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert 1_000 == len(forks)
    assert used < 5 * copy
