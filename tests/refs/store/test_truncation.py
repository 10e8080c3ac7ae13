"""Structural truncation of long answers to any budget. Omitted data is stored."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mama_structs._internal.budget import Budget
from mama_structs._internal.jsonable import to_json_text
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.refs.store.truncation import parse_json_container, plan_data, to_json_lines, truncate_text
from mama_structs.settings import DescriptorSettings

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
    """Approximate a tokenizer with three characters per token. Non-ASCII characters cost more."""
    return sum(3 if ord(sign) > 0x7F else 1 for sign in text[::3]) + 1


SIZE_FUNCTIONS = st.sampled_from([len, tokens, lambda text: len(text.encode("utf-8", "replace"))])


def said_by(shown, original):
    """Return the list of truncations in an answer, and the answer without this list."""
    if isinstance(original, list):
        return shown[-1]["shortened"], shown[:-1]
    name = "shortened"
    while name in original:
        name += "_"
    assert [name] == [key for key in shown if key not in original]
    return shown[name], {key: value for key, value in shown.items() if key != name}


def at(data, pointer):
    """Return the value at a JSON pointer."""
    for step in pointer.split("/")[1:]:
        data = data[step.replace("~1", "/").replace("~0", "~")]
    return data


def lines_of(store, handle):
    return store.get(handle).text.split("\n")


def is_shortening(shown, original, cuts, pointer=""):
    """Assert that *shown* equals *original* except for the truncations that *cuts* lists."""
    if isinstance(shown, dict) and isinstance(original, dict):
        assert list(shown) == list(original)[: len(shown)]
        if len(shown) < len(original):
            assert (len(shown), len(original)) == (cuts[pointer]["shown"], cuts[pointer]["of"])
        for key, value in shown.items():
            step = key.replace("~", "~0").replace("/", "~1")
            is_shortening(value, original[key], cuts, f"{pointer}/{step}")
    elif isinstance(shown, list) and isinstance(original, list):
        assert to_json_text(shown) == to_json_text(original[: len(shown)])
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
        assert to_json_text(shown) == to_json_text(original)


@given(ANSWERS, BUDGETS, SIZE_FUNCTIONS)
def test_within_returns_truncated_payload_within_budget(answer, limit, size):
    """For any data and budget unit, the answer is valid JSON, and lists all truncated values."""
    store, budget = RefStore(), Budget(limit, size=size)
    shown = store._within(answer, budget)

    assert budget.fits(to_json_text(shown))
    if budget.fits(to_json_text(answer)):
        assert shown is answer
    elif shown not in ({}, []):
        assert type(shown) is type(answer)
        cuts, rest = said_by(shown, answer)
        assert "" in cuts
        is_shortening(rest, answer, cuts)


@given(ANSWERS, st.integers(300, 1_000))
def test_within_handles_contain_omitted_parts(answer, limit):
    """Line n of a handle is row n or line n; the handle of the complete answer restores it."""
    store, budget = RefStore(), Budget(limit)
    assume(not budget.fits(to_json_text(answer)))
    cuts, _ = said_by(store._within(answer, budget), answer)

    for pointer, cut in cuts.items():
        value, lines = at(answer, pointer), lines_of(store, cut["fd"])
        if isinstance(value, str):
            assert value == "\n".join(lines)
        elif isinstance(value, list):
            assert to_json_text(value) == to_json_text([json.loads(line) for line in lines if lines != [""]])
        elif pointer:
            members = [json.loads(line) for line in lines]
            assert to_json_text(value) == to_json_text({key: one for member in members for key, one in member.items()})
        else:
            assert to_json_text(value) == to_json_text(json.loads("\n".join(lines)))


@given(ANSWERS, st.integers(300, 3_000), st.integers(0, 3))
def test_within_truncates_without_handles_when_quota_is_exhausted(answer, limit, handles):
    """The answer fits in the budget, reports what was not kept, and respects the quota."""
    store, budget = RefStore(settings=DescriptorSettings(max_handles=handles)), Budget(limit)
    shown = store._within(answer, budget)

    assert budget.fits(to_json_text(shown))
    assert len(store) <= handles
    if shown is not answer:
        cuts, _ = said_by(shown, answer)
        assert ("fd" in cuts[""]) == bool(handles)
        assert (cuts[""].get("kept") is False) == (not handles)


def schemas_of(value):
    """Return a schema in which every string of nested mappings has a format."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schemas_of(one) for key, one in value.items()}}
    return {"anyOf": [{"$ref": "#/$defs/day"}, {"type": "null"}]} if isinstance(value, str) else {}


