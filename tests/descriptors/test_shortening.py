"""How a long answer is shortened by its structure, within any budget and without losing anything."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mama_structs._internal.budget import Budget
from mama_structs._internal.jsonable import json_text
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.refs.store.truncation import cut_text, json_in, plan_data, rows_text
from mama_structs.settings import AnswerSettings, DescriptorSettings

WORDS = st.text(alphabet=st.sampled_from('ab"\\\n\t\x00é행<&~/'), max_size=200)
SCALARS = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
KEYS = st.sampled_from(["shortened", "shortened_", "a/b", "~", "", "rows"]) | st.text(max_size=8)
JSON = st.recursive(
    SCALARS | WORDS | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(KEYS, inner, max_size=12),
    max_leaves=60,
)
ANSWERS = st.dictionaries(KEYS, JSON, max_size=12) | st.lists(JSON, max_size=60)
BUDGETS = st.integers(2, 3_000)


def tokens(text):
    """Count as tokenizers do: some signs together, and each sign of other scripts for itself."""
    return sum(3 if ord(sign) > 0x7F else 1 for sign in text[::3]) + 1


SIZES = st.sampled_from([len, tokens, lambda text: len(text.encode("utf-8", "replace"))])


def said_by(shown, original):
    """Return what a shortened answer says of itself, and the answer without it."""
    if isinstance(original, list):
        return shown[-1]["shortened"], shown[:-1]
    name = "shortened"
    while name in original:
        name += "_"
    assert [name] == [key for key in shown if key not in original]
    return shown[name], {key: value for key, value in shown.items() if key != name}


def at(data, pointer):
    """Return what a JSON pointer names."""
    for step in pointer.split("/")[1:]:
        data = data[step.replace("~1", "/").replace("~0", "~")]
    return data


def lines_of(store, handle):
    return store.get(handle).text.split("\n")


def is_shortening(shown, original, cuts, pointer=""):
    """Check that *shown* is *original* but for what *cuts* say, and leaves nothing out that they do not name."""
    if isinstance(shown, dict) and isinstance(original, dict):
        assert list(shown) == list(original)[: len(shown)]
        if len(shown) < len(original):
            assert (len(shown), len(original)) == (cuts[pointer]["shown"], cuts[pointer]["of"])
        for key, value in shown.items():
            step = key.replace("~", "~0").replace("/", "~1")
            is_shortening(value, original[key], cuts, f"{pointer}/{step}")
    elif isinstance(shown, list) and isinstance(original, list):
        assert json_text(shown) == json_text(original[: len(shown)])
        if len(shown) < len(original):
            assert (len(shown), len(original)) == (cuts[pointer]["shown"], cuts[pointer]["of"])
    elif isinstance(shown, str) and shown != original:
        assert isinstance(original, str)
        assert "left out …]" in shown
        assert pointer in cuts
        begin, _, end = shown.partition("[… ")
        assert original.startswith(begin.removesuffix("\n"))
        assert original.endswith(end.partition("left out …]\n")[2])
    else:
        assert json_text(shown) == json_text(original)


@given(ANSWERS, BUDGETS, SIZES)
def test_the_finished_answer_is_within_the_budget_and_is_the_payload_but_for_what_it_says(answer, limit, size):
    """Whatever the data, the budget and what it counts, JSON stays JSON of its kind, and nothing goes unsaid."""
    store, budget = RefStore(), Budget(limit, size=size)
    shown = store.within(answer, budget)

    assert budget.holds(json_text(shown))
    if budget.holds(json_text(answer)):
        assert shown is answer
    elif shown not in ({}, []):
        assert type(shown) is type(answer)
        cuts, rest = said_by(shown, answer)
        assert "" in cuts
        is_shortening(rest, answer, cuts)


@given(ANSWERS, st.integers(300, 1_000))
def test_what_is_shown_and_what_handles_give_are_the_payload(answer, limit):
    """Line n of a handle is row n, or line n, and the handle of the whole gives the payload back."""
    store, budget = RefStore(), Budget(limit)
    assume(not budget.holds(json_text(answer)))
    cuts, _ = said_by(store.within(answer, budget), answer)

    for pointer, cut in cuts.items():
        value, lines = at(answer, pointer), lines_of(store, cut["fd"])
        if isinstance(value, str):
            assert value == "\n".join(lines)
        elif isinstance(value, list):
            assert json_text(value) == json_text([json.loads(line) for line in lines if lines != [""]])
        elif pointer:
            members = [json.loads(line) for line in lines]
            assert json_text(value) == json_text({key: one for member in members for key, one in member.items()})
        else:
            assert json_text(value) == json_text(json.loads("\n".join(lines)))


@given(ANSWERS, st.integers(300, 3_000), st.integers(0, 3))
def test_where_there_is_no_room_for_handles_an_answer_is_shortened_all_the_same(answer, limit, handles):
    """The answer is within the budget, says what was not kept, and no handle is more than the quota allows."""
    store, budget = RefStore(settings=DescriptorSettings(max_handles=handles)), Budget(limit)
    shown = store.within(answer, budget)

    assert budget.holds(json_text(shown))
    assert len(store) <= handles
    if shown is not answer:
        cuts, _ = said_by(shown, answer)
        assert ("fd" in cuts[""]) == bool(handles)
        assert (cuts[""].get("kept") is False) == (not handles)


def schemas_of(value):
    """Build a schema in which every text has a format, at any depth of mappings."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schemas_of(one) for key, one in value.items()}}
    return {"anyOf": [{"$ref": "#/$defs/day"}, {"type": "null"}]} if isinstance(value, str) else {}


