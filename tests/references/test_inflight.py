"""Running queries: sharing between callers, concurrency limits, timeouts, cancellation and cleanup."""

from __future__ import annotations

import asyncio

import pytest

from mama_structs.errors import EntityNotFound, SessionClosed, WrongLoop
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.resolver import Resolver
from mama_structs.references.results import current_attempt
from mama_structs.references.schemes import IdScheme
from mama_structs.settings import ReferenceSettings
from mama_structs.testing.fakes import FakeSource

pytestmark = pytest.mark.usefixtures("virtual_time")

FLEETS = {f"5-{n}": {"id": f"5-{n}", "owner": "1-1"} for n in range(1, 61)}
DEFENDERS = {"structDefenders": list(FLEETS)}


async def never(entity_id):
    await asyncio.Event().wait()


async def test_concurrent_queries_never_exceed_limit(make_resolver, at_rest):
    """The limit includes direct queries of tools."""
    source = FakeSource(FLEETS, delays=0.005)
    resolver = make_resolver(source)

    await asyncio.gather(
        *(resolver.enrich(DEFENDERS, ReferenceOptions(max_references=60)) for _ in range(10)),
        *(resolver.fetch(f"5-{n}") for n in range(1, 61)),
    )

    assert 5 == source.max_in_flight
    assert sorted(FLEETS) == sorted(source.requested_ids)
    await at_rest(resolver, source)


async def test_host_slot_counts_towards_query_limit(make_resolver):
    source = FakeSource(FLEETS, delays=0.01)
    resolver = make_resolver(source, max_parallel_queries=1)

    async with resolver._slot():
        asking = asyncio.create_task(resolver.fetch("5-1"))
        await asyncio.sleep(0.02)
        assert [] == source.requested_ids
    await asking

    assert ["5-1"] == source.requested_ids


async def test_cancelled_caller_does_not_cancel_shared_query(make_resolver, at_rest):
    source = FakeSource(FLEETS, delays=0.05)
    resolver = make_resolver(source)
    first = asyncio.create_task(resolver.fetch("5-1"))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(resolver.enrich({"structId": "5-1"}))
    await asyncio.sleep(0.01)

    first.cancel()
    enriched = await second

    assert "1-1" == enriched["references"]["5-1"]["owner"]
    assert ["5-1"] == source.requested_ids
    assert 1 == resolver.stats.coalesced
    await asyncio.gather(first, return_exceptions=True)
    await at_rest(resolver, source)


async def test_query_is_cancelled_when_last_caller_is_cancelled(make_resolver, at_rest):
    source = FakeSource(FLEETS, delays=5)
    resolver = make_resolver(source)
    callers = [asyncio.create_task(resolver.fetch("5-1")) for _ in range(3)]
    await asyncio.sleep(0.01)

    for caller in callers:
        assert [] == source.cancelled_ids
        caller.cancel()
        await asyncio.sleep(0.01)

    assert ["5-1"] == source.cancelled_ids
    await asyncio.gather(*callers, return_exceptions=True)
    await at_rest(resolver, source)


async def test_query_being_cancelled_is_not_joined(make_resolver):
    """A caller that arrives right after the cancellation starts a new query."""
    source = FakeSource(FLEETS, delays=0.03)
    resolver = make_resolver(source)
    first = asyncio.create_task(resolver.fetch("5-1"))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0)

    assert FLEETS["5-1"] == await resolver.fetch("5-1")
    assert ["5-1", "5-1"] == source.requested_ids


async def test_hung_query_times_out_without_affecting_others(make_resolver, at_rest):
    source = FakeSource(FLEETS, behaviours={"5-2": never})
    resolver = make_resolver(source, query_timeout=0.05)

    enriched = await resolver.enrich({"structDefenders": ["5-1", "5-2", "5-3"]})

    assert {"5-2": "No answer within 0.05 s"} == {
        key: entry["error"] for key, entry in enriched["references"].items() if "error" in entry
    }
    assert ["5-2"] == source.cancelled_ids
    assert 1 == resolver.stats.timeouts
    await at_rest(resolver, source)


