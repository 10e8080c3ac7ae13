"""Conversion of payloads and answers to plain data."""

import collections
import dataclasses
import datetime as dt
import enum
import json
import types

import attrs
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mama_structs._internal.jsonable import (
    MAX_DEPTH,
    as_mapping,
    as_payload,
    copy_answer,
    copy_containers,
    measure_json_bytes,
    to_json_text,
    to_json_text_in_chunks,
    to_plain,
    to_plain_level,
)
from mama_structs.errors import MalformedResponse
from mama_structs.structs.entities import Coin
from mama_structs.structs.ids import EntityId

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


@attrs.frozen
class Planet:
    id: str
    slots: list


@dataclasses.dataclass
class Guild:
    id: str
    slots: list


class Fleet(pydantic.BaseModel):
    id: str
    at: dt.date = dt.date(2026, 9, 2)


class Colour(enum.StrEnum):
    RED = "red"


def test_as_mapping_converts_models_one_level_deep():
    """Field values are the same objects."""
    slots = [EntityId.parse("5-1")]

    assert {"id": "2-1", "slots": slots} == as_mapping(Planet("2-1", slots)) == as_mapping(Guild("2-1", slots))
    assert slots is as_mapping(Planet("2-1", slots))["slots"]
    assert {"id": "9-1", "at": dt.date(2026, 9, 2)} == as_mapping(Fleet(id="9-1"))


def test_as_payload_converts_models_recursively():
    assert {"id": "9-1", "at": "2026-09-02"} == as_payload(Fleet(id="9-1"))
    assert {"id": "2-1", "slots": ["5-1", {"id": "0-1", "slots": []}]} == as_payload(
        Planet("2-1", [EntityId.parse("5-1"), Guild("0-1", [])])
    )
    assert None is as_payload([Planet("2-1", [])])


def test_as_mapping_returns_mapping_itself():
    for mapping in ({"a": 1}, types.MappingProxyType({}), collections.UserDict(), collections.ChainMap({})):
        assert mapping is as_mapping(mapping)


@pytest.mark.parametrize(
    "value",
    [None, 5, "text", b"x", [1], ("a", 1), {1}, Planet, Guild, Fleet, object, Colour.RED, EntityId.parse("1-1"), print],
)
def test_as_mapping_returns_none_for_other_values(value):
    assert None is as_mapping(value)


def test_as_payload_converts_one_level_of_unserializable_model():
    """The model contains a cycle, or a value that JSON cannot represent."""

    class Node(pydantic.BaseModel):
        child: object = None

    cyclic, strange, deep = Node(), Node(child=object()), Planet("2-1", [])
    cyclic.child = cyclic
    deep.slots.append(deep)

    assert cyclic is as_payload(cyclic)["child"]
    assert strange.child is as_payload(strange)["child"]
    assert deep.slots is as_payload(deep)["slots"]


def test_registered_type_is_converted_by_its_function():
    class Money:
        pass

    to_plain.register(Money, lambda _: {"owner": "1-1"})

    assert {"owner": "1-1"} == as_mapping(Money())
    assert {"price": {"owner": "1-1"}, "id": "1-5"} == copy_answer({"price": Money(), "id": EntityId.parse("1-5")})
    assert {"denom": "ualpha", "amount": "7"} == as_payload(Coin(denom="ualpha", amount=7))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("x", "x"), (Colour.RED, "red"), (EntityId.parse("1-5"), "1-5"), ({"a": 1}, {"a": 1}), ([1], [1]), ((1,), (1,)),
        ({"b", "a"}, ["a", "b"]), ({("b", frozenset("zyx")), ("a", frozenset("cab"))}, [("a", frozenset("abc")), ("b", frozenset("xyz"))]),
        (None, None), (5, None), (5.5, None), (True, None), (b"x", None), (bytearray(b"x"), None), (memoryview(b"x"), None),
        (range(5), None), (collections.UserString("x"), None), (object, None), (iter([]), None),
    ],
)  # fmt: skip
def test_plain_of_returns_text_mapping_array_or_none(value, plain):
    assert plain == to_plain_level(value)
    assert plain is None or not isinstance(plain, str) or type(to_plain_level(value)) is str


