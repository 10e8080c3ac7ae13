"""`RefStore` without a session."""

import asyncio
import copy
import itertools
import json
import threading
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import DescriptorSettings, RefStore
from mama_structs.errors import (
    HandleNotFound,
    InvalidArgument,
    InvalidHandle,
    InvalidPage,
    InvalidParameter,
    InvalidRange,
    QuotaExceeded,
    SessionClosed,
    WrongLoop,
)


@pytest.fixture
def store():
    return RefStore()


def small(**settings):
    return RefStore(settings=DescriptorSettings(**settings))


# Refs in model output


def test_observe_stores_ref_immediately(store):
    """The ref is available when ingest returns."""
    ingested = store.observe('See <ref id="a" type="code" lang="python">\nx = 1\n</ref>.')

    assert ["ref:a"] == [ref.handle for ref in ingested.refs]
    assert "x = 1" == store.get("ref:a").text == store.get("a").text
    assert ("code", {"type": "code", "lang": "python"}) == (ingested.refs[0].category, ingested.refs[0].attributes)
    assert "See \nx = 1\n." == ingested.visible_text
    assert 'See <ref id="a" type="code" lang="python">\nx = 1\n</ref>.' == ingested.text


def test_observe_creates_new_version_when_id_is_repeated(store):
    """Without a number the newest version is used; a diagnostic reports the new one."""
    first = store.observe('<ref id="a">1</ref><ref id="a">2</ref>')
    second = store.observe('<ref id="a">3</ref>')

    assert ["1", "2", "3", "3"] == [store.get(h).text for h in ("ref:a@1", "ref:a@2", "ref:a@3", "ref:a")]
    assert ("ref:a@1", "ref:a@2", "ref:a@3") == store.versions("a") == store.versions("ref:a")
    assert [("new_version", "a", 20)] == [(said.kind, said.id, said.position) for said in first.diagnostics]
    assert "ref:a@2 is the one before" in second.diagnostics[0].message
    assert [3] == [ref.version for ref in store.list()]


def test_observe_numbers_versions_by_opening_tags(store):
    """The outer of two nested refs with the same id is the earlier version."""
    store.observe('<ref id="a">out<ref id="a">in</ref></ref>')

    assert ("outin", "in") == (store.get("ref:a@1").text, store.get("ref:a@2").text)


def test_observe_stores_and_reports_unclosed_ref(store):
    """The text up to the end is stored as incomplete."""
    ingested = store.observe('<ref id="a">one <ref id="b">two</ref> three')

    assert [("a", "one two three", False), ("b", "two", True)] == [
        (ref.id, ref.text, ref.is_complete) for ref in ingested.refs
    ]
    assert {"unclosed", "nested"} == {said.kind for said in ingested.diagnostics}
    assert "never closed" in repr(store.get("a"))


def test_observe_orders_diagnostics_by_position(store):
    """Diagnostics of the parser and of the store are in one list."""
    ingested = store.observe('<ref id="a">1</ref></ref><ref id="a">2</ref></ref>')

    assert ["stray_close", "new_version", "stray_close"] == [said.kind for said in ingested.diagnostics]


def test_observe_reports_ref_with_lone_surrogate(store):
    """The other refs of the answer are stored."""
    ingested = store.observe('<ref id="a">\ud83d</ref><ref id="b">x</ref>\udc00')

    assert ["b"] == [ref.id for ref in ingested.refs]
    assert [("invalid_text", "a")] == [(said.kind, said.id) for said in ingested.diagnostics]


def test_observe_reports_ref_that_exceeds_quota():
    """Smaller refs of the answer are stored."""
    store = small(max_bytes=3)
    ingested = store.observe('<ref id="a">1234</ref><ref id="b">123</ref>')

    assert ["b"] == [ref.id for ref in ingested.refs]
    assert [("quota_exceeded", "a")] == [(said.kind, said.id) for said in ingested.diagnostics]
    # Equal texts are stored once, so this ref fits into the quota.
    assert ["c"] == [ref.id for ref in store.observe('<ref id="c">123</ref>').refs]
    assert 3 == store.usage.bytes


def test_observe_stores_nothing_when_references_are_disabled():
    """The complete text is visible."""
    store = small(marks_enabled=False)
    ingested = store.observe('<ref id="a">1</ref>')

    assert ((), '<ref id="a">1</ref>') == (ingested.refs, ingested.visible_text)
    assert 0 == len(store)
    assert "reference_id_instructions" not in store.system_prompt()


