"""Async methods with large inputs do not block the event loop. Cancelled or concurrent calls lose no data."""

import asyncio
import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_helpers import metered

from mama_structs import (
    HashEmbedder,
    RefStore,
    Resolver,
    Session,
    StructsSource,
    admin,
    with_descriptors,
    with_references,
)
from mama_structs.errors import InvalidArgument, QuotaExceeded, StoreBusy, StoreError
from mama_structs.memory.types.record import NewRecord
from mama_structs.memory.upkeep import namespace_copy as carrying
from mama_structs.settings import DescriptorSettings
from mama_structs.tools import exposed_tools as view

# Maximum work per callback. 20,000 calls take about 10 ms, and parsing 200,000 characters takes less.
MAX_CALLS, MAX_BYTES = 20_000, 200_000
LINE = "The raid doubled at dawn, and the shield held. "


def rows(count):
    return [{"id": f"1-{number}", "owner": f"1-{number % 50}", "note": f"row {number}"} for number in range(count)]


def marked(count, *, value="value"):
    return "\n".join(f'<ref id="r{number}">\n{value} = {number}\n</ref>' for number in range(count))


class NoNode:
    async def fetch(self, _entity_id):
        return {}


@pytest.fixture
async def session(tmp_path):
    async with Session.open(tmp_path / "store", structs=NoNode(), embedder=HashEmbedder(), conversation="c") as opened:
        await opened.preload()
        yield opened


# Limits per callback of the event loop


async def table() -> list[dict[str, object]]:
    return rows(5_000)


async def lines(data: list[dict[str, str]]) -> int:
    return len(data)


async def stream(session):
    taking = session.stream()
    said = marked(1_500, value="streamed")
    for start in range(0, len(said), 2_000):
        taking.feed(said[start : start + 2_000])
        await asyncio.sleep(0)
    await taking.close()


def referenced(session):
    @with_references(resolver=session.resolver)
    async def players() -> dict[str, object]:
        return {"players": rows(5_000)}

    return players(include_references="all")


IDS = [f"1-{number}" for number in range(1, 20_000)]
PLACES = [(("many",), f"{number:05}") for number in range(2_500)]
CALLS = {
    "wrap rows": lambda s: s.wrap(rows(5_000)),
    "wrap a mapping": lambda s: s.wrap({"players": rows(5_000)}),
    "wrap JSON text": lambda s: s.wrap(json.dumps(rows(10_000))),
    "wrap blocks": lambda s: s.wrap([{"type": "text", "text": f"{number} {LINE}"} for number in range(3_000)]),
    "wrap text": lambda s: s.wrap(LINE * 20_000),
    "wrap user input": lambda s: s.wrap(LINE * 20_000, source="user_input"),
    "observe refs": lambda s: s.observe(marked(1_500)),
    "observe a large ref": lambda s: s.observe(f'<ref id="large">\n{LINE * 20_000}\n</ref>'),
    "observe blocks": lambda s: s.observe([{"type": "text", "text": one} for one in marked(1_500).split("\n\n")]),
    "stream refs": stream,
    "call with a large result": lambda s: s.call("table", {}),
    "call with large arguments": lambda s: s.call("lines", {"data": [{"a": LINE}] * 10_000}),
    "call for host code": lambda s: s.call("table", {}, max_chars=None),
    "call of put_ref": lambda s: s.call("put_ref", {"ref_id": "x", "text": LINE * 20_000}),
    "with_descriptors": lambda s: with_descriptors(store=s.refs)(table)(),
    "with_references": referenced,
    "enrich": lambda s: s.resolver.enrich({"players": rows(5_000)}),
    "enrich one entity": lambda s: s.resolver.enrich({"player": {"id": "1-11", "rows": rows(5_000)}}),
    "resolve": lambda s: s.resolver.resolve(IDS),
    "put a record": lambda s: s.records.put(("one",), "key", rows(5_000)),
    "put records": lambda s: s.records.put_many(NewRecord(*place, {"n": 1}) for place in PLACES),
    "append records": lambda s: s.records.append(("list",), [{"n": number} for number in range(2_500)]),
    "get records": lambda s: s.records.get_many(PLACES),
    "expire records": lambda s: s.records.expire(PLACES, None),
    "move records": lambda s: s.records.move((place, (("moved",), place[1])) for place in PLACES),
    "save long content": lambda s: s.memories.save_context("id=2-1 " * 20_000),
    "recall a long message": lambda s: s.recall(LINE * 20_000),
    "check": admin.check,
}


