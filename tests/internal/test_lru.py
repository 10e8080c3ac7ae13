"""The LRU cache."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from mama_structs._internal.lru import Lru
from mama_structs.testing import FakeClock


@given(
    st.lists(st.tuples(st.sampled_from("gpd"), st.integers(0, 5), st.integers(0, 4))),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(0, 6)),
)
def test_lru_matches_model(steps, entries, most):
    """Number and cost stay within their limits, and the least recently used entries are evicted."""
    cache, model = Lru(entries, max_cost=most), OrderedDict()
    for step, key, cost in steps:
        if step == "g":
            assert model.get(key) == cache.get(key)
            if key in model:
                model.move_to_end(key)
        elif step == "d":
            assert model.pop(key, None) == cache.drop(key)
        else:
            cache.put(key, cost, cost=cost)
            model.pop(key, None)
            if entries and (most is None or cost <= most):
                model[key] = cost
            while len(model) > entries or (most is not None and sum(model.values()) > most):
                model.popitem(last=False)

        assert list(model) == list(cache)
        assert (len(model), sum(model.values())) == (len(cache), cache.cost)


def test_lru_entry_expires_after_ttl():
    """A use does not extend the TTL, and a clock that steps back expires the entry."""
    clock, gone = FakeClock(), []
    cache = Lru(4, clock=clock.now, dropped=gone.append)
    cache.put("a", 1, ttl=10.0)
    cache.put("b", 2, ttl=0.0)
    cache.put("c", 3)
    clock.advance(9.0)

    assert [1, None, 3] == [cache.get(key) for key in "abc"]

    clock.advance(1.0)

    assert [None, 3] == [cache.get(key) for key in "ac"]
    assert ["expired"] == gone


def test_lru_reports_evictions_but_not_drops():
    gone = []
    cache = Lru(1, dropped=gone.append)
    cache.put("a", 1)
    cache.put("b", 2)

    assert (None, 2, ["evicted"]) == (cache.peek("a"), cache.peek("b"), gone)

    cache.clear()

    assert (0, None) == (len(cache), cache.drop("b"))
    assert ["evicted"] == gone
