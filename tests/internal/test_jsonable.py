"""Conversion of results to JSON data."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import pathlib
import uuid

import attrs
import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs._internal.jsonable import canonical_json, to_jsonable
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.structs.ids import EntityId, EntityType


class Level(enum.IntEnum):
    LOW = 1


@attrs.frozen
class Planet:
    id: EntityId
    _secret: str = "x"


@dataclasses.dataclass
class Point:
    x: float
    _secret: str = "x"


class Move(msgspec.Struct, tag="move", rename="camel"):
    to_planet: str
    by: str | msgspec.UnsetType = msgspec.UNSET


class Stay(msgspec.Struct):
    hours: int


class Fleet(pydantic.BaseModel):
    at: dt.date
    load: float = 1.0


class Broken(pydantic.BaseModel):
    @pydantic.model_serializer
    def fail(self):
        raise RuntimeError("secret")


Row = collections.namedtuple("Row", "a b")  # noqa: PYI024


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (EntityId.parse("2-1"), "2-1"),
        (EntityType.PLANET, "planet"),
        (Level.LOW, 1),
        (Planet(EntityId.parse("2-1")), {"id": "2-1"}),
        (Point(0.5), {"x": 0.5}),
        (Move("2-1"), {"toPlanet": "2-1", "type": "move"}),
        (Stay(5), {"hours": 5}),
        (Fleet(at=dt.date(2026, 1, 31), load=float("nan")), {"at": "2026-01-31", "load": None}),
        (dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC), "2026-01-31T12:00:00Z"),
        (dt.timedelta(seconds=90), "PT90S"),
        (dt.time(1, 2), "01:02:00"),
        (decimal.Decimal("1.50"), "1.50"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (b"hi", "aGk="),
        (bytearray(b"hi"), "aGk="),
        (memoryview(b"hi"), "aGk="),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({1, "a"}), ["a", 1]),
        ((1, (2,)), [1, [2]]),
        (Row(1, 2), [1, 2]),
        (collections.deque([1]), [1]),
        (range(3), [0, 1, 2]),
        ({"a": 1}.values(), [1]),
        (collections.OrderedDict(a=1), {"a": 1}),
        (np.float64("1.5"), 1.5),
        (np.int64(3), 3),
        (np.str_("a"), "a"),
        (type("Count", (int,), {})(3), 3),
        (np.bool_(True), True),
        (np.array([[1.0, float("nan")]]), [[1.0, None]]),
        ({1: "a", 2: "b"}, {"1": "a", "2": "b"}),
        ({2: "a", None: "b", False: "c", 1.5: "d", EntityId.parse("1-1"): "e", Level.LOW: "f"}, {"2": "a", "null": "b", "false": "c", "1.5": "d", "1-1": "e", "1": "f"}),
        (float("nan"), None),
        ([float("inf"), -float("inf")], [None, None]),
    ],
)  # fmt: skip
def test_to_jsonable_converts_each_kind_of_value(value, written):
    result = to_jsonable(value)

    assert written == result
    assert type(written) is type(result)
    json.dumps(result, allow_nan=False)


json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_data)
def test_to_jsonable_keeps_json_data(value):
    assert value == to_jsonable(value)
    assert json.dumps(value) == json.dumps(to_jsonable(value))


rich_data = st.recursive(
    st.floats() | st.binary() | st.datetimes() | st.decimals() | st.uuids() | st.timedeltas() | st.text() | st.none(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.builds(Point, inner)
        | st.dictionaries(st.text(), inner)
        | st.frozensets(st.integers() | st.text() | st.floats() | st.dates())
    ),
)


@given(rich_data)
def test_to_jsonable_output_is_strict_json_and_stable(value):
    written = to_jsonable(value)

    assert written == json.loads(json.dumps(written, allow_nan=False)) == to_jsonable(written)


def test_to_jsonable_returns_new_containers():
    value = {"a": [1, (2,)]}
    written = to_jsonable(value)
    written["a"].append(3)

    assert {"a": [1, (2,)]} == value


def test_to_jsonable_writes_shared_object_twice():
    shared = {"a": 1}

    assert [shared, {"b": shared}] == to_jsonable([shared, {"b": shared}])


def cycle():
    value = {"a": [1]}
    value["a"].append(value)
    return value


def nested(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_to_jsonable_accepts_a_hundred_levels():
    assert nested(100) == to_jsonable(nested(100))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (cycle(), r"contains itself, at \$\.a\[1\]"),
        (nested(101), r"nested more than 100 levels deep, at \$\[0\]\[0\]\[0\]\[0\]\[0\]\[0\]\[0\]… "),
        pytest.param(nested(5000), "nested more than 100 levels deep", id="very-deep"),
        ({"a": [object()]}, r"holds a object, which has no JSON form, at \$\.a\[0\]"),
        (Planet, "holds a type"),
        ((one for one in "ab"), "holds a generator"),
        (Broken(), "holds a Broken"),
        ({1: "a", "1": "b"}, "two keys of the result become the same text"),
        ({(1, 2): "a"}, "a key of the result is no scalar"),
    ],
)
def test_to_jsonable_raises_typed_error_for_unsupported_value(value, message):
    """The message names the path but not the content."""
    with pytest.raises(MamaStructsError, match=message) as caught:
        to_jsonable(value)

    assert caught.value.hint
    assert not isinstance(caught.value, InvalidArgument)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0, -0.0),
        (10**20, 1e20),
        ({"a": 1, "b": [2.0]}, {"b": (2,), "a": 1.0}),
        (float("nan"), None),
        (dt.date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_canonical_json_is_equal_for_equal_json_values(one, other):
    assert canonical_json(one) == canonical_json(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (0, None),
        (1, "1"),
        ("", None),
        (2**53, 2**53 + 1),
        (2.0**53, 2**53 + 1),
        ("caf\u00e9", "cafe\u0301"),
        ([1, 2], [2, 1]),
        ([[]], []),
        ({"a": None}, {}),
        ({"a": 1}, [["a", 1]]),
        ("\ud800", "\ud801"),
    ],
)
def test_canonical_json_differs_for_different_json_values(one, other):
    assert canonical_json(one) != canonical_json(other)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def same_json(one, other):
    """Compare JSON values by their definition."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return one == other


@given(one=JSON, other=JSON)
def test_canonical_json_is_equal_exactly_for_equal_values(one, other):
    """The text does not change when the value is stored and read again."""
    assert same_json(one, other) == (canonical_json(one) == canonical_json(other))
    assert canonical_json(one) == canonical_json(msgspec.json.decode(msgspec.json.encode(one)))


def test_canonical_json_returns_none_for_values_without_comparable_text():
    """Values that are nested too deeply, or integers that Python cannot write, raise no error."""
    nested = []
    for _ in range(5_000):
        nested = [nested]

    assert canonical_json(nested) is None
    assert canonical_json({"a": 10**5_000}) is None