async def test_timed_out_queries_release_their_slots(make_resolver, at_rest):
    """
    As many queries hang as there are slots.

    The others run afterwards, for this call and for other callers.
    """
    hung = [f"5-{n}" for n in range(1, 6)]
    source = FakeSource(FLEETS, behaviours=dict.fromkeys(hung, never))
    resolver = make_resolver(source, query_timeout=0.1)
    enriching = asyncio.create_task(resolver.enrich({"structDefenders": [f"5-{n}" for n in range(1, 21)]}))
    await asyncio.sleep(0.01)
    begun = asyncio.get_running_loop().time()
    await resolver.fetch("5-60")
    waited = asyncio.get_running_loop().time() - begun
    enriched = await enriching

    assert waited < 0.5
    assert hung == [key for key, entry in enriched["references"].items() if "error" in entry]
    assert {"timeout": 5} == resolver.stats.failures
    await at_rest(resolver, source)


async def test_query_timeout_starts_after_slot_is_acquired(make_resolver):
    """
    Twenty queries of 30 ms share one slot, so the last one waits for 570 ms.

    None of them exceeds the timeout of 100 ms.
    """
    source = FakeSource(FLEETS, delays=0.03)
    resolver = make_resolver(source, max_parallel_queries=1, query_timeout=0.1)

    enriched = await resolver.enrich({"structDefenders": [f"5-{n}" for n in range(1, 21)]})

    assert 20 == len(enriched["references"])
    assert {} == resolver.stats.failures


async def test_deadline_fails_missing_references(make_resolver, at_rest):
    source = FakeSource(FLEETS, delays={"5-2": 9, "5-3": 9})
    resolver = make_resolver(source, max_parallel_queries=2)
    begun = asyncio.get_running_loop().time()

    enriched = await resolver.enrich({"structDefenders": ["5-1", "5-2", "5-3", "5-4"]}, ReferenceOptions(deadline=0.1))

    assert asyncio.get_running_loop().time() - begun < 1
    failed = {key: entry["error"] for key, entry in enriched["references"].items() if "error" in entry}
    assert {"5-2", "5-3", "5-4"} == failed.keys()
    assert {"No answer before the deadline of 0.1 s for all references"} == set(failed.values())
    assert {"deadline": 3} == enriched["references_meta"]["failed_by"]
    await at_rest(resolver, source)


async def test_direct_query_is_not_limited_by_query_timeout(make_resolver):
    """The query timeout applies to references only."""
    source = FakeSource(FLEETS, delays=0.1)
    resolver = make_resolver(source, query_timeout=0.02)
    own = asyncio.create_task(resolver.fetch("5-1"))
    await asyncio.sleep(0)

    enriched = await resolver.enrich({"structId": "5-1"})

    assert "No answer within 0.02 s" == enriched["references"]["5-1"]["error"]
    assert FLEETS["5-1"] == await own
    assert ["5-1"] == source.requested_ids


async def test_direct_query_removes_client_deadline_of_joined_query(make_resolver):
    seen = []

    async def told(entity_id):
        attempt = current_attempt.get()
        await asyncio.sleep(0.02)
        seen.append(attempt.deadline)
        return {"id": entity_id}

    resolver = make_resolver(FakeSource(behaviours={"5-1": told}))
    reference = asyncio.create_task(resolver.enrich({"structId": "5-1"}))
    await asyncio.sleep(0.01)

    assert {"id": "5-1"} == await resolver.fetch("5-1")
    await reference
    assert [None] == seen


async def test_timed_out_query_is_cancelled_when_last_unbounded_caller_leaves(make_resolver, at_rest):
    source = FakeSource(FLEETS, delays=5)
    resolver = make_resolver(source, query_timeout=0.02)
    own = asyncio.create_task(resolver.fetch("5-1"))
    await asyncio.sleep(0)
    await resolver.enrich({"structId": "5-1"})
    assert [] == source.cancelled_ids
    own.cancel()
    await asyncio.gather(own, return_exceptions=True)
    await asyncio.sleep(0.01)

    assert ["5-1"] == source.cancelled_ids
    await at_rest(resolver, source)