@given(cuts=st.lists(st.integers(0, 60)))
def test_stream_stores_same_refs_as_complete_text(cuts):
    """For any chunks, refs, visible text and diagnostics are equal."""
    text = 'a <ref id="x" title="é>">\r\n1 `\r\n</ref> ```\n<ref id="y">2</ref>\n``` <ref id="z">3</re'
    whole = RefStore().observe(text)
    store = RefStore()
    stream = store.stream()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for begin, end in itertools.pairwise(places):
        stream.feed(text[begin:end])
    result = stream.close()

    assert (whole.visible_text, whole.text, whole.diagnostics) == (result.visible_text, result.text, result.diagnostics)
    assert [(ref.id, ref.text, ref.is_complete) for ref in whole.refs] == [
        (ref.id, ref.text, ref.is_complete) for ref in result.refs
    ]
    assert result is stream.close()


UNREADABLE_CHUNKS = [
    {},
    object(),
    {"type": "text"},
    {"type": "response.output_text.delta", "delta": None},
    {"choices": [{"index": 0, "delta": {"content": ["a"]}}]},
    {"candidates": [{"content": {"parts": [{"text": "a"}]}}]},
]


@given(at=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(UNREADABLE_CHUNKS)), min_size=1))
def test_stream_feed_skips_and_reports_unreadable_chunks(at):
    """Chunks of unknown formats do not change the text, and each type is reported once."""
    text = 'a <ref id="x" title="é>">\r\n1</ref> ```\n'
    whole = RefStore().observe(text)
    stream = RefStore().stream()
    for place, letter in enumerate(text):
        for _, chunk in (one for one in at if one[0] == place):
            assert [] == stream.feed(chunk)
        stream.feed(letter)
    for _, chunk in (one for one in at if one[0] >= len(text)):
        stream.feed(chunk)
    result = stream.close()
    skipped = [one for one in result.diagnostics if one.kind == "unreadable"]

    assert (whole.visible_text, whole.text) == (result.visible_text, result.text)
    assert [ref.text for ref in whole.refs] == [ref.text for ref in result.refs]
    assert [*whole.diagnostics] == [one for one in result.diagnostics if one.kind != "unreadable"]
    assert len({one.message for one in skipped}) == len(skipped)
    assert all("could not be read" in one.message for one in skipped)


@pytest.mark.parametrize("chunk", UNREADABLE_CHUNKS)
def test_stream_reports_unreadable_chunk_once(store, caplog, chunk):
    """One diagnostic and one log line per type; the final message is still recognized."""
    stream = store.stream()
    for _ in range(3):
        stream.feed(chunk)
    stream.feed('<ref id="x">1</ref>')
    result = stream.close()
    again = store.observe({"role": "assistant", "content": '<ref id="x">1</ref>'})

    assert ["unreadable"] == [one.kind for one in result.diagnostics]
    assert 1 == caplog.text.count("cannot be read")
    assert [1] == [ref.version for ref in again.refs]


@pytest.mark.parametrize(
    "chunk", [{"choices": [{"index": 0, "finish_reason": "stop"}]}, {"choices": [{"delta": None}]}]
)
def test_stream_feed_accepts_chunk_without_delta(store, chunk):
    """A chunk with only a finish reason adds nothing and is not reported."""
    stream = store.stream()

    assert [] == stream.feed(chunk)
    assert () == stream.close().diagnostics


@pytest.mark.parametrize(
    "chunk",
    [
        5,
        b"a",
        ["a"],
        {"type": "message", "role": "assistant", "content": []},
        {"role": "assistant", "content": "a"},
        {"choices": [{"index": 0, "message": {"content": "a"}}]},
    ],
)
def test_stream_feed_raises_when_value_is_no_chunk(store, chunk):
    """Complete messages and values that no stream yields are errors of the host."""
    with pytest.raises(InvalidArgument):
        store.stream().feed(chunk)


def test_stream_feed_raises_after_close(store):
    """A closed stream accepts no chunks."""
    stream = store.stream()
    stream.close()

    with pytest.raises(SessionClosed, match="closed"):
        stream.feed("x")


# Large texts


def test_wrap_returns_short_result_itself(store):
    """The same object is returned, for every type of result."""
    for result in ("x" * 8_000, {"a": [1]}, [1, 2], None, 3, 2.5, True, b"x" * 9_000, [{"type": "text", "text": "x"}]):
        assert result is store.wrap(result)
    assert 0 == len(store)