@given(st.dictionaries(KEYS, JSON, max_size=12), BUDGETS)
def test_texts_that_a_schema_binds_never_change(answer, limit):
    """A text with enum, const, format or pattern is shown as it is or not at all."""
    store, schema = RefStore(), {**schemas_of(answer), "$defs": {"day": {"type": "string", "format": "date"}}}
    shown = store.within(answer, Budget(limit), schema=schema)

    assert "left out …]" not in json_text(shown) or "left out …]" in json_text(answer)


@pytest.mark.parametrize("word", ["enum", "const", "format", "pattern"])
def test_a_text_that_a_schema_binds_stays_whole_beside_one_that_is_shortened(word):
    """Each of the four words keeps a text whole, in additionalProperties and allOf, too."""
    bound, free = "b" * 400, "f" * 4_000
    schema = {"properties": {"free": {}}, "allOf": [{"additionalProperties": {word: bound}}]}
    schema = {"allOf": [{"properties": {"bound": {word: bound}}}], **schema["properties"]}
    shown = RefStore().within({"bound": bound, "free": free}, Budget(1_000), schema={"properties": {"bound": schema}})

    assert bound == shown["bound"]
    assert free != shown["free"]


@given(WORDS | st.text(max_size=400), st.integers(60, 500))
def test_a_cut_text_keeps_its_ends_and_counts_its_lines(text, room):
    """As JSON it is within its room, and the lines that it shows are the first and the last ones."""
    shown, lines = cut_text(text, room)

    assert len(json_text(shown)) <= max(room, len(json_text(text)))
    if shown != text:
        assert len(json_text(shown)) <= room
        assert 0 <= lines < max(1, text.count("\n") + 1)


def test_the_largest_is_shortened_first():
    """What is small stays whole beside what is large, whatever stands first."""
    small = {"name": "x" * 300, "tags": list(range(50))}
    rows = [{"id": number, "note": "n" * 50} for number in range(1_000)]
    shown = RefStore().within({"rows": rows, "about": small, "log": "line\n" * 5_000}, Budget(8_000))

    assert small == shown["about"]
    assert {"", "/rows", "/log"} == set(shown["shortened"])
    assert 30 < len(shown["rows"]) == shown["shortened"]["/rows"]["shown"]
    assert 2_500 < len(json_text(shown["log"]))