async def test_source_sees_deadline_and_reports_retries_in_current_attempt(make_resolver):
    async def told(entity_id):
        attempt = current_attempt.get()
        attempt.retries += 2
        attempt.rate_limited += 1
        left = None if attempt.deadline is None else attempt.deadline - asyncio.get_running_loop().time()
        return {"left": left}

    resolver = make_resolver(FakeSource(behaviours=dict.fromkeys(("5-1", "5-2"), told)))

    own = await resolver.fetch("5-1")
    enriched = await resolver.enrich({"structId": "5-2"})

    assert own["left"] is None
    assert 1.5 < enriched["references"]["5-2"]["left"] <= 2
    assert (4, 2) == (resolver.stats.retries, resolver.stats.rate_limited)
    assert current_attempt.get() is None


class TestBatches:
    async def test_ids_of_one_level_are_fetched_in_one_batch(self, make_resolver):
        source = FakeSource({**FLEETS, "1-1": {"id": "1-1"}}, batch=True)
        resolver = make_resolver(source)

        enriched = await resolver.enrich(
            {"structDefenders": ["5-1", "5-2", "5-99"]}, ReferenceOptions(reference_depth=2)
        )

        assert [["5-1", "5-2", "5-99"], ["1-1"]] == source.batches
        assert ["5-1", "5-2", "5-99", "1-1"] == list(enriched["references"])
        assert "Entity not found" == enriched["references"]["5-99"]["error"]
        assert 2 == resolver.stats.upstream_queries

    async def test_batch_omits_cached_and_inflight_ids(self, make_resolver):
        source = FakeSource(FLEETS, batch=True, delays=0.02)
        resolver = make_resolver(source)
        await resolver.fetch("5-1")
        under_way = asyncio.create_task(resolver.fetch("5-2"))
        await asyncio.sleep(0.01)

        await resolver.enrich({"structDefenders": ["5-1", "5-2", "5-3", "5-4"]})
        await under_way

        assert [["5-1"], ["5-2"], ["5-3", "5-4"]] == source.batches

    async def test_calls_of_one_loop_iteration_share_a_batch(self, make_resolver):
        source = FakeSource(FLEETS, batch=True)
        resolver = make_resolver(source)
        calls = [resolver.resolve([one]) for one in ("5-1", "5-2", "5-1")]
        found = await asyncio.gather(*calls, resolver.fetch("5-3"))

        assert [["5-1", "5-2", "5-3"]] == source.batches
        assert (1, 1) == (resolver.stats.upstream_queries, resolver.stats.coalesced)
        assert ["5-1", "5-2", "5-1"] == [next(iter(one)) for one in found[:3]]

    async def test_ids_requested_while_no_slot_is_free_share_a_batch(self, make_resolver):
        source = FakeSource(FLEETS, batch=True, delays=0.05)
        resolver = make_resolver(source, max_parallel_queries=1)
        calls = []
        for entity_id in ("5-1", "5-2", "5-3"):
            calls.append(asyncio.create_task(resolver.resolve([entity_id])))
            await asyncio.sleep(0.01)
        await asyncio.gather(*calls)

        assert [["5-1"], ["5-2", "5-3"]] == source.batches

    async def test_batch_omits_ids_of_callers_cancelled_before_it_is_sent(self, make_resolver, at_rest):
        source = FakeSource(FLEETS, batch=True, delays=0.05)
        resolver = make_resolver(source, max_parallel_queries=1)
        calls = [asyncio.create_task(resolver.resolve([one])) for one in ("5-1", "1-1")]
        await asyncio.sleep(0.01)
        calls += [asyncio.create_task(resolver.resolve([one])) for one in ("5-2", "5-3")]
        await asyncio.sleep(0.01)
        calls[2].cancel()
        await asyncio.gather(*calls, return_exceptions=True)

        assert [["5-1", "1-1"], ["5-3"]] == source.batches
        await at_rest(resolver, source)

    async def test_nested_query_of_batch_source_does_not_wait_for_other_callers(self, make_resolver):
        async def curious(entity_ids):
            below = await resolver.resolve(["5-2", "5-3"]) if "5-1" in entity_ids else {}
            return {one: {"id": one, "below": list(below)} for one in entity_ids}

        source = FakeSource(FLEETS, batch=True)
        source._fetch_many = curious
        resolver = make_resolver(source, max_parallel_queries=1)
        first = asyncio.create_task(resolver.resolve(["5-1"]))
        await asyncio.sleep(0)
        others = [asyncio.create_task(resolver.resolve([one])) for one in ("5-4", "5-5")]

        assert ["5-2", "5-3"] == (await first)["5-1"]["below"]
        await asyncio.gather(*others)

    async def test_id_missing_from_batch_answer_is_not_found(self, make_resolver):
        source = FakeSource(FLEETS, batch=True)
        answer = source._fetch_many

        async def forgetful(entity_ids):
            answers = dict(await answer(entity_ids))
            del answers["5-2"]
            return answers

        source._fetch_many = forgetful
        enriched = await make_resolver(source).enrich({"structDefenders": ["5-1", "5-2"]})

        assert "Entity not found" == enriched["references"]["5-2"]["error"]

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (None, "$: fetch_many answered NoneType instead of a mapping"),
            ({"5-1": 7, "5-2": None}, "$: the source answered int instead of a mapping"),
            (ZeroDivisionError("x"), "ZeroDivisionError: x"),
        ],
    )
    async def test_invalid_batch_answer_becomes_failed_entries(self, make_resolver, answer, error):
        async def odd(entity_ids):
            if isinstance(answer, Exception):
                raise answer
            return answer

        source = FakeSource(batch=True)
        source._fetch_many = odd
        enriched = await make_resolver(source).enrich({"structDefenders": ["5-1", "5-2"]})

        assert error == enriched["references"]["5-1"]["error"]

    async def test_batch_continues_while_one_of_its_ids_has_a_waiter(self, make_resolver, at_rest):
        source = FakeSource(FLEETS, batch=True, delays=0.05)
        resolver = make_resolver(source)
        level = asyncio.create_task(resolver.enrich({"structDefenders": ["5-1", "5-2"]}))
        await asyncio.sleep(0.01)
        one = asyncio.create_task(resolver.fetch("5-2"))
        await asyncio.sleep(0.01)

        level.cancel()

        assert FLEETS["5-2"] == await one
        assert [] == source.cancelled_ids
        await asyncio.gather(level, return_exceptions=True)
        await at_rest(resolver, source)