def test_wrap_stores_long_text_as_descriptor(store):
    """One character over the limit is too long, and the complete text is stored."""
    text = "x" * 8_001
    shown = store.wrap(text)

    assert shown.startswith('<fd_result fd="fd:1" source="tool_result" chars="8001"')
    assert text == store.get("fd:1").text
    assert 3 == store.get("fd:1").pages


def test_wrap_stores_mapping_as_json_and_rows_as_lines(store):
    """Each row of a truncated list is a line of its own handle."""
    data = {"rows": [{"name": "ä", "number": number} for number in range(400)]}
    store.wrap(data)

    assert data == json.loads(store.get("fd:1").text)
    assert "ä" in store.get("fd:1").text
    assert data["rows"][6] == json.loads(store.read("fd:2", mode="line", start=7).text)
    assert 400 == store.get("fd:2").lines


def test_wrap_truncates_only_long_texts_of_blocks(store):
    """Images and short texts keep their places."""
    image = {"type": "image", "data": "y" * 9_000, "mimeType": "image/png"}
    blocks = [{"type": "text", "text": "x" * 9_000, "annotations": {}}, image, {"type": "text", "text": "short"}]
    shown = store.wrap(blocks)

    assert (image, blocks[2]) == (shown[1], shown[2])
    assert shown[0]["text"].startswith("<fd_result")
    assert {} == shown[0]["annotations"]
    assert "x" * 9_000 == blocks[0]["text"]


def test_wrap_merges_many_short_blocks(store):
    """Adjacent texts become one; an image between them keeps its place."""
    image = {"type": "image", "data": "y", "mimeType": "image/png"}
    texts = [{"type": "text", "text": f"{number:03}" + "x" * 697} for number in range(100)]
    shown = store.wrap([*texts[:60], image, *texts[60:]])

    assert ["text", "image", "text"] == [block["type"] for block in shown]
    assert "\n".join(block["text"] for block in texts[:60]) == store.get("fd:1").text
    assert "\n".join(block["text"] for block in texts[60:]) == store.get("fd:2").text
    assert texts[:11] == store.wrap(texts[:11])
    assert ["fd:1", "fd:2"] == list(store)


def test_read_returns_handle_with_version(store):
    """Following the handle cannot mix the pages of two versions."""
    store.observe('<ref id="a">one</ref><ref id="a">two</ref>')

    assert ("ref:a@2", "ref:a@1") == (store.read("ref:a").handle, store.read("ref:a@1").handle)


def test_wrap_keeps_words_around_pasted_text(store):
    """Text before and after the pasted text stays visible, and the paste is stored."""
    paste = "\n".join(f"log line {number}" for number in range(2_000))
    shown = store.wrap(f"Why does this fail?\n\n{paste}\n\nOnly the last run matters.", source="user_input")

    assert shown.startswith("Why does this fail?\n\n")
    assert shown.endswith("</fd_result>\nOnly the last run matters.")
    assert 'source="user_input"' in shown
    assert paste in store.get("fd:1").text


def test_equal_texts_are_stored_once(store):
    """Versions, refs and descriptors with equal text share it."""
    text = "x" * 10_000
    store.add(text)
    store.add("".join(["x"] * 10_000))
    store.observe(f'<ref id="a">{text}</ref><ref id="b">{text}</ref>')

    assert 10_000 == store.usage.bytes
    assert 1 == len({id(store.get(handle).content) for handle in store})


def test_add_raises_when_quota_is_exceeded():
    """The error names the quota and its use, and nothing is stored."""
    store = small(max_handles=2, max_bytes=10)
    store.add("12345")
    with pytest.raises(QuotaExceeded) as bytes_error:
        store.add("abcdefgh")
    store.add("12345")
    with pytest.raises(QuotaExceeded) as handles_error:
        store.add("1")

    assert ("max_bytes", 5, 10) == (bytes_error.value.quota, bytes_error.value.used, bytes_error.value.limit)
    assert ("max_handles", 2, 2) == (handles_error.value.quota, handles_error.value.used, handles_error.value.limit)
    assert "settings.descriptors.max_bytes" in bytes_error.value.hint
    assert ["fd:1", "fd:2"] == list(store)