@pytest.mark.parametrize("name", CALLS)
async def test_async_call_processes_large_input_outside_the_loop(session, monkeypatch, name):
    """A callback makes at most 20,000 calls, and parses at most 200,000 characters."""
    session.tools.add(table)
    session.tools.add(lines)
    if name == "check":
        await session.observe(marked(1_500))

    async def call():
        await CALLS[name](session)

    with metered(monkeypatch) as meter:
        # Run the call in a new task, because the meter does not measure the current callback, which is already running.
        await asyncio.create_task(call())

    assert MAX_CALLS > meter.calls
    assert MAX_BYTES > meter.bytes


async def test_open_reads_large_conversation_outside_the_loop(tmp_path, monkeypatch):
    """A conversation with 1,500 refs is loaded in a thread."""
    async with Session.open(tmp_path / "store", conversation="c", embedder=HashEmbedder()) as first:
        await first.observe(marked(1_500))
        before = {handle: first.refs.get(handle).text for handle in first.refs}

    async def reopen():
        return await Session.open(tmp_path / "store", conversation="c", embedder=HashEmbedder())

    with metered(monkeypatch) as meter:
        second = await asyncio.create_task(reopen())
    after = {handle: second.refs.get(handle).text for handle in second.refs}
    await second.close()

    assert MAX_CALLS > meter.calls
    assert before == after


async def test_copy_compares_memories_outside_the_loop(session, tmp_path, monkeypatch):
    """The memories of a page are encoded and compared in a thread."""
    await session.records.put_many([NewRecord(("n",), str(number), number, text=LINE) for number in range(400)])
    await admin.backup(session, tmp_path / "backup")

    encode, threads = carrying.serialize_memory, []

    def record_thread(*parts):
        threads.append(threading.get_ident())
        return encode(*parts)

    monkeypatch.setattr(carrying, "serialize_memory", record_thread)
    copied = await admin.copy(tmp_path / "backup", tmp_path / "copy")

    assert 400 == copied.namespaces[0].added
    assert 3 * 400 == len(threads)
    assert threading.get_ident() not in threads


async def test_meter_counts_work_in_the_loop(monkeypatch):
    """The meter detects a store that parses in the loop."""

    async def parse():
        RefStore().observe(marked(900, value=LINE * 5))

    with metered(monkeypatch) as meter:
        await asyncio.create_task(parse())

    assert MAX_CALLS < meter.calls
    assert MAX_BYTES < meter.bytes


async def test_preload_compiles_cues_in_a_thread(session, monkeypatch):
    """`tools_for` does not compile them again."""
    made = []
    exposure = view.ToolSelector

    def make():
        made.append(threading.get_ident())
        return exposure()

    monkeypatch.setattr(view, "ToolSelector", make)
    session.exposed_tools._selector = None
    await session.preload()
    session.tools_for("continue")

    assert 1 == len(made)
    assert threading.get_ident() not in made


# Limits of synchronous methods