async def cancelled_at(coroutine, point):
    """
    Step a coroutine manually and cancel it after *point* steps.

    Return its result if it finishes earlier.
    """
    try:
        for _ in range(point):
            future = coroutine.send(None)
            if future is not None:
                future._asyncio_future_blocking = False
                await asyncio.wait([future])
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value
    with pytest.raises(asyncio.CancelledError):
        coroutine.throw(asyncio.CancelledError())
    return None


class TestCancellation:
    @pytest.mark.parametrize("batch", [False, True])
    async def test_enrich_cancelled_at_any_loop_iteration_leaves_nothing_behind(self, make_resolver, at_rest, batch):
        source = FakeSource({**FLEETS, "1-1": {"id": "1-1"}}, batch=batch, delays={"5-3": 0.03})
        resolver = make_resolver(source, max_parallel_queries=2, cache_ttl=0)
        options = ReferenceOptions(reference_depth=2)
        turns = 0
        while True:
            task = asyncio.create_task(resolver.enrich({"structDefenders": ["5-1", "5-2", "5-3"]}, options))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
                if task.done():
                    break
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            await at_rest(resolver, source)
            if not isinstance(result, asyncio.CancelledError):
                break
            turns += 1

        assert turns > 2
        assert ["5-1", "5-2", "5-3", "1-1"] == list(result["references"])

    async def test_enrich_cancelled_at_any_suspension_leaves_nothing_behind(self, make_resolver, at_rest):
        """The coroutine is stepped manually, and the exception is thrown into it."""
        source = FakeSource({**FLEETS, "1-1": {"id": "1-1"}})
        resolver = make_resolver(source, cache_ttl=0)
        for point in range(100):
            coroutine = resolver.enrich({"structDefenders": ["5-1", "5-2"]}, ReferenceOptions(reference_depth=2))
            result = await cancelled_at(coroutine, point)
            await at_rest(resolver, source)
            if result is not None:
                break

        assert 2 <= point < 99
        assert ["5-1", "5-2", "1-1"] == list(result["references"])

    async def test_close_cancels_inflight_queries(self, at_rest):
        source = FakeSource(behaviours={"5-1": never})
        resolver = Resolver([source])
        caller = asyncio.create_task(resolver.enrich({"structId": "5-1"}))
        await asyncio.sleep(0.01)

        await resolver.close()
        enriched = await caller

        assert "The resolver was closed" == enriched["references"]["5-1"]["error"]
        await at_rest(resolver, source)

    async def test_close_does_not_wait_for_fetch_that_ignores_cancellation(self, monkeypatch):
        monkeypatch.setattr("mama_structs.references.inflight._CLOSE_TIMEOUT_SECONDS", 0.05)
        released = asyncio.Event()

        async def stubborn(entity_id):
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue
            return {}

        resolver = Resolver([FakeSource(behaviours={"5-1": stubborn})])
        await resolver.enrich({"structId": "5-1"}, ReferenceOptions(deadline=0.01))

        await asyncio.wait_for(resolver.close(), timeout=1)

        assert 1 == len(resolver._inflight)
        released.set()

    async def test_fetch_that_raises_cancelled_error_is_a_failure(self, make_resolver):
        source = FakeSource(behaviours={"5-1": asyncio.CancelledError()})

        enriched = await make_resolver(source).enrich({"structId": "5-1"})

        assert "The query was cancelled" == enriched["references"]["5-1"]["error"]


