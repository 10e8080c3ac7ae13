"""Cursors of `MemoryStore.list` and `MemoryStore.links`, and `iter_all`."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from memory_helpers import OpenedDirectory, PlainEngines

from mama_structs import Filter, HashEmbedder
from mama_structs.errors import InvalidArgument
from mama_structs.settings import MemorySettings
from mama_structs.testing import FakeClock

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("own", "team", "public")


def opened(path, engines):
    return OpenedDirectory.open(
        path,
        engines=engines,
        embedder=HashEmbedder(dimensions=16),
        settings=MemorySettings(linking="off"),
        clock=FakeClock(start=(START + timedelta(days=30)).timestamp()).now,
    )


@pytest.fixture(params=[lambda: None, PlainEngines], ids=["embedded", "plain"])
async def place(request, tmp_path):
    directory = opened(tmp_path, request.param())
    yield directory
    await directory.close()


async def all_pages(method, **arguments):
    """Return the results of all pages, and the sizes of the pages."""
    found, sizes, cursor = [], [], None
    while True:
        page = await method(cursor=cursor, **arguments)
        found += page
        sizes.append(len(page))
        cursor = page.next_cursor
        if cursor is None:
            return found, sizes


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_list_pages_contain_each_memory_once_in_order(place, order, limit):
    """Memories of equal time are ordered by their saves."""
    store = await place.memories()
    for number in range(7):
        await store.save(f"note {number}", created_at=START + timedelta(seconds=number // 3))
    whole = await store.list(limit=100, order=order)
    found, sizes = await all_pages(store.list, order=order, limit=limit)

    assert whole == found
    assert whole.next_cursor is None
    assert [f"note {number}" for number in (range(7) if order == "oldest" else reversed(range(7)))] == [
        one.content for one in found
    ]
    assert all(size == limit for size in sizes[:-1])
    assert 0 < sizes[-1] <= limit


async def test_list_pages_respect_conditions(place):
    store = await place.memories()
    for number in range(9):
        await store.save(f"note {number}", tags="odd" if number % 2 else "even", topic="t" if number < 6 else None)
    found, _ = await all_pages(store.list, where=Filter(tags="odd"), topic="t", limit=1, order="oldest")

    assert ["note 1", "note 3", "note 5"] == [one.content for one in found]
    assert 3 == await store.count(where=Filter(tags="odd"), topic="t")
    assert found == [one async for one in store.iter_all(where=Filter(tags="odd"), topic="t")]


async def test_list_continues_after_deleted_memory_at_cursor(place):
    store = await place.memories()
    saved = [await store.save(f"note {number}", created_at=START + timedelta(seconds=number)) for number in range(4)]
    page = await store.list(limit=2, order="oldest")
    await store.delete(page[-1])
    rest = await store.list(cursor=page.next_cursor, order="oldest")

    assert saved[2:] == rest


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_pages_of_several_namespaces_include_memories_from_1970(place, order):
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    saved = [await (await place.memories(name)).save("note", created_at=epoch) for name in NAMES]
    scoped = await place.memories(NAMES[0], reads=NAMES[1:])
    found, _ = await all_pages(scoped.list, limit=1, order=order)

    assert saved == found


async def test_memory_saved_between_two_pages_does_not_break_the_order(place):
    own, team = await place.memories("own"), await place.memories("team")
    scoped = await place.memories("own", reads=["team"])
    second, first = [await own.save(f"note {day}", created_at=START + timedelta(days=day)) for day in (1, 2)]
    page = await scoped.list(limit=1)
    await team.save("between the memories of the first page", created_at=START + timedelta(days=3))

    assert [first] == page
    assert [second] == await scoped.list(cursor=page.next_cursor)


async def test_list_of_namespace_returns_memories_of_that_namespace_only(place):
    own, other = await place.memories("own"), await place.memories("team")
    mine, theirs = await own.save("mine"), await other.save("theirs")
    both = await place.memories("own", reads=["team"])

    assert {mine.id, theirs.id} == {one.id for one in await both.list()}
    for store in (own, both):
        assert [mine] == await store.list(where=Filter(namespace="own"))
        assert 1 == await store.count(where=Filter(namespace="own"))
        assert 0 == await store.count(where=Filter(namespace="team"))
    assert [] == await own.list(where=Filter(namespace="team"))
    assert [theirs] == await both.list(where=Filter(namespace="team"))
    assert [theirs] == [one async for one in both.iter_all(where=Filter(namespace="team"))]


BAD_CURSORS = ["", "?", "é", "\ud800", 5, b"x", "bm90IGpzb24", [], {}]


@pytest.mark.parametrize("cursor", BAD_CURSORS)
async def test_invalid_cursor_is_rejected(place, cursor):
    store = await place.memories()
    for call in (store.list, store.links):
        with pytest.raises(InvalidArgument, match="cursor is not the next_cursor of a page"):
            await call(cursor=cursor)


@pytest.mark.parametrize(
    "position",
    [[10**30, "x", None, ""], [-1, "x", None, ""], [0, "x" * 1000, None, ""], [0, "x", "2026-01-01T00:00:00", "y"],
     [0, "x", "later", "y"], ["x"], 0],
)  # fmt: skip
async def test_cursor_with_invalid_position_is_rejected(place, position):
    """A client may return a changed cursor."""
    store = await place.memories()
    for number in range(2):
        await store.save(f"note {number}")
    listing, names, _ = json.loads(base64.urlsafe_b64decode((await store.list(limit=1)).next_cursor + "=="))
    changed = json.dumps([listing, names, {"default": position}]).encode()
    with pytest.raises(InvalidArgument, match="cursor is not the next_cursor of a page"):
        await store.list(cursor=base64.urlsafe_b64encode(changed).decode().rstrip("="))


async def test_cursor_of_another_call_is_rejected(place):
    """The page would be wrong: empty, incomplete, or the first one again."""
    own, team = await place.memories("own"), await place.memories("team")
    for store in (own, team):
        hub = await store.save("hub")
        for number in range(3):
            await store.link(await store.save(f"spoke {number}"), hub, "refines")
    scoped = await place.memories("own", reads=["team"])
    calls = {
        "newest": functools.partial(own.list, limit=1),
        "oldest": functools.partial(own.list, limit=1, order="oldest"),
        "team": functools.partial(team.list, limit=1),
        "scoped": functools.partial(scoped.list, limit=1),
        "links": functools.partial(own.links, limit=1),
        "team's links": functools.partial(team.links, limit=1),
        "scoped links": functools.partial(scoped.links, limit=1),
        "links of a memory": functools.partial(own.links, (await own.list(order="oldest"))[0], limit=1),
    }
    cursors = {name: (await call()).next_cursor for name, call in calls.items()}

    assert None not in cursors.values()
    for name, call in calls.items():
        assert 1 == len(await call(cursor=cursors[name]))
        for cursor in (cursors[other] for other in calls if other != name):
            with pytest.raises(InvalidArgument, match=r"cursor belongs to another call than (list|links)\(") as caught:
                await call(cursor=cursor)
            assert "the same order" in caught.value.hint


@pytest.mark.parametrize("of_memory", [True, False])
@pytest.mark.parametrize("removed", [0, 1])
async def test_links_removed_between_pages_hide_no_others(place, of_memory, removed):
    """The removed link may be the last one of the page."""
    store = await place.memories()
    others = [await store.save(f"spoke {number}") for number in range(5)]
    hub = await store.save("hub")
    for other in others:
        await store.link(hub, other, "refines")
    list_links = functools.partial(store.links, hub) if of_memory else store.links
    whole = await list_links()
    page = await list_links(limit=2)
    await store.unlink(page[removed])

    assert whole[2:] == await list_links(cursor=page.next_cursor)


async def test_iter_all_excludes_later_saves_and_deleted_memories(place):
    store = await place.memories()
    saved = await store.save_many([f"note {number}" for number in range(300)])
    found = []
    async for memory in store.iter_all():
        if not found:
            await store.save("later")
            await store.delete(saved[-1])
        found.append(memory)

    assert saved[:-1] == found
    assert 300 == await store.count()


async def test_iter_all_and_count_include_expired_memories_and_list_does_not(place):
    store = await place.memories()
    old = await store.save("old", valid_until=START)

    assert [] == await store.list()
    assert 1 == await store.count()
    assert [old] == [one async for one in store.iter_all()]


async def test_links_of_memory_are_paged_in_one_order(place):
    store = await place.memories()
    first = await store.save("hub")
    for number in range(5):
        other = await store.save(f"spoke {number}")
        await store.link(other, first, f"word {number}")
    whole = await store.links(first)

    for limit in (1, 2, 5, 6):
        found, sizes = await all_pages(lambda limit=limit, **more: store.links(first, limit=limit, **more))
        assert whole == found
        assert all(size == limit for size in sizes[:-1])
    assert {(link.endpoint_texts[0], link.endpoint_texts[1]) for link in whole} == {
        (f"spoke {number}", "hub") for number in range(5)
    }


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
async def test_pages_of_links_contain_each_link_once(place, limit):
    """The pages continue within the links of one memory, and over several namespaces."""
    expected = Counter()
    for name in NAMES[:2]:
        store = await place.memories(name)
        memories = [await store.save(f"note {number} of {name}") for number in range(5)]
        for begin, end in [(1, 0), (2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)]:
            link = await store.link(memories[begin], memories[end], "refines")
            expected[link.id] += 1
        own = await store.links(limit=1000)
        assert 7 == len(own)
        assert (await all_pages(store.links, limit=limit))[0] == own
    both = await place.memories("own", reads=["team"])
    found, _ = await all_pages(both.links, limit=limit)

    assert expected == Counter(link.id for link in found)


class PagingMachine(RuleBasedStateMachine):
    """
    Pages over several namespaces while memories are saved and deleted, against plain lists.

    All created memories that exist from the first to the last page are on exactly one page, in order.
    """

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.place = OpenedDirectory(
            path=None, storage=None, engines=PlainEngines(), embedder=HashEmbedder(dimensions=16),
            settings=MemorySettings(linking="off"), clock=(START + timedelta(days=30)).timestamp,
            find_mentions=lambda _text: (),
        )  # fmt: skip
        self.stores = [self.runner.run(self.place.memories(name)) for name in NAMES]
        self.scoped = self.runner.run(self.place.memories(NAMES[0], reads=NAMES[1:]))
        self.serial = 0
        self.present = {}
        self.start_over()

    def start_over(self):
        self.order = None
        self.cursor = None
        self.paged = []
        self.kept = set()
        self.reread_times = set()

    @rule(namespace=st.integers(0, 2), second=st.integers(0, 3), count=st.integers(1, 3))
    def save(self, namespace, second, count):
        for _ in range(count):
            self.serial += 1
            memory = self.runner.run(
                self.stores[namespace].save(f"note {self.serial}", created_at=START + timedelta(seconds=second))
            )
            self.present[memory.id] = memory

    @precondition(lambda self: self.present)
    @rule(pick=st.integers(0, 1000))
    def delete(self, pick):
        memory = self.present.pop(sorted(self.present)[pick % len(self.present)])
        self.kept.discard(memory.id)
        assert 1 == self.runner.run(self.stores[NAMES.index(memory.namespace)].delete(memory))
        last = {}
        for one in self.paged:
            last[one.namespace] = one
        if last.get(memory.namespace) == memory:
            # Without this memory, the position within its millisecond is unknown.
            self.reread_times.add((memory.namespace, memory.created_at))

    @rule(limit=st.integers(1, 4), order=st.sampled_from(["newest", "oldest"]))
    def read_page(self, limit, order):
        if self.cursor is None:
            self.start_over()
            self.order, self.kept = order, set(self.present)
        page = self.runner.run(self.scoped.list(limit=limit, cursor=self.cursor, order=self.order))
        assert len(page) <= limit
        self.paged += page
        self.cursor = page.next_cursor
        for one in page:
            assert one == self.present[one.id]
        if self.cursor is None:
            ids = Counter(one.id for one in self.paged)
            assert self.kept <= set(ids)
            repeated = [one for one in self.paged if ids[one.id] > 1]
            assert {(one.namespace, one.created_at) for one in repeated} <= self.reread_times
            self.start_over()

    @invariant()
    def pages_are_in_order(self):
        times = [one.created_at for one in self.paged]
        assert times == sorted(times, reverse=self.order == "newest")

    @invariant()
    def list_equals_plain_list(self):
        for number, store in enumerate(self.stores):
            own = [one for one in self.present.values() if one.namespace == NAMES[number]]
            assert len(own) == self.runner.run(store.count())
            oldest = sorted(own, key=lambda one: one.created_at)
            assert oldest == self.runner.run(store.list(limit=1000, order="oldest"))
            assert oldest[::-1] == self.runner.run(store.list(limit=1000))

    def teardown(self):
        self.runner.run(self.scoped._close())
        self.runner.close()


TestPaging = PagingMachine.TestCase
TestPaging.settings = settings(
    max_examples=max(15, settings.default.max_examples // 4),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