def test_delete_releases_quota_and_leaves_tombstone():
    """The number is not reused, and reading reports the time of deletion."""
    at = datetime(2026, 11, 22, 8, 30, tzinfo=UTC)
    store = RefStore(settings=DescriptorSettings(max_bytes=5), clock=lambda: at)
    store.add("12345")
    store.delete("fd:1")
    store.add("abcde")

    with pytest.raises(HandleNotFound, match="deleted on 2026-11-22 at 08:30 UTC") as caught:
        store.read("fd:1")
    assert at == caught.value.deleted_at
    assert ["fd:2"] == list(store)
    assert 5 == store.usage.bytes
    with pytest.raises(HandleNotFound):
        store.delete("fd:1")


def test_delete_keeps_shared_text_until_last_use():
    """Deleting one of two refs with equal text releases no bytes."""
    store = small(max_bytes=100)
    store.observe('<ref id="a">12345</ref><ref id="b">12345</ref>')
    store.delete("ref:b")

    assert 5 == store.usage.bytes
    store.delete("ref:a")
    assert 0 == store.usage.bytes == store.usage.handles


def test_delete_version_keeps_other_versions():
    """The newest remaining version is used; ref:a deletes all, and numbers continue."""
    store = RefStore()
    store.observe('<ref id="a">1</ref><ref id="a">2</ref><ref id="a">3</ref>')
    store.delete("ref:a@3")

    assert "2" == store.get("a").text
    store.delete("ref:a")
    assert () == store.list()
    with pytest.raises(HandleNotFound, match="deleted"):
        store.get("ref:a")
    store.observe('<ref id="a">4</ref>')
    assert ("ref:a@4",) == store.versions("a")


# Reading


def test_read_error_has_type_and_range(store):
    """Errors have distinct types and the valid range."""
    handle = store.add("one\ntwo\n").handle
    cases = [
        (lambda: store.read("fd:9"), HandleNotFound, "not_found"),
        (lambda: store.read("a b"), InvalidHandle, "invalid_id"),
        (lambda: store.read("9"), HandleNotFound, "not_found"),
        (lambda: store.read("fd:x"), InvalidHandle, "invalid_id"),
        (lambda: store.read(handle, start=2), InvalidPage, "invalid_page"),
        (lambda: store.read(handle, start=0), InvalidPage, "invalid_page"),
        (lambda: store.read(handle, mode="line", start=3), InvalidRange, "invalid_range"),
        (lambda: store.read(handle, mode="char", start=9), InvalidRange, "invalid_range"),
        (lambda: store.read(handle, mode="char", start=-1), InvalidRange, "invalid_range"),
        (lambda: store.read(handle, count=0), InvalidParameter, "invalid_parameter"),
        (lambda: store.read(handle, mode="word"), InvalidParameter, "invalid_parameter"),
        (lambda: store.list(category="poem"), InvalidParameter, "invalid_parameter"),
    ]
    for read, kind, word in cases:
        with pytest.raises(kind) as caught:
            read()
        assert word == caught.value.type
        assert kind is type(caught.value)
    with pytest.raises(InvalidRange) as caught:
        store.read(handle, mode="line", start=3)
    assert (1, 2) == caught.value.valid


def test_get_error_names_nearest_handles():
    """A misspelled handle can be corrected."""
    store = RefStore()
    with pytest.raises(HandleNotFound, match="nothing is stored yet"):
        store.get("fd:1")
    store.observe('<ref id="parser">1</ref><ref id="printer">2</ref><ref id="parser">3</ref>')
    store.add("x")

    for asked, nearest in [("ref:parsre", "ref:parser"), ("pinter", "ref:printer"), ("fd:2", "fd:1")]:
        with pytest.raises(HandleNotFound) as caught:
            store.get(asked)
        assert nearest == caught.value.nearest[0]
        assert nearest in caught.value.hint
    with pytest.raises(HandleNotFound) as caught:
        store.get("ref:parser@7")
    assert ("ref:parser@1", "ref:parser@2") == caught.value.nearest


def test_extract_creates_descriptor(store):
    """It contains the exact part, and its source names the original."""
    handle = store.add("one\ntwo\nthree").handle
    made = store.extract(handle, mode="line", start=2, count=2)

    assert ("fd:2", "two\nthree", "extract of fd:1") == (made.handle, made.text, made.source)