LONG = "x" * 1_000_001


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda refs: refs.observe(LONG), "session.observe"),
        (lambda refs: refs.observe(marked(1_001)), "session.observe"),
        (lambda refs: refs.stream().feed(LONG), "several chunks"),
        (lambda refs: refs.put("x", LONG), "refs.run_in_thread"),
        (lambda refs: refs.edit("small", "a", LONG), "refs.run_in_thread"),
        (lambda refs: refs.add(LONG), "refs.run_in_thread"),
        (lambda refs: refs.add(LONG.encode(), mime_type="image/png"), "refs.run_in_thread"),
        (lambda refs: refs.suggest_refs(LONG), "refs.run_in_thread"),
        (lambda refs: refs.wrap(LONG), "session.wrap"),
        (lambda refs: refs.wrap([0] * 10_001), "session.wrap"),
    ],
)
def test_sync_method_rejects_large_input_and_names_the_async_one(call, named):
    """Above 1,000,000 characters, 1,000 refs or 10,000 items nothing is stored, and the hint names the async method."""
    refs = RefStore()
    refs.put("small", "a")

    with pytest.raises(InvalidArgument, match="synchronous call") as caught:
        call(refs)

    assert named in caught.value.hint
    assert ["ref:small@1"] == list(refs)


async def test_sync_method_rejects_large_stored_text():
    """A large ref is adopted, compared and extracted in a thread only."""
    refs, child = RefStore(), RefStore()
    await child.run_in_thread(lambda draft: draft.put("large", LONG))
    await child.run_in_thread(lambda draft: draft.put("large", LONG + "y"))
    for call in (
        lambda refs: refs.copy_from(child, "large"),
        lambda _: child.diff("ref:large@1", "ref:large@2"),
        lambda _: child.extract("ref:large", read_all=True),
    ):
        with pytest.raises(InvalidArgument, match="synchronous call") as caught:
            call(refs)
        assert "run_in_thread" in caught.value.hint

    assert "ref:large@1" == (await refs.run_in_thread(lambda draft: draft.copy_from(child, "large"))).versioned_handle


async def test_stream_close_rejects_large_answer_that_finish_stores():
    """After 1,001 refs in small chunks, `close` raises and names `finish`, which stores them once."""
    refs = RefStore()
    stream = refs.stream()
    said = marked(1_001)
    for start in range(0, len(said), 7):
        stream.feed(said[start : start + 7])
    with pytest.raises(InvalidArgument, match="synchronous call") as caught:
        stream.close()
    first, second = await asyncio.gather(stream.finish(), stream.finish())

    assert "stream.finish" in caught.value.hint
    assert 1_001 == len(first.refs) == len(refs)
    assert first is second is stream.close()


def test_resolver_detect_rejects_large_payload():
    """`detect` accepts 10,000 items, and names `enrich` for more."""
    resolver = Resolver([StructsSource(NoNode())])

    with pytest.raises(InvalidArgument, match="synchronous call") as caught:
        resolver.detect({"players": rows(10_001)})

    assert "resolver.enrich" in caught.value.hint


# Drafts of refs in another thread


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from("ab"), st.text("xy\n", max_size=4)),
            st.tuples(st.just("ingest"), st.sampled_from(["", " append"]), st.text("xy\n", max_size=4)),
            st.tuples(st.just("add"), st.just(""), st.text("xy", min_size=1, max_size=4)),
            st.tuples(st.just("delete"), st.sampled_from(["ref:a", "fd:1"]), st.just("")),
            st.tuples(st.just("wrap"), st.just(""), st.integers(1, 4).map(lambda n: "wide " * 2_000 * n)),
        ),
        max_size=8,
    )
)
def test_run_in_thread_stores_what_the_method_stores(steps):
    """Handles, texts and usage equal those of direct calls."""

    def run(refs, kind, name, text):
        try:
            if kind == "put":
                refs.put(name, text)
            elif kind == "ingest":
                refs.observe(f'<ref id="a"{name}>{text}</ref>')
            elif kind == "delete":
                refs.delete(name)
            else:
                getattr(refs, kind)(text)
        except (InvalidArgument, LookupError) as error:
            return str(error)
        return None

    def state(refs):
        return {handle: refs.get(handle).text for handle in refs}, refs.usage, str(refs.list())

    async def both():
        one, other = RefStore(), RefStore()
        errors = [run(one, *step) for step in steps]
        again = [await other.run_in_thread(lambda draft, step=step: run(draft, *step)) for step in steps]
        return (errors, [text for text, _ in [(state(one)[0], 0)]], one.usage), (again, [state(other)[0]], other.usage)

    expected, found = asyncio.run(both())

    assert expected == found


