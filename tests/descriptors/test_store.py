"""The store of refs and descriptors, without a session."""

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


# What a model wrote


def test_a_ref_can_be_read_in_the_same_turn(store):
    """What was marked is there when ingest returns."""
    ingested = store.ingest('See <ref id="a" type="code" lang="python">\nx = 1\n</ref>.')

    assert ["ref:a"] == [ref.handle for ref in ingested.refs]
    assert "x = 1" == store.get("ref:a").text == store.get("a").text
    assert ("code", {"type": "code", "lang": "python"}) == (ingested.refs[0].category, ingested.refs[0].attributes)
    assert "See \nx = 1\n." == ingested.visible
    assert 'See <ref id="a" type="code" lang="python">\nx = 1\n</ref>.' == ingested.text


def test_a_repeated_id_is_a_new_version(store):
    """The newest is meant without a number, the others stay, and the diagnostic says so."""
    first = store.ingest('<ref id="a">1</ref><ref id="a">2</ref>')
    second = store.ingest('<ref id="a">3</ref>')

    assert ["1", "2", "3", "3"] == [store.get(h).text for h in ("ref:a@1", "ref:a@2", "ref:a@3", "ref:a")]
    assert ("ref:a@1", "ref:a@2", "ref:a@3") == store.versions("a") == store.versions("ref:a")
    assert [("new_version", "a", 20)] == [(said.kind, said.id, said.position) for said in first.diagnostics]
    assert "ref:a@2 is the one before" in second.diagnostics[0].message
    assert [3] == [ref.version for ref in store.list()]


def test_versions_follow_the_opening_tags(store):
    """Of two refs of one id, one inside the other, the outer one is the earlier version."""
    store.ingest('<ref id="a">out<ref id="a">in</ref></ref>')

    assert ("outin", "in") == (store.get("ref:a@1").text, store.get("ref:a@2").text)


def test_an_unclosed_ref_is_stored_and_reported(store):
    """Everything up to the end is kept, marked as not complete."""
    ingested = store.ingest('<ref id="a">one <ref id="b">two</ref> three')

    assert [("a", "one two three", False), ("b", "two", True)] == [
        (ref.id, ref.text, ref.complete) for ref in ingested.refs
    ]
    assert {"unclosed", "nested"} == {said.kind for said in ingested.diagnostics}
    assert "never closed" in repr(store.get("a"))


def test_diagnostics_come_in_the_order_of_the_text(store):
    """What the parser and what the store say is one list."""
    ingested = store.ingest('<ref id="a">1</ref></ref><ref id="a">2</ref></ref>')

    assert ["stray_close", "new_version", "stray_close"] == [said.kind for said in ingested.diagnostics]


def test_a_surrogate_in_a_ref_is_reported_and_the_others_are_stored(store):
    """No file could hold it; the rest of the answer is not lost for it."""
    ingested = store.ingest('<ref id="a">\ud83d</ref><ref id="b">x</ref>\udc00')

    assert ["b"] == [ref.id for ref in ingested.refs]
    assert [("invalid_text", "a")] == [(said.kind, said.id) for said in ingested.diagnostics]


def test_a_ref_over_the_quota_is_reported_and_smaller_ones_are_stored():
    """The model is told that it was not stored."""
    store = small(max_bytes=3)
    ingested = store.ingest('<ref id="a">1234</ref><ref id="b">123</ref>')

    assert ["b"] == [ref.id for ref in ingested.refs]
    assert [("quota_exceeded", "a")] == [(said.kind, said.id) for said in ingested.diagnostics]
    # The same text again takes no more room.
    assert ["c"] == [ref.id for ref in store.ingest('<ref id="c">123</ref>').refs]
    assert 3 == store.usage.bytes


def test_when_references_are_off_tags_are_text():
    """Nothing is stored, and everything is visible as it came."""
    store = small(references_enabled=False)
    ingested = store.ingest('<ref id="a">1</ref>')

    assert ((), '<ref id="a">1</ref>') == (ingested.refs, ingested.visible)
    assert 0 == len(store)
    assert "reference_id_instructions" not in store.prompt()