@given(JSON)
def test_own_copy_is_equal_and_independent(value):
    answer = {"value": value}
    copied = copy_answer(answer)

    def containers(part):
        if isinstance(part, dict | list):
            yield id(part)
            for member in part.values() if isinstance(part, dict) else part:
                yield from containers(member)

    assert answer == copied == copy_containers(copied)
    assert set(containers(answer)).isdisjoint(containers(copied))
    assert set(containers(copied)).isdisjoint(containers(copy_containers(copied)))


def test_own_copy_converts_answer_to_plain_data():
    strange = object()
    answer = types.MappingProxyType(
        {
            "planet": Planet("2-1", [Guild("0-1", [])]), "tuple": (1, (2,)), "set": {"b", "a"}, 5: {None: 1}, "deque": collections.deque([1]),
            "colour": Colour.RED, "id": EntityId.parse("1-5"), "other": strange, "bytes": b"x",
        }
    )  # fmt: skip
    copied = copy_answer(answer)

    assert {
        "planet": {"id": "2-1", "slots": [{"id": "0-1", "slots": []}]}, "tuple": [1, [2]], "set": ["a", "b"], "5": {"None": 1},
        "deque": [1], "colour": "red", "id": "1-5", "other": strange, "bytes": b"x",
    } == copied  # fmt: skip
    assert [str, str] == [type(copied["colour"]), type(copied["id"])]


@pytest.mark.parametrize("answer", [None, "text", 5, [{"id": "1-1"}], object(), Planet])
def test_own_copy_rejects_other_values_than_mappings(answer):
    with pytest.raises(MalformedResponse, match="instead of a mapping"):
        copy_answer(answer)


@pytest.mark.parametrize(
    "wrap",
    [lambda value: [value], lambda value: {"a": value}, lambda value: (value,), lambda value: Planet("2-1", value)],
)
def test_own_copy_rejects_deep_answer_without_recursion_error(wrap):
    def nested(levels):
        value = "x"
        for _ in range(levels):
            value = wrap(value)
        return {"a": value}

    assert "a" in copy_answer(nested(MAX_DEPTH // 2 - 1))
    for levels in (MAX_DEPTH + 1, 10_000):
        with pytest.raises(MalformedResponse, match="deeper than 100"):
            copy_answer(nested(levels))


def test_own_copy_accepts_a_hundred_levels():
    def nested(levels):
        return {"a": nested(levels - 1)} if levels else "x"

    assert nested(MAX_DEPTH) == copy_answer(nested(MAX_DEPTH))
    with pytest.raises(MalformedResponse):
        copy_answer(nested(MAX_DEPTH + 1))


def test_own_copy_rejects_cyclic_answer():
    answer = {}
    answer["self"] = [answer]

    with pytest.raises(MalformedResponse):
        copy_answer(answer)


@given(JSON)
def test_json_size_is_that_of_compact_json(value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    assert len(text.encode("utf-8", "surrogatepass")) == measure_json_bytes(value)


def test_json_size_of_unsupported_value_is_that_of_its_text():
    """Lone surrogates count as three bytes."""
    assert len('"2026-09-02"') == measure_json_bytes(dt.date(2026, 9, 2))
    assert len('"') * 2 + 3 == measure_json_bytes("\ud800")


def test_json_text_is_compact_and_unescaped():
    text = to_json_text({"name": "행성", "rows": [1, {"a": None}]})

    assert '{"name":"행성","rows":[1,{"a":null}]}' == text


@settings(max_examples=15)
@given(st.lists(JSON, max_size=2), st.sampled_from([1, 199, 201]), st.integers(0, 4))
def test_json_text_in_pieces_equals_json_text(values, repeats, nesting):
    long = values * repeats
    data = {"list": long, 1: dict(enumerate(long)), None: [long, [1, long]], "text": "x"}
    for _ in range(nesting):
        data = [data]

    assert to_json_text(data) == to_json_text_in_chunks(data)
    assert to_json_text(long) == to_json_text_in_chunks(long)