def test_store_supports_len_contains_and_iteration(store):
    """Iteration yields handles in order of creation."""
    store.observe('<ref id="a">1</ref>')
    store.add("x")

    assert ["ref:a@1", "fd:1"] == list(store)
    assert 2 == len(store)
    assert "ref:a" in store
    assert "ref:a@1" in store
    assert "fd:2" not in store
    assert "what" not in store
    assert 7 not in store
    assert "<RefStore 2 handles, 2 of 67,108,864 bytes>" == repr(store)


def test_list_filters_by_category(store):
    """The category is from the tag or else from the content."""
    store.observe('<ref id="a" type="code">x</ref><ref id="b" type="data">x</ref><ref id="c" type="text">x</ref>')

    assert ["b"] == [ref.id for ref in store.list(category="data")]
    assert ["a", "b", "c"] == [ref.id for ref in store.list()]


def test_suggest_avoids_used_ids(store):
    """Suggested ids are unused."""
    store.observe('<ref id="parse">x</ref>')
    text = "```python\ndef parse(text):\n    a = 1\n    return text\n```\n"

    assert ["parse"] == [one.id for one in RefStore().suggest_refs(text)]
    assert "parse" not in {one.id for one in store.suggest_refs(text)}


# Forks


def test_fork_is_independent_of_parent(store):
    """Earlier handles are shared; new handles with the same number differ."""
    store.observe('<ref id="a">1</ref>')
    store.add("x")
    child = store.fork()
    store.add("of the parent")
    child.add("of the child")
    child.observe('<ref id="a">2</ref><ref id="b">3</ref>')

    assert ("1", "2") == (store.get("a").text, child.get("a").text)
    assert ("of the parent", "of the child") == (store.get("fd:2").text, child.get("fd:2").text)
    assert "ref:b" not in store
    assert "x" == child.get("fd:1").text


def test_delete_in_fork_does_not_affect_parent(store):
    """Deletions are not visible in the other store, in either direction."""
    store.add("x")
    store.add("y")
    child = store.fork()
    child.delete("fd:1")
    store.delete("fd:2")

    assert ["fd:2"] == list(child)
    assert ["fd:1"] == list(store)
    assert (1, 1) == (child.usage.bytes, store.usage.bytes)


# Invalid method arguments


@pytest.mark.parametrize("settings", ["x", {}, DescriptorSettings])
def test_ref_store_rejects_invalid_settings(settings):
    """Only instances of the settings class are accepted."""
    with pytest.raises(InvalidArgument):
        RefStore(settings=settings)


@pytest.mark.parametrize("text", [None, b"x", 3, ["x"]])
def test_add_rejects_values_other_than_text(store, text):
    """Nothing is stored."""
    with pytest.raises(InvalidArgument):
        store.add(text)
    assert 0 == len(store)


def test_add_rejects_lone_surrogate(store):
    """The error names its position."""
    with pytest.raises(InvalidArgument, match="3"):
        store.add("ab\ud83dc")
    with pytest.raises(InvalidArgument, match="source"):
        store.add("x", source="")


def test_ref_store_rejects_other_thread(store):
    """A store belongs to the thread that first used it."""
    store.add("x")
    caught = []

    def use():
        for step in (lambda: store.add("y"), lambda: store.get("fd:1"), lambda: store.observe("x"), store.fork):
            try:
                step()
            except WrongLoop as error:
                caught.append(error.type)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()

    assert ["wrong_loop"] * 4 == caught
    assert ["fd:1"] == list(store)


def test_entries_have_time_of_clock():
    """The store uses the clock that it was given."""
    ticks = iter(range(10))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    store = RefStore(clock=lambda: start + timedelta(seconds=next(ticks)))
    store.observe('<ref id="a">1</ref>')
    store.add("x")

    assert [0, 1] == [(store.get(handle).created_at - start).seconds for handle in store]


def test_observe_does_not_change_message(store):
    """The host's message is only read."""
    message = {"role": "assistant", "content": [{"type": "text", "text": '<ref id="a">1</ref>'}]}
    before = copy.deepcopy(message)
    store.observe(message)

    assert before == message


def test_prompt_matches_settings():
    """Numbers are those of the settings, and stored handles are listed on request."""
    store = small(page_size=123)
    store.observe('<ref id="parser">1</ref>')

    assert "123 characters" in store.system_prompt()
    assert "" == small(enabled=False).system_prompt(handles=True)
    assert "created=" not in store.system_prompt()
    assert '<ref id="parser" created=' in store.system_prompt(handles=True)