@given(cuts=st.lists(st.integers(0, 60)))
def test_a_stream_stores_what_the_whole_text_would(cuts):
    """Wherever the chunks are cut, refs, visible text and diagnostics are the same."""
    text = 'a <ref id="x" title="é>">\r\n1 `\r\n</ref> ```\n<ref id="y">2</ref>\n``` <ref id="z">3</re'
    whole = RefStore().ingest(text)
    store = RefStore()
    stream = store.stream()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for begin, end in itertools.pairwise(places):
        stream.feed(text[begin:end])
    result = stream.close()

    assert (whole.visible, whole.text, whole.diagnostics) == (result.visible, result.text, result.diagnostics)
    assert [(ref.id, ref.text, ref.complete) for ref in whole.refs] == [
        (ref.id, ref.text, ref.complete) for ref in result.refs
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
    """Chunks of unknown forms change nothing of the text, and each type is reported once."""
    text = 'a <ref id="x" title="é>">\r\n1</ref> ```\n'
    whole = RefStore().ingest(text)
    stream = RefStore().stream()
    for place, letter in enumerate(text):
        for _, chunk in (one for one in at if one[0] == place):
            assert [] == stream.feed(chunk)
        stream.feed(letter)
    for _, chunk in (one for one in at if one[0] >= len(text)):
        stream.feed(chunk)
    result = stream.close()
    skipped = [one for one in result.diagnostics if one.kind == "unreadable"]

    assert (whole.visible, whole.text) == (result.visible, result.text)
    assert [ref.text for ref in whole.refs] == [ref.text for ref in result.refs]
    assert [*whole.diagnostics] == [one for one in result.diagnostics if one.kind != "unreadable"]
    assert len({one.message for one in skipped}) == len(skipped)
    assert all("could not be read" in one.message for one in skipped)


@pytest.mark.parametrize("chunk", UNREADABLE_CHUNKS)
def test_stream_reports_chunk_that_cannot_be_read(store, caplog, chunk):
    """One diagnostic and one line in the log for a type, and the finished message is still recognized."""
    stream = store.stream()
    for _ in range(3):
        stream.feed(chunk)
    stream.feed('<ref id="x">1</ref>')
    result = stream.close()
    again = store.ingest({"role": "assistant", "content": '<ref id="x">1</ref>'})

    assert ["unreadable"] == [one.kind for one in result.diagnostics]
    assert 1 == caplog.text.count("cannot be read")
    assert [1] == [ref.version for ref in again.refs]


@pytest.mark.parametrize(
    "chunk", [{"choices": [{"index": 0, "finish_reason": "stop"}]}, {"choices": [{"delta": None}]}]
)
def test_stream_feed_takes_chunk_without_delta(store, chunk):
    """A chunk that has only a finish reason adds nothing and is no problem."""
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
    """Whole messages and values that no stream yields are bugs of the host."""
    with pytest.raises(InvalidArgument):
        store.stream().feed(chunk)


def test_a_closed_stream_takes_no_more(store):
    """Its answer is over."""
    stream = store.stream()
    stream.close()

    with pytest.raises(SessionClosed, match="closed"):
        stream.feed("x")


# Large texts


def test_what_is_short_comes_back_itself(store):
    """The very object, for every kind of result."""
    for result in ("x" * 8_000, {"a": [1]}, [1, 2], None, 3, 2.5, True, b"x" * 9_000, [{"type": "text", "text": "x"}]):
        assert result is store.wrap(result)
    assert 0 == len(store)


def test_longer_text_becomes_a_descriptor(store):
    """One character over the limit is too long, and everything can be read."""
    text = "x" * 8_001
    shown = store.wrap(text)

    assert shown.startswith('<fd_result fd="fd:1" source="tool_result" chars="8001"')
    assert text == store.get("fd:1").text
    assert 3 == store.get("fd:1").pages


def test_data_is_kept_as_json_and_its_rows_as_lines(store):
    """A mapping is measured and kept as JSON, and each row of what was shortened is a line."""
    data = {"rows": [{"name": "ä", "number": number} for number in range(400)]}
    store.wrap(data)

    assert data == json.loads(store.get("fd:1").text)
    assert "ä" in store.get("fd:1").text
    assert data["rows"][6] == json.loads(store.read("fd:2", mode="line", start=7).text)
    assert 400 == store.get("fd:2").lines


def test_of_content_blocks_only_the_long_texts_are_wrapped(store):
    """Images and short texts stay, in place."""
    image = {"type": "image", "data": "y" * 9_000, "mimeType": "image/png"}
    blocks = [{"type": "text", "text": "x" * 9_000, "annotations": {}}, image, {"type": "text", "text": "short"}]
    shown = store.wrap(blocks)

    assert (image, blocks[2]) == (shown[1], shown[2])
    assert shown[0]["text"].startswith("<fd_result")
    assert {} == shown[0]["annotations"]
    assert "x" * 9_000 == blocks[0]["text"]


def test_many_short_blocks_are_wrapped_together(store):
    """A hundred texts of 700 characters are one long one; what stands between them stays where it is."""
    image = {"type": "image", "data": "y", "mimeType": "image/png"}
    texts = [{"type": "text", "text": f"{number:03}" + "x" * 697} for number in range(100)]
    shown = store.wrap([*texts[:60], image, *texts[60:]])

    assert ["text", "image", "text"] == [block["type"] for block in shown]
    assert "\n".join(block["text"] for block in texts[:60]) == store.get("fd:1").text
    assert "\n".join(block["text"] for block in texts[60:]) == store.get("fd:2").text
    assert texts[:11] == store.wrap(texts[:11])
    assert ["fd:1", "fd:2"] == list(store)


def test_a_reading_names_the_version_that_was_read(store):
    """Pages of two versions are not mixed: the answer's handle goes on with the same text."""
    store.ingest('<ref id="a">one</ref><ref id="a">two</ref>')

    assert ("ref:a@2", "ref:a@1") == (store.read("ref:a").handle, store.read("ref:a@1").handle)


def test_the_users_own_words_stay_in_sight(store):
    """The question before and after what was pasted is shown as it is, and the paste is kept whole."""
    paste = "\n".join(f"log line {number}" for number in range(2_000))
    shown = store.wrap(f"Why does this fail?\n\n{paste}\n\nOnly the last run matters.", source="user_input")

    assert shown.startswith("Why does this fail?\n\n")
    assert shown.endswith("</fd_result>\nOnly the last run matters.")
    assert 'source="user_input"' in shown
    assert paste in store.get("fd:1").text


def test_equal_texts_are_held_once(store):
    """Versions, refs and descriptors of one text share it."""
    text = "x" * 10_000
    store.add(text)
    store.add("".join(["x"] * 10_000))
    store.ingest(f'<ref id="a">{text}</ref><ref id="b">{text}</ref>')

    assert 10_000 == store.usage.bytes
    assert 1 == len({id(store.get(handle).content) for handle in store})


def test_a_quota_is_refused_before_anything_is_stored():
    """The error says which one, how much is used, and what to do."""
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


def test_deleting_gives_room_back_and_leaves_a_tombstone():
    """The number is not used again, and reading says when it was deleted."""
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


def test_a_shared_text_keeps_its_room_until_the_last_is_deleted():
    """Deleting one of two refs with the same text frees nothing."""
    store = small(max_bytes=100)
    store.ingest('<ref id="a">12345</ref><ref id="b">12345</ref>')
    store.delete("ref:b")

    assert 5 == store.usage.bytes
    store.delete("ref:a")
    assert 0 == store.usage.bytes == store.usage.handles


def test_deleting_a_version_leaves_the_others():
    """Without a number the newest that is left is meant; with ref:a all are deleted, and the next is a new number."""
    store = RefStore()
    store.ingest('<ref id="a">1</ref><ref id="a">2</ref><ref id="a">3</ref>')
    store.delete("ref:a@3")

    assert "2" == store.get("a").text
    store.delete("ref:a")
    assert () == store.list()
    with pytest.raises(HandleNotFound, match="deleted"):
        store.get("ref:a")
    store.ingest('<ref id="a">4</ref>')
    assert ("ref:a@4",) == store.versions("a")


# Reading


def test_each_error_has_its_type_and_its_range(store):
    """The kinds are told apart, and say what is valid."""
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


def test_a_handle_that_is_not_there_names_the_nearest():
    """A slip of the pen is easily mended."""
    store = RefStore()
    with pytest.raises(HandleNotFound, match="nothing is stored yet"):
        store.get("fd:1")
    store.ingest('<ref id="parser">1</ref><ref id="printer">2</ref><ref id="parser">3</ref>')
    store.add("x")

    for asked, nearest in [("ref:parsre", "ref:parser"), ("pinter", "ref:printer"), ("fd:2", "fd:1")]:
        with pytest.raises(HandleNotFound) as caught:
            store.get(asked)
        assert nearest == caught.value.nearest[0]
        assert nearest in caught.value.hint
    with pytest.raises(HandleNotFound) as caught:
        store.get("ref:parser@7")
    assert ("ref:parser@1", "ref:parser@2") == caught.value.nearest


def test_an_extract_is_a_descriptor_of_its_own(store):
    """It holds the part, exactly, and says where it is from."""
    handle = store.add("one\ntwo\nthree").handle
    made = store.extract(handle, mode="line", start=2, count=2)

    assert ("fd:2", "two\nthree", "extract of fd:1") == (made.handle, made.text, made.source)


def test_membership_and_order(store):
    """A store can be asked and gone through like a container."""
    store.ingest('<ref id="a">1</ref>')
    store.add("x")

    assert ["ref:a@1", "fd:1"] == list(store)
    assert 2 == len(store)
    assert "ref:a" in store
    assert "ref:a@1" in store
    assert "fd:2" not in store
    assert "what" not in store
    assert 7 not in store
    assert "<RefStore 2 handles, 2 of 67,108,864 bytes>" == repr(store)


def test_lists_can_be_narrowed_to_a_category(store):
    """Code, data and text are told apart by what the tag says, else by the content."""
    store.ingest('<ref id="a" type="code">x</ref><ref id="b" type="data">x</ref><ref id="c" type="text">x</ref>')

    assert ["b"] == [ref.id for ref in store.list(category="data")]
    assert ["a", "b", "c"] == [ref.id for ref in store.list()]


def test_suggestions_do_not_repeat_ids_that_are_taken(store):
    """A proposed id is free."""
    store.ingest('<ref id="parse">x</ref>')
    text = "```python\ndef parse(text):\n    a = 1\n    return text\n```\n"

    assert ["parse"] == [one.id for one in RefStore().suggest(text)]
    assert "parse" not in {one.id for one in store.suggest(text)}


# Forks


def test_a_fork_sees_what_was_and_neither_sees_what_comes(store):
    """Old handles are shared, the same new number means different things."""
    store.ingest('<ref id="a">1</ref>')
    store.add("x")
    child = store.fork()
    store.add("of the parent")
    child.add("of the child")
    child.ingest('<ref id="a">2</ref><ref id="b">3</ref>')

    assert ("1", "2") == (store.get("a").text, child.get("a").text)
    assert ("of the parent", "of the child") == (store.get("fd:2").text, child.get("fd:2").text)
    assert "ref:b" not in store
    assert "x" == child.get("fd:1").text


def test_deleting_in_a_fork_leaves_the_parent_whole(store):
    """A tombstone does not cross, in either direction."""
    store.add("x")
    store.add("y")
    child = store.fork()
    child.delete("fd:1")
    store.delete("fd:2")

    assert ["fd:2"] == list(child)
    assert ["fd:1"] == list(store)
    assert (1, 1) == (child.usage.bytes, store.usage.bytes)


# The door


@pytest.mark.parametrize("settings", ["x", {}, DescriptorSettings])
def test_other_settings_are_refused(settings):
    """Only the settings class will do."""
    with pytest.raises(InvalidArgument):
        RefStore(settings=settings)


@pytest.mark.parametrize("text", [None, b"x", 3, ["x"]])
def test_only_text_can_be_added(store, text):
    """Anything else is refused, and nothing is stored."""
    with pytest.raises(InvalidArgument):
        store.add(text)
    assert 0 == len(store)


def test_a_surrogate_is_refused_with_its_place(store):
    """No file could hold it."""
    with pytest.raises(InvalidArgument, match="3"):
        store.add("ab\ud83dc")
    with pytest.raises(InvalidArgument, match="source"):
        store.add("x", source="")


def test_another_thread_is_refused(store):
    """A store belongs to the thread that first used it."""
    store.add("x")
    caught = []

    def use():
        for step in (lambda: store.add("y"), lambda: store.get("fd:1"), lambda: store.ingest("x"), store.fork):
            try:
                step()
            except WrongLoop as error:
                caught.append(error.type)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()

    assert ["wrong_loop"] * 4 == caught
    assert ["fd:1"] == list(store)


def test_time_is_taken_from_the_clock():
    """Entries carry the time of the clock that the store was given."""
    ticks = iter(range(10))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    store = RefStore(clock=lambda: start + timedelta(seconds=next(ticks)))
    store.ingest('<ref id="a">1</ref>')
    store.add("x")

    assert [0, 1] == [(store.get(handle).created_at - start).seconds for handle in store]


def test_a_message_is_not_changed(store):
    """What a host passes is read only."""
    message = {"role": "assistant", "content": [{"type": "text", "text": '<ref id="a">1</ref>'}]}
    before = copy.deepcopy(message)
    store.ingest(message)

    assert before == message


def test_the_prompt_is_true_of_the_settings():
    """Numbers in it are those of the settings, and what is stored is listed on request."""
    store = small(page_size=123)
    store.ingest('<ref id="parser">1</ref>')

    assert "123 characters" in store.prompt()
    assert "" == small(enabled=False).prompt(handles=True)
    assert "created=" not in store.prompt()
    assert '<ref id="parser" created=' in store.prompt(handles=True)


def test_the_example_in_the_prompt_is_a_ref_that_works(store):
    """A model that writes what it is shown is understood, and the literal tag is no ref."""
    ingested = store.ingest(store.prompt())

    # The tag that shows how to append is the second.
    assert ["parser", "parser"] == [ref.id for ref in ingested.refs]
    assert ("def parse(text): ...", "python") == (ingested.refs[0].text, ingested.refs[0].language)
    assert ingested.refs[1].text.startswith("def parse(text): ...\n adds to the end")


def test_a_surrogate_in_an_attribute_is_reported(store):
    """The ref is not stored, the others are, and a source with one is refused."""
    ingested = store.ingest('<ref id="a">1</ref><ref id="b" title="\ud800">x</ref><ref id="c">2</ref>')

    assert ["a", "c"] == [ref.id for ref in ingested.refs]
    assert [("invalid_text", "b")] == [(said.kind, said.id) for said in ingested.diagnostics]
    with pytest.raises(InvalidArgument, match="surrogate"):
        store.add("x", source="\ud800")


def test_blocks_are_stored_as_far_as_there_is_room():
    """Where there is room for one of two, the other one is cut and says so."""
    store = small(max_bytes=12_000)
    blocks = [{"type": "text", "text": letter * 9_000} for letter in "ab"]
    shown = store.wrap(blocks)

    assert ["fd:1"] == list(store)
    assert "fd:1" in shown[0]["text"]
    assert shown[1]["text"].endswith("[the rest was not kept]")


def test_objects_of_a_providers_library_are_blocks_too(store):
    """What becomes a list of content blocks as JSON is wrapped as one."""

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


def test_what_has_no_json_form_comes_back_itself(store, caplog):
    """It cannot be measured, and is no matter for a warning."""
    for result in (object(), iter([1]), {1, object()}, {"a": object()}):
        assert result is store.wrap(result)
    assert "" == caplog.text


def test_the_version_before_is_one_that_can_be_read(store):
    """What was deleted is not named."""
    store.ingest('<ref id="a">1</ref><ref id="a">2</ref>')
    store.delete("ref:a@2")
    assert store.ingest('<ref id="a">3</ref>').diagnostics[0].message.endswith("ref:a@1 is the one before")
    store.delete("ref:a")
    assert "ref:a is now version 4" == store.ingest('<ref id="a">4</ref>').diagnostics[0].message


def test_nested_refs_over_the_quota_take_no_memory():
    """Each content is made when there is room for it, not all of them at once."""
    store = small(max_bytes=2_000_000)
    text = "".join(f'<ref id="n{level}">' for level in range(64)) + "x" * 1_000_000
    tracemalloc.start()
    ingested = asyncio.run(store.run_in_thread(lambda draft: draft.ingest(text)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert 64 == len(ingested.refs)
    assert peak < 20_000_000


@pytest.mark.parametrize("answers", [3, "long", DescriptorSettings()])
def test_only_settings_of_answers_say_how_long_they_may_be(answers):
    """What is no `AnswerSettings` is refused when the store is made."""
    with pytest.raises(InvalidArgument, match="answers must be AnswerSettings"):
        RefStore(answers=answers)