def test_the_room_is_used():
    """Rows fill the budget but for less than one row."""
    rows = [{"id": number, "note": "n" * 80} for number in range(1_000)]
    shown = json_text(RefStore().within({"Player": rows, "pagination": {"next_key": None}}, Budget(8_000)))

    assert 8_000 - 2 * len(json_text(rows[-1])) < len(shown) <= 8_000


def test_a_mapping_of_rows_keeps_its_first_whole():
    """Where a mapping has too many keys for all of them, the first ones are shown with what they hold."""
    rows = {f"1-{number}": {"name": "n" * 80, "owner": "o" * 20} for number in range(1_000)}
    shown = RefStore().within({"players": rows}, Budget(8_000))

    assert ["players", "shortened"] == list(shown)
    assert 50 < len(shown["players"]) < 80
    assert all(rows[key] == row for key, row in shown["players"].items())


def test_a_list_stays_a_list():
    """Its last element says how much there is, and its handle has a row a line."""
    store, rows = RefStore(), [{"id": number} for number in range(3_000)]
    *shown, last = store.wrap(rows)

    assert rows[: len(shown)] == shown
    assert {"shortened": {"": {"shown": len(shown), "of": 3_000, "fd": "fd:1"}}} == last
    assert rows == [json.loads(line) for line in lines_of(store, "fd:1")]


@given(ANSWERS.filter(bool), st.integers(400, 2_000), st.sampled_from([None, 2]))
def test_text_that_is_json_is_shortened_as_json_and_stays_text(answer, limit, indent):
    """The text of an object or array, whole, is shortened by its structure, and its whole is kept as it came."""
    text = json.dumps(answer, ensure_ascii=False, indent=indent)
    store, budget = RefStore(), Budget(limit)
    shown = store.within(text, budget)

    assert budget.holds(shown)
    if shown != text:
        cuts, rest = said_by(json.loads(shown), answer)
        is_shortening(rest, answer, cuts)
        if isinstance(answer, dict):
            assert text == store.get(cuts[""]["fd"]).text


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": 1, "a": 2}', '{"a": 1e999}', "[NaN]", "[0.10000000000000000001]", f"[{'1' * 5_000}]"),
        *("3", '"x"', "null", "[1", "", "[" * 5_000),
    ],
)
def test_what_would_not_come_back_as_it_is_counts_as_plain_text(text):
    """A name twice, a number that Python changes, and what is no object or array are no JSON to shorten."""
    assert json_in(text) is None


@given(st.text(min_size=1) | WORDS, st.integers(1, 50), st.integers(700, 3_000), SIZES)
def test_plain_text_is_within_the_budget_with_all_of_it_under_a_handle(part, times, limit, size):
    """Head, tail and what was left out are one `fd_result`, tags and escapes included."""
    store, budget, text = RefStore(), Budget(limit, size=size), part * times * 40
    assume(json_in(text) is None)
    shown = store.within(text, budget)

    assert budget.holds(shown)
    if shown != text:
        assert shown.startswith("<fd_result")
        assert text.encode("utf-8", "replace").decode() == store.get("fd:1").text


DEEP = 1_000


def nested(levels):
    """Return mappings within mappings."""
    data = {"end": 1}
    for _ in range(levels):
        data = {"down": data, "beside": [1, 2, 3]}
    return data


HOSTILE = {
    "many keys": lambda: {f"key {number}": number for number in range(10**5)},
    "many rows": lambda: {"rows": list(range(10**5))},
    "deep": lambda: nested(90),
    "a key of 10 MB": lambda: {"k" * 10**7: 1, "b": 2},
    "a key of 10 MB over rows": lambda: {"a": 1, "k" * 10**7: list(range(10**5))},
    "a huge number": lambda: {"a": 1, "n": int("9" * 4_000), "rows": list(range(10**5))},
    "huge numbers in rows": lambda: {"rows": [10**4_000] * 100},
    "a text of 10 MB": lambda: {"log": "x" * 10**7},
    "half surrogates": lambda: {"log": "\ud800" * 10**5, "\udfff": ["\ud800"] * 10**4},
    "pointers that look alike": lambda: {"a/b": ["x" * 9] * 10**4, "a~1b": ["x" * 9] * 10**4, "a": {"b": ["y"] * 9999}},
    "our own names": lambda: {"shortened": list(range(9_999)), "shortened_": list(range(9_999)), "": "x" * 9_999},
    "mappings of mappings": lambda: {f"a{n}": {f"b{m}": {"c": m} for m in range(100)} for n in range(100)},
    "empty things": lambda: {f"k{n}": [{}, [], ""] for n in range(9_999)},
    "signs that JSON escapes": lambda: {"log": '\x00"' * 10**5},
    "a list of one": lambda: [{"rows": list(range(10**5))}],
}