@given(st.dictionaries(KEYS, JSON, max_size=12), BUDGETS)
def test_within_does_not_truncate_texts_with_fixed_format(answer, limit):
    """Texts with enum, const, format or pattern are complete or omitted."""
    store, schema = RefStore(), {**schemas_of(answer), "$defs": {"day": {"type": "string", "format": "date"}}}
    shown = store._within(answer, Budget(limit), schema=schema)

    assert "left out …]" not in to_json_text(shown) or "left out …]" in to_json_text(answer)


@pytest.mark.parametrize("word", ["enum", "const", "format", "pattern"])
def test_within_keeps_text_with_fixed_format_next_to_truncated_text(word):
    """Each keyword applies, also in additionalProperties and allOf."""
    bound, free = "b" * 400, "f" * 4_000
    schema = {"properties": {"free": {}}, "allOf": [{"additionalProperties": {word: bound}}]}
    schema = {"allOf": [{"properties": {"bound": {word: bound}}}], **schema["properties"]}
    shown = RefStore()._within({"bound": bound, "free": free}, Budget(1_000), schema={"properties": {"bound": schema}})

    assert bound == shown["bound"]
    assert free != shown["free"]


@given(WORDS | st.text(max_size=400), st.integers(60, 500))
def test_cut_text_keeps_both_ends_and_counts_lines(text, room):
    """Its JSON fits in the room, and the remaining lines are the first and last ones."""
    shown, lines = truncate_text(text, room)

    assert len(to_json_text(shown)) <= max(room, len(to_json_text(text)))
    if shown != text:
        assert len(to_json_text(shown)) <= room
        assert 0 <= lines < max(1, text.count("\n") + 1)


def test_within_truncates_largest_values_first():
    """Small values stay complete, regardless of their position."""
    small = {"name": "x" * 300, "tags": list(range(50))}
    rows = [{"id": number, "note": "n" * 50} for number in range(1_000)]
    shown = RefStore()._within({"rows": rows, "about": small, "log": "line\n" * 5_000}, Budget(8_000))

    assert small == shown["about"]
    assert {"", "/rows", "/log"} == set(shown["shortened"])
    assert 30 < len(shown["rows"]) == shown["shortened"]["/rows"]["shown"]
    assert 2_500 < len(to_json_text(shown["log"]))


def test_within_uses_the_budget():
    """The unused part is smaller than two rows."""
    rows = [{"id": number, "note": "n" * 80} for number in range(1_000)]
    shown = to_json_text(RefStore()._within({"Player": rows, "pagination": {"next_key": None}}, Budget(8_000)))

    assert 8_000 - 2 * len(to_json_text(rows[-1])) < len(shown) <= 8_000


def test_within_keeps_first_members_when_not_all_keys_fit():
    """The first members of a large mapping are complete."""
    rows = {f"1-{number}": {"name": "n" * 80, "owner": "o" * 20} for number in range(1_000)}
    shown = RefStore()._within({"players": rows}, Budget(8_000))

    assert ["players", "shortened"] == list(shown)
    assert 50 < len(shown["players"]) < 80
    assert all(rows[key] == row for key, row in shown["players"].items())


def test_wrap_truncates_list_to_list():
    """The last element describes the truncation, and the handle has one row per line."""
    store, rows = RefStore(), [{"id": number} for number in range(3_000)]
    *shown, last = store.wrap(rows)

    assert rows[: len(shown)] == shown
    assert {"shortened": {"": {"shown": len(shown), "of": 3_000, "fd": "fd:1"}}} == last
    assert rows == [json.loads(line) for line in lines_of(store, "fd:1")]