class Gate:
    """Blocks the thread of a draft until the event loop has done other work."""

    def __init__(self):
        self.entered, self.left = threading.Event(), threading.Event()
        self.runs = 0

    def hold(self):
        self.runs += 1
        self.entered.set()
        self.left.wait(30)

    async def until_entered(self):
        await asyncio.to_thread(self.entered.wait, 30)


async def test_change_during_draft_repeats_the_draft():
    """A text that is stored in the loop meanwhile keeps its number."""
    refs, gate = RefStore(), Gate()

    def work(draft):
        gate.hold()
        return draft.add("from the thread").handle

    task = asyncio.create_task(refs.run_in_thread(work))
    await gate.until_entered()
    kept = refs.add("from the loop").handle
    gate.left.set()

    assert "fd:2" == await task
    assert "fd:1" == kept
    assert 2 == gate.runs
    assert ["from the loop", "from the thread"] == [one.text for one in refs.list_descriptors()]


async def test_run_in_thread_raises_store_busy_when_store_always_changes():
    """Nothing is stored after ten outdated drafts."""
    refs, loop = RefStore(), asyncio.get_running_loop()

    def work(draft):
        changed = threading.Event()
        loop.call_soon_threadsafe(lambda: (refs.add("other"), changed.set()))
        changed.wait(30)
        draft.put("mine", "text")

    with pytest.raises(StoreBusy, match="10 attempts"):
        await refs.run_in_thread(work)

    assert 10 == len(refs)
    assert "ref:mine" not in refs


async def test_async_writers_of_one_store_run_in_order():
    refs = RefStore()

    def writer(number):
        return refs.run_in_thread(lambda draft: draft.put("x", f"text {number}").version)

    assert [1, 2, 3, 4] == await asyncio.gather(*map(writer, range(4)))
    assert [f"text {number}" for number in range(4)] == [refs.get(one).text for one in refs.versions("x")]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8])
async def test_cancelled_observe_stores_all_or_nothing(tmp_path, steps):
    """The same applies to the files on disk, and the next call works."""
    async with Session.open(tmp_path / "store", conversation="c", embedder=HashEmbedder()) as session:
        task = asyncio.create_task(session.observe(marked(400)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        held = len(session.refs)
        await session.observe(marked(400, value="later"))
        count = len(session.refs)
    async with Session.open(tmp_path / "store", conversation="c", embedder=HashEmbedder()) as again:
        kept = len(again.refs)

    assert held in {0, 400}
    assert held + 400 == count == kept


async def test_large_observe_over_quota_reports_each_ref_that_is_not_stored(tmp_path):
    refs = RefStore(settings=DescriptorSettings(max_handles=300))
    ingested = await refs.run_in_thread(lambda draft: draft.observe(marked(400)))

    assert 300 == len(ingested.refs) == len(refs)
    assert 100 == sum(one.kind == "quota_exceeded" for one in ingested.diagnostics)
    with pytest.raises(QuotaExceeded):
        refs.add("one more")


async def test_draft_that_raises_stores_nothing():
    refs = RefStore()

    def work(draft):
        draft.put("x", "text")
        raise StoreError("no")

    with pytest.raises(StoreError):
        await refs.run_in_thread(work)

    assert [] == list(refs)


async def test_large_result_is_answered_when_its_handles_cannot_be_stored(session, monkeypatch):
    """The answer has no handles if other calls keep changing the refs."""
    session.tools.add(table)

    async def busy(_load, _work):
        raise StoreBusy("always", waited=0.0)

    monkeypatch.setattr(session.refs, "_change", busy)
    shown = await session.call("table", {})

    assert {"id": "1-0", "owner": "1-0", "note": "row 0"} == shown[0]
    assert {"shown": len(shown) - 1, "of": 5_000, "kept": False} == shown[-1]["shortened"][""]
    assert 0 == len(session.refs)
