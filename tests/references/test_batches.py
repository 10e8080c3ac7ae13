"""A source with batch queries gets the ids of concurrent calls in one query."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import EntityNotFound, InvalidArgument
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import IdScheme, Source
from mama_structs.settings import ReferenceSettings

KEYS = [f"k{number}" for number in range(10)]
KEY_SCHEME = IdScheme(name="keys", pattern="k[0-9]", type_of=lambda _: "key")


@given(data=st.data())
def test_batches_respect_max_batch_and_every_caller_gets_its_answers(data):
    """
    Holds for any timing and cancellation.

    No query is left running, and no id is requested twice.
    """
    limit = data.draw(st.none() | st.integers(1, 4))
    slots = data.draw(st.integers(1, 3))
    wanted = data.draw(st.lists(st.lists(st.sampled_from(KEYS), min_size=1, unique=True), min_size=1, max_size=8))
    pauses = data.draw(st.lists(st.integers(0, 4), min_size=len(wanted), max_size=len(wanted)))
    cancelled = data.draw(st.sets(st.integers(0, len(wanted) - 1)))
    batches = []

    async def fetch_many(keys):
        batches.append(keys)
        await asyncio.sleep(0)
        return {key: {"name": f"of {key}"} for key in keys if key != "k0"}

    async def main():
        source = Source(KEY_SCHEME, fetch_many=fetch_many, max_batch=limit)
        async with Resolver([source], settings=ReferenceSettings(max_parallel_queries=slots)) as resolver:
            calls = []
            for keys, pause in zip(wanted, pauses, strict=True):
                calls.append(asyncio.create_task(resolver.resolve(keys)))
                for _ in range(pause):
                    await asyncio.sleep(0)
            for number in cancelled:
                calls[number].cancel()
            found = await asyncio.gather(*calls, return_exceptions=True)
            flights = resolver._inflight
            assert flights is None or ({}, {}) == (flights._queries_by_key, flights._open_batches)
            return found

    for number, (keys, found) in enumerate(zip(wanted, asyncio.run(main()), strict=True)):
        if isinstance(found, asyncio.CancelledError):
            assert number in cancelled
            continue
        assert keys == list(found)
        names = {key: f"of {key}" for key in keys if key != "k0"}
        assert names == {key: entry["name"] for key, entry in found.by_type("key").items()}
        assert {"k0": "Entity not found"} == found.failed or "k0" not in keys
    assert all(1 <= len(keys) <= (limit or math.inf) and len(keys) == len(set(keys)) for keys in batches)
    if not cancelled:
        asked = [key for keys in batches for key in keys]
        assert len(asked) == len(set(asked))


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "5"])
def test_source_rejects_invalid_max_batch(most):
    with pytest.raises(InvalidArgument, match="max_batch"):
        Source(KEY_SCHEME, fetch_many=print, max_batch=most)


async def test_not_found_raised_for_batch_fails_all_ids_without_caching():
    """
    The error does not identify the missing id, so nothing is cached.

    For a single id it means "not found".
    """

    async def fetch_many(keys):
        if "k0" in keys:
            raise EntityNotFound("k0")
        return {key: {} for key in keys}

    async with Resolver([Source(KEY_SCHEME, fetch_many=fetch_many)]) as resolver:
        together = (await resolver.resolve(["k0", "k1"])).failed
        alone = await resolver.resolve(["k1"])
        missing = (await resolver.resolve(["k0"])).failed

    assert ["k0", "k1"] == list(together)
    assert all("EntityNotFound for 2 ids together" in error for error in together.values())
    assert ({}, {"k0": "Entity not found"}) == (alone.failed, missing)


async def test_single_id_uses_fetch_and_concurrent_ids_use_fetch_many():
    asked = []

    def fetch(key):
        asked.append(key)
        return {}

    def fetch_many(keys):
        asked.append(keys)
        return {key: {} for key in keys}

    async with Resolver([Source(KEY_SCHEME, fetch=fetch, fetch_many=fetch_many)]) as resolver:
        await resolver.resolve(["k1"])
        await asyncio.gather(resolver.resolve(["k2"]), resolver.resolve(["k3"]))

    assert ["k1", ["k2", "k3"]] == asked


TYPED_SCHEME = IdScheme(name="typed", fields={"player_id": "player", "guild_id": "guild"})
SINGLE_SCHEME = IdScheme(name="single", fields={"player_id": "player"})
A, B = {"name": "a"}, {"name": "b"}


async def outcomes_of(answers, ids, scheme):
    """Return the name or the error of each id."""
    async with Resolver([Source(scheme, fetch_many=lambda _: answers)]) as resolver:
        references = await resolver.resolve(ids)
        return [entry.get("error") or entry["name"] for entry in references.values()]


@pytest.mark.parametrize("scheme", [TYPED_SCHEME, SINGLE_SCHEME])
@pytest.mark.parametrize(
    "answers",
    [{"1": A, "2": B}, {1: A, 2: B}, {"player:1": A, "player:2": B}, {1: A, "player:2": B}, {"1": A, "player:2": B}],
)
async def test_fetch_many_may_answer_with_bare_or_integer_keys(answers, scheme):
    """The form of the keys does not matter as long as each belongs to one requested id."""
    assert ["a", "b"] == await outcomes_of(answers, ["player:1", "player:2"], scheme)


@pytest.mark.parametrize("to_key", [str, int])
async def test_fetch_many_answer_with_default_values_has_no_additional_entities(to_key):
    """A `defaultdict` has no value for a key that the source did not add."""
    answers = defaultdict(dict)
    answers[to_key("1")]["name"] = "a"

    assert ["a", "Entity not found"] == await outcomes_of(answers, ["player:1", "player:2"], SINGLE_SCHEME)
    assert 1 == len(answers)


async def test_exact_key_takes_precedence_over_bare_key():
    """The bare id of a reference that has an answer is not a fault."""
    assert ["a", "Entity not found"] == await outcomes_of(
        {"player:1": A, "1": B}, ["player:1", "player:2"], TYPED_SCHEME
    )


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"1": A}, "for '1', which fits several requested ids"),
        ({"9": A, "8": B}, "for '9' and 1 more, which was not requested"),
        ({None: A}, "for 'None', which was not requested"),
    ],
)
async def test_answers_for_other_ids_are_named_as_the_fault(answers, said):
    """The id is not reported as missing, because the source did not say so."""
    first, second = await outcomes_of(answers, ["player:1", "guild:1"], TYPED_SCHEME)

    assert f"fetch_many did not answer for 'player:1', but {said}" in first
    assert f"fetch_many did not answer for 'guild:1', but {said}" in second


async def test_fetch_many_may_answer_for_additional_ids():
    """A source may return more rows than the caller requested."""
    assert ["a"] == await outcomes_of({"player:1": A, "player:2": B}, ["player:1"], TYPED_SCHEME)


@pytest.mark.parametrize("many", [True, False])
async def test_none_means_not_found(many):
    """The answer None counts as not found, for one id and for several."""
    found = {"player:1": None, "player:2": None}
    source = Source(TYPED_SCHEME, fetch_many=lambda _: found) if many else Source(TYPED_SCHEME, fetch=found.get)
    async with Resolver([source]) as resolver:
        references = await resolver.resolve(["player:1", "player:2"])
        with pytest.raises(EntityNotFound):
            await resolver.fetch("player:1")

    assert dict.fromkeys(found, "Entity not found") == references.failed
