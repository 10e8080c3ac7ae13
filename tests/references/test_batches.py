"""A source with batch queries gets the ids of concurrent calls in one query."""

from __future__ import annotations

import asyncio
import math

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
