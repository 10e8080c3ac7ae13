"""The cache of query answers: expiry, eviction, size limits and invalidation by block height."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mama_structs.errors import EntityNotFound
from mama_structs.references.cache import AnswerCache
from mama_structs.references.results import Failure, SourceAnswer, to_failure
from mama_structs.settings import ReferenceSettings
from mama_structs.testing import FakeClock

IDS = ("1-1", "1-2", "1-3", "2-1", "2-2", "0-1")
KINDS = {"0": "guild", "1": "player", "2": "planet"}
MISSING = to_failure(EntityNotFound("1-1"))


def answer(size=10, height=None):
    return SourceAnswer({"x": size}, size, height)


def cache_of(**options):
    clock = FakeClock(start=1000.0)
    return AnswerCache(ReferenceSettings(**options), clock.now), clock


class CacheAgainstModel(RuleBasedStateMachine):
    """Compares the cache with a simple model: a list of entries that is searched linearly."""

    @initialize(
        options=st.fixed_dictionaries(
            {
                "cache_ttl": st.sampled_from([0, 1.0, 10.0]),
                "not_found_ttl": st.sampled_from([0, 2.0, 20.0]),
                "cache_entries": st.integers(0, 4),
                "cache_bytes": st.sampled_from([0, 12, 40, 10_000]),
                "cache_until": st.sampled_from(["ttl", "block"]),
            }
        )
    )
    def begin(self, options):
        self.options = options
        self.cache, self.clock = cache_of(**options)
        self.entries = []  # [id, outcome, expiry, size] of each entry, least recently used first
        self.height = None
        self.below = 0

    def entry(self, entity_id):
        return next((entry for entry in self.entries if entry[0] == entity_id), None)

    @rule(entity_id=st.sampled_from(IDS), size=st.integers(0, 30), height=st.none() | st.integers(1, 4))
    def put_answer(self, entity_id, size, height):
        self.put(entity_id, answer(size, height), self.options["cache_ttl"], size + len(entity_id))

    @rule(entity_id=st.sampled_from(IDS))
    def put_missing(self, entity_id):
        self.put(entity_id, MISSING, min(self.options["not_found_ttl"], self.options["cache_ttl"]), len(entity_id))

    def put(self, entity_id, outcome, lifetime, size):
        self.cache.put(entity_id, KINDS[entity_id[0]], outcome)
        self.note(getattr(outcome, "height", None))
        self.entries = [entry for entry in self.entries if entry[0] != entity_id]
        if lifetime > 0 and size <= self.options["cache_bytes"]:
            self.entries.append([entity_id, outcome, self.clock.now() + lifetime, size])
            while len(self.entries) > self.options["cache_entries"] or self.bytes() > self.options["cache_bytes"]:
                self.entries.pop(0)

    def bytes(self):
        return sum(entry[3] for entry in self.entries)

    @rule(entity_id=st.sampled_from(IDS))
    def get(self, entity_id):
        entry = self.entry(entity_id)
        expected = None
        if entry is not None:
            self.entries.remove(entry)
            height = getattr(entry[1], "height", None)
            stale = self.options["cache_until"] == "block" and height is not None and height != self.height
            if self.clock.now() < entry[2] and not stale:
                self.entries.append(entry)
                expected = entry[1]

        assert expected is self.cache.get(entity_id)

    @rule(height=st.none() | st.integers(1, 5))
    def see(self, height):
        self.cache.record_height(height)
        self.note(height)

    def note(self, height):
        if height is None:
            return
        self.below = 0 if self.height is None or height >= self.height else self.below + 1
        if self.below > ReferenceSettings().max_parallel_queries:
            self.height, self.below = height, 0
        self.height = max(filter(None, [self.height, height])) if not self.below else self.height

    @rule(seconds=st.sampled_from([0.5, 1.0, 1.5, 9.5, 30.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(kind=st.sampled_from(["guild", "player", "planet", "fleet"]))
    def invalidate_type(self, kind):
        stale = [entry for entry in self.entries if KINDS[entry[0][0]] == kind]
        self.entries = [entry for entry in self.entries if entry not in stale]

        assert len(stale) == self.cache.invalidate(lambda _, own: own == kind)

    @rule(entity_id=st.sampled_from(IDS))
    def invalidate_id(self, entity_id):
        stale = [entry for entry in self.entries if entry[0] == entity_id]
        self.entries = [entry for entry in self.entries if entry not in stale]

        assert len(stale) == self.cache.invalidate(lambda own, _: own == entity_id)

    @invariant()
    def bounds_hold(self):
        if hasattr(self, "cache"):
            assert len(self.entries) == len(self.cache) <= self.options["cache_entries"]
            assert self.bytes() == self.cache.size <= self.options["cache_bytes"]
            assert self.height == self.cache._get_chain_height(None).height


TestCacheAgainstModel = CacheAgainstModel.TestCase
TestCacheAgainstModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_answer_expires_exactly_at_its_ttl():
    """Reading an answer does not extend its lifetime."""
    cache, clock = cache_of(cache_ttl=10.0)
    kept = answer()
    cache.put("1-1", "player", kept)
    clock.advance(9.999)

    assert kept is cache.get("1-1")
    clock.advance(0.001)
    assert None is cache.get("1-1")
    assert (0, 0) == (len(cache), cache.size)


def test_answer_expires_when_clock_steps_back():
    """A clock that steps back never extends a lifetime."""
    cache, clock = cache_of(cache_ttl=10.0)
    cache.put("1-1", "player", answer())
    clock.step(-1.0)

    assert cache.get("1-1") is None


def test_least_recently_used_answer_is_evicted_first():
    cache, _ = cache_of(cache_entries=2)
    for entity_id in ("1-1", "1-2"):
        cache.put(entity_id, "player", answer())
    cache.get("1-1")
    cache.put("1-3", "player", answer())

    assert [True, False, True] == [cache.get(entity_id) is not None for entity_id in ("1-1", "1-2", "1-3")]


def test_answers_are_evicted_to_respect_cache_bytes():
    """An answer over the limit evicts only the cached answer for its id."""
    cache, _ = cache_of(cache_bytes=100)
    for number in range(1, 6):
        cache.put(f"1-{number}", "player", answer(17))
    cache.put("1-6", "player", answer(57))

    assert ["1-4", "1-5", "1-6"] == [f"1-{number}" for number in range(1, 7) if cache.get(f"1-{number}")]
    cache.put("1-7", "player", answer(98))
    assert 100 == cache.size
    cache.put("1-7", "player", answer(5))
    cache.put("1-6", "player", answer(10))
    cache.put("1-6", "player", answer(98))
    assert None is cache.get("1-6")
    assert None is not cache.get("1-7")


def test_not_found_expires_after_not_found_ttl_or_cache_ttl():
    """The shorter one applies; 0 disables caching of not-found."""
    cache, clock = cache_of(cache_ttl=30.0, not_found_ttl=5.0)
    short, _ = cache_of(cache_ttl=2.0, not_found_ttl=5.0)
    never, _ = cache_of(not_found_ttl=0)
    for one in (cache, short, never):
        one.put("1-1", "player", MISSING)
    clock.advance(4.9)

    assert MISSING is cache.get("1-1")
    clock.advance(0.1)
    assert None is cache.get("1-1")
    assert 1 == len(short)
    assert 0 == len(never)


@pytest.mark.parametrize("options", [{"cache_ttl": 0}, {"cache_entries": 0}, {"cache_bytes": 0}])
def test_zero_limit_disables_cache(options):
    cache, _ = cache_of(**options)
    cache.put("1-1", "player", answer())
    cache.put("1-2", "player", MISSING)

    assert (None, None, 0, 0) == (cache.get("1-1"), cache.get("1-2"), len(cache), cache.size)


def test_answer_expires_with_newer_block_in_block_mode():
    """The TTL still applies."""
    cache, clock = cache_of(cache_until="block", cache_ttl=10.0)
    cache.record_height(5)
    for entity_id, height in (("1-1", 5), ("1-2", 5), ("1-3", None)):
        cache.put(entity_id, "player", answer(height=height))

    assert None is not cache.get("1-1")
    cache.record_height(6)
    assert [None, None] == [cache.get("1-1"), cache.get("1-2")]
    assert None is not cache.get("1-3")
    clock.advance(10)
    assert None is cache.get("1-3")


def test_lower_height_does_not_revive_or_add_answers():
    """A query in flight during a new block may return the previous height."""
    cache, _ = cache_of(cache_until="block")
    cache.record_height(6)
    cache.record_height(5)
    cache.record_height(None)
    cache.put("1-1", "player", answer(height=5))

    assert None is cache.get("1-1")


def test_lower_height_is_accepted_after_more_answers_than_parallel_queries():
    """The earlier height was wrong, or the chain was reset."""
    cache, _ = cache_of(cache_until="block")
    cache.record_height(10**18)
    for _ in range(ReferenceSettings().max_parallel_queries + 1):
        cache.put("1-1", "player", answer(height=5))

    assert None is not cache.get("1-1")


def test_heights_are_tracked_per_source():
    cache, _ = cache_of(cache_until="block")
    first, second = object(), object()
    cache.put("1-1", "player", answer(height=5), origin=first)
    cache.put("2-1", "planet", answer(height=900), origin=second)

    assert None is not cache.get("1-1")
    assert None is not cache.get("2-1")


def test_heights_are_ignored_in_ttl_mode():
    cache, _ = cache_of()
    cache.put("1-1", "player", answer(height=5))
    cache.record_height(9)

    assert None is not cache.get("1-1")


def test_not_found_survives_new_blocks():
    cache, _ = cache_of(cache_until="block")
    cache.put("1-1", "player", Failure("not_found", "Entity not found"))
    cache.record_height(9)

    assert None is not cache.get("1-1")