def test_prompt_example_is_a_valid_ref(store):
    """The example can be parsed, and the literal tag is not a ref."""
    ingested = store.observe(store.system_prompt())

    # The prompt's example for appending repeats the id, so the prompt contains two refs with this id.
    assert ["parser", "parser"] == [ref.id for ref in ingested.refs]
    assert ("def parse(text): ...", "python") == (ingested.refs[0].text, ingested.refs[0].language)
    assert ingested.refs[1].text.startswith("def parse(text): ...\n adds to the end")


def test_observe_reports_lone_surrogate_in_attribute(store):
    """The other refs are stored; a source with a surrogate is rejected."""
    ingested = store.observe('<ref id="a">1</ref><ref id="b" title="\ud800">x</ref><ref id="c">2</ref>')

    assert ["a", "c"] == [ref.id for ref in ingested.refs]
    assert [("invalid_text", "b")] == [(said.kind, said.id) for said in ingested.diagnostics]
    with pytest.raises(InvalidArgument, match="surrogate"):
        store.add("x", source="\ud800")


def test_wrap_stores_blocks_within_quota():
    """If only one of two blocks can be stored, the other one is cut and says so."""
    store = small(max_bytes=12_000)
    blocks = [{"type": "text", "text": letter * 9_000} for letter in "ab"]
    shown = store.wrap(blocks)

    assert ["fd:1"] == list(store)
    assert "fd:1" in shown[0]["text"]
    assert shown[1]["text"].endswith("[the rest was not kept]")


def test_wrap_accepts_provider_objects_as_blocks(store):
    """Objects that convert to a list of content blocks are truncated like one."""

    class Block:
        def __init__(self, text):
            self.text = text

        def model_dump(self, mode):
            return {"type": "text", "text": self.text}

    short = [Block("x")]
    shown = store.wrap([Block("x" * 9_000), Block("y")])

    assert short is store.wrap(short)
    assert ["text", "text"] == [block["type"] for block in shown]
    assert "y" == shown[1]["text"]
    assert "x" * 9_000 == store.get("fd:1").text


def test_wrap_returns_result_without_json_form(store, caplog):
    """It cannot be measured, and no warning is logged."""
    for result in (object(), iter([1]), {1, object()}, {"a": object()}):
        assert result is store.wrap(result)
    assert "" == caplog.text


def test_observe_reports_previous_version_that_exists(store):
    """A deleted version is not named."""
    store.observe('<ref id="a">1</ref><ref id="a">2</ref>')
    store.delete("ref:a@2")
    assert store.observe('<ref id="a">3</ref>').diagnostics[0].message.endswith("ref:a@1 is the one before")
    store.delete("ref:a")
    assert "ref:a is now version 4" == store.observe('<ref id="a">4</ref>').diagnostics[0].message