async def test_answer_requested_before_invalidation_is_not_cached(make_resolver):
    source = FakeSource(FLEETS, delays=0.02)
    resolver = make_resolver(source)
    early = asyncio.create_task(resolver.fetch("5-1"))
    await asyncio.sleep(0.005)
    resolver.invalidate("struct")

    late = await resolver.fetch("5-1")

    assert late == await early
    assert ["5-1", "5-1"] == source.requested_ids


async def test_answer_after_timeout_is_not_awaited(make_resolver, at_rest):
    source = FakeSource(FLEETS, delays=0.05)
    resolver = make_resolver(source, query_timeout=0.01)

    await resolver.enrich({"structId": "5-1"})
    again = await resolver.enrich({"structId": "5-1"})

    assert "failed" == again["references"]["5-1"]["status"]
    assert ["5-1", "5-1"] == source.cancelled_ids
    await at_rest(resolver, source)


def test_query_in_another_loop_raises_wrong_loop():
    source = FakeSource(FLEETS)
    resolver = Resolver([source], settings=ReferenceSettings())

    assert FLEETS["5-1"] == asyncio.run(resolver.fetch("5-1"))
    with pytest.raises(WrongLoop, match="another event loop"):
        asyncio.run(resolver.fetch("5-1"))


class TestClosing:
    async def test_cancelled_close_still_completes(self):
        source = FakeSource(behaviours={"5-1": never})
        resolver = Resolver([source])
        caller = asyncio.create_task(resolver.fetch("5-1"))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(resolver.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await resolver.close()

        assert source.closed
        with pytest.raises(SessionClosed, match="before the answer was there"):
            await caller

    async def test_concurrent_close_waits_for_first_close(self):
        class Slow(FakeSource):
            async def close(self):
                await asyncio.sleep(0.02)
                await super().close()

        source = Slow()
        resolver = Resolver([source])
        first = asyncio.create_task(resolver.close())
        await asyncio.sleep(0)
        await resolver.close()

        assert source.closed
        await first

    async def test_close_closes_other_sources_when_one_fails(self):
        class Fails(FakeSource):
            async def close(self):
                raise RuntimeError("no")

        tracker = IdScheme(name="tracker", pattern=r"T-\d+", type_of=lambda _: "t")
        other = FakeSource(scheme=tracker)
        resolver = Resolver([Fails(), other])

        with pytest.raises(RuntimeError, match="no"):
            await resolver.close()
        assert other.closed

    async def test_close_between_levels_keeps_first_level_references(self):
        source = FakeSource({**FLEETS, "1-1": {"id": "1-1"}})
        resolver = Resolver([source])

        async def closes(entity_id):
            closing.append(asyncio.create_task(resolver.close()))
            return FLEETS[entity_id]

        closing = []
        source.behaviours["5-1"] = closes
        enriched = await resolver.enrich({"structId": "5-1"}, ReferenceOptions(reference_depth=2))
        await asyncio.gather(*closing)

        assert "5-1" in enriched["references"]


def test_close_in_another_loop_raises_wrong_loop_without_effect():
    source = FakeSource(FLEETS)
    resolver = Resolver([source])

    async def use():
        await resolver.fetch("5-1")

    with asyncio.Runner() as runner:
        runner.run(use())
        with pytest.raises(WrongLoop):
            asyncio.run(resolver.close())
        runner.run(resolver.fetch("5-2"))
        runner.run(resolver.close())

    assert source.closed


def test_invalidate_in_another_thread_raises_wrong_loop():
    async def use():
        async with Resolver([FakeSource(FLEETS)]) as resolver:
            await resolver.fetch("5-1")
            with pytest.raises(WrongLoop, match="another thread"):
                await asyncio.to_thread(resolver.invalidate)
            return resolver.invalidate()

    assert 1 == asyncio.run(use())


async def test_interrupt_while_query_starts_leaves_nothing_behind(make_resolver, at_rest):
    """A task factory simulates a KeyboardInterrupt between two lines."""
    source = FakeSource(FLEETS)
    resolver = make_resolver(source)
    loop = asyncio.get_running_loop()

    def interrupt(loop, coroutine, **options):
        coroutine.close()
        raise KeyboardInterrupt

    loop.set_task_factory(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            await resolver.fetch("5-1")
    finally:
        loop.set_task_factory(None)

    assert FLEETS["5-1"] == await resolver.fetch("5-1")
    await at_rest(resolver, source)


class TestReentrance:
    async def test_source_may_query_its_resolver_for_other_ids(self, make_resolver):
        """Five queries in five slots that each send a nested query do not deadlock."""

        async def asks_back(entity_id):
            return await resolver.fetch(f"5-{int(entity_id[2:]) + 20}")

        source = FakeSource(FLEETS, behaviours={f"5-{n}": asks_back for n in range(1, 6)})
        resolver = make_resolver(source)

        enriched = await asyncio.wait_for(
            resolver.enrich({"structDefenders": [f"5-{n}" for n in range(1, 6)]}), timeout=1
        )

        assert ["1-1"] * 5 == [entry["owner"] for entry in enriched["references"].values()]

    async def test_source_querying_its_own_id_is_a_failure(self, make_resolver):
        async def asks_itself(entity_id):
            return await resolver.fetch(entity_id)

        resolver = make_resolver(FakeSource(behaviours={"5-1": asks_itself}))

        entry = (await resolver.enrich({"structId": "5-1"}))["references"]["5-1"]

        assert "asked for by the source that is about to answer it" in entry["error"]


async def test_invalidate_of_type_detaches_inflight_pages(make_resolver):
    asked = []

    async def page(key):
        asked.append(key)
        await asyncio.sleep(0.02)
        return {}

    resolver = make_resolver(FakeSource())
    first = asyncio.create_task(resolver._load("page", page, kind="player"))
    await asyncio.sleep(0.005)
    resolver.invalidate("player")
    await resolver._load("page", page, kind="player")
    await first

    assert 2 == len(asked)


async def test_cached_not_found_has_no_cause_and_no_growing_traceback(make_resolver):
    resolver = make_resolver(FakeSource())
    depths = []
    for _ in range(20):
        try:
            await resolver.fetch("5-1")
        except EntityNotFound as error:
            traceback, depth = error.__traceback__, 0
            while traceback is not None:
                traceback, depth = traceback.tb_next, depth + 1
            depths.append(depth)

    assert 1 == len(set(depths[1:]))
    assert resolver._cache.get("5-1", resolver.sources[0]).cause is None


async def test_detector_does_not_cache_long_texts(make_resolver):
    resolver = make_resolver(FakeSource())
    await resolver.enrich({"a": "x-" * 10_000, "b": "no-id", "structId": "5-1"})

    assert {"no-id", "5-1"} == resolver._detector.types_by_text.keys()


async def test_detector_cache_is_bounded_for_generated_field_names(make_resolver):
    resolver = make_resolver(FakeSource())
    for n in range(200):
        await resolver.enrich({}, primary={f"field{n}"})

    assert len(resolver._detectors) <= 64