@given(ANSWERS.filter(bool), st.integers(400, 2_000), st.sampled_from([None, 2]))
def test_within_truncates_json_text_to_json_text(answer, limit, indent):
    """A text that is a JSON object or array is truncated structurally, and stored unchanged."""
    text = json.dumps(answer, ensure_ascii=False, indent=indent)
    store, budget = RefStore(), Budget(limit)
    shown = store._within(text, budget)

    assert budget.fits(shown)
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
def test_json_in_rejects_text_that_would_not_round_trip(text):
    """Duplicate keys, inexact numbers and other values count as plain text."""
    assert parse_json_container(text) is None


@given(st.text(min_size=1) | WORDS, st.integers(1, 50), st.integers(700, 3_000), SIZE_FUNCTIONS)
def test_within_truncates_plain_text_within_budget(part, times, limit, size):
    """Head, tail and the omitted range form an `fd_result`, and the text is stored."""
    store, budget, text = RefStore(), Budget(limit, size=size), part * times * 40
    assume(parse_json_container(text) is None)
    shown = store._within(text, budget)

    assert budget.fits(shown)
    if shown != text:
        assert shown.startswith("<fd_result")
        assert text.encode("utf-8", "replace").decode() == store.get("fd:1").text


DEEP = 1_000


def nested(levels):
    """Return mappings that are nested to this depth."""
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
def test_within_truncates_hostile_data(what, limit):
    """The answer is short, valid JSON, and describes its truncation."""
    store, data = RefStore(), HOSTILE[what]()
    shown = store._within(data, Budget(limit))
    text = to_json_text(shown)

    assert len(text) <= limit
    assert type(data) is type(json.loads(text))
    assert limit < 1_000 or len(to_json_text(data)) <= limit or "shortened" in text


def test_plan_data_truncates_data_too_deep_to_serialize():
    """The first levels are shown, as valid JSON."""
    shown = plan_data(nested(DEEP), 1_000, width=5).to_answer({})

    assert len(to_json_text(shown)) <= 1_000
    assert {"kept": False}.items() <= shown["shortened"][""].items()


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1_000, 3_000))
def test_within_calls_size_function_few_times(thousands, limit):
    """The size function gets the complete text once, and otherwise texts of about the budget."""
    seen = []

    def size(text):
        seen.append(len(text))
        return tokens(text)

    rows = [{"id": number, "note": "두 번 abc" * 5} for number in range(thousands * 100)]
    text = to_json_text({"rows": rows})
    shown = RefStore()._within({"rows": rows}, Budget(limit, size=size))

    assert tokens(to_json_text(shown)) <= limit
    assert len(seen) <= 26
    assert sum(seen) <= len(text) + 26 * 5 * limit


def test_within_uses_most_of_token_budget():
    """An answer with small rows fills 90 % of a budget in tokens."""
    rows = [{"id": number, "note": "두 번 abc"} for number in range(10_000)]
    shown = to_json_text(RefStore()._within({"rows": rows}, Budget(2_000, size=tokens)))

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


@given(BLOCKS, st.integers(900, 4_000), SIZE_FUNCTIONS)
def test_within_keeps_block_types_and_ignores_images(blocks, limit, size):
    """All images remain, and the other blocks fit in the budget."""
    assume(any(block["type"] == "text" for block in blocks))
    budget = Budget(limit, size=size)
    shown = RefStore()._within(blocks, budget)

    assert budget.fits(to_json_text([block for block in shown if block["type"] != "image"]))
    assert blocks.count(IMAGE) == shown.count(IMAGE)
    assert all(set(block) in ({"type", "text"}, {"type", "uri"}, set(IMAGE)) for block in shown)


def test_rows_text_returns_json_lines():
    """Each row is one line of compact JSON."""
    assert '{"a":1}\n[]' == to_json_lines([{"a": 1}, []])