def test_observe_of_nested_refs_over_quota_is_memory_bounded():
    """Contents are created one at a time, after the quota check."""
    store = small(max_bytes=2_000_000)
    text = "".join(f'<ref id="n{level}">' for level in range(64)) + "x" * 1_000_000
    tracemalloc.start()
    ingested = asyncio.run(store.run_in_thread(lambda draft: draft.observe(text)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert 64 == len(ingested.refs)
    assert peak < 20_000_000


@pytest.mark.parametrize("answers", [3, "long", DescriptorSettings()])
def test_ref_store_rejects_invalid_answer_settings(answers):
    """The constructor raises for other types."""
    with pytest.raises(InvalidArgument, match="answers must be AnswerSettings"):
        RefStore(answers=answers)


# Refs in thoughts and in JSON strings


def test_observe_does_not_store_refs_in_thoughts(store):
    """The model is told about each of them that the answer does not mark, and the error for it names the reason."""
    text = '<think>\nmaybe <ref id="draft">1</ref> or <ref id="plan">2\n</think>\n<ref id="plan">3</ref>'
    seen = store.observe(text)

    assert [("plan", "3", 1)] == [(ref.id, ref.text, ref.version) for ref in seen.refs]
    assert [("in_thoughts", "draft", False)] == [(one.kind, one.id, one.is_note) for one in seen.diagnostics]
    assert "'draft'" in seen.diagnostics[0].message
    assert '<ref id="plan" lines="1"/>' == seen.compact_text.partition("</think>\n")[2]
    with pytest.raises(HandleNotFound, match="<think>"):
        store.get("draft")


def test_observe_stores_refs_after_mentioned_thoughts(store):
    """A tag that only follows text opens no thoughts."""
    text = 'Some models print <think> before.\n<ref id="plan">the plan</ref>\nThe closing tag is </think>.'

    assert ["plan"] == [ref.id for ref in store.observe(text).refs]


def test_observe_stores_refs_after_unclosed_thoughts(store):
    assert ["a"] == [ref.id for ref in store.observe('<think>no end\n<ref id="a">1</ref>').refs]


def test_observe_decodes_refs_in_json_strings(store):
    """The visible text and the compact text remain valid JSON."""
    content = 'def f():\n\treturn "é\U0001f600\\\\"'
    answer = json.dumps({"text": f'Here: <ref id="code" title="a é">\n{content}\n</ref> Done.'})
    seen = store.observe(answer)

    assert [("code", content, "a é")] == [(ref.id, ref.text, ref.attributes["title"]) for ref in seen.refs]
    assert f"Here: \n{content}\n Done." == json.loads(seen.visible_text)["text"]
    assert 'Here: <ref id="code" lines="2"/> Done.' == json.loads(seen.compact_text)["text"]
    assert () == RefStore().observe(seen.compact_text).refs


@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_observe_decodes_refs_with_single_quotes_in_json_answer(size):
    """The complete answer proves that the text is JSON, because a single-quoted tag looks the same in ordinary text."""
    answer = json.dumps({"answer": "Here: <ref id='code' title='é'>line 1\nsay \"hi\"</ref> Done.", "n": 1}, indent=1)
    stream = RefStore().stream()
    for start in range(0, len(answer), size):
        stream.feed(answer[start : start + size])
    seen = stream.close()

    assert [("code", 'line 1\nsay "hi"', "é")] == [(ref.id, ref.text, ref.attributes["title"]) for ref in seen.refs]
    assert 'Here: line 1\nsay "hi" Done.' == json.loads(seen.visible_text)["answer"]
    assert 'Here: <ref id="code" lines="2"/> Done.' == json.loads(seen.compact_text)["answer"]


@pytest.mark.parametrize(
    "text", [r"{'a'}: <ref id='a'>\n</ref>", r"""["a", "<ref id='a'>\n</ref>""", "[" * 9_999 + r"<ref id='a'>\n</ref>"]
)
def test_observe_stores_refs_with_single_quotes_in_other_text_exactly(text):
    assert r"\n" == RefStore().observe(text).refs[0].text


@pytest.mark.parametrize(
    "code",
    [
        "\nre.split('\\t|\\n', s)\n",
        "\nprint('a\\n', \"b\")\n",
        "\r\ns = '\\\\' + \"\\u00e9\"\r\n",
        'print("\\t") ',
    ],
)
@pytest.mark.parametrize("size", [1, 2, 1_000])
def test_observe_stores_text_in_escaped_tags_outside_of_json_exactly(code, size):
    """A line break, or a quote that does not end a JSON string, proves that the escaped tag is ordinary text."""
    text = f'Here is it:\n<ref id=\\"code\\" lang=\\"python\\">{code}</ref>\nDone.'
    stream = RefStore().stream()
    for start in range(0, len(text), size):
        stream.feed(text[start : start + size])
    seen = stream.close()

    assert [("code", code.strip("\r\n"), True)] == [(ref.id, ref.text, ref.is_complete) for ref in seen.refs]
    assert 'Here is it:\n<ref id="code" lines="1"/>\nDone.' == seen.compact_text


@pytest.mark.parametrize("size", [1, 3, 50])
def test_stream_stores_the_same_refs_in_thoughts_and_json(size):
    text = (
        '<think><ref id="b">x</think>' + json.dumps({"t": '<ref id="a">\n"1"\n</ref>'}) + '<think><ref id="c">y</ref>'
    )
    stream = RefStore().stream()
    for start in range(0, len(text), size):
        stream.feed(text[start : start + size])
    streamed, seen = stream.close(), RefStore().observe(text)

    assert [("a", '"1"'), ("c", "y")] == [(ref.id, ref.text) for ref in seen.refs]
    assert (seen.diagnostics, seen.visible_text) == (streamed.diagnostics, streamed.visible_text)
    assert [ref.text for ref in seen.refs] == [ref.text for ref in streamed.refs]