@pytest.mark.once
@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("limit", [100, 8_000])
def test_hostile_data_is_within_the_budget(what, limit):
    """Whatever a tool returns, the answer is short, says so, and is read again as JSON."""
    store, data = RefStore(), HOSTILE[what]()
    shown = store.within(data, Budget(limit))
    text = json_text(shown)

    assert len(text) <= limit
    assert type(data) is type(json.loads(text))
    assert limit < 1_000 or len(json_text(data)) <= limit or "shortened" in text


def test_data_too_deep_to_be_written_shows_what_can_be():
    """A plan of a thousand levels shows the first ones, and nothing that is no JSON."""
    shown = plan_data(nested(DEEP), 1_000, width=5).answer({})

    assert len(json_text(shown)) <= 1_000
    assert {"kept": False}.items() <= shown["shortened"][""].items()


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1_000, 3_000))
def test_a_tokenizer_is_asked_a_few_times_only(thousands, limit):
    """What counts tokens sees the whole once, and else texts that are not much longer than the budget."""
    seen = []

    def size(text):
        seen.append(len(text))
        return tokens(text)

    rows = [{"id": number, "note": "두 번 abc" * 5} for number in range(thousands * 100)]
    text = json_text({"rows": rows})
    shown = RefStore().within({"rows": rows}, Budget(limit, size=size))

    assert tokens(json_text(shown)) <= limit
    assert len(seen) <= 26
    assert sum(seen) <= len(text) + 26 * 5 * limit


def test_most_of_a_budget_in_tokens_is_used():
    """An answer in tokens fills nine tenths of its budget, as far as its rows are small."""
    rows = [{"id": number, "note": "두 번 abc"} for number in range(10_000)]
    shown = json_text(RefStore().within({"rows": rows}, Budget(2_000, size=tokens)))

    assert 1_800 <= tokens(shown) <= 2_000


def text_block(text):
    return {"type": "text", "text": text}


IMAGE = {"type": "image", "data": "i" * 50_000, "mimeType": "image/png"}
BLOCKS = st.lists(
    st.builds(text_block, st.text(max_size=2_000) | WORDS)
    | st.just(IMAGE)
    | st.builds(lambda uri: {"type": "resource_link", "uri": uri}, st.text(max_size=300)),
    min_size=1,
    max_size=12,
)


@given(BLOCKS, st.integers(900, 4_000), SIZES)
def test_blocks_keep_their_kind_and_images_do_not_count(blocks, limit, size):
    """A list of content blocks stays one, with every image, and what else it says is within the budget."""
    assume(any(block["type"] == "text" for block in blocks))
    budget = Budget(limit, size=size)
    shown = RefStore().within(blocks, budget)

    assert budget.holds(json_text([block for block in shown if block["type"] != "image"]))
    assert blocks.count(IMAGE) == shown.count(IMAGE)
    assert all(set(block) in ({"type", "text"}, {"type", "uri"}, set(IMAGE)) for block in shown)


def test_rows_are_lines():
    """Rows are written one a line, compact."""
    assert '{"a":1}\n[]' == rows_text([{"a": 1}, []])


@pytest.mark.parametrize("size", [3, 999])
def test_the_deprecated_setting_is_a_budget(size):
    """`wrap_over` warns, and is the budget in characters."""
    with pytest.warns(DeprecationWarning, match="max_chars"):
        store = RefStore(settings=DescriptorSettings(wrap_over=size), answers=AnswerSettings(max_chars=5_000))

    assert Budget(size) == store.budget
